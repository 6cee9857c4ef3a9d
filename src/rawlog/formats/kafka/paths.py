"""Where Kafka keeps what: names of files and directories, those of KRaft too, and what they say of the content."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from rawlog.formats.kafka.log.layouts import BATCH, ENTRY_V0, ENTRY_V1, MAGIC_V2, OUTLINE, SMALLEST_BATCH
from rawlog.model.format import File, Place, UnknownFile
from rawlog.model.layout import Layout

_SEGMENT = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex|snapshot)(?:\.(deleted|cleaned|swap))?")
_DIRECTORY = re.compile(r"(.+)-(\d+)(?:\.[0-9a-f]{32}-(delete|stray|future))?")
#: Offsets are numbers of 63 bits; nothing that says otherwise is believed.
LARGEST_OFFSET = (1 << 63) - 1
_ID = r"[A-Za-z0-9_-]{22}"
#: A file of a segment in remote storage: start offset, id of the segment, what it is.
_COPY = re.compile(rf"(\d{{1,20}})-({_ID})\.([a-z_-]+)")
_REMOTE_DIRECTORY = re.compile(rf"(.+)-(\d+)-({_ID})")
_REMOTE_TOPIC = re.compile(rf"(.+)-({_ID})")
#: The leader epochs of a segment in remote storage, as LocalTieredStorage and as Aiven's plug-in name them.
EPOCHS = "leader-epoch-checkpoint"
REMOTE_EPOCHS = ("leader_epoch_checkpoint", "leader-epoch-checkpoint")
ENTRIES = (ENTRY_V0, ENTRY_V1)
ENTRY_BITS = 0x0B
"""What the attributes of an entry may say: codecs 0 to 3, log append time."""
METADATA_TOPIC = "__cluster_metadata"
#: The file that a broker leaves when it is stopped cleanly.
MARK = ".kafka_cleanshutdown"
#: A directory with indexes of segments in remote storage, which a broker fetches again.
REMOTE_CACHE = "remote-log-index-cache"

OFFSET_CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
)

#: The internal topic that a folded table is made of.
INTERNAL = {
    "kafka.offsets": "__consumer_offsets",
    "kafka.groups": "__consumer_offsets",
    "kafka.transactions": "__transaction_state",
    "kafka.shares": "__share_group_state",
    "kafka.remote": "__remote_log_metadata",
}


def unknown_file(path: str, in_store: bool) -> UnknownFile:
    """What a rewrite does with a file that no format knows. A broker passes over files that it does not know, in a partition and in a log
    directory, but it ends at a directory of a log directory whose name it does not know: nothing of such a one is copied.
    """
    if in_store or "/" not in path:
        return UnknownFile.COPY
    return UnknownFile.REMAKE if path.startswith(f"{REMOTE_CACHE}/") else UnknownFile.LEAVE


def split(path: str) -> tuple[str, str]:
    """The directory and the name of a path or URL."""
    path = path.partition("?")[0] if "://" in path else path
    folder, _, name = path.rpartition("/")
    return folder, name


@lru_cache(maxsize=64)
def directory_place(folder: str) -> Place:
    """What a partition directory's name says: topic, partition, and whether a broker would still load it."""
    match = _DIRECTORY.fullmatch(split(folder)[1])
    if match is None or int(match.group(2)) > 0x7FFF_FFFF:
        return Place(group=folder)
    return Place(match.group(1), int(match.group(2)), group=folder, state=match.group(3))


class PartitionName(NamedTuple):
    """What a broker reads in the name of a partition directory; `state` is its own word for one that it does not serve."""

    topic: str
    partition: int
    state: str | None = None


_ASIDE = re.compile(r"(\S+-\S+)\.\S+-(delete|stray|future)")


def partition_name(name: str) -> PartitionName | None:
    """A directory of a log directory as a broker reads its name; None for one at which it ends."""
    state = next((word for word in ("delete", "stray", "future") if name.endswith(f"-{word}")), None)
    if state is not None:
        if _ASIDE.fullmatch(name) is None:
            return None
        name = name.rpartition(".")[0]
    topic, _, number = name.rpartition("-")
    if not topic or re.fullmatch(r"\+?[0-9]{1,10}", number) is None or int(number) > 0x7FFF_FFFF:
        return None
    return PartitionName(topic, int(number), state)


class RemotePartition(NamedTuple):
    """Whose segments a directory of remote storage has; the topic's id as text."""

    topic: str
    partition: int
    topic_id: str


@lru_cache(maxsize=64)
def remote_directory(folder: str) -> RemotePartition | None:
    """What the name of a directory in remote storage says: `<topic>-<partition>-<topic id>`, as LocalTieredStorage has it, or
    `<topic>-<topic id>/<partition>`, as Aiven's plug-in does. None for another directory.
    """
    above, name = split(folder)
    match = _REMOTE_DIRECTORY.fullmatch(name)
    if match is not None:
        topic, number, topic_id = match.groups()
    else:
        match, number = _REMOTE_TOPIC.fullmatch(split(above)[1]), name
        if match is None or not (number.isascii() and number.isdecimal()):
            return None
        topic, topic_id = match.groups()
    return RemotePartition(topic, int(number), topic_id) if int(number) <= 0x7FFF_FFFF else None


def copy_file(*kinds: str) -> Callable[[str], Place | None]:
    """A matcher for `<start offset>-<segment id>.<kind>`: a file of a segment in remote storage."""

    def match(path: str) -> Place | None:
        folder, name = split(path)
        matched = _COPY.fullmatch(name)
        if matched is None or matched.group(3) not in kinds or int(matched.group(1)) > LARGEST_OFFSET:
            return None
        remote, start = remote_directory(folder), int(matched.group(1))
        local = EPOCHS if matched.group(3) in REMOTE_EPOCHS else f"{start:020d}.{matched.group(3)}"
        if remote is not None:
            return Place(remote.topic, remote.partition, start, folder, remote=local)
        if len(matched.group(1)) < 20:  # such a name alone says too little
            return None
        place = directory_place(folder)
        return Place(place.topic, place.partition, start, folder, place.state, remote=local)

    return match


def segment_id(path: str) -> str | None:
    """The id of the segment that a file in remote storage is of, as text; None where its name has none."""
    match = _COPY.fullmatch(split(path)[1])
    return None if match is None else match.group(2)


def segment_file(extension: str) -> Callable[[str], Place | None]:
    """A matcher for `<20 digits>.<extension>`, also with the suffixes of files that are on their way in or out, and for the same file of a
    segment in remote storage.
    """
    copied = copy_file(extension)

    def match(path: str) -> Place | None:
        if extension not in path:
            return None
        folder, name = split(path)
        matched = _SEGMENT.fullmatch(name)
        if matched is None:
            return copied(path)
        if matched.group(2) != extension or int(matched.group(1)) > LARGEST_OFFSET:
            return None
        remote = remote_directory(folder)
        if remote is not None:  # a plain copy, without an id
            return Place(remote.topic, remote.partition, int(matched.group(1)), folder, matched.group(3), remote=name)
        place = directory_place(folder)  # whose texts all files of the directory share
        return Place(place.topic, place.partition, int(matched.group(1)), place.group, matched.group(3) or place.state)

    return match


def file_named(*names: str) -> Callable[[str], Place | None]:
    """A matcher for files of fixed names in the directory of a partition."""

    def match(path: str) -> Place | None:
        folder, name = split(path)
        return directory_place(folder) if name in names else None

    return match


def top_file(*names: str) -> Callable[[str], Place | None]:
    """A matcher for files of fixed names in a log directory, which is of no topic, also where it is named like a partition (`kafka-1`)."""

    def match(path: str) -> Place | None:
        folder, name = split(path)
        return Place(group=folder) if name in names else None

    return match


def epoch_file(path: str) -> Place | None:
    """A matcher for the leader epochs of a partition, or of a segment in remote storage."""
    return file_named(EPOCHS)(path) or copy_file(*REMOTE_EPOCHS)(path)


def sniff_log(head: bytes, size: int) -> bool:
    """Whether bytes begin with a record batch v2 whose fixed fields agree, or with a whole entry of magic 0 or 1."""
    if len(head) <= OUTLINE.size or _number(head, OUTLINE, "base_offset") < 0:
        return False
    magic = head[OUTLINE.at("magic")]
    if magic == MAGIC_V2:
        return _begins_batch(head, size)
    return magic < len(ENTRIES) and _begins_entry(head, size, ENTRIES[magic])


def _number(head: bytes, layout: Layout, name: str) -> int:
    return int.from_bytes(head[layout.at(name) : layout.after(name)], "big", signed=True)


def _begins_batch(head: bytes, size: int) -> bool:
    if len(head) < BATCH.size:
        return False
    length, count = _number(head, BATCH, "length"), _number(head, BATCH, "record_count")
    return (
        length >= SMALLEST_BATCH
        and _number(head, BATCH, "attributes") >> 7 == 0
        and 0 <= count <= _number(head, BATCH, "last_offset_delta") + 1
        and (length + BATCH.after("length") <= size or count <= length)
    )


def _begins_entry(head: bytes, size: int, layout: Layout) -> bool:
    """Key and value must fill the entry exactly; its checksum decides where all of it is there to be summed."""
    end = layout.after("length") + _number(head, layout, "length")
    if not layout.size + 4 <= end <= size or head[layout.at("attributes")] & ~ENTRY_BITS:
        return False
    value = layout.size + max(_number(head, layout, "key_length"), 0)
    if value + 4 <= len(head):
        length = int.from_bytes(head[value : value + 4], "big", signed=True)
        if value + 4 + max(length, 0) != end:
            return False
    elif end > len(head):
        return False  # a key so long that nothing of this can be seen
    return end > len(head) or zlib.crc32(head[layout.after("crc") : end]) == _number(head, layout, "crc") & 0xFFFF_FFFF


# ----------------------------------------------------------------------------------------------------------------------
# What a broker does first with a partition directory: finish or undo a compaction that was interrupted, and find the segment to append
# to.
# Files are not touched; those that a broker would delete get a word for it in their place, and those it would rename into place are read
# as if it had.


def settle(files: Sequence[File]) -> Sequence[File]:
    """The same files, with the states that a broker's start would give them; remote segments become files of their partitions."""
    if any(file.place.remote is not None for file in files):
        from rawlog.formats.kafka.partition.tiers import attach  # only tiered storage needs what it imports

        files = attach(files)
    groups: dict[str | None, list[File]] = defaultdict(list)
    for file in files:
        groups[file.place.group].append(file)
    settled: dict[str, File] = {}
    for group in groups.values():
        if any(file.place.state == "swap" for file in group):
            group = _finish_swap(group)
            settled |= {file.path: file for file in group}
        settled |= {file.path: file for file in _seal(group)}
    return [settled.get(file.path, file) for file in files]


def _seal(group: list[File]) -> list[File]:
    """The segments of a directory that others follow: a broker appends only to the last one."""
    logs = [file for file in group if file.format == "kafka.log" and file.place.state is None]
    last = max((file.place.start_offset or 0 for file in logs), default=0)
    followed = [file for file in logs if (file.place.start_offset or 0) < last]
    return [replace(file, place=replace(file.place, sealed=True)) for file in followed]


def _finish_swap(group: list[File]) -> list[File]:
    """A directory in which a compaction had come as far as its last step."""
    from rawlog.formats.kafka.partition.rules import end_offset

    cleaned = [file.place.start_offset or 0 for file in group if file.place.state == "cleaned"]
    undone = min(cleaned, default=1 << 63)
    ready = {file.path for file in group if file.place.state == "swap" and (file.place.start_offset or 0) < undone}
    logs = [file for file in group if file.path in ready and split(file.path)[1].endswith(".log.swap")]
    # Where the logs have their names already, what is next to them still gets its own.
    low = min((file.place.start_offset or 0 for file in logs), default=0)
    high = max((end_offset([file]) for file in logs), default=0)
    renamed = {path.removesuffix(".swap") for path in ready}
    result = []
    for file in group:
        start = file.place.start_offset
        if file.path in ready:
            file = replace(file, place=replace(file.place, state=None))
        elif file.place.state is None and start is not None and (low <= start < high or file.path in renamed):
            file = replace(file, place=replace(file.place, state="replaced"))
        result.append(file)
    return result


# The metadata directory of KRaft -------------------------------------------------------------------------------------------------

_CHECKPOINT = re.compile(r"(\d{20})-(\d{10})\.checkpoint(?:\.(deleted|part))?")
_PART = re.compile(r"(\d{20})-(\d{10})-.+\.checkpoint\.(part)")
BOOTSTRAP = "bootstrap.checkpoint"
METADATA_DIRECTORY = f"{METADATA_TOPIC}-0"
CHECKPOINT_FORMAT, QUORUM_FORMAT, LOG_FORMAT = "kraft.checkpoint", "kraft.quorum", "kafka.log"


def snapshot_id(path: str) -> tuple[int, int] | None:
    """The end offset and epoch in the name of a snapshot; None for another file."""
    name = split(path)[1]
    match = _CHECKPOINT.fullmatch(name) or _PART.fullmatch(name)
    return None if match is None else (int(match.group(1)), int(match.group(2)))


def segment_name(offset: int) -> str:
    """The name of a segment of the log that begins at an offset."""
    return f"{offset:020d}.log"


def is_bootstrap(path: str) -> bool:
    """Whether a file is the one a new cluster starts from."""
    return split(path)[1] == BOOTSTRAP


def is_checkpoint(path: str) -> Place | None:
    """A snapshot of the metadata (`<offset>-<epoch>.checkpoint`), or the one a new cluster starts from."""
    folder, name = split(path)
    if name == BOOTSTRAP:
        return Place(group=folder)
    match = _CHECKPOINT.fullmatch(name) or _PART.fullmatch(name)
    if match is None:
        return None
    place = directory_place(folder)
    return Place(place.topic, place.partition, int(match.group(1)), folder, match.group(3) or place.state)


def is_metadata_log(file: File) -> bool:
    """Whether a file is a segment of a metadata log that a controller would load."""
    return file.format == LOG_FORMAT and file.place.topic == METADATA_TOPIC and file.place.state is None


def takes(table: str | None, file: File) -> bool:
    """Which files the family's tables are made of and its rules look at: its own, and the segments of the metadata log.

    A segment that is alone may be one: the table of records takes it too. Everything in a metadata directory is the family's to repair,
    also where the log itself is gone.
    """
    if file.format in (CHECKPOINT_FORMAT, QUORUM_FORMAT):
        return table is None or (file.format == CHECKPOINT_FORMAT and file.place.state is None)
    if table is None:
        return file.system == "kafka" and file.place.topic == METADATA_TOPIC and file.place.state is None
    alone = table == "kraft.metadata" and file.format == LOG_FORMAT and file.place.topic is None
    return is_metadata_log(file) or alone


def contradicted(group: Sequence[File], file: File, end: int) -> Iterator[str]:
    """That a segment is of another metadata log than those before it, for verbs that look."""
    segments = tuple(member for member in group if is_metadata_log(member))
    if file not in segments or len(segments) < 2:
        return
    from rawlog.formats.kafka.cluster.metadata_log import foreign_segments

    reason = foreign_segments(tuple(member for member in group if takes("kraft.topics", member))).get(file.path)
    if reason is not None:
        yield f"a segment of another metadata log: {reason}"
