"""Replicas: stores that are copies of one unit of data are known by their identity, and one of them is read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import rawlog
from rawlog.io.storage import Source
from rawlog.model.errors import OptionError
from rawlog.model.store import Copies
from rawlog.reading.parts import ReplicaNote, copies
from rawlog.reading.tree import open_tree
from tests.data.golden import golden_path
from tests.data.replicas import base_log, broker, copy, offsets

DATA = golden_path("kafka", "broker-4.3.0", "data")


def found(path: Path) -> list[Copies]:
    return copies(open_tree(path).groups)


def names(path: Path) -> list[list[str]]:
    """The replicas below a directory, the best first."""
    return [[str(Path(one).relative_to(path)) for one in some.paths] for some in found(path)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return base_log(tmp_path_factory.mktemp("base"))


@pytest.fixture
def three(tmp_path: Path, base: Path) -> Path:
    """Three brokers; the second one is the furthest."""
    for node, batches in ((1, 20), (2, 40), (3, 31)):
        copy(base, broker(tmp_path / f"disk{node}", node), batches)
    return tmp_path


# Which stores are replicas ------------------------------------------------------------------------------------------------


def test_the_longest_replica_is_the_best(three: Path) -> None:
    assert names(three) == [["disk2/orders-0", "disk3/orders-0", "disk1/orders-0"]]
    assert offsets(three) == list(range(120))
    assert len(offsets(three, replicas="all")) == 3 * (20 + 40 + 31)


def test_a_later_leader_epoch_wins_over_a_longer_log(tmp_path: Path, base: Path) -> None:
    """After an unclean election the older, longer log is the divergent one."""
    copy(base, broker(tmp_path / "a", 1), 40, epoch=3)
    copy(base, broker(tmp_path / "b", 2), 10, epoch=4)
    assert names(tmp_path) == [["b/orders-0", "a/orders-0"]]


def test_replicas_with_other_segments_are_compared_by_what_they_reach(tmp_path: Path, base: Path) -> None:
    other = base_log(tmp_path / "made", segment_bytes=400)
    copy(base, broker(tmp_path / "d" / "a", 1), 20)
    copy(other, broker(tmp_path / "d" / "b", 2), 35)
    assert names(tmp_path / "d") == [["b/orders-0", "a/orders-0"]]
    for log in sorted((tmp_path / "d" / "a" / "orders-0").glob("*"))[:6]:  # nothing in common any more
        log.unlink()
    for log in (tmp_path / "d" / "b" / "orders-0").glob("0000000000000000000[0-4]*"):
        log.unlink()
    assert names(tmp_path / "d") == [["b/orders-0", "a/orders-0"]]


def test_a_topic_that_was_created_again_is_another_one(tmp_path: Path, base: Path) -> None:
    """A disk that was down while a topic was deleted has its old directory under the same name."""
    copy(base, broker(tmp_path / "a", 1), 40, id="old")
    copy(base, broker(tmp_path / "b", 2), 20, id="new")
    copy(base, broker(tmp_path / "c", 3), 25, id="new")
    assert names(tmp_path) == [["c/orders-0", "b/orders-0"]]
    assert len(offsets(tmp_path)) == 3 * (40 + 25)


def test_partitions_of_two_clusters_are_not_replicas(tmp_path: Path, base: Path) -> None:
    copy(base, broker(tmp_path / "a", 1, cluster="A"))
    copy(base, broker(tmp_path / "b", 2, cluster="B"))
    assert names(tmp_path) == []


def test_what_is_not_known_fits_if_it_fits_one(tmp_path: Path, base: Path) -> None:
    copy(base, broker(tmp_path / "a", 1), 40)
    copy(base, broker(tmp_path / "b", 2), 20, id=None)
    copy(base, tmp_path / "copied", 10)
    assert names(tmp_path) == [["a/orders-0", "b/orders-0", "copied/orders-0"]]
    copy(base, broker(tmp_path / "d", 4), 20, id="new")
    copy(base, broker(tmp_path / "e", 5), 21, id="new")
    assert names(tmp_path) == [["a/orders-0", "copied/orders-0"], ["e/orders-0", "d/orders-0"]]


def test_old_brokers_are_told_apart_by_their_number(tmp_path: Path, base: Path) -> None:
    """Without ids of cluster and topic names decide; but two replicas are never on brokers of the same number."""
    copy(base, broker(tmp_path / "a", 1, cluster=None), 20, id=None)
    copy(base, broker(tmp_path / "b", 2, cluster=None), 40, id=None)
    assert names(tmp_path) == [["b/orders-0", "a/orders-0"]]
    broker(tmp_path / "b", 1, cluster=None)
    assert names(tmp_path) == []
    assert found(golden_path("kafka", "legacy")) == []


def test_directories_that_a_broker_would_not_load_are_not_replicas(three: Path, base: Path) -> None:
    for word in ("delete", "stray", "future"):
        copy(base, three / "disk1", name=f"orders-0.{'a' * 32}-{word}")
    assert names(three) == [["disk2/orders-0", "disk3/orders-0", "disk1/orders-0"]]


def test_a_directory_of_one_broker_reads_no_small_files(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an object store each of them would be a request."""
    for number in range(5):
        copy(base, broker(tmp_path / "a", 1), name=f"orders-{number}")
    tree = open_tree(tmp_path)
    opened: list[str] = []
    original = Source.__init__

    def counted(self: Source, path: str, *more: Any, **options: Any) -> None:
        opened.append(path)
        original(self, path, *more, **options)

    monkeypatch.setattr(Source, "__init__", counted)
    assert copies(tree.groups) == []
    assert opened == []
    copy(base, broker(tmp_path / "b", 2), 7, name="orders-0")
    opened.clear()
    assert len(copies(open_tree(tmp_path).groups)) == 1
    assert not any(path.endswith((".log", ".index")) for path in opened), "the same segments: sizes suffice"
    assert len(opened) <= 2 * 5, "two small files of each directory, and of its log directory one each of three"


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_best_gives_the_best_copy_once_and_all_gives_all(
    data: st.DataObject, base: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("copies")
    expected: dict[int, tuple[int, int]] = {}
    total = 0
    for node in range(1, data.draw(st.integers(1, 4)) + 1):
        disk = broker(folder / f"disk{node}", node)
        for number in data.draw(st.sets(st.integers(0, 2))):
            epoch, batches = data.draw(st.integers(0, 1)), data.draw(st.integers(1, 40))
            copy(base, disk, batches, epoch, name=f"orders-{number}")
            expected[number] = max(expected.get(number, (0, 0)), (epoch, batches))
            total += 3 * batches
    if not expected:
        return
    wanted = {(number, offset) for number, (_, batches) in expected.items() for offset in range(3 * batches)}
    rows = rawlog.read(folder, columns=["partition", "offset"]).to_pylist()
    assert sorted((row["partition"], row["offset"]) for row in rows) == sorted(wanted)
    assert rawlog.count(folder) == len(wanted)
    assert rawlog.count(folder, replicas="all") == total


# What verbs do with them --------------------------------------------------------------------------------------------------


def test_the_choice_is_noted(three: Path) -> None:
    notes: list[str] = []
    assert len(list(rawlog.head(three, lines=1000, note=notes.append))) == 120
    used, others = f"{three}/disk2/orders-0", f"{three}/disk3/orders-0, {three}/disk1/orders-0"
    why = "leader epoch 0, up to offset 111 at least"
    assert [str(note) for note in notes] == [f"orders-0 has 3 replicas: {used} is used ({why}), not {others}"]
    assert isinstance(notes[0], ReplicaNote)
    notes.clear()
    assert len(list(rawlog.rows(three / "disk1", note=notes.append))) == 60
    rawlog.rows(three, table="files", note=notes.append)
    assert notes == [], "nothing that is read has replicas"


def test_many_choices_are_summed_up(tmp_path: Path, base: Path) -> None:
    for node in (1, 2):
        for number in range(8):
            copy(base, broker(tmp_path / f"disk{node}", node), 3, name=f"orders-{number}")
    notes: list[str] = []
    rawlog.rows(tmp_path, note=notes.append)
    assert len(notes) == 6
    assert notes[-1].startswith("3 others have replicas too")
    notes.clear()
    rawlog.rows(tmp_path, note=notes.append, partition=3)
    assert len(notes) == 1, "others are not read"


def test_replicas_can_be_refused(three: Path) -> None:
    with pytest.raises(OptionError, match=r"orders-0 was found 3 times: .*disk2/orders-0, .*disk3/orders-0, "):
        rawlog.count(three, replicas="refuse")
    assert rawlog.count(three / "disk3", replicas="refuse") == 93
    with pytest.raises(OptionError, match="best"):
        rawlog.count(three, replicas="bets")  # type: ignore[arg-type]


def test_tables_about_files_have_all_of_them(three: Path) -> None:
    everything = {row["path"] for row in rawlog.ls(three)}
    assert {row["path"] for row in rawlog.read(three, table="files").to_pylist()} == everything
    assert {"disk1", "disk2", "disk3"} <= {Path(path).parts[-3] for path in everything if path.endswith(".log")}
    listing = rawlog.ls(three)
    assert [Path(path).parts[-2] for path in listing.replicas[0].paths] == ["disk2", "disk3", "disk1"]


def test_an_opened_log_reads_one_copy(three: Path) -> None:
    log = rawlog.open(three)
    assert log.table("records").to_arrow().num_rows == 120
    assert log.table("records", replicas="all").to_arrow().num_rows == 273


def test_tail_and_follow_continue_with_the_replica_that_they_began_with(three: Path, base: Path) -> None:
    """Another one may get ahead meanwhile; its rows would come again from the beginning."""
    following = rawlog.follow(three, lines=2)
    assert [row["offset"] for batch in following.first for row in batch.to_pylist()] == [118, 119]
    shutil.rmtree(three / "disk3" / "orders-0")
    copy(base, three / "disk3", 40, epoch=7)
    assert names(three)[0][0] == "disk3/orders-0"
    assert list(following.poll()) == []
    assert list(following.position) == [f"kafka.log {three}/disk2/orders-0"]


def test_a_stream_continues_with_the_replica_that_it_began_with(three: Path, base: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from rawlog.engines.spark.options import parse
    from rawlog.engines.spark.source import StreamReader

    reader = StreamReader(parse({"path": str(three)}), rawlog.rows(three).schema)
    first = reader.latestOffset({}, ReadAllAvailable())
    assert list(first) == [f"kafka.log {three}/disk2/orders-0"]
    assert len(reader.partitions({}, first)) > 0
    shutil.rmtree(three / "disk3" / "orders-0")
    copy(base, three / "disk3", 40, epoch=7)
    assert reader.latestOffset(first, ReadAllAvailable()) == first
    everything = StreamReader(parse({"path": str(three), "replicas": "all"}), reader.schema)
    assert len(everything.latestOffset({}, ReadAllAvailable())) == 3


def test_the_spark_source_has_the_option(three: Path, spark: Any) -> None:
    from rawlog.engines.spark.options import parse
    from rawlog.engines.spark.source import BatchReader

    reader = spark.read.format("rawlog").option("columns", "offset")
    assert reader.load(str(three)).count() == 120
    assert reader.option("replicas", "all").load(str(three)).count() == 273
    with pytest.raises(OptionError, match="orders-0 was found 3 times"):
        BatchReader(parse({"path": str(three), "replicas": "refuse"}), rawlog.rows(three).schema).partitions()


def test_queries_read_one_copy(three: Path) -> None:
    ask: Callable[..., Any] = rawlog.query
    notes: list[str] = []
    one = list(ask("SELECT count(*) AS n FROM records", three, engine="duckdb", note=notes.append))
    assert one == [{"n": 120}]
    assert len(notes) == 1
    assert list(ask("SELECT count(*) AS n FROM records", three, engine="duckdb", replicas="all")) == [{"n": 273}]
    logs = "SELECT count(*) AS n FROM files WHERE format = 'kafka.log' AND path LIKE '%disk1%'"
    assert next(iter(ask(logs, three, engine="duckdb")))["n"] > 0


def test_convert_writes_each_record_once(three: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = tmp_path_factory.mktemp("out")
    report = rawlog.convert(three, out / "rows.jsonl", to="jsonl")
    assert len((out / "rows.jsonl").read_text().splitlines()) == 120
    assert report.notes[0].startswith("orders-0 has 3 replicas")
    rawlog.convert(three, out / "kafka", to="kafka")
    assert offsets(out / "kafka") == list(range(120))


def test_a_target_inside_a_replica_that_is_not_read_is_refused(
    three: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "disk1"
    (three / "disk1").rename(elsewhere)
    (three / "disk1").symlink_to(elsewhere)
    assert names(three)[0][-1] == "disk1/orders-0"
    with pytest.raises(OptionError, match="the target and the source"):
        rawlog.convert(three, elsewhere / "orders-0" / "out", to="parquet")


def test_diff_compares_by_identity(tmp_path: Path, base: Path) -> None:
    """The old directory of a topic that was deleted and created again is not compared with the new one."""
    for side, batches in (("a", 40), ("b", 30)):
        copy(base, broker(tmp_path / side / "disk1", 1), batches, id="new")
        copy(base, broker(tmp_path / side / "disk2", 2), batches - 5, id="new")
        copy(base, broker(tmp_path / side / "disk3", 3), 10, id="old")
    found = rawlog.diff(tmp_path / "a", tmp_path / "b")
    assert found.summary()["only_in_a"] == 30
    assert found.tally.alike == 3 * (30 + 10)


def test_verify_checks_every_copy_and_replicas_are_not_damage(three: Path) -> None:
    shutil.copy(DATA / "codec-none-0" / f"{0:020}.log", three / "disk1" / "orders-0" / f"{0:020}.log")
    places = {Path(one.path).parts[-3] for one in rawlog.verify(three) if one.severity == "error" and one.path}
    assert places == {"disk1"}


def test_verify_against_compares_each_replica_with_the_best_one(three: Path, base: Path, tmp_path: Path) -> None:
    ranges = [
        one for one in rawlog.verify([three / "disk1", three / "disk3"], against=three / "disk2")
        if one.code == "kafka.replica.range"
    ]  # fmt: skip
    assert {Path(one.path).parts[-3] for one in ranges if one.path} == {"disk1", "disk3"}
    alone = rawlog.verify(three / "disk2", against=three)
    assert not any(one.code == "kafka.replica.range" for one in alone), "the best one there is itself"


def test_brokers_of_several_clusters_can_be_verified_together() -> None:
    """Brokers before 2.4 do not write the id of their cluster: their partitions were called duplicates of one broker's."""
    codes = {one.code for one in rawlog.verify(golden_path("kafka", "legacy")) if one.severity == "error"}
    assert codes == set()


# Other systems ------------------------------------------------------------------------------------------------------------


def test_metadata_logs_of_one_cluster_are_replicas(tmp_path: Path) -> None:
    for node in (1, 2):
        shutil.copytree(DATA / "__cluster_metadata-0", tmp_path / f"n{node}" / "__cluster_metadata-0")
        text = (DATA / "meta.properties").read_text().replace("node.id=1", f"node.id={node}")
        (tmp_path / f"n{node}" / "meta.properties").write_text(text)
    last = max((tmp_path / "n1" / "__cluster_metadata-0").glob("*.log"))
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size // 2)
    assert names(tmp_path) == [["n2/__cluster_metadata-0", "n1/__cluster_metadata-0"]]
    for table in ("records", "kraft.metadata", "kraft.topics"):
        assert rawlog.count(tmp_path, table=table) == rawlog.count(tmp_path / "n2", table=table)
    (tmp_path / "n1" / "meta.properties").unlink()
    assert names(tmp_path) == [], "it may be of any cluster"


def test_stores_of_one_ambry_partition_are_replicas(tmp_path: Path) -> None:
    for disk in ("a", "b"):
        shutil.copytree(golden_path("ambry", "store-small"), tmp_path / disk / "77")
    (tmp_path / "a" / "77" / "bootstrap_in_progress").touch()
    shutil.copytree(golden_path("ambry", "store-small"), tmp_path / "c" / "78")
    assert names(tmp_path) == [["b/77", "a/77"]]
    one = rawlog.count(tmp_path / "b", table="ambry.blobs")
    assert rawlog.count(tmp_path, table="ambry.blobs") == 2 * one
    assert rawlog.count(tmp_path, table="ambry.blobs", replicas="all") == 3 * one


def test_rocketmq_stores_are_replicas_if_they_name_their_broker(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(golden_path("rocketmq", "5.1.4", "store"), tmp_path / name)
    assert names(tmp_path) == []
    for name, number in (("a", 0), ("b", 1)):
        (tmp_path / name / "brokerIdentity").write_text(f"cluster#broker-a#{number}")
    assert names(tmp_path) == [["a", "b"]]
    assert rawlog.count(tmp_path) == rawlog.count(tmp_path / "a")
    (tmp_path / "b" / "brokerIdentity").write_text("cluster#broker-b#0")
    assert names(tmp_path) == []


def test_recordings_are_never_replicas(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copy(golden_path("replay", "v2", "find.log"), tmp_path / f"{name}.log")
    assert names(tmp_path) == []
