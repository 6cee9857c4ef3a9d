"""The recording: everything rawlog can do with one. `store` is imported when it is needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from rawlog.formats.replay import kernels
from rawlog.formats.replay.layouts import (
    ENTRY_LAYOUTS,
    ENTRY_V0,
    ENTRY_V1,
    ENTRY_V2,
    FILE_HEADER,
    LARGEST,
    LATEST_CREDIBLE,
    NO_TIME_SECONDS,
    begin,
    presume,
)
from rawlog.io.storage import Source
from rawlog.kernels import byte_view, columns
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import CorruptError, DataError, EncodeError, OptionError, unknown
from rawlog.model.explain import Node, layout_nodes, leaf
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import NO_TIME, File, Inspection, Judge, Spans, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status
from rawlog.model.text import plain_time

__all__ = [
    "LAYOUTS",
    "begin",
    "decode",
    "decode_together",
    "encode",
    "explain",
    "explain_header",
    "fault",
    "losses",
    "presume",
    "resync",
    "rules",
    "scan",
    "spans",
    "summary",
]

LAYOUTS = (FILE_HEADER, ENTRY_V2, ENTRY_V1, ENTRY_V0)
BATCH_BYTES = 16 << 20
#: The largest distance, in seconds, of an entry among damaged bytes from its neighbours; and the bytes searched for one.
MONTH = 30 * 86400
LARGEST_SEARCH = 4 << 20
FARTHEST_SECOND = (1 << 63) // 1_000_000 - 1  # what a timestamp in microseconds can hold


def scan(data: Bytes, kind: int) -> Frames:
    """The whole entries of a window."""
    room = data.size // ENTRY_LAYOUTS[kind].size + 1
    starts, stops = np.empty(room, np.int64), np.empty(room, np.int64)
    count, reached, status = kernels.scan_entries(byte_view(data), 0, kind, starts, stops)
    return Frames(data, starts[:count], stops[:count], int(reached), Status(status), kind=kind)


def resync(data: Bytes, position: int, kind: int) -> int:
    """The next position at which entries credibly begin, or -1."""
    return int(kernels.find_entry(byte_view(data), position, kind))


def fault(frames: Frames) -> DataError:
    """What is wrong with the entry at which the scan stopped."""
    layout = ENTRY_LAYOUTS[frames.kind]
    for field in layout.fields:
        at = frames.reached + layout.at(field.name)
        if not field.name.endswith("_size") or at + field.size > frames.data.size:
            continue
        value = int.from_bytes(bytes(frames.data[at : at + field.size]), "big", signed=True)
        if not 0 <= value <= LARGEST:
            what = "key" if field.name == "key_size" else "message"
            return CorruptError(
                f"invalid {what} size: {value} bytes; 0 to {LARGEST:,} expected",
                position=frames.reached_in_file,
                layout=layout.name,
                field=field.name,
                expected=f"0 to {LARGEST}",
                found=value,
            )
    return CorruptError("not an entry", position=frames.reached_in_file, layout=layout.name)


def times(frames: Frames) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The entries' times in microseconds, and which of them are valid."""
    if frames.kind == 0:
        out, valid = np.zeros(len(frames), np.int64), np.zeros(len(frames), np.bool_)
        kernels.read_times_v0(byte_view(frames.data), frames.starts, out, valid)
        return out, valid
    seconds = heads(frames)["timestamp"].astype(np.int64)
    valid = np.abs(seconds) <= FARTHEST_SECOND
    valid &= seconds != NO_TIME  # the one number whose absolute value is itself
    return np.where(valid, seconds, 0) * 1_000_000, valid


def heads(frames: Frames) -> NDArray[Any]:
    """The fixed fields of all entries."""
    return ENTRY_LAYOUTS[frames.kind].take(frames.data, frames.starts)


def spans(frames: Frames, file: File) -> Spans:
    """An entry is one record, numbered from 0."""
    number = np.arange(frames.first, frames.first + len(frames), dtype=np.int64)
    micros, valid = times(frames)
    stamps = np.where(valid, micros, NO_TIME)
    return Spans(number, number + 1, stamps, stamps, np.ones(len(frames), np.int64))


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Entries as rows of `records` or `replay.entries`."""
    for part in _runs(frames):
        yield from _decode(part, want)


def decode_together(frames: Frames, wants: Sequence[Want]) -> Iterator[tuple[int, Sequence[pa.RecordBatch]]]:
    """Entries as rows of `records` and `replay.entries`, decoded once. It ends at the first entry with an invalid time."""
    for part in _runs(frames):
        micros, valid = times(part)
        good = len(part) if valid.all() else int(np.argmin(valid))
        sound, micros = part.slice(0, good), micros[:good]
        if good:
            payload = _payload(sound, {name for want in wants for name in want.table.names})
            column_sets = (
                payload | _columns(sound, want, set(want.table.names) - payload.keys(), micros) for want in wants
            )
            yield (
                good,
                [columns.batch(want.table, arrays, good) for want, arrays in zip(wants, column_sets, strict=True)],
            )
        if good < len(part):
            return


def _runs(frames: Frames) -> Iterator[Frames]:
    """Entries to decode at a time."""
    start = 0
    while start < len(frames):
        stop = int(np.searchsorted(frames.stops, frames.starts[start] + BATCH_BYTES, side="right"))
        stop = max(stop, start + 1)
        yield frames.slice(start, stop)
        start = stop


def _decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    names = set(want.table.names)
    bad: int | None = None
    micros: NDArray[np.int64] | None = None
    if "timestamp" in names:
        micros, valid = times(frames)
        if not valid.all():
            bad = int(np.argmin(valid))
            bad_position, bad_value = _bad_time(frames, bad)
            frames, micros = frames.slice(0, bad), micros[:bad]
    if len(frames):
        yield columns.batch(want.table, _columns(frames, want, names, micros), len(frames))
    if bad is not None:
        raise CorruptError(
            f"an invalid time: {bad_value}",
            position=bad_position,
            format="replay.recording",
            found=bad_value,
        )


def _bad_time(frames: Frames, number: int) -> tuple[int, str]:
    """Where an entry begins, and the time it holds."""
    start = int(frames.starts[number])
    layout = ENTRY_LAYOUTS[frames.kind]
    field = layout.fields[0]
    raw = bytes(frames.data[start : start + field.size])
    shown = repr(raw) if frames.kind == 0 else f"{int.from_bytes(raw, 'big', signed=True):,} seconds"
    return frames.base + start, shown


def _columns(frames: Frames, want: Want, names: set[str], micros: NDArray[np.int64] | None) -> dict[str, pa.Array]:
    count, kind = len(frames), frames.kind
    arrays = _payload(frames, names)
    number = np.arange(frames.first, frames.first + count, dtype=np.int64)
    for name in ("offset", "number"):
        if name in names:
            arrays[name] = columns.integers(number, "bigint")
    if micros is not None:
        arrays["timestamp"] = columns.timestamps(micros)
    if "position" in names:
        arrays["position"] = columns.integers(frames.positions, "bigint")
    if "size" in names:
        arrays["size"] = columns.integers(frames.sizes, "bigint")
    if "headers" in names:
        arrays["headers"] = columns.empty_headers(count)
    constants = {
        "path": want.file.path,
        "version": kind,
        "topic": want.options.get("topic") or want.file.place.topic,
        "partition": want.file.place.partition,
        "timestampType": 0,
    }
    for column in want.table.columns:
        if column.name in constants and column.name not in arrays:
            arrays[column.name] = columns.constant(constants[column.name], column.type, count, compact=want.compact)
    return arrays


def _payload(frames: Frames, names: set[str]) -> dict[str, pa.Array]:
    """The keys and values, as far as they are wanted."""
    data, arrays = byte_view(frames.data), {}
    if names & {"key", "value"}:
        head = heads(frames)
        value_sizes = head["value_size"].astype(np.int64)
        if "value" in names:
            arrays["value"] = columns.spans(data, frames.stops - value_sizes, value_sizes)
        if "key" in names and frames.kind == 2:
            key_sizes = head["key_size"].astype(np.int64)
            arrays["key"] = columns.spans(data, frames.starts + ENTRY_LAYOUTS[2].size, key_sizes, key_sizes > 0)
        elif "key" in names:
            arrays["key"] = columns.constant(None, "binary", len(frames))
    return arrays


# Entries among damaged bytes: what verification reports, and repair keeps ---------------------------------------------------


def credible_times(frames: Frames) -> list[int]:
    """The times of entries, in seconds, as far as they are credible."""
    if not len(frames):
        return []
    if frames.kind == 0:
        micros, valid = times(frames)
        return (micros[valid] // 1_000_000).tolist()  # type: ignore[no-any-return]
    seconds = heads(frames)["timestamp"].astype(np.int64)
    return seconds[(seconds > 0) & (seconds <= LATEST_CREDIBLE)].tolist()  # type: ignore[no-any-return]


def are_zeros(frames: Frames) -> NDArray[np.bool_]:
    """Which entries are nothing but zeros: 1970-01-01, no key, an empty value. No recorder writes one."""
    if frames.kind == 0:
        return np.zeros(len(frames), np.bool_)
    zeros: NDArray[np.bool_] = frames.sizes == ENTRY_LAYOUTS[frames.kind].size
    zeros &= heads(frames)["timestamp"].astype(np.int64) == 0
    return zeros


def ends_in_damage(frames: Frames) -> bool:
    """Whether entries are followed by bytes that are not an entry."""
    return len(frames) > 0 and (frames.status.is_damage or (frames.last and frames.status is Status.TRUNCATED))


def find_likely(data: Bytes, stop: int, kind: int, near: Sequence[int]) -> Iterator[Frames]:
    """Entries in a row that begin before `stop` with times like those of their neighbours (`near`): at least two, or one at the end of the
    data.
    """
    if not near or data.size < ENTRY_LAYOUTS[kind].size:
        return
    places, seconds = _possible_times(data, kind)
    likely = places[(seconds >= min(near) - MONTH) & (seconds <= max(near) + MONTH)]
    position = 0
    for candidate in likely[likely < stop].tolist():
        if candidate < position:
            continue
        entries = scan(data[candidate:], kind)
        count = int(np.argmin(np.append(np.isin(entries.starts + candidate, likely), False)))
        if count > 1 or (count == 1 and candidate + int(entries.stops[0]) == data.size):
            position = candidate + int(entries.stops[count - 1])
            yield replace(entries.slice(0, count), base=candidate, status=Status.OK, last=False)


def _possible_times(data: Bytes, kind: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where times may be in some bytes, and these times in seconds: of numbers everywhere, of texts where one is written."""
    if kind:
        seconds = sliding_window_view(data, 8).copy().view(">i8").reshape(-1).astype(np.int64)
        return np.arange(seconds.size), seconds
    room = data.size - ENTRY_V0.at("value_size") + 1
    is_marked = np.ones(room, np.bool_)
    for at, mark in ((4, b"-"), (10, b"T"), (13, b":"), (26, b"Z")):
        is_marked &= data[at : at + room] == mark[0]
    places = np.flatnonzero(is_marked)
    micros, valid = np.zeros(places.size, np.int64), np.zeros(places.size, np.bool_)
    kernels.read_times_v0(byte_view(data), places, micros, valid)
    return places[valid], micros[valid] // 1_000_000


def find_swallowed(frames: Frames) -> Frames | None:
    """Entries that begin inside the last entry of a window and continue after it, or None.

    A value may be a recording itself: then its entries end where the value does.
    """
    start, end = int(frames.starts[-1]), int(frames.stops[-1])
    if end - start > LARGEST_SEARCH:
        return None
    near = credible_times(frames)[-2:]
    data = frames.data[start + 1 : end + LARGEST_SEARCH]
    for entries in find_likely(data, end - start - 1, frames.kind, near):
        edge = end - start - 1 - entries.base
        if ((entries.starts < edge) & (edge < entries.stops)).any():
            return replace(
                entries,
                data=entries.data.copy(),  # the walk reads on into the same buffer
                base=frames.base + start + 1 + entries.base,
                first=frames.first + len(frames) - 1,
                last=frames.last,
                status=frames.status,
            )
    return None


# ----------------------------------------------------------------------------------------------------------------------
# What `explain` shows of recordings.


def explain_header(head: bytes, file: File) -> list[Node]:
    """The 20 bytes in front of the entries; none in version 0."""
    from rawlog.formats.replay.layouts import begin

    if begin(head, file.size).kind == 0:
        return []
    data = np.frombuffer(head, np.uint8)
    nodes = layout_nodes(FILE_HEADER, data, 0, 0)
    return [Node(0, FILE_HEADER.size, FILE_HEADER.name, children=nodes)]


def explain(frames: Frames, file: File) -> list[Node]:
    """One entry: its fixed fields, key and value."""
    layout = ENTRY_LAYOUTS[frames.kind]
    start, stop = int(frames.starts[0]), int(frames.stops[0])
    nodes = layout_nodes(layout, frames.data, start, frames.base, {"timestamp": _seconds})
    position = start + layout.size
    for node in list(nodes):
        if node.name.endswith("_size"):
            name = node.name.removesuffix("_size")
            content = bytes(frames.data[position : position + node.value])
            nodes.append(leaf(frames.data, position, node.value, frames.base, name, "bytes", content))
            position += node.value
    return [Node(frames.base + start, stop - start, f"{layout.name}, number {frames.first}", children=nodes)]


def _seconds(value: int) -> str:
    if value == NO_TIME_SECONDS:
        return "no time: Go's zero time"
    return plain_time(value * 1_000_000)


# ----------------------------------------------------------------------------------------------------------------------
# What verification looks for in recordings. The format has no checksum: a changed value cannot be noticed.


@rule("replay.recording.time", Severity.ERROR)
def invalid_time(inspection: Inspection) -> Iterator[Mark]:
    """The stored time is invalid: not a time of the right form in version 0, a number beyond any calendar in the others.

    The entry's value may still be sound, but something else wrote over it or its neighbour. Old readers use the current time instead,
    without a warning.
    """
    _, valid = times(inspection.frames)
    for index in np.flatnonzero(~valid).tolist():
        start = int(inspection.frames.starts[index])
        raw = bytes(inspection.frames.data[start : start + ENTRY_LAYOUTS[inspection.frames.kind].fields[0].size])
        yield Mark(
            "an invalid time",
            position=int(inspection.frames.positions[index]),
            size=len(raw),
            offset=inspection.frames.first + index,
            expected="YYYY-MM-DDTHH:MM:SS.ffffffZ" if inspection.frames.kind == 0 else "seconds since 1970",
            found=ascii(raw.decode("latin-1"))
            if inspection.frames.kind == 0
            else int.from_bytes(raw, "big", signed=True),
        )


@rule("replay.recording.milliseconds", Severity.WARNING)
def milliseconds_as_seconds(inspection: Inspection) -> Iterator[Mark]:
    """The time is so large that it must be milliseconds, where the format says seconds.

    The program that wrote the file made a mistake; replaying with the recorded times would send nonsense. Divide the times by
    1000 when converting.
    """
    if inspection.frames.kind == 0:
        return
    stored, (_, valid) = heads(inspection.frames)["timestamp"].astype(np.int64), times(inspection.frames)
    for index in np.flatnonzero(valid & (stored > LATEST_CREDIBLE)).tolist():
        yield Mark(
            "a time in milliseconds where seconds belong",
            position=int(inspection.frames.positions[index]),
            offset=inspection.frames.first + index,
            expected=f"at most {LATEST_CREDIBLE}",
            found=int(stored[index]),
        )


@rule("replay.recording.trailing-zeros", Severity.WARNING)
def trailing_zeros(inspection: Inspection) -> Iterator[Mark]:
    """The file ends in zero bytes, which every reader takes for messages: 1970-01-01, no key, empty value.

    They were never recorded: a preallocated or badly copied file leaves them. Cut the file at the position given.
    """
    if inspection.frames.kind == 0:
        return
    frames, memory = inspection.frames, inspection.memory
    fixed = ENTRY_LAYOUTS[frames.kind].size
    sound = np.flatnonzero(~are_zeros(frames))
    if sound.size:
        memory["start"] = int(frames.positions[sound[-1]] + frames.sizes[sound[-1]])
        memory["count"] = len(frames) - 1 - int(sound[-1])
    else:
        memory.setdefault("start", frames.base)
        memory["count"] = memory.get("count", 0) + len(frames)
    if frames.last and memory["count"]:
        yield Mark(
            f"zero bytes at the end, read as {memory['count']:,} messages",
            position=memory["start"],
            size=memory["count"] * fixed,
        )


@rule("replay.recording.covered", Severity.WARNING)
def covered_entries(inspection: Inspection) -> Iterator[Mark]:
    """The last entry before damage covers the beginning of other entries: its length is wrong, or bytes of it are missing.

    The finding covers the bytes up to the first entry inside it. `rawlog repair` leaves those bytes out and keeps the entries that follow.
    """
    frames = inspection.frames
    entries = find_swallowed(frames) if ends_in_damage(frames) else None
    if entries is not None:
        start = int(frames.positions[-1])
        number = frames.first + len(frames) - 1
        yield Mark("the length of this entry reaches into later entries", start, entries.base - start, offset=number)


@rule("replay.recording.reserved", Severity.WARNING)
def reserved_bytes(inspection: Inspection) -> Iterator[Mark]:
    """The sixteen reserved bytes of the header are not zero.

    No release writes anything there and none looks at it: the header was damaged, or another program made the file.
    """
    if inspection.frames.kind == 0 or inspection.memory.get("looked"):
        return
    inspection.memory["looked"] = True
    with Source(inspection.file.path) as source:
        head = source.read(0, FILE_HEADER.size)
    reserved = head[FILE_HEADER.at("reserved") :]
    if any(reserved):
        yield Mark(
            "reserved bytes are not zero",
            position=FILE_HEADER.at("reserved"),
            size=len(reserved),
            expected="zeros",
            found=reserved.hex(),
        )


@rule("replay.recording.transaction-marker", Severity.INFO)
def transaction_markers(inspection: Inspection) -> Iterator[Mark]:
    """Entries that look like Kafka's commit and abort markers: the recorder stores markers as messages.

    Replayed, they become ordinary records of a 4-byte key. Messages of aborted transactions are in such a file too, and nothing
    tells them apart.
    """
    frames, memory = inspection.frames, inspection.memory
    if frames.kind == 2 and len(frames):
        head = heads(frames)
        keys, values = head["key_size"].astype(np.int64), head["value_size"].astype(np.int64)
        maybe = np.flatnonzero((keys == 4) & ((values == 0) | (values == 6)))
        at = frames.starts[maybe] + ENTRY_LAYOUTS[2].size
        markers = [i for i, start in zip(maybe.tolist(), at.tolist(), strict=True) if _is_marker(frames.data, start)]
        if markers:
            memory.setdefault("first", int(frames.positions[markers[0]]))
            memory["count"] = memory.get("count", 0) + len(markers)
    if frames.last and memory.get("count"):
        yield Mark(f"{memory['count']:,} transaction markers among the messages", position=memory["first"])


def _is_marker(data: Bytes, start: int) -> bool:
    return bytes(data[start : start + 4]) in (b"\0\0\0\0", b"\0\0\0\1")


def rules() -> Sequence[Rule[Inspection]]:
    """The rules of this module, as its format names them."""
    return (
        invalid_time,
        milliseconds_as_seconds,
        trailing_zeros,
        covered_entries,
        reserved_bytes,
        transaction_markers,
    )


def summary(file: File, group: Sequence[File], start: int, stop: int | None) -> Any:
    """What the checks of a recording as a store need of its bytes."""
    from rawlog.formats.replay.store import RecordingSummary

    return RecordingSummary(file, group, start, stop)


# Writing recordings --------------------------------------------------------------------------------------------------------------

OPTIONS = ("version",)


def version_of(options: Mapping[str, str]) -> int:
    """The file version asked for, 2 by default. OptionError if there is no such version, or for another option."""
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of replay", name, OPTIONS)
    text = options.get("version", "2")
    if text not in ("0", "1", "2"):
        raise OptionError(f"version {text!r} of replay.recording: 0, 1 or 2 expected")
    return int(text)


def encode(batches: Iterable[pa.RecordBatch], options: Mapping[str, str]) -> Iterator[bytes]:
    """The bytes of a recording: its header, then the entries of each batch. EncodeError for what no entry can hold."""
    version = version_of(options)
    if version:
        yield file_header(version)
    for batch in batches:
        if batch.num_rows:
            yield entries(batch, version)


def file_header(version: int) -> bytes:
    """What a recording of version 1 or 2 begins with."""
    return version.to_bytes(FILE_HEADER.after("version"), "big").ljust(FILE_HEADER.size, b"\0")


def entries(batch: pa.RecordBatch, version: int) -> bytes:
    """The encoded entries of rows. EncodeError for a row that no entry can hold."""
    key_offsets, keys = _binary(batch.column("key"))
    value_offsets, values = _binary(batch.column("value"))
    past, size = kernels.measure_entries(version, key_offsets, value_offsets)
    if past >= 0:
        raise EncodeError(
            f"row {past:,}: a key or value above {LARGEST:,} bytes, the most that a recording is read with"
        )
    out = np.empty(size + SLACK, np.uint8)
    done, _, status = kernels.encode_entries(
        version, _times(batch, version), key_offsets, keys, value_offsets, values, out
    )
    if status != Status.OK:
        raise EncodeError(f"row {done:,}: a time outside the years 0 to 9999, which version 0 cannot hold")
    return out[:size].tobytes()


def _binary(array: pa.Array) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
    """Offsets and bytes of a binary column, nulls as empty."""
    array = pc.fill_null(array, b"") if array.null_count else array
    _, offsets, values = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return ends, byte_view(values if values is not None else b"")


def _times(batch: pa.RecordBatch, version: int) -> NDArray[np.int64]:
    """Seconds (microseconds for version 0); no time is what kafka-replay writes for it."""
    micros = batch.column("timestamp").cast(pa.int64())
    absent = NO_TIME_SECONDS * 1_000_000
    stored: NDArray[np.int64] = pc.fill_null(micros, absent).to_numpy()
    return stored if version == 0 else stored // 1_000_000


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are. OptionError for invalid options."""
    version = version_of(options)
    seen = 0

    def judge(batch: pa.RecordBatch) -> dict[str, NDArray[np.bool_]]:
        nonlocal seen
        key, time = batch.column("key"), batch.column("timestamp")
        numbers = pa.array(np.arange(seen, seen + batch.num_rows))
        seen += batch.num_rows
        times = _mask(time.is_null())
        if version:
            times |= pc.fill_null(time.cast(pa.int64()), 0).to_numpy() % 1_000_000 != 0
        return {
            "key": _mask(pc.equal(pc.binary_length(key), 0) if version == 2 else key.is_valid()),
            "value": _mask(batch.column("value").is_null()),
            "topic": _mask(batch.column("topic").is_valid()),
            "partition": _mask(batch.column("partition").is_valid()),
            "offset": _mask(pc.not_equal(batch.column("offset"), numbers)),
            "timestamp": times,
            "timestampType": _mask(pc.not_equal(batch.column("timestampType"), 0)),
            "headers": _mask(pc.greater(pc.list_value_length(batch.column("headers")), 0)),
        }

    return judge


def _mask(test: Any) -> NDArray[np.bool_]:
    mask: NDArray[np.bool_] = pc.fill_null(test, False).to_numpy(zero_copy_only=False)
    return mask.copy()
