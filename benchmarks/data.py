"""Data of benchmarks: the same bytes in each run, made quickly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.writer import Properties, put_message, segment_header
from rawlog.formats.kafka.log.layouts import BATCH, CODECS
from rawlog.io import checksums, compression
from rawlog.model.table import RECORDS

START_MS = 1_700_000_000_000
VALUE = 100

# Kafka ----------------------------------------------------------------------------------------------------------------------


def zigzag(number: int) -> bytes:
    """A signed number as Kafka writes it."""
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def kafka_log(size: int, codec: str = "none", *, records: int = 100, value: int = VALUE, headers: int = 0) -> bytes:
    """Batches of `records` records with 8-byte keys and hexadecimal values; the bodies of 16 are used again and again."""
    random = np.random.default_rng(1)
    bodies = []
    for _ in range(16):
        body = b""
        for delta in range(records):
            text = random.bytes(value // 2).hex().encode()
            record = b"\0" + zigzag(delta) + zigzag(delta) + zigzag(8) + b"k%07d" % delta + zigzag(len(text)) + text
            record += zigzag(headers) + (zigzag(5) + b"trace" + zigzag(4) + b"abcd") * headers
            body += zigzag(len(record)) + record
        bodies.append(bytes(compression.compress(codec, body)))
    batches, total, base = [], 0, 0
    head = np.zeros(1, BATCH.dtype)
    head["magic"], head["attributes"], head["last_offset_delta"] = 2, CODECS.index(codec), records - 1
    head["record_count"] = records
    head["producer_id"] = head["producer_epoch"] = head["base_sequence"] = head["leader_epoch"] = -1
    while total < size:
        body = bodies[len(batches) % 16]
        head["base_offset"], head["length"], head["crc"] = base, BATCH.size - 12 + len(body), 0
        head["base_timestamp"], head["max_timestamp"] = START_MS + base, START_MS + base + records - 1
        head["crc"] = checksums.crc32c(head.tobytes() + body, BATCH.after("crc"))
        batches.append(head.tobytes() + body)
        total += len(batches[-1])
        base += records
    return b"".join(batches)


def kafka_segments(folder: Path, size: int, codec: str = "none", partitions: int = 8) -> int:
    """About `size` bytes of segments, one for each partition. -> records"""
    log = kafka_log(max(1, size // partitions), codec)
    batches, position = 0, 0
    while position < len(log):
        position += 12 + int.from_bytes(log[position + 8 : position + 12], "big")
        batches += 1
    for partition in range(partitions):
        target = folder / f"orders-{partition}"
        target.mkdir(parents=True)
        (target / f"{0:020}.log").write_bytes(log)
    return batches * 100 * partitions


def size_of(folder: Path, pattern: str = "*.log") -> int:
    """Bytes of the files below a folder."""
    return sum(path.stat().st_size for path in folder.rglob(pattern))


# Rows -----------------------------------------------------------------------------------------------------------------------


def values(count: int, seed: int = 1, size: int = VALUE) -> pa.Array:
    """Values of hexadecimal text: half of their bits are news."""
    numbers = np.random.default_rng(seed).integers(0, 16, count * size, np.uint8)
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[numbers]
    offsets = np.arange(count + 1, dtype=np.int32) * size
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def records(
    count: int,
    *,
    first: int = 0,
    topic: str = "orders",
    start_ms: int = START_MS,
    value: pa.Array | None = None,
    key: pa.Array | None = None,
) -> pa.RecordBatch:
    """Rows of the table `records` with keys of 8 bytes, one for each millisecond."""
    numbers = np.arange(first, first + count)
    if key is None:
        key = pa.array(np.char.add("k", np.char.zfill((numbers % 10_000_000).astype(str), 7)).astype("S8"), pa.binary())
    columns = {
        "key": key,
        "value": values(count, first + 1) if value is None else value,
        "topic": pa.repeat(pa.scalar(topic), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(numbers),
        "timestamp": pa.array((start_ms + numbers) * 1000).cast(pa.timestamp("us", "UTC")),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
        "headers": pa.array([[]] * count, RECORDS.schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in RECORDS.names], schema=RECORDS.schema)


def rocketmq_rows(size: int) -> Iterator[pa.RecordBatch]:
    """Rows until about `size` bytes of commit log are made: bodies of 100 to 200 bytes, five properties, about 350 bytes a message."""
    random, number, total = np.random.default_rng(1), 0, 0
    count = 20_000
    while total < size:
        lengths = random.integers(100, 201, count)
        body = random.bytes(int(lengths.sum()))
        ends = np.concatenate(([0], np.cumsum(lengths)))
        numbers = range(number, number + count)
        headers = [
            [
                {"key": "TAGS", "value": b"Tag%d" % (i % 7)},
                {"key": "KEYS", "value": b"order-%d" % i},
                {"key": "UNIQ_KEY", "value": b"0A000001162C18B4AAC2%012X" % i},
                {"key": "WAIT", "value": b"true"},
                {"key": "CLUSTER", "value": b"DefaultCluster"},
            ]
            for i in numbers
        ]
        columns = {
            "key": [b"order-%d" % i for i in numbers],
            "value": [body[ends[i] : ends[i + 1]] for i in range(count)],
            "topic": ["OrderTopic"] * count,
            "partition": [i % 4 for i in numbers],
            "offset": [i // 4 for i in numbers],
            "timestamp": [(START_MS + i) * 1000 for i in numbers],
            "timestampType": [0] * count,
            "headers": headers,
        }
        yield pa.RecordBatch.from_pydict(columns, schema=RECORDS.schema)
        number += count
        total += int(lengths.sum()) + count * 212


# Ambry ----------------------------------------------------------------------------------------------------------------------


def ambry_log(path: Path, size: int, blob: int | None = None) -> int:
    """A log segment of PUTs with random content: blobs of one size, or of 0 to 64 KiB, 9 KB in the mean. -> messages"""
    random = np.random.default_rng(1)
    noise = random.bytes(1 << 18)
    written = count = 0
    with path.open("wb") as out:
        out.write(segment_header(1 << 40))
        while written < size:
            length = min(65536, int(random.exponential(9300))) if blob is None else blob
            start = int(random.integers(0, len(noise) - length))
            properties = Properties(
                blob_size=length,
                creation_time=START_MS + count,
                content_type="image/png",
                owner_id="own",
                service_id="svc",
                account_id=101,
                container_id=7,
            )
            key = keys.make(6, 9, random.bytes(16).hex(), datacenter_id=2, account_id=101, container_id=7)
            message = put_message(key, properties, noise[start : start + length], user_metadata=b"um")
            out.write(message)
            written += len(message)
            count += 1
    return count
