"""Damaged stores: one verb of the command line on each, in this process.

A store is one of the wounds suite (written by a real system, or by rawlog as such a system would). It gets one to three mutations, of its
bytes and of whole files.

Oracles, for every verb: no internal error, a known exit code, the source is not changed, time and memory are bounded. For verbs whose
result the wounds suite can read:

- every record of a frame that is whole in the damaged store is in the result, or its loss is named (`tests/wounds/oracle.py`) and the exit
  code is not 0;
- no record is in the result that the sound store does not have, unless checksums were put right or the format has none;
- after `repair`, `verify` finds no error unless the exit code says so, and a second repair changes nothing.
"""

from __future__ import annotations

import base64
import json
import random
import re
import resource
import shutil
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.model.errors import RawlogError
from tests.data import calls
from tests.data.trees import contents
from tests.fuzz import mutations, place
from tests.fuzz.mutations import Structure
from tests.wounds import verbs
from tests.wounds.oracle import MAY_REFUSE, is_named
from tests.wounds.suite import SUBJECTS
from tests.wounds.truth import Frame, Sound
from tests.wounds.verbs import CHECK, REBUILD, Verb

Files = dict[str, bytes]
FAMILIES = ("kafka", "kraft", "rocketmq", "ambry", "replay")
#: Large, or much like others.
LEFT_OUT = {"whole", "topics", "settings"}
SECONDS, GROWTH = 30, 1 << 30
#: Verbs whose damaged input may be refused for a reason that is no damage (several clusters, nothing to compact).
CODES = {0, 1, 2, 3}
#: Families whose checksums cover time, key and value of a record.
COVERED = frozenset({"kafka", "kraft", "ambry"})
#: Families that have any checksums.
CHECKED = COVERED | {"rocketmq"}
#: So many frames of a file are learnt.
MOST_FRAMES = 12
VERBS = {verb.words: verb for verb in verbs.VERBS}


class Store:
    """A subject with its files, and their structure."""

    def __init__(self, name: str, folder: Path) -> None:
        ids = random.Random(name)  # a case of today is to fit the store of tomorrow
        with (
            mock.patch("os.urandom", lambda size: ids.randbytes(size)),
            mock.patch("time.time", return_value=1_790_000_000.0),
        ):
            self.sound = Sound(SUBJECTS[name], folder)
        self.family = SUBJECTS[name].family
        self.files: Files = contents(self.sound.root)
        self.structures = {file: Structure(data) for file, data in self.files.items()}
        for file, structure in self.structures.items():
            for number in range(MOST_FRAMES):
                try:
                    structure.learn(rawlog.explain(self.sound.root / file, number=number).nodes)
                except (RawlogError, ValueError):
                    break
        self.replica = folder / "replica"
        self.sound.copy(self.replica)
        self.digests = {record.digest for record in self.sound.records}

    def verbs(self) -> list[Verb]:
        """The verbs whose results can be read, that fit."""
        subject, name = self.sound.subject, self.family.name
        return [verb for verb in VERBS.values() if name not in verb.not_for and verb.name not in subject.not_for]


@cache
def store(name: str) -> Store:
    folder = place() / name
    folder.mkdir()
    return Store(name, folder)


# Mutations: each changes files in place and says what it did. -------------------------------------------------------------


def change_bytes(draw: random.Random, subject: Store, files: Files) -> str:
    """Some bytes of a file."""
    file = draw.choice([name for name, data in sorted(files.items()) if data] or [""])
    if not file:
        return "nothing left"
    structure = subject.structures.get(file, Structure(files[file]))
    is_kafka = subject.family.name in ("kafka", "kraft") and file.endswith(".log")
    files[file], story, _ = mutations.mutate(draw, structure, files[file], is_kafka=is_kafka)
    return f"{file}: {story}"


def change_file(draw: random.Random, subject: Store, files: Files) -> str:
    """A file is missing, empty, zeroed, cut, swapped, renamed, there twice, older, of another store, or its directory has another
    number."""
    if not files:
        return "nothing left"
    kinds = ("missing", "empty", "zeroed", "cut", "swapped", "renamed", "twice", "stale", "foreign", "directory")
    kind = draw.choice(kinds)
    names = sorted(files)
    file, other = draw.choice(names), draw.choice(names)
    digits = "".join(ch for ch in Path(file).name if ch.isdigit())
    number = str(draw.choice((0, 1, 7, 10**9, (1 << 63) - 1, 10**20 - 1)))
    moved = file.replace(digits, number.zfill(len(digits))[-max(len(digits), 20) :]) if digits else f"{file}.old"
    if kind == "missing":
        del files[file]
    elif kind in ("empty", "zeroed", "cut"):
        keep = {"empty": 0, "zeroed": 0, "cut": draw.randrange(len(files[file]) + 1)}[kind]
        files[file] = files[file][:keep] + (bytes(len(files[file])) if kind == "zeroed" else b"")
    elif kind == "swapped":
        files[file], files[other] = files[other], files[file]
    elif kind == "renamed":
        files[moved] = files.pop(file)
    elif kind == "directory":
        folder = str(Path(file).parent)
        named = re.sub(r"\d+$", number, folder)
        for name in [name for name in files if name.startswith(f"{folder}/")]:
            files[f"{named}{name.removeprefix(folder)}"] = files.pop(name)
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


MUTATIONS = (change_bytes, change_bytes, change_bytes, change_file)
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


def make(family: str, seed: int, number: int) -> Case:
    """The case of a number: the same for ever, as long as the subjects and the verbs stay."""
    draw = random.Random(f"{family}/{seed}/{number}")
    name = draw.choice(SMALL[family])
    subject = store(name)
    files = dict(subject.files)
    story = [draw.choice(MUTATIONS)(draw, subject, files) for _ in range(draw.choice((1, 1, 2, 3)))]
    changed: dict[str, bytes | None] = {
        file: files.get(file) for file in sorted({*files, *subject.files}) if files.get(file) != subject.files.get(file)
    }
    if draw.random() < 0.6:
        fitting = [verb for verb in subject.verbs() if not verb.is_slow or draw.random() < 0.1]
        words = draw.choice(fitting).words.split()
    else:
        verb = draw.choice(sorted(calls.CALLS))
        words = [verb, *draw.choice(calls.CALLS[verb])]
    return Case(name, changed, words, "; ".join(story))


def check(case: Case) -> Iterator[str]:
    """What is wrong with the outcome."""
    subject = store(case.subject)
    with tempfile.TemporaryDirectory(dir=place()) as folder:
        source = Path(folder, "store")
        for file, data in {**subject.files, **case.changed}.items():
            if data is not None:
                (source / file).parent.mkdir(parents=True, exist_ok=True)
                (source / file).write_bytes(data)
        if not source.is_dir():
            return
        before = contents(source)
        out = Path(folder, "out", "store")
        out.parent.mkdir()
        began, peak = time.monotonic(), _peak()
        verb = VERBS.get(" ".join(case.words))
        try:
            if verb is not None:
                yield from _judge(verb, case, subject, source, out)
            else:
                yield from _call(case, subject, source, out)
        except Exception as error:
            yield f"the oracle fails: {error!r}"
        if time.monotonic() - began > SECONDS:
            yield f"took {time.monotonic() - began:.0f} s"
        if _peak() - peak > GROWTH:
            yield f"took {_peak() - peak:,} bytes more memory"
        if contents(source) != before:
            yield "the source was changed"


def _call(case: Case, subject: Store, source: Path, out: Path) -> Iterator[str]:
    """A verb whose outcome is not read."""
    some = sorted(file for file in case.changed if (source / file).is_file()) or sorted(contents(source))
    places = {calls.SOURCE: source, calls.SOUND: subject.sound.root, calls.FILE: source / some[0], calls.OUT: out}
    ran = CliRunner().invoke(
        cli, calls.fill(tuple(case.words), {sign: str(path) for sign, path in places.items()}), prog_name="rawlog"
    )
    has_ended = ran.exception is None or isinstance(ran.exception, SystemExit)
    if ran.exit_code not in CODES or not has_ended or "internal error" in ran.stderr:
        text = ran.stderr.strip().splitlines()[:1] if has_ended else [repr(ran.exception)]
        yield f"exit code {ran.exit_code}: {''.join(text)}"


def _judge(verb: Verb, case: Case, subject: Store, source: Path, out: Path) -> Iterator[str]:
    """A verb whose outcome is read."""
    sound = subject.sound
    key = sound.subject.key or "no-such-key"
    outcome = verbs.run(
        verb, subject.family, out, SRC=str(source), SOUND=str(sound.root), REPLICA=str(subject.replica), KEY=key
    )
    if outcome.crash or outcome.code not in CODES or "internal error" in outcome.err:
        yield f"exit code {outcome.code}: {outcome.crash or outcome.err.strip().splitlines()[:1]}"
        return
    if outcome.code == 3 and not outcome.records:  # no file of a known format is left
        return
    is_refusal = outcome.records is None and outcome.code != 0
    if outcome.records is not None or (verb.result in ("store", "jsonl", "rows", "lake") and not is_refusal):
        records = outcome.records or Counter()
        digests = {record.digest for record in records}
        is_masked = verb.name == "ingest" and subject.family.name == "kraft"  # it keeps no secrets
        if not verb.filters and not is_masked and verb.name != "rescue-replica":
            if subject.family.name not in CHECKED and not rawlog.verify(source).items:
                return  # a format without checksums: entries that hide others cannot be told from sound ones
            # The reference stops at a record that cannot be decoded.
            written = [] if verb.result != "store" else list(contents(out).values())
            missing = [
                places
                for places, content in _whole_frames(case, subject)
                if not {record.digest for record in places[0].records} <= digests
                and not any(content in data for data in written)
            ]
            silent = [places for places in missing if not any(is_named(frame, outcome) for frame in places)]
            for places in silent[:1] or (missing[:1] if outcome.code == 0 else ()):
                what = "not named" if silent else "the exit code is 0"
                yield (
                    f"{len(missing)} whole frames are not in the result, and {what}: "
                    f"{places[0].file} {places[0].first} to {places[0].last}, byte {places[0].start}"
                )
        if "checksums right" not in case.story and ": foreign" not in case.story and subject.family.name in COVERED:
            changed = [record for record in records if record.digest not in subject.digests]
            if changed and not is_masked:
                yield f"{len(changed)} records are in the result that the sound store does not have, the first: {changed[0]}"
    if verb.cls not in (CHECK, REBUILD) and outcome.code in (0, 1) and out.exists() and verb.result == "store":
        yield from _check_result(verb, out, outcome, is_copied="checksums right" in case.story)


def _check_result(verb: Verb, out: Path, outcome: verbs.Outcome, *, is_copied: bool) -> Iterator[str]:
    """What remains is named, and the result repaired again is the same. `restore` and `rescue` copy batches whose checksums are right, and
    decode no records: where records are wrong under right checksums (`is_copied`), only `verify` of the result finds it.
    """
    is_open = verb.command in MAY_REFUSE or (is_copied and verb.command in ("restore", "rescue"))
    if outcome.code == 0 and not is_open and (left := rawlog.verify(out).errors):
        yield f"exit code 0, and verify finds {left} errors in the result"
    if verb.name != "repair":
        return
    again = out.with_name("again")
    ran = CliRunner().invoke(cli, ["repair", str(out), str(again), "--threads", "1"], prog_name="rawlog")
    if ran.exit_code not in CODES:
        yield f"repair of the result: exit code {ran.exit_code}: {(ran.stderr.strip().splitlines() or [''])[0]}"
    elif again.exists() and contents(again) != contents(out):
        yield "a second repair changes the result"
    shutil.rmtree(again, ignore_errors=True)


def _whole_frames(case: Case, subject: Store) -> Iterator[tuple[list[Frame], bytes]]:
    """The frames with records whose bytes are in a data file of the damaged store: each where it is now, which may be several places."""
    now = {
        file: data
        for file, data in {**subject.files, **case.changed}.items()
        if data is not None and any(_matches(file, glob) for glob in subject.family.data)
    }
    for frame in subject.sound.frames:
        content = subject.files[frame.file][frame.start : frame.stop]
        places = [
            replace(frame, file=file, start=start, stop=start + frame.size)
            for file, data in now.items()
            if (start := frame.start if data.startswith(content, frame.start) else data.find(content)) >= 0
        ]
        if places and frame.records:
            yield places, content


def _matches(file: str, glob: str) -> bool:
    is_beyond = any(
        int(digits) >= 1 << 63 for digits in re.findall(r"\d+", Path(file).name)
    )  # no system has such a file
    return not is_beyond and Path(file).match(glob.replace("**/", ""))


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
