"""Log directories of several brokers, made of copies of one partition that are more or less far."""

from __future__ import annotations

import shutil
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import rawlog

CLUSTER = "rawlogReplicasAAAAAAAA"


def topic_id(name: str) -> str:
    """An id that is the same for the same name."""
    return urlsafe_b64encode(uuid.uuid5(uuid.NAMESPACE_OID, name).bytes).rstrip(b"=").decode()


def base_log(folder: Path, batches: int = 40, topic: str = "orders", partition: int = 0, **options: Any) -> Path:
    """A partition with batches of three records each."""
    rows = [{"key": b"k", "value": b"%d" % offset, "offset": offset} for offset in range(3 * batches)]
    given = {"topic": topic, "partition": partition, "batch_records": 3, "segment_bytes": 900} | options
    rawlog.write(folder, rows, format="kafka", **given)
    return folder / f"{topic}-{partition}"


def broker(folder: Path, node: int | None, cluster: str | None = CLUSTER) -> Path:
    """An empty log directory of a broker."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["version=1"] + ([] if node is None else [f"node.id={node}"])
    lines += [] if cluster is None else [f"cluster.id={cluster}"]
    (folder / "meta.properties").write_text("\n".join(lines) + "\n")
    return folder


def copy(
    base: Path, folder: Path, batches: int | None = None, epoch: int = 0, id: str | None = "orders", name: str = ""
) -> Path:
    """A replica with the first `batches` batches of a log, as a broker has it that was stopped then."""
    target = folder / (name or base.name)
    shutil.copytree(base, target, ignore=shutil.ignore_patterns("partition.metadata", "leader-epoch-checkpoint"))
    (target / "leader-epoch-checkpoint").write_text(f"0\n1\n{epoch} 0\n")
    if id is not None:
        (target / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id(id)}")
    if batches is not None:
        found = rawlog.read(str(base), table="kafka.batches", columns=["path", "position", "size"]).to_pylist()
        kept = {Path(row["path"]).name: row["position"] + row["size"] for row in found[:batches]}
        for log in sorted(target.glob("*.log")):
            if log.name not in kept and log.name != f"{0:020}.log":
                for one in target.glob(f"{log.stem}.*"):
                    one.unlink()
            else:
                with log.open("r+b") as file:
                    file.truncate(kept.get(log.name, 0))
        last = max(target.glob("*.log"))
        for one in target.glob(f"{last.stem}.*index"):
            one.unlink()
    return target


def offsets(path: Any, **options: Any) -> list[int]:
    """The offsets of all records, in the order in which they are read."""
    return rawlog.read(path, columns=["offset"], **options).column(0).to_pylist()
