"""`--where`: expressions and their answers, and what is refused in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS, Column, Table
from rawlog.reading.where import columns_of, evaluate
from tests.data.golden import golden_path

T = 1_706_868_930_000_000
ROWS: list[dict[str, Any]] = [
    {"key": b"a", "value": b'{"user": "anna"}', "topic": "orders", "partition": 0, "offset": 0, "timestamp": T},
    {"key": None, "value": b"", "topic": "orders", "partition": 1, "offset": 1, "timestamp": None},
    {"key": b"", "value": None, "topic": "payments", "partition": None, "offset": 2, "timestamp": T + 1},
    {"key": b"\xff\x00", "value": "größe".encode(), "topic": None, "partition": 2, "offset": 3, "timestamp": T + 10**6},
    {"key": b"A", "value": b"100%_sure", "topic": "Orders", "partition": 3, "offset": 1 << 40, "timestamp": -1},
]
BATCH = pa.RecordBatch.from_pylist([{**row, "timestampType": 0, "headers": []} for row in ROWS], schema=RECORDS.schema)

Row = dict[str, Any]
HOLDS: list[tuple[str, Callable[[Row], bool]]] = [
    ("offset = 1", lambda r: r["offset"] == 1),
    ("offset == 1", lambda r: r["offset"] == 1),
    ("1 = offset", lambda r: r["offset"] == 1),
    ("offset <> 1", lambda r: r["offset"] != 1),
    ("offset != 1", lambda r: r["offset"] != 1),
    ("offset > 1 and offset <= 3", lambda r: 1 < r["offset"] <= 3),
    ("offset < 1 OR partition >= 2", lambda r: r["offset"] < 1 or (r["partition"] or 0) >= 2),
    ("not offset = 1", lambda r: r["offset"] != 1),
    ("not (offset = 1 or offset = 2)", lambda r: r["offset"] not in (1, 2)),
    ("offset in (0, 2, 99)", lambda r: r["offset"] in (0, 2)),
    ("offset not in (0, 2)", lambda r: r["offset"] not in (0, 2)),
    ("offset between 1 and 3", lambda r: 1 <= r["offset"] <= 3),
    ("offset not between 1 and 3", lambda r: not 1 <= r["offset"] <= 3),
    ("offset = 1099511627776", lambda r: r["offset"] == 1 << 40),
    ("offset > -1", lambda r: True),
    ("offset > 0.5", lambda r: r["offset"] > 0.5),
    ("offset + 1 = 3", lambda r: r["offset"] == 2),
    ("offset - partition = 0", lambda r: r["partition"] is not None and r["offset"] == r["partition"]),
    ("offset * 2 = 6", lambda r: r["offset"] == 3),
    ("offset % 2 = 1", lambda r: r["offset"] % 2 == 1),
    ("(offset - 2) % 2 = -1", lambda r: r["offset"] == 1),
    ("offset / 2 = 1.5", lambda r: r["offset"] == 3),
    ("partition = offset", lambda r: r["partition"] == r["offset"]),
    ("key = 'a'", lambda r: r["key"] == b"a"),
    ("'a' = key", lambda r: r["key"] == b"a"),
    ("key = ''", lambda r: r["key"] == b""),
    ("key in ('a', 'A')", lambda r: r["key"] in (b"a", b"A")),
    ("key is null", lambda r: r["key"] is None),
    ("key IS NOT NULL", lambda r: r["key"] is not None),
    ("value is null or value = ''", lambda r: not r["value"]),
    ("key > 'B'", lambda r: r["key"] is not None and r["key"] > b"B"),
    ("length(value) > 5", lambda r: len(r["value"] or b"") > 5),
    ("length(value) = 7", lambda r: r["value"] == "größe".encode()),
    ("length(key) = 0", lambda r: r["key"] == b""),
    ("contains(value, 'anna')", lambda r: b"anna" in (r["value"] or b"")),
    ("contains(value, 'größe')", lambda r: "größe".encode() in (r["value"] or b"")),
    ("startswith(value, '100%')", lambda r: (r["value"] or b"").startswith(b"100%")),
    ("endswith(topic, 'ments')", lambda r: r["topic"] == "payments"),
    ("value rlike 'u.er'", lambda r: b"user" in (r["value"] or b"")),
    ("not value rlike '^[0-9]+'", lambda r: r["value"] is not None and not r["value"].startswith(b"100")),
    ("key = x'ff00'", lambda r: r["key"] == b"\xff\x00"),
    ("value like '%anna%'", lambda r: b"anna" in (r["value"] or b"")),
    ("value like '%größe'", lambda r: r["value"] == "größe".encode()),
    ("topic like 'ord%'", lambda r: (r["topic"] or "").startswith("ord")),
    ("topic ilike 'ORD%'", lambda r: (r["topic"] or "").lower().startswith("ord")),
    ("topic not like 'ord%'", lambda r: r["topic"] is not None and not r["topic"].startswith("ord")),
    ("topic like '_rders'", lambda r: (r["topic"] or "")[1:] == "rders"),
    ("topic = 'orders'", lambda r: r["topic"] == "orders"),
    ("topic > 'orders'", lambda r: r["topic"] is not None and r["topic"] > "orders"),
    ("timestamp >= '2024-02-02T10:15:30.000001Z'", lambda r: (r["timestamp"] or 0) >= T + 1),
    ("timestamp = '2024-02-02T11:15:30+01:00'", lambda r: r["timestamp"] == T),
    ("timestamp < '1970-01-01'", lambda r: r["timestamp"] == -1),
    ("timestamp between '2024-02-02' and '2024-02-03'", lambda r: (r["timestamp"] or 0) > 0),
    ("timestamp > '1706868930000'", lambda r: (r["timestamp"] or 0) > T),
    ("timestamp is null", lambda r: r["timestamp"] is None),
    ("true", lambda r: True),
    ("false", lambda r: False),
    ("null", lambda r: False),
    ("key = null", lambda r: False),
    ("topic = 'orders' and (partition = 0 or partition = 1) and value is not null", lambda r: r["offset"] in (0, 1)),
    ("`offset` = 2", lambda r: r["offset"] == 2),
    ("key = topic", lambda r: False),
    ("offset < 1e999", lambda r: True),
    ("topic not ilike 'ORD%'", lambda r: r["topic"] == "payments"),
    ("not topic not like 'ord%'", lambda r: r["topic"] == "orders"),
    ("records.offset = 2", lambda r: r["offset"] == 2),
]  # fmt: skip


@pytest.mark.parametrize(("text", "holds"), HOLDS, ids=[text for text, _ in HOLDS])
def test_an_expression_picks_the_rows_that_sql_would(text: str, holds: Callable[[Row], bool]) -> None:
    answers = evaluate(text, BATCH, RECORDS)
    assert answers.type == pa.bool_()
    assert [row["offset"] for row, answer in zip(ROWS, answers.to_pylist(), strict=True) if answer] == [
        row["offset"] for row in ROWS if holds(row)
    ]


WRONG = [
    "", "   ", "offset =", "offset = = 1", "(offset = 1", "offset", "key", "length(value)", "1", "'text'", "offset + 1",
    "ofset = 1", "records.ofset = 1", "offset = 'many'", "timestamp > 'yesterday'", "timestamp > 5", "key > 5",
    "topic = 5", "offset like '1%'", "timestamp like '2024%'", "key like topic", "contains(value, key)",
    "contains(offset, 'x')", "length(offset) > 1", "upper(topic) = 'X'", "offset in (select 1)", "exists (select 1)",
    "offset & 2 = 0", "case when offset = 1 then true end", "not key", "-key = 1", "key and offset", "offset or true",
    "headers = 'x'", "headers[0] = 'x'", "topic is null and topic.key = 'x'", "offset = 99999999999999999999999",
    "offset + 9223372036854775807 = 0", "cast(offset as string) = '1'", "offset = 1; drop table x",
    "offset = 1, key = 'a'", "select 1", "drop table records", "offset is 5", "count(*) > 1", "*", "offset = ?", "\0",
    "length(*) = 1", "offset between 'a' and 'b'", "offset in ('a')", "topic ilike 5", "value is true", "contains(value)",
    "topic like any ('x', 'y')", "topic like 'x' escape '!'", "offset between symmetric 3 and 1", "offset in unnest(headers)",
    "topic rlike 'o('", "offset is distinct from 1", "other.offset = 1", "a.b.offset = 1",
]  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_condition_is_an_option_error(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        columns_of(text, RECORDS)
        evaluate(text, BATCH, RECORDS)
    assert str(caught.value)
    with pytest.raises(OptionError):
        rawlog.read(golden_path("replay", "v2", "find.log"), where=text)


@pytest.mark.parametrize("text", ["key > 5", "offset", "upper(topic) = 'X'", "timestamp > 'yesterday'"])
def test_a_wrong_expression_is_refused_before_anything_is_read(text: str) -> None:
    """Where no row was there to ask, a wrong expression went unnoticed."""
    with pytest.raises(OptionError):
        rawlog.open(golden_path("replay", "v2", "find.log")).table("records", where=text)


def test_an_unknown_column_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean offset"):
        columns_of("offsett > 3", RECORDS)


def test_columns_are_named_once_and_in_order() -> None:
    assert columns_of("value = key or key = 'a' and offset > 1", RECORDS) == ["value", "key", "offset"]


def test_booleans_and_doubles_are_compared_too() -> None:
    table = Table("t", Column("flag", "boolean"), Column("ratio", "double"), Column("small", "smallint"))
    batch = pa.RecordBatch.from_pylist(
        [{"flag": True, "ratio": 0.5, "small": 1}, {"flag": False, "ratio": 2.0, "small": -1}, {}], schema=table.schema
    )
    for text, picked in {
        "flag": [True, False, None],
        "not flag": [False, True, None],
        "flag = true": [True, False, None],
        "flag is true": [True, False, False],
        "flag is not true": [False, True, True],
        "ratio < 1": [True, False, None],
        "ratio = 2": [False, True, None],
        "small = -1": [False, True, None],
        "flag or small = -1": [True, True, None],
    }.items():
        assert evaluate(text, batch, table).to_pylist() == picked, text


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_an_option_error(text: str) -> None:
    try:
        columns_of(text, RECORDS)
        evaluate(text, BATCH, RECORDS)
    except OptionError:
        pass


WORDS = [
    "offset", "key", "topic", "timestamp", "headers", "1", "-1", "'a'", "''", "null", "true", "=", "<", ">=", "<>", "and",
    "or", "not", "in", "(", ")", ",", "between", "like", "is", "length(", "contains(", "+", "*", "%", "[", "]", "case", "::",
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join))
def test_any_words_are_a_condition_or_an_option_error(text: str) -> None:
    try:
        columns_of(text, RECORDS)
        evaluate(text, BATCH, RECORDS)
    except OptionError:
        pass
