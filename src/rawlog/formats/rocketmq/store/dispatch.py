"""What a broker derives from each message of the commit log: units of queues, keys of the index.

Rebuilding, writing and verifying share it, so that they agree on what a derived file must contain.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.commitlog import scan
from rawlog.formats.rocketmq.index import Index
from rawlog.formats.rocketmq.kernels import encode
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    CHECK_MAX_TOPIC,
    CHECKPOINT,
    HALF_TOPIC,
    LARGEST_FILE,
    LMQ_PREFIX,
    OP_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRANSACTION_MASK,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store.settings import Delays
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.kernels import columns
from rawlog.model.errors import RawlogError
from rawlog.model.format import File
from rawlog.model.frames import Bytes
from rawlog.model.status import Status
from rawlog.model.text import java_text

# ----------------------------------------------------------------------------------------------------------------------
# What a commit log leaves undecided: half messages without a commit or rollback, and messages whose time has not come.
#
# Both are folds over the log in order. A half message is forgotten as soon as its end is seen, so that what is kept is small: those that
# are open, and ends whose half message is in bytes before.

Numbers = NDArray[np.int64]
TIMED = 4
"""Rows of what is known of timer messages: address, time of delivery, hash of the unique key, and whether it cancels that one."""
T_PHYSICAL, T_DUE, T_KEY, T_CANCELS = range(TIMED)
#: Half messages have few queues; a place is the queue offset and the queue in one number.
_QUEUES = 1 << 16
_MOST_DIGITS = 14


@dataclass(frozen=True, slots=True)
class Half:
    """A half message: the prepared message of a transaction."""

    queue_offset: int
    physical: int
    key: str
    topic: str
    group: str


@dataclass(slots=True)
class Pending:
    """The half messages that a stretch of the log leaves open, and what ends earlier ones."""

    #: By place, and the places by address.
    halves: dict[int, Half] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    #: Half messages that messages of the broker's end, by place, and those that a committed message names, by address.
    ended: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    #: Unique keys of half messages that the broker has given up.
    discarded: set[str] = field(default_factory=set)
    timed: list[Numbers] = field(default_factory=list)

    def see(self, rows: Messages, names: Sequence[str], codes: Numbers) -> None:
        """Take in messages, whose topics are `names` by `codes`."""

        def of(topic: str) -> Numbers:
            return np.flatnonzero(codes == names.index(topic)) if topic in names else np.empty(0, np.int64)

        halves, ends, given_up = of(HALF_TOPIC), of(OP_TOPIC), of(CHECK_MAX_TOPIC)
        commits = np.empty(0, np.int64)
        if rows.odd[kernels.O_TRANSACTION]:
            is_commit = (rows[kernels.F_SYS_FLAG] & TRANSACTION_MASK) == int(SysFlag.COMMIT)
            commits = rows[kernels.F_PREPARED][is_commit]
        if halves.size or ends.size or commits.size:
            self._transactions(rows, halves, _ended_places(rows, ends), commits)
        if given_up.size:
            self.discarded.update(_texts(rows, given_up, "UNIQ_KEY"))
        if (timed := of(TIMER_TOPIC)).size:
            self.timed.append(_timer_messages(rows, timed))

    def _transactions(self, rows: Messages, halves: Numbers, ended: Numbers, committed: Numbers) -> None:
        halves = halves[~rows.fillers[halves]]
        places = rows[kernels.F_QUEUE_OFFSET][halves] * _QUEUES + (rows[kernels.F_QUEUE_ID][halves] & (_QUEUES - 1))
        addresses = rows[kernels.F_PHYSICAL][halves]
        is_open = ~np.isin(places, ended) & ~np.isin(addresses, committed)
        self._end(set(ended[~np.isin(ended, places)].tolist()), set(committed[~np.isin(committed, addresses)].tolist()))
        for place, half in zip(places[is_open].tolist(), _halves(rows, halves[is_open]), strict=True):
            self._add(place, half)

    def _end(self, ended: set[int], committed: set[int]) -> None:
        """Forget the half messages that are ended; keep ends without a half message."""
        places = {place for place in ended if place in self.halves}
        addresses = {address for address in committed if address in self.places}
        self.ended |= ended - places
        self.committed |= committed - addresses
        for place in places | {self.places[address] for address in addresses}:
            del self.places[self.halves.pop(place).physical]

    def _add(self, place: int, half: Half) -> None:
        if (before := self.halves.pop(place, None)) is not None:
            del self.places[before.physical]
        self.halves[place] = half
        self.places[half.physical] = place

    def merge(self, following: Pending) -> None:
        """Take in the stretch that follows."""
        self._end(set(following.ended), set(following.committed))
        for place, half in following.halves.items():
            self._add(place, half)
        self.discarded |= following.discarded
        self.timed += following.timed

    def open(self) -> list[Half]:
        """The newest copy of each half message that has neither a commit nor a rollback, in order."""
        newest = {half.key or f"@{half.physical}": half for half in self.halves.values()}
        undecided = (half for half in newest.values() if not half.key or half.key not in self.discarded)
        return sorted(undecided, key=lambda half: half.physical)

    def waiting(self, reached: int) -> Numbers:
        """Timer messages (`T_…`) due after `reached`, the time of the timer in milliseconds, and not cancelled."""
        timed = np.concatenate([np.empty((TIMED, 0), np.int64), *self.timed], axis=1)
        cancels = timed[T_CANCELS] != 0
        waits = ~cancels & (timed[T_DUE] > reached) & ~np.isin(timed[T_KEY], timed[T_KEY][cancels])
        waiting = timed[:, waits]
        # A message for a far time is written again each time the wheel has turned: the last one counts.
        _, last = np.unique(waiting[T_KEY][::-1], return_index=True)
        return waiting[:, np.sort(waiting.shape[1] - 1 - last)]


def _ended_places(rows: Messages, which: Numbers) -> Numbers:
    """The queue offsets that the broker's messages name as ended; each is followed by a comma in their bodies."""
    if not which.size:
        return np.empty(0, np.int64)
    bodies = columns.spans(rows.data, rows[kernels.F_BODY][which], rows[kernels.F_BODY_SIZE][which])
    parts = pc.split_pattern(bodies, b",")
    words = parts.values
    queue = np.repeat(rows[kernels.F_QUEUE_ID][which], np.diff(np.asarray(parts.offsets)))
    plain = pc.match_substring_regex(words, f"^[0-9]{{1,{_MOST_DIGITS}}}$")
    numbers = np.asarray(words.filter(plain).cast(pa.string()).cast(pa.int64()), np.int64)
    places: Numbers = numbers * _QUEUES + (queue[np.asarray(plain)] & (_QUEUES - 1))
    return places


def _texts(rows: Messages, which: Numbers, name: str) -> list[str]:
    """A property of messages; empty where there is none."""
    return [java_text(value) if value else "" for value in property_values(rows, which, name)]


def _halves(rows: Messages, which: Numbers) -> list[Half]:
    if not which.size:
        return []
    keys, topics, groups = (_texts(rows, which, name) for name in ("UNIQ_KEY", "REAL_TOPIC", "PGROUP"))
    numbers = (rows[column][which].tolist() for column in (kernels.F_QUEUE_OFFSET, kernels.F_PHYSICAL))
    return [Half(*fields) for fields in zip(*numbers, keys, topics, groups, strict=True)]


def _timer_messages(rows: Messages, which: Numbers) -> Numbers:
    which = which[~rows.fillers[which]]
    keys, due, cancels = (_texts(rows, which, name) for name in ("UNIQ_KEY", "TIMER_OUT_MS", "TIMER_DEL_UNIQKEY"))
    timed = np.empty((TIMED, which.size), np.int64)
    timed[T_PHYSICAL] = rows[kernels.F_PHYSICAL][which]
    stored = rows[kernels.F_STORE_TIME][which].tolist()
    timed[T_DUE] = [_time(text, else_) for text, else_ in zip(due, stored, strict=True)]
    timed[T_KEY] = [_text_hash(b.rpartition("+")[2] if b else a) for a, b in zip(keys, cancels, strict=True)]
    timed[T_CANCELS] = [bool(cancel) for cancel in cancels]
    return timed


def _time(text: str, stored: int) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else stored


def _text_hash(key: str) -> int:
    digest = blake2b(key.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


Queue = tuple[str, int]

DELAYED = 4
"""Rows of what is known of delayed messages, by place: their address, that in the source (they may move), store time and level."""
D_PHYSICAL, D_SOURCE, D_TIME, D_LEVEL = range(DELAYED)
KEY_COLUMNS = 4
"""Rows of the keys of the index, by place: their hash, the address and store time of their message, whether they are its tag."""
K_HASH, K_ADDRESS, K_TIME, K_OF_TAG = range(KEY_COLUMNS)
COLUMNS = 6
"""Rows of the units of a queue, by place."""
U_OFFSET, U_PHYSICAL, U_SIZE, U_TAG, U_TIME, U_BATCH = range(COLUMNS)


@dataclass(slots=True)
class DerivedEntries:
    """Of a run of messages: the units of each queue in order, and the keys of the index in order."""

    units: dict[Queue, list[NDArray[np.int64]]] = field(default_factory=dict)
    hashes: list[NDArray[np.int64]] = field(default_factory=list)
    addresses: list[NDArray[np.int64]] = field(default_factory=list)
    times: list[NDArray[np.int64]] = field(default_factory=list)
    #: Which keys are tags: brokers before 5.4.0 do not index these.
    of_tags: list[NDArray[np.bool_]] = field(default_factory=list)
    batch_topics: set[str] = field(default_factory=set)
    messages: int = 0
    last_time: int = 0
    #: What the messages leave undecided; None: nobody asks.
    pending: Pending | None = None
    #: Delayed messages (`D_…`): their tag hash in a queue is the time at which they are due, which `settle` sets.
    delayed: list[NDArray[np.int64]] = field(default_factory=list)

    def queue(self, queue: Queue) -> NDArray[np.int64]:
        """All units of a queue, a column each."""
        pieces = self.units.get(queue)
        return np.concatenate(pieces, axis=1) if pieces else np.empty((COLUMNS, 0), np.int64)

    def settle(self, delays: Delays) -> int:
        """Set the due times of delayed messages; how many of them assume RocketMQ's default delay levels."""
        if not self.delayed:
            return 0
        delayed = np.concatenate(self.delayed, axis=1)
        due, assumed = due_times(delayed, delays)
        for queue, pieces in self.units.items():
            if is_scheduled(queue):
                for piece in pieces:
                    set_tags(piece, delayed[D_PHYSICAL], due)
        return assumed

    def keys(self, *, with_tags: bool) -> NDArray[np.int64]:
        """The keys of the index in order (`K_…`), with or without tags."""
        empty = np.empty((KEY_COLUMNS, 0), np.int64)
        columns = zip(self.hashes, self.addresses, self.times, self.of_tags, strict=True)
        keys = np.concatenate([empty, *(np.stack(part) for part in columns)], axis=1)
        return keys if with_tags else keys[:, keys[K_OF_TAG] == 0]

    def has_keys(self, *, with_tags: bool) -> bool:
        """Whether the index has keys, with or without tags."""
        return any(of_tags.size > 0 and (with_tags or not of_tags.all()) for of_tags in self.of_tags)


def is_scheduled(queue: Queue) -> bool:
    """Whether a queue may have delayed messages."""
    return queue[0] == SCHEDULE_TOPIC or queue[0].startswith(LMQ_PREFIX)


def due_times(delayed: NDArray[np.int64], delays: Delays) -> tuple[NDArray[np.int64], int]:
    """When delayed messages are due, and how many of these times are a guess."""
    times = [
        delays.due_at(source, stored, level)
        for source, stored, level in zip(*delayed[[D_SOURCE, D_TIME, D_LEVEL]].tolist(), strict=True)
    ]
    return np.array([_wrap(due) for due, _ in times], np.int64), sum(not is_known for _, is_known in times)


def set_tags(units: NDArray[np.int64], addresses: NDArray[np.int64], tags: NDArray[np.int64]) -> None:
    """Set the tag hashes of the units of the messages at these addresses."""
    if not addresses.size:
        return
    order = np.argsort(addresses, kind="stable")
    at = np.minimum(np.searchsorted(addresses[order], units[U_PHYSICAL]), addresses.size - 1)
    same = addresses[order][at] == units[U_PHYSICAL]
    units[U_TAG, same] = tags[order][at[same]]


def derive_from(
    rows: Messages, into: DerivedEntries, *, addresses: NDArray[np.int64] | None = None, with_keys: bool = True
) -> None:
    """Add the units and keys of messages to `into`; `addresses` are their new addresses, if they move."""
    if not len(rows):
        return
    sources = rows[kernels.F_PHYSICAL]
    rows = rows if addresses is None else rows.with_addresses(addresses)
    into.messages += len(rows)
    into.last_time = int(rows[kernels.F_STORE_TIME][-1])
    flags = rows[kernels.F_SYS_FLAG]
    transaction = flags & TRANSACTION_MASK
    indexed = transaction != TRANSACTION_MASK if with_keys else np.zeros(len(rows), np.bool_)
    tags, multiple = _hash(rows, indexed, into)
    topics = columns.spans(rows.data, rows[kernels.F_TOPIC], rows[kernels.F_TOPIC_SIZE]).dictionary_encode()
    names = [java_text(name) for name in topics.dictionary.to_pylist()]
    codes: NDArray[np.int64] = np.asarray(topics.indices, np.int64)
    if into.pending is not None:
        into.pending.see(rows, names, codes)
    if SCHEDULE_TOPIC in names:
        _note_delayed(rows, codes == names.index(SCHEDULE_TOPIC), sources, into)
    units = np.empty((COLUMNS, len(rows)), np.int64)
    units[U_OFFSET], units[U_PHYSICAL] = rows[kernels.F_QUEUE_OFFSET], rows[kernels.F_PHYSICAL]
    units[U_SIZE], units[U_TAG] = rows[kernels.F_SIZE], tags
    units[U_TIME], units[U_BATCH] = rows[kernels.F_STORE_TIME], 1
    packed = (flags & SysFlag.INNER_BATCH) != 0
    if packed.any():
        _batches(rows, packed, units)
        into.batch_topics.update(names[code] for code in np.unique(codes[(flags & BATCH_MASK) == BATCH_MASK]).tolist())
    dispatched = (transaction == 0) | (transaction == SysFlag.COMMIT)
    _spread(names, codes, rows[kernels.F_QUEUE_ID], dispatched, units, into)
    if multiple.any():
        _multi_dispatch(rows, dispatched & multiple, units, into)


def _hash(
    rows: Messages, indexed: NDArray[np.bool_], into: DerivedEntries
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The tag hashes, and which messages may belong to several queues; keys of `indexed` messages go to `into`."""
    tags, multiple = np.empty(len(rows), np.int64), np.empty(len(rows), np.bool_)
    strings = rows[kernels.F_PROPERTIES_SIZE]
    # A few keys per message first: memory that is never touched costs too. Then as many as there can be.
    for room in (4 * len(rows), int(strings.sum()) + 2 * len(rows)):
        hashes, addresses, times = (np.empty(room, np.int64) for _ in range(3))
        of_tags = np.empty(room, np.bool_)
        count, _, status = encode.derive_rows(
            rows.data,
            rows[kernels.F_PROPERTIES],
            strings,
            rows[kernels.F_TOPIC],
            rows[kernels.F_TOPIC_SIZE],
            indexed,
            rows[kernels.F_PHYSICAL],
            rows[kernels.F_STORE_TIME],
            tags,
            hashes,
            addresses,
            times,
            of_tags,
            multiple,
        )
        if status == Status.OK:
            break
    assert status == Status.OK, "room for fewer keys than their bytes can hold"
    into.hashes.append(hashes[:count].copy())
    into.addresses.append(addresses[:count].copy())
    into.times.append(times[:count].copy())
    into.of_tags.append(of_tags[:count].copy())
    return tags, multiple


def _spread(
    names: Sequence[str],
    codes: NDArray[np.int64],
    queue_ids: NDArray[np.int64],
    dispatched: NDArray[np.bool_],
    units: NDArray[np.int64],
    into: DerivedEntries,
) -> None:
    """Units to their queues, in order."""
    joined = (codes << 32) | (queue_ids & 0xFFFF_FFFF)
    rows = np.flatnonzero(dispatched)
    order = rows[np.argsort(joined[rows], kind="stable")]
    edges = np.flatnonzero(np.diff(joined[order])) + 1
    for part in np.split(order, edges):
        if part.size:
            queue = (names[int(codes[part[0]])], int(queue_ids[part[0]]))
            into.units.setdefault(queue, []).append(units[:, part])


def property_values(rows: Messages, which: NDArray[np.int64], name: str) -> list[bytes | None]:
    """The values of a property of the messages numbered `which`."""
    starts, sizes = property_spans(rows, name, which)
    return [
        bytes(rows.data[start : start + size]) if size >= 0 else None
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
    ]


def property_spans(
    rows: Messages, name: str, which: NDArray[np.int64] | slice = slice(None)
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where a property of messages begins, and its size; below zero: a message has none."""
    starts, sizes = rows[kernels.F_PROPERTIES][which], rows[kernels.F_PROPERTIES_SIZE][which]
    out = np.empty((2, starts.size), np.int64)
    encode.find_property(rows.data, starts, sizes, np.frombuffer(name.encode(), np.uint8), out)
    return out[0], out[1]


def _number(raw: bytes | None) -> int | None:
    """A decimal number of 64 bits, as Java reads it; None for other text."""
    if raw is None or not 0 < len(raw) <= 20 or not raw.removeprefix(b"-").isdigit():
        return None
    value = int(raw)
    return value if -(1 << 63) <= value < 1 << 63 else None


def _note_delayed(rows: Messages, which: NDArray[np.bool_], sources: NDArray[np.int64], into: DerivedEntries) -> None:
    """Note the delayed messages: in the schedule topic the tag hash is the time at which a message is due."""
    numbers = np.flatnonzero(which)
    levels = [_number(raw) or 0 for raw in property_values(rows, numbers, "DELAY")]
    delayed = np.empty((DELAYED, numbers.size), np.int64)
    delayed[D_PHYSICAL], delayed[D_SOURCE] = rows[kernels.F_PHYSICAL][numbers], sources[numbers]
    delayed[D_TIME], delayed[D_LEVEL] = rows[kernels.F_STORE_TIME][numbers], levels
    into.delayed.append(delayed[:, delayed[D_LEVEL] > 0])


def _wrap(value: int) -> int:
    """A sum as Java computes it in 64 bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _batches(rows: Messages, packed: NDArray[np.bool_], units: NDArray[np.int64]) -> None:
    numbers = np.flatnonzero(packed)
    bases, counts = property_values(rows, numbers, "INNER_BASE"), property_values(rows, numbers, "INNER_NUM")
    for row, base, count in zip(numbers.tolist(), bases, counts, strict=True):
        first = _number(base)
        if first is not None:
            units[U_OFFSET, row] = first
        units[U_BATCH, row] = _number(count) or 1


def _multi_dispatch(
    rows: Messages, dispatched: NDArray[np.bool_], units: NDArray[np.int64], into: DerivedEntries
) -> None:
    """Light message queues: repeat the unit in each queue for which the broker numbered the message."""
    numbers = np.flatnonzero(dispatched)
    offsets = property_values(rows, numbers, "INNER_MULTI_QUEUE_OFFSET")
    with_offsets = [index for index, raw in enumerate(offsets) if raw]
    names = property_values(rows, numbers[with_offsets], "INNER_MULTI_DISPATCH")
    for index, raw_names in zip(with_offsets, names, strict=True):
        if not raw_names:
            continue
        queues, places = raw_names.split(b","), (offsets[index] or b"").split(b",")
        for queue, place in zip(queues, places, strict=False):
            name, offset = java_text(queue), _number(place)
            if name.startswith(LMQ_PREFIX) and "/" not in name and offset is not None:
                unit = units[:, numbers[index] : numbers[index] + 1].copy()
                unit[U_OFFSET] = offset
                into.units.setdefault((name, 0), []).append(unit)


def derive_bytes(data: Bytes, address: int, into: DerivedEntries) -> None:
    """Add the units and keys of the whole messages in `data`, which begins at an address."""
    frames = replace(scan(data, 0), base=address)
    derive_from(Messages.take(frames, File("", 0, None, COMMIT_LOG.name), with_crc=False), into)


def indexes_tags(files: Sequence[File]) -> bool:
    """Whether the broker of a store indexes tags, as 5.4.0 and later do: only these make `rocksdbstore`, 5.5.0 and later write the sixth
    field of the checkpoint, and the newest entries of the index show it.
    """
    if any(file.format == "rocketmq.storedatabase" for file in files) or logics_offset(files):
        return True
    logs = commit_logs(files)
    indexes = [file for file in files if file.format == "rocketmq.index" and file.problem is None]
    for file in sorted(indexes, key=lambda file: file.path, reverse=True)[:NEWEST_FILES]:
        with contextlib.suppress(RawlogError), Index(file.path) as opened:
            if _has_tag(opened.newest(NEWEST_ENTRIES), logs):
                return True
    return False


NEWEST_FILES, NEWEST_ENTRIES = 3, 256
"""Files of the index, and entries of each, that are searched for tags."""


def _has_tag(entries: NDArray[np.void], logs: Sequence[File]) -> bool:
    """Whether an entry of the index is the tag of its message."""
    for address in np.unique(entries["physical_offset"]).tolist():
        rows = message_at(logs, address)
        if rows is not None:
            tagged = DerivedEntries()
            derive_from(rows, tagged)
            keys = tagged.keys(with_tags=True)
            tags = keys[K_HASH, keys[K_OF_TAG] != 0]
            if np.isin(entries["key_hash"][entries["physical_offset"] == address], tags).any():
                return True
    return False


def message_at(logs: Iterable[File], address: int) -> Messages | None:
    """The message at an address, if it names this address; else None."""
    for file in logs:
        start = file.place.start_offset or 0
        if start <= address < start + file.size:
            with Source(file.path) as source:
                size = int.from_bytes(source.read(address - start, 4), "big", signed=True)
                data = np.frombuffer(source.read(address - start, min(max(size, 0), LARGEST_FILE)), np.uint8)
            frames = replace(scan(data, 0), base=address - start)
            rows = Messages.take(frames, file, with_crc=False)
            if len(rows) == 1 and not rows.stale[0]:
                return rows
    return None


def logics_offset(files: Iterable[File]) -> int:
    """The message up to which consume queues are on disk, as the checkpoint of 5.5.0 and later says; 0 if nothing says it."""
    for file in files:
        if file.format == "rocketmq.checkpoint" and file.problem is None and file.place.state is None:
            with Source(file.path) as source:
                head = source.read(0, CHECKPOINT.size)
            at = CHECKPOINT.at("logics_physical_offset")
            return int.from_bytes(head[at : at + 8], "big", signed=True)
    return 0


def commit_logs(files: Iterable[File]) -> list[File]:
    """The commit-log files among some, in order of their addresses, whatever directory each lies in."""
    logs = [file for file in files if file.format == "rocketmq.commitlog" and file.problem is None]
    return sorted(
        logs, key=lambda file: (-1 if file.place.start_offset is None else file.place.start_offset, file.path)
    )


def messages_of(file: File, *, errors: str = "stop", with_crc: bool = True) -> Iterator[Messages]:
    """The messages of a commit-log file without leftovers; a window at a time."""
    for frames in walk(file, COMMIT_LOG, errors=errors):
        rows = Messages.take(frames, file, with_crc=with_crc)
        yield rows.where(~rows.leftovers(file))


def loaded_messages(files: Iterable[File], errors: str = "raise") -> Iterator[Messages]:
    """The messages of all commit-log files that a broker loads, a window at a time. DataError at damage unless `errors` says otherwise;
    bodies are not summed up.
    """
    for file in commit_logs(files):
        if file.place.state is None:
            yield from (rows for rows in messages_of(file, errors=errors, with_crc=False) if len(rows))
