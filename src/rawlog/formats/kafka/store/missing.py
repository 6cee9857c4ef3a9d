"""Partitions that should be in a log directory and are not: decided here for `verify`, `verify --complete`, `repair` and predictions.

A partition is expected in a directory whose `recovery-point-offset-checkpoint` or `replication-offset-checkpoint` lists it, and in the one
that the cluster's metadata assigns it to. Where the metadata names a node and no directory, all directories that the node has
registered must be here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rawlog.core.errors import AccessError
from rawlog.formats.kafka.checkpoints import HIGH_WATERMARK, LOG_START, RECOVERY_POINT, offsets_in
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.store.log_directories import LogDirectory, Node
from rawlog.io.storage import is_remote, listing

#: The checkpoints that a broker writes of the partitions it has, and of no others. (The cleaner's keeps lines of deleted topics.)
COUNTING = (RECOVERY_POINT, HIGH_WATERMARK)
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Missing:
    """A partition of which nothing is there: neither a segment nor, unless `has_directory`, its directory.

    The offsets from `first` to before `stop` are those that `checkpoint` counts; none where no checkpoint lists it.
    - `is_expected`: it should be in this directory; otherwise a broker makes it only if this is all the node has.
    - `is_certain`: it was here; otherwise the broker may never have had it, or only a part of the directory was copied.
    - `is_adding`: the cluster is about to add this replica.
    """

    key: Key
    directory: str
    checkpoint: str | None = None
    first: int = 0
    stop: int = 0
    has_directory: bool = False
    is_adding: bool = False
    is_expected: bool = True
    is_certain: bool = True

    @property
    def is_lost(self) -> bool:
        """Whether something that was here is gone."""
        return self.is_expected and self.is_certain and not self.is_adding

    def __str__(self) -> str:
        name, what = split(self.directory)[1], "has no segment" if self.has_directory else "is not here"
        if self.is_adding:
            return f"{name} {what}: the cluster is about to add this replica"
        if self.checkpoint is None and not self.is_certain:
            return f"{name} {what}: the cluster's metadata assigns it to this directory, and its broker had not made it yet"
        if self.checkpoint is None:
            return f"{name} {what}, although the cluster's metadata assigns it to this directory"
        if self.stop <= self.first:
            return f"{name} {what}, although {split(self.checkpoint)[1]} lists it, without records"
        counted = split(self.checkpoint)[1]
        return f"{name} {what}: offsets {self.first} to {self.stop - 1} are missing, which {counted} counts"


def missing_partitions(node: Node) -> list[Missing]:
    """The partitions that the directories of a node should have and no segment of which is here, by path."""
    there: set[Key] = set()
    for directory in node.directories:
        filled = _with_segments(directory)
        there |= {key for key, path in directory.loaded.items() if path in filled}
    found: dict[Key, Missing] = {}
    for directory in node.directories:
        for missing in (*_counted(node, directory, there), *_assigned(node, directory)):
            if missing.key not in there:
                found.setdefault(missing.key, missing)
    return sorted(found.values(), key=lambda one: one.directory)


def _counted(node: Node, directory: LogDirectory, there: set[Key]) -> Iterator[Missing]:
    """What the checkpoints of a directory list. Directories that were copied without what a log directory says of itself are a part of
    one; a partition that a broker has put aside was deleted or moved; one whose topic the cluster does not know any more is gone rightly.
    Without a metadata log only partitions with records count, and none for certain if more are gone than are there: these were copied.
    """
    starts, known = offsets_in(directory.path, LOG_START), node.assignments
    stops: dict[Key, tuple[int, str]] = {}
    for name in COUNTING:
        for key, stop in offsets_in(directory.path, name).items():
            stops[key] = max(stops.get(key, (-1, "")), (stop, f"{directory.path}/{name}"))
    is_whole = directory.meta is not None or directory.has_metadata
    is_part = known is None and len(stops.keys() - there) > len(stops.keys() & there)
    for key, (stop, checkpoint) in stops.items():
        topic, number = key
        has_directory = key in directory.loaded
        if topic == METADATA_TOPIC or "/" in topic or key in directory.aside:
            continue
        if not has_directory and (not is_whole or (known is not None and not _is_replica(node, key))):
            continue
        first = max(starts.get(key, 0), 0)
        path = f"{directory.path}/{topic}-{number}"
        is_certain = has_directory or known is not None or (stop > first and not is_part)
        is_adding = _is_adding(node, key)
        yield Missing(key, path, checkpoint, first, max(stop, first), has_directory, is_adding, is_certain=is_certain)


def _assigned(node: Node, directory: LogDirectory) -> Iterator[Missing]:
    """What the cluster's metadata assigns to a directory. After a clean stop checkpoints list all that the broker had: it had no other."""
    if node.assignments is None or node.id is None:
        return
    futures = {(one.topic, one.partition) for one in directory.partitions.values() if one.state == "future"}
    for key, assignment in node.assignments.names.items():
        if node.id not in assignment.replicas or key in futures:
            continue
        own = assignment.directory_on(node.id)
        if own is None or own == directory.id:
            path, is_adding = f"{directory.path}/{key[0]}-{key[1]}", _is_adding(node, key)
            is_expected = own is not None or node.is_complete
            yield Missing(
                key,
                path,
                has_directory=key in directory.loaded,
                is_adding=is_adding,
                is_expected=is_expected,
                is_certain=not directory.is_marked,
            )


def _is_replica(node: Node, key: Key) -> bool:
    assert node.assignments is not None
    assignment = node.assignments.names.get(key)
    return assignment is not None and (node.id is None or node.id in assignment.replicas)


def _is_adding(node: Node, key: Key) -> bool:
    assignment = None if node.assignments is None else node.assignments.names.get(key)
    return assignment is not None and node.id in assignment.adding


def _with_segments(directory: LogDirectory) -> set[str]:
    """The partition directories of a log directory that have a segment. A bucket is listed once: every listing is a request."""
    if is_remote(directory.path):
        return {split(entry.path)[0] for entry in listing(directory.path) if entry.path.endswith(".log")}
    return {path for path in directory.loaded.values() if has_segment(path)}


def has_segment(directory: str) -> bool:
    """Whether a partition directory has a segment that a broker would load."""
    try:
        return any(split(one.path)[1].endswith(".log") for one in listing(directory))
    except AccessError:
        return False
