"""Verify: every file looked at alone, every group of files together, then the tree as a whole; and, if asked, replicas elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rawlog.findings import Finding, Findings
from rawlog.format import File, Replicas
from rawlog.inspection import Chosen, inspect_file, inspect_group, inspect_replicas, inspect_tree
from rawlog.jobs.job import Done, Job, Outcome, Split, Stage
from rawlog.replicas import replicas_of, rules_for
from rawlog.tree import Tree

#: Small files share a split, up to so many bytes and files: starting one costs more than reading them.
SMALLEST, LARGEST = 1 << 20, 32 << 20
SPLIT_FILES = 64
#: So many splits at least, if there is enough to do, so that every thread or task finds some.
SPLITS = 16

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look:
    """What one split looks at: files, each alone; groups of files, the files of each against one another; or a pair of replicas."""

    files: tuple[File, ...] = ()
    groups: tuple[tuple[File, ...], ...] = ()
    replicas: Replicas | None = None


@dataclass(frozen=True, slots=True)
class Checked(Done):
    """The findings of one split."""

    findings: tuple[Finding, ...]
    files: int
    frames: int


@dataclass(frozen=True, slots=True)
class Verified(Outcome):
    """All findings, in the order of the tree's files; then those on groups of files, on replicas, and on all of them."""

    findings: Findings


class Verify(Job[Checked, Verified]):
    """Check everything in a tree. Damage is a finding, never an error."""

    def __init__(self, chosen: Chosen | None = None, against: Tree | None = None) -> None:
        """`chosen` says which rules to run; OptionError if it names one that there is not. `against` holds replicas to compare with."""
        self.chosen = (chosen or Chosen()).check()
        self.against = against
        self._tree: Tree | None = None

    def plan(self, tree: Tree) -> list[Split]:
        """A split a file or a group; small ones share one."""
        self._tree = tree
        looks = [Look(files=files) for files in packed(tree.files, lambda file: file.size)]
        looks += [Look(groups=groups) for groups in packed([tuple(group) for group in tree.groups], _size)]
        if self.against is not None:
            looks += [Look(replicas=one) for one in replicas_of(tree, self.against)]
        return [Split(number, _weight(look), look) for number, look in enumerate(looks)]

    def work(self, split: Split, stage: Stage) -> Checked:
        """The findings on the split's files and groups."""
        look: Look = split.task
        items: list[Finding] = []
        frames = 0
        for file in look.files:
            found = inspect_file(file, self.chosen, lambda window: stage.advance(window.reached, len(window)))
            items += found.items
            frames += found.frames
        for group in look.groups:
            items += inspect_group(group, self.chosen).items
            stage.advance(_size(group))
        if look.replicas is not None:
            items += inspect_replicas(look.replicas, rules_for(look.replicas), self.chosen).items
            stage.advance(_weight(look))
        return Checked(split.number, tuple(items), len(look.files), frames)

    def commit(self, done: Sequence[Checked]) -> Verified:
        """Put the findings in order and add what the tree as a whole shows."""
        result = Findings()
        for one in done:
            result.items += one.findings
            result.files += one.files
            result.frames += one.frames
        if self._tree is not None:
            result.items += inspect_tree(self._tree, self.chosen).items
        return Verified(result)

    def __getstate__(self) -> dict[str, object]:
        # The trees stay where they were planned: only `commit` asks for the one, and splits name the files of the other.
        return {"chosen": self.chosen, "_tree": None, "against": None}


def _weight(look: Look) -> int:
    both = () if look.replicas is None else (*look.replicas.a, *look.replicas.b)
    return _size(look.files) + sum(map(_size, look.groups)) + _size(both)


def _size(files: Sequence[File]) -> int:
    return sum(file.size for file in files)


def packed(items: Sequence[T], size_of: Callable[[T], int]) -> list[tuple[T, ...]]:
    """Runs of items, in order, that are worth a split each."""
    target = min(max(sum(map(size_of, items)) // SPLITS, SMALLEST), LARGEST)
    runs: list[tuple[T, ...]] = []
    run: list[T] = []
    size = 0
    for item in items:
        if run and (size + size_of(item) > target or len(run) == SPLIT_FILES):
            runs.append(tuple(run))
            run, size = [], 0
        run.append(item)
        size += size_of(item)
    return [*runs, tuple(run)] if run else runs
