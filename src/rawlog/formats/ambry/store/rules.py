"""What verification looks for between the files of a store: index against log, bloom against index, message against message."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry import Segment, keys, segment_of
from rawlog.formats.ambry.index import Entries, IndexFile, read_index
from rawlog.formats.ambry.kernels import messages as kernels
from rawlog.formats.ambry.keys import Identities, text_of
from rawlog.formats.ambry.layouts import INDEXES, NONE, Kind
from rawlog.formats.ambry.store.evidence import elect_partition, majority_partition, partitions
from rawlog.formats.ambry.store.state import (
    DELETE,
    PUT,
    TTL_UPDATE,
    UNDELETE,
    Catalog,
    forgotten_expiries,
    is_refused,
)
from rawlog.formats.ambry.store.store import BlobStore, blob_stores, lost_words, may_lack_put, now_of, with_logs
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Account, Few, Mark, Rule, Severity, rule
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.text import counted

Files = Sequence[File]
SHOWN = 10
"""Blobs of a lost segment that a finding names."""
VIOLATIONS = {
    kernels.PUT_AGAIN: "a PUT of a blob that the store already knows",
    kernels.LOWER_LIFE: "a life version lower than before",
    kernels.DELETED_TWICE: "a DELETE of a deleted blob",
    kernels.TTL_OF_DELETED: "a TTL update of a deleted blob",
    kernels.SECOND_TTL: "a second TTL update",
}


SAME_BLOB = "blob id outside of its uuid"


def _indexes(files: Files) -> Iterator[tuple[BlobStore, int, IndexFile]]:
    """All index files, each with its store and the number of its segment."""
    return ((store, store.numbers[index.segment], index) for store in with_logs(files) for index in store.indexes)


def _entry_position(index: IndexFile, number: int) -> int:
    return int(index.header.size + number * index.header.entry_size)


@rule("ambry.store.segments", Severity.ERROR)
def segments(files: Files) -> Iterator[Mark]:
    """The log segments of a store do not belong together: `log_current` next to numbered ones, a position twice, several capacities, a
    numbered segment without the header that says its capacity, or segments of several partitions in a directory that names none.

    Ambry refuses to start on a mixture, and reads messages twice where a compaction left both its source and its target. The
    compaction log, if there is one, says which of them counts.
    """
    for store in with_logs(files):
        names = store.segments
        positions: dict[int, str] = {}
        for number, (file, segment, most) in enumerate(zip(store.logs, names, store.capacities, strict=True)):
            if segment.name and most is None and (len(store.read[number].columns) or not file.size):
                yield Mark("a numbered segment without a header", 0, path=file.path)
            if segment.position in positions:
                message = f"position {segment.position} twice: also {positions[segment.position]}"
                yield Mark(message, path=file.path, found=segment.name)
            positions[segment.position] = file.path
            if (segment.position < 0) != (names[0].position < 0):
                yield Mark("log_current next to numbered segments", path=file.path)
            if most != store.capacities[0]:
                message, first = "another capacity than the first segment's", store.capacities[0]
                yield Mark(message, path=file.path, expected=first, found=most)
        yield from _foreign_segments(store)


def _foreign_segments(store: BlobStore) -> Iterator[Mark]:
    """Segments of another partition than the rest. Where the directory names the partition, `ambry.log.partition` finds their messages."""
    if store.partition is not None:
        return
    catalog, entries = store.catalog, [index.entries for _, index in store.sound_indexes]
    numbers = partitions(catalog.key_data, catalog.key_start)
    by_index = [majority_partition(partitions(part.data, part.starts)) for part in entries]
    by_segment = [majority_partition(numbers[catalog.rows_in(number)]) for number in range(len(store.logs))]
    expected = elect_partition(None, [*by_index, *by_segment])
    for file, partition in zip(store.logs, by_segment, strict=True):
        if partition is not None and partition != expected:
            yield Mark("a segment of another partition", path=file.path, expected=expected, found=partition)


@rule("ambry.store.compaction", Severity.INFO, follows="ambry.store.lost-segment")
def unsettled(files: Files) -> Iterator[Mark]:
    """A file that the store does not read now: a target that a compaction has not committed, a segment that it has replaced, or index and
    bloom files without their log segment.

    Ambry finishes or forgets the compaction when it starts next.
    """
    for file in files:
        if file.place.state is not None:
            words = {
                "temp": "a compaction's target, not committed",
                "compacted": "replaced by a compaction",
                "orphan": "its log segment is not there",
                "copying": "a replica that is being copied here",
            }
            yield Mark(words.get(file.place.state, file.place.state), path=file.path, size=file.size)


@rule("ambry.store.lost-segment", Severity.ERROR)
def lost_segment(files: Files) -> Iterator[Mark]:
    """A log segment is missing, and its index files exist. No compaction log and no newer segment shows that it was removed.

    Ambry ignores the index files and starts: blobs of the segment are gone, and blobs that were deleted in it are live again. Restore the
    segment from another copy. `rawlog repair` names the lost blobs and keeps deleted ones deleted. Where the segment only has another name
    now, repair gives it back its own.

    It is a warning if the index files are gone, too, and a gap between the positions of segments is all that shows it: a compaction may
    have removed the segment, though neither its log, nor a generation above 0, nor the file of its policy says that one has ever run here.
    """
    for store in with_logs(files):
        orphans = store.blobs_without_put()
        blob_ids = ", ".join(keys.text_of(store.catalog.key(row)) for row in orphans[:SHOWN].tolist())
        remark = f"; only updates are left of {counted(orphans.size, 'blob')}: {blob_ids}" if orphans.size else ""
        remark += ", …" if orphans.size > SHOWN else ""
        for position in store.lost_positions():
            path = f"{store.folder}/{Segment(position, 0).log_name()}"
            yield Mark(f"{lost_words(position)}{remark}", path=path, severity=Severity.WARNING)
    for store in blob_stores(files):
        for segment, parts in store.lost_segments().items():
            entries = Entries.join([index.entries for index in map(_read, parts) if index is not None])
            rows = store.catalog.rows_of(entries)
            lost, names = int((rows < 0).sum()), ", ".join(part.path.rpartition("/")[2] for part in parts)
            message = f"log segment {segment.log_name()} is not there; its index files are: {names}"
            if lost or not len(entries):
                yield Mark(f"{message}; {lost:,} of {len(entries):,} messages are lost", path=parts[0].path, found=lost)
                continue
            others = {segment_of(index.path) for index in store.index_files}
            for number in np.unique(store.catalog.segment[rows]).tolist():
                if store.segments[number] not in others:
                    yield Mark(f"{message}; its messages are in {store.logs[number].path}", path=parts[0].path)


def _read(file: File) -> IndexFile | None:
    try:
        return read_index(file.path)
    except RawlogError:
        return None


@rule("ambry.index.end", Severity.ERROR)
def index_end(files: Files) -> Iterator[Mark]:
    """An index file covers more than its log segment holds.

    The log lost its end, and the store does not start. Messages after the end of the log are gone; `rawlog repair` names them and makes
    an index of those that are there.
    """
    for store, number, index in _indexes(files):
        if index.end > (size := store.logs[number].size):
            position, expected = INDEXES[index.header.version].at("log_end_offset"), f"at most {size}"
            yield Mark(
                "the log segment ends before its index", position, path=index.path, expected=expected, found=index.end
            )


@rule("ambry.index.gap", Severity.ERROR)
def index_gap(files: Files) -> Iterator[Mark]:
    """Index files leave messages between them without an entry, or cover some twice.

    Ambry does not notice a missing index file: the blobs whose messages it covered silently vanish.
    """
    for store in with_logs(files):
        ends: dict[int, int] = {}
        for index in store.indexes:
            number = store.numbers[index.segment]
            places = store.between(number, 0, store.logs[number].size)
            expected = ends.get(number, int(places[0]) if places.size else index.start)
            if index.start != expected:
                message = "an index file is missing or overlaps"
                yield Mark(message, path=index.path, expected=expected, found=index.start)
            ends[number] = index.end
        for number in range(max(ends, default=-1)):
            log = store.logs[number]
            after = store.between(number, ends.get(number, 0), log.size)
            if after.size:
                message = f"{counted(len(after), 'message')} after the last index file of their segment"
                yield Mark(message, int(after[0]), log.size - int(after[0]), path=log.path)


@rule("ambry.index.unindexed", Severity.INFO)
def unindexed(files: Files) -> Iterator[Mark]:
    """Messages after the end of the index: the store was not closed, and adds them when it starts next.

    Blobs that were undeleted in that part lose their expiry when Ambry recovers it (its own behaviour).
    """
    for store in with_logs(files):
        ends = {store.numbers[index.segment]: index.end for index in store.indexes}
        for number in range(max(ends), len(store.logs)) if ends else ():
            after = store.between(number, ends.get(number, 0), store.logs[number].size)
            if after.size:
                message = f"{counted(len(after), 'message')} not in the index yet"
                yield Mark(message, int(after[0]), path=store.logs[number].path)


@rule("ambry.index.message", Severity.ERROR)
def entry_without_message(files: Files) -> Iterator[Mark]:
    """An index entry points to where no message begins.

    The blob cannot be read through the index; the log is the truth. `rawlog rebuild` makes a correct one.
    """
    for store, number, index in _indexes(files):
        offsets = index.entries.offset
        nowhere = (store.catalog.rows_at(number, offsets) < 0) & (offsets < index.end)
        for at in np.flatnonzero(nowhere).tolist():
            position = _entry_position(index, at)
            yield Mark("an entry that points to no message", position, path=index.path, found=int(offsets[at]))


@rule("ambry.index.missing", Severity.ERROR)
def message_without_entry(files: Files) -> Iterator[Mark]:
    """A message in the range of an index file has no entry in it: the store does not know what it did to its blob."""
    for store, number, index in _indexes(files):
        places = store.between(number, index.start, index.end)
        for place in places[~np.isin(places, index.entries.offset)].tolist():
            yield Mark("a message without an index entry", place, path=store.logs[number].path, expected=index.path)


@rule("ambry.index.mismatch", Severity.ERROR)
def entry_mismatch(files: Files) -> Iterator[Mark]:
    """An index entry disagrees with the message it points to: blob, kind, size, life version, time, account, container or expiry.

    The store answers by the index. Facts that an update inherits from a PUT since compacted away are not compared. It is a warning if both
    have the same uuid, which is all that Ambry compares, but other bytes of their blob ids differ: no checksum covers the id in the log.
    """
    for store, number, index in _indexes(files):
        rows = store.catalog.rows_at(number, index.entries.offset)
        for entry, fact, expected, found in _mismatches(store.catalog, index, rows):
            severity = Severity.WARNING if fact == SAME_BLOB else None
            message, position = f"{fact} differs from the message's", _entry_position(index, entry)
            yield Mark(message, position, index.header.entry_size, None, expected, found, index.path, severity)


def _mismatches(
    catalog: Catalog, index: IndexFile, rows: NDArray[np.int64]
) -> Iterator[tuple[int, str, object, object]]:
    """The entries that disagree with the messages at `rows` (-1: none): entry number, fact, and both values."""
    entries, version = index.entries, index.header.version
    entry_numbers = np.flatnonzero(rows >= 0)
    rows = rows[entry_numbers]
    same = entries.identities.take(entry_numbers).equal(catalog.identity.take(rows))
    for at, row in zip(entry_numbers[~same].tolist(), rows[~same].tolist(), strict=True):
        yield at, "blob id", keys.text_of(catalog.key(row)), keys.text_of(entries.key(at))
    entry_numbers, rows = entry_numbers[same], rows[same]
    same_entries = entries.take(entry_numbers)
    for place in np.flatnonzero(catalog.keys_differ(rows, same_entries) & same_entries.firsts()).tolist():
        expected, found = keys.text_of(catalog.key(int(rows[place]))), keys.text_of(same_entries.key(place))
        yield int(entry_numbers[place]), SAME_BLOB, expected, found
    kind = catalog.kind[rows]
    put = kind == PUT
    always = np.ones(rows.size, np.bool_)
    never_expires = np.where(kind == TTL_UPDATE, NONE, catalog.expires[rows])
    for fact, stored, indexed, counts in (
        ("kind", kind, entries.kind[entry_numbers], always),
        ("size", catalog.size[rows], entries.size[entry_numbers], always),
        ("life version", catalog.life_version[rows], entries.life_version[entry_numbers], always & (version >= 3)),
        ("operation time", catalog.time[rows], entries.operation_time[entry_numbers], always & (version >= 1)),
        ("expiry", never_expires, entries.expires[entry_numbers], put | (kind == TTL_UPDATE)),
        ("account", catalog.account_id[rows], entries.account_id[entry_numbers], put & (version >= 1)),
        ("container", catalog.container_id[rows], entries.container_id[entry_numbers], put & (version >= 1)),
    ):
        for place in np.flatnonzero(counts & (stored != indexed)).tolist():
            both = int(stored[place]), int(indexed[place])
            yield int(entry_numbers[place]), fact, *((Kind(number).name for number in both) if fact == "kind" else both)


@rule("ambry.index.reset-key", Severity.WARNING)
def reset_key(files: Files) -> Iterator[Mark]:
    """The reset key in an index file's header is not that of the first message it covers.

    Replication uses it to find its way after the index was rebuilt; reading blobs does not.
    """
    for store, number, index in _indexes(files):
        header = index.header
        row = int(store.catalog.rows_at(number, np.array([index.start]))[0])
        if row < 0 or header.reset_key is None:
            continue
        key, kind = store.catalog.key(row), Kind(int(store.catalog.kind[row]))
        if keys.order(key) != keys.order(header.reset_key) or header.reset_kind != kind:
            expected, found = (
                f"{keys.text_of(key)} {kind.name}",
                f"{keys.text_of(header.reset_key)} {header.reset_kind}",
            )
            yield Mark("a reset key that is not the first entry's", path=index.path, expected=expected, found=found)


@rule("ambry.bloom.key", Severity.ERROR)
def bloom_key(files: Files) -> Iterator[Mark]:
    """A bloom filter denies a key that its index segment has: the store does not find the blob there.

    Remove the bloom file (Ambry makes it again), or rebuild it. Where the index file is missing, the bloom is compared with the messages of
    the log. A blob id that it does not have is only a warning: the id may be damaged, and no checksum covers it.
    """
    for store in with_logs(files):
        for number, log in enumerate(store.logs):
            is_shifted = bool(store.read[number].damages)
            for row in () if is_shifted else denied_ids(store, store.catalog, number).tolist():
                path, position, size = store.place(row)
                blob = keys.text_of(store.catalog.key(row))
                message = f"blob id {blob} is denied by the bloom of its place"
                yield Mark(message, path=log.path, position=position, size=size, severity=Severity.WARNING)
    for store, _, index in _indexes(files):
        path, bloom = store.blooms.get((index.segment, index.start), ("", None))
        entries = index.entries
        denied = (
            []
            if bloom is None
            else np.flatnonzero(~bloom.have_keys(entries.data, entries.starts, entries.sizes)).tolist()
        )
        if denied:
            missing = dict.fromkeys(map(entries.key, denied))
            first, name = keys.text_of(next(iter(missing))), index.path.rpartition("/")[2]
            yield Mark(f"{len(missing):,} keys of {name} are not in this Bloom filter, the first {first}", path=path)


def denied_ids(store: BlobStore, catalog: Catalog, number: int) -> NDArray[np.int64]:
    """The rows of messages of a segment whose blob id is denied by the bloom of an unreadable index file.

    Where that index file ended is not known if the next one is missing too: what the bloom denies from some place on is not its.
    """
    segment = store.segments[number]
    read = {index.start for index in store.indexes if index.segment == segment}
    blooms = {start: bloom for (bloom_segment, start), (_, bloom) in store.blooms.items() if bloom_segment == segment}
    starts = sorted(read | blooms.keys())
    inside, denied = catalog.rows_in(number), [np.empty(0, np.int64)]
    for start, stop in itertools.pairwise([*starts, store.logs[number].size]):
        bloom = blooms.get(start)
        if bloom is None or start in read:
            continue
        first, last = np.searchsorted(catalog.offset[inside], [start, stop]).tolist()
        rows = np.arange(first, last) + inside.start
        is_present = bloom.have_keys(catalog.key_data, catalog.key_start[rows], catalog.key_size[rows])
        surplus = np.cumsum(np.where(is_present, 1, -1))
        end = int(np.argmax(surplus)) + 1 if rows.size and surplus.max() > 0 else 0
        denied.append(rows[:end][~is_present[:end]])
    return np.concatenate(denied)


@rule("ambry.store.history", Severity.ERROR)
def history(files: Files) -> Iterator[Mark]:
    """A message that cannot follow what came before it: a PUT of a blob that was there, a DELETE of a deleted one, a second TTL update,
    a life version lower than before.

    Ambry refuses to start when its recovery meets such a message; an undelete of a lower life version it takes, which is a warning.
    """
    for store in with_logs(files):
        wrong = store.folded.wrong
        refused = is_refused(store.catalog, wrong)
        for row in np.flatnonzero(wrong).tolist():
            path, position, size = store.place(row)
            kind, life = Kind(int(store.catalog.kind[row])), int(store.catalog.life_version[row])
            yield Mark(
                VIOLATIONS[int(wrong[row])],
                path=path,
                position=position,
                size=size,
                found=f"{kind.name}, life version {life}",
                severity=None if refused[row] else Severity.WARNING,
            )


@rule("ambry.store.orphan-update", Severity.INFO)
def orphan_update(files: Files) -> Iterator[Mark]:
    """A TTL update or undelete of a blob of which the log has nothing before it: compaction took the rest.

    The index still knows the blob. Without index files Ambry refuses to start on this log, unless a DELETE follows. It is a warning if
    nothing shows that a compaction has ever run here: then the PUT is lost. So it is if no index file has an undelete: nothing says any
    more when the blob expires.
    """
    for store in with_logs(files):
        folded, kind = store.folded, store.catalog.kind
        deleted = np.zeros(folded.first.size, np.bool_)
        deleted[folded.blob[kind == DELETE]] = True
        orphans = folded.first[np.isin(kind[folded.first], (TTL_UPDATE, UNDELETE)) & ~deleted]
        orphans = orphans if store.is_compacted else np.union1d(orphans, store.blobs_without_put())
        entries = Entries.join([index.entries for _, index in store.sound_indexes])
        forgotten = forgotten_expiries(folded, store.catalog.rows_of(entries))
        for row in np.union1d(orphans, forgotten).tolist():
            path, position, size = store.place(row)
            yield Mark(
                f"{Kind(int(kind[row])).name} of a blob that the log does not have",
                path=path,
                position=position,
                size=size,
                severity=None if store.is_compacted and row not in forgotten else Severity.WARNING,
            )


def group_rules() -> Sequence[Rule[Any]]:
    """The rules over the files of one store."""
    return (
        segments, unsettled, lost_segment, index_end, index_gap, unindexed, entry_without_message, message_without_entry,
        entry_mismatch, reset_key, bloom_key, history, orphan_update, unexplained,
    )  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# Is anything missing in a store? Every blob that its log or its index knows is accounted for: `rawlog verify --complete`.
# A blob is in one class:
# - `present`: it is live, and its PUT is in the log and sound;
# - `deleted`, `expired`: it is so, and its PUT is still in the log, or the store never had one;
# - `compacted`: only updates of it are left, and compaction took its PUT, since it was deleted or has expired;
# - `unexplained`: it is live and cannot be read, or its PUT is missing and no compaction explains that.
# Index entries without a message and messages without an index entry are findings of rules that run always.


LIVE, DELETED, EXPIRED = range(3)


@dataclass(slots=True)
class StoreAccount:
    """The account of a store, and the blobs that nothing explains."""

    account: Account
    missing: Few = field(default_factory=Few)


def accounts(files: Files) -> list[Account]:
    """The account of each store among some files."""
    return [store.account for store in Store.of(files).share(_store_accounts)]


def _store_accounts(files: Store) -> list[StoreAccount]:
    return [_account_store(store) for store in with_logs(files)]


def _account_store(store: BlobStore) -> StoreAccount:
    folded, catalog = store.state, store.catalog
    missing = Few()
    states, put = folded.states(now_of({})), folded.put
    lost = _lost_puts(store)
    was_there, only_indexed = _among(catalog.identity.take(folded.first), lost.identities)
    sound = _sound_messages(store)
    is_sound = np.zeros(put.size, np.bool_)
    is_sound[put >= 0] = sound[put[put >= 0]]
    lacks_put, forced = put < 0, may_lack_put(folded)
    is_bad = np.where(lacks_put, was_there | (~forced & (not store.is_compacted)), (states == LIVE) & ~is_sound)
    lacks_put &= ~forced | store.is_compacted
    for blob in np.flatnonzero(is_bad).tolist():
        missing.append(_mark(store, blob, bool(was_there[blob])))
    for number in np.flatnonzero(only_indexed).tolist():
        message = f"blob {text_of(lost.key(number))}: the index has its PUT, and the log nothing of it"
        missing.append(Mark(message, int(lost.offset[number]), path=store.folder))
    for position in store.lost_positions():
        message = f"{lost_words(position)}: nothing says what it had"
        missing.append(Mark(message, path=store.folder))
    good = ~is_bad
    counts = {
        "present": good & ~lacks_put & (states == LIVE),
        "deleted": good & ~lacks_put & (states == DELETED),
        "expired": good & ~lacks_put & (states == EXPIRED),
        "compacted": good & lacks_put,
    }
    totals = {name: int(which.sum()) for name, which in counts.items()}
    account = Account(
        system="ambry",
        topic=None,
        partition=store.partition,
        path=store.folder,
        unit="blob",
        stop=sum(totals.values()) + missing.count,
        unexplained=missing.count,
        **totals,
    )
    return StoreAccount(account, missing)


def _sound_messages(store: BlobStore) -> NDArray[np.bool_]:
    """Which messages have right checksums."""
    sound = np.ones(len(store.catalog), np.bool_)
    for number, summary in enumerate(store.read):
        rows = store.catalog.rows_at(number, np.array(summary.unsound, np.int64))
        sound[rows[rows >= 0]] = False
    return sound


def _lost_puts(store: BlobStore) -> Entries:
    """The index entries of PUTs without their message, one per blob; those of lost segments too."""
    parts = []
    for index in store.indexes:
        entries = index.entries
        rows = store.catalog.rows_at(store.numbers[index.segment], entries.offset)
        is_there = rows >= 0
        is_there[is_there] = entries.identities.take(is_there).equal(store.catalog.identity.take(rows[is_there]))
        parts.append(entries.take(np.flatnonzero(~is_there)))
    for files in store.lost_segments().values():
        for file in files:
            try:
                entries = read_index(file.path).entries
            except RawlogError:
                continue  # a finding of its own
            parts.append(entries.take(np.flatnonzero(store.catalog.rows_of(entries) < 0)))
    lost = Entries.join(parts)
    blob = lost.identities.numbers()
    puts = np.flatnonzero(lost.kind == PUT)
    _, first = np.unique(blob[puts], return_index=True)
    return lost.take(np.sort(puts[first]))


def _among(stored: Identities, named: Identities) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which stored blobs are named, and which named blobs are not stored."""
    if not len(named):
        return np.zeros(len(stored), np.bool_), np.zeros(0, np.bool_)
    both = Identities(
        *(np.concatenate([getattr(stored, name), getattr(named, name)]) for name in ("group", "high", "low"))
    )
    blob = both.numbers()
    stored_numbers, named_numbers = blob[: len(stored)], blob[len(stored) :]
    return np.isin(stored_numbers, named_numbers), ~np.isin(named_numbers, stored_numbers)


def _mark(store: BlobStore, blob: int, was_there: bool) -> Mark:
    folded = store.state
    put, first = int(folded.put[blob]), int(folded.first[blob])
    row = first if put < 0 else put
    path, position, size = store.place(row)
    name = f"blob {text_of(store.catalog.key(row))}"
    kind = Kind(int(store.catalog.kind[row])).name
    if put >= 0:
        message = f"{name} is live, and the checksum of its PUT is wrong"
    elif was_there:
        message = f"{name}: the index has its PUT, and the log only a {kind}"
    else:
        message = f"{name}: the log has a {kind} and no PUT, and no compaction has ever run"
    return Mark(message, position, size, path=path)


@rule("ambry.complete.unexplained", Severity.ERROR)
def unexplained(files: Files) -> Iterator[Mark]:
    """A blob that is neither deleted nor expired cannot be read, or its PUT is missing and no compaction explains it. (With `--complete`
    only.)

    Its PUT is damaged; or the index has it and the log does not; or only a TTL update, an undelete, or a DELETE whose index entry knows the
    PUT is left in a store in which no compaction has ever run: segments keep generation 0, and there is no compaction log. Take the blob
    from another replica: `rawlog rescue` puts a store together from several.
    """
    for store in Store.of(files).share(_store_accounts):
        yield from store.missing
