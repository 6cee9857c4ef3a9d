"""One wound, one answer: legacy-v0 legacy-codecs legacy-compacted."""

from __future__ import annotations

import pytest

from tests.wounds import suite
from tests.wounds.checking import check


@pytest.mark.parametrize(("subject", "wound"), suite.chosen("legacy-v0", "legacy-codecs", "legacy-compacted"))
def test_one_wound_one_answer(subject: str, wound: str) -> None:
    check(subject, wound)
