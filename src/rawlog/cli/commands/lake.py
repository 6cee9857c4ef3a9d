"""`rawlog lake`: what a lake holds, and its maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine
from rawlog.model.text import counted, printable, size_text

if TYPE_CHECKING:
    from rawlog.model.report import Report


@click.command(
    epilog=options.examples(
        "rawlog lake lake",
        "rawlog lake lake --compact --expire-snapshots --remove-orphans",
        "rawlog lake lake --compact --sort-by topic,timestamp",
        "rawlog lake lake --remove-orphans --older-than 7d --dry-run",
    )
)
@click.argument("path", type=options.PATH, metavar="LAKE")
@click.option(
    "--expire-snapshots",
    is_flag=True,
    help="Remove snapshots that were replaced longer ago than --older-than, and the files that only they list.",
)
@click.option(
    "--remove-orphans", is_flag=True, help="Remove files that no snapshot names and that are older than --older-than."
)
@click.option("--compact", is_flag=True, help="Write the rows of small data files into few large ones.")
@click.option(
    "--target-size",
    type=click.IntRange(1 << 20),
    metavar="BYTES",
    help="About the size of the data files that --compact writes.  [default: 268435456]",
)
@click.option(
    "--sort-by",
    metavar="A,B",
    help="With --compact: sort tables by these columns from now on, whichever a table has, and write data files in another order again; "
    "`default` is the order of new tables.",
)
@click.option(
    "--older-than",
    default="24h",
    show_default=True,
    metavar="AGE",
    help="What was current within this time is kept for readers: 30m, 24h, 7d.",
)
@click.option("--dry-run", is_flag=True, help="Only report what would be done.")
@click.option(
    "--catalog",
    metavar="NAME",
    help="A catalog of PyIceberg's configuration, or a file NAME.db, instead of the lake's own.",
)
@engine.engine_by_size
@options.json_flag
def command(path: str, as_json: bool, **given: Any) -> None:
    """Show what a lake holds, or maintain it.

    Without options, its tables with their rows, data files, snapshots and sources. Maintenance is safe while others read and while
    `ingest` runs: what was current within --older-than stays, and so does what a run may be about to commit.
    """
    from rawlog.verbs import functions

    is_kept = given["expire_snapshots"] or given["remove_orphans"] or given["compact"]
    with engine.running(given, "compacting" if given["compact"] else "tidying") as running:
        done = functions.lake(path, **given, **(running if is_kept else {}))
    if as_json:
        for name, part in done.parts.items():
            more = {"dry_run": done.is_dry_run} if is_kept else {"changed": part.facts["changed"]}
            output.json_line({"table": name, **part.counts, **more})
    elif is_kept:
        _show_changes(done)
    else:
        _show(done)


def _show(held: Report) -> None:
    from rawlog.cli.grid import aligned

    rows = [["table", "rows", "files", "size", "snapshots", "sources", "changed"]]
    for name, one in held.parts.items():
        numbers = [f"{one.counts[key]:,}" for key in ("rows", "files", "snapshots", "sources")]
        size = size_text(one.counts["bytes"])
        rows.append([printable(name), *numbers[:2], size, *numbers[2:], one.facts["changed"] or ""])
    for text in aligned(rows, [False, True, True, True, True, True, False]):
        output.line(text)
    output.line()
    files = counted(held.total("files"), "data file")
    where = printable(held.source)
    output.line(f"{counted(len(held.parts), 'table')}, {size_text(held.total('bytes'))} in {files}: {where}")


def _show_changes(done: Report) -> None:
    is_changed = False
    for name, one in done.parts.items():
        counts, words = one.counts, []
        if counts["joined_files"]:
            words.append(f"{counts['joined_files']:,} small files into {counts['made_files']:,}")
        if counts["expired_snapshots"]:
            words.append(f"{counts['expired_snapshots']:,} snapshots expired")
        if counts["removed_files"]:
            words.append(f"{counted(counts['removed_files'], 'file')} removed ({size_text(counts['removed_bytes'])})")
        if words:
            is_changed = True
            output.line(f"{printable(name)}: {'; '.join(words)}")
    if not is_changed:
        output.line("nothing to do")
    elif done.is_dry_run:
        output.line("a dry run: nothing was changed")
