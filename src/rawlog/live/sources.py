"""What a replay reads: the batches of native partition directories, or rows of anything that can be read as records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import ClassVar, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.checkpoints import log_start
from rawlog.formats.kafka.internal.messages import read_marker
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import MAGIC_V2, Attributes, ControlType
from rawlog.formats.kafka.log.seek import skim
from rawlog.formats.kafka.log.segment import context, only, sound
from rawlog.formats.kafka.tables import KAFKA_RECORDS
from rawlog.io.storage import file_system
from rawlog.io.walk import describe, walk
from rawlog.lakes.payload import Payloads
from rawlog.lakes.sources import (
    lake_payloads,
    lake_tree,
    read_sheet,
    sheets,
)
from rawlog.live.cluster import TopicPartition
from rawlog.model.errors import (
    AccessError,
    DataError,
    OptionError,
    UnknownFormatError,
)
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

T = TypeVar("T")
NOT_TRANSACTIONAL = -1
"""In place of the producer id, for records of no transaction."""
RowStream = Callable[[Callable[[str], None]], Iterator[pa.RecordBatch]]
"""Begins to read rows of `records`; each call begins again. It says what it cannot read of a file that is cut or damaged."""


@dataclass(slots=True)
class Omissions:
    """What a replay leaves out: records of aborted or open transactions, the markers, and damage that it was asked to skip."""

    aborted: int = 0
    markers: int = 0
    damaged: dict[str, None] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Something that was cut or damaged."""
        self.damaged[str(text)] = None


@dataclass(frozen=True, slots=True)
class Marker:
    """The end of a producer's transaction in one partition."""

    producer: int
    epoch: int
    is_commit: bool
    #: When the broker wrote it, in ms.
    time: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """What follows each other in a partition: data of one transactional producer, data of none (-1), or a control record."""

    producer: int
    first_offset: int
    count: int
    batches: tuple[Frames, Heads] | None = None
    rows: pa.RecordBatch | None = None
    is_control: bool = False
    #: In microseconds; None if it is not known.
    first_time: int | None = None
    #: None for control records that end no transaction.
    marker: Marker | None = None


@dataclass(frozen=True, slots=True)
class NativePartition:
    """The log of one partition in a directory."""

    partition: TopicPartition
    segments: tuple[File, ...]
    group: Store
    #: The first offset that a consumer gets; it may lie inside the first batch.
    floor: int = 0

    @property
    def size(self) -> int:
        return sum(file.size for file in self.segments)

    def batches(
        self, selection: Selection, left: Omissions, *, keep_transactions: bool = False
    ) -> Iterator[tuple[Frames, Heads]]:
        """Sound batches of data in order, as a read_committed consumer gets them unless the selection says otherwise; what lies before the
        log start is left out. With `keep_transactions` they are all batches, and markers too. DataError at damage.
        """
        floor = self.floor
        for file in self.segments:
            wanted = None if keep_transactions else context(file, self.group, {"isolation": selection.isolation})
            reached = 0
            for frames in walk(file, LOG, errors=selection.errors):
                head = heads(frames)
                if selection.errors == "skip":
                    reached = _note_gaps(frames, reached, file, left)
                    frames, head = _without_damage(frames, head, file, left)
                good, error = sound(frames, head)
                frames, head = frames.slice(0, good), head.slice(0, good)
                keep = head["last_offset"] >= floor
                if head.any(Attributes.CONTROL) and not keep_transactions:
                    control = head.has(Attributes.CONTROL)
                    left.markers += int(control.sum())
                    keep &= ~control
                if wanted is not None:
                    taken = wanted.takes(head)
                    left.aborted += int(head["record_count"][keep & ~taken].sum())
                    keep &= taken
                if not keep.all():
                    frames, head = only(frames, keep), head.only(keep)
                if len(frames):
                    yield frames, head
                if error is not None:
                    error.at(path=file.path, format=LOG.name)
                    if selection.errors == "raise":
                        raise error
                    left.note(f"{error}; what follows in the file is not sent")
                    break
                if frames.last and frames.status is Status.TRUNCATED:
                    if file is not self.segments[-1]:
                        raise describe(LOG, frames, file.path)
                    size = frames.data.size - frames.reached
                    left.note(
                        f"{file.path}: byte {frames.reached_in_file:,}: the last {size:,} bytes are an unfinished frame"
                    )

    def windows(
        self, selection: Selection, left: Omissions, *, keep_transactions: bool
    ) -> Iterator[tuple[int, Iterator[Stretch]]]:
        """The same in pieces, a window of a file at a time, with its size in bytes."""
        floor = self.floor
        for frames, head in self.batches(selection, left, keep_transactions=keep_transactions):
            yield frames.reached, _pieces_of(frames, head, floor, keep_transactions)

    @property
    def has_transactions(self) -> bool:
        """Whether any batch belongs to one."""
        flags = Attributes.TRANSACTIONAL | Attributes.CONTROL
        return any(window.head.any(flags) for file in self.segments for window in skim(file))

    def markers(self) -> Iterator[Marker]:
        """The ends of transactions, in order, from the headers of batches."""
        floor = self.floor
        for file in self.segments:
            for window in skim(file):
                head = window.head
                if head.any(Attributes.CONTROL):
                    chosen = head.sound & head.has(Attributes.CONTROL) & (head["last_offset"] >= floor)
                    for index in np.flatnonzero(chosen).tolist():
                        marker = _marker_of(window.frames, head, index)
                        if marker is not None:
                            yield marker


def _without_damage(frames: Frames, head: Heads, file: File, left: Omissions) -> tuple[Frames, Heads]:
    """The sound batches; each of the others is noted."""
    if head.all_sound:
        return frames, head
    for index in np.flatnonzero(~head.sound).tolist():
        _, error = sound(frames.slice(index, index + 1), head.slice(index, index + 1))
        left.note(str(error.at(path=file.path, format=LOG.name) if error else file.path))
    return only(frames, head.sound), head.only(head.sound)


def _note_gaps(frames: Frames, reached: int, file: File, left: Omissions) -> int:
    """Note the bytes that belong to no batch; where the last batch ends."""
    if not len(frames):
        return reached
    starts = frames.positions
    ends = np.concatenate(([reached], starts + frames.sizes))
    for index in np.flatnonzero(starts > ends[:-1]).tolist():
        at, size = int(ends[index]), int(starts[index] - ends[index])
        left.note(f"{LOG.name}: {file.path}: byte {at:,}: {size:,} bytes that are no batch")
    return int(ends[-1])


def _pieces_of(frames: Frames, head: Heads, floor: int, keep_transactions: bool) -> Iterator[Stretch]:
    """Runs of batches of one transactional producer, or of none; a control batch is a piece of its own."""
    edges = [0, len(head)]
    control = head.has(Attributes.CONTROL)
    producers = np.full(len(head), NOT_TRANSACTIONAL)
    if keep_transactions and head.any(Attributes.TRANSACTIONAL | Attributes.CONTROL):
        producers = np.where(head.has(Attributes.TRANSACTIONAL), head["producer_id"], NOT_TRANSACTIONAL)
        is_edge = (producers[1:] != producers[:-1]) | control[1:] | control[:-1]
        edges[1:1] = (np.flatnonzero(is_edge) + 1).tolist()
    for start, stop in pairwise(edges):
        run, run_head, producer = frames.slice(start, stop), head.slice(start, stop), int(producers[start])
        first = int(run_head["base_offset"][0])
        if control[start]:
            yield Stretch(producer, first, 1, is_control=True, marker=_marker_of(run, run_head, 0))
            continue
        count = int(run_head["record_count"].sum())
        if first < floor:
            count -= min(floor - first, int(run_head["record_count"][0]))
        time = int(run_head["base_timestamp"][0])
        yield Stretch(producer, first, count, batches=(run, run_head), first_time=time * 1000 if time >= 0 else None)


def _marker_of(frames: Frames, head: Heads, index: int) -> Marker | None:
    """The marker in a control batch; None for control records of another kind."""
    kind, _, written = read_marker(frames, index)
    if kind not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    producer, epoch = int(head["producer_id"][index]), int(head["producer_epoch"][index])
    return Marker(producer, epoch, kind == ControlType.COMMIT, written)


@dataclass(frozen=True, slots=True)
class LakePartition:
    """The records of one partition in a lake, with what their batches said of transactions."""

    partition: TopicPartition
    files: tuple[File, ...]
    payloads: Payloads | None
    floor: ClassVar[int] = 0
    has_transactions: ClassVar[bool] = True

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def windows(
        self, selection: Selection, left: Omissions, *, keep_transactions: bool
    ) -> Iterator[tuple[int, Iterator[Stretch]]]:
        """The rows in pieces. Transactions are kept: what keeps none reads the table `records`."""
        assert keep_transactions
        of_partition = Selection(topics=(self.partition.topic,), partitions=(self.partition.partition,))
        for file in self.files:
            for batch in read_sheet(file, KAFKA_RECORDS, of_partition, in_order=True, payloads=self.payloads):
                yield batch.nbytes, _pieces_of_rows(batch)

    def markers(self) -> Iterator[Marker]:
        """The ends of transactions, in order."""
        for _, pieces in self.windows(Selection(), Omissions(), keep_transactions=True):
            yield from (piece.marker for piece in pieces if piece.marker is not None)


def _pieces_of_rows(batch: pa.RecordBatch) -> Iterator[Stretch]:
    """Runs of rows of one transactional producer, or of none; a control record is a piece of its own."""
    control, transactional = (
        pc.fill_null(batch.column(name), False).to_numpy(zero_copy_only=False)
        for name in ("is_control", "is_transactional")
    )
    ids = pc.fill_null(batch.column("producer_id"), NOT_TRANSACTIONAL).to_numpy()
    producers = np.where(transactional, ids, NOT_TRANSACTIONAL)
    is_edge = (producers[1:] != producers[:-1]) | control[1:] | control[:-1]
    for start, stop in pairwise([0, *(np.flatnonzero(is_edge) + 1).tolist(), batch.num_rows]):
        run, producer = batch.slice(start, stop - start), int(producers[start])
        first = run.column("offset")[0].as_py()
        if not control[start]:
            time = run.column("timestamp")[:1].cast(pa.int64())[0].as_py()
            yield Stretch(producer, first, run.num_rows, rows=run.select(RECORDS.names), first_time=time)
            continue
        [row] = run.select(["producer_epoch", "control_type", "timestamp"]).to_pylist()
        marker = None
        if row["control_type"] in (ControlType.ABORT, ControlType.COMMIT):
            written = int(row["timestamp"].timestamp() * 1000)
            marker = Marker(producer, row["producer_epoch"], row["control_type"] == ControlType.COMMIT, written)
        yield Stretch(producer, first, 1, is_control=True, marker=marker)


def first_repeated(partition: NativePartition | LakePartition, sent: int, again: Mapping[int, int]) -> dict[int, int]:
    """Of the first `sent` records of a partition, at which offset the last so many of each producer begin."""
    recent: dict[int, deque[tuple[int, int]]] = {producer: deque() for producer, count in again.items() if count}
    totals = dict.fromkeys(recent, 0)
    for _, pieces in partition.windows(Selection(), Omissions(), keep_transactions=True) if recent else ():
        for piece in pieces:
            if piece.is_control or sent <= 0:
                continue
            count = min(piece.count, sent)
            sent -= count
            if piece.producer in recent:
                last_pieces = recent[piece.producer]
                last_pieces.append((piece.first_offset, count))
                totals[piece.producer] += count
                while totals[piece.producer] - last_pieces[0][1] >= again[piece.producer]:
                    totals[piece.producer] -= last_pieces.popleft()[1]
        if sent <= 0:
            break
    return {producer: last_pieces[0][0] for producer, last_pieces in recent.items() if last_pieces}


def lake_partitions(tree: Tree, selection: Selection) -> list[LakePartition] | None:
    """The partitions of a lake that has transactions; None for anything else, and where the records have none."""
    payloads = lake_payloads(tree)
    if payloads is None:
        return None
    try:
        files = tuple(lake_tree(tree.roots[0], KAFKA_RECORDS))
    except AccessError:
        return None
    files_by_partition: dict[TopicPartition, list[File]] = {}
    has_transactions = False
    for file in files:
        partitions, is_transactional = _partitions_in(file)
        has_transactions |= is_transactional
        for topic, number in partitions:
            is_wanted = not selection.partitions or number in selection.partitions
            if selection.takes_topic(topic) and is_wanted and not _is_hidden(topic, selection):
                files_by_partition.setdefault(TopicPartition(topic, number), []).append(file)
    if not has_transactions:
        return None
    return [
        LakePartition(partition, tuple(own_files), payloads)
        for partition, own_files in sorted(files_by_partition.items())
    ]


def _partitions_in(file: File) -> tuple[list[tuple[str, int]], bool]:
    """The partitions whose records are in a file of a lake, and whether any is of a transaction."""
    system, inner = file_system(file.path)
    names = ["topic", "partition", "is_transactional"]
    rows = pq.read_table(inner, columns=names, filesystem=system).group_by(names).aggregate([]).to_pylist()
    pairs = sorted({(row["topic"], row["partition"]) for row in rows})
    return pairs, any(row["is_transactional"] for row in rows)


def _is_hidden(topic: str | None, selection: Selection) -> bool:
    """Whether a topic is one of the brokers' own, which nobody else writes to; they are replayed only if they are named."""
    return topic is not None and topic.startswith("__") and not selection.topics


def native_partitions(tree: Tree, selection: Selection) -> list[NativePartition] | None:
    """The partitions of a tree if it holds nothing else that could be replayed. OptionError for two of one name."""
    groups: dict[str, list[File]] = {}
    others: list[File] = []
    for file in tree:
        if file.format == LOG.name and file.place.state is None and file.place.topic is not None:
            if file.problem is not None:
                raise DataError(file.problem, path=file.path, format=file.format)
            groups.setdefault(file.place.group or file.path, []).append(file)
        elif file.format is not None and file.system != "kafka" and not _is_hidden(file.place.topic, selection):
            others.append(file)
    if sheets(tree) or RECORDS.name in Tree(tree.roots, tuple(others)).tables:
        return None
    partitions: dict[TopicPartition, NativePartition] = {}
    for files in groups.values():
        files.sort(key=lambda file: file.place.start_offset or 0)
        place = files[0].place
        assert place.topic is not None
        partition = TopicPartition(place.topic, place.partition or 0)
        if not selection.takes_file(files[0]) or _is_hidden(place.topic, selection):
            continue
        if partition in partitions:
            raise OptionError(
                f"partition {partition} is there twice: in {partitions[partition].segments[0].path} and {files[0].path}; name one of them"
            )
        group = tree.group_of(files[0])
        partitions[partition] = NativePartition(partition, tuple(files), group, log_start(files[0], group) or 0)
    return [partitions[partition] for partition in sorted(partitions)] or None


def up_to_damage(items: Iterable[T], damage: list[DataError]) -> Iterator[T]:
    """Items of a source that may be damaged. The damage ends them and is put into `damage`: what comes before it is sent first."""
    try:
        yield from items
    except DataError as error:
        damage.append(error)


def is_plain(selection: Selection) -> bool:
    """Whether all rows of the chosen partitions are wanted, so that no record has to be looked at."""
    is_whole = selection.limit is None and selection.topic_pattern is None and not selection.transforms
    return selection.takes_every_row and is_whole


def row_streams(tree: Tree, selection: Selection, native: list[NativePartition] | None) -> list[RowStream]:
    """The rows of a tree, one stream for each partition or file, which is in the order of its source."""
    if native is not None:
        return [_of_partition(tree, partition, selection) for partition in native]
    payloads, parquet = lake_payloads(tree), sheets(tree)
    streams: list[RowStream] = [
        lambda _, file=file: read_sheet(file, RECORDS, selection, in_order=True, payloads=payloads)  # type: ignore[misc]
        for file in parquet
    ]
    rest = tuple(
        file
        for file in tree
        if file not in parquet and file.format is not None and not _is_hidden(file.place.topic, selection)
    )
    if rest and RECORDS.name in Tree(tree.roots, rest).tables:
        streams += [_of_files(Tree(tree.roots, rest), selection)]
    if not streams:
        raise UnknownFormatError(f"{', '.join(tree.roots)}: nothing here can be read as records")
    return streams


def _of_partition(tree: Tree, partition: NativePartition, selection: Selection) -> RowStream:
    return _of_files(Tree(tree.roots, tuple(partition.group.files)), selection)


def _of_files(tree: Tree, selection: Selection) -> RowStream:
    def stream(note: Callable[[str], None]) -> Iterator[pa.RecordBatch]:
        rows = Rows(tree, RECORDS, selection)
        rows.note = note
        return rows.batches()

    return stream


def in_turn(streams: Iterable[RowStream], left: Omissions) -> Iterator[pa.RecordBatch]:
    """All rows, stream after stream."""
    return chain.from_iterable(stream(left.note) for stream in streams)


def by_time(streams: list[RowStream], left: Omissions) -> Iterator[pa.RecordBatch]:
    """The rows of all streams by their times; those of one stream stay in their order."""
    if len(streams) == 1:
        yield from streams[0](left.note)
        return
    iterators = {number: stream(left.note) for number, stream in enumerate(streams)}
    heads_: dict[int, tuple[pa.RecordBatch, np.ndarray]] = {}
    latest = dict.fromkeys(iterators, -(1 << 62))
    while True:
        for number in [number for number in iterators if number not in heads_]:
            batch = next((rows for rows in iterators[number] if rows.num_rows), None)
            if batch is None:
                del iterators[number]
                continue
            times = pc.fill_null(batch.column("timestamp").cast(pa.int64()), -(1 << 62)).to_numpy()
            times = np.maximum.accumulate(np.concatenate(([latest[number]], times)))[1:]
            latest[number] = int(times[-1])
            heads_[number] = (batch, times)
        if not heads_:
            return
        # Up to here every stream has shown what it has.
        horizon = min(int(times[-1]) for _, times in heads_.values())
        pieces, keys = [], []
        for number in sorted(heads_):
            batch, times = heads_.pop(number)
            stop = int(np.searchsorted(times, horizon, side="right"))
            pieces.append(batch.slice(0, stop))
            keys.append(times[:stop])
            if stop < batch.num_rows:
                heads_[number] = (batch.slice(stop), times[stop:])
        order = np.argsort(np.concatenate(keys), kind="stable")
        yield pa.concat_batches(pieces).take(pa.array(order))


def magic_runs(head: Heads) -> Iterator[tuple[int, int, bool]]:
    """Runs of batches of magic 2, and of older ones."""
    newer = head["magic"] == MAGIC_V2
    edges = [0, *(np.flatnonzero(newer[1:] != newer[:-1]) + 1).tolist(), len(head)]
    for start, stop in pairwise(edges):
        if stop > start:
            yield start, stop, bool(newer[start])
