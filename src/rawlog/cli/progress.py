"""Progress on stderr: a line that redraws itself, only on a terminal, gone when the work is done; or lines of a log."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import fields
from types import TracebackType
from typing import Self

from rawlog.cli import logs
from rawlog.core.text import counted, size_text
from rawlog.jobs.job import Progress

INTERVAL = 0.2
#: Work that is done before this many seconds shows nothing.
PATIENCE = 0.5
#: Seconds after which the pace says something about the rest: at first, imports, compilation and caches take the time.
ESTIMATE_AFTER = 5.0


class Bar:
    """A context manager that is called with a job's Progress, from any thread, and draws it."""

    def __init__(self, what: str) -> None:
        self.what, self.now = what, Progress()
        self.active = sys.stderr.isatty() or logs.is_json()
        self._begun = time.monotonic()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, now: Progress) -> None:
        """How far the job is."""
        self.now = now

    def __enter__(self) -> Self:
        if self.active:
            logs.enter(self.what)
            work = self._log if logs.is_json() else self._draw
            self._thread = threading.Thread(target=work, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if logs.is_json():
            logs.enter(self.what)
            self._write("failed" if kind else "done", "error" if kind else "info")

    def text(self, spent: float) -> str:
        """The line as it is after so many seconds."""
        now = self.now
        if now.phase:
            return f"{now.phase} …  {int(spent)} s"
        words = [self.what]
        if now.total_size:
            words.append(f"{min(100, 100 * now.size // now.total_size)} %")
        words += [size_text(now.size), *([counted(now.rows, "row")] if now.rows else [])]
        words += [f"{size_text(int(now.size / spent))}/s", f"{int(spent)} s"]
        if 0 < now.size < now.total_size and spent >= ESTIMATE_AFTER:
            words.append(f"{int(spent * (now.total_size - now.size) / now.size) + 1} s left")
        return "  ".join(words)

    def _log(self) -> None:
        """A line for each phase, and one now and then."""
        phase, last = None, 0.0
        while not self._stop.wait(INTERVAL):
            # Some phases go on to say how far they are.
            spent, now = time.monotonic() - self._begun, self.now.phase.partition("  ")[0] or self.what
            if now != phase or spent - last >= logs.EVERY:
                phase, last = now, spent
                logs.enter(now)
                self._write(self.text(max(spent, INTERVAL)))

    def _write(self, message: str, level: str = "info") -> None:
        figures = {field.name: getattr(self.now, field.name) for field in fields(self.now) if field.name != "phase"}
        logs.write(level, message, {**figures, "seconds": round(time.monotonic() - self._begun, 3)})

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
