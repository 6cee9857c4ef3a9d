"""How fast a log is compacted, next to Kafka's own cleaner on copies of the same segments, and to copying them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from data import records, size_of, values
from harness import Bench, Limit, Peer, Run, Way, Work, case, main

import rawlog
from rawlog.formats.kafka.partition.compact import compact
from rawlog.io.output import Folder
from rawlog.model.store import Store
from rawlog.reading.tree import open_tree

BATCH, SEGMENTS, SHORT, ROUNDS = 1 << 18, 4, 88, 3


def make_log(bench: Bench, codec: str) -> Path:
    """A partition of records with random keys of 12 bytes, five to a key, an hour old."""
    draw = np.random.default_rng(1)
    count = bench.size * 1_000_000 // 112
    start = int(time.time() * 1000) - 3_600_000
    distinct = max(10, count // 5)

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, count, BATCH):
            rows = min(BATCH, count - first)
            text = pa.array(draw.integers(0, distinct, rows)).cast(pa.string())
            key = pa.compute.utf8_lpad(text, 12, "0").cast(pa.binary())
            yield records(
                rows, first=first, topic="compacted", start_ms=start - count, value=values(rows, 1, SHORT), key=key
            )

    reader = pa.RecordBatchReader.from_batches(records(1).schema, batches())
    options = {"segment_bytes": segment_size(bench), "batch_bytes": 16 << 10, "codec": codec}
    bench.rows = rawlog.write(bench.folder / "logs", reader, format="kafka", **options)
    bench.bytes = size_of(bench.folder / "logs")
    return bench.folder / "logs" / "compacted-0"


def segment_size(bench: Bench) -> int:
    return max(1 << 18, bench.size * 1_000_000 // SEGMENTS)


@contextmanager
def cleaner(source: Path, folder: Path, rows: int, segment: int, runs: int) -> Iterator[Callable[[], Run]]:
    """A real broker with copies of the log. Each run makes another topic compacted, and takes the time of the cleaner's thread."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

    from tests.services.kafka import KAFKA_3, KafkaBroker

    properties = {
        "log.cleaner.backoff.ms": "100",
        "log.cleaner.threads": "1",
        "log.index.size.max.bytes": str(10 << 20),
        "log.cleaner.dedupe.buffer.size": str(128 << 20),
    }
    settings = {"retention.ms": "-1", "segment.bytes": str(segment), "min.cleanable.dirty.ratio": "0.0"}
    names = [f"copy-{number}" for number in range(runs)]
    with KafkaBroker(KAFKA_3, folder, properties) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        for future in admin.create_topics([NewTopic(name, 1, config=settings) for name in names]).values():
            future.result(60)
        broker.stop()
        for name in names:
            for path in (folder / f"{name}-0").glob("*.*index"):
                path.unlink()
            for path in source.glob("*.log"):
                shutil.copy2(path, folder / f"{name}-0" / path.name)
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})

        def run() -> Run:
            name = names.pop(0)
            before, began = cleaner_seconds(broker), time.perf_counter()
            entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[entry])
            for future in admin.incremental_alter_configs([resource]).values():
                future.result(60)
            while f"cleaned log {name}-0" not in broker.log.read_text(errors="replace"):
                if time.perf_counter() - began > 300:
                    raise TimeoutError(f"the cleaner did not clean {name}: {broker.output_tail()}")
                time.sleep(0.05)
            return Run(rows, max(0.01, cleaner_seconds(broker) - before), time.perf_counter() - began)

        yield run


def cleaner_seconds(broker: object) -> float:
    """The processor time that the cleaner's thread has taken; the compilers and the collector are not counted."""
    pid = broker._process.pid  # type: ignore[attr-defined]
    for task in Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().startswith("kafka-log-clean"):
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def ways(bench: Bench, codec: str) -> Iterator[Way]:
    source, segment = make_log(bench, codec), segment_size(bench)
    files = list(open_tree(source))
    target = bench.folder / "compacted" / "compacted-0"

    def run() -> int:
        shutil.rmtree(target.parent, ignore_errors=True)
        report = compact(Store(files), Folder(target).make(), {"segment_bytes": str(segment)})
        assert 0 < size_of(target) < bench.bytes, report.lines()
        return bench.rows

    def copy() -> int:
        shutil.rmtree(target.parent, ignore_errors=True)
        shutil.copytree(source, target)
        return bench.rows

    def start() -> object:
        return cleaner(source, bench.folder / "broker", bench.rows, segment, runs=ROUNDS + 1)

    yield Work("rawlog compact", run)
    yield Peer("Kafka's cleaner (its thread)", start=start, rounds=ROUNDS)
    yield Limit("copying the files", copy)


@case("compact", size=128, tiny=2, rounds=ROUNDS)
def plain(bench: Bench) -> Iterator[Way]:
    """All but the active segment of a log without compression, five records to a key."""
    return ways(bench, "none")


@case("compact, zstd", size=128, tiny=2, rounds=ROUNDS, default=False)
def zstd(bench: Bench) -> Iterator[Way]:
    """All but the active segment of a compressed log, five records to a key."""
    return ways(bench, "zstd")


if __name__ == "__main__":
    main(__doc__)
