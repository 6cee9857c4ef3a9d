"""Outlets: what rows lose on their way into a format, and where they go, in splits that are written anywhere and joined once, in one place.

A split is written below a directory of its own; nothing appears under the target's name before `join`.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.io.output import Folder, Output, move, unwritable, writing
from rawlog.io.storage import (
    below,
    exists,
    is_remote,
    listing,
    local_path,
    split_query,
)
from rawlog.model.errors import EncodeError, ExistsError, OptionError, unknown
from rawlog.model.format import Format
from rawlog.model.table import RECORDS, Table
from rawlog.model.text import counted

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.kernels.columns import Marks
    from rawlog.reading.select import Selection

# ----------------------------------------------------------------------------------------------------------------------
# Rows on their way into a format: brought to the columns of `records`, restored, and judged for what would be lost.
#
# `write` does all of it for one writer. Splits that are written apart each have a `LossCheck`, and `total_losses` adds up their losses.

#: Dicts are written in batches of so many rows, or so many bytes.
BATCH_ROWS, BATCH_BYTES = 10_000, 8 << 20


@dataclass(frozen=True, slots=True)
class ColumnLoss:
    """A column that would be lost or changed: in how many rows, and where the first of them is."""

    column: str
    rows: int
    place: str

    def __str__(self) -> str:
        return f"{self.column} ({counted(self.rows, 'row')}, first {self.place})"


class LossError(EncodeError):
    """Rows that a format can hold only with a loss that was not accepted."""

    def __init__(self, format: str, lost: Iterable[ColumnLoss], rows: int, accepted: Iterable[str] = ()) -> None:
        self.format, self.lost, self.rows = format, tuple(lost), rows
        self.accepted = frozenset(accepted)
        super().__init__(format, self.lost, rows, self.accepted)

    @property
    def names(self) -> str:
        """What would have to be accepted, what is already included."""
        return ",".join(sorted({loss.column for loss in self.lost} | self.accepted))

    def message(self, how: str) -> str:
        """The sentence, ended by `how` to accept the loss."""
        what = ", ".join(
            f"{loss.column} ({loss.rows:,} of {counted(self.rows, 'row')}, first {loss.place})" for loss in self.lost
        )
        return f"{self.format} would lose or change: {what}; accept it with {how}{self.names}"

    def __str__(self) -> str:
        return self.message("accept_loss=")


def writable(name: str) -> Format:
    """The format of that name. UnknownFormatError if there is none, OptionError if it cannot be written."""
    format = registry.format_named(name)
    if not format.is_written:
        able = [other.name for other in registry.formats().values() if other.is_written]
        raise OptionError(f"{format.name} cannot be written yet; these can: {', '.join(able)}")
    return format


class LossCheck:
    """Counts the rows that go into a format, and what they lose by column.

    At the first loss that was not accepted the writer gets no more rows. LossError follows once the rest is judged.
    """

    def __init__(self, format: Format, options: Mapping[str, str], accepted: Iterable[str] = ()) -> None:
        """OptionError for options that the format does not have, and accepted names that are no columns."""
        self.format = format
        self.accepted = frozenset(RECORDS.column(name).name for name in accepted)
        self.judge = format.codec.losses(options) if format.can("losses") else None
        self.rows = 0
        self.lost: dict[str, ColumnLoss] = {}

    @property
    def refused(self) -> list[ColumnLoss]:
        return [loss for name, loss in self.lost.items() if name not in self.accepted]

    def over(self, batches: Iterable[pa.RecordBatch], *, restore: bool = True) -> Iterator[pa.RecordBatch]:
        """The same rows for the writer. LossError at the end if a loss was not accepted.

        Without `restore` they are written as they are, as rows of any table.
        """
        from rawlog.kernels.columns import Marks

        for batch in batches:
            if not batch.num_rows:
                continue
            marks = Marks.of(batch.schema)
            marked = _marked_rows(batch, marks) if marks else {}
            if restore:
                batch = restored(batch)
            masks = {} if self.judge is None else dict(self.judge(batch))
            for name, mask in marked.items():
                masks[name] = masks[name] | mask if name in masks else mask
            self._look(batch, masks)
            self.rows += batch.num_rows
            if not self.refused:
                yield batch
        if self.refused:
            raise LossError(self.format.name, self.refused, self.rows, self.accepted)

    def _look(self, batch: pa.RecordBatch, masks: Mapping[str, NDArray[np.bool_]]) -> None:
        for name, mask in masks.items():
            count = int(mask.sum())
            if count and name in self.lost:
                self.lost[name] = replace(self.lost[name], rows=self.lost[name].rows + count)
            elif count:
                self.lost[name] = ColumnLoss(name, count, self._place(batch, int(mask.argmax())))

    def _place(self, batch: pa.RecordBatch, row: int) -> str:
        topic, partition, offset = (
            batch.column(name)[row].as_py() if name in batch.schema.names else None
            for name in ("topic", "partition", "offset")
        )
        if topic is None or partition is None or offset is None:
            return f"row {self.rows + row:,}"
        return f"{topic}-{partition} offset {offset}"


def _marked_rows(batch: pa.RecordBatch, marks: Marks) -> dict[str, NDArray[np.bool_]]:
    """The rows that lost something of a column when they were read."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    masks: dict[str, NDArray[np.bool_]] = {}
    names = batch.schema.names
    if marks.keys and "headers" in names:
        headers = batch.column("headers")
        keys = pa.array(sorted(marks.keys), pa.string())
        odd = pc.is_in(headers.flatten().field("key"), keys).to_numpy(zero_copy_only=False)
        masks["headers"] = np.zeros(batch.num_rows, np.bool_)
        masks["headers"][pc.list_parent_indices(headers).to_numpy()[odd]] = True
    if marks.topics and "topic" in names:
        topics = pa.array(sorted(marks.topics), pa.string())
        masks["topic"] = pc.is_in(batch.column("topic"), topics).to_numpy(zero_copy_only=False)
    if marks.far and "timestamp" in names:
        masks["timestamp"] = batch.column("timestamp").is_null().to_numpy(zero_copy_only=False)
    return masks


def total_losses(parts: Iterable[Mapping[str, ColumnLoss]]) -> dict[str, ColumnLoss]:
    """What several shares lost together."""
    losses: dict[str, ColumnLoss] = {}
    for part in parts:
        for name, loss in part.items():
            losses[name] = replace(losses[name], rows=losses[name].rows + loss.rows) if name in losses else loss
    return losses


def restored(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the key and headers that they had before another system's format could not say them."""
    for family in registry.families():
        if family.restore is not None:
            batch = family.restore(batch)
    return batch


def is_directory(format: Format, path: str) -> bool:
    """Whether a target is written as a directory: where a format can do both, if the path ends in a slash or is one already."""
    if not format.can("encode") or not format.can("write"):
        return not format.can("encode")
    return path.endswith("/") or (not is_remote(path) and os.path.isdir(local_path(path)))


def write(
    check: LossCheck,
    batches: Iterable[pa.RecordBatch],
    path: str,
    options: Mapping[str, str],
    *,
    overwrite: bool,
    dry_run: bool = False,
) -> int:
    """Write rows of `records` as a file, or as a directory where the format is one of several files; the number of rows.

    With `dry_run` rows are encoded, so that what cannot be raises EncodeError, and nothing is written.
    """
    format = check.format
    if is_directory(format, path):
        if is_remote(path):
            raise OptionError(f"{path}: {format.name} is written as a directory, which needs a local path")
        with Output(path, overwrite=overwrite, dry_run=dry_run) as output:
            format.codec.write(check.over(batches), output, options)
        return check.rows
    with open(os.devnull, "wb") if dry_run else writing(path, overwrite=overwrite) as file:
        for piece in format.codec.encode(check.over(batches), options):
            file.write(piece)
    return check.rows


def batches_of(records: Any) -> Iterator[pa.RecordBatch]:
    """Batches of exactly the `records` schema, in bounded memory, from dicts, batches, or anything that Arrow takes.

    EncodeError for columns of another kind.
    """
    import pyarrow as pa

    from rawlog.reading.rows import Rows

    if isinstance(records, Rows):
        check_columns(records.schema)
        yield from (as_records(batch) for batch in records.batches())
        return
    if isinstance(records, pa.RecordBatch):
        records = pa.Table.from_batches([records])
    if not isinstance(records, (pa.Table, pa.RecordBatchReader)) and hasattr(records, "__arrow_c_stream__"):
        records = pa.RecordBatchReader.from_stream(records)
    if not isinstance(records, (pa.Table, pa.RecordBatchReader)):
        yield from _batches_of_rows(records)
        return
    check_columns(records.schema)
    stream = records.to_batches() if isinstance(records, pa.Table) else records
    for batch in stream:
        yield as_records(batch)


def _batches_of_rows(records: Any) -> Iterator[pa.RecordBatch]:
    """Batches from an iterable of dicts, of RecordBatches, or of both. EncodeError for anything else."""
    import pyarrow as pa

    if isinstance(records, (str, bytes, Mapping)) or not isinstance(records, Iterable):
        raise _not_rows(records)
    ready: list[Mapping[str, Any]] = []
    size = 0
    for item in records:
        if isinstance(item, Mapping):
            ready.append(item)
            size += sum(len(value) for value in item.values() if isinstance(value, (bytes, str)))
        if ready and (not isinstance(item, Mapping) or len(ready) >= BATCH_ROWS or size >= BATCH_BYTES):
            yield _batch_of(ready)
            ready, size = [], 0
        if isinstance(item, pa.RecordBatch):
            check_columns(item.schema)
            yield as_records(item)
        elif not isinstance(item, Mapping):
            raise _not_rows(item)
    if ready:
        yield _batch_of(ready)


def _batch_of(rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    """Dicts as a batch. A timestamp is a datetime, or a number of microseconds. EncodeError for a value of another kind."""
    import pyarrow as pa

    names = {str(name) for row in rows for name in row}
    if extra := names - set(RECORDS.names):
        raise EncodeError(f"no column of records: {', '.join(sorted(extra))}; these are: {', '.join(RECORDS.names)}")
    arrays = []
    for column in RECORDS.schema:
        values = [row.get(column.name) for row in rows]
        try:
            arrays.append(pa.array(values, column.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise EncodeError(f"column {column.name}: {str(error).splitlines()[0]}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS.schema)


def _not_rows(value: object) -> EncodeError:
    return EncodeError(
        f"rows expected (dicts, RecordBatches, a pyarrow Table or any Arrow stream), not {type(value).__name__}"
    )


def check_columns(schema: pa.Schema) -> None:
    """EncodeError for columns that `records` does not have, or that are there twice."""
    if twice := {name for name in schema.names if schema.names.count(name) > 1}:
        raise EncodeError(f"these columns appear twice: {', '.join(sorted(twice))}")
    if extra := set(schema.names) - set(RECORDS.names):
        raise EncodeError(f"no column of records: {', '.join(sorted(extra))}; these are: {', '.join(RECORDS.names)}")


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with exactly the columns of `records`, those that it lacks null. EncodeError for one of another kind."""
    import pyarrow as pa

    from rawlog.kernels.columns import Marks, marked

    arrays = []
    for column in RECORDS.schema:
        if column.name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, column.type))
            continue
        try:
            arrays.append(batch.column(column.name).cast(column.type))
        except pa.ArrowException as error:
            raise EncodeError(f"column {column.name}: {str(error).splitlines()[0]}") from None
    records = pa.RecordBatch.from_arrays(arrays, schema=RECORDS.schema)
    return marked(records, Marks.of(batch.schema))


# ----------------------------------------------------------------------------------------------------------------------
# Outlets: where converted rows go, in splits that are written anywhere and joined once, in one place.
#
# A split is written below a directory of its own; nothing appears under the target's name before `join`.

PARQUET_CODECS = ("zstd", "snappy", "gzip", "lz4", "none")
TEXT_CODECS = {"none": "", "gzip": ".gz", "zstd": ".zst"}
FORMS = ("base64", "hex", "escape")
#: The endings that make the target one file and not a directory of files.
ENDINGS = {"parquet": (".parquet",), "jsonl": (".jsonl", ".ndjson", ".json"), "csv": (".csv",)}
PLAIN = tuple(ENDINGS)


@dataclass(frozen=True, slots=True)
class WrittenSplit:
    """The result of one split: its directory, the number of rows, what only the outlet understands, and what its rows lose."""

    folder: str
    rows: int
    content: Any = None
    lost: Mapping[str, ColumnLoss] = field(default_factory=dict)
    refused: bool = False


class Outlet(ABC):
    """A target by its name and options, all checked. Picklable."""

    #: The losses that the user accepts, by column.
    accepted: tuple[str, ...] = ()
    #: Whether rows get back what they had before another system's format could not carry it.
    restores: bool = False

    #: Whether several splits may be written at once.
    divides: bool = False
    #: Whether the rows of a partition should be in one split.
    by_partition: bool = False

    def __init__(self, path: str, table: Table, overwrite: bool) -> None:
        self.path = path if is_remote(path) else os.path.abspath(local_path(path))
        #: The rows as they are read, and as they are written: decoded, or only some columns of them.
        self.source = self.table = table
        self.overwrite = overwrite

    def shape(self, selection: Selection) -> None:
        """Write rows as a selection makes them. OptionError if the target takes only whole records."""
        self.table = selection.wanted(self.source)

    @property
    @abstractmethod
    def is_directory(self) -> bool:
        """Whether the target is a directory."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the rows are written as."""

    @abstractmethod
    def loss_check(self) -> LossCheck:
        """The way of rows into the target, which judges what they lose."""

    @abstractmethod
    def write(self, batches: Iterable[pa.RecordBatch], folder: str, name: str) -> WrittenSplit:
        """Write rows below `folder`, an empty local directory or a URL, under names that contain `name`."""

    def rehearse(self, batches: Iterable[pa.RecordBatch]) -> WrittenSplit:
        """The same without a trace: what rows would lose. EncodeError if they cannot be written."""
        check = self.loss_check()
        try:
            for _ in check.over(batches, restore=self.restores):
                pass
        except LossError:
            return WrittenSplit("", check.rows, None, check.lost, refused=True)
        return WrittenSplit("", check.rows, None, check.lost)

    @abstractmethod
    def join(self, splits: Sequence[WrittenSplit]) -> None:
        """Make all splits, in the order of their rows, appear at the target."""

    def check(self) -> None:
        """AccessError if the target is in the way, before anything is done."""
        if not self.overwrite and exists(self.path) and not self._is_empty():
            raise ExistsError(f"{self.path}: exists already")
        if self.is_directory:
            Output(self.path, overwrite=True).check()

    def _is_empty(self) -> bool:
        return self.is_directory and not is_remote(self.path) and os.path.isdir(self.path) and not os.listdir(self.path)


def outlet(
    to: str,
    path: str,
    *,
    table: Table = RECORDS,
    options: Mapping[str, str] | None = None,
    accepted: Iterable[str] = (),
    overwrite: bool = False,
) -> Outlet:
    """The outlet for a target by the name of its format. OptionError for an unknown one, or for options that it does not have."""
    if to in PLAIN:
        return FileOutlet(to, path, table, options or {}, tuple(accepted), overwrite)
    if to not in _systems() and "." not in to:
        raise unknown("target", to, (*PLAIN, *_systems()))
    if table.name != RECORDS.name:
        raise OptionError(f"table {table.name} goes to {', '.join(PLAIN)}; {to} is made of records")
    format = writable(to)
    kind = SplitOutlet if format.can("splits") else FormatOutlet
    return kind(format, path, options or {}, tuple(accepted), overwrite)


def _systems() -> tuple[str, ...]:
    from rawlog import registry

    return tuple(family.name for family in registry.families() if any(format.is_written for format in family.formats))


def make_stage_directory(folder: str, *, parents: bool = False) -> None:
    """Make a local directory. AccessError if that fails.

    Without `parents` the one above must be there: a task that outlives its job shall not bring back the stage that was removed.
    """
    if not is_remote(folder):
        try:
            if parents:
                os.makedirs(folder, exist_ok=True)
            elif not os.path.isdir(folder):
                os.mkdir(folder)
        except OSError as error:
            raise unwritable(folder, error) from None


# Plain files -------------------------------------------------------------------------------------------------------


class FileOutlet(Outlet):
    """Parquet, JSON lines or CSV: one file if the target's name says so, else a directory with one file for each split."""

    def __init__(
        self,
        kind: str,
        path: str,
        table: Table,
        options: Mapping[str, str],
        accepted: tuple[str, ...],
        overwrite: bool,
    ) -> None:
        super().__init__(path, table, overwrite)
        self.kind = kind
        self.accepted = tuple(table.column(name).name for name in accepted)
        names = ("codec",) if kind == "parquet" else ("codec", "bytes")
        for name in options:
            if name not in names:
                raise unknown(f"option of {kind}", name, names)
        named, _ = split_query(path)
        plain = named.removesuffix("/")
        packed = next((codec for codec, ending in TEXT_CODECS.items() if ending and plain.endswith(ending)), None)
        bare = plain.removesuffix(TEXT_CODECS[packed]) if packed and kind != "parquet" else plain
        self.divides = named.endswith("/") or not bare.endswith(ENDINGS[kind])
        codecs = PARQUET_CODECS if kind == "parquet" else tuple(TEXT_CODECS)
        default = "zstd" if kind == "parquet" else (packed if packed and not self.divides else "none")
        self.codec = options.get("codec", default)
        if self.codec not in codecs:
            raise unknown(f"codec of {kind}", self.codec, codecs)
        self.form = options.get("bytes")
        if self.form is not None and self.form not in FORMS:
            raise unknown("form of bytes", self.form, FORMS)

    @property
    def is_directory(self) -> bool:
        return self.divides

    @property
    def name(self) -> str:
        return self.kind

    @property
    def ending(self) -> str:
        return ENDINGS[self.kind][0] + ("" if self.kind == "parquet" else TEXT_CODECS[self.codec])

    def write(self, batches: Iterable[pa.RecordBatch], folder: str, name: str) -> WrittenSplit:
        make_stage_directory(folder)
        path = below(folder, f"{name}{self.ending}")
        check = self.loss_check()
        rows = check.over(batches, restore=self.restores)
        try:
            count = self._write_parquet(rows, path) if self.kind == "parquet" else self._write_lines(rows, path)
        except LossError:
            return WrittenSplit(folder, check.rows, path, check.lost, refused=True)
        return WrittenSplit(folder, count, path, check.lost)

    def loss_check(self) -> LossCheck:
        """The check of rows for the file. A file of rows keeps all columns: only what could not be read exactly is lost."""
        return LossCheck(Format(name=self.kind, title=self.kind, files=self.ending), {}, self.accepted)

    def _write_parquet(self, batches: Iterable[pa.RecordBatch], path: str) -> int:
        from rawlog.lakes.parquet import Sheet

        sheet = Sheet(path, self.table, self.codec)
        try:
            for batch in batches:
                sheet.add(batch)
            sheet.close(empty=True)
        except BaseException:
            sheet.discard()
            raise
        return sheet.rows

    def _write_lines(self, batches: Iterable[pa.RecordBatch], path: str) -> int:
        import pyarrow as pa

        from rawlog.io.storage import file_system
        from rawlog.reading import render

        lines = (render.json_lines if self.kind == "jsonl" else render.csv_lines)(self.table.schema, self.form)
        system, inner = file_system(path)
        rows = 0
        try:
            with contextlib.ExitStack() as stack:
                file: Any = stack.enter_context(system.open_output_stream(inner, compression=None))
                if self.codec != "none":
                    file = stack.enter_context(pa.CompressedOutputStream(file, self.codec))
                if self.kind == "csv":
                    file.write(render.csv_header(self.table.schema))
                for batch in batches:
                    for piece in lines.pieces(batch):
                        file.write(piece)
                    rows += batch.num_rows
        except OSError as error:
            raise unwritable(self.path, error) from None
        return rows

    def join(self, splits: Sequence[WrittenSplit]) -> None:
        if not self.divides:
            [split] = splits
            move(split.content, self.path, overwrite=self.overwrite)
            return
        self.check()
        filled = [split for split in splits if split.rows] or list(splits[:1])
        names = [f"part-{number:05d}{self.ending}" for number in range(len(filled))]
        if is_remote(self.path):
            self._join_remote(filled, names)
            return
        if not filled:
            make_stage_directory(self.path, parents=True)
            return
        whole = Folder(Path(filled[0].folder).parent / "whole", named=self.path).make()
        for split, name in zip(filled, names, strict=True):
            whole.take(split.content, name)
        with Output(self.path, overwrite=self.overwrite) as output:
            output.put(whole.path)

    def _join_remote(self, filled: Sequence[WrittenSplit], names: Sequence[str]) -> None:
        """Files one by one: an object store has no other way. Those of before go last, so that nothing is missing in between."""
        from rawlog.io.storage import file_system

        before = [entry.path for entry in listing(self.path)] if exists(self.path) else []
        fresh = [below(self.path, name) for name in names]
        for split, path in zip(filled, fresh, strict=True):
            move(split.content, path, overwrite=True)
        for path in set(before) - set(fresh):
            system, inner = file_system(path)
            system.delete_file(inner)


# Formats -----------------------------------------------------------------------------------------------------------


class FormatOutlet(Outlet):
    """A format that one writer makes: a file, or a directory of several."""

    restores = True

    def __init__(
        self, format: Format, path: str, options: Mapping[str, str], accepted: tuple[str, ...], overwrite: bool
    ) -> None:
        super().__init__(path, RECORDS, overwrite)
        self.format, self.options, self.accepted = format.name, dict(options), accepted
        if format.can("write") and format.can("encode"):
            named = format.match is not None and format.match(path) is not None
            path = path if named or path.endswith("/") else f"{path}/"
        self._directory = is_directory(format, path)
        if self._directory and is_remote(path):
            raise OptionError(f"{path}: {format.family} is written as a directory of files, which needs a local path")
        self.loss_check()

    def shape(self, selection: Selection) -> None:
        """OptionError if rows would not be whole records with their bytes."""
        wanted = [(column.name, column.type) for column in selection.wanted(self.source).columns]
        if wanted != [(column.name, column.type) for column in self.source.columns]:
            raise OptionError(
                f"--decode and --columns go with {', '.join(PLAIN)}; {self.format} is made of whole records"
            )

    @property
    def is_directory(self) -> bool:
        return self._directory

    @property
    def name(self) -> str:
        return self.format

    def loss_check(self) -> LossCheck:
        """The check of rows for the format. OptionError for options that it does not have."""
        return LossCheck(writable(self.format), self.options, self.accepted)

    def write(self, batches: Iterable[pa.RecordBatch], folder: str, name: str) -> WrittenSplit:
        make_stage_directory(folder)
        path = below(folder, name) + ("/" if self._directory else "")
        return self._write_checked(folder, lambda check: self._write_rows(check, batches, path))

    def rehearse(self, batches: Iterable[pa.RecordBatch]) -> WrittenSplit:
        path = self.path + ("/" if self._directory else "")
        return self._write_checked("", lambda check: self._write_rows(check, batches, path, dry_run=True))

    def _write_rows(
        self, check: LossCheck, batches: Iterable[pa.RecordBatch], path: str, *, dry_run: bool = False
    ) -> Any:
        write(check, _records(batches), path, self.options, overwrite=dry_run, dry_run=dry_run)
        return path

    def _write_checked(self, folder: str, make: Any) -> WrittenSplit:
        """What `make` wrote; rows that were refused are reported, not raised: other splits may refuse more."""
        check = self.loss_check()
        try:
            content = make(check)
        except LossError:
            return WrittenSplit(folder, check.rows, None, check.lost, refused=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        return WrittenSplit(folder, check.rows, content, check.lost)

    def join(self, splits: Sequence[WrittenSplit]) -> None:
        [split] = splits
        if not self._directory:
            move(split.content, self.path, overwrite=self.overwrite)
            return
        self.check()
        with Output(self.path, overwrite=self.overwrite) as output:
            output.put(split.content)


class SplitOutlet(FormatOutlet):
    """A format that is written in splits, one for each partition."""

    divides = True
    by_partition = True

    def check(self) -> None:
        """Nothing here: partitions that exist already are reported one by one, and others may be added."""

    def _write_rows(
        self, check: LossCheck, batches: Iterable[pa.RecordBatch], path: str, *, dry_run: bool = False
    ) -> Any:
        splits = writable(self.format).codec.splits
        if not dry_run:
            make_stage_directory(path)
        folder = Folder(path, named=self.path, dry_run=dry_run)
        return path, splits.write(check.over(_records(batches)), folder, self.options)

    def join(self, splits: Sequence[WrittenSplit]) -> None:
        writer = writable(self.format).codec.splits
        with Output(self.path, overwrite=self.overwrite) as output:
            writer.join([split.content for split in splits], output, self.options)


def _records(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield as_records(batch)
