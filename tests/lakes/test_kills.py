"""Ingest under `kill -9`: whenever it dies, the lake can be read, and in the end each record is in it once.

Four kills here; `make faults` does thirty, on Spark with executors of their own too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.data.kills import Harness, Rewriting

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

FULL = int(os.environ.get("RAWLOG_KILLS", "0"))


def test_killed_at_random_moments_each_record_is_in_once(tmp_path: Path) -> None:
    harness = Harness(tmp_path, 1, ("--engine", "local", "--threads", "2"))
    harness.make(4_000)
    rounds = harness.play(4, ("driver",))
    assert any(one.code == -9 for one in rounds), "no round was long enough to be killed"


def test_killed_while_sources_are_rewritten_the_lake_has_what_is_there(tmp_path: Path) -> None:
    harness = Rewriting(tmp_path, 5, ("--engine", "local", "--threads", "2"))
    harness.make(40)
    rounds = harness.play(max(4, FULL), ("driver",))
    assert any(one.code == -9 for one in rounds), "no round was long enough to be killed"


def test_killed_while_sources_are_rewritten_and_the_lake_is_in_a_bucket(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    s3.filesystem().create_dir("kills")
    harness = Rewriting(tmp_path, 6, ("--engine", "local", "--threads", "2", "--catalog", str(tmp_path / "catalog.db")))
    harness.lake, harness.target = tmp_path / "catalog.db", f"s3://kills/{tmp_path.name}"
    harness.make(40)
    harness.play(max(3, FULL), ("driver",))


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="make faults")
@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("master", "victims"),
    [
        ("local[2]", ("driver", "jvm", "worker")),
        ("local-cluster[2,1,1024]", ("driver", "executor", "worker", "executor", "jvm")),
    ],
)
def test_killed_on_spark_each_record_is_in_once(tmp_path: Path, master: str, victims: tuple[str, ...]) -> None:
    harness = Harness(tmp_path, 2, ("--master", master, "--conf", "spark.driver.memory=1g"))
    harness.make(60_000)
    rounds = harness.play(FULL // 2, victims)
    for one in rounds:
        print(one)
    assert sum(one.code == -9 for one in rounds if one.victim == "driver") > 0
    assert {one.code for one in rounds} <= {0, 1, 3, -9}, "a JVM that dies is an error with a message"
