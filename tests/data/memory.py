"""The most memory that a command takes, measured by the system."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# A process of its own in between: the child's peak begins with that of the process which starts it.
_MEASURE = """
import json, os, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True)
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
out, err = done.stdout[:10_000].decode(), done.stderr[-10_000:].decode()
print(json.dumps({"code": done.returncode, "out": out, "err": err, "megabytes": most >> 10}))
"""
LARGEST = 600
"""What no command may take, in megabytes, whatever a small file says."""


@dataclass(frozen=True)
class Ended:
    """How a command ended; `out` is the beginning of what it printed."""

    code: int
    out: str
    err: str
    megabytes: int


def rawlog(*args: str | Path) -> Ended:
    """Run a rawlog command and measure it."""
    command = [sys.executable, "-c", _MEASURE, sys.executable, "-m", "rawlog", *map(str, args)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=600)
    return Ended(**json.loads(done.stdout))
