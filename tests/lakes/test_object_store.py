"""A lake in an object store: the same rows, the catalog in a local file, and no credentials anywhere."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rawlog.lakes.ingest import Ingest
from rawlog.lakes.ingest_plan import IngestResult
from rawlog.lakes.lake import Lake
from rawlog.lakes.names import is_lake
from rawlog.lakes.upkeep import keep, run_here
from rawlog.model.errors import OptionError
from rawlog.model.job import Stage
from rawlog.reading.tree import open_tree
from tests.data.recordings import expected, held, record, stored

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

SECRET = "hidden-in-the-environment"


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    s3.filesystem().create_dir("lakes")
    return "s3://lakes"


def take(lake: str, catalog: Path, source: Path) -> IngestResult:
    from rawlog.engines import choice

    with Ingest(lake, catalog=str(catalog)) as job:
        assert SECRET not in repr(pickle.dumps(job))
        return job.complete(lambda: choice.run(job, open_tree(str(source)), threads=2))


def test_a_lake_in_a_bucket_takes_every_record_once(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    from pyarrow.fs import FileSelector

    lake, catalog, logs = f"{bucket}/{tmp_path.name}", tmp_path / "catalog.db", tmp_path / "logs"
    for number in range(4):
        record(logs / f"{number}.log", 20, first=number * 100)
        assert take(lake, catalog, logs).tables["rawlog.records"] == 20
    assert take(lake, catalog, logs).files == 0
    opened = Lake(str(catalog))
    assert is_lake(str(catalog))
    assert held(catalog) == expected(logs)
    assert stored(catalog, "replay.entries") == expected(logs, table="replay.entries")
    assert all(path.startswith(lake) for path in opened.data_files("rawlog.records"))
    with Lake(lake, catalog=str(catalog)) as kept:
        changes = keep(kept, run_here, expire_after=None, clean_after=0, compact=True)
        [records] = [change for change in changes if change.name == "rawlog.records"]
        assert (records.joined, records.written) == (4, 1)
        assert records.removed == [], "older snapshots still name the small files"
    assert held(catalog) == expected(logs)
    assert stored(catalog, "replay.entries") == expected(logs, table="replay.entries")
    assert SECRET.encode() not in catalog.read_bytes()
    store = s3.filesystem()
    for info in store.get_file_info(FileSelector(lake.removeprefix("s3://"), recursive=True)):
        if info.is_file:
            assert SECRET.encode() not in store.open_input_file(info.path).read()


def test_a_run_that_makes_no_table_leaves_no_files(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """Files of a run that was overtaken before there was a table stayed: only tables of the catalog were looked at."""
    from pyarrow.fs import FileSelector

    lake = f"{bucket}/{tmp_path.name}"
    record(tmp_path / "a.log", 20, first=0)

    def data_files() -> list[str]:
        selector = FileSelector(lake.removeprefix("s3://"), recursive=True, allow_not_found=True)
        return [info.path for info in s3.filesystem().get_file_info(selector) if info.is_file]

    with Ingest(lake, catalog=str(tmp_path / "catalog.db")) as job:
        for split in job.plan(open_tree(str(tmp_path / "a.log"))):
            job.work(split, Stage(str(job.stage), f"{split.number}-x"))
        assert data_files()
    assert not data_files()


def test_credentials_in_a_url_are_refused_and_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="by the environment") as reported:
        Ingest(f"s3://key:{SECRET}@lakes/one", catalog=str(tmp_path / "catalog.db"))
    assert SECRET not in str(reported.value)
