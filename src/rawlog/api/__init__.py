"""The Python functions: one for each verb of the command line, with its name and options. Users import them from `rawlog`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawlog.api.ask import cluster, ingest, lake, query
    from rawlog.api.check import compact, diff, rebuild, repair, rules, verify
    from rawlog.api.known import list_formats
    from rawlog.api.look import Log, cat, count, explain, follow, head, ls, open, read, rows, tail
    from rawlog.api.move import convert, erase, extract, restore, write

#: Each name, and the module that defines it. It is imported when it is first used.
MODULES = {
    **dict.fromkeys(("cluster", "ingest", "lake", "query"), "rawlog.api.ask"),
    **dict.fromkeys(("compact", "diff", "rebuild", "repair", "rules", "verify"), "rawlog.api.check"),
    **dict.fromkeys(("list_formats",), "rawlog.api.known"),
    **dict.fromkeys(
        ("Log", "cat", "count", "explain", "follow", "head", "ls", "open", "read", "rows", "tail"), "rawlog.api.look"
    ),
    **dict.fromkeys(("convert", "erase", "extract", "restore", "write"), "rawlog.api.move"),
}


def __getattr__(name: str) -> object:
    """Import the module of a function when it is first used."""
    if name not in MODULES:
        raise AttributeError(f"module 'rawlog.api' has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)


__all__ = [
    "MODULES", "Log", "cat", "cluster", "compact", "convert", "count", "diff", "erase", "explain", "extract", "follow", "head", "ingest",
    "lake", "list_formats", "ls", "open", "query", "read", "rebuild", "repair", "restore", "rows", "rules", "tail", "verify", "write",
]  # fmt: skip
