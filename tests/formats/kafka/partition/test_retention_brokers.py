"""What real brokers leave at the beginning of a log when they delete from it: `verify` must not take it for a loss.

A stop in the middle of a segment leaves a snapshot of the producers there, which goes with no segment later on; DeleteRecords leaves a
log start inside a segment; a directory copied under a running broker is one after a crash.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

import rawlog
from tests.conftest import running
from tests.services.kafka import KAFKA_3, KAFKA_4, KafkaBroker

pytestmark = pytest.mark.broker

DAY = 86_400_000
START = 1_700_000_000_000


def produce(broker: KafkaBroker, topic: str, days: range, each: int = 10) -> None:
    """Some records for each day, which begin a segment each."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    for day in days:
        for number in range(each):
            producer.produce(topic, f"{day}-{number}", timestamp=START + day * DAY)
        assert producer.flush(60) == 0


def delete_up_to(broker: KafkaBroker, topic: str, offset: int) -> None:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(60)


def wait_until(holds: object, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_retention_is_never_a_loss(version: str, tmp_path: Path) -> None:
    """Segments that a broker itself deleted are not missing: not in a directory that it stopped cleanly, not after a crash."""
    from confluent_kafka.admin import AdminClient, NewTopic

    data, crashed = tmp_path / "data", tmp_path / "crashed"
    with running(KafkaBroker(version, data, {"log.segment.delete.delay.ms": "1000"})) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        settings = {
            "segment.ms": "3600000",
            "retention.ms": "-1",
            "message.timestamp.before.max.ms": "9223372036854775807",
        }
        topics = [NewTopic(name, 1, 1, config=settings) for name in ("deleted", "inside", "whole")]
        for future in admin.create_topics(topics).values():
            future.result(60)
        for topic in ("deleted", "inside", "whole"):
            produce(broker, topic, range(3))
        broker.stop()  # leaves a snapshot of the producers in the middle of the last segment
        broker.start()
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for topic in ("deleted", "inside", "whole"):
            produce(broker, topic, range(2, 6))
        delete_up_to(broker, "deleted", 40)
        delete_up_to(broker, "inside", 45)
        wait_until(
            lambda: not list((data / "deleted-0").glob("0*00.*")) and not list((data / "inside-0").glob("0*00.*"))
        )
        shutil.copytree(data, crashed)
        for name in ("deleted-0", "inside-0"):
            print(version, name, sorted(path.name for path in (data / name).iterdir()))
            print((data / name / "leader-epoch-checkpoint").read_text().split())
    for name in ("deleted-0", "inside-0"):
        print(version, "stopped", name, sorted(path.name for path in (data / name).iterdir()))
        print(
            (data / name / "leader-epoch-checkpoint").read_text().split(),
            (data / "log-start-offset-checkpoint").read_text().split(),
        )
    for folder in (data, crashed):
        for complete in (False, True):
            findings = rawlog.verify(folder, complete=complete)
            bad = [one for one in findings if one.severity != "info"]
            assert not bad, [str(one) for one in bad]
