"""The application: who may ask, which page answers, and how errors are shown."""

from __future__ import annotations

import hmac
import ipaddress
import itertools
import logging
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from functools import partial
from importlib import resources
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from rawlog.browser import asking, shell
from rawlog.browser.checks import Checks
from rawlog.browser.opened import Opened
from rawlog.browser.request import Query
from rawlog.browser.views import Views
from rawlog.core.errors import AccessError, DataError, RawlogError
from rawlog.pages.frame import asset

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Download = tuple[str, str, Iterator[bytes]]

#: Scripts and styles are files of this server; nothing else is loaded, nothing is sent anywhere else, no page is shown inside another.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
#: Requests that are answered at the same time; others wait.
AT_ONCE = 4
ASSETS = {
    "style.css": "text/css",
    "page.js": "text/javascript",
    "browse.css": "text/css",
    "browse.js": "text/javascript",
}

log = logging.getLogger("rawlog.browser")


def application(opened: Opened, checks: Checks, token: str, hosts: tuple[str, ...] = ()) -> Guard:
    """The pages over what was opened, for whoever knows the token. `hosts` are names of this server besides addresses."""
    views = Views(opened, checks)
    limiter: list[anyio.CapacityLimiter] = []

    def shown(make: Callable[[Query], str]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return HTMLResponse(*await _in_thread(limiter, partial(_page, make, request.scope["query_string"])))

        return answer

    def given(make: Callable[[Query], Download]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            found = await _in_thread(limiter, partial(_download, make, request.scope["query_string"]))
            if isinstance(found[1], int):
                return HTMLResponse(*found)
            kind, name, pieces = found
            headers = {"content-disposition": f'attachment; filename="{name}"'}
            return StreamingResponse(iterate_in_threadpool(pieces), media_type=kind, headers=headers)

        return answer

    routes = [
        Route("/", lambda request: RedirectResponse("at"), methods=["GET"]),
        Route("/at", shown(views.files)),
        Route("/rows", shown(views.rows)),
        Route("/bytes", shown(views.bytes)),
        Route("/findings", shown(views.findings)),
        Route("/sql", shown(partial(asking.sql_page, opened))),
        Route("/keys", shown(lambda query: shell.keys_page())),
        Route("/export", given(partial(asking.export_rows, views))),
        Route("/answer", given(partial(asking.export_answer, opened))),
        Route("/assets/{name}", _asset),
    ]
    return Guard(Starlette(routes=routes), token, hosts)


async def _in_thread(limiter: list[anyio.CapacityLimiter], work: Callable[[], Any]) -> Any:
    if not limiter:  # it belongs to the loop that runs the server
        limiter.append(anyio.CapacityLimiter(AT_ONCE))
    return await anyio.to_thread.run_sync(work, limiter=limiter[0])


def _page(make: Callable[[Query], str], raw: bytes) -> tuple[str, int]:
    """A page with its status: what cannot be shown is a page that says why."""
    try:
        return make(Query.parse(raw)), 200
    except RawlogError as error:
        status = 404 if isinstance(error, AccessError) else 422 if isinstance(error, DataError) else 400
        return shell.message("This cannot be shown", str(error)), status
    except Exception as error:
        log.exception("a page failed")
        return shell.message("This page failed", f"{type(error).__name__}: {error}"), 500


def _download(make: Callable[[Query], Download], raw: bytes) -> Download | tuple[str, int]:
    """A download whose first piece is made: an error before it is a page."""
    try:
        kind, name, pieces = make(Query.parse(raw))
        first = next(pieces, b"")
    except RawlogError as error:
        return shell.message("This cannot be exported", str(error)), 400
    except Exception as error:
        log.exception("an export failed")
        return shell.message("This export failed", f"{type(error).__name__}: {error}"), 500
    return kind, name, itertools.chain((first,), pieces)


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        return PlainTextResponse("no such file", 404)
    own = name.startswith("browse")
    content = (resources.files("rawlog.browser") / "assets" / name).read_text("utf-8") if own else asset(name)
    return Response(content, media_type=ASSETS[name], headers={"cache-control": "private, max-age=3600"})


class Guard:
    """In front of everything: only GET, only by an address or name of this machine, only with the token. It adds the headers of answers."""

    def __init__(self, app: Starlette, token: str, hosts: tuple[str, ...]) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        sending = partial(_with_headers, send)
        if refused is not None:
            await refused(scope, receive, sending)
            return
        if scope["path"] == f"/{self.token}":
            await RedirectResponse(f"/{self.token}/at")(scope, receive, sending)
            return
        await self.app({**scope, "root_path": f"/{self.token}"}, receive, sending)

    def _refused(self, scope: Scope) -> Response | None:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET: nothing here can be changed\n", 405, headers={"allow": "GET, HEAD"})
        named = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(named) != 1 or not is_own_host(named[0], self.hosts):
            return PlainTextResponse("the Host of this request is not this server\n", 421)
        first = scope["path"].split("/")[1] if "/" in scope["path"] else ""
        if not hmac.compare_digest(first.encode("utf-8", "replace"), self.token.encode()):
            return PlainTextResponse("use the address that `rawlog browse` printed: it has a token\n", 403)
        return None


def is_own_host(host: str, names: tuple[str, ...] = ()) -> bool:
    """Whether a Host header is an address, `localhost` or a given name: another name may be one that was made to lead here."""
    name = host.strip().lower()
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") <= 1:
        name = name.partition(":")[0]
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _with_headers(send: Send, message: MutableMapping[str, Any]) -> None:
    if message["type"] == "http.response.start":
        given = {name.lower() for name, _ in message["headers"]}
        more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
        message = {**message, "headers": [*message["headers"], *more]}
    await send(message)
