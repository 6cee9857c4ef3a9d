"""`ls`: what is there, a line for each partition or store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from rawlog import registry
from rawlog.model.errors import unknown
from rawlog.model.table import FILES
from rawlog.model.verb import Option, verb
from rawlog.reading.options import READ, Format, Note, Partitions, Paths, Topics, listed
from rawlog.reading.parts import choose_replicas, copies
from rawlog.reading.rows import Loss, Rows, unfinished
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, Unreadable, open_known
from rawlog.verbs.options import log_note, selection_of

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.model.format import File
    from rawlog.model.job import Progress
    from rawlog.model.store import Copies

# ----------------------------------------------------------------------------------------------------------------------
# Listing: the files at some paths, each measured: the rows of `ls`.

#: A batch is ready when it has so many files, or so many bytes were read for it.
BATCH_FILES, BATCH_BYTES = 1000, 16 << 20


class Listing(Rows):
    """The files at some paths, measured one after another: the table `files`. Its tree has the files in the same order."""

    progress: Callable[[int], None] | None = None
    #: Only files in one of these states; empty: all.
    states: Sequence[str] = ()
    #: The files of the rows that were given so far, in the same order.
    shown: list[File]

    def floor(self, file: File) -> int | None:
        """The first offset of a file that a consumer still gets, if records below it are in the file."""
        format = registry.formats().get(str(file.format))
        if format is None or not format.can("floor") or file.problem is not None:
            return None
        floor: int | None = format.codec.floor(file, self.tree.group_of(file))
        return floor

    @cached_property
    def unread(self) -> frozenset[str]:
        """The files of replicas that other verbs do not read."""
        return frozenset(file.path for file in choose_replicas(self.tree, Selection(), lambda note: None).unread)

    @cached_property
    def replicas(self) -> list[Copies]:
        """The partitions and stores of which there are several replicas, each with the best first."""
        return copies(self.tree.groups)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows: batches of many small files, or of one large one, so that each is given as soon as it is ready."""
        import pyarrow as pa

        self.shown = []
        ready: list[dict[str, Any]] = []
        size = 0
        for file in self.tree:
            row = self._measure(file)
            size += file.size
            if not self.states or row["state"] in self.states:
                ready.append(row)
                self.shown.append(file)
            if ready and (len(ready) >= BATCH_FILES or size >= BATCH_BYTES):
                yield pa.RecordBatch.from_pylist(ready, schema=FILES.schema)
                ready, size = [], 0
        if ready:
            yield pa.RecordBatch.from_pylist(ready, schema=FILES.schema)

    def _measure(self, file: File) -> dict[str, Any]:
        from rawlog.reading.inspect import file_values

        row = file_values(file)
        if file.problem is not None and self.note is not None:
            self.note(Unreadable(f"{file.path}: {file.problem}"))
        elif self.note is not None and file.place.state is None:
            self._note_damage(file, row["state"], row.get("valid_size") or 0)
        if self.progress is not None:
            self.progress(file.size)
        return row

    def _note_damage(self, file: File, state: str | None, valid: int) -> None:
        """Note a file that is not whole, unless it is one that its system still writes to."""
        assert self.note is not None
        if state == "damaged":
            self.note(Loss(f"{file.path}: byte {valid:,}: damaged"))
        elif state == "truncated" and file.place.sealed:
            self.note(unfinished(file, valid, file.size - valid, is_followed=True))


def counter(total: int, progress: Callable[[Progress], None]) -> Callable[[int], None]:
    """A function that adds a number of bytes to the progress."""
    from rawlog.model.job import Progress

    done = 0

    def step(size: int) -> None:
        nonlocal done
        done += size
        progress(Progress(done, total))

    return step


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
    from rawlog.reading.names import check_names

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
