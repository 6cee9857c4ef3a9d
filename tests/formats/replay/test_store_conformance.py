"""Recordings show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from rawlog.testing import StoreTests
from tests.golden_data import golden_path


class TestRecording(StoreTests):
    family = "replay"
    stores = (golden_path("replay", "v2", "basic.log"), golden_path("replay", "v1"))
    derived = ("expected/*",)  # not recordings: what is known of the golden files
