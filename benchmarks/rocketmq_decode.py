"""How fast a commit log becomes Arrow columns on one core, compared with RocketMQ's own MessageDecoder (warm, CRC checked) in the same run.

    python benchmarks/rocketmq_decode.py --mb 500 [--table rocketmq.messages] [--no-java] [--rebuild]

Bodies of 100 to 200 bytes, tag, key, unique key and two more properties: about 350 bytes a message. Times are those of the processor, all
threads together (of the peer without its garbage collector's); the two take turns. So that a busy machine troubles them little, every
stretch of 4 MB is timed by itself, and the best of all rounds counts for each, on both sides.

Both have the log in memory and go through it once. What each does with a message:
  MessageDecoder      checks the body's CRC-32, makes a MessageExt with the fixed fields, both hosts as addresses, a copy of the body, the
                      topic as a string, the properties as a map of strings, and the message id
  records             checks framing and CRC-32, tells stale entries, fills key, value, topic, partition, offset, timestamp, and all
                      properties as headers
  rocketmq.messages   the same checks, and all 27 columns: every field of the entry, both hosts and the message id as text, body, topic, the
                      properties as a map (of a repeated name the last), and keys, tags and unique key once more as columns of their own
  …, file read        the same with the file read from the page cache, as every command does

--rebuild: consume queues and key index from the commit log, written to disk. The peer is a broker 5.3.3 that starts on the same log without
them: the processor's time of its JVM until it serves, less that of a start on an empty store.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import rawlog  # noqa: E402
from rawlog import registry  # noqa: E402
from rawlog.formats.rocketmq.store.rewrite import rebuild, write_store  # noqa: E402
from rawlog.io.output import Folder  # noqa: E402
from rawlog.io.walk import walk  # noqa: E402
from rawlog.model.format import Want  # noqa: E402
from rawlog.model.frames import Frames  # noqa: E402
from rawlog.model.store import Store  # noqa: E402
from rawlog.model.table import RECORDS  # noqa: E402

WINDOW = 4 << 20

JAVA = """
import java.nio.*; import java.nio.channels.*; import java.nio.file.*;
import org.apache.rocketmq.common.message.*;
public class Loop {
    public static void main(String[] a) throws Exception {
        try (FileChannel f = FileChannel.open(Path.of(a[0]))) {
            ByteBuffer whole = ByteBuffer.allocate((int) f.size());
            while (whole.hasRemaining() && f.read(whole) > 0) ;
            var os = java.lang.management.ManagementFactory.getThreadMXBean();
            var in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in));
            while (in.readLine() != null) {
                whole.position(0);
                long n = 0, sum = 0, start = os.getCurrentThreadCpuTime();
                int border = STRETCH;
                var times = new StringBuilder();
                while (whole.remaining() > 8 && whole.getInt(whole.position() + 4) == -626843481) {
                    int at = whole.position(), size = whole.getInt(at);
                    MessageExt m = MessageDecoder.decode(whole, true, true, false, false, true);
                    sum += m.getBody().length + m.getProperties().size();
                    whole.position(at + size);
                    n++;
                    if (at + size >= border) {
                        long now = os.getCurrentThreadCpuTime();
                        times.append(now - start).append(",");
                        start = now;
                        border += STRETCH;
                    }
                }
                System.out.println(n + " " + times + (os.getCurrentThreadCpuTime() - start) + " " + sum);
            }
        }
    }
}
"""


def rows(size: int) -> Iterator[pa.RecordBatch]:
    """Rows until about `size` bytes of log are made."""
    random, number, total = np.random.default_rng(1), 0, 0
    while total < size:
        count = 20_000
        lengths = random.integers(100, 201, count)
        body = random.integers(0, 256, int(lengths.sum()), dtype=np.uint8).tobytes()
        ends = np.concatenate(([0], np.cumsum(lengths)))
        values = [body[ends[i] : ends[i + 1]] for i in range(count)]
        numbers = range(number, number + count)
        headers = [
            [
                {"key": "TAGS", "value": b"Tag%d" % (i % 7)},
                {"key": "KEYS", "value": b"order-%d" % i},
                {"key": "UNIQ_KEY", "value": b"0A000001162C18B4AAC2%012X" % i},
                {"key": "WAIT", "value": b"true"},
                {"key": "CLUSTER", "value": b"DefaultCluster"},
            ]
            for i in numbers
        ]
        yield pa.RecordBatch.from_pydict(
            {
                "key": [b"order-%d" % i for i in numbers],
                "value": values,
                "topic": ["OrderTopic"] * count,
                "partition": [i % 4 for i in numbers],
                "offset": [i // 4 for i in numbers],
                "timestamp": [(1_700_000_000_000 + i) * 1000 for i in numbers],
                "timestampType": [0] * count,
                "headers": headers,
            },
            schema=RECORDS.schema,
        )
        number += count
        total += int(lengths.sum()) + count * 212


class Ours:
    """The log in memory, as the peer has it, decoded a window at a time; or read from the file as every command does."""

    def __init__(self, path: Path) -> None:
        [self.file] = rawlog.open(path).files
        self.format = registry.formats()[str(self.file.format)]
        self.data = np.fromfile(path, np.uint8)

    def frames(self, from_file: bool) -> Iterator[Frames]:
        if from_file:
            yield from walk(self.file, self.format)
            return
        position = 0
        while position < self.data.size:
            found = self.format.codec.scan(self.data[position : position + WINDOW], 0)
            if not len(found):
                return
            yield replace(found, base=position)
            position += found.reached

    def decode(self, table_name: str, *, from_file: bool = False) -> tuple[int, list[float]]:
        """All columns of a table; rows, and seconds of the processor for each window."""
        table, count, times = registry.table_named(table_name), 0, []
        start = time.process_time()
        for frames in self.frames(from_file):
            for batch in self.format.codec.decode(frames, Want(table, self.file)):
                count += batch.num_rows
            now = time.process_time()
            times.append(now - start)
            start = now
        return count, times


class Peer:
    """RocketMQ's decoder in a JVM of its own, a round whenever asked."""

    def __init__(self, path: Path, folder: Path) -> None:
        from tests.services.jars import class_path, java

        source = folder / "Loop.java"
        source.write_text(JAVA.replace("STRETCH", str(WINDOW)))
        command = [java(), "-Xmx2g", "-XX:+UseSerialGC", "-cp", class_path("rocketmq-5.3.3"), str(source), str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def round(self) -> tuple[int, list[float]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while True:
            line = self.process.stdout.readline().split()
            if len(line) == 3 and line[0].isdigit():
                return int(line[0]), [int(number) / 1e9 for number in line[1].split(",")]
            if not line and self.process.poll() is not None:
                raise RuntimeError("the JVM ended")


def used(log: Path) -> float:
    """Megabytes of a log up to its zeros."""
    data = np.fromfile(log, np.uint8)
    return (int(np.flatnonzero(data)[-1]) + 1) / (1 << 20)


def measure_rebuild(folder: Path, size_of_file: int, megabytes: float, *, with_broker: bool) -> None:
    """Print how fast queues and index are rebuilt, and how fast a broker makes them."""
    store = Store(rawlog.open(folder / "store").files)
    best = 1e9
    for _ in range(4):
        start = time.process_time()
        (folder / "rebuilt").mkdir()
        report = rebuild(store, Folder(folder / "rebuilt"), {"commitlog": "none"})
        best = min(best, time.process_time() - start)
        shutil.rmtree(folder / "rebuilt")
    print(f"rebuild: {report.counts['units']:,} units, {report.counts['keys']:,} keys, {megabytes / best:.0f} MB/s")
    if not with_broker:
        return
    (folder / "empty").mkdir()
    empty, recovery = (broker_seconds(folder / name, size_of_file) for name in ("empty", "store"))
    theirs = megabytes / (recovery - empty)
    print(f"broker's own recovery: {theirs:.0f} MB/s; rebuild {megabytes / best / theirs:.2f} x that")


def broker_seconds(store: Path, size_of_file: int) -> float:
    """What the processor does for a broker until it serves a store."""
    from tests.services import rocketmq

    rocketmq.JVM = ("-Xms512m", "-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:+UseSerialGC")
    with rocketmq.RocketBroker(rocketmq.ROCKETMQ_5, store, {"mappedFileSizeCommitLog": str(size_of_file)}) as broker:
        return broker.processor_seconds()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--table", action="append", default=[])
    parser.add_argument("--no-java", action="store_true")
    parser.add_argument("--rebuild", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size_of_file = (options.mb + options.mb // 8 + 16) << 20
        (folder / "store").mkdir()
        sizes = {"derived": "none", "commitlog_size": str(size_of_file)}
        write_store(rows(options.mb << 20), Folder(folder / "store"), sizes)
        [log] = (folder / "store" / "commitlog").iterdir()
        best: dict[str, list[float]] = {}

        def keep(name: str, times: list[float]) -> None:
            best[name] = [min(pair) for pair in zip(best.get(name, times), times, strict=True)]

        count = 0
        peer = None if options.no_java else Peer(log, folder)
        names = options.table or ["records", "rocketmq.messages"]
        ours = Ours(log)
        for _ in range(options.rounds):
            for table in names:
                count, times = ours.decode(table)
                keep(table, times)
                count, times = ours.decode(table, from_file=True)
                keep(f"{table}, file read", times)
            if peer is not None:
                theirs, times = peer.round()
                assert theirs == count
                keep("MessageDecoder", times)
        total = {name: sum(times) for name, times in best.items()}
        for name, seconds in total.items():
            ratio = f"  {total['MessageDecoder'] / seconds:.2f} x MessageDecoder" if peer is not None else ""
            print(f"{name:28} {count / seconds / 1e6:6.2f} M messages/s  {used(log) / 1024 / seconds:5.2f} GB/s{ratio}")
        if peer is not None:
            peer.process.kill()
        if options.rebuild:
            measure_rebuild(folder, size_of_file, used(log), with_broker=not options.no_java)


if __name__ == "__main__":
    main()
