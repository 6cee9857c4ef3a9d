"""Nothing there is never "clean": a verb that reads paths ends with 3 if none of them has a known file, and names those that have none."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click import Context

from rawlog.cli import cli
from tests.data.golden import golden_path

SAMPLES = Path(__file__).parents[2] / "samples"
PATH, OUT = "PATH", "OUT"
#: How each verb is called. A new verb that reads paths is added here.
READING: dict[str, tuple[str, ...]] = {
    "ls": (PATH,),
    "cat": (PATH,),
    "head": (PATH,),
    "tail": (PATH,),
    "count": (PATH,),
    "find": ("key", PATH),
    "explain": (PATH,),
    "report": (PATH, "-o", OUT),
    "browse": (PATH,),
    "verify": (PATH,),
    "diff": (PATH, PATH),
    "convert": (PATH, OUT, "--to", "parquet", "--engine", "local"),
    "restore": (PATH, OUT, "--engine", "local"),
    "erase": (PATH, OUT, "--key", "k"),
    "repair": (PATH, OUT),
    "rebuild": (PATH, OUT),
    "compact": (PATH, OUT),
    "rescue": (PATH, "--to", OUT),
    "query": ("SELECT count(*) AS n FROM records", PATH, "--engine", "duckdb"),
    "sql": (PATH, "--engine", "duckdb"),
    "ingest": (PATH, "--to", OUT, "--engine", "local"),
    "lake": (PATH,),
    "replay": (PATH, "--brokers", "127.0.0.1:1", "--dry-run"),
    "groups": (PATH,),
    "transactions": (PATH,),
    "cluster": (PATH,),
    "extract": (PATH, "--to", OUT),
}
#: Verbs that read no files of a system.
OTHERS = {"formats", "record", "mirror", "submit", "completion", "doctor"}
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


def test_every_verb_is_in_one_of_the_lists() -> None:
    assert {*cli.list_commands(Context(cli))} == {*READING, *OTHERS}


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
    every: list[Any] = [verb]
    for argument in READING[verb]:
        every += paths if argument == PATH else [out] if argument == OUT else [argument]
    return every


@pytest.mark.parametrize("kind", ["empty directory", "unknown directory", "random file", "nothing"])
@pytest.mark.parametrize("verb", READING)
def test_nothing_known_is_exit_code_3(verb: str, kind: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """`ls`, `report` and `ingest` ended with 0: of a recording with a damaged header `ingest` stored 0 rows and called it clean."""
    path, out = nothing(kind, tmp_path), tmp_path / "out"
    ran = run(*called(verb, [path], out))
    assert ran.code == 3, ran.err
    assert path.name in ran.err
    assert not out.exists()


@pytest.mark.parametrize("verb", READING)
def test_a_verb_that_can_be_told_the_format_says_so(verb: str, run: Callable[..., Any], tmp_path: Path) -> None:
    """`verify` and `ls` said it; `cat`, `count` and most others did not."""
    command = cli.get_command(Context(cli), verb)
    assert command is not None
    takes_format = any("--as" in option.opts for option in command.params)
    ran = run(*called(verb, [nothing("random file", tmp_path)], tmp_path / "out"))
    assert (ran.code, "--as FORMAT names one" in ran.err) == (3, takes_format), ran.err


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
