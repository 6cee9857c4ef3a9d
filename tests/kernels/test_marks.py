"""Fields of JSON texts marked by a kernel, and masked by columns: what Python's own reading of each text gives."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.kernels import byte_view, grammar
from rawlog.model.table import RECORDS
from rawlog.reading.select import Tally
from rawlog.values.documents import parsed
from rawlog.values.mask import Mask, _path
from rawlog.values.masker import Masker, MaskRule

NAMES = st.sampled_from(["a", "b", "c d", "é"])
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["x", "4111-1", 'q"\\'])
)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
DOCUMENTS = st.dictionaries(NAMES, TREES, max_size=4) | st.lists(TREES, max_size=3) | LEAVES
PATHS = st.sampled_from(
    ["value.a", "value.b", "value.é", "value.a.b", "value.a[*]", "value[0].a", "value[*].b", "value.a[0].b"]
)
STYLES = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}])


class OneByOne(Mask):
    """A mask that reads every text."""

    def spliced(self, splices: Any, rows: Any, changes: Any) -> Any:
        return np.zeros(rows.size, np.bool_)


def masked(kind: type[Mask], values: list[bytes | None], given: dict[str, str]) -> tuple[list[bytes | None], Tally]:
    rules = [MaskRule(text, *_path(text), how, b"new") for text, how in given.items()]
    mask = kind(rules, Masker(b"secret of a test"), "hash")
    column = pa.array([b"out of the slice", *values], pa.binary()).slice(1)
    batch = mask.apply(pa.record_batch([column], ["value"]), RECORDS)
    batch.validate(full=True)
    return batch.column(0).to_pylist(), +mask.counts


def content(value: bytes | None) -> Any:
    """A text as it is read: members in order, numbers as they are written; other bytes as they are."""
    try:
        return None if value is None else (value[:5], parsed(value[5:])) if value[:1] == b"\0" else parsed(value)
    except (ValueError, RecursionError):
        return value


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(DOCUMENTS, STYLES, st.sampled_from([b"", b"", b"\0\0\0\0\7"])), min_size=1, max_size=3),
    st.dictionaries(PATHS, st.sampled_from(["hash", "digits", "fixed", "drop"]), min_size=1, max_size=3),
    st.integers(0, 200),
    st.binary(max_size=2),
)
def test_columns_give_what_reading_gives(
    documents: list[tuple[Any, dict[str, Any], bytes]], given: dict[str, str], at: int, damage: bytes
) -> None:
    values: list[bytes | None] = [frame + json.dumps(one, **style).encode() for one, style, frame in documents]
    first = values[0] or b""
    values += [None, b"", first[:at] + damage + first[at + 1 :], b'{"a": 1, "a": "x", "b": [ {"b": 2} ,{"b":null}]}']
    quick, quick_counts = masked(Mask, values, given)
    slow, slow_counts = masked(OneByOne, values, given)
    assert quick_counts == slow_counts
    assert [content(one) for one in quick] == [content(one) for one in slow]
    for (_, style, _), one, other in zip(documents, quick, slow, strict=False):
        if style == {"ensure_ascii": False}:
            assert one == other


@pytest.mark.parametrize(
    ("text", "path", "how", "wanted"),
    [
        (b'{ "a" : "x",\n "b":1 }', "value.a", "fixed", b'{ "a" : "new",\n "b":1 }'),
        (b'{"a":1,"b":"\\u00e9"}', "value.a", "drop", b'{"b":"\\u00e9"}'),
        (b'{"b":1, "a":{"c":[1,2]}}', "value.a", "drop", b'{"b":1}'),
        (b'{"a":1}', "value.a", "drop", b"{}"),
        (b'{"a":[1,"x"]}', "value.a[*]", "drop", b'{"a":[null,null]}'),
        (b'{"a":null}', "value.a", "drop", b'{"a":null}'),
    ],
)
def test_all_other_bytes_stay(text: bytes, path: str, how: str, wanted: bytes) -> None:
    assert masked(Mask, [text], {path: how})[0] == [wanted]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":01}', b'{"a":1.}', b'{"a":-}', b'{"a":1e}', b'{"a":"\x01"}', b'{"a":"\\x"}', b'{"a":"\\u12g4"}', b'{"a":"\xff"}',
        b'{"a":1,}', b'{,}', b'{"a":1 "b":2}', b'{"a"}', b'[1,]', b'{"a":1]', b'{"a":1}}', b'{"a":tru}', b'{"a":nul', b"{'a':1}",
        b'{"a":"', b'"a"', b'5', b'', b'[', b"[" * 70 + b"]" * 70, b'{"a":NaN}', b'{"\\u0061":1}',
    ],
)  # fmt: skip
def test_what_the_kernel_does_not_take(text: bytes) -> None:
    """Damage, and what Python takes but few write: Python decides about these."""
    paths, drops = np.array([[0, 1, grammar.NAME]], np.int64), np.array([0, 1], np.int64)
    done = np.ones(1, np.bool_)
    grammar.mark_fields(
        byte_view(text), np.zeros(1, np.int64), np.array([len(text)]), 0, byte_view(b"a"), paths, drops, 0,
        np.zeros(grammar.ROOM, np.int64), np.zeros((9, 5), np.int64), 0, np.zeros(1, np.int64), done,
    )  # fmt: skip
    assert not done[0]


def test_the_compiler_changes_nothing(plain: Any) -> None:
    texts = [
        b'{"a": {"b": [1, "x\\n"], "c": 2}, "a": null}',
        b'{"a": 7}',
        b"[1",
        b'{"a":{"b":["y"]}}',
        b'{"d":0, "e" : -1.5e3}',
    ]
    edges = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    names, steps = b"abade", [[0, 1, -2], [1, 2, -2], [0, 0, -1], [2, 3, -2], [3, 4, -2], [4, 5, -2]]

    def given() -> list[Any]:
        made = [byte_view(b"".join(texts)), edges[:-1], edges[1:], 0, byte_view(names), np.array(steps, np.int64)]
        made += [np.array([0, 3, 5, 6], np.int64), 4, np.zeros(grammar.ROOM, np.int64), np.zeros((9, 5), np.int64), 0]
        return [*made, np.zeros(5, np.int64), np.zeros(5, np.bool_)]

    here = given()
    answer = grammar.mark_fields(*here)
    other, changed, *_ = plain("rawlog.kernels.grammar", "mark_fields", *given())
    assert tuple(map(int, answer)) == tuple(map(int, other))
    assert here[-1].tolist() == changed[-1].tolist() == [True, True, False, True, True]
    assert here[-4].tolist() == changed[-4].tolist()
    assert here[-2].tolist() == changed[-2].tolist()
