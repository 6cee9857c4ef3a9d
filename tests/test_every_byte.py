"""A part of what docs/every-byte.md says, tried again: `make every-byte` tries all of it."""

from __future__ import annotations

import pytest

from tests import every_byte


@pytest.mark.parametrize("case", every_byte.CASES, ids=lambda case: case.name)
def test_the_table_of_every_byte_holds(case: every_byte.Case) -> None:
    assert every_byte.sample(case, 24, seed=27) == [], "run `make every-byte` and look at what the table says now"
