"""Log compaction of a partition, as Kafka's cleaner would do it (§6): which segments, in which groups, in how many rounds.

`cleaner` decides on each record. The source is never changed: what is left is written as a new partition directory.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path

from rawlog.core.errors import OptionError, unknown
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.report import Report
from rawlog.core.store import Store
from rawlog.formats.kafka.checkpoints import CLEANER, offsets_in
from rawlog.formats.kafka.heads import Heads
from rawlog.formats.kafka.kernels.indexing import MOST
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.formats.kafka.store.cleaner import Counts, KeyMap, Round
from rawlog.formats.kafka.store.derived import Derivation, Limits, txnindex, whole_number
from rawlog.formats.kafka.store.leader_epochs import Correction
from rawlog.formats.kafka.store.loaded import Loaded, Segment, load
from rawlog.formats.kafka.store.partition_writer import PartitionWriter, segment_name
from rawlog.formats.kafka.store.rewrite import (
    NewSegment,
    new_report,
    partitions,
    report_gaps,
    rewrite,
    topic_id_of,
    whole_batches,
)
from rawlog.formats.kafka.store.state import Aborted
from rawlog.io.output import Folder, scratch
from rawlog.io.storage import local_path

SMALLEST_MEMORY = 1 << 10
FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """A topic's settings and a cleaner's, under Kafka's names with underscores; the defaults are Kafka's.

    `now` is in ms (default: the clock). `memory` bounds the map of keys; `first_dirty` replaces the cleaner checkpoint's line.
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
    def from_options(cls, options: Mapping[str, str]) -> Settings:
        """What options say: `delete.retention.ms` and `delete_retention_ms` are the same. OptionError for an invalid value."""
        given = {name.replace(".", "_").replace("-", "_"): text for name, text in options.items()}
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise unknown("option of kafka", name, known)
        Limits.from_options({name: given[name] for name in given if name.startswith(("segment_", "index_"))})
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


class _Carried(Derivation):
    """What is next to a compacted log: it is that of the log before, which the one that is left no longer tells."""

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
        # Of a round between, whose end is not that of a segment, nobody asks for one.
        return self.loaded.snapshots.get(offset, b"")

    def epochs_file(self) -> bytes:
        return self.loaded.epochs


# The verb ------------------------------------------------------------------------------------------------------------


def stores(files: Sequence[File], options: Mapping[str, str]) -> list[Store]:
    """A store for each partition of the topics that `topic` names: a glob, or several with commas between."""
    globs = [one for one in options.get("topic", "*").split(",") if one]
    Settings.from_options(_own(options))
    return partitions([file for file in files if _is_compacted(file.place.topic, globs)], options)


def _is_compacted(topic: str | None, globs: Iterable[str]) -> bool:
    return topic != METADATA_TOPIC and any(glob == "*" or fnmatchcase(topic or "", glob) for glob in globs)


def _own(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name not in ("topic", "at_once")}


def compact(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a compacted copy of a partition. Options as in `Settings`; `at_once` partitions share the memory. DataError for damage."""
    settings = Settings.from_options(_own(options))
    shared = max(SMALLEST_MEMORY, settings.memory // int(options.get("at_once", "1")))
    settings = replace(settings, memory=shared)
    loaded = load(store)
    loaded.expire(settings.now, settings.producer_id_expiration_ms)
    names = ("rounds", "segments_before", "segments", "records_read", "records_kept", "records_without_key")
    report = new_report(**dict.fromkeys((*names, "batches_read", "batches_kept", "bytes_before", "bytes", "gaps"), 0))
    report.facts["end_offset"] = loaded.end_offset
    report.count("segments_before", len(loaded.segments))
    report.count("bytes_before", sum(one.size for one in loaded.segments))
    corrections = report_gaps(store, report)
    compaction = Compaction(loaded, settings, report, topic_id_of(store), corrections)
    with contextlib.ExitStack() as stack:
        # What a round between leaves is read by the next one, also in a dry run.
        rounds = Folder(stack.enter_context(scratch("compact-"))) if folder.dry_run else folder
        compaction.run(folder, rounds)
    return report


class Compaction:
    """A partition on its way through its rounds, and the policy of the one it is in: each group of segments becomes one, what is not
    compacted yet stays as it is.
    """

    limits: Limits | None = None

    def __init__(
        self,
        loaded: Loaded,
        settings: Settings,
        report: Report,
        metadata: bytes | None,
        corrections: Sequence[Correction] = (),
    ) -> None:
        self.loaded, self.settings, self.report, self.metadata = loaded, settings, report, metadata
        #: The leader epochs to set right.
        self.corrections = corrections
        self.interval = settings.index_interval_bytes
        self.derivation: Derivation | None = None
        self.source = list(loaded.segments)
        self.aborted = list(loaded.aborted)
        self.active = loaded.end_offset if settings.roll else self.source[-1].base
        self.round: Round | None = None
        #: Where the round ends, and whether others follow.
        self.end, self.stop, self.is_last = 0, 0, True

    def run(self, folder: Folder, rounds: Folder) -> None:
        """Write the result; what the rounds between leave goes below `rounds`, and is removed."""
        self.end = self._first_dirty()
        self.stop = self._first_uncleanable(self.end)
        if not self._dirty(self.end):
            self.report.notes.append("nothing to compact: no closed segment has anything new")
        made: list[str] = []
        while self._dirty(self.end):
            self.round = self._prepared(self.end)
            self.end = self.round.keys.latest + 1
            self.is_last = not self._dirty(self.end)
            if self.is_last:
                break
            made.append(f"round-{len(made)}")
            self._write(rounds.folder(made[-1]))
            self.source = [_measured(one) if one not in self.loaded.segments else one for one in self.source]
        self.is_last = True
        writer = self._write(folder)
        for name in made:
            rounds.remove(name)
        self.report.counts |= {"segments": writer.segments, "bytes": writer.bytes}
        self.report.facts |= {"first_dirty": self.end, "first_uncleanable": self.stop}
        if without := self.report.counts["records_without_key"]:
            self.report.notes.append(f"{without:,} records without a key dropped")

    def _write(self, folder: Folder) -> PartitionWriter:
        self.derivation = _Carried(self.loaded)
        writer = rewrite(folder, self, corrections=self.corrections)
        if self.round is not None:
            self._count(self.round.counts)
            self.round = None
        return writer

    def _count(self, counts: Counts) -> None:
        """Count a round: the next one reads again what this one left."""
        own = self.report.counts
        records, batches = own["records_read"] - own["records_kept"], own["batches_read"] - own["batches_kept"]
        own |= {"records_read": counts.records_read + records, "batches_read": counts.batches_read + batches}
        own |= {"records_kept": counts.records_kept, "batches_kept": counts.batches_kept}
        self.report.count("records_without_key", counts.without_key)
        self.report.count("rounds")

    # Which part of the log ---------------------------------------------------------------------------------------

    def _first_dirty(self) -> int:
        """Where the last compaction ended; the log's start if that is not known or invalid."""
        start, dirty = self.loaded.start_offset, self.settings.first_dirty
        place = self.source[0].file.place
        if dirty < 0 and place.topic is not None and place.partition is not None and place.group is not None:
            dirty = offsets_in(split(place.group)[0], CLEANER).get((place.topic, place.partition), start)
        return dirty if start <= dirty <= self.loaded.end_offset else start

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
        return max((one.base for one in self.source if one.base <= bound < self.active), default=self.active)

    def _closed(self, start: int, stop: int) -> list[Segment]:
        """The segments that hold offsets from `start` on and begin before `stop`."""
        floor = max((one.base for one in self.source if one.base <= start), default=start)
        return [one for one in self.source if floor <= one.base < stop] if start < stop else []

    def _dirty(self, first_dirty: int) -> list[Segment]:
        dirty = self._closed(first_dirty, self.stop)
        return dirty if sum(one.size for one in dirty) else []

    # A round -----------------------------------------------------------------------------------------------------

    def _prepared(self, first_dirty: int) -> Round:
        """A round with its map of keys."""
        dirty = self._dirty(first_dirty)
        round = Round(
            self.settings.now,
            self.settings.delete_retention_ms,
            first_dirty,
            self.stop,
            self.loaded.producers,
            self.aborted,
            self.loaded.producer_ids,
            KeyMap(self.settings.memory),
        )
        ends = [one.base for one in dirty[1:]] + [self.stop]
        round.build([(one.file, end) for one, end in zip(dirty, ends, strict=True)])
        return round

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Each group of segments below the end of the round as one; in the last round also all others."""
        rest = self.source
        if self.round is not None:
            rest = [one for one in self.source if one.base >= self.end]
            groups = _groups([one for one in self.source if one.base < self.end], self.settings, self.stop)
            before = [one for one in self.source if one.base < self.round.first_dirty]
            horizon = before[-1].modified_ms - self.settings.delete_retention_ms if before else 0
            made: list[Segment] = []
            aborted: list[Aborted] = []
            for group in groups:
                cleaned = self._cleaned(group, self.round, horizon, writer, made, aborted)
                yield NewSegment(group[0].base, cleaned, group[-1].file.modified)
            following = rest[0].base if rest else self.loaded.end_offset
            self.source = made + rest
            self.aborted = aborted + [one for one in self.aborted if one.last_offset >= following]
        if not self.is_last:
            return
        for number, segment in enumerate(rest):
            stop = rest[number + 1].base if number + 1 < len(rest) else self.loaded.end_offset + 1
            copied = self._copied(segment, stop, is_last=number + 1 == len(rest))
            yield NewSegment(segment.base, copied, segment.file.modified)
        if self.settings.roll and self.source[-1].base < self.loaded.end_offset:
            yield NewSegment(self.loaded.end_offset)

    def _cleaned(
        self,
        group: Sequence[Segment],
        round: Round,
        horizon: int,
        writer: PartitionWriter,
        made: list[Segment],
        aborted: list[Aborted],
    ) -> Iterator[tuple[Frames, Heads]]:
        """What is left of the segments that become one; the new segment and its aborted transactions are added to lists."""
        size, top = writer.bytes, -1
        for segment in group:
            for left in round.clean(segment.file, keeps_old_deletes=segment.modified_ms > horizon):
                if len(left.frames):
                    yield left.frames, left.head
                    top = max(top, int(left.head["max_timestamp"].max()))
        entries = round.tracker.take_kept()
        self._list_aborted(entries)
        aborted += entries
        file, base = group[-1].file, group[0].base
        path = str(writer.folder.path / segment_name(base, "log"))
        file = replace(file, path=path, size=writer.bytes - size, place=replace(file.place, start_offset=base))
        made.append(Segment(file, base, max_timestamp=top))

    def _copied(self, segment: Segment, stop: int, *, is_last: bool) -> Iterator[tuple[Frames, Heads]]:
        """A segment as it is, whose offsets end before `stop`."""
        yield from whole_batches(segment.file, self.report, is_last=is_last, is_tail_lost=False)
        self._list_aborted([one for one in self.aborted if segment.base <= one.last_offset < stop])

    def _list_aborted(self, entries: list[Aborted]) -> None:
        """Say what the transaction index of the open segment lists."""
        assert isinstance(self.derivation, _Carried)
        self.derivation.entries = entries


def _measured(segment: Segment) -> Segment:
    """The same, with the sizes of the indexes that are next to it now."""
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
