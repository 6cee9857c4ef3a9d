"""A copy of a store without some of its messages. Every other message keeps its address, its queue and its number.

An erased message becomes a placeholder of the same size, as `repair` writes for a lost one: a consumer is shown an empty message under its
number. Queues, tags and the key index are derived from the new log. After the end of a log are zeros in the copy, as brokers reuse files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG, COMMIT_LOG_NAME, COMPACTION_LOG, below_root
from rawlog.formats.rocketmq.commitlog import decode
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BATCH_MASK,
    BLANK,
    DLEDGER_MAGIC,
    TRANSACTION_MASK,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.dispatch import U_BATCH, DerivedEntries
from rawlog.formats.rocketmq.store.placeholders import Slot, covering, placeholder_size
from rawlog.formats.rocketmq.store.repair import check_log
from rawlog.formats.rocketmq.store.rewrite import (
    DATABASES,
    DERIVED,
    FORMATS,
    NEVER_COPIED,
    carry_databases,
    change_queue,
    copy,
    new_report,
    pad,
    units_of,
    write_derived,
)
from rawlog.formats.rocketmq.store.settings import settings_of, sizes_of
from rawlog.io.output import Folder
from rawlog.io.walk import walk
from rawlog.kernels import byte_view
from rawlog.model.errors import CorruptError, OptionError
from rawlog.model.format import (
    File,
    Format,
    Keep,
    Want,
)
from rawlog.model.frames import Bytes
from rawlog.model.report import Action, Report
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.model.text import counted, java_text


@dataclass(slots=True)
class Window:
    """Messages in a row, and their bytes without the erased ones.

    `removed` are the positions of these in the file.
    """

    rows: Messages
    data: Bytes
    start: int
    removed: list[int]


def erase(store: Store, folder: Folder, options: Mapping[str, str], keep: Keep | None = None) -> Report:
    """Write a copy of a store without the messages that `keep` says no to.

    Options: those of `rebuild`. OptionError for a log of DLedger, whose entries cannot be changed; DataError for damage.
    """
    report = new_report()
    report.counts |= {"records": 0, "removed": 0}
    own_way = {*DERIVED, *NEVER_COPIED, *DATABASES, COMMIT_LOG_NAME, *FORMATS}
    for file in store:
        if file.format is not None and file.format not in own_way and file.problem is None:
            copy(folder, file, report)
    settings, sizes = settings_of(store, options), sizes_of(store).with_options(options)
    check_log(store, settings, options)
    derived, logs = DerivedEntries(), dispatch.commit_logs(store)
    ended = False
    for file in logs:
        ended = _write_log(file, folder, keep, derived, report, is_ended=ended)
    _write_compacted(store, folder, keep, report)
    carry_databases(store, folder, report, ())  # they cannot be read, so nobody knows what is in them
    write_derived(derived, store, folder, sizes, settings, report, is_intact=False)
    if report.counts["removed"]:
        report.add(Action.REMOVED, counted(report.counts["removed"], "message"))
    return report


def _write_log(
    file: File, folder: Folder, keep: Keep | None, derived: DerivedEntries, report: Report, *, is_ended: bool
) -> bool:
    """Copy a file of the commit log; whether the log ended in it or before."""
    with folder.create(below_root(file)) as out:
        used = 0
        for window in _windows(file, COMMIT_LOG, keep, report):
            if is_ended and len(window.rows):
                raise CorruptError(
                    "messages after the end of the log; repair the store first", path=file.path, position=window.start
                )
            used = _put(out, window.start, window.data)
            address = (file.place.start_offset or 0) + window.start
            if len(window.rows):
                dispatch.derive_bytes(window.data, address, derived)
        pad(out, used, file.size)
    report.count("files")
    return is_ended or used < file.size


def _put(out: IO[bytes], start: int, data: Bytes) -> int:
    out.seek(start)
    out.write(data.data)
    return start + data.size


def _windows(file: File, format: Format, keep: Keep | None, report: Report) -> Iterator[Window]:
    """The messages of a log, up to its end. What is not a message there (stale bytes of a reused file) is left out."""
    # Nothing of a commit log that is damaged comes here (`check_log`); what a crash left after its end is left out.
    for frames in walk(file, format, errors="stop" if format is COMMIT_LOG else "raise"):
        rows = Messages.take(frames, file)
        if stale := rows.stale.any():
            first = int(np.argmax(rows.stale))
            frames = frames.slice(0, int(rows[fields.F_FRAME][first]))
            rows = Messages.take(frames, file)
        if not rows.crc_ok.all():
            raise rows.crc_error(int(np.argmin(rows.crc_ok))).at(path=file.path, format=format.name)
        if len(frames):
            yield _without(rows, file, keep, report)
        if stale:
            return


def _without(rows: Messages, file: File, keep: Keep | None, report: Report) -> Window:
    """The bytes of messages with placeholders for erased ones; of a blank entry only its head."""
    frames = rows.frames
    start, stop = int(frames.starts[0]), int(frames.stops[-1])
    data = np.array(rows.data[start:stop])
    _check_plain(rows)
    blanks = np.ones(len(frames), np.bool_)
    blanks[rows[fields.F_FRAME]] = False
    for number in np.flatnonzero(blanks).tolist():
        data[int(frames.starts[number]) + BLANK.size - start : int(frames.stops[number]) - start] = 0
    removed = []
    for row in np.flatnonzero(~_stays(rows, file, keep, report)).tolist():
        at, size = int(rows[fields.F_START][row]), int(rows[fields.F_SIZE][row])
        data[at - start : at - start + size] = np.frombuffer(_placeholder(rows, row), np.uint8)
        removed.append(frames.base + at)
    return Window(rows, byte_view(data), frames.base + start, removed)


def _check_plain(rows: Messages) -> None:
    heads = rows.frames.starts[rows[fields.F_FRAME]]
    if (heads != rows[fields.F_START]).any():
        magic = int.from_bytes(bytes(rows.data[int(heads[0]) : int(heads[0]) + 4]), "big")
        assert magic == DLEDGER_MAGIC
        raise OptionError(
            "a log of DLedger entries cannot be changed in place; `rawlog repair --option move=true` makes it a plain one"
        )


def _stays(rows: Messages, file: File, keep: Keep | None, report: Report) -> NDArray[np.bool_]:
    """Which messages stay. A batch in one entry goes if one of its messages goes."""
    stays = np.ones(len(rows), np.bool_)
    if keep is None:
        return stays
    message_rows = np.flatnonzero(~rows.fillers)
    packed = (rows[fields.F_SYS_FLAG] & BATCH_MASK) == BATCH_MASK
    want = Want(RECORDS.subset(keep.columns), file, keep.limit, max_headers=keep.max_headers)
    if not packed.any():
        tests = [keep.test(batch) for batch in decode(rows.frames, want)]
        stays[message_rows] = np.concatenate(tests) if tests else True
        report.count("records", int(stays[message_rows].sum()))
        report.count("removed", int((~stays).sum()))
        return stays
    for row in message_rows.tolist():
        frame = int(rows[fields.F_FRAME][row])
        kept = [keep.test(batch) for batch in decode(rows.frames.slice(frame, frame + 1), want)]
        inside = np.concatenate(kept) if kept else np.ones(1, np.bool_)
        stays[row] = bool(inside.all())
        report.count("records" if stays[row] else "removed", inside.size)
        others = int(inside.sum()) if not stays[row] else 0
        if others:
            reason = f"{counted(others, 'message')} more, in one entry with an erased one"
            report.add(Action.LOST, reason, file.path, start=rows.frame_position(row))
    return stays


def _placeholder(rows: Messages, row: int) -> bytes:
    """The bytes over an erased message: an empty one with its number, or a filler if no queue has it."""
    address, size, time = (int(rows[name][row]) for name in (fields.F_PHYSICAL, fields.F_SIZE, fields.F_STORE_TIME))
    transaction = int(rows[fields.F_SYS_FLAG][row]) & TRANSACTION_MASK
    if transaction not in (0, SysFlag.COMMIT):
        return covering(address, size, time, None)
    at, length = int(rows[fields.F_TOPIC][row]), int(rows[fields.F_TOPIC_SIZE][row])
    topic = java_text(bytes(rows.data[at : at + length]))
    queue_id, number = int(rows[fields.F_QUEUE_ID][row]), int(rows[fields.F_QUEUE_OFFSET][row])
    derived = DerivedEntries()
    dispatch.derive_from(rows.cut(row, row + 1), derived, with_keys=False)
    units = derived.queue((topic, queue_id))
    slot = Slot(address, size, topic, queue_id, number, int(units[U_BATCH][0]) if units.shape[1] else 1)
    if placeholder_size(slot) > size:
        raise OptionError(f"the message at {address:,} of {topic} is too small for a placeholder; it cannot be erased")
    return covering(address, size, time, slot)


# Compaction topics ---------------------------------------------------------------------------------------------------------


def _write_compacted(files: Sequence[File], folder: Folder, keep: Keep | None, report: Report) -> None:
    """Copy the logs of compaction topics, which repeat messages, without the erased ones."""
    logs, queues = ([file for file in files if file.format == name and file.problem is None] for name in FORMATS)
    removed: dict[tuple[object, ...], set[int]] = {}
    for file in logs:
        counts = Report(counts={"records": 0, "removed": 0})
        erased: list[int] = []
        with folder.create(below_root(file)) as out:
            used = 0
            for window in _windows(file, COMPACTION_LOG, keep, counts):
                used = _put(out, window.start, window.data)
                erased += window.removed
            pad(out, used, file.size)
        report.count("files")
        place = file.place
        removed[place.topic, place.partition, place.start_offset] = {(place.start_offset or 0) + at for at in erased}
        if erased:
            report.add(Action.REMOVED, f"{counted(len(erased), 'copy', 'copies')} in a compaction topic", file.path)
    for file in queues:
        copy(folder, file, report)
        erased_here = removed.get((file.place.topic, file.place.partition, file.place.start_offset), set())
        units, _ = units_of(file)
        kept = [unit.tobytes() for unit in units if int(unit["physical_offset"]) not in erased_here]
        if len(kept) < len(units) and not folder.dry_run:
            change_queue(folder, file, b"".join(kept))
