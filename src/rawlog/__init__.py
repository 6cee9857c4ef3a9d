"""rawlog: read, verify, query, convert, repair, write and replay the files that message systems leave on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from rawlog.api import open, read, verify, write

_API = ("open", "read", "verify", "write")


def __getattr__(name: str) -> object:
    """Import the working parts when they are first asked for, so that `import rawlog` costs nothing."""
    if name in _API:
        from rawlog import api

        return getattr(api, name)
    raise AttributeError(f"module 'rawlog' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_API, "__version__", "errors"])


__all__ = ["__version__", "open", "read", "verify", "write"]
