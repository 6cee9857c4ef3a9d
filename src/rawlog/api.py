"""The Python face: open, read, verify, write. Everything here is re-exported by `rawlog`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.core.errors import OptionError, unknown
from rawlog.core.findings import Findings
from rawlog.core.format import MAX_DECOMPRESSED, MAX_HEADERS
from rawlog.io.output import refuse_nested
from rawlog.jobs.target import Passage, batches_of, writable
from rawlog.jobs.target import write as write_rows
from rawlog.reading.inspection import Chosen, inspect_replicas, verify_tree
from rawlog.reading.names import check_names
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection, parse_columns, parse_time
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    import pyarrow as pa

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


class Log(Tree):
    """A tree whose tables can be read: what `rawlog.open` gives."""

    def table(self, name: str = "records", **selection: Any) -> Rows:
        """A table of these files; keywords as for `rawlog.read`. OptionError for a topic or partition that is not there."""
        asked = make_selection(**selection)
        rows = Rows(self, name, asked)
        check_names(self, rows.table, asked)
        return rows


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

    Keywords: topic, partition, from_offset, to_offset, last, since, until, key, id, where, columns, limit, isolation, errors,
    max_decompressed, max_headers.
    Raises DataError at damage unless errors is "stop" or "skip".
    """
    return open(paths, format=format).table(table, **selection).to_arrow()


def verify(
    paths: Paths,
    *,
    only: Iterable[str] = (),
    skip: Iterable[str] = (),
    format: str | None = None,
    against: Paths | None = None,
    max_decompressed: int = MAX_DECOMPRESSED,
    max_headers: int = MAX_HEADERS,
) -> Findings:
    """Check everything at `paths`; damage is a finding, never an exception. `against` is a place with replicas to compare with.

    `max_decompressed` and `max_headers` are limits as for `rawlog.read`.
    """
    from rawlog.compare.replicas import check_chosen

    chosen = check_chosen(Chosen(tuple(only), tuple(skip), max_decompressed, max_headers))
    tree = open_tree(paths, format=format)
    result = verify_tree(tree, chosen)
    if against is not None:
        from rawlog.compare.replicas import replicas_of, rules_for

        for pair in replicas_of(tree, open_tree(against, format=format)):
            result.items += inspect_replicas(pair, rules_for(pair), chosen).items
    return result


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
    EncodeError if the format cannot carry something that is there, unless `accept_loss` names its column. OptionError if `path` is,
    contains or lies inside a place that the records are read from, where that is known.
    """
    if isinstance(records, Rows):
        refuse_nested(path, records.tree.sources)
    target = writable(format)
    given = {name: str(value) for name, value in options.items()}
    return write_rows(
        Passage(target, given, accept_loss), batches_of(records), os.fspath(path), given, overwrite=overwrite
    )
