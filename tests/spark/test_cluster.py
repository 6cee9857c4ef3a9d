"""Executors that are processes of their own: code and data must reach them by themselves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rawlog
from tests.golden_data import golden_path

SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")

JOB = """
import json, sys
sys.path.insert(0, sys.argv[4])  # for the driver alone: no process that Spark starts sees it
from rawlog.spark import register, session

spark = session("local-cluster[2,1,1024]", {"spark.python.daemon.module": "pyspark.daemon"})
spark.sparkContext.addPyFile(sys.argv[2])
register(spark)
from pyspark.sql.functions import col, udf

def where(_):
    import os
    import rawlog
    return f"{os.getppid()} {rawlog.__file__}"

frame = spark.read.format("rawlog").option("splitSize", "4k").option("columns", "offset").load(sys.argv[1])
offsets = sorted(row.offset for row in frame.collect())
places = sorted({row[0] for row in frame.select(udf(where)(col("offset"))).distinct().collect()})
damaged = spark.read.format("rawlog").load(sys.argv[3])
try:
    damaged.count()
    error = ""
except Exception as problem:
    error = str(problem)
print("RESULT " + json.dumps({"offsets": offsets, "tasks": frame.rdd.getNumPartitions(), "places": places, "error": error}))
spark.stop()
"""


@pytest.mark.slow
def test_code_and_data_reach_real_executors(tmp_path: Path) -> None:
    """The driver finds rawlog where it is installed; the executors have only the archive that was sent to them."""
    import pyspark

    package = Path(rawlog.__file__).parent
    archive = tmp_path / "rawlog.zip"
    with zipfile.ZipFile(archive, "w") as target:
        for file in sorted(package.rglob("*.py")):
            target.write(file, file.relative_to(package.parent))
    script = tmp_path / "job.py"
    script.write_text(JOB)
    # Nothing of ours is importable by chance: not by the environment, not from the directory the driver runs in.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment["PYSPARK_PYTHON"] = sys.executable  # plain: rawlog's own daemon would have to be installed
    work = Path(pyspark.__file__).parent / "work"
    existed = work.exists()
    damaged = golden_path("replay", "damaged", "v2-hole.log")
    try:
        done = subprocess.run(
            [sys.executable, str(script), str(SEGMENTS), str(archive), str(damaged), str(package.parent)],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    finally:
        if not existed:
            shutil.rmtree(work, ignore_errors=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, done.stderr[-3000:]
    result = json.loads(lines[0].removeprefix("RESULT "))
    assert result["offsets"] == rawlog.read(SEGMENTS)["offset"].to_pylist()
    assert result["tasks"] > 4
    assert len(result["places"]) >= 2, "both executors took part"
    assert all("rawlog.zip" in place for place in result["places"]), "by the archive, not by an installed package"
    assert not any(str(archive) in place for place in result["places"]), "by a copy of it that was sent"
    assert "v2-hole.log: byte 237: invalid key size" in result["error"]
