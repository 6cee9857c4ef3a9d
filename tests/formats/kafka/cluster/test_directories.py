"""Verbs over a whole log directory: the files next to the partitions are carried along, and what is left out is reported."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rawlog
from rawlog.cli import cli
from rawlog.formats.kafka.checkpoints import RECOVERY_POINT, checkpoint_text, parse
from tests.data.kraft import data_dir
from tests.data.trees import contents
from tests.reference import kafka as reference

SOURCE = data_dir("broker-4.3.0")
METADATA = "__cluster_metadata-0"
DIRECTORY = "AnotherDiskOfNode1AAAA"
DELETED = "meta-late-delete-0.e89e338b341a478280c7ed142f1ec3f2-delete"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def log_directory(folder: Path, *names: str) -> Path:
    """The metadata directory of a real broker, the files around it, and perhaps some partitions: one of the disks of a node, with an id of
    its own. The cluster's metadata assigns the other partitions to another disk, and no checkpoint lists them here.
    """
    folder.mkdir()
    for name in (METADATA, *names):
        shutil.copytree(SOURCE / name, folder / name)
    for name in ("meta.properties", "bootstrap.checkpoint", RECOVERY_POINT):
        shutil.copy2(SOURCE / name, folder)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    meta, points = folder / "meta.properties", parse((folder / RECOVERY_POINT).read_bytes())
    meta.write_text(re.sub("directory.id=.*", f"directory.id={DIRECTORY}", meta.read_text()))
    here = {key: point for key, point in points.items() if f"{key[0]}-{key[1]}" in names}
    (folder / RECOVERY_POINT).write_bytes(checkpoint_text(here))
    return folder


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def next_to_the_log(folder: Path) -> dict[str, bytes]:
    """Snapshots and the vote: what a controller cannot rebuild from its log."""
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
    assert next_to_the_log(target) == next_to_the_log(source)
    assert len(next_to_the_log(target)) >= 5
    for table in ("kraft.topics", "kraft.configs", "kraft.voters", "kraft.metadata"):
        found, expected = (rawlog.read(folder, table=table) for folder in (target, source))
        shown = [name for name in expected.column_names if name != "path"]
        assert found.select(shown).to_pylist() == expected.select(shown).to_pylist()
    assert rawlog.verify(target).verdict == "clean"


def test_damaged_bootstrap_records_are_left_out_and_reported(tmp_path: Path) -> None:
    """No node starts on them, and one that has its log does without."""
    for partitions in ((), ("codec-none-0",)):
        source = log_directory(tmp_path / f"source{len(partitions)}", *partitions)
        flip(source / "bootstrap.checkpoint", 70)
        done = run("repair", source, tmp_path / f"target{len(partitions)}")
        assert done.exit_code == 1, done.output
        assert re.search(r"dropped .*bootstrap.checkpoint, bytes 0 to [\d,]+: damaged, left out", done.output)
        assert done.output.count("damaged, left out") == 1
        assert not (tmp_path / f"target{len(partitions)}" / "bootstrap.checkpoint").exists()


@pytest.mark.parametrize("partitions", [(), ("codec-none-0",)], ids=["controller", "broker"])
def test_a_damaged_identity_is_left_out_and_reported(partitions: tuple[str, ...], tmp_path: Path) -> None:
    """It was carried along as it was; a dry run reported nothing. No broker starts without one: `verify` says so of the result."""
    source = log_directory(tmp_path / "source", *partitions)
    (source / "meta.properties").write_bytes(b"")
    for words in (("--dry-run",), ()):
        done = run("repair", source, tmp_path / "target", *words)
        assert done.exit_code == 1, done.output
        assert "meta.properties: damaged, left out" in done.output
    assert not (tmp_path / "target" / "meta.properties").exists()
    assert [one.code for one in rawlog.verify(tmp_path / "target")] == ["kafka.directory.no-identity"]


@pytest.mark.parametrize("harm", ["log gone", "log empty", "log and snapshots gone", "log empty, snapshots gone"])
@pytest.mark.parametrize("whole", [True, False], ids=["log directory", "metadata alone"])
def test_a_metadata_directory_whose_log_is_gone_is_still_one(harm: str, whole: bool, tmp_path: Path) -> None:
    """It was taken for a partition and a metadata directory at once, and refused; or repaired so that it was refused the next time. A
    broker that has no metadata anywhere renames all of its partitions: that is reported, before and after the repair.
    """
    source = log_directory(tmp_path / "source", *(["codec-none-0"] if whole else []))
    for path in [*(source / METADATA).glob("*.log"), *(source / METADATA).glob("*.checkpoint")]:
        if path.suffix == ".log" and "empty" in harm and int(path.stem) == 0:
            path.write_bytes(b"")
        elif path.suffix == ".log" or "snapshots" in harm:
            path.unlink()
    target, again = tmp_path / "target", tmp_path / "again"
    named = "" if whole else METADATA
    done = run("repair", source / named, target / named)
    assert done.exit_code == 1, done.output + done.stderr
    assert "of the log nothing is left" in done.output
    remaining = ["kafka.directory.no-metadata"] if whole and "snapshots gone" in harm else []
    assert [one.code for one in rawlog.verify(target)] == remaining
    done = run("repair", target / named, again / named)
    assert done.exit_code == len(remaining), done.output + done.stderr
    assert contents(again) == contents(target)


def test_the_epoch_of_a_snapshot_is_set_to_that_of_its_name(tmp_path: Path) -> None:
    """No checksum covers it."""
    source = log_directory(tmp_path / "source")
    snapshot = max((source / METADATA).glob("*.checkpoint"))
    before = snapshot.read_bytes()
    flip(snapshot, 13)
    assert "kraft.checkpoint.epoch" in {one.code for one in rawlog.verify(source)}
    done = run("repair", source, tmp_path / "target")
    assert done.exit_code == 1
    assert re.search(rf"changed .*{snapshot.name}, bytes 0 to [\d,]+, offset.*: epoch", done.output)
    assert (tmp_path / "target" / METADATA / snapshot.name).read_bytes() == before
    assert rawlog.verify(tmp_path / "target").verdict == "clean"


def test_rebuild_refuses_a_snapshot_that_is_not_whole(tmp_path: Path) -> None:
    source = log_directory(tmp_path / "source")
    oldest = min(path for path in (source / METADATA).glob("*.checkpoint") if int(path.name[:20]))
    oldest.write_bytes(oldest.read_bytes()[:-20])
    done = run("rebuild", source, tmp_path / "target")
    assert done.exit_code == 1
    assert f"{oldest.name}: the snapshot is not whole" in done.stderr
    assert not (tmp_path / "target").exists()


def test_directories_that_a_broker_would_not_load_are_named(tmp_path: Path) -> None:
    source = log_directory(tmp_path / "source", DELETED, "codec-none-0")
    done = run("repair", source, tmp_path / "target")
    assert done.exit_code == 0, done.output
    assert f"{DELETED}: left out" in done.output
    assert not (tmp_path / "target" / DELETED).exists()
    planned = json.loads(run("repair", source, tmp_path / "other", "--dry-run", "--json").output)
    assert planned["not_loaded"] == [str(source / DELETED)]
    alone = run("repair", source / "codec-none-0", tmp_path / "alone")
    assert DELETED not in alone.output
    assert list((tmp_path / "alone").glob("*.log"))


@pytest.mark.parametrize("errors", ["skip", "stop"])
@pytest.mark.parametrize("table", ["kraft.topics", "kraft.metadata", "kafka.offsets"])
def test_damage_that_a_folded_table_skips_is_reported(table: str, errors: str, tmp_path: Path) -> None:
    """The exit code was 0: nobody learnt that rows were missing."""
    source = log_directory(tmp_path / "source", "__consumer_offsets-1")
    assert run("cat", "--table", table, "--errors", errors, source).exit_code == 0
    for folder in (METADATA, "__consumer_offsets-1"):
        flip(max((source / folder).glob("*.log")), 100)
    for more in ((), ("--limit", "1")):
        done = run("cat", "--table", table, "--errors", errors, source, *more)
        assert done.exit_code == 1
        assert "checksum" in done.stderr


@pytest.mark.parametrize("damage", ["doubled", "base offset", "missing"])
def test_a_snapshot_with_a_batch_too_many_too_few_or_misnumbered_is_repaired(damage: str, tmp_path: Path) -> None:
    """`repair` copied such a snapshot and ended with 0, and `verify` of its result complained; a missing batch nobody noticed."""
    source, target = tmp_path / "source" / METADATA, tmp_path / "target" / METADATA
    shutil.copytree(SOURCE / METADATA, source)
    path = max(source.glob("*.checkpoint"))
    data = bytearray(path.read_bytes())
    stops = [0]
    while stops[-1] < len(data):
        stops.append(stops[-1] + 12 + int.from_bytes(data[stops[-1] + 8 : stops[-1] + 12], "big"))
    assert len(stops) > 3
    if damage == "doubled":
        data[stops[1] : stops[1]] = data[stops[1] : stops[2]]
    elif damage == "missing":
        del data[stops[1] : stops[2]]
    else:
        data[stops[1] + 5] ^= 4
    path.write_bytes(data)
    assert [one for one in rawlog.verify(source) if one.path == str(path)]
    done = run("repair", source, target)
    assert done.exit_code == 1, done.output
    assert path.name in done.output
    assert rawlog.verify(target).verdict == "clean"
    again = run("repair", target, tmp_path / "again" / METADATA)
    assert again.exit_code == 0, again.output
    states = [
        rawlog.read(one, table="kraft.partitions").drop_columns("cluster_id") for one in (target, SOURCE / METADATA)
    ]
    assert states[0].equals(states[1])


@pytest.mark.parametrize("time", [1 << 62, -(1 << 62)])
def test_a_batch_with_a_far_time_stays(time: int, tmp_path: Path) -> None:
    """Its checksum is right and a controller loads it, but repair cut it, because no column of times holds the value."""
    source = log_directory(tmp_path / "source")
    log = source / "__cluster_metadata-0" / f"{0:020}.log"
    data = bytearray(log.read_bytes())
    stop = 12 + int.from_bytes(data[8:12], "big")
    data[27:43] = time.to_bytes(8, "big", signed=True) * 2
    data[17:21] = reference.crc32c(bytes(data[21:stop])).to_bytes(4, "big")
    log.write_bytes(data)
    ended = run("repair", source, tmp_path / "out")
    assert ended.exit_code == 0, ended.output
    assert (tmp_path / "out" / "__cluster_metadata-0" / log.name).read_bytes() == bytes(data)


def deleted(source: Path, number: int) -> tuple[int, int]:
    """Delete a segment of the metadata log; the offsets that it had."""
    logs = sorted((source / METADATA).glob("*.log"))
    starts = [int(path.name[:20]) for path in logs]
    for path in (source / METADATA).glob(f"{logs[number].stem}.*"):
        path.unlink()
    return starts[number], starts[number + 1]


@pytest.mark.parametrize("verb", ["rebuild", "compact"])
@pytest.mark.parametrize("partitions", [(), ("codec-none-0",)], ids=["controller", "broker"])
def test_a_deleted_segment_is_named(verb: str, partitions: tuple[str, ...], tmp_path: Path) -> None:
    """Neither verb said anything of the offsets that are missing in a metadata log."""
    source = log_directory(tmp_path / "source", *partitions)
    first, stop = deleted(source, 1)
    done = run(verb, source, tmp_path / "target", "--json")
    assert done.exit_code == 1, done.output + done.stderr
    if verb == "rebuild":
        assert f"offsets {first} to {stop - 1} are missing" in done.stderr
        assert not (tmp_path / "target").exists()
        return
    report = json.loads(done.output)["parts"][METADATA]
    assert report["lost"] == [[first, stop - 1]]
    assert not report["is_whole"]
    text = run(verb, source, tmp_path / "other").output
    assert f"offsets {first:,} to {stop - 1:,}" in text


@pytest.mark.parametrize("verb", ["repair", "rebuild", "compact"])
@pytest.mark.parametrize("what", ["*", "log"])
def test_a_deleted_last_segment_is_named(verb: str, what: str, tmp_path: Path) -> None:
    """`verify` found it by the snapshot of the producers that a controller takes when it stops; `repair` and `compact` said nothing."""
    source = log_directory(tmp_path / "source")
    last = max((source / METADATA).glob("*.log")).stem
    end = int(max((source / METADATA).glob("*.snapshot")).stem)
    for path in (source / METADATA).glob(f"{last}.{what}"):
        path.unlink()
    assert [one.offset for one in rawlog.verify(source) if one.code == "kafka.partition.gap"] == [int(last)]
    done = run(verb, source, tmp_path / "target", "--json")
    assert done.exit_code == 1, done.output + done.stderr
    if verb == "rebuild":
        assert f"offsets {int(last)} to {end - 1} are missing" in done.stderr
        assert not (tmp_path / "target").exists()
        return
    assert json.loads(done.output)["parts"][METADATA]["lost"] == [[int(last), end - 1]]


def test_a_log_without_its_beginning_is_named_unless_a_snapshot_leads_up_to_it(tmp_path: Path) -> None:
    source = log_directory(tmp_path / "source")
    _, stop = deleted(source, 0)
    done = run("compact", source, tmp_path / "target", "--json")
    assert done.exit_code == 0, done.output + done.stderr
    for path in (source / METADATA).glob("*.checkpoint"):
        path.unlink()
    done = run("compact", source, tmp_path / "without", "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["parts"][METADATA]["lost"] == [[0, stop - 1]]


@pytest.mark.parametrize("verb", ["repair", "rebuild", "compact"])
def test_several_controllers_are_rewritten_each_in_its_place(verb: str, tmp_path: Path) -> None:
    """`repair` refused them: two metadata directories were found where one was expected."""
    (tmp_path / "source").mkdir()
    for name in ("one", "two"):
        log_directory(tmp_path / "source" / name)
    done = run(verb, tmp_path / "source", tmp_path / "target")
    assert done.exit_code == 0, done.output + done.stderr
    for name in ("one", "two"):
        assert next_to_the_log(tmp_path / "target" / name) == next_to_the_log(tmp_path / "source" / name)
        identity = (tmp_path / "target" / name / "meta.properties").read_bytes()
        assert identity == (tmp_path / "source" / name / "meta.properties").read_bytes()


def test_verification_reads_the_metadata_log_once(tmp_path: Path) -> None:
    """The rules over the directory read its log and snapshots again, some of them several times."""
    from rawlog.io import storage

    source = log_directory(tmp_path / "source")
    read: dict[str, int] = {}
    into, plain = storage.Source.read_into, storage.Source.read

    def counted_into(self: storage.Source, position: int, room: memoryview) -> int:
        got = into(self, position, room)
        read[self.path] = read.get(self.path, 0) + got
        return got

    def counted(self: storage.Source, position: int, size: int) -> bytes:
        data = plain(self, position, size)
        read[self.path] = read.get(self.path, 0) + len(data)
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage.Source, "read_into", counted_into)
        patch.setattr(storage.Source, "read", counted)
        assert rawlog.verify(source / METADATA).verdict == "clean"
    for path in (source / METADATA).iterdir():
        if path.suffix in (".log", ".checkpoint"):
            assert read[str(path)] <= path.stat().st_size, path.name
