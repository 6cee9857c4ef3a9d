"""How fast a commit log of RocketMQ becomes Arrow columns, and queues and index are rebuilt, next to RocketMQ's own code.

MessageDecoder and rawlog's first two cases have the log in memory. What each does with a message of about 350 bytes:
  MessageDecoder      checks the body's CRC-32, makes a MessageExt with the fixed fields, both hosts as addresses, a copy of the body, the
                      topic as a string, the properties as a map of strings, and the message id
  records             checks framing and CRC-32, tells stale entries, fills key, value, topic, partition, offset, timestamp, and all
                      properties as headers
  rocketmq.messages   the same checks, and all 27 columns: every field of the entry, both hosts and the message id as text, body, topic, the
                      properties as a map (of a repeated name the last), and keys, tags and unique key once more as columns of their own
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
from data import rocketmq_rows
from harness import Bench, JavaLoop, Limit, Peer, Run, Way, Work, case, main

import rawlog
from rawlog import registry
from rawlog.formats.rocketmq.store.rewrite import rebuild, write_store
from rawlog.io import checksums
from rawlog.io.output import Folder
from rawlog.model.format import Want
from rawlog.model.store import Store

WINDOW = 4 << 20
JARS = "rocketmq-5.3.3"


def make_store(bench: Bench) -> tuple[Path, int]:
    """A store with a commit log only. -> its log, the size that a broker must know"""
    size = ((bench.size + bench.size // 8) << 20) + (16 << 20)
    folder = bench.folder / "store"
    folder.mkdir()
    write_store(rocketmq_rows(bench.size * 1_000_000), Folder(folder), {"derived": "none", "commitlog_size": str(size)})
    [log] = (folder / "commitlog").iterdir()
    data = np.fromfile(log, np.uint8)
    bench.bytes = int(np.flatnonzero(data)[-1]) + 1
    bench.rows = rawlog.open(folder).table("records").count()
    return log, size


def decode(log: Path, table: str) -> Callable[[], int]:
    """The log in memory, as the peer has it, decoded a window at a time."""
    [file] = rawlog.open(log).files
    format, columns = registry.formats()[str(file.format)], registry.table_named(table)
    data = np.fromfile(log, np.uint8)

    def run() -> int:
        position = rows = 0
        while position < data.size:
            frames = format.codec.scan(data[position : position + WINDOW], 0)
            if not len(frames):
                break
            frames = replace(frames, base=position)
            rows += sum(batch.num_rows for batch in format.codec.decode(frames, Want(columns, file)))
            position += frames.reached
        return rows

    return run


def decoding(table: str, *, from_file: bool) -> None:
    """Declare the case of a table."""

    @case(f"{table}{', from the file' if from_file else ''}", size=128, rows="messages")
    def body(bench: Bench) -> Iterator[Way]:
        """All columns of a table; what each does with a message is in the docstring of the script."""
        log, _ = make_store(bench)
        data, buffer = np.fromfile(log, np.uint8)[: bench.bytes], np.empty(WINDOW, np.uint8)

        def copy_and_checksum() -> int:
            for start in range(0, data.size, WINDOW):
                window = data[start : start + WINDOW]
                buffer[: window.size] = window
                checksums.crc32(buffer[: window.size])
            return bench.rows

        read = rawlog.open(log)
        work = decode(log, table)
        if from_file:
            work = lambda: sum(batch.num_rows for batch in read.table(table).batches())  # noqa: E731
        yield Work("rawlog", work)
        loop = lambda: JavaLoop(JARS, "ReadCommitLog.java", log, heap="2g")  # noqa: E731
        yield Peer("MessageDecoder (Java)", start=loop, warm=JavaLoop.PASSES)
        yield Limit("memory copy and CRC-32", copy_and_checksum)


decoding("records", from_file=False)
decoding("rocketmq.messages", from_file=False)
decoding("rocketmq.messages", from_file=True)


@contextmanager
def recovery(bench: Bench, size: int) -> Iterator[Callable[[], Run]]:
    """A broker that starts on the log without queues and index, less its start on an empty store: processor time of its JVM."""
    from tests.services import rocketmq

    def start(store: Path) -> float:
        with rocketmq.RocketBroker(rocketmq.ROCKETMQ_5, store, {"mappedFileSizeCommitLog": str(size)}) as broker:
            return broker.processor_seconds()

    def run() -> Run:
        for name in ("empty", "recovered"):
            shutil.rmtree(bench.folder / name, ignore_errors=True)
        (bench.folder / "empty").mkdir()
        shutil.copytree(bench.folder / "store", bench.folder / "recovered")
        empty = start(bench.folder / "empty")
        return Run(bench.rows, max(0.01, start(bench.folder / "recovered") - empty))

    yield run


@case("rebuild", size=128, rows="messages", rounds=3, default=False)
def rebuilding(bench: Bench) -> Iterator[Way]:
    """Consume queues and key index from the commit log, written to disk; the peer is a broker that starts on the same log."""
    _, size = make_store(bench)
    store, target = Store(rawlog.open(bench.folder / "store").files), bench.folder / "rebuilt"

    def run() -> int:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        return int(rebuild(store, Folder(target), {"commitlog": "none"}).counts["units"])

    yield Work("rawlog rebuild", run)
    yield Peer("a broker's recovery (Java)", start=lambda: recovery(bench, size), warm=0, rounds=2)


if __name__ == "__main__":
    main(__doc__)
