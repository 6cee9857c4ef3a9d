"""Writing stores: the one writer, and a new store from rows.

A policy makes a `Plan`: which messages go to which segment, and which index files are derived. `carry_out` writes it: log segments first,
then the files that are kept as they are, then index and bloom files as a live Ambry would have left them.
"""

from __future__ import annotations

import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.ambry import Segment, is_current_compaction, split
from rawlog.formats.ambry.index import (
    MAX_ENTRIES,
    PROBABILITY,
    Bloom,
    Entries,
    IndexFile,
    bloom_of,
    encode_index,
    runs,
)
from rawlog.formats.ambry.kernels.encode import place_messages
from rawlog.formats.ambry.layouts import BLOOM_TABLE, SEGMENT_HEADER
from rawlog.formats.ambry.log import Messages, message_error, scan
from rawlog.formats.ambry.store.state import (
    Catalog,
    Columns,
    catalog_of,
    fold,
    tail_words,
)
from rawlog.formats.ambry.store.store import BlobStore, with_logs
from rawlog.formats.ambry.writer import (
    CAPACITY,
    WriteOptions,
    encode_batch,
    seal,
    segment_header,
)
from rawlog.io.output import Folder, Output
from rawlog.io.storage import Source
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    EncodeError,
    OptionError,
    UnknownFormatError,
)
from rawlog.model.format import File
from rawlog.model.frames import Bytes
from rawlog.model.report import Action, Report
from rawlog.model.store import Store, stores_below

DESCRIPTOR_NAME = "StoreDescriptor"
OLD_ENTRY = 115
"""The least size of an entry before 2023-02; new files of a store whose old ones all have it keep to it."""
NOT_NEEDED = "not needed: Ambry writes it again, or does not read it"
AT_ONCE = 8 << 20
"""Bytes copied at once."""


# Which stores, and options --------------------------------------------------------------------------------------------------


def stores_of(files: Sequence[File], options: Mapping[str, str]) -> list[Store]:
    """The stores among files that have a log. UnknownFormatError if there is none."""
    groups = {store.folder: store.files for store in with_logs(files)}
    if not groups:
        raise UnknownFormatError("no Ambry store with a log is here")
    return stores_below(groups)


def number_option(options: Mapping[str, str], name: str, default: int | None) -> int | None:
    """A whole number above 0 among options. OptionError for anything else."""
    text = options.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,18}", str(text)) or not int(text):
        raise OptionError(f"{name} {text!r}: a number above 0 expected")
    return int(text)


def probability_option(options: Mapping[str, str]) -> float:
    """The option `probability` of blooms. OptionError if Ambry has no numbers for it."""
    try:
        probability = float(options.get("probability", PROBABILITY))
    except ValueError:
        probability = 0.0
    if probability not in BLOOM_TABLE:
        choices = ", ".join(map(str, BLOOM_TABLE))
        raise OptionError(f"probability {options.get('probability')!r}: one of {choices} expected")
    return probability


# Index and bloom files ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Style:
    """How a store cuts its index files and makes its blooms."""

    max_entries: int = MAX_ENTRIES
    probability: float = PROBABILITY
    #: A bloom of the store, whose dimensions new ones get; whether they hold uuids only.
    like: Bloom | None = None
    by_uuid: bool = False
    #: Where files begin (segment, offset), besides where they are full.
    starts: frozenset[tuple[int, int]] = frozenset()
    #: (number of the segment, entries) -> the time in the header of their file; None: that of the last operation.
    last_modified: Callable[[int, Entries], int | None] | None = None
    #: The least size of an entry.
    least: int = 0
    #: Whether the last file is complete too: then it has a bloom, as all others have.
    seal_last: bool = False

    @classmethod
    def of(
        cls,
        store: BlobStore,
        indexes: Sequence[tuple[int, IndexFile]],
        starts: frozenset[tuple[int, int]],
        options: Mapping[str, str],
    ) -> Style:
        """As the store's own sound index files (`indexes`, with the numbers of their segments) are, unless options say otherwise."""
        sound = {(number, index.start): index for number, index in indexes}
        max_entries = number_option(options, "max_entries", None)
        like, by_uuid = _bloom_style(store, indexes)
        sizes = [index.header.entry_size for _, index in indexes if index.header.version >= 2]

        def last_modified(segment: int, run: Entries) -> int | None:
            old = sound.get((segment, int(run.offset[0])))
            return old.header.last_modified if old is not None and old.end == run.offset[-1] + run.size[-1] else None

        return cls(
            max_entries or max((len(index.entries) for _, index in indexes), default=MAX_ENTRIES),
            probability_option(options),
            None if max_entries or "probability" in options else like,
            by_uuid,
            frozenset() if max_entries else starts,
            last_modified,
            OLD_ENTRY if sizes and min(sizes) >= OLD_ENTRY else 0,
        )


def _bloom_style(store: BlobStore, indexes: Sequence[tuple[int, IndexFile]]) -> tuple[Bloom | None, bool]:
    """A bloom of a store, and whether it holds uuids only: all of them have the same dimensions, and hold whole keys or uuids."""
    sound = {(index.segment, index.start): index for _, index in indexes}
    for (segment, start), (_, bloom) in sorted(store.blooms.items(), key=lambda item: item[0][1]):
        if segment not in store.numbers:
            continue
        index = sound.get((segment, start))
        if index is None:
            return bloom, False
        entries = index.entries
        by_uuid = not bloom.have(entries.data, entries.starts, entries.sizes).all()
        return bloom, by_uuid and bool(bloom.have(entries.data, *entries.uuid_spans).all())
    return None, False


def index_files(
    entries: Entries, segment: NDArray[np.int32], segments: Sequence[Segment], style: Style
) -> Iterator[tuple[str, bytes]]:
    """Name and content of all index files of entries in log order; a complete index file also has a bloom."""
    row_ranges = list(runs(entries, segment, max_entries=style.max_entries, starts=style.starts))
    for number, rows in enumerate(row_ranges):
        run = entries.take(rows)
        where, start = int(segment[rows.start]), int(run.offset[0])
        modified = None if style.last_modified is None else style.last_modified(where, run)
        yield segments[where].index_name(start), encode_index(run, last_modified=modified, least=style.least)
        if style.seal_last or number < len(row_ranges) - 1:
            bloom = bloom_of(
                run,
                max_entries=style.max_entries,
                probability=style.probability,
                like=style.like,
                by_uuid=style.by_uuid,
            )
            yield segments[where].index_name(start, "bloom"), bloom.encode()


# The writer -----------------------------------------------------------------------------------------------------------------


class StoreWriter:
    """The files of a new store, below an empty directory. Log segments first: `begin`, then `write` and `copy`; or `append` messages,
    which fill segments of `capacity` as they come (None: one `log_current`), and `close`.
    """

    def __init__(
        self,
        folder: Folder,
        *,
        capacity: int | None = CAPACITY,
        style: Style | None = None,
        incarnation_id: str | None = None,
    ) -> None:
        self.folder, self.capacity, self.style = folder, capacity, style or Style()
        self.incarnation_id = incarnation_id or str(uuid.uuid4())
        self.segments: list[Segment] = []
        #: The files that were written.
        self.names: list[str] = []
        self.end = 0
        self._file: IO[bytes] | None = None
        self._columns: list[Columns] = []
        self._sources: dict[str, Source] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_segment()
        for source in self._sources.values():
            source.close()

    # Files

    def begin(self, segment: Segment, capacity: int | None) -> None:
        """Begin a log segment; one without a capacity has no header."""
        self.end_segment()
        self.segments.append(segment)
        self._columns.append(Columns())
        self.names.append(segment.log_name())
        self._file = self.folder.create(segment.log_name())
        self.end = 0
        if capacity is not None:
            self.write(segment_header(capacity))

    def write(self, data: bytes | memoryview) -> None:
        """Add bytes to the segment."""
        assert self._file is not None
        self._file.write(data)
        self.end += len(data)

    def copy(self, path: str, start: int, stop: int) -> None:
        """Add bytes of a source to the segment."""
        if self.folder.dry_run:
            self.end += stop - start
            return
        if path not in self._sources:
            self._sources[path] = Source(path)
        source = self._sources[path]
        while start < stop:
            piece = source.read(start, min(AT_ONCE, stop - start))
            if not piece:
                raise AccessError(f"{path}: cut while it was read")
            self.write(piece)
            start += len(piece)

    def end_segment(self) -> None:
        """Close the segment that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def put(self, name: str, data: bytes) -> None:
        """A small file."""
        self.folder.write(name, data)
        self.names.append(name)

    def keep(self, file: File, name: str) -> None:
        """A file of the source as it is."""
        if not self.folder.dry_run:
            self.folder.copy(file.path, name)
        self.names.append(name)

    # Messages

    def append(self, message: bytes) -> tuple[str, int]:
        """Add a message; the name of its segment and its position there.

        EncodeError if no segment can hold it, CorruptError if it is not one.
        """
        messages = _check_messages(np.frombuffer(message, np.uint8))
        if len(messages) != 1:
            raise CorruptError("not one whole message")
        self._add(messages)
        return self.segments[-1].name, self.end - len(message)

    def extend(self, data: Bytes) -> None:
        """Add messages in a row. EncodeError if no segment can hold one, CorruptError for other bytes."""
        if data.size:
            self._add(_check_messages(data))

    def _add(self, messages: Messages) -> None:
        frames = messages.frames
        sizes, first, most = frames.sizes, 0, 1 << 62
        if self.capacity is not None:
            first, most = SEGMENT_HEADER.size, self.capacity
            if sizes.max() > most - first:
                raise EncodeError(
                    f"a message of {int(sizes[np.argmax(sizes > most - first)]):,} bytes in segments of {most:,}"
                )
        if self._file is None:
            self._next_segment()
        segments, positions = np.empty((2, len(frames)), np.int64)
        place_messages(sizes, 0, self.end, most, first, segments, positions)
        bounds = np.flatnonzero(np.diff(segments, prepend=0, append=segments[-1] + 1)).tolist()
        rows = [0, *bounds] if segments[0] == 0 else bounds
        for start, stop in itertools.pairwise(rows):
            if segments[start]:
                self._next_segment()
            part, begin = messages.slice(start, stop), int(frames.starts[start])
            part.frames = replace(part.frames, base=self.end - begin)
            self._columns[-1].add(part)
            self.write(frames.data[begin : int(frames.stops[stop - 1])].data)

    def _next_segment(self) -> None:
        """Begin the next log segment."""
        self.begin(Segment() if self.capacity is None else Segment(len(self.segments), 0), self.capacity)

    def close(self) -> None:
        """Write index and bloom files of appended messages, the descriptor and the marks of a clean stop."""
        if self._file is None:
            self._next_segment()
        self.end_segment()
        folded = fold(catalog_of(self._columns))
        for name, raw in index_files(folded.entries, folded.catalog.segment, self.segments, self.style):
            self.put(name, raw)
        self.put(DESCRIPTOR_NAME, descriptor(self.incarnation_id))
        self.put("remoteTokenTracker", seal(bytes(2)))
        self.put("cleanshutdown", b"")


def descriptor(incarnation_id: str) -> bytes:
    """The bytes of `StoreDescriptor`."""
    raw = incarnation_id.encode()
    return seal(bytes(2) + len(raw).to_bytes(4, "big") + raw)


def _check_messages(data: Bytes) -> Messages:
    """The messages that fill `data`. CorruptError if they do not fill it, or if one is damaged."""
    frames = scan(data, 0)
    if not len(frames) or frames.reached != data.size:
        raise CorruptError(
            "not one whole message" if not len(frames) else "not whole messages", position=frames.reached
        )
    messages = Messages(frames)
    if not messages.sound.all():
        raise message_error(messages, int(np.argmin(messages.sound)))
    return messages


def write(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Rows of `records` as a whole store: log segments as they fill, index, blooms and descriptor; the number of rows."""
    write_options, number = WriteOptions.from_options(options), 0
    with output.directory() as folder, StoreWriter(folder, capacity=write_options.capacity) as store:
        for batch in batches:
            for frames in encode_batch(batch, number, write_options):
                store.extend(frames.data)
                number += len(frames)
        store.close()
    return number


# What a store is rewritten to -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StorePlan:
    """What a store becomes: its segments, the messages of each in their order, and the index files that are derived."""

    store: BlobStore
    #: Names and capacities of the new segments, in order.
    segments: Sequence[Segment]
    capacities: Sequence[int | None]
    #: The messages, at their places in the source, and the number of the new segment of each, which rises.
    catalog: Catalog
    segment: NDArray[np.int32]
    #: Messages that are not copied from the source, by row.
    rewritten: Mapping[int, bytes] = field(default_factory=dict)
    #: The entries of derived index files at the new places, with the numbers of their segments; None: no index file is derived.
    entries: Entries | None = None
    entry_segment: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    style: Style = Style()
    #: The files that are kept as they are.
    kept: Sequence[File] = ()
    #: Small files that are written.
    files: Mapping[str, bytes] = field(default_factory=dict)
    #: Whether what follows the last message of a segment is kept.
    with_tails: bool = False

    def pieces(self, number: int) -> Iterator[tuple[str, int, int] | bytes]:
        """The content of a new segment in order: path and bytes of a source, or a message that is written."""
        first, stop = np.searchsorted(self.segment, [number, number + 1]).tolist()
        rows = [row for row in sorted(self.rewritten) if first <= row < stop]
        for row in [*rows, stop]:
            yield from self._runs(np.arange(first, row))
            if row < stop:
                yield self.rewritten[row]
            first = row + 1
        if self.with_tails and (tail := self.store.read[number].tail) is not None:
            file = self.store.logs[number]
            yield file.path, tail[0], file.size

    def _runs(self, rows: NDArray[np.int64]) -> Iterator[tuple[str, int, int]]:
        """The bytes of messages, neighbours in the source as one run."""
        if not rows.size:
            return
        catalog = self.catalog
        ends = catalog.offset[rows] + catalog.size[rows]
        begins = np.ones(rows.size, np.bool_)
        begins[1:] = (np.diff(catalog.segment[rows]) != 0) | (catalog.offset[rows][1:] != ends[:-1])
        firsts = np.flatnonzero(begins)
        lasts = np.append(firsts[1:], rows.size) - 1
        for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
            path = self.store.logs[int(catalog.segment[rows[first]])].path
            yield path, int(catalog.offset[rows[first]]), int(ends[last])


def carry_out(plan: StorePlan, folder: Folder, report: Report) -> Report:
    """Write a plan: the one loop that rewrites logs. Changed index files are reported as rebuilt."""
    with StoreWriter(folder) as writer:
        for number, segment in enumerate(plan.segments):
            writer.begin(segment, plan.capacities[number])
            for piece in plan.pieces(number):
                if isinstance(piece, bytes):
                    writer.write(piece)
                else:
                    writer.copy(*piece)
        writer.end_segment()
        for file in plan.kept:
            writer.keep(file, file_name(file))
        for name, raw in plan.files.items():
            writer.put(name, raw)
        if plan.entries is not None:
            old = {file_name(file): file for file in (*plan.store.index_files, *plan.store.bloom_files)}
            for name, raw in index_files(plan.entries, plan.entry_segment, plan.segments, plan.style):
                writer.put(name, raw)
                if not _is_same(old.get(name), raw):
                    report.add(Action.REBUILT, "derived from the log", f"{plan.store.folder}/{name}")
    _report_left_out(plan, set(writer.names), report)
    report.facts["files"] = sorted(writer.names)
    return report


def _is_same(file: File | None, raw: bytes) -> bool:
    if file is None or file.size != len(raw):
        return False
    with Source(file.path) as source:
        return source.read(0, source.size) == raw


def _report_left_out(plan: StorePlan, names: set[str], report: Report) -> None:
    """The files of the source that the result does not need: Ambry writes them again, or does not read them."""
    logs = set(plan.store.logs)
    for file in plan.store.files:
        if file not in logs and file_name(file) not in names and file.problem is None:
            report.add(Action.DROPPED, NOT_NEEDED, file.path, start=0, stop=file.size, is_expected=True)


def file_name(file: File) -> str:
    """The name of a file in the store; the target of a committed compaction is renamed."""
    return split(file.path)[1].removesuffix("_temp")


def other_files(store: BlobStore) -> list[File]:
    """The files next to log, index and blooms that a store reads, except the log of a compaction under way."""
    return [
        file
        for file in store.others
        if file.place.state is None and file.problem is None and not is_current_compaction(file.path)
    ]


def report_tails(store: BlobStore, report: Report) -> None:
    """What follows the last whole message of segments and is dropped: Ambry does not start on it."""
    for file, summary in zip(store.logs, store.read, strict=True):
        if summary.tail is not None:
            place = {"start": summary.tail[0], "stop": file.size}
            report.add(Action.DROPPED, tail_words(summary.tail[1]), file.path, is_expected=True, **place)


# Policies -------------------------------------------------------------------------------------------------------------------


def unchanged_plan(store: BlobStore, **changes: Any) -> StorePlan:
    """All messages of a store at their places."""
    return StorePlan(store, store.segments, store.capacities, store.catalog, store.catalog.segment, **changes)
