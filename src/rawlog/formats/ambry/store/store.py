"""A blob store: the files of a partition directory, in the order and with the exceptions of Ambry itself.

`BlobStore` is what everything over several files begins with: rules, tables, repair, comparison. It reads each file at most once, and no
file of which a pass has left a summary.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.ambry import (
    BLOBS,
    CHUNKS,
    COPYING,
    LOG,
    Segment,
    begin,
    is_current_compaction,
    is_log,
    segment_of,
    split,
    start_of,
)
from rawlog.formats.ambry.index import Bloom, IndexFile, IndexSummary, read_index, sound_bloom
from rawlog.formats.ambry.keys import Identities, text_of
from rawlog.formats.ambry.layouts import NONE, Flag, Kind
from rawlog.formats.ambry.log import Messages, begins_message, scan, text_ids
from rawlog.formats.ambry.store.state import (
    ALWAYS,
    DELETE,
    STATES,
    Catalog,
    Fold,
    LogSummary,
    catalog_of,
    fold,
    read_log,
)
from rawlog.formats.ambry.structures import Compaction, Cursor, parse_metadata, read_compaction
from rawlog.io.storage import ListedFile as Listed
from rawlog.io.storage import Source, is_remote, listing, local_path
from rawlog.io.walk import walk
from rawlog.kernels import columns
from rawlog.model.errors import DataError, RawlogError
from rawlog.model.format import File
from rawlog.model.store import Look, Panel, Store
from rawlog.model.text import parse_now, size_text, valid_text
from rawlog.model.verb import Section

LOG_FORMAT, INDEX_FORMAT, BLOOM_FORMAT, COMPACTION_FORMAT = (
    "ambry.log",
    "ambry.index",
    "ambry.bloom",
    "ambry.compaction",
)
POLICY_FORMAT = "ambry.policy"
ROWS = 1 << 16
HEAD = 4096
"""Bytes of a log segment that show whether it is a copy of another."""
METADATA_BLOB = 1


# Which files count -------------------------------------------------------------------------------------------------------


def settle(files: Sequence[File]) -> list[File]:
    """Set the state of a store's files (would Ambry read them now?), and where each log segment begins in the log.

    In the middle of a compaction the same messages are in two segments; its log says which one counts (§16.3).
    """
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    unnamed = [file for file in files if file.place.group is None]  # known by their first bytes only
    return unnamed + [settled for folder, group in groups.items() for settled in _settle(folder, group)]


def _settle(folder: str, group: list[File]) -> list[File]:
    if split(folder)[1] == COPYING:
        return [replace(file, place=replace(file.place, state="copying")) for file in group]
    around = {file.path: file.size for file in group} | _siblings(folder, group)
    compaction = _compaction(around)
    live: dict[Segment, str] = {}
    for path in around:
        if is_log(path) is not None and _log_state(path, compaction) is None:
            segment = segment_of(path)
            assert segment is not None
            if segment not in live or not path.endswith("_temp"):
                live[segment] = path
    bases, position = {}, 0
    for segment in sorted(live, key=lambda segment: segment.order):
        bases[segment] = position
        position += around[live[segment]]
    return [_place_file(file, live, bases, compaction) for file in group]


def _place_file(file: File, live: dict[Segment, str], bases: dict[Segment, int], compaction: Compaction | None) -> File:
    segment = segment_of(file.path)
    if segment is None:
        return file
    start: int | None = bases.get(segment)
    if file.format == LOG_FORMAT:
        state = _log_state(file.path, compaction)
        if state is None and live.get(segment) != file.path:
            state = "temp"
        if state is None and start is not None and start < max(bases.values()):
            file = replace(file, place=replace(file.place, sealed=True))
    else:
        state = None if segment in live else "orphan"
        start = None if start is None else start + start_of(file.path)
    return replace(file, place=replace(file.place, start_offset=None if state else start, state=state))


def _siblings(folder: str, group: Sequence[File]) -> dict[str, int]:
    """The log segments and compaction logs next to the named files, with their sizes."""
    entries: Iterable[Listed]
    try:
        if is_remote(folder):
            if sum(file.format == LOG_FORMAT for file in group) > 1:
                return {}
            entries = listing(folder)
        else:
            with os.scandir(local_path(folder) or ".") as directory:
                entries = [
                    Listed(f"{folder}/{entry.name}" if folder else entry.name, entry.stat().st_size, None)
                    for entry in directory
                    if entry.is_file()
                ]
        return {
            entry.path: entry.size
            for entry in entries
            if split(entry.path)[0] == folder and (is_log(entry.path) is not None or is_current_compaction(entry.path))
        }
    except (OSError, RawlogError):
        return {}


def _compaction(paths: Iterable[str]) -> Compaction | None:
    """The compaction under way, if its log can be read."""
    for path in paths:
        if is_current_compaction(path):
            try:
                with Source(path) as source:
                    compaction = read_compaction(Cursor(source.read(0, source.size)))
            except RawlogError:
                continue
            if compaction.crc_ok:
                return compaction
    return None


def _log_state(path: str, compaction: Compaction | None) -> str | None:
    segment = segment_of(path)
    assert segment is not None
    phase = "DONE" if compaction is None else compaction.phase
    if path.endswith("_temp"):
        return None if phase == "COMMIT" else "temp"
    if compaction is not None and phase in ("COMMIT", "CLEANUP") and segment.name in compaction.segments:
        return "compacted"
    return None


# A store as a whole --------------------------------------------------------------------------------------------------------


class BlobStore:
    """The live log segments of a directory in order, their index and bloom files, and the state of the blobs.

    Segments go by their numbers in this order. What cannot be read is left out: the rules over single files report it.
    """

    def __init__(self, folder: str, files: Iterable[File], summaries: Mapping[str, Any] | None = None) -> None:
        self.folder, self.summaries = folder, summaries or {}
        self.files = tuple(files)
        live = [file for file in self.files if file.place.state is None and file.problem is None]
        self.logs = sorted((file for file in live if file.format == LOG_FORMAT), key=lambda file: _segment(file).order)
        self.index_files = [file for file in live if file.format == INDEX_FORMAT]
        self.bloom_files = [file for file in live if file.format == BLOOM_FORMAT]
        loaded = {*self.logs, *self.index_files, *self.bloom_files}
        self.others = [file for file in self.files if file not in loaded]

    @property
    def partition(self) -> int | None:
        return self.logs[0].place.partition if self.logs else None

    @cached_property
    def segments(self) -> list[Segment]:
        """The segments of the log, in order."""
        return [_segment(file) for file in self.logs]

    @cached_property
    def numbers(self) -> dict[Segment, int]:
        return {segment: number for number, segment in enumerate(self.segments)}

    # The log

    @cached_property
    def read(self) -> list[LogSummary]:
        """What each log segment says, in order."""
        summaries = [self.summaries.get(file.path) for file in self.logs]
        return [
            summary if isinstance(summary, LogSummary) and not summary.check else read_log(file)
            for summary, file in zip(summaries, self.logs, strict=True)
        ]

    @cached_property
    def catalog(self) -> Catalog:
        """All messages that can be read."""
        return catalog_of([summary.columns for summary in self.read])

    @property
    def capacities(self) -> list[int | None]:
        """What the headers of the segments say; None for a segment without a sound header."""
        return [summary.capacity for summary in self.read]

    def between(self, number: int, start: int, stop: int) -> NDArray[np.int64]:
        """Where messages of a segment begin, from `start` to before `stop`."""
        places = self.catalog.offset[self.catalog.rows_in(number)]
        return places[slice(*np.searchsorted(places, [start, stop]).tolist())]

    def place(self, row: int) -> tuple[str, int, int]:
        """Path, position and size of a message."""
        catalog = self.catalog
        return self.logs[int(catalog.segment[row])].path, int(catalog.offset[row]), int(catalog.size[row])

    # Index and bloom files

    @cached_property
    def _indexes(self) -> tuple[list[IndexFile], list[str]]:
        live = [file for file in self.index_files if _segment(file) in self.numbers]
        indexes, unread = [], []
        for file in sorted(live, key=lambda file: (self.numbers[_segment(file)], start_of(file.path))):
            summary = self.summaries.get(file.path)
            try:
                indexes.append(summary.index() if isinstance(summary, IndexSummary) else read_index(file.path))
            except RawlogError:
                unread.append(file.path)
        return indexes, unread

    @property
    def indexes(self) -> list[IndexFile]:
        """The index files that can be read, in log order."""
        return self._indexes[0]

    @property
    def unread_indexes(self) -> list[str]:
        """The paths of index files that cannot be read."""
        return self._indexes[1]

    @property
    def sound_indexes(self) -> list[tuple[int, IndexFile]]:
        """The index files whose checksum is right, with the numbers of their segments."""
        return [(self.numbers[index.segment], index) for index in self.indexes if index.crc_ok]

    @cached_property
    def blooms(self) -> dict[tuple[Segment, int], tuple[str, Bloom]]:
        """The sound blooms by segment and start, with their paths."""
        blooms = {}
        for file in self.bloom_files:
            bloom = sound_bloom(file, self.summaries.get(file.path))
            if bloom is not None:
                blooms[_segment(file), start_of(file.path)] = (file.path, bloom)
        return blooms

    @cached_property
    def copies(self) -> dict[str, str]:
        """Copied log segments, by path, with the name of the original: both begin with the same message, which Ambry never writes twice."""
        copies: dict[str, str] = {}
        names: dict[bytes, str] = {}
        for file in self.logs:
            with contextlib.suppress(RawlogError), Source(file.path) as source:
                start = begin(source.read(0, HEAD), source.size).position
                frames = scan(np.frombuffer(source.read(start, HEAD), np.uint8), 0)
                if begins_message(source, start):
                    first = bytes(frames.data[: frames.stops[0]] if len(frames) else frames.data)
                    name = split(file.path)[1]
                    if (earlier := names.setdefault(first, name)) != name:
                        copies[file.path] = earlier
        return copies

    @cached_property
    def missing(self) -> list[Segment]:
        """Log segments that are not there, or empty: not even Ambry's header was left."""
        lost = [*self.lost_segments(), *(Segment(position, 0) for position in self.lost_positions())]
        empty = [segment for segment, file in zip(self.segments, self.logs, strict=True) if not file.size]
        return sorted({*lost, *empty}, key=lambda segment: segment.order)

    @cached_property
    def is_compacted(self) -> bool:
        """Whether a generation above 0, a compaction log or a policy file shows that a compaction has run."""
        return any(segment.generation > 0 for segment in self.segments) or any(
            file.format in (COMPACTION_FORMAT, POLICY_FORMAT) for file in self.others
        )

    def lost_positions(self, names: Sequence[Segment] | None = None) -> list[int]:
        """Missing segments without log or index, if no compaction explains the gap: positions rise by one from 0. `names` are the right
        names of the segments.
        """
        logs = {segment.position for segment in (names or self.segments) if segment.name}
        if self.is_compacted or not logs:
            return []
        return sorted(set(range(max(logs))) - logs - {segment.position for segment in self.lost_segments()})

    def blobs_without_put(self) -> NDArray[np.int64]:
        """The blobs of a store without compaction, by their first rows, of which the log has updates and not the PUT."""
        folded = self.state
        is_lost = (folded.put < 0) & ~may_lack_put(folded)
        return np.sort(folded.first[is_lost]) if not self.is_compacted else np.empty(0, np.int64)

    def lost_segments(self) -> dict[Segment, list[File]]:
        """Missing log segments that still have index files, and these; nothing shows that a compaction removed them."""
        logs = [_segment(file) for file in (*self.logs, *self.others) if file.format == LOG_FORMAT]
        newest: dict[int, int] = {}
        for segment in logs:
            newest[segment.position] = max(segment.generation, newest.get(segment.position, -1))
        compacted = {
            name for file in self.others if file.format == COMPACTION_FORMAT for name in _compacted_segments(file.path)
        }
        lost: dict[Segment, list[File]] = {}
        for file in self.others:
            segment = _segment(file)
            if file.format != INDEX_FORMAT or file.place.state != "orphan" or segment in logs:
                continue
            if newest.get(segment.position, -1) <= segment.generation and segment.name not in compacted:
                lost.setdefault(segment, []).append(file)
        order = sorted(lost, key=lambda segment: segment.order)
        return {segment: sorted(lost[segment], key=lambda file: start_of(file.path)) for segment in order}

    # What they add up to

    @cached_property
    def folded(self) -> Fold:
        """The messages as a live store would have taken them, one after the other."""
        return fold(self.catalog)

    @cached_property
    def state(self) -> Fold:
        """The state of the blobs, by the index where it has an entry, else by the messages.

        The index remembers what compaction took from the log: the expiry of a blob of which only the DELETE is left.
        """
        return fold(self.catalog, self.sound_indexes, ALWAYS)

    def __repr__(self) -> str:
        return f"BlobStore({self.folder!r}, {len(self.logs)} log segments)"


def lost_words(position: int) -> str:
    """What is said of a segment of which nothing is there."""
    return f"log segment {Segment(position, 0).log_name()} is not there, nor its index: lost, or compacted away"


def may_lack_put(folded: Fold) -> NDArray[np.bool_]:
    """Which blobs may never have had a PUT here: Ambry accepts a DELETE, but no other update, of an unknown blob."""
    first, kind = folded.first, folded.catalog.kind
    has_others = np.zeros(first.size, np.bool_)
    has_others[folded.blob[kind != DELETE]] = True
    is_lone_delete = (folded.put < 0) & ~has_others & (folded.flags[first] == int(Flag.DELETE))
    result: NDArray[np.bool_] = is_lone_delete & (folded.original[first] == NONE) & (folded.expires[first] == NONE)
    return result


def _segment(file: File) -> Segment:
    """The segment of a file, by its name; a log with another name is a store without segments."""
    return segment_of(file.path) or Segment()


def _compacted_segments(path: str) -> list[str]:
    """The segments that a compaction replaces, by its log; none if the log cannot be read."""
    try:
        with Source(path) as source:
            compaction = read_compaction(Cursor(source.read(0, source.size)))
    except RawlogError:
        return []
    return [name for cycle in compaction.cycles for name in cycle.segments] if compaction.crc_ok else []


def _folder(file: File) -> str:
    return file.path if file.place.group is None else file.place.group


def blob_stores(files: Sequence[File]) -> list[BlobStore]:
    """The stores among settled files, by directory, computed once for a Store."""
    return Store.of(files).share(_blob_stores)


def _blob_stores(files: Store) -> list[BlobStore]:
    groups: dict[str, list[File]] = {}
    for file in files:
        groups.setdefault(_folder(file), []).append(file)
    return [BlobStore(folder, group, files.summaries) for folder, group in groups.items()]


def with_logs(files: Sequence[File]) -> list[BlobStore]:
    """The stores among files that have a log, or index files of one that is gone."""
    return [store for store in blob_stores(files) if store.logs or store.lost_segments()]


# What readers of one segment cannot see ---------------------------------------------------------------------------------------


def contradicted(files: Sequence[File], file: File, end: int) -> Iterator[str]:
    """Evidence of the store against a log segment that ends at a position: it is a copy, the next segment is missing, or an index file
    names later messages. Reads only the first bytes of other segments.
    """
    store = next(store for store in blob_stores(files) if store.folder == _folder(file))
    segment = _segment(file)
    if segment not in store.numbers:
        return
    original = store.copies.get(file.path)
    if original is not None:
        yield f"a copy of {original}: it begins with the same message"
    later = store.logs[store.numbers[segment] + 1 :]
    following = next((log for log in later if log.size), None)
    if following is not None:
        is_next = (
            following.place.start_offset == (file.place.start_offset or 0) + file.size
        )  # else one was not asked for
        for missing in store.missing if is_next else ():
            if segment.order < missing.order < _segment(following).order:
                yield f"{missing.log_name()} is missing or empty between this log segment and the next"
    elif end < file.size and any(
        index.segment == segment and index.crc_ok and index.end > end for index in store.indexes
    ):
        yield f"byte {end:,}: the index names messages from here on, and they are damaged"


# What decoding needs of a store ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Context:
    """What decoding a log segment needs of its store: the blobs that a hard delete may have zeroed; None: not known."""

    deleted: frozenset[tuple[int, int, int]] | None

    def are_hard_deleted(self, identity: Identities) -> NDArray[np.bool_]:
        """Which of these blobs may have been."""
        if self.deleted is None:
            return np.ones(len(identity), np.bool_)
        return np.array([blob in self.deleted for blob in identity.tuples], np.bool_)


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> Context | None:
    """For the column `hard_deleted`: content of zeros was zeroed only if its blob is deleted, and hard delete ever ran here."""
    if "hard_deleted" not in options.get("columns", "hard_deleted").split(","):
        return None
    return _context(file, tuple(group))


@lru_cache(maxsize=64)
def _context(file: File, group: tuple[File, ...]) -> Context:
    store = next((store for store in blob_stores(group) if file in store.logs), None)
    if store is None:
        return Context(None)
    ran = any(other.format == "ambry.cleanup" for other in store.others)
    if not ran and store.index_files:
        return Context(frozenset())
    return Context(_deleted_blobs(group, store.folder))


@lru_cache(maxsize=2)
def _deleted_blobs(group: tuple[File, ...], folder: str) -> frozenset[tuple[int, int, int]]:
    """The blobs that are deleted in a store; asked for by each of its segments, and found once."""
    folded = next(store for store in blob_stores(group) if store.folder == folder).state
    deleted = folded.catalog.identity.take(folded.first[folded.is_deleted])
    return frozenset(deleted.tuples)


# Tables made of whole stores: `ambry.blobs`, the state of every blob, and `ambry.chunks`, the parts of large ones -------------------


def now_of(options: Mapping[str, str]) -> int:
    """Option `now` in milliseconds: a number, or ISO 8601; the clock if it is not given. OptionError for anything else."""
    return parse_now(options.get("now"))


def blobs(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """One row per blob, in order of its first message, as the store would answer at `now`."""
    now = now_of(options)
    for store in with_logs(files):
        folded = store.state
        paths = pa.array([valid_text(file.path) for file in store.logs], pa.string())
        states = folded.states(now)
        rows = np.flatnonzero(folded.answer >= 0)
        rows = rows[np.argsort(folded.first[rows])]
        for start in range(0, rows.size, ROWS):
            yield _batch(folded, states, paths, rows[start : start + ROWS])


def _batch(folded: Fold, states: NDArray[np.int8], paths: pa.Array, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Some blobs as rows."""
    catalog, first, answer, put = folded.catalog, folded.first[rows], folded.answer[rows], folded.put[rows]
    key_spans = catalog.key_data, catalog.key_start[first], catalog.key_size[first]
    in_log = put >= 0
    source = np.where(in_log, put, 0)
    arrays = {
        "blob_id": text_ids(*key_spans),
        "key": columns.spans(*key_spans),
        "state": pa.array(STATES).take(pa.array(states[rows])),
        "life_version": columns.integers(folded.life_version[answer], "int"),
        "ttl_updated": columns.booleans(folded.answer_flags[rows] & int(Flag.TTL_UPDATE) != 0),
        "expires_timestamp": _times(folded.answer_expires[rows]),
        "account_id": columns.integers(folded.account_id[answer], "int"),
        "container_id": columns.integers(folded.container_id[answer], "int"),
        "last_operation": _times(folded.time[answer]),
        "path": paths.take(pa.array(catalog.segment[source], mask=~in_log)),
        "position": columns.integers(catalog.offset[source], "bigint", in_log),
        "blob_size": columns.integers(catalog.content_size[source], "bigint", in_log),
        "in_log": columns.booleans(in_log),
    }
    return columns.batch(BLOBS, arrays, rows.size)


def _times(seconds: NDArray[np.int32]) -> pa.Array:
    valid = seconds != NONE
    return columns.timestamps(np.where(valid, seconds, 0).astype(np.int64) * 1_000_000, valid)


def chunks(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """One row per chunk of every metadata blob whose content is still there and not encrypted."""
    for store in blob_stores(files):
        for file in store.logs:
            for frames in walk(file, LOG, errors="skip"):
                messages = Messages(frames)
                is_metadata = (messages["kind"] == Kind.PUT) & (messages["blob_type"] == METADATA_BLOB) & messages.sound
                rows: list[dict[str, Any]] = []
                for index in np.flatnonzero(is_metadata & (messages["zeros"] == 0)).tolist():
                    try:
                        metadata = parse_metadata(messages.span(index, "content"))
                    except DataError:
                        continue  # encrypted, or not a list of chunks: verification reports it
                    blob_id = text_of(messages.key(index))
                    rows += [
                        {"blob_id": blob_id, "number": number, "chunk_blob_id": text_of(chunk.key), "size": chunk.size}
                        for number, chunk in enumerate(metadata.chunks)
                    ]
                if rows:
                    yield pa.RecordBatch.from_pylist(rows, schema=CHUNKS.schema)


# ----------------------------------------------------------------------------------------------------------------------
# What `report` shows of blob stores: the operations in their logs, and the states of their blobs.


def inventory(files: Store) -> Section | None:
    """How many blobs of a partition are in each state; None if there is no log."""
    counts = [0] * len(STATES)
    stores = with_logs(files)
    for store in stores:
        states = store.state.states(int(time.time() * 1000))
        counts = [count + int((states == number).sum()) for number, count in enumerate(counts)]
    return Section("", [[f"{count:,}" for count in counts]], None, STATES) if stores else None


def overview(files: Store) -> Iterator[Panel]:
    """The blobs of each store by state, as the store would answer now."""
    for store in with_logs(files):
        folded = store.state
        states = folded.states(int(time.time() * 1000))
        rows = []
        for number, name in enumerate(STATES):
            blob_rows = np.flatnonzero(states == number)
            put = folded.put[blob_rows]
            sizes = folded.catalog.content_size[put[put >= 0]].astype(np.int64)
            rows.append((name, f"{blob_rows.size:,}", size_text(int(sizes.sum())), f"{int((put >= 0).sum()):,}"))
        about = "Deleted and expired blobs take space until the store is compacted: rawlog compact shows how much that gives back."
        head = ("state", "blobs", "content still in the log", "blobs whose PUT is in the log")
        yield Panel("ambry", Section("Blob states", rows, None, head), about, Look.BARS, store.folder)
