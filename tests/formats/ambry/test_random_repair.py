"""Stores damaged at random, repaired, and compared with what the undamaged store knew."""

from __future__ import annotations

import base64
import random
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from rawlog.formats.ambry import Segment, segment_of
from rawlog.model.finding import Finding, Findings
from rawlog.model.report import Action, Entry, Report
from tests.data.ambry_rewriting import lost, reconstructed
from tests.data.ambry_stores import expected, open_store, store_path
from tests.data.random_repair import Damage, RandomRepair, Repair
from tests.data.trees import contents
from tests.reference import ambry as reference

STORES = ("store-small", "store-ops", "store-small", "store-compacted", "store-small", "store-crashed", "store-small")
SPACE = 1 << 32
"""Bytes of different segments are distinguished by adding so much for each."""
NEW = -1
"""The origin of a byte that was changed or inserted."""

Identity = tuple[Any, ...]


def text_of(key: bytes) -> str:
    """A blob id as people write it."""
    return base64.urlsafe_b64encode(key).rstrip(b"=").decode()


@dataclass(frozen=True)
class Sent:
    """A message of the undamaged store: where it was, whose it is, and which index file has its entry."""

    number: int
    origin: int
    size: int
    header: int
    key: bytes
    kind: str
    index: str | None

    @property
    def identity(self) -> Identity:
        return reference.order(self.key)


@dataclass(frozen=True)
class State:
    """What a store answers for a blob."""

    is_deleted: bool
    is_permanent: bool
    expires: int
    life_version: int
    put: bytes | None


@dataclass(frozen=True)
class Truth:
    """What is known of an undamaged store."""

    files: dict[str, bytes]
    messages: tuple[Sent, ...]
    states: dict[Identity, State]


def states_of(folder: str) -> dict[Identity, State]:
    """What a store answers for each of its blobs."""
    store = open_store(folder)
    folded = store.state
    logs = [Path(file.path).read_bytes() for file in store.logs]
    found: dict[Identity, State] = {}
    for blob, row in enumerate(folded.answer.tolist()):
        if row < 0:
            continue
        put, content = int(folded.put[blob]), None
        if put >= 0:
            start, size = int(folded.catalog.offset[put]), int(folded.catalog.size[put])
            content = logs[int(folded.catalog.segment[put])][start : start + size]
        found[reference.order(folded.catalog.key(int(folded.first[blob])))] = State(
            bool(folded.is_deleted[blob]),
            bool(folded.answer_flags[blob] & 2),
            int(folded.answer_expires[blob]),
            int(folded.life_version[row]),
            content,
        )
    return found


@lru_cache
def truth_of(name: str) -> Truth:
    folder, known = store_path(name), expected(name)
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "expected.json"}
    logs = sorted(one for one in files if one.endswith("_log"))
    entries = {entry["message"]: index["file"] for index in known["index_files"] for entry in index["entries"]}
    messages = tuple(
        Sent(
            one["n"],
            (logs.index(one["segment"]) + 1) * SPACE + one["offset"],
            one["size"],
            {1: 34, 2: 38, 3: 40}[one["header_version"]],
            bytes.fromhex(one["key_hex"]),
            one["kind"],
            entries.get(one["n"]),
        )
        for one in known["messages"]
    )
    return Truth(files, messages, states_of(str(folder)))


@dataclass
class Case:
    """A store while it is damaged. Every byte of a log knows where it came from."""

    truth: Truth
    chance: random.Random
    logs: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    others: dict[str, bytes] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        names = sorted(name for name in self.truth.files if name.endswith("_log"))
        for number, name in enumerate(names):
            raw = np.frombuffer(self.truth.files[name], np.uint8)
            self.logs[name] = (raw.copy(), np.arange(raw.size) + (number + 1) * SPACE)
        self.others = {name: raw for name, raw in self.truth.files.items() if name not in self.logs}

    # What can happen to bytes of a log -------------------------------------------------------------------------------

    def _log(self) -> str:
        return self.chance.choice([name for name, (raw, _) in self.logs.items() if raw.size > 60])

    def _put(self, name: str, start: int, new: bytes) -> None:
        raw, origin = self.logs[name]
        stop = min(start + len(new), raw.size)
        changed = raw[start:stop] != np.frombuffer(new, np.uint8)[: stop - start]
        raw[start:stop] = np.frombuffer(new, np.uint8)[: stop - start]
        origin[start:stop][changed] = NEW

    def _flip(self, name: str, start: int, size: int) -> None:
        raw, _ = self.logs[name]
        for at in self.chance.sample(range(size), self.chance.randint(1, 3)):
            if start + at < raw.size:
                self._put(name, start + at, bytes([int(raw[start + at]) ^ (1 << self.chance.randrange(8))]))

    def flip(self) -> None:
        name = self._log()
        self._flip(name, self.chance.randrange(self.logs[name][0].size), 60)

    def zero(self) -> None:
        name = self._log()
        self._put(name, self.chance.randrange(self.logs[name][0].size), bytes(self.chance.randint(1, 500)))

    def insert(self) -> None:
        name = self._log()
        raw, origin = self.logs[name]
        at, new = self.chance.randrange(raw.size), self.chance.randbytes(self.chance.randint(1, 300))
        self.logs[name] = (
            np.insert(raw, at, np.frombuffer(new, np.uint8)),
            np.insert(origin, at, np.full(len(new), NEW)),
        )

    def remove(self) -> None:
        name = self._log()
        raw, origin = self.logs[name]
        at, size = self.chance.randrange(raw.size), self.chance.choice([1, 8, 100, 108, 149, 300])
        self.logs[name] = (np.delete(raw, slice(at, at + size)), np.delete(origin, slice(at, at + size)))

    def _message(self, *kinds: str) -> tuple[str, int, Sent] | None:
        """A message that is still there, and where."""
        wanted = [one for one in self.truth.messages if not kinds or one.kind in kinds]
        self.chance.shuffle(wanted)
        for one in wanted[:20]:
            for name, (_, origin) in self.logs.items():
                at = np.flatnonzero(origin == one.origin)
                if at.size:
                    return name, int(at[0]), one
        return None

    def damage_update(self) -> None:
        found = self._message("DELETE", "TTL_UPDATE", "UNDELETE")
        if found is not None:
            name, at, one = found
            self._flip(name, at, one.size)

    def damage_key(self) -> None:
        found = self._message()
        if found is not None:
            name, at, one = found
            self._flip(name, at + one.header, len(one.key))

    # What can happen to log segments ---------------------------------------------------------------------------------

    def truncate_log(self) -> None:
        name = self._log()
        raw, origin = self.logs[name]
        size = self.chance.randrange(raw.size)
        self.logs[name] = (raw[:size], origin[:size])

    def delete_log(self) -> None:
        if len(self.logs) > 1:
            del self.logs[self.chance.choice(sorted(self.logs))]

    def swap_logs(self) -> None:
        if len(self.logs) > 1:
            one, other = self.chance.sample(sorted(self.logs), 2)
            self.logs[one], self.logs[other] = self.logs[other], self.logs[one]

    def rename_log(self) -> None:
        old, new = self.chance.choice(sorted(self.logs)), f"{self.chance.randint(6, 9)}_0_log"
        if new not in self.logs:
            self.logs[new] = self.logs.pop(old)

    # What can happen to index and bloom files ------------------------------------------------------------------------

    def _derived(self, kind: str = "index|bloom") -> str | None:
        names = sorted(name for name in self.others if re.fullmatch(rf"\d+_\d+_\d+_({kind})", name))
        return self.chance.choice(names) if names else None

    def delete_index(self) -> None:
        if (name := self._derived()) is not None:
            del self.others[name]

    def delete_indexes(self) -> None:
        if (name := self._derived()) is not None:
            segment = "_".join(name.split("_")[:2])
            for one in [one for one in self.others if one.startswith(f"{segment}_") and not one.endswith("_bloom")]:
                del self.others[one]

    def damage_index(self) -> None:
        if (name := self._derived()) is not None and self.others[name]:
            raw = bytearray(self.others[name])
            raw[self.chance.randrange(len(raw))] ^= 1 << self.chance.randrange(8)
            self.others[name] = bytes(raw)

    def truncate_index(self) -> None:
        if (name := self._derived()) is not None and self.others[name]:
            self.others[name] = self.others[name][: self.chance.randrange(len(self.others[name]))]

    def swap_indexes(self) -> None:
        one, other = self._derived("index"), self._derived("index")
        if one is not None and other is not None:
            self.others[one], self.others[other] = self.others[other], self.others[one]

    def rename_index(self) -> None:
        if (name := self._derived("index")) is not None:
            new = f"{self.chance.randint(0, 9)}_0_{name.split('_')[2]}_index"
            if new not in self.others:
                self.others[new] = self.others.pop(name)

    # What must be true of the repaired store -------------------------------------------------------------------------

    def write(self, folder: Path) -> dict[str, bytes]:
        written = {**self.others, **{name: raw.tobytes() for name, (raw, _) in self.logs.items()}}
        folder.mkdir()
        for name, raw in written.items():
            (folder / name).write_bytes(raw)
        return written

    def fates(self) -> dict[int, str]:
        """What became of each message: `whole`, `key` (nothing but its key is damaged), `named` (its key can be read), or `lost`."""
        fate = dict.fromkeys((one.number for one in self.truth.messages), "lost")
        for _, origin in self.logs.values():
            kept = np.flatnonzero(origin != NEW)
            if not kept.size:
                continue
            ends = np.append(np.flatnonzero(np.diff(origin) != 1) + 1, origin.size)
            wanted = np.array(
                [
                    start
                    for one in self.truth.messages
                    for start in (one.origin, one.origin + one.header, one.origin + one.header + len(one.key))
                ]
            )
            at = np.minimum(np.searchsorted(origin[kept], wanted), kept.size - 1)
            at = np.where(origin[kept[at]] == wanted, kept[at], NEW)
            run = ends[np.minimum(np.searchsorted(ends, at, side="right"), ends.size - 1)] - at
            for one, (head, key, body), (head_run, key_run, body_run) in zip(
                self.truth.messages, at.reshape(-1, 3).tolist(), run.reshape(-1, 3).tolist(), strict=True
            ):
                before = one.header + len(one.key)
                if head != NEW and head_run >= one.size:
                    fate[one.number] = "whole"
                elif head != NEW and head_run >= one.header and body == head + before and body_run >= one.size - before:
                    fate[one.number] = "key"
                elif fate[one.number] == "lost" and key != NEW and key_run >= len(one.key):
                    fate[one.number] = "named"
        names = sorted(name for name in self.truth.files if name.endswith("_log"))
        data = [raw.tobytes() for raw, _ in self.logs.values()]
        for one in self.truth.messages:  # a missing byte may be made up for by an equal one
            if fate[one.number] != "whole":
                start = one.origin % SPACE
                whole = self.truth.files[names[one.origin // SPACE - 1]][start : start + one.size]
                if any(whole in raw for raw in data):
                    fate[one.number] = "whole"
        return fate

    def knows(self, one: Sent) -> bool:
        """Whether the index file with a message's entry is as it was."""
        return one.index is not None and self.others.get(one.index) == self.truth.files[one.index]


ONCE = ("delete_log", "swap_logs", "rename_log", "truncate_log")
OPERATIONS = (
    "flip", "zero", "insert", "remove", "damage_update", "damage_update", "damage_key", "delete_index", "delete_indexes",
    "damage_index", "truncate_index", "swap_indexes", "rename_index", *ONCE,
)  # fmt: skip


def damaged(number: int) -> Case:
    chance = random.Random(number)
    case = Case(truth_of(STORES[number % len(STORES)]), chance)
    for _ in range(chance.randint(1, 4)):
        operation = chance.choice(OPERATIONS)
        if operation in ONCE and not set(case.done).isdisjoint(ONCE):
            continue
        getattr(case, operation)()
        case.done.append(operation)
    return case


def judge(case: Case, report: Report, folder: Path) -> list[str]:
    """What is wrong with a repaired store."""
    cut = [one.line() for one in report.with_action(Action.DROPPED)]
    said = "\n".join([*lost(report), *reconstructed(report), *cut])
    now, fates, wrong = states_of(str(folder)), case.fates(), []
    blobs: dict[Identity, list[Sent]] = {}
    for one in case.truth.messages:
        blobs.setdefault(one.identity, []).append(one)
    for identity, messages in blobs.items():
        names = {text_of(one.key) for one in messages}
        is_named = any(name in said for name in names)
        same = now.get(identity) == case.truth.states.get(identity)
        if all(one.kind != "PUT" for one in messages) and not all(case.knows(one) for one in messages):
            # Only the index knows when a blob expires whose PUT was compacted away.
            same = _seen(now.get(identity)) == _seen(case.truth.states.get(identity))
        gone = [one for one in messages if fates[one.number] != "whole"]
        known = all(case.knows(one) and (one.kind != "PUT" or fates[one.number] == "key") for one in gone)
        if not gone and not same:
            wrong.append(f"all messages are there, and the state differs: {names}: {now.get(identity)}")
        elif gone and known and not same:
            wrong.append(
                f"the index knows {[(one.kind, fates[one.number]) for one in gone]} of {names}, and the state differs"
            )
        elif gone and not same and not is_named:
            if any(case.knows(one) or fates[one.number] == "named" for one in gone):
                wrong.append(
                    f"not reported: {[(one.kind, fates[one.number], case.knows(one)) for one in gone]} of {names}"
                )
        elif gone and not is_named and any(case.knows(one) and fates[one.number] != "key" for one in gone):
            wrong.append(
                f"not reported, though the state is the same: {[(one.kind, fates[one.number]) for one in gone]} of {names}"
            )
    lenient = any(fates[one.number] == "key" and not case.knows(one) for one in case.truth.messages)
    for identity in now.keys() - case.truth.states.keys():
        if not lenient:
            wrong.append(f"a blob that never was: {identity!r}")
    return wrong


def _seen(state: State | None) -> tuple[bool, int] | None:
    return None if state is None else (state.is_deleted, state.life_version)


def unfounded(report: Report, findings: Findings) -> list[str]:
    """What a repair lost, dropped or changed where verification of the source finds nothing.

    A finding is at the place of an entry if it is on bytes of the log that the entry covers, or on an index or bloom file of that log
    segment. A segment that gets another name may have its findings under either of them. A blob id of another partition is found by
    comparison with the first message of a segment, so which of them is the odd one is not known there.
    """
    other_names: dict[Segment | None, set[Segment | None]] = {}
    for entry in report.with_action(Action.MOVED):
        name = segment_of(entry.reason.removeprefix("written as ").partition(":")[0])
        old = segment_of(str(entry.path))
        other_names.setdefault(old, {old}).add(name)
        other_names.setdefault(name, {name}).add(old)

    def is_at(entry: Entry, finding: Finding) -> bool:
        mine, found = segment_of(str(entry.path)), segment_of(str(finding.path))
        if mine in other_names:
            return found in set().union(*(other_names[name] for name in other_names[mine]))
        if mine is None or mine != found:
            return False
        if entry.path != finding.path or finding.position is None or finding.code == "ambry.log.partition":
            return True
        assert entry.start is not None
        assert entry.stop is not None
        return finding.position < entry.stop and entry.start < finding.position + (finding.size or 1)

    losses = [entry for entry in report.all_entries() if entry.is_alteration]
    return [entry.line() for entry in losses if not any(is_at(entry, finding) for finding in findings)]


class TestBlobStores(RandomRepair):
    """Messages that are whole keep their blobs as they were, what the index knows is carried over, and all else is reported by blob id."""

    def damage(self, number: int, folder: Path) -> Damage:
        case = damaged(number)
        case.write(folder / "source")
        return Damage(folder / "source", f"{STORES[number % len(STORES)]}: {', '.join(case.done)}", case)

    def is_found(self, entry: Entry, repair: Repair) -> bool:
        return entry.line() not in unfounded(repair.report, repair.findings)

    def is_settled(self, second: Report, first: Report) -> bool:
        return (second.is_whole or bool(first.remaining)) and not second.with_action(Action.CHANGED, Action.MOVED)

    def judge(self, damage: Damage, repair: Repair) -> None:
        before, after = contents(repair.source), contents(repair.target)
        if not list(repair.findings):
            assert all(after[name] == raw for name, raw in before.items() if name.endswith("_log"))
        wrong = judge(damage.truth, repair.report, repair.target)
        assert not wrong, wrong
        # What is lost stays known: updates whose PUT is gone, and the gap that a lost segment leaves.
        known = {"ambry.store.orphan-update", "ambry.store.lost-segment"}
        is_loss = bool(repair.report.with_action(Action.LOST, Action.MOVED))
        assert {one.code for one in repair.report.remaining} <= (known if is_loss else set())
