"""The golden RocketMQ stores, and what RocketMQ itself said of them. Imports nothing of rawlog."""

from __future__ import annotations

import atexit
import gzip
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.data.golden import GOLDEN, unpack

ENGINES = ("4.9.8", "5.1.4", "5.3.4S-cqext", "5.3.4S-propcrc")
BROKERS = ("broker-5.3.3", "broker-4.9.7", "broker-5.3.3-crashed", "broker-4.9.7-crashed")
ALL = (*ENGINES, *BROKERS)
BROKERS_55 = (
    "broker-5.5.1", "broker-5.5.1-crashed", "broker-5.5.1-rocksdb", "broker-5.5.1-rocksdb-crashed", "broker-5.5.1-rocksdb-v2",
    "broker-5.5.1-doublewrite",
)  # fmt: skip


@cache
def store(name: str) -> Path:
    """The store directory of that name; crashed ones are unpacked once a run."""
    path = GOLDEN / "rocketmq" / name
    if not path.exists():
        folder = Path(tempfile.mkdtemp(prefix="rocketmq-golden-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        unpack(GOLDEN / "rocketmq" / f"{name}.tar.gz", folder)
        path = folder / name
    return path / "store"


@cache
def expected(name: str, kind: str) -> list[Any]:
    """The lines of `expected/<kind>.ndjson` of a broker's store."""
    raw = gzip.decompress((store(name).parent / "expected" / f"{kind}.ndjson.gz").read_bytes())
    return [json.loads(line) for line in raw.split(b"\n") if line]


@cache
def answers(name: str) -> dict[str, Any]:
    """What a 5.5.1 broker answered of its store."""
    found: dict[str, Any] = json.loads((store(name).parent / "expected.json").read_text())
    return found


def copy(name: str, to: Path) -> Path:
    """A copy of a store that a test may change."""
    target = to / "store"
    shutil.copytree(store(name), target, copy_function=shutil.copyfile)
    return target


def log_files(root: Path) -> list[Path]:
    return sorted((root / "commitlog").iterdir())


def queues(root: Path, folder: str = "consumequeue") -> dict[str, bytes]:
    """The bytes of every file of the queues of a store."""
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted((root / folder).rglob("0000*"))}
