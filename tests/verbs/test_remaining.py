"""What `verify` finds in the result of a repair, an erasure or a compaction is in its report, and makes its exit code 1."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import rawlog
from rawlog.cli import cli
from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.io.checksums import crc32c
from tests.data.golden import golden_path

KAFKA = golden_path("kafka", "broker-4.3.0", "data")

#: A field of a batch and what is written into it, with the checksum set right: what verification then says.
WRITTEN_SO = {
    "undecodable": ("record_count", ">i", 999, "kafka.log.records"),
    "codec": ("attributes", ">h", 7, "kafka.log.codec"),
    "max timestamp": ("max_timestamp", ">q", 5, "kafka.log.max-timestamp"),
    "attributes": ("attributes", ">h", 1 << 9, "kafka.log.attributes"),
    "sequence": ("base_sequence", ">i", 77, "kafka.log.sequence"),
}


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def rewritten(path: Path, number: int, field: str, form: str, value: int) -> None:
    """Set a field of a segment's batch, and its checksum accordingly."""
    data = bytearray(path.read_bytes())
    at = 0
    for _ in range(number):
        at += 12 + struct.unpack_from(">i", data, at + 8)[0]
    stop = at + 12 + struct.unpack_from(">i", data, at + 8)[0]
    struct.pack_into(form, data, at + BATCH.at(field), value)
    struct.pack_into(">I", data, at + BATCH.at("crc"), crc32c(bytes(data[at + BATCH.after("crc") : stop])))
    path.write_bytes(data)


def serious(target: Path) -> list[dict[str, Any]]:
    """What verification of a result complains of."""
    found = [one for one in rawlog.verify(target) if str(one.severity) != "info"]
    return json.loads(json.dumps([one.as_row() for one in found], default=str))


@pytest.mark.parametrize("case", list(WRITTEN_SO))
def test_a_finding_that_stays_is_reported(case: str, tmp_path: Path) -> None:
    """`repair` kept batches that were written wrong, with a right checksum, and ended with 0; `verify` of its result ended with 1."""
    field, form, value, code = WRITTEN_SO[case]
    source, target = tmp_path / "idempotent-0", tmp_path / "out" / "idempotent-0"
    shutil.copytree(KAFKA / "idempotent-0", source)
    rewritten(min(source.glob("*.log")), 2, field, form, value)
    result = run("repair", source, target, "--json")
    assert result.exit_code == 1, result.output + result.stderr
    report = json.loads(result.output)
    assert code in [one["code"] for one in report["remaining"]]
    assert report["is_whole"] is False
    key = lambda one: json.dumps(one, sort_keys=True, default=str)  # noqa: E731
    assert sorted(map(key, report["remaining"])) == sorted(map(key, serious(target)))
    dry = run("repair", source, tmp_path / "none", "--dry-run", "--json")
    assert dry.exit_code == 1
    assert code in [one["code"] for one in json.loads(dry.output)["remaining"]]
    assert {one["path"] for one in json.loads(dry.output)["remaining"]} <= {str(one) for one in source.iterdir()}
    text = run("repair", source, tmp_path / "text")
    assert text.exit_code == 1
    assert f"[{code}]" in text.output
    assert "findings remain:\n" in text.output


def test_an_internal_record_that_stays_is_reported(tmp_path: Path) -> None:
    """A value that the coordinator cannot read, in a batch with a right checksum, was in the result of a repair that ended with 0."""
    made = rawlog.read(KAFKA / "idempotent-0", columns=["key", "value"]).slice(0, 3)
    rawlog.write(tmp_path / "source", made, format="kafka", topic="__consumer_offsets", partition=3)
    source = tmp_path / "source"
    target = tmp_path / "out"
    result = run("repair", source, target, "--json")
    found = serious(target)
    assert {one["code"] for one in found} == {"kafka.log.internal-record"}
    assert result.exit_code == 1
    assert json.loads(result.output)["remaining"] == found


def test_a_finding_among_several_partitions_has_its_final_path(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "out"
    for name in ("idempotent-0", "transactions-0"):
        shutil.copytree(KAFKA / name, source / name)
    rewritten(min((source / "idempotent-0").glob("*.log")), 1, "max_timestamp", ">q", 5)
    result = run("repair", source, target, "--json")
    assert result.exit_code == 1
    [one] = json.loads(result.output)["remaining"]
    assert one["path"] == str(min((target / "idempotent-0").glob("*.log")))
    assert [one] == serious(target)


def test_a_clean_result_has_nothing_that_remains(tmp_path: Path) -> None:
    result = run("repair", KAFKA / "idempotent-0", tmp_path / "idempotent-0", "--json")
    assert result.exit_code == 0
    assert "remaining" not in json.loads(result.output)


def test_a_fault_is_corrected_by_erase_and_refused_by_compact(tmp_path: Path) -> None:
    """Both copied a batch with a wrong base offset, and ended with 0: only `repair` looked at its result. Then `erase` corrected it, and
    took the corrected records for others than those that were to be kept.
    """
    source, target = tmp_path / "segments-by-size-0", tmp_path / "out" / "segments-by-size-0"
    shutil.copytree(KAFKA / "segments-by-size-0", source)
    log = min(source.glob("*.log"))
    rewritten(log, 2, "base_offset", ">q", 1 + struct.unpack_from(">q", log.read_bytes())[0])
    result = run("erase", source, target, "--find", "no record has this text", "--json")
    report = json.loads(result.stdout.splitlines()[-1])
    assert (result.exit_code, "remaining" in report, serious(target)) == (1, False, []), result.output
    assert [entry["action"] for part in report["parts"].values() for entry in part["entries"]].count("changed") == 1
    assert run("compact", source, tmp_path / "compacted").exit_code == 1
    assert not (tmp_path / "compacted").exists()
