"""What verification looks for in single files of a store. What files say of one another is in `store/rules`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq.commitlog import bodies, walk_inner
from rawlog.formats.rocketmq.index import Index
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    BATCH_UNIT,
    BLANK,
    INDEX_HEADER,
    MAGIC_BLANK,
    PRE_BLANK_SIZE,
    SLOT,
    UNIT,
)
from rawlog.formats.rocketmq.messages import Messages, out_of_line
from rawlog.kernels import columns
from rawlog.model.errors import CorruptError, DataError, LimitError
from rawlog.model.finding import (
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import Inspection
from rawlog.model.status import Status
from rawlog.model.text import FIRST_DAY, LAST_DAY, plain_time


def _rows(inspection: Inspection) -> Messages:
    return Messages.take(inspection.frames, inspection.file)


def _numbers(which: NDArray[Any]) -> list[int]:
    rows: list[int] = np.flatnonzero(which).tolist()
    return rows


@rule("rocketmq.commitlog.crc", Severity.ERROR)
def body_crc(inspection: Inspection) -> Iterator[Mark]:
    """The body of a message does not have the checksum stored with it.

    A broker that scans the file at its next start ends the log here: this message and everything after it is cut off, and every later
    commit-log file is deleted. `rawlog repair` keeps what follows. Work on copies.
    """
    rows = inspection.share(_rows)
    for row in _numbers(~rows.crc_ok & ~rows.stale):
        error = rows.crc_error(row)
        yield Mark(
            "body with a wrong checksum; a broker scanning this file would cut the log here",
            position=error.position,
            size=int(rows[kernels.F_SIZE][row]),
            offset=int(rows[kernels.F_QUEUE_OFFSET][row]),
            expected=error.expected,
            found=error.found,
        )


@rule("rocketmq.commitlog.physical-offset", Severity.ERROR)
def physical_offset(inspection: Inspection) -> Iterator[Mark]:
    """An entry says that it is at another place, although entries at their right place follow it.

    Brokers up to 5.4.0 do not look: they build queues that point to the wrong bytes. The entry was copied or moved by something that did
    not know the format.
    """
    for position, count, size, is_tail in _stale_runs(inspection):
        if not is_tail:
            yield Mark(
                f"{count:,} entries with a physical offset that is not their place", position=position, size=size
            )


@rule("rocketmq.commitlog.stale", Severity.WARNING)
def stale_entries(inspection: Inspection) -> Iterator[Mark]:
    """After the logical end of the log there are old entries: complete, with correct checksums, but from another position.

    A start after a crash only moves the end of the log back; the bytes after it stay. They are no messages, and rawlog does not read them
    as such. Brokers up to 5.4.0 do not compare the physical offset and may take them up at the next start.
    """
    for position, count, size, is_tail in _stale_runs(inspection):
        if is_tail:
            yield Mark(
                f"{count:,} stale entries after the logical end; a broker that does not compare physical offsets serves them",
                position=position,
                size=size,
            )


def _stale_runs(inspection: Inspection) -> Iterator[tuple[int, int, int, bool]]:
    """Position, number, size of runs of stale entries, and whether nothing else follows."""
    rows, memory = inspection.share(_rows), inspection.memory
    stale, positions, sizes = rows.stale, rows.positions, rows[kernels.F_SIZE]
    run: list[int] | None = memory.get("run")
    if stale.any() or run is not None:
        for row in range(len(rows)):
            if stale[row]:
                run = run or [int(positions[row]), 0, 0]
                run[1] += 1
                run[2] = int(positions[row] + sizes[row]) - run[0]
            elif run is not None:
                yield run[0], run[1], run[2], False
                run = None
    memory["run"] = run
    if inspection.frames.last and run is not None:
        yield run[0], run[1], run[2], True


@rule("rocketmq.commitlog.entry-crc", Severity.ERROR)
def entry_crc(inspection: Inspection) -> Iterator[Mark]:
    """The property `__CRC32#` is not the checksum of the whole entry (written by 5.2.0 and later with enabledAppendPropCRC).

    Some field of the entry was changed after it was written. A broker with forceVerifyPropCRC ends the log here at its next start.
    """
    rows = inspection.share(_rows)
    rows = rows.where(~rows.stale)
    which, sums, stored = rows.entry_crcs()
    for index in _numbers(sums != stored):
        yield Mark(
            "entry with a wrong checksum in its property __CRC32#",
            position=rows.frame_position(int(which[index])),
            size=int(rows[kernels.F_SIZE][which[index]]),
            offset=int(rows[kernels.F_QUEUE_OFFSET][which[index]]),
            expected=int(stored[index]),
            found=int(sums[index]),
        )


def _unreadable_bodies(inspection: Inspection) -> list[tuple[Mark, DataError]]:
    """The messages of a commit log whose compressed bodies cannot be read, and why."""
    rows = inspection.share(_rows)
    return _read_bodies(rows.where(rows.crc_ok & ~rows.stale), inspection)


def _unreadable_compacted(inspection: Inspection) -> list[tuple[Mark, DataError]]:
    """The same of a compaction topic's log, whose messages name their place in the commit log."""
    rows = inspection.share(_rows)
    return _read_bodies(rows.where(rows.crc_ok), inspection)


def _read_bodies(rows: Messages, inspection: Inspection) -> list[tuple[Mark, DataError]]:
    marks = []
    while len(rows):
        inflated = bodies(rows, inspection.limit)
        if inflated.error is not None:
            offset = int(rows[kernels.F_QUEUE_OFFSET][inflated.fits])
            marks.append(
                (Mark(inflated.error.message, position=inflated.error.position, offset=offset), inflated.error)
            )
        rows = rows.cut(inflated.fits + (inflated.error is not None), len(rows))
    return marks


@rule("rocketmq.commitlog.body", Severity.ERROR)
def unreadable_body(inspection: Inspection) -> Iterator[Mark]:
    """A compressed body cannot be decompressed, or names a compression that does not exist, although its checksum is right.

    The producer wrote it so; no consumer can read the message either.
    """
    for mark, error in inspection.share(_unreadable_bodies):
        if not isinstance(error, LimitError):
            yield mark


@rule("rocketmq.commitlog.limit", Severity.WARNING)
def limit(inspection: Inspection) -> Iterator[Mark]:
    """rawlog did not decompress the body of a message: it is larger than the limit, which keeps a small file from taking all memory.

    If the message is genuine, raise the limit that the message names.
    """
    for mark, error in inspection.share(_unreadable_bodies):
        if isinstance(error, LimitError):
            yield mark


@rule("rocketmq.commitlog.inner-batch", Severity.ERROR)
def inner_batches(inspection: Inspection) -> Iterator[Mark]:
    """The body of an inner batch is not a run of messages.

    Consumers fail on it. The entry as such is sound.
    """
    rows = inspection.share(_rows)
    rows = rows.where(rows.crc_ok & ~rows.stale & ((rows[kernels.F_SYS_FLAG] & BATCH_MASK) == BATCH_MASK))
    if not len(rows):
        return
    while len(rows):
        inflated = bodies(rows, inspection.limit)
        for row in range(inflated.fits):
            try:
                for _ in walk_inner(rows, inflated, row):
                    pass
            except CorruptError:
                yield Mark("an inner batch whose lengths do not fit", position=rows.frame_position(row))
        rows = rows.cut(inflated.fits + (inflated.error is not None), len(rows))


@rule("rocketmq.commitlog.blank-size", Severity.WARNING)
def blank_size(inspection: Inspection) -> Iterator[Mark]:
    """A blank entry does not reach to the end of its file.

    A broker continues with the next file; the rest of this file is never read.
    """
    frames = inspection.frames
    numbers = np.flatnonzero(frames.sizes >= BLANK.size)
    is_blank = BLANK.take(frames.data, frames.starts[numbers])["magic"] == MAGIC_BLANK
    for number in numbers[is_blank].tolist():
        position, size = int(frames.positions[number]), int(frames.sizes[number])
        room = inspection.file.size - position
        if size != room:
            yield Mark("this blank entry ends before the file does", position=position, expected=room, found=size)


@rule("rocketmq.commitlog.time", Severity.WARNING)
def falling_times(inspection: Inspection) -> Iterator[Mark]:
    """The store time of a message is below that of the one before it, above that of the one after it, or zero.

    On one broker it never falls, unless the clock was set back or the bytes are older than those before them. Searching by time is a
    binary search and then finds wrong places; the first message of a file decides where a start after a crash begins to scan.
    """
    rows = inspection.share(_rows)
    rows = rows.where(rows.sound & ~rows.fillers)
    places = rows.frames.positions[rows[kernels.F_FRAME]]
    facts = np.stack((rows[kernels.F_STORE_TIME], places, rows[kernels.F_QUEUE_OFFSET]))
    if (kept := inspection.memory.get("kept")) is not None:
        facts = np.concatenate((kept, facts), axis=1)
    # One message is judged by the next; the first of a file by two.
    first, count = inspection.memory.get("decided", 0), facts.shape[1]
    stop = count if inspection.frames.last else max(first, count - 1) if count > 2 else first
    times = facts[0]
    wrong = out_of_line(times)[first:stop]
    current = times[first:stop]
    highest = np.maximum.accumulate(np.concatenate(([inspection.memory.get("time", 0)], np.where(wrong, 0, current))))
    for row in _numbers(wrong | (current < highest[:-1]) | (current <= 0)):
        is_late = current[row] >= highest[row] and current[row] > 0
        yield Mark(
            "a store time after that of the next message"
            if is_late
            else "a store time that falls"
            if current[row] > 0
            else "a store time before 1970",
            position=int(facts[1, first + row]),
            offset=int(facts[2, first + row]),
            expected=f"at most {int(times[first + row + 1])}" if is_late else f"at least {int(highest[row])}",
            found=int(current[row]),
        )
    inspection.memory.update(time=int(highest[-1]), kept=facts[:, max(0, stop - 1) :], decided=min(1, stop))


@rule("rocketmq.commitlog.far-timestamp", Severity.INFO)
def far_times(inspection: Inspection) -> Iterator[Mark]:
    """The time at which a message was sent or stored lies outside of the years 1 to 9999: a clock was wrong. Brokers take such messages.

    Many tools cannot show the time; beyond the year 294247 it does not fit a column of timestamps and reads as null.
    """
    rows = inspection.share(_rows)
    rows = rows.where(~rows.stale & ~rows.fillers)
    for name, field in (("sent", kernels.F_BORN_TIME), ("stored", kernels.F_STORE_TIME)):
        times = rows[field]
        for row in _numbers((times > LAST_DAY // 1000) | (times < FIRST_DAY // 1000)):
            yield Mark(
                f"a message {name} at the time {plain_time(int(times[row]) * 1000)}",
                position=rows.frame_position(row),
                offset=int(rows[kernels.F_QUEUE_OFFSET][row]),
                found=int(times[row]),
            )


@rule("rocketmq.commitlog.text", Severity.INFO)
def not_utf8(inspection: Inspection) -> Iterator[Mark]:
    """A topic or property is not UTF-8, which RocketMQ takes all text for. Brokers take it, and clients show U+FFFD for such bytes.

    It is read the same way here, and `headers` of `records` has values as they are. Verbs that copy messages (repair, rebuild, compact,
    erase, restore) keep its bytes; those that write records in another form name `headers` or `topic` as a loss. No checksum covers
    these bytes: they may also be damaged. It is a warning where properties end in zero bytes: keys or tags were written over.
    """
    rows = inspection.share(_rows)
    if not len(rows):
        return
    for row in np.flatnonzero(rows.are_properties_cut & rows.crc_ok & ~rows.stale).tolist():
        yield Mark(
            "properties: they end in zero bytes, a part of them is lost",
            rows.frame_position(row),
            offset=int(rows[kernels.F_QUEUE_OFFSET][row]),
            severity=Severity.WARNING,
        )
    start, size = rows[kernels.F_TOPIC], rows[kernels.F_TOPIC_SIZE]
    ends = rows[kernels.F_PROPERTIES] + rows[kernels.F_PROPERTIES_SIZE]
    texts = columns.spans(rows.data, start, ends - start)  # the two bytes of a length between them are cut out below
    if int(np.frombuffer(texts.buffers()[2], np.uint8).max(initial=0)) < 0x80:
        return
    for row, raw in enumerate(texts.to_pylist()):
        for name, part in (("topic", raw[: int(size[row])]), ("properties", raw[int(size[row]) + 2 :])):
            try:
                part.decode("utf-8")
            except UnicodeDecodeError as error:
                shown = part[error.start : error.end].hex()
                yield Mark(f"{name}: not UTF-8 ({error.reason})", position=rows.frame_position(row), found=shown)


@rule("rocketmq.commitlog.filler", Severity.INFO)
def fillers(inspection: Inspection) -> Iterator[Mark]:
    """Entries that only cover a hole: `rawlog repair` wrote them where damage could not be repaired.

    What they cover is lost. No queue shows them.
    """
    rows = inspection.share(_rows)
    for row in _numbers(rows.fillers):
        yield Mark("a filler over lost bytes", position=rows.frame_position(row), size=int(rows[kernels.F_SIZE][row]))


def commit_log() -> Sequence[Rule[Inspection]]:
    """The rules of a commit-log file."""
    return (
        body_crc, physical_offset, stale_entries, entry_crc, unreadable_body, limit, inner_batches, blank_size, falling_times,
        far_times, not_utf8, fillers,
    )  # fmt: skip


@rule("rocketmq.compactionlog.crc", Severity.ERROR)
def compacted_crc(inspection: Inspection) -> Iterator[Mark]:
    """The body of a message in a compaction topic's log does not have its checksum.

    The same message is in the commit log as well until that expires.
    """
    rows = inspection.share(_rows)
    for row in _numbers(~rows.crc_ok):
        yield Mark(
            "body with a wrong checksum",
            position=rows.frame_position(row),
            offset=int(rows[kernels.F_QUEUE_OFFSET][row]),
        )


@rule("rocketmq.compactionlog.body", Severity.ERROR)
def compacted_body(inspection: Inspection) -> Iterator[Mark]:
    """A compressed body in a compaction topic's log cannot be decompressed, or names a compression that does not exist, although its
    checksum is right.

    No consumer can read the message. The same message is in the commit log as well until that expires.
    """
    for mark, error in inspection.share(_unreadable_compacted):
        if not isinstance(error, LimitError):
            yield mark


@rule("rocketmq.compactionlog.limit", Severity.WARNING)
def compacted_limit(inspection: Inspection) -> Iterator[Mark]:
    """rawlog did not decompress the body of a message in a compaction topic's log: it is larger than the limit.

    If the message is genuine, raise the limit that the message names.
    """
    for mark, error in inspection.share(_unreadable_compacted):
        if isinstance(error, LimitError):
            yield mark


def compaction_log() -> Sequence[Rule[Inspection]]:
    """The rules of a compaction topic's log."""
    return compacted_crc, compacted_body, compacted_limit


def _queue_order(inspection: Inspection, layout: Any) -> Iterator[Mark]:
    rows = layout.take(inspection.frames.data, inspection.frames.starts)
    addresses = rows["physical_offset"].astype(np.int64)
    real = np.flatnonzero(rows["size"] != PRE_BLANK_SIZE)
    addresses = addresses[real]
    before = inspection.memory.get("address", -1)
    chain = np.concatenate(([before], addresses))
    for index in _numbers(chain[1:] <= chain[:-1]):
        row = int(real[index])
        yield Mark(
            "a unit whose message is before that of the unit before it",
            position=int(inspection.frames.positions[row]),
            size=layout.size,
            expected=f"above {int(chain[index])}",
            found=int(addresses[index]),
        )
    if addresses.size:
        inspection.memory["address"] = int(addresses[-1])


@rule("rocketmq.consumequeue.order", Severity.ERROR)
def queue_order(inspection: Inspection) -> Iterator[Mark]:
    """The addresses of a queue's units do not rise.

    Messages are dispatched in the order of the log, so the unit is wrong. Rebuild the queue from the commit log: `rawlog rebuild`.
    """
    yield from _queue_order(inspection, UNIT)


@rule("rocketmq.consumequeue.empty", Severity.ERROR)
def empty_queue_file(inspection: Inspection) -> Iterator[Mark]:
    """A queue file has nothing but zeros.

    At the next start a broker counts its first unit: the queue shows one or two messages that do not exist. Remove the file.
    """
    if (
        inspection.frames.last
        and inspection.frames.base == 0
        and not len(inspection.frames)
        and inspection.file.size >= UNIT.size
    ):
        yield Mark("a queue file of zeros; a broker would show phantom messages", position=0, size=inspection.file.size)


def consume_queue() -> Sequence[Rule[Inspection]]:
    """The rules of a plain queue file."""
    return (queue_order, empty_queue_file)


@rule("rocketmq.batchconsumequeue.order", Severity.ERROR)
def batch_queue_order(inspection: Inspection) -> Iterator[Mark]:
    """The addresses of a batch queue's units do not rise, or a batch does not begin where the one before ended.

    Rebuild the queue from the commit log: `rawlog rebuild`.
    """
    yield from _queue_order(inspection, BATCH_UNIT)
    rows = BATCH_UNIT.take(inspection.frames.data, inspection.frames.starts)
    base, count = rows["base_offset"].astype(np.int64), rows["batch_size"].astype(np.int64)
    expected = np.concatenate(([inspection.memory.get("next", int(base[0]) if base.size else 0)], base + count))
    for row in _numbers(base != expected[:-1]):
        position = int(inspection.frames.positions[row])
        yield Mark("a batch with a gap before it", position=position, expected=int(expected[row]), found=int(base[row]))
    if base.size:
        inspection.memory["next"] = int(expected[-1])


def batch_queue() -> Sequence[Rule[Inspection]]:
    """The rules of a batch queue file."""
    return (batch_queue_order,)


@rule("rocketmq.index.count", Severity.ERROR)
def index_count(inspection: Inspection) -> Iterator[Mark]:
    """The header has the wrong number of entries.

    A broker trusts the header: it does not find keys after that number, and overwrites them. Rebuild the index.
    """
    inspection.memory["count"] = inspection.memory.get("count", 0) + len(inspection.frames)
    if inspection.frames.last and inspection.frames.status is not Status.TRUNCATED and inspection.file.size:
        try:
            with Index(inspection.file.path) as index:
                count = index.header.count
        except DataError:
            return  # the header's own finding
        if count - 1 != inspection.memory["count"]:
            yield Mark(
                "the count in the header is not the number of entries",
                position=INDEX_HEADER.at("index_count"),
                size=4,
                expected=inspection.memory["count"] + 1,
                found=count,
            )


@rule("rocketmq.index.chain", Severity.ERROR)
def index_chains(inspection: Inspection) -> Iterator[Mark]:
    """A slot does not lead to its newest entry, or an entry not to the next older one of its slot.

    Keys are then not found although they are there, or a look-up does not end. Rebuild the index from the commit log.
    """
    if not inspection.frames.last:
        return
    try:
        with Index(inspection.file.path) as index:
            entries, slots, header = index.table(), index.slots().astype(np.int64), index.header
    except DataError:
        return  # the header's own finding
    hashes, previous = entries["key_hash"].astype(np.int64), entries["previous"].astype(np.int64)
    if not header.slots or not len(entries):
        return
    newest = np.zeros(header.slots, np.int64)
    expected = np.zeros(len(entries), np.int64)
    where = np.where(hashes >= 0, hashes, 0) % header.slots
    order = np.argsort(where[1:], kind="stable") + 1  # entry 0 is not used
    follows = where[order[1:]] == where[order[:-1]]
    expected[order[1:][follows]] = order[:-1][follows]
    last = order[np.append(~follows, order.size > 0)[: order.size]]
    newest[where[last]] = last
    for number in _numbers(previous[1:] != expected[1:]):
        yield Mark(
            f"entry {number + 1} leads to the wrong one",
            position=header.entries_at + (number + 1) * entries.dtype.itemsize,
            expected=int(expected[number + 1]),
            found=int(previous[number + 1]),
        )
    for slot in _numbers(slots != newest):
        yield Mark(
            f"slot {slot} leads to the wrong entry",
            position=INDEX_HEADER.size + slot * SLOT.size,
            size=SLOT.size,
            expected=int(newest[slot]),
            found=int(slots[slot]),
        )
    used = int(np.count_nonzero(newest))
    if used != header.used_slots:
        at = INDEX_HEADER.at("used_slots")
        yield Mark("a number of used slots that is wrong", position=at, size=4, expected=used, found=header.used_slots)


def key_index() -> Sequence[Rule[Inspection]]:
    """The rules of an index file."""
    return (index_count, index_chains)
