"""Real parts for the tests: Kafka brokers and their tools, an S3 server. Imports nothing of rawlog.

A part that cannot be had (no network, no Java) raises Unavailable; the fixtures in `tests/conftest.py` turn that into a failure in CI and
into a skip, with the reason, elsewhere.
"""

from __future__ import annotations

import ctypes
import signal
import socket
import sys
from contextlib import ExitStack


class Unavailable(RuntimeError):
    """A real part that this machine cannot provide, with the reason."""


def free_ports(count: int) -> list[int]:
    """Loopback ports that nothing listens on just now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """For `preexec_fn`: a test run that is killed leaves no server behind (Linux only)."""
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)
