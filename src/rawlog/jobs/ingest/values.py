"""What a run of ingest passes between plan, work and commit: all of it picklable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.core.store import Store
from rawlog.jobs.ingest.folds import Fold
from rawlog.jobs.job import Done, Outcome
from rawlog.jobs.lake.removal import OldFile, Thinned
from rawlog.jobs.lake.state import RowRange
from rawlog.jobs.sheet import Written
from rawlog.reading.inspection import Checked
from rawlog.reading.parts import Part
from rawlog.reading.select import Tally


@dataclass(frozen=True, slots=True)
class Span:
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
class IngestSplit:
    """What one split does: files to inspect alone, groups of files to inspect together, spans to decode, units to fold."""

    run: str
    files: tuple[File, ...] = ()
    groups: tuple[Store, ...] = ()
    spans: tuple[Span, ...] = ()
    folds: tuple[Fold, ...] = ()
    #: Data files of the lake from which rows of rewritten sources are removed.
    old_files: tuple[OldFile, ...] = ()
    tree: Store | None = None
    #: Data files of the lake's table `findings` that are searched for findings on several files together.
    found_in: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reached:
    """How far a part was read for one table: up to byte `stop`, through `frames` frames.

    `mark` identifies the bytes before `stop`; `rows` are those of `records` that came from the part.
    """

    table: str
    part: Part
    stop: int
    frames: int
    mark: int = 0
    rows: tuple[RowRange, ...] = ()


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
    #: What transforms of the rows counted.
    tallies: tuple[Tally, ...] = ()
    #: What was not decoded, and why.
    decoded: Tally = field(default_factory=Counter)
    #: Files in which errors were found; and the data files from which rows were removed.
    damaged: tuple[str, ...] = ()
    thinned: tuple[Thinned, ...] = ()
    #: Codes and paths of earlier findings on several files together.
    joint: frozenset[tuple[str, str]] = frozenset()
    #: The facts that identify the stores that were inspected, by directory.
    stores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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
    #: Files that were rewritten and left out, with the reason; their rows were not changed.
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


class Distrusted(RawlogError):
    """Files that were rewritten and are damaged now: their rows must not replace the sound ones that the lake has."""

    def __init__(self, paths: Iterable[str]) -> None:
        self.paths = frozenset(paths)
        super().__init__(f"{len(self.paths)} rewritten files are damaged")
