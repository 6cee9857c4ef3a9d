"""Verification in the background: one at a time, and what those before it found."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from rawlog.core.errors import RawlogError
from rawlog.core.findings import Finding, Findings
from rawlog.engines import local
from rawlog.jobs.job import Progress
from rawlog.jobs.verify import Verify
from rawlog.reading.inspection import Chosen
from rawlog.reading.tree import Tree

#: So many results are kept.
KEPT = 20


class _Cancelled(Exception):
    """The server ends."""


@dataclass(eq=False)
class Check:
    """A verification of some files: under way, or with its result."""

    name: str
    tree: Tree
    size: int = 0
    findings: Findings | None = None
    failure: str | None = None
    by_path: dict[str, list[Finding]] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return self.findings is not None or self.failure is not None


class Checks:
    """The verifications of a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._made: dict[str, Check] = {}
        self._ended = threading.Event()

    def get(self, name: str) -> Check | None:
        """The verification of a scope, if there was one."""
        return self._made.get(name)

    def start(self, name: str, tree: Tree) -> Check:
        """Verify some files, unless that is under way."""
        with self._lock:
            found = self._made.get(name)
            if found is not None and not found.is_done:
                return found
            made = self._made[name] = Check(name, tree)
            for old in [one for one, check in self._made.items() if check.is_done][:-KEPT]:
                del self._made[old]
        threading.Thread(target=self._run, args=(made,), name="rawlog-verify", daemon=True).start()
        return made

    def found_in(self, path: str) -> list[Finding]:
        """What was found in a file so far."""
        found: dict[Finding, None] = {}
        for check in list(self._made.values()):
            found |= dict.fromkeys(check.by_path.get(path, ()))
        return list(found)

    def stop(self) -> None:
        """End what is under way."""
        self._ended.set()

    def wait(self, seconds: float) -> None:
        """Wait for the end of what is under way."""
        if self._turn.acquire(timeout=seconds):
            self._turn.release()

    def _run(self, check: Check) -> None:
        def progress(now: Progress) -> None:
            if self._ended.is_set():
                raise _Cancelled
            check.size = now.size

        with self._turn:  # one at a time
            try:
                progress(Progress())
                found = local.run(Verify(Chosen()), check.tree, threads=1, progress=progress).findings
            except _Cancelled:
                check.failure = "the server ended"
            except RawlogError as error:
                check.failure = str(error).splitlines()[0]
            except Exception as error:
                check.failure = f"{type(error).__name__}: {error}"
            else:
                for one in found:
                    if one.path is not None:
                        check.by_path.setdefault(one.path, []).append(one)
                check.findings = found
