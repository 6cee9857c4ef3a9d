"""How fast a metadata log is folded into a cluster's state, next to Kafka's own reader and image on the same log.

The log is like a real one that grew for long: a thousand topics, then changes of leaders and ISRs, settings, no-ops, and topics that come
and go; half of the batches hold a single record.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from data import START_MS
from harness import Bench, JavaLoop, Peer, Way, Work, case, main

from rawlog.formats.kafka.cluster.metadata_log import clusters
from rawlog.formats.kafka.cluster.writer import encode_batch
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.formats.kafka.paths import is_metadata_log
from rawlog.verbs.cat import open as open_log
from tests.services.kafka import KAFKA_4

PARTITIONS, BROKERS = 12, 9


def topic(number: int, ids: list[bytes], chance: random.Random) -> Iterator[bytes]:
    """The records of a new topic."""
    key = chance.randbytes(16)
    ids.append(key)
    yield encode_framed("TopicRecord", {"name": f"topic-{number}", "topicId": key})
    for partition in range(PARTITIONS):
        replicas = chance.sample(range(BROKERS), 3)
        message = {
            "partitionId": partition, "topicId": key, "replicas": replicas, "isr": replicas, "removingReplicas": [],
            "addingReplicas": [], "leader": replicas[0], "leaderEpoch": 0, "partitionEpoch": 0,
            "directories": [chance.randbytes(16) for _ in replicas],
        }  # fmt: skip
        yield encode_framed("PartitionRecord", message, 2)


def change(ids: list[bytes], topics: int, chance: random.Random) -> bytes:
    """A record of an old cluster's daily life."""
    kind = chance.random()
    if kind < 0.77:
        isr = chance.sample(range(BROKERS), 2)
        message = {
            "partitionId": chance.randrange(PARTITIONS),
            "topicId": chance.choice(ids),
            "isr": isr,
            "leader": isr[0],
        }
        return encode_framed("PartitionChangeRecord", message, 2)
    if kind < 0.87:
        name = f"topic-{chance.randrange(topics)}"
        setting = {"resourceType": 2, "resourceName": name, "name": "retention.ms", "value": "1000"}
        return encode_framed("ConfigRecord", setting)
    return encode_framed("NoOpRecord", {})


def metadata(count: int, chance: random.Random) -> Iterator[bytes]:
    """Framed records that a controller would replay without complaint."""
    yield encode_framed("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 25})
    topics, ids, written = min(1000, count // 20), list[bytes](), 1
    for number in range(topics):
        yield from topic(number, ids, chance)
        written += 1 + PARTITIONS
    number = topics
    while written < count:
        if chance.random() < 0.02:
            yield encode_framed("RemoveTopicRecord", {"topicId": ids.pop(chance.randrange(len(ids)))})
            yield from topic(number, ids, chance)
            number += 1
            written += 2 + PARTITIONS
        else:
            yield change(ids, topics, chance)
            written += 1


def write(path: Path, count: int) -> int:
    """A log of about so many records. -> records"""
    chance = random.Random(7)
    offset, held = 0, list[tuple[None, bytes]]()
    path.parent.mkdir()
    with path.open("wb") as file:
        for value in metadata(count, chance):
            held.append((None, value))
            if chance.random() < 0.5 or len(held) == 100:
                file.write(encode_batch(offset, 1, START_MS + offset, held))
                offset += len(held)
                held = []
        if held:
            file.write(encode_batch(offset, 1, START_MS + offset, held))
    return offset + len(held)


@case("fold", size=200_000, tiny=2_000, unit="records", rounds=3)
def fold(bench: Bench) -> Iterator[Way]:
    """A metadata log folded into topics, partitions and settings; the peer reads through the Raft client's iterator and keeps an image."""
    path = bench.folder / "__cluster_metadata-0" / f"{0:020d}.log"
    bench.rows = write(path, bench.size)
    bench.bytes = path.stat().st_size

    def run() -> int:
        [replica] = clusters([file for file in open_log(bench.folder).files if is_metadata_log(file)])
        state = replica.fold()
        assert not state.problems, state.problems[:3]
        return int(state.records)

    yield Work("rawlog", run)
    jars = f"kafka-{KAFKA_4}"
    yield Peer("Kafka's image (Java)", start=lambda: JavaLoop(jars, "FoldMetadata.java", path), warm=JavaLoop.PASSES)


if __name__ == "__main__":
    main(__doc__)
