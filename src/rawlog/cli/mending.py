"""What the verbs share that write a new directory from a store or partition: `repair`, `rebuild`, `compact`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE, FOUND, say
from rawlog.core.errors import OptionError
from rawlog.core.text import printable

if TYPE_CHECKING:
    from rawlog.core.findings import Finding
    from rawlog.core.report import Report

F = TypeVar("F", bound=Callable[..., Any])
#: What the bar says meanwhile.
DOING = {"repair": "mending", "rebuild": "rebuilding", "compact": "compacting", "erase": "erasing"}
#: So many findings of one rule in one file are shown to people; --json shows all.
SHOWN = 20


def arguments(function: F) -> F:
    """SRC, DST and what every such verb takes."""
    for decorate in (
        options.json_flag,
        engine.engine_by_size,
        click.option(
            "--force", is_flag=True, help="Replace DST if it is there; it stays as it is unless all goes well."
        ),
        click.option("--option", "own", multiple=True, metavar="NAME=VALUE", help="What only some systems understand."),
        click.argument("target", metavar="DST"),
        click.argument("source", type=options.PATH, metavar="SRC"),
    ):
        function = decorate(function)
    return function


def told(own: tuple[str, ...], **given: str | None) -> dict[str, str]:
    """The options of `--option` and of the verb itself. OptionError for one without a value."""
    pairs = [text.partition("=") for text in own]
    if any(not mark for _, mark, _ in pairs):
        raise OptionError(f"--option {' '.join(own)}: NAME=VALUE expected")
    chosen = {_plain(name): value for name, _, value in pairs}
    return chosen | {name: value for name, value in given.items() if value is not None}


def _plain(name: str) -> str:
    """The name of an option as families know it: `delete.retention.ms` is `delete_retention_ms`."""
    return name.replace(".", "_").replace("-", "_")


def run(
    ctx: click.Context,
    verb: str,
    source: str,
    target: str,
    chosen: Mapping[str, str],
    given: dict[str, Any],
    *,
    dry_run: bool = False,
) -> None:
    """Do a verb's work with the families that have it and files at `source`; tell what came of it."""
    from rawlog import registry
    from rawlog.core.tables import RECORDS
    from rawlog.engines.local import cores
    from rawlog.io.storage import is_remote, local_path
    from rawlog.jobs.mend import Mend
    from rawlog.jobs.rewrite import Rewriting
    from rawlog.reading.names import check_names
    from rawlog.reading.select import Selection
    from rawlog.reading.tree import open_tree

    tree = open_tree(source)
    if "topic" in chosen:
        asked = Selection(topics=tuple(chosen["topic"].split(",")))
        check_names(tree, RECORDS, asked, lambda text: say(text, "note"))
    engine.choose(given, sum(file.size for file in tree))
    if given["engine"] == "spark" and not is_remote(source):  # tasks know no working directory but their own
        tree = open_tree(os.path.abspath(local_path(source)))
    at_once = given["threads"] or cores()
    systems = {file.system for file in tree}
    if any(verb in family.rewrites for family in registry.families() if family.name in systems):
        with Rewriting(verb, target, chosen, overwrite=given["force"], dry_run=dry_run, at_once=at_once) as rewriting:
            show_report(ctx, engine.run(given, DOING[verb], rewriting, tree), as_json=given["as_json"])
    with Mend(verb, target, chosen, overwrite=given["force"], dry_run=dry_run, at_once=at_once) as job:
        outcome = engine.run(given, DOING[verb], job, tree)
    account = outcome.account
    if given["as_json"]:
        left_out: dict[str, Any] = {"left_out": list(outcome.left_out), "is_whole": False} if outcome.left_out else {}
        left_out |= {"not_loaded": list(outcome.not_loaded)} if outcome.not_loaded else {}
        if outcome.remaining:
            left_out |= {"remaining": [one.as_row() for one in outcome.remaining], "is_whole": False}
        output.json_line(account.as_json() | left_out | ({"dry_run": True} if dry_run else {}))
    else:
        for text in account.lines():
            output.line(printable(text))
        for path in outcome.left_out:
            output.line(f"{printable(path)}: left out: its name is not one that the system reads")
        for path in outcome.not_loaded:
            output.line(f"{printable(path)}: left out: the system would not load it")
        _show_remaining(outcome.remaining)
        done = f"{verb}: nothing written to {printable(target)}" if dry_run else f"{verb}: {printable(target)}"
        problems = []
        if not account.is_whole or outcome.left_out:
            problems.append("something would be lost or changed" if dry_run else "something was lost or changed")
        if outcome.remaining:
            problems.append("findings would remain" if dry_run else "findings remain")
        output.line(done + (f"; {' and '.join(problems)}, see above" if problems else ""))
    output.flush()
    ctx.exit(DONE if outcome.is_whole else FOUND)


def show_report(ctx: click.Context, report: Report, *, as_json: bool) -> None:
    """Print what a verb did, and end with the exit code that says whether anything was lost."""
    if as_json:
        output.json_line(report.as_json())
    else:
        for text in report.lines():
            output.line(text)
        where = printable(report.target)
        done = f"{report.verb}: nothing written to {where}" if report.is_dry_run else f"{report.verb}: {where}"
        problems = []
        if any(one.is_loss for one in report.all_entries()) or report.left_out:
            problems.append(
                "something would be lost or changed" if report.is_dry_run else "something was lost or changed"
            )
        if report.remaining:
            problems.append("findings would remain" if report.is_dry_run else "findings remain")
        output.line(done + (f"; {' and '.join(problems)}, see above" if problems else ""))
    output.flush()
    ctx.exit(DONE if report.is_whole else FOUND)


def _show_remaining(findings: Sequence[Finding]) -> None:
    """What is still wrong with the result, each with its place and code."""
    shown: dict[tuple[str, str | None], int] = {}
    for one in findings:
        key = (one.code, one.path)
        shown[key] = shown.get(key, 0) + 1
        if shown[key] > SHOWN:
            continue
        where = [printable(one.path or "the files together")]
        where += [] if one.offset is None else [f"offset {one.offset:,}"]
        where += [] if one.position is None else [f"byte {one.position:,}"]
        output.line(f"remains {', '.join(where)}: {printable(one.message)}  [{one.code}]")
    for (code, path), count in shown.items():
        if count > SHOWN:
            output.line(f"remains {printable(path or 'the files together')}: {count - SHOWN:,} more of {code}")
