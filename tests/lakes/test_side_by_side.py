"""Several ingests into one lake at once, and what stands in an ingest's way: nothing is half done, and nothing is in twice."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rawlog.lakes import lake as lakes
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.lake import Lake, Writer, is_alive, living
from rawlog.model.errors import AccessError
from tests.data.recordings import expected, held, ingest, record
from tests.lakes.test_ingest import orphans

ONE_RUN = """
import sys
from pathlib import Path
from tests.data.recordings import ingest
outcome = ingest(Path(sys.argv[1]), *map(Path, sys.argv[2:]))
"""
LIMITED = """
import resource, sys
from pathlib import Path
from rawlog.model.errors import AccessError
from tests.data.recordings import ingest
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2)
try:
    ingest(Path(sys.argv[2]), Path(sys.argv[3]))
except AccessError as error:
    print(error)
    sys.exit(3)
"""


def start(code: str, *arguments: object) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_runs_side_by_side_add_everything_once(tmp_path: Path) -> None:
    """Three processes begin at once on a lake that is not there yet: two take the same directory, one also its own."""
    lake, shared, own = tmp_path / "lake", tmp_path / "shared", tmp_path / "own"
    for number in range(4):
        record(shared / f"{number}.log", 40, first=number * 1000)
    record(own / "own.log", 30, first=9000)
    running = [start(ONE_RUN, lake, *paths) for paths in ([shared], [shared], [own, shared])]
    ended = [(process.communicate()[0], process.returncode) for process in running]
    for output, code in ended:
        assert code == 0, output.decode()
    for name, table in (("rawlog.records", "records"), ("replay.entries", "replay.entries"), ("rawlog.files", "files")):
        assert held(lake, name) == expected(shared, own, table=table)
    assert orphans(lake) == set()
    assert list(living(str(lake))) == []


def test_a_table_that_another_run_creates_at_the_same_moment_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run saw no table, another created it, and the first one's own creation failed with "Table already exists"."""
    from rawlog.model.table import FINDINGS

    first = Lake(str(tmp_path), create=True)
    Lake(str(tmp_path)).ensure(FINDINGS)
    monkeypatch.setattr(first, "load", lambda name: None)
    monkeypatch.setattr(first.catalog, "create_namespace_if_not_exists", first.catalog.create_namespace)
    assert first.ensure(FINDINGS).name() == ("rawlog", "findings")


def test_a_creation_that_fails_for_another_reason_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rawlog.model.table import FINDINGS

    lake = Lake(str(tmp_path), create=True)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(lake.catalog, "create_namespace_if_not_exists", full)
    with pytest.raises(AccessError, match="No space left on device"):
        lake.ensure(FINDINGS)


def test_a_run_that_begins_does_not_sweep_what_another_is_about_to_commit(tmp_path: Path) -> None:
    from rawlog.model.job import Stage
    from rawlog.reading.tree import open_tree

    lake, logs = tmp_path / "lake", tmp_path / "logs"
    record(logs / "a.log", 40)
    with Ingest(str(lake)) as job:
        splits = job.plan(open_tree(str(logs)))
        done = [job.work(split, Stage(str(job.stage), f"{split.number}-x")) for split in splits]
        ingest(lake, record(tmp_path / "other.log", 10, first=500))
        job.commit(done)
    assert held(lake) == expected(logs, tmp_path / "other.log")


def test_a_run_removes_its_files_from_a_table_that_another_run_is_creating(tmp_path: Path) -> None:
    """A run was overtaken while another had written a table's metadata, but not yet its line in the catalog: its files stayed for ever."""
    lake = tmp_path / "lake"
    with Lake(str(lake), create=True) as writing:
        mine = lake / "replay" / "entries" / "data" / "20200101T000000-00000000.1" / "00000-a.parquet"
        other = lake / "replay" / "entries" / "data" / "20200101T000000-00000001.1" / "00000-b.parquet"
        for path in (mine, other, lake / "replay" / "entries" / "metadata" / "00000.metadata.json"):
            path.parent.mkdir(parents=True)
            path.write_bytes(b"")
        assert writing.sweep("20200101T000000-00000000.1") == 1
        assert writing.sweep() == 0
    assert not mine.exists()
    assert other.exists()


def test_two_runs_that_begin_sweep_the_same_leftovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one found a directory, which the first had removed when it was listed, and ended with an error."""
    lake, log = tmp_path / "lake", record(tmp_path / "logs" / "a.log", 10)
    ingest(lake, log)
    left = lake / "rawlog" / "records" / "data" / "20200101T000000-00000000.1"
    left.mkdir()
    (left / "00000-dead.parquet").write_bytes(b"")
    named = Lake.named

    def swept(self: Lake, table: object) -> set[str]:
        shutil.rmtree(left, ignore_errors=True)
        return named(self, table)

    monkeypatch.setattr(Lake, "named", swept)
    ingest(lake, record(tmp_path / "logs" / "b.log", 10))
    assert len(held(lake)) == 20


def test_a_writer_is_alive_as_long_as_its_process_holds_its_lock(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path))
    run = writer.new_run()
    assert is_alive(str(tmp_path), run)
    assert list(living(str(tmp_path))) == [writer.name]
    writer.close()
    assert not is_alive(str(tmp_path), run)
    dead = start(
        f"from rawlog.lakes.lake import Writer\nimport os\nprint(Writer({str(tmp_path)!r}).new_run(), flush=True)\nos._exit(9)"
    )
    run = dead.communicate()[0].decode().strip()
    assert run
    assert not is_alive(str(tmp_path), run)


def test_a_locked_catalog_is_told_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    record(logs / "a.log", 20)
    ingest(lake, logs)
    record(logs / "b.log", 20, first=500)
    monkeypatch.setattr(lakes, "LOCKED", 0.2)
    locking = sqlite3.connect(lake / "catalog.db", isolation_level=None)
    with Ingest(str(lake)) as job:
        from rawlog.engines import choice
        from rawlog.reading.tree import open_tree

        commit = job.commit

        def locked(done: object) -> object:
            locking.execute("BEGIN EXCLUSIVE")
            return commit(done)  # type: ignore[arg-type]

        monkeypatch.setattr(job, "commit", locked)
        with pytest.raises(AccessError, match="catalog is locked by another process"):
            choice.run(job, open_tree(str(logs)))
        locking.execute("ROLLBACK")
    with pytest.raises(AccessError, match="catalog is locked by another process"):
        locking.execute("BEGIN EXCLUSIVE")
        ingest(lake, logs)
    locking.execute("ROLLBACK")
    locking.close()
    assert held(lake) == expected(logs / "a.log")
    ingest(lake, logs)
    assert held(lake) == expected(logs)
    assert orphans(lake) == set()


@pytest.mark.parametrize("fits", [3000, 4000])
def test_a_full_disk_leaves_a_lake_that_can_be_read(tmp_path: Path, fits: int) -> None:
    """The disk is full in the middle of a commit: no file may grow beyond so many bytes, fewer than Iceberg's metadata take."""
    lake, logs = tmp_path / "lake", tmp_path / "logs"
    record(logs / "a.log", 20)
    ingest(lake, logs)
    before = {name: held(lake, name) for name in Lake(str(lake)).tables()}
    for number in range(3):
        record(logs / f"{number}.log", 20, first=500 * (number + 1))
    process = start(LIMITED, fits, lake, logs)
    output, _ = process.communicate()
    assert process.returncode == 3, output.decode()
    assert str(lake) in output.decode()
    done = {name: held(lake, name) for name in Lake(str(lake)).tables()}
    for name, rows in done.items():
        if name not in ("rawlog.files", "rawlog.findings", "rawlog.jobs"):
            table = name.removeprefix("rawlog.")
            assert rows in (before[name], expected(logs, table=table)), f"{name} is half done"
    ingest(lake, logs)
    for name in ("rawlog.records", "replay.entries", "rawlog.files"):
        assert held(lake, name) == expected(logs, table=name.removeprefix("rawlog."))
    assert orphans(lake) == set()


def test_files_that_were_rewritten_in_vain_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that replaced rows of `files` while another one committed first tried again, and its first rewritten file stayed for ever."""
    from pyiceberg.exceptions import CommitFailedException

    lake = tmp_path / "lake"
    record(tmp_path / "in" / "a.log", 40)
    record(tmp_path / "in" / "b.log", 40, first=1000)
    ingest(lake, tmp_path / "in")
    record(tmp_path / "in" / "a.log", 60)
    commit = lakes.exchange
    tries: list[int] = []

    def overtaken(table: object, *arguments: object, **named: object) -> None:
        if len(tries) < 2:
            tries.append(1)

            def lose(*_: object, **__: object) -> None:
                raise CommitFailedException("another run was first")

            with monkeypatch.context() as patch:
                patch.setattr(type(table), "_do_commit", lose)
                commit(table, *arguments, **named)
        commit(table, *arguments, **named)

    monkeypatch.setattr(lakes, "exchange", overtaken)
    ingest(lake, tmp_path / "in")
    assert len(tries) == 2
    assert orphans(lake) == set()
