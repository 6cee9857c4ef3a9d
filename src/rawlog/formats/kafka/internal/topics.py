"""Kafka's internal topics as tables: committed offsets, groups, transactions, share groups, tiered storage.

A partition is read twice: to learn which record of each key is the newest that counts, then for its rows. Memory is bounded by
the keys. Records of a transaction count only if it was committed. Records that cannot be decoded are findings of `checks`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.internal.messages import (
    TRANSACTION_STATUSES,
    KeyedRecord,
    decode_embedded,
    decode_framed,
    decode_keyed,
)
from rawlog.formats.kafka.log import segment
from rawlog.formats.kafka.partition import transactions
from rawlog.formats.kafka.paths import INTERNAL
from rawlog.formats.kafka.tables import (
    GROUPS,
    KAFKA_RECORDS,
    OFFSETS,
    REMOTE,
    SHARES,
    TRANSACTIONS,
)
from rawlog.io.walk import walk
from rawlog.model.errors import DataError, LimitError
from rawlog.model.format import File, Want
from rawlog.model.table import Table

COLUMNS = ("key", "value", "offset", "timestamp", "producer_id", "is_transactional", "is_control", "aborted")
ROWS = 1 << 14
_OFFSET_TYPES = (0, 1)


def partitions(files: Sequence[File]) -> list[list[File]]:
    """The segments of each partition directory, in order. AccessError for one that cannot be read."""
    groups: dict[str, list[File]] = {}
    for file in files:
        file.check_readable()
        groups.setdefault(file.place.group or file.path, []).append(file)
    for segments in groups.values():
        segments.sort(key=lambda segment: segment.place.start_offset or 0)
    return list(groups.values())


MOST_ROWS = 1 << 14


def read_records(
    segments: Sequence[File], names: Sequence[str], errors: str, context: Any = None, format: str = "kafka.log"
) -> Iterator[tuple[File, pa.RecordBatch]]:
    """Columns of `kafka.records` of a partition's segments; damage is treated as `errors` says.

    `format` is the name that errors carry, for files that are logs under another.
    """
    from rawlog.formats.kafka import LOG

    called = LOG if format == LOG.name else replace(LOG, name=format)
    for file in segments:
        want = Want(KAFKA_RECORDS.subset(names), file, context=context)
        for frames in walk(file, called, errors=errors):
            while len(frames):
                try:
                    for batch in segment.decode_stored(frames, want):
                        # Whoever asks makes Python's values of them, which take far more memory.
                        for start in range(0, batch.num_rows, MOST_ROWS):
                            yield file, batch.slice(start, MOST_ROWS)
                    break
                except DataError as error:
                    error.at(path=file.path, format=format)
                    if errors == "raise" or error.position is None:
                        raise
                    if errors == "stop":
                        return
                    bad = int(np.searchsorted(frames.positions, error.position, side="right")) - 1
                    frames = frames.slice(max(bad, 0) + 1, len(frames))


@dataclass(frozen=True, slots=True)
class InternalRecord:
    """A decoded record of an internal topic, and what its batch says of it."""

    offset: int
    timestamp: int | None
    state: str
    raw_key: bytes
    record: KeyedRecord


def entries(
    segments: Sequence[File], topic: str, errors: str, wanted: Callable[[int], bool]
) -> Iterator[tuple[File, InternalRecord]]:
    """The records of a partition whose key types are wanted, in order."""
    context, pending = transactions.of_partition(segments)
    for file, batch in read_records(segments, COLUMNS, errors, context):
        times = batch.column("timestamp").cast(pa.int64())
        values = [batch.column(name).to_pylist() for name in COLUMNS if name != "timestamp"]
        for time, key, value, offset, producer, transactional, control, aborted in zip(
            times.to_pylist(), *values, strict=True
        ):
            if control or key is None or len(key) < 2 or not wanted(int.from_bytes(key[:2], "big", signed=True)):
                continue
            try:
                record = decode_keyed(topic, key, value)
            except LimitError as error:
                error.message = f"offset {offset}: {error.message}"
                raise error.at(path=file.path) from None
            except DataError:
                continue
            state = "committed"
            if transactional:
                first = pending.get(producer)
                state = "aborted" if aborted else "pending" if first is not None and offset >= first else "committed"
            yield file, InternalRecord(offset, time, state, key, record)


def _fold(
    table: Table,
    files: Sequence[File],
    options: Mapping[str, str],
    wanted: Callable[[int], bool],
    row: Callable[[InternalRecord], dict[str, Any]],
    replaces: Callable[[InternalRecord], Sequence[bytes]] = lambda entry: (),
) -> Iterator[pa.RecordBatch]:
    """Rows of a table, each with whether it is the newest of its key; `replaces` names other keys whose records it ends."""
    errors = options.get("errors", "raise")
    topic = INTERNAL[table.name]
    for segments in partitions(files):
        newest: dict[bytes, int] = {}
        for _, entry in entries(segments, topic, errors, wanted):
            if entry.state == "committed":
                newest[entry.raw_key] = entry.offset
                for replaced_key in replaces(entry):
                    newest.pop(replaced_key, None)
        rows: list[dict[str, Any]] = []
        for file, entry in entries(segments, topic, errors, wanted):
            rows.append(
                {
                    "offset_in_log": entry.offset,
                    "timestamp": entry.timestamp,
                    "is_current": newest.get(entry.raw_key) == entry.offset,
                    "deleted": entry.record.value is None,
                    "state": entry.state,
                    "log_partition": file.place.partition,
                    "path": file.path,
                    **row(entry),
                }
            )
            if len(rows) == ROWS:
                yield as_batch(table, rows)
                rows = []
        if rows:
            yield as_batch(table, rows)


def as_batch(table: Table, rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Rows as a batch of a table; times are microseconds."""
    return pa.RecordBatch.from_pylist(rows, schema=table.schema)


def milliseconds(value: int | None) -> int | None:
    """A time in ms as microseconds; -1 and what microseconds cannot hold as None."""
    if value is None or value == -1 or abs(value) > segment.MOST_MS:
        return None
    return value * 1000


def offsets(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Offset commits."""

    def row(entry: InternalRecord) -> dict[str, Any]:
        key, value = entry.record.key, entry.record.value or {}
        epoch = value.get("leaderEpoch", -1)
        return {
            "group": key["group"],
            "topic": key["topic"],
            "partition": key["partition"],
            "committed_offset": value.get("offset"),
            "leader_epoch": None if epoch == -1 else epoch,
            "metadata": value.get("metadata"),
            "commit_timestamp": milliseconds(value.get("commitTimestamp")),
            "expire_timestamp": milliseconds(value.get("expireTimestamp")),
        }

    yield from _fold(OFFSETS, files, options, lambda kind: kind in _OFFSET_TYPES, row)


def groups(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Records about groups, of every group protocol."""

    def row(entry: InternalRecord) -> dict[str, Any]:
        record = entry.record
        key = record.key
        return {
            "group": key.get("groupId", key.get("group")),
            "type": record.name,
            "member": key.get("memberId"),
            "version": record.version,
            "value": None if record.value is None else json.dumps(group_json(record), ensure_ascii=False),
        }

    yield from _fold(GROUPS, files, options, lambda kind: kind not in _OFFSET_TYPES, row)


def group_json(record: KeyedRecord) -> dict[str, Any]:
    """A group's record as Kafka shows it, what consumers put into it decoded."""
    assert record.value is not None
    assert record.value_codec is not None
    shown = record.value_codec.to_json(record.value)
    if record.name == "GroupMetadata" and record.value.get("protocolType") == "consumer":
        for member, raw in zip(shown["members"], record.value["members"], strict=True):
            for name, schema in (
                ("subscription", "ConsumerProtocolSubscription"),
                ("assignment", "ConsumerProtocolAssignment"),
            ):
                decoded = decode_embedded(schema, raw[name])
                if decoded is not None:
                    member[name] = decoded
    return shown


def transaction_states(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """States of transactional ids."""

    def row(entry: InternalRecord) -> dict[str, Any]:
        value = entry.record.value or {}
        status = value.get("transactionStatus")
        partitions_by_topic = value.get("transactionPartitions")
        return {
            "transactional_id": entry.record.key["transactionalId"],
            "producer_id": value.get("producerId"),
            "producer_epoch": value.get("producerEpoch"),
            "status": None if status is None else TRANSACTION_STATUSES.get(status, str(status)),
            "timeout_ms": value.get("transactionTimeoutMs"),
            "partitions": None
            if partitions_by_topic is None
            else [
                {"topic": topic["topic"], "partition": number}
                for topic in partitions_by_topic
                for number in topic["partitionIds"]
            ],
            "start_timestamp": milliseconds(value.get("transactionStartTimestampMs")),
            "update_timestamp": milliseconds(value.get("transactionLastUpdateTimestampMs")),
            "previous_producer_id": value.get("previousProducerId"),
            "next_producer_id": value.get("nextProducerId"),
            "next_producer_epoch": value.get("nextProducerEpoch"),
            "client_transaction_version": value.get("clientTransactionVersion"),
            "version": entry.record.version,
        }

    yield from _fold(TRANSACTIONS, files, options, lambda kind: True, row)


def shares(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """States of share groups: a snapshot ends the updates before it."""

    def row(entry: InternalRecord) -> dict[str, Any]:
        key, value = entry.record.key, entry.record.value or {}
        batches = value.get("stateBatches")
        names = {"first_offset": "firstOffset", "last_offset": "lastOffset"}
        names |= {"delivery_state": "deliveryState", "delivery_count": "deliveryCount"}
        return {
            "group": key["groupId"],
            "topic_id": uuid_text(key["topicId"]),
            "partition": key["partition"],
            "type": entry.record.name,
            "snapshot_epoch": value.get("snapshotEpoch"),
            "state_epoch": value.get("stateEpoch"),
            "leader_epoch": value.get("leaderEpoch"),
            "start_offset": value.get("startOffset"),
            "delivery_complete_count": value.get("deliveryCompleteCount"),
            "batches": None
            if batches is None
            else [{column: batch.get(kafka_name) for column, kafka_name in names.items()} for batch in batches],
            "create_timestamp": milliseconds(value.get("createTimestamp")),
            "write_timestamp": milliseconds(value.get("writeTimestamp")),
        }

    def replaces(entry: InternalRecord) -> Sequence[bytes]:
        return (b"\0\x01" + entry.raw_key[2:],) if entry.record.type == 0 else ()

    yield from _fold(SHARES, files, options, lambda kind: True, row, replaces)


def remote(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Records about tiered storage."""
    errors = options.get("errors", "raise")
    for segments in partitions(files):
        for file, batch in read_records(segments, ("value", "offset", "timestamp", "is_control"), errors):
            rows = []
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
            columns = (batch.column(name).to_pylist() for name in ("value", "offset", "is_control"))
            for time, value, offset, control in zip(times, *columns, strict=True):
                if control or value is None:
                    continue
                place = {
                    "offset_in_log": offset,
                    "timestamp": time,
                    "log_partition": file.place.partition,
                    "path": file.path,
                }
                try:
                    framed = decode_framed(value, "remote")
                except DataError:
                    continue
                shown = json.dumps(framed.to_json(), ensure_ascii=False)
                rows.append({**place, "type": framed.codec.schema.name, "version": framed.version, "value": shown})
            if rows:
                yield as_batch(REMOTE, rows)


FOLDS: dict[str, Callable[[Sequence[File], Mapping[str, str]], Iterator[pa.RecordBatch]]] = {
    OFFSETS.name: offsets,
    GROUPS.name: groups,
    TRANSACTIONS.name: transaction_states,
    SHARES.name: shares,
    REMOTE.name: remote,
}
"""The tables that are made of internal topics, by name."""
