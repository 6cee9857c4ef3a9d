"""Transaction markers among lost offsets: whether a transaction whose records are left was committed or aborted.

A record of a transaction is visible to a read_committed consumer only after a COMMIT marker. Where a damaged stretch may have held the
marker, other files still know it: a transaction index names every aborted transaction with the offset of its marker, a producer snapshot
names the transactions that were open at its offset, `__transaction_state` has the coordinator's decisions, and a producer begins a new
epoch only after its transaction has ended. What none of them knows is reported, never guessed.
"""

from __future__ import annotations

import glob
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.internal.messages import read_marker
from rawlog.formats.kafka.log.heads import Heads, heads, take
from rawlog.formats.kafka.log.kernels.producers import SEQUENCE_MASK
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, NONE, Attributes, ControlType
from rawlog.formats.kafka.partition.state import AbortedTxn
from rawlog.formats.kafka.partition.survey import aborted_in, snapshot_rows
from rawlog.formats.kafka.paths import directory_place, split
from rawlog.io.checksums import crc32c, crc32c_spans
from rawlog.io.storage import exists, is_remote, listing, local_path
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File, Place
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

# ----------------------------------------------------------------------------------------------------------------------
# Transaction markers that can still be read in damaged bytes.


MARKER_SIZE = 78
"""A control batch that ends a transaction: a header and one record of 17 bytes."""
MARKER_LENGTH = (MARKER_SIZE - BATCH.after("length")).to_bytes(4, "big")
MARKER_KEY = BATCH.size + 5
"""Where its record has its key: version and type. After it, a byte of length, and the value: version and coordinator epoch."""
MARKER_MAGIC, MARKER_COUNT = bytes([MAGIC_V2]), (1).to_bytes(4, "big")
MARKER_ATTRIBUTES = int(Attributes.TRANSACTIONAL | Attributes.CONTROL).to_bytes(2, "big")
LARGEST_STRETCH = 64 << 20
"""So many damaged bytes are searched for what is left of a marker."""


@dataclass(frozen=True, slots=True)
class Witness:
    """A marker as damaged bytes have it. `certain`: changing one byte makes its checksum right."""

    producer_id: int
    offset: int
    epoch: int
    kind: int
    coordinator_epoch: int
    timestamp: int
    certain: bool


def witnesses(data: Bytes) -> Iterator[Witness]:
    """The transaction markers that can be read in damaged bytes."""
    if not 0 < data.size <= LARGEST_STRETCH:
        return
    text = data.tobytes()
    at = text.find(MARKER_LENGTH)
    while at >= 0:
        start = at - BATCH.at("length")
        if start >= 0 and len(text) - start >= MARKER_SIZE and _may_be_marker(text, start):
            witness = _witness(np.frombuffer(text[start : start + MARKER_SIZE], np.uint8))
            if witness is not None:
                yield witness
        at = text.find(MARKER_LENGTH, at + 1)


def _may_be_marker(text: bytes, start: int) -> bool:
    """Whether at most one of the fields that all markers have in common is wrong: a cheap test before an expensive one."""
    fields = (("magic", MARKER_MAGIC), ("attributes", MARKER_ATTRIBUTES), ("record_count", MARKER_COUNT))
    return sum(text[start + BATCH.at(name) : start + BATCH.after(name)] == value for name, value in fields) >= 2


def _witness(batch: NDArray[np.uint8]) -> Witness | None:
    certain = _correct_byte(batch)
    batch = batch if certain is None else certain
    head = take(batch, np.zeros(1, np.int64), np.array([MARKER_SIZE], np.int64), check_crc=False)
    text = batch.tobytes()
    wanted = int(Attributes.TRANSACTIONAL | Attributes.CONTROL)
    if head["magic"][0] != MAGIC_V2 or head["attributes"][0] != wanted or head["record_count"][0] != 1:
        return None
    kind = int.from_bytes(text[MARKER_KEY + 2 : MARKER_KEY + 4], "big", signed=True)
    if kind not in (ControlType.ABORT, ControlType.COMMIT) or head["producer_id"][0] < 0:
        return None
    coordinator = int.from_bytes(text[MARKER_KEY + 7 : MARKER_KEY + 11], "big", signed=True)
    names = ("producer_id", "base_offset", "producer_epoch")
    number, offset, epoch = (int(head[name][0]) for name in names)
    return Witness(number, offset, epoch, kind, coordinator, int(head["max_timestamp"][0]), certain is not None)


def _correct_byte(batch: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
    """A batch with the one byte changed that makes its checksum right; None if there is no such byte, or more than one."""
    first = BATCH.at("attributes")
    stored = int.from_bytes(batch[BATCH.at("crc") : first].tobytes(), "big")
    computed = crc32c(batch[first:])
    if sum(1 for byte in (stored ^ computed).to_bytes(4, "big") if byte) <= 1:
        return batch  # what is wrong is the checksum, or nothing that it covers
    size = batch.size - first
    tries = np.tile(batch[first:], (size * 255, 1))
    places, changes = np.divmod(np.arange(size * 255), 255)
    tries[np.arange(size * 255), places] ^= (changes + 1).astype(np.uint8)
    starts = np.arange(size * 255, dtype=np.int64) * size
    right = np.flatnonzero(crc32c_spans(tries.reshape(-1), starts, starts + size) == stored)
    if right.size != 1:
        return None
    return np.concatenate((batch[:first], tries[int(right[0])]))


# ----------------------------------------------------------------------------------------------------------------------
# What is left of transactions in a log with gaps: their batches and markers, as they are written.


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
                self._count_missing(head, index, number, int(gap[index]))
            if transactional[index]:
                self._add_event(frames, head, index, number, int(gap[index]), bool(control[index]))

    def cut(self, data: Bytes) -> None:
        """Take in bytes that are not kept."""
        self.witnesses += witnesses(data)

    def _count_missing(self, head: Heads, index: int, number: int, gap: int) -> None:
        """Count what sequence numbers say is missing in the one gap since the producer's batch before."""
        epoch, sequence = int(head["producer_epoch"][index]), int(head["base_sequence"][index])
        if sequence < 0:
            return
        last_epoch, following, before = self._sequences.get(number, (NONE, 0, gap))
        jump = (sequence - following) & SEQUENCE_MASK
        if last_epoch == epoch and gap == before + 1 and jump:
            self.missing[before] += jump
        size = int(head["last_offset"][index] - head["base_offset"][index]) + 1
        self._sequences[number] = (epoch, (sequence + size) & SEQUENCE_MASK, gap)

    def _add_event(self, frames: Frames, head: Heads, index: int, number: int, gap: int, control: bool) -> None:
        events = self.events[number]
        first, last = int(head["base_offset"][index]), int(head["last_offset"][index])
        epoch, time = int(head["producer_epoch"][index]), int(head["max_timestamp"][index])
        if control:
            kind, coordinator, moment = (
                read_marker(frames, index) if head["record_count"][index] else (None, NONE, NONE)
            )
            if kind in (ControlType.ABORT, ControlType.COMMIT):
                self._add_marker(number, Event(first, last, epoch, gap, moment, kind, coordinator))
            return
        before = events[-1] if events else None
        if before is not None and before.kind is None and (before.gap, before.epoch) == (gap, epoch):
            before.last, before.timestamp = last, max(before.timestamp, time)
        else:
            events.append(Event(first, last, epoch, gap, time))

    def _add_marker(self, number: int, marker: Event) -> None:
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
        if all(event.gap == marker.gap for event in events[start:]):
            del events[start:]
            if len(events) == 1 or (events and events[-2].kind is not None):
                del events[-1]
        events.append(marker)


# ----------------------------------------------------------------------------------------------------------------------
# What files other than the log know of transactions: transaction indexes, producer snapshots, and the coordinator's topic.


STATE_TOPIC = "__transaction_state"
STATE_PARTITIONS = 50
"""So many partitions has the topic unless configured otherwise; looked for by number where directories cannot be listed cheaply."""
ENDLESS = (1 << 63) - 1
SEGMENT = 1 << 31
"""So many offsets a segment holds at most."""


class Indexes:
    """The transaction indexes of a partition: their entries, and the ranges in which they are complete."""

    def __init__(self, files: Sequence[File], kept: Iterable[tuple[int, int]]) -> None:
        """`kept` are the producers and offsets of ABORT markers that are left and end a transaction with records."""
        self.files = [file for file in files if file.place.state is None and file.problem is None]
        self.aborted: dict[int, list[AbortedTxn]] = defaultdict(list)
        self.bases = sorted({file.place.start_offset for file in self.files if file.place.start_offset is not None
                             and file.format in ("kafka.log", "kafka.index", "kafka.timeindex", "kafka.txnindex")})  # fmt: skip
        self._whole: dict[int, bool] = {}
        self._reaches: dict[int, bool] = {}
        listed: set[tuple[int, int]] = set()
        for base in self.bases:
            file = self._file(base, "kafka.txnindex")
            entries = [] if file is None else _entries_of(file, base)
            has_index = self._file(base, "kafka.index") is not None or self._file(base, "kafka.timeindex") is not None
            self._whole[base] = entries is not None and (file is not None or has_index)
            for entry in entries or ():
                self.aborted[entry.producer_id].append(entry)
                listed.add((entry.producer_id, entry.last_offset))
        for number, offset in kept:
            segment = self._base_of(offset)
            if (number, offset) not in listed and segment is not None:
                self._whole[segment] = False
                if self._file(segment, "kafka.txnindex") is None:  # others that are missing may have been there too
                    for base in self.bases:
                        self._whole[base] &= self._file(base, "kafka.txnindex") is not None

    def _spans(self) -> Iterator[tuple[int, int, int]]:
        for number, base in enumerate(self.bases):
            yield base, base, self.bases[number + 1] if number + 1 < len(self.bases) else ENDLESS

    def _file(self, base: int, format: str) -> File | None:
        return next((file for file in self.files if file.format == format and file.place.start_offset == base), None)

    def _base_of(self, offset: int) -> int | None:
        at = bisect_right(self.bases, offset)
        return self.bases[at - 1] if at else None

    def tells_all(self, start: int, stop: int, end: int) -> bool:
        """Whether every abort with a marker from `start` up to `stop` would be named. `end` is where the log ended, as far as known."""
        for base, first, following in self._spans():
            if following <= start or first >= stop:
                continue
            if not self._whole[base]:
                return False
            # Another segment, gone with all of its files, may have been between this one and the next.
            edge = following if following != ENDLESS else end
            if stop >= edge and not self._is_long(base, edge):
                return False
        return bool(self.bases) and self.bases[0] <= start

    def _is_long(self, base: int, edge: int) -> bool:
        """Whether a segment's last batch, sound or not, ends where the next segment begins."""
        if base not in self._reaches:
            file = self._file(base, "kafka.log")  # where it is gone, what is left next to it tells up to where it went
            self._reaches[base] = file is None or _end_of(file) == edge
        return self._reaches[base]


def _entries_of(file: File, start: int) -> list[AbortedTxn] | None:
    """The entries of the transaction index of a segment that begins at an offset; None if one is impossible."""
    try:
        entries = [entry for _, entry in aborted_in(file)]
    except RawlogError:
        return None
    before = start - 1
    for entry in entries:
        if (
            not before < entry.last_offset < start + SEGMENT
            or not 0 <= entry.first_offset <= entry.last_offset
            or entry.producer_id < 0
        ):
            return None
        before = entry.last_offset
    return entries


def _end_of(file: File) -> int | None:
    """The offset after the last frame of a segment, by its own header, if frames reach to the end of the file."""
    from rawlog.formats.kafka import LOG

    end = None
    try:
        for frames in walk(file, LOG, errors="skip"):
            head = heads(frames)
            if len(frames):
                end = int(head["last_offset"][-1]) + 1
            if frames.last and (frames.status is not Status.OK or frames.reached_in_file != file.size):
                return None
    except RawlogError:
        return None
    return end


def snapshots_of(files: Sequence[File]) -> dict[int, dict[int, dict[str, int]]]:
    """The entries of every sound producer snapshot, by offset and producer."""
    snapshots = {}
    for file in files:
        if file.format == "kafka.snapshot" and file.place.state is None and file.problem is None:
            try:
                rows = {row["producer_id"]: row for _, row in snapshot_rows(file)}
            except RawlogError:
                continue
            snapshots[file.place.start_offset or 0] = rows
    return snapshots


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """A decision of the transaction coordinator, or a transaction that goes on."""

    epoch: int
    status: str
    start: int
    update: int
    partitions: tuple[tuple[str, int], ...]
    version: int


def states_near(folder: str | None) -> dict[int, list[CoordinatorState]]:
    """What `__transaction_state` in the log directory of a partition says of every producer, in order."""
    from rawlog.formats.kafka.internal.topics import transaction_states

    states: dict[int, list[CoordinatorState]] = defaultdict(list)
    if folder is None:
        return states
    parent = split(folder)[0] or ("/" if folder.startswith("/") else ".")
    for path in _state_folders(parent):
        files = []
        for entry in listing(path):
            name = split(entry.path)[1]
            if name.endswith(".log") and name[:-4].isdigit() and entry.problem is None:
                place = directory_place(path)
                place = Place(topic=place.topic, partition=place.partition, start_offset=int(name[:-4]), group=path)
                files.append(File(entry.path, entry.size, format="kafka.log", place=place))
        try:
            for batch in transaction_states(files, {"errors": "skip"}) if files else ():
                _take_states(batch.to_pylist(), states)
        except RawlogError:
            continue
    return states


def _state_folders(parent: str) -> list[str]:
    if not is_remote(parent):
        return sorted(glob.glob(f"{glob.escape(local_path(parent))}/{STATE_TOPIC}-[0-9]*"))
    named = (f"{parent}/{STATE_TOPIC}-{number}" for number in range(STATE_PARTITIONS))
    return [path for path in named if exists(path)]


def _take_states(rows: list[dict[str, object]], states: dict[int, list[CoordinatorState]]) -> None:
    for row in rows:
        if row["producer_id"] is None or row["status"] is None or row["state"] != "committed":
            continue
        listed: list[dict[str, object]] = row["partitions"] or []  # type: ignore[assignment]
        states[int(str(row["producer_id"]))].append(
            CoordinatorState(
                int(str(row["producer_epoch"])),
                str(row["status"]),
                _ms(row["start_timestamp"]),
                _ms(row["update_timestamp"]),
                tuple((str(partition["topic"]), int(str(partition["partition"]))) for partition in listed),
                int(str(row["client_transaction_version"] or 0)),
            )
        )


def _ms(moment: object) -> int:
    return NONE if moment is None else round(moment.timestamp() * 1000)  # type: ignore[attr-defined]


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
            verdict = "is not known to be committed or aborted" if self.outcome == UNKNOWN else f"was {self.outcome}"
            return f"{what}: {verdict}: {self.evidence}"
        name = "COMMIT" if self.outcome == COMMITTED else "ABORT"
        return f"{what}: was {self.outcome}, its lost {name} marker was put back at offset {self.marker_offset}: {self.evidence}"


@dataclass(slots=True)
class _Boundary:
    """The lost offsets between a run of a producer's batches and its next event. They may have held the marker."""

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
        self.place = next((file.place for file in files if file.place.group is not None), Place())
        self.end = ledger.end or 0
        self.indexes = Indexes(files, ledger.aborts)
        self.snapshots = snapshots_of(files)
        self.log_end = max([self.end, *(offset for offset in self.snapshots if offset < self.end + FURTHEST)])
        self._states: dict[int, list[CoordinatorState]] | None = None
        self._taken: set[int] = set()
        self.lost = self._lost_gaps()

    def decide(self) -> list[Transaction]:
        """Every transaction whose marker may be lost, if it matters to read_committed consumers."""
        boundaries = [
            (number, boundary) for number in sorted(self.ledger.events) for boundary in self._boundaries(number)
        ]
        before: tuple[int, _Boundary] | None = None
        for number, boundary in boundaries:
            self._judge(number, boundary)
            if before is not None and before[0] == number and before[1].ended and before[1].following is not None:
                boundary.first = max(boundary.first, before[1].following.first)
            before = (number, boundary)
            if boundary.marker in self._taken:
                # Two producers cannot have had their markers at one offset.
                boundary.outcome, boundary.marker = UNKNOWN, None
            elif boundary.marker is not None:
                self._taken.add(boundary.marker)
        for _, boundary in boundaries:
            if boundary.ended and boundary.marker is None:
                boundary.marker = self._take_free_offset(boundary.stretches)
        for _, boundary in boundaries:
            if boundary.ended is None and not self._has_room(boundary.stretches):
                boundary.ended = False  # every lost offset was the marker of another producer
        return [
            transaction
            for number, boundary in boundaries
            if (transaction := self._result(number, boundary)) is not None
        ]

    def _raises_epochs(self, number: int) -> bool:
        """Whether every transaction of a producer raises its epoch (KIP-890): by its own COMMIT markers, or those of all producers."""
        raised = self.ledger.raised.get(number)
        return (raised or set().union(*self.ledger.raised.values())) == {True}

    def _lost_gaps(self) -> dict[int, tuple[int, int]]:
        """The damaged gaps with room for a marker, by number; the one after the last batch included."""
        gaps = [(first, last + 1) for first, last in self.ledger.gaps]
        lost = {}
        for number, (start, stop) in enumerate([*gaps, (self.end, ENDLESS)]):
            if self.ledger.missing.get(number) == stop - start:
                continue  # all of it were records of producers whose sequence numbers go on
            if any(low < stop and (high is None or high >= start) for low, high in self.damage):
                lost[number] = (start, stop)
        return lost

    def _boundaries(self, number: int) -> list[_Boundary]:
        """The places where a marker of a producer may be lost, in order."""
        events = self.ledger.events[number]
        boundaries = []
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
            stretches = [self.lost[gap] for gap in between]
            if stretches:
                boundaries.append(_Boundary(event, following, first, stretches))
        return boundaries

    def _judge(self, number: int, boundary: _Boundary) -> None:
        """Ask all that may know: first whether the transaction ended there, then how."""
        aborted = sorted(self.indexes.aborted.get(number, ()), key=lambda entry: entry.last_offset)
        for witness in self.ledger.witnesses:
            if witness.certain and witness.producer_id == number and self._holds(boundary, witness.offset):
                boundary.ended, boundary.marker, boundary.witness = True, witness.offset, witness
                boundary.outcome = COMMITTED if witness.kind == ControlType.COMMIT else ABORTED
                boundary.reasons.append("one byte of the marker is damaged, and its checksum shows which")
                return
        expected_epoch = (
            boundary.run.epoch
            if boundary.following is None or boundary.following.kind is None
            else boundary.run.epoch + 1
        )
        if (
            boundary.following is not None
            and boundary.following.epoch == expected_epoch
            and self._raises_epochs(number)
        ):
            boundary.ended = False  # of the same transaction
            return
        for entry in aborted:
            marker = entry.last_offset
            if self._holds(boundary, marker) and entry.first_offset <= boundary.run.last < marker:
                boundary.ended, boundary.outcome, boundary.marker = True, ABORTED, entry.last_offset
                boundary.reasons.append("the transaction index names it as aborted")
                return
        until = ENDLESS if boundary.following is None else boundary.following.first
        limit = until
        for entry in aborted:
            if entry.last_offset >= until and entry.first_offset <= boundary.run.last:
                boundary.ended = False  # it goes on up to a marker that is left, or is lost further on
                return
            if boundary.run.last < entry.first_offset <= until:
                boundary.ended, limit = True, min(limit, entry.first_offset)
                boundary.reasons.append(
                    f"the transaction index has its next transaction from offset {entry.first_offset} on"
                )
        for offset, rows in sorted(self.snapshots.items()):
            row = rows.get(number)
            if row is None or offset <= boundary.run.last:
                continue
            opened = row["current_txn_first_offset"]
            if opened != NONE and opened <= boundary.run.last:
                boundary.stretches = [(max(start, offset), stop) for start, stop in boundary.stretches if stop > offset]
                if offset >= until or not boundary.stretches:
                    boundary.ended = False
                    return
            elif offset <= until or boundary.run.last < opened <= until:
                boundary.ended, limit = True, min(limit, max(offset, opened))
                boundary.reasons.append(f"the producer snapshot at offset {offset} has it closed")
                break
        if boundary.following is not None and boundary.following.epoch - boundary.run.epoch >= (
            1 if boundary.following.kind is None else 2
        ):
            boundary.ended = True
            boundary.reasons.append(f"the producer went on with epoch {boundary.following.epoch}")
        self._outcome(number, boundary, limit)

    def _holds(self, boundary: _Boundary, offset: int) -> bool:
        """Whether an offset is among the lost ones; after the end of the log, only what is near."""
        near = max(self.log_end, self.end + NEAR)
        return any(start <= offset < (near if stop == ENDLESS else stop) for start, stop in boundary.stretches)

    def _outcome(self, number: int, boundary: _Boundary, limit: int) -> None:
        """How a transaction ended that is not listed as aborted."""
        stretches = [(start, min(stop, limit)) for start, stop in boundary.stretches if start < limit]
        not_aborted = bool(stretches) and all(
            start < self.log_end and self.indexes.tells_all(start, min(stop, self.log_end), self.log_end)
            for start, stop in stretches
        )
        marker = self._marker_after(number, boundary.run)
        if boundary.ended is None and not_aborted and marker is not None and marker.kind == ControlType.COMMIT:
            boundary.ended = False  # committed there or later: visible either way
            return
        decided, is_exact = self._coordinator_decision(number, boundary)
        left = None if marker is None else COMMITTED if marker.kind == ControlType.COMMIT else ABORTED
        if boundary.ended is None and decided is not None and decided in ("", left):
            boundary.ended = False  # it goes on, or the marker that is left says the same
            return
        if decided:
            boundary.ended, boundary.outcome = True, decided
            boundary.reasons.append(f"{STATE_TOPIC} has it {decided}")
        if boundary.ended and not_aborted and not self._reads_abort(number, boundary):
            boundary.reasons.append("no transaction index names it as aborted")
            if decided != ABORTED:
                boundary.outcome = COMMITTED
            elif not is_exact:
                boundary.outcome = UNKNOWN
        if boundary.ended and boundary.outcome != UNKNOWN:
            boundary.stretches = stretches or boundary.stretches

    def _reads_abort(self, number: int, boundary: _Boundary) -> bool:
        """Whether a damaged marker says that the transaction was aborted."""
        producer_witnesses = [witness for witness in self.ledger.witnesses if witness.producer_id == number]
        return any(
            witness.kind == ControlType.ABORT and self._holds(boundary, witness.offset)
            for witness in producer_witnesses
        )

    def _marker_after(self, number: int, run: Event) -> Event | None:
        return next(
            (event for event in self.ledger.events[number] if event.kind is not None and event.first > run.last), None
        )

    def _coordinator_decision(self, number: int, boundary: _Boundary) -> tuple[str | None, bool]:
        """What the coordinator decided; empty if the transaction goes on, None if nothing tells. And whether the epoch says that it is
        this transaction; else only the time does.
        """
        if self._states is None:
            self._states = states_near(self.place.group)
        partition = (self.place.topic, self.place.partition)
        rows = self._states.get(number, [])
        rows_here = [row for row in rows if not row.partitions or partition in row.partitions]
        exact = [row for row in rows_here if row.version >= 2 and row.epoch == boundary.run.epoch + 1]
        timely = [
            row
            for row in rows_here
            if row.version < 2
            and row.epoch in (boundary.run.epoch, boundary.run.epoch + 1)
            and row.start <= boundary.run.timestamp <= row.update
        ]
        for chosen in (exact, timely):
            outcomes = {name for row in chosen for name, text in DECISIONS if text in row.status}
            if len(outcomes) == 1:
                return outcomes.pop(), chosen is exact
        latest = rows[-1] if rows else None
        if (
            latest is not None
            and (latest.status, latest.epoch) == ("Ongoing", boundary.run.epoch)
            and partition in latest.partitions
            and latest.start <= boundary.run.timestamp
        ):
            return "", False
        return None, False

    def _result(self, number: int, boundary: _Boundary) -> Transaction | None:
        if boundary.ended is False:
            return None
        transaction = Transaction(
            number,
            boundary.run.epoch,
            boundary.first,
            boundary.run.last,
            boundary.outcome,
            ", and ".join(boundary.reasons),
        )
        if boundary.outcome == UNKNOWN or boundary.marker is None:
            marker = self._marker_after(number, boundary.run)
            effect = (
                f"it stays open, and read_committed consumers stop at offset {boundary.first}"
                if marker is None
                else f"it is read as if the marker at offset {marker.first} were its own"
            )
            reasons = [*boundary.reasons, "its marker may be among the lost offsets", effect]
            return replace(transaction, evidence="; ".join(reasons))
        if (seen := boundary.witness) is not None:
            epoch, coordinator, timestamp = seen.epoch, seen.coordinator_epoch, seen.timestamp
        else:
            row = self._row_after(number, boundary)
            epoch, coordinator = self._epoch(number, boundary, row), self._coordinator_epoch(number, boundary, row)
            timestamp = row["timestamp"] if row is not None and row["timestamp"] >= 0 else boundary.run.timestamp
        return replace(
            transaction,
            marker_offset=boundary.marker,
            marker_epoch=epoch,
            coordinator_epoch=coordinator,
            timestamp=timestamp,
        )

    def _take_free_offset(self, stretches: list[tuple[int, int]]) -> int | None:
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
            stop == ENDLESS or sum(start <= offset < stop for offset in self._taken) < stop - start
            for start, stop in stretches
        )

    def _row_after(self, number: int, boundary: _Boundary) -> dict[str, int] | None:
        """A snapshot's entry of the producer after the lost marker and before anything else of it, while no transaction was open."""
        assert boundary.marker is not None
        until = ENDLESS if boundary.following is None else boundary.following.first
        for offset, rows in sorted(self.snapshots.items()):
            if boundary.marker < offset <= until:
                row = rows.get(number)
                return row if row is not None and row["current_txn_first_offset"] == NONE else None
        return None

    def _epoch(self, number: int, boundary: _Boundary, row: dict[str, int] | None) -> int:
        """The epoch of the lost marker: that of the records, or the next one if transactions raise it."""
        if row is not None and row["epoch"] in (boundary.run.epoch, boundary.run.epoch + 1):
            return row["epoch"]
        return boundary.run.epoch + 1 if self._raises_epochs(number) else boundary.run.epoch

    def _coordinator_epoch(self, number: int, boundary: _Boundary, row: dict[str, int] | None) -> int:
        if row is not None and row["coordinator_epoch"] >= 0:
            return row["coordinator_epoch"]
        markers = [
            event for event in self.ledger.events[number] if event.kind is not None and event.coordinator_epoch >= 0
        ]
        before = [event.coordinator_epoch for event in markers if event.first < boundary.run.first]
        after = [event.coordinator_epoch for event in markers if event.first > boundary.run.last]
        return before[-1] if before else after[0] if after else 0
