"""How fast Avro and Protobuf values become JSON texts and columns, and fields of JSON values columns, next to loops over the libraries; and
how fast fields are masked.

python benchmarks/decode_values.py [--rows 100000]
"""

from __future__ import annotations

import argparse
import io
import json
import random
import time
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa

from rawlog.model.table import RECORDS
from rawlog.reading.fields import field_of
from rawlog.values import protobuf
from rawlog.values.avro import parse
from rawlog.values.avro_values import Reader
from rawlog.values.decode import Decoder
from rawlog.values.mask import SchemaMask
from rawlog.values.masker import Masker, Rule
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

#: Fields that are masked: one with different values, one with few; numbers; one that is dropped.
MASKS = (("id", "hash"), ("note", "hash"), ("id", "digits"), ("number", "digits"), ("note", "drop"))


def best(work: Callable[[], Any]) -> float:
    """The least time of three, of the processor: other work on the machine does not count."""
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


PROTO = """syntax = "proto3";
message Order { string id = 1; int64 number = 2; int64 placed = 3; double total = 4; Status status = 5; optional string note = 6;
enum Status { NEW = 0; PAID = 1; SENT = 2; } }"""


def messages(rows: list[dict[str, Any]]) -> None:
    """The same rows as Protobuf."""
    from google.protobuf.json_format import MessageToDict

    made = protobuf.compile_schema(PROTO)
    message, count = made.message((0,)), len(rows)
    bodies = [message(**row).SerializeToString() for row in rows]
    catalog = Catalog()
    catalog.put(Version(".", "orders-value", 1, Schema("PROTOBUF", PROTO, (), ".", 7)))
    column = pa.array([b"\0\0\0\0\7\0" + body for body in bodies], pa.binary())
    topics, decoder, reader = (
        pa.array(["orders"] * count),
        Decoder(catalog, {"value": "auto"}),
        MessageReader(made, (0,)),
    )
    decoder.decode(column.slice(0, 10), None, topics.slice(0, 10), "value")
    slow = best(lambda: [json.dumps(MessageToDict(message.FromString(one))) for one in bodies])
    shown = best(lambda: decoder.decode(column, None, topics, "value").values(pa.string()))
    nested = best(lambda: decoder.decode(column, None, topics, "value", reader).values(reader.arrow))
    print(f"protobuf, MessageToDict {count / slow:12,.0f} rows/s")
    print(f"protobuf to JSON text   {count / shown:12,.0f} rows/s  {slow / shown:5.1f} x")
    print(f"protobuf to columns     {count / nested:12,.0f} rows/s  {slow / nested:5.1f} x")


def main() -> None:
    """Print rows per second."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rows", type=int, default=100_000)
    count = options.parse_args().rows
    rng = random.Random(1)
    rows = [
        {"id": f"order-{rng.randrange(10**9)}", "number": rng.randrange(10**12), "placed": 1_700_000_000_000 + number,
         "total": rng.random(), "status": rng.choice(("NEW", "PAID", "SENT")), "note": rng.choice((None, "some text"))}
        for number in range(count)
    ]  # fmt: skip
    schema = fastavro.parse_schema(SCHEMA)
    bodies = []
    for row in rows:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, row)
        bodies.append(out.getvalue())
    text = json.dumps(SCHEMA)
    catalog = Catalog()
    catalog.put(Version(".", "orders-value", 1, Schema("AVRO", text, (), ".", 7)))
    column = pa.array([b"\0\0\0\0\7" + body for body in bodies], pa.binary())
    topics, decoder, reader = pa.array(["orders"] * count), Decoder(catalog, {"value": "auto"}), Reader(parse(text))
    decoder.decode(column.slice(0, 10), None, topics.slice(0, 10), "value")
    slow = best(lambda: [fastavro.schemaless_reader(io.BytesIO(one), schema, None) for one in bodies])
    shown = best(lambda: decoder.decode(column, None, topics, "value").values(pa.string()))
    nested = best(lambda: decoder.decode(column, None, topics, "value", reader).values(reader.arrow))
    print(f"avro, fastavro's loop   {count / slow:12,.0f} rows/s")
    print(f"avro to JSON text       {count / shown:12,.0f} rows/s  {slow / shown:5.1f} x")
    print(f"avro to columns         {count / nested:12,.0f} rows/s  {slow / nested:5.1f} x")
    messages(rows)
    documents = pa.array([json.dumps(row).encode() for row in rows], pa.binary())
    texts = documents.to_pylist()
    field_of(documents.slice(0, 10), ("status",))
    slow = best(lambda: [json.loads(one).get("status") for one in texts])
    quick = best(lambda: field_of(documents, ("status",)))
    decoder = Decoder(Catalog(), {"value": "json"})
    checked = best(lambda: decoder.decode(documents, None, topics, "value").values(pa.string()))
    print(f"json, json.loads' loop  {count / slow:12,.0f} rows/s")
    print(f"json field              {count / quick:12,.0f} rows/s  {slow / quick:5.1f} x")
    print(f"json checked            {count / checked:12,.0f} rows/s  {slow / checked:5.1f} x")
    for name, values in (("avro", column), ("json", documents)):
        batch = pa.record_batch([values, topics], ["value", "topic"])
        for field, how in MASKS:
            taken = best(lambda: masked(batch, catalog, field, how))  # noqa: B023 - called at once
            print(f"{name} masked, {field}={how:6} {count / taken:12,.0f} rows/s")


def masked(batch: pa.RecordBatch, catalog: Catalog, field: str, how: str) -> pa.RecordBatch:
    """The rows with a masked field; the masker knows no texts yet."""
    rule = Rule(f"value.{field}", "value", (field,), how)
    mask = SchemaMask([rule], Masker(b"secret of a benchmark"), "keep", {"value": Wish("auto")}).bound(catalog)
    return mask.apply(batch, RECORDS)


if __name__ == "__main__":
    main()
