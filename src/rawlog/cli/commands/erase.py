"""`rawlog erase`: a copy without chosen records or blobs."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE
from rawlog.core.errors import OptionError
from rawlog.core.text import counted, printable


@click.command(epilog="Exit codes: 0 done; 2 a blob that is not there; 3 cannot be read or written.")
@click.argument("source", type=options.PATH, metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--blob", "blobs", multiple=True, metavar="ID", help="A blob of Ambry to erase; may be given again.")
@click.option(
    "--key", "drop_key", multiple=True, metavar="TEXT", help="A key whose Kafka records are erased; may be given again."
)
@click.option("--keys", "drop_keys", type=click.Path(), metavar="FILE", help="Such keys, one a line of a file.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace what is at DST already: Kafka partitions one by one, an Ambry store as a whole.",
)
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, as_json: bool, **given: Any) -> None:
    """Copy SRC to DST without chosen records or blobs. SRC is never touched.

    Of Kafka logs, the records with these keys go; all others keep their offsets, times, producers and transactions, as after Kafka's
    own cleaner, and indexes are rebuilt. `rawlog convert --to kafka --where 'NOT …'` does the same by an expression.

    In an Ambry store the content of these blobs is zeroed in place, as Ambry's own hard delete does: sizes, positions, index and
    checksums of the copy are right.
    """
    if bool(given["blobs"]) == bool(given["drop_key"] or given["drop_keys"]):
        raise OptionError("name what to erase: --blob for an Ambry store, or --key for Kafka logs")
    if given["blobs"]:
        _erase_blobs(source, target, given, as_json=as_json)
        ctx.exit(DONE)
    from rawlog.cli.commands.convert import dropped_keys, run
    from rawlog.core.format import MAX_DECOMPRESSED, MAX_HEADERS
    from rawlog.jobs.convert import outlet

    engine.check(given)
    every = {
        "topic": (), "partition": (), "from_offset": None, "to_offset": None, "since": None, "until": None, "key": None, "id": None,
        "where": None, "find": None, "start": (), "own": (), "isolation": "read_uncommitted", "errors": "raise",
        "max_decompressed": MAX_DECOMPRESSED, "max_headers": MAX_HEADERS, "as_format": None, "dry_run": False,
    }  # fmt: skip
    made = outlet("kafka", target, overwrite=given["force"])
    ctx.exit(run((source,), made, dropped_keys(given), every | given, as_json=as_json))


def _erase_blobs(source: str, target: str, given: dict[str, Any], *, as_json: bool) -> None:
    from rawlog.engines import local
    from rawlog.jobs.rewrite import Rewriting
    from rawlog.reading.tree import open_tree

    with Rewriting("erase", target, {"blobs": ",".join(given["blobs"])}, overwrite=given["force"]) as job:
        report = local.run(job, open_tree(source))
    if as_json:
        output.json_line({"erased": report.counts["messages"], "files": report.facts["files"], "target": target})
    else:
        for text in report.lines():
            output.line(text)
        output.line(f"{counted(report.counts['messages'], 'blob')} erased in {printable(target)}")
    output.flush()
