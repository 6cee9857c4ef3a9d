"""Decoding in every verb and engine: the golden registries as expected, nested columns, versions, and what cannot be decoded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.table import RECORDS, arrow_type, spark_type
from rawlog.model.text import binary_value
from rawlog.values.transform import Decode, parse_decode
from tests.data.golden import golden_path
from tests.values.test_golden import REGISTRIES, same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFLUENT = golden_path("schemas", "confluent", "data")
DECODE = "value=auto,key=auto"
COLUMNS = 'topic, partition, "offset", key, value, key_error, value_error, key_schema, value_schema'


def expected(registry: str) -> dict[tuple[str, int, int], dict[str, Any]]:
    """What each record of a registry's directory is, by topic, partition and offset."""
    found = {}
    for path in golden_path("schemas", registry, "expected").glob("*.ndjson"):
        for line in path.read_text().splitlines() if path.stem != "_schemas" else ():
            row = json.loads(line)
            found[path.stem, row["partition"], row["offset"]] = row
    return found


def shown(form: str, value: Any) -> Any:
    """A value that was not decoded, as JSON text has it."""
    if form == "bytes":
        import base64

        return binary_value(base64.b64decode(value))
    return "" if form == "empty" else value


def check(rows: Iterable[dict[str, Any]], registry: str) -> None:
    """Every record of the registry's directory is there, as expected. Keys and values are JSON texts."""
    wanted = expected(registry)
    for row in rows:
        place = row["topic"], row["partition"], row["offset"]
        if place not in wanted:
            assert place[0].startswith("_"), place
            continue
        one = wanted.pop(place)
        for side in ("key", "value"):
            form, text = one[f"{side}_form"], row[side]
            assert row[f"{side}_error"] == one.get(f"{side}_error"), (place, side)
            if form == "null":
                assert text is None, (place, side)
                continue
            value = json.loads(text)
            if form not in ("avro", "json", "protobuf"):
                assert value == shown(form, one[side]), (place, side)
                assert row[f"{side}_schema"] is None
                continue
            assert same(value, one[side]) or same(value, one.get(f"produced_{side}")), (place, side, value)
            schema = {
                "id": one[f"{side}_schema_id"],
                "subject": one[f"{side}_subject"],
                "version": one[f"{side}_version"],
            }
            assert row[f"{side}_schema"] == schema, (place, side)
    assert not wanted


@pytest.mark.parametrize("registry", REGISTRIES)
def test_python_gives_the_expected_values(registry: str) -> None:
    notes: list[str] = []
    found = rawlog.rows(golden_path("schemas", registry, "data"), decode=DECODE, note=notes.append)
    check(found, registry)
    assert any("the schema id is not known (awkward-0 offset" in note for note in notes)


@pytest.mark.parametrize("registry", REGISTRIES)
def test_duckdb_gives_the_expected_values(registry: str) -> None:
    data = golden_path("schemas", registry, "data")
    with rawlog.query(f"SELECT {COLUMNS} FROM records", data, decode=DECODE, engine="duckdb") as answer:
        assert answer.schema.field("value").type == pa.json_()
        check(answer, registry)


@pytest.mark.parametrize("registry", REGISTRIES)
def test_a_lake_has_the_expected_values_next_to_the_bytes(registry: str, tmp_path: Path) -> None:
    data = golden_path("schemas", registry, "data")
    report = rawlog.ingest(data, tmp_path / "lake", decode=DECODE, engine="local")
    assert any("not decoded" in note for note in report.notes)
    assert report.facts["verdict"] == "clean"
    with rawlog.query("SELECT * FROM records", tmp_path / "lake", engine="duckdb") as answer:
        rows = list(answer)
    for row in rows:
        for side in ("key", "value"):  # where it was not decoded, the bytes say what it is
            raw = row[side]
            row[side] = row[f"{side}_json"]
            if row[side] is None and raw is not None:
                row[side] = json.dumps(binary_value(raw))
    check(rows, registry)
    sql = "SELECT code, severity, \"offset\" FROM findings WHERE code LIKE 'records.value.%'"
    with rawlog.query(sql, tmp_path / "lake", engine="duckdb") as answer:
        codes = {(row["code"], row["severity"]) for row in answer}
    assert ("records.value.unknown-schema-id", "info") in codes
    assert {code for code, _ in codes} <= {one.code for one in rawlog.rules(rule="records.value")}


def test_a_lake_gives_nested_columns_of_one_topic(tmp_path: Path) -> None:
    """Its own records have the schemas. A lake was refused by the name of a topic: only its rows tell topics."""
    import pyarrow.parquet as pq

    rawlog.ingest(CONFLUENT, tmp_path / "lake", engine="local")
    rawlog.convert(tmp_path / "lake", tmp_path / "o.parquet", to="parquet", topic="orders", decode="value=auto")
    found, direct = pq.read_table(tmp_path / "o.parquet"), rawlog.read(CONFLUENT, topic="orders", decode="value=auto")
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert found.schema.field("value").type == direct.schema.field("value").type
    assert found.sort_by(order)["value"].to_pylist() == direct.sort_by(order)["value"].to_pylist()
    notes: list[str] = []
    with rawlog.query("SELECT 1", tmp_path / "lake", decode="value=auto", engine="duckdb", note=notes.append) as answer:
        list(answer)
    assert any("--topic orders --decode value=auto` gives nested columns" in note for note in notes)
    given: dict[str, Any] = {"to": "parquet", "where": "offset < 0", "engine": "local"}
    report = rawlog.convert(tmp_path / "lake", tmp_path / "none.parquet", topic="orders", **given)
    assert "no row belongs to the topics orders, or no row matches the conditions" in report.notes
    with pytest.raises(OptionError, match="unknown topic 'order'; did you mean orders"):
        rawlog.convert(tmp_path / "lake", tmp_path / "wrong.parquet", topic="order", **given)


def test_spark_gives_the_expected_values(spark: SparkSession) -> None:
    """The source and SQL; and nested columns of one topic."""
    frame = spark.read.format("rawlog").option("decode", DECODE).load(str(CONFLUENT))
    assert frame.schema["value"].dataType.simpleString() == "string"
    check((row.asDict(recursive=True) for row in frame.collect()), "confluent")
    nested = spark.read.format("rawlog").option("decode", DECODE).option("topic", "orders").load(str(CONFLUENT))
    nested.createOrReplaceTempView("orders_decoded")
    found = spark.sql(
        "SELECT sum(value.total), max(value.placed), max(get(value.lines, 0).qty) FROM orders_decoded"
    ).collect()
    own = rawlog.read(CONFLUENT, topic="orders", decode=DECODE)["value"].to_pylist()
    assert found[0][0] == sum(one["total"] for one in own if one)
    assert nested.where("value_error IS NOT NULL").count() == 0


def test_spark_tasks_have_the_schemas() -> None:
    """Readers are pickled and sent to tasks: schemas go with them."""
    from tests.engines.spark.test_source import make_reader

    reader = pickle.loads(
        pickle.dumps(make_reader(CONFLUENT, pa.schema([("value", pa.string())]), decode="value=auto"))
    )
    rows = [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]
    assert sum('"status":"PAID"' in (row["value"] or "") for row in rows) == 21


# Nested columns -----------------------------------------------------------------------------------------------------------


def test_one_topic_with_one_subject_has_nested_columns() -> None:
    """All versions are read as the latest: renamed fields by their alias, missing ones by their default."""
    found = rawlog.read(CONFLUENT, topic="orders", decode="value=auto")
    type = found.schema.field("value").type
    assert type.field("total").type == pa.decimal128(12, 2)
    assert type.field("placed").type == pa.timestamp("us", "UTC")
    wanted = {place[1:]: one for place, one in expected("confluent").items() if place[0] == "orders"}
    versions = set()
    for row in found.to_pylist():
        one = wanted.pop((row["partition"], row["offset"]))
        assert row["value_raw"] is None
        if one["value"] is None:
            assert row["value"] is None
            continue
        versions.add(one["value_version"])
        assert str(row["value"]["total"]) == one["value"]["total"]
        assert row["value"]["status"] == one["value"]["status"]
        assert row["value"]["remarks"] == one["value"].get("remarks", one["value"].get("notes"))
        assert row["value"]["weight"] == one["value"].get("weight", 1.5)
    assert versions == {1, 2, 3}
    assert not wanted


def test_a_version_can_be_named() -> None:
    first = rawlog.read(CONFLUENT, topic="orders", decode="value=auto@1")
    assert "notes" in [field.name for field in first.schema.field("value").type]
    rows = first.to_pylist()
    assert {row["value_error"] for row in rows} == {None, "other_schema"}
    # A symbol that the first version does not have: Avro's rules make that an error.
    assert sum(row["value_error"] is not None and b"RETURNED" not in row["value_raw"] for row in rows) == 8
    with pytest.raises(OptionError, match="has no such version; it has 1, 2, 3"):
        rawlog.read(CONFLUENT, topic="orders", decode="value=auto@9")
    with pytest.raises(OptionError, match="rows of 11 topics; --topic names one"):
        rawlog.read(CONFLUENT, decode="value=auto@latest")
    with pytest.raises(OptionError, match="customers-value is JSON"):
        rawlog.read(CONFLUENT, topic="customers", decode="value=auto@latest")
    written = rawlog.read(CONFLUENT, topic="orders", decode="value=auto@written")
    assert written.schema.field("value").type == pa.json_()


def test_what_does_not_fit_the_columns_keeps_its_bytes() -> None:
    notes: list[str] = []
    rows = rawlog.rows(CONFLUENT, topic="awkward", decode="value=auto", note=notes.append)
    found = rows.to_arrow()
    raw = rawlog.read(CONFLUENT, topic="awkward").to_pylist()
    for row, before in zip(found.to_pylist(), raw, strict=True):
        assert (row["value"] is None) != (row["value_raw"] is None) or before["value"] is None
        assert row["value_raw"] in (None, before["value"])
    assert any("@written gives JSON text" in note for note in notes)


def test_nested_columns_in_duckdb_and_parquet(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    sql = "SELECT value.status AS s, sum(value.total) AS t FROM records GROUP BY 1 ORDER BY 1"
    paths = [CONFLUENT / f"orders-{number}" for number in range(3)]
    with rawlog.query(sql, paths, decode="value=auto", engine="duckdb") as answer:
        found = [row["s"] for row in answer]
    assert found == ["NEW", "PAID", "RETURNED", "SENT", None]
    rawlog.convert(CONFLUENT, tmp_path / "o.parquet", to="parquet", topic="orders", decode="value=auto")
    stored = pq.read_table(tmp_path / "o.parquet")
    assert stored["value"].combine_chunks().field("status").to_pylist().count("PAID") == 21
    rawlog.convert(CONFLUENT, tmp_path / "all.jsonl", to="jsonl", decode="value=auto", columns="topic,value")
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert (
        sum(
            line["topic"] == "orders" and line["value"] is not None and line["value"]["status"] == "PAID"
            for line in lines
        )
        == 21
    )
    with pytest.raises(OptionError, match="kafka.log is made of whole records"):
        rawlog.convert(CONFLUENT, tmp_path / "k", to="kafka", decode="value=auto")


# Options ------------------------------------------------------------------------------------------------------------------


def test_schemas_from_files_and_from_next_to_a_partition(tmp_path: Path) -> None:
    """A partition alone finds the registry's topic next to it; elsewhere a directory or a file of schemas is named."""
    import shutil

    alongside = rawlog.read(CONFLUENT / "orders-0", decode="value=auto@written")
    assert alongside["value_error"].null_count == alongside.num_rows
    shutil.copytree(CONFLUENT / "orders-0", tmp_path / "alone" / "orders-0")
    notes: list[str] = []
    alone = rawlog.rows(tmp_path / "alone", decode="value=auto", note=notes.append).to_arrow()
    assert set(alone["value_error"].to_pylist()) <= {"unknown_schema_id", None}
    assert any("--schemas names a place" in note for note in notes)
    again = rawlog.read(tmp_path / "alone", decode="value=auto@written", schemas=CONFLUENT)
    assert again["value"].to_pylist() == alongside["value"].to_pylist()
    folder = tmp_path / "schemas"
    folder.mkdir()
    (folder / "4.avsc").write_text('{"type":"record","name":"O","fields":[{"name":"id","type":"string"}]}')
    one = rawlog.read(tmp_path / "alone", decode="value=auto@written", schemas=folder, limit=1).to_pylist()[0]
    assert list(json.loads(one["value"])) == ["id"]  # it lies: the rest of the value is trailing bytes
    file = tmp_path / "orders-value.avsc"  # a schema without an id is used for its topic
    text = '{"type":"record","name":"O","fields":[{"name":"id","type":"string"},{"name":"number","type":"long"}]}'
    file.write_text(text)
    named = rawlog.rows(tmp_path / "alone", decode="value=auto@written", schemas=file, limit=1, note=notes.append)
    assert json.loads(named.to_arrow()["value"][0].as_py()).keys() == {"id", "number"}
    assert any("ids are not known: orders-value is used for its topic" in note for note in notes)
    with pytest.raises(AccessError, match="no schemas"):
        rawlog.read(tmp_path / "alone", decode="value=auto", schemas=tmp_path / "alone")


def test_expressions_and_fields_see_decoded_values() -> None:
    chosen = rawlog.read(
        CONFLUENT, topic="orders", decode="value=auto@written", where="value.status = 'PAID' AND value_schema IS NOT NULL",
        columns="value.status,value.lines[0].sku,offset",
    )  # fmt: skip
    assert set(chosen["value.status"].to_pylist()) == {"PAID"}
    assert chosen.num_rows == 21
    nested = rawlog.read(CONFLUENT, topic="orders", decode="value=auto", columns="value.total", where="value.total > 0")
    assert nested.schema.field("value.total").type == pa.decimal128(12, 2)
    with pytest.raises(OptionError, match="no field 'nobody'"):
        rawlog.read(CONFLUENT, topic="orders", decode="value=auto", columns="value.nobody")


def test_text_and_json_without_schemas() -> None:
    text = rawlog.read(CONFLUENT, topic="plain-text", decode="value=string")
    assert text.schema.field("value").type == pa.string()
    documents = rawlog.read(CONFLUENT, topic="plain-json", decode="value=json")
    assert all(isinstance(json.loads(one), dict) for one in documents["value"].to_pylist())
    mixed = rawlog.read(CONFLUENT, topic="awkward", decode="value=string").to_pylist()
    assert all((row["value_error"] == "not_text") == (row["value_raw"] is not None) for row in mixed)
    assert any(row["value_raw"] for row in mixed)


@pytest.mark.parametrize(
    ("text", "match"),
    [("value=avr", "avro"), ("body=auto", "side"), ("value=json@2", "go with auto, avro, protobuf"), ("value=auto@x", "latest"),
     ("value=auto@0", "latest"), ("value=auto,value=raw", "twice"), ("", "way to decode")],
)  # fmt: skip
def test_wrong_wishes_are_refused(text: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        parse_decode(text)


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(OptionError, match="--decode is missing"):
        rawlog.read(CONFLUENT, schemas=CONFLUENT)
    with pytest.raises(OptionError, match="not kafka.batches"):
        rawlog.read(CONFLUENT, table="kafka.batches", decode="value=auto")


def test_a_side_that_is_not_asked_for_is_not_read() -> None:
    made = Decode(parse_decode("value=auto,key=auto"))
    assert made.needs(RECORDS, ["offset", "topic"]) == ["offset", "topic"]
    assert made.needs(RECORDS, ["value_schema"]) == ["value", "headers", "topic", "partition", "offset"]
    assert made.table(RECORDS).names[:2] == ("key", "value")


def test_types_of_nested_columns_are_written_as_spark_writes_them() -> None:
    text = "struct<a:decimal(12,2),`odd name`:array<struct<d:date,f:float>>,m:map<string,timestamp_ntz>,t:timestamp>"
    assert spark_type(arrow_type(text), "timestamp_ntz") == text


def test_schemas_of_a_live_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a registry answers to GET /schemas is enough; the password is in the environment, never in the URL."""
    import shutil
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    from tests.values.test_golden import catalog_at

    versions = [
        {"subject": one.name, "version": one.version, "id": one.schema.id, "schemaType": one.schema.type, "schema": one.schema.text,
         "references": [{"name": r.name, "subject": r.subject, "version": r.version} for r in one.schema.references]}
        for one in catalog_at(CONFLUENT).subjects()
    ]  # fmt: skip
    asked: list[tuple[str, str | None]] = []

    class Registry(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(versions).encode())

        def log_message(self, *_: object) -> None:
            pass

    shutil.copytree(CONFLUENT / "orders-0", tmp_path / "orders-0")
    monkeypatch.setenv("RAWLOG_REGISTRY_AUTH", "me:secret")
    with HTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            found = rawlog.read(tmp_path, decode="value=auto@written", schemas=url)
        finally:
            server.shutdown()
            thread.join()
    assert asked == [("/schemas?deleted=true", "Basic bWU6c2VjcmV0")]
    wanted = rawlog.read(CONFLUENT / "orders-0", decode="value=auto@written")
    assert found["value"].to_pylist() == wanted["value"].to_pylist()
    with pytest.raises(OptionError, match="a URL with a password"):
        rawlog.read(tmp_path, decode="value=auto", schemas="http://me:secret@localhost/")
    with pytest.raises(AccessError):
        rawlog.read(tmp_path, decode="value=auto", schemas=url)


def test_a_schema_with_many_parts_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries are allocated for every part of a schema and every row at once: rows are decoded in several calls."""
    from rawlog.values import avro
    from rawlog.values.decode import ValueDecoder
    from rawlog.values.registry import Catalog, Schema, Version

    fields = [{"name": f"f{number}", "type": ["null", "string"]} for number in range(30)]
    text = json.dumps({"type": "record", "name": "Wide", "fields": fields})
    monkeypatch.setattr(avro, "MOST_WORDS", 1000)
    assert avro.rows_at_once(avro.Program(avro.parse(text))) == 11
    catalog = Catalog()
    catalog.put(Version(".", "wide-value", 1, Schema("AVRO", text, (), ".", 1)))
    column = pa.array([b"\0\0\0\0\1" + b"\0" * 30] * 400 + [b"\0\0\0\0\1" + b"\0" * 9])
    found = ValueDecoder(catalog, {"value": "auto"}).decode(column, None, pa.array(["wide"] * 401), "value")
    assert found.is_decoded.sum() == 400
    assert found.reason(400) == "truncated"
    assert len(found.values(pa.string())) == 401


def test_rows_without_a_topic_are_decoded(tmp_path: Path) -> None:
    """A recording of kafka-replay has no topics: the id alone names the schema. A null topic once was taken for a number."""
    rows = rawlog.read(CONFLUENT, topic="orders", partition=0)
    rows = rows.slice(0, 10)
    columns = {"key": rows["key"], "value": rows["value"], "timestamp": rows["timestamp"]}
    rawlog.write(tmp_path / "orders.log", pa.table(columns), format="replay", accept_loss=["timestamp", "value"])
    found = rawlog.read(tmp_path / "orders.log", decode="value=auto", schemas=CONFLUENT)
    assert found["topic"].null_count == found.num_rows
    wanted = rawlog.read(CONFLUENT, topic="orders", partition=0, decode="value=auto@written", limit=10)
    assert found["value"].to_pylist() == wanted["value"].to_pylist()


def test_protobuf_with_one_message_has_nested_columns(tmp_path: Path) -> None:
    """Written with the first version of a schema, read with the second one; a value of another message keeps its bytes."""
    from rawlog.values.decode import ValueDecoder
    from rawlog.values.protobuf import compile_schema
    from rawlog.values.registry import Catalog, Schema, Version
    from rawlog.values.transform import Wish, _reader

    head = 'syntax = "proto3"; package a; import "google/protobuf/timestamp.proto"; import "google/protobuf/duration.proto";\n'
    fields = """string name = 1; uint64 big = 2; repeated int32 n = 3; map<string, Inner> m = 4; optional bytes raw = 5;
        google.protobuf.Timestamp at = 6; google.protobuf.Duration took = 7; Kind kind = 8; oneof one { int32 x = 9; Inner y = 10; }
        message Inner { int32 i = 1; } enum Kind { NONE = 0; SOME = 1; }"""
    texts = [f"{head} message M {{ {fields} }}", f"{head} message M {{ {fields} double added = 11; }}"]
    catalog = Catalog()
    for number, text in enumerate(texts, 1):
        catalog.put(Version(".", "t-value", number, Schema("PROTOBUF", text, (), ".", number)))
    message = compile_schema(texts[0]).message((0,))
    some = message(name="x", big=1 << 63, n=[1, 2], kind=1, x=0)
    some.m["k"].i = 5
    some.took.FromSeconds(90)
    some.at.FromMicroseconds(1_000_005)
    exact = message()
    exact.at.FromNanoseconds(1)
    bodies = [b"\0\0\0\0\1\0" + one.SerializeToString() for one in (some, message(), exact)]
    column = pa.array([*bodies, b"\0\0\0\0\1\2\2", b"\0\0\0\0\1\0\xff"])
    reader = _reader("value", Wish("auto"), catalog, ["t"])
    assert reader is not None
    decoder = pickle.loads(pickle.dumps(ValueDecoder(catalog, {"value": "auto"})))
    found = decoder.decode(column, None, pa.array(["t"] * 5), "value", pickle.loads(pickle.dumps(reader)))
    first, empty, *rest = found.values(reader.arrow).to_pylist()
    assert (first["name"], int(first["big"]), first["n"], first["m"]) == ("x", 1 << 63, [1, 2], [("k", {"i": 5})])
    assert (first["at"].timestamp(), first["took"], first["kind"], first["x"], first["y"]) == (
        1.000005,
        "90s",
        "SOME",
        0,
        None,
    )
    assert (first["raw"], first["added"], empty["x"], empty["kind"], empty["name"]) == (None, 0.0, None, "NONE", "")
    assert rest == [None, None, None]  # nanoseconds that the column cannot have, another message, damage
    assert [found.reason(row) for row in range(5)] == [None, None, "corrupt_body", "bad_message_index", "corrupt_body"]
    assert _reader("value", Wish("auto"), Catalog(), ["t"]) is None
    with pytest.raises(OptionError, match="several messages"):
        rawlog.read(CONFLUENT, topic="shipments", decode="value=auto@latest")
