"""`doctor`: what works in an installation, what is missing, and how to get it; `formats`: what rawlog reads and writes."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rawlog
from rawlog import registry
from rawlog.model.errors import install_command
from rawlog.model.verb import verb

#: What the extra with this package is for.
PURPOSES = {
    "grpcio-tools": "values decoded with the schemas of a registry",
    "pyspark": "ingest, query and sql with Spark; jobs over 8 GiB",
    "pyiceberg": "ingest, and reading lakes",
    "confluent-kafka": "verbs that talk to a running Kafka",
    "duckdb": "query and sql without Java",
    "starlette": "browse, a local web page",
    "numba": "kernels of formats that are not rawlog's own",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at. `state` is `ok`, `missing` (not needed by everybody) or `error`; `advice` says how to get it."""

    check: str
    state: str
    found: str
    advice: str | None = None


@verb(group="set up", examples=("rawlog doctor", "rawlog doctor --json"))
def doctor() -> list[Check]:
    """Check this installation, and say what is missing.

    It checks versions, the library of kernels, the cache, required packages, extras and Java. Nothing is changed. Exit code 1 if
    something that every verb needs is missing; extras that are not installed are not an error.

    Returns what was looked at, in order.

    >>> import rawlog
    >>> [one.advice for one in rawlog.doctor() if one.state == "error"]
    []
    """
    return [*_versions(), _kernels(), _cache(), *_packages(), _java()]


def _versions() -> Iterator[Check]:
    yield Check("rawlog", "ok", f"{rawlog.__version__} in {Path(rawlog.__file__).parent}")
    yield Check("python", "ok", f"{platform.python_version()} ({sys.executable}), {platform.platform()}")


def _kernels() -> Check:
    from rawlog import kernels

    if kernels.MODE == "library":
        return Check("kernels", "ok", f"compiled ahead of time, processor level {kernels.LEVEL}")
    why = f"the library of kernels is not used: {kernels.WHY_NOT}"
    if kernels.MODE == "compiler":
        return Check("kernels", "ok", f"compiled by numba at their first use; {why}", "make kernels (in a source tree)")
    advice = "install a wheel of rawlog for this platform, or `pip install numba`"
    if kernels.WHY_NOT == "the compiler is off":
        advice = f"unset NUMBA_DISABLE_JIT and {kernels.VARIABLE}"
    return Check("kernels", "error", f"plain Python, about a thousand times slower; {why}", advice)


def _cache() -> Check:
    from rawlog.engines.spark.java import cache_directory

    path = cache_directory()
    size = sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else 0
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    if os.access(nearest, os.W_OK):
        return Check("cache", "ok", f"{path}, {size:,} bytes; may be removed at any time")
    return Check(
        "cache",
        "missing",
        f"{path} cannot be written: Spark starts slower",
        "set XDG_CACHE_HOME to a directory of yours",
    )


def _packages() -> Iterator[Check]:
    from importlib import metadata

    try:
        wanted = metadata.requires("rawlog") or []
    except metadata.PackageNotFoundError:
        yield Check("packages", "missing", "rawlog is not installed, only found on the path", install_command())
        return
    required = [_name(requirement) for requirement in wanted if ";" not in requirement]
    versions, missing = _find_installed(required)
    if missing:
        yield Check("packages", "error", f"not installed: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    yield Check("packages", "ok", ", ".join(versions))
    for extra in metadata.metadata("rawlog").get_all("Provides-Extra") or []:
        names = [_name(requirement) for requirement in wanted if re.search(rf"extra == ['\"]{extra}['\"]", requirement)]
        purpose = next((PURPOSES[name] for name in names if name in PURPOSES), "")
        if not purpose or extra == "all":
            continue
        versions, missing = _find_installed(names)
        if missing:
            what = f"{purpose}; not installed: {', '.join(missing)}"
            yield Check(f"extra {extra}", "missing", what, install_command(extra))
        else:
            yield Check(f"extra {extra}", "ok", f"{purpose}; {', '.join(versions)}")


def _name(requirement: str) -> str:
    name_match = re.match(r"[\w.-]+", requirement)
    return name_match[0] if name_match else requirement


def _find_installed(names: list[str]) -> tuple[list[str], list[str]]:
    """-> name and version of those that are installed, names of the others"""
    from importlib import metadata

    versions, missing = [], []
    for name in names:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            missing.append(name)
    return versions, missing


def _java() -> Check:
    from rawlog.engines.spark.java import find_java
    from rawlog.model.errors import AccessError

    try:
        java = find_java()
    except AccessError:
        return Check(
            "java", "missing", "Java 17 or later, for Spark only", f"{install_command('spark')}, or set JAVA_HOME"
        )
    return Check("java", "ok", f"{java.version} in {java.home} (by {java.origin})")


# ----------------------------------------------------------------------------------------------------------------------
# What rawlog knows: its formats, without importing what reads them.


@verb(name="formats", group="look", examples=("rawlog formats", "rawlog formats --json"))
def list_formats() -> list[dict[str, Any]]:
    """List every format: family, files, what can be done with it.

    Returns a dict for each format: name, family, title, files, abilities, tables. (It is not called `formats`, because `rawlog.formats`
    is the package of the formats.)

    >>> import rawlog
    >>> [one["format"] for one in rawlog.list_formats() if one["family"] == "replay"]
    ['replay.recording']
    """
    return [
        {
            "format": format.name,
            "family": family.name,
            "title": format.title,
            "files": format.files,
            "abilities": format.abilities(),
            "tables": [table.name for table in format.tables],
            "carries": sorted(format.carries),
        }
        for family in registry.families()
        for format in family.formats
    ]
