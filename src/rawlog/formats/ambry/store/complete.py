"""Is anything missing in a store? Every blob that its log or its index knows is accounted for: `rawlog verify --complete`.

A blob is in one class:

- `present`: it is live, and its PUT is in the log and sound;
- `deleted`, `expired`: it is so, and its PUT is still in the log, or the store never had one;
- `compacted`: only updates of it are left, and compaction took its PUT, since it was deleted or has expired;
- `unexplained`: it is live and cannot be read, or its PUT is missing and no compaction explains that.

Index entries without a message and messages without an index entry are findings of rules that run always.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import RawlogError
from rawlog.core.findings import Account, Few, Mark, Severity, rule
from rawlog.core.format import File
from rawlog.core.store import Store
from rawlog.formats.ambry.index import Entries, read_index
from rawlog.formats.ambry.keys import Identities, text_of
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.store.state import PUT
from rawlog.formats.ambry.store.store import BlobStore, lost_words, may_lack_put, now_of, with_logs

Files = Sequence[File]
LIVE, DELETED, EXPIRED = range(3)


@dataclass(slots=True)
class Accounted:
    """The account of a store, and where blobs are that nothing explains."""

    account: Account
    missing: Few = field(default_factory=Few)


def accounts(files: Files) -> list[Account]:
    """The account of each store among some files."""
    return [one.account for one in Store.of(files).share(_accounted)]


def _accounted(files: Store) -> list[Accounted]:
    return [_of_store(store) for store in with_logs(files)]


def _of_store(store: BlobStore) -> Accounted:
    folded, catalog = store.state, store.catalog
    missing = Few()
    states, put = folded.states(now_of({})), folded.put
    lost = _lost(store)
    was_there, alone = _among(catalog.identity.take(folded.first), lost.identities)
    sound = _sound(store)
    is_sound = np.zeros(put.size, np.bool_)
    is_sound[put >= 0] = sound[put[put >= 0]]
    gone, forced = put < 0, may_lack_put(folded)
    is_bad = np.where(gone, was_there | (~forced & (not store.is_compacted)), (states == LIVE) & ~is_sound)
    gone &= ~forced | store.is_compacted
    for blob in np.flatnonzero(is_bad).tolist():
        missing.append(_mark(store, blob, bool(was_there[blob])))
    for number in np.flatnonzero(alone).tolist():
        message = f"blob {text_of(lost.key(number))}: the index has its PUT, and the log nothing of it"
        missing.append(Mark(message, int(lost.offset[number]), path=store.folder))
    for position in store.lost_positions():
        message = f"{lost_words(position)}: nothing says what it had"
        missing.append(Mark(message, path=store.folder))
    good = ~is_bad
    counts = {
        "present": good & ~gone & (states == LIVE),
        "deleted": good & ~gone & (states == DELETED),
        "expired": good & ~gone & (states == EXPIRED),
        "compacted": good & gone,
    }
    found = {name: int(which.sum()) for name, which in counts.items()}
    account = Account(
        system="ambry",
        topic=None,
        partition=store.partition,
        path=store.folder,
        unit="blob",
        stop=sum(found.values()) + missing.count,
        unexplained=missing.count,
        **found,
    )
    return Accounted(account, missing)


def _sound(store: BlobStore) -> NDArray[np.bool_]:
    """Which messages have right checksums."""
    sound = np.ones(len(store.catalog), np.bool_)
    for number, one in enumerate(store.read):
        rows = store.catalog.rows_at(number, np.array(one.unsound, np.int64))
        sound[rows[rows >= 0]] = False
    return sound


def _lost(store: BlobStore) -> Entries:
    """The index entries of PUTs whose message is not where they say: of segments that are there, and of those that are lost. One per
    blob.
    """
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
    every = Entries.join(parts)
    blob = every.identities.numbers()
    puts = np.flatnonzero(every.kind == PUT)
    _, first = np.unique(blob[puts], return_index=True)
    return every.take(np.sort(puts[first]))


def _among(mine: Identities, theirs: Identities) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which blobs of a catalog are among some others, and which of the others are not in the catalog."""
    if not len(theirs):
        return np.zeros(len(mine), np.bool_), np.zeros(0, np.bool_)
    both = Identities(
        *(np.concatenate([getattr(mine, name), getattr(theirs, name)]) for name in ("group", "high", "low"))
    )
    blob = both.numbers()
    own, other = blob[: len(mine)], blob[len(mine) :]
    return np.isin(own, other), ~np.isin(other, own)


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
    for one in Store.of(files).share(_accounted):
        yield from one.missing
