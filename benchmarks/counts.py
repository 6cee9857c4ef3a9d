"""How many instructions the hot kernels execute for fixed data: counts, not times, so that any machine can tell if a kernel became slower.

    python benchmarks/counts.py           # compare with counts.json; exit 1 if a kernel executes other counts than there
    python benchmarks/counts.py --write   # write counts.json again (`make counts`)

The kernels are compiled as for the library, but each block of their optimised code first adds its number of instructions to a counter. What
is counted are instructions of LLVM's language: the same on every machine with the same versions of numba, llvmlite and Python.
A call (a memory copy) counts as one instruction. Elsewhere there is nothing to compare with.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BASELINE = HERE / "counts.json"
LEVEL = "v2"
COUNTER = "rawlog_instructions"
TOLERANCE = 0.02
#: The modules whose kernels are counted; kernels of others run as they are.
HOT = (
    "rawlog.formats.kafka.log.kernels.heads",
    "rawlog.formats.kafka.log.kernels.records",
    "rawlog.formats.kafka.log.kernels.encode",
    "rawlog.formats.rocketmq.kernels.entries",
    "rawlog.formats.ambry.kernels.messages",
    "rawlog.kernels.gather",
    "rawlog.kernels.crc",
)


def circumstances() -> dict[str, str]:
    """What counts depend on, besides the sources."""
    python = ".".join(map(str, sys.version_info[:2]))
    return {"machine": platform.machine(), "python": python, **{name: version(name) for name in ("numba", "llvmlite")}}


# Compiling ------------------------------------------------------------------------------------------------------------------


def counted(code: str) -> str:
    """LLVM's text of a module, in which each block adds the number of its instructions to the counter."""
    lines: list[str] = []
    block: list[str] = []
    inside = False
    number = 0

    def close() -> Iterator[str]:
        nonlocal number
        phis = [line for line in block if re.match(r"  \S+ = phi ", line)]
        rest = block[len(phis) :]
        count = sum(bool(re.match(r"  [^ \]#;]", line)) for line in rest)
        yield from phis
        if count:
            number += 1
            name = f"%counted.{number}"
            yield f"  {name} = load i64, ptr @{COUNTER}, align 8"
            yield f"  {name}.sum = add i64 {name}, {count}"
            yield f"  store i64 {name}.sum, ptr @{COUNTER}, align 8"
        yield from rest
        block.clear()

    for line in code.splitlines():
        if line.startswith("define "):
            inside = True
            # A function that only reads memory may not count.
            lines.append(re.sub(r" memory\([^)]*\)| (?:readnone|readonly|argmemonly)\b", "", line))
        elif inside and (line == "}" or re.match(r'[\w.$"-]+:', line)):
            lines += close()
            lines.append(line)
            inside = line != "}"
        elif inside:
            block.append(line)
        else:
            lines.append(line)
    text = "\n".join(lines)
    text = re.sub(r"(?m)^(attributes #\d+ = \{.*?) memory\([^)]*\)", r"\1", text)
    return f"{text}\n@{COUNTER} = weak global i64 0, align 8\n"


def compile_counted(order: str) -> None:
    """What `rawlog.kernels.build` runs in a process for some modules, with counters."""
    import llvmlite.binding as llvm

    from rawlog.kernels import build

    emit = llvm.TargetMachine.emit_object
    llvm.TargetMachine.emit_object = lambda machine, module: emit(machine, llvm.parse_assembly(counted(str(module))))
    build.compile_modules(json.loads(order))


def build_counted(folder: Path) -> Path:
    """A library of the hot kernels that count. -> its path"""
    from rawlog.kernels import build

    modules, levels = build.kernel_modules(), build.levels()
    missing = set(HOT) - set(modules)
    assert not missing, f"no module of kernels is named {missing}"

    def run(level: str, order: dict[str, dict[str, str]]) -> str:
        processor, features = levels[level]
        environment = {
            **os.environ, "RAWLOG_KERNELS_TARGET": level, "RAWLOG_KERNELS": "compiler", "NUMBA_DISABLE_JIT": "0", "NUMBA_OPT": "0",
            "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features,
        }  # fmt: skip
        command = [sys.executable, __file__, "--compile", json.dumps(order)]
        done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
        return done.stderr.strip() if done.returncode else ""

    build.kernel_modules = lambda: {name: modules[name] for name in HOT}
    build.levels = lambda: {LEVEL: levels[LEVEL]}
    build._run = run
    target = folder / "counted.abi3.so"
    build.build(target, folder / "objects")
    return target


# Counting -------------------------------------------------------------------------------------------------------------------


def count(library: Path) -> dict[str, dict[str, int]]:
    """Run the work in this process with the kernels of this library. -> instructions by work and kernel"""
    from rawlog import kernels

    assert kernels.MODE == "library", kernels.WHY_NOT
    module = kernels._loaded(str(library))
    counter = ctypes.c_int64.in_dll(ctypes.CDLL(str(library)), COUNTER)
    counts: Counter[str] = Counter()

    def counting(name: str, entry: Any) -> Callable[..., Any]:
        short = name.removeprefix("rawlog.")

        def run(*arguments: Any) -> Any:
            before = counter.value
            answer = entry(*arguments)
            counts[short] += counter.value - before
            return answer

        return run

    for name, entry in module.bind(0).items():
        kernels._entries[name] = counting(name, entry)
    from counted_work import WORK

    found = {}
    for title, run in WORK.items():
        counts.clear()
        run()
        found[title] = {name: total for name, total in sorted(counts.items()) if total}
    return found


def differences(counts: dict[str, dict[str, int]], baseline: dict[str, dict[str, int]]) -> list[str]:
    """What is not as it was, a line for each kernel."""
    lines = []
    for work in sorted({*counts, *baseline}):
        now, before = counts.get(work, {}), baseline.get(work, {})
        for kernel in sorted({*now, *before}):
            new, old = now.get(kernel, 0), before.get(kernel, 0)
            if abs(new - old) > TOLERANCE * max(old, 1):
                change = f" ({new / old:.2f} times)" if old else ""
                lines.append(f"{work}: {kernel}: {new:,} instructions, {old:,} in {BASELINE.name}{change}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help=f"write {BASELINE.name} again")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "counts", help="where compiled kernels are kept")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_counted(options.compile)
        return 0
    if options.count:
        print(json.dumps(count(options.count)))
        return 0
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    if not options.write and baseline["circumstances"] != circumstances():
        print(f"nothing to compare with: {BASELINE.name} is of {baseline['circumstances']}, this is {circumstances()}")
        return 0
    # Objects are kept by the sources of their kernels; what counts is in this file.
    folder = options.folder.resolve() / hashlib.blake2b(Path(__file__).read_bytes(), digest_size=8).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    library = build_counted(folder)
    environment = {**os.environ, "RAWLOG_KERNELS": LEVEL}
    command = [sys.executable, __file__, "--count", library]
    counts = json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True).stdout)
    if options.write:
        BASELINE.write_text(json.dumps({"circumstances": circumstances(), "counts": counts}, indent=1) + "\n")
        return 0
    lines = differences(counts, baseline["counts"])
    print("\n".join(lines) or "as many instructions as before")
    if lines:
        print("Slower by mistake? If the change is meant, `make counts` writes the new counts.")
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main())
