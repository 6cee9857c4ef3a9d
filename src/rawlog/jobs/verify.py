"""Verify: every file looked at whole, a file a split, then the files of a tree against one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rawlog.findings import Finding, Findings
from rawlog.format import File
from rawlog.inspection import Chosen, inspect_file, inspect_tree
from rawlog.jobs.job import Done, Job, Outcome, Split, Stage
from rawlog.tree import Tree

#: Small files share a split, up to so many bytes and files: starting one costs more than reading them.
SMALLEST, LARGEST = 1 << 20, 32 << 20
SPLIT_FILES = 64
#: So many splits at least, if there is enough to do, so that every thread or task finds some.
SPLITS = 16


@dataclass(frozen=True, slots=True)
class Checked(Done):
    """The findings on the files of one split."""

    findings: tuple[Finding, ...]
    files: int
    frames: int


@dataclass(frozen=True, slots=True)
class Verified(Outcome):
    """All findings, in the order of the tree's files; then those on several files together."""

    findings: Findings


class Verify(Job[Checked, Verified]):
    """Check everything in a tree. Damage is a finding, never an error."""

    def __init__(self, chosen: Chosen | None = None) -> None:
        """`chosen` says which rules to run; OptionError if it names one that there is not."""
        self.chosen = (chosen or Chosen()).check()
        self._tree: Tree | None = None

    def plan(self, tree: Tree) -> list[Split]:
        """A split a file; small files share one."""
        self._tree = tree
        return [
            Split(number, sum(file.size for file in files), files) for number, files in enumerate(_packed(tree.files))
        ]

    def work(self, split: Split, stage: Stage) -> Checked:
        """The findings on the split's files."""
        items: list[Finding] = []
        frames = 0
        files: tuple[File, ...] = split.task
        for file in files:
            found = inspect_file(file, self.chosen, lambda window: stage.advance(window.reached, len(window)))
            items += found.items
            frames += found.frames
        return Checked(split.number, tuple(items), len(files), frames)

    def commit(self, done: Sequence[Checked]) -> Verified:
        """Put the findings in order and add what the files say of one another."""
        result = Findings()
        for one in done:
            result.items += one.findings
            result.files += one.files
            result.frames += one.frames
        if self._tree is not None:
            result.items += inspect_tree(self._tree, self.chosen).items
        return Verified(result)

    def __getstate__(self) -> dict[str, object]:
        # The tree stays where it was planned: only `commit` asks for it.
        return {"chosen": self.chosen, "_tree": None}


def _packed(files: Sequence[File]) -> list[tuple[File, ...]]:
    """Runs of files, in order, that are worth a split each."""
    target = min(max(sum(file.size for file in files) // SPLITS, SMALLEST), LARGEST)
    runs: list[tuple[File, ...]] = []
    run: list[File] = []
    size = 0
    for file in files:
        if run and (size + file.size > target or len(run) == SPLIT_FILES):
            runs.append(tuple(run))
            run, size = [], 0
        run.append(file)
        size += file.size
    return [*runs, tuple(run)] if run else runs
