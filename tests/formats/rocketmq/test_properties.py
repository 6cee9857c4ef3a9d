"""Keys and headers of any kind survive as properties of messages, and those that a store says itself are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.formats.rocketmq.writer import MARK, encode, restore
from rawlog.model.errors import EncodeError
from rawlog.model.table import RECORDS

NAMES = st.sampled_from(["KEYS", "TAGS", "", "a", MARK.decode(), "__CRC32#", "x\x01y"]) | st.text(max_size=4)
VALUES = st.none() | st.sampled_from([b"", b"K", b"\x02", b"k", b"\xff\xfe"]) | st.binary(max_size=5)


def rows_of(pairs: list[tuple[bytes | None, list[tuple[str, bytes | None]] | None]]) -> pa.RecordBatch:
    rows = [
        {
            "key": key,
            "headers": None if headers is None else [{"key": name, "value": value} for name, value in headers],
        }
        for key, headers in pairs
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORDS.schema)


def read_again(batch: pa.RecordBatch) -> pa.RecordBatch:
    """As the reader does it: every property a header, the last KEYS the key."""
    found: list[Any] = []
    for text in encode(batch.column("key"), batch.column("headers")).to_pylist():
        headers = [tuple(pair.split(b"\x01", 1)) for pair in text.split(b"\x02") if pair]
        keys = [value for name, value in headers if name == b"KEYS"]
        found.append((keys[-1] if keys else None, [(name.decode(), value) for name, value in headers]))
    return rows_of(found)


@given(st.lists(st.tuples(VALUES, st.lists(st.tuples(NAMES, VALUES), max_size=4)), max_size=6), st.data())
def test_any_key_and_headers_come_back(pairs: list[Any], data: Any) -> None:
    batch = rows_of([(None, []), *pairs])
    start = data.draw(st.integers(0, batch.num_rows))
    batch = batch.slice(start)
    again = restore(read_again(batch))
    assert again.column("key").to_pylist() == batch.column("key").to_pylist()
    assert again.column("headers").to_pylist() == batch.column("headers").to_pylist()
    again.validate(full=True)


def test_what_a_store_says_itself_gets_no_mark() -> None:
    batch = rows_of([(None, [("TAGS", b"a")]), (b"k", [("KEYS", b"k"), ("UNIQ_KEY", b"u")]), (None, None)])
    texts = encode(batch.column("key"), batch.column("headers")).to_pylist()
    assert texts == [b"TAGS\x01a\x02", b"KEYS\x01k\x02UNIQ_KEY\x01u\x02", b""]
    assert restore(batch) is batch


def test_a_key_is_one_that_a_broker_finds() -> None:
    batch = rows_of([(b"k", [("a", b"1")]), (b"", [])])
    first, second = encode(batch.column("key"), batch.column("headers")).to_pylist()
    assert first == b"a\x011\x02KEYS\x01k\x02__RAWLOG\x01K\x02"
    assert second == b'__RAWLOG\x01{"key":"","headers":[]}\x02'


def test_a_header_of_the_same_name_that_is_not_ours_stays() -> None:
    batch = rows_of(
        [(b"k", [(MARK.decode(), b"K")]), (b"k", [(MARK.decode(), b"[]")]), (None, [(MARK.decode(), None)])]
    )
    assert restore(batch).to_pylist() == batch.to_pylist()


def test_a_header_without_a_name_is_refused() -> None:
    with pytest.raises(EncodeError, match="row 1: a header without a name"):
        batch = pa.RecordBatch.from_pylist([{}, {"headers": [{"key": None, "value": b"x"}]}], schema=RECORDS.schema)
        encode(batch.column("key"), batch.column("headers"))


def test_the_checksum_of_an_entry_is_no_header(tmp_path: Path) -> None:
    rows = [{"key": b"k", "value": b"v", "topic": "t", "partition": 0, "offset": 0, "timestamp": 0, "timestampType": 0,
             "headers": []}]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=RECORDS.schema)
    rawlog.write(tmp_path / "store", table, format="rocketmq", crc_property="true", commitlog_size=4096, derived="none")
    found = rawlog.read(tmp_path / "store").combine_chunks().to_batches()[0]
    assert [pair["key"] for pair in found.column("headers")[0].as_py()] == ["KEYS", "__RAWLOG", "__CRC32#"]
    assert restore(found).column("headers").to_pylist() == [[]]
