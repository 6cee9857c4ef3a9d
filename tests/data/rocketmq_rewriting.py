"""Stores rewritten by the public verbs, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa

import rawlog
from rawlog.engines import choice
from rawlog.formats.rocketmq.store import rewrite
from rawlog.io.output import Output
from rawlog.model.finding import Finding
from rawlog.model.report import Action, Entry, Report
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob

MISPLACED = {
    "rocketmq.store.queue-dangling", "rocketmq.store.index-differs", "rocketmq.store.missing-file", "rocketmq.store.stray",
    "rocketmq.store.file-name", "rocketmq.commitlog.stale", "rocketmq.commitlog.physical-offset",
}  # fmt: skip


def rewritten(
    verb: str,
    source: Path | Sequence[Path],
    target: Path,
    options: Mapping[str, str] | None = None,
    *,
    dry_run: bool = False,
) -> Report:
    """A store, perhaps on several disks, rewritten as the command line does it."""
    roots = [str(source)] if isinstance(source, Path) else [str(path) for path in source]
    with RewriteJob(verb, str(target), options, dry_run=dry_run) as job:
        report: Report = choice.run(job, open_tree(roots), threads=1)
    return report


def repaired(source: Path, target: Path, options: Mapping[str, str] | None = None, *, dry_run: bool = False) -> Report:
    """The same for `repair`, whose losses and changes are compared with what verification finds."""
    report = rewritten("repair", source, target, options, dry_run=dry_run)
    given = options or {}
    if not dry_run and given.get("policy") != "cut" and given.get("move") != "true":
        check_diagnosis(report, list(rawlog.verify(source)), source, target)
    return report


def is_explained(entry: Entry, findings: Sequence[Finding]) -> bool:
    """Whether verification of the source has a finding where repair lost, dropped, changed or moved something."""
    start, stop = entry.start, entry.stop
    if entry.action is Action.LOST and start is None and {one.code for one in findings} & MISPLACED:
        # A whole file that is missing, or what queues know of messages after the end of the log. Verification says it of that file, of
        # another one that is not at its place, of a unit, or of the key index.
        return True
    if entry.reason.startswith("a RocksDB database, left out"):
        return bool(findings)  # it has addresses of messages, and something is wrong with these
    for one in findings:
        if one.path == entry.path:
            size = max(one.size or 1, 1)
            if (
                start is None
                or one.position is None
                or (one.position < max(stop or 0, start + 1) and one.position + size > start)
            ):
                return True
        elif start is not None and str(entry.path).rpartition("/")[2].isdecimal():
            # A unit that points into the file: repair goes by what queues say.
            address = int(str(entry.path).rpartition("/")[2]) + start
            if one.code == "rocketmq.store.queue-dangling" and str(one.found) == str(address):
                return True
    return False


def check_diagnosis(report: Report, findings: Sequence[Finding], source: Path, target: Path) -> None:
    """Repair acts on what verification finds: nowhere else, and a store without findings stays as it is."""
    acted = report.with_action(Action.DROPPED, Action.LOST, Action.CHANGED, Action.MOVED)
    unexplained = [entry.line() for entry in acted if not is_explained(entry, findings)]
    assert not unexplained, f"{unexplained}, but only {[(one.code, one.path, one.position) for one in findings]}"
    if not [each for each in findings if each.severity != "info"]:
        assert report.is_whole, said(report)
        for path in source.rglob("commitlog/*"):
            assert (target / "commitlog" / path.name).read_bytes() == path.read_bytes(), path


def rebuilt(source: Path | Sequence[Path], target: Path, options: Mapping[str, str] | None = None) -> Report:
    return rewritten("rebuild", source, target, options)


def written(batches: list[pa.RecordBatch], target: Path, options: Mapping[str, str] | None = None) -> Report:
    """Rows as a new store, as `convert` writes it, with the report."""
    with Output(target) as output, output.directory() as stage:
        return rewrite.write_store(batches, stage, options or {})


def said(report: Report) -> str:
    """All that a report says to people."""
    return "\n".join(report.lines())
