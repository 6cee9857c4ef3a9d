"""The functions of `rawlog.sql.functions` in a Spark session, as Arrow UDFs: whole columns to workers and back."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import pyarrow as pa

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
    from pyspark.sql.pandas import functions

    make: Any = functions.arrow_udf  # its types know only some of its forms

    def call(*columns: pa.Array) -> pa.Array:
        return function.call(*columns)

    call.__doc__, call.__name__ = function.call.__doc__, function.name
    return make(call, returnType=function.gives)
