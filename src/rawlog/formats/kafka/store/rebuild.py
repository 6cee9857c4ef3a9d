"""All derived files of a partition anew from its log segments alone, as a broker's own recovery writes them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rawlog.core.errors import AccessError
from rawlog.core.format import File
from rawlog.core.report import Account
from rawlog.core.status import Status
from rawlog.core.text import counted
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.log import sound
from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.store.continuity import continuity
from rawlog.formats.kafka.store.derived import Limits
from rawlog.formats.kafka.store.partition_writer import METADATA, PartitionWriter, segment_name, staged
from rawlog.io.storage import Source, local_path
from rawlog.io.walk import describe, walk


@dataclass(slots=True)
class Report(Account):
    """What was written, and what was left out."""

    target: str = ""
    segments: int = 0
    batches: int = 0
    bytes: int = 0
    bytes_lost: int = 0
    end_offset: int = 0
    #: Places where offsets are missing, and segments whose batches belong to another place of the log.
    gaps: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether every byte of the log was kept, and nothing was missing before."""
        return not self.bytes_lost and not self.gaps

    def lines(self) -> list[str]:
        """The notes, then the counts."""
        counts = (
            counted(self.segments, "segment"),
            counted(self.batches, "batch", "batches"),
            counted(self.bytes, "byte"),
        )
        return [*self.notes, ", ".join(counts)]


def segments_of(files: Sequence[File]) -> list[File]:
    """The log segments among a partition's files that a broker would load, in order. AccessError if there is none."""
    found = [one for one in files if one.format == "kafka.log" and one.place.state is None]
    if not found:
        raise AccessError("no log segment is there to rebuild anything from")
    for one in found:
        if one.problem is not None:
            raise AccessError(f"{one.path}: {one.problem}")
    return sorted(found, key=lambda one: one.place.start_offset or 0)


def gap_notes(files: Sequence[File]) -> list[str]:
    """What is missing between the segments of a partition or is in the wrong one, as verify sees it: one line each."""
    found = continuity(files)
    notes = [f"{split(gap.file.path)[1]}: {gap}" for gap in found.gaps]
    for piece in found.pieces:
        extent = found.extents[piece.segment]
        if piece.start != extent.first:
            name = split(extent.file.path)[1]
            notes.append(
                f"{name}: offsets {piece.first} to {piece.last} belong to another segment; `rawlog repair` puts them there"
            )
    return notes


def rebuild_partition(
    files: Sequence[File],
    target: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    *,
    overwrite: bool = False,
) -> Report:
    """Write a partition directory: the log as it is, and everything derived from it anew.

    `index_interval_bytes` among the options is the topic's. An unfinished batch at the end of the log is left out, and noted; DataError
    for damage, which is for repair to mend.
    """
    limits = Limits.told(options or {})
    path = Path(local_path(os.fspath(target))).absolute()
    segments = segments_of(files)
    report = Report(str(path))
    report.notes += gap_notes(files)
    report.gaps = len(report.notes)
    with staged(path.parent, overwrite=overwrite) as stage:
        folder = stage / path.name
        folder.mkdir()
        writer = PartitionWriter(folder, None, interval=limits.index_interval_bytes)
        try:
            for segment in segments:
                writer.begin(segment.place.start_offset or 0)
                left_out = copy_batches(writer, segment, is_last=segment is segments[-1])
                report.bytes_lost += left_out.bytes_lost
                report.notes += left_out.notes
            writer.close()
        finally:
            writer.abandon()
        keep_beside(files, folder)
        keep_times(segments, folder)
    report.segments, report.batches, report.bytes = writer.segments, writer.batches, writer.bytes
    report.end_offset = writer.end_offset
    return report


def copy_batches(writer: PartitionWriter, segment: File, *, is_last: bool) -> Report:
    """The batches of a segment as they are; what was left out at its end is noted. DataError for damage."""
    from rawlog.formats.kafka import LOG

    report = Report()
    reached, status = 0, Status.OK
    for frames in walk(segment, LOG, errors="raise"):
        head = heads(frames)
        _, error = sound(frames, head)
        if error is not None:
            raise error.at(path=segment.path, format=LOG.name)
        if len(frames):
            writer.append(frames, head)
        reached, status = frames.reached_in_file, frames.status
        if status is Status.TRUNCATED and frames.last and not is_last:
            raise describe(LOG, frames, segment.path)
    if segment.size > reached:
        report.bytes_lost = 0 if status is Status.PADDING else segment.size - reached
        what = "zeros of preallocation" if status is Status.PADDING else "an unfinished batch"
        report.notes.append(f"{split(segment.path)[1]}: {segment.size - reached:,} bytes left out: {what}")
    return report


def keep_beside(files: Sequence[File], folder: Path) -> None:
    """Carry over what no log tells: the topic's id."""
    for file in files:
        if file.format == "kafka.partition" and file.problem is None:
            with Source(file.path) as source:
                (folder / METADATA).write_bytes(source.read(0, source.size))


def keep_times(segments: Sequence[File], folder: Path, bases: Mapping[str, int] | None = None) -> None:
    """The times of the segments' files: retention goes by them where records have no time of their own. `bases` tells where segments
    begin now that began elsewhere.
    """
    for segment in segments:
        base = (bases or {}).get(segment.path)
        copy = folder / (split(segment.path)[1].removesuffix(".swap") if base is None else segment_name(base, "log"))
        if segment.modified is not None and copy.exists():
            os.utime(copy, (segment.modified, segment.modified))
