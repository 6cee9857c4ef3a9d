"""`rawlog rescue`: the disks of a dead cluster in, a directory that a broker starts on out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import (
    options,
    output,
)
from rawlog.cli import (
    options as engine,
)
from rawlog.cli import (
    output as report,
)
from rawlog.model.recovery import INCLUDED
from rawlog.model.text import offset_range, plain_time, printable

if TYPE_CHECKING:
    from rawlog.model.report import Report

Unit = Mapping[str, Any]


@click.command(
    epilog=options.examples(
        "rawlog rescue /mnt/disk1 /mnt/disk2 /mnt/disk3 --plan",
        "rawlog rescue /mnt/disk* --to /restored",
        "rawlog rescue /mnt/disk* --to /restored --brokers 3 --resume",
        more="Exit codes: 0 nothing is lost; 1 something is lost, corrected, undecided or left out; 2 wrong usage; 3 cannot be read or "
        "written.",
    )
)
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="DIR...")
@click.option("--to", "to", type=options.PATH, metavar="DST", help="The directory to write; it must not exist yet.")
@click.option("--plan", is_flag=True, help="Only report what would be taken from where, and what is lost.")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option(
    "--include",
    metavar="STATE,...",
    help=f"Use directories too that a broker does not load: {', '.join(INCLUDED)} (deleted topics).",
)
@click.option("--exclude-deleted", is_flag=True, help="Leave out topics that are marked as deleted on other disks.")
@click.option(
    "--brokers", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Write N data directories."
)
@options.new_cluster
@click.option("--resume", is_flag=True, help="Go on with what a run has finished that was killed.")
@click.option("--option", "own", multiple=True, metavar="NAME=VALUE", help="What only some systems understand.")
@click.option("--force", is_flag=True, help="Replace DST if it exists; it is replaced only if all goes well.")
@options.html
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    /,
    paths: tuple[str, ...],
    own: tuple[str, ...],
    include: str | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Put the best union of all replicas on the disks DIR... of one cluster into DST, a directory that a broker starts on.

    Each DIR is a log directory of a broker, or has several of them below it. Any of them may be missing or damaged. For each partition the
    replica decides that led when the cluster died; what is damaged there is taken from another replica of the same history. A log that
    contradicts it is kept, readable, in DST.divergent. Topic ids, offsets, settings and committed offsets of groups stay. Everything that
    is lost is listed, with offsets and times, and so is what cannot be known. No DIR is ever changed.
    """
    from rawlog.verbs import functions

    given["include"] = tuple(part.strip() for part in (include or "").split(",") if part.strip())
    with engine.running(given, "rescuing") as running:
        done = functions.rescue(paths, option=options.pairs(own), **given, **running)
    if not as_json:
        show_plan(done)
    ctx.exit(report.show(done, as_json=as_json))


def show_plan(done: Report) -> None:
    """The decisions as tables: partitions, and the replicas that were found."""
    units: Sequence[Unit] = done.facts.get("plan", ())
    table(
        ("partition", "result", "lost", "undecided", "divergent", "decided by"),
        [
            (
                unit["name"],
                unit["action"] if unit["action"] != "rescue" else offset_range(unit["start"], unit["end"]),
                spans(unit["lost"]),
                spans(unit["undecided"]),
                spans(unit["divergent"]),
                unit["reason"],
            )
            for unit in units
        ],
    )
    output.line()
    table(
        ("partition", "disk", "state", "offsets", "leader epochs", "damage", "use"),
        [
            (
                unit["name"] if not number else "",
                copy["disk"],
                copy["state"],
                offset_range(copy["start"], copy["end"]),
                copy["lineage"],
                spans(copy["damage"]),
                copy["use"],
            )
            for unit in units
            for number, copy in enumerate(unit["copies"])
        ],
    )
    lost = list(losses(units))
    if lost:
        output.line()
        output.line(output.style("Lost", bold=True))
        for text in lost:
            output.line(f"  {text}")
    output.line()


def losses(units: Sequence[Unit]) -> Iterator[str]:
    """Everything that is lost, one per line."""
    for unit in units:
        for one in unit["lost"]:
            times = [f"after {plain_time(one['since'] * 1000)}"] if one["since"] is not None else []
            times += [f"before {plain_time(one['until'] * 1000)}"] if one["until"] is not None else []
            when = f", written {' and '.join(times)}" if times else ""
            yield printable(f"{unit['name']}: {spans([one])}{when}: {one['reason']}")


def spans(found: Sequence[Mapping[str, Any]]) -> str:
    """Ranges of offsets in a cell."""
    texts = [
        f"offsets from {one['start']:,} on" if one["stop"] is None else offset_range(one["start"], one["stop"])
        for one in found
    ]
    return ", ".join(texts[:3]) + (f", {len(texts) - 3:,} more" if len(texts) > 3 else "")


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table fitted to the terminal, without columns that have nothing in them."""
    import pyarrow as pa

    from rawlog.cli.grid import GridPrinter

    kept = [index for index in range(len(names)) if any(row[index] for row in rows)]
    if not kept:
        return
    columns = [pa.array([row[index] for row in rows], pa.string()) for index in kept]
    with GridPrinter(in_order=True) as printer:
        batch = pa.RecordBatch.from_arrays(columns, names=[names[index] for index in kept])
        printer.begin(batch.schema)
        printer.write(batch)
