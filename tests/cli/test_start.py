"""What a verb imports before it does anything: that, not the work, is how long a small file takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rawlog
from rawlog import kernels

SOURCE = Path(rawlog.__file__).parents[1]
PROGRAM = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules)), file=sys.stderr))
sys.argv[0] = "rawlog"
from rawlog.cli import main
main()
"""
HEAVY = {
    "numba", "llvmlite", "pyspark", "py4j", "duckdb", "pyiceberg", "pandas", "sqlglot", "rich", "confluent_kafka", "asyncio",
    "importlib.metadata",
}  # fmt: skip
SMALL = {
    "kafka": "samples/kafka/__cluster_metadata-0/00000000000000000000.log",
    "rocketmq": "samples/rocketmq",
    "replay": "samples/replay",
    "ambry": "samples/ambry",
}


def imported(*arguments: str) -> set[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return set(json.loads(done.stderr.splitlines()[-1]))


def of_rawlog(names: set[str]) -> list[str]:
    return [name for name in names if name.startswith("rawlog.")]


@pytest.mark.skipif(kernels.MODE != "library" and not os.environ.get("CI"), reason=kernels.WHY_NOT)
@pytest.mark.parametrize("system", SMALL)
def test_cat_imports_little(system: str) -> None:
    """It took a second, almost all of it to import the compiler and what other verbs need."""
    found = imported("cat", SMALL[system], "--limit", "1")
    assert HEAVY & found == set()
    assert len(found) < 390
    assert len(of_rawlog(found)) < 70


@pytest.mark.skipif(kernels.MODE != "library" and not os.environ.get("CI"), reason=kernels.WHY_NOT)
def test_cat_of_a_log_does_not_import_other_systems() -> None:
    """All five systems were imported to recognise a log of the first, and the transactions of its partition, for which nobody asked."""
    found = of_rawlog(imported("cat", "samples/kafka-crashed/crash-stream-1/00000000000000000000.log", "--limit", "1"))
    systems = {name.split(".")[2] for name in found if name.count(".") > 1 and name.startswith("rawlog.formats.")}
    assert systems == {"kafka"}
    assert "rawlog.formats.kafka.internal.codec" not in found
    assert len(found) < 60


@pytest.mark.skipif(kernels.MODE != "library" and not os.environ.get("CI"), reason=kernels.WHY_NOT)
@pytest.mark.parametrize(("system", "most"), [("kafka", 90), ("replay", 60)])
def test_verify_imports_little(system: str, most: int) -> None:
    found = imported("verify", {**SMALL, "kafka": "samples/kafka/broker-gzip-0"}[system])
    assert (HEAVY - {"importlib.metadata"}) & found == set()
    assert not {"urllib.request", "ssl"} & found
    assert len(of_rawlog(found)) < most


@pytest.mark.skipif(kernels.MODE != "library" and not os.environ.get("CI"), reason=kernels.WHY_NOT)
def test_cat_of_a_kafka_log_does_not_import_arrow_compute() -> None:
    assert "pyarrow.compute" not in imported("cat", SMALL["kafka"], "--limit", "1")


@pytest.mark.parametrize(
    "arguments", [("--version",), ("--help",), ("cat", "--help"), ("completion", "bash"), ("formats",)]
)
def test_what_reads_no_file_imports_neither_numpy_nor_arrow(arguments: tuple[str, ...]) -> None:
    found = imported(*arguments)
    assert ({"numpy", "pyarrow"} | HEAVY - {"importlib.metadata"}) & found == set()


def test_a_verb_does_not_import_the_others() -> None:
    found = imported("cat", "--help")
    assert {name for name in found if name.startswith("rawlog.cli.printers.")} == {"rawlog.cli.printers.rows"}
    assert {name for name in found if name.startswith("rawlog.verbs.")} == {"rawlog.verbs.cat", "rawlog.verbs.options"}
