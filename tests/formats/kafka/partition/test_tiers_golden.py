"""The golden log directory and remote storage of a real broker with LocalTieredStorage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.formats.kafka.partition.tiers import list_remote_segments
from rawlog.reading.tree import open_tree
from tests.data.golden import golden_path
from tests.data.recordings import held
from tests.data.tiers import upload
from tests.services.tiered import TOPIC

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

GOLDEN = ("kafka", "tiered-4.3.0")


def both(root: Path | None = None) -> list[str]:
    root = root or golden_path(*GOLDEN)
    return [str(root / "data"), str(root / "kafka-tiered-storage")]


def as_consumed(paths: list[str], isolation: str = "read_uncommitted") -> list[tuple[Any, ...]]:
    """The rows of the topic as a consumer's messages: partition, offset, time, key, value."""
    rows = rawlog.read(paths, topic=TOPIC, isolation=isolation).to_pylist()
    return sorted(
        (row["partition"], row["offset"], round(row["timestamp"].timestamp() * 1000), row["key"], row["value"])
        for row in rows
    )


def expected(isolation: str) -> list[tuple[Any, ...]]:
    rows = json.loads((golden_path(*GOLDEN) / "expected.json").read_text())[isolation]
    return [(*row[:3], row[3].encode(), row[4].encode()) for row in rows]


def test_golden_rows_are_what_a_consumer_got() -> None:
    for isolation in ("read_uncommitted", "read_committed"):
        assert as_consumed(both(), isolation) == expected(isolation)


def test_golden_tiers_are_clean_and_complete() -> None:
    found = rawlog.verify(both(), complete=True)
    assert found.verdict == "clean", [str(item) for item in found]
    assert all(one.unexplained == 0 for one in found.accounts)
    assert sum(one.present for one in found.accounts if one.topic == TOPIC) == len(expected("read_committed"))


def test_the_metadata_topic_lists_the_segments_that_are_there() -> None:
    known = list_remote_segments(open_tree(both()).files)
    there = {path.stem.partition("-")[2] for path in golden_path(*GOLDEN, "kafka-tiered-storage").rglob("*.log")}
    assert {number for number, one in known.items() if one.state == 1} == there
    assert all(one.topic == TOPIC for one in known.values())


def copied(tmp_path: Path) -> Path:
    shutil.copytree(golden_path(*GOLDEN), tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_that_is_not_listed_is_not_read(tmp_path: Path) -> None:
    """A broker that stopped while it copied leaves a second object for the same offsets."""
    root = copied(tmp_path)
    log = min((root / "kafka-tiered-storage").rglob("*.log"))
    log.with_name(f"{log.name.partition('-')[0]}-AAAAAAAAAAAAAAAAAAAAAA.log").write_bytes(log.read_bytes()[:100])
    found = rawlog.verify(both(root))
    assert "kafka.remote.unread" in {item.code for item in found}
    assert found.verdict == "clean"
    assert as_consumed(both(root)) == expected("read_uncommitted")


def test_a_copy_of_another_size_than_listed_is_found(tmp_path: Path) -> None:
    root = copied(tmp_path)
    log = min((root / "kafka-tiered-storage").rglob("*.log"))
    size = log.stat().st_size
    log.write_bytes(log.read_bytes()[: size - 10])
    [mark] = [item for item in rawlog.verify(both(root)) if item.code == "kafka.remote.size"]
    assert (mark.expected, mark.found) == (str(size), str(size - 10))


def test_copies_are_put_in_place_by_the_metadata_topic_alone(tmp_path: Path) -> None:
    """A bucket with nothing but objects named by segment ids: the metadata topic says of which partition and offsets they are."""
    root = copied(tmp_path)
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    for path in (root / "kafka-tiered-storage").rglob("*.*"):
        start, _, rest = path.name.partition("-")
        shutil.copy(path, bucket / f"{int(start):020d}-{rest}")
    assert as_consumed([str(root / "data"), str(bucket)]) == expected("read_uncommitted")


def test_a_replica_of_the_metadata_topic_that_lags_changes_nothing(tmp_path: Path) -> None:
    """A second broker has the metadata topic up to the records that begin the copies: the segments were taken for unfinished ones."""
    root = copied(tmp_path)
    other = root / "zz-other"
    for folder in sorted((root / "data").glob("__remote_log_metadata-*")):
        shutil.copytree(folder, other / folder.name)
        for log in (other / folder.name).glob("*.log"):
            batches = rawlog.read(log, table="kafka.batches").to_pylist()
            log.write_bytes(log.read_bytes()[: batches[0]["size"] if batches else 0])
    assert as_consumed([*both(root), str(other)]) == expected("read_uncommitted")


def test_a_segment_that_is_not_listed_and_has_offsets_of_its_own_is_read_and_found(tmp_path: Path) -> None:
    """Records of the metadata topic are lost: what they listed must not disappear."""
    root = copied(tmp_path)
    log = min((root / "kafka-tiered-storage").rglob("*.log"))
    for path in log.parent.glob(f"{log.stem}.*"):
        path.rename(path.with_name(f"{log.name.partition('-')[0]}-AAAAAAAAAAAAAAAAAAAAAA{path.suffix}"))
    assert as_consumed(both(root)) == expected("read_uncommitted")
    found = {item.code for item in rawlog.verify(both(root), complete=True)}
    assert "kafka.remote.unlisted" in found
    assert "kafka.complete.unexplained" not in found


def test_a_bucket_of_plain_copies_is_ordered_by_the_metadata_topic(s3: S3Server, tmp_path: Path) -> None:
    root = copied(tmp_path)
    flat = tmp_path / "flat"
    flat.mkdir()
    for path in (root / "kafka-tiered-storage").rglob("*.*"):
        start, _, rest = path.name.partition("-")
        shutil.copy(path, flat / f"{int(start):020d}-{rest}")
    bucket = f"flat-{tmp_path.name.replace('_', '-')}".lower()
    upload(s3, flat, bucket)
    paths = [str(root / "data"), s3.url(f"{bucket}/logs")]
    assert as_consumed(paths) == expected("read_uncommitted")
    found = rawlog.verify(paths, complete=True)
    assert found.verdict == "clean", [str(item) for item in found]
    assert all(one.unexplained == 0 for one in found.accounts)


def test_ingest_and_restore_take_both_tiers(tmp_path: Path) -> None:
    rawlog.ingest(both(), to=str(tmp_path / "lake"), tables=["records"], engine="local", topic=TOPIC)
    offsets = sorted((row["partition"], row["offset"]) for row in held(tmp_path / "lake"))
    assert offsets == [row[:2] for row in expected("read_uncommitted")]
    rawlog.restore(both(), tmp_path / "out", partitions_only=True)
    assert as_consumed([str(tmp_path / "out")]) == expected("read_uncommitted")
    listing = CliRunner().invoke(cli, ["ls", *both()]).output
    for number in (0, 1):
        lines = [text for text in listing.splitlines() if text.startswith(f"  {TOPIC}-{number} ")]
        assert len(lines) == 1, "one line for a partition, wherever its segments are"
        assert re.search(r" 96 +0 +120 ", lines[0])
