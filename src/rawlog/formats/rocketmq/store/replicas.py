"""Replicas of a store, of a master and its slaves or of a DLedger group: which stores are replicas, which is the best, and where their
histories part.

Replicas have the same bytes at the same address, apart from damage and where they end. A survey has the stretches with sound messages of
one commit-log file, and checksums of some messages: those whose addresses have the smallest hashes, so that every replica has the same
ones. If two replicas disagree on all of them from some address on, their histories differ from there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG, COMMIT_LOG_NAME, parts, store_name
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    DLEDGER,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store.outline import (
    Claim,
    MessageRun,
    claim_of,
    is_begun,
    recognise,
    run_of,
    runs_of,
    settle,
    slots_between,
    tail_of,
)
from rawlog.formats.rocketmq.store.placeholders import LAYOUTS, Slot
from rawlog.formats.rocketmq.store.rewrite import drop, stores
from rawlog.formats.rocketmq.store.settings import Sizes, conf_near, sizes_of
from rawlog.io.checksums import crc32_spans
from rawlog.io.output import why_unsafe
from rawlog.io.storage import Source
from rawlog.model.errors import RawlogError
from rawlog.model.format import File
from rawlog.model.report import Report
from rawlog.model.store import Copies, Identity, Store
from rawlog.model.text import plain_time

SAMPLES, LEAST_SAMPLES = 1 << 16, 64
"""Checksums of messages that the surveys of a store have, and the least of those in one file: 16 bytes each."""
_LAST = np.uint64((1 << 64) - 1)


@dataclass(frozen=True, slots=True)
class Extent:
    """A stretch of sound messages without a hole, by address, and the store times of the first and the last."""

    start: int
    stop: int
    since: int
    until: int


@dataclass(frozen=True, slots=True)
class Samples:
    """Checksums of the messages whose address has a hash of at most `most`, by address."""

    addresses: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    sums: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    most: np.uint64 = _LAST

    def add(self, rows: Messages, count: int) -> Samples:
        """These samples with those of more messages, at most `count`."""
        fresh = np.flatnonzero(_hashes(rows[fields.F_PHYSICAL]) <= self.most)
        addresses = np.concatenate((self.addresses, rows[fields.F_PHYSICAL][fresh]))
        hashes, most = _hashes(addresses), self.most
        if addresses.size > count:
            most = np.partition(hashes, count - 1)[count - 1]
        keep = hashes <= most
        fresh = fresh[keep[self.addresses.size :]]
        starts = rows[fields.F_START][fresh]
        sums = crc32_spans(rows.data, starts, starts + rows[fields.F_SIZE][fresh])
        return Samples(addresses[keep], np.concatenate((self.sums[keep[: self.addresses.size]], sums)), most)

    def upto(self, most: np.uint64) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Those whose addresses have a hash of at most `most`."""
        keep = _hashes(self.addresses) <= most
        return self.addresses[keep], self.sums[keep]


def _hashes(addresses: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A hash of each address (splitmix64), the same in every replica."""
    with np.errstate(over="ignore"):
        value = addresses.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The survey of one replica of a commit-log file: `file` is at the address where its messages belong."""

    file: File
    #: The file size that the broker gives its commit-log files.
    file_size: int
    extents: tuple[Extent, ...] = ()
    samples: Samples = field(default_factory=Samples)
    messages: int = 0
    #: What follows the last sound message: `blank`, `zeros`, or how many other bytes.
    tail: str = "zeros"
    is_begun: bool = False
    is_dledger: bool = False
    #: The newest term of DLedger's entries.
    term: int = 0
    #: What the consume queues of this replica know of messages in the holes of this file, in order.
    slots: tuple[Slot, ...] = ()
    #: The file under its own name, and where its messages say that it belongs.
    claim: Claim | None = None

    @property
    def start(self) -> int:
        return self.file.place.start_offset or 0

    @property
    def stop(self) -> int:
        return self.start + self.file_size

    @property
    def end(self) -> int:
        """The address after the last sound message."""
        return self.extents[-1].stop if self.extents else self.start

    @property
    def covered(self) -> list[tuple[int, int]]:
        """The stretches that need no other replica: sound messages, and the unused end of a file before another."""
        spans = [(extent.start, extent.stop) for extent in self.extents]
        return [*spans, (self.end, self.stop)] if self.tail == "blank" else spans

    @property
    def holes(self) -> list[tuple[int, int]]:
        """The stretches without sound messages, including the one at the end."""
        ends = [self.start, *(extent.stop for extent in self.extents)]
        begins = [*(extent.start for extent in self.extents), self.end if self.tail == "blank" else self.stop]
        return [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end]


def real_runs(file: File, size: int) -> Iterator[MessageRun]:
    """The sound messages of a file in runs without a hole, but not what an earlier repair put into holes."""
    for run in runs_of(file, skip=True, size=size):
        ours = run.rows.fillers
        if not ours.any():
            yield run
            continue
        bounds = np.flatnonzero(np.diff(ours.astype(np.int8), prepend=1, append=1))
        for start, stop in zip(bounds[::2].tolist(), bounds[1::2].tolist(), strict=True):
            yield replace(run_of(run.rows.cut(start, stop)), shift=run.shift, is_corrected=run.is_corrected)


def survey_log(
    file: File, queues: Sequence[File], size: int, samples: int, advance: Callable[[int], None]
) -> LogSurvey | None:
    """Read one commit-log file; None if it has no place in a log. `queues` are the queue files of its store."""
    [named] = recognise([file])
    if named.format != COMMIT_LOG.name or named.place.start_offset is None:
        return None
    claim = claim_of(named, size, queues)
    log = claim.placed(size)
    extents: list[Extent] = []
    sample, messages, term, is_dledger = Samples(), 0, 0, False
    done = shift = 0
    for run in real_runs(log, size):
        rows, times = run.rows, run.rows[fields.F_STORE_TIME]
        last = int(np.median(times[-3:]))  # no checksum covers a single one
        if extents and extents[-1].stop == run.start:
            extents[-1] = replace(extents[-1], stop=run.stop, until=last)
        else:
            extents.append(Extent(run.start, run.stop, int(times[0]), last))
        sample = sample.add(rows, samples)
        messages, shift = messages + len(rows), run.shift
        if _is_dledger(rows):
            is_dledger, term = True, max(term, _term(rows))
        advance(run.stop - (log.place.start_offset or 0) - done)
        done = run.stop - (log.place.start_offset or 0)
    end = extents[-1].stop if extents else log.place.start_offset or 0
    survey = LogSurvey(
        log,
        size,
        tuple(extents),
        sample,
        messages,
        tail_of(log, end - shift - (log.place.start_offset or 0), size, shift),
        is_begun(log),
        is_dledger,
        term,
    )
    advance(max(0, file.size - done))
    return replace(survey, slots=tuple(slots_between(queues, survey.holes)), claim=claim)


def _is_dledger(rows: Messages) -> bool:
    return bool((rows[fields.F_START] != rows.frames.starts[rows[fields.F_FRAME]]).any())


def _term(rows: Messages) -> int:
    heads = rows.frames.starts[rows[fields.F_FRAME]]
    heads = heads[heads != rows[fields.F_START]]
    return int(DLEDGER.take(rows.data, heads[-1:])["term"][0])


# Two replicas --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two replicas compared: how many sampled messages are the same, and the addresses of those that differ.

    `until` is where their histories part: they agree on the messages that begin before it, and on none after it. None: they do not part.
    """

    same: int = 0
    different: tuple[int, ...] = ()
    until: int | None = None


def agreement(first: Sequence[LogSurvey], second: Sequence[LogSurvey]) -> Agreement:
    """What two replicas have in common, by their surveys."""
    by_start = {survey.start: survey for survey in second}
    parts = [_compare_samples(survey, by_start[survey.start]) for survey in first if survey.start in by_start]
    if not parts:
        return Agreement()
    where = np.concatenate([part[0] for part in parts])
    order = np.argsort(where, kind="stable")
    where, same, shared = where[order], *(np.concatenate([part[at] for part in parts])[order] for at in (1, 2))
    last = int(np.flatnonzero(same)[-1]) + 1 if same.any() else 0
    apart = where.size - last
    # A single message at the end that has other bytes may have been changed where no checksum covers it.
    is_apart = apart > 1 or (apart == 1 and not shared[-1])
    until = (int(where[last - 1]) + 1 if last else 0) if is_apart else None
    return Agreement(int(same.sum()), tuple(where[~same].tolist()), until)


def _compare_samples(
    first: LogSurvey, second: LogSurvey
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.bool_]]:
    """Sampled addresses where both replicas are sound; whether the messages are equal, and whether both have one."""
    most = min(first.samples.most, second.samples.most)
    a, a_sums = first.samples.upto(most)
    b, b_sums = second.samples.upto(most)
    where = np.union1d(a[_are_inside(second, a) | np.isin(a, b)], b[_are_inside(first, b) | np.isin(b, a)])
    both = np.isin(where, a) & np.isin(where, b)
    same = both.copy()
    same[both] = _sums_at(where[both], a, a_sums) == _sums_at(where[both], b, b_sums)
    return where, same, both


def _sums_at(sought: NDArray[np.int64], addresses: NDArray[np.int64], sums: NDArray[np.int64]) -> NDArray[np.int64]:
    order = np.argsort(addresses)
    return sums[order[np.searchsorted(addresses[order], sought)]]


def _are_inside(survey: LogSurvey, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which addresses are in a stretch of sound messages."""
    starts = np.array([extent.start for extent in survey.extents], np.int64)
    stops = np.array([-1, *(extent.stop for extent in survey.extents)], np.int64)
    result: NDArray[np.bool_] = addresses < stops[np.searchsorted(starts, addresses, side="right")]
    return result


# Whose stores they are ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReplicaFiles:
    """One store as it was found: its files, and who its broker was as far as its settings say."""

    root: str
    disk: str
    files: tuple[File, ...]
    sizes: Sizes
    broker: str | None = None
    broker_id: int | None = None
    #: The epochs of a controller with their first addresses; empty for a broker without one.
    epochs: tuple[tuple[int, int], ...] = ()

    @property
    def logs(self) -> list[File]:
        """The files of the commit log, also those under wrong names."""
        return [file for file in self.files if file.problem is None and is_log(file)]

    @property
    def queues(self) -> tuple[File, ...]:
        return tuple(file for file in self.files if file.format in LAYOUTS and file.problem is None)


def is_log(file: File) -> bool:
    """Whether a file is one of a commit log, also under a wrong name."""
    is_stray = file.format == "rocketmq.stray" and parts(file.path)[1].startswith("commitlog")
    return file.format == COMMIT_LOG.name or is_stray


@dataclass(slots=True)
class Replica:
    """A store on a disk, with what the surveys found in it."""

    store: ReplicaFiles
    logs: list[LogSurvey] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    until: int | None = None

    @property
    def end(self) -> int:
        return max((log.end for log in self.logs if log.extents), default=self.start)

    @property
    def start(self) -> int:
        return min((log.start for log in self.logs if log.extents), default=0)

    @property
    def lineage(self) -> tuple[int, int]:
        """What says which of two histories is newer: the term or epoch, then the store time of the last message."""
        term = max((log.term for log in self.logs), default=0)
        epoch = max((epoch for epoch, _ in self.store.epochs), default=0)
        return max(term, epoch), max((log.extents[-1].until for log in self.logs[-1:] if log.extents), default=0)

    @property
    def order(self) -> tuple[Any, ...]:
        """Copies in order of preference: the newest history, the master, the longest, the most sound."""
        sound = sum(extent.stop - extent.start for log in self.logs for extent in log.extents)
        return (
            *(-part for part in self.lineage),
            self.store.broker_id not in (None, 0),
            -self.end,
            -sound,
            self.store.root,
        )


def replicas_below(root: str, files: Sequence[File], options: Mapping[str, str]) -> Iterator[ReplicaFiles]:
    """The stores below a directory."""
    for store in stores(files, {}) if files else ():
        if not any(is_log(file) for file in store):
            continue
        group = next((file.place.group for file in store if file.format != COMMIT_LOG.name and file.place.group), None)
        conf = conf_near(store)
        values: Mapping[str, str] = {} if conf is None else conf.values
        _, name, number = _identity(store) or (None, None, values.get("brokerId", ""))
        yield ReplicaFiles(
            str(group or store[0].place.group or root),
            root,
            store.files,
            sizes_of(store).with_options(options),
            name or values.get("brokerName"),
            int(number) if number.isdecimal() else None,
            _epochs(store),
        )


def queues_without_log(files: Sequence[File]) -> Iterator[File]:
    """The consume-queue files of the stores among files that have no commit log."""
    for store in stores(files, {}) if files else ():
        if not any(is_log(file) for file in store):
            yield from (file for file in store if file.format in LAYOUTS and file.problem is None)


def _text_of(files: Sequence[File], format: str) -> str:
    for file in files:
        if file.format == format and file.problem is None and file.place.state is None and file.size < 1 << 20:
            with Source(file.path) as source:
                return source.read(0, source.size).decode("utf-8", "replace")
    return ""


def _identity(files: Sequence[File]) -> tuple[str, str, str] | None:
    """Cluster, name and number of a broker, from the file of a controller: `cluster#broker#id`."""
    try:
        names = _text_of(files, "rocketmq.identity").strip().split("#")
    except RawlogError:
        return None
    return (names[0], names[1], names[2]) if len(names) == 3 else None


def _epochs(files: Sequence[File]) -> tuple[tuple[int, int], ...]:
    """Epochs and their first addresses, after a count and a checksum: `epoch-address` in each line."""
    lines = _text_of(files, "rocketmq.epochs").split()[2:]
    pairs = [line.split("-") for line in lines]
    return tuple((int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2 and all(map(str.isdecimal, pair)))


def settle_logs(replica: Replica, report: Report) -> None:
    """Keep the surveys of files that have a place in the log of a replica; of two at one address the one with more messages."""
    claims = [log.claim for log in replica.logs if log.claim is not None]
    kept = {file.path for file in settle(claims, replica.store.sizes.commit_log, report)}
    by_start: dict[int, LogSurvey] = {}
    for log in (log for log in replica.logs if log.file.path in kept):
        rival = by_start.get(log.start)
        best = log if rival is None or log.messages > rival.messages else rival
        by_start[log.start] = best
        if rival is not None:
            other = rival if best is log else log
            reason = f"left out; {best.file.path} has its place in the commit log"
            drop(report, reason, other.file.path, 0, other.file.size)
    replica.logs = [by_start[start] for start in sorted(by_start)]


def group_replicas(replicas: Sequence[Replica]) -> list[list[Replica]]:
    """Group stores that are replicas: with common messages, or of one broker without common addresses."""
    groups: list[list[Replica]] = []
    for replica in replicas:
        near = [group for group in groups if any(_is_replica(replica, other) for other in group)]
        merged = [replica, *(member for group in near for member in group)]
        groups = [group for group in groups if group not in near] + [merged]
    return groups


def _is_replica(first: Replica, second: Replica) -> bool:
    common = agreement(first.logs, second.logs)
    if common.same or common.different:
        return common.same > 0
    return first.store.broker is not None and first.store.broker == second.store.broker


def part_histories(group: list[Replica]) -> list[str]:
    """Set where each replica parts from the history of the first; the reasons, one each."""
    reasons = [""]
    for replica in group[1:]:
        common: Agreement = agreement(group[0].logs, replica.logs)
        replica.until = common.until
        reason = ""
        if common.until is not None:
            (term, when), (replica_term, then) = group[0].lineage, replica.lineage
            why = (
                f"term or epoch {term} after {replica_term}"
                if term != replica_term
                else f"last stored {plain_time(when * 1000)}, not {plain_time(then * 1000)}"
            )
            reason = f"{replica.store.root}: another history from address {common.until:,} on; {group[0].store.root} is newer: {why}"
        reasons.append(reason)
    return reasons


def unit_name(group: Sequence[Replica], taken: set[str]) -> str:
    """The name of a group's broker, or that of a directory."""
    brokers = Counter(replica.store.broker for replica in group if replica.store.broker)
    base = brokers.most_common(1)[0][0] if brokers else None
    if base is None or why_unsafe(base) is not None:
        names = [part for part in parts(group[0].store.root) if part not in ("", "store", ".", "..")]
        base = names[0] if names else "store"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def copies(stores: Sequence[Store]) -> list[Copies]:
    """The sets of replicas, each with the best first. A store without an identity is no replica."""
    by_identity: dict[Identity, list[Store]] = defaultdict(list)
    for store in stores:
        identity = _unit_of_data(store)
        if identity is not None:
            by_identity[identity].append(store)
    return [
        Copies.ranked(identity, group, [_rank(store) for store in group])
        for identity, group in by_identity.items()
        if len(group) > 1
    ]


def _unit_of_data(store: Store) -> Identity | None:
    """The DLedger group, or cluster and broker by the file of a controller."""
    name = store_name(store)
    if name is not None and name.startswith("dledger-"):
        return Identity("rocketmq", name.removeprefix("dledger-"))
    broker = _identity(store)
    return None if broker is None else Identity("rocketmq", broker[1], (broker[0],))


def _rank(store: Store) -> tuple[tuple[int, ...], str]:
    """Rank by where the last commit-log file begins; its size does not show how full it is."""
    logs = [file for file in store if file.format == COMMIT_LOG_NAME and file.place.state is None]
    last = max((file.place.start_offset or 0 for file in logs), default=0)
    queues = sum(file.size for file in store if file.format == "rocketmq.consumequeue")
    is_readable = not any(file.problem for file in store)
    return (int(is_readable), last, queues, sum(file.size for file in logs)), f"last file of the commit log: {last:,}"
