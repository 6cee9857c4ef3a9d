"""How a run ends: exit codes, one-line messages, and never a traceback."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import click

from rawlog.cli import logs
from rawlog.core.errors import DONE, FOUND, UNREADABLE, USAGE, DataError, OptionError, RawlogError
from rawlog.core.text import printable

__all__ = [
    "DONE", "FOUND", "INTERNAL", "INTERRUPTED", "UNREADABLE", "USAGE", "code_of", "flush", "guarded", "quiet_output", "say"
]  # fmt: skip

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
    except click.exceptions.Abort:
        flush()
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        say(error.format_message()) if logs.is_json() else click.echo(error.format_message(), err=True)
        return USAGE
    except click.UsageError as error:
        flush()
        context = error.ctx
        verb = context.command_path if context is not None else "rawlog"
        say(f"{error.format_message()}\nTry '{verb} --help'.")
        return USAGE
    except click.ClickException as error:
        flush()
        say(error.format_message())
        return UNREADABLE if isinstance(error, click.FileError) else USAGE
    except RawlogError as error:
        flush()
        say(str(error))
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
        say("not enough memory")
        return UNREADABLE
    except Exception as error:
        if os.environ.get("RAWLOG_DEBUG"):
            import traceback

            traceback.print_exc()
        first = (str(error).splitlines() or [""])[0]
        say(f"internal error: {type(error).__name__}: {first}; please report it (RAWLOG_DEBUG=1 shows the traceback)")
        return INTERNAL


def code_of(error: RawlogError) -> int:
    """The exit code for an error about the input."""
    if isinstance(error, DataError):
        return FOUND
    if isinstance(error, OptionError):
        return USAGE
    return UNREADABLE


def say(text: str, kind: str = "", level: str | None = None) -> None:
    """A message on stderr; names from files cannot steer the terminal. Its level in a log is that of an error, or info for a note."""
    if logs.is_json():
        logs.write(level or ("info" if kind else "error"), text)
        return
    lines = [printable(line) for line in text.split("\n")]
    head = f"rawlog: {kind}: " if kind else "rawlog: "
    with contextlib.suppress(OSError, ValueError):
        click.echo(head + "\n".join(lines), err=True)


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
