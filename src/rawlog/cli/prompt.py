"""A prompt for SQL: reads statements and commands line by line, completes names, keeps a history. Knows no engine.

On a terminal it edits with the system's readline; anything else is read as a script.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Self

from rawlog.engines.sql import views

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
        named = views.words_of(line)
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
        complete, begun = views.statements(self.begun + line)
        self.begun = begun if views.has_meaning(begun) else ""
        return complete
