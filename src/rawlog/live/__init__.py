"""Live Kafka: record topics to files, replay files to topics, mirror topics, with a small client of our own.

`record` and `replay` are the functions of `rawlog`; `connect` gives a Cluster for questions of your own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rawlog.live.cluster import Cluster
    from rawlog.live.recorder import record
    from rawlog.live.replayer import replay
    from rawlog.live.settings import Settings
    from rawlog.live.topic_mirror import mirror

_MODULES = {
    "Cluster": "rawlog.live.cluster",
    "Settings": "rawlog.live.settings",
    "mirror": "rawlog.live.topic_mirror",
    "record": "rawlog.live.recorder",
    "replay": "rawlog.live.replayer",
}


def __getattr__(name: str) -> object:
    """Import what is asked for when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'rawlog.live' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


__all__ = ["Cluster", "Settings", "mirror", "record", "replay"]
