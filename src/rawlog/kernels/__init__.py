"""The two decorators that make kernels, and where their machine code comes from.

`kernel` marks a loop over bytes that releases the GIL, `inline` a helper that disappears into the kernels calling it, `twin` a helper with
a form for the compiler and one for Python. Machine code comes from one of three places (`MODE`):

- `library`: the extension module that `rawlog.kernels.build` compiled ahead of time. Nothing is compiled and numba is not imported. It is
  used only if it was built from exactly these sources.
- `compiler`: numba, at the first call, if there is no such library: for development.
- `plain`: nowhere, the functions run as Python. With NUMBA_DISABLE_JIT=1, or without library and numba.

$RAWLOG_KERNELS chooses: `v1` or `v2` (the library at that processor level), `compiler`, `plain`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

F = TypeVar("F")

PACKAGE = __name__.partition(".")[0]
SOURCES = frozenset({"kernels.py", "wire_kernels.py", "layouts.py", "layout.py", "status.py"})
VARIABLE = "RAWLOG_KERNELS"
LIBRARY = "library.abi3.so"
FEATURES = {"base": (), "v1": (), "v2": ("sse4.1", "sse4.2", "pclmul")}
"""What kernels may use beyond the least processor of their kind, by level of the library."""
TARGET = os.environ.get("RAWLOG_KERNELS_TARGET", "")
"""The level that is being built; empty unless `rawlog.kernels.build` runs this process."""


def kernel(function: F) -> F:
    """A loop over bytes: from the library, else compiled at its first call, without the GIL."""
    if MODE == "plain":
        return function
    name = f"{function.__module__}.{function.__name__}"  # type: ignore[attr-defined]
    entry = _entries.get(name)
    if entry is not None:
        HELPERS.append((entry, lambda: function))
        return entry  # type: ignore[no-any-return]
    if MODE == "library":
        return _late_kernel(function)  # type: ignore[no-any-return]
    from rawlog.kernels.compiler import compiled_kernel

    compiled = compiled_kernel(function)
    if TARGET:
        BUILT[name] = compiled
    return compiled  # type: ignore[no-any-return]


def inline(function: F) -> F:
    """A helper of kernels that the compiler always folds into its callers."""
    if not JIT:
        HELPERS.append((function, lambda: function))
        return function
    from rawlog.kernels.compiler import compiled_inline

    return compiled_inline(function)  # type: ignore[no-any-return]


def twin(plain: Any, form: Callable[[], Any]) -> Any:
    """A helper with two forms: `form()` makes the one for the compiler (an intrinsic or a function), `plain` is the one for Python."""
    if JIT:
        compiler_form = form()
        return inline(compiler_form) if isinstance(compiler_form, FunctionType) else compiler_form

    def make() -> Any:
        compiler_form = form()
        return (
            compiler_form if isinstance(compiler_form, FunctionType) else lambda *arguments: compiler_form(*arguments)
        )

    HELPERS.append((plain, make))
    return plain


def written(array: Any) -> None:
    """For intrinsics that write: numba itself refuses only `array[i] = …` where an array is declared as only read."""
    if not array.mutable:
        from numba.core.errors import TypingError

        raise TypingError(f"a kernel writes to an argument that it declares as only read: {array}")


def host_has(*features: str) -> bool:
    """Whether kernels may use these instructions of x86: of the level that is being built, else of this host."""
    if not JIT:
        return False
    if TARGET:
        return all(feature in FEATURES[TARGET] for feature in features)
    from rawlog.kernels.compiler import host_features

    present = host_features()
    return all(present.get(feature) for feature in features)


def byte_view(data: Any) -> NDArray[np.uint8]:
    """A read-only uint8 view of any buffer, so that each kernel is compiled for one type of input only."""
    import numpy as np

    view = data.view() if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
    if view.dtype != np.uint8 or view.ndim != 1 or not view.flags.c_contiguous:
        view = np.ascontiguousarray(view).reshape(-1).view(np.uint8)
    view.flags.writeable = False
    return view


def _late_kernel(function: Any) -> Any:
    """A kernel that the library does not have (a format from outside): numba compiles it, if it is installed, at its first call."""
    compiled: list[Any] = []

    def run(*arguments: Any) -> Any:
        if not compiled:
            compiled.append(_compiled_late(function))
        return compiled[0](*arguments)

    run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
    run.__wrapped__ = function  # type: ignore[attr-defined]
    HELPERS.append((run, lambda: function))
    return run


def _compiled_late(function: Any) -> Any:
    try:
        from rawlog.kernels.compiler import compiled_kernel
    except ImportError:
        warnings.warn(f"{function.__name__} runs as plain Python: numba is not installed", RuntimeWarning, stacklevel=4)
        return function
    return compiled_kernel(function)


@cache
def sources_digest() -> str:
    """The digest of every source of rawlog that can reach a kernel."""
    digest = hashlib.blake2b(digest_size=12)
    for name, source in sorted(_sources()):
        digest.update(f"\0{name}\0{len(source)}\0".encode() + source)
    return digest.hexdigest()


def _sources() -> Iterator[tuple[str, bytes]]:
    root: Any = Path(__file__).parents[1]
    if not root.is_dir():  # in a zip; the importer knows the way
        from importlib import resources

        root = resources.files(PACKAGE)
    yield from _sources_below(root, "")


def _sources_below(path: Any, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in path.iterdir():
        inner = f"{name}/{entry.name}"
        if _contributes(inner):
            yield inner, entry.read_bytes()
        elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
            yield from _sources_below(entry, inner)


def _contributes(name: str) -> bool:
    return name.endswith((".py", ".c")) and (name.rpartition("/")[2] in SOURCES or "/kernels/" in name)


class _Unusable(Exception):
    """Why the library is not used."""


def _library(level: str) -> Any:
    """The extension module, if it is there, of these sources, and has the level. _Unusable with the reason if not."""
    if TARGET or level == "compiler":
        raise _Unusable(f"${VARIABLE} is {level}" if level else "it is being built")
    if ".abi3.so" not in EXTENSION_SUFFIXES:  # a free-threaded one: its objects look different
        raise _Unusable("this Python does not have the stable ABI")
    path = Path(__file__).with_name(LIBRARY)
    try:
        module = _loaded(str(path)) if path.is_file() else _loaded_from_archive()
    except (ImportError, OSError) as error:
        raise _Unusable(f"it cannot be loaded: {error}") from None
    if sources_digest() != module.DIGEST:
        raise _Unusable("it was built from other sources (`make kernels` builds it)")
    if level and level not in module.LEVELS:
        raise _Unusable(f"it has no level {level}, only {', '.join(module.LEVELS)}")
    return module


def _loaded(path: str) -> Any:
    name = f"{__name__}.library"
    loader = ExtensionFileLoader(name, path)
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _loaded_from_archive() -> Any:
    """rawlog was sent as a zip (`rawlog.engines.spark.shipping`): the library is loaded from memory, since a loader needs a file."""
    from importlib import resources

    inside = resources.files(__name__).joinpath(LIBRARY)
    if not inside.is_file() or not hasattr(os, "memfd_create"):
        raise _Unusable("it is not there (`make kernels` builds it)")
    memory = os.memfd_create(LIBRARY)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(inside.read_bytes())
        return _loaded(f"/proc/self/fd/{memory}")
    finally:
        os.close(memory)


def _choose() -> tuple[str, str, str, dict[str, Any]]:
    """-> mode, level of the library, why the library is not used, its kernels"""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "v1", "v2", "base", "compiler", "plain"):
        raise ValueError(f"${VARIABLE} is {wanted!r}; known are v1, v2, compiler, plain")
    if wanted == "plain" or os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "plain", "", "the compiler is off", {}
    try:
        module = _library(wanted)
    except _Unusable as why:
        if wanted not in ("", "compiler"):
            raise ImportError(f"the library of kernels at level {wanted} cannot be used: {why}") from None
        if importlib.util.find_spec("numba"):
            return "compiler", "", str(why), {}
        warnings.warn(
            f"kernels run as plain Python, about a thousand times slower: the library of kernels cannot be used ({why}) and numba is not "
            "installed; see `rawlog doctor`",
            RuntimeWarning,
            stacklevel=2,
        )
        return "plain", "", str(why), {}
    level = wanted or module.LEVELS[module.best()]
    return "library", level, "", module.bind(module.LEVELS.index(level))


MODE, LEVEL, WHY_NOT, _entries = _choose()
"""Where kernels come from, the level of the library, and why the library is not used if it is not."""
JIT = MODE == "compiler"
"""Whether helpers are made for the compiler."""
HELPERS: list[tuple[Any, Callable[[], Any]]] = []
"""What kernels from outside may call although it is not numba's own, and how to make the form that numba compiles."""
BUILT: dict[str, Any] = {}
"""The kernels of this package, while they are compiled for the library."""
