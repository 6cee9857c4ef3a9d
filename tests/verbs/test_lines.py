"""JSON lines read at once are what they are when read a value at a time, or are left to that."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.lakes.sources import batch_of, block_at_once, read_lines, sound_rows
from rawlog.model.table import RECORDS
from rawlog.reading import render
from rawlog.registry import table_named


def ignore(names: list[str]) -> None:
    """No check of names."""


def written(batch: pa.RecordBatch) -> bytes:
    """The lines that `convert` writes, without the last line's end."""
    return bytes(render.json_lines(RECORDS.schema).render(batch)).removesuffix(b"\n")


def block_by_value(block: bytes) -> pa.RecordBatch | None:
    """The rows of some lines, a value at a time; ValueError if one is no row."""
    found, fault = sound_rows(block, 0)
    if fault is not None:
        raise fault
    return batch_of(found, RECORDS, ignore)


def by_value(block: bytes) -> pa.RecordBatch | None:
    """What the slow way says; None for an error too."""
    try:
        return block_by_value(block)
    except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException):
        return None


data = st.none() | st.binary(max_size=20) | st.text(max_size=8).map(str.encode)
rows = st.fixed_dictionaries(
    {
        "key": data,
        "value": data,
        "topic": st.none() | st.text(max_size=5),
        "partition": st.none() | st.integers(-(1 << 31), (1 << 31) - 1),
        "offset": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "timestamp": st.none() | st.integers(-(1 << 50), 1 << 55),
        "timestampType": st.none() | st.integers(0, 1),
        "headers": st.none() | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": data}), max_size=3),
    }
)


@given(st.lists(rows, min_size=1, max_size=20))
def test_what_convert_writes_is_read_at_once(given: list[dict[str, Any]]) -> None:
    """Null, empty, text and bytes in one column; headers in order, with duplicates and null values; all of 64 bits."""
    whole = pa.RecordBatch.from_pylist(given, schema=RECORDS.schema)
    block = written(whole)
    found = block_at_once(block, RECORDS, ignore)
    assert found is not None
    found.validate(full=True)
    assert found.equals(whole)
    assert found.equals(block_by_value(block))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.just("2024-09-11T09:12:23.832Z"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["base64", "key", "value", "x"]), inner, max_size=3)
        | st.fixed_dictionaries({"base64": st.sampled_from(["", "AA==", "AAA", "A===", "====", "QUJD", "QUJ\n"])})
    ),
    max_leaves=6,
)


@given(st.lists(st.dictionaries(st.sampled_from([*RECORDS.names, "x"]), values, max_size=4), max_size=4))
def test_what_is_read_at_once_is_never_anything_else(given: list[dict[str, Any]]) -> None:
    block = b"\n".join(json.dumps(row).encode() for row in given)
    found = block_at_once(block, RECORDS, ignore)
    if found is not None:
        assert found.equals(by_value(block))


@given(st.lists(rows, min_size=1, max_size=4), st.data())
def test_damage_is_no_row(given: list[dict[str, Any]], draw: st.DataObject) -> None:
    block = bytearray(written(pa.RecordBatch.from_pylist(given, schema=RECORDS.schema)))
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, len(block) - 1))
        block[at : at + draw.draw(st.integers(0, 2))] = draw.draw(
            st.sampled_from([b"", b"\n", b"}", b"{", b'"', b"\\", b"0", b"\xff"])
        )
    found = block_at_once(bytes(block), RECORDS, ignore)
    if found is not None:
        assert found.equals(by_value(bytes(block)))


@pytest.mark.parametrize(
    "block",
    [
        b'{"offset":1}{"offset":2}',
        b'{"offset":1}\n\n{"offset":2}',
        b'{"offset":1}\r\n{"offset":2}',
        b'{"offset":1.0}',
        b'{"timestamp":"2024-09-11T09:12:23"}',
        b'{"timestamp":"-2h"}',
        b'{"key":"\xff"}',
        b'{"\xffkey":1}',
        b'{"x":[-Inf],"offset":1}',
        b'{"key":"\\ud800"}',
        b'{"key":{"base64":"AAA"}}',
        b'{"key":{"base64":"AA==","x":1}}',
        b'{"topic":{"base64":"AA=="}}',
        b'{"base64":"AA=="}',
        b'{"key":"a","key":"b"}',
        b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"headers":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"",
        b"5",
    ],
)
def test_what_may_come_out_otherwise_is_left_to_the_slow_way(block: bytes) -> None:
    assert block_at_once(block, RECORDS, ignore) is None


def test_values_nested_too_deeply_are_an_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        block_by_value(b'{"headers":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


def test_text_that_looks_like_bytes_is_text() -> None:
    row = {"key": b'{"base64":"AA=="}', "value": b'\\{"base64"', "topic": "base64", "headers": []}
    whole = pa.RecordBatch.from_pylist([row, row | {"value": b"\xff"}], schema=RECORDS.schema)
    found = block_at_once(written(whole), RECORDS, ignore)
    assert found is not None
    assert found.equals(whole)


def test_lines_longer_than_a_block_are_put_together() -> None:
    long = base64.b64encode(bytes(range(256)) * 30_000).decode()
    text = "".join(f'{{"offset":{number},"value":{{"base64":"{long}"}}}}\n' for number in range(2)) + '{"offset":9}'
    batches = list(read_lines(io.BytesIO(text.encode()), RECORDS, ignore))
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [0, 1, 9]
    assert {len(value.as_py() or b"") for batch in batches for value in batch.column("value")} == {256 * 30_000, 0}


def test_the_number_of_a_broken_line_counts_lines_and_not_blocks() -> None:
    """After a line that is longer than several blocks, a broken one had a number that was too high."""
    text = f'{{"value":"{"x" * (9 << 20)}"}}\nbroken\n'
    with pytest.raises(ValueError, match="line 2, column 1"):
        list(read_lines(io.BytesIO(text.encode()), RECORDS, ignore))


def test_a_table_with_maps_is_left_to_the_slow_way() -> None:
    assert block_at_once(b'{"topic":"t"}', table_named("rocketmq.messages"), ignore) is None
