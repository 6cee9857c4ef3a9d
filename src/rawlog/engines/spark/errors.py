"""Spark's errors as rawlog's: one clear sentence, with the nearest names that there are."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence

from rawlog.model import errors
from rawlog.model.errors import (
    AccessError,
    DataError,
    OptionError,
    RawlogError,
    unknown,
)

#: Spark's errors about what was asked: syntax and access rules, data that an expression cannot take.
_ASKED = re.compile(r"SQLSTATE: (?:42|22|0A|21|2B|54)")
_RAISED = re.compile(r"^rawlog\.errors\.(\w+): (.*)", re.MULTILINE)
_CONDITION = re.compile(r"\[([A-Z][A-Z_0-9]+(?:\.[A-Z_0-9]+)?)\] ")
_FRAME = re.compile(r"^\s+at |^Caused by|^\s*\.\.\. \d+ more", re.MULTILINE)

_TRACEBACK = "Traceback (most recent call last)"
_CLASS = re.compile(r"^(?:[\w$]+\.)+[\w$]+(?:Exception|Error): ")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")

Names = Callable[[], Collection[str]]


class translated:  # noqa: N801
    """A block in which Spark's errors become rawlog's. `tables`, `columns` and `functions` are asked for the names that there are."""

    def __init__(self, tables: Names = list, columns: Names = list, functions: Names = list) -> None:
        self.names = {"table": tables, "column": columns, "function": functions}

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, RawlogError):
            raise self.of(error) from error

    def of(self, error: Exception) -> RawlogError:
        """The error of ours that an error of Spark carries."""
        text = str(error)
        if (raised := _raised_error(text)) is not None:
            return raised
        if _TRACEBACK in text:
            return AccessError(f"Spark failed: {reason(error)}")
        condition = error.getCondition() if hasattr(error, "getCondition") else None
        if condition is None and (match := _CONDITION.search(text)):  # inside a stack trace
            condition, text = match[1], text[match.start() :]
            text = text[: frame.start()] if (frame := _FRAME.search(text)) else text
        line = re.sub(r"^\[[\w.]+\] ", "", text.strip().partition("\n")[0])
        line = re.sub(r"\s*SQLSTATE: \w+.*", "", line).strip().removesuffix(".")
        where = re.search(r"\(?line (\d+),? pos(?:ition)? (\d+)\)?", text)
        place = f" (line {where[1]}, column {int(where[2]) + ('pos ' in where[0])})" if where else ""
        if (named := self._unknown_name(condition or "", line)) is not None:
            return OptionError(f"{named}{place}")
        if _ASKED.search(text) or (condition or "").startswith("PARSE"):
            return OptionError(f"Spark cannot answer this: {line}{place}")
        return AccessError(f"Spark failed: {line or type(error).__name__}")

    def _unknown_name(self, condition: str, line: str) -> OptionError | None:
        """The complaint about a name that is not there, with the nearest of those that are."""
        kinds = {"TABLE_OR_VIEW_NOT_FOUND": "table", "UNRESOLVED_ROUTINE": "function", "UNRESOLVED_COLUMN": "column"}
        kind = kinds.get(condition.partition(".")[0])
        quoted = re.search(r"(?:`[^`]+`\.?)+", line)
        if kind is None or quoted is None:
            return None
        name, names = quoted[0].replace("`", ""), self.names[kind]()
        if kind == "column" and "." in name and name not in names:
            name = name.rpartition(".")[2]
        return unknown(kind, name, names) if names else None


def reason(error: BaseException) -> str:
    """Why Spark failed: the error of a Python traceback inside, else the message of the Java exception; and what to do, if known."""
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return "its JVM has ended"
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip(": \t")]
    errors = [line for line in lines if line.partition(":")[0].endswith(("Error", "Exception")) and ": " in line]
    inner = [line for line in errors if not line.startswith(("py4j.", "org.", "java.", "Caused by"))]
    line = (inner or errors or lines or [type(error).__name__])[0]
    if (missing := _NO_MODULE.match(line)) is not None:
        return (
            f"the Python that Spark starts ({os.environ.get('PYSPARK_PYTHON', 'python3')}) has no module {missing[1]}: install what rawlog "
            f"needs there, or send an environment with --archives (docs/spark-clusters.md)"
        )
    return _CLASS.sub("", line)


def _raised_error(text: str) -> RawlogError | None:
    """The error that our own code raised inside a Python worker of Spark's, from the traceback."""
    matches = list(_RAISED.finditer(text))
    if not matches:
        return None
    match = matches[-1]
    kind = getattr(errors, match[1], None)
    if not (isinstance(kind, type) and issubclass(kind, RawlogError)):
        return None
    if issubclass(kind, DataError):
        context = list(_hex_lines(text[match.end() :].lstrip("\n").split("\n")))
        return kind(match[2], context="\n".join(context) or None)
    return kind(match[2])


def _hex_lines(lines: Sequence[str]) -> Iterator[str]:
    for line in lines:
        if not re.match(r"\s+[\d,]+  [0-9a-f]{2} ", line):
            return
        yield line
