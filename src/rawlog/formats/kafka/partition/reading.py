"""What `repair` would keep of a partition, for verbs that read everything: the batches at their places, and what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2
from rawlog.formats.kafka.partition.extents import batches_of, bytes_of
from rawlog.formats.kafka.partition.outline import Outline
from rawlog.formats.kafka.partition.outline import Piece as LogPiece
from rawlog.formats.kafka.partition.survey import settled_outline
from rawlog.model.outline import Patch, Piece, Reading
from rawlog.model.report import Action, Entry
from rawlog.model.store import Store


def reading(store: Store) -> Reading:
    """The batches that `salvage` keeps. Segments that a pass found to be without damage are not read again."""
    segments = [
        file for file in store if file.format == "kafka.log" and file.place.state is None and file.problem is None
    ]
    if not segments:
        return Reading()
    log = settled_outline(store)
    lost = tuple(_lost(log))
    notes = tuple(str(gap) for gap in log.gaps if not gap.is_lost)
    if log.is_as_stored:
        return Reading(entries=lost, notes=notes)
    settled = _Settlement(log)
    for piece in log.pieces:
        settled.add(piece)
    for number in range(len(log.extents)):
        settled.report(number)
    patches = {path: tuple(sorted(path_patches)) for path, path_patches in settled.patches.items()}
    return Reading(tuple(settled.pieces), patches, (*settled.entries, *lost), notes)


def _lost(log: Outline) -> Iterator[Entry]:
    for first, last in log.lost:
        gap = next((gap for gap in log.gaps if gap.first <= first and last == gap.last), None)
        reason, path = ("", log.extents[0].file.place.group) if gap is None else (gap.trace, gap.file.path)
        stop = None if last is None else last + 1
        yield Entry(Action.LOST, reason, path, first_offset=first, stop_offset=stop)


class _Settlement:
    """The pieces of a log in order, the patches to their batches, and the report entries."""

    def __init__(self, log: Outline) -> None:
        self.log = log
        self.pieces: list[Piece] = []
        self.patches: dict[str, list[Patch]] = {}
        self.entries: list[Entry] = []

    def add(self, piece: LogPiece) -> None:
        """Batches that follow one another in the log."""
        extent = self.log.extents[piece.segment]
        path = extent.file.path
        sound, choice = batches_of(extent, bytes_of(extent.file))
        order = np.array(choice.order if piece.numbers is None else piece.numbers, np.int64)
        if not order.size:
            return
        starts, stops = sound.starts[order], sound.stops[order]
        edges = np.concatenate(([0], np.flatnonzero(starts[1:] != stops[:-1]) + 1, [order.size])).tolist()
        self.pieces += [Piece(path, int(starts[low]), int(stops[high - 1])) for low, high in pairwise(edges)]
        if piece.start != extent.first:
            reason = f"offsets {piece.first} to {piece.last} belong to a segment named {piece.start}"
            self._entry(Action.MOVED, reason, path, 0, extent.file.size, piece.first, piece.last)
        head = Heads(np.ascontiguousarray(sound.head.values[:, order]))
        bases, lasts = (values[order] for values in extent.offsets())
        for at in np.flatnonzero([number in choice.rebased for number in order.tolist()]).tolist():
            is_new = head["magic"][at] == MAGIC_V2
            # Of magic 0 and 1 the last offset is the one that is written.
            self._patch(path, int(starts[at]), "base_offset", int(bases[at] if is_new else lasts[at]))
        head["base_offset"][:] = bases
        for wrong in self.log.corrections:
            for at in np.flatnonzero(wrong.is_wrong(head)).tolist():
                self._patch(path, int(starts[at]), "leader_epoch", wrong.right)
                reason = (
                    f"leader epoch {wrong.wrong} set to {wrong.right}, by the batches around it or the epoch checkpoint"
                )
                place = int(starts[at]), int(stops[at]), int(bases[at]), int(lasts[at])
                self._entry(Action.CHANGED, reason, path, *place)

    def report(self, number: int) -> None:
        """Report the bytes of a segment that are dropped or changed."""
        extent = self.log.extents[number]
        if extent.choice is None or extent.sound is None:
            return
        sound, path = extent.sound, extent.file.path
        for hole in sound.holes:
            is_tail = extent.is_crash_tail(hole)
            self.entries.append(Entry(Action.DROPPED, hole.reason, path, hole.start, hole.stop, is_expected=is_tail))
        head = sound.head
        for at, fate in self.log.fates(number).items():
            offsets = int(head["base_offset"][at]), int(head["last_offset"][at])
            self._entry(fate.action, fate.reason, path, int(sound.starts[at]), int(sound.stops[at]), *offsets)

    def _entry(self, action: Action, reason: str, path: str, start: int, stop: int, first: int, last: int) -> None:
        self.entries.append(Entry(action, reason, path, start, stop, first, last + 1))

    def _patch(self, path: str, position: int, field: str, value: int) -> None:
        size = BATCH.after(field) - BATCH.at(field)
        patch = position + BATCH.at(field), value.to_bytes(size, "big", signed=True)
        self.patches.setdefault(path, []).append(patch)
