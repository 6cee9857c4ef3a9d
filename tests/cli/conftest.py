"""The command line, called in this process (`run`) and as a real one (`spawn`)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rawlog.cli import cli

COMMAND = [sys.executable, "-m", "rawlog"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.text.splitlines()]


@pytest.fixture
def run() -> Callable[..., Ran]:
    """run("cat", path, "--json") in this process."""

    def call(*arguments: object) -> Ran:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments], prog_name="rawlog")
        assert "Traceback" not in result.stderr
        return Ran(result.exit_code, result.stdout_bytes, result.stderr)

    return call


@pytest.fixture
def environment() -> dict[str, str]:
    source = Path(__file__).parents[2] / "src"
    return {**os.environ, "PYTHONPATH": str(source), "NO_COLOR": "1"}


@pytest.fixture
def spawn(environment: dict[str, str]) -> Callable[..., Ran]:
    """The same as a process of its own."""

    def call(*arguments: object) -> Ran:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)], capture_output=True, env=environment, timeout=300, check=False
        )
        assert b"Traceback" not in done.stderr
        return Ran(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace"))

    return call


HEADER = struct.pack(">i", 2) + bytes(16)


def entry(value: bytes, key: bytes = b"", seconds: int = 1706868930) -> bytes:
    """An entry of a kafka-replay recording, version 2."""
    return struct.pack(">qqq", seconds, len(key), len(value)) + key + value


def recording(*values: bytes, key: bytes = b"k") -> bytes:
    return HEADER + b"".join(entry(value, key, 1706868930 + number) for number, value in enumerate(values))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A recording of five messages."""
    path = tmp_path / "messages.log"
    path.write_bytes(recording(b"zero", b"one", b"two", b"three", b"four"))
    return path
