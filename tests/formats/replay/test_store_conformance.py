"""Recordings show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from rawlog.testing.store import StoreTests
from tests.data.golden import golden_path


class TestRecording(StoreTests):
    family = "replay"
    stores = (golden_path("replay", "v2", "basic.log"), golden_path("replay", "v1", "basic-v1.0.0.log"))
