"""rawlog on Spark: `session()` gives a ready session, `register(spark)` teaches yours the format `rawlog`.

Nothing here imports PySpark before it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rawlog.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register", "session"]


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
