"""The disks of real dead clusters, damaged at random and rescued: the reference reader compares the result with the truth. No broker runs.

A few damages here, as many as RAWLOG_RESCUES says in `make faults`, for each of the clusters in tests/golden/clusters.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import rawlog
from tests.data.golden import golden_path, unpack
from tests.rescue.damage import damage
from tests.rescue.judge import Verdict, compare, compare_aside, compare_losses, digest, folders_of, read_served
from tests.rescue.life import Journal
from tests.rescue.truth import Cluster, Judgement

COUNT = int(os.environ.get("RAWLOG_RESCUES", "6"))
FIRST = int(os.environ.get("RAWLOG_RESCUES_FIRST", "0"))
NAMES = ("3.9.2-divergent", "4.3.0-unclean", "4.3.0-stale")


@pytest.fixture(scope="module", params=NAMES)
def dead(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A cluster at its death."""
    folder = tmp_path_factory.mktemp("dead")
    unpack(golden_path("clusters", f"{request.param}.tar.xz"), folder)
    return Cluster(folder / "disks")


def test_the_disks_have_what_was_acknowledged(dead: Cluster) -> None:
    """The truth is judged, too: by what Kafka answered its clients."""
    journal = Journal.load(dead.root.parent / "journal.json")
    assert not dead.check(journal)
    assert sum(one.acked and one.acks == -1 for one in journal.sent) > 500
    if journal.end in ("divergent", "unclean"):
        whole = damage_of(dead, dead.root.parent / "whole", 0, clean=True)
        assert any(one.aside for one in whole.truth().partitions.values())


def damage_of(dead: Cluster, folder: Path, seed: int, clean: bool = False) -> Judgement:
    return Judgement(dead, damage(dead.root, folder, seed, metadata=True if clean else None, clean=clean))


@pytest.mark.timeout(0 if COUNT > 6 else 600)
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_damaged_disks(dead: Cluster, seed: int, tmp_path: Path) -> None:
    judgement = damage_of(dead, tmp_path / "disks", seed)
    truth, damaged = judgement.truth(), judgement.damaged
    before = digest(damaged.disks)
    report = rawlog.rescue([str(disk) for disk in damaged.disks], to=tmp_path / "rescued", engine="local")
    assert digest(damaged.disks) == before
    served = read_served(folders_of(tmp_path / "rescued"))
    wrong = [*served.wrong, *compare(truth, served, damaged.has_metadata)]
    wrong += compare_losses(truth, report.facts["plan"], served, damaged.has_metadata)
    wrong += compare_aside(truth, tmp_path / "rescued.divergent")
    assert not wrong, str(Verdict(wrong, damaged.done))


@pytest.mark.skipif(find_spec("rawlog.reading.parts") is None, reason="replicas are not recognised yet")
def test_ingest_of_all_disks_gives_each_record_once(dead: Cluster, tmp_path: Path) -> None:
    """Rows of a topic that was replaced are left out: the disks have both of its lives."""
    rawlog.ingest([str(disk) for disk in dead.disks], to=tmp_path / "lake", engine="local")
    files = sorted((tmp_path / "lake" / "rawlog" / "records").rglob("*.parquet"))
    rows = pq.read_table(files, columns=["topic", "partition", "offset", "key", "value"]).to_pylist()
    ids: dict[str, set[str]] = {}
    for topic, _, topic_id in dead.replicas:
        ids.setdefault(topic, set()).add(topic_id)
    found: dict[tuple[str, int], list[tuple[object, ...]]] = {}
    for row in rows:
        found.setdefault((row["topic"], row["partition"]), []).append((row["offset"], row["key"], row["value"]))
    for (topic, partition, _), replicas in dead.living().items():
        if len(ids[topic]) == 1 and not topic.startswith("__"):
            log = dead.log(replicas)
            records = [record for one in log.batches if not one.batch.is_control for record in one.batch.records]
            expected = [(record.offset, record.key, record.value) for record in records]
            assert sorted(found.get((topic, partition), []), key=lambda one: one[0]) == expected, (topic, partition)


def test_a_run_that_was_killed_before_its_last_step_can_be_resumed(dead: Cluster, tmp_path: Path) -> None:
    """What is set aside is put in place just before the result. A run that was killed between the two could not be resumed: DST.divergent
    existed already.
    """
    disks = [str(disk) for disk in dead.disks]
    rawlog.rescue(disks, to=tmp_path / "rescued", engine="local")
    kept = sorted(path.relative_to(tmp_path) for path in tmp_path.glob("rescued.divergent/**/*.log"))
    (tmp_path / "rescued").rename(tmp_path / "stage")
    rawlog.rescue(disks, to=tmp_path / "rescued", engine="local", resume=True)
    assert sorted(path.relative_to(tmp_path) for path in tmp_path.glob("rescued.divergent/**/*.log")) == kept
    assert folders_of(tmp_path / "rescued")


@pytest.mark.parametrize("brokers", [1, 3])
def test_a_run_that_was_killed_while_it_placed_its_units_can_be_resumed(
    dead: Cluster, brokers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units that a killed run had moved into its unfinished result were missing in the next one: "No such file or directory"."""
    from rawlog.io.output import Folder

    disks, take, taken = [str(disk) for disk in dead.disks], Folder.take, []

    def dies(self: Folder, source: str | Path, path: str) -> None:
        if not Path(source).parent.name.startswith("finished") and "finished" in str(source):
            taken.append(path)
            if len(taken) > 5:
                raise KeyboardInterrupt
        take(self, source, path)

    monkeypatch.setattr(Folder, "take", dies)
    with pytest.raises(KeyboardInterrupt):
        rawlog.rescue(disks, to=tmp_path / "rescued", brokers=brokers, engine="local")
    monkeypatch.undo()
    rawlog.rescue(disks, to=tmp_path / "rescued", brokers=brokers, engine="local", resume=True)
    assert len(folders_of(tmp_path / "rescued")) == brokers
