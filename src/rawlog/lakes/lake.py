"""The lake: Iceberg tables in a directory. Each table records the sources that its rows came from.

PyIceberg manages the tables; this package decides where they are and how rows get in. A data file belongs to a run
(`<table>/data/<run>/`) and counts from the moment a snapshot lists it: until then it is a leftover. `state`: what was ingested;
`payload`: how message bytes are stored once; `writers`: who writes now; `upkeep`: maintenance.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Self

from rawlog.io.output import make_directory
from rawlog.io.storage import absent, file_system, is_owned, is_remote, local_path, open_regular, owned_listing
from rawlog.lakes.names import (
    CATALOG,
    Cut,
    check_url,
    data_path,
    is_catalog_file,
    known_tables,
    lake_name,
    order_id,
    parse_order,
    same_files,
    set_order,
    unit_mark,
    url,
)
from rawlog.lakes.parquet import WrittenFile
from rawlog.lakes.payload import SPLIT, DataFile, Payloads, is_narrow, schema_of, stored, with_decoded
from rawlog.lakes.rewrites import Removal, old_files
from rawlog.lakes.state import (
    History,
    RowRange,
    SourceProgress,
    UnitSources,
    history_of,
    is_replacing,
    newest_first,
    summary_of,
)
from rawlog.model.errors import AccessError, OptionError, RawlogError, missing
from rawlog.model.table import RECORDS, Table

# ----------------------------------------------------------------------------------------------------------------------
# Commits: snapshots made with PyIceberg, each in one atomic step.

#: Footers that are read at the same time.
READERS = 32


def append(table: Any, files: Collection[WrittenFile], summary: dict[str, str]) -> None:
    """Add data files."""
    with table.transaction() as transaction:
        if files:
            _map_names(table, transaction)
        update = transaction.update_snapshot(snapshot_properties=summary)
        is_merged = table.properties.get("commit.manifest-merge.enabled") == "true" and files
        with update.merge_append() if is_merged else update.fast_append() as snapshot:
            for file in _as_data_files(table, files):
                snapshot.append_data_file(file)


def exchange(
    table: Any, files: Collection[WrittenFile], summary: dict[str, str], is_old: Callable[[str], bool]
) -> None:
    """Replace the data files whose paths are old: no row is read for it."""
    old = [task.file for task in table.scan().plan_files() if is_old(str(task.file.file_path))]
    if not old:
        append(table, files, summary)
        return
    with table.transaction() as transaction:
        _map_names(table, transaction)
        with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            for file in _as_data_files(table, files):
                snapshot.append_data_file(file)


def _map_names(table: Any, transaction: Any) -> None:
    """Say that the columns of data files are known by their names: those that rawlog writes have no ids."""
    if table.metadata.name_mapping() is None:
        mapping = table.schema().name_mapping.model_dump_json()
        transaction.set_properties(**{"schema.name-mapping.default": mapping})


def _as_data_files(table: Any, files: Collection[WrittenFile]) -> list[Any]:
    """Parquet files as Iceberg lists them. Their footers are read side by side: it is mostly waiting."""
    if len(files) < 2:
        return [_as_data_file(table, file) for file in files]
    with ThreadPoolExecutor(min(READERS, len(files)), thread_name_prefix="rawlog-footers") as pool:
        return list(pool.map(lambda file: _as_data_file(table, file), files))


def _as_data_file(table: Any, file: WrittenFile) -> Any:
    """A Parquet file as Iceberg lists it: with its statistics, its partition and its order. AccessError if it is partitioned otherwise
    than the table is now.

    PyIceberg's own way finds the partition in the statistics, which do not tell a bucket, and gives no order.
    """
    import pyarrow.parquet as pq
    from pyiceberg.io import pyarrow as arrow
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    partition = dict(file.partition)
    if list(partition) != [field.name for field in table.spec().fields]:
        raise AccessError(f"table {'.'.join(table.name())} is partitioned otherwise than before; run again")
    path = url(file.path)
    source = table.io.new_input(path)
    with source.open() as stream:
        metadata = pq.read_metadata(stream)
    schema = table.schema()
    statistics = arrow.data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=arrow.compute_statistics_plan(schema, table.metadata.properties),
        parquet_column_mapping=arrow.parquet_path_to_id_mapping(schema),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(*partition.values()),
        file_size_in_bytes=len(source),
        sort_order_id=order_id(table, file.order),
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )


# ----------------------------------------------------------------------------------------------------------------------
# Writers: who is writing to a lake now. There may be several; each holds a lock on a file of its own.
# A lock ends with its process, however that ends. So leftovers of a dead writer can be distinguished from work of a living one.


FOLDER = ".writers"
_RUN = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}(\.\d+)?")


class Writer:
    """A process, or a part of one, that writes to the lake in a directory. The names of its runs begin with its name."""

    def __init__(self, folder: str | None) -> None:
        """`folder` is the lake's; None for one in an object store, which has no locks. OSError if it cannot be written."""
        self.name = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + uuid.uuid4().hex[:8]
        self.runs = 0
        self._path = None if folder is None else os.path.join(folder, FOLDER, self.name)
        self._file: IO[bytes] | None = None
        while self._path is not None and self._file is None:
            make_directory(os.path.dirname(self._path))
            self._file = _lock(self._path)

    def new_run(self) -> str:
        """The name of one more run."""
        self.runs += 1
        return f"{self.name}.{self.runs}"

    def close(self) -> None:
        """Stop being a writer."""
        if self._file is not None and self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._file.close()
            self._file = None


def is_run(name: str) -> bool:
    """Whether a directory belongs to a run, by its name: those of other programs are left alone."""
    return _RUN.fullmatch(name) is not None


def is_alive(folder: str, run: str) -> bool:
    """Whether the writer of a run is alive."""
    path = os.path.join(folder, FOLDER, run.partition(".")[0])
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):
                os.unlink(path)
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


def living(folder: str) -> Iterator[str]:
    """The names of the writers that are alive."""
    with contextlib.suppress(OSError):
        yield from (name for name in sorted(os.listdir(os.path.join(folder, FOLDER))) if is_alive(folder, name))


def _lock(path: str) -> IO[bytes] | None:
    """A new file with the lock on it; None if another process took it for a dead writer's and removed it before it was locked."""
    file = open(path, "ab")  # noqa: SIM115  (held as long as the writer is alive)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            return file
    except BlockingIOError:
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None


#: The name of a lake's own catalog.
CATALOG_NAME = "rawlog"
#: The newest version of a table. 2: its rows refer, or are referred to, by `lake_split` and `lake_row`; an older rawlog would lose that.
#: 3: `records`, which records for each source which rows came from it.
VERSION = 3
#: Properties of a table by which PyIceberg imports Python code.
CODE = ("py-io-impl", "write.py-location-provider.impl")
#: How often a commit is tried when others commit at the same time, and the longest wait between two tries, in seconds.
ATTEMPTS, PATIENCE = 30, 1.0
#: Seconds to wait for a catalog that another process has locked.
LOCKED = 10
#: The properties of every table. A commit that conflicts with another is retried here, after looking again at what is ingested:
#: if PyIceberg retried it, it would add what the other one has just added.
PROPERTIES = {
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    # Whole paths as bounds of a data file: the first 16 characters of most are the same.
    "write.metadata.metrics.column.path": "full",
}


def make_once(make: Callable[[], object], is_there: Callable[[], bool]) -> None:
    """Create something in a catalog that other runs may create at the same moment.

    The run that comes second gets errors of several types, depending on how far it got: it is fine if the thing exists now.
    """
    try:
        make()
    except Exception:
        if not is_there():
            raise


def _catalog_file(uri: str, location: str) -> Any:
    """A catalog in a SQLite file, with its tables."""
    from pyiceberg.catalog.sql import SqlCatalog

    class OwnCatalog(SqlCatalog):
        """Tables are read and written as the environment says. PyIceberg imports and calls the class that a property of a table names, and
        a lake may be anybody's.
        """

        def _load_file_io(self, properties: Any = None, location: str | None = None) -> Any:
            return super()._load_file_io({}, location)

    def opened() -> Any:
        return OwnCatalog(CATALOG_NAME, uri=uri, warehouse=location, **_object_store())

    try:
        return opened()
    except Exception:  # another run created the catalog's tables at the same moment; opened again, they are there
        return opened()


class OvertakenError(AccessError):
    """Another run ingested some of the sources meanwhile: the rest must be planned again."""


class Lake:
    """A lake that exists, or is created. Use as a context manager to write."""

    def __init__(self, path: str | None, *, catalog: str | None = None, create: bool = False) -> None:
        """`catalog` is the name of one in PyIceberg's configuration, or a SQLite file (`….db`), for a lake in an object store.

        `path` may be such a file too, to read the lake; None is enough to read one in a catalog. AccessError if there is no lake, or it
        cannot be created or written; OptionError for an unknown catalog.
        """
        if path is None:
            assert catalog is not None, "a lake has a path or a catalog"
            self.path = f"catalog {catalog}"
        else:
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
            if not os.path.lexists(self.path):
                raise absent(self.path)
            raise AccessError(f"{self.path}: not a lake: it has no {CATALOG}").advise(
                f"rawlog ls {self.path} if it has files, rawlog ingest PATH --to {self.path} to make a lake"
            )
        try:
            make_directory(self.path)
            others = [name for name in os.listdir(self.path) if not name.startswith((".", CATALOG))]
            if others:
                raise AccessError(
                    f"{self.path}: holds other files ({', '.join(sorted(others)[:3])}) and is not a lake; name a new or an empty directory"
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
            raise missing("PyIceberg", "lake") from None
        # It warns about every column without statistics; some have none on purpose.
        logging.getLogger("pyiceberg.io.pyarrow").setLevel(logging.ERROR)
        with self.access():
            file = os.path.join(self.path, CATALOG) if catalog is None else os.path.abspath(local_path(catalog))
            if catalog is not None and not (is_catalog_file(catalog) or (create and catalog.endswith(".db"))):
                try:
                    return load_catalog(catalog)
                except Exception as error:
                    raise OptionError(f"catalog {catalog!r}: {_line(error)}") from None
            uri = f"sqlite:///{file}?timeout={LOCKED}"
            loaded = _catalog_file(uri, self.location)
            # No connection stays open between two calls: nobody closes a lake that was only read, and Python 3.13 would warn.
            loaded.close()
            loaded.engine = create_engine(uri, poolclass=NullPool)
            loaded.list_namespaces()
            return loaded

    @contextlib.contextmanager
    def access(self) -> Iterator[None]:
        """Turn errors of PyIceberg, its catalog and the file system into an AccessError that names the lake."""
        try:
            yield
        except RawlogError:
            raise
        except FileNotFoundError as error:
            if "local file" in str(error) and f"'{self.path}/" not in str(error):
                raise self._refusal(_line(error)) from error
            raise AccessError(f"{self.path}: {_line(error)}") from error
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
        with self.access():
            names = [
                ".".join(name) for space in self.catalog.list_namespaces() for name in self.catalog.list_tables(space)
            ]
        return sorted(names, key=lambda name: (not name.startswith("rawlog."), name))

    def load(self, name: str) -> Any | None:
        """The Iceberg table of that name, or None; AccessError if it needs a newer rawlog, or is to be changed and is another lake's."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with self.access():
            try:
                table = self.catalog.load_table(name)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
        if self.writer is not None:
            self._check_owned(name, table)
        if named := [key for key in CODE if key in table.properties]:
            raise AccessError(f"{self.path}: table {name} names Python code to run ({named[0]}): remove that property")
        version = int(table.properties.get("rawlog.lake", VERSION))
        if version > VERSION:
            raise AccessError(
                f"{self.path}: table {name} has lake version {version}, this rawlog knows {VERSION}: use a newer rawlog"
            )
        return table

    def _check_owned(self, name: str, table: Any) -> None:
        """AccessError if the metadata of a table are those of another place: a lake that was copied or moved. Whoever changed it would
        delete files of the original, which they name, or all files here, which they do not name.
        """
        folder = self.folder_of(name)
        (owned,) = same_files([f"{folder}/x"])
        log = [entry.metadata_file for entry in table.metadata.metadata_log]
        for path in (f"{table.location().rstrip('/')}/x", table.metadata_location, *log):
            (place,) = same_files([path])
            if not place.startswith(owned.removesuffix("x")):
                raise self._refusal(f"the files of table {name} are at {path.removesuffix('/x')}")

    def _refusal(self, why: str) -> AccessError:
        return AccessError(
            f"{self.path}: has metadata of another place: {why}. Nothing was changed. Name the lake by the path that it was "
            "made with. If it was moved, make a link there; for a copy, see `Moved and copied lakes` in docs/lake.md"
        )

    def folder_of(self, name: str) -> str:
        """The directory of a table."""
        return f"{self.path}/{name.replace('.', '/')}"

    def table_of(self, name: str) -> Table | None:
        """One of rawlog's tables as the lake has it: `records` with the columns of decoded values. None if there is no such table."""
        table = known_tables().get(name)
        lake_table = self.load(name) if table is not None and table.name == RECORDS.name else None
        if table is None or lake_table is None:
            return table
        return with_decoded(table, schema_of(lake_table))

    def data_files(self, name: str, row_filter: Any = None) -> list[str]:
        """The Parquet files that hold a table's rows now, as URLs; with an expression of PyIceberg, those that may have such rows."""
        return [str(file.file_path) for file in self._files(self.load(name), name, row_filter)]

    def payloads(self) -> Payloads:
        """Where the payloads are that rows of systems' tables refer to. Ask for the data files of such a table first."""
        name = lake_name(RECORDS)
        table = self.load(name)
        if table is None or (number := _column_id(table, SPLIT)) is None:
            return Payloads(())
        return Payloads(
            tuple(_with_bounds(file, number) for file in self._files(table, name)),
            tuple(_with_bounds(file, number) for file in self._removed_files(table)),
        )

    def _removed_files(self, table: Any) -> Iterator[Any]:
        """The data files that were exchanged because their sources had been rewritten, as far as snapshots still list them."""
        from pyiceberg.manifest import ManifestEntryStatus

        with self.access():
            listed = {snapshot.snapshot_id for snapshot in table.snapshots()}
            for snapshot in filter(is_replacing, table.snapshots()):
                if snapshot.parent_snapshot_id not in listed:
                    continue
                for manifest in snapshot.manifests(table.io):
                    if manifest.added_snapshot_id == snapshot.snapshot_id:
                        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
                        yield from (e.data_file for e in entries if e.status == ManifestEntryStatus.DELETED)

    def has_references(self, name: str) -> bool:
        """Whether rows of a table may refer to payloads in `rawlog.records`: not if only older versions wrote it."""
        table = self.load(name)
        return table is not None and _column_id(table, SPLIT) is not None

    def _files(self, table: Any | None, name: str, row_filter: Any = None) -> list[Any]:
        chosen = {} if row_filter is None else {"row_filter": row_filter}
        with self.access():
            tasks = [] if table is None else list(table.scan(**chosen).plan_files())
        if any(task.delete_files for task in tasks):
            raise AccessError(f"{self.path}: table {name} has delete files; compact it with the engine that wrote them")
        return [task.file for task in tasks]

    def ensure(self, table: Table, cuts: Sequence[Cut] = (), order: Sequence[str] = ()) -> Any:
        """The Iceberg table for one of rawlog's, created (partitioned by `cuts`, sorted by `order`) or extended as needed."""
        name, table = lake_name(table), stored(table)
        lake_table = self.load(name)
        with self.access():
            if lake_table is None:
                make_once(lambda: self._create(name, table, cuts, order), lambda: self.catalog.table_exists(name))
                lake_table = self.catalog.load_table(name)
            missing = {key: value for key, value in _properties(table).items() if key not in lake_table.properties}
            if int(lake_table.properties.get("rawlog.lake", 0)) < _version(table):
                missing["rawlog.lake"] = str(_version(table))
            grows = is_narrow(schema_of(lake_table), table)
            if grows or missing:
                with lake_table.transaction() as transaction:
                    if missing:
                        transaction.set_properties(missing)
                    if grows:
                        with transaction.update_schema() as update:
                            update.union_by_name(table.schema)
            return lake_table

    def _create(self, name: str, table: Table, cuts: Sequence[Cut], order: Sequence[str]) -> None:
        space = name.split(".")[0]
        make_once(
            lambda: self.catalog.create_namespace_if_not_exists(space), lambda: self.catalog.namespace_exists(space)
        )
        with self.catalog.create_table_transaction(
            name,
            table.schema,
            location=f"{self.location}/{name.replace('.', '/')}",
            properties={**_properties(table), "rawlog.lake": str(_version(table)), "comment": table.about},
        ) as transaction:
            if cuts:
                with transaction.update_spec() as spec:
                    for cut in cuts:
                        spec.add_field(cut.column, cut.transform, cut.name)
            if order:
                set_order(transaction, order)

    def sort(self, name: str, order: Sequence[str]) -> None:
        """Sort a table from now on: new data files are, and those that are compacted."""

        def change(table: Any, _: History) -> None:
            if parse_order(table) != tuple(order):
                with table.transaction() as transaction:
                    set_order(transaction, order)

        self.change(lambda: self.load(name), None, change)

    # What is done -----------------------------------------------------------------------------------------------------

    def history(self, name: str) -> History:
        """What a table has already ingested, from its own snapshots."""
        return history_of(self.load(name))

    def commit(
        self,
        table: Table,
        run: str,
        files: Sequence[WrittenFile],
        sources: Mapping[str, SourceProgress],
        *,
        before: Mapping[str, SourceProgress | None] | None = None,
        selection: str = "",
        units: Mapping[str, UnitSources] | None = None,
        units_before: Mapping[str, UnitSources | None] | None = None,
        cuts: Sequence[Cut] = (),
        order: Sequence[str] = (),
        removed: Collection[str] = (),
        old: Collection[str] = (),
        rows: Mapping[str, Collection[RowRange]] | None = None,
        stores: Mapping[str, tuple[str, ...]] | None = None,
        replaced: Removal | None = None,
        seen_files: Collection[str] = (),
    ) -> bool:
        """Add data files and the state of their sources to a table, in one step; False if this run did it before.

        `before` and `units_before` are the state of the sources and units when the run was planned: OvertakenError if it has changed since.
        The files of `units` replace those that the units had.
        `removed` are sources whose earlier rows are not in the table any more: the files replace the data files `old`. `rows` are the
        rows of `records` that came from each source, `stores` the facts that identify those that were inspected. `replaced` are rows that
        the new ones replace, and `seen_files` the data files that were searched for them: OvertakenError if others may have some by now.
        """

        def snapshot(target: Any, history: History) -> None:
            for path, taken in (before or {}).items():
                if history.sources.get(path) != taken:
                    raise OvertakenError(
                        f"{self.path}: another run ingested {path} into {lake_name(table)} meanwhile; run again"
                    )
            for unit, folded in (units_before or {}).items():
                if history.units.get(unit) != folded:
                    raise OvertakenError(
                        f"{self.path}: another run folded {unit} into {lake_name(table)} meanwhile; run again"
                    )
            if replaced is not None and old_files(self, table, target, replaced, without=seen_files):
                raise OvertakenError(f"{self.path}: another run changed {lake_name(table)} meanwhile; run again")
            summary = summary_of(run, sources, selection, units or {}, removed=removed, rows=rows, stores=stores)
            if old:
                self._check_present(target, old)
                exchange(target, files, summary, frozenset(old).__contains__)
            elif units:
                marks = {unit_mark(unit) for unit in units}
                exchange(target, files, summary, lambda path: path.rpartition("/")[2].partition("-")[0] in marks)
            else:
                append(target, files, summary)

        return self.change(lambda: self.ensure(table, cuts, order), run, snapshot)

    def _check_present(self, table: Any, files: Collection[str]) -> None:
        """OvertakenError if some data files are not in a table any more: another run has joined or exchanged them."""
        if not set(files) <= {str(task.file.file_path) for task in table.scan().plan_files()}:
            raise OvertakenError(f"{self.path}: another run changed {'.'.join(table.name())} meanwhile; run again")

    def change(self, load: Callable[[], Any], run: str | None, snapshot: Callable[[Any, History], None]) -> bool:
        """Make a snapshot of a table; retried while others make one at the same time. False if `run` has made one already."""
        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for attempt in range(ATTEMPTS):
            try:
                with self.access():
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

    def sweep(self, run: str | None = None, tables: Collection[str] = ()) -> int:
        """Remove data files that no snapshot lists, of one ended run or of all dead writers. Returns their number.

        In an object store it is not known which writers are dead: there, only a run itself removes its leftovers, in the tables that exist
        and in those of `tables` that it did not come to make. A table that has
        metadata and is not in the catalog is another catalog's, or another run is creating it: files of other runs stay there.
        """
        removed = 0
        for name, folders in self._run_folders(run, tables):
            table = self.load(name)
            is_unknown = table is None and not is_remote(self.path)
            if is_unknown and run is None and os.path.lexists(f"{self.folder_of(name)}/metadata"):
                continue
            named = same_files(self.named(table))
            for folder in folders:
                try:
                    entries = list(owned_listing(self.path, folder))
                except AccessError:
                    if is_remote(folder) or os.path.isdir(folder):
                        raise
                    continue  # another run that begins has swept it meanwhile
                for entry in entries:
                    if not same_files([entry.path]) <= named:
                        self.remove(entry.path, table)
                        removed += 1
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        return removed

    def _run_folders(self, run: str | None, tables: Collection[str]) -> Iterator[tuple[str, list[str]]]:
        """The directories of data files to sweep, by the name of their table."""
        if is_remote(self.path):
            for name in sorted({*self.tables(), *map(lake_name, tables)}) if run is not None else ():
                run_folder = data_path(self.path, name, str(run))
                with contextlib.suppress(AccessError):
                    next(owned_listing(self.path, run_folder))
                    yield name, [run_folder]
            return
        for data in sorted(Path(self.path).glob("*/*/data")):
            name = f"{data.parent.parent.name}.{data.parent.name}"
            folders = [folder for folder in data.iterdir() if is_run(folder.name) and run in (None, folder.name)]
            done = history_of(self.load(name)).runs if folders and run is None else frozenset()
            dead = [
                folder
                for folder in folders
                if run is not None or not (folder.name in done or is_alive(self.path, folder.name))
            ]
            if dead:
                yield name, [str(folder) for folder in dead]

    def named(self, table: Any | None) -> set[str]:
        """The data files that any snapshot of a table lists."""
        with self.access():
            return {
                str(entry.data_file.file_path)
                for snapshot in newest_first(table)
                for manifest in snapshot.manifests(table.io)  # type: ignore[union-attr]
                for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)  # type: ignore[union-attr]
            }

    def remove(self, path: str, table: Any | None) -> None:
        """Remove a file of a table, if it still exists."""
        remove_file(self.path, path, None if table is None else table.io)


def remove_file(lake: str, path: str, io: Any) -> None:
    """Remove a file of a lake, if it still exists. One that a symbolic link leads to, out of the lake, stays. `io` is PyIceberg's way to
    files that are not local; Arrow's is taken without it.
    """
    with contextlib.suppress(OSError):
        if is_remote(path) and io is not None:
            io.delete(path)
        elif is_remote(path):
            system, inner = file_system(path)
            system.delete_file(inner)
        elif is_owned(lake, path):
            os.unlink(local_path(path))


def _with_bounds(file: Any, column: int) -> DataFile:
    """A data file of `records` with the bounds of its column `lake_split`."""
    least, greatest = ((bounds or {}).get(column) for bounds in (file.lower_bounds, file.upper_bounds))
    return DataFile(str(file.file_path), least and least.decode(), greatest and greatest.decode())


def _column_id(table: Any, name: str) -> int | None:
    return next((field.field_id for field in table.schema().fields if field.name == name), None)


def _version(table: Table) -> int:
    """The lake version of a table as it is stored."""
    return VERSION if table.name == RECORDS.name else 2 if SPLIT in table.names else 1


def _properties(table: Table) -> dict[str, str]:
    """The properties of a table."""
    return {key: value for key, value in PROPERTIES.items() if not key.endswith(".path") or "path" in table.names}


def _object_store() -> dict[str, str]:
    """The address of S3 from the environment. Credentials are not passed on: PyIceberg finds them as pyarrow does."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return {key: value for key, value in (("s3.endpoint", endpoint), ("s3.region", region)) if value}


def _line(error: BaseException) -> str:
    """The first line of an error's text."""
    inner = getattr(error, "orig", None) or error
    text = str(getattr(inner, "strerror", None) or inner).strip() or type(inner).__name__
    line = text.splitlines()[0]
    return f"its catalog is locked by another process ({line})" if "database is locked" in line else line
