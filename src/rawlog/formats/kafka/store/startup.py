"""What a broker does first with a partition directory: finish or undo a compaction that was interrupted, and find the segment to append to.

Files are not touched; those that a broker would delete get a word for it in their place, and those it would rename into place are
read as if it had.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from rawlog.core.format import File
from rawlog.formats.kafka.paths import split


def settle(files: Sequence[File]) -> Sequence[File]:
    """The same files, with the states that a broker's start would give them; remote segments become files of their partitions."""
    if any(file.place.remote is not None for file in files):
        from rawlog.formats.kafka.store.tiers import attach  # only tiered storage needs what it imports

        files = attach(files)
    groups: dict[str | None, list[File]] = defaultdict(list)
    for file in files:
        groups[file.place.group].append(file)
    settled: dict[str, File] = {}
    for group in groups.values():
        if any(file.place.state == "swap" for file in group):
            group = _swapped(group)
            settled |= {file.path: file for file in group}
        settled |= {file.path: file for file in _sealed(group)}
    return [settled.get(file.path, file) for file in files]


def _sealed(group: list[File]) -> list[File]:
    """The segments of a directory that others follow: a broker appends only to the last one."""
    logs = [file for file in group if file.format == "kafka.log" and file.place.state is None]
    last = max((file.place.start_offset or 0 for file in logs), default=0)
    followed = [file for file in logs if (file.place.start_offset or 0) < last]
    return [replace(file, place=replace(file.place, sealed=True)) for file in followed]


def _swapped(group: list[File]) -> list[File]:
    """A directory in which a compaction had come as far as its last step."""
    from rawlog.formats.kafka.store.checks import end_offset

    cleaned = [file.place.start_offset or 0 for file in group if file.place.state == "cleaned"]
    undone = min(cleaned, default=1 << 63)
    ready = {file.path for file in group if file.place.state == "swap" and (file.place.start_offset or 0) < undone}
    logs = [file for file in group if file.path in ready and split(file.path)[1].endswith(".log.swap")]
    # Where the logs have their names already, what is next to them still gets its own.
    low = min((file.place.start_offset or 0 for file in logs), default=0)
    high = max((end_offset([file]) for file in logs), default=0)
    renamed = {path.removesuffix(".swap") for path in ready}
    result = []
    for file in group:
        start = file.place.start_offset
        if file.path in ready:
            file = replace(file, place=replace(file.place, state=None))
        elif file.place.state is None and start is not None and (low <= start < high or file.path in renamed):
            file = replace(file, place=replace(file.place, state="replaced"))
        result.append(file)
    return result
