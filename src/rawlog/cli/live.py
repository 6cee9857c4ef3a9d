"""What the verbs share that talk to live brokers: options of the connection, a clean stop, and the printing of their Report."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from rawlog.cli import options
from rawlog.cli.logs import INTERRUPTED, Bar, say
from rawlog.cli.output import show as show_report
from rawlog.model.text import printable

if TYPE_CHECKING:
    from rawlog.model.report import Report

F = TypeVar("F", bound=Callable[..., Any])
NAMES = ("brokers", "config", "profile", "setting", "client")


def connection(function: F) -> F:
    """How to reach the cluster."""
    for decorate in (
        click.option("-X", "setting", multiple=True, metavar="NAME=VALUE", help="A single setting; never a secret."),
        click.option(
            "--client",
            type=click.Choice(["own", "librdkafka"]),
            help="librdkafka: through confluent-kafka, slower.  [default: own, librdkafka for Kerberos]",
        ),
        click.option("--profile", metavar="NAME", help="The settings in ~/.config/rawlog/profiles/NAME.properties."),
        click.option(
            "-F",
            "--config",
            type=options.PATH,
            metavar="FILE",
            help="librdkafka or Java client properties: TLS, SASL.  [default: $RAWLOG_CLIENT_CONFIG]",
        ),
        click.option(
            "-b",
            "--brokers",
            multiple=True,
            metavar="HOST:PORT",
            help="Brokers to ask first.  [default: $RAWLOG_BOOTSTRAP]",
        ),
    ):
        function = decorate(function)
    return function


@contextmanager
def running(given: dict[str, Any], what: str, quiet: bool) -> Iterator[dict[str, Any]]:
    """Take the options of the connection out of `given`, as keywords. Ctrl-C and SIGTERM end the verb in good order, a second one at
    once.
    """
    found = {name: given.pop(name) for name in NAMES}
    found["brokers"] = ",".join(found["brokers"]) or None
    found["setting"] = options.pairs(found["setting"], "-X")
    stop = threading.Event()
    with Bar(what) as bar, _stopping(stop):
        bar.active = bar.active and not quiet
        yield {**found, "stop": stop, "progress": bar, "note": lambda text: say(text, "note")}


@contextmanager
def _stopping(stop: threading.Event) -> Iterator[None]:
    def end(number: int, _: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show(report: Report, *, as_json: bool) -> int:
    """Print what a verb did, a summary line at the end; the exit code."""
    verb = f"{report.verb}: {printable(report.source)} to {printable(report.target)}"
    code = show_report(report, as_json=as_json, closing=f"{verb}: nothing was sent" if report.is_dry_run else verb)
    return INTERRUPTED if report.facts.get("interrupted") and "error" not in report.facts else code
