"""`report`: one page on what is here, whether it is healthy, and what to do."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from rawlog import registry
from rawlog.engines.choice import choose
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.finding import UNKNOWN, Finding, Findings, Rule, Severity, group_findings
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS, File
from rawlog.model.groups import Group, Transactions
from rawlog.model.job import (
    Job,
    Split,
    SplitResult,
    Stage,
    packed,
)
from rawlog.model.store import Panel, Store
from rawlog.model.table import (
    FILES,
    FINDINGS,
    RECORDS,
    Table,
)
from rawlog.model.text import counted, plain_time, size_text
from rawlog.model.verb import Option, Section, verb
from rawlog.pages.results import Cause, Step
from rawlog.reading.options import OUTPUT, Format, Limits, Note, Path, Paths, listed
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.verbs.options import Verifying, open_sources, running_of, settings_of
from rawlog.verbs.verify import (
    FileSpan,
    Verify,
    VerifyResult,
    VerifySplit,
    VerifySplitResult,
    all_rules,
    repair_command,
    repair_commands,
    repairable,
)

if TYPE_CHECKING:
    from rawlog.lakes.upkeep import TableStatus
    from rawlog.pages.report import FormatLine, Overview, System
    from rawlog.reading.inspect import FileCheck, RuleChoice
    from rawlog.reading.profile import FileProfile, Name, Profile


@verb(
    group="look",
    examples=(
        "rawlog report /var/kafka-logs -o report.html",
        "rawlog report disk1/ disk2/ -o cluster.html",
        "rawlog report lake -o lake.html",
        "rawlog report /var/kafka-logs -o report.html --json",
    ),
    more="Exit codes: 0 no errors and no warnings; 1 errors or warnings; 2 wrong usage; 3 something could not be read or written.",
    doing="reading",
)
def report(
    paths: Annotated[Paths, "PATH"],
    output: Annotated[
        Path | None,
        Option(
            "The page to write; replaced if it exists.",
            "-o",
            "--to",
            old=("--output",),
            is_required=True,
            metavar="OUT",
            section=OUTPUT,
        ),
    ] = None,
    *,
    format: Format = None,
    note: Note | None = None,
    **options: Unpack[Verifying],
) -> Overview:
    """Write one page: what is here, is it healthy, what to do.

    For every system and topic it has size, records, throughput over time, message sizes, codecs, keys, gaps, producers, transactions,
    consumer lag, and findings by cause with the commands that help. The page is one file, opens without a network and is safe to pass on:
    it shows keys, topics and paths, no values. Nothing at `paths` is changed. The report of a lake measures its records
    and shows the findings of the runs that ingested them.

    Returns an Overview; without `output` no page is written. Damage is a finding and never raises. OptionError if `output` is in a source,
    AccessError for a path that does not exist, UnknownFormatError if nothing is of a known format.

    >>> import rawlog
    >>> verdict = rawlog.report("samples/kafka", "out/report.html").verdict
    """
    from rawlog.io.output import refuse_nested, writing
    from rawlog.lakes.names import is_lake
    from rawlog.reading.inspect import RuleChoice

    running = running_of(options, Limits.__annotations__)
    most, headers = options.get("max_decompressed", MAX_DECOMPRESSED), options.get("max_headers", MAX_HEADERS)
    lake = next((path for path in listed(paths) if is_lake(path)), None)
    if lake is not None and len(listed(paths)) > 1:
        raise OptionError(f"{lake}: a lake has a report of its own; leave out the other paths")
    if lake is None:
        engine, [tree] = open_sources([paths], running, format=format, note=note)
    else:
        tree = _records_of(lake)
        engine = choose(tree.size, **settings_of(running))
    if output is not None:
        refuse_nested(os.fspath(output), tree.sources)
    job: Any = Survey(RuleChoice(max_decompressed=most, max_headers=headers))
    if lake is not None:
        job = LakeSurvey(lake)
    overview = engine.run(job, tree, running.get("progress")).overview
    if output is not None:
        with writing(os.fspath(output), overwrite=True, sources=tree.sources) as out:
            out.write(overview.to_html().encode())
    return overview  # type: ignore[no-any-return]


def _records_of(lake: str) -> Tree:
    """The data files of the records of a lake; none, if it has no records."""
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.names import lake_name
    from rawlog.lakes.sources import lake_tree

    path = os.path.abspath(lake)
    return lake_tree(path, RECORDS) if lake_name(RECORDS) in Lake(path).tables() else Tree((path,), ())


# The job --------------------------------------------------------------------------------------------------------------------


# ----------------------------------------------------------------------------------------------------------------------
# Advice: findings grouped by cause, each with what it means and the commands that help; and what to do next.


#: So many places of one cause are listed; all are counted.
PLACES = 25
ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def causes(findings: Iterable[Finding], roots: Sequence[str]) -> list[Cause]:
    """Findings of one rule are one cause: the worst first, then the most frequent, and last those that follow from others."""
    findings = list(findings)
    rules = all_rules({finding.code.partition(".")[0] for finding in findings})
    about = {rule.code: rule.about for rule in rules}
    origins = _origins(findings, rules)
    repaired = repairable({finding.code for finding in findings})
    grouped: dict[str, list[Finding]] = {}
    for finding in findings:
        grouped.setdefault(finding.code, []).append(finding)
    results = []
    for code, items in grouped.items():
        worst = min((finding.severity for finding in items), key=lambda severity: ORDER[severity])
        commands = _commands(items)
        is_repaired = code in repaired and worst is not Severity.INFO
        if is_repaired:
            commands.append(Step("See what a repair keeps and drops", repair_command(items, roots)))
        files = len({finding.path for finding in items})
        shown = (about.get(code, ""), len(items), files, tuple(items[:PLACES]), tuple(commands), is_repaired)
        results.append(Cause(code, worst, *shown, origins.get(code, "")))
    return sorted(results, key=lambda cause: (bool(cause.follows), ORDER[cause.severity], -cause.count, cause.code))


def _origins(findings: Sequence[Finding], rules: Sequence[Rule[Any]]) -> dict[str, str]:
    """The rules whose findings all follow from another rule's, each with the code of that rule."""
    groups = group_findings(findings, rules)
    origins = {following.first.code: group.first.code for group in groups for following in group.following}
    for group in groups:
        origins.pop(group.first.code, None)
    return origins


def _commands(findings: Sequence[Finding]) -> list[Step]:
    """How to look at the first place of a cause."""
    able = {name for name, format in registry.formats().items() if format.can("explain")}
    for finding in findings:
        if finding.path is not None and finding.position is not None and finding.format in able:
            return [Step("Look at the bytes", command("explain", finding.path, "--at", str(finding.position)))]
    return []


def next_steps(
    findings: Findings,
    causes: Sequence[Cause],
    tree: Tree,
    groups: Sequence[Group] = (),
    transactions: Sequence[Transactions] = (),
) -> list[Step]:
    """What to do next, the most urgent first."""
    from rawlog.reading.inspect import unreadable
    from rawlog.reading.parts import copies

    roots = tree.roots
    serious = [cause for cause in causes if cause.severity is not Severity.INFO]
    steps: list[Step] = []
    if any(cause.code == unreadable.code for cause in serious):
        steps.append(
            Step(
                "Some files cannot be read. Copy them with sufficient rights and run the report again.",
                command("ls", *roots),
            )
        )
    several = copies(tree.groups)
    if several and serious:
        text = f"{counted(len(several), 'partition or store', 'partitions or stores')} have replicas here: put the best of them together"
        steps.append(Step(text, command("rescue", *roots, "--plan")))
    if any(cause.is_repairable for cause in serious):
        text = "See what a repair would keep, rebuild and drop. The source is never changed."
        steps += [Step(text, line) for line in repair_commands(findings, roots)]
    elif serious:
        steps.append(
            Step(
                "Read what the findings mean below, and compare with another copy of the data if there is one.",
                command("verify", *roots),
            )
        )
    hanging = [transaction for system in transactions for transaction in system.open if transaction.is_hanging]
    if hanging:
        text = f"{counted(len(hanging), 'transaction')} hang: consumers that read committed records wait for them"
        steps.append(Step(text, command("transactions", *roots)))
    late = [group for group in groups if (group.lag or 0) > 0]
    if late:
        worst = max(late, key=lambda group: group.lag or 0)
        text = (
            f"{counted(len(late), 'consumer group')} still have records to read, {worst.name} the most: {worst.lag:,}"
        )
        steps.append(Step(text, command("groups", *roots)))
    unknown = sum(finding.code == UNKNOWN for finding in findings)
    if unknown:
        steps.append(
            Step(f"{counted(unknown, 'file')} of no known format: nothing in them was checked", command("ls", *roots))
        )
    if not serious and any(file.format is not None for file in tree.files):
        steps.append(
            Step("Nothing needs repair. Look at the records, or ask questions in SQL.", command("head", *roots))
        )
    return steps


def command(verb: str, *arguments: str) -> str:
    """A command line to copy."""
    return shlex.join(["rawlog", verb, *arguments])


@dataclass(frozen=True, slots=True)
class StateSplit(VerifySplit):
    """All files, to read consumer groups or transactions of: `kind` is the name of a family's ability."""

    kind: str = ""
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True)
class StateSplitResult(VerifySplitResult):
    """The result of a StateSplit."""

    groups: tuple[Group, ...] = ()
    transactions: tuple[Transactions, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OverviewResult(VerifyResult):
    """The result of the job."""

    overview: Overview


class Survey(Verify):
    """Verify and measure everything in a tree."""

    with_panels = True

    def __init__(self, chosen: RuleChoice | None = None) -> None:
        super().__init__(chosen)
        #: Replicas that are verified, and whose records do not count again.
        self.unread: frozenset[str] = frozenset()
        self._notes: list[str] = []

    def plan(self, tree: Tree) -> list[Split]:
        """The splits of `verify`. Of replicas the best is measured."""
        from rawlog.reading.parts import choose_replicas

        counted = choose_replicas(tree, Selection(), self._notes.append)
        self.unread = frozenset(file.path for file in counted.unread)
        return super().plan(tree)

    def _check(self, span: FileSpan, store: Store, seen: Callable[[Any], None]) -> FileCheck:
        from rawlog.reading.inspect import check_file
        from rawlog.reading.profile import FileProfile, is_profiled

        file, chosen = span.file, self.chosen
        profile = None
        if is_profiled(file) and file.path not in self.unread:
            format = registry.formats()[str(file.format)]
            floor = format.codec.floor(file, store) if format.can("floor") else None
            profile = FileProfile(file, chosen.max_decompressed, chosen.max_headers, floor)
        place: dict[str, Any] = {"store": store, "start": span.start, "stop": span.stop}
        return check_file(file, chosen, seen, **place, profile=profile)

    def _joint_splits(self) -> list[VerifySplit]:
        assert self._now is not None
        files = tuple(file for file in self._now.tree if file.path not in self.unread)
        kinds = [
            name for name in ("groups", "transactions") if any(getattr(family, name) for family in registry.families())
        ]
        return [*super()._joint_splits(), *(StateSplit(kind=name, files=files) for name in kinds)]

    def work(self, split: Split, stage: Stage) -> VerifySplitResult:
        """The findings and profiles of the split, or what is known of groups or transactions."""
        content = split.content
        if not isinstance(content, StateSplit):
            return super().work(split, stage)
        results: list[Any] = []
        notes: list[str] = []
        for family in registry.families():
            if (ask := getattr(family, content.kind)) is None:
                continue
            try:
                result = ask(content.files, "skip")
                results += result if content.kind == "groups" else [result]
            except RawlogError as error:
                notes.append(f"{content.kind} of {family.title}: {str(error).splitlines()[0]}")
        fields: dict[str, Any] = {content.kind: tuple(results)}
        return StateSplitResult(split.number, **fields, notes=tuple(notes))

    def commit(self, results: Sequence[VerifySplitResult]) -> OverviewResult:
        """Put everything together."""
        from rawlog.pages.report import Overview

        assert self._now is not None
        tree, whole = self._now.tree, self._now.whole
        profiles = _Profiles()
        for file in tree:
            if (check := whole.get(file.path)) is not None and check.profile is not None:
                profiles.add(file, check.profile)
        findings = super().commit(results).findings
        states = [result for result in results if isinstance(result, StateSplitResult)]
        groups = sorted(
            (group for state in states for group in state.groups), key=lambda group: (group.system, group.name)
        )
        transactions = [system for state in states for system in state.transactions if system]
        notes = [*self._notes, *(text for state in states for text in state.notes)]
        notes += [text for system in transactions for text in system.notes]
        below = sum(check.profile.below for check in whole.values() if check.profile is not None)
        if below:
            notes.append(
                f"{counted(below, 'record')} below the log start: in the files, but not for consumers, and not counted"
            )
        panels = _panels(results)
        grouped = causes(findings, tree.roots)
        overview = Overview(
            roots=tree.roots,
            files=len(tree),
            size=tree.size,
            findings=findings,
            causes=grouped,
            steps=next_steps(findings, grouped, tree, groups, transactions),
            systems=_systems(tree, profiles, findings),
            panels=panels,
            groups=groups,
            transactions=transactions,
            notes=notes,
            formats=_formats(tree),
            listing=command("ls", *tree.roots, "--files"),
        )
        return OverviewResult(findings, overview)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "unread": self.unread, "_notes": []}


@dataclass(slots=True)
class _Profiles:
    """Profiles by system, topic and partition; and of frames that belong to no one partition, by system."""

    parts: dict[str, dict[str, dict[int | None, Profile]]] = field(default_factory=dict)
    whole: dict[str, Profile] = field(default_factory=dict)

    def add(self, file: File, measured: FileProfile) -> None:
        """Add a file; those of a partition come in their order."""
        from rawlog.reading.profile import Profile

        system = str(file.system)
        for (topic, partition), profile in measured.finish().items():
            topics = self.parts.setdefault(system, {}).setdefault(topic, {})
            if partition in topics:
                topics[partition].merge(profile)
            else:
                topics[partition] = profile
        self.whole.setdefault(system, Profile()).merge(measured.whole, in_order=False)


def _systems(tree: Tree, profiles: _Profiles, findings: Findings) -> list[System]:
    from rawlog.pages.report import System, Topic
    from rawlog.reading.profile import Profile, merge_profiles

    titles = {family.name: family.title for family in registry.families()}
    systems = []
    for name, title in titles.items():
        files = [file for file in tree if file.system == name]
        if not files:
            continue
        topics = [
            Topic(
                topic,
                dict(sorted(parts.items(), key=lambda item: -1 if item[0] is None else item[0])),
                merge_profiles(parts.values()),
            )
            for topic, parts in sorted(profiles.parts.get(name, {}).items())
        ]
        sizes: dict[str, int] = {}
        with_records = {file.place.topic for file in files if file.format in registry.formats_with(RECORDS)}
        for file in files:
            if file.place.topic in with_records and file.place.topic is not None:
                sizes[file.place.topic] = sizes.get(file.place.topic, 0) + file.size
        for topic in topics:
            topic.size = sizes.get(topic.name, 0)
        total = merge_profiles(topic.profile for topic in topics)
        total.merge(profiles.whole.get(name, Profile()), in_order=False)
        codes = [finding for finding in findings if finding.code.startswith(f"{name}.")]
        errors = sum(finding.severity == "error" for finding in codes)
        warnings = sum(finding.severity == "warning" for finding in codes)
        size = sum(file.size for file in files)
        systems.append(System(name, title, len(files), size, topics, total, errors, warnings))
    return systems


def _panels(results: Sequence[VerifySplitResult]) -> list[Panel]:
    """What families show, once: disks of one cluster have copies of one metadata log."""
    seen: dict[tuple[str, str, tuple[Any, ...]], Panel] = {}
    for result in results:
        for panel in result.panels:
            if panel.section.rows:
                rows = tuple(tuple(row) for row in panel.section.rows)
                seen.setdefault((panel.system, panel.section.title, rows), panel)
    return list(seen.values())


def _formats(tree: Tree) -> list[FormatLine]:
    from rawlog.pages.report import FormatLine

    by_format: dict[str | None, list[File]] = {}
    for file in tree:
        by_format.setdefault(file.format, []).append(file)
    titles = registry.formats()
    lines = [
        FormatLine(
            name or "unknown", titles[name].title if name else "not recognised", len(files), sum(f.size for f in files)
        )
        for name, files in by_format.items()
    ]
    return sorted(lines, key=lambda line: -line.size)


# A lake -------------------------------------------------------------------------------------------------------------------


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
class LakeSplitResult(SplitResult):
    """The profiles of records; or findings; or files by format; or the paths of the runs."""

    profile: FileProfile | None = None
    findings: tuple[Finding, ...] = ()
    formats: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    paths: tuple[str, ...] = ()


class LakeSurvey(Job[LakeSplitResult, OverviewResult]):
    """Measure the records of a lake."""

    def __init__(self, lake: str) -> None:
        self.lake = lake

    def plan(self, tree: Tree) -> list[Split]:
        """Splits of the data files of `records` (the tree has them), and one for each small table."""
        from rawlog.lakes.lake import Lake
        from rawlog.lakes.names import JOBS, lake_name

        content = [
            LakeSplit(RECORDS.name, tuple(file.path for file in run)) for run in packed(list(tree), _size, SPLIT)
        ]
        lake = Lake(self.lake)
        for table in (FINDINGS, FILES, JOBS):
            content.append(LakeSplit(table.name, tuple(lake.data_files(lake_name(table)))))
        sizes = {file.path: file.size for file in tree}
        return [
            Split(number, sum(sizes.get(path, 0) for path in lake_split.files), lake_split)
            for number, lake_split in enumerate(content)
        ]

    def work(self, split: Split, stage: Stage) -> LakeSplitResult:
        """Read the rows of a split."""
        from rawlog.lakes.names import JOBS
        from rawlog.reading.profile import COLUMNS, FileProfile

        content: LakeSplit = split.content
        if content.table == RECORDS.name:
            profile = FileProfile(File(NO_TOPIC, 0))
            for batch in _batches(content.files, RECORDS, COLUMNS):
                profile.add(batch)
                stage.advance(0, 0, batch.num_rows)
            stage.advance(split.size)
            return LakeSplitResult(split.number, profile=profile.close())
        if content.table == FINDINGS.name:
            rows = (row for batch in _batches(content.files, FINDINGS, FINDINGS.names) for row in batch.to_pylist())
            return LakeSplitResult(split.number, findings=tuple(_finding(row) for row in rows))
        if content.table == FILES.name:
            return LakeSplitResult(split.number, formats=_lake_formats(content.files))
        runs = _batches(content.files, JOBS, ("paths",))
        paths = dict.fromkeys(path for batch in runs for row in batch["paths"].to_pylist() for path in row or ())
        return LakeSplitResult(split.number, paths=tuple(paths))

    def commit(self, results: Sequence[LakeSplitResult]) -> OverviewResult:
        """Put everything together."""
        from rawlog.lakes.lake import Lake
        from rawlog.lakes.upkeep import status
        from rawlog.pages.report import Overview
        from rawlog.reading.profile import Profile

        parts: dict[Name, Profile] = {}
        for result in results:
            for name, profile in (result.profile.parts if result.profile is not None else {}).items():
                parts.setdefault(name, Profile()).merge(profile)
        formats = {name: numbers for result in results for name, numbers in result.formats.items()}
        paths = tuple(path for result in results for path in result.paths)
        findings = Findings([finding for result in results for finding in result.findings])
        findings.files = sum(number for number, _ in formats.values())
        tables = list(status(Lake(self.lake)))
        grouped = causes(findings, paths or (self.lake,))
        overview = Overview(
            roots=(self.lake,),
            files=sum(table.files for table in tables),
            size=sum(table.size for table in tables),
            findings=findings,
            causes=grouped,
            steps=_steps(self.lake, findings, tables),
            systems=[_system(parts, tables, findings)],
            panels=[_tables(tables)],
            formats=_lines(formats),
            listing=command("lake", self.lake),
        )
        return OverviewResult(findings, overview)


def _size(file: File) -> int:
    return file.size


def _batches(files: Sequence[str], table: Table, columns: Sequence[str]) -> Iterable[Any]:
    from rawlog.lakes.parquet import dataset

    if not files:
        return ()
    return dataset(files, table).to_batches(columns=list(columns), batch_size=ROWS)  # type: ignore[no-any-return]


def _finding(row: dict[str, Any]) -> Finding:
    return Finding(**{**row, "severity": Severity(row["severity"])})


def _lake_formats(files: Sequence[str]) -> dict[str, tuple[int, int]]:
    """The number and bytes of the ingested files of each format."""
    numbers: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for batch in _batches(files, FILES, ("format", "size")):
        for name, size in zip(batch["format"].to_pylist(), batch["size"].to_pylist(), strict=True):
            numbers[name or "unknown"] += 1
            sizes[name or "unknown"] += size or 0
    return {name: (numbers[name], sizes[name]) for name in numbers}


def _system(parts: Mapping[Name, Profile], tables: Sequence[TableStatus], findings: Findings) -> System:
    from rawlog.pages.report import System, Topic
    from rawlog.reading.profile import merge_profiles

    by_topic: dict[str, dict[int | None, Profile]] = {}
    for (topic, partition), profile in parts.items():
        by_topic.setdefault(topic, {})[partition] = profile
    topics = [
        Topic(
            topic,
            dict(sorted(profiles.items(), key=lambda item: -1 if item[0] is None else item[0])),
            merge_profiles(profiles.values()),
        )
        for topic, profiles in sorted(by_topic.items())
    ]
    files, size = sum(table.files for table in tables), sum(table.size for table in tables)
    total = merge_profiles(topic.profile for topic in topics)
    return System("lake", "Lake", files, size, topics, total, findings.errors, findings.warnings)


def _tables(tables: Sequence[TableStatus]) -> Panel:
    rows = [
        (
            table.name,
            f"{table.rows:,}",
            f"{table.files:,}",
            size_text(table.size),
            f"{table.snapshots:,}",
            f"{table.sources:,}",
            "" if table.changed is None else plain_time(int(table.changed * 1000) * 1000),
        )
        for table in tables
    ]
    head = ("table", "rows", "data files", "size", "snapshots", "sources", "changed")
    return Panel("lake", Section("Tables", rows, None, head), "Iceberg tables; every source is ingested once.")


def _steps(lake: str, findings: Findings, tables: Sequence[TableStatus]) -> list[Step]:
    steps = []
    if findings.errors or findings.warnings:
        text = "The sources had damage when they were ingested. See where, then verify and repair the sources."
        steps.append(Step(text, command("query", "SELECT code, path, message FROM findings", lake)))
    if any(table.small > SMALL for table in tables):
        small = sum(table.small for table in tables)
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
    from rawlog.pages.report import FormatLine

    titles = registry.formats()
    lines = [
        FormatLine(name, titles[name].title if name in titles else "not recognised", number, size)
        for name, (number, size) in formats.items()
    ]
    return sorted(lines, key=lambda line: -line.size)
