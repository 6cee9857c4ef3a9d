"""`python -m tests.fuzz --kind files --seed 1 --seconds 60`."""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.fuzz import files, stores

KINDS = {"files": files, "stores": stores}


def fuzz(
    kind: str, family: str, seed: int, executions: int, seconds: float, folder: Path | None = None, first: int = 0
) -> tuple[int, list[str]]:
    """Run so many executions, or so long. -> how many took place, and what was wrong"""
    end, problems, number = time.monotonic() + seconds, [], first
    same: Counter[str] = Counter()
    module = KINDS[kind]
    while number < first + executions and time.monotonic() < end:
        case = module.make(family, seed, number)
        for problem in _check(kind, case, number):
            name = case.format if kind == "files" else f"{case.subject} {' '.join(case.words)}"
            problems.append(f"{name} {seed} {number}: {problem} ({case.story})")
            same[f"{name[:20]} {problem[:40]}"] += 1
            if folder is not None and same[f"{name[:20]} {problem[:40]}"] <= MOST_ALIKE:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{kind}-{name.split()[0]}-{seed}-{number}.json").write_text(case.to_json(problem))
                print(f"  {problems[-1][:700]}", flush=True)
        number += 1
    return number - first, problems


#: So many failures that look alike are written.
MOST_ALIKE = 3


def _check(kind: str, case: Any, number: int) -> Iterator[str]:
    return files.check(case, random.Random(number)) if kind == "files" else stores.check(case)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kind", choices=sorted(KINDS), action="append", help="default: both")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for each kind and family")
    parser.add_argument("--executions", type=int, default=2_000_000, help="for each kind and family")
    parser.add_argument("--first", type=int, default=0, help="number of the first execution")
    parser.add_argument("--family", choices=stores.FAMILIES, action="append")
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz"), help="where failures are written")
    options = parser.parse_args()
    logging.disable()
    os.fsync = lambda descriptor: None  # type: ignore[assignment]  # whether results reach a disk is not tried here
    wrong = 0
    for kind in options.kind or KINDS:
        for family in options.family or stores.FAMILIES:
            began = time.process_time()
            count, problems = fuzz(
                kind, family, options.seed, options.executions, options.seconds, options.folder, options.first
            )
            spent = time.process_time() - began
            print(
                f"{kind} {family}: {count:,} executions, {len(problems)} failures, {spent:.0f} s CPU",
                flush=True,
            )
            wrong += len(problems)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
