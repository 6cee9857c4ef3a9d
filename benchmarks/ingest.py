"""How fast `ingest` takes Kafka segments into a lake, next to Spark and pyarrow writing the same records to Parquet.

All write zstd. The CPU time is that of everything that took part: JVM, Python workers, and the broker where there is one. The connector is
Spark's own for Kafka, which reads the same records from a live broker; it runs in a Python with PySpark 4.0.0 that $RAWLOG_CONNECTOR names,
with the jars of $RAWLOG_CONNECTOR_JARS (spark-sql-kafka-0-10, its token provider, kafka-clients, commons-pool2; divided by commas).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from data import records, size_of
from harness import Bench, Peer, Way, Work, case, main
from spark_count import spark_session

import rawlog
from rawlog.engines import choice
from rawlog.engines.spark import engine as on_spark
from rawlog.lakes.ingest import Ingest
from rawlog.reading.tree import open_tree
from tests.services import Unavailable

PARTITIONS = 8


def make(bench: Bench) -> Path:
    """Segments in several partitions."""
    folder = bench.folder / "logs"
    count = bench.size * 1_000_000 // PARTITIONS // 120
    for partition in range(PARTITIONS):
        rows = records(count, first=partition * count).drop_columns(["partition", "offset", "topic"])
        bench.rows += rawlog.write(folder, rows, format="kafka", topic="orders", partition=partition)
    bench.bytes = size_of(folder)
    return folder


def ingest(source: Path, lake: Path, spark: Any, tables: list[str] | None) -> None:
    """One ingest into a new lake; on Spark, or with threads here if there is no session."""
    shutil.rmtree(lake, ignore_errors=True)
    tree = open_tree(str(source))
    with Ingest(str(lake), tables=tables) as job:
        job.complete(lambda: choice.run(job, tree, threads=2) if spark is None else on_spark.run(job, tree, spark))


def taking(title: str, tables: list[str] | None, *, on: str, default: bool = True) -> None:
    """Declare a case."""

    @case(title, size=256, tiny=2, rounds=3, default=default)
    def body(bench: Bench) -> Iterator[Way]:
        """A whole run into a new lake, its commits included; the peers write the same records as one table of Parquet files."""
        source, lake = make(bench), bench.folder / "lake"
        spark = spark_session()

        def run() -> int:
            ingest(source, lake, spark if on == "spark" else None, tables)
            return bench.rows

        def through_spark() -> int:
            frame = spark.read.format("rawlog").option("table", "records").load(str(source))
            frame.write.mode("overwrite").option("compression", "zstd").parquet(str(bench.folder / "peer"))
            return bench.rows

        table = rawlog.read(source)

        def pyarrow() -> int:
            pq.write_table(table, bench.folder / "peer.parquet", compression="zstd")
            return bench.rows

        yield Work(f"rawlog ingest ({on})", run, tree=True)
        yield Peer("Spark: source rawlog, Parquet", through_spark, tree=True)
        yield Peer("pyarrow: rows in memory, Parquet", pyarrow)


taking("ingest, records, threads", ["records"], on="threads")
taking("ingest, all tables, threads", None, on="threads")
taking("ingest, records, Spark", ["records"], on="spark")
taking("ingest, all tables, Spark", None, on="spark", default=False)


CONNECTOR = """
import json, sys
from pyspark.sql import SparkSession
servers, jars, target = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()
for line in sys.stdin:
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", "orders") \\
        .option("includeHeaders", "true").load()
    frame.write.mode("overwrite").option("compression", "zstd").parquet(target)
    print("written", flush=True)
"""


@contextmanager
def connector(bootstrap: str, target: Path, rows: int) -> Iterator[Callable[[], int]]:
    """Spark's connector in its own environment."""
    python, jars = os.environ.get("RAWLOG_CONNECTOR"), os.environ.get("RAWLOG_CONNECTOR_JARS")
    if not python or not jars:
        raise Unavailable("$RAWLOG_CONNECTOR and $RAWLOG_CONNECTOR_JARS do not name Spark's connector for Kafka")
    command = [python, "-c", CONNECTOR, bootstrap, jars, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def run() -> int:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            assert process.stdout.readline() == "written\n"  # type: ignore[union-attr]
            return rows

        yield run
        process.stdin.close()


@case("ingest, a broker's files", size=100_000, tiny=2_000, unit="records", rounds=3, default=False)
def broker_files(bench: Bench) -> Iterator[Way]:
    """The files of a broker that runs, on Spark; the peer reads the same topic from that broker."""
    from confluent_kafka.admin import AdminClient, NewTopic
    from kafka_encode import librdkafka_into

    from tests.services.kafka import KAFKA_4, KafkaBroker

    broker = bench.enter(KafkaBroker(KAFKA_4, bench.folder / "broker"))
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("orders", 4, 1)])["orders"].result(60)
    bench.rows = librdkafka_into(broker.bootstrap, records(bench.size))()
    logs = [str(path) for path in broker.data_dir.glob("orders-*")]
    bench.bytes = sum(path.stat().st_size for log in logs for path in Path(log).glob("*.log"))
    spark, lake = spark_session(), bench.folder / "lake"

    def run() -> int:
        shutil.rmtree(lake, ignore_errors=True)
        tree = open_tree(logs)
        with Ingest(str(lake), tables=["records"]) as job:
            job.complete(lambda: on_spark.run(job, tree, spark))
        return bench.rows

    yield Work("rawlog ingest (spark)", run, tree=True)
    start = lambda: connector(broker.bootstrap, bench.folder / "peer", bench.rows)  # noqa: E731
    yield Peer("Spark's Kafka connector", start=start, tree=True)


if __name__ == "__main__":
    main(__doc__)
