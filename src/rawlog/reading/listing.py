"""Listing: the files at some paths, each measured: the rows of `ls`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.model.table import FILES
from rawlog.reading.parts import choose_replicas, copies
from rawlog.reading.rows import Loss, Rows, unfinished
from rawlog.reading.select import Selection
from rawlog.reading.tree import Unreadable

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.model.format import File
    from rawlog.model.job import Progress
    from rawlog.model.store import Copies

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
