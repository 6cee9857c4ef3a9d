"""Folded tables in the lake: a state that is replaced unit by unit, and always the one that the files tell."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog import registry
from rawlog.lakes.ingest_plan import family_of
from rawlog.lakes.lake import Lake
from rawlog.reading.select import Selection
from tests.data.golden import golden_path
from tests.data.recordings import ingest, ordered, stored

SAMPLES = Path(__file__).parents[2] / "samples"
FOLDED = [name for name in registry.tables() if family_of(name) is not None]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """What a Kafka node keeps of itself."""
    copy = tmp_path / "broker"
    for name in ("__consumer_offsets-0", "__consumer_offsets-1", "__cluster_metadata-0", "__transaction_state-0"):
        shutil.copytree(SAMPLES / "kafka" / name, copy / name)
    shutil.copy(SAMPLES / "kafka" / "meta.properties", copy)
    return copy


def raw(*paths: Path, table: str) -> list[dict[str, Any]]:
    return ordered(rawlog.read([str(path) for path in paths], table=table, errors="skip").to_pylist())


def assert_same(lake: Path, *paths: Path) -> None:
    """Every folded table of the lake is what the files tell."""
    has = rawlog.open([str(path) for path in paths]).tables
    for name in FOLDED:
        if name in has:
            assert stored(lake, name) == raw(*paths, table=name), name


def test_a_second_run_changes_nothing(lake: Path, broker: Path) -> None:
    ingest(lake, broker)
    assert_same(lake, broker)
    before = {name: len(Lake(str(lake)).load(name).snapshots()) for name in FOLDED if Lake(str(lake)).load(name)}
    assert ingest(lake, broker).tables["kraft.topics"] == 0
    assert {name: len(Lake(str(lake)).load(name).snapshots()) for name in before} == before


def test_a_log_that_grew_replaces_the_state_in_one_commit(lake: Path, broker: Path) -> None:
    """The metadata log lacks its newest segments, and a log of offsets its second half; then they are there."""
    for checkpoint in broker.glob("__cluster_metadata-0/*.checkpoint"):
        checkpoint.unlink()
    segments = sorted((broker / "__cluster_metadata-0").glob("*.log"))
    offsets = next(path for path in broker.glob("__consumer_offsets-*/*.log") if path.stat().st_size > 1000)
    wholes = {path: path.read_bytes() for path in (*segments[len(segments) // 2 :], offsets)}
    for path, whole in wholes.items():
        path.write_bytes(whole[: len(whole) // 2]) if path == offsets else path.unlink()
    ingest(lake, broker)
    assert_same(lake, broker)
    halfway = stored(lake, "kraft.partitions")
    for path, whole in wholes.items():
        path.write_bytes(whole)
    ingest(lake, broker)
    assert_same(lake, broker)
    assert stored(lake, "kraft.partitions") != halfway
    table = Lake(str(lake)).load("kraft.partitions")
    assert len(table.snapshots()) == 2, "one commit a run"
    first = table.snapshots()[0].snapshot_id
    assert ordered(table.scan(snapshot_id=first).to_arrow().to_pylist()) == halfway, (
        "the old state is there to look back at"
    )


def test_a_run_on_part_of_a_unit_does_not_forget_the_rest(lake: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(SAMPLES / "rocketmq" / "store", store)
    ingest(lake, store)
    assert_same(lake, store)
    (store / "config").mkdir(exist_ok=True)
    topics = {"topicConfigTable": {"new": {"readQueueNums": 3, "writeQueueNums": 3, "perm": 6}}}
    (store / "config" / "topics.json").write_text(json.dumps(topics))
    ingest(lake, store / "config")
    assert_same(lake, store)
    assert [row["topic"] for row in stored(lake, "rocketmq.topics")] == ["new"]


def test_units_that_a_run_does_not_see_stay(lake: Path, broker: Path, tmp_path: Path) -> None:
    crashed = tmp_path / "crashed"
    shutil.copytree(SAMPLES / "kafka-crashed", crashed)
    ingest(lake, broker)
    ingest(lake, crashed)
    assert_same(lake, broker, crashed)
    shutil.rmtree(broker)
    ingest(lake, crashed)
    assert len(stored(lake, "kraft.topics")) > len(raw(crashed, table="kraft.topics"))


def test_replicas_of_one_cluster_tell_one_state(lake: Path, broker: Path, tmp_path: Path) -> None:
    behind = tmp_path / "behind"
    shutil.copytree(broker, behind)
    log = max((behind / "__cluster_metadata-0").glob("*.log"), key=lambda path: path.stat().st_size)
    log.write_bytes(log.read_bytes()[: log.stat().st_size // 2])
    ingest(lake, behind)
    assert_same(lake, behind)
    ingest(lake, broker)
    assert stored(lake, "kraft.topics") == raw(broker, behind, table="kraft.topics")


def test_a_blob_store_is_folded_as_it_reads(lake: Path, tmp_path: Path) -> None:
    store = golden_path("ambry", "store-ops")
    ingest(lake, store)
    assert_same(lake, store)
    assert stored(lake, "ambry.blobs")


def test_secrets_are_masked(lake: Path, broker: Path) -> None:
    ingest(lake, broker)
    users = stored(lake, "kraft.users")
    reported = rawlog.read(str(broker), table="kraft.users", showSecrets="true").to_pylist()
    assert users
    for column in ("salt", "stored_key", "server_key"):
        hidden = {row[column] for row in reported}
        assert not hidden & {row[column] for row in users}
        for value in hidden - {None}:
            assert not any(str(value) in str(row["value"]) for row in stored(lake, "kraft.metadata"))


def test_a_state_that_cannot_be_told_stays_as_it_was(lake: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(SAMPLES / "rocketmq" / "store", store)
    (store / "config").mkdir(exist_ok=True)
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": {"topic@readers": {"0": 7}}}))
    ingest(lake, store)
    offsets.write_text('{"offsetTable": {"topic@rea')
    outcome = ingest(lake, store)
    assert any("rocketmq.offsets" in note and "stays as it was" in note for note in outcome.notes)
    assert [row["group"] for row in stored(lake, "rocketmq.offsets")] == ["readers"]


def test_settings_of_another_shape_are_a_finding_and_the_rest_is_the_state(lake: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(SAMPLES / "rocketmq" / "store", store)
    (store / "config").mkdir(exist_ok=True)
    offsets = store / "config" / "consumerOffset.json"
    offsets.write_text(json.dumps({"offsetTable": {"topic@readers": {"0": 7}, "topic@others": [1]}}))
    ingest(lake, store)
    assert [row["group"] for row in stored(lake, "rocketmq.offsets")] == ["readers"]
    assert "rocketmq.store.config" in {row["code"] for row in stored(lake, "rawlog.findings")}


def test_a_selection_is_kept_and_another_one_replaces_it(lake: Path, broker: Path) -> None:
    from rawlog.reading.select import Selection

    names = {row["topic"] for row in raw(broker, table="kraft.topics")}
    chosen = min(names)
    ingest(lake, broker, selection=Selection(topics=(chosen,), since=0))
    assert {row["topic"] for row in stored(lake, "kraft.topics")} == {chosen}
    ingest(lake, broker)
    assert {row["topic"] for row in stored(lake, "kraft.topics")} == names


def test_tables_without_a_topic_stay_whole_under_a_selection(lake: Path, tmp_path: Path) -> None:
    """`ingest --topic` stored the users and brokers of the bootstrap file alone as those of the cluster."""
    data = tmp_path / "data"
    for name in ("__cluster_metadata-0", "codec-none-0"):
        shutil.copytree(golden_path("kafka", "broker-3.9.2", "data", name), data / name)
    for name in ("bootstrap.checkpoint", "meta.properties"):
        shutil.copy(golden_path("kafka", "broker-3.9.2", "data", name), data)
    ingest(lake, data, selection=Selection(topics=("codec-none",), partitions=(0,)))
    for name in ("kraft.users", "kraft.brokers", "kraft.features", "kraft.configs", "kraft.acls"):
        assert stored(lake, name) == raw(data, table=name), name
    assert {row["topic"] for row in stored(lake, "kraft.partitions")} == {"codec-none"}
    assert {row["topic"] for row in stored(lake, "rawlog.records")} == {"codec-none"}
