"""Ambry: a store with three log segments, its index, and the files around them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.data.golden import GOLDEN
from tests.reference import ambry
from tests.wounds.truth import Family, Frame, Record, Subject, digest


class Ambry(Family):
    name = "ambry"
    data = ("**/*_log",)
    derived = ("**/*_index", "**/*_bloom")

    def frames(self, root: Path, file: Path) -> list[Frame]:
        name, found = str(file.relative_to(root)), []
        for message in ambry.decode(file.read_bytes()):
            row = ambry.record_row(message)
            time = None if row["timestamp"] is None else row["timestamp"] // 1000
            record = self.record(message.key.text, message.header.life_version, message.kind, time, message.content)
            start, stop = message.position, message.position + message.size
            records = (record,) if message.crc_ok else ()
            found.append(Frame(name, start, stop, message.key.text, start, start, records))
        return found

    def row(self, row: Mapping[str, Any]) -> Record:
        headers = {header["key"]: header["value"].decode(errors="replace") for header in row["headers"]}
        kind, version = headers["kind"], int(headers["life_version"])
        return self.record(ambry_text(row["key"]), version, kind, row["timestamp"], row["value"])

    def record(self, blob: str, version: int, kind: str | None, time: int | None, content: bytes | None) -> Record:
        """Of an update the index has everything but the fraction of its second: it can be written again."""
        seconds = time if time is None or kind == "PUT" else time // 1000
        return Record(blob, version, digest(seconds, kind, content))


def ambry_text(key: bytes) -> str:
    return ambry.read_key(key, 0, len(key)).text


FAMILY = Ambry()


def small(root: Path) -> None:
    shutil.copytree(GOLDEN / "ambry" / "store-small", root / "9")
    (root / "9" / "expected.json").unlink()


SUBJECTS = [Subject("ambry-store", FAMILY, small, frozenset({"clean"}))]
