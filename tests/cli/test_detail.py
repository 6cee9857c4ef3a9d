"""How much is printed: healthy parts are a number, what was lost comes last, and every verb has -v, -q and --progress."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rawlog.cli import cli
from rawlog.cli.submit import command as submit

SAMPLES = Path(__file__).parents[2] / "samples"
PARTITIONS = 50
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def wounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """50 partitions in one directory; a batch of number 17 has a wrong checksum."""
    base = tmp_path_factory.mktemp("wounded") / "data"
    for number in range(PARTITIONS):
        shutil.copytree(SAMPLES / "kafka" / "codec-none-1", base / f"orders-{number}")
    log = min((base / "orders-17").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[700] ^= 0xFF
    log.write_bytes(data)
    return base


def test_a_loss_among_many_partitions_comes_last(run: Run, wounded: Path, tmp_path: Path) -> None:
    """`repair` of 50 partitions had three lines for each of them: what was lost was in the middle of 150 lines."""
    done = run("repair", wounded, tmp_path / "out")
    lines = done.text.splitlines()
    assert done.code == 1
    assert len(lines) <= 15, done.text
    assert "49 partitions unchanged" in lines
    verdict = next(at for at, line in enumerate(lines) if line.startswith("repair: "))
    assert lines[verdict].endswith("something was lost or changed:")
    assert lines[verdict + 1] == "  orders-17"
    assert any(line.startswith("    lost offset") for line in lines[verdict + 1 :])
    assert not any("lost offset" in line for line in lines[:verdict])


def test_quiet_prints_the_verdict_and_the_loss(run: Run, wounded: Path, tmp_path: Path) -> None:
    normal = run("repair", wounded, tmp_path / "out").text.splitlines()
    quiet = run("repair", wounded, tmp_path / "out", "--force", "-q").text.splitlines()
    verdict = next(at for at, line in enumerate(normal) if line.startswith("repair: "))
    assert quiet == normal[verdict:]


def test_verbose_lists_every_partition(run: Run, wounded: Path, tmp_path: Path) -> None:
    normal = run("repair", wounded, tmp_path / "out").text.splitlines()
    lines = run("repair", wounded, tmp_path / "out", "--force", "--verbose").text.splitlines()
    assert {f"orders-{number}" for number in range(PARTITIONS)} <= set(lines)
    verdict = next(at for at, line in enumerate(normal) if line.startswith("repair: "))
    assert lines[-len(normal[verdict:]) :] == normal[verdict:]


def test_json_has_everything_at_every_detail(run: Run, wounded: Path, tmp_path: Path) -> None:
    reports = [
        json.loads(run("repair", wounded, tmp_path / "out", "--force", "--json", *how).text)
        for how in ((), ("-q",), ("-v",))
    ]
    assert reports[0] == reports[1] == reports[2]
    assert len(reports[0]["parts"]) == PARTITIONS


@pytest.mark.parametrize("verb", ["rebuild", "compact", "erase", "restore"])
def test_healthy_partitions_are_not_lines(run: Run, verb: str, tmp_path: Path) -> None:
    more = ["--topic", "codec-none"] if verb == "erase" else []
    done = run(verb, SAMPLES / "kafka", tmp_path / "out", *more)
    assert done.code == 0, done.text + done.err
    assert len(done.text.splitlines()) <= 15, done.text
    assert "codec-zstd-1" not in done.text


def test_rescue_shows_the_partitions_that_lost_something(run: Run, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    shutil.copytree(SAMPLES / "kafka", disk)
    log = disk / "segments-by-size-0" / "00000000000000000060.log"
    data = bytearray(log.read_bytes())
    data[900] ^= 0xFF
    log.write_bytes(data)
    done = run("rescue", disk, "--to", tmp_path / "out")
    assert done.code == 1
    assert "codec-zstd-1" not in done.text
    assert done.text.splitlines()[-3].strip() == "segments-by-size-0"
    assert "lost offsets 60 to 71" in done.text.splitlines()[-1]
    assert "codec-zstd-1" in run("rescue", disk, "--plan").text


def test_every_verb_has_the_same_three_options(run: Run) -> None:
    """`--quiet` was an option of three verbs, and nothing could ask for progress where stderr is no terminal."""
    for name in cli.list_commands(None):  # type: ignore[arg-type]
        command = cli.get_command(None, name)  # type: ignore[arg-type]
        assert command is not None
        options = {option for parameter in command.params for option in parameter.opts}
        if command is not submit:  # it hands all options to a verb
            assert {"-v", "--verbose", "-q", "--quiet", "--progress"} <= options, name


def test_progress_is_lines_where_stderr_is_no_terminal(run: Run) -> None:
    for verb in ("verify", "cat", "count"):
        quiet = run(verb, SAMPLES / "kafka" / "codec-none-1", "--no-progress").err
        assert "progress" not in quiet
        assert "rawlog: progress: " in run(verb, SAMPLES / "kafka" / "codec-none-1", "--progress").err


def test_quiet_findings_are_errors_and_warnings(run: Run, wounded: Path) -> None:
    lines = run("verify", wounded, "-q").text.splitlines()
    assert lines[-1].startswith("damaged: ")
    assert any(line.startswith("  error") for line in lines)
    assert not any(line.startswith("  info") for line in lines)
    sound = SAMPLES / "kafka-crashed"
    assert len(run("verify", sound, "-q").text.splitlines()) == 1 < len(run("verify", sound).text.splitlines())
