"""The functions that move data: write, convert, restore, erase, extract."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Any, Literal, Unpack

from rawlog import registry
from rawlog.api.check import divided, rewrite, settings_of
from rawlog.api.options import (
    Converting,
    Note,
    Path,
    Paths,
    Running,
    Time,
    listed,
    option_texts,
    selection_of,
    whole_paths,
)
from rawlog.core.errors import AccessError, OptionError, UnknownFormatError
from rawlog.core.report import Report
from rawlog.core.times import parse_time
from rawlog.engines.choice import choose
from rawlog.io.output import refuse_nested
from rawlog.jobs.target import Passage, batches_of, writable
from rawlog.jobs.target import write as write_rows
from rawlog.reading.names import check_names
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

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


def restore(
    source: Paths,
    target: Path,
    *,
    topic: str | Sequence[str] = (),
    rename: Mapping[str, str] | None = None,
    until: Time | None = None,
    partitions_only: bool = False,
    no_offsets: bool = False,
    keep_retention: bool = False,
    node_id: int = 1,
    cluster_id: str | None = None,
    metadata_version: str | int | None = None,
    errors: Literal["raise", "stop", "skip"] = "raise",
    force: bool = False,
    **running: Unpack[Running],
) -> Report:
    """Write a data directory that a single-node Kafka broker starts on, with the topics of `source` in it. Returns a Report.

    `source` is a broker's directory, a lake, Parquet files, or anything that can be read as records. `until` restores the state at a time;
    `rename` gives topics other names. DataError at damage unless `errors` says otherwise; AccessError if `target` exists and not `force`;
    OptionError for an unknown topic, or if `target` is in the source.

    >>> import rawlog
    >>> report = rawlog.restore("samples/kafka", "out/restored", topic="transactions")
    """
    from rawlog.jobs.lake import is_lake
    from rawlog.jobs.restore import Asked, Restore

    if any(not old or not new for old, new in (rename or {}).items()):
        raise OptionError("rename: OLD=NEW expected")
    asked = Asked(
        topics=(topic,) if isinstance(topic, str) else tuple(topic),
        rename=dict(rename or {}),
        until=None if until is None else parse_time(until),
        errors=errors,
        partitions_only=partitions_only,
        keep_retention=keep_retention,
        offsets=not no_offsets,
        node=node_id,
        cluster_id=cluster_id,
        level=metadata_version,
        overwrite=force,
    )
    sources = listed(source)
    tree = Tree(tuple(sources), ()) if any(map(is_lake, sources)) else open_tree(sources)
    engine = choose(tree.size, **settings_of(running))
    with Restore(os.fspath(target), asked) as job:
        return engine.run(job, tree, running.get("progress"))


def erase(
    source: Path,
    target: Path,
    *,
    blob: str | Sequence[str] = (),
    key: str | bytes | Sequence[str | bytes] = (),
    keys: Path | None = None,
    force: bool = False,
    note: Note | None = None,
    **running: Unpack[Running],
) -> Report:
    """Write a copy of `source` to `target` without chosen records or blobs. Returns a Report.

    Kafka logs: the records with a `key`, or one of the file `keys` with one key per line, are left out; all others keep their offsets,
    times and transactions. Ambry stores: the content of each `blob` is overwritten with zeros, as Ambry's own hard delete does.
    OptionError if nothing or both are named, or a blob does not exist; AccessError if `target` exists and not `force`.

    >>> import rawlog
    >>> report = rawlog.erase("samples/kafka/transactions-0", "out/erased", key="k-1")
    """
    blobs = (blob,) if isinstance(blob, str) else tuple(blob)
    found = _keys(key, keys)
    if bool(blobs) == bool(found or keys is not None):
        raise OptionError("name what to erase: --blob for an Ambry store, or --key for Kafka logs")
    if blobs:
        return rewrite("erase", source, target, {"blobs": ",".join(blobs)}, force, note, running)
    from rawlog.jobs.convert import outlet

    made = outlet(_erasable(open_tree(source)), os.fspath(target), overwrite=force)
    inputs = [] if keys is None else [os.fspath(keys)]
    report = _convert(source, made, Selection(), found, inputs, None, False, note, running)
    report.verb = "erase"
    return report


def _erasable(tree: Tree) -> str:
    """The one system among the files whose logs can be copied without some records. UnknownFormatError if there is none."""
    able = {name: format.family for name, format in registry.formats().items() if format.sift is not None}
    found = {able[file.format] for file in tree if file.format in able}
    if len(found) > 1:
        raise OptionError(f"files of {' and '.join(sorted(found))} are here; name the directory of one of them")
    if not found:
        names = ", ".join(registry.family(name).title for name in sorted(set(able.values())))
        where = ", ".join(tree.roots)
        raise UnknownFormatError(f"{where}: no records here can be erased by key; these systems can be: {names}")
    return found.pop()


def extract(
    paths: Paths,
    *,
    to: Path,
    blob: str | Sequence[str] = (),
    names: Literal["id", "filename"] = "id",
    all: bool = False,
    now: Time | None = None,
) -> Report:
    """Write the blobs of Ambry stores as files into the directory `to`, with a manifest. Returns a Report.

    Only some with `blob`; deleted and expired ones too with `all`, if their content still exists. Large blobs are joined from their chunks.
    AccessError if `to` exists and is not empty; OptionError for a blob that does not exist.

    >>> import rawlog
    >>> report = rawlog.extract("samples/ambry", to="out/blobs", names="filename")
    """
    from rawlog.jobs.verb import run_verb

    moment = now.isoformat() if isinstance(now, datetime) else None if now is None else str(now)
    given = {"to": to, "blob": blob or None, "names": names, "all": all or None, "now": moment}
    found = run_verb("extract", paths, {name: value for name, value in given.items() if value is not None})
    assert isinstance(found, Report)
    return found
