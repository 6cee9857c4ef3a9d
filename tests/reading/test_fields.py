"""Fields of JSON values and headers: the kernel compared with Python's json, in `--where`, on hostile texts."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS, parse_path
from rawlog.reading.fields import field_of
from rawlog.reading.where import columns_of, evaluate

NAMES = st.sampled_from(["a", "b", "user", "x y", "é", 'q"', ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
STEPS = st.lists(NAMES | st.integers(0, 3), max_size=3)


def expected(document: Any, steps: list[Any]) -> str | None:
    for step in steps:
        try:
            if isinstance(step, str) != isinstance(document, dict):
                return None
            document = document[step]
        except (KeyError, IndexError, TypeError):
            return None
    if document is None or isinstance(document, str):
        return document
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


@given(st.lists(VALUES, min_size=1, max_size=4), STEPS, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_a_field_is_what_python_finds(documents: list[Any], steps: list[Any], indent: Any, ascii: bool) -> None:
    texts = [json.dumps(one, indent=indent, ensure_ascii=ascii).encode() for one in documents]
    found = field_of(pa.array([None, *texts], pa.binary()), tuple(steps)).to_pylist()
    assert found[0] is None
    for one, document in zip(found[1:], documents, strict=True):
        wanted = expected(document, steps)
        if wanted is None or isinstance(document, str) or one is None:
            assert one == wanted
        else:
            assert one == wanted or json.loads(one) == json.loads(wanted)


@given(st.lists(st.binary(max_size=30) | st.text('{}[]",:\\ abu1n', max_size=20).map(str.encode), max_size=5), STEPS)
def test_any_bytes_are_read_without_harm(texts: list[bytes], steps: list[Any]) -> None:
    found = field_of(pa.array(texts, pa.binary()), tuple(steps))
    found.validate(full=True)
    assert len(found) == len(texts)


def test_paths() -> None:
    assert parse_path("value.items[0].sku") == ("value", ("items", 0, "sku"))
    assert parse_path("headers.trace-id") == ("headers", ("trace-id",))
    for text in ("", "[0]", "value..x", "value[x]", "value."):
        with pytest.raises(OptionError):
            parse_path(text)


def rows(*values: Any) -> pa.RecordBatch:
    made = [
        {
            "value": one if isinstance(one, bytes) else json.dumps(one).encode(),
            "headers": [{"key": "h", "value": str(at).encode()}],
        }
        for at, one in enumerate(values)
    ]
    return pa.RecordBatch.from_pylist(made, schema=RECORDS.schema)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("value.user = 'ann'", [True, False, None, None]),
        ("value.n > 5", [False, True, None, None]),
        ("value.n + 1 = 6", [True, False, None, None]),
        ("value.inner.items[1].x = 'y'", [True, None, None, None]),
        ("value.ok = true", [True, False, None, None]),
        ("value.user IS NULL", [False, False, True, True]),
        ("value.user LIKE 'a%' AND value.n BETWEEN 1 AND 9", [True, False, None, None]),
        ("records.value.user IN ('bob', 'eve')", [False, True, None, None]),
        ("headers.h = '2'", [False, False, True, False]),
        ("headers.h < 2", [True, True, False, False]),
    ],
)
def test_where_asks_for_fields(text: str, wanted: list[bool | None]) -> None:
    batch = rows(
        {"user": "ann", "n": 5, "ok": True, "inner": {"items": [0, {"x": "y"}]}},
        {"user": "bob", "n": 6.5, "ok": False},
        {"other": 1},
        b"not json",
    )
    found = evaluate(text, batch, RECORDS).to_pylist()
    assert found == wanted


def test_the_column_of_a_field_is_read() -> None:
    assert columns_of("value.user.name = 'x' OR headers.h = '1' OR key.a[0] = 2", RECORDS) == [
        "value",
        "headers",
        "key",
    ]
    with pytest.raises(OptionError):
        columns_of("topic.user = 'x'", RECORDS)


def test_half_a_character_is_replaced() -> None:
    """JSON can write one half of a character, UTF-8 cannot: the run ended with an internal error."""
    texts = [
        rb'{"a":"\ud800"}',
        rb'{"\u0061":"\udc00x"}',
        rb'{"a":"\ud83d\ude00"}',
        rb'{"a":{"b":"\ud800"},"\u0062":1}',
    ]
    found = field_of(pa.array(texts, pa.binary()), ("a",)).to_pylist()
    assert found == ["\ufffd", "\ufffdx", "\U0001f600", r'{"b":"\ud800"}']


def test_escapes_do_not_change_which_member_counts() -> None:
    """Texts with escapes were read by Python, where the last member of a name counts, and the rest of the text matters."""
    texts = [b'{"a":"x","a":"y"}', rb'{"a":"\u0078","a":"y"}', rb'{"a":"\u0078" damaged', rb'{"\u0061":"x","a":"y"}']
    assert field_of(pa.array(texts, pa.binary()), ("a",)).to_pylist() == ["x"] * 4
    numbers = [b'{"a":1.10}', rb'{"\u0061":1.10}', rb'{"\u0061":12345678901234567890}', rb'{"\u0061":true}']
    assert field_of(pa.array(numbers, pa.binary()), ("a",)).to_pylist() == [
        "1.10",
        "1.10",
        "12345678901234567890",
        "true",
    ]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("value.n = 9223372036854775807", [0]),
        ("value.n = 9223372036854775808", [1]),
        ("value.n > 9007199254740992", [0, 1, 2, 5]),
        ("9007199254740992 < value.n", [0, 1, 2, 5]),
        ("value.n = 9007199254740993", [2]),
        ("value.n < -9007199254740993", [6]),
        ("value.n IN (9223372036854775808, 1.5)", [1, 3]),
        ("value.n BETWEEN 9223372036854775807 AND 12345678901234567890", [0, 1]),
    ],
)
def test_large_whole_numbers_are_compared_exactly(where: str, rows: list[int]) -> None:
    """They were compared as floats: 2^53 + 1 was 2^53, and a literal above it an error."""
    numbers = [
        "9223372036854775807",
        "9223372036854775808",
        "9007199254740993",
        "1.5",
        '"x"',
        "1e300",
        "-9007199254740994",
    ]
    batch = pa.RecordBatch.from_pylist(
        [{"value": f'{{"n":{one}}}'.encode(), "offset": row} for row, one in enumerate(numbers)],
        schema=pa.schema([RECORDS.schema.field("value"), RECORDS.schema.field("offset")]),
    )
    found = evaluate(where, batch, RECORDS).to_pylist()
    assert [row for row, holds in enumerate(found) if holds] == rows
