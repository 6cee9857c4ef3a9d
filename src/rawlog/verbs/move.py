"""The functions that move data: write, convert, restore, erase, extract."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack

from rawlog import registry
from rawlog.engines.choice import choose
from rawlog.io.output import refuse_nested
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.report import Report
from rawlog.model.table import RECORDS
from rawlog.model.text import parse_time
from rawlog.model.verb import Option, verb
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.verbs.check import divided, open_sources, running_of, settings_of
from rawlog.verbs.options import (
    OUTPUT,
    READ,
    Converting,
    Decoding,
    Erasing,
    Errors,
    Force,
    Format,
    Masking,
    NewCluster,
    Note,
    Path,
    Paths,
    Restoring,
    Running,
    TableName,
    Time,
    Topics,
    bound,
    listed,
    option_texts,
    selection_of,
    transforms_of,
    whole_paths,
)

if TYPE_CHECKING:
    from rawlog.lakes.targets import Outlet


#: The heading of what `erase` erases.
ERASED = "What to erase"


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
    from rawlog.lakes.loss_check import LossCheck, batches_of, writable
    from rawlog.lakes.loss_check import write as write_rows
    from rawlog.reading.rows import Rows

    if isinstance(records, Rows):
        refuse_nested(path, records.tree.sources)
    target = writable(format)
    given = {name: str(value) for name, value in options.items()}
    accepted = (accept_loss,) if isinstance(accept_loss, str) else tuple(accept_loss)
    return write_rows(
        LossCheck(target, given, accepted), batches_of(records), os.fspath(path), given, overwrite=overwrite
    )


@verb(
    group="move",
    examples=(
        "rawlog convert kafka-logs/ rows.parquet --topic 'orders*'",
        "rawlog convert kafka-logs/ orders.parquet --topic orders --decode value=auto",
        "rawlog convert kafka-logs/orders-0 store/ --format rocketmq --accept-loss offset",
        "rawlog convert kafka-logs/ clean/ --format kafka --drop-key alice",
        "rawlog convert kafka-logs/ shared/ --format kafka --mask value.card=hash,key=hash --mask-secret-file secret.txt",
        "rawlog convert kafka-logs/ shared/ --format kafka --topic orders --mask value.card=hash --decode value=auto",
    ),
    more="Exit codes: 0 done; 1 a loss that was not accepted (nothing is written then), rows lost to damage under --errors stop or skip, "
    "or values that were not decoded; 2 wrong usage; 3 cannot be read or written.",
    doing="converting",
)
def convert(
    source: Annotated[Paths, "SRC"],
    target: Annotated[Path, "DST"],
    *,
    to: Annotated[
        str | None,
        Option(
            "parquet, jsonl, csv, kafka, replay, rocketmq or ambry.  [default: by the ending of DST, such as rows.jsonl]",
            "--format",
            old=("--to",),
            metavar="FORMAT",
            section=OUTPUT,
        ),
    ] = None,
    table: TableName = "records",
    format: Format = None,
    drop_key: Annotated[
        str | bytes | Sequence[str | bytes],
        Option("Leave out records with this key; may be given again.", metavar="TEXT", section=READ),
    ] = (),
    drop_keys: Annotated[
        Path | None, Option("Leave out records with the keys in this file, one per line.", metavar="FILE", section=READ)
    ] = None,
    option: Annotated[
        Mapping[str, object] | None,
        Option("An option of the target: codec=zstd, batch_bytes=65536 …", metavar="NAME=VALUE", section=OUTPUT),
    ] = None,
    accept_loss: Annotated[
        str | Iterable[str], Option("Columns that the target may lose or change.", metavar="A,B", section=OUTPUT)
    ] = (),
    force: Force = False,
    dry_run: Annotated[bool, Option("Only report what would be lost, and write nothing.", section=OUTPUT)] = False,
    note: Note | None = None,
    **selection: Unpack[Converting],
) -> Report:
    """Convert rows to another system or to Parquet, JSON lines, CSV.

    `source` is files of any system or a lake. The forms:

      parquet, jsonl, csv   one file if DST has that ending (rows.parquet, rows.jsonl.gz), else a directory with several files;
                            of any `table`
      kafka                 a log directory; from Kafka itself the batches stay as they are and only records are left out,
                            unless `option` asks for others (codec, batch_bytes, magic …)
      replay                a kafka-replay recording
      rocketmq, ambry       a store directory

    What the target cannot keep is refused by the name of its column, with a count and the place of the first, until `accept_loss` names it.
    From Kafka to Kafka, `drop_key` and `where` leave records out while all others keep their offsets, times and transactions; what was
    removed is reported.

    Returns a Report. A loss that is not accepted raises LossError. With `dry_run` nothing is written and the Report has what would be lost.
    Raises DataError at damage unless `errors` says otherwise, AccessError if `target` exists and not `force`, OptionError for unknown
    names.

    >>> import rawlog
    >>> report = rawlog.convert("samples/kafka", "out/rows.parquet", topic="codec-*")
    """
    from rawlog.lakes.targets import FormatOutlet, outlet

    asked, running = divided(selection)
    settings = settings_of(running)
    choose(0, **settings)  # options that contradict one another are reported first
    accepted = (accept_loss,) if isinstance(accept_loss, str) else tuple(accept_loss)
    made = outlet(
        to or _form_of(os.fspath(target)),
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


def _form_of(target: str) -> str:
    """The form that the ending of a target names. OptionError if it names none."""
    from rawlog.lakes.targets import ENDINGS, TEXT_CODECS

    name = target.rstrip("/").lower()
    for ending in filter(None, TEXT_CODECS.values()):
        name = name.removesuffix(ending)
    for form, endings in ENDINGS.items():
        if name.endswith(endings):
            return form
    raise OptionError(f"{target}: its ending names no form; name one with --format")


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
    from rawlog.reading.names import check_names
    from rawlog.reading.parts import choose as choose_replicas
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


@verb(
    group="move",
    examples=(
        "rawlog restore /var/kafka-logs /restored --until 2024-09-11T09:00:00Z",
        "rawlog restore /disk1 /disk2 /disk3 /restored",
        "rawlog restore lake /restored --topic 'orders*' --rename orders=orders-old",
    ),
    more="Exit codes: 0 everything was restored; 1 something was lost, corrected or is damaged; 2 wrong usage; 3 cannot be read or "
    "written.",
    doing="restoring",
)
def restore(
    source: Annotated[Paths, "SRC"],
    target: Annotated[Path, "DST"],
    *,
    topic: Topics = None,
    rename: Annotated[
        Mapping[str, str] | None, Option("Give a topic another name; may be given again.", metavar="OLD=NEW")
    ] = None,
    until: Annotated[
        Time | None, Option("Restore the state at this time: ISO 8601, epoch milliseconds, or -2h.", metavar="TIME")
    ] = None,
    partitions_only: Annotated[
        bool, "Write only partition directories, to add to the directory of an existing broker."
    ] = False,
    no_offsets: Annotated[bool, "Leave out the committed offsets of consumer groups."] = False,
    errors: Errors = "raise",
    replicas: Annotated[
        Literal["best", "refuse"],
        Option("If there are several replicas of a partition: restore the best one, or end with an error."),
    ] = "best",
    force: Force = False,
    **options: Unpack[Restoring],
) -> Report:
    """Write a data directory that a real broker starts on.

    `target` is the directory of a single-node Kafka cluster with the topics of `source` in it: the directory of a broker or several, a lake
    that `ingest` made, Parquet files, or anything that can be read as records. From a broker's directory every batch is copied as it is,
    with offsets, epochs and topic ids; settings, users and access rights come from its metadata log. Of replicas of one partition the
    best is restored as a whole, and that is noted. Offsets of consumer groups are committed again. Retention by age is switched off;
    otherwise a broker would delete old records at once. With `until`, transactions that were open at that time are aborted. With --mask
    records are written again, and offsets of groups and settings of topics are left out. `source` is never changed. Damage ends the
    restore with an error unless `errors` is skip.

    Returns a Report. DataError at damage unless `errors` says otherwise; AccessError if `target` exists and not `force`; OptionError for an
    unknown topic, or if `target` is in the source.

    >>> import rawlog
    >>> report = rawlog.restore("samples/kafka", "out/restored", topic="transactions")
    """
    from rawlog.lakes.names import is_lake
    from rawlog.model.recovery import RestoreOptions
    from rawlog.reading.parts import choose as choose_replicas
    from rawlog.verbs.convert_sources import source_tree
    from rawlog.verbs.restore import Restore

    running = running_of(options, (*NewCluster.__annotations__, *Masking.__annotations__, *Decoding.__annotations__))
    if any(not old or not new for old, new in (rename or {}).items()):
        raise OptionError("rename: OLD=NEW expected")
    asked = RestoreOptions(
        topics=(topic,) if isinstance(topic, str) else tuple(topic or ()),
        rename=dict(rename or {}),
        until=None if until is None else parse_time(until),
        errors=errors,
        partitions_only=partitions_only,
        keep_retention=options.get("keep_retention", False),
        offsets=not no_offsets,
        node=options.get("node_id", 1),
        cluster_id=options.get("cluster_id"),
        level=options.get("metadata_version"),
        overwrite=force,
    )
    given = {name: options.get(name) for name in (*Masking.__annotations__, *Decoding.__annotations__)}
    if given["decode"] and not given["mask"]:
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


@verb(
    group="move",
    examples=(
        "rawlog erase /var/kafka-logs out/ --key customer-17",
        "rawlog erase /var/kafka-logs out/ --find alice@example.com --dry-run",
        "rawlog erase rocketmq-store/ out/ --where \"value.user = 'alice'\" --certificate alice.json",
        "rawlog erase /var/kafka-logs out/ --topic orders --decode value=auto --where \"value.user = 'alice'\"",
        "rawlog erase /data/ambry/9 out/ --blob AAYIAQSSAAgAAQAAAAAAAAAJ",
    ),
    more="Exit codes: 0 done; 1 something of it is still there, records were lost, or files left out; 2 wrong usage, or an id that does "
    "not exist; 3 cannot be read or written. A key that no record has is noted.",
    doing="erasing",
)
def erase(
    source: Annotated[Paths, "SRC"],
    target: Annotated[Path, "DST"],
    *,
    key: Annotated[
        str | bytes | Sequence[str | bytes],
        Option("Erase records with this key; may be given again.", metavar="TEXT", section=ERASED),
    ] = (),
    keys: Annotated[
        Path | None, Option("Erase records with the keys in this file, one per line.", metavar="FILE", section=ERASED)
    ] = None,
    id: Annotated[
        str | Sequence[str],
        Option("Erase this message of RocketMQ or blob of Ambry; may be given again.", metavar="ID", section=ERASED),
    ] = (),
    blob: Annotated[str | Sequence[str], Option("The same as --id.", metavar="ID", section=ERASED)] = (),
    find: Annotated[
        str | bytes | None,
        Option("Erase records with this text in key, value or headers.", metavar="TEXT", section=ERASED),
    ] = None,
    certificate: Annotated[
        Path | None,
        Option(
            "Write the certificate here, as JSON; its text for people is next to it.  [default: DST.certificate.json]",
            metavar="FILE",
            section=OUTPUT,
        ),
    ] = None,
    force: Annotated[bool, Option("Replace DST and the certificate if they exist.", section=OUTPUT)] = False,
    dry_run: Annotated[bool, Option("Only report what would be removed, and write nothing.", section=OUTPUT)] = False,
    note: Note | None = None,
    **asked: Unpack[Erasing],
) -> Report:
    """Write a copy without chosen records or blobs.

    `source` is never changed. A record goes if all given options choose it: `key`, `id`, `find`, `where`, `topic` and others. `topic` alone
    chooses all records of a topic. Several `source` are parts of one whole: a log directory and its remote storage, disks of a broker,
    partitions of Ambry.

    Kafka logs: all other records keep their offsets, times, producers and transactions, as after Kafka's own log cleaner, and indexes are
    rebuilt. RocketMQ: a message becomes an empty one of the same size; its copies that were retried, delayed, dead or prepared go with it;
    queues, tags and the key index are rebuilt. kafka-replay: entries are left out. Ambry: the content of a blob is overwritten with
    zeros, as Ambry's own hard delete does, and the blob is deleted.

    The `certificate` has what was asked, every record that was removed and a hash of it, hashes over all that was kept, and those of all
    files of `source` and `target`. `rawlog verify DST --certificate FILE` checks it.

    Returns a Report. OptionError if nothing is named, an id does not exist, or sources have a partition twice; AccessError if `target`
    exists and not `force`.

    >>> import rawlog
    >>> report = rawlog.erase("samples/kafka/transactions-0", "out/erased", key="k-1")
    """
    from rawlog.reading.erasure import Erasure
    from rawlog.reading.names import check_names
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
