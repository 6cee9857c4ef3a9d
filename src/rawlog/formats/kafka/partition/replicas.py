"""Which partition directories are replicas of one another, and which of them is the best: by names, sizes, indexes and small files.

A partition is known by its cluster's id, its topic's id, its topic and its number. A topic that was deleted and created again has another
id, so its old directories are not replicas of the new ones. Brokers before 2.4 do not write the cluster's id, and brokers before 2.8 no id
of the topic: then the names decide, unless two directories are of brokers with the same number, which replicas never are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.checkpoints import CLEANER, HIGH_WATERMARK, offsets_in
from rawlog.formats.kafka.epochs import parse_epochs
from rawlog.formats.kafka.internal.codec import uuid_bytes
from rawlog.formats.kafka.internal.topics import read_records
from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.layouts import NONE
from rawlog.formats.kafka.log.seek import last_indexed
from rawlog.formats.kafka.partition.lineage import Copy, Lineage, Share, span, unite
from rawlog.formats.kafka.paths import METADATA_TOPIC, remote_directory, split
from rawlog.formats.kafka.texts import properties, topic_id
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.difference import Change, Difference, Tally, compare_ordered
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import File, Replicas
from rawlog.model.outline import Intervals
from rawlog.model.recovery import CopyPlan, PiecePlan, Span, UnitPlan
from rawlog.model.store import Copies, Identity, Store
from rawlog.model.text import counted

LARGEST_TEXT = 1 << 20
META = "meta.properties"


@dataclass(frozen=True, slots=True)
class _Ids:
    """The ids of a partition directory in its small files; None if they have none."""

    cluster: str | None
    topic_id: str | None
    node: str | None

    @property
    def facts(self) -> tuple[str | None, str | None]:
        return self.cluster, self.topic_id

    def fits(self, facts: tuple[str | None, str | None]) -> bool:
        """Whether nothing that is known contradicts."""
        return all(value is None or value == other for value, other in zip(self.facts, facts, strict=True))


def copies(stores: Sequence[Store], reach: Callable[[Store], tuple[int, int]] | None = None) -> list[Copies]:
    """The sets of replicas among partition directories, each with the best first.

    `reach` gives an epoch and an offset that a directory is known to reach by other files than those of a partition.
    """
    owner: Callable[[str], dict[str, str]] = cache(_properties)
    offsets: Callable[[str, str], Mapping[tuple[str, int], int]] = cache(offsets_in)
    by_name: dict[tuple[str | None, int | None], list[Store]] = defaultdict(list)
    for store in stores:
        by_name[store[0].place.topic, store[0].place.partition].append(store)
    replica_sets: list[Copies] = []
    for (topic, partition), namesakes in by_name.items():
        for facts, replicas in _group_alike(namesakes, owner):
            identity = Identity("kafka", f"{topic}-{partition}", tuple(fact or "" for fact in facts))
            ranks = _ranks(replicas, offsets, reach or (lambda store: (-1, 0)))
            replica_sets.append(Copies.ranked(identity, replicas, ranks))
    return replica_sets


def facts(store: Store) -> tuple[str, ...]:
    """The ids of the cluster and the topic of a partition directory; empty where they are not known."""
    return tuple(fact or "" for fact in _ids_of(store, _properties(split(store.path)[0])).facts)


def _group_alike(
    stores: Sequence[Store], owner: Callable[[str], dict[str, str]]
) -> list[tuple[tuple[str | None, str | None], list[Store]]]:
    """Stores of one name in sets whose ids are the same. What is not known fits if it fits only one set."""
    ids = [_ids_of(store, owner(split(store.path)[0])) for store in stores]
    if (
        stores[0][0].place.topic == METADATA_TOPIC
    ):  # there is one of each cluster: without the cluster's id, it may be of any
        named = [at for at, store_ids in enumerate(ids) if store_ids.cluster is not None]
        stores, ids = [stores[at] for at in named], [ids[at] for at in named]
    complete = {store_ids.facts for store_ids in ids if None not in store_ids.facts}
    sets: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for at, store_ids in enumerate(ids):
        fitting = [facts for facts in complete if store_ids.fits(facts)]
        sets[fitting[0] if len(fitting) == 1 else store_ids.facts].append(at)
    result = []
    for facts, members in sets.items():
        nodes = [ids[at].node for at in members if ids[at].node is not None]
        unsure = facts == (None, None) and len(set(nodes)) < len(nodes)
        if len(members) > 1 and not unsure:
            result.append((facts, [stores[at] for at in members]))
    return result


def _ids_of(store: Store, owner: dict[str, str]) -> _Ids:
    node = owner.get("node.id", owner.get("broker.id"))
    if store[0].place.topic == METADATA_TOPIC:
        return _Ids(owner.get("cluster.id"), "", node)
    partition_file = next((file for file in store if file.format == "kafka.partition" and file.problem is None), None)
    hex_id: str | None = None
    remote = remote_directory(store.path)
    try:
        if partition_file is not None:
            hex_id = topic_id(_text(partition_file.path)).hex()
        elif remote is not None:
            hex_id = uuid_bytes(remote.topic_id).hex()
    except (RawlogError, ValueError):
        hex_id = None
    return _Ids(owner.get("cluster.id"), hex_id, node)


def _properties(folder: str) -> dict[str, str]:
    """The `meta.properties` of a log directory; nothing if it cannot be read."""
    try:
        return properties(_text(f"{folder}/{META}"))
    except (RawlogError, ValueError):
        return {}


def _text(path: str) -> bytes:
    with Source(path) as source:
        return source.read(0, min(source.size, LARGEST_TEXT))


def _ranks(
    stores: Sequence[Store],
    offsets: Callable[[str, str], Mapping[tuple[str, int], int]],
    reach: Callable[[Store], tuple[int, int]],
) -> list[tuple[tuple[int, ...], str]]:
    """How far each replica is: by its last leader epoch, then by its end, then by its high watermark.

    Replicas have the same bytes from a common segment on, unless they were compacted: the longer one is further. Else the last entry
    of the offset index says which offset a replica reaches at least.
    """
    place = stores[0][0].place
    key = (str(place.topic), int(place.partition or 0))
    logs = [_logs(store) for store in stores]
    folders = [split(store.path)[0] for store in stores]
    common = max(
        set.intersection(*({file.place.start_offset or 0 for file in segments} for segments in logs)), default=None
    )
    is_last = all(segments and segments[-1].place.start_offset == common for segments in logs)
    by_bytes = common is not None and (is_last or not any(key in offsets(folder, CLEANER) for folder in folders))
    ranks: list[tuple[tuple[int, ...], str]] = []
    for store, segments, folder in zip(stores, logs, folders, strict=True):
        mark = offsets(folder, HIGH_WATERMARK).get(key, -1)
        epoch, reached = reach(store)
        epoch, reached = max(epoch, _last_epoch(store)), max(reached, mark)
        if segments:
            reached = max(reached, segments[-1].place.start_offset or 0)
        if by_bytes:
            end = (sum(file.size for file in segments if (file.place.start_offset or 0) >= (common or 0)), reached)
        else:
            reached = max(reached, last_indexed(segments[-1], store)) if segments else reached
            end = (reached, segments[-1].size if segments else 0)
        is_readable = not any(file.problem for file in store)
        ranks.append(((int(is_readable), epoch, *end, mark), _evidence(epoch, reached)))
    return ranks


def _evidence(epoch: int, reached: int) -> str:
    texts = [f"leader epoch {epoch}"] if epoch >= 0 else []
    return ", ".join([*texts, f"up to offset {reached:,} at least"] if reached > 0 else texts)


def _logs(store: Store) -> list[File]:
    """The segments that a broker would load, in order."""
    logs = [file for file in store if file.format == "kafka.log" and file.place.state is None and file.problem is None]
    return sorted(logs, key=lambda file: file.place.start_offset or 0)


def _last_epoch(store: Store) -> int:
    """The last leader epoch with records of a replica; -1 if unknown."""
    epochs_file = next((file for file in store if file.format == "kafka.epochs" and file.problem is None), None)
    try:
        return (
            max((epoch for epoch, _ in parse_epochs(_text(epochs_file.path)) or ()), default=-1)
            if epochs_file is not None
            else -1
        )
    except RawlogError:
        return -1


# ----------------------------------------------------------------------------------------------------------------------
# Two replicas of one partition against each other.
# A follower copies its leader's batches byte for byte, so the same offsets hold the same batches. Each replica is trimmed and compacted
# by itself, though: it may begin elsewhere, end earlier, and lack records that the other still has. Batches that are unlike are therefore
# judged by their records.


EPOCH = "leader_epoch"
HEAD = ("last_offset", "crc", "magic", EPOCH)
SCHEMA = pa.schema([("base_offset", pa.int64()), *((name, pa.int64()) for name in HEAD)])
RECORD = ("key", "value", "timestamp", "timestampType", "headers", "producer_id", "producer_epoch", "sequence",
          "is_transactional", "is_control")  # fmt: skip
#: Differences of one partition that become findings each; after them one says how many more there are.
MOST = 1000
PLURAL = {"batch": "batches", "record": "records"}


@dataclass(slots=True)
class _Side:
    """The segments of one replica that a broker would load, and their offsets."""

    segments: list[File]
    start: int | None = None
    end: int = 0
    #: Where each segment's batches begin and end.
    covers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The heads of sound batches, in order, without those that overlap earlier ones: other rules report them."""
        reached = -1
        for file in self.segments:
            for frames in walk(file, LOG, errors="skip"):
                head = heads(frames)
                head = head.only(head.sound)
                if not len(head):
                    continue
                before = np.concatenate(
                    ([reached], np.maximum(np.maximum.accumulate(head["last_offset"]), reached)[:-1])
                )
                head = head.only(head["base_offset"] > before)
                if not len(head):
                    continue
                reached = int(head["last_offset"][-1])
                first = int(head["base_offset"][0])
                self.start = first if self.start is None else self.start
                self.end = reached + 1
                self.covers[file.path] = (self.covers.get(file.path, (first, 0))[0], self.end)
                columns = [pa.array(head[name]) for name in ("base_offset", *HEAD)]
                yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)

    def records(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """The records with offsets in a range, control records too."""
        touched = [
            file
            for file in self.segments
            if (span := self.covers.get(file.path)) and span[0] < stop and span[1] > start
        ]
        names = ("offset", *RECORD)
        reached = start - 1
        for _, batch in read_records(touched, names, "skip"):
            offset = batch.column("offset")
            wanted = pc.and_(pc.greater(offset, reached), pc.less(offset, stop))
            chosen = batch.select(list(names)).filter(wanted)
            if chosen.num_rows:
                reached = max(reached, int(pc.max(offset.filter(wanted)).as_py()))
                yield chosen

    def file_at(self, offset: int | None) -> str:
        """The segment that holds an offset."""
        for path, (start, stop) in self.covers.items():
            if offset is not None and start <= offset < stop:
                return path
        return self.segments[0].path


@dataclass(slots=True)
class _Comparison:
    """The differences of two replicas in their common offsets."""

    this: _Side
    other: _Side
    epochs: list[Difference]
    records: Tally
    #: Batches that are unlike, while the records in them are alike.
    rewritten: list[Difference]
    unlisted: int

    @property
    def has_both(self) -> bool:
        return self.this.start is not None and self.other.start is not None


def compare(replicas: Replicas) -> _Comparison:
    """Batch by batch, and record by record where batches are unlike."""
    this, other = (_Side(_segments(files)) for files in (replicas.a, replicas.b))
    batches = Tally(MOST)
    compare_ordered(this.batches(), other.batches(), "base_offset", HEAD, batches, "batch", replicas.name)
    result = _Comparison(this, other, [], Tally(MOST), [], batches.unlisted)
    if this.start is None or other.start is None:
        return result
    start, stop = max(this.start, other.start), min(this.end, other.end)
    unlike: list[Difference] = []
    for difference in batches.items:
        assert difference.start is not None
        assert difference.stop is not None
        if EPOCH in difference.columns:
            result.epochs.append(difference)
        if (
            difference.columns != (EPOCH,)
            and difference.start < stop
            and (difference.stop > start or difference.change is Change.DIFFERS)
        ):
            unlike.append(difference)
    if unlike or batches.unlisted:
        first = max(start, min((difference.start or 0 for difference in unlike), default=start))
        sides = (side.records(first, stop) for side in (this, other))
        compare_ordered(*sides, "offset", RECORD, result.records, "record", replicas.name)  # type: ignore[call-arg,arg-type]
        if result.records.is_same:
            result.rewritten = unlike
    return result


def _segments(files: Sequence[File]) -> list[File]:
    logs = [file for file in files if file.format == LOG.name and file.place.state is None and file.problem is None]
    return sorted(logs, key=lambda file: file.place.start_offset or 0)


def _mark(comparison: _Comparison, difference: Difference, message: str, **more: Any) -> Mark:
    side = comparison.other if difference.change is Change.ONLY_B else comparison.this
    return Mark(message, offset=difference.start, path=side.file_at(difference.start), **more)


def _span(difference: Difference) -> str:
    assert difference.stop is not None
    amount = f"{difference.count:,} {difference.what if difference.count == 1 else PLURAL[difference.what]}"
    return amount if difference.count == 1 else f"{amount} up to offset {difference.stop - 1:,}"


@rule("kafka.replica.record", Severity.ERROR)
def record(replicas: Replicas) -> Iterator[Mark]:
    """Two replicas of a partition hold other records at the same offset: their logs diverged, or one of them was damaged and its
    checksum corrected.

    A consumer reads one or the other, depending on which replica leads. Look at both with `rawlog diff`, and restore the wrong one from the
    right one.
    """
    comparison = replicas.share(compare)
    for difference in comparison.records.items:
        if difference.change is Change.DIFFERS:
            yield _mark(
                comparison,
                difference,
                f"{_span(difference)} unlike the other replica's: {', '.join(difference.columns)}",
                expected=difference.b,
                found=difference.a,
            )
    if comparison.records.unlisted:
        yield Mark(
            f"{comparison.records.unlisted:,} more differences of records", path=comparison.this.segments[0].path
        )


@rule("kafka.replica.missing", Severity.WARNING)
def missing(replicas: Replicas) -> Iterator[Mark]:
    """One replica lacks records that the other has, inside the range of offsets that both cover.

    That is normal in a compacted topic, since each broker compacts its own replica; in other topics records are lost.
    """
    comparison = replicas.share(compare)
    for difference in comparison.records.items:
        if difference.change is not Change.DIFFERS:
            subject = "the other replica lacks" if difference.change is Change.ONLY_A else "this replica lacks"
            yield _mark(comparison, difference, f"{subject} {_span(difference)}")


@rule("kafka.replica.epoch", Severity.ERROR)
def epoch(replicas: Replicas) -> Iterator[Mark]:
    """Two replicas have the same batch with different leader epochs.

    Replicas find out by epochs where their logs part. With wrong ones they keep records that no leader acknowledged, or cut others.
    """
    comparison = replicas.share(compare)
    for difference in comparison.epochs:
        a, b = ((side or {}).get(EPOCH) for side in (difference.a, difference.b))
        yield _mark(
            comparison,
            difference,
            f"{_span(difference)} of another leader epoch on the other replica",
            expected=b,
            found=a,
        )


@rule("kafka.replica.batches", Severity.INFO)
def batches(replicas: Replicas) -> Iterator[Mark]:
    """The same records are in other batches: one replica was compacted, converted or rewritten, the other not.

    Nothing is lost by it.
    """
    comparison = replicas.share(compare)
    for difference in comparison.rewritten[:1]:
        more = len(comparison.rewritten) - 1 + comparison.unlisted
        rest = f", and {more:,} more stretches" if more else ""
        yield _mark(comparison, difference, f"the same records in other batches from here on{rest}")


@rule("kafka.replica.range", Severity.INFO)
def extent(replicas: Replicas) -> Iterator[Mark]:
    """Two replicas begin or end at other offsets: one was trimmed further, or lags.

    A follower that lags is normal; what only the longer log holds cannot be compared with anything.
    """
    comparison = replicas.share(compare)
    if not comparison.this.segments or not comparison.other.segments:
        return
    for what, this, other in (
        ("begins", comparison.this.start, comparison.other.start),
        (
            "ends",
            comparison.this.end if comparison.has_both else None,
            comparison.other.end if comparison.has_both else None,
        ),
    ):
        if this != other:
            yield Mark(
                f"the log {what} at offset {_offset_text(this)}, the other replica's at {_offset_text(other)}",
                path=comparison.this.segments[0].path,
                offset=this,
                expected=other,
                found=this,
            )


def _offset_text(offset: int | None) -> str:
    return "none" if offset is None else f"{offset:,}"


def rules() -> Sequence[Rule[Any]]:
    """The rules over two replicas of a partition."""
    return (record, missing, epoch, batches, extent)


# ----------------------------------------------------------------------------------------------------------------------
# Which replica decides what a partition's history is, what is taken from the others, and what is lost: the decision on one partition.
# The replica that led at death decides, then those that were in sync, then the highest leader epoch and the longest log. What is known of
# a partition is never more than what its replicas and the cluster's metadata say; everything that they leave open is listed.


#: So many ranges of offsets are named in one sentence.
SHOWN = 5
NOT_ASSIGNED, NOT_LOADED, FUTURE = 1, 2, 3
"""Ranks of copies: on a broker that is not to have one; of a state that a broker does not load; the unfinished copy of another disk."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The state of a partition in the metadata at death: leader (-1 if none), leader epoch, in-sync replicas, replicas."""

    leader: int
    epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]


@dataclass(slots=True)
class Decision:
    """What becomes of a partition: the plan, and the pieces to write. `floor` is the first offset that consumers get."""

    plan: UnitPlan
    pieces: list[Share] = field(default_factory=list)
    start: int = 0
    floor: int | None = None


def brokers(nodes: Iterable[int]) -> str:
    """The names of brokers in a sentence."""
    named = sorted(nodes)
    return f"broker{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}"


def decide(
    name: str,
    copies: Sequence[Copy],
    assignment: Assignment | None,
    *,
    is_compacted: bool | None = False,
    left_out: Sequence[CopyPlan] = (),
    nodes: Collection[int] = (),
    known: tuple[int, int | None] = (0, None),
) -> Decision:
    """Decide on a partition. `assignment` is None without metadata, `is_compacted` is None if nothing says it. `left_out` are copies that
    are only listed. `nodes` are the brokers with a disk among the sources. `known` are the offsets that other files count, of a partition
    without a copy.
    """
    usable = [copy for copy in copies if not copy.is_blank] or list(copies)
    if not usable:
        lost = (Span(*known, "no replica is here"),)
        return Decision(UnitPlan(name, "lost", 0, 0, "no replica was found", tuple(left_out), lost=lost))
    return _Decider(name, usable, assignment, is_compacted, nodes).decide(copies, left_out)


class _Decider:
    """The steps of the decision on a partition."""

    def __init__(
        self,
        name: str,
        copies: Sequence[Copy],
        assignment: Assignment | None,
        is_compacted: bool | None,
        nodes: Collection[int],
    ) -> None:
        self.name, self.copies, self.is_compacted, self.nodes = name, copies, is_compacted, nodes
        self.unknown: list[str] = []
        newest = max(copy.written_epoch for copy in copies)
        self.is_outdated = assignment is not None and newest > assignment.epoch
        self.assignment = None if self.is_outdated else assignment
        self.recorded = assignment
        self.winner, self.reason = self._winner()
        self.others = sorted(
            (copy for copy in copies if copy is not self.winner),
            key=lambda copy: (copy.rank, -copy.last_epoch, -copy.end),
        )
        self.lineage = Lineage(self.winner.epochs, self.winner.end)
        while any(self.lineage.extend(copy) for copy in self.others):
            pass
        self.limits = {copy.number: min(self.lineage.common(copy), copy.end) for copy in copies}
        #: The copies without what contradicts the result: only these tell times.
        self.agreeing = [
            replace(
                copy,
                log=replace(copy.log, runs=tuple(run for run in copy.runs if run.first < self.limits[copy.number])),
            )
            for copy in copies
        ]

    # Who decides --------------------------------------------------------------------------------------------------------

    def _winner(self) -> tuple[Copy, str]:
        assignment, plain = (
            self.assignment,
            [copy for copy in self.copies if copy.rank < NOT_LOADED] or list(self.copies),
        )
        if assignment is None:
            best = _furthest(plain)
            why = _reason_for(best, plain)
            if self.is_outdated and self.recorded is not None:
                text = f"the metadata knows leader epoch {self.recorded.epoch}, the logs a later one: it is older than they are"
                self.unknown.append(f"{text}; who was in sync at death is not known")
                return best, f"{why}; the metadata is older than the logs"
            return best, why
        leaders = [copy for copy in plain if copy.node == assignment.leader and assignment.leader >= 0]
        if leaders:
            return _furthest(leaders), f"broker {assignment.leader} led at death, epoch {assignment.epoch}"
        synced = [copy for copy in plain if copy.node in assignment.isr]
        if synced:
            best = _furthest(synced)
            absent = f"; the leader: {self._explain_absence([assignment.leader])}" if assignment.leader >= 0 else ""
            return best, f"broker {best.node} was in sync at death, epoch {assignment.epoch}{absent}"
        best = _furthest(plain)
        return best, f"no in-sync replica is here ({brokers(assignment.isr)}): {_reason_for(best, plain)}"

    # What is lost, and what is not known -----------------------------------------------------------------------------------

    def decide(self, all_copies: Sequence[Copy], left_out: Sequence[CopyPlan]) -> Decision:
        """Put the decision together."""
        end, members = (
            self.lineage.end,
            [copy for copy in self.copies if self.limits[copy.number] > copy.start or not copy.runs],
        )
        floors = [copy.log_start for copy in members if copy.log_start is not None and copy.log_start <= end]
        floor = max(floors, default=None)
        begin = min((copy.start for copy in members), default=self.winner.start)
        if floor is not None:
            bases = [
                base
                for copy in members
                for run in copy.runs
                if (base := min(run.file.place.start_offset or 0, run.first)) <= floor < run.end
            ]
            begin = max(begin, min(bases, default=floor))
        ranked = [(copy, self.limits[copy.number]) for copy in (self.winner, *self.others)]
        union = unite(ranked, begin, end, is_compacted=bool(self.is_compacted))
        taken = [(piece.start, piece.stop) for piece in union.pieces]
        lost = [*self._lost_start(begin, floor), *self._lost(Intervals([(begin, end)]).subtract(taken))]
        lost += self._lost_tail(members)
        self._note_filled(union.pieces)
        pieces = [self._explain(piece) for piece in union.pieces]
        start, stop = (pieces[0].start, pieces[-1].stop) if pieces else (end, end)
        plan = UnitPlan(
            self.name,
            "rescue",
            max(start, floor or 0),
            stop,
            self.reason,
            (*(self._copy_plan(copy, pieces) for copy in all_copies), *left_out),
            tuple(PiecePlan(piece.copy, piece.start, piece.stop, piece.reason) for piece in pieces),
            tuple(lost),
            tuple(self._undecided_spans(start, stop)),
            tuple(self._divergent_ends()),
            tuple(self.unknown),
        )
        return Decision(plan, pieces, begin if pieces else end, floor)

    def _lost_start(self, begin: int, floor: int | None) -> Iterable[Span]:
        """The lost offsets of the winner before the start of all logs."""
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
        spans = []
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
                    stretch.first < stop and (stretch.end is None or stretch.end > start)
                    for copy in self.copies
                    for stretch in copy.damage
                )
                reason = "damaged, and no other replica has them" if damaged else "no replica has them"
                spans.append(span(self.agreeing, max(start, older), stop, reason))
        return spans

    def _is_head(self, start: int, stop: int) -> bool:
        """Whether offsets are those before the first batch of a log, in a segment that has nothing else there."""
        runs, damage = self.winner.runs, self.winner.damage
        is_first = bool(runs) and start == self.winner.start and stop == runs[0].first and runs[0].start == 0
        return is_first and not any(stretch.first < stop for stretch in damage)

    def _is_undecided(self, start: int, stop: int) -> bool:
        """Whether every copy around these offsets lacks them between two segments, and nothing contradicts compaction."""
        around = [copy for copy in self.copies if copy.start < stop and copy.end > start]
        return all(any(a <= start and stop <= b + 1 for a, b in copy.log.undecided) for copy in around) and bool(around)

    def _note_filled(self, pieces: Sequence[Share]) -> None:
        """Say where a compacted log was put together: replicas are compacted by themselves, so that one may lack the end of a key."""
        filled = [piece for piece in pieces if piece.copy != self.winner.number and piece.start < self.winner.sound_end]
        if self.is_compacted and filled:
            shown = ", ".join(f"{piece.start:,} to {piece.stop - 1:,}" for piece in filled[:SHOWN])
            more = f" and {len(filled) - SHOWN:,} more ranges" if len(filled) > SHOWN else ""
            self.unknown.append(
                f"offsets {shown}{more} come from another replica, and each broker compacts its own replica: "
                "a key may have an older value again"
            )

    def _lost_tail(self, members: Sequence[Copy]) -> list[Span]:
        """What was after the end of all logs."""
        end, assignment = self.lineage.end, self.assignment
        consistent = [copy for copy in members if self.limits[copy.number] >= copy.end]
        traced = max((copy.log.traced for copy in consistent), default=0)
        marked = max((copy.high_watermark or 0 for copy in consistent), default=0)
        if max(traced, marked) > end:
            what = f"committed up to offset {marked - 1:,}" if marked >= traced else "other files say that they existed"
            return [span(self.agreeing, end, max(traced, marked), f"{what}; no replica has them")]
        synced = [] if assignment is None else [copy for copy in consistent if copy.node in assignment.isr]
        if assignment is not None and assignment.isr and not synced:
            reason = f"in sync at death: {self._explain_absence(assignment.isr)}; how much was there is not known"
            return [span(self.agreeing, end, None, reason)]
        cut = [copy for copy in consistent if copy.sound_end == end and copy.log.is_open]
        is_sure = any(not copy.damage for copy in synced)
        if cut and not is_sure:
            return [span(self.agreeing, end, None, "damaged at the end of the log; how much was there is not known")]
        if cut:
            self.unknown.append(
                f"the log on {cut[0].disk} is damaged after offset {end - 1:,}: what was there was not on all in-sync replicas"
            )
        return []

    def _undecided_spans(self, start: int, end: int) -> Iterable[Span]:
        """The kept records that may not have been committed."""
        assignment = self.assignment
        overlapping = [copy for copy in self.copies if self.limits[copy.number] > copy.start]
        committed = max((min(copy.high_watermark or 0, self.limits[copy.number]) for copy in overlapping), default=0)
        reason = "no high watermark covers them, and who was in sync is not known"
        if assignment is not None:
            synced = [copy for copy in overlapping if copy.node in assignment.isr and copy.rank < NOT_LOADED]
            ends = {
                node: max(self.limits[copy.number] for copy in synced if copy.node == node)
                for node in {copy.node for copy in synced}
            }
            absent = set(assignment.isr) - set(ends)
            if ends and not absent:
                committed = max(committed, min(ends.values()))
                reason = "not on all in-sync replicas: acknowledged with acks=1 at most"
            elif absent:
                reason = f"no high watermark covers them; in sync at death: {self._explain_absence(absent)}"
        if committed < end and end > start:
            first = max(committed, start)
            inside = [run for copy in self.agreeing for run in copy.runs if run.end > first and run.since >= 0]
            since, until = (
                min((run.since for run in inside), default=None),
                max((run.until for run in inside), default=None),
            )
            yield Span(first, end, reason, since, until)

    def _divergent_ends(self) -> Iterable[tuple[int, Span]]:
        """The ends of logs that contradict the result."""
        for copy in (self.winner, *self.others):
            limit = self.limits[copy.number]
            if copy.sound_end <= limit:
                continue
            inside = [run for run in copy.runs if run.end > limit]
            epoch = inside[-1].lineage
            reason = (
                f"epoch {epoch}, contradicted by epoch {self.lineage.epochs[-1][0] if self.lineage.epochs else NONE}"
            )
            marked = copy.high_watermark or 0
            if marked > limit:
                reason += f"; committed up to offset {marked - 1:,} before an unclean election"
            yield copy.number, Span(limit, copy.sound_end, reason, inside[0].since, max(run.until for run in inside))

    def _explain_absence(self, nodes: Iterable[int]) -> str:
        """Why these brokers have no copy: their disks are not here, or the directory is missing on them."""
        empty, absent = (
            [node for node in nodes if node in self.nodes],
            [node for node in nodes if node not in self.nodes],
        )
        texts = [f"the directory is missing on the disk of {brokers(empty)}"] if empty else []
        return ", and ".join(texts + ([f"no disk of {brokers(absent)} is here"] if absent else []))

    # In words ------------------------------------------------------------------------------------------------------------

    def _explain(self, piece: Share) -> Share:
        if piece.copy == self.winner.number:
            return Share(piece.copy, piece.start, piece.stop, self.reason)
        if piece.start >= self.winner.sound_end:
            why = f"after the end of the log on {self.winner.disk}"
        elif piece.stop <= self.winner.start:
            why = f"before the beginning of the log on {self.winner.disk}"
        else:
            why = f"damaged or missing on {self.winner.disk}"
        return Share(piece.copy, piece.start, piece.stop, why)

    def _copy_plan(self, copy: Copy, pieces: Sequence[Share]) -> CopyPlan:
        taken = [piece for piece in pieces if piece.copy == copy.number]
        limit = self.limits.get(copy.number, copy.end)
        if copy is self.winner:
            use = "decides"
        elif taken:
            count = sum(piece.stop - piece.start for piece in taken)
            use = f"{counted(count, 'offset')} used"
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
        Span(
            stretch.first,
            stretch.end,
            f"bytes {stretch.start:,} to {stretch.stop:,} of {stretch.path.rpartition('/')[2]}",
        )
        for stretch in copy.damage
    )
    damage += tuple(
        Span(run.first, run.end, f"a wrong offset at byte {run.start:,} of {run.file.path.rpartition('/')[2]}")
        for run in copy.runs
        if run.stored is not None
    )
    start = copy.runs[0].first if copy.runs else copy.start
    return CopyPlan(copy.disk, copy.path, start, copy.sound_end, copy.size, copy.state, lineage, damage, use)


def _furthest(copies: Sequence[Copy]) -> Copy:
    """The copy that reaches furthest; of those alike, the one with the most batches: replicas are compacted each by itself, and one that
    lost a batch in the cleaned part of its log looks the same.
    """
    return max(copies, key=lambda copy: (-copy.rank, copy.last_epoch, copy.end, -len(copy.damage), copy.batches))


def _reason_for(best: Copy, copies: Sequence[Copy]) -> str:
    """Why a copy is the furthest."""
    if len(copies) == 1:
        return "the only replica here"
    if best.last_epoch == NONE:
        return "the longest log; it has no leader epochs"
    if all(copy.last_epoch == best.last_epoch for copy in copies):
        same = all(copy.end == best.end for copy in copies)
        return f"all replicas end in epoch {best.last_epoch}{'' if same else '; the longest log'}"
    return f"the highest leader epoch, {best.last_epoch}"
