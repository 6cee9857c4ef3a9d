"""Progress on stderr: a line that redraws itself, only on a terminal, gone when the work is done."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rawlog.core.text import counted, size_text

INTERVAL = 0.2
#: Work that is done before this many seconds shows nothing.
PATIENCE = 0.5
#: Seconds after which the pace says something about the rest: at first, imports, compilation and caches take the time.
ESTIMATE_AFTER = 5.0


class Progress:
    """A context manager; `step` says how far the work is. Safe to call from any thread."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done, self.rows = what, total, 0, 0
        self.active = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, size: int) -> None:
        """So many more bytes are done."""
        self.done += size

    def at(self, done: int, rows: int = 0) -> None:
        """So many bytes are done in all, and so many rows came of them."""
        self.done, self.rows = done, rows

    def __enter__(self) -> Self:
        if self.active:
            self._thread = threading.Thread(target=self._draw, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def text(self, spent: float) -> str:
        """The line as it is after so many seconds."""
        told = [self.what]
        if self.total:
            told.append(f"{min(100, 100 * self.done // self.total)} %")
        told += [size_text(self.done), *([counted(self.rows, "row")] if self.rows else [])]
        told += [f"{size_text(int(self.done / spent))}/s", f"{int(spent)} s"]
        if 0 < self.done < self.total and spent >= ESTIMATE_AFTER:
            told.append(f"{int(spent * (self.total - self.done) / self.done) + 1} s left")
        return "  ".join(told)

    def _draw(self) -> None:
        drawn = False
        while not self._stop.wait(INTERVAL):
            spent = time.monotonic() - self._begun
            if spent < PATIENCE:
                continue
            sys.stderr.write(f"\r\x1b[K{self.text(spent)}")
            sys.stderr.flush()
            drawn = True
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
