"""The files of a damaged store as `repair` takes them: commit-log files under other names, settings that a broker could not read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rawlog.errors import DataError, OptionError
from rawlog.format import File
from rawlog.formats.rocketmq import COMMIT_LOG, config
from rawlog.formats.rocketmq.paths import begin_commit_log, parts, sniff_commit_log
from rawlog.formats.rocketmq.stage import Report
from rawlog.storage import Source
from rawlog.walk import HEAD


def recognised(files: Sequence[File]) -> list[File]:
    """The files with those that lie in the commit log under a wrong name where their first message says that it stands."""
    return [_recognised(file) for file in files]


def _recognised(file: File) -> File:
    if file.format != "rocketmq.stray" or file.problem is not None or parts(file.path)[1] != "commitlog":
        return file
    start = _address(file)
    place = replace(file.place, start_offset=start, state=None)
    return file if start < 0 else replace(file, format=COMMIT_LOG.name, place=place)


def located(files: Sequence[File], size: int, report: Report, *, move: bool) -> list[File]:
    """The files, each of the commit log where it belongs: one that was renamed must fill a gap of the log, or lie at one of its ends.

    What finds no place is left out, and told. OptionError if files are where they say and only the size is not known.
    """
    kept, renamed = [], []
    for file in files:
        start = file.place.start_offset
        named = parts(file.path)[0] == f"{start or 0:020}"
        if file.format != COMMIT_LOG.name or file.problem is not None or (named and (start or 0) % size == 0):
            kept.append(file)
        elif named and start == _address(file):
            if not move:
                raise OptionError(
                    f"{file.path}: its name is no multiple of the size of a file, {size:,}: tell commitlog_size, or repair with move"
                )
            kept.append(file)
        else:
            renamed.append((_address(file), file))
    taken = {file.place.start_offset or 0 for file in kept if file.format == COMMIT_LOG.name}
    for start, file in sorted(renamed, key=lambda pair: pair[0]):
        is_near = not taken or min(taken) - size <= start <= max(taken) + size
        if start >= 0 and start % size == 0 and start not in taken and is_near:
            taken.add(start)
            kept.append(replace(file, place=replace(file.place, start_offset=start)))
            report.notes.append(f"{file.path}: taken as the commit-log file {start:020}, where its messages stood")
        else:
            report.notes.append(f"{file.path}: left out, it has no place in the commit log")
            report.bytes_lost += file.size
    return kept


def _address(file: File) -> int:
    """Where the first message of a file says that it stands; -1 if none begins it."""
    with Source(file.path) as source:
        head = source.read(0, HEAD)
    return begin_commit_log(head, file.size).kind if sniff_commit_log(head, file.size) else -1


def readable(files: Sequence[File], report: Report) -> list[File]:
    """The files without those of `config/` that cannot be parsed, as a broker treats them: it deletes them and takes the copy before."""
    kept = []
    for file in files:
        if file.format == "rocketmq.config" and file.problem is None and not _is_readable(file):
            backup = any(other.path == f"{file.path}.bak" and _is_readable(other) for other in files)
            then = "; a broker takes the .bak, which is one version older" if backup else ""
            report.notes.append(f"{file.path}: cannot be parsed and was left out{then}")
            report.bytes_lost += file.size
        else:
            kept.append(file)
    return kept


def _is_readable(file: File) -> bool:
    with Source(file.path) as source:
        raw = source.read(0, source.size)
    try:
        config.parse(raw)
    except DataError:
        return not raw and file.place.state is not None  # an empty copy: nothing was ever in it
    return True
