"""Log compaction of a partition, as Kafka's cleaner would do it (§6): which segments, in which groups, in how many rounds.

The fate of a record is `cleaner`'s to decide. The source is never touched: what is left is written as a new partition directory.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path

from rawlog.core.errors import OptionError, unknown
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.report import Account
from rawlog.core.text import counted
from rawlog.formats.kafka.checkpoints import CLEANER, offsets_in
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.kernels.indexing import MOST
from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.store.cleaner import Counts, KeyMap, Round
from rawlog.formats.kafka.store.derived import Derivation, Limits, txnindex, whole_number
from rawlog.formats.kafka.store.loaded import Loaded, Segment, load
from rawlog.formats.kafka.store.partition_writer import PartitionWriter, segment_name, staged
from rawlog.formats.kafka.store.rebuild import copy_batches, gap_notes, keep_beside
from rawlog.formats.kafka.store.state import Aborted
from rawlog.io.storage import local_path

SMALLEST_MEMORY = 1 << 10
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """A topic's settings and a cleaner's, under Kafka's names with underscores; the defaults are Kafka's.

    `now` is in ms (default: the clock). `memory` bounds the map of keys; `first_dirty` stands for the cleaner checkpoint's line.
    `roll` takes the active segment for one that is full, so that it is compacted too.
    """

    delete_retention_ms: int = 86_400_000
    min_compaction_lag_ms: int = 0
    segment_bytes: int = 1 << 30
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    producer_id_expiration_ms: int = 86_400_000
    memory: int = 128 << 20
    now: int = -1
    first_dirty: int = -1
    roll: bool = False

    @classmethod
    def told(cls, options: Mapping[str, str]) -> Settings:
        """What options say: `delete.retention.ms` and `delete_retention_ms` are the same. OptionError for what cannot be."""
        given = {name.replace(".", "_").replace("-", "_"): text for name, text in options.items()}
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown("option of kafka", name, known)
        Limits.told({name: given[name] for name in given if name.startswith(("segment_", "index_"))})
        least = {"memory": SMALLEST_MEMORY}
        numbers = {name: whole_number(given, name, least.get(name, 0)) for name in given if name not in ("now", "roll")}
        if given.get("roll", "false").lower() not in FLAGS:
            raise OptionError(f"roll {given['roll']!r}: true or false expected")
        return replace(cls(), **numbers, now=moment(given.get("now")), roll=FLAGS[given.get("roll", "false").lower()])


def moment(text: str | None) -> int:
    """A time in ms: a number, or ISO 8601; the clock if there is none. OptionError for anything else."""
    if text is None:
        return int(time.time() * 1000)
    if text.isdigit():
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"now {text!r}: milliseconds or ISO 8601 expected") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


@dataclass(slots=True)
class Report(Account):
    """What came of a compaction. `first_dirty` is what the cleaner checkpoint says from now on."""

    target: str = ""
    rounds: int = 0
    first_dirty: int = 0
    first_uncleanable: int = 0
    end_offset: int = 0
    segments_before: int = 0
    segments: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    batches_read: int = 0
    batches_kept: int = 0
    bytes_before: int = 0
    bytes: int = 0
    #: Places where offsets were missing before.
    gaps: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether the log had no gaps: what is in them was not compacted but lost."""
        return not self.gaps

    def lines(self) -> list[str]:
        """The notes, then the counts."""
        records = f"{self.records_kept:,} of {self.records_read:,} records kept"
        batches = f"{self.batches_kept:,} of {self.batches_read:,} batches"
        segments = f"{self.segments:,} of {self.segments_before:,} segments"
        size = f"{self.bytes:,} of {self.bytes_before:,} bytes"
        clean = f"clean up to offset {self.first_dirty:,} after {counted(self.rounds, 'round')}"
        return [*self.notes, f"{records}, {batches}, {segments}, {size}; {clean}"]

    def add(self, counts: Counts) -> None:
        """Count a round: the next one reads again what this one left."""
        records, batches = self.records_read - self.records_kept, self.batches_read - self.batches_kept
        self.records_read, self.batches_read = counts.records_read + records, counts.batches_read + batches
        self.records_kept, self.batches_kept = counts.records_kept, counts.batches_kept
        self.records_without_key += counts.without_key
        self.rounds += 1


class _Carried(Derivation):
    """What stands beside a compacted log: it is that of the log before, which the one that is left no longer tells."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        self.loaded = loaded
        self.entries: list[Aborted] = []

    def add(self, frames: Frames, head: Heads) -> None:
        pass

    def end_segment(self) -> bytes:
        entries, self.entries = self.entries, []
        return txnindex(entries)

    def snapshot(self, offset: int) -> bytes:
        return self.loaded.snapshots.get(
            offset, b""
        )  # of a round between, whose end is no segment's, nobody asks for one

    def epochs_file(self) -> bytes:
        return self.loaded.epochs


def compact_partition(
    files: Sequence[File],
    target: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
) -> Report:
    """Write a compacted copy of a partition's directory to `target`. Options as in `Settings`; DataError for damage."""
    settings = Settings.told(options or {})
    path = Path(local_path(os.fspath(target))).absolute()
    loaded = load(files)
    loaded.expire(settings.now, settings.producer_id_expiration_ms)
    report = Report(str(path), end_offset=loaded.end_offset, segments_before=len(loaded.segments))
    report.bytes_before = sum(one.size for one in loaded.segments)
    report.notes += gap_notes(files)
    report.gaps = len(report.notes)
    with staged(path.parent, overwrite=overwrite) as stage:
        folder = stage / path.name
        folder.mkdir()
        _Compaction(loaded, settings, report, stage).run(folder)
        keep_beside(files, folder)
        _remove_scratch(stage, path.name)
    return report


def _remove_scratch(stage: Path, name: str) -> None:
    """Leave only the partition in the stage."""
    import shutil

    for one in stage.iterdir():
        if one.name != name:
            shutil.rmtree(one)


class _Compaction:
    """A partition on its way through its rounds."""

    def __init__(self, loaded: Loaded, settings: Settings, report: Report, scratch: Path) -> None:
        self.loaded, self.settings, self.report, self.scratch = loaded, settings, report, scratch
        self.segments = list(loaded.segments)
        self.aborted = list(loaded.aborted)
        self.active = loaded.end_offset if settings.roll else self.segments[-1].base

    def run(self, folder: Path) -> None:
        first_dirty = self._first_dirty()
        stop = self._first_uncleanable(first_dirty)
        if not self._dirty(first_dirty, stop):
            self.report.notes.append("nothing to compact: no closed segment has anything new")
        writer: PartitionWriter | None = None
        try:
            while self._dirty(first_dirty, stop):
                round = self._prepared(first_dirty, stop)
                first_dirty = round.keys.latest + 1
                last = not self._dirty(first_dirty, stop)
                writer = self._writer(folder if last else self._round_folder())
                self._clean(round, first_dirty, stop, writer)
                self.report.add(round.counts)
                if not last:
                    writer.close()
                    writer = None
                    self.segments = [
                        _measured(one) if one not in self.loaded.segments else one for one in self.segments
                    ]
            self._finish(writer or self._writer(folder), folder)
        finally:
            if writer is not None:
                writer.abandon()
        self.report.first_dirty, self.report.first_uncleanable = first_dirty, stop
        if self.report.records_without_key:
            self.report.notes.append(f"{self.report.records_without_key:,} records without a key dropped")

    def _round_folder(self) -> Path:
        folder = self.scratch / f"round-{self.report.rounds}"
        folder.mkdir()
        return folder

    def _writer(self, folder: Path) -> PartitionWriter:
        return PartitionWriter(
            folder, None, interval=self.settings.index_interval_bytes, derivation=_Carried(self.loaded)
        )

    # Which part of the log ---------------------------------------------------------------------------------------

    def _first_dirty(self) -> int:
        """Where the last compaction ended; the log's start if that is not known or cannot be."""
        start, told = self.loaded.start_offset, self.settings.first_dirty
        place = self.segments[0].file.place
        if told < 0 and place.topic is not None and place.partition is not None and place.group is not None:
            told = offsets_in(split(place.group)[0], CLEANER).get((place.topic, place.partition), start)
        return told if start <= told <= self.loaded.end_offset else start

    def _first_uncleanable(self, first_dirty: int) -> int:
        """The base of the first segment that must stay: the active one, one with undecided transactions, one that is too new."""
        bound = min(self.loaded.last_stable_offset, self.active)
        lag = self.settings.min_compaction_lag_ms
        if lag > 0:
            young = [
                one.base
                for one in self._closed(first_dirty, self.active)
                if one.largest_timestamp > self.settings.now - lag
            ]
            bound = min([bound, *young])
        return max((one.base for one in self.segments if one.base <= bound < self.active), default=self.active)

    def _closed(self, start: int, stop: int) -> list[Segment]:
        """The segments that hold offsets from `start` on and begin before `stop`."""
        floor = max((one.base for one in self.segments if one.base <= start), default=start)
        return [one for one in self.segments if floor <= one.base < stop] if start < stop else []

    def _dirty(self, first_dirty: int, stop: int) -> list[Segment]:
        dirty = self._closed(first_dirty, stop)
        return dirty if sum(one.size for one in dirty) else []

    # A round -----------------------------------------------------------------------------------------------------

    def _prepared(self, first_dirty: int, stop: int) -> Round:
        """A round with its map of keys."""
        dirty = self._dirty(first_dirty, stop)
        round = Round(
            self.settings.now,
            self.settings.delete_retention_ms,
            first_dirty,
            stop,
            self.loaded.producers,
            self.aborted,
            self.loaded.producer_ids,
            KeyMap(self.settings.memory),
        )
        ends = [one.base for one in dirty[1:]] + [stop]
        round.build([(one.file, end) for one, end in zip(dirty, ends, strict=True)])
        return round

    def _clean(self, round: Round, end: int, stop: int, writer: PartitionWriter) -> None:
        """Write every group of segments below `end` as one."""
        carried = writer.derivation
        assert isinstance(carried, _Carried)
        before = [one for one in self.segments if one.base < round.first_dirty]
        horizon = before[-1].modified_ms - self.settings.delete_retention_ms if before else 0
        groups = _groups([one for one in self.segments if one.base < end], self.settings, stop)
        made: list[Segment] = []
        aborted: list[Aborted] = []
        for group in groups:
            writer.begin(group[0].base)
            size, top = writer.bytes, -1
            for segment in group:
                for left in round.clean(segment.file, keeps_old_deletes=segment.modified_ms > horizon):
                    if len(left.frames):
                        writer.append(left.frames, left.head)
                        top = max(top, int(left.head["max_timestamp"].max()))
            carried.entries = round.tracker.take_kept()
            aborted += carried.entries
            file = group[-1].file
            path = f"{writer.folder}/{segment_name(group[0].base, 'log')}"
            place = replace(file.place, start_offset=group[0].base)
            file = replace(file, path=path, size=writer.bytes - size, place=place)
            made.append(Segment(file, group[0].base, max_timestamp=top))
        rest = [one for one in self.segments if one.base >= end]
        next_base = rest[0].base if rest else self.loaded.end_offset
        self.segments = made + rest
        self.aborted = aborted + [one for one in self.aborted if one.last_offset >= next_base]

    def _finish(self, writer: PartitionWriter, folder: Path) -> None:
        """Everything that was not compacted, as it is; then what only the end tells."""
        carried = writer.derivation
        assert isinstance(carried, _Carried)
        own = f"{folder}/"
        for number, segment in enumerate(self.segments):
            if segment.file.path.startswith(own):
                continue
            is_last = number == len(self.segments) - 1
            writer.begin(segment.base)
            noted = copy_batches(writer, segment.file, is_last=is_last)
            self.report.notes += noted.notes
            stop = self.loaded.end_offset + 1 if is_last else self.segments[number + 1].base
            carried.entries = [one for one in self.aborted if segment.base <= one.last_offset < stop]
        if self.settings.roll and self.segments[-1].base < self.loaded.end_offset:
            writer.begin(self.loaded.end_offset)
        writer.close()
        for segment in self.segments:
            if segment.file.modified is not None:
                copy = folder / segment_name(segment.base, "log")
                os.utime(copy, (segment.file.modified, segment.file.modified))
        self.report.segments, self.report.bytes = writer.segments, writer.bytes


def _measured(segment: Segment) -> Segment:
    """The same, with the sizes of the indexes that are beside it now."""
    path = Path(local_path(segment.file.path))
    sizes = [path.with_suffix(suffix) for suffix in (".index", ".timeindex")]
    index, times = (one.stat().st_size if one.exists() else 0 for one in sizes)
    return replace(segment, index_bytes=index, timeindex_bytes=times)


def _groups(segments: Sequence[Segment], settings: Settings, first_uncleanable: int) -> list[list[Segment]]:
    """Segments that become one: as many as fit, left to right."""
    groups: list[list[Segment]] = []
    sizes = [0, 0, 0]
    for number, one in enumerate(segments):
        own = [one.size, one.index_bytes, one.timeindex_bytes]
        last = (segments[number + 1].base if number + 1 < len(segments) else first_uncleanable) - 1
        fits = (
            groups
            and sizes[0] + own[0] <= settings.segment_bytes
            and sizes[1] + own[1] <= settings.segment_index_bytes
            and sizes[2] + own[2] <= settings.segment_index_bytes
            and (one.size == 0 or last - groups[-1][0].base <= MOST)
        )
        if fits:
            groups[-1].append(one)
            sizes = [before + more for before, more in zip(sizes, own, strict=True)]
        else:
            groups.append([one])
            sizes = own
    return groups
