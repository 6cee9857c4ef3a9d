"""Sheets and the lake's tables: every type of column comes back as it went in."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rawlog.lakes import parquet
from rawlog.lakes.lake import Lake
from rawlog.lakes.parquet import Sheet
from rawlog.lakes.state import SourceProgress
from rawlog.model.errors import AccessError
from rawlog.model.table import RECORDS, Column, Table

WIDE = Table(
    "test.wide",
    *RECORDS.columns,
    Column("flag", "boolean"),
    Column("ratio", "double"),
    Column("properties", "map<string,string>"),
    Column("names", "array<string>"),
    Column("inner", "struct<a:int,b:binary>"),
)
ROWS = [
    {
        "key": b"",
        "value": None,
        "topic": "t",
        "partition": 1,
        "offset": 2**62,
        "timestamp": 1_700_000_000_123_456,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"\xff"}, {"key": "a", "value": None}],
        "flag": True,
        "ratio": 0.5,
        "properties": [("k", "v"), ("n", None)],
        "names": ["x", None],
        "inner": {"a": 1, "b": None},
    },
    # PyIceberg reads a null list of structs as an empty one, so `headers` is never null; the Parquet file could hold it.
    {**dict.fromkeys(WIDE.names), "headers": []},
    {
        **dict.fromkeys(WIDE.names),
        "key": None,
        "value": b"\x00",
        "headers": [],
        "properties": [],
        "names": [],
        "offset": -1,
    },
]


def wide() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(ROWS, schema=WIDE.schema)


def test_every_type_comes_back_from_the_lake(tmp_path: Path) -> None:
    written = Sheet(str(tmp_path / "lake/test/wide/data/r/x.parquet"), WIDE)
    written.add(wide())
    file = written.close()
    assert file is not None
    lake = Lake(str(tmp_path / "empty"), create=True)
    taken = {"path": SourceProgress(3, 1.5, 2, 1, 7)}
    assert lake.commit(WIDE, "r", [file], taken, selection="{}")
    assert not lake.commit(WIDE, "r", [file], taken), "the same run again changes nothing"
    table = lake.load("test.wide")
    assert table is not None
    back = table.scan().to_arrow()
    assert back.to_pylist() == pa.Table.from_batches([wide()]).to_pylist()
    assert back.cast(WIDE.schema).schema == WIDE.schema
    history = lake.history("test.wide")
    assert (history.runs, history.sources, history.selections) == ({"r"}, taken, {"path": "{}"})


def test_a_commit_without_rows_records_its_sources(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"), create=True)
    lake.commit(WIDE, "r", [], {"path": SourceProgress(3, None, 3, 0, 0)})
    assert lake.history("test.wide").sources["path"].stop == 3
    assert lake.data_files("test.wide") == []


def test_many_sources_are_packed(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"), create=True)
    taken = {f"/some/long/path/{number}": SourceProgress(number, 0.1, number, number, number) for number in range(2000)}
    lake.commit(WIDE, "r", [], taken)
    assert lake.history("test.wide").sources == taken


def test_another_run_in_between_is_noticed(tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"), create=True)
    lake.commit(WIDE, "r", [], {"path": SourceProgress(3, None, 3, 0, 0)})
    with pytest.raises(AccessError, match="meanwhile"):
        lake.commit(WIDE, "s", [], {"path": SourceProgress(5, None, 5, 0, 0)}, before={"path": None})


def test_row_groups_are_bounded_and_bodies_have_no_statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP", 1000)
    written = Sheet(str(tmp_path / "x.parquet"), WIDE)
    for _ in range(50):
        written.add(wide())
    assert written.close() is not None
    about = pq.ParquetFile(tmp_path / "x.parquet").metadata
    assert about.num_rows == 150
    assert about.num_row_groups > 3
    columns = [about.row_group(0).column(index) for index in range(about.num_columns)]
    by_name = {column.path_in_schema: column for column in columns}
    assert by_name["offset"].statistics.max == 2**62
    assert by_name["value"].statistics is None
    assert {column.compression for column in columns} == {"ZSTD"}


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    written = Sheet(str(tmp_path / "file" / "x.parquet"), WIDE)
    written.add(wide())
    with pytest.raises(AccessError, match="File exists|ot a directory"):
        written.close()


def test_dictionaries_are_written_as_the_texts_they_stand_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that is the same in all rows comes as a dictionary; batches, and row groups, with and without one are mixed."""
    monkeypatch.setattr(parquet, "ROW_GROUP", 1)
    table = Table("test.texts", Column("path", "string"), Column("number", "bigint"))
    plain = [[("a", 1), ("a", 2)], [("b", 3)], [("c", 4), (None, 5)], [("a", 6)]]
    named = [[dict(zip(table.names, row, strict=True)) for row in rows] for rows in plain]
    batches = [pa.RecordBatch.from_pylist(rows, table.schema) for rows in named]
    coded = [
        pa.RecordBatch.from_arrays([one.column(0).dictionary_encode(), one.column(1)], table.names) for one in batches
    ]
    for name, chosen in {"first": [*coded[:2], *batches[2:]], "last": [*batches[:2], *coded[2:]], "all": coded}.items():
        for held in (1, 4):
            made = Sheet(str(tmp_path / f"{name}-{held}.parquet"), table)
            for number in range(0, 4, held):
                made._held = chosen[number : number + held]
                made.rows = 6
                made.flush()
            assert made.close() is not None
            found = pq.read_table(made.path)
            assert found.schema.equals(table.schema)
            assert [tuple(row.values()) for row in found.to_pylist()] == [row for rows in plain for row in rows]
            footer = pq.ParquetFile(made.path).metadata
            assert {footer.row_group(at).column(0).statistics.min for at in range(footer.num_row_groups)} <= {
                "a",
                "b",
                "c",
            }
