"""Is anything missing? Every offset of every queue of a store is accounted for: `rawlog verify --complete`.

An offset is in one class:

- `present`: the commit log has its message, or, of a compaction topic, the log of that topic;
- `control`: a placeholder that `rawlog repair` or `rawlog erase` wrote for a message that is gone;
- `compacted`: compaction took it out;
- `expired`: before the first message of the queue in the commit log, which a broker deletes from its start;
- `unexplained`: none of these. It was there, or must have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from rawlog.formats.rocketmq import config
from rawlog.formats.rocketmq.index import key_hash
from rawlog.formats.rocketmq.layouts import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from rawlog.formats.rocketmq.store import state
from rawlog.formats.rocketmq.store.comparison import Coverage, comparison_of
from rawlog.formats.rocketmq.store.dispatch import (
    U_OFFSET,
    U_PHYSICAL,
    U_TAG,
    Queue,
)
from rawlog.formats.rocketmq.store.pending import T_DUE, T_PHYSICAL, Half
from rawlog.formats.rocketmq.store.store import View, views
from rawlog.model.errors import RawlogError
from rawlog.model.finding import (
    Account,
    Few,
    Mark,
    Rule,
    Severity,
    rule,
)
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.text import plain_time

Files = Sequence[File]


def accounts(files: Files) -> list[Account]:
    """The account of each queue, in order."""
    coverages = sorted(comparison_of(files).covered, key=lambda coverage: coverage.queue)
    opened, delayed = Store.of(files).share(_open_halves), Store.of(files).share(_delayed_messages)
    # The half messages of a store are in one topic; those that are open count for its first queue.
    first = next((coverage.queue for coverage in coverages if coverage.queue[0] == HALF_TOPIC), None)
    return [
        Account(
            system="rocketmq",
            topic=coverage.queue[0],
            partition=coverage.queue[1],
            path=Store.of(files).path,
            start=coverage.start,
            stop=coverage.stop,
            present=coverage.present,
            control=coverage.placeholders,
            compacted=coverage.compacted,
            expired=coverage.expired,
            unexplained=coverage.unexplained,
            open_transactions=len(opened) if coverage.queue == first else None,
            delayed=delayed[coverage.queue].count if coverage.queue in delayed else None,
        )
        for coverage in coverages
    ]


def _open_halves(files: Store) -> list[Half]:
    """The half messages without a commit or rollback."""
    return [half for store in views(files) for half in _without_ended(store, store.pending.open())]


def _without_ended(store: View, halves: list[Half]) -> list[Half]:
    """Half messages without those of which another copy was ended: a broker that asks the producer once more writes a copy, and only that
    has an end. The keys of the log say where copies are, and a copy that is not open was ended.
    """
    hashes = np.array(sorted({key_hash(HALF_TOPIC, half.key) for half in halves if half.key}), np.int64)
    if not hashes.size:
        return halves
    ended: set[int] = set()
    halves_at = np.concatenate(
        [store.units(queue)[U_PHYSICAL] for queue in store.derived_queues() if queue[0] == HALF_TOPIC]
    )
    for run in store.key_runs():
        ended_keys = run[:2, np.isin(run[0], hashes) & np.isin(run[1], halves_at) & (run[2] == 0)]
        ended.update(key for key, address in ended_keys.T.tolist() if address not in store.pending.places)
    return [half for half in halves if not half.key or key_hash(HALF_TOPIC, half.key) not in ended]


def _delayed_messages(files: Store) -> dict[Queue, Few]:
    """The messages of each queue whose time of delivery has not come."""
    by_queue: dict[Queue, Few] = {}
    for store in views(files):
        done = _delivered_offsets(files)
        for queue in store.derived_queues():
            if queue[0] == SCHEDULE_TOPIC:
                units = store.units(queue)
                units = units[:, units[U_OFFSET] >= done.get(queue[1] + 1, 0)]
                few = by_queue.setdefault(queue, Few())
                for offset, address, due in units[[U_OFFSET, U_PHYSICAL, U_TAG]].T.tolist():
                    what = f"a message of delay level {queue[1] + 1}, due at {plain_time(due * 1000)}, is not delivered yet"
                    few.append(_at(store, what, address, offset))
        waiting = store.pending.waiting(max(state.read_until(files), default=0))
        if waiting.shape[1]:
            few = by_queue.setdefault((TIMER_TOPIC, 0), Few())
            for address, due in waiting[[T_PHYSICAL, T_DUE]].T.tolist():
                few.append(
                    _at(store, f"a timer message, due at {plain_time(due * 1000)}, is not delivered yet", address)
                )
    return by_queue


def _delivered_offsets(files: Files) -> dict[int, int]:
    """Up to which offset the messages of each delay level were delivered."""
    try:
        tables = [value.get("offsetTable") or {} for _, value in config.load(files, "delayOffset.json")]
        return {int(level): int(offset) for table in tables for level, offset in table.items()}
    except (RawlogError, ValueError, TypeError):
        return {}  # a finding of its own


def _at(store: View, what: str, address: int, offset: int | None = None) -> Mark:
    path, position = store.log_at(address) or (store.root, None)
    return Mark(what, position, offset=offset, path=path)


# Rules ---------------------------------------------------------------------------------------------------------------


@rule("rocketmq.complete.unexplained", Severity.ERROR)
def unexplained(files: Files) -> Iterator[Mark]:
    """Offsets of a queue are missing: neither the commit log nor the log of a compaction topic has their messages, and the commit log
    does not begin after them. (With `--complete` only.)

    The consume queue, or the messages around them, show that they were there. Look for them on a slave or in a backup: `rawlog rescue`
    puts a store together from several disks. `rawlog repair` keeps the numbers of those that are lost.
    """
    for coverage in comparison_of(files).covered:
        yield from coverage.missing


@rule("rocketmq.complete.placeholder", Severity.INFO)
def placeholder(files: Files) -> Iterator[Mark]:
    """Messages of a queue are placeholders: `rawlog repair` or `rawlog erase` wrote them for messages that were lost, or were to go.
    (With `--complete` only.)

    Consumers get empty messages there. Look in a backup of before that if they should not be gone.
    """
    for coverage in comparison_of(files).covered:
        if coverage.placeholders:
            what = f"{coverage.queue[0]} queue {coverage.queue[1]}: {coverage.placeholders:,} of its messages are placeholders"
            yield Mark(what, path=Store.of(files).path)


@rule("rocketmq.complete.transaction", Severity.INFO)
def open_transaction(files: Files) -> Iterator[Mark]:
    """A half message has neither a commit nor a rollback, and the broker has not given it up: whether it counts is not decided.
    (With `--complete` only.)

    That is normal in the store of a broker that stopped, too, and nothing is missing. A broker that starts on it asks the producer's
    group, up to 15 times; if none of its producers runs, the message is given up in the end. The table `rocketmq.transactions` has all
    of them.
    """
    few = Few()
    for store in views(files):
        for half in Store.of(files).share(_open_halves):
            what = f"a half message for topic {half.topic} of producer group {half.group} is open, with unique key {half.key}"
            few.append(_at(store, what, half.physical, half.queue_offset))
    yield from few


@rule("rocketmq.complete.delayed", Severity.INFO)
def delayed_message(files: Files) -> Iterator[Mark]:
    """A delayed message is not delivered yet: it is in no queue of its topic. (With `--complete` only.)

    A broker delivers it when its time has come, at once if that is past. How far a broker has come is in `delayOffset.json` for delay
    levels and in `timercheck` for timers; after a crash some of these may have been delivered.
    """
    for few in Store.of(files).share(_delayed_messages).values():
        yield from few


@rule("rocketmq.complete.committed", Severity.WARNING)
def committed_out_of_range(files: Files) -> Iterator[Mark]:
    """A consumer group has an offset that is not in the range of its queue. (With `--complete` only.)

    After the end: the group has consumed messages that are not there any more. Before the start (only information): it has not consumed
    messages that have expired. A broker corrects both when a consumer asks for messages.
    """
    ranges: dict[Queue, Coverage] = {coverage.queue: coverage for coverage in comparison_of(files).covered}
    for file, group, queue, offset in _committed_offsets(files):
        if (coverage := ranges.get(queue)) is None:
            continue
        what = f"group {group} has committed offset {offset} of {queue[0]} queue {queue[1]}"
        if offset > coverage.stop:
            message, expected = f"{what}, which ends at {coverage.stop}", f"at most {coverage.stop}"
            yield Mark(message, offset=offset, expected=expected, found=offset, path=file.path)
        elif offset < coverage.start:
            message, expected = f"{what}, which starts at {coverage.start}", f"at least {coverage.start}"
            yield Mark(message, offset=offset, expected=expected, found=offset, path=file.path, severity=Severity.INFO)


def _committed_offsets(files: Files) -> list[tuple[File, str, Queue, int]]:
    """The offsets that consumer groups have, with the file that says so; none if that is not of the shape that a broker writes."""
    try:
        return list(state.committed(files))
    except (AttributeError, TypeError, ValueError):
        return []  # a finding of its own


def rules() -> Sequence[Rule[Files]]:
    """The rules over one store."""
    return (unexplained, placeholder, open_transaction, delayed_message, committed_out_of_range)
