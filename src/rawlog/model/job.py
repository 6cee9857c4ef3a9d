"""Job: what is done over many files, cut so that any engine can run it: plan (splits), work (one split, anywhere), commit (once, here).

A job is picklable and keeps nothing between its verbs but what was given to it or planned: `work` may run in another process,
on another machine, and twice.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from rawlog.model.format import File
from rawlog.model.report import Action, Entry

if TYPE_CHECKING:
    from rawlog.reading.tree import Tree


@dataclass(frozen=True, slots=True)
class Split:
    """A share of a job: its number, the bytes it reads (for placing and progress), and what the job itself put in."""

    number: int
    size: int
    content: Any


@dataclass(frozen=True, slots=True)
class Stage:
    """Where one attempt at a split may write, and whom it tells how far it is.

    `name` differs between attempts, also between two of the same split that run at once: every file written bears it.
    """

    path: str
    name: str
    tell: Callable[[int, int, int], None] | None = field(default=None, compare=False)

    def advance(self, size: int, frames: int = 0, rows: int = 0) -> None:
        """Say that so many more bytes, frames and rows are done."""
        if self.tell is not None:
            self.tell(size, frames, rows)


@dataclass(frozen=True, slots=True)
class SplitResult:
    """The result of one split. Jobs add their own fields."""

    number: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of the whole job. Jobs add their own fields."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is. `phase` says what it does before its splits run, such as starting Spark."""

    size: int = 0
    total_size: int = 0
    splits: int = 0
    total_splits: int = 0
    frames: int = 0
    rows: int = 0
    phase: str = ""

    def __add__(self, other: Progress) -> Progress:
        """Both, one after the other."""
        numbers = (number + more for number, more in zip(astuple(self)[:-1], astuple(other)[:-1], strict=True))
        return replace(Progress(*numbers), phase=other.phase)


T = TypeVar("T")


def packed(
    items: Sequence[T], size_of: Callable[[T], int], target: int, most: int | None = None
) -> list[tuple[T, ...]]:
    """Runs of items, in order: each about `target` bytes large, or of one item, and of `most` items at most."""
    runs: list[tuple[T, ...]] = []
    run: list[T] = []
    size = 0
    for item in items:
        if run and (size + size_of(item) > target or len(run) == most):
            runs.append(tuple(run))
            run, size = [], 0
        run.append(item)
        size += size_of(item)
    return [*runs, tuple(run)] if run else runs


D = TypeVar("D", bound=SplitResult)
O = TypeVar("O")  # noqa: E741


class Job(ABC, Generic[D, O]):
    """Plan, work, commit. `stage` is the place below which the work writes; None if it writes nothing."""

    stage: str | None = None
    #: How long its phases took, by name: an engine adds to it.
    seconds: dict[str, float] | None = None

    @property
    def name(self) -> str:
        """What it is called where its tasks are listed."""
        return type(self).__name__.lower()

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add how long something takes to the seconds of a phase."""
        begun = time.monotonic()
        try:
            yield
        finally:
            if self.seconds is None:
                self.seconds = {}
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.monotonic() - begun

    @abstractmethod
    def plan(self, tree: Tree) -> list[Split]:
        """Cut the work into splits: on the driver, cheap, from names, sizes and indexes."""

    @abstractmethod
    def work(self, split: Split, stage: Stage) -> D:
        """Do one split, anywhere, perhaps twice; write only below `stage.path`, under names that bear `stage.name`."""

    def follow(self, results: Sequence[D]) -> list[Split]:
        """More splits, known only from what was done: on the driver, after each round, with numbers that go on. None: all is done."""
        return []

    @abstractmethod
    def commit(self, results: Sequence[D]) -> O:
        """Make the results of all splits, in the order of their numbers, count: on the driver, once; safe to run again."""


def unreadable(files: Iterable[File]) -> list[Entry]:
    """What a report says of files that cannot be read: they are in no result, whether their data is needed or derived again."""
    return [
        Entry(Action.DROPPED, f"it cannot be read: {file.problem}", file.path)
        for file in files
        if file.problem is not None
    ]
