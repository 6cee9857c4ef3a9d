"""The tables of journals beyond `records`. Names and types are a public contract."""

from __future__ import annotations

from rawlog.model.table import Column, Table

ENTRIES = Table(
    "journal.entries",
    Column("path", "string"),
    Column("position", "bigint", "first byte in the file"),
    Column("size", "bigint", "bytes, padding included"),
    Column("number", "bigint"),
    Column("timestamp", "timestamp"),
    Column("key", "binary"),
    Column("value", "binary"),
    Column("crc", "bigint", "as stored; Spark has no unsigned types"),
    about="one row per entry of a segment",
    offsets=("number", "number"),
    times=("timestamp", "timestamp"),
)

POSITIONS = Table(
    "journal.positions",
    Column("path", "string"),
    Column("number", "bigint"),
    Column("position", "bigint", "in the segment next to the index"),
    about="one row per entry of an index",
)
