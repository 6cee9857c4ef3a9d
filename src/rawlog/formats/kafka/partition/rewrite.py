"""How a partition is written again: one loop, and the policy of a verb, which says what goes into which segment.

`rebuild` is the simplest policy: the log as it is, and everything derived from it made again as a broker's own recovery does it. A log
directory around the partitions has files of its own, which `join` writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from rawlog.formats.kafka.checkpoints import CLEANER, LOG_START, checkpoint_text, offsets_in
from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.log.heads import Heads, heads
from rawlog.formats.kafka.log.segment import scan, sound
from rawlog.formats.kafka.partition.identity import (
    BOOTSTRAP,
    META,
    identity,
    is_tiered_topic,
)
from rawlog.formats.kafka.partition.log_directories import (
    COUNTING,
    infer_identity,
    missing_partitions,
    node_of,
    topic_id_in,
)
from rawlog.formats.kafka.partition.outline import Outline, Side, correct_epochs, outline, refuse_damage, refuse_holes
from rawlog.formats.kafka.partition.segment_outline import PADDING, UNFINISHED, Correction
from rawlog.formats.kafka.partition.tiers import has_remote
from rawlog.formats.kafka.partition.writer import Derivation, PartitionWriter, SegmentLimits
from rawlog.formats.kafka.paths import (
    INTERNAL,
    LARGEST_OFFSET,
    OFFSET_CHECKPOINTS,
    remote_directory,
    split,
)
from rawlog.formats.kafka.texts import check_meta
from rawlog.io.output import Folder
from rawlog.io.storage import Source, exists
from rawlog.io.walk import describe, walk
from rawlog.kernels import byte_view
from rawlog.model.errors import AccessError, OptionError, UnknownFormatError
from rawlog.model.format import File
from rawlog.model.frames import Frames
from rawlog.model.report import Action, Report
from rawlog.model.status import Status
from rawlog.model.store import Store

#: What a log directory says of itself, besides what it says of its partitions.
SURROUNDINGS = (META, BOOTSTRAP)

Batches = Iterable[tuple[Frames, Heads]]


@dataclass(frozen=True, slots=True)
class NewSegment:
    """A segment of the result: the offset in its name, and the batches in it, which are read as they are written.

    Without a `base` the batches go into the segment before. An optional segment without batches is not written.
    """

    base: int | None
    batches: Batches = ()
    modified: float | None = None
    is_optional: bool = False


class Policy(Protocol):
    """What a verb does with the log of a partition. What it drops and changes it reports itself."""

    #: When a segment is full; None: where the policy begins the next one.
    limits: SegmentLimits | None
    #: The bytes between two entries of an index, if there are no limits that say it.
    interval: int
    #: What no segment alone tells; None: derived from the batches that are written.
    derivation: Derivation | None
    #: The content of `partition.metadata`; None: there is no such file.
    metadata: bytes | None

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """The segments of the result in order. `writer` tells how far the result is: a segment is asked for when those before are
        written.
        """
        ...


def rewrite(
    folder: Folder, policy: Policy, *, log_start: int = 0, corrections: Sequence[Correction] = ()
) -> PartitionWriter:
    """Fill an empty directory with the partition of a policy; returns the writer.

    `log_start` names the only segment of a partition without batches. `corrections` are the leader epochs to set right.
    """
    writer = PartitionWriter(
        folder,
        policy.limits,
        metadata=policy.metadata,
        log_start=log_start,
        interval=policy.interval,
        derivation=policy.derivation,
    )
    try:
        for segment in policy.segments(writer):
            is_begun = segment.base is None
            if segment.base is not None and not segment.is_optional:
                writer.begin(segment.base, segment.modified)
                is_begun = True
            for frames, head in segment.batches:
                if not len(frames):
                    continue
                if not is_begun and segment.base is not None:
                    writer.begin(segment.base, segment.modified)
                    is_begun = True
                writer.append(*correct_epochs(frames, head, corrections))
        writer.close()
    finally:
        writer.abandon()
    return writer


# What policies read --------------------------------------------------------------------------------------------------


def segments_of(files: Sequence[File]) -> list[File]:
    """The log segments among a partition's files that a broker would load, in order. AccessError if there is none."""
    segments = [file for file in files if file.format == "kafka.log" and file.place.state is None]
    if not segments:
        raise AccessError("no log segment is there to rebuild anything from")
    for segment in segments:
        segment.check_readable()
    return sorted(segments, key=lambda segment: segment.place.start_offset or 0)


def whole_batches(segment: File, report: Report, *, is_last: bool) -> Iterator[tuple[Frames, Heads]]:
    """The batches of a segment as they are; what is left out at its end is reported. DataError for damage, and for an unfinished batch
    in a segment that is not the last one.
    """
    from rawlog.formats.kafka import LOG

    reached, status = 0, Status.OK
    for frames in walk(segment, LOG, errors="raise"):
        head = heads(frames)
        _, error = sound(frames, head)
        if error is not None:
            raise error.at(path=segment.path, format=LOG.name)
        reached, status = frames.reached_in_file, frames.status
        if status is Status.TRUNCATED and frames.last and not is_last:
            raise describe(LOG, frames, segment.path)
        yield frames, head
    if segment.size > reached:
        is_padding = status is Status.PADDING
        reason = PADDING if is_padding else UNFINISHED
        place = {"start": reached, "stop": segment.size}
        report.add(Action.DROPPED, reason, segment.path, is_expected=True, **place)
        report.count("bytes_lost", 0 if is_padding else segment.size - reached)


def topic_id_of(files: Sequence[File]) -> bytes | None:
    """The content of `partition.metadata`: no log tells it."""
    for file in files:
        if file.format == "kafka.partition" and file.problem is None:
            with Source(file.path) as source:
                return bytes(source.read(0, source.size))
    return None


def settled_log(files: Sequence[File], report: Report) -> Outline:
    """The log of a partition for a verb that writes what `repair` would keep; what is missing, corrected, moved or set aside is reported.
    AccessError if there is no segment. DataError for bytes that are no batch, which `repair` handles.
    """
    segments_of(files)
    log = outline(files)
    refuse_holes(log, "`rawlog repair` handles damage", allows_tail=True)
    for gap in log.gaps:
        span = {"first_offset": gap.first, "stop_offset": gap.last + 1}
        reason = "missing before this segment" if gap.side is Side.BETWEEN else str(gap)
        if not gap.is_lost:
            report.notes.append(str(gap))
        else:
            report.add(Action.LOST, reason, gap.file.path, **span)
    report.count("gaps", len(report.entries))
    for first, last in log.lost:
        is_gap = any(gap.first <= first and last is not None and last <= gap.last for gap in log.gaps)
        if not is_gap:
            stop = None if last is None else last + 1
            report.add(Action.LOST, "no batch has them", files[0].place.group, first_offset=first, stop_offset=stop)
    for number, extent in enumerate(log.extents):
        for at, fate in log.fates(number).items():
            assert extent.sound is not None
            sound, head = extent.sound, extent.sound.head
            place = {"start": int(sound.starts[at]), "stop": int(sound.stops[at])}
            span = {"first_offset": int(head["base_offset"][at]), "stop_offset": int(head["last_offset"][at]) + 1}
            report.add(fate.action, fate.reason, extent.file.path, **place, **span)
    for piece in log.pieces:
        extent = log.extents[piece.segment]
        if piece.start != extent.first:
            reason = f"offsets {piece.first} to {piece.last} of it are in a segment named {piece.start} now"
            report.add(Action.MOVED, reason, extent.file.path, first_offset=piece.first, stop_offset=piece.last + 1)
    for correction in log.corrections:
        reason = (
            f"leader epoch {correction.wrong} set to {correction.right} where batches are kept, "
            "by the batches around them or the epoch checkpoint"
        )
        report.add(
            Action.CHANGED, reason, files[0].place.group, first_offset=correction.first, stop_offset=correction.last + 1
        )
    return log


# Rebuild -------------------------------------------------------------------------------------------------------------


class Copying:
    """The policy of `rebuild`: every batch as it is."""

    limits: SegmentLimits | None = None
    derivation: Derivation | None = None

    def __init__(self, files: Sequence[File], report: Report, interval: int) -> None:
        self.files, self.report, self.interval = segments_of(files), report, interval
        self.metadata = topic_id_of(files)

    def segments(self, writer: PartitionWriter) -> Iterator[NewSegment]:
        """Each segment of the source."""
        for file in self.files:
            batches = whole_batches(file, self.report, is_last=file is self.files[-1])
            yield NewSegment(file.place.start_offset or 0, batches, file.modified)


def rebuild(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a partition again: the log as it is, and everything that is derived from it.

    `index_interval_bytes` among the options is the topic's. What a crash leaves at the end of the log is cut off; DataError for damage and
    for records that are missing, which `repair` handles.
    """
    report = new_report(bytes_lost=0, gaps=0)
    policy = Copying(store, report, SegmentLimits.from_options(options).index_interval_bytes)
    refuse_damage(identity(store), outline(store), "`rawlog repair` handles damage", allows_tail=True)
    writer = rewrite(folder, policy)
    report.counts |= {"segments": writer.segments, "batches": writer.batches, "bytes": writer.bytes}
    report.facts["end_offset"] = writer.end_offset
    return report


def new_report(**counts: int) -> Report:
    """A report with these counts, also those that are 0."""
    return Report(counts=counts)


# Partitions of a log directory ---------------------------------------------------------------------------------------


def partitions(files: Sequence[File], options: Mapping[str, str]) -> list[Store]:
    """A store for each partition directory that a broker would load. UnknownFormatError if there is none, OptionError for two of the
    same name.

    A directory whose name is not one of a partition counts only if no partition is next to it: a broker ends at such a name.

    The list of remote segments is left out if such segments become part of the logs: they are not in remote storage any more. A broker
    would delete its own copies of what is listed there. `join` writes an empty list.
    """
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    stores = [
        Store(group, _name(folder))
        for folder, group in sorted(groups.items())
        if any(file.format == "kafka.log" and file.place.state is None for file in group)
    ]
    parents = {split(str(store.path))[0] for store in stores if store[0].place.topic is not None}
    stores = [store for store in stores if store[0].place.topic is not None or split(str(store.path))[0] not in parents]
    if any(map(has_remote, stores)):
        stores = [store for store in stores if not _is_list(store)]
    if not stores:
        raise UnknownFormatError("no partition directory is here")
    if len({store.name for store in stores}) < len(stores):
        raise OptionError("partitions of the same name are here; name the log directory of one of them")
    return stores


def _is_list(store: Store) -> bool:
    return any(file.place.topic == INTERNAL["kafka.remote"] for file in store)


def _name(folder: str) -> str:
    """What a partition's directory is to be called: as it is, unless it is one of remote storage."""
    remote = remote_directory(folder)
    return split(folder)[1] if remote is None else f"{remote.topic}-{remote.partition}"


def join(stores: Sequence[Store], reports: Sequence[Report], folder: Folder) -> Report:
    """The report on all partitions. In the directory around them is written what it says of itself and of them, as far as it is still
    true.

    The mark of a clean stop is left out: a broker then looks at everything once. A log start after the end would delete the log.
    """
    report = Report(parts={store.name: part for store, part in zip(stores, reports, strict=True)})
    if any(map(has_remote, stores)):
        report.notes.append(
            f"segments of remote storage are part of the logs now; the records of {INTERNAL['kafka.remote']}, which list them, are "
            "left out, and a broker with tiered storage copies the segments again"
        )
    sources = {split(store[0].place.group or "")[0] for store in stores}
    if len(sources) == 1:
        [source] = sources
        if any(map(has_remote, stores)):
            _empty_lists(source, folder)
        _report_missing(source, stores, report)
        bases = {store.name: segments_of(store)[0].place.start_offset or 0 for store in stores}
        _keep_checkpoints(source, report.parts, bases, folder)
        keep_surroundings(source, folder, report)
    return report


def _empty_lists(source: str, folder: Folder) -> None:
    """Write the partitions of the list of remote segments without a record: the cluster's metadata assigns them to the directory."""
    for (topic, _), path in node_of(source).directories[0].loaded.items():
        if topic == INTERNAL["kafka.remote"]:
            topic_id = topic_id_in(path)
            PartitionWriter(
                folder.folder(split(path)[1]), None, topic_id=uuid_text(topic_id) if topic_id else None
            ).close()


def _report_missing(source: str, stores: Sequence[Store], report: Report) -> None:
    """Report what the checkpoints count and no log has: the result's own are made to fit, and this is the only trace of the loss."""
    directories = {str(store[0].place.group) for store in stores}
    for missing in missing_partitions(node_of(source)):
        if missing.directory in directories or not missing.is_expected:
            continue
        if not missing.is_lost:
            report.notes.append(str(missing))
        else:
            offsets = (
                {"first_offset": missing.first, "stop_offset": missing.stop} if missing.stop > missing.first else {}
            )
            report.add(Action.LOST, str(missing), missing.checkpoint or missing.directory, **offsets)
    for name in COUNTING:
        for (topic, partition), offset in sorted(offsets_in(source, name).items()):
            part = report.parts.get(f"{topic}-{partition}")
            if part is None or part.with_action(Action.REMOVED):
                continue
            lost = [entry for entry in part.with_action(Action.LOST) if entry.first_offset is not None]
            reached = max([part.facts["end_offset"], *(entry.stop_offset or LARGEST_OFFSET for entry in lost)])
            if offset > reached:
                reason = f"{name} counts them, and no segment has them"
                part.add(Action.LOST, reason, f"{source}/{name}", first_offset=reached, stop_offset=offset)


def _keep_checkpoints(source: str, done: Mapping[str, Report], bases: Mapping[str, int], folder: Folder) -> None:
    """Write the checkpoints, limited to the result. A log start before the first segment means missing records, already reported, or
    records in remote storage.
    """
    for name in OFFSET_CHECKPOINTS:
        offsets = {}
        for (topic, partition), offset in offsets_in(source, name).items():
            report, base = done.get(f"{topic}-{partition}"), bases.get(f"{topic}-{partition}", 0)
            if name == LOG_START and offset < base and not is_tiered_topic(source, topic):
                continue
            if report is not None and (name != LOG_START or offset <= report.facts["end_offset"]):
                offsets[topic, partition] = min(offset, report.facts["end_offset"])
        if name == CLEANER:
            for directory, report in done.items():
                topic, _, number = directory.rpartition("-")
                if "first_dirty" in report.facts and number.isdigit():
                    offsets[topic, int(number)] = report.facts["first_dirty"]
        if offsets:
            folder.write(name, checkpoint_text(offsets))


def keep_surroundings(source: str, folder: Folder, report: Report) -> None:
    """Carry over what a log directory says of itself: whose it is, and what a new cluster would start from; report what is lost of it.

    No broker starts on damaged bootstrap records, and one that has a metadata log does without them; nor on a damaged identity: without
    one it makes a new one, or asks for the directory to be formatted with the cluster's id, and keeps what is in it. An identity that is
    gone is written again where the metadata and the directories next to it leave one only.
    """
    for name in SURROUNDINGS:
        path = f"{source}/{name}"
        if not exists(path) or (folder.path / name).exists():
            continue
        with Source(path) as opened:
            data = bytes(opened.read(0, opened.size))
        if _is_sound(data) if name == BOOTSTRAP else _is_identity(data):
            folder.write(name, data)
        else:
            report.add(Action.DROPPED, "damaged, left out", path, start=0, stop=len(data))
    if not (folder.path / META).exists() and (identity := infer_identity(source)) is not None:
        folder.write(META, identity)
        reason = "missing or damaged; written as the metadata log and the directories next to it say whose it is"
        report.add(Action.ADDED, reason, f"{source}/{META}")


def _is_identity(data: bytes) -> bool:
    """Whether bytes say whose a log directory is."""
    try:
        check_meta(data)
    except (ValueError, KeyError):
        return False
    return True


def _is_sound(data: bytes) -> bool:
    """Whether bytes are batches with the right checksums, to the end."""
    frames = scan(byte_view(data), 0)
    return bool(len(frames)) and frames.reached == len(data) and bool(heads(frames).sound.all())
