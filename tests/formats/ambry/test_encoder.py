"""Rows of `records` made into messages by columns: byte for byte what `encode_row` makes of each of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import rawlog
from rawlog.formats.ambry import keys
from rawlog.formats.ambry import writer as encoder
from rawlog.formats.ambry.kernels.texts import HEADERS
from rawlog.formats.ambry.log import decode, scan
from rawlog.formats.ambry.store.rewrite import StoreWriter
from rawlog.formats.ambry.writer import WriteOptions, encode_batch, encode_row
from rawlog.io.output import Folder
from rawlog.model.errors import CorruptError, EncodeError, OptionError
from rawlog.model.format import File, Want
from rawlog.model.table import RECORDS
from tests.data.ambry_stores import STORES, small_messages, store_path

UUID = "6ba7b812-9dad-11d1-80b4-00c04fd430c8"
BLOB_IDS = [keys.make(version, 9, UUID, flags=0, account_id=101, container_id=7) for version in range(1, 8)]

numbers = st.one_of(
    st.integers(-(1 << 15), (1 << 15) - 1),
    st.integers(0, 1 << 62),
    st.sampled_from([-1, 0, 32767, 32768, (1 << 63) - 1, -(1 << 63), 1 << 63]),
).map(lambda number: str(number).encode())
words = st.sampled_from(
    [b"true", b"false", b"PUT", b"DELETE", b"TTL_UPDATE", b"UNDELETE", b"DataBlob", b"MetadataBlob", b"", b"text/plain"]
)
odd_words = st.sampled_from([b" 5", b"+7", b"1_0", b"-", b"007", b"\xff", b"put", b"TRUE"])
header = st.builds(
    lambda name, value: {"key": name, "value": value},
    st.one_of(st.sampled_from([name for name, _, _, _ in HEADERS]), st.sampled_from(["", "kin", "kinds", "é"])),
    st.one_of(st.none(), numbers, words, odd_words, st.binary(max_size=40)),
)
kind = st.sampled_from([None, b"PUT", b"PUT", b"DELETE", b"TTL_UPDATE", b"UNDELETE"])


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    headers = draw(st.none() | st.lists(header, max_size=4))
    given = draw(kind)
    if given is not None:
        headers = [{"key": "kind", "value": given}, *(headers or [])]
    return {
        "key": draw(
            st.one_of(
                st.none(),
                st.binary(max_size=100),
                st.sampled_from(BLOB_IDS),
                st.sampled_from(BLOB_IDS).map(lambda key: key[:-1]),
                st.sampled_from(BLOB_IDS).map(lambda key: key + b"x"),
                st.tuples(st.sampled_from(BLOB_IDS), st.integers(0, 30), st.integers(0, 255)).map(
                    lambda changed: changed[0][: changed[1]] + bytes([changed[2]]) + changed[0][changed[1] + 1 :]
                ),
            )
        ),
        "value": draw(st.none() | st.binary(max_size=1200)),
        "topic": draw(st.sampled_from([None, "", "orders", "101/7", "99999/1", "-1/-1", "ü/é", "t" * 70])),
        "partition": draw(st.none() | st.integers(-(1 << 31), (1 << 31) - 1)),
        "offset": draw(st.none() | st.integers(-(1 << 63), (1 << 63) - 1)),
        "timestamp": draw(st.none() | st.integers(-(1 << 50), 1 << 55)),
        "timestampType": draw(st.sampled_from([None, 0, 1])),
        "headers": headers,
    }


choices = st.builds(
    WriteOptions,
    partition=st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    account=st.none() | st.integers(-(1 << 15), (1 << 15) - 1),
    container=st.none() | st.integers(-(1 << 15), (1 << 15) - 1),
    service=st.sampled_from(["rawlog", "", "sérvice" * 20]),
)


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows), schema=RECORDS.schema)


def one_by_one(rows: list[dict[str, Any]], first: int, choice: WriteOptions) -> list[bytes] | str:
    made = []
    for number, row in enumerate(rows):
        try:
            made.append(encode_row(row, first + number, choice))
        except EncodeError as error:
            return str(error)
    return made


def by_columns(batch: pa.RecordBatch, first: int, choice: WriteOptions) -> list[bytes] | str:
    made = []
    try:
        for frames in encode_batch(batch, first, choice):
            spans = zip(frames.starts.tolist(), frames.stops.tolist(), strict=True)
            made += [frames.data[start:stop].tobytes() for start, stop in spans]
    except EncodeError as error:
        return str(error)
    return made


@given(st.lists(records(), min_size=1, max_size=12), st.integers(0, 10_000), choices, st.integers(0, 3))
def test_columns_give_the_bytes_of_row_by_row(
    rows: list[dict[str, Any]], first: int, choice: WriteOptions, skipped: int
) -> None:
    batch = batch_of(*rows[:1] * skipped, *rows).slice(skipped)
    assert by_columns(batch, first, choice) == one_by_one(rows, first, choice)


def test_rows_of_real_stores_give_the_bytes_of_row_by_row() -> None:
    for name in STORES:
        for batch in rawlog.read(store_path(name)).to_batches(max_chunksize=100):
            times = batch.column("timestamp").cast(pa.int64()).to_pylist()
            rows = [row | {"timestamp": times[number]} for number, row in enumerate(batch.to_pylist())]
            made = by_columns(batch, 0, WriteOptions())
            assert made == one_by_one(rows, 0, WriteOptions())
            assert isinstance(made, list)


def test_only_what_is_said_oddly_is_made_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def counted(row: dict[str, Any], number: int, choice: WriteOptions) -> bytes:
        seen.append(number)
        return encode_row(row, number, choice)

    monkeypatch.setattr(encoder, "encode_row", counted)
    rows = [record(headers=[{"key": "blob_size", "value": value}]) for value in (b"7", b" 7", None, b"-1", b"+7", b"")]
    rows[-1]["headers"].append({"key": "blob_size", "value": b"8"})
    assert by_columns(batch_of(*rows), 10, WriteOptions()) == one_by_one(rows, 10, WriteOptions())
    assert seen == [11, 14, 15]
    seen.clear()
    for batch in rawlog.read(store_path("store-ops")).to_batches():
        by_columns(batch, 0, WriteOptions())
    assert seen == []


def record(**changes: Any) -> dict[str, Any]:
    return dict.fromkeys(RECORDS.names) | {"value": b"x", "headers": []} | changes


def test_parts_are_cut_by_rows_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one part ends and the next begins leaves no trace: numbers go on, and no row is lost."""
    rows = [record(value=bytes(size)) for size in (10, 0, 500, 90, 20, 0, 0, 0, 0, 30)]
    whole = by_columns(batch_of(*rows), 5, WriteOptions())
    monkeypatch.setattr(encoder, "PART_ROWS", 3)
    monkeypatch.setattr(encoder, "PART_BYTES", 100)
    parts = list(encode_batch(batch_of(*rows), 5, WriteOptions()))
    assert [len(frames) for frames in parts] == [2, 1, 1, 3, 3]
    assert by_columns(batch_of(*rows), 5, WriteOptions()) == whole == one_by_one(rows, 5, WriteOptions())


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"kind": b"GET"}, "row 1: header kind 'GET': TTL_UPDATE, PUT, DELETE, UNDELETE expected"),
        ({"blob_type": b"Blob"}, "row 1: header blob_type 'Blob': DataBlob, MetadataBlob expected"),
        ({"time_to_live": b"long"}, "row 1: header time_to_live is not a number"),
        ({"account_id": b"40000"}, "row 1: account 40000 or container -1 does not fit into 2 bytes"),
        ({"life_version": b"-1"}, "row 1: life version -1: 0 or more expected"),
        ({"life_version": b"40000"}, "row 1: 40000 does not fit into 2 bytes"),
        ({"blob_size": b"9223372036854775808"}, "row 1: 9223372036854775808 does not fit into 8 bytes"),
    ],
)
def test_what_no_message_can_hold_is_an_error_with_its_row(
    headers: dict[str, bytes], message: str, tmp_path: Path
) -> None:
    """Once an account beyond two bytes came out as OverflowError, a life version below zero as AssertionError."""
    bad = record(headers=[{"key": name, "value": value} for name, value in headers.items()])
    table = pa.Table.from_batches([batch_of(record(), bad)])
    for target in (tmp_path / "0_0_log", f"{tmp_path}/store/"):
        with pytest.raises(EncodeError) as caught:
            rawlog.write(target, table, format="ambry", accept_loss=RECORDS.names)
        assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "bad",
    [{"account": "32768"}, {"container": "x"}, {"partition": str(1 << 63)}, {"capacity": "18"}, {"accounts": "1"}],
)
def test_invalid_options_are_refused(bad: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        WriteOptions.from_options(bad)


def test_a_segment_that_is_full_names_the_row() -> None:
    batch, size = batch_of(*[record()] * 4), len(encode_row(record(), 0, WriteOptions()))
    options = {"capacity": str(18 + 5 * size)}
    assert len(b"".join(encoder.encode([batch, batch.slice(0, 1)], options))) == 18 + 5 * size
    with pytest.raises(EncodeError, match="^row 5: past the segment's capacity"):
        list(encoder.encode([batch, batch], options))


# Losses ------------------------------------------------------------------------------------------------------------


@given(st.lists(records(), min_size=1, max_size=8), st.sampled_from([100, 700, 2000, 1 << 30]))
@example([record(headers=None), record(headers=[]), record(offset=18), record(value=None)], 700)
def test_losses_are_what_differs_once_it_was_written_and_read(rows: list[dict[str, Any]], capacity: int) -> None:
    made = one_by_one(rows, 0, WriteOptions())
    judge = encoder.losses({"capacity": str(capacity)})
    if isinstance(made, str):
        with pytest.raises(EncodeError):
            judge(batch_of(*rows))
        return
    [again] = decode(scan(np.frombuffer(b"".join(made), np.uint8), 0), Want(RECORDS, File("", 0)))
    times = again.column("timestamp").cast(pa.int64()).to_pylist()
    wanted, start, end = [], 0, 18
    for number, (row, read, message) in enumerate(zip(rows, again.to_pylist(), made, strict=True)):
        if end + len(message) > capacity:
            start, end = start + end, 18
        read |= {"timestamp": times[number], "offset": None if row["offset"] is None else start + end}
        end += len(message)
        wanted.append({name: row[name] != read[name] for name in RECORDS.names})
    half = len(rows) // 2
    parts = [judge(batch_of(*part)) for part in (rows[:half], rows[half:]) if part]
    for name in RECORDS.names:
        assert np.concatenate([part[name] for part in parts]).tolist() == [row[name] for row in wanted], name


# Whole stores ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("capacity", [None, 2048, 1100, 1 << 20])
def test_many_messages_at_once_give_the_store_of_one_by_one(capacity: int | None, tmp_path: Path) -> None:
    messages = small_messages()
    for name in ("single", "pairs", "all"):
        (tmp_path / name).mkdir()
    single, pairs, every = (
        StoreWriter(Folder(tmp_path / name), capacity=capacity, incarnation_id=UUID)
        for name in ("single", "pairs", "all")
    )
    places = [single.append(message) for message in messages]
    for start in range(0, len(messages), 2):
        pairs.extend(np.frombuffer(b"".join(messages[start : start + 2]), np.uint8))
    every.extend(np.frombuffer(b"".join(messages), np.uint8))
    every.extend(np.empty(0, np.uint8))
    for writer in (single, pairs, every):
        writer.close()
    files = {path.name: path.read_bytes() for path in (tmp_path / "single").iterdir()}
    for (segment, at), message in zip(places, messages, strict=True):
        log = files[f"{segment}_log" if segment else "log_current"]
        assert log[at : at + len(message)] == message
    for name in ("pairs", "all"):
        assert {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} == files


def test_messages_that_are_not_sound_are_not_written(tmp_path: Path) -> None:
    one, other = small_messages()[:2]
    writer = StoreWriter(Folder(tmp_path), capacity=2048)
    for bad in (one + other[:-1], one + other + b"\1", one[:-1] + bytes([one[-1] ^ 1]) + other, b"\0\3", one[:40]):
        with pytest.raises(CorruptError):
            writer.extend(np.frombuffer(bad, np.uint8))
        with pytest.raises(CorruptError):
            writer.append(bad)
    for two in (one + other, b""):
        with pytest.raises(CorruptError, match="not one whole message"):
            writer.append(two)
    with pytest.raises(EncodeError, match="in segments of 100"):
        StoreWriter(Folder(tmp_path), capacity=100).extend(np.frombuffer(one + other, np.uint8))
    assert list(tmp_path.iterdir()) == []
