"""What a format must show: golden files, the reference, exact schemas, splits, windows, explanations; and the tools of these tests."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rawlog import registry
from rawlog.io.walk import walk
from rawlog.kernels.columns import Marks
from rawlog.model.errors import EncodeError, OptionError, RawlogError
from rawlog.model.explain import Node
from rawlog.model.finding import Findings
from rawlog.model.format import File, Format
from rawlog.model.table import RECORDS, Table
from rawlog.reading import rows
from rawlog.reading.inspect import inspect_file
from rawlog.reading.parts import whole
from rawlog.reading.rows import GapNote
from rawlog.reading.select import Selection
from rawlog.reading.tree import HEAD, Tree, open_tree
from rawlog.registry import formats
from rawlog.verbs.cat import Log
from rawlog.verbs.cat import open as open_log
from rawlog.verbs.convert import write

# ----------------------------------------------------------------------------------------------------------------------
# What a subclass of FormatTests gives, and the tools its tests share.

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


# ----------------------------------------------------------------------------------------------------------------------
# All that rawlog says of a file, as text: for comparing one way of running it with another.


def outline(path: str, format: str) -> str:
    """Every table, finding and explained frame of a file, in a text that is equal for equal answers."""
    log = open_log(path, format=format)
    subject = formats()[format]
    lines: list[object] = []
    for table in subject.tables:
        for errors in ("raise", "stop", "skip"):
            rows = log.table(table.name, errors=errors)
            try:
                for batch in rows.batches():
                    lines += [repr(row) for row in plain(pa.Table.from_batches([batch]))]
            except RawlogError as error:
                lines.append(str(error))
    lines += [finding.as_row() for finding in inspect_file(log.files[0])]
    return "\n".join(json.dumps(line, default=str) for line in lines)


# ----------------------------------------------------------------------------------------------------------------------
# Reading: golden files, the reference, exact schemas, splits, windows, explanations.

SMALL_FILE = 1 << 16


class Reading(Base):
    """A format gives what its files hold, however they are cut up."""

    def test_golden_files_hold_what_is_expected(self) -> None:
        assert self.golden, "no golden files"
        count = 0
        for path in self.golden:
            for table, expected in self.expected(path).items():
                rows, notes = rows_of(self.open(path), table)
                same(rows, expected)
                assert not notes, f"{path}: {notes}"
                count += 1
        assert count or type(self).expected is Base.expected

    def test_golden_files_are_sound(self) -> None:
        for path in self.golden:
            [file] = self.open(path).files
            findings = inspect_file(file)
            assert not findings.errors, [str(finding) for finding in findings]
            frames = frames_of(file, self.subject)
            stops = [self.header(path.read_bytes()), *(stop for _, _, stop in frames)]
            assert [start for _, start, _ in frames] == stops[:-1] or not frames
            assert findings.frames == len(frames)
            [row] = plain(self.open(path).table("files").to_arrow())
            assert (row["state"], row["frames"]) == ("ok" if file.size else "empty", len(frames))
            assert row["valid_size"] == file.size

    @shared
    @given(data=st.data())
    def test_reading_equals_the_reference(self, scratch: Path, data: st.DataObject) -> None:
        sample = data.draw(self.samples())
        self._equals_reference(scratch, sample)

    @shared
    @given(data=st.data())
    def test_reading_any_bytes_up_to_the_damage_equals_the_reference(self, scratch: Path, data: st.DataObject) -> None:
        self._equals_reference(scratch, data.draw(self.mutations()))

    def _equals_reference(self, scratch: Path, sample: bytes) -> None:
        reference = self.reference(sample)
        log = self.put(scratch, sample)
        for table, expected in (reference or {}).items():
            try:
                rows, _ = rows_of(log, table, errors="stop")
            except RawlogError:
                rows = []
            same(rows, expected)

    def test_schemas_are_exact_for_every_choice_of_columns(self) -> None:
        for path in self.golden:
            log = self.open(path)
            for table in self.subject.tables:
                whole = log.table(table.name).to_arrow()
                assert whole.schema.equals(table.schema, check_metadata=True)
                backwards = tuple(reversed(table.names))
                for names in [*((name,) for name in table.names), table.names, backwards]:
                    chosen = log.table(table.name, columns=names)
                    assert chosen.schema.equals(table.subset(names).schema, check_metadata=True)
                    got = pa.Table.from_batches(list(checked(chosen.batches(), chosen.schema)), schema=chosen.schema)
                    assert plain(got) == plain(whole.select(names)), f"{path}: {table.name} {names}"

    def test_counting_equals_reading(self) -> None:
        for path in self.golden:
            for table in self.subject.tables:
                rows_there = self.open(path).table(table.name)
                assert rows_there.count() == rows_there.to_arrow().num_rows

    def test_splits_equal_the_whole(self) -> None:
        for path in self.golden:
            log = self.open(path)
            for table in self.subject.tables:
                stream = log.table(table.name)
                whole = plain(stream.to_arrow())
                size = log.files[0].size
                for split_size in {1, 64, size // 3} if size <= SMALL_FILE else {size // 7}:
                    parts = stream.parts(max(split_size, 1))
                    pieces = [
                        batch
                        for part in parts
                        for batch in checked(rows.read(part, table, stream.selection), table.schema)
                    ]
                    same(plain(pa.Table.from_batches(pieces, schema=table.schema)), whole)
                    assert len(parts) <= 1 + len(frames_of(log.files[0], self.subject))

    def test_tables_decoded_together_equal_each_alone(self, scratch: Path) -> None:
        for path in self.golden:
            self._together_equals_alone(self.open(path))
        for data in self.small:
            self._together_equals_alone(self.put(scratch, data))

    @shared
    @given(data=st.data())
    def test_tables_of_any_bytes_decoded_together_equal_each_alone(self, scratch: Path, data: st.DataObject) -> None:
        if self.subject.can("decode_together"):
            self._together_equals_alone(self.put(scratch, data.draw(self.mutations())))

    def _together_equals_alone(self, log: Log) -> None:
        [file] = log.files
        if not self.subject.can("decode_together"):
            return
        chosen = Selection(errors="skip")
        notes: list[list[str]] = []
        results: list[list[RowList]] = []
        for together in (False, True):
            notes.append([])
            decoders = [
                rows.Decoder(whole(file, log.group_of(file), table, chosen), table, chosen, notes[-1].append, compact=together)
                for table in self.subject.tables
            ]  # fmt: skip
            decoded: list[list[pa.RecordBatch]] = [[] for _ in decoders]
            with contextlib.suppress(RawlogError):  # a header that is invalid
                for frames in walk(file, self.subject, errors="skip"):
                    streams = [decoder.see(frames) for decoder in decoders]
                    if together:
                        streams = rows.decode_streams(decoders, frames)
                    for step in itertools.zip_longest(*streams):
                        for batches, batch in zip(decoded, step, strict=True):
                            batches += [] if batch is None else [batch]
            results.append([_plain_rows(one.table, batches) for one, batches in zip(decoders, decoded, strict=True)])
        assert results[0] == results[1]
        assert sorted(notes[0]) == sorted(notes[1])

    @pytest.mark.parametrize("window", [1, 64, 1000])
    def test_small_windows_equal_the_whole(self, window: int, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def all_of(data: bytes) -> list[Any]:
            log = self.put(scratch, data)
            results: list[Any] = [rows_of(log, table, errors="stop") for table in self.subject.tables]
            results.append([finding.as_row() for finding in inspect_file(log.files[0])])
            results.append(frames_of(log.files[0], self.subject, errors="stop"))
            return results

        whole = [all_of(data) for data in self.small]
        cut = [all_of(data[:-1]) for data in self.small]
        monkeypatch.setitem(walk.__kwdefaults__ or {}, "window", window)
        assert [all_of(data) for data in self.small] == whole
        assert [all_of(data[:-1]) for data in self.small] == cut

    def test_the_reference_reads_the_golden_files(self) -> None:
        """The golden files hold the reference to the real system, so that it may hold the readers to it."""
        for path in self.golden:
            for table, expected in (self.reference(path.read_bytes()) or {}).items():
                named = self.open(path)
                rows, _ = rows_of(named, table)
                columns = self._told_by_bytes(expected)
                same(rows, [{name: row[name] for name in columns} for row in expected])

    def _told_by_bytes(self, expected: RowList) -> list[str]:
        """The columns of a reference's rows that depend on the bytes alone, not on name and place."""
        return [name for name in (expected[0] if expected else {}) if name not in ("topic", "partition", "path")]

    def test_every_frame_is_explained_to_the_last_byte(self, scratch: Path) -> None:
        if not self.subject.can("explain"):
            return
        for data in self.small:
            [file] = self.put(scratch, data).files
            for frames in walk(file, self.subject):
                for index in range(len(frames)):
                    frame = frames.slice(index, index + 1)
                    nodes = self.subject.codec.explain(frame, file)
                    start, stop = int(frame.positions[0]), int(frame.positions[0] + frame.sizes[0])
                    _tiles([node for node in nodes if node.inside is None], start, stop, data)
            if self.subject.can("explain_header") and self.header(data):
                _tiles(self.subject.codec.explain_header(data[:4096], file), 0, self.header(data), data)


def _plain_rows(table: Table, batches: list[pa.RecordBatch]) -> RowList:
    """The rows of batches, some columns of which may be dictionaries."""
    for batch in batches:
        batch.validate(full=True)
    return plain(pa.Table.from_batches([batch.cast(table.schema) for batch in batches], schema=table.schema))


def _tiles(nodes: list[Node], start: int, stop: int, data: bytes) -> None:
    """The nodes cover the bytes from start to stop, each once, and show the bytes they stand for."""
    position = start
    for node in nodes:
        assert node.position == position, f"{node.name}: at {node.position}, {position} expected"
        position += node.size
        below = [child for child in node.children if child.inside is None]
        if below:
            _tiles(below, node.position, node.position + node.size, data)
        elif node.hex:
            assert bytes.fromhex(node.hex) == data[node.position : node.position + node.size], node.name
    assert position == stop, f"explained up to byte {position}, the end is {stop}"


# ----------------------------------------------------------------------------------------------------------------------
# Recognition: a format takes its own files and no others.


@lru_cache(maxsize=4)
def _recognise(root: Path) -> Tree:
    return open_tree(root)


class Recognition(Base):
    """Files are recognised by place, name and first bytes."""

    def test_golden_files_are_recognised_by_what_they_are(self) -> None:
        wrong = []
        for file in _recognise(self.everything):
            owned = self.owns(Path(file.path))
            if owned is not None and owned != (file.format == self.format):
                wrong.append(f"{file.path}: taken for {file.format}")
        assert not wrong, "\n".join(wrong)

    def test_first_bytes_alone_never_claim_a_file_of_another_format(self) -> None:
        sniff = self.subject.sniff
        if sniff is None:
            return
        wrong = []
        for file in _recognise(self.everything):
            path = Path(file.path)
            with path.open("rb") as opened:
                head = opened.read(HEAD)
            if sniff(head, file.size) and self.owns(path) is False:
                wrong.append(file.path)
        assert not wrong, "\n".join(wrong)

    def test_nothing_and_noise_are_no_file_of_this_format(self) -> None:
        sniff = self.subject.sniff
        if sniff is None:
            return
        assert not sniff(b"", 0)
        noise = random.Random(7)
        for _ in range(500):
            data = noise.randbytes(noise.randint(64, 4096))
            assert not sniff(data, len(data)), data[:64].hex()

    def test_empty_and_random_files_of_a_neutral_name_are_unknown(self, tmp_path: Path) -> None:
        (tmp_path / "empty").write_bytes(b"")
        (tmp_path / "random").write_bytes(random.Random(7).randbytes(1000))
        assert [file.format for file in open_tree(tmp_path)] == [None, None]

    def test_golden_files_are_recognised_by_their_first_bytes_where_the_format_has_a_mark(self, tmp_path: Path) -> None:
        if self.subject.sniff is None:
            return
        for number, path in enumerate(self.golden):
            if self.marked(path):
                copy = tmp_path / f"copy{number}"
                copy.write_bytes(path.read_bytes())
                assert [file.format for file in open_tree(copy)] == [self.format], path

    @shared
    @given(data=st.data())
    def test_looking_at_first_bytes_never_raises(self, data: st.DataObject) -> None:
        if self.subject.sniff is not None:
            head = data.draw(self.mutations())
            more = data.draw(st.integers(0, 1 << 40))
            self.subject.sniff(head, len(head))
            self.subject.sniff(head, len(head) + more)


# ----------------------------------------------------------------------------------------------------------------------
# Writing: what is read and written again is the same, as rows and as bytes.


def records_table(rows: RowList) -> pa.Table:
    """Rows with times in microseconds as a table of `records`."""
    return pa.Table.from_pylist(rows, schema=RECORDS.schema)


def _has_rows(gap: GapNote, rows: RowList) -> bool:
    """Whether any row has one of the offsets that a note says are missing."""
    return any(gap.first <= row["offset"] < gap.stop for row in rows)


class Writing(Base):
    """Both round trips, for formats that are written."""

    def test_golden_files_are_written_again_byte_for_byte(self, tmp_path: Path) -> None:
        if not self.subject.can("encode"):
            return
        for number, path in enumerate(self.golden):
            data = path.read_bytes()
            again = tmp_path / str(number)
            write(again, self.open(path).table("records"), format=self.format, overwrite=False, **self.options(data))
            assert again.read_bytes() == data, path

    @shared
    @given(data=st.data())
    def test_rows_survive_being_written_and_read(self, scratch: Path, data: st.DataObject) -> None:
        strategy = self.records()
        assert strategy is not None or not self.subject.is_written, "a format that is written needs `records`"
        if strategy is None:
            return
        options, rows = data.draw(strategy)
        target = scratch if self.subject.can("encode") else scratch.with_name("written")
        count = write(target, records_table(rows), format=self.format, overwrite=True, **options)
        read, notes = rows_of(self.open(target) if target == scratch else open_log(target), "records")
        same(read, rows)
        # Offsets that the rows leave out may be named where a file ends there; nothing else is.
        others = [note for note in notes if not isinstance(note, GapNote) or _has_rows(note, rows)]
        assert (count, others) == (len(rows), [])

    def test_what_cannot_be_written_says_so(self, tmp_path: Path) -> None:
        if self.subject.is_written:
            return
        with pytest.raises(OptionError, match="cannot be written"):
            write(tmp_path / "x", records_table([]), format=self.format)
        assert not list(tmp_path.iterdir())

    def test_columns_that_are_not_carried_are_refused_by_name(self, tmp_path: Path) -> None:
        if not self.subject.can("encode"):
            return
        key, value = self.content
        row = {
            "key": key, "value": value, "topic": "t", "partition": 3, "offset": 77, "timestamp": 1_706_868_930_123_456,
            "timestampType": 1, "headers": [{"key": "h", "value": None}],
        }  # fmt: skip
        lost = set(row) - self.subject.carries
        for name in sorted(lost):
            refusal = self._refusal(tmp_path / "x", row, lost - {name})
            if refusal is None:
                rows, _ = rows_of(self.open(tmp_path / "x"), "records")
                assert rows[0][name] == row[name], f"{name} was changed silently"
                (tmp_path / "x").unlink()
            assert refusal is None or name in refusal
            assert not list(tmp_path.iterdir())

    def _refusal(self, path: Path, row: dict[str, object], accepted: set[str]) -> str | None:
        try:
            write(path, records_table([row]), format=self.format, accept_loss=accepted)
        except EncodeError as error:
            return str(error)
        return None
