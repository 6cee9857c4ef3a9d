"""Message stores show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from rawlog.testing.store import StoreTests
from tests.data.golden import golden_path


class TestMessageStore(StoreTests):
    family = "rocketmq"
    stores = (golden_path("rocketmq", "4.9.8", "store"), golden_path("rocketmq", "5.1.4", "store"))
    # The key index is named by the time at which it was begun; lock and abort.bak belong to the process; the checkpoint has the times of
    # what was derived last. A broker does not serve a topic without settings, so topics.json is added.
    derived = ("index/*", "lock", "config/topics.json", "checkpoint", "abort.bak")
