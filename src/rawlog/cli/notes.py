"""What a function notes while it works, printed to stderr; and the exit code that follows from it."""

from __future__ import annotations

from collections.abc import Iterable

from rawlog.cli.errors import DONE, FOUND, UNREADABLE, say


def code_after(code: int, notes: Iterable[str]) -> int:
    """The exit code of a verb that noted something: 1 instead of 0 if values were not decoded."""
    from rawlog.schemas.reasons import Undecoded

    return FOUND if code == DONE and any(isinstance(one, Undecoded) for one in notes) else code


class Notes:
    """Give it to a function as `note`. A file that could not be read makes `code` 3; rows lost to damage, and values that were not decoded,
    make it 1.
    """

    def __init__(self) -> None:
        self.code = DONE

    def __call__(self, text: str) -> None:
        """Print a note."""
        from rawlog.api.options import Unreadable, Unrecognised
        from rawlog.reading.rows import Loss

        if isinstance(text, Unreadable):
            self.code = UNREADABLE
            say(f"{text}; --as FORMAT names one" if isinstance(text, Unrecognised) else text)
            return
        self.code = FOUND if isinstance(text, Loss) else code_after(self.code, [text])
        say(text, "note")
