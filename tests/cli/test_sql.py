"""`rawlog sql`: a prompt on a terminal, typed at through a pty, and a script without one."""

from __future__ import annotations

import _thread
import os
import pty
import re
import select
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from rawlog.cli import cli
from rawlog.cli.sql import Completer, Session
from rawlog.model.errors import OptionError
from tests.cli.conftest import COMMAND
from tests.data.recordings import record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROMPT = "rawlog> "


class Terminal:
    """A program on a terminal of its own: type, and wait for what it says."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.master, slave = pty.openpty()
        environment = {**environment, "TERM": "dumb", "INPUTRC": "/dev/null"}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )  # fmt: skip
        os.close(slave)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self, pattern: str) -> str:
        """Ctrl-C, again if it fell between two waits of readline, which would see it at the next key only."""
        for _ in range(12):
            self.type("\x03")
            with suppress(AssertionError):
                return self.until(pattern, 10)
        return self.until(pattern)

    def until(self, pattern: str, seconds: float = 120) -> str:
        """What it said up to a pattern, and forgets it."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.seen)) is None:
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:
                    pytest.fail(f"ended without {pattern!r}: {self.seen!r}")
        said, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return said

    def close(self) -> int:
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()
            os.close(self.master)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return record(tmp_path / "logs" / "a.log", 50).parent


@pytest.fixture
def terminal(environment: dict[str, str], logs: Path, tmp_path: Path) -> Iterator[Terminal]:
    environment["XDG_STATE_HOME"] = str(tmp_path / "state")
    opened = Terminal([*COMMAND, "sql", str(logs), "--engine", "duckdb"], environment)
    yield opened
    opened.process.kill()
    opened.process.wait()


def test_a_prompt_answers_completes_cancels_and_remembers(terminal: Terminal, logs: Path, tmp_path: Path) -> None:
    terminal.until(PROMPT)
    terminal.type("select count(*) as n\n")
    terminal.until(r"\.\.\.> ")
    terminal.type("from records;\n")
    assert re.search(r"n\s*\r?\n\s*50\b", terminal.until(r"\(1 row, [\d.]+ s\)"))
    terminal.until(PROMPT)
    terminal.type("select max(timest\t) from rec\t;\n")
    terminal.until(r"timest\x07?amp")
    terminal.until(r"from records")
    terminal.until(PROMPT)
    terminal.type("select ofset from records;\n")
    terminal.until(r"unknown column 'ofset'; did you mean offset\?")
    terminal.until(PROMPT)
    terminal.type(".sch\t replay.en\t\n")
    terminal.until(r"replay\.entries[\s\S]*number +bigint")
    terminal.until(PROMPT)
    terminal.type("\\d\n")
    terminal.until(r"findings[\s\S]*records")
    terminal.until(PROMPT)
    terminal.type(".mode json\nselect 7 as seven;\n")
    terminal.until(r'\{"seven":7\}')
    terminal.until(PROMPT)
    terminal.type("select count(*) from range(100000000000) a, range(100000) b where hash(a.range, b.range) = 1;\n")
    terminal.until("asking")
    terminal.interrupt("cancelled")
    terminal.until(PROMPT)
    terminal.type("select 'begun")
    terminal.until("begun")
    terminal.interrupt(PROMPT)
    record(logs / "a.log", 60)
    terminal.type("select count(*) from records;\n")
    terminal.until(r"60")
    terminal.until(PROMPT)
    terminal.type("\x04")
    assert terminal.close() == 0
    history = (tmp_path / "state" / "rawlog" / "sql_history").read_text()
    assert "from records;" in history


def test_a_script_is_answered_in_one_spark_session(spark: SparkSession, logs: Path) -> None:
    script = (
        ".tables\nSELECT count(*) AS n\nFROM records;\nSELECT max(offset) AS last FROM replay.entries AS e, records\n"
    )
    ran = CliRunner().invoke(cli, ["sql", str(logs), "--json"], input=script)
    assert ran.exit_code == 0, ran.stderr
    assert ran.stdout.splitlines()[-2:] == ['{"n":50}', '{"last":49}']
    assert "replay.entries" in ran.stdout.splitlines()


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("SELECT 1 AS a; SELECT b FROM records; SELECT 2 AS a;", 2, "unknown column 'b'"),
        (".fnord\n", 2, "unknown command '.fnord'"),
        (".schema fnord\n", 2, "unknown table 'fnord'"),
        ("SELECT 1 AS a;\n.quit\nSELECT 2 AS a;", 0, ""),
        ("-- nothing\n;\n", 0, ""),
    ],
)
def test_a_script_ends_at_the_first_error(logs: Path, script: str, code: int, words: str) -> None:
    ran = CliRunner().invoke(cli, ["sql", str(logs), "--engine", "duckdb", "--json"], input=script)
    assert ran.exit_code == code
    assert words in ran.stderr
    assert '{"a":2}' not in ran.stdout


def test_completion_knows_tables_columns_aliases_and_functions() -> None:
    tables: dict[str, Any] = {"records": ("key", "offset"), "kafka.batches": ("base_offset", "codec")}
    asked: list[int] = []

    def functions() -> list[str]:
        asked.append(1)
        return ["count", "coalesce"]

    complete = Completer(tables, functions, [".tables", ".help"]).matches
    assert complete(".t", ".t") == [".tables"]
    assert complete("kaf", "select 1 from kaf") == ["kafka.batches"]
    assert complete("b.co", "select * from kafka.batches b where b.co") == ["b.codec"]
    assert complete("records.", "select records.") == ["records.key", "records.offset"]
    assert complete("of", "select key from records where of") == ["offset"]
    assert set(complete("co", "select co")) == {"codec", "count(", "coalesce("}
    assert len(asked) == 1
    assert "SELECT" in complete("SEL", "SEL")


class Late:
    """An engine with a job that can be cancelled only once it has begun, and is interrupted before."""

    def __init__(self) -> None:
        self.asked, self.begun, self.cancelled = threading.Event(), threading.Event(), threading.Event()

    def work(self) -> int:
        _thread.interrupt_main()
        assert self.asked.wait(60)
        self.begun.set()
        assert self.cancelled.wait(60)
        return 1

    def cancel(self) -> None:
        self.asked.set()
        if self.begun.is_set():
            self.cancelled.set()


def test_an_interrupt_before_the_job_has_begun_cancels_it_all_the_same() -> None:
    """Spark forgot a cancellation that came while it was still planning: the statement ran on until Ctrl-C was typed again."""
    late = Late()
    session = Session(late, {})  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="cancelled"):
        session._interruptible(late.work)
