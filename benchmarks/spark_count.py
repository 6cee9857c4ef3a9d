"""How much CPU time Spark takes for each row of Kafka segments through the source `rawlog`, warm, on two cores, next to decoding here.

The CPU time is that of everything below this process: JVM and Python workers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from data import kafka_segments, size_of
from harness import Bench, Limit, Peer, Way, Work, case, main

import rawlog
from rawlog.spark import register, session


@cache
def spark_session() -> Any:
    """The session of all cases of a script."""
    return register(session("local[2]"))


def counting(name: str, columns: str | None) -> None:
    """Declare a case."""

    @case(f"count, {name}", size=256, tiny=2, rounds=3)
    def body(bench: Bench) -> Iterator[Way]:
        """`count()` of a data frame, which makes Spark read the columns it was given; the limit is reading them into Arrow here."""
        folder = bench.folder / "logs"
        bench.rows = kafka_segments(folder, bench.size * 1_000_000)
        bench.bytes = size_of(folder)
        spark = spark_session()
        options = {"splitSize": "128m"} | ({} if columns is None else {"columns": columns})
        frame = spark.read.format("rawlog").options(**options).load(str(folder))
        chosen = {} if columns is None else {"columns": [columns]}
        log = rawlog.open(folder)

        def read() -> int:
            return sum(batch.num_rows for batch in log.table("records", **chosen).batches())

        yield Work("Spark, source rawlog", frame.count, tree=True)
        parquet = str(bench.folder / "parquet")
        frame.write.parquet(parquet)
        yield Peer("Spark, Parquet of the same rows", lambda: parquet_rows(spark, parquet), tree=True)
        yield Limit("decoding to Arrow, no Spark", read)


def parquet_rows(spark: Any, path: str) -> int:
    """Reads every column: a bare count would read only the footers."""
    frame = spark.read.parquet(path)
    frame.write.format("noop").mode("overwrite").save()
    return int(frame.count())


counting("all columns", None)
counting("offset", "offset")


if __name__ == "__main__":
    main(__doc__)
