"""Batches for a produce request: those of a log passed on as they are, or put together in larger ones, or made of rows.

A broker takes one batch per partition and request, so small ones are put together up to what the topic takes. A batch is passed on as it
is where its bytes need no change; only its header gets new producer fields, which no record has to be looked at for.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.heads import Heads
from rawlog.formats.kafka.log.kernels import encode
from rawlog.formats.kafka.log.kernels.records import NO_APPEND_TIME
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    CODEC_MASK,
    CODECS,
    MAGIC_V2,
    NONE,
    Attributes,
)
from rawlog.formats.kafka.log.records import TooMuch, payloads_of
from rawlog.formats.kafka.log.segment import only
from rawlog.io import compression
from rawlog.io.checksums import crc32c
from rawlog.kernels import byte_view
from rawlog.kernels.gather import SLACK
from rawlog.model.errors import CorruptError, EncodeError
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import FULL, OK

TARGET_BYTES = 900 << 10
"""Small batches are put together up to this size, or to what the topic takes."""
LARGEST_UNPACKED = 64 << 20
_HEAD = struct.Struct(">qiibIhiqqqhii")
_PRODUCER = struct.Struct(">qhi")
_COVERED = BATCH.after("crc")
_TIMES = struct.Struct(">qq")
assert _HEAD.size == BATCH.size


@dataclass(slots=True)
class OutgoingBatch:
    """A batch of magic 2 that only lacks its producer: bytes, records in it, and the next source offset after it."""

    data: Bytes
    count: int
    next_offset: int = NONE
    #: The time of its last record, in ms.
    max_timestamp: int = NONE

    def __len__(self) -> int:
        return self.data.size

    def set_time(self, now: int) -> None:
        """Replace the time (ms) of its records, which all have the same."""
        _TIMES.pack_into(memoryview(self.data), BATCH.at("base_timestamp"), now, now)  # type: ignore[arg-type]
        self.max_timestamp = now


def stamp(data: Bytes, producer_id: int, epoch: int, sequence: int, *, is_transactional: bool = False) -> None:
    """Give a batch its producer and its checksum; the offset and bits that a client must not send are cleared."""
    view = memoryview(data)  # type: ignore[arg-type]
    view[0:8] = bytes(8)
    struct.pack_into(">i", view, BATCH.at("leader_epoch"), NONE)
    at = BATCH.at("attributes")
    attributes = struct.unpack_from(">h", view, at)[0] & CODEC_MASK
    struct.pack_into(">h", view, at, attributes | (int(Attributes.TRANSACTIONAL) if is_transactional else 0))
    _PRODUCER.pack_into(view, BATCH.at("producer_id"), producer_id, epoch, sequence)
    struct.pack_into(">I", view, BATCH.at("crc"), crc32c(view[_COVERED:]))


class Merger:
    """Makes batches of one partition ready to send, in order. `most` is what the topic takes.

    With `keep_batches` all that can be passed on as it is stays a batch of its own. `fixed_time` replaces all times, `shift_ms` moves
    them. `skip` records at the start are left out: they were sent before. `named` is the partition that errors name.
    """

    def __init__(
        self,
        most: int,
        *,
        named: str = "",
        keep_batches: bool = False,
        fixed_time: int | None = None,
        shift_ms: int = 0,
        skip: int = 0,
    ) -> None:
        self.most, self.keep_batches, self.fixed_time, self.shift_ms = most, keep_batches, fixed_time, shift_ms
        self.skip, self._named = skip, named
        self._room = min(TARGET_BYTES, most) - BATCH.size
        self._state = np.zeros(encode.STATE, np.int64)
        self._out: Bytes | None = None
        self._codec = 0
        self._next = NONE

    def skip_next(self, count: int) -> None:
        """Leave out so many of the records that come next. Only when nothing waits to be put together."""
        assert self._out is None or not self._state[encode.COUNT]
        self._out, self.skip = None, count

    def add(self, frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
        """Sound batches of data that follow those before them; what is ready."""
        kinds: NDArray[np.int64] = self._as_is(frames, head)
        start = 0
        while start < len(frames):
            stop = start + 1
            while stop < len(frames) and kinds[stop] == kinds[start]:
                stop += 1
            run, run_head = frames.slice(start, stop), head.slice(start, stop)
            yield from (
                self._pass_on(run, run_head) if kinds[start] < 0 else self._merge(run, run_head, int(kinds[start]))
            )
            start = stop

    def _as_is(self, frames: Frames, head: Heads) -> NDArray[np.int64]:
        """For each batch -1 if it is passed on as it is, else the codec that its records get in another one."""
        codec = head.codec
        count, span = head["record_count"], head["last_offset"] - head["base_offset"] + 1
        same = (count == span) & (frames.sizes <= self.most) & (codec < len(CODECS))
        if self.fixed_time is not None:
            same[:] = False
        if head.any(Attributes.LOG_APPEND_TIME | Attributes.DELETE_HORIZON):
            same &= ~(head.has(Attributes.LOG_APPEND_TIME) | head.has(Attributes.DELETE_HORIZON))
        if not self.keep_batches:
            same &= (codec > 0) | (frames.sizes > self._room // 2)
        if self.skip:
            same[np.cumsum(count) - count < self.skip] = False
        return np.where(same, -1, np.where(codec < len(CODECS), codec, 0))

    def _pass_on(self, frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
        yield from self.flush()
        starts, stops = frames.starts.tolist(), frames.stops.tolist()
        counts, nexts, tops = (
            head["record_count"].tolist(),
            (head["last_offset"] + 1).tolist(),
            head["max_timestamp"].tolist(),
        )
        for start, stop, count, following, top in zip(starts, stops, counts, nexts, tops, strict=True):
            data = frames.data[start:stop].copy()
            if self.shift_ms:
                at = BATCH.at("base_timestamp")
                view = memoryview(data)  # type: ignore[arg-type]
                times = _TIMES.unpack_from(view, at)
                _TIMES.pack_into(view, at, *(time if time == NONE else time + self.shift_ms for time in times))
            yield OutgoingBatch(data, count, following, top)

    def _merge(self, frames: Frames, head: Heads, codec: int) -> Iterator[OutgoingBatch]:
        if codec != self._codec:
            yield from self.flush()
            self._codec = codec
        filled = head["record_count"] > 0
        if not filled.all():
            frames, head = only(frames, filled), head.only(filled)
        for start, stop in _unpackable(frames, head):
            yield from self._unpack(frames.slice(start, stop), head.slice(start, stop))

    def _unpack(self, frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
        try:
            payloads = payloads_of(frames, head, LARGEST_UNPACKED)
        except TooMuch:  # only of several batches
            for index in range(len(frames)):
                yield from self._unpack(frames.slice(index, index + 1), head.slice(index, index + 1))
            return
        yield from self._take(*payloads, frames, head)

    def _take(
        self,
        data: Bytes,
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        append_times: NDArray[np.int64],
        frames: Frames,
        head: Heads,
    ) -> Iterator[OutgoingBatch]:
        state = self._state
        state[[encode.BATCH_INDEX, encode.POSITION, encode.ROW]] = 0
        counts, base_times = np.ascontiguousarray(head["record_count"]), np.ascontiguousarray(head["base_timestamp"])
        while True:
            if self._out is None:
                self._begin()
            assert self._out is not None
            done, position, status = encode.merge_records_v2(
                byte_view(data), starts, stops, counts, base_times, append_times, self._out[BATCH.size :], state
            )
            self.skip = int(state[encode.SKIP])
            if status == OK:
                self._next = int(head["last_offset"][-1]) + 1
                return
            if status != FULL:
                raise CorruptError(
                    f"a record that cannot be read, in the batch at offset {int(head['base_offset'][done]):,}",
                    position=int(frames.positions[done]),
                )
            if not state[encode.COUNT]:
                size = int(stops[done]) - int(position)
                offset = int(head["base_offset"][done]) + int(state[encode.ROW])
                raise EncodeError(
                    f"{self._named}: offset {offset:,}: a record that is larger than a batch of {self.most:,} bytes, the most that the "
                    f"topic takes (at most {size:,} bytes)"
                )
            self._next = int(head["base_offset"][done]) + int(state[encode.ROW])
            yield from self.flush()

    def _begin(self) -> None:
        self._out = np.empty(BATCH.size + self._room + SLACK, np.uint8)
        state = self._state
        state[[encode.FILLED, encode.COUNT, encode.BASE_TIME, encode.MAX_TIME]] = 0
        state[encode.MOST_MERGED], state[encode.SHIFT], state[encode.SKIP] = self._room, self.shift_ms, self.skip
        state[encode.FIXED_TIME] = NO_APPEND_TIME if self.fixed_time is None else self.fixed_time

    def flush(self) -> Iterator[OutgoingBatch]:
        """What was put together so far."""
        state, out = self._state, self._out
        if out is None or not state[encode.COUNT]:
            return
        self._out = None
        filled, count = int(state[encode.FILLED]), int(state[encode.COUNT])
        base, top = int(state[encode.BASE_TIME]), int(state[encode.MAX_TIME])
        data = out[: BATCH.size + filled]
        if self._codec:
            packed = compression.compress(CODECS[self._codec], memoryview(data)[BATCH.size :], None)  # type: ignore[arg-type]
            data = np.frombuffer(bytearray(BATCH.size) + packed, np.uint8)
        _put_head(data, self._codec, count, base, top)
        yield OutgoingBatch(data, count, self._next, top)


def _put_head(data: Any, codec: int, count: int, base_time: int, max_time: int) -> None:
    """The header of a new batch without a producer; `stamp` completes it."""
    length = data.size - BATCH.after("length")
    _HEAD.pack_into(
        memoryview(data),
        0,
        0,
        length,
        NONE,
        MAGIC_V2,
        0,
        codec,
        count - 1,
        base_time,
        max_time,
        NONE,
        NONE,
        NONE,
        count,
    )


def _unpackable(frames: Frames, head: Heads) -> Iterator[tuple[int, int]]:
    """Runs of batches that are unpacked at a time: all at once if they are not compressed, else few."""
    if not head.any(CODEC_MASK):
        if len(frames):
            yield 0, len(frames)
        return
    start, size = 0, 0
    for index, batch_size in enumerate(frames.sizes.tolist()):
        if size + batch_size > 1 << 20 and index > start:
            yield start, index
            start, size = index, 0
        size += batch_size
    if start < len(frames):
        yield start, len(frames)


def outgoing(frames: Frames, head: Heads) -> Iterator[OutgoingBatch]:
    """Batches that rows were encoded to, ready to stamp."""
    for index in range(len(frames)):
        data = frames.data[int(frames.starts[index]) : int(frames.stops[index])].copy()
        yield OutgoingBatch(
            data,
            int(head["record_count"][index]),
            int(head["last_offset"][index]) + 1,
            int(head["max_timestamp"][index]),
        )


__all__ = ["Merger", "OutgoingBatch", "outgoing", "stamp"]
