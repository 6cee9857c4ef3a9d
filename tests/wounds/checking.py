"""The one test that all test files of this directory share."""

from __future__ import annotations

import pytest

from tests.wounds import ledger, suite
from tests.wounds.wounds import WOUNDS


def check(subject: str, name: str) -> None:
    """Run every verb on one wound, and compare what is wrong with the ledger."""
    verdicts = suite.outcomes(subject, WOUNDS[name])
    if verdicts is None:
        pytest.skip(f"{subject} has no place for {name}")
    wrong = {(verdict.verb, check): what for verdict in verdicts for check, what in verdict.wrong.items()}
    case = f"{subject}/{name}"
    listed = ledger.known(case)
    new = [f"{case} {verb} {check}: {what}" for (verb, check), what in wrong.items() if (verb, check) not in listed]
    gone = [
        f"{case} {verb} {check} is right now: row {ledger.row_of(case, (verb, check))}"
        for verb, check in listed - wrong.keys()
    ]
    assert not new + gone, "\n".join(
        ["", *new, *gone, "`python -m tests.wounds --ledger` writes tests/wounds/known.txt again"]
    )
