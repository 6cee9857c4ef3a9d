"""Files of a store show what every format must (`rawlog.testing`)."""

from __future__ import annotations

import gzip
import struct
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import rawlog
from rawlog.testing import FormatTests
from rawlog.testing.formats import plain
from tests.data.golden import GOLDEN
from tests.data.rocketmq_stores import expected, store
from tests.reference import rocketmq as reference
from tests.reference.kafka import java_string

ROOT = GOLDEN / "rocketmq"
BROKERS = ("broker-5.3.3", "broker-4.9.7")
V4, V6 = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F]), bytes(range(16)) + bytes([0, 0, 0x2A, 0x9F])


def message(**changes: Any) -> reference.Message:
    """A message of an unnamed file that begins at address 0."""
    fields: dict[str, Any] = {
        "position": 0, "size": 0, "version": 1, "body_crc": 0, "queue_id": 3, "flag": 0, "queue_offset": 7, "physical_offset": 0,
        "sys_flag": 0, "born": 1_700_000_000_000, "born_host": V4, "stored": 1_700_000_000_005, "store_host": V4, "reconsumed": 0,
        "prepared": 0, "body": b"hello", "topic": b"OrderTopic", "properties": b"TAGS\x01TagA\x02KEYS\x01order-1\x02",
    }  # fmt: skip
    return reference.Message(**(fields | changes))


def log(*messages: reference.Message) -> bytes:
    """A file of messages, each with its own address."""
    data = b""
    for each in messages:
        each.physical_offset = len(data)
        data += reference.encode(each)
    return data


def blank(size: int) -> bytes:
    return struct.pack(">iI", size, reference.BLANK) + bytes(size - 8)


def below(pattern: str, *names: str) -> list[Path]:
    return sorted(path for name in names for path in (ROOT / name / "store").glob(pattern) if path.is_file())


def trimmed(pattern: str, unit: int = 1, of: str = "broker-5.3.3") -> Path:
    """A file of a golden store without the zeros after its last unit."""
    source = store(of) / pattern
    data = source.read_bytes()
    used = len(data.rstrip(b"\0"))
    target = Path(_TRIMMED.name, pattern)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data[: -(-used // unit) * unit])
    return target


_TRIMMED = tempfile.TemporaryDirectory(prefix="rocketmq-trimmed-")
WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)


def micros(milliseconds: int) -> int | None:
    """As a timestamp column holds it: what is beyond it is null."""
    return milliseconds * 1000 if abs(milliseconds) <= ((1 << 63) - 1) // 1000 else None


def shown_pairs(message: reference.Message) -> list[tuple[str, str]]:
    """What RocketMQ's parser takes, each where the last of its name is."""
    pairs = [(name, value) for name, value in message.pieces if name and value]
    kept = [pair for number, pair in enumerate(pairs) if all(pair[0] != name for name, _ in pairs[number + 1 :])]
    return [tuple(java_string(part) for part in pair) for pair in kept]  # type: ignore[misc]


def is_leftover(data: bytes, message: reference.Message) -> bool:
    """Whether a message is a copy of the one at the address that it names, by its first fields. Any other that is not at its place is a row
    all the same.
    """
    start, named, size = message.position, message.physical_offset, 48
    return named != start and named >= 0 and data[named : named + size] == data[start : start + size]


def records_of(message: reference.Message) -> list[dict[str, Any]]:
    """The rows of `records` that a message gives; ValueError if it cannot be read."""
    pieces = [(message.queue_offset, message.body, message.properties)]
    if message.sys_flag & 1:
        raise ValueError("compressed")
    if message.sys_flag & 0xC0 == 0xC0:
        found = reference.inner(message.body)
        pieces = [(message.queue_offset + number, body, pairs) for number, (_, body, pairs) in enumerate(found)]
    rows = []
    for offset, body, properties in pieces:
        message.properties = properties
        rows.append(
            {
                "key": message.shown.get(b"KEYS"),
                "value": body,
                "topic": java_string(message.topic),
                "partition": message.queue_id,
                "offset": offset,
                "timestamp": message.born * 1000 if abs(message.born) <= ((1 << 63) - 1) // 1000 else None,
                "headers": [{"key": java_string(name), "value": value} for name, value in message.pieces],
            }
        )
    return rows


@st.composite
def storable(draw: st.DrawFn) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rows that a store says in its own words, key and all, and ways to write them."""
    text = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1, max_size=12)
    first, rows = draw(st.sampled_from([0, 0, 70, 6000])), []
    for number in range(draw(st.integers(1, 12))):
        names = draw(st.lists(text.filter(lambda name: name != "KEYS"), max_size=4))
        headers = [{"key": name, "value": draw(text).encode()} for name in names]
        key = draw(st.none() | text.map(str.encode))
        if key is not None:
            headers.insert(draw(st.integers(0, len(headers))), {"key": "KEYS", "value": key})
        rows.append(
            {
                "key": key, "value": draw(st.binary(max_size=300)), "topic": "orders", "partition": 3, "offset": first + number,
                "timestamp": draw(st.integers(0, 1 << 41)) * 1000, "timestampType": 0, "headers": headers,
            }
        )  # fmt: skip
    options = {"commitlog_size": "65536", "queue_size": "2000", "index_slots": "50", "index_entries": "100"}
    return options | {"codec": draw(st.sampled_from(["none", "zlib", "lz4", "zstd"])), "compress_over": "50"}, rows


class TestCommitLog(FormatTests):
    format = "rocketmq.commitlog"
    golden = tuple(below("commitlog/" + "0" * 20, *BROKERS, "4.9.8", "5.1.4", "5.3.4S-propcrc"))
    small = (
        log(message(), message(body=b"", properties=b"", born_host=V6, sys_flag=0x10)),
        log(message(version=2, topic=b"T" * 130, sys_flag=0x38, born_host=V6, store_host=V6)) + blank(20),
        log(
            message(sys_flag=0xC0, body=struct.pack(">iiiii", 25, 0, 0, 1, 1) + b"x" + struct.pack(">h", 2) + b"a\x01")
        ),
    )
    everything = GOLDEN
    name = "commitlog/00000000000000000000"

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        root = path.parents[2].name
        if root not in BROKERS:
            return {}
        listed = [each for each in expected(root, "messages") if each["physical_offset"] < path.stat().st_size]
        names = {name: name for name in ("physical_offset", "topic", "queue_offset", "keys")} | {"message_id": "msg_id"}
        return {"rocketmq.messages": [{ours: each[theirs] for ours, theirs in names.items()} for each in listed]}

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]] | None:
        rows: list[dict[str, Any]] = []
        try:
            for each in reference.messages(data):
                if is_leftover(data, each):
                    continue
                if not each.crc_ok:
                    break
                if each.sys_flag & 1:
                    return None  # the reference does not decompress
                rows += records_of(each)
        except (reference.Bad, ValueError):
            pass
        return {"records": rows}

    def samples(self) -> st.SearchStrategy[bytes]:
        text = st.binary(max_size=12).map(lambda raw: raw.replace(b"\x01", b"").replace(b"\x02", b""))
        one_pair = st.tuples(text, text).map(lambda pair: pair[0] + b"\x01" + pair[1] + b"\x02")
        pairs = st.lists(one_pair, max_size=4).map(b"".join)
        number = st.integers(-(1 << 31), (1 << 31) - 1)
        one = st.builds(
            message,
            version=st.sampled_from([1, 1, 2]),
            queue_id=number,
            flag=number,
            queue_offset=st.integers(-(1 << 63), (1 << 63) - 1),
            sys_flag=st.sampled_from([0, 2, 4, 8, 12]),
            born=st.integers(-(1 << 63), (1 << 63) - 1),
            body=st.binary(max_size=60),
            topic=st.one_of(st.just(b"orders"), text),
            properties=pairs,
        )
        return st.lists(one, max_size=5).map(lambda found: log(*found))

    def records(self) -> st.SearchStrategy[tuple[dict[str, str], list[dict[str, Any]]]]:
        return storable()

    def owns(self, path: Path) -> bool | None:
        if "rocketmq" in path.parts and path.suffix == ".gz":
            return False
        if "compactionLog" in path.parts:
            return None  # the same frames in another log
        return path.parent.name == "commitlog"

    def marked(self, path: Path) -> bool:
        return path.stat().st_size > 0

    def protected(self, data: bytes) -> Iterable[int]:
        for each in reference.messages(data):
            at = data.index(each.body, each.position + 48) if each.body else 0
            yield from range(at, at + len(each.body))


class TestConsumeQueue(FormatTests):
    format = "rocketmq.consumequeue"
    golden = tuple(
        path
        for path in below("consumequeue/T2/0/*", "4.9.8", "5.1.4")
        if len(reference.units(path.read_bytes())) == 100
    )
    small = (struct.pack(">qiqqiq", 100, 171, 2598919, 271, 90, -5),)
    everything = GOLDEN
    name = "consumequeue/orders/3/00000000000000000000"

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        rows = [
            {"queue_offset": number, "physical_offset": address, "size": size, "tag_hash": tag, "kind": "plain"}
            for number, (address, size, tag) in enumerate(reference.units(data))
        ]
        return {"rocketmq.queues": rows}

    def _told_by_bytes(self, expected: list[dict[str, Any]]) -> list[str]:
        return ["physical_offset", "size", "tag_hash", "kind"]

    def samples(self) -> st.SearchStrategy[bytes]:
        unit = st.tuples(st.integers(0, 1 << 62), st.integers(1, (1 << 31) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
        return st.lists(unit, max_size=30).map(lambda units: b"".join(struct.pack(">qiq", *each) for each in units))

    def owns(self, path: Path) -> bool | None:
        return "consumequeue" in path.parts and "rocketmq" in path.parts


class TestKeyIndex(FormatTests):
    format = "rocketmq.index"
    golden = tuple(path for name in ("4.9.8", "5.1.4") for path in below("index/*", name)[:1])
    small = (
        # Two slots, three entries (number 0 is never used): two keys of one message.
        struct.pack(">qqqqii", 5000, 6000, 100, 200, 2, 3)
        + struct.pack(">ii", 2, 1)
        + bytes(20)
        + struct.pack(">iqiiiqii", 7, 100, 0, 0, 8, 200, 1, 0),
    )
    everything = GOLDEN
    name = "index/20240102030405678"

    def header(self, data: bytes) -> int:
        return 40 + 4 * (50 if len(data) == 3240 else 2) + 20

    def least(self, data: bytes) -> int:
        return len(data)

    def owns(self, path: Path) -> bool | None:
        return path.parent.name == "index" and "rocketmq" in path.parts


class TestCheckpoint(FormatTests):
    format = "rocketmq.checkpoint"
    golden = ()
    small = (struct.pack(">qqqqq", 5000, 5000, 4000, 0, 77),)
    everything = GOLDEN
    name = "checkpoint"

    def test_golden_files_hold_what_is_expected(self) -> None:
        """Golden ones are padded to 4096 bytes: test_golden.py and the store's rules look at them."""

    def owns(self, path: Path) -> bool | None:
        return path.name == "checkpoint" and "rocketmq" in path.parts


class TestCompactionLog(TestCommitLog):
    format = "rocketmq.compactionlog"
    golden = (trimmed("compaction/compactionLog/gold_compact/0/" + "0" * 20),)
    small = (log(message(), message(body=b"", properties=b"KEYS\x01gone")) + blank(30), log(message(version=2)))
    name = "compaction/compactionLog/orders/3/00000000000000000000"

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        listed = expected("broker-5.3.3", "compaction")
        names = {name: name for name in ("queue_offset", "physical_offset", "topic", "keys", "tags", "born_host")}
        names |= {"size": "store_size", "message_id": "msg_id", "unique_key": "uniq_key"}
        return {"rocketmq.compacted": [{ours: each[theirs] for ours, theirs in names.items()} for each in listed]}

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]] | None:
        rows: list[dict[str, Any]] = []
        try:
            for each in reference.messages(data):
                if each.sys_flag & 1:
                    return None
                rows.append(
                    {
                        "position": each.position,
                        "queue_offset": each.queue_offset,
                        "body": each.body,
                        "crc_ok": each.crc_ok,
                        "stale": is_leftover(data, each),
                        "properties": shown_pairs(each),
                    }
                )
        except (reference.Bad, ValueError):
            pass
        return {"rocketmq.compacted": rows}

    def records(self) -> None:
        """It is not written."""

    def protected(self, data: bytes) -> Iterable[int]:
        """None that reading would refuse: the table shows which messages have a wrong checksum."""
        return ()

    def test_checksums_are_counted_on(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, self.name)
            path.parent.mkdir(parents=True)
            for data in self.small:
                for position in super().protected(data):
                    flipped = bytearray(data)
                    flipped[position] ^= 1
                    opened = self.put(path, bytes(flipped))
                    assert False in opened.table("rocketmq.compacted").to_arrow().column("crc_ok").to_pylist()
                    assert rawlog.verify(path).errors

    def owns(self, path: Path) -> bool | None:
        return "compactionLog" in path.parts and path.name.isdigit()


class TestBatchQueue(FormatTests):
    format = "rocketmq.batchconsumequeue"
    golden = tuple(trimmed(f"batchconsumequeue/gold_bcq/{queue}/" + "0" * 20, 46) for queue in (0, 1))
    small = (struct.pack(">qiqqqhii", 100, 171, 2598919, 5000, 0, 3, -1, 0) * 2,)
    everything = GOLDEN
    name = "batchconsumequeue/orders/3/00000000000000000000"

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        names = ("physical_offset", "size", "tag_hash", "store_timestamp", "queue_offset", "batch_size")
        rows = [dict(zip(names, unit, strict=True)) | {"kind": "batch"} for unit in reference.batch_units(data)]
        return {"rocketmq.queues": [row | {"store_timestamp": micros(row["store_timestamp"])} for row in rows]}

    def samples(self) -> st.SearchStrategy[bytes]:
        long, number = st.integers(0, 1 << 62), st.integers(1, (1 << 31) - 1)
        unit = st.tuples(long, number, WHOLE, WHOLE, long, st.integers(1, 32767), st.just(-1), st.just(0))
        return st.lists(unit, max_size=20).map(
            lambda units: b"".join(struct.pack(">qiqqqhii", *each) for each in units)
        )

    def owns(self, path: Path) -> bool | None:
        return "batchconsumequeue" in path.parts


class TestExtQueue(FormatTests):
    format = "rocketmq.consumequeueext"
    golden = (trimmed("consumequeue_ext/T2/0/" + "0" * 20, of="5.3.4S-cqext"),)
    small = (
        struct.pack(">hqqh", 20, 2598919, 5000, 0)
        + struct.pack(">hqqh", 23, -5, 6000, 3)
        + b"\x01\x02\x03"
        + b"\xff\xff\0\0",
        struct.pack(">hqqh", 20, 1, -5, 0),
    )
    everything = GOLDEN
    name = "consumequeue_ext/orders/3/00000000000000000000"

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        rows = [
            {"size": size, "tag_hash": tag, "store_timestamp": micros(stored), "kind": "ext"}
            for size, tag, stored in reference.ext_units(data)
        ]
        return {"rocketmq.queues": rows}

    def samples(self) -> st.SearchStrategy[bytes]:
        unit = st.tuples(WHOLE, WHOLE, st.binary(max_size=9)).map(
            lambda each: struct.pack(">hqqh", 20 + len(each[2]), *each[:2], len(each[2])) + each[2]
        )
        end = st.sampled_from([b"", b"\xff\xff", bytes(30)])
        return st.tuples(st.lists(unit, max_size=20), end).map(lambda drawn: b"".join(drawn[0]) + drawn[1])

    def owns(self, path: Path) -> bool | None:
        return "consumequeue_ext" in path.parts


class TestTimerLog(FormatTests):
    format = "rocketmq.timerlog"
    golden = (trimmed("timerlog/" + "0" * 20, 52),)
    small = (
        struct.pack(">iqiqiqiiq", 52, -1, 1, 5000, 3000, 100, 171, 77, 0) * 2
        + struct.pack(">iqI", 16, 0, reference.BLANK),
        # A blank one of the size of a unit.
        struct.pack(">iqiqiqiiq", 52, -1, 1, 5000, 3000, 100, 171, 77, 0)
        + struct.pack(">iqI", 52, 0, reference.BLANK)
        + bytes(36),
    )
    everything = GOLDEN
    name = "timerlog/00000000000000000000"

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        rows = [
            {
                "timer_position": number * 52, "previous_position": previous, "magic": magic, "write_timestamp": micros(written),
                "due_timestamp": micros(written + delay), "physical_offset": address, "size": size, "topic_hash": topic,
            }
            for number, (previous, magic, written, delay, address, size, topic) in enumerate(reference.timer_units(data))
        ]  # fmt: skip
        return {"rocketmq.timers": rows}

    def samples(self) -> st.SearchStrategy[bytes]:
        time, number = st.integers(0, 1 << 45), st.integers(-(1 << 31), (1 << 31) - 1)
        unit = st.tuples(st.just(52), WHOLE, st.integers(1, 7), time, number, WHOLE, number, number, st.just(0))
        return st.lists(unit, max_size=20).map(
            lambda units: b"".join(struct.pack(">iqiqiqiiq", *each) for each in units)
        )

    def owns(self, path: Path) -> bool | None:
        return path.parent.name == "timerlog"


class TestTimerWheel(FormatTests):
    format = "rocketmq.timerwheel"
    golden = ()
    small = (struct.pack(">qqqii", 1_700_000_000, 0, 52, 2, 0) * 2,)
    everything = GOLDEN
    name = "timerwheel"

    def test_golden_files_hold_what_is_expected(self) -> None:
        """The golden one is packed, and nearly all of its million slots are empty."""
        for name in ("broker-5.3.3", "broker-5.3.3-crashed"):
            data = gzip.decompress((store(name) / "timerwheel.gz").read_bytes())
            [table] = self.reference(data).values()
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "timerwheel")
                path.write_bytes(data)
                rows = plain(self.open(path).table("rocketmq.wheel").to_arrow())
            assert [{name: row[name] for name in table[0]} for row in rows] == table

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        rows = [
            {
                "position": position, "due_timestamp": micros(time * 1000), "first_position": first, "last_position": last,
                "count": count, "magic": magic,
            }
            for position, time, first, last, count, magic in reference.wheel_slots(data)
        ]  # fmt: skip
        return {"rocketmq.wheel": rows}

    def samples(self) -> st.SearchStrategy[bytes]:
        number = st.integers(-(1 << 31), (1 << 31) - 1)
        slot = st.tuples(st.integers(0, 1 << 40), WHOLE, WHOLE, number, number)
        return st.lists(slot, max_size=20).map(lambda slots: b"".join(struct.pack(">qqqii", *each) for each in slots))

    def owns(self, path: Path) -> bool | None:
        return path.name == "timerwheel"


assert store("4.9.8").exists()
