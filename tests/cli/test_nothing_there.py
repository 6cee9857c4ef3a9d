"""Nothing there is never "clean": a verb that reads paths ends with 3 if none of them has a known file, and names those that have none."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import Context

from rawlog.cli import cli
from tests.data.calls import CALLS, FILE, OUT, SOUND, SOURCE, WAITING
from tests.data.golden import golden_path

SAMPLES = Path(__file__).parents[2] / "samples"
#: How each verb that reads paths is called.
READING = {verb: variants[0] for verb, variants in CALLS.items()} | WAITING
#: Verbs that take several paths, and what they find something in.
ROWS = (
    "ls",
    "cat",
    "head",
    "tail",
    "count",
    "find",
    "report",
    "verify",
    "convert",
    "restore",
    "erase",
    "query",
    "ingest",
    "rescue",
)
SEVERAL = {
    **dict.fromkeys(ROWS, "kafka/codec-lz4-0"),
    "groups": "kafka",
    "transactions": "kafka",
    "cluster": "kafka/__cluster_metadata-0",
    "extract": "ambry",
}


def nothing(kind: str, folder: Path) -> Path:
    """A path without a file of a known format."""
    path = folder / kind
    if kind == "unknown directory":
        path.mkdir()
        (path / "x.bin").write_bytes(os.urandom(3000))
    elif kind == "empty directory":
        path.mkdir()
    elif kind == "random file":
        path.write_bytes(b"\xfe" + os.urandom(3000))
    return path


def called(verb: str, paths: list[Path], out: Path) -> list[Any]:
    """The arguments of a verb."""
    words: list[Any] = [verb]
    for word in READING[verb]:
        words += paths if word in (SOURCE, SOUND, FILE) else [word.replace(OUT, str(out))]
    return words


@pytest.mark.parametrize("kind", ["empty directory", "unknown directory", "random file", "nothing"])
@pytest.mark.parametrize("verb", READING)
def test_nothing_known_is_exit_code_3(verb: str, kind: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """`ls`, `report` and `ingest` ended with 0: of a recording with a damaged header `ingest` stored 0 rows and called it clean."""
    path, out = nothing(kind, tmp_path), tmp_path / "out"
    ran = run(*called(verb, [path], out))
    assert ran.code == 3, ran.err
    assert path.name in ran.err
    assert list(tmp_path.glob("out*")) == []


def test_a_path_inside_another_one_has_its_files(run: Callable[..., Any], tmp_path: Path) -> None:
    """The second path's files were those of the first: "no file of any known format here", and exit code 3."""
    (tmp_path / "logs").mkdir()
    shutil.copy(golden_path("replay", "v2", "find.log"), tmp_path / "logs" / "a.log")
    (tmp_path / "empty").mkdir()
    for more in (tmp_path / "logs", tmp_path / "logs" / "a.log", os.path.relpath(tmp_path)):
        ran = run("count", tmp_path, more)
        assert (ran.code, ran.err) == (0, "")
    ran = run("count", tmp_path, tmp_path / "empty")
    assert ran.code == 3
    assert f"{tmp_path / 'empty'}: no file of any known format here" in ran.err


@pytest.mark.parametrize("verb", READING)
def test_a_verb_that_can_be_told_the_format_says_so(verb: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """`verify` and `ls` said it; `cat`, `count` and most others did not."""
    command = cli.get_command(Context(cli), verb)
    assert command is not None
    takes_format = any("--as" in option.opts for option in command.params)
    ran = run(*called(verb, [nothing("random file", tmp_path)], tmp_path / "out"))
    assert (ran.code, "--as FORMAT names" in ran.err) == (3, takes_format), ran.err


@pytest.mark.parametrize("kind", ["empty directory", "random file", "nothing"])
@pytest.mark.parametrize("verb", SEVERAL)
def test_a_path_without_anything_known_is_named(verb: str, kind: str, run: Callable[..., Any], tmp_path: Path) -> None:
    path, out = nothing(kind, tmp_path), tmp_path / "out"
    ran = run(*called(verb, [SAMPLES / SEVERAL[verb], path], out))
    assert ran.code in (1, 3)
    assert path.name in ran.text + ran.err
    assert ran.out or out.exists(), "the other path was read"


def test_a_recording_with_a_damaged_header_is_not_ingested_as_nothing(run: Callable[..., Any], tmp_path: Path) -> None:
    sound = golden_path("replay", "v2", "basic.log")
    damaged = tmp_path / "damaged.log"
    damaged.write_bytes(b"\xff" * 18 + Path(sound).read_bytes()[18:])
    ran = run("ingest", damaged, "--to", tmp_path / "lake", "--engine", "local")
    assert (ran.code, "damaged.log" in ran.err) == (3, True)
    shutil.copy(sound, tmp_path / "sound.log")
    ran = run("ingest", tmp_path / "sound.log", damaged, "--to", tmp_path / "lake", "--engine", "local")
    assert (ran.code, "damaged.log" in ran.err) == (1, True)


def test_a_partition_that_has_only_its_other_files_is_lost_for_every_verb(
    run: Callable[..., Any], tmp_path: Path
) -> None:
    """Next to a sound partition: `verify` and `repair` said so, `convert`, `ingest`, `restore` and `rescue` passed over it with code 0."""
    logs = tmp_path / "logs"
    for name in ("segments-by-size-0", "codec-none-0"):
        shutil.copytree(SAMPLES / "kafka" / name, logs / name)
    next((logs / "codec-none-0").glob("*.log")).unlink()
    for verb, *options in (
        ("verify",),
        ("repair", tmp_path / "repaired"),
        ("convert", tmp_path / "rows.jsonl"),
        ("ingest", "--to", tmp_path / "lake", "--engine", "local"),
        ("restore", tmp_path / "restored"),
        ("rescue", "--to", tmp_path / "rescued"),
    ):
        ran = run(verb, logs, *options)
        assert ran.code == 1, (verb, ran.text, ran.err)
        assert "codec-none-0" in ran.text + ran.err, verb


READERS: dict[str, tuple[str, ...]] = {
    "verify": (),
    "report": ("-o", "@.html"),
    "repair": ("@",),
    "rescue": ("--to", "@"),
    "rebuild": ("@",),
    "convert": ("@.jsonl", "--errors", "skip"),
    "ingest": ("--to", "@", "--engine", "local"),
    "cat": ("--errors", "skip"),
    "count": ("--errors", "skip"),
}


@pytest.mark.parametrize("verb", READERS)
@pytest.mark.parametrize("name", ["orders-0/00000000000000000000.log", "commitlog/00000000000000000000"])
def test_a_log_of_nothing_but_garbage_is_damaged(verb: str, name: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """Bytes that no frame begins or follows were taken for an unfinished last frame, with code 0; zeros, and the beginning of a first
    frame, are what a crash leaves.
    """
    first = {"orders-0": "kafka/codec-none-0/*.log", "commitlog": "rocketmq/store/commitlog/*"}[name.split("/")[0]]
    beginning = next(path for path in sorted(SAMPLES.glob(first)) if path.is_file()).read_bytes()[:100]
    for kind, data, code in (
        ("garbage", b"\xe7" + random.Random(1).randbytes(4095), 1),
        ("large", b"\x00\x00\x10" + random.Random(2).randbytes(4093), 1),  # its length leads beyond the end
        ("zeros", bytes(4096), 0),
        ("beginning", beginning, 0),
    ):
        log = tmp_path / kind / name
        log.parent.mkdir(parents=True)
        log.write_bytes(data)
        ran = run(verb, log.parents[1], *(word.replace("@", str(tmp_path / f"out-{kind}")) for word in READERS[verb]))
        assert ran.code == code, (kind, ran.text, ran.err)
