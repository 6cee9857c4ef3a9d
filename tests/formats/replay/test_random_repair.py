"""Recordings damaged at random and repaired: entries that are whole survive, and every byte is either in the copy or reported.

The format has no checksum: what a damaged value was nobody can know. What must survive is known by the test, which wrote the entries and
looks for them in the damaged files.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from rawlog.model.finding import Finding
from rawlog.model.report import Action, Entry, Report
from tests.data.random_repair import Damage, RandomRepair, Repair
from tests.data.trees import contents
from tests.reference import replay

T = 1_706_868_930
HEADER = 20


def entry(rng: random.Random, number: int, version: int) -> bytes:
    """An entry that is like no other: its value has its number, and is sometimes text, sometimes any bytes."""
    key = rng.choice((b"", b"", b"key-%d" % number, rng.randbytes(rng.randrange(20))))
    value = b"value %d " % number + rng.choice((b"{}" * rng.randrange(40), rng.randbytes(rng.randrange(200))))
    data = replay.encode(version, [(T + number, key or None if version == 2 else None, value)])
    return data[HEADER:]


def make(rng: random.Random) -> dict[str, tuple[int, list[bytes]]]:
    """Some recordings: name, version, entries."""
    made = {}
    for name in ("a.log", "deeper/b.log", "c.log")[: rng.randint(1, 3)]:
        version = rng.choice((1, 2, 2))
        made[name] = (version, [entry(rng, number, version) for number in range(rng.randint(6, 40))])
    return made


def written(version: int, entries: list[bytes]) -> bytes:
    return version.to_bytes(4, "big") + bytes(16) + b"".join(entries)


def flip(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randint(1, 3)):
        data[rng.randrange(HEADER, len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(HEADER, len(data)) :]


def insert(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(HEADER, len(data))
    data[at:at] = rng.randbytes(rng.randint(1, 60))


def remove(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(HEADER, len(data))
    del data[at : at + rng.randint(1, 60)]


def zero(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(HEADER, len(data))
    stop = min(len(data), at + rng.randint(1, 40))
    data[at:stop] = bytes(stop - at)


def overwrite(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(HEADER, len(data))
    stop = min(len(data), at + rng.randint(1, 40))
    data[at:stop] = rng.randbytes(stop - at)


DAMAGES: list[Callable[[random.Random, bytearray], None]] = [flip, flip, cut, insert, remove, zero, overwrite]


def dropped_bytes(report: Report, path: Path) -> int:
    """How many bytes of a file are reported as left out."""
    dropped = (one for one in report.with_action(Action.DROPPED) if one.path == str(path))
    return sum((one.stop or 0) - (one.start or 0) for one in dropped)


def is_found(entry: Entry, findings: list[Finding]) -> bool:
    """Whether verification finds something where repair dropped or changed bytes."""
    assert entry.start is not None
    assert entry.stop is not None
    for one in findings:
        start = one.position or 0
        if one.path == entry.path and start < entry.stop and start + max(one.size or 0, 1) > entry.start:
            return True
    return False


def safe(entries: list[bytes], data: bytes) -> list[bytes]:
    """Entries that must survive: they are there, and so is the one after them, or they end the file. What is before them may be damaged."""
    found = []
    for number, one in enumerate(entries):
        at = data.find(one)
        after = data[at + len(one) :]
        if at >= 0 and (not after or (number + 1 < len(entries) and after.startswith(entries[number + 1]))):
            found.append(one)
    return found


class TestRecordings(RandomRepair):
    def damage(self, number: int, folder: Path) -> Damage:
        rng = random.Random(number)
        recordings = make(rng)
        source = folder / "source"
        for name, (version, entries) in recordings.items():
            data = bytearray(written(version, entries))
            for _ in range(rng.choice((0, 1, 1, 2, 3))):
                if len(data) > HEADER:
                    rng.choice(DAMAGES)(rng, data)
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(data)
        return Damage(source, ", ".join(recordings), recordings)

    def is_found(self, entry: Entry, repair: Repair) -> bool:
        return is_found(entry, list(repair.findings))

    def judge(self, damage: Damage, repair: Repair) -> None:
        report, findings = repair.report, list(repair.findings)
        assert all(is_found(entry, findings) for entry in report.all_entries()), findings
        assert sorted(contents(repair.target)) == sorted(damage.truth)
        for name, (_, entries) in damage.truth.items():
            data, copy = (damage.source / name).read_bytes(), (repair.target / name).read_bytes()
            assert len(copy) + dropped_bytes(report, damage.source / name) == len(data), (name, report.lines())
            if not [one for one in findings if one.path == str(damage.source / name)]:
                assert copy == data
            missing = [one for one in safe(entries, data) if one not in copy]
            assert not missing, (name, [entries.index(one) for one in missing], report.lines())
