"""One wound, one answer: rocketmq-store rocketmq-broker."""

from __future__ import annotations

import pytest

from tests.wounds import suite
from tests.wounds.checking import check


@pytest.mark.parametrize(("subject", "wound"), suite.chosen("rocketmq-store", "rocketmq-broker"))
def test_one_wound_one_answer(subject: str, wound: str) -> None:
    check(subject, wound)
