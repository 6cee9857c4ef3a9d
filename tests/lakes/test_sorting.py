"""The order of rows in a lake's data files, and partitions by hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.lakes import parquet as sheets
from rawlog.lakes import upkeep
from rawlog.lakes.lake import Lake
from rawlog.lakes.parquet import Sheet, in_order, merge_sorted
from rawlog.model.errors import OptionError
from rawlog.model.table import Column, Table
from tests.data.changing_logs import write

ROWS = Table("rows", Column("name", "string"), Column("number", "bigint"), Column("value", "binary"))
rows = st.lists(
    st.tuples(st.none() | st.sampled_from(["", "a", "b", "ä", "\U0001f600"]), st.none() | st.integers(-3, 3)),
    max_size=12,
)


def table(values: list[tuple[str | None, int | None]]) -> pa.Table:
    made = [{"name": name, "number": number, "value": b"%d" % at} for at, (name, number) in enumerate(values)]
    return pa.Table.from_pylist(made, schema=ROWS.schema)


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    """Nulls first; text by its bytes."""
    name, number = row["name"], row["number"]
    return (name is not None, (name or "").encode(), number is not None, number or 0)


@given(values=rows)
def test_sorting_is_stable_and_puts_nulls_first(values: list[tuple[str | None, int | None]]) -> None:
    given_ = table(values)
    assert in_order(given_, ["name", "number"]).to_pylist() == sorted(given_.to_pylist(), key=key)


@given(parts=st.lists(rows, max_size=4), size=st.integers(1, 5))
def test_sorted_streams_are_merged(parts: list[list[tuple[str | None, int | None]]], size: int) -> None:
    streams = [in_order(table(part), ["name", "number"]) for part in parts]
    made = list(merge_sorted([iter(one.to_batches(size)) for one in streams], ["name", "number"]))
    found = [key(row) for one in made for row in one.to_pylist()]
    assert found == sorted(key(row) for one in streams for row in one.to_pylist())


def test_every_file_is_sorted_however_many_rows_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sheets, "ROW_GROUP", 100)
    sheet = Sheet(str(tmp_path / "x.parquet"), ROWS, order=["number"])
    for start in (0, 100, 50, 200):
        sheet.add(table([("a", number) for number in reversed(range(start, start + 20))]).to_batches()[0])
    last = sheet.close()
    assert last is not None
    files = [*sheet.earlier, last]
    assert [one.rows for one in files] == [40, 40]
    assert sum(one.order == ("number",) for one in files) == 2
    for one in files:
        numbers = pq.read_table(one.path).column("number").to_pylist()
        assert numbers == sorted(numbers)
        assert len(numbers) == one.rows


# Lakes ----------------------------------------------------------------------------------------------------------------


def messages(count: int, day: int = 0) -> list[dict[str, Any]]:
    times = [(1_700_000_000 + day * 86_400 + (count - number) % 7) * 1_000_000 for number in range(count)]
    return [
        {"key": b"%d" % (number % 11), "value": b"%d" % number, "timestamp": times[number]} for number in range(count)
    ]


def logs(path: Path, days: int) -> None:
    """A topic that grows each day, of more than ten partitions: their names are not in the order of their numbers."""
    for partition in range(11):
        schema = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC"))])
        every = pa.Table.from_pylist([row for day in range(days) for row in messages(30, day)], schema=schema)
        rawlog.write(path, every, format="kafka", topic="orders", partition=partition, overwrite=True)


def files_of(lake: Path, name: str) -> list[tuple[Any, pa.Table]]:
    """The data files of a table as Iceberg lists them, each with its rows."""
    loaded = Lake(str(lake)).load(name)
    assert loaded is not None
    tasks = [task.file for task in loaded.scan().plan_files()]
    return [(one, pq.read_table(one.file_path.removeprefix("file://"))) for one in tasks]


def ask(lake: Path, sql: str) -> list[dict[str, Any]]:
    with rawlog.query(sql, lake, engine="duckdb") as answer:
        return list(answer)


def order_of(lake: Path, name: str) -> list[str]:
    loaded = Lake(str(lake)).load(name)
    assert loaded is not None
    return [loaded.schema().find_column_name(field.source_id) for field in loaded.sort_order().fields]


def is_sorted(rows: pa.Table, columns: list[str]) -> bool:
    keys = [tuple(row[name] for name in columns) for row in rows.select(columns).to_pylist()]
    return keys == sorted(keys)


def test_a_lake_is_sorted_and_compacted_in_its_order(tmp_path: Path) -> None:
    lake, source = tmp_path / "lake", tmp_path / "logs"
    for day in range(1, 6):
        write(source, [b"%d" % number for number in range(40)], topic=f"day-{day}", segment=400)
        rawlog.ingest(source, lake, engine="local")
    assert order_of(lake, "rawlog.records") == ["topic", "partition", "offset"]
    assert order_of(lake, "kafka.batches") == ["topic", "partition", "base_offset"]
    before = ask(lake, "SELECT * FROM kafka.records ORDER BY topic, offset")
    rawlog.lake(lake, compact=True, engine="local")
    for name, columns in (("rawlog.records", ["topic", "partition", "offset"]), ("rawlog.files", ["path"])):
        ((file, rows),) = files_of(lake, name)
        assert file.sort_order_id == 1
        assert is_sorted(rows, columns)
    assert ask(lake, "SELECT * FROM kafka.records ORDER BY topic, offset") == before


def test_compaction_sorts_by_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what was large enough before, with little memory, and with more files than are merged at a time."""
    monkeypatch.setattr(sheets, "ROW_GROUP", 2000)
    monkeypatch.setattr(upkeep, "STREAMS", 2)
    lake, source = tmp_path / "lake", tmp_path / "logs"
    logs(source, 2)
    rawlog.ingest(source, lake, engine="local")
    before = sorted(map(repr, ask(lake, "SELECT * FROM kafka.records")))
    with pytest.raises(OptionError, match="exists already, sorted by topic, partition, offset"):
        rawlog.ingest(source, lake, engine="local", sort_by="timestamp")
    done = rawlog.lake(lake, compact=True, sort_by="timestamp,key", dry_run=True, engine="local")
    assert done.parts["rawlog.records"].counts["joined_files"]
    assert order_of(lake, "rawlog.records") == ["topic", "partition", "offset"]
    rawlog.lake(lake, compact=True, sort_by="timestamp,key", engine="local")
    assert order_of(lake, "rawlog.records") == ["timestamp", "key"]
    assert order_of(lake, "kafka.records") == ["timestamp"], "the key is in records"
    assert order_of(lake, "rawlog.files") == ["path"], "it has neither"
    number = {2}
    ((file, rows),) = files_of(lake, "rawlog.records")
    assert {file.sort_order_id} == number
    assert is_sorted(rows, ["timestamp", "key"])
    assert rows.num_rows == 11 * 60
    assert sorted(map(repr, ask(lake, "SELECT * FROM kafka.records"))) == before
    again = rawlog.lake(lake, compact=True, sort_by="timestamp,key", engine="local")
    assert not again.total("joined_files"), "a table in its order is left as it is"
    rawlog.lake(lake, compact=True, sort_by="default", engine="local")
    assert order_of(lake, "rawlog.records") == ["topic", "partition", "offset"]


def test_a_new_lake_is_sorted_and_partitioned_as_asked(tmp_path: Path) -> None:
    from pyiceberg.expressions import EqualTo
    from pyiceberg.transforms import BucketTransform
    from pyiceberg.types import BinaryType

    lake, source = tmp_path / "lake", tmp_path / "logs"
    logs(source, 1)
    rawlog.ingest(source, lake, engine="local", partition_by="bucket(4, key),day", sort_by=["timestamp"])
    bucket: Any = BucketTransform(4)
    hashed = bucket.transform(BinaryType())
    found = files_of(lake, "rawlog.records")
    assert len(found) > 2
    for file, rows in found:
        assert {hashed(one) for one in rows.column("key").to_pylist()} == {file.partition[0]}
        assert is_sorted(rows, ["timestamp"])
    loaded = Lake(str(lake)).load("rawlog.records")
    assert loaded is not None
    some: Any = EqualTo("key", b"3")  # type: ignore[misc]
    assert len(list(loaded.scan(row_filter=some).plan_files())) < len(found), "readers pass over other buckets"
    rows = ask(lake, "SELECT count(*) AS count FROM records WHERE key = CAST('3' AS BLOB)")
    assert rows == [{"count": 11 * 3}]
    logs(source, 2)
    rawlog.ingest(source, lake, engine="local")
    assert ask(lake, "SELECT count(*) AS n FROM records") == [{"n": 11 * 60}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partition_by": "truncate(4, key)"}, "no other transform"),
        ({"partition_by": "bucket(0, key)"}, "from 1 to"),
        ({"partition_by": "bucket(16)"}, "no other transform"),
        ({"partition_by": "bucket(16, keyy)"}, "did you mean"),
        ({"partition_by": "bucket(16, headers)"}, "no bucket of"),
        ({"sort_by": "offsets"}, "did you mean"),
        ({"sort_by": "headers"}, "cannot be sorted"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        rawlog.ingest("samples/replay", tmp_path / "lake", engine="local", **options)  # type: ignore[arg-type]
    assert not (tmp_path / "lake").exists()
