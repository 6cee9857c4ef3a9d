"""Consume queues and key index anew from the commit log, byte for byte what the engine would write."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rawlog.core.format import File
from rawlog.formats.rocketmq.kernels import derive
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    CHECKPOINT,
    CHECKPOINT_SIZE,
    EXT_END_SIZE,
    EXT_UNIT,
    INDEX_ENTRY,
    INDEX_HEADER,
    PRE_BLANK_SIZE,
    SCHEDULE_TOPIC,
    SLOT,
    UNIT,
)
from rawlog.formats.rocketmq.paths import below_root
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.dispatch import U_BATCH, U_OFFSET, U_PHYSICAL, U_SIZE, U_TAG, U_TIME, Derived, Queue
from rawlog.formats.rocketmq.store.sizes import Sizes, sizes_of
from rawlog.formats.rocketmq.store.stage import Nowhere, Report, copy_file, write_sized
from rawlog.io.output import child, descendant, new_directory, why_unsafe

DERIVED = (
    "rocketmq.consumequeue",
    "rocketmq.batchconsumequeue",
    "rocketmq.consumequeueext",
    "rocketmq.queuedatabase",
    "rocketmq.index",
    "rocketmq.checkpoint",
)
NEVER_COPIED = ("rocketmq.abort", "rocketmq.lock", "rocketmq.stray")
EXT_FLAG = -(1 << 63)


def rebuild_store(
    files: Sequence[File], target: str | os.PathLike[str], options: Mapping[str, str] | None = None
) -> Report:
    """A copy of a store whose consume queues, key index and checkpoint are made anew from the commit log. The source is not touched.

    Options: the sizes (`Sizes.told`), `delay_levels` (as the broker's messageDelayLevel), `commitlog` = `copy` or `none`.
    Messages behind damage in a file are not derived from: repair the store first (the report says so).
    """
    options = options or {}
    unwanted = (*DERIVED, *NEVER_COPIED)
    with new_directory(target) as stage:
        report = Report(os.fspath(target))
        for file in files:
            if file.format in unwanted or file.format is None or file.problem is not None:
                continue
            if file.format == "rocketmq.commitlog" and options.get("commitlog") == "none":
                continue
            copy_file(file, descendant(stage, below_root(file)))
            report.files += 1
        write_derived(files, stage, sizes_of(files).told(options), options, report)
    return report


def write_derived(
    files: Sequence[File], stage: Path | Nowhere, sizes: Sizes, options: Mapping[str, str], report: Report
) -> None:
    """All derived files of a store below `stage`."""
    settings = dispatch.settings_of(files, options)
    derived = Derived()
    logs = dispatch.commit_logs(files)
    for file in logs:
        is_reported = False
        for rows in dispatch.messages_of(file, with_stale=True):
            if rows.stale.any():
                # After the end of a log they are normal. Anywhere else the file has another one's name.
                first = int(np.argmax(rows.stale))
                if not is_reported and (file is not logs[-1] or rows.frame_position(first) == 0):
                    report.pass_over(file.path, rows.frame_position(first), "messages of another place of the log")
                    is_reported = True
                rows = rows.where(~rows.stale)
            good = rows.crc_ok
            stop = len(rows) if good.all() else int(np.argmin(good))
            dispatch.derive_from(rows.cut(0, stop), settings, derived)
            if stop < len(rows):
                report.pass_over(file.path, rows.frame_position(stop), "wrong checksum")
                break
            if rows.frames.status.is_damage:
                report.pass_over(file.path, rows.frames.reached_in_file, "damage")
    write_from(derived, files, stage, sizes, settings, report)


def write_from(
    derived: Derived,
    files: Sequence[File],
    stage: Path | Nowhere,
    sizes: Sizes,
    settings: dispatch.Settings,
    report: Report,
    *,
    only_known: bool = False,
) -> None:
    """The files that belong to what was derived; `files` tell which queues have additions.

    With `only_known`, files whose size nothing shows are left out: a broker with another setting would not start on them, and makes
    them itself. An empty `abort`, and no checkpoint, let every version do so.
    """
    report.messages += derived.messages
    batch_topics = settings.batch_topics | derived.batch_topics
    ext = {str(file.place.topic) for file in files if file.format == "rocketmq.consumequeueext"}
    unknown = _unknown(derived, batch_topics, sizes)
    if unknown:
        _report_unknown(unknown, only_known, report)
    left_out = unknown if only_known else ()
    if "queue" in left_out and any(topic == SCHEDULE_TOPIC for topic, _ in derived.units):
        report.notes.append(
            "a broker that builds its queues may deliver delayed messages again that were delivered before"
        )
    if only_known and ext and "ext" not in sizes.known:
        report.notes.append(
            "consumequeue_ext: left out, as nothing shows the size of its files (ext_size); tags are in the queues"
        )
        ext = set()
    for queue in sorted(derived.units):
        if ("batch_queue" if queue[0] in batch_topics else "queue") in left_out:
            continue
        units = derived.queue(queue)
        if (why := why_unsafe(queue[0])) is not None:
            report.leave_out(queue, int(units.shape[1]), why)
            continue
        report.queues += 1
        report.units += int(units.shape[1])
        if queue[0] in batch_topics:
            report.files += write_batch_queue(stage, queue, units, sizes)
        else:
            report.files += write_queue(stage, queue, units, sizes, report, with_ext=queue[0] in ext)
    if derived.assumed_delays and "queue" not in left_out:
        report.notes.append(
            f"{derived.assumed_delays:,} delayed messages: neither units, broker.conf nor delay_levels show the delays of their levels; "
            "RocketMQ's defaults are assumed for when they are due"
        )
    full_until = 0 if "index" in left_out else write_index(stage, derived, sizes, report)
    report.files += 1
    if left_out:
        write_sized(stage / "abort", [], 0)
    else:
        write_checkpoint(stage, derived.last_time, full_until)


NAMES = {
    "queue": ("consumequeue", "queue_size"),
    "batch_queue": ("batchconsumequeue", "batch_queue_size"),
    "index": ("index", "index_slots and index_entries"),
}
"""Of what is derived: its directory, and the options for its size."""


def _unknown(derived: Derived, batch_topics: Collection[str], sizes: Sizes) -> tuple[str, ...]:
    """What there is to write into files of a size that nothing shows."""
    kinds = {"batch_queue" if topic in batch_topics else "queue" for topic, _ in derived.units}
    found: list[str] = [kind for kind in ("queue", "batch_queue") if kind in kinds and kind not in sizes.known]
    if any(hashes.size for hashes in derived.hashes) and not sizes.is_index_known:
        found.append("index")
    return tuple(found)


def _report_unknown(unknown: Sequence[str], only_known: bool, report: Report) -> None:
    for kind in unknown:
        name, options = NAMES[kind]
        why = f"{name}: nothing shows the size of its files (no file, no broker.conf; {options})"
        then = (
            "left out; a broker builds it when it starts"
            if only_known
            else "RocketMQ's default is assumed; a broker with another setting does not start"
            if kind != "index"
            else "RocketMQ's default is assumed; a broker with another setting finds no keys"
        )
        report.notes.append(f"{why}: {then}")


def folder(stage: Path | Nowhere, kind: str, queue: Queue) -> Path | Nowhere:
    """Where the files of a queue go."""
    return child(stage / kind, queue[0]) / str(queue[1])


def placed(units: NDArray[np.int64]) -> tuple[int, NDArray[np.int64], int]:
    """Units as a broker appends them: the first offset, those it takes, and how many numbers it passes over.

    It appends each directly behind the one before, whatever number the message has, and drops one whose number was there already.
    """
    offsets = units[U_OFFSET]
    first = int(offsets[0])
    if (offsets == first + np.arange(offsets.size)).all():
        return first, units, 0
    keep, following, gaps = np.zeros(offsets.size, np.bool_), first, 0
    for row, offset in enumerate(offsets.tolist()):
        if offset >= following:
            gaps += offset > following
            keep[row] = True
            following += 1
    return first, units[:, keep], gaps


def write_queue(
    stage: Path | Nowhere,
    queue: Queue,
    units: NDArray[np.int64],
    sizes: Sizes,
    report: Report,
    *,
    with_ext: bool = False,
) -> int:
    """The files of a plain consume queue; their number."""
    first, units, gaps = placed(units)
    if gaps:
        report.notes.append(
            f"{queue[0]} queue {queue[1]}: {gaps:,} gaps in the queue offsets: from there on numbers and places differ"
        )
    files = 0
    if with_ext:
        files, units = _write_ext(stage, queue, units, sizes)
    start = first * UNIT.size // sizes.queue * sizes.queue
    blanks = first - start // UNIT.size
    rows = np.zeros(blanks + units.shape[1], UNIT.dtype)
    rows["size"][:blanks] = PRE_BLANK_SIZE
    rows["physical_offset"][blanks:], rows["size"][blanks:] = units[U_PHYSICAL], units[U_SIZE]
    rows["tag_hash"][blanks:] = units[U_TAG]
    return files + _write_files(folder(stage, "consumequeue", queue), rows.tobytes(), start, sizes.queue)


def _write_files(where: Path | Nowhere, data: bytes, start: int, size: int) -> int:
    for number, position in enumerate(range(0, len(data), size)):
        write_sized(where / f"{start + number * size:020}", [data[position : position + size]], size)
    return -(-len(data) // size)


def _write_ext(
    stage: Path | Nowhere, queue: Queue, units: NDArray[np.int64], sizes: Sizes
) -> tuple[int, NDArray[np.int64]]:
    """Ext units of the messages, without bitmaps, and the plain units that point to them."""
    count, each = units.shape[1], (sizes.ext - EXT_END_SIZE) // EXT_UNIT.size
    rows = np.zeros(count, EXT_UNIT.dtype)
    rows["size"], rows["tag_hash"], rows["store_timestamp"] = EXT_UNIT.size, units[U_TAG], units[U_TIME]
    where, files = folder(stage, "consumequeue_ext", queue), -(-count // each)
    for number in range(files):
        part = rows[number * each : (number + 1) * each].tobytes()
        mark = [b"\xff\xff"] if (number + 1) * each < count else []
        write_sized(where / f"{number * sizes.ext:020}", [part, *mark], sizes.ext)
    numbers = np.arange(count, dtype=np.int64)
    pointing = units.copy()
    pointing[U_TAG] = EXT_FLAG + numbers // each * sizes.ext + numbers % each * EXT_UNIT.size
    return files, pointing


def write_batch_queue(stage: Path | Nowhere, queue: Queue, units: NDArray[np.int64], sizes: Sizes) -> int:
    """The files of a batch consume queue; their number."""
    return _write_files(folder(stage, "batchconsumequeue", queue), batch_units(units).tobytes(), 0, sizes.batch_queue)


def batch_units(units: NDArray[np.int64]) -> NDArray[np.void]:
    """Units as a batch consume queue has them."""
    rows = np.zeros(units.shape[1], BATCH_UNIT.dtype)
    rows["physical_offset"], rows["size"], rows["tag_hash"] = units[U_PHYSICAL], units[U_SIZE], units[U_TAG]
    rows["store_timestamp"], rows["base_offset"], rows["batch_size"] = units[U_TIME], units[U_OFFSET], units[U_BATCH]
    rows["compacted_offset"] = -1
    return rows


def write_index(stage: Path | Nowhere, derived: Derived, sizes: Sizes, report: Report) -> int:
    """The files of the key index; the time at which the last full one ends."""
    hashes, addresses, times = derived.keys()
    report.keys = int(hashes.size)
    done, full_until, before, name_before = 0, 0, np.zeros(derive.STATE, np.int64), 0
    (stage / "index").mkdir(parents=True, exist_ok=True)
    while done < hashes.size:
        state = np.zeros(derive.STATE, np.int64)
        state[derive.X_COUNT] = 1
        if before[derive.X_END] > 0:
            state[derive.X_BEGIN] = state[derive.X_END] = before[derive.X_END]
        if before[derive.X_END_TIME] > 0:
            state[derive.X_BEGIN_TIME] = state[derive.X_END_TIME] = before[derive.X_END_TIME]
        slots, entries = np.zeros(sizes.slots, np.int32), np.zeros(sizes.entries * INDEX_ENTRY.size, np.uint8)
        done = int(derive.append_keys(hashes, addresses, times, done, state, slots, entries))
        name_before = max(int(state[derive.X_BEGIN_TIME]), name_before + 1)
        header = np.array([tuple(state.tolist())], INDEX_HEADER.dtype).tobytes()
        used = int(state[derive.X_COUNT]) * INDEX_ENTRY.size
        size = INDEX_HEADER.size + sizes.slots * SLOT.size + sizes.entries * INDEX_ENTRY.size
        write_sized(
            stage / "index" / _index_name(name_before), [header, slots.astype(">i4").tobytes(), entries[:used]], size
        )
        report.files += 1
        if int(state[derive.X_COUNT]) >= sizes.entries:
            full_until = int(state[derive.X_END_TIME])
        before = state
    return full_until


def _index_name(ms: int) -> str:
    """17 digits; a broker takes its local clock, which nobody reads."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(max(ms, 0), 250_000_000_000_000))
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03}"


def write_checkpoint(stage: Path | Nowhere, last: int, index_until: int) -> None:
    """The checkpoint of a store whose last message has this time."""
    row = np.zeros(1, CHECKPOINT.dtype)
    row["physic_timestamp"] = row["logics_timestamp"] = last
    row["index_timestamp"] = index_until
    write_sized(stage / "checkpoint", [row.tobytes()], CHECKPOINT_SIZE)
