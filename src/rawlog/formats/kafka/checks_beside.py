"""What verification looks for in the files beside a segment, each for itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rawlog.core.findings import Mark, Rule, Severity, rule
from rawlog.core.format import Inspection
from rawlog.core.layout import Layout
from rawlog.formats.kafka.layouts import INDEX_ENTRY, TIME_INDEX_ENTRY, TXN_INDEX_ENTRY
from rawlog.formats.kafka.texts import line


def _rising(seen: Inspection, values: NDArray[np.int64], what: str, *, strictly: bool = True) -> Iterator[Mark]:
    """Marks for entries that do not follow the one before them, also across windows."""
    if not values.size:
        return
    before = np.concatenate(([seen.memory.get(what, np.iinfo(np.int64).min)], values[:-1]))
    wrong = values <= before if strictly else values < before
    for index in np.flatnonzero(wrong).tolist():
        yield Mark(
            f"{what} {int(values[index])} follows {int(before[index])}",
            position=int(seen.frames.positions[index]),
            size=int(seen.frames.sizes[index]),
            expected=f"{'above' if strictly else 'at least'} {int(before[index])}",
            found=int(values[index]),
        )
    seen.memory[what] = int(values[-1])


def _column(seen: Inspection, layout: Layout, name: str) -> NDArray[np.int64]:
    values: NDArray[np.int64] = layout.take(seen.frames.data, seen.frames.starts)[name].astype(np.int64)
    return values


@rule("kafka.index.order", Severity.ERROR)
def index_order(seen: Inspection) -> Iterator[Mark]:
    """Offsets and positions of an offset index must rise. A broker finds records through it by halving: it will look in
    the wrong place, and after a clean stop it does not check.

    Delete the file: a broker builds it anew, and so does `rebuild`.
    """
    yield from _rising(seen, _column(seen, INDEX_ENTRY, "relative_offset"), "relative offset")
    yield from _rising(seen, _column(seen, INDEX_ENTRY, "position"), "position")


@rule("kafka.timeindex.order", Severity.ERROR)
def timeindex_order(seen: Inspection) -> Iterator[Mark]:
    """Times of a time index must rise and offsets must not fall. Look-ups by time and retention go wrong otherwise.

    Delete both index files of the segment: a broker builds them anew only if the offset index is missing.
    """
    yield from _rising(seen, _column(seen, TIME_INDEX_ENTRY, "timestamp"), "time")
    offsets = _column(seen, TIME_INDEX_ENTRY, "relative_offset")
    yield from _rising(seen, offsets, "relative offset", strictly=False)


@rule("kafka.txnindex.order", Severity.ERROR)
def txnindex_order(seen: Inspection) -> Iterator[Mark]:
    """Aborted transactions are listed in the order of their markers, each from its first offset to its marker.

    A read_committed consumer may be given aborted records. Delete the segment's index files to have them built anew.
    """
    first, last = (_column(seen, TXN_INDEX_ENTRY, name) for name in ("first_offset", "last_offset"))
    yield from _rising(seen, last, "last offset")
    for index in np.flatnonzero(first > last).tolist():
        position = int(seen.frames.positions[index])
        yield Mark("first offset behind the last", position, TXN_INDEX_ENTRY.size, int(last[index]))


@rule("kafka.epochs.order", Severity.ERROR)
def epochs_order(seen: Inspection) -> Iterator[Mark]:
    """Leader epochs and their start offsets must rise. Followers would truncate at the wrong place."""
    rows = [line(seen.frames, index).split() for index in range(len(seen.frames))]
    for column, what in ((0, "epoch"), (1, "start offset")):
        yield from _rising(seen, np.array([int(row[column]) for row in rows], np.int64), what)


def index_rules() -> Sequence[Rule[Inspection]]:
    """The rules of this module, as its format names them."""
    return (index_order,)


def timeindex_rules() -> Sequence[Rule[Inspection]]:
    """The rules of this module, as its format names them."""
    return (timeindex_order,)


def txnindex_rules() -> Sequence[Rule[Inspection]]:
    """The rules of this module, as its format names them."""
    return (txnindex_order,)


def epoch_rules() -> Sequence[Rule[Inspection]]:
    """The rules of this module, as its format names them."""
    return (epochs_order,)
