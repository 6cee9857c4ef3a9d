"""The Spark engine does the same as the local one; Spark only places, retries and collects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from rawlog.cli import cli
from rawlog.engines import choice
from rawlog.lakes import ingest_plan as planning
from rawlog.lakes.ingest import Ingest
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.job import Progress, Split, Stage
from rawlog.reading.tree import open_tree
from rawlog.verbs import verify as verifying
from rawlog.verbs.diff import Diff
from rawlog.verbs.verify import Verify
from tests.data.recordings import expected, held, ingest, record
from tests.engines.test_local import NOTHING, Count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_results_come_in_order(spark: SparkSession) -> None:
    from rawlog.engines.spark import engine

    reported: list[Progress] = []
    done = engine.run(Count(9), NOTHING, spark, progress=reported.append).done
    assert [one.number for one in done] == list(range(9))
    assert len({one.stage.name for one in done}) == 9
    assert reported[-1].splits == 9


def test_a_jvm_that_has_ended_is_named() -> None:
    """Its connection is refused then, and that was an internal error: the description of the job could not be taken back either."""
    from rawlog.engines.spark.engine import _describe
    from rawlog.engines.spark.session import reason

    assert reason(ConnectionRefusedError(111, "Connection refused")) == "its JVM has ended"

    class Ended:
        """A session whose JVM ends inside."""

        class sparkContext:
            is_ended = False

            @classmethod
            def getLocalProperty(cls, name: str) -> None:
                return None

            @classmethod
            def setLocalProperty(cls, name: str, value: str | None) -> None:
                if cls.is_ended:
                    raise ConnectionRefusedError

    with pytest.raises(AccessError, match="the job"), _describe(Ended(), "a job"):  # type: ignore[arg-type]
        Ended.sparkContext.is_ended = True
        raise AccessError("the job failed")


def test_jobs_and_stages_are_described(spark: SparkSession) -> None:
    """For Spark's UI; a description that the caller has set is there again afterwards."""
    from rawlog.engines.spark import engine

    context = spark.sparkContext
    context.setJobDescription("mine")
    try:
        job = Count(3)
        engine.run(job, NOTHING, spark)
        assert context.getLocalProperty("spark.job.description") == "mine"
    finally:
        context.setLocalProperty("spark.job.description", None)
    assert set(job.seconds or {}) == {"plan", "work", "commit"}
    store = context._jsc.sc().statusStore()
    jobs = store.jobsList(None)
    texts = [str(jobs.apply(number).description()) for number in range(jobs.size())]
    assert any("rawlog count: round 1, 3 splits" in text for text in texts), texts


def test_the_error_of_a_split_is_raised_as_it_was(spark: SparkSession) -> None:
    from rawlog.engines.spark import engine

    with pytest.raises(OptionError, match=r"^split 3$"):
        engine.run(Count(5, failing=[4, 3]), NOTHING, spark)


def test_findings_are_the_same_on_both_engines(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rawlog.engines.spark import engine

    monkeypatch.setattr(verifying, "SMALLEST", 1)
    for number in range(6):
        path = record(tmp_path / f"{number}.log", 40)
        path.write_bytes(path.read_bytes()[: 300 + 7 * number])
    tree = open_tree(str(tmp_path))
    assert engine.run(Verify(), tree, spark) == choice.run(Verify(), tree)
    here, there = (
        CliRunner().invoke(cli, ["verify", str(tmp_path), "--json", "--engine", name]) for name in ("local", "spark")
    )
    assert (here.exit_code, here.stdout) == (there.exit_code, there.stdout)
    assert here.stdout.count("\n") > 1


def test_differences_are_the_same_on_both_engines(spark: SparkSession, tmp_path: Path) -> None:
    from rawlog.engines.spark import engine

    for side, more in (("a", 0), ("b", 3)):
        (tmp_path / side).mkdir()
        for number in range(4):
            record(tmp_path / side / f"{number}.log", 40 + more * number)
    one, other = (open_tree(str(tmp_path / side)) for side in "ab")
    here = choice.run(Diff(other), one)
    assert engine.run(Diff(other), one, spark) == here
    assert here.tally.only_in_b == 18


def test_a_lake_made_on_spark_is_that_made_here(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rawlog.engines.spark import engine

    monkeypatch.setattr(planning, "SMALLEST", 1000)
    monkeypatch.setattr(planning, "LARGEST", 4000)
    log = record(tmp_path / "a.log", 500)
    seen: list[Progress] = []
    with Ingest(str(tmp_path / "there")) as job:
        outcome = engine.run(job, open_tree(str(log)), spark, progress=seen.append)
    assert (seen[-1].size, seen[-1].rows) == (seen[-1].total_size, 1000), "rows of both tables"
    assert outcome.tables == ingest(tmp_path / "here", log).tables
    for name in ("rawlog.records", "replay.entries", "rawlog.files"):
        assert held(tmp_path / "there", name) == held(tmp_path / "here", name)
    assert held(tmp_path / "there") == expected(log)


def test_only_a_path_out_of_reach_is_tried_again() -> None:
    from rawlog.engines.spark.engine import _work

    class Unreachable(Count):
        def work(self, split: Split, stage: Stage):  # type: ignore[no-untyped-def]
            raise AccessError("no route")

    split = Split(1, 1, None)
    with pytest.raises(AccessError):
        _work(Unreachable(1), split, 0, last=False)
    assert str(_work(Unreachable(1), split, 1, last=True)) == "no route"
    assert isinstance(_work(Count(2, failing=[1]), split, 0, last=False), OptionError)
