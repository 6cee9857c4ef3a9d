"""Logs: what a verb says on stderr, as text for people or as one JSON object per line for programs that collect it.

An object has `time` (UTC), `level` (info, warning, error), `phase` (what the verb is doing), `message`, and `figures` (numbers by name).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self, TypeVar

import click

from rawlog.model.errors import (
    DONE,
    FOUND,
    UNREADABLE,
    USAGE,
    DataError,
    ExistsError,
    LimitError,
    OptionError,
    RawlogError,
    UnknownFormatError,
)
from rawlog.model.job import Progress
from rawlog.model.text import counted, printable, size_text, wrapped

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
        name, has_value, value = argument.partition("=")
        if name == OPTION:
            chosen = value if has_value else next(iter(arguments[at + 1 : at + 2]), "")
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
    if not any(
        type(handler).__name__ == "Handler" and type(handler).__module__ == __name__ for handler in log.handlers
    ):
        log.addHandler(Handler(logging.WARNING))


# ----------------------------------------------------------------------------------------------------------------------
# Progress on stderr: a line that redraws itself, only on a terminal, gone when the work is done; or lines of a log.


INTERVAL = 0.2
#: Work that is done before this many seconds shows nothing.
PATIENCE = 0.5
#: Seconds after which the pace says something about the rest: at first, imports, compilation and caches take the time.
ESTIMATE_AFTER = 5.0


class Bar:
    """A context manager that is called with a job's Progress, from any thread, and draws it; as lines where stderr is no terminal."""

    def __init__(self, what: str, shown: bool | None = None) -> None:
        """`shown`: None shows it on a terminal, and in a log of JSON."""
        self.what, self.now = what, Progress()
        self.active = (sys.stderr.isatty() or is_json()) if shown is None else shown
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, now: Progress) -> None:
        """How far the job is."""
        self.now = now

    def __enter__(self) -> Self:
        if self.active:
            enter(self.what)
            work = self._draw if sys.stderr.isatty() and not is_json() else self._log
            self._thread = threading.Thread(target=work, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if is_json() or (self.active and not sys.stderr.isatty()):
            enter(self.what)
            self._write("failed" if kind else "done", "error" if kind else "info")

    def text(self, spent: float) -> str:
        """The line as it is after so many seconds."""
        now = self.now
        if now.phase:
            return f"{now.phase} …  {int(spent)} s"
        words = [self.what]
        if now.total_size:
            words.append(f"{min(100, 100 * now.size // now.total_size)} %")
        words += [size_text(now.size), *([counted(now.rows, "row")] if now.rows else [])]
        words += [f"{size_text(int(now.size / spent))}/s", f"{int(spent)} s"]
        if 0 < now.size < now.total_size and spent >= ESTIMATE_AFTER:
            words.append(f"{int(spent * (now.total_size - now.size) / now.size) + 1} s left")
        return "  ".join(words)

    def _log(self) -> None:
        """A line for each phase, and one now and then."""
        phase, last = None, 0.0
        while not self._stop.wait(INTERVAL):
            # Some phases go on to say how far they are.
            spent, now = time.monotonic() - self._begun, self.now.phase.partition("  ")[0] or self.what
            if now != phase or spent - last >= EVERY:
                phase, last = now, spent
                enter(now)
                self._write(self.text(max(spent, INTERVAL)))

    def _write(self, message: str, level: str = "info") -> None:
        figures = {field.name: getattr(self.now, field.name) for field in fields(self.now) if field.name != "phase"}
        if not is_json():
            spent = self.text(max(time.monotonic() - self._begun, INTERVAL))
            say(spent if message == spent else f"{spent}  {message}", "progress")
            return
        write(level, message, {**figures, "seconds": round(time.monotonic() - self._begun, 3)})

    def _draw(self) -> None:
        drawn = False
        while not self._stop.wait(INTERVAL):
            spent = time.monotonic() - self._begun
            if spent < PATIENCE:
                continue
            sys.stderr.write(f"\r\x1b[K{self.text(spent)}")
            sys.stderr.flush()
            drawn = True
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# ----------------------------------------------------------------------------------------------------------------------
# How a run ends: exit codes, one-line messages, and never a traceback.


INTERNAL, INTERRUPTED = 70, 130
#: Whoever read our output has had enough: that is success.
CLOSED_PIPE = DONE


def guarded(run: Callable[[], Any]) -> int:
    """Run a command line and answer its exit code, after a message on stderr where it failed."""
    try:
        code = _answer(run)
        flush()
    except BrokenPipeError:
        quiet_output()
        return CLOSED_PIPE
    except OSError as error:
        say(f"standard output: {error.strerror or error}")
        quiet_output()
        return UNREADABLE
    return code


def _answer(run: Callable[[], Any]) -> int:
    try:
        code = run()
        return code if isinstance(code, int) else DONE
    except (click.exceptions.Abort, KeyboardInterrupt):
        flush()
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message()) if is_json() else click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        flush()
        context = error.ctx
        verb = context.command_path if context is not None else "rawlog"
        say(f"{error.format_message()}\n{NEXT}{verb} --help")
        return USAGE
    except click.ClickException as error:
        flush()
        say(f"{error.format_message()}\n{NEXT}rawlog --help")
        return UNREADABLE if isinstance(error, click.FileError) else USAGE
    except RawlogError as error:
        flush()
        say(f"{error}\n{NEXT}{error.next_step}" if error.next_step else str(error))
        return code_of(error)
    except SystemExit as error:
        # click ends so when its own output meets a closed pipe.
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":
            return CLOSED_PIPE
        return error.code if isinstance(error.code, int) else DONE
    except BrokenPipeError:
        raise
    except MemoryError:
        flush()
        say(f"not enough memory\n{NEXT}--threads 1 where the verb has it, fewer columns, or --engine spark")
        return UNREADABLE
    except Exception as error:
        if os.environ.get("RAWLOG_DEBUG"):
            import traceback

            traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        say(
            f"internal error: {type(error).__name__}: {first}\n{NEXT}set RAWLOG_DEBUG=1, run it again, and report the traceback"
        )
        return INTERNAL


#: Verbs that refuse damaged stores.
NEEDS_SOUND = ("rebuild", "compact", "erase")


def next_step(error: RawlogError, verb: str, options: Collection[str]) -> str:
    """What helps after an error of a verb with these options, by the class of the error."""
    if isinstance(error, ExistsError):
        ways = {"--force": "replaces it", "--resume": "continues it"}
        steps = [f"{option} {what}" for option, what in ways.items() if option in options]
        return ", or ".join([*steps, "choose another name"])
    if isinstance(error, LimitError) and "--max-" in error.message:
        return f"rawlog {verb} with a higher limit"
    if isinstance(error, DataError):
        path = "" if error.path is None else shlex.quote(error.path)
        look = (
            f"rawlog explain {path} --at {error.position}"
            if path and error.position is not None and verb != "explain"
            else ""
        )
        steps = [look or (f"rawlog verify {path}" if path else "rawlog verify PATH")]
        if verb in NEEDS_SOUND:
            steps.insert(0, "rawlog repair SRC DST keeps all sound data")
        return ", or ".join(
            [*steps, *(["--errors skip to continue after the damage"] if "--errors" in options else [])]
        )
    if isinstance(error, UnknownFormatError):
        return "--as FORMAT names the format; `rawlog formats` lists them" if "--as" in options else "rawlog formats"
    return f"rawlog {verb} --help"


def code_of(error: RawlogError) -> int:
    """The exit code for an error about the input."""
    if isinstance(error, DataError):
        return FOUND
    if isinstance(error, OptionError):
        return USAGE
    return UNREADABLE


#: Passwords in URLs: before the host, or as parameters of an object store.
_SECRETS = re.compile(r"(?<=:)[^/\s:@]+(?=@[\w.\[-])|(?<=[?&]secret_key=)[^&\s'\"]+|(?<=[?&]session_token=)[^&\s'\"]+")


#: Before the command that helps.
NEXT = "Next: "


def without_passwords(text: str) -> str:
    """The text with passwords in URLs left out."""
    return _SECRETS.sub("********", text) if "://" in text or "@" in text else text


def say(text: str, kind: str = "", level: str | None = None) -> None:
    """A message on stderr; names from files cannot steer the terminal, and passwords in URLs are left out. Its level in a log is that of
    an error, or info for a note.
    """
    text = without_passwords(text)
    if is_json():
        write(level or ("info" if kind else "error"), text)
        return
    head = f"rawlog: {kind}: " if kind else "rawlog: "
    lines = [printable(line) for line in (head + text).split("\n")]
    with contextlib.suppress(OSError, ValueError):
        width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
        # A command stays on one line, however long, so that it can be copied; bytes stay below one another.
        lines = [
            part for line in lines for part in ([line] if line.startswith((NEXT, " ")) else wrapped(line, width, "  "))
        ]
        click.echo("\n".join(lines), err=True)


def advise(command: str) -> None:
    """The command that helps, on stderr, after what was printed."""
    flush()
    if not is_json():
        with contextlib.suppress(OSError, ValueError):
            click.echo(f"{NEXT}{printable(without_passwords(command))}", err=True)


def flush() -> None:
    """Send what is still buffered, so that messages come after the data they are about."""
    with contextlib.suppress(ValueError):
        sys.stdout.flush()


def quiet_output() -> None:
    """Forget what could not be written, so that the end of the interpreter does not complain either."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show on a terminal what takes a moment, until it is done."""
    shown = sys.stderr.isatty() and not is_json()
    if shown:
        sys.stderr.write(f"\r\x1b[K{what} …")
        sys.stderr.flush()
    try:
        yield
    finally:
        if shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
