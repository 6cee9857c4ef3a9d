"""Logging in: PLAIN, SCRAM and OAUTHBEARER, as a conversation of byte strings."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import stringprep
import time
import unicodedata
import urllib.parse
from collections.abc import Generator
from pathlib import Path

from rawlog.io.web import WebError, fetch
from rawlog.live.errors import BrokerError
from rawlog.live.settings import Settings

#: Of SCRAM: a server that asks for more rounds than this would only waste time.
MOST_ROUNDS = 10_000_000
LARGEST_TOKEN = 1 << 20

#: What is sent, one after the other; each answer of the broker is sent in.
Conversation = Generator[bytes, bytes, None]


def conversation(settings: Settings) -> Conversation:
    """The login that settings ask for. BrokerError if the broker does not prove itself or no token can be had."""
    if settings.mechanism == "PLAIN":
        return _plain(settings)
    if settings.mechanism == "OAUTHBEARER":
        return _bearer(settings)
    return _scram(settings, "sha256" if settings.mechanism == "SCRAM-SHA-256" else "sha512")


def _password(settings: Settings) -> str:
    assert settings.password is not None
    return settings.password.reveal()


def _plain(settings: Settings) -> Conversation:
    yield b"\0".join((b"", settings.username.encode(), _password(settings).encode()))


def prepared(text: str) -> str:
    """SASLprep (RFC 4013) as Kafka's own SCRAM applies it: mapping and NFKC."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    return unicodedata.normalize("NFKC", mapped)


def _scram(settings: Settings, digest: str) -> Conversation:
    user = prepared(settings.username).replace("=", "=3D").replace(",", "=2C")
    nonce = base64.b64encode(os.urandom(24)).decode()
    first = f"n={user},r={nonce}"
    answer = yield f"n,,{first}".encode()
    fields = _attributes(answer)
    served, salt, rounds = fields.get("r", ""), fields.get("s", ""), fields.get("i", "")
    if not served.startswith(nonce) or served == nonce or not re.fullmatch(r"\d{1,9}", rounds):
        raise BrokerError("login: the broker's SCRAM answer is invalid")
    if not 1 <= int(rounds) <= MOST_ROUNDS:
        raise BrokerError(f"login: the broker asks for {int(rounds):,} SCRAM rounds")
    try:
        salted = hashlib.pbkdf2_hmac(
            digest, prepared(_password(settings)).encode(), base64.b64decode(salt, validate=True), int(rounds)
        )
    except ValueError:
        raise BrokerError("login: the broker's SCRAM answer is invalid") from None
    key = hmac.digest(salted, b"Client Key", digest)
    unproven = f"c=biws,r={served}"
    signed = ",".join((first, answer.decode("utf-8", "replace"), unproven)).encode()
    signature = hmac.digest(hashlib.new(digest, key).digest(), signed, digest)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(key, signature, strict=True))).decode()
    last = _attributes((yield f"{unproven},p={proof}".encode()))
    expected = base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", digest), signed, digest)).decode()
    if not hmac.compare_digest(last.get("v", ""), expected):
        raise BrokerError("login: the broker could not prove that it knows the password")


def _attributes(answer: bytes) -> dict[str, str]:
    """`r=…,s=…,i=…`"""
    parts = answer.decode("ascii", "replace").split(",")
    return {part[0]: part[2:] for part in parts if part[1:2] == "="}


def _bearer(settings: Settings) -> Conversation:
    answer = yield f"n,,\x01auth=Bearer {token(settings)}\x01\x01".encode()
    if answer:
        yield b"\x01"  # the broker then says error 58


def token(settings: Settings) -> str:
    """The token to log in with: from a file, an OAuth server, or one without a signature, for tests. BrokerError if there is none."""
    if settings.token is not None:
        found = settings.token.reveal()
    elif settings.token_url is not None:
        found = _fetched(settings)
    else:
        assert settings.unsecured is not None
        now = int(time.time())
        claims = {"iat": now, "exp": now + 3600, **settings.unsecured}
        found = ".".join((_segment({"alg": "none"}), _segment(claims), ""))
    if not re.fullmatch(r"[!-~]+", found):
        raise BrokerError("login: the token is empty or has characters that no token has")
    return found


def _segment(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _fetched(settings: Settings) -> str:
    """A token by client credentials, or out of a file (`file:///…`)."""
    url = settings.token_url or ""
    if url.startswith("file:"):
        try:
            return Path(urllib.parse.unquote(urllib.parse.urlparse(url).path)).read_text().strip()
        except (OSError, ValueError) as error:
            raise BrokerError(f"login: the file of the token cannot be read: {error}") from None
    if not url.startswith(("https://", "http://")):
        raise BrokerError("login: sasl.oauthbearer.token.endpoint.url must begin with https://, http:// or file://")
    secret = "" if settings.oauth_secret is None else settings.oauth_secret.reveal()
    asked = {"grant_type": "client_credentials"} | ({"scope": settings.oauth_scope} if settings.oauth_scope else {})
    user = f"{settings.oauth_client}:{secret}"
    try:
        found = json.loads(fetch(url, user=user, form=asked, seconds=settings.connect_timeout, largest=LARGEST_TOKEN))
        return str(found["access_token"])
    except (WebError, ValueError, KeyError, TypeError) as error:
        why = str(error) if isinstance(error, WebError) else type(error).__name__
        raise BrokerError(f"login: {urllib.parse.urlparse(url).hostname}: no token could be had: {why}") from None
