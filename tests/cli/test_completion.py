"""`rawlog completion --install`, judged by the shells; and the manual page, judged by man."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rawlog.cli import cli, manual

#: What each shell says of the completion of rawlog once it has read its start files.
ASK = {
    "bash": ["bash", "-i", "-c", "complete -p rawlog"],
    "zsh": ["zsh", "-i", "-c", "print $_comps[rawlog]"],
    "fish": ["fish", "-i", "-c", "complete -C 'rawlog veri'"],
}
ANSWER = {"bash": "_rawlog_completion", "zsh": "_rawlog_completion", "fish": "verify"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


@pytest.mark.parametrize("shell", ASK)
def test_a_new_shell_completes(shell: str, home: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    for start in (".bashrc", ".zshrc"):
        (home / start).write_text("export EDITOR=vi")  # no line end: the added line must not join it
    first, second = run("completion", "--install"), run("completion", shell, "--install")
    assert (first.code, second.code) == (0, 0), first.err
    assert first.text.startswith("wrote ")
    if shell != "fish":
        start_file = home / f".{shell}rc"
        assert start_file.read_text().startswith("export EDITOR=vi\n")
        assert start_file.read_text().count("# rawlog completion") == 1, "twice installed, one line"
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} on this machine")
    done = subprocess.run(ASK[shell], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert ANSWER[shell] in done.stdout, done.stderr


def test_an_unknown_shell_is_asked_for(home: Path, run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert run("completion", "--install").code == 2
    assert run("completion").code == 2
    assert not list(home.iterdir())


def test_a_home_that_cannot_be_written_is_an_error_with_its_path(home: Path, run) -> None:
    (home / ".local").write_text("a file where a directory has to be")
    done = run("completion", "bash", "--install")
    assert done.code == 3
    assert "bash-completion/completions/rawlog" in done.err


def test_the_manual_has_every_verb_and_option(tmp_path: Path) -> None:
    page = manual.page()
    found = {one.name: one for one in manual.entries()}
    context = cli.make_context("rawlog", ["--help"], resilient_parsing=True)
    assert set(found) == set(cli.list_commands(context))
    assert all(one.summary and one.text for one in found.values())
    assert any(name.startswith("--against") for name, _ in found["verify"].options)
    path = tmp_path / "rawlog.1"
    path.write_text(page)
    if shutil.which("man") is None:
        pytest.skip("no man on this machine")
    environment = {**os.environ, "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MAN_KEEP_FORMATTING": ""}
    command = ["man", "--warnings", "-l", str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == "", "groff found something wrong"
    assert "rawlog verify [OPTIONS] [PATH...]" in done.stdout.replace("‐", "-")


def completed(*words: str) -> list[str]:
    """What may follow at the last of these words, as every shell asks for it."""
    from click.shell_completion import BashComplete

    *before, last = words
    return [item.value for item in BashComplete(cli, {}, "rawlog", "_RAWLOG_COMPLETE").get_completions(before, last)]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["cat", "samples/kafka", "--topic", "codec-z"], ["codec-zstd"]),
        (["ls", "samples/rocketmq", "-t", "T"], ["T1", "T2"]),
        (["ls", "samples/rocketmq", "samples/kafka", "--topic", "codec-z"], ["codec-zstd"]),
        (["find", "text", "samples/kafka", "--topic", "codec-z"], ["codec-zstd"]),
        (["convert", "samples/kafka", "out", "--topic", "codec-z"], ["codec-zstd"]),
        (["cat", "--topic", "codec-z"], []),
        (["cat", "nowhere", "--topic", "codec-z"], []),
        (["groups", "samples/kafka", "--group", "group-classic-"], ["group-classic-two"]),
        (["cat", "samples/ambry", "--table", "ambry.b"], ["ambry.blobs"]),
        (["cat", "samples/ambry", "--table", "kafka"], []),
        (["cat", "samples/kafka", "--columns", "offset,ke"], ["offset,key"]),
        (["cat", "samples/kafka", "--table", "kafka.batches", "--columns", "base_o"], ["base_offset"]),
        (["ingest", "samples/kafka", "--to", "lake", "--tables", "files,kafka.ba"], ["files,kafka.batches"]),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_names_complete_from_the_paths_before_them(words: list[str], names: list[str]) -> None:
    assert completed(*words) == names


def test_topics_of_users_come_first() -> None:
    topics = completed("cat", "samples/kafka", "--topic", "")
    first = next(at for at, topic in enumerate(topics) if topic.startswith("_"))
    assert all(topic.startswith("_") for topic in topics[first:])
    assert first > 0


def test_only_names_that_mean_nothing_to_a_shell_complete(tmp_path: Path) -> None:
    """A shell inserts a name as it is: `$(touch x)` was a command on the user's line, a line break began an entry of its own."""
    for topic in (
        "orders",
        "%RETRY%g-1",
        "$(touch x)",
        "`touch x`",
        "a b",
        "a;b",
        "a\nfile",
        "\x1b[31mred",
        "~",
        "*",
        "a'b",
    ):
        folder = tmp_path / f"{topic}-0"
        folder.mkdir()
        (folder / "00000000000000000000.log").touch()
    assert completed("cat", str(tmp_path), "--topic", "") == ["%RETRY%g-1", "orders"]


def test_topics_complete_without_reading_files(tmp_path: Path) -> None:
    """Names are in the names of directories: no file is opened."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    os.mkfifo(folder / "00000000000000000000.log")  # whoever opens it waits for ever
    assert completed("cat", str(tmp_path), "--topic", "") == ["orders"]
