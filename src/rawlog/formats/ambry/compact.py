"""Compaction: a copy of a store without the messages that it need not keep, as Ambry's own compactor decides (§16).

Two filters, as upstream: one that knows undeletes, and the older one, which is upstream's default and does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rawlog.errors import OptionError
from rawlog.format import File
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.fold import now_of
from rawlog.formats.ambry.index_writer import MAX_ENTRIES, PROBABILITY, Run, bloom_of, encode_index, runs
from rawlog.formats.ambry.layouts import NONE, SEGMENT_HEADER, Flag, Kind
from rawlog.formats.ambry.paths import Segment, capacity, is_current_compaction, segment_of
from rawlog.formats.ambry.rebuild import Report, copy_file, log_entries, number_option, one_store
from rawlog.formats.ambry.state import Entry, Ledger
from rawlog.formats.ambry.store import Store
from rawlog.formats.ambry.writer import segment_header
from rawlog.storage import Source, new_directory

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
    entries = list(log_entries(store, store.indexes()))
    ledger = Ledger()
    for entry in entries:
        ledger.add(entry)
    kept = _survivors(entries, ledger, plan)
    report.messages = len(kept)
    gone = len(entries) - len(kept)
    report.notes.append(f"{gone:,} of {len(entries):,} messages dropped")
    with new_directory(target) as work:
        _copy_rest(store, plan, work)
        placed, segments = _write_logs(store, kept, plan, work)
        _write_indexes(store, placed, segments, plan, options, work)
        report.files = sorted(path.name for path in work.iterdir())
    return report


def _plan(store: Store, options: Mapping[str, str]) -> Plan:
    names = [segment.name for segment in store.segments()]
    if names == [""]:
        raise OptionError("a store of one log_current has no segments to compact")
    wanted = [name for name in options.get("segments", ",".join(names[:-1])).split(",") if name]
    unknown = [name for name in wanted if name not in names]
    if unknown or not wanted:
        raise OptionError(f"segments {unknown or wanted}: of {', '.join(names)}")
    numbers = sorted(names.index(name) for name in wanted)
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        raise OptionError(f"segments {', '.join(wanted)} do not stand side by side")
    chosen = options.get("filter", FILTERS[0])
    if chosen not in FILTERS:
        raise OptionError(f"filter {chosen!r}: {' or '.join(FILTERS)} expected")
    now = now_of(options)
    hours = number_option(options, "retention_hours", RETENTION_HOURS) or RETENTION_HOURS
    reference = now_of({"now": options["reference_time"]}) if "reference_time" in options else now - hours * 3_600_000
    return Plan(frozenset(numbers), reference, now, chosen, options.get("purge_tombstones") in ("true", "1", "yes"))


def _survivors(entries: Sequence[Entry], ledger: Ledger, plan: Plan) -> list[Entry]:
    """The entries whose messages stay, in log order."""
    judge = _keeps_with_undelete if plan.filter == FILTERS[0] else _keeps_without_undelete
    kept = [entry for entry in entries if entry.segment not in plan.numbers or judge(entry, ledger, plan)]
    # A TTL update of a blob of which nothing else is left says nothing any more.
    others = {keys.order(entry.key) for entry in kept if entry.kind is not Kind.TTL_UPDATE}
    return [
        entry
        for entry in kept
        if entry.segment not in plan.numbers or entry.kind is not Kind.TTL_UPDATE or keys.order(entry.key) in others
    ]


def _is_expired(entry: Entry, now: int) -> bool:
    return entry.expires != NONE and now > entry.expires * 1000


def _is_purged(delete: Entry, ledger: Ledger, identity: bytes, plan: Plan) -> bool:
    """Whether a tombstone may go: nothing is left to protect, and its blob would have expired."""
    return plan.purge and ledger.put_of(identity) is None and _is_expired(delete, plan.now)


def _keeps_with_undelete(entry: Entry, ledger: Ledger, plan: Plan) -> bool:
    identity = keys.order(entry.key)
    latest = ledger.find(identity)
    if latest is None:
        return entry.kind is not Kind.TTL_UPDATE
    expired = _is_expired(latest, plan.now)
    if entry.kind is Kind.PUT:
        if latest.kind is Kind.DELETE and latest.time * 1000 < plan.reference:
            return False
        return not expired
    if entry.kind is Kind.TTL_UPDATE:
        if latest.kind is not Kind.DELETE or latest.time * 1000 >= plan.reference:
            return True
        put = ledger.put_of(identity)
        return put is not None and put.segment not in plan.numbers
    if entry.kind is Kind.DELETE:
        same = latest.kind is Kind.DELETE and entry.life_version == latest.life_version
        return same and not _is_purged(entry, ledger, identity, plan)
    return latest.kind is Kind.UNDELETE and entry.life_version == latest.life_version and not expired


def _keeps_without_undelete(entry: Entry, ledger: Ledger, plan: Plan) -> bool:
    identity = keys.order(entry.key)
    if entry.kind is Kind.DELETE:
        return not _is_purged(entry, ledger, identity, plan)
    if entry.kind is Kind.UNDELETE:
        return True
    if entry.kind is Kind.PUT:
        return _put_stays(entry, ledger, identity, plan)
    put = ledger.put_of(identity)
    return put is not None and (put.segment not in plan.numbers or _put_stays(put, ledger, identity, plan))


def _put_stays(put: Entry, ledger: Ledger, identity: bytes, plan: Plan) -> bool:
    later = [entry for entry in ledger.blobs[identity] if entry.place > put.place]
    if any(entry.kind is Kind.DELETE and entry.time * 1000 < plan.reference for entry in later):
        return False
    updated = any(entry.flags & Flag.TTL_UPDATE for entry in later)
    return updated or not _is_expired(put, plan.now)


def _copy_rest(store: Store, plan: Plan, work: Path) -> None:
    """Everything but the replaced segments and what belongs to them."""
    replaced = {store.segments()[number] for number in plan.numbers}
    for file in (*store.logs, *store.index_files, *store.bloom_files, *store.others):
        segment = segment_of(file.path)
        leave = segment in replaced or file.place.state is not None or is_current_compaction(file.path)
        if not leave and file.problem is None and file.format != "ambry.cleanup":
            copy_file(file.path, work / file.path.rpartition("/")[2].removesuffix("_temp"))


def _write_logs(store: Store, kept: Sequence[Entry], plan: Plan, work: Path) -> tuple[list[Entry], list[Segment]]:
    """The surviving messages of the replaced segments, copied end to end; their entries with new places, and the new segments."""
    old = store.segments()
    generation = max(old[number].generation for number in plan.numbers) + 1
    free = [Segment(old[number].position, generation) for number in sorted(plan.numbers)]
    with Source(store.logs[min(plan.numbers)].path) as source:
        most = capacity(source.read(0, 64)) or 0
    segments: list[Segment] = []
    placed: list[Entry] = []
    moved: dict[tuple[int, int], tuple[int, int]] = {}
    out, end = None, 0
    sources = {number: Source(store.logs[number].path) for number in plan.numbers}
    try:
        for entry in kept:
            if entry.segment not in plan.numbers:
                continue
            if out is None or end + entry.size > most:
                if out is not None:
                    out.close()
                segments.append(free[len(segments)])
                out = (work / segments[-1].log_name()).open("xb")
                out.write(segment_header(most))
                end = SEGMENT_HEADER.size
            out.write(sources[entry.segment].read(entry.offset, entry.size))
            moved[entry.place] = (len(segments) - 1, end)
            placed.append(_moved(entry, (len(segments) - 1, end), moved))
            end += entry.size
    finally:
        if out is not None:
            out.close()
        for opened in sources.values():
            opened.close()
    return placed, segments


def _moved(entry: Entry, place: tuple[int, int], moved: Mapping[tuple[int, int], tuple[int, int]]) -> Entry:
    """An entry at its new place; the message it refers to is named only if it came along into the same segment."""
    from dataclasses import replace

    original = NONE
    if entry.original != NONE:
        segment, offset = moved.get((entry.segment, entry.original), (NONE, NONE))
        original = offset if segment == place[0] else NONE
    return replace(entry, segment=place[0], offset=place[1], original=original)


def _write_indexes(
    store: Store,
    placed: Sequence[Entry],
    segments: Sequence[Segment],
    plan: Plan,
    options: Mapping[str, str],
    work: Path,
) -> None:
    old = [len(index.entries) for index in store.indexes()]
    most = number_option(options, "max_entries", max(old, default=MAX_ENTRIES)) or MAX_ENTRIES
    made = list(runs(placed, max_entries=most))
    is_last = max(plan.numbers) == len(store.logs) - 1
    for number, run in enumerate(made):
        segment = segments[run.segment]
        run.last_modified = run.entries[-1].time
        (work / segment.index_name(run.start)).write_bytes(encode_index(run))
        if not (is_last and number == len(made) - 1):
            _write_bloom(run, segment, most, float(options.get("probability", PROBABILITY)), work)


def _write_bloom(run: Run, segment: Segment, most: int, probability: float, work: Path) -> None:
    bloom = bloom_of(run, max_entries=most, probability=probability)
    (work / segment.index_name(run.start, "bloom")).write_bytes(bloom.encode())
