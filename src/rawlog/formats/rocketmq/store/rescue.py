"""The policy of `rescue`: one store from the stores of a master and its slaves, or of the members of a DLedger group.

Which stores are replicas of one another is decided by their content (`replicas.py`). Each group of replicas becomes one store: the union of
the commit logs, each sound message once, from the first replica that has it; everything else as `repair` rebuilds it. Where replicas have
different sound messages at one address, one of them was changed where no checksum covers it: what most replicas have counts, or else what
the consume queues say. Only one history is taken: a replica ends where it parts from the others.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG, below_root, config
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import HOST_V4, HOST_V6, SysFlag
from rawlog.formats.rocketmq.store.comparison import message_addresses, queue_units
from rawlog.formats.rocketmq.store.configs import OFFSETS
from rawlog.formats.rocketmq.store.outline import (
    CUT,
    MessageRun,
    edges,
    is_begun,
    place_of,
    run_of,
    slots_between,
    tail_of,
)
from rawlog.formats.rocketmq.store.placeholders import LAYOUTS, Slot
from rawlog.formats.rocketmq.store.repair import Salvage, write_around
from rawlog.formats.rocketmq.store.replicas import (
    LEAST_SAMPLES,
    SAMPLES,
    Extent,
    LogSurvey,
    Replica,
    ReplicaFiles,
    group_replicas,
    is_log,
    part_histories,
    queues_without_log,
    real_runs,
    replicas_below,
    settle_logs,
    survey_log,
    unit_name,
)
from rawlog.formats.rocketmq.store.rewrite import DERIVED, copy, new_report
from rawlog.formats.rocketmq.store.settings import SIZE_OPTIONS, Sizes, sizes_of
from rawlog.io.output import Folder
from rawlog.io.storage import Places, Source, refuse_locked
from rawlog.model.errors import DataError, OptionError, UnknownFormatError
from rawlog.model.format import File
from rawlog.model.recovery import (
    CopyPlan,
    PiecePlan,
    RescuedUnit,
    RescueOptions,
    RescueSplit,
    Span,
    SurveyResult,
    SurveySplit,
    UnitPlan,
    plan_facts,
)
from rawlog.model.report import Action, Report
from rawlog.model.store import Store
from rawlog.model.text import counted, plain_time

MOST_NOTES = 20
LONGEST_PAUSE_MS = 10 * 365 * 86_400_000
"""Times of neighbouring messages that are further apart are not credible."""


@dataclass(frozen=True, slots=True)
class ReplicaLog:
    """The commit log of one replica: its files by address, and where it parts from the kept history."""

    root: str
    files: dict[int, File]
    until: int | None = None


class _Reader:
    """The runs of one replica of a file, cut to what is still needed."""

    def __init__(self, number: int, file: File, size: int, until: int | None) -> None:
        self.number, self.file, self.until = number, file, until
        self._runs = real_runs(file, size)
        self.run: MessageRun | None = None
        self.shift = 0

    def skip_to(self, address: int) -> MessageRun | None:
        """The next run of messages that begin at an address or after it; None at the end."""
        while True:
            if self.run is None:
                self.run = next(self._runs, None)
                if self.run is None:
                    return None
                self.shift = self.run.shift
                if self.until is not None and self.run.stop > self.until:
                    self.run = _cut(self.run, None, self.until)
                    self._runs = iter(())
                    if self.run is None:
                        return None
            if self.run.start >= address:
                return self.run
            self.run = _cut(self.run, address, None) if self.run.stop > address else None


def _cut(run: MessageRun, start: int | None, stop: int | None) -> MessageRun | None:
    """The messages of a run that begin between two addresses; None if there are none."""
    starts = edges(run.rows)[0]
    first = 0 if start is None else int(np.searchsorted(starts, start))
    last = starts.size if stop is None else int(np.searchsorted(starts, stop))
    if last <= first:
        return None
    return replace(run_of(run.rows.cut(first, last)), shift=run.shift, is_corrected=run.is_corrected)


class Union(Salvage):
    """A new commit log from several replicas of one history, in order of preference."""

    def __init__(
        self,
        replicas: Sequence[ReplicaLog],
        files: Sequence[File],
        folder: Folder,
        file_size: int,
        report: Report,
        *,
        move: bool,
    ) -> None:
        super().__init__(files, folder, file_size, report, move=move)
        self.replicas = replicas
        self.taken = [0] * len(replicas)
        #: How far the last messages of each replica of the current file are from their place.
        self.shifts: dict[int, int] = {}
        self.logs = [
            self._replicas_at(start)[0][1]
            for start in sorted({start for replica in replicas for start in replica.files})
        ]

    def _replicas_at(self, start: int) -> list[tuple[int, File]]:
        """The replicas of the file at an address, with the numbers of their stores; those of another history are last."""
        holders = [(number, replica) for number, replica in enumerate(self.replicas) if start in replica.files]
        holders.sort(key=lambda holder: holder[1].until is not None and holder[1].until <= start)
        return [(number, replica.files[start]) for number, replica in holders]

    def _in_history(self, file: File) -> list[tuple[int, File]]:
        """The replicas of a file without those of another history."""
        start = file.place.start_offset or 0
        files = self._replicas_at(start)
        return [
            (number, replica_file)
            for number, replica_file in files
            if (until := self.replicas[number].until) is None or until > start
        ]

    @property
    def is_intact(self) -> bool:
        """Whether the log is that of the first replica, whose databases are taken."""
        return super().is_intact and not any(self.taken[1:])

    def is_begun(self, file: File) -> bool:
        return any(is_begun(replica_file) for _, replica_file in self._in_history(file))

    def tail(self, file: File, position: int, shift: int) -> str:
        address = position + shift
        tails = [
            tail_of(replica_file, address - self.shifts.get(number, 0), self.file_size, self.shifts.get(number, 0))
            for number, replica_file in self._in_history(file)
            if self.replicas[number].until is None
        ]
        sizes = [int(text) for text in tails if text.isdigit()]
        if "blank" in tails or not sizes:
            return "blank" if "blank" in tails else CUT if set(tails) == {CUT} else "zeros"
        return str(max(sizes))

    def growth(self, file: File, shift: int) -> int:
        return max(0, *(-distance for distance in self.shifts.values()), 0)

    def describe_hole(self, run: MessageRun) -> str:
        before = self.derived.last_time if self.derived.messages else 0
        after = int(run.rows[fields.F_STORE_TIME][0])
        when = (
            f"after {plain_time(before * 1000)} and before {plain_time(after * 1000)}"
            if before
            else f"before {plain_time(after * 1000)}"
        )
        many = "no copy has it" if len(self.replicas) > 1 else "could not be kept"
        return f"{many}: addresses before {run.start:,}, stored {when}"

    # Runs

    def runs(self, file: File, *, skip: bool) -> Iterator[MessageRun]:
        """The sound messages at the place of a file, each from the first replica that has it."""
        size, replicas = self.file_size, self.replicas
        readers = [_Reader(number, log, size, replicas[number].until) for number, log in self._in_history(file)]
        at = -1
        while True:
            heads = [(reader, run) for reader in readers if (run := reader.skip_to(at)) is not None]
            if not heads:
                self.shifts = {reader.number: reader.shift for reader in readers}
                for reader in readers:
                    if reader.shift:
                        reason = (
                            f"messages of this copy are up to {abs(reader.shift):,} bytes from their place; put back"
                        )
                        self.report.add(Action.MOVED, reason, reader.file.path, is_expected=True)
                return
            first = min(run.start for _, run in heads)
            starting = [(reader, run) for reader, run in heads if run.start == first]
            stop = min(run.stop for _, run in starting)
            # Where another replica begins again, it is preferred, or compared.
            stop = min([stop, *(run.start for _, run in heads if run.start > first)])
            cut = [(reader.number, part) for reader, run in starting if (part := _cut(run, None, stop)) is not None]
            for source, run in self._agree(cut):
                self.taken[source] += len(run.rows)
                yield replace(run, shift=0)  # its place in one replica says nothing of the others
            at = cut[0][1].stop

    def _agree(self, candidates: list[tuple[int, MessageRun]]) -> Iterator[tuple[int, MessageRun]]:
        """The run of the first of several replicas; differing messages are judged."""
        # What one replica had to correct, another may have unchanged.
        candidates = [candidate for candidate in candidates if not candidate[1].is_corrected] or candidates
        (source, run), others = candidates[0], candidates[1:]
        if all(_bytes(run) == _bytes(other) for _, other in others):
            yield source, run
            return
        at = run.start
        for address in _different(run, [other for _, other in others]):
            before = _cut(run, at, address)
            if before is not None:
                yield source, before
            versions = [
                (number, message)
                for number, full_run in candidates
                if (message := _message_at(full_run, address)) is not None
            ]
            yield self._judge(address, [version for version in versions if version[1].stop == versions[0][1].stop])
            at = address + 1
        rest = _cut(run, at, None)
        if rest is not None:
            yield source, rest

    def _judge(self, address: int, versions: list[tuple[int, MessageRun]]) -> tuple[int, MessageRun]:
        """The version of a message that most replicas have, or that the consume queues have; else the first."""
        texts = [_bytes(run) for _, run in versions]
        votes = [texts.count(text) for text in texts]
        best = [version for version, vote in zip(versions, votes, strict=True) if vote == max(votes)]
        why, is_decided = f"{max(votes)} of {len(versions)} copies have the version that is used", True
        if max(votes) * 2 <= len(versions):
            places = {(slot.topic, slot.queue_id, slot.number) for slot in self.slots.between(address, address + 1)}
            fitting = [version for version in best if place_of(version[1].rows) in places]
            formed = [version for version in fitting or best if _is_well_formed(version[1], self.derived.last_time)]
            is_known, is_formed = 0 < len(fitting) < len(best), 0 < len(formed) < len(fitting or best)
            best = formed or fitting or best
            why = "the first one is taken, nothing tells which is right"
            is_decided = is_known or is_formed
            if is_decided:
                why = f"the version that is used {'is in the consume queues' if is_known else 'is well-formed, another is not'}"
            self.report.count("messages_undecided", 0 if is_decided else 1)
        self.report.count("messages_judged")
        if self.report.counts["messages_judged"] <= MOST_NOTES:
            topic, queue, number = place_of(best[0][1].rows)
            what = f"message at address {address:,} ({topic} queue {queue}, {number:,}): copies differ where no checksum covers it"
            text = f"{what}: {why}, of {self.replicas[best[0][0]].root}"
            if is_decided:
                self.report.notes.append(text)
            else:
                self.report.add(Action.UNDECIDED, text)
        return best[0]


def _is_well_formed(run: MessageRun, last_time: int) -> bool:
    """Whether what no checksum covers in a message looks as a broker writes it: text, ports, times."""
    rows, ok = run.rows, True
    for start, size in ((fields.F_TOPIC, fields.F_TOPIC_SIZE), (fields.F_PROPERTIES, fields.F_PROPERTIES_SIZE)):
        raw = bytes(rows.data[int(rows[start][0]) : int(rows[start][0] + rows[size][0])])
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            return False
        ok &= not any(ord(letter) < 32 and letter not in "\1\2\t\r\n" for letter in text)
        ok &= start == fields.F_TOPIC or all("\1" in piece for piece in text.split("\2") if piece)
    for host in (fields.F_BORN_HOST, fields.F_STORE_HOST):
        at = int(rows[host][0])
        flag = SysFlag.BORNHOST_V6 if host == fields.F_BORN_HOST else SysFlag.STOREHOST_V6
        size = HOST_V6.size if int(rows[fields.F_SYS_FLAG][0]) & flag else HOST_V4.size
        ok &= int.from_bytes(bytes(rows.data[at + size - 4 : at + size]), "big") < 1 << 16
    stored, born = int(rows[fields.F_STORE_TIME][0]), int(rows[fields.F_BORN_TIME][0])
    return ok and last_time <= stored < last_time + LONGEST_PAUSE_MS and abs(stored - born) < LONGEST_PAUSE_MS


def _bytes(run: MessageRun) -> bytes:
    """The bytes of a run without DLedger's heads, which differ between members of a group."""
    rows = run.rows
    starts, sizes = rows[fields.F_START], rows[fields.F_SIZE]
    if (starts[1:] == starts[:-1] + sizes[:-1]).all():
        return bytes(rows.data[int(starts[0]) : int(starts[-1] + sizes[-1])].data)
    return b"".join(
        bytes(rows.data[start : start + size].data) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    )


def _message_at(run: MessageRun, address: int) -> MessageRun | None:
    return _cut(run, address, address + 1)


def _different(run: MessageRun, others: Sequence[MessageRun]) -> list[int]:
    """The addresses of messages that another replica has in a different version."""
    starts: NDArray[np.int64] = edges(run.rows)[0]
    addresses = []
    for address in starts.tolist():
        message = _message_at(run, address)
        assert message is not None
        versions = [version for other in others if (version := _message_at(other, address)) is not None]
        if any(_bytes(version) != _bytes(message) for version in versions):
            addresses.append(address)
    return addresses


# ----------------------------------------------------------------------------------------------------------------------
# What a rescue would take from which replica of a store, and what is lost in all of them.


MOST_SPANS = 10_000


def unit_plan(name: str, group: Sequence[Replica], reasons: Sequence[str]) -> UnitPlan:
    """The plan of a store from its replicas, with the reasons why histories part."""
    used = [(number, replica) for number, replica in enumerate(group) if replica.logs]
    pieces = _pieces(used)
    start = min((piece.start for piece in pieces), default=0)
    end = max((piece.stop for piece in pieces), default=0)
    replica_plans = tuple(_replica_plan(replica, reason) for replica, reason in zip(group, reasons, strict=True))
    divergent = tuple(
        (number, Span(replica.until, replica.end, reasons[number]))
        for number, replica in enumerate(group)
        if replica.until is not None
    )
    same_history = [replica for replica in group if replica.until is None]
    ends = sorted((replica.end for replica in same_history), reverse=True)
    undecided: tuple[Span, ...] = ()
    if len(ends) > 1 and any(log.is_dledger for replica in same_history for log in replica.logs):
        shared = ends[len(group) // 2] if len(ends) > len(group) // 2 else ends[-1]
        if shared < end:
            undecided = (Span(shared, end, "fewer than half of the members have it"),)
    return UnitPlan(
        name,
        "rescue" if pieces else "lost",
        start,
        end,
        f"{counted(len(group), 'copy', 'copies')}; first {group[0].store.root}",
        replica_plans,
        tuple(pieces),
        tuple(_lost_spans(group, pieces)),
        undecided,
        divergent,
    )


def _replica_plan(replica: Replica, reason: str) -> CopyPlan:
    holes = [
        Span(hole[0], min(hole[1], replica.end), "no sound message")
        for log in replica.logs
        for hole in log.holes
        if hole[0] < replica.end
    ]
    term, _ = replica.lineage
    return CopyPlan(
        replica.store.disk,
        replica.store.root,
        replica.start,
        replica.end,
        sum(file.size for file in replica.store.logs),
        lineage=f"term or epoch {term}" if term else "",
        damage=tuple(holes[:MOST_SPANS]),
        use=reason or "taken where it is sound",
    )


def _pieces(replicas: Sequence[tuple[int, Replica]]) -> list[PiecePlan]:
    """The stretches of the union, each with the first replica that has it."""
    stretches = []
    for rank, (number, replica) in enumerate(replicas):
        for log in replica.logs:
            stretches += [
                (*part, rank, number) for part in log.covered if replica.until is None or part[0] < replica.until
            ]
    stretches.sort()
    pieces: list[PiecePlan] = []
    at = -1
    while True:
        live = [stretch for stretch in stretches if stretch[1] > at]
        if not live:
            return pieces
        begin = max(at, min(stretch[0] for stretch in live))
        best = min((stretch for stretch in live if stretch[0] <= begin), key=lambda stretch: stretch[2])
        better = [stretch[0] for stretch in live if stretch[2] < best[2] and stretch[0] > begin]
        stop = min([best[1], *better])
        if pieces and pieces[-1].copy == best[3] and pieces[-1].stop == begin:
            pieces[-1] = replace(pieces[-1], stop=stop)
        else:
            pieces.append(PiecePlan(best[3], begin, stop))
        at, stretches = stop, live


def _lost_spans(group: Sequence[Replica], pieces: Sequence[PiecePlan]) -> Iterator[Span]:
    """The holes of the union, with what queues know of them."""
    extents = sorted(
        (extent for replica in group for log in replica.logs for extent in log.extents), key=lambda extent: extent.start
    )
    slot_lists = [slots for replica in group for slots in (replica.slots, *(log.slots for log in replica.logs))]
    slots = {slot.address: slot for part in slot_lists for slot in part}
    ordered = [slots[address] for address in sorted(slots)]
    end = pieces[-1].stop if pieces else 0
    holes = [
        (piece.stop, following.start) for piece, following in itertools.pairwise(pieces) if following.start > piece.stop
    ]
    for start, stop in holes:
        since, until = _times(extents, start, stop)
        inside = [slot for slot in ordered if start <= slot.address < stop]
        yield Span(start, stop, _describe_slots(inside), since, until)
    after = [slot for slot in ordered if slot.address >= end]
    if after:
        since, _ = _times(extents, end, end)
        yield Span(end, after[-1].address + after[-1].size, _describe_slots(after), since, None)


def _times(extents: Sequence[Extent], start: int, stop: int) -> tuple[int | None, int | None]:
    before = [extent.until for extent in extents if extent.stop <= start]
    after = [extent.since for extent in extents if extent.start >= stop]
    return (before[-1] if before else None), (after[0] if after else None)


def _describe_slots(slots: Sequence[Slot]) -> str:
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


OPTIONS = (*SIZE_OPTIONS.values(), "delay_levels")
MOST_QUEUE_BYTES = 256 << 20
"""Queue files of all replicas are compared with the log if together they are no larger; else only those of the first."""
NOT_CARRIED = ("rocketmq.epochs", "rocketmq.identity")
"""They bind a store to a controller that no longer exists."""


@dataclass(frozen=True, slots=True)
class LogTask:
    """A commit-log file to survey, of the store with this number."""

    store: int
    file: File
    queues: tuple[File, ...]
    file_size: int
    samples: int


@dataclass(frozen=True, slots=True)
class QueueTask:
    """What the queues of a store know of parts of the log that it has no files for."""

    store: int
    queues: tuple[File, ...]
    missing: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class QueuesWithoutLog:
    """The consume-queue files of all directories without a commit log, by their path below the root; with each path the files that
    directories with a commit log have there.
    """

    files: tuple[tuple[tuple[File, ...], tuple[File, ...]], ...]

    @classmethod
    def from_files(cls, queues: Iterable[File], others: Iterable[File]) -> QueuesWithoutLog:
        """Group the files of `queues`, which have no log, and of `others`, which have one."""
        files_by_path: dict[str, tuple[list[File], list[File]]] = {}
        for file in queues:
            files_by_path.setdefault(below_root(file), ([], []))[0].append(file)
        for file in others:
            if (same_path := files_by_path.get(below_root(file))) is not None:
                same_path[1].append(file)
        return cls(tuple((tuple(files), tuple(namesakes)) for files, namesakes in files_by_path.values()))

    def unlisted(self) -> tuple[int, tuple[str, ...]]:
        """How many messages no directory with a commit log lists, each once, and the roots of the directories that list them.

        One file and one of its namesakes are in memory at a time, and eight bytes for each of these messages.
        """
        addresses, roots = [np.empty(0, np.int64)], set[str]()
        for files, namesakes in self.files:
            pieces = []
            for file in files:
                fresh = _unlisted_addresses(file, namesakes)
                if fresh.size:
                    pieces.append(fresh)
                    roots.add(str(file.place.group))
            if pieces:
                addresses.append(np.unique(np.concatenate(pieces)))
        return int(np.unique(np.concatenate(addresses)).size), tuple(sorted(roots))


def _unlisted_addresses(file: File, namesakes: Iterable[File]) -> NDArray[np.int64]:
    """The addresses of the messages of which no namesake of a queue file has the same unit at the same place."""
    units = queue_units([file], LAYOUTS[str(file.format)])
    is_unlisted = np.ones(len(units), np.bool_)
    for namesake in namesakes:
        other = queue_units([namesake], LAYOUTS[str(namesake.format)])
        shared = min(len(units), len(other))
        is_unlisted[:shared] &= units[:shared] != other[:shared]
    return message_addresses(units[is_unlisted])


@dataclass(frozen=True, slots=True)
class ReplicaContent:
    """A replica as it is written from: its files at their places, and where it parts from the kept history."""

    root: str
    files: tuple[File, ...]
    until: int | None


@dataclass(frozen=True, slots=True)
class UnitContent:
    """What a store is written from: replicas in order of preference."""

    replicas: tuple[ReplicaContent, ...]
    #: The sizes of files that are known, by name.
    sizes: tuple[tuple[str, int], ...]
    file_size: int
    is_dledger: bool
    options: tuple[tuple[str, str], ...]


class Rescue:
    """RocketMQ's half of `rescue`."""

    def __init__(self, options: RescueOptions, target: Path) -> None:
        options.check_plain("rocketmq", OPTIONS)
        Sizes().with_options(options.options)
        self.options = options
        self.report = Report(verb="rescue", target=str(target), is_dry_run=options.is_plan)
        self._stores: list[ReplicaFiles] = []
        self._plans: list[UnitPlan] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": [], "_plans": []}

    # Which stores there are

    def plan(self, roots: Sequence[str], files: Sequence[File], stores: Sequence[Store]) -> list[SurveySplit]:
        """A split for each commit-log file of each store."""
        replicas = [
            replica
            for root, group in _below(roots, files)
            for replica in replicas_below(root, group, self.options.options)
        ]
        self._stores = _with_sizes(self._distinct(replicas))
        empty = [root for root in dict.fromkeys(roots) if not any(replica.disk == root for replica in replicas)]
        self.report.notes += [f"{root}: no commit log is here: nothing is used" for root in empty]
        if not any(store.logs for store in self._stores):
            raise UnknownFormatError(f"{', '.join(roots)}: no commit log is here")
        splits = []
        for number, store in enumerate(self._stores):
            logs, size = store.logs, store.sizes.commit_log
            samples = max(LEAST_SAMPLES, SAMPLES // max(1, len(logs)))
            for file in logs:
                task = LogTask(number, file, store.queues, size, samples)
                splits.append(SurveySplit(store.root, file.size, task))
            missing = _missing([file.place.start_offset or 0 for file in logs if file.format == COMMIT_LOG.name], size)
            splits.append(SurveySplit(store.root, 0, QueueTask(number, store.queues, missing)))
        queues = [queue for _, group in _below(roots, files) for queue in queues_without_log(group)]
        if queues:
            others = (queue for store in self._stores for queue in store.queues)
            splits.append(SurveySplit(str(queues[0].place.group), 0, QueuesWithoutLog.from_files(queues, others)))
        return splits

    def _distinct(self, replicas: Sequence[ReplicaFiles]) -> list[ReplicaFiles]:
        """The stores, each once. OptionError for a store with a running broker."""
        places = Places(self.report.notes)
        for replica in replicas:
            refuse_locked(replica.root, "lock")
        return [replica for replica in replicas if places.is_new(replica.root)]

    def survey(self, split: SurveySplit, advance: Callable[[int], None]) -> Any:
        """Read one commit-log file, the queue units of missing files, or the queues of directories without a commit log."""
        task = split.content
        if isinstance(task, QueuesWithoutLog):
            return task.unlisted()
        if isinstance(task, QueueTask):
            return tuple(slots_between(task.queues, task.missing))
        return survey_log(task.file, task.queues, task.file_size, task.samples, advance)

    # What is decided

    def decide(self, results: Sequence[SurveyResult]) -> list[RescueSplit]:
        """Group the replicas, in order of preference, and plan a store for each group."""
        replicas = [Replica(store) for store in self._stores]
        for result in results:
            if isinstance(result.split.content, QueuesWithoutLog):
                self._report_unlisted(*result.found)
                continue
            replica = replicas[result.split.content.store]
            if isinstance(result.found, LogSurvey):
                replica.logs.append(result.found)
            elif isinstance(result.found, tuple):
                replica.slots += result.found
        for replica in replicas:
            settle_logs(replica, self.report)
        splits, names = [], set[str]()
        for group in group_replicas(replicas):
            group.sort(key=lambda member: member.order)
            name = unit_name(group, names)
            names.add(name)
            splits.append(self._decide(name, group))
        self.report.facts["plan"] = plan_facts(self._plans)
        for plan in self._plans:
            for span in plan.undecided:
                self.report.add(Action.UNDECIDED, f"{plan.name}: kept from address {span.start:,} on: {span.reason}")
        if self.options.is_plan:
            for plan in self._plans:
                for span in plan.lost:
                    place = f"{plan.name}: addresses {span.start:,} to {(span.stop or span.start + 1) - 1:,}"
                    self.report.add(Action.LOST, f"{place}: {span.reason}")
        return splits

    def _report_unlisted(self, count: int, roots: Sequence[str]) -> None:
        """Report the messages that only directories without a commit log list."""
        if count:
            also, whose = (f", also in {', '.join(roots[1:])}", "their") if roots[1:] else ("", "its")
            what = f"{whose} consume queues list {counted(count, 'message')} that no other copy lists"
            self.report.add(Action.LOST, f"the commit log is missing{also}; {what}", roots[0])

    def _decide(self, name: str, group: list[Replica]) -> RescueSplit:
        sizes = {replica.store.sizes.commit_log for replica in group}
        if len(sizes) > 1:
            shown = ", ".join(f"{replica.store.root} {replica.store.sizes.commit_log:,}" for replica in group)
            raise OptionError(
                f"copies of one store have commit-log files of different sizes ({shown}): give commitlog_size"
            )
        reasons = part_histories(group)
        self._plans.append(unit_plan(name, group, reasons))
        self.report.notes += [reason for reason in reasons if reason]
        content = UnitContent(
            tuple(_content(replica) for replica in group),
            tuple((name, getattr(group[0].store.sizes, name)) for name in sorted(group[0].store.sizes.known_fields)),
            group[0].store.sizes.commit_log,
            any(log.is_dledger for replica in group for log in replica.logs),
            tuple(sorted(self.options.options.items())),
        )
        return RescueSplit(name, sum(file.size for replica in group for file in replica.store.logs), content)

    # What is written

    def adjacent_files(self) -> Mapping[str, str | None]:
        """No file next to the target is needed."""
        return {}

    def carry(self, split: RescueSplit, folder: Folder, aside: Folder, advance: Callable[[int], None]) -> Report:
        """Write one store."""
        content: UnitContent = split.content
        report = new_report()
        replicas = [ReplicaLog(replica.root, _by_start(replica.files), replica.until) for replica in content.replicas]
        files, options = _files(content.replicas, report), dict(content.options)
        out = folder.folder(split.name)
        union = Union(replicas, files, out, content.file_size, report, move=content.is_dledger)
        if content.is_dledger:
            report.notes.append(
                "entries of DLedger are written to a plain commit log: physical offsets and message ids change, queue offsets do not"
            )
        union.is_rescue = True
        union.other_settings = _offsets_of_others(content.replicas, files)
        union.take_all(skip=True)
        sizes = sizes_of(files).with_sizes(dict(content.sizes))
        write_around(union, sizes.with_options(options), options)
        for replica, number in zip(content.replicas, union.taken, strict=True):
            if number:
                report.notes.append(f"{counted(number, 'message')} from {replica.root}")
        self._keep_tails(split.name, content, aside, report)
        advance(split.size)
        return report

    def _keep_tails(self, name: str, content: UnitContent, aside: Folder, report: Report) -> None:
        """Copy the commit-log files of other histories, from where they part from the written one."""
        for number, replica in enumerate(content.replicas):
            if replica.until is None:
                continue
            tail_folder = aside.folder(f"{name}/copy-{number}")
            for start, file in sorted(_by_start(replica.files).items()):
                if start + content.file_size > replica.until:
                    copy(tail_folder, file, report)
            reason = f"another history from address {replica.until:,} on; these files are kept as copy-{number}"
            report.add(Action.MOVED, reason, replica.root, is_expected=True)

    def finish(self, done: Sequence[RescuedUnit], folder: Folder) -> None:
        """Put the stores next to one another; a single one is the target itself."""
        for unit in done:
            self.report.parts[unit.split.name] = unit.report
            unit_folder = Path(unit.folder) / unit.split.name
            if len(done) > 1:
                folder.take(unit_folder, unit.split.name)
                continue
            for inner in sorted(os.listdir(unit_folder)) if unit_folder.is_dir() else ():
                folder.take(unit_folder / inner, inner)


def _with_sizes(replicas: Sequence[ReplicaFiles]) -> list[ReplicaFiles]:
    """The replicas; one that does not show the size of its commit-log files has that of the others."""
    known = {replica.sizes.commit_log for replica in replicas if "commit_log" in replica.sizes.known_fields}
    if len(known) != 1:
        return list(replicas)
    [size] = known
    return [replace(replica, sizes=replica.sizes.with_sizes({"commit_log": size})) for replica in replicas]


def _below(roots: Sequence[str], files: Sequence[File]) -> Iterator[tuple[str, list[File]]]:
    """The files below each named directory; a directory inside another has its own."""
    groups: dict[str, list[File]] = {root: [] for root in roots}
    for file in files:
        above = [root for root in roots if file.path == root or file.path.startswith(f"{root.rstrip('/')}/")]
        if above:
            groups[max(above, key=len)].append(file)
    yield from groups.items()


def _missing(starts: Sequence[int], size: int) -> tuple[tuple[int, int], ...]:
    """The stretches between and after the files of a log for which there is no file."""
    ordered = sorted(set(starts))
    gaps = [(start + size, following) for start, following in itertools.pairwise(ordered) if following > start + size]
    return (*gaps, (ordered[-1] + size, ordered[-1] + 2 * size)) if ordered else ()


def _content(replica: Replica) -> ReplicaContent:
    logs = {log.file.path: log.file for log in replica.logs}
    files = [logs.get(file.path, file) for file in replica.store.files if file.path in logs or not is_log(file)]
    return ReplicaContent(replica.store.root, tuple(files), replica.until)


def _by_start(files: Sequence[File]) -> dict[int, File]:
    return {file.place.start_offset or 0: file for file in files if file.format == COMMIT_LOG.name}


def _files(replicas: Sequence[ReplicaContent], report: Report) -> list[File]:
    """The files that a store is written from: all logs and queues, and one replica of everything else."""
    logs = [
        file
        for replica in replicas
        if replica.until is None
        for file in replica.files
        if file.format == COMMIT_LOG.name
    ]
    same_history = [replica for replica in replicas if replica.until is None]
    queues = sum(file.size for replica in same_history for file in replica.files if file.format in LAYOUTS)
    sources = same_history if queues <= MOST_QUEUE_BYTES else same_history[:1]
    derived = [file for replica in sources for file in replica.files if file.format in DERIVED]
    others: dict[str, list[File]] = {}
    for replica in same_history:
        by_format: dict[str, list[File]] = {}
        for file in replica.files:
            if (
                file.format not in (*DERIVED, *NOT_CARRIED, COMMIT_LOG.name, "rocketmq.config")
                and file.format is not None
            ):
                by_format.setdefault(file.format, []).append(file)
        for format, group in by_format.items():
            others.setdefault(format, group)
    return [*logs, *derived, *(file for group in others.values() for file in group), *_configs(same_history, report)]


def _configs(replicas: Sequence[ReplicaContent], report: Report) -> Iterator[File]:
    """The newest version of each settings file that a broker can read, with its `.bak`."""
    by_name: dict[str, list[tuple[tuple[Any, ...], int, File]]] = {}
    for number, replica in enumerate(replicas):
        for file in replica.files:
            if file.format == "rocketmq.config" and file.problem is None:
                by_name.setdefault(config.name_of(file), []).append((_version(file), number, file))
    for name, files in sorted(by_name.items()):
        current = [candidate for candidate in files if candidate[2].place.state is None] or files
        version, number, newest = max(current, key=lambda candidate: (candidate[0], -candidate[1]))
        same = [
            candidate
            for candidate in current
            if candidate[0][0] == version[0] and _content_of(candidate[2]) == _content_of(newest)
        ]
        _, number, newest = min(same, key=lambda candidate: candidate[1])
        if number and len({candidate[1] for candidate in files}) > 1:
            report.notes.append(f"config/{name}: from {newest.path}, the newest that can be read")
        yield from (file for _, where, file in files if where == number)


def _content_of(file: File) -> bytes:
    with Source(file.path) as source:
        return source.read(0, min(source.size, config.LARGEST))


def _version(file: File) -> tuple[Any, ...]:
    """What says how new settings are: whether they can be read, their data version, when the file was written."""
    try:
        loaded = config.read(file)
    except DataError:
        return (0, 0, 0, 0.0)
    version = loaded.value.get("dataVersion")
    version = version if isinstance(version, dict) else {}
    numbers = [version.get(name) for name in ("timestamp", "counter")]
    return (
        2 - loaded.is_refused,
        *(number if isinstance(number, int) else 0 for number in numbers),
        file.modified or 0.0,
    )


def _offsets_of_others(replicas: Sequence[ReplicaContent], files: Sequence[File]) -> list[File]:
    """The consumer-offset files of replicas that are not among `files`."""
    taken = {file.path for file in files}
    return [
        file
        for replica in replicas
        for file in replica.files
        if file.format == "rocketmq.config"
        and file.problem is None
        and file.place.state is None
        and file.path not in taken
        and config.name_of(file) in OFFSETS
    ]
