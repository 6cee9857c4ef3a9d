"""The Python functions: one for each verb of the command line, with its name and options. Users import them from `rawlog`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawlog.verbs.ask import (
        cluster,
        groups,
        ingest,
        lake,
        query,
        transactions,
    )
    from rawlog.verbs.check import (
        compact,
        diff,
        rebuild,
        repair,
        rescue,
        rules,
        verify,
    )
    from rawlog.verbs.doctor import doctor, list_formats
    from rawlog.verbs.live import mirror, record, replay
    from rawlog.verbs.look import (
        Log,
        cat,
        count,
        explain,
        find,
        follow,
        head,
        ls,
        open,
        read,
        rows,
        tail,
    )
    from rawlog.verbs.move import (
        convert,
        erase,
        extract,
        restore,
        write,
    )
    from rawlog.verbs.overview import browse, report

#: Each name, and the module that defines it. It is imported when it is first used.
MODULES = {
    **dict.fromkeys(("cluster", "groups", "ingest", "lake", "query", "transactions"), "rawlog.verbs.ask"),
    **dict.fromkeys(("compact", "diff", "rebuild", "repair", "rescue", "rules", "verify"), "rawlog.verbs.check"),
    **dict.fromkeys(("doctor",), "rawlog.verbs.doctor"),
    **dict.fromkeys(("list_formats",), "rawlog.verbs.doctor"),
    **dict.fromkeys(("mirror", "record", "replay"), "rawlog.verbs.live"),
    **dict.fromkeys(
        ("Log", "cat", "count", "explain", "find", "follow", "head", "ls", "open", "read", "rows", "tail"),
        "rawlog.verbs.look",
    ),
    **dict.fromkeys(("browse", "report"), "rawlog.verbs.overview"),
    **dict.fromkeys(("convert", "erase", "extract", "restore", "write"), "rawlog.verbs.move"),
}


def __getattr__(name: str) -> object:
    """Import the module of a function when it is first used."""
    if name not in MODULES:
        raise AttributeError(f"module 'rawlog.verbs.functions' has no attribute {name!r}")
    return getattr(importlib.import_module(MODULES[name]), name)


__all__ = [
    "MODULES", "Log", "browse", "cat", "cluster", "compact", "convert", "count", "diff", "doctor", "erase", "explain", "extract", "find",
    "follow", "groups", "head", "ingest", "lake", "list_formats", "ls", "mirror", "open", "query", "read", "rebuild", "record",
    "repair", "replay", "report", "rescue", "restore", "rows", "rules", "tail", "transactions", "verify", "write",
]  # fmt: skip
