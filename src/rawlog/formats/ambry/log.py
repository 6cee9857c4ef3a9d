"""The log segment: messages found, turned into columns and explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.ambry import begin, layouts, presume, segment_of, start_of
from rawlog.formats.ambry.kernels import messages as kernels
from rawlog.formats.ambry.kernels import texts
from rawlog.formats.ambry.kernels.messages import check_header, find_message, scan_messages
from rawlog.formats.ambry.keys import identities
from rawlog.formats.ambry.layouts import (
    BLOB_TYPES,
    BLOBS,
    CRC_SIZE,
    ENCRYPTION_KEY,
    HEADER_V3,
    HEADERS,
    NONE,
    SEGMENT_HEADER,
    SMALLEST_MESSAGE,
    UPDATE_V1,
    UPDATE_V2,
    UPDATE_V3,
    USER_METADATA,
    Kind,
)
from rawlog.formats.ambry.structures import Cursor, read_envelope, read_metadata, update_name
from rawlog.io.storage import Source
from rawlog.kernels import byte_view, columns
from rawlog.kernels.crc import sum_crc32
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import CorruptError, DataError, RawlogError
from rawlog.model.explain import Node, milliseconds
from rawlog.model.finding import Rule
from rawlog.model.format import NO_TIME, File, Judge, Spans, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.layout import Layout
from rawlog.model.status import OK, Status
from rawlog.model.table import HEADERS as HEADER_LIST
from rawlog.model.table import RECORDS, arrow_type
from rawlog.model.text import java_text

if TYPE_CHECKING:
    from rawlog.formats.ambry.store.state import LogSummary
    from rawlog.io.output import Output

__all__ = [
    "LAYOUTS",
    "begin",
    "context",
    "contradicted",
    "cuts",
    "decode",
    "decode_together",
    "encode",
    "explain",
    "explain_header",
    "fault",
    "losses",
    "misplaced",
    "presume",
    "resync",
    "rules",
    "scan",
    "seek",
    "spans",
    "summary",
    "tally",
    "write",
]

LAYOUTS = (
    layouts.SEGMENT_HEADER,
    layouts.HEADER_V3,
    layouts.HEADER_V2,
    layouts.HEADER_V1,
    layouts.KEY_V6,
    layouts.KEY_V2,
    layouts.KEY_V1,
    layouts.ENCRYPTION_KEY,
    layouts.PROPERTIES,
    layouts.USER_METADATA,
    layouts.BLOB_V3,
    layouts.BLOB_V2,
    layouts.BLOB_V1,
    layouts.UPDATE_V3,
    layouts.UPDATE_V2,
    layouts.UPDATE_V1,
    layouts.METADATA_V3,
    layouts.METADATA_V2,
    layouts.ENVELOPE,
)
BATCH_BYTES = 32 << 20
MOST_MS = ((1 << 63) - 1) // 1000
KINDS = pa.array([Kind(number).name for number in range(len(Kind))])
RECORD_NAMES = {
    kernels.IN_ENCRYPTION_KEY: "encryption key record",
    kernels.IN_PROPERTIES: "blob properties record",
    kernels.IN_USER_METADATA: "user metadata record",
    kernels.IN_BLOB: "blob record",
    kernels.IN_UPDATE: "update record",
    kernels.IN_PAYLOAD: "payload size",
}
FAULTS = {
    kernels.BAD_RECORD_VERSION: "a record of no known version",
    kernels.BAD_RECORD_SIZE: "a record that does not fit its message",
    kernels.BAD_TYPE: "a record of no known type",
}


def scan(data: Bytes, kind: int) -> Frames:
    """The whole messages of a window."""
    room = data.size // SMALLEST_MESSAGE + 1
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    count, reached, code = scan_messages(byte_view(data), 0, starts, stops)
    status = Status(code)
    if status is Status.BAD_MAGIC and not data[reached:].any():
        status = Status.PADDING
    return Frames(data, starts[:count], stops[:count], int(reached), status)


def resync(data: Bytes, position: int, kind: int) -> int:
    """The next position with a sound header and a key, or -1."""
    return int(find_message(byte_view(data), position, data.size))


def fault(frames: Frames) -> DataError:
    """What is wrong with the message at which the scan stopped."""
    at, data = frames.reached, frames.data
    version = int.from_bytes(bytes(data[at : at + 2]), "big", signed=True)
    place: dict[str, Any] = {"position": frames.reached_in_file}
    layout = HEADERS.get(version)
    if layout is None or frames.status is Status.BAD_MAGIC:
        return CorruptError(
            f"message header version {version}, 1 to 3 expected", expected="1 to 3", found=version, **place
        )
    place["layout"] = layout.name
    head = layout.take(data, np.array([at]))[0] if data.size - at >= layout.size else None
    if head is None:
        return CorruptError("not a message", **place)
    if frames.status is Status.BAD_CRC:
        stored = int(head["crc"]) & 0xFFFF_FFFF_FFFF_FFFF
        computed = int(sum_crc32(byte_view(data), at, at + layout.size - CRC_SIZE))
        what = "header checksum"
        if stored >> 32:
            what = "header checksum, whose upper half is never other than zero,"
        return CorruptError(
            f"{what} {stored:016x}, {computed:016x} expected",
            field="crc",
            expected=f"{computed:016x}",
            found=f"{stored:016x}",
            **place,
        )
    if frames.status is Status.BAD_LENGTH:
        size = int(head["payload_size"])
        why = (
            "more than nothing expected"
            if size <= 0
            else "its records disagree or are damaged, and no message follows it there"
        )
        return CorruptError(f"payload size {size:,}: {why}", field="payload_size", found=size, **place)
    return CorruptError("invalid offsets, life version or key", **place)


class Messages:
    """The messages of frames, one column per field: `messages["content_size"]`; with all contents as `contents` if asked for."""

    def __init__(self, frames: Frames, *, check: bool = True, contents: bool = False) -> None:
        self.frames = frames
        self.data = byte_view(frames.data)
        self.fields = np.empty((len(kernels.FIELDS), len(frames)), np.int64)
        self.contents: pa.Array | None = None
        room = pa.allocate_buffer(int(frames.sizes.sum()) + SLACK if contents and len(frames) else 0)
        ends = pa.allocate_buffer(4 * (len(frames) + 1))
        kernels.parse_messages(
            self.data,
            frames.starts,
            frames.stops,
            check,
            self.fields,
            np.frombuffer(room, np.uint8),
            np.frombuffer(ends, np.int32),
        )
        if room.size:
            size, valid = int(np.frombuffer(ends, np.int32)[-1]), self["content_size"] >= 0
            mask = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
            self.contents = pa.Array.from_buffers(pa.binary(), len(frames), [mask, ends, room.slice(0, size)])

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        column: NDArray[np.int64] = self.fields[_ROW[name]]
        return column

    def span(self, index: int, name: str) -> bytes:
        """The bytes of a span (`key`, `content` …) of one message."""
        start, size = int(self[f"{name}_start"][index]), int(self[f"{name}_size"][index])
        return self.data[start : start + size].tobytes()

    def key(self, index: int) -> bytes:
        return self.span(index, "key")

    def slice(self, start: int, stop: int) -> Messages:
        part = Messages.__new__(Messages)
        part.frames, part.data = self.frames.slice(start, stop), self.data
        part.fields = self.fields[:, start:stop]
        part.contents = None if self.contents is None else self.contents.slice(start, stop - start)
        return part

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Whether all records could be read and their checksums are right."""
        good: NDArray[np.bool_] = (self["fault"] == 0) & (self["crc_bad"] == 0)
        return good

    @property
    def is_whole(self) -> NDArray[np.bool_]:
        """Whether messages are sound, and their headers agree with their records: what a repair keeps as it is."""
        good: NDArray[np.bool_] = self.sound & (self["mismatch"] == 0)
        return good

    @property
    def times(self) -> NDArray[np.int64]:
        """When the operation happened, milliseconds; -1 unknown."""
        return np.where(self["kind"] == Kind.PUT, self["creation_time"], self["update_time"])

    @property
    def expires(self) -> NDArray[np.int64]:
        """When a PUT expires, milliseconds; -1 never. As Utils.addSecondsToEpochTime: both must be known."""
        ttl, created = self["time_to_live"], self["creation_time"]
        most = MOST_MS // 2
        valid = (ttl != NONE) & (created != NONE) & (ttl > -most // 1000) & (ttl < most // 1000)
        valid &= (created > -most) & (created < most)
        return np.where(valid, created + np.where(valid, ttl, 0) * 1000, NONE)

    def __len__(self) -> int:
        return len(self.frames)


def check_messages(frames: Frames) -> Messages:
    """The messages of frames with checksums compared; `frames.share(check_messages)` computes them once per window."""
    return Messages(frames)


_ROW = {name: row for row, name in enumerate(kernels.FIELDS)}


def message_error(messages: Messages, index: int) -> CorruptError:
    """The error for a message that is not sound."""
    frames = messages.frames
    position = int(frames.positions[index])
    why = int(messages["fault"][index])
    if why:
        at = int(messages["fault_at"][index])
        return CorruptError(
            f"{FAULTS[why]}, {at - int(frames.starts[index]):,} bytes into the message",
            position=position,
            found=FAULTS[why],
        )
    bad = int(messages["crc_bad"][index])
    names = ", ".join(name for bit, name in RECORD_NAMES.items() if bad & bit)
    return CorruptError(f"checksum of the {names} does not match", position=position, field="crc", found=names)


def spans(frames: Frames, file: File) -> Spans:
    """A message is one record; its offset is its position in the whole log. DataError at the first that is not sound."""
    messages = Messages(frames)
    sound = messages.sound
    if not sound.all():
        raise message_error(messages, int(np.argmin(sound)))
    at = frames.positions + (file.place.start_offset or 0)
    micros, valid = microseconds(messages.times)
    stamps = np.where(valid, micros, NO_TIME)
    # The end of a message is where the next one begins, and what a reader goes on from.
    return Spans(at, at + frames.sizes, stamps, stamps, np.ones(len(frames), np.int64))


def misplaced(frames: Frames, file: File) -> NDArray[np.int64]:
    """The positions of messages whose blob id names another partition than the directory."""
    if file.place.partition is None or not len(frames):
        return np.empty(0, np.int64)
    messages = Messages(frames, check=False)
    foreign = (messages["partition"] != file.place.partition) & (messages["fault"] == 0)
    positions: NDArray[np.int64] = frames.positions[foreign]
    return positions


def microseconds(milliseconds: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Times in microseconds, and which are valid: -1 is unknown, and so is a time beyond any calendar."""
    valid = (milliseconds != NONE) & (milliseconds <= MOST_MS) & (milliseconds >= -MOST_MS)
    return np.where(valid, milliseconds, 0) * 1000, valid


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Messages as rows of `records` or `ambry.messages`.

    A message whose records cannot be read is an error; one whose checksum is wrong is a row of `ambry.messages` that says so.
    """
    for messages in _runs(frames, [want]):
        good = messages.sound if want.table.name == RECORDS.name else messages["fault"] == 0
        if good.all():
            yield _batch(messages, want)
        else:
            bad = int(np.argmin(good))
            if bad:
                yield _batch(messages.slice(0, bad), want)
            raise message_error(messages, bad)


def decode_together(frames: Frames, wants: Sequence[Want]) -> Iterator[tuple[int, Sequence[pa.RecordBatch]]]:
    """Messages as rows of `records` and `ambry.messages`, parsed and checked once. It ends at the first that is not sound."""
    for messages in _runs(frames, wants):
        good = len(messages) if messages.sound.all() else int(np.argmin(messages.sound))
        if good:
            yield good, [_batch(messages.slice(0, good), want) for want in wants]
        if good < len(messages):
            return


def _runs(frames: Frames, wants: Sequence[Want]) -> Iterator[Messages]:
    """Messages to decode at a time, with their contents if any table wants them."""
    start, with_contents = 0, any(not {"value", "content"}.isdisjoint(want.table.names) for want in wants)
    while start < len(frames):
        stop = int(np.searchsorted(frames.stops, frames.starts[start] + BATCH_BYTES, side="right"))
        stop = max(stop, start + 1)
        yield Messages(frames.slice(start, stop), contents=with_contents)
        start = stop


def _batch(messages: Messages, want: Want) -> pa.RecordBatch:
    builder = _Columns(messages, want)
    arrays = {column.name: builder.column(column.name, column.type) for column in want.table.columns}
    batch = columns.batch(want.table, arrays, len(messages))
    far = "timestamp" in arrays and arrays["timestamp"].null_count > int((messages.times == NONE).sum())
    return columns.marked(batch, columns.Marks(far=far))


class _Columns:
    """The columns of messages, made as they are asked for."""

    def __init__(self, messages: Messages, want: Want) -> None:
        self.messages, self.want, self.frames = messages, want, messages.frames
        self.put = messages["kind"] == Kind.PUT

    def column(self, name: str, type: str) -> pa.Array:
        special = getattr(self, f"_{name}", None)
        if special is not None:
            return special()
        messages = self.messages
        if type == "string":
            return text_column(messages, name, empty_is_null=name in _NULL_WHEN_EMPTY)
        if type == "binary":
            size = messages[f"{name}_size"]
            return columns.spans(messages.data, messages[f"{name}_start"], size, size >= 0)
        values = messages[_RENAMED.get(name, name)]
        always = name in ("header_version", "life_version", "key_version")
        valid = None if always else self.put
        if type == "boolean":
            return pa.array(values == 1, pa.bool_(), mask=None if valid is None else ~valid)
        return columns.integers(values, type, valid)

    def _path(self) -> pa.Array:
        return columns.constant(self.want.file.path, "string", len(self.messages), compact=self.want.compact)

    def _position(self) -> pa.Array:
        return columns.integers(self.frames.positions, "bigint")

    def _offset(self) -> pa.Array:
        return columns.integers(self.frames.positions + (self.want.file.place.start_offset or 0), "bigint")

    def _size(self) -> pa.Array:
        return columns.integers(self.frames.sizes, "bigint")

    def _kind(self) -> pa.Array:
        return KINDS.take(pa.array(self.messages["kind"]))

    def _blob_id(self) -> pa.Array:
        return text_ids(self.messages.data, self.messages["key_start"], self.messages["key_size"])

    def _headers(self) -> pa.Array:
        return headers(self.messages)

    def _key(self) -> pa.Array:
        return columns.spans(self.messages.data, self.messages["key_start"], self.messages["key_size"])

    def _content(self) -> pa.Array:
        return self.messages.contents

    _value = _content

    def _topic(self) -> pa.Array:
        account, container = self._ids()
        both = account << 32 | container & 0xFFFF_FFFF
        if not both.size or (both == both[0]).all():
            name = f"{account[0]}/{container[0]}" if both.size else ""
            return columns.constant(name, "string", len(self.messages), compact=self.want.compact)
        distinct, inverse = np.unique(both, return_inverse=True)
        pairs = zip((distinct >> 32).tolist(), (distinct << 32 >> 32).tolist(), strict=True)
        return pa.array([f"{account_id}/{container_id}" for account_id, container_id in pairs], pa.string()).take(
            pa.array(inverse)
        )

    def _ids(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Account and container as the record says, by the key where it says nothing."""
        messages = self.messages
        in_record = (messages["account_id"] != NONE) | (messages["container_id"] != NONE)
        return (
            np.where(in_record, messages["account_id"], messages["key_account"]),
            np.where(in_record, messages["container_id"], messages["key_container"]),
        )

    def _account_id(self) -> pa.Array:
        return columns.integers(self._ids()[0], "int")

    def _container_id(self) -> pa.Array:
        return columns.integers(self._ids()[1], "int")

    def _partition(self) -> pa.Array:
        number = self.messages["partition"]
        if self.want.table.name != RECORDS.name:
            return columns.integers(number, "bigint")
        fits = (number >= 0) & (number <= 0x7FFF_FFFF)
        return columns.integers(np.where(fits, number, 0), "int", fits)

    def _uuid(self) -> pa.Array:
        return uuids(self.messages)

    def _crc_ok(self) -> pa.Array:
        return columns.booleans(self.messages.sound)

    def _timestamp(self) -> pa.Array:
        return columns.timestamps(*microseconds(self.messages.times))

    _operation_timestamp = _timestamp

    def _timestampType(self) -> pa.Array:  # noqa: N802 - the column's name
        return columns.constant(0, "int", len(self.messages))

    def _creation_time(self) -> pa.Array:
        return columns.timestamps(*microseconds(self.messages["creation_time"]))

    def _expires_timestamp(self) -> pa.Array:
        return columns.timestamps(*microseconds(self.messages.expires))

    def _blob_type(self) -> pa.Array:
        kinds = self.messages["blob_type"]
        return pa.array(BLOB_TYPES).take(pa.array(np.where(self.put, kinds, 0), mask=~self.put))

    def _new_expiry(self) -> pa.Array:
        return columns.integers(self.messages["new_expiry"], "bigint", self.messages["kind"] == Kind.TTL_UPDATE)

    def _hard_deleted(self) -> pa.Array:
        context = self.want.context
        zeroed = (self.messages["zeros"] == 1) & self.put
        if context is not None and zeroed.any():
            rows = np.flatnonzero(zeroed)
            starts, sizes = self.messages["key_start"][rows], self.messages["key_size"][rows]
            zeroed[rows] = context.are_hard_deleted(identities(self.messages.data, starts, sizes))
        return pa.array(zeroed, pa.bool_(), mask=~self.put)


_RENAMED = {"header_version": "version", "properties_version": "serde", "blob_size": "content_size"}
_NULL_WHEN_EMPTY = frozenset({"content_encoding", "filename", "reserved_metadata_blob_id"})


def text_column(messages: Messages, name: str, *, empty_is_null: bool = False) -> pa.Array:
    """A string of the properties; bytes that are no UTF-8 read as Java reads them."""
    size = messages[f"{name}_size"]
    raw = columns.spans(messages.data, messages[f"{name}_start"], size, size > 0 if empty_is_null else size >= 0)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if text is None else java_text(text) for text in raw.to_pylist()], pa.string())


# Columns of text: blob ids, uuids, and the headers of `records` with kind, life version and properties --------------------------

_TYPE = arrow_type(HEADER_LIST)
_TEXT_ROWS = [
    kernels.FIELDS.index(field) + 1 for _, field, how, _ in texts.HEADERS if how in (texts.TEXT, texts.TEXT_OR_NONE)
]
_NUMBER_ROOM = texts.LONGEST_NUMBER * len(texts.HEADERS)


def headers(messages: Messages) -> pa.Array:
    """The headers column of messages."""
    count = len(messages)
    text = int(np.maximum(messages.fields[_TEXT_ROWS], 0).sum())
    lists, key_ends, value_ends = (
        _buffer(4 * (size + 1)) for size in (count, count * texts.COUNT, count * texts.COUNT)
    )
    keys, values = _buffer(count * texts.NAME_BYTES + SLACK), _buffer(text + count * _NUMBER_ROOM + SLACK)
    header_count, _, _ = texts.write_headers(
        messages.data,
        messages.fields,
        _numbers(lists),
        _numbers(key_ends),
        np.frombuffer(keys, np.uint8),
        _numbers(value_ends),
        np.frombuffer(values, np.uint8),
        np.empty(texts.COUNT, np.int64),
    )
    pairs = pa.StructArray.from_arrays(
        [
            pa.Array.from_buffers(pa.string(), header_count, [None, key_ends, keys]),
            pa.Array.from_buffers(pa.binary(), header_count, [None, value_ends, values]),
        ],
        fields=list(_TYPE.value_type),
    )
    return pa.ListArray.from_arrays(pa.Array.from_buffers(pa.int32(), count + 1, [None, lists]), pairs, type=_TYPE)


def text_ids(data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """The text form of keys that are in `data`."""
    return _texts(data, starts, sizes, texts.write_base64, int(sizes.sum()) * 4 // 3 + 4 * starts.size)


def uuids(messages: Messages) -> pa.Array:
    """The uuid of every key; in V1 to V5 any text may be there."""
    room = int(messages["key_size"].sum()) + texts.UUID_TEXT * len(messages)
    return _texts(messages.data, messages["key_start"], messages["key_size"], texts.write_uuids, room)


def _texts(data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64], write: object, room: int) -> pa.Array:
    count = starts.size
    ends, out = _buffer(4 * (count + 1)), _buffer(room + SLACK)
    starts, sizes = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(sizes, np.int64)
    write(data, starts, sizes, np.frombuffer(out, np.uint8), _numbers(ends))  # type: ignore[operator]
    array = pa.Array.from_buffers(pa.binary(), count, [None, ends, out])
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([java_text(text) for text in array.to_pylist()], pa.string())


def _buffer(size: int) -> pa.Buffer:
    return pa.allocate_buffer(size)


def _numbers(buffer: pa.Buffer) -> NDArray[np.int32]:
    return np.frombuffer(buffer, np.int32)


# Index files next to a log segment: where to cut it for several readers, and where to begin near an offset. An index file is only
# trusted where a sound message header is at the position that its name gives. -----------------------------------------------------


def index_starts(file: File, group: Sequence[File]) -> list[int]:
    """Where the index files of a log segment begin, in order."""
    segment = segment_of(file.path)
    starts = {
        start_of(other.path) for other in group if other.format == "ambry.index" and segment_of(other.path) == segment
    }
    return sorted(start for start in starts if 0 < start < file.size)


def begins_message(source: Source, position: int) -> bool:
    """Whether a sound message header begins there."""
    head = source.read(position, HEADER_V3.size)
    return int(check_header(byte_view(head), 0)) == OK if head else False


def cuts(file: File, group: Sequence[File], size: int) -> list[int]:
    """Positions of messages about `size` bytes apart, from the index files; none if an index file is wrong."""
    marks: list[int] = []
    next_cut = size
    try:
        with Source(file.path) as source:
            for position in index_starts(file, group):
                if position >= next_cut:
                    if not begins_message(source, position):
                        return []
                    marks.append(position)
                    next_cut = position + size
    except RawlogError:
        return []
    return marks if marks and file.size - marks[-1] <= 4 * size else []


def seek(file: File, group: Sequence[File], offset: int | None, time: int | None) -> int:
    """A position from which all messages at or after an offset are read: the index file before it, else the first message."""
    with Source(file.path) as source:
        first = begin(source.read(0, 4096), source.size).position
        if offset is None:
            return first
        target = offset - (file.place.start_offset or 0)
        for position in reversed(index_starts(file, group)):
            if first < position <= target and begins_message(source, position):
                return position
    return first


# ----------------------------------------------------------------------------------------------------------------------
# What `explain` shows of a log segment: its header, and a message to the last byte.


_TIMES = frozenset({"creation_time", "update_time"})


def explain_header(head: bytes, file: File) -> list[Node]:
    """The segment header; none in `log_current`."""
    if not begin(head, file.size).position:
        return []
    cursor = Cursor(head)
    cursor.number("version", "i16")
    cursor.number("capacity_in_bytes", "i64", SEGMENT_HEADER.field("capacity_in_bytes").note)
    cursor.crc()
    return [Node(0, SEGMENT_HEADER.size, SEGMENT_HEADER.name, children=cursor.nodes)]


def explain(frames: Frames, file: File) -> list[Node]:
    """One message: header, key, and every record with all its fields."""
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    cursor = Cursor(frames.data[start:stop].tobytes(), base=frames.base + start)
    version = int.from_bytes(cursor.data[:2], "big")
    layout = HEADERS[version]
    offsets = {}
    with cursor.group(layout.name):
        for item in layout.fields[:-1]:
            note = item.note if item.name != "payload_size" else "bytes of all records"
            offsets[item.name] = cursor.number(item.name, f"i{item.size * 8}", note)
        cursor.crc()
    cursor.key()
    is_put = offsets["blob_properties_offset"] > 0
    what = "PUT"
    try:
        if is_put:
            _explain_put(cursor, has_key=offsets.get("encryption_key_offset", NONE) != NONE)
        else:
            what = _explain_update(cursor)
    except DataError as error:
        what += f"; {error.message}"
    if cursor.left:
        cursor.raw("not part of a record", cursor.left)
    return [
        Node(frames.base + start, stop - start, f"message, number {frames.first}", meaning=what, children=cursor.nodes)
    ]


def _fields(cursor: Cursor, layout: Layout, *leave: str) -> dict[str, int]:
    values = {}
    for item in layout.fields:
        if item.name in leave:
            continue
        meaning: object = milliseconds if item.name in _TIMES else item.note
        values[item.name] = cursor.number(item.name, f"i{item.size * 8}", meaning)  # type: ignore[arg-type]
    return values


def _explain_sized(cursor: Cursor, layout: Layout, name: str) -> None:
    start = cursor.position
    with cursor.group(layout.name):
        size = _fields(cursor, layout)["size"]
        cursor.raw(name, size)
        cursor.crc(start)


def _explain_put(cursor: Cursor, *, has_key: bool) -> None:
    if has_key:
        _explain_sized(cursor, ENCRYPTION_KEY, "encryption_key")
    start = cursor.position
    with cursor.group("blob properties record"):
        cursor.version((1,))
        serde = cursor.version((1, 2, 3, 4, 5), "serde_version")
        cursor.number("time_to_live", "i64", lambda value: "for ever" if value == NONE else "seconds")
        cursor.number("is_private", "i8")
        cursor.number("creation_time", "i64", milliseconds)
        cursor.number("blob_size", "i64", "of the blob as its user sees it")
        for name in ("content_type", "owner_id", "service_id"):
            cursor.text(name)
        if serde >= 2:
            cursor.number("account_id", "i16")
            cursor.number("container_id", "i16")
        if serde >= 3:
            cursor.number("is_encrypted", "i8")
        for name, since in (("content_encoding", 4), ("filename", 4), ("reserved_metadata_blob_id", 5)):
            if serde >= since:
                cursor.text(name)
        cursor.crc(start)
    _explain_sized(cursor, USER_METADATA, "user_metadata")
    _explain_blob(cursor)


def _explain_blob(cursor: Cursor) -> None:
    start = cursor.position
    version = int.from_bytes(cursor.data[start : start + 2], "big", signed=True)
    layout = BLOBS.get(version)
    if layout is None:
        cursor.version(tuple(BLOBS))
        return
    with cursor.group(layout.name):
        cursor.version(tuple(BLOBS))
        kind = compressed = 0
        if version >= 2:
            kind = cursor.number("blob_type", "i16", lambda value: BLOB_TYPES[value] if 0 <= value < 2 else "unknown")
        if version >= 3:
            compressed = cursor.number("is_compressed", "i8", "1: the content is an envelope with compressed bytes")
        size = cursor.number("size", "i64")
        content = cursor.data[cursor.position : cursor.position + max(size, 0)]
        inner = _inside(content, cursor.base + cursor.position, kind, compressed)
        cursor.raw("content", size)
        cursor.nodes[-1].children = inner
        cursor.crc(start)


def _inside(content: bytes, base: int, kind: int, compressed: int) -> list[Node]:
    """The parts of a list of chunks or of an envelope; nothing for other content."""
    inner = Cursor(content, base=base)
    try:
        if compressed == 1:
            name, size, start = read_envelope(content)
            inner.number("version", "i8")
            inner.number("name_size", "i8")
            inner.raw("algorithm", len(name), "text", name)
            inner.number("original_size", "i32", f"{size:,} bytes when decompressed")
            inner.raw("compressed", len(content) - start)
        elif kind == 1:
            read_metadata(inner)
    except DataError:
        return []
    return inner.nodes


def _explain_update(cursor: Cursor) -> str:
    start = cursor.position
    version = int.from_bytes(cursor.data[start : start + 2], "big", signed=True)
    kind = "DELETE"
    with cursor.group(f"update record V{version}"):
        if version == 1:
            _fields(cursor, UPDATE_V1, "crc")
        elif version == 2:
            _fields(cursor, UPDATE_V2, "crc")
        elif version == 3:
            _fields(cursor, UPDATE_V3, "type", "sub_version")
            kind = update_name(cursor.number("type", "i16", update_name))
            with cursor.group("sub-record"):
                cursor.number("version", "i16")
                if kind == "TTL_UPDATE":
                    cursor.number("new_expiry", "i64", lambda value: "never" if value == NONE else milliseconds(value))
        else:
            cursor.version((1, 2, 3))
        if cursor.left >= CRC_SIZE:
            cursor.crc(start)
    return kind


def tally(frames: Frames, file: File) -> dict[str, dict[str, tuple[int, int]]]:
    """Messages and bytes by operation."""
    kinds, sizes = Messages(frames, check=False)["kind"], frames.sizes
    masks = {kind.name: kinds == int(kind) for kind in Kind}
    return {"operation": {name: (int(of.sum()), int(sizes[of].sum())) for name, of in masks.items() if of.any()}}


def rules() -> Sequence[Rule[Any]]:
    """Checks over the messages of a segment."""
    from rawlog.formats.ambry.rules import log_rules

    return log_rules()


# What needs the other files of its store, or writes them -----------------------------------------------------------------


def summary(file: File, group: Sequence[File], start: int, stop: int | None) -> LogSummary:
    """The pass over a segment, or over a split of it."""
    from rawlog.formats.ambry.store import state

    return state.summary(file, group, start, stop)


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> Any:
    """What the column `hard_deleted` needs to know of the store."""
    from rawlog.formats.ambry.store import store

    return store.context(file, group, options)


def contradicted(group: Sequence[File], file: File, end: int) -> Iterator[str]:
    """What a store says against a segment whose messages end at a position."""
    from rawlog.formats.ambry.store import store

    return store.contradicted(group, file, end)


def losses(options: Mapping[str, str]) -> Judge:
    """Which rows of `records` would read back otherwise, by column."""
    from rawlog.formats.ambry import writer

    return writer.losses(options)


def encode(batches: Iterable[pa.RecordBatch], options: Mapping[str, str]) -> Iterator[bytes]:
    """A log of one segment with these rows, in pieces."""
    from rawlog.formats.ambry import writer

    return writer.encode(batches, options)


def write(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Write rows as a store; the number of rows."""
    from rawlog.formats.ambry.store import rewrite

    return rewrite.write(batches, output, options)
