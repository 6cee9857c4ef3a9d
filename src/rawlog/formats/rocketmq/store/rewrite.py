"""The one writer of a store: commit-log files, consume queues, key index, checkpoint and topics.

`rebuild` keeps the commit log and derives the rest, `write` (for `convert`) makes a store of rows, `repair` decides which messages a new
commit log has. All three derive files here, byte for byte as the engine would.

In the logs of compaction topics, a lost message is taken from the commit log, where only its physical offset differs; one that is lost
there too is covered and removed from the topic's queue.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG_NAME, COMPACTION_LOG, above, below_root, parts, writer
from rawlog.formats.rocketmq.kernels import encode
from rawlog.formats.rocketmq.kernels import encode as kernels
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    BLANK,
    CHECKPOINT,
    CHECKPOINT_SIZE,
    EXT_END_SIZE,
    EXT_UNIT,
    HEAD,
    HOST_V4,
    HOST_V6,
    INDEX_ENTRY,
    INDEX_HEADER,
    LARGEST_BODY,
    MAGIC_BLANK,
    PRE_BLANK_SIZE,
    SCHEDULE_TOPIC,
    SLOT,
    UNIT,
    SysFlag,
)
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.dispatch import (
    K_ADDRESS,
    K_HASH,
    K_TIME,
    U_BATCH,
    U_OFFSET,
    U_PHYSICAL,
    U_SIZE,
    U_TAG,
    U_TIME,
    DerivedEntries,
    Queue,
    derive_from,
)
from rawlog.formats.rocketmq.store.placeholders import SMALLEST_FILLER, covering
from rawlog.formats.rocketmq.store.settings import SIZE_OPTIONS, Settings, Sizes, settings_of, sizes_of
from rawlog.formats.rocketmq.units import COMPACTION_QUEUE
from rawlog.formats.rocketmq.writer import Entries, blank
from rawlog.io.output import Folder, Output, why_unsafe
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.errors import DataError, EncodeError, OptionError, unknown
from rawlog.model.format import File, Judge
from rawlog.model.frames import Bytes
from rawlog.model.report import Action, Report
from rawlog.model.store import Store, stores_below

PIECE = 4 << 20
COUNTS = (
    "messages", "queues", "units", "keys", "files", "bytes_lost", "messages_lost", "queues_left_out", "settings_lost",
    "damaged_files",
)  # fmt: skip
"""What reports on stores count."""
WRITE_OPTIONS = (*writer.OPTIONS, "derived", *SIZE_OPTIONS.values(), "delay_levels")
DERIVED = (
    "rocketmq.consumequeue",
    "rocketmq.batchconsumequeue",
    "rocketmq.consumequeueext",
    "rocketmq.index",
    "rocketmq.checkpoint",
)
QUEUE_DATABASE, STORE_DATABASE = "rocketmq.queuedatabase", "rocketmq.storedatabase"
DATABASES = {
    QUEUE_DATABASE: "the consume queues",
    STORE_DATABASE: "the key index, timers and open transactions, as far as they are in it",
    "rocketmq.popdatabase": "which messages were popped and not acknowledged",
    "rocketmq.configdatabase": "topics, groups or offsets",
}
"""What is in the RocksDB databases of a store. The first two have addresses of messages; a broker builds them again from its log."""
RECOVERED_FILES = 10
"""The last commit-log files that a broker from 5.4.0 on reads when it starts after a crash."""
NEVER_COPIED = ("rocketmq.abort", "rocketmq.lock", "rocketmq.stray")
EXT_FLAG = -(1 << 63)


def new_report() -> Report:
    """A report with every count of a store."""
    return Report(counts=dict.fromkeys(COUNTS, 0))


def drop(report: Report, reason: str, path: str, start: int, stop: int) -> None:
    """Report bytes of a source that are not in the result."""
    report.add(Action.DROPPED, reason, path, start=start, stop=stop, is_expected=stop <= start)
    report.count("bytes_lost", stop - start)


def stores(files: Sequence[File], options: Mapping[str, str]) -> list[Store]:
    """The stores among some files; a store with a commit log in several directories is one store. OptionError for stores that nothing tells
    apart.
    """
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    roots = [folder for folder, group in groups.items() if any(file.format != COMMIT_LOG_NAME for file in group)]
    if len(groups) > 1 and len(roots) > 1:
        return stores_below(groups)
    names = [below_root(file) for file in files if file.format == COMMIT_LOG_NAME and file.problem is None]
    if len(set(names)) < len(names):
        raise OptionError("commit logs of several stores are here, with nothing to tell them apart; name one of them")
    folder = (roots or list(groups) or [above(files[0].path, 1)])[0]
    return stores_below({folder: list(files)})


# Policies --------------------------------------------------------------------------------------------------------------


def rebuild(store: Store, folder: Folder, options: Mapping[str, str]) -> Report:
    """Copy a store; its consume queues, key index and checkpoint are rebuilt from the commit log.

    Options: the sizes (`Sizes.with_options`), `delay_levels` (as the broker's messageDelayLevel), `commitlog` = `copy` or `none`.
    CorruptError for a log that `repair` would change, or of which it would report a loss.
    """
    from rawlog.formats.rocketmq.store.repair import check_log

    report = new_report()
    settings, sizes = settings_of(store, options), sizes_of(store).with_options(options)
    derived, ends = check_log(store, settings, options)
    unwanted = {
        *DERIVED,
        *NEVER_COPIED,
        *DATABASES,
        *((COMMIT_LOG_NAME,) if options.get("commitlog") == "none" else ()),
    }
    for file in store:
        if file.format is not None and file.format not in unwanted and file.problem is None:
            copy(folder, file, report, ends.get(file.path))
    for path, end in ends.items():
        report.notes.append(
            f"{path}: byte {end:,}: what follows the last message is left out: nothing shows that it was one"
        )
    carry_databases(store, folder, report, tuple(DATABASES))
    write_derived(derived, store, folder, sizes, settings, report)
    return report


def carry_databases(files: Sequence[File], folder: Folder, report: Report, formats: Collection[str]) -> None:
    """Copy the RocksDB databases of some formats byte for byte, and report the others as left out."""
    left: dict[str, str] = {}
    for file in files:
        if file.format in formats and file.problem is None:
            copy(folder, file, report)
        elif file.format in DATABASES:
            left.setdefault(above(file.path, 1), DATABASES[file.format])
    for path, title in left.items():
        then = (
            "a broker builds it again"
            if title in (DATABASES[QUEUE_DATABASE], DATABASES[STORE_DATABASE])
            else "it is lost"
        )
        report.add(Action.DROPPED, f"a RocksDB database, left out: {title}; {then}", path)


def reads_queue_files(files: Sequence[File]) -> bool:
    """Whether the broker of a store reads queues from files. Without queue files it reads a database if there is one, if settings are in
    databases of such brokers, or if its queues were left for it to build (`_leave_queues`).
    """
    formats = {file.format for file in files}
    if not formats.isdisjoint(("rocketmq.consumequeue", "rocketmq.batchconsumequeue")):
        return True
    folders = {parts(file.path)[1] for file in files if file.format == "rocketmq.configdatabase"}
    return QUEUE_DATABASE not in formats and folders <= {ANY_QUEUES} and not _are_left(files)


ANY_QUEUES = "rdb"
"""The one database of settings that brokers with queues of either kind can have."""


def _are_left(files: Sequence[File]) -> bool:
    """Whether nothing of a store is to be believed but its commit log: a broker builds its queues when it starts."""
    is_unclean = any(file.format == "rocketmq.abort" and file.place.state is None for file in files)
    for file in files:
        if is_unclean and file.format == "rocketmq.checkpoint" and file.problem is None:
            with Source(file.path) as source:
                return not any(source.read(0, CHECKPOINT.size))
    return False


def write(batches: Iterable[pa.RecordBatch], output: Output, options: Mapping[str, str]) -> int:
    """Rows of `records` as a store directory, as `write_store` does it; the number of rows."""
    with output.directory() as folder:
        return write_store(batches, folder, options).counts["messages"]


def write_store(batches: Iterable[pa.RecordBatch], folder: Folder, options: Mapping[str, str]) -> Report:
    """Rows of `records` as a store. EncodeError for what no entry can hold.

    Options: `topic`, `partition` (where rows have none), `codec` (none, zlib, lz4, zstd) for bodies from `compress_over` bytes on,
    `store_host`, `born_host` (address:port), `crc_property`, the file sizes of the broker that shall read it (`Sizes`), and
    `derived` = `full` (consume queues, index, checkpoint) or `none` (an empty `abort` makes the broker build them).
    """
    sizes = check_options(options)
    is_full = options.get("derived", "full") == "full"
    report, derived, numbering = new_report(), DerivedEntries(), writer.Numbering()

    def seen(address: int, data: Bytes) -> None:
        dispatch.derive_bytes(data, address, derived)

    log: Log | None = None
    for batch in batches:
        if batch.num_rows:
            log = log or Log(folder.folder("commitlog"), sizes.commit_log, _log_start(batch, sizes))
            log.append(writer.entries_of(batch, options, numbering), seen if is_full else None)
            report.count("messages", 0 if is_full else batch.num_rows)
    if log is None:
        log = Log(folder.folder("commitlog"), sizes.commit_log)
        log.seek(0)
    log.close()
    report.count("files", log.files + 1)
    topics = {name: topic_config(name, most + 1) for name, most in sorted(numbering.queues.items())}
    text = json.dumps({"topicConfigTable": topics}, indent="\t", ensure_ascii=False)
    folder.write("config/topics.json", text)
    if is_full:
        write_derived(derived, (), folder, sizes, settings_of((), options), report)
    else:
        folder.write("abort", b"")
    return report


def check_options(options: Mapping[str, str]) -> Sizes:
    """The file sizes asked for. OptionError for options that do not exist, and for invalid values."""
    for name in options:
        if name not in WRITE_OPTIONS:
            raise unknown("option of rocketmq", name, WRITE_OPTIONS)
    writer.check_options(options)
    if options.get("derived", "full") not in ("full", "none"):
        raise unknown("value of derived", options["derived"], ("full", "none"))
    return Sizes(known_fields=frozenset(SIZE_OPTIONS)).with_options(options)  # asked for, or the defaults on purpose


def losses(options: Mapping[str, str]) -> Judge:
    """What rows of `records` would read back otherwise than they are. OptionError for invalid options."""
    check_options(options)
    return writer.judge(options)


def _log_start(first: pa.RecordBatch, sizes: Sizes) -> int:
    """Where the log begins: after one file, as if it had expired, if queues may not begin at 0.

    The units that fill the front of such a queue point at address 0: a broker takes them for messages if there is one.
    """
    return sizes.commit_log if first.column("offset").null_count < first.num_rows else 0


def topic_config(name: str, queues: int, attributes: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A topic as `topics.json` has it."""
    return {
        "topicName": name,
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    } | ({} if attributes is None else {"attributes": attributes})


# Files -----------------------------------------------------------------------------------------------------------------


def pad(file: IO[bytes], used: int, size: int) -> None:
    """Extend a file with `used` written bytes to `size`; the zeros take no room on disk."""
    if used < size:
        file.seek(size - 1)
        file.write(b"\0")


def write_sized(folder: Folder, path: str, pieces: Iterable[NDArray[Any] | bytes], size: int) -> None:
    """Write a file of `size` bytes: these pieces, then zeros."""
    used = 0
    with folder.create(path) as file:
        for piece in pieces:
            used += file.write(piece if isinstance(piece, bytes) else piece.tobytes())
        pad(file, used, size)


def copy(folder: Folder, file: File, report: Report, stop: int | None = None) -> None:
    """Copy a file to the same place below the root, with zeros from `stop` on; runs of zeros stay holes."""
    with folder.create(below_root(file)) as out:
        if not folder.dry_run:
            with Source(file.path) as source:
                position = used = 0
                while piece := source.read(position := source.skip_hole(position), PIECE):
                    if stop is not None and position + len(piece) > stop:
                        piece = piece[: max(0, stop - position)].ljust(len(piece), b"\0")
                    if piece != bytes(len(piece)):
                        out.seek(position)
                        out.write(piece)
                        used = position + len(piece)
                    position += len(piece)
                pad(out, used, position)
    report.count("files")


class Log:
    """Commit-log files of one size, filled in order; the last one is padded on close."""

    def __init__(self, folder: Folder, file_size: int, start: int = 0) -> None:
        assert start % file_size == 0
        self.folder, self.file_size, self.end = folder, file_size, start
        self._file: IO[bytes] | None = None
        self._used = self.files = 0

    def append(
        self, entries: Entries, observe: Callable[[int, Bytes], None] | None = None, most: int = 8 << 20
    ) -> NDArray[np.int64]:
        """Write entries at the end of the log by the roll rule; their addresses. `observe` is shown an address and the bytes from there on.
        EncodeError for an entry that fits no file.
        """
        sizes = entries.sizes()
        addresses = np.empty(len(entries), np.int64)
        end = int(kernels.place_entries(sizes, self.end, self.file_size, addresses))
        if end < 0:
            raise EncodeError(
                f"row {-1 - end:,}: an entry of {int(sizes[-1 - end]):,} bytes fits no file of {self.file_size:,}"
            )
        row = 0
        while row < len(entries):
            number = int(addresses[row]) // self.file_size
            limit = min((number + 1) * self.file_size, int(addresses[row]) + max(most, int(sizes[row])))
            stop = int(np.searchsorted(addresses + sizes, limit, side="right"))
            start, upto = int(addresses[row]), int(addresses[stop - 1] + sizes[stop - 1])
            data = entries.slice(row, stop).encode(sizes[row:stop], addresses[row:stop], start, upto)
            self.write(start, data.data)
            if observe is not None:
                observe(start, data)
            row = stop
        return addresses

    def seek(self, address: int) -> IO[bytes]:
        """Go on at `address`: in this file, or after closing it with a blank entry in the next."""
        if self._file is not None and address // self.file_size != (self.end - 1) // self.file_size:
            self.close(blank_entry=True)
        if self._file is None:
            self._file, self._used = self.folder.create(self._name(address)), 0
            self.files += 1
        self._file.seek(address % self.file_size)
        return self._file

    def write(self, address: int, data: memoryview | bytes) -> None:
        """Raw bytes at an address that is not before the end."""
        self.seek(address).write(data)
        self.end, self._used = address + len(data), address % self.file_size + len(data)

    def close(self, *, blank_entry: bool = False) -> None:
        """End the file that is being written."""
        if self._file is None:
            return
        room = self.file_size - self._used
        if blank_entry and room:
            self._file.seek(self._used)
            self._file.write(blank(room))
            self._used += BLANK.size
        pad(self._file, self._used, self.file_size)
        self._file.close()
        self._file = None

    def _name(self, address: int) -> str:
        return f"{address // self.file_size * self.file_size:020}"

    # Changes in what was written

    def change(self, address: int, data: bytes) -> None:
        """Other bytes at an address of a file that is closed."""
        with self.folder.change(self._name(address)) as file:
            file.seek(address % self.file_size)
            file.write(data)

    def change_number(self, address: int, number: int) -> None:
        """Another queue offset in the message at an address."""
        self.change(address + HEAD.at("queue_offset"), number.to_bytes(8, "big", signed=True))

    def change_time(self, address: int, time: int) -> None:
        """Another store time, which follows a host of either size."""
        with self.folder.change(self._name(address)) as file:
            file.seek(address % self.file_size + HEAD.at("sys_flag"))
            flags = int.from_bytes(file.read(4), "big")
        host = HOST_V6.size if flags & SysFlag.BORNHOST_V6 else HOST_V4.size
        self.change(address + HEAD.after("born_timestamp") + host, time.to_bytes(8, "big", signed=True))


# Derived files ---------------------------------------------------------------------------------------------------------


def write_derived(
    derived: DerivedEntries,
    files: Sequence[File],
    folder: Folder,
    sizes: Sizes,
    settings: Settings,
    report: Report,
    *,
    only_known: bool = False,
    is_intact: bool = True,
) -> None:
    """Write the derived files; `files` show which queues have ext files, and the kind of broker. Unless the log `is_intact`, queue
    databases are left out.

    With `only_known`, files whose size nothing shows are left out: a broker with another setting would not start on them, and makes
    them itself. An empty `abort`, and no checkpoint, let every version do so.
    """
    report.count("messages", derived.messages)
    assumed = derived.settle(settings.delays)
    batch_topics = settings.batch_topics | derived.batch_topics
    if reads_queue_files(files):
        ext = {str(file.place.topic) for file in files if file.format == "rocketmq.consumequeueext"}
        queues = {kind for kind, _ in _kinds(derived, batch_topics)}
    else:
        ext, queues = set(), set()
    with_tags = dispatch.indexes_tags(files)
    unknown_sizes = _unknown_kinds(derived, queues, sizes, with_tags)
    if unknown_sizes:
        _report_unknown(unknown_sizes, only_known, report)
    left_out = unknown_sizes if only_known else ()
    if "queue" in left_out and any(topic == SCHEDULE_TOPIC for topic, _ in derived.units):
        report.notes.append(
            "a broker that builds its queues may deliver delayed messages again that were delivered before"
        )
    if only_known and ext and "ext" not in sizes.known_fields:
        report.notes.append(
            "consumequeue_ext: left out, as nothing shows the size of its files (ext_size); tags are in the queues"
        )
        ext = set()
    for kind, queue in _kinds(derived, batch_topics):
        if kind in left_out or kind not in queues:
            continue
        units = derived.queue(queue)
        if (why := why_unsafe(queue[0])) is not None:
            report.count("queues_left_out")
            what = f"topic {queue[0]!r} queue {queue[1]}: left out with {units.shape[1]:,} units"
            report.add(Action.LOST, f"{what}: no directory can have this name: {why}")
            continue
        report.count("queues")
        report.count("units", int(units.shape[1]))
        if kind == "batch_queue":
            report.count("files", write_batch_queue(folder, queue, units, sizes))
        else:
            report.count("files", write_queue(folder, queue, units, sizes, report, with_ext=queue[0] in ext))
    if assumed and "queue" in queues and "queue" not in left_out:
        report.notes.append(
            f"{assumed:,} delayed messages: neither units, broker.conf nor delay_levels show the delays of their levels; "
            "RocketMQ's defaults are assumed for when they are due"
        )
    keys = derived.keys(with_tags=with_tags)
    full_until = 0 if "index" in left_out else write_index(folder.folder("index"), keys, sizes, report)
    is_intact = is_intact and not left_out
    if not reads_queue_files(files):
        is_carried = is_intact and any(file.format == QUEUE_DATABASE for file in files)
        _leave_queues(files, folder, derived.last_time, full_until, report, is_carried=is_carried)
    elif left_out:
        folder.write("abort", b"")
        _name_setting(len(dispatch.commit_logs(files)), report)
        report.count("files")
    else:
        has_logics = dispatch.logics_offset(files) > 0 and is_intact
        write_checkpoint(
            folder, derived.last_time, derived.last_time, full_until, _last_address(derived) if has_logics else 0
        )
        report.count("files")


def _leave_queues(
    files: Sequence[File], folder: Folder, last: int, index_until: int, report: Report, *, is_carried: bool
) -> None:
    """Write the checkpoint of a store with a queue database, and make the broker build queues that are left out or incomplete.

    A broker that starts after a clean stop does not build the unit of the very first message.
    """
    count = len(dispatch.commit_logs(files))
    if is_carried:
        write_checkpoint(folder, last, 0, index_until, 0)
    else:
        write_checkpoint(folder, 0, 0, 0, 0)
    report.count("files")
    if not is_carried or any(file.format == "rocketmq.abort" and file.place.state is None for file in files):
        folder.write("abort", b"")
        report.count("files")
        _name_setting(count, report, is_always=not is_carried)


def _name_setting(count: int, report: Report, *, is_always: bool = False) -> None:
    """Name the setting with which a broker reads all of the commit log."""
    if is_always or count > RECOVERED_FILES:
        report.notes.append(
            f"a broker from 5.4.0 on builds queues from the last {RECOVERED_FILES} commit-log files alone, and here are {count:,}: "
            f"for its first start set commitLogRecoverMaxNum={max(count, RECOVERED_FILES)} in its configuration"
        )


def _kinds(derived: DerivedEntries, batch_topics: Collection[str]) -> list[tuple[str, Queue]]:
    """The queues in order, each with the name that the size of its files has."""
    return [("batch_queue" if queue[0] in batch_topics else "queue", queue) for queue in sorted(derived.units)]


def _last_address(derived: DerivedEntries) -> int:
    """The address of the last message that is in a queue."""
    ends = [int(piece[U_PHYSICAL][-1]) for pieces in derived.units.values() for piece in pieces if piece.shape[1]]
    return max(ends, default=0)


NAMES = {
    "queue": ("consumequeue", "queue_size"),
    "batch_queue": ("batchconsumequeue", "batch_queue_size"),
    "index": ("index", "index_slots and index_entries"),
}
"""Of what is derived: its directory, and the options for its size."""


def _unknown_kinds(derived: DerivedEntries, queues: Collection[str], sizes: Sizes, with_tags: bool) -> tuple[str, ...]:
    """What there is to write into files of a size that nothing shows."""
    kinds: list[str] = [kind for kind in ("queue", "batch_queue") if kind in queues and kind not in sizes.known_fields]
    if not sizes.is_index_known and derived.has_keys(with_tags=with_tags):
        kinds.append("index")
    return tuple(kinds)


def _report_unknown(kinds: Sequence[str], only_known: bool, report: Report) -> None:
    for kind in kinds:
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


def _queue_folder(folder: Folder, kind: str, queue: Queue) -> Folder:
    return folder.folder(kind).folder(queue[0]).folder(str(queue[1]))


def place_units(units: NDArray[np.int64]) -> tuple[int, NDArray[np.int64], int]:
    """Units as a broker appends them: the first offset, those it takes, and how many numbers it passes over.

    It appends each directly after the one before, whatever number the message has, and drops one whose number was there already.
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
    folder: Folder, queue: Queue, units: NDArray[np.int64], sizes: Sizes, report: Report, *, with_ext: bool = False
) -> int:
    """The files of a plain consume queue; their number."""
    first, units, gaps = place_units(units)
    if gaps:
        report.notes.append(
            f"{queue[0]} queue {queue[1]}: {gaps:,} gaps in the queue offsets: from there on numbers and places differ"
        )
    files = 0
    if with_ext:
        files, units = _write_ext(_queue_folder(folder, "consumequeue_ext", queue), units, sizes)
    start = first * UNIT.size // sizes.queue * sizes.queue
    blanks = first - start // UNIT.size
    rows = np.zeros(blanks + units.shape[1], UNIT.dtype)
    rows["size"][:blanks] = PRE_BLANK_SIZE
    rows["physical_offset"][blanks:], rows["size"][blanks:] = units[U_PHYSICAL], units[U_SIZE]
    rows["tag_hash"][blanks:] = units[U_TAG]
    return files + _write_files(_queue_folder(folder, "consumequeue", queue), rows.tobytes(), start, sizes.queue)


def _write_files(folder: Folder, data: bytes, start: int, size: int) -> int:
    for number, position in enumerate(range(0, len(data), size)):
        write_sized(folder, f"{start + number * size:020}", [data[position : position + size]], size)
    return -(-len(data) // size)


def _write_ext(folder: Folder, units: NDArray[np.int64], sizes: Sizes) -> tuple[int, NDArray[np.int64]]:
    """Ext units of the messages, without bitmaps, and the plain units that point to them."""
    count, per_file = units.shape[1], (sizes.ext - EXT_END_SIZE) // EXT_UNIT.size
    rows = np.zeros(count, EXT_UNIT.dtype)
    rows["size"], rows["tag_hash"], rows["store_timestamp"] = EXT_UNIT.size, units[U_TAG], units[U_TIME]
    files = -(-count // per_file)
    for number in range(files):
        part = rows[number * per_file : (number + 1) * per_file].tobytes()
        mark = [b"\xff\xff"] if (number + 1) * per_file < count else []
        write_sized(folder, f"{number * sizes.ext:020}", [part, *mark], sizes.ext)
    numbers = np.arange(count, dtype=np.int64)
    pointing = units.copy()
    pointing[U_TAG] = EXT_FLAG + numbers // per_file * sizes.ext + numbers % per_file * EXT_UNIT.size
    return files, pointing


def write_batch_queue(folder: Folder, queue: Queue, units: NDArray[np.int64], sizes: Sizes) -> int:
    """The files of a batch consume queue; their number."""
    where = _queue_folder(folder, "batchconsumequeue", queue)
    return _write_files(where, batch_units(units).tobytes(), 0, sizes.batch_queue)


def batch_units(units: NDArray[np.int64]) -> NDArray[np.void]:
    """Units as a batch consume queue has them."""
    rows = np.zeros(units.shape[1], BATCH_UNIT.dtype)
    rows["physical_offset"], rows["size"], rows["tag_hash"] = units[U_PHYSICAL], units[U_SIZE], units[U_TAG]
    rows["store_timestamp"], rows["base_offset"], rows["batch_size"] = units[U_TIME], units[U_OFFSET], units[U_BATCH]
    rows["compacted_offset"] = -1
    return rows


def write_index(folder: Folder, keys: NDArray[np.int64], sizes: Sizes, report: Report) -> int:
    """Write the key index with these keys (`K_…`); the time at which its last full file ends."""
    hashes, addresses, times = (np.ascontiguousarray(keys[row]) for row in (K_HASH, K_ADDRESS, K_TIME))
    report.count("keys", int(hashes.size))
    done, full_until, before, name_before = 0, 0, np.zeros(encode.STATE, np.int64), 0
    while done < hashes.size:
        state = np.zeros(encode.STATE, np.int64)
        state[encode.X_COUNT] = 1
        if before[encode.X_END] > 0:
            state[encode.X_BEGIN] = state[encode.X_END] = before[encode.X_END]
        if before[encode.X_END_TIME] > 0:
            state[encode.X_BEGIN_TIME] = state[encode.X_END_TIME] = before[encode.X_END_TIME]
        slots, entries = np.zeros(sizes.slots, np.int32), np.zeros(sizes.entries * INDEX_ENTRY.size, np.uint8)
        done = int(encode.append_keys(hashes, addresses, times, done, state, slots, entries))
        name_before = max(int(state[encode.X_BEGIN_TIME]), name_before + 1)
        header = np.array([tuple(state.tolist())], INDEX_HEADER.dtype).tobytes()
        used = int(state[encode.X_COUNT]) * INDEX_ENTRY.size
        size = INDEX_HEADER.size + sizes.slots * SLOT.size + sizes.entries * INDEX_ENTRY.size
        write_sized(folder, _index_name(name_before), [header, slots.astype(">i4").tobytes(), entries[:used]], size)
        report.count("files")
        if int(state[encode.X_COUNT]) >= sizes.entries:
            full_until = int(state[encode.X_END_TIME])
        before = state
    return full_until


def _index_name(ms: int) -> str:
    """17 digits; a broker takes its local clock, which has no meaning."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=min(max(ms, 0), 250_000_000_000_000))
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03}"


def write_checkpoint(folder: Folder, physic: int, logics: int, index_until: int, logics_offset: int) -> None:
    """A checkpoint: the times up to which commit log, queues and index are there, and the last message of the queues."""
    row = np.zeros(1, CHECKPOINT.dtype)
    row["physic_timestamp"], row["logics_timestamp"], row["index_timestamp"] = physic, logics, index_until
    row["logics_physical_offset"] = logics_offset
    write_sized(folder, "checkpoint", [row.tobytes()], CHECKPOINT_SIZE)


# The logs of compaction topics ---------------------------------------------------------------------------------------------------

FORMATS = ("rocketmq.compactionlog", "rocketmq.compactioncq")
Find = Callable[[Queue, int], bytes | None]
"""(queue, number) -> the bytes of that message in the commit log, None if it is not there."""


def write_compacted(files: Sequence[File], folder: Folder, find: Find, report: Report) -> None:
    """Copy the logs and queues of compaction topics; those with damage are repaired in the copy."""
    logs, queues = ([file for file in files if file.format == name and file.problem is None] for name in FORMATS)
    paired = {(file.place.topic, file.place.partition, file.place.start_offset): file for file in queues}
    for log in logs:
        queue = paired.pop((log.place.topic, log.place.partition, log.place.start_offset), None)
        _write(log, queue, folder, find, report)
    for file in paired.values():
        drop(report, "left out, its log is missing", file.path, 0, file.size)


def _write(log: File, queue: File | None, folder: Folder, find: Find, report: Report) -> None:
    sound, units, end = _sound(log)
    holes = _holes(log, sound, end)
    for file in (log, queue):
        if file is not None:
            copy(folder, file, report)
    rows, is_damaged = units_of(queue) if queue is not None else (np.empty(0, BATCH_UNIT.dtype), False)
    if not holes and not is_damaged:
        return
    start = log.place.start_offset or 0
    rows_at = {int(row["physical_offset"]) - start: row for row in rows}
    restored: dict[int, bytes] = {}
    patches: list[tuple[int, bytes]] = []
    for first, stop in holes:
        at = first
        for position in sorted(place for place in rows_at if first <= place < stop):
            number, size = int(rows_at[position]["base_offset"]), int(rows_at[position]["size"])
            raw = find((str(log.place.topic), int(log.place.partition or 0)), number)
            if raw is None or len(raw) != size or position < at or position + size > stop:
                continue
            if position != at and position - at < SMALLEST_FILLER:
                continue
            patches += _fillers(start, at, position, report, log)
            where = HEAD.at("physical_offset")
            restored[position] = raw[:where] + (start + position).to_bytes(8, "big") + raw[where + 8 :]
            patches.append((position, restored[position]))
            reason = f"message {number} restored from the commit log"
            report.add(Action.REBUILT, reason, log.path, start=position, stop=position + size)
            at = position + size
        patches += _fillers(start, at, stop, report, log)
    with folder.change(below_root(log)) as out:
        for position, data in patches:
            out.seek(position)
            out.write(data)
    if queue is None:
        return
    lost = sorted(int(row["base_offset"]) for at, row in rows_at.items() if at not in sound and at not in restored)
    if lost:
        report.count("messages_lost", len(lost))
        reason = f"{len(lost):,} messages of the compaction topic are lost, the first is {lost[0]}"
        report.add(Action.LOST, reason, log.path)
    if is_damaged:
        report.add(Action.REBUILT, "damaged; rebuilt from its log", queue.path)
    kept = {at: row for at, row in rows_at.items() if at in sound or at in restored}
    if is_damaged:
        kept = {int(row["physical_offset"]) - start: row for row in units} | kept
    change_queue(folder, queue, b"".join(kept[at].tobytes() for at in sorted(kept)))


def _sound(log: File) -> tuple[dict[int, int], NDArray[np.void], int]:
    """The positions and sizes of a log's sound messages, the units a queue has for them, and the end of the entries."""
    sound: dict[int, int] = {}
    end = 0
    derived = DerivedEntries()
    try:
        for frames in walk(log, COMPACTION_LOG, errors="skip"):
            rows = Messages.take(frames, log)
            rows = rows.where(rows.crc_ok & ~rows.stale)
            sound.update(zip(rows.positions.tolist(), rows[fields.F_SIZE].tolist(), strict=True))
            derive_from(rows, derived, with_keys=False)
            end = frames.reached_in_file
            if frames.status.is_damage and frames.last:
                end = log.size
    except DataError:
        end = log.size
    units = derived.queue((str(log.place.topic), int(log.place.partition or 0)))
    return sound, batch_units(units), end


def _holes(log: File, sound: dict[int, int], end: int) -> list[tuple[int, int]]:
    """The stretches of a log before its end that are not sound messages, nor a blank entry at the end."""
    holes, at = [], 0
    for position, size in sorted(sound.items()):
        if position > at:
            holes.append((at, position))
        at = max(at, position + size)
    with Source(log.path) as source:
        head = source.read(at, BLANK.size)
        tail = source.read(at, end - at).rstrip(b"\0") if end > at else b""
    is_blank = len(head) == BLANK.size and int.from_bytes(head[4:], "big", signed=True) == MAGIC_BLANK
    if tail and not (is_blank and int.from_bytes(head[:4], "big") == log.size - at):
        holes.append((at, at + len(tail)))
    return holes


def units_of(queue: File) -> tuple[NDArray[np.void], bool]:
    """The units of a queue, and whether it is damaged."""
    with Source(queue.path) as source:
        data = np.frombuffer(source.read(0, source.size), np.uint8)
    frames = COMPACTION_QUEUE.scan(data, 0)
    return BATCH_UNIT.take(data, frames.starts), frames.status.is_damage


def _fillers(start: int, first: int, stop: int, report: Report, log: File) -> list[tuple[int, bytes]]:
    """Fillers over a stretch, which no queue shows; a rest that is too small for one is zeroed."""
    if first >= stop:
        return []
    drop(report, "could not be kept", log.path, first, stop)
    patches = []
    while stop - first >= SMALLEST_FILLER:
        size = min(stop - first, LARGEST_BODY)
        if 0 < stop - first - size < SMALLEST_FILLER:
            size -= SMALLEST_FILLER
        patches.append((first, covering(start + first, size, 1, None)))
        first += size
    if first < stop:
        patches.append((first, bytes(stop - first)))
    return patches


def change_queue(folder: Folder, queue: File, units: bytes) -> None:
    """Give a queue file other units, and after them the mark that it had after its own, if any."""
    with Source(queue.path) as source:
        data = np.frombuffer(source.read(0, source.size), np.uint8)
    rows = BATCH_UNIT.view(data)
    marks = rows[(rows["physical_offset"] == -1) & (rows["size"] == 0)]
    new = units + (marks[:1].tobytes() if len(marks) else b"")
    with folder.change(below_root(queue)) as out:
        out.write(new[: data.size])
        out.write(bytes(max(0, data.size - len(new))))
