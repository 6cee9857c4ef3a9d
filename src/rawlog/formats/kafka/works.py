"""The verbs that write partition directories anew, for one partition or a whole log directory of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rawlog.account import Account
from rawlog.errors import OptionError, UnknownFormatError, unknown
from rawlog.format import File
from rawlog.formats.kafka.checkpoints import CLEANER, LOG_START, offsets_in, write
from rawlog.formats.kafka.compact import FLAGS, SMALLEST_MEMORY, Settings, compact_partition
from rawlog.formats.kafka.compact import Report as Compacted
from rawlog.formats.kafka.derived import Limits
from rawlog.formats.kafka.paths import METADATA_TOPIC, OFFSET_CHECKPOINTS, split
from rawlog.formats.kafka.rebuild import rebuild_partition
from rawlog.formats.kafka.repair import repair_partition
from rawlog.storage import Source, new_directory

Work = Callable[[Sequence[File], str], Any]
IDENTITY = "meta.properties"


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


def _groups(files: Sequence[File]) -> dict[str, list[File]]:
    """The files of every partition directory that a broker would load, by its path."""
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    return {
        folder: group
        for folder, group in sorted(groups.items())
        if any(file.format == "kafka.log" and file.place.state is None for file in group)
    }


def _each(groups: Mapping[str, Sequence[File]], target: str, work: Work, *, threads: int, writes: bool) -> Partitions:
    """Do a work for every partition directory: into `target` itself if there is one, else below it by name, all of them or none."""
    if not groups:
        raise UnknownFormatError("no partition directory is here")
    if len(groups) == 1 or not writes:
        return Partitions(
            partitions={
                split(folder)[1]: work(group, target if len(groups) == 1 else f"{target}/{split(folder)[1]}")
                for folder, group in groups.items()
            }
        )
    account = Partitions()
    with new_directory(target) as stage, ThreadPoolExecutor(threads) as pool:
        names = [split(folder)[1] for folder in groups]
        if len(set(names)) < len(names):
            raise OptionError("partitions of the same name are here; name the log directory of one of them")
        done = [pool.submit(work, group, f"{stage}/{name}") for name, group in zip(names, groups.values(), strict=True)]
        for name, future in zip(names, done, strict=True):
            made = future.result()
            made.target = f"{target}/{name}"
            account.partitions[name] = made
        _keep_directory(groups, account.partitions, stage)
    return account


def _keep_directory(groups: Mapping[str, Sequence[File]], done: Mapping[str, Any], stage: Path) -> None:
    """Carry over what a log directory says of itself and of its partitions, as far as it is still true.

    The mark of a clean stop is left out: a broker then looks at everything once. A log start behind the end would delete the log.
    """
    folders = {split(folder)[0] for folder in groups}
    if len(folders) != 1:
        return
    folder = folders.pop()
    for name in OFFSET_CHECKPOINTS:
        offsets = {}
        for (topic, partition), offset in offsets_in(folder, name).items():
            account = done.get(f"{topic}-{partition}")
            if account is not None and (name != LOG_START or offset <= account.end_offset):
                offsets[topic, partition] = min(offset, account.end_offset)
        if name == CLEANER:
            for directory, account in done.items():
                topic, _, number = directory.rpartition("-")
                if isinstance(account, Compacted) and number.isdigit():
                    offsets[topic, int(number)] = account.first_dirty
        if offsets:
            (stage / name).write_bytes(write(offsets))
    if os.path.exists(f"{folder}/{IDENTITY}"):
        with Source(f"{folder}/{IDENTITY}") as source:
            (stage / IDENTITY).write_bytes(source.read(0, source.size))


def _threads(groups: Mapping[str, Any]) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores, len(groups)))


def _named(options: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Options under names with underscores; OptionError for one that is not known."""
    named = {name.replace(".", "_").replace("-", "_"): value for name, value in options.items()}
    for name in named:
        if name not in known:
            raise unknown("option of kafka", name, known)
    return named


def _flag(options: dict[str, str], name: str) -> bool:
    text = options.pop(name, "false")
    if text.lower() not in FLAGS:
        raise OptionError(f"{name} {text!r}: true or false expected")
    return FLAGS[text.lower()]


LIMITS = tuple(Limits.__dataclass_fields__)
REPAIR = (*LIMITS, "policy", "quarantine", "dry_run")
COMPACT = (*Settings.__dataclass_fields__, "topic")


def rebuild(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """Every partition's derived files anew."""
    named, groups = _named(options, LIMITS), _groups(files)
    return _each(
        groups,
        target,
        lambda group, path: rebuild_partition(group, path, named),
        threads=_threads(groups),
        writes=True,
    )


def repair(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """Every partition mended; `policy`, `quarantine` and `dry_run` are the options of its own."""
    rest, groups = _named(options, REPAIR), _groups(files)
    policy, aside, dry = rest.pop("policy", "salvage"), rest.pop("quarantine", None), _flag(rest, "dry_run")

    def mend(group: Sequence[File], path: str) -> Account:
        place = aside if aside is None or len(groups) == 1 else f"{aside}/{split(path)[1]}"
        return repair_partition(group, path, rest, policy=policy, quarantine=place, dry_run=dry)

    return _each(groups, target, mend, threads=_threads(groups), writes=not dry)


def compact(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """Every partition compacted, several at once, which share the memory. `topic` is a glob, or several with commas between."""
    rest = _named(options, COMPACT)
    globs = [one for one in rest.pop("topic", "*").split(",") if one]
    groups = {
        folder: group
        for folder, group in _groups(files).items()
        if (topic := group[0].place.topic) != METADATA_TOPIC
        and (any(fnmatchcase(topic or "", glob) for glob in globs) or globs == ["*"])
    }
    threads = _threads(groups)
    settings = Settings.told(rest)
    rest["memory"] = str(max(SMALLEST_MEMORY, settings.memory // threads))
    rest["now"] = str(settings.now)
    return _each(groups, target, lambda group, path: compact_partition(group, path, rest), threads=threads, writes=True)
