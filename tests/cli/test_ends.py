"""How runs end: exit codes, messages with a place, and never a traceback, whatever the input."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rawlog.cli import logs
from tests.cli.conftest import COMMAND, HEADER, entry, recording
from tests.data.golden import damaged_replays, golden_path

SAMPLES = Path(__file__).parents[2] / "samples"


@pytest.mark.parametrize(
    "arguments",
    [
        ("nonsense",),
        ("cat",),
        ("cat", "{log}", "--nonsense"),
        ("cat", "{log}", "--table", "record"),
        ("cat", "{log}", "--columns", "offest"),
        ("cat", "{log}", "--json", "--csv"),
        ("cat", "{log}", "--delimiter", ","),
        ("cat", "{log}", "--since", "yesterday"),
        ("cat", "{log}", "-o", "middle"),
        ("cat", "{log}", "-o", "1", "--from-offset", "2"),
        ("cat", "{log}", "--where", "offset >"),
        ("cat", "{log}", "--where", "nothing = 1"),
        ("cat", "{log}", "--format", "%Q"),
        ("cat", "{log}", "--format", "%v{nonsense}"),
        ("cat", "{log}", "--format", "%["),
        ("cat", "{log}", "--format", "%e"),
        ("cat", "{log}", "--raw", "--columns", "offset"),
        ("cat", "{log}", "--max-decompressed", "big"),
        ("cat", "{log}", "--partition", "x"),
        ("tail", "{log}", "-f", "--isolation", "read_committed"),
        ("tail", "{log}", "-f", "--table", "files"),
        ("verify", "{log}", "--rule", "no.such.rule"),
        ("explain", "{log}", "--at", "-1"),
    ],
    ids=lambda arguments: " ".join(arguments),
)
def test_wrong_usage_is_2(run, log, arguments):
    ran = run(*(str(log) if argument == "{log}" else argument for argument in arguments))
    assert ran.code == 2, ran
    assert ran.out == b""
    assert ran.err.startswith("rawlog: ")


def test_unknown_names_are_answered_with_the_nearest(run, log):
    assert "did you mean records" in run("cat", log, "--table", "record").err
    assert "did you mean verify" in run("verfy", log).err


@pytest.mark.parametrize("verb", ["cat", "head", "tail", "count", "ls", "explain", "verify"])
def test_what_is_not_there_is_3(run, tmp_path, verb):
    ran = run(verb, tmp_path / "missing")
    assert ran.code == 3
    assert "missing: no such file or directory" in ran.err


@pytest.mark.parametrize("verb", ["cat", "head", "tail", "count", "explain", "verify"])
def test_random_and_empty_files_are_3(run, tmp_path, verb):
    noise = tmp_path / "noise.bin"
    noise.write_bytes(os.urandom(4096).replace(b"\0", b"\1"))
    nothing = tmp_path / "nothing.bin"
    nothing.write_bytes(b"")
    for path in (noise, nothing):
        ran = run(verb, path)
        assert ran.code == 3, ran
        assert path.name in ran.err
    assert run("ls", noise, nothing).code == 3


def test_what_was_not_checked_is_not_clean(run, tmp_path):
    """`verify` of random bytes said "1 file of no known format: not checked", and then "clean"."""
    noise = tmp_path / "noise.bin"
    noise.write_bytes(bytes(range(1, 256)) * 16)
    ran = run("verify", noise)
    assert (ran.code, "clean" in ran.text) == (3, False)
    assert ran.text.splitlines()[-1] == "unknown: 1 file, 0 frames, 0 errors, 0 warnings"
    assert run("verify", noise, "--json").rows[-1]["verdict"] == "unknown"


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("offset >", "not an expression"),
        ("offset = 'x'", "= cannot be used with a number and text"),
        ("key + 1 > 2", "+ cannot be used with bytes and a number"),
        ("headers = 'a'", "= cannot be used with a list and text"),
        ("length(offset) = 1", "length() cannot be used with a number"),
        ("offset = 99999999999999999999", "a number that is larger than any column holds"),
    ],
)
def test_a_wrong_condition_is_explained_in_its_own_words(run, log, where, words):
    """The messages named classes of the parser, such as <class 'sqlglot.expressions.core.Condition'>, and kernels of Arrow."""
    ran = run("cat", log, "--where", where)
    assert (ran.code, words in ran.err) == (2, True), ran.err
    assert not any(word in ran.err for word in ("class", "kernel", "sqlglot", "Function"))


def test_an_unknown_format_name_is_3(run, log):
    assert run("cat", log, "--as", "replay.recordin").code == 3


def test_as_overrules_recognition(run, tmp_path):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(recording(b"x"))
    assert run("cat", path, "--as", "replay.recording", "--raw").text == "x\n"


@pytest.mark.parametrize("case", damaged_replays(), ids=str)
def test_damaged_recordings_end_as_promised(run, case):
    """The real tool's messages are all there; what it calls an error is ours too, with its place."""
    ran = run("cat", case.path, "--json")
    assert ran.code in (0, 1, 3), ran
    if case.exit == 0 and ran.code == 0:
        assert "unfinished" in ran.err or not ran.err
    if ran.code == 1:
        assert case.path.name in ran.err
        assert "byte " in ran.err
    verified = run("verify", case.path, "--json")
    assert verified.code in (0, 1, 3), verified
    listed = run("ls", case.path, "--json")
    assert listed.code == {"damaged": 1, "unknown": 3}.get(listed.rows[0]["state"], 0)


def test_damage_ends_behind_the_rows_before_it(run, tmp_path):
    path = tmp_path / "r.log"
    broken = entry(b"x")[:8] + b"\xff" * 16
    path.write_bytes(recording(b"one", b"two") + broken + recording(b"three", b"four", b"five", b"six")[len(HEADER) :])
    ran = run("cat", path, "--raw")
    assert (ran.code, ran.text) == (1, "one\ntwo\n")
    assert f"byte {len(recording(b'one', b'two')):,}" in ran.err
    assert run("count", path).code == 1
    stopped = run("cat", path, "--raw", "--errors", "stop")
    assert (stopped.code, stopped.text) == (1, "one\ntwo\n")
    skipped = run("cat", path, "--raw", "--errors", "skip")
    assert (skipped.code, skipped.text) == (1, "one\ntwo\nthree\nfour\nfive\nsix\n")
    assert "skipped" in skipped.err
    assert run("tail", "-n", 1, path).code == 1
    assert run("explain", path, "--at", len(recording(b"one", b"two")) + 2).code == 1


def test_a_cut_file_is_only_noted(run, log):
    whole = log.read_bytes()
    log.write_bytes(whole[:-2])
    for verb in ("cat", "count", "tail"):
        ran = run(verb, log)
        assert ran.code == 0
        assert "unfinished" in ran.err
    assert run("cat", log, "--raw").text == "zero\none\ntwo\nthree\n"
    assert run("verify", log).code == 0
    assert run("ls", log, "--json").rows[0]["state"] == "truncated"
    assert run("explain", log, "--at", len(whole) - 4).code == 1


def test_a_directory_with_files_that_cannot_be_read(spawn, run, log):
    """The readable ones are read, the others are reported, and the exit code is 3."""
    folder = log.parent
    (folder / "dangling.log").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.log")
    (folder / "note.txt").write_text("not a log")
    ran = run("cat", folder, "--raw")
    assert (ran.code, ran.text) == (3, "zero\none\ntwo\nthree\nfour\n")
    assert "dangling symbolic link" in ran.err
    assert "not a regular file" in ran.err
    assert run("count", folder).code == 3
    assert run("ls", folder).code == 3
    verified = run("verify", folder, "--json")
    assert verified.code == 3
    assert verified.rows[-1]["verdict"] == "damaged"
    assert run("cat", folder / "dangling.log").code == 3


@pytest.mark.parametrize("verb", ["groups", "cluster", "transactions"])
def test_verbs_that_show_a_system_say_by_their_code_what_cannot_be_read(run, tmp_path, verb):
    """They ended with 1, as if damage had been found; all other verbs end with 3."""
    shutil.copytree(SAMPLES / "kafka", tmp_path / "data")
    before = run(verb, tmp_path / "data")
    (tmp_path / "data" / "gone").symlink_to(tmp_path / "nowhere")
    ran = run(verb, tmp_path / "data")
    assert (ran.code, ran.text) == (3, before.text)
    assert "gone: dangling symbolic link" in ran.err


@pytest.fixture
def denied(environment) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a verb in a process that must not read a path, which is the first argument; root gives up the right to read everything."""
    command = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    if command and shutil.which("setpriv") is None:
        pytest.skip("no setpriv, and root reads everything")

    def call(path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
        words, mode = [*command, *COMMAND, *map(str, arguments)], path.stat().st_mode
        path.chmod(0)
        try:
            return subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
        finally:
            path.chmod(mode)

    return call


@pytest.mark.parametrize("place", ["file", "directory", "above"])
@pytest.mark.parametrize("verb", ["cat", "ls", "verify", "query"])
def test_a_path_without_permission_is_3_with_what_helps(denied, log, verb, place):
    """It was wrong usage (2) with "Next: rawlog cat --help"; below a closed directory it was "no such file", and to look there."""
    path = {"file": log, "directory": log.parent, "above": log.parent}[place]
    question = ("SELECT * FROM records", "--engine", "duckdb") if verb == "query" else ()
    ran = denied(path, verb, *question, log.parent if place == "directory" else log)
    assert ran.returncode == 3, ran
    assert "permission denied" in ran.stdout + ran.stderr
    if ran.stderr and verb in ("cat", "query"):
        assert "Next: run rawlog as a user that can read it" in ran.stderr


@pytest.mark.parametrize(
    ("source", "closed", "words"),
    [
        ("kafka", "codec-lz4-0", ("convert", "{source}", "{out}.jsonl")),
        ("kafka", "codec-lz4-0", ("query", "SELECT count(*) FROM records", "{source}", "--engine", "duckdb")),
        ("kafka", "codec-lz4-0", ("groups", "{source}")),
        ("kafka", "codec-lz4-0", ("transactions", "{source}")),
        ("kafka", "codec-lz4-0", ("cluster", "{source}")),
        ("ambry", "9/0_0_log", ("extract", "{source}", "--to", "{out}")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else None,
)
def test_what_cannot_be_read_among_others_is_named(denied, tmp_path, source, closed, words):
    """All rows of a directory without permission were missing, and the exit code was 0; `extract` left out the blobs of such a file."""
    folder = tmp_path / source
    shutil.copytree(SAMPLES / source, folder)
    ran = denied(folder / closed, *(word.format(source=folder, out=tmp_path / "out") for word in words))
    assert ran.returncode in (1, 3), ran
    assert f"{closed}: permission denied" in ran.stdout + ran.stderr


def test_huge_declared_lengths_take_no_memory(spawn, tmp_path):
    path = tmp_path / "r.log"
    path.write_bytes(HEADER + b"\0" * 8 + b"\0" * 8 + (2**62).to_bytes(8, "big") + b"x")
    assert spawn("cat", path).code == 1
    path.write_bytes(HEADER + b"\0" * 8 + b"\0" * 8 + (104_857_600).to_bytes(8, "big") + b"x")
    assert spawn("cat", path).code == 0


def test_an_internal_error_is_one_line(run, log, monkeypatch):
    import rawlog.reading.rows

    def broken(self):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(rawlog.reading.rows.Rows, "batches", broken)
    ran = run("cat", log)
    assert ran.code == 70
    assert ran.err.startswith("rawlog: internal error: ZeroDivisionError: oops\nNext: set RAWLOG_DEBUG=1")
    assert ran.err.count("\n") == 2


# ------------------------------------------------------------------ real processes


def test_real_exit_codes(spawn, log, tmp_path):
    assert spawn("cat", log, "--raw").out == b"zero\none\ntwo\nthree\nfour\n"
    assert spawn("verify", golden_path("replay", "damaged", "v2-hole.log")).code == 1
    assert spawn("cat", log, "--nonsense").code == 2
    assert spawn("cat", tmp_path / "missing").code == 3


def test_a_closed_pipe_ends_quietly(environment, tmp_path):
    path = tmp_path / "big.log"
    path.write_bytes(HEADER + entry(b"v" * 100) * 20_000)
    for options in (
        ["cat", str(path), "--json"],
        ["cat", str(path)],
        ["cat", str(path), "--arrow"],
        ["verify", "--rules"],
    ):
        process = subprocess.Popen(
            [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
        )
        process.stdout.read(10)
        process.stdout.close()
        error = process.stderr.read()
        assert (process.wait(60), error) == (0, b""), options
        process.stderr.close()


def test_a_full_disk_is_told(spawn, environment, log):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*COMMAND, "cat", str(log), "--json"], stdout=full, stderr=subprocess.PIPE, env=environment, check=False
        )
    assert done.returncode == 3
    assert done.stderr.startswith(b"rawlog: standard output: ")
    assert b"Traceback" not in done.stderr


def test_a_full_target_says_what_helps(spawn, tmp_path):
    """The next step was `rawlog repair --help`."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system may be mounted here")
    try:
        for verb in ("repair", "rebuild", "compact"):
            ran = spawn(verb, SAMPLES / "kafka", folder / "out")
            assert ran.code == 3
            assert "No space left on device\nNext: free space there" in ran.err
            assert list(folder.iterdir()) == []
        ran = spawn("ingest", SAMPLES / "kafka", "--to", folder / "lake", "--engine", "local")
        assert (ran.code, "Next: free space there" in ran.err) == (3, True)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_end_in_no_traceback(environment, log, tmp_path, closed):
    """They are None in Python: a traceback or an internal error. And the next file that was opened was what other code printed into."""
    target = tmp_path / "rows.jsonl"
    command = shlex.join([*COMMAND, "convert", str(log), str(target)])
    done = subprocess.run(
        ["bash", "-c", f"{command} {closed}"], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == (3 if ">&-" in closed.replace("2>&-", "") else 0)
    assert "Traceback" not in done.stderr
    assert len(target.read_text().splitlines()) == 5


def test_interrupt_is_130(environment, tmp_path):
    """Exit code 0 was seen where the tests ran in the background of a shell, which ignores SIGINT there: see tests/conftest.py."""
    path = tmp_path / "big.log"
    path.write_bytes(HEADER + entry(b"v" * 100) * 500_000)
    process = subprocess.Popen(
        [*COMMAND, "cat", str(path), "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    # It is at work, and cannot end: there is far more to print than a pipe holds, and nobody reads on before the signal is sent.
    assert process.stdout.read(10)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in error


def test_an_interrupt_while_modules_are_imported_is_quiet(environment):
    """The first quarter of a second ended in a traceback of imports."""
    program = """
import os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "rawlog.cli.logs":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
runpy.run_module("rawlog", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "s3://key:hidden@bucket/x?endpoint_override=127.0.0.1:1&scheme=http"),
        ("ls", "s3://bucket/x?access_key=a&secret_key=hidden&scheme=http"),
        ("convert", "{log}", "s3://key:hidden@bucket/rows"),
        ("record", "t", "-b", "sasl://u:hidden@127.0.0.1:1", "--to", "{log}.new"),
    ],
)
def test_passwords_in_urls_are_not_repeated(run, log, words):
    """Errors had the whole URL, and logs of errors are sent around."""
    ran = run(*(word.format(log=log) for word in words))
    assert ran.code in (2, 3)
    assert "hidden" not in ran.err
    assert "********" in ran.err


def test_the_command_that_helps_has_no_password(capsys):
    """`verify` names the repair with the path as it was typed."""
    logs.advise("rawlog repair 's3://bucket/logs?access_key=a&secret_key=hidden' repaired")
    assert (
        capsys.readouterr().err == "Next: rawlog repair 's3://bucket/logs?access_key=a&secret_key=********' repaired\n"
    )


def test_without_a_verb_the_help_is_shown_as_it_is(run):
    ran = run()
    assert ran.code == 2
    assert ran.err.startswith("Usage: rawlog ")
    assert "Next: " not in ran.err


def test_what_is_not_there_to_read_is_told_apart_from_wrong_usage(run, log, tmp_path):
    nothing = run("extract", log, "--to", tmp_path / "blobs")
    assert (nothing.code, "no Ambry store" in nothing.err) == (3, True)
    strange = run("cat", "http://127.0.0.1/x")
    assert (strange.code, "s3, gs" in strange.err) == (3, True)
