"""Panel: a table that `report` shows of one store, and that only its system has."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rawlog.core.verb import Section


class Look(StrEnum):
    """How a panel is drawn: as rows; with a bar for the numbers of the second column; as a map, whose cells are coloured by their tone."""

    TABLE = "table"
    BARS = "bars"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Panel:
    """A section of a page about one system. `about` says what it shows and what to look for."""

    system: str
    section: Section
    about: str = ""
    look: Look = Look.TABLE
    #: The store that it is about, where there may be several.
    path: str = ""
