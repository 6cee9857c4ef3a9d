"""A client of Kafka: messages of its protocol, logging in, what error codes mean; and one connection to one broker.

Everything a broker sends is checked before it is used: sizes against a limit, correlation numbers, and every field by the schemas. What
comes out is a message or a BrokerError.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import socket
import ssl
import stringprep
import struct
import time
import unicodedata
import urllib.parse
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rawlog import __version__
from rawlog.formats.kafka.internal.codec import Codec, Message, Schema, SchemaField, Versions, codec, read_uvarint
from rawlog.io.output import Folder, scratch
from rawlog.io.web import WebError, fetch
from rawlog.live.settings import Settings
from rawlog.model.errors import AccessError, DataError, OptionError

# ----------------------------------------------------------------------------------------------------------------------
# What brokers answer: their error codes, and what to do about each.


NAMES = {
    -1: "unknown server error", 1: "offset out of range", 2: "corrupt message", 3: "unknown topic or partition",
    5: "leader not available", 6: "not the leader", 7: "request timed out", 9: "replica not available", 10: "message too large",
    13: "network exception", 14: "coordinator is loading", 15: "coordinator not available", 16: "not the coordinator",
    17: "invalid topic name", 18: "record list too large",
    19: "not enough in-sync replicas", 20: "not enough in-sync replicas after append",
    21: "invalid required acks", 22: "illegal generation", 25: "unknown member", 27: "rebalance in progress",
    29: "not authorized for the topic",
    30: "not authorized for the group", 31: "not authorized for the cluster", 32: "invalid timestamp", 33: "unsupported SASL mechanism",
    34: "illegal SASL state", 35: "unsupported version", 36: "topic exists already", 41: "not the controller", 42: "invalid request",
    44: "policy violation", 45: "sequence out of order", 46: "duplicate sequence", 47: "producer was replaced by another one (fenced)",
    48: "invalid transaction state", 49: "invalid producer id mapping", 50: "invalid transaction timeout", 51: "concurrent transactions",
    53: "not authorized for the transactional id",
    54: "security disabled", 56: "storage error", 58: "authentication failed", 59: "unknown producer id",
    61: "not authorized for delegation tokens", 70: "unknown fetch session", 71: "invalid fetch session epoch", 72: "listener not found",
    74: "old leader epoch", 75: "unknown leader epoch", 76: "unsupported compression", 78: "offset not available", 87: "invalid record",
    89: "throttling quota exceeded", 90: "producer fenced", 100: "unknown topic id", 103: "inconsistent topic id",
}  # fmt: skip
#: Ask for the metadata again, then retry.
MOVED = frozenset({3, 5, 6, 9, 13, 56, 72, 74, 100, 103})
#: Wait, then retry.
BUSY = frozenset({-1, 7, 14, 15, 16, 19, 20, 41, 51, 75, 78, 89, 70, 71})
RETRIABLE = MOVED | BUSY
NOT_AUTHORIZED = frozenset({29, 30, 31, 53})
OUT_OF_RANGE, UNKNOWN_TOPIC, NOT_LEADER, TOO_LARGE, UNKNOWN_TOPIC_ID, DUPLICATE, OUT_OF_ORDER = 1, 3, 6, 10, 100, 46, 45
UNSUPPORTED_VERSION, AUTHENTICATION_FAILED, TOPIC_EXISTS = 35, 58, 36
INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS = 50, 51


_LOGIN = "check user, password, sasl.mechanisms and security.protocol in the file of -F"
_ALLOW = "let an administrator allow it (kafka-acls --add), or name another user in the file of -F"
_CHECK = "check the address of -b, and security.protocol in the file of -F (TLS or not)"
#: What helps after an error code of Kafka.
_STEPS = dict.fromkeys(NOT_AUTHORIZED, _ALLOW) | dict.fromkeys((33, 34, 54, AUTHENTICATION_FAILED), _LOGIN)


class BrokerError(AccessError):
    """A broker that cannot be reached, refuses, or answers what cannot be read. `code` is Kafka's error code, None without one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        if code in _STEPS:
            self.advise(_STEPS[code])
        elif message.startswith("login: ") or "authentication failed" in message:
            self.advise(_LOGIN)


class Disconnected(BrokerError):
    """The connection ended or could not be made; another attempt may succeed."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message, code)
        self.advise(_CHECK)


def explain_code(code: int) -> str:
    """An error code in words."""
    return f"{NAMES[code]} (error {code})" if code in NAMES else f"error {code}"


def refusal(what: str, code: int, message: str | None = None) -> BrokerError:
    """The error for a request that was answered with a code; `message` is the broker's own text."""
    return BrokerError(f"{what}: {explain_code(code)}{f': {message}' if message else ''}", code)


# ----------------------------------------------------------------------------------------------------------------------
# Logging in: PLAIN, SCRAM and OAUTHBEARER, as a conversation of byte strings.


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


def prepare_text(text: str) -> str:
    """SASLprep (RFC 4013) as Kafka's own SCRAM applies it: mapping and NFKC."""
    mapped = "".join(
        " " if stringprep.in_table_c12(char) else char for char in text if not stringprep.in_table_b1(char)
    )
    return unicodedata.normalize("NFKC", mapped)


def _scram(settings: Settings, digest: str) -> Conversation:
    user = prepare_text(settings.username).replace("=", "=3D").replace(",", "=2C")
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
            digest, prepare_text(_password(settings)).encode(), base64.b64decode(salt, validate=True), int(rounds)
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
        text = settings.token.reveal()
    elif settings.token_url is not None:
        text = _fetch_token(settings)
    else:
        assert settings.unsecured is not None
        now = int(time.time())
        claims = {"iat": now, "exp": now + 3600, **settings.unsecured}
        text = ".".join((_segment({"alg": "none"}), _segment(claims), ""))
    if not re.fullmatch(r"[!-~]+", text):
        raise BrokerError("login: the token is empty or has characters that no token has")
    return text


def _segment(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def _fetch_token(settings: Settings) -> str:
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
    form = {"grant_type": "client_credentials"} | ({"scope": settings.oauth_scope} if settings.oauth_scope else {})
    user = f"{settings.oauth_client}:{secret}"
    try:
        answer = json.loads(fetch(url, user=user, form=form, seconds=settings.connect_timeout, largest=LARGEST_TOKEN))
        return str(answer["access_token"])
    except (WebError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = str(error) if isinstance(error, WebError) else type(error).__name__
        raise BrokerError(f"login: {urllib.parse.urlparse(url).hostname}: no token: {why}") from None


# ----------------------------------------------------------------------------------------------------------------------
# The requests that `record` and `replay` send, and the responses: fields by version, in a short notation.
# A line is a field: name, type, then what applies: `?` may be null, `v3+` or `v8-10` the versions that have it, `=-1` its default, `tag0`
# a tagged field. A type of `[]` is an array of the fields that are indented below it. The fields are those of Kafka's message definitions
# (4.3.0); which of them brokers really take is in docs/decisions/0016-live-kafka.md.


MOST = 0x7FFF
_ZEROS: dict[str, Any] = {"bool": False, "string": "", "bytes": b"", "records": b"", "uuid": bytes(16)}


@dataclass(frozen=True, slots=True)
class Api:
    """One request and its response: the versions that we speak, and from which on they are flexible."""

    name: str
    key: int
    versions: Versions
    request: Schema
    response: Schema

    def request_codec(self, version: int) -> Codec:
        return codec(self.request, version)

    def response_codec(self, version: int) -> Codec:
        return codec(self.response, version)

    def is_flexible(self, version: int) -> bool:
        """Whether the headers have tagged fields."""
        return version in self.request.flexible


def _versions(text: str) -> Versions:
    low, dash, high = text.partition("-")
    if text.endswith("+"):
        return Versions(int(text[:-1]), MOST)
    return Versions(int(low), int(high) if dash else int(low))


def _fields(lines: list[tuple[int, str]], depth: int) -> Iterator[SchemaField]:
    while lines and lines[0][0] == depth:
        name, type, *more = lines.pop(0)[1].split()
        struct = tuple(_fields(lines, lines[0][0])) if lines and lines[0][0] > depth else None
        is_array, type = type.startswith("[]"), type.removeprefix("[]") or name
        versions, nullable, tagged, tag = Versions(0, MOST), Versions(1, 0), Versions(1, 0), None
        default = [] if is_array else {} if struct is not None else _ZEROS.get(type, 0)
        for word in more:
            if word == "?":
                nullable = Versions(0, MOST)
            elif word.startswith("v"):
                versions = _versions(word[1:])
            elif word.startswith("tag"):
                tag, tagged = int(word[3:]), Versions(0, MOST)
            else:
                assert word.startswith("="), word
                default = None if word == "=null" else int(word[1:])
        yield SchemaField(name, type, is_array, versions, nullable, tagged, tag, default, struct)


def _schema(name: str, versions: Versions, flexible: Versions, text: str) -> Schema:
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines() if line.strip()]
    schema = Schema(name, versions, flexible, tuple(_fields(lines, lines[0][0]) if lines else ()))
    assert not lines, lines
    return schema


def _api(name: str, key: int, versions: str, flexible: int, request: str, response: str) -> Api:
    spoken, flexible_from = _versions(versions), Versions(flexible, MOST)
    return Api(
        name,
        key,
        spoken,
        _schema(f"{name} request", spoken, flexible_from, request),
        _schema(f"{name} response", spoken, flexible_from, response),
    )


API_VERSIONS = _api(
    "ApiVersions", 18, "0-3", 3,
    """
    clientSoftwareName string v3+
    clientSoftwareVersion string v3+
    """,
    """
    errorCode int16
    apiKeys []
      apiKey int16
      minVersion int16
      maxVersion int16
    throttleTimeMs int32 v1+
    """,
)  # fmt: skip

METADATA = _api(
    "Metadata", 3, "8-13", 9,
    """
    topics [] ?
      topicId uuid v10+
      name string ?
    allowAutoTopicCreation bool
    includeClusterAuthorizedOperations bool v8-10
    includeTopicAuthorizedOperations bool
    """,
    """
    throttleTimeMs int32
    brokers []
      nodeId int32
      host string
      port int32
      rack string ?
    clusterId string ?
    controllerId int32
    topics []
      errorCode int16
      name string ?
      topicId uuid v10+
      isInternal bool
      partitions []
        errorCode int16
        partitionIndex int32
        leaderId int32
        leaderEpoch int32
        replicaNodes []int32
        isrNodes []int32
        offlineReplicas []int32
      topicAuthorizedOperations int32
    clusterAuthorizedOperations int32 v8-10
    errorCode int16 v13+
    """,
)  # fmt: skip

LIST_OFFSETS = _api(
    "ListOffsets", 2, "5-9", 6,
    """
    replicaId int32 =-1
    isolationLevel int8
    topics []
      name string
      partitions []
        partitionIndex int32
        currentLeaderEpoch int32 =-1
        timestamp int64
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      partitions []
        partitionIndex int32
        errorCode int16
        timestamp int64
        offset int64
        leaderEpoch int32
    """,
)  # fmt: skip

FETCH = _api(
    "Fetch", 1, "11-18", 12,
    """
    replicaId int32 v0-14 =-1
    maxWaitMs int32
    minBytes int32
    maxBytes int32
    isolationLevel int8
    sessionId int32
    sessionEpoch int32 =-1
    topics []
      topic string v0-12
      topicId uuid v13+
      partitions []
        partition int32
        currentLeaderEpoch int32 =-1
        fetchOffset int64
        lastFetchedEpoch int32 v12+ =-1
        logStartOffset int64 =-1
        partitionMaxBytes int32
    forgottenTopicsData []
      topic string v0-12
      topicId uuid v13+
      partitions []int32
    rackId string
    """,
    """
    throttleTimeMs int32
    errorCode int16
    sessionId int32
    responses []
      topic string v0-12
      topicId uuid v13+
      partitions []
        partitionIndex int32
        errorCode int16
        highWatermark int64
        lastStableOffset int64
        logStartOffset int64
        divergingEpoch end v12+ tag0
          epoch int32 =-1
          endOffset int64 =-1
        currentLeader leader v12+ tag1
          leaderId int32 =-1
          leaderEpoch int32 =-1
        abortedTransactions [] ?
          producerId int64
          firstOffset int64
        preferredReadReplica int32
        records records ?
    """,
)  # fmt: skip

PRODUCE = _api(
    "Produce", 0, "8-13", 9,
    """
    transactionalId string ? =null
    acks int16 =-1
    timeoutMs int32
    topicData []
      name string v0-12
      topicId uuid v13+
      partitionData []
        index int32
        records records ?
    """,
    """
    responses []
      name string v0-12
      topicId uuid v13+
      partitionResponses []
        index int32
        errorCode int16
        baseOffset int64
        logAppendTimeMs int64
        logStartOffset int64
        recordErrors []
          batchIndex int32
          batchIndexErrorMessage string ?
        errorMessage string ?
        currentLeader leader v10+ tag0
          leaderId int32 =-1
          leaderEpoch int32 =-1
    throttleTimeMs int32
    """,
)  # fmt: skip

INIT_PRODUCER_ID = _api(
    "InitProducerId", 22, "1-4", 2,
    """
    transactionalId string ? =null
    transactionTimeoutMs int32
    producerId int64 v3+ =-1
    producerEpoch int16 v3+ =-1
    """,
    """
    throttleTimeMs int32
    errorCode int16
    producerId int64
    producerEpoch int16
    """,
)  # fmt: skip

FIND_COORDINATOR = _api(
    "FindCoordinator", 10, "2-3", 3,
    """
    key string
    keyType int8
    """,
    """
    throttleTimeMs int32
    errorCode int16
    errorMessage string ?
    nodeId int32
    host string
    port int32
    """,
)  # fmt: skip

ADD_PARTITIONS_TO_TXN = _api(
    "AddPartitionsToTxn", 24, "2-3", 3,
    """
    transactionalId string
    producerId int64
    producerEpoch int16
    topics []
      name string
      partitions []int32
    """,
    """
    throttleTimeMs int32
    results []
      name string
      results []
        partitionIndex int32
        errorCode int16
    """,
)  # fmt: skip

END_TXN = _api(
    "EndTxn", 26, "2-3", 3,
    """
    transactionalId string
    producerId int64
    producerEpoch int16
    committed bool
    """,
    """
    throttleTimeMs int32
    errorCode int16
    """,
)  # fmt: skip

OFFSET_COMMIT = _api(
    "OffsetCommit", 8, "7-8", 8,
    """
    groupId string
    generationId int32 =-1
    memberId string
    groupInstanceId string ? =null
    topics []
      name string
      partitions []
        partitionIndex int32
        committedOffset int64
        committedLeaderEpoch int32 =-1
        committedMetadata string ?
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      partitions []
        partitionIndex int32
        errorCode int16
    """,
)  # fmt: skip

OFFSET_FETCH = _api(
    "OffsetFetch", 9, "5-7", 6,
    """
    groupId string
    topics [] ?
      name string
      partitionIndexes []int32
    requireStable bool v7+
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      partitions []
        partitionIndex int32
        committedOffset int64
        committedLeaderEpoch int32
        metadata string ?
        errorCode int16
    errorCode int16
    """,
)  # fmt: skip

CREATE_TOPICS = _api(
    "CreateTopics", 19, "4-6", 5,
    """
    topics []
      name string
      numPartitions int32
      replicationFactor int16
      assignments []
        partitionIndex int32
        brokerIds []int32
      configs []
        name string
        value string ?
    timeoutMs int32
    validateOnly bool
    """,
    """
    throttleTimeMs int32
    topics []
      name string
      errorCode int16
      errorMessage string ?
      topicConfigErrorCode int16 v5+ tag0
      numPartitions int32 v5+ =-1
      replicationFactor int16 v5+ =-1
      configs [] v5+ ?
        name string
        value string ?
        readOnly bool
        configSource int8
        isSensitive bool
    """,
)  # fmt: skip

DESCRIBE_CONFIGS = _api(
    "DescribeConfigs", 32, "1-4", 4,
    """
    resources []
      resourceType int8
      resourceName string
      configurationKeys []string ?
    includeSynonyms bool
    includeDocumentation bool v3+
    """,
    """
    throttleTimeMs int32
    results []
      errorCode int16
      errorMessage string ?
      resourceType int8
      resourceName string
      configs []
        name string
        value string ?
        readOnly bool
        configSource int8
        isSensitive bool
        synonyms []
          name string
          value string ?
          source int8
        configType int8 v3+
        documentation string ? v3+
    """,
)  # fmt: skip

SASL_HANDSHAKE = _api(
    "SaslHandshake", 17, "1-1", 2,
    """
    mechanism string
    """,
    """
    errorCode int16
    mechanisms []string
    """,
)  # fmt: skip

SASL_AUTHENTICATE = _api(
    "SaslAuthenticate", 36, "1-2", 2,
    """
    authBytes bytes
    """,
    """
    errorCode int16
    errorMessage string ?
    authBytes bytes
    sessionLifetimeMs int64
    """,
)  # fmt: skip

APIS = (
    API_VERSIONS, METADATA, LIST_OFFSETS, FETCH, PRODUCE, INIT_PRODUCER_ID, FIND_COORDINATOR, ADD_PARTITIONS_TO_TXN, END_TXN,
    OFFSET_COMMIT, OFFSET_FETCH, CREATE_TOPICS, DESCRIBE_CONFIGS, SASL_HANDSHAKE, SASL_AUTHENTICATE,
)  # fmt: skip


# One connection to one broker ----------------------------------------------------------------------------------------------------

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
        self._write(API_VERSIONS, 3, request)
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
        answer = self.ask(SASL_HANDSHAKE, {"mechanism": self.settings.mechanism})
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
            answer = self.ask(SASL_AUTHENTICATE, {"authBytes": token})
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
        if self.wants_login and not self._pending and api not in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
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
