"""Report: everything at some paths in one pass, verified and measured, as one overview for a person who must decide.

It is `verify` with more consumers: the same splits, and in each of them the records are profiled from the windows that the rules see. Small
mergeable profiles come back, and the driver adds them up. Groups, transactions and what only one system shows are asked for in tasks, too.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog import registry
from rawlog.model.errors import RawlogError
from rawlog.model.finding import UNKNOWN, Finding, Findings, Rule, Severity, grouped
from rawlog.model.format import File
from rawlog.model.groups import Group
from rawlog.model.job import Split, Stage
from rawlog.model.profile import Profile, merged
from rawlog.model.store import Panel, Store
from rawlog.model.text import counted
from rawlog.model.transactions import Transactions
from rawlog.pages.report import FormatLine, Overview, System, Topic
from rawlog.pages.results import Cause, Step
from rawlog.reading.inspect import FileCheck, RuleChoice, check_file, unreadable
from rawlog.reading.parts import choose, copies
from rawlog.reading.profile import FileProfile, is_profiled
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.verbs.diff import all_rules
from rawlog.verbs.verify import Found, Span, Verified, Verify, VerifySplit

# ----------------------------------------------------------------------------------------------------------------------
# Advice: findings grouped by cause, each with what it means and the commands that help; and what to do next.


#: So many places of one cause are listed; all are counted.
PLACES = 25
ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def causes(findings: Iterable[Finding], roots: Sequence[str]) -> list[Cause]:
    """Findings of one rule are one cause: the worst first, then the most frequent, and last those that follow from others."""
    findings = list(findings)
    rules = all_rules({finding.code.partition(".")[0] for finding in findings})
    about = {one.code: one.about for one in rules}
    origins = _origins(findings, rules)
    rewrites = {family.name: family.store_class.rewrites for family in registry.families()}
    unrepaired = {code for verbs in rewrites.values() for rewrite in verbs.values() for code in rewrite.unrepaired}
    repairing = {name for name, verbs in rewrites.items() if "repair" in verbs}
    grouped: dict[str, list[Finding]] = {}
    for one in findings:
        grouped.setdefault(one.code, []).append(one)
    made = []
    for code, found in grouped.items():
        worst = min((one.severity for one in found), key=lambda one: ORDER[one])
        commands = _commands(found)
        is_repaired = code.split(".")[0] in repairing and code not in unrepaired and worst is not Severity.INFO
        if is_repaired:
            commands.append(Step("See what a repair keeps and drops", _repair(_root(found, roots))))
        files = len({one.path for one in found})
        shown = (about.get(code, ""), len(found), files, tuple(found[:PLACES]), tuple(commands), is_repaired)
        made.append(Cause(code, worst, *shown, origins.get(code, "")))
    return sorted(made, key=lambda one: (bool(one.follows), ORDER[one.severity], -one.count, one.code))


def _origins(findings: Sequence[Finding], rules: Sequence[Rule[Any]]) -> dict[str, str]:
    """The rules whose findings all follow from those of another, with that one."""
    groups = grouped(findings, rules)
    found = {one.first.code: group.first.code for group in groups for one in group.following}
    for group in groups:
        found.pop(group.first.code, None)
    return found


def _commands(found: Sequence[Finding]) -> list[Step]:
    """How to look at the first place of a cause."""
    able = {name for name, one in registry.formats().items() if one.can("explain")}
    for one in found:
        if one.path is not None and one.position is not None and one.format in able:
            return [Step("Look at the bytes", command("explain", one.path, "--at", str(one.position)))]
    return []


def next_steps(
    findings: Findings,
    found: Sequence[Cause],
    tree: Tree,
    groups: Sequence[Group] = (),
    transactions: Sequence[Transactions] = (),
) -> list[Step]:
    """What to do next, the most urgent first."""
    roots = tree.roots
    serious = [one for one in found if one.severity is not Severity.INFO]
    steps: list[Step] = []
    if any(one.code == unreadable.code for one in serious):
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
    if any(one.is_repairable for one in serious):
        text = "See what a repair would keep, rebuild and drop. The source is never changed."
        repairable = [one for one in serious if one.is_repairable]
        for root in dict.fromkeys(_root(one.places, roots) for one in repairable):
            steps.append(Step(text, _repair(root)))
    elif serious:
        steps.append(
            Step(
                "Read what the findings mean below, and compare with another copy of the data if there is one.",
                command("verify", *roots),
            )
        )
    hanging = [one for every in transactions for one in every.open if one.is_hanging]
    if hanging:
        text = f"{counted(len(hanging), 'transaction')} hang: consumers that read committed records wait for them"
        steps.append(Step(text, command("transactions", *roots)))
    late = [group for group in groups if (group.lag or 0) > 0]
    if late:
        worst = max(late, key=lambda one: one.lag or 0)
        text = (
            f"{counted(len(late), 'consumer group')} still have records to read, {worst.name} the most: {worst.lag:,}"
        )
        steps.append(Step(text, command("groups", *roots)))
    unknown = sum(one.code == UNKNOWN for one in findings)
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


def _repair(root: str) -> str:
    return command("repair", root, "repaired", "--dry-run")


def _root(found: Sequence[Finding], roots: Sequence[str]) -> str:
    """The path that was asked for and has the first of these findings in it."""
    path = next((one.path for one in found if one.path is not None), roots[0])
    return max((root for root in roots if path.startswith(root.rstrip("/"))), key=len, default=roots[0])


@dataclass(frozen=True, slots=True)
class StateSplit(VerifySplit):
    """All files, for what families know of consumer groups or transactions: one of both, by name."""

    asked: str = ""
    files: tuple[File, ...] = ()


@dataclass(frozen=True, slots=True)
class Known(Found):
    """The result of a StateSplit."""

    groups: tuple[Group, ...] = ()
    transactions: tuple[Transactions, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SurveyResult(Verified):
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
        counted = choose(tree, Selection(), self._notes.append)
        self.unread = frozenset(file.path for file in counted.unread)
        return super().plan(tree)

    def _check(self, span: Span, store: Store, seen: Callable[[Any], None]) -> FileCheck:
        file, chosen = span.file, self.chosen
        profile = None
        if is_profiled(file) and file.path not in self.unread:
            profile = FileProfile(file, chosen.max_decompressed, chosen.max_headers)
        place: dict[str, Any] = {"store": store, "start": span.start, "stop": span.stop}
        return check_file(file, chosen, seen, **place, profile=profile)

    def _together(self) -> list[VerifySplit]:
        assert self._now is not None
        files = tuple(file for file in self._now.tree if file.path not in self.unread)
        asked = [name for name in ("groups", "transactions") if any(getattr(one, name) for one in registry.families())]
        return [*super()._together(), *(StateSplit(asked=name, files=files) for name in asked)]

    def work(self, split: Split, stage: Stage) -> Found:
        """The findings and profiles of the split, or what is known of groups or transactions."""
        own = split.content
        if not isinstance(own, StateSplit):
            return super().work(split, stage)
        found: list[Any] = []
        notes: list[str] = []
        for family in registry.families():
            if (ask := getattr(family, own.asked)) is None:
                continue
            try:
                made = ask(own.files, "skip")
                found += made if own.asked == "groups" else [made]
            except RawlogError as error:
                notes.append(f"{own.asked} of {family.title}: {str(error).splitlines()[0]}")
        known: dict[str, Any] = {own.asked: tuple(found)}
        return Known(split.number, **known, notes=tuple(notes))

    def commit(self, done: Sequence[Found]) -> SurveyResult:
        """Put everything together."""
        assert self._now is not None
        tree, whole = self._now.tree, self._now.whole
        profiles = _Profiles()
        for file in tree:
            if (one := whole.get(file.path)) is not None and one.profile is not None:
                profiles.add(file, one.profile)
        findings = super().commit(done).findings
        known = [one for one in done if isinstance(one, Known)]
        groups = sorted((one for some in known for one in some.groups), key=lambda one: (one.system, one.name))
        transactions = [one for some in known for one in some.transactions if one]
        notes = [*self._notes, *(text for one in known for text in one.notes)]
        notes += [text for one in transactions for text in one.notes]
        panels = _panels(done)
        found = causes(findings, tree.roots)
        overview = Overview(
            roots=tree.roots,
            files=len(tree),
            size=tree.size,
            findings=findings,
            causes=found,
            steps=next_steps(findings, found, tree, groups, transactions),
            systems=_systems(tree, profiles, findings),
            panels=panels,
            groups=groups,
            transactions=transactions,
            notes=notes,
            formats=_formats(tree),
            listing=command("ls", *tree.roots, "--files"),
        )
        return SurveyResult(findings, overview)

    def __getstate__(self) -> dict[str, object]:
        return {**super().__getstate__(), "unread": self.unread, "_notes": []}


@dataclass(slots=True)
class _Profiles:
    """Profiles by system, topic and partition; and of frames that belong to no one partition, by system."""

    parts: dict[str, dict[str, dict[int | None, Profile]]] = field(default_factory=dict)
    whole: dict[str, Profile] = field(default_factory=dict)

    def add(self, file: File, found: FileProfile) -> None:
        """Add a file; those of a partition come in their order."""
        system = str(file.system)
        for (topic, partition), profile in found.finish().items():
            topics = self.parts.setdefault(system, {}).setdefault(topic, {})
            if partition in topics:
                topics[partition].merge(profile)
            else:
                topics[partition] = profile
        self.whole.setdefault(system, Profile()).merge(found.whole, in_order=False)


def _systems(tree: Tree, profiles: _Profiles, findings: Findings) -> list[System]:
    titles = {family.name: family.title for family in registry.families()}
    made = []
    for name, title in titles.items():
        files = [file for file in tree if file.system == name]
        if not files:
            continue
        topics = [
            Topic(
                topic,
                dict(sorted(parts.items(), key=lambda one: -1 if one[0] is None else one[0])),
                merged(parts.values()),
            )
            for topic, parts in sorted(profiles.parts.get(name, {}).items())
        ]
        sizes: dict[str, int] = {}
        for file in files:
            if file.place.topic is not None:
                sizes[file.place.topic] = sizes.get(file.place.topic, 0) + file.size
        for topic in topics:
            topic.size = sizes.get(topic.name, 0)
        total = merged(topic.profile for topic in topics)
        total.merge(profiles.whole.get(name, Profile()), in_order=False)
        codes = [one for one in findings if one.code.startswith(f"{name}.")]
        errors = sum(one.severity == "error" for one in codes)
        warnings = sum(one.severity == "warning" for one in codes)
        size = sum(file.size for file in files)
        made.append(System(name, title, len(files), size, topics, total, errors, warnings))
    return made


def _panels(done: Sequence[Found]) -> list[Panel]:
    """What families show, once: disks of one cluster have copies of one metadata log."""
    seen: dict[tuple[str, str, tuple[Any, ...]], Panel] = {}
    for one in done:
        for panel in one.panels:
            if panel.section.rows:
                rows = tuple(tuple(row) for row in panel.section.rows)
                seen.setdefault((panel.system, panel.section.title, rows), panel)
    return list(seen.values())


def _formats(tree: Tree) -> list[FormatLine]:
    found: dict[str | None, list[File]] = {}
    for file in tree:
        found.setdefault(file.format, []).append(file)
    titles = registry.formats()
    lines = [
        FormatLine(
            name or "unknown", titles[name].title if name else "not recognised", len(files), sum(f.size for f in files)
        )
        for name, files in found.items()
    ]
    return sorted(lines, key=lambda one: -one.size)
