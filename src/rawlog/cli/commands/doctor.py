"""`rawlog doctor`: what works in this installation, what is missing, and how to get it."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from rawlog.cli import output
from rawlog.cli.options import examples, json_flag

COLOURS = {"ok": "green", "missing": "yellow", "error": "red"}


@click.command(epilog=examples("rawlog doctor", "rawlog doctor --json"))
@json_flag
def command(as_json: bool) -> None:
    """Check this installation: versions, kernels, cache, packages, extras, Java; what is missing, and how to get it.

    Exit code 1 if something that every verb needs is missing; extras that are not installed are not an error.
    """
    from rawlog.model.text import printable
    from rawlog.verbs.doctor import doctor

    found = doctor()
    for one in found:
        if as_json:
            output.json_line(asdict(one))
            continue
        state = output.style(one.state.ljust(7), fg=COLOURS[one.state])
        output.line(f"{state}  {one.check.ljust(14)}  {printable(one.found)}")
        if one.advice:
            output.line(f"{'':25}{printable(one.advice)}")
    output.flush()
    if any(one.state == "error" for one in found):
        sys.exit(1)
