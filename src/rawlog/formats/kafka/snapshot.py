"""A snapshot of the state of all producers up to the offset in its name. One checksum covers the whole file.

`partition/survey.py` checks it against the log. No rewrite copies it:
`partition/writer.py:snapshot` makes it again from the state of the producers.

Authority: org.apache.kafka.storage.internals.log.ProducerStateManager at apache/kafka 1eb7644349cb (4.0.0-SNAPSHOT).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.kafka.entries import decode_entries, explain_entry, fault, frames_of
from rawlog.formats.kafka.log.layouts import SNAPSHOT_ENTRY, SNAPSHOT_HEADER
from rawlog.io.checksums import crc32c
from rawlog.model.explain import Node, layout_nodes
from rawlog.model.format import File, Want
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

__all__ = ["LAYOUTS", "decode", "explain", "explain_header", "fault", "scan"]

LAYOUTS = (SNAPSHOT_HEADER, SNAPSHOT_ENTRY)


def scan(data: Bytes, kind: int) -> Frames:
    """The entries, if the checksum of the file is right."""
    empty = frames_of(data, SNAPSHOT_ENTRY, SNAPSHOT_HEADER.size, 0, Status.OK)
    if data.size < SNAPSHOT_HEADER.size:
        return frames_of(data, SNAPSHOT_ENTRY, 0, 0, Status.TRUNCATED if data.size else Status.OK)
    head = SNAPSHOT_HEADER.take(data, np.zeros(1, np.int64))[0]
    if int(head["version"]) != 1:
        return frames_of(data, SNAPSHOT_ENTRY, 0, 0, Status.BAD_MAGIC)
    if crc32c(data, SNAPSHOT_HEADER.after("crc"), data.size) != int(head["crc"]):
        return frames_of(data, SNAPSHOT_ENTRY, 0, 0, Status.BAD_CRC)
    present = (data.size - SNAPSHOT_HEADER.size) // SNAPSHOT_ENTRY.size
    count = int(head["count"])
    if not 0 <= count <= present:
        return frames_of(data, SNAPSHOT_ENTRY, SNAPSHOT_HEADER.size, present, Status.BAD_COUNT)
    if count == 0:
        return empty
    return frames_of(data, SNAPSHOT_ENTRY, SNAPSHOT_HEADER.size, count, Status.OK)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """Entries as rows of `kafka.producers`."""
    return decode_entries(frames, want, SNAPSHOT_ENTRY, _with_snapshot)


def _with_snapshot(raw: NDArray[Any], file: File) -> dict[str, NDArray[np.int64]]:
    return {"snapshot_offset": np.full(len(raw), file.place.start_offset or 0, np.int64)}


def explain(frames: Frames, file: File) -> list[Node]:
    """The fields of one entry."""
    return explain_entry(frames, file, SNAPSHOT_ENTRY)


def explain_header(head: bytes, file: File) -> list[Node]:
    """Version, checksum and count in front of the entries."""
    data = np.frombuffer(head, np.uint8)
    return [Node(0, SNAPSHOT_HEADER.size, SNAPSHOT_HEADER.name, children=layout_nodes(SNAPSHOT_HEADER, data, 0, 0))]
