"""What a broker was configured with, as far as its files, a `broker.conf` near the store and options show it.

The sizes of files, the kind of a topic's queues, and when delayed messages are due: a broker computes that from its setting
`messageDelayLevel`, which no file of the store has. The units of the schedule topic's queues have the results, so they are the best
evidence; then come settings near the store.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.rocketmq import COMMIT_LOG_NAME, config, index
from rawlog.formats.rocketmq.layouts import (
    BATCH_UNIT,
    BLANK,
    DEFAULT_ENTRIES,
    DEFAULT_SLOTS,
    DELAY_LEVELS_MS,
    EXT_UNIT,
    HEAD,
    HOST_V4,
    HOST_V6,
    INDEX_ENTRY,
    INDEX_HEADER,
    LARGEST_EXT_ADDRESS,
    LARGEST_FILE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    PRE_BLANK_SIZE,
    SCHEDULE_TOPIC,
    SLOT,
    STORED,
    UNIT,
    SysFlag,
)
from rawlog.io.storage import (
    Source,
    is_remote,
    local_path,
    read_regular,
)
from rawlog.model.errors import DataError, OptionError
from rawlog.model.format import File

NAMES = ("broker.conf", "broker.properties", "conf/broker.conf", "conf/broker.properties", "config/broker.conf")
LEVELS = 3
"""The store's own directory and those above it that are searched."""
LARGEST = 1 << 20
_LINE = re.compile(r"\s*([^\s=:]+)\s*[=:]?\s*(.*)")


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """A broker's settings by name. What it does not name has RocketMQ's default."""

    path: str
    values: Mapping[str, str] = field(default_factory=dict)

    def number(self, *names: str) -> int | None:
        """The first of these settings with a number above zero."""
        for name in names:
            text = self.values.get(name, "")
            if re.fullmatch(r"[0-9]{1,18}", text) and int(text) > 0:
                return int(text)
        return None


def conf_near(files: Iterable[File]) -> BrokerConf | None:
    """The broker's settings: a file of a usual name in the store's directory or above it.

    One that names another directory as its store, which exists, is not taken.
    """
    groups = {file.place.group: file.format != COMMIT_LOG_NAME for file in files if file.place.group is not None}
    roots = sorted(groups, key=lambda group: not groups[group])
    if not roots or is_remote(roots[0]):
        return None
    root = Path(os.path.abspath(local_path(roots[0])))
    for folder in (root, *root.parents)[:LEVELS]:
        for name in NAMES:
            conf = _read(folder / name)
            if conf is not None and _belongs(conf, root):
                return conf
    return None


def _read(path: Path) -> BrokerConf | None:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        text = read_regular(path).decode("utf-8", "replace")
    except OSError:
        return None
    values = {}
    for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines():
        match = _LINE.fullmatch(line)
        if match and not match[1].startswith(("#", "!")):
            values[match[1]] = match[2].strip()
    return BrokerConf(str(path), values)


def _belongs(conf: BrokerConf, root: Path) -> bool:
    root_setting = conf.values.get("storePathRootDir")
    if not root_setting:
        return True
    path = Path(conf.path).parent / root_setting
    try:
        return not path.exists() or path.samefile(root)
    except (OSError, ValueError):
        return True


PAGE = 4096
SIZE_OPTIONS = {
    "commit_log": "commitlog_size",
    "queue": "queue_size",
    "batch_queue": "batch_queue_size",
    "ext": "ext_size",
    "slots": "index_slots",
    "entries": "index_entries",
}
"""The option for each size."""
CONF = {
    "commit_log": ("mappedFileSizeCommitLog", "mapedFileSizeCommitLog"),
    "queue": ("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue"),
    "batch_queue": ("mapperFileSizeBatchConsumeQueue",),
    "ext": ("mappedFileSizeConsumeQueueExt",),
    "slots": ("maxHashSlotNum",),
    "entries": ("maxIndexNum",),
}
"""The broker's own names for each size, in order; old brokers had `maped`."""
FORMATS = {
    "rocketmq.commitlog": "commit_log",
    "rocketmq.consumequeue": "queue",
    "rocketmq.batchconsumequeue": "batch_queue",
    "rocketmq.consumequeueext": "ext",
}


@dataclass(frozen=True, slots=True)
class Sizes:
    """How large a broker makes its files, in bytes; the index in slots and entries. Files or settings show `known_fields`."""

    commit_log: int = 1 << 30
    queue: int = 300_000 * UNIT.size
    batch_queue: int = 300_000 * BATCH_UNIT.size
    ext: int = 48 << 20
    slots: int = DEFAULT_SLOTS
    entries: int = DEFAULT_ENTRIES
    known_fields: frozenset[str] = frozenset()

    def with_options(self, options: Mapping[str, str]) -> Sizes:
        """These sizes, changed by options: `commitlog_size`, `queue_size`, `batch_queue_size`, `ext_size`, `index_slots` …"""
        changed = {}
        for name, option in SIZE_OPTIONS.items():
            if option in options:
                try:
                    changed[name] = int(options[option])
                except ValueError:
                    raise OptionError(f"{option} {options[option]!r}: a whole number expected") from None
                if changed[name] <= 0:
                    raise OptionError(f"{option} {changed[name]}: a number above zero expected")
        return self.with_sizes(changed)

    def with_sizes(self, sizes: Mapping[str, int]) -> Sizes:
        """These sizes with others, which become known."""
        sized = replace(self, **sizes, known_fields=self.known_fields | set(sizes))
        # A broker rounds these up to whole units.
        return replace(sized, queue=_up(sized.queue, UNIT.size), batch_queue=_up(sized.batch_queue, BATCH_UNIT.size))

    @property
    def is_index_known(self) -> bool:
        return {"slots", "entries"} <= self.known_fields


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def usual_size(files: Sequence[File]) -> int:
    """The size that a broker gives the files of a log or of queues; 0 if none of them shows it.

    The one that most files have and most names are multiples of, for the name of a file is the address of its first byte. Where all files
    were cut or lengthened, the names alone show it.
    """
    numbered = [file for file in files if file.place.start_offset is not None]
    sizes = Counter(file.size for file in numbered if file.size)
    starts = [file.place.start_offset or 0 for file in numbered]
    step = math.gcd(*starts)
    candidates = set(sizes)
    if min(sizes, default=1) <= 2 * step and step <= LARGEST_FILE:
        candidates.add(step)

    def credit(size: int) -> tuple[int, int, int]:
        fitting = sum(start % size == 0 for start in starts)
        return fitting + sizes[size], fitting, size

    return max(candidates, key=credit, default=0)


def shown_size(files: Sequence[File], field: str) -> int:
    """The same if it is certain: a lone file may have been cut. 0 if it is not."""
    size = usual_size(files)
    same = [file for file in files if file.size == size]
    starts = {file.place.start_offset or 0 for file in files if file.place.start_offset is not None}
    if not size:
        return 0
    if len(same) > 1 or (same and any(start and start % size == 0 for start in starts)):
        return size
    if not same:  # the distance between two names
        return size if any(start + size in starts for start in starts) else 0
    return size if _is_uncut(same[0], field) else 0


def _is_uncut(file: File, field: str) -> bool:
    """Whether a lone file has the size that its broker gave it, as far as its end shows."""
    if file.size == getattr(Sizes(), field):
        return True
    if field in ("queue", "batch_queue"):
        return file.size % (UNIT if field == "queue" else BATCH_UNIT).size == 0
    if field == "ext":
        return file.size % PAGE == 0
    with Source(file.path) as source:
        tail = source.read(max(0, file.size - PAGE), PAGE)
        if file.size % PAGE == 0 and not any(tail[-BLANK.size :]):
            return True
    # A blank entry says how much of the file is left.
    room = np.frombuffer(tail[len(tail) % 4 :], ">i4")
    blanks = np.flatnonzero(room[1:] == MAGIC_BLANK)
    return any(int(room[at]) == (room.size - at) * 4 for at in blanks.tolist())


def sizes_of(files: Iterable[File]) -> Sizes:
    """The sizes that a store's own files have, else those of a `broker.conf` near it, else the defaults, which are not `known_fields`."""
    files = [file for file in files if file.problem is None and file.place.state is None]
    sizes: dict[str, int] = {}
    for format, name in FORMATS.items():
        size = shown_size([file for file in files if file.format == format], name)
        if size:
            sizes[name] = size
    sizes |= _index_sizes([file for file in files if file.format == "rocketmq.index"])
    conf = conf_near(files)
    if conf is not None:
        for name, names in CONF.items():
            sizes.setdefault(name, conf.number(*names) or getattr(Sizes(), name))
    return Sizes().with_sizes(sizes)


def _index_sizes(files: Sequence[File]) -> dict[str, int]:
    """Slots and entries of index files, by a file of the usual size; none if they are uncertain."""
    sizes = Counter(file.size for file in files)
    for file in sorted(files, key=lambda file: -sizes[file.size]):
        try:
            with index.Index(file.path) as opened:
                slots, entries, count = opened.header.slots, opened.header.entries, opened.header.count
        except DataError:
            continue
        rest = file.size - INDEX_HEADER.size - slots * SLOT.size
        is_whole = rest == entries * INDEX_ENTRY.size and count <= entries
        # A lone file may have been cut after its last entry. Its slots are certain, and a broker makes a file that is too short longer.
        if count > 1 and is_whole:
            return {"slots": slots, "entries": entries}
    return {}


LEVEL = re.compile(r"[0-9]{1,9}[smhd]")
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONGEST_MS = 20 * 365 * UNITS_MS["d"]
SAMPLE = 8
"""Units of a queue whose messages are looked up to learn the delay of its level."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Delays:
    """How long a delay level is, and when single messages are due.

    `levels_ms` come from an option (`is_option`) or from `broker.conf`; `by_level` from existing units; `addresses` and `due` are those
    units, by the physical offset of their messages.
    """

    levels_ms: tuple[int, ...] | None = None
    is_option: bool = False
    by_level: Mapping[int, int] = field(default_factory=dict)
    addresses: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    due: NDArray[np.int64] = field(default_factory=lambda: _NONE)

    @property
    def highest(self) -> int:
        """The highest level that anything shows."""
        return max(len(self.levels_ms or ()), *self.by_level, 0)

    def of_level(self, level: int) -> tuple[int, bool]:
        """The delay of a level, and whether anything but RocketMQ's defaults says so."""
        if self.levels_ms is not None:
            return (self.levels_ms[min(level, len(self.levels_ms)) - 1] if self.levels_ms else 1000), True
        if level in self.by_level:
            return self.by_level[level], True
        return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1], False

    def due_at(self, address: int, stored: int, level: int) -> tuple[int, bool]:
        """When the message at an address, stored at a time, is due; and whether anything but the defaults says so."""
        if not self.is_option and self.addresses.size:
            row = int(np.searchsorted(self.addresses, address))
            if row < self.addresses.size and int(self.addresses[row]) == address:
                due = int(self.due[row])
                if is_delay(due - stored):
                    return due, True
        delay, is_known = self.of_level(level)
        return stored + delay, is_known


def is_delay(ms: int) -> bool:
    """Whether this can be the delay of a level: whole seconds, which a damaged number hardly ever is."""
    return 0 < ms <= LONGEST_MS and ms % 1000 == 0


def parse_levels(text: str) -> tuple[int, ...]:
    """`1s 5s 1m`, as the broker's messageDelayLevel. OptionError for anything else."""
    if not all(LEVEL.fullmatch(word) for word in text.split()):
        raise OptionError(f"delay_levels {text!r}: times as 1s 5m 2h 1d expected")
    return tuple(int(word[:-1]) * UNITS_MS[word[-1]] for word in text.split())


def delays_of(files: Sequence[File], options: Mapping[str, str] | None = None) -> Delays:
    """What options, a `broker.conf` near the store and its units say of delays. OptionError for levels that are not times."""
    option = (options or {}).get("delay_levels")
    if option is not None:
        return Delays(parse_levels(option), is_option=True)
    levels = None
    conf = conf_near(files)
    if conf is not None:
        try:
            text = conf.values.get("messageDelayLevel")
            levels = DELAY_LEVELS_MS if text is None else parse_levels(text)
        except OptionError:
            levels = None
    queues = [
        file
        for file in files
        if file.format == "rocketmq.consumequeue" and file.place.topic == SCHEDULE_TOPIC and file.problem is None
    ]
    if not queues:
        return Delays(levels)
    logs = [file for file in files if file.format == "rocketmq.commitlog" and file.problem is None]
    addresses, due = [_NONE], [_NONE]
    by_level: dict[int, int] = {}
    for file in sorted(queues, key=lambda file: file.place.start_offset or 0):
        where, when = _units(file, files)
        addresses.append(where)
        due.append(when)
        by_level |= _delays_of(where, when, logs)
    merged = np.concatenate(addresses)
    order = np.argsort(merged, kind="stable")
    return Delays(levels, by_level=by_level, addresses=merged[order], due=np.concatenate(due)[order])


def _units(file: File, files: Iterable[File]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The messages of a queue file of the schedule topic, by physical offset, and when its units say that each is due."""
    with Source(file.path) as source:
        rows = UNIT.view(np.frombuffer(source.read(0, source.size), np.uint8))
    rows = rows[(rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["size"] != PRE_BLANK_SIZE)]
    tags = rows["tag_hash"].astype(np.int64)
    if (tags <= LARGEST_EXT_ADDRESS).any():
        place = file.place
        ext = [
            other
            for other in files
            if other.format == "rocketmq.consumequeueext"
            and (other.place.group, other.place.topic, other.place.partition)
            == (place.group, place.topic, place.partition)
        ]
        tags = ext_tags(tags, ext)
    return rows["physical_offset"].astype(np.int64), tags


def ext_tags(tags: NDArray[np.int64], ext: Iterable[File]) -> NDArray[np.int64]:
    """Tag hashes, looked up in a queue's ext files where units point there."""
    pointing = np.flatnonzero(tags <= LARGEST_EXT_ADDRESS)
    if not pointing.size:
        return tags
    resolved = tags.copy()
    for file in ext:
        with Source(file.path) as source:
            data = np.frombuffer(source.read(0, source.size), np.uint8)
        start = file.place.start_offset or 0
        for row in pointing.tolist():
            at = int(tags[row]) + (1 << 63) - start
            if 0 <= at <= data.size - EXT_UNIT.size:
                resolved[row] = int(EXT_UNIT.take(data, np.array([at]))["tag_hash"][0])
    return resolved


def _delays_of(addresses: NDArray[np.int64], due: NDArray[np.int64], logs: Sequence[File]) -> dict[int, int]:
    """The delay of the newest unit whose message is stored, by its level."""
    for row in range(addresses.size - 1, max(-1, addresses.size - 1 - SAMPLE), -1):
        stored = _stored_at(int(addresses[row]), logs)
        if stored is not None and is_delay(int(due[row]) - stored[1]):
            return {stored[0] + 1: int(due[row]) - stored[1]}
    return {}


def _stored_at(address: int, logs: Iterable[File]) -> tuple[int, int] | None:
    """The queue and the store time of the message at an address; None if none begins there."""
    for file in logs:
        start = file.place.start_offset
        if start is not None and start <= address < start + file.size:
            with Source(file.path) as source:
                head = source.read(address - start, HEAD.size + HOST_V6.size + STORED.size)
            if len(head) < HEAD.size + HOST_V4.size + STORED.size:
                return None
            row = np.frombuffer(head[: HEAD.size], HEAD.dtype)[0]
            if int(row["magic"]) not in (MAGIC_V1, MAGIC_V2) or int(row["physical_offset"]) != address:
                return None
            host = HOST_V6.size if int(row["sys_flag"]) & SysFlag.BORNHOST_V6 else HOST_V4.size
            stored = head[HEAD.size + host : HEAD.size + host + STORED.size]
            return int(row["queue_id"]), int.from_bytes(stored, "big", signed=True)
    return None


@dataclass(frozen=True, slots=True)
class Settings:
    """What a broker was configured with that its commit log does not say."""

    batch_topics: frozenset[str] = frozenset()
    delays: Delays = field(default_factory=Delays)


def settings_of(files: Sequence[File], options: Mapping[str, str] | None = None) -> Settings:
    """What the files of a store, a `broker.conf` near it and options show of a broker's settings. OptionError for invalid options.

    Settings that cannot be read show nothing: a finding of their own reports them.
    """
    # Where the topics are lost, the directories of queues still show of what kind they are.
    batch = {str(file.place.topic) for file in files if file.format == "rocketmq.batchconsumequeue"}
    with contextlib.suppress(DataError):
        for _, value in config.load(files, "topics.json"):
            for name, topic in (value.get("topicConfigTable") or {}).items():
                if is_batch(topic):
                    batch.add(name)
    return Settings(frozenset(batch), delays_of(files, options))


def is_batch(topic: Mapping[str, Any]) -> bool:
    """Whether the queues of a topic, as `topics.json` has it, are queues of batches."""
    return (topic.get("attributes") or {}).get("queue.type") == "BatchCQ"
