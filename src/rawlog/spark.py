"""rawlog on Spark: `session()` gives a ready session, `register(spark)` teaches yours the format `rawlog`, `sql(…)` queries paths.

Nothing here imports PySpark before it is called.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rawlog.engines.spark import session as _session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register", "session", "sql"]


def session(master: str | None = None, conf: Mapping[str, str] | None = None, app_name: str = "rawlog") -> SparkSession:
    """The active Spark session, or a new one, embedded unless `master` says otherwise, with the format `rawlog` and its functions.

    See `rawlog.engines.spark.session.session`, which this makes ready. AccessError if Spark or Java is missing or does not start.
    """
    return register(_session.session(master, conf, app_name))


def register(spark: SparkSession) -> SparkSession:
    """Make `spark.read.format("rawlog")` and `df.write.format("rawlog")` work on this session, and rawlog's functions in SQL.

    Executors on other machines are sent rawlog's own code. Returns the session.
    """
    from rawlog.engines.spark import source
    from rawlog.engines.spark.query import register_functions
    from rawlog.engines.spark.shipping import ship

    ship(spark)
    source.register(spark)
    register_functions(spark)
    return spark


def sql(
    statement: str,
    paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    spark: SparkSession | None = None,
    *,
    catalog: str | None = None,
) -> DataFrame:
    """The result of a statement over the tables of some paths, as a DataFrame. Only columns and rows that it needs are read.

    A path is files or a lake, or `name=PATH`, as for `rawlog query`; `catalog` is one of PyIceberg's configuration that has a lake, and
    then `paths` may be empty. The tables that the statement uses become temporary views of the
    session. OptionError if the statement is not understood, AccessError for a path that does not exist.
    """
    from rawlog.engines.spark.query import SparkEngine
    from rawlog.engines.sql import sources, views

    given = [paths] if isinstance(paths, (str, os.PathLike)) else paths
    found = [view for source in sources([os.fspath(path) for path in given], catalog) for view in views(source)]
    ready = session() if spark is None else spark
    return SparkEngine(lambda: ready, found, embedded=False).frame(statement)
