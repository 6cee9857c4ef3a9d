"""Journals show what every format and every store must (`rawlog.testing`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rawlog.testing import FormatTests
from rawlog.testing.store import StoreTests
from tests.data.golden import GOLDEN
from tests.sixth import reference
from tests.sixth.reference import Entry

JOURNAL = reference.GOLDEN / "orders"
CONTENT = st.one_of(st.none(), st.binary(max_size=40))
TIMES = st.one_of(st.none(), st.integers(-(1 << 63) + 1, (1 << 63) - 1))


@st.composite
def entries(draw: st.DrawFn) -> list[Entry]:
    """Entries whose numbers rise."""
    numbers = sorted(draw(st.sets(st.integers(0, 1 << 40), max_size=20)))
    return [Entry(number, draw(CONTENT), draw(CONTENT), draw(TIMES)) for number in numbers]


def records(rows: Iterable[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    """Rows of `journal.entries` as rows of `records`."""
    constant = {"topic": topic, "partition": 0, "timestampType": 0, "headers": []}
    own = ("key", "value", "timestamp")
    return [{**{name: row[name] for name in own}, "offset": row["number"], **constant} for row in rows]


class TestSegment(FormatTests):
    format = "journal.segment"
    golden = tuple(sorted(JOURNAL.glob("*.journal")))
    small = (
        reference.segment(reference.orders()[0][:7]),
        reference.segment(reference.orders()[1][:3], 20, 20),
    )
    everything = GOLDEN
    name = "orders/00000000000000000000.journal"

    def header(self, data: bytes) -> int:
        return reference.HEADER.size if data else 0

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        return self.reference(path.read_bytes())

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        rows = reference.decode(data)
        return {"records": records(rows, "orders"), "journal.entries": rows}

    def samples(self) -> st.SearchStrategy[bytes]:
        return entries().map(reference.segment)

    def protected(self, data: bytes) -> Iterable[int]:
        """All but the lengths: with a wrong one the last entry looks like one that is not finished yet."""
        for row in reference.decode(data):
            size = reference.ENTRY.size + len(row["key"] or b"") + len(row["value"] or b"")
            yield from (row["position"] + at for at in range(size) if not 8 <= at < 16)

    def records(self) -> st.SearchStrategy[tuple[dict[str, str], list[dict[str, Any]]]]:
        def rows(found: list[Entry]) -> list[dict[str, Any]]:
            return records((entry._asdict() for entry in found), "orders")

        return st.tuples(st.sampled_from([{}, {"segment_bytes": "200"}]), entries().filter(bool).map(rows))


class TestPositions(FormatTests):
    format = "journal.positions"
    golden = tuple(sorted(JOURNAL.glob("*.positions")))
    small = (reference.index(TestSegment.golden[0].read_bytes()),)
    everything = GOLDEN
    name = "orders/00000000000000000000.positions"
    points_elsewhere = True

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        whole = data[: len(data) // 16 * 16]
        return {"journal.positions": [{"number": a, "position": b} for a, b in reference.POSITION.iter_unpack(whole)]}


class TestStore(StoreTests):
    family = "journal"
    stores = (JOURNAL,)
    examples = 8
