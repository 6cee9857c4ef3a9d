"""`convert`: rows of any system or lake, written as another system's files, Parquet, JSON lines or CSV; `rawlog.write` for rows at hand."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

from rawlog import registry
from rawlog.engines.choice import choose
from rawlog.io.output import Folder, Output, refuse_nested, unwritable
from rawlog.io.storage import below, exists
from rawlog.lakes.targets import ColumnLoss, LossError, total_losses
from rawlog.model.errors import AccessError, EncodeError, OptionError
from rawlog.model.format import File, Keep
from rawlog.model.job import (
    Job,
    Split,
    SplitResult,
    Stage,
    packed,
)
from rawlog.model.report import Action, Entry, Report, SeriousNote
from rawlog.model.store import Store, unread_size
from rawlog.model.table import Table
from rawlog.model.text import counted
from rawlog.model.verb import Option, verb
from rawlog.reading.options import OUTPUT, READ, Format, Note, Path, Paths, TableName, listed, texts
from rawlog.reading.select import Selection, Tally, limit_rows
from rawlog.reading.tree import Tree
from rawlog.verbs.options import (
    Converting,
    Force,
    bind_schemas,
    divide_options,
    option_texts,
    selection_of,
    settings_of,
    whole_paths,
)

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.lakes.payload import Payloads
    from rawlog.lakes.targets import Outlet, WrittenSplit
    from rawlog.model.format import Undone
    from rawlog.model.frames import Frames
    from rawlog.model.outline import Reading
    from rawlog.reading.parts import Part
    from rawlog.reading.settlement import (
        PartFold,
        PartSummary,
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
    """Convert rows to another system, or to Parquet, JSON lines or CSV.

    `source` is files of any system or a lake. The forms:

      parquet, jsonl, csv   one file if DST has that ending (rows.parquet, rows.jsonl.gz), else a directory with several files;
                            of any `table`
      kafka                 a log directory; from Kafka itself the batches stay as they are and only records are left out,
                            unless `option` asks for others (codec, batch_bytes, magic …)
      replay                a kafka-replay recording
      rocketmq, ambry       a store directory

    If the target cannot keep a column, convert names the column and writes nothing; `accept_loss` accepts the loss.
    From Kafka to Kafka, `drop_key` and `where` leave records out while all others keep their offsets, times and transactions; what was
    removed is reported.

    Returns a Report. A loss that is not accepted raises LossError. With `dry_run` nothing is written and the Report has what would be lost.
    Raises DataError at damage unless `errors` says otherwise, AccessError if `target` exists and not `force`, OptionError for unknown
    names.

    >>> import rawlog
    >>> report = rawlog.convert("samples/kafka", "out/rows.parquet", topic="codec-*")
    """
    from rawlog.lakes.sources import lake_schemas, sheet_names, source_tree
    from rawlog.lakes.targets import FormatOutlet, outlet
    from rawlog.reading.parts import choose_replicas
    from rawlog.reading.rows import check_names

    reading, running = divide_options(selection)
    settings = settings_of(running)
    choose(0, **settings)  # options that contradict one another are reported first
    columns = [name.strip() for text in texts(accept_loss) for name in text.split(",") if name.strip()]
    destination = outlet(
        to or _form_of(os.fspath(target)),
        os.fspath(target),
        table=registry.table_named(table),
        options=option_texts(option),
        accepted=columns,
        overwrite=force,
    )
    keys = keys_of(drop_key, drop_keys)
    inputs = [] if drop_keys is None else [os.fspath(drop_keys)]
    rows = selection_of(reading, as_bytes=isinstance(destination, FormatOutlet))
    rows.check(destination.source)
    notes: list[str] = []
    tree = source_tree(whole_paths(listed(source)), destination.source, format, notes.append, without_unreadable=True)
    rows = bind_schemas(rows, tree, destination.source, lambda: lake_schemas(tree))
    with Convert(destination, selection=rows, drop=keys, dry_run=dry_run, inputs=inputs) as job:
        tree = choose_replicas(tree, rows, notes.append, table=destination.source)
        more = sheet_names(tree, destination.source) if job.reads_tables(tree) else ()
        check_names(tree, destination.source, rows, note, more=more)
        report = choose(tree.size, **settings).run(job, tree, running.get("progress"))
        report.notes = [*notes, *report.notes]
        return report


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


def keys_of(named: str | bytes | Sequence[str | bytes], file: Path | None) -> list[bytes]:
    """Keys from options and from a file with one key per line. AccessError for a file that cannot be read."""
    names = [named] if isinstance(named, (str, bytes)) else list(named)
    keys = [os.fsencode(key) for key in names]
    if file is not None:
        try:
            lines = LocalPath(file).read_bytes().split(b"\n")
        except OSError as error:
            raise AccessError(f"{os.fspath(file)}: {error.strerror or error}") from None
        keys += [line.removesuffix(b"\r") for line in lines if line.removesuffix(b"\r")]
    return keys


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
    from rawlog.lakes.targets import LossCheck, batches_of, writable
    from rawlog.lakes.targets import write as write_rows
    from rawlog.reading.rows import Rows

    if isinstance(records, Rows):
        refuse_nested(path, records.tree.sources)
    target = writable(format)
    texts = {name: str(value) for name, value in options.items()}
    accepted = (accept_loss,) if isinstance(accept_loss, str) else tuple(accept_loss)
    return write_rows(
        LossCheck(target, texts, accepted), batches_of(records), os.fspath(path), texts, overwrite=overwrite
    )


# The job --------------------------------------------------------------------------------------------------------------------


#: Bytes of input for each split, where a target is made of several files.
SPLIT_SIZE = 128 << 20
MOST_NOTES = 100
#: So many stores are settled by one split at most.
MOST_STORES = 1000
#: Options of a target with which its batches need not be rewritten.
SIFTED = frozenset({"index_interval_bytes"})
#: Rows of transactions that new batches are not in, by the number that `Undone` gives: their name, what they are, and what can be done.
UNDONE = {
    "aborted": ("aborted transactions", "--isolation read_committed leaves them out"),
    "open": (
        "transactions that are open at the end of the log",
        "--isolation read_committed ends before the first of them",
    ),
}


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows to read: a part of a file under a selection, or a file that is a table."""

    selection: Selection
    part: Part | None = None
    sheet: File | None = None
    #: What says which rows belong to aborted or open transactions, if that is to be reported.
    undone: Undone | None = None
    #: The files that the diagnosis of its store looks into besides; None: there is no such diagnosis.
    near: tuple[File, ...] | None = None

    @property
    def size(self) -> int:
        return self.part.size if self.part is not None else self.sheet.size if self.sheet is not None else 0


@dataclass(frozen=True, slots=True)
class ConvertSplit:
    """What is read for one output; or the files of a partition that is copied without some of its records; or stores to be settled."""

    sources: tuple[RowSource, ...] = ()
    files: tuple[File, ...] = ()
    name: str = ""
    limit: int | None = None
    #: Whether the files are copied as they are.
    is_copied: bool = False
    #: Stores that were read, with the summaries of their files; and all files, in which others may be missing.
    stores: tuple[Store, ...] = ()
    all_files: tuple[File, ...] = ()

    @property
    def is_settling(self) -> bool:
        return bool(self.stores or self.all_files)

    @property
    def size(self) -> int:
        if self.is_settling:
            return sum(map(unread_size, self.stores))
        return sum(source.size for source in self.sources) + sum(file.size for file in self.files)


@dataclass(frozen=True, slots=True)
class ConvertResult(SplitResult):
    """The result of one split."""

    split: WrittenSplit
    dropped: int = 0
    notes: tuple[str, ...] = ()
    account: Report | None = None
    #: What transforms of the rows counted.
    tallies: tuple[Tally, ...] = ()
    #: Rows of aborted and of open transactions (UNDONE) that are plain ones now.
    plain: Mapping[str, ColumnLoss] = field(default_factory=dict)
    #: What the diagnosis of stores needs to know of the parts that were read, and the stores with rows that were passed over or misplaced.
    summaries: tuple[PartSummary, ...] = ()
    troubled: frozenset[str] = frozenset()
    #: Why the rows could not be written as they are stored.
    failure: EncodeError | None = None
    #: What `repair` would keep of stores, and the stores of which nothing is there.
    readings: Mapping[str, Reading] = field(default_factory=dict)
    absent: tuple[Entry, ...] = ()


class Convert(Job[ConvertResult, Report]):
    """Write the rows of a tree to an outlet. Use as a context manager: leaving it removes what a failed run left.

    `drop` are keys whose records are left out. With `dry_run` everything is done but the writing: rows are read, judged and encoded.
    """

    def __init__(
        self,
        target: Outlet,
        *,
        selection: Selection | None = None,
        drop: Iterable[bytes] = (),
        dry_run: bool = False,
        inputs: Iterable[str] = (),
    ) -> None:
        """`inputs` are files that are read besides the tree: the target must not touch them either."""
        self.target, self.drop, self.dry_run = target, frozenset(drop), dry_run
        self.selection = selection or Selection()
        self.selection.check(target.source)
        target.shape(self.selection)
        if self.drop and "key" not in target.source.names:
            raise OptionError(f"table {target.source.name} has no keys to drop")
        self.inputs = tuple(inputs)
        self.output = Output(target.path, overwrite=target.overwrite)
        self._splits: list[ConvertSplit] = []
        self._not_loaded: list[str] = []
        self._masked: list[str] = []
        self._roots: tuple[str, ...] = ()
        self.payloads: Payloads | None = None
        self._tree: Tree | None = None
        self._rounds = 0
        #: The numbers of splits that are done again, and the number that each has then; None: nothing is left of it.
        self._again: dict[int, int | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        # What was planned stays on the driver: work is given its own split.
        return {**self.__dict__, "_splits": [], "_tree": None}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """Splits as the target needs them. UnknownFormatError if there is nothing to read, AccessError if the target exists,
        OptionError if it would touch a source.
        """
        from rawlog.lakes.sources import lake_payloads

        self.output.refuse((*tree.sources, *self.inputs))
        if not self.dry_run:
            self.target.check()
            self.stage = self.output.open()
        splits = self._sift_splits(tree)
        if splits is None:
            sources = list(self._sources(tree))
            groups = self._groups(sources)
            self._masked = self._masked_logs(tree, sources)
            splits = [ConvertSplit(tuple(group), limit=self.selection.limit) for group in groups]
        self._splits, self._roots, self.payloads, self._tree = splits, tree.roots, lake_payloads(tree), tree
        self._rounds, self._again, self._next_number = 0, {}, 0
        return self._number(splits)

    def _sift_splits(self, tree: Tree) -> list[ConvertSplit] | None:
        """A split for each partition, if records are removed and everything else stays as it is; None if rows are written again."""
        from rawlog.lakes.targets import FormatOutlet

        target, chosen = self.target, self.selection
        if not isinstance(target, FormatOutlet) or not set(target.options) <= SIFTED:
            return None
        format = registry.formats()[target.format]
        rewrites = chosen.limit is not None or chosen.last is not None or chosen.columns is not None
        rewrites |= any(transform.is_shown for transform in chosen.transforms)
        if (
            not registry.family(format.family).store_class.can("sift")
            or rewrites
            or chosen.isolation != "read_uncommitted"
            or chosen.errors != "raise"
        ):
            return None
        groups: dict[str, list[File]] = {}
        copied = _claimed_groups(tree, format.family)
        self._not_loaded = sorted(
            {
                str(file.place.group)
                for file in tree
                if file.system == format.family and file.place.state is not None and file.place.topic is not None
            }
            - {str(file.place.group) for file in tree if file.place.state is None}
        )
        for file in tree:
            if file.place.group in copied:
                if not (chosen.topics or chosen.topic_pattern or chosen.partitions):
                    groups.setdefault(str(file.place.group), []).append(file)
                continue
            if file.problem is not None or not chosen.takes_file(file):
                continue
            if _is_read(file, target) and (file.format != format.name or file.place.group is None):
                return None
            if file.place.group is not None and file.system == format.family:
                groups.setdefault(file.place.group, []).append(file)
        splits: dict[str, ConvertSplit] = {}
        for folder, files in sorted(groups.items()):
            name = _directory_name(folder, files)
            if folder not in copied and not any(_is_read(file, target) for file in files):
                continue
            if name in splits:
                raise OptionError(
                    f"{name} exists twice: in {folder} and elsewhere; convert one log directory at a time"
                )
            splits[name] = ConvertSplit(files=tuple(files), name=name, is_copied=folder in copied)
        return list(splits.values()) if any(not split.is_copied for split in splits.values()) else None

    def _masked_logs(self, tree: Tree, sources: Sequence[RowSource]) -> list[str]:
        """The metadata logs that are written again as logs, row by row, without the secrets in them."""
        from rawlog.lakes.targets import FormatOutlet

        is_shown = str(self.selection.options.get("showSecrets")).lower() == "true"
        if not isinstance(self.target, FormatOutlet) or is_shown:
            return []
        claimed = {group for family in registry.families() for group in _claimed_groups(tree, family.name)}
        groups = {source.part.file.place.group for source in sources if source.part is not None}
        return sorted(str(group) for group in groups & claimed)

    def _sources(self, tree: Tree) -> Iterator[RowSource]:
        from rawlog.lakes.targets import FormatOutlet
        from rawlog.reading.parts import plan
        from rawlog.reading.rows import Rows

        table, selection = self.target.source, self.selection
        if isinstance(self.target, FormatOutlet):
            selection = selection.replace(columns=None)
        tables = self._sheets(tree)
        if not tables:
            rows = Rows(tree, table, selection)
            size = (
                SPLIT_SIZE if self.target.divides and not self.target.by_partition and selection.limit is None else None
            )
            if selection.last is None:
                parts = [(part, selection) for part in plan(tree, table, selection, split_size=size)]
            else:
                parts = list(rows.part_selections())
            for part, chosen in parts:
                yield RowSource(chosen, part, undone=self._undone(part, tree), near=self._near(part, tree))
        if tables and selection.last is not None:
            raise OptionError("-o -N: the last rows of a partition are known for logs, not for tables")
        yield from (RowSource(selection, sheet=file) for file in tables)

    def _near(self, part: Part, tree: Tree) -> tuple[File, ...] | None:
        """The files that the diagnosis of a part's store looks into; None if rows are given as they are stored."""
        from rawlog.reading.inspect import near
        from rawlog.reading.settlement import settles

        if not self.is_settled or not settles(part.file, self.target.source):
            return None
        return near(part.file, tree.group_of(part.file))

    @property
    def is_settled(self) -> bool:
        """Whether stores are settled: not if only the first rows are wanted, or those before the first damage."""
        return self.selection.errors != "stop" and self.selection.limit is None

    @property
    def is_bounded(self) -> bool:
        """Whether stores may be read in part: then only one in which something was passed over is settled."""
        return not self.selection.replace(where=None, text=None).takes_every_row

    def _undone(self, part: Part, tree: Tree) -> Undone | None:
        """What says which rows of a part would be served although their transactions were aborted or are open: new batches are in none."""
        from rawlog.lakes.targets import FormatOutlet

        if not isinstance(self.target, FormatOutlet) or self.selection.isolation == "read_committed":
            return None
        format = registry.formats()[str(part.file.format)]
        undone = format.codec.undone(part.file, tree.group_of(part.file)) if format.can("undone") else None
        return None if undone is None else undone.for_part(part.start, part.stop)

    def reads_tables(self, tree: Tree) -> bool:
        """Whether rows are read from tables: Parquet, lines of JSON, a lake."""
        return bool(self._sheets(tree))

    def _sheets(self, tree: Tree) -> list[File]:
        """The files that are tables, where there is nothing else to read."""
        from rawlog.lakes.sources import sheets

        return [] if any(_is_read(file, self.target) for file in tree) else sheets(tree)

    def _groups(self, sources: list[RowSource]) -> list[list[RowSource]]:
        """What goes to the same output, in the order of the rows."""
        from rawlog.lakes.targets import FormatOutlet

        target = self.target
        if not target.divides or self.selection.limit is not None:
            return [sources]
        if not target.by_partition:
            return _pack(sources) or [[]]
        if isinstance(target, FormatOutlet) and {"topic", "partition"} & target.options.keys():
            return [sources]
        groups: dict[object, list[RowSource]] = {}
        for number, source in enumerate(sources):
            place = source.part.file.place if source.part is not None else None
            key: object = "rest" if source.part is not None else number
            if place is not None and place.topic is not None and place.partition is not None:
                key = (place.topic, place.partition)
            groups.setdefault(key, []).append(source)
        return list(groups.values()) or [[]]

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> ConvertResult:
        """Write one split below the stage."""
        from rawlog.lakes.targets import WrittenSplit

        content: ConvertSplit = split.content
        folder = below(stage.path, stage.name)
        if content.files:
            return self._sift(split, content, folder, stage)
        if content.is_settling:
            return _settle(split.number, content)
        reading = _Reading(self, content, stage)
        rows = reading.batches()
        failure: EncodeError | None = None
        try:
            written = self.target.rehearse(rows) if self.dry_run else self.target.write(rows, folder, "rows")
        except EncodeError as error:
            # Rows may be at wrong places, and are read again at the right ones.
            if isinstance(error, LossError) or all(source.near is None for source in content.sources):
                raise
            written, failure = WrittenSplit(folder, 0), error
        return ConvertResult(
            split.number,
            written,
            reading.dropped,
            tuple(reading.notes),
            tallies=reading.tallies,
            plain=reading.plain,
            summaries=tuple(reading.summaries),
            troubled=frozenset(reading.troubled),
            failure=failure,
        )

    def _sift(self, split: Split, content: ConvertSplit, folder: str, stage: Stage) -> ConvertResult:
        from rawlog.lakes.targets import FormatOutlet, WrittenSplit

        assert isinstance(self.target, FormatOutlet)
        kind = registry.family(registry.formats()[self.target.format].family).store_class
        target = Folder(folder, named=self.target.path, dry_run=self.dry_run).folder(content.name)
        chosen = self.selection.begun()
        try:
            if content.is_copied:
                for file in content.files:
                    target.copy(file.path, file.path.rpartition("/")[2])
                account = Report(counts={"files": len(content.files), "bytes": content.size})
            else:
                account = kind(content.files, content.name).sift(target, self._keep(chosen), self.target.options)
        except OSError as error:
            raise unwritable(self.target.path, error) from None
        stage.advance(split.size)
        written = WrittenSplit(folder, account.counts.get("records", 0), str(target.path))
        return ConvertResult(split.number, written, account=account, tallies=chosen.tallies)

    def _keep(self, chosen: Selection) -> Keep:
        chosen, table = chosen.replace(topics=(), topic_pattern=None, partitions=()), self.target.source
        needed = chosen.replace(columns=("offset",)).needed(table)
        names = tuple(dict.fromkeys((*needed.names, *(("key",) if self.drop else ()))))
        drop = self.drop

        def test(batch: pa.RecordBatch) -> NDArray[np.bool_]:
            mask = chosen.mask(batch, table)
            return mask & ~_has_key(batch, drop) if drop else mask

        return Keep(names, test, chosen.from_offset, chosen.to_offset, chosen.max_decompressed, chosen.max_headers)

    # Settle -----------------------------------------------------------------------------------------------------------

    def follow(self, results: Sequence[ConvertResult]) -> list[Split]:
        """First the diagnosis of the stores that were read; then again what has rows that `repair` would not keep as they are."""
        self._rounds += 1
        if self._rounds == 1:
            return self._settle_splits(results)
        if self._rounds == 2:
            return self._repeat_splits(results)
        return []

    def _settle_splits(self, results: Sequence[ConvertResult]) -> list[Split]:
        """Splits that settle stores: all of them, or those in which something was passed over if they were read in part."""
        from rawlog.reading.settlement import merge_parts, store_key

        assert self._tree is not None
        sources = [source for split in self._splits for source in split.sources if source.near is not None]
        files = {store_key(source.part.file): source.part.file for source in sources if source.part is not None}
        troubled = {key for result in results for key in result.troubled}
        is_failed = any(result.failure is not None for result in results)
        if self.is_bounded and not is_failed:
            files = {key: file for key, file in files.items() if key in troubled}
        if not files:
            return []
        summaries = merge_parts(part for result in results for part in result.summaries)
        stores = [self._tree.group_of(file).with_summaries(summaries) for file in files.values()]
        takes_all = not (
            self.is_bounded or self.selection.topics or self.selection.topic_pattern or self.selection.partitions
        )
        if takes_all:  # stores whose logs are gone give no rows
            stores += [store for store in self._tree.groups if not any(_is_read(file, self.target) for file in store)]
        splits = [ConvertSplit(stores=run) for run in packed(stores, unread_size, SPLIT_SIZE, MOST_STORES)]
        if takes_all:
            splits.append(ConvertSplit(all_files=self._tree.files))
        return self._number(splits)

    def _repeat_splits(self, results: Sequence[ConvertResult]) -> list[Split]:
        """The splits with rows of stores that are not read as they are stored; each such store is read where its first part was."""
        from rawlog.reading.settlement import settled_part

        assert self._tree is not None
        changed = {
            key: reading for split in results for key, reading in split.readings.items() if reading.pieces is not None
        }
        seen: set[str] = set()
        splits: list[ConvertSplit] = []
        for number, split in enumerate(self._splits):
            keys = [_key(source) for source in split.sources]
            if not any(key in changed for key in keys):
                continue
            sources = []
            for source, key in zip(split.sources, keys, strict=True):
                if key not in changed:
                    sources.append(source)
                elif key not in seen:
                    assert source.part is not None
                    seen.add(key)
                    store = self._tree.group_of(source.part.file)
                    part = settled_part(store, source.part.file, changed[key])
                    sources.append(replace(source, part=part, undone=None, near=None))
            self._again[number] = self._next_number + len(splits) if sources or not splits else None
            if self._again[number] is not None:
                splits.append(replace(split, sources=tuple(sources)))
        return self._number(splits)

    def _number(self, splits: Sequence[ConvertSplit]) -> list[Split]:
        first, self._next_number = self._next_number, self._next_number + len(splits)
        return [Split(first + number, split.size, split) for number, split in enumerate(splits)]

    def _results(self, split_results: Sequence[ConvertResult]) -> list[ConvertResult]:
        """What the splits gave, in their order: those that were done again with what came then. Raises why one failed."""
        by_number = {result.number: result for result in split_results}
        numbers = [self._again.get(number, number) for number in range(len(self._splits))]
        results = [by_number[number] for number in numbers if number is not None]
        for result in results:
            if result.failure is not None:
                raise result.failure
        return results

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[ConvertResult]) -> Report:
        """Join the splits. LossError, with nothing written, if a loss was not accepted; OptionError if a mask met nothing.

        The Report counts `rows` and `dropped`. Each column that was lost or changed is an entry, which is expected if it was accepted; only
        a dry run has others. Rows lost to damage are entries too. `parts` are partitions that were copied without some records.
        """
        from rawlog.reading.rows import Loss
        from rawlog.reading.settlement import report_reading

        readings = {key: reading for result in results for key, reading in result.readings.items()}
        absent = [entry for result in results for entry in result.absent]
        results = self._results(results)
        lost = total_losses(result.split.lost for result in results)
        rows = sum(result.split.rows for result in results)
        notes = tuple(note for result in results for note in result.notes)
        notes += tuple(self.selection.judge(result.tallies for result in results if result.tallies))
        notes += tuple(
            f"{group}: salts, keys and passwords of users are masked; --show-secrets keeps them"
            for group in self._masked
        )
        refused = tuple(loss for name, loss in lost.items() if name not in self.target.accepted)
        if refused and not self.dry_run:
            raise LossError(self.target.name, refused, rows, self.target.accepted)
        accounts = {
            result.split.content.rpartition("/")[2]: result.account for result in results if result.account is not None
        }
        if accounts:
            notes += self._move_in([LocalPath(result.split.content) for result in results], accounts)
        elif not self.dry_run:
            self.target.join([result.split for result in results])
        dropped = sum(result.dropped for result in results) + sum(
            result.total("removed") for result in accounts.values()
        )
        report = Report("convert", ", ".join(self._roots), self.target.path, is_dry_run=self.dry_run)
        report.counts = {"rows": rows, "dropped": dropped}
        report.facts = {"lost": {loss.column: {"rows": loss.rows, "first": loss.place} for loss in lost.values()}}
        for loss in lost.values():
            where = f"{counted(loss.rows, 'row')}, first {loss.place}"
            report.add(
                Action.LOST, f"column {loss.column} is lost or changed in {where}", is_expected=loss not in refused
            )
        for name, loss in total_losses(result.plain for result in results).items():
            kind, hint = UNDONE[name]
            report.facts[name] = {"rows": loss.rows, "first": loss.place}
            what = f"{counted(loss.rows, 'record')} of {kind}, first {loss.place}"
            report.add(Action.CHANGED, f"{what}: consumers get them now; {hint}", is_expected=True)
        for note in notes:
            if isinstance(note, Loss):
                report.add(Action.LOST, note)
            else:
                report.notes.append(note)
        report.entries += absent
        for _, reading in sorted(readings.items()):
            report_reading(reading, report)
        if not rows and self.selection.topics:
            report.notes.append(
                f"no row belongs to the topics {', '.join(self.selection.topics)}, or no row matches the conditions"
            )
        report.parts = dict(accounts)
        report.not_loaded = list(self._not_loaded) if accounts else []
        return report

    def _is_below(self, split: ConvertSplit) -> bool:
        """Whether a group is in a directory that was named, and was not named itself."""
        return any(str(split.files[0].place.group).startswith(f"{root.rstrip('/')}/") for root in self._roots)

    def _move_in(self, folders: Sequence[LocalPath], accounts: Mapping[str, Report]) -> tuple[str, ...]:
        """Put directories into the target: all of them, or none if one exists already. In a new target, the files of the directory around
        them are written too, if that directory was named; a note on each thing in them that is lost.
        """
        from rawlog.lakes.targets import FormatOutlet

        assert isinstance(self.target, FormatOutlet)
        kind = registry.family(registry.formats()[self.target.format].family).store_class
        splits = [split for split in self._splits if not split.is_copied]
        is_new = not exists(self.target.path) or not os.listdir(self.target.path)
        notes: tuple[str, ...] = ()
        try:
            path = self.target.path if self.dry_run else self.output.new()
            whole = Folder(path, named=self.target.path, dry_run=self.dry_run)
            for folder in folders:
                whole.take(folder, folder.name)
            if kind.has_surroundings and is_new and all(self._is_below(split) for split in splits):
                stores = [kind(split.files, split.name) for split in splits]
                reports = [accounts[store.name] for store in stores]
                report = kind.join("convert", stores, reports, whole)
                notes = (*(entry.line() for entry in report.entries), *report.notes)
            if not self.dry_run:
                self.output.add(whole.path)
        except OSError as error:
            raise unwritable(self.target.path, error) from None
        return notes


class _Reading:
    """The rows of a split, with what was noted while they were read."""

    def __init__(self, job: Convert, split: ConvertSplit, stage: Stage) -> None:
        self.job, self.split, self.stage = job, split, stage
        self.notes: list[str] = []
        self.selection = job.selection.begun()
        self.dropping = _Dropping(job.drop)
        self.plain: dict[str, ColumnLoss] = {}
        self.summaries: list[PartSummary] = []
        #: The stores with rows that were passed over or misplaced, and the one that is read.
        self.troubled: set[str] = set()
        self.current = ""

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What the transforms counted so far."""
        return self.selection.tallies

    @property
    def dropped(self) -> int:
        """How many rows were left out because of their keys."""
        return self.dropping.counts["key", "dropped"]

    def note(self, text: str) -> None:
        if isinstance(text, SeriousNote):
            self.troubled.add(self.current)
        if len(self.notes) < MOST_NOTES or isinstance(text, SeriousNote):
            self.notes.append(text)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return limit_rows(self._all_batches(), self.split.limit)

    def _all_batches(self) -> Iterator[pa.RecordBatch]:
        from rawlog.lakes.sources import read_sheet
        from rawlog.reading.rows import read_all
        from rawlog.reading.settlement import PartFold, store_key

        table = self.job.target.source
        changes = self.selection.transforms
        if self.job.drop:  # keys as they were before they are masked
            changes = (self.dropping, *changes)
        for source in self.split.sources:
            selection = source.selection.replace(transforms=changes)
            if source.part is not None:
                ranges: list[NDArray[np.int64]] = []
                self.current = store_key(source.part.file)
                fold = None if source.near is None else PartFold(source.part, source.near)
                see = _observer(source.part, self.stage, source.undone, ranges, fold)
                for batch in read_all([(source.part, selection)], table, self.note, see):
                    self._see_undone(batch, ranges)
                    yield batch
                if fold is not None:
                    self.summaries.append(fold.close())
            elif source.sheet is not None:
                in_order = self.job.target.by_partition
                payloads = self.job.payloads
                yield from read_sheet(source.sheet, table, selection, in_order=in_order, payloads=payloads)
                self.stage.advance(source.size)

    def _see_undone(self, batch: pa.RecordBatch, ranges: Sequence[NDArray[np.int64]]) -> None:
        """Count the rows of a batch that belong to aborted or open transactions."""
        import numpy as np

        if not ranges or not batch.num_rows:
            return
        offsets, both = batch.column("offset").to_numpy(), np.concatenate(ranges)
        before = np.searchsorted(both[:, 0], offsets, side="right") - 1
        inside = (before >= 0) & (offsets <= both[before, 1])
        for is_open, name in enumerate(UNDONE):
            rows = np.flatnonzero(inside & (both[before, 2] == is_open))
            if rows.size:
                topic, partition, offset = (
                    batch.column(column)[int(rows[0])].as_py() for column in ("topic", "partition", "offset")
                )
                first = self.plain.get(name, ColumnLoss(name, 0, f"{topic}-{partition} offset {offset}"))
                self.plain[name] = replace(first, rows=first.rows + int(rows.size))


class _Dropping:
    """The transform that leaves out rows with one of some keys."""

    is_tested, is_shown = False, True

    def __init__(self, keys: frozenset[bytes]) -> None:
        self.keys = keys
        self.counts: Tally = Counter()

    def table(self, table: Table) -> Table:
        return table

    def needs(self, table: Table, names: Sequence[str]) -> Sequence[str]:
        return names if "key" in names else [*names, "key"]

    def apply(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        named = _has_key(batch, self.keys)
        self.counts["key", "dropped"] += int(named.sum())
        return batch.filter(_array(~named)) if named.any() else batch

    def begin(self) -> Self:
        return type(self)(self.keys)

    def judge(self, counts: Tally) -> list[str]:
        return []


def _observer(
    part: Part, stage: Stage, undone: Undone | None, ranges: list[NDArray[np.int64]], fold: PartFold | None = None
) -> Callable[[Frames], None]:
    """A listener that reports progress, collects offsets of aborted and open transactions, and folds frames."""
    reached = part.start or 0

    def see(frames: Frames) -> None:
        nonlocal reached
        stage.advance(max(0, frames.reached_in_file - reached), len(frames))
        reached = max(reached, frames.reached_in_file)
        if fold is not None:
            fold.see(frames)
        if undone is not None:  # the rows of a window come before the next one is seen
            offsets = undone.undone(frames)
            ranges[:] = [offsets] if len(offsets) else []

    return see


def _settle(number: int, split: ConvertSplit) -> ConvertResult:
    """Ask what `repair` would keep of stores, and which stores are missing."""
    from rawlog.lakes.targets import WrittenSplit
    from rawlog.reading.settlement import absent_stores, reading_of

    readings = {store.path: reading_of(store) for store in split.stores}
    absent = tuple(absent_stores(Tree((), split.all_files))) if split.all_files else ()
    return ConvertResult(number, WrittenSplit("", 0), readings=readings, absent=absent)


def _key(source: RowSource) -> str:
    """The store that rows are read from; nothing if it is not settled."""
    from rawlog.reading.settlement import store_key

    return store_key(source.part.file) if source.part is not None and source.near is not None else ""


def _has_key(batch: pa.RecordBatch, keys: frozenset[bytes]) -> NDArray[np.bool_]:
    """Which rows have one of these keys."""
    import pyarrow as pa
    import pyarrow.compute as pc

    mask: NDArray[np.bool_] = pc.is_in(batch.column("key"), pa.array(sorted(keys), pa.binary())).to_numpy(
        zero_copy_only=False
    )
    return mask


def _array(mask: NDArray[np.bool_]) -> pa.Array:
    import pyarrow as pa

    return pa.array(mask)


def _is_read(file: File, target: Outlet) -> bool:
    """Whether a file would give rows."""
    return file.format in registry.formats_with(target.source) and file.place.state is None


def _directory_name(folder: str, files: Sequence[File]) -> str:
    """What the directory of a partition is called in the result; that of one in remote storage has another name there."""
    place = files[0].place
    if place.topic is not None and all(file.place.remote is not None for file in files):
        return f"{place.topic}-{place.partition}"
    return folder.rstrip("/").rpartition("/")[2]


def _claimed_groups(tree: Tree, system: str) -> set[str | None]:
    """The directories among a system's own that another one keeps its state in: a metadata log is an ordinary log, but nothing of it
    may be left out.
    """
    hosted = [family for family in registry.families() if family.host == system]
    files = [file for family in hosted for file in family.files_for(None, tree.files)]
    return {file.place.group for file in files if file.place.topic is not None}


def _pack(sources: list[RowSource]) -> list[list[RowSource]]:
    """Runs of what is read, each large enough for a file."""
    runs: list[list[RowSource]] = []
    size = 0
    for source in sources:
        if not runs or size + source.size > SPLIT_SIZE:
            runs.append([])
            size = 0
        runs[-1].append(source)
        size += source.size
    return runs
