"""Real parts for the tests: Kafka brokers and their tools, an S3 server. Imports nothing of rawlog.

A part that cannot be had (no network, no Java) raises Unavailable; the fixtures in `tests/conftest.py` turn that into a failure in CI and
into a skip, with the reason, elsewhere.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO


class Unavailable(RuntimeError):
    """A real part that this machine cannot provide, with the reason."""


PORTS = range(20_000, 32_000)  # below those that the system gives to clients, so that no connection takes one by chance
_reserved: list[IO[bytes]] = []


def free_ports(count: int) -> list[int]:
    """Loopback ports in a row that nothing listens on. They belong to this process until its end: a file lock for each port keeps other
    test runs of this machine away, even before a server has bound it.
    """
    places = list(range(PORTS.start, PORTS.stop - count))
    random.SystemRandom().shuffle(places)
    for first in places:
        ports = list(range(first, first + count))
        locks = [_reserve(port) for port in ports]
        if held := [lock for lock in locks if lock is not None]:
            if len(held) == count:
                _reserved.extend(held)
                return ports
            for lock in held:
                lock.close()
    raise Unavailable(f"no {count} free ports in {PORTS}")


def _reserve(port: int) -> IO[bytes] | None:
    """The lock of a free port, or None: it is taken, or something listens on it."""
    folder = Path(tempfile.gettempdir(), f"rawlog-tests-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = (folder / str(port)).open("ab")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return None
    return lock


def answers(process: subprocess.Popen[bytes], url: str, seconds: float) -> bool:
    """Wait until a server answers at `url`, with whatever status. False if it ends by itself or takes too long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return True
        except OSError:
            time.sleep(0.1)
        else:
            return True
    return False


_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """For `preexec_fn`: a test run that is killed leaves no server behind (Linux only)."""
    if _libc is not None:
        _libc.prctl(1, signal.SIGKILL)
