"""The time that a page may take is no limit here: the machine may be busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def patience() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        for module in ("rows", "sql", "views"):
            patched.setattr(f"rawlog.pages.browser.{module}.SECONDS", 300.0)
        yield
