"""What `report` counts of the batches of a partition: codecs, and who wrote them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.layouts import CODECS, NONE, Attributes

Rows = dict[str, tuple[int, int]]
#: So many producers of one window are counted, those with the most batches.
PRODUCERS = 64


def tally(frames: Frames, file: File) -> dict[str, Rows]:
    """Batches and bytes by codec, by kind of producer and by producer id; batches by the version of their format."""
    head, sizes = heads(frames), frames.sizes
    codecs = [*CODECS, "invalid", "invalid", "invalid"]
    control = head.has(Attributes.CONTROL)
    transactional = head.has(Attributes.TRANSACTIONAL) & ~control
    idempotent = (head["producer_id"] != NONE) & (head["magic"] == 2) & ~control & ~transactional
    kinds = np.select([control, transactional, idempotent], [3, 2, 1], 0)
    names = ("without producer id", "idempotent", "transactional", "control batches")
    found = {
        "codec": _counted(head.codec, sizes, codecs),
        "kind of producer": _counted(kinds, sizes, names),
        "format version": _counted(head["magic"], sizes, ("v0", "v1", "v2")),
    }
    known = np.flatnonzero(idempotent | transactional)
    if known.size:
        found["producer id"] = _by_producer(head["producer_id"][known], sizes[known])
    return {aspect: rows for aspect, rows in found.items() if rows}


def _counted(values: NDArray[np.int64], sizes: NDArray[np.int64], names: list[str] | tuple[str, ...]) -> Rows:
    inside = (values >= 0) & (values < len(names))
    numbers = np.bincount(values[inside], minlength=len(names))
    sums = np.bincount(values[inside], sizes[inside], minlength=len(names))
    return {name: (int(numbers[at]), int(sums[at])) for at, name in enumerate(names) if numbers[at]}


def _by_producer(producers: NDArray[np.int64], sizes: NDArray[np.int64]) -> Rows:
    numbers, inverse, counts = np.unique(producers, return_inverse=True, return_counts=True)
    sums = np.bincount(inverse, sizes)
    first = np.argsort(-counts, kind="stable")[:PRODUCERS].tolist()
    return {str(numbers[at]): (int(counts[at]), int(sums[at])) for at in first}
