"""Fold a metadata log of a million records into a cluster's state, on one core: seconds, records a second, peak memory.

    python benchmarks/kraft_fold.py [RECORDS]

The log is like a real one that grew for long: a thousand topics, then changes of leaders and ISRs, settings, quotas, no-ops, and
topics that come and go; half of the batches hold a single record. The goal is 1 million records in under 20 s.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rawlog.formats.kafka.cluster.metadata_log import clusters
from rawlog.formats.kafka.cluster.paths import is_metadata_log
from rawlog.formats.kafka.cluster.writer import encode_batch
from rawlog.formats.kafka.internal.messages import encode_framed
from rawlog.verbs.cat import open as open_log

TOPICS, PARTITIONS, BROKERS = 1000, 12, 9


def records(count: int, chance: random.Random) -> Iterator[bytes]:
    """Framed records that a controller would replay without complaint."""
    yield encode_framed("FeatureLevelRecord", {"name": "metadata.version", "featureLevel": 25})
    made = 1
    ids: list[bytes] = []

    def topic(number: int) -> Iterator[bytes]:
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

    for number in range(TOPICS):
        for one in topic(number):
            made += 1
            yield one
    number = TOPICS
    while made < count:
        kind = chance.random()
        if kind < 0.75:
            isr = chance.sample(range(BROKERS), 2)
            change = {
                "partitionId": chance.randrange(PARTITIONS),
                "topicId": chance.choice(ids),
                "isr": isr,
                "leader": isr[0],
            }
            yield encode_framed("PartitionChangeRecord", change, 2)
        elif kind < 0.85:
            config = {
                "resourceType": 2,
                "resourceName": f"topic-{chance.randrange(TOPICS)}",
                "name": "retention.ms",
                "value": "1000",
            }
            yield encode_framed("ConfigRecord", config)
        elif kind < 0.98:
            yield encode_framed("NoOpRecord", {})
        else:
            yield encode_framed("RemoveTopicRecord", {"topicId": ids.pop(chance.randrange(len(ids)))})
            for one in topic(number):
                made += 1
                yield one
            number += 1
        made += 1


def write(path: Path, count: int) -> None:
    chance = random.Random(7)
    offset, held = 0, []
    with path.open("wb") as file:
        for value in records(count, chance):
            held.append((None, value))
            if chance.random() < 0.5 or len(held) == 100:
                file.write(encode_batch(offset, 1, 1_700_000_000_000 + offset, held))
                offset += len(held)
                held = []
        if held:
            file.write(encode_batch(offset, 1, 1_700_000_000_000 + offset, held))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "__cluster_metadata-0" / f"{0:020d}.log"
        path.parent.mkdir()
        write(path, count)
        [replica] = clusters([file for file in open_log(place).files if is_metadata_log(file)])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started, cpu = time.perf_counter(), time.process_time()
        state = replica.fold()
        seconds, used = time.perf_counter() - started, time.process_time() - cpu
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        assert not state.problems, state.problems[:3]
        partitions = sum(len(topic.partitions) for topic in state.topics.values())
        size = path.stat().st_size / 1e6
        print(
            f"kraft fold: {state.records:,} records, {size:.0f} MB, {partitions:,} partitions left: {seconds:.1f} s "
            f"({used:.1f} s of processor), {state.records / seconds:,.0f} records/s, {grown:.0f} MB more memory"
        )


if __name__ == "__main__":
    main()
