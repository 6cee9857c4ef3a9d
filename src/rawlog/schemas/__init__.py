"""What the bytes of keys and values mean: schemas from a registry's topic, files or a live registry, and values decoded with them.

`catalog` knows all schemas, `framing` finds out which of them is meant, `avro`, `protobuf` and `documents` turn bytes into values,
`decoding` does all of that for the rows of a table.
"""
