"""The functions of SQL against what the real systems computed, in every engine."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.engines.sql import functions
from rawlog.formats.rocketmq.index import java_hash as slow_java_hash
from tests.data.golden import golden_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The values of Kafka's own test of its hash (UtilsTest.testMurmur2).
MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def test_keys_go_where_kafkas_producers_put_them() -> None:
    count = 2**31 - 1
    found = functions.kafka_partition(pa.array(list(MURMUR2)), pa.array([count] * len(MURMUR2)))
    assert found.to_pylist() == [(value & 0x7FFFFFFF) % count for value in MURMUR2.values()]


def test_group_coordinators_are_found_by_java_hash() -> None:
    """A group's offsets are in the partition of __consumer_offsets that the hash of its name says."""
    data = golden_path("kafka", "broker-4.3.0", "data")
    seen = set()
    for partition in range(3):
        rows = rawlog.read(data / f"__consumer_offsets-{partition}", table="kafka.offsets")
        for name, value in zip(rows["group"], functions.java_hash(rows["group"]), strict=True):
            assert abs(value.as_py()) % 3 == partition, name
            seen.add(name.as_py())
    assert len(seen) >= 3


def test_the_key_index_of_rocketmq_holds_java_hashes() -> None:
    store = golden_path("rocketmq", "broker-5.3.3", "store")
    messages = rawlog.read(store, table="rocketmq.messages", columns=["topic", "keys", "physical_offset"])
    stored = {
        (row["key_hash"], row["physical_offset"]) for row in rawlog.read(store, table="rocketmq.keys").to_pylist()
    }
    rows = [row for row in messages.to_pylist() if row["keys"] and " " not in row["keys"]]
    texts = pa.array([f"{row['topic']}#{row['keys']}" for row in rows])
    found = functions.java_hash(texts).to_pylist()
    pairs = {(abs(value), row["physical_offset"]) for value, row in zip(found, rows, strict=True)}
    assert len(pairs & stored) > 20
    assert pairs & stored == {pair for pair in pairs if pair[1] in {offset for _, offset in stored}}


def test_message_ids_of_rocketmq() -> None:
    rows = rawlog.read(
        golden_path("rocketmq", "broker-5.3.3", "store"),
        table="rocketmq.messages",
        columns=["store_host", "physical_offset", "message_id"],
    )
    assert functions.msg_id(rows["store_host"], rows["physical_offset"]).to_pylist() == rows["message_id"].to_pylist()
    hosts = [text.rpartition(":") for text in rows["store_host"].to_pylist()]
    ports = pa.array([int(port) for _, _, port in hosts])
    apart = functions.msg_id(pa.array([host for host, _, _ in hosts]), ports, rows["physical_offset"])
    assert apart.to_pylist() == rows["message_id"].to_pylist()
    odd = functions.msg_id(pa.array(["nowhere", "1.2.3.4:99999", None, "[::1]:1"]), pa.array([1, 1, 1, 255]))
    assert odd.to_pylist() == [None, None, None, "0" * 31 + "1" + "00000001" + "00000000000000FF"]


def test_blob_ids_of_ambry() -> None:
    rows = rawlog.read(golden_path("ambry", "store-ops"), table="ambry.messages", columns=["key", "blob_id"])
    assert len(rows) > 100
    assert functions.blob_id(rows["key"]).to_pylist() == rows["blob_id"].to_pylist()


@given(st.lists(st.one_of(st.none(), st.text(max_size=20))))
def test_java_hash_is_that_of_utf16(texts: list[str | None]) -> None:
    usable = [None if text is None else text.encode("utf-8", "replace").decode() for text in texts]
    found = functions.java_hash(pa.array(usable, pa.string()))
    assert found.to_pylist() == [None if text is None else slow_java_hash(text) for text in usable]


@given(st.lists(st.binary(max_size=8)))
def test_what_is_not_utf8_has_no_java_hash(values: list[bytes]) -> None:
    def expected(value: bytes) -> int | None:
        try:
            return slow_java_hash(value.decode())
        except UnicodeDecodeError:
            return None

    assert functions.java_hash(pa.array(values, pa.binary())).to_pylist() == [expected(value) for value in values]


@given(st.lists(st.one_of(st.none(), st.binary(max_size=40))))
def test_blob_ids_are_base64_for_urls(values: list[bytes | None]) -> None:
    column = pa.array([b"before", *values], pa.binary()).slice(1)
    expected = [None if one is None else base64.urlsafe_b64encode(one).rstrip(b"=").decode() for one in values]
    assert functions.blob_id(column).to_pylist() == expected
    assert functions.blob_id(column).validate(full=True) is None


def test_nulls_give_nulls_and_columns_may_be_sliced_or_chunked() -> None:
    keys = pa.chunked_array([pa.array([b"x", b"123456789", None]), pa.array([b""])]).slice(1)
    assert functions.crc32c(keys).to_pylist() == [0xE3069283, None, 0]
    counts = pa.array([4, 4, None])
    assert functions.kafka_partition(keys, counts).to_pylist()[1:] == [None, None]
    assert functions.kafka_partition(pa.array([b"a", b"a"]), pa.array([0, -1])).to_pylist() == [None, None]
    for function in functions.LIBRARY:
        empty = function.call(*(pa.array([], pa.string()) for _ in function.arguments))
        assert empty.to_pylist() == []


SQL = """
SELECT kafka_partition(CAST('abc' AS {bytes}), 7) AS p, java_hash('hello') AS j, crc32c(CAST('123456789' AS {bytes})) AS c,
  blob_id(CAST('ab' AS {bytes})) AS b, msg_id('10.0.0.1:10911', CAST(42 AS BIGINT)) AS m, java_hash(CAST(NULL AS {text})) AS n
"""
ANSWER = {
    "p": 479470107 % 7,
    "j": 99162322,
    "c": 0xE3069283,
    "b": "YWI",
    "m": "0A00000100002A9F000000000000002A",
    "n": None,
}


def test_every_function_in_spark(spark: SparkSession) -> None:
    assert [row.asDict() for row in spark.sql(SQL.format(bytes="BINARY", text="STRING")).collect()] == [ANSWER]


def test_every_function_in_duckdb() -> None:
    pytest.importorskip("duckdb")
    from rawlog.engines.duckdb import DuckEngine

    with DuckEngine([]) as engine:
        answer = engine.ask(SQL.format(bytes="BLOB", text="VARCHAR"))
        assert pa.Table.from_batches(answer.batches()).to_pylist() == [ANSWER]
        assert [column.type for column in answer.table.columns] == ["int", "int", "bigint", "string", "string", "int"]


def test_fields_of_json_in_both_engines(spark: SparkSession) -> None:
    """On bytes, without a cast: `value:n` and `json(value)`; the functions by name in a session."""
    from rawlog.spark import register

    data = golden_path("schemas", "confluent", "data")
    wanted = [
        (row["value.n"], row["value.s"]) for row in rawlog.rows(data, topic="plain-json", columns="value.n,value.s")
    ]
    where = "FROM records WHERE topic = 'plain-json' ORDER BY \"offset\""
    with rawlog.query(f"SELECT value:n AS n, json(value)->>'s' AS s {where}", data, engine="duckdb") as answer:
        assert [(row["n"], row["s"]) for row in answer] == wanted
    register(spark).read.format("rawlog").option("topic", "plain-json").load(str(data)).createOrReplaceTempView("plain")
    found = spark.sql(
        "SELECT json_field(value, 'n'), get_json_object(json_of(value), '$.s') FROM plain ORDER BY offset"
    )
    assert [tuple(row) for row in found.collect()] == wanted
    with rawlog.query(
        "SELECT value:n AS n, get_json_object(json(value), '$.s') AS s FROM records WHERE topic = 'plain-json' ORDER BY offset",
        data,
    ) as answer:
        assert [(row["n"], row["s"]) for row in answer] == wanted


def test_what_is_not_json_has_no_fields() -> None:
    values = pa.array([b'{"a": {"b": [1, "x"]}}', b"{", b"\xff", None, b"5"])
    assert functions.json_field(values, pa.array(["a.b[1]"] * 5)).to_pylist() == ["x", None, None, None, None]
    assert functions.json_field(values, pa.array(["a", "a", "a", "a", None])).to_pylist() == [
        '{"b": [1, "x"]}',
        None,
        None,
        None,
        None,
    ]
    assert functions.json_of(values).to_pylist() == ['{"a": {"b": [1, "x"]}}', None, None, None, "5"]


def test_half_a_character_does_not_end_a_query() -> None:
    """DuckDB refuses such a text, and with it the whole statement; both engines see the same text now."""
    values = pa.array([rb'{"a":"\ud800","b":"\\ud800 \ud83d\ude00"}', b'{"a":"x"}', b"{"], pa.binary())
    texts = functions.json_of(values).to_pylist()
    assert texts == [r'{"a":"\ufffd","b":"\\ud800 \ud83d\ude00"}', '{"a":"x"}', None]
