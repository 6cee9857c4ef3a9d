"""Real brokers serve in full what repair makes of partitions whose segments were renamed or swapped."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawlog
from tests.conftest import running
from tests.data.golden import golden_path
from tests.data.kafka_rewriting import rewritten
from tests.formats.kafka.log.test_writer_brokers import as_consumed, consumed, make_topics, put
from tests.services.kafka import KAFKA_3, KAFKA_4, KafkaBroker

pytestmark = pytest.mark.broker

SOURCES = [
    ("broker-4.3.0", "segments-by-size-0"),
    ("broker-4.3.0", "transactions-0"),
    ("broker-3.9.2", "segments-by-time-0"),
    ("legacy/broker-2.8.2", "v1-create-0"),
    ("legacy/broker-2.8.2", "mixed-0"),
]


def misnamed(source: Path, target: Path, number: int) -> None:
    """A copy with two segments swapped and another one renamed, or only one of it."""
    draw = random.Random(number)
    shutil.copytree(source, target)
    segments = sorted(target.glob("*.log"))
    one, other, third = (draw.sample(segments, 3) * 2)[:3] if len(segments) > 2 else (*segments[:2], segments[1])
    if number % 3 < 2:
        data = one.read_bytes(), other.read_bytes()
        other.write_bytes(data[0])
        one.write_bytes(data[1])
    if (number % 3 > 0 and third not in (one, other)) or number % 3 == 2:
        third.rename(target / f"{int(third.stem) + draw.choice((1, 7, 5000)):020d}.log")


@pytest.fixture(scope="module", params=[KAFKA_3, KAFKA_4])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KafkaBroker, dict[str, list[tuple[object, ...]]]]]:
    scratch = tmp_path_factory.mktemp("misnamed")
    broker = KafkaBroker(request.param, scratch / "data", {"log.cleaner.enable": "false"})
    with running(broker):
        expected: dict[str, list[tuple[object, ...]]] = {}
        cases = [(number, *source) for number, source in enumerate(SOURCES * 3)]
        make_topics(broker, [f"misnamed-{number}" for number, _, _ in cases])
        broker.stop()
        for number, version, name in cases:
            source, target = golden_path("kafka", version, "data", name), scratch / "repaired" / f"t-{number}"
            misnamed(source, scratch / "damaged" / f"{number}" / name, number)
            report = rewritten("repair", scratch / "damaged" / f"{number}" / name, target)
            assert not report.lost, (number, name, report.lines())
            put(broker.data_dir / f"misnamed-{number}-0", target, ("*.log", "*index", "*.snapshot", "leader-epoch-*"))
            expected[f"misnamed-{number}"] = as_consumed(rawlog.read(source))
        if request.param == KAFKA_3:  # it recovers the logs itself; the other one trusts what is next to them
            (broker.data_dir / ".kafka_cleanshutdown").unlink()
        broker.start()
        yield broker, expected


def test_a_real_broker_serves_every_record_of_misnamed_segments(
    served: tuple[KafkaBroker, dict[str, list[tuple[object, ...]]]],
) -> None:
    """A segment that was named too high lost its first batches, one of two swapped ones all of them."""
    broker, expected = served
    found = consumed(broker, list(expected), "read_uncommitted")
    for topic, rows in expected.items():
        assert rows
        assert [one[:4] + one[5:] for one in found[topic]] == [one[:4] + one[5:] for one in rows], topic
