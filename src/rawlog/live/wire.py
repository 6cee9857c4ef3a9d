"""One connection to one broker: TLS, login, versions, and requests paired with their responses.

Everything a broker sends is checked before it is used: sizes against a limit, correlation numbers, and every field by the schemas. What
comes out is a message or a BrokerError.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from rawlog import __version__
from rawlog.formats.kafka.internal.codec import Message, read_uvarint
from rawlog.io.output import Folder, scratch
from rawlog.live import client as messages
from rawlog.live.client import (
    UNSUPPORTED_VERSION,
    Api,
    BrokerError,
    Disconnected,
    conversation,
    refusal,
)
from rawlog.live.settings import Settings
from rawlog.model.errors import DataError, OptionError

LARGEST_ANSWER = 16 << 20
"""Of a response that carries no records."""
FIRST_ROOM = 1 << 20
"""A response gets memory as its bytes come, beginning with this much."""
SOCKET_BUFFER = 4 << 20
SMALLEST_RESPONSE = 4
LOGIN_SHARE = 0.85
"""The share of a session's lifetime after which we log in again."""


class Buffer:
    """Memory that responses are read into, used again and again."""

    def __init__(self) -> None:
        self.data = bytearray(FIRST_ROOM)

    def grow(self, size: int) -> None:
        """Make room for so many bytes; what is there stays. Views of the old memory stay valid."""
        if len(self.data) < size:
            larger = bytearray(size)
            larger[: len(self.data)] = self.data
            self.data = larger


class Connection:
    """A connection that is logged in. Requests are answered in their order; `send` and `receive` may be several requests apart.

    Disconnected if the connection cannot be made or ends; BrokerError if the broker refuses or answers what cannot be read.
    """

    def __init__(self, host: str, port: int, settings: Settings) -> None:
        self.host, self.port, self.settings = host, port, settings
        self.named = f"broker {host}:{port}"
        self.versions: dict[int, tuple[int, int]] = {}
        self.throttled_ms = 0
        self._pending: deque[tuple[Api, int, int]] = deque()
        self._heard = time.monotonic()
        self._correlation = 0
        self._again: float | None = None
        self._scratch = Buffer()
        self.socket = self._connect()
        try:
            self._ask_versions()
            if settings.has_login:
                self._login()
        except BaseException:
            self.close()
            raise

    # Making it --------------------------------------------------------------------------------------------------------

    def _connect(self) -> socket.socket:
        raw: socket.socket | None = None
        try:
            raw = socket.create_connection((self.host, self.port), self.settings.connect_timeout)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER)
            if self.settings.is_encrypted:
                raw = tls_context(self.settings).wrap_socket(raw, server_hostname=self.host)
            raw.settimeout(self.settings.timeout)
            return raw
        except ssl.SSLCertVerificationError as error:
            _close(raw)
            raise BrokerError(f"{self.named}: its certificate is not accepted: {error.verify_message}").advise(
                "name the CA's certificate as ssl.ca.location in the file of -F"
            ) from None
        except (OSError, ValueError) as error:
            _close(raw)
            hint = ""
            if isinstance(error, (ssl.SSLError, ConnectionResetError)) and self.settings.is_encrypted:
                hint = "; does this listener use TLS?"
            raise Disconnected(f"{self.named}: {_words(error)}{hint}") from None

    def _ask_versions(self) -> None:
        """Ask once which versions the broker serves; a broker that does not know our question answers it in its oldest form."""
        request = {"clientSoftwareName": "rawlog", "clientSoftwareVersion": __version__}
        self._write(messages.API_VERSIONS, 3, request)
        api, version, correlation = self._pending.popleft()
        data = self._read_response(self._scratch, correlation, LARGEST_ANSWER)
        code = int.from_bytes(data[4:6], "big", signed=True) if len(data) >= 6 else 0
        answer = self._decode(api, 0 if code == UNSUPPORTED_VERSION else version, data, 4, LARGEST_ANSWER)
        if code == UNSUPPORTED_VERSION:
            raise BrokerError(f"{self.named}: an older broker than any that is supported (2.8 and later are)", code)
        if answer["errorCode"]:
            raise refusal(f"{self.named}: ApiVersions", answer["errorCode"])
        self.versions = {row["apiKey"]: (row["minVersion"], row["maxVersion"]) for row in answer["apiKeys"]}

    def _login(self) -> None:
        answer = self.ask(messages.SASL_HANDSHAKE, {"mechanism": self.settings.mechanism})
        if answer["errorCode"]:
            offered = ", ".join(answer["mechanisms"][:8]) or "none"
            raise BrokerError(
                f"{self.named}: SASL mechanism {self.settings.mechanism} is not accepted; the broker offers {offered}",
                answer["errorCode"],
            )
        talk = conversation(self.settings)
        token: bytes | None = next(talk)
        lifetime = 0
        while token is not None:
            answer = self.ask(messages.SASL_AUTHENTICATE, {"authBytes": token})
            if answer["errorCode"]:
                raise refusal(
                    f"{self.named}: login as {self.settings.username!r}", answer["errorCode"], answer["errorMessage"]
                )
            lifetime = answer["sessionLifetimeMs"]
            try:
                token = talk.send(bytes(answer["authBytes"]))
            except StopIteration:
                token = None
        self._again = time.monotonic() + lifetime / 1000 * LOGIN_SHARE if lifetime > 0 else None

    @property
    def wants_login(self) -> bool:
        """Whether the session ends soon: `login_again` when nothing is on its way."""
        return self._again is not None and time.monotonic() > self._again

    def login_again(self) -> None:
        """Log in once more on the same connection, where a session has an end."""
        assert not self._pending
        self._login()

    # Requests and responses ---------------------------------------------------------------------------------------------

    def version_of(self, api: Api, most: int | None = None) -> int:
        """The newest version of a request that both sides speak. BrokerError if there is none."""
        low, high = self.versions.get(api.key, (0, -1)) if self.versions else (api.versions.low, api.versions.high)
        best = min(high, api.versions.high if most is None else min(most, api.versions.high))
        if best < max(low, api.versions.low):
            served = f"serves versions {low} to {high}" if high >= 0 else "does not serve it"
            raise BrokerError(
                f"{self.named}: {api.name}: the broker {served}, {api.versions.low} to {api.versions.high} are spoken here",
                UNSUPPORTED_VERSION,
            )
        return best

    def ask(self, api: Api, message: Mapping[str, Any], most: int | None = None) -> Message:
        """Send a request and wait for its response, when nothing else is on its way."""
        assert not self._pending
        self.send(api, message, most)
        return self.receive()

    def send(self, api: Api, message: Mapping[str, Any], most: int | None = None) -> None:
        """Send a request; `receive` gives its response later."""
        if self.wants_login and not self._pending and api not in (messages.SASL_HANDSHAKE, messages.SASL_AUTHENTICATE):
            self.login_again()
        self._write(api, self.version_of(api, most), message)

    @property
    def pending(self) -> int:
        """How many responses have not come yet."""
        return len(self._pending)

    def check_time(self) -> None:
        """Disconnected if a response has not come for longer than the settings allow."""
        if self._pending and time.monotonic() - self._heard > self.settings.timeout:
            self.close()
            raise Disconnected(f"{self.named}: no answer in time")

    def receive(self, buffer: Buffer | None = None, limit: int = LARGEST_ANSWER) -> Message:
        """The response to the oldest request that has none. Its records are views of the buffer."""
        api, version, correlation = self._pending.popleft()
        data = self._read_response(buffer or self._scratch, correlation, limit)
        self._heard = time.monotonic()
        position = 4
        if api.is_flexible(version):
            position = self._skip_tags(data, position)
        answer = self._decode(api, version, data, position, limit)
        self.throttled_ms += max(0, answer.get("throttleTimeMs", 0))
        return answer

    def _write(self, api: Api, version: int, message: Mapping[str, Any]) -> None:
        self._correlation = (self._correlation + 1) & 0x7FFF_FFFF
        client = self.settings.client_id.encode()[:1000]
        head = struct.pack(">hhih", api.key, version, self._correlation, len(client)) + client
        parts = api.request_codec(version).encode_parts(message)
        if api.is_flexible(version):
            parts.insert(0, b"\0")
        size = len(head) + sum(map(len, parts))
        try:
            self._send_all([size.to_bytes(4, "big") + head, *parts])
        except OSError as error:
            raise self._connection_lost(error) from None
        if not self._pending:
            self._heard = time.monotonic()
        self._pending.append((api, version, self._correlation))

    def _send_all(self, parts: list[Any]) -> None:
        """Small pieces are joined; record batches go out as they are."""
        joined = bytearray()
        for part in parts:
            if len(part) < 1 << 16:
                joined += part
                continue
            if joined:
                self.socket.sendall(joined)
                joined = bytearray()
            self.socket.sendall(part)
        if joined:
            self.socket.sendall(joined)

    def _read_response(self, buffer: Buffer, correlation: int, limit: int) -> memoryview:
        """One response, in the buffer. Memory is taken as the bytes come, and never more than the limit.

        The time limit is for the whole response: a broker that sends a byte now and then must not hold us for ever.
        """
        deadline = time.monotonic() + self.settings.timeout
        try:
            self._read_into(buffer, 0, 4, deadline)
            size = int.from_bytes(buffer.data[:4], "big", signed=True)
            if not SMALLEST_RESPONSE <= size <= limit:
                raise self._garbage(f"a response of {size:,} bytes, {SMALLEST_RESPONSE} to {limit:,} expected")
            done = 0
            while done < size:
                stop = min(size, max(2 * done, len(buffer.data)))
                buffer.grow(stop)
                self._read_into(buffer, done, stop, deadline)
                done = stop
            self.socket.settimeout(self.settings.timeout)
        except OSError as error:
            if isinstance(error, BrokerError):
                raise
            raise self._connection_lost(error) from None
        data = memoryview(buffer.data)[:size]
        answered = int.from_bytes(data[:4], "big", signed=True)
        if answered != correlation:
            raise self._garbage(f"a response to request {answered}, {correlation} expected")
        return data

    def _read_into(self, buffer: Buffer, start: int, stop: int, deadline: float) -> None:
        view = memoryview(buffer.data)
        while start < stop:
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError
            self.socket.settimeout(left)
            count = self.socket.recv_into(view[start:stop])
            if not count:
                raise ConnectionResetError("the broker closed the connection")
            start += count

    def _skip_tags(self, data: memoryview, position: int) -> int:
        try:
            count, position = read_uvarint(data, position)  # type: ignore[arg-type]
            for _ in range(count):
                _, position = read_uvarint(data, position)  # type: ignore[arg-type]
                size, position = read_uvarint(data, position)  # type: ignore[arg-type]
                position += size
                if position > len(data):
                    raise IndexError
        except (IndexError, DataError):
            raise self._garbage("a response whose header cannot be read") from None
        return position

    def _decode(self, api: Api, version: int, data: memoryview, position: int, limit: int) -> Message:
        try:
            return api.response_codec(version).decode_all(data, position, most=limit)
        except DataError as error:
            raise self._garbage(f"a response that cannot be read: {error}") from None

    def _garbage(self, what: str) -> BrokerError:
        self.close()
        return BrokerError(f"{self.named}: {what}")

    def _connection_lost(self, error: OSError) -> Disconnected:
        self.close()
        return Disconnected(f"{self.named}: {_words(error)}")

    # Waiting and ending ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def has_buffered(self) -> bool:
        """Whether TLS has bytes that no selector sees."""
        return isinstance(self.socket, ssl.SSLSocket) and self.socket.pending() > 0

    @property
    def is_open(self) -> bool:
        return self.socket.fileno() >= 0

    def close(self) -> None:
        """End it. What was on its way is lost to us; the broker may have done it."""
        self._pending.clear()
        _close(getattr(self, "socket", None))


def _close(raw: socket.socket | None) -> None:
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.close()


def _words(error: BaseException) -> str:
    """What the system says of a connection."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}".replace("_", " ").lower().replace("tls", "TLS", 1)
    text = getattr(error, "strerror", None) or str(error)
    return text[:1].lower() + text[1:]


def tls_context(settings: Settings) -> ssl.SSLContext:
    """The certificates that settings name. OptionError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file, cadata=settings.ca_pem)
        if not settings.checks_host or not settings.checks_certificate:
            context.check_hostname = False
        if not settings.checks_certificate:
            context.verify_mode = ssl.CERT_NONE
        password = None if settings.key_password is None else settings.key_password.reveal()
        if settings.certificate_file is not None:
            context.load_cert_chain(settings.certificate_file, settings.key_file, password or _no_password)
        elif settings.certificate_pem is not None:
            key = "" if settings.key_pem is None else settings.key_pem.reveal()
            with scratch("tls") as folder:  # for its owner only, gone at once
                Folder(folder).write("own.pem", f"{settings.certificate_pem}\n{key}\n")
                context.load_cert_chain(f"{folder}/own.pem", None, password or _no_password)
    except (OSError, ValueError) as error:
        names = (settings.ca_file, settings.certificate_file, settings.key_file)
        where = ", ".join(name for name in names if name) or "the certificates of the settings"
        raise OptionError(f"TLS: {where}: {getattr(error, 'strerror', None) or 'cannot be used'}") from None
    return context


def _no_password() -> str:
    """Without this, OpenSSL would ask on the terminal."""
    raise ValueError("the key needs a password: ssl.key.password")
