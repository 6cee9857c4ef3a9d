"""The streaming side of the data source: a directory of growing logs, each row exactly once, across restarts.

A stream's offset is JSON, a Mark for each line of files (see `rawlog.reading.follow`):

    {"kafka.log /data/orders-0": {"file": "00000000000000000042.log", "position": 1204, "frames": 7, "offset": 49}}

It says by itself what a batch holds, so that a restart reads the same rows again, or none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from rawlog import registry
from rawlog.core.errors import AccessError, OptionError
from rawlog.reading.follow import Follower, Line, Mark, from_position, to_position
from rawlog.reading.follow import Position as Offset
from rawlog.reading.parts import Part, cut
from rawlog.reading.tree import Tree, open_tree
from rawlog.spark import splits
from rawlog.spark.options import LATEST, MODES, Request
from rawlog.spark.splits import Chosen


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what was added to the files of a tree since the last batch, and files that are new."""

    def __init__(self, request: Request, schema: pa.Schema) -> None:
        table = request.whole_table
        if table.offsets is None or any(table.name in family.folds for family in registry.families()):
            raise OptionError(f"table {table.name} cannot be followed: its rows are not appended one after another")
        if request.ending or request.selection.until is not None:
            raise OptionError("options endingOffsets and endingTimestamp: a stream has no end; use a batch query")
        self.request, self.schema = request, schema
        self.follower = Follower(table, request.selection, MODES[request.mode], request.fail_on_data_loss)
        self.frozen: Chosen | None = None

    def initialOffset(self) -> Offset:
        """Where a stream without a checkpoint begins: nothing read, or all where the latest offset is asked for."""
        marks: dict[str, Mark] = {}
        for key, line in self.follower.lines(self._tree()).items():
            if self.request.starting.of(line.files[0]) == LATEST:
                marks[key], _ = self.follower.step(line, Mark.before(line.files[0]))
        return to_position(marks)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What one batch may read, as the options say."""
        if self.request.max_bytes is not None:
            return ReadMaxBytes(self.request.max_bytes)
        return ReadAllAvailable() if self.request.max_files is None else ReadMaxFiles(self.request.max_files)

    def prepareForTriggerAvailableNow(self) -> None:
        """Look at the files now; what is added later is left to a later run."""
        self.frozen = self._tree()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next batch goes. DataError at damage, unless the mode passes it over; AccessError for lost data."""
        bounded = not isinstance(limit, ReadAllAvailable)
        size = self.request.max_bytes if bounded else None
        files = self.request.max_files if bounded else None
        marks = from_position(start)
        waiting: list[tuple[int, Line, Mark]] = []
        for key, line in self.follower.lines(self.frozen or self._tree()).items():
            mark = self.follower.located(line, marks[key]) if key in marks else self._first(line)
            if (left := line.size_after(mark)) > 0:
                waiting.append((left, line, mark))
        if files is not None:  # those not written to for longest go first, so that none waits for ever
            waiting.sort(key=lambda item: item[1].files[item[1].index(item[2]) or 0].modified or 0.0)
        total = sum(left for left, _, _ in waiting)
        for left, line, mark in waiting:
            if files == 0:
                break
            share = None if size is None else max(1, size * left // total)
            reached, touched = self.follower.step(line, mark, share, files)
            files = None if files is None else files - touched
            if touched or line.key in marks:
                marks[line.key] = reached
        return to_position(marks)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of one batch. AccessError if files of it are gone."""
        lines, before = self.follower.lines(self._tree()), from_position(start)
        found: list[tuple[Line, Part]] = []
        for key, stop in from_position(end).items():
            if before.get(key) == stop:
                continue
            if key not in lines:
                self.follower.lost(f"{key}: gone, with rows of a batch that was begun")
                continue
            line = lines[key]
            begin = before[key] if key in before else self._first(line)
            found += [(line, part) for part in self.follower.parts(line, begin, stop)]
        size = splits.split_size(self.request, sum(part.size for _, part in found))
        parts = [
            (piece, self.request.selection_of(piece.file))
            for line, part in found
            for piece in cut(part, line.group, size)
        ]
        return splits.pack(parts, size)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        return splits.read(partition, self.request, self.schema)

    def _tree(self) -> Chosen:
        try:
            tree = open_tree(self.request.paths)
        except AccessError:
            if not any(mark in path for path in self.request.paths for mark in "*?["):
                raise
            tree = Tree(self.request.paths, ())  # nothing matches the pattern yet
        return splits.choose(tree, self.request)

    def _first(self, line: Line) -> Mark:
        """Where an unread line begins: at its first file, or at the frame that holds the offset asked for."""
        start = self.request.starting.of(line.files[0])
        found = None if start is None or start < 0 else self.follower.seek(line, start)
        return Mark.before(line.files[0]) if found is None else found
