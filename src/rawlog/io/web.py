"""Answers of web servers, asked with a password that no other server gets."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self


class WebError(OSError):
    """A server did not give the answer; the text says why and has no secret."""


def fetch(
    url: str,
    *,
    user: str | None = None,
    form: Mapping[str, str] | None = None,
    accept: str = "application/json",
    seconds: float,
    largest: int,
) -> bytes:
    """What a server answers to a GET, or to a POST of a `form`, within some seconds. `user` is `name:password`.

    Only the server that `url` names gets the password: one that it redirects to is asked without. A redirect from https to http, to
    something that is not the web, or of a form, is refused. WebError if there is no answer, or one of more than `largest` bytes.
    """
    data = None if form is None else urllib.parse.urlencode(form).encode()
    request = urllib.request.Request(url, data, {"Accept": accept})  # noqa: S310  (the opener knows http and https only)
    if user is not None:
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(user.encode()).decode()}")
    pieces, size = [], 0
    deadline = _Deadline(seconds)
    try:
        with deadline, _opener(deadline).open(request, timeout=seconds) as answer:
            while piece := answer.read1(1 << 20):
                size += len(piece)
                pieces.append(piece)
                if size > largest:
                    raise WebError(f"an answer of more than {largest:,} bytes")
        deadline.check()
    except urllib.error.HTTPError as error:
        error.close()
        raise WebError(_refusal(error, url, has_password=user is not None)) from None
    except urllib.error.URLError as error:
        deadline.check()
        raise WebError(str(error.reason)) from None
    except WebError:
        raise
    except (OSError, ValueError) as error:  # http.client raises some of both
        deadline.check()
        raise WebError(str(error) or type(error).__name__) from None
    except Exception as error:
        deadline.check()
        raise WebError(type(error).__name__) from None
    return b"".join(pieces)


def _refusal(error: urllib.error.HTTPError, url: str, *, has_password: bool) -> str:
    text = f"answers {error.code} {error.reason}"
    place = urllib.parse.urlsplit(str(error.url))
    if has_password and _origin(str(error.url)) != _origin(url):
        return f"redirects to {place.scheme}://{place.netloc}, which {text}: it gets no password; name it instead if you trust it"
    return text


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Scheme, host and port: what makes a server the same one."""
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects of a GET. Headers that urllib does not redirect, the password among them, go to the same server only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        before, after = _origin(req.full_url), _origin(newurl)
        if after[0] not in ("http", "https") or (before[0], after[0]) == ("https", "http"):
            fp.close()
            raise urllib.error.URLError(f"redirects from {before[0]} to {after[0]}, which is refused")
        if req.data is not None:
            raise urllib.error.HTTPError(req.full_url, code, f"{msg}: a redirect, which is not followed", headers, fp)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is None:
            return None
        request.remove_header(
            "Proxy-authorization"
        )  # the proxy's own password: it is added again where there is a proxy
        if before == after:
            request.unredirected_hdrs.update(req.unredirected_hdrs)
        return request


class _Deadline:
    """Ends connections when their time is over: the time limit of a socket begins anew with every byte that comes."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._shut_down)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            for connection in self._connections:
                connection.close()
            self._connections.clear()

    def check(self) -> None:
        """WebError if the time is over."""
        if time.monotonic() > self._end:
            raise WebError(f"no complete answer within {self._seconds:.0f} s")

    def connect(self, *place: Any, **options: Any) -> socket.socket:
        """Connect, as `socket.create_connection` does; the duplicate stays a handle on the connection when TLS takes the socket over."""
        connection = socket.create_connection(*place, **options)
        with self._lock:
            self._connections.append(connection.dup())
        return connection

    def _shut_down(self) -> None:
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Web(urllib.request.AbstractHTTPHandler):
    """Asks http and https over connections that end at a deadline."""

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(partial(self._connection, http.client.HTTPConnection), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        return self.do_open(partial(self._connection, http.client.HTTPSConnection), req)

    def _connection(self, kind: Callable[..., Any], host: str, **options: Any) -> Any:
        connection = kind(host, **options)
        connection._create_connection = self._deadline.connect
        return connection


def _opener(deadline: _Deadline) -> urllib.request.OpenerDirector:
    """What asks http and https, and nothing else; by the proxy of the environment."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Web(deadline),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    return opener
