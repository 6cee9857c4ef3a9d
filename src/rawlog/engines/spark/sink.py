"""The sink `rawlog`: a DataFrame of `records`, or a stream of them, into the files of a message system, in two phases.

Every task writes below a stage next to the target; the driver then joins what the winning attempts wrote, or removes all of it. Formats
that are written in splits (Kafka's partitions) are encoded in the tasks; of others the tasks stage their rows and the driver encodes them.

Each batch of a stream is a target of its own, `PATH/batch-000000000012`, which gets its name in one step. A batch that is run again after a
crash finds its name taken: it was written. `PATH/query.json` names the query, so that one with another checkpoint, whose batches have other
rows, is refused.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rawlog.engines.spark.options import absolute
from rawlog.io.output import Output, make_directory, remove_stage, writing
from rawlog.io.storage import Source, exists, is_remote
from rawlog.lakes.targets import (
    PLAIN,
    FormatOutlet,
    LossError,
    WrittenSplit,
    as_records,
    check_columns,
    make_stage_directory,
    outlet,
    total_losses,
)
from rawlog.model.errors import AccessError, OptionError, unknown
from rawlog.model.table import RECORDS

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OWN = ("to", "path", "acceptLoss")
QUERY = "query.json"
SPILL = "rows.arrow"


@dataclass
class Message(WriterCommitMessage):
    """What one task wrote, with its number among the tasks."""

    number: int
    split: WrittenSplit


def writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkWriter:
    """The writer for a DataFrame of this schema. OptionError for unknown options, EncodeError for columns that `records` does not have."""
    target = _target(options, schema, overwrite)
    target.check()
    return SinkWriter(target)


def stream_writer(options: Mapping[str, str], schema: StructType) -> StreamSinkWriter:
    """The same for a stream. OptionError also if there is no checkpoint location: it identifies the query."""
    rest = dict(options)
    named = [name for name in rest if name.lower() == "checkpointlocation"]
    if not named:
        raise OptionError('no checkpoint: .option("checkpointLocation", …) is needed, it identifies the query')
    location = absolute(rest.pop(named[0]))
    return StreamSinkWriter(_target(rest, schema, False), location)


def _target(options: Mapping[str, str], schema: StructType, overwrite: bool) -> FormatOutlet:
    rest = dict(options)
    named = {name.lower(): rest.pop(name) for name in list(rest) if name.lower() in {option.lower() for option in OWN}}
    if "to" not in named:
        raise OptionError('no target: .option("to", "kafka") says what to write')
    if "path" not in named:
        raise OptionError("no path: save(path) says where to write")
    if named["to"] in PLAIN:
        raise OptionError(f'to {named["to"]}: Spark writes that itself, df.write.format("{named["to"]}")')
    accepted = [name.strip() for name in named.get("acceptloss", "").split(",") if name.strip()]
    for name in rest:
        if difflib.get_close_matches(name.lower(), [option.lower() for option in OWN], cutoff=0.75):
            raise unknown("option", name, OWN)
    target = outlet(named["to"], absolute(named["path"]), options=rest, accepted=accepted, overwrite=overwrite)
    assert isinstance(target, FormatOutlet)
    if is_remote(target.path):
        raise OptionError(f"{target.path}: the sink writes to a path that driver and tasks share; convert takes a URL")
    check_columns(pa.schema([(name, pa.null()) for name in schema.names]))
    if not {"key", "value"} & set(schema.names):
        raise OptionError(f"columns {', '.join(schema.names)}: key or value expected, as in {', '.join(RECORDS.names)}")
    return target


class SinkWriter(DataSourceArrowWriter):
    """Writes a DataFrame to an outlet."""

    def __init__(self, target: FormatOutlet) -> None:
        self.target = target
        self.stage = Output(target.path).hand_over()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """The rows of one task."""
        return _write_task(self.target, self.stage, iterator)

    def commit(self, messages: list[Message | None]) -> None:  # type: ignore[override]
        """Join what the winning attempts wrote. OptionError, with nothing written, if a loss was not accepted."""
        try:
            _join(self.target, messages, f"{self.stage}/all")
        finally:
            remove_stage(self.stage)

    def abort(self, messages: list[Message | None]) -> None:  # type: ignore[override]
        """Remove what was written."""
        remove_stage(self.stage)


class StreamSinkWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a stream once, as a target of its own below a directory."""

    def __init__(self, target: FormatOutlet, checkpoint: str) -> None:
        self.target, self.checkpoint = target, checkpoint
        self.stage = Output(target.path).hand_over()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """The rows of one task of a batch."""
        return _write_task(self.target, self.stage, iterator)

    def commit(self, messages: list[Message | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Join what the tasks wrote, unless the batch was written before. AccessError if the directory belongs to another query."""
        self._claim()
        ending = "" if self.target.is_directory else ".log"
        path = f"{self.target.path}/batch-{batchId:012d}{ending}"
        try:
            if not exists(path) and any(message is not None and message.split.rows for message in messages):
                batch_target = outlet(
                    self.target.format, path, options=self.target.options, accepted=self.target.accepted
                )
                assert isinstance(batch_target, FormatOutlet)
                _join(batch_target, messages, f"{self.stage}/all-{batchId}")
        finally:
            self.abort(messages, batchId)

    def abort(self, messages: list[Message | None], batchId: int) -> None:  # type: ignore[override]  # noqa: N803
        """Remove what the tasks of a batch wrote. The stage itself is for the next batch; the next query removes it."""
        for folder in (
            f"{self.stage}/all-{batchId}",
            *(message.split.folder for message in messages if message is not None),
        ):
            remove_stage(folder)

    def _claim(self) -> None:
        """Write the id of the query into the directory; AccessError if there is another one."""
        with Source(f"{self.checkpoint}/metadata") as source:
            query = json.loads(source.read(0, source.size))["id"]
        make_directory(self.target.path)
        path = f"{self.target.path}/{QUERY}"
        if not exists(path):
            with writing(path) as file:
                file.write(json.dumps({"id": query}).encode())
        with Source(path) as source:
            owner = json.loads(source.read(0, source.size))["id"]
        if owner != query:
            raise AccessError(
                f"{self.target.path}: has batches of another query, or of this one with another checkpoint; choose another path"
            )


def _write_task(target: FormatOutlet, stage: str, iterator: Iterator[pa.RecordBatch]) -> Message:
    """What one task writes, in a directory of its own."""
    from pyspark import TaskContext

    context = TaskContext.get()
    number, attempt = (context.partitionId(), context.taskAttemptId()) if context is not None else (0, 0)
    folder = f"{stage}/{number:05d}-{attempt}"
    rows = (as_records(batch) for batch in iterator)
    return Message(number, target.write(rows, folder, "rows") if target.divides else spill(rows, folder))


def _join(target: FormatOutlet, messages: Iterable[Message | None], folder: str) -> None:
    """Make what the winning attempts wrote appear. OptionError, with nothing written, if a loss was not accepted."""
    written = sorted((message for message in messages if message is not None), key=lambda message: message.number)
    splits = [message.split for message in written]
    if not target.divides:
        splits = [target.write(spilled(splits), folder, "rows")]
    lost = total_losses(split.lost for split in splits)
    refused = [loss for name, loss in lost.items() if name not in target.accepted]
    if refused:
        error = LossError(target.format, refused, sum(split.rows for split in splits), target.accepted)
        raise OptionError(error.message('.option("acceptLoss", …) with '))
    target.join(splits)


def spill(batches: Iterable[pa.RecordBatch], folder: str) -> WrittenSplit:
    """Lay rows aside. AccessError if they cannot be written."""
    make_stage_directory(folder)
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
        with pa.OSFile(split.content, "rb") as file, pa.ipc.open_stream(file) as stream:
            yield from stream
