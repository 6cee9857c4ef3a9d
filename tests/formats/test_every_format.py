"""Over all formats at once: each has its tests, and answers alike without the compiler and on Spark."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import rawlog
from rawlog import registry
from rawlog.model.table import RECORDS
from rawlog.testing import FormatTests, outline
from rawlog.testing.formats import plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TESTS = Path(__file__).parent.parent


def suites() -> list[type[FormatTests]]:
    """The conformance class of every format, from the `test_conformance.py` of each family."""
    found: dict[str, type[FormatTests]] = {}
    for path in sorted(TESTS.glob("formats/**/test_conformance.py")):
        name = ".".join(path.relative_to(TESTS).with_suffix("").parts)
        module = importlib.import_module(f"tests.{name}")
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, FormatTests) and hasattr(one, "format"):
                found[one.format] = one
    return list(found.values())


def test_every_format_that_is_read_passes_the_conformance_tests() -> None:
    tested = {suite.format for suite in suites()}
    assert tested <= set(registry.formats())
    missing = {f.name for f in registry.formats().values() if f.can("decode")} - tested
    assert not missing, "give them a subclass of rawlog.testing.FormatTests in tests/formats/<family>"


def test_every_format_has_a_name_a_title_and_a_way_to_be_known() -> None:
    for name, format in registry.formats().items():
        family, _, kind = name.partition(".")
        assert family in registry.FAMILIES
        assert kind.isalnum()
        assert format.title
        assert format.files
        assert format.match is not None or format.sniff is not None
        assert format.can("scan") or not format.abilities(), "what cannot be scanned can do nothing"
        assert format.carries <= set(RECORDS.names)
        assert format.is_written == format.can("losses")


PROGRAM = """
import json, sys, warnings
warnings.simplefilter("error")
from rawlog.kernels import JIT
assert not JIT, "the compiler is on"
from rawlog.testing import outline
print(json.dumps([outline(*pair) for pair in json.load(sys.stdin)]))
"""


def test_answers_are_the_same_with_the_compiler_off(tmp_path: Path) -> None:
    pairs: list[tuple[str, str]] = []
    for suite in suites():
        for number, data in enumerate(suite.small):
            for what, changed in {"whole": data, "cut": data[:-3], "damaged": _damaged(data)}.items():
                path = tmp_path / f"{suite.format}-{number}-{what}" / suite.name
                path.parent.mkdir(parents=True)
                path.write_bytes(changed)
                pairs.append((str(path), suite.format))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for (path, format), interpreted in zip(pairs, json.loads(done.stdout), strict=True):
        assert interpreted == outline(path, format), path
        assert interpreted


def _damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0xFF for byte in data[middle : middle + 8]) + data[middle + 8 :]


@pytest.mark.slow
def test_spark_gives_the_rows_that_rawlog_gives(spark: SparkSession) -> None:
    for suite in suites():
        for table in registry.formats()[suite.format].tables:
            paths = [str(path) for path in suite.golden[:6]]
            known = [path for path in paths if rawlog.open(path).files[0].format == suite.format]
            if not known:
                continue  # pieces of files, which only their tests can place
            frame = spark.read.format("rawlog").option("table", table.name).load(known)
            found = frame.toArrow()
            local = pa.concat_tables([rawlog.read(path, table=table.name) for path in known])
            assert found.schema.names == local.schema.names
            assert sorted(map(repr, plain(found))) == sorted(map(repr, plain(local))), (suite.format, table.name)
