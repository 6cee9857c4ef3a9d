"""Masking by fields of Avro, Protobuf and JSON Schema values: written again with the same schema and framing, all else as it was."""

from __future__ import annotations

import io
import json
import pickle
import re
import uuid
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS
from rawlog.reading.select import Selection
from rawlog.reading.tree import open_tree
from rawlog.values.avro_edit import AvroEditor
from rawlog.values.decode import ValueDecoder
from rawlog.values.mask import parse_mask
from rawlog.values.masker import Edit, Masker
from rawlog.values.registry import catalog_for
from rawlog.verbs.options import bind_schemas, selection_of, transforms_of
from tests.data.golden import golden_path
from tests.values.test_golden import REGISTRIES

CONFLUENT = golden_path("schemas", "confluent", "data")
SECRET = "a secret of a test"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_MASK_SECRET", SECRET)


def decoded(path: Path, topic: str, side: str = "value") -> dict[tuple[int, int], Any]:
    rows = rawlog.read(path, topic=topic, decode=f"{side}=auto@written", schemas=CONFLUENT).to_pylist()
    return {(row["partition"], row["offset"]): (row[side], row[f"{side}_schema"], row["headers"]) for row in rows}


def raw(path: Path, topic: str) -> dict[tuple[int, int], Any]:
    return {(row["partition"], row["offset"]): row["value"] for row in rawlog.rows(path, topic=topic)}


def convert(target: Path, topic: str, mask: str, **more: Any) -> Any:
    given = {"to": "kafka", "accept_loss": "offset", "decode": "value=auto", "mask": mask, "engine": "local", **more}
    return rawlog.convert(CONFLUENT, target, topic=topic, **given)


def test_avro_of_all_versions_is_written_again(tmp_path: Path) -> None:
    """Strings, UUIDs, decimals, numbers and items of lists; a record in a union is dropped. Schema and all other fields stay."""
    convert(
        tmp_path / "out",
        "orders",
        "value.id=hash,value.number=digits,value.total=digits,value.lines[*].sku=fixed:x,value.ship_to=drop",
    )
    before, after = decoded(CONFLUENT, "orders"), decoded(tmp_path / "out", "orders")
    assert before.keys() == after.keys()
    assert {schema["version"] for _, schema, _ in after.values() if schema} == {1, 2, 3}
    changed = 0
    for place, (text, *rest) in before.items():
        assert after[place][1:] == tuple(rest)
        if text is None:
            continue
        one, other = json.loads(text), json.loads(after[place][0])
        hashed = Masker(SECRET.encode()).hash(one.pop("id").encode()).decode()
        assert other.pop("id") == str(uuid.UUID(hashed))
        for name in ("number", "total"):
            old, new = str(one.pop(name)), str(other.pop(name))
            assert old != new
            assert len(old) == len(new)
        for lines, sku in ((one["lines"], None), (other["lines"], "x")):
            assert all(line.pop("sku") == sku or sku is None for line in lines)
        assert other.pop("ship_to", None) is None
        changed += one.pop("ship_to", None) is not None
        assert one == other
    assert changed


def test_protobuf_keeps_its_message_and_its_indexes(tmp_path: Path) -> None:
    """Several messages of one schema, in either framing; fields that a message does not have are not added."""
    mask = "value.street=hash,value.sku=digits,value.parcels[*].items[*].sku=fixed:x,value.home.street=drop,value.took=drop"
    convert(tmp_path / "out", "shipments", mask)
    before, after = decoded(CONFLUENT, "shipments"), decoded(tmp_path / "out", "shipments")
    raw_before, raw_after = raw(CONFLUENT, "shipments"), raw(tmp_path / "out", "shipments")
    masker, same = Masker(SECRET.encode()), 0
    for place, (text, *rest) in before.items():
        assert after[place][1:] == tuple(rest)
        one, other = json.loads(text), json.loads(after[place][0])
        if one == other:
            assert raw_before[place] == raw_after[place]
            same += 1
        if "street" in one:
            assert other["street"] == masker.hash(one["street"].encode()).decode()
        if "sku" in one:
            assert other["sku"] == masker.digits(one["sku"].encode()).decode()
        assert "took" not in other
        assert "street" not in other.get("home", {})
        assert {item["sku"] for parcel in other.get("parcels", ()) for item in parcel.get("items", ())} <= {"x"}
        for name in ("street", "sku", "took", "home", "parcels"):
            one.pop(name, None)
            other.pop(name, None)
        assert one == other
    assert same


def test_json_schema_keeps_its_prefix_and_its_text(tmp_path: Path) -> None:
    notes = convert(tmp_path / "out", "customers", "value.name=hash,value.address.street=fixed:x").notes
    before, after = raw(CONFLUENT, "customers"), raw(tmp_path / "out", "customers")
    for place, value in before.items():
        if value is None:
            assert after[place] is None
            continue
        assert value[:5] == after[place][:5]
        one, other = json.loads(value[5:]), json.loads(after[place][5:])
        assert len(other.pop("name")) == 32
        assert other["address"].pop("street") == "x"
        del one["name"], one["address"]["street"]
        assert one == other
    assert any("secret" in note for note in notes)


@pytest.mark.parametrize(
    ("topic", "mask", "match"),
    [
        ("orders", "value.number=hash", r"value.number=hash: value.number is long in orders-value version 1 \(orders-0 offset"),
        ("orders", "value.number=drop", "value.number is long .* it has no null"),
        ("orders", "value.number=fixed:x", "value.number is long .* digits gives a number"),
        ("orders", "value.status=hash", "value.status is enum shop.orders.Status .* fixed:NEW is one"),
        ("orders", "value.total=fixed:1.234", r"bytes \(decimal\) .* 2 digits after the point"),
        ("orders", "value.lines=hash", "value.lines is array .* name the fields in it"),
        ("shipments", "value.priority=hash", "value.priority is sint32|value.priority is int32"),
        ("shipments", "value.serials[0]=drop", "repeated string .* drop the whole list"),
        ("customers", "value.id=hash", 'value.id is type "integer" in customers-value'),
        ("customers", "value.name=drop", r"value.name is required \[.* it would not fit the schema any more"),
        ("orders", "value.nobody=hash", "none of .* has this field"),
        ("awkward", "value.user=hash", "neither JSON nor of a schema that is known"),
    ],
)  # fmt: skip
def test_a_mask_that_does_not_fit_names_field_and_type(topic: str, mask: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=match):
        convert(tmp_path / "out", topic, mask, partition=0)  # of several partitions the first to fail is named
    assert not (tmp_path / "out").exists()


def test_tests_see_values_before_they_are_masked(tmp_path: Path) -> None:
    """And decoded: in a log, in columns, in a lake."""
    where = "value.status = 'PAID'"
    convert(tmp_path / "log", "orders", "value.status=fixed:NEW", where=where)
    assert {json.loads(text)["status"] for text, *_ in decoded(tmp_path / "log", "orders").values()} == {"NEW"}
    convert(tmp_path / "o.parquet", "orders", "value.status=fixed:NEW,value.id=hash", where=where, to="parquet")
    rows = [row["value"] for row in pq.read_table(tmp_path / "o.parquet").to_pylist()]
    assert len(rows) == 21
    assert {row["status"] for row in rows} == {"NEW"}
    rawlog.ingest(
        CONFLUENT, tmp_path / "lake", topic="orders", decode="value=auto", mask="value.id=hash", engine="local"
    )
    with rawlog.query("SELECT value_json FROM records", tmp_path / "lake", engine="duckdb") as answer:
        lake = {json.loads(row["value_json"])["id"] for row in answer if row["value_json"]}
    assert {row["id"] for row in rows} < lake
    plain = {json.loads(text)["id"] for text, *_ in decoded(CONFLUENT, "orders").values() if text}
    assert not plain & lake


def test_records_are_left_out_by_a_decoded_field_and_batches_stay(tmp_path: Path) -> None:
    report = rawlog.convert(
        CONFLUENT, tmp_path / "log", to="kafka", topic="orders", decode="value=auto", where="value.status = 'PAID'", engine="local"
    )  # fmt: skip
    assert report.counts["rows"] == 21
    before, after = raw(CONFLUENT, "orders"), raw(tmp_path / "log", "orders")
    assert len(after) == 21
    assert all(before[place] == value for place, value in after.items())


def test_a_restored_directory_has_masked_fields(tmp_path: Path) -> None:
    rawlog.restore(
        CONFLUENT, tmp_path / "out", topic=["shipments", "_schemas"], mask="value.street=hash", decode="value=auto", mask_other="keep"
    )  # fmt: skip
    rows = rawlog.rows(tmp_path / "out", topic="shipments", decode="value=auto@written")
    streets = {json.loads(row["value"])["street"] for row in rows if '"street"' in (row["value"] or "{")[:10]}
    assert streets
    assert all(len(one) == 32 for one in streets)
    with pytest.raises(OptionError, match="--decode needs --mask"):
        rawlog.restore(CONFLUENT, tmp_path / "other", decode="value=auto")


@pytest.mark.parametrize("registry", REGISTRIES)
def test_every_framing_stays(registry: str) -> None:
    """All topics of a registry's directory: schemas named by prefixes and by headers, of keys too; damaged and plain values stay. The
    selection is pickled, as it is for tasks of Spark.
    """
    data = golden_path("schemas", registry, "data")
    names = ("street", "user", "name", "f1", "sku", "lot", "shipment", "account")
    given = {"mask": ",".join(f"value.{one}=digits" for one in names) + ",key.region=digits", "mask_other": "keep"}
    selection = bind_schemas(selection_of({**given, "decode": "value=auto,key=auto"}, as_bytes=True), rawlog.open(data))
    masked = pickle.loads(pickle.dumps(selection))
    decode = {"key": "auto@written", "value": "auto@written"}
    show = bind_schemas(Selection(transforms=transforms_of({"decode": decode})), rawlog.open(data))
    headers = changed = 0
    for batch in rawlog.rows(data).batches():
        after = show.apply(masked.apply(batch, RECORDS), RECORDS).to_pylist()
        for one, other in zip(show.apply(batch, RECORDS).to_pylist(), after, strict=True):
            values = [json.loads(row.pop(side) or "null") for side in ("value", "key") for row in (one, other)]
            assert one == other, "schema, error and headers"
            for old, new in (values[:2], values[2:]):
                hidden = {*names, "region"} if isinstance(old, dict) else set()
                assert type(old) is type(new)
                if hidden:
                    changed += any(old.get(name) != new.get(name) for name in hidden)
                    headers += bool(one["headers"]) and any(old.get(name) != new.get(name) for name in hidden)
                    old, new = ({name: one for name, one in row.items() if name not in hidden} for row in (old, new))
                assert old == new
    assert changed > 150
    assert headers or registry != "confluent"


# Exactness ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("registry", REGISTRIES)
def test_a_value_that_is_read_and_written_is_the_same(registry: str) -> None:
    """Every Avro value of the golden registries, recursive ones too, byte for byte: no union changes its branch."""
    catalog = catalog_for(open_tree(str(golden_path("schemas", registry, "data"))), None)
    decoder, [rule] = ValueDecoder(catalog, {"value": "avro", "key": "avro"}), parse_mask("value.x=digits").rules
    same, seen = Edit(replace(rule, steps=()), lambda value: value, lambda value: value), 0
    for row in rawlog.rows(golden_path("schemas", registry, "data")):
        for side in ("key", "value"):
            if row[side] is None or row["topic"].startswith("_"):
                continue
            headers = pa.array([row["headers"] or []], RECORDS.schema.field("headers").type)
            column = pa.array([row[side]], pa.binary())
            found = decoder.decode(column, headers, pa.array([row["topic"]]), side)
            if (used := found.schema_of(0)) is not None:
                body = row[side][len(row[side]) - found.body_size(0) :]
                assert decoder.editor(used, ()).edit(body, [same]) == (body, [True])
                seen += 1
    assert seen > 100


NUMBERS = ["int", "long", "float", "double", "string", "bytes", {"type": "array", "items": "int"}]


@given(st.lists(st.sampled_from(range(len(NUMBERS))), min_size=1, max_size=4, unique=True), st.data())
def test_a_union_keeps_the_branch_that_was_written(chosen: list[int], data: st.DataObject) -> None:
    """fastavro alone writes the first branch that takes a value: a long 5 in [int, long] becomes an int, and 5 in [double, long] 5.0."""
    branches = ["null", *(NUMBERS[one] for one in chosen)]
    fields = [{"name": "u", "type": branches}, {"name": "s", "type": "string"}]
    schema = {"type": "record", "name": "R", "namespace": "a.b", "fields": fields}
    number = data.draw(st.integers(1, len(chosen)))
    kind = branches[number]
    values: dict[str, Any] = {"int": 5, "long": 5, "float": 0.5, "double": 0.5, "string": "5", "bytes": b"5"}
    body = io.BytesIO()
    fastavro.schemaless_writer(body, {"type": "long"}, number)
    fastavro.schemaless_writer(body, fastavro.parse_schema(kind), values[kind] if isinstance(kind, str) else [5])
    fastavro.schemaless_writer(body, {"type": "string"}, "secret")
    [rule] = parse_mask("value.s=fixed:x").rules
    edit = Edit(rule, rule.json_mask(Masker(b"")), rule.bytes_mask(Masker(b"")))
    made, found = AvroEditor(json.dumps(schema)).edit(body.getvalue() + b"tail", [edit])
    assert found == [True]
    assert made == body.getvalue()[: -len(b"\x0csecret")] + b"\x02xtail"


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_digits_of_a_number_stay_in_its_range(number: int) -> None:
    """Most numbers of ten digits are too large for an int: the mask of a valid one must not be."""
    body = io.BytesIO()
    fastavro.schemaless_writer(body, {"type": "int"}, number)
    [rule] = parse_mask("value.x=digits").rules
    edit = Edit(replace(rule, steps=()), rule.json_mask(Masker(SECRET.encode())), lambda value: value)
    made, _ = AvroEditor('"int"').edit(body.getvalue(), [edit])
    found = fastavro.schemaless_reader(io.BytesIO(made), {"type": "int"}, None)
    assert -(1 << 31) <= found < 1 << 31
    assert len(str(found)) == len(str(number)) or number < 0


@given(st.decimals(Decimal(1 - 10**7), Decimal(10**7 - 1), places=3, allow_nan=False))
def test_decimals_stay_in_their_precision(number: Any) -> None:
    schema = '{"type":"bytes","logicalType":"decimal","precision":10,"scale":3}'
    unscaled = int(number.scaleb(3))
    raw_value = unscaled.to_bytes(max(1, (unscaled + (unscaled < 0)).bit_length() // 8 + 1), "big", signed=True)
    body = io.BytesIO()
    fastavro.schemaless_writer(body, {"type": "bytes"}, raw_value)
    [rule] = parse_mask("value.x=digits").rules
    masker = Masker(SECRET.encode())
    edit = Edit(replace(rule, steps=()), rule.json_mask(masker), rule.bytes_mask(masker))
    made, _ = AvroEditor(schema).edit(body.getvalue(), [edit])
    value = fastavro.schemaless_reader(io.BytesIO(made), {"type": "bytes"}, None)
    text = Masker(SECRET.encode()).number(f"{number:.3f}".encode()).decode()
    assert int.from_bytes(value, "big", signed=True) == int(Decimal(text).scaleb(3))


def test_a_certificate_reads_no_schemas(tmp_path: Path) -> None:
    """It may be anybody's file: schemas are read, and a registry is asked, only if the user names them."""
    where = {"where": "value.status = 'PAID'", "decode": "value=auto@written", "topic": "orders"}
    rawlog.erase(CONFLUENT, tmp_path / "out", schemas=CONFLUENT, engine="local", **where)
    proof = next(tmp_path.glob("*.json"))
    made = json.loads(proof.read_text())
    assert rawlog.verify(tmp_path / "out", certificate=proof, schemas=CONFLUENT, engine="local").verdict == "clean"
    for place in (str(CONFLUENT), "http://127.0.0.1:9/"):
        made["asked"]["schemas"] = place
        proof.write_text(json.dumps(made))
        with pytest.raises(OptionError, match=re.escape(f"name their schemas with --schemas ({place})")):
            rawlog.verify(tmp_path / "out", certificate=proof, engine="local")
    found = rawlog.verify(tmp_path / "out", certificate=proof, schemas=CONFLUENT, engine="local")
    assert "rawlog.certificate.content" in {one.code for one in found}  # and it was changed
