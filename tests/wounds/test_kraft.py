"""One wound, one answer: kraft-log and kraft-topics."""

from __future__ import annotations

import pytest

from tests.wounds import suite
from tests.wounds.checking import check


@pytest.mark.parametrize(("subject", "wound"), suite.chosen("kraft-log", "kraft-topics"))
def test_one_wound_one_answer(subject: str, wound: str) -> None:
    check(subject, wound)
