"""The journal: what its files say of one another, and the one writer that `write` and `repair` share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.io.output import Folder, Output, child
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import File, Origin
from rawlog.model.frames import Frames
from rawlog.model.report import Action, Report
from rawlog.model.status import Status
from rawlog.model.store import Rewrite, Store, stores_below
from tests.sixth.journal import INDEX, SEGMENT, positions
from tests.sixth.journal.layouts import FILE_HEADER, NONE, VERSION
from tests.sixth.journal.positions import IndexSummary
from tests.sixth.journal.segment import (
    Header,
    Numbering,
    SegmentSummary,
    dirty,
    encode_rows,
    ends,
    file_header,
    heads,
    is_sound,
    rising,
    segment_bytes,
)


def summary_of(store: Store, file: File) -> SegmentSummary | IndexSummary | None:
    """The summary of a file: what a pass found, else the file is read now. None if it cannot be read."""
    if file.path not in store.summaries:
        format = SEGMENT if file.format == SEGMENT.name else INDEX
        made = SegmentSummary(file, store) if format is SEGMENT else IndexSummary(file, store)
        try:
            for frames in walk(file, format, errors="skip"):
                made.see(frames)
        except RawlogError:
            pass  # its own rules report it
        store.summaries[file.path] = made.close()
    found: SegmentSummary | IndexSummary = store.summaries[file.path]
    return found


def segments(store: Sequence[File]) -> list[File]:
    """The segments of a journal that can be read, in order."""
    found = [file for file in store if file.format == "journal.segment" and file.problem is None]
    return sorted(found, key=lambda file: file.place.start_offset or 0)


@rule("journal.store.chain", Severity.ERROR)
def broken_chain(store: Store) -> Iterator[Mark]:
    """The header of a segment does not fit its name or the segment before it: a segment or entries are missing, or the header is damaged.

    Look for the missing file in another copy. `rawlog repair` reports what is lost and rewrites the header.
    """
    before: SegmentSummary | None = None
    for file in segments(store):
        summary = summary_of(store, file)
        assert isinstance(summary, SegmentSummary)
        header, first = summary.header, file.place.start_offset
        if header is not None and header.first_number != first:
            at = FILE_HEADER.at("first_number")
            yield Mark(
                "first number is not that of the file's name", at, 8, None, first, header.first_number, file.path
            )
        if header is not None and before is not None:
            expected, found = before.stop_number, header.previous_stop
            if before.header is None and before.file.size:
                yield Mark("the segment before it cannot be read", path=file.path, severity=Severity.WARNING)
            elif found > expected:
                yield Mark(
                    "entries before this segment are missing",
                    offset=expected,
                    expected=expected,
                    found=found,
                    path=file.path,
                )
            elif found != expected or (first or 0) < expected:
                yield Mark(
                    "does not fit the end of the segment before it", expected=expected, found=found, path=file.path
                )
        before = summary


@rule("journal.store.index", Severity.WARNING)
def wrong_index(store: Store) -> Iterator[Mark]:
    """An index is missing, belongs to no segment, or does not have the entries that the segment gives.

    Nothing is lost: indexes are derived. `rawlog repair` rebuilds them.
    """
    for file in segments(store):
        index = store.find("journal.positions", file.place.start_offset)
        if index is None:
            yield Mark("the segment has no index", path=file.path)
            continue
        segment, found = summary_of(store, file), summary_of(store, index)
        assert isinstance(segment, SegmentSummary)
        assert isinstance(found, IndexSummary)
        if (segment.header is not None or not file.size) and found.index != segment.index:
            yield Mark("the index does not fit the segment", path=index.path)
    for file in store:
        if file.format == "journal.positions" and store.find("journal.segment", file.place.start_offset) is None:
            yield Mark("an index without a segment", path=file.path)


#: The journal of rows that name no topic.
UNNAMED = "records"


class SegmentWriter:
    """One segment and its index. Data first, then what points at it."""

    def __init__(self, folder: Folder, name: str, header: bytes) -> None:
        """`name` is that of the files, without an ending."""
        self.folder, self.name = folder, name
        self.file: IO[bytes] = folder.create(f"{name}.journal")
        self.file.write(header)
        self.size, self.index = len(header), b""

    def add(self, entries: bytes | NDArray[np.uint8], numbers: NDArray[np.int64], starts: NDArray[np.int64]) -> None:
        """Write entries; `starts` is where each begins among these bytes."""
        self.index += positions.encode_entries(numbers, starts + self.size)
        self.file.write(bytes(entries))
        self.size += len(entries)

    def close(self) -> None:
        """End the segment, and write the index."""
        self.file.close()
        self.folder.write(f"{self.name}.positions", self.index)


# New journals -----------------------------------------------------------------------------------------------------------


def write_journals(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Write rows as journals below a new directory, one per topic; the number of rows. AccessError if the target exists."""
    limit, rows, numbering = segment_bytes(options), 0, Numbering()
    journals: dict[str, JournalWriter] = {}
    with output.directory() as folder:
        for batch in batches:
            numbers, rows = numbering.of(batch), rows + batch.num_rows
            topics = pc.fill_null(batch.column("topic"), UNNAMED)
            for topic in pc.unique(topics).to_pylist():
                if topic not in journals:
                    child(folder.path, topic)  # a name from data: EncodeError if it is not a plain name of a directory
                    journals[topic] = JournalWriter(folder.folder(topic), limit)
                chosen = pc.equal(topics, topic)
                journals[topic].add(batch.filter(chosen), numbers[chosen.to_numpy(zero_copy_only=False)])
        for journal in journals.values():
            journal.close()
    return rows


class JournalWriter:
    """A journal that is being written, segment after segment."""

    def __init__(self, folder: Folder, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.stop = NONE
        self.segment: SegmentWriter | None = None

    def add(self, batch: pa.RecordBatch, numbers: NDArray[np.int64]) -> None:
        """Write rows, which are cut where a segment is full."""
        entries, starts = encode_rows(batch, numbers)
        begin = 0
        while begin < len(numbers):
            if self.segment is None or self.segment.size >= self.limit:
                self.close()
                first = int(numbers[begin])
                self.segment = SegmentWriter(self.folder, f"{first:020d}", file_header(first, self.stop))
            room = int(starts[begin]) + max(self.limit - self.segment.size, 1)
            end = int(np.searchsorted(starts, room))
            stop = int(starts[end]) if end < len(starts) else len(entries)
            self.segment.add(entries[starts[begin] : stop], numbers[begin:end], starts[begin:end] - starts[begin])
            self.stop, begin = int(numbers[end - 1]) + 1, end

    def close(self) -> None:
        if self.segment is not None:
            self.segment.close()


# Repair -----------------------------------------------------------------------------------------------------------------


class Journal(Store):
    """The directory of one journal."""

    @classmethod
    def rules(cls) -> Sequence[Rule[Any]]:
        """The rules over the files of one journal."""
        return (broken_chain, wrong_index)

    @classmethod
    def stores(cls, verb: str, files: Sequence[File], options: Mapping[str, str]) -> Sequence[Store]:
        """One store per directory."""
        groups: dict[str, list[File]] = {}
        for file in files:
            groups.setdefault(file.place.group or file.path.rpartition("/")[0] or ".", []).append(file)
        return stores_below(groups)

    @Rewrite()
    def repair(self, folder: Folder, options: Mapping[str, str]) -> Report:
        """Keep every entry that verification finds nothing wrong with, drop the others, fit the headers, rebuild the indexes."""
        report = Report()
        stop: int | None = None
        for file in self:
            if file.problem is not None:
                report.add(Action.LOST, f"cannot be read: {file.problem}", file.path)
        for file in segments(self):
            stop = _repair_segment(self, file, folder, stop, report)
        for file in self:
            if file.format == "journal.positions" and self.find("journal.segment", file.place.start_offset) is None:
                report.add(Action.DROPPED, "an index without a segment", file.path)
        return report


def _repair_segment(store: Store, file: File, folder: Folder, before: int | None, report: Report) -> int:
    """Copy what is sound of a segment; the number after its last entry. `before` is that of the segment before."""
    name = file.path.rpartition("/")[2].removesuffix(".journal")
    with Source(file.path) as source:
        if not source.size:
            return _keep_empty(store, file, folder, name, report)
        header = _fitted_header(file, before, report)
        writer = SegmentWriter(folder, name, header)
        reached = min(FILE_HEADER.size, source.size)
        last = max(_first(file), before or 0) - 1
        has_entries = False
        origin = Origin(FILE_HEADER.size, VERSION)  # given, so that a damaged header does not matter
        for frames in walk(file, SEGMENT, origin=origin, errors="skip", source=source):
            _drop(report, file, "damaged bytes", reached, frames.base)
            right, last = rising(frames, last)
            _copy(frames, right, writer, file, report)
            has_entries |= bool(right.any())
            reached = frames.reached_in_file
            if frames.last and frames.status is Status.PADDING:
                writer.file.write(bytes(source.size - reached))
            elif frames.last and frames.status is Status.TRUNCATED:
                report.add(
                    Action.DROPPED, "unfinished entry", file.path, start=reached, stop=source.size, is_expected=True
                )
            elif frames.last:
                _drop(report, file, "damaged bytes", reached, source.size)
    writer.close()
    _compare_index(store, file, writer.index, report)
    return last + 1 if has_entries else _first(file)


def _first(file: File) -> int:
    return file.place.start_offset or 0


def _fitted_header(file: File, before: int | None, report: Report) -> bytes:
    """The header that fits the file's name and the segment before; what that changes is reported."""
    header = Header.read(file.path)
    first = _first(file) if file.place.start_offset is not None or header is None else header.first_number
    stop = before if before is not None else NONE if header is None else header.previous_stop
    place = {"start": 0, "stop": FILE_HEADER.size}
    if header is not None and before is not None and header.previous_stop > before:
        lost = {"first_offset": before, "stop_offset": header.previous_stop}
        report.add(Action.LOST, "entries before this segment are missing", file.path, **place, **lost)
    if header != Header(first, stop):
        report.add(Action.CHANGED, "file header rewritten", file.path, **place)
    return file_header(first, stop)


def _copy(frames: Frames, right: NDArray[np.bool_], writer: SegmentWriter, file: File, report: Report) -> None:
    """Write the entries that are right, in runs; report the others."""
    if not len(frames):
        return
    numbers = frames.share(heads)["number"].astype(np.int64)
    data, unclean = frames.data, np.flatnonzero(dirty(frames) & right)
    if unclean.size:
        data = data.copy()
    for index in unclean.tolist():
        start, stop = int(frames.share(ends)[index]), int(frames.stops[index])
        data[start:stop] = 0
        place = {"start": frames.base + start, "stop": frames.base + stop}
        report.add(Action.CHANGED, "padding set to zero", file.path, **place)
    edges = np.flatnonzero(np.diff(right)) + 1
    for start, stop in zip([0, *edges.tolist()], [*edges.tolist(), len(frames)], strict=True):
        if right[start]:
            begin, end = int(frames.starts[start]), int(frames.stops[stop - 1])
            writer.add(data[begin:end], numbers[start:stop], frames.starts[start:stop] - begin)
            report.count("records_kept", stop - start)
    for index in np.flatnonzero(~right).tolist():
        why = "number does not rise" if frames.share(is_sound)[index] else "wrong checksum"
        start, size = int(frames.positions[index]), int(frames.sizes[index])
        report.add(Action.DROPPED, why, file.path, start=start, stop=start + size)
        report.count("records_dropped")


def _drop(report: Report, file: File, why: str, start: int, stop: int) -> None:
    if stop > start:
        report.add(Action.DROPPED, why, file.path, start=start, stop=stop)


def _keep_empty(store: Store, file: File, folder: Folder, name: str, report: Report) -> int:
    folder.write(f"{name}.journal", b"")
    folder.write(f"{name}.positions", b"")
    _compare_index(store, file, b"", report)
    return _first(file)


def _compare_index(store: Store, file: File, made: bytes, report: Report) -> None:
    """Report an index that was missing or wrong. It was derived again in any case."""
    index = store.find("journal.positions", file.place.start_offset)
    if index is None:
        report.add(Action.REBUILT, "the segment had no index", file.path)
        return
    with Source(index.path) as source:
        if source.read(0, source.size) != made:
            report.add(Action.REBUILT, "the index did not fit the segment", index.path)
