"""`rawlog erase`: a copy without chosen records or blobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rawlog.cli import engine, mending, options
from rawlog.core.errors import OptionError

if TYPE_CHECKING:
    from rawlog.reading.tree import Tree


@click.command(epilog="Exit codes: 0 done; 2 wrong usage, or a blob that does not exist; 3 cannot be read or written.")
@click.argument("source", type=options.PATH, metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--blob", "blobs", multiple=True, metavar="ID", help="A blob of Ambry to erase; may be given again.")
@click.option(
    "--key", "drop_key", multiple=True, metavar="TEXT", help="A key whose Kafka records are erased; may be given again."
)
@click.option("--keys", "drop_keys", type=click.Path(), metavar="FILE", help="A file with such keys, one per line.")
@click.option(
    "--force",
    is_flag=True,
    help="Replace what exists at DST: Kafka partitions one by one, an Ambry store as a whole.",
)
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, source: str, target: str, as_json: bool, **given: Any) -> None:
    """Copy SRC to DST without chosen records or blobs. SRC is never changed.

    Kafka logs: the records with these keys are left out. All others keep their offsets, times, producers and transactions, as after
    Kafka's own log cleaner, and indexes are rebuilt. `rawlog convert --to kafka --where 'NOT …'` does the same with an expression.

    Ambry stores: the content of these blobs is overwritten with zeros, as Ambry's own hard delete does; sizes, positions, index and
    checksums of the copy are correct.

    \b
    rawlog erase /var/kafka-logs/customers-0 out/customers-0 --key customer-17
    """
    if bool(given["blobs"]) == bool(given["drop_key"] or given["drop_keys"]):
        raise OptionError("name what to erase: --blob for an Ambry store, or --key for Kafka logs")
    if given["blobs"]:
        chosen = {"blobs": ",".join(given["blobs"])}
        mending.run(ctx, "erase", source, target, chosen, {**given, "as_json": as_json})
    from rawlog.cli.commands.convert import dropped_keys, run
    from rawlog.core.format import MAX_DECOMPRESSED, MAX_HEADERS
    from rawlog.jobs.convert import outlet
    from rawlog.reading.tree import open_tree

    engine.check(given)
    every = {
        "topic": (), "partition": (), "from_offset": None, "to_offset": None, "since": None, "until": None, "key": None, "id": None,
        "where": None, "find": None, "start": (), "own": (), "isolation": "read_uncommitted", "errors": "raise",
        "max_decompressed": MAX_DECOMPRESSED, "max_headers": MAX_HEADERS, "as_format": None, "dry_run": False,
    }  # fmt: skip
    made = outlet(_sifted(open_tree(source)), target, overwrite=given["force"])
    ctx.exit(run((source,), made, dropped_keys(given), every | given, as_json=as_json))


def _sifted(tree: Tree) -> str:
    """The one system among the files whose logs can be copied without some records. UnknownFormatError if there is none."""
    from rawlog import registry
    from rawlog.core.errors import UnknownFormatError

    able = {name: format.family for name, format in registry.formats().items() if format.sift is not None}
    found = {able[file.format] for file in tree if file.format in able}
    if len(found) > 1:
        raise OptionError(f"files of {' and '.join(sorted(found))} are here; name the directory of one of them")
    if not found:
        raise UnknownFormatError(
            f"{', '.join(tree.roots)}: no records here can be erased by key; these systems can be: "
            f"{', '.join(registry.family(name).title for name in sorted(set(able.values())))}"
        )
    return found.pop()
