"""What a rescue would take from which copy of a store, and what is lost in all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rawlog.core.rescue import CopyPlan, PiecePlan, Span, UnitPlan
from rawlog.core.text import counted
from rawlog.formats.rocketmq.store.placeholders import Slot
from rawlog.formats.rocketmq.store.rescue_copies import Found
from rawlog.formats.rocketmq.store.survey import Extent

MOST_SPANS = 10_000


def unit_plan(name: str, group: Sequence[Found], reasons: Sequence[str]) -> UnitPlan:
    """The plan of a store of some copies, with the reasons why histories of copies part."""
    used = [(number, one) for number, one in enumerate(group) if one.logs]
    pieces = _pieces(used)
    start = min((piece.start for piece in pieces), default=0)
    end = max((piece.stop for piece in pieces), default=0)
    copies = tuple(_copy_plan(one, reason) for one, reason in zip(group, reasons, strict=True))
    divergent = tuple(
        (number, Span(one.until, one.end, reasons[number])) for number, one in enumerate(group) if one.until is not None
    )
    own = [one for one in group if one.until is None]
    ends = sorted((one.end for one in own), reverse=True)
    undecided: tuple[Span, ...] = ()
    if len(ends) > 1 and any(log.is_dledger for one in own for log in one.logs):
        shared = ends[len(group) // 2] if len(ends) > len(group) // 2 else ends[-1]
        if shared < end:
            undecided = (Span(shared, end, "fewer than half of the members have it"),)
    return UnitPlan(
        name,
        "rescue" if pieces else "lost",
        start,
        end,
        f"{counted(len(group), 'copy', 'copies')}; first {group[0].store.root}",
        copies,
        tuple(pieces),
        tuple(_lost(group, pieces)),
        undecided,
        divergent,
    )


def _copy_plan(one: Found, reason: str) -> CopyPlan:
    holes = [
        Span(hole[0], min(hole[1], one.end), "no sound message")
        for log in one.logs
        for hole in log.holes
        if hole[0] < one.end
    ]
    term, _ = one.lineage
    return CopyPlan(
        one.store.disk,
        one.store.root,
        one.start,
        one.end,
        sum(file.size for file in one.store.logs),
        lineage=f"term or epoch {term}" if term else "",
        damage=tuple(holes[:MOST_SPANS]),
        use=reason or "taken where it is sound",
    )


def _pieces(copies: Sequence[tuple[int, Found]]) -> list[PiecePlan]:
    """The stretches of the union, each with the first copy that has it."""
    every = []
    for rank, (number, one) in enumerate(copies):
        for log in one.logs:
            every += [(*part, rank, number) for part in log.covered if one.until is None or part[0] < one.until]
    every.sort()
    pieces: list[PiecePlan] = []
    at = -1
    while True:
        live = [one for one in every if one[1] > at]
        if not live:
            return pieces
        begin = max(at, min(one[0] for one in live))
        here = min((one for one in live if one[0] <= begin), key=lambda one: one[2])
        better = [one[0] for one in live if one[2] < here[2] and one[0] > begin]
        stop = min([here[1], *better])
        if pieces and pieces[-1].copy == here[3] and pieces[-1].stop == begin:
            pieces[-1] = replace(pieces[-1], stop=stop)
        else:
            pieces.append(PiecePlan(here[3], begin, stop))
        at, every = stop, live


def _lost(group: Sequence[Found], pieces: Sequence[PiecePlan]) -> Iterator[Span]:
    """The holes of the union, with what queues know of them."""
    extents = sorted(
        (extent for one in group for log in one.logs for extent in log.extents), key=lambda extent: extent.start
    )
    known = [slots for one in group for slots in (one.slots, *(log.slots for log in one.logs))]
    slots = {slot.address: slot for found in known for slot in found}
    ordered = [slots[address] for address in sorted(slots)]
    end = pieces[-1].stop if pieces else 0
    holes = [(one.stop, other.start) for one, other in itertools.pairwise(pieces) if other.start > one.stop]
    for start, stop in holes:
        since, until = _times(extents, start, stop)
        inside = [slot for slot in ordered if start <= slot.address < stop]
        yield Span(start, stop, _known(inside), since, until)
    after = [slot for slot in ordered if slot.address >= end]
    if after:
        since, _ = _times(extents, end, end)
        yield Span(end, after[-1].address + after[-1].size, _known(after), since, None)


def _times(extents: Sequence[Extent], start: int, stop: int) -> tuple[int | None, int | None]:
    before = [one.until for one in extents if one.stop <= start]
    after = [one.since for one in extents if one.start >= stop]
    return (before[-1] if before else None), (after[0] if after else None)


def _known(slots: Sequence[Slot]) -> str:
    """The messages that were in a hole, by topic, queue and queue offset."""
    if not slots:
        return "no consume queue says what was there"
    runs: list[list[Any]] = []
    for slot in sorted(slots, key=lambda slot: (slot.topic, slot.queue_id, slot.number)):
        if runs and runs[-1][:2] == [slot.topic, slot.queue_id] and runs[-1][3] == slot.number:
            runs[-1][3] += slot.count
        else:
            runs.append([slot.topic, slot.queue_id, slot.number, slot.number + slot.count])
    shown = [
        f"{topic} queue {queue}: {first:,}" + (f" to {stop - 1:,}" if stop - 1 > first else "")
        for topic, queue, first, stop in runs
    ]
    more = f" and {len(shown) - 20:,} more runs" if len(shown) > 20 else ""
    return f"{counted(len(slots), 'message')} lost: {'; '.join(shown[:20])}{more}"


__all__ = ["unit_plan"]
