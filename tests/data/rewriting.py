"""The verbs that write stores again, for tests: one call, one report."""

from __future__ import annotations

from pathlib import Path

from rawlog.engines import choice
from rawlog.model.report import Report
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob


def rewritten(
    verb: str, source: Path, target: Path, *, overwrite: bool = False, dry_run: bool = False, **options: object
) -> Report:
    """Run `repair`, `rebuild` or `compact` with one thread."""
    texts = {name.replace(".", "_"): str(value) for name, value in options.items()}
    with RewriteJob(verb, str(target), texts, overwrite=overwrite, dry_run=dry_run) as job:
        return choice.run(job, open_tree(str(source)), threads=1)
