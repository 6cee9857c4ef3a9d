"""Stores damaged at random, several ways at once: files deleted, swapped, renamed, cut, and bytes changed.

The test keeps the truth, made with the reference reader and the undamaged store: which messages must survive, at which physical
offset, what must be reported, and what the queues of the repaired store must contain. `RAWLOG_CASES` sets the number of cases.
"""

from __future__ import annotations

import json
import random
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from rawlog.model.report import Entry, Report
from tests.data.random_repair import Damage, RandomRepair, Repair
from tests.data.rocketmq_rewriting import repaired, said, written
from tests.data.rocketmq_stores import log_files, store
from tests.data.trees import contents
from tests.formats.rocketmq.test_repair import row, table
from tests.reference import rocketmq as reference
from tests.reference.kafka import java_string

FLAG = int.from_bytes(b"rawl", "big")
STORES = ("4.9.8", "5.1.4", "5.3.4S-propcrc", "5.3.4S-cqext", "written")
DELAYS_MS = [1000 * seconds for seconds in (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)]
Queue = tuple[str, int]


class Truth:
    """An undamaged store: its files' bytes, its messages by physical offset, and the tag hash of each by queue."""

    def __init__(self, root: Path) -> None:
        self.files = contents(root)
        self.log_size = log_files(root)[0].stat().st_size
        self.messages: dict[int, reference.Message] = {}
        self.bytes: dict[int, bytes] = {}
        for path in log_files(root):
            data = path.read_bytes()
            for message in reference.messages(data):
                self.messages[message.physical_offset] = message
                self.bytes[message.physical_offset] = data[message.position : message.position + message.size]
        self.topics: dict[str, int] = {}
        for message in self.messages.values():
            name = message.topic.decode()
            self.topics[name] = max(self.topics.get(name, 0), message.queue_id + 1)
        self.batch = {name.split("/")[1] for name in self.files if name.startswith("batchconsumequeue/")}
        # Brokers with default settings wrote all of these stores.
        self.due = {
            address: message.stored + DELAYS_MS[int(message.shown[b"DELAY"]) - 1]
            for address, message in self.messages.items()
            if b"DELAY" in message.shown
        }


def settings(truth: Truth) -> dict[str, bytes]:
    """What a broker would have next to such a store."""
    topics = {
        name: {
            "topicName": name, "readQueueNums": count, "writeQueueNums": count, "perm": 6,
            "attributes": {"queue.type": "BatchCQ"} if name in truth.batch else {},
        }
        for name, count in truth.topics.items()
    }  # fmt: skip
    return {
        "config/topics.json": json.dumps({"topicConfigTable": topics}).encode(),
        "config/consumerOffset.json": b'{"offsetTable":{"orders@readers":{0:1,1:2}}}',
        "config/subscriptionGroup.json": b'{"subscriptionGroupTable":{"readers":{"groupName":"readers"}}}',
        "config/consumerFilter.json": b'{"filterDataByTopic":{}}',
        "config/topics.json.bak": json.dumps({"topicConfigTable": topics}).encode(),
        "config/consumerOffset.json.bak": b'{"offsetTable":{"orders@readers":{0:1}}}',
    }


@cache
def truth_of(name: str) -> Truth:
    if name == "written":
        chance = random.Random(name)
        rows = [
            row(
                number, topic=chance.choice(("orders", "bills")), offset=None, partition=chance.randrange(3),
                value=chance.randbytes(chance.randrange(300)), headers=[{"key": "TAGS", "value": b"t%d" % (number % 5)}],
            )
            for number in range(110)
        ]  # fmt: skip
        sizes = {"commitlog_size": "8192", "queue_size": "400", "index_slots": "50", "index_entries": "150"}
        with tempfile.TemporaryDirectory() as folder:
            written(table(rows), Path(folder) / "store", sizes)
            truth = Truth(Path(folder) / "store")
        truth.files |= settings(truth)
        return truth
    truth = Truth(store(name))
    if name in ("5.1.4", "5.3.4S-cqext"):
        truth.files |= settings(truth)
    return truth


# ------------------------------------------------------------------ damage

Files = dict[str, bytes]
Operation = Callable[[Files, random.Random, Truth], None]


def of(files: Files, kind: str) -> list[str]:
    return sorted(name for name in files if name.startswith(kind))


def some(files: Files, chance: random.Random, *kinds: str) -> str | None:
    names = [name for kind in kinds for name in of(files, kind)]
    return chance.choice(names) if names else None


def flip_in_log(files: Files, chance: random.Random, truth: Truth) -> None:
    """One bit anywhere in what was written of the log."""
    name = some(files, chance, "commitlog/")
    if name and (used := len(files[name].rstrip(b"\0"))):
        data = bytearray(files[name])
        data[chance.randrange(used)] ^= 1 << chance.randrange(8)
        files[name] = bytes(data)


def overwrite_in_log(files: Files, chance: random.Random, truth: Truth) -> None:
    name = some(files, chance, "commitlog/")
    if name and (used := len(files[name].rstrip(b"\0"))):
        at, size = chance.randrange(used), chance.randrange(1, 3000)
        new = chance.choice((bytes(size), chance.randbytes(size)))
        files[name] = (files[name][:at] + new)[: len(files[name])] + files[name][at + size :]


def delete_from_log(files: Files, chance: random.Random, truth: Truth) -> None:
    """Bytes taken out, or put in: what follows is no longer at its place."""
    name = some(files, chance, "commitlog/")
    if name and (used := len(files[name].rstrip(b"\0"))):
        at, size = chance.randrange(used), chance.randrange(1, 200)
        more = chance.randbytes(size) if chance.random() < 0.5 else b""
        files[name] = files[name][:at] + more + files[name][at + (0 if more else size) :]


def cut_log(files: Files, chance: random.Random, truth: Truth) -> None:
    name = some(files, chance, "commitlog/")
    if name and len(of(files, "commitlog/")) > 1:
        files[name] = files[name][: chance.randrange(len(files[name]) + 1)]


def drop_log(files: Files, chance: random.Random, truth: Truth) -> None:
    name = some(files, chance, "commitlog/")
    if name and len(of(files, "commitlog/")) > 1:
        del files[name]


def swap_logs(files: Files, chance: random.Random, truth: Truth) -> None:
    names = of(files, "commitlog/")
    if len(names) > 1:
        one, other = chance.sample(names, 2)
        files[one], files[other] = files[other], files[one]


def rename_log(files: Files, chance: random.Random, truth: Truth) -> None:
    name = some(files, chance, "commitlog/")
    if name:
        start = chance.choice((7, truth.log_size, 10 * truth.log_size, 1 << 40))
        last = name.rpartition("/")[2]
        number = int(last) if last.isdecimal() else 0
        new = chance.choice((f"{number + start:020}", f"{last}.old", f".{last}.tmp"))
        if f"commitlog/{new}" not in files:
            files[f"commitlog/{new}"] = files.pop(name)


def flip_in_derived(files: Files, chance: random.Random, truth: Truth) -> None:
    name = some(files, chance, "consumequeue", "batchconsumequeue", "index/", "checkpoint")
    if name and files[name]:
        data = bytearray(files[name])
        data[chance.randrange(max(1, len(files[name].rstrip(b"\0"))))] ^= 1 << chance.randrange(8)
        files[name] = bytes(data)


def drop_derived(files: Files, chance: random.Random, truth: Truth) -> None:
    """One file, all of a topic, all queues, or the index."""
    name = some(files, chance, "consumequeue", "batchconsumequeue", "index/", "checkpoint")
    if name:
        deep = chance.randrange(1, 1 + name.count("/") + 1)
        prefix = "/".join(name.split("/")[:deep])
        for other in [other for other in files if other == prefix or other.startswith(f"{prefix}/")]:
            del files[other]


def swap_derived(files: Files, chance: random.Random, truth: Truth) -> None:
    kind = chance.choice(("consumequeue/", "batchconsumequeue/", "index/", ""))
    names = [name for name in of(files, kind) if not name.startswith("commitlog/")]
    if len(names) > 1:
        one, other = chance.sample(names, 2)
        files[one], files[other] = files[other], files[one]


def cut_derived(files: Files, chance: random.Random, truth: Truth) -> None:
    name = some(files, chance, "consumequeue", "batchconsumequeue", "index/", "checkpoint")
    if name:
        files[name] = files[name][: chance.randrange(len(files[name]) + 1)]


def rename_derived(files: Files, chance: random.Random, truth: Truth) -> None:
    name = some(files, chance, "consumequeue", "batchconsumequeue", "index/")
    if name:
        folder, _, last = name.rpartition("/")
        new = chance.choice((f"{last}.bak", f"{chance.randrange(1 << 20):020}", "20260101000000000"))
        if f"{folder}/{new}" not in files:
            files[f"{folder}/{new}"] = files.pop(name)


def damage_settings(files: Files, chance: random.Random, truth: Truth) -> None:
    """Settings that are missing, cut, garbage, or JSON of another shape."""
    name = some(files, chance, "config/")
    if not name:
        return
    data = files[name]
    what = chance.randrange(5)
    if what == 0:
        del files[name]
    elif what == 1:
        files[name] = data[: chance.randrange(len(data) + 1)]
    elif what == 2:
        files[name] = chance.randbytes(40)
    elif what == 3:
        files[name] = data.replace(
            chance.choice((b"{", b"4", b"true", b'"')), chance.choice((b"[1,", b"null", b"1e400")), 1
        )
    else:
        files[name] = chance.choice(
            (b"[1,2,3]", b"null", b'{"topicConfigTable":[1]}', b'{"offsetTable":{"a":null}}', b"{}")
        )


def add_stray(files: Files, chance: random.Random, truth: Truth) -> None:
    files[chance.choice(("commitlog/_SUCCESS", "consumequeue/_SUCCESS", "commitlog/.x.crc", "abort"))] = b"x"


DAMAGES: list[Operation] = [
    flip_in_log, flip_in_log, overwrite_in_log, delete_from_log, cut_log, drop_log, swap_logs, rename_log, flip_in_derived,
    drop_derived, swap_derived, cut_derived, rename_derived, damage_settings, add_stray,
]  # fmt: skip


# ------------------------------------------------------------------ truth


def must_survive(files: Files, truth: Truth) -> set[int]:
    """The messages that are, byte for byte, at their place in a file of the damaged log, whatever its name."""
    size = truth.log_size
    logs = [files[name] for name in of(files, "commitlog/")]
    return {
        address
        for address, raw in truth.bytes.items()
        if any(data[address % size : address % size + len(raw)] == raw for data in logs)
    }


def entries_of(root: Path) -> dict[int, tuple[reference.Message, bytes]]:
    found = {}
    for path in sorted((root / "commitlog").iterdir()) if (root / "commitlog").is_dir() else ():
        data = path.read_bytes()
        for message in reference.messages(data):
            assert message.physical_offset == int(path.name) + message.position
            assert message.crc_ok
            found[message.physical_offset] = (message, data[message.position : message.position + message.size])
    return found


def check_queues(root: Path, entries: dict[int, tuple[reference.Message, bytes]], truth: Truth) -> set[int]:
    """Queues have the messages as a broker dispatches them: in order of the log, one directly after the other from the first number on.

    The addresses of messages that are not at the place of their number.
    """
    moved: set[int] = set()
    wanted: dict[Queue, list[tuple[int, int, int, int]]] = {}
    for address, (message, _) in sorted(entries.items()):
        if message.sys_flag & 0xC not in (0, 8):
            continue
        tags = message.shown.get(b"TAGS", b"").decode("utf-8", "replace")
        tag = reference.java_hash(tags)
        topic = java_string(message.topic)
        if topic == "SCHEDULE_TOPIC_XXXX" and b"DELAY" in message.shown:
            tag = truth.due[address]
        number = int(message.shown.get(b"INNER_BASE", message.queue_offset))
        wanted.setdefault((topic, message.queue_id), []).append((address, message.size, tag, number))
        names = message.shown.get(b"INNER_MULTI_DISPATCH", b"").decode().split(",")
        numbers = message.shown.get(b"INNER_MULTI_QUEUE_OFFSET", b"").decode().split(",")
        for name, place in zip(names, numbers, strict=False):
            if name.startswith("%LMQ%") and place:
                wanted.setdefault((name, 0), []).append((address, message.size, tag, int(place)))
    batch = {path.parent.parent.name for path in (root / "batchconsumequeue").rglob("0000*")}
    for (topic, queue_id), units in wanted.items():
        kind = "batchconsumequeue" if topic in batch else "consumequeue"
        folder = root / kind / topic / str(queue_id)
        paths = sorted(folder.iterdir())
        data = b"".join(path.read_bytes() for path in paths)
        if kind == "batchconsumequeue":
            assert [unit[:3] + unit[4:5] for unit in reference.batch_units(data)] == units, (topic, queue_id)
            continue
        found = [unit for unit in reference.units(data) if unit[1] != 0x7FFFFFFF]
        kept, following = [], units[0][3]
        for unit in units:
            if unit[3] >= following:
                kept.append(unit)
                following += 1
        assert [unit[:2] for unit in found] == [unit[:2] for unit in kept], (topic, queue_id)
        if all(tag > -(1 << 32) for _, _, tag in found):  # else they are addresses in the ext files
            assert [unit[2] for unit in found] == [unit[2] for unit in kept], (topic, queue_id)
        blanks = len(reference.units(data)) - len(found)
        first = int(paths[0].name) // 20 + blanks
        assert first == kept[0][3], "the first number of the queue"
        moved |= {unit[0] for place, unit in enumerate(kept, first) if unit[3] != place}
    return moved


def placed(files: Files, root: Path) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def sounds_alike(message: reference.Message, original: reference.Message) -> bool:
    """Whether only a store time differs, set right by those around it, which no checksum covers."""
    return (message.body, message.topic, message.queue_id, message.queue_offset, message.properties) == (
        original.body, original.topic, original.queue_id, original.queue_offset, original.properties,
    )  # fmt: skip


class TestMessageStores(RandomRepair):
    verify_every = 10

    def damage(self, number: int, folder: Path) -> Damage:
        chance = random.Random(f"case {number}")
        name = STORES[number % len(STORES)]
        truth = truth_of(name)
        files = dict(truth.files)
        damages = chance.sample(DAMAGES, chance.randrange(1, 5))
        for damage in damages:
            damage(files, chance, truth)
        story = f"{name}: {', '.join(damage.__name__ for damage in damages)}"
        # An operator knows the size of commit-log files; where files do not show the others, they are left to the broker.
        self.size = {"commitlog_size": str(truth.log_size)}
        return Damage(placed(files, folder / "source"), story, (files, truth))

    def repair(self, source: Path, target: Path) -> Report:
        return repaired(source, target, self.size)

    def is_found(self, entry: Entry, repair: Repair) -> bool:
        return True  # `repaired` asserts it

    def is_settled(self, second: Report, first: Report) -> bool:
        # Zeros inside of a message stay where they are: each repair says so again. All else is done by the first one.
        stays = {entry.reason for entry in first.all_entries() if "properties end in zero bytes" in entry.reason}
        return not [entry for entry in second.all_entries() if entry.is_alteration and entry.reason not in stays]

    def judge(self, damage: Damage, repair: Repair) -> None:
        (files, truth), report, root = damage.truth, repair.report, repair.target
        entries = entries_of(root)
        missing = must_survive(files, truth) - entries.keys()
        assert not missing, f"messages at {sorted(missing)} are gone"
        changed = {
            address
            for address in must_survive(files, truth)
            if entries[address][1] != truth.bytes[address]
            and not sounds_alike(entries[address][0], truth.messages[address])
        }
        assert not changed, f"messages at {sorted(changed)} were changed"
        kept = {address for address, (message, _) in entries.items() if message.flag != FLAG}
        log_start = min((int(path.name) for path in log_files(root)), default=0)
        lost = {address for address in truth.messages if address >= log_start} - kept
        assert not lost or not report.is_whole, f"{len(lost)} messages lost and not reported"
        assert kept <= truth.messages.keys(), "messages that never were"
        left_out = {
            kind for kind in ("consumequeue", "batchconsumequeue", "index") if f"{kind}: nothing shows" in said(report)
        }
        assert (root / "abort").exists() == bool(left_out)
        if not {"consumequeue", "batchconsumequeue"} & left_out and (moved := check_queues(root, entries, truth)):
            assert "rocketmq.store.queue-gap" in {one.code for one in report.remaining}, f"{sorted(moved)} moved"
        assert not report.remaining or not report.is_whole


def test_the_truth_is_made_of_whole_stores() -> None:
    for name in STORES:
        truth = truth_of(name)
        assert must_survive(truth.files, truth) == truth.messages.keys()
        assert len(truth.messages) > 50
        assert all(struct.unpack_from(">q", raw, 28)[0] == address for address, raw in truth.bytes.items())
