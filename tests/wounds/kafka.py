"""Kafka: partitions with and without the evidence that a broker's directory has, legacy logs, and a whole log directory."""

from __future__ import annotations

import shutil
import struct
import tarfile
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import rawlog
from tests.data.golden import GOLDEN
from tests.reference import kafka
from tests.wounds.truth import Family, Frame, Record, Subject, digest

BROKERS = GOLDEN / "kafka"


class Kafka(Family):
    name = "kafka"
    data = ("*/*.log",)
    derived = ("*/*.index", "*/*.timeindex", "*/*.txnindex", "*/*.snapshot")
    skip = "__cluster_metadata-"

    def files(self, root: Path, globs: Any) -> list[Path]:
        return [path for path in super().files(root, globs) if not path.parent.name.startswith(self.skip)]

    def frames(self, root: Path, file: Path) -> list[Frame]:
        place, found = file.parent.name, []
        try:
            for batch in kafka.decode(file.read_bytes()):
                records = () if batch.is_control else tuple(self.record(place, record) for record in batch.records)
                first = batch.records[0].offset if batch.base_offset is None else batch.base_offset
                name, stop = str(file.relative_to(root)), batch.position + batch.size
                found.append(Frame(name, batch.position, stop, place, first, batch.last_offset, records))
        except kafka.Bad:
            pass
        return found

    def record(self, place: str, record: kafka.Record) -> Record:
        return Record(place, record.offset, digest(record.timestamp, record.key, record.value))

    def row(self, row: Mapping[str, Any]) -> Record:
        place = f"{row['topic']}-{row['partition']}"
        return Record(place, row["offset"], digest(row["timestamp"], row["key"], row["value"]))


FAMILY = Kafka()


def checkpoints(root: Path, **ends: int) -> None:
    """The recovery point and the high watermark of a broker that was stopped cleanly."""
    lines = [f"{name.rpartition('-')[0]} {name.rpartition('-')[2]} {end}" for name, end in ends.items()]
    for name in ("recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        (root / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    for name in ("log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
        if not (root / name).exists():
            (root / name).write_text("0\n0\n")


def node(root: Path) -> None:
    """A cleanly stopped node with one topic that is not compacted: `orders`, 20 batches of 3 records in 4 segments."""
    start = datetime(2026, 11, 1, tzinfo=UTC)
    rows = [
        {"key": b"k%d" % (n % 7), "value": b"value %d " % n * 2, "offset": n, "timestamp": start + timedelta(seconds=n)}
        for n in range(60)
    ]
    bare = root.with_name(root.name + ".bare")
    options: dict[str, Any] = {"topic": "orders", "partition": 0, "batch_records": 3, "segment_bytes": 700}
    rawlog.write(bare, rows, format="kafka", **options)
    root.rmdir()
    rawlog.restore(bare, root, cluster_id="rawlogWoundsAAAAAAAAAA", threads=1)
    shutil.rmtree(bare)
    checkpoints(root, **{"orders-0": 60})
    metadata_log(root)


def metadata_log(root: Path) -> None:
    """What a node makes of `bootstrap.checkpoint` when it starts: a metadata log whose first batch has these records."""
    snapshot = kafka.decode((root / "bootstrap.checkpoint").read_bytes())
    values = [record.value for batch in snapshot if not batch.is_control for record in batch.records]
    encoded = b"".join(kafka.encode_record(n, 0, None, value, []) for n, value in enumerate(values))
    folder = root / "__cluster_metadata-0"
    folder.mkdir()
    batch = kafka.encode_batch(
        encoded, record_count=len(values), base_offset=0, leader_epoch=1, base_timestamp=1793491200000,
        max_timestamp=1793491200000, last_offset_delta=len(values) - 1,
    )  # fmt: skip
    (folder / f"{0:020}.log").write_bytes(batch)
    (folder / f"{0:020}.index").write_bytes(b"")
    (folder / f"{0:020}.timeindex").write_bytes(b"")
    (folder / "leader-epoch-checkpoint").write_text("0\n1\n1 0\n")
    (folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    (folder / "quorum-state").write_text(
        '{"leaderId":1,"leaderEpoch":1,"votedId":-1,"appliedOffset":0,"currentVoters":[{"voterId":1}],"data_version":0}'
    )


def bare(broker: str, *names: str) -> Callable[[Path], None]:
    """Partition directories alone, as somebody copies them off a disk."""

    def build(root: Path) -> None:
        for name in names:
            shutil.copytree(BROKERS / broker / "data" / name, root / name)

    return build


def on_disk(broker: str, *names: str, cleaned: bool = False) -> Callable[[Path], None]:
    """Partition directories in a cleanly stopped log directory whose checkpoints list them; it has no metadata log."""

    def build(root: Path) -> None:
        bare(broker, *names)(root)
        ends = {name: FAMILY.frames(root, max((root / name).glob("*.log")))[-1].last + 1 for name in names}
        checkpoints(root, **ends)
        if cleaned:
            lines = (BROKERS / broker / "data" / "cleaner-offset-checkpoint").read_text().splitlines()[2:]
            lines = [line for line in lines if "-".join(line.split()[:2]) in names]
            (root / "cleaner-offset-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines, ""]))
        (root / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=rawlogWoundsAAAAAAAAAA\n")
        (root / ".kafka_cleanshutdown").write_text("")

    return build


def whole(root: Path) -> None:
    """A whole log directory of a real 4.3.1 node: 17 partitions, internal topics, metadata log."""
    with tarfile.open(GOLDEN / "clusters" / "4.3.1-node.tar.xz") as archive:
        if hasattr(tarfile, "data_filter"):  # Debian's 3.11.2 has no filters; 3.12 warns without one
            archive.extraction_filter = tarfile.data_filter
        for member in archive:
            member.mode = 0o755 if member.isdir() else 0o644
            archive.extract(member, root)


#: Evidence: `policy` the metadata log gives the topic's settings (not compacted); `compacted` something shows that it is; `ends` high
#: watermark and recovery point; `clean` the mark of a clean stop; `sequences` producers number their records; `snapshots` a producer
#: snapshot names the end; `identity` the files that name node and cluster.
SUBJECTS = [
    Subject("kafka-node", FAMILY, node, frozenset({"policy", "ends", "clean", "snapshots", "identity"}), key="k3"),
    Subject(
        "kafka-lz4", FAMILY, bare("broker-4.3.0", "segments-by-size-0"), frozenset({"snapshots", "epochs"}), "key-3",
        frozenset({"rescue-replica"}),  # without a high watermark all of it is undecided
    ),
    Subject(
        "kafka-transactions", FAMILY, on_disk("broker-4.3.0", "transactions-0"),
        frozenset({"ends", "clean", "sequences", "snapshots", "transactions"}), key="no-such",
    ),
    Subject(
        "kafka-compacted", FAMILY, on_disk("broker-4.3.0", "compacted-0", cleaned=True),
        frozenset({"compacted", "ends", "clean", "snapshots"}), key="no-such",
    ),
]  # fmt: skip
LEGACY = [
    Subject("legacy-v0", FAMILY, on_disk("legacy/broker-2.8.2", "v0-plain-0"), frozenset({"legacy", "ends", "clean"}), key="no-such"),
    Subject("legacy-codecs", FAMILY, on_disk("legacy/broker-0.10.2.2", "codecs-0"), frozenset({"legacy", "ends", "clean"}), key="no-such"),
    Subject(
        "legacy-compacted", FAMILY, on_disk("legacy/broker-0.10.2.2", "mixed-compacted-0", cleaned=True),
        frozenset({"legacy", "compacted", "ends", "clean"}), key="no-such",
    ),
]  # fmt: skip
WHOLE = [
    Subject(
        "kafka-whole",
        FAMILY,
        whole,
        frozenset({"policy", "ends", "clean", "whole", "identity"}),
        "no-such",
        frozenset({"rescue-replica"}),
    )
]

#: Where the fields are that no checksum covers, of a batch (magic 2) or a message (magic 0 and 1).
BASE_OFFSET, LENGTH, EPOCH = 0, 8, 12


def base_offset(data: bytes, at: int) -> int:
    return int(struct.unpack_from(">q", data, at)[0])
