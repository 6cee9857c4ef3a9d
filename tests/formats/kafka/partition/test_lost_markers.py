"""A transaction marker that is lost is known from other files: read_committed consumers see after a repair what they saw before, or the
report says which transaction is not known to be committed or aborted.
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.model.report import Report
from tests.data.golden import golden_path
from tests.data.kafka_rewriting import rewritten, transactions

BROKERS = ("broker-3.9.2", "broker-4.3.0")
PARTITIONS = ("transactions-0", "transactions-1", "compacted-transactions-0", "__consumer_offsets-1")
MARKER = 78
KIND = 61 + 8  # where a marker's record has the low byte of its type


def batches(data: bytes) -> Iterator[tuple[int, int]]:
    """Where every batch begins and ends."""
    at = 0
    while at + 17 < len(data):
        stop = at + 12 + struct.unpack_from(">i", data, at + 8)[0]
        yield at, stop
        at = stop


def markers(folder: Path) -> list[tuple[str, int, int, int]]:
    """Every control batch: the segment, its position, its offset and its type (0: ABORT, 1: COMMIT)."""
    found = []
    for path in sorted(folder.glob("*.log")):
        data = path.read_bytes()
        for at, stop in batches(data):
            if data[at + 16] == 2 and data[at + 22] & 0x20 and stop - at == MARKER:
                found.append((path.name, at, struct.unpack_from(">q", data, at)[0], data[at + KIND]))
    return found


def seen(folder: Path, isolation: str = "read_committed") -> set[int]:
    """The offsets that a consumer sees."""
    return set(rawlog.read(folder, columns=["offset"], isolation=isolation)["offset"].to_pylist())


def overwrite(path: Path, position: int, data: bytes) -> None:
    text = bytearray(path.read_bytes())
    text[position : position + len(data)] = data
    path.write_bytes(text)


def copy(broker: str, name: str, folder: Path, *without: str) -> Path:
    """A golden partition, without the files of some kinds."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(golden_path("kafka", broker, "data", name), folder / name)
    for path in list((folder / name).iterdir()):
        if path.suffix in without:
            path.unlink()
    return folder / name


def repaired(source: Path, target: Path) -> Report:
    shutil.rmtree(target, ignore_errors=True)
    return rewritten("repair", source, target)


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("name", PARTITIONS)
def test_visibility_is_carried_over(broker: str, name: str, tmp_path: Path) -> None:
    """A damaged marker was cut: an aborted record became visible to read_committed although the transaction index still named it, and a
    committed one hid everything after it; the report said only "lost offsets". Both the type of the marker and its value are overwritten
    here, so that only the files next to the log know.
    """
    original = golden_path("kafka", broker, "data", name)
    expected, every = seen(original), seen(original, "read_uncommitted")
    kinds = set()
    for number, (segment, at, offset, kind) in enumerate(markers(original)):
        if number % 3 and name != "__consumer_offsets-1":
            continue
        source = copy(broker, name, tmp_path / "source")
        overwrite(source / segment, at + KIND, b"\x77\x0c\x55\x55")
        target = tmp_path / "out" / name
        report = repaired(source, target)
        assert seen(target) == expected, (offset, report.lines())
        assert seen(target, "read_uncommitted") == every
        assert not report.is_whole
        assert not [one for one in rawlog.verify(target) if str(one.severity) != "info"]
        for one in transactions(report):
            assert one.marker_offset == offset, report.lines()
            assert one.outcome == ("committed" if kind else "aborted")
            kinds.add(one.outcome)
            assert f"producer {one.producer_id}, epoch {one.epoch}" in "\n".join(report.lines())
        again = repaired(target, tmp_path / "again" / name)
        assert again.is_whole, again.lines()
    if name.startswith("transactions"):
        assert kinds == {"committed", "aborted"}


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize(
    "without", [(".txnindex",), (".snapshot",), (".txnindex", ".snapshot", ".index", ".timeindex")]
)
def test_what_nothing_knows_is_reported_by_transaction(broker: str, without: tuple[str, ...], tmp_path: Path) -> None:
    original = golden_path("kafka", broker, "data", "transactions-0")
    expected = seen(original)
    reported = 0
    for segment, at, offset, _ in markers(original)[::3]:
        source = copy(broker, "transactions-0", tmp_path / "source", *without)
        overwrite(source / segment, at + KIND, b"\x77\x0c\x55\x55")
        target = tmp_path / "out" / "transactions-0"
        report = repaired(source, target)
        different = seen(target) ^ expected
        unknown = [one for one in transactions(report) if one.outcome == "unknown"]
        reported += len(unknown)
        if not different:
            continue
        assert unknown, (offset, report.lines())
        # Where a transaction stays open, everything after its first record is not visible any more.
        first = min(one.first_offset for one in unknown)
        known = any(one.first_offset <= min(different) <= one.last_offset for one in unknown)
        assert known or min(different) >= first, report.lines()
        assert "is not known to be committed or aborted" in "\n".join(report.lines())
    assert reported or without == (".snapshot",)


@pytest.mark.parametrize("broker", BROKERS)
def test_a_marker_with_one_wrong_byte_is_known_by_its_checksum(broker: str, tmp_path: Path) -> None:
    original = golden_path("kafka", broker, "data", "transactions-0")
    expected = seen(original)
    for segment, at, _, kind in markers(original)[::4]:
        source = copy(broker, "transactions-0", tmp_path / "source", ".txnindex", ".snapshot", ".index", ".timeindex")
        overwrite(source / segment, at + KIND, bytes([1 - kind]))
        target = tmp_path / "out" / "transactions-0"
        report = repaired(source, target)
        assert seen(target) == expected, report.lines()
        whole = b"".join(path.read_bytes() for path in sorted(original.glob("*.log")))
        assert b"".join(path.read_bytes() for path in sorted(target.glob("*.log"))) == whole


@pytest.mark.parametrize("broker", BROKERS)
def test_the_coordinators_own_log_is_asked(broker: str, tmp_path: Path) -> None:
    """Without transaction indexes and snapshots `__transaction_state` still knows the last transactions."""
    data = golden_path("kafka", broker, "data")
    expected = seen(data / "transactions-0")
    decided = 0
    for segment, at, offset, kind in markers(data / "transactions-0"):
        source = copy(broker, "transactions-0", tmp_path / "source", ".txnindex", ".snapshot", ".index", ".timeindex")
        for path in data.glob("__transaction_state-*"):
            shutil.copytree(path, source.parent / path.name)
        overwrite(source / segment, at + KIND, b"\x77\x0c\x55\x55")
        target = tmp_path / "out" / "transactions-0"
        report = repaired(source, target)
        known = [one for one in transactions(report) if "__transaction_state" in one.evidence]
        decided += len(known)
        if not any(one.outcome == "unknown" for one in transactions(report)):
            assert seen(target) == expected, (offset, report.lines())
        for one in known:
            assert one.outcome == ("committed" if kind else "aborted"), (offset, report.lines())
    assert decided or broker == "broker-3.9.2"  # there records have times of their own, which tell nothing


def test_the_command_reports_the_transaction_and_ends_with_1(tmp_path: Path) -> None:
    source = copy("broker-4.3.0", "transactions-0", tmp_path / "source")
    segment, at, offset, _ = next(one for one in markers(source) if one[3] == 0)
    overwrite(source / segment, at + KIND, b"\x77\x0c\x55\x55")
    target = tmp_path / "out" / "transactions-0"
    reports = {}
    for words in (["--json"], ["--json", "--dry-run"]):
        result = CliRunner().invoke(cli, ["repair", str(source), str(target), *words])
        assert result.exit_code == 1, result.output
        reports[len(words)] = json.loads(result.output)
    found = [reports[number]["transactions"] for number in (1, 2)]
    [one] = found[0]
    assert (one["outcome"], one["marker_offset"], one["first_offset"]) == ("aborted", offset, 0)
    assert found[0] == found[1]
    assert "remaining" not in reports[1]
    text = CliRunner().invoke(cli, ["repair", str(source), str(tmp_path / "text")]).output
    assert f"was aborted, its lost ABORT marker was put back at offset {offset}" in text
    assert "the transaction index names it as aborted" in text


def test_a_record_of_an_open_transaction_is_no_lost_marker(tmp_path: Path) -> None:
    """Damage before a transaction that is still open says nothing of it."""
    source = copy("broker-4.3.0", "transaction-open-0", tmp_path / "source")
    path = min(source.glob("*.log"))
    before = {one.producer_id for one in transactions(repaired(source, tmp_path / "a" / "transaction-open-0"))}
    assert before == set()
    overwrite(path, 70, b"\xff\xff")
    report = repaired(source, tmp_path / "b" / "transaction-open-0")
    assert report.lost
    assert [one for one in transactions(report) if one.marker_offset is not None] == []
