"""Rules over one file of a store. Rules over several files: `store/rules.py`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from rawlog.formats.ambry import capacity, keys
from rawlog.formats.ambry.index import read_entries, read_header
from rawlog.formats.ambry.kernels import messages as kernels
from rawlog.formats.ambry.layouts import CRC_SIZE, NONE, Kind
from rawlog.formats.ambry.log import (
    FAULTS,
    RECORD_NAMES,
    Messages,
    check_messages,
)
from rawlog.formats.ambry.structures import Cursor, open_envelope, parse_metadata
from rawlog.io.checksums import crc32
from rawlog.io.storage import Source
from rawlog.model.errors import CorruptError, DataError, LimitError
from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import Inspection
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.text import LAST_DAY, plain_time

_PLACES = {
    kernels.IN_ENCRYPTION_KEY: "encryption_key_at",
    kernels.IN_PROPERTIES: "properties_at",
    kernels.IN_USER_METADATA: "user_metadata_at",
    kernels.IN_BLOB: "blob_at",
    kernels.IN_UPDATE: "update_at",
}


def messages_of(inspection: Inspection) -> Messages:
    """The messages of a window, checksums compared; computed once for all rules."""
    return inspection.frames.share(check_messages)


def _place(frames: Frames, index: int) -> tuple[int, int]:
    """Position and size of a message or entry."""
    return int(frames.positions[index]), int(frames.sizes[index])


def _span(messages: Messages, index: int, name: str) -> tuple[int, int]:
    """Position and size of a part of a message: its key, its content."""
    return int(messages.frames.base + messages[f"{name}_start"][index]), int(messages[f"{name}_size"][index])


def _records(messages: Messages, bits: Any) -> Iterator[tuple[int, int, str, int]]:
    """For every bit set: the message, the record's position in the file, its name, the message's position."""
    frames = messages.frames
    for index in np.flatnonzero(bits).tolist():
        for bit, place in _PLACES.items():
            if int(bits[index]) & bit:
                at = int(messages[place][index])
                yield index, frames.base + at, RECORD_NAMES[bit], int(frames.positions[index])


def _checksums(messages: Messages, index: int, start: int) -> tuple[int, int, int]:
    """The stored and the computed checksum of the record at `start`, and the position of the stored one."""
    ends = [int(messages[name][index]) for name in _PLACES.values()]
    later = [end for end in ends if end > start]
    stop = (min(later) if later else int(messages.frames.stops[index])) - CRC_SIZE
    data = messages.data
    return int.from_bytes(data[stop : stop + CRC_SIZE].tobytes(), "big"), crc32(data, start, stop), stop


@rule("ambry.log.crc", Severity.ERROR)
def record_crc(inspection: Inspection) -> Iterator[Mark]:
    """The checksum of a record (properties, user metadata, content, encryption key or update) differs from that of its bytes.

    What the record holds is not what was written. Ambry refuses to read the blob, and refuses to start if it meets the message in
    recovery. Take the blob from another replica; `rawlog repair` drops the message.
    """
    messages = inspection.share(messages_of)
    for index, position, name, message in _records(messages, messages["crc_bad"] & ~messages["crc_high"]):
        stored, computed, _ = _checksums(messages, index, position - inspection.frames.base)
        yield Mark(
            f"checksum of the {name} does not match (message at byte {message:,})",
            position=position,
            offset=message + (inspection.file.place.start_offset or 0),
            expected=f"{computed:016x}",
            found=f"{stored:016x}",
        )


@rule("ambry.log.crc-upper", Severity.ERROR)
def crc_upper(inspection: Inspection) -> Iterator[Mark]:
    """The upper half of a checksum field is not zero, as it always is: the field holds a CRC-32 in eight bytes.

    Bytes were damaged that no checksum covers, or another program wrote the message.
    """
    messages = inspection.share(messages_of)
    for index, position, name, message in _records(messages, messages["crc_high"]):
        stored, computed, at = _checksums(messages, index, position - inspection.frames.base)
        text = f"checksum field of the {name} with a non-zero upper half (message at byte {message:,})"
        yield Mark(text, inspection.frames.base + at, CRC_SIZE, None, f"{computed:016x}", f"{stored:016x}")


@rule("ambry.log.record", Severity.ERROR)
def unreadable_record(inspection: Inspection) -> Iterator[Mark]:
    """A record of a message has an unknown version or type, or does not fit into the message.

    The header is sound, so the messages after this one can be read; this one cannot.
    """
    messages = inspection.share(messages_of)
    for index in np.flatnonzero(messages["fault"]).tolist():
        position = inspection.frames.base + int(messages["fault_at"][index])
        stop = int(inspection.frames.positions[index] + inspection.frames.sizes[index])
        yield Mark(FAULTS[int(messages["fault"][index])], position=position, size=stop - position)


@rule("ambry.log.offsets", Severity.ERROR)
def wrong_offsets(inspection: Inspection) -> Iterator[Mark]:
    """The header says that a record begins elsewhere than it does.

    Ambry's recovery reads records in sequence and does not notice; its GETs go by the offsets and return wrong bytes or an error.
    """
    messages = inspection.share(messages_of)
    for index, position, name, message in _records(messages, messages["mismatch"] & ~kernels.IN_PAYLOAD):
        text = f"the header puts the {name} elsewhere than it is"
        yield Mark(text, *_place(inspection.frames, index), expected=position - message)


@rule("ambry.log.payload-size", Severity.ERROR)
def wrong_payload(inspection: Inspection) -> Iterator[Mark]:
    """The records of a message are not as long together as its header says.

    Ambry's recovery places every later index entry by the header's size, so at wrong positions. (A size that leads to no other
    message is reported as `ambry.log.framing`.)
    """
    messages = inspection.share(messages_of)
    for index in np.flatnonzero(messages["mismatch"] & kernels.IN_PAYLOAD).tolist():
        payload = int(messages["payload"][index])
        yield Mark("records that end before their message does", *_place(inspection.frames, index), found=payload)


def _same_partition(first: dict[str, Any], following: dict[str, Any]) -> dict[str, Any] | None:
    """The memory of two splits, if their first messages are of one partition; else None: check the segment in one split."""
    return first if first == following else None


@rule("ambry.log.partition", Severity.WARNING, merge=_same_partition)
def foreign_partition(inspection: Inspection) -> Iterator[Mark]:
    """A blob id names another partition than the directory, or than the messages before it.

    A store holds blobs of one partition only: the file was put into the wrong directory, or a key is damaged (no checksum covers it).
    """
    messages, memory = inspection.share(messages_of), inspection.memory
    if not len(messages):
        return
    expected = inspection.file.place.partition
    if expected is None:
        expected = memory.setdefault("partition", int(messages["partition"][0]))
    for index in np.flatnonzero(messages["partition"] != expected).tolist():
        place, partition = _span(messages, index, "key"), int(messages["partition"][index])
        yield Mark("a blob id of another partition", *place, expected=expected, found=partition)


@rule("ambry.log.time", Severity.WARNING)
def early_time(inspection: Inspection) -> Iterator[Mark]:
    """A message was created, or changed its blob, before 1970. Only -1 (unknown) is allowed below zero.

    Ambry reads the blob as long as the message is in the index. When it has to recover the message from the log, after a crash or without
    index files, it refuses to start.
    """
    messages = inspection.share(messages_of)
    times = messages.times
    for index in np.flatnonzero((times < NONE) & messages.sound).tolist():
        place, time = _place(inspection.frames, index), int(times[index])
        yield Mark("a time before 1970", *place, expected="-1 or more", found=time)


@rule("ambry.log.far-timestamp", Severity.INFO)
def far_time(inspection: Inspection) -> Iterator[Mark]:
    """The time of a message lies after the year 9999: a clock was wrong. Ambry takes such messages.

    Many tools cannot show the time; beyond the year 294247 it does not fit a column of timestamps and reads as null.
    """
    messages = inspection.share(messages_of)
    times = messages.times
    for index in np.flatnonzero((times > LAST_DAY // 1000) & messages.sound).tolist():
        time = int(times[index])
        yield Mark(f"a message of the time {plain_time(time * 1000)}", *_place(inspection.frames, index), found=time)


@rule("ambry.log.padding", Severity.ERROR)
def zero_tail(inspection: Inspection) -> Iterator[Mark]:
    """The file ends in zero bytes after its last message.

    Ambry never leaves any, and refuses to start when its recovery meets them: cut the file at the position given.
    """
    if inspection.frames.status is Status.PADDING:
        at = inspection.frames.reached_in_file
        yield Mark("zero bytes after the last message", position=at, size=inspection.file.size - at)


def _is_encrypted(messages: Messages, index: int) -> bool:
    """Whether the content of a message is encrypted and cannot be checked."""
    if int(messages["is_encrypted"][index]) == 1 or int(messages["encryption_key_size"][index]) >= 0:
        return True
    return keys.parse(messages.key(index)).is_encrypted


def _envelopes(inspection: Inspection) -> list[tuple[Mark, DataError]]:
    """The compressed contents that do not open, and why."""
    messages = inspection.share(messages_of)
    marks = []
    for index in np.flatnonzero((messages["is_compressed"] == 1) & messages.sound).tolist():
        if _is_encrypted(messages, index):
            continue
        try:
            open_envelope(messages.span(index, "content"), inspection.limit)
        except DataError as error:
            text = f"content that is said to be compressed: {error.message}"
            marks.append((Mark(text, *_span(messages, index, "content")), error))
    return marks


@rule("ambry.log.envelope", Severity.WARNING)
def bad_envelope(inspection: Inspection) -> Iterator[Mark]:
    """The blob record says that its content is compressed, and it is not: no envelope, an unknown algorithm, bytes that do not open.

    A user who asks for the blob gets an error. Encrypted content is not looked at.
    """
    for mark, error in inspection.share(_envelopes):
        if not isinstance(error, LimitError):
            yield mark


@rule("ambry.log.limit", Severity.WARNING)
def limit(inspection: Inspection) -> Iterator[Mark]:
    """Compressed content was not read: it declares more bytes than the limit allows, which keeps a small file from taking all memory.

    If the blob is genuine, raise the limit that the message names.
    """
    for mark, error in inspection.share(_envelopes):
        if isinstance(error, LimitError):
            yield mark


@rule("ambry.log.metadata", Severity.ERROR)
def bad_metadata(inspection: Inspection) -> Iterator[Mark]:
    """The content of a metadata blob is not a list of chunks.

    The blob whose chunks it lists cannot be read. Encrypted and zeroed content is not looked at.
    """
    messages = inspection.share(messages_of)
    is_metadata = (
        (messages["kind"] == Kind.PUT) & (messages["blob_type"] == 1) & messages.sound & (messages["zeros"] == 0)
    )
    for index in np.flatnonzero(is_metadata & (messages["is_compressed"] != 1)).tolist():
        if _is_encrypted(messages, index):
            continue
        try:
            parse_metadata(messages.span(index, "content"))
        except DataError as error:
            yield Mark(f"content of a metadata blob: {error.message}", *_span(messages, index, "content"))


@rule("ambry.log.capacity", Severity.ERROR)
def over_capacity(inspection: Inspection) -> Iterator[Mark]:
    """The log segment is longer than the capacity in its header.

    Ambry never writes past it: something was appended, or the header belongs to another file.
    """
    if not inspection.frames.last:
        return
    with Source(inspection.file.path) as source:
        most = capacity(source.read(0, 64))
    if most is not None and inspection.file.size > most:
        size = inspection.file.size
        yield Mark("a segment longer than its capacity", most, size - most, expected=most, found=size)


@rule("ambry.index.crc", Severity.ERROR)
def index_crc(inspection: Inspection) -> Iterator[Mark]:
    """The checksum at the end of an index file differs from that of the bytes before it, or is not there.

    Ambry refuses to start, unless it is the store's last index file, which it then rebuilds. `rawlog rebuild` builds all of them.
    """
    if not inspection.frames.last or not inspection.file.size:
        return
    with Source(inspection.file.path) as source:
        raw = source.read(0, source.size)
    if len(raw) < CRC_SIZE:
        return
    stored, computed = int.from_bytes(raw[-CRC_SIZE:], "big"), crc32(raw[:-CRC_SIZE])
    if stored != computed:
        expected, found = f"{computed:016x}", f"{stored:016x}"
        yield Mark(
            "checksum of the index does not match", len(raw) - CRC_SIZE, CRC_SIZE, expected=expected, found=found
        )


@rule("ambry.index.entry", Severity.ERROR)
def index_entry(inspection: Inspection) -> Iterator[Mark]:
    """An entry has no blob id where one must be, or reaches beyond the end that the file's header names.

    The entry is lost; entries past the end are ignored by Ambry in its last index file.
    """
    frames = inspection.frames
    try:
        entries = read_entries(frames)
    except CorruptError as error:
        yield Mark(error.message, position=error.position, size=int(frames.sizes[0]))
        return
    if not len(frames):
        return
    end = inspection.memory.get("end")
    if end is None:
        with Source(inspection.file.path) as source:
            end = inspection.memory["end"] = read_header(Cursor(source.read(0, 4096))).log_end
    past = (entries.offset < 0) | (entries.size <= 0) | (entries.offset > end - entries.size)
    for index in np.flatnonzero(past).tolist():
        text, entry_end = (
            "an entry past the end of what the index covers",
            int(entries.offset[index]) + int(entries.size[index]),
        )
        yield Mark(text, *_place(frames, index), expected=f"at most {end}", found=entry_end)


@rule("ambry.index.order", Severity.ERROR)
def index_order(inspection: Inspection) -> Iterator[Mark]:
    """Entries are not sorted by blob id, and entries of one blob by their place in the log.

    Ambry searches by halves and will miss blobs that are there.
    """
    frames, memory = inspection.frames, inspection.memory
    try:
        entries = read_entries(frames)
    except CorruptError:
        return
    if not len(frames):
        return
    places = entries.offset.tolist()
    first, last = ((keys.order(entries.key(number)), places[number]) for number in (0, -1))
    previous = memory.get("previous")
    if previous is not None and first <= previous:
        yield Mark("an entry out of order", *_place(frames, 0))
    memory["previous"] = last
    ids = entries.identities
    if ids.is_odd.any():
        sorted_by = [(keys.order(key), place) for key, place in zip(entries.keys, places, strict=True)]
        rises = np.fromiter((before < after for before, after in pairwise(sorted_by)), np.bool_, len(frames) - 1)
    else:
        rises = np.zeros(len(frames) - 1, np.bool_)
        for column in (entries.offset, ids.low, ids.high, ids.group):
            before, after = column[:-1], column[1:]
            rises = (before < after) | ((before == after) & rises)
    for index in (np.flatnonzero(~rises) + 1).tolist():
        yield Mark("an entry out of order", *_place(frames, index))


@rule("ambry.index.empty", Severity.ERROR)
def index_empty(inspection: Inspection) -> Iterator[Mark]:
    """An index file without entries. Ambry does not start on one: remove it, or rebuild the index."""
    frames, memory = inspection.frames, inspection.memory
    memory["count"] = memory.get("count", 0) + len(frames)
    if frames.last and not memory["count"] and inspection.file.size and frames.status is Status.OK:
        yield Mark("no entries", position=frames.reached_in_file)


def log_rules() -> Sequence[Rule[Any]]:
    """The rules of log segments."""
    return (
        record_crc, crc_upper, unreadable_record, wrong_offsets, wrong_payload, foreign_partition, early_time, far_time, zero_tail,
        bad_envelope, limit, bad_metadata, over_capacity,
    )  # fmt: skip


def index_rules() -> Sequence[Rule[Any]]:
    """The rules of index segments."""
    return (index_crc, index_entry, index_order, index_empty)
