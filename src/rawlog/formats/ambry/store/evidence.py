"""What index and bloom files know of messages that a damaged log has lost, or has under a wrong blob id.

No checksum covers a message's key, and a damaged update leaves nothing of itself in the log. Index entries repeat the key and all that an
update did, under a checksum of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import EncodeError, RawlogError
from rawlog.core.frames import Bytes
from rawlog.core.status import OK
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.bloom import Bloom, sound_bloom
from rawlog.formats.ambry.index import Entries, IndexFile, Integers, read_index
from rawlog.formats.ambry.kernels.messages import check_header
from rawlog.formats.ambry.layouts import HEADERS, KEY_V1, KEY_V2, NONE, Kind
from rawlog.formats.ambry.paths import Segment, segment_of, start_of
from rawlog.formats.ambry.reader import Messages, scan
from rawlog.formats.ambry.store.state import PUT, Catalog
from rawlog.formats.ambry.store.store import BlobStore
from rawlog.formats.ambry.writer import update_message
from rawlog.io.storage import Source
from rawlog.kernels import byte_view

LARGEST_HEADER = max(layout.size for layout in HEADERS.values())


@dataclass
class Evidence:
    """The entries of all index files that can be read, those of lost log segments too, and the sound blooms."""

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
        return sorted({index.segment for index in self.files}, key=lambda one: one.order)

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
    found, unread = list(store.indexes), list(store.unread_indexes)
    for files in store.lost_segments().values():
        for file in files:
            try:
                found.append(read_index(file.path))
            except RawlogError:
                unread.append(file.path)
    found.sort(key=lambda index: (index.segment.order, index.start))
    evidence = Evidence(found, {place: bloom for place, (_, bloom) in store.blooms.items()}, frozenset(unread))
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


def most_named(partitions: NDArray[np.int64]) -> int | None:
    """The partition that most keys name; None without keys."""
    known, counts = np.unique(partitions, return_counts=True)
    return int(known[np.argmax(counts)]) if known.size else None


def elect_partition(directory: int | None, files: Iterable[int | None]) -> int | None:
    """The partition of a store, by what its directory and each of its files name: every one of them has one vote, whatever its size.

    So a large segment of another store does not outvote the others. The directory decides between equals, then the first file.
    """
    votes = Counter(number for number in (directory, *files) if number is not None)
    return max(votes, key=lambda number: votes[number], default=None)


def with_partition(key: bytes, partition: int) -> bytes:
    """A key with another partition number."""
    at = KEY_V1.at("partition") if key[1] == 1 else KEY_V2.at("partition")
    return key[:at] + partition.to_bytes(8, "big", signed=True) + key[at + 8 :]


def rekeyed(source: Source, position: int, key: bytes) -> bytes | None:
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
    made = raw[: layout.size] + key + raw[first:]
    frames = scan(np.frombuffer(made, np.uint8), 0)
    if len(frames) != 1 or frames.reached != size:
        return None
    return made if Messages(frames).is_whole[0] else None


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
    return all(int(mine[row]) == int(theirs[entry]) for mine, theirs in facts)


def message_of(entries: Entries, entry: int) -> bytes:
    """The update that an index entry is of, of the same size as it was if a message of some version has it.

    The index has its time in whole seconds only.
    """
    kind, life = Kind(int(entries.kind[entry])), int(entries.life_version[entry])
    time = int(entries.operation_time[entry])
    first: bytes | None = None
    for header in (3, 2, 1):
        for record in (3, 2, 1):
            try:
                made = update_message(
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
            first = first or made
            if len(made) == int(entries.size[entry]):
                return made
    assert first is not None, "header and record of version 3 hold every update"
    return first


def named_in(data: bytes, partition: int) -> list[bytes]:
    """The blob ids of a partition that can be read in damaged bytes."""
    mark = b"\0\1" + partition.to_bytes(8, "big", signed=True)
    found: dict[bytes, None] = {}
    at = data.find(mark)
    while at >= 0:
        for before in (KEY_V2.at("partition_version"), KEY_V1.at("partition_version")):
            start = at - before
            if start >= 0 and (data[start + 1] == 1) == (before == KEY_V1.at("partition_version")):
                try:
                    found.setdefault(keys.parse(data, start).raw)
                except RawlogError:
                    continue
        at = data.find(mark, at + 1)
    return list(found)
