"""Which stores are replicas of one partition, and which of them is the best.

Replicas of an Ambry partition get the same blobs in different orders, and compact them at different times, so their logs cannot be compared
by names and sizes. The one with the most index entries knows most operations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rawlog.core.store import Copies, Identity, Store
from rawlog.formats.ambry.paths import split, store_name

#: Marks of a replica that is not complete yet, or is being removed.
UNFINISHED = ("bootstrap_in_progress", "decommission_in_progress", "file_copy_in_progress")


def copies(stores: Sequence[Store]) -> list[Copies]:
    """The sets of replicas, each with the best first."""
    found: dict[str, list[Store]] = defaultdict(list)
    for store in stores:
        found[str(store_name(store))].append(store)
    return [
        Copies.ranked(Identity("ambry", f"partition {name}"), some, [_rank(store) for store in some])
        for name, some in found.items()
        if len(some) > 1
    ]


def _rank(store: Store) -> tuple[tuple[int, ...], str]:
    names = {split(file.path)[1] for file in store}
    is_whole = not names & set(UNFINISHED) and not any(file.problem for file in store)
    index = sum(file.size for file in store if file.format == "ambry.index" and file.place.state is None)
    logs = sum(file.size for file in store if file.format == "ambry.log" and file.place.state is None)
    return (int(is_whole), index, logs), f"{index:,} bytes of index" + ("" if is_whole else ", not complete")
