"""The verbs that write partition directories anew, for one partition or a whole log directory of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog.account import Account
from rawlog.format import File
from rawlog.formats.kafka.paths import split
from rawlog.formats.kafka.rebuild import rebuild_partition
from rawlog.formats.kafka.repair import repair_partition

Work = Callable[[Sequence[File], str], Account]


@dataclass(slots=True)
class Partitions(Account):
    """What came of every partition, by the name of its directory."""

    partitions: dict[str, Account] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost in any of them."""
        return all(one.is_whole for one in self.partitions.values())

    def as_json(self) -> dict[str, Any]:
        """Each partition's own account."""
        told = {name: one.as_json() for name, one in self.partitions.items()}
        return {"partitions": told, "is_whole": self.is_whole}

    def lines(self) -> list[str]:
        """Each partition's own account, under its name."""
        return [
            text for name, one in self.partitions.items() for text in (name, *(f"  {line}" for line in one.lines()))
        ]


def _each(files: Sequence[File], target: str, work: Work) -> Partitions:
    """Do a work for every partition directory: into `target` itself if there is one, else below it by name."""
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    chosen = {
        folder: group
        for folder, group in groups.items()
        if any(file.format == "kafka.log" and file.place.state is None for file in group)
    }
    account = Partitions()
    for folder, group in sorted(chosen.items()):
        name = split(folder)[1]
        account.partitions[name] = work(group, target if len(chosen) == 1 else f"{target}/{name}")
    return account


def rebuild(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """Every partition's derived files anew."""
    return _each(files, target, lambda group, path: rebuild_partition(group, path, options))


def repair(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """Every partition mended; `policy` and `quarantine` are the options of its own."""
    rest = dict(options)
    policy, aside = rest.pop("policy", "salvage"), rest.pop("quarantine", None)
    return _each(
        files, target, lambda group, path: repair_partition(group, path, rest, policy=policy, quarantine=aside)
    )
