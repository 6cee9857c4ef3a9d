"""Two replicas of a partition: what brokers do to them by themselves is no damage, everything else is found with its place."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import crc32c
import pyarrow as pa
import pytest

import rawlog
from rawlog.engines import choice
from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.model.finding import Finding
from rawlog.model.table import RECORDS
from rawlog.reading.tree import open_tree
from rawlog.verbs.verify import Verify
from tests.data.golden import golden_path

T = 1_700_000_000_000_000


def row(offset: int, value: bytes = b"value", **more: Any) -> dict[str, Any]:
    made = {"key": b"k", "value": value, "offset": offset, "timestamp": T + offset * 1000, "timestampType": 0}
    return {"topic": "orders", "partition": 0, "headers": []} | made | more


def write(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    options = {"batch_records": 10, "segment_bytes": 3000} | options
    rawlog.write(path, pa.Table.from_pylist(rows, schema=RECORDS.schema), format="kafka", **options)
    return path


def against(one: Path, other: Path) -> list[Finding]:
    findings = choice.run(Verify(against=open_tree(str(other))), open_tree(str(one))).findings
    return [finding for finding in findings if ".replica." in finding.code]


def edited(log: Path, number: int, at: int, new: bytes, *, reseal: bool = True) -> None:
    """Change bytes of a batch; with a right checksum unless the caller says no."""
    data = bytearray(log.read_bytes())
    start = 0
    for _ in range(number):
        start += BATCH.after("length") + struct.unpack_from(">i", data, start + BATCH.at("length"))[0]
    stop = start + BATCH.after("length") + struct.unpack_from(">i", data, start + BATCH.at("length"))[0]
    data[start + at : start + at + len(new)] = new
    if reseal:
        checksum = crc32c.crc32c(bytes(data[start + BATCH.after("crc") : stop]))
        struct.pack_into(">I", data, start + BATCH.at("crc"), checksum)
    log.write_bytes(bytes(data))


@pytest.fixture
def replica(tmp_path: Path) -> Path:
    return write(tmp_path / "one", [row(number) for number in range(200)])


def copy(replica: Path, target: Path) -> Path:
    shutil.copytree(replica, target)
    return target


def logs(replica: Path) -> list[Path]:
    return sorted(replica.rglob("*.log"))


def test_a_true_copy_has_nothing_to_tell(replica: Path, tmp_path: Path) -> None:
    assert not against(replica, copy(replica, tmp_path / "other"))
    path = golden_path("kafka", "broker-4.3.0")
    assert not against(path, path)


def test_another_record_at_the_same_offset(replica: Path, tmp_path: Path) -> None:
    other = copy(replica, tmp_path / "other")
    log = logs(other)[1]
    value = log.read_bytes().index(b"value")
    edited(log, 0, value, b"VALUE")
    assert rawlog.verify(other).verdict == "clean"
    [finding] = against(replica, other)
    first = int(log.stem)
    assert (finding.code, finding.offset, finding.severity) == ("kafka.replica.record", first, "error")
    assert finding.path == str(logs(replica)[1])
    assert "VALUE" in str(finding.expected)
    assert finding.message == "1 record unlike the other replica's: value"


def test_another_epoch(replica: Path, tmp_path: Path) -> None:
    other = copy(replica, tmp_path / "other")
    epoch = BATCH.at("leader_epoch")
    edited(logs(other)[0], 1, epoch, struct.pack(">i", 3))
    edited(logs(other)[0], 2, epoch, struct.pack(">i", 3))
    [finding] = against(replica, other)
    assert (finding.code, finding.offset, finding.expected, finding.found) == ("kafka.replica.epoch", 10, "3", "0")
    assert finding.message.startswith("2 batches up to offset")


def test_what_one_replica_lacks(replica: Path, tmp_path: Path) -> None:
    """Records that are gone from the middle; a lagging or trimmed replica is only worth knowing."""
    kept = [row(number) for number in range(200) if not 50 <= number < 57]
    [finding] = against(replica, write(tmp_path / "other", kept))
    assert (finding.code, finding.severity, finding.offset) == ("kafka.replica.missing", "warning", 50)
    assert finding.message == "the other replica lacks 7 records up to offset 56"
    [finding] = against(write(tmp_path / "third", kept), replica)
    assert finding.message == "this replica lacks 7 records up to offset 56"
    behind = write(tmp_path / "behind", [row(number) for number in range(20, 180)])
    codes = [(finding.code, finding.severity) for finding in against(replica, behind)]
    assert codes == [("kafka.replica.range", "info")] * 2


def test_the_same_records_in_other_batches(replica: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", [row(number) for number in range(200)], codec="zstd", batch_records=33)
    [finding] = against(replica, other)
    assert (finding.code, finding.severity) == ("kafka.replica.batches", "info")


def test_damage_of_one_replica_is_what_the_other_has(replica: Path, tmp_path: Path) -> None:
    other = copy(replica, tmp_path / "other")
    log = logs(other)[0]
    edited(log, 1, log.read_bytes().index(b"value") - 5, b"\xff", reseal=False)
    [finding] = against(replica, other)
    assert (finding.code, finding.offset) == ("kafka.replica.missing", 10)


def test_partitions_without_a_replica_are_reported(replica: Path, tmp_path: Path) -> None:
    more = [row(number) for number in range(200)] + [row(0, topic="audit")]
    [finding] = against(replica, write(tmp_path / "other", more))
    assert (finding.code, finding.severity) == ("rawlog.replica.absent", "info")
    assert "audit-0" in finding.message
