"""Restored directories: what is carried, under which names, as of which moment; and what is refused."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.engines import choice
from rawlog.formats.kafka.cluster.internal_topics import partition_of
from rawlog.lakes.ingest import Ingest
from rawlog.model.errors import (
    AccessError,
    DataError,
    EncodeError,
    OptionError,
)
from rawlog.model.recovery import RestoreOptions
from rawlog.model.report import Report
from rawlog.model.table import RECORDS
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs.restore import Restore
from tests.data.ambry_stores import store_path
from tests.data.golden import golden_path
from tests.data.trees import digests

SAMPLES = Path(__file__).parent.parent.parent / "samples"
KAFKA = SAMPLES / "kafka"
SORT = [("topic", "ascending"), ("partition", "ascending"), ("offset", "ascending")]


def restored(source: Path, target: Path, **asked: Any) -> Report:
    tree = Tree((str(source),), ()) if (source / "catalog.db").is_file() else open_tree(source)
    with Restore(str(target), RestoreOptions(**asked)) as job:
        return choice.run(job, tree)


def logs(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.log"))}


def records(path: Path, **selection: Any) -> Any:
    rows = rawlog.read(path, **selection)
    return rows.filter(pc.invert(pc.starts_with(rows["topic"], "__"))).sort_by(SORT)


def clean(path: Path) -> None:
    found = [one for one in rawlog.verify(path) if str(one.severity) != "info"]
    assert not found, [(one.code, one.path, one.message) for one in found]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("restore") / "data"
    before = digests(KAFKA)
    assert restored(KAFKA, target).is_whole
    assert digests(KAFKA) == before
    return target


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("restore") / "lake"
    with Ingest(str(path)) as job:
        job.complete(lambda: choice.run(job, open_tree([KAFKA, SAMPLES / "replay"])))
    return path


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    copy = tmp_path / "damaged"
    shutil.copytree(KAFKA, copy)
    path = copy / "segments-by-size-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[3000] ^= 1
    path.write_bytes(data)
    return copy


def test_every_batch_is_carried_as_it_is(whole: Path) -> None:
    clean(whole)
    mine, theirs = logs(whole), logs(KAFKA)
    assert set(theirs) - set(mine) == {
        name for name in theirs if name.startswith("__cluster_metadata") or "-delete/" in name
    }
    for name, data in mine.items():
        if name.startswith("__consumer_offsets"):
            assert data.startswith(theirs[name]), name
        else:
            assert data == theirs[name], name
    assert records(whole).equals(records(KAFKA))
    assert not (whole / "__cluster_metadata-0").exists()


def test_topics_and_settings_come_from_the_metadata_log(whole: Path) -> None:
    for table in ("topics", "users", "acls", "quotas"):
        mine, theirs = (
            rawlog.read(path, table=f"kraft.{table}").drop(["cluster_id"]).to_pylist() for path in (whole, KAFKA)
        )
        if table == "topics":
            for row in (*mine, *theirs):
                row["configs"] = {name: value for name, value in row["configs"] if not name.startswith("retention.")}
                del row["offline"], row["under_replicated"]
        assert mine == theirs, table
    configs = rawlog.read(whole, table="kraft.configs", where="name = 'retention.ms'").to_pylist()
    assert {row["value"] for row in configs} == {"-1"}
    assert "segments-by-size" in {row["resource_name"] for row in configs}
    assert "compacted" not in {row["resource_name"] for row in configs}
    kept = rawlog.read(whole, table="kafka.batches", columns=["producer_id"])["producer_id"]
    state = CliRunner().invoke(cli, ["cluster", str(whole), "--json"]).output.splitlines()[0]
    assert json.loads(state)["next_producer_id"] > pc.max(kept).as_py()


def test_offsets_are_committed_anew_at_the_time_of_the_restore(whole: Path) -> None:
    columns = ["group", "topic", "partition", "committed_offset", "metadata"]

    def current(path: Path) -> Any:
        rows = rawlog.read(path, table="kafka.offsets", where="is_current AND NOT deleted")
        return rows.sort_by([("group", "ascending"), ("topic", "ascending"), ("partition", "ascending")])

    mine, theirs = current(whole), current(KAFKA)
    assert theirs.num_rows > 2
    assert mine.select(columns).equals(theirs.select(columns))
    assert pc.min(mine["commit_timestamp"]).as_py() > pc.max(theirs["commit_timestamp"]).as_py()


def test_chosen_topics_under_other_names_keep_their_groups(tmp_path: Path) -> None:
    found = rawlog.read(KAFKA, table="kafka.offsets", where="is_current AND NOT deleted").to_pylist()
    topic = found[0]["topic"]
    report = restored(KAFKA, tmp_path / "data", topics=(topic,), rename={topic: "other.name"})
    clean(tmp_path / "data")
    rows = rawlog.read(KAFKA, topic=topic).drop(["topic"]).sort_by(SORT[1:])
    assert rawlog.read(tmp_path / "data", topic="other.name").drop(["topic"]).sort_by(SORT[1:]).equals(rows)
    mine = rawlog.read(tmp_path / "data", table="kafka.offsets").to_pylist()
    wanted = {(row["group"], row["partition"], row["committed_offset"]) for row in found if row["topic"] == topic}
    assert {(row["group"], row["partition"], row["committed_offset"]) for row in mine} == wanted
    assert {row["topic"] for row in mine} == {"other.name"}
    assert report.counts["offsets_committed"] == len(wanted)
    count = len(list((tmp_path / "data").glob("__consumer_offsets-*")))
    batches = rawlog.read(tmp_path / "data", table="kafka.records", topic="__consumer_offsets").to_pylist()
    for row in mine:
        at = [one["partition"] for one in batches if row["group"].encode() in one["key"]]
        assert set(at) == {partition_of(row["group"], count)}


def test_the_coordinator_of_a_group_is_that_of_the_broker() -> None:
    """As a real broker put them: each record of its offsets stands in the partition that its group's name leads to."""
    rows = rawlog.read(KAFKA, table="kafka.offsets", columns=["group", "path"]).to_pylist()
    assert rows
    for row in rows:
        assert partition_of(row["group"], 3) == int(Path(row["path"]).parent.name.rpartition("-")[2])
    assert partition_of("polygenelubricants", 50) == 0  # its hash is the smallest of all, which has no absolute value


def test_a_moment_has_what_was_written_before_it(tmp_path: Path) -> None:
    rows = rawlog.read(KAFKA, table="kafka.records", topic="transactions", where="is_control")
    moment = sorted(rows["timestamp"].cast("int64").to_pylist())[rows.num_rows // 2]
    report = restored(KAFKA, tmp_path / "data", until=moment)
    clean(tmp_path / "data")
    assert report.counts["transactions_aborted"]
    then = rawlog.read(KAFKA, table="kraft.topics", option={"atTimestamp": str(moment // 1000 - 1)})["topic"]
    old = records(KAFKA, until=moment // 1000)
    assert set(pc.unique(old["topic"]).to_pylist()) - set(then.to_pylist())  # made later, and so not there
    expected = old.filter(pc.is_in(old["topic"], then.combine_chunks()))
    assert records(tmp_path / "data").to_pylist() == expected.to_pylist()
    committed = records(tmp_path / "data", isolation="read_committed", topic="transactions")
    assert 0 < committed.num_rows < records(KAFKA, isolation="read_committed", topic="transactions").num_rows
    assert rawlog.read(tmp_path / "data", table="kafka.records", topic="transaction*", where="aborted").num_rows


def test_a_lake_gives_the_committed_records_back(lake: Path, tmp_path: Path) -> None:
    report = restored(lake, tmp_path / "data")
    clean(tmp_path / "data")
    assert report.is_whole, report.lines()
    drop = ["timestampType"]
    floor = records(KAFKA, isolation="read_committed")
    mine = records(tmp_path / "data")
    both = [rows.filter(pc.not_equal(rows["topic"], "transaction-open")).drop(drop) for rows in (mine, floor)]
    assert both[0].to_pylist() == both[1].to_pylist()
    topics = {row["topic"]: row for row in rawlog.read(tmp_path / "data", table="kraft.topics").to_pylist()}
    old = {row["topic"]: row for row in rawlog.read(KAFKA, table="kraft.topics").to_pylist()}
    assert topics["meta-grown"]["topic_id"] == old["meta-grown"]["topic_id"]
    assert topics["meta-grown"]["partitions"] == old["meta-grown"]["partitions"]
    assert dict(topics["compacted"]["configs"])["cleanup.policy"] == "compact"
    assert rawlog.read(tmp_path / "data", table="kafka.offsets").num_rows == report.counts["offsets_committed"] > 0


def test_rows_of_a_lake_that_kafka_cannot_take_are_refused_or_left_out_by_name(tmp_path: Path) -> None:
    """They were left out with a note and exit code 0."""
    store, lake = store_path("store-small"), tmp_path / "lake"
    with Ingest(str(lake)) as job:
        job.complete(lambda: choice.run(job, open_tree(store)))
    strange = sorted(set(rawlog.read(store, columns=["topic"])["topic"].to_pylist()))
    with pytest.raises(OptionError, match=re.escape(repr(strange[0]))):
        restored(lake, tmp_path / "data")
    names = {name: f"blobs-{number}" for number, name in enumerate(strange)}
    assert restored(lake, tmp_path / "data", rename=names).counts["records"] == rawlog.read(store).num_rows
    with pytest.raises(EncodeError, match="--topic chooses"):
        restored(store, tmp_path / "other")
    with Ingest(str(tmp_path / "nameless")) as job:
        job.complete(lambda: choice.run(job, open_tree(SAMPLES / "replay")))
    with pytest.raises(OptionError, match="without a topic or partition are left out; with --topic"):
        restored(tmp_path / "nameless", tmp_path / "other")


def test_topics_of_other_systems_in_a_lake_are_told(tmp_path: Path) -> None:
    store = store_path("store-small")
    with Ingest(str(tmp_path / "lake")) as job:
        job.complete(lambda: choice.run(job, open_tree([KAFKA / "codec-none-0", store])))
    report = restored(tmp_path / "lake", tmp_path / "data")
    [note] = [note for note in report.notes if "other systems" in note]
    assert all(name in note for name in set(rawlog.read(store, columns=["topic"])["topic"].to_pylist()))
    assert records(tmp_path / "data")["topic"].unique().to_pylist() == ["codec-none"]


def test_parquet_files_in_any_order_are_restored_in_order(tmp_path: Path) -> None:
    rows = rawlog.read(KAFKA, topic=["codec-*", "segments-*"])
    (tmp_path / "files").mkdir()
    for number in range(3):
        part = rows.filter(pc.equal(pc.bit_wise_and(rows["offset"], 3), number))
        pq.write_table(part, tmp_path / "files" / f"{3 - number}.parquet")
    rest = rows.filter(pc.equal(pc.bit_wise_and(rows["offset"], 3), 3)).sort_by([("offset", "descending")])
    pq.write_table(rest, tmp_path / "files" / "0.parquet")
    report = restored(tmp_path / "files", tmp_path / "data")
    clean(tmp_path / "data")
    assert records(tmp_path / "data").equals(rows.sort_by(SORT))
    assert report.facts["metadata_version"] == 21
    bare = rows.drop(["topic"])
    pq.write_table(bare, tmp_path / "bare.parquet")
    with pytest.raises(OptionError, match="no column topic"):
        restored(tmp_path / "bare.parquet", tmp_path / "other")


def test_rows_of_another_system_are_restored(tmp_path: Path) -> None:
    report = restored(SAMPLES / "rocketmq", tmp_path / "data", topics=("T2",), rename={"T2": "two"})
    clean(tmp_path / "data")
    columns = ["key", "value", "partition", "offset", "timestamp", "headers"]
    assert (
        rawlog.read(tmp_path / "data")
        .select(columns)
        .equals(rawlog.read(SAMPLES / "rocketmq", topic="T2").select(columns))
    )
    assert report.counts["records"] > 10


def test_damage_is_refused_or_left_out_by_name(damaged: Path, tmp_path: Path) -> None:
    before = digests(damaged)
    with pytest.raises(DataError, match="checksum"):
        restored(damaged, tmp_path / "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["damaged"]
    report = restored(damaged, tmp_path / "data", errors="skip")
    assert not report.is_whole
    clean(tmp_path / "data")
    lost = report.parts["segments-by-size-0"]
    assert lost.counts["bytes_lost"]
    assert any(line.startswith("dropped") and "checksum" in line for line in lost.lines())
    assert records(tmp_path / "data").equals(records(damaged, errors="skip"))
    stopped = restored(damaged, tmp_path / "stopped", errors="stop")
    assert stopped.parts["segments-by-size-0"].counts["records"] < lost.counts["records"]
    clean(tmp_path / "stopped")
    assert digests(damaged) == before


def test_an_unfinished_last_batch_is_normal_and_one_in_the_middle_is_not(tmp_path: Path) -> None:
    shutil.copytree(KAFKA / "segments-by-size-0", tmp_path / "source" / "segments-by-size-0")
    first, *_, last = sorted((tmp_path / "source").rglob("*.log"))
    last.write_bytes(last.read_bytes()[:-7])
    max(last.parent.glob("*.snapshot")).unlink()  # it says that the batch was whole
    (last.parent / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")  # so does an epoch that begins after it
    report = restored(tmp_path / "source", tmp_path / "data")
    assert report.is_whole
    assert any("unfinished batch" in line for line in report.lines())
    clean(tmp_path / "data")
    first.write_bytes(first.read_bytes()[:-7])
    with pytest.raises(DataError):
        restored(tmp_path / "source", tmp_path / "other")
    report = restored(tmp_path / "source", tmp_path / "other", errors="skip")
    assert not report.is_whole
    assert [last for _, last in report.parts["segments-by-size-0"].lost] == [
        int(sorted(first.parent.glob("*.log"))[1].stem) - 1
    ]
    clean(tmp_path / "other")  # the loss was reported; the result has the names of segments that repair gives them


def test_a_segment_that_is_gone_is_reported(tmp_path: Path) -> None:
    """A restore of a partition without one of its segments ended with exit code 0 and said nothing."""
    source = tmp_path / "source"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0"), source / "segments-by-size-0")
    paths = sorted((source / "segments-by-size-0").glob("*.log"))
    first, last = int(paths[2].stem), int(paths[3].stem) - 1
    paths[2].unlink()
    report = restored(source, tmp_path / "target")
    assert not report.is_whole
    assert report.parts["segments-by-size-0"].lost == [(first, last)]
    assert any(f"lost offsets {first} to {last}" in line for line in report.lines())
    run = CliRunner().invoke(cli, ["restore", str(source), str(tmp_path / "again")])
    assert run.exit_code == 1
    damaged = bytearray(paths[1].read_bytes())
    damaged[3000:9000] = bytes(6000)
    paths[1].write_bytes(damaged)
    report = restored(source, tmp_path / "third", errors="skip")
    assert report.parts["segments-by-size-0"].lost[-1] == (first, last)
    (source / "cleaner-offset-checkpoint").write_text(f"0\n1\nsegments-by-size 0 {last + 1}\n")
    for path in paths[2].parent.glob(f"{paths[2].stem}.*"):  # the cleaner deletes what belongs to a segment with it
        path.unlink()
    report = restored(source, tmp_path / "fourth", errors="skip")
    assert all(end < first for _, end in report.parts["segments-by-size-0"].lost)


def test_logs_of_every_age_are_carried(tmp_path: Path) -> None:
    for broker in sorted(golden_path("kafka", "legacy").glob("broker-*")):
        source = broker / "data" if (broker / "data").is_dir() else broker
        report = restored(source, tmp_path / broker.name)
        assert report.is_whole, report.lines()
        mine, theirs = logs(tmp_path / broker.name), logs(source)
        for name, data in mine.items():
            assert data.startswith(theirs[name]), name
        assert records(tmp_path / broker.name).to_pylist() == records(source).to_pylist()


def test_what_the_source_does_not_have_is_told(tmp_path: Path) -> None:
    shutil.copytree(KAFKA, tmp_path / "source")
    shutil.rmtree(tmp_path / "source" / "codec-none-1")
    shutil.copytree(tmp_path / "source" / "codec-none-0", tmp_path / "source" / "unheard-of-0")
    report = restored(tmp_path / "source", tmp_path / "data")
    assert report.facts["missing"] == ["codec-none-1"]
    assert not report.is_whole
    assert any("unheard-of-0 is left out" in note for note in report.notes)
    assert any("the quorum of the source is dynamic" in note for note in report.notes)
    topics = {
        row["topic"]: row["partitions"] for row in rawlog.read(tmp_path / "data", table="kraft.topics").to_pylist()
    }
    assert topics["codec-none"] == 2
    assert "unheard-of" not in topics
    named = restored(tmp_path / "source", tmp_path / "named", topics=("unheard-of",))
    assert set(named.parts) == {"unheard-of-0"}


def test_only_partitions_go_into_a_directory_that_is_there(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "data")
    asked = {"topics": ("trimmed",), "rename": {"trimmed": "codec-mixed"}, "partitions_only": True}
    with pytest.raises(AccessError, match="exists already"):
        restored(KAFKA, tmp_path / "data", **asked)
    kept = (tmp_path / "data" / "codec-mixed-0" / "partition.metadata").read_bytes()
    restored(KAFKA, tmp_path / "data", overwrite=True, **asked)
    assert (tmp_path / "data" / "codec-mixed-0" / "partition.metadata").read_bytes() == kept
    starts = (tmp_path / "data" / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    assert starts == ["codec-mixed 0 57", "trimmed 0 57"]
    clean(tmp_path / "data")
    alone = restored(KAFKA, tmp_path / "alone", topics=("codec-gzip",), partitions_only=True)
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == ["codec-gzip-0", "codec-gzip-1"]
    assert "cluster_id" not in alone.facts


def test_a_target_that_cannot_be_is_refused_and_nothing_is_left(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("mine")
    with pytest.raises(AccessError, match="exists already"):
        restored(KAFKA, tmp_path / "there")
    assert (tmp_path / "there" / "file").read_text() == "mine"
    restored(KAFKA, tmp_path / "there", topics=("codec-none",), overwrite=True)
    assert not (tmp_path / "there" / "file").exists()
    for inside in (KAFKA / "new", KAFKA, KAFKA.parent):
        with pytest.raises((OptionError, AccessError), match="inside one another|exists already"):
            restored(KAFKA, inside)
    assert not (KAFKA / "new").exists()

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AccessError, match="No space left"):
        restored(KAFKA, tmp_path / "full")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(AccessError, match="denied"):
        restored(KAFKA, tmp_path / "locked" / "data")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--rename", "codec-none"], 2, "OLD=NEW"),
        (["--rename", "nothing=x"], 2, "no such topic"),
        (["--rename", "codec-none=codec-gzip"], 2, "two topics"),
        (["--rename", "codec-none=a b"], 2, "not a valid name for a topic"),
        (["--topic", "nothing-*"], 2, "no topic here is asked for"),
        (["--metadata-version", "9.9"], 2, "a release such as"),
        (["--cluster-id", "x"], 2, "22 characters"),
        (["--until", "soon"], 2, "soon"),
    ],
)
def test_wrong_options_are_told(options: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["restore", str(KAFKA), str(tmp_path / "data"), *options])
    assert done.exit_code == code, done.output + done.stderr
    assert said in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_verb_tells_what_it_did(damaged: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["restore", str(KAFKA), str(tmp_path / "data"), "--topic", "codec-*", "--json"])
    assert done.exit_code == 0, done.output + done.stderr
    reported = json.loads(done.output)
    assert reported["topics"] == 7  # with the one for offsets
    assert reported["parts"]["codec-none-0"]["records"] == 85
    assert reported["metadata_version"] == 30
    lost = CliRunner().invoke(
        cli, ["restore", str(damaged), str(tmp_path / "skipped"), "--errors", "skip", "--metadata-version", "3.9"]
    )
    assert lost.exit_code == 1
    assert "something was lost" in lost.output
    assert "metadata version 21, release 3.9-IV0" in lost.output
    refused = CliRunner().invoke(cli, ["restore", str(damaged), str(tmp_path / "refused")])
    assert refused.exit_code == 1
    assert "checksum" in refused.stderr
    nothing = CliRunner().invoke(cli, ["restore", str(tmp_path / "gone"), str(tmp_path / "x")])
    assert nothing.exit_code == 3


def test_spark_restores_the_same(spark: Any, whole: Path, tmp_path: Path) -> None:
    from rawlog.engines.spark import engine as on_spark

    with Restore(str(tmp_path / "data"), RestoreOptions()) as job:
        report = on_spark.run(job, open_tree(KAFKA), spark)
    assert report.is_whole
    mine, theirs = logs(tmp_path / "data"), logs(whole)
    assert {name for name in mine if mine[name] != theirs[name]} <= {
        name for name in mine if name.startswith("__consumer_offsets")
    }
    assert set(mine) == set(theirs)


def test_a_partition_number_that_cannot_be_takes_no_time(tmp_path: Path) -> None:
    shutil.copytree(KAFKA / "codec-none-0", tmp_path / "source" / "codec-none-2147483647")
    with pytest.raises(OptionError, match="partition 2,147,483,647"):
        restored(tmp_path / "source", tmp_path / "data")


def test_offsets_can_be_left_out(tmp_path: Path) -> None:
    report = restored(KAFKA, tmp_path / "data", offsets=False)
    assert report.counts["offsets_committed"] == 0
    assert not list((tmp_path / "data").glob("__consumer_offsets-*"))
    assert restored(KAFKA, tmp_path / "some", topics=("codec-*",), offsets=False).counts["topics"] == 6


def test_a_partition_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(KAFKA / "codec-none-0", tmp_path / name / "codec-none-0")
    with pytest.raises(OptionError, match="more than once"):
        restored(tmp_path, tmp_path.parent / "data")


def test_a_name_that_kafka_does_not_take_is_refused(tmp_path: Path) -> None:
    rows = rawlog.read(KAFKA, topic="idempotent", partition=0).to_pylist()
    for number, name in enumerate(("../../escaped", "evil;rm", "..")):
        source = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist([row | {"topic": name} for row in rows], schema=RECORDS.schema), source)
        with pytest.raises(OptionError, match="Kafka takes no such name; `restore --rename` gives it another"):
            restored(source, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.parquet", "1.parquet", "2.parquet"]


def disks(tmp_path: Path, count: int = 3) -> list[Path]:
    """The same log directory as several brokers have it; the first one lacks the end of a partition."""
    made = []
    for node in range(1, count + 1):
        folder = tmp_path / f"disk{node}"
        for name in ("codec-none-0", "codec-none-1", "__cluster_metadata-0"):
            shutil.copytree(KAFKA / name, folder / name)
        text = (KAFKA / "meta.properties").read_text().replace("node.id=1", f"node.id={node}")
        (folder / "meta.properties").write_text(text)
        made.append(folder)
    with (made[0] / "codec-none-0" / f"{0:020}.log").open("r+b") as file:
        file.truncate(3000)
    return made


def test_of_several_disks_the_best_replicas_are_restored(tmp_path: Path) -> None:
    """It was refused: each partition had to be chosen by hand, and a stale one was taken without a message."""
    report = rawlog.restore(disks(tmp_path), tmp_path / "data", topic="codec-none", engine="local")
    assert records(tmp_path / "data").num_rows == rawlog.count(KAFKA, topic="codec-none")
    assert any(note.startswith("codec-none-0 has 3 replicas: ") and "disk2" in note for note in report.notes)
    with pytest.raises(OptionError, match="found 3 times"):
        rawlog.restore(disks(tmp_path / "x"), tmp_path / "again", replicas="refuse", engine="local")


def test_a_disk_that_was_not_in_sync_is_noted(tmp_path: Path) -> None:
    """The metadata says that broker 1 has everything; the disk of another one may lack records."""
    one, two = disks(tmp_path, 2)
    alone = rawlog.restore(two, tmp_path / "data", topic="codec-none", engine="local")
    said = [note for note in alone.notes if note.startswith("codec-none-0")]
    assert len(said) == 1
    assert said[0].startswith("codec-none-0: this replica comes from node 2, which")
    best = rawlog.restore(one, tmp_path / "own", topic="codec-none", engine="local", errors="skip")
    assert not any("not in sync" in note for note in best.notes)


def test_of_a_topic_that_was_created_again_the_one_that_the_cluster_knows_is_restored(tmp_path: Path) -> None:
    """A disk that was down meanwhile still has the old directory under the same name: restore was refused."""
    _, two = disks(tmp_path, 2)
    shutil.rmtree(tmp_path / "disk1")
    old = tmp_path / "old" / "codec-none-0"
    shutil.copytree(KAFKA / "codec-none-1", old)
    (old / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    report = rawlog.restore([two, tmp_path / "old"], tmp_path / "data", engine="local")
    assert records(tmp_path / "data").num_rows == rawlog.count(KAFKA, topic="codec-none")
    assert any(note.startswith(f"{old} is left out") for note in report.notes)
