"""Ingest under `kill -9`: whenever it dies, the lake can be read, and in the end each record is in it once.

Four kills here; `make faults` does thirty, on Spark with executors of their own too.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.jobs.kills import Harness

FULL = int(os.environ.get("RAWLOG_KILLS", "0"))


def test_killed_at_random_moments_each_record_is_in_once(tmp_path: Path) -> None:
    harness = Harness(tmp_path, 1, ("--engine", "local", "--threads", "2"))
    harness.make(4_000)
    rounds = harness.play(4, ("driver",))
    assert any(one.code == -9 for one in rounds), "no round was long enough to be killed"


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
