"""How fast Spark counts the records of Kafka segments through the source `rawlog`: warm, all columns, on two cores.

python benchmarks/spark_count.py [--mb 1024] [--value 100] [--codec none] [--columns offset] [--times 5] [--keep DIR]

Next to the wall clock it prints the CPU time per row of everything below this process (JVM and Python workers), which other
programs on the machine do not change; the last column is what two idle cores would make of it.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil
from kafka_decode import make_log

from rawlog.spark import register, session


def cpu_seconds() -> float:
    """CPU time of this process and all below it so far, those included that ended meanwhile."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def make_segments(folder: Path, size: int, value: int, codec: str, partitions: int = 8) -> int:
    """`size` bytes of segments, a partition each; the bytes written."""
    log = make_log(size // partitions, 100, value, codec, 0)
    for partition in range(partitions):
        target = folder / f"orders-{partition}"
        target.mkdir(parents=True, exist_ok=True)
        (target / f"{0:020}.log").write_bytes(log)
    return len(log) * partitions


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1024)
    parser.add_argument("--value", type=int, default=100)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--columns", action="append", help="also count these columns only (again and again)")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--split", default="128m")
    parser.add_argument("--keep", help="where the segments are kept for the next run")
    options = parser.parse_args()
    folder = Path(options.keep or tempfile.mkdtemp(prefix="rawlog-count-"))
    try:
        if not any(folder.rglob("*.log")):
            make_segments(folder, options.mb << 20, options.value, options.codec)
        size = sum(log.stat().st_size for log in folder.rglob("*.log"))
        spark = session("local[2]")
        register(spark)
        print(
            f"{size >> 20} MB, values of {options.value} bytes, codec {options.codec}, load {psutil.getloadavg()[0]:.1f}"
        )
        for columns in (None, *(options.columns or ())):
            given = {"splitSize": options.split} | ({} if columns is None else {"columns": columns})
            frame = spark.read.format("rawlog").options(**given).load(str(folder))
            rows = frame.count()  # workers started, kernels compiled
            walls, cpus = [], []
            for _ in range(options.times):
                began, used = time.perf_counter(), cpu_seconds()
                assert frame.count() == rows
                walls.append(time.perf_counter() - began)
                cpus.append(cpu_seconds() - used)
            wall, cpu = min(walls), median(cpus)
            print(
                f"{columns or 'all columns':24} {rows:,} rows  {rows / wall / 1e6:6.2f} M rows/s  {size / wall / 1e9:5.2f} GB/s"
                f"  {cpu / rows * 1e9:5.0f} ns CPU a row, on two idle cores {2 * rows / cpu / 1e6:.2f} M rows/s"
            )
        spark.stop()
    finally:
        if not options.keep:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
