"""What a broker derives from each message of the commit log: units of queues, keys of the index.

Rebuilding, writing and verifying share it, so that they agree on what a derived file must hold.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import DataError
from rawlog.core.format import File
from rawlog.core.status import Status
from rawlog.core.text import java_text
from rawlog.formats.rocketmq import COMMIT_LOG, config
from rawlog.formats.rocketmq.kernels import derive
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    LMQ_PREFIX,
    SCHEDULE_TOPIC,
    TRANSACTION_MASK,
    SysFlag,
)
from rawlog.formats.rocketmq.reader import Messages
from rawlog.formats.rocketmq.store.delays import Delays, delays_of
from rawlog.io.walk import walk
from rawlog.kernels import columns

Queue = tuple[str, int]

COLUMNS = 6
"""Rows of the units of a queue, by place."""
U_OFFSET, U_PHYSICAL, U_SIZE, U_TAG, U_TIME, U_BATCH = range(COLUMNS)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a broker was told that its commit log does not say."""

    batch_topics: frozenset[str] = frozenset()
    delays: Delays = field(default_factory=Delays)


@dataclass(slots=True)
class Derived:
    """Of a run of messages: the units of each queue in order, and the keys of the index in order."""

    units: dict[Queue, list[NDArray[np.int64]]] = field(default_factory=dict)
    hashes: list[NDArray[np.int64]] = field(default_factory=list)
    addresses: list[NDArray[np.int64]] = field(default_factory=list)
    times: list[NDArray[np.int64]] = field(default_factory=list)
    batch_topics: set[str] = field(default_factory=set)
    messages: int = 0
    last_time: int = 0
    #: Delayed messages whose due time follows from RocketMQ's default levels, because nothing else shows it.
    assumed_delays: int = 0

    def queue(self, queue: Queue) -> NDArray[np.int64]:
        """All units of a queue, a column each."""
        pieces = self.units.get(queue)
        return np.concatenate(pieces, axis=1) if pieces else np.empty((COLUMNS, 0), np.int64)

    def keys(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        empty = [np.empty(0, np.int64)]
        return (
            np.concatenate(self.hashes or empty),
            np.concatenate(self.addresses or empty),
            np.concatenate(self.times or empty),
        )


def settings_of(files: Iterable[File], options: Mapping[str, str] | None = None) -> Settings:
    """What the files of a store, a `broker.conf` near it and options tell of a broker's settings. OptionError for what cannot be.

    Settings that cannot be read say nothing: a finding of their own reports them.
    """
    files = list(files)
    # Where the topics are lost, the directories of queues still show of what kind they are.
    batch = {str(file.place.topic) for file in files if file.format == "rocketmq.batchconsumequeue"}
    with contextlib.suppress(DataError):
        for _, value in config.load(files, "topics.json"):
            for name, topic in (value.get("topicConfigTable") or {}).items():
                if is_batch(topic):
                    batch.add(name)
    return Settings(frozenset(batch), delays_of(files, options))


def is_batch(topic: Mapping[str, Any]) -> bool:
    """Whether the queues of a topic, as `topics.json` has it, hold batches."""
    return (topic.get("attributes") or {}).get("queue.type") == "BatchCQ"


def derive_from(rows: Messages, settings: Settings, into: Derived, *, with_keys: bool = True) -> None:
    """Add what these messages give to `into`."""
    if not len(rows):
        return
    into.messages += len(rows)
    into.last_time = int(rows[kernels.F_STORE_TIME][-1])
    flags = rows[kernels.F_SYS_FLAG]
    transaction = flags & TRANSACTION_MASK
    indexed = transaction != TRANSACTION_MASK if with_keys else np.zeros(len(rows), np.bool_)
    tags, multiple = _hash(rows, indexed, into)
    topics = columns.spans(rows.data, rows[kernels.F_TOPIC], rows[kernels.F_TOPIC_SIZE]).dictionary_encode()
    names = [java_text(name) for name in topics.dictionary.to_pylist()]
    codes: NDArray[np.int64] = np.asarray(topics.indices, np.int64)
    if SCHEDULE_TOPIC in names:
        into.assumed_delays += _delays(rows, codes == names.index(SCHEDULE_TOPIC), settings.delays, tags)
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


def _hash(rows: Messages, indexed: NDArray[np.bool_], into: Derived) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Tag hashes, and which messages may belong to several queues; the keys of those `indexed` go to `into`."""
    tags, multiple = np.empty(len(rows), np.int64), np.empty(len(rows), np.bool_)
    strings = rows[kernels.F_PROPERTIES_SIZE]
    # A few keys a message first: memory that is never touched costs too. Then as many as there can be.
    for room in (4 * len(rows), int(strings.sum()) + 2 * len(rows)):
        hashes, addresses, times = (np.empty(room, np.int64) for _ in range(3))
        count, _, status = derive.derive_rows(
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
            multiple,
        )
        if status == Status.OK:
            break
    assert status == Status.OK, "room for fewer keys than their bytes can hold"
    into.hashes.append(hashes[:count].copy())
    into.addresses.append(addresses[:count].copy())
    into.times.append(times[:count].copy())
    return tags, multiple


def _spread(
    names: Sequence[str],
    codes: NDArray[np.int64],
    queue_ids: NDArray[np.int64],
    dispatched: NDArray[np.bool_],
    units: NDArray[np.int64],
    into: Derived,
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
    """The value of one property of the messages numbered `which`."""
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
    derive.find_property(rows.data, starts, sizes, np.frombuffer(name.encode(), np.uint8), out)
    return out[0], out[1]


def _number(raw: bytes | None) -> int | None:
    """A decimal number of 64 bits, as Java reads it; None if it is none."""
    if raw is None or not 0 < len(raw) <= 20 or not raw.removeprefix(b"-").isdigit():
        return None
    value = int(raw)
    return value if -(1 << 63) <= value < 1 << 63 else None


def _delays(rows: Messages, which: NDArray[np.bool_], delays: Delays, tags: NDArray[np.int64]) -> int:
    """In the schedule topic the tag hash is the time at which a message is due. How many of them are a guess."""
    numbers, assumed = np.flatnonzero(which), 0
    for row, raw in zip(numbers.tolist(), property_values(rows, numbers, "DELAY"), strict=True):
        level = _number(raw)
        if level is not None and level > 0:
            due, is_known = delays.due_at(
                int(rows[kernels.F_PHYSICAL][row]), int(rows[kernels.F_STORE_TIME][row]), level
            )
            tags[row] = _wrapped(due)
            assumed += not is_known
    return assumed


def _wrapped(value: int) -> int:
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


def _multi_dispatch(rows: Messages, dispatched: NDArray[np.bool_], units: NDArray[np.int64], into: Derived) -> None:
    """Light message queues: the same unit again in each queue that the broker numbered the message for."""
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


def commit_logs(files: Iterable[File]) -> list[File]:
    """The commit-log files among some, in order of their addresses, whatever directory each lies in."""
    found = [file for file in files if file.format == "rocketmq.commitlog" and file.problem is None]
    return sorted(
        found, key=lambda file: (-1 if file.place.start_offset is None else file.place.start_offset, file.path)
    )


def messages_of(
    file: File, *, errors: str = "stop", with_crc: bool = True, with_stale: bool = False
) -> Iterator[Messages]:
    """The messages of a commit-log file, stale ones left out unless asked for; a window at a time."""
    for frames in walk(file, COMMIT_LOG, errors=errors):
        rows = Messages.take(frames, file, with_crc=with_crc)
        yield rows if with_stale else rows.where(~rows.stale)


def loaded_messages(files: Iterable[File]) -> Iterator[Messages]:
    """The messages of all commit-log files that a broker loads, a window at a time. DataError at damage; bodies are not summed up."""
    for file in commit_logs(files):
        if file.place.state is None:
            yield from (rows for rows in messages_of(file, errors="raise", with_crc=False) if len(rows))
