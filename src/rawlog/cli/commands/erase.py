"""`rawlog erase`: a copy without the content of chosen blobs."""

from __future__ import annotations

import click

from rawlog.cli import options, output
from rawlog.cli.errors import DONE
from rawlog.text import printable


@click.command(epilog="Exit codes: 0 done; 2 a blob that is not there; 3 cannot be read or written.")
@click.argument("source", type=options.PATH, metavar="SRC")
@click.argument("target", metavar="DST")
@click.option(
    "--blob", "blobs", multiple=True, required=True, metavar="ID", help="A blob to erase; may be given again."
)
@options.json_flag
@click.pass_context
def command(ctx: click.Context, source: str, target: str, blobs: tuple[str, ...], as_json: bool) -> None:
    """Copy the Ambry store SRC to DST with the content of chosen blobs zeroed in place, as Ambry's own hard delete does.

    SRC is never touched. Sizes, positions, index and checksums of the copy are right.
    """
    from rawlog.formats.ambry.erase import erase_blobs
    from rawlog.tree import open_tree

    files = [file for file in open_tree(source).files if file.system == "ambry"]
    report = erase_blobs(files, target, blobs)
    if as_json:
        output.json_line({"erased": report.messages, "files": report.files, "target": target})
    else:
        for note in report.notes:
            output.line(printable(note))
        output.line(f"{report.messages:,} blobs erased in {printable(target)}")
    output.flush()
    ctx.exit(DONE)
