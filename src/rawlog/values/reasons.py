"""Why keys and values are not decoded: the words that rows have, and the rules of the findings that a lake has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.report import SeriousNote

SIDES = ("value", "key")


class Undecoded(SeriousNote):
    """A note on keys or values that were not decoded: which `side` of the records, and the `number` of them."""

    __slots__ = ("number", "side")
    side: str
    number: int

    def __new__(cls, text: str, side: str = "value", number: int = 0) -> Self:
        note = super().__new__(cls, text)
        note.side, note.number = side, number
        return note


UNKNOWN_ID, NOT_FRAMED, TRUNCATED, CORRUPT, BAD_INDEX, BAD_HEADER, BAD_SCHEMA, NOT_JSON, NOT_TEXT, OTHER_KIND, OTHER_SCHEMA = (
    "unknown_schema_id", "not_framed", "truncated", "corrupt_body", "bad_message_index", "bad_schema_id_header", "bad_schema", "not_json",
    "not_text", "other_kind", "other_schema",
)  # fmt: skip
#: Why a value was not decoded, by the code that the rows have.
REASONS = {
    UNKNOWN_ID: "the schema id is not known",
    NOT_FRAMED: "too short for a schema id",
    TRUNCATED: "the value ends inside a field",
    CORRUPT: "the value does not fit its schema",
    BAD_INDEX: "the message index does not exist in the schema",
    BAD_HEADER: "the header with the schema id is damaged",
    BAD_SCHEMA: "the schema cannot be used",
    NOT_JSON: "the value is not JSON",
    NOT_TEXT: "the value is not text in UTF-8",
    OTHER_KIND: "the schema has another kind",
    OTHER_SCHEMA: "it does not fit the columns; @written gives JSON text",
}

#: What each reason means and what to do about it: the pages of the rules. SIDE is the key or the value.
_PAGES = {
    UNKNOWN_ID: """The SIDE begins with byte 0 and a schema id, and no schema of that id is known.

The registry's topic `_schemas` is not among the files, or is not whole; or it belongs to another registry. `--schemas` names a directory,
a file or a registry. Binary data that is not of a registry often begins with byte 0: then nothing is wrong.""",
    NOT_FRAMED: """The SIDE begins with byte 0, and is too short for a schema id.

It is probably not of a registry. `--decode SIDE=string` shows text, `SIDE=raw` leaves the bytes.""",
    TRUNCATED: """The SIDE ends inside a field of its schema.

It was cut before it was produced, or it has another schema than its id says: ids are given twice after schemas are deleted for good. Its
bytes are in the column `SIDE`.""",
    CORRUPT: """The SIDE names a schema that it does not fit.

It was written with another schema, or it is not of a registry and only looks so. Its bytes are in the column `SIDE`.""",
    BAD_INDEX: """The SIDE names a message of its Protobuf schema that does not exist.

Some old clients write message indexes in another way, or none at all. Its bytes are in the column `SIDE`.""",
    BAD_HEADER: """The header of the record that names the schema of the SIDE is damaged.

It must be byte 1 and a GUID of 16 bytes, or byte 0 and an id of 4 bytes. The producer or a program in between wrote something else.""",
    BAD_SCHEMA: """The schema of the SIDE cannot be used: it is not valid, or refers to one that is missing.

`rawlog cat DIR --topic _schemas` shows the schemas. If one that is referred to was deleted for good, `--schemas` may name a place
that still has it.""",
    NOT_JSON: """--decode says JSON, and the SIDE is not a JSON text.

`--decode SIDE=auto` decodes only what names a schema.""",
    NOT_TEXT: """--decode says text, and the SIDE is not text in UTF-8.

`--decode SIDE=auto` decodes what names a schema.""",
    OTHER_KIND: """The SIDE has another kind of schema (Avro, Protobuf, JSON Schema) than --decode says.

`--decode SIDE=auto` takes all of them.""",
    OTHER_SCHEMA: """The decoded SIDE does not fit the columns of the chosen version of the schema.

`--decode SIDE=auto@written` gives JSON text, which is as each SIDE was written.""",
}  # fmt: skip


def code(side: str, reason: str) -> str:
    """The code of the rule for a reason."""
    return f"records.{side}.{reason.replace('_', '-')}"


def _rule(side: str, reason: str) -> Rule[Any]:
    def check(_: Any) -> Iterator[Mark]:
        return iter(())  # values are looked at where they are decoded

    check.__doc__ = _PAGES[reason].replace("SIDE", side)
    return rule(code(side, reason), Severity.INFO)(check)


#: The rules about keys and values that are not decoded, which `ingest --decode` looks at.
RULES = tuple(_rule(side, reason) for side in SIDES for reason in REASONS)
