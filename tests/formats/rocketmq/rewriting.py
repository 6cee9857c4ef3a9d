"""Stores rewritten by the public verbs, for tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from rawlog.core.report import Report
from rawlog.engines import local
from rawlog.formats.rocketmq.store import rewrite
from rawlog.io.output import Folder, new_directory
from rawlog.jobs.rewrite import Rewriting
from rawlog.reading.tree import open_tree


def rewritten(
    verb: str, source: Path, target: Path, options: Mapping[str, str] | None = None, *, dry_run: bool = False
) -> Report:
    """A store rewritten as the command line does it."""
    with Rewriting(verb, str(target), options, dry_run=dry_run) as job:
        report: Report = local.run(job, open_tree(str(source)), threads=1)
    return report


def repaired(source: Path, target: Path, options: Mapping[str, str] | None = None, *, dry_run: bool = False) -> Report:
    return rewritten("repair", source, target, options, dry_run=dry_run)


def rebuilt(source: Path, target: Path, options: Mapping[str, str] | None = None) -> Report:
    return rewritten("rebuild", source, target, options)


def written(batches: list[pa.RecordBatch], target: Path, options: Mapping[str, str] | None = None) -> Report:
    """Rows as a new store, as `convert` writes it, with the report."""
    with new_directory(target) as stage:
        return rewrite.write_store(batches, Folder(stage, named=str(target)), options or {})


def said(report: Report) -> str:
    """All that a report says to people."""
    return "\n".join(report.lines())
