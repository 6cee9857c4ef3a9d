"""A store: the files of one partition directory together, in the order and with the exceptions that Ambry itself applies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import DataError, OptionError, RawlogError
from rawlog.core.format import File, Unit, units_of
from rawlog.core.status import Status
from rawlog.formats.ambry import LOG
from rawlog.formats.ambry.index import IndexFile, read_index
from rawlog.formats.ambry.keys import Identities
from rawlog.formats.ambry.paths import COPYING, Segment, is_current_compaction, is_log, segment_of, split, start_of
from rawlog.formats.ambry.reader import Messages, trouble
from rawlog.formats.ambry.store.state import ALWAYS, Catalog, CatalogBuilder, Fold, fold
from rawlog.formats.ambry.structures import Compaction, Cursor, read_compaction
from rawlog.io.storage import Entry as Listed
from rawlog.io.storage import Source, is_remote, listing, local_path
from rawlog.io.walk import walk

LOG_FORMAT, INDEX_FORMAT, BLOOM_FORMAT, COMPACTION_FORMAT = (
    "ambry.log",
    "ambry.index",
    "ambry.bloom",
    "ambry.compaction",
)


# ---------------------------------------------------------------- which files count


def settle(files: Sequence[File]) -> list[File]:
    """Say of a store's files which ones Ambry would read now, and where each log segment begins in the whole log.

    In the middle of a compaction the same messages stand in two segments; its log tells which one counts (§16.3).
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
    else:
        state = None if segment in live else "orphan"
        start = None if start is None else start + start_of(file.path)
    return replace(file, place=replace(file.place, start_offset=None if state else start, state=state))


def _siblings(folder: str, group: Sequence[File]) -> dict[str, int]:
    """Log segments and compaction logs beside those that were asked for by name."""
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


# ---------------------------------------------------------------- a store as a whole


@dataclass
class Store:
    """The live log segments of one directory in order, with their index and bloom files."""

    folder: str
    logs: list[File] = field(default_factory=list)
    index_files: list[File] = field(default_factory=list)
    bloom_files: list[File] = field(default_factory=list)
    others: list[File] = field(default_factory=list)
    #: What could not be read on the way: path, error.
    problems: list[tuple[str, RawlogError]] = field(default_factory=list)
    #: By the number of a segment: where its messages end, if other bytes follow them, and what these are. `read_catalog` fills it.
    tails: dict[int, tuple[int, Status]] = field(default_factory=dict)

    @property
    def partition(self) -> int | None:
        return self.logs[0].place.partition if self.logs else None

    def segments(self) -> list[Segment]:
        return [_segment(file) for file in self.logs]

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
        return {one: sorted(found[one], key=lambda file: start_of(file.path)) for one in sorted(found, key=_order)}

    def indexes(self) -> list[IndexFile]:
        """The index files that can be read, in log order. What cannot is noted among the problems."""
        numbers = {segment: number for number, segment in enumerate(self.segments())}
        found = []
        for file in sorted(self.index_files, key=lambda one: (numbers.get(_segment(one), -1), start_of(one.path))):
            try:
                found.append(read_index(file.path))
            except RawlogError as error:
                self.problems.append((file.path, error))
        return found


def _segment(file: File) -> Segment:
    """The segment that a file's name tells; a log of any other name is one without segments."""
    return segment_of(file.path) or Segment()


def _order(segment: Segment) -> tuple[int, int]:
    return segment.order


def _compacted(path: str) -> list[str]:
    """The segments that a compaction replaces or has replaced, by its log; none if that cannot be read."""
    try:
        with Source(path) as source:
            found = read_compaction(Cursor(source.read(0, source.size)))
    except RawlogError:
        return []
    return [name for cycle in found.cycles for name in cycle.segments] if found.crc_ok else []


def stores(files: Sequence[File]) -> list[Store]:
    """The stores among settled files, by directory."""
    found: dict[str, Store] = {}
    for file in files:
        folder = file.path if file.place.group is None else file.place.group
        store = found.setdefault(folder, Store(folder))
        if file.place.state is not None or file.problem is not None:
            store.others.append(file)
        elif file.format == LOG_FORMAT:
            store.logs.append(file)
        elif file.format == INDEX_FORMAT:
            store.index_files.append(file)
        elif file.format == BLOOM_FORMAT:
            store.bloom_files.append(file)
        else:
            store.others.append(file)
    for store in found.values():
        store.logs.sort(key=lambda file: _segment(file).order)
    return list(found.values())


def cut(files: Sequence[File], options: Mapping[str, str], at_once: int) -> list[Unit]:
    """A unit for each store that has a log. OptionError if there is none."""
    logs = {store.folder for store in stores(files) if store.logs}
    if not logs:
        raise OptionError("no Ambry store with a log is here")
    groups: dict[str, list[File]] = {}
    for file in files:
        folder = file.path if file.place.group is None else file.place.group
        if folder in logs:
            groups.setdefault(folder, []).append(file)
    return units_of(groups, options)


def open_store(path: str) -> Store:
    """The store in a directory, its files recognised and settled. RawlogError if there is none."""
    from rawlog.core.errors import UnknownFormatError
    from rawlog.formats.ambry import FAMILY

    files = []
    for entry in listing(path):
        for format in FAMILY.formats:
            place = format.match(entry.path) if format.match is not None else None
            if place is not None:
                files.append(File(entry.path, entry.size, entry.modified, format.name, place, entry.problem))
                break
    found = [store for store in stores(settle(files)) if store.logs]
    if len(found) != 1:
        raise UnknownFormatError(f"{path}: {len(found)} Ambry stores with a log, one expected")
    return found[0]


def read_messages(file: File, *, check: bool = False, errors: str = "stop") -> Iterator[Messages]:
    """The messages of a log segment, a window at a time; a window's arrays are valid until the next one."""
    for frames in walk(file, LOG, errors=errors):
        if len(frames):
            yield Messages(frames, check=check)


def read_catalog(store: Store, *, errors: str = "skip") -> Catalog:
    """All messages of a store that can be read. What cannot is noted among the problems, unless `errors` is `raise`."""
    builder = CatalogBuilder()
    for number, file in enumerate(store.logs):
        try:
            for frames in walk(file, LOG, errors=errors):
                messages = Messages(frames, check=False)
                if errors == "raise" and messages["fault"].any():
                    raise trouble(messages, int(np.argmax(messages["fault"] != 0))).at(path=file.path, format=LOG.name)
                builder.add(messages, number)
                if frames.last and frames.reached_in_file < file.size:
                    store.tails[number] = (frames.reached_in_file, frames.status)
        except DataError as error:
            if errors == "raise":
                raise
            store.problems.append((file.path, error))
    return builder.done()


def sound_indexes(store: Store) -> list[tuple[int, IndexFile]]:
    """The index files of live segments whose checksum is right, with the numbers of their segments."""
    numbers = {segment: number for number, segment in enumerate(store.segments())}
    return [(numbers[index.segment], index) for index in store.indexes() if index.crc_ok and index.segment in numbers]


def fold_store(store: Store) -> Fold:
    """What the store knows: its index where that has an entry for a message, the message itself elsewhere.

    The index remembers what compaction took from the log: the expiry of a blob of which only the DELETE is left.
    """
    return fold(read_catalog(store), sound_indexes(store), ALWAYS)


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
    store = next((one for one in stores(group) if file in one.logs), None)
    if store is None:
        return Context(None)
    ran = any(other.format == "ambry.cleanup" for other in store.others)
    if not ran and store.index_files:
        return Context(frozenset())
    return Context(_deleted(group, store.folder))


@lru_cache(maxsize=2)
def _deleted(group: tuple[File, ...], folder: str) -> frozenset[tuple[int, int, int]]:
    """The blobs that a store holds for deleted; asked for by each of its segments, and found once."""
    folded = fold_store(next(one for one in stores(group) if one.folder == folder))
    gone = folded.catalog.identity.take(folded.first[folded.is_deleted])
    return frozenset(gone.tuples)


__all__ = [
    "Context", "Store", "context", "fold_store", "open_store", "read_catalog", "read_messages", "settle", "sound_indexes", "stores",
]  # fmt: skip
