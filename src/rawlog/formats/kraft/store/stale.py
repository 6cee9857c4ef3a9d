"""Replicas that may lack records: what the cluster's metadata says of the broker whose directory was given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.store.survey import epochs_in
from rawlog.formats.kraft.store.disks import read_disk
from rawlog.formats.kraft.store.state import State

SHOWN = 20
ADVICE = "records that were committed may be missing; `rawlog rescue` with the disks of all brokers takes them from the others"


def stale_replicas(partitions: Mapping[tuple[str, int], Any], state: State) -> dict[str, str]:
    """Why these directories may lack records, by the name of the partition: their broker was not in sync when the metadata ended."""
    node_of = lru_cache(maxsize=None)(lambda folder: read_disk(folder)[0].node)
    found: dict[str, str] = {}
    for (topic, number), content in sorted(partitions.items()):
        key = state.topic_ids.get(topic)
        known = None if key is None else state.topics[key].partitions.get(number)
        if known is None:
            continue
        node = node_of(split(content.files[0].place.group or "")[0])
        # The last broker that stops leaves the in-sync replicas too, and stays eligible to lead.
        synced = [*known["isr"], *(known["eligibleLeaderReplicas"] or ())] or list(known["lastKnownElr"] or ())
        if node is None or node in synced or not synced:
            continue
        why = f"this replica is of node {node}, which was not in sync ({_numbers(synced)})"
        if node not in known["replicas"]:
            why = f"this replica is of node {node}, which is not among those that have the partition ({_numbers(known['replicas'])})"
        epochs = epochs_in(content.files)
        if epochs is not None and int(epochs[-1][0]) < known["leaderEpoch"]:
            why += f"; its log ends in leader epoch {int(epochs[-1][0])}, the cluster was in {known['leaderEpoch']}"
        found[f"{topic}-{number}"] = why
    return found


def stale_notes(stale: Mapping[str, str]) -> Iterator[str]:
    """A line for each, but not for thousands."""
    for name, why in list(stale.items())[:SHOWN]:
        yield f"{name}: {why}: {ADVICE}"
    if len(stale) > SHOWN:
        yield f"{len(stale) - SHOWN:,} more partitions of which this replica was not in sync"


def passed_end(name: str, committed: int, end: int) -> str:
    """What it means that a group has committed an offset that a log does not reach."""
    return f"{name}: a group has committed offset {committed:,}, this log ends at {end:,}: {ADVICE}"


def _numbers(nodes: Sequence[int]) -> str:
    many = "nodes" if len(nodes) > 1 else "node"
    return f"{many} {', '.join(map(str, sorted(nodes)))}"
