"""Writers: who is writing to a lake now. There may be several; each holds a lock on a file of its own.

A lock ends with its process, however that ends. So leftovers of a dead writer can be distinguished from work of a living one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterator
from typing import IO

from rawlog.io.output import make_directory
from rawlog.io.storage import open_regular

FOLDER = ".writers"
_RUN = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}(\.\d+)?")


class Writer:
    """A process, or a part of one, that writes to the lake in a directory. The names of its runs begin with its name."""

    def __init__(self, folder: str | None) -> None:
        """`folder` is the lake's; None for one in an object store, which has no locks. OSError if it cannot be written."""
        self.name = time.strftime("%Y%m%dT%H%M%S", time.gmtime()) + "-" + uuid.uuid4().hex[:8]
        self.runs = 0
        self._path = None if folder is None else os.path.join(folder, FOLDER, self.name)
        self._file: IO[bytes] | None = None
        while self._path is not None and self._file is None:
            make_directory(os.path.dirname(self._path))
            self._file = _locked(self._path)

    def new_run(self) -> str:
        """The name of one more run."""
        self.runs += 1
        return f"{self.name}.{self.runs}"

    def close(self) -> None:
        """Stop being a writer."""
        if self._file is not None and self._path is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            self._file.close()
            self._file = None


def is_run(name: str) -> bool:
    """Whether a directory belongs to a run, by its name: those of other programs are left alone."""
    return _RUN.fullmatch(name) is not None


def is_alive(folder: str, run: str) -> bool:
    """Whether the writer of a run is alive."""
    path = os.path.join(folder, FOLDER, run.partition(".")[0])
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(OSError):
                os.unlink(path)
            return False
    except FileNotFoundError:
        return False
    except OSError:
        return True


def living(folder: str) -> Iterator[str]:
    """The names of the writers that are alive."""
    with contextlib.suppress(OSError):
        yield from (name for name in sorted(os.listdir(os.path.join(folder, FOLDER))) if is_alive(folder, name))


def _locked(path: str) -> IO[bytes] | None:
    """A new file with the lock on it; None if another process took it for a dead writer's and removed it before it was locked."""
    file = open(path, "ab")  # noqa: SIM115  (held as long as the writer is alive)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            return file
    except BlockingIOError:
        pass
    except BaseException:
        file.close()
        raise
    file.close()
    return None
