"""The verbs that write stores again, for tests: one call, one report; and what a report says, by action."""

from __future__ import annotations

from pathlib import Path

from rawlog.engines import choice
from rawlog.formats.ambry import is_log
from rawlog.formats.ambry.store.extract import extract_blobs as extract
from rawlog.io.output import Output
from rawlog.model.report import Action, Entry, Report
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob


def rewritten(
    verb: str, source: Path, target: Path, *, dry_run: bool = False, overwrite: bool = False, **options: str
) -> Report:
    """Run a verb with one thread."""
    with RewriteJob(verb, str(target), options, dry_run=dry_run, overwrite=overwrite) as job:
        return choice.run(job, open_tree(str(source)), threads=1)


def extracted(source: Path, target: Path, **options: str) -> Report:
    """Write the blobs of stores as files."""
    with Output(target) as output, output.directory() as made:
        return extract(open_tree(str(source)).files, made, options)


def _lines(report: Report, *actions: Action) -> list[str]:
    return [one.line() for one in report.with_action(*actions) if one.is_alteration]


def dropped(report: Report) -> list[str]:
    """The bytes that are not in the result, one line each."""
    return _lines(report, Action.DROPPED)


def cut_ends(report: Report) -> list[Entry]:
    """The ends of log segments that are not in the result, and that nothing confirms as messages."""
    cut = [one for one in report.with_action(Action.DROPPED) if not one.is_alteration and one.start]
    return [one for one in cut if one.path is not None and is_log(one.path)]


def lost(report: Report) -> list[str]:
    """The blobs that are lost, and what is not known of them any more."""
    return _lines(report, Action.LOST)


def reconstructed(report: Report) -> list[str]:
    """What was corrected or written again."""
    return _lines(report, Action.CHANGED, Action.ADDED, Action.MOVED)
