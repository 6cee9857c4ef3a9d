"""What a store knows of its blobs: all its messages as columns, and the index entries that a live store would have added for them.

A message takes about a hundred bytes here, and some 250 while it is folded, whatever the size of its blob.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.core.frames import Bytes
from rawlog.formats.ambry.index import LATEST_SECOND, Entries, IndexFile, Integers
from rawlog.formats.ambry.kernels import entries as kernels
from rawlog.formats.ambry.keys import Identities, identities
from rawlog.formats.ambry.layouts import NONE, Flag, Kind
from rawlog.formats.ambry.reader import Messages
from rawlog.kernels import byte_view, columns

LIVE, DELETED, EXPIRED = "live", "deleted", "expired"
NEVER, ORPHANS, ALWAYS = kernels.NEVER, kernels.ORPHANS, kernels.ALWAYS
PUT, DELETE, TTL_UPDATE, UNDELETE = (int(kind) for kind in (Kind.PUT, Kind.DELETE, Kind.TTL_UPDATE, Kind.UNDELETE))


def seconds(milliseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Times as index values hold them: one that is unknown, before 1970 or past what they can hold is -1."""
    whole = milliseconds // 1000
    return np.where((milliseconds < 0) | (whole > LATEST_SECOND), NONE, whole)


@dataclass(slots=True)
class Catalog:
    """The messages of a store in log order, a column a fact. Times are in seconds; segments are numbers in their order."""

    key_data: Bytes
    key_start: NDArray[np.int64]
    key_size: NDArray[np.int64]
    identity: Identities
    kind: NDArray[np.int8]
    segment: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    life_version: NDArray[np.int16]
    time: NDArray[np.int32]
    account_id: NDArray[np.int16]
    container_id: NDArray[np.int16]
    expires: NDArray[np.int32]
    content_size: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.kind.size)

    def key(self, row: int) -> bytes:
        """The key of one message."""
        at = int(self.key_start[row])
        return self.key_data[at : at + int(self.key_size[row])].tobytes()

    def take(self, rows: NDArray[np.int64]) -> Catalog:
        """Some of the messages; their columns are copies."""
        made = {name: getattr(self, name)[rows] for name in ("key_start", "key_size", *TYPES)}
        return Catalog(self.key_data, identity=self.identity.take(rows), **made)

    def join(self, other: Catalog) -> Catalog:
        """The messages of two catalogs, one after the other."""
        made = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("key_size", *TYPES)}
        starts = np.concatenate([self.key_start, other.key_start + self.key_data.size])
        identity = Identities(
            *(
                np.concatenate([getattr(self.identity, name), getattr(other.identity, name)])
                for name in ("group", "high", "low")
            )
        )
        return Catalog(
            byte_view(np.concatenate([self.key_data, other.key_data])), key_start=starts, identity=identity, **made
        )

    def rows_in(self, segment: int) -> slice:
        """The rows of the messages of one segment."""
        return slice(*np.searchsorted(self.segment, [segment, segment + 1]).tolist())

    def rows_at(self, segment: int, offsets: Integers) -> NDArray[np.int64]:
        """The rows of the messages that begin at these offsets of a segment; -1 where none does."""
        rows = self.rows_in(segment)
        here = self.offset[rows]
        at = np.searchsorted(here, offsets)
        there = at < here.size
        there[there] = here[at[there]] == offsets[there]
        return np.where(there, at + rows.start, NONE)


TYPES: dict[str, type[np.signedinteger[Any]]] = {
    "kind": np.int8, "segment": np.int32, "offset": np.int64, "size": np.int64, "life_version": np.int16, "time": np.int32,
    "account_id": np.int16, "container_id": np.int16, "expires": np.int32, "content_size": np.int32,
}  # fmt: skip


class CatalogBuilder:
    """Messages on their way into a catalog."""

    def __init__(self) -> None:
        self.columns: dict[str, list[NDArray[np.generic]]] = {name: [] for name in TYPES}
        self.keys: list[Bytes] = []
        self.sizes: list[NDArray[np.int64]] = []
        self.count = 0

    def add(self, messages: Messages, segment: int, chosen: NDArray[np.bool_] | None = None) -> None:
        """Add messages of a segment, by default all that can be read."""
        rows = np.flatnonzero(messages["fault"] == 0 if chosen is None else chosen)
        made = {
            "kind": messages["kind"],
            "segment": np.full(len(messages), segment),
            "offset": messages.frames.positions,
            "size": messages.frames.sizes,
            "life_version": messages["life_version"],
            "time": seconds(messages.times),
            "account_id": messages["account_id"],
            "container_id": messages["container_id"],
            "expires": seconds(messages.expires),
            "content_size": messages["content_size"],
        }
        for name, values in made.items():
            self.columns[name].append(values[rows].astype(TYPES[name]))
        sizes = messages["key_size"][rows]
        keys = columns.spans(messages.data, messages["key_start"][rows], sizes)
        self.keys.append(np.frombuffer(keys.buffers()[2], np.uint8) if len(keys) else np.empty(0, np.uint8))
        self.sizes.append(sizes)
        self.count += rows.size

    def done(self) -> Catalog:
        """All that was added; nothing is left here."""
        key_data = byte_view(np.concatenate([np.empty(0, np.uint8), *self.keys]))
        sizes = np.concatenate([np.empty(0, np.int64), *self.sizes])
        self.keys, self.sizes = [], []
        starts = np.cumsum(sizes) - sizes
        made = {name: np.concatenate([np.empty(0, TYPES[name]), *self.columns.pop(name)]) for name in TYPES}
        return Catalog(key_data, starts, sizes, identities(key_data, starts, sizes), **made)


@dataclass(slots=True)
class Fold:
    """A catalog with the entry of every message, and the state of every blob.

    Of blob number i: `first` is its first message, `found` the entry that findKey answers with (flags and expiry as it gives them) and
    `put` the PUT that holds its content; -1 for none. `blob` is the number of each message's blob.
    """

    catalog: Catalog
    flags: NDArray[np.uint8]
    expires: NDArray[np.int32]
    original: NDArray[np.int64]
    time: NDArray[np.int32]
    account_id: NDArray[np.int16]
    container_id: NDArray[np.int16]
    life_version: NDArray[np.int16]
    wrong: NDArray[np.int8]
    blob: NDArray[np.int64]
    first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    found: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    put: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    found_flags: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    found_expires: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def entries(self) -> Entries:
        """The entries of all messages, in log order."""
        catalog = self.catalog
        return Entries(
            catalog.key_data, catalog.key_start, catalog.key_size, catalog.size, catalog.offset, self.flags, self.expires, self.original,
            self.time, self.account_id, self.container_id, self.life_version,
        )  # fmt: skip

    @property
    def is_deleted(self) -> NDArray[np.bool_]:
        """Which blobs are deleted."""
        result: NDArray[np.bool_] = (self.found >= 0) & (self.found_flags & int(Flag.DELETE) != 0)
        return result

    def is_expired(self, now: int) -> NDArray[np.bool_]:
        """Which blobs have expired at `now` (milliseconds), deleted or not."""
        result: NDArray[np.bool_] = (self.found >= 0) & expired(self.found_expires, now)
        return result

    def states(self, now: int) -> NDArray[np.int8]:
        """0 live, 1 deleted, 2 expired: what each blob is at `now` (milliseconds); -1 if the store does not know it."""
        known = np.where(self.is_deleted, 1, np.where(self.is_expired(now), 2, 0))
        return np.where(self.found >= 0, known, NONE).astype(np.int8)


STATES = (LIVE, DELETED, EXPIRED)


def expired(expires: NDArray[np.int32], now: int) -> NDArray[np.bool_]:
    """Which of these expiries (seconds) lie before `now` (milliseconds)."""
    result: NDArray[np.bool_] = (expires != NONE) & (expires.astype(np.int64) * 1000 < now)
    return result


def is_refused(catalog: Catalog, wrong: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which messages Ambry refuses to start on: those that are wrong, but for an undelete whose life version is lower than before."""
    odd = (wrong == kernels.LOWER_LIFE) & (catalog.kind == UNDELETE)
    result: NDArray[np.bool_] = (wrong != kernels.SOUND) & ~odd
    return result


def fold(
    catalog: Catalog,
    indexes: Iterable[tuple[int, IndexFile]] = (),
    use: int = NEVER,
    *,
    drop: bool = False,
    remembered: Iterable[tuple[NDArray[np.int64], Entries]] = (),
) -> Fold:
    """The entries and states of a catalog's messages.

    `indexes` are sound index files with the numbers of their segments, `remembered` entries with the rows of their messages (-1: none);
    `use` says which of these entries count instead of what the messages say. With `drop` a message that cannot follow what came before
    it counts for nothing.
    """
    count = len(catalog)
    made = Fold(
        catalog,
        np.zeros(count, np.uint8),
        catalog.expires.copy(),
        np.full(count, NONE, np.int64),
        catalog.time.copy(),
        catalog.account_id.copy(),
        catalog.container_id.copy(),
        catalog.life_version.copy(),
        np.zeros(count, np.int8),
        np.empty(count, np.int64),
    )
    order = catalog.identity.sorted()
    new = catalog.identity.begins(order)
    blobs = int(new.sum())
    made.first, made.found, made.put = (np.empty(blobs, np.int64) for _ in range(3))
    made.found_flags, made.found_expires = np.zeros(blobs, np.uint8), np.full(blobs, NONE, np.int32)
    known = np.zeros(count, np.bool_)
    if use != NEVER:
        usable = np.ones(count, np.bool_) if use == ALWAYS else _before_put(catalog.kind, order, new)
        for segment, index in indexes:
            entries = index.entries
            covered = entries.offset + entries.size <= index.end
            _remember(made, np.where(covered, catalog.rows_at(segment, entries.offset), NONE), entries, usable, known)
        for rows, entries in remembered:
            _remember(made, rows, entries, usable, known)
    kernels.fold_entries(
        order, new, catalog.kind, catalog.segment, catalog.offset, catalog.life_version, known, use, drop,
        made.flags, made.expires, made.original, made.account_id, made.container_id, made.wrong, made.blob,
        made.first, made.found, made.put, made.found_flags, made.found_expires,
    )  # fmt: skip
    return made


def updates_before_put(catalog: Catalog) -> NDArray[np.bool_]:
    """Which messages are updates of a blob whose PUT comes after them in the log."""
    order = catalog.identity.sorted()
    new = catalog.identity.begins(order)
    blob = np.empty(order.size, np.int64)
    blob[order] = np.cumsum(new) - 1
    has_put = np.zeros(int(new.sum()), np.bool_)
    has_put[blob[catalog.kind == PUT]] = True
    return _before_put(catalog.kind, order, new) & has_put[blob]


def _before_put(kind: NDArray[np.int8], order: NDArray[np.int64], new: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which messages are updates of a blob whose PUT does not come before them: only the index knows what they inherited."""
    result = np.zeros(order.size, np.bool_)
    if order.size:
        puts = np.cumsum(kind[order] == PUT)
        begins = np.flatnonzero(new)
        before = puts[begins] - (kind[order[begins]] == PUT)
        result[order] = puts == np.repeat(before, np.diff(np.append(begins, order.size)))
    return result


def _remember(
    made: Fold, rows: NDArray[np.int64], entries: Entries, usable: NDArray[np.bool_], known: NDArray[np.bool_]
) -> None:
    """Take over what index entries say of the messages at `rows` that are of the same kind and blob."""
    catalog = made.catalog
    good = rows >= 0
    good[good] = usable[rows[good]] & (entries.kind[good] == catalog.kind[rows[good]])
    good[good] = entries.identities.take(good).equal(catalog.identity.take(rows[good]))
    rows = rows[good]
    known[rows] = True
    made.flags[rows], made.expires[rows] = entries.flags[good], entries.expires[good]
    made.original[rows], made.time[rows] = entries.original_offset[good], entries.operation_time[good]
    made.account_id[rows], made.container_id[rows] = entries.account_id[good], entries.container_id[good]
    made.life_version[rows] = entries.life_version[good]


__all__ = [
    "ALWAYS",
    "NEVER",
    "ORPHANS",
    "STATES",
    "Catalog",
    "CatalogBuilder",
    "Fold",
    "expired",
    "fold",
    "is_refused",
    "seconds",
    "updates_before_put",
]
