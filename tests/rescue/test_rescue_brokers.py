"""Rescue, judged by real clusters: they live, die and lose disks; a real broker starts on what was rescued.

Two small ones here, `make faults` runs as many as RAWLOG_RESCUES says, three on the disks of each cluster. To repeat one on the disks
that a failure names: `python -m tests.rescue.test_rescue_brokers FOLDER SEED`.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.rescue.damage import damage
from tests.rescue.judge import Verdict, Way, judge
from tests.rescue.life import ENDS, Journal, live
from tests.rescue.truth import Cluster, Judgement
from tests.services.kafka import KAFKA_3, KAFKA_4

pytestmark = pytest.mark.broker

FULL = int(os.environ.get("RAWLOG_RESCUES", "0"))
FIRST = int(os.environ.get("RAWLOG_RESCUES_FIRST", "0"))
EACH = 3
"""How often the disks of one cluster are damaged in another way."""


def tried(folder: Path, seed: int, metadata: bool | None = None, way: Way | None = None) -> Verdict:
    """Damage the disks of a dead cluster and rescue them. What is wrong is left in the folder."""
    journal = Journal.load(folder / "journal.json")
    cluster = Cluster(folder / "disks")
    assert not cluster.check(journal), "the disks do not have what Kafka acknowledged, before any damage"
    place = folder / f"trial-{seed}"
    shutil.rmtree(place, ignore_errors=True)
    damaged = damage(folder / "disks", place / "disks", seed, metadata)
    truth = Judgement(cluster, damaged).truth()
    verdict = judge(journal.version, truth, damaged, place / "rescued", Way() if way is None else way)
    if not verdict.wrong:
        shutil.rmtree(place)
    return verdict


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "end", "metadata"), [(KAFKA_3, "divergent", True), (KAFKA_4, "stale", False)], ids=[KAFKA_3, KAFKA_4]
)
def test_what_survives_on_some_disk_is_served(version: str, end: str, metadata: bool, tmp_path: Path) -> None:
    from tests.conftest import needed

    with needed():
        live(tmp_path, 7, version, end, small=True)
    verdict = tried(tmp_path, 7, metadata)
    assert not verdict.wrong, str(verdict)


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="make faults")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("number", range(FIRST, FIRST + (FULL + EACH - 1) // EACH))
def test_random_deaths(number: int, tmp_path: Path) -> None:
    live(tmp_path, number, (KAFKA_3, KAFKA_4)[number % 2], ENDS[number // 2 % len(ENDS)])
    wrong = []
    for seed in range(number * 100, number * 100 + EACH):
        verdict = tried(tmp_path, seed, way=Way.of(seed))
        print(f"\nlife {number}, damage {seed}: {verdict}")
        if verdict.wrong:
            wrong.append(f"{tmp_path} {seed}: {verdict}")
    if not wrong:
        shutil.rmtree(tmp_path)
    assert not wrong, "\n\n".join(wrong)


if __name__ == "__main__":
    print(tried(Path(sys.argv[1]), int(sys.argv[2]), way=Way.of(int(sys.argv[2]))))
