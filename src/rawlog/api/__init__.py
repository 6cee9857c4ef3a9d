"""The Python functions: one for each verb of the command line, with its name and options. Users import them from `rawlog`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawlog.api.ask import cluster, groups, ingest, lake, query, transactions
    from rawlog.api.check import compact, diff, rebuild, repair, rescue, rules, verify
    from rawlog.api.installation import doctor
    from rawlog.api.known import list_formats
    from rawlog.api.live import mirror, record, replay
    from rawlog.api.look import Log, cat, count, explain, find, follow, head, ls, open, read, rows, tail
    from rawlog.api.move import convert, erase, extract, restore, write
    from rawlog.api.overview import browse, report

#: Each name, and the module that defines it. It is imported when it is first used.
MODULES = {
    **dict.fromkeys(("cluster", "groups", "ingest", "lake", "query", "transactions"), "rawlog.api.ask"),
    **dict.fromkeys(("compact", "diff", "rebuild", "repair", "rescue", "rules", "verify"), "rawlog.api.check"),
    **dict.fromkeys(("doctor",), "rawlog.api.installation"),
    **dict.fromkeys(("list_formats",), "rawlog.api.known"),
    **dict.fromkeys(("mirror", "record", "replay"), "rawlog.api.live"),
    **dict.fromkeys(
        ("Log", "cat", "count", "explain", "find", "follow", "head", "ls", "open", "read", "rows", "tail"),
        "rawlog.api.look",
    ),
    **dict.fromkeys(("browse", "report"), "rawlog.api.overview"),
    **dict.fromkeys(("convert", "erase", "extract", "restore", "write"), "rawlog.api.move"),
}


def __getattr__(name: str) -> object:
    """Import the module of a function when it is first used."""
    if name not in MODULES:
        raise AttributeError(f"module 'rawlog.api' has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)


__all__ = [
    "MODULES", "Log", "browse", "cat", "cluster", "compact", "convert", "count", "diff", "doctor", "erase", "explain", "extract", "find",
    "follow", "groups", "head", "ingest", "lake", "list_formats", "ls", "mirror", "open", "query", "read", "rebuild", "record",
    "repair", "replay", "report", "rescue", "restore", "rows", "rules", "tail", "transactions", "verify", "write",
]  # fmt: skip
