"""Writing index segments and blooms as Ambry does, from entries in the order of their messages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import EncodeError
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.bloom import Bloom, make
from rawlog.formats.ambry.index import Entries
from rawlog.formats.ambry.kernels.entries import write_entries
from rawlog.formats.ambry.layouts import NONE, VALUES
from rawlog.formats.ambry.paths import Segment
from rawlog.formats.ambry.writer import sealed

MAX_ENTRIES = 10_000
MAX_BYTES = 20 << 20
PROBABILITY = 0.01
LATEST = 4


def runs(
    entries: Entries,
    segment: NDArray[np.int32],
    *,
    max_entries: int = MAX_ENTRIES,
    starts: frozenset[tuple[int, int]] = frozenset(),
    version: int = LATEST,
) -> Iterator[slice]:
    """Entries cut into index files where Ambry cuts them (§10.4), and at `starts` (segment, offset) if those are given."""
    count = len(entries)
    held = np.concatenate(([0], np.cumsum(entries.sizes + VALUES[version].size)))
    cuts = np.flatnonzero(np.diff(segment)) + 1
    if starts:
        wanted = np.array([place for _, place in starts], np.int64)
        maybe = np.flatnonzero(np.isin(entries.offset, wanted))
        named = [row for row in maybe.tolist() if (int(segment[row]), int(entries.offset[row])) in starts]
        cuts = np.union1d(cuts, np.array(named, np.int64))
    at = 0
    while at < count:
        border = int(cuts[place]) if (place := int(np.searchsorted(cuts, at, side="right"))) < cuts.size else count
        full = int(np.searchsorted(held, held[at] + MAX_BYTES))  # the entry that reaches the limit is the last one
        stop = min(border, at + max_entries, max(full, at + 1))
        yield slice(at, stop)
        at = stop


def encode_index(run: Entries, *, version: int = LATEST, last_modified: int | None = None, least: int = 0) -> bytes:
    """The bytes of an index file with these entries, which are in log order. EncodeError where an old version cannot hold the keys.

    Equal keys are written with the bytes of the first of them. Without `last_modified` it is the latest time of an operation. An entry
    takes `least` bytes at least, as older releases had it.
    """
    leader, order = _sorted(run)
    value_size, key_size = VALUES[version].size, int(run.sizes.max())
    if version < 2 and (run.sizes != key_size).any():
        raise EncodeError(f"an index of version {version} has keys of one size only")
    entry_size = max(key_size + value_size, least if version >= 2 else 0)
    end = int(run.offset[-1]) + int(run.size[-1])
    head = version.to_bytes(2, "big") + (key_size if version < 2 else entry_size).to_bytes(4, "big")
    head += value_size.to_bytes(4, "big") + end.to_bytes(8, "big")
    if version >= 1:
        modified = int(run.operation_time.max()) if last_modified is None else last_modified
        head += modified.to_bytes(8, "big", signed=True) + run.key(0) + int(run.kind[0]).to_bytes(2, "big")
        if version >= 4:
            head += int(run.life_version[0]).to_bytes(2, "big", signed=True)
    body = np.zeros(len(run) * entry_size, np.uint8)
    values = _values(run, version)[order]
    write_entries(run.data, run.starts[leader], run.sizes[leader], values, entry_size, body)
    return sealed(head + body.tobytes())


def _sorted(run: Entries) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entries by key and place in the log, and for each of them, in this order, the first entry of its blob."""
    identity = run.identities
    if identity.is_odd.any():
        told = [keys.order(key) for key in run.keys]
        order = np.array(sorted(range(len(run)), key=lambda row: (told[row], int(run.offset[row]))), np.int64)
    else:
        order = identity.sorted(run.offset)
    begins = identity.begins(order)
    first = np.minimum.reduceat(order, np.flatnonzero(begins))
    return first[np.cumsum(begins) - 1], order


def _values(run: Entries, version: int) -> NDArray[np.uint8]:
    """The values of entries, a row of bytes each."""
    layout = VALUES[version]
    made = np.zeros(len(run), layout.dtype)
    expires = run.expires.astype(np.int64)
    told = {
        "size": run.size,
        "offset": run.offset,
        "flags": run.flags,
        "expires_at": np.where(expires == NONE, NONE, expires * 1000) if version == 0 else expires,
        "original_message_offset": run.original_offset,
        "operation_time": run.operation_time,
        "account_id": run.account_id,
        "container_id": run.container_id,
        "life_version": run.life_version,
    }
    for name in layout.dtype.names or ():
        made[name] = told[name]
    return made.view(np.uint8).reshape(len(run), layout.size)


def bloom_of(
    run: Entries,
    *,
    max_entries: int = MAX_ENTRIES,
    probability: float = PROBABILITY,
    like: Bloom | None = None,
    by_uuid: bool = False,
) -> Bloom:
    """The bloom of a sealed index file; `like` gives its dimensions, else the store's settings do."""
    found = make((), max(max_entries, len(run)), probability)
    if like is not None:
        found = Bloom(like.hash_count, like.words * 0)
    distinct = np.unique(_sorted(run)[0])
    starts, sizes = run.uuid_spans if by_uuid else (run.starts, run.sizes)
    found.add_keys(run.data, starts[distinct], sizes[distinct])
    return found


def write_index_files(
    entries: Entries,
    segment: NDArray[np.int32],
    segments: Sequence[Segment],
    work: Path | None,
    *,
    max_entries: int = MAX_ENTRIES,
    probability: float = PROBABILITY,
    like: Bloom | None = None,
    by_uuid: bool = False,
    starts: frozenset[tuple[int, int]] = frozenset(),
    last_modified: Callable[[int, Entries], int | None] | None = None,
    least: int = 0,
    seal_last: bool = False,
) -> list[str]:
    """Index files of all entries into a directory, with a bloom for each that is sealed: all but the last, unless `seal_last`.

    `last_modified` is asked with the number of the segment and the entries of each file. Returns the names of the files; without `work`
    that is all.
    """
    made = list(runs(entries, segment, max_entries=max_entries, starts=starts))
    names = []
    for number, rows in enumerate(made):
        run = entries.take(rows)
        where, start = int(segment[rows.start]), int(run.offset[0])
        names.append(segments[where].index_name(start))
        if work is not None:
            told = None if last_modified is None else last_modified(where, run)
            (work / names[-1]).write_bytes(encode_index(run, last_modified=told, least=least))
        if seal_last or number < len(made) - 1:
            names.append(segments[where].index_name(start, "bloom"))
            if work is not None:
                bloom = bloom_of(run, max_entries=max_entries, probability=probability, like=like, by_uuid=by_uuid)
                (work / names[-1]).write_bytes(bloom.encode())
    return names
