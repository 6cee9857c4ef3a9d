"""Secrets in metadata logs: what `records` shows of a record that holds salts, keys or passwords.

The secret bytes are overwritten with asterisks, as many as there were, so that the record still decodes. What works on bytes
(rebuild, repair, restore) never comes through here. Message definitions are imported where they are used: most logs need none.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from rawlog.model.errors import DataError, OptionError

STAR = b"*"
OPTION = "showSecrets"


def shows_secrets(options: Mapping[str, str]) -> bool:
    """Whether secrets are to be shown. OptionError if that is neither true nor false."""
    for name, value in options.items():
        if name.replace("_", "").replace("-", "").lower() == OPTION.lower():
            if str(value).strip().lower() not in ("true", "false"):
                raise OptionError(f"option {OPTION} {value!r}: true or false expected")
            return str(value).strip().lower() == "true"
    return False


def without_secrets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose values show no secret of a metadata record."""
    from rawlog.formats.kafka.internal.messages import FRAME_VERSION, SECRETS, framed_types

    holders = (*SECRETS, "ConfigRecord")  # the metadata records that may hold a secret
    values = batch.column("value")
    begins = {bytes((FRAME_VERSION, number)) for number, schema in framed_types().items() if schema.name in holders}
    plain = values.to_pylist()
    shown = [hide_secrets(value) if value is not None and value[:2] in begins else value for value in plain]
    if shown == plain:
        return batch
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, batch.schema.field(at), pa.array(shown, values.type))


def hide_secrets(value: bytes) -> bytes:
    """A metadata record's value with its secrets overwritten; what is no such record is left as it is."""
    from rawlog.formats.kafka.internal.messages import decode_framed, encode_framed, is_secret

    try:
        framed = decode_framed(value)
    except DataError:
        return _unreadable(value)
    name = framed.codec.schema.name
    message = dict(framed.message)
    for field, content in framed.message.items():
        if content is not None and is_secret(name, field, framed.message):
            message[field] = STAR * len(content) if isinstance(content, bytes) else "*" * len(content.encode())
    return value if message == framed.message else encode_framed(framed.key, message, framed.version)


def _unreadable(value: bytes) -> bytes:
    """A record of a version that is not known: all of its body, where its type is known to hold secrets."""
    from rawlog.formats.kafka.internal.messages import frame_head, framed_types

    try:
        key, _, body = frame_head(value)
    except DataError:
        return value
    schema = framed_types().get(key)
    if schema is None or not may_hold_secret(schema.name, value):
        return value
    return value[:body] + STAR * (len(value) - body)


def may_hold_secret(schema: str, value: bytes) -> bool:
    """Whether the bytes of a record that cannot be decoded may hold a secret, by the name of its type."""
    from rawlog.formats.kafka.internal.messages import SECRET_CONFIGS, SECRETS

    if schema in SECRETS:
        return True
    return schema == "ConfigRecord" and any(word.encode() in value for word in SECRET_CONFIGS)
