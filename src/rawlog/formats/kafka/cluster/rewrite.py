"""Metadata directories written again. Repair, rebuild and compact decide what goes into the new directory; one writer writes it.

A metadata log must have no gap. Of its parts without one only the last can be kept as a log, and only if it begins at offset 0 or a
snapshot leads into it; repair puts what the others hold into a new snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby, pairwise

from rawlog.formats.kafka.cluster.metadata_batches import Batch, LogBatches, batches_in
from rawlog.formats.kafka.cluster.metadata_log import (
    LARGEST_TEXT,
    MetadataStore,
    is_misnamed,
    last_time,
    stores,
)
from rawlog.formats.kafka.cluster.state import IMAGED, State
from rawlog.formats.kafka.cluster.writer import checkpoint_name, write_checkpoint
from rawlog.formats.kafka.internal.messages import decode_record, framed_types
from rawlog.formats.kafka.log.layouts import BATCH, ControlType
from rawlog.formats.kafka.partition.rewrite import keep_surroundings
from rawlog.formats.kafka.partition.rewrite import rebuild as rebuild_partition
from rawlog.formats.kafka.partition.segment_outline import PADDING, UNFINISHED, bytes_of, find_sound, is_misread
from rawlog.formats.kafka.paths import (
    CHECKPOINT_FORMAT,
    LOG_FORMAT,
    METADATA_TOPIC,
    QUORUM_FORMAT,
    is_bootstrap,
    segment_name,
    snapshot_id,
    split,
)
from rawlog.formats.kafka.texts import parse_quorum
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    DataError,
    OptionError,
)
from rawlog.model.format import File
from rawlog.model.outline import Patch, Piece, Reading
from rawlog.model.report import Action, Report
from rawlog.model.store import Store, stores_below

SALVAGE, BROKER, STRICT = POLICIES = ("salvage", "broker", "strict")
SHOWN = 20


# The verbs -----------------------------------------------------------------------------------------------------------------


def directories(files: Sequence[File], options: Mapping[str, str]) -> list[Store]:
    """One store for each metadata directory. AccessError if there is none."""
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None and not is_bootstrap(file.path):
            groups.setdefault(file.place.group, []).append(file)
    metadata = {folder: group_files for folder, group_files in groups.items() if any(map(_is_metadata, group_files))}
    if not metadata:
        raise AccessError("no metadata directory is here")
    return stores_below(metadata)


def _is_metadata(file: File) -> bool:
    return file.place.topic == METADATA_TOPIC or file.format in (LOG_FORMAT, CHECKPOINT_FORMAT)


def compacted_directories(files: Sequence[File], options: Mapping[str, str]) -> list[Store]:
    """The same; none if `topic` asks for other topics only."""
    globs = [glob for glob in options.get("topic", "*").split(",") if glob]
    return directories(files, options) if any(fnmatchcase(METADATA_TOPIC, glob) for glob in globs) else []


def repair(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a repaired copy of a metadata directory. OptionError for an unknown policy.

    `broker` keeps the log up to its first damage. `salvage` keeps every sound batch at its offset. Where offsets are missing, a controller
    can start from what follows the last gap only: if no snapshot leads into that, one is made of all that can be read, including sound
    batches of snapshots that are not whole. CorruptError under `strict` if anything would be dropped or changed. Index files are left
    out: every start of a controller rebuilds them.
    """
    policy = options.get("policy", SALVAGE)
    if policy not in POLICIES:
        raise OptionError(f"policy {policy!r}: {', '.join(POLICIES)} expected")
    metadata = _readable(store)
    plan = _Repair(metadata.settled, policy).plan()
    _set_aside(metadata, plan.report)
    votes = [file for file in store if file.format == QUORUM_FORMAT]
    plan.copies = [file for file in votes if _is_vote(file, plan.report)]
    if policy == STRICT:
        for entry in plan.report.entries:
            if entry.is_alteration:
                raise CorruptError(f"{entry.line()}; the policy is strict", path=metadata.folder)
    return plan.write(folder)


def rebuild(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """A metadata directory with the derived files of its log rebuilt; snapshots and the vote, which no log holds, as they are.

    DataError for damage in the log, for a snapshot that is not whole, and for offsets that are missing: `repair` handles them.
    """
    metadata = _readable(store)
    for path, reason in metadata.foreign.items():
        raise CorruptError(f"of another metadata log: {reason}; `rawlog repair` handles damage", path=path)
    for first, stop in metadata.missing:
        message = f"offsets {first} to {stop - 1} are missing; `rawlog repair` handles damage"
        raise CorruptError(message, path=metadata.folder)
    snapshots = [file for file in store if file.format == CHECKPOINT_FORMAT and file.place.state is None]
    for file in snapshots:
        if not metadata.is_whole(file):
            raise CorruptError("the snapshot is not whole; `rawlog repair` handles damage", path=file.path)
    report = rebuild_partition(Store((file for file in store if file.system == "kafka"), store.name), folder, options)
    votes = [file for file in store if file.format == QUORUM_FORMAT]
    return DirectoryPlan(report, copies=[*snapshots, *votes]).write(folder)


def compact(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """A copy of a metadata directory, byte for byte: a log cleaner leaves it alone, and a broker does not start without it."""
    report = Report(counts={"files": len(store), "bytes": store.size})
    metadata = _readable(store)
    _report_missing(metadata.settled, report)
    _set_aside(metadata, report)
    return DirectoryPlan(report, copies=[file for file in store if file.path not in metadata.foreign]).write(folder)


def join(stores: Sequence[Store], reports: Sequence[Report], folder: Folder) -> Report:
    """The report on all metadata directories; next to each is written what its log directory says of itself."""
    joined = Report(parts={store.name: report for store, report in zip(stores, reports, strict=True)})
    for store in stores:
        above = store.name.rpartition("/")[0]
        keep_surroundings(split(store[0].place.group or "")[0], folder.folder(above) if above else folder, joined)
    return joined


def _readable(store: Store) -> MetadataStore:
    """The log and the snapshots of a directory; neither, if both are gone and only other files say where they were."""
    readable = Store((file for file in store if not is_bootstrap(file.path)), store.name)
    directories = stores(readable.with_summaries(store.summaries))
    evidence = [file for file in store if file.place.topic == METADATA_TOPIC and file.problem is None]
    return directories[0] if directories else MetadataStore(evidence, str(store[0].place.group))


def _set_aside(metadata: MetadataStore, report: Report) -> None:
    """Report the segments of another log, which are left out."""
    for file in metadata.segments:
        if file.path in metadata.foreign:
            _drop(report, file, 0, file.size, f"of another metadata log: {metadata.foreign[file.path]}")


def _report_missing(metadata: MetadataStore, report: Report) -> None:
    """Report the offsets that the directory should have and has not, unless they are reported already."""
    reported = {(entry.first_offset, entry.stop_offset) for entry in report.with_action(Action.LOST)}
    for first, stop in metadata.missing:
        if (first, stop) not in reported:
            report.add(Action.LOST, "not in the log", metadata.folder, first_offset=first, stop_offset=stop)


# Reading ---------------------------------------------------------------------------------------------------------------------


def reading(store: Store) -> Reading:
    """The rows of a metadata log for verbs that read everything: every sound batch at its offset, also where repair takes it into a new
    snapshot.
    """
    metadata, report = _readable(store), Report()
    log = metadata.settled
    _set_aside(metadata, report)
    if log.is_as_written:
        _report_missing(log, report)
        pieces = tuple(Piece(segment.path, 0, segment.size) for segment in log.segments) if metadata.foreign else None
        return Reading(pieces, entries=tuple(report.entries))
    policy = _Repair(log, SALVAGE)
    snapshots, log_batches = policy.place()
    policy.report_batches(log_batches, log_batches.batches, is_folded=False)
    policy.report_losses(log_batches.batches, [snapshot for snapshot in snapshots if snapshot.is_whole], 0)
    policy.segments(log_batches.batches, is_all=True)  # reports those with wrong names
    kept: list[Piece] = []
    patches: dict[str, list[Patch]] = {}
    for batch in log_batches.batches:
        path = batch.file.path
        if kept and kept[-1].path == path and kept[-1].stop == batch.start:
            kept[-1] = Piece(path, kept[-1].start, batch.stop)
        else:
            kept.append(Piece(path, batch.start, batch.stop))
        if batch.is_changed:
            patches.setdefault(path, []).extend(
                (batch.start + BATCH.at(name), data) for name, data in batch.uncovered_fields()
            )
    entries = (*report.entries, *policy.report.entries)
    return Reading(tuple(kept), {path: tuple(sorted(file_patches)) for path, file_patches in patches.items()}, entries)


# The writer ----------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class DirectoryPlan:
    """What a new metadata directory holds: batches as segments, snapshots, one made from a state, files as they are."""

    report: Report
    #: Segments by the offset in their names.
    segments: Mapping[int, Sequence[Batch]] = field(default_factory=dict)
    snapshots: Sequence[Snapshot] = ()
    state: State | None = None
    copies: list[File] = field(default_factory=list)
    #: An empty log, as a controller begins one.
    is_new: bool = False

    def write(self, folder: Folder) -> Report:
        """Write it; the report."""
        for snapshot in self.snapshots:
            _write_batches(snapshot.batches, folder, snapshot.right_name)
        for offset, batches in self.segments.items():
            self.report.count("bytes_kept", _write_batches(batches, folder, segment_name(offset)))
        if self.state is not None:
            write_checkpoint(folder, self.state)
            lost = self.state.uncarried_tags(IMAGED)
            if lost is not None:
                self.report.add(Action.LOST, lost)
        if self.is_new:
            folder.write(segment_name(0), b"")
        for file in self.copies:
            folder.copy(file.path, split(file.path)[1])
        return self.report


def _write_batches(batches: Sequence[Batch], folder: Folder, name: str) -> int:
    """Write batches with the offsets and epochs that they get, as a file; how many bytes."""
    size = 0
    with ExitStack() as stack, folder.create(name) as out:
        sources: dict[str, Source] = {}
        for batch in batches:
            if batch.file.path not in sources:
                sources[batch.file.path] = stack.enter_context(Source(batch.file.path))
            data = bytearray(sources[batch.file.path].read(batch.start, batch.stop - batch.start))
            for field_name, value in batch.uncovered_fields():
                data[BATCH.at(field_name) : BATCH.after(field_name)] = value
            out.write(data)
            size += len(data)
    return size


# Repair: what to keep -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Snapshot:
    """A snapshot: its sound batches, copies left out and offsets and epochs corrected, and whether it has all of them."""

    file: File
    offset: int
    epoch: int
    batches: list[Batch]
    is_whole: bool
    #: Of the last record of the log that went into it, milliseconds.
    time: int | None = None
    copies: list[Batch] = field(default_factory=list)
    #: Runs of bytes that are not a sound batch.
    holes: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def read(cls, file: File) -> Snapshot:
        """What is sound of a snapshot. Its batches are numbered from 0 on, and carry the epoch of its name."""
        offset, epoch = snapshot_id(file.path) or (0, 0)
        batches: list[Batch] = []
        checksums: set[tuple[int, int]] = set()
        position, follows, copies, holes = 0, [], [], []
        for batch in batches_in(file):
            if batch.start > position:
                holes.append((position, batch.start))
            if (batch.crc, batch.count) in checksums:
                copies.append(batch)
            else:
                checksums.add((batch.crc, batch.count))
                batch.first, batch.epoch = (batches[-1].end if batches else 0), epoch
                batches.append(batch)
                follows.append(batch.start == position)
            position = batch.stop
        if position < file.size:
            holes.append((position, file.size))
        controls = [kind for batch in batches if batch.is_control for _, kind, _ in batch.records()]
        ends = bool(batches) and batches[0].is_control and batches[-1].is_control
        is_whole = ends and controls[0] == ControlType.SNAPSHOT_HEADER and controls[-1] == ControlType.SNAPSHOT_FOOTER
        is_whole = is_whole and controls.count(ControlType.SNAPSHOT_FOOTER) == 1 and not _is_gapped(batches, follows)
        return cls(file, offset, epoch, batches, is_whole, last_time(file), copies, holes)

    @property
    def right_name(self) -> str:
        return checkpoint_name(self.offset, self.epoch)

    @property
    def has_records(self) -> bool:
        """Whether there is anything of the state in it."""
        return any(not batch.is_control for batch in self.batches)

    def report(self, report: Report) -> None:
        """Report what was corrected."""
        for batch in self.batches:
            _report_changes(batch, report)
        for batch in self.copies:
            _drop(report, self.file, batch.start, batch.stop, "a copy of another batch")
            report.count("batches_changed")
        for start, stop in self.holes:
            _drop(report, self.file, start, stop, "bytes that are not a sound batch")

    def load(self, state: State) -> None:
        """Take its records into a state. Of a topic that the state has, partitions stay: their batch may be the one that is lost."""
        for batch in self.batches:
            for number, (control, kind, value) in enumerate(batch.records()):
                if control:
                    state.add_control(batch.first + number, -1 if kind is None else kind, value or b"")
                elif not _is_known_topic(state, value or b""):
                    state.add(batch.first + number, value or b"")


def _is_gapped(batches: Sequence[Batch], follows: Sequence[bool]) -> bool:
    """Whether the batches of a snapshot say that some between them are missing: not where only one says so. `follows` tells of which
    batches the bytes follow those of the one before.
    """
    return any(
        batch.is_rebased and (not joins or _is_after_gap(batch, following))
        for batch, following, joins in zip(batches, [*batches[1:], None], follows, strict=True)
    )


def _is_after_gap(batch: Batch, following: Batch | None) -> bool:
    """Whether a batch that follows another one directly says rightly that others were between."""
    if following is None:
        return not is_misread(batch.stored, batch.first)
    return batch.stored + batch.count == following.stored and batch.stored > batch.first


def _is_known_topic(state: State, value: bytes) -> bool:
    try:
        key, _, message = decode_record(value)
    except DataError:
        return False
    return framed_types()[key].name == "TopicRecord" and bytes(message["topicId"]) in state.topics


def _drop(report: Report, file: File, start: int, stop: int, reason: str, *, is_expected: bool = False) -> None:
    report.add(Action.DROPPED, reason, file.path, start=start, stop=stop, is_expected=is_expected)
    if not is_expected:
        report.count("bytes_cut", stop - start)


def _report_changes(batch: Batch, report: Report) -> None:
    """Report a batch whose base offset or epoch was corrected: no checksum covers them."""
    place = {"start": batch.start, "stop": batch.stop, "first_offset": batch.first, "stop_offset": batch.end}
    if batch.is_rebased:
        report.add(Action.CHANGED, f"base offset {batch.stored} set to {batch.first}", batch.file.path, **place)
    if batch.epoch != batch.stored_epoch:
        report.add(Action.CHANGED, f"epoch {batch.stored_epoch} set to {batch.epoch}", batch.file.path, **place)
    if batch.is_changed:
        report.count("batches_changed")


class _Repair:
    """The decisions of a repair."""

    def __init__(self, store: MetadataStore, policy: str) -> None:
        self.store, self.policy, self.traced = store, policy, store.traced
        counts = ("segments", "snapshots", "bytes_kept", "bytes_cut", "batches_changed")
        self.report = Report(counts=dict.fromkeys(counts, 0), facts={"policy": policy, "end_offset": 0})

    def plan(self) -> DirectoryPlan:
        """What to write, with the report on it."""
        report, policy = self.report, self.policy
        snapshots, log = self.place()
        stretches = find_stretches(log.batches)
        snapshots = self.rename_snapshots(snapshots, log.batches)
        whole = [snapshot for snapshot in snapshots if snapshot.is_whole]
        kept = stretches[-1] if stretches else []
        # Snapshots from before the log are of use only where they are as they were: before a log without a gap.
        usable = [snapshot for snapshot in whole if len(stretches) < 2 or snapshot.offset >= kept[0].first]
        if kept and usable and usable[0].offset > kept[-1].end:
            kept = []  # a controller would empty a log that ends before its snapshot
        usable = self.agreeing_snapshots(usable, kept)
        needs = _needed_offset(whole, snapshots, stretches)
        leads = not kept or any(snapshot.offset >= kept[0].first for snapshot in usable)
        fresh = policy != STRICT and not leads and kept[0].first > 0
        if policy == SALVAGE and needs is not None:
            fresh = True
            if kept and needs > kept[-1].end:
                kept = []
        end = max([kept[-1].end if kept else 0, *(snapshot.offset for snapshot in usable), needs or 0])
        self.report_batches(log, kept, is_folded=fresh and policy != BROKER)
        end = self.report_losses(log.batches, whole, end)
        for snapshot in snapshots:
            if snapshot in usable:
                snapshot.report(report)
            elif not snapshot.is_whole:
                outcome = "its sound batches are in the new snapshot" if fresh and snapshot.batches else "left out"
                _drop(report, snapshot.file, 0, snapshot.file.size, f"not whole, {outcome}")
            else:
                outcome = "what it holds is in the new snapshot" if fresh and policy == SALVAGE else "left out"
                _drop(report, snapshot.file, 0, snapshot.file.size, f"from before the log that is kept, {outcome}")
        report.counts["snapshots"] = len(usable)
        report.facts["end_offset"] = end
        state = None
        if fresh:
            state = self.new_state(*((kept, []) if policy == BROKER else (log.batches, snapshots)), max(end, 1))
        segments = self.segments(kept, is_all=len(stretches) == 1)
        report.counts["segments"] = len(segments)
        return DirectoryPlan(report, segments, usable, state, is_new=state is None and not kept and not usable)

    def place(self) -> tuple[list[Snapshot], LogBatches]:
        """The snapshots, newest first, and the sound batches of the log at their offsets."""
        snapshots = [Snapshot.read(file) for file in self.store.newest_first]
        return snapshots, self.first_stretch() if self.policy == BROKER else self.store.log

    def segments(self, kept: Sequence[Batch], *, is_all: bool) -> dict[int, list[Batch]]:
        """Batches in segments, those of one source file together, by the offset in their names: that of the first batch. The first
        segment of a log without a gap may be named for an offset before that.
        """
        segments: dict[int, list[Batch]] = {}
        for batches in _by_file(kept):
            batch, named = batches[0], batches[0].file.place.start_offset
            first = batch.first
            if is_all and not segments and batch.start == 0 and batch.file == self.store.segments[0]:
                first = min(first, self.store.start)
            if batch.start == 0 and first != named:
                place = {"start": 0, "stop": batches[-1].stop, "first_offset": first, "stop_offset": batches[-1].end}
                self.report.add(Action.MOVED, f"renamed to {segment_name(first)}", batch.file.path, **place)
            segments[first] = batches
        return segments

    def first_stretch(self) -> LogBatches:
        """What a broker keeps: everything up to the first byte or offset that is wrong."""
        kept: list[Batch] = []
        for segment in self.store.segments:
            position = 0
            for batch in batches_in(segment):
                follows = not kept or kept[-1].end == batch.stored
                if batch.start != position or not follows or batch.stored < (segment.place.start_offset or 0):
                    return LogBatches(kept, [])
                kept.append(batch)
                position = batch.stop
            if position < segment.size and not _is_zero(segment, position):
                break
        return LogBatches(kept, [])

    def rename_snapshots(self, snapshots: list[Snapshot], batches: Sequence[Batch]) -> list[Snapshot]:
        """The snapshots, newest first, one for each offset. A snapshot that the log contradicts is renamed by its time."""
        times: dict[int, list[Batch]] = {}
        for batch in batches:
            times.setdefault(batch.time, []).append(batch)
        starts = [batch.first for batch in batches]
        by_offset: dict[int, Snapshot] = {}
        for snapshot in snapshots:
            at = bisect_right(starts, snapshot.offset - 1) - 1
            holder = batches[at] if at >= 0 and batches[at].end >= snapshot.offset else None
            is_inside = holder is not None and snapshot.offset < holder.end
            if (
                snapshot.is_whole
                and holder is not None
                and is_misnamed(snapshot.offset, snapshot.time, holder.time, is_inside=is_inside)
            ):
                right = times.get(snapshot.time or 0, [])
                if len(right) != 1:
                    reason = "the offset in its name is not the offset of its content; left out"
                    _drop(self.report, snapshot.file, 0, snapshot.file.size, reason)
                    continue
                snapshot.offset, snapshot.epoch = right[0].end, right[0].epoch
                for batch in snapshot.batches:
                    batch.epoch = snapshot.epoch
                reason = f"renamed: of offset {snapshot.offset}, as the times of the log say"
                self.report.add(Action.MOVED, reason, snapshot.file.path, start=0, stop=snapshot.file.size)
                self.report.count("batches_changed")
            by_offset.setdefault(snapshot.offset, snapshot)
            if snapshot.is_whole and not by_offset[snapshot.offset].is_whole:
                by_offset[snapshot.offset] = snapshot
        return sorted(by_offset.values(), key=lambda snapshot: (snapshot.offset, snapshot.epoch), reverse=True)

    def agreeing_snapshots(self, usable: list[Snapshot], kept: Sequence[Batch]) -> list[Snapshot]:
        """The snapshots without those that the log, from offset 0 on, contradicts: the log is what they were made of."""
        if not kept or kept[0].first > 0:
            return usable
        agreeing = []
        for snapshot in usable:
            log_state, snapshot_state = State(), State()
            _replay(log_state, kept, snapshot.offset)
            snapshot.load(snapshot_state)
            same = log_state.image_lines() == snapshot_state.image_lines()
            if snapshot.offset == 0 or snapshot.offset > kept[-1].end or log_state.open_transaction is not None or same:
                agreeing.append(snapshot)
            else:
                _drop(
                    self.report,
                    snapshot.file,
                    0,
                    snapshot.file.size,
                    "holds another state than the log leads to, left out",
                )
        return agreeing

    def new_state(self, batches: Sequence[Batch], snapshots: Sequence[Snapshot], end: int) -> State:
        """The state of a new snapshot: the newest whole snapshot, all later batches, and the sound batches of newer partial snapshots."""
        state = State()
        base = next((snapshot for snapshot in snapshots if snapshot.is_whole), None)
        if base is not None:
            base.load(state)
            state.end_offset, state.epoch, state.timestamp = base.offset, base.epoch, base.time or -1
        for snapshot in sorted(snapshots, key=lambda snapshot: snapshot.offset):
            if snapshot.is_whole or not snapshot.has_records or snapshot.offset <= state.end_offset:
                continue
            reached = state.end_offset
            for batch in batches:
                reached = batch.end if batch.first <= reached < batch.end else reached
            if reached < snapshot.offset:  # the log alone does not lead there
                _replay(state, batches, snapshot.offset)
                snapshot.load(state)
                state.end_offset, state.epoch = snapshot.offset, max(snapshot.epoch, state.epoch)
                state.timestamp = max(snapshot.time or -1, state.timestamp)
        _replay(state, batches)
        state.end_offset = end
        name = checkpoint_name(end, max(state.epoch, 0))
        self.report.facts["fresh_snapshot"] = name
        self.report.count("snapshots")
        self.report.add(Action.ADDED, f"made of what could be read ({state.records:,} records)", name)
        for problem in state.problems[:SHOWN]:
            self.report.notes.append(f"offset {problem.offset}: {problem.message}; ignored")
        if len(state.problems) > SHOWN:
            self.report.notes.append(f"{len(state.problems) - SHOWN:,} more records were ignored")
        return state

    # What it does not keep ---------------------------------------------------------------------------------------------

    def report_batches(self, log: LogBatches, kept: Sequence[Batch], *, is_folded: bool) -> None:
        """Report what becomes of every byte of the segments; zeros at the end of a file are not a loss."""
        reasons = {(batch.file.path, batch.start): why for batch, why in log.aside}
        numbers = {id(batch) for batch in kept}
        folded = (
            {(batch.file.path, batch.start) for batch in log.batches if id(batch) not in numbers}
            if is_folded
            else set()
        )
        for segment in self.store.segments:
            position = 0
            segment_batches = sorted(
                (batch for batch in kept if batch.file.path == segment.path), key=lambda batch: batch.start
            )
            for start, stop in [
                *((batch.start, batch.stop) for batch in segment_batches),
                (segment.size, segment.size),
            ]:
                if start > position:
                    inside = [
                        why for (path, at), why in reasons.items() if path == segment.path and position <= at < start
                    ]
                    padding = start == segment.size and _is_zero(segment, position)
                    is_last = start == segment.size and segment is self.store.segments[-1]
                    is_tail = (padding and (position > 0 or is_last)) or (
                        is_last and position > 0 and not inside and _is_tail(segment, position)
                    )
                    reason = "zeros" if padding else inside[0] if inside else "not in the log that is kept"
                    reason = UNFINISHED if is_tail and not padding else reason
                    if any(path == segment.path and position <= at < start for path, at in folded):
                        reason += "; what can be read of them is in the new snapshot"
                    _drop(self.report, segment, position, start, reason, is_expected=is_tail)
                position = stop
        for batch in kept:
            _report_changes(batch, self.report)
        for before, after in pairwise(kept):
            if before.file.path == after.file.path and before.start > after.start:
                where = {
                    "start": after.start,
                    "stop": after.stop,
                    "first_offset": after.first,
                    "stop_offset": after.end,
                }
                self.report.add(Action.MOVED, "moved to its place by offset", after.file.path, **where)
                self.report.count("batches_changed")

    def lose(self, first: int, stop: int | None, reason: str = "not in any sound batch") -> None:
        """Report offsets whose records are not in the result; `stop` is None where nothing says how many they are."""
        segments = self.store.segments
        before = [segment for segment in segments if (segment.place.start_offset or 0) <= first]
        path = before[-1].path if before else segments[0].path if segments else self.store.folder
        self.report.add(Action.LOST, reason, path, first_offset=first, stop_offset=stop)

    def report_losses(self, batches: Sequence[Batch], whole: Sequence[Snapshot], end: int) -> int:
        """Report the offsets whose records are in no batch that has its place; the end of the log. A whole snapshot has the state after
        what is missing before it; what is before the log, it has replaced.
        """
        reached = covered = max((snapshot.offset for snapshot in whole), default=0)
        if self.policy == BROKER:
            reached = max([end, *(batch.end for batch in batches)])
            if batches and batches[0].first > 0 and not whole:
                self.lose(0, batches[0].first)
        else:
            following = batches[0].first if batches else 0
            for batch in batches:
                if following < min(batch.first, covered):
                    self.lose(
                        following,
                        batch.first,
                        f"not in any sound batch; the snapshot at offset {covered} was taken after them",
                    )
                elif batch.first > reached:
                    self.lose(reached, batch.first)
                following, reached = max(following, batch.end), max(reached, batch.end)
        # A segment whose batches have their place may have any name.
        placed = {batch.file.path for batch in batches}
        later = [
            segment
            for segment in self.store.segments
            if (segment.place.start_offset or 0) > reached and segment.path not in placed
        ]
        if later and self.policy != BROKER:
            first = min(segment.place.start_offset or 0 for segment in later)
            self.lose(reached, first)
            if any(not _is_zero(segment, 0) for segment in later):
                self.lose(first, None)
        elif not batches and reached < self.traced:
            self.lose(reached, None, "of the log nothing is left")
        elif self.has_more(batches, reached):
            self.lose(reached, None)
        elif reached < self.traced:
            self.lose(reached, self.traced, "a snapshot of the producers was taken after them")
        return max(end, reached)

    def has_more(self, batches: Sequence[Batch], reached: int) -> bool:
        """Whether damaged bytes follow the last batch of the log; the tail that a crash leaves does not count."""
        segments = self.store.segments
        if not batches:
            return any(segment.size and not _is_zero(segment, 0) for segment in segments)
        last = batches[-1]
        if last.end < reached:
            return False
        batch_paths = {batch.file.path for batch in batches}
        later_segments = [
            segment
            for segment in segments
            if segment.path not in batch_paths and (segment.place.start_offset or 0) >= last.first
        ]
        if any(segment.size and not _is_zero(segment, 0) for segment in later_segments):
            return True
        return last.stop < last.file.size and not _is_tail(last.file, last.stop)


def _by_file(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Runs of batches of one source file."""
    for _, run in groupby(batches, key=lambda batch: batch.file.path):
        yield list(run)


def find_stretches(batches: Sequence[Batch]) -> list[list[Batch]]:
    """Batches in their order, in stretches without a gap."""
    stretches: list[list[Batch]] = []
    for batch in batches:
        if stretches and stretches[-1][-1].end == batch.first:
            stretches[-1].append(batch)
        else:
            stretches.append([batch])
    return stretches


def _needed_offset(
    whole: Sequence[Snapshot], snapshots: Sequence[Snapshot], stretches: Sequence[Sequence[Batch]]
) -> int | None:
    """The offset of the newest partial snapshot with state that is neither in a whole snapshot nor in the log; None if there is none."""
    reached = max((snapshot.offset for snapshot in whole), default=0)
    for stretch in stretches:
        if stretch[0].first <= reached:
            reached = max(reached, stretch[-1].end)
    partial = [
        snapshot.offset
        for snapshot in snapshots
        if not snapshot.is_whole and snapshot.has_records and snapshot.offset > reached
    ]
    return max(partial, default=None)


def _is_zero(file: File, position: int) -> bool:
    with Source(file.path) as source:
        while piece := source.read(position, 1 << 20):
            if any(piece):
                return False
            position += len(piece)
    return True


def _is_tail(file: File, position: int) -> bool:
    """Whether the bytes of a segment from a position on are what a crash leaves: zeros, or no whole batch."""
    sound = find_sound(bytes_of(file)[position:])
    return not len(sound.head) and all(hole.reason in (PADDING, UNFINISHED) for hole in sound.holes)


def _replay(state: State, batches: Sequence[Batch], stop: int | None = None) -> None:
    """Take the records of batches from the end of a state on, up to an offset."""
    for batch in batches:
        if batch.end > state.end_offset and (stop is None or batch.first < stop):
            batch.replay(state, stop)


def _is_vote(file: File, report: Report) -> bool:
    """Whether a file is an election state; reported if not. Without it a controller could vote twice in an epoch."""
    with Source(file.path) as source:
        data = source.read(0, LARGEST_TEXT)
    try:
        parse_quorum(data)
    except ValueError:
        _drop(report, file, 0, file.size, "not an election state, left out")
        return False
    return True
