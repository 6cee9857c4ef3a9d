"""Which stores are those of one broker: a master and its slaves, or the members of a DLedger group; and which of them is the best."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rawlog.core.errors import RawlogError
from rawlog.core.store import Copies, Identity, Store
from rawlog.formats.rocketmq.paths import COMMIT_LOG_NAME, store_name
from rawlog.io.storage import Source

LARGEST_TEXT = 1 << 16


def copies(stores: Sequence[Store]) -> list[Copies]:
    """The sets of replicas, each with the best first. A store that does not say whose it is, is a replica of none."""
    found: dict[Identity, list[Store]] = defaultdict(list)
    for store in stores:
        identity = _identity(store)
        if identity is not None:
            found[identity].append(store)
    return [
        Copies.ranked(identity, some, [_rank(store) for store in some])
        for identity, some in found.items()
        if len(some) > 1
    ]


def _identity(store: Store) -> Identity | None:
    """The DLedger group, or cluster and broker in `brokerIdentity` (`cluster#broker#id`)."""
    name = store_name(store)
    if name is not None and name.startswith("dledger-"):
        return Identity("rocketmq", name.removeprefix("dledger-"))
    own = next((file for file in store if file.format == "rocketmq.identity" and file.problem is None), None)
    if own is None:
        return None
    try:
        with Source(own.path) as source:
            words = source.read(0, min(source.size, LARGEST_TEXT)).decode("utf-8", "replace").strip().split("#")
    except RawlogError:
        return None
    return Identity("rocketmq", words[1], (words[0],)) if len(words) == 3 else None


def _rank(store: Store) -> tuple[tuple[int, ...], str]:
    """By where the commit log begins its last file. How far that file is filled is not in its size."""
    logs = [file for file in store if file.format == COMMIT_LOG_NAME and file.place.state is None]
    last = max((file.place.start_offset or 0 for file in logs), default=0)
    queues = sum(file.size for file in store if file.format == "rocketmq.consumequeue")
    is_readable = not any(file.problem for file in store)
    return (int(is_readable), last, queues, sum(file.size for file in logs)), f"last file of the commit log: {last:,}"
