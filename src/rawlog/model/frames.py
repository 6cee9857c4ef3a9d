"""Frames: where the whole structures of a stretch of bytes begin and end, and how far the scan came."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.model.errors import DataError
from rawlog.model.format import Sharing
from rawlog.model.status import Status

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Frames(Sharing):
    """The whole frames in `data`, a window of a file that begins at byte `base`.

    `starts` and `stops` are positions in `data`; `first` is the number of the first frame in its file; `kind` is
    what the file's header says of all of them (a version), 0 where frames speak for themselves. `reached` is the
    position in `data` after the last whole frame, where `status` was found; `last` says that no window follows. `error` is the damage that
    is not one of frames: the bytes there cannot be had, or the header of the file cannot be read.
    """

    data: Bytes
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    reached: int
    status: Status
    kind: int = 0
    base: int = 0
    first: int = 0
    last: bool = True
    error: DataError | None = None
    _shared: dict[object, Any] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __len__(self) -> int:
        return int(self.starts.size)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Where each frame begins in the file."""
        return self.starts + self.base

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self.stops - self.starts

    @property
    def reached_in_file(self) -> int:
        return self.base + self.reached

    def slice(self, start: int, stop: int) -> Frames:
        """The frames numbered `start` to `stop` of these, over the same bytes."""
        stop = min(stop, len(self))
        if start == 0 and stop == len(self):
            return self
        reached = int(self.stops[stop - 1]) if stop > start else self.reached
        return replace(
            self,
            starts=self.starts[start:stop],
            stops=self.stops[start:stop],
            reached=reached,
            first=self.first + start,
        )
