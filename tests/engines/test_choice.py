"""What an engine is given, whichever verb asks for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.engines.choice import JobEngine
from rawlog.reading.tree import Tree
from tests.data.golden import golden_path

A, B = "data/transactions-0", "data/codec-lz4-0"
VERBS: dict[str, Callable[[], Any]] = {
    "verify": lambda: rawlog.verify(A, against=B, engine="spark"),
    "diff": lambda: rawlog.diff(A, B, engine="spark"),
    "repair": lambda: rawlog.repair(A, "out", engine="spark"),
    "rebuild": lambda: rawlog.rebuild(A, "out", engine="spark"),
    "compact": lambda: rawlog.compact(A, "out", engine="spark"),
    "erase": lambda: rawlog.erase([A, B], "out", key="k", engine="spark"),
    "rescue": lambda: rawlog.rescue([A, B], to="out", engine="spark"),
    "restore": lambda: rawlog.restore(A, "out", engine="spark"),
    "convert": lambda: rawlog.convert(A, "out", to="parquet", engine="spark"),
    "ingest": lambda: rawlog.ingest(A, "out", engine="spark"),
    "report": lambda: rawlog.report(A, "page.html", engine="spark"),
}


class Given(Exception):
    """What an engine was given."""


def trees_of(job: Any, tree: Tree) -> Iterator[Tree]:
    """All trees that tasks may read."""
    yield tree
    yield from (value for value in vars(job).values() if isinstance(value, Tree))


@pytest.mark.parametrize("verb", VERBS)
def test_on_spark_every_path_is_absolute(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` and `diff` of a relative path called sound files damaged: a task on a worker has another working directory."""

    def run(self: JobEngine, job: Any, tree: Tree, *_: Any) -> Any:
        raise Given(self, list(trees_of(job, tree)))

    monkeypatch.setattr(JobEngine, "run", run)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").symlink_to(golden_path("kafka", "broker-4.3.0", "data"))
    with pytest.raises(Given) as raised:
        VERBS[verb]()
    engine, trees = raised.value.args
    assert engine.name == "spark"
    assert len(trees) == (2 if verb in ("verify", "diff") else 1)
    for tree in trees:
        paths = [*tree.roots, *(file.path for file in tree), *(file.place.group or "/" for file in tree)]
        assert [path for path in paths if not os.path.isabs(path)] == []
