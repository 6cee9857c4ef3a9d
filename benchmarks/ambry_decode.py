"""How fast a log segment of Ambry becomes Arrow columns: scanned, checksums compared, blobs read. No other program reads one alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from data import ambry_log
from harness import Bench, Limit, Way, Work, case, main

import rawlog
from rawlog.io import checksums

WINDOW = 4 << 20


def ways(bench: Bench, blob: int | None) -> Iterator[Way]:
    path = bench.folder / "9" / "0_0_log"
    path.parent.mkdir()
    bench.rows = ambry_log(path, bench.size * 1_000_000, blob)
    bench.bytes = path.stat().st_size
    log = rawlog.open(path)
    data, buffer = np.fromfile(path, np.uint8), np.empty(WINDOW, np.uint8)

    def copy_and_checksum() -> int:
        for start in range(0, data.size, WINDOW):
            window = data[start : start + WINDOW]
            buffer[: window.size] = window
            checksums.crc32(buffer[: window.size])
        return bench.rows

    yield Work("rawlog", lambda: sum(batch.num_rows for batch in log.table("records").batches()))
    yield Limit("memory copy and CRC-32", copy_and_checksum)


@case("blobs of 0 to 64 KiB", size=256, rows="blobs")
def mixed(bench: Bench) -> Iterator[Way]:
    """All columns of `records` from blobs of 9 KB in the mean."""
    return ways(bench, None)


@case("blobs of 1 KiB", size=256, rows="blobs")
def small(bench: Bench) -> Iterator[Way]:
    """All columns of `records` from small blobs."""
    return ways(bench, 1024)


if __name__ == "__main__":
    main(__doc__)
