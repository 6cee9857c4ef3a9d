"""What brokers answer: their error codes, and what to do about each."""

from __future__ import annotations

from rawlog.core.errors import AccessError

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


class BrokerError(AccessError):
    """A broker that cannot be reached, refuses, or answers what cannot be read. `code` is Kafka's error code, None without one."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class Disconnected(BrokerError):
    """The connection ended or could not be made; another attempt may succeed."""


def explained(code: int) -> str:
    """An error code in words."""
    return f"{NAMES[code]} (error {code})" if code in NAMES else f"error {code}"


def refusal(what: str, code: int, message: str | None = None) -> BrokerError:
    """The error for a request that was answered with a code; `message` is the broker's own text."""
    return BrokerError(f"{what}: {explained(code)}{f': {message}' if message else ''}", code)
