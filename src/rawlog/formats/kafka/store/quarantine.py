"""What a repair cuts, kept aside: the bytes as they were, and as Parquet the records in them that can still be read.

No checksum protects such records: the checksum of their batch does not match, so any byte of them may be wrong, their offsets too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rawlog.core.errors import DataError
from rawlog.core.format import Place
from rawlog.core.frames import Bytes
from rawlog.core.status import OK
from rawlog.core.tables import RECORDS
from rawlog.formats.kafka.heads import Heads, take
from rawlog.formats.kafka.kernels.compact import locate_records_v2
from rawlog.formats.kafka.kernels.encode import seal_batches
from rawlog.formats.kafka.layouts import BATCH, CODEC_MASK, CODECS, MAGIC_V2, OUTLINE, SMALLEST_RECORD
from rawlog.formats.kafka.legacy import decode_legacy
from rawlog.formats.kafka.reader import COLUMNS, Columns, TooMuch, decode_columns
from rawlog.io import compression
from rawlog.io.output import Folder
from rawlog.kernels import byte_view
from rawlog.kernels.columns import batch, constant

LIMIT = compression.DEFAULT_LIMIT


class Quarantine:
    """A directory, empty at first, for what is cut."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.records = 0
        self._names: list[str] = []

    def keep(self, name: str, data: Bytes, start: int, stop: int, place: Place) -> None:
        """Put bytes aside under the name of their file and their place in it, and next to them what can be read of them."""
        if not data[start:stop].any():
            return
        own = f"{name}.{start}-{stop}"
        self._names.append(f"{own}.cut")
        self.folder.write(self._names[-1], data[start:stop].tobytes())
        made = [_rows(one, place) for one in readable(data[start:stop])]
        if made:
            table = pa.Table.from_batches(made)
            self._names.append(f"{own}.parquet")
            with self.folder.create(self._names[-1]) as file:
                pq.write_table(table, file)
            self.records += table.num_rows

    def discard(self) -> None:
        """Remove what was put aside: it is to be done again."""
        for name in self._names:
            self.folder.remove(name)
        self._names, self.records = [], 0


def _rows(found: Columns, place: Place) -> pa.RecordBatch:
    arrays = dict(found.arrays)
    for name, value in (("topic", place.topic), ("partition", place.partition)):
        arrays[name] = constant(value, RECORDS.column(name).type, found.count)
    return batch(RECORDS, arrays, found.count)


def readable(data: Bytes) -> Iterator[Columns]:
    """The records of a batch that begins with the data and whose checksum is wrong."""
    if data.size <= OUTLINE.size:
        return
    length = int.from_bytes(data[OUTLINE.at("length") : OUTLINE.after("length")].tobytes(), "big", signed=True)
    stop = min(OUTLINE.after("length") + length, data.size) if length > 0 else data.size
    head = take(byte_view(data), np.zeros(1, np.int64), np.array([stop], np.int64), check_crc=False)
    if not head.sound.all() or head.codec[0] >= len(CODECS):
        return
    try:
        if head["magic"][0] == MAGIC_V2:
            yield from _survivors(data[BATCH.size : stop], head)
        else:
            ends = np.zeros(1, np.int64), np.array([stop], np.int64)
            yield decode_legacy(data, *ends, COLUMNS, head=head, limit=LIMIT, total=LIMIT)
    except (DataError, TooMuch):
        return


def _survivors(payload: Bytes, head: Heads) -> Iterator[Columns]:
    """Runs of records of a batch that are whole; one that is not is skipped, if its length is credible."""
    plain = byte_view(compression.decompress(CODECS[int(head.codec[0])], payload, limit=LIMIT))
    position = 0
    while plain.size - position >= SMALLEST_RECORD:
        rest = plain[position:]
        room = rest.size // SMALLEST_RECORD
        offsets, keys, sizes = (np.empty(room, np.int64) for _ in range(3))
        span = np.zeros(1, np.int64), np.array([rest.size], np.int64)
        wanted, base = np.array([room], np.int64), np.ascontiguousarray(head["base_offset"])
        count, reached, status = locate_records_v2(
            rest, *span, wanted, base, offsets, keys, sizes, np.empty(room, np.bool_)
        )
        yield from _decoded(rest[: int(reached) if status != OK else rest.size], head, int(count))
        if status == OK:
            return
        skipped = _length(rest, int(reached))
        if skipped is None:
            return
        position += int(reached) + skipped


def _length(data: Bytes, position: int) -> int | None:
    """How many bytes the record at a position says it takes, if they are there."""
    value = shift = 0
    for number, byte in enumerate(data[position : position + 5].tolist()):
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            size = (value >> 1) ^ -(value & 1)
            whole = number + 1 + size
            return whole if 0 < size <= data.size - position - number - 1 else None
        shift += 7
    return None


def _decoded(records: Bytes, head: Heads, count: int) -> Iterator[Columns]:
    """So many records as columns; where one among them cannot be read, those on both sides of it."""
    if not count:
        return
    one = Heads(head.values.copy())
    one["attributes"][:] &= ~CODEC_MASK
    one["record_count"][:] = count
    whole = np.concatenate((np.zeros(BATCH.size, np.uint8), records))
    ends = np.zeros(1, np.int64), np.array([whole.size], np.int64)
    seal_batches(whole, *ends, one.values)
    try:
        yield decode_columns(whole, *ends, COLUMNS, limit=LIMIT)
    except DataError:
        middle = _nth(records, count // 2)
        if count > 1 and middle is not None:
            yield from _decoded(records[:middle], head, count // 2)
            yield from _decoded(records[middle:], head, count - count // 2)


def _nth(records: Bytes, number: int) -> int | None:
    """Where a record begins, by its number."""
    position = 0
    for _ in range(number):
        size = _length(records, position)
        if size is None:
            return None
        position += size
    return position
