"""The readers of a format under atheris, which keeps the inputs that reach new branches: `make fuzz-guided ARGS='--seconds 600'`.

Kernels run as plain Python, so that their branches count. The oracles are those of `files`; a mutation is one of libFuzzer's or of
`mutations`, with the structure of the very input. Each format runs in a process of its own: libFuzzer ends its process.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

LARGEST = 4096


def run(format: str, seed: int, seconds: int, folder: Path) -> None:
    """Fuzz the readers of a format in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["rawlog"]):
        from rawlog.model.errors import RawlogError
        from tests.fuzz import files
        from tests.fuzz.mutations import Structure, change_field, move_frames

        bench = files.bench(format)
        samples = [sample.data for sample in bench.samples]  # all that is imported late is imported here
        for sample in samples:
            assert not list(files.check(files.Case(format, sample, "sound")))
    atheris.instrument_func(files._check)
    seen: set[str] = set()
    count = 0

    def mutate(data: bytes, most: int, number: int) -> bytes:
        draw = random.Random(number)
        if draw.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        structure = Structure(data)
        try:
            structure.learn_file(bench.put(data), bench.format, "skip")
        except RawlogError:
            return bytes(atheris.Mutate(data, most))
        change = change_field if draw.random() < 0.8 else move_frames
        return change(draw, structure, data).data[:most]

    def execute(data: bytes) -> None:
        nonlocal count
        count += 1
        case = files.Case(format, data, "guided")
        for problem in files.check(case):
            kind = problem[:60]
            if kind not in seen:
                seen.add(kind)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"files-{format}-guided-{seed}-{count}.json").write_text(case.to_json(problem))
                print(f"{format}: {problem}", flush=True)

    inputs = files.place() / "inputs"
    inputs.mkdir()
    for number, sample in enumerate(samples):
        (inputs / str(number)).write_bytes(sample)
    options = [
        f"-max_total_time={seconds}",
        f"-seed={seed or 1}",
        f"-max_len={LARGEST}",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(inputs)], execute, custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--format", action="append", help="default: all, one after another")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=60, help="for each format")
    parser.add_argument("--folder", type=Path, default=Path("out/fuzz"), help="where failures are written")
    parser.add_argument("--here", action="store_true", help="in this process")
    options = parser.parse_args()
    if options.here:
        logging.disable()
        run(options.format[0], options.seed, options.seconds, options.folder)
    from tests.formats.test_every_format import suites

    plain: dict[str, Any] = {**os.environ, "RAWLOG_KERNELS": "plain"}
    words = ["--here", "--seed", str(options.seed), "--seconds", str(options.seconds), "--folder", str(options.folder)]
    for format in options.format or sorted(suite.format for suite in suites()):
        command = [sys.executable, "-m", "tests.fuzz.guided", "--format", format, *words]
        done = subprocess.run(command, env=plain, capture_output=True, text=True, check=False)
        numbers = dict(
            line.removeprefix("stat::").split(":", 1) for line in done.stderr.splitlines() if line.startswith("stat::")
        )
        executions = numbers.get("number_of_executed_units", "no").strip()
        print(f"{format}: {executions} executions; {done.stdout.strip() or 'no failure'}", flush=True)
        if done.returncode:
            print(done.stderr[-2000:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
