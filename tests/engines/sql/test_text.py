"""Reading SQL far enough: which tables and columns a statement wants, and where it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawlog.engines import sql as text
from rawlog.engines.sql import Source, sources
from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS

KNOWN = dict.fromkeys([("records",), ("kafka", "batches"), ("batches",), ("a",), ("a", "records")], "view")


@pytest.mark.parametrize(
    ("sql", "rewritten", "needed"),
    [
        ("SELECT 1 FROM kafka.batches", "SELECT 1 FROM kafka_batches", {"kafka_batches"}),
        ("SELECT 1 FROM `Kafka` . `batches` b", "SELECT 1 FROM kafka_batches b", {"kafka_batches"}),
        ("SELECT a.records FROM a", "SELECT a.records FROM a", {"a"}),
        ("SELECT a.records.offset FROM a.records", "SELECT a_records.offset FROM a_records", {"a_records"}),
        ("SELECT 1 FROM a, a.records", "SELECT 1 FROM a, a_records", {"a", "a_records"}),
        ("SELECT 'FROM a.records' -- a.records", "SELECT 'FROM a.records' -- a.records", set()),
        ("SELECT 'it''s FROM a.records'", "SELECT 'it''s FROM a.records'", set()),
        ("SELECT 1 FROM (SELECT 2 FROM batches)", "SELECT 1 FROM (SELECT 2 FROM batches)", {"batches"}),
        ("SELECT 1 FROM elsewhere.records", "SELECT 1 FROM elsewhere.records", set()),
        ("DESCRIBE kafka.batches", "DESCRIBE kafka_batches", {"kafka_batches"}),
    ],
)
def test_dotted_names_become_names_of_views(sql: str, rewritten: str, needed: set[str]) -> None:
    found, views = text.rewrite(sql, KNOWN)
    assert found == rewritten
    assert set(views) == needed


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT count(*) FROM records", ["partition"]),
        ("SELECT topic, sum(length(`value`)) FROM records GROUP BY topic", ["value", "topic"]),
        ('SELECT topic, octet_length("value") FROM records', ["value", "topic"]),
        ("SELECT Offset FROM records WHERE KEY = 'value'", ["key", "offset"]),
        ("WITH r AS (SELECT offset FROM records) SELECT count( * ) FROM r", ["offset"]),
        ("SELECT * FROM records", None),
        ("SELECT r.* FROM records r", None),
        ("SELECT offset * 2 FROM records", None),
        ("SELECT offset FROM records NATURAL JOIN records", None),
        ("FROM records", None),
        ("SELECT offset FROM (TABLE records)", None),
        ("DESCRIBE records", None),
    ],
)
def test_only_columns_that_a_query_names_are_read(sql: str, columns: list[str] | None) -> None:
    words = text.column_words(sql)
    assert (None if words is None else text.needed_columns(RECORDS, words)) == columns


@pytest.mark.parametrize(
    ("given", "found", "rest"),
    [
        ("SELECT 1; SELECT\n2;", ["SELECT 1", "SELECT\n2"], ""),
        ("SELECT ';' -- ;\n; x", ["SELECT ';' -- ;"], " x"),
        (" ; ;", [], ""),
        ("SELECT 1 /* ; */", [], "SELECT 1 /* ; */"),
    ],
)
def test_a_statement_ends_at_a_semicolon_that_is_one(given: str, found: list[str], rest: str) -> None:
    assert text.statements(given) == (found, rest)


def test_names_of_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day=1").mkdir()
    assert sources(["x", "day=1", "A=y"]) == [Source(None, ("x", "day=1")), Source("a", ("y",))]
    with pytest.raises(OptionError, match="twice"):
        sources(["a=x", "A=y"])


SPELLING = text.Spelling(
    lambda column, type, path: f"field({column}:{type}, {path})", lambda column, type: f"whole({column})"
)


@pytest.mark.parametrize(
    ("sql", "expanded"),
    [
        ("SELECT value:user FROM records", "SELECT field(value:binary, user) FROM records"),
        ("SELECT r.value:items[0].sku x", "SELECT field(r.value:binary, items[0].sku) x"),
        ("SELECT value:n::int > 3", "SELECT field(value:binary, n)::int > 3"),
        ("SELECT value::varchar, `value`:a", "SELECT value::varchar, field(`value`:binary, a)"),
        ("SELECT {'a': value, value: 1}, x[value:n]", "SELECT {'a': value, value: 1}, x[value:n]"),
        ("SELECT offset:value, 'value:user' -- value:user", "SELECT offset:value, 'value:user' -- value:user"),
        ("SELECT json(value)->>'a', json ( r.value )", "SELECT whole(value)->>'a', json ( r.value )"),
        ("SELECT json(r.value).a, json('{}'), json(offset)", "SELECT whole(r.value).a, json('{}'), json(offset)"),
    ],
)
def test_fields_of_json_become_calls(sql: str, expanded: str) -> None:
    assert text.expand(sql, {"value": "binary"}, SPELLING) == expanded
