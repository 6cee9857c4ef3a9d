"""Partition directories written in shares: each share its own, joined where the rows of one partition came in several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from rawlog.core.errors import EncodeError
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.formats.kafka.heads import Heads, heads
from rawlog.formats.kafka.layouts import BATCH, MAGIC_V2, NONE
from rawlog.formats.kafka.store.partition_writer import METADATA, PartitionWriter, refuse_existing, staged
from rawlog.formats.kafka.store.sink import Choice, Sink, TopicIds, log_directory
from rawlog.io.walk import walk

ADVICE = 'df.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")'


@dataclass(frozen=True, slots=True)
class Piece:
    """What one share holds of a partition; `numbered` says that its rows came with offsets."""

    topic: str
    partition: int
    rows: int
    first_offset: int
    last_offset: int
    numbered: bool

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"


def write_share(batches: Iterable[pa.RecordBatch], folder: str, options: Mapping[str, str]) -> list[Piece]:
    """Write rows as partition directories below an empty directory; what it then holds. Raises as `sink.write`."""
    sink = Sink(Path(folder), None, Choice.told(options))
    try:
        for batch in batches:
            sink.add(batch)
        sink.close()
    except EncodeError as error:
        if "offsets must rise" in str(error):
            how = f"sort them (in Spark: {ADVICE}), or number them anew with offsets=new"
            raise EncodeError(f"{error}; {how}") from None
        raise
    finally:
        sink.abandon()
    return [
        Piece(topic, number, one.rows, one.first_offset, one.last_offset, bool(one.numbered))
        for (topic, number), one in sink.partitions.items()
    ]


def join_shares(
    shares: Sequence[tuple[str, list[Piece]]], target: str, options: Mapping[str, str], overwrite: bool
) -> int:
    """Make the partitions of all shares appear at `target`, a log directory; the number of rows.

    The rows of a partition that came in several shares are put together by their offsets, or, if they have none, in the order of the
    shares. EncodeError if their ranges of offsets overlap.
    """
    choice, final = Choice.told(options), log_directory(target)
    found: dict[str, list[tuple[Path, Piece]]] = {}
    for folder, pieces in shares:
        for piece in pieces:
            found.setdefault(piece.name, []).append((Path(folder) / piece.name, piece))
    ids = TopicIds(choice)
    with staged(final, overwrite=overwrite) as stage:
        for name, parts in sorted(found.items()):
            refuse_existing(final / name, overwrite)
            filled = [part for part in parts if part[1].rows] or parts[:1]
            if len(filled) == 1:
                filled[0][0].rename(stage / name)
            else:
                _merge(_in_order(filled), stage / name, choice)
            topic_id = ids.of(parts[0][1].topic, final)
            (stage / name / METADATA).write_bytes(f"version: 0\ntopic_id: {topic_id}".encode())
    return sum(piece.rows for _, pieces in shares for piece in pieces)


def _in_order(parts: list[tuple[Path, Piece]]) -> list[tuple[Path, Piece]]:
    if any(piece.numbered != parts[0][1].numbered for _, piece in parts):
        raise EncodeError(f"{parts[0][1].name}: some rows have an offset, others have none; give all or none")
    if not parts[0][1].numbered:
        return parts
    parts = sorted(parts, key=lambda part: part[1].first_offset)
    for (_, one), (_, other) in pairwise(parts):
        if other.first_offset <= one.last_offset:
            raise EncodeError(
                f"{one.name}: offsets {one.first_offset} to {one.last_offset} and {other.first_offset} to {other.last_offset} "
                f"came in different tasks; bring them together: {ADVICE}"
            )
    return parts


def _merge(parts: list[tuple[Path, Piece]], folder: Path, choice: Choice) -> None:
    """One partition of several, its batches as they are but for the offsets of rows that came without."""
    from rawlog.formats.kafka import LOG

    folder.mkdir()
    writer = PartitionWriter(folder, choice.limits, log_start=choice.start_offset)
    try:
        after = NONE
        for source, piece in parts:
            shift = 0 if piece.numbered or after == NONE else after + 1 - piece.first_offset
            for path in sorted(source.glob("*.log")):
                file = File(str(path), path.stat().st_size, None, LOG.name)
                for frames in walk(file, LOG, errors="raise"):
                    if len(frames):
                        writer.append(*_shifted(frames, heads(frames, check_crc=False), shift))
            after = piece.last_offset + shift
        writer.close()
    finally:
        writer.abandon()


def _shifted(frames: Frames, head: Heads, shift: int) -> tuple[Frames, Heads]:
    """The same batches at offsets so many further on: no checksum covers the first offset of a batch."""
    if not shift:
        return frames, head
    if ((head["magic"] == 0) & (head.codec > 0)).any():
        raise EncodeError(
            "compressed entries of magic 0 hold their offsets inside: give rows offsets, or write them in one task"
        )
    moved, data = Heads(head.values.copy()), frames.data.copy()
    moved["base_offset"][:] += shift
    moved["last_offset"][:] += shift
    raw = moved["base_offset"].astype(">i8").view(np.uint8).reshape(-1, 8)
    at = frames.starts[:, None] + BATCH.at("base_offset") + np.arange(8)
    data[at] = raw
    assert (moved["magic"] <= MAGIC_V2).all()
    return replace(frames, data=data), moved
