"""`rawlog restore`: a data directory that a real broker starts on."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE, FOUND
from rawlog.core.errors import OptionError
from rawlog.core.text import printable


@click.command(
    epilog="Exit codes: 0 everything was restored; 1 something was lost or is damaged; 2 wrong usage; 3 cannot be read or written."
)
@click.argument("sources", nargs=-1, required=True, type=options.PATH, metavar="SRC...")
@click.argument("target", type=options.PATH, metavar="DST")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Give a topic another name; may be given again.")
@click.option("--until", metavar="TIME", help="As it was at a time: ISO 8601, epoch milliseconds, or -2h.")
@click.option(
    "--partitions-only", is_flag=True, help="Only partition directories, to add to the directory of an existing broker."
)
@click.option("--no-offsets", is_flag=True, help="Leave out the committed offsets of consumer groups.")
@click.option(
    "--keep-retention", is_flag=True, help="Keep retention settings, even if a broker then deletes old records."
)
@click.option(
    "--node-id",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="The node.id of the new broker.",
)
@click.option("--cluster-id", metavar="ID", help="The id of the new cluster.  [default: a random one]")
@click.option(
    "--metadata-version",
    metavar="RELEASE",
    help="Such as 3.9-IV0 or 21.  [default: that of the source; 3.9-IV0 if it has none]",
)
@options.errors
@click.option("--force", is_flag=True, help="Replace DST if it exists.")
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, sources: tuple[str, ...], target: str, as_json: bool, **given: Any) -> None:
    """Write a data directory that a single-node Kafka broker starts on with the topics of SRC in it.

    SRC is a broker's directory, a lake made by `ingest`, Parquet files, or anything that can be read as records. From a broker's
    directory every batch is copied as it is, with offsets, epochs and topic ids; settings, users and access rights come from its
    metadata log. Offsets of consumer groups are committed again. Retention by age is switched off; otherwise a broker would delete
    old records at once. With --until, transactions that were open at that time are aborted. SRC is never changed. Damage ends the
    restore with an error unless --errors skip is given.

    \b
    rawlog restore /var/kafka-logs /restored --until 2024-09-11T09:00:00Z
    rawlog restore lake /restored --topic 'orders*' --rename orders=orders-old
    """
    from rawlog.jobs.lake import is_lake
    from rawlog.jobs.restore import Asked, Restore
    from rawlog.reading.select import parse_time
    from rawlog.reading.tree import Tree, open_tree

    pairs = [text.partition("=") for text in given["rename"]]
    if any(not mark or not old or not new for old, mark, new in pairs):
        raise OptionError(f"--rename {' '.join(given['rename'])}: OLD=NEW expected")
    asked = Asked(
        topics=tuple(given["topic"]),
        rename={old: new for old, _, new in pairs},
        until=None if given["until"] is None else parse_time(given["until"]),
        errors=given["errors"],
        partitions_only=given["partitions_only"],
        keep_retention=given["keep_retention"],
        offsets=not given["no_offsets"],
        node=given["node_id"],
        cluster_id=given["cluster_id"],
        level=given["metadata_version"],
        overwrite=given["force"],
    )
    tree = Tree(sources, ()) if any(map(is_lake, sources)) else open_tree(list(sources))
    engine.choose(given, sum(file.size for file in tree))
    with Restore(target, asked) as job:
        report = engine.run(given, "restoring", job, tree)
    if as_json:
        output.json_line(report.as_json())
    else:
        for text in report.lines():
            output.line(text)
        output.line(f"restored: {printable(target)}" + ("" if report.is_whole else "; something was lost, see above"))
    output.flush()
    ctx.exit(DONE if report.is_whole else FOUND)
