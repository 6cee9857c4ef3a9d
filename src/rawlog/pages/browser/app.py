"""The application: who may ask, which page answers, and how errors are shown."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, MutableMapping
from contextlib import asynccontextmanager
from functools import cached_property, partial
from importlib import resources
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from rawlog.model.errors import AccessError, DataError, RawlogError
from rawlog.pages.browser import shell, sql
from rawlog.pages.browser.files import OpenedPaths
from rawlog.pages.browser.server import Checks
from rawlog.pages.browser.shell import Ending, Query
from rawlog.pages.browser.statement import Statements
from rawlog.pages.browser.views import Views
from rawlog.pages.frame import asset

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Download = tuple[str, str, Generator[bytes]]

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
#: The same for statements of SQL.
STATEMENTS = 2
ASSETS = {
    "style.css": "text/css",
    "page.js": "text/javascript",
    "browse.css": "text/css",
    "browse.js": "text/javascript",
}

log = logging.getLogger("rawlog.pages.browser")


def application(
    opened: OpenedPaths, checks: Checks, statements: Statements, token: str, hosts: tuple[str, ...] = ()
) -> Guard:
    """The pages over what was opened, for whoever knows the token. `hosts` are names of this server besides addresses."""
    views = Views(opened, checks)
    # Statements wait for one another, and no other page waits for them.
    pages, queries = _Threads(AT_ONCE), _Threads(STATEMENTS)

    def page_route(make: Callable[[Query], str], threads: _Threads = pages) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            ending = Ending()
            async with _watch(request.receive, ending):
                page = await threads.run(partial(_page, make, request.scope["query_string"], ending))
            return HTMLResponse(*page)

        return answer

    def download_route(
        make: Callable[[Query], Download], threads: _Threads = pages
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            ending = Ending()
            async with _watch(request.receive, ending):
                download = await threads.run(partial(_download, make, request.scope["query_string"], ending))
            if isinstance(download[1], int):
                return HTMLResponse(*download)
            (kind, name, pieces), first = download
            headers = {"content-disposition": f'attachment; filename="{name}"'}
            return _Streaming(ending, first, pieces, media_type=kind, headers=headers)

        return answer

    routes = [
        Route("/", lambda request: RedirectResponse("at"), methods=["GET"]),
        Route("/at", page_route(views.files)),
        Route("/rows", page_route(views.rows)),
        Route("/bytes", page_route(views.bytes)),
        Route("/findings", page_route(views.findings)),
        Route("/sql", page_route(partial(sql.sql_page, opened, statements), queries)),
        Route("/keys", page_route(lambda query: shell.keys_page())),
        Route("/export", download_route(partial(sql.export_rows, views))),
        Route("/answer", download_route(partial(sql.export_answer, opened, statements), queries)),
        Route("/assets/{name}", _asset),
    ]
    return Guard(Starlette(routes=routes), token, hosts)


class _Threads:
    """Threads that work at the same time, so many of them; more work waits."""

    def __init__(self, count: int) -> None:
        self.count = count

    @cached_property
    def limiter(self) -> anyio.CapacityLimiter:
        """It belongs to the loop that runs the server, and is made in it."""
        return anyio.CapacityLimiter(self.count)

    async def run(self, work: Callable[[], Any]) -> Any:
        return await anyio.to_thread.run_sync(work, limiter=self.limiter)


@asynccontextmanager
async def _watch(receive: Receive, ending: Ending) -> AsyncIterator[None]:
    """End a request when whoever asked is gone, as long as the block runs."""

    async def wait() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await anyio.to_thread.run_sync(ending.end)

    watch = asyncio.ensure_future(wait())
    try:
        yield
    finally:
        watch.cancel()


class _Streaming(StreamingResponse):
    """An answer in pieces; what makes them ends with it."""

    def __init__(self, ending: Ending, first: bytes, pieces: Generator[bytes], **more: Any) -> None:
        super().__init__(iterate_in_threadpool(itertools.chain((first,), pieces)), **more)
        self.ending, self.pieces = ending, pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with _watch(receive, self.ending):
                await self.stream_response(send)
        finally:
            self.ending.end()
            await anyio.to_thread.run_sync(self.pieces.close)


def _page(make: Callable[[Query], str], raw: bytes, ending: Ending) -> tuple[str, int]:
    """A page with its status: what cannot be shown is a page that says why."""
    try:
        return make(Query.parse(raw, ending)), 200
    except RawlogError as error:
        status = 404 if isinstance(error, AccessError) else 422 if isinstance(error, DataError) else 400
        return shell.message("This cannot be shown", str(error)), status
    except Exception as error:
        log.exception("a page failed")
        return shell.message("This page failed", f"{type(error).__name__}: {error}"), 500


def _download(
    make: Callable[[Query], Download], raw: bytes, ending: Ending
) -> tuple[Download, bytes] | tuple[str, int]:
    """A download and its first piece: an error before that is a page."""
    try:
        download = make(Query.parse(raw, ending))
        return download, next(download[2], b"")
    except RawlogError as error:
        return shell.message("This cannot be exported", str(error)), 400
    except Exception as error:
        log.exception("an export failed")
        return shell.message("This export failed", f"{type(error).__name__}: {error}"), 500


async def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        return PlainTextResponse("no such file", 404)
    is_browse_asset = name.startswith("browse")
    content = (
        (resources.files("rawlog.pages.browser") / "assets" / name).read_text("utf-8")
        if is_browse_asset
        else asset(name)
    )
    return Response(content, media_type=ASSETS[name], headers={"cache-control": "private, max-age=3600"})


class Guard:
    """In front of everything: only GET, only by an address or name of this machine, only with the token. It adds the headers of answers."""

    def __init__(self, app: Starlette, token: str, hosts: tuple[str, ...]) -> None:
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            return
        refused = self._refuse(scope)
        sending = partial(_with_headers, send)
        if refused is not None:
            await refused(scope, receive, sending)
            return
        if scope["path"] == f"/{self.token}":
            await RedirectResponse(f"/{self.token}/at")(scope, receive, sending)
            return
        await self.app({**scope, "root_path": f"/{self.token}"}, receive, sending)

    def _refuse(self, scope: Scope) -> Response | None:
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
        names = {name.lower() for name, _ in message["headers"]}
        more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in names]
        message = {**message, "headers": [*message["headers"], *more]}
    await send(message)
