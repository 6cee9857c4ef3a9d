"""`record` and `replay` against other tools, in turns, on the same broker: `python benchmarks/live.py [RECORDS] [ROUNDS]`.

All are processes of their own, with their start; so are their peers: kafka-replay (built with `go`, or named by $KAFKA_REPLAY), a tuned
confluent-kafka loop, and Java's ConsumerPerformance and ProducerPerformance. Read the ratios: the broker is on the same machine.

A process of kafka-replay 1.4.1 records one partition. It is measured as one process at a time for the four partitions, and as four
processes. Its replay sends 100 records per second to a topic of several partitions (its client waits a second for each batch of 100 to
fill): it gets few records, and its time is scaled. Later releases send more at a time but cannot be built from its module; a tuned loop in
Go with the same client library (kafka_go.go) takes their place.

Librdkafka's defaults are 3 to 6 times slower than what is used here. `--pace` measures instead how evenly records are sent, by the times
that the broker gives them.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

import rawlog

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.services import Unavailable
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


# The peers -------------------------------------------------------------------------------------------------------------------


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
        value = pool[at : at + SIZE]
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.05)
        if not number % 1000:
            producer.poll(0)
    producer.flush()
    assert not failed


def kafka_replay() -> tuple[str, str] | None:
    """The original tool, and the loop in Go; None where they cannot be built."""
    source = Path(__file__).resolve().with_suffix("").with_name("kafka_go.go")
    loop = cache_directory() / f"kafka-go-{hashlib.sha256(source.read_bytes()).hexdigest()[:8]}"
    try:
        if not loop.is_file():
            build_go(loop, str(source), GO_CLIENT)
        return build(), str(loop)
    except Unavailable as error:
        print(error)
        return None


class Used(NamedTuple):
    """Seconds, megabytes (the largest resident set), and seconds of CPU, which say more on a busy machine."""

    seconds: float
    memory: float
    cpu: float


WATCH = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_maxrss, used.ru_utime + used.ru_stime, file=sys.stderr)
sys.exit(code)
"""
"""Runs a command and says how large it became and how long it computed. Its size counts what its parent had: the parent must be small."""


def measured(command: list[str], output: str | Path = os.devnull) -> Used:
    """What a process that must succeed needed."""
    began = time.perf_counter()
    with open(output, "wb") as file:
        done = subprocess.run(
            [sys.executable, "-S", "-c", WATCH, *command], stdout=file, stderr=subprocess.PIPE, check=False
        )
    seconds = time.perf_counter() - began
    *messages, last = done.stderr.decode(errors="replace").splitlines()
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:4])} … failed:\n" + "\n".join(messages[-20:]))
    size, cpu = last.split()
    return Used(seconds, int(size) / 1024, float(cpu))


def topic_of(broker: KafkaBroker, name: str, partitions: int = PARTITIONS, **config: str) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    given = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, 1, config=given)])[name].result(60)
    return name


# Speed -----------------------------------------------------------------------------------------------------------------------


class Speed:
    """One broker, one topic with records, and everybody in turn."""

    def __init__(self, broker: KafkaBroker, folder: Path, count: int) -> None:
        self.broker, self.folder, self.count = broker, folder, count
        self.source = topic_of(broker, "source")
        produce(broker.bootstrap, self.source, count)
        self.go = kafka_replay()
        self.made = 0
        self.clocks: list[float] = []

    def own(self, verb: str, *arguments: str) -> Used:
        output = self.folder / "output.json"
        command = [sys.executable, "-m", "rawlog", verb, *arguments, "-b", self.broker.bootstrap, "--quiet", "--json"]
        found = measured(command, output)
        self.clocks.append(json.loads(output.read_text().splitlines()[-1])["seconds"])
        return found

    def java(self, name: str, *arguments: str) -> Used:
        return measured(_command(KAFKA_4, self.folder, f"{TOOLS}.{name}", *arguments, quiet=True))

    def loop(self, name: str, topic: str) -> Used:
        return measured([sys.executable, __file__, name, self.broker.bootstrap, topic, str(self.count)])

    def target(self) -> str:
        self.made += 1
        return topic_of(self.broker, f"target-{self.made}", max_message_bytes="20000000")

    def record(self) -> dict[str, Used]:
        bootstrap, count, native = self.broker.bootstrap, str(self.count), self.folder / "native"
        file = self.folder / "own.log"
        shutil.rmtree(native, ignore_errors=True)
        for path in self.folder.glob("*.log*"):
            path.unlink()
        found = {
            "rawlog record": self.own("record", self.source, "--to", str(native), "--until-end"),
            "rawlog record --as replay": self.own(
                "record", self.source, "--to", str(file), "--as", "replay", "--until-end"
            ),
            "confluent-kafka consume": self.loop("consume", self.source),
            "Java ConsumerPerformance": self.java(
                "ConsumerPerformance", "--bootstrap-server", bootstrap, "--topic", self.source, "--messages", count
            ),
        }
        assert rawlog.count(native) == self.count
        if self.go:
            found["kafka-replay record, 1 process"] = self.go_record(self.go[0], 1)
            found["kafka-replay record, 4 at once"] = self.go_record(self.go[0], PARTITIONS)
        return found

    def go_record(self, tool: str, together: int) -> Used:
        """A process records one partition: one for each, so many of them at the same time."""
        began = time.perf_counter()
        command = [tool, "record", "-b", self.broker.bootstrap, "-t", self.source, "-g", "", "-O", "0"]
        command += ["-l", str(self.count // PARTITIONS)]
        with ThreadPoolExecutor(together) as pool:
            done = list(
                pool.map(
                    lambda number: measured([*command, "-p", str(number), "-o", str(self.folder / f"go-{number}.log")]),
                    range(PARTITIONS),
                )
            )
        seconds, memory = time.perf_counter() - began, together * max(one.memory for one in done)
        return Used(seconds, memory, sum(one.cpu for one in done))

    def go_replay(self, tool: str) -> Used:
        """It takes so long that it gets only some of the records; the time is that of as many as the others get."""
        few, small = min(self.count, GO_RECORDS), self.folder / "small.log"
        rawlog.record(self.source, small, as_="replay", limit=few, brokers=self.broker.bootstrap)
        used = measured([tool, "replay", "-b", self.broker.bootstrap, "-t", self.target(), "-i", str(small)])
        return Used(used.seconds * self.count / few, used.memory, used.cpu * self.count / few)

    def replay(self) -> dict[str, Used]:
        bootstrap, native, file = self.broker.bootstrap, self.folder / "native", self.folder / "own.log"
        properties = [
            f"bootstrap.servers={bootstrap}", "acks=all", "batch.size=512000", "linger.ms=20", "buffer.memory=134217728",
        ]  # fmt: skip
        found = {
            "rawlog replay": self.own("replay", str(native), "--to-topic", self.target()),
            "rawlog replay of a v2 file": self.own("replay", str(file), "--to-topic", self.target()),
            "confluent-kafka produce": self.loop("produce", self.target()),
            "Java ProducerPerformance": self.java(
                "ProducerPerformance", "--topic", self.target(), "--num-records", str(self.count), "--record-size", str(SIZE),
                "--throughput", "-1", "--producer-props", *properties,
            ),
        }  # fmt: skip
        if self.go:
            found["kafka-replay replay (scaled)"] = self.go_replay(self.go[0])
            found["kafka-go loop, 1 process"] = measured([self.go[1], bootstrap, self.target(), str(file)])
        return found


def show(found: dict[str, Used], count: int) -> None:
    ours = next(iter(found.values()))
    for name, used in found.items():
        ratio = ""
        if used is not ours:
            ratio = (
                f", {used.seconds / ours.seconds:.1f} x the time and {used.cpu / ours.cpu:.1f} x the CPU of the first"
            )
        speed = f"{count / used.seconds / 1e6:7.4f} M records/s"
        print(f"  {name:30} {speed} {used.memory:6.0f} MB {used.cpu:6.1f} s CPU{ratio}", flush=True)


def speed(count: int, rounds: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="rawlog-live-"))
    try:
        with KafkaBroker(KAFKA_4, folder / "data") as broker:
            one = Speed(broker, folder, count)
            for number in range(rounds + 1):
                print(f"round {number}{' (to warm up)' if not number else ''}, load {os.getloadavg()[0]:.1f}")
                show(one.record(), count)
                show(one.replay(), count)
                rates = ", ".join(f"{count / seconds / 1e6:.3f}" for seconds in one.clocks)
                print(f"  rawlog by its own clock, without its start: {rates} M records/s", flush=True)
                one.clocks.clear()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# Pace ------------------------------------------------------------------------------------------------------------------------


def arrivals(broker: KafkaBroker, topic: str, folder: Path) -> np.ndarray:
    """When the broker got each record, in seconds."""
    rawlog.record(topic, folder, brokers=broker.bootstrap, until_end=True)
    times = rawlog.read(folder, columns=["timestamp"])["timestamp"].cast("int64").to_numpy()
    return np.sort(times) / 1e6


def pace() -> None:
    """At the recorded pace of 5,000 records/s, and at a rate of 1,000 records/s, for 10 s each."""
    folder = Path(tempfile.mkdtemp(prefix="rawlog-pace-"))
    try:
        with KafkaBroker(KAFKA_4, folder / "data") as broker:
            times = 1_700_000_000_000 + np.cumsum(np.random.default_rng(1).exponential(0.2, 50_000))
            columns = {
                "timestamp": pa.array(times.astype(np.int64), pa.timestamp("ms", "UTC")),
                "key": [b"k"] * times.size,
                "value": [bytes(SIZE)] * times.size,
            }
            source = folder / "recording"
            rawlog.write(source, pa.table(columns), format="kafka", topic="t", partition=0)
            for given in ({"pace": "recorded"}, {"rate": 1000.0, "limit": 10_000}):
                topic = topic_of(broker, f"at-{next(iter(given))}", 1, message_timestamp_type="LogAppendTime")
                done = rawlog.replay(source, brokers=broker.bootstrap, to_topic=topic, **given)
                got = arrivals(broker, topic, folder / topic)
                in_window = np.searchsorted(got, got + 0.1, side="left") - np.arange(got.size)
                spent = got[-1] - got[0]
                print(
                    f"{given}, load {os.getloadavg()[0]:.1f}: whole {done.is_whole}; error of the pace {done.facts['pacing_error_ms']}; "
                    f"{got.size:,} records in {spent:.3f} s = {(got.size - 1) / spent:.1f}/s; "
                    f"in 100 ms at most {done.facts['most_in_100_ms']} sent, {in_window.max()} stored by the broker; acknowledged after "
                    f"{done.facts['acknowledgement_ms']}",
                    flush=True,
                )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] in (["consume"], ["produce"]):
        {"consume": consume, "produce": produce}[arguments[0]](arguments[1], arguments[2], int(arguments[3]))
    elif arguments == ["--pace"]:
        pace()
    else:
        speed(int(arguments[0]) if arguments else 5_000_000, int(arguments[1]) if len(arguments) > 1 else 2)


if __name__ == "__main__":
    main()
