"""The same over Spark Connect: the client sends a plan, the server plans and reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rawlog
from tests.data.golden import golden_path

SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")

JOB = """
import json, sys, warnings
warnings.simplefilter("ignore")
from pyspark.sql import SparkSession
from rawlog.spark import register

spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
frame = spark.read.format("rawlog").schema("offset bigint, topic string").load(sys.argv[1])
offsets = frame.toArrow()["offset"].to_pylist()
count = spark.read.format("rawlog").option("table", "kafka.batches").load(sys.argv[1]).count()
try:
    spark.read.format("rawlog").option("tabel", "records").load(sys.argv[1]).count()
    error = ""
except Exception as problem:
    error = str(problem)
stream = spark.readStream.format("rawlog").load(sys.argv[1]).select("offset").writeStream.format("parquet")
query = stream.option("checkpointLocation", sys.argv[2] + "/checkpoint").trigger(availableNow=True).start(sys.argv[2] + "/data")
query.awaitTermination(120)
streamed = sorted(row.offset for row in spark.read.parquet(sys.argv[2] + "/data").collect())
from rawlog.engines.spark.query import SparkEngine
from rawlog.engines.sql import Source, views
engine = SparkEngine(lambda: spark, views(Source(None, (sys.argv[1],))), embedded=False)
answer = engine.ask("SELECT offset, kafka_partition(cast(offset AS string), 5) AS p FROM records ORDER BY offset")
asked = [row for batch in answer.batches() for row in batch.to_pylist()]
result = {"kind": type(spark).__module__, "offsets": offsets, "count": count, "error": error, "streamed": streamed, "asked": asked}
print("RESULT " + json.dumps(result))
spark.stop()
"""


@pytest.mark.slow
def test_batch_and_stream_over_connect(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    script = tmp_path / "job.py"
    script.write_text(JOB)
    source = Path(rawlog.__file__).parent.parent
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"PYTHONPATH": str(source), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if shutil.which("java") is None:
        from rawlog.engines.spark.java import facade, find_java

        environment["JAVA_HOME"] = str(facade(find_java()))
    done = subprocess.run(
        [sys.executable, str(script), str(SEGMENTS), str(tmp_path / "out")],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    offsets = rawlog.read(SEGMENTS)["offset"].to_pylist()
    assert "connect" in result["kind"]
    assert result["offsets"] == offsets
    assert result["streamed"] == offsets
    assert result["count"] == rawlog.read(SEGMENTS, table="kafka.batches").num_rows
    assert "unknown option 'tabel'; did you mean table?" in result["error"]
    assert [row["offset"] for row in result["asked"]] == offsets
    assert {row["p"] for row in result["asked"]} == set(range(5))
