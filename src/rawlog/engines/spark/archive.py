"""An archive of Spark's loaded classes: with it an embedded session starts in half the time.

`python -m rawlog.engines.spark.archive` makes it once for each Java and Spark, in the user's cache, and does nothing if it is there; `make`
does so
at set-up. Without it everything works the same. The JVM itself refuses an archive that does not fit its jars.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rawlog.engines.spark.java import Java, cache_directory

QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
PATIENCE = 300

# A bit of everything that questions do, so that the classes for it are in the archive.
QUESTIONS = (
    "SELECT topic, count(*) AS n, sum(length(value)), max(timestamp) FROM stage GROUP BY topic ORDER BY n DESC LIMIT 3",
    "SELECT a.offset, b.value, row_number() OVER (PARTITION BY a.topic ORDER BY a.offset) FROM stage a JOIN stage b USING (offset)",
    "SELECT h.key, cast(value AS string) FROM stage LATERAL VIEW explode(headers) AS h WHERE topic LIKE 'a%' OR offset IN (1, 2)",
)


def path_for(java: Java) -> Path:
    """Where the archive for a Java and the installed Spark is, or would be."""
    spark = find_spec("pyspark")
    place = Path(spark.origin or "") if spark is not None else Path()
    home = (java.home / "lib").resolve()  # of the Java itself, not of what stands in for it
    text = f"{home} {java.version} {place} {(place.parent / 'version.py').stat().st_mtime_ns if place.is_file() else 0}"
    return cache_directory() / "java" / f"spark-{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}.jsa"


def java_options(java: Java) -> str:
    """What makes the JVM use the archive; nothing if there is none."""
    path = path_for(java)
    return f'"-XX:SharedArchiveFile={path}" {QUIET}' if path.is_file() else ""


def make(java: Java) -> Path:
    """Make the archive, by a session that does a bit of everything. OSError or AccessError if it cannot be made."""
    path = path_for(java)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _exercise({"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={draft}" {QUIET} -Xlog:disable'})
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def _exercise(conf: Mapping[str, str]) -> None:
    import pyarrow as pa
    from pyarrow import parquet
    from pyspark import SparkContext

    from rawlog.engines.spark.query import _arrow_schema, stream
    from rawlog.engines.spark.session import session
    from rawlog.model.table import RECORDS

    spark = session("local[2]", conf)
    with tempfile.TemporaryDirectory(prefix="rawlog-archive-") as folder:
        row = {"topic": "a", "offset": 1, "value": b"v", "headers": [{"key": "k", "value": b"v"}]}
        parquet.write_table(
            pa.Table.from_pylist([row] * 9, schema=RECORDS.schema), f"{folder}/a.parquet", compression="none"
        )
        spark.read.schema(RECORDS.ddl).parquet(f"file://{folder}/a.parquet").createOrReplaceTempView("stage")
        for question in QUESTIONS:
            frame = spark.sql(question)
            list(stream(frame, _arrow_schema(frame)))
    gateway: Any = SparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with it, and writes the archive
    gateway.proc.wait(PATIENCE)


def main() -> int:
    """Make the archive if there is none; the exit code. What fails is reported in one line: nothing depends on it."""
    from rawlog.engines.spark.java import find_java
    from rawlog.model.errors import RawlogError

    try:
        java = find_java()
        if not path_for(java).is_file():
            make(java)
    except (RawlogError, OSError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"no archive of Spark's classes: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
