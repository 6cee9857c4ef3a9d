"""KRaft: a metadata log of many segments with its snapshots, as a controller keeps it; and the topics that a cluster gets from it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.reference import kafka
from tests.reference.kraft import decode_frame
from tests.wounds.kafka import BROKERS, Kafka
from tests.wounds.truth import Frame, Record, Subject, digest


class Kraft(Kafka):
    name = "kraft"
    data = ("__cluster_metadata-0/*.log",)
    derived = tuple(f"__cluster_metadata-0/*.{kind}" for kind in ("index", "timeindex", "txnindex", "snapshot"))
    skip = "nothing is skipped"


class Topics(Kraft):
    """The topics that are left of a metadata log, or of the file that a rescued node makes one from. Each is a record; internal ones, which
    the new node makes again, are none.
    """

    data = (*Kraft.data, "bootstrap.checkpoint")

    def frames(self, root: Path, file: Path) -> list[Frame]:
        removed = {digest(fields["topicId"]) for kind, fields in self.changes(root) if kind == "RemoveTopicRecord"}
        frames = []
        for batch in kafka.decode(file.read_bytes()):
            values = [] if batch.is_control else [decode_frame(record.value or b"") for record in batch.records]
            topics = [
                Record(fields["name"], 0, digest(fields["topicId"]))
                for kind, _, fields in values
                if kind == "TopicRecord"
            ]
            kept = tuple(topic for topic in topics if topic.digest not in removed and topic.place[:2] != "__")
            name, stop = str(file.relative_to(root)), batch.position + batch.size
            frames.append(Frame(name, batch.position, stop, "", batch.base_offset or 0, batch.last_offset, kept))
        return frames

    def changes(self, root: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        for file in self.files(root, self.data):
            for batch in kafka.decode(file.read_bytes()):
                for record in () if batch.is_control else batch.records:
                    kind, _, fields = decode_frame(record.value or b"")
                    yield kind, fields


FAMILY = Kraft()
TOPICS = Topics()


def controller(root: Path) -> None:
    shutil.copytree(BROKERS / "broker-4.3.0" / "data" / "__cluster_metadata-0", root / "__cluster_metadata-0")


def node(root: Path) -> None:
    """A controller alone: `rescue` makes a new node with its topics."""
    controller(root)
    shutil.copy(BROKERS / "broker-4.3.0" / "data" / "meta.properties", root)


SUBJECTS = [
    Subject("kraft-log", FAMILY, controller, frozenset({"snapshots", "epochs"})),
    Subject("kraft-topics", TOPICS, node, frozenset({"topics"}), only=frozenset({"rescue", "rescue-replica"})),
]
