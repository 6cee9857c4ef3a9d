"""Which tests run on one worker, one after the other, so that what they share is started or made once (`make test` has three workers).

The groups that pytest-xdist knows itself are a part of a test's id, which pytest 9.2 does not let it change: it then gave out single tests,
and all workers started each service. Here workers write a file that says which test is in which group, and the scheduler reads it.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
from collections import defaultdict
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.times import long_tests, name_of

#: The groups that begin first: those with Spark or brokers. All others are files.
FIRST = ("spark", "kafka-4", "tests/engines/spark/test_cluster.py", "kafka-3", "kafka", "rocketmq")
FILE = pytest.StashKey[Path]()


def group_of(item: pytest.Item) -> str:
    """The group of a test: the service that it needs, or its file."""
    fixtures = getattr(item, "fixturenames", ())
    name = item.nodeid.partition("::")[2]
    if "spark" in fixtures or "[spark" in name:
        return "spark"
    file = str(item.path.relative_to(item.config.rootpath))
    if item.get_closest_marker("broker") is None:
        return file
    if "rocketmq" in file:
        return "rocketmq"
    version = re.search(r"[\[-]([34])(?:\.\d+\.\d+)?[\]-]", name)
    named = [fixture for fixture in ("kafka_3", "kafka_4") if fixture in fixtures]
    if version:
        return f"kafka-{version[1]}"
    return named[0].replace("_", "-") if len(named) == 1 else "kafka"


def arrange(items: list[pytest.Item], file: Path) -> None:
    """Bring tests into the order in which groups are given out, the longest first, and write the group of each to a file."""
    groups = {item.nodeid: group_of(item) for item in items}
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        seconds[groups[item.nodeid]] += long_tests().get(name_of(item.nodeid), 0.02)

    def order(item: pytest.Item) -> tuple[int, float, str]:
        group = groups[item.nodeid]
        return FIRST.index(group) if group in FIRST else len(FIRST), -seconds[group], group

    items.sort(key=order)
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(json.dumps(groups))
    draft.replace(file)


def file_for(config: pytest.Config) -> Path:
    """Where the workers of a run write their groups."""
    if FILE not in config.stash:
        folder = tempfile.mkdtemp(prefix="rawlog-tests-groups-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        config.stash[FILE] = Path(folder) / "groups.json"
    return config.stash[FILE]


class Scheduler(LoadScopeScheduling):
    """Gives out whole groups, in the order of the tests."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self.file = file_for(config)

    @cached_property
    def groups(self) -> dict[str, str]:
        """The group of each test, by its id."""
        groups: dict[str, str] = json.loads(self.file.read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self.groups[nodeid]
