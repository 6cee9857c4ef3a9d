"""The oracle: runs every verb on a wounded copy and says what is wrong with each outcome.

Checks, as the ledger names them:

| check | what is wrong |
|---|---|
| `crash` | an internal error: exit code 70 |
| `code` | the exit code is not that of docs/wounds.md |
| `loses` | a record that the wound did not destroy is not in the result, or not at its address |
| `invents` | a record is in the result that the sound store does not have at that address |
| `disagrees` | where the page leaves the exit code open: it is not that of the other verbs of the class |
| `silent` | a loss that the files show is not named |
| `count` | a number is wrong: of rows, of differences |
| `wrote` | `rebuild` wrote a store although the source is damaged |
| `unclean` | `verify` of the result is not clean, and the report does not say what remains |
| `unstable` | repairing the result again changes it |
| `source` | the source was changed |
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.wounds import table
from tests.wounds.truth import Frame, Record, Sound
from tests.wounds.verbs import LOOK, REBUILD, VERBS, WRITE, Outcome, Verb, run
from tests.wounds.wounds import Copy

#: Verbs besides `rebuild` that may refuse a damaged store, with code 1 and nothing written.
MAY_REFUSE = frozenset({"compact", "erase"})

#: Families whose records `diff` does not count one by one: it compares blobs, or entries that have no numbers.
NOT_COUNTED = frozenset({"ambry", "replay"})


@dataclass
class Verdict:
    """What is wrong with the outcome of a verb, by check."""

    verb: str
    wrong: dict[str, str] = field(default_factory=dict)


class Judge:
    """Judges wounded copies of one subject; it remembers what each verb does with the sound one."""

    def __init__(self, sound: Sound, folder: Path) -> None:
        self.sound, self.subject, self.folder = sound, sound.subject, folder
        self.replica = folder / "replica"
        sound.copy(self.replica)
        meta = self.replica / "meta.properties"
        if meta.exists():
            other = re.sub(r"(node|broker)\.id=\d+", r"\1.id=2", meta.read_text())
            meta.write_text(re.sub(r"(?m)^directory\.id=.*\n", "", other))
        self.baselines: dict[str, tuple[Counter[Record], Counter[Record]]] = {}
        self.others: int | None = None

    def verbs(self, with_slow: bool) -> list[Verb]:
        family, subject = self.subject.family.name, self.subject
        fits = [verb for verb in VERBS if family not in verb.not_for and verb.name not in subject.not_for]
        fits = [verb for verb in VERBS if verb.name in subject.only] if subject.only else fits
        return [verb for verb in fits if with_slow or not verb.is_slow]

    def judge(self, copy: Copy, work: Path, with_slow: bool = True) -> list[Verdict]:
        """The verdict on every verb."""
        before = tree(copy.root)
        verdicts = []
        first: dict[str, int] = {}  # the code of the first verb of each class
        for verb in self.verbs(with_slow):
            verdict = Verdict(verb.name)
            outcome = self.run(verb, copy.root, work / verb.name)
            if outcome.crash:
                verdict.wrong["crash"] = outcome.crash
            else:
                self.check(verb, outcome, copy, verdict.wrong)
                is_open = table.code(copy.kinds, verb) is None and not self.refuses(verb, outcome, copy)
                if is_open and verb.name not in ("diff", "rescue-replica", "count"):
                    agreed = first.setdefault(verb.cls, outcome.code)
                    if outcome.code != agreed:
                        verdict.wrong["disagrees"] = f"exit {outcome.code}, others of the class: {agreed}"
            if tree(copy.root) != before:
                verdict.wrong["source"] = "the source was changed"
                before = tree(copy.root)
            verdicts.append(verdict)
            shutil.rmtree(work / verb.name, ignore_errors=True)
        return verdicts

    def run(self, verb: Verb, source: Path, target: Path) -> Outcome:
        places = {
            "SRC": source,
            "SOUND": self.sound.root,
            "REPLICA": self.replica,
            "KEY": self.subject.key or "no-such-key",
        }
        return run(verb, self.subject.family, target, **{name: str(place) for name, place in places.items()})

    def baseline(self, verb: Verb) -> tuple[Counter[Record], Counter[Record]]:
        """What a verb leaves out of the sound store on purpose, and what it writes instead."""
        masks = self.subject.family.name == "kraft" and verb.name == "ingest"  # secrets of metadata records
        if not (verb.filters or masks):
            return Counter(), Counter()
        if verb.name not in self.baselines:
            outcome = self.run(verb, self.sound.root, self.folder / f"sound-{verb.name}")
            found = outcome.records or Counter()
            self.baselines[verb.name] = self.sound.records - found, found - self.sound.records
        return self.baselines[verb.name]

    def not_counted(self) -> int:
        """How many rows of the sound store are none of the truth: records of its metadata log."""
        if self.others is None:
            outcome = self.run(
                next(verb for verb in VERBS if verb.name == "count"), self.sound.root, self.folder / "count"
            )
            self.others = (outcome.count or 0) - sum(self.sound.records.values())
        return self.others

    def check(self, verb: Verb, outcome: Outcome, copy: Copy, wrong: dict[str, str]) -> None:
        lost = records_of(copy.lost)
        maybe = records_of(copy.maybe)
        whole = self.sound.records
        if verb.name == "rescue-replica":
            lost = maybe = Counter()
        survivors = whole - lost
        is_covered = False
        # A metadata log has no hole: it begins at a snapshot after what is damaged, for certain or perhaps.
        if self.subject.family.name == "kraft" and (copy.lost or copy.maybe):
            end = max(int(path.name.split("-")[0]) for path in copy.root.glob("*/*.checkpoint"))
            maybe += records_of([frame for frame in self.sound.frames if frame.last < end])
            is_covered = bool(copy.lost) and all(frame.last < end for frame in copy.lost)

        if self.refuses(verb, outcome, copy):
            return
        expected = None if is_covered and verb.cls == WRITE else table.code(copy.kinds, verb)
        is_counted = self.subject.family.name not in NOT_COUNTED
        if verb.name == "diff" and lost:
            is_deleted = (
                self.subject.family.name == "ambry" and expected == 0
            )  # perhaps: deleted blobs are alike without content
            expected = None if is_deleted else 1
        if expected is not None and outcome.code != expected:
            wrong["code"] = f"exit {outcome.code}, {expected} expected"

        if outcome.records is not None or (verb.result in ("store", "jsonl", "rows", "lake") and verb.cls != REBUILD):
            self.check_records(verb, outcome.records or Counter(), copy, survivors, maybe, wrong)
        if verb.name == "count" and not {"foreign", "garbage"} & set(copy.kinds):
            least, most = sum((survivors - maybe).values()), sum(whole.values())
            others = 0 if "metadata-elsewhere" in copy.kinds else self.not_counted()
            rows = None if outcome.count is None else outcome.count - others
            if rows is None or not least <= rows <= most:
                wrong["count"] = f"{rows} rows, {least} to {most} expected"
        if verb.name == "diff" and is_counted and "empty-directory" not in copy.kinds:
            least, most = sum((lost - maybe).values()), sum((lost + maybe).values())
            if outcome.count is None or not least <= outcome.count <= most:
                wrong["count"] = f"{outcome.count} differences, {least} to {most} expected"
        if copy.lost and copy.has_evidence and lost and verb.cls != LOOK and verb.name not in ("report", "diff"):
            whole_places = "directory" in copy.kinds
            silent = [frame for frame in copy.lost if not is_named(frame, outcome, whole_places)]
            if silent:
                names = ", ".join(f"{Path(frame.file).name} {frame.first} to {frame.last}" for frame in silent[:3])
                wrong["silent"] = f"{len(silent)} of {len(copy.lost)} lost frames are not named: {names}"
        if verb.cls == REBUILD and expected == 1 and outcome.target.exists():
            wrong["wrote"] = "a damaged store was rebuilt"
        if verb.cls in (WRITE, REBUILD) and outcome.target.exists():
            self.check_result(verb, outcome, copy, wrong)

    def refuses(self, verb: Verb, outcome: Outcome, copy: Copy) -> bool:
        """Whether a verb that may refuse a damaged store did: with code 1, and nothing written."""
        may_refuse = verb.cls == REBUILD or verb.command in MAY_REFUSE
        return may_refuse and outcome.code == 1 and not outcome.target.exists() and self.is_damaged(copy)

    def is_damaged(self, copy: Copy) -> bool:
        """Whether `verify` may find something."""
        return any(table.table()[kind]["check"] != 0 for kind in copy.kinds)

    def check_records(
        self, verb: Verb, found: Counter[Record], copy: Copy, survivors: Counter[Record], maybe: Counter[Record], wrong: dict[str, str]
    ) -> None:  # fmt: skip
        removed, added = self.baseline(verb)
        needed = survivors - maybe - removed
        if verb.cls == LOOK:  # rows as they are stored: a frame with a wrong address keeps its content
            missing = contents(needed) - contents(found)
            if missing:
                wrong["loses"] = f"{sum(missing.values())} of {sum(needed.values())} records"
            return
        if verb.name == "compact" and self.subject.family.name == "ambry" and copy.lost:
            needed = Counter()  # without an undelete that is lost, compaction drops more
        missing, extra = needed - found, found - self.sound.records - added
        if missing:
            moved = contents(missing) & contents(found)
            wrong["loses"] = (
                f"{sum(missing.values())} of {sum(needed.values())} records, {sum(moved.values())} of them moved"
            )
        if self.subject.has("whole"):  # transactions are ended as their coordinator would: that commits offsets
            extra = Counter({record: number for record, number in extra.items() if not record.place.startswith("__")})
        if extra:
            wrong["invents"] = f"{sum(extra.values())} records, the first at {min(extra)[:2]}"

    def check_result(self, verb: Verb, outcome: Outcome, copy: Copy, wrong: dict[str, str]) -> None:
        check = next(other for other in VERBS if other.name == "verify")
        again = self.run(check, outcome.target, outcome.target)
        says = copy.lost or copy.maybe or any('"remaining"' in line for line in outcome.out.splitlines())
        if again.crash or (again.code and not (says and outcome.code)):
            wrong["unclean"] = f"verify of the result: exit {again.code}"
        if verb.name == "repair":
            second = outcome.target.with_name("again")
            shutil.rmtree(second, ignore_errors=True)
            twice = self.run(verb, outcome.target, second)
            first, then = tree(outcome.target), tree(second)
            differ = sorted(name for name in first.keys() | then.keys() if first.get(name) != then.get(name))
            if twice.crash or differ:
                wrong["unstable"] = twice.crash or ", ".join(differ[:4])
            shutil.rmtree(second, ignore_errors=True)


def records_of(frames: list[Frame]) -> Counter[Record]:
    return Counter(record for frame in dict.fromkeys(frames) for record in frame.records)


def contents(records: Counter[Record]) -> Counter[str]:
    """Records without their addresses."""
    found: Counter[str] = Counter()
    for record, number in records.items():
        found[record.digest] += number
    return found


def tree(root: Path) -> dict[str, str]:
    """A digest of every file, and every directory."""
    found = {}
    for path in sorted(root.rglob("*")) if root.is_dir() else [root] if root.exists() else []:
        found[str(path.relative_to(root))] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


# What an outcome names ----------------------------------------------------------------------------------------------------

QUIET = frozenset({"kept", "rebuilt", "moved", "removed"})
RANGE = re.compile(r"(\d[\d,]*) (?:to|and) (\d[\d,]*)|(?:from|after) (?:\w+ )?(\d[\d,]*)(?: on)?|(\d[\d,]*)")


def is_named(frame: Frame, outcome: Outcome, whole_places: bool = False) -> bool:
    """Whether an outcome names the loss of a frame: its offsets, its bytes, its file, its blob id or all of its partition."""
    things = list(losses(outcome))
    if whole_places and any(frame.place in str(value) for thing in things for value in thing.values()):
        return True
    return any(_names(thing, frame) for thing in things)


def losses(outcome: Outcome) -> Iterator[dict[str, Any]]:
    """Everything in the output that tells of damage or loss: findings, entries of reports, notes, messages."""
    for thing in outcome.objects():
        yield from _losses(thing)
    for line in outcome.err.splitlines():
        yield {"message": line}


def _losses(thing: Any, key: str = "") -> Iterator[dict[str, Any]]:
    if isinstance(thing, dict):
        if thing.get("action") in QUIET or thing.get("severity") == "info":
            return
        if (
            any(isinstance(thing.get(name), str) for name in ("action", "severity", "reason", "message"))
            or key in LISTS
        ):
            yield thing
        for name, value in thing.items():
            yield from _losses(value, name)
    elif isinstance(thing, list):
        if key in LISTS and len(thing) == 2 and all(isinstance(item, int) for item in thing):
            yield {"first_offset": thing[0], "stop_offset": thing[1] + 1}
        for item in thing:
            yield from _losses(item, key)
    elif isinstance(thing, str) and key in (*LISTS, "notes", "damage"):
        yield {"message": thing}


LISTS = frozenset({"lost", "undecided", "divergent", "missing", "unexplained_offsets", "gaps", "left_out"})


def _names(thing: dict[str, Any], frame: Frame) -> bool:
    path = thing.get("path") or ""
    name = Path(frame.file).name
    if (
        name.endswith("_log")
        and Path(str(path)).name.startswith(name.removesuffix("log"))
        and not str(path).endswith("_log")
    ):
        return True  # an index file of the same segment
    if isinstance(path, str) and Path(path).name == name:
        start = thing.get("start", thing.get("position"))
        if start is None:
            return True
        stop = thing.get("stop") or start + (thing.get("size") or 1)
        if start < frame.stop and frame.start < max(stop, start + 1):
            return True
    for first, last in (("first_offset", "stop_offset"), ("start_offset", "end_offset"), ("start", "stop")):
        if isinstance(thing.get(first), int) and (first != "start" or not path):
            stop = thing.get(last)
            if thing[first] <= frame.last and (stop is None or frame.first < stop):
                return True
    is_beyond = str(thing.get("code", "")).endswith(".beyond") and str(thing.get("found", "")).isdigit()
    if is_beyond and thing["offset"] <= frame.first < int(
        thing["found"]
    ):  # the log ends at `offset`, a checkpoint says `found`
        return True
    if isinstance(thing.get("offset"), int) and frame.first <= thing["offset"] <= frame.last:
        return True
    if any(f"queue/{record.place.replace('-', '/')}/" in str(path) for record in frame.records):
        return True  # a queue that knows the message
    text = " ".join(str(thing.get(part) or "") for part in ("message", "reason", "expected", "found"))
    if name in text or (frame.place and len(frame.place) > 20 and frame.place in text):
        return True
    for low, high, since, single in RANGE.findall(text):
        if low and number(low) <= frame.last and frame.first <= number(high):
            return True
        if since and number(since) <= frame.last:
            return True
        if single and frame.first <= number(single) <= frame.last:
            return True
    return False


def number(text: str) -> int:
    return int(text.replace(",", "") or 0)
