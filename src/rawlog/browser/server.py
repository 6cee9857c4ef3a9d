"""The server: a socket on this machine, a token, and a thread that answers."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any, Self

from rawlog.browser.checks import Checks
from rawlog.browser.opened import Opened
from rawlog.browser.statement import Statements
from rawlog.core.errors import AccessError

MISSING = 'the packages of the browser are not installed: `pip install "rawlog[browse]"`'
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
        token: str | None = None,
        format: str | None = None,
    ) -> None:
        """AccessError for a path that does not exist, an address that cannot be used, or if packages are missing."""
        try:
            import uvicorn

            from rawlog.browser.app import application
        except ImportError as error:
            raise AccessError(MISSING) from error
        opened = Opened(paths, format=format)
        self.token = token or secrets.token_urlsafe(24)
        self.checks, self.statements = Checks(), Statements()
        self._socket = _bound(host, port)
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


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address; the port is free at once after a server before it ended."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        made = socket.socket(family, kind)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
            made.listen(128)  # who asks before the server runs waits a moment
        except OSError:
            made.close()
            raise
    except OSError as error:
        raise AccessError(f"{host}:{port}: {error.strerror or error}") from None
    return made


def _warm_up(opened: Opened, statements: Statements) -> None:
    """Read one row, so that what reading needs is imported when somebody asks; and start a process for the first statement."""
    from rawlog.browser.paging import rows_of
    from rawlog.reading.select import Selection

    with contextlib.suppress(Exception):  # the first request reports it
        listing = opened.listing()
        scope = listing.scope("")
        rows_of(listing, scope, scope.default_table, Selection(errors="skip", from_offset=0), most=1)
    statements.prepare()
