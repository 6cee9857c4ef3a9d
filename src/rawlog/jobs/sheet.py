"""Sheet: a Parquet file of one table, written by pyarrow a row group at a time with bounded memory."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawlog.errors import AccessError
from rawlog.storage import is_remote
from rawlog.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

#: Bytes in Arrow's form that are held and become a row group.
ROW_GROUP = 64 << 20


@dataclass(frozen=True, slots=True)
class Written:
    """A data file that stands, with what it holds."""

    table: str
    path: str
    rows: int


class Sheet:
    """Takes batches of a table; the file is there once a row is, and whole once `close` returns."""

    def __init__(self, path: str, table: Table) -> None:
        self.path, self.table = path, table
        self.rows = 0
        self._held: list[pa.RecordBatch] = []
        self._size = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch; AccessError if the file cannot be written."""
        if not batch.num_rows:
            return
        self._held.append(batch)
        self._size += batch.nbytes
        self.rows += batch.num_rows
        if self._size >= ROW_GROUP:
            self._flush()

    def close(self) -> Written | None:
        """Finish the file; None if no row came."""
        if not self.rows:
            return None
        self._flush()
        assert self._writer is not None
        try:
            self._writer.close()
        except OSError as error:
            raise AccessError(f"{self.path}: {error.strerror or error}") from None
        return Written(self.table.name, self.path, self.rows)

    def discard(self) -> None:
        """Forget the file, if it was begun."""
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
            if not is_remote(self.path):
                with contextlib.suppress(OSError):
                    os.unlink(self.path)

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._held:
            return
        rows = pa.Table.from_batches(self._held, schema=self.table.schema)
        self._held, self._size = [], 0
        try:
            if self._writer is None:
                self._writer = self._open()
            self._writer.write_table(rows, row_group_size=rows.num_rows)
        except OSError as error:
            raise AccessError(f"{self.path}: {error.strerror or error}") from None

    def _open(self) -> pq.ParquetWriter:
        import pyarrow.parquet as pq

        if not is_remote(self.path):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
        columns = self.table.columns
        # Names repeat; everything else is as varied as the data, and a dictionary of it is time lost.
        repeated = [column.name for column in columns if column.type == "string" or column.name == "partition"]
        rising = {
            column.name: "DELTA_BINARY_PACKED"
            for column in columns
            if column.type in ("bigint", "timestamp") and column.name not in repeated
        }
        return pq.ParquetWriter(
            self.path,
            self.table.schema,
            compression="zstd",
            use_dictionary=repeated or False,
            column_encoding=rising,
            # A least and a greatest value of message bodies would be whole messages in the footer.
            write_statistics=[
                column.name
                for column in columns
                if "<" not in column.type and (column.type != "binary" or column.name == "key")
            ],
        )
