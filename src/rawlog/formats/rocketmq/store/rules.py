"""Rules over the files of a store, and the account of its offsets.

Sizes and names, commit log compared with queues, index and checkpoint, and what a broker would do with them at its next start.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from rawlog.formats.rocketmq import config, parts
from rawlog.formats.rocketmq.index import key_hash
from rawlog.formats.rocketmq.layouts import BATCH_UNIT, CHECKPOINT, HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, UNIT
from rawlog.formats.rocketmq.store import state
from rawlog.formats.rocketmq.store.comparison import (
    Coverage,
    compare_index,
    comparison_of,
    message_addresses,
    queue_units,
)
from rawlog.formats.rocketmq.store.dispatch import (
    T_DUE,
    T_PHYSICAL,
    U_OFFSET,
    U_PHYSICAL,
    U_TAG,
    Half,
    Queue,
    message_at,
)
from rawlog.formats.rocketmq.store.settings import is_batch, usual_size
from rawlog.formats.rocketmq.store.store import LogSummary, View, views
from rawlog.model.errors import RawlogError
from rawlog.model.finding import Account, Few, Mark, Rule, Severity, rule
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.model.text import counted, plain_time

QUEUE_FORMATS = ("rocketmq.consumequeue", "rocketmq.batchconsumequeue", "rocketmq.consumequeueext")
#: Of queues whose files are a whole number of units.
UNITS = {"rocketmq.consumequeue": UNIT, "rocketmq.batchconsumequeue": BATCH_UNIT}


@rule("rocketmq.store.stray", Severity.ERROR)
def stray_file(files: Sequence[File]) -> Iterator[Mark]:
    """A log or queue has a file that does not belong to the broker.

    A broker loads every file there and does not start: each name must be a number, and all sizes must be equal. Checksum
    files such as `.name.crc` and marks such as `_SUCCESS` come from Hadoop and Spark. Remove it.
    """
    for file in files:
        if file.format == "rocketmq.stray":
            yield Mark("not a file of the log; a broker would not start with it here", path=file.path, size=file.size)


@rule("rocketmq.store.file-size", Severity.ERROR)
def file_sizes(files: Sequence[File]) -> Iterator[Mark]:
    """A file of a log or queue has another size than its neighbours.

    All must have exactly the size the broker is configured with, or it does not start (4.5.1 and later; before that, and in 4.9.2, the file
    and all after it are ignored). A file that was cut, or not padded with zeros to its full size. Of a queue with a single file, its size
    must be a multiple of the size of a unit.
    """
    for store in views(files):
        for format in ("rocketmq.commitlog", *QUEUE_FORMATS):
            logs = [file for file in store.of(format) if file.place.start_offset is not None]
            usual = usual_size(logs)
            for file in logs:
                if file.size != usual:
                    yield Mark(
                        "a file of the wrong size; a broker would not start",
                        path=file.path,
                        expected=usual,
                        found=file.size,
                    )
                elif format in UNITS and file.size % UNITS[format].size:
                    unit = UNITS[format]
                    what = f"ends inside a {unit.name}"
                    at = file.size - file.size % unit.size
                    yield Mark(what, path=file.path, position=at, size=file.size - at, severity=Severity.WARNING)


@rule("rocketmq.store.file-name", Severity.ERROR)
def file_names(files: Sequence[File]) -> Iterator[Mark]:
    """A file's name is not a multiple of the size of its log's files, so it is not where it says.

    The name is the address of the first byte. Something renamed or renumbered the file.
    """
    for store in views(files):
        for format in ("rocketmq.commitlog", *QUEUE_FORMATS):
            logs = [file for file in store.of(format) if file.place.start_offset is not None]
            size = usual_size(logs)
            for file in logs:
                if size and (file.place.start_offset or 0) % size:
                    yield Mark(
                        "a name that is no multiple of the size", path=file.path, expected=f"a multiple of {size}"
                    )


@rule("rocketmq.store.missing-file", Severity.ERROR)
def missing_files(files: Sequence[File]) -> Iterator[Mark]:
    """A commit-log file in the middle is missing, or all of them are, and queues have messages in them.

    A broker skips it and reports nothing; it then rebuilds queues without the gap, with other numbers than the messages have. Where
    there is no commit log at all, it deletes the queues too.
    Where the last file ends with a blank entry, the log went on in another, which is not here: a warning, or no more than a remark where
    there are commit-log files alone, which may be only a part of the store.
    """
    for store in views(files):
        for log, following in itertools.pairwise(store.logs):
            if log.stop < following.start:
                yield Mark(
                    f"the commit log lacks {following.start - log.stop:,} bytes before this file",
                    path=following.file.path,
                    expected=f"{log.stop:020}",
                    found=f"{following.start:020}",
                )
        if not store.logs and store.of("rocketmq.checkpoint") and not store.of("rocketmq.dledgerstate"):
            addresses = [np.empty(0, np.int64)]
            for format, layout in UNITS.items():
                addresses += [message_addresses(queue_units([file], layout)) for file in store.of(format)]
            count = int(np.unique(np.concatenate(addresses)).size)
            if count:
                what = f"the commit log is missing; the consume queues list {counted(count, 'message')}"
                yield Mark(what, path=store.root)
        logs = {_key(file) for file in store.of("rocketmq.compactionlog")}
        for file in store.of("rocketmq.compactioncq"):
            if _key(file) not in logs:
                what = "the log of this queue of a compaction topic is missing"
                yield Mark(what, path=file.path, severity=Severity.WARNING)
        if store.logs and store.logs[-1].ends_with == "blank" and not store.logs[-1].is_dledger:
            last = store.logs[-1]
            what = "the log goes on after this file, and the next one is missing"
            severity = Severity.INFO if len(store.logs) == len(store.files) else Severity.WARNING
            yield Mark(what, path=last.file.path, expected=f"{last.stop:020}", severity=severity)


def _key(file: File) -> tuple[str | None, int | None, int | None]:
    return file.place.topic, file.place.partition, file.place.start_offset


@rule("rocketmq.store.blank", Severity.ERROR)
def missing_blank(files: Sequence[File]) -> Iterator[Mark]:
    """A commit-log file that is not the last does not end with a blank entry.

    A broker takes its end for the end of the log: it deletes every later commit-log file (or, if this one is filled to the last byte,
    writes over the next). `rawlog repair` adds the entry.
    """
    for store in views(files):
        used = [log for log in store.logs if log.messages or log.ends_with != "zeros"]
        for log in used[:-1]:
            if log.ends_with in ("zeros", "torn") and log.stop <= used[-1].start:
                yield Mark(
                    "no blank entry at the end; a broker would end the log here", path=log.file.path, position=log.end
                )


@rule("rocketmq.store.next-start", Severity.WARNING)
def next_start(files: Sequence[File]) -> Iterator[Mark]:
    """What a broker would destroy at its next start: from the first byte it cannot read on, the log is cut and later files are deleted.

    Which file it begins with depends on its version, on whether `abort` is there, and on the checkpoint (after a crash) or the queues
    (since 5.3.2). Write a repaired copy with `rawlog repair` before any broker sees the store. Nothing is said of a log that DLedger
    wrote, whose own recovery decides.
    """
    for store in views(files):
        if any(log.is_dledger for log in store.logs):
            continue
        ends: dict[tuple[str, int], list[str]] = {}
        for name, first in scan_starts(store):
            end = _scan(store, first)
            if end is None:
                continue
            ends.setdefault((end.file.path, end.end), []).append(name)
        for (path, position), names in ends.items():
            number = next(n for n, log in enumerate(store.logs) if log.file.path == path)
            log, later = store.logs[number], store.logs[number + 1 :]
            lost = log.after + sum(each.messages + each.after for each in later)
            if not lost:
                if log.ends_with in ("damage", "checksum", "torn"):
                    yield Mark(
                        f"{' and '.join(names)} would cut the log at byte {position:,} of this file: the entry there cannot be read",
                        path=path,
                        position=position,
                        severity=Severity.INFO if log.ends_with == "torn" else Severity.WARNING,
                    )
                continue
            deleted = ", ".join(parts(each.file.path)[0] for each in later if each.messages or each.after)
            # A file that is full to its last byte hides what follows, and the next message is written over it.
            then = "write over" if position == log.file.size else "delete"
            what = f"would cut the log at byte {position:,} of this file" + (
                f" and {then} {deleted}" if deleted else ""
            )
            yield Mark(
                f"{' and '.join(names)} {what}: {lost:,} readable messages lost",
                path=path,
                position=position,
                severity=Severity.ERROR,
            )


def scan_starts(store: View) -> list[tuple[str, int]]:
    """Brokers by version, and the number of the commit-log file that each begins to scan with."""
    logs = store.logs
    if not logs:
        return []
    if store.is_unclean:
        point = store.checkpoint() or {}
        until = max(0, min(point.get("physic_timestamp", 0), point.get("logics_timestamp", 0)) - 3000)
        first = 0
        for number, log in enumerate(logs):
            if log.first_time and log.first_time <= until:
                first = number
        return [("any broker", first)]
    queue_end = comparison_of(store.files).end
    before = [number for number, log in enumerate(logs) if log.start <= queue_end]
    return [("4.x to 5.3.1", max(0, len(logs) - 3)), ("5.3.2 and later", before[-1] if before else 0)]


def _scan(store: View, first: int) -> LogSummary | None:
    """The file in which a scan from file `first` on would end the log too early; None if it does not."""
    for number in range(first, len(store.logs)):
        log = store.logs[number]
        if log.ends_with == "blank":
            continue
        return log
    return None


@rule("rocketmq.store.queue-differs", Severity.ERROR)
def queue_differs(files: Sequence[File]) -> Iterator[Mark]:
    """A unit of a consume queue does not say of its message what the commit log says: size or tag hash differ.

    Consumers get wrong bytes, or a filter by tag passes over the message. `rawlog rebuild` rebuilds the queues.
    """
    yield from comparison_of(files).differing


@rule("rocketmq.store.queue-dangling", Severity.ERROR, follows="rocketmq.store.missing-file", above=1)
def queue_dangling(files: Sequence[File]) -> Iterator[Mark]:
    """A unit of a consume queue points to no message: into the middle of one, or after the end of the commit log.

    A broker cuts off units that point past the end of the log; those that point into it give consumers garbage. Units that point before
    the log's first byte have expired; they are not a finding.
    """
    yield from comparison_of(files).dangling


@rule("rocketmq.store.queue-missing", Severity.ERROR)
def queue_missing(files: Sequence[File]) -> Iterator[Mark]:
    """Messages of the commit log are not in their consume queue, so that no consumer sees them.

    After a crash the newest messages are only not dispatched yet, and a start makes up for it. After a clean stop 4.5.1 to 4.9.x and
    5.3.2 and later build missing units at the end, 5.0.0 to 5.3.1 never do. `rawlog rebuild` makes complete queues. Queues that
    are a RocksDB database are not looked into.
    """
    yield from comparison_of(files).missing
    for store in views(files):
        if store.of("rocketmq.consumequeue") or store.of("rocketmq.batchconsumequeue"):
            continue
        queues, point = store.derived_queues(), store.checkpoint() or {}
        # A checkpoint without a single number after a crash: the broker builds all of them.
        is_left = store.is_unclean and not any(point.values())
        if queues and store.of("rocketmq.checkpoint") and not store.of("rocketmq.queuedatabase") and not is_left:
            yield Mark(
                f"no consume queues at all for {len(queues)} queues of the commit log",
                path=store.root,
                severity=Severity.WARNING,
            )


@rule("rocketmq.store.queue-gap", Severity.WARNING)
def queue_gap(files: Sequence[File]) -> Iterator[Mark]:
    """The queue offsets in the messages of one queue are not consecutive.

    A plain consume queue cannot show a gap: from there on the place of a unit and the number in its message differ, for consumers too.
    Where an entry that `rawlog repair` wrote over lost bytes is between the two messages, the missing ones were lost there: no more
    than a remark.
    """
    yield from comparison_of(files).gaps


@rule("rocketmq.store.index-differs", Severity.WARNING, follows="rocketmq.store.missing-file", above=1)
def index_differs(files: Sequence[File]) -> Iterator[Mark]:
    """The key index does not have the keys of the messages in its range, or has others.

    Look-ups by key or by unique key fail, or find other messages. After a crash a broker deletes index files that are newer than the
    checkpoint and builds them again as far as it scans. `rawlog rebuild` rebuilds the index.
    """
    for store in views(files):
        if store.logs:
            yield from compare_index(store)


@rule("rocketmq.store.checkpoint", Severity.WARNING, follows="rocketmq.store.missing-file", above=1)
def checkpoint(files: Sequence[File]) -> Iterator[Mark]:
    """The checkpoint names times that the commit log has not reached, or a message (5.5.0 on) that is not there.

    After a crash a broker scans from the file that the checkpoint points to. With a checkpoint of another store it starts too late, and
    never sees older messages that the queues lack (96 of 300 in a test). A broker with enableAcceleratedRecovery starts to read at
    the byte of that message: it cuts off what follows, or does not start. Remove the checkpoint, or rebuild the store.
    """
    for store in views(files):
        point, last = store.checkpoint(), max((log.last_time for log in store.logs), default=0)
        if point is None or not last:
            continue
        for name in ("physic_timestamp", "logics_timestamp", "index_timestamp"):
            if point[name] > last:
                path = store.of("rocketmq.checkpoint")[0].path
                yield Mark(
                    f"{name} is later than the last message", path=path, expected=f"at most {last}", found=point[name]
                )
        # A lower one may be old: brokers before 5.5.0 leave it as it is.
        address = point["logics_physical_offset"]
        if address > 0 and address >= store.begin and message_at([log.file for log in store.logs], address) is None:
            yield Mark(
                "logics_physical_offset is not where a message begins",
                path=store.of("rocketmq.checkpoint")[0].path,
                position=CHECKPOINT.at("logics_physical_offset"),
                found=address,
            )


@rule("rocketmq.store.abort", Severity.INFO)
def abort(files: Sequence[File]) -> Iterator[Mark]:
    """The file `abort` is there: a broker runs on the store, or died without stopping.

    The tail may be unfinished, and derived files may be behind the commit log. At the next start the broker scans from the checkpoint on
    and deletes index files newer than it.
    """
    for store in views(files):
        for file in store.of("rocketmq.abort"):
            yield Mark("a broker runs here or has died", path=file.path)


@rule("rocketmq.store.config", Severity.ERROR)
def config_files(files: Sequence[File]) -> Iterator[Mark]:
    """A file of `config/` is not JSON, or not of the shape that a broker reads: a list for a table, text for a number, null entries.

    A broker deletes it and takes the `.bak` next to it, which is one version older; without that it starts with nothing: topics, groups
    or offsets are forgotten. A name that occurs twice in one table is a warning: the last one counts. A damaged `.bak` next to the file
    is a remark. rawlog reads what can be read;
    `rawlog repair` keeps that, and rebuilds topics, groups and delay offsets where nothing is left of them.
    """
    for file in files:
        if file.format != "rocketmq.config" or file.problem is not None:
            continue
        if file.place.state is not None:
            yield from _backup_marks(file, files)
            continue
        backup = any(other.path == f"{file.path}.bak" for other in files)
        then = "would delete it and take the .bak" if backup else "would delete it and start without"
        try:
            loaded = config.read(file)
        except RawlogError as error:
            yield Mark(
                f"{getattr(error, 'message', error)}; a broker {then}",
                path=file.path,
                position=getattr(error, "position", None),
            )
            continue
        for problem in loaded.problems:
            yield Mark(f"{problem}; a broker {then}", path=file.path)
        for problem in loaded.repeated:
            yield Mark(problem, path=file.path, severity=Severity.WARNING)


def _backup_marks(file: File, files: Sequence[File]) -> Iterator[Mark]:
    """Remark on a `.bak` that a broker could not take, if the file itself is there. An empty one is normal."""
    is_needed = not any(f"{other.path}.bak" == file.path for other in files)
    try:
        loaded = config.read(file)
        problems = loaded.problems[:1] if loaded.is_refused else []
    except RawlogError as error:
        problems = [str(getattr(error, "message", error))] if file.size else []
    for problem in problems:
        what = f"{problem}; a broker could not take this copy"
        yield Mark(what, path=file.path, severity=Severity.WARNING if is_needed else Severity.INFO)


@rule("rocketmq.store.queue-type", Severity.ERROR)
def queue_types(files: Sequence[File]) -> Iterator[Mark]:
    """A topic has queues of batches, and `topics.json` does not say so with the attribute `queue.type`, or the other way round.

    A 5.x broker does not start ("should be BatchCQ"). `rawlog repair` sets the attribute by the queues that are there.
    """
    for store in views(files):
        try:
            configs = config.load(store.files, "topics.json")
        except RawlogError:
            continue  # its own finding
        for file, value in configs:
            table = value.get("topicConfigTable") or {}
            for format, expected in (("rocketmq.batchconsumequeue", True), ("rocketmq.consumequeue", False)):
                for topic in sorted({topic for topic, _ in store.queues(format)}):
                    if is_batch(table.get(topic) or {}) != expected:
                        kind = "queues of batches" if expected else "plain queues"
                        yield Mark(f"topic {topic} has {kind}, and this file says otherwise", path=file.path)


# Is anything missing? -----------------------------------------------------------------------------------------------------
#
# `rawlog verify --complete` puts every offset of every queue into one class:
#
# - `present`: the commit log has its message, or, of a compaction topic, the log of that topic;
# - `control`: a placeholder that `rawlog repair` or `rawlog erase` wrote for a message that is gone;
# - `compacted`: compaction took it out;
# - `expired`: before the first message of the queue in the commit log, which a broker deletes from its start;
# - `unexplained`: none of these. It was there, or must have been.

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

    Consumers get empty messages there. If they should still exist, look in a backup from before that.
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
    """The committed offsets of consumer groups with their files; none for settings of an unexpected shape."""
    try:
        return list(state.committed_offsets(files))
    except (AttributeError, TypeError, ValueError):
        return []  # a finding of its own


def rules() -> Sequence[Rule[Sequence[File]]]:
    """The rules over the files of a store."""
    return (
        stray_file, file_sizes, file_names, missing_files, missing_blank, next_start, queue_differs, queue_dangling, queue_missing,
        queue_gap, index_differs, checkpoint, abort, config_files, queue_types,
        unexplained, placeholder, open_transaction, delayed_message, committed_out_of_range,
    )  # fmt: skip
