"""`restore`: a data directory that a real broker starts on, from broker directories, lakes or tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Unpack

from rawlog import registry
from rawlog.engines.choice import choose
from rawlog.io.output import Folder, Output
from rawlog.io.storage import below, file_system, is_remote, listing, local_path
from rawlog.model.errors import AccessError, EncodeError, OptionError, UnknownFormatError
from rawlog.model.job import Job, Split, SplitResult, Stage, unreadable
from rawlog.model.recovery import Offer, RestoredPartition, RestoreOptions, RestoreSplit
from rawlog.model.report import Report
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import missing_topics, parse_time
from rawlog.model.verb import Option, verb
from rawlog.reading.options import Decoding, Errors, Masking, Path, Paths, Time, Topics, listed
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree
from rawlog.verbs.options import (
    Force,
    NewCluster,
    Restoring,
    bind_schemas,
    instead,
    running_of,
    settings_of,
    transforms_of,
    whole_paths,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from rawlog.lakes.payload import Payloads
    from rawlog.model.recovery import Keeps, Restorer


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
    """Write a directory for a new Kafka broker, whole or as of a moment.

    `target` becomes the directory of a single-node Kafka cluster with the topics of `source`. `source` is one or more broker directories, a
    lake that `ingest` made, Parquet files, or anything that can be read as records. Batches of a broker are copied unchanged, with offsets,
    epochs and topic ids; settings, users and access rights come from its metadata log. If a partition has several replicas, the best one is
    restored, with a note. Offsets of consumer groups are committed again. Retention by age is switched off: a broker would delete old
    records at once. With `until`, transactions that were open at that time are aborted. With --mask records are written again, without
    offsets of groups and settings of topics. `source` is never changed. Damage ends the restore with an error unless `errors` is skip. For
    one damaged broker use `rawlog repair`; for the disks of a dead cluster `rawlog rescue`.

    Returns a Report. DataError at damage unless `errors` says otherwise; AccessError if `target` exists and not `force`; OptionError for an
    unknown topic, or if `target` is in the source.

    >>> import rawlog
    >>> report = rawlog.restore("samples/kafka", "out/restored", topic="transactions")
    """
    from rawlog.lakes.names import is_lake
    from rawlog.lakes.sources import source_tree
    from rawlog.model.recovery import RestoreOptions
    from rawlog.reading.parts import choose_replicas

    running = running_of(options, (*NewCluster.__annotations__, *Masking.__annotations__, *Decoding.__annotations__))
    if any(not old or not new for old, new in (rename or {}).items()):
        raise OptionError("rename: OLD=NEW expected")
    request = RestoreOptions(
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
    value_options = {name: options.get(name) for name in (*Masking.__annotations__, *Decoding.__annotations__)}
    if value_options["decode"] and not value_options["mask"]:
        raise OptionError("--decode needs --mask, which changes decoded fields")
    masking = Selection(transforms=transforms_of(value_options, as_bytes=True)) if any(value_options.values()) else None
    if masking is not None and until is not None:
        raise OptionError("--until and --mask exclude one another: restore first, then mask what was restored")
    sources = listed(source)
    notes: list[str] = []
    if any(map(is_lake, sources)):
        tree = Tree(tuple(whole_paths(sources)), ())
    else:
        tree = source_tree(whole_paths(sources), RECORDS, note=notes.append)
    tree = choose_replicas(tree, Selection(topics=request.topics, replicas=replicas), notes.append)
    masking = None if masking is None else bind_schemas(masking, tree)
    engine = choose(tree.size, **settings_of(running))
    with Restore(os.fspath(target), request, masking) as job:
        report = engine.run(job, tree, running.get("progress"))
    report.notes = [*notes, *report.notes]
    return report


# The job --------------------------------------------------------------------------------------------------------------------


# ----------------------------------------------------------------------------------------------------------------------
# What tables offer to a restore: the rows of a lake, of Parquet files, or of anything that reads as `records`.
# Rows with the restorer's own columns say more than plain `records`, such as which transaction they belong to.


ROWS = 1 << 16
SHOWN_TABLES = 5


@dataclass(frozen=True, slots=True)
class RowSpan:
    """The rows of one partition in one file: their count, first and last offset, and whether offsets rise."""

    path: str
    count: int
    first: int
    last: int
    rising: bool


@dataclass(frozen=True)
class Fragments:
    """A partition whose rows are in Parquet files. `marks` is what the restorer found in them."""

    topic: str
    partition: int
    spans: tuple[RowSpan, ...]
    columns: tuple[str, ...]
    marks: tuple[Any, ...] = ()
    #: The first offset that is restored: those before it were deleted, although the files still had them.
    floor: int = 0
    #: Of a lake: where the message bytes are that rows refer to.
    payloads: Payloads | None = None
    #: The table whose rows these are.
    table: Table = RECORDS

    @property
    def size(self) -> int:
        return sum(span.count for span in self.spans)

    def batches(self, keeps: Keeps, advance: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        """The chosen rows as batches of `records`, by rising offset, each offset once."""
        import numpy as np
        import pyarrow as pa

        last = -1
        for table in self._rows_in_order():
            advance(table.num_rows)
            offsets = table.column("offset").to_numpy()
            if not offsets.size:
                continue
            keep = np.concatenate(([offsets[0] > last], offsets[1:] > offsets[:-1]))
            last = max(last, int(offsets.max()))
            keep &= keeps(table, offsets)
            chosen = table if keep.all() else table.filter(pa.array(keep))
            yield from shape_rows(chosen).to_batches(ROWS)

    def _rows_in_order(self) -> Iterator[pa.Table]:
        """The rows in the order of their offsets: file by file where the files follow one another, else sorted in memory."""
        import pyarrow as pa

        spans = sorted(self.spans, key=lambda span: (span.first, span.last))
        if all(span.rising for span in spans) and all(a.last < b.first for a, b in pairwise(spans)):
            for span in spans:
                yield from (pa.Table.from_batches([batch]) for batch in self._read(span) if batch.num_rows)
            return
        batches = [batch for span in spans for batch in self._read(span)]
        if batches:
            yield pa.Table.from_batches(batches).combine_chunks().sort_by("offset")

    def _read(self, span: RowSpan) -> Iterator[pa.RecordBatch]:
        from pyarrow import dataset

        from rawlog.lakes.payload import ROW, SPLIT

        is_chosen = (dataset.field("topic") == self.topic) & (dataset.field("partition") == self.partition)
        data = open_parquet([span.path])
        refers = self.payloads is not None and ROW in data.schema.names
        columns = [*self.columns, SPLIT, ROW] if refers else list(self.columns)
        batches = data.to_batches(columns=columns, filter=is_chosen, batch_size=ROWS)
        yield from batches if self.payloads is None else self.payloads.complete(batches, self.table)


def shape_rows(table: pa.Table) -> pa.Table:
    """Rows with exactly the columns of `records`; EncodeError for a column of another kind."""
    import pyarrow as pa

    arrays = []
    for field in RECORDS.schema:
        if field.name not in table.column_names:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)], field.type))
            continue
        try:
            arrays.append(table.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise EncodeError(f"column {field.name}: {str(error).splitlines()[0]}") from None
    return pa.Table.from_arrays(arrays, schema=RECORDS.schema)


def open_parquet(files: Sequence[str]) -> Any:
    """An Arrow dataset over Parquet files. AccessError if one cannot be read."""
    import pyarrow as pa
    from pyarrow import dataset

    system, _ = file_system(files[0])
    try:
        return dataset.dataset([file_system(file)[1] for file in files], format="parquet", filesystem=system)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise AccessError(f"{files[0]}: {str(error).splitlines()[0]}") from None


def parquet_files(paths: Sequence[str]) -> list[str]:
    """The Parquet files at or below some paths."""
    return [entry.path for path in paths for entry in listing(path) if entry.path.endswith(".parquet") and entry.size]


def offer_files(
    files: Sequence[str], restorer: Restorer, *, of_any_system: bool = False, payloads: Payloads | None = None
) -> Offer:
    """The partitions in Parquet files; `payloads` are those of a lake that they may refer to.

    OptionError if they have no topic, partition or offset; EncodeError for rows that lack one of them, unless they may be
    `of_any_system`: then such rows are left out.
    """
    import pyarrow.compute as pc

    from rawlog.lakes.payload import check_complete

    row_columns = restorer.row_columns
    table = RECORDS if payloads is None else registry.table_named(restorer.records_table)
    nameless = 0
    by_partition: dict[tuple[str, int], list[RowSpan]] = {}
    marks: dict[tuple[str, int], list[Any]] = {}
    columns: tuple[str, ...] = ()
    for path in files:
        data = open_parquet([path])
        if payloads is None:
            check_complete(path)
        names = data.schema.names
        missing = {"topic", "partition", "offset"} - set(names)
        if missing:
            raise OptionError(f"{path}: no column {', '.join(sorted(missing))}; rows of `records` are expected")
        has_row_columns = set(row_columns) <= set(names)
        columns = tuple(name for name in (*RECORDS.names, *(row_columns if has_row_columns else ())) if name in names)
        wanted = ["topic", "partition", "offset", *([*row_columns, "timestamp"] if has_row_columns else [])]
        rows = data.to_table(columns=wanted)
        if of_any_system:
            named = pc.and_(pc.is_valid(rows.column("topic")), pc.is_valid(rows.column("partition")))
            nameless += rows.num_rows - (pc.sum(named).as_py() or 0)
            rows = rows.filter(named)
        for key, part in _partitions(path, rows):
            offsets = part.column("offset").to_numpy()
            rising = bool((offsets[1:] > offsets[:-1]).all())  # a difference may be too large for its type
            by_partition.setdefault(key, []).append(
                RowSpan(path, offsets.size, int(offsets.min()), int(offsets.max()), rising)
            )
            if has_row_columns:
                marks.setdefault(key, []).extend(restorer.marks(part))
    return Offer(
        {
            key: Fragments(
                *key, tuple(spans), columns, tuple(sorted(marks.get(key, ()))), payloads=payloads, table=table
            )
            for key, spans in sorted(by_partition.items())
        },
        notes=[f"{nameless:,} rows without a topic or partition are left out"] if nameless else [],
    )


def _partitions(path: str, rows: pa.Table) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    import numpy as np
    import pyarrow as pa

    for name in ("topic", "partition", "offset"):
        if rows.column(name).null_count:
            raise EncodeError(f"{path}: rows without a {name} cannot be restored")
    topics = rows.column("topic").cast(pa.string()).combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64) << 32 | rows.column("partition").to_numpy().astype(np.int64)
    for code in np.unique(codes).tolist():
        yield (topics.dictionary[code >> 32].as_py(), int(code & 0xFFFF_FFFF)), rows.filter(pa.array(codes == code))


def offer_lake(path: str, restorer: Restorer, named: Sequence[str] = ()) -> Offer:
    """The restorer's partitions in a lake that `ingest` made, with what it has on their topics; of a lake without any, the partitions
    of other systems. AccessError if it has no records, OptionError if some have no topic or partition and topics are not `named`.
    """
    from rawlog.lakes.lake import Lake
    from rawlog.lakes.names import lake_name

    lake = Lake(path)
    full, plain = (lake.data_files(lake_name(name)) for name in (restorer.records_table, "records"))
    if not full and not plain:
        raise AccessError(f"{path}: the lake has no records")
    offer = offer_files(full or plain, restorer, of_any_system=not full, payloads=lake.payloads() if full else None)
    if offer.notes and not named:
        raise OptionError(f"{path}: {offer.notes[0]}; with --topic they are")
    if full and plain:
        visible = offer_files(plain, restorer, of_any_system=True).partitions
        others = sorted({topic for topic, _ in visible} - {topic for topic, _ in offer.partitions})
        if others and not named:
            more = ", …" if len(others) > SHOWN_TABLES else ""
            offer.notes.append(
                f"{len(others):,} topics of other systems are left out: {', '.join(others[:SHOWN_TABLES])}{more}"
            )
        for key, fragments in offer.partitions.items():
            there = visible.get(key)
            if isinstance(fragments, Fragments) and isinstance(there, Fragments):
                offer.partitions[key] = replace(fragments, floor=min(span.first for span in there.spans))
    topics = lake.data_files(restorer.topics_table)
    if topics:
        restorer.add_topics(offer, open_parquet(topics).to_table().to_pylist())
    return offer


def offer_rows(tree: Tree, restorer: Restorer, scratch: str, chosen: Selection) -> Offer:
    """The partitions among the chosen rows of a tree of any system, which are written as partition directories first. EncodeError for rows
    without a partition, or of a topic whose name is not allowed there.
    """
    from rawlog.reading.rows import Rows

    rows = Rows(tree, RECORDS, chosen)
    format = registry.formats()[restorer.written]
    try:
        with Output(scratch) as output:
            format.codec.write(rows.batches(), output, {})
    except EncodeError as error:
        raise EncodeError(
            f"{error}; --topic chooses what is restored; "
            f"rows without a partition get one by `rawlog convert --to {format.family}` first"
        ) from None
    written = open_tree(scratch)
    return restorer.offer(written.files, written.groups) or Offer({})


SHOWN = 20


@dataclass(frozen=True, slots=True)
class RestoreResult(SplitResult):
    """A partition that was written."""

    partition: RestoredPartition


class Restore(Job[RestoreResult, Report]):
    """Restore to a directory. Use as a context manager: what is staged is removed at the end."""

    def __init__(self, target: str, options: RestoreOptions, changed: Selection | None = None) -> None:
        """`changed` has transforms of the rows: then no batch is copied as it is. OptionError for options that are invalid."""
        if is_remote(target):
            raise OptionError(f"{target}: a broker's directory must be a local one")
        self.options, self.changed = options, changed
        self.target = LocalPath(local_path(target)).absolute()
        self.output = Output(self.target, overwrite=options.overwrite)
        kind = next(family.store_class for family in registry.families() if family.store_class.can("restorer"))
        self.restorer: Restorer = kind.restorer(options, self.target)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each partition. OptionError if the source has nothing that is asked for."""
        options, restorer = self.options, self.restorer
        self.output.refuse(tree.sources)
        self._check_target()
        self.stage = self.output.open()
        restorer.report.source = ", ".join(tree.roots)
        offer = self._offer(tree)
        restorer.report.notes += offer.notes
        present = offer.topics
        for problem in missing_topics(options.topics, present) if present else ():
            if isinstance(problem, OptionError):
                raise problem
            restorer.report.notes.append(problem)
        wanted = [topic for topic in present if restorer.wants(topic, offer)]
        unknown = [old for old in options.rename if old not in wanted]
        if unknown:
            raise OptionError(f"rename {', '.join(unknown)}: no such topic among those restored")
        if not wanted:
            raise OptionError(f"no topic here is asked for; there are: {', '.join(present[:SHOWN]) or 'none'}")
        here = [file for file in tree if not options.topics or file.place.topic in (None, *wanted)]
        restorer.report.entries += unreadable(here)
        splits = restorer.plan(offer, wanted)
        if options.partitions_only:
            for split in splits:
                self.output.refuse_existing(split.name)
        return [Split(number, split.content.size, split) for number, split in enumerate(splits)]

    def _check_target(self) -> None:
        if self.options.partitions_only:
            return
        self.output.check_directory()

    def _offer(self, tree: Tree) -> Offer:
        """What the source has, whatever it is."""
        from rawlog.lakes.names import is_lake

        options, restorer = self.options, self.restorer
        lakes = [root for root in tree.roots if is_lake(root)]
        if self.changed is not None:
            return self._offer_changed(tree, has_lakes=bool(lakes))
        if lakes:
            if len(tree.roots) > 1:
                raise OptionError(f"{lakes[0]} is a lake: name no other source with it")
            return offer_lake(lakes[0], restorer, options.topics)
        native = restorer.offer(tree.files, tree.groups)
        if native is not None:
            return native
        files = parquet_files(tree.roots)
        if files:
            return offer_files(files, restorer)
        if "records" not in tree.tables:
            raise UnknownFormatError(f"{', '.join(tree.roots)}: nothing here can be read as records")
        assert self.stage is not None
        chosen = Selection(topics=options.topics, errors=options.errors)
        systems = {file.system for file in tree}
        for family in registry.families():
            if family.name in systems and family.store_class.can("rescuer"):
                what = f"{family.title}: its rows become records of Kafka; `rawlog repair` and `rawlog rescue` keep the system"
                restorer.report.notes.append(what)
        try:
            return offer_rows(tree, restorer, below(self.stage, "rows"), chosen)
        except (EncodeError, OptionError) as error:
            raise instead(error, tree) from None

    def _offer_changed(self, tree: Tree, *, has_lakes: bool) -> Offer:
        """The rows of the source, changed and written again; only what was committed, as new batches are in no transaction."""
        assert self.stage is not None
        assert self.changed is not None
        if has_lakes or "records" not in tree.tables:
            raise OptionError(
                "--mask: a lake and tables are masked when they are made, or by `rawlog convert --format kafka`"
            )
        options, chosen = self.options, self.changed.begun()
        files = tuple(file for file in tree if not (file.place.topic or "").startswith("__"))
        chosen = chosen.replace(topics=options.topics, errors=options.errors, isolation="read_committed")
        offer = offer_rows(replace(tree, files=files), self.restorer, below(self.stage, "rows"), chosen)
        offer.notes += self.changed.judge([chosen.tallies])
        offer.notes.append(
            "masked records are in new batches; left out are aborted records, everything from the first open transaction on, "
            "committed offsets and settings of topics"
        )
        return offer

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> RestoreResult:
        """One partition directory."""
        content: RestoreSplit = split.content
        try:
            folder = Folder(stage.path, named=str(self.target)).folder(stage.name)
            report = self.restorer.carry(content, folder, stage.advance)
        except OSError as error:
            raise self.output.unwritable(error) from None
        return RestoreResult(split.number, RestoredPartition(content, str(folder.path / content.name), report))

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[RestoreResult]) -> Report:
        """Put the partitions and what belongs next to them into one directory, and give it the target's name."""
        partitions = [result.partition for result in results]
        try:
            folder = Folder(self.output.new(), named=str(self.target))
            for partition in partitions:
                if not partition.split.is_scratch:
                    folder.take(partition.folder, partition.split.name)
            self.restorer.finish(partitions, folder)
            if self.options.partitions_only:
                self.output.add(folder.path, merged=self.restorer.merged)
            else:
                self.output.put(folder.path)
        except OSError as error:
            raise self.output.unwritable(error) from None
        return self.restorer.report
