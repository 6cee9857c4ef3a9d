"""rawlog compared with Kafka's own code on the same segment, in CPU time of one thread each, as ratios.

python benchmarks/kafka_java.py [--mb 478]

Peers: a warm loop over FileRecords with ensureValid that only touches sizes (its streaming iterator for compressed batches), the same
without looking into batches, DumpLogSegments --deep-iteration for `verify`, and aiokafka for message sets of magic 1.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import rawlog
from benchmarks.kafka_decode import make_log
from tests.reference import kafka as reference
from tests.services.jars import class_path, java
from tests.services.kafka import KAFKA_3, dump_log_segments

PASSES = 6


def java_rate(path: Path, what: str) -> tuple[float, float]:
    """Records and gigabytes a second of the best pass, once the loop is warm."""
    source = Path(__file__).parent / "java" / "ReadSegment.java"
    command = [java(), "-Xmx1g", "-cp", class_path(f"kafka-{KAFKA_3}"), str(source), str(path), what, str(PASSES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line.split() for line in done.stdout.splitlines() if line.startswith(what)]
    best = min(rows, key=lambda row: int(row[3]))
    seconds = int(best[3]) / 1e9
    return int(best[1]) / seconds, int(best[2]) / seconds / 1e9


def best(action: Callable[[], int], passes: int = 3) -> tuple[float, int]:
    """CPU seconds of the best pass, and what the action counted."""
    times = []
    count = 0
    for _ in range(passes):
        before = time.process_time()
        count = action()
        times.append(time.process_time() - before)
    return min(times), count


def rows(path: Path, table: str = "records", **selection: object) -> Callable[[], int]:
    log = rawlog.open(path)
    return lambda: sum(batch.num_rows for batch in log.table(table, **selection).batches())


def compare(name: str, path: Path, action: Callable[[], int], what: str, bar: float) -> None:
    before, count = best(action)
    theirs, _ = java_rate(path, what)
    seconds = min(before, best(action)[0])  # on both sides of the peer: a shared machine changes its mind
    size = path.stat().st_size
    total = count if what == "records" else theirs * seconds  # ratio by time for the same file
    ours = count / seconds if what == "records" else size / seconds
    if what == "records":
        print(
            f"{name:<34} {ours / 1e6:7.2f} M records/s  Kafka {theirs / 1e6:7.2f}  ratio {ours / theirs:5.2f} (bar {bar})"
        )
    else:
        _, gigabytes = java_rate(path, what)
        print(
            f"{name:<34} {ours / 1e9:7.2f} GB/s         Kafka {gigabytes:7.2f}  ratio {ours / 1e9 / gigabytes:5.2f} (bar {bar})"
        )
    assert total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=478)
    size = parser.parse_args().mb * 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "orders-0" / f"{0:020d}.log"
        path.parent.mkdir()
        path.write_bytes(make_log(size, 100, 100, "none", 0))
        compare("every Arrow column", path, rows(path), "records", 1.1)
        compare("offsets only", path, rows(path, columns=["offset"]), "records", 1.3)
        compare("CRC and headers only", path, lambda: rawlog.open(path).table().count(), "headers", 1.0)
        verify(path)
        for codec in ("zstd", "lz4", "snappy", "gzip"):
            path.write_bytes(make_log(size // 4, 100, 100, codec, 0))
            compare(f"{codec}, every column", path, rows(path), "records", 1.0)
        legacy(path, size // 8)


def verify(path: Path) -> None:
    seconds, _ = best(lambda: rawlog.verify(path).frames, 2)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    dump_log_segments(KAFKA_3, [path], "--deep-iteration")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    theirs = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(
        f"{'verify, CPU seconds':<34} {seconds:7.2f}              dump  {theirs:7.2f}  ratio {theirs / seconds:5.2f} (bar 20)"
    )


def legacy(path: Path, size: int) -> None:
    from aiokafka.record import MemoryRecords

    entry = reference.encode_entry(1, 0, b"k" * 8, b"v" * 100, timestamp=1_700_000_000_000)
    count = size // len(entry)
    data = bytearray(entry * count)
    for number in range(count):
        data[number * len(entry) : number * len(entry) + 8] = number.to_bytes(8, "big")
    path.write_bytes(data)
    seconds, found = best(rows(path))
    assert found == count

    def peer() -> int:
        records = MemoryRecords(bytes(data))
        total = 0
        while records.has_next():
            batch = records.next_batch()
            assert batch is not None
            assert batch.validate_crc()
            for record in batch:
                total += len(record.value)
        return total

    theirs, _ = best(peer, 2)
    ours, peers = count / seconds / 1e6, count / theirs / 1e6
    print(
        f"{'magic 1, every column':<34} {ours:7.2f} M records/s  aiokafka {peers:4.2f}  ratio {ours / peers:5.2f} (bar 4)"
    )


if __name__ == "__main__":
    main()
