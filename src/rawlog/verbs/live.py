"""The functions that talk to live brokers: record, replay, mirror."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Event
from typing import Annotated, Any, Literal, TypedDict, Unpack

from rawlog.live.settings import CLIENTS, Settings
from rawlog.model.errors import OptionError, unknown
from rawlog.model.job import Progress
from rawlog.model.report import Report
from rawlog.model.table import RECORDS
from rawlog.model.text import parse_duration
from rawlog.model.verb import Kind, Option, verb
from rawlog.reading.options import OUTPUT, Decoding, Errors, Masking, Note, Path, Paths, Since, Until, listed
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.verbs.options import bind_schemas, selection_of, whole_paths

FORMS = ("native", "replay", "parquet", "lake")


class Connecting(TypedDict, total=False):
    """Cluster: how to reach it."""

    brokers: Annotated[
        str | Sequence[str] | None,
        Option("Brokers to ask first.  [default: $RAWLOG_BOOTSTRAP]", "-b", "--brokers", metavar="HOST:PORT"),
    ]
    config: Annotated[
        Path | None,
        Option(
            "File of librdkafka or Java client properties: TLS, SASL.  [default: $RAWLOG_CLIENT_CONFIG]",
            "-F",
            "--config",
            metavar="FILE",
        ),
    ]
    #: A file of that name in ~/.config/rawlog/profiles (or $RAWLOG_PROFILES), without its ending `.properties`.
    profile: Annotated[
        str | None, Option("Use the settings in ~/.config/rawlog/profiles/NAME.properties.", metavar="NAME")
    ]
    setting: Annotated[
        Mapping[str, str] | None,
        Option("Set one client property. Never give secrets here.", "-X", metavar="NAME=VALUE"),
    ]
    client: Annotated[
        Literal["own", "librdkafka"] | None,
        Option("librdkafka: use confluent-kafka, slower.  [default: own, librdkafka for Kerberos]"),
    ]
    #: Ends the verb as soon as it is set; what is written and sent until then is whole.
    stop: Event | None
    #: Called now and then with how far the verb is.
    progress: Callable[[Progress], None] | None
    #: Gets a sentence about each setting that is not used.
    note: Note | None


class Mirroring(Connecting, total=False):
    """What to read: partitions and offsets, for `mirror`."""

    partition: Annotated[
        int | Sequence[int] | None,
        Option("Only these partitions: 3, 0,2 or 4-7.", "-p", "--partition", kind=Kind.PARTITIONS, metavar="N"),
    ]
    from_offset: Annotated[int | None, Option("Start at this offset.", metavar="N")]
    to_offset: Annotated[
        int | None, Option("Stop before this offset; `mirror` sends the whole batch that it is in.", metavar="N")
    ]
    since: Since


class Filtering(Mirroring, total=False):
    """What to read: records, for `record` and `replay`."""

    until: Until
    key: Annotated[str | bytes | None, Option("Only records with this key.", metavar="TEXT")]
    find: Annotated[str | None, Option("Only records whose value contains this text.", metavar="TEXT")]
    where: Annotated[
        str | None, Option("Only records for which an SQL expression over the columns is true.", metavar="EXPR")
    ]
    limit: Annotated[int | None, Option("Stop after N records.", "-l", "--limit", least=1, metavar="N")]


class Recording(Filtering, total=False):
    """What to read: records, for `record`."""

    start: Annotated[
        str | int | Sequence[str] | None,
        Option("Start here, as in kcat: beginning, end, N, -N (the last N), s@MS, e@MS.", "-o", metavar="OFFSET"),
    ]
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed"],
        Option(
            "read_committed stops at open transactions, and leaves aborted ones out where records are chosen.",
            default="read_uncommitted",
        ),
    ]


class Replaying(Filtering, Masking, Decoding, total=False):
    """What to read: records, for `replay`."""

    topic: Annotated[
        str | Sequence[str] | None, Option("Only these topics of SRC; may be given again.", metavar="GLOB")
    ]
    isolation: Annotated[
        Literal["read_uncommitted", "read_committed"],
        Option(
            "read_committed sends committed transactions as plain records, without aborted ones.  [default: transactions are repeated]"
        ),
    ]
    errors: Errors


def settings_of(connection: Mapping[str, Any]) -> Settings:
    """The settings that options of a connection mean."""
    client = connection.get("client") or CLIENTS[0]
    if client not in CLIENTS:
        raise unknown("client", client, CLIENTS)
    settings = Settings.load(
        connection.get("brokers"),
        config=connection.get("config"),
        profile=connection.get("profile"),
        options=connection.get("setting"),
        note=connection.get("note"),
    )
    return replace(settings, client=client)


#: Headings of the help: when a verb ends, and how records are sent.
END, SENDING = "When to stop", "How to send"
UntilEnd = Annotated[bool, Option("Stop at the end that each partition has now; otherwise wait for more.", section=END)]
TopicMap = Annotated[
    Mapping[str, str] | None, Option("Give topics another name.", metavar="OLD=NEW,…", section=SENDING)
]
CreateTopics = Annotated[bool, Option("Create topics that do not exist.", "--create-topic", section=SENDING)]
Timeout = Annotated[
    float | str | None, Option("Stop after a time: 30s, 5m.", "-T", "--timeout", metavar="TIME", section=END)
]


@verb(
    group="live",
    examples=(
        "rawlog record orders --to recording/ -b localhost:9092 --until-end",
        "rawlog record 'orders*' --to orders.parquet -F client.properties --since -2h --until-end",
        "rawlog record orders --to messages.log --format replay -b localhost:9092 --limit 1000 --find ERROR",
    ),
    more="""Exit codes: 0 everything is stored; 1 something is missing, which the output names; 2 wrong usage; 3 the
cluster cannot be reached or refuses; 130 interrupted before the end. What is stored is valid;
--resume continues.
""",
    doing="recording",
)
def record(
    topics: Annotated[str | Iterable[str], Option("TOPIC", is_required=False)],
    to: Annotated[Path, Option("Where the recording goes.", "--to", old=("--output",), metavar="DST", section=OUTPUT)],
    *,
    as_: Annotated[
        Literal["native", "replay", "parquet", "lake"],
        Option(
            "native: partition directories; replay: a kafka-replay file; parquet; lake.  A DST that ends in .parquet is parquet.",
            "--format",
            old=("--as",),
            section=OUTPUT,
        ),
    ] = "native",
    until_end: UntilEnd = False,
    group: Annotated[
        str | None, Option("Begin where this group stopped, and commit what is stored.", "-g", "--group", metavar="G")
    ] = None,
    resume: Annotated[bool, Option("Continue the recording at DST.", section=OUTPUT)] = False,
    max_bytes: Annotated[
        int | None, Option("Stop after SIZE bytes: 64M, 1GiB.", kind=Kind.SIZE, metavar="SIZE", section=END)
    ] = None,
    timeout: Timeout = None,
    markers: Annotated[
        bool,
        Option("With --format replay: keep transaction markers as entries, as kafka-replay does.", section=OUTPUT),
    ] = False,
    option: Annotated[
        Mapping[str, object] | None,
        Option(
            "Set an option of native segments, such as segment_bytes=134217728.", metavar="NAME=VALUE", section=OUTPUT
        ),
    ] = None,
    **options: Unpack[Recording],
) -> Report:
    """Record topics of a live cluster to files.

    `topics` are names or globs. The forms of `to`:

      native    partition directories as a broker has them: the batches exactly as they were sent, with indexes; whole batches only
      replay    a kafka-replay file of version 2: time in seconds, key, value; DST.offsets.json says where to resume
      parquet   a Parquet file or directory
      lake      tables of a lake, as `rawlog ingest` makes them

    Without an end (`until_end`, `to_offset`, `until`, `limit`, `max_bytes`, `timeout`) it runs until Ctrl-C. Passwords come from the
    file of -F or from $RAWLOG_KAFKA_SASL_PASSWORD, never from the command line.

    Returns a Report, which is whole if everything asked for was stored. Without an end it goes on until `stop` is set. With `group` it
    begins where the group stopped and commits what is stored. An interrupted recording is valid, and `resume` continues it. OptionError
    for an unknown topic or setting, BrokerError (an AccessError) if the cluster cannot be reached or refuses.

    >>> import rawlog
    >>> rawlog.record("orders", "recording/", brokers="localhost:9092", until_end=True)  # doctest: +SKIP
    """
    from rawlog.live.options import RecordOptions
    from rawlog.live.recorder import record, segment_limits

    connection, selection = _divide_options(options, Recording)
    if as_ not in FORMS:
        raise unknown("form of a recording", as_, FORMS)
    request = RecordOptions(
        topics=(topics,) if isinstance(topics, str) else tuple(topics),
        selection=selection,
        until_end=until_end,
        group=group,
        max_bytes=max_bytes,
        seconds=None if timeout is None else parse_duration(timeout),
        resume=resume,
        markers=markers,
    )
    if not request.topics:
        raise OptionError("no topic is named")
    run = _run_options(connection)
    settings, target = settings_of(connection), os.fspath(to)
    limits = segment_limits(option)
    if as_ == "replay" or (as_ == "native" and not request.filters_rows):
        return record(settings, request, target, form=as_, limits=limits, **run)
    return _record_through(settings, request, target, as_, limits, run)


def _record_through(
    settings: Settings, request: Any, target: str, as_: str, limits: Any, run: dict[str, Any]
) -> Report:
    """Record native directories next to the target, then convert or ingest them, and remove them when that is done."""
    from rawlog.io.output import Output, refuse_staged, remove_stage
    from rawlog.live.recorder import NATIVE, record
    from rawlog.verbs.convert import convert
    from rawlog.verbs.ingest import ingest

    if as_ != "lake":
        Output(target).check()
    stage = refuse_staged(target, "recording", resume=request.resume)
    rows = {"key": request.selection.key, "where": request.selection.where, "limit": request.selection.limit}
    isolation = request.selection.isolation
    plain = replace(
        request,
        selection=request.selection.replace(
            key=None, where=None, limit=None if request.filters_rows else rows["limit"]
        ),
    )
    done = record(settings, plain, stage, limits=limits, **run)
    if not done.is_whole and not done.facts.get("interrupted"):
        done.notes.append(f"{target}: not written; {stage} has what was recorded, and --resume continues")
        return done
    if as_ == "lake":
        if request.filters_rows:
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


@verb(
    group="live",
    examples=(
        "rawlog replay recording/ -b localhost:9092 --topic-map orders=orders-copy",
        "rawlog replay messages.log -b localhost:9092 --to-topic orders --pace recorded --speed 10",
        "rawlog replay lake/ -F client.properties --rate 1000 --partition-by key --checkpoint orders.state",
    ),
    more="""Exit codes: 0 every record was acknowledged; 1 some were not, which the output names; 2 wrong usage; 3 the source
cannot be read, or the cluster cannot be reached or refuses; 130 interrupted. With --checkpoint the same command continues where it stopped.
""",
    doing="replaying",
)
def replay(
    source: Annotated[Paths | Any, Option("SRC", kind=Kind.PATH, is_repeated=True, is_required=False)],
    *,
    topic_map: TopicMap = None,
    to_topic: Annotated[
        str | None,
        Option(
            "Send all other records (not in --topic-map) to this topic.",
            "--to-topic",
            old=("-t",),
            metavar="TOPIC",
            section=SENDING,
        ),
    ] = None,
    partition_by: Annotated[
        Literal["original", "key", "round-robin"],
        Option("key: as Java's default partitioner. Records without a partition go round-robin.", section=SENDING),
    ] = "original",
    timestamps: Annotated[
        Literal["original", "now", "shift"],
        Option("shift: the first record gets the time now; all others keep their distance.", section=SENDING),
    ] = "original",
    pace: Annotated[
        Literal["recorded", "max"], Option("Keep the recorded times, or send as fast as possible.", section=SENDING)
    ] = "max",
    speed: Annotated[float | None, Option("Send X times as fast as recorded.", metavar="X", section=SENDING)] = None,
    rate: Annotated[
        float | None, Option("Send N records per second, evenly spaced.", metavar="N", section=SENDING)
    ] = None,
    loop: Annotated[int, Option("Repeat the source N times; 0: until Ctrl-C.", metavar="N", section=SENDING)] = 1,
    keep_batches: Annotated[
        bool, Option("Send the batches of partition directories as they are, however small.", section=SENDING)
    ] = False,
    checkpoint: Annotated[
        Path | None,
        Option("Store what was acknowledged in FILE, and continue from it.", metavar="FILE", section=SENDING),
    ] = None,
    create_topics: CreateTopics = False,
    partitions: Annotated[
        int | None, Option("Create topics with N partitions.", least=1, metavar="N", section=SENDING)
    ] = None,
    dry_run: Annotated[
        bool, Option("Read everything and check the topics, but send nothing.", section=SENDING)
    ] = False,
    **options: Unpack[Replaying],
) -> Report:
    """Send recorded records to topics of a live cluster.

    SRC is partition directories, a kafka-replay file, Parquet, or a lake. All in-sync replicas acknowledge each record. Each record is
    stored once, even if brokers restart or leaders move. Without `topic_map` or `to_topic` each goes to the topic of its own name. Key,
    value, headers and time are kept; the broker gives offsets. Transactions of partition directories and lakes are repeated as
    transactions, unless rows are chosen or paced. Small batches are put together unless `keep_batches` is given.

    Returns a Report, which is whole if every record was acknowledged. `source` may also be rows as `rawlog.write` takes them: Rows, the
    answer of a query, an Arrow table. With `mask` the source is read once before anything is sent. Transactions are repeated also if they
    were aborted. With `isolation` "read_committed", and in replays by rows (filters, masks, a pace, other partitions), their records are
    sent as plain records without aborted ones; "read_uncommitted" sends those, too. OptionError for an unknown topic or setting,
    BrokerError (an AccessError) if the cluster cannot be reached or refuses.

    >>> import rawlog
    >>> rawlog.replay("recording/", brokers="localhost:9092", topic_map={"orders": "orders-copy"})  # doctest: +SKIP
    """
    from rawlog.io.output import refuse_nested
    from rawlog.lakes.sources import lake_schemas, sheet_names, source_tree
    from rawlog.live.options import ReplayOptions, Source
    from rawlog.live.replayer import replay
    from rawlog.live.sources import lake_partitions, native_partitions, row_streams
    from rawlog.reading.rows import check_names

    settings = settings_of(options)
    keep_transactions = options.get("isolation") != "read_committed" and not settings.uses_library
    if settings.uses_library and checkpoint is not None:
        raise OptionError(
            "checkpoint: librdkafka does not say which records are its own; only our own connections can continue"
        )
    options["isolation"] = options.get("isolation") or "read_committed"  # where they cannot be kept
    connection, selection = _divide_options(options, Replaying)
    if options.get("decode") and not options.get("mask") and selection.where is None:
        raise OptionError("--decode: --where or --mask is missing, which look at decoded fields")
    is_rows = _is_rows(source)
    paths = [] if is_rows else whole_paths(listed(source))
    left_out: list[str] = []
    tree = Tree((), ()) if is_rows else source_tree(paths, RECORDS, note=left_out.append, without_unreadable=True)
    if checkpoint is not None:
        refuse_nested(checkpoint, paths)
    selection = bind_schemas(selection, tree, RECORDS, lambda: lake_schemas(tree))
    if not is_rows:
        check_names(tree, RECORDS, selection, options.get("note"), more=sheet_names(tree, RECORDS))
    request = ReplayOptions(
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
        rows = _choose_rows(source, selection)
        if selection.transforms:
            rows = iter(list(rows))
            selection.judge([selection.tallies])
        origin = Source("rows", None, [lambda _: rows])
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
        origin = Source(", ".join(paths), native, row_streams(tree, selection, native), lake)
    report = replay(settings, origin, request, **_run_options(connection))
    report.notes += [*left_out, *selection.judge([selection.tallies])]
    return report


@verb(
    group="live",
    examples=(
        "rawlog mirror 'orders*' -b old:9092 --to new:9092 --exact --create-topic --until-end",
        "rawlog mirror orders -b localhost:9092 --to localhost:9092 --topic-map orders=orders-copy --group mirror",
    ),
    more="""Exit codes: 0 every record was acknowledged; 1 some were not, which the output names; 2 wrong usage; 3 a
cluster cannot be reached or refuses; 130 interrupted before the end.
""",
    doing="mirroring",
)
def mirror(
    topics: Annotated[str | Iterable[str], "TOPIC"],
    *,
    to: Annotated[
        str | Sequence[str] | None,
        Option("Brokers of the target.", metavar="HOST:PORT", is_repeated=False, section="Cluster"),
    ] = None,
    to_config: Annotated[
        Path | None, Option("Client properties for the target.", metavar="FILE", section="Cluster")
    ] = None,
    topic_map: TopicMap = None,
    exact: Annotated[
        bool,
        Option(
            "Keep offsets: into empty topics, or to continue such a mirror. Partitions where this is impossible are reported; the "
            "others continue.",
            section=SENDING,
        ),
    ] = False,
    until_end: UntilEnd = False,
    group: Annotated[
        str | None,
        Option("Begin where this group stopped, and commit what is acknowledged.", "-g", "--group", metavar="G"),
    ] = None,
    timeout: Timeout = None,
    create_topics: CreateTopics = False,
    **options: Unpack[Mirroring],
) -> Report:
    """Copy topics from one live cluster to another.

    `topics` are names or globs. They are copied from the cluster of -b to the cluster of `to`, without a file in between. Batches are
    copied unchanged, each acknowledged by all in-sync replicas. Aborted transactions are left out, and others become plain records.
    With `exact` each record keeps its offset.

    Returns a Report, which is whole if every record was acknowledged; it names the partitions where `exact` is impossible. OptionError
    for an unknown topic or setting, BrokerError (an AccessError) if a cluster cannot be reached or refuses.

    >>> import rawlog
    >>> rawlog.mirror("orders", brokers="old:9092", to="new:9092", until_end=True)  # doctest: +SKIP
    """
    from rawlog.live.options import RecordOptions
    from rawlog.live.topic_mirror import MirrorOptions, mirror

    connection, selection = _divide_options(options, Mirroring)
    selection = selection.replace(isolation="read_committed")
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if not names:
        raise OptionError("no topic is named")
    seconds = None if timeout is None else parse_duration(timeout)
    recorded = RecordOptions(names, selection, until_end=until_end, group=group, seconds=seconds)
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
    request = MirrorOptions(recorded, dict(topic_map or {}), exact=exact, create_topics=create_topics)
    return mirror(settings, other, request, **_run_options(connection))


def _is_rows(source: Any) -> bool:
    """Whether a source is rows, not paths."""
    from rawlog.reading.rows import Rows

    if isinstance(source, (str, os.PathLike)):
        return False
    return (
        isinstance(source, Rows) or hasattr(source, "__arrow_c_stream__") or not isinstance(source, (list, tuple, set))
    )


def _choose_rows(source: Any, selection: Selection) -> Any:
    from rawlog.lakes.targets import batches_of

    for batch in batches_of(source):
        rows = selection.apply(batch, RECORDS)
        if rows.num_rows:
            yield rows


def _divide_options(options: Mapping[str, Any], group: Any) -> tuple[dict[str, Any], Selection]:
    """The options of the connection, and the selection of the others. OptionError for unknown ones."""
    for name in options:
        if name not in group.__annotations__:
            raise unknown("option", name, group.__annotations__)
    connection = {name: value for name, value in options.items() if name in Connecting.__annotations__}
    choosing = {name: value for name, value in options.items() if name not in connection}
    return connection, selection_of(choosing, as_bytes=True)


def _run_options(connection: Mapping[str, Any]) -> dict[str, Any]:
    stop = connection.get("stop")
    return {"is_stopped": None if stop is None else stop.is_set, "progress": connection.get("progress")}
