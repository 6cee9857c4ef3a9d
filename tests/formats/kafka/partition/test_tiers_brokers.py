"""A real broker with LocalTieredStorage is the judge: what its consumers get from disk and remote storage, rawlog reads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.partition.tiers import list_remote_segments
from tests.conftest import needed
from tests.formats.kafka.partition.test_tiers_golden import as_consumed
from tests.reference.search import places
from tests.services.kafka import KAFKA_4, KafkaBroker
from tests.services.tiered import TOPIC, consumed, fill, fill_compacted, tiered_broker, wait_for_copies

pytestmark = pytest.mark.broker

COMPACTED = "people"
#: A key in committed and aborted transactions, in both tiers, in compressed batches, and in a compacted topic.
PERSON = b"key-3"


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
        expected = {"read_uncommitted": fill(broker, codec="zstd")}
        fill_compacted(broker, COMPACTED)
        expected["compacted"] = consumed(broker, COMPACTED, count=1)
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
    """It is reported as a part: the offsets that it lacks are neither lost nor expired."""
    found = rawlog.verify(tiered.data, complete=True)
    accounts = [one for one in found.accounts if one.topic == TOPIC]
    assert len(accounts) == 2
    for one in accounts:
        first = min(int(path.stem) for path in Path(one.path).glob("*.log"))
        assert one.start == one.remote == first > 0
        assert one.expired == one.unexplained == 0
        [mark] = [
            item
            for item in found
            if item.code == "kafka.partition.gap" and f"/{TOPIC}-{one.partition}/" in str(item.path)
        ]
        assert f"offsets 0 to {first - 1} are in remote storage, which is not among the paths" in mark.message


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
    known = list_remote_segments(rawlog.open(tiered.data).files)[log.stem.partition("-")[2]]
    assert sum(one.unexplained for one in found.accounts) == known.end - known.start + 1


def test_a_broker_serves_what_was_restored_of_both_4(tiered: Tiered, tmp_path: Path) -> None:
    rawlog.restore(tiered.paths, tmp_path / "out")
    with KafkaBroker(KAFKA_4, tmp_path / "out", {"log.retention.ms": "-1"}) as broker:
        assert consumed(broker) == tiered.expected["read_uncommitted"]
        assert consumed(broker, isolation="read_committed") == tiered.expected["read_committed"]


def test_a_broker_serves_both_tiers_without_a_person_4(tiered: Tiered, tmp_path: Path) -> None:
    """And copies the result to a new remote storage, where nothing of the person is either."""
    report = rawlog.erase(tiered.paths, tmp_path / "out", find=PERSON, engine="local")
    assert report.is_whole
    assert any("__remote_log_metadata" in note for note in report.notes)
    assert [path.stat().st_size for path in (tmp_path / "out").glob("__remote_log_metadata-*/*.log")] == [0, 0]
    assert places(tiered.tier, PERSON)
    assert places(tmp_path / "out", PERSON) == []
    assert rawlog.verify(tmp_path / "out", certificate=tmp_path / "out.certificate.json").verdict == "clean"
    expected = {name: [row for row in rows if PERSON not in (row[3], row[4])] for name, rows in tiered.expected.items()}
    assert all(len(expected[name]) < len(tiered.expected[name]) for name in expected)
    with tiered_broker(tmp_path / "out", tmp_path / "new-tier") as broker:
        wait_for_copies(broker, TOPIC)
        for isolation in ("read_uncommitted", "read_committed"):
            assert consumed(broker, isolation=isolation) == expected[isolation]
        assert {row[3] for row in consumed(broker, COMPACTED, count=1)} == {row[3] for row in expected["compacted"]}
    assert list((tmp_path / "new-tier").rglob("*.log"))
    assert places(tmp_path / "out", PERSON) == places(tmp_path / "new-tier", PERSON) == []


def test_erasing_from_the_disk_alone_says_what_it_did_not_see_4(tiered: Tiered, tmp_path: Path) -> None:
    report = rawlog.erase(tiered.data, tmp_path / "out", find=PERSON, engine="local")
    assert not report.is_whole
    found = [item for item in report.remaining if item.code == "rawlog.certificate.elsewhere"]
    assert [item.message.partition(":")[0] for item in found] == [f"{TOPIC}-0", f"{TOPIC}-1"]
    first = min(int(path.stem) for path in (tiered.data / f"{TOPIC}-0").glob("*.log"))
    assert f"offsets 0 to {first - 1} are in remote storage" in found[0].message
    paper = (tmp_path / "out.certificate.txt").read_text()
    assert all(f"not erased    {item.message}" in paper for item in found)
    checked = rawlog.verify(tmp_path / "out", certificate=tmp_path / "out.certificate.json")
    assert {"rawlog.certificate.elsewhere"} == {item.code for item in checked if item.severity.name != "INFO"}
    alone = rawlog.erase(tiered.data / f"{TOPIC}-0", tmp_path / "alone", find=PERSON, engine="local")
    assert [item.message for item in alone.remaining] == [found[0].message]
    other = rawlog.erase(tiered.data, tmp_path / "other", find=PERSON, topic=COMPACTED, engine="local")
    assert other.is_whole


def test_a_broker_serves_both_tiers_masked_4(tiered: Tiered, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_MASK_SECRET", "a secret of a test")
    mask = "key=hash,value=fixed:x"
    report = rawlog.restore(tiered.paths, tmp_path / "out", topic=[TOPIC, COMPACTED], mask=mask, engine="local")
    assert report.is_whole
    assert places(tmp_path / "out", *(b"key-%d" % number for number in range(5))) == []
    with KafkaBroker(KAFKA_4, tmp_path / "out", {"log.retention.ms": "-1", "log.cleaner.enable": "false"}) as broker:
        for topic, before in ((TOPIC, tiered.expected["read_committed"]), (COMPACTED, tiered.expected["compacted"])):
            after = consumed(broker, topic, count=2 if topic == TOPIC else 1)
            assert [row[:3] for row in after] == [row[:3] for row in before]
            assert {row[4] for row in after} == {b"x"}
            pairs = {(one[3], other[3]) for one, other in zip(before, after, strict=True)}
            assert len(pairs) == len({old for old, _ in pairs}) == len({new for _, new in pairs}) == 5
