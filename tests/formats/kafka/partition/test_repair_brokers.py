"""Real brokers open every repaired partition, and cut damaged ones where the policy `broker` does. 500 damaged copies, half a version."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import rawlog
from tests.conftest import running
from tests.formats.kafka.log.test_writer_brokers import as_consumed, consumed, make_topics, put
from tests.formats.kafka.partition.test_repair import Copy, batches_of, logs, make_copy, repaired
from tests.services.kafka import KAFKA_3, KAFKA_4, KafkaBroker

pytestmark = pytest.mark.broker

HALF = 250
CUT = 100
"""How many of them are also left to the broker to cut."""


@dataclass
class Repaired:
    """A broker on repaired partitions and on damaged ones; what is expected of both."""

    broker: KafkaBroker
    rows: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    cut: dict[str, dict[str, bytes]] = field(default_factory=dict)
    copies: dict[str, Copy] = field(default_factory=dict)


def fill(broker: KafkaBroker, scratch: Path, first: int) -> Repaired:
    numbers = range(first, first + HALF)
    make_topics(broker, [f"repaired-{number}" for number in numbers] + [f"cut-{number}" for number in numbers[:CUT]])
    broker.stop()
    (broker.data_dir / ".kafka_cleanshutdown").unlink()
    made = Repaired(broker)
    for number in numbers:
        copy = make_copy(scratch, number)
        target = scratch / "repaired" / f"t-{number}"
        repaired(copy, target)
        whole = b"".join(logs(target).values())
        for name, batches in batches_of(copy.case).items():
            data = (copy.path / name).read_bytes()
            assert all(batch in whole for batch in batches if batch in data), (number, str(copy.case), name)
        put(broker.data_dir / f"repaired-{number}-0", target, ("*.log",))
        by_bug = "4298" in copy.case.broker or (copy.case.is_legacy and "compacted" in copy.case.partition)
        if not by_bug:  # what KAFKA-4298 left, librdkafka cannot read
            made.rows[f"repaired-{number}"] = as_consumed(rawlog.read(target))
        made.copies[f"repaired-{number}"] = copy
        if number - first >= CUT:
            continue
        report = repaired(copy, scratch / "cut" / f"t-{number}", policy="broker")
        if re.search("invalid offsets|: magic", "\n".join(report.lines())):
            continue  # a broker would not start on it, or takes any magic above 2 for 2
        folder = broker.data_dir / f"cut-{number}-0"
        put(folder, copy.path, ("*.log",))
        # As after a crash: a segment without an index would be recovered alone, before the log is.
        for path in list(folder.glob("*.log")):
            path.with_suffix(".index").touch()
            path.with_suffix(".timeindex").touch()
        made.cut[f"cut-{number}"] = logs(scratch / "cut" / f"t-{number}")
        made.copies[f"cut-{number}"] = copy
    broker.start()
    return made


@pytest.fixture(scope="module", params=[(KAFKA_3, 0), (KAFKA_4, HALF)], ids=[KAFKA_3, KAFKA_4])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repaired]:
    version, first = request.param
    scratch = tmp_path_factory.mktemp(f"repair-{version}")
    broker = KafkaBroker(version, scratch / "data", {"log.cleaner.enable": "false"})
    with running(broker):
        yield fill(broker, scratch, first)


def test_a_real_broker_serves_every_repaired_partition(opened: Repaired) -> None:
    found = consumed(opened.broker, list(opened.rows), "read_uncommitted")
    for topic, rows in opened.rows.items():
        theirs = [one[:4] + one[5:] for one in found[topic]]
        assert theirs == [one[:4] + one[5:] for one in rows], (topic, str(opened.copies[topic].case))


def test_a_real_broker_cuts_where_its_policy_does(opened: Repaired) -> None:
    assert len(opened.cut) > CUT // 2
    opened.broker.stop()
    for topic, expected in opened.cut.items():
        assert logs(opened.broker.data_dir / f"{topic}-0") == expected, (topic, str(opened.copies[topic].case))
