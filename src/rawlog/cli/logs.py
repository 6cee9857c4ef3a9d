"""Logs: what a verb says on stderr, as text for people or as one JSON object per line for programs that collect it.

An object has `time` (UTC), `level` (info, warning, error), `phase` (what the verb is doing), `message`, and `figures` (numbers by name).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

FORMATS = ("text", "json")
#: The environment variable with the format for all verbs, and the option of those that run jobs.
VARIABLE, OPTION = "RAWLOG_LOG_FORMAT", "--log-format"
#: Seconds between two lines about progress.
EVERY = 10.0

F = TypeVar("F", bound=Callable[..., Any])
_state = {"format": "text", "phase": ""}


def option(function: F) -> F:
    """How messages are printed. `begin` obeys it: it counts for wrong usage, too."""
    return click.option(
        OPTION,
        type=click.Choice(FORMATS),
        expose_value=False,
        help="json: messages and progress on stderr are one JSON object per line.  [default: $RAWLOG_LOG_FORMAT, else text]",
    )(function)


def begin(arguments: Sequence[str]) -> None:
    """Choose the format by a command line, or else by the environment."""
    chosen = os.environ.get(VARIABLE, "text")
    for at, argument in enumerate(arguments):
        if argument == "--":
            break
        name, given, value = argument.partition("=")
        if name == OPTION:
            chosen = value if given else next(iter(arguments[at + 1 : at + 2]), "")
    _state.update(format="json" if chosen == "json" else "text", phase=next(iter(arguments), ""))
    if is_json():
        _take_over_logging()


def is_json() -> bool:
    """Whether messages are JSON objects."""
    return _state["format"] == "json"


def enter(phase: str) -> None:
    """Say what the verb is doing from now on."""
    _state["phase"] = phase


def write(level: str, message: str, figures: Mapping[str, Any] | None = None) -> None:
    """Print one object."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    entry = {"time": now, "level": level, "phase": _state["phase"], "message": message, "figures": dict(figures or {})}
    with suppress(OSError, ValueError):
        sys.stderr.write(json.dumps(entry, default=str) + "\n")
        sys.stderr.flush()


def _take_over_logging() -> None:
    """Warnings of rawlog's modules, which Python would print as text, become objects as well."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if is_json():
                write("error" if record.levelno >= logging.ERROR else "warning", record.getMessage())

    log = logging.getLogger("rawlog")
    if not any(type(one).__name__ == "Handler" and type(one).__module__ == __name__ for one in log.handlers):
        log.addHandler(Handler(logging.WARNING))
