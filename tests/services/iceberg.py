"""Apache Iceberg's REST catalog server (that of its image `iceberg-rest-fixture`) on loopback, with its tables in a SQLite file."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.services import Unavailable, answers, die_with_parent, free_ports
from tests.services.jars import class_path, java

VERSION = "1.10.1"
START_SECONDS = 120


class RestCatalog:
    """A catalog with nothing in it, running inside a `with`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        spark = find_spec("pyspark")
        if spark is None or spark.origin is None:
            raise Unavailable("PySpark is not installed: its jars are needed")
        [self.port] = free_ports(1)
        path = f"{class_path(f'iceberg-rest-{VERSION}')}:{Path(spark.origin).parent / 'jars' / '*'}"
        settings = {
            "CATALOG_URI": f"jdbc:sqlite:{self.folder / 'catalog.db'}",
            "CATALOG_WAREHOUSE": f"file://{self.folder / 'warehouse'}",
            "CATALOG_REST_PORT": str(self.port),
            "REST_PORT": str(self.port),
        }
        output = self.folder / "output.txt"
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [
                    java(),
                    "-Xmx256m",
                    "-XX:TieredStopAtLevel=1",
                    "-cp",
                    path,
                    "org.apache.iceberg.rest.RESTCatalogServer",
                ],
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent,
            )
        if answers(self._process, f"{self.uri}/v1/config", START_SECONDS):
            return self
        self.__exit__(None, None, None)
        raise Unavailable(f"Iceberg's REST server does not start: {output.read_text(errors='replace')[-2000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
