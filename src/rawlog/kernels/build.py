"""Compiles every kernel ahead of time into one extension module: `python -m rawlog.kernels.build`.

Numba compiles each module of kernels, in as many processes as there are processors, to an object file per processor level with one entry
per signature; a C compiler links them with library.c. Objects are kept by the digest of what they were made from. The private interfaces of
numba used here matter only to those who build: the library needs neither numba nor llvmlite. `NUMBA` names them and their version.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

from rawlog.kernels import (
    BUILT,
    LIBRARY,
    PACKAGE,
    SOURCES,
    inline,
    sources_digest,
    twin,
)
from rawlog.kernels import kernel as kernel_decorator
from rawlog.kernels.types import Array, Scalar

ROOT = Path(__file__).parents[1]
LEVELS = {"v1": ("x86-64", ""), "v2": ("x86-64-v2", "+pclmul")}
"""Processor name and features for numba, by level. x86-64-v2 without pclmul has tables for checksums, as v1."""
OTHER_LEVELS = {"base": ("generic", "")}
"""On other processors than x86."""
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-nostdlib", "-fvisibility=hidden", "-s")
HOST_HAS = " = host_has("
"""Sources with this call make other kernels for each level; all others are compiled once and optimised for each."""
NUMBA = "0.68"
"""The minor version of numba whose private interfaces are used: the module for linking of a library, the calling convention, views and
tuples of its context, `forceinline` and the options without wrappers. Another version is refused: they may have changed silently."""
KEPT_SECONDS = 7 * 86400
"""Objects of other sources are kept so long: those of another branch, perhaps."""
ADDRESS = "numba.dynamic.globals"
"""Names of what numba compiles as an address in this process. Those that are used must not get into the library."""
CODES = {"u": "U", "i": "I", "b": "B"}


class CannotBuild(Exception):
    """What this machine lacks to build the library."""


class BuildError(Exception):
    """Why a kernel cannot be compiled or linked."""


class Argument(NamedTuple):
    """One argument of a kernel: a number, a truth value, an array, or a tuple of so many arrays."""

    scalar: str = ""
    array: Array | None = None
    arrays: int = 0


def signatures(function: Any) -> list[tuple[Argument, ...]]:
    """The signatures that a kernel declares by its annotations, one or two; none if an argument is not declared."""
    hints = get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    declared = [_argument(hints.get(name)) for name in names]
    arguments = tuple(argument for argument in declared if argument is not None)
    if len(arguments) < len(names):
        return []
    dense = tuple(
        argument if argument.array is None else argument._replace(array=argument.array._replace(contiguous=True))
        for argument in arguments
    )
    return [dense] if dense == arguments else [dense, arguments]


def _argument(hint: Any) -> Argument | None:
    if get_origin(hint) is not Annotated:
        return None
    of, about = get_args(hint)
    if isinstance(about, Scalar):
        return Argument(about.code)
    if isinstance(about, Array):
        return Argument(array=about)
    inner = _argument(get_args(of)[0])
    return inner and inner._replace(arrays=int(about))


def kernel_modules() -> dict[str, Path]:
    """The modules that define kernels, by name."""
    modules = {}
    for path in sorted(ROOT.rglob("*.py")):
        if "@kernel\n" in path.read_text() and (path.name in SOURCES or path.parent.name == "kernels"):
            modules[module_name(path)] = path
    return modules


def module_name(path: Path) -> str:
    """The name by which a file of the package is imported."""
    return ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def reached(path: Path) -> set[Path]:
    """The sources of this package that a module's machine code depends on, itself included; not the decorators."""
    sources: set[Path] = set()
    left = [path]
    while left:
        source = left.pop()
        if source in sources:
            continue
        sources.add(source)
        for node in ast.parse(source.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
                left += _files(node.module or "", [alias.name for alias in node.names])
    return sources


def _files(module: str, names: Sequence[str]) -> Iterator[Path]:
    base = ROOT.joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), *((base / name).with_suffix(".py") for name in names)):
        if path.is_file():
            yield path


# One process compiles some modules. Numba's part, which takes most of the time, does not depend on the level unless the source asks for it.


def compile_modules(targets: dict[str, dict[str, str]]) -> None:
    """Write the object file of each module for each level, by path without suffix, and what it has. -> files PATH.o and PATH.json"""
    import importlib

    for folder in (ROOT / "formats").iterdir():  # kernels need no family, and so the build none of its requirements
        if folder.is_dir():
            _leave_out(f"{PACKAGE}.formats.{folder.name}", folder)
    for name, paths in targets.items():
        importlib.import_module(name)
        linked, kernels, entries = _linked(name)
        for level, path in paths.items():
            Path(f"{path}.json").write_text(json.dumps(kernels))
            Path(f"{path}.{os.getpid()}").write_bytes(_object(linked, name, level, entries))
            Path(f"{path}.{os.getpid()}").rename(f"{path}.o")


def _leave_out(name: str, path: Path) -> None:
    module = ModuleType(name)
    module.__path__ = [str(path)]
    sys.modules[name] = module


def _linked(name: str) -> tuple[Any, list[dict[str, Any]], list[str]]:
    """-> all code of a module and what it calls, not optimised; its kernels; the names of its entries"""
    import llvmlite.binding as llvm
    from llvmlite import ir

    module: Any = ir.Module(name)
    module.triple = llvm.get_process_triple()
    libraries: list[Any] = []
    kernels = []
    entries = []
    for full, dispatcher in BUILT.items():
        if full.rpartition(".")[0] != name:
            continue
        variants = []
        for number, signature in enumerate(signatures(dispatcher.py_func)):
            entry = f"{full.replace('.', '_')}_{number}"
            results, library = _entry(module, entry, dispatcher, signature)
            entries.append(entry)
            libraries.append(library)
            variants.append({"entry": entry, "arguments": signature, "results": results})
        if variants:
            code = dispatcher.py_func.__code__
            parameters = code.co_varnames[: code.co_argcount]
            kernels.append({"name": full, "parameters": parameters, "signatures": variants})
    linked = llvm.parse_assembly(str(module))
    for library in libraries:
        linked.link_in(library._get_module_for_linking(), preserve=True)
    return linked, kernels, entries


def _object(linked: Any, name: str, level: str, entries: list[str]) -> bytes:
    import llvmlite.binding as llvm

    processor, features = levels()[level]
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(cpu=processor, features=features, opt=3, reloc="pic", codemodel="default")
    module = linked.clone()
    for value in (*module.functions, *module.global_variables):
        if value.name in entries:
            value.visibility, value.name = "hidden", f"{value.name}_{level}"
        elif not value.is_declaration and not value.name.startswith(ADDRESS):
            value.linkage = "internal"
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(3))
    builder.getModulePassManager().run(module, builder)
    if any(value.name.startswith(ADDRESS) for value in module.global_variables):
        raise BuildError(f"{name}: an array is too large, or not contiguous, to become a constant")
    undefined = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    if undefined - {"memcpy", "memset", "memmove"}:
        raise BuildError(f"{name} needs {', '.join(sorted(undefined))}: kernels must not allocate or raise")
    return bytes(machine.emit_object(module))


def _entry(module: Any, name: str, dispatcher: Any, signature: tuple[Argument, ...]) -> tuple[str, Any]:
    """Add `i32 name(i64 *words, i64 *results)`, which calls the kernel by numba's own convention. -> codes of its results, its code"""
    import numba.core
    from llvmlite import ir

    tools: Any = numba.core.cgutils
    types: Any = numba.core.types
    arguments = [_numba_type(argument) for argument in signature]
    dispatcher.compile(tuple(arguments))
    overload = dispatcher.overloads[tuple(arguments)]
    context, returned = overload.target_context, overload.signature.return_type
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.IntType(32), [word.as_pointer()] * 2), name)
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    at = 0

    def next_word() -> Any:
        nonlocal at
        at += 1
        return builder.load(builder.gep(function.args[0], [word(at - 1)]))

    def array_of(type: Any) -> Any:
        array = context.make_array(type)(context, builder)
        data = builder.inttoptr(next_word(), array.data.type)
        shape = [next_word() for _ in range(type.ndim)]
        strides = [next_word() for _ in range(type.ndim)]
        items = word(1)
        for extent in shape:
            items = builder.mul(items, extent)
        size = word(context.get_abi_sizeof(context.get_data_type(type.dtype)))
        array.data, array.nitems, array.itemsize = data, items, size
        array.shape, array.strides = tools.pack_array(builder, shape), tools.pack_array(builder, strides)
        array.meminfo = ir.Constant(array.meminfo.type, None)
        array.parent = ir.Constant(array.parent.type, None)
        return array._getvalue()

    values = []
    for type in arguments:
        if isinstance(type, types.BaseTuple):
            values.append(context.make_tuple(builder, type, [array_of(item) for item in type]))
        elif isinstance(type, types.Array):
            values.append(array_of(type))
        else:
            value = next_word()
            values.append(builder.trunc(value, ir.IntType(1)) if type == types.boolean else value)
    callee = tools.get_or_insert_function(
        module, context.call_conv.get_function_type(returned, arguments), overload.fndesc.llvm_func_name
    )
    status, answer = context.call_conv.call_function(builder, callee, returned, arguments, values)
    with builder.if_then(status.is_error):
        builder.ret(ir.IntType(32)(1))
    codes = ""
    if isinstance(returned, types.BaseTuple):
        codes = "("
        parts = [(item, builder.extract_value(answer, i)) for i, item in enumerate(returned)]
    else:
        parts = [] if returned == types.none else [(returned, answer)]
    for i, (type, part) in enumerate(parts):
        codes += "b" if type == types.boolean else "i"
        if type == types.boolean:
            part = builder.zext(builder.trunc(part, ir.IntType(1)), word)
        elif not isinstance(type, types.Integer):
            raise BuildError(f"{name}: returns {type}, neither a number nor a truth value")
        elif type.bitwidth < 64:
            part = builder.sext(part, word) if type.signed else builder.zext(part, word)
        builder.store(part, builder.gep(function.args[1], [word(i)]))
    builder.ret(ir.IntType(32)(0))
    return codes, overload.library


def _numba_type(argument: Argument) -> Any:
    import numba
    import numpy as np
    from numba.np import numpy_support

    types: Any = numba.types
    if argument.array is None:
        return types.int64 if argument.scalar == "i" else types.boolean
    items, dimensions, written, contiguous = argument.array
    layout = "C" if contiguous else "A"
    array = types.Array(numpy_support.from_dtype(np.dtype(items)), dimensions, layout, readonly=not written)
    return types.UniTuple(array, argument.arrays) if argument.arrays else array


# The process that runs the others and links.


def levels() -> dict[str, tuple[str, str]]:
    """Processor name and features for the compiler, by level."""
    return LEVELS if platform.machine() == "x86_64" else OTHER_LEVELS


def build(target: Path, cache: Path, *, processes: int | None = None) -> float:
    """Write the extension module to `target`. -> seconds. CannotBuild if this machine lacks something; BuildError."""
    began = time.monotonic()
    if sys.platform != "linux":
        raise CannotBuild(f"it is built on Linux only, not on {sys.platform}")
    linker = c_compiler()
    if find_spec("numba") is None:
        raise CannotBuild("numba is not installed")
    if not (present := version("numba")).startswith(f"{NUMBA}."):
        raise CannotBuild(
            f"they are built with numba {NUMBA}, and numba {present} is installed: pip install 'numba=={NUMBA}.*'"
        )
    cache.mkdir(parents=True, exist_ok=True)
    modules = kernel_modules()
    units = {name: {level: cache / _unit_digest(level, path) for level in levels()} for name, path in modules.items()}
    _compile_missing(modules, units, processes or len(os.sched_getaffinity(0)))
    objects = [path for paths in units.values() for path in paths.values()]
    described = [json.loads(next(iter(paths.values())).with_suffix(".json").read_text()) for paths in units.values()]
    table = cache / f"table-{os.getpid()}.h"
    table.write_text("".join(_table([kernel for module in described for kernel in module])))
    staged = target.with_name(f".{target.name}.{os.getpid()}")
    command = [*linker, *FLAGS, f'-DTABLE="{table}"', str(ROOT / "kernels" / "library.c"), "-o", str(staged)]
    done = subprocess.run(
        [*command, *(str(path.with_suffix(".o")) for path in objects)], capture_output=True, text=True, check=False
    )
    table.unlink()
    if done.returncode:
        staged.unlink(missing_ok=True)
        raise BuildError(f"{linker[0]} failed: {done.stderr.strip()}")
    staged.rename(target)
    for path in set(cache.iterdir()) - {path.with_suffix(suffix) for path in objects for suffix in (".o", ".json")}:
        if time.time() - path.stat().st_mtime > KEPT_SECONDS:
            path.unlink(missing_ok=True)
    return time.monotonic() - began


def c_compiler() -> list[str]:
    """The command that compiles and links C: $CC, the system's, or the one of the ziglang wheel. CannotBuild if there is none."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(name.split()[0]):
            return name.split()
    if find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    raise CannotBuild("there is no C compiler (install gcc or clang, or the package ziglang)")


def _unit_digest(level: str, path: Path) -> str:
    parts = [
        *map(version, ("numba", "llvmlite", "numpy")),
        sys.version_info[:2],
        platform.machine(),
        level,
        levels()[level],
    ]
    parts += [
        getsource(function)
        for function in (signatures, _argument, _linked, _object, _entry, _numba_type, kernel_decorator, inline, twin)
    ]
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=12)
    digest.update((ROOT / "kernels" / "compiler.py").read_bytes())
    for source in sorted(reached(path)):
        digest.update(f"\0{source.relative_to(ROOT)}\0".encode() + source.read_bytes())
    return digest.hexdigest()


def _compile_missing(modules: dict[str, Path], units: dict[str, dict[str, Path]], processes: int) -> None:
    """Compile what is not kept already, in so many processes."""
    missing = {
        name: {level: str(path) for level, path in paths.items() if not path.with_suffix(".o").exists()}
        for name, paths in units.items()
    }
    first, *others = levels()
    depends = {
        name for name, path in modules.items() if any(HOST_HAS in source.read_text() for source in reached(path))
    }
    orders: dict[str, dict[str, dict[str, str]]] = {level: {} for level in levels()}
    for name, paths in missing.items():
        for level, path in paths.items():
            orders[level if name in depends else first].setdefault(name, {})[level] = path
    work = [(level, share) for level in (*others, first) for share in _shares(orders[level], processes)]
    with ThreadPoolExecutor(processes) as pool:
        for problem in pool.map(lambda task: _run(*task), work):
            if problem:
                raise BuildError(f"a kernel cannot be compiled:\n{problem}")


def _shares(order: dict[str, dict[str, str]], count: int) -> Iterator[dict[str, dict[str, str]]]:
    """Neighbours stay together: they share helpers, which a process compiles once."""
    names, size = list(order), -(-len(order) // count) or 1
    for start in range(0, len(names), size):
        yield {name: order[name] for name in names[start : start + size]}


def _run(level: str, order: dict[str, dict[str, str]]) -> str:
    """Compile in a process of its own. -> what it said if it failed"""
    processor, features = levels()[level]
    environment = {
        **os.environ, "RAWLOG_KERNELS_TARGET": level, "RAWLOG_KERNELS": "compiler", "NUMBA_DISABLE_JIT": "0", "NUMBA_OPT": "0",
        "NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features, "PYTHONPATH": _path(),
    }  # fmt: skip
    command = [sys.executable, "-m", f"{PACKAGE}.kernels.build", "--compile", json.dumps(order)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


def _path() -> str:
    """Where a process finds this source first, then what this process finds (an isolated build has no site-packages of its own)."""
    return os.pathsep.join([str(ROOT.parent), *filter(None, sys.path)])


def _table(kernels: list[dict[str, Any]]) -> Iterator[str]:
    """The C source of what library.c knows about each kernel."""
    all_signatures = [signature for kernel in kernels for signature in kernel["signatures"]]
    yield f'static const char DIGEST[] = "{sources_digest()}";\n'
    yield f"static const char *const LEVELS[] = {{{', '.join(map(_quoted, levels()))}}};\n"
    yield f"#define MOST_VIEWS {max(_views(signature) for signature in all_signatures)}\n"
    yield f"#define MOST_WORDS {max(_words(signature) for signature in all_signatures)}\n"
    yield f"#define MOST_RESULTS {max(1, *(len(signature['results']) for signature in all_signatures))}\n"
    for number, kernel in enumerate(kernels):
        yield from _kernel_table(number, kernel)
    yield "static const Kernel KERNELS[] = {\n"
    for number, kernel in enumerate(kernels):
        module, _, name = kernel["name"].rpartition(".")
        counts = f"{len(kernel['parameters'])}, {len(kernel['signatures'])}"
        yield f"    {{{_quoted(module)}, {_quoted(name)}, {counts}, S{number}}},\n"
    yield "    {NULL, NULL, 0, 0, NULL},\n};\n"
    yield f"static const char *const KEYS[] = {{{', '.join(_quoted(kernel['name']) for kernel in kernels)}}};\n"
    for number in range(len(kernels)):
        yield f"static PyObject *call{number}(PyObject *self, PyObject *const *given, Py_ssize_t count) "
        yield f"{{ return call(&KERNELS[{number}], given, count); }}\n"
    yield "static PyMethodDef CALLS[] = {\n"
    for number, kernel in enumerate(kernels):
        name = kernel["name"].rpartition(".")[2]
        doc = f"{name}({', '.join(kernel['parameters'])})"
        yield f"    {{{_quoted(name)}, (PyCFunction)(void *)call{number}, METH_FASTCALL, {_quoted(doc)}}},\n"
    yield "};\n"


def _kernel_table(number: int, kernel: dict[str, Any]) -> Iterator[str]:
    for index, signature in enumerate(kernel["signatures"]):
        entries = [f"{signature['entry']}_{level}" for level in levels()]
        for entry in entries:
            yield f"extern int32_t {entry}(const int64_t *, int64_t *);\n"
        yield f"static const Entry E{number}_{index}[] = {{{', '.join(entries)}}};\n"
        yield f"static const Argument A{number}_{index}[] = {{\n"
        for name, (scalar, array, count) in zip(kernel["parameters"], signature["arguments"], strict=True):
            if array is None:
                wanted = "a number" if scalar == "i" else "a truth value"
                yield f'    {{\'{scalar}\', 8, 0, 1, 0, 0, "{name}", "{wanted}"}},\n'
                continue
            about = Array(*array)
            size = 1 if about.items == "bool" else int(about.items.lstrip("uint")) // 8
            flags = f"{size}, {about.dimensions}, {int(about.contiguous)}, {int(about.written)}, {count}"
            yield f"    {{'{CODES[about.items[0]]}', {flags}, \"{name}\", {_quoted(_wanted(about, count))}}},\n"
        yield "};\n"
    rows = (
        f"{{A{number}_{index}, E{number}_{index}, {_quoted(signature['results'])}}}"
        for index, signature in enumerate(kernel["signatures"])
    )
    yield f"static const Signature S{number}[] = {{{', '.join(rows)}}};\n"


def _wanted(array: Array, count: int) -> str:
    kind = f"aligned {array.items} array of {array.dimensions} dimension{'s' if array.dimensions > 1 else ''}"
    kind = f"{'writable ' if array.written else ''}{'contiguous ' if array.contiguous else ''}{kind}"
    return f"a tuple of {count} such: {kind}" if count else f"a {kind}"


def _views(signature: dict[str, Any]) -> int:
    return sum(max(1, count) for _, array, count in signature["arguments"] if array is not None) or 1


def _words(signature: dict[str, Any]) -> int:
    words = (
        1 if array is None else max(1, count) * (1 + 2 * Array(*array).dimensions)
        for _, array, count in signature["arguments"]
    )
    return sum(words) or 1


def _quoted(text: str) -> str:
    return json.dumps(text)


def main() -> int:
    """Build the library in the source tree, unless it is there already; say what was done in one line."""
    parser = argparse.ArgumentParser(
        prog="python -m rawlog.kernels.build", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--target", type=Path, default=ROOT / "kernels" / LIBRARY, help="the file to write")
    parser.add_argument("--cache", type=Path, help="where objects are kept (default: build/kernels of the source tree)")
    parser.add_argument("--processes", type=int, help="how many compile at once (default: one per processor)")
    parser.add_argument("--compile", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_modules(json.loads(options.compile))
        return 0
    cache = options.cache or ROOT.parents[1] / "build" / "kernels"
    if options.target.is_file() and sources_digest().encode() in options.target.read_bytes():
        print("kernels: the library is up to date")  # noqa: T201
        return 0
    try:
        seconds = build(options.target, cache, processes=options.processes)
    except CannotBuild as why:
        print(f"kernels: no library, they are compiled at their first use: {why}", file=sys.stderr)  # noqa: T201
        return 0
    except BuildError as why:
        print(f"kernels: {why}", file=sys.stderr)  # noqa: T201
        return 1
    print(f"kernels: built {options.target.name}, {options.target.stat().st_size:,} bytes in {seconds:.0f} s")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
