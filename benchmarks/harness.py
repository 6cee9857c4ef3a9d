"""The harness of all benchmarks: a case does the same work in several ways, in turns, and says what each took and how they compare.

A script declares cases and ends with `main(__doc__)`. A case is a function that makes its data and yields its ways: one `Work` of rawlog's,
the `Peer`s that do the same, and the `Limit`s, less than which nobody who does this work can take. Each way runs once to warm up; then
they take turns, so that what else the machine does troubles all of them alike. A ratio is the median over the rounds of what the other way
took for a row in the same round, divided by what the work took: 2 means that rawlog takes half.

    python benchmarks/kafka_decode.py                      # its cases, default size
    python benchmarks/kafka_decode.py --case zstd --size 64 --rounds 9
    python benchmarks/kafka_decode.py --tiny               # tiny data: does it still run, and is what it says whole?
    python benchmarks/kafka_decode.py --json out/bench.json  # puts its cases into this file, in place of their former results
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, Self, TypeVar

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from tests.services import Unavailable, die_with_parent  # noqa: E402
from tests.services.jars import class_path, java  # noqa: E402

T = TypeVar("T")

ROUNDS = 5
ROLES = ("work", "peer", "limit")
#: Scripts that are no benchmarks.
TOOLS = ("__main__.py", "harness.py", "data.py", "counts.py", "counted_work.py")


class Run(NamedTuple):
    """What a run did; and what it took, if it measured itself."""

    rows: int
    cpu: float | None = None
    wall: float | None = None
    memory_mb: float | None = None


@dataclass
class Way:
    """One way to do the work of a case."""

    role: str
    name: str
    run: Callable[[], int | Run] | None = None
    """Does it, and says how many rows it did."""
    start: Callable[[], AbstractContextManager[Callable[[], int | Run]]] | None = None
    """What must be started, and may be missing: its value is called as `run` is."""
    rows: int | None = None
    """How many rows it must have done, if not those of the case: a slow peer gets a share."""
    warm: int = 1
    """Runs before the first that counts."""
    rounds: int | None = None
    """At most so many rounds, for what takes long."""
    tree: bool = False
    """Whether processes below this one work for it, and go on: their time counts too."""
    runs: list[Run] = field(default_factory=list)


class Work(Way):
    def __init__(self, name: str, run: Callable[[], int | Run], **more: Any) -> None:
        super().__init__("work", name, run, **more)


class Peer(Way):
    def __init__(self, name: str, run: Callable[[], int | Run] | None = None, **more: Any) -> None:
        super().__init__("peer", name, run, **more)


class Limit(Way):
    def __init__(self, name: str, run: Callable[[], int | Run], **more: Any) -> None:
        super().__init__("limit", name, run, **more)


class Bench:
    """What a case gets: its size, a folder, and a place to keep what must be closed. It says how much data it made."""

    def __init__(self, size: int, folder: Path, stack: ExitStack, *, is_tiny: bool) -> None:
        self.size, self.folder, self.stack, self.is_tiny = size, folder, stack, is_tiny
        self.rows = self.bytes = 0

    def enter(self, service: AbstractContextManager[T]) -> T:
        """Open something until the case ends."""
        return self.stack.enter_context(service)


Body = Callable[[Bench], Iterator[Way]]


@dataclass(frozen=True)
class Case:
    """The declaration of a case."""

    script: str
    name: str
    about: str
    size: int
    tiny: int
    unit: str
    rows: str
    rounds: int
    is_default: bool
    body: Body


CASES: list[Case] = []


def case(
    name: str,
    *,
    size: int,
    tiny: int = 1,
    unit: str = "MB",
    rows: str = "records",
    rounds: int = ROUNDS,
    default: bool = True,
) -> Callable[[Body], Body]:
    """Declare a case: its name, its size by default and for `--tiny`, what a row is; `default=False` leaves it out of `make bench`."""

    def declare(body: Body) -> Body:
        script = Path(body.__code__.co_filename).stem
        about = " ".join((body.__doc__ or "").split())
        CASES.append(Case(script, name, about, size, tiny, unit, rows, rounds, default, body))
        return body

    return declare


# Measuring -------------------------------------------------------------------------------------------------------------------


def processor_time(tree: bool = False) -> float:
    """Seconds that this process and its ended children have taken; with `tree`, also those of all processes below it."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + children.ru_utime + children.ru_stime
    for process in psutil.Process().children(recursive=True) if tree else ():
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.Error:
            continue
    return total


def timed(way: Way) -> Run:
    """One run, with what it took."""
    assert way.run is not None
    cpu, wall = processor_time(way.tree), time.perf_counter()
    done = way.run()
    wall, cpu = time.perf_counter() - wall, processor_time(way.tree) - cpu
    if isinstance(done, int):
        return Run(done, cpu, wall)
    return Run(
        done.rows, cpu if done.cpu is None else done.cpu, wall if done.wall is None else done.wall, done.memory_mb
    )


class WrongRows(AssertionError):
    """A way did not do what the others did."""


def measure(declared: Case, options: argparse.Namespace) -> dict[str, Any]:
    """Run a case. -> its result, as JSON has it"""
    size = declared.tiny if options.tiny else options.size or declared.size
    rounds = 1 if options.tiny else options.rounds or declared.rounds
    missing = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rawlog-bench-", dir=options.dir)))
        bench = Bench(size, folder, stack, is_tiny=options.tiny)
        ways = []
        for way in declared.body(bench):
            if way.role == "peer" and options.no_peers:
                continue
            try:
                if way.start is not None:
                    way.run = stack.enter_context(way.start())
            except Unavailable as reason:
                missing[way.name] = str(reason)
                continue
            ways.append(way)
        for way in ways:
            for _ in range(0 if options.tiny else way.warm):
                timed(way)
        for number in range(rounds):
            for way in ways:
                if way.rounds is None or number < way.rounds:
                    way.runs.append(timed(way))
        for way in ways:
            wanted = way.rows or bench.rows
            for run in way.runs:
                if run.rows != wanted:
                    raise WrongRows(f"{declared.name}: {way.name} did {run.rows:,} {declared.rows}, not {wanted:,}")
    return {
        "script": declared.script, "case": declared.name, "about": declared.about, "size": size, "unit": declared.unit,
        "counts": declared.rows, "rows": bench.rows, "bytes": bench.bytes, "rounds": rounds, "tiny": options.tiny,
        "when": datetime.now(UTC).isoformat(timespec="seconds"), "load": round(os.getloadavg()[0], 1),
        "ways": [_summary(way, bench) for way in ways], "ratios": _ratios(ways, bench), "missing": missing,
    }  # fmt: skip


def _summary(way: Way, bench: Bench) -> dict[str, Any]:
    rows = way.rows or bench.rows
    summary: dict[str, Any] = {"name": way.name, "role": way.role, "rows": rows}
    for clock in ("cpu", "wall"):
        seconds = [getattr(run, clock) for run in way.runs]
        summary[clock] = {"median_s": median(seconds), "best_s": min(seconds)}
        summary[clock]["best_ns_per_row"] = min(seconds) / rows * 1e9
    if sizes := [run.memory_mb for run in way.runs if run.memory_mb]:
        summary["memory_mb"] = max(sizes)
    return summary


def _ratios(ways: Sequence[Way], bench: Bench) -> list[dict[str, Any]]:
    """How much more than the work each other way took for a row: the median over the rounds that both ran in."""
    [work, *others] = ways
    ratios = []
    for other in others:
        share = (work.rows or bench.rows) / (other.rows or bench.rows)
        ratio: dict[str, Any] = {"to": other.name, "role": other.role}
        for clock in ("cpu", "wall"):
            pairs = zip(work.runs, other.runs, strict=False)
            ratio[clock] = median(share * getattr(theirs, clock) / getattr(ours, clock) for ours, theirs in pairs)
        ratios.append(ratio)
    return ratios


def check_shape(result: dict[str, Any]) -> None:
    """AssertionError if a result is not whole: all keys are there, numbers are positive, one way is the work."""
    assert set(result) == {
        "script", "case", "about", "size", "unit", "counts", "rows", "bytes", "rounds", "tiny", "when", "load", "ways", "ratios", "missing",
    }, sorted(result)  # fmt: skip
    where = f"{result['script']}: {result['case']}"
    assert result["about"].endswith("."), f"{where}: say in its docstring what it does"
    for name in ("size", "rows", "bytes", "rounds"):
        assert result[name] > 0, f"{where}: {name}"
    assert [way["role"] for way in result["ways"]].count("work") == 1, where
    assert result["ways"][0]["role"] == "work", where
    assert len({way["name"] for way in result["ways"]}) == len(result["ways"]), where
    for way in result["ways"]:
        assert way["role"] in ROLES, where
        assert way["rows"] > 0, where
        for clock in ("cpu", "wall"):
            for name in ("median_s", "best_s", "best_ns_per_row"):
                assert way[clock][name] > 0, f"{where}: {way['name']}: {clock} {name}"
            assert way[clock]["median_s"] >= way[clock]["best_s"], where
    assert [ratio["to"] for ratio in result["ratios"]] == [way["name"] for way in result["ways"][1:]], where
    for ratio in result["ratios"]:
        assert ratio["cpu"] > 0, f"{where}: {ratio}"
        assert ratio["wall"] > 0, f"{where}: {ratio}"


# Peers ----------------------------------------------------------------------------------------------------------------------


class JavaLoop(AbstractContextManager["JavaLoop"]):
    """A program of benchmarks/java in a JVM that stays warm: a pass for each line it gets, answered by rows, and CPU time of its thread."""

    PASSES = 6
    """Until the compilers of the JVM are done."""

    def __init__(self, jars: str, source: str, *arguments: object, heap: str = "1g") -> None:
        self.command = [java(), f"-Xmx{heap}", "-XX:+UseSerialGC", "-cp", class_path(jars), str(HERE / "java" / source)]
        self.command += map(str, arguments)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent
        )
        return self

    def __call__(self) -> Run:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("pass "):
                _, rows, nanoseconds = line.split()
                return Run(int(rows), cpu=int(nanoseconds) / 1e9)
        raise RuntimeError(f"the JVM ended: {' '.join(self.command[-3:])}")

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


WATCH = """
import json, resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_maxrss / 1024, used.ru_utime + used.ru_stime]), file=sys.stderr)
sys.exit(code)
"""
"""Runs a command and says how large it became and how long it computed. Its size counts what its parent had: the parent must be small."""


def command(
    arguments: Sequence[object], rows: int, output: str | Path = os.devnull, codes: Sequence[int] = (0,)
) -> Run:
    """A command to its end; what it and the processes that it waited for needed."""
    began = time.perf_counter()
    with open(output, "wb") as file:
        done = subprocess.run(
            [sys.executable, "-S", "-c", WATCH, *map(str, arguments)], stdout=file, stderr=subprocess.PIPE, check=False
        )
    wall = time.perf_counter() - began
    *messages, last = done.stderr.decode(errors="replace").splitlines()
    if done.returncode not in codes:
        raise RuntimeError(f"{arguments} ended with {done.returncode}:\n" + "\n".join([*messages, last][-20:]))
    memory, cpu = json.loads(last)
    return Run(rows, cpu, wall, memory)


def rawlog_command(*arguments: object, rows: int, output: str | Path = os.devnull) -> Run:
    """A verb on the command line, with its start."""
    return command([sys.executable, "-m", "rawlog", *arguments], rows, output)


# Showing --------------------------------------------------------------------------------------------------------------------


def machine() -> dict[str, Any]:
    """What it was measured on."""
    from rawlog import kernels

    processor = platform.processor()
    if os.path.exists("/proc/cpuinfo"):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return {
        "processor": processor,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / (1 << 30)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "kernels": f"{kernels.MODE} {kernels.LEVEL}".strip(),
        **{name: version(name) for name in ("rawlog", "numpy", "pyarrow")},
    }


def show(result: dict[str, Any]) -> None:
    """The lines of a case."""
    mb = result["bytes"] / 1e6
    print(
        f"{result['script']}: {result['case']}: {result['rows']:,} {result['counts']}, {mb:,.1f} MB, load {result['load']}"
    )
    ratios = {ratio["to"]: ratio for ratio in result["ratios"]}
    for way in result["ways"]:
        cpu, wall, rows = way["cpu"], way["wall"], way["rows"]
        rate = rows / cpu["best_s"]
        text = f"{rate / 1e6:8.2f} M/s" if rate > 1e5 else f"{rate:8,.1f} /s "
        speed = mb * 1e6 / result["rows"] * rate / 1e9
        text += f" {speed:6.2f} GB/s of CPU; CPU {cpu['best_s']:8.4f} s, median {cpu['median_s']:8.4f}; wall {wall['best_s']:8.4f} s"
        if "memory_mb" in way:
            text += f"; {way['memory_mb']:,.0f} MB"
        if ratio := ratios.get(way["name"]):
            text += f"; {ratio['cpu']:.2f} × the CPU of the work, {ratio['wall']:.2f} × its wall clock"
        print(f"  {way['role']:5} {way['name']:36} {text}", flush=True)
    for name, reason in result["missing"].items():
        print(f"  peer  {name:36} missing: {reason}", flush=True)


def save(path: Path, results: Sequence[dict[str, Any]]) -> None:
    """Put results into a file, in place of former ones of the same cases."""
    kept = json.loads(path.read_text())["cases"] if path.exists() else []
    new = {(result["script"], result["case"]) for result in results}
    kept = [result for result in kept if (result["script"], result["case"]) not in new]
    cases = sorted([*kept, *results], key=lambda result: (result["script"], result["case"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine(), "cases": cases}, indent=1, ensure_ascii=False) + "\n")


def scripts() -> list[Path]:
    """The scripts that declare cases."""
    return [path for path in sorted(HERE.glob("*.py")) if path.name not in TOOLS]


def main(about: str | None) -> None:
    """Run the cases of a script."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="only cases whose name contains this (again and again)")
    parser.add_argument("--default", action="store_true", help="only the cases of `make bench`")
    parser.add_argument("--size", type=int, help="of each case, in its unit")
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--tiny", action="store_true", help="tiny data, one round; the shape of the results is asserted"
    )
    parser.add_argument("--no-peers", action="store_true", help="only the work and its limits")
    parser.add_argument("--json", type=Path, help="put the results into this file")
    parser.add_argument("--dir", help="where to keep data meanwhile")
    options = parser.parse_args()
    chosen = [
        declared
        for declared in CASES
        if declared.script == Path(sys.argv[0]).stem  # a script may import from another
        and (declared.is_default or not options.default)
        and (not options.case or any(part in declared.name for part in options.case))
    ]
    if not chosen and not options.default:
        parser.error(f"no such case; there are: {', '.join(declared.name for declared in CASES)}")
    for declared in chosen:
        result = measure(declared, options)
        show(result)
        if options.tiny:
            check_shape(result)
        if options.json:
            save(options.json, [result])
