"""The policies of `repair`, `rebuild`, `compact` and `erase`: which messages the one writer, `rewrite`, gets, and what becomes of them.

`repair` keeps what is whole, in a copy that opens and verifies clean; index, bloom and other derived files are rebuilt. `compact` leaves
out what Ambry's own compactor would (§16), by one of two filters, as upstream: one that knows undeletes, and the older one, which is
upstream's default and does not. `erase` zeroes the content of blobs as Ambry's hard delete does. The id of the owner and the name of the
file, which a hard delete leaves, become hyphens. Sizes and positions stay. A blob that was not deleted gets a DELETE at the end of the log:
no store serves it any more, and replicas that are copied from this one do not either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry import LOG, Segment, keys, segment_of
from rawlog.formats.ambry.index import MAX_ENTRIES
from rawlog.formats.ambry.layouts import NONE, SEGMENT_HEADER, Flag, Kind
from rawlog.formats.ambry.log import decode
from rawlog.formats.ambry.store.diagnosis import Diagnosis, is_sound, segment_words
from rawlog.formats.ambry.store.rewrite import (
    StorePlan,
    Style,
    carry_out,
    number_option,
    other_files,
    probability_option,
    report_tails,
    unchanged_plan,
)
from rawlog.formats.ambry.store.rules import index_gap
from rawlog.formats.ambry.store.state import (
    DELETE,
    DELETED,
    ORPHANS,
    PUT,
    STATES,
    TTL_UPDATE,
    Catalog,
    Fold,
    catalog_of_messages,
    expired,
    fold,
)
from rawlog.formats.ambry.store.store import LOG_FORMAT, BlobStore, blob_stores, now_of, with_logs
from rawlog.formats.ambry.writer import hard_delete, update_message
from rawlog.io.output import Folder
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import CorruptError, OptionError
from rawlog.model.format import Keep, Want
from rawlog.model.outline import Reading
from rawlog.model.report import Action, Entry, Report
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.model.text import counted


def repair(files: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a repaired copy of a store.

    Options: `max_entries`, `probability` as for a rebuild, `capacity` of segments whose headers are all damaged.
    """
    probability_option(options)
    [store] = with_logs(files)
    policy = Diagnosis(store, options)
    policy.decide()
    return carry_out(policy.plan(), folder, policy.report)


def rebuild(files: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Copy a store with index and bloom files built from its log.

    Options: `max_entries` of an index file, `probability` of the blooms. Without them new files are cut as the old ones were. What the log
    does not say any more (the expiry of a blob whose PUT was compacted away) is taken from the old index, if that is sound. The
    unfinished message that a crash leaves at the end of the log is dropped and reported: Ambry would not start on it.
    CorruptError if the log is damaged: repair it first.
    """
    [store] = with_logs(files)
    probability_option(options)
    refuse_damage(store)
    plan, report = unchanged_plan(store, kept=other_files(store)), Report()
    report_tails(store, report)
    indexes = store.sound_indexes
    folded = fold(store.catalog, indexes, ORPHANS)
    plan.entries, plan.entry_segment = folded.entries, store.catalog.segment
    plan.style = Style.of(store, indexes, frozenset((number, index.start) for number, index in indexes), options)
    report.count("messages", len(store.catalog))
    return carry_out(plan, folder, report)


def refuse_damage(store: BlobStore) -> None:
    """CorruptError, for verbs that do not repair, if `repair` would drop, change, move or miss anything but an unfinished end."""
    for file in store.files:
        if file.format == LOG_FORMAT and file.problem is not None and file.place.state is None:
            raise CorruptError(f"it cannot be read: {file.problem}", path=file.path, format=LOG_FORMAT)
    policy = Diagnosis(store, {})
    policy.decide()
    policy.kept()
    losses = [entry for entry in policy.report.entries if entry.is_loss or entry.action is Action.MOVED]
    if losses:
        others = f", and {counted(len(losses) - 1, 'other fault')}" if len(losses) > 1 else ""
        raise CorruptError(
            f"{losses[0].reason}{others}: repair the store first",
            path=losses[0].path or store.folder,
            position=losses[0].start,
            format=LOG_FORMAT,
        )


def reading(files: Store) -> Reading:
    """The messages that `repair` would keep, and its report; empty for a sound store."""
    stores = blob_stores(files)
    if len(stores) != 1:
        return Reading()
    [store] = stores
    if not store.logs:
        lost = [(f"{store.folder}/{segment.log_name()}", parts) for segment, parts in store.lost_segments().items()]
        return Reading(entries=tuple(Entry(Action.LOST, segment_words(parts), path) for path, parts in lost))
    if is_sound(files, store):
        return Reading()
    policy = Diagnosis(store, {})
    policy.decide()
    pieces = tuple(policy.pieces(policy.kept()))
    entries = tuple(
        replace(entry, action=Action.LOST, reason=policy.restored[number].reason)
        if number in policy.restored
        else entry
        for number, entry in enumerate(policy.report.entries)
    )
    return Reading(pieces, policy.patches(), entries) if entries else Reading()


FILTERS = ("with-undelete", "without-undelete")
RETENTION_HOURS = 168


@dataclass(slots=True)
class Task:
    """What a compaction is about: the segments it replaces, and the times it judges by (milliseconds)."""

    numbers: frozenset[int]
    reference: int
    now: int
    filter: str
    purge: bool


def compact(files: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Write a compacted copy of a store.

    Options: `filter` (with-undelete by default: the other one loses undeleted blobs), `segments` (names such as `0_0,1_0`; all but the
    last by default), `now`, `retention_hours` of deletes (168) or `reference_time`, `purge_tombstones`, `max_entries`, `probability`.
    OptionError for segments that are not there or not next to one another, DataError if the log is damaged.
    """
    [store] = with_logs(files)
    refuse_damage(store)
    task, report = _task(store, options), Report()
    folded = fold(store.catalog, store.sound_indexes, ORPHANS)
    report_tails(store, report)
    kept = survivors(folded, task)
    report.count("messages", int(kept.sum()))
    if removed := kept.size - int(kept.sum()):
        why = "their blobs are deleted or expired, or newer messages replace them"
        report.add(Action.REMOVED, f"{removed:,} of {counted(kept.size, 'message')}: {why}")
    return carry_out(_plan(store, folded, kept, task, options), folder, report)


def _task(store: BlobStore, options: Mapping[str, str]) -> Task:
    names = [segment.name for segment in store.segments]
    if names == [""]:
        raise OptionError("a store of one log_current has no segments to compact")
    segment_names = [name for name in options.get("segments", ",".join(names[:-1])).split(",") if name]
    unknown = [name for name in segment_names if name not in names]
    if unknown:
        raise OptionError(f"segments {', '.join(unknown)}: not in the store, which has {', '.join(names)}")
    if not segment_names:
        raise OptionError("the store has one log segment, and the last segment is never compacted")
    numbers = sorted(names.index(name) for name in segment_names)
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise OptionError(f"segments {', '.join(segment_names)} are not next to one another")
    filter_name = options.get("filter", FILTERS[0])
    if filter_name not in FILTERS:
        raise OptionError(f"filter {filter_name!r}: {' or '.join(FILTERS)} expected")
    now = now_of(options)
    hours = number_option(options, "retention_hours", RETENTION_HOURS) or RETENTION_HOURS
    reference = now_of({"now": options["reference_time"]}) if "reference_time" in options else now - hours * 3_600_000
    return Task(
        frozenset(numbers), reference, now, filter_name, options.get("purge_tombstones") in ("true", "1", "yes")
    )


def survivors(folded: Fold, task: Task) -> NDArray[np.bool_]:
    """Which messages stay."""
    kind, blob = folded.entries.kind, folded.blob
    inside = np.isin(folded.catalog.segment, sorted(task.numbers))
    judge = _keeps_with_undelete if task.filter == FILTERS[0] else _keeps_without_undelete
    kept: NDArray[np.bool_] = ~inside | judge(folded, kind, task)
    # A TTL update of a blob of which nothing else is left says nothing any more.
    others = np.zeros(folded.first.size, np.bool_)
    others[blob[kept & (kind != TTL_UPDATE)]] = True
    kept &= ~inside | (kind != TTL_UPDATE) | others[blob]
    return kept


def _is_old(time: NDArray[np.int32], task: Task) -> NDArray[np.bool_]:
    """Which of these times (seconds) lie before the reference."""
    result: NDArray[np.bool_] = time.astype(np.int64) * 1000 < task.reference
    return result


def _is_purged(folded: Fold, task: Task) -> NDArray[np.bool_]:
    """Which messages are tombstones that may go: nothing is left to protect, and their blobs would have expired."""
    is_tombstone: NDArray[np.bool_] = (folded.put[folded.blob] < 0) & expired(folded.expires, task.now)
    return is_tombstone & task.purge


def _stays_outside(folded: Fold, task: Task) -> NDArray[np.bool_]:
    """Which blobs have their PUT in a segment that is not compacted."""
    segment = folded.catalog.segment[np.maximum(folded.put, 0)] if len(folded.catalog) else folded.put
    result: NDArray[np.bool_] = (folded.put >= 0) & ~np.isin(segment, sorted(task.numbers))
    return result


def _keeps_with_undelete(folded: Fold, kind: NDArray[np.int64], task: Task) -> NDArray[np.bool_]:
    blob, answer = folded.blob, folded.answer
    row = np.maximum(answer, 0)
    deleted = folded.is_deleted
    undeleted = (answer >= 0) & ~deleted & (folded.answer_flags & int(Flag.UNDELETE) != 0)
    old = deleted & _is_old(folded.time[row], task)
    has_expired = folded.is_expired(task.now)
    same_life = folded.life_version == folded.life_version[row][blob]
    kept: NDArray[np.bool_] = np.select(
        [answer[blob] < 0, kind == PUT, kind == TTL_UPDATE, kind == DELETE],
        [
            kind != TTL_UPDATE,
            ~(old | has_expired)[blob],
            (~old | _stays_outside(folded, task))[blob],
            deleted[blob] & same_life & ~_is_purged(folded, task),
        ],
        undeleted[blob] & same_life & ~has_expired[blob],
    ).astype(np.bool_)
    return kept


def _keeps_without_undelete(folded: Fold, kind: NDArray[np.int64], task: Task) -> NDArray[np.bool_]:
    blob, rows = folded.blob, np.arange(kind.size)
    last_delete, last_ttl = (np.full(folded.first.size, NONE, np.int64) for _ in range(2))
    old = (kind == DELETE) & _is_old(folded.time, task)
    np.maximum.at(last_delete, blob[old], rows[old])
    updated = folded.flags & int(Flag.TTL_UPDATE) != 0
    np.maximum.at(last_ttl, blob[updated], rows[updated])
    stays = (last_delete[blob] < rows) & ((last_ttl[blob] > rows) | ~expired(folded.expires, task.now))
    put = folded.put
    put_stays = (put >= 0) & (_stays_outside(folded, task) | stays[np.maximum(put, 0)]) if kind.size else put >= 0
    return np.select(
        [kind == PUT, kind == TTL_UPDATE, kind == DELETE], [stays, put_stays[blob], ~_is_purged(folded, task)], True
    ).astype(np.bool_)


def _plan(store: BlobStore, folded: Fold, kept: NDArray[np.bool_], task: Task, options: Mapping[str, str]) -> StorePlan:
    """The surviving messages of the compacted segments in new segments; other segments, and their sound index files, unchanged."""
    old, catalog, numbers = store.segments, store.catalog, sorted(task.numbers)
    generation = max(old[number].generation for number in numbers) + 1
    most = store.capacities[numbers[0]] or 0
    rows = np.flatnonzero(kept & np.isin(catalog.segment, numbers))
    target, offset = place_in_segments(catalog.size[rows], most)
    count = int(target[-1]) + 1 if rows.size else 0
    if count > len(numbers):
        raise OptionError(f"{count} segments of {most:,} bytes are needed for what stays of {len(numbers)}")
    # The new segments take the first places of those that they replace.
    new = [Segment(old[number].position, generation) for number in numbers[:count]]
    names = [*old[: numbers[0]], *new, *old[numbers[-1] + 1 :]]
    capacities = [*store.capacities[: numbers[0]], *([most] * count), *store.capacities[numbers[-1] + 1 :]]
    segment = catalog.segment.copy()
    segment[catalog.segment > numbers[-1]] += count - len(numbers)
    segment[rows] = target + numbers[0]
    indexed = task.numbers | _with_damaged_index(store)
    entry_rows = np.flatnonzero(kept & np.isin(catalog.segment, sorted(indexed)))
    entries, is_moved = folded.entries.take(entry_rows), np.isin(entry_rows, rows)
    new_offset, original = entries.offset.copy(), entries.original_offset.copy()
    new_offset[is_moved], original[is_moved] = offset, _originals(folded, rows, target, offset)
    replaced = {old[number] for number in indexed}
    derived = (*store.index_files, *store.bloom_files)
    sizes = [len(index.entries) for index in store.indexes]
    return StorePlan(
        store,
        names,
        capacities,
        catalog.take(np.flatnonzero(kept)),
        segment[kept],
        entries=replace(entries, offset=new_offset, original_offset=original),
        entry_segment=segment[entry_rows],
        style=Style(
            number_option(options, "max_entries", max(sizes, default=MAX_ENTRIES)) or MAX_ENTRIES,
            probability_option(options),
            last_modified=lambda _, run: int(run.operation_time[-1]),
            seal_last=max(indexed) != len(old) - 1,
        ),
        kept=[
            *(file for file in derived if segment_of(file.path) not in replaced),
            *(file for file in other_files(store) if file.format != "ambry.cleanup"),
        ],
    )


def _with_damaged_index(store: BlobStore) -> frozenset[int]:
    """The numbers of segments with a damaged index or bloom file, or without one of their index files."""
    sound = {index.path for _, index in store.sound_indexes} | {path for path, _ in store.blooms.values()}
    damaged = [file.path for file in (*store.index_files, *store.bloom_files) if file.path not in sound]
    damaged += [str(mark.path) for mark in index_gap.check(store.files)]
    numbers = (store.numbers.get(segment_of(path) or Segment()) for path in damaged)
    return frozenset(number for number in numbers if number is not None)


def place_in_segments(sizes: NDArray[np.int64], most: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """The segment number and offset of each of a row of messages."""
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
    """The new places of the messages that entries refer to; -1 unless they are in the same segment."""
    catalog, original = folded.catalog, folded.original[rows]
    at = np.full(rows.size, NONE, np.int64)
    for number in np.unique(catalog.segment[rows]).tolist():
        in_segment = (catalog.segment[rows] == number) & (original != NONE)
        at[in_segment] = catalog.rows_at(number, original[in_segment])
    place = np.minimum(np.searchsorted(rows, at), max(rows.size - 1, 0))
    is_kept = (at >= 0) & (rows[place] == at) & (segment[place] == segment) if rows.size else at >= 0
    return np.where(is_kept, offset[place], NONE) if rows.size else at


Identity = tuple[int, int, int]


def erase(files: Store, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
    """Copy a store with the content, user metadata, owner and file name of some blobs erased (§7), and a DELETE for each that was live.

    Option `blobs`: their ids, separated by commas; `keep` says no to rows of others. `now`: the time of the DELETEs. Log segments that the
    store does not read are left out, for they may have the same blobs. OptionError for an id that the log does not have, DataError if the
    log is damaged.
    """
    texts = [text.strip() for text in options.get("blobs", "").split(",") if text.strip()]
    named = {keys.identity_of(keys.from_text(text)): text for text in texts}
    [store] = with_logs(files)
    refuse_damage(store)
    blobs = {*named, *(_refused_blobs(store, keep) if keep is not None else ())}
    if not blobs and keep is None:
        raise OptionError("no blob named: nothing to erase")
    plan, report = unchanged_plan(store, kept=other_files(store)), Report()
    report_tails(store, report)
    catalog, rewritten, met = store.catalog, dict[int, bytes](), set()
    puts = np.flatnonzero(catalog.kind == PUT)
    for row, identity in zip(puts.tolist(), catalog.identity.take(puts).tuples, strict=True):
        if identity not in blobs:
            continue
        path, position, size = store.place(row)
        with Source(path) as source:
            rewritten[row] = hard_delete(source.read(position, size), texts=("owner_id", "filename"))
        met.add(identity)
        blob = keys.text_of(catalog.key(row))
        report.add(Action.REMOVED, f"content of blob {blob}", path, start=position, stop=position + size)
    missing = [text for identity, text in named.items() if identity not in met]
    if missing:
        raise OptionError(f"{len(missing)} of the blobs have no content in this store: {', '.join(missing[:3])}")
    report.count("erased", len(rewritten))
    deletes = list(_deletes(store, met, int(options.get("now", "0")), report))
    if deletes:
        plan.segments, plan.capacities, added = _append_messages(store, [raw for _, raw in deletes])
        rewritten |= {len(catalog) + number: raw for number, (_, raw) in enumerate(deletes)}
        plan.catalog = catalog.join(added)
        plan.segment = plan.catalog.segment
    if deletes or _with_damaged_index(store):
        indexes = store.sound_indexes
        plan.entries, plan.entry_segment = fold(plan.catalog, indexes, ORPHANS).entries, plan.segment
        plan.style = Style.of(store, indexes, frozenset((number, index.start) for number, index in indexes), options)
    else:
        plan.kept = [*store.index_files, *store.bloom_files, *plan.kept]
    plan.rewritten = rewritten
    return carry_out(plan, folder, report)


def _refused_blobs(store: BlobStore, keep: Keep) -> Iterator[Identity]:
    """The blobs of which a row is not to stay."""
    columns = tuple(dict.fromkeys((*keep.columns, "key")))
    for file in store.logs:
        for frames in walk(file, LOG, errors="skip"):  # damage was refused
            for batch in decode(frames, Want(RECORDS.subset(columns), file, keep.limit)):
                rows = np.flatnonzero(~keep.test(batch.select(list(keep.columns))))
                for key in batch.column("key").take(rows).to_pylist():
                    yield keys.identity_of(key)


def _deletes(store: BlobStore, erased: Collection[Identity], now: int, report: Report) -> Iterator[tuple[int, bytes]]:
    """A DELETE for each erased blob that the store would still serve, or serve again after an undelete; with the row of its PUT."""
    folded = store.state
    states = folded.states(now)
    stored = np.flatnonzero((folded.answer >= 0) & (folded.put >= 0))
    catalog = folded.catalog
    identities = catalog.identity.take(folded.put[stored]).tuples
    for number, identity in zip(stored.tolist(), identities, strict=True):
        if identity not in erased or STATES[int(states[number])] == DELETED:
            continue
        put = int(folded.put[number])
        life = int(folded.life_version[folded.answer[number]])
        owner = {"account_id": int(catalog.account_id[put]), "container_id": int(catalog.container_id[put])}
        raw = update_message(Kind.DELETE, catalog.key(put), time=now, life_version=life, **owner)
        report.add(Action.ADDED, f"a DELETE of blob {keys.text_of(catalog.key(put))}", is_expected=True)
        report.count("deleted")
        yield put, raw


def _append_messages(
    store: BlobStore, messages: Sequence[bytes]
) -> tuple[Sequence[Segment], Sequence[int | None], Catalog]:
    """The segments of a store with messages appended, and the catalog of the new messages."""
    segments, capacities = list(store.segments), list(store.capacities)
    rows = store.catalog.rows_in(len(segments) - 1)
    ends = store.catalog.offset[rows] + store.catalog.size[rows]
    first = 0 if capacities[-1] is None else SEGMENT_HEADER.size
    end = int(ends.max(initial=first))
    pieces = []
    for raw in messages:
        capacity = capacities[-1]
        if capacity is not None and end + len(raw) > capacity:
            segments.append(Segment(segments[-1].position + 1, 0))
            capacities.append(capacity)
            end = first
        pieces.append((raw, len(segments) - 1, end))
        end += len(raw)
    return segments, capacities, catalog_of_messages(pieces)
