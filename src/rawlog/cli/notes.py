"""What a function notes while it works, printed to stderr; and the exit code that follows from it."""

from __future__ import annotations

from rawlog.cli.errors import DONE, FOUND, UNREADABLE, say


class Notes:
    """Give it to a function as `note`. A file that could not be read makes `code` 3; any other serious note, such as one on rows lost to
    damage or on values that were not decoded, makes it 1.
    """

    def __init__(self) -> None:
        self.code = DONE

    def __call__(self, text: str) -> None:
        """Print a note."""
        from rawlog.core.report import SeriousNote
        from rawlog.reading.tree import Unreadable, Unrecognised

        if isinstance(text, Unreadable):
            self.code = UNREADABLE
            say(f"{text}; --as FORMAT names one" if isinstance(text, Unrecognised) else text)
            return
        if isinstance(text, SeriousNote):
            self.code = max(self.code, FOUND)
        say(text, "note")
