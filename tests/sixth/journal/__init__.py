"""Journals: numbered entries with a key and a value, in a directory of segments with an index each.

What this file needs to recognise and list files imports neither NumPy nor Arrow.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rawlog.model.format import Family, Format, Place
from rawlog.model.table import RECORDS, Column, Table
from tests.sixth.journal.layouts import FILE_HEADER, FILE_MAGIC

# Tables: names and types are a public contract -------------------------------------------------------------------------

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

# Recognition ------------------------------------------------------------------------------------------------------------


def place_of(ending: str) -> Callable[[str], Place | None]:
    """What a path says of a file with this ending: the directory is the journal, the name is the first number."""
    pattern = re.compile(rf"(\d{{20}})\.{ending}")

    def match(path: str) -> Place | None:
        folder, _, name = path.rpartition("/")
        found = pattern.fullmatch(name)
        if found is None or int(found[1]) >= 1 << 63:
            return None
        topic = folder.rpartition("/")[2] or None
        return Place(topic, None if topic is None else 0, int(found[1]), folder or ".")

    return match


def sniff(head: bytes, size: int) -> bool:
    """Whether a file that begins with `head` is a segment, whatever its name: the magic and a plausible version."""
    version = head[FILE_HEADER.at("version") : FILE_HEADER.after("version")]
    return head.startswith(FILE_MAGIC) and size >= FILE_HEADER.size and 0 < int.from_bytes(version, "big") < 100


# The formats and the family ---------------------------------------------------------------------------------------------

SEGMENT = Format(
    name="journal.segment",
    has_rules=True,
    title="journal segment, version 1",
    files="<journal>/<20 digits>.journal",
    module=f"{__name__}.segment",
    tables=(RECORDS, ENTRIES),
    carries=frozenset({"key", "value", "topic", "timestamp"}),
    ordered=True,
    match=place_of("journal"),
    sniff=sniff,
)

INDEX = Format(
    name="journal.positions",
    has_rules=True,
    title="where every eighth entry of a segment begins",
    files="<journal>/<20 digits>.positions",
    module=f"{__name__}.positions",
    tables=(POSITIONS,),
    match=place_of("positions"),
)


FAMILY = Family(
    name="journal",
    title="Journal",
    formats=(SEGMENT, INDEX),
    store=f"{__name__}.store:Journal",
)
