"""The files of a damaged store as `repair` takes them: commit-log files under other names, the timer's checkpoint."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rawlog.core.errors import DataError, OptionError
from rawlog.core.format import File
from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.kernels import entries as fields
from rawlog.formats.rocketmq.layouts import CHECKPOINT_SIZE, TIMER_CHECK
from rawlog.formats.rocketmq.paths import below_root, parts
from rawlog.formats.rocketmq.reader import Messages
from rawlog.formats.rocketmq.store.stage import Nowhere, Report, write_sized
from rawlog.io.output import descendant
from rawlog.io.storage import Source
from rawlog.io.walk import walk

VOTES = 32
"""Messages that say where their file belongs."""


def recognised(files: Sequence[File]) -> list[File]:
    """The files with those that lie in the commit log under a wrong name where their first message says that it stands."""
    return [_recognised(file) for file in files]


def _recognised(file: File) -> File:
    if file.format != "rocketmq.stray" or file.problem is not None or parts(file.path)[1] != "commitlog":
        return file
    start, _ = _address(file, 1)
    place = replace(file.place, start_offset=start, state=None)
    return file if start < 0 else replace(file, format=COMMIT_LOG.name, place=place)


def located(files: Sequence[File], size: int, report: Report, *, move: bool) -> list[File]:
    """The files, each of the commit log where its messages say that they belong: one that was renamed, or swapped with another, must fill
    a gap of the log, or lie at one of its ends.

    What finds no place is left out, and reported. OptionError if files are where they say and only the size is not known.
    """
    kept, renamed, silent = [], [], []
    for file in files:
        start = file.place.start_offset
        if file.format != COMMIT_LOG.name or file.problem is not None:
            kept.append(file)
            continue
        named = parts(file.path)[0] == f"{start or 0:020}"
        base, votes = _address(file, size)
        if named and (start or 0) % size == 0 and (base == -1 or base % size):
            silent.append(file)
        elif named and start == base:
            if base % size and not move:
                raise OptionError(
                    f"{file.path}: its name is no multiple of the size of a file, {size:,}: tell commitlog_size, or repair with move"
                )
            kept.append(file)
        else:
            renamed.append((base, votes, file))
    taken = {file.place.start_offset or 0 for file in kept if file.format == COMMIT_LOG.name}
    ends = taken | {file.place.start_offset or 0 for file in silent}
    for start, votes, file in sorted(renamed, key=lambda one: (one[0], -one[1])):
        # A single message may be wrong about itself.
        is_near = votes > 1 or not ends or min(ends) - size <= start <= max(ends) + size
        if start >= 0 and start % size == 0 and start not in taken and is_near:
            taken.add(start)
            kept.append(replace(file, place=replace(file.place, start_offset=start)))
            report.notes.append(f"{file.path}: taken as the commit-log file {start:020}, where its messages belong")
        else:
            report.notes.append(f"{file.path}: left out, it has no place in the commit log")
            report.bytes_lost += file.size
    for file in silent:  # nothing in them says where they belong but their names
        if file.place.start_offset in taken:
            report.notes.append(f"{file.path}: left out, another file has its place in the commit log")
            report.bytes_lost += file.size
        else:
            kept.append(file)
    return kept


def _address(file: File, size: int) -> tuple[int, int]:
    """The address of a file's first byte by what most of its first messages say, and how many do; -1 if it has none.

    Where bytes were added or removed, messages after them say otherwise; only a multiple of the size of a file can be right.
    """
    votes: Counter[int] = Counter()
    with contextlib.suppress(DataError):
        for frames in walk(file, COMMIT_LOG, errors="skip"):
            rows = Messages.take(frames, file)
            bases = (rows[fields.F_PHYSICAL] - rows.positions)[rows.crc_ok]
            votes.update(bases[bases >= 0].tolist())
            if sum(count for base, count in votes.items() if base % size == 0) >= VOTES:
                break
    likely = Counter({base: count for base, count in votes.items() if base % size == 0}) or votes
    return likely.most_common(1)[0] if likely else (-1, 0)


def write_checked(files: Sequence[File], stage: Path | Nowhere, report: Report) -> None:
    """`config/timercheck` without bytes that do not belong to it: what the timer has reached is at its front, zeros follow."""
    for file in files:
        if file.format != "rocketmq.timercheck" or file.problem is not None:
            continue
        with Source(file.path) as source:
            head, rest = source.read(0, TIMER_CHECK.size), source.read(TIMER_CHECK.size, CHECKPOINT_SIZE)
        if len(head) < TIMER_CHECK.size:
            report.notes.append(f"{file.path}: cut within its numbers and left out; the timer starts from its own log")
            report.bytes_lost += file.size
            continue
        if any(rest) or file.size > CHECKPOINT_SIZE:
            report.notes.append(
                f"{file.path}: byte {TIMER_CHECK.size}: bytes after the numbers of the timer; set to zero"
            )
            report.bytes_lost += len(rest.rstrip(b"\0")) or 1
        write_sized(descendant(stage, below_root(file)), [head], CHECKPOINT_SIZE)
        report.files += 1
