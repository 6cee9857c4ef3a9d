"""Verify: every file checked alone, the files of each store together, then the tree as a whole; and, if asked, replicas elsewhere.

A file is read once, large ones in splits. What checks of several files need to know of it is made by the same pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from rawlog import registry
from rawlog.model.finding import Findings
from rawlog.model.format import File, Replicas
from rawlog.model.job import (
    Job,
    Outcome,
    Split,
    SplitResult,
    Stage,
    packed,
)
from rawlog.model.store import Panel, Store, joined, unread_size
from rawlog.reading.inspect import (
    FileCheck,
    RuleChoice,
    check_file,
    inspect_group,
    inspect_replicas,
    inspect_tree,
    near,
)
from rawlog.reading.tree import Tree, lasting
from rawlog.verbs.diff import check_chosen, replicas_of, rules_for

#: Small files are put into one split, up to so many bytes and files: starting one costs more than reading them.
SMALLEST, LARGEST = 1 << 20, 32 << 20
SPLIT_FILES = 64
#: So many splits at least, if there is enough to do, so that every thread or task finds some.
SPLITS = 16
#: Files from this size on are checked in splits, where their format can.
CUT = 64 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes of a file to check, and the files next to it that the pass looks into."""

    file: File
    near: tuple[File, ...] = ()
    start: int | None = None
    stop: int | None = None

    @property
    def size(self) -> int:
        return (self.file.size if self.stop is None else self.stop) - (self.start or 0)


@dataclass(frozen=True, slots=True)
class VerifySplit:
    """What one split checks: spans of files; stores; a pair of replicas; or the tree."""

    spans: tuple[Span, ...] = ()
    groups: tuple[Store, ...] = ()
    replicas: Replicas | None = None
    tree: Store | None = None


@dataclass(frozen=True, slots=True)
class Found(SplitResult):
    """The result of one split."""

    checked: tuple[FileCheck, ...] = ()
    #: What checks over several files gave.
    findings: Findings = field(default_factory=Findings)
    panels: tuple[Panel, ...] = ()


@dataclass(frozen=True, slots=True)
class Verified(Outcome):
    """All findings, in the order of the tree's files; then those on groups of files, on replicas, and on all of them."""

    findings: Findings


@dataclass(slots=True)
class _Progress:
    """What the driver knows between rounds."""

    tree: Tree
    planned: list[VerifySplit] = field(default_factory=list)
    whole: dict[str, FileCheck] = field(default_factory=dict)
    done: int = 0
    is_compared: bool = False
    #: What checks over several files gave.
    together: Findings = field(default_factory=Findings)


class Verify(Job[Found, Verified]):
    """Check everything in a tree. Damage is a finding, never an error."""

    #: Whether families are asked what they show of each store.
    with_panels = False

    def __init__(self, chosen: RuleChoice | None = None, against: Tree | None = None) -> None:
        """`chosen` says which rules to run; OptionError if it names one that does not exist. `against` has replicas to compare with."""
        self.chosen = check_chosen(chosen or RuleChoice())
        self.against = against
        self._now: _Progress | None = None

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each large span of a file; several small ones are in one split."""
        self._now = _Progress(tree)
        with lasting():
            spans = [span for file in tree for span in _spans(file, tree.group_of(file))]
            return self._splits([VerifySplit(spans=run) for run in _packed(spans, lambda span: span.size)])

    def _splits(self, found: Iterable[VerifySplit]) -> list[Split]:
        assert self._now is not None
        first = len(self._now.planned)
        self._now.planned += found
        return [Split(first + at, _weight(one), one) for at, one in enumerate(self._now.planned[first:])]

    def work(self, split: Split, stage: Stage) -> Found:
        """The findings on the split's files, or on files together."""
        own: VerifySplit = split.content
        checked: list[FileCheck] = []
        for span in own.spans:
            before = [span.start or 0]

            def seen(frames: Any, before: list[int] = before) -> None:
                stage.advance(frames.reached_in_file - before[0], len(frames))
                before[0] = frames.reached_in_file

            store = Store((span.file, *span.near))
            checked.append(self._check(span, store, seen))
        panels: list[Panel] | None = [] if self.with_panels else None
        found = Findings()
        for group in own.groups:
            found.add(inspect_group(group, self.chosen, panels))
        if own.replicas is not None:
            found.add(inspect_replicas(own.replicas, rules_for(own.replicas), self.chosen))
        if own.tree is not None:
            found.add(inspect_tree(Tree((), own.tree.files), self.chosen, own.tree.summaries))
        if not own.spans:
            stage.advance(split.size)
        return Found(split.number, tuple(checked), found, tuple(panels or ()))

    def _check(self, span: Span, store: Store, seen: Callable[[Any], None]) -> FileCheck:
        return check_file(span.file, self.chosen, seen, store=store, start=span.start, stop=span.stop)

    def follow(self, done: Sequence[Found]) -> list[Split]:
        """First files whose splits do not fit together, each in one split; then the checks over several files."""
        now = self._now
        assert now is not None
        again = self._take(done[now.done :])
        now.done = len(done)
        if again:
            nearby = {file.path: near(file, now.tree.group_of(file)) for file in again}
            return self._splits([VerifySplit(spans=(Span(file, nearby[file.path]),)) for file in again])
        if now.is_compared:
            return []
        now.is_compared = True
        return self._splits(self._together())

    def _take(self, done: Iterable[Found]) -> list[File]:
        """Put the splits of each file together; the files that must be checked in one."""
        now = self._now
        assert now is not None
        fresh: dict[str, list[FileCheck]] = {}
        for one in done:
            now.together.add(one.findings)
            for checked in one.checked:
                fresh.setdefault(checked.file.path, []).append(checked)
        again = []
        for path, parts in fresh.items():
            first = parts[0]
            if all(first.merge(part, self.chosen) for part in parts[1:]):
                now.whole[path] = first
            else:
                again.append(first.file)
        return again

    def _together(self) -> list[VerifySplit]:
        now = self._now
        assert now is not None
        summaries = {path: one.summary for path, one in now.whole.items() if one.summary is not None}
        stores = [group.with_summaries(summaries) for group in (*now.tree.groups, *self._single(now.tree))]
        splits = [VerifySplit(groups=groups) for groups in _packed(stores, unread_size)]
        if self.against is not None:
            splits += [VerifySplit(replicas=one) for one in replicas_of(now.tree, self.against)]
        if len(now.tree):
            splits.append(VerifySplit(tree=joined(now.tree.files, stores)))
        return splits

    def _single(self, tree: Tree) -> list[Store]:
        """The files that are stores of their own, if they are to be accounted for: all other checks of them are done."""
        if not self.chosen.asks_completeness:
            return []
        names = {one.name for one in registry.families() if one.is_single}
        return [tree.group_of(file) for file in tree if file.place.group is None and file.system in names]

    def commit(self, done: Sequence[Found]) -> Verified:
        """Put the findings in order."""
        result = Findings()
        if self._now is not None:
            for file in self._now.tree:
                if (one := self._now.whole.get(file.path)) is not None:
                    result.add(one.finish(self.chosen))
            together = self._now.together
            result.add(together)
            result.startups = [one.with_predictions(together.predictions) for one in together.startups]
        return Verified(result)

    def __getstate__(self) -> dict[str, object]:
        # What is known between rounds stays on the driver, and so do the trees: splits name their files.
        return {"chosen": self.chosen, "_now": None, "against": None}


def _spans(file: File, store: Store) -> list[Span]:
    """A file to be checked, in splits if it is large and its format knows where to cut it without reading it."""
    nearby = near(file, store)
    format = registry.formats().get(str(file.format))
    if (
        format is None
        or not format.can("summary")
        or not format.can("cuts")
        or file.size < CUT * 3 // 2
        or file.problem
    ):
        return [Span(file, nearby)]
    edges = [None, *format.codec.cuts(file, store, CUT), None]
    return [Span(file, nearby, start, stop) for start, stop in pairwise(edges)]


def _weight(split: VerifySplit) -> int:
    both = () if split.replicas is None else (*split.replicas.a, *split.replicas.b)
    return sum(span.size for span in split.spans) + sum(map(unread_size, split.groups)) + _size(both)


def _size(files: Sequence[File]) -> int:
    return sum(file.size for file in files)


def _packed(items: Sequence[T], size_of: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Runs of items, in order, each large enough for a split."""
    target = min(max(sum(map(size_of, items)) // SPLITS, SMALLEST), LARGEST)
    return packed(items, size_of, target, SPLIT_FILES)
