"""Whatever was damaged: the repaired copy is clean, repairing it again changes nothing, and no message outside the damage is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

import rawlog
from tests.data.rocketmq_rewriting import repaired
from tests.data.rocketmq_stores import copy, log_files
from tests.data.trees import contents
from tests.formats.rocketmq.test_repair import places
from tests.reference import rocketmq as reference

Lost = tuple[int, int]
"""The stretch of the log in which messages may be lost: its first address, and the one after it."""
NOTHING = (0, 0)


def rest_of_file(path: Path, position: int) -> Lost:
    return int(path.name) + position, int(path.name) + 65536


def some_message(path: Path, chance: random.Random) -> reference.Message:
    """One that has messages before and after it."""
    return chance.choice(list(reference.messages(path.read_bytes()))[4:-4])


def lengthen_file(root: Path, chance: random.Random) -> Lost:
    for path in log_files(root)[:2]:
        path.write_bytes(path.read_bytes() + chance.randbytes(chance.randrange(1, 300)))
    return NOTHING


def cut_file(root: Path, chance: random.Random) -> Lost:
    path = log_files(root)[0]
    position = some_message(path, chance).position + 9
    path.write_bytes(path.read_bytes()[:position])
    return rest_of_file(path, position - 9)


def empty_middle_file(root: Path, chance: random.Random) -> Lost:
    path = log_files(root)[1]
    path.write_bytes(b"")
    return rest_of_file(path, 0)


def remove_middle_file(root: Path, chance: random.Random) -> Lost:
    path = log_files(root)[1]
    path.unlink()
    return rest_of_file(path, 0)


def rename_file(root: Path, chance: random.Random) -> Lost:
    path = chance.choice(log_files(root))
    path.rename(path.with_name(chance.choice((f"{path.name}~", path.name[:-1], f"{int(path.name) + 7:020}"))))
    return NOTHING


def delete_bytes(root: Path, chance: random.Random) -> Lost:
    path = log_files(root)[0]
    message, raw = some_message(path, chance), path.read_bytes()
    position = message.position + chance.randrange(message.size)
    path.write_bytes(raw[:position] + raw[position + chance.randrange(1, 100) :])
    return rest_of_file(path, message.position)


def insert_bytes(root: Path, chance: random.Random) -> Lost:
    path = log_files(root)[0]
    message, raw = some_message(path, chance), path.read_bytes()
    position = message.position + chance.randrange(message.size)
    path.write_bytes(raw[:position] + chance.randbytes(chance.randrange(1, 40)) + raw[position:])
    return rest_of_file(path, message.position)


def _patch(path: Path, position: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    raw[position : position + len(data)] = data
    path.write_bytes(raw)


def overwrite(root: Path, chance: random.Random) -> Lost:
    path = log_files(root)[0]
    message = some_message(path, chance)
    _patch(path, message.position, chance.randbytes(message.size))
    return int(path.name) + message.position, int(path.name) + message.position + message.size


def change_number(root: Path, chance: random.Random) -> Lost:
    """Of a message without a checksum of the whole entry the number is put right; of one with it, the message is lost."""
    path = log_files(root)[0]
    message = some_message(path, chance)
    _patch(path, message.position + 20, (message.queue_offset ^ 1 << 20).to_bytes(8, "big"))
    return int(path.name) + message.position, int(path.name) + message.position + message.size


def break_settings(root: Path, chance: random.Random) -> Lost:
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{}}')
    (root / "config" / "topics.json.bak").write_bytes(b'{"topicConfigTable":[{,\xff\xfe}')
    (root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{:}}')
    return NOTHING


DAMAGES: list[Callable[[Path, random.Random], Lost]] = [
    lengthen_file, cut_file, empty_middle_file, remove_middle_file, rename_file, delete_bytes, insert_bytes, overwrite,
    change_number, break_settings,
]  # fmt: skip
WHOLE = (rename_file,)
"""Damage of which nothing need be lost or changed: a field that is corrected is a change."""


@pytest.mark.parametrize("name", ["4.9.8", "5.1.4", "5.3.4S-propcrc"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_repaired_store_is_clean_and_stays_as_it_is(
    name: str, damage: Callable[[Path, random.Random], Lost], tmp_path: Path
) -> None:
    root = copy(name, tmp_path)
    whole = places(root)
    start, stop = damage(root, random.Random(f"{name} {damage.__name__}"))
    report = repaired(root, tmp_path / "repaired")
    findings = [each for each in rawlog.verify(tmp_path / "repaired") if each.severity != "info"]
    assert not findings, findings
    kept = places(tmp_path / "repaired")
    assert kept.items() <= whole.items()
    assert all(start <= address < stop for address in whole.keys() - kept.keys())
    assert report.lines()
    assert report.is_whole == (len(kept) == len(whole) and damage in WHOLE)
    again = repaired(tmp_path / "repaired", tmp_path / "again")
    assert again.is_whole
    assert contents(tmp_path / "again") == contents(tmp_path / "repaired")
