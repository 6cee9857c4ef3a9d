"""Verbs over a whole log directory: what stands beside the partitions is carried along, and what is left out is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rawlog
from rawlog.cli import cli
from tests.kraft_data import data_dir

SOURCE = data_dir("broker-4.3.0")
METADATA = "__cluster_metadata-0"
DELETED = "meta-late-delete-0.e89e338b341a478280c7ed142f1ec3f2-delete"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def log_directory(folder: Path, *names: str) -> Path:
    """The metadata directory of a real broker, the files around it, and perhaps some partitions."""
    folder.mkdir()
    for name in (METADATA, *names):
        shutil.copytree(SOURCE / name, folder / name)
    for name in ("meta.properties", "bootstrap.checkpoint", "recovery-point-offset-checkpoint"):
        shutil.copy2(SOURCE / name, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def beside_the_log(folder: Path) -> dict[str, bytes]:
    """Snapshots and the vote: what a controller cannot make anew from its log."""
    return {one.name: one.read_bytes() for one in (folder / METADATA).iterdir() if one.suffix in (".checkpoint", "")
            and one.name != "leader-epoch-checkpoint"}  # fmt: skip


@pytest.mark.parametrize("verb", ["repair", "rebuild"])
@pytest.mark.parametrize("partitions", [(), ("codec-none-0",)], ids=["controller", "broker"])
def test_what_a_node_boots_on_is_all_there(verb: str, partitions: tuple[str, ...], tmp_path: Path) -> None:
    """`rebuild` took the metadata log for any partition and lost its snapshots and vote; both verbs lost the bootstrap records,
    and of a controller's directory, which has no other partition, the files around it.
    """
    source, target = log_directory(tmp_path / "source", *partitions), tmp_path / "target"
    done = run(verb, source, target)
    assert done.exit_code == 0, done.output + done.stderr
    for name in ("meta.properties", "bootstrap.checkpoint"):
        assert (target / name).read_bytes() == (source / name).read_bytes()
    assert beside_the_log(target) == beside_the_log(source)
    assert len(beside_the_log(target)) >= 5
    for table in ("kraft.topics", "kraft.configs", "kraft.voters", "kraft.metadata"):
        found, expected = (rawlog.read(folder, table=table) for folder in (target, source))
        shown = [name for name in expected.column_names if name != "path"]
        assert found.select(shown).to_pylist() == expected.select(shown).to_pylist()
    assert rawlog.verify(target).verdict == "clean"


def test_damaged_bootstrap_records_are_left_out_and_told(tmp_path: Path) -> None:
    """No node starts on them, and one that has its log does without."""
    for partitions in ((), ("codec-none-0",)):
        source = log_directory(tmp_path / f"source{len(partitions)}", *partitions)
        flip(source / "bootstrap.checkpoint", 70)
        done = run("repair", source, tmp_path / f"target{len(partitions)}")
        assert done.exit_code == 1, done.output
        assert "bootstrap.checkpoint: damaged, left out" in done.output
        assert not (tmp_path / f"target{len(partitions)}" / "bootstrap.checkpoint").exists()


def test_a_snapshot_that_is_not_whole_is_no_part_of_a_rebuilt_directory(tmp_path: Path) -> None:
    source = log_directory(tmp_path / "source")
    oldest = min(path for path in (source / METADATA).glob("*.checkpoint") if int(path.name[:20]))
    oldest.write_bytes(oldest.read_bytes()[:-20])
    done = run("rebuild", source, tmp_path / "target")
    assert done.exit_code == 1
    assert f"{oldest.name}: not whole, left out" in done.output
    assert not (tmp_path / "target" / METADATA / oldest.name).exists()


def test_directories_that_a_broker_would_not_load_are_named(tmp_path: Path) -> None:
    source = log_directory(tmp_path / "source", DELETED, "codec-none-0")
    done = run("repair", source, tmp_path / "target")
    assert done.exit_code == 0, done.output
    assert f"{DELETED}: left out" in done.output
    assert not (tmp_path / "target" / DELETED).exists()
    told = json.loads(run("repair", source, tmp_path / "other", "--dry-run", "--json").output)
    assert told["not_loaded"] == [str(source / DELETED)]
    alone = run("repair", source / "codec-none-0", tmp_path / "alone")
    assert DELETED not in alone.output
    assert list((tmp_path / "alone").glob("*.log"))


@pytest.mark.parametrize("errors", ["skip", "stop"])
@pytest.mark.parametrize("table", ["kraft.topics", "kraft.metadata", "kafka.offsets"])
def test_damage_that_a_folded_table_passes_over_is_told(table: str, errors: str, tmp_path: Path) -> None:
    """The exit code was 0: nobody learnt that rows were missing."""
    source = log_directory(tmp_path / "source", "__consumer_offsets-1")
    assert run("cat", "--table", table, "--errors", errors, source).exit_code == 0
    for folder in (METADATA, "__consumer_offsets-1"):
        flip(max((source / folder).glob("*.log")), 100)
    for more in ((), ("--limit", "1")):
        done = run("cat", "--table", table, "--errors", errors, source, *more)
        assert done.exit_code == 1
        assert "checksum" in done.stderr
