"""JSON texts checked many at once, compared with Python's parser."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.kernels.grammar import check_documents
from rawlog.values import documents

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
ODD = [
    b"", b" ", b"nul", b"nulll", b"true", b"[]", b"{}", b"[1,]", b"[,1]", b"{\"a\":1,}", b"{\"a\"}", b"{a:1}", b"01", b"-", b"-0",
    b"1.", b".5", b"1e", b"1e+5", b"1E-05", b"+1", b"0x1", b"NaN", b"[Infinity]", b"-Infinity", b'"a', b'"\\x"', b'"\\u12g4"',
    b'"\\ud800"', b'"\t"', b'"\x7f"', b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf0\x9f\x8e\x89"', b"\xef\xbb\xbf{}",
    b"[1]2", b"[1] \r\n\t", b"\t\n {\"a\" :\t[1 ,\r\n2 ] } ", b"\x0b1", b"[1\x0b]", b"[" * 400 + b"]" * 400, b"[" * 600 + b"]" *
    600, b"[" * 100_000, b"{\"a\":1,\"a\":2}", b"]", b"}", b"[}", b"{]", b'{"a":1]', b'[1}', b'{"a":{"b":[]}}', b'{"a":}', b'{,}',
    b'[[],{}]', b"1 2", b"/**/1", b"'a'", b'"\\', b'"\\u12', b"123456789012345678901234567890", b"1e999", b"\x00", b"null\x00",
]  # fmt: skip


def both(bodies: list[bytes]) -> None:
    """The same texts as Python's parser gives one by one."""
    stops = np.cumsum([len(one) for one in bodies], dtype=np.int64)
    starts = np.concatenate(([0], stops[:-1])).astype(np.int64)
    data = np.frombuffer(b"".join(bodies), np.uint8)
    numbers, texts = documents.texts(data, starts, stops)
    texts.validate(full=True)
    found = dict(zip(numbers.tolist(), texts.to_pylist(), strict=True))
    for number, body in enumerate(bodies):
        try:
            wanted = documents.to_json(body)
        except ValueError:
            wanted = None
        assert found.get(number) == wanted, body


def test_odd_texts() -> None:
    both(ODD)


@pytest.mark.parametrize("indent", [None, 1])
@given(values=st.lists(VALUES, min_size=1, max_size=5), seed=st.integers(0, 1 << 30))
def test_random_texts_whole_and_damaged(indent: int | None, values: list[object], seed: int) -> None:
    rng, bodies = random.Random(seed), []
    for value in values:
        body = bytearray(json.dumps(value, ensure_ascii=seed % 2 == 0, indent=indent).encode("utf-8", "surrogatepass"))
        bodies.append(bytes(body))
        bodies.append(bytes(body[: rng.randrange(len(body) + 1)]))
        body[rng.randrange(len(body))] = rng.choice(b'{}[]",:\\0e.\n\t \xffu')
        bodies.append(bytes(body))
    both(bodies)


def test_valid_texts_need_no_parser() -> None:
    bodies = [json.dumps({"a": [1, -2.5e-7, "ä\n", None, True, {"b": []}], "c": {}}).encode(), b" 7 ", b'"x"']
    stops = np.cumsum([len(one) for one in bodies], dtype=np.int64)
    starts = np.concatenate(([0], stops[:-1])).astype(np.int64)
    begins, ends = np.empty(3, np.int64), np.empty(3, np.int64)
    data = np.frombuffer(b"".join(bodies), np.uint8)
    assert check_documents(data, starts, stops, np.empty(8, np.uint8), begins, ends) == 3
    assert bytes(data[begins[1] : ends[1]]) == b"7"
    assert check_documents(data, starts, stops, np.empty(1, np.uint8), begins, ends) == 2
