"""`repair`, `rebuild` and `compact` write a new directory, tell what came of it, and touch nothing else."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rawlog
from rawlog.cli import cli
from rawlog.engines.choice import choose
from tests.data.trees import digests

SAMPLES = Path(__file__).parent.parent.parent / "samples"
STORES = {
    "ambry": ("rebuild", "repair", "compact"),
    "rocketmq": ("rebuild", "repair"),
    "kafka": ("rebuild", "repair", "compact"),
}
#: What stays known of a loss in the repaired store, as warnings: an Ambry log has updates of a blob whose PUT is lost.
KNOWN_LOSS = {"ambry": {"ambry.store.orphan-update"}}
CASES = [(system, verb) for system, verbs in STORES.items() for verb in verbs]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def source_of(system: str) -> Path:
    return SAMPLES / system / "segments-by-size-0" if system == "kafka" else SAMPLES / system


def serious(path: Path) -> set[str]:
    """The codes of errors and warnings of `verify`."""
    return {one.code for one in rawlog.verify(path) if one.severity != "info"}


def wound(system: str, copy: Path) -> Path:
    """Copy a store, and zero a few bytes of its first log file."""
    shutil.copytree(source_of(system), copy)
    names = {"ambry": "*_log", "rocketmq": "commitlog/*", "kafka": "*.log"}
    path = min(one for one in copy.rglob(names[system]) if one.is_file() and one.stat().st_size)
    data = bytearray(path.read_bytes())
    data[300:340] = bytes(40)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(("system", "verb"), CASES)
def test_a_sound_store_comes_out_sound(system: str, verb: str, tmp_path: Path) -> None:
    source, target = source_of(system), tmp_path / "segments-by-size-0"
    before = digests(source)
    result = run(verb, source, target)
    assert result.exit_code == 0, result.output + result.stderr
    assert str(target) in result.output
    assert digests(source) == before
    assert rawlog.verify(target).verdict == "clean"
    if verb != "compact":
        key = ["topic", "partition", "offset", "key", "value"]
        assert rawlog.read(target, columns=key).to_pylist() == rawlog.read(source, columns=key).to_pylist()


@pytest.mark.parametrize(("system", "verb"), CASES)
def test_what_is_there_already_is_not_overwritten(system: str, verb: str, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / "file").write_text("mine")
    result = run(verb, source_of(system), target)
    assert result.exit_code == 3
    assert [path.name for path in tmp_path.rglob("*")] == ["there", "file"]


@pytest.mark.parametrize("system", list(STORES))
def test_damage_is_mended_and_told(system: str, tmp_path: Path) -> None:
    copy, target = tmp_path / "copy" / "segments-by-size-0", tmp_path / "repaired" / "segments-by-size-0"
    wound(system, copy)
    assert rawlog.verify(copy).verdict == "damaged"
    result = run("repair", copy, target, "--json")
    assert result.exit_code == 1, result.output + result.stderr
    assert json.loads(result.output.splitlines()[-1])["is_whole"] is False
    assert serious(target) == KNOWN_LOSS.get(system, set())
    again = run("repair", target, tmp_path / "again" / "segments-by-size-0")
    assert again.exit_code == (1 if system in KNOWN_LOSS else 0), again.output
    if system != "ambry":  # which gives every copy of a store an identity of its own
        assert digests(tmp_path / "again" / "segments-by-size-0") == digests(target)


@pytest.mark.parametrize("system", list(STORES))
def test_a_dry_run_tells_what_would_be_and_writes_nothing(system: str, tmp_path: Path) -> None:
    copy, target = tmp_path / "copy" / "segments-by-size-0", tmp_path / "repaired" / "segments-by-size-0"
    wound(system, copy)
    before = digests(copy)
    result = run("repair", copy, target, "--dry-run")
    assert result.exit_code == 1, result.output + result.stderr
    assert "nothing written" in result.output
    said = json.loads(run("repair", copy, target, "--dry-run", "--json").output)
    assert not target.parent.exists()
    assert digests(copy) == before
    done = json.loads(run("repair", copy, target, "--json").output)
    assert said.pop("dry_run") is True
    # What is not written cannot be verified: of a loss that stays known, a dry run has only the entry.
    assert {one["code"] for one in done.pop("remaining", [])} == KNOWN_LOSS.get(system, set())
    assert {name: value for name, value in said.items() if name not in ("files", "notes")} == {
        name: value for name, value in done.items() if name not in ("files", "notes")
    }


@pytest.mark.parametrize(("system", "verb"), CASES)
def test_force_replaces_what_is_there_only_if_all_goes_well(system: str, verb: str, tmp_path: Path) -> None:
    target = tmp_path / "segments-by-size-0"
    target.mkdir()
    (target / "file").write_text("mine")
    failed = run(verb, source_of(system), target, "--force", "--option", "nonsense=1")
    assert failed.exit_code == 2
    assert (target / "file").read_text() == "mine"
    result = run(verb, source_of(system), target, "--force")
    assert result.exit_code == 0, result.output + result.stderr
    assert not (target / "file").exists()
    assert rawlog.verify(target).verdict == "clean"
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_an_option_that_a_system_does_not_know_is_answered_with_the_nearest(tmp_path: Path) -> None:
    result = run("repair", source_of("kafka"), tmp_path / "out", "--option", "index.intervall.bytes=1")
    assert result.exit_code == 2
    assert "did you mean index_interval_bytes" in result.stderr
    assert run("repair", source_of("ambry"), tmp_path / "out", "--quarantine", tmp_path / "aside").exit_code == 2
    assert run("compact", source_of("ambry"), tmp_path / "out", "--memory", "1M").exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_a_repair_of_kafka_tells_every_byte_and_every_lost_offset(tmp_path: Path) -> None:
    copy, target = tmp_path / "copy" / "segments-by-size-0", tmp_path / "repaired" / "segments-by-size-0"
    path = wound("kafka", copy)
    result = run("repair", copy, target, "--json", "--quarantine", tmp_path / "aside", "--policy", "salvage")
    said = json.loads(result.output)
    of_file = [one for one in said["entries"] if one.get("path") == str(path)]
    assert of_file[0]["start"] == 0
    assert all(one["stop"] == after["start"] for one, after in itertools.pairwise(of_file))
    assert of_file[-1]["stop"] == path.stat().st_size
    assert {one["action"] for one in of_file} == {"kept", "dropped"}
    before, after = (set(rawlog.read(one)["offset"].to_pylist()) for one in (source_of("kafka"), target))
    assert before - after == {offset for first, last in said["lost"] for offset in range(first, last + 1)}
    assert set(said["rebuilt"]) == {one.name for one in target.iterdir() if one.suffix != ".log"} - {
        "partition.metadata"
    }
    assert [one.suffix for one in (tmp_path / "aside").iterdir()].count(".cut") == sum(
        one["action"] == "dropped" for one in said["entries"]
    )
    strict = run("repair", copy, tmp_path / "strict", "--policy", "strict")
    assert strict.exit_code == 1
    assert not (tmp_path / "strict").exists()
    cut = run("repair", copy, tmp_path / "cut" / "segments-by-size-0", "--policy", "broker")
    assert "after the first damage" in cut.output


def test_a_whole_log_directory_is_mended_or_nothing_is(tmp_path: Path) -> None:
    copy = tmp_path / "logs"
    copy.mkdir()
    for name in ("segments-by-size-0", "transactions-0", "codec-lz4-1"):
        shutil.copytree(SAMPLES / "kafka" / name, copy / name)
    for name in (
        "meta.properties",
        "log-start-offset-checkpoint",
        "replication-offset-checkpoint",
        ".kafka_cleanshutdown",
    ):
        if (SAMPLES / "kafka" / name).exists():
            shutil.copy2(SAMPLES / "kafka" / name, copy)
    path = min((copy / "transactions-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[70] ^= 1
    path.write_bytes(data)
    refused = run("repair", copy, tmp_path / "strict", "--policy", "strict")
    assert refused.exit_code == 1
    assert [one.name for one in tmp_path.iterdir()] == ["logs"]
    result = run("repair", copy, tmp_path / "repaired", "--json")
    assert result.exit_code == 1
    assert sorted(json.loads(result.output)["parts"]) == ["codec-lz4-1", "segments-by-size-0", "transactions-0"]
    assert rawlog.verify(tmp_path / "repaired").errors == 0
    assert (tmp_path / "repaired" / "meta.properties").read_bytes() == (copy / "meta.properties").read_bytes()
    assert not (tmp_path / "repaired" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("verb", ["rebuild", "repair", "compact"])
def test_the_engine_is_chosen_as_for_other_jobs(verb: str, tmp_path: Path) -> None:
    target = tmp_path / "segments-by-size-0"
    for words in (["--engine", "local", "--master", "local[2]"], ["--threads", "2", "--conf", "a=b"]):
        refused = run(verb, source_of("kafka"), target, *words)
        assert refused.exit_code == 2, refused.output
    assert list(tmp_path.iterdir()) == []
    assert run(verb, source_of("kafka"), target, "--threads", "1").exit_code == 0
    assert "--master" in run(verb, "--help").output


def test_a_job_that_was_submitted_to_a_cluster_runs_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small one ran in the driver that spark-submit had started."""
    for submitted, threads, expected in ((False, None, "local"), (True, None, "spark"), (True, 2, "local")):
        if submitted:
            monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "12345")
        assert choose(1000, threads=threads).name == expected


def test_a_place_with_nothing_to_mend_says_what_could_be(tmp_path: Path) -> None:
    result = run("rebuild", SAMPLES / "replay", tmp_path / "out")
    assert result.exit_code == 3
    assert "nothing here to rebuild" in result.stderr
    assert run("repair", SAMPLES / "ambry", tmp_path / "out", "--option", "nonsense").exit_code == 2
    assert run("repair", SAMPLES / "rocketmq", tmp_path / "out", "--policy", "nonsense").exit_code == 2


@pytest.mark.parametrize(
    ("system", "verb"), [("kafka", "compact"), ("kafka", "repair"), ("rocketmq", "repair"), ("ambry", "repair")]
)
def test_a_full_disk_leaves_nothing_behind(system: str, verb: str, tmp_path: Path) -> None:
    """A real limit on the size of files, in a process of its own; set once kernels are there, which are kept on disk as well."""
    source, target = source_of(system), tmp_path / "out" / "segments-by-size-0"
    before = digests(source)
    code = (
        "import resource, sys; from click.testing import CliRunner; from rawlog.cli import cli, main;"
        "assert CliRunner().invoke(cli, [*sys.argv[1:3], sys.argv.pop()]).exit_code == 0;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400)); main()"
    )
    words = [verb, str(source), str(target), str(tmp_path / "warm" / target.name)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "too large" in done.stderr.lower()
    assert str(target) in done.stderr or str(target.parent) in done.stderr
    assert digests(source) == before
    shutil.rmtree(tmp_path / "warm")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("system", "verb"), CASES)
def test_a_place_that_cannot_be_written_is_an_error(system: str, verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    result = run(verb, source_of(system), tmp_path / "file" / "out")
    assert result.exit_code == 3, result.output
    assert result.stderr.startswith("rawlog: ") or "file" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_log_under_a_name_that_the_system_does_not_read_is_carried_as_it_is(tmp_path: Path) -> None:
    """It was taken for a store of its own, and no store was repaired."""
    copy, target = tmp_path / "copy", tmp_path / "repaired"
    shutil.copytree(SAMPLES / "ambry" / "9", copy)
    first, second, *_ = sorted(copy.glob("*_log"))
    first.rename(copy / "weird name.log")
    second.write_bytes(b"")  # and nothing is left of another
    result = run("repair", copy, target, "--json")
    assert result.exit_code == 1, result.output + result.stderr
    said = json.loads(result.output)
    assert "weird name.log" in said["files"]
    assert (target / "weird name.log").read_bytes() == (copy / "weird name.log").read_bytes()
    assert said["is_whole"] is False
    assert serious(target) == {"ambry.store.lost-segment", "ambry.store.orphan-update"}  # the loss stays known
    assert run("repair", target, tmp_path / "again").exit_code == 1
    assert digests(tmp_path / "again") == digests(target)
