"""Damaged files, one at a time: what readers, rules and `explain` say of them.

The samples are those of the conformance tests of each format (`small`, and small golden files). Oracles:

- only a RawlogError leaves the library; its place and those of rows and findings lie inside the file; time and memory are bounded;
- where a reference decoder knows what the bytes before the first damage hold, readers give exactly that;
- where a checksum covers a changed byte, `verify` has an error; a record that no checksum vouches for is never a row;
- what `errors="raise"` refuses, `verify` has found; what `stop` gives is what `skip` gives first.
"""

from __future__ import annotations

import base64
import json
import os
import random
import time
import traceback
import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from rawlog.io.walk import walk
from rawlog.model.errors import DataError, RawlogError
from rawlog.model.format import File
from rawlog.reading.inspect import inspect_file
from rawlog.testing.formats import Base, plain
from rawlog.verbs.cat import Log
from tests.formats.test_every_format import suites
from tests.fuzz import place
from tests.fuzz.mutations import Structure, mutate

#: Files up to this size are samples; so many golden ones of each format.
SMALL, GOLDEN = 2500, 6
SECONDS = 5.0
ERRORS = ("raise", "stop", "skip")
#: Formats of Kafka's batches.
BATCHES = frozenset({"kafka.log", "kraft.checkpoint"})
#: Columns of `records` that checksums cover wherever a format has them.
COVERED = {
    "kafka.log": ("key", "value"),
    "kraft.checkpoint": (),
    "rocketmq.commitlog": ("value",),
    "rocketmq.compactionlog": ("value",),
    "ambry.log": ("value",),
}


class Sample:
    """A sound file of a format, with what fuzzing needs to know of it."""

    def __init__(self, bench: Bench, data: bytes) -> None:
        self.data, self.structure = data, Structure(data)
        file = bench.put(data)
        self.protected = frozenset(bench.suite.protected(data))
        self.structure.learn_file(file, bench.format)
        self.is_clean = not inspect_file(file).errors


class Bench:
    """A format under test: its samples, and the one file on disk that each execution overwrites."""

    def __init__(self, suite: Base) -> None:
        self.suite, self.format = suite, suite.subject
        self.path = place() / suite.format / suite.name
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT)
        [self.file] = Log((str(self.path),), suite.open(self.path).files)
        self.tables = tuple(table.name for table in self.format.tables)

    @cached_property
    def samples(self) -> list[Sample]:
        golden = [path.read_bytes() for path in self.suite.golden]
        some = sorted({data for data in golden if 0 < len(data) <= SMALL}, key=lambda data: (len(data), data))[:GOLDEN]
        return [Sample(self, data) for data in dict.fromkeys([*self.suite.small, *some])]

    @cached_property
    def contents(self) -> set[Any]:
        """What checksums vouch for in any sample."""
        contents = set()
        for sample in self.samples:
            file = self.put(sample.data)
            contents |= {self.content(row) for row in self.rows(file, "records", "skip")[0]}
            if "rocketmq.messages" in self.tables:  # a flag that no checksum covers says how a body is to be read
                contents |= {(row["body"],) for row in self.rows(file, "rocketmq.messages", "skip")[0]}
        return contents

    def content(self, row: dict[str, Any]) -> Any:
        return tuple(row[name] for name in COVERED[self.format.name])

    def put(self, data: bytes) -> File:
        """Bytes as the file."""
        os.pwrite(self.descriptor, data, 0)  # to open it anew for each execution would take as long as all the rest
        os.ftruncate(self.descriptor, len(data))
        return replace(self.file, size=len(data))

    def rows(self, file: File, table: str, errors: str) -> tuple[list[dict[str, Any]], RawlogError | None]:
        """The rows of a table up to an error, which is given, too; each batch is checked to its last buffer."""
        rows = Log((file.path,), (file,)).table(table, errors=errors)
        rows.note = lambda text: None
        batches: list[pa.RecordBatch] = []
        error = None
        try:
            for batch in rows.batches():
                batch.validate(full=True)
                batches.append(batch)
        except RawlogError as raised:
            error = raised
        return [row for batch in batches for row in plain(pa.Table.from_batches([batch]))], error


@cache
def benches(family: str) -> tuple[Bench, ...]:
    """The formats of a family."""
    return tuple(Bench(suite()) for suite in suites() if suite.format.partition(".")[0] == family)


@cache
def bench(format: str) -> Bench:
    return next(each for each in benches(format.partition(".")[0]) if each.format.name == format)


class Case(NamedTuple):
    """A damaged file. `is_right`: checksums were put right after the damage; `flips`: the bytes that differ, if the size is the same."""

    format: str
    data: bytes
    story: str
    sample: int = -1
    is_right: bool = True

    def to_json(self, problem: str) -> str:
        packed = base64.b85encode(zlib.compress(self.data)).decode()
        row = self._asdict() | {"problem": problem, "data": packed}
        return json.dumps(row, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Case:
        row = json.loads(text)
        row.pop("problem")
        return cls(**(row | {"data": zlib.decompress(base64.b85decode(row["data"]))}))


def make(family: str, seed: int, number: int) -> Case:
    """The case of a number: the same for ever, as long as the samples stay."""
    draw = random.Random(f"files/{family}/{seed}/{number}")
    formats = benches(family)
    chosen = formats[0] if draw.random() < 0.3 else draw.choice(formats)
    index = draw.randrange(len(chosen.samples))
    sample = chosen.samples[index]
    data, stories, is_right = sample.data, [], False
    for _ in range(draw.choice((1, 1, 1, 2, 3, 5))):
        change = mutate(draw, sample.structure, data, is_kafka=chosen.format.name in BATCHES)
        data, is_right = change.data, is_right or change.is_right
        stories.append(change.story)
    return Case(chosen.format.name, data, "; ".join(stories), index, is_right)


def check(case: Case, draw: random.Random | None = None) -> Iterator[str]:
    """What is wrong with the answers. With `draw`, one table is read in one way; else every table in every way."""
    subject = bench(case.format)
    file = subject.put(case.data)
    began = time.monotonic()
    try:
        yield from _check(subject, case, file, draw)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        yield f"{type(error).__name__}: {str(error)[:200]} ({Path(where.filename).name}:{where.lineno})"
    if (seconds := time.monotonic() - began) > SECONDS:
        yield f"took {seconds:.0f} s"


def _check(subject: Bench, case: Case, file: File, draw: random.Random | None) -> Iterator[str]:
    findings = inspect_file(file)
    for finding in findings:
        position = finding.position or 0
        if not subject.suite.points_elsewhere and not 0 <= position <= position + (finding.size or 0) <= file.size:
            yield f"finding outside of the file: {finding}"
    if not case.is_right and _is_protected(subject, case) and not findings.errors:
        yield "a byte changed that a checksum covers, and verify finds no error"
    reference = subject.suite.reference(case.data) or {}
    for table in subject.tables if draw is None else [draw.choice(subject.tables)]:
        for errors in ERRORS if draw is None else [draw.choice(ERRORS)]:
            rows, error = subject.rows(file, table, errors)
            yield from _check_rows(subject, case, file, table, errors, rows)
            if error is not None:
                if not str(error) or not 0 <= (getattr(error, "position", None) or 0) <= file.size:
                    yield f"an error of a place outside of the file: {error!r}"
                if isinstance(error, DataError) and not findings.errors and not findings.warnings:
                    yield f"{table}, {errors}: reading refuses what verify finds nothing wrong with: {error}"
            if errors == "stop" and table in reference and (problem := _differ(rows, reference[table])):
                yield f"{table}: not what the reference reads: {problem}"
    if subject.format.can("explain") and (draw is None or draw.random() < 0.3):
        for frames in walk(file, subject.format, errors="skip"):
            for index in range(len(frames)):
                try:
                    subject.format.codec.explain(frames.slice(index, index + 1), file)
                except DataError as error:
                    if not findings.errors and not findings.warnings:
                        yield f"explain refuses what verify finds nothing wrong with: {error}"
    if draw is None or draw.random() < 0.3:
        counted = Log((file.path,), (file,)).table(subject.tables[0], errors="skip")
        counted.note = lambda text: None
        counted.count()


def _check_rows(
    subject: Bench, case: Case, file: File, table: str, errors: str, rows: list[dict[str, Any]]
) -> Iterator[str]:
    for row in rows if not subject.suite.points_elsewhere and table != "ambry.index" else ():
        position = row.get("position")
        if position is not None and not 0 <= position <= position + (row.get("size") or 0) <= file.size:
            yield f"{table}, {errors}: a row of a place outside of the file: {position}, {row.get('size')}"
    if table == "records" and not case.is_right and COVERED.get(case.format):
        for row in rows:
            if subject.content(row) not in subject.contents:
                yield f"{table}, {errors}: a changed record is read as good: {row}"
                return


def _is_protected(subject: Bench, case: Case) -> bool:
    """Whether bytes under a checksum changed, and no others."""
    sample = subject.samples[case.sample]
    if "frame at" in case.story or case.sample < 0 or len(sample.data) != len(case.data) or not sample.is_clean:
        return False
    changed = {at for at, (now, then) in enumerate(zip(case.data, sample.data, strict=True)) if now != then}
    return bool(changed) and changed <= sample.protected


def _differ(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    for number, (row, wanted) in enumerate(zip(rows, expected, strict=False)):
        got = {name: row[name] for name in wanted}
        if got != wanted:
            return f"row {number}: {got!r}, {wanted!r} expected"[:400]
    return "" if len(rows) == len(expected) else f"{len(rows)} rows, {len(expected)} expected"
