"""The functions that move data: write, convert, restore, erase, extract."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Any, Unpack

from rawlog import registry
from rawlog.api.check import divided, settings_of
from rawlog.api.options import (
    Converting,
    Note,
    Path,
    Paths,
    Running,
    listed,
    option_texts,
    selection_of,
    whole_paths,
)
from rawlog.core.errors import AccessError
from rawlog.core.report import Report
from rawlog.engines.choice import choose
from rawlog.io.output import refuse_nested
from rawlog.jobs.target import Passage, batches_of, writable
from rawlog.jobs.target import write as write_rows
from rawlog.reading.names import check_names
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection

if TYPE_CHECKING:
    from rawlog.jobs.convert import Outlet


def write(
    path: Path,
    records: Any,
    *,
    format: str,
    accept_loss: str | Iterable[str] = (),
    overwrite: bool = False,
    **options: Any,
) -> int:
    """Write `records` as a file of `format`, or as a directory where the format has several files. Returns the number of rows.

    `records` is an iterable of dicts or of RecordBatches, or anything that Arrow takes: a Table, a Polars frame, a DuckDB relation, Rows.
    It is read in bounded memory. Missing columns are null. `options` are those of the format: topic="orders", partition=0, codec="zstd".
    EncodeError if the format cannot keep something, unless `accept_loss` names its column. AccessError if `path` exists and not
    `overwrite`. OptionError if `path` is, contains or is inside a place that the records are read from, where that is known.

    >>> import rawlog
    >>> count = rawlog.write("out/greeting.log", [{"key": b"k", "value": b"hello", "timestamp": 0}], format="replay")
    """
    if isinstance(records, Rows):
        refuse_nested(path, records.tree.sources)
    target = writable(format)
    given = {name: str(value) for name, value in options.items()}
    accepted = (accept_loss,) if isinstance(accept_loss, str) else tuple(accept_loss)
    return write_rows(
        Passage(target, given, accepted), batches_of(records), os.fspath(path), given, overwrite=overwrite
    )


def convert(
    source: Paths,
    target: Path,
    *,
    to: str,
    table: str = "records",
    format: str | None = None,
    drop_key: str | bytes | Sequence[str | bytes] = (),
    drop_keys: Path | None = None,
    option: Mapping[str, object] | None = None,
    accept_loss: str | Iterable[str] = (),
    force: bool = False,
    dry_run: bool = False,
    note: Note | None = None,
    **selection: Unpack[Converting],
) -> Report:
    """Convert the records of `source`, files of any system or a lake, to another form at `target`. Returns a Report.

    `to` is "parquet", "jsonl", "csv", "kafka", "replay", "rocketmq" or "ambry"; `option` has options of that form. Records with a key of
    `drop_key`, or of the file `drop_keys` with one key per line, are left out. What the target cannot keep raises LossError until
    `accept_loss` names its column. With `dry_run` nothing is written and the Report has what would be lost. Raises DataError at damage
    unless `errors` says otherwise, AccessError if `target` exists and not `force`, OptionError for unknown names.

    >>> import rawlog
    >>> report = rawlog.convert("samples/kafka", "out/rows.parquet", to="parquet", topic="codec-*")
    """
    from rawlog.jobs.convert import outlet

    asked, running = divided(selection)
    settings = settings_of(running)
    choose(0, **settings)  # options that contradict one another are reported first
    accepted = (accept_loss,) if isinstance(accept_loss, str) else tuple(accept_loss)
    made = outlet(
        to,
        os.fspath(target),
        table=registry.table_named(table),
        options=option_texts(option),
        accepted=[name.strip() for text in accepted for name in text.split(",") if name.strip()],
        overwrite=force,
    )
    keys = _keys(drop_key, drop_keys)
    inputs = [] if drop_keys is None else [os.fspath(drop_keys)]
    return _convert(source, made, selection_of(asked), keys, inputs, format, dry_run, note, running)


def _convert(
    source: Paths,
    made: Outlet,
    selection: Selection,
    keys: Sequence[bytes],
    inputs: Sequence[str],
    format: str | None,
    dry_run: bool,
    note: Note | None,
    running: Running,
) -> Report:
    from rawlog.jobs.convert import Convert, source_tree

    with Convert(made, selection=selection, drop=keys, dry_run=dry_run, inputs=inputs) as job:
        tree = source_tree(whole_paths(listed(source)), made.table, format)
        check_names(tree, made.table, selection, note)
        return choose(tree.size, **settings_of(running)).run(job, tree, running.get("progress"))


def _keys(one: str | bytes | Sequence[str | bytes], file: Path | None) -> list[bytes]:
    """Keys from options and from a file with one key per line. AccessError for a file that cannot be read."""
    given = [one] if isinstance(one, (str, bytes)) else list(one)
    keys = [os.fsencode(key) for key in given]
    if file is not None:
        try:
            lines = LocalPath(file).read_bytes().split(b"\n")
        except OSError as error:
            raise AccessError(f"{os.fspath(file)}: {error.strerror or error}") from None
        keys += [line.removesuffix(b"\r") for line in lines if line.removesuffix(b"\r")]
    return keys
