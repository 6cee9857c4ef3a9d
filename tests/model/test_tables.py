"""Tables: the contract of names and types."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rawlog.model.errors import OptionError
from rawlog.model.table import (
    FILES,
    FINDINGS,
    RECORDS,
    arrow_type,
)
from rawlog.registry import table_named, tables


def test_records_has_the_shape_of_sparks_own_kafka_source() -> None:
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    assert pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestampType", pa.int32()),
            ("headers", pa.list_(pa.field("element", header))),
        ]
    ).equals(RECORDS.schema, check_metadata=True)
    assert RECORDS.ddl.endswith("`timestampType` int, `headers` array<struct<key:string,value:binary>>")


def test_common_tables_are_as_the_interface_page_says() -> None:
    assert ", ".join(FILES.names) == (
        "path, system, format, size, modified, topic, partition, start_offset, end_offset, min_timestamp, max_timestamp, "
        "frames, records, valid_size, state"
    )
    assert ", ".join(FINDINGS.names) == "code, severity, path, format, position, size, offset, message, expected, found"


@pytest.mark.parametrize(
    ("ddl", "type"),
    [
        ("binary", pa.binary()),
        ("map<string,bigint>", pa.map_(pa.string(), pa.int64())),
        ("array<array<tinyint>>", pa.list_(pa.field("element", pa.list_(pa.field("element", pa.int8()))))),
        (
            "struct<a:smallint,b:map<int,double>>",
            pa.struct([("a", pa.int16()), ("b", pa.map_(pa.int32(), pa.float64()))]),
        ),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("boolean", pa.bool_()),
    ],
)
def test_types_are_written_as_spark_writes_them(ddl: str, type: pa.DataType) -> None:
    assert arrow_type(ddl) == type


@pytest.mark.parametrize("ddl", ["int int", "array<int", "struct<a int>", "map<int>", "unsigned"])
def test_a_type_that_is_none_is_our_own_mistake(ddl: str) -> None:
    with pytest.raises((AssertionError, KeyError, IndexError)):
        arrow_type(ddl)


def test_every_table_has_a_schema_that_spark_takes() -> None:
    def plain(type: pa.DataType) -> bool:
        if pa.types.is_nested(type):
            return all(plain(type.field(index).type) for index in range(type.num_fields))
        return type in {arrow_type(word) for word in (
            "binary", "string", "boolean", "tinyint", "smallint", "int", "bigint", "double", "timestamp",
        )}  # fmt: skip

    for table in tables().values():
        assert len(set(table.names)) == len(table.names)
        assert all(plain(field.type) and field.nullable for field in table.schema), table
        for pair in (table.offsets, table.times):
            assert pair is None or set(pair) <= set(table.names)
        assert table.about


def test_a_subset_keeps_the_order_that_is_asked_for() -> None:
    assert RECORDS.subset(["offset", "key"]).names == ("offset", "key")
    with pytest.raises(OptionError, match="unknown column of records 'ofset'; did you mean offset"):
        RECORDS.subset(["ofset"])


def test_an_unknown_table_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"replay\.entries"):
        table_named("replay.entry")
    assert table_named("records") is RECORDS
