"""DuckDB answers in rawlog's column names, also where they are its own keywords."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawlog.engines.duckdb import DuckEngine, quote_reserved
from rawlog.engines.sql import Source, views
from rawlog.model.errors import OptionError
from tests.data.golden import golden_path

SEGMENTS = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")

CASES = [
    # A column.
    ("select topic, partition, offset from records", 'select topic, partition, "offset" from records'),
    ("SELECT Offset FROM r", 'SELECT "Offset" FROM r'),
    ("select r.offset, max(offset) from r order by offset", 'select r."offset", max("offset") from r order by "offset"'),
    ("select offset+1, -offset, 2*offset from r", 'select "offset"+1, -"offset", 2*"offset" from r'),
    ("select x as offset from r", 'select x as "offset" from r'),
    ("select x offset from r", 'select x "offset" from r'),
    ("select distinct offset from r where not offset = 1", 'select distinct "offset" from r where not "offset" = 1'),
    ("select * from a join b using (topic, offset)", 'select * from a join b using (topic, "offset")'),
    ("select * exclude (offset) from r", 'select * exclude ("offset") from r'),
    ("select case offset when 1 then offset else offset end from r",
     'select case "offset" when 1 then "offset" else "offset" end from r'),
    ("select offset between offset and offset from r", 'select "offset" between "offset" and "offset" from r'),
    ("select sum(offset) over (partition by topic order by offset) from r",
     'select sum("offset") over (partition by topic order by "offset") from r'),
    ("select group, count(*) from offsets group by group order  by group",
     'select "group", count(*) from offsets group by "group" order  by "group"'),
    ("select {'a': offset}, [offset] from r", "select {'a': \"offset\"}, [\"offset\"] from r"),
    ("select 'ü', offset from r", "select 'ü', \"offset\" from r"),
    # A keyword, and then a column again.
    ("select 1 limit 5 offset 3", None),
    ("select * from r offset 3", None),
    ("from r select * offset 3", None),
    ("select * from r order by timestamp desc offset 3 rows", None),
    ("select * from (select 1) offset (1 + 2)", None),
    ("select * from r limit ? offset ?", None),
    ("select * from r limit $1 offset $2", None),
    ("select offset from r order by offset offset 3", 'select "offset" from r order by "offset" offset 3'),
    ("select offset from r limit 1 offset (select min(offset) from r)",
     'select "offset" from r limit 1 offset (select min("offset") from r)'),
    ("select mode() within group (order by x) from r", None),
    # Text, comments and names that are quoted already.
    ("select 'offset, offset', \"offset\", $$, offset$$ from r -- , offset", None),
    ("select 1 /* , offset */", None),
    ("select 'not ended, offset", None),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), CASES, ids=[sql for sql, _ in CASES])
def test_reserved_words_that_are_columns_are_quoted(sql: str, expected: str | None) -> None:
    assert quote_reserved(sql) == (sql if expected is None else expected)


def answer(sql: str, path: Path = SEGMENTS) -> list[dict[str, object]]:
    with DuckEngine(views(Source(None, (str(path),)))) as engine:
        return [row for batch in engine.ask(sql).batches() for row in batch.to_pylist()]


def test_offset_is_a_column_and_a_keyword_in_one_question() -> None:
    """`select topic, partition, offset from records` was a syntax error: offset is a keyword of DuckDB."""
    found = answer(
        "SELECT r.offset, offset AS again FROM records r WHERE offset >= 2 ORDER BY offset DESC, r.offset LIMIT 2 OFFSET 1"
    )
    last = answer("SELECT max(offset) AS m FROM records")[0]["m"]
    assert isinstance(last, int)
    assert found == [{"offset": last - 1, "again": last - 1}, {"offset": last - 2, "again": last - 2}]
    assert answer("SELECT count(*) AS n FROM (SELECT topic, partition, offset FROM records) t")[0]["n"]


def test_a_statement_that_is_wrong_is_still_reported_by_duckdb() -> None:
    with pytest.raises(OptionError, match="syntax error"):
        answer("SELECT offset FROM FROM records")
