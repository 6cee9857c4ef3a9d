"""Avro fields masked by columns: the same bytes, counts and errors as one by one."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS
from rawlog.values.avro_edit import Splicer
from rawlog.values.decode import ValueDecoder
from rawlog.values.mask import Mask, SchemaMask, parse_mask
from rawlog.values.masker import Masker
from rawlog.values.registry import Catalog, Schema, Version
from rawlog.values.transform import Wish

SECRET = b"a secret of a test"
LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    ("string", st.sampled_from(["", "a", "Ä 1", "4111-1111", "x" * 70])),
    ("bytes", st.binary(max_size=3)),
    ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    ("long", st.sampled_from([0, -1, 63, 64, 5_000_000_000])),
    ("double", st.sampled_from([0.5, -12.25, 1e300, float("inf")])),
    ("float", st.sampled_from([0.5, 3.0])),
    ("boolean", st.booleans()),
    ({"type": "string", "logicalType": "uuid"}, st.just("7f0c6d6e-5d5c-4a53-9a5e-0c9d8d1c3b2a")),
    ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, st.sampled_from([b"\x00", b"\x04\xd2"])),
    ({"type": "enum", "symbols": ["A", "B", "true"]}, st.sampled_from(["A", "B"])),
    ({"type": "fixed", "size": 2}, st.binary(min_size=2, max_size=2)),
]


class OneByOne(ValueDecoder):
    """Decodes the same, and changes fields of values one by one."""

    def splicer(self, *_: Any) -> None:
        return None


def long(number: int) -> bytes:
    return encoded("long", number)


def encoded(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    plain = {name: one for name, one in schema.items() if name != "logicalType"} if isinstance(schema, dict) else schema
    fastavro.schemaless_writer(out, fastavro.parse_schema(plain), value)
    return out.getvalue()


class Schemas:
    """Draws schemas, values of them, and the paths to their fields."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.count = data, 0

    def schema(self, depth: int, *, in_union: bool = False) -> Any:
        kinds = ["leaf", "leaf", "null", "record", "array", "map", *([] if in_union else ["union", "optional"])]
        kind = self.data.draw(st.sampled_from(kinds if depth else ["leaf"]))
        self.count += 1
        if kind == "leaf":
            leaf = self.data.draw(st.sampled_from([one for one, _ in LEAVES]))
            is_named = isinstance(leaf, dict) and leaf["type"] in ("enum", "fixed")
            return {**leaf, "name": f"N{self.count}"} if is_named else leaf
        if kind == "record":
            return self.record(depth - 1)
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1)}
        if kind == "map":
            return {"type": "map", "values": self.schema(depth - 1)}
        if kind == "null":
            return "null"
        other = self.schema(depth - 1, in_union=True)
        if kind == "optional":
            return ["null", other] if other != "null" else ["string", "null"]
        return ["int", self.record(depth - 1), *(["null"] if self.data.draw(st.booleans()) else [])]

    def record(self, depth: int) -> Any:
        self.count += 1
        fields = [{"name": name, "type": self.schema(depth)} for name in self.data.draw(st.sampled_from(["a", "ab"]))]
        return {"type": "record", "name": f"R{self.count}", "namespace": "n.s", "fields": fields}

    def body(self, schema: Any) -> bytes:
        if isinstance(schema, list):
            branch = self.data.draw(st.integers(0, len(schema) - 1))
            return long(branch) + self.body(schema[branch])
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "null":
            return b""
        if kind == "record":
            return b"".join(self.body(one["type"]) for one in schema["fields"])
        if kind not in ("array", "map"):
            known = [values for one, values in LEAVES if (one if isinstance(one, str) else one["type"]) == kind]
            logical = isinstance(schema, dict) and "logicalType" in schema
            return encoded(schema, self.data.draw(known[1 if logical else 0]))
        keys = self.data.draw(st.sampled_from([[], ["a"], ["b", "a", "c"]]))
        if kind == "map":
            items = [encoded("string", key) + self.body(schema["values"]) for key in keys]
        else:
            items = [self.body(schema["items"]) for _ in keys]
        if not items:
            return long(0)
        joined = b"".join(items)
        is_sized = self.data.draw(st.integers(0, 9)) == 0
        return (long(-len(items)) + long(len(joined)) if is_sized else long(len(items))) + joined + long(0)


def paths(schema: Any, path: str) -> list[str]:
    """The paths to all parts of a schema."""
    if isinstance(schema, list):
        return [path, *(found for one in schema for found in paths(one, path) if found != path)]
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        return [path, *(found for one in schema["fields"] for found in paths(one["type"], f"{path}.{one['name']}"))]
    if kind == "array":
        return [path, *paths(schema["items"], f"{path}[*]"), *paths(schema["items"], f"{path}[1]")]
    if kind == "map":
        return [path, *paths(schema["values"], f"{path}.a"), f"{path}[0]"]
    return [path]


def masked(kind: type[ValueDecoder], schema: Any, values: list[bytes | None], mask: Mask) -> tuple[Any, Any]:
    catalog = Catalog()
    catalog.put(Version(".", "orders-value", 1, Schema("AVRO", json.dumps(schema), (), ".", 7)))
    decoder = kind(catalog, {"value": "auto"})
    masker = Masker(SECRET, keep_sizes=mask.masker.keep_sizes)
    made = SchemaMask(mask.rules, masker, "keep", {"value": Wish("auto")}, None, decoder)
    column = pa.array([b"out of the slice", *values], pa.binary()).slice(1)
    count = len(values)
    columns = [column, pa.array(["orders"] * count), pa.array([0] * count), pa.array(range(count))]
    try:
        batch = made.apply(pa.record_batch(columns, ["value", "topic", "partition", "offset"]), RECORDS)
    except OptionError as error:
        return str(error), None
    batch.validate(full=True)
    return batch.column("value").to_pylist(), +made.counts


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_columns_give_what_one_by_one_gives(data: st.DataObject) -> None:
    drawn = Schemas(data)
    schema = drawn.record(3)
    values: list[bytes | None] = [b"\0\0\0\0\7" + drawn.body(schema) + tail for tail in (b"", b"", b"tail", b"")]
    values += [None, b"", b'{"a": 1}', b"\0\0\0\0\7"]
    keep = data.draw(st.booleans())
    hows = st.sampled_from(["hash", "digits", "fixed:5", "fixed:Ä", "fixed:true", *([] if keep else ["drop"])])
    known = [one for one in dict.fromkeys(paths(schema, "value")) if one != "value"]
    chosen = data.draw(st.lists(st.sampled_from([*known, "value.c"]), min_size=1, max_size=3, unique=True))
    given_ = {one: data.draw(hows) for one in chosen}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAWLOG_MASK_SECRET", SECRET.decode())
        mask = parse_mask(given_, keep_sizes=keep, other="keep")
    assert masked(ValueDecoder, schema, values, mask) == masked(OneByOne, schema, values, mask)


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "count", "type": "long"},
        {"name": "note", "type": ["null", "string", {"type": "record", "name": "Note", "fields": [{"name": "text", "type": "string"}]}]},
        {"name": "lines", "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": [
            {"name": "sku", "type": "string"}, {"name": "tags", "type": {"type": "map", "values": ["null", "bytes"]}}]}}},
    ],
}  # fmt: skip
RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "x", "type": "string"}, {"name": "next", "type": ["null", "Node"]}],
}


@pytest.mark.parametrize(
    ("schema", "mask", "by_columns"),
    [
        (ORDER, "value.id=hash,value.count=digits,value.lines[*].sku=fixed:x,value.lines[0].tags.a=hash", True),
        (ORDER, "value.note=drop,value.nobody=hash", True),
        (ORDER, "value.note.text=hash", True),
        (ORDER, "value.note=hash", False),  # a record cannot be hashed: an error, if there is one
        (ORDER, "value.lines[*].sku=hash,value.lines[0].sku=digits", False),
        (ORDER, "value.note=drop,value.note.text=hash", False),
        (ORDER, "value.lines[*].tags.a=drop", False),
        (ORDER, "value.lines=digits", False),
        (RECURSIVE, "value.x=hash", False),
    ],
)
def test_what_is_done_by_columns(schema: Any, mask: str, by_columns: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_MASK_SECRET", SECRET.decode())
    assert (Splicer.of(json.dumps(schema), (), parse_mask(mask).rules) is not None) == by_columns


def test_a_text_that_is_not_utf8_is_masked_or_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """fastavro does not read it, which was an error of Python. By columns the bytes do not matter."""
    monkeypatch.setenv("RAWLOG_MASK_SECRET", SECRET.decode())
    schema = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "a", "type": "string"}, {"name": "b", "type": "string"}],
    }
    value, mask = b"\0\0\0\0\7" + b"\x04\xff1" + b"\x02b", parse_mask("value.b=hash", other="keep")
    hashed = mask.masker.hash(b"b")
    assert masked(ValueDecoder, schema, [value], mask)[0] == [value[:-2] + b"\x40" + hashed]
    found, counts = masked(OneByOne, schema, [value], mask)
    assert found == [value]
    assert counts["value.b", "not JSON"] == 1


def test_a_deep_value_is_masked_as_a_whole() -> None:
    """Each level of a value once was a call of Python, which ended at about 300 levels."""
    depth = 450
    value = b"\0\0\0\0\7" + b"\x021\x02" * depth + b"\x021\x00"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAWLOG_MASK_SECRET", SECRET.decode())
        mask = parse_mask("value.next=digits")
    ([found], _) = masked(ValueDecoder, RECURSIVE, [value], mask)
    digit = mask.masker.digits(b"1")
    assert found == b"\0\0\0\0\7\x021\x02" + (b"\x02" + digit + b"\x02") * (depth - 1) + b"\x02" + digit + b"\x00"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # one block, two blocks, blocks with their size before them; all of a block goes, and its header with it
        (long(2) + b"\x02a\x021" + b"\x02b\x022" + long(0), long(1) + b"\x02b\x022" + long(0)),
        (long(1) + b"\x02a\x021" + long(1) + b"\x02b\x022" + long(0), long(1) + b"\x02b\x022" + long(0)),
        (long(-2) + long(8) + b"\x02a\x021" + b"\x02b\x022" + long(0), long(-1) + long(4) + b"\x02b\x022" + long(0)),
        (long(-1) + long(4) + b"\x02a\x021" + long(0), long(0)),
    ],
)
def test_entries_of_maps_are_dropped_with_their_count_and_size(before: bytes, after: bytes) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "m", "type": {"type": "map", "values": "string"}}]}
    mask = parse_mask("value.m.a=drop")
    [found], _ = masked(ValueDecoder, schema, [b"\0\0\0\0\7" + before + b"tail"], mask)
    assert found == b"\0\0\0\0\7" + after + b"tail"
