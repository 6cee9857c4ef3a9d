"""How fast segments of Kafka become Arrow columns and are verified, next to Kafka's own code on the same file, and aiokafka.

Kafka's reader is a warm loop over FileRecords with ensureValid that only touches sizes (its streaming iterator for compressed batches);
for headers it does not look into batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from data import kafka_log
from harness import Bench, JavaLoop, Limit, Peer, Way, Work, case, main

import rawlog
from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.io import checksums, compression
from tests.reference import kafka as reference
from tests.services.kafka import KAFKA_3, dump_log_segments

JARS = f"kafka-{KAFKA_3}"
READER = "Kafka's reader (Java)"
SHARE = 8 << 20
"""Bytes that a peer in Python gets."""
WINDOW = 4 << 20


def segment(bench: Bench, codec: str = "none") -> Path:
    """A segment in a partition directory, and how much it holds."""
    path = bench.folder / "orders-0" / f"{0:020d}.log"
    path.parent.mkdir()
    log = kafka_log(bench.size * 1_000_000, codec)
    path.write_bytes(log)
    bench.bytes, bench.rows = len(log), len(spans(log)) * 100
    return path


def spans(log: bytes) -> list[tuple[int, int]]:
    """Where batches begin and end."""
    found, position = [], 0
    while position < len(log):
        stop = position + 12 + int.from_bytes(log[position + 8 : position + 12], "big")
        found.append((position, stop))
        position = stop
    return found


def rows(path: Path, **selection: object) -> Callable[[], int]:
    """Read every row into Arrow columns."""
    log = rawlog.open(path)
    return lambda: sum(batch.num_rows for batch in log.table("records", **selection).batches())


def kafka_reader(path: Path, what: str) -> Peer:
    return Peer(READER, start=lambda: JavaLoop(JARS, "ReadSegment.java", path, what), warm=JavaLoop.PASSES)


def aiokafka(data: bytes, count: int) -> Peer:
    """A loop over the first bytes; every field is touched that rawlog fills."""
    from aiokafka.record import MemoryRecords

    def run() -> int:
        memory, total = MemoryRecords(data), 0
        while memory.has_next():
            batch = memory.next_batch()
            assert batch is not None
            assert batch.validate_crc()
            for record in batch:
                _ = record.offset, record.timestamp, record.key, record.value, record.headers
                total += 1
        return total

    return Peer("aiokafka", run, rows=count)


def copy_and_checksum(path: Path, count: int) -> Limit:
    """Each window copied once, and its CRC-32C."""
    data, buffer = np.fromfile(path, np.uint8), np.empty(WINDOW, np.uint8)

    def run() -> int:
        for start in range(0, data.size, WINDOW):
            window = data[start : start + WINDOW]
            buffer[: window.size] = window
            checksums.crc32c(buffer[: window.size])
        return count

    return Limit("memory copy and CRC-32C", run)


@case("v2, every column", size=256)
def every_column(bench: Bench) -> Iterator[Way]:
    """All columns of `records` from batches of magic 2 without compression, checksums compared."""
    path = segment(bench)
    part = path.read_bytes()[: spans(path.read_bytes()[:SHARE])[-2][1]] if bench.bytes > SHARE else path.read_bytes()
    yield Work("rawlog", rows(path))
    yield kafka_reader(path, "records")
    yield aiokafka(part, len(spans(part)) * 100)
    yield copy_and_checksum(path, bench.rows)


@case("v2, offsets only", size=256)
def offsets(bench: Bench) -> Iterator[Way]:
    """The column `offset` of batches of magic 2."""
    path = segment(bench)
    yield Work("rawlog", rows(path, columns=["offset"]))
    yield kafka_reader(path, "records")


@case("v2, checksums and headers", size=256)
def headers(bench: Bench) -> Iterator[Way]:
    """The number of records by the headers of batches, checksums compared."""
    path = segment(bench)
    yield Work("rawlog", lambda: rawlog.open(path).table().count())
    yield kafka_reader(path, "headers")
    yield copy_and_checksum(path, bench.rows)


@case("verify", size=64, rounds=3)
def verify(bench: Bench) -> Iterator[Way]:
    """Every check of a partition; the dump tool's deep iteration also prints what it reads, and starts a JVM."""
    path = segment(bench)

    def run() -> int:
        assert rawlog.verify(path).frames == bench.rows // 100
        return bench.rows

    def dump() -> int:
        dumped = dump_log_segments(KAFKA_3, [path], "--deep-iteration")
        return sum(line.startswith("| offset:") for line in dumped.splitlines())

    yield Work("rawlog verify", run)
    yield Peer("DumpLogSegments (Java)", dump, warm=0, rounds=2)
    yield copy_and_checksum(path, bench.rows)


def compressed(codec: str) -> None:
    """Declare a case for a codec."""

    @case(f"v2, {codec}", size=64)
    def body(bench: Bench) -> Iterator[Way]:
        """All columns of `records` from compressed batches of magic 2."""
        path = segment(bench, codec)
        data = memoryview(path.read_bytes())
        bodies = [data[start + BATCH.size : stop] for start, stop in spans(data.obj)]  # type: ignore[arg-type]

        def decompress() -> int:
            for body in bodies:
                compression.decompress(codec, body)
            return bench.rows

        yield Work("rawlog", rows(path))
        yield kafka_reader(path, "records")
        yield Limit("decompression alone", decompress)


for name in ("zstd", "lz4", "snappy", "gzip"):
    compressed(name)


@case("magic 1, every column", size=32)
def legacy(bench: Bench) -> Iterator[Way]:
    """All columns of `records` from message sets of magic 1 without compression."""
    entry = reference.encode_entry(1, 0, b"k" * 8, b"v" * 100, timestamp=1_700_000_000_000)
    bench.rows = bench.size * 1_000_000 // len(entry)
    entries = np.tile(np.frombuffer(entry, np.uint8), (bench.rows, 1))
    entries[:, :8] = np.arange(bench.rows, dtype=">i8").view(np.uint8).reshape(-1, 8)
    path = bench.folder / "orders-0" / f"{0:020d}.log"
    path.parent.mkdir()
    path.write_bytes(entries.tobytes())
    bench.bytes = entries.size
    share = min(bench.rows, SHARE // len(entry))
    yield Work("rawlog", rows(path))
    yield aiokafka(entries[:share].tobytes(), share)


if __name__ == "__main__":
    main(__doc__)
