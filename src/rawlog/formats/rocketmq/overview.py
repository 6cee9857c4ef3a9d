"""What `report` shows of a RocketMQ store: kinds of messages, queues, delayed messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.panel import Look, Panel
from rawlog.core.store import Store
from rawlog.core.verb import Line, Section, Tone
from rawlog.formats.rocketmq.kernels import entries as kernels
from rawlog.formats.rocketmq.layouts import CODEC_MASK, CODEC_SHIFT, TRANSACTION_MASK, TRANSACTIONS, SysFlag
from rawlog.formats.rocketmq.messages import Messages
from rawlog.formats.rocketmq.store import state

MOST = 500
#: By the number in the flags; 0 is how old clients wrote zlib.
CODECS = ("zlib", "lz4", "zstd", "zlib")


def tally(frames: Frames, file: File) -> dict[str, dict[str, tuple[int, int]]]:
    """Messages and bytes by codec and by their part in a transaction; those that were consumed again."""
    rows = Messages.take(frames, file, with_crc=False)
    flags, sizes = rows[kernels.F_SYS_FLAG], rows[kernels.F_SIZE]
    kinds = (flags & TRANSACTION_MASK) >> 2
    codec = np.where(flags & int(SysFlag.COMPRESSED), (flags & CODEC_MASK) >> CODEC_SHIFT, -1)
    found = {"codec": {}, "transaction": {}}  # type: dict[str, dict[str, tuple[int, int]]]
    for number, name in enumerate(TRANSACTIONS):
        of = kinds == number
        if of.any() and name != "none":
            found["transaction"][name] = (int(of.sum()), int(sizes[of].sum()))
    for number in np.unique(codec).tolist():
        of = codec == number
        name = "none" if number < 0 else CODECS[number] if number < len(CODECS) else "invalid"
        count, size = found["codec"].get(name, (0, 0))
        found["codec"][name] = (count + int(of.sum()), size + int(sizes[of].sum()))
    return {aspect: rows for aspect, rows in found.items() if rows}


def overview(files: Store) -> Iterator[Panel]:
    """The queues with their offsets, and the delay levels with what waits in them."""
    queues = [
        (topic, str(queue), f"{low:,}", f"{high:,}", f"{high - low:,}")
        for (_, topic, queue), (low, high) in sorted(state.queue_bounds(files).items(), key=lambda one: one[0][1:])
    ]
    head = ("topic", "queue", "first offset", "next offset", "messages")
    about = "As the consume queues have them. Messages whose commit log was deleted do not count."
    yield Panel("rocketmq", Section("Queues", queues, MOST, head), about, path=files.path)
    delays = [
        (
            str(row["level"]),
            Line(f"{row['pending'] or 0:,}", Tone.CHANGED if row["pending"] else None),
            "" if row["delay_ms"] is None else _duration(row["delay_ms"]),
            f"{row['offset']:,}",
            "" if row["max_offset"] is None else f"{row['max_offset']:,}",
        )
        for batch in state.delays(files, {})
        for row in batch.to_pylist()
    ]
    head = ("delay level", "waiting", "delay", "delivered up to", "next offset")
    about = "Delayed messages that were not delivered yet. They are delivered when a broker runs on the store and their time has come."
    yield Panel("rocketmq", Section("Delayed messages", delays, None, head), about, Look.BARS, files.path)


def _duration(milliseconds: int) -> str:
    for unit, size in (("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds >= size and milliseconds % size == 0:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds:,} ms"
