"""The judges judged: the reference decoders against every golden Kafka file, and against their own encoders."""

from __future__ import annotations

import ast
import contextlib
import struct
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.golden import (
    GOLDEN,
    DumpCase,
    GoldenRecord,
    KafkaCase,
    golden_records,
    kafka_brokers,
    kafka_cases,
    kafka_dumps,
    vectors,
)
from tests.reference import codecs, kafka, strategies

T = 1_700_000_000_000
SLOW = settings(suppress_health_check=list(HealthCheck), deadline=None)


def test_references_import_nothing_of_rawlog() -> None:
    allowed = {*sys.stdlib_module_names, "cramjam", "lz4", "zstandard", "hypothesis"}
    for path in [*Path(__file__).parent.glob("[!t]*.py"), Path(__file__).parents[1] / "data" / "golden.py"]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= allowed, path
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                module = node.module or ""
                assert module.split(".")[0] in allowed or module.startswith("tests.reference."), path


def read(case: KafkaCase) -> list[tuple[kafka.Batch, kafka.Record]]:
    pairs = []
    for segment in case.segments:
        data = segment.read_bytes()
        _, reached, status = kafka.frames(data)
        assert (reached, status) == (len(data), "ok")
        pairs += [(batch, record) for batch in kafka.decode(data) for record in batch.records if not batch.is_control]
    return [(batch, record) for batch, record in pairs if record.offset >= case.log_start]


@pytest.mark.parametrize("case", kafka_cases(), ids=str)
def test_records_are_those_a_real_consumer_got(case: KafkaCase) -> None:
    topic, _, partition = case.partition.rpartition("-")
    read_here = [
        GoldenRecord(
            topic=topic,
            partition=int(partition),
            offset=record.offset,
            timestamp=record.timestamp,
            timestamp_type=record.timestamp_type,
            leader_epoch=None if case.is_legacy else batch.leader_epoch,
            key=record.key,
            value=record.value,
            headers=record.headers,
        )
        for batch, record in read(case)
    ]
    assert read_here == case.records


@pytest.mark.parametrize("case", [case for case in kafka_cases() if not case.is_legacy], ids=str)
def test_markers_give_the_offsets_of_a_committed_reader(case: KafkaCase) -> None:
    """Aborted data by markers alone: a producer's transactional records since its last marker belong to the next."""
    batches = [batch for segment in case.segments for batch in kafka.decode(segment.read_bytes())]
    aborted: set[int] = set()
    open_offsets: dict[int, list[int]] = {}
    for batch in batches:
        if batch.is_control:
            for marker in batch.records:
                pending = open_offsets.pop(batch.producer_id, [])
                aborted.update(pending if marker.control_type == 0 else [])
        elif batch.is_transactional:
            open_offsets.setdefault(batch.producer_id, []).extend(record.offset for record in batch.records)
    assert case.last_stable_offset is not None
    committed = [
        record.offset
        for batch in batches
        if not batch.is_control
        for record in batch.records
        if case.log_start <= record.offset < case.last_stable_offset and record.offset not in aborted
    ]
    assert committed == case.committed_offsets
    assert batches == [] or batches[-1].last_offset + 1 == case.end_offset


@pytest.mark.parametrize("broker", kafka_brokers())
def test_batches_are_those_of_kafkas_own_dump(broker: str) -> None:
    cases = list(kafka_dumps(broker))
    assert cases
    for case in cases:
        compare_with_dump(case)


CONTROL_NAMES = [  # by control type; 3.9.2 and 4.3.0 name some of them differently
    ("endTxnMarker: ABORT",),
    ("endTxnMarker: COMMIT",),
    ("LeaderChange", "LEADER_CHANGE(2)"),
    ("SnapshotHeader",),
    ("SnapshotFooter",),
    ("KRaftVersion", "KRAFT_VERSION(5)"),
    ("KRaftVoters", "KRAFT_VOTERS(6)"),
]


def compare_with_dump(case: DumpCase) -> None:
    read_here = list(kafka.decode(case.path.read_bytes()))
    assert len(read_here) == len(case.batches), case
    for batch, reported in zip(read_here, case.batches, strict=True):
        always = (
            batch.position, batch.size, batch.magic, codecs.NAMES[batch.codec], batch.crc, batch.crc_ok,
            batch.last_offset, batch.max_timestamp, batch.timestamp_type,
        )  # fmt: skip
        assert always == (
            reported.position, reported.size, reported.magic, reported.codec, reported.crc, reported.valid,
            reported.last_offset, reported.timestamp, reported.timestamp_type,
        ), case  # fmt: skip
        if batch.magic == 2:
            assert (
                batch.base_offset, batch.record_count, batch.base_sequence, batch.producer_id, batch.producer_epoch,
                batch.leader_epoch, batch.is_transactional, batch.is_control,
            ) == (
                reported.base_offset, reported.count, reported.base_sequence, reported.producer_id, reported.producer_epoch,
                reported.leader_epoch, reported.is_transactional, reported.is_control,
            ), case  # fmt: skip
            if not case.broker.startswith("legacy/"):  # the tool of 2.8.2 knows no horizon
                assert batch.delete_horizon == reported.delete_horizon, case
        # A line of a record may be cut by a line break in its value, never before its offset and sequence.
        assert [str(record.offset) for record in batch.records] == [line.split()[1] for line in reported.records], case
        if batch.magic == 2:
            for record, line in zip(batch.records, reported.records, strict=True):
                assert f" sequence: {record.sequence} " in line, case
                if batch.is_control:
                    assert record.control_type is not None
                    assert any(name in line for name in CONTROL_NAMES[record.control_type]), case


def test_every_golden_log_is_dumped_or_ignored() -> None:
    """Nothing is left unread: every segment below golden/kafka was held against a dump or is a file Kafka ignores."""
    dumped = {case.path for case in kafka_dumps()}
    for path in (GOLDEN / "kafka").rglob("*.log"):
        if path.is_relative_to(GOLDEN / "kafka" / "tiered-4.3.0"):  # ORIGIN.md: compared with what a consumer got
            data = path.read_bytes()
            assert kafka.frames(data)[1:] == (len(data), "ok"), path
            list(kafka.decode(data))
            continue
        assert path in dumped, path
    for path in (GOLDEN / "kafka").rglob("*.checkpoint"):
        if path.parent.name == "__cluster_metadata-0":
            assert path in dumped, path
        list(kafka.decode(path.read_bytes()))
    for path in (GOLDEN / "kafka").rglob("*.log.*"):
        list(kafka.decode(path.read_bytes()))


def test_the_golden_files_hold_every_case() -> None:
    seen: Counter[object] = Counter()
    for case in kafka_cases():
        for segment in case.segments:
            for batch in kafka.decode(segment.read_bytes()):
                seen["magic", batch.magic, batch.codec] += 1
                seen["horizon"] += batch.delete_horizon is not None
                seen["empty"] += batch.record_count == 0
                seen["control"] += batch.is_control
                seen["transactional"] += batch.is_transactional
                seen["append time", batch.magic] += batch.timestamp_type == kafka.LOG_APPEND_TIME
    assert all(seen["magic", magic, codec] for magic in (0, 1) for codec in range(4))
    assert all(seen["magic", 2, codec] for codec in range(5))
    assert all(seen[name] for name in ("horizon", "empty", "control", "transactional"))
    assert all(seen["append time", magic] for magic in (1, 2))


def test_old_consumers_disagree_only_on_the_type_of_bug_4298() -> None:
    for path in (GOLDEN / "kafka" / "legacy").glob("*/expected/*.by-0.10.0.1.ndjson"):
        new = golden_records(path.with_name(path.name.replace(".by-0.10.0.1", "")))
        old = golden_records(path)
        assert [(r.offset, r.timestamp, r.key, r.value) for r in old] == [
            (r.offset, r.timestamp, r.key, r.value) for r in new
        ]
        assert {(a.timestamp_type, b.timestamp_type) for a, b in zip(old, new, strict=True)} >= {(-1, 1)}


FOUR = [
    (100, T, b"k0", b"value-zero", [("h1", b"v1"), ("h2", None), ("", b"")]),
    (101, T + 5, None, b"no-key", []),
    (102, T - 3, b"k2", None, []),
    (103, T + 1, b"", b"", []),
]


@pytest.mark.parametrize("codec", codecs.NAMES)
def test_vectors_of_magic_2(codec: str) -> None:
    (batch,) = kafka.decode(vectors()[f"v2-{codec}"])
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in batch.records] == FOUR
    assert (batch.base_offset, batch.leader_epoch, batch.max_timestamp) == (100, 7, T + 5)


def test_encoders_equal_kafkas_own_bytes() -> None:
    body = b"".join(kafka.encode_record(o - 100, t - T, k, v, h) for o, t, k, v, h in FOUR)
    for number, name in enumerate(codecs.NAMES):
        ours = kafka.encode_batch(
            body, record_count=4, base_offset=100, codec=number, base_timestamp=T, max_timestamp=T + 5, leader_epoch=7
        )
        if name in ("none", "snappy", "lz4"):  # gzip and zstd bytes depend on the library
            assert ours == vectors()[f"v2-{name}"], name
    marker = kafka.encode_record(0, 0, struct.pack(">hh", 0, 1), struct.pack(">hi", 0, 17))
    assert vectors()["endtxn-commit"] == kafka.encode_batch(
        marker, record_count=1, base_offset=42, base_timestamp=T, max_timestamp=T, leader_epoch=9,
        producer_id=4000, producer_epoch=3, is_transactional=True, is_control=True,
    )  # fmt: skip
    for magic in (0, 1):
        plain = b"".join(kafka.encode_entry(magic, o, k, v, t) for o, t, k, v, _ in FOUR[:3])
        assert plain == vectors()[f"v{magic}-none"]
        inner = b"".join(kafka.encode_entry(magic, o - (100 if magic else 0), k, v, t) for o, t, k, v, _ in FOUR[:3])
        for number, name in [(2, "snappy"), (3, "lz4")]:
            theirs = kafka._entry(vectors()[f"v{magic}-{name}"], 0, True)[3]
            assert theirs is not None
            assert codecs.decompress(number, theirs, magic) == inner


def test_vectors_of_control_and_idempotent_batches() -> None:
    decoded = {name: list(kafka.decode(vectors()[name])) for name in vectors()}
    for name, number in [
        ("endtxn-abort", 0), ("endtxn-commit", 1), ("leaderchange", 2), ("snaphdr", 3), ("snapftr", 4),
        ("kraftver", 5), ("voters", 6),
    ]:  # fmt: skip
        (batch,) = decoded[name]
        assert batch.is_control
        assert [record.control_type for record in batch.records] == [number]
    (batch,) = decoded["v2-idem-wrap"]
    assert [record.sequence for record in batch.records] == [2147483647, 0]
    (batch,) = decoded["v2-lat"]
    assert [record.timestamp for record in batch.records] == [T + 100, T + 100]
    (batch,) = decoded["filter-0"]
    assert batch.delete_horizon == 0x018BD50BC7E8
    assert [(record.offset, record.timestamp, record.value) for record in batch.records] == [(102, T - 3, None)]
    (batch,) = decoded["filter-3"]
    assert (batch.records, batch.base_timestamp, batch.max_timestamp, batch.last_offset) == ([], -1, T + 9, 103)


@pytest.mark.parametrize("name", [n for n in vectors() if n[:3] in ("v0-", "v1-")])
def test_vectors_of_old_message_sets(name: str) -> None:
    records = [record for batch in kafka.decode(vectors()[name]) for record in batch.records]
    assert [(r.offset, r.key, r.value) for r in records] == [(o, k, v) for o, _, k, v, _ in FOUR[:3]]
    if name.startswith("v0"):
        assert {(r.timestamp, r.timestamp_type) for r in records} == {(None, kafka.NO_TYPE)}
    elif "lat" in name:
        assert {(r.timestamp, r.timestamp_type) for r in records} == {(T + 100, kafka.LOG_APPEND_TIME)}
    else:
        assert [r.timestamp for r in records] == [T, T + 5, T - 3]


def test_checksums_and_varints() -> None:
    assert kafka.crc32c(b"123456789") == 0xE3069283
    assert codecs.xxh32(b"") == 0x02CC5D05
    assert codecs.xxh32(b"Nobody inspects the spammish repetition") == 0xE2293B2F
    for number, text in [
        (0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"),
        (2147483647, "feffffff0f"), (-2147483648, "ffffffff0f"),
    ]:  # fmt: skip
        assert kafka.zigzag(number).hex() == text
        assert kafka.varint(bytes.fromhex(text), 0) == (number, len(text) // 2)
    assert kafka.varint(bytes.fromhex("8280808070"), 0) == (1, 5)  # bits beyond the 32nd are dropped
    for bad in ("", "80", "8080808080", "ffffffff8f00"):
        with pytest.raises(ValueError, match="varint"):
            kafka.varint(bytes.fromhex(bad), 0)
    for edge in (-(1 << 63), (1 << 63) - 1):
        assert kafka.varlong(kafka.zigzag(edge), 0) == (edge, 10)


def rewritten(batch: bytes, at: int, new: bytes) -> bytes:
    """A magic 2 batch with bytes replaced and its checksum put right."""
    batch = batch[:at] + new + batch[at + len(new) :]
    return batch[:17] + struct.pack(">I", kafka.crc32c(batch[21:])) + batch[21:]


@pytest.mark.parametrize(
    ("what", "at", "new"),
    [
        ("record count", 57, struct.pack(">i", -1)),
        ("record 4", 57, struct.pack(">i", 5)),  # one more than there are
        ("behind the last", 57, struct.pack(">i", 3)),
        ("codec 5", 21, struct.pack(">h", 5)),
        ("gzip", 21, struct.pack(">h", 1)),
        ("record 0", 61, b"\x3e"),  # its length one too large
        ("record 0", 61, b"\x3a"),
        ("record 0", 65, b"\x7e"),  # a key longer than the record
        ("headers", 79, b"\x01"),  # -1 headers
        ("without a name", 80, b"\x01"),
    ],
)
def test_wrong_batches_are_refused(what: str, at: int, new: bytes) -> None:
    good = vectors()["v2-none"]
    with pytest.raises(kafka.Bad, match=what) as caught:
        list(kafka.decode(good + rewritten(good, at, new)))
    assert caught.value.position == len(good)


def test_count_of_zero_hides_what_follows() -> None:
    (batch,) = kafka.decode(rewritten(vectors()["v2-gzip"], 57, bytes(4)))
    assert batch.records == []


@pytest.mark.parametrize("name", ["v2-none", "v2-zstd", "v1-gzip", "v0-lz4", "v1-none"])
def test_a_cut_log_gives_the_whole_batches_before_the_cut(name: str) -> None:
    good, data = list(kafka.decode(vectors()[name])), vectors()[name] * 2
    ends = [0, *(f[0] + f[1] for f in kafka.frames(data)[0])]
    for cut in range(len(data)):
        whole = max(index for index, end in enumerate(ends) if end <= cut)
        found = list(kafka.decode(data[:cut]))
        assert [b.records for b in found] == [b.records for b in (good * 2)[:whole]]
        assert kafka.frames(data[:cut])[1] == ends[whole]


def test_a_flipped_bit_under_the_checksum_is_noticed() -> None:
    for name in ("v2-none", "v0-none", "v1-gzip"):
        data = vectors()[name]
        start = 17 if name == "v2-none" else 12
        for position in range(start, len(data) if name == "v1-gzip" else start + 10):
            flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
            with pytest.raises(kafka.Bad):
                list(kafka.decode(flipped))
    (batch,) = kafka.headers(vectors()["v2-none"][:-1] + b"\x02", check_crc=False)
    assert not batch.crc_ok


def test_framing_ends() -> None:
    good = vectors()["v2-none"]
    assert kafka.frames(b"") == ([], 0, "ok")
    assert kafka.frames(good + bytes(500)) == ([(0, 121, 2)], 121, "zeros")
    assert kafka.frames(good + b"\1" * 17)[1:] == (121, "truncated")
    assert kafka.frames(good + bytes(8) + struct.pack(">i", 13) + b"\1" * 9)[1:] == (121, "bad length")
    with pytest.raises(kafka.Bad, match="byte 121: length"):
        list(kafka.decode(good + bytes(8) + struct.pack(">i", -1) + b"\1" * 9))
    with pytest.raises(kafka.Bad, match="magic 3"):
        list(kafka.decode(good[:16] + b"\3" + good[17:]))
    with pytest.raises(kafka.Bad, match="at least 61"):
        list(kafka.decode(bytes(8) + struct.pack(">i", 48) + good[12:60]))


@SLOW
@given(strategies.logs(magics=(2,)))
def test_random_logs_of_magic_2(sample: strategies.Sample) -> None:
    assert list(kafka.decode(sample.data)) == sample.batches


@SLOW
@given(strategies.logs(magics=(0, 1, 1, 2)))
def test_random_logs_of_mixed_magics(sample: strategies.Sample) -> None:
    assert list(kafka.decode(sample.data)) == sample.batches


@SLOW
@given(strategies.logs(magics=(0, 1, 2), largest=100), st.data())
def test_damaged_logs_raise_nothing_but_bad(sample: strategies.Sample, draw: st.DataObject) -> None:
    data = bytearray(sample.data)
    for position in draw.draw(st.lists(st.integers(0, max(len(data) - 1, 0)), max_size=3)) if data else []:
        data[position] = draw.draw(st.integers(0, 255))
    for check in (True, False):
        with contextlib.suppress(kafka.Bad):
            for batch in kafka.decode(bytes(data), check_crc=check):
                assert batch.position + batch.size <= len(data)


@SLOW
@given(st.binary(max_size=200_000) | st.integers(0, 200_000).map(lambda n: b"ab" * n), st.integers(1, 4))
def test_codecs_there_and_back(data: bytes, codec: int) -> None:
    for magic in (0, 1, 2):
        assert codecs.decompress(codec, codecs.compress(codec, data, magic), magic) == data


def test_lz4_header_checksum_is_the_old_bug_in_magic_0() -> None:
    assert codecs.compress(3, b"", magic=0)[6] == 0x1A
    assert codecs.compress(3, b"", magic=1)[6] == 0x82
    with pytest.raises(codecs.CodecError, match="header checksum 1a"):
        codecs.decompress(3, codecs.compress(3, b"", magic=0), magic=1)
