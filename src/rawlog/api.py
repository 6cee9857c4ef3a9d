"""The Python face: open, read, verify, write. Everything here is re-exported by `rawlog`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.errors import EncodeError, OptionError, unknown
from rawlog.findings import Findings
from rawlog.inspection import Chosen, verify_tree
from rawlog.rows import Rows
from rawlog.select import Selection, parse_columns, parse_time
from rawlog.storage import writing
from rawlog.tables import RECORDS
from rawlog.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Log(Tree):
    """A tree whose tables can be read: what `rawlog.open` gives."""

    def table(self, name: str = "records", **selection: Any) -> Rows:
        """A table of these files; keywords as for `rawlog.read`."""
        return Rows(self, name, make_selection(**selection))


def make_selection(**given: Any) -> Selection:
    """A Selection from keywords as a person writes them: `topic="orders-*"`, `since="-2h"`, `columns=["offset"]`."""
    fields: dict[str, Any] = {}
    own: dict[str, str] = {}
    for name, value in given.items():
        if value is None:
            continue
        if name in ("topic", "topics"):
            fields["topics"] = (value,) if isinstance(value, str) else tuple(value)
        elif name in ("partition", "partitions"):
            fields["partitions"] = (value,) if isinstance(value, int) else tuple(value)
        elif name in ("since", "until"):
            fields[name] = parse_time(value) if isinstance(value, (str, int, datetime)) else value
        elif name == "columns":
            fields["columns"] = parse_columns(value)
        elif name == "key":
            fields["key"] = value.encode() if isinstance(value, str) else bytes(value)
        elif name == "options":
            own |= registry.reading_options({key: str(one) for key, one in value.items()})
        elif name in Selection.__dataclass_fields__:
            fields[name] = value
        else:
            try:
                own |= registry.reading_options({name: str(value)})
            except OptionError:
                raise unknown("keyword", name, [*Selection.__dataclass_fields__, "topic", "partition"]) from None
    if own:
        fields["options"] = own
    return Selection(**fields)


def open(paths: Paths, *, format: str | None = None) -> Log:
    """Look at what is at `paths`: files, directories, globs or URLs. AccessError for one that is not there."""
    tree = open_tree(paths, format=format)
    return Log(tree.roots, tree.files)


def read(paths: Paths, *, table: str = "records", format: str | None = None, **selection: Any) -> pa.Table:
    """Read a table into memory. `rawlog.open(paths).table(name)` streams instead.

    Keywords: topic, partition, from_offset, to_offset, last, since, until, key, where, columns, limit, isolation, errors.
    Raises DataError at damage unless errors is "stop" or "skip".
    """
    return open(paths, format=format).table(table, **selection).to_arrow()


def verify(paths: Paths, *, only: Iterable[str] = (), skip: Iterable[str] = (), format: str | None = None) -> Findings:
    """Check everything at `paths`; damage is a finding, never an exception."""
    return verify_tree(open_tree(paths, format=format), Chosen(tuple(only), tuple(skip)).check())


def write(
    path: str | os.PathLike[str],
    records: Any,
    *,
    format: str,
    accept_loss: Iterable[str] = (),
    overwrite: bool = False,
    **options: Any,
) -> int:
    """Write rows of `records` as a file of `format`, or as a directory where the format is one of several files; the number of rows.

    `records` is anything Arrow takes: a Table, batches, a Polars frame, a DuckDB relation. Columns that are missing count as null.
    EncodeError if the format cannot carry something that is there, unless `accept_loss` names its column.
    """
    target = registry.format_named(format)
    if not target.is_written:
        able = [one.name for one in registry.formats().values() if one.is_written]
        raise OptionError(f"{target.name} cannot be written yet; these can: {', '.join(able)}")
    given = {name: str(value) for name, value in options.items()}
    counted = _Counted(target, given, frozenset(accept_loss))
    if target.write is not None:
        return target.write(counted.over(batches_of(records)), os.fspath(path), given, overwrite)
    assert target.encode is not None
    with writing(os.fspath(path), overwrite=overwrite) as file:
        for piece in target.encode(counted.over(batches_of(records)), given):
            file.write(piece)
    return counted.rows


class _Counted:
    """Batches on their way to an encoder: counted, and searched for what the format would lose."""

    def __init__(self, target: Any, options: Mapping[str, str], accepted: frozenset[str]) -> None:
        for name in accepted:
            RECORDS.column(name)
        self.target, self.options, self.accepted = target, options, accepted
        self.rows = 0

    def over(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            if self.target.losses is not None:
                lost = self.target.losses(batch, self.rows, self.options)
                refused = {name: count for name, count in lost.items() if count and name not in self.accepted}
                if refused:
                    what = ", ".join(
                        f"{name} ({count:,} of {batch.num_rows:,} rows)" for name, count in refused.items()
                    )
                    names = ",".join(sorted({*refused, *self.accepted}))
                    raise EncodeError(
                        f"{self.target.name} would lose or change: {what}; accept it with accept_loss={names}"
                    )
            self.rows += batch.num_rows
            yield batch


def batches_of(records: Any) -> Iterable[pa.RecordBatch]:
    """Batches of exactly the `records` schema from anything Arrow takes. EncodeError for columns of another kind."""
    import pyarrow as pa

    if isinstance(records, pa.RecordBatch):
        records = pa.Table.from_batches([records])
    if not isinstance(records, (pa.Table, pa.RecordBatchReader)):
        try:
            records = pa.RecordBatchReader.from_stream(records)
        except TypeError:
            raise EncodeError(
                f"rows expected (a pyarrow Table, or any Arrow stream), not {type(records).__name__}"
            ) from None
    if twice := {name for name in records.schema.names if records.schema.names.count(name) > 1}:
        raise EncodeError(f"columns that are there twice: {', '.join(sorted(twice))}")
    extra = set(records.schema.names) - set(RECORDS.names)
    if extra:
        raise EncodeError(f"no column of records: {', '.join(sorted(extra))}; these are: {', '.join(RECORDS.names)}")
    stream = records.to_batches() if isinstance(records, pa.Table) else records
    for batch in stream:
        arrays = []
        for field in RECORDS.schema:
            if field.name not in batch.schema.names:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            try:
                arrays.append(batch.column(field.name).cast(field.type))
            except pa.ArrowException as error:
                raise EncodeError(f"column {field.name}: {str(error).splitlines()[0]}") from None
        yield pa.RecordBatch.from_arrays(arrays, schema=RECORDS.schema)
