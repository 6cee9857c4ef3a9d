"""How fast rows become batches of magic 2, and a whole partition with its indexes.

python benchmarks/kafka_encode.py --records 1000000 --size 100 [--codec zstd] [--directory DIR]

With --librdkafka a real broker (3.9) is started and the same records are produced to it by librdkafka, in the same run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import rawlog
from rawlog.formats.kafka.log.writer import Batching, Rows, encode_rows
from rawlog.model.table import RECORDS


def make_records(count: int, size: int) -> pa.RecordBatch:
    """Records of `size` bytes: a key of 8, the rest value."""
    value = pa.array([os.urandom((size - 8) // 2).hex().encode() for _ in range(1024)] * (count // 1024 + 1)).slice(
        0, count
    )
    columns = {
        "key": pa.array([b"k%07d" % (number % 10_000_000) for number in range(count)], pa.binary()),
        "value": value.cast(pa.binary()),
        "topic": pa.repeat(pa.scalar("orders"), count),
        "partition": pa.repeat(pa.scalar(0, pa.int32()), count),
        "offset": pa.array(np.arange(count)),
        "timestamp": pa.array(1_700_000_000_000_000 + np.arange(count) * 1000).cast(pa.timestamp("us", "UTC")),
        "timestampType": pa.repeat(pa.scalar(0, pa.int32()), count),
        "headers": pa.array([[]] * count, RECORDS.schema.field("headers").type),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in RECORDS.names], schema=RECORDS.schema)


def measure(what: str, records: pa.RecordBatch, run: object, repeat: int = 3) -> float:
    best = float("inf")
    for _ in range(repeat):
        start = time.perf_counter()
        run()  # type: ignore[operator]
        best = min(best, time.perf_counter() - start)
    rate = records.num_rows / best
    print(f"{what:<44} {rate / 1e6:8.2f} million records/s  {records.nbytes / best / 1e6:8.0f} MB/s")
    return rate


def produce(records: pa.RecordBatch, codec: str) -> float:
    """The rate of librdkafka producing to a real local broker, many records a call."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.services.kafka import KAFKA_3, KafkaBroker

    folder = tempfile.mkdtemp()
    columns = records.column("key").to_pylist(), records.column("value").to_pylist()
    messages = [{"key": key, "value": value} for key, value in zip(*columns, strict=True)]  # a batch takes no times
    chunks = [messages[start : start + 10_000] for start in range(0, len(messages), 10_000)]
    try:
        with KafkaBroker(KAFKA_3, folder) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
            for future in admin.create_topics([NewTopic("orders", 1)]).values():
                future.result()
            settings = {
                "bootstrap.servers": broker.bootstrap,
                "log_level": 0,
                "compression.type": codec,
                "linger.ms": 20,
                "queue.buffering.max.messages": 2_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "acks": 1,
            }
            producer = Producer(settings)
            start = time.perf_counter()
            for chunk in chunks:
                while len(producer) > 1_000_000:
                    producer.poll(0.01)
                assert producer.produce_batch("orders", chunk) == len(chunk)
            producer.flush(120)
            return records.num_rows / (time.perf_counter() - start)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--directory", default=None)
    parser.add_argument("--librdkafka", action="store_true")
    given = parser.parse_args()
    records = make_records(given.records, given.size)
    batching = Batching(codec=given.codec)
    encode_rows(Rows.of(records.slice(0, 1000)), batching)
    rate = measure(f"encode ({given.codec})", records, lambda: encode_rows(Rows.of(records), batching))

    folder = Path(tempfile.mkdtemp(dir=given.directory))
    table = pa.Table.from_batches([records])

    def whole() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        rawlog.write(folder, table, format="kafka", codec=given.codec)

    measure("partition directory, indexes, fsync", records, whole)
    shutil.rmtree(folder, ignore_errors=True)
    if given.librdkafka:
        theirs = produce(records, given.codec)
        print(
            f"{'librdkafka to a local broker':<44} {theirs / 1e6:8.2f} million records/s  (encode: {rate / theirs:.1f} times)"
        )


if __name__ == "__main__":
    main()
