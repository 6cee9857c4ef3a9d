"""`record` and `replay` next to other tools, in turns, on the same broker on this machine.

All are processes of their own, with their start: kafka-replay (built with `go`, or named by $KAFKA_REPLAY), tuned loops with
confluent-kafka, and Java's ConsumerPerformance and ProducerPerformance. The broker's time is not counted.

A process of kafka-replay 1.4.1 records one partition. It is measured as one process at a time for the four partitions, and as four
processes. Its replay sends 100 records per second to a topic of several partitions (its client waits a second for each batch of 100 to
fill): it gets few records. Later releases send more at a time but cannot be built from its module; a tuned loop in Go with the same client
library (go/replay.go) takes their place. Librdkafka's defaults are 3 to 6 times slower than what is used here.

`--pace` measures instead how evenly records are sent, by the times that the broker gives them.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import pyarrow as pa
from harness import HERE, Bench, Peer, Run, Way, Work, case, command, main, rawlog_command

import rawlog
from tests.services.jars import cache_directory
from tests.services.kafka import KAFKA_4, KafkaBroker, _command
from tests.services.kafka_replay import build, build_go

PARTITIONS, SIZE = 4, 100
POOL = 1_000_000
"""Values do not repeat within a batch: a peer that compresses must not send next to nothing."""
GO_RECORDS = 500
GO_CLIENT = "github.com/segmentio/kafka-go v0.4.50"
CONSUMER = {
    "queued.min.messages": 2_000_000, "fetch.queue.backoff.ms": 5, "fetch.message.max.bytes": 8 << 20,
    "queued.max.messages.kbytes": 1 << 20,
}  # fmt: skip
PRODUCER = {
    "acks": "all", "enable.idempotence": True, "linger.ms": 20, "batch.size": 900_000, "batch.num.messages": 100_000,
    "queue.buffering.max.messages": 1_000_000,
}  # fmt: skip
TOOLS = "org.apache.kafka.tools"


# Loops: each is a process of its own ----------------------------------------------------------------------------------------


def consume(bootstrap: str, topic: str, count: int) -> None:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x", "enable.auto.commit": False, **CONSUMER})
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    seen = 0
    while seen < count:
        seen += len(consumer.consume(10_000, 1.0))
    consumer.close()


def produce(bootstrap: str, topic: str, count: int) -> None:
    from confluent_kafka import Producer

    failed = 0

    def delivered(error: object, message: object) -> None:
        nonlocal failed
        failed += error is not None

    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    pool = random.Random(1).randbytes(POOL)
    for number in range(count):
        at = number % (POOL // SIZE) * SIZE
        while True:
            try:
                value = pool[at : at + SIZE]
                producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1000:
            producer.poll(0)
    producer.flush()
    assert not failed


# Everybody on one broker ----------------------------------------------------------------------------------------------------


class Broker:
    """A broker, and a topic with records."""

    def __init__(self, bench: Bench) -> None:
        self.folder, self.count = bench.folder, bench.size // PARTITIONS * PARTITIONS
        self.broker = bench.enter(KafkaBroker(KAFKA_4, bench.folder / "data"))
        self.bootstrap = self.broker.bootstrap
        self.source = topic_of(self.broker, "source")
        produce(self.bootstrap, self.source, self.count)
        bench.rows, bench.bytes = self.count, self.count * SIZE
        self.targets = (topic_of(self.broker, f"target-{n}", max_message_bytes="20000000") for n in range(1_000))

    def rawlog(self, verb: str, *arguments: object, rows: int | None = None) -> Run:
        return rawlog_command(verb, *arguments, "-b", self.bootstrap, "--quiet", rows=rows or self.count)

    def java(self, name: str, *arguments: object) -> Run:
        tool = _command(KAFKA_4, self.folder, f"{TOOLS}.{name}", *map(str, arguments), quiet=True)
        return command(tool, self.count)

    def loop(self, name: str, topic: str) -> Run:
        return command([sys.executable, __file__, name, self.bootstrap, topic, self.count], self.count)

    def go_record(self, tool: str, together: int) -> Run:
        """A process records one partition: one for each, so many of them at the same time."""
        options = ["-b", self.bootstrap, "-t", self.source, "-g", "", "-O", "0", "-l", self.count // PARTITIONS]

        def record(number: int) -> Run:
            file = self.folder / f"go-{number}.log"
            return command([tool, "record", *options, "-p", number, "-o", file], self.count // PARTITIONS)

        began = perf_counter()
        with ThreadPoolExecutor(together) as pool:
            runs = list(pool.map(record, range(PARTITIONS)))
        cpu, memory = sum(run.cpu or 0 for run in runs), together * max(run.memory_mb or 0 for run in runs)
        return Run(self.count, cpu, perf_counter() - began, memory)


def topic_of(broker: KafkaBroker, name: str, partitions: int = PARTITIONS, **config: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(60)
    return name


@contextmanager
def kafka_replay(run: Callable[[str], Run]) -> Iterator[Callable[[], Run]]:
    """The original tool; Unavailable where it cannot be built."""
    tool = build()
    yield lambda: run(tool)


@contextmanager
def go_loop(run: Callable[[str], Run]) -> Iterator[Callable[[], Run]]:
    """The loop in Go; Unavailable where it cannot be built."""
    source = HERE / "go" / "replay.go"
    program = cache_directory() / f"kafka-go-{hashlib.sha256(source.read_bytes()).hexdigest()[:8]}"
    if not program.is_file():
        build_go(program, str(source), GO_CLIENT)
    yield lambda: run(str(program))


@case("record", size=500_000, tiny=400, unit="records", rounds=3, default=False)
def record(bench: Bench) -> Iterator[Way]:
    """A topic of four partitions recorded from a live broker, as native files."""
    live, native = Broker(bench), bench.folder / "native"

    def own(target: Path, *arguments: str) -> Run:
        shutil.rmtree(target, ignore_errors=True)
        for path in bench.folder.glob("own.log*"):
            path.unlink()
        run = live.rawlog("record", live.source, "--to", target, *arguments, "--until-end")
        return run._replace(rows=rawlog.count(target))

    performance = ("--bootstrap-server", live.bootstrap, "--topic", live.source, "--messages", live.count)
    yield Work("rawlog record", lambda: own(native))
    yield Peer("confluent-kafka consume", lambda: live.loop("consume", live.source))
    yield Peer("Java ConsumerPerformance", lambda: live.java("ConsumerPerformance", *performance))
    yield Peer("kafka-replay, 1 process", start=lambda: kafka_replay(lambda tool: live.go_record(tool, 1)))
    yield Peer("kafka-replay, 4 processes", start=lambda: kafka_replay(lambda tool: live.go_record(tool, PARTITIONS)))
    yield Peer("rawlog record --as replay", lambda: own(bench.folder / "own.log", "--as", "replay"))


@case("replay", size=500_000, tiny=400, unit="records", rounds=3, default=False)
def replay(bench: Bench) -> Iterator[Way]:
    """Native files sent into topics of a live broker, every record acknowledged."""
    live, native, file = Broker(bench), bench.folder / "native", bench.folder / "own.log"
    few = min(live.count, GO_RECORDS)
    rawlog.record(live.source, native, brokers=live.bootstrap, until_end=True)
    rawlog.record(live.source, file, as_="replay", brokers=live.bootstrap, until_end=True)
    rawlog.record(live.source, bench.folder / "few.log", as_="replay", limit=few, brokers=live.bootstrap)
    properties = [
        f"bootstrap.servers={live.bootstrap}", "acks=all", "batch.size=512000", "linger.ms=20", "buffer.memory=134217728",
    ]  # fmt: skip
    performance = (
        "--num-records",
        live.count,
        "--record-size",
        SIZE,
        "--throughput",
        -1,
        "--producer-props",
        *properties,
    )

    def original(tool: str) -> Run:
        arguments = ("-b", live.bootstrap, "-t", next(live.targets), "-i", bench.folder / "few.log")
        return command([tool, "replay", *arguments], few)

    def loop(program: str) -> Run:
        return command([program, live.bootstrap, next(live.targets), file], live.count)

    yield Work("rawlog replay", lambda: live.rawlog("replay", native, "--to-topic", next(live.targets)))
    yield Peer("confluent-kafka produce", lambda: live.loop("produce", next(live.targets)))
    yield Peer(
        "Java ProducerPerformance",
        lambda: live.java("ProducerPerformance", "--topic", next(live.targets), *performance),
    )
    yield Peer("kafka-replay", start=lambda: kafka_replay(original), rows=few, rounds=1, warm=0)
    yield Peer("kafka-go loop", start=lambda: go_loop(loop))
    yield Peer("rawlog replay of its file", lambda: live.rawlog("replay", file, "--to-topic", next(live.targets)))


# Pace ------------------------------------------------------------------------------------------------------------------------


def arrivals(broker: KafkaBroker, topic: str, folder: Path) -> np.ndarray:
    """When the broker got each record, in seconds."""
    rawlog.record(topic, folder, brokers=broker.bootstrap, until_end=True)
    times = rawlog.read(folder, columns=["timestamp"])["timestamp"].cast("int64").to_numpy()
    return np.sort(times) / 1e6


def pace() -> None:
    """At the recorded pace of 5,000 records/s, and at a rate of 1,000 records/s, for 10 s each."""
    with TemporaryDirectory(prefix="rawlog-pace-") as name, KafkaBroker(KAFKA_4, Path(name) / "data") as broker:
        folder = Path(name)
        times = 1_700_000_000_000 + np.cumsum(np.random.default_rng(1).exponential(0.2, 50_000))
        columns = {
            "timestamp": pa.array(times.astype(np.int64), pa.timestamp("ms", "UTC")),
            "key": [b"k"] * times.size,
            "value": [bytes(SIZE)] * times.size,
        }
        source = folder / "recording"
        rawlog.write(source, pa.table(columns), format="kafka", topic="t", partition=0)
        for options in ({"pace": "recorded"}, {"rate": 1000.0, "limit": 10_000}):
            topic = topic_of(broker, f"at-{next(iter(options))}", 1, message_timestamp_type="LogAppendTime")
            report = rawlog.replay(source, brokers=broker.bootstrap, to_topic=topic, **options)
            got = arrivals(broker, topic, folder / topic)
            in_window = np.searchsorted(got, got + 0.1, side="left") - np.arange(got.size)
            spent = got[-1] - got[0]
            print(
                f"{options}, load {os.getloadavg()[0]:.1f}: whole {report.is_whole}; error of the pace {report.facts['pacing_error_ms']}; "
                f"{got.size:,} records in {spent:.3f} s = {(got.size - 1) / spent:.1f}/s; "
                f"in 100 ms at most {report.facts['most_in_100_ms']} sent, {in_window.max()} stored by the broker; acknowledged after "
                f"{report.facts['acknowledgement_ms']}",
                flush=True,
            )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] in (["consume"], ["produce"]):
        {"consume": consume, "produce": produce}[arguments[0]](arguments[1], arguments[2], int(arguments[3]))
    elif arguments == ["--pace"]:
        pace()
    else:
        main(__doc__)
