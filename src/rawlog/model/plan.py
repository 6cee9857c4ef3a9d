"""Reading: what the one diagnosis of a store keeps of it, for verbs that read everything (convert, ingest, diff)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawlog.model.report import Entry

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
