"""Schemas and bodies that want to do harm, and rare ones that are valid: each value is decoded, or stays as it is with a reason."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import any_pb2, descriptor_pb2, duration_pb2

from rawlog.values.avro import SchemaError
from rawlog.values.decode import DecodedValues, ValueDecoder
from rawlog.values.protobuf import accepted, compile_schema
from rawlog.values.registry import Catalog

PREFIX = b"\0\0\0\0\7"
Entry = tuple[dict[str, Any], dict[str, Any] | None]


def schema(
    subject: str,
    id: int,
    text: Any,
    kind: str = "AVRO",
    references: list[tuple[str, str]] | None = None,
    version: int = 1,
) -> Entry:
    """A record of the registry's topic, with references to the first versions of subjects."""
    value: dict[str, Any] = {"subject": subject, "version": version, "id": id, "schemaType": kind, "deleted": False}
    value["schema"] = text if isinstance(text, str) else json.dumps(text)
    value["references"] = [{"name": name, "subject": of, "version": 1} for name, of in references or ()]
    return {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}, value


def catalog(*entries: Entry) -> Catalog:
    made = Catalog()
    for key, value in entries:
        made.add(json.dumps(key).encode(), None if value is None else json.dumps(value).encode())
    return made


def decoded(known: Catalog, bodies: list[bytes], prefix: bytes = PREFIX) -> list[Any]:
    """The values of bodies; of one that was not decoded the reason, in a tuple."""
    column = pa.array([prefix + one for one in bodies], pa.binary())
    found: DecodedValues = ValueDecoder(known, {"value": "auto"}).decode(
        column, None, pa.array(["t"] * len(bodies)), "value"
    )
    assert len(found.schemas()) == len(bodies)
    texts = found.values(pa.string()).to_pylist()
    return [
        json.loads(text or "") if is_decoded else (found.reason(row),)
        for row, (text, is_decoded) in enumerate(zip(texts, found.is_decoded, strict=True))
    ]


def number(value: int) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema("long"), value)
    return out.getvalue()


def record(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": one, "type": type} for one, type in fields.items()]}


CORRUPT, TRUNCATED, BAD_SCHEMA = ("corrupt_body",), ("truncated",), ("bad_schema",)


def test_a_value_that_is_nested_very_deeply_is_refused() -> None:
    """fastavro calls itself for each level: a list of a hundred thousand, in as many bytes, ended the process."""
    known = catalog(schema("t-value", 7, record("List", next=["null", "List"])))
    bodies = [b"\2" * levels + b"\0" for levels in (3, 400, 900, 2_000_000)]
    found = decoded(known, bodies)
    assert found[0] == {"next": {"next": {"next": {"next": None}}}}
    assert json.dumps(found[1]).count("next") == 401
    assert found[2:] == [CORRUPT, CORRUPT]


def test_the_branches_of_unions_in_a_schema_that_contains_itself() -> None:
    """Branches were guessed from what fastavro reads: a record lost its fields to a smaller one, a text became a list, a time a number."""
    small, large = record("Small", x="int"), record("Large", x="int", y="string")
    times = ["null", "long", {"type": "int", "logicalType": "date"}, {"type": "array", "items": "int"}, "string"]
    amounts = ["bytes", {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4, "scale": 2}]
    tree = record("Tree", inner=["null", "Tree"], one=[small, large], at=times, amount=amounts)
    rest = b"\2\2\2a" + b"\4\0" + b"\2\1\x2c"
    bodies = [
        b"\0\2\2\2a" + b"\4\0" + b"\2\1\x2c", b"\2\0" + rest + b"\0\2" + b"\x08\4no" + b"\0\2\1",
        b"\0\0\2" + b"\6\0" + b"\0\0", b"\0\0\2" + b"\2\0" + b"\0\0", b"\0\3", b"\0\0\2\x0a",
    ]  # fmt: skip
    inner = {"inner": None, "one": {"x": 1, "y": "a"}, "at": "1970-01-01", "amount": "3.00"}
    assert decoded(catalog(schema("t-value", 7, tree)), bodies) == [
        inner,
        {"inner": inner, "one": {"x": 1}, "at": "no", "amount": "AQ=="},
        {"inner": None, "one": {"x": 1}, "at": [], "amount": ""},
        {"inner": None, "one": {"x": 1}, "at": 0, "amount": ""},
        CORRUPT,
        CORRUPT,
    ]


def test_numbers_that_no_value_has_in_a_schema_that_contains_itself() -> None:
    """fastavro counts enums from the end for a negative number, and makes millions of nulls from a few bytes."""
    enum = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
    known = catalog(schema("t-value", 7, record("L", l=["null", "L"], e=enum, n={"type": "array", "items": "null"})))
    good = b"\0\2" + number(2) + b"\0"
    bodies = [good, b"\0\1\0", b"\0\4\0", b"\0\0" + number(100_000_000) + b"\0", b"\0\0" + b"\xff" * 11]
    assert decoded(known, bodies) == [{"l": None, "e": "B", "n": [None, None]}, CORRUPT, CORRUPT, CORRUPT, CORRUPT]


@pytest.mark.parametrize("type", ["string", ["null", "string", "int"]])
def test_a_string_that_is_not_text_leaves_other_rows_alone(type: Any) -> None:
    """All rows of the batch were shown in base64."""
    mark = b"" if type == "string" else b"\2"
    bodies = [mark + b"\4ok"] * 300 + [mark + b"\4\xff\xfe"] + [mark + b"\2z"] * 100
    found = decoded(catalog(schema("t-value", 7, record("R", a=type))), bodies)
    assert found == [{"a": "ok"}] * 300 + [CORRUPT] + [{"a": "z"}] * 100


def test_decimals_of_any_size() -> None:
    """The type may declare two thousand million digits, and a value may have thousands of them."""
    huge = {"type": "bytes", "logicalType": "decimal", "precision": 2_000_000_000, "scale": 1_999_999_999}
    assert decoded(catalog(schema("t-value", 7, huge)), [b"\2\5"]) == ["BQ=="]
    usual = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 10}
    long = b"\1" * 100_000
    found = decoded(catalog(schema("t-value", 7, usual)), [b"\2\5", number(len(long)) + long, b"\2\0"])
    assert found == ["0.0000000005", CORRUPT, "0.0000000000"]


def test_a_union_of_many_records_is_decoded() -> None:
    """Forty types of events in one union were too many parts."""
    union = [record(f"R{i}", **{f"f{j}": "int" for j in range(12)}) for i in range(40)]
    known = catalog(schema("t-value", 7, union))
    assert decoded(known, [number(39) + b"\2" * 12]) == [{f"f{j}": 1 for j in range(12)}]


def test_references_that_double_at_every_level() -> None:
    """Each schema refers twice to the one below it: with twenty-five of them the references were collected for hours."""
    entries = [schema("r0", 100, record("R0", a="int"))]
    for level in range(1, 26):
        below = f"R{level - 1}"
        text = record(f"R{level}", a=["null", below], b=["null", below])
        entries.append(
            schema(f"r{level}", 100 + level, text, references=[(below, below.lower()), ("X", below.lower())])
        )
    assert decoded(catalog(*entries), [b"\2\0\0\0"], b"\0\0\0\0\x7d") == [{"a": {"a": None, "b": None}, "b": None}]


def test_references_in_a_long_chain_and_in_a_circle() -> None:
    """The chain raised RecursionError, which nobody expects of a lookup."""
    chain = [schema("r0", 100, record("R0", a="int"))]
    for level in range(1, 1500):
        below = f"R{level - 1}"
        chain.append(
            schema(
                f"r{level}", 100 + level, record(f"R{level}", a=["null", below]), references=[(below, below.lower())]
            )
        )
    known = catalog(*chain)
    assert decoded(known, [b"\0"], b"\0" + (130).to_bytes(4, "big")) == [{"a": None}]
    assert decoded(known, [b"\0"], b"\0" + (1599).to_bytes(4, "big")) == [BAD_SCHEMA]
    circle = catalog(
        schema("a", 7, record("A", b=["null", "B"]), references=[("B", "b")]),
        schema("b", 8, record("B", a=["null", "A"]), references=[("A", "a")]),
    )
    assert decoded(circle, [b"\0"]) == [BAD_SCHEMA]


def test_ids_and_versions_that_no_registry_gives() -> None:
    """An id of 2^32-1 in the topic was an overflow in the column of schemas."""
    known = catalog(
        schema("a", (1 << 32) - 1, '"int"'), schema("b", -5, '"int"'), schema("c", 7, '"int"', version=1 << 40),
        schema("d", 0, '"int"'),
    )  # fmt: skip
    assert decoded(known, [b"\2"], b"\0\xff\xff\xff\xff") == [("unknown_schema_id",)]
    assert decoded(known, [b"\2"]) == [("unknown_schema_id",)]
    assert decoded(known, [b"\2"], b"\0\0\0\0\0") == [1]
    assert len(known.problems) == 3


def test_a_delete_without_a_value_deletes_nothing() -> None:
    """A tombstone of DELETE_SUBJECT was taken for the deletion of all versions."""
    made = catalog(schema("t-value", 7, '"int"'), ({"keytype": "DELETE_SUBJECT", "subject": "t-value"}, None))
    assert [one.state for one in made.subjects()] == ["live"]
    made.add(b'{"keytype":"DELETE_SUBJECT","subject":"t-value"}', b'{"subject":"t-value","version":1}')
    assert [one.state for one in made.subjects()] == ["soft_deleted"]


def test_of_two_schemas_with_one_id_the_one_that_takes_all_bytes_is_used() -> None:
    """An id is given again after a hard delete. The first schema that fitted was used, also if it left half of the value over."""
    tombstone: Entry = ({"keytype": "SCHEMA", "subject": "old-value", "version": 1, "magic": 1}, None)
    known = catalog(
        schema("old-value", 7, record("Old", a="int", b="string")),
        tombstone,
        schema("t-value", 7, record("New", a="int")),
    )
    assert decoded(known, [b"\2", b"\2\2z", b"\2\xff\xff"]) == [{"a": 1}, {"a": 1, "b": "z"}, {"a": 1}]


def test_data_that_is_not_of_a_registry_has_another_id_in_each_row() -> None:
    """Each id took a look at all rows and at all schemas: minutes for a batch. What was made of unknown ids was kept for ever."""
    decoder = ValueDecoder(
        catalog(*(schema(f"s{number}", number, '"int"') for number in range(1, 2000))), {"value": "auto"}
    )
    column = pa.array([b"\0" + (row * 65_537).to_bytes(4, "big") + b"\2" for row in range(40_000)], pa.binary())
    found = decoder.decode(column, None, pa.array(["t"] * len(column)), "value")
    assert found.is_decoded.sum() == 0
    assert len(decoder._cache) == 0
    known = decoder.decode(pa.array([b"\0\0\0\0\7\2", b"\0\0\0\0\6\4"] * 3), None, pa.array(["t"] * 6), "value")
    assert known.values(pa.string()).to_pylist() == ["1", "2"] * 3


@pytest.mark.parametrize("kind", ["JSON", "PROTOBUF", "AVRO", "recursive"])
def test_characters_that_steer_a_terminal_are_escaped(kind: str) -> None:
    """Only Avro by columns escaped them: `cat --json` printed what a document has."""
    evil = "a\u009b31m\u202e\x7f\u2028z"
    size = bytes([2 * len(evil.encode())])
    text, body = {
        "JSON": ("{}", json.dumps({"s": evil}, ensure_ascii=False).encode()),
        "PROTOBUF": (
            'syntax="proto3"; message M { string s = 1; }',
            b"\0\x0a" + bytes([len(evil.encode())]) + evil.encode(),
        ),
        "AVRO": (record("R", s="string"), size + evil.encode()),
        "recursive": (record("R", s="string", r=["null", "R"]), size + evil.encode() + b"\0"),
    }[kind]
    known = catalog(schema("t-value", 7, text, "AVRO" if kind == "recursive" else kind))
    found = ValueDecoder(known, {"value": "auto"}).decode(pa.array([PREFIX + body]), None, pa.array(["t"]), "value")
    (shown,) = found.values(pa.string()).to_pylist()
    assert shown is not None
    assert shown.isascii()
    assert "\x7f" not in shown
    assert json.loads(shown)["s"] == evil


# Protobuf ----------------------------------------------------------------------------------------------------------------

UNIT = 'syntax = "proto3"; package two; message Unit { int64 n = 1; map<string, string> tags = 2; }'
MONEY = 'syntax = "proto3"; package one; import "two.proto"; message Money { two.Unit unit = 1; }'
MAIN = """syntax = "proto3";
package main;
import "google/protobuf/any.proto";
import "one.proto";
message M { google.protobuf.Any any = 1; one.Money money = 2; }
"""


def of_any(message: Any, url: str) -> bytes:
    made = any_pb2.Any(type_url=f"type.googleapis.com/{url}", value=message.SerializeToString()).SerializeToString()
    return b"\0\x0a" + bytes([len(made)]) + made


def as_descriptor(text: str, references: list[tuple[str, str]]) -> str:
    """A schema as some registries store it: its descriptor in base64."""
    files = descriptor_pb2.FileDescriptorSet.FromString(compile_schema(text, references).files).file
    return base64.b64encode(files[-1].SerializeToString()).decode()


@pytest.mark.parametrize("stored", ["texts", "descriptors", "mixed"])
def test_messages_in_any_and_references_as_descriptors(stored: str) -> None:
    """A message of the schema inside Any was refused, and so were references that are stored as descriptors."""
    unit, money = UNIT, MONEY
    if stored != "texts":
        money = as_descriptor(MONEY, [("two.proto", UNIT)])
    if stored == "descriptors":
        unit = as_descriptor(UNIT, [])
    known = catalog(
        schema("two", 1, unit, "PROTOBUF"), schema("one", 2, money, "PROTOBUF", [("two.proto", "two")]),
        schema("t-value", 7, MAIN, "PROTOBUF", [("one.proto", "one")]),
    )  # fmt: skip
    made = compile_schema(MAIN, [("one.proto", MONEY), ("two.proto", UNIT)]).message((0,))()
    made.money.unit.n = 5
    made.money.unit.tags["a"] = "b"
    found = decoded(known, [
        b"\0" + made.SerializeToString(), of_any(made.money.unit, "two.Unit"),
        of_any(duration_pb2.Duration(seconds=3), "google.protobuf.Duration"), of_any(made, "no.such.Message"),
    ])  # fmt: skip
    url = "type.googleapis.com/"
    assert found == [
        {"money": {"unit": {"n": "5", "tags": {"a": "b"}}}},
        {"any": {"@type": f"{url}two.Unit", "n": "5", "tags": {"a": "b"}}},
        {"any": {"@type": f"{url}google.protobuf.Duration", "value": "3s"}},
        {"any": {"@type": f"{url}no.such.Message", "value": base64.b64encode(made.SerializeToString()).decode()}},
    ]


@pytest.mark.parametrize(
    "fault", ["a field of no type", "a name twice", "a number twice", "an odd name", "a syntax of no time"]
)
def test_descriptors_that_contradict_themselves_are_no_schema(fault: str) -> None:
    """No compiler has read a descriptor that a registry keeps: the library refused it with a TypeError, which ended every verb."""
    file = descriptor_pb2.FileDescriptorProto(name="x.proto", syntax="proto3")
    message = file.message_type.add(name="M")
    number = message.field.add(name="a", number=1, type="TYPE_INT32", label="LABEL_OPTIONAL")
    if fault == "a field of no type":
        number.MergeFrom(type(number)(type="TYPE_MESSAGE", type_name=".Missing"))
    elif fault == "a name twice":
        file.message_type.add(name="M")
    elif fault == "a number twice":
        message.field.add(name="b", number=1, type="TYPE_INT32", label="LABEL_OPTIONAL")
    elif fault == "an odd name":
        message.name = "a b;"
    else:
        file.syntax = "proto9"
    text = base64.b64encode(file.SerializeToString()).decode()
    assert decoded(catalog(schema("t-value", 7, text, "PROTOBUF")), [b"\0\x08\1"]) == [BAD_SCHEMA]
    with pytest.raises(SchemaError):
        compile_schema(text)


def test_what_protoc_says_has_no_place_of_ours() -> None:
    """Errors named a directory that was already gone, and had lines of protoc's log in front."""
    with pytest.raises(SchemaError) as refused:
        compile_schema("message A { Missing x = 1; }")
    assert str(refused.value).startswith("rawlog_schema.proto:1:")
    assert "/" not in str(refused.value)


def test_options_of_confluents_own() -> None:
    """Tags and descriptions of fields made a schema unusable."""
    text = """syntax = "proto3";
import "confluent/meta.proto";
import "confluent/type/decimal.proto";
option (confluent.file_meta).doc = "a; b {";
message R {
  option (confluent.message_meta) = { doc: "{", params: [ { key: "a", value: "b" } ], tags: ["PII"] };
  string ssn = 1 [(confluent.field_meta) = { tags: ["PII"], doc: "a;b" }, json_name = "ssn"];
  confluent.type.Decimal d = 2 [(confluent.field_meta).doc = "d"];
  Q q = 3;
}
enum Q { option (confluent.enum_meta).doc = "e"; A = 0 [(confluent.enum_value_meta).doc = "v"]; B = 1; }
"""
    found = decoded(catalog(schema("t-value", 7, text, "PROTOBUF")), [b"\0\x0a\1s\x12\4\x0a\2\1\2\x18\1"])
    assert found == [{"ssn": "s", "d": {"value": "AQI="}, "q": "B"}]


@pytest.mark.parametrize(
    "name",
    [
        *("a.py", "a", "/a.proto", "../a.proto", "b/../../a.proto", "b//a.proto", "b\\a.proto", "b\0.proto"),
        *("\ud800.proto", "b/" * 64 + "a.proto", "b" * 1000 + ".proto"),
        *("confluent/meta.proto/a.proto", "rawlog_schema.proto/a.proto"),
    ],
)
def test_imports_are_proto_files_below_a_directory(name: str) -> None:
    """Names of references come from data, and become names of files."""
    with pytest.raises(SchemaError, match="invalid name of an import"):
        compile_schema('syntax = "proto3"; message M {}', [(name, 'syntax = "proto3";')])


def test_imports_that_cannot_be_files_at_once() -> None:
    with pytest.raises(SchemaError, match="invalid name"):
        compile_schema('syntax = "proto3"; message M {}', [("a.proto", ""), ("a.proto/b.proto", "")])


def test_imports_are_few_and_small() -> None:
    with pytest.raises(SchemaError, match="more than 1,000 files"):
        compile_schema('syntax = "proto3"; message M {}', [(f"{one}.proto", "") for one in range(1000)])
    with pytest.raises(SchemaError, match="16,777,216 characters"):
        compile_schema('syntax = "proto3"; message M {}', [("a.proto", " " * (16 << 20))])
    with pytest.raises(SchemaError, match="not valid text"):
        compile_schema('syntax = "proto3"; message M {} // \ud800')


def test_the_compiler_is_not_looked_for_in_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is told where the compiler is; it looks nowhere else for modules, as it does on workers of Spark."""
    for name in ("sitecustomize.py", "resource.py", "grpc_tools.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert compile_schema('syntax = "proto3"; message NotLookedFor {}').messages == {(0,): "NotLookedFor"}
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("piece", ["/* ", '"\\', "'\\"])
def test_texts_that_never_end_take_time_by_their_length(piece: str) -> None:
    """The end of a comment or string was looked for from each of its beginnings: 4 MB took hours."""
    assert accepted(piece * (1 << 20)) == piece * (1 << 20)
