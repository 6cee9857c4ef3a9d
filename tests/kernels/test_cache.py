from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rawlog.kernels as kernels
from rawlog.kernels import compiler

SOURCE = Path(kernels.__file__).parents[1]
PROGRAM = """
import sys, numpy as np
from rawlog.kernels import byte_view, crc
from rawlog.kernels.compiler import cache_directory
assert crc.sum_crc32(byte_view(b"123456789"), 0, 9) == 0xCBF43926
print(cache_directory(), sum(crc.sum_crc32.stats.cache_hits.values()))
"""


def run(path: Path, home: Path, **environment: str) -> tuple[str, int]:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={
            **os.environ,
            "RAWLOG_KERNELS": "compiler",
            "PYTHONPATH": str(path),
            "XDG_CACHE_HOME": str(home),
            **environment,
        },
        capture_output=True,
        text=True,
        check=True,
    )
    directory, hits = result.stdout.split()
    return directory, int(hits)


def small_package(root: Path) -> Path:
    """The part of rawlog that kernels need, to change without touching the real one."""
    for folder in ("kernels", "model"):
        (root / "rawlog" / folder).mkdir(parents=True)
    (root / "rawlog" / "__init__.py").write_text("")
    for name in [
        "model/__init__.py",
        "model/status.py",
        "model/errors.py",
        *(f"kernels/{path.name}" for path in (SOURCE / "kernels").glob("*.py")),
    ]:
        (root / "rawlog" / name).write_bytes((SOURCE / name).read_bytes())
    return root


def test_machine_code_is_kept_and_a_change_elsewhere_makes_it_anew(tmp_path: Path) -> None:
    """Numba looks only at the kernel's own file: a constant changed in another would leave old code in use."""
    root, home = small_package(tmp_path / "source"), tmp_path / "cache"
    first, hits = run(root, home)
    assert hits == 0
    assert Path(first).is_relative_to(home)
    assert run(root, home) == (first, 1)
    with (root / "rawlog" / "model" / "status.py").open("a") as file:
        file.write("\nMORE = 99\n")
    second, hits = run(root, home)
    assert second != first
    assert hits == 0


def test_processes_that_start_together_compile_once(tmp_path: Path) -> None:
    """Each worker of Spark and of the tests used to compile the same kernels at the same time."""
    root, home = small_package(tmp_path / "source"), tmp_path / "cache"
    with ThreadPoolExecutor(3) as pool:
        hits = [hits for _, hits in pool.map(lambda _: run(root, home), range(3))]
    assert sorted(hits) == [0, 1, 1]


def test_a_lock_that_is_held_forever_costs_time_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = compiler._KernelCache(run)  # type: ignore[no-untyped-call]
    monkeypatch.setattr(cache, "_cache_path", str(tmp_path))
    monkeypatch.setattr(compiler, "COMPILE_SECONDS", 0.1)
    with (tmp_path / f"{cache._impl.filename_base}.lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        cache._wait_for_others()
        assert cache._lock is None
    cache._wait_for_others()
    assert cache._lock is not None
    cache._release()


def test_runs_from_a_zip_with_a_cache(tmp_path: Path) -> None:
    root, home = small_package(tmp_path / "source"), tmp_path / "cache"
    archive = tmp_path / "rawlog.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in root.rglob("*.py"):
            file.write(path, path.relative_to(root))
    directory, hits = run(archive, home)
    assert hits == 0
    assert run(archive, home) == (directory, 1)


def test_a_directory_that_cannot_be_written_is_not_used(tmp_path: Path) -> None:
    home = tmp_path / "file"
    home.write_text("in the way")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    directory, _ = run(SOURCE.parent, home, TMPDIR=str(temporary))
    assert Path(directory).is_relative_to(temporary)


def test_old_digests_go_and_new_ones_stay(tmp_path: Path) -> None:
    for age in range(8):
        path = tmp_path / f"digest{age}"
        path.mkdir()
        os.utime(path, (1e9 - age, 1e9 - age))
    compiler._remove_old(tmp_path, "digest0")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["digest0", "digest1", "digest2", "digest3"]


def test_digest_names_every_source_of_kernels() -> None:
    names = {name for name, _ in kernels._sources()}
    assert {"/model/status.py", "/model/layout.py", "/kernels/ints.py"} <= names
    assert not any("__pycache__" in name for name in names)
