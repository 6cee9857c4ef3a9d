"""Two clusters, or two replicas of one, against each other: which settings of the folded state differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rawlog.core.difference import Change, Difference
from rawlog.core.errors import OptionError
from rawlog.core.format import File
from rawlog.formats.kraft.reader import option
from rawlog.formats.kraft.store.fold import ROWS_OF
from rawlog.formats.kraft.store.history import differences
from rawlog.formats.kraft.store.replica import At, Replica, clusters

CHANGES = {"removed": Change.ONLY_A, "added": Change.ONLY_B, "changed": Change.DIFFERS}
CLUSTER = "cluster"


def compare(a: Sequence[File], b: Sequence[File], selection: Any) -> Iterator[Difference | int]:
    """What the clusters of both sides do not agree on: topics, partitions, brokers, settings … A number says how many rows are alike.

    The options atOffset, atTimestamp and showSecrets count for both. OptionError if a side holds several clusters.
    """
    one, other = _only(a, "A"), _only(b, "B")
    if one is None or other is None:
        lone = one or other
        if lone is not None and not _narrowed(selection):
            change = Change.ONLY_B if one is None else Change.ONLY_A
            yield Difference(change, CLUSTER, lone.cluster_id or lone.folder)
        return
    at = At.of(selection.options)
    before, after = (replica.fold(at, selection.errors) for replica in (one, other))
    shown = (option(selection.options, "showSecrets") or "").lower() in ("true", "1", "yes")
    unlike = 0
    for found in differences(before, after, show_secrets=shown):
        row = found.after or found.before or {}
        only_settings = found.change == "changed" and not found.fields and found.table == "topics"
        if only_settings or not _wanted(found.table, row, selection):
            continue  # settings are told by themselves
        unlike += found.before is not None
        columns = tuple(found.fields) if found.change == "changed" else ()
        sides = [None if side is None else _shown(side, columns) for side in (found.before, found.after)]
        yield Difference(CHANGES[found.change], found.table, found.key, columns=columns, a=sides[0], b=sides[1])
    rows = sum(_wanted(table, row, selection) for table, make in ROWS_OF.items() for row in make(before, False))
    yield max(0, rows - unlike)


def _only(files: Sequence[File], side: str) -> Replica | None:
    """The one cluster of a side: of its replicas the one that knows most."""
    found = clusters(files)
    if len({replica.cluster_id for replica in found}) > 1:
        raise OptionError(f"{side} holds the metadata of {len(found)} clusters: name the directory of one")
    return max(found, key=lambda replica: replica.furthest, default=None)


def _narrowed(selection: Any) -> bool:
    """Whether only some topics are asked for: whether there is a cluster is not the question then."""
    return bool(selection.topics or selection.topic_pattern or selection.partitions)


def _wanted(table: str, row: dict[str, Any], selection: Any) -> bool:
    if not selection.topics:
        return True
    topic = row.get("topic") if table != "configs" or row["resource_type"] != "topic" else row["resource_name"]
    return topic is not None and any(fnmatchcase(topic, glob) for glob in selection.topics)


def _shown(row: dict[str, Any], columns: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if (not columns or name in columns) and name != "configs"}
