"""Each rule finds what it is for in a real store that was broken so, and says what a broker would do."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import rawlog
from rawlog import registry
from rawlog.formats.rocketmq import layouts
from rawlog.model.finding import Finding
from rawlog.model.report import SeriousNote
from rawlog.verbs.verify import all_rules
from tests.data.rocketmq_stores import copy, log_files, store
from tests.reference import rocketmq as reference

Break = Callable[[Path], None]


def patch(path: Path, position: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[position : position + len(data)] = data
    path.write_bytes(bytes(raw))


def messages(root: Path, number: int = 0) -> list[reference.Message]:
    return list(reference.messages(log_files(root)[number].read_bytes()))


def flip_body(root: Path) -> None:
    message = next(each for each in messages(root)[40:] if len(each.body) > 20)
    at = message.position + log_files(root)[0].read_bytes()[message.position :].index(message.body)
    patch(log_files(root)[0], at + 3, bytes([message.body[3] ^ 0xFF]))


def move_entry(root: Path) -> None:
    message = messages(root)[10]
    patch(
        log_files(root)[0],
        message.position + layouts.HEAD.at("physical_offset"),
        struct.pack(">q", message.physical_offset + 1),
    )


def leave_stale_entry(root: Path) -> None:
    path = log_files(root)[-1]
    found = messages(root, len(log_files(root)) - 1)
    end = found[-1].position + found[-1].size
    patch(path, end, reference.encode(found[0]))


def change_entry_crc(root: Path) -> None:
    message = messages(root)[5]
    patch(log_files(root)[0], message.position + layouts.HEAD.at("flag"), b"\1\2\3\4")


def break_compressed(root: Path) -> None:
    message = next(each for each in messages(root) if each.sys_flag & 1)
    flag = (message.sys_flag & ~0x700) | 0x700
    patch(log_files(root)[0], message.position + layouts.HEAD.at("sys_flag"), struct.pack(">i", flag))


def break_inner_batch(root: Path) -> None:
    for path in log_files(root):
        for message in reference.messages(path.read_bytes()):
            if message.sys_flag & 0xC0 == 0xC0:
                message.body = b"\0\0\0\x07" + message.body[4:]
                patch(path, message.position, reference.encode(message))
                return


def shorten_blank(root: Path) -> None:
    path = log_files(root)[0]
    last = messages(root)[-1]
    patch(path, last.position + last.size, struct.pack(">i", 64))


def fall_in_time(root: Path) -> None:
    message = messages(root)[20]
    message.stored -= 100_000
    patch(log_files(root)[0], message.position, reference.encode(message))


def break_text(root: Path) -> None:
    message = next(each for each in messages(root) if b"TAGS\x01" in each.properties)
    at = message.properties.index(b"TAGS\x01") + 5
    message.properties = message.properties[:at] + b"\xfe" + message.properties[at + 1 :]
    patch(log_files(root)[0], message.position, reference.encode(message))


def break_framing(root: Path) -> None:
    message = messages(root)[30]
    patch(log_files(root)[0], message.position, bytes(8))


def tear_last_entry(root: Path) -> None:
    path, found = log_files(root)[-1], messages(root, len(log_files(root)) - 1)
    last = found[-1]
    start = last.position + path.read_bytes()[last.position :].index(last.body) + 1
    patch(path, start, bytes(last.position + last.size - start))


def zero_page(root: Path) -> None:
    patch(log_files(root)[0], 4096, bytes(4096))


def drop_blank(root: Path) -> None:
    last = messages(root)[-1]
    patch(log_files(root)[0], last.position + last.size, bytes(8))


def cut_file(root: Path) -> None:
    path = log_files(root)[-1]
    path.write_bytes(path.read_bytes()[:-4096])


def rename_file(root: Path) -> None:
    path = log_files(root)[-1]
    path.rename(path.with_name(f"{int(path.name) + 7:020}"))


def remove_middle_file(root: Path) -> None:
    log_files(root)[1].unlink()


def add_stray(root: Path) -> None:
    path = log_files(root)[0]
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0")


def queue(root: Path) -> Path:
    return max((root / "consumequeue").rglob("0" * 20), key=lambda path: len(reference.units(path.read_bytes())))


def change_tag(root: Path) -> None:
    patch(queue(root), 20 * 3 + layouts.UNIT.at("tag_hash"), struct.pack(">q", 77))


def point_nowhere(root: Path) -> None:
    path = queue(root)
    address = reference.units(path.read_bytes())[3][0]
    patch(path, 20 * 3, struct.pack(">q", address + 1))


def swap_units(root: Path) -> None:
    path = queue(root)
    raw = path.read_bytes()
    patch(path, 40, raw[60:80] + raw[40:60])


def lose_last_units(root: Path) -> None:
    path = queue(root)
    count = len(reference.units(path.read_bytes()))
    patch(path, (count - 2) * 20, bytes(40))


def break_unit(root: Path) -> None:
    patch(queue(root), 40, b"\xff" * 20)


def add_zero_queue_file(root: Path) -> None:
    path = queue(root)
    path.with_name(f"{10 * path.stat().st_size:020}").write_bytes(bytes(path.stat().st_size))


def leave_gap(root: Path) -> None:
    path, found = log_files(root)[0], messages(root)
    topic = next(each for each in found[20:] if each.queue_offset > 3)
    topic.queue_offset += 5
    patch(path, topic.position, reference.encode(topic))


def batch_gap(root: Path) -> None:
    path = next((root / "batchconsumequeue").rglob("0" * 20))
    patch(path, layouts.BATCH_UNIT.size + layouts.BATCH_UNIT.at("base_offset"), struct.pack(">q", 99))


def index_file(root: Path) -> Path:
    return min((root / "index").iterdir())


def change_index_count(root: Path) -> None:
    # The last file, so that the number of slots can still be seen from the entries that are left.
    path = max((root / "index").iterdir())
    raw = path.read_bytes()
    count = struct.unpack_from(">i", raw, 36)[0]
    patch(path, 36, struct.pack(">i", count - 1))
    last = 40 + 4 * 500 + 20 * (count - 2)
    key, address = struct.unpack_from(">iq", raw, last)
    patch(path, 24, struct.pack(">q", address))
    patch(path, 40 + 4 * (key % 500), struct.pack(">i", count - 2))


def break_chain(root: Path) -> None:
    patch(index_file(root), 40 + 4 * 500 + 20 * 300 + layouts.INDEX_ENTRY.at("previous"), struct.pack(">i", 299))


def change_key(root: Path) -> None:
    patch(index_file(root), 40 + 4 * 500 + 20 * 300, struct.pack(">i", 12345))


def break_index_header(root: Path) -> None:
    patch(index_file(root), 16, b"\1" * 16)


def late_checkpoint(root: Path) -> None:
    patch(root / "checkpoint", 0, struct.pack(">q", 1 << 41))


def dirty_checkpoint(root: Path) -> None:
    patch(root / "checkpoint", 100, b"x")


def break_config(root: Path) -> None:
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{]')


def other_queue_type(root: Path) -> None:
    path = root / "config" / "topics.json"
    path.write_text(path.read_text().replace("BatchCQ", "SimpleCQ"))


def compaction_body(root: Path) -> None:
    path = next((root / "compaction" / "compactionLog").rglob("0" * 20))
    message = next(reference.messages(path.read_bytes()))
    patch(path, path.read_bytes().index(message.body), bytes([message.body[0] ^ 1]))


def compaction_flag(root: Path) -> None:
    """The flags of a message, which no checksum covers, name a compression that does not exist."""
    path = next((root / "compaction" / "compactionLog").rglob("0" * 20))
    message = next(reference.messages(path.read_bytes()))
    patch(path, message.position + layouts.HEAD.at("sys_flag"), struct.pack(">i", message.sys_flag | 0x701))


CASES: dict[str, tuple[str, Break]] = {
    "rocketmq.commitlog.crc": ("broker-4.9.7", flip_body),
    "rocketmq.commitlog.physical-offset": ("broker-4.9.7", move_entry),
    "rocketmq.commitlog.stale": ("broker-4.9.7", leave_stale_entry),
    "rocketmq.commitlog.entry-crc": ("5.3.4S-propcrc", change_entry_crc),
    "rocketmq.commitlog.body": ("broker-4.9.7", break_compressed),
    "rocketmq.commitlog.inner-batch": ("broker-5.3.3", break_inner_batch),
    "rocketmq.commitlog.blank-size": ("broker-4.9.7", shorten_blank),
    "rocketmq.commitlog.time": ("broker-4.9.7", fall_in_time),
    "rocketmq.commitlog.text": ("broker-4.9.7", break_text),
    "rocketmq.commitlog.framing": ("broker-4.9.7", break_framing),
    "rocketmq.compactionlog.crc": ("broker-5.3.3", compaction_body),
    "rocketmq.compactionlog.body": ("broker-5.3.3", compaction_flag),
    "rocketmq.consumequeue.order": ("broker-4.9.7", swap_units),
    "rocketmq.consumequeue.empty": ("broker-4.9.7", add_zero_queue_file),
    "rocketmq.consumequeue.framing": ("broker-4.9.7", break_unit),
    "rocketmq.batchconsumequeue.order": ("broker-5.3.3", batch_gap),
    "rocketmq.index.count": ("broker-4.9.7", change_index_count),
    "rocketmq.index.chain": ("broker-4.9.7", break_chain),
    "rocketmq.index.header": ("broker-4.9.7", break_index_header),
    "rocketmq.checkpoint.framing": ("broker-4.9.7", dirty_checkpoint),
    "rocketmq.store.stray": ("broker-4.9.7", add_stray),
    "rocketmq.store.file-size": ("broker-4.9.7", cut_file),
    "rocketmq.store.file-name": ("broker-4.9.7", rename_file),
    "rocketmq.store.missing-file": ("broker-4.9.7", remove_middle_file),
    "rocketmq.store.blank": ("broker-4.9.7", drop_blank),
    "rocketmq.store.queue-differs": ("broker-4.9.7", change_tag),
    "rocketmq.store.queue-dangling": ("broker-4.9.7", point_nowhere),
    "rocketmq.store.queue-missing": ("broker-4.9.7", lose_last_units),
    "rocketmq.store.queue-gap": ("broker-4.9.7", leave_gap),
    "rocketmq.store.index-differs": ("broker-4.9.7", change_key),
    "rocketmq.store.checkpoint": ("broker-4.9.7", late_checkpoint),
    "rocketmq.store.config": ("broker-4.9.7", break_config),
    "rocketmq.store.queue-type": ("broker-5.3.3", other_queue_type),
}


def findings(root: Path, code: str | None = None) -> list[Finding]:
    return [each for each in rawlog.verify(root) if code is None or each.code == code]


@pytest.mark.parametrize("code", CASES)
def test_rule_finds_what_it_is_for(code: str, tmp_path: Path) -> None:
    name, damage = CASES[code]
    root = copy(name, tmp_path)
    assert not findings(root, code)
    damage(root)
    found = findings(root, code)
    assert found, [f"{each.code}: {each.message}" for each in rawlog.verify(root)]
    assert all(each.message and each.path for each in found)


def test_every_rule_of_the_family_is_tried() -> None:
    special = {"rocketmq.store.next-start", "rocketmq.store.abort", "rocketmq.commitlog.filler"}
    # test_limits
    special |= {"rocketmq.commitlog.limit", "rocketmq.compactionlog.limit", "rocketmq.commitlog.far-timestamp"}
    own = {
        one.code
        for family in registry.families()
        if family.name == "rocketmq"
        for one in family.store_class.tree_rules()
    }
    own |= {
        one.code for format in registry.formats().values() if format.family == "rocketmq" for one in format.all_rules
    }
    assert own <= {one.code for one in all_rules()}
    assert own - special <= set(CASES)


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (flip_body, "cut the log at byte"),
        (zero_page, "cut the log at byte 4"),
        (break_framing, "cut the log"),
        (drop_blank, "cut the log"),
    ],
)
def test_what_a_broker_would_destroy_is_told(damage: Break, place: str, tmp_path: Path) -> None:
    """Three files, so that even a broker that looks at the last three only begins with the damaged one."""
    root = copy("broker-4.9.7", tmp_path)
    names = [path.name for path in log_files(root)]
    damage(root)
    [found] = [each for each in findings(root, "rocketmq.store.next-start") if "4.x" in each.message]
    assert found.severity == "error"
    assert "readable messages lost" in found.message
    assert all(name in found.message for name in names[1:])


def test_after_a_crash_every_broker_scans_from_the_checkpoint(tmp_path: Path) -> None:
    root = copy("broker-4.9.7-crashed", tmp_path)
    assert [each.severity for each in findings(root, "rocketmq.store.abort")] == ["info"]
    flip_body(root)
    (root / "checkpoint").unlink()
    [found] = findings(root, "rocketmq.store.next-start")
    assert found.message.startswith("any broker would cut")


def test_an_allocated_file_of_zeros_at_the_end_is_normal() -> None:
    assert not log_files(store("broker-4.9.7-crashed"))[-1].read_bytes().strip(b"\0")
    assert rawlog.verify(store("broker-4.9.7-crashed")).verdict == "clean"


def test_torn_last_entry_is_told_and_what_stands_before_it_is_read(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    before = rawlog.open(root).table("rocketmq.messages").count()
    tear_last_entry(root)
    assert any(each.severity == "error" for each in findings(root))
    rows = rawlog.read(root, table="rocketmq.messages", errors="stop")
    assert len(rows) in (before - 1, before)  # the last properties may be all that is torn
    assert len(rawlog.read(root, errors="skip")) == before - 1


def tail_of(path: Path) -> int:
    """Where the last message of a file ends."""
    return max(each.position + each.size for each in reference.messages(path.read_bytes()))


@pytest.mark.parametrize("tail", [b"\0\0\2\0\xda\xa3\x20\xa7 half a message", random.Random(1).randbytes(500)])
def test_what_a_crash_leaves_after_the_end_is_no_damage(tail: bytes, tmp_path: Path) -> None:
    """It was damage to readers and to verify. The broker had made the next file already: that does not end this one."""
    root = copy("broker-4.9.7-crashed", tmp_path)
    *_, log, empty = log_files(root)
    assert not any(empty.read_bytes())
    patch(log, tail_of(log), tail)
    assert rawlog.verify(root).verdict == "clean"
    notes: list[str] = []
    assert rawlog.count(root, note=notes.append) == rawlog.count(store("broker-4.9.7-crashed"))
    [note] = notes
    assert "unfinished frame" in note
    assert not isinstance(note, SeriousNote)
    patch(empty, 0, log_files(root)[0].read_bytes()[:1000])  # the next file is in use
    assert rawlog.verify(root).verdict == "damaged"
    rawlog.count(root, errors="skip", note=notes.append)
    assert [note for note in notes if isinstance(note, SeriousNote) and str(log) in note]


def test_readers_name_files_that_are_missing_or_elsewhere(tmp_path: Path) -> None:
    """Each file was read alone: cat and count of a store without a file in the middle, or with a copy of another there, ended with 0."""
    root = copy("broker-4.9.7", tmp_path)
    first, second, *_ = log_files(root)
    content = second.read_bytes()
    second.unlink()
    notes: list[str] = []
    rawlog.count(root, note=notes.append)
    [note] = notes
    assert isinstance(note, SeriousNote)
    assert f"physical offsets {int(second.name):,} to {2 * int(second.name) - 1:,} missing" in note
    second.write_bytes(first.read_bytes())
    notes.clear()
    rawlog.count(root, note=notes.append)
    assert [str(second) in note and "not at the right place" in note for note in notes] == [True]
    second.write_bytes(content)
    notes.clear()
    rawlog.count(root, note=notes.append)
    assert notes == []


def test_stale_entries_are_shown_and_are_no_records(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    records = len(rawlog.read(root))
    leave_stale_entry(root)
    notes: list[str] = []
    assert rawlog.count(root, note=notes.append) == len(rawlog.read(root)) == records
    assert notes == []  # a truncation may leave such
    rows = rawlog.read(root, table="rocketmq.messages").to_pylist()
    assert [row["stale"] for row in rows[-2:]] == [False, True]


def test_text_that_is_not_utf8_is_shown_as_in_java_and_its_bytes_are_kept(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    break_text(root)
    tags = [row["tags"] for row in rawlog.read(root, table="rocketmq.messages", columns=["tags"]).to_pylist()]
    shown = next(tag for tag in tags if tag and tag.startswith("\ufffd"))
    values = [pair["value"] for row in rawlog.read(root).to_pylist() for pair in row["headers"]]
    assert shown.replace("\ufffd", "").encode() in [
        value.removeprefix(b"\xfe") for value in values if value.startswith(b"\xfe")
    ]


def test_a_batch_queue_that_ends_inside_a_unit_is_found(tmp_path: Path) -> None:
    """A batch queue of one file was cut, verify found nothing, and repair left the file out."""
    root = copy("broker-5.3.3", tmp_path)
    path, *others = sorted((root / "batchconsumequeue").rglob("0" * 20))
    for other in others:
        other.unlink()
    assert not findings(root, "rocketmq.store.file-size")
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 100)
    found = findings(root, "rocketmq.store.file-size")
    assert [(one.path, one.severity) for one in found] == [(str(path), "warning")]
