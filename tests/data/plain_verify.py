"""Verification as one plain loop over files, groups and the tree: what the job must find too, however it is cut."""

from __future__ import annotations

from rawlog.model.finding import Findings
from rawlog.reading.inspect import inspect_files, inspect_group, inspect_tree
from rawlog.reading.tree import Tree


def verify_tree(tree: Tree) -> Findings:
    """Every finding on every file, then on the files together."""
    result = inspect_files(tree)
    for group in tree.groups:
        result.add(inspect_group(group))
    summaries = {path: summary for group in tree.groups for path, summary in group.summaries.items()}
    result.add(inspect_tree(tree, None, summaries))
    result.startups = [one.with_predictions(result.predictions) for one in result.startups]
    return result
