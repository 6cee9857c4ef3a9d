"""Protobuf messages read many at once, compared with what the library reads one by one: whole, joined, cut and damaged ones."""

from __future__ import annotations

import json
import pickle
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rawlog.values import decode, protobuf, protobuf_values
from rawlog.values.decode import DecodedValues, ValueDecoder
from rawlog.values.protobuf import MessageLayout
from rawlog.values.protobuf_values import JsonMessages, MessageReader
from rawlog.values.registry import Catalog, Schema, Version

FLAT = 'syntax = "proto3"; package t; message M { int32 a = 1; string s = 2; }'
NEW = """
syntax = "proto3"; package t;
import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; import "google/protobuf/duration.proto";
message All {
  double d = 1; float f = 2; int32 i32 = 3; int64 i64 = 4; uint32 u32 = 5; uint64 u64 = 6; sint32 s32 = 7; sint64 s64 = 8;
  fixed32 x32 = 9; fixed64 x64 = 10; sfixed32 y32 = 11; sfixed64 y64 = 12; bool b = 13; string text = 14; bytes raw = 15;
  Kind kind = 16; Inner inner = 17; optional int32 maybe = 18; optional string said = 19;
  oneof choice { string first = 20; Inner second = 21; int64 third = 22; }
  repeated int32 many = 30; repeated string texts = 31; repeated Inner inners = 32; repeated Kind kinds = 33; repeated double ds = 34;
  repeated sint64 spread = 35 [packed = false]; repeated bool flags = 36; repeated fixed32 fixed = 37; repeated bytes raws = 38;
  map<string, int64> counts = 40; map<int32, Inner> by_number = 41; map<bool, string> by_flag = 42; map<uint64, Kind> kinds_by = 43;
  google.protobuf.Timestamp at = 50; repeated google.protobuf.Timestamp times = 51; google.protobuf.Duration took = 52;
  google.protobuf.Int64Value wide = 53; google.protobuf.StringValue name = 54; repeated google.protobuf.BoolValue wrapped = 55;
  google.protobuf.DoubleValue ratio = 56; string far = 536870911;
  message Inner { string a = 1; int32 b = 2; Deep deep = 3; repeated Deep deeps = 4; }
  message Deep { bytes c = 1; sint32 e = 2; float g = 3; }
  enum Kind { NONE = 0; ONE = 1; TWO = 2; MINUS = -1; }
}
"""
OLD = """
syntax = "proto2"; package t;
message All {
  optional int32 i32 = 3; optional string text = 14 [default = "x"]; optional bytes raw = 15; optional Kind kind = 16;
  repeated int32 many = 30; repeated Kind kinds = 33 [packed = true]; optional Inner inner = 17;
  optional group Pair = 60 { optional int32 p = 1; }
  map<string, Kind> named = 44;
  message Inner { required int32 must = 1; optional Inner inner = 2; }
  enum Kind { NONE = 0; ONE = 1; TWO = 2; }
}
"""
TREE = 'syntax = "proto3"; message Tree { string name = 1; repeated Tree under = 2; Tree left = 3; map<string, Tree> named = 4; }'
EXTENDED = """
syntax = "proto2"; message Open { optional int32 a = 1; extensions 100 to 200; } extend Open { optional string more = 100; }
"""
NUMBERS = (0, 1, 2, -1, 127, 128, 300, 2**31 - 1, -(2**31), 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, -0.0, 1.0, -2.5, 0.1, 1e300, 3.0e38, 1e16, 123456789.0, float("inf"), float("-inf"), float("nan"))


def filled(message: Any, rng: random.Random, depth: int = 0) -> Any:
    """Set random fields of a message."""
    for field in message.DESCRIPTOR.fields:
        if rng.random() < 0.55:
            continue
        entry = field.message_type is not None and field.message_type.GetOptions().map_entry
        target = getattr(message, field.name)
        for _ in range(rng.randrange(1, 4) if field.is_repeated else 1):
            if entry:
                key = value(field.message_type.fields_by_name["key"], rng)
                inner = field.message_type.fields_by_name["value"]
                if inner.message_type is None:
                    target[key] = value(inner, rng)
                elif depth < 3:
                    filled(target[key], rng, depth + 1)
            elif field.message_type is None:
                target.append(value(field, rng)) if field.is_repeated else setattr(
                    message, field.name, value(field, rng)
                )
            elif depth < 3:
                one = target.add() if field.is_repeated else target
                one.SetInParent() if not field.is_repeated else None
                filled(one, rng, depth + 1)
    return message


def value(field: Any, rng: random.Random) -> Any:
    """A value of a type, often one at a limit."""
    kind = field.type
    if kind in (1, 2):
        return rng.choice(FLOATS)
    if kind == 8:
        return rng.random() < 0.5
    if kind == 9:
        return rng.choice(("", "a", 'quote " and \\ and \n', "süß 字 🎉", "x" * 200))
    if kind == 12:
        return rng.choice((b"", b"\0\xff", bytes(range(200))))
    if kind == 14:
        return rng.choice([one.number for one in field.enum_type.values])
    bits, is_signed = (64 if kind in (3, 4, 6, 16, 18) else 32), kind not in (4, 6, 7, 13)
    if field.containing_type.full_name == "google.protobuf.Timestamp":
        return rng.choice((0, 1, 1_700_000_000, -5)) if field.name == "seconds" else rng.choice((0, 5, 5000, 7_000_000))
    if field.containing_type.full_name == "google.protobuf.Duration":
        return rng.choice((0, 3))
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    return rng.choice([one for one in NUMBERS if low <= one <= high])


def bodies_of(message: Any, seed: int, count: int = 400) -> list[bytes]:
    """Random messages: whole, two joined, cut, with changed bytes, and bytes that are none."""
    rng, made = random.Random(seed), [b""]
    for number in range(count):
        body = bytearray(filled(message(), rng).SerializePartialToString(deterministic=True))
        if number % 8 == 1:
            body += filled(message(), rng).SerializePartialToString(deterministic=True)
        elif number % 8 == 2:
            body = body[: rng.randrange(len(body) + 1)]
        elif number % 8 in (3, 4) and body:
            for _ in range(rng.randrange(1, 4)):
                body[rng.randrange(len(body))] = rng.randrange(256)
        elif number % 8 == 5:
            body = bytearray(rng.randbytes(rng.randrange(30)))
        elif number % 8 == 6:
            body += rng.choice(
                (b"\xa0\x06\x05", b"\x80\x7d\x01", b"\x0b\x0c", b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
            )
        made.append(bytes(body))
    return made


def decoded(text: str, bodies: list[bytes], reader: MessageReader | None = None) -> tuple[list[Any], DecodedValues]:
    catalog = Catalog()
    catalog.put(Version(".", "a-value", 1, Schema("PROTOBUF", text, (), ".", 7)))
    column = pa.array([b"\0\0\0\0\7\0" + one for one in bodies], pa.binary())
    found = ValueDecoder(catalog, {"value": "auto"}).decode(
        column, None, pa.array(["a"] * len(bodies)), "value", reader
    )
    array = found.values(pa.string() if reader is None else reader.arrow)
    array.validate(full=True)
    return array.to_pylist(maps_as_pydicts="strict"), found


def one_by_one(read: Any, body: bytes) -> Any:
    try:
        return read(body)
    except ValueError:
        return None


def plain(value: Any) -> Any:
    """Values that can be compared: not a number is equal to itself, lists of pairs are maps, times are numbers."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one) for one in value]
    return repr(value) if isinstance(value, float) else value


def same(one: Any, two: Any) -> bool:
    """Whether two values are equal; of numbers with few digits the texts may differ in the last one."""
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(same(value, two[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two or (isinstance(one, float) and np.float32(one) == np.float32(two))


@pytest.mark.parametrize(("name", "text"), [("new", NEW), ("old", OLD), ("tree", TREE), ("extended", EXTENDED)])
def test_json_is_what_the_library_says(name: str, text: str) -> None:
    made = protobuf.compile_schema(text)
    message = made.message((0,))
    bodies = bodies_of(message, seed=len(name))
    texts, found = decoded(text, bodies)
    usual = 0
    for body, shown, is_decoded in zip(bodies, texts, found.is_decoded.tolist(), strict=True):
        wanted = one_by_one(lambda one: protobuf.to_json(message, one), body)
        assert is_decoded == (wanted is not None), body
        assert same(json.loads(shown or "null"), json.loads(wanted or "null")), body
    if (layout := made.layout((0,))) is not None:
        stops = np.cumsum([len(one) for one in bodies])
        many = JsonMessages(b"".join(bodies), np.concatenate(([0], stops[:-1])), stops)
        many.make(layout)
        usual = int((~many.is_unusual).sum())
    assert usual > (50 if layout is not None else -1)


@pytest.mark.parametrize("text", [NEW, OLD.replace("optional Inner inner = 2;", "")])
def test_columns_are_what_the_library_says(text: str) -> None:
    made = protobuf.compile_schema(text)
    reader = MessageReader(made, (0,))
    bodies = bodies_of(made.message((0,)), seed=5)
    values, found = decoded(text, bodies, reader)
    for body, value, is_decoded in zip(bodies, values, found.is_decoded.tolist(), strict=True):
        wanted = one_by_one(reader.value, body)
        assert is_decoded == (wanted is not None), body
        if is_decoded:
            wanted = pa.array([wanted], reader.arrow).to_pylist(maps_as_pydicts="strict")[0]
            assert plain(value) == plain(wanted), body


def test_text_and_columns_of_a_topic_come_from_one_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ingest --decode` wants both; every message was scanned for each of them."""
    made = protobuf.compile_schema(FLAT)
    reader = pickle.loads(pickle.dumps(MessageReader(made, (0,))))
    bodies = [made.message((0,))(a=number, s="x").SerializeToString() for number in range(100)]
    scans = []
    scan = protobuf_values.scan
    for module in (protobuf_values, decode):
        monkeypatch.setattr(module, "scan", lambda *scanned: scans.append(1) or scan(*scanned))
    catalog = Catalog()
    catalog.put(Version(".", "a-value", 1, Schema("PROTOBUF", FLAT, (), ".", 7)))
    column = pa.array([b"\0\0\0\0\7\0" + body for body in bodies], pa.binary())
    decoder = ValueDecoder(catalog, {"value": "auto"})
    found = decoder.decode(column, None, pa.array(["a"] * len(bodies)), "value", topic_readers={"a": reader})
    assert json.loads(found.values(pa.string())[7].as_py()) == {"a": 7, "s": "x"}
    assert found.topic_values("a", reader.arrow)[7].as_py() == {"a": 7, "s": "x"}
    assert len(scans) == 1


def test_most_messages_need_no_library() -> None:
    """Times and wrapped values are read at once; durations are not."""
    made = protobuf.compile_schema(NEW)
    message = made.message((0,))
    usual, unusual = message(), message(took={"seconds": 1})
    usual.at.seconds, usual.wide.value, usual.inner.deep.e = 5, 6, -7
    usual.by_number[4].b = 1
    bodies = [usual.SerializeToString(), unusual.SerializeToString()]
    stops = np.cumsum([len(one) for one in bodies])
    many = JsonMessages(b"".join(bodies), np.concatenate(([0], stops[:-1])), stops)
    text = many.make(MessageLayout(message.DESCRIPTOR))[0].as_py()
    assert many.is_unusual.tolist() == [False, True]
    assert json.loads(text) == {
        "inner": {"deep": {"e": -7}},
        "by_number": {"4": {"b": 1}},
        "at": "1970-01-01T00:00:05Z",
        "wide": "6",
    }


def test_the_loop_is_the_same_with_the_compiler_off() -> None:
    """In one process with plain Python kernels."""
    import os
    import subprocess
    import sys

    code = (
        "import numba; assert numba.config.DISABLE_JIT\n"
        "from tests.values.test_wire import NEW, bodies_of, decoded, protobuf\n"
        "bodies = bodies_of(protobuf.compile_schema(NEW).message((0,)), 9, 120)\n"
        "print(*decoded(NEW, bodies)[0], sep='\\n')"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    bodies = bodies_of(protobuf.compile_schema(NEW).message((0,)), 9, 120)
    plain, compiled = done.stdout.splitlines(), [str(one) for one in decoded(NEW, bodies)[0]]
    assert len(plain) == len(compiled)
    for one, other in zip(plain, compiled, strict=True):  # the library gives entries of maps in any order
        assert one == other or json.loads(one) == json.loads(other)


def test_messages_by_index_are_grouped() -> None:
    """Some name the first message with a byte 0, some with the long form, some another one; some name none."""
    text = 'syntax = "proto3"; message A { int32 a = 1; } message B { string b = 1; message C { bool c = 1; } }'
    bodies = {b"\x00\x08\x05": {"a": 5}, b"\x02\x00\x08\x06": {"a": 6}, b"\x02\x02\x0a\x01x": {"b": "x"},
              b"\x04\x02\x00\x08\x01": {"c": True}, b"\x02\x08": "bad_message_index",
              b"\x04\x02": "truncated", b"": "truncated"}  # fmt: skip
    catalog = Catalog()
    catalog.put(Version(".", "a-value", 1, Schema("PROTOBUF", text, (), ".", 7)))
    column = pa.array([b"\0\0\0\0\7" + one for one in bodies], pa.binary())
    found = ValueDecoder(catalog, {"value": "auto"}).decode(column, None, pa.array(["a"] * len(bodies)), "value")
    texts, errors = found.values(pa.string()).to_pylist(), found.errors().to_pylist()
    for text, error, wanted in zip(texts, errors, bodies.values(), strict=True):
        assert (error if text is None else json.loads(text)) == wanted
    assert found.messages[3] == ("B.C", (1, 0))
