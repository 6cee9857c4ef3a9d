"""Rows of `records` as a log segment or a whole store, and what of them would read back otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.core.errors import EncodeError
from rawlog.core.format import File, Judge, Want
from rawlog.core.frames import Frames
from rawlog.core.tables import RECORDS
from rawlog.formats.ambry.encoder import Choice, encode_batch
from rawlog.formats.ambry.kernels.encode import place_messages
from rawlog.formats.ambry.layouts import SEGMENT_HEADER
from rawlog.formats.ambry.store.store_writer import StoreWriter
from rawlog.formats.ambry.writer import segment_header
from rawlog.io.output import new_directory


def encode(batches: Iterable[pa.RecordBatch], options: Mapping[str, str]) -> Iterator[bytes]:
    """The bytes of a log segment. EncodeError for what no message can hold, or past the segment's capacity."""
    choice = Choice.told(options)
    yield segment_header(choice.capacity)
    size, number = SEGMENT_HEADER.size, 0
    for batch in batches:
        for frames in encode_batch(batch, number, choice):
            if size + frames.reached > choice.capacity:
                row = number + int(np.argmax(frames.stops + size > choice.capacity))
                raise EncodeError(
                    f"row {row:,}: past the segment's capacity of {choice.capacity:,} bytes; raise `capacity`"
                )
            yield frames.data.tobytes()
            size += frames.reached
            number += len(frames)


def write(batches: Iterable[pa.RecordBatch], target: str, options: Mapping[str, str], overwrite: bool = False) -> int:
    """Rows of `records` as a whole store: log segments as they fill, index, blooms and descriptor; the number of rows."""
    choice, number = Choice.told(options), 0
    with new_directory(target, overwrite=overwrite) as stage:
        store = StoreWriter(stage, capacity=choice.capacity)
        try:
            for batch in batches:
                for frames in encode_batch(batch, number, choice):
                    store.extend(frames.data)
                    number += len(frames)
            store.close()
        finally:
            store.abandon()
    return number


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are: they are written and read, and compared.

    OptionError for options that are none.
    """
    choice = Choice.told(options)
    seen, start, end = 0, 0, SEGMENT_HEADER.size

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        nonlocal seen, start, end
        parts, at = [], 0
        for frames in encode_batch(batch, seen, choice):
            segments, positions = np.empty((2, len(frames)), np.int64)
            start, end = place_messages(
                frames.sizes, start, end, choice.capacity, SEGMENT_HEADER.size, segments, positions
            )
            parts.append(_compared(batch.slice(at, len(frames)), frames, positions))
            at += len(frames)
        seen += at
        return {name: np.concatenate([part[name] for part in parts]) for name in RECORDS.names} if parts else {}

    return judge


def _compared(batch: pa.RecordBatch, frames: Frames, positions: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Which rows differ from what their messages say, by column. A row without an offset may stand anywhere."""
    from rawlog.formats.ambry.reader import decode

    parts: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in RECORDS.names}
    at = 0
    for again in decode(frames, Want(RECORDS, File("", 0))):
        before = batch.slice(at, again.num_rows)
        for name, differs in parts.items():
            old, new = before.column(name), again.column(name)
            if name == "headers":
                differs.append(_lists_differ(old, new))
            elif name == "offset":
                new = pa.array(positions[at : at + again.num_rows])
                differs.append(_mask(pc.not_equal(old, new)))
            else:
                differs.append(_differ(old, new))
        at += again.num_rows
    assert at == len(frames), "a message of ours that cannot be read"
    return {name: np.concatenate(differs) for name, differs in parts.items()}


def _differ(old: pa.Array, new: pa.Array) -> NDArray[np.bool_]:
    """Where two columns of one type differ: null is equal to null, and to nothing else."""
    differ: NDArray[np.bool_] = _mask(pc.not_equal(old, new)) | (_mask(old.is_valid()) != _mask(new.is_valid()))
    return differ


def _lists_differ(old: pa.Array, new: pa.Array) -> NDArray[np.bool_]:
    """Where two columns of headers differ; no list is not an empty one."""
    sizes = [pc.fill_null(pc.list_value_length(column), 0).to_numpy() for column in (old, new)]
    differ: NDArray[np.bool_] = (sizes[0] != sizes[1]) | (_mask(old.is_valid()) != _mask(new.is_valid()))
    rows = np.repeat(np.arange(differ.size), np.where(differ, 0, sizes[0]))
    pairs = [
        column.flatten().filter(pa.array(np.repeat(~differ, size)))
        for column, size in zip((old, new), sizes, strict=True)
    ]
    for one, other in zip(*(pair.flatten() for pair in pairs), strict=True):
        differ[rows[_differ(one, other)]] = True
    return differ


def _mask(test: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return found
