"""`rawlog extract`: blobs as files."""

from __future__ import annotations

import click

from rawlog.cli import options, output
from rawlog.cli.errors import DONE, FOUND, say
from rawlog.core.text import counted, printable


@click.command(
    epilog="Exit codes: 0 all blobs are whole; 1 some are not, as the manifest says; 3 cannot be read or written."
)
@click.argument("paths", nargs=-1, required=True, type=options.PATH, metavar="STORE...")
@click.option("--to", "target", required=True, metavar="DIR", help="A directory that does not exist yet, or is empty.")
@click.option("--blob", "blobs", multiple=True, metavar="ID", help="Only this blob; may be given again.")
@click.option(
    "--names", type=click.Choice(["id", "filename"]), default="id", show_default=True, help="What files are named by."
)
@click.option(
    "--all", "everything", is_flag=True, help="Deleted and expired blobs too, as far as their content is there."
)
@click.option("--now", metavar="TIME", help="When to ask: ISO 8601 or milliseconds; decides what has expired.")
@options.json_flag
@click.pass_context
def command(
    ctx: click.Context,
    paths: tuple[str, ...],
    target: str,
    blobs: tuple[str, ...],
    names: str,
    everything: bool,
    now: str | None,
    as_json: bool,
) -> None:
    """Write the blobs of Ambry STOREs as files, with a manifest.

    Large blobs are joined from their chunks, which may lie in any of the STOREs given. Compressed content is decompressed; encrypted
    content is left as it is, and the manifest says so.
    """
    from rawlog.formats.ambry.store.extract import extract
    from rawlog.io.output import Folder, new_directory
    from rawlog.reading.tree import open_tree

    given = {"names": names, "state": "all" if everything else "live"}
    if blobs:
        given["blobs"] = ",".join(blobs)
    if now is not None:
        given["now"] = now
    tree = open_tree(list(paths))
    files = [file for file in tree.files if file.system == "ambry"]
    with new_directory(target, sources=tree.sources) as made:
        report = extract(files, Folder(made, named=target), given)
    for entry in report.entries:
        say(entry.reason)
    written, incomplete = report.counts["blobs"], report.counts["incomplete"]
    if as_json:
        output.json_line({"blobs": written, "incomplete": incomplete, "target": target})
    else:
        output.line(f"{counted(written, 'blob')} in {printable(target)}; {counted(incomplete, 'problem')}")
    output.flush()
    ctx.exit(FOUND if incomplete else DONE)
