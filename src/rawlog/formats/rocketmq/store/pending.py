"""What a commit log leaves undecided: half messages without a commit or rollback, and messages whose time has not come.

Both are folds over the log in order. A half message is forgotten as soon as its end is seen, so that what is kept is small: those that
are open, and ends whose half message is in bytes before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.rocketmq.kernels import derive
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    CHECK_MAX_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_MASK,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.kernels import columns
from rawlog.model.text import java_text

Numbers = NDArray[np.int64]
TIMED = 4
"""Rows of what is known of timer messages: address, time of delivery, hash of the unique key, and whether it cancels that one."""
T_PHYSICAL, T_DUE, T_KEY, T_CANCELS = range(TIMED)
#: Half messages have few queues; a place is the queue offset and the queue in one number.
_QUEUES = 1 << 16
_MOST_DIGITS = 14


@dataclass(frozen=True, slots=True)
class Half:
    """A half message: the prepared message of a transaction."""

    queue_offset: int
    physical: int
    key: str
    topic: str
    group: str


@dataclass(slots=True)
class Pending:
    """The half messages that a stretch of the log leaves open, and what ends earlier ones."""

    #: By place, and the places by address.
    halves: dict[int, Half] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    #: Half messages that messages of the broker's end, by place, and those that a committed message names, by address.
    ended: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    #: Unique keys of half messages that the broker has given up.
    discarded: set[str] = field(default_factory=set)
    timed: list[Numbers] = field(default_factory=list)

    def see(self, rows: Messages, names: Sequence[str], codes: Numbers) -> None:
        """Take in messages, whose topics are `names` by `codes`."""

        def of(topic: str) -> Numbers:
            return np.flatnonzero(codes == names.index(topic)) if topic in names else np.empty(0, np.int64)

        halves, ends, given_up = of(HALF_TOPIC), of(OP_TOPIC), of(CHECK_MAX_TOPIC)
        commits = np.empty(0, np.int64)
        if rows.odd[kernels.O_TRANSACTION]:
            is_commit = (rows[kernels.F_SYS_FLAG] & TRANSACTION_MASK) == int(SysFlag.COMMIT)
            commits = rows[kernels.F_PREPARED][is_commit]
        if halves.size or ends.size or commits.size:
            self._transactions(rows, halves, _ended_places(rows, ends), commits)
        if given_up.size:
            self.discarded.update(_texts(rows, given_up, "UNIQ_KEY"))
        if (timed := of(TIMER_TOPIC)).size:
            self.timed.append(_timer_messages(rows, timed))

    def _transactions(self, rows: Messages, halves: Numbers, ended: Numbers, committed: Numbers) -> None:
        halves = halves[~rows.fillers[halves]]
        places = rows[kernels.F_QUEUE_OFFSET][halves] * _QUEUES + (rows[kernels.F_QUEUE_ID][halves] & (_QUEUES - 1))
        addresses = rows[kernels.F_PHYSICAL][halves]
        is_open = ~np.isin(places, ended) & ~np.isin(addresses, committed)
        self._end(set(ended[~np.isin(ended, places)].tolist()), set(committed[~np.isin(committed, addresses)].tolist()))
        for place, half in zip(places[is_open].tolist(), _halves(rows, halves[is_open]), strict=True):
            self._add(place, half)

    def _end(self, ended: set[int], committed: set[int]) -> None:
        """Forget the half messages that are ended; keep ends without a half message."""
        places = {place for place in ended if place in self.halves}
        addresses = {address for address in committed if address in self.places}
        self.ended |= ended - places
        self.committed |= committed - addresses
        for place in places | {self.places[address] for address in addresses}:
            del self.places[self.halves.pop(place).physical]

    def _add(self, place: int, half: Half) -> None:
        if (before := self.halves.pop(place, None)) is not None:
            del self.places[before.physical]
        self.halves[place] = half
        self.places[half.physical] = place

    def merge(self, following: Pending) -> None:
        """Take in the stretch that follows."""
        self._end(set(following.ended), set(following.committed))
        for place, half in following.halves.items():
            self._add(place, half)
        self.discarded |= following.discarded
        self.timed += following.timed

    def open(self) -> list[Half]:
        """The newest copy of each half message that has neither a commit nor a rollback, in order."""
        newest = {half.key or f"@{half.physical}": half for half in self.halves.values()}
        undecided = (half for half in newest.values() if not half.key or half.key not in self.discarded)
        return sorted(undecided, key=lambda half: half.physical)

    def waiting(self, reached: int) -> Numbers:
        """Timer messages (`T_…`) due after `reached`, the time of the timer in milliseconds, and not cancelled."""
        timed = np.concatenate([np.empty((TIMED, 0), np.int64), *self.timed], axis=1)
        cancels = timed[T_CANCELS] != 0
        waits = ~cancels & (timed[T_DUE] > reached) & ~np.isin(timed[T_KEY], timed[T_KEY][cancels])
        waiting = timed[:, waits]
        # A message for a far time is written again each time the wheel has turned: the last one counts.
        _, last = np.unique(waiting[T_KEY][::-1], return_index=True)
        return waiting[:, np.sort(waiting.shape[1] - 1 - last)]


def _ended_places(rows: Messages, which: Numbers) -> Numbers:
    """The queue offsets that the broker's messages name as ended; each is followed by a comma in their bodies."""
    if not which.size:
        return np.empty(0, np.int64)
    bodies = columns.spans(rows.data, rows[kernels.F_BODY][which], rows[kernels.F_BODY_SIZE][which])
    parts = pc.split_pattern(bodies, b",")
    words = parts.values
    queue = np.repeat(rows[kernels.F_QUEUE_ID][which], np.diff(np.asarray(parts.offsets)))
    plain = pc.match_substring_regex(words, f"^[0-9]{{1,{_MOST_DIGITS}}}$")
    numbers = np.asarray(words.filter(plain).cast(pa.string()).cast(pa.int64()), np.int64)
    places: Numbers = numbers * _QUEUES + (queue[np.asarray(plain)] & (_QUEUES - 1))
    return places


def _texts(rows: Messages, which: Numbers, name: str) -> list[str]:
    """A property of messages; empty where there is none."""
    out = np.empty((2, which.size), np.int64)
    starts, sizes = rows[kernels.F_PROPERTIES][which], rows[kernels.F_PROPERTIES_SIZE][which]
    derive.find_property(rows.data, starts, sizes, np.frombuffer(name.encode(), np.uint8), out)
    return [
        java_text(bytes(rows.data[start : start + size])) if size > 0 else ""
        for start, size in zip(out[0].tolist(), out[1].tolist(), strict=True)
    ]


def _halves(rows: Messages, which: Numbers) -> list[Half]:
    if not which.size:
        return []
    keys, topics, groups = (_texts(rows, which, name) for name in ("UNIQ_KEY", "REAL_TOPIC", "PGROUP"))
    numbers = (rows[column][which].tolist() for column in (kernels.F_QUEUE_OFFSET, kernels.F_PHYSICAL))
    return [Half(*fields) for fields in zip(*numbers, keys, topics, groups, strict=True)]


def _timer_messages(rows: Messages, which: Numbers) -> Numbers:
    which = which[~rows.fillers[which]]
    keys, due, cancels = (_texts(rows, which, name) for name in ("UNIQ_KEY", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"))
    timed = np.empty((TIMED, which.size), np.int64)
    timed[T_PHYSICAL] = rows[kernels.F_PHYSICAL][which]
    stored = rows[kernels.F_STORE_TIME][which].tolist()
    timed[T_DUE] = [_time(text, else_) for text, else_ in zip(due, stored, strict=True)]
    timed[T_KEY] = [_hash(b.rpartition("+")[2] if b else a) for a, b in zip(keys, cancels, strict=True)]
    timed[T_CANCELS] = [bool(cancel) for cancel in cancels]
    return timed


def _time(text: str, stored: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else stored


def _hash(key: str) -> int:
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)
