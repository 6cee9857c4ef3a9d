"""`quorum-state`: the JSON in which a controller keeps its epoch, its vote, and (in a static quorum) its voters."""

from __future__ import annotations

import json

from rawlog.formats.kafka.texts import scan_text


def parse(data: bytes) -> dict[str, object]:
    """The election state. ValueError if it is none."""
    try:
        found = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(found, dict) or found.get("data_version") not in (0, 1):
        raise ValueError("not an election state of version 0 or 1")
    for name in ("leaderId", "leaderEpoch", "votedId"):
        if not isinstance(found.get(name), int) or isinstance(found[name], bool):
            raise ValueError(name)
    return found


def _check(data: bytes) -> None:
    parse(data)


scan = scan_text(_check)
