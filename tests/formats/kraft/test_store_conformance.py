"""Metadata directories show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from rawlog.testing import StoreTests
from tests.golden_data import golden_path


class TestMetadata(StoreTests):
    family = "kraft"
    stores = (golden_path("kafka", "broker-4.3.0", "data", "__cluster_metadata-0"),)
    # Kafka derives them from the metadata log when it starts; the topic id in partition.metadata is the same in every cluster.
    derived = ("*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata")
