"""Snapshots show what every format must (`rawlog.testing`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rawlog.formats.kafka.cluster.writer import encode_checkpoint
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.testing import FormatTests
from tests.data.golden import GOLDEN
from tests.data.kraft import BROKERS, data_dir, dumped_metadata
from tests.reference import kafka

RECORDS = [
    encode_framed("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 25}),
    encode_framed("TopicRecord", {"name": "demo", "topicId": bytes(range(16))}),
    encode_framed("UserScramCredentialRecord", {"name": "alice", "mechanism": 1, "salt": b"salt", "iterations": 4096}),
]


class TestCheckpoint(FormatTests):
    format = "kraft.checkpoint"
    golden = sorted(path for broker in BROKERS for path in data_dir(broker).rglob("*.checkpoint"))
    small = (b"".join(encode_checkpoint(RECORDS, 3, 1_700_000_000_000)), b"".join(encode_checkpoint([], 3, 0)))
    everything = GOLDEN
    name = "__cluster_metadata-0/00000000000000000007-0000000003.checkpoint"

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        for broker in BROKERS:
            if data_dir(broker) in path.parents:
                rows = dumped_metadata(broker).get(str(path.relative_to(data_dir(broker))), [])
                columns = ("offset", "type", "is_control")
                return {"kraft.metadata": [{name: row[name] for name in columns} for row in rows]} if rows else {}
        raise AssertionError(path)

    def protected(self, data: bytes) -> Iterable[int]:
        for position, size, _ in kafka.frames(data)[0]:
            yield from range(position + 17, position + size)

    def owns(self, path: Path) -> bool | None:
        return path.name.endswith(".checkpoint")
