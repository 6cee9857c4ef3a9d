"""The local engine: all splits once, results in order, the first error wins, progress ends at the end."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rawlog.engines import choice
from rawlog.model.errors import OptionError
from rawlog.model.job import (
    Job,
    Outcome,
    Progress,
    Split,
    SplitResult,
    Stage,
)
from rawlog.reading.tree import Tree

NOTHING = Tree((), ())


@dataclass(frozen=True, slots=True)
class Named(SplitResult):
    """Where a split writes, and by which thread it was done."""

    stage: Stage
    thread: int


@dataclass(frozen=True, slots=True)
class All(Outcome):
    """Everything that was done."""

    done: tuple[Named, ...]


class Count(Job[Named, All]):
    """A job of so many splits, of which some fail."""

    def __init__(self, count: int, failing: Sequence[int] = (), stage: str | None = None) -> None:
        self.count, self.failing, self.stage = count, failing, stage

    def plan(self, tree: Tree) -> list[Split]:
        return [Split(number, 10 + number, None) for number in range(self.count)]

    def work(self, split: Split, stage: Stage) -> Named:
        assert Path(stage.path).is_dir()
        stage.advance(split.size, 2)
        if split.number in self.failing:
            raise OptionError(f"split {split.number}")
        return Named(split.number, stage, threading.get_ident())

    def commit(self, done: Sequence[Named]) -> All:
        return All(tuple(done))


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_results_come_in_order_and_every_attempt_has_a_name_of_its_own(threads: int) -> None:
    done = choice.run(Count(20), NOTHING, threads=threads).done
    assert [one.number for one in done] == list(range(20))
    assert len({one.stage.name for one in done}) == 20
    assert not Path(done[0].stage.path).exists(), "the scratch directory is gone"


def test_a_job_that_names_its_stage_works_there(tmp_path: Path) -> None:
    done = choice.run(Count(3, stage=str(tmp_path)), NOTHING).done
    assert {one.stage.path for one in done} == {str(tmp_path)}


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failing_split_ends_the_run(threads: int) -> None:
    with pytest.raises(OptionError, match="split"):
        choice.run(Count(20, failing=[7, 12]), NOTHING, threads=threads)


def test_nothing_to_do_still_commits() -> None:
    assert choice.run(Count(0), NOTHING).done == ()


def test_progress_ends_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "INTERVAL", 0)
    reported: list[Progress] = []
    choice.run(Count(5), NOTHING, threads=2, progress=reported.append)
    assert reported[-1] == Progress(60, 60, 5, 5, 10)
    assert [one.size for one in reported] == sorted(one.size for one in reported)
