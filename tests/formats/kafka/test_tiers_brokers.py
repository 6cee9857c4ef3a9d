"""A real broker with LocalTieredStorage is the judge: what its consumers get from disk and remote storage, rawlog reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.store.tiers import listed
from tests.conftest import needed
from tests.formats.kafka.test_tiers_golden import as_consumed
from tests.services.kafka import KAFKA_4, KafkaBroker
from tests.services.tiered import TOPIC, consumed, fill, tiered_broker

pytestmark = pytest.mark.broker


@dataclass
class Tiered:
    """The directories that a broker left, and what its consumers got before."""

    data: Path
    tier: Path
    expected: dict[str, list[tuple[Any, ...]]]

    @property
    def paths(self) -> list[str]:
        return [str(self.data), str(self.tier)]


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiered]:
    scratch = tmp_path_factory.mktemp("tiered-4")
    with needed():
        broker = tiered_broker(scratch / "data", scratch / "tier")
        broker.__enter__()
    try:
        expected = {"read_uncommitted": fill(broker)}
        expected["read_committed"] = consumed(broker, isolation="read_committed")
        broker.stop()
        yield Tiered(scratch / "data", scratch / "tier", expected)
    finally:
        broker.__exit__(None, None, None)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_rows_are_what_a_consumer_got_4(tiered: Tiered, isolation: str) -> None:
    assert as_consumed(tiered.paths, isolation) == tiered.expected[isolation]
    assert rawlog.count(tiered.paths, topic=TOPIC, isolation=isolation) == len(tiered.expected[isolation])
    local = rawlog.count(tiered.data, topic=TOPIC, isolation=isolation)
    assert local < len(tiered.expected[isolation])


def test_both_tiers_verify_clean_and_complete_4(tiered: Tiered) -> None:
    found = rawlog.verify(tiered.paths, complete=True)
    assert found.verdict == "clean", [str(item) for item in found]
    accounts = [one for one in found.accounts if one.topic == TOPIC]
    assert len(accounts) == 2
    present = sum(one.present for one in accounts)
    assert present == len(tiered.expected["read_committed"])
    assert all(one.start == one.unexplained == 0 for one in accounts)


def test_the_disk_alone_lacks_what_is_in_remote_storage_4(tiered: Tiered) -> None:
    for one in rawlog.verify(tiered.data, complete=True).accounts:
        if one.topic == TOPIC:
            first = min(int(path.stem) for path in Path(one.path).glob("*.log"))
            assert one.unexplained == first > 0


def test_a_remote_segment_that_is_gone_is_missing_4(tiered: Tiered, tmp_path: Path) -> None:
    shutil.copytree(tiered.tier, tmp_path / "tier")
    log = sorted((tmp_path / "tier").rglob("*.log"))[1]
    for path in log.parent.glob(f"{log.stem}.*"):
        path.unlink()
    found = rawlog.verify([tiered.data, tmp_path / "tier"], complete=True)
    codes = {item.code for item in found}
    assert {"kafka.remote.missing", "kafka.complete.unexplained"} <= codes
    [mark] = [item for item in found if item.code == "kafka.remote.missing"]
    assert log.stem.partition("-")[2] in mark.message
    known = listed(rawlog.open(tiered.data).files)[log.stem.partition("-")[2]]
    assert sum(one.unexplained for one in found.accounts) == known.end - known.start + 1


def test_a_broker_serves_what_was_restored_of_both_4(tiered: Tiered, tmp_path: Path) -> None:
    rawlog.restore(tiered.paths, tmp_path / "out")
    with KafkaBroker(KAFKA_4, tmp_path / "out", {"log.retention.ms": "-1"}) as broker:
        assert consumed(broker) == tiered.expected["read_uncommitted"]
        assert consumed(broker, isolation="read_committed") == tiered.expected["read_committed"]
