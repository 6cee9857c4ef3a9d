"""Compaction: a copy of a store without the messages that it need not keep, as Ambry's own compactor decides (§16).

Two filters, as upstream: one that knows undeletes, and the older one, which is upstream's default and does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import OptionError
from rawlog.core.format import File
from rawlog.formats.ambry.index import Entries
from rawlog.formats.ambry.index_writer import MAX_ENTRIES, write_index_files
from rawlog.formats.ambry.layouts import NONE, SEGMENT_HEADER, Flag
from rawlog.formats.ambry.paths import Segment, capacity, is_current_compaction, segment_of
from rawlog.formats.ambry.store.fold import now_of
from rawlog.formats.ambry.store.rebuild import (
    Report,
    copy_file,
    copy_log,
    copy_messages,
    log_name,
    lost_lines,
    number_option,
    one_store,
    probability_option,
    tail_lines,
)
from rawlog.formats.ambry.store.state import DELETE, ORPHANS, PUT, TTL_UPDATE, Fold, expired, fold
from rawlog.formats.ambry.store.store import Store, read_catalog, sound_indexes
from rawlog.formats.ambry.writer import segment_header
from rawlog.io.output import child, new_directory
from rawlog.io.storage import Source

FILTERS = ("with-undelete", "without-undelete")
RETENTION_HOURS = 168


@dataclass(slots=True)
class Plan:
    """What a compaction is about: the segments it replaces, and the times it judges by (milliseconds)."""

    numbers: frozenset[int]
    reference: int
    now: int
    filter: str
    purge: bool


def compact_store(files: Sequence[File], target: str, options: Mapping[str, str] | None = None) -> Report:
    """Write a compacted copy of a store to `target`.

    Options: `filter` (with-undelete by default: the other one loses undeleted blobs), `segments` (names such as `0_0,1_0`; all but the
    last by default), `now`, `retention_hours` of deletes (168) or `reference_time`, `purge_tombstones`, `max_entries`.
    OptionError for segments that are not there or not side by side.
    """
    options = options or {}
    store = one_store(files)
    plan = _plan(store, options)
    report = Report()
    folded = fold(read_catalog(store, errors="raise"), sound_indexes(store), ORPHANS)
    report.dropped += tail_lines(store)
    report.lost += lost_lines(files)
    kept = survivors(folded, plan)
    report.messages = int(kept.sum())
    report.notes.append(f"{kept.size - report.messages:,} of {kept.size:,} messages dropped")
    with new_directory(target) as work:
        _copy_rest(store, plan, work)
        moved, segment, segments = _write_logs(store, folded, kept, plan, work)
        _write_indexes(store, moved, segment, segments, plan, options, work)
        report.files = sorted(path.name for path in work.iterdir())
    return report


def _plan(store: Store, options: Mapping[str, str]) -> Plan:
    names = [segment.name for segment in store.segments()]
    if names == [""]:
        raise OptionError("a store of one log_current has no segments to compact")
    wanted = [name for name in options.get("segments", ",".join(names[:-1])).split(",") if name]
    unknown = [name for name in wanted if name not in names]
    if unknown:
        raise OptionError(f"segments {', '.join(unknown)}: not in the store, which has {', '.join(names)}")
    if not wanted:
        raise OptionError("the last log segment is never compacted, and there is no other one")
    numbers = sorted(names.index(name) for name in wanted)
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise OptionError(f"segments {', '.join(wanted)} are not next to one another")
    chosen = options.get("filter", FILTERS[0])
    if chosen not in FILTERS:
        raise OptionError(f"filter {chosen!r}: {' or '.join(FILTERS)} expected")
    now = now_of(options)
    hours = number_option(options, "retention_hours", RETENTION_HOURS) or RETENTION_HOURS
    reference = now_of({"now": options["reference_time"]}) if "reference_time" in options else now - hours * 3_600_000
    return Plan(frozenset(numbers), reference, now, chosen, options.get("purge_tombstones") in ("true", "1", "yes"))


def survivors(folded: Fold, plan: Plan) -> NDArray[np.bool_]:
    """Which messages stay."""
    kind, blob = folded.entries.kind, folded.blob
    inside = np.isin(folded.catalog.segment, sorted(plan.numbers))
    judge = _keeps_with_undelete if plan.filter == FILTERS[0] else _keeps_without_undelete
    kept: NDArray[np.bool_] = ~inside | judge(folded, kind, plan)
    # A TTL update of a blob of which nothing else is left says nothing any more.
    others = np.zeros(folded.first.size, np.bool_)
    others[blob[kept & (kind != TTL_UPDATE)]] = True
    kept &= ~inside | (kind != TTL_UPDATE) | others[blob]
    return kept


def _is_old(time: NDArray[np.int32], plan: Plan) -> NDArray[np.bool_]:
    """Which of these times (seconds) lie before the reference."""
    result: NDArray[np.bool_] = time.astype(np.int64) * 1000 < plan.reference
    return result


def _is_purged(folded: Fold, plan: Plan) -> NDArray[np.bool_]:
    """Which messages are tombstones that may go: nothing is left to protect, and their blobs would have expired."""
    gone: NDArray[np.bool_] = (folded.put[folded.blob] < 0) & expired(folded.expires, plan.now)
    return gone & plan.purge


def _stays_outside(folded: Fold, plan: Plan) -> NDArray[np.bool_]:
    """Which blobs have their PUT in a segment that is not compacted."""
    segment = folded.catalog.segment[np.maximum(folded.put, 0)] if len(folded.catalog) else folded.put
    result: NDArray[np.bool_] = (folded.put >= 0) & ~np.isin(segment, sorted(plan.numbers))
    return result


def _keeps_with_undelete(folded: Fold, kind: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    blob, found = folded.blob, folded.found
    latest = np.maximum(found, 0)
    deleted = folded.is_deleted
    undeleted = (found >= 0) & ~deleted & (folded.found_flags & int(Flag.UNDELETE) != 0)
    old = deleted & _is_old(folded.time[latest], plan)
    gone = folded.is_expired(plan.now)
    same_life = folded.life_version == folded.life_version[latest][blob]
    kept: NDArray[np.bool_] = np.select(
        [found[blob] < 0, kind == PUT, kind == TTL_UPDATE, kind == DELETE],
        [
            kind != TTL_UPDATE,
            ~(old | gone)[blob],
            (~old | _stays_outside(folded, plan))[blob],
            deleted[blob] & same_life & ~_is_purged(folded, plan),
        ],
        undeleted[blob] & same_life & ~gone[blob],
    ).astype(np.bool_)
    return kept


def _keeps_without_undelete(folded: Fold, kind: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    blob, rows = folded.blob, np.arange(kind.size)
    last_delete, last_ttl = (np.full(folded.first.size, NONE, np.int64) for _ in range(2))
    old = (kind == DELETE) & _is_old(folded.time, plan)
    np.maximum.at(last_delete, blob[old], rows[old])
    updated = folded.flags & int(Flag.TTL_UPDATE) != 0
    np.maximum.at(last_ttl, blob[updated], rows[updated])
    stays = (last_delete[blob] < rows) & ((last_ttl[blob] > rows) | ~expired(folded.expires, plan.now))
    put = folded.put
    put_stays = (put >= 0) & (_stays_outside(folded, plan) | stays[np.maximum(put, 0)]) if kind.size else put >= 0
    return np.select(
        [kind == PUT, kind == TTL_UPDATE, kind == DELETE], [stays, put_stays[blob], ~_is_purged(folded, plan)], True
    ).astype(np.bool_)


def _copy_rest(store: Store, plan: Plan, work: Path) -> None:
    """Everything but the replaced segments and what belongs to them."""
    replaced = {store.segments()[number] for number in plan.numbers}
    for number, file in enumerate(store.logs):
        if number not in plan.numbers:
            copy_log(store, number, child(work, log_name(file)))
    for file in (*store.index_files, *store.bloom_files, *store.others):
        segment = segment_of(file.path)
        leave = segment in replaced or file.place.state is not None or is_current_compaction(file.path)
        if not leave and file.problem is None and file.format != "ambry.cleanup":
            copy_file(file.path, child(work, file.path.rpartition("/")[2].removesuffix("_temp")))


def _write_logs(
    store: Store, folded: Fold, kept: NDArray[np.bool_], plan: Plan, work: Path
) -> tuple[Entries, NDArray[np.int32], list[Segment]]:
    """The surviving messages of the replaced segments, copied end to end; their entries at their new places, and the new segments."""
    old = store.segments()
    generation = max(old[number].generation for number in plan.numbers) + 1
    free = [Segment(old[number].position, generation) for number in sorted(plan.numbers)]
    with Source(store.logs[min(plan.numbers)].path) as source:
        most = capacity(source.read(0, 64)) or 0
    catalog = folded.catalog
    rows = np.flatnonzero(kept & np.isin(catalog.segment, sorted(plan.numbers)))
    segment, offset = _places(catalog.size[rows], most)
    count = int(segment[-1]) + 1 if rows.size else 0
    if count > len(free):
        raise OptionError(f"{count} segments of {most:,} bytes are needed for what stays of {len(free)}")
    for number in range(count):
        with (work / free[number].log_name()).open("xb") as out:
            out.write(segment_header(most))
            copy_messages(store, catalog, rows[segment == number], out)
    entries = folded.entries.take(rows)
    moved = replace(entries, offset=offset, original_offset=_originals(folded, rows, segment, offset))
    return moved, segment, free[:count]


def _places(sizes: NDArray[np.int64], most: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The number of the segment and the offset in it of messages that are laid end to end."""
    segment, offset = np.empty(sizes.size, np.int32), np.empty(sizes.size, np.int64)
    ends = np.cumsum(sizes)
    at = number = 0
    while at < sizes.size:
        before = int(ends[at] - sizes[at])
        stop = max(int(np.searchsorted(ends, before + most - SEGMENT_HEADER.size, side="right")), at + 1)
        segment[at:stop] = number
        offset[at:stop] = ends[at:stop] - sizes[at:stop] - before + SEGMENT_HEADER.size
        at, number = stop, number + 1
    return segment, offset


def _originals(
    folded: Fold, rows: NDArray[np.int64], segment: NDArray[np.int32], offset: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Where the messages that entries refer to stand now; -1 unless they came along into the same segment."""
    catalog, original = folded.catalog, folded.original[rows]
    at = np.full(rows.size, NONE, np.int64)
    for number in np.unique(catalog.segment[rows]).tolist():
        mine = (catalog.segment[rows] == number) & (original != NONE)
        at[mine] = catalog.rows_at(number, original[mine])
    place = np.minimum(np.searchsorted(rows, at), max(rows.size - 1, 0))
    came = (at >= 0) & (rows[place] == at) & (segment[place] == segment) if rows.size else at >= 0
    return np.where(came, offset[place], NONE) if rows.size else at


def _write_indexes(
    store: Store,
    entries: Entries,
    segment: NDArray[np.int32],
    segments: Sequence[Segment],
    plan: Plan,
    options: Mapping[str, str],
    work: Path,
) -> None:
    old = [len(index.entries) for index in store.indexes()]
    write_index_files(
        entries,
        segment,
        segments,
        work,
        max_entries=number_option(options, "max_entries", max(old, default=MAX_ENTRIES)) or MAX_ENTRIES,
        probability=probability_option(options),
        last_modified=lambda _, run: int(run.operation_time[-1]),
        seal_last=max(plan.numbers) != len(store.logs) - 1,
    )
