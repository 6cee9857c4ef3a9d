"""Is anything missing in a recording? Where entries must have been: `rawlog verify --complete`.

A recording has no offsets: an entry is known by its number only, and one that was cut out whole leaves no trace. What does leave one is
bytes that are not an entry. An end inside of an entry is what a recorder leaves that was stopped: nothing confirms that entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from rawlog.core.findings import Account, Few, Mark, Rule, Severity, rule
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.status import Status
from rawlog.core.store import Store
from rawlog.formats.replay import RECORDING
from rawlog.formats.replay.reader import are_zeros
from rawlog.io.walk import walk


@dataclass(slots=True)
class Recorded:
    """What a pass over a recording, or over a split of it, finds: how many entries there are, and where others must have been."""

    file: File
    group: Sequence[File] = ()
    start: int = 0
    stop: int | None = None
    entries: int = 0
    #: Entries at the end that are zeros only: nothing recorded them.
    zeros: int = 0
    missing: Few = field(default_factory=Few)
    reached: int | None = None

    @property
    def rises(self) -> bool:
        """Whether splits merge: always."""
        return True

    def see(self, frames: Frames) -> None:
        """Take in the next window."""
        if frames.status is Status.BAD_HEADER:
            return  # a finding of its own
        if self.reached is not None and frames.base > self.reached:
            self._lost(self.reached, frames.base)
        if len(frames) and frames.kind:
            sound = np.flatnonzero(~are_zeros(frames))
            self.zeros = len(frames) - 1 - int(sound[-1]) if sound.size else self.zeros + len(frames)
        self.entries += len(frames)
        self.reached = frames.reached_in_file
        if frames.last and frames.status.is_damage:
            self._lost(self.reached, self.file.size)

    def _lost(self, start: int, stop: int) -> None:
        message = f"{stop - start:,} bytes are no entry; nothing says how many entries are missing"
        self.missing.append(Mark(message, start, stop - start, self.entries, path=self.file.path))

    def close(self) -> Recorded:
        """The same, without the files around it."""
        self.group = ()
        return self

    def merge(self, following: Recorded) -> Recorded:
        """Take in the split that follows."""
        self.zeros = following.zeros + (self.zeros if following.zeros == following.entries else 0)
        self.entries += following.entries
        self.missing.join(following.missing)
        self.reached, self.stop = following.reached, following.stop
        return self


def accounts(files: Sequence[File]) -> list[Account]:
    """The account of a recording. Every place where entries are missing counts as one."""
    made = []
    for one in _recorded(files):
        if one.reached is None:  # its header cannot be read, which is a finding
            continue
        lost = one.missing.count
        there = one.entries - one.zeros
        made.append(
            Account(
                system="replay",
                path=one.file.path,
                unit="entry",
                stop=there + lost,
                present=there,
                unexplained=lost,
            )
        )
    return made


def _recorded(files: Sequence[File]) -> list[Recorded]:
    return Store.of(files).share(_summaries)


def _summaries(store: Store) -> list[Recorded]:
    known = (store.summaries.get(file.path) for file in store if file.problem is None)
    return [
        one if isinstance(one, Recorded) else _read(file)
        for one, file in zip(known, (file for file in store if file.problem is None), strict=True)
    ]


def _read(file: File) -> Recorded:
    made = Recorded(file)
    for frames in walk(file, RECORDING, errors="skip"):
        made.see(frames)
    return made.close()


@rule("replay.complete.unexplained", Severity.ERROR)
def unexplained(files: Sequence[File]) -> Iterator[Mark]:
    """Entries of a recording are missing: it has bytes that are no entry. (With `--complete` only.)

    Record the topic again, or compare with it (`rawlog diff`). Half an entry at the end is what a recorder leaves that was stopped while it
    wrote, and does not count (`replay.recording.unfinished`). Entries that were cut out whole leave no trace, since the format has neither
    offsets nor a checksum.
    """
    for one in _recorded(files):
        yield from one.missing


def rules() -> Sequence[Rule[Sequence[File]]]:
    """The rules over a recording."""
    return (unexplained,)
