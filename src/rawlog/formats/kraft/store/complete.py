"""Is anything missing in a metadata log? Every offset from the end of a snapshot to the end of the log: `rawlog verify --complete`.

What a snapshot has is not missing: a controller deletes the segments before it. So offsets before the log begins have expired if a whole
snapshot reaches up to that point, and are unexplained if none does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rawlog.core.findings import Account, Few, Mark, Severity, rule
from rawlog.core.format import File
from rawlog.core.store import Store
from rawlog.formats.kafka.paths import METADATA_TOPIC
from rawlog.formats.kraft.paths import snapshot_id
from rawlog.formats.kraft.store.store import MetadataStore, stores, traced_end

Runs = list[tuple[int, int]]


def accounts(files: Sequence[File]) -> list[Account]:
    """The account of each metadata log among some files."""
    return [account for account, _, _ in Store.of(files).share(_accounted)]


def _accounted(files: Store) -> list[tuple[Account, Runs, MetadataStore]]:
    readable = Store(one for one in files if one.problem is None)
    readable.summaries = files.summaries
    found = []
    for store in stores(readable):
        if store.segments:
            missing = store.missing(traced_end(readable))
            found.append((_account(store, missing), missing, store))
    return found


def _account(store: MetadataStore, missing: Runs) -> Account:
    ends = [(snapshot_id(one.path) or (0, 0))[0] for one in store.snapshots if store.is_whole(one)]
    start = min([store.first, *(first for first, _ in missing)])
    stop = max([store.end[1], *ends, *(last for _, last in missing)])
    log_end = max(
        [start, *(one for one in (store.contents(each).following for each in store.segments) if one is not None)]
    )
    inside = sum(min(last, log_end) - min(first, log_end) for first, last in missing)
    control = sum(store.contents(one).controls for one in store.segments)
    return Account(
        system="kraft",
        topic=METADATA_TOPIC,
        partition=0,
        path=store.folder,
        start=start,
        stop=stop,
        present=max(0, log_end - start - inside - control),
        control=control,
        expired=start + _in_snapshots(log_end, stop, missing),
        unexplained=sum(last - first for first, last in missing),
    )


def _in_snapshots(log_end: int, stop: int, missing: Runs) -> int:
    """The offsets after the end of the log that a snapshot covers: a controller that fetched one deletes its log."""
    return stop - log_end - sum(last - max(first, log_end) for first, last in missing if last > log_end)


@rule("kraft.complete.unexplained", Severity.ERROR)
def unexplained(files: Sequence[File]) -> Iterator[Mark]:
    """Offsets of the metadata log are missing, and no snapshot has what they led to. (With `--complete` only.)

    A metadata log is never compacted, and its segments are deleted only when a snapshot has their state. Take the missing segments, or a
    newer snapshot, from another controller: `rawlog rescue` takes all disks.
    """
    for account, missing, store in Store.of(files).share(_accounted):
        few = Few()
        for first, last in missing:
            message = (
                f"offsets {first} to {last - 1} are missing, {last - first:,} in all: {_reason(store, first, last)}"
            )
            few.append(Mark(message, offset=first, path=account.path))
        yield from few


def _reason(store: MetadataStore, first: int, last: int) -> str:
    """What is known of why offsets are missing."""
    if last <= store.first:
        return "the log begins after them, and no whole snapshot leads up to its beginning"
    if first >= store.end[1]:
        return "another file says that the log was longer"
    return "no sound batch has them"
