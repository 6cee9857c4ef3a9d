"""One wound, one answer: ambry-store replay-v0 replay-v1 replay-v2."""

from __future__ import annotations

import pytest

from tests.wounds import suite
from tests.wounds.checking import check


@pytest.mark.parametrize(("subject", "wound"), suite.chosen("ambry-store", "replay-v0", "replay-v1", "replay-v2"))
def test_one_wound_one_answer(subject: str, wound: str) -> None:
    check(subject, wound)
