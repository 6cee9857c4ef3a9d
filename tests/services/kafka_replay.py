"""The original kafka-replay, a Go program: `python -m tests.services.kafka_replay` builds it, which takes a minute or more.

Tests that it judges are skipped where it was not built. $KAFKA_REPLAY names another one.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from tests.services import Unavailable
from tests.services.jars import cache_directory

VERSION = "v1.4.1"
MODULE = "github.com/lolocompany/kafka-replay"


def program() -> str:
    """Where it is. Unavailable if it was not built."""
    found = os.environ.get("KAFKA_REPLAY") or str(_built())
    if not os.path.isfile(found):
        raise Unavailable(f"{found}: build it with `python -m tests.services.kafka_replay`")
    return found


def build() -> str:
    """Build it unless it is there. Unavailable without Go, or if its sources cannot be fetched."""
    made = _built()
    if not made.is_file():
        build_go(made, f"{MODULE}/cmd/kafka-replay", f"{MODULE} {VERSION}")
    return program()


def build_go(made: Path, what: str, needs: str) -> None:
    """Build a Go program: a package, or a file. Unavailable without Go, or if what it needs cannot be fetched."""
    made.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "go.mod").write_text(f"module scratch\ngo 1.24\nrequire {needs}\n")
        try:
            subprocess.run(["go", "build", "-mod=mod", "-o", str(made), what], cwd=folder, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Unavailable(f"{what} cannot be built: {error}") from None


def _built() -> Path:
    return cache_directory() / f"kafka-replay-{VERSION}"


if __name__ == "__main__":
    print(build())
