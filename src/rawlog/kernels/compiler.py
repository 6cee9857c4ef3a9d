"""The compiler as kernels use it when the library of machine code is absent: numba, with its results cached on disk.

Numba's own cache looks only at the file that has the function, so a changed layout or helper elsewhere would leave old machine code in use.
The cache here is named by a digest of every source that can reach a kernel. Imported only when something has to be compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import IO, Any

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache

from rawlog.kernels import (
    MODE,
    PACKAGE,
    TARGET,
    sources_digest,
)

fcntl: Any = None  # not on Windows
with contextlib.suppress(ImportError):
    fcntl = importlib.import_module("fcntl")

OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}
"""Kernels allocate nothing, so they need no counts of references: those are atomic, and cost a third of a tight loop."""
if TARGET:  # the entries of the library take the place of the wrappers for Python
    OPTIONS |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
KEPT_DIGESTS = 4
KEPT_SECONDS = 7 * 86400
COMPILE_SECONDS = 120


def compiled_kernel(function: Any) -> Any:
    """The function, compiled at its first call, without the GIL, cached on disk."""
    if MODE == "library":
        _know_helpers()
    compiled: Any = numba.njit(**OPTIONS)(function)
    # The digest covers this package only, so nobody else's kernels (a test's) are cached.
    if MODE == "compiler" and not TARGET and function.__module__.startswith(f"{PACKAGE}."):
        # A cache that cannot be had costs compile time, never the answer.
        with contextlib.suppress(OSError):
            compiled._cache = _KernelCache(function)  # type: ignore[no-untyped-call]
    return compiled


def compiled_inline(function: Any) -> Any:
    """The helper, folded into every kernel that calls it."""
    return numba.njit(**OPTIONS, forceinline=True)(function)


_known = 0


def _know_helpers() -> None:
    """Let kernels that are compiled next to the library call what it has: there, helpers and kernels are not numba's own."""
    global _known
    from numba.extending import overload

    from rawlog.kernels import HELPERS

    fresh, _known = HELPERS[_known:], len(HELPERS)
    for visible, make in fresh:
        overload(visible, strict=False)(_implementation(make))


def _implementation(make: Callable[[], Any]) -> Any:
    implementations: list[Any] = []

    def implementation(*arguments: Any, **named: Any) -> Any:
        if not implementations:
            implementations.append(make())
        return implementations[0]

    return implementation


def host_features() -> dict[str, bool]:
    """The instructions of the x86 host; none if numba compiles for another processor."""
    import llvmlite.binding

    config: Any = numba.config
    if config.CPU_NAME or config.CPU_FEATURES is not None or llvmlite.binding.get_process_triple()[:6] != "x86_64":
        return {}
    try:
        return dict(llvmlite.binding.get_host_cpu_features())
    except RuntimeError:
        return {}


class _KernelCache(FunctionCache):
    """Numba's function cache in our directory; anything wrong with a file of it is a miss.

    Several processes often start together: the workers of Spark, those of the tests. The first to miss a kernel compiles it, and the
    others wait for its result instead of compiling the same.
    """

    _lock: IO[bytes] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        overload = self._load(sig, target_context)
        if overload is None:
            self._wait_for_others()
            overload = self._load(sig, target_context)
            if overload is not None:
                self._release()
        return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        try:
            with contextlib.suppress(OSError):
                super().save_overload(sig, data)  # type: ignore[no-untyped-call]
        finally:
            self._release()

    def _load(self, sig: Any, target_context: Any) -> Any:
        try:
            return super().load_overload(sig, target_context)  # type: ignore[no-untyped-call]
        except Exception:
            return None

    def _wait_for_others(self) -> None:
        """Take the lock of this kernel, or go on without it: at the latest after the time that no compilation takes."""
        if fcntl is None or self._lock is not None:
            return
        with contextlib.suppress(OSError):
            folder = Path(self.cache_path)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (folder / f"{self._impl.filename_base}.lock").open("ab")
            end = time.monotonic() + COMPILE_SECONDS
            while time.monotonic() < end:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.05)
                except OSError:  # a file system without locks
                    break
                else:
                    self._lock = lock
                    return
            lock.close()

    def _release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # also for a child that inherited it
            lock.close()


class _Locator:
    """Tells numba where a kernel's machine code lies: a directory per digest, in it one per module."""

    def __init__(self, function: Any) -> None:
        self._py_file = function.__code__.co_filename
        self._lineno = function.__code__.co_firstlineno
        self._path = cache_directory() / function.__module__

    def get_cache_path(self) -> str:
        return str(self._path)

    def ensure_cache_path(self) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        return cache_digest()

    def get_disambiguator(self) -> str:
        return str(self._lineno)


class _KernelCacheImpl(CompileResultCacheImpl):
    def __init__(self, function: Any) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function)
        flags = getattr(sys, "abiflags", "")
        self._filename_base = self.get_filename_base(function.__qualname__, flags)  # type: ignore[no-untyped-call]


_KernelCache._impl_class = _KernelCacheImpl


@cache
def cache_digest() -> str:
    """The digest of numba's version and of every source of rawlog that can reach a kernel."""
    text = f"{numba.__version__} {np.__version__} {sources_digest()}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@cache
def cache_directory() -> Path:
    """The directory for this digest: the user's cache, else a private one among temporary files.

    Raises OSError if neither can be written.
    """
    digest = cache_digest()
    for root in _cache_roots():
        path = root / digest
        try:
            fresh = not path.is_dir()
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _refuse_foreign(path)
            os.utime(path)  # also tells whether it is ours to write
            tempfile.TemporaryFile(dir=path).close()
        except OSError:
            continue
        if fresh:
            _remove_old(root, digest)
        return path
    raise OSError("no writable directory for compiled kernels")


def _cache_roots() -> Iterator[Path]:
    user = os.environ.get("XDG_CACHE_HOME", "")
    if Path(user).is_absolute():
        yield Path(user, "rawlog", "kernels")
    else:
        with contextlib.suppress(RuntimeError):  # no home
            yield Path.home() / ".cache" / "rawlog" / "kernels"
    who = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    yield Path(tempfile.gettempdir(), f"rawlog-{who}", "kernels")


def _refuse_foreign(path: Path) -> None:
    """Cached code is loaded by pickle: never from a directory that someone else owns or may write."""
    if not hasattr(os, "getuid"):
        return
    for part in (path, *path.parents[:2]):
        about = part.lstat()
        if about.st_uid != os.getuid() or about.st_mode & stat.S_IWOTH or stat.S_ISLNK(about.st_mode):
            raise PermissionError(f"{part} is not private")


def _remove_old(root: Path, digest: str) -> None:
    """Forget the machine code of versions not used lately. Best effort."""
    with contextlib.suppress(OSError):
        others = [entry for entry in root.iterdir() if entry.is_dir() and entry.name != digest]
        others.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
        for entry in others[KEPT_DIGESTS - 1 :]:
            if time.time() - entry.stat().st_mtime > KEPT_SECONDS or len(others) > 8 * KEPT_DIGESTS:
                shutil.rmtree(entry, ignore_errors=True)
