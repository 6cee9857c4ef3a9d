"""What `report` shows of blob stores: the operations in their logs, and the states of their blobs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from rawlog.core.format import File
from rawlog.core.frames import Frames
from rawlog.core.panel import Look, Panel
from rawlog.core.store import Store
from rawlog.core.text import size_text
from rawlog.core.verb import Section
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.reader import Messages
from rawlog.formats.ambry.store.state import STATES
from rawlog.formats.ambry.store.store import with_logs


def tally(frames: Frames, file: File) -> dict[str, dict[str, tuple[int, int]]]:
    """Messages and bytes by operation."""
    kinds, sizes = Messages(frames, check=False)["kind"], frames.sizes
    found = {one.name: kinds == int(one) for one in Kind}
    return {"operation": {name: (int(of.sum()), int(sizes[of].sum())) for name, of in found.items() if of.any()}}


def overview(files: Store) -> Iterator[Panel]:
    """The blobs of each store by state, as the store would answer now."""
    for store in with_logs(files):
        folded = store.state
        states = folded.states(int(time.time() * 1000))
        rows = []
        for number, name in enumerate(STATES):
            of = np.flatnonzero(states == number)
            put = folded.put[of]
            sizes = folded.catalog.content_size[put[put >= 0]].astype(np.int64)
            rows.append((name, f"{of.size:,}", size_text(int(sizes.sum())), f"{int((put >= 0).sum()):,}"))
        about = "Deleted and expired blobs take space until the store is compacted: rawlog compact shows how much that gives back."
        head = ("state", "blobs", "content still in the log", "blobs whose PUT is in the log")
        yield Panel("ambry", Section("Blob states", rows, None, head), about, Look.BARS, store.folder)
