"""Names in a lake: its tables, its catalog, its URL, and the data files of a unit."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from rawlog import registry
from rawlog.core.errors import OptionError
from rawlog.core.tables import COMMON, Column, Table
from rawlog.io.storage import is_remote, local_path

CATALOG = "catalog.db"

JOBS = Table(
    "jobs",
    Column("run", "string"),
    Column("started", "timestamp"),
    Column("finished", "timestamp"),
    Column("version", "string", "of rawlog"),
    Column("paths", "array<string>"),
    Column("selection", "string", "as JSON; empty: everything"),
    Column("files", "bigint", "files that were new or had grown"),
    Column("size", "bigint", "bytes read"),
    Column("tables", "map<string,bigint>", "rows added, by table"),
    Column("errors", "bigint"),
    Column("warnings", "bigint"),
    Column("verdict", "string", "clean, suspect, damaged"),
    about="one row per run that added something",
)


def lake_name(table: Table | str) -> str:
    """The name of a table in a lake: those that every system has are in the namespace `rawlog`."""
    name = table if isinstance(table, str) else table.name
    return name if "." in name else f"rawlog.{name}"


def data_path(lake: str, table: Table | str, run: str) -> str:
    """The directory of the data files that a run adds to a table."""
    return f"{lake}/{lake_name(table).replace('.', '/')}/data/{run}"


def known_tables() -> dict[str, Table]:
    """Every table that a lake may hold, by its name there."""
    every: Iterable[Table] = (*COMMON, JOBS, *registry.tables().values())
    return {lake_name(table): table for table in every}


def check_url(path: str) -> None:
    """OptionError for a URL with credentials or settings in it: it would be readable in the lake's metadata."""
    if is_remote(path):
        scheme, rest = path.split("://", 1)
        if "@" in rest.split("/", 1)[0] or "?" in rest:
            bare = f"{scheme}://{rest.split('@', 1)[-1].partition('?')[0]}"
            raise OptionError(
                f"{bare}: credentials and settings in a URL would be kept in the lake; give them by the environment (AWS_…)"
            )


def is_lake(path: str) -> bool:
    """Whether a path is a lake with its own catalog, or the catalog of one that is elsewhere."""
    if is_remote(path):
        return False
    local = local_path(path)
    return os.path.isfile(os.path.join(local, CATALOG)) or is_catalog_file(local)


def is_catalog_file(name: str) -> bool:
    """Whether the name of a catalog is that of a SQLite file."""
    return not is_remote(name) and name.endswith(".db") and os.path.isfile(local_path(name))


def unit_mark(unit: str) -> str:
    """The prefix of the names of a unit's data files."""
    return hashlib.blake2b(unit.encode(errors="surrogatepass"), digest_size=8).hexdigest()


def same_files(paths: Iterable[str]) -> set[str]:
    """What identifies files, however their paths are written: `file:/a` (as Java writes it), `file:///a`, `/a`, or through a link."""
    folders: dict[str, str] = {}
    found = set()
    for path in paths:
        if is_remote(path):
            scheme, rest = path.split("://", 1)
            found.add(f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}")
            continue
        folder, name = os.path.split(local_path(path))
        if folder not in folders:
            folders[folder] = os.path.realpath(folder)
        found.add(f"{folders[folder]}/{name}")
    return found


def url(path: str) -> str:
    """A path as it is written in Iceberg's metadata."""
    # Not percent-encoded: PyIceberg does not decode.
    return path if "://" in path else f"file://{path}"
