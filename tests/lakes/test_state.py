"""What a lake records of its sources is read as it was written, however it is divided for decoding."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.lakes import state

TEXTS = st.text(st.sampled_from('],["\\a /'), max_size=12)
ROWS = st.lists(st.lists(st.one_of(TEXTS, st.integers(), st.none(), st.lists(st.lists(TEXTS, max_size=2), max_size=3))))


@given(values=st.one_of(ROWS, st.lists(TEXTS)), piece=st.integers(1, 40))
def test_a_record_is_decoded_in_pieces_as_in_one(values: list[object], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "PIECE", piece)
        patch.setattr(state, "PACKED", piece * 3)
        assert list(state._unpack(state._pack(values))) == json.loads(json.dumps(values))
