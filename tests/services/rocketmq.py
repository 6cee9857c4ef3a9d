"""A real RocketMQ broker on loopback, from the jars alone, and a judge over plain sockets: no client, no name server.

`RocketBroker` starts on whatever store a test gives it. `pull`, `by_key` and `by_address` answer the stored entries byte for byte.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.services import die_with_parent, free_ports
from tests.services.jars import class_path, java

ROCKETMQ_4 = "4.9.7"
ROCKETMQ_5 = "5.3.3"
ROCKETMQ_55 = "5.5.1"
READY = b"boot success"
START_SECONDS = 240
STOP_SECONDS = 90
JVM = ("-Xms256m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# A broker takes no messages on a disk that is 90 % full, and deletes files at 85 %: 4.9.7 then delivers no delayed message, in silence.
FULL_DISK = ("-Drocketmq.broker.diskSpaceWarningLevelRatio=1", "-Drocketmq.broker.diskSpaceCleanForciblyRatio=1")
OPENS = tuple(
    f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
)
CONFIG = {
    "brokerClusterName": "LabCluster",
    "brokerName": "lab-a",
    "brokerId": "0",
    "brokerIP1": "127.0.0.1",
    "fileReservedTime": "100000",
    "transactionCheckInterval": "100000000",
    "transactionTimeOut": "100000000",
}
CONFIG_OF = {"4": {}, "5": {"timerWheelEnable": "false"}}
LOGBACK = "<configuration><root level='OFF'/></configuration>"
FOUND, NO_NEW, RETRY, MOVED, NO_TOPIC, NOT_FOUND = 0, 19, 20, 21, 17, 22


class BrokerError(RuntimeError):
    """A broker that did not start, with the end of its output."""


class RocketBroker:
    """A broker over `store`, running inside a `with`."""

    def __init__(self, version: str, store: str | os.PathLike[str], config: Mapping[str, str] | None = None) -> None:
        self.version = version
        self.store = Path(store).resolve()
        self.config = CONFIG | CONFIG_OF[version[0]] | dict(config or {})
        self._home = Path(tempfile.mkdtemp(prefix=f"rocketmq-{version}-"))
        self.log = self._home / "output.txt"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._number = 0

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
            self.kill()
        finally:
            shutil.rmtree(self._home, ignore_errors=True)

    def start(self) -> None:
        """Start and wait until it serves. BrokerError if it ends by itself."""
        for attempt in range(3):
            _fast, ha, self.port = free_ports(3)  # the broker takes two below its own as well
            config = self.config | {
                "listenPort": str(self.port),
                "haListenPort": str(ha),
                "storePathRootDir": str(self.store),
                "storePathCommitLog": str(self.store / "commitlog"),
            }
            conf = self._home / "conf"
            conf.mkdir(exist_ok=True)
            for name in ("broker", "namesrv"):
                (conf / f"logback_{name}.xml").write_text(LOGBACK)
            file = self._home / "broker.conf"
            file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
            with self.log.open("wb") as output:
                self._process = subprocess.Popen(
                    [
                        java(), *JVM, *FULL_DISK, *OPENS, f"-Duser.home={self._home}", f"-Drocketmq.home.dir={self._home}",
                        "-cp", class_path(f"rocketmq-{self.version}"), "org.apache.rocketmq.broker.BrokerStartup", "-c", str(file),
                    ],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "ROCKETMQ_HOME": str(self._home)},
                    preexec_fn=die_with_parent,
                )  # fmt: skip
            try:
                self._wait()
            except BrokerError as failure:
                if "Address already in use" not in str(failure) or attempt == 2:
                    raise
            else:
                return

    def _wait(self) -> None:
        assert self._process is not None
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            if READY in self.log.read_bytes():
                self._socket = socket.create_connection(("127.0.0.1", self.port), 30)
                return
            if self._process.poll() is not None:
                raise BrokerError(f"the broker ended with {self._process.returncode}:\n{self._tail()}")
            time.sleep(0.2)
        self.kill()
        raise BrokerError(f"the broker did not start in {START_SECONDS} s:\n{self._tail()}")

    def _tail(self) -> str:
        return self.log.read_bytes()[-3000:].decode("utf-8", "replace")

    def processor_seconds(self) -> float:
        """What the processor has done for the broker so far, all threads together."""
        assert self._process is not None
        ticks = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """A clean stop."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """A crash."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    # ------------------------------------------------------------------ what it is asked

    def call(self, code: int, body: bytes = b"", **fields: object) -> tuple[dict[str, Any], bytes]:
        """One request over the remoting protocol; the answer's head and body."""
        assert self._socket is not None
        self._number += 1
        head = json.dumps(
            {
                "code": code, "language": "PYTHON", "version": 399, "opaque": self._number, "flag": 0,
                "extFields": {name: str(value) for name, value in fields.items()}, "serializeTypeCurrentRPC": "JSON",
            }
        ).encode()  # fmt: skip
        self._socket.sendall(struct.pack(">ii", 4 + len(head) + len(body), len(head)) + head + body)
        while True:
            total, size = struct.unpack(">ii", self._read(8))
            size &= 0xFFFFFF
            data = self._read(total - 4)
            answer = json.loads(data[:size])
            if answer["opaque"] == self._number and answer["flag"] & 1:
                return answer, data[size:]

    def _read(self, size: int) -> bytes:
        assert self._socket is not None
        data = b""
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise EOFError("the broker hung up")
            data += piece
        return data

    def offsets(self, topic: str, queue_id: int) -> tuple[int, int]:
        """The first and the next offset of a queue."""
        low, _ = self.call(31, topic=topic, queueId=queue_id)
        high, _ = self.call(30, topic=topic, queueId=queue_id)
        return int(low["extFields"]["offset"]), int(high["extFields"]["offset"])

    def pull(self, topic: str, queue_id: int) -> list[bytes]:
        """Every entry of a queue, as stored."""
        offset, high = self.offsets(topic, queue_id)
        entries: list[bytes] = []
        while offset < high:
            answer, body = self.call(
                11, consumerGroup="judge", topic=topic, queueId=queue_id, queueOffset=offset, maxMsgNums=32, sysFlag=4, commitOffset=0,
                suspendTimeoutMillis=0, subscription="*", subVersion=0, expressionType="TAG",
            )  # fmt: skip
            if answer["code"] != FOUND:
                raise BrokerError(
                    f"{topic} queue {queue_id} offset {offset}: code {answer['code']} {answer.get('remark')}"
                )
            entries += split(body)
            offset = int(answer["extFields"]["nextBeginOffset"])
        return entries

    def by_key(self, topic: str, key: str) -> list[bytes]:
        answer, body = self.call(12, topic=topic, key=key, maxNum=64, beginTimestamp=0, endTimestamp=(1 << 63) - 1)
        return split(body) if answer["code"] == FOUND else []

    def by_address(self, address: int) -> bytes | None:
        answer, body = self.call(33, offset=address)
        return body if answer["code"] == FOUND else None

    def send(self, topic: str, queue_id: int, body: bytes, properties: str = "") -> int:
        """Send a message; its queue offset."""
        answer, _ = self.call(
            10, body, producerGroup="judge", topic=topic, defaultTopic="TBW102", defaultTopicQueueNums=4, queueId=queue_id, sysFlag=0,
            bornTimestamp=int(time.time() * 1000), flag=0, properties=properties, reconsumeTimes=0, unitMode="false", batch="false",
        )  # fmt: skip
        if answer["code"] != FOUND:
            raise BrokerError(f"send: code {answer['code']} {answer.get('remark')}")
        return int(answer["extFields"]["queueOffset"])


def split(body: bytes) -> list[bytes]:
    """Entries that stand back to back."""
    entries, position = [], 0
    while position < len(body):
        (size,) = struct.unpack_from(">i", body, position)
        entries.append(body[position : position + size])
        position += size
    return entries
