"""Recordings written again. Repair: every entry that is whole is kept, in a copy that verifies clean.

The format has no checksum, so nothing confirms what an entry holds: only invalid lengths and times are repaired.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rawlog.formats.replay import RECORDING
from rawlog.formats.replay.layouts import ENTRY_LAYOUTS, FILE_HEADER, LATEST_CREDIBLE, NO_TIME_SECONDS, VERSIONS, begin
from rawlog.formats.replay.recording import (
    LARGEST_SEARCH,
    are_zeros,
    credible_times,
    decode,
    ends_in_damage,
    file_header,
    find_likely,
    find_swallowed,
    heads,
    times,
)
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.io.walk import HEAD, WINDOW, walk
from rawlog.kernels import byte_view
from rawlog.model.errors import DataError
from rawlog.model.finding import Account, Few, Mark, Rule, Severity, rule
from rawlog.model.format import File, Keep, Origin, Want
from rawlog.model.frames import Frames
from rawlog.model.report import Action, Report
from rawlog.model.status import Status
from rawlog.model.store import Rewrite, Store
from rawlog.model.table import RECORDS
from rawlog.model.text import counted

# ----------------------------------------------------------------------------------------------------------------------
# Is anything missing in a recording? Where entries must have been: `rawlog verify --complete`.
# A recording has no offsets: an entry is known by its number only, and one that was cut out whole leaves no trace. What does leave one is
# bytes that are not an entry. An end inside of an entry is what a recorder leaves that was stopped: nothing confirms that entry.


@dataclass(slots=True)
class RecordingSummary:
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
            self._lose(self.reached, frames.base)
        if len(frames) and frames.kind:
            sound = np.flatnonzero(~are_zeros(frames))
            self.zeros = len(frames) - 1 - int(sound[-1]) if sound.size else self.zeros + len(frames)
        self.entries += len(frames)
        self.reached = frames.reached_in_file
        if frames.last and frames.status.is_damage:
            self._lose(self.reached, self.file.size)

    def _lose(self, start: int, stop: int) -> None:
        message = f"{stop - start:,} bytes are no entry; nothing says how many entries are missing"
        self.missing.append(Mark(message, start, stop - start, self.entries, path=self.file.path))

    def close(self) -> RecordingSummary:
        """The same, without the files around it."""
        self.group = ()
        return self

    def merge(self, following: RecordingSummary) -> RecordingSummary:
        """Take in the split that follows."""
        self.zeros = following.zeros + (self.zeros if following.zeros == following.entries else 0)
        self.entries += following.entries
        self.missing.join(following.missing)
        self.reached, self.stop = following.reached, following.stop
        return self


def _recordings(files: Sequence[File]) -> list[RecordingSummary]:
    return Store.of(files).share(_summaries)


def _summaries(store: Store) -> list[RecordingSummary]:
    summaries = (store.summaries.get(file.path) for file in store if file.problem is None)
    return [
        summary if isinstance(summary, RecordingSummary) else _read(file)
        for summary, file in zip(summaries, (file for file in store if file.problem is None), strict=True)
    ]


def _read(file: File) -> RecordingSummary:
    recording = RecordingSummary(file)
    for frames in walk(file, RECORDING, errors="skip"):
        recording.see(frames)
    return recording.close()


@rule("replay.complete.unexplained", Severity.ERROR)
def unexplained(files: Sequence[File]) -> Iterator[Mark]:
    """Entries of a recording are missing: it has bytes that are no entry. (With `--complete` only.)

    Record the topic again, or compare with it (`rawlog diff`). Half an entry at the end is what a recorder leaves that was stopped while it
    wrote, and does not count (`replay.recording.unfinished`). Entries that were cut out whole leave no trace, since the format has neither
    offsets nor a checksum.
    """
    for recording in _recordings(files):
        yield from recording.missing


NO_TIME = {
    0: b"0001-01-01T00:00:00.000000Z",
    **{kind: NO_TIME_SECONDS.to_bytes(8, "big", signed=True) for kind in VERSIONS},
}


class Recording(Store):
    """A recording, which is one file."""

    unit = "recording"

    def accounts(self) -> list[Account]:
        """The account of a recording. Every place where entries are missing counts as one."""
        result = []
        for recording in _recordings(self):
            if recording.reached is None:  # its header cannot be read, which is a finding
                continue
            lost = recording.missing.count
            present = recording.entries - recording.zeros
            result.append(
                Account(
                    system="replay",
                    path=recording.file.path,
                    unit="entry",
                    stop=present + lost,
                    present=present,
                    unexplained=lost,
                )
            )
        return result

    @classmethod
    def rules(cls) -> Sequence[Rule[Any]]:
        """The rules over a recording."""
        return (unexplained,)

    @Rewrite()
    def repair(self, folder: Folder, options: Mapping[str, str]) -> Report:
        """Write a repaired copy of a recording. DataError for a header of no known version, unless all that follows are entries of one."""
        [file] = self
        report = Report(facts={"files": [self.name]}, counts={"entries_kept": 0})
        with folder.create(self.name.rpartition("/")[2]) as out:
            out.writelines(_repair_entries(file, report))
        return report

    @Rewrite(keeps=True, renumbers=True)
    def erase(self, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
        """Write a copy of a recording without the entries that `keep` says no to. DataError for damage, which `repair` handles."""
        [file] = self
        report = Report(facts={"files": [self.name]}, counts={"records": 0, "removed": 0})
        with folder.create(self.name.rpartition("/")[2]) as out:
            out.writelines(_without(file, keep, report))
        if report.counts["removed"]:
            report.add(Action.REMOVED, counted(report.counts["removed"], "entry", "entries"), file.path)
        return report

    @classmethod
    def join(cls, verb: str, stores: Sequence[Store], reports: Sequence[Report], folder: Folder) -> Report:
        """The report on all recordings."""
        if verb != "repair":
            return super().join(verb, stores, reports, folder)
        combined = Report(facts={"files": [store.name for store in stores]})
        for store, report in zip(stores, reports, strict=True):
            combined.parts[store.name] = report
            combined.count("entries_kept", report.counts["entries_kept"])
        return combined


def _without(file: File, keep: Keep | None, report: Report) -> Iterator[bytes]:
    """The bytes of a recording without some entries; what follows the last whole one is left out."""
    with Source(file.path) as opened:
        origin = begin(opened.read(0, HEAD), opened.size)
        if origin.kind:
            yield file_header(origin.kind)
        for frames in walk(file, RECORDING, origin=origin, errors="raise", source=opened):
            stays = np.ones(len(frames), np.bool_)
            if keep is not None and len(frames):
                want = Want(RECORDS.subset(keep.columns), file, keep.limit)
                stays = np.concatenate([keep.test(batch) for batch in decode(frames, want)])
            report.count("records", int(stays.sum()))
            report.count("removed", int((~stays).sum()))
            for start, stop in zip(frames.starts[stays].tolist(), frames.stops[stays].tolist(), strict=True):
                yield frames.data[start:stop].tobytes()
            if frames.last and frames.reached_in_file < opened.size:
                place = {"start": frames.reached_in_file, "stop": opened.size}
                report.add(Action.DROPPED, "an unfinished entry", file.path, is_expected=True, **place)


def _repair_entries(file: File, report: Report) -> Iterator[bytes]:
    """The bytes of a repaired recording, in pieces; what is dropped and changed goes into the report."""

    def drop(start: int, stop: int, reason: str, is_expected: bool = False) -> None:
        report.add(Action.DROPPED, reason, file.path, start=start, stop=stop, is_expected=is_expected)

    with Source(file.path) as opened:
        origin = _origin(file, opened, report)
        if origin.kind:
            yield file_header(origin.kind)
        reached, zeros, zeros_from = origin.position, 0, origin.position
        for frames in _pieces(walk(file, RECORDING, origin=origin, errors="skip", source=opened), opened):
            if frames.base > reached:
                drop(reached, frames.base, "damaged bytes")
            reached = frames.reached_in_file
            data = _with_sound_times(frames, file, report)
            sound = _until_zeros(frames)
            end = int(frames.stops[sound - 1]) if sound else 0
            if sound:
                report.count("entries_kept", zeros // ENTRY_LAYOUTS[frames.kind].size + sound)
                yield from _zeros(zeros)
                yield data[:end]
                zeros, zeros_from = 0, frames.base + end
            zeros += frames.reached - end
            if frames.last and reached < opened.size:
                is_unfinished = frames.status is Status.TRUNCATED
                drop(reached, opened.size, "an unfinished entry" if is_unfinished else "damaged bytes", is_unfinished)
        if zeros:
            drop(zeros_from, zeros_from + zeros, "zero bytes that were never recorded", is_expected=True)


def _pieces(windows: Iterable[Frames], source: Source) -> Iterator[Frames]:
    """The windows of a walk, and between them the few entries that are alone among damaged bytes."""
    reached: int | None = None
    seconds: list[int] = []
    for frames in _apart(windows):
        times = credible_times(frames)
        if reached is not None and frames.base > reached:
            yield from _islands(source, reached, frames.base, frames.kind, [*seconds, *times[:1]])
        reached, seconds = frames.reached_in_file, times[-1:] or seconds
        ends = frames.last and frames.status.is_damage
        tail = list(_islands(source, reached, source.size, frames.kind, seconds)) if ends else []
        yield replace(frames, last=frames.last and not tail)
        yield from tail[:-1]
        if tail:
            yield replace(tail[-1], last=True, status=frames.status)


def _islands(source: Source, start: int, stop: int, kind: int, near: Sequence[int]) -> Iterator[Frames]:
    """Entries among damaged bytes that are too few in a row for `resync`."""
    if LARGEST_SEARCH >= stop - start > ENTRY_LAYOUTS[kind].size:
        data = byte_view(source.read(start, stop - start))
        position = 0
        while (entries := next(find_likely(data[position:], data.size, kind, near), None)) is not None:
            entries = replace(entries, base=position + entries.base)
            inside = find_swallowed(entries)
            if inside is not None:
                entries = replace(entries.slice(0, len(entries) - 1), reached=int(entries.starts[-1]))
            if len(entries):
                yield replace(entries, base=start + entries.base)
            position = entries.reached_in_file if inside is None else inside.base


def _apart(windows: Iterable[Frames]) -> Iterator[Frames]:
    """The windows of a walk. Where the last entry before damage covers the beginning of sound entries, because its length is wrong or
    bytes of it are missing, it is left out, and those entries are kept.
    """
    held: Frames | None = None
    for frames in windows:
        if held is not None:  # up to where the walk goes on
            yield held.slice(0, int(np.searchsorted(held.stops, frames.base - held.base, side="right")))
            held = None
        covered = find_swallowed(frames) if ends_in_damage(frames) else None
        if covered is None:
            yield frames
            continue
        before = frames.slice(0, len(frames) - 1)
        start = int(frames.starts[-1])
        yield replace(before, reached=start, status=Status.OK, last=False)
        held = covered
    if held is not None:
        yield held


def _zeros(count: int) -> Iterator[bytes]:
    """`count` zero bytes, a window at a time."""
    while count:
        yield bytes(min(count, WINDOW))
        count -= min(count, WINDOW)


def _origin(file: File, source: Source, report: Report) -> Origin:
    """Where the entries begin; what a damaged header does not say, the entries do."""
    head = source.read(0, HEAD)
    try:
        origin = begin(head, source.size)
    except DataError as error:
        origin = _guess_origin(file, source, head, error)
        report.add(Action.CHANGED, "damaged file header rewritten", file.path, start=0, stop=origin.position)
        return origin
    if origin.kind and any(head[FILE_HEADER.at("reserved") : FILE_HEADER.size]):
        place = {"start": FILE_HEADER.at("reserved"), "stop": FILE_HEADER.size}
        report.add(Action.CHANGED, "reserved bytes set to zero", file.path, **place)
    return origin


def _guess_origin(file: File, source: Source, head: bytes, error: DataError) -> Origin:
    version = int.from_bytes(head[: FILE_HEADER.after("version")], "big", signed=True)
    if source.size < FILE_HEADER.size:
        return Origin(source.size, version if version in VERSIONS else max(VERSIONS))
    for kind in VERSIONS:
        origin = Origin(FILE_HEADER.size, kind)
        *_, last = walk(file, RECORDING, origin=origin, errors="stop", source=source)
        if last.status is Status.OK and last.reached_in_file == source.size:
            return origin
    raise error.at(path=file.path, format=RECORDING.name) from None


def _until_zeros(frames: Frames) -> int:
    """The number of entries up to the last that is more than zeros, which no recorder writes."""
    filled = np.flatnonzero(~are_zeros(frames))
    return int(filled[-1]) + 1 if filled.size else 0


def _with_sound_times(frames: Frames, file: File, report: Report) -> bytes:
    """The bytes of the entries. An invalid time becomes that of a record without one, milliseconds become seconds."""
    data = frames.data[: frames.reached]
    _, valid = times(frames)
    stored = None
    if frames.kind:
        stored = heads(frames)["timestamp"].astype(np.int64)
        valid &= stored <= LATEST_CREDIBLE
    if valid.all():
        return data.tobytes()
    changed = bytearray(data.tobytes())
    field = ENTRY_LAYOUTS[frames.kind].fields[0]
    for index in np.flatnonzero(~valid).tolist():
        start, position, number = int(frames.starts[index]), int(frames.positions[index]), frames.first + index
        place = {"start": position, "stop": position + field.size, "first_offset": number, "stop_offset": number + 1}
        seconds = -1 if stored is None else int(stored[index]) // 1000
        if 0 <= seconds <= LATEST_CREDIBLE:
            reason, new = "a time in milliseconds converted to seconds", seconds.to_bytes(field.size, "big")
        else:
            reason, new = "an invalid time; the entry is kept without one", NO_TIME[frames.kind]
        report.add(Action.CHANGED, reason, file.path, **place)
        changed[start : start + field.size] = new
    return bytes(changed)
