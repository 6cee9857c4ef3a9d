"""How fast rows become batches of magic 2, and a whole partition with its indexes, next to aiokafka's encoder and librdkafka."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from data import records
from harness import Bench, Limit, Peer, Way, Work, case, main

import rawlog
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_rows
from rawlog.io import checksums, compression

WINDOW, BATCH = 4 << 20, 100


def librdkafka_into(bootstrap: str, rows: pa.RecordBatch, codec: str = "none") -> Callable[[], int]:
    """Produces rows to the topic `orders`, many in a call, up to the last acknowledgement."""
    from confluent_kafka import Producer

    columns = rows.column("key").to_pylist(), rows.column("value").to_pylist()
    messages = [{"key": key, "value": value} for key, value in zip(*columns, strict=True)]  # a batch takes no times
    chunks = [messages[start : start + 10_000] for start in range(0, len(messages), 10_000)]
    settings = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "compression.type": codec,
        "linger.ms": 20,
        "queue.buffering.max.messages": 2_000_000,
        "queue.buffering.max.kbytes": 1 << 20,
        "acks": 1,
    }

    def produce() -> int:
        producer = Producer(settings)
        for chunk in chunks:
            while len(producer) > 1_000_000:
                producer.poll(0.01)
            assert producer.produce_batch("orders", chunk) == len(chunk)
        assert producer.flush(120) == 0
        return len(messages)

    return produce


@contextmanager
def librdkafka(folder: Path, rows: pa.RecordBatch) -> Iterator[Callable[[], int]]:
    """The client with a real broker on this machine, whose time is not counted."""
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.services.kafka import KAFKA_3, KafkaBroker

    with KafkaBroker(KAFKA_3, folder) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic("orders", 1)]).values():
            future.result(60)
        yield librdkafka_into(broker.bootstrap, rows)


def aiokafka(rows: pa.RecordBatch, codec: str) -> Peer:
    """Its encoder, which is compiled too, a batch of a hundred records at a time; it gets Python objects."""
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    share = rows.slice(0, 50_000)
    keys, values = share.column("key").to_pylist(), share.column("value").to_pylist()
    times = share.column("timestamp").cast(pa.int64()).to_numpy() // 1000

    def run() -> int:
        for start in range(0, len(keys), BATCH):
            builder = DefaultRecordBatchBuilder(
                magic=2, compression_type=("none", "gzip", "snappy", "lz4", "zstd").index(codec), is_transactional=0,
                producer_id=-1, producer_epoch=-1, base_sequence=-1, batch_size=1 << 20,
            )  # fmt: skip
            for at in range(start, min(start + BATCH, len(keys))):
                builder.append(at - start, int(times[at]), keys[at], values[at], [])
            builder.build()
        return len(keys)

    return Peer("aiokafka", run, rows=len(keys))


def encoding(codec: str) -> None:
    """Declare the case of a codec."""

    @case(f"encode, {codec}", size=500_000, tiny=2_000, unit="records")
    def body(bench: Bench) -> Iterator[Way]:
        """Rows of Arrow as batches of magic 2 in memory; the peer gets Python objects."""
        rows = records(bench.size)
        batching = Batching(codec=codec)
        bench.rows, bench.bytes = bench.size, rows.nbytes
        data = np.array(encode_rows(RowBuffers.of(rows), batching).frames.data)
        plain = rows.column("value").buffers()[2].to_pybytes()

        def copy_and_checksum() -> int:
            buffer = np.empty(WINDOW, np.uint8)
            for start in range(0, data.size, WINDOW):
                window = data[start : start + WINDOW]
                buffer[: window.size] = window
                checksums.crc32c(buffer[: window.size])
            return bench.rows

        def compress() -> int:
            for start in range(0, len(plain), 16 << 10):
                compression.compress(codec, plain[start : start + (16 << 10)])
            return bench.rows

        def run() -> int:
            return encode_rows(RowBuffers.of(rows), batching).rows

        yield Work("rawlog", run)
        yield aiokafka(rows, codec)
        if codec == "none":
            yield Limit("memory copy and CRC-32C", copy_and_checksum)
        else:
            yield Limit("compression of the values alone", compress)


@case("write a partition", size=500_000, tiny=2_000, unit="records")
def partition(bench: Bench) -> Iterator[Way]:
    """A partition directory with its indexes, synced to the disk; librdkafka's time is that of the client alone, without its broker."""
    rows = records(bench.size)
    table, target = pa.Table.from_batches([rows]), bench.folder / "written"
    bench.rows, bench.bytes = bench.size, rows.nbytes

    def run() -> int:
        shutil.rmtree(target, ignore_errors=True)
        return int(rawlog.write(target, table, format="kafka"))

    assert run() == bench.rows
    log = b"".join(path.read_bytes() for path in sorted(target.rglob("*.log")))

    def write() -> int:
        with (bench.folder / "copy").open("wb") as file:
            file.write(log)
            file.flush()
            os.fsync(file.fileno())
        return bench.rows

    yield Work("rawlog write", run)
    yield Peer("librdkafka to a broker", start=lambda: librdkafka(bench.folder / "broker", rows))
    yield Limit("writing its bytes", write)


for codec in ("none", "zstd"):
    encoding(codec)


if __name__ == "__main__":
    main(__doc__)
