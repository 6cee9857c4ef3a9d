"""The record kernels and `decode_columns` against the plain reference decoder."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.formats.kafka.log.heads import take
from rawlog.formats.kafka.log.kernels.heads import scan_batches
from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.formats.kafka.log.records import (
    COLUMNS,
    Columns,
    decode_columns,
    decode_legacy,
    decode_plain,
    milliseconds,
    starts_plain,
)
from rawlog.kernels import byte_view
from rawlog.model.errors import (
    CorruptError,
    DataError,
    RawlogError,
    UnsupportedError,
)
from rawlog.model.status import Status
from rawlog.model.text import java_text
from tests.data.golden import vectors
from tests.reference import kafka as reference
from tests.reference.strategies import Sample, logs

T = 1_700_000_000_000
LATEST_MS = (1 << 63) // 1000
STATUSES = {"ok": Status.OK, "truncated": Status.TRUNCATED, "bad length": Status.BAD_LENGTH}


def scan(data: bytes) -> tuple[np.ndarray, np.ndarray, int, Status]:
    room = len(data) // 26 + 1
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    count, reached, status = scan_batches(byte_view(data), 0, starts, stops)
    return starts[:count], stops[:count], int(reached), Status(status)


def decode(data: bytes, columns: frozenset[str] = COLUMNS, check_crc: bool = True, **options: Any) -> Columns:
    starts, stops, _, _ = scan(data)
    if not check_crc:
        head = take(byte_view(data), starts, stops, check_crc=False)
        if head.sound.all():
            options["head"] = head
    return decode_columns(byte_view(data), starts, stops, columns, **options)


def rows(columns: Columns) -> list[tuple[Any, ...]]:
    """The decoded columns as the reference tells records."""
    for array in columns.arrays.values():
        array.validate(full=True)
        assert len(array) == columns.count
    arrays = columns.arrays
    headers = [[(pair["key"], pair["value"]) for pair in row] for row in arrays["headers"].to_pylist()]
    times = arrays["timestamp"].cast(pa.int64()).to_pylist()
    return list(
        zip(
            arrays["offset"].to_pylist(),
            times,
            arrays["timestampType"].to_pylist(),
            arrays["key"].to_pylist(),
            arrays["value"].to_pylist(),
            headers,
            strict=True,
        )
    )


def micros(time: int | None) -> int | None:
    return None if time is None or abs(time) > LATEST_MS else time * 1000


def expected(batches: list[reference.Batch]) -> list[tuple[Any, ...]]:
    return [
        (r.offset, micros(r.timestamp), r.timestamp_type, r.key, r.value, r.headers)
        for batch in batches
        for r in batch.records
    ]


@given(log=logs())
def test_columns_equal_the_reference(log: Sample) -> None:
    columns = decode(log.data)
    assert rows(columns) == expected(log.batches)
    assert columns.counts.tolist() == [len(batch.records) for batch in log.batches]
    assert columns.batch_index.tolist() == [n for n, batch in enumerate(log.batches) for _ in batch.records]


@given(log=logs(largest=200), wanted=st.sets(st.sampled_from(sorted(COLUMNS))))
def test_pruned_columns_equal_those_of_the_whole(log: Sample, wanted: set[str]) -> None:
    whole, part = decode(log.data), decode(log.data, frozenset(wanted))
    assert set(part.arrays) == wanted
    assert part.count == whole.count
    assert all(part.arrays[name].equals(whole.arrays[name]) for name in wanted)


@given(log=logs(magics=(0, 1, 2), largest=200), cut=st.integers(0, 400), garbage=st.binary(max_size=40))
def test_scan_equals_the_reference(log: Sample, cut: int, garbage: bytes) -> None:
    data = log.data[: max(len(log.data) - cut, 0)] + garbage
    frames, reached, why = reference.frames(data)
    starts, stops, position, status = scan(data)
    assert list(zip(starts.tolist(), (stops - starts).tolist(), strict=True)) == [frame[:2] for frame in frames]
    assert position == reached
    if why != "zeros":
        assert status == STATUSES[why]


def stated(data: bytes, check_crc: bool) -> tuple[list[tuple[Any, ...]] | None, int]:
    """What the reference reads, or where it finds damage."""
    batches = []
    try:
        for batch in reference.decode(data, check_crc):
            if any("\ufffd" in name for r in batch.records for name, _ in r.headers):
                return None, -1  # a broken name, or one that holds this very character
            batches.append(batch)
    except reference.Bad as error:
        return None, error.position
    return expected(batches), -1


@given(log=logs(codec_ids=(0,), max_batches=3, largest=100), draw=st.data())
def test_damaged_records_fail_exactly_where_the_reference_fails(log: Sample, draw: st.DataObject) -> None:
    data = bytearray(log.data)
    for _ in range(draw.draw(st.integers(1, 3)) if data else 0):
        batch = draw.draw(st.sampled_from(log.batches))
        # From the attributes on: frames stay what they are.
        at = draw.draw(st.integers(batch.position + BATCH.at("attributes"), batch.position + batch.size - 1))
        data[at] = draw.draw(st.integers(0, 255))
    rows_stated, position = stated(bytes(data), check_crc=False)
    try:
        found = rows(decode(bytes(data), check_crc=False))
    except DataError as error:
        assert rows_stated is None
        if position >= 0:
            assert error.position == position, error  # noqa: PT017
    else:
        if position >= 0 or rows_stated is not None:
            assert found == rows_stated


@given(log=logs(max_batches=2, largest=100), draw=st.data())
def test_any_bytes_only_raise_our_errors(log: Sample, draw: st.DataObject) -> None:
    data = bytearray(log.data)
    for _ in range(draw.draw(st.integers(1, 6)) if data else 0):
        data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    with contextlib.suppress(RawlogError):
        rows(decode(bytes(data), check_crc=draw.draw(st.booleans()), limit=1 << 16))


@given(log=logs(codec_ids=(0,), max_batches=3, largest=50))
def test_flipped_bit_in_a_batch_is_found_by_its_checksum(log: Sample) -> None:
    for batch in log.batches:
        data = bytearray(log.data)
        data[batch.position + batch.size - 1] ^= 1
        with pytest.raises(CorruptError, match="crc") as caught:
            decode(bytes(data))
        assert caught.value.position == batch.position


def batch(*records: bytes, **fields: Any) -> bytes:
    fields.setdefault("record_count", len(records))
    return reference.encode_batch(b"".join(records), base_timestamp=T, max_timestamp=T + 9, **fields)


GOOD = reference.encode_record(0, 0, b"k", b"v", [("h", b"1")])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (batch(GOOD, record_count=2), "record count 2, but only|1 records, 2 declared"),
        (batch(GOOD, GOOD, record_count=1), "bytes after the last record"),
        (batch(GOOD, record_count=-1), "record count -1"),
        (batch(GOOD, record_count=0x7FFFFFFF), "record count 2,147,483,647, but only"),
        (batch(GOOD[:-1]), "record 0 of 1"),
        (batch(bytes([GOOD[0] - 2]) + GOOD[1:]), "record 0 of 1"),
        (batch(GOOD, b"\xff\xff\xff\xff\xff\x0f\x00\x00\x00"), "record 1 of 2.*does not end"),
        (batch(bytes.fromhex("0e000000 0101 7f 00 00".replace(" ", ""))), "record 0 of 1.*header count"),
        (batch(bytes.fromhex("10000000 0101 02 01 00".replace(" ", ""))), "record 0 of 1.*length that does not fit"),
        (batch(GOOD, codec=0)[:40] + b"", None),
    ],
)
def test_what_kafkas_parser_refuses_is_refused(data: bytes, message: str | None) -> None:
    if message is None:
        assert decode(data).count == 0  # an unfinished batch is no frame
        return
    good = batch(GOOD)
    with pytest.raises(CorruptError, match=message) as caught:
        decode(good + data + good)
    assert caught.value.position == len(good)
    assert caught.value.layout == BATCH.name


def test_codec_and_magic_that_do_not_exist() -> None:
    data = bytearray(batch(GOOD))
    data[BATCH.after("attributes") - 1] = 7
    with pytest.raises(CorruptError, match="codec 7"):
        decode(bytes(data), check_crc=False)
    data[BATCH.at("magic")] = 9
    with pytest.raises(CorruptError, match="magic"):
        decode(bytes(data), check_crc=False)
    with pytest.raises(UnsupportedError, match="magic 1"):
        decode(reference.encode_entry(1, 0, b"key", b"value"))


def test_empty_batch_is_not_looked_into() -> None:
    data = batch(b"whatever", record_count=0) + batch(b"\xff", record_count=0, codec=4) + batch(GOOD)
    assert decode(data).counts.tolist() == [0, 0, 1]


def test_log_append_time_is_every_records_time() -> None:
    records = [reference.encode_record(n, n, None, b"") for n in range(3)]
    data = reference.encode_batch(
        b"".join(records), record_count=3, base_timestamp=T, max_timestamp=T + 100, timestamp_type=1
    )
    arrays = decode(data).arrays
    assert arrays["timestamp"].cast(pa.int64()).to_pylist() == [(T + 100) * 1000] * 3
    assert arrays["timestampType"].to_pylist() == [1, 1, 1]


@pytest.mark.parametrize("base", [(1 << 63) - 1, -(1 << 63), LATEST_MS + 1, -LATEST_MS - 1])
def test_times_beyond_microseconds_are_null_and_never_wrapped(base: int) -> None:
    """Brokers take any time. Such records were an error, and `cat` ended there."""
    data = reference.encode_batch(GOOD, record_count=1, base_timestamp=base)
    found = decode(data + batch(GOOD))
    assert found.arrays["timestamp"].cast(pa.int64()).to_pylist() == [None, T * 1000]
    assert found.far == 1
    assert milliseconds(found.arrays["timestamp"]).tolist() == [base, T]


def test_header_key_that_is_not_text_reads_as_in_java() -> None:
    bad = GOOD.replace(b"h", b"\xff")
    found = decode(batch(GOOD) + batch(GOOD, bad))
    assert [row[0]["key"] for row in found.arrays["headers"].to_pylist()] == ["h", "h", "\ufffd"]
    assert found.replaced.tolist() == [2]
    assert decode(batch(bad), COLUMNS - {"headers"}).replaced.size == 0


# What `new String(bytes, UTF_8)` of OpenJDK 17 gives.
JAVA = {
    "ff": "\ufffd",
    "c080": "\ufffd\ufffd",
    "eda080": "\ufffd",
    "eda0": "\ufffd",
    "edbfbfedb080": "\ufffd\ufffd",
    "ed5d": "\ufffd]",
    "f4908080": "\ufffd\ufffd\ufffd\ufffd",
    "f0808080": "\ufffd\ufffd\ufffd\ufffd",
    "e08080": "\ufffd\ufffd\ufffd",
    "e282": "\ufffd",
    "f09f98": "\ufffd",
    "61e22862": "a\ufffd(b",
    "73eda473": "s\ufffds",
    "edbf30c19006": "\ufffd0\ufffd\ufffd\x06",
}


@pytest.mark.parametrize("raw", JAVA)
def test_malformed_text_is_what_java_makes_of_it(raw: str) -> None:
    assert java_text(bytes.fromhex(raw)) == JAVA[raw]


@given(
    st.lists(
        st.sampled_from(
            (*range(0x7E, 0x82), 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xE0, 0xE2, 0xED, 0xF0, 0xF4, 0xF5, 0xFF)
        )
    )
)
def test_malformed_text_equals_the_reference(raw: list[int]) -> None:
    assert java_text(bytes(raw)) == reference.java_string(bytes(raw))


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_bomb_is_stopped_at_the_limit(codec: int) -> None:
    data = batch(reference.encode_record(0, 0, None, bytes(1 << 20)), codec=codec)
    with pytest.raises(CorruptError, match="limit of 100,000 bytes"):
        decode(data, limit=100_000)
    assert decode(data, limit=(1 << 20) + 100).count == 1


def test_vectors_made_by_kafkas_own_classes() -> None:
    names = [name for name in vectors() if name.startswith("v2-")]
    assert names
    for name in names:
        data = vectors()[name]
        assert rows(decode(data)) == expected(list(reference.decode(data))), name


TWIN = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import numba
assert numba.config.DISABLE_JIT
from rawlog.model.errors import DataError
from rawlog.formats.kafka.log.records import COLUMNS, decode_columns
answers = []
for data, starts, stops in pickle.load(sys.stdin.buffer):
    try:
        columns = decode_columns(data, starts, stops, COLUMNS)
        answers.append({name: array.to_pylist() for name, array in columns.arrays.items()})
    except DataError as error:
        answers.append((type(error).__name__, str(error)))
sys.stdout.buffer.write(pickle.dumps(answers))
"""


def test_same_rows_and_errors_with_the_compiler_off() -> None:
    """One process with plain Python kernels takes many logs, whole and damaged."""
    import os
    import pickle
    import random

    cases: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    @given(log=logs(max_batches=3, largest=300))
    def collect(log: Sample) -> None:
        chance = random.Random(len(log.data))
        for damage in range(3):
            data = bytearray(log.data)
            for _ in range(damage if data else 0):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
            starts, stops, _, _ = scan(bytes(data))
            cases.append((np.frombuffer(bytes(data), np.uint8), starts, stops))

    collect()
    source = str(Path(sys.modules["rawlog"].__file__ or "").parents[1])
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", TWIN, source],
        input=pickle.dumps(cases),
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()
    for (data, starts, stops), answer in zip(cases, pickle.loads(result.stdout), strict=True):
        try:
            columns = decode_columns(data, starts, stops, COLUMNS)
            assert answer == {name: array.to_pylist() for name, array in columns.arrays.items()}
        except DataError as error:
            assert answer == (type(error).__name__, str(error))  # noqa: PT017


@given(log=logs(magics=(0, 1)), place=st.integers(0), flip=st.booleans())
def test_the_short_way_through_plain_entries_is_the_long_way(log: Sample, place: int, flip: bool) -> None:
    """It goes as far as entries are uncompressed and sound, and gives what the general way gives for those."""
    data = bytearray(log.data)
    if flip and data:
        data[place % len(data)] ^= 0x10
    starts, stops, _, _ = scan(bytes(data))
    if not starts_plain(byte_view(data), starts):
        return
    found = decode_plain(byte_view(data), starts, stops, COLUMNS)
    head = take(byte_view(data), starts, stops)
    plain = head.sound & (head.codec == 0) & (head["magic"] < 2)
    assert found.count <= (len(plain) if plain.all() else int(np.argmin(plain)))
    options = {"limit": 1 << 28, "total": 1 << 28}
    if found.count:
        front = (starts[: found.count], stops[: found.count])
        whole = decode_legacy(byte_view(data), *front, COLUMNS, head=head.slice(0, found.count), **options)
        for name, array in whole.arrays.items():
            assert found.arrays[name].equals(array), name
            found.arrays[name].validate(full=True)
    if found.count < len(plain) and plain[found.count]:  # sound outside, so that only its content can have stopped it
        one = slice(found.count, found.count + 1)
        with pytest.raises(CorruptError):
            decode_legacy(
                byte_view(data), starts[one], stops[one], COLUMNS, head=head.slice(one.start, one.stop), **options
            )
