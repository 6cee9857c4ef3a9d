"""A store seen as a whole: what its commit log holds, where it ends, what a broker derives from it, and what lies beside it.

Made once for all rules that compare files with one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from rawlog.core.errors import RawlogError
from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.status import Status
from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import BLANK, CHECKPOINT, DLEDGER_BLANK_MAGIC, MAGIC_BLANK
from rawlog.formats.rocketmq.reader import Messages
from rawlog.formats.rocketmq.store import dispatch
from rawlog.formats.rocketmq.store.dispatch import Derived, Queue, Settings
from rawlog.io.storage import Source
from rawlog.io.walk import walk


@dataclass(slots=True)
class LogFile:
    """A commit-log file: where a broker's scan of it ends and why, and what sound messages lie behind that."""

    file: File
    start: int
    end: int = 0
    ends_with: str = "zeros"  # blank, zeros, damage, checksum, torn
    first_time: int = 0
    last_time: int = 0
    messages: int = 0
    behind: int = 0
    is_dledger: bool = False

    @property
    def stop(self) -> int:
        return self.start + self.file.size


@dataclass(slots=True)
class Store:
    """The files of one store and what its commit log says they must hold."""

    root: str
    files: list[File]
    logs: list[LogFile] = field(default_factory=list)
    derived: Derived = field(default_factory=Derived)
    settings: Settings = field(default_factory=Settings)
    fillers: list[int] = field(default_factory=list)

    @property
    def begin(self) -> int:
        return self.logs[0].start if self.logs else 0

    @property
    def end(self) -> int:
        """The address behind the last sound message of the whole log."""
        return max((log.start + log.end for log in self.logs if log.messages), default=self.begin)

    def of(self, format: str) -> list[File]:
        return [
            file for file in self.files if file.format == format and file.place.state is None and file.problem is None
        ]

    @property
    def is_unclean(self) -> bool:
        return bool(self.of("rocketmq.abort"))

    def queues(self, format: str) -> dict[Queue, list[File]]:
        """The files of each queue, in order."""
        found: dict[Queue, list[File]] = {}
        for file in self.of(format):
            found.setdefault((str(file.place.topic), int(file.place.partition or 0)), []).append(file)
        for files in found.values():
            files.sort(key=lambda file: file.place.start_offset or 0)
        return found

    def checkpoint(self) -> dict[str, int] | None:
        for file in self.of("rocketmq.checkpoint"):
            with Source(file.path) as source:
                raw = source.read(0, CHECKPOINT.size)
            if len(raw) == CHECKPOINT.size:
                row = np.frombuffer(raw, CHECKPOINT.dtype)[0]
                return {name: int(row[name]) for name in CHECKPOINT.dtype.names or ()}
        return None


_last: tuple[Sequence[File], list[Store]] | None = None


def stores_of(files: Sequence[File]) -> list[Store]:
    """The stores among some files; computed once for the rules that are run one after the other on the same list."""
    global _last
    if _last is None or _last[0] is not files:
        _last = (files, [_surveyed(store) for store in grouped(files)])
    return _last[1]


def grouped(files: Iterable[File]) -> list[Store]:
    """Files by store."""
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    return [Store(root, found) for root, found in groups.items()]


def _surveyed(store: Store) -> Store:
    store.settings = dispatch.settings_of(store.files)
    for file in dispatch.commit_logs(store.of(COMMIT_LOG.name)):
        store.logs.append(_survey(store, file))
    return store


def _survey(store: Store, file: File) -> LogFile:
    log = LogFile(file, file.place.start_offset or 0)
    ended = False
    frames: Frames | None = None
    try:
        for frames in walk(file, COMMIT_LOG, errors="skip"):
            rows = Messages.take(frames, file)
            sound = rows.crc_ok & ~rows.stale
            if ended:
                log.behind += int(sound.sum())
            elif sound.all():
                _add(log, rows, frames.reached_in_file)
            else:
                bad = int(np.argmin(sound))
                ended, log.ends_with = True, "stale" if rows.stale[bad] else "checksum"
                _add(log, rows.cut(0, bad), rows.frame_position(bad))
                log.behind += int(sound[bad:].sum())
            good = rows.where(sound)
            log.is_dledger = log.is_dledger or bool(
                (rows[kernels.F_START] != frames.starts[rows[kernels.F_FRAME]]).any()
            )
            dispatch.derive_from(good, store.settings, store.derived)
            store.fillers += good[kernels.F_PHYSICAL][good.fillers].tolist()
            if not ended and len(frames):
                last = int(frames.starts[-1])
                first, second = np.frombuffer(bytes(frames.data[last : last + BLANK.size]), ">i4").tolist()
                if second == MAGIC_BLANK or first == DLEDGER_BLANK_MAGIC:
                    ended, log.ends_with, log.end = True, "blank", frames.base + last
            if not ended and frames.status.is_damage:
                ended, log.ends_with = True, "damage"
    except RawlogError:
        log.ends_with = "damage"
    if not ended and frames is not None and frames.status is Status.TRUNCATED:
        log.ends_with = "torn"
    return log


def _add(log: LogFile, rows: Messages, end: int) -> None:
    if len(rows):
        times = rows[kernels.F_STORE_TIME]
        log.first_time = log.first_time or int(times[0])
        log.last_time = int(times[-1])
        log.messages += len(rows)
    log.end = end
