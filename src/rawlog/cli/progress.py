"""Progress on stderr: a line that redraws itself, only on a terminal, gone when the work is done."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Self

from rawlog.text import size_text

INTERVAL = 0.2
#: Work that is done before this many seconds shows nothing.
PATIENCE = 0.5


class Progress:
    """A context manager; `step` says how far the work is. Safe to call from any thread."""

    def __init__(self, what: str, total: int) -> None:
        self.what, self.total, self.done = what, total, 0
        self.active = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def step(self, size: int) -> None:
        """So many more bytes are done."""
        self.done += size

    def at(self, done: int) -> None:
        """So many bytes are done in all."""
        self.done = done

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

    def _draw(self) -> None:
        drawn = False
        while not self._stop.wait(INTERVAL):
            spent = time.monotonic() - self._begun
            if spent < PATIENCE:
                continue
            share = f"{min(100, 100 * self.done // self.total)} %" if self.total else ""
            rate = size_text(int(self.done / spent))
            sys.stderr.write(f"\r\x1b[K{self.what}  {share}  {size_text(self.done)}  {rate}/s  {int(spent)} s")
            sys.stderr.flush()
            drawn = True
        if drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
