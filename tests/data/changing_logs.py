"""Partitions that are written again with other content, as a broker leaves them that truncates, compacts or creates them again."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import rawlog
from tests.data.replicas import broker, topic_id

TOPIC = "orders"


def write(
    folder: Path, values: list[bytes], *, topic: str = TOPIC, id: str = "first", segment: int = 900, keys: int = 7
) -> Path:
    """Make one partition of a log directory hold these values, in batches of three; others stay."""
    own = folder / f"{topic}-0"
    shutil.rmtree(own, ignore_errors=True)
    broker(folder, 1)
    rows = [{"key": b"%d" % (at % keys), "value": value, "offset": at} for at, value in enumerate(values)]
    rawlog.write(folder, rows, format="kafka", topic=topic, partition=0, batch_records=3, segment_bytes=segment)
    (own / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id(topic + id)}")
    return folder


def numbered(count: int, word: str = "value", first: int = 0) -> list[bytes]:
    """Values that say what they are."""
    return [b"%s %d" % (word.encode(), number) for number in range(first, first + count)]


def compacted(folder: Path, work: Path) -> None:
    """Compact a log directory in place, as the broker does it."""
    shutil.rmtree(work, ignore_errors=True)
    rawlog.compact(folder, work, force=True)
    shutil.rmtree(folder)
    shutil.copytree(work, folder)


class Changing:
    """A partition that grows, is truncated, compacted, created again, in any order."""

    def __init__(self, folder: Path, work: Path, topic: str, chance: random.Random, most: int = 40) -> None:
        self.folder, self.work, self.topic, self.chance, self.most = folder, work, topic, chance, most
        self.content: list[bytes] = []
        self.steps = 0
        self.id = 0

    def change(self) -> str:
        """Change it once; the kind of change."""
        chance = self.chance
        self.steps += 1
        what = chance.choice(("grow", "grow", "truncate", "create", "compact"))
        if what == "truncate":
            self.content = self.content[: chance.randrange(len(self.content) + 1)]
        elif what == "create":
            self.content, self.id = [], self.steps
        if what != "compact":
            self.content += numbered(chance.randrange(1, self.most), f"step {self.steps}", len(self.content))
        size = chance.choice((400, 900, 1 << 20))
        write(self.folder, self.content, topic=self.topic, segment=size, id=str(self.id))
        if what == "compact":
            compacted(self.folder, self.work)
        return what
