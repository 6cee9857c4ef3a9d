"""Passwords for web servers: only the server that was named gets them. Real servers on this machine answer."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rawlog.io.web import WebError, fetch
from rawlog.live.client import BrokerError, token
from rawlog.live.settings import Secret, Settings
from rawlog.model.errors import AccessError
from rawlog.reading.tree import Tree
from rawlog.values.registry import catalog_for

PASSWORD = "Basic bWU6c2VjcmV0"
SCHEMAS = [{"subject": "t-value", "version": 1, "id": 1, "schemaType": "AVRO", "schema": '"int"'}]


class Server:
    """Answers with what `reply` gives for a path: a status, and a text or the place to go to. `asked` has method, path and password,
    `for_proxy` the passwords of proxies.
    """

    def __init__(self, reply: Callable[[str], tuple[int, str]], certificate: Path | None = None) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self.for_proxy: list[str | None] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler) -> None:
                self.asked.append((handler.command, handler.path, handler.headers["Authorization"]))
                self.for_proxy.append(handler.headers["Proxy-Authorization"])
                status, text = reply(handler.path)
                handler.send_response(status)
                if status in (301, 302, 303, 307, 308):
                    handler.send_header("Location", text)
                    text = ""
                handler.send_header("Content-Length", str(len(text)))
                handler.end_headers()
                handler.wfile.write(text.encode())

            def do_POST(handler) -> None:
                handler.rfile.read(int(handler.headers["Content-Length"]))
                handler.do_GET()

            def log_message(handler, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}"

    @property
    def passwords(self) -> list[str | None]:
        return [password for _, _, password in self.asked]


@contextmanager
def serving(reply: Callable[[str], tuple[int, str]], certificate: Path | None = None) -> Iterator[Server]:
    made = Server(reply, certificate)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        thread.join()
        made.server.server_close()


@pytest.fixture
def other() -> Iterator[Server]:
    """A server that nobody named: it has schemas and tokens for everybody."""
    answers = {"/token": json.dumps({"access_token": "stolen"})}
    with serving(lambda path: (200, answers.get(path, json.dumps(SCHEMAS)))) as server:
        yield server


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate that signs itself, with its key in the same file, and is trusted here."""
    key, made = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=rawlog", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)],
        check=True, capture_output=True,
    )  # fmt: skip
    made.write_text(key.read_text() + made.read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    return made


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_hand_over_the_password_of_a_registry(
    other: Server, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """urllib sends all headers of a request to wherever it is redirected, to another host too."""
    monkeypatch.setenv("RAWLOG_REGISTRY_AUTH", "me:secret")
    with serving(lambda path: (status, f"{other.url}{path}")) as registry:
        assert catalog_for(Tree((), ()), registry.url)
    assert registry.passwords == [PASSWORD]
    assert other.passwords == [None]


def test_a_redirect_on_the_same_server_keeps_the_password(other: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_REGISTRY_AUTH", "me:secret")

    def reply(path: str) -> tuple[int, str]:
        return (200, json.dumps(SCHEMAS)) if path.startswith("/moved") else (302, f"/moved{path}")

    with serving(reply) as registry:
        assert catalog_for(Tree((), ()), registry.url)
    assert registry.passwords == [PASSWORD, PASSWORD]


def test_a_password_that_another_server_did_not_get_does_not_come_back(other: Server) -> None:
    """By way of another server to the one that was named: who leads there is not trusted."""
    replies: dict[str, tuple[int, str]] = {}
    with serving(lambda path: replies[path]) as named, serving(lambda path: (302, f"{named.url}/back")) as between:
        replies.update({"/": (302, f"{between.url}/"), "/back": (200, "{}")})
        assert fetch(f"{named.url}/", user="me:secret", seconds=30, largest=99) == b"{}"
    assert named.passwords == [PASSWORD, None]
    assert between.passwords == [None]


def test_the_other_server_is_named_if_it_wants_a_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_REGISTRY_AUTH", "me:secret")
    with serving(lambda path: (401, "")) as strict, serving(lambda path: (302, strict.url)) as registry:
        with pytest.raises(AccessError, match=f"redirects to {strict.url}, which answers 401 .*: it gets no password"):
            catalog_for(Tree((), ()), registry.url)
        with pytest.raises(AccessError, match=f"{strict.url}: answers 401"):
            catalog_for(Tree((), ()), strict.url)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_does_not_hand_over_the_secret_of_a_client(other: Server, status: int) -> None:
    """A form is sent to the server that was named, and to no other, with a password or without."""
    with serving(lambda path: (status, f"{other.url}/token")) as named:
        settings = Settings(
            bootstrap=(), token_url=f"{named.url}/token", oauth_client="me", oauth_secret=Secret("secret")
        )
        with pytest.raises(BrokerError, match=f"no token: answers {status}"):
            token(settings)
    assert named.passwords == [PASSWORD]
    assert other.asked == []


def test_a_redirect_from_https_to_http_is_refused(other: Server, certificate: Path) -> None:
    refused = pytest.raises(WebError, match="redirects from https to http, which is refused")
    with serving(lambda path: (302, f"{other.url}/"), certificate) as named, refused:
        fetch(f"{named.url}/", user="me:secret", seconds=30, largest=99)
    assert named.passwords == [PASSWORD]
    assert other.asked == []


def test_the_password_of_a_proxy_is_for_the_proxy(other: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """urllib sends it on to where a server behind the proxy redirects, past the proxy too."""
    here = f"localhost:{other.server.server_port}"
    replies = {"http://registry.example/": (302, "/again"), "http://registry.example/again": (302, f"http://{here}/")}
    with serving(lambda path: replies[path]) as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.replace("://", "://me:secret@"))
        monkeypatch.setenv("no_proxy", "localhost")
        fetch("http://registry.example/", seconds=10, largest=1000)
    assert proxy.for_proxy == [PASSWORD, PASSWORD]
    assert other.for_proxy == [None]


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "gopher://127.0.0.1/"])
def test_a_redirect_leads_to_the_web_only(place: str) -> None:
    with serving(lambda path: (302, place)) as named, pytest.raises(WebError):
        fetch(f"{named.url}/", seconds=30, largest=99)


def test_an_answer_is_bounded() -> None:
    with serving(lambda path: (200, "x" * 100)) as named:
        assert len(fetch(named.url, seconds=30, largest=100)) == 100
        with pytest.raises(WebError, match="more than 99 bytes"):
            fetch(named.url, seconds=30, largest=99)


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_an_answer_that_trickles_ends_at_the_time_limit(is_encrypted: bool, request: pytest.FixtureRequest) -> None:
    """The time was looked at between pieces of the body: a server that sent a byte of its headers now and then held us for ever."""
    listener: socket.socket = socket.create_server(("127.0.0.1", 0))
    if is_encrypted:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(request.getfixturevalue("certificate"))
        listener = context.wrap_socket(listener, server_side=True)
    is_gone = threading.Event()

    def trickle() -> None:
        connection, _ = listener.accept()
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not is_gone.wait(0.05):
                connection.sendall(b"x")
        except OSError:
            is_gone.set()
        finally:
            connection.close()

    thread = threading.Thread(target=trickle)
    thread.start()
    scheme = "https" if is_encrypted else "http"
    with pytest.raises(WebError, match="no complete answer within 2 s"):
        fetch(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/", seconds=2, largest=99)
    assert is_gone.wait(30), "the connection is closed"
    thread.join()
    listener.close()


def test_a_token_that_is_nested_very_deeply_is_no_token() -> None:
    """The parser's RecursionError came out as an internal error."""
    with serving(lambda path: (200, "[" * 100_000)) as named:
        settings = Settings(bootstrap=(), token_url=named.url, oauth_client="me", oauth_secret=Secret("secret"))
        with pytest.raises(BrokerError, match="no token"):
            token(settings)
