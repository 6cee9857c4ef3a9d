"""The headers of a window's batches and entries as columns, with what their attributes say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.log.kernels.heads import NAMES, STATE, take_heads
from rawlog.formats.kafka.log.layouts import CODEC_MASK, MAGIC_V2, NONE, Attributes
from rawlog.kernels import byte_view
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import OK

_ROW = {name: row for row, name in enumerate(NAMES)}


class Summary(NamedTuple):
    """What can be said of all frames of a window at once, so that it need not be asked of each; true of any part of them too."""

    all_sound: bool
    attributes: int
    mixed: bool


@dataclass(frozen=True, slots=True)
class Heads:
    """A value a frame for each name in `kernels.heads.NAMES`.

    Magic 0 and 1 have -1 where they have no such field; a compressed entry's record count is -1 and its base offset is its
    last, since only its content tells.
    """

    values: NDArray[np.int64]
    summary: Summary | None = None

    def __getitem__(self, name: str) -> NDArray[np.int64]:
        row: NDArray[np.int64] = self.values[_ROW[name]]
        return row

    def __len__(self) -> int:
        return int(self.values.shape[1])

    def has(self, attribute: Attributes) -> NDArray[np.bool_]:
        test: NDArray[np.bool_] = (self["attributes"] & int(attribute)) != 0
        if attribute is not Attributes.LOG_APPEND_TIME:
            test &= self["magic"] == MAGIC_V2
        return test

    @property
    def codec(self) -> NDArray[np.int64]:
        return self["attributes"] & CODEC_MASK

    @property
    def sound(self) -> NDArray[np.bool_]:
        """Which frames are what they say, by magic, size and checksum."""
        test: NDArray[np.bool_] = self.values[STATE] == OK
        return test

    @property
    def all_sound(self) -> bool:
        return (self.summary is not None and self.summary.all_sound) or bool(self.sound.all())

    @property
    def cleaned(self) -> NDArray[np.bool_]:
        """Which frames show the work of compaction: they have fewer records than offsets, or a delete horizon."""
        count = self["record_count"]
        thin = (count >= 0) & (count < self["last_offset"] - self["base_offset"] + 1)
        # Repair holds the end of a log with an empty batch; those of the cleaner keep the time of the batch that was there.
        thin &= ~((count == 0) & (self["producer_id"] == NONE) & (self["max_timestamp"] == NONE))
        return thin | self.has(Attributes.DELETE_HORIZON)

    @property
    def mixed(self) -> bool:
        """Whether there may be frames of magic 2 among older ones."""
        return self.summary is None or self.summary.mixed

    def any(self, bits: int) -> bool:
        """Whether any frame may have one of these attributes: what none has need not be asked of each."""
        attributes = int(np.bitwise_or.reduce(self["attributes"])) if self.summary is None else self.summary.attributes
        return bool(attributes & int(bits))

    def only(self, mask: NDArray[np.bool_]) -> Heads:
        # Rows stay contiguous, or kernels that take them would be compiled once more.
        return Heads(np.ascontiguousarray(self.values[:, mask]), self.summary)

    def slice(self, start: int, stop: int) -> Heads:
        return Heads(self.values[:, start:stop], self.summary)


def heads(frames: Frames, *, check_crc: bool = True) -> Heads:
    """The headers of all frames, whatever their magic. Checksums are computed once for everybody who sees the window."""
    if check_crc:
        return frames.share(_checked_heads)
    return take(frames.data, frames.starts, frames.stops, check_crc=False)


def _checked_heads(frames: Frames) -> Heads:
    return take(frames.data, frames.starts, frames.stops)


def take(data: Bytes, starts: NDArray[np.int64], stops: NDArray[np.int64], *, check_crc: bool = True) -> Heads:
    """The headers of the frames at these positions, each at least an outline long."""
    values = np.empty((len(NAMES), starts.size), np.int64)
    unsound, attributes, newer, older = take_heads(byte_view(data), starts, stops, check_crc, values)
    return Heads(values, Summary(unsound == 0, attributes, newer and older))
