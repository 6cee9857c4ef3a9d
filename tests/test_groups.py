"""Tests that share a service, or the fixtures of a file, run on one worker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_worker_has_whole_groups() -> None:
    """With pytest 9.2 the groups of pytest-xdist 3.8 meant nothing, and nothing failed: both workers started Spark and each broker."""
    files = ["tests/model/test_intervals.py", "tests/model/test_text.py", "tests/model/test_tables.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-v", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    workers = defaultdict(set)
    for worker, file in re.findall(r"^\[(gw\d)\].* PASSED ([^:]+)::", done.stdout, re.MULTILINE):
        workers[file].add(worker)
    assert set(workers) == set(files), done.stdout
    assert all(len(names) == 1 for names in workers.values())
    assert set.union(*workers.values()) == {"gw0", "gw1"}
