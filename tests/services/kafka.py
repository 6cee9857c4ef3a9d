"""A real Kafka broker on loopback, and its tools, from the jars alone.

One node that is broker and controller. `KafkaBroker` formats the directory unless it is one already, so it also starts on
what a test wrote.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services import die_with_parent, free_ports
from tests.services.jars import class_path, java

KAFKA_2 = "2.8.2"
KAFKA_3 = "3.9.2"
KAFKA_4 = "4.3.0"
START_SECONDS = 180
STOP_SECONDS = 60
CONSUME_SECONDS = 30  # without a message

# Short-lived and next to others on a small machine: the quick compiler and little memory. The broker recipe has the rest.
JVM = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dzookeeper.admin.enableServer=false",
)

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "2",
    "group.initial.rebalance.delay.ms": "0",
    "log.index.size.max.bytes": "65536",
    "log.retention.ms": "-1",  # old timestamps are data here, not garbage
    "log.retention.check.interval.ms": "1000",  # for topics that ask for retention by themselves
    "log.initial.task.delay.ms": "1000",
    "broker.session.timeout.ms": "4000",  # a start after a crash waits for it
    "broker.heartbeat.interval.ms": "1000",
}
PROPERTIES_OF = {
    "2": {"broker.id": "1", "zookeeper.session.timeout.ms": "2000"},
    "3": {"group.coordinator.rebalance.protocols": "classic,consumer"},
    "4": {
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "2",
    },
}

KRAFT = (
    "process.roles", "node.id", "listener.security.protocol.map", "controller.listener.names", "broker.session.timeout.ms",
    "broker.heartbeat.interval.ms",
)  # fmt: skip
"""Properties that a broker with ZooKeeper does not have."""
ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
KEEPER_TICK_MS = "500"  # a session takes two of them at least

LOG4J = """\
log4j.rootLogger=INFO, console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{1}: %m%n
"""
LOG4J2 = """\
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c{1}: %m%n
"""


class BrokerError(RuntimeError):
    """A broker or tool that did not do what it was started for, with the end of its output."""


class KafkaBroker:
    """A broker over `data_dir`, running inside a `with`. Its `bootstrap` is the address for clients, `log` its output.

    `properties` go over the defaults above. `more_dirs` are further log directories. `stop()` is a clean stop, `kill()` a crash, and
    `start()` starts it again on the same files; `start_as_is()` never formats them.
    """

    ready = "Kafka Server started"
    """What it logs when it serves clients."""

    def __init__(
        self,
        version: str,
        data_dir: str | os.PathLike[str],
        properties: Mapping[str, str] | None = None,
        more_dirs: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self.version = version
        self.data_dir = Path(data_dir)
        self.more_dirs = [Path(one) for one in more_dirs]
        self.properties = PROPERTIES | PROPERTIES_OF[version[0]] | dict(properties or {})
        self.cluster_id = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=").replace("-", "x")
        self.bootstrap = ""
        self._home = Path(tempfile.mkdtemp(prefix=f"kafka-{version}-"))
        self.log = self._home / "output.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and wait until it serves. Another process may take a free port first: then once more, with others."""
        for attempt in range(3):
            self._configure()
            if not (self.data_dir / "meta.properties").is_file():
                self._format()
            try:
                self._start()
            except BrokerError as failure:
                if attempt == 2 or "Address already in use" not in str(failure):
                    raise
            else:
                return

    def start_as_is(self) -> None:
        """Start on the files as they are. BrokerError if it does not come up."""
        self._configure()
        self._start()

    def restart(self) -> None:
        """Start again after `stop` or `kill` at the same address, as clients that are still connected expect."""
        self._start()

    def stop(self) -> int | None:
        """Ask it to stop, as an operator would, and wait; the exit code (143). It is killed if it will not."""
        if self._process is None:
            return None
        self._process.terminate()
        try:
            return self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerError(f"Kafka {self.version} did not stop\n{self.output_tail()}") from None
        finally:
            self._process = None

    def kill(self) -> None:
        """Crash it: no clean marker, padded indexes."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def output_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:]) if self.log.is_file() else ""

    def _configure(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        broker, controller = free_ports(2)
        self.bootstrap = f"127.0.0.1:{broker}"
        own = {
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "log.dirs": ",".join(map(str, (self.data_dir, *self.more_dirs))),
        }
        if "controller.quorum.bootstrap.servers" in self.properties:  # its value is ours to give: the port is
            own["controller.quorum.bootstrap.servers"] = f"127.0.0.1:{controller}"
        else:
            own["controller.quorum.voters"] = f"{self.properties['node.id']}@127.0.0.1:{controller}"
        text = "".join(f"{key}={value}\n" for key, value in (self.properties | own).items())
        (self._home / "server.properties").write_text(text)

    def _format(self) -> None:
        options = ["--standalone"] if "controller.quorum.bootstrap.servers" in self.properties else []
        properties = str(self._home / "server.properties")
        run_tool(self.version, "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", properties, *options)

    def _start(self) -> None:
        self._launch()
        self._wait()

    def _launch(self) -> None:
        command = _command(self.version, self._home, "kafka.Kafka", str(self._home / "server.properties"))
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                preexec_fn=die_with_parent,
            )

    def _wait(self) -> None:
        log, deadline = "", time.monotonic() + START_SECONDS
        while self.ready not in (now := self.log.read_text(errors="replace")):
            if now != log:  # it goes on, however slowly
                log, deadline = now, time.monotonic() + START_SECONDS
            if self._process is None or self._process.poll() is not None:
                code, self._process = self._process and self._process.returncode, None
                raise BrokerError(f"Kafka {self.version} ended with {code} at start\n{self.output_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise BrokerError(f"Kafka {self.version} was not up after {START_SECONDS} s\n{self.output_tail()}")
            time.sleep(0.1)


class ZooKeeperBroker(KafkaBroker):
    """A broker of a release before KRaft, with a ZooKeeper of its own, which runs until the end of the `with`."""

    ready = "[KafkaServer id=1] started"

    def __init__(
        self, version: str, data_dir: str | os.PathLike[str], properties: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(version, data_dir, properties)
        self.properties = {key: value for key, value in self.properties.items() if key not in KRAFT}
        self._keeper: subprocess.Popen[bytes] | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._end_keeper()

    def _configure(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        broker, keeper = free_ports(2)
        self.bootstrap = f"127.0.0.1:{broker}"
        self._start_keeper(keeper)
        own = {
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "zookeeper.connect": f"127.0.0.1:{keeper}",
            "log.dirs": str(self.data_dir),
        }
        text = "".join(f"{key}={value}\n" for key, value in (self.properties | own).items())
        (self._home / "server.properties").write_text(text)

    def _format(self) -> None:
        """The broker writes what it needs by itself."""

    def restart(self) -> None:
        """As long as ZooKeeper has the session of a broker that was killed, another one with its number is refused."""
        for _ in range(10):
            try:
                return super().restart()
            except BrokerError:
                if "NodeExistsException" not in self.log.read_text(errors="replace"):
                    raise
        raise BrokerError(f"Kafka {self.version} is refused by ZooKeeper")

    def _start_keeper(self, port: int) -> None:
        """The broker waits for it by itself."""
        self._end_keeper()
        home = self._home / "zookeeper"
        home.mkdir(exist_ok=True)
        command = _command(self.version, home, ZOOKEEPER, str(port), str(home / "data"), KEEPER_TICK_MS, quiet=True)
        with (home / "output.txt").open("wb") as output:
            self._keeper = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._home,
                preexec_fn=die_with_parent,
            )

    def _end_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
            self._keeper = None


def consume_all(
    broker: KafkaBroker, partitions: Sequence[tuple[str, int]], isolation: str = "read_uncommitted"
) -> Iterator[Any]:
    """The messages that a real consumer gets of partitions, up to the end that each has now.

    `Consumer.consume` waits for its whole timeout if fewer messages come than it was asked for: so it is asked often and not for long.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    settings = {
        "bootstrap.servers": broker.bootstrap, "group.id": "judge", "enable.auto.commit": False, "enable.partition.eof": True,
        "isolation.level": isolation, "check.crcs": True,
    }  # fmt: skip
    consumer, waiting = Consumer(settings), set(partitions)
    deadline = time.monotonic() + CONSUME_SECONDS
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in partitions])
        while waiting:
            messages = consumer.consume(5000, 0.2)
            if messages:
                deadline = time.monotonic() + CONSUME_SECONDS
            assert time.monotonic() < deadline, f"the consumer waits for {sorted(waiting)[:5]}"
            for message in messages:
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, (message.topic(), error)
                    waiting.discard((message.topic(), message.partition()))
                else:
                    yield message
    finally:
        consumer.close()


class JavaAdmin:
    """Kafka's own AdminClient, for what the Python client cannot ask: quotas and reassignments. One JVM for all questions."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="kafka-admin-"))
        program = str(Path(__file__).parent / "java" / "Admin.java")  # java compiles it as it starts
        with (self._home / "messages.txt").open("wb") as messages:
            self._process = subprocess.Popen(
                _command(broker.version, self._home, program, broker.bootstrap, quiet=True),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                preexec_fn=die_with_parent,
            )
        self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        finally:
            self._process.stdout.close()
            shutil.rmtree(self._home, ignore_errors=True)

    def ask(self, *words: object) -> list[list[str]]:
        """Lines of words that answer a question. BrokerError, with the cause, if it was refused."""
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[list[str]]:
        assert self._process.stdout is not None
        lines: list[list[str]] = []
        for line in self._process.stdout:
            if line == ".\n":
                if lines and lines[0][0] == "error":
                    raise BrokerError(" ".join(lines[0][1:]))
                return lines
            lines.append(line.rstrip("\n").split("\t"))
        raise BrokerError((self._home / "messages.txt").read_text(errors="replace"))


@contextmanager
def streams_application(broker: KafkaBroker, name: str, home: Path, *topics: str) -> Iterator[None]:
    """A Kafka Streams application of the streams protocol that reads topics. It runs when this yields."""
    program = str(Path(__file__).parent / "java" / "Streams.java")
    command = _command(broker.version, home, program, broker.bootstrap, name, str(home / "state"), *topics, quiet=True)
    at = command.index("-cp") + 1
    command[at] = f"{command[at]}:{class_path(f'kafka-streams-{broker.version}')}"
    with (home / "messages.txt").open("wb") as messages:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=messages,
            text=True,
            preexec_fn=die_with_parent,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not any(line == "RUNNING\n" for line in process.stdout):
            raise BrokerError((home / "messages.txt").read_text(errors="replace"))
        yield
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(STOP_SECONDS)


def dump_log_segments(version: str, files: Sequence[str | os.PathLike[str]], *options: str) -> str:
    """What Kafka's own DumpLogSegments says of these files: its output, then its messages.

    It ends with 0 even for an invalid batch: look for `isvalid: false` in its lines.
    """
    package = "kafka.tools" if version.startswith("3.") else "org.apache.kafka.tools"
    return run_tool(version, f"{package}.DumpLogSegments", "--files", ",".join(map(str, files)), *options)


def run_tool(version: str, main: str, *arguments: str) -> str:
    """Run a main class of Kafka's jars to its end; its output, then its messages. BrokerError if it fails."""
    with tempfile.TemporaryDirectory(prefix="kafka-tool-") as home:
        done = subprocess.run(
            _command(version, Path(home), main, *arguments, quiet=True),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
    output, messages = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    if done.returncode:
        raise BrokerError(f"{main} of Kafka {version} ended with {done.returncode}\n{output}{messages}")
    return output + messages


def _command(version: str, home: Path, main: str, *arguments: str, quiet: bool = False) -> list[str]:
    # 2.x and 3.x log through log4j or reload4j, 4.x through log4j 2: each wants its own file. Readiness is read from what is logged.
    if version[0] in "23":
        file, text, option = home / "log4j.properties", LOG4J, "-Dlog4j.configuration=file:{}"
    else:
        file, text, option = home / "log4j2.properties", LOG4J2, "-Dlog4j2.configurationFile={}"
    file.write_text(text.replace("INFO", "WARN").replace("= info", "= warn") if quiet else text)
    return [java(), *JVM, option.format(file), "-cp", class_path(f"kafka-{version}"), main, *arguments]
