"""Recordings to ingest, made by rawlog itself, and what a lake must then hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import rawlog
from rawlog.engines import choice
from rawlog.lakes.ingest import Ingest
from rawlog.lakes.ingest_plan import IngestResult
from rawlog.lakes.lake import Lake
from rawlog.lakes.names import known_tables
from rawlog.lakes.payload import ROW, SPLIT
from rawlog.model.table import RECORDS
from rawlog.reading.tree import open_tree


def record(path: Path, count: int, *, first: int = 0, size: int = 40) -> Path:
    """Write a recording of so many messages."""
    rows = [
        {
            "key": None if number % 3 == 0 else b"key %d" % number,
            "value": (b"value %d " % number) * (size // 10),
            "timestamp": 1_700_000_000_000_000 + number * 1_000_000,
        }
        for number in range(first, first + count)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows, schema=pa.schema([RECORDS.schema.field(name) for name in rows[0]]))
    rawlog.write(path, table, format="replay", overwrite=True, accept_loss=["key"])
    return path


def damage(path: Path, number: int) -> None:
    """Give one entry of a recording a key of an impossible size."""
    entry = rawlog.read(path, table="replay.entries").to_pylist()[number]
    data = bytearray(path.read_bytes())
    at = entry["position"] + 8
    data[at : at + 8] = b"\xff" * 8
    path.write_bytes(data)


def ingest(lake: Path, *paths: Path, **given: Any) -> IngestResult:
    """Take paths into a lake with the local engine."""
    tree = open_tree([str(path) for path in paths])
    with Ingest(str(lake), **given) as job:
        return job.complete(lambda: choice.run(job, tree, threads=2))


def held(lake: Path, name: str = "rawlog.records") -> list[dict[str, Any]]:
    """The rows of a table as PyIceberg alone gives them, those of a system's table joined with `records`; in an order of their own."""
    opened = Lake(str(lake))
    table, records = opened.load(name), opened.load("rawlog.records")
    assert table is not None, f"no table {name}"
    payload = known_tables()[name].payload
    rows = table.scan().to_arrow().to_pylist()
    if payload:
        by_reference = {(row[SPLIT], row[ROW]): row for row in records.scan().to_arrow().to_pylist()}
        for row in rows:
            if row[ROW] is not None:
                row |= {own: by_reference[row[SPLIT], row[ROW]][theirs] for own, theirs in payload.items()}
    return ordered([{name: row[name] for name in row if name not in (SPLIT, ROW)} for row in rows])


def stored(lake: Path, name: str) -> list[dict[str, Any]]:
    """The rows of a table as rawlog reads the lake's Parquet files (PyIceberg reads a null list of structs as an empty one)."""
    opened, table = Lake(str(lake)), known_tables()[name]
    files = opened.data_files(name)
    if table.payload:
        batches = list(opened.payloads().read(files, table, table.names))
        return ordered([row for batch in batches for row in batch.to_pylist()])
    return ordered(
        [
            row
            for path in files
            for row in pq.read_table(path.removeprefix("file://"), columns=list(table.names)).to_pylist()
        ]
    )


def ordered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)


def expected(*paths: Path, table: str = "records") -> list[dict[str, Any]]:
    """What rawlog reads from the files themselves."""
    return ordered(rawlog.read([str(path) for path in paths], table=table, errors="skip").to_pylist())
