"""The nouns of an outline: what one copy of a log has, in which bytes of which file, and what it does not have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from rawlog.model.format import File

if TYPE_CHECKING:
    from rawlog.model.report import Entry


@dataclass(frozen=True, slots=True)
class Run:
    """Sound frames of one lineage that follow one another in a file, with no other bytes between. Gaps in the addresses do not end it.

    `start` and `stop` are bytes, `first` and `end` addresses, all half-open; `lineage` is the leader epoch; `since` and `until` are the
    times (ms) of the first frame and the latest one, or -1. `stored` is the address that a single frame has in the file, if it is wrong;
    `stored_lineage` the wrong lineage of all of them.
    """

    file: File
    start: int
    stop: int
    first: int
    end: int
    lineage: int
    count: int
    since: int
    until: int
    stored: int | None = None
    stored_lineage: int | None = None

    @property
    def is_corrected(self) -> bool:
        """Whether a field of its frames is wrong in the file."""
        return self.stored is not None or self.stored_lineage is not None

    def follows(self, before: Run) -> bool:
        """Whether it goes on where another one ends."""
        is_same = before.file.path == self.file.path and before.lineage == self.lineage
        is_same = is_same and before.stored_lineage == self.stored_lineage
        return (
            is_same and before.stop == self.start and before.stored is self.stored is None and before.end <= self.first
        )

    def after(self, before: Run) -> Run:
        """Both as one."""
        since = before.since if before.since >= 0 else self.since
        return replace(
            before,
            stop=self.stop,
            end=self.end,
            count=before.count + self.count,
            since=since,
            until=max(before.until, self.until),
        )


def extend(runs: list[Run], following: Iterable[Run]) -> None:
    """Add runs that come after those of a list; one that goes on where the last one ends becomes part of it."""
    for run in following:
        if runs and run.follows(runs[-1]):
            runs[-1] = run.after(runs[-1])
        else:
            runs.append(run)


@dataclass(frozen=True, slots=True)
class SetAside:
    """Sound frames that are not of the log: a copy of others, or of another log. `first` and `end` are the addresses that they say."""

    file: File
    start: int
    stop: int
    first: int
    end: int
    reason: str


# What the one diagnosis of a store keeps of it, for verbs that read everything (convert, ingest, diff).


#: Bytes to set in a file before its frames are decoded: the position, and the bytes.
Patch = tuple[int, bytes]


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a file: sound frames that follow one another in the file and in the log."""

    path: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Reading:
    """The frames of a store that `repair` would keep, in the order of its log, and what it would report of the others. Picklable."""

    #: Everything outside of them is no row. None: the rows are those that are stored.
    pieces: tuple[Piece, ...] | None = None
    #: Fields that are corrected, by path, in the order of their positions; they change no frame's size.
    patches: Mapping[str, tuple[Patch, ...]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    notes: tuple[str, ...] = ()
