"""The library of kernels: it has all of them, takes only what they declare, and is used only if it is of these sources."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog import kernels
from rawlog.kernels import build, byte_view, crc

ROOT = Path(kernels.__file__).parents[1]
SAMPLES = Path("samples/kafka")
WITHOUT_NUMBA = """
import sys
class Refuse:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
"""

needs_library = pytest.mark.skipif(
    kernels.MODE != "library" and not os.environ.get("CI"), reason=f"no library of kernels: {kernels.WHY_NOT}"
)


def python(*arguments: str, path: Path = ROOT.parent, **environment: str) -> str:
    found = {**os.environ, "PYTHONPATH": str(path), **environment}
    done = subprocess.run([sys.executable, *arguments], env=found, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def declared() -> dict[str, list[tuple[build.Argument, ...]]]:
    """What every kernel of the package declares."""
    found = {}
    for name, path in build.kernel_modules().items():
        module = importlib.import_module(name)
        for function in re.findall(r"^ *@kernel\n *def (\w+)", path.read_text(), re.MULTILINE):
            kernel = getattr(module, function)
            plain = next((make() for visible, make in kernels.HELPERS if visible is kernel), kernel)
            found[f"{name}.{function}"] = build.signatures(getattr(plain, "py_func", plain))
    return found


DECLARED = declared()


def test_every_kernel_declares_what_it_takes() -> None:
    assert len(DECLARED) > 90
    assert [name for name, signatures in DECLARED.items() if not signatures] == []


@needs_library
def test_the_library_has_every_kernel() -> None:
    assert kernels.MODE == "library", kernels.WHY_NOT
    assert set(kernels._entries) == set(DECLARED)


def right(argument: build.Argument) -> Any:
    """A value of the declared type. No kernel is ever called with right values only."""
    if argument.array is None:
        return 0 if argument.scalar == "i" else False
    array = np.zeros((2,) * argument.array.dimensions, argument.array.items)
    return (array,) * argument.arrays if argument.arrays else array


def wrong(argument: build.Argument) -> list[Any]:
    """Values that are not of the declared type."""
    nothing = [None, "text", 1.5, [], np.zeros(2, np.float64), np.zeros(2, object), object()]
    if argument.scalar == "i":
        return [*nothing, 1 << 64, -(1 << 63) - 1, np.zeros(2, np.int64)]
    if argument.scalar == "b":
        return [*nothing, 2, np.zeros(2, np.bool_)]
    about = argument.array
    assert about is not None
    shape = (2,) * about.dimensions
    size = np.dtype(about.items).itemsize
    found: list[Any] = [
        *nothing,
        np.zeros((2,) * (3 - about.dimensions), about.items),
        np.zeros((), about.items),
        np.zeros(shape, np.uint16),
        np.zeros(shape, [("a", about.items)]),
        (right(argument),) * 3,
    ]
    if size > 1:
        found.append(np.zeros(shape, np.dtype(about.items).newbyteorder(">")))
        unaligned = np.zeros(4 * size + 1, np.uint8)[1:].view(about.items)
        found.append(unaligned if about.dimensions == 1 else unaligned.reshape(shape))
    if about.contiguous:
        found.append(np.zeros(tuple(2 * extent for extent in shape), about.items)[(slice(None, None, 2),) * len(shape)])
    if about.written:
        fixed = np.zeros(shape, about.items)
        fixed.flags.writeable = False
        found.append(fixed)
    if argument.arrays:
        found += [right(argument)[1:], right(argument)[0], (None,) * argument.arrays]
    return found


CASES = [(name, at) for name, signatures in DECLARED.items() for at in range(len(signatures[-1] if signatures else ()))]


@needs_library
@given(st.sampled_from(CASES), st.randoms(use_true_random=False))
def test_wrong_arguments_are_refused(case: tuple[str, int], random: Any) -> None:
    """Machine code that numba's own ahead-of-time compiler makes checks nothing: an int32 array for an int64 one ended the process."""
    name, at = case
    signature = DECLARED[name][-1]
    values = [right(argument) for argument in signature]
    values[at] = random.choice(wrong(signature[at]))
    with pytest.raises((TypeError, OverflowError)) as caught:
        kernels._entries[name](*values)
    assert isinstance(caught.value, OverflowError) or name.rpartition(".")[2] in str(caught.value)
    with pytest.raises(TypeError, match=f"takes {len(values)} arguments"):
        kernels._entries[name](*values, None)


@needs_library
def test_a_refusal_says_what_is_wrong() -> None:
    starts = np.zeros(2, np.int64)
    with pytest.raises(
        TypeError, match="crc32_spans: out must be a writable contiguous aligned int64 array.*read-only"
    ):
        crc.crc32_spans(byte_view(b"abc"), starts, starts, byte_view(b"x" * 16).view(np.int64))


@needs_library
def test_other_threads_run_while_a_kernel_does() -> None:
    data, steps, ended = byte_view(bytes(1 << 25)), itertools.count(), threading.Event()

    def count() -> None:
        while not ended.is_set():
            next(steps)

    other = threading.Thread(target=count)
    other.start()
    try:
        moved = False
        for _ in range(100):
            before = next(steps)
            crc.sum_crc32_by_tables(data, 0, data.size)
            moved = next(steps) > before + 1
            if moved:
                break
    finally:
        ended.set()
        other.join()
    assert moved


@needs_library
@pytest.mark.parametrize("level", ["v1", "v2"])
def test_every_level_gives_the_same_rows(level: str) -> None:
    printed = python("-m", "rawlog", "cat", str(SAMPLES), "--json", "--errors", "skip", RAWLOG_KERNELS=level)
    assert printed == python("-m", "rawlog", "cat", str(SAMPLES), "--json", "--errors", "skip")
    assert printed


@needs_library
def test_nothing_is_compiled_and_numba_is_not_needed() -> None:
    program = (
        WITHOUT_NUMBA + "from rawlog.cli import cli\n"
        "try:\n    cli.main(['verify', 'samples', '--json'], prog_name='rawlog')\n"
        "except SystemExit as end:\n    assert end.code in (0, 1), end.code\n"
        "assert 'numba' not in sys.modules\n"
    )
    assert json.loads(python("-W", "error", "-c", program).splitlines()[-1])["frames"] > 1000


MODE = (
    "from rawlog import kernels; from rawlog.kernels import crc, byte_view\n"
    "print(kernels.MODE, hex(crc.sum_crc32(byte_view(b'123456789'), 0, 9)), kernels.WHY_NOT)"
)


@needs_library
def test_a_library_of_other_sources_is_not_used(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT, tmp_path / "rawlog", ignore=shutil.ignore_patterns("__pycache__", "engines", "lakes", "verbs")
    )
    assert python("-c", MODE, path=tmp_path).startswith("library 0xcbf43926")
    with (tmp_path / "rawlog" / "model" / "status.py").open("a") as file:
        file.write("\nMORE = 99\n")
    found = python("-c", MODE, path=tmp_path, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert found.startswith("compiler 0xcbf43926 it was built from other sources")


@needs_library
def test_executors_get_the_library_in_the_archive(tmp_path: Path) -> None:
    """A shared library cannot be loaded from a zip: without a home and without a disk that can be written, it comes from memory."""
    from rawlog.engines.spark.shipping import build as build_archive

    archive = tmp_path / "rawlog.zip"
    build_archive(archive)
    with zipfile.ZipFile(archive) as file:
        assert f"rawlog/kernels/{kernels.LIBRARY}" in file.namelist()
    found = python("-c", WITHOUT_NUMBA + MODE, path=archive, HOME="/nonexistent", XDG_CACHE_HOME="/nonexistent")
    assert found.startswith("library 0xcbf43926")


def test_without_library_and_numba_kernels_are_plain_and_that_is_said(tmp_path: Path) -> None:
    for name in ("model", "kernels"):
        shutil.copytree(ROOT / name, tmp_path / "rawlog" / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (tmp_path / "rawlog" / "__init__.py").write_text("")
    program = "import importlib.util\nimportlib.util.find_spec = lambda name: None\n" + MODE
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("plain 0xcbf43926")
    assert "about a thousand times slower" in done.stderr


def test_a_python_without_the_stable_abi_does_not_load_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A free-threaded Python would take the library, since it is named by its path, and crash: its objects are laid out otherwise."""
    monkeypatch.setattr(kernels, "EXTENSION_SUFFIXES", [".cpython-313t-x86_64-linux-gnu.so", ".so"])
    with pytest.raises(kernels._Unusable, match="stable ABI"):
        kernels._library("")


def test_an_unknown_choice_is_an_error() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import rawlog.kernels"],
        env={**os.environ, "PYTHONPATH": str(ROOT.parent), "RAWLOG_KERNELS": "v9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "known are v1, v2, compiler, plain" in done.stderr


def test_a_machine_without_a_c_compiler_says_so(tmp_path: Path) -> None:
    target = tmp_path / "library.so"
    done = subprocess.run(
        [sys.executable, "-m", "rawlog.kernels.build", "--target", str(target)],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT.parent), "CC": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.startswith("kernels: no library, they are compiled at their first use: there is no C compiler")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("present", ["0.69.0", "0.67.1"])
def test_another_numba_than_the_build_knows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str
) -> None:
    """The build uses private interfaces of one minor version: with another one it would fail somewhere, or build something else."""
    monkeypatch.setattr(build, "version", {"numba": present}.__getitem__)
    with pytest.raises(build.CannotBuild, match=rf"numba {present} is installed: pip install 'numba==0\.68\.\*'"):
        build.build(tmp_path / "library.so", tmp_path / "cache")
