"""What index and bloom files know of messages that a damaged log has lost, or has under a wrong blob id.

No checksum covers a message's key, and a damaged update leaves nothing of itself in the log. Index entries repeat the key and all that an
update did, under a checksum of their own.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry import Segment, keys, segment_of, start_of
from rawlog.formats.ambry.index import Bloom, Entries, IndexFile, Integers, read_index, sound_bloom
from rawlog.formats.ambry.kernels.messages import check_header
from rawlog.formats.ambry.layouts import HEADERS, KEY_V1, KEY_V2, NONE, Kind
from rawlog.formats.ambry.log import Messages, scan
from rawlog.formats.ambry.store.state import PUT, Catalog, Damage, fold, is_refused, updates_before_put
from rawlog.formats.ambry.store.store import BlobStore
from rawlog.formats.ambry.writer import update_message
from rawlog.io.storage import Source
from rawlog.kernels import byte_view
from rawlog.model.errors import EncodeError, RawlogError
from rawlog.model.frames import Bytes
from rawlog.model.status import OK

LARGEST_HEADER = max(layout.size for layout in HEADERS.values())


@dataclass
class Evidence:
    """The entries of all readable index files, also of lost log segments, and the sound blooms."""

    files: list[IndexFile]
    blooms: dict[tuple[Segment, int], Bloom] = field(default_factory=dict)
    #: The paths of index files that cannot be read.
    unread: frozenset[str] = frozenset()

    @cached_property
    def entries(self) -> Entries:
        return Entries.join([index.entries for index in self.files])

    @cached_property
    def file(self) -> NDArray[np.int64]:
        """The number of each entry's file."""
        return np.repeat(np.arange(len(self.files)), np.array([len(index.entries) for index in self.files], np.int64))

    @cached_property
    def segments(self) -> list[Segment]:
        """The log segments that index files name, in order."""
        return sorted({index.segment for index in self.files}, key=lambda segment: segment.order)

    @cached_property
    def segment(self) -> NDArray[np.int64]:
        """The number of each entry's segment, in `segments`."""
        number = {segment: number for number, segment in enumerate(self.segments)}
        return np.array([number[index.segment] for index in self.files], np.int64)[self.file]

    @cached_property
    def is_sound(self) -> NDArray[np.bool_]:
        """Whether the checksum of an entry's file is right, and the file covers the entry."""
        right = np.array([index.crc_ok for index in self.files], np.bool_)
        ends = np.array([index.end for index in self.files], np.int64)
        result: NDArray[np.bool_] = right[self.file] & (self.entries.offset + self.entries.size <= ends[self.file])
        return result

    @cached_property
    def is_weak(self) -> NDArray[np.bool_]:
        """Whether the checksum of an entry's file is wrong: the entry may be damaged."""
        wrong = np.array([not index.crc_ok for index in self.files], np.bool_)
        return wrong[self.file]

    @cached_property
    def is_first(self) -> NDArray[np.bool_]:
        """Which entries are the first of their blob in their file."""
        return self.entries.firsts(self.file)

    def name(self, entry: int) -> str:
        """The name of the index file of an entry."""
        return self.files[int(self.file[entry])].path.rpartition("/")[2]

    def bloom(self, entry: int) -> Bloom | None:
        """The sound bloom of the index file of an entry, if there is one."""
        index = self.files[int(self.file[entry])]
        return self.blooms.get((index.segment, index.start))


def gather(store: BlobStore) -> Evidence:
    """What a store's index and bloom files know. Files that cannot be read are left out."""
    indexes, unread = list(store.indexes), list(store.unread_indexes)
    for files in store.lost_segments().values():
        for file in files:
            try:
                indexes.append(read_index(file.path))
            except RawlogError:
                unread.append(file.path)
    indexes.sort(key=lambda index: (index.segment.order, index.start))
    evidence = Evidence(indexes, {place: bloom for place, (_, bloom) in store.blooms.items()}, frozenset(unread))
    for file in store.others:
        segment = segment_of(file.path) if file.format == "ambry.bloom" else None
        bloom = sound_bloom(file) if segment is not None else None
        if segment is not None and bloom is not None:
            evidence.blooms[segment, start_of(file.path)] = bloom
    return evidence


def partitions(data: Bytes, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The partition that each key names."""
    at = starts + np.where(data[starts + 1] == 1, KEY_V1.at("partition"), KEY_V2.at("partition"))
    raw = np.ascontiguousarray(data[at[:, None] + np.arange(8)])
    return raw.view(">i8").astype(np.int64).reshape(-1)


def majority_partition(partitions: NDArray[np.int64]) -> int | None:
    """The partition that most keys name; None without keys."""
    numbers, counts = np.unique(partitions, return_counts=True)
    return int(numbers[np.argmax(counts)]) if numbers.size else None


def elect_partition(directory: int | None, files: Iterable[int | None]) -> int | None:
    """The partition of a store: its directory and each of its files have one vote.

    So a large segment of another store does not outvote the others. The directory decides between equals, then the first file.
    """
    votes = Counter(number for number in (directory, *files) if number is not None)
    return max(votes, key=lambda number: votes[number], default=None)


def with_partition(key: bytes, partition: int) -> bytes:
    """A key with another partition number."""
    at = KEY_V1.at("partition") if key[1] == 1 else KEY_V2.at("partition")
    return key[:at] + partition.to_bytes(8, "big", signed=True) + key[at + 8 :]


def replace_key(source: Source, position: int, key: bytes) -> bytes | None:
    """The message at a position with another key, if its header is sound and all its records are; None if not."""
    if position < 0 or position >= source.size:
        return None
    head = source.read(position, LARGEST_HEADER)
    layout = HEADERS.get(int.from_bytes(head[:2], "big"))
    if layout is None or check_header(byte_view(head), 0) != OK:
        return None
    values = layout.take(np.frombuffer(head, np.uint8), np.array([0]))[0]
    names = ("encryption_key_offset", "blob_properties_offset", "update_offset")
    first = next(
        int(values[name]) for name in names if name in (values.dtype.names or ()) and int(values[name]) != NONE
    )
    size = first + int(values["payload_size"])
    if first - layout.size != len(key) or size > source.size - position:
        return None
    raw = source.read(position, size)
    message = raw[: layout.size] + key + raw[first:]
    frames = scan(np.frombuffer(message, np.uint8), 0)
    if len(frames) != 1 or frames.reached != size:
        return None
    return message if Messages(frames).is_whole[0] else None


def agrees(catalog: Catalog, row: int, evidence: Evidence, entry: int) -> bool:
    """Whether a message is all that an entry says of it, the blob id aside."""
    entries, version = evidence.entries, evidence.files[int(evidence.file[entry])].header.version
    facts: list[tuple[Integers, Integers]] = [(catalog.kind, entries.kind), (catalog.size, entries.size)]
    facts += [(catalog.life_version, entries.life_version)] if version >= 3 else []
    facts += [(catalog.time, entries.operation_time)] if version >= 1 else []
    if int(catalog.kind[row]) == PUT:
        facts.append((catalog.expires, entries.expires))
        if version >= 1:
            facts += [(catalog.account_id, entries.account_id), (catalog.container_id, entries.container_id)]
    return all(int(of_message[row]) == int(of_entry[entry]) for of_message, of_entry in facts)


def message_of(entries: Entries, entry: int) -> bytes:
    """The update of an index entry, in the message version that has the size of the entry.

    The index has its time in whole seconds only.
    """
    kind, life = Kind(int(entries.kind[entry])), int(entries.life_version[entry])
    time = int(entries.operation_time[entry])
    first: bytes | None = None
    for header in (3, 2, 1):
        for record in (3, 2, 1):
            try:
                message = update_message(
                    kind,
                    entries.key(entry),
                    time=time * 1000 if time >= 0 else NONE,
                    account_id=int(entries.account_id[entry]),
                    container_id=int(entries.container_id[entry]),
                    life_version=life,
                    header_version=header,
                    record_version=record,
                )
            except EncodeError:
                continue
            first = first or message
            if len(message) == int(entries.size[entry]):
                return message
    assert first is not None, "header and record of version 3 hold every update"
    return first


def ids_in(data: bytes, partition: int) -> list[bytes]:
    """The blob ids of a partition that can be read in damaged bytes."""
    mark = b"\0\1" + partition.to_bytes(8, "big", signed=True)
    ids: dict[bytes, None] = {}
    at = data.find(mark)
    while at >= 0:
        for before in (KEY_V2.at("partition_version"), KEY_V1.at("partition_version")):
            start = at - before
            if start >= 0 and (data[start + 1] == 1) == (before == KEY_V1.at("partition_version")):
                try:
                    ids.setdefault(keys.parse(data, start).raw)
                except RawlogError:
                    continue
        at = data.find(mark, at + 1)
    return list(ids)


# ----------------------------------------------------------------------------------------------------------------------
# Which names the log segments of a store had, and which segment the entries of each index file are of.
# Names decide about the order of all messages. A segment may have got another name, or its file may have been swapped with another one:
# the index files, or else the times of the messages, say what it was.


@dataclass
class Naming:
    """The names of log segments, settled by `settle`; `renamed` are the new ones, by number, each with the reason."""

    store: BlobStore
    catalog: Catalog
    evidence: Evidence
    #: The row of the message of each entry, -1 without one; and which entries say something of this store.
    rows: NDArray[np.int64]
    trusted: NDArray[np.bool_]
    #: The damaged bytes of segments, by number; and the numbers of those whose header is damaged.
    damages: Sequence[tuple[int, Damage]]
    headers: Collection[int]
    renamed: list[tuple[int, Segment, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = list(self.store.segments)

    @cached_property
    def damaged_segments(self) -> set[int]:
        return {number for number, _ in self.damages} | set(self.headers)

    def settle(self) -> None:
        """Give segments the names that their index files, or the times of their messages, say they had."""
        if all(segment.name for segment in self.names):
            names = self._by_index()
            if names != self.names:
                now, then = self._disorder(self.names), self._disorder(names)
                is_lost = any(name not in self.names for name in names)
                if then < now or (is_lost and then <= now):
                    self._rename(names, "its index files say so")
            by_time, now = self._by_time(), self._disorder(self.names)
            if by_time != self.names and now[0] and self._disorder(by_time) < now:
                self._find_logs()  # index files belong to the segments that had their names
                self._rename(by_time, "its messages come there by their times")
                return
        self._find_logs()

    def _by_index(self) -> list[Segment]:
        """The names by index files: each segment gets the name of the files that have most of its messages."""
        segments, evidence = self.store.segments, self.evidence
        names = list(segments)
        if not evidence.segments:
            return names
        good = (self.rows >= 0) & self.trusted
        score = np.zeros((len(segments), len(evidence.segments)), np.int64)
        np.add.at(score, (self.catalog.segment[self.rows[good]], evidence.segment[good]), 1)
        total = np.bincount(evidence.segment[self.trusted], minlength=len(evidence.segments))
        for number, segment in enumerate(segments):
            best = int(np.argmax(score[number]))
            if score[number].max() * 2 < total[best] and number not in self.damaged_segments:
                continue  # most of these index files are not of this segment, which is sound
            current = score[number][evidence.segments.index(segment)] if segment in evidence.segments else 0
            if score[number].max() > current and score[:, best].argmax() == number:
                names[number] = evidence.segments[best]
        return _distinct(names, segments)

    def _find_logs(self) -> None:
        """Find the log segment of each index file, by number; -1 for a lost one.

        It is the one that has the most of their messages. A file without any goes by its name; if that segment is sound, the file is of a
        damaged one that has another name.
        """
        evidence, sizes = self.evidence, [file.size for file in self.store.logs]
        named = {name: number for number, name in enumerate(self.names)}
        good = np.flatnonzero((self.rows >= 0) & (self.trusted | evidence.is_weak))
        score = np.zeros((len(evidence.files), len(sizes)), np.int64)
        np.add.at(score, (evidence.file[good], self.catalog.segment[self.rows[good]]), 1)
        logs = np.full(len(evidence.files), NONE, np.int64)
        for number, index in enumerate(evidence.files):
            counts = score[number]
            named_log = named.get(index.segment, NONE)
            logs[number] = (
                named_log
                if not counts.any() or (named_log >= 0 and counts[named_log] == counts.max())
                else int(np.argmax(counts))
            )
            if (
                not counts.any()
                and named_log >= 0
                and named_log not in self.damaged_segments
                and index.end <= sizes[named_log]
            ):
                logs[number] = max(self.damaged_segments, key=lambda log: self._overlap(log, index), default=named_log)
        #: The number of the segment of each entry, and of each index file.
        self.where = logs[evidence.file] if len(evidence.files) else np.empty(0, np.int64)
        self.logs_of_files = logs

    def _overlap(self, number: int, index: IndexFile) -> int:
        """How many damaged bytes of a segment are in the range of an index file."""
        return sum(
            max(0, min(damage.stop, index.end) - max(damage.start, index.start))
            for log, damage in self.damages
            if log == number
        )

    def _rename(self, names: list[Segment], why: str) -> None:
        for number, (old, new) in enumerate(zip(self.names, names, strict=True)):
            if old != new:
                self.renamed.append((number, new, why))
        self.names = names

    def _by_time(self) -> list[Segment]:
        """The same names, given in the order of the segments' times."""
        times = [self._time(number) for number in range(len(self.names))]
        order = sorted(range(len(self.names)), key=lambda number: (times[number], self.names[number].order))
        result = list(self.names)
        for number, name in zip(order, sorted(self.names, key=lambda segment: segment.order), strict=True):
            result[number] = name
        return result

    def _time(self, number: int) -> float:
        times = self.catalog.time[self.catalog.rows_in(number)]
        times = times[times != NONE]
        return float(np.median(times)) if times.size else float("inf")

    def _disorder(self, names: Sequence[Segment]) -> tuple[int, int]:
        """With these names: how many messages cannot follow those before them, and how many segments come before older ones."""
        order = sorted(range(len(names)), key=lambda number: names[number].order)
        rank = np.empty(len(names), np.int64)
        rank[order] = np.arange(len(names))
        where = rank[self.catalog.segment]
        moved = self.catalog.take(np.lexsort((self.catalog.offset, where)))
        wrong = is_refused(moved, fold(moved, drop=True).wrong).sum() + updates_before_put(moved).sum()
        times = [time for time in (self._time(number) for number in order) if time != float("inf")]
        return int(wrong), sum(before > after for before, after in itertools.pairwise(times))


def _distinct(names: list[Segment], stored: list[Segment]) -> list[Segment]:
    """Different names for all segments: a segment that loses its name to another takes a free one."""
    taken = {new for new, old in zip(names, stored, strict=True) if new != old}
    free = [old for new, old in zip(names, stored, strict=True) if new != old and old not in taken]
    moved = [new == old and new in taken for new, old in zip(names, stored, strict=True)]
    if len(set(names)) < len(names) and sum(moved) != len(names) - len(set(names)):
        return stored
    if sum(moved) > len(free):
        return stored
    return [free.pop(0) if is_moved else new for new, is_moved in zip(names, moved, strict=True)]
