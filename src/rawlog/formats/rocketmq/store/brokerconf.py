"""`broker.conf`: what a broker was configured with, if the file is near its store. The store itself says little of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rawlog.core.format import File
from rawlog.formats.rocketmq.paths import COMMIT_LOG_NAME
from rawlog.io.storage import is_remote, local_path

NAMES = ("broker.conf", "broker.properties", "conf/broker.conf", "conf/broker.properties", "config/broker.conf")
LEVELS = 3
"""The store's own directory and those above it that are searched."""
LARGEST = 1 << 20
_LINE = re.compile(r"\s*([^\s=:]+)\s*[=:]?\s*(.*)")


@dataclass(frozen=True, slots=True)
class BrokerConf:
    """A broker's settings by name. What it does not name has RocketMQ's default."""

    path: str
    values: Mapping[str, str] = field(default_factory=dict)

    def number(self, *names: str) -> int | None:
        """The first of these settings that is a number above zero."""
        for name in names:
            text = self.values.get(name, "")
            if re.fullmatch(r"[0-9]{1,18}", text) and int(text) > 0:
                return int(text)
        return None


def conf_near(files: Iterable[File]) -> BrokerConf | None:
    """The settings of the broker whose store these files are: a file of a usual name in the store's directory or above it.

    One that names another directory as its store, which exists, is not taken.
    """
    groups = {file.place.group: file.format != COMMIT_LOG_NAME for file in files if file.place.group is not None}
    roots = sorted(groups, key=lambda group: not groups[group])
    if not roots or is_remote(roots[0]):
        return None
    root = Path(os.path.abspath(local_path(roots[0])))
    for folder in (root, *root.parents)[:LEVELS]:
        for name in NAMES:
            found = _read(folder / name)
            if found is not None and _belongs(found, root):
                return found
    return None


def _read(path: Path) -> BrokerConf | None:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return None
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
    values = {}
    for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines():
        found = _LINE.fullmatch(line)
        if found and not found[1].startswith(("#", "!")):
            values[found[1]] = found[2].strip()
    return BrokerConf(str(path), values)


def _belongs(conf: BrokerConf, root: Path) -> bool:
    told = conf.values.get("storePathRootDir")
    if not told:
        return True
    path = Path(conf.path).parent / told
    try:
        return not path.exists() or path.samefile(root)
    except (OSError, ValueError):
        return True
