"""Partitions show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from typing import ClassVar

from rawlog.testing.store import StoreTests
from tests.data.golden import golden_path

DATA = golden_path("kafka", "broker-4.3.0", "data")
#: After everything in the golden files, so that nothing depends on when the tests run.
NOW = "1900000000000"


class TestPartition(StoreTests):
    family = "kafka"
    stores = (DATA / "codec-none-0", DATA / "segments-by-size-0", DATA / "transactions-0")
    options: ClassVar = {"compact": {"now": NOW}}
    # Indexes depend on settings that no file has (index.interval.bytes); producer snapshots at the end are left to the broker.
    # A broker drops an epoch that has no records yet when it loads the partition (its start is the end of the log), and so does repair.
    derived = ("*.snapshot", "*.index", "*.timeindex", "leader-epoch-checkpoint")
    repeated: ClassVar = {
        "compact": "Kafka's cleaner gives a transaction's marker its delete horizon one round after the records went"
    }
