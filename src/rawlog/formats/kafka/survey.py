"""A partition looked at as a whole: one pass over its segments, held against everything beside them.

The pass keeps five numbers a batch, of one segment at a time, and the state of every producer. What it finds is sorted by the
code of the rule that says it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rawlog.errors import RawlogError
from rawlog.findings import Few, Mark
from rawlog.format import File, Format
from rawlog.formats.kafka.continuity import Extent, Plain, continuity
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.layouts import MAGIC_V2, NONE, Attributes
from rawlog.formats.kafka.leader_epochs import EpochRuns
from rawlog.formats.kafka.producers import Aborted, Marker, Producers
from rawlog.formats.kafka.seek import index_entries, time_entries
from rawlog.frames import Frames
from rawlog.status import Status
from rawlog.walk import walk


def survey(files: Sequence[File]) -> dict[str, list[Mark]]:
    """All findings on a partition's files together, by code."""
    return _survey(tuple(files))


@lru_cache(maxsize=2)
def _survey(files: tuple[File, ...]) -> dict[str, list[Mark]]:
    segments = [one for one in files if one.format == "kafka.log" and one.place.state is None and one.problem is None]
    if not segments or segments[0].place.state is not None:
        return {}
    look = _Survey(files)
    for segment in sorted(segments, key=lambda one: one.place.start_offset or 0):
        look.segment(segment)
    look.end()
    return {code: [mark for few in by_path.values() for mark in few] for code, by_path in look.found.items()}


class _Survey:
    """The pass so far."""

    def __init__(self, files: tuple[File, ...]) -> None:
        self.files = files
        #: By code, then by path.
        self.found: dict[str, dict[str | None, Few]] = defaultdict(lambda: defaultdict(Few))
        self.producers = Producers()
        self.last_offset = -1
        self.start_offset: int | None = None
        self.last_file: File | None = None
        #: What segments without damage cover, by path.
        self.extents: dict[str, Extent] = {}
        self.sequence_marks: list[tuple[str, Mark]] = []
        self.compacted = False
        self.epochs = epochs_in(files)
        self.epoch_rows: list[tuple[int, int, Mark]] = []
        self.epoch_runs = EpochRuns()
        #: The segments by the base offset of their first sound batch.
        self.bases: list[tuple[int, str]] = []
        self.snapshots = {one.place.start_offset: one for one in files if _is(one, "kafka.snapshot")}

    def mark(self, code: str, mark: Mark) -> None:
        self.found[code][mark.path].append(mark)

    def segment(self, file: File) -> None:
        """One segment: compared with those before it, then with the files of the same name."""
        base = file.place.start_offset or 0
        if base <= self.last_offset and self.last_file is not None:
            message = f"begins at {base}, although {self.last_file.path} reaches {self.last_offset}"
            self.mark(
                "overlap",
                Mark(message, 0, offset=base, expected=f"above {self.last_offset}", found=base, path=file.path),
            )
        if self.start_offset is None:
            self.start_offset = base
        self.snapshot(base)
        rows: list[NDArray[np.int64]] = []
        first_marker, first_abort = len(self.producers.markers), len(self.producers.aborted)
        plain: Plain | None = Plain(file)
        for frames in walk(file, _log(), errors="skip"):
            head = heads(frames)
            ends_well = not frames.status.is_damage and not (frames.last and frames.status is Status.TRUNCATED)
            if plain is not None and head.all_sound and ends_well:
                plain.add(frames, head)
            else:
                plain = None
            if len(frames):
                rows.append(self.window(file, frames, head))
            if frames.last and frames.status is Status.TRUNCATED and file.place.sealed:
                left = file.size - frames.reached_in_file
                message = f"the last {left:,} bytes are an unfinished batch, although another segment follows"
                self.mark("truncated", Mark(message, frames.reached_in_file, left, path=file.path))
        made = None if plain is None else plain.extent()
        if made is not None:
            self.extents[file.path] = made
        table = np.concatenate(rows, axis=1) if rows else np.empty((5, 0), np.int64)
        self.offset_index(file, table)
        self.time_index(file, table)
        self.transaction_index(file, self.producers.aborted[first_abort:], self.producers.markers[first_marker:])
        self.last_file = file

    def window(self, file: File, frames: Frames, head: Heads) -> NDArray[np.int64]:
        """Order, gaps, epochs and producers of one window; its positions, first and last offsets, times and magics."""
        sound = head.sound
        base, last = head["base_offset"], head["last_offset"]
        wrapped = head["record_count"] < 0
        before = np.concatenate(([self.last_offset], last[:-1]))
        # A wrapper's first offset is known only from inside: take the one behind the frame before it.
        base = np.where(wrapped, np.minimum(base, before + 1), base)
        jumps = np.flatnonzero(sound & (base > before + 1) & (before >= 0))
        for index in jumps.tolist():
            # What is missing between segments is for `continuity` to judge; what is missing inside of one was taken out of it.
            if index or frames.base or before[index] + 1 >= (file.place.start_offset or 0):
                self.compacted = True
        thin = sound & ~wrapped & (head["record_count"] < last - head["base_offset"] + 1)
        self.compacted |= bool(thin.any()) or bool(head.has(Attributes.DELETE_HORIZON).any())
        coordinated = (file.place.topic or "").startswith("__")
        for oddity in self.producers.add(frames, head):
            if coordinated:
                continue  # a coordinator writes on behalf of producers, and no sequence is checked
            mark = Mark(
                oddity.message,
                int(frames.positions[oddity.index]),
                int(frames.sizes[oddity.index]),
                int(base[oddity.index]),
                oddity.expected,
                oddity.found,
                file.path,
            )
            self.sequence_marks.append((oddity.code, mark))
        self.leader_epochs(file, frames, head)
        if sound.any():
            self.last_offset = max(self.last_offset, int(last[sound].max()))
        return np.stack([frames.positions, base, last, head["max_timestamp"], head["magic"]])[:, sound]

    def leader_epochs(self, file: File, frames: Frames, head: Heads) -> None:
        """Compare every batch's epoch with the checkpoint's ranges."""
        epoch = head["leader_epoch"]
        if head.sound.any():
            self.epoch_runs.add(head.only(head.sound))
            self.bases.append((int(head["base_offset"][head.sound][0]), file.path))
        known = np.flatnonzero((epoch >= 0) & (head["magic"] == MAGIC_V2) & head.sound)
        if self.epochs is None or not known.size:
            return
        table = self.epochs
        base = head["base_offset"][known]
        if len(table):
            at = np.searchsorted(table[:, 1], base, side="right") - 1
            stated = np.where(at >= 0, table[np.maximum(at, 0), 0], NONE)
        else:
            stated = np.full(known.size, NONE)
        trimmed = (base < table[0, 1]) & (epoch[known] == table[0, 0]) if len(table) else np.zeros(known.size, np.bool_)
        for one in np.flatnonzero((stated != epoch[known]) & ~trimmed).tolist():
            index = int(known[one])
            found, said = int(epoch[index]), int(stated[one])
            mark = Mark(
                f"a batch at offset {int(base[one])} is of epoch {found}, the checkpoint says {said if said >= 0 else 'none'}",
                int(frames.positions[index]),
                int(frames.sizes[index]),
                int(base[one]),
                said,
                found,
                file.path,
            )
            self.epoch_rows.append((int(base[one]), found, mark))

    def fallen_epochs(self) -> None:
        """Epochs that the batches around them contradict, where the checkpoint is missing or says nothing of them."""
        named = {(base, epoch) for base, epoch, _ in self.epoch_rows}
        for one in self.epoch_runs.corrections(self.files):
            if (one.first, one.wrong) in named:
                continue
            path = next((path for base, path in reversed(self.bases) if base <= one.first), None)
            message = (
                f"a batch at offset {one.first} is of epoch {one.wrong}, the batches around it of epoch {one.right}"
            )
            self.mark("epochs", Mark(message, offset=one.first, expected=one.right, found=one.wrong, path=path))

    def offset_index(self, file: File, table: NDArray[np.int64]) -> None:
        """Every entry points at a batch, and names an offset of what was appended there."""
        beside = self.beside(file, "kafka.index")
        rows = index_entries(file, self.files)
        if beside is None or not len(rows):
            return
        position, base, last = table[0], table[1], table[2]
        at = np.searchsorted(position, rows[:, 1])
        hits = (
            (at < position.size) & (position[np.minimum(at, position.size - 1)] == rows[:, 1])
            if position.size
            else at < 0
        )
        # A set that was appended at once reaches up to the next entry's batch.
        until = np.concatenate((at[1:], [position.size]))
        for index in range(len(rows)):
            offset, target = int(rows[index, 0]), int(rows[index, 1])
            if not hits[index]:
                message = f"the entry for offset {offset} points at byte {target}, where no sound batch begins"
                self.mark("index", Mark(message, index * 8, 8, offset, found=target, path=beside.path))
                continue
            first, final = int(base[at[index]]), int(last[max(at[index], min(until[index], position.size) - 1)])
            if not first <= offset <= final:
                message = f"the entry at byte {target} names offset {offset}, what stands there has {first} to {final}"
                self.mark("index", Mark(message, index * 8, 8, offset, f"{first} to {final}", offset, beside.path))

    def time_index(self, file: File, table: NDArray[np.int64]) -> None:
        """Every entry names a time, and the batch that has it."""
        beside = self.beside(file, "kafka.timeindex")
        rows = time_entries(file, self.files)
        if beside is None or not len(rows):
            return
        base, last, times, magic = table[1], table[2], table[3], table[4]
        largest = np.maximum.accumulate(times) if times.size else times
        for index, (time, offset) in enumerate(rows.tolist()):
            at = int(np.searchsorted(last, offset))
            inside = at < last.size and base[at] <= offset
            if inside and magic[at] == 0:
                continue  # the broker took the time from the producer and stored none
            # Old brokers named the last offset of what they appended, not that of the record with the time.
            if inside and int(largest[at] if magic[at] != MAGIC_V2 else times[at]) == time:
                continue
            what = f"that batch has {int(times[at])}" if inside else "no batch holds it"
            if not inside and self.compacted:
                continue
            message = f"the entry says time {time} at offset {offset}, but {what}"
            self.mark("timeindex", Mark(message, index * 12, 12, offset, found=time, path=beside.path))

    def transaction_index(self, file: File, aborted: list[Aborted], markers: list[Marker]) -> None:
        """Every abort of the segment is listed, and nothing else."""
        beside = self.beside(file, "kafka.txnindex")
        listed = list(aborted_in(beside)) if beside is not None else []
        known = {(one.producer_id, one.last_offset): one for one in aborted}
        abort_markers = {(one.producer_id, one.offset) for one in markers if one.kind == 0}
        for position, entry in listed:
            key = (entry.producer_id, entry.last_offset)
            seen = known.pop(key, None)
            place = {
                "position": position,
                "size": 34,
                "offset": entry.last_offset,
                "path": beside.path if beside else None,
            }
            if seen is None and key not in abort_markers:
                message = f"producer {entry.producer_id} has no abort marker at offset {entry.last_offset}"
                self.mark("txnindex", Mark(message, **place))  # type: ignore[arg-type]
            elif seen is not None and seen.first_offset != entry.first_offset and not self.compacted:
                if entry.first_offset < (self.start_offset or 0):
                    continue
                message = f"the transaction begins at offset {seen.first_offset}"
                expected, found = seen.first_offset, entry.first_offset
                self.mark("txnindex", Mark(message, expected=expected, found=found, **place))  # type: ignore[arg-type]
        if beside is None and self.beside(file, "kafka.index") is None:
            return  # the log alone was asked for: what is beside it is not known
        for missing in known.values():
            message = (
                f"producer {missing.producer_id}'s transaction from offset {missing.first_offset} was aborted at "
                f"{missing.last_offset}, and is not listed"
            )
            path = beside.path if beside is not None else file.path
            self.mark("txnindex", Mark(message, offset=missing.last_offset, path=path))

    def snapshot(self, offset: int) -> None:
        """Hold the snapshot taken at an offset against the state that the log gives up to there."""
        file = self.snapshots.pop(offset, None)
        if file is None:
            return
        for position, row in snapshot_rows(file):
            state = self.producers.states.get(row["producer_id"])
            if state is None:
                continue
            behind = row["last_offset"] != NONE and row["last_offset"] < state.last_offset
            older = row["epoch"] < state.epoch
            if behind or older:
                message = (
                    f"producer {row['producer_id']} stands at epoch {row['epoch']}, offset {row['last_offset']}; "
                    f"the log says epoch {state.epoch}, offset {state.last_offset}"
                )
                self.mark("snapshot", Mark(message, position, 46, row["last_offset"], path=file.path))

    def beside(self, file: File, format: str) -> File | None:
        for one in self.files:
            if _is(one, format) and one.place.start_offset == file.place.start_offset:
                return one
        return None

    def end(self) -> None:
        """What only the whole log tells."""
        end = self.last_offset + 1
        for offset in sorted(one for one in self.snapshots if one is not None):
            if offset == end:
                self.snapshot(offset)
        for gap in continuity(self.files, self.extents).gaps:
            position = gap.file.size if gap.is_end else 0
            self.mark("gap", Mark(str(gap), position, offset=gap.first, path=gap.file.path))
        if not self.compacted:
            for code, mark in self.sequence_marks:
                self.mark(code, mark)
        for _, _, mark in self.epoch_rows:
            self.mark("epochs", mark)
        self.fallen_epochs()
        for number, first in sorted(self.producers.open_transactions().items()):
            last = self.last_file.path if self.last_file is not None else None
            message = f"producer {number}'s transaction from offset {first} has neither been committed nor aborted"
            self.mark("hanging-transaction", Mark(message, offset=first, path=last))


def _is(file: File, format: str) -> bool:
    return file.format == format and file.place.state is None and file.problem is None


def _log() -> Format:
    from rawlog.formats.kafka import LOG

    return LOG


def epochs_in(files: tuple[File, ...]) -> NDArray[np.int64] | None:
    """The rows of the leader epoch checkpoint; None where there is none, or it says nothing."""
    from rawlog.formats.kafka import EPOCH_FILE
    from rawlog.formats.kafka.texts import line

    for file in files:
        if _is(file, "kafka.epochs"):
            try:
                frames = next(iter(walk(file, EPOCH_FILE, errors="stop")))
            except RawlogError:
                return None
            rows = [[int(part) for part in line(frames, index).split()] for index in range(len(frames))]
            table = np.array(rows, np.int64).reshape(-1, 2)
            return table if len(table) else None
    return None


def aborted_in(file: File) -> Iterator[tuple[int, Aborted]]:
    """The entries of a transaction index, each with its position, up to the first that cannot be."""
    from rawlog.formats.kafka import TXN_INDEX_FILE
    from rawlog.formats.kafka.layouts import TXN_INDEX_ENTRY

    for frames in walk(file, TXN_INDEX_FILE, errors="stop"):
        raw = TXN_INDEX_ENTRY.take(frames.data, frames.starts)
        for index in range(len(frames)):
            fields = [
                int(raw[name][index]) for name in ("producer_id", "first_offset", "last_offset", "last_stable_offset")
            ]
            yield int(frames.positions[index]), Aborted(*fields)


def snapshot_rows(file: File) -> Iterator[tuple[int, dict[str, int]]]:
    """The entries of a producer snapshot, each with its position; none if it is not sound."""
    from rawlog.formats.kafka import SNAPSHOT
    from rawlog.formats.kafka.layouts import SNAPSHOT_ENTRY

    for frames in walk(file, SNAPSHOT, errors="stop"):
        raw = SNAPSHOT_ENTRY.take(frames.data, frames.starts)
        for index in range(len(frames)):
            yield int(frames.positions[index]), {name: int(raw[name][index]) for name in raw.dtype.names or ()}
