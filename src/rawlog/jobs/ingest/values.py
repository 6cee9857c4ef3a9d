"""What a run of ingest passes between plan, work and commit: all of it picklable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.core.store import Store
from rawlog.jobs.ingest.folds import Fold
from rawlog.jobs.job import Done, Outcome
from rawlog.jobs.sheet import Written
from rawlog.reading.inspection import Checked
from rawlog.reading.parts import Part


@dataclass(frozen=True, slots=True)
class Piece:
    """A range of bytes of a file, as a part for each of the tables that need it."""

    parts: tuple[tuple[str, Part], ...]
    #: Whether the same pass checks and measures the file, and the files next to it that this needs.
    is_checked: bool = False
    near: tuple[File, ...] = ()

    @property
    def file(self) -> File:
        """The file that all the parts are of."""
        return self.parts[0][1].file

    @property
    def start(self) -> int:
        """The first byte."""
        return self.parts[0][1].start or 0

    @property
    def stop(self) -> int | None:
        """Where the range ends; None: at the end of the file."""
        return self.parts[0][1].stop

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.parts[0][1].size


@dataclass(frozen=True, slots=True)
class Task:
    """What one split does: files to inspect alone, groups of files to inspect together, pieces to decode, units to fold."""

    run: str
    files: tuple[File, ...] = ()
    groups: tuple[Store, ...] = ()
    pieces: tuple[Piece, ...] = ()
    folds: tuple[Fold, ...] = ()
    tree: Store | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a part was read for one table: up to byte `stop`, through `frames` frames."""

    table: str
    part: Part
    stop: int
    frames: int


@dataclass(frozen=True, slots=True)
class Decoded(Done):
    """The files that a split wrote, what they hold, and the result of verification."""

    written: tuple[Written, ...]
    reached: tuple[Reached, ...] = ()
    folded: tuple[Fold, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[File, ...] = ()
    #: Summaries that checks of several files need; and the results for splits of files, to be merged, with their first byte.
    summaries: Mapping[str, Any] = field(default_factory=dict)
    checked: tuple[tuple[int, Checked], ...] = ()
    errors: int = 0
    warnings: int = 0


@dataclass(frozen=True, slots=True)
class Ingested(Outcome):
    """What a run added to the lake, and what it left out."""

    run: str
    lake: str
    tables: Mapping[str, int]
    files: int
    size: int
    unchanged: int
    errors: int
    warnings: int
    #: Files that hold other bytes than were ingested, with the reason; their rows were not changed.
    refused: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        return "damaged" if self.errors else "suspect" if self.warnings else "clean"


class Recut(RawlogError):
    """Files whose planned boundaries do not fit their frames: they must be read whole."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        super().__init__(f"{len(self.paths)} files must be read whole")
