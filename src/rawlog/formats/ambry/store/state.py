"""What a store knows of its blobs: its messages as columns, and the index entries that a live store would have added for them.

A log segment is read once, whole or in splits, into a `LogSummary`, of which the summaries of a store make its `Catalog`. `fold` gives each
message its index entry and each blob its state. A message takes 39 bytes and its blob id in a summary (73 bytes with an id of version 6),
about a hundred in a catalog, and some 250 while it is folded, whatever the size of its blob.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.ambry import LOG, capacity, segment_of
from rawlog.formats.ambry.index import (
    LATEST_SECOND,
    Entries,
    IndexFile,
    Integers,
)
from rawlog.formats.ambry.kernels import messages as kernels
from rawlog.formats.ambry.kernels.messages import IN_PAYLOAD, find_message
from rawlog.formats.ambry.keys import Identities, identities, text_of
from rawlog.formats.ambry.layouts import (
    NONE,
    SEGMENT_HEADER,
    Flag,
    Kind,
)
from rawlog.formats.ambry.log import (
    Messages,
    check_messages,
    message_error,
    scan,
)
from rawlog.io.storage import Source
from rawlog.io.walk import describe, walk
from rawlog.kernels import byte_view, columns
from rawlog.model.errors import AccessError, DataError
from rawlog.model.format import File
from rawlog.model.frames import Bytes, Frames
from rawlog.model.status import Status

LIVE, DELETED, EXPIRED = "live", "deleted", "expired"
NEVER, ORPHANS, ALWAYS = kernels.NEVER, kernels.ORPHANS, kernels.ALWAYS
COMPARED_AT_ONCE = 1 << 14
MOST_TRIES = 1000
"""Beginnings of messages inside a damaged one that are tried."""
PUT, DELETE, TTL_UPDATE, UNDELETE = (int(kind) for kind in (Kind.PUT, Kind.DELETE, Kind.TTL_UPDATE, Kind.UNDELETE))


def seconds(milliseconds: NDArray[np.int64]) -> NDArray[np.int64]:
    """Times in seconds as an index holds them; -1 for a time that is unknown, before 1970 or too large."""
    whole = milliseconds // 1000
    return np.where((milliseconds < 0) | (whole > LATEST_SECOND), NONE, whole)


@dataclass(slots=True)
class Catalog:
    """The messages of a store in log order, one column per fact. Times are in seconds; segments are numbers in their order."""

    key_data: Bytes
    key_start: NDArray[np.int64]
    key_size: NDArray[np.int64]
    identity: Identities
    kind: NDArray[np.int8]
    segment: NDArray[np.int32]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    life_version: NDArray[np.int16]
    time: NDArray[np.int32]
    account_id: NDArray[np.int16]
    container_id: NDArray[np.int16]
    expires: NDArray[np.int32]
    content_size: NDArray[np.int32]

    def __len__(self) -> int:
        return int(self.kind.size)

    def key(self, row: int) -> bytes:
        """The key of one message."""
        at = int(self.key_start[row])
        return self.key_data[at : at + int(self.key_size[row])].tobytes()

    def take(self, rows: NDArray[np.int64]) -> Catalog:
        """Some of the messages; their columns are copies."""
        fields = {name: getattr(self, name)[rows] for name in ("key_start", "key_size", *TYPES)}
        return Catalog(self.key_data, identity=self.identity.take(rows), **fields)

    def join(self, other: Catalog) -> Catalog:
        """The messages of two catalogs, one after the other."""
        fields = {name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("key_size", *TYPES)}
        starts = np.concatenate([self.key_start, other.key_start + self.key_data.size])
        identity = Identities(
            *(
                np.concatenate([getattr(self.identity, name), getattr(other.identity, name)])
                for name in ("group", "high", "low")
            )
        )
        return Catalog(
            byte_view(np.concatenate([self.key_data, other.key_data])), key_start=starts, identity=identity, **fields
        )

    def rows_of(self, entries: Entries) -> NDArray[np.int64]:
        """The row of each entry's message, by blob, kind and life version: the first of several; -1 without one."""
        message_blobs, entry_blobs = self.identity, entries.identities
        compared = [
            np.concatenate([self.life_version, entries.life_version]),
            np.concatenate([self.kind, entries.kind]),
            *(
                np.concatenate([getattr(message_blobs, name), getattr(entry_blobs, name)])
                for name in ("low", "high", "group")
            ),
        ]
        order = np.lexsort(compared)
        new = np.zeros(order.size, np.bool_)
        new[:1] = True
        for column in compared:
            new[1:] |= np.diff(column[order]) != 0
        number = np.empty(order.size, np.int64)
        number[order] = np.cumsum(new) - 1
        rows = np.full(int(new.sum()), NONE, np.int64)
        count = len(self)
        rows[number[:count][::-1]] = np.arange(count)[::-1]
        return rows[number[count:]]

    def keys_differ(self, rows: NDArray[np.int64], entries: Entries) -> NDArray[np.bool_]:
        """Where an entry's key has other bytes than that of the message at its row (-1: none), at the same size."""
        result = np.zeros(rows.size, np.bool_)
        same = np.flatnonzero((rows >= 0) & (entries.sizes == self.key_size[rows] if len(self) else False))
        for start in range(0, same.size, COMPARED_AT_ONCE):
            part = same[start : start + COMPARED_AT_ONCE]
            span = np.arange(int(entries.sizes[part].max()))
            inside = span < entries.sizes[part][:, None]
            last = self.key_data.size - 1, entries.data.size - 1
            message_keys = self.key_data[np.minimum(self.key_start[rows[part]][:, None] + span, last[0])]
            entry_keys = entries.data[np.minimum(entries.starts[part][:, None] + span, last[1])]
            result[part] = ((message_keys != entry_keys) & inside).any(axis=1)
        return result

    def rows_in(self, segment: int) -> slice:
        """The rows of the messages of one segment."""
        return slice(*np.searchsorted(self.segment, [segment, segment + 1]).tolist())

    def rows_at(self, segment: int, offsets: Integers) -> NDArray[np.int64]:
        """The rows of the messages at these offsets of a segment; -1 for none."""
        rows = self.rows_in(segment)
        stored_offsets = self.offset[rows]
        at = np.searchsorted(stored_offsets, offsets)
        is_stored = at < stored_offsets.size
        is_stored[is_stored] = stored_offsets[at[is_stored]] == offsets[is_stored]
        return np.where(is_stored, at + rows.start, NONE)


TYPES: dict[str, type[np.signedinteger[Any]]] = {
    "kind": np.int8, "segment": np.int32, "offset": np.int64, "size": np.int64, "life_version": np.int16, "time": np.int32,
    "account_id": np.int16, "container_id": np.int16, "expires": np.int32, "content_size": np.int32,
}  # fmt: skip


class Columns:
    """The columns of messages on their way into a catalog, without their blobs: 39 bytes per message, and its blob id.

    Those of neighbouring splits of a segment merge in order.
    """

    def __init__(self) -> None:
        self.parts: dict[str, list[NDArray[Any]]] = {name: [np.empty(0, type)] for name, type in _PARTS.items()}

    def add(self, messages: Messages, mask: NDArray[np.bool_] | None = None) -> None:
        """Add messages, by default all that can be read."""
        rows = np.flatnonzero(messages["fault"] == 0 if mask is None else mask)
        sizes = messages["key_size"][rows]
        keys = columns.spans(messages.data, messages["key_start"][rows], sizes)
        arrays = {
            "kind": messages["kind"],
            "offset": messages.frames.positions,
            "size": messages.frames.sizes,
            "life_version": messages["life_version"],
            "time": seconds(messages.times),
            "account_id": messages["account_id"],
            "container_id": messages["container_id"],
            "expires": seconds(messages.expires),
            "content_size": messages["content_size"],
            "key_size": messages["key_size"],
        }
        for name, values in arrays.items():
            self.parts[name].append(values[rows].astype(_PARTS[name]))
        if rows.size:
            self.parts["keys"].append(np.frombuffer(keys.buffers()[2], np.uint8))

    def merge(self, following: Columns) -> None:
        """Add the messages of the split that follows."""
        for name, parts in following.parts.items():
            self.parts[name] += parts

    def close(self) -> None:
        """Put the parts together: one array for each column."""
        self.parts = {name: [self[name]] for name in self.parts}

    def __getitem__(self, name: str) -> NDArray[Any]:
        parts = self.parts[name]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def __len__(self) -> int:
        return sum(part.size for part in self.parts["kind"])


def catalog_of(segments: Sequence[Columns]) -> Catalog:
    """The catalog of a store, from the columns of its segments in order."""
    merged = Columns()
    for segment in segments:
        merged.merge(segment)
    number = np.repeat(np.arange(len(segments), dtype=np.int32), [len(segment) for segment in segments])
    catalog = _catalog(merged, number)
    rises = (np.diff(catalog.offset) > 0) | (np.diff(number) > 0)
    return catalog if rises.all() else catalog.take(np.lexsort((catalog.offset, number)))


def catalog_of_messages(pieces: Sequence[tuple[bytes, int, int]]) -> Catalog:
    """A catalog of single messages, in the order in which they are given: bytes, number of the segment, offset."""
    merged = Columns()
    for raw, _, offset in pieces:
        merged.add(Messages(replace(scan(np.frombuffer(raw, np.uint8), 0), base=offset), check=False))
    return _catalog(merged, np.array([segment for _, segment, _ in pieces], np.int32))


def _catalog(merged: Columns, segment: NDArray[np.int32]) -> Catalog:
    key_data, sizes = byte_view(merged["keys"]), merged["key_size"].astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    fields = {name: merged[name] for name in TYPES if name != "segment"}
    return Catalog(key_data, starts, sizes, identities(key_data, starts, sizes), segment=segment, **fields)


_PARTS: dict[str, Any] = {name: type for name, type in TYPES.items() if name != "segment"}
_PARTS |= {"key_size": np.int32, "keys": np.uint8}


# One log segment, or a split of it ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Damage:
    """Damaged bytes of a log segment, and the `key` of the message if it can be read."""

    start: int
    stop: int
    why: str
    key: bytes | None = None

    @property
    def reason(self) -> str:
        return self.why if self.key is None else f"{self.why} (blob {text_of(self.key)})"


class LogSummary:
    """What the bytes from `start` to `stop` of a log segment say: the columns of its messages, and what is not a message.

    It sees every window once; `close` makes it small (see `Columns`). Summaries of neighbouring splits merge in order: `merge` gives the
    same as one summary over both. With `check` only messages that are sound to the last record count, and the others are damage. With
    `sums` checksums are compared, and `unsound` says which messages count although theirs are wrong.
    """

    rises = True

    def __init__(
        self,
        file: File,
        files: Sequence[File] = (),
        start: int = 0,
        stop: int | None = None,
        *,
        check: bool = False,
        sums: bool = False,
    ) -> None:
        self.file, self.stop, self.check, self.sums = file, stop, check, sums
        self.columns = Columns()
        self.damages: list[Damage] = []
        #: Where messages begin whose checksums are wrong.
        self.unsound: list[int] = []
        #: Where the messages end, if other bytes follow the last of them, and what these are.
        self.tail: tuple[int, Status] | None = None
        #: The first damage of messages or their frames.
        self.error: DataError | None = None
        self.capacity: int | None = None
        self._reached: int | None = None
        if start == 0:
            with contextlib.suppress(AccessError), Source(file.path) as source:
                self.capacity = capacity(source.read(0, SEGMENT_HEADER.size))

    @property
    def lacks_header(self) -> bool:
        """Whether the segment should have a header by its name, and has no sound one."""
        segment = segment_of(self.file.path)
        return segment is not None and segment.name != "" and self.capacity is None

    @property
    def ends_in_damage(self) -> bool:
        """Whether what follows the last message is neither unfinished nor zeros."""
        return self.tail is not None and self.tail[1].is_damage

    def see(self, frames: Frames) -> None:
        """Take in a window."""
        reached, self._reached = self._reached, frames.reached_in_file
        if reached is not None and frames.base > reached and not self._is_header(frames.base):
            self.damages.append(_damage(reached, frames.base))
        messages = frames.share(check_messages) if self.check or self.sums else Messages(frames, check=False)
        if self.error is None and messages["fault"].any():
            self.error = message_error(messages, int(np.argmax(messages["fault"] != 0)))
        if self.error is None and frames.status.is_damage:
            self.error = describe(LOG, frames, self.file.path)
        if self.check:
            self._check(messages)
        else:
            self.columns.add(messages)
            if self.sums:
                bad = (messages["fault"] == 0) & (messages["crc_bad"] != 0)
                self.unsound += frames.positions[bad].tolist()
        size = self.file.size
        if frames.last and self._reached < size and (self.stop is None or self.stop >= size):
            self.tail = (self._reached, frames.status)
            if not (self._reached == 0 and self._is_header(size)):
                self.damages.append(Damage(self._reached, size, tail_words(frames.status)))

    def _is_header(self, stop: int) -> bool:
        """Whether the bytes up to `stop` are a damaged header of the segment."""
        return self.lacks_header and stop <= SEGMENT_HEADER.size

    def _check(self, messages: Messages) -> None:
        """Add the sound messages; the others are damage."""
        frames = messages.frames
        good = messages.is_whole
        self.columns.add(messages, good)
        for index in np.flatnonzero(~good).tolist():
            wrong = int(messages["mismatch"][index])
            why = "wrong payload size" if wrong & IN_PAYLOAD else "wrong offsets in the header"
            hidden = hidden_messages(messages, index)
            start, stop = int(frames.starts[index]), int(frames.stops[index])
            if hidden is not None:
                self.columns.add(hidden)
                stop = hidden.frames.base - frames.base
            why = why if wrong else "damaged records"
            self.damages.append(Damage(frames.base + start, frames.base + stop, why, messages.key(index)))

    def close(self) -> LogSummary:
        """Make it small, once all windows were seen."""
        self.columns.close()
        if self.error is not None:
            self.error = self.error.at(path=self.file.path, format=LOG.name)
        return self

    def merge(self, following: LogSummary) -> LogSummary:
        """Take in the split that follows."""
        self.columns.merge(following.columns)
        self.columns.close()
        self.damages += following.damages
        self.unsound += following.unsound
        self.tail, self.error = following.tail, self.error or following.error
        self.stop, self._reached = following.stop, following._reached
        return self


def summary(file: File, files: Sequence[File], start: int, stop: int | None) -> LogSummary:
    """The summary of a log segment by a pass with checks, which computes the checksums anyway."""
    return LogSummary(file, files, start, stop, sums=True)


def _damage(start: int, stop: int) -> Damage:
    return Damage(start, stop, "damaged bytes")


def tail_words(status: Status) -> str:
    """What the bytes after the last whole message are."""
    return {Status.TRUNCATED: "an unfinished message", Status.PADDING: "zeros"}.get(status, "damaged bytes")


def hidden_messages(messages: Messages, index: int) -> Messages | None:
    """The sound messages inside a damaged one that lacks bytes; None without any.

    They must reach to the very end of the damaged one: content may be a copy of a log.
    """
    frames, data = messages.frames, messages.data
    at, stop = int(frames.starts[index]), int(frames.stops[index])
    for _ in range(MOST_TRIES):
        at = int(find_message(data, at + 1, stop))
        if at < 0:
            return None
        hidden = scan(data[at:stop], 0)
        if hidden.reached == stop - at:
            inner = Messages(replace(hidden, base=frames.base + at))
            if inner.is_whole.all():
                return inner
    return None


S = TypeVar("S", bound=LogSummary)


def read_log(file: File, *, check: bool = False) -> LogSummary:
    """The summary of a whole log segment."""
    return summarise(file, LogSummary(file, check=check))


def summarise(file: File, summary: S) -> S:
    """Fill a new summary of any kind from a file."""
    try:
        for frames in walk(file, LOG, errors="skip"):
            summary.see(frames)
    except DataError as error:
        summary.error = summary.error or error
    summary.close()
    return summary


# What messages add up to ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fold:
    """A catalog with the entry of every message, and the state of every blob.

    Of blob number i: `first` is its first message, `answer` the entry that findKey answers with (flags and expiry as it gives them) and
    `put` the PUT that holds its content; -1 for none. `blob` is the number of each message's blob.
    """

    catalog: Catalog
    flags: NDArray[np.uint8]
    expires: NDArray[np.int32]
    original: NDArray[np.int64]
    time: NDArray[np.int32]
    account_id: NDArray[np.int16]
    container_id: NDArray[np.int16]
    life_version: NDArray[np.int16]
    wrong: NDArray[np.int8]
    blob: NDArray[np.int64]
    first: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    answer: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    put: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    answer_flags: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    answer_expires: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))

    @property
    def entries(self) -> Entries:
        """The entries of all messages, in log order."""
        catalog = self.catalog
        return Entries(
            catalog.key_data, catalog.key_start, catalog.key_size, catalog.size, catalog.offset, self.flags, self.expires, self.original,
            self.time, self.account_id, self.container_id, self.life_version,
        )  # fmt: skip

    @property
    def is_deleted(self) -> NDArray[np.bool_]:
        """Which blobs are deleted."""
        result: NDArray[np.bool_] = (self.answer >= 0) & (self.answer_flags & int(Flag.DELETE) != 0)
        return result

    def is_expired(self, now: int) -> NDArray[np.bool_]:
        """Which blobs have expired at `now` (milliseconds), deleted or not."""
        result: NDArray[np.bool_] = (self.answer >= 0) & expired(self.answer_expires, now)
        return result

    def states(self, now: int) -> NDArray[np.int8]:
        """0 live, 1 deleted, 2 expired: what each blob is at `now` (milliseconds); -1 if the store does not know it."""
        states = np.where(self.is_deleted, 1, np.where(self.is_expired(now), 2, 0))
        return np.where(self.answer >= 0, states, NONE).astype(np.int8)


def forgotten_expiries(folded: Fold, indexed: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of UNDELETEs with no message of their blob before them and no index entry: nothing says any more when the blob expires.

    `indexed` are the rows that a sound index has.
    """
    first = np.sort(folded.first[folded.catalog.kind[folded.first] == UNDELETE])
    return first[~np.isin(first, indexed)]


STATES = (LIVE, DELETED, EXPIRED)


def expired(expires: NDArray[np.int32], now: int) -> NDArray[np.bool_]:
    """Which of these expiries (seconds) lie before `now` (milliseconds)."""
    result: NDArray[np.bool_] = (expires != NONE) & (expires.astype(np.int64) * 1000 < now)
    return result


def is_refused(catalog: Catalog, wrong: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Which messages Ambry refuses to start on: all wrong ones, except an undelete with a lower life version."""
    is_tolerated = (wrong == kernels.LOWER_LIFE) & (catalog.kind == UNDELETE)
    result: NDArray[np.bool_] = (wrong != kernels.SOUND) & ~is_tolerated
    return result


def fold(
    catalog: Catalog,
    indexes: Iterable[tuple[int, IndexFile]] = (),
    use: int = NEVER,
    *,
    drop: bool = False,
    remembered: Iterable[tuple[NDArray[np.int64], Entries]] = (),
) -> Fold:
    """The entries and states of a catalog's messages.

    `indexes` are sound index files with the numbers of their segments, `remembered` entries with the rows of their messages (-1: none);
    `use` says which of these entries count instead of what the messages say. With `drop` a message that cannot follow what came before
    it counts for nothing.
    """
    count = len(catalog)
    folded = Fold(
        catalog,
        np.zeros(count, np.uint8),
        catalog.expires.copy(),
        np.full(count, NONE, np.int64),
        catalog.time.copy(),
        catalog.account_id.copy(),
        catalog.container_id.copy(),
        catalog.life_version.copy(),
        np.zeros(count, np.int8),
        np.empty(count, np.int64),
    )
    order = catalog.identity.sorted()
    new = catalog.identity.begins(order)
    blobs = int(new.sum())
    folded.first, folded.answer, folded.put = (np.empty(blobs, np.int64) for _ in range(3))
    folded.answer_flags, folded.answer_expires = np.zeros(blobs, np.uint8), np.full(blobs, NONE, np.int32)
    is_remembered = np.zeros(count, np.bool_)
    if use != NEVER:
        usable = np.ones(count, np.bool_) if use == ALWAYS else _before_put(catalog.kind, order, new)
        for segment, index in indexes:
            entries = index.entries
            covered = entries.offset + entries.size <= index.end
            _remember(
                folded,
                np.where(covered, catalog.rows_at(segment, entries.offset), NONE),
                entries,
                usable,
                is_remembered,
            )
        for rows, entries in remembered:
            _remember(folded, rows, entries, usable, is_remembered)
    kernels.fold_entries(
        order, new, catalog.kind, catalog.segment, catalog.offset, catalog.life_version, is_remembered, use, drop,
        folded.flags, folded.expires, folded.original, folded.account_id, folded.container_id, folded.wrong, folded.blob,
        folded.first, folded.answer, folded.put, folded.answer_flags, folded.answer_expires,
    )  # fmt: skip
    return folded


def updates_before_put(catalog: Catalog) -> NDArray[np.bool_]:
    """Which messages are updates of a blob whose PUT comes after them in the log."""
    order = catalog.identity.sorted()
    new = catalog.identity.begins(order)
    blob = np.empty(order.size, np.int64)
    blob[order] = np.cumsum(new) - 1
    has_put = np.zeros(int(new.sum()), np.bool_)
    has_put[blob[catalog.kind == PUT]] = True
    return _before_put(catalog.kind, order, new) & has_put[blob]


def _before_put(kind: NDArray[np.int8], order: NDArray[np.int64], new: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which updates come before the PUT of their blob: only the index knows what they inherited."""
    result = np.zeros(order.size, np.bool_)
    if order.size:
        puts = np.cumsum(kind[order] == PUT)
        begins = np.flatnonzero(new)
        before = puts[begins] - (kind[order[begins]] == PUT)
        result[order] = puts == np.repeat(before, np.diff(np.append(begins, order.size)))
    return result


def _remember(
    folded: Fold, rows: NDArray[np.int64], entries: Entries, usable: NDArray[np.bool_], is_remembered: NDArray[np.bool_]
) -> None:
    """Take over the facts of index entries for the messages at `rows` of the same kind and blob."""
    catalog = folded.catalog
    good = rows >= 0
    good[good] = usable[rows[good]] & (entries.kind[good] == catalog.kind[rows[good]])
    good[good] = entries.identities.take(good).equal(catalog.identity.take(rows[good]))
    rows = rows[good]
    is_remembered[rows] = True
    folded.flags[rows], folded.expires[rows] = entries.flags[good], entries.expires[good]
    folded.original[rows], folded.time[rows] = entries.original_offset[good], entries.operation_time[good]
    folded.account_id[rows], folded.container_id[rows] = entries.account_id[good], entries.container_id[good]
    folded.life_version[rows] = entries.life_version[good]
