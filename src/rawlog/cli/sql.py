"""`rawlog sql`: a prompt that keeps its session. It reads statements and commands line by line, completes names, keeps a history.

On a terminal it edits with the system's readline; anything else is read as a script.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

import click

from rawlog.cli import output
from rawlog.cli.command import Call
from rawlog.cli.logs import code_of, say, waiting
from rawlog.cli.printers import Printing
from rawlog.cli.printers.rows import print_answer
from rawlog.model.errors import DONE, OptionError, RawlogError, unknown
from rawlog.model.text import counted
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Paths
from rawlog.verbs.options import Asking

if TYPE_CHECKING:
    from rawlog.engines.duckdb import Engine
    from rawlog.verbs.query import Answer

# ----------------------------------------------------------------------------------------------------------------------
# A prompt for SQL: reads statements and commands line by line, completes names, keeps a history. Knows no engine.
#
# On a terminal it edits with the system's readline; anything else is read as a script.

PROMPT, MORE = "rawlog> ", "   ...> "
KEPT_LINES = 2000
KEYWORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ANTI JOIN", "USING", "ON", "AS", "AND",
    "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS NULL", "IS NOT NULL", "DISTINCT", "UNION ALL", "EXCEPT", "WITH", "CASE", "WHEN", "THEN",
    "ELSE", "END", "CAST", "DESC", "OVER", "PARTITION BY", "DESCRIBE", "SHOW TABLES", "EXPLAIN",
)  # fmt: skip
_BEFORE_TABLE = re.compile(r"(?:\b(?:from|join|describe|desc)|\.schema|\\d)\s+[\w.]*$", re.IGNORECASE)


class Completer:
    """Completes the word under the cursor: tables after FROM, else columns, functions and keywords too."""

    def __init__(
        self, tables: Mapping[str, Sequence[str]], functions: Callable[[], Collection[str]], commands: Collection[str]
    ) -> None:
        """`tables` are the columns of each table by its name; `functions` is asked once, when something needs completing."""
        self.tables, self.commands = tables, commands
        self._functions = functions
        self._names: list[str] | None = None
        self._matches: list[str] = []

    def matches(self, word: str, line: str) -> list[str]:
        """What the word, at the end of the line, may become."""
        if line.lstrip().startswith((".", "\\")) and line.lstrip() == word:
            return sorted(name for name in self.commands if name.startswith(word))
        if _BEFORE_TABLE.search(line):
            return sorted(name for name in self.tables if name.startswith(word.lower()))
        table, mark, start = word.rpartition(".")
        if mark and (columns := self._columns_of(table.lower(), line)):
            return [f"{table}.{name}" for name in columns if name.lower().startswith(start.lower())]
        from rawlog.engines.sql import words_of

        named = words_of(line)
        wanted = {name for table, columns in self.tables.items() if table in named for name in columns}
        wanted = wanted or {name for columns in self.tables.values() for name in columns}
        matches = [name for name in sorted(wanted | set(self.tables)) if name.lower().startswith(word.lower())]
        if word:
            keywords = [name if word.isupper() else name.lower() for name in KEYWORDS]
            matches += [name for name in keywords if name.lower().startswith(word.lower())]
            matches += [f"{name}(" for name in self._all_functions() if name.startswith(word.lower())]
        return matches

    def _columns_of(self, name: str, line: str) -> Sequence[str]:
        """The columns of a table, or of one that goes by another name in this line."""
        if name in self.tables:
            return self.tables[name]
        alias = re.search(rf"([\w.]+)\s+(?:as\s+)?{re.escape(name)}\b", line, re.IGNORECASE)
        return self.tables.get(alias[1].lower(), ()) if alias else ()

    def _all_functions(self) -> list[str]:
        if self._names is None:
            self._names = []
            with suppress(Exception):  # no completion is worth an error
                self._names = sorted(name for name in self._functions() if name.isidentifier())
        return self._names

    def __call__(self, word: str, state: int) -> str | None:
        """What readline asks: the `state`-th completion."""
        if state == 0:
            import readline

            self._matches = self.matches(word, readline.get_line_buffer()[: readline.get_endidx()])
        return self._matches[state] if state < len(self._matches) else None


def history_file() -> Path:
    """Where the lines that were typed are kept."""
    state = os.environ.get("XDG_STATE_HOME") or ""
    return (
        (Path(state) if Path(state).is_absolute() else Path("~/.local/state").expanduser()) / "rawlog" / "sql_history"
    )


class Prompt:
    """A terminal, with readline where there is one. Use as a context manager: leaving it keeps the history."""

    def __init__(self, completer: Completer) -> None:
        self.completer = completer
        self._readline: ModuleType | None = None

    def __enter__(self) -> Self:
        with suppress(ImportError):
            import readline

            self._readline = readline
            readline.set_completer(self.completer)
            readline.set_completer_delims(" \t\n,()=<>+-*/%|'\";")
            libedit = "libedit" in (readline.__doc__ or "")
            readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
            readline.set_history_length(KEPT_LINES)
            with suppress(OSError):
                readline.read_history_file(history_file())
        return self

    def __exit__(self, *_: object) -> None:
        if self._readline is None:
            return
        path = history_file()
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)
            self._readline.write_history_file(path)

    def read(self) -> Iterator[str]:
        """Commands and statements, as they are typed; Ctrl-C forgets what was begun, Ctrl-D ends."""
        statements = _Statements()
        while True:
            try:
                line = input(MORE if statements.begun else PROMPT)
            except KeyboardInterrupt:
                sys.stdout.write("\n")
                statements.begun = ""
                continue
            except EOFError:
                sys.stdout.write("\n")
                return
            yield from statements.add(f"{line}\n")


def script(lines: Iterator[str]) -> Iterator[str]:
    """The commands and statements of a script; the last one may do without its `;`."""
    statements = _Statements()
    for line in lines:
        yield from statements.add(line)
    if statements.begun:
        yield statements.begun.strip()


class _Statements:
    """Puts lines together to commands and statements. `begun` is the statement that has no end yet."""

    def __init__(self) -> None:
        self.begun = ""

    def add(self, line: str) -> list[str]:
        """What a line completes."""
        if not self.begun and line.strip().startswith((".", "\\")):
            return [line.strip()]
        from rawlog.engines.sql import has_meaning, statements

        complete, begun = statements(self.begun + line)
        self.begun = begun if has_meaning(begun) else ""
        return complete


COMMANDS = {
    ".tables": "the tables",
    ".schema": "the columns of a table: .schema kafka.batches",
    ".functions": "rawlog's own functions",
    ".mode": "how answers are printed: table, json, csv",
    ".help": "this list",
    ".quit": "leave (or Ctrl-D)",
}
SAME = {
    "\\dt": ".tables",
    "\\l": ".tables",
    "\\df": ".functions",
    "\\?": ".help",
    "\\h": ".help",
    "\\q": ".quit",
    ".exit": ".quit",
}
MODES = {"table": None, "json": "as_json", "csv": "as_csv", "expanded": "expanded", "wide": "wide"}


class Session:
    """What a prompt does with each line: answers are printed as the options, or `.mode`, say."""

    def __init__(self, engine: Engine, printing: dict[str, Any]) -> None:
        self.engine, self.printing = engine, printing
        self.is_terminal = output.is_terminal()
        self._stop = threading.Event()

    def run(self, line: str) -> bool:
        """Obey a command or answer a statement; False to leave. RawlogError if it is not understood or cannot be answered."""
        if line.startswith((".", "\\")):
            return self._obey(line.rstrip(";").split())
        self.engine.refresh()
        began = time.monotonic()
        count = self._interruptible(lambda: print_answer(self.printing, self._ask(line), self._stop.is_set))
        output.flush()
        if self.is_terminal and sys.stdin.isatty():
            say_quietly(f"({counted(count, 'row')}, {time.monotonic() - began:.1f} s)")
        return True

    def _ask(self, line: str) -> Answer:
        from rawlog.verbs.query import Answer

        with waiting("asking"):
            return Answer(self.engine, line)

    def _interruptible(self, work: Callable[[], int]) -> int:
        """Run in a thread, so that Ctrl-C reaches this one and cancels what runs there. OptionError if it did.

        It may have come before there was anything to cancel: that is done again until the work has ended.
        """
        self._stop.clear()
        with _interrupt_sets(self._stop), ThreadPoolExecutor(1) as pool:
            running = pool.submit(work)
            while not running.done():
                wait([running], 0.2)
                if self._stop.is_set():
                    self.engine.cancel()
        if self._stop.is_set():
            raise OptionError("cancelled")
        return running.result()

    def _obey(self, words: list[str]) -> bool:
        name, arguments = SAME.get(words[0], words[0]), words[1:]
        if name == "\\d":
            name = ".schema" if arguments else ".tables"
        if name == ".quit":
            return False
        if name == ".tables":
            self._print(*self.engine.names())
        elif name == ".schema":
            self._schema(arguments)
        elif name == ".functions":
            from rawlog.engines.sql.functions import LIBRARY

            self._print(
                *(
                    f"{function.name}({', '.join(function.arguments)}) -> {function.gives}: {function.about}"
                    for function in LIBRARY
                )
            )
        elif name == ".mode":
            self._mode(arguments)
        elif name == ".help":
            self._print(*(f"{name:<11} {about}" for name, about in COMMANDS.items()), "Statements end in ;")
        else:
            raise unknown("command", words[0], [*COMMANDS, *SAME])
        return True

    def _schema(self, names: list[str]) -> None:
        tables = {".".join(name): view.table for name, view in self.engine.views.items()}
        for name in names or sorted(tables):
            if name.lower() not in tables:
                raise unknown("table", name, tables)
            table = tables[name.lower()]
            width = max(map(len, table.names))
            self._print(
                name,
                *(f"  {column.name:<{width}}  {column.type:<9}  {column.note}".rstrip() for column in table.columns),
            )

    def _mode(self, arguments: list[str]) -> None:
        if len(arguments) != 1 or arguments[0] not in MODES:
            raise OptionError(f".mode: {', '.join(MODES)} expected")
        self.printing |= {
            "raw": False,
            "template": None,
            "arrow": False,
            "as_json": False,
            "as_csv": False,
            "delimiter": None,
            "expanded": False,
            "wide": False,
        }
        if (option := MODES[arguments[0]]) is not None:
            self.printing[option] = True

    def _print(self, *lines: str) -> None:
        output.write("".join(f"{line}\n" for line in lines).encode())
        output.flush()


@contextmanager
def _interrupt_sets(event: threading.Event) -> Iterator[None]:
    """Ctrl-C sets an event, at whatever moment it comes, instead of raising KeyboardInterrupt in the middle of something."""
    before = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def say_quietly(text: str) -> None:
    """A line after an answer, for the terminal only."""
    click.echo(click.style(text, dim=True), err=True)


@verb(
    group="ask",
    examples=(
        "rawlog sql kafka-logs/ lake=out/lake",
        "rawlog sql --catalog lakehouse",
        "echo 'SELECT count(*) FROM records; SELECT * FROM findings;' | rawlog sql kafka-logs/ --json",
    ),
)
def sql(paths: Annotated[Paths, Option("PATH", is_required=False)] = (), **options: Unpack[Asking]) -> None:
    """Open a prompt for SQL that keeps its session.

    Statements end in ; and may have several lines. Tab completes names of tables, columns and functions, Ctrl-C cancels what runs, Ctrl-D
    leaves; .help lists the commands. Input that is not from a terminal is read as a script, which ends at the first error with its exit
    code.
    """


def show(call: Call, **printing: Unpack[Printing]) -> int:
    """Read statements until the end, and print their answers."""
    from rawlog.verbs.query import open_engine

    options: dict[str, Any] = {**printing}
    with waiting("starting"):
        opened = open_engine(**call.arguments, note=call.notes)
    with opened as engine:
        session = Session(engine, options)
        if not sys.stdin.isatty():
            return _run(session, script(iter(sys.stdin.readline, "")), ends_at_error=True)
        tables = {".".join(name): view.table.names for name, view in engine.views.items()}
        with Prompt(Completer(tables, engine.functions, [*COMMANDS, *SAME, "\\d"])) as prompt:
            say_quietly(f"{counted(len(tables), 'table')}; .help shows the commands")
            return _run(session, prompt.read(), ends_at_error=False)


def _run(session: Session, lines: Iterator[str], *, ends_at_error: bool) -> int:
    for line in lines:
        try:
            if not session.run(line):
                break
        except RawlogError as error:
            output.flush()
            say(str(error))
            if ends_at_error:
                return code_of(error)
    return DONE
