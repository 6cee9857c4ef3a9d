"""Prints findings: what a verification found, its verdict, the rules that it knows; and differences: what two places do not agree on."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from rawlog.cli import logs, output
from rawlog.cli.command import Call, Detail
from rawlog.cli.grid import fit_rows
from rawlog.cli.printers import Json
from rawlog.model.errors import DONE, UnknownFormatError
from rawlog.model.finding import CLASSES, Severity
from rawlog.model.text import (
    counted,
    offset_range,
    printable,
    to_json,
    wrapped,
)
from rawlog.model.verb import Option

if TYPE_CHECKING:
    from rawlog.model.difference import Difference, Tally
    from rawlog.model.finding import Account, Finding, FindingGroup, Findings, Rule

# ----------------------------------------------------------------------------------------------------------------------
# Prints findings: what a verification found, and its verdict; and the rules that it knows.

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
#: So many findings of one rule in one file are shown to people; --json shows all.
SHOWN = 20
#: Before what follows from a finding, and before the second line of its text.
FURTHER = " " * 10
#: So many findings that say the same are shown one by one.
ALONE = 3


def show(
    call: Call,
    *,
    list_rules: Annotated[bool, Option("List the rules and what they mean, and check nothing.", "--rules")] = False,
    as_json: Json = False,
) -> int:
    """Print what a verification found; with `list_rules` only the rules."""
    from rawlog.verbs.verify import rules

    if list_rules:
        _list(rules(rule=call.value("rule"), skip=call.value("skip")), as_json)
        output.flush()
        return DONE
    if not call.arguments["paths"]:
        raise click.UsageError("Missing argument 'PATH...'.", click.get_current_context())
    findings, notes = call.run(), call.notes
    if not notes.code and (findings.verdict == "unknown" or not findings.files):
        raise UnknownFormatError(f"{', '.join(call.arguments['paths'])}: no file of any known format here")
    if call.value("complete") and not findings.accounts:
        notes("--complete: nothing here can be accounted for")
    if logs.is_json():
        summary = findings.summary()
        figures = {name: number for name, number in summary.items() if isinstance(number, int)}
        logs.write("warning" if findings.exit_code else "info", findings.verdict, figures)
    if as_json:
        output.json_rows(finding.as_row() for finding in findings)
        output.json_rows(account.as_row() for account in findings.accounts)
        output.json_line(findings.summary())
    else:
        _show(findings, call.detail)
        for command in _repairs(findings, call.arguments["paths"]):
            logs.advise(command)
    output.flush()
    return int(findings.exit_code or notes.code)


def _repairs(findings: Findings, paths: Sequence[str]) -> list[str]:
    """The commands that show what a repair would do about errors and warnings."""
    from rawlog.verbs.verify import repair_commands

    return repair_commands(findings, paths) if findings.exit_code else []


def _show(findings: Findings, detail: Detail) -> None:
    from rawlog.model.finding import UNKNOWN, group_findings
    from rawlog.verbs.verify import all_rules

    most = sys.maxsize if detail is Detail.ALL else SHOWN
    is_quiet = detail is Detail.QUIET
    for startup in () if is_quiet else findings.startups:
        for text in startup.lines(most):
            output.sentence(printable(text), FURTHER)
    shown: dict[tuple[str, str | None], int] = {}
    path: str | None = ""
    recognised = [item for item in findings if item.code != UNKNOWN]
    recognised = [item for item in recognised if not is_quiet or item.severity is not Severity.INFO]
    systems = {item.code.partition(".")[0] for item in recognised}
    for group in group_findings(recognised, all_rules(systems)) if recognised else ():
        item = group.first
        key = (item.code, item.path)
        shown[key] = shown.get(key, 0) + 1
        if shown[key] > most:
            continue
        if item.path != path:
            path = item.path
            output.line(output.style(printable(path or "the files together"), bold=True))
        for line in _lines(group):
            _print_line(line, item.severity)
    for (code, where), count in shown.items():
        if count > most:
            output.line(f"  … and {count - most:,} more of {code} in {printable(where or 'the files together')}")
    if unknown := sum(item.code == UNKNOWN for item in findings):
        output.line(f"{counted(unknown, 'file')} of no known format: not checked  [{UNKNOWN}]")
    _show_accounts([account for account in findings.accounts if not is_quiet or not account.is_complete])
    colour = {"damaged": "red", "suspect": "yellow", "unknown": "yellow"}.get(findings.verdict, "green")
    summary = findings.summary()
    counts = ", ".join(counted(summary[f"{name}s"], name) for name in ("file", "frame", "error", "warning"))
    output.line(f"{output.style(findings.verdict, fg=colour, bold=True)}: {counts}")


#: What accounts count, as the heading says it.
UNITS = {"offset": "offsets", "entry": "entries", "blob": "blobs"}


def _show_accounts(accounts: Sequence[Account]) -> None:
    """A line for each partition: its offsets by class, and what else is not as it should be. A table for each system, since those do not
    have the same classes.
    """
    for system, unit in dict.fromkeys((account.system, account.unit) for account in accounts):
        system_accounts = [account for account in accounts if (account.system, account.unit) == (system, unit)]
        classes = [name for name in CLASSES if any(getattr(account, name) is not None for account in system_accounts)]
        rows: list[Sequence[str]] = [(f"{UNITS[unit]} of", "end" if unit == "offset" else "all", *classes, "")]
        for account in system_accounts:
            name = account.path if account.topic is None else f"{account.topic}-{account.partition}"
            odd = [
                ("broken sequence", account.broken_sequences),
                ("open transaction", account.open_transactions),
                ("delayed message", account.delayed),
            ]
            more = ", ".join(counted(count, what) for what, count in odd if count)
            counts = (f"{getattr(account, name) or 0:,}" for name in classes)
            rows.append((printable(name), f"{account.stop:,}", *counts, more))
        right = (False, *[True] * (len(classes) + 1), False)
        for text in fit_rows(rows, right, ""):
            output.line(text)


def _lines(group: FindingGroup) -> Iterator[str]:
    """A group as one line, or a few; and what follows from it."""
    if len(group.items) <= ALONE:
        yield from (_line(item) for item in group.items if item.path == group.first.path)
    else:
        more = f", and {len(group.items) - 1:,} more like it"
        last = group.items[-1].position
        yield _line(group.first, more if last is None else f"{more} up to byte {last:,}")
    others = [path for path in dict.fromkeys(item.path for item in group.items) if path != group.first.path]
    if others:
        yield f"{FURTHER}the same in {_names(others)}"
    following: dict[str, list[Finding]] = {}
    for consequence in group.following:
        following.setdefault(consequence.first.code, []).extend(consequence.items)
    for code, items in following.items():
        number = counted(len(items), items[0].severity.value.replace("info", "note"))
        yield f"{FURTHER}follows from it: {number} in {_names(list(dict.fromkeys(item.path for item in items)))}  [{code}]"


def _names(paths: Sequence[str | None]) -> str:
    names = [printable(path or "the files together") for path in paths]
    return ", ".join(names[:ALONE]) + (f" and {counted(len(names) - ALONE, 'more file')}" if len(names) > ALONE else "")


def _line(item: Finding, like: str = "") -> str:
    place = "" if item.position is None else f"byte {item.position:,}: "
    if item.offset is not None:
        place = f"offset {item.offset:,}, {place}" if place else f"offset {item.offset:,}: "
    return f"  {item.severity:<7} {printable(place + item.text)}{like}  [{item.code}]"


def _print_line(line: str, severity: Severity) -> None:
    """A line of a group, with its severity in colour; on a terminal it continues below its text."""
    width = shutil.get_terminal_size().columns if output.is_terminal() else sys.maxsize
    head = f"  {severity:<7} "
    for text in wrapped(line, width, FURTHER):
        coloured = "  " + output.style(f"{severity:<7}", fg=COLOURS[severity]) + " "
        output.line(coloured + text.removeprefix(head) if text.startswith(head) else text)


def _list(rules: Iterable[Rule[Any]], as_json: bool) -> None:
    for rule in rules:
        if as_json:
            output.json_line({"code": rule.code, "severity": rule.severity.value, "about": rule.about})
            continue
        severity = output.style(f"{rule.severity:<7}", fg=COLOURS[rule.severity])
        output.line(f"{severity} {output.style(rule.code, bold=True)}")
        for text in rule.about.splitlines():
            output.line(f"        {text}".rstrip())


# ----------------------------------------------------------------------------------------------------------------------
# Prints differences: what two places do not agree on.

SIGNS = {
    "only_in_a": ("-", "red", "only in A"),
    "only_in_b": ("+", "green", "only in B"),
    "differs": ("~", "yellow", "differs"),
}
#: So many differences of one partition or store are shown to people; --json shows as many as --limit lists.


def show_differences(call: Call, *, as_json: Json = False) -> int:
    """Print what two places do not agree on."""
    differences = call.run()
    if as_json:
        output.json_rows(item.as_json() for item in differences)
        output.json_line(differences.summary())
    else:
        _show_tally(differences.tally, bool(differences.damage))
    output.flush()
    return int(call.notes.code or differences.exit_code)


def _show_tally(tally: Tally, has_damage: bool) -> None:
    shown: dict[tuple[str, str], int] = {}
    heading: tuple[str, str] | None = None
    for item in tally.items:
        key = ("record", item.name) if item.what == "record" else (item.what, "")
        shown[key] = shown.get(key, 0) + 1
        if shown[key] > SHOWN:
            continue
        if key != heading:
            heading = key
            output.line(output.style(printable(key[1] or item.what), bold=True))
        sign, colour, _ = SIGNS[item.change]
        output.sentence(f"  {sign} {printable(_difference_line(item))}", FURTHER, fg=colour)
    for (what, name), count in shown.items():
        if count > SHOWN:
            output.line(f"  … and {count - SHOWN:,} more of {printable(name or what)}; --json lists them")
    if tally.unlisted:
        output.line(f"  … and {tally.unlisted:,} more that --limit left out")
    counts = [f"{tally.alike:,} alike"]
    for name, (_, _, words) in SIGNS.items():
        if getattr(tally, name):
            counts.append(f"{getattr(tally, name):,} {words if name != 'differs' else 'differ'}")
    verdict = (
        output.style("same", fg="green", bold=True) if tally.is_same else output.style("different", fg="red", bold=True)
    )
    output.line(f"{verdict}: {', '.join(counts)}{'; damage was passed over' if has_damage else ''}")


def _difference_line(item: Difference) -> str:
    words = SIGNS[item.change][2]
    if item.start is None or item.stop is None:
        place = "" if item.what == "record" else item.name
    elif item.count == 1:
        place = f"offset {item.start:,}"
    else:
        place = f"{offset_range(item.start, item.stop)}, {counted(item.count, item.what)}"
    facts = []
    for name in item.columns:
        if item.a is None or item.b is None:
            facts.append(name)
        else:
            facts.append(f"{name} {_value(item.a.get(name))} / {_value(item.b.get(name))}")
    more = ": " + ", ".join(facts) if facts else ""
    if facts and item.count > 1 and item.a is not None:
        more += " (the first)"
    return f"{words:<9}  {place}{more}"


def _value(value: object) -> str:
    text = to_json(value)
    return text if len(text) <= 60 else text[:57] + "…"
