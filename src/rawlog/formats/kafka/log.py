"""Log segments as tables: which batches there are, which of their records are wanted.

The bytes of records are `reader`'s; this is what a batch's own header decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog import columns
from rawlog.checksums import crc32c_spans
from rawlog.errors import CorruptError, DataError, UnsupportedError
from rawlog.format import NO_TIME, File, Spans, Want
from rawlog.formats.kafka.kernels.batch import scan_batches
from rawlog.formats.kafka.kernels.search import find_batch
from rawlog.formats.kafka.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    MAGIC_V2,
    NONE,
    OUTLINE,
    SMALLEST_BATCH,
    SMALLEST_LENGTH,
    Attributes,
)
from rawlog.formats.kafka.reader import COLUMNS, Columns, TooMuch, decode_columns
from rawlog.formats.kafka.transactions import control_type
from rawlog.frames import Bytes, Frames
from rawlog.kernels import byte_view
from rawlog.status import Status
from rawlog.tables import RECORDS

MOST_MS = ((1 << 63) - 1) // 1000
CODEC_NAMES = pa.array([*CODECS, None, None, None])


def scan(data: Bytes, kind: int) -> Frames:
    """The whole batches of a window."""
    room = data.size // (OUTLINE.after("length") + SMALLEST_LENGTH) + 1
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    count, reached, code = scan_batches(byte_view(data), 0, starts, stops)
    status = Status(code)
    if status in (Status.BAD_LENGTH, Status.TRUNCATED) and not data[reached:].any():
        status = Status.PADDING
    return Frames(data, starts[:count], stops[:count], int(reached), status)


def resync(data: Bytes, position: int, kind: int) -> int:
    """The next position at which a batch begins whose checksum is right, or -1."""
    return int(find_batch(byte_view(data), position))


def fault(frames: Frames) -> DataError:
    """What is wrong with the batch at which the scan stopped."""
    at = frames.reached + OUTLINE.at("length")
    length = int.from_bytes(bytes(frames.data[at : at + 4]), "big", signed=True)
    message = f"batch length {length}, at least {SMALLEST_LENGTH} expected"
    if length >= SMALLEST_LENGTH:
        message = f"batch length {length:,} leads beyond the end of the file, although sound batches follow"
    return CorruptError(
        message,
        position=frames.reached_in_file,
        layout=OUTLINE.name,
        field="length",
        expected=f"at least {SMALLEST_LENGTH}",
        found=length,
    )


@dataclass(frozen=True, slots=True)
class Heads:
    """The headers of batches, a column a field, with what their attributes say."""

    fields: NDArray[Any]

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = self.fields[name].astype(np.int64)
        return values

    def has(self, attribute: Attributes) -> NDArray[np.bool_]:
        test: NDArray[np.bool_] = (self["attributes"] & int(attribute)) != 0
        return test

    @property
    def codec(self) -> NDArray[np.int64]:
        return self["attributes"] & CODEC_MASK

    @property
    def last_offset(self) -> NDArray[np.int64]:
        return self["base_offset"] + self["last_offset_delta"]


def sound(frames: Frames, *, check_crc: bool = True) -> tuple[Frames, DataError | None]:
    """The frames up to the first that is no batch of magic 2 with a right checksum, and what that one is."""
    magic = frames.data[frames.starts + OUTLINE.at("magic")].view(np.int8)
    good = (magic == MAGIC_V2) & (frames.sizes >= BATCH.size)
    if not good.all():
        bad = int(np.argmin(good))
        return frames.slice(0, bad), _not_a_batch(frames, bad, int(magic[bad]))
    if check_crc and len(frames):
        ok = crc_ok(frames)
        if not ok.all():
            bad = int(np.argmin(ok))
            return frames.slice(0, bad), _wrong_crc(frames, bad)
    return frames, None


def crc_ok(frames: Frames) -> NDArray[np.bool_]:
    """For each batch of magic 2 whether its checksum is right."""
    computed = crc32c_spans(frames.data, frames.starts + BATCH.after("crc"), frames.stops)
    matches: NDArray[np.bool_] = computed == heads(frames)["crc"]
    return matches


def heads(frames: Frames) -> Heads:
    """The headers of frames that are all batches of magic 2."""
    return Heads(BATCH.take(frames.data, frames.starts))


def _not_a_batch(frames: Frames, index: int, magic: int) -> DataError:
    position = int(frames.positions[index])
    if magic in (0, 1):
        return UnsupportedError(f"message set of magic {magic}", position=position, field="magic", found=magic)
    if magic == MAGIC_V2:
        length = int(frames.sizes[index]) - BATCH.after("length")
        return CorruptError(
            f"batch length {length}, at least {SMALLEST_BATCH} expected",
            position=position,
            layout=BATCH.name,
            field="length",
            expected=f"at least {SMALLEST_BATCH}",
            found=length,
        )
    return CorruptError(f"magic {magic}, 0 to 2 expected", position=position, field="magic", expected="0 to 2", found=magic)


def _wrong_crc(frames: Frames, index: int) -> DataError:
    one = frames.slice(index, index + 1)
    stored = int(heads(one)["crc"][0])
    computed = int(crc32c_spans(one.data, one.starts + BATCH.after("crc"), one.stops)[0])
    return CorruptError(
        f"checksum {stored:08x}, {computed:08x} expected",
        position=int(one.positions[0]),
        layout=BATCH.name,
        field="crc",
        expected=f"{computed:08x}",
        found=f"{stored:08x}",
    )


def spans(frames: Frames, file: File) -> Spans:
    """What batches cover, by their headers; DataError at the first whose checksum is wrong."""
    whole, error = sound(frames)
    if error is not None:
        raise error
    head = heads(whole)
    data_records = np.where(head.has(Attributes.CONTROL), 0, head["record_count"])
    base, top = head["base_timestamp"], head["max_timestamp"]
    first = np.where(head.has(Attributes.LOG_APPEND_TIME), top, base)
    first = np.where(head.has(Attributes.DELETE_HORIZON) | (head["record_count"] == 0), NONE, first)
    return Spans(
        head["base_offset"],
        head.last_offset + 1,
        _micros(first),
        _micros(top),
        data_records,
        min_is_exact=False,
    )


def _micros(milliseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    known = (milliseconds != NONE) & (np.abs(milliseconds) <= MOST_MS) & (milliseconds != NO_TIME)
    return np.where(known, np.where(known, milliseconds, 0) * 1000, NO_TIME)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Batches as rows of `kafka.batches`, or their records as rows of `records` and `kafka.records`."""
    if want.table.name == "kafka.batches":
        yield from _batches(frames, want)
        return
    whole, error = sound(frames)
    if want.table.name == RECORDS.name and len(whole):
        whole = _only(whole, ~heads(whole).has(Attributes.CONTROL))
    if want.context is not None and len(whole):
        whole = _only(whole, want.context.takes(heads(whole)))
    start = 0
    while start < len(whole):
        stop = _piece(whole, start)
        yield from _records(whole.slice(start, stop), want)
        start = stop
    if error is not None:
        raise error


def _only(frames: Frames, mask: NDArray[np.bool_]) -> Frames:
    if mask.all():
        return frames
    return Frames(
        frames.data,
        frames.starts[mask],
        frames.stops[mask],
        frames.reached,
        frames.status,
        frames.kind,
        frames.base,
        frames.first,
        frames.last,
    )


PIECE = 4 << 20
COMPRESSED_PIECE = 1 << 20
TOTAL = 64 << 20  # decompressed bytes decoded at a time, unless one batch alone holds more


def _piece(frames: Frames, start: int) -> int:
    """Where to cut: memory is bounded by small pieces, smaller ones where compression may multiply them."""
    compressed = bool(heads(frames.slice(start, start + 1)).codec[0])
    size = COMPRESSED_PIECE if compressed else PIECE
    stop = int(np.searchsorted(frames.stops, frames.starts[start] + size, side="right"))
    return max(stop, start + 1)


def _records(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The records of sound batches; before an error, those of the batches in front of the one that has it."""
    names = set(want.table.names)
    try:
        decoded = decode_columns(
            frames.data,
            frames.starts,
            frames.stops,
            _record_columns(names),
            limit=want.limit,
            total=TOTAL,
            check_crc=False,
        )
    except TooMuch as full:
        yield from _records(frames.slice(0, full.fits), want)
        yield from _records(frames.slice(full.fits, len(frames)), want)
        return
    except DataError as error:
        bad = int(np.searchsorted(frames.starts, error.position or 0, side="right")) - 1
        if bad > 0:
            yield from _records(frames.slice(0, bad), want)
        error.position = int(frames.positions[bad])
        raise
    if decoded.count:
        made = _with_batch_columns(frames, want, names, decoded)
        yield columns.batch(want.table, made, decoded.count)


def _record_columns(names: set[str]) -> set[str]:
    """What records themselves must tell for these columns."""
    needed = names & COLUMNS
    if "control_type" in names:
        needed = needed | {"key"}
    return needed | {"offset"} if "sequence" in names else needed


def _with_batch_columns(frames: Frames, want: Want, names: set[str], decoded: Columns) -> dict[str, pa.Array]:
    """The decoded columns, and what file and batch say of every record."""
    made, count = dict(decoded.arrays), decoded.count
    constants = {"topic": want.file.place.topic, "partition": want.file.place.partition, "path": want.file.path}
    for name, value in constants.items():
        if name in names:
            made[name] = columns.constant(value, want.table.column(name).type, count)
    if names - made.keys():
        made |= _from_batches(frames, want, names - made.keys(), decoded)
    return made


def _from_batches(frames: Frames, want: Want, names: set[str], decoded: Columns) -> dict[str, pa.Array]:
    head, row = heads(frames), decoded.batch_index
    made: dict[str, pa.Array] = {}
    if "batch_position" in names:
        made["batch_position"] = columns.integers(frames.positions[row], "bigint")
    for name in names & {"magic", "leader_epoch", "producer_id", "producer_epoch"}:
        made[name] = columns.integers(head[name][row], want.table.column(name).type)
    if "codec" in names:
        made["codec"] = CODEC_NAMES.take(pa.array(head.codec[row]))
    if "sequence" in names:
        made["sequence"] = columns.integers(_sequences(head, row, decoded.arrays["offset"]), "int")
    for name, bit in (("is_transactional", Attributes.TRANSACTIONAL), ("is_control", Attributes.CONTROL)):
        if name in names:
            made[name] = columns.booleans(head.has(bit)[row])
    if "control_type" in names:
        control = head.has(Attributes.CONTROL)[row]
        made["control_type"] = _control_types(decoded.arrays["key"], control)
    if "aborted" in names:
        aborted = want.context.aborted(head) if want.context is not None else np.zeros(len(frames), np.bool_)
        made["aborted"] = columns.booleans(aborted[row])
    return made


def _sequences(head: Heads, row: NDArray[np.int64], offsets: pa.Array) -> NDArray[np.int64]:
    """Sequences run from the base on, one an offset, and wrap behind 2147483647 to 0; -1 where the batch has none."""
    base = head["base_sequence"][row]
    delta = offsets.to_numpy() - head["base_offset"][row]
    return np.where(base < 0, NONE, (base + delta) & 0x7FFF_FFFF)


def _control_types(keys: pa.Array, control: NDArray[np.bool_]) -> pa.Array:
    """The type in a control record's key: int16 version, int16 type; null for ordinary records."""
    types = [control_type(keys[index].as_py()) for index in np.flatnonzero(control).tolist()]
    values = np.zeros(control.size, np.int64)
    known = np.zeros(control.size, np.bool_)
    values[control] = [0 if one is None else one for one in types]
    known[control] = [one is not None for one in types]
    return columns.integers(values, "int", known)


def _batches(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """One row a batch; a wrong checksum is a column here, not an error."""
    whole, error = sound(frames, check_crc=False)
    if len(whole):
        yield columns.batch(want.table, _batch_columns(whole, want), len(whole))
    if error is not None:
        raise error


def _batch_columns(frames: Frames, want: Want) -> dict[str, pa.Array]:
    head, count = heads(frames), len(frames)
    horizon = head.has(Attributes.DELETE_HORIZON)
    base = _micros(head["base_timestamp"])
    top = _micros(head["max_timestamp"])
    numbers = {
        "position": frames.positions,
        "size": frames.sizes,
        "last_offset": head.last_offset,
        "timestamp_type": head.has(Attributes.LOG_APPEND_TIME),
    }
    made: dict[str, pa.Array] = {}
    for column in want.table.columns:
        name = column.name
        if name in numbers:
            made[name] = columns.integers(numbers[name], column.type)
        elif name == "codec":
            made[name] = CODEC_NAMES.take(pa.array(head.codec))
        elif name == "base_timestamp":
            made[name] = columns.timestamps(base, (base != NO_TIME) & ~horizon)
        elif name == "max_timestamp":
            made[name] = columns.timestamps(top, top != NO_TIME)
        elif name == "delete_horizon":
            made[name] = columns.timestamps(base, (base != NO_TIME) & horizon)
        elif name == "is_transactional":
            made[name] = columns.booleans(head.has(Attributes.TRANSACTIONAL))
        elif name == "is_control":
            made[name] = columns.booleans(head.has(Attributes.CONTROL))
        elif name == "crc_ok":
            made[name] = columns.booleans(crc_ok(frames))
        elif name in ("topic", "partition"):
            made[name] = columns.constant(getattr(want.file.place, name), column.type, count)
        elif name == "path":
            made[name] = columns.constant(want.file.path, column.type, count)
        else:
            made[name] = columns.integers(head[name], column.type)
    return made
