"""Segments show what every format must (`rawlog.testing`)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rawlog.testing import FormatTests
from tests.golden_data import GOLDEN, KafkaCase, kafka_cases, vectors
from tests.reference import kafka, strategies

#: One of each: codecs, both timestamp types, gaps, transactions, old message sets, wrappers, several in one file.
CHOSEN = {
    "broker-4.3.0/codec-mixed-0", "broker-4.3.0/edge-cases-0", "broker-4.3.0/log-append-time-0",
    "broker-4.3.0/transactions-0", "broker-4.3.0/compacted-zstd-0", "broker-3.9.2/idempotent-0",
    "legacy/broker-0.8.2.2/codecs-0", "legacy/broker-0.10.2.2/mixed-compacted-0", "legacy/broker-0.10.2.2/append-0",
}  # fmt: skip
CASES = [case for case in kafka_cases() if str(case) in CHOSEN]
VECTORS = vectors()


def segment_rows(case: KafkaCase, path: Path) -> list[dict[str, Any]]:
    """What a real consumer got from one segment of a partition."""
    starts = [int(segment.stem) for segment in case.segments]
    start = int(path.stem)
    stop = min([other for other in starts if other > start], default=1 << 63)
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": None if record.timestamp is None else record.timestamp * 1000,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }
        for record in case.records
        if start <= record.offset < stop
    ]


@st.composite
def storable(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rows of one partition, and ways to write them."""
    count = draw(st.integers(1, 12))
    start = draw(st.sampled_from([0, 0, 1000, (1 << 62)]))
    steps = draw(st.lists(st.sampled_from([1, 1, 1, 2, 500, (1 << 31) + 7]), min_size=count, max_size=count))
    offset = start - 1
    magic = draw(st.sampled_from([2, 2, 2, 1]))
    rows = []
    for step in steps:
        offset += step
        time = draw(strategies.timestamps())
        headers = draw(strategies.header_lists()) if magic == 2 else []
        rows.append(
            {
                "key": draw(strategies.nullable(strategies.contents(300))),
                "value": draw(strategies.nullable(strategies.contents(3000))),
                "topic": "orders",
                "partition": 0,
                "offset": offset,
                "timestamp": None if time == -1 else time * 1000,
                "timestampType": draw(st.sampled_from([0, 0, 0, 1])),
                "headers": [{"key": name, "value": value} for name, value in headers],
            }
        )
    options = {
        "codec": draw(st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"][: 5 if magic == 2 else 4])),
        "magic": str(magic),
        "batch_records": str(draw(st.sampled_from([1, 2, 5, 1000]))),
        "batch_bytes": str(draw(st.sampled_from([1, 100, 5000, 1 << 20]))),
        "segment_bytes": str(draw(st.sampled_from([40_000, 1 << 30]))),
        "index_interval_bytes": str(draw(st.sampled_from([0, 100, 4096]))),
    }
    return options, rows


class TestLog(FormatTests):
    format = "kafka.log"
    golden = tuple(path for case in CASES for path in case.segments)
    small = (
        VECTORS["v2-none"] + VECTORS["endtxn-abort"],
        VECTORS["v2-zstd"],
        VECTORS["v1-none"] + VECTORS["v0-gzip"],
    )
    everything = GOLDEN
    name = "orders-0/00000000000000000000.log"

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        return {"records": segment_rows(next(case for case in CASES if case.path == path.parent), path)}

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        try:
            for batch in kafka.decode(data):
                rows += [] if batch.is_control else [self.row(record) for record in batch.records]
        except kafka.Bad:
            pass
        return {"records": rows}

    def row(self, record: kafka.Record) -> dict[str, Any]:
        return {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 0,
            "offset": record.offset,
            "timestamp": None if record.timestamp is None else record.timestamp * 1000,
            "headers": [{"key": name, "value": value} for name, value in record.headers],
        }

    def samples(self) -> st.SearchStrategy[bytes]:
        return strategies.logs(magics=(2, 2, 2, 1, 0)).map(lambda sample: sample.data)

    def records(self) -> st.SearchStrategy[tuple[dict[str, str], list[dict[str, Any]]]]:
        return storable()

    def owns(self, path: Path) -> bool | None:
        elsewhere = (".checkpoint", ".deleted", ".cleaned", ".swap")
        if path.parent.name == "__cluster_metadata-0" or path.suffix in elsewhere:
            return None  # the same frames, of another family or in another state
        return re.fullmatch(r"\d{20}\.log", path.name) is not None

    def marked(self, path: Path) -> bool:
        return path.stat().st_size > 0

    def protected(self, data: bytes) -> Iterable[int]:
        for position, size, magic in kafka.frames(data)[0]:
            yield from range(position + (17 if magic == 2 else 12), position + (21 if magic == 2 else 16))
            yield from range(position + (21 if magic == 2 else 17), position + size)
