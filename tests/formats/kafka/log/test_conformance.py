"""Segments show what every format must (`rawlog.testing`)."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rawlog.testing import FormatTests
from tests.data.golden import GOLDEN, KafkaCase, kafka_cases, vectors
from tests.reference import kafka, strategies

#: One of each: codecs, both timestamp types, gaps, transactions, old message sets, wrappers, several in one file.
CHOSEN = {
    "broker-4.3.0/codec-mixed-0", "broker-4.3.0/edge-cases-0", "broker-4.3.0/log-append-time-0",
    "broker-4.3.0/transactions-0", "broker-4.3.0/compacted-zstd-0", "broker-3.9.2/idempotent-0",
    "legacy/broker-0.8.2.2/codecs-0", "legacy/broker-0.10.2.2/mixed-compacted-0", "legacy/broker-0.10.2.2/append-0",
}  # fmt: skip
CASES = [case for case in kafka_cases() if str(case) in CHOSEN]
VECTORS = vectors()
#: How the name of a segment's file begins, on disk and in remote storage.
START = r"\d{20}|\d+-[A-Za-z0-9_-]{22}"


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
            "timestamp": None if record.timestamp is None else times(record.timestamp),
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


def batch_crc(batch: bytes) -> int:
    """The stored checksum of a batch of format 2."""
    return int.from_bytes(batch[17:21], "big")


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
        """The records before the first damage that concerns them: nobody decodes control batches for them."""
        rows: list[dict[str, Any]] = []
        try:
            for position, size, magic in kafka.frames(data)[0]:
                batch = data[position : position + size]
                if magic == 2 and size > 60 and batch[22] & 0x20 and kafka.crc32c(batch[21:]) == batch_crc(batch):
                    continue
                rows += [self.row(record) for each in kafka.decode(batch) for record in each.records]
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
            "timestamp": None if record.timestamp is None else times(record.timestamp),
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
        return re.fullmatch(rf"({START})\.log", path.name) is not None

    def marked(self, path: Path) -> bool:
        return path.stat().st_size > 0

    def protected(self, data: bytes) -> Iterable[int]:
        for position, size, magic in kafka.frames(data)[0]:
            yield from range(position + (17 if magic == 2 else 12), position + (21 if magic == 2 else 16))
            yield from range(position + (21 if magic == 2 else 17), position + size)


def neighbour(suffix: str, limit: int = 3) -> tuple[Path, ...]:
    """Some golden files of a kind that are neither empty nor padded."""
    found = (path for case in CASES for path in sorted(case.path.glob(f"*.{suffix}")))
    return tuple(path for path in found if 0 < path.stat().st_size < 5000)[:limit]


def times(milliseconds: int) -> int | None:
    """Milliseconds as the rows of a table have them: no time, or one that microseconds cannot hold, is none."""
    return None if milliseconds == -1 or abs(milliseconds) > ((1 << 63) - 1) // 1000 else milliseconds * 1000


class Beside(FormatTests):
    """A file of fixed entries next to a segment."""

    everything = GOLDEN
    golden: tuple[Path, ...] = ()
    small: tuple[bytes, ...] = ()
    table: str
    entry: struct.Struct
    padded = True

    def entries(self, data: bytes) -> list[tuple[int, ...]]:
        whole = [self.entry.unpack_from(data, at) for at in range(0, len(data) - self.entry.size + 1, self.entry.size)]
        if self.padded:
            whole = whole[: next((n for n, one in enumerate(whole) if not any(one)), len(whole))]
        return whole

    def row(self, *fields: int) -> dict[str, Any]:
        raise NotImplementedError

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        return {self.table: [self.row(*fields) for fields in self.entries(data)]}

    def owns(self, path: Path) -> bool | None:
        if path.parent.name == "__cluster_metadata-0":
            return None
        return (
            re.fullmatch(rf"({START})\.{self.format.split('.')[1]}(\.deleted|\.cleaned|\.swap)?", path.name) is not None
        )


class TestIndex(Beside):
    format, table, entry = "kafka.index", "kafka.index", struct.Struct(">ii")
    golden = neighbour("index")
    small = (struct.pack(">iiii", 3, 4100, 9, 8300), struct.pack(">ii", 7, 5000) + bytes(16))
    name = "orders-0/00000000000000000000.index"
    points_elsewhere = True

    def row(self, *fields: int) -> dict[str, Any]:
        relative, position = fields
        return {"relative_offset": relative, "position": position}

    def samples(self) -> st.SearchStrategy[bytes]:
        number = st.integers(1, (1 << 31) - 1)
        return st.lists(st.tuples(number, number), max_size=12).map(
            lambda rows: b"".join(struct.pack(">ii", *row) for row in rows)
        )


class TestTimeIndex(Beside):
    format, table, entry = "kafka.timeindex", "kafka.timeindex", struct.Struct(">qi")
    golden = neighbour("timeindex")
    small = (struct.pack(">qiqi", 1_700_000_000_000, 3, 1_700_000_000_009, 9), struct.pack(">qi", 5, 1) + bytes(24))
    name = "orders-0/00000000000000000000.timeindex"

    def entries(self, data: bytes) -> list[tuple[int, ...]]:
        return [(0, 0)] if data == bytes(12) else super().entries(data)  # only alone are zeros an entry

    def row(self, *fields: int) -> dict[str, Any]:
        timestamp, relative = fields
        return {"timestamp": times(timestamp), "relative_offset": relative}


class TestTxnIndex(Beside):
    format, table, entry = "kafka.txnindex", "kafka.txnindex", struct.Struct(">hqqqq")
    golden = neighbour("txnindex")
    small = (bytes.fromhex("0000 0000000000000007 0000000000000258 000000000000025b 000000000000025a") * 2,)
    name = "orders-0/00000000000000000000.txnindex"
    padded = False

    def entries(self, data: bytes) -> list[tuple[int, ...]]:
        whole = super().entries(data)
        return whole[: next((n for n in range(len(whole)) if data[n * 34]), len(whole))]

    def row(self, *fields: int) -> dict[str, Any]:
        names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
        return dict(zip(names, fields[1:], strict=True))


class TestSnapshot(Beside):
    format, table, entry = "kafka.snapshot", "kafka.producers", struct.Struct(">qhiqiqiq")
    golden = neighbour("snapshot")
    small = (
        bytes.fromhex(
            "0001 097dddaf 00000002"
            "0000000000000007 0000 00000001 0000000000000259 00000001 000001a1e0b54ef4 00000005 ffffffffffffffff"
            "0000000000000008 0001 00000000 000000000000025a 00000000 000001a1e0b54ef3 ffffffff 000000000000025a"
        ),
    )
    name = "orders-0/00000000000000000603.snapshot"
    padded = False

    def header(self, data: bytes) -> int:
        return 10

    def least(self, data: bytes) -> int:
        return len(data)

    def protected(self, data: bytes) -> Iterable[int]:
        return range(len(data))

    def test_damage_in_one_place_costs_no_frame_before_it(self) -> None:
        """It costs all of them: one checksum covers the file."""

    def entries(self, data: bytes) -> list[tuple[int, ...]]:
        if len(data) < 10 or data[:2] != b"\0\x01" or kafka.crc32c(data[6:]) != int.from_bytes(data[2:6], "big"):
            return []
        return super().entries(data[10:])[: int.from_bytes(data[6:10], "big")]

    def row(self, *fields: int) -> dict[str, Any]:
        names = ("producer_id", "epoch", "last_sequence", "last_offset", "offset_delta", "timestamp")
        names += ("coordinator_epoch", "current_txn_first_offset")
        row: dict[str, Any] = dict(zip(names, fields, strict=True))
        return {name: row[name] for name in row if name != "timestamp"} | {"timestamp": times(row["timestamp"])}


class Lines(FormatTests):
    """A checkpoint: a version, a count, and lines of fields."""

    everything = GOLDEN
    golden: tuple[Path, ...] = ()
    small: tuple[bytes, ...] = ()
    table: str
    bits: tuple[int, ...]

    def header(self, data: bytes) -> int:
        return sum(len(line) for line in data.splitlines(keepends=True)[:2])

    def least(self, data: bytes) -> int:
        return len(data)

    def test_damage_in_one_place_costs_no_frame_before_it(self) -> None:
        """It costs all of them: Kafka takes nothing of a file that is wrong in one line."""

    def row(self, *fields: str) -> dict[str, Any]:
        raise NotImplementedError

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]] | None:
        """Of whole files only: where damage begins in a text is a matter of taste."""
        try:
            version, count, *rows = data.decode("ascii").removesuffix("\n").split("\n")
            table = [row.split() for row in rows]
        except ValueError:
            return None
        if version != "0" or count != str(len(rows)) or any(len(row) != len(self.bits) for row in table):
            return None
        for row in table:
            for text, bits in zip(row, self.bits, strict=True):
                if bits and not (re.fullmatch(r"-?\d+", text) and -(1 << bits - 1) <= int(text) < 1 << bits - 1):
                    return None
        return {self.table: [self.row(*row) for row in table]}


class TestEpochs(Lines):
    format, table, bits = "kafka.epochs", "kafka.epochs", (32, 64)
    golden = tuple(case.path / "leader-epoch-checkpoint" for case in CASES if "legacy" not in case.broker)[:3]
    small = (b"0\n2\n0 0\n2 450\n",)
    name = "orders-0/leader-epoch-checkpoint"

    def row(self, *fields: str) -> dict[str, Any]:
        return {"epoch": int(fields[0]), "start_offset": int(fields[1])}

    def samples(self) -> st.SearchStrategy[bytes]:
        row = st.tuples(st.integers(-1, (1 << 31) - 1), st.integers(0, (1 << 63) - 1))
        return st.lists(row, max_size=9).map(
            lambda rows: f"0\n{len(rows)}\n{''.join(f'{a} {b}' + chr(10) for a, b in rows)}".encode()
        )

    def owns(self, path: Path) -> bool | None:
        return path.name == "leader-epoch-checkpoint" or path.suffix == ".leader_epoch_checkpoint"


class TestOffsetCheckpoint(Lines):
    format, table, bits = "kafka.checkpoint", "kafka.checkpoints", (0, 32, 64)
    golden = tuple(sorted((GOLDEN / "kafka" / "broker-4.3.0").rglob("*-offset-checkpoint")))
    small = (b"0\n2\norders 0 17\na.b_c 12 450\n",)
    name = "recovery-point-offset-checkpoint"

    def row(self, *fields: str) -> dict[str, Any]:
        return {
            "topic": fields[0],
            "partition": int(fields[1]),
            "offset": int(fields[2]),
        }

    def owns(self, path: Path) -> bool | None:
        return path.name.endswith("-offset-checkpoint")
