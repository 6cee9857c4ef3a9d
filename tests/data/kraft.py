"""Kafka's own dumps and images of metadata directories and internal topics, ready to compare. Imports nothing of rawlog."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

from tests.data.golden import golden_path

BROKERS = ("broker-3.9.2", "broker-3.9.2-crashed", "broker-4.3.0", "broker-4.3.0-crashed")
_CONTROL = {
    "LeaderChange:": "LEADER_CHANGE",
    "SnapshotHeader": "SNAPSHOT_HEADER",
    "SnapshotFooter": "SNAPSHOT_FOOTER",
    "KRaftVersion": "KRAFT_VERSION",
    "KRaftVoters": "KRAFT_VOTERS",
}
_RECORD = re.compile(r"^\| offset: (\d+) .*?headerKeys: \[\] (?:payload: )?(.*)$")
_KEYED = re.compile(r"^\| offset: (\d+) .*? key: (\{.*\}) payload: (.*)$")


def data_dir(broker: str) -> Path:
    return golden_path("kafka", broker, "data")


def dumped_metadata(broker: str) -> dict[str, list[dict[str, Any]]]:
    """Records by file below the data directory: offset, type, version, value (None where the dump does not say), is_control."""
    files: dict[str, list[dict[str, Any]]] = {}
    for name in ("__cluster_metadata-0.log", "all.checkpoint"):
        path = golden_path("kafka", broker, "expected", "dump") / f"{name}.txt.gz"
        if not path.exists():
            continue
        rows: list[dict[str, Any]] = []
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            if line.startswith("Dumping "):
                rows = files.setdefault(line.split()[1], [])
            elif found := _RECORD.match(line):
                rows.append({"offset": int(found[1]), **_shown(found[2])})
    return files


def _shown(text: str) -> dict[str, Any]:
    if text.startswith("{"):
        match = json.loads(text)
        return {"type": match["type"], "version": match["version"], "value": match["data"], "is_control": False}
    word, _, rest = text.partition(" ")
    if word == "controlType:":  # 3.9 says no more
        return {"type": rest.split("(")[0], "version": None, "value": None, "is_control": True}
    return {"type": _CONTROL[word], "version": None, "value": json.loads(rest), "is_control": True}


def image(broker: str, name: str = "metadata-image") -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """How it was folded, and the records of the state; lists that have no order are sorted."""
    lines = golden_path("kafka", broker, "expected", f"{name}.ndjson").read_text().splitlines()
    head, *records = (json.loads(line) for line in lines)
    return head, [unordered(record) for record in records]


def unordered(record: dict[str, Any]) -> dict[str, Any]:
    for name in ("endPoints", "features", "entity"):
        if name in record["data"]:
            record["data"][name].sort(key=lambda one: json.dumps(one, sort_keys=True))
    return record


def dumped_keys(broker: str, topic: str) -> dict[tuple[int, int], tuple[dict[str, Any], dict[str, Any] | None]]:
    """Key and value of an internal topic's records by partition and offset, as JSON; None for a tombstone."""
    found = {}
    for path in golden_path("kafka", broker, "expected", "dump").glob(f"{topic}-*.log.txt.gz"):
        partition = int(path.name.removesuffix(".log.txt.gz").rpartition("-")[2])
        for line in gzip.decompress(path.read_bytes()).decode().splitlines():
            if match := _KEYED.match(line):
                value = None if match[3] == "<DELETE>" else json.loads(match[3])
                found[partition, int(match[1])] = (json.loads(match[2]), value)
    return found
