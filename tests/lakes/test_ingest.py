"""Ingest on the local engine: nothing lost, nothing twice, whatever happens in between."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event

import polars
import pyarrow as pa
import pytest

import rawlog
from rawlog.engines import choice
from rawlog.lakes import ingest as following
from rawlog.lakes import ingest_plan
from rawlog.lakes import lake as lakes
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.ingest_plan import IngestResult, IngestSplitResult
from rawlog.lakes.lake import Lake
from rawlog.model.errors import AccessError, OptionError
from rawlog.reading import parts
from rawlog.reading.select import Selection
from rawlog.reading.tree import open_tree
from tests.data import duck
from tests.data.partitions import count_bytes, in_logs, make_partitions
from tests.data.recordings import damage, expected, held, ingest, record


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    record(tmp_path / "logs" / "a.log", 50)
    record(tmp_path / "logs" / "b.log", 30, first=1000)
    return tmp_path / "logs"


def test_every_record_is_in_the_lake_as_it_is_in_the_files(lake: Path, logs: Path) -> None:
    outcome = ingest(lake, logs)
    assert outcome.tables == {"rawlog.records": 80, "replay.entries": 80, "rawlog.files": 2, "rawlog.findings": 0}
    assert (outcome.verdict, outcome.files, outcome.unchanged) == ("clean", 2, 0)
    assert held(lake) == expected(logs)
    assert held(lake, "replay.entries") == expected(logs, table="replay.entries")
    assert held(lake, "rawlog.files") == expected(logs, table="files")
    assert held(lake, "rawlog.findings") == []
    (job,) = held(lake, "rawlog.jobs")
    assert (job["run"], job["files"], dict(job["tables"])["rawlog.records"]) == (outcome.run, 2, 80)


def test_a_second_run_adds_nothing(lake: Path, logs: Path) -> None:
    ingest(lake, logs)
    before = {name: len(Lake(str(lake)).load(name).snapshots()) for name in Lake(str(lake)).tables()}
    outcome = ingest(lake, logs)
    assert (outcome.files, outcome.unchanged) == (0, 2)
    assert held(lake) == expected(logs)
    assert {name: len(Lake(str(lake)).load(name).snapshots()) for name in Lake(str(lake)).tables()} == before


def test_a_new_file_is_added_to_the_others(lake: Path, logs: Path) -> None:
    ingest(lake, logs)
    record(logs / "c.log", 5, first=9000)
    assert ingest(lake, logs).tables["rawlog.records"] == 5
    assert held(lake) == expected(logs)
    assert held(lake, "rawlog.files") == expected(logs, table="files")


@pytest.mark.parametrize("cut", [0, 7, 300, 301, 640, 2000])
def test_a_file_that_grew_is_taken_up_where_it_ended(lake: Path, tmp_path: Path, cut: int) -> None:
    whole = record(tmp_path / "whole.log", 40).read_bytes()
    log = tmp_path / "logs" / "a.log"
    log.parent.mkdir()
    log.write_bytes(whole[:cut])
    ingest(lake, log)
    log.write_bytes(whole)
    ingest(lake, log)
    assert held(lake) == expected(log)
    assert held(lake, "replay.entries") == expected(log, table="replay.entries")
    assert held(lake, "rawlog.files") == expected(log, table="files")
    assert held(lake, "rawlog.findings") == expected(log, table="findings")


def test_a_file_that_was_replaced_is_refused_on_request_and_the_lake_stays_as_it_is(lake: Path, logs: Path) -> None:
    ingest(lake, logs)
    before = held(lake)
    record(logs / "a.log", 60, first=500)
    outcome = ingest(lake, logs, on_rewrite="refuse")
    ((path, why),) = outcome.refused
    assert path.endswith("a.log")
    assert "other bytes" in why
    (logs / "a.log").write_bytes(b"")
    ((_, why),) = ingest(lake, logs, on_rewrite="refuse").refused
    assert "truncated or replaced" in why
    assert held(lake) == before


def test_damage_does_not_stop_it(lake: Path, logs: Path) -> None:
    damage(logs / "a.log", 7)
    (logs / "noise.bin").write_bytes(bytes(range(256)))
    (logs / "gone").symlink_to(logs / "nowhere")
    outcome = ingest(lake, logs)
    assert outcome.verdict == "damaged"
    assert held(lake) == expected(logs / "a.log", logs / "b.log")
    findings = held(lake, "rawlog.findings")
    assert findings == expected(logs, table="findings")
    assert {"rawlog.file.unreadable", "rawlog.file.unknown"} < {row["code"] for row in findings}
    again = ingest(lake, logs)
    assert held(lake, "rawlog.findings") == findings
    assert again.errors == 1, "a file that could not be read is tried again"


def test_an_empty_directory_makes_an_empty_lake(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    assert ingest(lake, tmp_path / "logs").files == 0
    assert held(lake) == []


def test_boundaries_that_no_frame_has_are_noticed(
    lake: Path, partitions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that lies: pieces that do not begin and end with a batch are read again, the file in one."""

    def lying(part: parts.Part, group: object, size: int, **_: object) -> list[parts.Part]:
        if part.file.format != "kafka.log" or part.size < 10_000:
            return [part]
        return [replace(part, stop=4_001), replace(part, start=4_001, stop=9_003), replace(part, start=9_003)]

    monkeypatch.setattr(ingest_plan, "cut", lying)
    assert ingest(lake, partitions).verdict == "clean"
    assert held(lake) == expected(partitions)
    assert held(lake, "rawlog.files") == expected(partitions, table="files")


def test_only_the_tables_that_are_asked_for(lake: Path, logs: Path) -> None:
    assert set(ingest(lake, logs, tables=["records"]).tables) == {"rawlog.records", "rawlog.files", "rawlog.findings"}
    assert ingest(lake, logs).tables["replay.entries"] == 80
    assert held(lake) == expected(logs)
    assert held(lake, "replay.entries") == expected(logs, table="replay.entries")
    with pytest.raises(OptionError, match=r"did you mean replay\.entries"):
        Ingest(str(lake), tables=["replay.entry"])


def test_a_store_of_which_some_topics_are_wanted_is_inspected_whole(lake: Path) -> None:
    """Queues of topics that were not asked for counted as missing."""
    outcome = ingest(lake, Path("samples/rocketmq"), selection=Selection(topics=("T*",)))
    assert outcome.tables["rawlog.records"]
    assert not held(lake, "rawlog.findings")


def test_rows_left_out_by_a_selection_stay_out_with_a_word(lake: Path, logs: Path) -> None:
    since = 1_700_000_000_000_000 + 20 * 1_000_000
    assert ingest(lake, logs, selection=Selection(since=since)).tables["rawlog.records"] == 60
    outcome = ingest(lake, logs)
    assert len(held(lake)) == 60
    assert "rows left out then stay out" in outcome.notes[0]


def test_a_lake_in_what_it_is_made_of_is_refused(logs: Path) -> None:
    for lake in (logs / "lake", logs):
        with pytest.raises((OptionError, AccessError)):
            ingest(lake, logs)
    assert sorted(path.name for path in logs.rglob("*.log")) == ["a.log", "b.log"]


def test_a_file_that_vanishes_meanwhile_is_left_out(lake: Path, logs: Path) -> None:
    tree = open_tree(str(logs))
    os.unlink(logs / "b.log")
    with Ingest(str(lake)) as job:
        outcome = choice.run(job, tree)
    assert outcome.errors == 1
    assert held(lake) == expected(logs / "a.log")


# Dying ----------------------------------------------------------------------------------------------------------------

DYING = """
import os, sys
from rawlog.lakes.lake import Lake
from tests.data.recordings import ingest
from pathlib import Path
left = [int(sys.argv[1])]
commit = Lake.commit
def dying(self, *given, **more):
    if left[0] == 0:
        os._exit(9)
    left[0] -= 1
    return commit(self, *given, **more)
Lake.commit = dying
ingest(Path(sys.argv[2]), Path(sys.argv[3]))
"""


def orphans(lake: Path) -> set[str]:
    """Data files that no snapshot names, be it an old one."""
    opened = Lake(str(lake))
    named = set()
    for name in opened.tables():
        table = opened.load(name)
        assert table is not None
        for snapshot in table.snapshots():
            named |= {task.file.file_path for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()}
    return {f"file://{path}" for path in lake.glob("**/*.parquet")} - named


@pytest.mark.parametrize("commits", [0, 1, 3])
def test_killed_before_any_commit_a_rerun_is_right(lake: Path, logs: Path, commits: int) -> None:
    """The process ends between the Parquet files and their commit, for each of the tables in turn."""
    died = subprocess.run(
        [sys.executable, "-c", DYING, str(commits), str(lake), str(logs)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        check=False,
    )
    assert died.returncode == 9
    assert ingest(lake, logs).files == 2
    for name, table in (("rawlog.records", "records"), ("replay.entries", "replay.entries"), ("rawlog.files", "files")):
        assert held(lake, name) == expected(logs, table=table)
    assert orphans(lake) == set()


def test_a_failing_run_leaves_no_file_behind(lake: Path, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **more: object) -> None:
        raise AccessError("disk full")

    monkeypatch.setattr(Lake, "commit", broken)
    with pytest.raises(AccessError, match="disk full"):
        ingest(lake, logs)
    assert not list(lake.glob("**/*.parquet"))


def test_a_commit_can_be_run_again(lake: Path, logs: Path) -> None:
    with Ingest(str(lake)) as job:
        splits = job.plan(open_tree(str(logs)))
        sent = pickle.loads(pickle.dumps(job))
        from rawlog.model.job import Stage

        done = [sent.work(split, Stage(str(job.stage), f"{split.number}-x")) for split in splits]
        job.commit(done)
        job.commit(done)
    assert held(lake) == expected(logs)
    assert len(held(lake, "rawlog.jobs")) == 1


def test_a_run_that_lost_a_race_says_so(lake: Path, logs: Path) -> None:
    with Ingest(str(lake)) as job:
        splits = job.plan(open_tree(str(logs)))
        from rawlog.model.job import Stage

        done = [job.work(split, Stage(str(job.stage), f"{split.number}-x")) for split in splits]
        ingest(lake, logs)
        with pytest.raises(AccessError, match="meanwhile; run again"):
            job.commit(done)
    assert held(lake) == expected(logs)
    assert orphans(lake) == set()


def test_a_run_that_lost_a_race_plans_anew(lake: Path, logs: Path) -> None:
    """Another run takes the same files between the plan and the commit; the loser takes only what is left."""
    with Ingest(str(lake)) as job:
        late = iter([True])

        def run() -> IngestResult:
            outcome = []
            tree = open_tree(str(logs))
            commit = job.commit

            def after_another(done: Sequence[IngestSplitResult]) -> IngestResult:
                if next(late, False):
                    ingest(lake, logs)
                    record(logs / "c.log", 5, first=5000)
                return commit(done)

            job.commit = after_another  # type: ignore[method-assign]
            try:
                outcome.append(choice.run(job, tree, threads=1))
            finally:
                job.commit = commit  # type: ignore[method-assign]
            return outcome[0]

        outcome = job.complete(run)
    assert outcome.tables["rawlog.records"] == 5
    assert held(lake) == expected(logs)
    assert held(lake, "rawlog.files") == expected(logs, table="files")
    assert orphans(lake) == set()


# Places ---------------------------------------------------------------------------------------------------------------


def test_what_cannot_be_a_lake_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(AccessError, match="is a file; a lake is a directory"):
        Ingest(str(tmp_path / "file"))
    with pytest.raises(AccessError, match="holds other files"):
        Ingest(str(tmp_path))
    with pytest.raises(AccessError, match="[Nn]ot a directory"):
        Ingest(str(tmp_path / "file" / "lake"))
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "catalog.db").write_bytes(b"not a database" * 100)
    with pytest.raises(AccessError, match="not a database"):
        Ingest(str(tmp_path / "broken"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(AccessError, match=r"no catalog\.db"):
        Lake(str(tmp_path / "empty"))
    with pytest.raises(AccessError, match="no such file or directory"):
        Lake(str(tmp_path / "new"))
    with pytest.raises(OptionError, match="--catalog"):
        Ingest("s3://bucket/lake")
    with pytest.raises(OptionError, match="catalog 'fnord'"):
        Ingest(str(tmp_path / "new"), catalog="fnord")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_target_is_refused(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(AccessError, match="[Pp]ermission denied"):
        Ingest(str(tmp_path / "closed" / "lake"))


def test_a_lake_of_a_newer_version_is_refused(lake: Path, logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lakes, "VERSION", lakes.VERSION + 1)
        ingest(lake, logs)
    with pytest.raises(AccessError, match="use a newer rawlog"):
        ingest(lake, logs)


# Following ------------------------------------------------------------------------------------------------------------


def test_following_forgets_old_snapshots_but_not_what_was_taken(
    lake: Path, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "TIDY_AFTER", 2)
    monkeypatch.setattr(following, "GRACE", 0)
    stop, taken = Event(), 0
    with Ingest(str(lake)) as job:
        look = lambda: open_tree(str(logs))  # noqa: E731
        for number, outcome in enumerate(following.follow(job, look, lambda tree: choice.run(job, tree), stop, 0.01)):
            taken += outcome.tables["rawlog.records"]
            if number == 5:
                stop.set()
            else:
                record(logs / f"more-{number}.log", 5, first=5000 + 100 * number)
    assert taken == len(held(lake)) == 80 + 5 * 5
    assert held(lake) == expected(logs)
    assert len(Lake(str(lake)).load("rawlog.records").snapshots()) <= 3
    assert ingest(lake, logs).files == 0


# Without rawlog -------------------------------------------------------------------------------------------------------


def test_the_lake_opens_in_pyiceberg_polars_and_duckdb(lake: Path, logs: Path) -> None:
    from pyiceberg.catalog import load_catalog

    ingest(lake, logs)
    catalog = load_catalog("rawlog", type="sql", uri=f"sqlite:///{lake}/catalog.db")
    table = catalog.load_table("rawlog.records")
    assert table.scan(row_filter="offset >= 45").to_arrow().num_rows == 5
    assert table.current_snapshot().summary["rawlog.run"]
    files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
    assert polars.read_parquet(files).height == 80
    assert duck.ask(f"SELECT count(*), sum(octet_length(value)) FROM read_parquet({files})") == [
        (80, sum(len(row["value"]) for row in rawlog.read(logs).to_pylist()))
    ]


# Partitions -----------------------------------------------------------------------------------------------------------


def test_data_files_are_cut_by_topic_and_day(lake: Path, tmp_path: Path) -> None:
    source = tmp_path / "kafka"
    for topic in ("orders", "a-topic-whose-name-is-long-enough-to-be-cut-by-statistics"):
        for partition in (0, 1):
            rows = [{"value": b"%d" % n, "timestamp": 1_700_000_000_000_000 + n * 7_200_000_000} for n in range(60)]
            schema = pa.schema([("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])
            table = pa.Table.from_pylist(rows, schema=schema)
            rawlog.write(source, table, format="kafka", topic=topic, partition=partition)
    ingest(lake, source, partition_by=["topic", "day"])
    assert held(lake) == expected(source)
    table = Lake(str(lake)).load("rawlog.records")
    assert [str(field.transform) for field in table.spec().fields] == ["identity", "day"]
    tasks = list(table.scan().plan_files())
    assert {task.file.partition[0] for task in tasks} == {
        "orders",
        "a-topic-whose-name-is-long-enough-to-be-cut-by-statistics",
    }
    early = "topic = 'orders' and timestamp < '2023-11-15T00:00:00+00:00'"
    one = list(table.scan(row_filter=early).plan_files())
    assert len(one) < len(tasks) / 4, "readers pass over the other partitions"
    rows = [{"value": b"late", "timestamp": 1_700_000_000_000_000}]
    rawlog.write(source, pa.Table.from_pylist(rows, schema=schema), format="kafka", topic="late", partition=0)
    ingest(lake, source)
    assert held(lake) == expected(source), "a lake keeps its partitions without being asked again"
    with pytest.raises(OptionError, match="exists already, partitioned by topic, timestamp_day"):
        ingest(lake, source, partition_by=["topic"])
    with pytest.raises(OptionError, match="did you mean topic"):
        ingest(lake, source, partition_by=["topics"])


# Each byte once ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("logs"))


def test_planning_reads_no_data(lake: Path, partitions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning walked every partition without transaction index for what was aborted: 971 MB of 954."""
    tree = open_tree(str(partitions))
    size = sum(file.size for file in tree)
    read = count_bytes(monkeypatch)
    with Ingest(str(lake)) as job:
        job.plan(tree)
    assert sum(read.values()) < 0.01 * size


@pytest.mark.parametrize("largest", [128 << 20, 300_000])
def test_a_log_is_read_once_for_all_tables_and_checks(
    lake: Path, partitions: Path, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each table, the rules, the measurements and the partition's checks read the log for themselves: seven times in all."""
    monkeypatch.setattr(ingest_plan, "LARGEST", largest)
    monkeypatch.setattr(ingest_plan, "SMALLEST", largest // 2)
    tree = open_tree(str(partitions))
    sizes = {name: sum(file.size for file in tree if file.format == "kafka.log" and file.place.topic == name)
             for name in ("large", "segments-by-size", "transactions")}  # fmt: skip
    read = count_bytes(monkeypatch)
    assert ingest(lake, partitions).verdict == "clean"
    assert in_logs(read, "large-") <= 1.1 * sizes["large"]
    assert in_logs(read, "segments-by-size-") <= 1.1 * sizes["segments-by-size"]
    assert in_logs(read, "transactions-") <= 2.1 * sizes["transactions"]
    monkeypatch.undo()
    for name in ("records", "kafka.records", "kafka.batches", "files", "findings"):
        stored = "rawlog." + name if "." not in name else name
        assert sorted(map(str, held(lake, stored))) == sorted(map(str, expected(partitions, table=name)))
