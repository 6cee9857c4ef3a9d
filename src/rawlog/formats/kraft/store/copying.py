"""A metadata directory that goes along as it is where the partitions around it are rewritten."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rawlog.core.format import File, Unit
from rawlog.core.report import Account
from rawlog.formats.kafka.paths import METADATA_TOPIC, split
from rawlog.io.output import child, copy_file, new_directory


@dataclass(slots=True)
class Copied(Account):
    """What was copied."""

    files: int = 0
    bytes: int = 0


def cut(files: Sequence[File], options: Mapping[str, str], at_once: int) -> list[Unit]:
    """A unit for each metadata directory, unless `topic` asks for other topics only."""
    globs = [one for one in options.get("topic", "*").split(",") if one]
    groups: dict[str, list[File]] = {}
    for file in files:
        if file.place.topic == METADATA_TOPIC and file.place.group is not None:
            groups.setdefault(file.place.group, []).append(file)
    if not any(fnmatchcase(METADATA_TOPIC, glob) for glob in globs):
        return []
    return [Unit(split(folder)[1], tuple(group), options) for folder, group in sorted(groups.items())]


def compact(files: Sequence[File], target: str, options: Mapping[str, str]) -> Account:
    """A copy of a metadata directory, byte for byte: a log cleaner leaves it alone, and a broker does not start without it."""
    with new_directory(target) as folder:
        for file in files:
            copy_file(file.path, child(folder, split(file.path)[1]))
    return Copied(files=len(files), bytes=sum(file.size for file in files))
