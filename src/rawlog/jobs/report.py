"""Report: everything at some paths in one pass, verified and measured, as one overview for a person who must decide.

It is `verify` with more consumers: the same splits, and in each of them the records are profiled from the windows that the rules see. Small
mergeable profiles come back, and the driver adds them up. Groups, transactions and what only one system shows are asked for in tasks, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog import registry
from rawlog.core.errors import RawlogError
from rawlog.core.findings import Findings
from rawlog.core.format import File
from rawlog.core.groups import Group
from rawlog.core.panel import Panel
from rawlog.core.profile import Profile, merged
from rawlog.core.store import Store
from rawlog.core.transactions import Transactions
from rawlog.jobs.advice import causes, command, next_steps
from rawlog.jobs.job import Split, Stage
from rawlog.jobs.verify import Found, Span, Verified, Verify, VerifySplit
from rawlog.pages.overview import FormatLine, Overview, System, Topic
from rawlog.reading.inspection import Checked, Chosen, check_file
from rawlog.reading.profile import FileProfile, is_profiled
from rawlog.reading.replicas import choose
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree


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
class Surveyed(Verified):
    """The result of the job."""

    overview: Overview


class Survey(Verify):
    """Verify and measure everything in a tree."""

    with_panels = True

    def __init__(self, chosen: Chosen | None = None) -> None:
        super().__init__(chosen)
        #: Replicas that are verified, and whose records do not count again.
        self.unread: frozenset[str] = frozenset()
        self._notes: list[str] = []

    def plan(self, tree: Tree) -> list[Split]:
        """The splits of `verify`. Of replicas the best is measured."""
        counted = choose(tree, Selection(), self._notes.append)
        self.unread = frozenset(file.path for file in counted.unread)
        return super().plan(tree)

    def _check(self, span: Span, store: Store, seen: Callable[[Any], None]) -> Checked:
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

    def commit(self, done: Sequence[Found]) -> Surveyed:
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
        return Surveyed(findings, overview)

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
