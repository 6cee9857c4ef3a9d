"""Recording from real brokers and replaying to them; their own files and consumers are the judges."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException
from confluent_kafka import Producer as LibraryProducer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic

import rawlog
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_rows
from rawlog.live.client import BrokerError
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.produce import Producer, outgoing
from rawlog.live.sending import Targets
from rawlog.live.settings import Settings
from rawlog.model.errors import OptionError
from rawlog.model.table import RECORDS
from tests.data.golden import GOLDEN, replay_cases
from tests.services.kafka import KafkaBroker

pytestmark = pytest.mark.broker
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def new_topic(broker: KafkaBroker, partitions: int = 2, name: str | None = None, **configs: str) -> str:
    name = name or f"live-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    made = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in configs.items()})
    admin.create_topics([made])[name].result()
    return name


def fill(
    broker: KafkaBroker, topic: str, count: int = 400, partitions: int = 2, seed: int = 1, codec: str = "none"
) -> None:
    """Records with and without keys, values and headers."""
    draw = random.Random(seed)
    producer = LibraryProducer(
        {"bootstrap.servers": broker.bootstrap, "compression.type": codec, "batch.num.messages": 20, "linger.ms": 2}
    )
    for number in range(count):
        producer.produce(
            topic,
            value=None if number % 11 == 0 else draw.randbytes(draw.randrange(0, 80)),
            key=None if number % 5 == 0 else b"k%d" % (number % 17),
            partition=number % partitions,
            timestamp=1_700_000_000_000 + number * 7,
            headers=[("h", b"x"), ("h", None), ("e", b"")] if number % 7 == 0 else None,
        )
    producer.flush()


def transactions(broker: KafkaBroker, topic: str) -> None:
    """A commit, an abort, and records in between that belong to none."""
    for number, ends in enumerate(("commit", "abort", "commit")):
        producer = LibraryProducer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-{number}"})
        producer.init_transactions()
        producer.begin_transaction()
        for index in range(10):
            producer.produce(topic, f"{ends}-{number}-{index}".encode(), partition=index % 2)
        producer.flush()  # what is not sent when a transaction is aborted is forgotten
        producer.commit_transaction() if ends == "commit" else producer.abort_transaction()
        fill(broker, topic, 20, seed=number)


def rows(path: Path | str, **options: Any) -> dict[int, list[tuple[Any, ...]]]:
    """What consumers get of each partition: everything but offsets and topic."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in rawlog.rows(path, **options):
        found.setdefault(row["partition"], []).append((row["key"], row["value"], row["timestamp"], row["headers"]))
    return found


def recorded(broker: KafkaBroker, topic: str, to: Path, **options: Any) -> Any:
    return rawlog.record(topic, to, brokers=broker.bootstrap, until_end=True, **options)


def log_of(folder: Path, name: str) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((folder / name).glob("*.log")))


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_recorded_and_replayed_topics_are_the_same(kafka: KafkaBroker, tmp_path: Path, codec: str) -> None:
    topic, copy = new_topic(kafka), new_topic(kafka)
    fill(kafka, topic, codec=codec)
    report = recorded(kafka, topic, tmp_path / "one")
    assert report.is_whole
    assert report.counts["records"] == 400
    for number in (0, 1):
        assert log_of(tmp_path / "one", f"{topic}-{number}") == log_of(kafka.data_dir, f"{topic}-{number}")
    assert rawlog.verify(tmp_path / "one").verdict == "clean"
    sent = rawlog.replay(tmp_path / "one", brokers=kafka.bootstrap, topic_map={topic: copy})
    assert sent.is_whole
    assert (sent.counts["acknowledged"], sent.counts["failed"]) == (400, 0)
    assert recorded(kafka, copy, tmp_path / "two").is_whole
    assert rows(tmp_path / "two") == rows(tmp_path / "one")
    for number in (0, 1):
        found = rawlog.diff(tmp_path / "one" / f"{topic}-{number}", tmp_path / "two" / f"{copy}-{number}")
        assert found.is_same


@pytest.mark.parametrize("form", ["replay", "parquet", "lake"])
def test_other_forms_hold_the_same_records_and_can_be_replayed(kafka_4: KafkaBroker, tmp_path: Path, form: Any) -> None:
    topic, copy = new_topic(kafka_4), new_topic(kafka_4)
    fill(kafka_4, topic)
    assert recorded(kafka_4, topic, tmp_path / "native").is_whole
    report = recorded(kafka_4, topic, tmp_path / "other", as_=form)
    assert report.is_whole, report.lines()
    assert report.counts["records"] == 400
    sent = rawlog.replay(tmp_path / "other", brokers=kafka_4.bootstrap, to_topic=copy)
    assert sent.is_whole, sent.lines()
    assert recorded(kafka_4, copy, tmp_path / "copy").is_whole
    found, expected = rows(tmp_path / "copy"), rows(tmp_path / "native")
    if form == "replay":  # which keeps no partition, no headers, no milliseconds and no nulls

        def short(every: dict[int, list[Any]]) -> Any:
            return sorted(
                ((key or b""), (value or b""), time.replace(microsecond=0))
                for part in every.values()
                for key, value, time, _ in part
            )

        assert short(found) == short(expected)
    else:
        assert found == expected


def test_transactions_are_recorded_whole_and_replayed_as_committed(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, copy = new_topic(kafka), new_topic(kafka)
    transactions(kafka, topic)
    assert recorded(kafka, topic, tmp_path / "one").is_whole
    assert rawlog.verify(tmp_path / "one").verdict == "clean"
    for number in (0, 1):
        assert log_of(tmp_path / "one", f"{topic}-{number}") == log_of(kafka.data_dir, f"{topic}-{number}")
    committed = rows(tmp_path / "one", isolation="read_committed")
    sent = rawlog.replay(tmp_path / "one", brokers=kafka.bootstrap, to_topic=copy, isolation="read_committed")
    assert sent.is_whole
    assert any("10 records of aborted" in note for note in sent.notes)
    assert recorded(kafka, copy, tmp_path / "two").is_whole
    assert rows(tmp_path / "two") == committed
    as_replay = recorded(kafka, topic, tmp_path / "messages.log", as_="replay", isolation="read_committed")
    assert as_replay.counts["records"] == sum(map(len, committed.values()))


def test_a_recording_is_resumed_after_any_end(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    """The last segment of a killed recording may end inside a batch, without an index or with one that is too long."""
    topic = new_topic(kafka_4)
    fill(kafka_4, topic, 300)
    small = {"segment_bytes": 4000}
    first = rawlog.record(topic, tmp_path / "one", brokers=kafka_4.bootstrap, until_end=True, option=small, limit=100)
    assert first.counts["records"] >= 100
    last = max((tmp_path / "one" / f"{topic}-0").glob("*.log"))
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 10)
    last.with_suffix(".index").unlink()
    with pytest.raises(rawlog.errors.AccessError, match="not empty"):
        recorded(kafka_4, topic, tmp_path / "one")
    again = recorded(kafka_4, topic, tmp_path / "one", resume=True, option=small)
    assert again.is_whole
    fill(kafka_4, topic, 50, seed=2)
    assert recorded(kafka_4, topic, tmp_path / "one", resume=True, option=small).counts["records"] == 50
    for number in (0, 1):
        assert log_of(tmp_path / "one", f"{topic}-{number}") == log_of(kafka_4.data_dir, f"{topic}-{number}")
    assert rawlog.verify(tmp_path / "one").verdict == "clean"
    whole = tmp_path / "whole.log"
    recorded(kafka_4, topic, whole, as_="replay")
    part = tmp_path / "part.log"
    recorded(kafka_4, topic, part, as_="replay", limit=120, partition=0)
    with part.open("ab") as file:
        file.write(b"torn")
    assert recorded(kafka_4, topic, part, as_="replay", resume=True, partition=0).is_whole
    alone = tmp_path / "alone.log"
    recorded(kafka_4, topic, alone, as_="replay", partition=0)
    assert len(part.read_bytes()) == len(alone.read_bytes())


def test_bounds_choose_what_is_recorded(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    topic = new_topic(kafka_4, 1)
    fill(kafka_4, topic, 200, partitions=1)

    def count(name: str, **options: Any) -> int:
        report = rawlog.record(
            topic, tmp_path / name, brokers=kafka_4.bootstrap, as_="replay", timeout="20s", **options
        )
        return int(report.counts["records"])

    assert count("a", from_offset=150, to_offset=170) == 20
    for name, options in (("limit", {"limit": 1}), ("bytes", {"max_bytes": 1}), ("offset", {"to_offset": 1})):
        native: dict[str, Any] = {"brokers": kafka_4.bootstrap, **options}
        assert rawlog.record(topic, tmp_path / name, **native).counts["records"] <= 20, "a batch, not a response"
    assert count("b", start="-30", until_end=True) == 30
    assert count("c", since=1_700_000_000_000 + 100 * 7, until=1_700_000_000_000 + 120 * 7) == 20
    assert count("d", limit=7) == 7
    assert count("e", until_end=True, key=b"k3") == len([n for n in range(200) if n % 17 == 3 and n % 5])
    assert count("f", until_end=True, group="g-" + topic, limit=50) == 50
    assert count("g", until_end=True, group="g-" + topic) <= 150


def test_questions_are_asked_while_records_are_on_their_way(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    """The connection to the one broker was busy with the next records: commits of a group, the offset at a time that has come, and the
    look at the next topic of a replay failed with an internal error.
    """
    topic, other = new_topic(kafka_4, 1), new_topic(kafka_4, 1)
    fill(kafka_4, topic, 600, partitions=1)
    small = {"max.partition.fetch.bytes": "2000", "fetch.max.bytes": "2000"}
    given: dict[str, Any] = {"brokers": kafka_4.bootstrap, "setting": small, "group": "g-" + topic}
    first = rawlog.record(topic, tmp_path / "first", limit=100, **given)
    assert first.is_whole, first.lines()
    rest = rawlog.record(topic, tmp_path / "rest", until=int(time.time() * 1000) + 1500, **given)
    assert rest.is_whole, rest.lines()
    assert first.counts["records"] + rest.counts["records"] == 600
    made = [{"topic": name, "value": bytes(1000)} for name in (topic, other) for _ in range(10_000)]
    sent = rawlog.replay(iter(made), brokers=kafka_4.bootstrap)
    assert sent.counts["acknowledged"] == 20_000, sent.lines()


def test_a_replay_continues_from_its_checkpoint(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    """Also where the broker has more than the checkpoint says: the replay was killed between an acknowledgement and the next checkpoint."""
    topic, copy = new_topic(kafka_4), new_topic(kafka_4)
    fill(kafka_4, topic)
    recorded(kafka_4, topic, tmp_path / "one")
    state = tmp_path / "state.json"
    given: dict[str, Any] = {"brokers": kafka_4.bootstrap, "to_topic": copy, "checkpoint": state, "keep_batches": True}
    stop = Event()

    def progress(_: Any) -> None:
        if state.exists():
            stop.set()

    rawlog.replay(tmp_path / "one", rate=500, stop=stop, progress=progress, **given)
    early = state.read_bytes()
    rawlog.replay(tmp_path / "one", **given)
    state.write_bytes(early)  # as if the second one had been killed before it wrote its own
    last = rawlog.replay(tmp_path / "one", **given)
    assert last.is_whole
    recorded(kafka_4, copy, tmp_path / "two")
    found, expected = rows(tmp_path / "two"), rows(tmp_path / "one")
    assert {number: part[: len(expected[number])] for number, part in found.items()} == expected
    with pytest.raises(OptionError, match="another replay"):
        rawlog.replay(tmp_path / "one", **{**given, "partition_by": "key"})


def test_partitions_topics_and_times_can_be_chosen(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    from confluent_kafka import Consumer

    topic, by_key, by_java = new_topic(kafka_4), new_topic(kafka_4, 5), new_topic(kafka_4, 5)
    fill(kafka_4, topic)
    recorded(kafka_4, topic, tmp_path / "one")
    sent = rawlog.replay(
        tmp_path / "one", brokers=kafka_4.bootstrap, to_topic=by_key, partition_by="key", timestamps="shift"
    )
    assert sent.is_whole
    producer = LibraryProducer({"bootstrap.servers": kafka_4.bootstrap, "partitioner": "murmur2"})  # as Java's
    for number in range(17):
        producer.produce(by_java, b"", b"k%d" % number)
    producer.flush()
    recorded(kafka_4, by_key, tmp_path / "key")
    recorded(kafka_4, by_java, tmp_path / "java")
    java = {row[0]: number for number, part in rows(tmp_path / "java").items() for row in part}
    ours = {row[0]: number for number, part in rows(tmp_path / "key").items() for row in part if row[0] is not None}
    assert ours == {key: java[key] for key in ours}
    times = sorted(row[2].timestamp() for part in rows(tmp_path / "key").values() for row in part)
    assert abs(times[0] - time.time()) < 120
    assert times[-1] - times[0] == pytest.approx(399 * 0.007, abs=0.01)
    assert Consumer is not None


@pytest.mark.parametrize("name", ["v2", "v1", "v0"])
def test_golden_recordings_replay(kafka_4: KafkaBroker, tmp_path: Path, name: str) -> None:
    topic = new_topic(kafka_4, 1, max_message_bytes="20000000")
    for number, file in enumerate(sorted((GOLDEN / "replay" / name).rglob("*.log"))):
        expected = rawlog.count(file)
        report = rawlog.replay(file, brokers=kafka_4.bootstrap, to_topic=topic, timestamps="original")
        assert report.is_whole, (number, file, report.lines())
        assert report.counts["acknowledged"] == expected


def test_bad_input_is_a_clear_error(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    topic = new_topic(kafka_4, 1)
    with pytest.raises(OptionError, match=f"did you mean .*{topic}"):
        recorded(kafka_4, topic + "x", tmp_path / "x")
    with pytest.raises(OptionError, match="unknown topic"):
        rawlog.replay(
            [{"value": b"v"}] and iter([{"value": b"v"}]), brokers=kafka_4.bootstrap, to_topic="nowhere-" + topic
        )
    large = iter([{"value": b"small"}, {"value": bytes(2 << 20)}])
    report = rawlog.replay(large, brokers=kafka_4.bootstrap, to_topic=topic)
    assert not report.is_whole
    assert "2,097" in report.facts["error"]
    assert "takes 1,048,588" in report.facts["error"]


def test_what_would_go_to_a_wrong_place_is_refused(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    """A typing error in a topic map sent everything to the topic it was recorded from; `exact` continued any topic with enough records; an
    offset after the end gave an empty recording, as if all were stored.
    """
    topic, other = new_topic(kafka_4, 1), new_topic(kafka_4, 1)
    fill(kafka_4, topic, 60, partitions=1)
    fill(kafka_4, other, 40, partitions=1, seed=2)
    recorded(kafka_4, topic, tmp_path / "one")
    given: dict[str, Any] = {"brokers": kafka_4.bootstrap, "topic_map": {topic[:-1]: other}}
    for replayed in (tmp_path / "one", [tmp_path / "one"]):
        with pytest.raises(OptionError, match=f"did you mean {topic}"):
            rawlog.replay(replayed, **given)
    with pytest.raises(OptionError, match=f"did you mean {topic}"):
        rawlog.mirror(topic, to=kafka_4.bootstrap, **given)
    exact: dict[str, Any] = {"to": kafka_4.bootstrap, "exact": True, "until_end": True, "topic_map": {topic: other}}
    with pytest.raises(OptionError, match=f"{other}-0 is not empty, and not a copy of {topic}-0: .*offset 39 differ"):
        rawlog.mirror(topic, brokers=kafka_4.bootstrap, **exact)
    copy = new_topic(kafka_4, 1)
    for option in ({"exact": True}, {"group": "g"}):
        with pytest.raises(OptionError, match="needs a different target for each topic"):
            both: Any = {"to": kafka_4.bootstrap, "topic_map": {topic: copy, other: copy}, **option}
            rawlog.mirror([topic, other], brokers=kafka_4.bootstrap, **both)
    exact["topic_map"] = {topic: copy}
    assert rawlog.mirror(topic, brokers=kafka_4.bootstrap, to_offset=1, **exact).counts["acknowledged"] <= 20
    assert rawlog.mirror(topic, brokers=kafka_4.bootstrap, **exact).is_whole
    with pytest.raises(BrokerError, match="60 is the next one, but the log ends at 40"):
        rawlog.mirror(other, brokers=kafka_4.bootstrap, **(exact | {"topic_map": {other: copy}}))
    with pytest.raises(OptionError, match="offset 100 is asked for, the log ends at 60"):
        rawlog.record(topic, tmp_path / "far", brokers=kafka_4.bootstrap, from_offset=100)
    done = recorded(kafka_4, topic, tmp_path / "far", from_offset=100)
    assert f"{topic}-0: the log ends at offset 60, before offset 100" in done.notes
    tried = rawlog.replay(
        tmp_path / "one", brokers=kafka_4.bootstrap, to_topic="new-" + topic, create_topics=True, dry_run=True
    )
    assert f"topic new-{topic}: it does not exist and would be created with 1 partition" in tried.notes
    with pytest.raises(OptionError, match="unknown topic"):
        recorded(kafka_4, "new-" + topic, tmp_path / "two")


def test_a_topic_that_is_created_again_is_noticed(kafka: KafkaBroker, tmp_path: Path) -> None:
    """By name, a broker goes on with the new topic as if it were the old one."""
    topic = new_topic(kafka, 1)
    fill(kafka, topic, 50, partitions=1)
    recorded(kafka, topic, tmp_path / "one")
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_topics([topic])[topic].result()
    for _ in range(100):
        try:
            new_topic(kafka, 1, topic)
            break
        except Exception:
            time.sleep(0.2)
    fill(kafka, topic, 100, partitions=1)
    with pytest.raises(OptionError, match="another topic of the same name"):
        recorded(kafka, topic, tmp_path / "one", resume=True)


def test_a_target_that_is_created_again_is_noticed(kafka: KafkaBroker) -> None:
    """Before Produce 13 (Kafka 4.0) a broker knows the target by name only: what was acknowledged before was gone, and nobody said so."""
    topic = new_topic(kafka, 1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    rows = RowBuffers.of(pa.RecordBatch.from_pylist([{"value": b"v"}] * 5, RECORDS.schema), 0)
    with Cluster(Settings.load(kafka.bootstrap)) as cluster:
        targets = Targets(cluster)
        targets.need(topic)
        producer = Producer(cluster, targets.ids, end_of=targets.end)
        producer.begin()
        for _ in range(2):
            made = encode_rows(rows, Batching())
            for batch in outgoing(made.frames, made.head):
                producer.put(TopicPartition(topic, 0), batch)
            if producer.lanes[TopicPartition(topic, 0)].end_offset == 5:
                with pytest.raises(BrokerError, match="created again"):
                    producer.flush()
                return
            producer.flush()
            admin.delete_topics([topic])[topic].result()
            for _ in range(100):
                try:
                    new_topic(kafka, 1, topic)
                    break
                except KafkaException:  # it is not gone yet
                    time.sleep(0.1)
    pytest.fail("the first batch was not acknowledged")


def test_commands_end_with_a_summary(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    """Ctrl-C ends a recording without an end in good order."""
    topic, copy = new_topic(kafka_4), new_topic(kafka_4)
    fill(kafka_4, topic)
    command = [sys.executable, "-m", "rawlog"]
    process = subprocess.Popen(
        [*command, "record", topic, "--to", str(tmp_path / "one"), "-b", kafka_4.bootstrap, "--json"],
        stdout=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(log_of(tmp_path / "one", f"{topic}-1")) < 1000:
        time.sleep(0.1)
    process.terminate()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    summary = json.loads(output.splitlines()[-1])
    assert {"records", "bytes", "acknowledged", "failed", "seconds"} <= summary.keys()
    assert rawlog.verify(tmp_path / "one").verdict == "clean"
    done = subprocess.run(
        [*command, "replay", str(tmp_path / "one"), "-b", kafka_4.bootstrap, "--to-topic", copy, "--json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["acknowledged"] == summary["records"]


def test_a_mirror_keeps_records_and_with_exact_their_offsets(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, plain, exact = new_topic(kafka), new_topic(kafka), new_topic(kafka)
    fill(kafka, topic, 200)
    given: dict[str, Any] = {"brokers": kafka.bootstrap, "to": kafka.bootstrap, "until_end": True}
    assert rawlog.mirror(topic, topic_map={topic: exact}, exact=True, **given).counts["acknowledged"] == 200
    fill(kafka, topic, 100, seed=2)
    again = rawlog.mirror(topic, topic_map={topic: exact}, exact=True, **given)
    assert again.is_whole
    assert again.counts["acknowledged"] == 100
    recorded(kafka, topic, tmp_path / "one")
    recorded(kafka, exact, tmp_path / "exact")
    for number in (0, 1):
        assert rawlog.diff(tmp_path / "one" / f"{topic}-{number}", tmp_path / "exact" / f"{exact}-{number}").is_same
    transactions(kafka, topic)
    refused = rawlog.mirror(topic, topic_map={topic: exact}, exact=True, **given)
    assert not refused.is_whole
    assert "offsets cannot be kept" in refused.facts["error"]
    assert rawlog.mirror(topic, topic_map={topic: plain}, group=f"m-{topic}", **given).is_whole
    recorded(kafka, topic, tmp_path / "all")
    recorded(kafka, plain, tmp_path / "plain")
    assert rows(tmp_path / "plain") == rows(tmp_path / "all", isolation="read_committed")
    assert rawlog.mirror(topic, topic_map={topic: plain}, group=f"m-{topic}", **given).counts["acknowledged"] == 0
    with pytest.raises(OptionError, match="the same"):
        rawlog.mirror(topic, **given)


def test_a_partition_that_cannot_keep_its_offsets_does_not_stop_the_others(
    kafka_4: KafkaBroker, tmp_path: Path
) -> None:
    """One partition with a transaction stopped the mirror of all six, the topics that it had created stayed empty, and the reason was
    printed twice.
    """
    from click.testing import CliRunner

    from rawlog.cli import cli

    prefix = f"live-{uuid.uuid4().hex[:8]}"
    plain, mixed, aborted = (new_topic(kafka_4, 2, f"{prefix}-{name}") for name in ("plain", "mixed", "aborted"))
    empty = new_topic(kafka_4, 3, f"{prefix}-empty")
    fill(kafka_4, plain, 100)
    fill(kafka_4, mixed, 100)
    for topic, is_committed in ((mixed, True), (aborted, False)):
        producer = LibraryProducer({"bootstrap.servers": kafka_4.bootstrap, "transactional.id": topic})
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(7):
            producer.produce(topic, b"%d" % number, partition=1)
        producer.flush()
        producer.commit_transaction() if is_committed else producer.abort_transaction()
    fill(kafka_4, aborted, 3, partitions=1)
    fill(kafka_4, mixed, 40, seed=3)
    names = ",".join(f"{topic}=to-{topic}" for topic in (plain, mixed, aborted, empty))
    ends = ["--exact", "--create-topic", "--until-end", "--quiet"]
    command = ["mirror", f"{prefix}*", "-b", kafka_4.bootstrap, "--to", kafka_4.bootstrap, "--topic-map", names, *ends]
    ran = CliRunner().invoke(cli, command)
    assert ran.exit_code == 1, ran.output
    lost = [line for line in ran.stdout.splitlines() if "offsets cannot be kept" in line]
    assert len(lost) == 2, ran.stdout
    assert f"{aborted}-1: from offset 0 on" in lost[0]
    assert f"{mixed}-1: from offset 57 on" in lost[1]
    with Cluster(Settings.load(kafka_4.bootstrap)) as cluster:
        found = cluster.topics([f"to-{prefix}*"])
        assert {name: len(topic.partitions) for name, topic in found.items()} == {
            f"to-{plain}": 2, f"to-{mixed}": 2, f"to-{aborted}": 2, f"to-{empty}": 3,
        }  # fmt: skip
    for topic in (plain, mixed, aborted):
        recorded(kafka_4, topic, tmp_path / topic)
        recorded(kafka_4, f"to-{topic}", tmp_path / f"to-{topic}")
        for number in (0, 1):
            own, copy = (rawlog.read(tmp_path / name / f"{name}-{number}") for name in (topic, f"to-{topic}"))
            columns = ["offset", "key", "value", "headers"]
            expected = 0 if (topic, number) == (aborted, 1) else 57 if (topic, number) == (mixed, 1) else len(own)
            assert copy.select(columns).equals(own.select(columns).slice(0, expected)), (topic, number)


def test_a_topic_that_nothing_can_be_copied_to_is_not_created(kafka_4: KafkaBroker) -> None:
    """What can be checked is checked before topics are created: they stayed behind, empty."""
    topic, other = new_topic(kafka_4, 1), new_topic(kafka_4, 1)
    fill(kafka_4, topic, 60, partitions=1)
    fill(kafka_4, other, 60, partitions=1)
    deleted, admin = KafkaPartition(topic, 0, 20), AdminClient({"bootstrap.servers": kafka_4.bootstrap})
    admin.delete_records([deleted])[deleted].result()
    given: dict[str, Any] = {"brokers": kafka_4.bootstrap, "to": kafka_4.bootstrap, "until_end": True}
    exact: dict[str, Any] = {"topic_map": {topic: f"to-{topic}", other: f"to-{other}"}, "exact": True}
    report = rawlog.mirror([topic, other], create_topics=True, **exact, **given)
    assert not report.is_whole
    assert report.counts["acknowledged"] == 60
    [entry] = [one for one in report.entries if one.is_loss]
    assert entry.path == f"{topic}-0"
    assert "begins at offset 20" in entry.reason
    with Cluster(Settings.load(kafka_4.bootstrap)) as cluster:
        assert list(cluster.topics([f"to-{topic}*", f"to-{other}*"])) == [f"to-{other}"]
    with pytest.raises(OptionError, match="begins at offset 20"):
        rawlog.mirror(topic, create_topics=True, topic_map={topic: f"to-{topic}"}, exact=True, **given)


FULL = """
import resource, sys, rawlog
topic, to, brokers, form, resume = sys.argv[1:6]
if not resume:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
report = rawlog.record(topic, to, brokers=brokers, until_end=True, as_=form, resume=bool(resume))
print(report.is_whole, report.counts["records"], *report.lines(), sep="\\n")
"""


@pytest.mark.parametrize("form", ["native", "replay"])
def test_a_full_disk_leaves_a_valid_recording(kafka_4: KafkaBroker, tmp_path: Path, form: str) -> None:
    """Files that may not grow beyond 20,000 bytes take the place of the full disk."""
    topic = new_topic(kafka_4, 1)
    fill(kafka_4, topic, 1000, partitions=1)
    target = tmp_path / "one"

    def run(resume: str) -> list[str]:
        given = [topic, str(target), kafka_4.bootstrap, form, resume]
        return subprocess.run(
            [sys.executable, "-c", FULL, *given], capture_output=True, text=True, check=True
        ).stdout.splitlines()

    whole, records, *lines = run("")
    assert whole == "False"
    assert any("file too large" in line.lower() and "--resume continues" in line for line in lines), lines
    assert rawlog.verify(target).verdict == "clean"
    assert rawlog.count(target) == int(records) < 1000
    whole, records, *lines = run("yes")
    assert whole == "True", lines
    assert rawlog.count(target) == 1000
    assert rawlog.verify(target).verdict == "clean"


# A broker of its own: it is killed ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    from tests.conftest import running
    from tests.services.kafka import KAFKA_4

    broker = KafkaBroker(KAFKA_4, tmp_path_factory.mktemp("mortal"))
    with running(broker):
        yield broker


def test_nothing_is_lost_or_doubled_when_the_broker_is_killed(mortal: KafkaBroker, tmp_path: Path) -> None:
    topic, copy = new_topic(mortal), new_topic(mortal)
    fill(mortal, topic, 3000)
    recorded(mortal, topic, tmp_path / "one")
    done: list[Any] = []

    def run() -> None:
        done.append(rawlog.replay(tmp_path / "one", brokers=mortal.bootstrap, to_topic=copy, rate=800))

    def follow() -> None:
        done.append(rawlog.record(copy, tmp_path / "two", brokers=mortal.bootstrap, limit=3000))

    threads = [Thread(target=run), Thread(target=follow)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    mortal.kill()
    mortal.restart()
    for thread in threads:
        thread.join(240)
    assert [report.is_whole for report in done] == [True, True], [report.lines() for report in done]
    assert any(report.facts.get("retries") or report.facts.get("reconnects") for report in done)
    with Cluster(Settings.load(mortal.bootstrap)) as cluster:
        ends = cluster.offsets({TopicPartition(copy, number): -1 for number in (0, 1)}, {})
    assert set(ends.values()) == {1500}
    found, expected = rows(tmp_path / "two"), rows(tmp_path / "one")
    assert {number: len(part) for number, part in found.items()} == {0: 1500, 1: 1500}
    assert found == expected


def test_recordings_are_those_of_the_original_tool(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    """The topics that the golden recordings of version 2 were made of, recorded once more: byte for byte the same files."""
    compared = []
    for number, case in enumerate(replay_cases()):
        if case.version != 2 or case.topic is None or len(case.topic) != case.count:
            continue  # filtered ones, and those with transaction markers in them
        records = sorted(case.topic, key=lambda one: (one.partition, one.offset))
        if len({one.partition for one in records}) > 1 or any(one.timestamp_type == 1 for one in records):
            continue  # the order of partitions is not known; of log append time the original stores what the client sent
        topic = new_topic(kafka_4, 1, max_message_bytes="30000000")
        made = (
            {
                "key": one.key,
                "value": one.value,
                "timestamp": None if one.timestamp < 0 else one.timestamp * 1000,
                "headers": one.headers,
            }
            for one in records
        )
        sent = rawlog.replay(iter(made), brokers=kafka_4.bootstrap, to_topic=topic)
        assert sent.is_whole, (case, sent.lines())
        done = recorded(kafka_4, topic, tmp_path / f"{number}.log", as_="replay")
        assert done.counts["records"] == case.count
        assert (tmp_path / f"{number}.log").read_bytes() == case.path.read_bytes(), case
        compared.append(case.name)
    assert len(compared) >= 3, compared


def test_the_original_tool_reads_recordings(kafka_4: KafkaBroker, tmp_path: Path) -> None:
    from tests.services import Unavailable
    from tests.services.kafka_replay import program

    try:
        tool = program()
    except Unavailable as reason:
        pytest.skip(str(reason))
    topic = new_topic(kafka_4, 1)
    fill(kafka_4, topic, 300, partitions=1)
    recorded(kafka_4, topic, tmp_path / "native")
    recorded(kafka_4, topic, tmp_path / "one.log", as_="replay")
    done = subprocess.run([tool, "cat", "-i", str(tmp_path / "one.log")], capture_output=True, text=True, check=True)
    decoder, text, found = json.JSONDecoder(), done.stdout.strip(), []
    while text:  # there is no line break between them
        one, at = decoder.raw_decode(text)
        found.append(one["key"])
        text = text[at:].lstrip()
    assert found == [(row[0] or b"").decode() for row in rows(tmp_path / "native")[0]]


def test_masked_records_are_sent_or_none(kafka_4: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sent if a field is missing or a value is not JSON; also for rows, which can be read only once."""
    monkeypatch.setenv("RAWLOG_MASK_SECRET", "a secret of a test")
    topic = new_topic(kafka_4, 1)
    made = [{"key": b"alice", "value": b'{"card":"4111-%d","n":1}' % number, "topic": topic, "partition": 0, "offset": number,
             "timestamp": 1_700_000_000_000_000, "headers": []} for number in range(20)]  # fmt: skip
    rawlog.write(tmp_path / "source", made, format="kafka", codec="zstd")
    rawlog.write(tmp_path / "mixed", [*made, made[0] | {"value": b"4111", "offset": 20}], format="kafka")
    for source, mask in (("source", "value.crad=hash"), ("mixed", "value.card=hash")):
        for given in (tmp_path / source, rawlog.read(tmp_path / source)):
            with pytest.raises(OptionError, match="value.c"):
                rawlog.replay(given, brokers=kafka_4.bootstrap, mask=mask)
    rawlog.replay(tmp_path / "source", brokers=kafka_4.bootstrap, mask="value.card=digits,key=hash")
    rawlog.replay(rawlog.read(tmp_path / "source"), brokers=kafka_4.bootstrap, mask="value.card=digits,key=hash")
    rawlog.record(topic, tmp_path / "recorded", until_end=True, brokers=kafka_4.bootstrap)
    found = rawlog.read(tmp_path / "recorded").to_pylist()
    assert len(found) == 40
    assert len({row["value"] for row in found}) == 20
    assert not [row for row in found if row["key"] == b"alice" or b"4111-" in row["value"]]
    assert all(len(row["value"]) == len(made[row["offset"] % 20]["value"]) for row in found)


def test_fields_of_schemas_are_masked_on_the_way(
    kafka_4: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Avro values are sent with the schema ids that they had; nothing is sent if a mask does not fit a field."""
    monkeypatch.setenv("RAWLOG_MASK_SECRET", "a secret of a test")
    source, topic = GOLDEN / "schemas" / "confluent" / "data", new_topic(kafka_4, 1)
    given: dict[str, Any] = {"topic": "orders", "to_topic": topic, "partition_by": "round-robin", "decode": "value=auto",
                             "brokers": kafka_4.bootstrap, "where": "value.status = 'PAID'"}  # fmt: skip
    with pytest.raises(OptionError, match="value.number is long"):
        rawlog.replay(source, mask="value.number=hash", **given)
    rawlog.replay(source, mask="value.lines[*].sku=fixed:x,value.number=digits", **given)
    rawlog.record(topic, tmp_path / "recorded", until_end=True, brokers=kafka_4.bootstrap)
    found = rawlog.read(tmp_path / "recorded", decode="value=auto@written", schemas=source).to_pylist()
    before = rawlog.read(source, topic="orders", decode="value=auto@written", where=given["where"]).to_pylist()
    assert len(found) == len(before) == 21
    assert sorted(row["value_schema"]["id"] for row in found) == sorted(row["value_schema"]["id"] for row in before)
    assert {line["sku"] for row in found for line in json.loads(row["value"])["lines"]} == {"x"}
    old, new = ({json.loads(row["value"])["number"] for row in some} for some in (before, found))
    assert not old & new
