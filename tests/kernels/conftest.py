"""Runs kernels twice: compiled here, and as plain Python in a worker process with the compiler off."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

WRAPPERS = Path(__file__).with_name("wrappers.py")

WORKER = """
import importlib, importlib.util, pickle, sys, warnings
warnings.simplefilter("error")
spec = importlib.util.spec_from_file_location("wrappers", sys.argv[1])
wrappers = importlib.util.module_from_spec(spec)
spec.loader.exec_module(wrappers)
while True:
    try:
        module, name, arguments = pickle.load(sys.stdin.buffer)
    except EOFError:
        break
    function = getattr(wrappers if module is None else importlib.import_module(module), name)
    assert not hasattr(function, "py_func"), "the compiler is on"
    try:
        answer = function(*arguments), arguments, None
    except BaseException as error:
        answer = None, None, repr(error)
    sys.stdout.buffer.write(pickle.dumps(answer))
    sys.stdout.buffer.flush()
"""


def load_wrappers() -> Any:
    spec = importlib.util.spec_from_file_location("wrappers", WRAPPERS)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def wrappers() -> Any:
    """Kernels around the helpers that cannot be called from Python."""
    return load_wrappers()


@pytest.fixture(scope="session")
def plain() -> Iterator[Callable[..., Any]]:
    """plain(module or None for the wrappers, name, *arguments) -> (result, the arguments as the call left them)"""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(WRAPPERS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert worker.stdin
    assert worker.stdout

    def call(module: str | None, name: str, *arguments: Any) -> Any:
        worker.stdin.write(pickle.dumps((module, name, arguments)))  # type: ignore[union-attr]
        worker.stdin.flush()  # type: ignore[union-attr]
        result, left, error = pickle.load(worker.stdout)  # type: ignore[arg-type]
        assert error is None, error
        return result, left

    yield call
    worker.stdin.close()
    worker.stdout.close()
    worker.wait()
