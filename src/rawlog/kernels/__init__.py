"""The two decorators that make kernels, and where their machine code is kept.

`kernel` compiles a loop over bytes that releases the GIL and is cached on disk; `inline` compiles a helper that
disappears into the kernels calling it. With NUMBA_DISABLE_JIT=1 both return the function as it is.

Numba's own cache looks only at the file that has the function, so a changed layout or helper elsewhere would
leave old machine code in use. The cache here is named by a digest of every source that can reach a kernel.
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
from collections.abc import Iterator
from functools import cache
from importlib import resources
from pathlib import Path
from typing import IO, Any, TypeVar

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numpy.typing import NDArray

fcntl: Any = None  # not on Windows
with contextlib.suppress(ImportError):
    fcntl = importlib.import_module("fcntl")

F = TypeVar("F")

_config: Any = numba.config
JIT = not _config.DISABLE_JIT
"""Whether kernels are compiled; modules with intrinsics choose their plain twins by it."""

PACKAGE = __name__.partition(".")[0]
SOURCES = frozenset({"kernels.py", "layouts.py", "layout.py", "status.py"})
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False, "_nrt": False}
"""Kernels allocate nothing, so they need no counts of references: those are atomic, and cost a third of a tight loop."""
KEPT_DIGESTS = 4
KEPT_SECONDS = 7 * 86400
COMPILE_SECONDS = 120


def kernel(function: F) -> F:
    """A loop over bytes: compiled at its first call, without the GIL, cached on disk."""
    compiled: Any = numba.njit(**OPTIONS)(function)
    # The digest covers this package only, so nobody else's kernels (a test's) are cached.
    if JIT and function.__module__.startswith(f"{PACKAGE}."):
        # A cache that cannot be had costs compile time, never the answer.
        with contextlib.suppress(OSError):
            compiled._cache = _KernelCache(function)  # type: ignore[no-untyped-call]
    return compiled  # type: ignore[no-any-return]


def inline(function: F) -> F:
    """A helper of kernels that the compiler always folds into its callers."""
    compiled: Any = numba.njit(**OPTIONS, forceinline=True)(function)
    return compiled  # type: ignore[no-any-return]


def host_has(*features: str) -> bool:
    """Whether kernels may use these instructions of the x86 host: not if numba compiles for another processor."""
    import llvmlite.binding

    if not JIT or _config.CPU_NAME or _config.CPU_FEATURES is not None:
        return False
    if llvmlite.binding.get_process_triple()[:6] != "x86_64":
        return False
    try:
        known = llvmlite.binding.get_host_cpu_features()
    except RuntimeError:
        return False
    return all(known.get(feature) for feature in features)


def byte_view(data: Any) -> NDArray[np.uint8]:
    """A read-only uint8 view of any buffer, so that each kernel is compiled for one type of input only."""
    view = data.view() if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if view.dtype != np.uint8 or view.ndim != 1 or not view.flags.c_contiguous:
        view = np.ascontiguousarray(view).reshape(-1).view(np.uint8)
    view.flags.writeable = False
    return view


class _KernelCache(FunctionCache):
    """Numba's function cache in our directory; anything wrong with a file of it is a miss.

    Several processes often start together: the workers of Spark, those of the tests. The first to miss a kernel compiles it, and the
    others wait for its result instead of compiling the same.
    """

    _lock: IO[bytes] | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        found = self._load(sig, target_context)
        if found is None:
            self._wait_for_others()
            found = self._load(sig, target_context)
            if found is not None:
                self._release()
        return found

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
    """Tells numba where a kernel's machine code lies: a directory a digest, in it one a module."""

    def __init__(self, function: Any) -> None:
        self._py_file = function.__code__.co_filename
        self._lineno = function.__code__.co_firstlineno
        self._path = cache_directory() / function.__module__

    def get_cache_path(self) -> str:
        return str(self._path)

    def ensure_cache_path(self) -> None:
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        return source_digest()

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
def source_digest() -> str:
    """The digest of numba's version and of every source of rawlog that can reach a kernel."""
    digest = hashlib.blake2b(f"{numba.__version__} {np.__version__}".encode(), digest_size=12)
    for name, source in sorted(_sources()):
        digest.update(f"\0{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, bytes]]:
    root = Path(__file__).parents[1]
    # In a zip there is no such directory; the importer knows the way.
    yield from _sources_below(root if root.is_dir() else resources.files(PACKAGE), "")


def _sources_below(path: Any, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in path.iterdir():
        inner = f"{name}/{entry.name}"
        if _contributes(inner):
            yield inner, entry.read_bytes()
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _sources_below(entry, inner)


def _contributes(name: str) -> bool:
    return name.endswith(".py") and (name.rpartition("/")[2] in SOURCES or "/kernels/" in name)


@cache
def cache_directory() -> Path:
    """The directory for this digest: the user's cache, else a private one among temporary files.

    Raises OSError if neither can be written.
    """
    digest = source_digest()
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
