"""The functions that talk to live brokers: record, replay, mirror."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Any, Literal, TypedDict, Unpack

from rawlog.live.settings import CLIENTS, Settings
from rawlog.model.errors import OptionError, unknown
from rawlog.model.job import Progress
from rawlog.model.report import Report
from rawlog.model.table import RECORDS
from rawlog.reading.names import check_names
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.verbs.options import (
    Decoding,
    Masking,
    Note,
    Path,
    Paths,
    Time,
    bound,
    listed,
    selection_of,
    whole_paths,
)

FORMS = ("native", "replay", "parquet", "lake")


class Connecting(TypedDict, total=False):
    """How to reach a cluster, and who hears how far a verb is."""

    #: HOST:PORT, or several. Default: the settings' bootstrap.servers, $RAWLOG_BOOTSTRAP.
    brokers: str | Sequence[str] | None
    #: A file of librdkafka or Java client properties. Default: $RAWLOG_CLIENT_CONFIG.
    config: Path | None
    #: A file of that name in ~/.config/rawlog/profiles (or $RAWLOG_PROFILES), without its ending `.properties`.
    profile: str | None
    #: Single settings that are no secrets.
    setting: Mapping[str, str] | None
    #: "librdkafka": through confluent-kafka instead of our own connections. Default: "own", unless the login is GSSAPI (Kerberos).
    client: Literal["own", "librdkafka"] | None
    #: Ends the verb as soon as it is set; what is written and sent until then is whole.
    stop: Event | None
    #: Called now and then with how far the verb is.
    progress: Callable[[Progress], None] | None
    #: Gets a sentence about each setting that is not used.
    note: Note | None


class Mirroring(Connecting, total=False):
    """Options of `mirror`: the connection to the source, and which partitions and offsets."""

    partition: int | Sequence[int] | None
    from_offset: int | None
    #: Up to this offset, which is left out; `mirror` sends the whole batch that it is in.
    to_offset: int | None
    #: From a time on: ISO 8601, epoch milliseconds, a datetime, or an age such as "-2h".
    since: Time | None


class Recording(Mirroring, total=False):
    """Options of `record`: the connection, and which records."""

    #: Up to a time, which is left out.
    until: Time | None
    #: As kcat's -o: "beginning", "end", "N", "-N" (the last N of each partition), "s@MS", "e@MS".
    start: str | int | Sequence[str] | None
    key: str | bytes | None
    #: Only records whose value contains this text.
    find: str | None
    #: Only records for which an SQL expression over the columns is true.
    where: str | None
    isolation: Literal["read_uncommitted", "read_committed"]
    limit: int | None


class Replaying(Mirroring, Masking, Decoding, total=False):
    """Options of `replay`: the connection, and which records of the source."""

    topic: str | Sequence[str] | None
    #: Up to a time, which is left out.
    until: Time | None
    key: str | bytes | None
    #: Only records whose value contains this text.
    find: str | None
    #: Only records for which an SQL expression over the columns is true.
    where: str | None
    isolation: Literal["read_uncommitted", "read_committed"]
    #: At damage: raise DataError, stop reading the file, or skip what is damaged.
    errors: Literal["raise", "stop", "skip"]
    limit: int | None


def settings_of(given: Mapping[str, Any]) -> Settings:
    """The settings that options of a connection mean."""
    client = given.get("client") or CLIENTS[0]
    if client not in CLIENTS:
        raise unknown("client", client, CLIENTS)
    found = Settings.load(
        given.get("brokers"),
        config=given.get("config"),
        profile=given.get("profile"),
        given=given.get("setting"),
        note=given.get("note"),
    )
    return replace(found, client=client)


def record(
    topics: str | Iterable[str],
    to: Path,
    *,
    as_: Literal["native", "replay", "parquet", "lake"] = "native",
    until_end: bool = False,
    group: str | None = None,
    resume: bool = False,
    max_bytes: int | None = None,
    timeout: float | str | None = None,
    markers: bool = False,
    option: Mapping[str, object] | None = None,
    **options: Unpack[Recording],
) -> Report:
    """Record topics of a live cluster to `to`. Returns a Report, which is whole if everything asked for was stored.

    `as_` "native" gives partition directories with the batches as the broker sent them, "replay" a kafka-replay file, "parquet" and "lake"
    tables. Without an end (`until_end`, `to_offset`, `until`, `limit`, `max_bytes`, `timeout`) it goes on until `stop` is set. With
    `group` it begins where the group stopped and commits what is stored. An interrupted recording is valid, and `resume` continues it.
    OptionError for an unknown topic or setting, BrokerError (an AccessError) if the cluster cannot be reached or refuses.

    >>> import rawlog
    >>> rawlog.record("orders", "recording/", brokers="localhost:9092", until_end=True)  # doctest: +SKIP
    """
    from rawlog.live.pacing import parse_duration
    from rawlog.live.record_options import Asked
    from rawlog.live.recorder import record, segment_limits

    connection, selection = _divided(options, Recording)
    if as_ not in FORMS:
        raise unknown("form of a recording", as_, FORMS)
    asked = Asked(
        topics=(topics,) if isinstance(topics, str) else tuple(topics),
        selection=selection,
        until_end=until_end,
        group=group,
        max_bytes=max_bytes,
        seconds=None if timeout is None else parse_duration(timeout),
        resume=resume,
        markers=markers,
    )
    if not asked.topics:
        raise OptionError("no topic is named")
    run = _running(connection)
    settings, target = settings_of(connection), os.fspath(to)
    limits = segment_limits(option)
    if as_ == "replay" or (as_ == "native" and not asked.filters_rows):
        return record(settings, asked, target, form=as_, limits=limits, **run)
    return _record_through(settings, asked, target, as_, limits, run)


def _record_through(settings: Settings, asked: Any, target: str, as_: str, limits: Any, run: dict[str, Any]) -> Report:
    """Record native directories next to the target, then convert or ingest them, and remove them when that is done."""
    from rawlog.io.output import Output, refuse_staged
    from rawlog.io.stages import remove_stage
    from rawlog.live.recorder import NATIVE, record
    from rawlog.verbs.ask import ingest
    from rawlog.verbs.move import convert

    if as_ != "lake":
        Output(target).check()
    stage = refuse_staged(target, "recording", resume=asked.resume)
    rows = {"key": asked.selection.key, "where": asked.selection.where, "limit": asked.selection.limit}
    isolation = asked.selection.isolation
    plain = replace(
        asked,
        selection=asked.selection.replace(key=None, where=None, limit=None if asked.filters_rows else rows["limit"]),
    )
    done = record(settings, plain, stage, limits=limits, **run)
    if not done.is_whole and not done.facts.get("interrupted"):
        done.notes.append(f"{target}: not written; {stage} has what was recorded, and --resume continues")
        return done
    if as_ == "lake":
        if asked.filters_rows:
            raise OptionError("a lake takes whole topics: choose records when you query it")
        written = ingest(stage, target, engine="local")
    else:
        wanted = {name: value for name, value in rows.items() if value is not None}
        form = NATIVE if as_ == "native" else as_
        written = convert(stage, target, to=form, isolation=isolation, engine="local", **wanted)
    written.verb, written.source = "record", done.source
    written.notes = [*done.notes, *written.notes]
    written.entries = [*done.entries, *written.entries]
    written.counts = {**written.counts, **done.counts}
    written.facts = {**written.facts, **done.facts}
    if written.is_lossless or done.facts.get("interrupted"):
        remove_stage(stage)
    return written


def replay(
    source: Paths | Any,
    *,
    topic_map: Mapping[str, str] | None = None,
    to_topic: str | None = None,
    partition_by: Literal["original", "key", "round-robin"] = "original",
    timestamps: Literal["original", "now", "shift"] = "original",
    pace: Literal["max", "recorded"] = "max",
    speed: float | None = None,
    rate: float | None = None,
    loop: int = 1,
    keep_batches: bool = False,
    checkpoint: Path | None = None,
    create_topics: bool = False,
    partitions: int | None = None,
    dry_run: bool = False,
    **options: Unpack[Replaying],
) -> Report:
    """Send the records of `source` to topics of a live cluster. Returns a Report, which is whole if every record was acknowledged.

    `source` is paths (partition directories, a kafka-replay file, Parquet, a lake), or rows as `rawlog.write` takes them: Rows, the answer
    of a query, an Arrow table. Each record is acknowledged by all in-sync replicas and is there once. `pace` "recorded" keeps the
    recorded times, `speed` times faster; `rate` is records per second, evenly spaced. `loop` 0 repeats for ever. A `checkpoint` file lets a
    broken replay continue. With `mask` the source is read once before anything is sent. Transactions of partition directories are
    repeated as transactions, also those that were aborted. With `isolation` "read_committed", and in replays by rows (filters, masks, a
    pace, other partitions), their records are sent as plain records without aborted ones; "read_uncommitted" sends those, too.
    OptionError for an unknown topic or setting, BrokerError (an AccessError) if the cluster cannot be reached or refuses.

    >>> import rawlog
    >>> rawlog.replay("recording/", brokers="localhost:9092", topic_map={"orders": "orders-copy"})  # doctest: +SKIP
    """
    from rawlog.io.output import refuse_nested
    from rawlog.live.replay_options import Asked, Source
    from rawlog.live.replayer import replay
    from rawlog.live.sources import lake_partitions, native_partitions, row_streams
    from rawlog.verbs.convert_sources import lake_schemas, sheet_names, source_tree

    settings = settings_of(options)
    keep_transactions = options.get("isolation") != "read_committed" and not settings.uses_library
    if settings.uses_library and checkpoint is not None:
        raise OptionError(
            "checkpoint: librdkafka does not say which records are its own; only our own connections can continue"
        )
    options["isolation"] = options.get("isolation") or "read_committed"  # where they cannot be kept
    connection, selection = _divided(options, Replaying)
    if options.get("decode") and not options.get("mask") and selection.where is None:
        raise OptionError("--decode: --where or --mask is missing, which look at decoded fields")
    is_rows = _is_rows(source)
    paths = [] if is_rows else whole_paths(listed(source))
    left_out: list[str] = []
    tree = Tree((), ()) if is_rows else source_tree(paths, RECORDS, note=left_out.append)
    if checkpoint is not None:
        refuse_nested(checkpoint, paths)
    selection = bound(selection, tree, RECORDS, lambda: lake_schemas(tree))
    if not is_rows:
        check_names(tree, RECORDS, selection, options.get("note"), more=sheet_names(tree, RECORDS))
    asked = Asked(
        topic_map=dict(topic_map or {}),
        topic=to_topic,
        partition_by=partition_by,
        timestamps=timestamps,
        pace="recorded" if speed is not None else pace,
        speed=1.0 if speed is None else speed,
        rate=rate,
        loop=loop,
        keep_batches=keep_batches,
        keep_transactions=keep_transactions,
        checkpoint=None if checkpoint is None else os.fspath(checkpoint),
        create_topics=create_topics,
        partitions=partitions,
        dry_run=dry_run,
        selection=selection,
    )
    if is_rows:
        rows = _chosen(source, selection)
        if selection.transforms:
            rows = iter(list(rows))
            selection.judge([selection.tallies])
        found = Source("rows", None, [lambda _: rows])
        if loop != 1:
            raise OptionError("loop: rows can be read once; write them to a file first")
    else:
        native = native_partitions(tree, selection)
        if selection.transforms:  # nothing is sent before it is known that every mask meets its field
            tried = selection.begun()
            for stream in row_streams(tree, tried, native):
                deque(stream(lambda _: None), 0)
            selection.judge([tried.tallies])
        lake = lake_partitions(tree, selection) if keep_transactions and native is None else None
        found = Source(", ".join(paths), native, row_streams(tree, selection, native), lake)
    report = replay(settings, found, asked, **_running(connection))
    report.notes += [*left_out, *selection.judge([selection.tallies])]
    return report


def mirror(
    topics: str | Iterable[str],
    *,
    to: str | Sequence[str] | None = None,
    to_config: Path | None = None,
    topic_map: Mapping[str, str] | None = None,
    exact: bool = False,
    until_end: bool = False,
    group: str | None = None,
    timeout: float | str | None = None,
    create_topics: bool = False,
    **options: Unpack[Mirroring],
) -> Report:
    """Copy topics of a live cluster to the brokers `to`, without a file in between. Returns a Report, which is whole if every record was
    acknowledged.

    With `exact` records get the offsets that they have in the source; the Report names the partitions where that is impossible. With
    `group` it begins where the group stopped and commits what is acknowledged. Aborted transactions are left out.
    OptionError for an unknown topic or setting, BrokerError (an AccessError) if a cluster cannot be reached or refuses.

    >>> import rawlog
    >>> rawlog.mirror("orders", brokers="old:9092", to="new:9092", until_end=True)  # doctest: +SKIP
    """
    from rawlog.live.pacing import parse_duration
    from rawlog.live.record_options import Asked as Recorded
    from rawlog.live.topic_mirror import Asked, mirror

    connection, selection = _divided(options, Mirroring)
    selection = selection.replace(isolation="read_committed")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise OptionError("no topic is named")
    seconds = None if timeout is None else parse_duration(timeout)
    recorded = Recorded(names, selection, until_end=until_end, group=group, seconds=seconds)
    if recorded.filters_rows or selection.limit is not None:
        raise OptionError("a mirror copies whole batches: choose records with `rawlog record` and `rawlog replay`")
    settings = settings_of(connection)
    if to is None and to_config is None:
        raise OptionError("no target is named: --to HOST:PORT or --to-config FILE expected")
    environment: dict[str, str] | None = {} if to_config is not None else None
    other = Settings.load(to, config=to_config, note=connection.get("note"), environment=environment)
    other = replace(other, client=settings.client)
    if exact and (settings.uses_library or other.uses_library):
        raise OptionError("exact: librdkafka does not keep batches; only our own connections can keep offsets")
    asked = Asked(recorded, dict(topic_map or {}), exact=exact, create_topics=create_topics)
    return mirror(settings, other, asked, **_running(connection))


def _is_rows(source: Any) -> bool:
    """Whether a source is rows, not paths."""
    if isinstance(source, (str, os.PathLike)):
        return False
    return (
        isinstance(source, Rows) or hasattr(source, "__arrow_c_stream__") or not isinstance(source, (list, tuple, set))
    )


def _chosen(source: Any, selection: Selection) -> Any:
    from rawlog.lakes.loss_check import batches_of

    for batch in batches_of(source):
        found = selection.apply(batch, RECORDS)
        if found.num_rows:
            yield found


def _divided(options: Mapping[str, Any], known: Any) -> tuple[dict[str, Any], Selection]:
    """The options of the connection, and the selection of the others. OptionError for unknown ones."""
    for name in options:
        if name not in known.__annotations__:
            raise unknown("option", name, known.__annotations__)
    connection = {name: value for name, value in options.items() if name in Connecting.__annotations__}
    asked = {name: value for name, value in options.items() if name not in connection}
    return connection, selection_of(asked, as_bytes=True)


def _running(connection: Mapping[str, Any]) -> dict[str, Any]:
    stop = connection.get("stop")
    return {"is_stopped": None if stop is None else stop.is_set, "progress": connection.get("progress")}
