"""Every verb that writes refuses a target that is, contains or lies inside a source, with or without `--force`."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rawlog
from rawlog.model.errors import OptionError
from tests.cli.conftest import Ran

SAMPLES = Path(__file__).parent.parent.parent / "samples"
KAFKA, AMBRY, ROCKETMQ, REPLAY = "kafka", "ambry", "rocketmq", "replay"
LOCAL = ("--engine", "local")
BLOB = "AAYQAP8AZQAHAAAAAAAAAAkAAAAAJGY1"  # any id: the target is refused before it is looked for

#: What each verb is called with, the target last or in place of `@`; those with `force` take that option.
VERBS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "convert-parquet": (KAFKA, ("convert", "$", "@", "--to", "parquet", *LOCAL), True),
    "convert-jsonl": (ROCKETMQ, ("convert", "$", "@", "--to", "jsonl", *LOCAL), True),
    "convert-kafka": (KAFKA, ("convert", "$", "@", "--to", "kafka", *LOCAL), True),
    "convert-again": (KAFKA, ("convert", "$", "@", "--to", "kafka", "--option", "codec=zstd", *LOCAL), True),
    "convert-rocketmq": (KAFKA, ("convert", "$", "@", "--to", "rocketmq", *LOCAL), True),
    "convert-ambry": (KAFKA, ("convert", "$", "@", "--to", "ambry", *LOCAL), True),
    "convert-replay": (KAFKA, ("convert", "$", "@", "--to", "replay", *LOCAL), True),
    "convert-dry-run": (KAFKA, ("convert", "$", "@", "--to", "parquet", "--dry-run", *LOCAL), True),
    "erase-key": (KAFKA, ("erase", "$", "@", "--key", "k", *LOCAL), True),
    "erase-blob": (AMBRY, ("erase", "$", "@", "--blob", BLOB), True),
    "repair-kafka": (KAFKA, ("repair", "$", "@"), True),
    "repair-rocketmq": (ROCKETMQ, ("repair", "$", "@"), True),
    "repair-ambry": (AMBRY, ("repair", "$", "@"), True),
    "repair-replay": (REPLAY, ("repair", "$", "@"), True),
    "repair-dry-run": (KAFKA, ("repair", "$", "@", "--dry-run"), True),
    "quarantine": (KAFKA, ("repair", "$", "%", "--quarantine", "@"), True),
    "rebuild-kafka": (KAFKA, ("rebuild", "$", "@"), True),
    "rebuild-rocketmq": (ROCKETMQ, ("rebuild", "$", "@"), True),
    "rebuild-ambry": (AMBRY, ("rebuild", "$", "@"), True),
    "compact-kafka": (KAFKA, ("compact", "$", "@"), True),
    "compact-ambry": (AMBRY, ("compact", "$", "@"), True),
    "restore": (KAFKA, ("restore", "$", "@"), True),
    "restore-partitions": (KAFKA, ("restore", "$", "@", "--partitions-only"), True),
    "extract": (AMBRY, ("extract", "$", "--to", "@"), False),
    "ingest": (KAFKA, ("ingest", "$", "--to", "@", *LOCAL), False),
    "explain": (REPLAY, ("explain", "$/basic.log", "--number", "0", "--html", "@"), False),
}
CASES = [(verb, force) for verb, (_, _, takes_force) in VERBS.items() for force in {False, takes_force}]
PLACES = ("same", "parent", "child", "symlink", "below-symlink", "dots", "symlinked-source", "url")


def made(system: str, folder: Path) -> Path:
    """A copy of the samples of a system, the only thing in its directory."""
    source = folder / "data" / "source"
    if system == KAFKA:
        for name in ("meta-grown-0", "codec-none-0"):
            shutil.copytree(SAMPLES / KAFKA / name, source / name)
    else:
        shutil.copytree(SAMPLES / system, source)
    return source


def digest(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        state.update(str(path.relative_to(folder)).encode())
        state.update(path.read_bytes() if path.is_file() else b"")
    return state.hexdigest()


def placed(source: Path, place: str, folder: Path) -> tuple[Path, str]:
    """The source as it is named, and a target that would touch it."""
    (folder / "link").symlink_to(source)
    if place == "symlinked-source":
        return folder / "link", str(source)
    return source, {
        "same": str(source),
        "parent": str(source.parent),
        "child": str(source / "new"),
        "symlink": str(folder / "link"),
        "below-symlink": str(folder / "link" / "not" / "there" / "yet"),
        "dots": f"{folder}/link/../data/elsewhere/../source",
        "url": f"file://{source}",
    }[place]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(("verb", "force"), CASES)
def test_a_target_that_touches_a_source_is_refused(
    verb: str, place: str, force: bool, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    """`convert k/kv-0 k --to parquet --force` deleted all of k; `convert X X --force` and `erase X X --force` replaced X."""
    system, words, _ = VERBS[verb]
    source = made(system, tmp_path)
    before = digest(tmp_path / "data")
    named, target = placed(source, place, tmp_path)
    line = [word.replace("$", str(named)).replace("@", target).replace("%", str(tmp_path / "other")) for word in words]
    if verb == "explain" and place in ("same", "symlink", "symlinked-source", "dots", "url"):
        line[-1] += "/basic.log"
    if verb == "explain" and place == "child":
        line[-1] = f"{source}/basic.log/new"
    if verb == "explain" and place == "below-symlink":
        line[-1] = f"{tmp_path}/link/basic.log/not/there/yet"
    done = run(*line, *(["--force"] if force else []))
    assert done.code == 2, done.err
    assert "inside one another" in done.err
    assert digest(tmp_path / "data") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "link"]


def test_a_glob_means_what_it_matches(tmp_path: Path, run: Callable[..., Ran]) -> None:
    source = made(KAFKA, tmp_path)
    before = digest(source)
    pattern = str(source / "codec-*")
    done = run("convert", pattern, source / "codec-none-0", "--to", "parquet", "--force", *LOCAL)
    assert (done.code, digest(source)) == (2, before)
    assert run("convert", pattern, source / "rows.parquet", "--to", "parquet", *LOCAL).code == 0


def test_what_a_linked_file_leads_to_is_a_source(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """The log directory has only a symbolic link to the segment, which is read all the same."""
    source = made(KAFKA, tmp_path)
    segment = source / "codec-none-0" / "00000000000000000000.log"
    (tmp_path / "disk").mkdir()
    shutil.move(segment, tmp_path / "disk" / segment.name)
    segment.symlink_to(tmp_path / "disk" / segment.name)
    done = run("convert", source, tmp_path / "disk", "--to", "parquet", "--force", *LOCAL)
    assert done.code == 2
    assert (tmp_path / "disk" / segment.name).exists()


def test_a_file_of_keys_is_a_source(tmp_path: Path, run: Callable[..., Ran]) -> None:
    source, keys = made(KAFKA, tmp_path), tmp_path / "keys"
    keys.write_text("a\nb\n")
    done = run("convert", source, keys, "--to", "parquet", "--drop-keys", keys, "--force", *LOCAL)
    assert done.code == 2
    assert run("erase", source, keys, "--keys", keys, "--force", *LOCAL).code == 2
    assert keys.read_text() == "a\nb\n"


def test_quarantine_and_target_are_apart(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """A quarantine inside the target was removed again when the target got its name."""
    source = made(KAFKA, tmp_path)
    for aside in ("out", "out/aside", "."):
        done = run("repair", source, tmp_path / "out", "--quarantine", tmp_path / aside)
        assert done.code == 2, aside
    assert not (tmp_path / "out").exists()


def test_the_working_directory_is_not_replaced(
    tmp_path: Path, run: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = made(KAFKA, tmp_path)
    (tmp_path / "work" / "here").mkdir(parents=True)
    (tmp_path / "work" / "here" / "mine").write_text("mine")
    monkeypatch.chdir(tmp_path / "work" / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "work"))
    for target in (".", "..", tmp_path / "work"):
        for line in (
            ("convert", source, target, "--to", "parquet", *LOCAL),
            ("convert", source, target, "--to", "rocketmq", *LOCAL),
            ("restore", source, target),
            ("repair", source, target),
            ("compact", source, target),
        ):
            assert run(*line, "--force").code == 2, line
    assert (tmp_path / "work" / "here" / "mine").read_text() == "mine"


def test_rows_are_not_written_over_what_they_are_read_from(tmp_path: Path) -> None:
    source = made(KAFKA, tmp_path)
    before = digest(source)
    rows = rawlog.open(source).table(topic="codec-none")
    for target in (source, source.parent, source / "new"):
        with pytest.raises(OptionError, match="inside one another"):
            rawlog.write(target, rows, format="kafka", overwrite=True)
    assert digest(source) == before


# Leftovers of killed runs ----------------------------------------------------------------------------------------------

STAGING = """
import sys
from rawlog.io.output import writing
from rawlog.io.output import Output
with Output(sys.argv[1]) as output, writing(sys.argv[1] + ".html") as file:
    (output.new() / "half").write_bytes(b"half")
    print("ready", flush=True)
    sys.stdin.read()
"""
WRITES = {
    "convert": (KAFKA, ("convert", "$", "@", "--to", "parquet", *LOCAL)),
    "convert-kafka": (KAFKA, ("convert", "$", "@", "--to", "kafka", *LOCAL)),
    "erase": (KAFKA, ("erase", "$", "@", "--key", "k", *LOCAL)),
    "repair": (KAFKA, ("repair", "$", "@")),
    "rebuild": (ROCKETMQ, ("rebuild", "$", "@")),
    "compact": (AMBRY, ("compact", "$", "@")),
    "restore": (KAFKA, ("restore", "$", "@", "--partitions-only")),
    "extract": (AMBRY, ("extract", "$", "--to", "@")),
}


def staging(target: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process that is in the middle of writing a target."""
    process = subprocess.Popen(
        [sys.executable, "-c", STAGING, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def staged(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


@pytest.mark.parametrize("verb", WRITES)
def test_the_next_run_removes_what_a_killed_one_left(
    verb: str, tmp_path: Path, run: Callable[..., Ran], environment: dict[str, str]
) -> None:
    """A run that was killed left its hidden directory next to the target for ever; the stage of a living run stays."""
    system, words = WRITES[verb]
    source, target = made(system, tmp_path), tmp_path / "out"
    killed, other = staging(target, environment), staging(tmp_path / "out2", environment)
    end(killed)
    left = staged(tmp_path)
    assert len(left) == 4
    living = staging(target, environment)
    assert len(staged(tmp_path)) == 4, "staging again removed what was left"
    assert not set(left) & {name for name in staged(tmp_path) if name.startswith(".out.")}
    line = [word.replace("$", str(source)).replace("@", str(target)) for word in words]
    before = staged(tmp_path)
    assert run(*line).code == 0
    assert staged(tmp_path) == before
    end(living)
    assert run(*line, *([] if verb == "extract" else ["--force"])).code == (3 if verb == "extract" else 0)
    if verb != "extract":
        assert [name for name in staged(tmp_path) if name.startswith(".out.") and "html" not in name] == []
    end(other)


def test_a_killed_page_is_removed_by_the_next(
    tmp_path: Path, run: Callable[..., Ran], environment: dict[str, str]
) -> None:
    end(staging(tmp_path / "page", environment))
    assert len(staged(tmp_path)) == 2
    source = SAMPLES / REPLAY / "basic.log"
    assert run("explain", source, "--number", "0", "--html", tmp_path / "page.html").code == 0
    assert [name for name in staged(tmp_path) if ".html." in name] == []


def test_a_run_that_was_killed_for_good_leaves_its_target_alone(
    tmp_path: Path, environment: dict[str, str], spawn: Callable[..., Ran]
) -> None:
    """Killed with its stage full: the target that was there is as it was, and the next run replaces it."""
    source = made(KAFKA, tmp_path)
    assert spawn("convert", source, tmp_path / "out", "--to", "parquet", *LOCAL).code == 0
    before = digest(tmp_path / "out")
    end(staging(tmp_path / "out", environment))
    assert digest(tmp_path / "out") == before
    done = spawn("convert", source, tmp_path / "out", "--to", "parquet", "--force", "--json", *LOCAL)
    assert json.loads(done.text)["rows"] > 0
    assert os.listdir(tmp_path / "out") == ["part-00000.parquet"]
    assert [name for name in staged(tmp_path) if "html" not in name] == []
