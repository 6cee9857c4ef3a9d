"""When delayed messages are due. A broker computes it from its setting `messageDelayLevel`, which no file of the store holds.

The units of the schedule topic's queues hold the results, so they are the best evidence; then come settings near the store.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import OptionError
from rawlog.core.format import File
from rawlog.formats.rocketmq.layouts import (
    DELAY_LEVELS_MS,
    EXT_UNIT,
    HEAD,
    HOST_V4,
    HOST_V6,
    LARGEST_EXT_ADDRESS,
    MAGIC_V1,
    MAGIC_V2,
    PRE_BLANK_SIZE,
    SCHEDULE_TOPIC,
    STORED,
    UNIT,
    SysFlag,
)
from rawlog.formats.rocketmq.store.brokerconf import conf_near
from rawlog.io.storage import Source

LEVEL = re.compile(r"[0-9]{1,9}[smhd]")
UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
LONGEST_MS = 20 * 365 * UNITS_MS["d"]
SAMPLE = 8
"""Units of a queue whose messages are looked up to learn the delay of its level."""
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Delays:
    """How long a delay level is, and when single messages are due.

    `levels_ms` come from an option (`is_asked`) or from `broker.conf`; `by_level` from existing units; `addresses` and `due` are those
    units, by the physical offset of their messages.
    """

    levels_ms: tuple[int, ...] | None = None
    is_asked: bool = False
    by_level: Mapping[int, int] = field(default_factory=dict)
    addresses: NDArray[np.int64] = field(default_factory=lambda: _NONE)
    due: NDArray[np.int64] = field(default_factory=lambda: _NONE)

    @property
    def highest(self) -> int:
        """The highest level that anything tells of."""
        return max(len(self.levels_ms or ()), *self.by_level, 0)

    def of_level(self, level: int) -> tuple[int, bool]:
        """The delay of a level, and whether anything but RocketMQ's defaults says so."""
        if self.levels_ms is not None:
            return (self.levels_ms[min(level, len(self.levels_ms)) - 1] if self.levels_ms else 1000), True
        if level in self.by_level:
            return self.by_level[level], True
        return DELAY_LEVELS_MS[min(level, len(DELAY_LEVELS_MS)) - 1], False

    def moved(self, old: NDArray[np.int64], new: NDArray[np.int64]) -> Delays:
        """The same for messages that go from some addresses to others, both in order."""
        if not self.addresses.size:
            return self
        rows = np.minimum(np.searchsorted(self.addresses, old), self.addresses.size - 1)
        there = self.addresses[rows] == old
        return replace(self, addresses=new[there], due=self.due[rows[there]])

    def due_at(self, address: int, stored: int, level: int) -> tuple[int, bool]:
        """When the message at an address, stored at a time, is due; and whether anything but the defaults says so."""
        if not self.is_asked and self.addresses.size:
            row = int(np.searchsorted(self.addresses, address))
            if row < self.addresses.size and int(self.addresses[row]) == address:
                due = int(self.due[row])
                if is_delay(due - stored):
                    return due, True
        delay, is_known = self.of_level(level)
        return stored + delay, is_known


def is_delay(ms: int) -> bool:
    """Whether a level can be so long: settings are in whole seconds, so that hardly any damaged number is one."""
    return 0 < ms <= LONGEST_MS and ms % 1000 == 0


def parse_levels(text: str) -> tuple[int, ...]:
    """`1s 5s 1m`, as the broker's messageDelayLevel. OptionError for anything else."""
    if not all(LEVEL.fullmatch(one) for one in text.split()):
        raise OptionError(f"delay_levels {text!r}: times as 1s 5m 2h 1d expected")
    return tuple(int(one[:-1]) * UNITS_MS[one[-1]] for one in text.split())


def delays_of(files: Sequence[File], options: Mapping[str, str] | None = None) -> Delays:
    """What options, a `broker.conf` near the store and its units say of delays. OptionError for levels that are not times."""
    asked = (options or {}).get("delay_levels")
    if asked is not None:
        return Delays(parse_levels(asked), is_asked=True)
    levels = None
    conf = conf_near(files)
    if conf is not None:
        try:
            told = conf.values.get("messageDelayLevel")
            levels = DELAY_LEVELS_MS if told is None else parse_levels(told)
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
    every = np.concatenate(addresses)
    order = np.argsort(every, kind="stable")
    return Delays(levels, by_level=by_level, addresses=every[order], due=np.concatenate(due)[order])


def _units(file: File, files: Iterable[File]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The messages of a queue file of the schedule topic, by physical offset, and when its units say that each is due."""
    with Source(file.path) as source:
        rows = UNIT.view(np.frombuffer(source.read(0, source.size), np.uint8))
    rows = rows[(rows["physical_offset"] >= 0) & (rows["size"] > 0) & (rows["size"] != PRE_BLANK_SIZE)]
    tags = rows["tag_hash"].astype(np.int64)
    if (tags <= LARGEST_EXT_ADDRESS).any():
        place = file.place
        ext = [
            one
            for one in files
            if one.format == "rocketmq.consumequeueext"
            and (one.place.group, one.place.topic, one.place.partition) == (place.group, place.topic, place.partition)
        ]
        tags = ext_tags(tags, ext)
    return rows["physical_offset"].astype(np.int64), tags


def ext_tags(tags: NDArray[np.int64], ext: Iterable[File]) -> NDArray[np.int64]:
    """Tag hashes, looked up in a queue's ext files where units point there."""
    pointing = np.flatnonzero(tags <= LARGEST_EXT_ADDRESS)
    if not pointing.size:
        return tags
    found = tags.copy()
    for file in ext:
        with Source(file.path) as source:
            data = np.frombuffer(source.read(0, source.size), np.uint8)
        start = file.place.start_offset or 0
        for row in pointing.tolist():
            at = int(tags[row]) + (1 << 63) - start
            if 0 <= at <= data.size - EXT_UNIT.size:
                found[row] = int(EXT_UNIT.take(data, np.array([at]))["tag_hash"][0])
    return found


def _delays_of(addresses: NDArray[np.int64], due: NDArray[np.int64], logs: Sequence[File]) -> dict[int, int]:
    """The delay of the newest of some units whose message is there, by its level."""
    for row in range(addresses.size - 1, max(-1, addresses.size - 1 - SAMPLE), -1):
        found = _stored_at(int(addresses[row]), logs)
        if found is not None and is_delay(int(due[row]) - found[1]):
            return {found[0] + 1: int(due[row]) - found[1]}
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
