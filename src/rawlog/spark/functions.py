"""The functions of `rawlog.sql.functions` in a Spark session, as Arrow UDFs: whole columns to workers and back."""

from __future__ import annotations

from collections.abc import Collection
from functools import wraps
from typing import TYPE_CHECKING, Any

from rawlog.sql.functions import LIBRARY, Function

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register_functions(spark: SparkSession, names: Collection[str] | None = None) -> None:
    """Teach a session, classic or Connect, these functions of SQL, or all that there are."""
    for function in LIBRARY:
        if names is None or function.name in names:
            spark.udf.register(function.name, arrow_udf(function))


def arrow_udf(function: Function) -> Any:
    """A function of ours as one of Spark's, for use on columns."""
    from pyspark.sql.functions import arrow_udf as udf
    from pyspark.sql.pandas.functions import ArrowUDFType

    @wraps(function.call)
    def call(*columns: Any) -> Any:
        return function.call(*columns)

    return udf(call, returnType=function.gives, functionType=ArrowUDFType.SCALAR)
