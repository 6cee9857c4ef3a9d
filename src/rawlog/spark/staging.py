"""Small tables handed to an embedded Spark as Parquet, decoded here: while the JVM starts, and once for many questions.

Reading them through the data source would start three kinds of Python workers first, for more time than the decoding takes.
Large tables, and sessions elsewhere, go through the data source.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rawlog.core.errors import RawlogError
from rawlog.reading.parts import Part
from rawlog.spark.session import scratch
from rawlog.sql.bounds import Bounds
from rawlog.sql.views import ALL, Files

#: Bytes of input up to which a table is small, and of output past which it was not.
SMALL, LARGEST = 128 << 20, 512 << 20
ROW_GROUP = 1 << 17
#: Tables, or rows of them within some bounds, that are kept.
MOST = 32


def _ends_early(bounds: Bounds, parts: Sequence[Part]) -> bool:
    """Whether a LIMIT is reached soon, however large the files are: because each row that is read is wanted."""
    others = (bounds.from_offset, bounds.to_offset, bounds.since, bounds.until, bounds.keys)
    chosen = (bounds.topics, bounds.partitions)
    placed = all(one.file.place.topic is not None and one.file.place.partition is not None for one in parts)
    return bounds.limit is not None and not any(one is not None for one in (*others, *(() if placed else chosen)))


@dataclass(frozen=True, slots=True)
class Staged:
    """A table as it was at some time: the columns that were decoded, and the file they are in, None if it is too large."""

    state: int
    columns: tuple[str, ...]
    path: Path | None


class Stage:
    """A directory of staged tables; gone when it is closed, or else with the process."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stage-", dir=scratch()))
        self._held: dict[tuple[int, Bounds], Staged] = {}
        self._lock = threading.Lock()
        self._count = 0

    def get(self, files: Files, columns: Sequence[str], bounds: Bounds = ALL) -> Staged:
        """The table with these columns, from before if its files are what they were. Only rows within bounds need to be in it.

        DataError at damage, as the files say.
        """
        with self._lock:
            state = files.directory.state
            for key in ((id(files), ALL), (id(files), bounds)):
                held = self._held.get(key)
                is_whole = held is not None and held.path is not None and set(columns) <= set(held.columns)
                if held is not None and held.state == state and (is_whole or (key[1] == bounds and held.path is None)):
                    return held
            held = self._held.get((id(files), bounds))
            if held is not None and held.state == state:
                columns = [name for name in files.table.names if name in {*columns, *held.columns}]
            if held is not None and held.path is not None:
                held.path.unlink(missing_ok=True)
            made = Staged(state, tuple(columns), self._write(files, columns, bounds))
            self._held[id(files), bounds] = made
            if len(self._held) > MOST:
                oldest = self._held.pop(next(key for key in self._held if key[1] != ALL))
                if oldest.path is not None:
                    oldest.path.unlink(missing_ok=True)
            return made

    def _write(self, files: Files, columns: Sequence[str], bounds: Bounds) -> Path | None:
        parts = files.parts(bounds)
        if not _ends_early(bounds, parts) and sum(part.size for part in parts) > SMALL:
            return None
        self._count += 1
        path = self.folder / f"{self._count}.parquet"
        try:
            if self._fill(path, files, columns, bounds):
                return path
        except OSError as error:
            if isinstance(error, RawlogError):
                raise
            # No room for it here: Spark's tasks read it by themselves.
        path.unlink(missing_ok=True)
        return None

    def _fill(self, path: Path, files: Files, columns: Sequence[str], bounds: Bounds) -> bool:
        """Write a table's columns; False if that is more than a stage is for."""
        import pyarrow as pa
        from pyarrow import parquet

        schema = files.table.subset(columns).schema
        sink: Any
        with pa.OSFile(str(path), "wb") as sink, parquet.ParquetWriter(sink, schema, compression="none") as writer:
            for batch in files.batches(columns, bounds):
                writer.write_batch(batch, row_group_size=ROW_GROUP)
                if sink.tell() > LARGEST:
                    return False
        return True

    def close(self) -> None:
        """Remove all of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
