"""The golden files and what real systems said of them, ready to compare. Imports nothing of rawlog.

for case in kafka_cases():        # a partition directory and the records a real consumer got from it
    assert read(case.path) == case.records
for case in kafka_dumps():        # a segment or snapshot file and its batches by Kafka's own dump tool
for case in replay_cases():       # a whole recording and the topic it was made from
for case in damaged_replays():    # a damaged one and what the real tool did with it
vectors()["v2-zstd"]              # bytes made by Kafka's own record classes
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).parents[1] / "golden"
TIMESTAMP_TYPES = {None: -1, "NoTimestampType": -1, "CreateTime": 0, "LogAppendTime": 1}


def golden_path(*parts: str) -> Path:
    """A file or directory below tests/golden; it must exist."""
    path = GOLDEN.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(f"{path}: not among the golden files")
    return path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive of plain files and directories; anything else, or a way out of the folder, is refused.

    Not `extractall(filter="data")`: Python has it since 3.11.4, and Debian 12 comes with 3.11.2.
    """
    root = folder.resolve()
    with tarfile.open(archive) as packed:
        for member in packed:
            target = (root / member.name).resolve()
            if not (member.isfile() or member.isdir()) or not target.is_relative_to(root):
                raise ValueError(f"{archive}: {member.name} is not a file or directory below the folder")
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            content = packed.extractfile(member)
            assert content is not None
            with content, target.open("wb") as out:
                shutil.copyfileobj(content, out, 1 << 20)
            os.utime(target, (member.mtime, member.mtime))


def _lines(path: Path) -> list[Any]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.split(b"\n") if line]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


# ------------------------------------------------------------------ Kafka


@dataclass(frozen=True)
class GoldenRecord:
    """What a real consumer returned. `timestamp` in ms, None for none; `timestamp_type` -1 none, 0 create, 1 append."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None
    timestamp_type: int
    leader_epoch: int | None  # None: the consumer did not say (legacy brokers)
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def golden_records(path: Path) -> list[GoldenRecord]:
    """The lines of an `.ndjson` or `.ndjson.gz` of a consumer's answer."""
    return [
        GoldenRecord(
            topic=line["topic"],
            partition=line["partition"],
            offset=line["offset"],
            timestamp=None if line["timestamp_ms"] == -1 else line["timestamp_ms"],
            timestamp_type=TIMESTAMP_TYPES[line["timestamp_type"]],
            leader_epoch=line.get("leader_epoch"),
            key=_bytes(line["key"]),
            value=_bytes(line["value"]),
            headers=[(name, _bytes(value)) for name, value in line.get("headers", [])],
        )
        for line in _lines(path)
    ]


@dataclass(frozen=True)
class KafkaCase:
    """A partition directory, and what a real consumer got from it.

    The records begin at `log_start`, which may lie inside a batch (`trimmed-0`). `last_stable_offset`,
    `end_offset` and `committed_offsets` are None for legacy brokers.
    """

    broker: str  # "broker-4.3.0", "legacy/broker-0.8.2.2"
    partition: str  # name of the directory: "transactions-0"
    expected: Path
    log_start: int = 0
    last_stable_offset: int | None = None
    end_offset: int | None = None

    def __str__(self) -> str:
        return f"{self.broker}/{self.partition}"

    @property
    def path(self) -> Path:
        return GOLDEN / "kafka" / self.broker / "data" / self.partition

    @property
    def segments(self) -> list[Path]:
        """The live `.log` files in order."""
        return sorted(self.path.glob("*.log"))

    @property
    def is_legacy(self) -> bool:
        return self.broker.startswith("legacy/")

    @property
    def is_crashed(self) -> bool:
        return self.broker.endswith("-crashed")

    @cached_property
    def records(self) -> list[GoldenRecord]:
        """Read uncommitted, in offset order, no control records."""
        return golden_records(self.expected)

    @cached_property
    def committed_offsets(self) -> list[int] | None:
        """Offsets that a read_committed consumer got."""
        if self.is_legacy:
            return None
        path = self.expected.with_name(f"{self.partition}.committed-offsets.txt")
        return [int(line) for line in path.read_text().split()]


def kafka_brokers() -> list[str]:
    """Names of the broker directories below golden/kafka."""
    kafka = GOLDEN / "kafka"
    return sorted(p.relative_to(kafka).as_posix() for g in ("broker-*", "legacy/broker-*") for p in kafka.glob(g))


def kafka_cases(broker: str | None = None) -> list[KafkaCase]:
    """Every partition that a consumer was asked about, of one broker or of all."""
    cases: list[KafkaCase] = []
    for name in kafka_brokers() if broker is None else [broker]:
        expected = golden_path("kafka", name, "expected")
        if name.startswith("legacy/"):
            cases += [
                KafkaCase(name, path.name.removesuffix(".ndjson"), path)
                for path in sorted(expected.glob("*.ndjson"))
                if ".by-" not in path.name  # the answer of an old consumer, kept next to the newer one's
            ]
            continue
        for line in (expected / "records" / "summary.tsv").read_text().splitlines()[1:]:
            topic, partition, log_start, stable, end, *_ = line.split("\t")
            directory = f"{topic}-{partition}"
            path = expected / "records" / f"{directory}.ndjson.gz"
            cases.append(KafkaCase(name, directory, path, int(log_start), int(stable), int(end)))
    return cases


@dataclass(frozen=True)
class DumpedBatch:
    """A batch, or a magic 0/1 entry, as Kafka's DumpLogSegments shows it.

    None where the tool says nothing: everything but offset, position, size, magic, codec, time and crc of magic 0/1.
    `records` are the record lines as text (`offset: 4 CreateTime: ... endTxnMarker: COMMIT ...`).
    """

    position: int
    size: int
    magic: int
    codec: str
    crc: int
    valid: bool
    last_offset: int
    timestamp: int  # the batch's largest
    timestamp_type: int
    base_offset: int | None
    count: int | None
    base_sequence: int | None
    producer_id: int | None
    producer_epoch: int | None
    leader_epoch: int | None
    is_transactional: bool | None
    is_control: bool | None
    delete_horizon: int | None
    records: list[str]


@dataclass(frozen=True)
class DumpCase:
    """A `.log` or `.checkpoint` file, system topics and `-delete` directories too, and its batches by Kafka's tool."""

    broker: str
    path: Path
    batches: list[DumpedBatch]

    def __str__(self) -> str:
        return f"{self.broker}/{self.path.parent.name}/{self.path.name}"


def kafka_dumps(broker: str | None = None) -> Iterator[DumpCase]:
    """Every file that the dump tool was run on, of one broker or of all."""
    for name in kafka_brokers() if broker is None else [broker]:
        data, expected = golden_path("kafka", name, "data"), golden_path("kafka", name, "expected")
        if name.startswith("legacy/"):
            for dump in sorted(expected.glob("*.dump.txt.gz")):
                yield from _dumps(name, dump, data / dump.name.removesuffix(".dump.txt.gz"))
        else:
            for dump in sorted((expected / "dump").glob("*.log.txt.gz")):
                yield from _dumps(name, dump, data)
            if (expected / "dump" / "all.checkpoint.txt.gz").exists():
                yield from _dumps(name, expected / "dump" / "all.checkpoint.txt.gz", data)


def _dumps(broker: str, dump: Path, root: Path) -> Iterator[DumpCase]:
    return dumps_in(gzip.decompress(dump.read_bytes()).decode("utf-8", "replace"), broker, root)


def dumps_in(text: str, broker: str, root: Path) -> Iterator[DumpCase]:
    """The files and batches in what the dump tool printed."""
    case: DumpCase | None = None
    # Text of keys and values is in there raw: only \n ends a line, and a line may be a piece of a value.
    for line in text.split("\n"):
        if line.startswith("Dumping "):
            if case:
                yield case
            case = DumpCase(broker, root / line.removeprefix("Dumping "), [])
        elif case and re.match(r"(baseOffset|offset): \d+ .*isvalid: (true|false)$", line):
            case.batches.append(_dumped_batch(line))
        elif case and case.batches and line.startswith("| "):
            case.batches[-1].records.append(line[2:])
    if case:
        yield case


def _dumped_batch(line: str) -> DumpedBatch:
    reported = dict(re.findall(r"(\w+): (\S+)", line))
    kind = next(name for name in ("CreateTime", "LogAppendTime", "NoTimestampType") if name in reported)

    def number(name: str) -> int | None:
        return int(reported[name]) if name in reported else None

    def truth(name: str) -> bool | None:
        return reported[name] == "true" if name in reported else None

    horizon = re.fullmatch(r"OptionalLong\[(\d+)\]", reported.get("deleteHorizonMs", ""))
    return DumpedBatch(
        position=int(reported["position"]),
        size=int(reported["size"]),
        magic=int(reported["magic"]),
        codec=reported["compresscodec"].lower(),
        crc=int(reported["crc"]),
        valid=reported["isvalid"] == "true",
        last_offset=int(reported["lastOffset"] if "lastOffset" in reported else reported["offset"]),
        timestamp=int(reported[kind]),
        timestamp_type=TIMESTAMP_TYPES[kind],
        base_offset=number("baseOffset"),
        count=number("count"),
        base_sequence=number("baseSequence"),
        producer_id=number("producerId"),
        producer_epoch=number("producerEpoch"),
        leader_epoch=number("partitionLeaderEpoch"),
        is_transactional=truth("isTransactional"),
        is_control=truth("isControl"),
        delete_horizon=int(horizon[1]) if horizon else None,
        records=[],
    )


def vectors() -> dict[str, bytes]:
    """Batches and entries made by Kafka's own record classes, by name (golden/kafka/vectors.txt)."""
    found = {}
    for line in golden_path("kafka", "vectors.txt").read_text().splitlines():
        name, *_, data = line.split(" ")
        if re.fullmatch(r"[0-9a-f]+", data):
            found[name] = bytes.fromhex(data)
    return found


# ------------------------------------------------------------------ kafka-replay


@dataclass(frozen=True)
class ReplayCase:
    """A whole recording, what the real `cat` printed, and the topic it was recorded from."""

    name: str  # "v2/basic.log"
    version: int
    count: int
    sha256: str

    def __str__(self) -> str:
        return self.name

    @property
    def path(self) -> Path:
        return GOLDEN / "replay" / self.name

    @cached_property
    def printed(self) -> list[dict[str, str]]:
        """Members `data`, `key` (not v0), `timestamp` (the stored one only in v0). Not UTF-8 became U+FFFD."""
        return _lines(self.path.parent / "expected" / f"{self.path.name}.cat.json")

    @cached_property
    def topic(self) -> list[GoldenRecord] | None:
        """What a consumer (read uncommitted) got from the topic; None where it was not kept (`v2/find.log`)."""
        path = self.path.parent / "expected" / f"{self.path.name}.topic.ndjson"
        return golden_records(path) if path.exists() else None


def replay_cases() -> list[ReplayCase]:
    """Every whole recording."""
    return [
        ReplayCase(line["file"], int(line["file"][1]), line["cat"]["lines"], line["sha256"])
        for line in _manifest("manifest.json")
    ]


@dataclass(frozen=True)
class DamagedReplay:
    """A damaged recording and what the real tool did: messages printed by `cat`, its exit code and its words."""

    path: Path
    version: int  # of the recording it was made from
    what: str
    messages: int
    exit: int
    stderr: str

    def __str__(self) -> str:
        return self.path.name


def damaged_replays() -> list[DamagedReplay]:
    """Every cut or damaged recording (and the whole ones they were made from)."""
    cases = []
    for line in _manifest("damaged/results.json"):
        cat = line["cat"]
        path = GOLDEN / "replay" / "damaged" / line["file"]
        version = int(path.name[1])
        cases.append(DamagedReplay(path, version, line["what"], cat["messages"], cat["exit"], cat["stderr"]))
    return cases


def _manifest(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(golden_path("replay", *name.split("/")).read_text())
    return found
