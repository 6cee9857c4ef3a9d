"""Damage at random: whatever the verbs say, none crashes or changes its source, and repair keeps what was not destroyed.

`make deep` runs many seeds.
"""

from __future__ import annotations

import pytest

from tests.wounds import suite
from tests.wounds.wounds import RANDOM

SEEDS = 200 if suite.IS_DEEP else 2
ALWAYS = frozenset({"crash", "source", "unstable"})


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("subject", [name for name, subject in suite.SUBJECTS.items() if RANDOM.fits(subject)])
def test_random_damage(subject: str, seed: int) -> None:
    verdicts = suite.outcomes(subject, RANDOM, seed, with_slow=False)
    assert verdicts is not None
    wrong = [
        f"{verdict.verb} {check}: {what}"
        for verdict in verdicts
        for check, what in verdict.wrong.items()
        if check in ALWAYS or (verdict.verb == "repair" and check != "silent")  # chance may leave no trace of an end
    ]
    assert not wrong, "\n".join([f"{subject}, seed {seed}", *wrong])
