"""The journal is registered for the tests below this directory, and for no others."""

from __future__ import annotations

import pytest

from rawlog import registry
from tests.cli.conftest import run

__all__ = ["run"]


@pytest.fixture(autouse=True)
def journal_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(registry.VARIABLE, "tests.sixth.journal")
