"""Which offsets of a partition or a metadata log are there, in which segment, and which are missing: one diagnosis for all verbs.

A batch carries its own offsets, so the name of a segment is only a hint. Batches outside the range that the names leave to their segment
belong to the log all the same if nothing else has their offsets: the segment was renamed, or swapped with another one.

Offsets that are missing inside of a log are a loss, unless compaction took them out: `evidence.judge_gaps` decides. A metadata log is
never compacted: whatever is missing is lost.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.checkpoints import log_start
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, NONE
from rawlog.formats.kafka.partition.evidence import (
    cleaned_before,
    first_trace,
    index_traces,
    judge_gaps,
    last_trace,
    named_offsets,
    stated_end,
)
from rawlog.formats.kafka.partition.identity import Identity
from rawlog.formats.kafka.partition.segment_outline import (
    FARTHEST,
    HUGE,
    NEAR,
    PADDING,
    UNFINISHED,
    BatchOrder,
    Correction,
    EpochRuns,
    Extent,
    SoundBatches,
    Span,
    bytes_of,
    longest_chain,
    read_extent,
    rebase,
    runs_of,
    set_field,
)
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.io.walk import walk
from rawlog.model.errors import CorruptError, TruncatedError
from rawlog.model.format import ExpectedGaps, File
from rawlog.model.frames import Frames
from rawlog.model.outline import Intervals, Run, SetAside, extend
from rawlog.model.report import Action
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.text import missing_text

UNDECIDED = "cannot tell compaction from loss"


class Side(Enum):
    """Where in a log offsets are missing."""

    START, BETWEEN, INSIDE, END = range(4)


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets `first` to `last` that are missing before the segment `file`; inside of it; or after it at the end of the log. A `trace`
    says what knows of them at the start and at the end of a log. `is_remote`: remote storage has them. `is_undecided`: nothing tells
    whether compaction took them out.
    """

    first: int
    last: int
    file: File
    side: Side = Side.BETWEEN
    trace: str = ""
    is_remote: bool = False
    is_undecided: bool = False

    @property
    def is_lost(self) -> bool:
        return not (self.is_remote or self.is_undecided)

    def __str__(self) -> str:
        if self.is_remote:
            return f"offsets {self.first} to {self.last} are in remote storage, which is not among the paths"
        reason = UNDECIDED if self.is_undecided else self.trace
        return f"{missing_text(self.first, self.last)}{reason and ': '}{reason}"


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Batches of one segment, by number, that follow one another in the log. Nothing before `start` is expected in it."""

    segment: int
    numbers: tuple[int, ...] | None  # None: all that were chosen of a segment that is as it should be
    first: int
    last: int
    start: int


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of a displaced sound batch, and the reason. `base` is its first offset, corrected if it is changed."""

    action: Action
    reason: str
    base: int


@dataclass(slots=True)
class Outline:
    """A partition's segments put together. `pieces` are in the order of their offsets."""

    extents: list[Extent]
    pieces: list[BatchRange]
    gaps: list[MissingOffsets]
    #: Runs of offsets that were there, or must have been, and are not: the last is None where nothing says how far they went.
    lost: list[tuple[int, int | None]]
    #: Batches that are put at their offsets from outside of their segment's range, by segment and number.
    placed: dict[int, set[int]]
    #: The leader epochs that are wrong.
    corrections: list[Correction]
    #: Offsets that are missing inside of segments, first and last, of which nothing tells whether compaction took them out.
    holes: list[tuple[int, int]]

    @property
    def undecided(self) -> list[tuple[int, int]]:
        """The same inside of segments and between them, in order."""
        return sorted([*self.holes, *((gap.first, gap.last) for gap in self.gaps if gap.is_undecided)])

    @property
    def has_damage(self) -> bool:
        """Whether bytes are no batch, or batches are displaced: that explains missing offsets, too."""
        return _has_damage(self.extents, self.placed)

    @property
    def is_as_stored(self) -> bool:
        """Whether the rows of the log are those that are stored, in the order of the segments' names."""
        if self.placed or self.corrections or any(map(_overlaps, self.extents)):
            return False
        return all(
            extent.choice is None or (extent.sound is not None and all(map(extent.is_crash_tail, extent.sound.holes)))
            for extent in self.extents
        ) and not any(self.fates(number) for number in range(len(self.extents)))

    @property
    def aside(self) -> list[SetAside]:
        """The sound batches that are not of the log: copies of others, or of another log."""
        set_aside = []
        for segment, extent in enumerate(self.extents):
            for number, fate in self.fates(segment).items():
                if fate.action is Action.DROPPED and extent.sound is not None:
                    sound, head = extent.sound, extent.sound.head
                    place = int(sound.starts[number]), int(sound.stops[number])
                    span = int(head["base_offset"][number]), int(head["last_offset"][number]) + 1
                    set_aside.append(SetAside(extent.file, *place, *span, fate.reason))
        return set_aside

    @property
    def end(self) -> int:
        """The offset after the last batch of the log; where its first segment begins if it has none."""
        return max((piece.last + 1 for piece in self.pieces), default=self.extents[0].first if self.extents else 0)

    def runs(self) -> list[Run]:
        """The log in the order of its offsets, as runs of one leader epoch, corrected."""
        runs: list[Run] = []
        for piece in self.pieces:
            extent = self.extents[piece.segment]
            parts = extent.runs if piece.numbers is None and extent.runs else self._runs_of(piece)
            extend(runs, chain.from_iterable(map(self._correct_run, parts)))
        return runs

    def _runs_of(self, piece: BatchRange) -> Iterator[Run]:
        """The batches of a piece, by number; each that has a wrong offset alone."""
        extent = self.extents[piece.segment]
        sound, choice = extent.sound_and_choice()
        firsts, _ = extent.offsets()
        numbers = choice.order if piece.numbers is None else list(piece.numbers)
        is_rebased = [number in choice.rebased for number in numbers]
        for corrected, group in groupby(range(len(numbers)), key=lambda at: at if is_rebased[at] else -1):
            part = np.array([numbers[at] for at in group], np.int64)
            head = Heads(np.ascontiguousarray(sound.head.values[:, part]))
            stored = int(head["base_offset"][0])
            head["last_offset"][:] = extent.offsets()[1][part]
            for run in runs_of(extent.file, sound.starts[part], sound.stops[part], head, firsts[part]):
                yield replace(run, stored=stored) if corrected >= 0 else run

    def _correct_run(self, run: Run) -> Iterator[Run]:
        right = self.right_epoch(run.first, run.lineage)
        yield run if right == run.lineage else replace(run, lineage=right, stored_lineage=run.lineage)

    def right_epoch(self, offset: int, epoch: int) -> int:
        """The leader epoch of a batch that begins at an offset and says an epoch."""
        right = (
            correction.right
            for correction in self.corrections
            if correction.first <= offset <= correction.last and correction.wrong == epoch
        )
        return next(right, epoch)

    def batches(
        self, piece: BatchRange, known: tuple[SoundBatches, BatchOrder] | None = None
    ) -> Iterator[tuple[Frames, Heads]]:
        """The batches of a piece in order, with the base offsets and leader epochs that they should have. `known` are the sound batches of
        its segment, if they were looked for.
        """
        from rawlog.formats.kafka import LOG

        extent = self.extents[piece.segment]
        if known is None and piece.numbers is None and extent.choice is None:
            for frames in walk(extent.file, LOG, errors="skip"):
                if len(frames):
                    yield correct_epochs(frames, heads(frames), self.corrections)
            return
        sound, choice = known or extent.sound_and_choice()
        data = bytes_of(extent.file)
        numbers = np.array(choice.order if piece.numbers is None else piece.numbers, np.int64)
        if not numbers.size:
            return
        is_rebased = np.isin(numbers, np.array(sorted(choice.rebased), np.int64))
        # Frames rise in their file, as whoever looks for a frame by its position expects: batches that are out of order are cut apart.
        edges = np.flatnonzero(is_rebased[1:] | is_rebased[:-1] | (np.diff(numbers) < 0)) + 1
        for start, stop in pairwise([0, *edges.tolist(), numbers.size]):
            part = numbers[start:stop]
            head = Heads(np.ascontiguousarray(sound.head.values[:, part]))
            frames = Frames(data, sound.starts[part], sound.stops[part], data.size, Status.OK)
            if is_rebased[start]:
                frames = _copied(frames)
                firsts, lasts = (offsets[part] for offsets in extent.offsets())
                # Of magic 0 and 1 the last offset is the one that is written.
                head["last_offset"][:] = lasts
                head["base_offset"][:] = firsts if head["magic"][0] == MAGIC_V2 else lasts
                set_field(frames.data, 0, "base_offset", int(head["base_offset"][0]))
            yield correct_epochs(frames, head, self.corrections)

    def epoch_changes(
        self, piece: BatchRange, known: tuple[SoundBatches, BatchOrder]
    ) -> Iterator[tuple[Correction, int, int, int, int]]:
        """The batches of a piece with a wrong leader epoch: what is set right, where the batch begins and ends in the file, its offsets.
        `known` are the sound batches of its segment.
        """
        sound, choice = known
        numbers = np.array(choice.order if piece.numbers is None else piece.numbers, np.int64)
        if not self.corrections or not numbers.size:
            return
        head = Heads(np.ascontiguousarray(sound.head.values[:, numbers]))
        if choice.rebased:
            head["base_offset"][:], head["last_offset"][:] = (
                offsets[numbers] for offsets in self.extents[piece.segment].offsets()
            )
        for correction in self.corrections:
            for at in np.flatnonzero(correction.is_wrong(head)).tolist():
                place = int(sound.starts[numbers[at]]), int(sound.stops[numbers[at]])
                yield correction, *place, int(head["base_offset"][at]), int(head["last_offset"][at])

    def fates(self, segment: int) -> dict[int, Fate]:
        """The batches of a segment, by number, that are dropped, put elsewhere, or get another base offset."""
        extent = self.extents[segment]
        if extent.sound is None or extent.choice is None:
            return {}
        choice, placed = extent.choice, self.placed.get(segment, set())
        base, last = extent.offsets()
        kept = set(extent.in_order(placed)) if placed else set()
        fates = {}
        for number in sorted({*choice.dropped, *choice.moved, *choice.rebased}):
            first = int(base[number])
            offsets = f"offsets {first:,} to {int(last[number]):,}"
            if number in choice.rebased:
                stored = int(extent.sound.head["base_offset"][number])
                reason = (
                    f"a base offset that does not fit: {stored:,} where the batches around it leave room for {first:,}"
                )
                fates[number] = Fate(Action.CHANGED, reason, first)
            elif number in choice.moved or (number in placed and number not in kept):
                fates[number] = Fate(Action.MOVED, f"{offsets} out of order", first)
            elif number not in placed:
                fates[number] = Fate(Action.DROPPED, f"{offsets} exist already, or are invalid", first)
        return fates


def outline(files: Sequence[File], known_extents: Mapping[str, Extent] | None = None) -> Outline:
    """Put the segments among a partition's files together. `known_extents` are extents of segments that were read already, by path."""
    all_files = files
    files = [file for file in files if file.place.state is None and file.problem is None]
    segments = sorted(
        (file for file in files if file.format == "kafka.log"),
        key=lambda file: (file.place.start_offset or 0, file.path),
    )
    names = [file.place.start_offset or 0 for file in segments]
    extents = []
    for number, file in enumerate(segments):
        stop = next((name for name in names[number + 1 :] if name > names[number]), HUGE)
        end = stated_end(files) if number + 1 == len(segments) else None
        extent = (known_extents or {}).get(file.path)
        if extent is None or not extent.is_before(stop) or extent.is_beyond(end):
            extent = read_extent(file, stop, end)
        extent.stop = stop
        extents.append(extent)
    placed = _place_strays(extents)
    pieces = _pieces(extents, placed)
    gaps, holes = _judge(
        all_files, extents, _gaps(extents, pieces, segments, _start(files, segments)), _has_damage(extents, placed)
    )
    gaps = [*_start_gap(all_files, extents, pieces), *gaps, *_end_gap(files, extents, pieces)]
    lost = _lost(extents, pieces, gaps, placed)
    return Outline(extents, pieces, gaps, lost, placed, _epochs(extents, pieces).corrections(files), holes)


# What is refused ---------------------------------------------------------------------------------------------------------


def refuse_damage(owner: Identity | None, log: Outline, why: str, *, allows_tail: bool) -> None:
    """CorruptError for the first thing that repair would drop or change; `why` ends its message. With `allows_tail` this does not count
    what a crash leaves at the end of a log, unless other files say that records were there.
    """
    if owner is not None and owner.change is not None:
        raise CorruptError(f"{owner.change}; {why}", path=owner.path)
    refuse_holes(log, why, allows_tail=allows_tail)
    refuse_misplaced(log, why)
    for gap in log.gaps:
        if gap.is_lost:
            before = " before this segment" if gap.side is Side.BETWEEN else ""
            raise CorruptError(f"{gap}{before}; {why}", path=gap.file.path)
    for correction in log.corrections[:1]:
        what = f"leader epoch {correction.wrong} at offset {correction.first}, {correction.right} expected"
        raise CorruptError(f"{what}; {why}", path=log.extents[0].file.path)


def refuse_misplaced(log: Outline, why: str) -> None:
    """CorruptError for the first batch that is not at its place, and for a segment with a wrong name."""
    for number, extent in enumerate(log.extents):
        batches, choice = extent.sound, extent.choice
        if choice is None or batches is None:
            continue
        if choice.dropped or choice.rebased or choice.order != list(range(len(batches.head))) or number in log.placed:
            at = min([*choice.dropped, *choice.rebased, *choice.moved], default=0)
            raise CorruptError(
                f"a batch at offset {int(batches.head['base_offset'][at])} out of order; {why}",
                path=extent.file.path,
                position=int(batches.starts[at]),
                format="kafka.log",
                layout=BATCH.name,
                field="base_offset",
            )
    for piece in log.pieces:
        extent = log.extents[piece.segment]
        if piece.start != extent.first:
            raise CorruptError(f"a name that does not fit its offsets; {why}", path=extent.file.path)


def refuse_holes(log: Outline, why: str, *, allows_tail: bool) -> None:
    """DataError for the first bytes that are no batch."""
    for extent in log.extents:
        holes = [hole for hole in extent.sound.holes if hole.reason != PADDING] if extent.sound is not None else []
        for hole in holes:
            if not (allows_tail and extent.is_crash_tail(hole)):
                error = TruncatedError if hole.reason == UNFINISHED else CorruptError
                message = f"{hole.stop - hole.start:,} bytes are not a sound batch ({hole.reason}); {why}"
                raise error(message, path=extent.file.path, position=hole.start, format="kafka.log", layout=BATCH.name)


# How segments are put together -------------------------------------------------------------------------------------------


def _place_strays(extents: Sequence[Extent]) -> dict[int, set[int]]:
    """Which batches outside their segments' ranges are placed where their offsets say: those of a segment with a wrong name.

    The batches of a segment follow one another in the log, with none of another segment between them. So its strays are placed if they
    and its other batches are in one place between those of others, where nothing has their offsets; one of them may have a wrong offset.
    Otherwise the file is a copy, or of another log. Beyond the end of the log only what follows it is taken: with the end itself, or in
    a run.
    """
    placed: dict[int, set[int]] = {}
    if not any(extent.strays for extent in extents):
        return placed
    blocks = {
        index: (int(extent.covered[0][0]), int(extent.covered[-1][1]))
        for index, extent in enumerate(extents)
        if len(extent.covered)
    }
    # What is further from all segments than an index can name is no batch of the log: bytes of a damaged one may look like one.
    top = max([extent.first for extent in extents] + [high for _, high in blocks.values()]) + FARTHEST
    # The files that are displaced as a whole come first: nothing but their names says that they belong elsewhere.
    displaced = [index for index, extent in enumerate(extents) if extent.strays]
    for index in sorted(displaced, key=lambda index: (index in blocks, -len(extents[index].strays))):
        extent, block = extents[index], blocks.get(index)
        strays = {number: span for number, span in extent.strays.items() if span[1] <= top}
        # What is missing at the beginning of another segment is not in a file after it, unless that goes up to where the other one begins.
        is_before = block is None and any(low < extent.first for low, _ in strays.values())
        reached = max((high for _, high in strays.values()), default=NONE) + 1
        claims = {
            owner
            for owner, (low, _) in blocks.items()
            if is_before and owner not in placed and low != reached and not extents[owner].has_damage
        }
        others = sorted(
            (min(low, extents[owner].first) if owner in claims else low, high)
            for owner, (low, high) in blocks.items()
            if owner != index
        )
        slots: dict[int, list[int]] = {}
        for number, (low, high) in strays.items():
            at = bisect_right(others, (low, HUGE))
            if (not at or others[at - 1][1] < low) and (at == len(others) or high < others[at][0]):
                slots.setdefault(at, []).append(number)
        slot = max(slots, key=lambda at: len(slots[at]), default=0) if block is None else bisect_right(others, block)
        fitting = slots.get(slot, [])
        start = others[slot - 1][1] + 1 if slot and block is None else None
        firsts, lasts = (offsets.tolist() for offsets in extent.offsets())
        end = max((high for _, high in blocks.values()), default=NONE)
        rising: list[int] = []
        for number in longest_chain(sorted(fitting), firsts, lasts, start):
            if not (blocks or rising) or firsts[number] <= end + 1 or _is_in_run(extent, number, end):
                rising.append(number)
                end = max(end, lasts[number])
        rebased = _rebase_around(extent, rising, others) if rising else {}
        misfits = set(strays).difference(fitting, rebased)
        if not rising or (block is None and len(misfits) > min(1, len(fitting) - 1)):
            continue
        extent.rebase(rebased)
        placed[index] = {*rising, *rebased}
        spans = [extent.strays[number] for number in placed[index]] + ([] if block is None else [block])
        blocks[index] = (min(low for low, _ in spans), max(high for _, high in spans))
    return placed


def _rebase_around(extent: Extent, strays: Sequence[int], others: Sequence[Span]) -> dict[int, int]:
    """New base offsets for batches of a segment with a wrong name: the batches around them, `strays` among those, leave exactly the room.
    `others` are the offsets of the other segments.
    """
    sound, choice = extent.sound_and_choice()
    firsts, lasts = (offsets.tolist() for offsets in extent.offsets())
    rising = extent.in_order(set(strays))
    rest = [number for number in choice.dropped if number not in set(rising)]
    at = bisect_right(others, (firsts[rising[0]], HUGE))
    start = others[at - 1][1] + 1 if at else 0
    stop = others[at][0] if at < len(others) else None
    return rebase(rest, rising, sound.head["crc"].tolist(), firsts, lasts, start, stop)


def _is_in_run(extent: Extent, number: int, end: int) -> bool:
    """Whether a batch beyond the end of the log is near it, and its segment as a whole is displaced, or a run of batches in it."""
    low, high = extent.strays[number]
    if low > end + max(NEAR, end):
        return False
    if not len(extent.covered):
        return True
    around = [extent.strays.get(number - 1), extent.strays.get(number + 1)]
    return any(span is not None and (span[1] + 1 == low or high + 1 == span[0]) for span in around)


def _pieces(extents: Sequence[Extent], placed: Mapping[int, set[int]]) -> list[BatchRange]:
    """The log in the order of its offsets. A segment is one piece, unless batches of others belong among its own."""
    if not placed:
        return [
            BatchRange(index, None, int(extent.covered[0][0]), int(extent.covered[-1][1]), extent.first)
            for index, extent in enumerate(extents)
            if len(extent.covered)
        ]
    edges = sorted(
        low for index, numbers in placed.items() for low, _ in (extents[index].strays[number] for number in numbers)
    )
    parts: list[tuple[int, int, int, tuple[int, ...] | None, bool]] = []
    for index, extent in enumerate(extents):
        if len(extent.covered):
            for low, high, numbers in _split_at(extent, edges):
                parts.append((low, high, index, numbers, True))
        for number in placed.get(index, ()):
            parts.append((*extent.strays[number], index, (number,), False))
    parts.sort(key=lambda part: part[0])
    pieces: list[BatchRange] = []
    begun: set[int] = set()
    for index, run in groupby(parts, key=lambda part: part[2]):
        group = list(run)
        low, name, end = group[0][0], extents[index].first, pieces[-1].last if pieces else NONE
        fits = group[0][4] and index not in begun and end < name <= low
        begun.add(index)
        whole = len(group) == 1 and group[0][3] is None
        numbers = None if whole else tuple(chain.from_iterable(part[3] or () for part in group))
        pieces.append(BatchRange(index, numbers, low, group[-1][1], name if fits else low))
    return pieces


def _split_at(extent: Extent, edges: Sequence[int]) -> Iterable[tuple[int, int, tuple[int, ...] | None]]:
    """The own batches of a segment, cut where batches of others come between."""
    low, high = int(extent.covered[0][0]), int(extent.covered[-1][1])
    cuts = edges[bisect_left(edges, low) : bisect_right(edges, high)]
    if extent.choice is None and not cuts:
        return [(low, high, None)]
    order = extent.sound_and_choice()[1].order
    base, last = extent.offsets()
    parts = []
    starts = [int(base[number]) for number in order]
    for start, stop in zip([low, *cuts], [*cuts, HUGE], strict=True):
        inside = order[bisect_left(starts, start) : bisect_left(starts, stop)]
        if inside:
            parts.append((int(base[inside[0]]), int(last[inside[-1]]), tuple(inside)))
    return parts


def correct_epochs(frames: Frames, head: Heads, corrections: Sequence[Correction]) -> tuple[Frames, Heads]:
    """Batches with the leader epochs that they should have."""
    wrong = [
        (at, correction.right)
        for correction in corrections
        for at in np.flatnonzero(correction.is_wrong(head)).tolist()
    ]
    if wrong:
        frames, head = _copied(frames), Heads(head.values.copy())
        for at, epoch in wrong:
            set_field(frames.data, int(frames.starts[at]), "leader_epoch", epoch)
            head["leader_epoch"][at] = epoch
    return frames, head


def _copied(frames: Frames) -> Frames:
    """The same batches in bytes of their own, which can be changed."""
    start, stop = int(frames.starts.min()), int(frames.stops.max())
    starts, stops = frames.starts - start, frames.stops - start
    data, reached = frames.data[start:stop].copy(), frames.reached - start
    return replace(frames, data=data, starts=starts, stops=stops, reached=reached, base=frames.base + start)


def _epochs(extents: Sequence[Extent], pieces: Sequence[BatchRange]) -> EpochRuns:
    """The leader epochs of the batches that are of the log, in its order."""
    runs = EpochRuns(is_metadata=bool(extents) and extents[0].file.place.topic == METADATA_TOPIC)
    for piece in pieces:
        extent = extents[piece.segment]
        if piece.numbers is None and extent.epochs is not None:
            runs.join(extent.epochs)
            continue
        sound, choice = extent.sound_and_choice()
        order = choice.order if piece.numbers is None else list(piece.numbers)
        head = Heads(sound.head.values[:, order].copy())
        head["base_offset"][:], head["last_offset"][:] = (offsets[order] for offsets in extent.offsets())
        runs.add(head)
    return runs


def lost_offsets(files: Sequence[File], first: int, stop: int) -> list[Span]:
    """The lost ranges among the offsets from `first` to before `stop`. The log is read, once, unless names, checkpoints or settings show
    that compaction may have removed them.
    """
    is_named = any(first <= offset < stop for offset in index_traces(files))
    if not is_named and stop <= cleaned_before(files):
        return []
    gaps = Store.of(files).share(_outline).gaps
    return [(gap.first, gap.last + 1) for gap in gaps if gap.is_lost and gap.first < stop and first <= gap.last]


def expected_gaps(files: Sequence[File]) -> ExpectedGaps:
    """The gaps of a log that nobody need ask about: compaction explains them, or nothing contradicts it."""
    return ExpectedGaps(cleaned_before(files), named_offsets(files))


def _outline(store: Store) -> Outline:
    return outline(store.files)


def _start(files: Sequence[File], segments: Sequence[File]) -> int | None:
    """Where a log begins by the name of its first segment and the checkpoint; None of a metadata log, whose snapshots replace offsets."""
    if not segments or segments[0].place.topic == METADATA_TOPIC:
        return None
    return log_start(segments[0], files) or segments[0].place.start_offset or 0


def _overlaps(extent: Extent) -> bool:
    """Whether a batch begins inside of the one before it: both have zeros there, and some of them are gone."""
    return any(run.start < before.stop for before, run in pairwise(extent.runs))


def _begins_file(piece: BatchRange, extent: Extent) -> bool:
    """Whether the first batch of a piece is the first thing in its file, so that no damage took away others before it."""
    if extent.choice is None:
        return not extent.runs or extent.runs[0].start == 0
    sound, choice = extent.sound_and_choice()
    numbers = choice.order if piece.numbers is None else piece.numbers
    return int(sound.starts[numbers[0]]) == 0


def _gaps(
    extents: Sequence[Extent], pieces: Sequence[BatchRange], segments: Sequence[File], start_offset: int | None
) -> list[MissingOffsets]:
    """What is missing between segments, whatever the reason; and from the start of the log on, if the first one is empty."""
    gaps = []
    end = start_offset if extents and not extents[0].has_batches else None
    seen: set[int] = set()
    for piece in pieces:
        # Damage at the beginning of a segment says itself what it took away. A metadata log has no gaps at all.
        is_metadata = segments[piece.segment].place.topic == METADATA_TOPIC
        start = piece.first if is_metadata or _begins_file(piece, extents[piece.segment]) else piece.start
        if end is not None and end < start and piece.segment not in seen:
            gaps.append(MissingOffsets(end, start - 1, segments[piece.segment]))
        end = piece.last + 1
        seen.add(piece.segment)
    if extents and end is not None and not extents[-1].has_batches and end < extents[-1].first:
        gaps.append(MissingOffsets(end, extents[-1].first - 1, segments[-1]))
    return gaps


def _has_damage(extents: Sequence[Extent], placed: Mapping[int, set[int]]) -> bool:
    return bool(placed) or any(
        extent.has_damage or (extent.choice is not None and (extent.choice.dropped or extent.choice.rebased))
        for extent in extents
    )


def _judge(
    files: Sequence[File], extents: Sequence[Extent], between: Sequence[MissingOffsets], has_damage: bool
) -> tuple[list[MissingOffsets], list[tuple[int, int]]]:
    """The gaps between segments and inside of them that compaction does not explain; and the undecided runs of offsets inside of them."""
    holes, owners = _holes(extents)
    runs = np.concatenate((np.array([(gap.first, gap.last) for gap in between], np.int64).reshape(-1, 2), holes))
    cleaned = max((extent.cleaned for extent in extents), default=NONE)
    compacted, undecided = judge_gaps(files, runs, cleaned, has_damage=has_damage)
    count = len(between)
    # Damage explains what is missing between segments, too: then it is lost. Not in a log that looks compacted inside of its segments.
    by_damage = has_damage and not undecided[count:].any()
    gaps = [
        replace(gap, is_undecided=bool(is_undecided) and not by_damage)
        for gap, is_compacted, is_undecided in zip(between, compacted, undecided, strict=False)
        if not is_compacted
    ]
    lost = ~(compacted | undecided)[count:]
    for (first, last), owner in zip(holes[lost].tolist(), owners[lost].tolist(), strict=True):
        gaps.append(MissingOffsets(first, last, extents[owner].file, Side.INSIDE))
    return gaps, [(first, last) for first, last in holes[undecided[count:]].tolist()]


def _holes(extents: Sequence[Extent]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and last missing offsets between adjacent batches of a segment, for any reason; and the number of the segment."""
    holes = [np.empty((0, 2), np.int64)]
    for extent in extents:
        if extent.choice is None:
            starts, stops = extent.covered[:-1, 1] + 1, extent.covered[1:, 0] - 1
        else:
            sound, choice = extent.sound_and_choice()
            firsts, lasts = extent.offsets()
            order = np.array(choice.order, np.int64)
            follows = sound.stops[order[:-1]] == sound.starts[order[1:]]
            at = np.flatnonzero(follows & (firsts[order[1:]] > lasts[order[:-1]] + 1))
            starts, stops = lasts[order[at]] + 1, firsts[order[at + 1]] - 1
        holes.append(np.stack([starts, stops], axis=1))
    return np.concatenate(holes), np.repeat(np.arange(len(extents)), [len(spans) for spans in holes[1:]])


def _start_gap(files: Sequence[File], extents: Sequence[Extent], pieces: Sequence[BatchRange]) -> list[MissingOffsets]:
    """What is missing at the start, and retention does not explain. Batches may be before the name of the first segment."""
    trace = first_trace(files)
    if trace is None or not extents:
        return []
    start = min([extents[0].first, *(piece.first for piece in pieces[:1])])
    if trace.offset >= start:
        return []
    return [MissingOffsets(trace.offset, start - 1, extents[0].file, Side.START, trace.text, trace.is_remote)]


def _end_gap(files: Sequence[File], extents: Sequence[Extent], pieces: Sequence[BatchRange]) -> list[MissingOffsets]:
    """The offsets missing at the end, according to other files."""
    if not extents:
        return []
    trace = last_trace(files)
    end = max((piece.last + 1 for piece in pieces), default=extents[-1].first)
    if not extents[-1].has_batches:
        end = max(end, extents[-1].first)
    return (
        [MissingOffsets(end, trace.offset - 1, extents[-1].file, Side.END, trace.reason)] if trace.offset > end else []
    )


def _lost(
    extents: Sequence[Extent],
    pieces: Sequence[BatchRange],
    gaps: Sequence[MissingOffsets],
    placed: Mapping[int, set[int]],
) -> list[tuple[int, int | None]]:
    """The gaps, and the offsets around every place where bytes are no sound batch or a batch has no place in the log."""
    spans: list[tuple[int, int | None]] = [(gap.first, gap.last) for gap in gaps if gap.is_lost]
    first: dict[int, int] = {}
    for at, piece in enumerate(pieces):
        first.setdefault(piece.segment, at)
    for index, extent in enumerate(extents):
        if extent.sound is not None and extent.choice is not None and (extent.has_damage or extent.choice.dropped):
            spans += _offsets_around_damage(index, extents, pieces, first.get(index), placed.get(index, set()))
    if not spans:
        return []
    rows = [tuple(row) for extent in extents for row in extent.covered.tolist()]
    rows += [extents[index].strays[number] for index, numbers in placed.items() for number in numbers]
    return _subtract(spans, rows)


def _offsets_around_damage(
    index: int, extents: Sequence[Extent], pieces: Sequence[BatchRange], at: int | None, placed: set[int]
) -> Iterable[tuple[int, int | None]]:
    """For each place of damage the offsets between the batches around it."""
    extent = extents[index]
    sound, choice = extent.sound_and_choice()
    bases, lasts = (offsets.tolist() for offsets in extent.offsets())
    kept = extent.in_order(placed)
    cut = [hole.start for hole in sound.holes if not extent.is_crash_tail(hole)]
    cut += [int(sound.starts[number]) for number in choice.dropped if number not in placed]
    cut += [int(sound.starts[number]) for number in placed.difference(kept)]
    edges = sound.starts[kept]
    end = max((piece.last + 1 for piece in pieces[: at or 0]), default=0)
    # Where the next segment begins, whether anything is left of it or not.
    starts = sorted(
        [piece.start for piece in pieces] + [extent.first for extent in extents[index + 1 :] if not len(extent.covered)]
    )
    for position in cut:
        place = int(np.searchsorted(edges, position))
        if place:
            low = lasts[kept[place - 1]] + 1
        elif not kept or extent.first <= bases[kept[0]]:
            low = max(end, extent.first) if kept else extent.first
        else:
            low = end if at else bases[kept[0]]
        high: int | None
        if place < len(kept):
            high = bases[kept[place]] - 1
        elif kept:
            high = next((start - 1 for start in starts if start >= low), None)
        else:
            high = None if extent.stop == HUGE else extent.stop - 1
        if high is None or low <= high:
            yield low, high


def _subtract(spans: Iterable[tuple[int, int | None]], covered: Iterable[Span]) -> list[tuple[int, int | None]]:
    """The ranges, joined, without the covered offsets."""
    ranges = Intervals((first, HUGE if last is None else last + 1) for first, last in spans)
    left = ranges.subtract(Intervals.closed(covered))
    return [(first, None if stop == HUGE else stop - 1) for first, stop in left]
