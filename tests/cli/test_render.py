"""JSON and CSV: the kernels give what the slow twin says, for any values at all."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.model.text import plain_time, printable, to_json
from rawlog.reading import render
from rawlog.reading.render import (
    FORMS,
    csv_lines,
    json_leaf,
    json_lines,
    plain_json,
)

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
STEERING = st.text(
    '\x00\x08\x09\x0a\x0c\x0d\x1b\x1f "\\\x7f\x80\x85\x9f\xa0\u061c\u200e\u2028\u202e\u2069\ufeff😀a', max_size=40
)
BYTES = st.one_of(
    st.binary(max_size=40),
    TEXT.map(str.encode),
    STEERING.map(str.encode),
    st.tuples(STEERING.map(str.encode), st.binary(min_size=1, max_size=3)).map(b"".join),
)
HEADERS = st.lists(st.fixed_dictionaries({"key": TEXT, "value": st.none() | BYTES}), max_size=3)
COLUMNS = {
    "binary": (pa.binary(), BYTES),
    "large_binary": (pa.large_binary(), BYTES),
    "string": (pa.string(), TEXT | STEERING),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "int": (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "bigint": (pa.int64(), INT64 | st.sampled_from([0, -1, 9, 10, -10, -(1 << 63), (1 << 63) - 1])),
    "u32": (pa.uint32(), st.integers(0, (1 << 32) - 1)),
    "u64": (pa.uint64(), st.integers(0, (1 << 64) - 1)),
    "boolean": (pa.bool_(), st.booleans()),
    "timestamp": (pa.timestamp("us", "UTC"), INT64 | st.integers(-(1 << 52), 1 << 52)),
    "double": (pa.float64(), st.floats()),
    "headers": (pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])), HEADERS),
    "map": (pa.map_(pa.string(), pa.string()), st.lists(st.tuples(TEXT, st.none() | TEXT), max_size=3)),
    "nested": (pa.list_(pa.list_(pa.int32())), st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=2), max_size=3)),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), st.fixed_dictionaries({"a": st.integers(0, 9), "b": st.none() | TEXT})),
    "null": (pa.null(), st.none()),
}  # fmt: skip
FORBIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    names = draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=5, unique=True))
    rows = draw(st.integers(0, 6))
    arrays = []
    for name in names:
        type, values = COLUMNS[name]
        made = draw(st.lists(st.none() | values, min_size=rows + 2, max_size=rows + 2))
        if pa.types.is_timestamp(type):
            arrays.append(pa.array(made, pa.int64()).cast(type))
        else:
            arrays.append(pa.array(made, type))
    batch = pa.RecordBatch.from_arrays(arrays, names)
    return batch.slice(draw(st.integers(0, 2)), rows)


def slow(batch: pa.RecordBatch, form: str | None) -> bytes:
    names = [to_json(name) for name in batch.schema.names]
    columns = [plain_json(column, form) for column in batch.columns]
    lines = [
        "{" + ",".join(f"{n}:{v}" for n, v in zip(names, row, strict=True)) + "}\n"
        for row in zip(*columns, strict=True)
    ]
    return "".join(lines).encode()


@given(batches(), st.sampled_from([None, *FORMS]))
@settings(max_examples=200)
def test_the_kernels_say_what_the_slow_twin_says(batch, form):
    fast = bytes(json_lines(batch.schema, form).render(batch))
    assert fast == slow(batch, form)
    text = fast.decode()
    assert not FORBIDDEN.search(text)
    for line in text.splitlines():
        json.loads(line)


@given(batches(), st.sampled_from([None, *FORMS]), st.sampled_from([json_lines, csv_lines]))
@settings(max_examples=200)
def test_pieces_are_the_same_text(batch, form, make):
    """A value of 256 MB took 3.9 GB as JSON: what is large is written in pieces."""
    whole = bytes(make(batch.schema, form).render(batch))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "PIECE", 32)
        patch.setattr(render, "STEP", 9)
        assert b"".join(map(bytes, make(batch.schema, form).pieces(batch))) == whole


@given(st.lists(st.none() | BYTES, min_size=1, max_size=8))
def test_binary_values_come_back(values):
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["v"])
    for line, value in zip(bytes(json_lines(batch.schema).render(batch)).decode().splitlines(), values, strict=True):
        shown = json.loads(line)["v"]
        if isinstance(shown, dict):
            assert list(shown) == ["base64"]
            with pytest.raises(UnicodeDecodeError):
                value.decode()
            assert base64.b64decode(shown["base64"]) == value
        else:
            assert shown == (None if value is None else value.decode())


@given(st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31)))
def test_times_are_what_the_calendar_says(moment):
    delta = moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    text = plain_time((delta.days * 86400 + delta.seconds) * 10**6 + delta.microseconds)
    assert datetime.fromisoformat(text) == moment.replace(tzinfo=UTC)


def test_years_outside_the_calendar():
    assert plain_time(-62135596800000001) == "+000000-12-31T23:59:59.999999Z"
    assert plain_time(253402300800000000) == "+010000-01-01T00:00:00.000Z"
    assert plain_time(-(1 << 63)) == "-290308-12-21T19:59:05.224192Z"
    assert plain_time((1 << 63) - 1) == "+294247-01-10T04:00:54.775807Z"


@given(st.lists(st.tuples(st.none() | TEXT | STEERING, st.none() | INT64), min_size=1, max_size=6))
def test_csv_comes_back(rows):
    schema = pa.schema([("text", pa.string()), ("number", pa.int64())])
    arrays = [pa.array([a for a, _ in rows], pa.string()), pa.array([b for _, b in rows], pa.int64())]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    text = bytes(csv_lines(schema).render(batch)).decode()
    read = list(csv.reader(io.StringIO(text, newline="")))
    assert read == [[a or "", "" if b is None else str(b)] for a, b in rows]
    for line, (a, b) in zip(text.split("\n"), rows, strict=False):
        if a is None and b is None and "\n" not in text[:-1]:
            assert line == ","


def test_safe_csv_for_a_terminal():
    batch = pa.RecordBatch.from_pydict({"v": pa.array([b"\x1b[31m,\n", None, b"\xff"])})
    assert bytes(csv_lines(batch.schema, safe=printable).render(batch)) == b'"\\x1b[31m,\\n"\n\n\\xff\n'


def test_types_that_no_kernel_knows_take_the_slow_way():
    values = pa.array([1, None], pa.date32())
    assert plain_json(values) == ['"1970-01-02"', "null"]
    batch = pa.RecordBatch.from_arrays([values], ["d"])
    assert bytes(json_lines(batch.schema).render(batch)) == b'{"d":"1970-01-02"}\n{"d":null}\n'
    assert json_leaf(pa.float64()) is not None


def test_the_kernels_run_without_the_compiler_too():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import pyarrow as pa\n"
        "from rawlog.reading.render import json_lines, csv_lines, FORMS\n"
        "v = [b'', None, bytes(range(256)), 'é\\u2028😀\\x85'.encode(), b'plain text only, long enough', b'\\xf0\\x9f', b'a\\\"b\\\\']\n"
        "h = [[{'key': 'k', 'value': x}] for x in v]\n"
        "t = pa.array([0, None, -1, 1, -(1 << 63), (1 << 63) - 1, 1706868930123456])\n"
        "T = pa.list_(pa.struct([('key', pa.string()), ('value', pa.binary())]))\n"
        "b = pa.RecordBatch.from_arrays([pa.array(v, pa.binary()), t, t.cast(pa.timestamp('us', 'UTC')), pa.array(h, T),"
        " pa.array([True, None, False] * 2 + [True])], ['v', 'n', 't', 'h', 'b'])\n"
        "import sys\n"
        "for form in (None, *FORMS):\n"
        "    for make in (json_lines, csv_lines): sys.stdout.buffer.write(bytes(make(b.schema, form).render(b)))\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    outputs = []
    for off in ("0", "1"):
        environment = {**os.environ, "PYTHONPATH": source, "NUMBA_DISABLE_JIT": off}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
