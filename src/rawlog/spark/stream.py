"""The streaming side of the data source: a directory of growing logs, each row exactly once, across restarts.

A stream's offset is JSON, a Mark for each line of files (see `rawlog.reading.lines`):

    {"kafka.log /data/orders-0": {"file": "00000000000000000042.log", "position": 1204, "frames": 7, "offset": 49}}

It says by itself what a batch holds, so that a restart reads the same rows again, or none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from rawlog import registry
from rawlog.core.errors import AccessError, OptionError
from rawlog.reading.lines import Follower, Line, Mark, are_marked, from_position, to_position
from rawlog.reading.lines import Position as Offset
from rawlog.reading.parts import Part, cut
from rawlog.reading.replicas import choose as choose_replicas
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
        self.frozen: Tree | None = None
        #: The lines that had something to read when the last batch was planned, each with the end of that batch.
        self.left: list[tuple[Line, Mark]] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "left": []}  # tasks do not need it

    def initialOffset(self) -> Offset:
        """Where a stream without a checkpoint begins: nothing read, or all where the latest offset is asked for."""
        marks: dict[str, Mark] = {}
        for key, line in self.follower.lines(self._read({})).items():
            if self.request.starting.of(line.files[0]) == LATEST:
                marks[key], _ = self.follower.step(line, Mark.before(line.files[0]))
        return to_position(marks)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What one batch may read, as the options say."""
        if self.request.max_bytes is not None:
            return ReadMaxBytes(self.request.max_bytes)
        if self.request.max_records is not None:
            return ReadMaxRows(self.request.max_records)
        return ReadAllAvailable() if self.request.max_files is None else ReadMaxFiles(self.request.max_files)

    def prepareForTriggerAvailableNow(self) -> None:
        """Look at the files now; what is added later is left to a later run."""
        self.frozen = self._tree()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """How far the next batch goes. DataError at damage, unless the mode passes it over; AccessError for lost data."""
        bounded = not isinstance(limit, ReadAllAvailable)
        size = self.request.max_bytes if bounded else None
        files = self.request.max_files if bounded else None
        records = self.request.max_records if bounded else None
        marks = from_position(start)
        self.left = []
        waiting: list[tuple[int, Line, Mark]] = []
        for key, line in self.follower.lines(self._read(marks)).items():
            mark = self.follower.located(line, marks[key]) if key in marks else self._first(line)
            if (left := line.size_after(mark)) > 0:
                waiting.append((left, line, mark))
        if files is not None:  # those not written to for longest go first, so that none waits for ever
            waiting.sort(key=lambda item: item[1].files[item[1].index(item[2]) or 0].modified or 0.0)
        total = sum(left for left, _, _ in waiting)
        for left, line, mark in waiting:
            if files == 0:
                self.left.append((line, mark))
                continue
            share = None if size is None else max(1, size * left // total)
            some = None if records is None else max(1, records * left // total)
            reached, touched = self.follower.step(line, mark, share, files, some)
            files = None if files is None else files - touched
            self.left.append((line, reached))
            if touched or line.key in marks:
                marks[line.key] = reached
        return to_position(marks)

    def reportLatestOffset(self) -> Offset | None:
        """For `latestOffset` in the progress of a query: what is left after the batch that was planned last, by line and in all.

        Records are those that offsets tell, as in Kafka's logs.
        """
        lines: dict[str, dict[str, int]] = {}
        for line, mark in self.left:
            if (size := line.size_after(mark)) <= 0:
                continue
            lines[line.key] = {"bytes": size}
            if line.is_numbered and not line.format.by_position and mark.offset is not None:
                with suppress(AccessError):  # deleted meanwhile
                    lines[line.key]["records"] = max(0, (self.follower.end(line).offset or 0) - mark.offset)
        total = {name: sum(one.get(name, 0) for one in lines.values()) for name in ("bytes", "records")}
        return {"lag": total, "lines": lines}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The tasks of one batch. AccessError if files of it are gone."""
        # Which replicas were chosen is in `end`.
        lines, before = self.follower.lines(splits.choose(self._tree(), self.request)), from_position(start)
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

    def _read(self, marks: Mapping[str, Mark]) -> Chosen:
        """The files that are read: of replicas the one that was read before, else the best."""
        request, tree = self.request, self.frozen or self._tree()
        read = choose_replicas(tree, request.selection, table=request.whole_table, prefer=are_marked(marks))
        return splits.choose(read, request)

    def _tree(self) -> Tree:
        try:
            return open_tree(self.request.paths)
        except AccessError:
            if not any(mark in path for path in self.request.paths for mark in "*?["):
                raise
            return Tree(self.request.paths, ())  # nothing matches the pattern yet

    def _first(self, line: Line) -> Mark:
        """Where an unread line begins: at its first file, or at the frame that holds the offset asked for."""
        start = self.request.starting.of(line.files[0])
        found = None if start is None or start < 0 else self.follower.seek(line, start)
        return Mark.before(line.files[0]) if found is None else found
