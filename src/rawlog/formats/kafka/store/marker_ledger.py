"""What is left of transactions in a log with gaps: their batches and markers, as they are written."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from rawlog.core.frames import Bytes, Frames
from rawlog.formats.kafka.control import read_marker
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.kernels.producers import SEQUENCE_MASK
from rawlog.formats.kafka.layouts import NONE, Attributes, ControlType
from rawlog.formats.kafka.store.damaged_markers import Witness, witnesses


@dataclass(slots=True)
class Event:
    """What is left of a producer in the log: a run of its transactional batches, or a marker (`kind`)."""

    first: int
    last: int
    epoch: int
    #: How many gaps there are in the log before it.
    gap: int
    timestamp: int
    kind: int | None = None
    coordinator_epoch: int = NONE


class Ledger:
    """The transactional batches and markers that are kept, and the gaps between the batches of the log, as they are written."""

    def __init__(self) -> None:
        self.events: dict[int, list[Event]] = defaultdict(list)
        #: First and last offset of each gap, in order.
        self.gaps: list[tuple[int, int]] = []
        self.end: int | None = None
        #: Records that are missing in a gap by the sequence numbers of producers, by the gap's number.
        self.missing: dict[int, int] = defaultdict(int)
        self._sequences: dict[int, tuple[int, int, int]] = {}
        #: The producers and offsets of ABORT markers of transactions with records.
        self.aborts: list[tuple[int, int]] = []
        #: Whether COMMIT markers raised the epoch of their records, by producer.
        self.raised: dict[int, set[bool]] = defaultdict(set)
        #: Markers that can be read in damaged bytes.
        self.witnesses: list[Witness] = []

    def add(self, frames: Frames, head: Heads) -> None:
        """Take in batches that are written, in the order of their offsets."""
        if not len(head):
            return
        base, last = head["base_offset"], head["last_offset"]
        before = np.concatenate(([base[0] - 1 if self.end is None else self.end - 1], last[:-1]))
        base = np.where(head["record_count"] < 0, np.minimum(base, before + 1), base)  # a wrapper tells only its last
        jumps = base > before + 1
        gap = len(self.gaps) + np.cumsum(jumps)
        self.gaps += zip((before[jumps] + 1).tolist(), (base[jumps] - 1).tolist(), strict=True)
        self.end = int(last[-1]) + 1
        transactional, control = head.has(Attributes.TRANSACTIONAL), head.has(Attributes.CONTROL)
        for index in np.flatnonzero(head["producer_id"] >= 0).tolist():
            number = int(head["producer_id"][index])
            if not control[index]:
                self._follow(head, index, number, int(gap[index]))
            if transactional[index]:
                self._note(frames, head, index, number, int(gap[index]), bool(control[index]))

    def cut(self, data: Bytes) -> None:
        """Take in bytes that are not kept."""
        self.witnesses += witnesses(data)

    def _follow(self, head: Heads, index: int, number: int, gap: int) -> None:
        """Count what sequence numbers say is missing in the one gap since the producer's batch before."""
        epoch, sequence = int(head["producer_epoch"][index]), int(head["base_sequence"][index])
        if sequence < 0:
            return
        known, following, before = self._sequences.get(number, (NONE, 0, gap))
        jump = (sequence - following) & SEQUENCE_MASK
        if known == epoch and gap == before + 1 and jump:
            self.missing[before] += jump
        size = int(head["last_offset"][index] - head["base_offset"][index]) + 1
        self._sequences[number] = (epoch, (sequence + size) & SEQUENCE_MASK, gap)

    def _note(self, frames: Frames, head: Heads, index: int, number: int, gap: int, control: bool) -> None:
        events = self.events[number]
        first, last = int(head["base_offset"][index]), int(head["last_offset"][index])
        epoch, time = int(head["producer_epoch"][index]), int(head["max_timestamp"][index])
        if control:
            kind, coordinator, moment = (
                read_marker(frames, index) if head["record_count"][index] else (None, NONE, NONE)
            )
            if kind in (ControlType.ABORT, ControlType.COMMIT):
                self._end(number, Event(first, last, epoch, gap, moment, kind, coordinator))
            return
        before = events[-1] if events else None
        if before is not None and before.kind is None and (before.gap, before.epoch) == (gap, epoch):
            before.last, before.timestamp = last, max(before.timestamp, time)
        else:
            events.append(Event(first, last, epoch, gap, time))

    def _end(self, number: int, marker: Event) -> None:
        """Take in a marker. What is left without a gap up to it is decided, and need not be remembered."""
        events = self.events[number]
        start = len(events)
        while start and events[start - 1].kind is None:
            start -= 1
        if start < len(events):
            if marker.kind == ControlType.ABORT:
                self.aborts.append((number, marker.first))
            else:
                self.raised[number].add(marker.epoch > events[-1].epoch)
        if all(one.gap == marker.gap for one in events[start:]):
            del events[start:]
            if len(events) == 1 or (events and events[-2].kind is not None):
                del events[-1]
        events.append(marker)


__all__ = ["Event", "Ledger"]
