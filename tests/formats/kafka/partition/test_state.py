"""The fold of producers and transactions is the same for any cut of the log, and is what one pass gives."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rawlog.formats.kafka.internal.messages import read_marker
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import NONE, Attributes, ControlType
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.partition.state import (
    AbortedTxn,
    Producers,
    ProducerState,
)
from rawlog.model.frames import Frames
from tests.reference import kafka


@dataclass(frozen=True, slots=True)
class Odd:
    code: str
    index: int
    message: str
    expected: object = None
    found: object = None


@dataclass(slots=True)
class Plain:
    """The same one batch at a time, in plain Python."""

    states: dict[int, ProducerState] = field(default_factory=dict)
    aborted: list[AbortedTxn] = field(default_factory=list)

    def add(self, frames: Frames, head: Heads, *, transactional_only: bool = False) -> Iterator[Odd]:
        """Take in a window's sound batches; what a leader would have refused is yielded, never an error."""
        wanted = head.has(Attributes.TRANSACTIONAL) if transactional_only else head["producer_id"] >= 0
        chosen = np.flatnonzero(wanted & head.sound)
        control = head.has(Attributes.CONTROL)
        for index in chosen.tolist():
            number = int(head["producer_id"][index])
            state = self.states.setdefault(number, ProducerState())
            if control[index]:
                if head["record_count"][index]:
                    self._marker(frames, head, index, number, state)
            else:
                yield from self._data(head, index, state)

    def _data(self, head: Heads, index: int, state: ProducerState) -> Iterator[Odd]:
        epoch, sequence = int(head["producer_epoch"][index]), int(head["base_sequence"][index])
        base, last = int(head["base_offset"][index]), int(head["last_offset"][index])
        known = state.epoch != NONE
        if known and epoch < state.epoch:
            yield Odd("epoch", index, f"producer epoch {epoch} after {state.epoch}", f"at least {state.epoch}", epoch)
        elif known and epoch > state.epoch and sequence > 0:
            yield Odd("sequence", index, f"sequence {sequence} begins epoch {epoch}", 0, sequence)
        elif known and epoch == state.epoch and sequence >= 0 and state.last_sequence >= 0:
            following = (state.last_sequence + 1) & 0x7FFF_FFFF
            if sequence != following:
                yield Odd("sequence", index, f"sequence {sequence} after {state.last_sequence}", following, sequence)
        state.epoch = epoch
        state.last_sequence = NONE if sequence < 0 else (sequence + last - base) & 0x7FFF_FFFF
        state.last_offset, state.offset_delta = last, last - base
        state.timestamp = int(head["max_timestamp"][index])
        transactional = int(head["attributes"][index]) & Attributes.TRANSACTIONAL
        if transactional and state.current_txn_first_offset == NONE:
            state.current_txn_first_offset = base

    def _marker(self, frames: Frames, head: Heads, index: int, number: int, state: ProducerState) -> None:
        offset = int(head["base_offset"][index])
        kind, coordinator_epoch, timestamp = read_marker(frames, index)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return
        first, state.current_txn_first_offset = state.current_txn_first_offset, NONE
        if first != NONE and kind == ControlType.ABORT:
            others = [one.current_txn_first_offset for one in self.states.values()]
            stable = min((one for one in others if one != NONE), default=offset + 1)
            self.aborted.append(AbortedTxn(number, first, offset, stable))
        epoch = int(head["producer_epoch"][index])
        if epoch != state.epoch:
            state.epoch, state.last_sequence, state.last_offset, state.offset_delta = epoch, NONE, NONE, 0
        state.coordinator_epoch, state.timestamp = coordinator_epoch, timestamp

    def open_transactions(self) -> dict[int, int]:
        """The first offsets of transactions without a marker, by producer."""
        found = {number: one.current_txn_first_offset for number, one in self.states.items()}
        return {number: first for number, first in found.items() if first != NONE}


#: A batch: producer, epoch, sequence, number of records, kind (data, plain data, abort, commit).
BATCHES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 2),
        st.one_of(st.just(-1), st.integers(0, 6), st.just(0x7FFF_FFFF)),
        st.integers(1, 3),
        st.sampled_from(("transactional", "idempotent", "abort", "commit")),
    ),
    max_size=14,
)


def encode(batches: list[tuple[int, int, int, int, str]]) -> list[bytes]:
    offset, out = 0, []
    for producer, epoch, sequence, count, kind in batches:
        marker = kind in ("abort", "commit")
        if marker:
            count = 1
            key, value = struct.pack(">hh", 0, int(kind == "commit")), struct.pack(">hi", 0, offset + 5)
            records = kafka.encode_record(1, 0, key, value)
        else:
            records = b"".join(kafka.encode_record(0, delta, b"k", b"v") for delta in range(count))
        out.append(
            kafka.encode_batch(
                records,
                record_count=count,
                base_offset=offset,
                base_timestamp=1000 + offset,
                max_timestamp=1001 + offset,
                producer_id=producer,
                producer_epoch=epoch,
                base_sequence=-1 if marker else sequence,
                is_transactional=marker or kind == "transactional",
                is_control=marker,
            )
        )
        offset += count
    return out


def fold(data: bytes, *, transactional_only: bool = False) -> Producers:
    frames = scan(np.frombuffer(data, np.uint8), 0)
    made = Producers(transactional_only)
    made.add(frames, heads(frames), "a.log")
    return made


def answers(made: Producers) -> tuple[object, ...]:
    seen = sorted((one.offset, one.code, one.message, str(one.expected)) for one in made.oddities)
    return made.states, made.aborted, made.open_transactions(), seen


@given(BATCHES, st.booleans())
def test_one_stretch_is_what_one_pass_over_the_log_gives(
    batches: list[tuple[int, int, int, int, str]], only: bool
) -> None:
    data = b"".join(encode(batches))
    frames = scan(np.frombuffer(data, np.uint8), 0)
    head = heads(frames)
    state = Plain()
    odd = list(state.add(frames, head, transactional_only=only))
    made = fold(data, transactional_only=only).finish()
    assert made.states == state.states
    assert [(a.producer_id, a.first_offset, a.last_offset, a.last_stable_offset) for a in made.aborted] == [
        (a.producer_id, a.first_offset, a.last_offset, a.last_stable_offset) for a in state.aborted
    ]
    assert made.open_transactions() == state.open_transactions()
    assert sorted((one.offset, one.code, one.message, str(one.expected)) for one in made.oddities) == sorted(
        (int(head["base_offset"][one.index]), one.code, one.message, str(one.expected)) for one in odd
    )


@given(BATCHES, st.data())
def test_any_cut_gives_the_same_state(batches: list[tuple[int, int, int, int, str]], data: st.DataObject) -> None:
    """What a stretch cannot know alone (sequences that go on, transactions that began before it) is found when it is merged."""
    encoded = encode(batches)
    whole = fold(b"".join(encoded)).finish()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=4)))
    edges = [0, *cuts, len(encoded)]
    parts = [fold(b"".join(encoded[start:stop])) for start, stop in pairwise(edges)]
    # The order in which neighbours are merged does not matter either.
    while len(parts) > 1 and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(parts) - 2))
        parts[at].merge(parts.pop(at + 1))
    merged = Producers()
    for part in parts:
        merged.merge(part)
    assert answers(merged.finish()) == answers(whole)
