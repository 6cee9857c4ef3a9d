"""Kafka partitions to read, and how many bytes of them were read."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import rawlog
from rawlog.io.storage import Source
from tests.data.golden import kafka_cases


def make_partitions(folder: Path) -> Path:
    """A log directory with a partition of several segments, one with transactions, and one with large batches."""
    for case in kafka_cases():
        if case.path.parent.name == "broker-3.9.2" and case.path.name in ("segments-by-size-0", "transactions-0"):
            shutil.copytree(case.path, folder / case.path.name)
    rows = [{"key": b"k", "value": random.Random(number).randbytes(900), "offset": number} for number in range(4_000)]
    options = {"topic": "large", "partition": 0, "segment_bytes": 2 << 20, "batch_bytes": 8_000}
    rawlog.write(folder, pa.Table.from_pylist(rows), format="kafka", **options)
    return folder


def count_bytes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes that are read from now on, by path."""
    read: dict[str, int] = {}
    original = Source.read_into

    def counted(self: Source, position: int, target: memoryview) -> int:
        got = original(self, position, target)
        read[self.path] = read.get(self.path, 0) + got
        return got

    monkeypatch.setattr(Source, "read_into", counted)
    return read


def in_logs(read: dict[str, int], topic: str = "") -> int:
    """Those of log segments, of the partitions of one topic if it is named."""
    return sum(count for path, count in read.items() if path.endswith(".log") and topic in path)
