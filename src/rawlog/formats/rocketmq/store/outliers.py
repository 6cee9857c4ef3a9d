"""Numbers and times in the heads of messages that cannot be, since those before and behind contradict them. No checksum covers them.

A broker numbers the messages of a queue without a gap and takes store times from a clock that does not fall. A single message out of
line, between two that fit each other, was changed after it was written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq.layouts import HEAD, HOST_V4, HOST_V6, LMQ_PREFIX, SCHEDULE_TOPIC, SysFlag
from rawlog.formats.rocketmq.store.dispatch import U_BATCH, U_OFFSET, U_PHYSICAL, U_TAG, U_TIME, Derived
from rawlog.formats.rocketmq.store.stage import Nowhere, Report


def mend(derived: Derived, sealed: NDArray[np.int64], covers: NDArray[np.int64], log: Log, report: Report) -> None:
    """Put right what is out of line, in the log just written and in what derives from it.

    Messages at the addresses `sealed` have a checksum of the whole entry, so that all of them is true; at `covers` stand our own.
    """
    for address, number in _wrong_numbers(derived, sealed):
        log.put(address, HEAD.at("queue_offset"), number)
        report.notes.append(
            f"the message at address {address:,}: its queue offset does not fit those around it; it is {number}"
        )
    changed = dict(_wrong_times(derived, sealed, covers))
    for address, time in changed.items():
        log.put_time(address, time)
        report.notes.append(
            f"the message at address {address:,}: its store time does not fit those around it and is lost; it has the one before, {time}"
        )
        report.bytes_lost += 8
    if changed:
        _set_times(derived, changed)


def _wrong_numbers(derived: Derived, sealed: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    for queue, pieces in derived.units.items():
        if queue[0].startswith(LMQ_PREFIX):
            continue
        units = derived.queue(queue)
        numbers = units[U_OFFSET]
        if numbers.size < 3 or (units[U_BATCH] != 1).any():
            continue
        wrong = np.zeros(numbers.size, np.bool_)
        wrong[1:-1] = (numbers[1:-1] != numbers[:-2] + 1) & (numbers[2:] == numbers[:-2] + 2)
        wrong &= ~np.isin(units[U_PHYSICAL], sealed)
        rows = np.flatnonzero(wrong)
        if rows.size:
            units[U_OFFSET, rows] = numbers[rows - 1] + 1
            pieces[:] = [units]
            yield from zip(units[U_PHYSICAL, rows].tolist(), units[U_OFFSET, rows].tolist(), strict=True)


def _wrong_times(derived: Derived, sealed: NDArray[np.int64], covers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    pieces = [piece[[U_PHYSICAL, U_TIME]] for found in derived.units.values() for piece in found]
    if not pieces:
        return
    every = np.concatenate(pieces, axis=1)
    addresses, first = np.unique(every[0], return_index=True)
    own = np.isin(addresses, covers)
    addresses, times = addresses[~own], every[1][first][~own]
    if times.size < 3:
        return
    before, here, behind = times[:-2], times[1:-1], times[2:]
    wrong = (before <= behind) & ((here < before) | (here > behind))
    wrong &= ~np.isin(addresses[1:-1], sealed)
    yield from zip(addresses[1:-1][wrong].tolist(), before[wrong].tolist(), strict=True)


def _set_times(derived: Derived, changed: dict[int, int]) -> None:
    """The new times of messages wherever something was derived from the old ones."""
    addresses = np.array(list(changed), np.int64)
    for queue, pieces in derived.units.items():
        for piece in pieces:
            for column in np.flatnonzero(np.isin(piece[U_PHYSICAL], addresses)).tolist():
                time = changed[int(piece[U_PHYSICAL, column])]
                if queue[0] == SCHEDULE_TOPIC:
                    piece[U_TAG, column] += time - piece[U_TIME, column]
                piece[U_TIME, column] = time
    for where, times in zip(derived.addresses, derived.times, strict=True):
        for row in np.flatnonzero(np.isin(where, addresses)).tolist():
            times[row] = changed[int(where[row])]


class Log:
    """The files of a commit log that was written, for a change in the head of a message."""

    def __init__(self, folder: Path | Nowhere, file_size: int) -> None:
        self.folder, self.file_size = folder, file_size

    def put(self, address: int, at: int, value: int) -> None:
        """Eight bytes at a place of the entry at that address."""
        if isinstance(self.folder, Nowhere):
            return
        start = address // self.file_size * self.file_size
        with (self.folder / f"{start:020}").open("r+b") as file:
            file.seek(address - start + at)
            file.write(value.to_bytes(8, "big", signed=True))

    def put_entry(self, address: int, entry: bytes) -> None:
        """A whole entry at an address, in place of others of the same size together."""
        if isinstance(self.folder, Nowhere):
            return
        start = address // self.file_size * self.file_size
        with (self.folder / f"{start:020}").open("r+b") as file:
            file.seek(address - start)
            file.write(entry)

    def put_time(self, address: int, time: int) -> None:
        """A store time, which stands behind a host of either size."""
        if isinstance(self.folder, Nowhere):
            return
        start = address // self.file_size * self.file_size
        with (self.folder / f"{start:020}").open("rb") as file:
            file.seek(address - start + HEAD.at("sys_flag"))
            flags = int.from_bytes(file.read(4), "big")
        host = HOST_V6.size if flags & SysFlag.BORNHOST_V6 else HOST_V4.size
        self.put(address, HEAD.after("born_timestamp") + host, time)
