"""Which replica decides what a partition's history is, what is taken from the others, and what is lost: the decision on one partition.

The replica that led at death decides, then those that were in sync, then the highest leader epoch and the longest log. What is known of a
partition is never more than what its replicas and the cluster's metadata say; everything that they leave open is listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from rawlog.core.rescue import CopyPlan, PiecePlan, Span, UnitPlan
from rawlog.core.text import counted
from rawlog.formats.kafka.layouts import NONE
from rawlog.formats.kafka.store.lineage import Copy, Lineage, Piece, span, subtract, unite

#: So many ranges of offsets are named in one sentence.
SHOWN = 5
NOT_ASSIGNED, NOT_LOADED, FUTURE = 1, 2, 3
"""Ranks of copies: on a broker that is not to have one; of a state that a broker does not load; the unfinished copy of another disk."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """What the cluster knew of a partition at death: its leader (-1 if none), the leader epoch, who was in sync, who has replicas."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(slots=True)
class Decision:
    """What becomes of a partition: the plan, and the pieces to write. `floor` is the first offset that consumers get."""

    plan: UnitPlan
    pieces: list[Piece] = field(default_factory=list)
    start: int = 0
    floor: int | None = None


def brokers(nodes: Iterable[int]) -> str:
    """The names of brokers in a sentence."""
    named = sorted(nodes)
    return f"broker{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}"


def decide(
    name: str,
    copies: Sequence[Copy],
    known: Assignment | None,
    *,
    is_compacted: bool | None = False,
    left_out: Sequence[CopyPlan] = (),
    unknown: Sequence[str] = (),
    nodes: Collection[int] = (),
) -> Decision:
    """Decide on a partition. `known` is None where no metadata tells of it; `left_out` are copies that are only listed. `is_compacted` is
    None where nothing tells. `nodes` are the brokers of which a disk is here.
    """
    usable = [one for one in copies if not one.is_blank] or list(copies)
    if not usable:
        lost = (Span(0, None, "no replica of it is here"),)
        return Decision(
            UnitPlan(name, "lost", 0, 0, "no replica was found", tuple(left_out), lost=lost, unknown=tuple(unknown))
        )
    return _Decider(name, usable, known, is_compacted, list(unknown), nodes).decide(copies, left_out)


class _Decider:
    """The steps of the decision on a partition."""

    def __init__(
        self,
        name: str,
        copies: Sequence[Copy],
        known: Assignment | None,
        is_compacted: bool | None,
        unknown: list[str],
        nodes: Collection[int],
    ) -> None:
        self.name, self.copies, self.is_compacted, self.unknown = name, copies, is_compacted, unknown
        self.nodes = nodes
        newest = max(one.written_epoch for one in copies)
        self.is_outdated = known is not None and newest > known.epoch
        self.known = None if self.is_outdated else known
        self.said = known
        self.winner, self.reason = self._winner()
        self.others = sorted(
            (one for one in copies if one is not self.winner), key=lambda one: (one.rank, -one.last_epoch, -one.end)
        )
        self.lineage = Lineage(self.winner.epochs, self.winner.end)
        while any(self.lineage.extend(one) for one in self.others):
            pass
        self.limits = {one.number: min(self.lineage.common(one), one.end) for one in copies}
        #: The copies without what contradicts the result: only these tell times.
        self.agreeing = [
            replace(one, runs=tuple(run for run in one.runs if run.first < self.limits[one.number])) for one in copies
        ]

    # Who decides --------------------------------------------------------------------------------------------------------

    def _winner(self) -> tuple[Copy, str]:
        known, plain = self.known, [one for one in self.copies if one.rank < NOT_LOADED] or list(self.copies)
        if known is None:
            best = _furthest(plain)
            why = _why(best, plain)
            if self.is_outdated and self.said is not None:
                text = f"the metadata knows leader epoch {self.said.epoch}, the logs a later one: it is older than they are"
                self.unknown.append(f"{text}; who was in sync at death is not known")
                return best, f"{why}; the metadata is older than the logs"
            return best, why
        leaders = [one for one in plain if one.node == known.leader and known.leader >= 0]
        if leaders:
            return _furthest(leaders), f"broker {known.leader} led at death, epoch {known.epoch}"
        synced = [one for one in plain if one.node in known.isr]
        if synced:
            best = _furthest(synced)
            gone = f"; the leader: {self._absent([known.leader])}" if known.leader >= 0 else ""
            return best, f"broker {best.node} was in sync at death, epoch {known.epoch}{gone}"
        best = _furthest(plain)
        return best, f"no in-sync replica is here ({brokers(known.isr)}): {_why(best, plain)}"

    # What is lost, and what is not known -----------------------------------------------------------------------------------

    def decide(self, every: Sequence[Copy], left_out: Sequence[CopyPlan]) -> Decision:
        """Put the decision together."""
        end, members = (
            self.lineage.end,
            [one for one in self.copies if self.limits[one.number] > one.start or not one.runs],
        )
        floors = [one.log_start for one in members if one.log_start is not None and one.log_start <= end]
        floor = max(floors, default=None)
        begin = min((one.start for one in members), default=self.winner.start)
        if floor is not None:
            bases = [run.base for one in members for run in one.runs if run.base <= floor < run.end]
            begin = max(begin, min(bases, default=floor))
        ranked = [(one, self.limits[one.number]) for one in (self.winner, *self.others)]
        union = unite(ranked, begin, end, is_compacted=bool(self.is_compacted))
        taken = [(one.start, one.stop) for one in union.pieces]
        lost = [*self._lost_start(begin, floor), *self._lost(subtract([(begin, end)], taken))]
        lost += self._lost_tail(members)
        self._note_crowded()
        self._note_filled(union.pieces)
        pieces = [self._explained(one) for one in union.pieces]
        start, stop = (pieces[0].start, pieces[-1].stop) if pieces else (end, end)
        plan = UnitPlan(
            self.name,
            "rescue",
            max(start, floor or 0),
            stop,
            self.reason,
            (*(self._copy_plan(one, pieces) for one in every), *left_out),
            tuple(PiecePlan(one.copy, one.start, one.stop, one.reason) for one in pieces),
            tuple(lost),
            tuple(self._undecided(start, stop)),
            tuple(self._divergent()),
            tuple(self.unknown),
        )
        return Decision(plan, pieces, begin if pieces else end, floor)

    def _lost_start(self, begin: int, floor: int | None) -> Iterable[Span]:
        """What the replica that decides had before all logs that are here."""
        trace = self.winner.first_trace
        if trace is None or max(trace.offset, floor or 0) >= begin:
            return
        start = max(trace.offset, floor or 0)
        if trace.is_remote:
            self.unknown.append(
                f"offsets {start:,} to {begin - 1:,} are in remote storage, which is not among the paths"
            )
        else:
            yield span(self.agreeing, start, begin, trace.text)

    def _lost(self, missing: Sequence[tuple[int, int]]) -> list[Span]:
        """Offsets that no replica has. Those before the first segment of the replica that decides were perhaps deleted by retention."""
        made = []
        for start, stop in missing:
            trace = self.winner.first_trace
            older = min(stop, self.winner.start if trace is None or trace.is_remote else trace.offset)
            if start < older:
                self.unknown.append(
                    f"offsets {start:,} to {older - 1:,} are on no disk: deleted by retention, or lost; nothing tells which"
                )
            if self.is_compacted is None and (self._is_head(start, stop) or self._is_undecided(start, stop)):
                self.unknown.append(
                    f"offsets {start:,} to {stop - 1:,} were compacted away, or are lost; nothing tells which"
                )
            elif max(start, older) < stop:
                damaged = any(
                    one.first < stop and (one.end is None or one.end > start)
                    for copy in self.copies
                    for one in copy.damage
                )
                reason = "damaged, and no other replica has them" if damaged else "no replica has them"
                made.append(span(self.agreeing, max(start, older), stop, reason))
        return made

    def _is_head(self, start: int, stop: int) -> bool:
        """Whether offsets are those before the first batch of a log, in a segment that has nothing else there."""
        runs, damage = self.winner.runs, self.winner.damage
        is_first = bool(runs) and start == self.winner.start and stop == runs[0].first and runs[0].start == 0
        return is_first and not any(one.first < stop for one in damage)

    def _is_undecided(self, start: int, stop: int) -> bool:
        """Whether every copy that reaches over offsets lacks them between two segments, and has nothing that contradicts compaction."""
        around = [one for one in self.copies if one.start < stop and one.end > start]
        return all(any(a <= start and stop <= b + 1 for a, b in one.undecided) for one in around) and bool(around)

    def _note_crowded(self) -> None:
        """List sound batches that are left out because others have their offsets."""
        for one in self.winner.damage:
            if one.count is not None and one.end is not None and one.end - one.first < one.count:
                self.unknown.append(
                    f"{one.path}: byte {one.start:,}: a batch of {counted(one.count, 'record')} says offset {one.said:,}, where there "
                    "is no room for it; where it belongs is not known"
                )

    def _note_filled(self, pieces: Sequence[Piece]) -> None:
        """Say where a compacted log was put together: replicas are compacted by themselves, so that one may lack the end of a key."""
        filled = [one for one in pieces if one.copy != self.winner.number and one.start < self.winner.sound_end]
        if self.is_compacted and filled:
            shown = ", ".join(f"{one.start:,} to {one.stop - 1:,}" for one in filled[:SHOWN])
            more = f" and {len(filled) - SHOWN:,} more ranges" if len(filled) > SHOWN else ""
            self.unknown.append(
                f"offsets {shown}{more} are from another replica, which was compacted by itself: a key whose last record "
                "it had removed may have an older value again"
            )

    def _lost_tail(self, members: Sequence[Copy]) -> list[Span]:
        """What was after the end of all logs."""
        end, known = self.lineage.end, self.known
        whole = [one for one in members if self.limits[one.number] >= one.end]
        traced = max((one.traced for one in whole), default=0)
        marked = max((one.high_watermark or 0 for one in whole), default=0)
        if max(traced, marked) > end:
            what = f"committed up to offset {marked - 1:,}" if marked >= traced else "other files say that they existed"
            return [span(self.agreeing, end, max(traced, marked), f"{what}; no replica has them")]
        synced = [] if known is None else [one for one in whole if one.node in known.isr]
        if known is not None and known.isr and not synced:
            reason = f"in sync at death: {self._absent(known.isr)}; how much was there is not known"
            return [span(self.agreeing, end, None, reason)]
        cut = [
            one for one in whole if one.sound_end == end and any(bad.is_last and bad.end is None for bad in one.damage)
        ]
        is_sure = any(not one.damage for one in synced)
        if cut and not is_sure:
            return [span(self.agreeing, end, None, "damaged at the end of the log; how much was there is not known")]
        if cut:
            self.unknown.append(
                f"the log on {cut[0].disk} is damaged after offset {end - 1:,}: what was there was not on all in-sync replicas"
            )
        return []

    def _undecided(self, start: int, end: int) -> Iterable[Span]:
        """Records that are kept although nothing tells that they were committed."""
        known = self.known
        whole = [one for one in self.copies if self.limits[one.number] > one.start]
        committed = max((min(one.high_watermark or 0, self.limits[one.number]) for one in whole), default=0)
        reason = "no high watermark covers them, and who was in sync is not known"
        if known is not None:
            synced = [one for one in whole if one.node in known.isr and one.rank < NOT_LOADED]
            ends = {
                node: max(self.limits[one.number] for one in synced if one.node == node)
                for node in {one.node for one in synced}
            }
            absent = set(known.isr) - set(ends)
            if ends and not absent:
                committed = max(committed, min(ends.values()))
                reason = "not on all in-sync replicas: acknowledged with acks=1 at most"
            elif absent:
                reason = f"no high watermark covers them; in sync at death: {self._absent(absent)}"
        if committed < end and end > start:
            first = max(committed, start)
            inside = [run for one in self.agreeing for run in one.runs if run.end > first and run.since >= 0]
            since, until = (
                min((run.since for run in inside), default=None),
                max((run.until for run in inside), default=None),
            )
            yield Span(first, end, reason, since, until)

    def _divergent(self) -> Iterable[tuple[int, Span]]:
        """The ends of logs that contradict the result."""
        for one in (self.winner, *self.others):
            limit = self.limits[one.number]
            if one.sound_end <= limit:
                continue
            inside = [run for run in one.runs if run.end > limit]
            epoch = inside[-1].epoch
            reason = (
                f"epoch {epoch}, contradicted by epoch {self.lineage.epochs[-1][0] if self.lineage.epochs else NONE}"
            )
            marked = one.high_watermark or 0
            if marked > limit:
                reason += f"; committed up to offset {marked - 1:,} before an unclean election"
            yield one.number, Span(limit, one.sound_end, reason, inside[0].since, max(run.until for run in inside))

    def _absent(self, nodes: Iterable[int]) -> str:
        """Why these brokers have no copy: their disks are not here, or the directory is missing on them."""
        empty, gone = [one for one in nodes if one in self.nodes], [one for one in nodes if one not in self.nodes]
        texts = [f"the directory is missing on the disk of {brokers(empty)}"] if empty else []
        return ", and ".join(texts + ([f"no disk of {brokers(gone)} is here"] if gone else []))

    # In words ------------------------------------------------------------------------------------------------------------

    def _explained(self, piece: Piece) -> Piece:
        if piece.copy == self.winner.number:
            return Piece(piece.copy, piece.start, piece.stop, self.reason)
        if piece.start >= self.winner.sound_end:
            why = f"after the end of the log on {self.winner.disk}"
        elif piece.stop <= self.winner.start:
            why = f"before the beginning of the log on {self.winner.disk}"
        else:
            why = f"damaged or missing on {self.winner.disk}"
        return Piece(piece.copy, piece.start, piece.stop, why)

    def _copy_plan(self, copy: Copy, pieces: Sequence[Piece]) -> CopyPlan:
        taken = [one for one in pieces if one.copy == copy.number]
        limit = self.limits.get(copy.number, copy.end)
        if copy is self.winner:
            use = "decides"
        elif taken:
            many = sum(one.stop - one.start for one in taken)
            use = f"{counted(many, 'offset')} used"
        elif copy.sound_end <= limit:
            use = "not needed"
        else:
            use = ""
        if copy.sound_end > limit:
            use = f"{use}{', ' if use else ''}divergent from offset {limit:,} on"
        elif copy is not self.winner and copy.end < self.lineage.end and copy.rank < FUTURE:
            use += f", ends {counted(self.lineage.end - copy.end, 'offset')} earlier"
        return copy_plan(copy, use)


def copy_plan(copy: Copy, use: str) -> CopyPlan:
    """A copy as the plan lists it."""
    lineage = ", ".join(f"{epoch} from {start:,}" for epoch, start in copy.epochs)
    damage = tuple(
        Span(one.first, one.end, f"bytes {one.start:,} to {one.stop:,} of {one.path.rpartition('/')[2]}")
        for one in copy.damage
    )
    damage += tuple(
        Span(one.first, one.end, f"a wrong offset at byte {one.start:,} of {one.path.rpartition('/')[2]}")
        for one in copy.runs
        if one.is_moved
    )
    start = copy.runs[0].first if copy.runs else copy.start
    return CopyPlan(copy.disk, copy.path, start, copy.sound_end, copy.size, copy.state, lineage, damage, use)


def _furthest(copies: Sequence[Copy]) -> Copy:
    return max(copies, key=lambda one: (-one.rank, one.last_epoch, one.end, -len(one.damage)))


def _why(best: Copy, copies: Sequence[Copy]) -> str:
    """Why a copy is the furthest."""
    if len(copies) == 1:
        return "the only replica here"
    if best.last_epoch == NONE:
        return "the longest log; it has no leader epochs"
    if all(one.last_epoch == best.last_epoch for one in copies):
        same = all(one.end == best.end for one in copies)
        return f"all replicas end in epoch {best.last_epoch}{'' if same else '; the longest log'}"
    return f"the highest leader epoch, {best.last_epoch}"
