"""A store: the files of one partition directory together, in the order and with the exceptions that Ambry itself applies.

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

from rawlog.formats.ambry import LOG
from rawlog.formats.ambry.index import Bloom, IndexFile, IndexSummary, read_index, sound_bloom
from rawlog.formats.ambry.keys import Identities, text_of
from rawlog.formats.ambry.layouts import NONE, Flag, Kind
from rawlog.formats.ambry.log import Messages, begins_message, scan, text_ids
from rawlog.formats.ambry.paths import (
    COPYING,
    Segment,
    begin,
    is_current_compaction,
    is_log,
    segment_of,
    split,
    start_of,
)
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
from rawlog.formats.ambry.tables import BLOBS, CHUNKS
from rawlog.io.storage import Entry as Listed
from rawlog.io.storage import Source, is_remote, listing, local_path
from rawlog.io.walk import walk
from rawlog.kernels import columns
from rawlog.model.errors import DataError, RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Frames
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
"""So many bytes of a log segment tell whether it is a copy of another one."""
METADATA_BLOB = 1


# Which files count -------------------------------------------------------------------------------------------------------


def settle(files: Sequence[File]) -> list[File]:
    """Say of a store's files which ones Ambry would read now, and where each log segment begins in the whole log.

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
    for segment in sorted(live, key=lambda one: one.order):
        bases[segment] = position
        position += around[live[segment]]
    return [_placed(file, live, bases, compaction) for file in group]


def _placed(file: File, live: dict[Segment, str], bases: dict[Segment, int], compaction: Compaction | None) -> File:
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
    """Log segments and compaction logs next to those that were asked for by name."""
    entries: Iterable[Listed]
    try:
        if is_remote(folder):
            if sum(file.format == LOG_FORMAT for file in group) > 1:
                return {}
            entries = listing(folder)
        else:
            with os.scandir(local_path(folder) or ".") as found:
                entries = [
                    Listed(f"{folder}/{entry.name}" if folder else entry.name, entry.stat().st_size, None)
                    for entry in found
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
                    found = read_compaction(Cursor(source.read(0, source.size)))
            except RawlogError:
                continue
            if found.crc_ok:
                return found
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
    """The live log segments of one directory in order, their index and bloom files, and what these add up to.

    Segments go by their numbers in this order. What cannot be read is left out: the rules over single files report it.
    """

    def __init__(self, folder: str, files: Iterable[File], summaries: Mapping[str, Any] | None = None) -> None:
        self.folder, self.summaries = folder, summaries or {}
        self.files = tuple(files)
        live = [file for file in self.files if file.place.state is None and file.problem is None]
        self.logs = sorted((file for file in live if file.format == LOG_FORMAT), key=lambda file: _segment(file).order)
        self.index_files = [file for file in live if file.format == INDEX_FORMAT]
        self.bloom_files = [file for file in live if file.format == BLOOM_FORMAT]
        known = {*self.logs, *self.index_files, *self.bloom_files}
        self.others = [file for file in self.files if file not in known]

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
        known = [self.summaries.get(file.path) for file in self.logs]
        return [
            one if isinstance(one, LogSummary) and not one.check else read_log(file)
            for one, file in zip(known, self.logs, strict=True)
        ]

    @cached_property
    def catalog(self) -> Catalog:
        """All messages that can be read."""
        return catalog_of([one.columns for one in self.read])

    @property
    def capacities(self) -> list[int | None]:
        """What the headers of the segments say; None for a segment without a sound header."""
        return [one.capacity for one in self.read]

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
        found, unread = [], []
        for file in sorted(live, key=lambda one: (self.numbers[_segment(one)], start_of(one.path))):
            summary = self.summaries.get(file.path)
            try:
                found.append(summary.index() if isinstance(summary, IndexSummary) else read_index(file.path))
            except RawlogError:
                unread.append(file.path)
        return found, unread

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
        found = {}
        for file in self.bloom_files:
            bloom = sound_bloom(file, self.summaries.get(file.path))
            if bloom is not None:
                found[_segment(file), start_of(file.path)] = (file.path, bloom)
        return found

    @cached_property
    def copies(self) -> dict[str, str]:
        """Log segments that begin with the same message as an earlier one, by path, with the name of that: Ambry writes none twice."""
        found: dict[str, str] = {}
        names: dict[bytes, str] = {}
        for file in self.logs:
            with contextlib.suppress(RawlogError), Source(file.path) as source:
                start = begin(source.read(0, HEAD), source.size).position
                frames = scan(np.frombuffer(source.read(start, HEAD), np.uint8), 0)
                if begins_message(source, start):
                    first = bytes(frames.data[: frames.stops[0]] if len(frames) else frames.data)
                    name = split(file.path)[1]
                    if (earlier := names.setdefault(first, name)) != name:
                        found[file.path] = earlier
        return found

    @cached_property
    def missing(self) -> list[Segment]:
        """Log segments that are not there, or empty: not even Ambry's header was left."""
        gone = [*self.lost_segments(), *(Segment(position, 0) for position in self.lost_positions())]
        empty = [segment for segment, file in zip(self.segments, self.logs, strict=True) if not file.size]
        return sorted({*gone, *empty}, key=lambda one: one.order)

    @cached_property
    def is_compacted(self) -> bool:
        """Whether something shows that a compaction has run here: the generation of what it wrote, its log, or the file of its policy."""
        return any(one.generation > 0 for one in self.segments) or any(
            file.format in (COMPACTION_FORMAT, POLICY_FORMAT) for file in self.others
        )

    def lost_positions(self, names: Sequence[Segment] | None = None) -> list[int]:
        """Segments that a store without compaction must have, and of which neither log nor index is there: positions rise by one from 0
        on. `names` are the right ones of the segments.
        """
        logs = {one.position for one in (names or self.segments) if one.name}
        if self.is_compacted or not logs:
            return []
        return sorted(set(range(max(logs))) - logs - {one.position for one in self.lost_segments()})

    def blobs_without_put(self) -> NDArray[np.int64]:
        """The blobs of a store without compaction, by their first rows, of which the log has updates and not the PUT."""
        folded = self.state
        wanted = (folded.put < 0) & ~may_lack_put(folded)
        return np.sort(folded.first[wanted]) if not self.is_compacted else np.empty(0, np.int64)

    def lost_segments(self) -> dict[Segment, list[File]]:
        """Log segments that are not there although their index files are, with these: nothing says that a compaction removed them."""
        logs = [_segment(file) for file in (*self.logs, *self.others) if file.format == LOG_FORMAT]
        newest: dict[int, int] = {}
        for segment in logs:
            newest[segment.position] = max(segment.generation, newest.get(segment.position, -1))
        compacted = {name for file in self.others if file.format == COMPACTION_FORMAT for name in _compacted(file.path)}
        found: dict[Segment, list[File]] = {}
        for file in self.others:
            segment = _segment(file)
            if file.format != INDEX_FORMAT or file.place.state != "orphan" or segment in logs:
                continue
            if newest.get(segment.position, -1) <= segment.generation and segment.name not in compacted:
                found.setdefault(segment, []).append(file)
        order = sorted(found, key=lambda segment: segment.order)
        return {one: sorted(found[one], key=lambda file: start_of(file.path)) for one in order}

    # What they add up to

    @cached_property
    def folded(self) -> Fold:
        """The messages as a live store would have taken them, one after the other."""
        return fold(self.catalog)

    @cached_property
    def state(self) -> Fold:
        """What the store knows: its index where that has an entry for a message, the message itself elsewhere.

        The index remembers what compaction took from the log: the expiry of a blob of which only the DELETE is left.
        """
        return fold(self.catalog, self.sound_indexes, ALWAYS)

    def __repr__(self) -> str:
        return f"BlobStore({self.folder!r}, {len(self.logs)} log segments)"


def lost_words(position: int) -> str:
    """What is said of a segment of which nothing is there."""
    return f"log segment {Segment(position, 0).log_name()} is not there, nor its index: lost, or compacted away"


def may_lack_put(folded: Fold) -> NDArray[np.bool_]:
    """Which blobs may never have had a PUT here: Ambry takes a DELETE of a blob that it does not know, and notes nothing of a PUT. It takes
    no other update of such a blob.
    """
    first, kind = folded.first, folded.catalog.kind
    has_others = np.zeros(first.size, np.bool_)
    has_others[folded.blob[kind != DELETE]] = True
    alone = (folded.put < 0) & ~has_others & (folded.flags[first] == int(Flag.DELETE))
    result: NDArray[np.bool_] = alone & (folded.original[first] == NONE) & (folded.expires[first] == NONE)
    return result


def _segment(file: File) -> Segment:
    """The segment that a file's name gives; a log of any other name is one without segments."""
    return segment_of(file.path) or Segment()


def _compacted(path: str) -> list[str]:
    """The segments that a compaction replaces or has replaced, by its log; none if that cannot be read."""
    try:
        with Source(path) as source:
            found = read_compaction(Cursor(source.read(0, source.size)))
    except RawlogError:
        return []
    return [name for cycle in found.cycles for name in cycle.segments] if found.crc_ok else []


def _folder(file: File) -> str:
    return file.path if file.place.group is None else file.place.group


def blob_stores(files: Sequence[File]) -> list[BlobStore]:
    """The stores among settled files, by directory: the same objects for everybody who asks with the same Store."""
    return Store.of(files).share(_blob_stores)


def _blob_stores(files: Store) -> list[BlobStore]:
    groups: dict[str, list[File]] = {}
    for file in files:
        groups.setdefault(_folder(file), []).append(file)
    return [BlobStore(folder, group, files.summaries) for folder, group in groups.items()]


def with_logs(files: Sequence[File]) -> list[BlobStore]:
    """The stores among files that have a log."""
    return [store for store in blob_stores(files) if store.logs]


# What readers of one segment cannot see ---------------------------------------------------------------------------------------


def contradicted(files: Sequence[File], file: File, end: int) -> Iterator[str]:
    """What a store says against one of its log segments whose messages end at a position: it is a copy, the next one is missing, or an
    index file names messages after the position. Of the other segments only the first bytes are read.
    """
    store = next(one for one in blob_stores(files) if one.folder == _folder(file))
    segment = _segment(file)
    if segment not in store.numbers:
        return
    original = store.copies.get(file.path)
    if original is not None:
        yield f"a copy of {original}: it begins with the same message"
    later = store.logs[store.numbers[segment] + 1 :]
    following = next((one for one in later if one.size), None)
    if following is not None:
        is_next = (
            following.place.start_offset == (file.place.start_offset or 0) + file.size
        )  # else one was not asked for
        for missing in store.missing if is_next else ():
            if segment.order < missing.order < _segment(following).order:
                yield f"{missing.log_name()} is missing or empty between this log segment and the one that follows"
    elif end < file.size and any(one.segment == segment and one.crc_ok and one.end > end for one in store.indexes):
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
        return np.array([one in self.deleted for one in identity.tuples], np.bool_)


def context(file: File, group: Sequence[File], options: dict[str, str]) -> Context | None:
    """For the column `hard_deleted`: content of zeros was zeroed only if its blob is deleted, and hard delete ever ran here."""
    if "hard_deleted" not in options.get("columns", "hard_deleted").split(","):
        return None
    return _context(file, tuple(group))


@lru_cache(maxsize=64)
def _context(file: File, group: tuple[File, ...]) -> Context:
    store = next((one for one in blob_stores(group) if file in one.logs), None)
    if store is None:
        return Context(None)
    ran = any(other.format == "ambry.cleanup" for other in store.others)
    if not ran and store.index_files:
        return Context(frozenset())
    return Context(_deleted(group, store.folder))


@lru_cache(maxsize=2)
def _deleted(group: tuple[File, ...], folder: str) -> frozenset[tuple[int, int, int]]:
    """The blobs that are deleted in a store; asked for by each of its segments, and found once."""
    folded = next(one for one in blob_stores(group) if one.folder == folder).state
    gone = folded.catalog.identity.take(folded.first[folded.is_deleted])
    return frozenset(gone.tuples)


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
        known = np.flatnonzero(folded.found >= 0)
        known = known[np.argsort(folded.first[known])]
        for start in range(0, known.size, ROWS):
            yield _batch(folded, states, paths, known[start : start + ROWS])


def _batch(folded: Fold, states: NDArray[np.int8], paths: pa.Array, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Some blobs as rows."""
    catalog, first, found, put = folded.catalog, folded.first[rows], folded.found[rows], folded.put[rows]
    key_spans = catalog.key_data, catalog.key_start[first], catalog.key_size[first]
    there = put >= 0
    source = np.where(there, put, 0)
    made = {
        "blob_id": text_ids(*key_spans),
        "key": columns.spans(*key_spans),
        "state": pa.array(STATES).take(pa.array(states[rows])),
        "life_version": columns.integers(folded.life_version[found], "int"),
        "ttl_updated": columns.booleans(folded.found_flags[rows] & int(Flag.TTL_UPDATE) != 0),
        "expires_timestamp": _times(folded.found_expires[rows]),
        "account_id": columns.integers(folded.account_id[found], "int"),
        "container_id": columns.integers(folded.container_id[found], "int"),
        "last_operation": _times(folded.time[found]),
        "path": paths.take(pa.array(catalog.segment[source], mask=~there)),
        "position": columns.integers(catalog.offset[source], "bigint", there),
        "blob_size": columns.integers(catalog.content_size[source], "bigint", there),
        "in_log": columns.booleans(there),
    }
    return columns.batch(BLOBS, made, rows.size)


def _times(seconds: NDArray[np.int32]) -> pa.Array:
    known = seconds != NONE
    return columns.timestamps(np.where(known, seconds, 0).astype(np.int64) * 1_000_000, known)


def chunks(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """One row per chunk of every metadata blob whose content is still there and not encrypted."""
    for store in blob_stores(files):
        for file in store.logs:
            for frames in walk(file, LOG, errors="skip"):
                messages = Messages(frames)
                wanted = (messages["kind"] == Kind.PUT) & (messages["blob_type"] == METADATA_BLOB) & messages.sound
                rows: list[dict[str, Any]] = []
                for index in np.flatnonzero(wanted & (messages["zeros"] == 0)).tolist():
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


def tally(frames: Frames, file: File) -> dict[str, dict[str, tuple[int, int]]]:
    """Messages and bytes by operation."""
    kinds, sizes = Messages(frames, check=False)["kind"], frames.sizes
    found = {one.name: kinds == int(one) for one in Kind}
    return {"operation": {name: (int(of.sum()), int(sizes[of].sum())) for name, of in found.items() if of.any()}}


def overview(files: Store) -> Iterator[Panel]:
    """The blobs of each store by state, as the store would answer now."""
    for store in with_logs(files):
        folded = store.state
        states = folded.states(int(time.time() * 1000))
        rows = []
        for number, name in enumerate(STATES):
            of = np.flatnonzero(states == number)
            put = folded.put[of]
            sizes = folded.catalog.content_size[put[put >= 0]].astype(np.int64)
            rows.append((name, f"{of.size:,}", size_text(int(sizes.sum())), f"{int((put >= 0).sum()):,}"))
        about = "Deleted and expired blobs take space until the store is compacted: rawlog compact shows how much that gives back."
        head = ("state", "blobs", "content still in the log", "blobs whose PUT is in the log")
        yield Panel("ambry", Section("Blob states", rows, None, head), about, Look.BARS, store.folder)
