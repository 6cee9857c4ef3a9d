"""Report of a lake: its records measured like those of files, with the findings of the runs that ingested them, and its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog.lakes.lake import Lake
from rawlog.lakes.names import JOBS, lake_name
from rawlog.lakes.parquet import dataset
from rawlog.lakes.upkeep import TableStatus, status
from rawlog.model.finding import Finding, Findings, Severity
from rawlog.model.format import File
from rawlog.model.job import (
    Job,
    Split,
    SplitResult,
    Stage,
    packed,
)
from rawlog.model.profile import Profile, merged
from rawlog.model.store import Panel
from rawlog.model.table import (
    FILES,
    FINDINGS,
    RECORDS,
    Table,
)
from rawlog.model.text import counted, plain_time, size_text
from rawlog.model.verb import Section
from rawlog.pages.report import (
    FormatLine,
    Overview,
    System,
    Topic,
)
from rawlog.pages.results import Step
from rawlog.reading.profile import COLUMNS, FileProfile, Name
from rawlog.reading.tree import Tree
from rawlog.verbs.report import SurveyResult, causes, command

#: Bytes of data files in one split, and rows that are read at a time.
SPLIT, ROWS = 128 << 20, 1 << 16
NO_TOPIC = "(no topic)"
#: So many small data files of one table are worth joining.
SMALL = 20


@dataclass(frozen=True, slots=True)
class LakeSplit:
    """Data files of one table."""

    table: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Counted(SplitResult):
    """The profiles of records; or findings; or files by format; or the paths of the runs."""

    profile: FileProfile | None = None
    findings: tuple[Finding, ...] = ()
    formats: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()


class LakeSurvey(Job[Counted, SurveyResult]):
    """Measure the records of a lake."""

    def __init__(self, lake: str) -> None:
        self.lake = lake

    def plan(self, tree: Tree) -> list[Split]:
        """Splits of the data files of `records` (the tree has them), and one for each small table."""
        content = [
            LakeSplit(RECORDS.name, tuple(file.path for file in run)) for run in packed(list(tree), _size, SPLIT)
        ]
        lake = Lake(self.lake)
        for table in (FINDINGS, FILES, JOBS):
            content.append(LakeSplit(table.name, tuple(lake.data_files(lake_name(table)))))
        sizes = {file.path: file.size for file in tree}
        return [Split(number, sum(sizes.get(path, 0) for path in one.files), one) for number, one in enumerate(content)]

    def work(self, split: Split, stage: Stage) -> Counted:
        """Read the rows of a split."""
        own: LakeSplit = split.content
        if own.table == RECORDS.name:
            profile = FileProfile(File(NO_TOPIC, 0))
            for batch in _batches(own.files, RECORDS, COLUMNS):
                profile.add(batch)
                stage.advance(0, 0, batch.num_rows)
            stage.advance(split.size)
            return Counted(split.number, profile=profile.close())
        if own.table == FINDINGS.name:
            rows = (row for batch in _batches(own.files, FINDINGS, FINDINGS.names) for row in batch.to_pylist())
            return Counted(split.number, findings=tuple(_finding(row) for row in rows))
        if own.table == FILES.name:
            return Counted(split.number, formats=_formats(own.files))
        runs = _batches(own.files, JOBS, ("paths",))
        paths = dict.fromkeys(path for batch in runs for row in batch["paths"].to_pylist() for path in row or ())
        return Counted(split.number, paths=tuple(paths))

    def commit(self, done: Sequence[Counted]) -> SurveyResult:
        """Put everything together."""
        parts: dict[Name, Profile] = {}
        for one in done:
            for name, profile in (one.profile.parts if one.profile is not None else {}).items():
                parts.setdefault(name, Profile()).merge(profile)
        formats = {name: numbers for one in done for name, numbers in one.formats.items()}
        paths = tuple(path for one in done for path in one.paths)
        findings = Findings([finding for one in done for finding in one.findings])
        findings.files = sum(number for number, _ in formats.values())
        tables = list(status(Lake(self.lake)))
        found = causes(findings, paths or (self.lake,))
        overview = Overview(
            roots=(self.lake,),
            files=sum(one.files for one in tables),
            size=sum(one.size for one in tables),
            findings=findings,
            causes=found,
            steps=_steps(self.lake, findings, tables),
            systems=[_system(parts, tables, findings)],
            panels=[_tables(tables)],
            formats=_lines(formats),
            listing=command("lake", self.lake),
        )
        return SurveyResult(findings, overview)


def _size(file: File) -> int:
    return file.size


def _batches(files: Sequence[str], table: Table, columns: Sequence[str]) -> Iterable[Any]:
    if not files:
        return ()
    return dataset(files, table).to_batches(columns=list(columns), batch_size=ROWS)  # type: ignore[no-any-return]


def _finding(row: dict[str, Any]) -> Finding:
    return Finding(**{**row, "severity": Severity(row["severity"])})


def _formats(files: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The number and bytes of the ingested files of each format."""
    numbers: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for batch in _batches(files, FILES, ("format", "size")):
        for name, size in zip(batch["format"].to_pylist(), batch["size"].to_pylist(), strict=True):
            numbers[name or "unknown"] += 1
            sizes[name or "unknown"] += size or 0
    return {name: (numbers[name], sizes[name]) for name in numbers}


def _system(parts: Mapping[Name, Profile], tables: Sequence[TableStatus], findings: Findings) -> System:
    by_topic: dict[str, dict[int | None, Profile]] = {}
    for (topic, partition), profile in parts.items():
        by_topic.setdefault(topic, {})[partition] = profile
    topics = [
        Topic(
            topic, dict(sorted(found.items(), key=lambda one: -1 if one[0] is None else one[0])), merged(found.values())
        )
        for topic, found in sorted(by_topic.items())
    ]
    files, size = sum(one.files for one in tables), sum(one.size for one in tables)
    total = merged(topic.profile for topic in topics)
    return System("lake", "Lake", files, size, topics, total, findings.errors, findings.warnings)


def _tables(tables: Sequence[TableStatus]) -> Panel:
    rows = [
        (
            one.name,
            f"{one.rows:,}",
            f"{one.files:,}",
            size_text(one.size),
            f"{one.snapshots:,}",
            f"{one.sources:,}",
            "" if one.changed is None else plain_time(int(one.changed * 1000) * 1000),
        )
        for one in tables
    ]
    head = ("table", "rows", "data files", "size", "snapshots", "sources", "changed")
    return Panel("lake", Section("Tables", rows, None, head), "Iceberg tables; every source is ingested once.")


def _steps(lake: str, findings: Findings, tables: Sequence[TableStatus]) -> list[Step]:
    steps = []
    if findings.errors or findings.warnings:
        text = "The sources had damage when they were ingested. See where, then verify and repair the sources."
        steps.append(Step(text, command("query", "SELECT code, path, message FROM findings", lake)))
    if any(one.small > SMALL for one in tables):
        small = sum(one.small for one in tables)
        steps.append(
            Step(
                f"{counted(small, 'small data file')}: join them into few large ones",
                command("lake", lake, "--compact"),
            )
        )
    question = "SELECT topic, count(*) FROM records GROUP BY topic"
    return [*steps, Step("Ask questions in SQL.", command("query", question, lake))]


def _lines(formats: Mapping[str, tuple[int, int]]) -> list[FormatLine]:
    from rawlog import registry

    titles = registry.formats()
    lines = [
        FormatLine(name, titles[name].title if name in titles else "not recognised", number, size)
        for name, (number, size) in formats.items()
    ]
    return sorted(lines, key=lambda one: -one.size)
