"""Nested columns of a reader schema, compared with what fastavro resolves one by one."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from rawlog.values.avro import (
    Program,
    SchemaError,
    parse,
    run,
)
from rawlog.values.avro_values import Reader, column_type


def record(*fields: dict[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, type: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type, **more}


def resolved(writer: Any, reader: Any, values: list[Any]) -> tuple[list[Any], list[bool]]:
    """The values as columns of the reader, and which of them fit."""
    schema = fastavro.parse_schema(json.loads(json.dumps(writer)))
    bodies = []
    for value in values:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, value)
        bodies.append(out.getvalue())
    stops = np.cumsum([len(body) for body in bodies])
    starts = np.concatenate(([0], stops[:-1]))
    program = Program(parse(json.dumps(writer)))
    entries = run(program, b"".join(bodies), starts.astype(np.int64), stops.astype(np.int64))
    made = Reader(parse(json.dumps(reader)))
    array, good = made.columns(program.type, entries, entries.status == 0)
    array.validate(full=True)
    assert array.type == made.arrow
    return array.to_pylist(maps_as_pydicts="strict"), good.tolist()


def by_fastavro(writer: Any, reader: Any, value: Any) -> Any:
    out = io.BytesIO()
    schema = fastavro.parse_schema(json.loads(json.dumps(writer)))
    fastavro.schemaless_writer(out, schema, value)
    out.seek(0)
    return fastavro.schemaless_reader(out, schema, fastavro.parse_schema(json.loads(json.dumps(reader))))


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B", "C"]}
FEWER = {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "B"}
CASES = [
    ("wider numbers", record(field("a", "int"), field("b", "long"), field("c", "float")),
     record(field("a", "long"), field("b", "double"), field("c", "double")), [{"a": 1, "b": 1 << 40, "c": 0.5}]),
    ("order, missing and new fields", record(field("a", "int"), field("b", "string")),
     record(field("n", ["null", "int"], default=None), field("b", "string"), field("d", "double", default=1.5)), [{"a": 1, "b": "x"}]),
    ("text and bytes", record(field("a", "string"), field("b", "bytes")), record(field("a", "bytes"), field("b", "string")),
     [{"a": "x", "b": b"y"}]),
    ("into and out of unions", record(field("a", "int"), field("b", ["null", "string"])),
     record(field("a", ["null", "long"]), field("b", ["string", "null"])), [{"a": 1, "b": None}, {"a": 2, "b": "x"}]),
    ("nested lists", record(field("a", {"type": "array", "items": {"type": "array", "items": "int"}})),
     record(field("a", {"type": "array", "items": {"type": "array", "items": "long"}})), [{"a": [[1], [], [2, 3]]}, {"a": []}]),
    ("an enum with a default", record(field("e", ENUM)), record(field("e", FEWER)), [{"e": "A"}, {"e": "C"}]),
    ("records in unions", record(field("a", ["null", record(field("x", "int"), name="I")])),
     record(field("a", ["null", record(field("x", "long"), field("y", "int", default=7), name="I")])), [{"a": {"x": 1}}, {"a": None}]),
]  # fmt: skip


@pytest.mark.parametrize(("writer", "reader", "values"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_versions_are_resolved_as_fastavro_does(writer: Any, reader: Any, values: list[Any]) -> None:
    found, good = resolved(writer, reader, values)
    assert all(good)
    assert found == [by_fastavro(writer, reader, value) for value in values]


def test_defaults_of_all_kinds() -> None:
    """fastavro gives them as they are in the schema's JSON."""
    reader = record(
        field("m", {"type": "map", "values": "int"}, default={"k": 1}), field("l", {"type": "array", "items": "string"}, default=["x"]),
        field("r", record(field("i", "int", default=3), name="I"), default={}), field("e", ENUM, default="C"),
        field("y", "bytes", default="\u00ff"), field("u", ["string", "null"], default="s"),
        field("t", {"type": "int", "logicalType": "time-millis"}, default=1500),
        field("d", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, default="\u0001"),
    )  # fmt: skip
    found, good = resolved(record(field("a", "int")), reader, [{"a": 1}, {"a": 2}])
    assert good == [True, True]
    assert found[0] == found[1]
    assert str(found[0].pop("d")) == "0.01"
    wanted = {"m": {"k": 1}, "l": ["x"], "r": {"i": 3}, "e": "C", "y": b"\xff", "u": "s", "t": "00:00:01.500000"}
    assert found[0] == wanted


def test_aliases_name_the_fields_of_older_versions() -> None:
    writer, reader = record(field("notes", "string")), record(field("remarks", "string", aliases=["notes"]))
    assert resolved(writer, reader, [{"notes": "x"}]) == ([{"remarks": "x"}], [True])


def test_a_union_of_several_types_is_a_struct() -> None:
    union = record(field("u", ["null", "int", "string"]))
    found, good = resolved(union, union, [{"u": 5}, {"u": "x"}, {"u": None}])
    assert [row["u"] for row in found] == [{"member0": 5, "member1": None}, {"member0": None, "member1": "x"}, None]
    assert all(good)


def test_a_value_that_the_type_does_not_have_does_not_fit() -> None:
    """A date beyond the calendar, too many digits, a symbol without a default; also inside a list. Other rows are not concerned."""
    far = record(field("l", {"type": "array", "items": {"type": "long", "logicalType": "timestamp-micros"}}))
    plain = record(field("l", {"type": "array", "items": "long"}))
    found, good = resolved(plain, far, [{"l": [1, 2]}, {"l": [1, 1 << 62]}, {"l": []}])
    assert good == [True, False, True]
    assert len(found[0]["l"]) == 2
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 3, "scale": 1}
    found, good = resolved("bytes", decimal, [b"\x01", (123_456).to_bytes(3, "big")])
    assert good == [True, False]
    assert str(found[0]) == "0.1"
    assert resolved(record(field("e", ENUM)), record(field("e", {**FEWER, "default": None})), [{"e": "C"}])[1] == [
        False
    ]
    assert resolved("bytes", "string", [b"\xff", b"x"])[1] == [False, True]


@pytest.mark.parametrize(
    ("writer", "reader"),
    [(record(field("a", "string")), record(field("a", "int"))), (record(field("a", "int")), record(field("b", "int")))],
)
def test_schemas_that_do_not_go_together_are_refused(writer: Any, reader: Any) -> None:
    value = {"a": "x"} if writer["fields"][0]["type"] == "string" else {"a": 1}
    with pytest.raises(SchemaError):
        resolved(writer, reader, [value])


@pytest.mark.parametrize("schema", [record(), record(field("a", "int"), field("A", "int"))])
def test_records_without_columns(schema: Any) -> None:
    with pytest.raises(SchemaError):
        column_type(parse(json.dumps(schema)))


def test_types_of_columns() -> None:
    logical = {
        ("int", "date"): pa.date32(), ("long", "timestamp-millis"): pa.timestamp("us", "UTC"), ("int", "time-millis"): pa.string(),
        ("long", "local-timestamp-micros"): pa.timestamp("us"), ("string", "uuid"): pa.string(), ("long", "nothing"): pa.int64(),
    }  # fmt: skip
    for (kind, name), wanted in logical.items():
        assert column_type(parse(json.dumps({"type": kind, "logicalType": name}))) == wanted


def test_an_enum_of_many_symbols_takes_time_by_their_number() -> None:
    """Each symbol was looked for among all others: 200,000 of them, of a schema of 2 MB, did not end in 40 s."""
    symbols = [f"s{number}" for number in range(200_000)]
    old, new = (parse(json.dumps({"type": "enum", "name": "E", "symbols": one})) for one in (symbols, symbols[:0:-1]))
    program = Program(old)
    body = np.frombuffer(b"\x0a\x00", np.uint8)
    entries = run(program, body, np.array([0, 1]), np.array([1, 2]))
    values, good = Reader(new).columns(program.type, entries, entries.status == 0)
    assert values.to_pylist() == ["s5", None]
    assert good.tolist() == [True, False]


def test_a_record_of_many_fields_takes_time_by_their_number() -> None:
    """A field was looked for among all that were written, and so was each of its aliases."""
    names = [f"f{number}" for number in range(9000)]
    old = {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in names]}
    new = {"type": "record", "name": "R", "fields": []}
    for number, name in reversed(list(enumerate(names))):
        aliases = [*(f"a{number}_{other}" for other in range(20)), name]
        new["fields"].append({"name": f"g{number}", "type": "long", "aliases": aliases})
    program = Program(parse(json.dumps(old)))
    entries = run(program, np.full(9000, 2, np.uint8), np.array([0]), np.array([9000]))
    values, good = Reader(parse(json.dumps(new))).columns(program.type, entries, entries.status == 0)
    assert good.tolist() == [True]
    assert set(values[0].as_py().values()) == {1}


def test_a_union_of_many_branches_takes_memory_by_their_number() -> None:
    """A column of all branches was made for each branch: the square of 500 of them, for each row."""
    count = 500
    union = [{"type": "record", "name": f"U{n}", "fields": [{"name": f"x{n}", "type": "int"}]} for n in range(count)]
    program = Program(parse(json.dumps(union)))
    bodies = [bytes([(2 * n & 0x7F) | 0x80, 2 * n >> 7, 14]) for n in range(count)] * 40
    data = np.frombuffer(b"".join(bodies), np.uint8)
    starts = np.arange(len(bodies)) * 3
    entries = run(program, data, starts, starts + 3)
    before = pa.total_allocated_bytes()
    values, good = Reader(parse(json.dumps(union[::-1]))).columns(program.type, entries, entries.status == 0)
    assert good.all()
    assert pa.total_allocated_bytes() - before < 1 << 30
    assert values[3].as_py()[f"member{count - 4}"] == {"x3": 7}
    assert sum(one is not None for one in values[len(bodies) - 1].as_py().values()) == 1
