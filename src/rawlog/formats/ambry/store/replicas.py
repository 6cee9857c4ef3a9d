"""Which stores are replicas of one partition, and which is the best.

Replicas of an Ambry partition get the same blobs in different orders, and compact them at different times, so their logs cannot be compared
by names and sizes. The one with the most index entries knows most operations.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry import split, store_name
from rawlog.formats.ambry.keys import Identities, text_of
from rawlog.formats.ambry.layouts import HEADERS, NONE, Flag
from rawlog.formats.ambry.store.state import STATES, Fold
from rawlog.formats.ambry.store.store import BlobStore, now_of, with_logs
from rawlog.io.checksums import crc32
from rawlog.io.storage import Source
from rawlog.model.difference import Change, Difference
from rawlog.model.errors import OptionError
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import File, Replicas
from rawlog.model.store import Copies, Identity, Store

#: Marks of a replica that is not complete yet, or is being removed.
UNFINISHED = ("bootstrap_in_progress", "decommission_in_progress", "file_copy_in_progress")


def copies(stores: Sequence[Store]) -> list[Copies]:
    """The sets of replicas, each with the best first."""
    by_name: dict[str, list[Store]] = defaultdict(list)
    for store in stores:
        by_name[str(store_name(store))].append(store)
    return [
        Copies.ranked(Identity("ambry", f"partition {name}"), group, [_rank(store) for store in group])
        for name, group in by_name.items()
        if len(group) > 1
    ]


def _rank(store: Store) -> tuple[tuple[int, ...], str]:
    names = {split(file.path)[1] for file in store}
    is_whole = not names & set(UNFINISHED) and not any(file.problem for file in store)
    index = sum(file.size for file in store if file.format == "ambry.index" and file.place.state is None)
    logs = sum(file.size for file in store if file.format == "ambry.log" and file.place.state is None)
    return (int(is_whole), index, logs), f"{index:,} bytes of index" + ("" if is_whole else ", not complete")


# ----------------------------------------------------------------------------------------------------------------------
# Two replicas of one partition against each other: which blobs differ, and how.
# Replicas write in the order in which they receive, and compact by themselves: what counts is the state of each blob and its content, not
# where they are.


BLOB, STORE = "blob", "store"
DELETED = STATES.index("deleted")
COLUMNS = ("state", "life_version", "expires", "ttl_updated", "account_id", "container_id")


@dataclass(slots=True)
class _Side:
    """The blobs of a store that it knows, sorted by identity."""

    store: BlobStore
    folded: Fold
    rows: NDArray[np.int64]
    identity: Identities
    states: NDArray[np.int8]

    @classmethod
    def of(cls, store: BlobStore, now: int) -> _Side:
        folded = store.state
        identity = folded.catalog.identity.take(folded.first)
        order = identity.sorted()
        rows = order[folded.answer[order] >= 0]
        return cls(store, folded, rows, identity.take(rows), folded.states(now))

    def column(self, name: str, blobs: NDArray[np.int64]) -> NDArray[np.int64]:
        """A fact of some blobs, as numbers."""
        folded = self.folded
        answer = folded.answer[blobs]
        values: Any = {
            "state": self.states[blobs],
            "life_version": folded.life_version[answer],
            "expires": folded.answer_expires[blobs],
            "ttl_updated": folded.answer_flags[blobs] & int(Flag.TTL_UPDATE) != 0,
            "account_id": folded.account_id[answer],
            "container_id": folded.container_id[answer],
        }[name]
        return values.astype(np.int64)  # type: ignore[no-any-return]

    def fact(self, name: str, blob: int) -> Any:
        """A fact of one blob, as people and JSON show it."""
        value = int(self.column(name, np.array([blob]))[0])
        if name == "state":
            return STATES[value]
        if name == "expires":
            return None if value == NONE else value
        return bool(value) if name == "ttl_updated" else value

    def key(self, blob: int) -> str:
        return text_of(self.folded.catalog.key(int(self.folded.first[blob])))

    def place(self, blob: int) -> tuple[str, int | None]:
        """Where a blob's content is, or else its last entry."""
        catalog, put = self.folded.catalog, int(self.folded.put[blob])
        row = put if put >= 0 else int(self.folded.answer[blob])
        return self.store.logs[int(catalog.segment[row])].path, int(catalog.offset[row])

    def content(self, blobs: NDArray[np.int64]) -> Iterator[tuple[int, int] | None]:
        """Size and checksum of each blob's PUT after header and key, whose versions may differ; None without a PUT."""
        catalog, opened = self.folded.catalog, {}
        try:
            for put in self.folded.put[blobs].tolist():
                if put < 0:
                    yield None
                    continue
                number = int(catalog.segment[put])
                if number not in opened:
                    opened[number] = Source(self.store.logs[number].path)
                raw = opened[number].read(int(catalog.offset[put]), int(catalog.size[put]))
                first = HEADERS[int.from_bytes(raw[:2], "big")].size + int(catalog.key_size[put])
                yield len(raw) - first, crc32(raw, first)
        finally:
            for source in opened.values():
                source.close()


def compare_stores(
    first: BlobStore, second: BlobStore, now: int
) -> Iterator[tuple[Difference, str | None, int | None] | int]:
    """What two stores do not agree on, blob by blob, each with its place; and how many blobs are alike.

    A blob that is deleted on both sides may have lost its content on one of them.
    """
    a, b = _Side.of(first, now), _Side.of(second, now)
    in_a, in_b = _common(a.identity, b.identity)
    for side, shared, change in ((a, in_a, Change.ONLY_A), (b, in_b, Change.ONLY_B)):
        is_alone = np.ones(side.rows.size, np.bool_)
        is_alone[shared] = False
        for blob in side.rows[is_alone].tolist():
            yield Difference(change, BLOB, side.key(blob)), *side.place(blob)
    rows_a, rows_b = a.rows[in_a], b.rows[in_b]
    unlike = np.zeros((len(COLUMNS), rows_a.size), np.bool_)
    for number, name in enumerate(COLUMNS):
        unlike[number] = a.column(name, rows_a) != b.column(name, rows_b)
    is_deleted = (a.states[rows_a] == DELETED) & (b.states[rows_b] == DELETED)
    content = np.zeros(rows_a.size, np.bool_)
    order = np.argsort(a.folded.put[rows_a], kind="stable")  # the first store is read from front to back
    order = order[~is_deleted[order]]
    sums = {}
    for index, sum_a, sum_b in zip(order.tolist(), a.content(rows_a[order]), b.content(rows_b[order]), strict=True):
        if sum_a != sum_b:
            content[index], sums[index] = True, (sum_a, sum_b)
    different = unlike.any(axis=0) | content
    for index in np.flatnonzero(different).tolist():
        names = tuple(name for number, name in enumerate(COLUMNS) if unlike[number, index])
        facts = [
            {name: side.fact(name, int(rows[index])) for name in names} for side, rows in ((a, rows_a), (b, rows_b))
        ]
        if index in sums:
            names += ("content",)
            for fact, checksum in zip(facts, sums[index], strict=True):
                fact["content"] = None if checksum is None else {"size": checksum[0], "crc32": f"{checksum[1]:08x}"}
        blob = int(rows_a[index])
        yield Difference(Change.DIFFERS, BLOB, a.key(blob), columns=names, a=facts[0], b=facts[1]), *a.place(blob)
    yield int(rows_a.size - different.sum())


def _common(a: Identities, b: Identities) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of the blobs that are in both sorted lists."""
    both = Identities(*(np.concatenate((getattr(a, name), getattr(b, name))) for name in ("group", "high", "low")))
    order = both.sorted()
    is_repeated = ~both.begins(order)
    second = np.flatnonzero(is_repeated)
    return order[second - 1], order[second] - len(a)


def compare(a: Sequence[File], b: Sequence[File], selection: Any) -> Iterator[Difference | int]:
    """What the stores of both sides do not agree on. The option `now` says when; without it blobs do not expire.

    OptionError if several stores of one side have the same name.
    """
    stores_a, stores_b = ({_label(store): store for store in with_logs(files)} for files in (a, b))
    if len(stores_a) == len(stores_b) == 1:
        stores_a, stores_b = ({"": store} for group in (stores_a, stores_b) for store in group.values())
    for name in dict.fromkeys((*stores_a, *stores_b)):
        first, second = stores_a.get(name), stores_b.get(name)
        if first is None or second is None:
            present = first or second
            assert present is not None
            yield Difference(Change.ONLY_B if first is None else Change.ONLY_A, STORE, present.folder)
            continue
        for difference in compare_stores(first, second, _now(selection.options)):
            yield difference if isinstance(difference, int) else difference[0]


def _label(store: BlobStore) -> str:
    """The directory's own name: the partition's number."""
    return os.path.basename(store.folder.rstrip("/"))


def _now(options: Any) -> int:
    return now_of(options) if options.get("now") else 0


def _differences(replicas: Replicas) -> list[tuple[Difference, str | None, int | None]]:
    sides = [with_logs(files) for files in (replicas.a, replicas.b)]
    if any(len(side) != 1 for side in sides):
        raise OptionError(f"{replicas.name}: one store on each side expected")
    return [difference for difference in compare_stores(sides[0][0], sides[1][0], 0) if not isinstance(difference, int)]


@rule("ambry.replica.missing", Severity.ERROR)
def missing(replicas: Replicas) -> Iterator[Mark]:
    """A replica does not know a blob that the other one knows: it is not up to date, or lost it.

    Replication brings what is missing as long as one replica has it.
    """
    for difference, path, position in replicas.share(_differences):
        if difference.change is not Change.DIFFERS:
            who = "the other replica" if difference.change is Change.ONLY_A else "this replica"
            yield Mark(f"blob {difference.name}: {who} does not know it", path=path, position=position)


@rule("ambry.replica.state", Severity.ERROR)
def state(replicas: Replicas) -> Iterator[Mark]:
    """A blob is in another state on the other replica: deleted, undeleted or given another time to live on one of them only."""
    for difference, path, position in replicas.share(_differences):
        names = [name for name in difference.columns if name != "content"]
        if difference.change is Change.DIFFERS and names:
            values = [
                ", ".join(f"{name} {(side or {})[name]}" for name in names) for side in (difference.b, difference.a)
            ]
            message = f"blob {difference.name}: another state on the other replica"
            yield Mark(message, path=path, position=position, expected=values[0], found=values[1])


@rule("ambry.replica.content", Severity.ERROR)
def content(replicas: Replicas) -> Iterator[Mark]:
    """A blob that is not deleted has other content, properties or user metadata on the other replica, or none at all.

    If damage is the reason, the checksums of the message tell which replica is damaged.
    """
    for difference, path, position in replicas.share(_differences):
        if "content" in difference.columns:
            values = [(side or {})["content"] for side in (difference.b, difference.a)]
            message = f"blob {difference.name}: other content on the other replica"
            yield Mark(message, path=path, position=position, expected=values[0] or "none", found=values[1] or "none")


def rules() -> Sequence[Rule[Any]]:
    """The rules over two replicas of a store."""
    return (missing, state, content)
