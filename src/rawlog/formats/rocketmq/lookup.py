"""Reading less of a commit log: rows by key, by id, by queue offset and by time, through the key index and the consume queues.

Indexes are only trusted for the addresses they cover; what lies outside (before the first file, between two, after the last) is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog.formats.rocketmq import config
from rawlog.formats.rocketmq.index import Index, key_hash
from rawlog.formats.rocketmq.layouts import (
    DLEDGER,
    DLEDGER_MAGIC,
    HEAD,
    MAGIC_V1,
    MAGIC_V2,
    PRE_BLANK_SIZE,
    UNIT,
)
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import RawlogError
from rawlog.model.format import File, Want
from rawlog.model.table import Table

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.model.frames import Frames

UNIQUE_KEY = "UNIQ_KEY"
SIZES = (32, 56)
"""Digits of a broker's message id: of an IPv4 and of an IPv6 address, each with port and position."""
_COLUMNS = {"key": ("keys", "unique_key"), "id": ("message_id", "unique_key", "source_message_id")}


def columns(table: Table, what: str) -> tuple[str, ...]:
    """The columns with the keys or ids of a table's rows."""
    if table.name == "records":
        return ("key", "headers") if what == "key" else ("headers",)
    return tuple(name for name in _COLUMNS[what] if name in table.names)


def by_key(batch: pa.RecordBatch, key: bytes) -> pa.Array:
    """Which rows have a key among their keys, as all of them, or as their unique key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    matches = _is(_unique_keys(batch), key)
    name = next((column for column in ("key", "keys") if column in batch.schema.names), None)
    if name is None:
        return matches
    keys = batch.column(name).cast(pa.binary())
    # Most rows do not hold the bytes at all; the few that do are taken apart.
    holds = pc.fill_null(pc.match_substring(keys, key), False).to_numpy(zero_copy_only=False)
    mask = np.zeros(batch.num_rows, np.bool_)
    for row in np.flatnonzero(holds).tolist():
        value = keys[row].as_py()
        mask[row] = value == key or (key != b"" and key in value.split(b" "))
    return pc.or_(matches, pa.array(mask))


def by_id(batch: pa.RecordBatch, id: str) -> pa.Array:
    """Which rows have an id: the unique key, or the broker's message id where the table has it."""
    import pyarrow.compute as pc

    matches = _is(_unique_keys(batch), id.encode())
    for name in ("message_id", "source_message_id"):
        if name in batch.schema.names:
            matches = pc.or_(matches, _is(batch.column(name), id.upper().encode()))
    return matches


def frames(window: Frames, file: File, id: str) -> NDArray[np.bool_] | None:
    """Which messages have a broker's message id; None if the text is no such id."""
    if address(id) is None:
        return None
    from rawlog.formats.rocketmq import MESSAGES
    from rawlog.formats.rocketmq.commitlog import decode
    from rawlog.model.errors import DataError

    mask = np.zeros(len(window), np.bool_)
    want = Want(MESSAGES.subset(("position", "message_id")), file, 0)
    try:
        for batch in decode(window, want):
            hits = _is(batch.column("message_id"), id.upper().encode()).to_numpy(zero_copy_only=False)
            at = np.searchsorted(window.positions, batch.column("position").to_numpy()[hits])
            mask[at] = True
    except DataError:
        pass  # decoding the rows meets it again
    return mask


def address(id: str) -> int | None:
    """The physical offset at the end of a broker's message id; None if the text is no such id."""
    if len(id) not in SIZES:
        return None
    try:
        return int.from_bytes(bytes.fromhex(id)[-8:], "big", signed=True)
    except ValueError:
        return None


def copy_ids(batch: pa.RecordBatch) -> pa.Array:
    """The unique key of each row, which retried, delayed, dead and half copies of a message have too."""
    import pyarrow as pa

    return _unique_keys(batch).cast(pa.binary())


def _unique_keys(batch: pa.RecordBatch) -> pa.Array:
    """The unique key of each row: of a name that is there twice the last counts."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if "unique_key" in batch.schema.names:
        return batch.column("unique_key")
    if "headers" not in batch.schema.names:
        return pa.nulls(batch.num_rows, pa.binary())
    headers = batch.column("headers")
    pairs, rows = headers.flatten(), pc.list_parent_indices(headers)
    is_unique_key = pc.equal(pairs.field("key"), UNIQUE_KEY)
    values, rows = pairs.field("value").filter(is_unique_key), rows.filter(is_unique_key).to_numpy(zero_copy_only=False)
    last = np.full(batch.num_rows, -1, np.int64)
    last[rows] = np.arange(len(rows))
    return values.take(pa.array(last, mask=last < 0))


def _is(values: pa.Array, text: bytes) -> pa.Array:
    """Which values are these bytes; null is not."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.fill_null(pc.equal(values.cast(pa.binary()), pa.scalar(text, pa.binary())), False)


Ranges = list[tuple[int, int | None]]
MOST_TOPICS = 4096
_QUEUES = ("rocketmq.consumequeue", "rocketmq.batchconsumequeue")


def pick(file: File, group: Sequence[File], table: Table, selection: Any) -> Ranges | None:
    """The byte ranges of a commit-log file that can have wanted rows; None if nothing shows them."""
    start = file.place.start_offset
    if start is None:
        return None
    try:
        if selection.id is not None and table.name in ("records", "rocketmq.messages"):
            return _by_id(file, group, selection)
        if selection.key is not None and table.name in ("records", "rocketmq.messages"):
            return _by_key(file, group, selection, selection.key)
        if selection.from_offset is not None or selection.to_offset is not None:
            return _by_offset(file, group, selection)
        if selection.since is not None and table.times == ("store_timestamp", "store_timestamp"):
            return _by_time(file, group, selection.since)
    except RawlogError:
        return None  # a derived file that cannot be read: the log itself has all
    return None


def _chosen_topics(group: Sequence[File], selection: Any) -> list[str] | None:
    """The topics asked for by name, else all that the store knows; None if they cannot be listed."""
    if selection.topics and not any(mark in name for name in selection.topics for mark in "*?["):
        return list(selection.topics)
    queued = any(file.format in _QUEUES for file in group)
    names = known_topics(group)
    return sorted(names) if queued and len(names) <= MOST_TOPICS else None


def known_topics(files: Sequence[File]) -> set[str]:
    """The topics that a store's queues and settings name."""
    names = {str(file.place.topic) for file in files if file.format in _QUEUES}
    for _, value in config.load(files, "topics.json"):
        table = value.get("topicConfigTable")
        names.update(table if isinstance(table, dict) else ())
    return names


def _indexes(group: Iterable[File]) -> list[File]:
    return sorted(
        (file for file in group if file.format == "rocketmq.index" and file.problem is None), key=lambda file: file.path
    )


def _by_id(file: File, group: Sequence[File], selection: Any) -> Ranges | None:
    """The message at the position in a broker's message id, else those of the index for a unique key."""
    at = address(selection.id)
    for log in group:
        start = log.place.start_offset
        if (
            at is None
            or log.format != file.format
            or log.problem is not None
            or start is None
            or not start <= at < start + log.size
        ):
            continue
        with Source(log.path) as source:
            frame = _frame_of(source, at - start, at)
        if frame is not None and _is_named(log, frame, selection.id):
            return [frame] if log.path == file.path else []
    return _by_key(file, group, selection, selection.id.encode())


def _is_named(file: File, frame: tuple[int, int], id: str) -> bool:
    """Whether the message in a range of bytes has a broker's message id."""
    from rawlog.formats.rocketmq import COMMIT_LOG

    return any(
        (mask := frames(window, file, id)) is not None and bool(mask.any())
        for window in walk(file, COMMIT_LOG, start=frame[0], stop=frame[1], errors="stop")
    )


def _by_key(file: File, group: Sequence[File], selection: Any, key: bytes) -> Ranges | None:
    """The messages that the index has for a key, and all it does not cover. Inner batches are not indexed by their inner keys."""
    topics = _chosen_topics(group, selection)
    if topics is None or any(other.format == "rocketmq.batchconsumequeue" for other in group):
        return None
    try:
        piece = next(part for part in key.decode("utf-8").split(" ") if part)
    except (UnicodeDecodeError, StopIteration):
        return None
    hashes = {key_hash(topic, piece) for topic in topics}
    start, stop = file.place.start_offset or 0, (file.place.start_offset or 0) + file.size
    hits: set[int] = set()
    uncovered, reached = [], start
    for index_file in _indexes(group):
        with Index(index_file.path) as index:
            header = index.header
            if header.count <= 1:
                continue
            # The last message of one file goes on in the next, so both ends are read again.
            if header.begin >= reached:
                uncovered.append((reached, min(header.begin, stop)))
            reached = max(reached, header.end)
            if header.begin < stop and header.end >= start:
                for hash in hashes:
                    hits.update(address for address in index.look_up(hash) if start <= address < stop)
    uncovered.append((reached, stop))
    with Source(file.path) as source:
        ranges: Ranges = []
        for address in sorted(hits):
            frame = _frame_of(source, address - start, address)
            if frame is None:
                return None
            ranges.append(frame)
        for low, high in uncovered:
            if low < high:
                first = (0, 0) if low <= start else _frame_of(source, low - start, low)
                last = (None, None) if high >= stop else _frame_of(source, high - start, high)
                if first is None or last is None:
                    return None
                ranges.append((first[0], last[0]))
    return _merge(ranges)


def _frame_of(source: Source, position: int, address: int) -> tuple[int, int] | None:
    """Where the entry at a position begins and ends, if its message names this address."""
    raw = source.read(position, HEAD.size)
    if len(raw) < HEAD.size:
        return None
    head = np.frombuffer(raw, HEAD.dtype)[0]
    if int(head["magic"]) not in (MAGIC_V1, MAGIC_V2) or int(head["physical_offset"]) != address:
        return None
    size = int(head["total_size"])
    if position >= DLEDGER.size:
        around = np.frombuffer(source.read(position - DLEDGER.size, DLEDGER.size), DLEDGER.dtype)[0]
        whole = (DLEDGER_MAGIC, size + DLEDGER.size, address - DLEDGER.size)
        if (int(around["magic"]), int(around["size"]), int(around["position"])) == whole:
            return position - DLEDGER.size, position + size
    return position, position + size


def _merge(ranges: Ranges) -> Ranges:
    """Ranges in order, with touching ones merged."""
    merged: Ranges = []
    for low, high in sorted(ranges, key=lambda pair: pair[0]):
        if merged and (merged[-1][1] is None or low <= merged[-1][1]):
            before = merged[-1][1]
            merged[-1] = (merged[-1][0], None if before is None or high is None else max(before, high))
        else:
            merged.append((low, high))
    return merged


def _by_offset(file: File, group: Sequence[File], selection: Any) -> Ranges | None:
    """From the message of the first wanted offset to that of the last, over the queues asked for by name."""
    if not selection.topics or any(mark in name for name in selection.topics for mark in "*?["):
        return None
    low, high = None, -1
    for topic in selection.topics:
        queues = {
            queue_file.place.partition
            for queue_file in group
            if queue_file.format == "rocketmq.consumequeue" and queue_file.place.topic == topic
        }
        if not queues or any(
            queue_file.format == "rocketmq.batchconsumequeue" and queue_file.place.topic == topic
            for queue_file in group
        ):
            return None
        for queue_id in queues:
            if selection.partitions and queue_id not in selection.partitions:
                continue
            bounds = _queue_range(topic, queue_id, group, selection.from_offset or 0, selection.to_offset)
            if bounds is None:
                return None
            low = bounds[0] if low is None else min(low, bounds[0])
            high = max(high, bounds[1])
    if low is None:
        return None
    start, stop = file.place.start_offset or 0, (file.place.start_offset or 0) + file.size
    if high < start or low >= stop:
        return []
    if low <= start:
        return [(0, None if high >= stop else high - start)]
    with Source(file.path) as source:
        frame = _frame_of(source, low - start, low)
    return None if frame is None else [(frame[0], None if high >= stop else high - start)]


def _queue_range(
    topic: str, queue_id: int | None, group: Sequence[File], first: int, after: int | None
) -> tuple[int, int] | None:
    """The addresses of the messages `first` to before `after` of a queue."""
    files = sorted(
        (
            f
            for f in group
            if f.format == "rocketmq.consumequeue" and f.place.topic == topic and f.place.partition == queue_id
        ),
        key=lambda f: f.place.start_offset or 0,
    )
    low = _unit(files, first)
    if low is None:
        # After the last unit, or before the first: a queue may be behind the log.
        last = _last_unit(files)
        if last is None:
            return None
        low = last if first > last[2] else (0, 0, 0)
    # Prepared and rolled-back messages of old brokers all have the number 0 and no unit: they may be anywhere.
    high = None if after is None or first <= 0 else _unit(files, after - 1)
    return low[0], (1 << 62) if high is None else high[0] + high[1]


def _unit(files: Sequence[File], number: int) -> tuple[int, int, int] | None:
    at = number * UNIT.size
    for file in files:
        start = file.place.start_offset or 0
        if start <= at < start + file.size:
            with Source(file.path) as source:
                row = np.frombuffer(source.read(at - start, UNIT.size).ljust(UNIT.size, b"\0"), UNIT.dtype)[0]
            size = int(row["size"])
            if size > 0 and size != PRE_BLANK_SIZE and int(row["physical_offset"]) >= 0:
                return int(row["physical_offset"]), size, number
    return None


def _last_unit(files: Sequence[File]) -> tuple[int, int, int] | None:
    for file in reversed(files):
        with Source(file.path) as source:
            rows = UNIT.view(np.frombuffer(source.read(0, source.size), np.uint8))
        real = np.flatnonzero((rows["size"] > 0) & (rows["size"] != PRE_BLANK_SIZE))
        if real.size:
            row = int(real[-1])
            number = (file.place.start_offset or 0) // UNIT.size + row
            return int(rows["physical_offset"][row]), int(rows["size"][row]), number
    return None


def _by_time(file: File, group: Sequence[File], since: int) -> Ranges | None:
    """From the last message known to be stored before a time on. Store times do not fall, so nothing before it is wanted."""
    start, best = file.place.start_offset or 0, 0
    for index_file in _indexes(group):
        with Index(index_file.path) as index:
            if index.header.begin_timestamp * 1000 >= since:
                break
            best = max(best, index.last_before(since // 1000) or 0)
    if best <= start:
        return None
    if best >= start + file.size:
        return []
    with Source(file.path) as source:
        frame = _frame_of(source, best - start, best)
    return None if frame is None else [(frame[0], None)]
