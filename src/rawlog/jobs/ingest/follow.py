"""Follow: ingest again and again, as the files grow, until asked to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from threading import Event

from rawlog.jobs.ingest import Ingest, Ingested
from rawlog.jobs.lake.upkeep import expire
from rawlog.reading.tree import Tree

#: After so many commits, snapshots that were replaced more than so many seconds ago are expired: there would be thousands in a day.
TIDY_AFTER, GRACE = 50, 3600


def follow(
    job: Ingest, look: Callable[[], Tree], run: Callable[[Tree], Ingested], stop: Event, every: float
) -> Iterator[Ingested]:
    """What each run added, as it is committed; the current run is finished when `stop` is set.

    `look` lists the files and `run` ingests a listing; it looks every `every` seconds.
    """
    seen: dict[str, tuple[int, float | None]] | None = None
    commits = 0
    while not stop.is_set():
        tree = look()
        now = {file.path: (file.size, file.modified) for file in tree}
        if now != seen:
            outcome = job.complete(lambda tree=tree: run(tree))  # type: ignore[misc]
            seen = now
            if outcome.files or outcome.refused:
                yield outcome
                commits += 1
                if commits % TIDY_AFTER == 0:
                    _tidy(job)
        stop.wait(every)


def _tidy(job: Ingest) -> None:
    assert job.lake is not None
    for name in job.lake.tables():
        expire(job.lake, name, GRACE)
