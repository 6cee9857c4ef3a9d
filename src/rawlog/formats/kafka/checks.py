"""What verification looks for in log segments, each file for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rawlog.errors import DataError
from rawlog.findings import Mark, Rule, Severity, rule
from rawlog.format import Inspection
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.kernels.heads import SMALLEST_V0, SMALLEST_V1
from rawlog.formats.kafka.layouts import BATCH, CODEC_MASK, CODECS, MAGIC_V2, NONE, OUTLINE, Attributes
from rawlog.formats.kafka.legacy import holds_older
from rawlog.formats.kafka.log import decode_run, only, pieces
from rawlog.formats.kafka.reader import Columns, TooMuch
from rawlog.frames import Frames
from rawlog.status import Status

KNOWN_BITS = CODEC_MASK | sum(Attributes)


def _heads(seen: Inspection) -> Heads:
    return heads(seen.frames)


@dataclass(frozen=True, slots=True)
class Sound:
    """The batches of a window that are what they say, by magic, size and checksum."""

    frames: Frames
    head: Heads


def _sound(seen: Inspection) -> Sound:
    head = seen.share(_heads)
    return Sound(only(seen.frames, head.sound), head.only(head.sound))


@dataclass(slots=True)
class Decoded:
    """The records of a window's sound batches, in runs of batches, and the batches whose records cannot be read."""

    runs: list[tuple[Sound, Columns]]
    faults: list[tuple[int, DataError]]


def _decoded(seen: Inspection) -> Decoded:
    found = Decoded([], [])
    sound = seen.share(_sound)
    rest = [(start, stop) for start, stop in pieces(sound.frames, sound.head)][::-1]
    while rest:
        start, stop = rest.pop()
        if start == stop:
            continue
        run = Sound(sound.frames.slice(start, stop), sound.head.slice(start, stop))
        try:
            columns = decode_run(run.frames, run.head, {"offset", "timestamp", "headers"}, seen.limit)
            found.runs.append((run, columns))
        except TooMuch as full:
            rest += [(start + full.fits, stop), (start, start + full.fits)]
        except DataError as error:
            bad = start + int(np.searchsorted(run.frames.starts, error.position or 0, side="right")) - 1
            found.faults.append((int(sound.frames.positions[bad]), error))
            rest += [(bad + 1, stop), (start, bad)]
    return found


@rule("kafka.log.magic", Severity.ERROR)
def magic(seen: Inspection) -> Iterator[Mark]:
    """A batch says it is of a format that does not exist, or is too short for the one it names.

    Its records cannot be read. The length before it was credible, so what follows is read.
    """
    head, frames = seen.share(_heads), seen.frames
    for index in np.flatnonzero(head["state"] == Status.BAD_MAGIC).tolist():
        found = int(head["magic"][index])
        yield _mark(frames, index, f"magic {found}", expected="0 to 2", found=found)
    for index in np.flatnonzero(head["state"] == Status.BAD_LENGTH).tolist():
        size, magic = int(frames.sizes[index]), int(head["magic"][index])
        least = BATCH.size if magic == MAGIC_V2 else SMALLEST_V1 if magic else SMALLEST_V0
        yield _mark(frames, index, f"{size} bytes of magic {magic}", expected=f"at least {least}", found=size)


@rule("kafka.log.crc", Severity.ERROR)
def crc(seen: Inspection) -> Iterator[Mark]:
    """The stored checksum differs from that of the bytes it covers: the batch changed after it was written.

    A broker does not notice in segments it takes for flushed; Java consumers refuse the batch, others may hand out its
    records. Take the batch from another replica, or let `repair` set it aside.
    """
    head = seen.share(_heads)
    for index in np.flatnonzero(head["state"] == Status.BAD_CRC).tolist():
        yield _mark(
            seen.frames,
            index,
            "the checksum does not match",
            expected=f"{int(head['computed_crc'][index]):08x}",
            found=f"{int(head['crc'][index]):08x}",
        )


@rule("kafka.log.codec", Severity.ERROR)
def codec(seen: Inspection) -> Iterator[Mark]:
    """The attributes name a compression that does not exist, so the records cannot be read."""
    sound = seen.share(_sound)
    for index in np.flatnonzero(sound.head.codec >= len(CODECS)).tolist():
        found = int(sound.head.codec[index])
        yield _mark(sound.frames, index, f"codec {found}", expected=f"0 to {len(CODECS) - 1}", found=found)


@rule("kafka.log.records", Severity.ERROR)
def records(seen: Inspection) -> Iterator[Mark]:
    """The records of a batch do not parse although its checksum is right: wrong lengths, another number of records than the
    header says, bytes left over, content that does not decompress, a header name that is not UTF-8.

    The producer wrote it so. No client can read the batch.
    """
    sound = seen.share(_sound)
    unknown = set(sound.frames.positions[sound.head.codec >= len(CODECS)].tolist())
    for position, error in sorted(seen.share(_decoded).faults, key=lambda fault: fault[0]):
        if position not in unknown:
            yield Mark(error.message, position=position, expected=error.expected, found=error.found)


@rule("kafka.log.offsets", Severity.ERROR)
def offsets(seen: Inspection) -> Iterator[Mark]:
    """Offsets inside a batch do not rise, or leave the range that its header names.

    Consumers may skip such records or hand them out twice.
    """
    for run, columns in seen.share(_decoded).runs:
        frames, head, row = run.frames, run.head, columns.batch_index
        if not columns.count:
            continue
        offset = columns.arrays["offset"].to_numpy()
        wrong = offset > head["last_offset"][row]
        wrong |= (offset < head["base_offset"][row]) & (head["record_count"][row] >= 0)
        wrong[1:] |= (offset[1:] <= offset[:-1]) & (row[1:] == row[:-1])
        for index in np.unique(row[wrong]).tolist():
            bad = int(offset[wrong & (row == index)][0])
            span = f"rising from {int(head['base_offset'][index])} to {int(head['last_offset'][index])}"
            yield _mark(frames, index, f"record offset {bad}", offset=bad, expected=span, found=bad)


@rule("kafka.log.order", Severity.ERROR)
def order(seen: Inspection) -> Iterator[Mark]:
    """A batch begins at or before the last offset of the batch in front of it.

    A broker never writes that. Two logs were joined, or bytes were copied twice.
    """
    sound = seen.share(_sound)
    if not len(sound.frames):
        return
    base, last = sound.head["base_offset"], sound.head["last_offset"]
    before = np.concatenate(([seen.memory.get("last", -1)], np.maximum.accumulate(last)[:-1]))
    before = np.maximum(before, seen.memory.get("last", -1))
    for index in np.flatnonzero(base <= before).tolist():
        yield _mark(
            sound.frames,
            index,
            f"base offset {int(base[index])} behind offset {int(before[index])}",
            offset=int(base[index]),
            expected=f"above {int(before[index])}",
            found=int(base[index]),
        )
    seen.memory["last"] = max(int(last.max()), seen.memory.get("last", -1))


@rule("kafka.log.base", Severity.ERROR)
def base(seen: Inspection) -> Iterator[Mark]:
    """A batch has offsets below the one in the file's name, or more than 2147483647 above it.

    A broker that has to recover such a segment ends at once, the whole process.
    """
    start = seen.file.place.start_offset
    sound = seen.share(_sound)
    if start is None:
        return
    low, high = sound.head["base_offset"] < start, sound.head["last_offset"] - start > 0x7FFF_FFFF
    for index in np.flatnonzero(low | high).tolist():
        found = int(sound.head["base_offset"][index])
        yield _mark(
            sound.frames,
            index,
            f"offset {found} in a segment that begins at {start}",
            offset=found,
            expected=f"{start} to {start + 0x7FFF_FFFF}",
            found=found,
        )


@rule("kafka.log.max-timestamp", Severity.WARNING)
def max_timestamp(seen: Inspection) -> Iterator[Mark]:
    """The largest time in a batch's header is not that of its records.

    Look-ups by time and retention go by the header and will be wrong for this batch. Leaders correct it on the way in.
    """
    for run, columns in seen.share(_decoded).runs:
        frames, head = run.frames, run.head
        has_records = np.flatnonzero(columns.counts)
        if not has_records.size:
            continue
        micros = columns.arrays["timestamp"].fill_null(NONE * 1000).cast("int64").to_numpy()
        first = np.concatenate(([0], np.cumsum(columns.counts)[:-1]))[has_records]
        largest = np.maximum.reduceat(micros, first) // 1000
        stated = head["max_timestamp"][has_records]
        for at in np.flatnonzero(largest != stated).tolist():
            yield _mark(
                frames,
                int(has_records[at]),
                f"largest time {int(stated[at])}, that of the records is {int(largest[at])}",
                expected=int(largest[at]),
                found=int(stated[at]),
            )


@rule("kafka.log.attributes", Severity.WARNING)
def attributes(seen: Inspection) -> Iterator[Mark]:
    """Bits of the attributes are set that no version of Kafka uses. They are lost when a broker rewrites the batch."""
    sound = seen.share(_sound)
    value = sound.head["attributes"] & 0xFFFF
    for index in np.flatnonzero(value & ~KNOWN_BITS).tolist():
        yield _mark(
            sound.frames, index, "unknown attribute bits", expected="bits 0 to 6", found=f"{int(value[index]):016b}"
        )


@rule("kafka.log.mixed-magic", Severity.INFO)
def mixed_magic(seen: Inspection) -> Iterator[Mark]:
    """A compressed entry of magic 1 holds entries of magic 0: the cleaner of Kafka 0.10.0 and before 0.10.1.1 left that
    (KAFKA-4298) when it met messages older than the topic's format.

    The records are read with the wrapper's offsets and no time. Some clients stop there; compacting the log with a later broker
    mends it.
    """
    sound, memory = seen.share(_sound), seen.memory
    for index in np.flatnonzero((sound.head["magic"] == 1) & (sound.head.codec > 0)).tolist():
        if holds_older(sound.frames.slice(index, index + 1), sound.head.slice(index, index + 1), seen.limit):
            memory.setdefault("position", int(sound.frames.positions[index]))
            memory["count"] = memory.get("count", 0) + 1
    if seen.frames.last and memory.get("count"):
        yield Mark(f"{memory['count']:,} wrappers of magic 1 hold entries of magic 0", position=memory["position"])


def _mark(
    frames: Frames,
    index: int,
    message: str,
    *,
    offset: int | None = None,
    expected: object = None,
    found: object = None,
) -> Mark:
    position, size = int(frames.positions[index]), int(frames.sizes[index])
    if offset is None:
        at = int(frames.starts[index])
        offset = int.from_bytes(bytes(frames.data[at : at + OUTLINE.after("base_offset")]), "big", signed=True)
    return Mark(message, position, size, offset, expected, found)


def rules() -> Sequence[Rule[Inspection]]:
    """The rules of this module, as its format names them."""
    return (magic, crc, codec, records, offsets, order, base, max_timestamp, attributes, mixed_magic)
