"""What a store knows of its blobs: the entries of its index, added as a live store adds them and asked as it asks them.

Authority: PersistentIndex (findKey, markAsDeleted, markAsPermanent, markAsUndeleted), specification §10.3 and §15.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rawlog.formats.ambry.keys import order
from rawlog.formats.ambry.layouts import NONE, Flag, Kind

LATEST_SECOND = (1 << 31) - 1
LIVE, DELETED, EXPIRED = "live", "deleted", "expired"


@dataclass(slots=True)
class Entry:
    """One entry of the index, with the log segment (its number in the order of segments) it lies in."""

    key: bytes
    segment: int
    offset: int
    size: int
    flags: int
    expires: int
    original: int
    time: int
    account_id: int
    container_id: int
    life_version: int
    content_size: int = NONE

    @property
    def kind(self) -> Kind:
        if self.flags & Flag.DELETE:
            return Kind.DELETE
        if self.flags & Flag.UNDELETE:
            return Kind.UNDELETE
        return Kind.TTL_UPDATE if self.flags & Flag.TTL_UPDATE else Kind.PUT

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset


@dataclass(frozen=True, slots=True)
class Operation:
    """A message as the index sees it. `expires` and `time` are milliseconds."""

    kind: Kind
    key: bytes
    segment: int
    offset: int
    size: int
    life_version: int
    time: int
    account_id: int
    container_id: int
    expires: int = NONE
    content_size: int = NONE


def seconds(milliseconds: int) -> int:
    """A time as index values hold it; -1 where it is unknown."""
    return NONE if milliseconds == NONE else milliseconds // 1000


def expiry_seconds(milliseconds: int) -> int:
    """An expiry as index values hold it: one that is past what they can hold, or before 1970, is never."""
    if milliseconds < 0 or milliseconds // 1000 > LATEST_SECOND:
        return NONE
    return milliseconds // 1000


class Ledger:
    """All entries, by blob."""

    def __init__(self) -> None:
        self.blobs: dict[bytes, list[Entry]] = {}

    def add(self, entry: Entry, identity: bytes | None = None) -> None:
        self.blobs.setdefault(identity or order(entry.key), []).append(entry)

    def apply(self, operation: Operation, identity: bytes | None = None) -> Entry:
        """Add the entry that a live store would add for a message, and return it."""
        identity = identity or order(operation.key)
        entry = self._entry(operation, identity)
        self.add(entry, identity)
        return entry

    def _entry(self, message: Operation, identity: bytes) -> Entry:
        entry = Entry(
            message.key,
            message.segment,
            message.offset,
            message.size,
            0,
            expiry_seconds(message.expires),
            NONE,
            seconds(message.time),
            message.account_id,
            message.container_id,
            message.life_version,
            message.content_size,
        )
        if message.kind is Kind.PUT:
            entry.original = message.offset
            return entry
        entry.expires = NONE
        before = self.blobs.get(identity)
        previous = before[-1] if message.kind is Kind.UNDELETE and before else self.find(identity)
        flags = 0 if previous is None else previous.flags
        if previous is not None:
            entry.account_id, entry.container_id = previous.account_id, previous.container_id
            entry.expires = previous.expires
        if message.kind is Kind.DELETE:
            entry.flags = (flags | Flag.DELETE) & ~Flag.UNDELETE
            if previous is not None and previous.flags == 0 and previous.segment == message.segment:
                entry.original = previous.offset
        elif message.kind is Kind.TTL_UPDATE:
            entry.flags = (flags | Flag.TTL_UPDATE) & ~Flag.UNDELETE
            entry.expires = NONE
            if previous is not None and previous.segment == message.segment:
                entry.original = previous.offset
        else:
            entry.flags = (flags | Flag.UNDELETE) & ~Flag.DELETE
        return entry

    def find(self, identity: bytes) -> Entry | None:
        """The current state of a blob, as findKey answers."""
        entries = self.blobs.get(identity)
        if not entries:
            return None
        latest = entries[-1]
        for entry in reversed(entries):
            if entry.kind is not Kind.TTL_UPDATE:
                if latest.flags & Flag.TTL_UPDATE and not entry.flags & Flag.TTL_UPDATE:
                    return replace(entry, flags=entry.flags | Flag.TTL_UPDATE, expires=latest.expires)
                return entry
        return None

    def put_of(self, identity: bytes) -> Entry | None:
        """The PUT that holds a blob's content, if it is still there."""
        for entry in reversed(self.blobs.get(identity, ())):
            if entry.kind is Kind.PUT:
                return entry
        return None

    def state(self, identity: bytes, now: int) -> str | None:
        """`live`, `deleted` or `expired` at `now` (milliseconds); None if the store does not know the blob."""
        found = self.find(identity)
        return None if found is None else state_of(found, now)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.blobs)

    def __len__(self) -> int:
        return len(self.blobs)


def state_of(entry: Entry, now: int) -> str:
    """What a found entry means at `now`."""
    if entry.kind is Kind.DELETE:
        return DELETED
    return EXPIRED if entry.expires != NONE and now > entry.expires * 1000 else LIVE
