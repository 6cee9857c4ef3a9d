"""Metadata directories show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from collections.abc import Sequence

from rawlog.model.finding import Finding
from rawlog.model.report import Action, Entry
from rawlog.testing.store import StoreTests, serious
from tests.data.golden import golden_path


class TestMetadata(StoreTests):
    family = "kraft"
    stores = (golden_path("kafka", "broker-4.3.0", "data", "__cluster_metadata-0"),)
    # Kafka derives them from the metadata log when it starts; the topic id in partition.metadata is the same in every cluster.
    derived = ("*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata")

    def is_explained(self, entry: Entry, found: Sequence[Finding]) -> bool:
        """A controller replays one log without a gap: damage in one segment decides about the sound ones before it, which a new
        snapshot replaces.
        """
        is_dropped = entry.action is Action.DROPPED and "the log that is kept" in entry.reason
        is_snapshot = entry.action is Action.ADDED and str(entry.path).endswith(".checkpoint")
        return super().is_explained(entry, found) or ((is_dropped or is_snapshot) and bool(serious(found)))
