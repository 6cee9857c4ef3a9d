"""`rawlog restore`: a data directory that a real broker starts on."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import engine, options, output
from rawlog.cli.errors import DONE, FOUND
from rawlog.core.errors import OptionError
from rawlog.core.text import printable


@click.command(
    epilog="Exit codes: 0 all is there; 1 something is lost or damaged; 2 wrong usage; 3 cannot be read or written."
)
@click.argument("sources", nargs=-1, required=True, type=options.PATH, metavar="SRC...")
@click.argument("target", type=options.PATH, metavar="DST")
@click.option("--topic", multiple=True, metavar="GLOB", help="Only these topics; may be given again.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="A topic under another name; may be given again.")
@click.option("--until", metavar="TIME", help="As it was at a time: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--partitions-only", is_flag=True, help="Only partition directories, to put into a broker that is there.")
@click.option("--no-offsets", is_flag=True, help="Leave out what consumer groups have committed.")
@click.option(
    "--keep-retention", is_flag=True, help="Keep retention settings, even if old records are deleted by them."
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
    help="As 3.9-IV0 or 21.  [default: the source's; 3.9-IV0 if it tells none]",
)
@options.errors
@click.option("--force", is_flag=True, help="Replace DST if it is there.")
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, sources: tuple[str, ...], target: str, as_json: bool, **given: Any) -> None:
    """Write a data directory that a single-node Kafka broker starts on with the topics of SRC in it.

    SRC is a broker's directory, a lake made by `ingest`, Parquet files, or anything that reads as records. Of a broker's directory
    every batch is carried over as it is, with offsets, epochs and topic ids; settings, users and access come from its metadata log.
    Offsets of consumer groups are committed anew. Retention by age is switched off, or a broker would delete old records at once.
    With --until, transactions that were open at that time are aborted. SRC is never touched; damage ends it unless --errors skip.

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
        level=_level(given["metadata_version"]),
        overwrite=given["force"],
    )
    tree = Tree(sources, ()) if any(map(is_lake, sources)) else open_tree(list(sources))
    engine.choose(given, sum(file.size for file in tree))
    with Restore(target, asked) as job:
        account = engine.run(given, "restoring", job, tree).account
    if as_json:
        output.json_line(account.as_json())
    else:
        for text in account.lines():
            output.line(printable(text))
        output.line(f"restored: {printable(target)}" + ("" if account.is_whole else "; something is lost, see above"))
    output.flush()
    ctx.exit(DONE if account.is_whole else FOUND)


def _level(text: str | None) -> int | None:
    """A level of metadata.version by its number, or by a release or its last level: 21, 3.9-IV0, 3.9."""
    from rawlog.formats.kafka.meanings import LEVELS, NEWEST_LEVEL

    if text is None:
        return None
    if text.isdecimal() and 4 <= int(text) <= NEWEST_LEVEL:
        return int(text)
    found = [level for level, name in enumerate(LEVELS) if name and (name == text or name.startswith(f"{text}-"))]
    if not found or max(found) < 4:
        raise OptionError(
            f"--metadata-version {text}: a release such as 3.9-IV0 or 4.3 expected, the newest known is {LEVELS[-1]}"
        )
    return max(found)
