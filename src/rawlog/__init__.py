"""rawlog: read, verify, query, convert, repair and write the files that message systems leave on disk.

Every verb of the command line is a function here with the same name and options.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rawlog import errors as errors
    from rawlog.verbs.browse import browse
    from rawlog.verbs.cat import Log, cat, count, find, follow, head, open, read, rows, tail
    from rawlog.verbs.cluster import cluster
    from rawlog.verbs.convert import convert, write
    from rawlog.verbs.diff import diff
    from rawlog.verbs.doctor import doctor, list_formats
    from rawlog.verbs.erase import erase
    from rawlog.verbs.explain import explain
    from rawlog.verbs.extract import extract
    from rawlog.verbs.groups import groups, transactions
    from rawlog.verbs.ingest import ingest, lake
    from rawlog.verbs.live import mirror, record, replay
    from rawlog.verbs.ls import ls
    from rawlog.verbs.query import query
    from rawlog.verbs.repair import compact, rebuild, repair
    from rawlog.verbs.report import report
    from rawlog.verbs.rescue import rescue
    from rawlog.verbs.restore import restore
    from rawlog.verbs.verify import rules, verify


def __getattr__(name: str) -> object:
    """Import the working parts when they are first used, so that `import rawlog` costs nothing."""
    if name == "errors":
        import importlib

        return importlib.import_module("rawlog.errors")
    if name in __all__ and not name.startswith("_"):
        from rawlog import verbs

        return verbs.public(name)
    raise AttributeError(f"module 'rawlog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "errors"])


__all__ = [
    "Log", "__version__", "browse", "cat", "cluster", "compact", "convert", "count", "diff", "doctor", "erase", "explain", "extract",
    "find", "follow", "groups", "head", "ingest", "lake", "list_formats", "ls", "mirror", "open", "query", "read", "rebuild",
    "record", "repair", "replay", "report", "rescue", "restore", "rows", "rules", "tail", "transactions", "verify", "write",
]  # fmt: skip
