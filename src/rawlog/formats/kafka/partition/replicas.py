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
from rawlog.formats.kafka.partition.lineage import Copy, Lineage, Piece, span, unite
from rawlog.formats.kafka.paths import METADATA_TOPIC, remote_directory, split
from rawlog.formats.kafka.properties import properties, topic_id
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.difference import Change, Difference, Tally, compare_ordered
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import File, Replicas
from rawlog.model.intervals import Intervals
from rawlog.model.recovery import CopyPlan, PiecePlan, Span, UnitPlan
from rawlog.model.store import Copies, Identity, Store
from rawlog.model.text import counted

LARGEST_TEXT = 1 << 20
META = "meta.properties"


@dataclass(frozen=True, slots=True)
class _Known:
    """What the small files say of a partition directory; None where they do not."""

    cluster: str | None
    topic_id: str | None
    node: str | None

    @property
    def facts(self) -> tuple[str | None, str | None]:
        return self.cluster, self.topic_id

    def fits(self, facts: tuple[str | None, str | None]) -> bool:
        """Whether nothing that is known contradicts."""
        return all(own is None or own == other for own, other in zip(self.facts, facts, strict=True))


def copies(stores: Sequence[Store], known: Callable[[Store], tuple[int, int]] | None = None) -> list[Copies]:
    """The sets of replicas among partition directories, each with the best first.

    `known` gives an epoch and an offset that a directory is known to reach by other files than those of a partition.
    """
    owner: Callable[[str], dict[str, str]] = cache(_properties)
    offsets: Callable[[str, str], Mapping[tuple[str, int], int]] = cache(offsets_in)
    by_name: dict[tuple[str | None, int | None], list[Store]] = defaultdict(list)
    for store in stores:
        by_name[store[0].place.topic, store[0].place.partition].append(store)
    found: list[Copies] = []
    for (topic, partition), some in by_name.items():
        for facts, alike in _alike(some, owner):
            identity = Identity("kafka", f"{topic}-{partition}", tuple(one or "" for one in facts))
            ranks = _ranks(alike, offsets, known or (lambda store: (-1, 0)))
            found.append(Copies.ranked(identity, alike, ranks))
    return found


def facts(store: Store) -> tuple[str, ...]:
    """The ids of the cluster and the topic of a partition directory; empty where they are not known."""
    return tuple(one or "" for one in _known(store, _properties(split(store.path)[0])).facts)


def _alike(
    stores: Sequence[Store], owner: Callable[[str], dict[str, str]]
) -> list[tuple[tuple[str | None, str | None], list[Store]]]:
    """Stores of one name in sets whose ids are the same. What is not known fits if it fits only one set."""
    known = [_known(store, owner(split(store.path)[0])) for store in stores]
    if (
        stores[0][0].place.topic == METADATA_TOPIC
    ):  # there is one of each cluster: without the cluster's id, it may be of any
        named = [at for at, one in enumerate(known) if one.cluster is not None]
        stores, known = [stores[at] for at in named], [known[at] for at in named]
    whole = {one.facts for one in known if None not in one.facts}
    sets: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for at, one in enumerate(known):
        fitting = [facts for facts in whole if one.fits(facts)]
        sets[fitting[0] if len(fitting) == 1 else one.facts].append(at)
    result = []
    for facts, members in sets.items():
        nodes = [known[at].node for at in members if known[at].node is not None]
        unsure = facts == (None, None) and len(set(nodes)) < len(nodes)
        if len(members) > 1 and not unsure:
            result.append((facts, [stores[at] for at in members]))
    return result


def _known(store: Store, owner: dict[str, str]) -> _Known:
    node = owner.get("node.id", owner.get("broker.id"))
    if store[0].place.topic == METADATA_TOPIC:
        return _Known(owner.get("cluster.id"), "", node)
    own = next((file for file in store if file.format == "kafka.partition" and file.problem is None), None)
    found: str | None = None
    remote = remote_directory(store.path)
    try:
        if own is not None:
            found = topic_id(_text(own.path)).hex()
        elif remote is not None:
            found = uuid_bytes(remote.topic_id).hex()
    except (RawlogError, ValueError):
        found = None
    return _Known(owner.get("cluster.id"), found, node)


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
    known: Callable[[Store], tuple[int, int]],
) -> list[tuple[tuple[int, ...], str]]:
    """How far each replica is: by its last leader epoch, then by its end, then by its high watermark.

    Replicas have the same bytes from a common segment on, unless they were compacted: the longer one is further. Else the last entry
    of the offset index says which offset a replica reaches at least.
    """
    place = stores[0][0].place
    key = (str(place.topic), int(place.partition or 0))
    logs = [_logs(store) for store in stores]
    folders = [split(store.path)[0] for store in stores]
    common = max(set.intersection(*({file.place.start_offset or 0 for file in own} for own in logs)), default=None)
    is_last = all(own and own[-1].place.start_offset == common for own in logs)
    by_bytes = common is not None and (is_last or not any(key in offsets(folder, CLEANER) for folder in folders))
    ranks: list[tuple[tuple[int, ...], str]] = []
    for store, own, folder in zip(stores, logs, folders, strict=True):
        mark = offsets(folder, HIGH_WATERMARK).get(key, -1)
        epoch, reached = known(store)
        epoch, reached = max(epoch, _last_epoch(store)), max(reached, mark)
        if own:
            reached = max(reached, own[-1].place.start_offset or 0)
        if by_bytes:
            end = (sum(file.size for file in own if (file.place.start_offset or 0) >= (common or 0)), reached)
        else:
            reached = max(reached, last_indexed(own[-1], store)) if own else reached
            end = (reached, own[-1].size if own else 0)
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
    """The last leader epoch in which a replica got records; -1 if that is not known."""
    own = next((file for file in store if file.format == "kafka.epochs" and file.problem is None), None)
    try:
        return max((epoch for epoch, _ in parse_epochs(_text(own.path)) or ()), default=-1) if own is not None else -1
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
    """The segments of one replica that a broker would load, and the offsets that they cover."""

    segments: list[File]
    start: int | None = None
    end: int = 0
    #: Where each segment's batches begin and end.
    covers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The heads of sound batches, in order; those that overlap what came before are the business of other rules."""
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
    """What two replicas do not agree on, in the offsets that both cover."""

    mine: _Side
    other: _Side
    epochs: list[Difference]
    records: Tally
    #: Batches that are unlike, while the records in them are alike.
    rewritten: list[Difference]
    unlisted: int

    @property
    def both(self) -> bool:
        return self.mine.start is not None and self.other.start is not None


def compare(replicas: Replicas) -> _Comparison:
    """Batch by batch, and record by record where batches are unlike."""
    mine, other = (_Side(_segments(files)) for files in (replicas.a, replicas.b))
    batches = Tally(MOST)
    compare_ordered(mine.batches(), other.batches(), "base_offset", HEAD, batches, "batch", replicas.name)
    result = _Comparison(mine, other, [], Tally(MOST), [], batches.unlisted)
    if mine.start is None or other.start is None:
        return result
    start, stop = max(mine.start, other.start), min(mine.end, other.end)
    unlike: list[Difference] = []
    for one in batches.items:
        assert one.start is not None
        assert one.stop is not None
        if EPOCH in one.columns:
            result.epochs.append(one)
        if one.columns != (EPOCH,) and one.start < stop and (one.stop > start or one.change is Change.DIFFERS):
            unlike.append(one)
    if unlike or batches.unlisted:
        first = max(start, min((one.start or 0 for one in unlike), default=start))
        sides = (side.records(first, stop) for side in (mine, other))
        compare_ordered(*sides, "offset", RECORD, result.records, "record", replicas.name)  # type: ignore[call-arg,arg-type]
        if result.records.is_same:
            result.rewritten = unlike
    return result


def _segments(files: Sequence[File]) -> list[File]:
    logs = [file for file in files if file.format == LOG.name and file.place.state is None and file.problem is None]
    return sorted(logs, key=lambda file: file.place.start_offset or 0)


def _mark(compared: _Comparison, one: Difference, message: str, **more: Any) -> Mark:
    side = compared.other if one.change is Change.ONLY_B else compared.mine
    return Mark(message, offset=one.start, path=side.file_at(one.start), **more)


def _span(one: Difference) -> str:
    assert one.stop is not None
    many = f"{one.count:,} {one.what if one.count == 1 else PLURAL[one.what]}"
    return many if one.count == 1 else f"{many} up to offset {one.stop - 1:,}"


@rule("kafka.replica.record", Severity.ERROR)
def record(replicas: Replicas) -> Iterator[Mark]:
    """Two replicas of a partition hold other records at the same offset: their logs diverged, or one of them was damaged and its
    checksum corrected.

    A consumer reads one or the other, depending on which replica leads. Look at both with `rawlog diff`, and restore the wrong one from the
    right one.
    """
    found = replicas.share(compare)
    for one in found.records.items:
        if one.change is Change.DIFFERS:
            yield _mark(
                found,
                one,
                f"{_span(one)} unlike the other replica's: {', '.join(one.columns)}",
                expected=one.b,
                found=one.a,
            )
    if found.records.unlisted:
        yield Mark(f"{found.records.unlisted:,} more differences of records", path=found.mine.segments[0].path)


@rule("kafka.replica.missing", Severity.WARNING)
def missing(replicas: Replicas) -> Iterator[Mark]:
    """One replica lacks records that the other has, inside the range of offsets that both cover.

    That is normal in a compacted topic, since each broker compacts by itself; in any other one records are lost.
    """
    found = replicas.share(compare)
    for one in found.records.items:
        if one.change is not Change.DIFFERS:
            who = "the other replica lacks" if one.change is Change.ONLY_A else "this replica lacks"
            yield _mark(found, one, f"{who} {_span(one)}")


@rule("kafka.replica.epoch", Severity.ERROR)
def epoch(replicas: Replicas) -> Iterator[Mark]:
    """A batch that both replicas have bears another leader epoch in one of them.

    Replicas find out by epochs where their logs part. With wrong ones they keep records that no leader acknowledged, or cut others.
    """
    found = replicas.share(compare)
    for one in found.epochs:
        a, b = ((side or {}).get(EPOCH) for side in (one.a, one.b))
        yield _mark(found, one, f"{_span(one)} of another leader epoch on the other replica", expected=b, found=a)


@rule("kafka.replica.batches", Severity.INFO)
def batches(replicas: Replicas) -> Iterator[Mark]:
    """The same records are in other batches: one replica was compacted, converted or rewritten, the other not.

    Nothing is lost by it.
    """
    found = replicas.share(compare)
    for one in found.rewritten[:1]:
        more = len(found.rewritten) - 1 + found.unlisted
        rest = f", and {more:,} more stretches" if more else ""
        yield _mark(found, one, f"the same records in other batches from here on{rest}")


@rule("kafka.replica.range", Severity.INFO)
def extent(replicas: Replicas) -> Iterator[Mark]:
    """Two replicas begin or end at other offsets: one was trimmed further, or lags.

    A follower that lags is normal; what only the longer log holds cannot be compared with anything.
    """
    found = replicas.share(compare)
    if not found.mine.segments or not found.other.segments:
        return
    for what, mine, other in (
        ("begins", found.mine.start, found.other.start),
        ("ends", found.mine.end if found.both else None, found.other.end if found.both else None),
    ):
        if mine != other:
            yield Mark(
                f"the log {what} at offset {_or_none(mine)}, the other replica's at {_or_none(other)}",
                path=found.mine.segments[0].path,
                offset=mine,
                expected=other,
                found=mine,
            )


def _or_none(offset: int | None) -> str:
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
            replace(
                one, log=replace(one.log, runs=tuple(run for run in one.runs if run.first < self.limits[one.number]))
            )
            for one in copies
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
            bases = [
                base
                for one in members
                for run in one.runs
                if (base := min(run.file.place.start_offset or 0, run.first)) <= floor < run.end
            ]
            begin = max(begin, min(bases, default=floor))
        ranked = [(one, self.limits[one.number]) for one in (self.winner, *self.others)]
        union = unite(ranked, begin, end, is_compacted=bool(self.is_compacted))
        taken = [(one.start, one.stop) for one in union.pieces]
        lost = [*self._lost_start(begin, floor), *self._lost(Intervals([(begin, end)]).subtract(taken))]
        lost += self._lost_tail(members)
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
        return all(any(a <= start and stop <= b + 1 for a, b in one.log.undecided) for one in around) and bool(around)

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
        traced = max((one.log.traced for one in whole), default=0)
        marked = max((one.high_watermark or 0 for one in whole), default=0)
        if max(traced, marked) > end:
            what = f"committed up to offset {marked - 1:,}" if marked >= traced else "other files say that they existed"
            return [span(self.agreeing, end, max(traced, marked), f"{what}; no replica has them")]
        synced = [] if known is None else [one for one in whole if one.node in known.isr]
        if known is not None and known.isr and not synced:
            reason = f"in sync at death: {self._absent(known.isr)}; how much was there is not known"
            return [span(self.agreeing, end, None, reason)]
        cut = [one for one in whole if one.sound_end == end and one.log.is_open]
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
            epoch = inside[-1].lineage
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
