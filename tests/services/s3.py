"""An S3 server on loopback: moto's, in a process of its own so that Spark's workers reach it too."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.services import Unavailable, answers, die_with_parent, free_ports

START_SECONDS = 60
REGION = "us-east-1"


class S3Server:
    """A server with nothing in it, running inside a `with`. `environment` is what a client finds it by."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[str] | None = None

    def requests(self) -> list[str]:
        """The requests so far, such as `GET /bucket/key`, in the order in which they were answered."""
        assert self._log is not None
        self._log.seek(0)
        return re.findall(r'"([A-Z]+ \S+) HTTP/', self._log.read())

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def url(self, path: str) -> str:
        """A URL that says all by itself, for pyarrow's `FileSystem.from_uri`."""
        return f"s3://test:test@{path}?endpoint_override=127.0.0.1:{self.port}&scheme=http&region={REGION}"

    def filesystem(self) -> Any:
        """A pyarrow file system on it that may make buckets (`create_dir`)."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key="test",
            secret_key="test",
            endpoint_override=f"127.0.0.1:{self.port}",
            scheme="http",
            region=REGION,
            allow_bucket_creation=True,
            allow_bucket_deletion=True,
        )

    def __enter__(self) -> Self:
        output = Path(tempfile.mkstemp(prefix="moto-")[1])
        self._log = output.open(errors="replace")
        try:
            for _ in range(3):  # another process may take the free port first
                if self._start(output):
                    return self
            raise Unavailable(f"moto's S3 server does not start: {output.read_text(errors='replace')[-2000:]}")
        finally:
            output.unlink()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        if self._log is not None:
            self._log.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, output: Path) -> bool:
        [self.port] = free_ports(1)
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        if answers(self._process, f"{self.endpoint}/moto-api/", START_SECONDS):
            return True
        self._stop()
        return False
