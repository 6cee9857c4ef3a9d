"""Which partition directories are replicas of one another, and which of them is the best: by names, sizes, indexes and small files.

A partition is known by its cluster's id, its topic's id, its topic and its number. A topic that was deleted and created again has another
id, so its old directories are not replicas of the new ones. Brokers before 2.4 do not write the cluster's id, and brokers before 2.8 no id
of the topic: then the names decide, unless two directories are of brokers with the same number, which replicas never are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.core.store import Copies, Identity, Store
from rawlog.formats.kafka.checkpoints import CLEANER, HIGH_WATERMARK, offsets_in, parse_epochs
from rawlog.formats.kafka.paths import METADATA_TOPIC, remote_directory, split
from rawlog.formats.kafka.seek import last_indexed
from rawlog.formats.kafka.showing import uuid_bytes
from rawlog.formats.kafka.texts import properties, topic_id
from rawlog.io.storage import Source

LARGEST_TEXT = 1 << 20
META = "meta.properties"


@dataclass(frozen=True, slots=True)
class _Known:
    """What the small files say of a partition directory; None where they do not."""

    cluster: str | None
    topic_id: str | None
    node: str | None

    @property
    def facts(self) -> tuple[str | None, str | None]:
        return self.cluster, self.topic_id

    def fits(self, facts: tuple[str | None, str | None]) -> bool:
        """Whether nothing that is known contradicts."""
        return all(own is None or own == other for own, other in zip(self.facts, facts, strict=True))


def copies(stores: Sequence[Store], known: Callable[[Store], tuple[int, int]] | None = None) -> list[Copies]:
    """The sets of replicas among partition directories, each with the best first.

    `known` gives an epoch and an offset that a directory is known to reach by other files than those of a partition.
    """
    owner: Callable[[str], dict[str, str]] = cache(_properties)
    offsets: Callable[[str, str], Mapping[tuple[str, int], int]] = cache(offsets_in)
    by_name: dict[tuple[str | None, int | None], list[Store]] = defaultdict(list)
    for store in stores:
        by_name[store[0].place.topic, store[0].place.partition].append(store)
    found: list[Copies] = []
    for (topic, partition), some in by_name.items():
        for facts, alike in _alike(some, owner):
            identity = Identity("kafka", f"{topic}-{partition}", tuple(one or "" for one in facts))
            ranks = _ranks(alike, offsets, known or (lambda store: (-1, 0)))
            found.append(Copies.ranked(identity, alike, ranks))
    return found


def facts(store: Store) -> tuple[str, ...]:
    """The ids of the cluster and the topic of a partition directory; empty where they are not known."""
    return tuple(one or "" for one in _known(store, _properties(split(store.path)[0])).facts)


def _alike(
    stores: Sequence[Store], owner: Callable[[str], dict[str, str]]
) -> list[tuple[tuple[str | None, str | None], list[Store]]]:
    """Stores of one name in sets whose ids are the same. What is not known fits if it fits only one set."""
    known = [_known(store, owner(split(store.path)[0])) for store in stores]
    if (
        stores[0][0].place.topic == METADATA_TOPIC
    ):  # there is one of each cluster: without the cluster's id, it may be of any
        named = [at for at, one in enumerate(known) if one.cluster is not None]
        stores, known = [stores[at] for at in named], [known[at] for at in named]
    whole = {one.facts for one in known if None not in one.facts}
    sets: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for at, one in enumerate(known):
        fitting = [facts for facts in whole if one.fits(facts)]
        sets[fitting[0] if len(fitting) == 1 else one.facts].append(at)
    result = []
    for facts, members in sets.items():
        nodes = [known[at].node for at in members if known[at].node is not None]
        unsure = facts == (None, None) and len(set(nodes)) < len(nodes)
        if len(members) > 1 and not unsure:
            result.append((facts, [stores[at] for at in members]))
    return result


def _known(store: Store, owner: dict[str, str]) -> _Known:
    node = owner.get("node.id", owner.get("broker.id"))
    if store[0].place.topic == METADATA_TOPIC:
        return _Known(owner.get("cluster.id"), "", node)
    own = next((file for file in store if file.format == "kafka.partition" and file.problem is None), None)
    found: str | None = None
    remote = remote_directory(store.path)
    try:
        if own is not None:
            found = topic_id(_text(own.path)).hex()
        elif remote is not None:
            found = uuid_bytes(remote.topic_id).hex()
    except (RawlogError, ValueError):
        found = None
    return _Known(owner.get("cluster.id"), found, node)


def _properties(folder: str) -> dict[str, str]:
    """The `meta.properties` of a log directory; nothing if it cannot be read."""
    try:
        return properties(_text(f"{folder}/{META}"))
    except (RawlogError, ValueError):
        return {}


def _text(path: str) -> bytes:
    with Source(path) as source:
        return source.read(0, min(source.size, LARGEST_TEXT))


def _ranks(
    stores: Sequence[Store],
    offsets: Callable[[str, str], Mapping[tuple[str, int], int]],
    known: Callable[[Store], tuple[int, int]],
) -> list[tuple[tuple[int, ...], str]]:
    """How far each replica is: by its last leader epoch, then by its end, then by its high watermark.

    Replicas have the same bytes from a common segment on, unless they were compacted: the longer one is further. Else the last entry
    of the offset index says which offset a replica reaches at least.
    """
    place = stores[0][0].place
    key = (str(place.topic), int(place.partition or 0))
    logs = [_logs(store) for store in stores]
    folders = [split(store.path)[0] for store in stores]
    common = max(set.intersection(*({file.place.start_offset or 0 for file in own} for own in logs)), default=None)
    is_last = all(own and own[-1].place.start_offset == common for own in logs)
    by_bytes = common is not None and (is_last or not any(key in offsets(folder, CLEANER) for folder in folders))
    ranks: list[tuple[tuple[int, ...], str]] = []
    for store, own, folder in zip(stores, logs, folders, strict=True):
        mark = offsets(folder, HIGH_WATERMARK).get(key, -1)
        epoch, reached = known(store)
        epoch, reached = max(epoch, _last_epoch(store)), max(reached, mark)
        if own:
            reached = max(reached, own[-1].place.start_offset or 0)
        if by_bytes:
            end = (sum(file.size for file in own if (file.place.start_offset or 0) >= (common or 0)), reached)
        else:
            reached = max(reached, last_indexed(own[-1], store)) if own else reached
            end = (reached, own[-1].size if own else 0)
        is_readable = not any(file.problem for file in store)
        ranks.append(((int(is_readable), epoch, *end, mark), _evidence(epoch, reached)))
    return ranks


def _evidence(epoch: int, reached: int) -> str:
    texts = [f"leader epoch {epoch}"] if epoch >= 0 else []
    return ", ".join([*texts, f"up to offset {reached:,} at least"] if reached > 0 else texts)


def _logs(store: Store) -> list[File]:
    """The segments that a broker would load, in order."""
    logs = [file for file in store if file.format == "kafka.log" and file.place.state is None and file.problem is None]
    return sorted(logs, key=lambda file: file.place.start_offset or 0)


def _last_epoch(store: Store) -> int:
    """The last leader epoch in which a replica got records; -1 if that is not known."""
    own = next((file for file in store if file.format == "kafka.epochs" and file.problem is None), None)
    try:
        return max((epoch for epoch, _ in parse_epochs(_text(own.path)) or ()), default=-1) if own is not None else -1
    except RawlogError:
        return -1
