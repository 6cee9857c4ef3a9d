"""The server: a socket on this machine, a token, and a thread that answers."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from rawlog.engines import choice
from rawlog.model.errors import AccessError, RawlogError, missing
from rawlog.model.finding import Finding, Findings
from rawlog.model.job import Progress
from rawlog.pages.browser.files import OpenedPaths
from rawlog.pages.browser.statement import Statements
from rawlog.reading.inspect import RuleChoice
from rawlog.reading.tree import Tree
from rawlog.verbs.verify import Verify

#: Seconds that requests under way have at the end, and that their threads are waited for.
PATIENCE, LONGEST = 3, 30


class Server:
    """A browser that is being served: open its `url`. Use it as a context manager, or call `close()`, to end it."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        format: str | None = None,
    ) -> None:
        """AccessError for a path that does not exist, an address that cannot be used, or if packages are missing."""
        try:
            import uvicorn

            from rawlog.pages.browser.app import application
        except ImportError as error:
            raise missing("the web server of the browser", "browse") from error
        opened = OpenedPaths(paths, format=format)
        self.token = secrets.token_urlsafe(24)
        self.checks, self.statements = Checks(), Statements()
        self._socket = _bind(host, port)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        names = () if is_loopback(host) else (host.lower(), socket.gethostname().lower())
        app = application(opened, self.checks, self.statements, self.token, names)
        settings: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "lifespan": "off"}
        settings |= {
            "limit_concurrency": 64,
            "timeout_keep_alive": 5,
            "timeout_graceful_shutdown": PATIENCE,
            "ws": "none",
        }
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self._server = uvicorn.Server(uvicorn.Config(app, http="h11", **settings))
        self._thread = threading.Thread(target=self._run, name="rawlog-browse", daemon=True)
        self._thread.start()
        self._warm_up = threading.Thread(
            target=_warm_up, args=(opened, self.statements), name="rawlog-warm-up", daemon=True
        )
        self._warm_up.start()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])

    @property
    def url(self) -> str:
        """The address to open, with the token."""
        shown = self.host if self.host not in ("", "0.0.0.0", "::") else socket.gethostname()  # noqa: S104 - only compared
        return f"http://{f'[{shown}]' if ':' in shown else shown}:{self.port}/{self.token}/at"

    def wait(self) -> None:
        """Serve until the process is interrupted, or `close` is called."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """End the server."""
        self.checks.stop()
        self.statements.close()
        self._server.should_exit = True
        # The interpreter must not end while a thread is in Arrow or a kernel.
        self._thread.join(LONGEST)
        self._warm_up.join(LONGEST)
        self.checks.wait(LONGEST)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """A link to the page, for a notebook."""
        return f'<a href="{self.url}" target="_blank" rel="noopener noreferrer">rawlog browse</a>'

    def __repr__(self) -> str:
        return f"<rawlog.Server http://{self.host}:{self.port}/…>"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(host: str, port: int) -> socket.socket:
    """A socket at an address; the port is free at once after a server before it ended."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        bound = socket.socket(family, kind)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
            bound.listen(128)  # who asks before the server runs waits a moment
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise AccessError(f"{host}:{port}: {error.strerror or error}") from None
    return bound


def _warm_up(opened: OpenedPaths, statements: Statements) -> None:
    """Read one row, so that what reading needs is imported when somebody asks; and start a process for the first statement."""
    from rawlog.pages.browser.rows import rows_of
    from rawlog.reading.select import Selection

    with contextlib.suppress(Exception):  # the first request reports it
        listing = opened.listing()
        scope = listing.scope("")
        rows_of(listing, scope, scope.default_table, Selection(errors="skip", from_offset=0), most=1)
    statements.prepare()


# ----------------------------------------------------------------------------------------------------------------------
# Verification in the background: one at a time, and what those before it found.


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

    def wait(self, seconds: float) -> None:
        """Wait for the result for a while."""
        until = time.monotonic() + seconds
        while not self.is_done and time.monotonic() < until:
            time.sleep(0.02)

    @property
    def is_done(self) -> bool:
        return self.findings is not None or self.failure is not None


class Checks:
    """The verifications of a server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._by_name: dict[str, Check] = {}
        self._ended = threading.Event()

    def get(self, name: str) -> Check | None:
        """The verification of a scope, if there was one."""
        return self._by_name.get(name)

    def start(self, name: str, tree: Tree) -> Check:
        """Verify some files, unless that is under way."""
        with self._lock:
            running = self._by_name.get(name)
            if running is not None and not running.is_done:
                return running
            check = self._by_name[name] = Check(name, tree)
            for old in [scope for scope, check in self._by_name.items() if check.is_done][:-KEPT]:
                del self._by_name[old]
        threading.Thread(target=self._run, args=(check,), name="rawlog-verify", daemon=True).start()
        return check

    def findings_in(self, path: str) -> list[Finding]:
        """The findings in a file so far."""
        findings: dict[Finding, None] = {}
        for check in list(self._by_name.values()):
            findings |= dict.fromkeys(check.by_path.get(path, ()))
        return list(findings)

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
                findings = choice.run(Verify(RuleChoice()), check.tree, threads=1, progress=progress).findings
            except _Cancelled:
                check.failure = "the server ended"
            except RawlogError as error:
                check.failure = str(error).splitlines()[0]
            except Exception as error:
                check.failure = f"{type(error).__name__}: {error}"
            else:
                for finding in findings:
                    if finding.path is not None:
                        check.by_path.setdefault(finding.path, []).append(finding)
                check.findings = findings
