"""What tables offer to a restore: the rows of a lake, of Parquet files, or of anything that reads as `records`.

Rows of `kafka.records` tell which transaction they belong to: only those of committed ones are restored. Plain `records` are taken as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import AccessError, EncodeError, OptionError
from rawlog.core.tables import RECORDS
from rawlog.formats.kafka.layouts import NONE, ControlType
from rawlog.formats.kafka.showing import uuid_bytes
from rawlog.formats.kafka.store import sink
from rawlog.formats.kafka.store.derived import Limits
from rawlog.formats.kafka.tables import KAFKA_RECORDS
from rawlog.formats.kafka.writer import Batching
from rawlog.formats.kraft.store.carrying import Carried, Wish
from rawlog.io.storage import file_system, listing
from rawlog.jobs.lake import Lake, lake_name
from rawlog.jobs.lake.payload import ROW, SPLIT, Payloads, check_complete
from rawlog.jobs.restore.directories import Extra, Known, Offer, offered
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

COMMIT = int(ControlType.COMMIT)
TOLD = ("producer_id", "is_transactional", "is_control", "control_type")
ROWS = 1 << 16
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one partition in one file: how many, from which offset to which, and whether they rise."""

    path: str
    count: int
    first: int
    last: int
    rising: bool


@dataclass(frozen=True)
class Fragments:
    """A partition whose rows are in Parquet files. `ends` are the markers of its transactions: offset, producer, commit, time (ms)."""

    topic: str
    partition: int
    spans: tuple[Span, ...]
    columns: tuple[str, ...]
    ends: tuple[tuple[int, int, bool, int], ...] = ()
    #: The first offset that counts: those before it were deleted, although the files still had them.
    floor: int = 0
    #: Of a lake: where the message bytes are that rows refer to.
    payloads: Payloads | None = None

    @property
    def size(self) -> int:
        return sum(span.count for span in self.spans)

    def carry(self, folder: Path, wish: Wish, advance: Callable[[int], None], extra: Extra | None) -> Carried:
        """Row by row, in batches of our own, in the order of offsets."""
        return carry_rows(self.partition, self._wanted(wish, advance), folder, wish)

    def _wanted(self, wish: Wish, advance: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        last = NONE
        for table in self._ordered():
            advance(table.num_rows)
            offsets = table.column("offset").to_numpy()
            keep = (
                np.concatenate(([offsets[0] > last], offsets[1:] > offsets[:-1]))
                if offsets.size
                else np.empty(0, np.bool_)
            )
            last = max(last, int(offsets.max(initial=NONE)))
            keep &= self._counts(table, offsets, wish.until)
            chosen = table if keep.all() else table.filter(pa.array(keep))
            yield from shaped(chosen).to_batches(ROWS)

    def _ordered(self) -> Iterator[pa.Table]:
        """The rows in the order of their offsets: file by file where the files follow one another, else sorted in memory."""
        spans = sorted(self.spans, key=lambda span: (span.first, span.last))
        if all(span.rising for span in spans) and all(a.last < b.first for a, b in pairwise(spans)):
            for span in spans:
                yield from (pa.Table.from_batches([batch]) for batch in self._read(span) if batch.num_rows)
            return
        batches = [batch for span in spans for batch in self._read(span)]
        if batches:
            yield pa.Table.from_batches(batches).combine_chunks().sort_by("offset")

    def _read(self, span: Span) -> Iterator[pa.RecordBatch]:
        from pyarrow import dataset

        mine = (dataset.field("topic") == self.topic) & (dataset.field("partition") == self.partition)
        data = open_parquet([span.path])
        refers = self.payloads is not None and ROW in data.schema.names
        columns = [*self.columns, SPLIT, ROW] if refers else list(self.columns)
        batches = data.to_batches(columns=columns, filter=mine, batch_size=ROWS)
        yield from batches if self.payloads is None else self.payloads.complete(batches, KAFKA_RECORDS)

    def _counts(self, table: pa.Table, offsets: NDArray[np.int64], until: int | None) -> NDArray[np.bool_]:
        """Which rows are records that count: before the time, and of a transaction that was committed before it."""
        keep = offsets >= self.floor
        if until is not None:
            times = pc.fill_null(table.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64()), NONE).to_numpy()
            keep &= times < until * 1000
        if "is_control" not in self.columns:
            return keep
        keep &= ~pc.fill_null(table.column("is_control"), False).to_numpy()
        part = pc.fill_null(table.column("is_transactional"), False).to_numpy()
        producers = pc.fill_null(table.column("producer_id"), NONE).to_numpy()
        for producer in np.unique(producers[part]).tolist():
            ends = [one for one in self.ends if one[1] == producer]
            places = np.array([one[0] for one in ends], np.int64)
            good = np.array([one[2] and (until is None or one[3] < until) for one in ends] + [False], np.bool_)
            mine = np.flatnonzero(part & (producers == producer))
            keep[mine] &= good[np.searchsorted(places, offsets[mine])]
        return keep


def carry_rows(partition: int, batches: Iterator[pa.RecordBatch], folder: Path, wish: Wish) -> Carried:
    """Write rows of one partition, whatever their topic was called; the empty folder is replaced by one that has them."""
    topic = folder.name.removesuffix(f"-{partition}")
    choice = sink.Choice(Batching(leader_epoch=0), Limits(index_interval_bytes=wish.index_interval), topic, partition)
    folder.rmdir()
    stage = folder.with_name(f".{folder.name}")
    stage.mkdir()
    out = sink.Sink(stage, None, choice)
    account = Carried()
    one = out.partition(topic, partition)
    one.writer.topic_id = wish.topic_id
    try:
        for batch in batches:
            out.add(batch)
        out.close()
    finally:
        out.abandon()
    (stage / f"{topic}-{partition}").rename(folder)
    stage.rmdir()
    account.segments, account.batches, account.bytes = one.writer.segments, one.writer.batches, one.writer.bytes
    account.records, account.end_offset = one.rows, one.writer.end_offset
    return account


def shaped(table: pa.Table) -> pa.Table:
    """Rows with exactly the columns of `records`; EncodeError for a column of another kind."""
    arrays = []
    for field in RECORDS.schema:
        if field.name not in table.column_names:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)], field.type))
            continue
        try:
            arrays.append(table.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise EncodeError(f"column {field.name}: {str(error).splitlines()[0]}") from None
    return pa.Table.from_arrays(arrays, schema=RECORDS.schema)


def open_parquet(files: Sequence[str]) -> Any:
    """An Arrow dataset over Parquet files. AccessError if one cannot be read."""
    from pyarrow import dataset

    system, _ = file_system(files[0])
    try:
        return dataset.dataset([file_system(file)[1] for file in files], format="parquet", filesystem=system)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise AccessError(f"{files[0]}: {str(error).splitlines()[0]}") from None


def parquet_files(paths: Sequence[str]) -> list[str]:
    """The Parquet files at or below some paths."""
    return [entry.path for path in paths for entry in listing(path) if entry.path.endswith(".parquet") and entry.size]


def offered_files(files: Sequence[str], *, of_any_system: bool = False, payloads: Payloads | None = None) -> Offer:
    """The partitions in Parquet files; `payloads` are those of a lake that they may refer to.

    OptionError if they have no topic, partition or offset; EncodeError for rows that lack one of them, unless they may be
    `of_any_system`: then such rows are left out.
    """
    nameless = 0
    found: dict[tuple[str, int], list[Span]] = {}
    ends: dict[tuple[str, int], list[tuple[int, int, bool, int]]] = {}
    columns: tuple[str, ...] = ()
    for path in files:
        data = open_parquet([path])
        if payloads is None:
            check_complete(path)
        names = data.schema.names
        missing = {"topic", "partition", "offset"} - set(names)
        if missing:
            raise OptionError(f"{path}: no column {', '.join(sorted(missing))}; rows of `records` are expected")
        told = set(TOLD) <= set(names)
        columns = tuple(name for name in (*RECORDS.names, *(TOLD if told else ())) if name in names)
        wanted = ["topic", "partition", "offset", *([*TOLD, "timestamp"] if told else [])]
        rows = data.to_table(columns=wanted)
        if of_any_system:
            named = pc.and_(pc.is_valid(rows.column("topic")), pc.is_valid(rows.column("partition")))
            nameless += rows.num_rows - (pc.sum(named).as_py() or 0)
            rows = rows.filter(named)
        for key, part in _partitions(path, rows):
            offsets = part.column("offset").to_numpy()
            rising = bool((np.diff(offsets) > 0).all())
            found.setdefault(key, []).append(Span(path, offsets.size, int(offsets.min()), int(offsets.max()), rising))
            if told:
                ends.setdefault(key, []).extend(_ends(part))
    return Offer(
        {
            key: Fragments(*key, tuple(spans), columns, tuple(sorted(ends.get(key, ()))), payloads=payloads)
            for key, spans in sorted(found.items())
        },
        notes=[f"{nameless:,} rows without a topic or partition are left out"] if nameless else [],
    )


def _partitions(path: str, rows: pa.Table) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    for name in ("topic", "partition", "offset"):
        if rows.column(name).null_count:
            raise EncodeError(f"{path}: rows without a {name} cannot be restored")
    topics = rows.column("topic").cast(pa.string()).combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64) << 32 | rows.column("partition").to_numpy().astype(np.int64)
    for code in np.unique(codes).tolist():
        yield (topics.dictionary[code >> 32].as_py(), int(code & 0xFFFF_FFFF)), rows.filter(pa.array(codes == code))


def _ends(rows: pa.Table) -> Iterator[tuple[int, int, bool, int]]:
    marks = rows.filter(pc.fill_null(rows.column("is_control"), False))
    for row in marks.select(["offset", "producer_id", "control_type"]).to_pylist():
        if row["control_type"] in (COMMIT, int(ControlType.ABORT)):
            at = marks.column("offset").index(row["offset"]).as_py()
            time = marks.column("timestamp").cast(pa.timestamp("us")).cast(pa.int64())[at].as_py()
            yield (
                row["offset"],
                row["producer_id"],
                row["control_type"] == COMMIT,
                NONE if time is None else time // 1000,
            )


def offered_lake(path: str, named: Sequence[str] = ()) -> Offer:
    """The Kafka partitions in a lake that `ingest` made, with what it holds of their topics; of a lake without any, the partitions of
    other systems. AccessError if it has no records, OptionError if some tell no topic or partition and topics are not `named`.
    """
    lake = Lake(path)
    full, plain = (lake.data_files(lake_name(name)) for name in ("kafka.records", "records"))
    if not full and not plain:
        raise AccessError(f"{path}: the lake has no records")
    offer = offered_files(full or plain, of_any_system=not full, payloads=lake.payloads() if full else None)
    if offer.notes and not named:
        raise OptionError(f"{path}: {offer.notes[0]}; with --topic they are")
    if full and plain:
        visible = offered_files(plain, of_any_system=True).partitions
        others = sorted({topic for topic, _ in visible} - {topic for topic, _ in offer.partitions})
        if others and not named:
            more = ", …" if len(others) > SHOWN else ""
            offer.notes.append(
                f"{len(others):,} topics of other systems are left out: {', '.join(others[:SHOWN])}{more}"
            )
        for key, one in offer.partitions.items():
            there = visible.get(key)
            if isinstance(one, Fragments) and isinstance(there, Fragments):
                offer.partitions[key] = replace(one, floor=min(span.first for span in there.spans))
    topics = lake.data_files("kraft.topics")
    rows = (
        open_parquet(topics).to_table(columns=["topic", "topic_id", "partitions", "configs", "cluster_id"]).to_pylist()
        if topics
        else []
    )
    if len({row["cluster_id"] for row in rows}) > 1:
        offer.notes.append("the lake has the metadata of several clusters: settings of topics are not taken over")
        rows = []
    for row in rows:
        offer.known[row["topic"]] = Known(dict.fromkeys(range(row["partitions"]), 0), dict(row["configs"] or ()))
        offer.ids[row["topic"]] = uuid_bytes(row["topic_id"])
    return offer


def offered_rows(tree: Tree, scratch: str, topics: tuple[str, ...], errors: str) -> Offer:
    """The partitions among the rows of a tree of any system, written out as directories first. EncodeError for rows that name none, or a
    topic that Kafka does not take.
    """
    rows = Rows(tree, RECORDS, Selection(topics=topics, errors=errors))
    try:
        sink.write(rows.batches(), scratch, {})
    except EncodeError as error:
        raise EncodeError(
            f"{error}; --topic chooses what is restored; rows of no partition get one by `rawlog convert --to kafka` first"
        ) from None
    return offered(open_tree(scratch), None, errors, ())
