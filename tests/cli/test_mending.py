"""`repair`, `rebuild` and `compact` write a new directory, tell what came of it, and touch nothing else."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import rawlog
from rawlog.cli import cli

SAMPLES = Path(__file__).parent.parent.parent / "samples"
STORES = {"ambry": ("rebuild", "repair", "compact"), "rocketmq": ("rebuild", "repair"), "kafka": ("rebuild", "repair", "compact")}
CASES = [(system, verb) for system, verbs in STORES.items() for verb in verbs]


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def source_of(system: str) -> Path:
    return SAMPLES / system / "segments-by-size-0" if system == "kafka" else SAMPLES / system


def digest(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            state.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return state.hexdigest()


@pytest.mark.parametrize(("system", "verb"), CASES)
def test_a_sound_store_comes_out_sound(system: str, verb: str, tmp_path: Path) -> None:
    source, target = source_of(system), tmp_path / "segments-by-size-0"
    before = digest(source)
    result = run(verb, source, target)
    assert result.exit_code == 0, result.output + result.stderr
    assert str(target) in result.output
    assert digest(source) == before
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
    copy, target = tmp_path / "copy" / "segments-by-size-0", tmp_path / "mended" / "segments-by-size-0"
    shutil.copytree(source_of(system), copy)
    names = {"ambry": "*_log", "rocketmq": "commitlog/*", "kafka": "*.log"}
    path = min(one for one in copy.rglob(names[system]) if one.is_file() and one.stat().st_size)
    data = bytearray(path.read_bytes())
    data[300:340] = bytes(40)
    path.write_bytes(data)
    assert rawlog.verify(copy).verdict == "damaged"
    result = run("repair", copy, target, "--json")
    assert result.exit_code == 1, result.output + result.stderr
    assert json.loads(result.output.splitlines()[-1])["is_whole"] is False
    assert rawlog.verify(target).verdict == "clean"
    again = run("repair", target, tmp_path / "again" / "segments-by-size-0")
    assert again.exit_code == 0, again.output


def test_a_place_with_nothing_to_mend_says_what_could_be(tmp_path: Path) -> None:
    result = run("repair", SAMPLES / "replay", tmp_path / "out")
    assert result.exit_code == 3
    assert "nothing here to repair" in result.stderr
    assert run("repair", SAMPLES / "ambry", tmp_path / "out", "--option", "nonsense").exit_code == 2
    assert run("repair", SAMPLES / "rocketmq", tmp_path / "out", "--policy", "nonsense").exit_code == 2
