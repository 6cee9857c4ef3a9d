"""Files of a store show what every format must (`rawlog.testing`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rawlog.testing import FormatTests
from tests.formats.rocketmq.stores import expected, store
from tests.golden_data import GOLDEN
from tests.reference import rocketmq as reference

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
                "topic": message.topic.decode("utf-8", "backslashreplace"),
                "partition": message.queue_id,
                "offset": offset,
                "timestamp": message.born * 1000 if abs(message.born) <= ((1 << 63) - 1) // 1000 else None,
                "headers": [
                    {"key": name.decode("utf-8", "backslashreplace"), "value": value} for name, value in message.pieces
                ],
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
        told = [each for each in expected(root, "messages") if each["physical_offset"] < path.stat().st_size]
        names = {name: name for name in ("physical_offset", "topic", "queue_offset", "keys")} | {"message_id": "msg_id"}
        return {"rocketmq.messages": [{ours: each[theirs] for ours, theirs in names.items()} for each in told]}

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]] | None:
        rows: list[dict[str, Any]] = []
        try:
            for each in reference.messages(data):
                if each.physical_offset != each.position:
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


assert store("4.9.8").exists()
