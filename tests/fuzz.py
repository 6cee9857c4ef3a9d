"""A fuzzer that knows the structure of files: `python -m tests.fuzz --seed 1 --seconds 60`, or `make fuzz`.

One execution: a small store of the wounds suite (written by a real system, or by rawlog as such a system would), one to three mutations,
one call of one verb (`tests/data/calls.py`), in this process. Fields, and the bytes that a checksum covers, are those that `explain` shows:
a field gets a value at the edge of its type, and its checksums are put right most of the time, so that the change is not simply found by
them. Mutations of whole files are combined with those of bytes.

Oracles: no internal error; a known exit code; the source is not changed; time and memory are bounded; where only bytes were damaged, every
record of an untouched frame is read; after `repair`, `verify` finds no error unless its exit code says so, and
a second repair changes nothing.

A failure is written as a file that has all it needs, `FOLDER/SUBJECT-SEED-NUMBER.json`. Moved to tests/corpus, it is tried by each run of
the tests.
"""

from __future__ import annotations

import argparse
import base64
import json
import logging
import random
import resource
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import crc32c
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.model.errors import RawlogError
from rawlog.testing.damage import WOUNDS
from tests.data import calls
from tests.data.trees import contents
from tests.wounds.suite import MEMORY, SUBJECTS
from tests.wounds.truth import Record, Sound

Files = dict[str, bytes]
FAMILIES = ("kafka", "kraft", "rocketmq", "ambry", "replay")
#: Large, or much like others.
LEFT_OUT = {"whole", "topics", "settings"}
SECONDS, GROWTH = 30, 1 << 30
#: Verbs whose damaged input may be refused for a reason that is no damage (several clusters, nothing to compact).
CODES = {0, 1, 2, 3}


class Field(NamedTuple):
    file: str
    start: int
    stop: int


class Checksum(NamedTuple):
    file: str
    start: int
    stop: int
    first: int
    end: int
    compute: Callable[[bytes], int]


#: Those of the systems: CRC-32C, CRC-32, and CRC-32 without its sign.
CHECKSUMS: tuple[Callable[[bytes], int], ...] = (crc32c.crc32c, zlib.crc32, lambda data: zlib.crc32(data) & 0x7FFFFFFF)


class Store:
    """A subject with its files, and the fields and checksums in them."""

    def __init__(self, name: str, folder: Path) -> None:
        self.sound = Sound(SUBJECTS[name], folder)
        self.files: Files = contents(self.sound.root)
        self.fields: list[Field] = []
        self.checksums: list[Checksum] = []
        for file in sorted(self.files):
            for number in range(12):
                try:
                    explained = rawlog.explain(self.sound.root / file, number=number)
                except (RawlogError, ValueError):
                    break
                self._learn(file, explained)

    def _learn(self, file: str, explained: Any) -> None:
        data = self.files[file]
        for node in explained:
            if node.inside or node.children or not 0 < node.size <= 8:
                continue
            self.fields.append(Field(file, node.position, node.position + node.size))
            if node.covers:
                stored = int.from_bytes(data[node.position : node.position + node.size], "big")
                for compute in CHECKSUMS:
                    if compute(data[node.covers[0] : node.covers[1]]) == stored:
                        place = (file, node.position, node.position + node.size)
                        self.checksums.append(Checksum(*place, *node.covers, compute))
                        break


@cache
def store(name: str) -> Store:
    place = tempfile.TemporaryDirectory(prefix="rawlog-fuzz-sound-", dir=MEMORY)
    _kept.append(place)
    return Store(name, Path(place.name))


_kept: list[tempfile.TemporaryDirectory[str]] = []


# Mutations: each changes files in place and says what it did. -------------------------------------------------------------


def field(draw: random.Random, subject: Store, files: Files) -> str:
    """A field has a value at an edge, and the checksums over it are right again, most of the time."""
    fields = [each for each in subject.fields if len(files.get(each.file, b"")) == len(subject.files[each.file])]
    if not fields:
        return wound(draw, subject, files)
    file, start, stop = draw.choice(fields)
    data, bits = bytearray(files[file]), 8 * (stop - start)
    before = int.from_bytes(data[start:stop], "big")
    edges = (
        0,
        1,
        -1,
        1 << (bits - 1),
        (1 << (bits - 1)) - 1,
        before + 1,
        before - 1,
        before ^ 1 << draw.randrange(bits),
        len(data),
    )
    value = draw.choice((*edges, draw.getrandbits(bits))) % (1 << bits)
    data[start:stop] = value.to_bytes(stop - start, "big")
    covering = [each for each in subject.checksums if each.file == file and each.first < stop and start < each.end]
    is_fixed = draw.random() < 0.7
    for each in sorted(covering, key=lambda each: each.end - each.first) if is_fixed else ():
        right = each.compute(bytes(data[each.first : each.end]))
        data[each.start : each.stop] = right.to_bytes(each.stop - each.start, "big")
    files[file] = bytes(data)
    return f"{file}: bytes {start} to {stop} are {value}{', checksums right' if covering and is_fixed else ''}"


def wound(draw: random.Random, subject: Store, files: Files) -> str:
    file = draw.choice([name for name, data in sorted(files.items()) if data] or [""])
    if not file:
        return "nothing left"
    kind = draw.choice(sorted(WOUNDS))
    at = draw.randrange(len(files[file]))
    files[file] = WOUNDS[kind](draw, files[file], at)
    return f"{file}: {kind} at {at}"


def whole_file(draw: random.Random, subject: Store, files: Files) -> str:
    """A file is missing, empty, zeroed, cut, swapped, renamed, there twice, older, or of another store."""
    if not files:
        return "nothing left"
    kind = draw.choice(("missing", "empty", "zeroed", "cut", "swapped", "renamed", "twice", "stale", "foreign"))
    names = sorted(files)
    file, other = draw.choice(names), draw.choice(names)
    digits = "".join(ch for ch in Path(file).name if ch.isdigit())
    moved = file.replace(digits, str(draw.choice((0, 1, 7, 10**9))).zfill(len(digits))) if digits else f"{file}.old"
    if kind == "missing":
        del files[file]
    elif kind in ("empty", "zeroed", "cut"):
        keep = {"empty": 0, "zeroed": 0, "cut": draw.randrange(len(files[file]) + 1)}[kind]
        files[file] = files[file][:keep] + (bytes(len(files[file])) if kind == "zeroed" else b"")
    elif kind == "swapped":
        files[file], files[other] = files[other], files[file]
    elif kind == "renamed":
        files[moved] = files.pop(file)
    elif kind == "twice":
        files[moved] = files[file]
    elif kind == "stale":
        files[file] = files[file][: len(files[file]) // 2]
    else:
        strange = store(draw.choice(SMALL[draw.choice(FAMILIES)]))
        files[f"{Path(file).parent}/{Path(draw.choice(sorted(strange.files))).name}".removeprefix("./")] = draw.choice(
            list(strange.files.values())
        )
    return f"{file}: {kind}"


MUTATIONS = (field, field, field, wound, wound, whole_file)
SMALL = {
    family: sorted(name for name, one in SUBJECTS.items() if one.family.name == family and not LEFT_OUT & one.facts)
    for family in FAMILIES
}


# One execution ------------------------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """All that one execution needs: the subject, its files where they differ (None: gone), and the words of the call."""

    subject: str
    changed: dict[str, bytes | None]
    words: list[str]
    story: str

    def to_json(self, problem: str) -> str:
        packed = {
            n: None if d is None else base64.b85encode(zlib.compress(d)).decode() for n, d in self.changed.items()
        }
        row = {"problem": problem, "subject": self.subject, "words": self.words, "story": self.story, "changed": packed}
        return json.dumps(row, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Case:
        row = json.loads(text)
        changed = {n: None if d is None else zlib.decompress(base64.b85decode(d)) for n, d in row["changed"].items()}
        return cls(row["subject"], changed, row["words"], row["story"])


def made(family: str, seed: int, number: int) -> Case:
    """The case of a number: the same for ever, as long as the subjects and the verbs stay."""
    draw = random.Random(f"{family}/{seed}/{number}")
    name = draw.choice(SMALL[family])
    subject = store(name)
    files = dict(subject.files)
    story = [draw.choice(MUTATIONS)(draw, subject, files) for _ in range(draw.choice((1, 1, 2, 3)))]
    changed: dict[str, bytes | None] = {
        file: files.get(file) for file in sorted({*files, *subject.files}) if files.get(file) != subject.files.get(file)
    }
    verb = draw.choice([*calls.CALLS, "repair", "verify", "cat"])
    return Case(name, changed, [verb, *draw.choice(calls.CALLS[verb])], "; ".join(story))


def check(case: Case) -> Iterator[str]:
    """What is wrong with the outcome."""
    subject = store(case.subject)
    with tempfile.TemporaryDirectory(prefix="rawlog-fuzz-", dir=MEMORY) as folder:
        source = Path(folder, "store")
        for file, data in {**subject.files, **case.changed}.items():
            if data is not None:
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                (source / file).write_bytes(data)
        if not source.is_dir():
            return
        before = contents(source)
        some = sorted(file for file in case.changed if (source / file).is_file()) or sorted(before)
        out = Path(folder, "out", "store")
        places = {calls.SOURCE: source, calls.SOUND: subject.sound.root, calls.FILE: source / some[0], calls.OUT: out}
        words = calls.fill(tuple(case.words), {sign: str(place) for sign, place in places.items()})
        out.parent.mkdir()
        began, peak = time.monotonic(), _peak()
        ran = _run(words)
        if time.monotonic() - began > SECONDS:
            yield f"took {time.monotonic() - began:.0f} s"
        if _peak() - peak > GROWTH:
            yield f"took {_peak() - peak:,} bytes more memory"
        has_ended = ran.exception is None or isinstance(ran.exception, SystemExit)
        if ran.exit_code not in CODES or not has_ended or "internal error" in ran.stderr:
            said = ran.stderr.strip().splitlines()[:1] if has_ended else [repr(ran.exception)]
            yield f"exit code {ran.exit_code}: {''.join(said)}"
            return
        if contents(source) != before:
            yield "the source was changed"
        if case.words[0] == "repair" and ran.exit_code in (0, 1) and out.exists():
            yield from _repaired(out, ran.exit_code)
        if case.words[0] == "cat" and (gone := _missing(case, subject, source)):
            yield f"{sum(gone.values())} records of untouched frames are not read: {list(gone)[:2]}"


def _run(words: list[str]) -> Any:
    return CliRunner().invoke(cli, words, prog_name="rawlog")


def _repaired(out: Path, code: int) -> Iterator[str]:
    """What remains is said, and the result repaired again is the same."""
    if code == 0 and (left := rawlog.verify(out).errors):
        yield f"repair says that all is well, and verify finds {left} errors in the result"
    again = out.with_name("again")
    ran = _run(["repair", str(out), str(again)])
    if ran.exit_code not in CODES:
        yield f"repair of the result: exit code {ran.exit_code}: {(ran.stderr.strip().splitlines() or [''])[0]}"
    elif again.exists() and contents(again) != contents(out):
        yield "a second repair changes the result"


def _missing(case: Case, subject: Store, source: Path) -> Counter[Record]:
    """Records of frames that nothing touched and that `cat --errors skip` does not give. Only where bytes alone were damaged: a file that
    is somewhere else or has right checksums over other offsets may take the place of others, as it does in the real system.
    """
    family = subject.sound.subject.family
    frames = [frame for frame in subject.sound.frames if not _is_touched(case, subject, frame)]
    if "checksums right" in case.story or len(frames) == len(subject.sound.frames):
        return Counter()
    if any(word in case.story for word in FILE_WORDS) or set(case.changed) - {
        frame.file for frame in subject.sound.frames
    }:
        return Counter()
    options = subject.sound.subject.options
    try:
        table = rawlog.rows(source, errors="skip", show_secrets=True, **options).to_arrow()
    except RawlogError:  # a recording whose first bytes are damaged is of no known format
        return Counter()
    at = table.column_names.index("timestamp")
    rows = table.set_column(at, "timestamp", table["timestamp"].cast("int64")).to_pylist()
    for row in rows:
        row["timestamp"] = None if row["timestamp"] is None else row["timestamp"] // 1000
    wanted = Counter(record for frame in frames for record in frame.records)
    try:
        return wanted - Counter(family.row(row) for row in rows)
    except KeyError:
        return Counter()


FILE_WORDS = (": missing", ": empty", ": swapped", ": renamed", ": twice", ": foreign", ": stale", ": zeroed", ": cut")


def _is_touched(case: Case, subject: Store, frame: Any) -> bool:
    """Whether a frame is in a changed file, at or after the first byte that differs."""
    if frame.file not in case.changed:
        return False
    now = case.changed[frame.file] or b""
    return now[: frame.stop] != subject.files[frame.file][: frame.stop]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(family: str, seed: int, executions: int, seconds: float, folder: Path | None) -> tuple[int, list[str]]:
    """Run so many executions, or so long. -> how many took place, and what was wrong"""
    end, problems, number = time.monotonic() + seconds, [], 0
    while number < executions and time.monotonic() < end:
        case = made(family, seed, number)
        for problem in check(case):
            problems.append(f"{case.subject} {seed} {number}: {' '.join(case.words)}: {problem} ({case.story})")
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{case.subject}-{seed}-{number}.json").write_text(case.to_json(problem))
        number += 1
    return number, problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60, help="for each family")
    parser.add_argument("--executions", type=int, default=sys.maxsize, help="for each family")
    parser.add_argument("--family", choices=FAMILIES, action="append")
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz"), help="where failures are written")
    options = parser.parse_args()
    logging.disable()
    wrong = 0
    for family in options.family or FAMILIES:
        began = time.process_time()
        count, problems = fuzz(family, options.seed, options.executions, options.seconds, options.folder)
        print(
            f"{family}: {count:,} executions, {len(problems)} failures, {time.process_time() - began:.0f} s CPU",
            flush=True,
        )
        print("".join(f"  {problem}\n" for problem in problems), end="")
        wrong += len(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
