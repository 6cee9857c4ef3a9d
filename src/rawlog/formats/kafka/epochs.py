"""The leader epochs of a partition, `leader-epoch-checkpoint`: the first offset of each.

`partition/survey.py` checks it against the log. No rewrite copies it:
`partition/writer.py:LeaderEpochs` makes it again from the batches that are kept.

Authority: org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from rawlog.formats.kafka.entries import rising
from rawlog.formats.kafka.texts import explain, fault, fields_of, line, scan_rows
from rawlog.kernels import columns
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import Inspection, Want
from rawlog.model.frames import Bytes, Frames

__all__ = ["decode", "explain", "fault", "rules", "scan"]


def scan(data: Bytes, kind: int) -> Frames:
    """The `epoch offset` rows."""
    return scan_rows(data, 32, 64)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The rows of `kafka.epochs`."""
    rows = list(fields_of(frames))
    arrays = {
        "path": columns.constant(want.file.path, "string", len(rows)),
        "topic": columns.constant(want.file.place.topic, "string", len(rows)),
        "partition": columns.constant(want.file.place.partition, "int", len(rows)),
        "epoch": pa.array([int(row[0]) for row in rows], pa.int32()),
        "start_offset": pa.array([int(row[1]) for row in rows], pa.int64()),
    }
    if rows:
        yield columns.batch(want.table, arrays, len(rows))


def parse_epochs(data: bytes) -> list[tuple[int, int]] | None:
    """The epochs of a leader epoch checkpoint with their first offsets; None if it is anything else."""
    try:
        lines = data.decode("ascii").splitlines()
        rows = [tuple(map(int, line.split())) for line in lines[2:]]
        if (
            (lines and int(lines[0]) != 0)
            or (lines and len(rows) != int(lines[1]))
            or any(len(row) != 2 for row in rows)
        ):
            return None
    except (ValueError, IndexError):
        return None
    return [(epoch, start) for epoch, start in rows]


@rule("kafka.epochs.order", Severity.ERROR)
def order(seen: Inspection) -> Iterator[Mark]:
    """Leader epochs and their start offsets must rise. Followers would truncate at the wrong place."""
    rows = [line(seen.frames, index).split() for index in range(len(seen.frames))]
    for column, what in ((0, "epoch"), (1, "start offset")):
        yield from rising(seen, np.array([int(row[column]) for row in rows], np.int64), what)


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over the file."""
    return (order,)
