"""Logs in an object store through the source: only the parts that the indexes point at are fetched, and no credentials are shown."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import rawlog
from rawlog.engines.spark import options
from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS
from tests.services.proxy import Proxy

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

SECRET = "hidden-in-the-environment"
COUNT = 60_000

JOB = """
import json, sys
from rawlog.spark import register, session
from rawlog.engines.spark.query import SparkEngine
from rawlog.engines.sql import Source, views

logs = {"spark.eventLog.enabled": "true", "spark.eventLog.compress": "false", "spark.eventLog.dir": "file://" + sys.argv[2]}
spark = register(session("local[2]", logs))
frame = spark.read.format("rawlog").option("startingOffsets", sys.argv[3]).option("columns", "offset,value").load(sys.argv[1])
tail = [row.offset for row in frame.collect()]
frame.explain(True)
engine = SparkEngine(lambda: spark, views(Source("b", (sys.argv[1],))), embedded=False)
answer = engine.ask("SELECT count(*) AS n, max(offset) AS last FROM b.records")
counted = [row for batch in answer.batches() for row in batch.to_pylist()]
print("RESULT " + json.dumps({"tail": tail, "counted": counted}))
spark.stop()
"""


class Counter(Proxy):
    """A way to a server that counts what comes back."""

    size = 0

    def answer(self, data: bytes, connection: threading.Event) -> tuple[bytes]:
        self.size += len(data)
        return (data,)


@pytest.fixture
def counter(s3: S3Server) -> Iterator[Counter]:
    with Counter(s3.port) as made:
        yield made


@pytest.mark.slow
def test_a_point_is_read_by_ranges_and_no_credentials_are_shown(s3: S3Server, counter: Counter, tmp_path: Path) -> None:
    topic, events = tmp_path / "logs", tmp_path / "events"
    events.mkdir()
    values = [b"%08d" % number * 40 for number in range(COUNT)]
    table = pa.table(
        {
            "value": pa.array(values),
            "timestamp": pa.array(range(0, COUNT * 1000, 1000), RECORDS.schema.field("timestamp").type),
        }
    )
    rawlog.write(topic, table, format="kafka", topic="orders", partition=0)
    store = s3.filesystem()
    store.create_dir("source")
    size = 0
    for file in sorted((topic / "orders-0").iterdir()):
        with store.open_output_stream(f"source/logs/orders-0/{file.name}") as out:
            out.write(file.read_bytes())
            size += file.stat().st_size
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= s3.environment | {
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{counter.port}",
    }
    environment |= {"PYTHONPATH": str(Path(rawlog.__file__).parent.parent)}
    first = COUNT - 5
    done = subprocess.run(
        [sys.executable, "-c", JOB, "s3://source/logs", str(events), str(first)],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["tail"] == list(range(first, COUNT))
    assert result["counted"] == [{"n": COUNT, "last": COUNT - 1}]
    assert counter.size < size * 1.5, "the whole log once, for the count, and little more for the last five"
    reported = done.stdout + done.stderr + "".join(file.read_text() for file in events.rglob("*") if file.is_file())
    assert "s3://source/logs" in reported
    assert SECRET not in reported


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(OptionError, match="by the environment") as reported:
        options.parse({"path": f"s3://key:{SECRET}@bucket/logs?region=x"})
    assert SECRET not in str(reported.value)
    assert "s3://bucket/logs" in str(reported.value)
