"""How fast Avro and Protobuf values become JSON texts and columns, fields of JSON values columns, and fields are masked, next to loops over
the libraries.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import fastavro
import pyarrow as pa
from harness import Bench, Peer, Way, Work, case, main

from rawlog.model.table import RECORDS
from rawlog.reading.fields import field_of
from rawlog.values import protobuf
from rawlog.values.avro import parse
from rawlog.values.avro_values import Reader
from rawlog.values.decode import ValueDecoder
from rawlog.values.mask import SchemaMask
from rawlog.values.masker import Masker, MaskRule
from rawlog.values.protobuf_values import MessageReader
from rawlog.values.registry import Catalog, Schema, Version
from rawlog.values.transform import Wish

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "number", "type": "long"},
        {"name": "placed", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "total", "type": "double"},
        {"name": "status", "type": {"type": "enum", "name": "Status", "symbols": ["NEW", "PAID", "SENT"]}},
        {"name": "note", "type": ["null", "string"]},
    ],
}
PROTO = """syntax = "proto3";
message Order { string id = 1; int64 number = 2; int64 placed = 3; double total = 4; Status status = 5; optional string note = 6;
enum Status { NEW = 0; PAID = 1; SENT = 2; } }"""

#: Fields that are masked: one with different values, one with few; numbers; one that is dropped.
MASKS = (("id", "hash"), ("note", "hash"), ("id", "digits"), ("number", "digits"), ("note", "drop"))


def orders(count: int) -> list[dict[str, Any]]:
    """Rows with a field of each kind."""
    chance = random.Random(1)
    return [
        {"id": f"order-{chance.randrange(10**9)}", "number": chance.randrange(10**12), "placed": 1_700_000_000_000 + number,
         "total": chance.random(), "status": chance.choice(("NEW", "PAID", "SENT")), "note": chance.choice((None, "some text"))}
        for number in range(count)
    ]  # fmt: skip


def column(bench: Bench, bodies: list[bytes]) -> pa.Array:
    bench.rows, bench.bytes = len(bodies), sum(map(len, bodies))
    return pa.array(bodies, pa.binary())


def catalog_of(kind: str, text: str) -> Catalog:
    """A registry with the one schema."""
    catalog = Catalog()
    catalog.put(Version(".", "orders-value", 1, Schema(kind, text, (), ".", 7)))
    return catalog


def avro(bench: Bench) -> tuple[list[bytes], pa.Array, Catalog]:
    """Bodies, the same as values of records, and their schema."""
    schema, bodies = fastavro.parse_schema(SCHEMA), []
    for row in orders(bench.size):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        bodies.append(out.getvalue())
    return bodies, column(bench, [b"\0\0\0\0\7" + body for body in bodies]), catalog_of("AVRO", json.dumps(SCHEMA))


def decode(values: pa.Array, catalog: Catalog, reader: Any = None, kind: str = "auto") -> Callable[[], int]:
    """Decode a column of values, to JSON texts, or to columns with a reader of them."""
    topics, decoder = pa.repeat(pa.scalar("orders"), len(values)), ValueDecoder(catalog, {"value": kind})

    def run() -> int:
        if reader is None:
            return len(decoder.decode(values, None, topics, "value").values(pa.string()))
        return len(decoder.decode(values, None, topics, "value", reader).values(reader.arrow))

    return run


def avro_ways(bench: Bench, reader: Any) -> Iterator[Way]:
    bodies, values, catalog = avro(bench)
    schema = fastavro.parse_schema(SCHEMA)
    yield Work("rawlog", decode(values, catalog, reader))
    yield Peer("fastavro", lambda: len([fastavro.schemaless_reader(io.BytesIO(body), schema, None) for body in bodies]))


@case("Avro to JSON text", size=50_000, tiny=200, unit="rows", rows="values")
def avro_text(bench: Bench) -> Iterator[Way]:
    """Avro values with a schema of the registry as JSON texts; the peer only makes objects."""
    return avro_ways(bench, None)


@case("Avro to columns", size=50_000, tiny=200, unit="rows", rows="values")
def avro_columns(bench: Bench) -> Iterator[Way]:
    """Avro values with a schema of the registry as a struct of Arrow."""
    return avro_ways(bench, Reader(parse(json.dumps(SCHEMA))))


def protobuf_ways(bench: Bench, *, to_columns: bool) -> Iterator[Way]:
    from google.protobuf.json_format import MessageToDict

    compiled = protobuf.compile_schema(PROTO)
    message = compiled.message((0,))
    bodies = [message(**row).SerializeToString() for row in orders(bench.size)]
    values, catalog = column(bench, [b"\0\0\0\0\7\0" + body for body in bodies]), catalog_of("PROTOBUF", PROTO)
    yield Work("rawlog", decode(values, catalog, MessageReader(compiled, (0,)) if to_columns else None))
    yield Peer(
        "MessageToDict", lambda: len([json.dumps(MessageToDict(message.FromString(body))) for body in bodies]), rounds=3
    )


@case("Protobuf to JSON text", size=20_000, tiny=200, unit="rows", rows="values")
def protobuf_text(bench: Bench) -> Iterator[Way]:
    """Protobuf values with a schema of the registry as JSON texts."""
    return protobuf_ways(bench, to_columns=False)


@case("Protobuf to columns", size=20_000, tiny=200, unit="rows", rows="values")
def protobuf_columns(bench: Bench) -> Iterator[Way]:
    """Protobuf values with a schema of the registry as a struct of Arrow."""
    return protobuf_ways(bench, to_columns=True)


@case("JSON field", size=50_000, tiny=200, unit="rows", rows="values")
def json_field(bench: Bench) -> Iterator[Way]:
    """A field of JSON values as a column."""
    documents = column(bench, [json.dumps(row).encode() for row in orders(bench.size)])
    texts = documents.to_pylist()
    yield Work("rawlog", lambda: len(field_of(documents, ("status",))))
    yield Peer("json.loads", lambda: len([json.loads(text).get("status") for text in texts]))


@case("JSON checked", size=50_000, tiny=200, unit="rows", rows="values")
def json_checked(bench: Bench) -> Iterator[Way]:
    """Whether each value is JSON."""
    documents = column(bench, [json.dumps(row).encode() for row in orders(bench.size)])
    texts = documents.to_pylist()
    yield Work("rawlog", decode(documents, Catalog(), kind="json"))
    yield Peer("json.loads", lambda: len([json.loads(text) for text in texts]))


def mask_case(kind: str, field: str, how: str) -> None:
    """Declare a case of a mask; the masker knows no texts yet when it begins."""

    @case(f"mask {field} in {kind} ({how})", size=20_000, tiny=200, unit="rows", rows="values", rounds=3, default=False)
    def body(bench: Bench) -> Iterator[Way]:
        """A field of all values masked, next to a loop that only decodes and encodes them."""
        catalog = Catalog()
        if kind == "avro":
            bodies, values, catalog = avro(bench)
            schema = fastavro.parse_schema(SCHEMA)

            def loop() -> int:
                for text in bodies:
                    fastavro.schemaless_writer(
                        io.BytesIO(), schema, fastavro.schemaless_reader(io.BytesIO(text), schema, None)
                    )
                return len(bodies)
        else:
            bodies = [json.dumps(row).encode() for row in orders(bench.size)]
            values = column(bench, bodies)

            def loop() -> int:
                return len([json.dumps(json.loads(text)) for text in bodies])

        batch = pa.record_batch([values, pa.repeat(pa.scalar("orders"), len(values))], ["value", "topic"])

        def run() -> int:
            rule = MaskRule(f"value.{field}", "value", (field,), how)
            mask = SchemaMask([rule], Masker(b"secret of a benchmark"), "keep", {"value": Wish("auto")}).bound(catalog)
            return int(mask.apply(batch, RECORDS).num_rows)

        yield Work("rawlog", run)
        yield Peer("decode and encode", loop)


for kind in ("avro", "json"):
    for field, how in MASKS:
        mask_case(kind, field, how)


if __name__ == "__main__":
    main(__doc__)
