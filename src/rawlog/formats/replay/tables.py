"""The tables of recordings beyond `records`."""

from __future__ import annotations

from rawlog.core.tables import Column, Table

ENTRIES = Table(
    "replay.entries",
    Column("path", "string"),
    Column("version", "int", "of the file: 0, 1 or 2"),
    Column("position", "bigint"),
    Column("size", "bigint"),
    Column("number", "bigint", "counted from 0"),
    Column("timestamp", "timestamp"),
    Column("key", "binary"),
    Column("value", "binary"),
    about="one row per entry of a recording",
    offsets=("number", "number"),
    times=("timestamp", "timestamp"),
    payload={"key": "key", "value": "value"},
    row_key={"number": "offset"},
)
