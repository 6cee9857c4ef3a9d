"""How fast a broker's directory is restored, against producing the same records through a client.

python benchmarks/kafka_restore.py --megabytes 1024 [--partitions 2] [--directory DIR] [--share 0.1]

A directory is written by rawlog and restored; then `share` of its records is produced to a real broker (3.9) by librdkafka, in the same
run, from the first record to the last acknowledgement. Processor time is that of this process alone, without the broker's.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

sys.path.insert(0, str(Path(__file__).parents[1]))

import rawlog
from benchmarks.kafka_encode import make_records, produce
from rawlog.engines import choice
from rawlog.model.recovery import RestoreOptions
from rawlog.reading.tree import open_tree
from rawlog.verbs.restore import Restore

MEGABYTE = 1 << 20
STEP = 1_000_000


def write_source(folder: Path, megabytes: int, partitions: int) -> int:
    """A log directory of about so many megabytes; the number of records."""
    rows = make_records(STEP, 100)
    offset, count = rows.schema.get_field_index("offset"), 0
    for number in range(partitions):
        steps = max(1, megabytes * MEGABYTE // partitions // (STEP * 112))

        def batches(steps: int = steps) -> object:
            for step in range(steps):
                moved = pc.add(rows.column("offset"), step * STEP)
                yield rows.set_column(offset, rows.schema.field(offset), moved)

        table = pa.RecordBatchReader.from_batches(rows.schema, batches())
        count += rawlog.write(folder, table, format="kafka", topic="orders", partition=number)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.1, help="of the records that is produced through a client")
    parser.add_argument("--directory", default=None)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(dir=given.directory))
    try:
        count = write_source(home / "source", given.megabytes, given.partitions)
        size = sum(path.stat().st_size for path in (home / "source").rglob("*.log"))
        best = busy = float("inf")
        for _ in range(3):
            shutil.rmtree(home / "target", ignore_errors=True)
            start, begun = time.perf_counter(), time.process_time()
            with Restore(str(home / "target"), RestoreOptions()) as job:
                account = choice.run(job, open_tree(home / "source")).account
            best, busy = min(best, time.perf_counter() - start), min(busy, time.process_time() - begun)
            assert account.records == count
        ours = count / best
        print(
            f"restore of {size / 1e6:,.0f} MB: {best:.2f} s, {size / best / 1e6:,.0f} MB/s, {ours / 1e6:.2f} million records/s"
        )
        shutil.rmtree(home, ignore_errors=True)
        some = make_records(int(count * given.share), 100)
        begun = time.process_time()
        theirs = produce(some, "none")
        spent = (time.process_time() - begun) / given.share
        print(
            f"librdkafka to a local broker: {theirs / 1e6:.2f} million records/s; restore is {ours / theirs:.1f} times as fast"
        )
        print(f"processor time for all of it: restore {busy:.2f} s, client {spent:.2f} s, {spent / busy:.1f} times")
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
