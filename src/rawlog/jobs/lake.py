"""The lake: Iceberg tables in a directory, and what each of them says of the sources it was made from.

PyIceberg does the tables; here is where they lie, what a commit records, and how one finds out what is done.
A data file belongs to a run (`<table>/data/<run>/`), and counts from the moment a snapshot names it: before that it is a leftover.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import logging
import os
import shutil
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from rawlog import registry
from rawlog.errors import AccessError, OptionError, RawlogError
from rawlog.storage import is_remote, local_path
from rawlog.tables import COMMON, Column, Table

CATALOG = "catalog.db"
#: The name under which tables stand in a lake's own catalog.
CATALOG_NAME = "rawlog"
#: Raised when an older rawlog could no longer tell what is done.
VERSION = 1
ATTEMPTS = 5
PACKED = 1 << 14

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
    about="one row a run that added something",
)


@dataclass(frozen=True, slots=True)
class Taken:
    """How much of a source file a table holds: every byte before `stop`, in `frames` frames.

    `size` and `modified` are the file's own when it was last looked at; `mark` is a checksum of a few of the bytes taken, by which a
    file that grew is told from another of the same name.
    """

    size: int
    modified: float | None
    stop: int
    frames: int
    mark: int


@dataclass(frozen=True, slots=True)
class History:
    """What a table's snapshots tell: the runs, and for each source how far it is in and under which selection."""

    runs: frozenset[str]
    sources: Mapping[str, Taken]
    selections: Mapping[str, str]


def lake_name(table: Table | str) -> str:
    """The name of a table in a lake: those that every system has stand in the namespace `rawlog`."""
    name = table if isinstance(table, str) else table.name
    return name if "." in name else f"rawlog.{name}"


def is_lake(path: str) -> bool:
    """Whether a path is a lake with a catalog of its own."""
    return not is_remote(path) and os.path.isfile(os.path.join(local_path(path), CATALOG))


class Lake:
    """A lake that is there, or is made. Use as a context manager where something is written: one writer at a time."""

    def __init__(self, path: str, *, catalog: str | None = None, create: bool = False) -> None:
        """AccessError if the path is no lake, cannot be one, or may not be written; OptionError for an unknown catalog."""
        self.path = path.rstrip("/") if is_remote(path) else os.path.abspath(local_path(path))
        self.catalog_name = catalog
        if catalog is None:
            self._check_place(create)
        self.catalog = self._load(catalog)
        self._lock: IO[bytes] | None = None

    def _check_place(self, create: bool) -> None:
        if is_remote(self.path):
            raise OptionError(
                f"{self.path}: a lake's own catalog is a local file; name a PyIceberg catalog with --catalog"
            )
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise AccessError(f"{self.path}: is a file; a lake is a directory")
        if os.path.isfile(os.path.join(self.path, CATALOG)):
            return
        if not create:
            raise AccessError(f"{self.path}: no lake: it has no {CATALOG}")
        try:
            os.makedirs(self.path, exist_ok=True)
            others = [name for name in os.listdir(self.path) if name != ".lock"]
            if others:
                raise AccessError(
                    f"{self.path}: holds other files ({', '.join(sorted(others)[:3])}) and is no lake; name a new or an empty directory"
                )
            if not os.access(self.path, os.W_OK | os.X_OK):
                raise AccessError(f"{self.path}: permission denied")
        except AccessError:
            raise
        except OSError as error:
            raise AccessError(f"{self.path}: {error.strerror or error}") from None

    def _load(self, catalog: str | None) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
            from pyiceberg.catalog.sql import SqlCatalog
        except ImportError:
            raise AccessError('PyIceberg is not installed: `pip install "rawlog[lake]"`') from None
        # It says of every column without statistics that it has none; we leave them out on purpose.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        with self.told():
            if catalog is not None:
                try:
                    return load_catalog(catalog)
                except Exception as error:
                    raise OptionError(f"catalog {catalog!r}: {_line(error)}") from None
            uri = f"sqlite:///{os.path.join(self.path, CATALOG)}"
            loaded = SqlCatalog(CATALOG_NAME, uri=uri, warehouse=self.location)
            loaded.list_namespaces()
            return loaded

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Turn what PyIceberg, its catalog and the file system raise into an AccessError that names the lake."""
        try:
            yield
        except RawlogError:
            raise
        except Exception as error:
            raise AccessError(f"{self.path}: {_line(error)}") from error

    @property
    def location(self) -> str:
        """The lake as a URL."""
        return self.path if is_remote(self.path) else f"file://{self.path}"

    # One writer at a time ---------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if not is_remote(self.path):
            try:
                os.makedirs(self.path, exist_ok=True)
                self._lock = open(os.path.join(self.path, ".lock"), "ab")
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._unlock()
                raise AccessError(f"{self.path}: another run is writing to this lake; wait for it to end") from None
            except OSError as error:
                self._unlock()
                raise AccessError(f"{self.path}: {error.strerror or error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # Tables -----------------------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """The names of all tables of the lake, those of namespace `rawlog` first."""
        with self.told():
            found = [
                ".".join(name) for space in self.catalog.list_namespaces() for name in self.catalog.list_tables(space)
            ]
        return sorted(found, key=lambda name: (not name.startswith("rawlog."), name))

    def load(self, name: str) -> Any | None:
        """The Iceberg table of that name, or None; AccessError if a newer rawlog made it."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.told():
            try:
                table = self.catalog.load_table(name)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        made_by = int(table.properties.get("rawlog.lake", VERSION))
        if made_by > VERSION:
            raise AccessError(
                f"{self.path}: table {name} is of lake version {made_by}, this rawlog knows {VERSION}: use a newer rawlog"
            )
        return table

    def data_files(self, name: str) -> list[str]:
        """The Parquet files that hold a table's rows now, as URLs."""
        table = self.load(name)
        if table is None:
            return []
        with self.told():
            tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise AccessError(f"{self.path}: table {name} has delete files; compact it with the engine that wrote them")
        return [str(task.file.file_path) for task in tasks]

    def data_path(self, name: str, run: str) -> str:
        """Where a run writes the data files of a table."""
        return f"{self.path}/{name.replace('.', '/')}/data/{run}"

    def ensure(self, table: Table) -> Any:
        """The Iceberg table for one of ours, made or widened as needed."""
        name = lake_name(table)
        found = self.load(name)
        with self.told():
            if found is None:
                self.catalog.create_namespace_if_not_exists(name.split(".")[0])
                return self.catalog.create_table(
                    name,
                    table.schema,
                    location=f"{self.location}/{name.replace('.', '/')}",
                    properties={"rawlog.lake": str(VERSION), "comment": table.about},
                )
            known = {field.name for field in found.schema().fields}
            if not known.issuperset(table.names):
                with found.update_schema() as update:
                    update.union_by_name(table.schema)
            return found

    # What is done -----------------------------------------------------------------------------------------------------

    def history(self, name: str) -> History:
        """What a table holds already, from its own snapshots."""
        runs: set[str] = set()
        sources: dict[str, Taken] = {}
        selections: dict[str, str] = {}
        table = self.load(name)
        for snapshot in (
            sorted(table.snapshots(), key=lambda one: one.sequence_number or 0) if table is not None else ()
        ):
            recorded = snapshot.summary.additional_properties if snapshot.summary is not None else {}
            if "rawlog.run" in recorded:
                runs.add(recorded["rawlog.run"])
            for path, *values in _unpacked(recorded.get("rawlog.sources", "[]")):
                sources[path] = Taken(*values)
                selections[path] = recorded.get("rawlog.selection", "")
        return History(frozenset(runs), sources, selections)

    def commit(
        self,
        table: Table,
        run: str,
        files: Sequence[str],
        sources: Mapping[str, Taken],
        *,
        before: Mapping[str, Taken | None] | None = None,
        selection: str = "",
        replacing: Any = None,
    ) -> bool:
        """Add data files and what they came from to a table, in one step; whether it was not yet done.

        `before` is what the sources stood at when the run was planned: AccessError if another run took them meanwhile.
        `replacing` is an expression for rows that the new ones replace.
        """
        from pyiceberg.exceptions import CommitFailedException

        name = lake_name(table)
        properties = {"rawlog.run": run, "rawlog.sources": _packed(sources), "rawlog.selection": selection}
        for attempt in range(ATTEMPTS):
            target = self.ensure(table)
            history = self.history(name)
            if run in history.runs:
                return False
            for path, taken in (before or {}).items():
                if history.sources.get(path) != taken:
                    raise AccessError(f"{self.path}: another run took {path} into {name} meanwhile; run again")
            try:
                with self.told():
                    self._append(target, [_url(file) for file in files], properties, replacing)
                return True
            except AccessError as error:
                if not isinstance(error.__cause__, CommitFailedException) or attempt == ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable")

    @staticmethod
    def _append(target: Any, files: list[str], properties: dict[str, str], replacing: Any) -> None:
        with target.transaction() as transaction:
            if replacing is not None and target.current_snapshot() is not None:
                with warnings.catch_warnings():
                    # Nothing to replace is as good.
                    warnings.filterwarnings("ignore", "Delete operation did not match any records")
                    transaction.delete(replacing, snapshot_properties={"rawlog.replaced-by": properties["rawlog.run"]})
            if files:
                transaction.add_files(files, snapshot_properties=properties)
            else:
                with transaction.update_snapshot(snapshot_properties=properties).fast_append():
                    pass

    # Leftovers --------------------------------------------------------------------------------------------------------

    def sweep(self, run: str | None = None) -> int:
        """Remove data files that no snapshot names: of one run, or of any run that died. Only under the lock; their number."""
        if is_remote(self.path):
            return 0
        removed = 0
        for data in sorted(Path(self.path).glob("*/*/data")):
            name = f"{data.parent.parent.name}.{data.parent.name}"
            folders = [one for one in data.iterdir() if one.is_dir() and (run is None or one.name == run)]
            known = self.history(name).runs if folders else frozenset()
            for folder in folders:
                if run is None and folder.name in known:
                    continue
                removed += self._sweep_folder(name, folder)
        return removed

    def _sweep_folder(self, name: str, folder: Path) -> int:
        table = self.load(name)
        named: set[str] = set()
        if table is not None:
            with self.told():
                for snapshot in table.snapshots():
                    named |= {
                        local_path(str(entry.data_file.file_path))
                        for manifest in snapshot.manifests(table.io)
                        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
                    }
        removed = 0
        for file in folder.iterdir():
            if str(file) not in named:
                file.unlink(missing_ok=True)
                removed += 1
        if not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
        return removed


def known_tables() -> dict[str, Table]:
    """Every table that a lake may hold, by its name there."""
    every: Iterable[Table] = (*COMMON, JOBS, *registry.tables().values())
    return {lake_name(table): table for table in every}


def _url(path: str) -> str:
    # As it is, not percent-encoded: PyIceberg does not decode.
    return path if "://" in path else f"file://{path}"


def _packed(sources: Mapping[str, Taken]) -> str:
    text = json.dumps([[path, *asdict(taken).values()] for path, taken in sources.items()], separators=(",", ":"))
    return text if len(text) < PACKED else "z:" + base64.b64encode(zlib.compress(text.encode())).decode()


def _unpacked(text: str) -> list[list[Any]]:
    if text.startswith("z:"):
        text = zlib.decompress(base64.b64decode(text[2:])).decode()
    loaded: list[list[Any]] = json.loads(text)
    return loaded


def _line(error: BaseException) -> str:
    """The first line of an error that has something to say."""
    inner = getattr(error, "orig", None) or error
    text = str(getattr(inner, "strerror", None) or inner).strip() or type(inner).__name__
    return text.splitlines()[0]
