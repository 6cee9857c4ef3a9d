"""Real brokers judge what rawlog writes: their recovery derives the same files, and they serve every record unchanged.

Each version is started twice in all: once to make the topics, once on what was put in their place. Hundreds of partitions fit.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import rawlog
from rawlog.formats.kafka.partition.erase import sift
from rawlog.io.output import Folder
from rawlog.model.format import Keep
from rawlog.model.store import Store
from tests.conftest import running
from tests.data.golden import kafka_cases
from tests.data.kafka_rewriting import rewritten
from tests.formats.kafka.log.test_golden import milliseconds
from tests.services.kafka import KAFKA_3, KAFKA_4, KafkaBroker, consume_all

pytestmark = pytest.mark.broker

DERIVED = ("*.index", "*.timeindex", "*.txnindex", "*.snapshot", "leader-epoch-checkpoint")
CASES = [
    case
    for case in kafka_cases()
    if case.broker in ("broker-3.9.2", "broker-4.3.0") and not case.partition.startswith("__")
]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SHAPES: list[dict[str, Any]] = [
    {"batch_records": 1},
    {"batch_bytes": 2000, "segment_bytes": 40_000},
    {"batch_records": 7, "segment_ms": 60_000},
    {"index_interval_bytes": 0, "batch_records": 3},
    {},
]


@dataclass
class Served:
    """A broker that runs on what was put into its directory, and what it should hand out: rows by topic."""

    broker: KafkaBroker
    before: dict[str, dict[str, bytes]] = field(default_factory=dict)
    rebuilt: dict[str, Path] = field(default_factory=dict)
    records: dict[str, pa.Table] = field(default_factory=dict)
    committed: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)


def stays(batch: Any, keys: pa.Array) -> Any:
    """Which rows have none of these keys."""
    return ~pc.is_in(batch["key"], keys).to_numpy(zero_copy_only=False)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def put(target: Path, source: Path, names: tuple[str, ...]) -> None:
    """Replace the files of a partition by others, the topic's id kept."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for pattern in names:
        for path in source.glob(pattern):
            shutil.copyfile(path, target / path.name)


def make_topics(broker: KafkaBroker, names: list[str]) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {"retention.ms": "-1", "max.message.bytes": "4000000"}
    topics = [NewTopic(name, 1, 1, config=settings) for name in names]
    for future in admin.create_topics(topics, operation_timeout=120).values():
        future.result(120)


def fill(broker: KafkaBroker, scratch: Path) -> Served:
    """Stop the broker, put partitions of three kinds into the topics, and start it again.

    `raw`: golden segments without anything next to them, for the broker to recover. `full`: the same with what rawlog derived, trusted
    since the stop was clean. `made`: the golden records written again by rawlog, in other batches, codecs and segments. `less`: the golden
    batches without the records of every third key.
    """
    served = Served(broker)
    kinds = ("raw", "full", "made", "less")
    names = {(kind, number): f"{kind}-{number}" for kind in kinds for number in range(len(CASES))}
    make_topics(broker, list(names.values()))
    broker.stop()
    for number, case in enumerate(CASES):
        folder = scratch / f"rebuilt-{number}"
        rebuilt = rewritten("rebuild", case.path, folder)
        # Not the golden directory itself, where a checkpoint hides the first records of one log.
        rows = rawlog.read(folder)
        committed = rawlog.read(folder, isolation="read_committed", columns=["offset"])["offset"].to_pylist()
        made = scratch / f"made-{number}"
        options = {"codec": CODECS[number % 5], **SHAPES[number % len(SHAPES)]}
        rawlog.write(made, rows, format="kafka", topic="made", partition=0, leader_epoch=0, **options)
        less = scratch / f"less-{number}"
        dropped = pa.array(sorted(set(rows["key"].drop_null().to_pylist()))[::3], pa.binary())
        keep = Keep(("key",), lambda batch, keys=dropped: stays(batch, keys))
        sift(Store(rawlog.open(folder).files), Folder(less).make(), keep, {})
        kept = rows.filter(pa.array(stays(rows, dropped)))
        sources = {
            "less": (less, ("*.log", *DERIVED)),
            "raw": (folder, ("*.log",)),
            "full": (folder, ("*.log", *DERIVED)),
            "made": (made / "made-0", ("*.log", *DERIVED)),
        }
        for kind in kinds:
            topic = names[kind, number]
            target = broker.data_dir / f"{topic}-0"
            put(target, *sources[kind])
            served.before[topic] = files_of(target)
            served.records[topic] = kept if kind == "less" else rows
            served.committed[topic] = committed if kind != "made" else rows["offset"].to_pylist()
            if kind == "less":
                served.committed[topic] = sorted(set(committed) & set(kept["offset"].to_pylist()))
                served.ends[topic] = rebuilt.facts["end_offset"]
            if kind == "raw":
                served.rebuilt[topic] = folder
    broker.start()
    return served


@pytest.fixture(scope="module", params=[KAFKA_3, KAFKA_4])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    scratch = tmp_path_factory.mktemp(f"writer-{request.param}")
    properties = {"producer.id.expiration.ms": "2147483647", "log.cleaner.enable": "false"}
    broker = KafkaBroker(request.param, scratch / "data", properties)
    with running(broker):
        yield fill(broker, scratch)


def consumed(broker: KafkaBroker, topics: list[str], isolation: str) -> dict[str, list[tuple[Any, ...]]]:
    """Everything a real consumer gets of these topics."""
    found: dict[str, list[tuple[Any, ...]]] = {topic: [] for topic in topics}
    for message in consume_all(broker, [(topic, 0) for topic in topics], isolation):
        kind, time = message.timestamp()
        time = time if kind else -1  # magic 0 has none
        found[message.topic()].append(
            (message.offset(), message.key(), message.value(), message.headers() or [], kind - 1, time)
        )
    return found


def as_consumed(rows: pa.Table) -> list[tuple[Any, ...]]:
    result = []
    for row in rows.to_pylist():
        time = milliseconds(row["timestamp"])
        headers = [(one["key"].partition("\0")[0], one["value"]) for one in row["headers"]]  # librdkafka: C strings
        kind = row["timestampType"] if time is not None else -1  # librdkafka: not available
        result.append((row["offset"], row["key"], row["value"], headers, kind, -1 if time is None else time))
    return result


def test_a_real_consumer_gets_every_record_unchanged(served: Served) -> None:
    found = consumed(served.broker, list(served.records), "read_uncommitted")
    for topic, rows in served.records.items():
        mine = [one[:4] + one[5:] for one in as_consumed(rows)]
        theirs = [one[:4] + one[5:] for one in found[topic]]
        assert theirs == mine, topic
        assert [one[4] for one in found[topic] if one[5] != -1] == [
            one[4] for one in as_consumed(rows) if one[5] != -1
        ], topic


def test_a_transactional_consumer_sees_what_was_committed(served: Served) -> None:
    found = consumed(served.broker, list(served.committed), "read_committed")
    for topic, offsets in served.committed.items():
        assert [one[0] for one in found[topic]] == offsets, topic


def test_a_producer_goes_on_at_the_end_and_the_directory_stays_clean(served: Served) -> None:
    from confluent_kafka import Producer

    delivered: dict[str, int] = {}

    def done(error: Any, message: Any) -> None:
        assert error is None, error
        delivered[message.topic()] = message.offset()

    producer = Producer({"bootstrap.servers": served.broker.bootstrap})
    made = [topic for topic in served.records if topic.startswith(("made-", "less-"))]
    for topic in made:
        producer.produce(topic, value=b"one more", partition=0, on_delivery=done)
    assert producer.flush(60) == 0
    for topic in made:
        end = max(served.records[topic]["offset"].to_pylist(), default=-1) + 1
        assert delivered[topic] == served.ends.get(topic, end), topic
    served.broker.stop()
    for finding in rawlog.verify(served.broker.data_dir):
        topic = finding.path.rpartition("/")[0].rpartition("/")[2].rpartition("-")[0] if finding.path else ""
        if str(finding.severity) == "info" or topic not in made:
            continue
        # These topics are not compacted: what the given rows left out is missing, and nothing else is wrong.
        assert finding.code == "kafka.partition.gap", finding
        assert finding.offset not in served.records[topic]["offset"].to_pylist(), finding


def entries(snapshot: bytes) -> tuple[bytes, list[bytes]]:
    """A snapshot's entries in an order of ours: Kafka's own has no meaning."""
    return snapshot[:2] + snapshot[6:10], sorted(snapshot[at : at + 46] for at in range(10, len(snapshot), 46))


def test_recovery_derives_what_rawlog_derives(served: Served) -> None:
    """Runs last: the broker is stopped, which trims its indexes."""
    served.broker.stop()
    for topic, folder in served.rebuilt.items():
        theirs, mine = files_of(served.broker.data_dir / f"{topic}-0"), files_of(folder)
        epochs, own = (one.pop("leader-epoch-checkpoint").decode().splitlines()[2:] for one in (theirs, mine))
        assert epochs[: len(own)] == own, topic
        for files in (theirs, mine):
            files.pop("partition.metadata")
        case = CASES[int(topic.split("-")[1])]
        for name in sorted(set(mine) | set(theirs)):
            if name.endswith(".txnindex"):  # recovery leaves an empty one where there was no abort
                assert theirs.get(name, b"") == mine.get(name, b""), (case, name)
                continue
            assert name in mine, (str(case), name, len(theirs[name]))
            assert name in theirs, (str(case), name)
            if name.endswith(".snapshot"):
                assert entries(mine[name]) == entries(theirs[name]), (str(case), name)
            else:
                assert mine[name] == theirs[name], (str(case), name)
