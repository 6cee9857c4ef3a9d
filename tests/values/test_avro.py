"""Avro by columns, compared with fastavro, value by value."""

from __future__ import annotations

import base64
import datetime
import io
import itertools
import json
import math
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.values import kernels
from rawlog.values.avro import (
    NoColumns,
    Program,
    SchemaError,
    parse,
    run,
)
from rawlog.values.avro_values import Reader, SingleReader, texts
from rawlog.values.documents import float_text

NAMES = itertools.count()
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
INTS = st.integers(-(1 << 31), (1 << 31) - 1)


def primitives() -> st.SearchStrategy[tuple[Any, st.SearchStrategy[Any]]]:
    return st.sampled_from(
        [
            ("null", st.none()),
            ("boolean", st.booleans()),
            ("int", INTS),
            ("long", LONGS),
            ("float", st.floats(width=32)),
            ("double", st.floats()),
            ("bytes", st.binary(max_size=20)),
            ("string", st.text(max_size=12)),
            ({"type": "long", "logicalType": "timestamp-micros"}, LONGS),
            ({"type": "long", "logicalType": "timestamp-millis"}, st.integers(0, 1 << 42)),
            ({"type": "long", "logicalType": "local-timestamp-micros"}, st.integers(0, 1 << 50)),
            ({"type": "int", "logicalType": "date"}, INTS),
            ({"type": "int", "logicalType": "time-millis"}, st.integers(-5, 90_000_000)),
            ({"type": "long", "logicalType": "time-micros"}, st.integers(0, 86_399_999_999)),
            ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}, st.binary(max_size=20)),
            ({"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 8}, st.binary(max_size=30)),
            ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str)),
            ({"type": "long", "logicalType": "no-such-type"}, LONGS),
        ]
    )


@st.composite
def typed(draw: st.DrawFn, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and what makes values of it."""
    kind = draw(
        st.sampled_from(
            ["primitive"] * 3 + (["record", "array", "map", "nullable", "union", "enum", "fixed"] if depth < 3 else [])
        )
    )
    name = f"n{next(NAMES)}"
    if kind == "record":
        fields = [draw(typed(depth + 1)) for _ in range(draw(st.integers(0, 4)))]
        schema = {
            "type": "record",
            "name": name,
            "fields": [{"name": f"f{i}", "type": one} for i, (one, _) in enumerate(fields)],
        }
        return schema, st.fixed_dictionaries({f"f{i}": make for i, (_, make) in enumerate(fields)})
    if kind in ("array", "map"):
        inner, make = draw(typed(depth + 1))
        if kind == "array":
            return {"type": "array", "items": inner}, st.lists(make, max_size=4)
        return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=5), make, max_size=3)
    if kind == "nullable":
        inner, make = draw(typed(depth + 1).filter(lambda one: one[0] != "null" and not isinstance(one[0], list)))
        return draw(st.permutations(["null", inner])), st.none() | make
    if kind == "union":
        # Branches that fastavro tells apart by the value alone.
        return ["null", "long", "string", {"type": "array", "items": "int"}], st.none() | LONGS | st.text(
            max_size=5
        ) | st.lists(INTS, min_size=1, max_size=3)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "fixed":
        size = draw(st.integers(0, 5))
        return {"type": "fixed", "name": name, "size": size}, st.binary(min_size=size, max_size=size)
    return draw(primitives())


def plain(schema: Any) -> Any:
    """A schema without logical types: fastavro rounds decimals and fails at far dates."""
    if isinstance(schema, list):
        return [plain(one) for one in schema]
    if isinstance(schema, dict):
        return {name: plain(one) for name, one in schema.items() if name != "logicalType"}
    return schema


def shown(value: Any) -> Any:
    """What fastavro reads, in the JSON form."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return json.loads(float_text(value))
    if isinstance(value, dict):
        return {name: shown(one) for name, one in value.items()}
    return [shown(one) for one in value] if isinstance(value, list) else value


def written(schema: Any, values: list[Any]) -> list[bytes]:
    parsed = fastavro.parse_schema(plain(schema))
    bodies = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, value)
        bodies.append(out.getvalue())
    return bodies


def laid(bodies: list[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    sizes = np.array([len(one) for one in bodies], np.int64)
    stops = np.cumsum(sizes)
    return b"".join(bodies), stops - sizes, stops


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[one], b[one]) for one in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, float) or isinstance(b, float):
        return (
            isinstance(b, (int, float)) and isinstance(a, (int, float)) and math.isclose(a, b, rel_tol=1e-15, abs_tol=0)
        )
    return type(a) is type(b) and a == b


@settings(deadline=None)
@given(st.data())
def test_columns_give_the_values_that_fastavro_reads(data: st.DataObject) -> None:
    schema, make = data.draw(typed())
    values = data.draw(st.lists(make, max_size=6))
    bodies = written(schema, values)
    text = json.dumps(schema)
    program = Program(parse(text))
    entries = run(program, *laid(bodies))
    assert (entries.status == kernels.OK).all()
    array, good = texts(program.type, entries, entries.status == kernels.OK)
    assert good.all()
    made = array.to_pylist()
    slow, bare, parsed = (
        SingleReader(text),
        SingleReader(json.dumps(plain(schema))),
        fastavro.parse_schema(plain(schema)),
    )
    for body, one in zip(bodies, made, strict=True):
        status, expected, left = slow.read(body)
        assert (status, left) == (kernels.OK, 0)
        assert equal(json.loads(one), json.loads(expected or "null")), (one, expected)
        read = shown(fastavro.schemaless_reader(io.BytesIO(body), parsed, None))
        assert equal(json.loads(bare.read(body)[1] or ""), read)
    try:
        reader = Reader(program.type)
    except SchemaError:
        return  # a record without fields has no columns
    array, _ = reader.columns(program.type, entries, good)
    array.validate(full=True)
    assert len(array) == len(bodies)


@settings(deadline=None)
@given(st.data())
def test_any_bytes_are_a_value_or_damage(data: st.DataObject) -> None:
    """Every length is checked before use; a damaged body leaves its neighbours alone."""
    schema, make = data.draw(typed())
    good = written(schema, [data.draw(make)])[0]
    bodies = [good, data.draw(st.binary(max_size=40)), good[: data.draw(st.integers(0, len(good)))], good]
    program = Program(parse(json.dumps(schema)))
    raw, starts, stops = laid(bodies)
    entries = run(program, raw, starts, stops)
    assert entries.status[0] == entries.status[3] == kernels.OK
    assert (entries.ends <= stops).all()
    array, good = texts(program.type, entries, entries.status == kernels.OK)
    assert good[0]
    assert good[3]
    assert array[0] == array[3]


def test_a_huge_array_of_nothing_takes_no_memory() -> None:
    """A few bytes say that an array has thirty million nulls."""
    schema = json.dumps({"type": "array", "items": "null"})
    program = Program(parse(schema))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema("long"), 30_000_000)
    body = out.getvalue() + b"\0"
    assert run(program, *laid([body])).status.tolist() == [kernels.LIMIT]
    small = written({"type": "array", "items": "null"}, [[None] * 100])
    assert run(program, *laid(small)).status.tolist() == [kernels.OK]


def test_a_schema_that_contains_itself_is_read_one_by_one() -> None:
    schema = {
        "type": "record", "name": "Tree", "namespace": "a",
        "fields": [{"name": "n", "type": "int"}, {"name": "inner", "type": ["null", "Tree"]},
                   {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]}],
    }  # fmt: skip
    with pytest.raises(NoColumns):
        parse(json.dumps(schema))
    (body,) = written(schema, [{"n": 1, "inner": {"n": 2, "inner": None, "at": None}, "at": 1_700_000_000_000}])
    status, text, left = SingleReader(json.dumps(schema)).read(body)
    assert (status, left) == (kernels.OK, 0)
    assert json.loads(text or "") == {
        "n": 1,
        "inner": {"n": 2, "inner": None, "at": None},
        "at": "2023-11-14T22:13:20.000000Z",
    }
    assert SingleReader(json.dumps(schema)).read(body[:3])[0] != kernels.OK


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "5",
        '"Nobody"',
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"R","fields":[5]}',
        '{"type":"enum","name":"E"}',
        '{"type":"fixed","name":"F","size":-1}',
        '{"type":"fixed","name":"F","size":"big"}',
        '{"type":{"type":{"type":"nothing"}}}',
        "[" * 3000,
    ],
)
def test_a_schema_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(SchemaError):
        parse(text)


def test_a_schema_that_grows_without_end_has_no_columns() -> None:
    """Ten levels of records with ten fields of the next level: ten thousand million columns in a kilobyte. A value of it would be as
    large; where it takes no bytes, it is refused.
    """
    schema: Any = "int"
    for level in range(10):
        schema = {
            "type": "record",
            "name": f"L{level}",
            "fields": [
                {"name": f"f{i}", "type": schema if i == 0 else (f"L{level - 1}" if level else "int")}
                for i in range(10)
            ],
        }
    with pytest.raises(NoColumns, match="more than"):
        parse(json.dumps(schema))
    assert SingleReader(json.dumps(schema)).read(b"\2" * 1000)[0] == kernels.TRUNCATED
    assert SingleReader(json.dumps(schema).replace('"int"', '"null"')).read(b"")[0] == kernels.LIMIT


def test_decimals_are_exact() -> None:
    """fastavro rounds a decimal with more digits than its precision."""
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    bodies = written("bytes", [(123_456).to_bytes(3, "big"), b"", b"\xff"])
    program = Program(parse(json.dumps(schema)))
    entries = run(program, *laid(bodies))
    assert texts(program.type, entries, entries.status == 0)[0].to_pylist() == ['"12345.6"', '"0.0"', '"-0.1"']
    array, good = Reader(program.type).columns(program.type, entries, entries.status == 0)
    assert array.to_pylist() == [None, Decimal("0.0"), Decimal("-0.1")]
    assert good.tolist() == [False, True, True]


def test_nested_columns_have_the_types_of_the_schema() -> None:
    schema = {
        "type": "record", "name": "R",
        "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
                   {"name": "day", "type": {"type": "int", "logicalType": "date"}},
                   {"name": "tags", "type": {"type": "map", "values": ["null", "int"]}}],
    }  # fmt: skip
    bodies = written(schema, [{"at": 1, "day": 2, "tags": {"a": None, "b": 5}}])
    program = Program(parse(json.dumps(schema)))
    entries = run(program, *laid(bodies))
    (row,) = Reader(program.type).columns(program.type, entries, entries.status == 0)[0].to_pylist()
    assert row == {
        "at": datetime.datetime(1970, 1, 1, 0, 0, 0, 1, datetime.UTC),
        "day": datetime.date(1970, 1, 3),
        "tags": [("a", None), ("b", 5)],
    }


def test_a_body_of_many_lists_is_decoded_in_time_by_its_size() -> None:
    """For each list that had no room, the body was read from its begin and all entries were copied: 3,000 lists did not end."""
    count, items = 3000, 100
    fields = [{"name": f"a{number}", "type": {"type": "array", "items": "int"}} for number in range(count)]
    program = Program(parse(json.dumps({"type": "record", "name": "R", "fields": fields})))
    one = b"\xc8\x01" + b"\x02" * items + b"\0"
    data = np.frombuffer(one * count * 2, np.uint8)
    size = len(one) * count
    entries = run(program, data, np.array([0, size]), np.array([size, 2 * size]))
    assert entries.status.tolist() == [0, 0]
    for type in program.type.inner:
        assert entries.values(type.node)[:, 0].tolist() == [items, 2 * items]
        assert set(entries.values(type.inner[-1].node)[:, 0].tolist()) == {1}
