"""Commits: snapshots made with PyIceberg, each in one atomic step."""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rawlog.lakes.names import order_id, url
from rawlog.lakes.parquet import WrittenFile
from rawlog.model.errors import AccessError

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
