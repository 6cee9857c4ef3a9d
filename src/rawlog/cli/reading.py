"""What a verb reads: the tree at its paths, with a word on stderr about everything that cannot be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rawlog.cli import options
from rawlog.cli.errors import DONE, FOUND, UNREADABLE, say
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    from rawlog.reading.rows import Rows
    from rawlog.reading.select import Selection


class Reading:
    """The files of some paths, and how reading them went.

    Files that cannot be opened, and files named on the command line that are of no known format, are told on stderr; all others
    are read, and the exit code says in the end that some were not.
    """

    def __init__(self, paths: Iterable[str], format: str | None = None) -> None:
        """AccessError for a path that is not there; UnknownFormatError for an unknown `format`."""
        self.tree = open_tree(list(paths), format=format)
        self.code = DONE

    def refuse(self) -> list[str]:
        """Leave out what cannot be read, and say why; the reasons."""
        named = {root.rstrip("/") for root in self.tree.roots}
        kept, reasons = [], []
        for file in self.tree:
            if file.problem is not None:
                reasons.append(f"{file.path}: {file.problem}")
            elif file.format is None and file.path.rstrip("/") in named:
                what = "an empty file" if file.size == 0 else "not a file of any known format"
                reasons.append(f"{file.path}: {what}; --as FORMAT names one")
            else:
                kept.append(file)
        for reason in reasons:
            say(reason)
            self.code = UNREADABLE
        self.tree = Tree(self.tree.roots, tuple(kept))
        return reasons

    def rows(self, table: str, selection: Selection, *, may_come: bool = False) -> Rows | None:
        """A table of the files that can be read, or None if there are none and that has been said.

        UnknownFormatError if there is nothing of that table; OptionError for a topic or partition that is not there, unless it `may_come`.
        """
        from rawlog.reading.names import check_names
        from rawlog.reading.rows import Rows

        if table not in ("files", "findings") and self.refuse() and not any(file.format for file in self.tree):
            return None
        rows = Rows(self.tree, table, selection)
        for name in selection.unused(rows.table):
            say(f"{options.NAMES[name]} does not change {table}: it has no column for it", "note")
        check_names(self.tree, rows.table, selection, self.note, may_come=may_come)
        rows.note = self.note
        return rows

    def note(self, text: str) -> None:
        """Tell what was left out of the rows; lost rows change the exit code."""
        from rawlog.reading.rows import Loss

        if isinstance(text, Loss):
            self.code = FOUND
        say(text, "note")
