"""Reading commit logs: entries found, taken apart, and turned into columns: bodies decompressed, inner batches unpacked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.rocketmq import begin_commit_log as begin
from rawlog.formats.rocketmq import layouts
from rawlog.formats.rocketmq.kernels import entries
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.kernels import entries as text_kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    CHECK_MAX_TOPIC,
    CODEC_MASK,
    CODEC_SHIFT,
    CODECS,
    HALF_TOPIC,
    HEAD,
    OP_TOPIC,
    SMALLEST_FRAME,
    SMALLEST_V1,
    TRANSACTION_MASK,
    TRANSACTIONS,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import MOST_MS, Messages, micros
from rawlog.io import compression
from rawlog.kernels import byte_view, columns
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import CorruptError, DataError, UnsupportedError
from rawlog.model.finding import Rule
from rawlog.model.format import NO_TIME, File, Inspection, Judge, Offsets, Spans, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.table import HEADERS, Table, arrow_type
from rawlog.model.text import java_text

if TYPE_CHECKING:
    from rawlog.formats.rocketmq.store.store import LogSummary
    from rawlog.io.output import Output
    from rawlog.model.explain import Node

ENTRY_LAYOUTS = (
    layouts.HEAD,
    layouts.HOST_V4,
    layouts.HOST_V6,
    layouts.STORED,
    layouts.TAIL,
    layouts.TOPIC_V1,
    layouts.TOPIC_V2,
    layouts.PROPERTIES,
    layouts.INNER,
    layouts.BLANK,
)
LAYOUTS = (*ENTRY_LAYOUTS, layouts.DLEDGER, layouts.DLEDGER_BLANK)

# ----------------------------------------------------------------------------------------------------------------------
# Text columns and property columns from spans of bytes that a kernel found.
# RocketMQ defines topics and properties as UTF-8 and checks nowhere that they are. Bytes that are not read as in Java, where brokers and
# clients show U+FFFD for them, so that no row is refused; a finding reports them, and the column `headers` of `records` has the values'
# own bytes.


USUAL = 12
MAP = arrow_type("map<string,string>")
_KIND = arrow_type(HEADERS)


def string_view(array: pa.Array) -> pa.Array:
    """A binary array as strings, which it is known to hold."""
    return pa.Array.from_buffers(pa.string(), len(array), array.buffers(), array.null_count, array.offset)


def as_text(array: pa.Array) -> tuple[pa.Array, frozenset[str]]:
    """A binary array as strings. What is not UTF-8 reads as in Java; those texts are also returned."""
    text, values = string_view(array), array.buffers()[2]
    if not values or not values.size or int(np.frombuffer(values, np.uint8).max()) < 0x80:
        return text, frozenset()  # ASCII throughout: no need to look at each
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        pairs = [(raw, None if raw is None else java_text(raw)) for raw in array.to_pylist()]
        replaced = frozenset(
            read for raw, read in pairs if read is not None and "\ufffd" in read and read.encode() != raw
        )
        return pa.array([read for _, read in pairs], pa.string()), replaced
    return text, frozenset()


class ColumnBuffers:
    """The columns of any size of a run of messages, filled by one pass over them.

    `numbers` are positions and sizes by place (`kernels.fill.N_…`), `wanted` says which columns (`W_…`). Of properties `keep_all` takes
    all pieces in stored order; else what RocketMQ shows: of a repeated name the last, no empty values. `replaced` has the texts of each
    column whose bytes are not UTF-8.
    """

    def __init__(
        self, data: Bytes, bodies: Bytes, numbers: Sequence[NDArray[np.int64]], wanted: int, *, keep_all: bool
    ) -> None:
        self.rows = numbers[0].size
        assert not self.rows or data.size >= text_kernels.BLOCK, "less than a message"
        strings = int(numbers[entries.N_PROPERTIES_SIZE].sum()) if wanted & entries.W_PROPERTIES else 0
        # Room for properties of a usual size first: memory that is never touched costs too. Then for as many as there can be.
        for pairs in (strings // USUAL + self.rows, strings + self.rows + 1):
            self._allocate(numbers, wanted, strings, pairs)
            status = entries.fill_rows(
                data,
                bodies,
                tuple(numbers),
                wanted,
                keep_all,
                tuple(_bytes_of(text) for text in self._texts),
                tuple(_numbers_of(offsets) for offsets in self._offsets),
                self._valid,
                self.good,
                self._totals,
            )[2]
            if status == Status.OK:
                break
        assert status == Status.OK, "room for fewer properties than their bytes can hold"
        self.totals = self._totals.tolist()
        self.replaced: dict[int, frozenset[str]] = {}

    def _allocate(self, numbers: Sequence[NDArray[np.int64]], wanted: int, strings: int, pairs: int) -> None:
        rows = self.rows
        self._totals = np.zeros(entries.TOTALS, np.int64)
        self.good = np.empty(rows if wanted & entries.W_CRC else 0, np.bool_)
        sizes, counts = [0] * (entries.COLUMNS + 1), [-1] * (entries.COLUMNS + 1)
        for column, bit in _WANTED:
            if wanted & bit:
                sizes[column], counts[column] = strings, rows
        if wanted & entries.W_PAIRS:
            counts[entries.C_NAME] = counts[entries.C_VALUE] = pairs
        for column, bit, number in (
            (entries.C_BODY, entries.W_BODY, entries.N_BODY_SIZE),
            (entries.C_TOPIC, entries.W_TOPIC, entries.N_TOPIC_SIZE),
        ):
            if wanted & bit:
                sizes[column] = int(numbers[number].sum())
        hosts = ((entries.C_BORN_HOST, SysFlag.BORNHOST_V6), (entries.C_STORE_HOST, SysFlag.STOREHOST_V6))
        for column, mask in (*hosts, (entries.C_ID, SysFlag.STOREHOST_V6)):
            if counts[column] >= 0:
                v4, v6 = _ID if column == entries.C_ID else _HOST
                sizes[column] = rows * v4 + int(np.count_nonzero(numbers[entries.N_SYS_FLAG] & mask)) * (v6 - v4)
        self._texts = [
            pa.allocate_buffer(sizes[column] + SLACK) if counts[column] >= 0 else None
            for column in range(entries.COLUMNS)
        ]
        self._offsets = [pa.allocate_buffer((count + 1) * 4) if count >= 0 else None for count in counts]
        self._valid = tuple(
            np.full((counts[column] + 7) // 8, 0xFF, np.uint8) if column in _NULLABLE else _NO_BYTES
            for column in range(entries.COLUMNS)
        )

    def bytes(self, column: int) -> pa.Array:
        """A column as it is (`kernels.fill.C_…`), null where a message has none."""
        count = self.totals[entries.T_PAIRS] if column in (entries.C_NAME, entries.C_VALUE) else self.rows
        nulls = self.totals[entries.T_NULLS + column]
        mask = pa.py_buffer(self._valid[column]) if nulls else None
        text, size = self._texts[column], self.totals[column]
        assert text is not None
        return pa.Array.from_buffers(pa.binary(), count, [mask, self._offsets[column], text.slice(0, size)], nulls)

    def text(self, column: int) -> pa.Array:
        """A column as strings; what is not UTF-8 reads as in Java."""
        is_ascii = column not in (entries.C_BODY, entries.C_TOPIC) and not self.totals[entries.T_HIGH]
        if is_ascii or column >= entries.C_BORN_HOST:
            return string_view(self.bytes(column))
        text, self.replaced[column] = as_text(self.bytes(column))
        return text

    def map(self) -> pa.Array:
        """The properties as a map."""
        names, values = self.text(entries.C_NAME), self.text(entries.C_VALUE)
        pairs = pa.StructArray.from_arrays([names, values], fields=[MAP.key_field, MAP.item_field])
        return pa.Array.from_buffers(MAP, self.rows, [None, self._offsets[entries.C_ROW]], 0, 0, [pairs])

    def headers(self) -> pa.Array:
        """The properties as headers."""
        names, values = self.text(entries.C_NAME), self.bytes(entries.C_VALUE)
        pairs = pa.StructArray.from_arrays([names, values], fields=list(_KIND.value_type))
        return pa.ListArray.from_buffers(_KIND, self.rows, [None, self._offsets[entries.C_ROW]], 0, 0, [pairs])


_WANTED = (
    (entries.C_BODY, entries.W_BODY),
    (entries.C_TOPIC, entries.W_TOPIC),
    (entries.C_NAME, entries.W_PAIRS),
    (entries.C_VALUE, entries.W_PAIRS),
    (entries.C_ROW, entries.W_PAIRS),
    (entries.C_KEYS, entries.W_KEYS),
    (entries.C_TAGS, entries.W_TAGS),
    (entries.C_UNIQUE, entries.W_UNIQUE),
    (entries.C_BORN_HOST, entries.W_BORN_HOST),
    (entries.C_STORE_HOST, entries.W_STORE_HOST),
    (entries.C_ID, entries.W_ID),
)
_NULLABLE = frozenset({entries.C_VALUE, entries.C_KEYS, entries.C_TAGS, entries.C_UNIQUE})
_HOST, _ID = (text_kernels.HOST_TEXT_V4, text_kernels.HOST_TEXT_V6), (text_kernels.ID_V4, text_kernels.ID_V6)
_NO_BYTES, _NO_NUMBERS = np.empty(0, np.uint8), np.empty(0, np.int32)


def _bytes_of(buffer: pa.Buffer | None) -> Bytes:
    return _NO_BYTES if buffer is None else np.frombuffer(buffer, np.uint8)


def _numbers_of(buffer: pa.Buffer | None) -> NDArray[np.int32]:
    return _NO_NUMBERS if buffer is None else np.frombuffer(buffer, np.int32)


def scan(data: Bytes, kind: int) -> Frames:
    """The whole entries of a window: messages, blank ones, DLedger's."""
    room = data.size // SMALLEST_V1 + 1
    while True:
        starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
        count, reached, code = kernels.scan_entries(byte_view(data), 0, starts, stops)
        if code != Status.FULL:
            break
        room = data.size // SMALLEST_FRAME + 1  # blank entries can be smaller than messages
    status = Status(code)
    if status in (Status.BAD_MAGIC, Status.TRUNCATED) and not data[reached:].any():
        status = Status.PADDING
    return Frames(data, starts[:count], stops[:count], int(reached), status, kind=kind)


def resync(data: Bytes, position: int, kind: int) -> int:
    """The next position of a message with consistent lengths and a right body checksum, or -1."""
    return int(kernels.find_entry(byte_view(data), position))


def fault(frames: Frames) -> DataError:
    """What is wrong with the entry at which the scan stopped."""
    head = bytes(frames.data[frames.reached : frames.reached + HEAD.after("magic")])
    total = int.from_bytes(head[HEAD.at("total_size") : HEAD.after("total_size")], "big", signed=True)
    magic = head[HEAD.at("magic") : HEAD.after("magic")]
    if frames.status is Status.BAD_MAGIC:
        return CorruptError(
            f"magic {magic.hex(' ')}: no entry begins here; a broker that reads this far takes it for the end of the log",
            position=frames.reached_in_file,
            layout=HEAD.name,
            field="magic",
            expected="da a3 20 a7, da a3 20 ab or cb d4 31 94",
            found=magic.hex(" "),
        )
    return CorruptError(
        f"entry size {total:,} does not fit the parts of the entry",
        position=frames.reached_in_file,
        layout=HEAD.name,
        field="total_size",
        found=total,
    )


def spans(frames: Frames, file: File) -> Spans:
    """Times and number of records of each frame. Raises as decode does for a wrong checksum.

    A row's time is that of birth in `records`, that of storing in `rocketmq.messages`: the frame covers both. Queue offsets are no
    offsets of the file, so none are given.
    """
    rows = Messages.take(frames, file)
    leftovers = rows.leftovers(file)
    wrong = np.flatnonzero(~rows.crc_ok & ~leftovers)
    if wrong.size:
        raise rows.crc_error(int(wrong[0]))
    count = len(frames)
    low, high = np.full(count, NO_TIME), np.full(count, NO_TIME)
    born, stored = rows[kernels.F_BORN_TIME], rows[kernels.F_STORE_TIME]
    at = rows[kernels.F_FRAME]
    fits = (np.abs(born) <= MOST_MS) & (np.abs(stored) <= MOST_MS) & (born != NO_TIME) & (stored != NO_TIME)
    low[at[fits]] = np.minimum(born, stored)[fits] * 1000
    high[at[fits]] = np.maximum(born, stored)[fits] * 1000
    records = np.zeros(count, np.int64)
    packed = (rows[kernels.F_SYS_FLAG] & BATCH_MASK) == BATCH_MASK
    records[at] = np.where(leftovers | rows.fillers, 0, np.where(packed, -1, 1))
    return Spans(min_time=low, max_time=high, records=records)


def offsets(frames: Frames, file: File) -> Offsets:
    """Where each entry begins and ends in the whole commit log, by the name of its file."""
    base = frames.base + (file.place.start_offset or 0)
    return Offsets(frames.starts + base, frames.stops + base)


def lost_offsets(group: Sequence[File], first: int, stop: int) -> Sequence[tuple[int, int]]:
    """The bytes between two files of a commit log that are lost: all of them, brokers delete only its oldest files."""
    return [(first, stop)]


def misplaced(frames: Frames, file: File) -> NDArray[np.int64]:
    """The positions of entries at another address than they name, or whose entry checksum contradicts topic, queue or number; without what
    a truncation left after the end of the last file.
    """
    rows = Messages.take(frames, file, with_crc=False)
    wrong = ~rows.entry_crc_ok
    if rows.odd[kernels.O_STALE]:
        stale, leftovers = rows.stale, rows.leftovers(file)
        begins = bool(stale.any() and leftovers[0] and rows.frame_position(0) == 0)
        if not (file.place.sealed or begins):
            stale &= ~leftovers
        wrong = stale | (wrong & ~leftovers)
    positions: NDArray[np.int64] = frames.positions[rows[kernels.F_FRAME][wrong]]
    return positions


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> str | None:
    """The isolation asked for: decoding needs no other fact of the store."""
    return options.get("isolation")


GROWN = 64 << 20
"""Decompressed bytes after which a batch is cut."""
LARGE = 32 << 20
"""A body that decompresses to more is read alone and never copied."""
UNTRANSACTED = (HALF_TOPIC, OP_TOPIC, CHECK_MAX_TOPIC)


PAIR_COST = 16
"""Memory that a byte of properties may take as columns, where all of it is separators."""
MOST_INNER = 1 << 18
"""The most messages inside of others that are taken apart at a time. A broker takes 4 MB, in which fewer fit."""


@dataclass(slots=True)
class Bodies:
    """Where bodies are once decompressed: in the window's own bytes or after them.

    The body of a lone message may be `large`: its own bytes, with its start and size in them.
    """

    data: Bytes
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    fits: int
    error: DataError | None = None
    large: Bytes | None = None


def bodies(rows: Messages, limit: int) -> Bodies:
    """The bodies of messages, decompressed, as many as fit a batch; `error` says why the one after them is not among them."""
    starts, sizes = rows[kernels.F_BODY], rows[kernels.F_BODY_SIZE]
    if not rows.odd[kernels.O_COMPRESSED]:
        return Bodies(rows.data, starts, sizes, len(rows))
    codecs = rows.codecs
    packed = np.flatnonzero(codecs)
    if not packed.size:
        return Bodies(rows.data, starts, sizes, len(rows))
    starts, sizes = starts.copy(), sizes.copy()
    pieces: list[Bytes] = [rows.data]
    end, grown, fits = rows.data.size, 0, len(rows)
    error: DataError | None = None
    for row in packed.tolist():
        if grown > GROWN:
            fits = row
            break
        try:
            piece = np.frombuffer(_inflate(rows, row, int(codecs[row]) - 1, limit), np.uint8)
        except DataError as problem:
            error, fits = problem.at(position=rows.frame_position(row)), row
            break
        if piece.size > LARGE:
            if row == 0:
                whole = byte_view(piece), np.zeros(1, np.int64), np.array([piece.size], np.int64)
                return Bodies(rows.data, whole[1], whole[2], 1, large=whole[0])
            fits = row
            break
        starts[row], sizes[row] = end, piece.size
        end, grown = end + piece.size, grown + piece.size
        pieces.append(piece)
    return Bodies(byte_view(np.concatenate(pieces)), starts, sizes, fits, error)


def _inflate(rows: Messages, row: int, kind: int, limit: int) -> compression.Bytes:
    if kind >= len(CODECS):
        raise UnsupportedError(
            f"compression type {kind}, at most {len(CODECS) - 1} known", layout=HEAD.name, field="sys_flag"
        )
    start, size = int(rows[kernels.F_BODY][row]), int(rows[kernels.F_BODY_SIZE][row])
    try:
        return compression.decompress(CODECS[kind], rows.data[start : start + size], limit=limit)
    except DataError as error:
        raise type(error)(f"body: {error.message}", layout=HEAD.name, field="body") from None


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Rows of `records`, or of `rocketmq.messages` and its like.

    In `records` a wrong checksum is an error and leftovers are no rows; the other tables show both. Before an error is raised, all
    that lies in front has been yielded.
    """
    names = set(want.table.names)
    rows = Messages.take(frames, want.file, with_crc=False)
    if want.table.name == "records":
        yield from _decode_records(rows, want, names)
        return
    while len(rows):
        inflated = bodies(rows, want.limit) if "body" in names else Bodies(rows.data, rows[0], rows[0], len(rows))
        if inflated.fits:
            yield _message_batch(rows.cut(0, inflated.fits), inflated, want, names)
        if inflated.error is not None:
            raise inflated.error
        rows = rows.cut(inflated.fits, len(rows))


def decode_together(frames: Frames, wants: Sequence[Want]) -> Iterator[tuple[int, Sequence[pa.RecordBatch]]]:
    """Rows of `records` and `rocketmq.messages`, decompressed and checked once.

    It ends at the first damage, and leaves windows with entries that are rows of one table only, or several rows of it.
    """
    rows, done = Messages.take(frames, wants[0].file, with_crc=False), 0
    records_want = next((want for want in wants if want.table.name == "records"), None)
    unusual = rows.odd[kernels.O_PACKED] or rows.odd[kernels.O_STALE] or rows.odd[kernels.O_FILLER]
    if records_want is None or "value" not in records_want.table.names or unusual or _is_committed(records_want):
        return
    while len(rows):
        inflated = bodies(rows, records_want.limit)
        if inflated.fits:
            part = rows.cut(0, inflated.fits)
            try:
                (records,) = _rows(part, inflated, records_want, set(records_want.table.names), packed=False)
            except DataError:
                return
            shared = {"body": records.column("value"), "crc_ok": columns.constant(True, "boolean", len(part))}
            batches = [
                records if want is records_want else _message_batch(part, inflated, want, set(want.table.names), shared)
                for want in wants
            ]
            end = int(part[kernels.F_FRAME][-1]) + 1
            yield end - done, batches
            done = end
        if inflated.error is not None:
            return
        rows = rows.cut(inflated.fits, len(rows))
    yield len(frames) - done, ()


def _decode_records(rows: Messages, want: Want, names: set[str]) -> Iterator[pa.RecordBatch]:
    error: DataError | None = None
    packed = bool(rows.odd[kernels.O_PACKED])
    if packed:  # several rows of one message: its checksum is asked for once, before
        rows = Messages.take(rows.frames, want.file)
        wrong = np.flatnonzero(~rows.crc_ok & ~rows.leftovers(want.file))
        if wrong.size:
            error, rows = rows.crc_error(int(wrong[0])), rows.cut(0, int(wrong[0]))
    rows = _for_records(rows, want)
    while len(rows):
        inflated = bodies(rows, want.limit)
        if inflated.fits:
            yield from _record_batches(rows.cut(0, inflated.fits), inflated, want, names, packed=packed)
        if inflated.error is not None:
            raise inflated.error if rows.has_crc(inflated.fits) else rows.crc_error(inflated.fits)
        rows = rows.cut(inflated.fits, len(rows))
    if error is not None:
        raise error


def _for_records(rows: Messages, want: Want) -> Messages:
    """The messages that are rows of `records`: no leftovers, no fillers, and only committed ones if the options say so."""
    committed = _is_committed(want)
    if not committed and not rows.odd[kernels.O_STALE] and not rows.odd[kernels.O_FILLER]:
        return rows
    keep = ~rows.leftovers(want.file) & ~rows.fillers
    if committed:
        transaction = rows[kernels.F_SYS_FLAG] & TRANSACTION_MASK
        keep &= (transaction == 0) | (transaction == SysFlag.COMMIT)
        topic = columns.spans(rows.data, rows[kernels.F_TOPIC], rows[kernels.F_TOPIC_SIZE])
        for name in UNTRANSACTED:
            keep &= np.asarray([value != name.encode() for value in topic.to_pylist()], np.bool_)
    return rows.where(keep)


def _is_committed(want: Want) -> bool:
    return want.options.get("isolation") == "read_committed" or want.context == "read_committed"


def _record_batches(
    rows: Messages, inflated: Bodies, want: Want, names: set[str], *, packed: bool
) -> Iterator[pa.RecordBatch]:
    """Rows of `records`: a message each, inner batches taken apart. CorruptError for a wrong checksum, unless `packed` (asked before)."""
    count = len(rows)
    if not packed or not (inside := (rows[kernels.F_SYS_FLAG] & BATCH_MASK) == BATCH_MASK).any():
        yield from _rows(rows, inflated, want, names, packed=packed)
        return
    if count == 1:
        for inner in _inner_slices(rows, inflated):
            yield from _rows(rows, inflated, want, names, inner)
        return
    most = np.cumsum(np.where(inside, inflated.sizes[:count] // entries.SMALLEST, 1))
    if most[-1] > MOST_INNER:
        cut = min(max(int(np.searchsorted(most, MOST_INNER, side="right")), 1), count - 1)
        for start, stop in ((0, cut), (cut, count)):
            part = Bodies(inflated.data, inflated.starts[start:stop], inflated.sizes[start:stop], stop - start)
            yield from _record_batches(rows.cut(start, stop), part, want, names, packed=packed)
        return
    inner, error = _unpack(rows, inflated, inside)
    yield from _rows(rows, inflated, want, names, inner)
    if error is not None:
        raise error


def _rows(
    rows: Messages,
    inflated: Bodies,
    want: Want,
    names: set[str],
    inner: NDArray[np.int64] | None = None,
    packed: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Rows of `records` for messages, or for `inner` (`inner.I_…`) of those inside of them."""
    count = len(rows)
    numbers = _numbers(rows, inflated, count)
    parent: NDArray[np.int64] | None = None
    offsets = rows[kernels.F_QUEUE_OFFSET]
    error: DataError | None = None
    if inner is not None:
        parent, count = inner[entries.I_PARENT], inner.shape[1]
        numbers = [number[parent] for number in numbers]
        for to, source in (
            (entries.N_BODY, entries.I_BODY),
            (entries.N_BODY_SIZE, entries.I_BODY_SIZE),
            (entries.N_PROPERTIES, entries.I_PROPERTIES),
            (entries.N_PROPERTIES_SIZE, entries.I_PROPERTIES_SIZE),
        ):
            numbers[to] = np.ascontiguousarray(inner[source])
        offsets = offsets[parent] + inner[entries.I_NUMBER]

    def of_parent(field: int) -> NDArray[np.int64]:
        return rows[field] if parent is None else rows[field][parent]

    wanted = sum(bit for name, bit in _RECORD_PARTS if name in names) | (0 if packed else entries.W_CRC)
    lone_body = _lone_body(inflated, numbers)
    if lone_body is not None:
        wanted &= ~entries.W_BODY
    inside = inflated.data if inflated.large is None or inner is None else inflated.large
    filled = ColumnBuffers(rows.data, inside, numbers, wanted, keep_all=True)
    if filled.totals[entries.T_BAD]:
        bad = int(np.argmin(filled.good))
        error, count = rows.crc_error(bad), bad
    arrays: dict[str, pa.Array] = {}
    if "key" in names:
        arrays["key"] = filled.bytes(entries.C_KEYS)
    if "headers" in names:
        arrays["headers"] = filled.headers()
    if "value" in names:
        arrays["value"] = filled.bytes(entries.C_BODY) if lone_body is None else lone_body
    if "topic" in names:
        arrays["topic"] = filled.text(entries.C_TOPIC)
    if "partition" in names:
        arrays["partition"] = columns.integers(of_parent(kernels.F_QUEUE_ID), "int")
    if "offset" in names:
        arrays["offset"] = columns.integers(offsets, "bigint")
    if "timestamp" in names:
        arrays["timestamp"] = micros(of_parent(kernels.F_BORN_TIME))
    if "timestampType" in names:
        arrays["timestampType"] = columns.constant(0, "int", filled.rows)
    if count:
        replaced = filled.replaced
        far = "timestamp" in names and arrays["timestamp"].null_count > 0
        marks = columns.Marks(
            replaced.get(entries.C_NAME, frozenset()), replaced.get(entries.C_TOPIC, frozenset()), far
        )
        yield columns.marked(columns.batch(want.table, arrays, filled.rows).slice(0, count), marks)
    if error is not None:
        raise error


def _lone_body(inflated: Bodies, numbers: Sequence[NDArray[np.int64]]) -> pa.Array | None:
    """The column of a single large body, without a copy."""
    if inflated.large is None or numbers[entries.N_BODY].size != 1:
        return None
    start, size = int(numbers[entries.N_BODY][0]), int(numbers[entries.N_BODY_SIZE][0])
    ends = pa.py_buffer(np.array([start, start + size], np.int32))
    return pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(inflated.large)])


_RECORD_PARTS = (
    ("key", entries.W_KEYS),
    ("headers", entries.W_PAIRS),
    ("value", entries.W_BODY),
    ("topic", entries.W_TOPIC),
)


def _numbers(rows: Messages, inflated: Bodies, count: int) -> list[NDArray[np.int64]]:
    """Positions and sizes as `ColumnBuffers` takes them."""
    numbers = [rows[field] for field in _NUMBER_FIELDS]
    numbers[entries.N_BODY], numbers[entries.N_BODY_SIZE] = inflated.starts[:count], inflated.sizes[:count]
    return numbers


_NUMBER_FIELDS = (
    kernels.F_BODY,
    kernels.F_BODY_SIZE,
    kernels.F_BODY,
    kernels.F_BODY_SIZE,
    kernels.F_CRC,
    kernels.F_TOPIC,
    kernels.F_TOPIC_SIZE,
    kernels.F_PROPERTIES,
    kernels.F_PROPERTIES_SIZE,
    kernels.F_SYS_FLAG,
    kernels.F_BORN_HOST,
    kernels.F_STORE_HOST,
    kernels.F_PHYSICAL,
)


def _unpack(rows: Messages, inflated: Bodies, inside: NDArray[np.bool_]) -> tuple[NDArray[np.int64], DataError | None]:
    """A column for every message, also inside batches (`inner.I_…`), and the error of the first bad batch."""
    count = len(rows)
    starts, sizes = inflated.starts[:count], inflated.sizes[:count]
    out = np.empty(
        (entries.INNER_FIELDS, int(sizes[inside].sum()) // entries.SMALLEST + 1 + int((~inside).sum())), np.int64
    )
    unpacked, bad, status = entries.unpack_inner(
        inflated.data, starts, sizes, inside, rows[kernels.F_PROPERTIES], rows[kernels.F_PROPERTIES_SIZE], out
    )
    assert status != Status.FULL, "room for fewer messages than bodies can hold"
    if status == Status.OK:
        return out[:, :unpacked], None
    unpacked = int(np.searchsorted(out[entries.I_PARENT, :unpacked], bad))
    return out[:, :unpacked], inner_error(rows, int(bad))


def inner_error(rows: Messages, row: int) -> CorruptError:
    """The body of a message is not a run of messages."""
    return CorruptError(
        "inner batch: its length does not fit into the message",
        position=rows.frame_position(row),
        layout="inner message",
    )


def _inner_slices(rows: Messages, inflated: Bodies) -> Iterator[NDArray[np.int64]]:
    """The messages inside of a lone one, a bounded number at a time. CorruptError before any is given, if its body is not a run of them."""
    for _ in walk_inner(rows, inflated, 0):
        pass
    for out in walk_inner(rows, inflated, 0):
        ends = np.cumsum(out[entries.I_BODY_SIZE] + out[entries.I_PROPERTIES_SIZE] * PAIR_COST)
        start = 0
        while start < out.shape[1]:
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + LARGE, side="right")), start + 1)
            yield out[:, start:stop]
            start = stop


def walk_inner(rows: Messages, inflated: Bodies, row: int) -> Iterator[NDArray[np.int64]]:
    """The messages inside a batch (`inner.I_…`), at most MOST_INNER at a time. CorruptError if its body is no run of messages."""
    data = inflated.data if inflated.large is None else inflated.large
    position, size = int(inflated.starts[row]), int(inflated.sizes[row])
    stop, number, nothing = position + size, 0, np.zeros(1, np.int64)
    while position < stop:
        out = np.empty((entries.INNER_FIELDS, min((stop - position) // entries.SMALLEST + 1, MOST_INNER)), np.int64)
        ends = np.array([position], np.int64), np.array([stop - position], np.int64)
        unpacked, _, status = entries.unpack_inner(data, *ends, np.ones(1, np.bool_), nothing, nothing, out)
        if status not in (Status.OK, Status.FULL):
            raise inner_error(rows, row)
        out = out[:, :unpacked]
        out[entries.I_NUMBER] += number
        yield out
        if status == Status.OK:
            return
        number += int(unpacked)
        position = int(out[entries.I_PROPERTIES, -1] + out[entries.I_PROPERTIES_SIZE, -1])


_TRANSACTION_NAMES = pa.array(TRANSACTIONS)
_CODEC_NAMES = pa.array(["none", *CODECS, *(f"unknown {kind}" for kind in range(len(CODECS), 8))])


def _named(names: pa.Array, numbers: NDArray[np.int64] | None, count: int, compact: bool) -> pa.Array:
    """Names by number; mostly all are the first (None)."""
    if numbers is None:
        return columns.constant(names[0].as_py(), "string", count, compact=compact)
    return names.take(pa.array(numbers))


def _message_batch(
    rows: Messages, inflated: Bodies, want: Want, names: set[str], ready: Mapping[str, pa.Array] | None = None
) -> pa.RecordBatch:
    """Rows of `rocketmq.messages`, one per entry; `ready` are columns that exist already."""
    flags, count = rows[kernels.F_SYS_FLAG], len(rows)
    arrays: dict[str, pa.Array] = {name: column for name, column in (ready or {}).items() if name in names}
    names = names - arrays.keys()
    for name, field, type in _MESSAGE_NUMBERS:
        if name in names:
            arrays[name] = columns.integers(rows[field], type)
    if "position" in names:
        arrays["position"] = columns.integers(rows.positions, "bigint")
    for name, field in (("born_timestamp", kernels.F_BORN_TIME), ("store_timestamp", kernels.F_STORE_TIME)):
        if name in names:
            arrays[name] = micros(rows[field])
    if "stale" in names:
        arrays["stale"] = columns.booleans(rows.leftovers(want.file))
    if "codec" in names:
        arrays["codec"] = _named(
            _CODEC_NAMES, rows.codecs if rows.odd[kernels.O_COMPRESSED] else None, count, want.compact
        )
    if "transaction" in names:
        states = (flags & TRANSACTION_MASK) >> 2 if rows.odd[kernels.O_TRANSACTION] else None
        arrays["transaction"] = _named(_TRANSACTION_NAMES, states, count, want.compact)
    if "path" in names:
        arrays["path"] = columns.constant(want.file.path, "string", count, compact=want.compact)
    wanted = sum(bit for name, bit, _ in _MESSAGE_PARTS if name in names)
    wanted |= (
        entries.W_BODY * ("body" in names)
        | entries.W_CRC * ("crc_ok" in names)
        | entries.W_PAIRS * ("properties" in names)
    )
    numbers = _numbers(rows, inflated, count)
    lone_body = _lone_body(inflated, numbers)
    if lone_body is not None:
        wanted &= ~entries.W_BODY
    if wanted or lone_body is not None:
        filled = ColumnBuffers(rows.data, inflated.data, numbers, wanted, keep_all=False)
        for name, _, column in _MESSAGE_PARTS:
            if name in names:
                arrays[name] = filled.text(column)
        if "body" in names:
            arrays["body"] = filled.bytes(entries.C_BODY) if lone_body is None else lone_body
        if "properties" in names:
            arrays["properties"] = filled.map()
        if "crc_ok" in names:
            arrays["crc_ok"] = columns.booleans(filled.good)
    return columns.batch(want.table, arrays, count)


_MESSAGE_NUMBERS = (
    ("physical_offset", kernels.F_PHYSICAL, "bigint"),
    ("size", kernels.F_SIZE, "int"),
    ("version", kernels.F_VERSION, "int"),
    ("body_crc", kernels.F_CRC, "bigint"),
    ("queue_id", kernels.F_QUEUE_ID, "int"),
    ("flag", kernels.F_FLAG, "int"),
    ("queue_offset", kernels.F_QUEUE_OFFSET, "bigint"),
    ("sys_flag", kernels.F_SYS_FLAG, "int"),
    ("reconsume_times", kernels.F_RECONSUME, "int"),
    ("prepared_transaction_offset", kernels.F_PREPARED, "bigint"),
)
_MESSAGE_PARTS = (
    ("topic", entries.W_TOPIC, entries.C_TOPIC),
    ("keys", entries.W_KEYS, entries.C_KEYS),
    ("tags", entries.W_TAGS, entries.C_TAGS),
    ("unique_key", entries.W_UNIQUE, entries.C_UNIQUE),
    ("born_host", entries.W_BORN_HOST, entries.C_BORN_HOST),
    ("store_host", entries.W_STORE_HOST, entries.C_STORE_HOST),
    ("message_id", entries.W_ID, entries.C_ID),
)


# ----------------------------------------------------------------------------------------------------------------------
# What else can be done with a commit log. `explain`, `rules`, `lookup` and the store are imported when they are needed.


#: By the number in the flags; 0 is how old clients wrote zlib.
_FLAG_CODECS = ("zlib", "lz4", "zstd", "zlib")


def tally(frames: Frames, file: File) -> dict[str, dict[str, tuple[int, int]]]:
    """Messages and bytes by codec and by their part in a transaction; those that were consumed again."""
    rows = Messages.take(frames, file, with_crc=False)
    flags, sizes = rows[kernels.F_SYS_FLAG], rows[kernels.F_SIZE]
    kinds = (flags & TRANSACTION_MASK) >> 2
    codec = np.where(flags & int(SysFlag.COMPRESSED), (flags & CODEC_MASK) >> CODEC_SHIFT, -1)
    totals = {"codec": {}, "transaction": {}}  # type: dict[str, dict[str, tuple[int, int]]]
    for number, name in enumerate(TRANSACTIONS):
        of = kinds == number
        if of.any() and name != "none":
            totals["transaction"][name] = (int(of.sum()), int(sizes[of].sum()))
    for number in np.unique(codec).tolist():
        of = codec == number
        name = "none" if number < 0 else _FLAG_CODECS[number] if number < len(_FLAG_CODECS) else "invalid"
        count, size = totals["codec"].get(name, (0, 0))
        totals["codec"][name] = (count + int(of.sum()), size + int(sizes[of].sum()))
    return {aspect: rows for aspect, rows in totals.items() if rows}


def explain(frames: Frames, file: File) -> list[Node]:
    """One entry, field by field, to the last property."""
    from rawlog.formats.rocketmq.explain import explain_entry

    return explain_entry(frames, file)


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over messages."""
    from rawlog.formats.rocketmq.rules import commit_log

    return commit_log()


def pick(file: File, group: Sequence[File], table: Table, selection: Any) -> list[tuple[int, int | None]] | None:
    """Byte ranges outside of which there is no wanted row; None where nothing shows them."""
    from rawlog.formats.rocketmq import lookup

    return lookup.pick(file, group, table, selection)


def summary(file: File, group: Sequence[File], start: int, stop: int | None) -> LogSummary:
    """The pass over a commit-log file, or over a split of it."""
    from rawlog.formats.rocketmq.store import store

    return store.summary(file, group, start, stop)


def losses(options: Mapping[str, str]) -> Judge:
    """Which rows of `records` would read back otherwise, by column."""
    from rawlog.formats.rocketmq.store import rewrite

    return rewrite.losses(options)


def write(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Write rows as a store directory; the number of rows."""
    from rawlog.formats.rocketmq.store import rewrite

    return rewrite.write(batches, output, options)


class CompactionLog:
    """The log of a compaction topic: copies of its messages, in the same entries. It stands in no line with other files."""

    LAYOUTS = ENTRY_LAYOUTS
    begin = staticmethod(begin)
    scan = staticmethod(scan)
    resync = staticmethod(resync)
    fault = staticmethod(fault)
    decode = staticmethod(decode)
    decode_together = staticmethod(decode_together)
    spans = staticmethod(spans)
    context = staticmethod(context)
    explain = staticmethod(explain)

    @staticmethod
    def rules() -> Sequence[Rule[Inspection]]:
        """Checks over copies of messages."""
        from rawlog.formats.rocketmq.rules import compaction_log

        return compaction_log()
