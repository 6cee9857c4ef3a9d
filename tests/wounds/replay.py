"""kafka-replay: recordings of all three versions."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.data.golden import GOLDEN
from tests.reference import replay
from tests.wounds.truth import Family, Frame, Record, Subject, digest


class Replay(Family):
    """A recording has no addresses: entries that are alike are numbered."""

    name = "replay"
    data = ("*.log",)
    derived = ()

    def frames(self, root: Path, file: Path) -> list[Frame]:
        data = file.read_bytes()
        version = replay.version_of(data)
        entries = replay.decode(data)[0] if version is not None else []
        name = str(file.relative_to(root))
        found = []
        for entry in entries:
            time = entry.time_us(version or 0)
            record = Record("", 0, digest(None if time is None else time // 1000, entry.key, entry.value))
            stop = entry.position + entry.size
            found.append(Frame(name, entry.position, stop, "", entry.number, entry.number, (record,)))
        return found

    def row(self, row: Mapping[str, Any]) -> Record:
        return Record("", 0, digest(row["timestamp"], row["key"], row["value"]))


FAMILY = Replay()
RECORDINGS = {0: "v0/basic-v0.10.0.log", 1: "v1/basic-v1.1.0.log", 2: "v2/basic.log"}


def recording(version: int) -> Callable[[Path], None]:
    def build(root: Path) -> None:
        shutil.copyfile(GOLDEN / "replay" / RECORDINGS[version], root / "basic.log")

    return build


SUBJECTS = [Subject(f"replay-v{version}", FAMILY, recording(version)) for version in (0, 1, 2)]
