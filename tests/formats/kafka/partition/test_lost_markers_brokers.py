"""Real brokers judge: after a repair that lost a transaction marker, a read_committed consumer gets exactly the committed records."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rawlog.model.report import Report
from tests.conftest import running
from tests.data.golden import golden_path, kafka_cases
from tests.formats.kafka.log.test_writer_brokers import consumed, make_topics, put
from tests.formats.kafka.partition.test_lost_markers import KIND, copy, markers, overwrite, repaired, seen
from tests.services.kafka import KAFKA_3, KAFKA_4, KafkaBroker

pytestmark = pytest.mark.broker

NAMES = ("transactions-0", "transactions-1")


@pytest.fixture(scope="module", params=[KAFKA_3, KAFKA_4])
def opened(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[KafkaBroker, dict[str, tuple[str, int, Report]]]]:
    """A broker on repaired partitions, one for each marker of the golden ones of its version."""
    scratch = tmp_path_factory.mktemp(f"markers-{request.param}")
    golden = f"broker-{request.param}"
    lost = [(name, *one) for name in NAMES for one in markers(golden_path("kafka", golden, "data", name))]
    broker = KafkaBroker(request.param, scratch / "data", {"log.cleaner.enable": "false"})
    with running(broker):
        make_topics(broker, [f"lost-{number}" for number in range(len(lost))])
        broker.stop()
        (broker.data_dir / ".kafka_cleanshutdown").unlink()
        made = {}
        for number, (name, segment, at, _, kind) in enumerate(lost):
            source = copy(golden, name, scratch / "source")
            overwrite(source / segment, at + KIND, b"\x77\x0c\x55\x55")
            report = repaired(source, scratch / "out" / name)
            put(broker.data_dir / f"lost-{number}-0", scratch / "out" / name, ("*.log",))
            made[f"lost-{number}"] = (name, kind, report)
        broker.start()
        yield broker, made


def test_a_read_committed_consumer_gets_exactly_the_committed_records(
    opened: tuple[KafkaBroker, dict[str, tuple[str, int, Report]]],
) -> None:
    """The broker showed records of aborted transactions, or nothing from the first record of a committed one on."""
    broker, made = opened
    found = consumed(broker, list(made), "read_committed")
    every = consumed(broker, list(made), "read_uncommitted")
    cases = {case.partition: case for case in kafka_cases(f"broker-{broker.version}")}
    kinds = set()
    for topic, (name, kind, report) in made.items():
        offsets = [one[0] for one in found[topic]]
        assert offsets == cases[name].committed_offsets, (topic, report.lines())
        assert [one[0] for one in every[topic]] == [one.offset for one in cases[name].records], topic
        kinds |= {kind} if report.facts["transactions"] else set()
    assert kinds == {0, 1}
    assert seen(golden_path("kafka", f"broker-{broker.version}", "data", NAMES[0])) == set(
        cases[NAMES[0]].committed_offsets or ()
    )
