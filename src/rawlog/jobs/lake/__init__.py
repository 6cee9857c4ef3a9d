"""The lake: Iceberg tables in a directory, and what each of them says of the sources it was made from.

PyIceberg does the tables; here is where they lie and how rows get in. A data file belongs to a run (`<table>/data/<run>/`), and counts
from the moment a snapshot names it: before that it is a leftover. What is done is in `state`, who writes in `writers`, upkeep in `upkeep`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from rawlog.core.errors import AccessError, OptionError, RawlogError
from rawlog.core.tables import Table
from rawlog.io.storage import is_remote, listing, local_path
from rawlog.jobs.lake import commits
from rawlog.jobs.lake.names import (
    CATALOG,
    JOBS,
    check_url,
    is_catalog_file,
    is_lake,
    known_tables,
    lake_name,
    unit_mark,
    url,
)
from rawlog.jobs.lake.state import Folded, History, Taken, history_of, newest_first, told
from rawlog.jobs.lake.writers import Writer, is_alive, is_run
from rawlog.jobs.partitions import Cut

__all__ = [
    "JOBS",
    "Folded",
    "History",
    "Lake",
    "Overtaken",
    "Taken",
    "history_of",
    "is_lake",
    "known_tables",
    "lake_name",
]

#: The name under which tables stand in a lake's own catalog.
CATALOG_NAME = "rawlog"
#: Raised when an older rawlog could no longer tell what is done.
VERSION = 1
#: How often a commit is tried when others commit at the same time, and the longest wait between two tries, in seconds.
ATTEMPTS, PATIENCE = 30, 1.0
#: Seconds to wait for a catalog that another process has locked.
LOCKED = 10
#: What every table of a lake is made with. A commit that meets another is tried again here, where it is asked anew what is done:
#: tried again by PyIceberg, it would add what the other one has added already.
PROPERTIES = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


def make_once(make: Callable[[], object], is_there: Callable[[], bool]) -> None:
    """Create something in a catalog that other runs may create at the same moment; whoever comes second finds it there.

    The catalog answers the second one with errors of several types, by how far it got: whether the thing exists now decides.
    """
    try:
        make()
    except Exception:
        if not is_there():
            raise


def _catalog_file(uri: str, location: str) -> Any:
    """A catalog in a SQLite file, with its tables."""
    from pyiceberg.catalog.sql import SqlCatalog

    def opened() -> Any:
        return SqlCatalog(CATALOG_NAME, uri=uri, warehouse=location, **_object_store())

    try:
        return opened()
    except Exception:  # another run created the catalog's tables at the same moment; opened again, they are there
        return opened()


class Overtaken(AccessError):
    """Another run took some of the sources meanwhile: what is left to do must be planned anew."""


class Lake:
    """A lake that is there, or is made. Use as a context manager where something is written."""

    def __init__(self, path: str, *, catalog: str | None = None, create: bool = False) -> None:
        """`catalog` is the name of one in PyIceberg's configuration, or a SQLite file (`….db`), for a lake in an object store.

        `path` may be such a file too, to read the lake. AccessError if the path is no lake, cannot be one, or may not be written;
        OptionError for an unknown catalog.
        """
        if catalog is None and is_catalog_file(path):
            catalog, path = path, os.path.dirname(os.path.abspath(local_path(path)))
        check_url(path)
        self.path = path.rstrip("/") if is_remote(path) else os.path.abspath(local_path(path))
        self.catalog_name = catalog
        if catalog is None:
            self._check_place(create)
        self.catalog = self._load(catalog, create)
        self.writer: Writer | None = None

    def _check_place(self, create: bool) -> None:
        if is_remote(self.path):
            raise OptionError(
                f"{self.path}: a lake's own catalog is a local file; name one with --catalog (a file NAME.db, or a catalog of PyIceberg's)"
            )
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise AccessError(f"{self.path}: is a file; a lake is a directory")
        if os.path.isfile(os.path.join(self.path, CATALOG)):
            return
        if not create:
            raise AccessError(f"{self.path}: no lake: it has no {CATALOG}")
        try:
            os.makedirs(self.path, exist_ok=True)
            others = [name for name in os.listdir(self.path) if not name.startswith((".", CATALOG))]
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

    def _load(self, catalog: str | None, create: bool) -> Any:
        try:
            from pyiceberg.catalog import load_catalog
            from sqlalchemy import NullPool, create_engine
        except ImportError:
            raise AccessError('PyIceberg is not installed: `pip install "rawlog[lake]"`') from None
        # It says of every column without statistics that it has none; we leave them out on purpose.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        with self.told():
            file = os.path.join(self.path, CATALOG) if catalog is None else os.path.abspath(local_path(catalog))
            if catalog is not None and not (is_catalog_file(catalog) or (create and catalog.endswith(".db"))):
                try:
                    return load_catalog(catalog)
                except Exception as error:
                    raise OptionError(f"catalog {catalog!r}: {_line(error)}") from None
            uri = f"sqlite:///{file}?timeout={LOCKED}"
            loaded = _catalog_file(uri, self.location)
            # No connection stays open between two calls: nobody closes a lake that was only looked at, and Python 3.13 complains then.
            loaded.close()
            loaded.engine = create_engine(uri, poolclass=NullPool)
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

    # Writing ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self.writer = Writer(None if is_remote(self.path) else self.path)
        except OSError as error:
            raise AccessError(f"{self.path}: {error.strerror or error}") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

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

    def ensure(self, table: Table, cuts: Sequence[Cut] = ()) -> Any:
        """The Iceberg table for one of ours, made (with partitions, if so asked) or widened as needed."""
        name = lake_name(table)
        found = self.load(name)
        with self.told():
            if found is None:
                make_once(lambda: self._create(name, table, cuts), lambda: self.catalog.table_exists(name))
                found = self.catalog.load_table(name)
            known = {field.name for field in found.schema().fields}
            missing = {key: value for key, value in PROPERTIES.items() if key not in found.properties}
            if not known.issuperset(table.names) or missing:
                with found.transaction() as transaction:
                    if missing:
                        transaction.set_properties(missing)
                    if not known.issuperset(table.names):
                        with transaction.update_schema() as update:
                            update.union_by_name(table.schema)
            return found

    def _create(self, name: str, table: Table, cuts: Sequence[Cut]) -> None:
        space = name.split(".")[0]
        make_once(
            lambda: self.catalog.create_namespace_if_not_exists(space), lambda: self.catalog.namespace_exists(space)
        )
        with self.catalog.create_table_transaction(
            name,
            table.schema,
            location=f"{self.location}/{name.replace('.', '/')}",
            properties={**PROPERTIES, "rawlog.lake": str(VERSION), "comment": table.about},
        ) as transaction:
            if cuts:
                with transaction.update_spec() as spec:
                    for cut in cuts:
                        spec.add_field(cut.column, cut.transform, cut.name)

    # What is done -----------------------------------------------------------------------------------------------------

    def history(self, name: str) -> History:
        """What a table holds already, from its own snapshots."""
        return history_of(self.load(name))

    def commit(
        self,
        table: Table,
        run: str,
        files: Sequence[str],
        sources: Mapping[str, Taken],
        *,
        before: Mapping[str, Taken | None] | None = None,
        selection: str = "",
        replacing: Callable[[Any, History], Any] | None = None,
        units: Mapping[str, Folded] | None = None,
        units_before: Mapping[str, Folded | None] | None = None,
        cuts: Sequence[Cut] = (),
    ) -> bool:
        """Add data files and what they came from to a table, in one step; whether it was not yet done.

        `before` and `units_before` are what the sources and units stood at when the run was planned: Overtaken if another run took
        them meanwhile. `replacing` gives an expression for rows that the new ones replace; the files of `units` replace those that
        the units had.
        """

        def snapshot(target: Any, history: History) -> None:
            for path, taken in (before or {}).items():
                if history.sources.get(path) != taken:
                    raise Overtaken(
                        f"{self.path}: another run took {path} into {lake_name(table)} meanwhile; run again"
                    )
            for unit, folded in (units_before or {}).items():
                if history.units.get(unit) != folded:
                    raise Overtaken(
                        f"{self.path}: another run folded {unit} into {lake_name(table)} meanwhile; run again"
                    )
            said, urls = told(run, sources, selection, units or {}), [url(file) for file in files]
            if units:
                old = {unit_mark(unit) for unit in units}
                commits.exchange(target, urls, said, lambda path: path.rpartition("/")[2].partition("-")[0] in old)
            else:
                commits.append(target, urls, said, None if replacing is None else replacing(target, history))

        return self.change(lambda: self.ensure(table, cuts), run, snapshot)

    def change(self, load: Callable[[], Any], run: str | None, snapshot: Callable[[Any, History], None]) -> bool:
        """Make a snapshot of a table, again and again as long as others make one at the same time; False if `run` is in already."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for attempt in range(ATTEMPTS):
            try:
                with self.told():
                    target = load()
                    history = history_of(target)
                    if run is not None and run in history.runs:
                        return False
                    snapshot(target, history)
                return True
            except AccessError as error:
                lost = isinstance(error.__cause__, (CommitFailedException, ValidationException))
                if not lost or attempt == ATTEMPTS - 1:
                    raise
                time.sleep(random.uniform(0, min(PATIENCE, 0.02 * 2**attempt)))
        raise AssertionError("unreachable")

    # Leftovers --------------------------------------------------------------------------------------------------------

    def sweep(self, run: str | None = None) -> int:
        """Remove data files that no snapshot names: of one run that has ended, or of all whose writers are dead; their number.

        In an object store nobody knows who is dead: there, only a run itself removes what it left.
        """
        removed = 0
        for name, folders in self._run_folders(run):
            table = self.load(name)
            named = self.named(table)
            for folder in folders:
                for entry in list(listing(folder)):
                    if url(entry.path) not in named:
                        self.remove(entry.path, table)
                        removed += 1
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        return removed

    def _run_folders(self, run: str | None) -> Iterator[tuple[str, list[str]]]:
        """The directories of data files to sweep, by the name of their table."""
        if is_remote(self.path):
            for name in self.tables() if run is not None else ():
                folder = self.data_path(name, str(run))
                with contextlib.suppress(AccessError):
                    next(listing(folder))
                    yield name, [folder]
            return
        for data in sorted(Path(self.path).glob("*/*/data")):
            name = f"{data.parent.parent.name}.{data.parent.name}"
            folders = [one for one in data.iterdir() if is_run(one.name) and run in (None, one.name)]
            done = history_of(self.load(name)).runs if folders and run is None else frozenset()
            dead = [
                one for one in folders if run is not None or not (one.name in done or is_alive(self.path, one.name))
            ]
            if dead:
                yield name, [str(one) for one in dead]

    def named(self, table: Any | None) -> set[str]:
        """The data files that some snapshot of a table names."""
        with self.told():
            return {
                str(entry.data_file.file_path)
                for snapshot in newest_first(table)
                for manifest in snapshot.manifests(table.io)  # type: ignore[union-attr]
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)  # type: ignore[union-attr]
            }

    def remove(self, path: str, table: Any | None) -> None:
        """Remove a file of a table; it does not matter if it is gone already."""
        with contextlib.suppress(OSError):
            if not is_remote(path):
                os.unlink(local_path(path))
            elif table is not None:
                table.io.delete(path)


def _object_store() -> dict[str, str]:
    """Where the environment says that S3 is. Credentials are not passed on: PyIceberg finds them as pyarrow does."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return {key: value for key, value in (("s3.endpoint", endpoint), ("s3.region", region)) if value}


def _line(error: BaseException) -> str:
    """The first line of an error that has something to say."""
    inner = getattr(error, "orig", None) or error
    text = str(getattr(inner, "strerror", None) or inner).strip() or type(inner).__name__
    line = text.splitlines()[0]
    return f"its catalog is locked by another process ({line})" if "database is locked" in line else line
