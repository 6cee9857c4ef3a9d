"""Two replicas of one partition against each other.

A follower copies its leader's batches byte for byte, so the same offsets hold the same batches. Each replica is trimmed and compacted by
itself, though: it may begin elsewhere, end earlier, and lack records that the other still has. Batches that are unlike are therefore
judged by their records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.core.difference import Change, Difference, Tally, compare_ordered
from rawlog.core.findings import Mark, Rule, Severity, rule
from rawlog.core.format import File, Replicas
from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.internal import read_records
from rawlog.io.walk import walk

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
