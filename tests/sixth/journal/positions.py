"""The index of a segment, `<first number>.positions`: where every entry begins whose number is a multiple of eight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.kernels import columns
from rawlog.model.explain import Node, layout_nodes
from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import File, Inspection, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from tests.sixth.journal.layouts import ALIGNMENT, FILE_HEADER, POSITION, STEP

LAYOUTS = (POSITION,)


def scan(data: Bytes, kind: int) -> Frames:
    """The whole entries of an index: all have the same size, and every byte belongs to one."""
    starts = np.arange(data.size // POSITION.size, dtype=np.int64) * POSITION.size
    reached = len(starts) * POSITION.size
    status = Status.OK if reached == data.size else Status.TRUNCATED
    return Frames(data, starts, starts + POSITION.size, reached, status, kind=kind)


def fields(frames: Frames) -> NDArray[Any]:
    """The fields of index entries."""
    return POSITION.take(frames.data, frames.starts)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Index entries as rows of `journal.positions`."""
    if len(frames):
        rows = fields(frames)
        made = {name: columns.integers(rows[name], "bigint") for name in ("number", "position")}
        made["path"] = columns.constant(want.file.path, "string", len(frames))
        yield columns.batch(want.table, made, len(frames))


def explain(frames: Frames, file: File) -> list[Node]:
    """One entry of an index."""
    start = int(frames.starts[0])
    nodes = layout_nodes(POSITION, frames.data, start, frames.base)
    return [Node(frames.base + start, POSITION.size, f"{POSITION.name}, frame {frames.first}", children=nodes)]


@rule("journal.positions.order", Severity.ERROR)
def not_rising(seen: Inspection) -> Iterator[Mark]:
    """An index entry is not above the one before it, or its number or position is impossible.

    The index is derived from the segment: delete it, or let `rawlog repair` rebuild it.
    """
    if not len(seen.frames):
        return
    rows = fields(seen.frames)
    numbers, places = rows["number"].astype(np.int64), rows["position"].astype(np.int64)
    wrong = (numbers % STEP != 0) | (places < FILE_HEADER.size) | (places % ALIGNMENT != 0)
    wrong |= numbers <= np.append(seen.memory.get("number", -1), numbers[:-1])
    wrong |= places <= np.append(seen.memory.get("position", 0), places[:-1])
    seen.memory.update(number=int(numbers[-1]), position=int(places[-1]))
    for index in np.flatnonzero(wrong).tolist():
        yield Mark("invalid or not rising", int(seen.frames.positions[index]), int(seen.frames.sizes[index]))


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over an index."""
    return (not_rising,)


@dataclass(slots=True)
class IndexSummary:
    """An index: its bytes. It is an eighth of the number of entries long."""

    file: File
    near: Sequence[File]
    start: int = 0
    stop: int | None = None
    index: bytes = b""
    rises: bool = True

    def see(self, frames: Frames) -> None:
        self.index += bytes(frames.data[: frames.reached])
        if frames.last:
            self.index += bytes(frames.data[frames.reached :])  # an unfinished entry: then it differs

    def close(self) -> Self:
        self.near = ()
        return self

    def merge(self, following: IndexSummary) -> Self:
        self.index += following.index
        return self


summary = IndexSummary


def encode_entries(numbers: NDArray[np.int64], positions: NDArray[np.int64]) -> bytes:
    """The index of a segment whose entries have these numbers and positions."""
    chosen = numbers % STEP == 0
    rows = np.empty(int(chosen.sum()), POSITION.dtype)
    rows["number"], rows["position"] = numbers[chosen], positions[chosen]
    return rows.tobytes()
