"""Advice: findings grouped by cause, each with what it means and the commands that help; and what to do next."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from rawlog import registry
from rawlog.compare.replicas import all_rules
from rawlog.core.findings import UNKNOWN, Finding, Findings, Rule, Severity, grouped
from rawlog.core.groups import Group
from rawlog.core.text import counted
from rawlog.core.transactions import Transactions
from rawlog.pages.findings import Cause, Step
from rawlog.reading.inspection import unreadable
from rawlog.reading.replicas import copies
from rawlog.reading.tree import Tree

#: So many places of one cause are listed; all are counted.
PLACES = 25
ORDER = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.INFO: 2}


def causes(findings: Iterable[Finding], roots: Sequence[str]) -> list[Cause]:
    """Findings of one rule are one cause: the worst first, then the most frequent, and last those that follow from others."""
    rules, findings = all_rules(), list(findings)
    about = {one.code: one.about for one in rules}
    origins = _origins(findings, rules)
    unrepaired = {code for family in registry.families() for one in family.rewrites.values() for code in one.unrepaired}
    repairing = {family.name for family in registry.families() if "repair" in family.rewrites}
    grouped: dict[str, list[Finding]] = {}
    for one in findings:
        grouped.setdefault(one.code, []).append(one)
    made = []
    for code, found in grouped.items():
        worst = min((one.severity for one in found), key=lambda one: ORDER[one])
        commands = _commands(found)
        is_repaired = code.split(".")[0] in repairing and code not in unrepaired and worst is not Severity.INFO
        if is_repaired:
            commands.append(Step("See what a repair keeps and drops", _repair(_root(found, roots))))
        files = len({one.path for one in found})
        shown = (about.get(code, ""), len(found), files, tuple(found[:PLACES]), tuple(commands), is_repaired)
        made.append(Cause(code, worst, *shown, origins.get(code, "")))
    return sorted(made, key=lambda one: (bool(one.follows), ORDER[one.severity], -one.count, one.code))


def _origins(findings: Sequence[Finding], rules: Sequence[Rule[Any]]) -> dict[str, str]:
    """The rules whose findings all follow from those of another, with that one."""
    groups = grouped(findings, rules)
    found = {one.first.code: group.first.code for group in groups for one in group.following}
    for group in groups:
        found.pop(group.first.code, None)
    return found


def _commands(found: Sequence[Finding]) -> list[Step]:
    """How to look at the first place of a cause."""
    able = {name for name, one in registry.formats().items() if one.explain is not None}
    for one in found:
        if one.path is not None and one.position is not None and one.format in able:
            return [Step("Look at the bytes", command("explain", one.path, "--at", str(one.position)))]
    return []


def next_steps(
    findings: Findings,
    found: Sequence[Cause],
    tree: Tree,
    groups: Sequence[Group] = (),
    transactions: Sequence[Transactions] = (),
) -> list[Step]:
    """What to do next, the most urgent first."""
    roots = tree.roots
    serious = [one for one in found if one.severity is not Severity.INFO]
    steps: list[Step] = []
    if any(one.code == unreadable.code for one in serious):
        steps.append(
            Step(
                "Some files cannot be read. Copy them with sufficient rights and run the report again.",
                command("ls", *roots),
            )
        )
    several = copies(tree.groups)
    if several and serious:
        text = f"{counted(len(several), 'partition or store', 'partitions or stores')} have replicas here: put the best of them together"
        steps.append(Step(text, command("rescue", *roots, "--plan")))
    if any(one.is_repairable for one in serious):
        text = "See what a repair would keep, rebuild and drop. The source is never changed."
        repairable = [one for one in serious if one.is_repairable]
        for root in dict.fromkeys(_root(one.places, roots) for one in repairable):
            steps.append(Step(text, _repair(root)))
    elif serious:
        steps.append(
            Step(
                "Read what the findings mean below, and compare with another copy of the data if there is one.",
                command("verify", *roots),
            )
        )
    hanging = [one for every in transactions for one in every.open if one.is_hanging]
    if hanging:
        text = f"{counted(len(hanging), 'transaction')} hang: consumers that read committed records wait for them"
        steps.append(Step(text, command("transactions", *roots)))
    late = [group for group in groups if (group.lag or 0) > 0]
    if late:
        worst = max(late, key=lambda one: one.lag or 0)
        text = (
            f"{counted(len(late), 'consumer group')} still have records to read, {worst.name} the most: {worst.lag:,}"
        )
        steps.append(Step(text, command("groups", *roots)))
    unknown = sum(one.code == UNKNOWN for one in findings)
    if unknown:
        steps.append(
            Step(f"{counted(unknown, 'file')} of no known format: nothing in them was checked", command("ls", *roots))
        )
    if not serious and any(file.format is not None for file in tree.files):
        steps.append(
            Step("Nothing needs repair. Look at the records, or ask questions in SQL.", command("head", *roots))
        )
    return steps


def command(verb: str, *arguments: str) -> str:
    """A command line to copy."""
    return shlex.join(["rawlog", verb, *arguments])


def _repair(root: str) -> str:
    return command("repair", root, "repaired", "--dry-run")


def _root(found: Sequence[Finding], roots: Sequence[str]) -> str:
    """The path that was asked for and has the first of these findings in it."""
    path = next((one.path for one in found if one.path is not None), roots[0])
    return max((root for root in roots if path.startswith(root.rstrip("/"))), key=len, default=roots[0])
