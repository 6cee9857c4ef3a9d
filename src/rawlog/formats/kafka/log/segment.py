"""The log segment: everything rawlog can do with one, by what the headers of its batches say.

`records` reads the bytes of records. `seek`, which finds places through indexes and headers, `explain` and `rules` are imported when they
are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.kernels.heads import find_batch, scan_batches
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    ENTRY_V0,
    ENTRY_V1,
    MAGIC_V2,
    NONE,
    OUTLINE,
    SMALLEST_BATCH,
    SMALLEST_LENGTH,
    Attributes,
)
from rawlog.formats.kafka.log.records import (
    COLUMNS,
    WHOLE_ROWS,
    Columns,
    TooMuch,
    decode_columns,
    decode_legacy,
    decode_legacy_slices,
    decode_plain,
    decode_slices,
    has_open_wrappers,
    open_wrappers,
    starts_plain,
    unwrap,
)
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.formats.kafka.paths import contradicted as contradicted
from rawlog.kernels import byte_view, columns
from rawlog.model.errors import CorruptError, DataError, OptionError
from rawlog.model.finding import Rule
from rawlog.model.format import (
    MAX_DECOMPRESSED,
    NO_TIME,
    ExpectedGaps,
    File,
    Inspection,
    Judge,
    Offsets,
    Spans,
    SplitWriter,
    Undone,
    Want,
)
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.table import RECORDS

if TYPE_CHECKING:
    from rawlog.formats.kafka.partition.survey import SegmentFold
    from rawlog.io.output import Folder, Output
    from rawlog.model.explain import Node


LAYOUTS = (BATCH, ENTRY_V1, ENTRY_V0)
MOST_MS = ((1 << 63) - 1) // 1000
CODEC_NAMES = pa.array([*CODECS, None, None, None])
PIECE = 4 << 20
COMPRESSED_PIECE = 2 << 20
MOST_POSITIVE = 0x7F
"""The highest first byte of a number that is not negative."""
TOTAL = 64 << 20
"""Decompressed bytes decoded at a time, unless one batch alone holds more."""


def scan(data: Bytes, kind: int) -> Frames:
    """The whole batches of a window."""
    room = data.size // (OUTLINE.after("length") + SMALLEST_LENGTH) + 1
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    count, reached, code = scan_batches(byte_view(data), 0, starts, stops)
    status = Status(code)
    if status in (Status.BAD_LENGTH, Status.TRUNCATED) and not data[reached:].any():
        status = Status.PADDING
    if status is Status.TRUNCATED and not count and not may_begin(data):
        status = Status.BAD_MAGIC
    return Frames(data, starts[:count], stops[:count], int(reached), status)


def may_begin(data: Bytes) -> bool:
    """Whether a batch that was not written to its end may begin with these bytes: its offset is not negative, and its magic is known."""
    magic = data[OUTLINE.at("magic") : OUTLINE.after("magic")]
    return not (data[:1] > MOST_POSITIVE).any() and not (magic > MAGIC_V2).any()


def resync(data: Bytes, position: int, kind: int) -> int:
    """The position of the next batch with a right checksum, or -1."""
    return int(find_batch(byte_view(data), position))


def fault(frames: Frames) -> DataError:
    """What is wrong with the batch at which the scan stopped."""
    if frames.status is Status.BAD_MAGIC:
        is_negative = bool(frames.data[frames.reached] > MOST_POSITIVE)
        return CorruptError(
            "no batch begins here, and none follows: a broker that has to recover the log cuts all of it",
            position=frames.reached_in_file,
            layout=OUTLINE.name,
            field="base_offset" if is_negative else "magic",
            expected="0 or more" if is_negative else "0 to 2",
            found="a negative number" if is_negative else int(frames.data[frames.reached + OUTLINE.at("magic")]),
        )
    at = frames.reached + OUTLINE.at("length")
    length = int.from_bytes(bytes(frames.data[at : at + 4]), "big", signed=True)
    message = f"batch length {length}, at least {SMALLEST_LENGTH} expected"
    if length >= SMALLEST_LENGTH:
        where = (
            "reaches into"
            if frames.data.size - at - 4 >= length
            else "is beyond the end of the file, although there are"
        )
        message = f"batch length {length:,} {where} batches after it"
    return CorruptError(
        message,
        position=frames.reached_in_file,
        layout=OUTLINE.name,
        field="length",
        expected=f"at least {SMALLEST_LENGTH}",
        found=length,
    )


def sound(frames: Frames, head: Heads) -> tuple[int, DataError | None]:
    """The number of frames before the first unsound one, and the error of that one."""
    if head.all_sound:
        return len(frames), None
    bad = int(np.argmin(head.sound))
    return bad, _unsound_error(frames, head, bad)


def _unsound_error(frames: Frames, head: Heads, index: int) -> CorruptError:
    magic, position = int(head["magic"][index]), int(frames.positions[index])
    state = int(head["state"][index])
    if state == Status.BAD_MAGIC:
        return CorruptError(
            f"magic {magic}, 0 to 2 expected", position=position, field="magic", expected="0 to 2", found=magic
        )
    if state == Status.BAD_LENGTH:
        length = int(frames.sizes[index]) - OUTLINE.after("length")
        least = SMALLEST_BATCH if magic == MAGIC_V2 else SMALLEST_LENGTH + 8 * magic
        return CorruptError(
            f"length {length} in a batch of magic {magic}, at least {least} expected",
            position=position,
            field="length",
            expected=f"at least {least}",
            found=length,
        )
    stored, computed = int(head["crc"][index]), int(head["computed_crc"][index])
    return CorruptError(
        f"checksum {stored:08x}, {computed:08x} expected",
        position=position,
        layout=BATCH.name,
        field="crc",
        expected=f"{computed:08x}",
        found=f"{stored:08x}",
    )


def spans(frames: Frames, file: File) -> Spans:
    """What batches cover, by their headers; DataError at the first whose checksum is wrong."""
    head = heads(frames)
    _, error = sound(frames, head)
    if error is not None:
        raise error
    is_wrapper = head["record_count"] < 0
    # What spans say may not depend on who else has read the window: opened wrappers save counting, and no more.
    count = (open_wrappers(frames, head) if has_open_wrappers(frames) else head)["record_count"]
    data_records = np.where(head.has(Attributes.CONTROL), 0, count)
    top = head["max_timestamp"]
    is_append_time = head.has(Attributes.LOG_APPEND_TIME)
    first = np.where(is_append_time, top, head["base_timestamp"])
    first = np.where(head.has(Attributes.DELETE_HORIZON) | (count == 0), NONE, first)
    start, stop = head["base_offset"], head["last_offset"] + 1
    if is_wrapper.any():
        # A wrapper begins somewhere after the frame before it; the first may begin with the segment.
        low = np.concatenate(([min(file.place.start_offset or 0, int(start[0]))], stop[:-1]))
        start = np.where(is_wrapper, np.minimum(low, start), start)
    # With create time a batch begins with the time of its first record; those after it may be older.
    return Spans(start, stop, _micros(first), _micros(top), data_records, min_is_exact=is_append_time)


def offsets(frames: Frames, file: File) -> Offsets:
    """The offsets of batches. Only the content of a wrapper tells its first: it is opened."""
    head = open_wrappers(frames, heads(frames, check_crc=False))
    first, stop = head["base_offset"], head["last_offset"] + 1
    is_closed = head["record_count"][1:] < 0
    if is_closed.any():  # it begins somewhere after the one before it
        first[1:] = np.where(is_closed, np.minimum(first[1:], stop[:-1]), first[1:])
    return Offsets(first, stop, bool(head.cleaned.any()), bool((head["base_sequence"] >= 0).any()))


def misplaced(frames: Frames, file: File) -> NDArray[np.int64]:
    """The batches of a metadata log that do not go on where the one before ends: it is never compacted, so some are missing."""
    if file.place.topic != METADATA_TOPIC or len(frames) < 2:
        return np.empty(0, np.int64)
    places = offsets(frames, file)
    return np.asarray(frames.positions[1:][places.first[1:] != places.stop[:-1]])


def _micros(milliseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    valid = (milliseconds != NONE) & (np.abs(milliseconds) <= MOST_MS) & (milliseconds != NO_TIME)
    return np.where(valid, np.where(valid, milliseconds, 0) * 1000, NO_TIME)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Batches as rows of `kafka.batches`, or their records as rows of `records` and `kafka.records`.

    Values of a metadata log, or of one that may be one, come without their secrets unless the user asks for them.
    """
    rows = decode_stored(frames, want)
    if not _may_be_metadata(want) or "value" not in want.table.names or shows_secrets(want.options):
        return rows
    return map(without_secrets, rows)


def _may_be_metadata(want: Want) -> bool:
    return want.file.place.topic in (METADATA_TOPIC, None)


def decode_stored(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The same rows with the values that are stored."""
    if want.table.name == "kafka.batches":
        yield from _batches(frames, want)
        return
    if want.table.name == RECORDS.name and want.context is None:
        frames = yield from _plain(frames, want)
    head = heads(frames)
    good, error = sound(frames, head)
    if error is not None:
        frames, head = frames.slice(0, good), head.slice(0, good)
    keep = _kept_batches(head, want)
    if not keep.all():
        frames, head = only(frames, keep), head.only(keep)
    for start, stop in pieces(frames, head):
        yield from _records(frames.slice(start, stop), head.slice(start, stop), want)
    if error is not None:
        raise error


def decode_together(frames: Frames, wants: Sequence[Want]) -> Iterator[tuple[int, Sequence[pa.RecordBatch]]]:
    """The records of batches as rows of `records` and `kafka.records`, decoded once. It ends at the first batch with an error.

    What may be a metadata log is left for `decode`.
    """
    if _may_be_metadata(wants[0]):
        return
    names = _record_columns({name for want in wants for name in want.table.names})
    limit, max_headers = min(want.limit for want in wants), min(want.max_headers for want in wants)
    head = heads(frames)
    good, _ = sound(frames, head)
    frames, head = frames.slice(0, good), head.slice(0, good)
    keeps = [_kept_batches(head, want) for want in wants]
    taken = np.logical_or.reduce(keeps)
    numbers = np.flatnonzero(taken)
    if numbers.size < good:
        frames, head, keeps = only(frames, taken), head.only(taken), [keep[taken] for keep in keeps]
    reached = 0
    for start, stop in pieces(frames, head):
        try:
            run = decode_bounded(frames.slice(start, stop), head.slice(start, stop), names, limit, max_headers)
            for part, part_head, decoded in run:
                first = part.first - frames.first
                end = int(numbers[first + len(part) - 1]) + 1
                rows = [
                    _rows(part, part_head, want, decoded, keep[first : first + len(part)])
                    for want, keep in zip(wants, keeps, strict=True)
                ]
                yield end - reached, rows
                reached = end
        except DataError:
            return
    yield good - reached, ()


def _kept_batches(head: Heads, want: Want) -> NDArray[np.bool_]:
    """Which batches hold rows of the table that is wanted."""
    keep = np.ones(len(head), np.bool_)
    if want.table.name == RECORDS.name and head.any(Attributes.CONTROL):
        keep &= ~head.has(Attributes.CONTROL)
    if want.context is not None:
        keep &= want.context.takes(head)
    return keep


def _plain(frames: Frames, want: Want) -> Generator[pa.RecordBatch, None, Frames]:
    """The records of the uncompressed old entries in front, by the short way; the frames that it leaves."""
    while starts_plain(frames.data, frames.starts):
        names = set(want.table.names)
        piece = frames.slice(0, _fitting(frames, 0, PIECE))
        decoded = decode_plain(piece.data, piece.starts, piece.stops, _record_columns(names))
        if not decoded.count:
            break
        yield columns.batch(want.table, decoded.arrays | _from_file(want, names, decoded.count), decoded.count)
        frames = frames.slice(decoded.count, len(frames))
    return frames


def _fitting(frames: Frames, start: int, limit: int) -> int:
    """Where a run of frames from `start` on ends that has about `limit` bytes; at least one frame is in it."""
    return max(int(np.searchsorted(frames.stops, frames.starts[start] + limit, side="right")), start + 1)


def only(frames: Frames, mask: NDArray[np.bool_]) -> Frames:
    """The frames that a mask chooses, over the same bytes."""
    return replace(frames, starts=frames.starts[mask], stops=frames.stops[mask])


def pieces(frames: Frames, head: Heads) -> Iterator[tuple[int, int]]:
    """Runs of frames to decode at a time: of one kind, and small, so that caches hold them and memory stays bounded."""
    if not len(frames):
        return
    limit = COMPRESSED_PIECE if head.any(CODEC_MASK) else PIECE
    rows = np.cumsum(np.clip(head["record_count"], 0, None), dtype=np.int64)
    if not head.mixed and frames.stops[-1] - frames.starts[0] <= limit and rows[-1] <= WHOLE_ROWS:
        yield 0, len(frames)
        return
    legacy = head["magic"] != MAGIC_V2
    edges = [0, *(np.flatnonzero(legacy[1:] != legacy[:-1]) + 1).tolist(), len(frames)]
    for first, last in pairwise(edges):
        start = first
        while start < last:
            before = int(rows[start - 1]) if start else 0
            few = max(start + 1, int(np.searchsorted(rows, before + WHOLE_ROWS, side="right")))
            stop = min(_fitting(frames, start, limit), last, few)
            yield start, stop
            start = stop


def decode_run(frames: Frames, head: Heads, names: set[str], limit: int) -> Columns:
    """The columns of frames that are all of magic 2, or all older, in one piece. DataError names a frame by its position in `data`."""
    function = decode_columns if head["magic"][0] == MAGIC_V2 else decode_legacy
    return function(frames.data, frames.starts, frames.stops, names, head=head, limit=limit, total=TOTAL)


def decode_bounded(
    frames: Frames, head: Heads, names: set[str], limit: int, max_headers: int
) -> Iterator[tuple[Frames, Heads, Columns]]:
    """The same in bounded pieces, however many records the frames hold: some frames and their columns, or one frame and a slice of it.

    Before a DataError, the records of all frames in front of the one that has it.
    """
    rest, failure = [(0, len(frames))], None
    while rest:
        start, stop = rest.pop()
        if start == stop:
            continue
        part, part_head = frames.slice(start, stop), head.slice(start, stop)
        try:
            for decoded in _slices(part, part_head, names, limit, max_headers):
                yield part, part_head, decoded
        except TooMuch as full:
            rest += [(start + full.fits, stop), (start, start + full.fits)]
        except DataError as error:
            bad = int(np.searchsorted(part.starts, error.position or 0, side="right")) - 1
            failure, rest = error, [(start, start + bad)]
    if failure is not None:
        raise failure


def _slices(frames: Frames, head: Heads, names: set[str], limit: int, max_headers: int) -> Iterator[Columns]:
    if head["magic"][0] == MAGIC_V2:
        return decode_slices(
            frames.data,
            frames.starts,
            frames.stops,
            names,
            head=head,
            limit=limit,
            total=TOTAL,
            max_headers=max_headers,
        )
    return decode_legacy_slices(frames.data, frames.starts, frames.stops, names, head=head, limit=limit, total=TOTAL)


def _records(frames: Frames, head: Heads, want: Want) -> Iterator[pa.RecordBatch]:
    """The records of sound batches; before an error, those of the batches in front of the one that has it."""
    needed = _record_columns(set(want.table.names))
    try:
        for part, part_head, decoded in decode_bounded(frames, head, needed, want.limit, want.max_headers):
            if decoded.count:
                yield _rows(part, part_head, want, decoded)
    except DataError as error:
        bad = int(np.searchsorted(frames.starts, error.position or 0, side="right")) - 1
        error.position = int(frames.positions[bad])
        raise


def _rows(
    frames: Frames, head: Heads, want: Want, decoded: Columns, keep: NDArray[np.bool_] | None = None
) -> pa.RecordBatch:
    """Decoded records as rows of a table: all of them, or those of the batches that `keep` says."""
    names = set(want.table.names)
    batch = columns.batch(want.table, _with_batch_columns(frames, head, want, names, decoded), decoded.count)
    marks = columns.Marks(_replaced_keys(decoded), far=decoded.far > 0 and "timestamp" in names)
    batch = columns.marked(batch, marks)
    return batch if keep is None or keep.all() else batch.filter(pa.array(np.repeat(keep, decoded.counts)))


def _replaced_keys(decoded: Columns) -> frozenset[str]:
    """The header keys of records with a key that is not UTF-8, as they read."""
    if not decoded.replaced.size:
        return frozenset()
    rows = decoded.arrays["headers"].take(pa.array(decoded.replaced))
    return frozenset(pair["key"] for row in rows.to_pylist() for pair in row if "\ufffd" in pair["key"])


def _record_columns(names: set[str]) -> set[str]:
    """What records themselves must tell for these columns."""
    needed = names & COLUMNS
    if "control_type" in names:
        needed = needed | {"key"}
    return needed | {"offset"} if "sequence" in names else needed


def _with_batch_columns(
    frames: Frames, head: Heads, want: Want, names: set[str], decoded: Columns
) -> dict[str, pa.Array]:
    """The decoded columns, and what file and batch say of every record."""
    arrays = decoded.arrays | _from_file(want, names, decoded.count)
    missing = names - arrays.keys()
    return arrays | _from_batches(frames, head, want, missing, decoded) if missing else arrays


def _from_file(want: Want, names: set[str], count: int) -> dict[str, pa.Array]:
    """What the file's place says of all of its records."""
    place = want.file.place
    file_values = {"topic": place.topic, "partition": place.partition, "path": want.file.path}
    return {
        name: columns.constant(value, want.table.column(name).type, count, compact=want.compact)
        for name, value in file_values.items()
        if name in names
    }


def _from_batches(frames: Frames, head: Heads, want: Want, names: set[str], decoded: Columns) -> dict[str, pa.Array]:
    row = decoded.batch_index
    arrays: dict[str, pa.Array] = {}
    if "batch_position" in names:
        arrays["batch_position"] = columns.integers(frames.positions[row], "bigint")
    for name in names & {"magic", "leader_epoch", "producer_id", "producer_epoch"}:
        arrays[name] = _repeat(head[name], want.table.column(name).type, row)
    if "codec" in names:
        codecs = head.codec
        if (codecs == codecs[0]).all():
            name = CODEC_NAMES[int(codecs[0])].as_py()
            arrays["codec"] = columns.constant(name, "string", decoded.count, compact=want.compact)
        else:
            arrays["codec"] = CODEC_NAMES.take(pa.array(codecs[row]))
    if "sequence" in names:
        arrays["sequence"] = columns.integers(_sequences(head, row, decoded.arrays["offset"]), "int")
    for name, bit in (("is_transactional", Attributes.TRANSACTIONAL), ("is_control", Attributes.CONTROL)):
        if name in names:
            arrays[name] = _repeat(head.has(bit), "boolean", row)
    if "control_type" in names:
        control = head.has(Attributes.CONTROL)[row]
        arrays["control_type"] = _control_types(decoded.arrays["key"], control)
    if "aborted" in names:
        aborted = want.context.aborted(head) if want.context is not None else np.zeros(len(frames), np.bool_)
        arrays["aborted"] = _repeat(aborted, "boolean", row)
    return arrays


def _repeat(values: NDArray[Any], type: str, row: NDArray[np.int64]) -> pa.Array:
    """A column of what batches say, for every record; mostly all batches of a window say the same."""
    if (values == values[0]).all():
        return columns.constant(values[0].item(), type, row.size)
    return columns.booleans(values[row]) if type == "boolean" else columns.integers(values[row], type)


def _sequences(head: Heads, row: NDArray[np.int64], offsets: pa.Array) -> NDArray[np.int64]:
    """Sequences run from the base on, one per offset, and wrap after 2147483647 to 0; -1 where the batch has none."""
    if (head["base_sequence"] < 0).all():
        return np.full(row.size, NONE, np.int64)
    base = head["base_sequence"][row]
    delta = offsets.to_numpy() - head["base_offset"][row]
    return np.where(base < 0, NONE, (base + delta) & 0x7FFF_FFFF)


def _control_types(keys: pa.Array, control: NDArray[np.bool_]) -> pa.Array:
    """The type in a control record's key: int16 version, int16 type; null for ordinary records."""
    from rawlog.formats.kafka.internal.messages import control_type  # message definitions, which most logs need not

    types = [control_type(keys[index].as_py()) for index in np.flatnonzero(control).tolist()]
    values = np.zeros(control.size, np.int64)
    has_type = np.zeros(control.size, np.bool_)
    values[control] = [0 if kind is None else kind for kind in types]
    has_type[control] = [kind is not None for kind in types]
    return columns.integers(values, "int", has_type)


def _batches(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """One row per batch or entry; a wrong checksum is a column here, not an error."""
    head = heads(frames, check_crc="crc_ok" in want.table.names)
    usable = head.sound | (head["state"] == Status.BAD_CRC)
    good = len(frames) if usable.all() else int(np.argmin(usable))
    if good:
        whole = frames.slice(0, good)
        yield columns.batch(want.table, _batch_columns(whole, head.slice(0, good), want), good)
    if good < len(frames):
        raise _unsound_error(frames, head, good)


def _batch_columns(frames: Frames, head: Heads, want: Want) -> dict[str, pa.Array]:
    count = len(frames)
    base_offset, record_count = _unwrapped_counts(frames, head, want)
    horizon = head.has(Attributes.DELETE_HORIZON)
    base, top = _micros(head["base_timestamp"]), _micros(head["max_timestamp"])
    append = head.has(Attributes.LOG_APPEND_TIME).astype(np.int64)
    arrays = {
        "topic": columns.constant(want.file.place.topic, "string", count),
        "partition": columns.constant(want.file.place.partition, "int", count),
        "path": columns.constant(want.file.path, "string", count),
        "position": columns.integers(frames.positions, "bigint"),
        "size": columns.integers(frames.sizes, "bigint"),
        "base_offset": columns.integers(base_offset, "bigint"),
        "record_count": columns.integers(record_count, "int", record_count >= 0),
        "codec": CODEC_NAMES.take(pa.array(head.codec)),
        "timestamp_type": columns.integers(np.where(head["magic"] == 0, NONE, append), "int"),
        "base_timestamp": columns.timestamps(base, (base != NO_TIME) & ~horizon),
        "max_timestamp": columns.timestamps(top, top != NO_TIME),
        "delete_horizon": columns.timestamps(base, (base != NO_TIME) & horizon),
        "is_transactional": columns.booleans(head.has(Attributes.TRANSACTIONAL)),
        "is_control": columns.booleans(head.has(Attributes.CONTROL)),
        "crc_ok": columns.booleans(head.sound),
    }
    for column in want.table.columns:
        if column.name not in arrays:
            arrays[column.name] = columns.integers(head[column.name], column.type)
    return arrays


def _unwrapped_counts(frames: Frames, head: Heads, want: Want) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First offset and number of records of every batch: a compressed entry of magic 0 or 1 has to be opened for them."""
    if not {"base_offset", "record_count"} & set(want.table.names):
        return head["base_offset"].copy(), head["record_count"].copy()
    return unwrapped_counts(frames, head, want.limit)


def unwrapped_counts(
    frames: Frames, head: Heads, limit: int = MAX_DECOMPRESSED
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First offset and number of records of every batch; -1 for a wrapper that cannot be opened."""
    base, count = head["base_offset"].copy(), head["record_count"].copy()
    for index in np.flatnonzero((count < 0) & (head["magic"] != MAGIC_V2) & head.sound).tolist():
        wrapper = frames.slice(index, index + 1)
        try:
            inside = unwrap(
                wrapper.data, wrapper.starts, wrapper.stops, head.slice(index, index + 1), limit=limit, total=TOTAL
            )
        except DataError:
            continue
        count[index] = inside.counts[0]
        at = int(inside.starts[0])
        inner = int.from_bytes(bytes(inside.data[at : at + OUTLINE.after("base_offset")]), "big", signed=True)
        base[index] = inner + int(inside.bases[0])
    return base, count


# ----------------------------------------------------------------------------------------------------------------------
# What `report` counts of the batches of a partition: codecs, and who wrote them.


Rows = dict[str, tuple[int, int]]
#: So many producers of one window are counted, those with the most batches.
PRODUCERS = 64


def tally(frames: Frames, file: File) -> dict[str, Rows]:
    """Batches and bytes by codec, by kind of producer and by producer id; batches by the version of their format."""
    head, sizes = heads(frames), frames.sizes
    codecs = [*CODECS, "invalid", "invalid", "invalid"]
    control = head.has(Attributes.CONTROL)
    transactional = head.has(Attributes.TRANSACTIONAL) & ~control
    idempotent = (head["producer_id"] != NONE) & (head["magic"] == 2) & ~control & ~transactional
    kinds = np.select([control, transactional, idempotent], [3, 2, 1], 0)
    names = ("without producer id", "idempotent", "transactional", "control batches")
    tallies = {
        "codec": _count_by(head.codec, sizes, codecs),
        "kind of producer": _count_by(kinds, sizes, names),
        "format version": _count_by(head["magic"], sizes, ("v0", "v1", "v2")),
    }
    of_producer = np.flatnonzero(idempotent | transactional)
    if of_producer.size:
        tallies["producer id"] = _by_producer(head["producer_id"][of_producer], sizes[of_producer])
    return {aspect: rows for aspect, rows in tallies.items() if rows}


def _count_by(values: NDArray[np.int64], sizes: NDArray[np.int64], names: list[str] | tuple[str, ...]) -> Rows:
    inside = (values >= 0) & (values < len(names))
    numbers = np.bincount(values[inside], minlength=len(names))
    sums = np.bincount(values[inside], sizes[inside], minlength=len(names))
    return {name: (int(numbers[at]), int(sums[at])) for at, name in enumerate(names) if numbers[at]}


def _by_producer(producers: NDArray[np.int64], sizes: NDArray[np.int64]) -> Rows:
    numbers, inverse, counts = np.unique(producers, return_inverse=True, return_counts=True)
    sums = np.bincount(inverse, sizes)
    first = np.argsort(-counts, kind="stable")[:PRODUCERS].tolist()
    return {str(numbers[at]): (int(counts[at]), int(sums[at])) for at in first}


def explain(frames: Frames, file: File) -> list[Node]:
    """The parts of one batch, with its records and what they mean."""
    from rawlog.formats.kafka.log.explain import explain_batch

    return explain_batch(frames, file)


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over batches and records, and over the records of topics that Kafka itself writes."""
    from rawlog.formats.kafka.log.rules import log_rules

    return log_rules()


# Places that are found through indexes and headers -------------------------------------------------------------------------------


def seek(file: File, group: Sequence[File], offset: int | None, since: int | None) -> int:
    """A batch's position not after the first row at `offset` or `since` (microseconds); 0 where no index helps."""
    from rawlog.formats.kafka.log import seek as places

    return places.seek(file, group, offset, since)


def cuts(file: File, group: Sequence[File], size: int) -> list[int]:
    """Positions of batches about `size` bytes apart."""
    from rawlog.formats.kafka.log import seek as places

    return places.cuts(file, group, size)


def count(
    file: File, start: int, stop: int | None, following: int | None, see: Callable[[Offsets], None]
) -> tuple[int, int]:
    """The number of records from `start` on without control records, and the byte up to which headers tell it."""
    from rawlog.formats.kafka.log import seek as places

    return places.count(file, start, stop, following, see)


# What needs the other files of its partition, or writes them -------------------------------------------------------------


def summary(file: File, group: Sequence[File], start: int, stop: int | None) -> SegmentFold:
    """The pass over a segment, or over a split of it."""
    from rawlog.formats.kafka.partition.survey import SegmentFold

    return SegmentFold(file, group, start, stop)


def context(file: File, group: Sequence[File], options: Mapping[str, str]) -> Any:
    """The partition's transactions, where what is asked for depends on them."""
    if options.get("isolation") != "read_committed" and "aborted" not in options.get("columns", "").split(","):
        return None
    from rawlog.formats.kafka.partition import transactions

    return transactions.context(file, group, options)


def undone(file: File, group: Sequence[File]) -> Undone:
    """The aborted and open transactions in a segment."""
    from rawlog.formats.kafka.partition import transactions

    return transactions.undone(file, group)


def floor(file: File, group: Sequence[File]) -> int | None:
    """The first offset that a consumer still gets, where it lies inside the segment."""
    from rawlog.formats.kafka.checkpoints import log_start

    return log_start(file, group)


def lost_offsets(group: Sequence[File], first: int, stop: int) -> Sequence[tuple[int, int]]:
    """The missing offsets of a range that are lost: compaction cannot have removed them."""
    from rawlog.formats.kafka.partition import outline

    return outline.lost_offsets(group, first, stop)


def expected_gaps(group: Sequence[File]) -> ExpectedGaps:
    """Which gaps between batches compaction or retention explains."""
    from rawlog.formats.kafka.partition import outline

    return outline.expected_gaps(group)


def losses(options: Mapping[str, str]) -> Judge:
    """Which rows of `records` would read back otherwise, by column."""
    from rawlog.formats.kafka.partition import sink

    return sink.losses(options)


def write(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Write rows as partition directories; the number of rows."""
    from rawlog.formats.kafka.partition import sink

    return sink.write(batches, output, options)


def _write_share(batches: Iterable[pa.RecordBatch], folder: Folder, options: Mapping[str, str]) -> Any:
    from rawlog.formats.kafka.partition import sink

    return sink.write_share(batches, folder, options)


def _join_shares(shares: Sequence[tuple[str, Any]], output: Output, options: Mapping[str, str]) -> int:
    from rawlog.formats.kafka.partition import sink

    return sink.join_shares(shares, output, options)


splits = SplitWriter(_write_share, _join_shares)


# Secrets in metadata logs: what `records` shows of a record that holds salts, keys or passwords ----------------------------------
#
# The secret bytes are overwritten with asterisks, as many as there were, so that the record still decodes. What works on bytes
# (rebuild, repair, restore) never comes through here. Message definitions are imported where they are used: most logs need none.

STAR = b"*"
OPTION = "showSecrets"


def shows_secrets(options: Mapping[str, str]) -> bool:
    """Whether secrets are to be shown. OptionError if that is neither true nor false."""
    for name, value in options.items():
        if name.replace("_", "").replace("-", "").lower() == OPTION.lower():
            if str(value).strip().lower() not in ("true", "false"):
                raise OptionError(f"option {OPTION} {value!r}: true or false expected")
            return str(value).strip().lower() == "true"
    return False


def without_secrets(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows whose values show no secret of a metadata record."""
    from rawlog.formats.kafka.internal.messages import FRAME_VERSION, SECRETS, framed_types

    holders = (*SECRETS, "ConfigRecord")  # the metadata records that may hold a secret
    values = batch.column("value")
    begins = {bytes((FRAME_VERSION, number)) for number, schema in framed_types().items() if schema.name in holders}
    plain = values.to_pylist()
    shown = [hide_secrets(value) if value is not None and value[:2] in begins else value for value in plain]
    if shown == plain:
        return batch
    at = batch.schema.get_field_index("value")
    return batch.set_column(at, batch.schema.field(at), pa.array(shown, values.type))


def hide_secrets(value: bytes) -> bytes:
    """A metadata record's value with its secrets overwritten; what is no such record is left as it is."""
    from rawlog.formats.kafka.internal.messages import decode_framed, encode_framed, is_secret

    try:
        framed = decode_framed(value)
    except DataError:
        return _unreadable(value)
    name = framed.codec.schema.name
    message = dict(framed.message)
    for field, content in framed.message.items():
        if content is not None and is_secret(name, field, framed.message):
            message[field] = STAR * len(content) if isinstance(content, bytes) else "*" * len(content.encode())
    return value if message == framed.message else encode_framed(framed.key, message, framed.version)


def _unreadable(value: bytes) -> bytes:
    """A record of a version that is not known: all of its body, where its type is known to hold secrets."""
    from rawlog.formats.kafka.internal.messages import frame_head, framed_types

    try:
        key, _, body = frame_head(value)
    except DataError:
        return value
    schema = framed_types().get(key)
    if schema is None or not may_hold_secret(schema.name, value):
        return value
    return value[:body] + STAR * (len(value) - body)


def may_hold_secret(schema: str, value: bytes) -> bool:
    """Whether the bytes of a record that cannot be decoded may hold a secret, by the name of its type."""
    from rawlog.formats.kafka.internal.messages import SECRET_CONFIGS, SECRETS

    if schema in SECRETS:
        return True
    return schema == "ConfigRecord" and any(word.encode() in value for word in SECRET_CONFIGS)
