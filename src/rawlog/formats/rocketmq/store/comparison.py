"""Consume queues beside what the commit log says they must hold, for the rules that compare the two."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rawlog.core.format import File
from rawlog.core.layout import Layout
from rawlog.formats.rocketmq.layouts import BATCH_UNIT, PRE_BLANK_SIZE, UNIT
from rawlog.formats.rocketmq.store.delays import ext_tags
from rawlog.formats.rocketmq.store.dispatch import Queue
from rawlog.formats.rocketmq.store.rebuild import placed
from rawlog.formats.rocketmq.store.store import Store, stores_of
from rawlog.io.storage import Source


def units_of(files: list[File], layout: Layout) -> NDArray[np.void]:
    """The valid units of a queue's files, end to end."""
    pieces = []
    for file in files:
        with Source(file.path) as source:
            rows = layout.view(np.frombuffer(source.read(0, source.size), np.uint8))
        valid = (rows["physical_offset"] >= 0) & (rows["size"] > 0)
        count = int(np.argmin(valid)) if not valid.all() else len(rows)
        pieces.append(rows[:count])
        if count < len(rows):
            break
    return np.concatenate(pieces) if pieces else np.empty(0, layout.dtype)


class Comparison:
    """A queue as its files have it, beside what the commit log says."""

    def __init__(self, store: Store, queue: Queue, files: list[File]) -> None:
        self.store, self.queue, self.files = store, queue, files
        self.is_batch = bool(files) and files[0].format == "rocketmq.batchconsumequeue"
        layout = BATCH_UNIT if self.is_batch else UNIT
        self.unit_size = layout.size
        self.rows = units_of(files, layout)
        start = (files[0].place.start_offset or 0) if files else 0
        self.first = start // UNIT.size
        wanted = store.derived.queue(queue)
        self.gaps = 0
        if wanted.shape[1] and not self.is_batch:
            self.wanted_first, self.wanted, self.gaps = placed(wanted)
        else:
            self.wanted_first, self.wanted = 0, wanted
        self.addresses = self.rows["physical_offset"].astype(np.int64)
        self.is_real = self.rows["size"] != PRE_BLANK_SIZE

    def place(self, row: int) -> tuple[str, int]:
        """The file and position of a unit."""
        position = row * self.unit_size
        for file in self.files:
            if position < file.size:
                return file.path, position
            position -= file.size
        return self.files[-1].path, position


def comparisons(files: Sequence[File]) -> Iterator[Comparison]:
    """Every plain and batch queue of the stores among some files."""
    for store in stores_of(files):
        if not store.logs:
            continue
        for format in ("rocketmq.consumequeue", "rocketmq.batchconsumequeue"):
            for queue, found in sorted(store.queues(format).items()):
                yield Comparison(store, queue, found)


def tags_of(seen: Comparison) -> NDArray[np.int64]:
    """Tag hashes, looked up in the ext files where units point there."""
    return ext_tags(
        seen.rows["tag_hash"].astype(np.int64), seen.store.queues("rocketmq.consumequeueext").get(seen.queue, [])
    )


def in_missing(seen: Comparison) -> NDArray[np.bool_]:
    """Which addresses lie in commit-log files that are not there."""
    missing = np.zeros(len(seen.rows), np.bool_)
    logs = seen.store.logs
    for log, following in itertools.pairwise(logs):
        missing |= (seen.addresses >= log.stop) & (seen.addresses < following.start)
    return missing
