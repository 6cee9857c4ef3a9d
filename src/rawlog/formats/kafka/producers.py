"""Producer state as the log tells it: what a broker keeps of every producer, rebuilt batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rawlog.errors import DataError
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.layouts import NONE, Attributes, ControlType
from rawlog.formats.kafka.reader import decode_columns, milliseconds
from rawlog.frames import Frames

SEQUENCE_MASK = 0x7FFF_FFFF


@dataclass(slots=True)
class Producer:
    """One producer: the names are those of a snapshot's entry."""

    epoch: int = NONE
    last_sequence: int = NONE
    last_offset: int = NONE
    offset_delta: int = 0
    timestamp: int = NONE
    coordinator_epoch: int = NONE
    current_txn_first_offset: int = NONE


@dataclass(frozen=True, slots=True)
class Aborted:
    """A transaction that was aborted, as an entry of the transaction index has it."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a transaction, whether or not any of its records are left."""

    producer_id: int
    offset: int
    kind: int


@dataclass(frozen=True, slots=True)
class Oddity:
    """Something a leader would not have taken from a producer."""

    code: str
    index: int
    message: str
    expected: object = None
    found: object = None


@dataclass(slots=True)
class Producers:
    """The producers of a partition, after all batches that were added in the order of their offsets."""

    states: dict[int, Producer] = field(default_factory=dict)
    aborted: list[Aborted] = field(default_factory=list)
    markers: list[Marker] = field(default_factory=list)

    def add(self, frames: Frames, head: Heads, *, transactional_only: bool = False) -> Iterator[Oddity]:
        """Take in a window's sound batches; what a leader would have refused is yielded, never an error."""
        wanted = head.has(Attributes.TRANSACTIONAL) if transactional_only else head["producer_id"] >= 0
        chosen = np.flatnonzero(wanted & head.sound)
        control = head.has(Attributes.CONTROL)
        for index in chosen.tolist():
            number = int(head["producer_id"][index])
            state = self.states.setdefault(number, Producer())
            if control[index]:
                if head["record_count"][index]:
                    self._marker(frames, head, index, number, state)
            else:
                yield from self._data(head, index, state)

    def _data(self, head: Heads, index: int, state: Producer) -> Iterator[Oddity]:
        epoch, sequence = int(head["producer_epoch"][index]), int(head["base_sequence"][index])
        base, last = int(head["base_offset"][index]), int(head["last_offset"][index])
        known = state.epoch != NONE
        if known and epoch < state.epoch:
            yield Oddity(
                "epoch", index, f"producer epoch {epoch} after {state.epoch}", f"at least {state.epoch}", epoch
            )
        elif known and epoch > state.epoch and sequence > 0:
            yield Oddity("sequence", index, f"sequence {sequence} begins epoch {epoch}", 0, sequence)
        elif known and epoch == state.epoch and sequence >= 0 and state.last_sequence >= 0:
            following = (state.last_sequence + 1) & SEQUENCE_MASK
            if sequence != following:
                yield Oddity("sequence", index, f"sequence {sequence} after {state.last_sequence}", following, sequence)
        state.epoch = epoch
        state.last_sequence = NONE if sequence < 0 else (sequence + last - base) & SEQUENCE_MASK
        state.last_offset, state.offset_delta = last, last - base
        state.timestamp = int(head["max_timestamp"][index])
        transactional = int(head["attributes"][index]) & Attributes.TRANSACTIONAL
        if transactional and state.current_txn_first_offset == NONE:
            state.current_txn_first_offset = base

    def _marker(self, frames: Frames, head: Heads, index: int, number: int, state: Producer) -> None:
        offset = int(head["base_offset"][index])
        kind, coordinator_epoch, timestamp = read_marker(frames, index)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return
        first, state.current_txn_first_offset = state.current_txn_first_offset, NONE
        self.markers.append(Marker(number, offset, kind))
        if first != NONE and kind == ControlType.ABORT:
            others = [one.current_txn_first_offset for one in self.states.values()]
            stable = min((one for one in others if one != NONE), default=offset + 1)
            self.aborted.append(Aborted(number, first, offset, stable))
        epoch = int(head["producer_epoch"][index])
        if epoch != state.epoch:
            state.epoch, state.last_sequence, state.last_offset, state.offset_delta = epoch, NONE, NONE, 0
        state.coordinator_epoch, state.timestamp = coordinator_epoch, timestamp

    def open_transactions(self) -> dict[int, int]:
        """The first offsets of transactions without a marker, by producer."""
        found = {number: one.current_txn_first_offset for number, one in self.states.items()}
        return {number: first for number, first in found.items() if first != NONE}


def read_marker(frames: Frames, index: int) -> tuple[int | None, int, int]:
    """The type, coordinator epoch and time (ms) of a control batch's first record; type None if it cannot be read."""
    one = frames.slice(index, index + 1)
    try:
        decoded = decode_columns(one.data, one.starts, one.stops, {"key", "value", "timestamp"}, limit=1 << 16)
    except DataError:
        return None, NONE, NONE
    if not decoded.count:
        return None, NONE, NONE
    value = decoded.arrays["value"][0].as_py() or b""
    epoch = int.from_bytes(value[2:6], "big", signed=True) if len(value) >= 6 else NONE
    timestamp = int(milliseconds(decoded.arrays["timestamp"])[0])
    return control_type(decoded.arrays["key"][0].as_py()), epoch, timestamp


def control_type(key: bytes | None) -> int | None:
    """The type that a control record's key names: int16 version, int16 type. None for a key too short, or of a version below 0."""
    if key is None or len(key) < 4 or key[0] & 0x80:
        return None
    return int.from_bytes(key[2:4], "big", signed=True)
