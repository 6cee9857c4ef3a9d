"""`rawlog verify`: findings and a verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE, FOUND, UNREADABLE
from rawlog.core.text import counted, printable

if TYPE_CHECKING:
    from rawlog.core.findings import Finding, Findings

COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}
#: So many findings of one rule in one file are shown to people; --json shows all.
SHOWN = 20
#: The rule whose findings are not about damage.
CANNOT_BE_READ = "rawlog.file.unreadable"
UNKNOWN = "rawlog.file.unknown"


@click.command(
    epilog="Exit codes: 0 no errors and no warnings; 1 errors or warnings; 3 something could not be read, or is of no known format.",
)
@click.argument("paths", nargs=-1, type=options.PATH, metavar="PATH...")
@click.option("--as", "as_format", metavar="FORMAT", help="Check every file as this format, whatever it looks like.")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules and what they mean, and check nothing.")
@click.option(
    "--rule",
    multiple=True,
    metavar="CODE",
    help="Only this rule, or all below a prefix such as kafka.log; may be given again.",
)
@click.option("--skip", multiple=True, metavar="CODE", help="All but this rule or prefix; may be given again.")
@click.option(
    "--against",
    type=options.PATH,
    metavar="OTHER",
    help="Also hold partitions and stores against their replicas at OTHER, which is not checked by itself.",
)
@options.limits
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    as_format: str | None,
    list_rules: bool,
    rule: tuple[str, ...],
    skip: tuple[str, ...],
    against: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Check every file at the PATHs, and files against one another. Damage is a finding; nothing is changed.

    \b
    rawlog verify kafka-logs/
    rawlog verify kafka-logs/ --against s3://replica/kafka-logs --json
    """
    from rawlog.reading.inspection import Chosen

    chosen = Chosen(rule, skip, given.pop("max_decompressed"), given.pop("max_headers"))
    if list_rules:
        _list(chosen, as_json)
        output.flush()
        ctx.exit(DONE)
    if not paths:
        raise click.UsageError("Missing argument 'PATH...'.", ctx)

    from rawlog.cli.reading import Reading
    from rawlog.jobs.verify import Verify

    reading = Reading(paths, as_format)
    _refuse_unknown(reading)
    other = None if against is None else Reading([against], as_format)
    if other is not None:
        other.refuse()
        reading.code = reading.code or other.code
    engine.choose(given, sum(file.size for file in reading.tree))
    job = Verify(chosen, None if other is None else other.tree)
    findings = engine.run(given, "verifying", job, reading.tree).findings
    if as_json:
        output.json_rows(finding.as_row() for finding in findings)
        output.json_line(findings.summary())
    else:
        _show(findings)
    output.flush()
    ctx.exit(_code(findings) or reading.code)


def _refuse_unknown(reading: Any) -> None:
    """A file that was named and is of no format, or a place with no known file at all, cannot be verified."""
    from rawlog.cli.errors import say
    from rawlog.core.errors import UnknownFormatError

    named = {root.rstrip("/") for root in reading.tree.roots}
    for file in reading.tree:
        if file.path.rstrip("/") in named and file.format is None and file.problem is None:
            say(
                f"{file.path}: {'an empty file' if file.size == 0 else 'not a file of any known format'}; --as FORMAT names one"
            )
            reading.code = UNREADABLE
    if not reading.code and not any(file.format or file.problem for file in reading.tree):
        raise UnknownFormatError(f"{', '.join(reading.tree.roots)}: no file of any known format here")


def _code(findings: Findings) -> int:
    serious = [item for item in findings if item.severity in ("error", "warning")]
    if any(item.code != CANNOT_BE_READ for item in serious):
        return FOUND
    return UNREADABLE if serious else DONE


def _show(findings: Findings) -> None:
    shown: dict[tuple[str, str | None], int] = {}
    path: str | None = ""
    unknown = 0
    for item in findings:
        if item.code == UNKNOWN:
            unknown += 1
            continue
        key = (item.code, item.path)
        shown[key] = shown.get(key, 0) + 1
        if shown[key] > SHOWN:
            continue
        if item.path != path:
            path = item.path
            output.line(output.style(printable(path or "the files together"), bold=True))
        output.line(_line(item))
    for (code, where), count in shown.items():
        if count > SHOWN:
            output.line(f"  … and {count - SHOWN:,} more of {code} in {printable(where or 'the files together')}")
    if unknown:
        output.line(f"{counted(unknown, 'file')} of no known format: not checked  [{UNKNOWN}]")
    colour = {"damaged": "red", "suspect": "yellow", "unknown": "yellow"}.get(findings.verdict, "green")
    summary = findings.summary()
    counts = ", ".join(counted(summary[f"{name}s"], name) for name in ("file", "frame", "error", "warning"))
    output.line(f"{output.style(findings.verdict, fg=colour, bold=True)}: {counts}")


def _line(item: Finding) -> str:
    place = "" if item.position is None else f"byte {item.position:,}: "
    if item.offset is not None:
        place = f"offset {item.offset:,}, {place}" if place else f"offset {item.offset:,}: "
    facts = [
        f"{name} {value}" for name, value in (("expected", item.expected), ("found", item.found)) if value is not None
    ]
    told = f" ({', '.join(facts)})" if facts else ""
    severity = output.style(f"{item.severity:<7}", fg=COLOURS[item.severity])
    return f"  {severity} {printable(place + item.message + told)}  [{item.code}]"


def _list(chosen: Any, as_json: bool) -> None:
    from rawlog.compare.replicas import all_rules

    for rule in all_rules():
        if not chosen.takes(rule.code):
            continue
        if as_json:
            output.json_line({"code": rule.code, "severity": rule.severity.value, "about": rule.about})
            continue
        severity = output.style(f"{rule.severity:<7}", fg=COLOURS[rule.severity])
        output.line(f"{severity} {output.style(rule.code, bold=True)}")
        for text in rule.about.splitlines():
            output.line(f"        {text}".rstrip())
