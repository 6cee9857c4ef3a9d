"""The functions that move data: write, convert, restore, erase, extract."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Any, Literal, Unpack

from rawlog import registry
from rawlog.engines.choice import choose
from rawlog.io.output import refuse_nested
from rawlog.lakes.loss_check import Passage, batches_of, writable
from rawlog.lakes.loss_check import write as write_rows
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.report import Report
from rawlog.model.table import RECORDS
from rawlog.model.text import parse_time
from rawlog.reading.names import check_names
from rawlog.reading.parts import choose as choose_replicas
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.verbs.check import divided, open_sources, settings_of
from rawlog.verbs.options import (
    Converting,
    Erasing,
    Note,
    Path,
    Paths,
    Running,
    Time,
    bound,
    listed,
    option_texts,
    selection_of,
    transforms_of,
    whole_paths,
)

if TYPE_CHECKING:
    from rawlog.lakes.targets import Outlet


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
    from rawlog.lakes.targets import FormatOutlet, outlet

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
    chosen = selection_of(asked, as_bytes=isinstance(made, FormatOutlet))
    return _convert(source, made, chosen, keys, inputs, format, dry_run, note, running)


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
    from rawlog.verbs.convert import Convert
    from rawlog.verbs.convert_sources import lake_schemas, sheet_names, source_tree

    selection.check(made.source)
    chosen: list[str] = []
    tree = source_tree(whole_paths(listed(source)), made.source, format, note=chosen.append)
    selection = bound(selection, tree, made.source, lambda: lake_schemas(tree))
    with Convert(made, selection=selection, drop=keys, dry_run=dry_run, inputs=inputs) as job:
        tree = choose_replicas(tree, selection, chosen.append, table=made.source)
        more = sheet_names(tree, made.source) if job.reads_tables(tree) else ()
        check_names(tree, made.source, selection, note, more=more)
        report = choose(tree.size, **settings_of(running)).run(job, tree, running.get("progress"))
        report.notes = [*chosen, *report.notes]
        return report


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
    replicas: Literal["best", "refuse"] = "best",
    force: bool = False,
    mask: str | Sequence[str] | Mapping[str, str] | None = None,
    mask_secret_file: Path | None = None,
    mask_keep_sizes: bool = False,
    mask_other: Literal["refuse", "keep", "drop", "hash"] | None = None,
    decode: str | Sequence[str] | Mapping[str, str] | None = None,
    schemas: Path | None = None,
    **running: Unpack[Running],
) -> Report:
    """Write a data directory that a single-node Kafka broker starts on, with the topics of `source` in it. Returns a Report.

    `source` is a broker's directory, a lake, Parquet files, or anything that can be read as records. `until` restores the state at a time;
    `rename` gives topics other names. Of replicas of one partition the best is restored, and the Report notes it; `replicas="refuse"`
    raises OptionError instead. With `mask` (see Masking; `decode` and `schemas` as in Decoding) records are written again with masked
    fields; committed offsets, aborted transactions and settings of topics are then left out. DataError at damage unless `errors` says
    otherwise; AccessError if `target` exists and not `force`; OptionError for an unknown topic, or if `target` is in the source.

    >>> import rawlog
    >>> report = rawlog.restore("samples/kafka", "out/restored", topic="transactions")
    """
    from rawlog.lakes.names import is_lake
    from rawlog.model.recovery import Asked
    from rawlog.verbs.convert_sources import source_tree
    from rawlog.verbs.restore import Restore

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
    given = {
        "mask": mask,
        "mask_secret_file": mask_secret_file,
        "mask_keep_sizes": mask_keep_sizes,
        "mask_other": mask_other,
        "decode": decode,
        "schemas": schemas,
    }
    if decode and not mask:
        raise OptionError("--decode: --mask is missing, which looks at decoded fields")
    masked = Selection(transforms=transforms_of(given, as_bytes=True)) if any(given.values()) else None
    if masked is not None and until is not None:
        raise OptionError("--until and --mask exclude one another: restore first, then mask what was restored")
    sources = listed(source)
    chosen: list[str] = []
    if any(map(is_lake, sources)):
        tree = Tree(tuple(whole_paths(sources)), ())
    else:
        tree = source_tree(whole_paths(sources), RECORDS, note=chosen.append)
    tree = choose_replicas(tree, Selection(topics=asked.topics, replicas=replicas), chosen.append)
    masked = None if masked is None else bound(masked, tree)
    engine = choose(tree.size, **settings_of(running))
    with Restore(os.fspath(target), asked, masked) as job:
        report = engine.run(job, tree, running.get("progress"))
    report.notes = [*chosen, *report.notes]
    return report


def erase(
    source: Paths,
    target: Path,
    *,
    key: str | bytes | Sequence[str | bytes] = (),
    keys: Path | None = None,
    id: str | Sequence[str] = (),
    blob: str | Sequence[str] = (),
    find: str | bytes | None = None,
    certificate: Path | None = None,
    force: bool = False,
    dry_run: bool = False,
    note: Note | None = None,
    **asked: Unpack[Erasing],
) -> Report:
    """Write a copy of `source` to `target` without chosen records or blobs, and a certificate of it. Returns a Report.

    Several sources are parts of one whole, such as a log directory and its remote storage; OptionError if they have a partition
    twice.
    Erased are the records with one of the `key`s, or of the file `keys` with one key per line, or one of the `id`s (messages of RocketMQ,
    `blob`s of Ambry), among those that `find` (a text anywhere in key, value or headers), `where`, `topic` and others choose. All others
    keep their offsets, times and transactions; indexes and queues are rebuilt. Of a blob the content is overwritten with zeros, and it is
    deleted. The certificate is written to `certificate`, by default next to the target; `rawlog.verify` checks it. With `dry_run`
    nothing is written. OptionError if nothing is named, or an id does not exist; AccessError if `target` exists and not `force`.

    >>> import rawlog
    >>> report = rawlog.erase("samples/kafka/transactions-0", "out/erased", key="k-1")
    """
    from rawlog.reading.erasure import Erasure
    from rawlog.verbs.erase import Erasing as Job

    matching, running = divided(asked)
    chosen = selection_of(matching, as_bytes=True).replace(
        text=None if find is None else os.fsencode(find) if isinstance(find, str) else find, replicas="all"
    )
    decoded = {"decode": _joined(asked.get("decode")), "schemas": asked.get("schemas")}
    found = frozenset(_keys(key, keys))
    ids = tuple(one for given in (id, blob) for one in ((given,) if isinstance(given, str) else given))
    is_limited = not chosen.takes_every_row or chosen.topics or chosen.topic_pattern or chosen.partitions
    if (keys is not None and not found) or not (found or ids or is_limited):
        raise OptionError("name what to erase: --key, --id, --find, --where or --topic")
    if find is not None and not find:
        raise OptionError("--find: a text expected")
    if chosen.transforms and chosen.where is None:
        raise OptionError("--decode: --where is missing, which looks at decoded fields")
    if found and ids:
        raise OptionError("name what to erase by --key or by --id, not by both")
    left_out: list[str] = []
    engine, [tree] = open_sources([source], running, note=left_out.append)
    chosen = bound(chosen, tree, RECORDS)
    chosen.check(RECORDS)
    check_names(tree, RECORDS, chosen, note)
    papers = None if certificate is None else os.fspath(certificate)
    inputs = [] if keys is None else [os.fspath(keys)]
    with Job(
        os.fspath(target),
        Erasure(chosen, found, ids, {name: str(value) for name, value in decoded.items() if value}),
        certificate=papers,
        inputs=inputs,
        overwrite=force,
        dry_run=dry_run,
        at_once=engine.at_once,
    ) as job:
        report = engine.run(job, tree, running.get("progress"))
    report.notes[:0] = left_out
    return report


def _joined(decode: str | Sequence[str] | Mapping[str, str] | None) -> str:
    """How rows are decoded, as one text."""
    if isinstance(decode, Mapping):
        return ",".join(f"{side}={how}" for side, how in decode.items())
    return decode if isinstance(decode, str) else ",".join(decode or ())


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
    from rawlog.verbs.family import run_verb

    moment = now.isoformat() if isinstance(now, datetime) else None if now is None else str(now)
    given = {"to": to, "blob": blob or None, "names": names, "all": all or None, "now": moment}
    found = run_verb("extract", paths, {name: value for name, value in given.items() if value is not None})
    assert isinstance(found, Report)
    return found
