"""How fast `ingest` takes Kafka segments into a lake, compared with Spark writing the same records to Parquet, in the same run.

python benchmarks/ingest.py [--mb 2048] [--times 3] [--scale 1,2,4] [--keep DIR]
    [--connector PYTHON --jars A.jar,B.jar,… [--records 4000000]]

The peers: `spark.read.format("rawlog")…write.parquet` in the same warm session; and, with `--connector`, Spark's own Kafka
connector, in a Python that has PySpark 4.0.0, reading the same records from a live broker on this machine. All write zstd. Runs are
interleaved. Next to the wall clock is the CPU time per row of everything that took part (JVM, Python workers, and the broker where
there is one), which other programs on the machine do not change; ratios are of that. `--scale` takes so many GB each, and prints the
cost of a GB and the most memory that the driver and any worker held.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

import rawlog
from rawlog.engines import choice
from rawlog.engines.spark import engine as on_spark
from rawlog.lakes.ingest import Ingest
from rawlog.reading.tree import open_tree
from rawlog.spark import register, session

sys.path.insert(0, str(Path(__file__).parents[1]))
PARTITIONS = 8
VALUE = 100


def values(count: int, seed: int) -> pa.Array:
    """Values of 100 bytes of hexadecimal text: half of their bits are news."""
    data = np.random.default_rng(seed).integers(0, 16, count * VALUE, np.uint8)
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[data]
    offsets = np.arange(count + 1, dtype=np.int32) * VALUE
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def records(count: int, seed: int) -> pa.Table:
    """Records with 8-byte keys."""
    keys = pa.array(np.char.add("k", np.char.zfill(np.arange(count).astype(str), 7)).astype("S8"), pa.binary())
    times = pa.array(1_700_000_000_000_000 + np.arange(count) * 1000, pa.timestamp("us", "UTC"))
    return pa.table({"key": keys, "value": values(count, seed), "timestamp": times})


def make(folder: Path, size: int) -> None:
    """About `size` bytes of segments in several partitions."""
    count = size // PARTITIONS // 120
    for partition in range(PARTITIONS):
        rawlog.write(folder, records(count, partition), format="kafka", topic="orders", partition=partition)


class Meter:
    """CPU time and memory of this process and all below it, sampled: what processes used that ended meanwhile is not lost."""

    def __init__(self) -> None:
        self.used: dict[tuple[int, float], float] = {}
        self.most: dict[str, float] = {}
        self.lock = threading.Lock()
        threading.Thread(target=self._watch, daemon=True).start()

    def cpu(self) -> float:
        """Seconds so far."""
        self._look()
        return sum(self.used.values())

    def _watch(self) -> None:
        while True:
            time.sleep(0.1)
            self._look()

    def _look(self) -> None:
        own = psutil.Process()
        with self.lock:
            for process in [own, *own.children(recursive=True)]:
                try:
                    times, kind = process.cpu_times(), "jvm" if "java" in process.name() else "worker"
                    self.used[process.pid, process.create_time()] = times.user + times.system
                    kind = "driver" if process.pid == own.pid else kind
                    self.most[kind] = max(self.most.get(kind, 0), process.memory_info().rss / 1e6)
                except psutil.Error:
                    continue


METER = Meter()


@dataclass
class Measured:
    """What the runs of one contestant took."""

    rows: int
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    def add(self, run: Callable[[], object]) -> None:
        """Run once more."""
        began, used = time.perf_counter(), METER.cpu()
        run()
        self.walls.append(time.perf_counter() - began)
        self.cpus.append(METER.cpu() - used)

    @property
    def cpu(self) -> float:
        """Nanoseconds a row, of the best run."""
        return min(self.cpus) / self.rows * 1e9

    def show(self, name: str) -> None:
        """A line of figures."""
        wall = min(self.walls)
        print(f"{name:34} {wall:6.2f} s  {self.rows / wall / 1e6:5.2f} M rows/s  {self.cpu:6.0f} ns CPU a row")


def ingest(source: Path, lake: Path, spark: Any, tables: list[str] | None) -> None:
    """One ingest into a new lake; on Spark, or with threads here if there is no session."""
    shutil.rmtree(lake, ignore_errors=True)
    tree = open_tree(str(source))
    with Ingest(str(lake), tables=tables) as job:
        job.complete(lambda: choice.run(job, tree, threads=2) if spark is None else on_spark.run(job, tree, spark))


def through_spark(source: Path, target: Path, spark: Any) -> None:
    """The same records through the JVM."""
    frame = spark.read.format("rawlog").option("table", "records").load(str(source))
    frame.write.mode("overwrite").option("compression", "zstd").parquet(str(target))


CONNECTOR = """
import json, sys, time
from pyspark.sql import SparkSession
servers, jars, target, times = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()
def frame():
    return spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "orders") \\
        .option("includeHeaders", "true").load()
print(json.dumps({"rows": frame().count()}), flush=True)
for _ in range(int(times)):
    sys.stdin.readline()
    frame().write.mode("overwrite").option("compression", "zstd").parquet(target)
    print("done", flush=True)
"""


def with_connector(options: argparse.Namespace, folder: Path, spark: Any) -> None:
    """The same topic from a live broker by Spark's connector, and from that broker's files by ingest."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    from tests.services.kafka import KAFKA_4, KafkaBroker

    with KafkaBroker(KAFKA_4, folder / "broker") as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 50, "batch.size": 1 << 20})
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result()
        for number, value in enumerate(values(options.records, 1).to_pylist()):
            while True:
                try:
                    producer.produce("orders", value, b"k%07d" % number, partition=number % 4)
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.flush()
        peer = subprocess.Popen(
            [
                options.connector,
                "-c",
                CONNECTOR,
                broker.bootstrap,
                options.jars,
                str(folder / "peer"),
                str(options.times),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert peer.stdin is not None
        assert peer.stdout is not None
        rows = json.loads(peer.stdout.readline())["rows"]
        connector, ours = Measured(rows), Measured(rows)
        logs = list(broker.data_dir.glob("orders-*"))

        def ask() -> None:
            peer.stdin.write("go\n")  # type: ignore[union-attr]
            peer.stdin.flush()  # type: ignore[union-attr]
            assert peer.stdout.readline() == "done\n"  # type: ignore[union-attr]

        def take() -> None:
            shutil.rmtree(folder / "lake-broker", ignore_errors=True)
            tree = open_tree([str(path) for path in logs])
            with Ingest(str(folder / "lake-broker"), tables=["records"]) as job:
                job.complete(lambda: on_spark.run(job, tree, spark))

        take()
        for _ in range(options.times):
            connector.add(ask)
            ours.add(take)
        peer.stdin.close()
        peer.wait()
    connector.show("Kafka connector, live broker")
    ours.show("ingest, the broker's files")
    print(
        f"ingest is {connector.cpu / ours.cpu:.1f} × the connector by CPU, {min(connector.walls) / min(ours.walls):.1f} × by the clock"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=512)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--scale", default="", help="GB of each step, as 1,2,4")
    parser.add_argument("--keep", help="where the segments are kept for the next run")
    parser.add_argument("--connector", help="a Python with PySpark 4.0.0")
    parser.add_argument(
        "--jars", default="", help="spark-sql-kafka-0-10, its token provider, kafka-clients, commons-pool2"
    )
    parser.add_argument("--records", type=int, default=4_000_000)
    options = parser.parse_args()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="rawlog-ingest-"))
    try:
        source = folder / f"source-{options.mb}"
        if not source.exists():
            make(source, options.mb << 20)
        rows = rawlog.open(str(source)).table("records").count()
        spark = register(session("local[2]"))
        print(f"{options.mb} MB, {rows:,} records, values of {VALUE} bytes; load {psutil.getloadavg()[0]:.1f}")
        contest: dict[str, Callable[[], None]] = {
            "read.format(rawlog).write.parquet": lambda: through_spark(source, folder / "peer", spark),
            "ingest, table records": lambda: ingest(source, folder / "lake", spark, ["records"]),
            "ingest, all tables": lambda: ingest(source, folder / "lake", spark, None),
            "ingest, all tables, local threads": lambda: ingest(source, folder / "lake", None, None),
        }
        found = {name: Measured(rows) for name in contest}
        for run in contest.values():  # workers started, kernels compiled
            run()
        for _ in range(options.times):
            for name, run in contest.items():
                found[name].add(run)
        for name, measured in found.items():
            measured.show(name)
        peer, ours = found["read.format(rawlog).write.parquet"], found["ingest, table records"]
        print(
            f"ingest is {peer.cpu / ours.cpu:.1f} × Spark by CPU, {min(peer.walls) / min(ours.walls):.1f} × by the clock"
        )
        for step in filter(None, options.scale.split(",")):
            scaled(folder, int(float(step) * (1 << 30)), spark)
        if options.connector:
            with_connector(options, folder, spark)
        spark.stop()
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def scaled(folder: Path, size: int, spark: Any) -> None:
    """The cost of a GB, and memory, at one size."""
    source = folder / "scaled"
    maker = multiprocessing.get_context("spawn").Process(target=make, args=(source, size))
    maker.start()  # in a process of its own: what it holds is not the driver's
    maker.join()
    rows = rawlog.open(str(source)).table("records").count()
    measured = Measured(rows)
    METER.most.clear()
    measured.add(lambda: ingest(source, folder / "lake", spark, ["records"]))
    held = ", ".join(f"{kind} {METER.most[kind]:,.0f} MB" for kind in sorted(METER.most))
    cost = measured.cpus[0] / size * (1 << 30)
    print(f"{size / (1 << 30):5.1f} GB: {cost:6.2f} s CPU a GB, {measured.walls[0]:6.1f} s; most memory: {held}")
    shutil.rmtree(source)
    shutil.rmtree(folder / "lake", ignore_errors=True)


if __name__ == "__main__":
    main()
