"""A standalone Spark cluster with two workers, as on two machines, and a gate before a server at which a test lets one request wait."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.services import die_with_parent, free_ports
from tests.services.proxy import Proxy

#: Each worker is a host of its own: Spark runs no second copy of a task on the host of the first.
HOSTS = ("127.0.0.1", "127.0.0.2")
CLASSES = "org.apache.spark.deploy"


class Standalone:
    """A master and a worker of one core on each host, running inside a `with`. `url` is its master's."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self.environment = {**environment, "SPARK_DAEMON_MEMORY": "256m"}
        self.master: subprocess.Popen[bytes] | None = None
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def __enter__(self) -> Self:
        port, page = free_ports(2)
        self.url = f"spark://{HOSTS[0]}:{port}"
        own = ["--host", HOSTS[0], "--port", str(port), "--webui-port", str(page)]
        self.master = self._start("master", HOSTS[0], [f"{CLASSES}.master.Master", *own], "New state: ALIVE")
        try:
            self.complete()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def complete(self) -> None:
        """Start the workers that do not run, and wait until the master has them."""
        for host in HOSTS:
            if host in self.workers and self.workers[host].poll() is None:
                continue
            own = ["--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(self.folder / "work")]
            own += ["--webui-port", str(*free_ports(1)), self.url]
            command = [f"{CLASSES}.worker.Worker", *own]
            self.workers[host] = self._start(f"worker-{host}", host, command, "registered with master")

    def kill(self, process: int) -> None:
        """Kill the worker that a process belongs to, and all that it started, as if its machine had lost power."""
        above = {one.pid for one in psutil.Process(process).parents()}
        [worker] = [one for one in self.workers.values() if one.pid in above]
        lost = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
        for one in lost:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        worker.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in (*self.workers.values(), self.master):
            if process is not None:
                process.terminate()
                process.wait(60)

    def _start(self, name: str, host: str, command: list[str], mark: str) -> subprocess.Popen[bytes]:
        import pyspark

        spark_class = str(Path(pyspark.__file__).parent / "bin" / "spark-class")
        log = self.folder / f"{name}.txt"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [spark_class, *command], env={**self.environment, "SPARK_LOCAL_IP": host}, cwd=self.folder,
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent,
            )  # fmt: skip
        deadline = time.monotonic() + 120
        while mark not in (text := log.read_text(errors="replace")):
            assert time.monotonic() < deadline, text[-2000:]
            assert process.poll() is None, text[-2000:]
            time.sleep(0.1)
        return process


class Gate(Proxy):
    """A way to a server on which answers of a kind come byte by byte, as from a very slow disk, until the gate is opened."""

    def __init__(self, port: int, is_held: Callable[[bytes], bool]) -> None:
        """`is_held` says of a request whether its answer is to be slow."""
        self.is_held = is_held
        self.arrived, self.opened = threading.Event(), threading.Event()
        super().__init__(port)

    def close(self) -> None:
        """Let everything pass, and end."""
        self.opened.set()
        super().close()

    def ask(self, data: bytes, connection: threading.Event) -> None:
        if self.is_held(data):
            connection.set()
            self.arrived.set()

    def answer(self, data: bytes, connection: threading.Event) -> Iterator[bytes]:
        if connection.is_set():
            head = data.find(b"\r\n\r\n") + 4 if data.startswith(b"HTTP/") else 0
            yield data[:head]
            data = data[head:]
        # Often enough for a client with a time limit.
        while data and connection.is_set() and not self.opened.wait(0.3):
            yield data[:1]
            data = data[1:]
        yield data
