"""rawlog on Spark: `session()` gives a ready session, `register(spark)` teaches yours the format `rawlog`.

Nothing here imports PySpark before it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rawlog.spark import session as _session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]


def session(master: str | None = None, conf: Mapping[str, str] | None = None, app_name: str = "rawlog") -> SparkSession:
    """The active Spark session, or a new one, embedded unless `master` says otherwise, with the format `rawlog` and its functions.

    See `rawlog.spark.session.session`, which this makes ready. AccessError if Spark or Java is missing or does not start.
    """
    return register(_session.session(master, conf, app_name))


def register(spark: SparkSession) -> SparkSession:
    """Make `spark.read.format("rawlog")` and `df.write.format("rawlog")` work on this session, and rawlog's functions in SQL.

    Executors on other machines are sent rawlog's own code. Returns the session.
    """
    from rawlog.spark import source
    from rawlog.spark.functions import register_functions
    from rawlog.spark.shipping import ship

    ship(spark)
    source.register(spark)
    register_functions(spark)
    return spark
