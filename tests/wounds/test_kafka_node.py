"""One wound, one answer: kafka-node."""

from __future__ import annotations

import pytest

from tests.wounds import suite
from tests.wounds.checking import check


@pytest.mark.parametrize(("subject", "wound"), suite.chosen("kafka-node"))
def test_one_wound_one_answer(subject: str, wound: str) -> None:
    check(subject, wound)
