"""What verification looks for in log segments and in the files next to them, each file for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.internal.messages import KEYED, decode_keyed
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.kernels.heads import SMALLEST_V0, SMALLEST_V1
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    MAGIC_V2,
    OUTLINE,
    Attributes,
)
from rawlog.formats.kafka.log.records import Columns, holds_older, milliseconds
from rawlog.formats.kafka.log.segment import decode_bounded, only, pieces
from rawlog.model.errors import DataError, LimitError, UnsupportedError
from rawlog.model.finding import (
    Few,
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import Inspection
from rawlog.model.frames import Frames
from rawlog.model.status import Status
from rawlog.model.text import FIRST_DAY, LAST_DAY, plain_time

KNOWN_BITS = CODEC_MASK | sum(Attributes)


def _heads(seen: Inspection) -> Heads:
    return heads(seen.frames)


@dataclass(frozen=True, slots=True)
class SoundWindow:
    """The batches of a window with a valid magic, size and checksum."""

    frames: Frames
    head: Heads


def _sound(seen: Inspection) -> SoundWindow:
    head = seen.share(_heads)
    return SoundWindow(only(seen.frames, head.sound), head.only(head.sound))


class RecordSurvey:
    """What the records of a window's sound batches show, looked at in bounded pieces of which nothing else is kept."""

    def __init__(self) -> None:
        self.faults: list[tuple[int, DataError]] = []
        self.offsets: list[Mark] = []
        self.times: list[Mark] = []
        self.far_times: list[Mark] = []
        self.header_keys: list[Mark] = []
        self._open: tuple[Frames, Heads, int, int] | None = None

    def look(self, frames: Frames, head: Heads, columns: Columns) -> None:
        """Take some batches, or the next slice of one."""
        if not columns.count:
            return
        before = None
        if self._open is not None and len(frames) == 1 and columns.first:
            before = self._open
        else:
            self.close()
        row, offset = columns.batch_index, columns.arrays["offset"].to_numpy()
        self._look_at_offsets(frames, head, row, offset, None if before is None else before[2])
        times = milliseconds(columns.arrays["timestamp"])
        far = (times > LAST_DAY // 1000) | (times < FIRST_DAY // 1000)
        for index in np.unique(row[far]).tolist() if far.any() else ():
            time = int(times[far & (row == index)][0])
            mark = _mark(frames, index, f"a record of the time {plain_time(time * 1000)}", found=time)
            _add_once(self.far_times, mark)
        if len(frames) == 1:
            top = int(times.max())
            self._open = (frames, head, int(offset[-1]), top if before is None else max(top, before[3]))
        else:
            self._look_at_times(frames, head, columns.counts, times)
        for index in np.unique(row[columns.replaced]).tolist():
            _add_once(self.header_keys, _mark(frames, index, "a header key that is not UTF-8"))

    def _look_at_offsets(
        self, frames: Frames, head: Heads, row: NDArray[np.int64], offset: NDArray[np.int64], before: int | None
    ) -> None:
        wrong = offset > head["last_offset"][row]
        wrong |= (offset < head["base_offset"][row]) & (head["record_count"][row] >= 0)
        wrong[1:] |= (offset[1:] <= offset[:-1]) & (row[1:] == row[:-1])
        wrong[0] |= before is not None and bool(offset[0] <= before)
        for index in np.unique(row[wrong]).tolist():
            bad = int(offset[wrong & (row == index)][0])
            span = f"rising from {int(head['base_offset'][index])} to {int(head['last_offset'][index])}"
            mark = _mark(frames, index, f"record offset {bad}", offset=bad, expected=span, found=bad)
            _add_once(self.offsets, mark)

    def _look_at_times(self, frames: Frames, head: Heads, counts: NDArray[np.int64], times: NDArray[np.int64]) -> None:
        has_records = np.flatnonzero(counts)
        first = np.concatenate(([0], np.cumsum(counts)[:-1]))[has_records]
        largest = np.maximum.reduceat(times, first)
        for at in np.flatnonzero(largest != head["max_timestamp"][has_records]).tolist():
            self._compare(frames, head, int(has_records[at]), int(largest[at]))

    def _compare(self, frames: Frames, head: Heads, index: int, largest: int) -> None:
        stated = int(head["max_timestamp"][index])
        if largest != stated:
            what = f"largest time {stated}, that of the records is {largest}"
            self.times.append(_mark(frames, index, what, expected=largest, found=stated))

    def close(self) -> None:
        """The last slice of a batch has been seen."""
        if self._open is not None:
            frames, head, _, largest = self._open
            self._compare(frames, head, 0, largest)
            self._open = None


def _add_once(marks: list[Mark], mark: Mark) -> None:
    """One mark for a batch, also if several of its slices have something."""
    if not marks or marks[-1].position != mark.position:
        marks.append(mark)


def _survey_records(seen: Inspection) -> RecordSurvey:
    decoded = RecordSurvey()
    for part in _parts(seen, {"offset", "timestamp", "headers"}, decoded.faults):
        decoded.look(*part)
    decoded.close()
    return decoded


def _parts(
    seen: Inspection, names: set[str], faults: list[tuple[int, DataError]]
) -> Iterator[tuple[Frames, Heads, Columns]]:
    """The records of sound batches, some at a time; those that cannot be decoded are added to the faults by their positions."""
    sound = seen.share(_sound)
    for start, stop in pieces(sound.frames, sound.head):
        while start < stop:
            frames, head = sound.frames.slice(start, stop), sound.head.slice(start, stop)
            try:
                yield from decode_bounded(frames, head, names, seen.limit, seen.max_headers)
                start = stop
            except DataError as error:
                start += int(np.searchsorted(frames.starts, error.position or 0, side="right"))
                faults.append((int(sound.frames.positions[start - 1]), error))


@rule("kafka.log.magic", Severity.ERROR)
def magic(seen: Inspection) -> Iterator[Mark]:
    """A batch names a format that does not exist, or is too short for its format.

    Its records cannot be read. Its length is credible, so the batches after it are read.
    """
    head, frames = seen.share(_heads), seen.frames
    for index in np.flatnonzero(head["state"] == Status.BAD_MAGIC).tolist():
        stored_magic = int(head["magic"][index])
        yield _mark(frames, index, f"magic {stored_magic}", expected="0 to 2", found=stored_magic)
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
        stored_codec = int(sound.head.codec[index])
        yield _mark(
            sound.frames, index, f"codec {stored_codec}", expected=f"0 to {len(CODECS) - 1}", found=stored_codec
        )


@rule("kafka.log.records", Severity.ERROR)
def records(seen: Inspection) -> Iterator[Mark]:
    """The records of a batch do not parse although its checksum is right: wrong lengths, another number of records than the
    header says, bytes left over, content that does not decompress.

    The producer wrote it so. No client can read the batch.
    """
    sound = seen.share(_sound)
    unknown = set(sound.frames.positions[sound.head.codec >= len(CODECS)].tolist())
    for position, error in sorted(seen.share(_survey_records).faults, key=lambda fault: fault[0]):
        if position not in unknown and not isinstance(error, LimitError):
            yield Mark(error.message, position=position, expected=error.expected, found=error.found)


@rule("kafka.log.offsets", Severity.ERROR)
def offsets(seen: Inspection) -> Iterator[Mark]:
    """Offsets inside a batch do not rise, or leave the range that its header names.

    Consumers may skip such records or hand them out twice.
    """
    yield from seen.share(_survey_records).offsets


def _merged_order(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any] | None:
    """Both, if the second begins after the first."""
    return {"first": left["first"], "last": right["last"]} if right["first"] > left["last"] else None


@rule("kafka.log.order", Severity.ERROR, merge=_merged_order)
def order(seen: Inspection) -> Iterator[Mark]:
    """A batch begins at or before the last offset of the previous batch.

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
            f"base offset {int(base[index]):,} after offset {int(before[index]):,}",
            offset=int(base[index]),
            expected=f"above {int(before[index])}",
            found=int(base[index]),
        )
    seen.memory["last"] = max(int(last.max()), seen.memory.get("last", -1))
    seen.memory.setdefault("first", int(base[0]))


@rule("kafka.log.base", Severity.ERROR)
def base(seen: Inspection) -> Iterator[Mark]:
    """A batch has offsets below the offset in the file's name, or more than 2147483647 above it.

    A broker that has to recover such a segment stops: the whole process ends.
    """
    start = seen.file.place.start_offset
    sound = seen.share(_sound)
    if start is None:
        return
    low, high = sound.head["base_offset"] < start, sound.head["last_offset"] - start > 0x7FFF_FFFF
    for index in np.flatnonzero(low | high).tolist():
        offset = int(sound.head["base_offset"][index])
        yield _mark(
            sound.frames,
            index,
            f"offset {offset} in a segment that begins at {start}",
            offset=offset,
            expected=f"{start} to {start + 0x7FFF_FFFF}",
            found=offset,
        )


@rule("kafka.log.max-timestamp", Severity.WARNING)
def max_timestamp(seen: Inspection) -> Iterator[Mark]:
    """The largest time in a batch's header is not that of its records.

    Look-ups by time and retention go by the header and will be wrong for this batch. Leaders correct it on the way in.
    """
    yield from seen.share(_survey_records).times


@rule("kafka.log.far-timestamp", Severity.INFO)
def far_timestamp(seen: Inspection) -> Iterator[Mark]:
    """The time of a record lies outside of the years 1 to 9999: a producer or a clock was wrong. Brokers take such records.

    Many tools cannot show the time; beyond the year 294247 it does not fit a column of timestamps and reads as null. Retention by time
    does not delete a segment whose largest time is in the future.
    """
    yield from seen.share(_survey_records).far_times


@rule("kafka.log.header-key", Severity.INFO)
def header_key(seen: Inspection) -> Iterator[Mark]:
    """The name of a record's header is not UTF-8. Brokers take it, and Java's consumers show U+FFFD for the bytes that are not text.

    It is read the same way here. Verbs that copy batches (repair, rebuild, compact, erase, restore) keep its bytes; those that write
    records in another form name `headers` as a loss.
    """
    yield from seen.share(_survey_records).header_keys


@rule("kafka.log.limit", Severity.WARNING)
def limit(seen: Inspection) -> Iterator[Mark]:
    """The records of a batch were not checked: their decompressed size, or the number of headers of a record, exceeds a limit.

    The limits keep a small file from taking all memory.

    If the batch is genuine, raise the limit that the message names.
    """
    for position, error in sorted(seen.share(_survey_records).faults, key=lambda fault: fault[0]):
        if isinstance(error, LimitError):
            yield Mark(error.message, position=position, expected=error.expected, found=error.found)


@rule("kafka.log.attributes", Severity.WARNING)
def attributes(seen: Inspection) -> Iterator[Mark]:
    """Bits of the attributes are set that no version of Kafka uses. They are lost when a broker rewrites the batch."""
    sound = seen.share(_sound)
    value = sound.head["attributes"] & 0xFFFF
    for index in np.flatnonzero(value & ~KNOWN_BITS).tolist():
        yield _mark(
            sound.frames, index, "unknown attribute bits", expected="bits 0 to 6", found=f"{int(value[index]):016b}"
        )


def _merged_count(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {"position": left["position"], "count": left["count"] + right["count"]}


def _mixed(memory: dict[str, Any]) -> Iterator[Mark]:
    yield Mark(f"{memory['count']:,} wrappers of magic 1 hold entries of magic 0", position=memory["position"])


@rule("kafka.log.mixed-magic", Severity.INFO, merge=_merged_count, finish=_mixed)
def mixed_magic(seen: Inspection) -> Iterator[Mark]:
    """A compressed entry of magic 1 holds entries of magic 0: the cleaner of Kafka 0.10.0 and before 0.10.1.1 left that
    (KAFKA-4298) when it met messages older than the topic's format.

    The records are read with the wrapper's offsets and no time. Some clients stop there; compacting the log with a later broker
    repairs it.
    """
    sound, memory = seen.share(_sound), seen.memory
    for index in np.flatnonzero((sound.head["magic"] == 1) & (sound.head.codec > 0)).tolist():
        if holds_older(sound.frames.slice(index, index + 1), sound.head.slice(index, index + 1), seen.limit):
            memory.setdefault("position", int(sound.frames.positions[index]))
            memory["count"] = memory.get("count", 0) + 1
    return iter(())


@rule("kafka.log.internal-record", Severity.WARNING)
def internal_record(seen: Inspection) -> Iterator[Mark]:
    """A record of `__consumer_offsets`, `__transaction_state` or `__share_group_state` cannot be decoded, and is in no table.

    If its type or version is not known, a newer broker wrote it. Else somebody produced to the topic by hand: a coordinator that
    loads the partition stops or skips there.
    """
    topic = seen.file.place.topic
    if topic not in KEYED or seen.file.place.state is not None:
        return
    few = Few()
    for frames, head, columns in _parts(seen, {"key", "value", "offset"}, []):
        control = head.has(Attributes.CONTROL)
        arrays = (columns.arrays[name].to_pylist() for name in ("key", "value", "offset"))
        for at, key, value, offset in zip(columns.batch_index.tolist(), *arrays, strict=True):
            if control[at]:
                continue
            try:
                decode_keyed(topic, key, value)
            except DataError as error:
                severity = Severity.INFO if isinstance(error, UnsupportedError) else None
                few.append(Mark(error.message, int(frames.positions[at]), offset=offset, severity=severity))
    yield from few


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
    """The rules of batches, whatever the file."""
    return (
        magic,
        crc,
        codec,
        records,
        offsets,
        order,
        base,
        max_timestamp,
        far_timestamp,
        header_key,
        limit,
        attributes,
        mixed_magic,
    )


def log_rules() -> Sequence[Rule[Inspection]]:
    """The rules of log segments: those of batches, and those of topics that Kafka itself writes."""
    return (*rules(), internal_record)
