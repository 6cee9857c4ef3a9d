"""The work that counts.py counts: reading and writing of each family, over the same bytes each time, in one thread."""

from __future__ import annotations

import tempfile
from pathlib import Path

from data import ambry_log, kafka_log, records, rocketmq_rows

import rawlog
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_rows
from rawlog.formats.rocketmq.store.rewrite import write_store
from rawlog.io.output import Folder

BYTES = 200_000


def rows_of(path: Path, table: str, **selection: object) -> int:
    return sum(batch.num_rows for batch in rawlog.open(path).table(table, **selection).batches())


def kafka(**selection: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "orders-0", f"{0:020d}.log")
        path.parent.mkdir()
        path.write_bytes(kafka_log(BYTES, headers=1))
        assert rows_of(path, "records", **selection)


def verify() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "orders-0", f"{0:020d}.log")
        path.parent.mkdir()
        path.write_bytes(kafka_log(BYTES))
        assert rawlog.verify(path).frames


def encode() -> None:
    assert encode_rows(RowBuffers.of(records(2_000)), Batching()).rows == 2_000


def rocketmq() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = next(rocketmq_rows(1)).slice(0, 1_000)
        write_store([rows], Folder(Path(folder)), {"derived": "none", "commitlog_size": str(1 << 20)})
        assert rows_of(Path(folder), "rocketmq.messages") == 1_000


def ambry() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "9", "0_0_log")
        path.parent.mkdir()
        count = ambry_log(path, BYTES, 1024)
        assert rows_of(path, "records") == count


WORK = {
    "Kafka, every column": kafka,
    "Kafka, offsets": lambda: kafka(columns=["offset"]),
    "Kafka, verify": verify,
    "Kafka, encode": encode,
    "RocketMQ, write and read": rocketmq,
    "Ambry, every column": ambry,
}
