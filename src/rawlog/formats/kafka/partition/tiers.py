"""Tiered storage: which segments of a partition are in remote storage, and which of them are read.

A broker with tiered storage copies finished segments to remote storage and deletes them from its disk later. Both places together are one
log. So the files of remote segments become files of the partition's store, next to those on disk: those that hold offsets before the
first segment on disk are read like any other, and the rest get a word for why not:

- `copied`: the disk has these offsets too, or another copy in remote storage has them;
- `unfinished`, `deleted`: `__remote_log_metadata` says that the copy was not finished, or is being deleted; a broker does not read it;
- `unlisted`: `__remote_log_metadata` knows the partition and not this copy, and it knows another one with the same offsets.

After a change of leader, segments may overlap. As for a broker, the one that begins later has its offsets: the one before it is read only
up to there. Names and small files decide all that; of data, only `__remote_log_metadata` is read, and the end of a segment that may reach
into the next.
"""

from __future__ import annotations

import glob
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.internal.messages import decode_record, framed_types
from rawlog.formats.kafka.internal.topics import partitions, read_records
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.seek import seek
from rawlog.formats.kafka.manifest import (
    ENCRYPTED,
    Manifest,
    read_manifest,
    stored_in,
)
from rawlog.formats.kafka.paths import (
    EPOCHS,
    INTERNAL,
    remote_directory,
    segment_file,
    segment_id,
    split,
)
from rawlog.formats.kafka.texts import topic_id
from rawlog.io.storage import (
    Source,
    exists,
    is_remote,
    is_view,
    listing,
    stored_path,
    view_path,
)
from rawlog.io.walk import walk
from rawlog.model.errors import AccessError, DataError, RawlogError
from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import Elsewhere, File
from rawlog.model.store import Store
from rawlog.model.text import counted

TOPIC = INTERNAL["kafka.remote"]
LARGEST_TEXT = 1 << 20
COPIED, UNLISTED = "copied", "unlisted"
FINISHED = 1
#: Words for the other states of a remote segment.
STATES = {0: "unfinished", 2: "deleted", 3: "deleted"}
#: The formats of a segment's files, by the name of the file that a manifest describes.
MEMBERS = {
    "log": "kafka.log",
    "index": "kafka.index",
    "timeindex": "kafka.timeindex",
    "txnindex": "kafka.txnindex",
    "snapshot": "kafka.snapshot",
    EPOCHS: "kafka.epochs",
}


def attach(files: Sequence[File]) -> Sequence[File]:
    """The files of Kafka in a tree, with remote segments as files of their partitions."""
    return _attach_segments(list(_expand_manifests(files)))


# What is in remote storage ------------------------------------------------------------------------------------------


def _expand_manifests(files: Sequence[File]) -> Iterator[File]:
    """The same files, and those that manifests describe. What is stored in chunks is not a segment by itself."""
    manifests = [file for file in files if file.format == "kafka.manifest"]
    if not manifests:
        yield from files
        return
    read = {file.path: _try_manifest(file.path) for file in manifests if file.problem is None}
    readable = [(file, manifest) for file in manifests if isinstance(manifest := read.get(file.path), Manifest)]
    topics = {
        split(file.path)[0]: topic
        for file, manifest in readable
        if (topic := _manifest_topic(file, manifest)) is not None
    }
    locked = {(split(file.path)[0], segment_id(file.path)) for file, manifest in readable if manifest.is_encrypted}
    chunks = {stored_in(file.path, "log") for file in manifests}
    sizes = {file.path: file.size for file in files}
    for file in files:
        folder = split(file.path)[0]
        if folder in topics:
            file = replace(file, place=replace(file.place, topic=topics[folder]))
        if file.path in chunks:
            file = replace(file, format="kafka.chunks")
        elif file.format in MEMBERS.values() and (folder, segment_id(file.path)) in locked:
            file = replace(file, problem=ENCRYPTED)
        yield file
        if file.path in read:
            yield from _files_in_manifest(file, read[file.path], sizes)


def _try_manifest(path: str) -> Manifest | RawlogError:
    try:
        return read_manifest(path)
    except RawlogError as error:
        return error


def _manifest_topic(file: File, manifest: Manifest) -> str | None:
    """The topic that a manifest names, if its directory has another name for it: the prefix of all keys need not end with a slash."""
    directory = remote_directory(split(file.path)[0])
    if directory is None or manifest.partition is None or directory.topic == manifest.partition[0]:
        return None
    topic, number, topic_id = manifest.partition
    is_same = (
        topic and directory.topic.endswith(topic) and (directory.partition, directory.topic_id) == (number, topic_id)
    )
    return topic if is_same else None


def _files_in_manifest(file: File, manifest: Manifest | RawlogError, sizes: dict[str, int]) -> Iterator[File]:
    """The files that a manifest describes."""
    if isinstance(manifest, RawlogError):
        # What the segment has is unknown; that there is one is not.
        place = replace(file.place, remote=f"{file.place.start_offset or 0:020d}.log")
        path = view_path(file.path, "segment", "log")
        yield File(path, 0, file.modified, "kafka.log", place, f"its manifest cannot be read: {_error_text(manifest)}")
        return
    for name, size in manifest.members():
        local = EPOCHS if name == EPOCHS else f"{file.place.start_offset or 0:020d}.{name}"
        place = replace(file.place, remote=local)
        problem = _problem(manifest, file.path, name, sizes)
        yield File(view_path(file.path, "segment", name), size, file.modified, MEMBERS[name], place, problem)


def _error_text(error: RawlogError) -> str:
    return error.message if isinstance(error, DataError) else str(error)


def _problem(manifest: Manifest, path: str, name: str, sizes: dict[str, int]) -> str | None:
    """Why a file that a manifest describes cannot be read."""
    if manifest.is_encrypted:
        return ENCRYPTED
    stored = stored_in(path, name)
    if stored not in sizes and not exists(stored):
        return f"{split(stored)[1]} does not exist"
    size, end = sizes.get(stored), sum(manifest.indexes.get(name, (0, 0)))
    return None if size is None or size >= end else f"{split(stored)[1]} has {size:,} bytes, it ends at byte {end:,}"


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """A segment as `__remote_log_metadata` has it; `end` is its last offset."""

    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    size: int
    state: int


def list_remote_segments(files: Iterable[File]) -> dict[str, RemoteSegment]:
    """The remote segments in the metadata topic, by id, in their last state. Damage is skipped."""
    logs = [
        file
        for file in files
        if file.format == "kafka.log"
        and file.place.topic == TOPIC
        and file.place.state is None
        and file.problem is None
    ]
    remote_segments: dict[str, RemoteSegment] = {}
    names = {key: schema.name for key, schema in framed_types("remote").items()}
    for segments in partitions(logs):
        for _, batch in read_records(segments, ("value", "is_control"), "skip"):
            columns = (batch.column(name).to_pylist() for name in ("value", "is_control"))
            for value, control in zip(*columns, strict=True):
                if control or not value:
                    continue
                try:
                    key, _, message = decode_record(value, "remote")
                except DataError:
                    continue
                _take_record(remote_segments, names[key], message)
    return remote_segments


def _take_record(remote_segments: dict[str, RemoteSegment], name: str, message: dict[str, Any]) -> None:
    """Add what one record says."""
    if name not in ("RemoteLogSegmentMetadataRecord", "RemoteLogSegmentMetadataUpdateRecord"):
        return
    segment, state = message["remoteLogSegmentId"], int(message["remoteLogSegmentState"])
    number = uuid_text(segment["id"])
    if number in remote_segments:
        # States only advance. Another replica of the metadata topic may say again what the segment was before.
        remote_segments[number] = replace(remote_segments[number], state=max(state, remote_segments[number].state))
    elif name == "RemoteLogSegmentMetadataRecord":
        partition = segment["topicIdPartition"]
        offsets = int(message["startOffset"]), int(message["endOffset"]), int(message["segmentSizeInBytes"])
        remote_segments[number] = RemoteSegment(
            partition["name"], int(partition["partition"]), uuid_text(partition["id"]), *offsets, state
        )


@dataclass(slots=True)
class _Segment:
    """The files of one remote segment. `stop` is the first offset that is not read of it; None: there is none."""

    id: str | None
    start: int
    files: list[File] = field(default_factory=list)
    record: RemoteSegment | None = None
    state: str | None = None
    stop: int | None = None

    @property
    def log(self) -> File | None:
        return next((file for file in self.files if file.format == "kafka.log"), None)

    @property
    def size(self) -> int:
        return 0 if self.log is None else self.log.size


#: Topic, partition, and the topic's id as text if it is known.
_Key = tuple[str, int, str | None]


# One log -------------------------------------------------------------------------------------------------------------


def _attach_segments(files: Sequence[File]) -> list[File]:
    """The files with those of remote segments at their places in the partitions they are of."""
    records = list_remote_segments(files)
    remote: dict[_Key, dict[tuple[str | None, int], _Segment]] = defaultdict(dict)
    for file in files:
        if file.place.remote is None or file.format not in MEMBERS.values():
            continue
        key, segment = _segment_of(file, records)
        if key is not None:
            remote[key].setdefault((segment.id, segment.start), segment).files.append(file)
    disks = _stores_on_disk(files, {(topic, number) for topic, number, _ in remote})
    ids = {(record.topic, record.partition, record.topic_id) for record in records.values()}
    settled: dict[str, File] = {}
    groups: dict[str, str | None] = {}
    for key, by_id in remote.items():
        segments = sorted(by_id.values(), key=lambda segment: (segment.start, segment.record is None, -segment.size))
        settled |= _settle_segments(key, segments, _home_store(key, disks), is_listed=key in ids)
    for path, file in list(settled.items()):
        if is_view(path, "segment"):  # what it is stored in belongs to the partition, too
            manifest = stored_path(path)
            for stored in (manifest, stored_in(manifest, "log"), stored_in(manifest, "index")):
                groups[stored] = file.place.group
    return [settled.get(file.path) or _set_group(file, groups.get(file.path)) for file in files]


def _set_group(file: File, group: str | None) -> File:
    return file if group is None else replace(file, place=replace(file.place, group=group))


def _segment_of(file: File, records: dict[str, RemoteSegment]) -> tuple[_Key | None, _Segment]:
    """The partition and the segment of a file in remote storage."""
    path = stored_path(file.path)
    directory, number = remote_directory(split(path)[0]), segment_id(path)
    record = None if number is None else records.get(number)
    segment = _Segment(number, file.place.start_offset or 0, record=record)
    if record is not None:
        segment.start = record.start
        return (record.topic, record.partition, record.topic_id), segment
    place = file.place
    if place.topic is None or place.partition is None:
        return None, segment
    return (place.topic, place.partition, None if directory is None else directory.topic_id), segment


def _stores_on_disk(files: Iterable[File], wanted: set[tuple[str, int]]) -> dict[tuple[str, int], list[Store]]:
    """The partition directories of brokers that are among the files."""
    groups: dict[str, list[File]] = defaultdict(list)
    for file in files:
        place = file.place
        if place.remote is None and (place.topic, place.partition) in wanted and place.group is not None:
            groups[place.group].append(file)
    stores: dict[tuple[str, int], list[Store]] = defaultdict(list)
    for group in groups.values():
        log_place = next(
            (file.place for file in group if file.format == "kafka.log" and file.place.state is None), None
        )
        if log_place is not None:
            stores[str(log_place.topic), int(log_place.partition or 0)].append(Store(group))
    return stores


def _home_store(key: _Key, disks: dict[tuple[str, int], list[Store]]) -> Store | None:
    """The partition directory that remote segments belong to: of several replicas, the best."""
    topic, number, wanted_id = key
    fitting = [
        store for store in disks.get((topic, number), ()) if wanted_id is None or _topic_id(store) in (None, wanted_id)
    ]
    if len(fitting) < 2:
        return fitting[0] if fitting else None
    from rawlog.formats.kafka.partition.replicas import copies

    ranked = copies(fitting)
    return ranked[0].best if ranked else fitting[0]


def _topic_id(store: Store) -> str | None:
    partition_file = next((file for file in store if file.format == "kafka.partition" and file.problem is None), None)
    if partition_file is None:
        return None
    try:
        with Source(partition_file.path) as source:
            return uuid_text(topic_id(source.read(0, min(source.size, LARGEST_TEXT))))
    except (RawlogError, ValueError):
        return None


def _settle_segments(
    key: _Key, segments: Sequence[_Segment], home: Store | None, *, is_listed: bool
) -> dict[str, File]:
    """The files of a partition's remote segments, by their paths, as they are to be read."""
    folder = (
        home.path if home is not None else min(file.place.group or "" for segment in segments for file in segment.files)
    )
    local = [] if home is None else [file for file in home if file.format == "kafka.log" and file.place.state is None]
    begin = min((file.place.start_offset or 0 for file in local), default=None)
    _decide(segments, begin, is_listed=is_listed)
    has_epochs = home is not None and any(file.format == "kafka.epochs" and file.place.state is None for file in home)
    snapshots = {file.place.start_offset for file in home or () if file.format == "kafka.snapshot"}
    read = [segment for segment in segments if segment.state is None]
    settled: dict[str, File] = {}
    for segment in segments:
        cut = _cut_position(segment) if segment.state is None else None
        for file in segment.files:
            place = replace(file.place, topic=key[0], partition=key[1], group=folder, state=segment.state)
            if file.format == "kafka.log":
                place = replace(place, start_offset=segment.start)
                if cut is not None:
                    path = view_path(file.path, "first", cut)
                    settled[file.path] = File(path, cut, file.modified, file.format, place)
                    continue
            elif file.format == "kafka.epochs":
                # Those of the last segment have those of all before it, and a broker's own file has all of them.
                is_read = segment.state is None and not has_epochs and segment is read[-1]
                place = replace(place, start_offset=None, state=None if is_read else segment.state or COPIED)
            elif file.format == "kafka.snapshot":
                end = segment.record.end + 1 if segment.record is not None else segment.stop
                is_read = segment.state is None and cut is None and end is not None and end not in snapshots
                place = replace(place, start_offset=end, state=None if is_read else segment.state or COPIED)
            elif cut is not None:
                place = replace(place, state=COPIED)  # its entries lead to what is not read
            settled[file.path] = replace(file, place=place)
    return settled


def _decide(segments: Sequence[_Segment], begin: int | None, *, is_listed: bool) -> None:
    """Decide which remote segments of a partition are read, and up to which offset. `begin` is the first offset on disk."""
    read: list[_Segment] = []
    reached = NONE
    for segment in segments:
        if segment.record is not None and segment.record.state == FINISHED:
            reached = max(reached, segment.record.end)
        if segment.record is None and is_listed and segment.start <= reached:
            segment.state = UNLISTED
        elif segment.record is not None and segment.record.state != FINISHED:
            segment.state = STATES.get(segment.record.state, UNLISTED)
        elif (begin is not None and segment.start >= begin) or (read and _is_inside(segment, read[-1])):
            segment.state = COPIED
        elif segment.log is not None:
            read.append(segment)
    for segment, following in pairwise(read):
        segment.stop = following.start
    if read:
        read[-1].stop = begin


def _is_inside(segment: _Segment, before: _Segment) -> bool:
    """Whether another segment has all that a later one has."""
    if segment.record is None or before.record is None:
        return segment.start == before.start
    return segment.record.end <= before.record.end


def _cut_position(segment: _Segment) -> int | None:
    """The position of the first offset that is not read of a segment; None if there is none."""
    from rawlog.formats.kafka import LOG

    log, stop = segment.log, segment.stop
    if log is None or log.problem is not None or stop is None:
        return None
    if segment.record is not None and segment.record.end < stop:
        return None
    try:
        for frames in walk(log, LOG, start=seek(log, segment.files, stop, None) or None, errors="stop"):
            head = heads(frames, check_crc=False)
            late = np.flatnonzero(head["base_offset"] >= stop)
            if late.size:
                return int(frames.positions[late[0]])
    except RawlogError:
        return None
    return None


def elsewhere(files: Sequence[File]) -> list[Elsewhere]:
    """The partitions with segments only in remote storage that is not among the files. The list of these segments is among the files, or
    next to a partition that was named alone.
    """
    remote = _remote_files(files)
    lacking: dict[tuple[str, int], list[RemoteSegment]] = defaultdict(list)
    for number, record in (list_remote_segments(files) or list_remote_segments(_metadata_segments_near(files))).items():
        has_log = any(file.format == "kafka.log" for file in remote.get(number, ()))
        if record.state == FINISHED and not has_log:
            lacking[record.topic, record.partition].append(record)
    partitions_elsewhere = []
    for (topic, partition), stores in sorted(_stores_on_disk(files, set(lacking)).items()):
        for store in stores:
            logs = [file for file in store if file.format == "kafka.log" and file.place.state is None]
            begin = min(file.place.start_offset or 0 for file in logs)
            store_id = _topic_id(store)
            absent = [
                record
                for record in lacking[topic, partition]
                if record.start < begin and store_id in (None, record.topic_id)
            ]
            if absent:
                first, last = (
                    min(record.start for record in absent),
                    min(begin - 1, max(record.end for record in absent)),
                )
                text = (
                    f"{topic}-{partition}: offsets {first:,} to {last:,} are in remote storage ({counted(len(absent), 'segment')} "
                    "according to __remote_log_metadata), which is not among the sources"
                )
                partitions_elsewhere.append(Elsewhere(topic, partition, str(store.path), text))
    return partitions_elsewhere


def _metadata_segments_near(files: Iterable[File]) -> Iterator[File]:
    """The segments of the metadata topic in the log directories that partitions are in."""
    match = segment_file("log")
    folders = {split(str(file.place.group))[0] for file in files if file.place.group and file.place.remote is None}
    for folder in sorted(path for path in folders if path and not is_remote(path)):
        try:
            for entry in listing(f"{glob.escape(folder)}/{TOPIC}-*"):
                place = match(entry.path)
                if place is not None and place.state is None and entry.problem is None:
                    yield File(entry.path, entry.size, entry.modified, "kafka.log", place)
        except AccessError:
            continue  # there is none


def has_remote(store: Iterable[File]) -> bool:
    """Whether some of a partition's log is read from remote storage."""
    return any(
        file.place.remote is not None and file.format == "kafka.log" and file.place.state is None for file in store
    )


# Checks --------------------------------------------------------------------------------------------------------------


def _remote_files(files: Sequence[File]) -> dict[str, list[File]]:
    """The files in remote storage by the ids of their segments."""
    by_id: dict[str, list[File]] = defaultdict(list)
    for file in files:
        number = segment_id(stored_path(file.path)) if file.place.remote is not None else None
        if number is not None and file.format in MEMBERS.values():
            by_id[number].append(file)
    return by_id


def _remote_segments(store: Store) -> dict[str, RemoteSegment]:
    return list_remote_segments(store) if any(file.place.remote is not None for file in store) else {}


@rule("kafka.remote.missing", Severity.ERROR)
def missing(files: Sequence[File]) -> Iterator[Mark]:
    """`__remote_log_metadata` lists a segment as copied, and it is not in remote storage, although other segments of the partition are.

    A broker answers fetches of its offsets with an error. Look for the objects in a backup of the bucket, or among its old versions.
    """
    store = Store.of(files)
    remote = _remote_files(files)
    present = {(file.place.topic, file.place.partition) for segment_files in remote.values() for file in segment_files}
    for number, record in sorted(
        store.share(_remote_segments).items(), key=lambda item: (item[1].topic, item[1].start)
    ):
        has_log = any(file.format == "kafka.log" for file in remote.get(number, ()))
        if record.state == FINISHED and not has_log and (record.topic, record.partition) in present:
            message = f"segment {number} of {record.topic}-{record.partition}, offsets {record.start} to {record.end}, is missing"
            yield Mark(message, offset=record.start, path=_folder(remote, record))


def _folder(remote: dict[str, list[File]], record: RemoteSegment) -> str | None:
    """The directory in remote storage that has the other segments of a partition."""
    for segment_files in remote.values():
        for file in segment_files:
            if (file.place.topic, file.place.partition) == (record.topic, record.partition):
                return split(stored_path(file.path))[0]
    return None


@rule("kafka.remote.size", Severity.ERROR)
def wrong_size(files: Sequence[File]) -> Iterator[Mark]:
    """A segment in remote storage is shorter or longer than `__remote_log_metadata` says.

    The copy was cut, or another object has its name. Look for the object in a backup of the bucket.
    """
    store = Store.of(files)
    remote = _remote_files(files)
    for number, record in store.share(_remote_segments).items():
        for file in remote.get(number, ()):
            size = file.size
            if (
                file.format != "kafka.log"
                or record.state != FINISHED
                or is_view(file.path, "first")
                or size == record.size
            ):
                continue
            yield Mark(
                f"{size:,} bytes, {record.size:,} were copied", 0, size, record.start, record.size, size, file.path
            )


@rule("kafka.remote.unread", Severity.INFO)
def unread(files: Sequence[File]) -> Iterator[Mark]:
    """A segment in remote storage is not part of the log: `__remote_log_metadata` does not list it, or says that its copy was not finished
    or that it is being deleted. A broker does not read it, nor does rawlog.

    Brokers leave such objects when they stop while they copy or delete. They cost space and do no harm.
    """
    words = {UNLISTED, *STATES.values()}
    for number, segment_files in sorted(_remote_files(files).items()):
        for file in segment_files:
            if file.format == "kafka.log" and file.place.state in words:
                message = f"segment {number} is not read: {file.place.state}"
                yield Mark(message, offset=file.place.start_offset, path=file.path)


@rule("kafka.remote.unlisted", Severity.WARNING)
def unlisted(files: Sequence[File]) -> Iterator[Mark]:
    """A segment in remote storage has offsets that nothing else has, and `__remote_log_metadata` does not list it, although it lists others
    of the partition. A broker does not serve its records; rawlog reads them.

    Records of the metadata topic are lost, or are newer than the copy of it that was given. `rawlog restore` writes a log with the records.
    """
    store = Store.of(files)
    records = store.share(_remote_segments)
    partitions = {(record.topic, record.partition) for record in records.values()}
    for number, segment_files in sorted(_remote_files(files).items()):
        for file in segment_files:
            partition = (file.place.topic, file.place.partition)
            if (
                file.format == "kafka.log"
                and file.place.state is None
                and number not in records
                and partition in partitions
            ):
                message = f"segment {number} is not listed, and nothing else has its offsets"
                yield Mark(message, offset=file.place.start_offset, path=file.path)


def rules() -> Sequence[Rule[Sequence[File]]]:
    """The rules over remote storage and its metadata topic."""
    return (missing, wrong_size, unread, unlisted)
