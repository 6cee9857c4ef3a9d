"""`find`: a text, key or id in the records of all systems."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Unpack

from rawlog.model.errors import OptionError, unknown
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Format, Note, Paths, Searching, listed
from rawlog.verbs.cat import open_rows
from rawlog.verbs.options import selection_of

if TYPE_CHECKING:
    from rawlog.reading.rows import Rows


#: Places that `find` looks at, and states that `ls` knows.
PLACES = ("key", "value", "headers", "id")


@verb(
    group="look",
    examples=(
        "rawlog find user-4711 /var/kafka-logs /var/rocketmq/store",
        "rawlog find 7F0000010B2C18B4AAC2 store --in id --json",
        "rawlog find '\"card\":\"4111' kafka-logs --in value --topic 'orders*' -n 10",
    ),
    more="Exit codes: 0 everything was searched; 1 damage; 2 wrong usage; 3 some files could not be read.",
)
def find(
    text: Annotated[str | bytes, "TEXT"],
    paths: Annotated[Paths, "PATH"],
    *,
    within: Annotated[
        str | Sequence[str],
        Option(
            "Look only here; may be given again. Ids are found by an index where one exists.", "--in", choices=PLACES
        ),
    ] = PLACES,
    format: Format = None,
    note: Note | None = None,
    **selection: Unpack[Searching],
) -> Rows:
    """Look for a text, key or id in the records of all systems.

    `text` is looked for in keys, values and headers, and among message ids and blob ids.

    Returns Rows whose column `found_in` says where it was found. Errors as `rawlog.rows`; OptionError for an empty text or an unknown
    place.

    >>> import rawlog
    >>> hits = [(row["topic"], row["offset"], row["found_in"]) for row in rawlog.find("key-602", "samples/kafka")]
    """
    from rawlog.reading.tail import FoundRows

    places = listed(within)
    for place in places:
        if place not in PLACES:
            raise unknown("place", place, PLACES)
    if not text or not places:
        raise OptionError("a text to look for, and a place to look at, are expected")
    chosen = selection_of(selection)
    if chosen.transforms:
        raise OptionError("a text is looked for in bytes, which are not decoded: `rawlog cat --decode` has --where")
    rows = open_rows(paths, "records", format, chosen, note)
    return FoundRows(rows, os.fsencode(text) if isinstance(text, str) else text, places)
