from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.kernels import byte_view, gather
from rawlog.model.status import Status


@pytest.mark.parametrize("name", ["copy", "copy_exact"])
@settings(deadline=None, max_examples=60)
@given(
    size=st.integers(0, 100) | st.integers(1000, 1100),
    start=st.integers(0, 40),
    behind=st.integers(0, 40),
    to=st.integers(0, 40),
    room=st.integers(0, 40),
)
def test_copies_move_the_span_and_stay_inside_the_arrays(
    plain: Any, wrappers: Any, name: str, size: int, start: int, behind: int, to: int, room: int
) -> None:
    data = np.arange(start + size + behind, dtype=np.int64).astype(np.uint8)
    guarded = np.zeros(64 + to + size + room + 64, np.uint8)
    out = guarded[64 : 64 + to + size + room]
    getattr(wrappers, name)(out, to, byte_view(data), start, size)
    assert out[to : to + size].tobytes() == data[start : start + size].tobytes()
    assert not out[:to].any()
    assert not guarded[:64].any()
    assert not guarded[-64:].any()
    _, arguments = plain(None, name, np.zeros_like(out), to, byte_view(data), start, size)
    assert arguments[0][to : to + size].tobytes() == data[start : start + size].tobytes()


@settings(deadline=None)
@given(data=st.binary(max_size=200), draw=st.data(), room=st.integers(0, 300))
def test_gathered_spans_equal_slices_compiled_or_not(plain: Any, data: bytes, draw: st.DataObject, room: int) -> None:
    spans = draw.draw(st.lists(st.tuples(st.integers(-2, len(data) + 2), st.integers(-1, len(data) + 2)), max_size=8))
    starts = np.array([start for start, _ in spans], np.int64)
    sizes = np.array([size for _, size in spans], np.int64)
    out, offsets = np.zeros(room, np.uint8), np.zeros(len(spans) + 1, np.int32)
    count, written, status = gather.gather_spans(byte_view(data), starts, sizes, out, offsets)
    expected, places = b"", [0]
    expected_status = Status.OK
    for start, size in spans:
        if size > 0 and (start < 0 or start + size > len(data)):
            expected_status = Status.BAD_LENGTH
            break
        if size > 0 and len(expected) + size > room:
            expected_status = Status.FULL
            break
        expected += data[start : start + size] if size > 0 else b""
        places.append(len(expected))
    assert (count, written, status) == (len(places) - 1, len(expected), expected_status)
    assert out[:written].tobytes() == expected
    assert offsets[: count + 1].tolist() == places
    result, arguments = plain(
        "rawlog.kernels.gather", "gather_spans", byte_view(data), starts, sizes, np.zeros_like(out), offsets * 0
    )
    assert tuple(result) == (count, written, status)
    assert arguments[3][:written].tobytes() == expected


@settings(deadline=None)
@given(data=st.binary(max_size=120), draw=st.data(), short=st.integers(0, 3))
def test_spliced_spans_equal_slices_compiled_or_not(plain: Any, data: bytes, draw: st.DataObject, short: int) -> None:
    """Also with spans that are not in order, and with too little room."""
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), min_size=2, max_size=8)))
    pieces = draw.draw(st.binary(max_size=40))
    spans = list(zip(cuts[1:-1:2], cuts[2:-1:2], strict=False))
    if draw.draw(st.booleans()):
        spans.reverse()
    sizes = [draw.draw(st.integers(0, len(pieces))) for _ in spans]
    places = [draw.draw(st.integers(0, len(pieces) - size)) for size in sizes]
    expected, position = b"", cuts[0]
    for (start, stop), place, size in zip(spans, places, sizes, strict=True):
        expected += data[position:start] + pieces[place : place + size]
        position = stop
    expected += data[position : cuts[-1]]
    is_sorted = all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    table = [np.array(one, np.int64) for one in ([a for a, _ in spans], [b for _, b in spans], places, sizes)]
    out = np.zeros(max(0, len(expected) - short) if is_sorted else 400, np.uint8)
    given_ = (byte_view(data), cuts[0], cuts[-1], *table[:2], byte_view(pieces), *table[2:])
    _, written, status = gather.splice_spans(*given_, out)
    if not is_sorted:
        assert status == Status.BAD_LENGTH
    elif out.size < len(expected):
        assert status == Status.FULL
    else:
        assert (out[:written].tobytes(), status) == (expected, Status.OK)
    other, arguments = plain("rawlog.kernels.gather", "splice_spans", *given_, np.zeros_like(out))
    assert (int(other[1]), int(other[2])) == (int(written), int(status))
    assert arguments[-1][:written].tobytes() == out[:written].tobytes()
