"""`ls`: what is there, a line for each partition or store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from rawlog.model.errors import unknown
from rawlog.model.table import FILES
from rawlog.model.verb import Option, verb
from rawlog.reading.options import READ, Format, Note, Partitions, Paths, Topics, listed
from rawlog.reading.tree import Tree, open_known
from rawlog.verbs.options import log_note, selection_of

if TYPE_CHECKING:
    from rawlog.model.job import Progress
    from rawlog.reading.listing import Listing


STATES = ("damaged", "truncated", "unknown", "ok", "empty")


@verb(
    group="look",
    examples=(
        "rawlog ls kafka-logs/ --topic 'orders*'",
        "rawlog ls /var/kafka-logs --state damaged --files",
        "rawlog ls /var/rocketmq/store --json",
    ),
    more="Exit codes: 0 listed, and nothing is damaged; 1 a file is damaged, or ends inside a frame although another one follows; "
    "2 wrong usage; 3 some could not be read, or no file is of a known format.",
    doing="reading",
)
def ls(
    paths: Annotated[Paths, "PATH"],
    *,
    topic: Topics = None,
    partition: Partitions = None,
    state: Annotated[
        str | Sequence[str] | None,
        Option("Only files in this state; may be given again.", choices=STATES, section=READ),
    ] = None,
    format: Format = None,
    note: Note | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Listing:
    """List what is there: system, topic, offsets, times, counts, state.

    One line is one partition or store. Every file is read once, checksums included. State: ok, truncated (ends inside a frame), damaged,
    empty, unknown. Replicas of one partition or store are marked, with the one that other verbs read.

    Returns Listing, a kind of Rows: a row of the table `files` for each file. Its `replicas` says which replicas there are, and which is
    the best. Damage does not raise; `note` gets a sentence about it. OptionError for an unknown topic, partition or state, AccessError
    for a path that does not exist.

    >>> import rawlog
    >>> states = {row["path"]: row["state"] for row in rawlog.ls("samples/kafka", topic="transactions")}
    """
    from rawlog.reading.listing import Listing, counter
    from rawlog.reading.rows import check_names

    tree = open_known(paths, format=format, note=note, must_know=False)
    chosen = selection_of({"topic": topic or None, "partition": () if partition is None else partition})
    check_names(tree, FILES, chosen, note)
    narrow = bool(chosen.topics or chosen.partitions)
    files = tuple(f for f in tree if chosen.takes_file(f) and not (narrow and f.place.topic is None))
    listing = Listing(Tree(tree.roots, files), FILES)
    listing.note = note or log_note
    listing.states = listed(state or ())
    for name in listing.states:
        if name not in STATES:
            raise unknown("state", name, STATES)
    if progress is not None:
        listing.progress = counter(sum(file.size for file in files), progress)
    return listing
