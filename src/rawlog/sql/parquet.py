"""Parquet files of a lake as an Arrow dataset, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rawlog.io.storage import file_system

if TYPE_CHECKING:
    from rawlog.core.tables import Table


def dataset(files: Sequence[str], table: Table) -> Any:
    """The rows of Parquet files of one file system, with exactly a table's columns. AccessError if it cannot be reached."""
    from pyarrow import dataset as ds

    systems = [file_system(file) for file in files]
    return ds.dataset(
        [path for _, path in systems],
        schema=table.schema,
        format="parquet",
        filesystem=systems[0][0] if systems else None,
    )
