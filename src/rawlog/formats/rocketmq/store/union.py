"""The union of several copies of a commit log: each sound message once, from the first copy that has it; then as `repair` does it.

Where copies have different sound messages at one address, one of them was changed where no checksum covers it: what most copies have
counts, or else what the consume queues say. Only one history is taken: a copy ends where it parts from the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import HOST_V4, HOST_V6, SysFlag
from rawlog.formats.rocketmq.store.evidence import edges, place_of
from rawlog.formats.rocketmq.store.outline import real_runs
from rawlog.formats.rocketmq.store.repair import (
    CUT,
    Run,
    Salvage,
    is_begun,
    run_of,
    tail_of,
)
from rawlog.io.output import Folder
from rawlog.model.format import File
from rawlog.model.report import Action, Report
from rawlog.model.text import plain_time

MOST_NOTES = 20
LONGEST_PAUSE_MS = 10 * 365 * 86_400_000
"""Times of neighbouring messages that are further apart are not credible."""


@dataclass(frozen=True, slots=True)
class LogCopy:
    """One copy of the commit log: its files by the address where each begins, and where it parts from the history that is kept."""

    root: str
    files: dict[int, File]
    until: int | None = None


class _Reader:
    """The runs of one copy of a file, cut to what is still wanted."""

    def __init__(self, number: int, file: File, size: int, until: int | None) -> None:
        self.number, self.file, self.until = number, file, until
        self._runs = real_runs(file, size)
        self.run: Run | None = None
        self.shift = 0

    def skip_to(self, address: int) -> Run | None:
        """The next run of messages that begin at an address or after it; None at the end."""
        while True:
            if self.run is None:
                self.run = next(self._runs, None)
                if self.run is None:
                    return None
                self.shift = self.run.shift
                if self.until is not None and self.run.stop > self.until:
                    self.run = _cut(self.run, None, self.until)
                    self._runs = iter(())
                    if self.run is None:
                        return None
            if self.run.start >= address:
                return self.run
            self.run = _cut(self.run, address, None) if self.run.stop > address else None


def _cut(run: Run, start: int | None, stop: int | None) -> Run | None:
    """The messages of a run that begin from one address to before another; None if there are none."""
    starts = edges(run.rows)[0]
    first = 0 if start is None else int(np.searchsorted(starts, start))
    last = starts.size if stop is None else int(np.searchsorted(starts, stop))
    if last <= first:
        return None
    return replace(run_of(run.rows.cut(first, last)), shift=run.shift, is_corrected=run.is_corrected)


class Union(Salvage):
    """A new commit log from several copies of it, in order of preference, that are all of one history."""

    def __init__(
        self,
        copies: Sequence[LogCopy],
        files: Sequence[File],
        folder: Folder,
        file_size: int,
        report: Report,
        *,
        move: bool,
    ) -> None:
        super().__init__(files, folder, file_size, report, move=move)
        self.copies = copies
        self.taken = [0] * len(copies)
        #: How far the last messages of each copy of the file that is being read are from their place.
        self.shifts: dict[int, int] = {}
        self.logs = [self._at(start)[0][1] for start in sorted({start for copy in copies for start in copy.files})]

    def _at(self, start: int) -> list[tuple[int, File]]:
        """The copies of the file at an address, with the numbers of their stores; those of another history are the last."""
        found = [(number, copy) for number, copy in enumerate(self.copies) if start in copy.files]
        found.sort(key=lambda one: one[1].until is not None and one[1].until <= start)
        return [(number, copy.files[start]) for number, copy in found]

    def _own(self, file: File) -> list[tuple[int, File]]:
        """The same without those of another history."""
        start = file.place.start_offset or 0
        found = self._at(start)
        return [(number, one) for number, one in found if (until := self.copies[number].until) is None or until > start]

    @property
    def is_intact(self) -> bool:
        """Whether the log is that of the first copy, whose databases are taken."""
        return super().is_intact and not any(self.taken[1:])

    def is_begun(self, file: File) -> bool:
        return any(is_begun(one) for _, one in self._own(file))

    def tail(self, file: File, position: int, shift: int) -> str:
        address = position + shift
        found = [
            tail_of(one, address - self.shifts.get(number, 0), self.file_size, self.shifts.get(number, 0))
            for number, one in self._own(file)
            if self.copies[number].until is None
        ]
        sizes = [int(one) for one in found if one.isdigit()]
        if "blank" in found or not sizes:
            return "blank" if "blank" in found else CUT if set(found) == {CUT} else "zeros"
        return str(max(sizes))

    def growth(self, file: File, shift: int) -> int:
        return max(0, *(-one for one in self.shifts.values()), 0)

    def describe_hole(self, run: Run) -> str:
        before = self.derived.last_time if self.derived.messages else 0
        after = int(run.rows[fields.F_STORE_TIME][0])
        when = (
            f"after {plain_time(before * 1000)} and before {plain_time(after * 1000)}"
            if before
            else f"before {plain_time(after * 1000)}"
        )
        many = "no copy has it" if len(self.copies) > 1 else "could not be kept"
        return f"{many}: addresses before {run.start:,}, stored {when}"

    # Runs

    def runs(self, file: File, *, skip: bool) -> Iterator[Run]:
        """The sound messages at the place of a file, each from the first copy that has it."""
        readers = [_Reader(number, one, self.file_size, self.copies[number].until) for number, one in self._own(file)]
        at = -1
        while True:
            heads = [(reader, run) for reader in readers if (run := reader.skip_to(at)) is not None]
            if not heads:
                self.shifts = {reader.number: reader.shift for reader in readers}
                for reader in readers:
                    if reader.shift:
                        reason = (
                            f"messages of this copy are up to {abs(reader.shift):,} bytes from their place; put back"
                        )
                        self.report.add(Action.MOVED, reason, reader.file.path, is_expected=True)
                return
            first = min(run.start for _, run in heads)
            here = [(reader, run) for reader, run in heads if run.start == first]
            stop = min(run.stop for _, run in here)
            # Where another copy begins again, it is preferred, or compared.
            stop = min([stop, *(run.start for _, run in heads if run.start > first)])
            cut = [(reader.number, part) for reader, run in here if (part := _cut(run, None, stop)) is not None]
            for source, run in self._agreed(cut):
                self.taken[source] += len(run.rows)
                yield replace(run, shift=0)  # where it is in its copy says nothing of the others
            at = cut[0][1].stop

    def _agreed(self, copies: list[tuple[int, Run]]) -> Iterator[tuple[int, Run]]:
        """The run of the first of several copies; messages that others have otherwise are judged."""
        # What one copy had to correct, another may have as it was.
        copies = [one for one in copies if not one[1].is_corrected] or copies
        (source, run), others = copies[0], copies[1:]
        if all(_bytes(run) == _bytes(other) for _, other in others):
            yield source, run
            return
        at = run.start
        for address in _different(run, [other for _, other in others]):
            before = _cut(run, at, address)
            if before is not None:
                yield source, before
            versions = [(number, one) for number, whole in copies if (one := _message_at(whole, address)) is not None]
            yield self._judge(address, [one for one in versions if one[1].stop == versions[0][1].stop])
            at = address + 1
        rest = _cut(run, at, None)
        if rest is not None:
            yield source, rest

    def _judge(self, address: int, versions: list[tuple[int, Run]]) -> tuple[int, Run]:
        """The version of a message that most copies have, or the one that the consume queues know; else the first."""
        texts = [_bytes(run) for _, run in versions]
        votes = [texts.count(text) for text in texts]
        best = [one for one, vote in zip(versions, votes, strict=True) if vote == max(votes)]
        why, is_decided = f"{max(votes)} of {len(versions)} copies have the one that is taken", True
        if max(votes) * 2 <= len(versions):
            known = {(slot.topic, slot.queue_id, slot.number) for slot in self.slots.between(address, address + 1)}
            fitting = [one for one in best if place_of(one[1].rows) in known]
            formed = [one for one in fitting or best if _is_well_formed(one[1], self.derived.last_time)]
            is_known, is_formed = 0 < len(fitting) < len(best), 0 < len(formed) < len(fitting or best)
            best = formed or fitting or best
            why = "the first one is taken, nothing tells which is right"
            is_decided = is_known or is_formed
            if is_decided:
                why = f"the one that is taken {'is in the consume queues' if is_known else 'is well-formed, another is not'}"
            self.report.count("messages_undecided", 0 if is_decided else 1)
        self.report.count("messages_judged")
        if self.report.counts["messages_judged"] <= MOST_NOTES:
            topic, queue, number = place_of(best[0][1].rows)
            what = f"message at address {address:,} ({topic} queue {queue}, {number:,}): copies differ where no checksum covers it"
            text = f"{what}: {why}, of {self.copies[best[0][0]].root}"
            if is_decided:
                self.report.notes.append(text)
            else:
                self.report.add(Action.UNDECIDED, text)
        return best[0]


def _is_well_formed(run: Run, last_time: int) -> bool:
    """Whether what no checksum covers in a message looks as a broker writes it: text, ports, times."""
    rows, ok = run.rows, True
    for start, size in ((fields.F_TOPIC, fields.F_TOPIC_SIZE), (fields.F_PROPERTIES, fields.F_PROPERTIES_SIZE)):
        raw = bytes(rows.data[int(rows[start][0]) : int(rows[start][0] + rows[size][0])])
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            return False
        ok &= not any(ord(letter) < 32 and letter not in "\1\2\t\r\n" for letter in text)
        ok &= start == fields.F_TOPIC or all("\1" in piece for piece in text.split("\2") if piece)
    for host in (fields.F_BORN_HOST, fields.F_STORE_HOST):
        at = int(rows[host][0])
        flag = SysFlag.BORNHOST_V6 if host == fields.F_BORN_HOST else SysFlag.STOREHOST_V6
        size = HOST_V6.size if int(rows[fields.F_SYS_FLAG][0]) & flag else HOST_V4.size
        ok &= int.from_bytes(bytes(rows.data[at + size - 4 : at + size]), "big") < 1 << 16
    stored, born = int(rows[fields.F_STORE_TIME][0]), int(rows[fields.F_BORN_TIME][0])
    return ok and last_time <= stored < last_time + LONGEST_PAUSE_MS and abs(stored - born) < LONGEST_PAUSE_MS


def _bytes(run: Run) -> bytes:
    """The bytes of a run without those that members of a group have of their own: DLedger's heads."""
    rows = run.rows
    starts, sizes = rows[fields.F_START], rows[fields.F_SIZE]
    if (starts[1:] == starts[:-1] + sizes[:-1]).all():
        return bytes(rows.data[int(starts[0]) : int(starts[-1] + sizes[-1])].data)
    return b"".join(
        bytes(rows.data[start : start + size].data) for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    )


def _message_at(run: Run, address: int) -> Run | None:
    return _cut(run, address, address + 1)


def _different(run: Run, others: Sequence[Run]) -> list[int]:
    """Where messages begin of which another copy has a different version."""
    starts: NDArray[np.int64] = edges(run.rows)[0]
    found = []
    for address in starts.tolist():
        mine = _message_at(run, address)
        assert mine is not None
        versions = [one for other in others if (one := _message_at(other, address)) is not None]
        if any(_bytes(one) != _bytes(mine) for one in versions):
            found.append(address)
    return found
