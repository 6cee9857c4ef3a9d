"""Where KRaft keeps what: the metadata directory `__cluster_metadata-0`, its snapshots, and the files next to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rawlog.formats.kafka.paths import METADATA_TOPIC, directory_place, split
from rawlog.model.format import File, Place

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
