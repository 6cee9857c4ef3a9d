"""Batches that are put together for sending hold the same records as those they were made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.log.writer import BatchFields, Batching, RowBuffers, encode_batch, encode_rows
from rawlog.kernels import byte_view
from rawlog.live.produce import Merger, OutgoingBatch, stamp
from rawlog.model.errors import EncodeError
from rawlog.model.format import File, Want
from rawlog.model.frames import Frames
from rawlog.model.table import RECORDS

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ROW = st.fixed_dictionaries({
    "key": st.none() | st.binary(max_size=12),
    "value": st.none() | st.binary(max_size=60),
    "timestamp": st.integers(0, 1 << 41).map(lambda ms: ms * 1000),
    "headers": st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}), max_size=2),
})  # fmt: skip


def table(rows: list[dict[str, Any]], first: int = 0, step: int = 1) -> pa.RecordBatch:
    numbered = [{**row, "offset": first + step * number, "timestampType": 0} for number, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(numbered, schema=RECORDS.schema)


def decoded(batches: list[OutgoingBatch]) -> list[dict[str, Any]]:
    """The records of batches as a broker would take them: each is checked by itself."""
    found: list[dict[str, Any]] = []
    sequence = 0
    for one in batches:
        stamp(one.data, 7, 3, sequence)
        frames = scan(byte_view(one.data), 0)
        head = heads(frames)
        assert len(frames) == 1
        assert head.all_sound
        assert head["base_offset"][0] == 0
        assert head["last_offset"][0] + 1 == head["record_count"][0] == one.count
        assert (head["producer_id"][0], head["producer_epoch"][0], head["base_sequence"][0]) == (7, 3, sequence)
        assert head["attributes"][0] & ~7 == 0
        rows = [row for batch in LOG.codec.decode(frames, Want(RECORDS, File("x", 0))) for row in batch.to_pylist()]
        assert [row["offset"] for row in rows] == list(range(one.count))
        times = [-1 if row["timestamp"] is None else int(row["timestamp"].timestamp() * 1000) for row in rows]
        assert max(times) == head["max_timestamp"][0]
        found += rows
        sequence += one.count
    return found


def plain(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["key"], row["value"], row["timestamp"], row["headers"]) for row in rows]


def merged(merger: Merger, windows: list[tuple[Frames, Heads]]) -> list[OutgoingBatch]:
    return [one for frames, head in windows for one in merger.add(frames, head)] + list(merger.flush())


@given(st.lists(ROW, min_size=1, max_size=60), st.integers(1, 9), st.sampled_from(CODECS), st.booleans(), st.integers(300, 4000),
       st.integers(0, 70))  # fmt: skip
def test_the_same_records_come_out(
    rows: list[dict[str, Any]], size: int, codec: str, keep: bool, most: int, skip: int
) -> None:
    batch = table(rows)
    made = encode_rows(RowBuffers.of(batch), Batching(codec=codec, records=size))
    half = len(made.frames) // 2
    windows = [
        (made.frames.slice(0, half), made.head.slice(0, half)),
        (made.frames.slice(half, len(made.frames)), made.head.slice(half, len(made.frames))),
    ]
    out = merged(Merger(most, keep_batches=keep, skip=skip), windows)
    assert plain(decoded(out)) == plain(batch.to_pylist()[skip:])
    assert all(len(one) <= most or codec != "none" for one in out)


@given(st.lists(ROW, min_size=1, max_size=20), st.sampled_from(CODECS))
def test_gaps_of_compaction_are_closed(rows: list[dict[str, Any]], codec: str) -> None:
    """A broker refuses a batch whose offsets have gaps."""
    batch = table(rows, first=5, step=3)
    made = encode_batch(batch, BatchFields(base_offset=3, last_offset=5 + 3 * len(rows)), codec)
    out = merged(Merger(1 << 20), [(made.frames, made.head)])
    assert plain(decoded(out)) == plain(batch.to_pylist())
    assert out[-1].next_offset == 5 + 3 * len(rows) + 1


@pytest.mark.parametrize("codec", CODECS)
def test_times_are_moved_or_replaced(codec: str) -> None:
    rows = [{"key": b"k", "value": b"v", "timestamp": ms * 1000, "headers": []} for ms in (1000, 5000, 2000)]
    made = encode_rows(RowBuffers.of(table(rows)), Batching(codec=codec))
    shifted = decoded(merged(Merger(1 << 20, shift_ms=250), [(made.frames, made.head)]))
    assert [row["timestamp"].timestamp() for row in shifted] == [1.25, 5.25, 2.25]
    fixed = decoded(merged(Merger(1 << 20, fixed_time=9000), [(made.frames, made.head)]))
    assert [row["timestamp"].timestamp() for row in fixed] == [9, 9, 9]


def test_log_append_time_becomes_the_time_of_the_records() -> None:
    rows = [{"key": b"k", "value": b"v", "timestamp": ms * 1000, "headers": []} for ms in (1000, 5000)]
    made = encode_batch(table(rows), BatchFields(append_time=7000))
    found = decoded(merged(Merger(1 << 20), [(made.frames, made.head)]))
    assert [row["timestamp"].timestamp() for row in found] == [7, 7]


def test_a_batch_that_is_too_large_for_the_topic_is_divided() -> None:
    """A source may take larger batches than the target; what no batch can hold is an error with its offset."""
    rows = [{"key": None, "value": bytes(100), "timestamp": 0, "headers": []} for _ in range(100)]
    made = encode_rows(RowBuffers.of(table(rows)), Batching())
    out = merged(Merger(1000, keep_batches=True), [(made.frames, made.head)])
    assert max(len(one) for one in out) <= 1000
    assert len(decoded(out)) == 100
    rows[3]["value"] = bytes(2000)
    made = encode_rows(RowBuffers.of(table(rows)), Batching())
    with pytest.raises(EncodeError, match="offset 3: a record that is larger"):
        merged(Merger(1000), [(made.frames, made.head)])


def test_small_batches_are_put_together() -> None:
    rows = [{"key": None, "value": bytes(100), "timestamp": 0, "headers": []} for _ in range(1000)]
    made = encode_rows(RowBuffers.of(table(rows)), Batching(records=10))
    assert len(made.frames) == 100
    assert len(merged(Merger(1 << 20), [(made.frames, made.head)])) == 1
    assert len(merged(Merger(1 << 20, keep_batches=True), [(made.frames, made.head)])) == 100
    assert np.array_equal(made.head["record_count"], np.full(100, 10))
