"""Nested columns of decoded values in a lake: one struct with a column for each topic, which grows with the schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.values import fields
from rawlog.values.avro import SchemaError
from rawlog.values.avro_values import Reader
from rawlog.values.fields import Fields, join, leaves
from tests.data.golden import golden_path
from tests.values.test_golden import REGISTRIES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFLUENT = golden_path("schemas", "confluent", "data")


def in_lake(lake: Path) -> dict[tuple[str, int, int], Any]:
    """The structs of all records, read with PyIceberg alone."""
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("rawlog", type="sql", uri=f"sqlite:///{lake}/catalog.db")
    rows = catalog.load_table("rawlog.records").scan().to_arrow().to_pylist(maps_as_pydicts="strict")
    return {(row["topic"], row["partition"], row["offset"]): row["value_fields"] for row in rows}


def direct(data: Path, topic: str, decode: str = "value=auto", **more: Any) -> dict[tuple[str, int, int], Any]:
    """The nested values of a topic, read from the files."""
    rows = rawlog.read(data, topic=topic, decode=decode, **more).to_pylist(maps_as_pydicts="strict")
    return {(topic, row["partition"], row["offset"]): row["value"] for row in rows}


@pytest.mark.parametrize("registry", REGISTRIES)
def test_topics_with_one_schema_have_columns(registry: str, tmp_path: Path) -> None:
    data = golden_path("schemas", registry, "data")
    report = rawlog.ingest(data, tmp_path / "lake", decode="value=auto", tables="records", engine="local")
    assert any("only in value_json: the topic's newest schema cannot have them" in note for note in report.notes)
    found = in_lake(tmp_path / "lake")
    topics = {topic for struct in found.values() if struct for topic, value in struct.items() if value is not None}
    assert topics >= {"orders", "awkward"}
    for topic in topics:
        for place, value in direct(data, topic).items():
            assert (found[place] or {}).get(topic) == value
    others = [struct for (topic, *_), struct in found.items() if topic not in topics]
    assert others == [None] * len(others)


def test_spark_and_duckdb_ask_for_fields(tmp_path: Path, spark: SparkSession) -> None:
    rawlog.ingest(CONFLUENT, tmp_path / "lake", topic="orders", decode="value=auto", engine="spark")
    wanted = sorted(str(value["total"]) for value in direct(CONFLUENT, "orders").values() if value)
    sql = "SELECT value_fields.orders.total FROM records WHERE value_fields.orders IS NOT NULL"
    for engine in ("duckdb", "spark"):
        with rawlog.query(sql, tmp_path / "lake", engine=engine) as answer:
            assert sorted(str(row["total"]) for row in answer) == wanted


def test_columns_grow_and_old_rows_stay(tmp_path: Path) -> None:
    """Version 1 of a schema first, then the newest; compaction joins files of both."""
    lake = tmp_path / "lake"
    for partition, version in ((0, "1"), (1, "latest"), (2, "1")):
        given: dict[str, Any] = {"topic": "orders", "partition": partition, "tables": "records", "engine": "local"}
        rawlog.ingest(CONFLUENT, lake, decode=f"value=auto@{version}", **given)
    found = in_lake(lake)
    rawlog.lake(lake, compact=True)
    assert in_lake(lake) == found
    oldest, newest = (direct(CONFLUENT, "orders", f"value=auto@{one}") for one in ("1", "latest"))
    first = next(value for value in oldest.values() if value)
    assert any(name not in first for name in next(value for value in newest.values() if value))
    for place, struct in found.items():
        value = (newest if place[1] == 1 else oldest)[place]
        if value is None:
            assert struct is None
        else:
            assert {name: struct["orders"][name] for name in value} == value


def test_a_lake_that_has_other_columns_keeps_them(tmp_path: Path) -> None:
    """The texts have the values, and a note names the topic."""
    lake = tmp_path / "lake"
    rawlog.ingest(CONFLUENT, lake, topic="orders", partition=0, decode="value=auto", tables="records", engine="local")
    before = in_lake(lake)
    schema = {"type": "record", "name": "Order", "fields": [{"name": "total", "type": "string"}]}
    (tmp_path / "orders-value.avsc").write_text(json.dumps(schema))
    report = rawlog.ingest(
        CONFLUENT,
        lake,
        topic="orders",
        partition=1,
        decode="value=auto",
        schemas=tmp_path / "orders-value.avsc",
        tables="records",
        engine="local",
    )
    wanted = "value_fields of topic orders is not filled: the lake has other columns: total is decimal128(12, 2) there"
    assert any(wanted in note for note in report.notes)
    assert {place: struct for place, struct in in_lake(lake).items() if place[1] == 0} == before


def struct(**types: pa.DataType) -> pa.DataType:
    return pa.struct(list(types.items()))


def test_types_are_joined() -> None:
    one = struct(a=pa.int32(), l=pa.list_(pa.field("element", struct(x=pa.float32()))), d=pa.decimal128(9, 2))
    two = struct(b=pa.string(), l=pa.list_(pa.field("element", struct(y=pa.date32(), x=pa.float64()))), a=pa.int64())
    both = struct(
        a=pa.int64(),
        l=pa.list_(pa.field("element", struct(x=pa.float64(), y=pa.date32()))),
        d=pa.decimal128(9, 2),
        b=pa.string(),
    )
    assert join(one, two) == both
    assert leaves(both) == 5
    assert join(pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())).item_type == pa.int64()


@pytest.mark.parametrize(
    ("one", "two", "place"),
    [
        (struct(a=struct(b=pa.int32())), struct(a=struct(b=pa.string())), "a.b is int32 there and string now"),
        (struct(a=pa.int32()), struct(A=pa.int32()), "A differs from another field only in case"),
        (pa.decimal128(9, 2), pa.decimal128(9, 3), "the value is"),
        (pa.list_(pa.int32()), pa.int32(), "the value is"),
    ],
)
def test_other_types_are_refused(one: pa.DataType, two: pa.DataType, place: str) -> None:
    with pytest.raises(SchemaError, match=place):
        join(one, two)


def test_topics_without_room_or_with_the_same_name_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.values.avro import parse

    reader = Reader(
        parse('{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"b","type":"int"}]}')
    )
    monkeypatch.setattr(fields, "MOST_LEAVES", 5)
    every = Fields("value", dict.fromkeys(["a", "b", "B", "c", "d", "e", "f"], reader))
    made, notes = every.joined(pa.struct([("c", reader.arrow)]))
    assert sorted(made.readers) == ["B", "c"]
    assert len(notes) == 2
    assert "no column for topic b: only case differs from B" in notes[0]
    assert "more than 5 columns: without a, d, e and 1 more" in notes[1]
