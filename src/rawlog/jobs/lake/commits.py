"""Commits: snapshots made with PyIceberg, each in one atomic step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any


def append(table: Any, files: Collection[str], summary: dict[str, str], replacing: Any = None) -> None:
    """Add data files, and remove the rows that match an expression, if one is given."""
    with _without_leftovers(table), table.transaction() as transaction:
        if replacing is not None and table.current_snapshot() is not None:
            with warnings.catch_warnings():
                # Nothing to replace is fine.
                warnings.filterwarnings("ignore", "Delete operation did not match any records")
                transaction.delete(replacing, snapshot_properties={"rawlog.replaced-by": summary.get("rawlog.run", "")})
        if files:
            transaction.add_files(list(files), snapshot_properties=summary)
        else:
            with transaction.update_snapshot(snapshot_properties=summary).fast_append():
                pass


@contextmanager
def _without_leftovers(table: Any) -> Iterator[None]:
    """Removing rows rewrites data files. If another run commits first, the files that were rewritten in vain are removed again."""
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    made: list[str] = []
    new_output = table.io.new_output

    def remembered(location: str) -> Any:
        made.append(location)
        return new_output(location)

    table.io.new_output = remembered
    try:
        yield
    except (CommitFailedException, ValidationException):
        for location in made:
            if location.endswith(".parquet"):
                with suppress(OSError):
                    table.io.delete(location)
        raise
    finally:
        table.io.new_output = new_output


def exchange(table: Any, files: Collection[str], summary: dict[str, str], is_old: Callable[[str], bool]) -> None:
    """Replace the data files whose paths are old: no row is read for it."""
    old = [task.file for task in table.scan().plan_files() if is_old(str(task.file.file_path))]
    if not old:
        append(table, files, summary)
        return
    with table.transaction() as transaction:
        if table.metadata.name_mapping() is None:
            mapping = table.schema().name_mapping.model_dump_json()
            transaction.set_properties(**{"schema.name-mapping.default": mapping})
        with transaction.update_snapshot(snapshot_properties=summary).overwrite() as snapshot:
            for file in old:
                snapshot.delete_data_file(file)
            for file in _as_data_files(table, files):
                snapshot.append_data_file(file)


def _as_data_files(table: Any, files: Iterable[str]) -> Iterable[Any]:
    from pyiceberg.io.pyarrow import parquet_files_to_data_files

    made: Iterable[Any] = parquet_files_to_data_files(table.io, table.metadata, iter(files))
    return made
