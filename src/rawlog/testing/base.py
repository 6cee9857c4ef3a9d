"""What a subclass of FormatTests gives, and the tools its tests share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from rawlog import registry
from rawlog.io.walk import walk
from rawlog.kernels.columns import Marks
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Findings
from rawlog.model.format import File, Format
from rawlog.model.table import Table
from rawlog.reading.inspect import inspect_file
from rawlog.verbs.cat import Log
from rawlog.verbs.cat import open as open_log

RowList = list[dict[str, Any]]
Tables = Mapping[str, RowList]
ERRORS = ("raise", "stop", "skip")

#: One test method serves many formats, and its fixtures outlive an example: both are meant.
shared = settings(
    suppress_health_check=[
        HealthCheck.differing_executors,
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ]
)


class Base:
    """The facts and hooks of a format under test. Only `format`, `golden`, `small` and `everything` must be given."""

    #: Its name in the registry.
    format: ClassVar[str]
    #: Real files of it.
    golden: ClassVar[Sequence[Path]]
    #: A few whole files of some hundred bytes together, of every variant: each byte of them is cut at and flipped.
    small: ClassVar[Sequence[bytes]]
    #: The directory of the golden files of all formats: this one must refuse the rest of them.
    everything: ClassVar[Path]
    #: Name and place of a file of this format, for bytes that a test makes.
    name: ClassVar[str] = "file.log"
    #: A key and a value that it can hold.
    content: ClassVar[tuple[bytes, bytes]] = (b"k", b"v")
    #: Whether positions in its rows are those of another file, as an index has them.
    points_elsewhere: ClassVar[bool] = False

    def header(self, data: bytes) -> int:
        """The bytes in front of the first frame."""
        return 0

    def least(self, data: bytes) -> int:
        """The bytes without which a file may be refused because nothing says what it is."""
        return self.header(data)

    def expected(self, path: Path) -> Tables:
        """What is known of a golden file: all rows of some tables, each row with some columns; times in microseconds."""
        return {}

    def reference(self, data: bytes) -> Tables | None:
        """The rows that a slow, obvious decoder reads of any bytes in front of the first damage."""
        return None

    def samples(self) -> st.SearchStrategy[bytes]:
        """Whole files of this format."""
        return st.sampled_from(list(self.small))

    def owns(self, path: Path) -> bool | None:
        """Whether a file below `everything` is of this format; None where it does not matter."""
        return path in self.golden

    def marked(self, path: Path) -> bool:
        """Whether the first bytes of a golden file tell its format; asked only of formats that look at them."""
        return path.stat().st_size > 0

    def protected(self, data: bytes) -> Iterable[int]:
        """The bytes that a checksum covers: no change of one of them may go unnoticed."""
        return ()

    def options(self, data: bytes) -> dict[str, str]:
        """The options of `rawlog.write` that make this very file of its rows."""
        return {}

    def records(self) -> st.SearchStrategy[tuple[dict[str, str], RowList]] | None:
        """Options and rows of `records` that this format holds without loss; None if it is not written."""
        return None

    # ------------------------------------------------------------------ tools

    @property
    def subject(self) -> Format:
        """The format under test."""
        return registry.formats()[self.format]

    @pytest.fixture
    def scratch(self, tmp_path: Path) -> Path:
        """The path of a file that a test makes, under a name of this format."""
        path = tmp_path / self.name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def open(self, path: Path) -> Log:
        """A file as this format, whatever it looks like."""
        return open_log(path, format=self.format)

    def put(self, scratch: Path, data: bytes) -> Log:
        """Bytes as a file of this format."""
        scratch.write_bytes(data)
        return self.open(scratch)

    def mutations(self) -> st.SearchStrategy[bytes]:
        """Any bytes at all: random ones, and small files with a stretch of them overwritten, cut out or repeated."""

        def change(drawn: tuple[bytes, int, int, bytes]) -> bytes:
            data, start, size, new = drawn
            start %= len(data) + 1
            return data[:start] + new + data[start + size :]

        holes = st.tuples(st.sampled_from(list(self.small)), st.integers(0, 4096), st.integers(0, 40), self._hostile())
        return st.one_of(st.binary(max_size=300), holes.map(change))

    @staticmethod
    def _hostile() -> st.SearchStrategy[bytes]:
        edges = [
            b"\xff" * 4,
            b"\x7f\xff\xff\xff",
            b"\xff" * 8,
            b"\x7f" + b"\xff" * 7,
            bytes(8),
            bytes(64),
            b"\x80" * 11,
        ]
        return st.one_of(st.sampled_from(edges), st.binary(max_size=24))


def rows_of(log: Log, table: Table | str, **selection: Any) -> tuple[RowList, list[str]]:
    """All rows of a table, checked to the last buffer, and the notes that reading gave."""
    name = table if isinstance(table, str) else table.name
    rows = log.table(name, **selection)
    notes: list[str] = []
    rows.note = notes.append
    arrow = pa.Table.from_batches(list(checked(rows.batches(), rows.schema)), schema=rows.schema)
    return plain(arrow), notes


def checked(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches, each of exactly this schema, except for marks, and sound to its last offset."""
    for batch in batches:
        wanted = Marks.of(batch.schema).on(schema)
        assert batch.schema.equals(wanted, check_metadata=True), f"{batch.schema}\nexpected:\n{wanted}"
        batch.validate(full=True)
        yield batch


def plain(table: pa.Table) -> RowList:
    """Rows as Python values, times as microseconds (a datetime cannot hold every time that a file can)."""
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
    return table.to_pylist()  # type: ignore[no-any-return]


def same(rows: RowList, expected: RowList) -> None:
    """Compare rows on the columns that are expected, and say briefly where they part."""
    for number, (row, wanted) in enumerate(zip(rows, expected, strict=False)):
        got = {name: row[name] for name in wanted}
        assert got == wanted, f"row {number}: {got!r}\nexpected: {wanted!r}"
    assert len(rows) == len(expected), f"{len(rows)} rows, {len(expected)} expected"


def frames_of(file: File, format: Format, **how: Any) -> list[tuple[int, int, int]]:
    """Number, start and stop of every whole frame."""
    frame_places: list[tuple[int, int, int]] = []
    for frames in walk(file, format, **how):
        places = zip(frames.positions.tolist(), frames.sizes.tolist(), strict=True)
        frame_places += [(frames.first + index, start, start + size) for index, (start, size) in enumerate(places)]
    return frame_places


def survives(log: Log, format: Format, points_elsewhere: bool = False) -> Findings:
    """Do all that can be done with a file. Whatever is wrong with it is a RawlogError, and all places lie inside it."""
    size = log.files[0].size
    plain(log.table("files").to_arrow())
    for table in format.tables:
        for errors in ERRORS:
            try:
                rows, _ = rows_of(log, table, errors=errors)
            except RawlogError as error:
                check_error(error, size)
                continue
            if not points_elsewhere:
                _inside(rows, size)
    findings = inspect_file(log.files[0])
    _inside([finding.as_row() for finding in findings], size)
    if format.can("explain"):
        for frames in _survivors(log.files[0], format):
            for index in range(len(frames)):
                try:
                    format.codec.explain(frames.slice(index, index + 1), log.files[0])
                except RawlogError as error:
                    check_error(error, size)
    return findings


def check_error(error: RawlogError, size: int) -> None:
    """An error says something, of a place inside the file."""
    assert str(error)
    assert 0 <= (getattr(error, "position", None) or 0) <= size, error


def _survivors(file: File, format: Format) -> Iterator[Any]:
    try:
        yield from walk(file, format, errors="skip")
    except RawlogError as error:
        check_error(error, file.size)


def _inside(rows: RowList, size: int) -> None:
    for row in rows:
        if (position := row.get("position")) is not None:
            assert 0 <= position <= size, row
            assert position + (row.get("size") or 0) <= size, row
