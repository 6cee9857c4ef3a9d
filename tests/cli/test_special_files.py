"""Only regular files are opened, by any verb: a named pipe would hang it until somebody writes, a device may do worse."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rawlog import registry
from rawlog.reading.tree import open_tree
from tests.data.calls import CALLS, FILE, OUT, SOUND, SOURCE, fill

SAMPLES = Path(__file__).parents[2] / "samples"
#: Verbs that name every file that they cannot read, and say so with their exit code.
NAMING = {"ls", "cat", "count", "find", "explain", "verify", "diff", "repair", "rebuild", "rescue", "compact", "erase"}
#: So many seconds for all verbs on one source; a verb that waits for a pipe would need for ever.
PATIENCE = 240

PROGRAM = """
import json, sys
from click.testing import CliRunner
from rawlog.cli import cli
for arguments in json.load(sys.stdin):
    print(json.dumps(arguments), flush=True)
    result = CliRunner().invoke(cli, arguments, prog_name="rawlog")
    print(json.dumps([result.exit_code, result.stdout + result.stderr]), flush=True)
"""


def run_all(calls: list[list[str]]) -> list[tuple[list[str], int, str]]:
    """Run verbs one after the other in a process that is killed if one of them hangs."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], input=json.dumps(calls), capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired as error:
        lines = bytes(error.stdout or b"").decode().splitlines()
        pytest.fail(f"this hangs: {lines[-1] if lines else 'start'}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == 2 * len(calls), done.stderr
    return [(arguments, *outcome) for arguments, outcome in zip(lines[::2], lines[1::2], strict=True)]


@pytest.mark.parametrize("place", ["log", "others"])
@pytest.mark.parametrize("system", ["kafka", "rocketmq", "ambry", "replay"])
def test_a_named_pipe_in_place_of_a_file_hangs_no_verb(tmp_path: Path, system: str, place: str) -> None:
    """`verify`, `report` and `rescue --plan` waited for ever for somebody to write to a pipe named `partition.metadata`."""
    source = tmp_path / "source"
    shutil.copytree(SAMPLES / system, source)
    formats = registry.formats()
    by_format: dict[str, Path] = {}
    for file in open_tree(source):
        is_log = file.format is not None and any(table.name == "records" for table in formats[file.format].tables)
        if file.format is not None and is_log == (place == "log"):
            by_format.setdefault(file.format, Path(file.path))
    for path in by_format.values():
        path.unlink()
        os.mkfifo(path)
    if not by_format:
        pytest.skip("recordings have no other files")
    pipe = str(next(iter(by_format.values())))
    calls = []
    for verb, variants in CALLS.items():
        for number, arguments in enumerate(variants[:2]):
            target = str(tmp_path / f"{verb}-{number}")
            places = {SOURCE: str(source), SOUND: str(SAMPLES / system), FILE: pipe, OUT: target}
            calls.append([verb, *fill(arguments, places)])
    for arguments, code, text in run_all(calls):
        assert code != 70, (arguments, text)
        unable = "nothing here" in text or code == 2
        if arguments[0] in NAMING and not unable:
            assert code in (1, 3), (arguments, text)
            assert "is a named pipe, not a regular file" in text, (arguments, text)


def test_a_directory_under_the_name_of_a_file_is_named(tmp_path: Path, run: Callable[..., object]) -> None:
    """A directory `00000000000000000042.log` was walked like any other, and no verb said that it is none of a broker's."""
    source = tmp_path / "source"
    shutil.copytree(SAMPLES / "ambry", source)
    (source / "9" / "3_0_log").mkdir()
    for arguments in (("verify", source), ("count", source), ("repair", source, tmp_path / "repaired")):
        ran = run(*arguments)
        assert ran.code in (1, 3)  # type: ignore[attr-defined]
        text = ran.text + ran.err  # type: ignore[attr-defined]
        assert "3_0_log" in text
        assert "is a directory, not a regular file" in text


def test_a_topic_may_have_the_name_of_a_file(tmp_path: Path) -> None:
    """A RocketMQ topic `checkpoint` is a directory of that name, in good order."""
    shutil.copytree(SAMPLES / "rocketmq", tmp_path / "store")
    queues = sorted((tmp_path / "store").rglob("consumequeue/*"))
    queues[0].rename(queues[0].with_name("checkpoint"))
    assert [file.path for file in open_tree(tmp_path / "store") if file.problem is not None] == []
