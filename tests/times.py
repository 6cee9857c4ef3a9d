"""How much processor time each test takes, and which tests are too long for `make quick`.

One test in twelve takes nine tenths of the time, and no directory holds them, so they are measured: `make times` runs all tests that need
no service and writes `long.txt` again. Names have no directories: a test that moves stays long.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("long.txt")
#: Seconds of processor time, children included, from which on a test is long.
LONG = 0.2
HEADER = f"""\
# Tests that take {LONG} s of processor time or more with few examples, with their seconds. `make times` writes this file again.
"""


def name_of(nodeid: str) -> str:
    """The name of a test without directories and case: `test_lake.py::test_orphans_are_removed`."""
    return nodeid.partition("[")[0].rpartition("/")[2]


@cache
def long_tests() -> dict[str, float]:
    """The names of all tests that are too long for `make quick`, with their seconds."""
    lines = (line.split() for line in LIST.read_text().splitlines() if line and not line.startswith("#"))
    return {name: float(seconds) for seconds, name in lines}


def processor_time() -> float:
    """The seconds that this process and its ended children have taken."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def record(nodeid: str, seconds: float) -> None:
    """Note the time of a test in the file that RAWLOG_TIMES names."""
    with open(os.environ["RAWLOG_TIMES"], "a") as file:
        file.write(f"{seconds:.3f}\t{nodeid}\n")


def write_list(recorded: Path) -> None:
    """Write `long.txt` again; tests that were not measured keep their line."""
    times: dict[str, list[float]] = defaultdict(list)
    for line in recorded.read_text().splitlines():
        seconds, _, nodeid = line.partition("\t")
        times[name_of(nodeid)].append(float(seconds))
    lines = {name: seconds for name, seconds in long_tests().items() if name not in times}
    for name, cases in times.items():
        if (mean := sum(cases) / len(cases)) >= LONG:
            lines[name] = mean
    LIST.write_text(HEADER + "".join(f"{lines[name]:.1f} {name}\n" for name in sorted(lines)))


if __name__ == "__main__":
    write_list(Path(sys.argv[1]))
