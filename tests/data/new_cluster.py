"""A single-node cluster that does not exist yet, as the files of a log directory that a broker starts on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog.formats.kafka.cluster.metadata import METADATA_VERSION, record_version
from rawlog.formats.kafka.cluster.writer import (
    TRANSACTION_LEVEL,
    Framed,
    Record,
    Voter,
    encode_controls,
    encode_data,
    quorum_records,
)
from rawlog.formats.kafka.internal.codec import uuid_text
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.formats.kafka.log.layouts import ControlType
from rawlog.formats.kafka.paths import METADATA_DIRECTORY, segment_name
from rawlog.io.output import Folder


@dataclass(frozen=True, slots=True)
class NewCluster:
    """A single-node cluster that does not exist yet: what its first log says.

    `records` are (name, version or None, message); `directory_id` and `endpoints` make the quorum a dynamic one.
    """

    node: int
    level: int
    timestamp: int
    records: Sequence[Record] = ()
    epoch: int = 1
    directory_id: bytes | None = None
    endpoints: tuple[tuple[str, str, int], ...] = ()
    features: Mapping[str, int] = field(default_factory=dict)

    def log(self) -> Iterator[bytes]:
        """The bytes of `__cluster_metadata-0/00000000000000000000.log`: the leader, the quorum, and the records in one transaction."""
        voter = [{"voterId": self.node}]
        leader = {"version": 0, "leaderId": self.node, "voters": voter, "grantingVoters": voter}
        first: list[tuple[int, Mapping[str, Any]]] = [(ControlType.LEADER_CHANGE, leader)]
        if self.directory_id is not None:
            first += quorum_records(1, [Voter(self.node, self.directory_id, self.endpoints).message()])
        yield encode_controls(0, self.epoch, self.timestamp, first)
        yield from encode_data(len(first), self.epoch, self.timestamp, self._bootstrap_records())

    def _bootstrap_records(self) -> Iterator[Framed]:
        bracketed = self.level >= TRANSACTION_LEVEL
        if bracketed:
            yield encode_framed("BeginTransactionRecord", {"name": "Bootstrap records"})
        yield encode_framed("FeatureLevelRecord", {"name": METADATA_VERSION, "featureLevel": self.level})
        for name, feature in sorted(self.features.items()):
            yield encode_framed("FeatureLevelRecord", {"name": name, "featureLevel": feature})
        for name, version, message in self.records:
            yield encode_framed(name, message, record_version(name, self.level) if version is None else version)
        if bracketed:
            yield encode_framed("EndTransactionRecord", {})

    def write(self, folder: Folder, cluster_id: str) -> None:
        """The files of a log directory that a broker starts on: the log, and `meta.properties` next to it. AccessError if they exist."""
        with folder.create(f"{METADATA_DIRECTORY}/{segment_name(0)}") as out:
            out.writelines(self.log())
        text = f"#\nnode.id={self.node}\nversion=1\ncluster.id={cluster_id}\n"
        if self.directory_id is not None:
            text += f"directory.id={uuid_text(self.directory_id)}\n"
        folder.write("meta.properties", text)
