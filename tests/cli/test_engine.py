"""Which engine runs a verb: options, the environment, the size of the input."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.engines import choice
from rawlog.model.errors import OptionError
from tests.cli.conftest import Ran
from tests.data.golden import golden_path

SAMPLE = golden_path("kafka", "broker-4.3.0", "data", "compacted-0")
LARGE = 8 << 30


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAWLOG_ENGINE", choice.SUBMITTED):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: object, **__: object) -> None:
        pytest.fail("Spark was started")

    monkeypatch.setattr(choice.JobEngine, "start", start)


@pytest.mark.parametrize(
    ("given", "environment", "size", "expected"),
    [
        ({}, None, None, "spark"),
        ({}, None, LARGE - 1, "local"),
        ({}, None, LARGE, "spark"),
        ({}, "local", None, "local"),
        ({}, "local", LARGE, "local"),
        ({}, "spark", 1, "spark"),
        ({"engine": "spark"}, "local", 1, "spark"),
        ({"engine": "local"}, "spark", LARGE, "local"),
        ({"master": "local[2]"}, "local", 1, "spark"),
        ({"conf": ("a=b",)}, None, 1, "spark"),
        ({"threads": 2}, "spark", LARGE, "local"),
        ({"threads": 2}, None, None, "local"),
    ],
)
def test_choice(
    given: dict[str, Any], environment: str | None, size: int | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if environment is not None:
        monkeypatch.setenv("RAWLOG_ENGINE", environment)
    assert choice.choose(size, **given).name == expected


def test_what_is_submitted_to_a_cluster_runs_there_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(choice.SUBMITTED, "12345")
    monkeypatch.setenv("RAWLOG_ENGINE", "local")
    assert choice.choose(1).name == "spark"


def test_an_unknown_engine_in_the_environment_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, run: Any, log: Path
) -> None:
    monkeypatch.setenv("RAWLOG_ENGINE", "flink")
    with pytest.raises(OptionError):
        choice.choose(1)
    for words in (("verify", log), ("query", "SELECT 1", log), ("ingest", log, "--to", log.parent / "lake")):
        ran = run(*words)
        assert (ran.code, "$RAWLOG_ENGINE is 'flink': local or spark expected" in ran.err) == (2, True), ran


@pytest.mark.usefixtures("without_spark")
def test_small_conversions_and_erasures_do_not_start_spark(run: Any, tmp_path: Path) -> None:
    """Two records erased took 85 seconds, nearly all of them for Spark."""
    source = golden_path("kafka", "broker-4.3.0", "data", "compacted-0")
    erased = run("erase", source, tmp_path / "erased", "--key", "ck-21")
    assert erased.code == 0, erased.err
    converted = run("convert", source, tmp_path / "rows.parquet", "--to", "parquet")
    assert converted.code == 0, converted.err


@pytest.mark.usefixtures("without_spark")
def test_the_environment_chooses_for_verbs_that_are_sparks_by_default(
    run: Any, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAWLOG_ENGINE", "local")
    assert run("ingest", log, "--to", tmp_path / "lake").code == 0
    assert run("query", "SELECT count(*) AS n FROM records", log, "--json").rows == [{"n": 5}]


#: Hides packages from a Python that reads this, as if they were not installed.
HIDING = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [Finder if finder is PathFinder else finder for finder in sys.meta_path]
"""


@pytest.fixture
def without(spawn: Callable[..., Ran], environment: dict[str, str], tmp_path: Path) -> Callable[..., Ran]:
    """without("pyspark", "query", …): a command where a package is not installed."""

    def call(hidden: str, *arguments: object) -> Ran:
        (tmp_path / "sitecustomize.py").write_text(HIDING.format(hidden=tuple(hidden.split(","))))
        environment["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{environment['PYTHONPATH']}"
        return spawn(*arguments)

    for name in ("RAWLOG_ENGINE", choice.SUBMITTED, "SPARK_REMOTE", "SPARK_MASTER"):
        environment.pop(name, None)
    return call


def test_what_is_installed_runs_it(without: Callable[..., Ran], tmp_path: Path) -> None:
    """With `rawlog[duckdb,lake]`, as in the container, `query` and `ingest` said "Spark is not installed", though both run without it."""
    extras = re.search(
        r"^ARG EXTRAS=(\S*)$", Path(__file__).parents[2].joinpath("Dockerfile").read_text(), re.MULTILINE
    )
    assert extras is not None
    assert set(extras[1].split(",")) == {"duckdb", "lake"}
    query = ("query", "SELECT count(*) AS n FROM records", SAMPLE, "--json")
    asked = without("pyspark", *query)
    assert (asked.code, asked.rows) == (0, [{"n": rawlog.count(SAMPLE)}]), asked.err
    stored = without("pyspark", "ingest", SAMPLE, "--to", tmp_path / "lake", "--json")
    assert stored.code == 0, stored.err
    refused = without("pyspark", *query, "--master", "local[1]")
    assert refused.code == 3
    assert "Spark is not installed" in refused.err
    assert "--engine local without --master and --conf" in refused.err
    nothing = without("pyspark,duckdb", *query)
    assert nothing.code == 3
    assert "DuckDB is not installed\nNext: pip install" in nothing.err
    assert '[spark]"' in nothing.err


def test_spark_that_is_not_installed_is_not_chosen_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "has_spark", lambda: False)
    assert choice.choose(choice.LARGE).name == choice.choose().name == "local"
    monkeypatch.setattr(choice, "has_spark", lambda: True)
    assert choice.choose(choice.LARGE).name == choice.choose().name == "spark"
