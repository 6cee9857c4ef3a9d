"""A store whose logs are all gone, next to a sound one: its indexes and queues still say what was lost, and every verb repeats it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from rawlog.cli import cli
from tests.data.golden import GOLDEN
from tests.reference import kafka as reference

VERBS = {
    "verify": "verify SRC",
    "complete": "verify SRC --complete",
    "report": "report SRC -o DST.html",
    "repair": "repair SRC DST",
    "rebuild": "rebuild SRC DST",
    "compact": "compact SRC DST",
    "erase": "erase SRC DST --key no-such-key",
    "rescue": "rescue SRC --to DST",
    "convert": "convert SRC DST.jsonl",
    "ingest": "ingest SRC --to DST --engine local",
}


def kafka(root: Path) -> None:
    for name in ("segments-by-size-0", "codec-lz4-0"):
        shutil.copytree(GOLDEN / "kafka" / "broker-4.3.0" / "data" / name, root / name)
    for path in (root / "codec-lz4-0").glob("*.log"):
        path.unlink()


def rocketmq(root: Path) -> None:
    for name, store in (("a", "broker-4.9.7"), ("b", "5.1.4")):
        shutil.copytree(GOLDEN / "rocketmq" / store / "store", root / name)
    shutil.rmtree(root / "b" / "commitlog")


def ambry(root: Path) -> None:
    for name, store in (("42", "store-ops"), ("9", "store-small")):
        shutil.copytree(GOLDEN / "ambry" / store, root / name)
        (root / name / "expected.json").unlink()
    for path in (root / "9").glob("*_log"):
        path.unlink()


def run(words: str, source: Path, target: Path) -> tuple[int, str]:
    arguments = [word.replace("SRC", str(source)).replace("DST", str(target)) for word in words.split()]
    result = CliRunner().invoke(cli, arguments, prog_name="rawlog")
    return result.exit_code, result.stdout + result.stderr


@pytest.mark.parametrize("build", [kafka, rocketmq, ambry])
def test_every_verb_names_a_store_whose_logs_are_gone(build: Callable[[Path], None], tmp_path: Path) -> None:
    """Ambry's rewrites, RocketMQ's rescue and `convert` wrote the sound store, said nothing of the other one, and ended with 0."""
    source = tmp_path / "source"
    source.mkdir()
    build(source)
    lost = {kafka: "codec-lz4-0", rocketmq: "/b", ambry: "/9"}[build]
    outcomes = {
        name: run(words, source, tmp_path / name)
        for name, words in VERBS.items()
        if not (build is rocketmq and name == "compact")
    }
    assert {name: code for name, (code, _) in outcomes.items() if code != 1} == {}
    silent = {name for name, (_, said) in outcomes.items() if lost not in said.replace(str(tmp_path / name), "")}
    assert silent <= {"report"}


def test_a_replica_without_a_commit_log_is_no_loss(tmp_path: Path) -> None:
    """The queues of such a disk name messages that the other disk has."""
    for name in ("a", "b"):
        shutil.copytree(GOLDEN / "rocketmq" / "broker-4.9.7" / "store", tmp_path / name)
    shutil.rmtree(tmp_path / "b" / "commitlog")
    code, said = run(f"rescue {tmp_path}/a {tmp_path}/b --to DST", tmp_path, tmp_path / "out")
    assert (code, "no commit log is here: nothing is used" in said) == (0, True)


@pytest.mark.parametrize("verb", ["verify", "repair", "convert", "ingest"])
def test_a_metadata_log_of_which_only_snapshots_are_left(verb: str, tmp_path: Path) -> None:
    """`convert` asked only for what repair would keep of stores that give rows."""
    source = tmp_path / "source"
    for name in ("__cluster_metadata-0", "codec-none-0"):
        shutil.copytree(GOLDEN / "kafka" / "broker-4.3.0" / "data" / name, source / name)
    for path in (source / "__cluster_metadata-0").glob("*.log"):
        path.unlink()
    code, said = run(VERBS[verb], source, tmp_path / "out")
    assert code == 1
    assert verb != "convert" or "__cluster_metadata-0, offsets 337 to 410" in said


@pytest.mark.parametrize("verb", ["verify", "repair", "restore", "rescue"])
def test_a_hole_in_the_metadata_log_is_a_loss(verb: str, tmp_path: Path) -> None:
    """`restore` left out the topics that no record of the log named any more, and `rescue` gave a topic the default settings, with 0."""
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / "kafka" / "broker-4.3.0" / "data", source)
    for path in [*(source / "__cluster_metadata-0").glob("*.checkpoint")]:
        path.unlink()
    log, batch = next(
        (path, batch)
        for path in sorted((source / "__cluster_metadata-0").glob("*.log"))
        for batch in reference.decode(path.read_bytes())
        if any(b"codec-none" in (record.value or b"") for record in batch.records)
    )
    data = log.read_bytes()
    log.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    verbs = {**VERBS, "restore": "restore SRC DST"}
    code, said = run(verbs[verb], source, tmp_path / "out")
    assert code == 1
    assert str(batch.base_offset) in said


def restore_until(source: Path, target: Path, timestamp_ms: int) -> tuple[int, str]:
    moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat()
    return run(f"restore SRC DST --until {moment}", source, target)


def test_a_moment_inside_a_hole_in_the_metadata_log_is_a_loss(tmp_path: Path) -> None:
    """The hole begins where the state ends, and was cut off: nothing tells which of its records were before the moment."""
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / "kafka" / "broker-4.3.0" / "data", source)
    log = source / "__cluster_metadata-0" / f"{359:020}.log"
    data = log.read_bytes()
    *_, earlier, before, batch, after, _ = reference.decode(data)
    log.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    assert before.max_timestamp + 1 < after.max_timestamp
    hole = f"offsets {batch.base_offset} to {after.base_offset - 1} of the metadata log: missing"
    code, said = restore_until(source, tmp_path / "inside", before.max_timestamp + 1)
    assert (code, hole in said) == (1, True)
    code, said = restore_until(source, tmp_path / "before", earlier.max_timestamp + 1)
    assert (code, hole in said) == (0, False)


def test_a_moment_after_the_lost_end_of_the_metadata_log_is_a_loss(tmp_path: Path) -> None:
    """Only a snapshot of the producers says that the log was longer: `restore` ended with 0."""
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / "kafka" / "broker-4.3.0" / "data", source)
    last = source / "__cluster_metadata-0" / f"{408:020}.log"
    moment = max(batch.max_timestamp for batch in reference.decode(last.read_bytes())) + 1000
    assert restore_until(source, tmp_path / "whole", moment)[0] == 0
    for kind in ("log", "index", "timeindex"):
        last.with_suffix(f".{kind}").unlink()
    code, said = restore_until(source, tmp_path / "out", moment)
    assert (code, "offsets 408 to 410 of the metadata log: missing" in said) == (1, True)


@pytest.mark.parametrize("verb", ["restore", "rescue"])
def test_a_hole_before_a_snapshot_costs_a_new_cluster_nothing(verb: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(GOLDEN / "kafka" / "broker-4.3.0" / "data", source)
    log = source / "__cluster_metadata-0" / f"{0:020}.log"
    data = log.read_bytes()
    batch = list(reference.decode(data))[4]
    log.write_bytes(data[: batch.position] + data[batch.position + batch.size :])
    assert run({**VERBS, "restore": "restore SRC DST"}[verb], source, tmp_path / "out")[0] == 0
