"""DuckDB as a judge that knows nothing of rawlog."""

from __future__ import annotations

from typing import Any

import duckdb


def ask(sql: str) -> list[tuple[Any, ...]]:
    """The rows of a question. The connection is closed: one that lives to the end of the run is reported by DuckDB as a leak, on stderr."""
    with duckdb.connect() as connection:
        return connection.sql(sql).fetchall()
