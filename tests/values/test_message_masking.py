"""Masking inside messages that hold others: Struct, Value, ListValue and Any of Protobuf."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import ParseDict

from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS
from rawlog.values.decode import ValueDecoder
from rawlog.values.mask import SchemaMask, parse_mask
from rawlog.values.masker import Masker
from rawlog.values.protobuf import compile_schema
from rawlog.values.registry import Catalog, Schema, Version
from rawlog.values.transform import Wish

SECRET = b"a secret of a test"
TEXT = """syntax = "proto3"; package shop;
import "google/protobuf/struct.proto"; import "google/protobuf/any.proto";
message Event {
  string id = 1;
  google.protobuf.Struct attributes = 2;
  google.protobuf.Value one = 3;
  google.protobuf.ListValue list = 4;
  google.protobuf.Any detail = 5;
  repeated google.protobuf.Any more = 6;
  map<string, google.protobuf.Value> named = 7;
}
message Card { string number = 1; google.protobuf.Struct extra = 2; google.protobuf.Any inner = 3; }
"""
TYPE = "type.googleapis.com/shop.Card"
STRUCT = "type.googleapis.com/google.protobuf.Struct"
TEXTS = "type.googleapis.com/google.protobuf.StringValue"


@pytest.fixture(scope="module")
def compiled() -> Any:
    return compile_schema(TEXT)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_MASK_SECRET", SECRET.decode())


def body(compiled: Any, value: dict[str, Any]) -> bytes:
    message = compiled.message((0,))
    made: bytes = ParseDict(value, message(), descriptor_pool=message.DESCRIPTOR.file.pool).SerializeToString()
    return made


def masked(body: bytes, mask: str, other: str = "refuse") -> tuple[Any, SchemaMask, bytes]:
    """The JSON form of a masked message, the mask with its counts, and the masked bytes."""
    catalog = Catalog()
    catalog.put(Version(".", "t-value", 1, Schema("PROTOBUF", TEXT, (), ".", 7)))
    decoder, given = ValueDecoder(catalog, {"value": "auto"}), parse_mask(mask, other=other)
    made = SchemaMask(given.rules, given.masker, other, {"value": Wish("auto")}, None, decoder)
    column = pa.array([b"\0\0\0\0\7\0" + body], pa.binary())
    batch = made.apply(pa.record_batch([column, pa.array(["t"])], ["value", "topic"]), RECORDS)
    found = decoder.decode(batch.column("value"), None, pa.array(["t"]), "value")
    assert found.is_decoded.all()
    return json.loads(found.values(pa.string())[0].as_py()), made, batch.column("value")[0].as_py()[6:]


def hashed(text: str) -> str:
    return Masker(SECRET).hash(text.encode()).decode()


@pytest.mark.parametrize(
    ("before", "mask", "after"),
    [
        ({"attributes": {"card": "4111", "b": 1}}, "value.attributes.card=hash", {"attributes": {"card": hashed("4111"), "b": 1}}),
        ({"attributes": {"a": {"card": "4111"}}}, "value.attributes.a.card=drop", {"attributes": {"a": {}}}),
        ({"attributes": {"n": 5, "t": True, "o": None}}, "value.attributes.n=hash,value.attributes.t=hash,value.attributes.o=hash",
         {"attributes": {"n": hashed("5"), "t": hashed("true"), "o": None}}),
        ({"attributes": {"l": [{"c": "x"}, 5, {"c": "y"}]}}, "value.attributes.l[*].c=fixed:z",
         {"attributes": {"l": [{"c": "z"}, 5, {"c": "z"}]}}),
        ({"list": ["a", "b"]}, "value.list[1]=drop", {"list": ["a", None]}),
        ({"one": "a"}, "value.one=hash", {"one": hashed("a")}),
        ({"one": {"c": "a"}}, "value.one.c=hash", {"one": {"c": hashed("a")}}),
        ({"named": {"x": {"c": "a"}, "y": 2}}, "value.named.x.c=hash,value.named.y=fixed:q",
         {"named": {"x": {"c": hashed("a")}, "y": "q"}}),
        ({"detail": {"@type": TYPE, "number": "4111"}}, "value.detail.number=hash", {"detail": {"@type": TYPE, "number": hashed("4111")}}),
        ({"detail": {"@type": TYPE, "extra": {"c": "a"}}}, "value.detail.extra.c=hash",
         {"detail": {"@type": TYPE, "extra": {"c": hashed("a")}}}),
        ({"detail": {"@type": TYPE, "inner": {"@type": TYPE, "number": "1"}}}, "value.detail.inner.number=hash",
         {"detail": {"@type": TYPE, "inner": {"@type": TYPE, "number": hashed("1")}}}),
        ({"detail": {"@type": STRUCT, "value": {"c": "a"}}}, "value.detail.value.c=hash",
         {"detail": {"@type": STRUCT, "value": {"c": hashed("a")}}}),
        ({"detail": {"@type": TEXTS, "value": "a"}}, "value.detail.value=hash", {"detail": {"@type": TEXTS, "value": hashed("a")}}),
        ({"more": [{"@type": TYPE, "number": "1"}, {"@type": STRUCT, "value": {}}]}, "value.more[*].number=hash",
         {"more": [{"@type": TYPE, "number": hashed("1")}, {"@type": STRUCT, "value": {}}]}),
    ],
)  # fmt: skip
def test_fields_inside_are_masked(compiled: Any, before: Any, mask: str, after: Any) -> None:
    found, made, _ = masked(body(compiled, {"id": "1", **before}), mask)
    assert found == {"id": "1", **after}
    assert all(made.counts[rule.text, "masked"] == 1 for rule in made.rules)


def test_digits_keep_the_form_of_everything_inside(compiled: Any) -> None:
    inside = {"phone": "079 123", "n": 12345, "x": 0.25, "t": True, "l": ["ab1", None]}
    before = {"attributes": inside, "detail": {"@type": TYPE, "number": "4111 1", "extra": inside}}
    found, _, _ = masked(body(compiled, before), "value.attributes=digits,value.detail=digits")
    masker = Masker(SECRET)
    wanted = {
        "phone": masker.digits(b"079 123").decode(),
        "n": float(masker.number(b"12345")),
        "x": float(masker.number(b"0.25")),
        "t": True,
        "l": [masker.digits(b"ab1").decode(), None],
    }
    number = masker.digits(b"4111 1").decode()
    assert found == {"attributes": wanted, "detail": {"@type": TYPE, "number": number, "extra": wanted}}


def test_an_any_of_an_unknown_type_is_refused_unless_it_is_dropped(compiled: Any) -> None:
    """Its fields are not known, so that the masked one may be among them. The rest of such a message is shown and masked."""
    message = compiled.message((0,))(id="1")
    message.detail.type_url, message.detail.value = "type.googleapis.com/other.Person", b"\x0a\x01a"
    message.more.add().Pack(compiled.message((1,))(number="4111"))
    raw = message.SerializeToString()
    shown = {"@type": "type.googleapis.com/other.Person", "value": "CgFh"}
    found, _, _ = masked(raw, "value.id=hash,value.more[*].number=fixed:x")
    assert found == {"id": hashed("1"), "detail": shown, "more": [{"@type": TYPE, "number": "x"}]}
    with pytest.raises(
        OptionError, match=r"value.detail.name is Any of .*other.Person in t-value version 1 .* drop the whole Any"
    ):
        masked(raw, "value.detail.name=hash")
    found, made, kept = masked(raw, "value.detail.name=hash", "keep")
    assert kept == raw
    assert made.counts["value.detail.name", "not JSON"] == 1
    found, _, _ = masked(raw, "value.detail=drop")
    assert "detail" not in found
    message.detail.type_url, message.detail.value = TYPE, b"\xff"
    with pytest.raises(OptionError, match="its bytes are not such a message"):
        masked(message.SerializeToString(), "value.detail.number=hash")


@pytest.mark.parametrize(
    ("before", "mask", "match"),
    [
        ({"attributes": {"a": {"b": 1}}}, "value.attributes.a=hash", "a is struct in a google.protobuf.Value .* name the fields"),
        ({"attributes": {"a": 1}}, "value.attributes=hash", "is message google.protobuf.Struct .* name the fields in it, or drop it"),
        ({"attributes": {"a": 1}}, "value.attributes.b=hash", "none of 1 row has this field"),
    ],
)  # fmt: skip
def test_what_cannot_be_masked_is_named(compiled: Any, before: Any, mask: str, match: str) -> None:
    with pytest.raises(OptionError, match=match):
        _, made, _ = masked(body(compiled, before), mask)
        made.judge(made.counts)
