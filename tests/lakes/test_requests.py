"""How many requests an ingest of small files in an object store makes: each costs time and money."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import rawlog
from tests.data.changing_logs import numbered, write
from tests.data.recordings import stored

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

#: Requests for one small source file: is it there, and its bytes; and both again for checks of the files of a partition together.
MOST = 4
PARTITIONS = 12


@pytest.fixture
def bucket(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return "requests"


def upload(s3: S3Server, folder: Path, bucket: str) -> list[str]:
    """The files of a folder in a bucket; their paths."""
    system = s3.filesystem()
    system.create_dir(bucket)
    paths = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            paths.append(f"/{bucket}/{path.relative_to(folder)}")
            with system.open_output_stream(paths[-1][1:]) as out:
                out.write(path.read_bytes())
    return paths


def asked(s3: S3Server, since: int) -> Counter[str]:
    """How often each path was asked for."""
    return Counter(one.partition(" ")[2].partition("?")[0] for one in s3.requests()[since:])


def test_small_files_in_a_bucket_are_asked_for_a_few_times(s3: S3Server, bucket: str, tmp_path: Path) -> None:
    """It was twelve requests per file: each reader of a file opened it again, and the driver read its ends."""
    for number in range(PARTITIONS):
        write(tmp_path / "logs", numbered(30), topic=f"topic-{number}", segment=500)
    paths = upload(s3, tmp_path / "logs", bucket)
    before = len(s3.requests())
    rawlog.ingest(f"s3://{bucket}", tmp_path / "lake", engine="local", threads=2)
    found = asked(s3, before)
    assert len(stored(tmp_path / "lake", "rawlog.records")) == 30 * PARTITIONS
    most = {path: found[path] for path in paths if found[path] > MOST}
    assert not most, most
    listings = [one for one in s3.requests()[before:] if "list-type" in one]
    assert len(listings) <= 3, "the directories are not listed one by one"
    before = len(s3.requests())
    assert rawlog.ingest(f"s3://{bucket}", tmp_path / "lake", engine="local").counts["files"] == 0
    found = asked(s3, before)
    assert sum(found[path] for path in paths) <= 2 * PARTITIONS, "what is unchanged is not opened"
