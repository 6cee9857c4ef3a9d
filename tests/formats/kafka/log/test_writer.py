"""What is written reads back the same; what was read is written again as it was; what cannot be written says so."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rawlog
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODECS,
    MAGIC_V2,
    Attributes,
)
from rawlog.formats.kafka.log.records import COLUMNS, decode_columns
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.log.writer import BatchFields, Batching, RowBuffers, encode_batch, encode_marker, encode_rows
from rawlog.formats.kafka.partition.writer import SegmentIndex
from rawlog.io import compression
from rawlog.kernels import byte_view
from rawlog.kernels.columns import batch, constant
from rawlog.model.errors import AccessError, EncodeError, OptionError
from rawlog.model.frames import Frames
from rawlog.model.table import RECORDS
from tests.data.golden import kafka_cases, vectors
from tests.reference import kafka, strategies

T = 1_700_000_000_000
CLEAN = [case for case in kafka_cases() if not case.is_legacy]


def stored_records(frames: Frames, head: Heads, index: int) -> pa.RecordBatch:
    """The records of one batch with the times they were sent with, also where log append time hides them."""
    one, own = frames.slice(index, index + 1), head.slice(index, index + 1)
    plain = Heads(own.values.copy())
    plain["attributes"][:] &= ~int(Attributes.LOG_APPEND_TIME)
    found = decode_columns(one.data, one.starts, one.stops, COLUMNS, head=plain)
    arrays = dict(found.arrays)
    for name in ("topic", "partition"):
        arrays[name] = constant(None, RECORDS.column(name).type, found.count)
    return batch(RECORDS, arrays, found.count)


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=RECORDS.schema)


def row(
    offset: int | None, value: bytes | None = b"v", *, key: bytes | None = None, time: int | None = T, **more: Any
) -> dict[str, Any]:
    made = {"key": key, "value": value, "offset": offset, "timestamp": None if time is None else time * 1000}
    return {"topic": "orders", "partition": 0, "timestampType": 0, "headers": []} | made | more


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_batches([batch_of(*rows)])


# Encoders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CLEAN, ids=str)
def test_batches_that_were_read_are_written_again_as_they_were(case: Any) -> None:
    """Uncompressed ones byte for byte; of the others, what the records decompress to and the header but for its size."""
    for segment in case.segments:
        data = np.frombuffer(segment.read_bytes(), np.uint8)
        frames = scan(data, 0)
        head = heads(frames)
        for index in range(len(frames)):
            before = data[frames.starts[index] : frames.stops[index]].tobytes()
            codec = CODECS[int(head.codec[index])]
            made = encode_batch(stored_records(frames, head, index), BatchFields.of(head, index), codec)
            after = made.frames.data.tobytes()
            if codec == "none":
                assert after == before, (segment, index)
                continue
            assert next(iter(kafka.decode(after))).records == next(iter(kafka.decode(before))).records
            plain = [bytes(compression.decompress(codec, one[BATCH.size :])) for one in (before, after)]
            assert plain[0] == plain[1], (segment, index)
            for name in ("length", "crc"):
                first, stop = BATCH.at(name), BATCH.after(name)
                before, after = (one[:first] + bytes(stop - first) + one[stop:] for one in (before, after))
            assert before[: BATCH.size] == after[: BATCH.size]


@settings(max_examples=100)
@given(strategies.batches(codec_ids=(0,)))
def test_any_batch_is_written_again_as_it_was(sample: tuple[bytes, kafka.Batch]) -> None:
    data, _ = sample
    frames = scan(np.frombuffer(data, np.uint8), 0)
    head = heads(frames)
    made = encode_batch(stored_records(frames, head, 0), BatchFields.of(head, 0))
    if int(head["attributes"][0]) & 0x08 == 0 and head["record_count"][0]:
        assert int(made.head["max_timestamp"][0]) == int(head["max_timestamp"][0])
    assert made.frames.data.tobytes() == data


def test_a_marker_is_that_of_kafka() -> None:
    fields: dict[str, Any] = {"producer_id": 4000, "producer_epoch": 3, "coordinator_epoch": 17, "leader_epoch": 9}
    assert encode_marker(42, T, commit=True, **fields).frames.data.tobytes() == vectors()["endtxn-commit"]
    assert encode_marker(42, T, commit=False, **fields).frames.data.tobytes() == vectors()["endtxn-abort"]


@st.composite
def plain_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    offset = draw(st.integers(0, 1 << 40))
    rows = []
    for _ in range(draw(st.integers(1, 20))):
        time = draw(strategies.timestamps())
        headers = [{"key": name, "value": value} for name, value in draw(strategies.header_lists())]
        content = strategies.nullable(strategies.contents(5000))
        rows.append(
            row(offset, draw(content), key=draw(content), time=None if time == -1 else time, headers=headers)
            | {"timestampType": draw(st.sampled_from([0, 0, 1]))}
        )
        offset += draw(st.sampled_from([1, 1, 1, 5, 1 << 31, 1 << 33]))
    return rows


@given(
    rows=plain_rows(),
    codec=st.sampled_from(CODECS),
    records=st.sampled_from([1, 3, 1 << 40]),
    size=st.sampled_from([1, 64, 1000, 1 << 20]),
    magic=st.sampled_from([2, 2, 1, 0]),
)
def test_the_slow_decoder_reads_what_was_encoded(
    rows: list[dict[str, Any]], codec: str, records: int, size: int, magic: int
) -> None:
    if magic != MAGIC_V2 and codec == "zstd":
        codec = "lz4"
    batching = Batching(codec, records=records, bytes=size, magic=magic, leader_epoch=5)
    made = encode_rows(RowBuffers.of(batch_of(*rows)), batching)
    found = [record for batch in kafka.decode(made.frames.data.tobytes()) for record in batch.records]
    assert [(one.offset, one.key, one.value) for one in found] == [
        (one["offset"], one["key"], one["value"]) for one in rows
    ]
    if magic:
        assert [one.timestamp for one in found] == [
            None if one["timestamp"] is None else one["timestamp"] // 1000 for one in rows
        ]
        assert [one.timestamp_type for one in found] == [one["timestampType"] for one in rows]
    if magic == MAGIC_V2:
        assert [one.headers for one in found] == [[(h["key"], h["value"]) for h in one["headers"]] for one in rows]
    again = heads(scan(made.frames.data, 0))
    for name in ("last_offset", "max_timestamp", "attributes", "leader_epoch", "magic", "record_count"):
        assert again[name].tolist() == made.head[name].tolist(), name
    assert np.diff(made.head["base_offset"]).min(initial=1) > 0


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.sampled_from([1, 4, 1000]))
def test_batches_do_not_depend_on_how_rows_come_in(cuts: list[int], records: int) -> None:
    rows = [row(number, b"x" * (number % 50)) for number in range(sum(cuts))]
    whole = encode_rows(RowBuffers.of(batch_of(*rows)), Batching(records=records)).frames.data.tobytes()
    pieces, pending, previous = [], [], -1
    at = 0
    for index, size in enumerate(cuts):
        pending += rows[at : at + size]
        at += size
        made = encode_rows(
            RowBuffers.of(batch_of(*pending)), Batching(records=records), previous, whole=index == len(cuts) - 1
        )
        pieces.append(made.frames.data.tobytes())
        pending = pending[made.rows :]
        previous = int(made.head["last_offset"][-1]) if len(made.head) else previous
    assert b"".join(pieces) == whole


def test_sliced_columns_are_written_from_where_they_begin() -> None:
    rows = [
        row(number, b"v%d" % number, key=None if number % 3 else b"", headers=[{"key": f"h{number}", "value": None}])
        for number in range(20)
    ]
    part = batch_of(*rows).slice(7, 9)
    found = [
        one
        for batch in kafka.decode(encode_rows(RowBuffers.of(part), Batching()).frames.data.tobytes())
        for one in batch.records
    ]
    assert [(one.offset, one.key, one.value, one.headers) for one in found] == [
        (number, None if number % 3 else b"", b"v%d" % number, [(f"h{number}", None)]) for number in range(7, 16)
    ]


# Directories -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", CODECS)
def test_rows_go_to_the_partitions_they_name(tmp_path: Path, codec: str) -> None:
    rows = [
        row(number // 4, b"v%d" % number, topic=f"t-{number % 2}", partition=number // 2 % 2) for number in range(400)
    ]
    assert rawlog.write(tmp_path / "out", table(*rows), format="kafka", codec=codec, batch_records=7) == 400
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["t-0-0", "t-0-1", "t-1-0", "t-1-1"]
    keys = [(name, "ascending") for name in ("topic", "partition", "offset")]
    assert rawlog.read(tmp_path / "out").sort_by(keys).equals(table(*rows).sort_by(keys))
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    ids = {one.read_text() for one in tmp_path.glob("out/t-0-*/partition.metadata")}
    assert len(ids) == 1


def test_options_overrule_the_rows_and_number_them(tmp_path: Path) -> None:
    rows = [row(None, b"a"), row(None, b"b")]
    rawlog.write(tmp_path / "out", table(*rows), format="kafka", topic="x.y", partition=3, start_offset=1000)
    found = rawlog.read(tmp_path / "out").to_pylist()
    assert [(one["topic"], one["partition"], one["offset"]) for one in found] == [("x.y", 3, 1000), ("x.y", 3, 1001)]
    names = sorted(one.name for one in (tmp_path / "out/x.y-3").iterdir())
    assert names == [f"{1000:020d}.{kind}" for kind in ("index", "log", "timeindex")] + [
        f"{1002:020d}.snapshot", "leader-epoch-checkpoint", "partition.metadata",
    ]  # fmt: skip


def test_segments_end_by_size_by_time_and_by_full_index(tmp_path: Path) -> None:
    def bases(**options: Any) -> list[int]:
        target = tmp_path / "-".join(options)
        rows = [row(number, bytes(1000), time=T + number * 1000) for number in range(100)]
        rawlog.write(target, table(*rows), format="kafka", batch_records=1, **options)
        assert rawlog.read(target).num_rows == 100
        assert rawlog.verify(target).verdict == "clean"
        snapshots = sorted(int(one.stem) for one in target.glob("*/*.snapshot"))
        found = sorted(int(one.stem) for one in target.glob("*/*.log"))
        assert snapshots == [*found[1:], 100]
        return found

    assert bases() == [0]
    assert bases(segment_bytes=20_000)[:3] == [0, 18, 36]
    assert bases(segment_ms=9_999) == list(range(0, 100, 10))
    assert bases(segment_index_bytes=80, index_interval_bytes=0)[:3] == [
        0,
        6,
        12,
    ]  # six slots for times, one of them kept


def test_a_table_streams_through_without_holding_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.formats.kafka.partition import sink

    monkeypatch.setattr(sink, "PENDING_BYTES", 1000)
    monkeypatch.setattr(sink, "PENDING_TOTAL", 3000)
    parts = [batch_of(*(row(at + n, bytes(20), partition=(at + n) % 3) for n in range(10))) for at in range(0, 500, 10)]
    reader = pa.RecordBatchReader.from_batches(RECORDS.schema, parts)
    rawlog.write(tmp_path / "out", reader, format="kafka", batch_records=4)
    found = rawlog.read(tmp_path / "out")
    assert sorted(found["offset"].to_pylist()) == list(range(500))
    counts = rawlog.read(tmp_path / "out", table="kafka.batches")["record_count"].to_pylist()
    assert sorted(set(counts[:-1])) in ([3, 4], [4], [2, 4], [2, 3, 4], [1, 4], [1, 2, 4], [1, 3, 4])
    assert counts.count(4) >= len(counts) - 3


def test_the_topic_keeps_its_id(tmp_path: Path) -> None:
    given_id = base64.urlsafe_b64encode(bytes(range(16))).decode().rstrip("=")
    rawlog.write(tmp_path, table(row(0)), format="kafka", topic_id=given_id)
    rawlog.write(tmp_path, table(row(0, partition=1)), format="kafka")
    rawlog.write(tmp_path, table(row(0, b"new")), format="kafka", overwrite=True)
    texts = {one.read_text() for one in tmp_path.glob("*/partition.metadata")}
    assert texts == {f"version: 0\ntopic_id: {given_id}"}
    assert rawlog.read(tmp_path / "orders-0")["value"].to_pylist() == [b"new"]
    assert not [one for one in tmp_path.parent.iterdir() if one.name.endswith(".tmp")]


def test_an_empty_partition_is_one_empty_segment(tmp_path: Path) -> None:
    rawlog.write(tmp_path / "out", table(), format="kafka", topic="orders", partition=0)
    assert (tmp_path / "out/orders-0/00000000000000000000.log").stat().st_size == 0
    assert rawlog.read(tmp_path / "out").num_rows == 0


BAD: list[tuple[str, list[dict[str, Any]], dict[str, Any], type[Exception], str]] = [
    ("backwards", [row(5), row(4)], {}, EncodeError, "offset 4 after 5"),
    ("twice", [row(5), row(5)], {}, EncodeError, "offset 5 after 5"),
    ("negative", [row(-3)], {}, EncodeError, "offset -3"),
    ("mixed offsets", [row(5), row(None)], {}, EncodeError, "no offset"),
    ("no topic", [row(0, topic=None)], {}, EncodeError, "no topic; give it as an option"),
    ("no partition", [row(0, partition=None)], {}, EncodeError, "no partition"),
    ("bad topic", [row(0, topic="a/b")], {}, EncodeError, "topic 'a/b'"),
    ("bad partition", [row(0, partition=-1)], {}, EncodeError, "partition -1"),
    ("null header name", [row(0, headers=[{"key": None, "value": b""}])], {}, EncodeError, "header without a name"),
    ("above a segment", [row(0, bytes(5000))], {"segment_bytes": 4000}, EncodeError, "segments hold 4,000"),
    ("above a batch", [row(0, bytes(5000))], {"max_message_bytes": 4000}, EncodeError, "max_message_bytes is 4,000"),
    ("microseconds", [row(0) | {"timestamp": 1}], {}, EncodeError, "timestamp"),
    ("headers in v1", [row(0, headers=[{"key": "a", "value": b""}])], {"magic": 1}, EncodeError, "headers"),
    ("times in v0", [row(0, timestampType=-1)], {"magic": 0}, EncodeError, "timestamp"),
    ("codec", [row(0)], {"codec": "zst"}, OptionError, "zstd"),
    ("level", [row(0)], {"codec": "gzip", "level": 11}, OptionError, "gzip level 11"),
    ("zstd in v1", [row(0)], {"codec": "zstd", "magic": 1}, OptionError, "magic 1 knows"),
    ("option", [row(0)], {"segmentbytes": 1}, OptionError, "segment_bytes"),
    ("number", [row(0)], {"batch_bytes": "many"}, OptionError, "whole number"),
    ("topic id", [row(0)], {"topic_id": "x"}, OptionError, "22 characters"),
]


@pytest.mark.parametrize(("rows", "options", "error", "words"), [one[1:] for one in BAD], ids=[one[0] for one in BAD])
def test_what_cannot_be_written_says_so_and_leaves_nothing(
    tmp_path: Path, rows: list[dict[str, Any]], options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        rawlog.write(tmp_path / "out", table(*rows), format="kafka", **options)
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_not_touched(tmp_path: Path) -> None:
    rawlog.write(tmp_path / "out", table(row(0)), format="kafka")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(AccessError, match="exists already"):
        rawlog.write(tmp_path / "out", table(row(0, b"other"), row(1, topic="more")), format="kafka")
    with pytest.raises(EncodeError):
        rawlog.write(tmp_path / "out", table(row(1), row(0)), format="kafka", overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_target_that_cannot_be_made_is_an_access_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AccessError, match="file"):
        rawlog.write(tmp_path / "file" / "out", table(row(0)), format="kafka")
    with pytest.raises(AccessError, match="not a directory"):
        rawlog.write(tmp_path / "file", table(row(0)), format="kafka")
    assert [one.name for one in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_an_access_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.io import output

    def full(_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(output, "sync", full)
    with pytest.raises(AccessError, match="No space left"):
        rawlog.write(tmp_path / "out", table(row(0)), format="kafka")
    assert not list(tmp_path.iterdir())


def test_all_levels_are_taken(tmp_path: Path) -> None:
    for codec, levels in (("gzip", (1, 9, -1)), ("lz4", (1, 9, 17)), ("zstd", (-5, 1, 22))):
        for level in levels:
            target = tmp_path / f"{codec}{level}"
            rawlog.write(
                target, table(*(row(n, b"abc" * 99) for n in range(50))), format="kafka", codec=codec, level=level
            )
            assert rawlog.read(target).num_rows == 50


def test_an_index_is_not_changed_by_the_windows_it_is_made_in() -> None:
    rows = [row(number, bytes(number % 700), time=T + number * 37 % 1000) for number in range(500)]
    made = encode_rows(RowBuffers.of(batch_of(*rows)), Batching(records=2))
    limits = np.array([1 << 62, 1 << 62, 1 << 62, 1 << 62, 512], np.int64)
    whole = SegmentIndex(0, limits)
    assert whole.add(made.frames.sizes, made.head) == len(made.frames)
    pieces = SegmentIndex(0, limits)
    for at in range(0, len(made.frames), 13):
        stop = min(at + 13, len(made.frames))
        pieces.add(made.frames.sizes[at:stop], made.head.slice(at, stop))
    assert (pieces.index(), pieces.timeindex()) == (whole.index(), whole.timeindex())
    assert len(whole.index()) > 100
    assert byte_view(made.frames.data).size == whole.size
