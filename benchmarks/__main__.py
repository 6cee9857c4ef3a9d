"""All benchmarks one after the other, each script in a process of its own: `python benchmarks --json out/bench.json [--default]`."""

from __future__ import annotations

import subprocess
import sys
import time

import harness

began, failed = time.monotonic(), []
for script in harness.scripts():
    print(f"== {script.name}, {time.monotonic() - began:.0f} s", flush=True)
    if subprocess.run([sys.executable, script, *sys.argv[1:]], check=False).returncode:
        failed.append(script.name)
print(f"== {time.monotonic() - began:.0f} s")
if failed:
    sys.exit(f"failed: {', '.join(failed)}")
