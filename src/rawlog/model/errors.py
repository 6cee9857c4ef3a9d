"""The error tree: everything rawlog raises for what it was given, as opposed to its own mistakes; and how to add what is not installed."""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Iterable
from typing import Self

#: Exit codes: nothing to report; damage, loss or differences; wrong usage; nothing known there, or something that could not be read or
#: written.
DONE, FOUND, USAGE, UNREADABLE = 0, 1, 2, 3


class RawlogError(Exception):
    """The root: catch this and nothing rawlog raises about its input escapes."""

    #: What to do next: a command or an option. None: the command line derives it from the class of the error and from the verb.
    next_step: str | None = None

    def advise(self, step: str) -> Self:
        """Add what to do next, unless the error has it already, and return the error itself. A traceback shows it too."""
        if self.next_step is None:
            self.next_step = step
            self.add_note(f"Next: {step}")
        return self


class DataError(RawlogError):
    """Bytes that are not what their format demands, with the place where that was seen.

    The message reads `format: path: byte position: what, expectation`.
    """

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        position: int | None = None,
        format: str | None = None,
        layout: str | None = None,
        field: str | None = None,
        expected: object = None,
        found: object = None,
        context: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.position = position
        self.format = format
        self.layout = layout
        self.field = field
        self.expected = expected
        self.found = found
        self.context = context

    def at(self, **place: object) -> DataError:
        """Fill in what is not yet known of the place, and return the error itself."""
        for name, value in place.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        parts = [part for part in (self.format, self.path) if part]
        if self.position is not None:
            parts.append(f"byte {self.position:,}")
        parts.append(self.message)
        text = ": ".join(parts)
        return f"{text}\n{self.context}" if self.context else text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.__dict__))


def _rebuild(cls: type[DataError], message: str, state: dict[str, object]) -> DataError:
    error = cls(message)
    error.__dict__.update(state)
    return error


class TruncatedError(DataError):
    """The bytes end inside a structure."""


class CorruptError(DataError):
    """The bytes contradict their format."""


class LostError(CorruptError):
    """Bytes that cannot be had, from `start` to `stop` of a file that is stored in another form. What is before and after them can be."""

    start: int = 0
    stop: int = 0


class LimitError(CorruptError):
    """More than the limits of reading allow: memory is bounded whatever a file says. The message names the option that raises the limit."""


class UnsupportedError(DataError):
    """A version or variant that is known to exist, or may, and cannot be read."""


class UnknownFormatError(RawlogError, ValueError):
    """A file that no format recognises, or a format name that is not registered."""


class UnrecognisedError(UnknownFormatError):
    """No path has a file of a known format: a user may name one."""


class EncodeError(RawlogError, ValueError):
    """Rows that the target format cannot hold."""


class OptionError(RawlogError, ValueError):
    """An option, name or value the caller gave that is not one."""


class AccessError(RawlogError, OSError):
    """A path that is missing, unreadable, in the way, or a service that does not answer."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


#: What is said of a file that the user must not read.
DENIED = "permission denied"


def refusal(path: str, problem: str) -> AccessError:
    """The error for a path that cannot be read, and why."""
    error = AccessError(f"{path}: {problem}")
    return error.advise("run rawlog as a user that can read it, such as the broker's") if problem == DENIED else error


class ExistsError(AccessError):
    """Something has the name of a target. The command line names the option of the verb that replaces or continues it."""


def unknown(what: str, name: str, existing: Iterable[str]) -> OptionError:
    """An OptionError that answers an unknown name with the nearest known ones."""
    names = sorted(existing)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if not near:
        near = [candidate for candidate in names if name.lower() in candidate.lower()][:3]
    hint = f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(names)}"
    return OptionError(f"unknown {what} {name!r}{hint}")


# ----------------------------------------------------------------------------------------------------------------------
# Extras: packages that only some verbs need, and the command that adds them to this installation.


def missing(package: str, extra: str, *, otherwise: str = "") -> AccessError:
    """The error for a package that is not installed. `otherwise` is a way without it."""
    return AccessError(f"{package} is not installed").advise(
        f"{install_command(extra)}{f', or {otherwise}' if otherwise else ''}"
    )


def install_command(extra: str = "") -> str:
    """The command that installs rawlog again with an extra: by the tool that made this environment, from the same wheel or clone.

    Only an installation from an index can use the name `rawlog` alone. If the wheel or clone is gone, PLACE stands for it.
    """
    by_pipx = os.path.exists(os.path.join(sys.prefix, "pipx_metadata.json"))
    place, option = _origin()
    return f'{"pipx install --force" if by_pipx else "pip install"} {option}"{place}{f"[{extra}]" if extra else ""}"'


def _origin() -> tuple[str, str]:
    """What was given to pip when rawlog was installed, and the option `-e ` for a clone that is used in place."""
    from importlib import metadata
    from urllib.parse import unquote, urlparse

    try:
        text = metadata.distribution("rawlog").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return "PLACE", ""
    if text is None:
        return "rawlog", ""
    origin = json.loads(text)
    url = urlparse(str(origin["url"]))
    if url.scheme != "file":
        return str(origin["url"]), ""
    path = unquote(url.path)
    option = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return (path, option) if os.path.exists(path) else ("PLACE", "")
