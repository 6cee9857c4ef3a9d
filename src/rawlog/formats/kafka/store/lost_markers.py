"""Transaction markers among lost offsets: whether a transaction whose records are left was committed or aborted.

A record of a transaction is visible to a read_committed consumer only after a COMMIT marker. Where a damaged stretch may have held the
marker, other files still know it: a transaction index names every aborted transaction with the offset of its marker, a producer snapshot
names the transactions that were open at its offset, `__transaction_state` has the coordinator's decisions, and a producer begins a new
epoch only after its transaction has ended. What none of them knows is reported, never guessed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from rawlog.core.format import File, Place
from rawlog.formats.kafka.layouts import NONE, ControlType
from rawlog.formats.kafka.store.damaged_markers import Witness
from rawlog.formats.kafka.store.marker_evidence import ENDLESS, STATE_TOPIC, Indexes, State, snapshots_of, states_near
from rawlog.formats.kafka.store.marker_ledger import Event, Ledger

NEAR, FURTHEST = 4096, 1 << 30
"""So far after the end of what is left a marker may have been; and so far the name of a snapshot is believed."""
COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
DECISIONS = ((COMMITTED, "Commit"), (ABORTED, "Abort"))
"""Outcomes, and what the coordinator's states have in their names."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction whose marker is, or may be, among lost offsets. `first_offset` and `last_offset` are of its records that are left;
    `marker_offset` is where its marker was put back, None if it was not.
    """

    producer_id: int
    epoch: int
    first_offset: int
    last_offset: int
    outcome: str
    evidence: str
    marker_offset: int | None = None
    marker_epoch: int = NONE
    coordinator_epoch: int = 0
    timestamp: int = NONE

    def without_marker(self) -> Transaction:
        """The same where no marker is put back."""
        return replace(self, marker_offset=None)

    def line(self) -> str:
        """For people."""
        what = f"transaction of producer {self.producer_id}, epoch {self.epoch}, offsets {self.first_offset} to {self.last_offset}"
        if self.marker_offset is None:
            known = "is not known to be committed or aborted" if self.outcome == UNKNOWN else f"was {self.outcome}"
            return f"{what}: {known}: {self.evidence}"
        name = "COMMIT" if self.outcome == COMMITTED else "ABORT"
        return f"{what}: was {self.outcome}, its lost {name} marker was put back at offset {self.marker_offset}: {self.evidence}"


@dataclass(slots=True)
class _Boundary:
    """Between a run of a producer's batches and what is left of it next, where lost offsets may have held the marker."""

    run: Event
    following: Event | None
    first: int
    #: Lost stretches, each a first offset and one after the last.
    stretches: list[tuple[int, int]]
    ended: bool | None = None
    outcome: str = UNKNOWN
    marker: int | None = None
    witness: Witness | None = None
    reasons: list[str] = field(default_factory=list)


class Judge:
    """Decides on every transaction whose marker may be lost."""

    def __init__(self, ledger: Ledger, damage: Sequence[tuple[int, int | None]], files: Sequence[File]) -> None:
        self.ledger, self.damage = ledger, damage
        self.place = next((one.place for one in files if one.place.group is not None), Place())
        self.end = ledger.end or 0
        self.indexes = Indexes(files, ledger.aborts)
        self.snapshots = snapshots_of(files)
        self.log_end = max([self.end, *(one for one in self.snapshots if one < self.end + FURTHEST)])
        self._states: dict[int, list[State]] | None = None
        self._taken: set[int] = set()
        self.lost = self._lost_gaps()

    def decide(self) -> list[Transaction]:
        """Every transaction whose marker may be lost and that matters to what read_committed consumers see."""
        found = [(number, one) for number in sorted(self.ledger.events) for one in self._boundaries(number)]
        before: tuple[int, _Boundary] | None = None
        for number, one in found:
            self._weigh(number, one)
            if before is not None and before[0] == number and before[1].ended and before[1].following is not None:
                one.first = max(one.first, before[1].following.first)
            before = (number, one)
            if one.marker in self._taken:
                one.outcome, one.marker = UNKNOWN, None  # two producers cannot have had their markers at one offset
            elif one.marker is not None:
                self._taken.add(one.marker)
        for _, one in found:
            if one.ended and one.marker is None:
                one.marker = self._room(one.stretches)
        for _, one in found:
            if one.ended is None and not self._has_room(one.stretches):
                one.ended = False  # every lost offset was the marker of another producer
        return [made for number, one in found if (made := self._result(number, one)) is not None]

    def _raises_epochs(self, number: int) -> bool:
        """Whether every transaction of a producer raises its epoch (KIP-890): by its own COMMIT markers, or those of all producers."""
        own = self.ledger.raised.get(number)
        return (own or set().union(*self.ledger.raised.values())) == {True}

    def _lost_gaps(self) -> dict[int, tuple[int, int]]:
        """The gaps that damage left and that have room for a marker, by number; the one after the last batch included."""
        gaps = [(first, last + 1) for first, last in self.ledger.gaps]
        found = {}
        for number, (start, stop) in enumerate([*gaps, (self.end, ENDLESS)]):
            if self.ledger.missing.get(number) == stop - start:
                continue  # all of it were records of producers whose sequence numbers go on
            if any(low < stop and (high is None or high >= start) for low, high in self.damage):
                found[number] = (start, stop)
        return found

    def _boundaries(self, number: int) -> list[_Boundary]:
        """The places where a marker of a producer may be lost, in order."""
        events = self.ledger.events[number]
        found = []
        first = None
        numbers = list(self.lost)
        for at, event in enumerate(events):
            if event.kind is not None:
                first = None
                continue
            first = event.first if first is None else first
            following = events[at + 1] if at + 1 < len(events) else None
            last = len(self.ledger.gaps) + 1 if following is None else following.gap
            between = numbers[bisect_left(numbers, event.gap) : bisect_left(numbers, last)]
            stretches = [self.lost[one] for one in between]
            if stretches:
                found.append(_Boundary(event, following, first, stretches))
        return found

    def _weigh(self, number: int, one: _Boundary) -> None:
        """Ask all that may know: first whether the transaction ended there, then how."""
        aborted = sorted(self.indexes.aborted.get(number, ()), key=lambda entry: entry.last_offset)
        for witness in self.ledger.witnesses:
            if witness.certain and witness.producer_id == number and self._holds(one, witness.offset):
                one.ended, one.marker, one.witness = True, witness.offset, witness
                one.outcome = COMMITTED if witness.kind == ControlType.COMMIT else ABORTED
                one.reasons.append("one byte of the marker is damaged, and its checksum shows which")
                return
        own = one.run.epoch if one.following is None or one.following.kind is None else one.run.epoch + 1
        if one.following is not None and one.following.epoch == own and self._raises_epochs(number):
            one.ended = False  # of the same transaction
            return
        for entry in aborted:
            marker = entry.last_offset
            if self._holds(one, marker) and entry.first_offset <= one.run.last < marker:
                one.ended, one.outcome, one.marker = True, ABORTED, entry.last_offset
                one.reasons.append("the transaction index names it as aborted")
                return
        until = ENDLESS if one.following is None else one.following.first
        limit = until
        for entry in aborted:
            if entry.last_offset >= until and entry.first_offset <= one.run.last:
                one.ended = False  # it goes on up to a marker that is left, or is lost further on
                return
            if one.run.last < entry.first_offset <= until:
                one.ended, limit = True, min(limit, entry.first_offset)
                one.reasons.append(
                    f"the transaction index has its next transaction from offset {entry.first_offset} on"
                )
        for offset, rows in sorted(self.snapshots.items()):
            row = rows.get(number)
            if row is None or offset <= one.run.last:
                continue
            opened = row["current_txn_first_offset"]
            if opened != NONE and opened <= one.run.last:
                one.stretches = [(max(start, offset), stop) for start, stop in one.stretches if stop > offset]
                if offset >= until or not one.stretches:
                    one.ended = False
                    return
            elif offset <= until or one.run.last < opened <= until:
                one.ended, limit = True, min(limit, max(offset, opened))
                one.reasons.append(f"the producer snapshot at offset {offset} has it closed")
                break
        if one.following is not None and one.following.epoch - one.run.epoch >= (
            1 if one.following.kind is None else 2
        ):
            one.ended = True
            one.reasons.append(f"the producer went on with epoch {one.following.epoch}")
        self._outcome(number, one, limit)

    def _holds(self, one: _Boundary, offset: int) -> bool:
        """Whether an offset is among the lost ones; after the end of the log, only what is near."""
        near = max(self.log_end, self.end + NEAR)
        return any(start <= offset < (near if stop == ENDLESS else stop) for start, stop in one.stretches)

    def _outcome(self, number: int, one: _Boundary, limit: int) -> None:
        """How a transaction ended that is not listed as aborted."""
        stretches = [(start, min(stop, limit)) for start, stop in one.stretches if start < limit]
        not_aborted = bool(stretches) and all(
            start < self.log_end and self.indexes.tells_all(start, min(stop, self.log_end), self.log_end)
            for start, stop in stretches
        )
        marker = self._marker_after(number, one.run)
        if one.ended is None and not_aborted and marker is not None and marker.kind == ControlType.COMMIT:
            one.ended = False  # committed there or later: visible either way
            return
        decided, is_exact = self._decided(number, one)
        left = None if marker is None else COMMITTED if marker.kind == ControlType.COMMIT else ABORTED
        if one.ended is None and decided is not None and decided in ("", left):
            one.ended = False  # it goes on, or the marker that is left says the same
            return
        if decided:
            one.ended, one.outcome = True, decided
            one.reasons.append(f"{STATE_TOPIC} has it {decided}")
        if one.ended and not_aborted and not self._reads_abort(number, one):
            one.reasons.append("no transaction index names it as aborted")
            if decided != ABORTED:
                one.outcome = COMMITTED
            elif not is_exact:
                one.outcome = UNKNOWN
        if one.ended and one.outcome != UNKNOWN:
            one.stretches = stretches or one.stretches

    def _reads_abort(self, number: int, one: _Boundary) -> bool:
        """Whether a damaged marker says that the transaction was aborted."""
        found = [witness for witness in self.ledger.witnesses if witness.producer_id == number]
        return any(each.kind == ControlType.ABORT and self._holds(one, each.offset) for each in found)

    def _marker_after(self, number: int, run: Event) -> Event | None:
        return next((one for one in self.ledger.events[number] if one.kind is not None and one.first > run.last), None)

    def _decided(self, number: int, one: _Boundary) -> tuple[str | None, bool]:
        """What the coordinator decided; empty if the transaction goes on, None if nothing tells. And whether the epoch says that it is
        this transaction; else only the time does.
        """
        if self._states is None:
            self._states = states_near(self.place.group)
        here = (self.place.topic, self.place.partition)
        rows = self._states.get(number, [])
        mine = [row for row in rows if not row.partitions or here in row.partitions]
        exact = [row for row in mine if row.version >= 2 and row.epoch == one.run.epoch + 1]
        timely = [
            row
            for row in mine
            if row.version < 2
            and row.epoch in (one.run.epoch, one.run.epoch + 1)
            and row.start <= one.run.timestamp <= row.update
        ]
        for chosen in (exact, timely):
            outcomes = {name for row in chosen for name, text in DECISIONS if text in row.status}
            if len(outcomes) == 1:
                return outcomes.pop(), chosen is exact
        latest = rows[-1] if rows else None
        if (
            latest is not None
            and (latest.status, latest.epoch) == ("Ongoing", one.run.epoch)
            and here in latest.partitions
            and latest.start <= one.run.timestamp
        ):
            return "", False
        return None, False

    def _result(self, number: int, one: _Boundary) -> Transaction | None:
        if one.ended is False:
            return None
        made = Transaction(number, one.run.epoch, one.first, one.run.last, one.outcome, ", and ".join(one.reasons))
        if one.outcome == UNKNOWN or one.marker is None:
            marker = self._marker_after(number, one.run)
            effect = (
                f"it stays open, and read_committed consumers stop at offset {one.first}"
                if marker is None
                else f"it is read as if the marker at offset {marker.first} were its own"
            )
            reasons = [*one.reasons, "its marker may be among the lost offsets", effect]
            return replace(made, evidence="; ".join(reasons))
        if (seen := one.witness) is not None:
            epoch, coordinator, timestamp = seen.epoch, seen.coordinator_epoch, seen.timestamp
        else:
            row = self._row_after(number, one)
            epoch, coordinator = self._epoch(number, one, row), self._coordinator_epoch(number, one, row)
            timestamp = row["timestamp"] if row is not None and row["timestamp"] >= 0 else one.run.timestamp
        return replace(
            made, marker_offset=one.marker, marker_epoch=epoch, coordinator_epoch=coordinator, timestamp=timestamp
        )

    def _room(self, stretches: list[tuple[int, int]]) -> int | None:
        """A free offset in the first lost stretch that has one: the last of it."""
        for start, stop in stretches:
            if stop == ENDLESS and self.log_end > start:
                stop = self.log_end
            ahead = stop == ENDLESS  # nothing tells where the log ended
            offset = start if ahead else stop - 1
            while offset in self._taken:
                offset += 1 if ahead else -1
            if offset >= start:
                self._taken.add(offset)
                return offset
        return None

    def _has_room(self, stretches: list[tuple[int, int]]) -> bool:
        """Whether lost stretches have an offset that no known marker had."""
        return any(
            stop == ENDLESS or sum(start <= one < stop for one in self._taken) < stop - start
            for start, stop in stretches
        )

    def _row_after(self, number: int, one: _Boundary) -> dict[str, int] | None:
        """A snapshot's entry of the producer after the lost marker and before anything else of it, while no transaction was open."""
        assert one.marker is not None
        until = ENDLESS if one.following is None else one.following.first
        for offset, rows in sorted(self.snapshots.items()):
            if one.marker < offset <= until:
                row = rows.get(number)
                return row if row is not None and row["current_txn_first_offset"] == NONE else None
        return None

    def _epoch(self, number: int, one: _Boundary, row: dict[str, int] | None) -> int:
        """The epoch of the lost marker: that of the records, or the next one where transactions raise it."""
        if row is not None and row["epoch"] in (one.run.epoch, one.run.epoch + 1):
            return row["epoch"]
        return one.run.epoch + 1 if self._raises_epochs(number) else one.run.epoch

    def _coordinator_epoch(self, number: int, one: _Boundary, row: dict[str, int] | None) -> int:
        if row is not None and row["coordinator_epoch"] >= 0:
            return row["coordinator_epoch"]
        own = [event for event in self.ledger.events[number] if event.kind is not None and event.coordinator_epoch >= 0]
        before = [event.coordinator_epoch for event in own if event.first < one.run.first]
        after = [event.coordinator_epoch for event in own if event.first > one.run.last]
        return before[-1] if before else after[0] if after else 0


__all__ = ["COMMITTED", "Judge", "Transaction"]
