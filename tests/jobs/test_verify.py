"""Verify as a job: the same findings as the plain loop, in the same order."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rawlog.engines import local
from rawlog.errors import OptionError
from rawlog.inspection import Chosen, verify_tree
from rawlog.jobs import verify
from rawlog.jobs.verify import Verify
from rawlog.tree import open_tree
from tests.jobs.recordings import damage, record


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for number in range(12):
        path = record(tmp_path / f"{number:02d}.log", 40)
        if number % 2:
            damage(path, 3 + number)
            path.write_bytes(path.read_bytes()[:-number])
    return tmp_path


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_findings_are_those_of_the_plain_loop(logs: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SMALLEST", 1)
    tree = open_tree(str(logs))
    found = local.run(Verify(), tree, threads=threads).findings
    plain = verify_tree(tree)
    assert found.items == plain.items
    assert found.summary() == plain.summary()
    assert found.errors


def test_rules_are_chosen_by_name(logs: Path) -> None:
    tree = open_tree(str(logs))
    assert not local.run(Verify(Chosen(skip=("replay", "rawlog"))), tree).findings.items
    with pytest.raises(OptionError, match="unknown rule"):
        Verify(Chosen(only=("replay.fnord",)))


def test_the_job_travels_without_its_tree(logs: Path) -> None:
    job = Verify()
    job.plan(open_tree(str(logs)))
    assert len(pickle.dumps(job)) < 1000


def test_groups_and_trees_are_looked_at_too() -> None:
    tree = open_tree(str(Path(__file__).parents[2] / "samples"))
    found = local.run(Verify(), tree, threads=2).findings
    plain = verify_tree(tree)
    assert found.items == plain.items
    assert found.summary() == plain.summary()
