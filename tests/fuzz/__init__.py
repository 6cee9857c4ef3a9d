"""Fuzzers that know the structure of files: `make fuzz` and `make fuzz-guided`.

| module | an execution is |
|---|---|
| `files` | one damaged file of a format, and all that readers, rules and `explain` say of it: about a millisecond |
| `stores` | one damaged store of the wounds suite, and one verb of the command line: some ten milliseconds |
| `guided` | the same as `files`; the bytes are chosen by atheris, which looks for new branches |
| `mutations` | what the first two do to bytes: fields at the edges of their types, right checksums, frames moved, plain damage |

A failure is written as a file that has all it needs. Moved to tests/corpus, it is tried by each run of the tests.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from functools import cache
from pathlib import Path


@cache
def place() -> Path:
    """A directory for this process, in memory where there is such; TMPDIR names another."""
    memory = "/dev/shm" if "TMPDIR" not in os.environ and os.access("/dev/shm", os.W_OK) else None
    folder = tempfile.TemporaryDirectory(prefix="rawlog-fuzz-", dir=memory)
    atexit.register(folder.cleanup)
    return Path(folder.name)
