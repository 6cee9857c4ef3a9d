"""The batches of a metadata log, each at the offset and of the epoch that the log's outline gives it; and those of a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.messages import control_type
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.layouts import BATCH, MAGIC_V2, Attributes
from rawlog.formats.kafka.log.segment import decode_bounded, decode_run
from rawlog.formats.kafka.partition.outline import Outline
from rawlog.formats.kafka.partition.segment_outline import SoundBatches, bytes_of, find_sound
from rawlog.io.storage import Source
from rawlog.kernels import byte_view
from rawlog.model.errors import DataError
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS, File
from rawlog.model.frames import Frames
from rawlog.model.report import Action
from rawlog.model.status import Status


@dataclass(slots=True)
class Batch:
    """A sound batch: its bytes in a file, its stored offset and epoch, and the right ones (`first`, `epoch`)."""

    file: File
    start: int
    stop: int
    stored: int
    count: int
    stored_epoch: int
    is_control: bool
    crc: int
    #: Of its last record, milliseconds.
    time: int
    first: int
    epoch: int

    def records(self) -> Iterator[tuple[bool, int | None, bytes | None]]:
        """Whether a record is a control record, then of which kind; and its value."""
        with Source(self.file.path) as source:
            data = byte_view(source.read(self.start, self.stop - self.start))
        stops = np.array([data.size], np.int64)
        frames = Frames(data, np.zeros(1, np.int64), stops, data.size, Status.OK)
        arrays = decode_run(frames, heads(frames), {"key", "value"}, 1 << 28).arrays
        for key, value in zip(*(arrays[name].to_pylist() for name in ("key", "value")), strict=True):
            yield self.is_control, control_type(key) if self.is_control else None, value

    def replay(self, state: State, stop: int | None = None) -> None:
        """Take its records into a state, from the end of the state on and up to an offset."""
        for number, (control, kind, value) in enumerate(self.records()):
            offset = self.first + number
            if offset < state.end_offset or (stop is not None and offset >= stop):
                continue
            if control:
                state.add_control(offset, -1 if kind is None else kind, value or b"")
            else:
                state.add(offset, value or b"")
        state.end_offset, state.epoch, state.timestamp = self.end, self.epoch, self.time

    def uncovered_fields(self) -> Iterator[tuple[str, bytes]]:
        """The fields that no checksum covers, as they should be."""
        for name, value in (("base_offset", self.first), ("leader_epoch", self.epoch)):
            yield name, value.to_bytes(BATCH.after(name) - BATCH.at(name), "big", signed=True)

    @property
    def end(self) -> int:
        return self.first + self.count

    @property
    def is_rebased(self) -> bool:
        return self.first != self.stored

    @property
    def is_changed(self) -> bool:
        return self.is_rebased or self.epoch != self.stored_epoch


@dataclass(slots=True)
class LogBatches:
    """The batches of a log in the order of their offsets, and those that are not of it, each with the reason."""

    batches: list[Batch]
    aside: list[tuple[Batch, str]]

    @classmethod
    def of(cls, log: Outline, decodable: Collection[str] = ()) -> LogBatches:
        """The batches of a metadata log by its outline. `decodable` are the paths of files whose records a pass has decoded."""
        log_batches = cls([], [])
        for piece in log.pieces:
            extent = log.extents[piece.segment]
            sound, choice = extent.sound_and_choice()
            firsts, _ = extent.offsets()
            numbers = choice.order if piece.numbers is None else piece.numbers
            for number, batch in _decodable_batches(extent.file, sound, numbers, extent.file.path in decodable):
                batch.first = int(firsts[number])
                batch.epoch = log.right_epoch(batch.first, batch.epoch)
                log_batches.batches.append(batch)
        for index, extent in enumerate(log.extents):
            fates = {number: fate for number, fate in log.fates(index).items() if fate.action is Action.DROPPED}
            if fates:
                sound, _ = extent.sound_and_choice()
                dropped = _decodable_batches(extent.file, sound, list(fates), extent.file.path in decodable)
                log_batches.aside += [(batch, fates[number].reason) for number, batch in dropped]
        return log_batches


def batches_in(file: File) -> list[Batch]:
    """The sound batches of a file as they are stored, also after damage."""
    sound = find_sound(bytes_of(file))
    return [batch for _, batch in _decodable_batches(file, sound, range(len(sound.head)), False)]


def _decodable_batches(
    file: File, sound: SoundBatches, numbers: Sequence[int], is_decodable: bool
) -> Iterator[tuple[int, Batch]]:
    """Sound batches by number, without those of older formats and those whose records cannot be decoded."""
    data = bytes_of(file)
    frames = Frames(data, sound.starts, sound.stops, data.size, Status.OK)
    is_control = sound.head.has(Attributes.CONTROL)
    for number in numbers:
        head = sound.head.slice(number, number + 1)
        if head["magic"][0] != MAGIC_V2 or not (is_decodable or can_decode(frames.slice(number, number + 1), head)):
            continue
        base, epoch = int(head["base_offset"][0]), int(head["leader_epoch"][0])
        count = int(head["last_offset"][0]) - base + 1
        place = int(sound.starts[number]), int(sound.stops[number])
        crc, time = int(head["crc"][0]), int(head["max_timestamp"][0])
        yield number, Batch(file, *place, base, count, epoch, bool(is_control[number]), crc, time, base, epoch)


def can_decode(frames: Frames, head: Heads) -> bool:
    """Whether the records of a batch can be decoded."""
    try:
        for _ in decode_bounded(frames, head, {"offset"}, MAX_DECOMPRESSED, MAX_HEADERS):
            pass
    except DataError:
        return False
    return True
