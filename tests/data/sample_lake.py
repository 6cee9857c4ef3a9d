"""Unpacks a stored lake of an earlier rawlog somewhere else: paths in Iceberg's metadata are absolute, so they are replaced."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import fastavro
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rawlog.lakes.names import unit_mark
from tests.data.golden import golden_path, unpack

#: Where the archive was made.
MADE_IN = "/tmp/scale/sample"


def sample(name: str, folder: Path, kind: str = "lake") -> Path:
    """The stored lake of that name below a folder, in `lake`; its sources are in `logs`."""
    unpack(golden_path(kind, f"{name}.tar.gz"), folder)
    texts = {MADE_IN: str(folder), **_marks(folder)}
    for path in sorted(folder.joinpath("lake").rglob("*")):
        if path.name.endswith(".metadata.json"):
            path.write_text(_replaced(path.read_text(), texts))
        elif path.suffix == ".avro":
            _relocate(path, texts)
        elif path.suffix == ".parquet":
            _relocate_rows(path, folder)
            path.rename(_replaced(str(path), texts))
    with sqlite3.connect(folder / "lake" / "catalog.db") as catalog:
        for column in ("metadata_location", "previous_metadata_location"):
            catalog.execute(f"UPDATE iceberg_tables SET {column} = replace({column}, ?, ?)", (MADE_IN, str(folder)))
    catalog.close()
    return folder / "lake"


def _marks(folder: Path) -> dict[str, str]:
    """How names of data files begin that hold a state: by the directory that it is the state of, as it was and as it is now."""
    directories = [path.relative_to(folder) for path in folder.joinpath("logs").rglob("*") if path.is_dir()]
    return {unit_mark(f"{MADE_IN}/{one}"): unit_mark(str(folder / one)) for one in directories}


def _relocate(path: Path, texts: dict[str, str]) -> None:
    """Replace paths in a manifest or a list of manifests."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema, rows = reader.writer_schema, list(reader)
        metadata = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    with path.open("wb") as file:
        fastavro.writer(file, schema, [_replaced(row, texts) for row in rows], metadata=metadata)


def _relocate_rows(path: Path, folder: Path) -> None:
    """Replace the paths of sources in a data file."""
    table = pq.read_table(path)
    if "path" not in table.column_names:
        return
    at = table.column_names.index("path")
    paths = pc.replace_substring(table.column(at), MADE_IN, str(folder))
    pq.write_table(table.set_column(at, table.schema.field(at), paths), path, compression="zstd")


def _is_bound(value: Any) -> bool:
    """Whether it is the least or greatest path in a data file, cut short: without it, the file may have any."""
    found = value.get("value") if isinstance(value, dict) else None
    return isinstance(found, bytes) and found[:12] == MADE_IN[:12].encode()


def _replaced(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(one, texts) for key, one in value.items()}
    if isinstance(value, list):
        return [_replaced(one, texts) for one in value if not _is_bound(one)]
    if isinstance(value, str):
        for old, new in texts.items():
            value = value.replace(old, new)
    return value
