"""`rawlog erase`: a copy without chosen records or blobs."""

from __future__ import annotations

from typing import Any

import click

from rawlog.cli import options, output
from rawlog.cli import options as engine


@click.command(
    epilog=options.examples(
        "rawlog erase /var/kafka-logs out/ --key customer-17",
        "rawlog erase /var/kafka-logs out/ --find alice@example.com --dry-run",
        "rawlog erase rocketmq-store/ out/ --where \"value.user = 'alice'\" --certificate alice.json",
        "rawlog erase /var/kafka-logs out/ --topic orders --decode value=auto --where \"value.user = 'alice'\"",
        "rawlog erase /data/ambry/9 out/ --blob AAYIAQSSAAgAAQAAAAAAAAAJ",
        more="Exit codes: 0 done; 1 something of it is still there, records were lost, or files left out; 2 wrong usage, "
        "or an id that does not exist; "
        "3 cannot be read or written. A key that no record has is noted.",
    )
)
@click.argument("source", nargs=-1, required=True, type=options.PATH, metavar="SRC...")
@click.argument("target", type=options.PATH, metavar="DST")
@click.option("--key", multiple=True, metavar="TEXT", help="Records with this key; may be given again.")
@click.option("--keys", type=click.Path(), metavar="FILE", help="A file with such keys, one per line.")
@click.option("--id", multiple=True, metavar="ID", help="A message of RocketMQ or a blob of Ambry; may be given again.")
@click.option("--blob", multiple=True, metavar="ID", help="The same as --id.")
@click.option("--find", metavar="TEXT", help="Records that contain this text in key, value or headers.")
@click.option("--where", metavar="EXPR", help="Records for which an SQL expression over the columns is true.")
@options.decode
@click.option("--topic", multiple=True, metavar="GLOB", help="Only records of these topics; may be given again.")
@click.option("--partition", multiple=True, type=options.Partitions(), metavar="N", help="Only of these partitions.")
@click.option("--from-offset", type=int, metavar="N", help="Only from this offset on.")
@click.option("--to-offset", type=int, metavar="N", help="Only up to this offset, which is left out.")
@click.option("--since", metavar="TIME", help="Only from a time on: ISO 8601, epoch milliseconds, or -2h.")
@click.option("--until", metavar="TIME", help="Only up to a time, which is left out.")
@click.option(
    "--certificate",
    type=options.PATH,
    metavar="FILE",
    help="Where the certificate goes, as JSON; its text for people is next to it.  [default: DST.certificate.json]",
)
@click.option("--dry-run", is_flag=True, help="Only report what would be removed, and write nothing.")
@click.option("--force", is_flag=True, help="Replace DST and the certificate if they exist.")
@options.limits
@engine.engine_by_size
@options.json_flag
@click.pass_context
def command(ctx: click.Context, /, source: tuple[str, ...], target: str, as_json: bool, **given: Any) -> None:
    """Copy SRC to DST without chosen records or blobs, and certify it. SRC is never changed.

    Several ways to choose records are combined: a record goes if all of them choose it. `--topic` alone chooses all records of a topic.
    Several SRC are parts of one whole: a log directory and its remote storage, disks of a broker, partitions of Ambry.

    Kafka logs: all other records keep their offsets, times, producers and transactions, as after Kafka's own log cleaner, and indexes
    are rebuilt. RocketMQ: a message becomes an empty one of the same size; its copies that were retried, delayed, dead or prepared go
    with it; queues, tags and the key index are rebuilt. kafka-replay: entries are left out. Ambry: the content of a blob is overwritten
    with zeros, as Ambry's own hard delete does, and the blob is deleted.

    The certificate has what was asked, every record that was removed and a hash of it, hashes over all that was kept, and those of
    all files of SRC and DST. `rawlog verify DST --certificate FILE` checks it.
    """
    from rawlog.cli.output import Notes
    from rawlog.verbs import functions

    given |= {
        "topic": given["topic"] or None,
        "decode": given["decode"] or None,
        "partition": options.numbers(given["partition"]),
    }
    with engine.running(given, "erasing") as running:
        done = functions.erase(source, target, note=Notes(), **given, **running)
    ctx.exit(output.show(done, as_json=as_json))
