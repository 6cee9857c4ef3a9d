"""The sink `rawlog`: a DataFrame of `records` into the files of a message system, in two phases.

Every task writes below a stage next to the target; the driver then joins what the winning attempts wrote, or removes all of it. Formats
that are written in splits (Kafka's partitions) are encoded in the tasks; of others the tasks stage their rows and the driver encodes them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rawlog.core.errors import AccessError, OptionError, unknown
from rawlog.core.tables import RECORDS
from rawlog.io.output import Output, remove_stage
from rawlog.io.storage import is_remote
from rawlog.jobs.convert.outlets import PLAIN, FormatOutlet, WrittenSplit, made_directory, outlet
from rawlog.jobs.target import LossError, added, as_records, check_columns
from rawlog.spark.options import absolute

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OWN = ("to", "path", "acceptLoss")
SPILL = "rows.arrow"


@dataclass
class Message(WriterCommitMessage):
    """What one task wrote, with its number among the tasks."""

    number: int
    split: WrittenSplit


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkWriter:
    """The writer for a DataFrame of this schema. OptionError for unknown options, EncodeError for columns that `records` does not have."""
    given = dict(options)
    named = {name.lower(): given.pop(name) for name in list(given) if name.lower() in {own.lower() for own in OWN}}
    if "to" not in named:
        raise OptionError('no target: .option("to", "kafka") says what to write')
    if "path" not in named:
        raise OptionError("no path: save(path) says where to write")
    if named["to"] in PLAIN:
        raise OptionError(f'to {named["to"]}: Spark writes that itself, df.write.format("{named["to"]}")')
    accepted = [name.strip() for name in named.get("acceptloss", "").split(",") if name.strip()]
    for name in given:
        if difflib.get_close_matches(name.lower(), [own.lower() for own in OWN], cutoff=0.75):
            raise unknown("option", name, OWN)
    target = outlet(named["to"], absolute(named["path"]), options=given, accepted=accepted, overwrite=overwrite)
    assert isinstance(target, FormatOutlet)
    if is_remote(target.path):
        raise OptionError(f"{target.path}: the sink writes to a path that driver and tasks share; convert takes a URL")
    check_columns(pa.schema([(name, pa.null()) for name in schema.names]))
    if not {"key", "value"} & set(schema.names):
        raise OptionError(f"columns {', '.join(schema.names)}: key or value expected, as in {', '.join(RECORDS.names)}")
    target.check()
    return SinkWriter(target)


class SinkWriter(DataSourceArrowWriter):
    """Writes a DataFrame to an outlet."""

    def __init__(self, target: FormatOutlet) -> None:
        self.target = target
        self.stage = Output(target.path).hand_over()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """The rows of one task."""
        from pyspark import TaskContext

        context = TaskContext.get()
        number, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
        folder = f"{self.stage}/{number:05d}-{attempt}"
        rows = (as_records(batch) for batch in iterator)
        return Message(number, self.target.write(rows, folder, "rows") if self.target.divides else spill(rows, folder))

    def commit(self, messages: list[Message | None]) -> None:  # type: ignore[override]
        """Join what the winning attempts wrote. LossError, with nothing written, if a loss was not accepted."""
        try:
            written = sorted((one for one in messages if one is not None), key=lambda one: one.number)
            splits = [one.split for one in written]
            if not self.target.divides:
                splits = [self.target.write(spilled(splits), f"{self.stage}/all", "rows")]
            lost = added(split.lost for split in splits)
            refused = [one for name, one in lost.items() if name not in self.target.accepted]
            if refused:
                rows = sum(split.rows for split in splits)
                error = LossError(self.target.format, refused, rows, self.target.accepted)
                raise OptionError(error.message('.option("acceptLoss", …) with '))
            self.target.join(splits)
        finally:
            remove_stage(self.stage)

    def abort(self, messages: list[Message | None]) -> None:  # type: ignore[override]
        """Remove what was written."""
        remove_stage(self.stage)


def spill(batches: Iterable[pa.RecordBatch], folder: str) -> WrittenSplit:
    """Lay rows aside. AccessError if they cannot be written."""
    made_directory(folder)
    path, rows = os.path.join(folder, SPILL), 0
    try:
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, RECORDS.schema, options=options) as out:
            for batch in batches:
                out.write_batch(batch)
                rows += batch.num_rows
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None
    return WrittenSplit(folder, rows, path)


def spilled(splits: Iterable[WrittenSplit]) -> Iterator[Any]:
    """The rows that tasks laid aside, in the order of the tasks."""
    for split in splits:
        with pa.OSFile(split.made, "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream
