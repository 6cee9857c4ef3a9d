"""Batches that lose records are those that Kafka's cleaner writes; the rest stays byte for byte."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import heads
from rawlog.formats.kafka.log.segment import decode_run, pieces, scan
from rawlog.formats.kafka.partition.erase import FilterResult, keep_records
from rawlog.model.errors import RawlogError
from tests.data.golden import kafka_cases
from tests.reference import kafka

T = 1_700_000_000_000
HORIZON = T + 1000 + 86_400_000
ALL = kafka_cases()

# kafka-log.md §6.7, made by Kafka itself
ONLY_102 = (
    "0000000000000064 0000003d 00000007 02 3a1f9668 0040 00000003 0000018bd50bc7e8 0000018bcfe567fd 0000000000000fa0 0003"
    " 0000000a 00000001 16 00 d5ffb252 04 04 6b32 01 00"
)
ONLY_103 = (
    "0000000000000064 0000003b 00000007 02 a9fd63fe 0000 00000003 0000018bcfe56809 0000018bcfe56809 0000000000000fa0 0003"
    " 0000000a 00000001 12 00 00 06 04 6b33 02 78 00"
)
NONE_LEFT = (
    "0000000000000064 00000031 00000007 02 78469047 0000 00000003 ffffffffffffffff 0000018bcfe56809 0000000000000fa0 0003"
    " 0000000a 00000000"
)


def source(codec: int = 0) -> bytes:
    records = [(0, b"k0", b"v"), (5, None, b"no-key"), (-3, b"k2", None), (9, b"k3", b"x")]
    return kafka.encode_batch(
        b"".join(kafka.encode_record(at, time, key, value) for at, (time, key, value) in enumerate(records)),
        record_count=4,
        base_offset=100,
        base_timestamp=T,
        max_timestamp=T + 9,
        leader_epoch=7,
        producer_id=4000,
        producer_epoch=3,
        base_sequence=10,
        codec=codec,
    )


def counts_of(data: bytes) -> NDArray[np.int64]:
    frames = scan(np.frombuffer(data, np.uint8), 0)
    head = heads(frames)
    found = [
        decode_run(frames.slice(start, stop), head.slice(start, stop), {"offset"}, 1 << 28).counts
        for start, stop in pieces(frames, head)
    ]
    return np.concatenate(found) if found else np.zeros(0, np.int64)


def filtered(data: bytes, keep: Any, **more: Any) -> FilterResult:
    frames = scan(np.frombuffer(data, np.uint8), 0)
    return keep_records(frames, heads(frames), counts_of(data), np.array(keep, np.bool_), **more)


@pytest.mark.parametrize(
    ("keep", "horizon", "expected"),
    [
        ([0, 0, 1, 0], HORIZON, ONLY_102),
        ([0, 0, 0, 1], -1, ONLY_103),
        ([0, 0, 0, 0], -1, NONE_LEFT),
        ([0, 0, 0, 0], HORIZON, NONE_LEFT),
    ],
)
def test_bytes_are_those_of_kafka(keep: list[int], horizon: int, expected: str) -> None:
    made = filtered(source(), keep, horizons=np.array([horizon], np.int64))
    assert made.frames.data.tobytes().hex() == expected.replace(" ", "")


def test_a_horizon_alone_rewrites_a_batch_that_keeps_all() -> None:
    made = filtered(source(), [1, 1, 1, 1], horizons=np.array([HORIZON], np.int64))
    (batch,) = kafka.decode(made.frames.data.tobytes())
    (before,) = kafka.decode(source())
    assert (batch.attributes, batch.base_timestamp) == (0x40, HORIZON)
    assert batch.records == before.records


def test_what_keeps_all_is_the_same_object() -> None:
    data = np.frombuffer(source() + source(2), np.uint8)
    frames = scan(data, 0)
    made = keep_records(frames, heads(frames), counts_of(data.tobytes()), np.ones(8, np.bool_))
    assert made.frames is frames
    assert made.rebuilt == 0


def test_a_batch_that_is_not_retained_vanishes() -> None:
    made = filtered(source() + source(4), [0] * 4 + [1] * 4, retain=np.zeros(2, np.bool_))
    assert made.frames.data.tobytes() == source(4)
    assert made.sources.tolist() == [1]


@pytest.mark.parametrize("case", ALL, ids=str)
def test_real_partitions_keep_what_is_asked_for(case: Any) -> None:
    """Of every golden segment, older magics too, a random choice of records stays: those and no others, and no header changes."""
    random = np.random.default_rng(7)
    for segment in case.segments:
        data = segment.read_bytes()
        before = list(kafka.decode(data))
        counts = counts_of(data)
        if not counts.size:
            continue
        for share in (0.0, 0.4, 0.95):
            keep = random.random(int(counts.sum())) < share
            made = filtered(data, keep)
            after = {
                int(at): batch for at, batch in zip(made.sources, kafka.decode(made.frames.data.tobytes()), strict=True)
            }
            row = 0
            for index, batch in enumerate(before):
                records = batch.records or []
                wanted = [one for one, stays in zip(records, keep[row : row + len(records)], strict=True) if stays]
                row += len(records)
                if not wanted and batch.magic < 2:
                    assert index not in after
                    continue
                left = after[index]
                assert (left.records or []) == wanted
                if batch.magic == 2:
                    names = ("base_offset", "last_offset", "leader_epoch", "producer_id", "producer_epoch")
                    for name in (*names, "base_sequence", "is_transactional", "is_control", "timestamp_type"):
                        assert getattr(left, name) == getattr(batch, name), name
                    assert left.record_count == len(wanted)
                    if wanted and wanted[0].timestamp_type == 0:
                        assert left.max_timestamp == max(one.timestamp or -1 for one in wanted)
                    if wanted:
                        assert left.codec == batch.codec
                else:
                    assert left.last_offset == wanted[-1].offset


@settings(deadline=None)
@given(data=st.data())
def test_damaged_records_are_an_error_and_nothing_else(data: Any) -> None:
    """The checksum is made right again, so that the walk over the records itself is what is tried."""
    raw = bytearray(source())
    at = data.draw(st.integers(61, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    raw[17:21] = kafka.crc32c(bytes(raw[21:])).to_bytes(4, "big")
    frames = scan(np.frombuffer(bytes(raw), np.uint8), 0)
    keep = np.array(data.draw(st.lists(st.booleans(), min_size=4, max_size=4)), np.bool_)
    try:
        made = keep_records(frames, heads(frames), np.array([4]), keep)
    except RawlogError:
        return
    assert made.frames.reached == made.frames.data.size
