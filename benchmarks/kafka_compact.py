"""How fast a log is compacted, one core, against Kafka's own cleaner on the same segments in the same run.

python benchmarks/kafka_compact.py --megabytes 512 --keys 1000000 --size 100 [--codec zstd] [--kafka] [--directory DIR]

Rates are of processor time. With --kafka a real broker (3.9) is started on copies of the same segments: the time of its cleaner's thread
is taken for each, and what its own log lines say is shown too.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import rawlog
from rawlog.formats.kafka.partition.compact import compact
from rawlog.io.output import Folder
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.reading.tree import open_tree

SEGMENT = 128 << 20
BATCH = 1 << 20


def make_log(folder: Path, given: argparse.Namespace) -> Path:
    """A partition of records with random keys, in segments of 128 MiB."""
    draw = np.random.default_rng(1)
    count = given.megabytes * (1 << 20) // (given.size + 12)
    value = draw.integers(97, 123, given.size - 12, np.uint8).tobytes()
    now = int(time.time() * 1e3) * 1000 - 3_600_000_000

    def batches() -> pa.RecordBatchReader:
        def each():  # type: ignore[no-untyped-def]
            for first in range(0, count, BATCH):
                rows = min(BATCH, count - first)
                keys = draw.integers(0, given.keys, rows)
                text = pa.array(keys).cast(pa.string())
                columns = {
                    "key": pa.compute.utf8_lpad(text, 12, "0").cast(pa.binary()),
                    "value": pa.repeat(pa.scalar(value), rows),
                    "topic": pa.repeat(pa.scalar("compacted"), rows),
                    "partition": pa.repeat(pa.scalar(0, pa.int32()), rows),
                    "offset": pa.array(np.arange(first, first + rows)),
                    "timestamp": pa.array(now + np.arange(rows) // 1000 * 1000).cast(pa.timestamp("us", "UTC")),
                    "timestampType": pa.repeat(pa.scalar(0, pa.int32()), rows),
                    "headers": pa.array([[]] * rows, RECORDS.schema.field("headers").type),
                }
                yield pa.RecordBatch.from_arrays([columns[name] for name in RECORDS.names], schema=RECORDS.schema)

        return pa.RecordBatchReader.from_batches(RECORDS.schema, each())

    rawlog.write(
        folder,
        batches(),
        format="kafka",
        codec=given.codec,
        segment_bytes=SEGMENT,
        batch_bytes=given.batch,
    )
    return folder / "compacted-0"


def ours(source: Path, scratch: Path, repeat: int = 3) -> float:
    """Megabytes a second of a compaction of all but the active segment, start to end."""
    files = list(open_tree(source))
    size = sum(file.size for file in files if file.format == "kafka.log")
    best = float("inf")
    for number in range(repeat):
        target = scratch / f"ours-{number}" / "compacted-0"
        start = time.process_time()
        report = compact(Store(files), Folder(target).make(), {"segment_bytes": str(SEGMENT)})
        best = min(best, time.process_time() - start)
        shutil.rmtree(target.parent)
    print(" ".join(report.lines()))
    return size / best / (1 << 20)


def theirs(source: Path, scratch: Path) -> float:
    """Megabytes a second of Kafka's cleaner, with its compilers warmed by a first log of the same kind."""
    from confluent_kafka.admin import AdminClient, NewTopic

    sys.path.insert(0, str(Path(__file__).parents[1]))
    from tests.services import kafka

    kafka.JVM = ("-Xmx1g", "-XX:+UseSerialGC")
    properties = {
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.threads": "1",
        "log.index.size.max.bytes": str(10 << 20),
    }
    settings = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT), "min.cleanable.dirty.ratio": "0.0"}
    names = ["compacted", "compacted-again", "compacted-at-last"]
    with kafka.KafkaBroker(kafka.KAFKA_3, scratch / "broker", properties) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for done in admin.create_topics([NewTopic(name, 1, config=settings) for name in names]).values():
            done.result(30)
        broker.stop()
        for name in names:
            for path in source.glob("*.log"):
                shutil.copy2(path, scratch / "broker" / f"{name}-0" / path.name)
                for other in (scratch / "broker" / f"{name}-0").glob(f"{path.stem}.*index"):
                    other.unlink()
        broker.start()
        deadline, spent, found = time.monotonic() + 900, [cleaner_seconds(broker)], []
        while len(found) < len(names) and time.monotonic() < deadline:
            time.sleep(0.1)
            before = len(found)
            found = re.findall(
                r"cleaned log compacted\S* .*?\n\s*([\d.,]+) MB of log processed in ([\d.,]+) seconds \(([\d.,]+) MB/sec\)",
                broker.log.read_text(errors="replace"),
            )
            spent += [cleaner_seconds(broker)] * (len(found) - before)
    sizes = [float(size.replace(",", "")) for size, _, _ in found]
    rates = [size / max(after - before, 0.01) for size, before, after in zip(sizes, spent, spent[1:], strict=False)]
    reported = ", ".join(rate for _, _, rate in found)
    print(f"Kafka's cleaner, log by log, by its own word (time on the wall): {reported} MB/s")
    return max(rates)


def cleaner_seconds(broker: object) -> float:
    """The processor time that the cleaner's thread has taken; the compilers and the collector are not counted."""
    pid = broker._process.pid  # type: ignore[attr-defined]
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("kafka-log-clean"):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16 << 10)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--directory", default=None)
    parser.add_argument("--kafka", action="store_true")
    given = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(dir=given.directory))
    try:
        source = make_log(scratch / "logs", given)
        rate = ours(source, scratch)
        print(f"{'rawlog compact (' + given.codec + '), one core':<44} {rate:8.0f} MB/s")
        if given.kafka:
            other = theirs(source, scratch)
            print(f"{'Kafka 3.9 cleaner, one thread':<44} {other:8.0f} MB/s  (ours: {rate / other:.1f} times)")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main()
