"""What happens to the disks of a dead cluster: some are lost, others damaged. Everything comes from a seed. Imports nothing of rawlog."""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

METADATA = "__cluster_metadata-0"


@dataclass
class Damage:
    """The disks that are left below `folder`, and in words what was done to them."""

    folder: Path
    disks: list[Path] = field(default_factory=list)
    has_metadata: bool = True
    done: list[str] = field(default_factory=list)


def damage(source: Path, folder: Path, seed: int, metadata: bool | None = None, clean: bool = False) -> Damage:
    """A damaged copy of the disks `source/<node>/<disk>`. `clean`: all disks are there and nothing is damaged.

    `metadata` says whether metadata logs are left; None: chance.
    """
    chance = random.Random(seed)
    made = Damage(folder)
    shutil.copytree(source, folder)
    nodes = sorted(path for path in folder.iterdir() if path.is_dir())
    if not clean:
        _lose(made, nodes, chance)
    made.disks = sorted(disk for node in nodes if node.is_dir() for disk in node.iterdir())
    made.has_metadata = chance.random() < 0.75 if metadata is None else metadata
    if not made.has_metadata:
        made.done.append("no metadata log")
        for disk in made.disks:
            shutil.rmtree(disk / METADATA, ignore_errors=True)
    if not clean:
        _hurt(made, chance)
    return made


def _lose(made: Damage, nodes: list[Path], chance: random.Random) -> None:
    node = chance.choice(nodes)
    disks = sorted(node.iterdir())
    if len(disks) > 1 and chance.random() < 0.4:
        lost = chance.choice(disks)
        # The disk with the metadata log of the node may go; the other nodes have theirs.
        shutil.rmtree(lost)
    else:
        lost = node
        shutil.rmtree(node)
    made.done.append(f"{lost.relative_to(made.folder)} lost")


def _hurt(made: Damage, chance: random.Random) -> None:
    rate = chance.choice([0.0, 0.1, 0.3])
    for disk in made.disks:
        for log in sorted(disk.glob("*/*.log")):
            if log.parent.name.endswith(("-delete", "-stray")):
                continue
            is_metadata = log.parent.name == METADATA
            if is_metadata and disk.parent != made.disks[0].parent:
                continue  # one of the metadata logs may be hurt, not all
            if log.stat().st_size and chance.random() < rate:
                _flip(made, log, chance)
            if log.stat().st_size and log == max(log.parent.glob("*.log")) and chance.random() < rate / 3:
                _cut(made, log, chance)
        for name in ("*/*.index", "*/*.timeindex", "*/*.snapshot", "*/*.txnindex"):
            for path in sorted(disk.glob(name)):
                if chance.random() < rate / 5:
                    made.done.append(f"{path.relative_to(made.folder)} overwritten")
                    path.write_bytes(chance.randbytes(chance.choice([0, 13, 100])))
        for name in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "cleaner-offset-checkpoint"):
            if (disk / name).is_file() and chance.random() < rate:
                made.done.append(f"{disk.relative_to(made.folder)}/{name} deleted")
                (disk / name).unlink()


def _flip(made: Damage, log: Path, chance: random.Random) -> None:
    data = bytearray(log.read_bytes())
    for _ in range(chance.choice([1, 1, 2, 4])):
        at = chance.randrange(len(data))
        data[at] ^= 1 << chance.randrange(8)
        made.done.append(f"{log.relative_to(made.folder)}: bit flipped in byte {at}")
    log.write_bytes(data)


def _cut(made: Damage, log: Path, chance: random.Random) -> None:
    data = log.read_bytes()
    left = max(len(data) - chance.randrange(1, 600), 0)
    zeros = chance.choice([0, 0, 100, 5000])
    log.write_bytes(data[:left] + bytes(zeros))
    made.done.append(f"{log.relative_to(made.folder)}: cut at byte {left} of {len(data)}, {zeros} zero bytes after it")
