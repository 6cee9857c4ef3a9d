"""Rows on their way into a format: brought to the columns of `records`, restored, and judged for what would be lost.

`write` does all of it for one writer. Splits that are written apart each have a `LossCheck`, and `total_losses` adds up their losses.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rawlog import registry
from rawlog.io.output import Output, writing
from rawlog.io.storage import is_remote, local_path
from rawlog.model.errors import EncodeError, OptionError
from rawlog.model.format import Format
from rawlog.model.table import RECORDS
from rawlog.model.text import counted

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.kernels.columns import Marks


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
    for field in RECORDS.schema:
        values = [row.get(field.name) for row in rows]
        try:
            arrays.append(pa.array(values, field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise EncodeError(f"column {field.name}: {str(error).splitlines()[0]}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS.schema)


def _not_rows(value: object) -> EncodeError:
    return EncodeError(
        f"rows expected (dicts, RecordBatches, a pyarrow Table or any Arrow stream), not {type(value).__name__}"
    )


def check_columns(schema: pa.Schema) -> None:
    """EncodeError for columns that `records` does not have, or that are there twice."""
    if twice := {name for name in schema.names if schema.names.count(name) > 1}:
        raise EncodeError(f"columns that are there twice: {', '.join(sorted(twice))}")
    if extra := set(schema.names) - set(RECORDS.names):
        raise EncodeError(f"no column of records: {', '.join(sorted(extra))}; these are: {', '.join(RECORDS.names)}")


def as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch with exactly the columns of `records`, those that it lacks null. EncodeError for one of another kind."""
    import pyarrow as pa

    from rawlog.kernels.columns import Marks, marked

    arrays = []
    for field in RECORDS.schema:
        if field.name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        try:
            arrays.append(batch.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise EncodeError(f"column {field.name}: {str(error).splitlines()[0]}") from None
    records = pa.RecordBatch.from_arrays(arrays, schema=RECORDS.schema)
    return marked(records, Marks.of(batch.schema))
