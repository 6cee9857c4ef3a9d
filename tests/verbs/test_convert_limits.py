"""Small Parquet files that hold far more than memory (issue 13, A3)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawlog.lakes import sources
from rawlog.model.format import File
from rawlog.model.table import RECORDS
from rawlog.reading.select import Selection


def repeated(path: Path, size: int, rows: int) -> File:
    """A file in which one value of so many bytes is that of every row."""
    values = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(size)]))
    offsets = pa.array(range(rows - 1, -1, -1))
    pq.write_table(pa.table({"value": values, "offset": offsets}), path, compression="zstd", row_group_size=rows)
    return File(str(path), path.stat().st_size)


def test_a_value_of_many_rows_is_expanded_some_at_a_time(tmp_path: Path) -> None:
    """A file of 7 KB with one value of 100 KB in 3 million rows was read 16,384 rows, or 1.6 GB, at a time."""
    file = repeated(tmp_path / "rows.parquet", 100_000, 40_000)
    assert file.size < 1 << 20
    count = 0
    for batch in sources.read_sheet(file, RECORDS, Selection()):
        assert batch.nbytes < sources.BATCH_BYTES * 2
        count += batch.num_rows
        if count > 2000:
            break
    assert batch.column("value")[0].as_py() == bytes(100_000)


@pytest.mark.parametrize("least", [0, 1 << 20])
def test_rows_are_sorted_only_where_memory_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int) -> None:
    """All rows of a small file were held to be put in order, whatever they took."""
    file = repeated(tmp_path / "rows.parquet", 1000, 200)
    monkeypatch.setattr(sources, "LEAST_SORTED", least)
    monkeypatch.setattr(sources, "MOST_RATIO", 1)
    monkeypatch.setattr(sources, "BATCH_ROWS", 10)
    found = [
        offset
        for batch in sources.read_sheet(file, RECORDS, Selection(), in_order=True)
        for offset in batch.column("offset").to_pylist()
    ]
    assert found == (sorted(found) if least else sorted(found, reverse=True))
    assert len(found) == 200
