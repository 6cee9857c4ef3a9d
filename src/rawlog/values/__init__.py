"""What the bytes of keys and values mean: schemas, decoded values, fields, masks."""
