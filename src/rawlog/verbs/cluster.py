"""`cluster`: the cluster that a KRaft metadata log describes. A verb of Kafka's own, so it names Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from rawlog.model.errors import AccessError, OptionError
from rawlog.model.text import parse_time
from rawlog.model.verb import Item, Option, verb
from rawlog.reading.options import Errors, Paths, Time, texts
from rawlog.reading.tree import Tree, open_known
from rawlog.verbs.groups import Shown, check_errors
from rawlog.verbs.options import instead


@verb(
    group="ask",
    examples=(
        "rawlog cluster /var/kafka-logs --topic 'orders*'",
        "rawlog cluster /var/kafka-logs --diff 2024-09-11T09:00:00Z..2024-09-11T10:00:00Z",
    ),
    more="Exit codes: 0 shown; 1 damage was found, or --diff found differences; 2 wrong usage; 3 nothing to read.",
)
def cluster(
    paths: Annotated[Paths, "DIR"],
    *,
    at_offset: Annotated[
        int | None, Option("Show the state after the record at this offset.", least=0, metavar="N")
    ] = None,
    at_time: Annotated[
        Time | None, Option("Show the state at this time: ISO 8601, epoch milliseconds, or -2h.", metavar="TIME")
    ] = None,
    log: Annotated[bool, "Show what happened, one sentence for each record."] = False,
    diff: Annotated[str | None, Option("Show what changed between two offsets or times.", metavar="A..B")] = None,
    topic: Annotated[
        str | Sequence[str], Option("Only these topics, with their partitions; may be given again.", metavar="GLOB")
    ] = (),
    show_secrets: Annotated[bool, "Show salts, keys and passwords instead of ********."] = False,
    errors: Errors = "raise",
) -> Shown:
    """Show the cluster that a KRaft metadata log describes.

    It shows brokers, topics, offline and under-replicated partitions and settings of the cluster whose metadata log is at or below
    `paths`. The newest usable snapshot and the log are read as a controller reads them. Partitions on disk are compared with those that
    the cluster knows.

    Returns rows, each with its `table`. `at_offset` or `at_time` show it as it was; `log` gives what happened, record by record; `diff`
    "A..B" what changed between two offsets or times. AccessError if there is no metadata log; DataError at damage unless `errors` says
    otherwise.

    >>> import rawlog
    >>> topics = [row["topic"] for row in rawlog.cluster("samples/kafka") if row["table"] == "topics"]
    """
    check_errors(errors)
    if at_offset is not None and at_offset < 0:
        raise OptionError(f"at_offset {at_offset!r}: a whole number, 0 or more, expected")
    options = {
        "at_offset": at_offset,
        "at_time": None if at_time is None else parse_time(at_time),
        "log": log,
        "diff": diff,
        "topic": texts(topic),
        "show_secrets": show_secrets,
        "errors": errors,
    }
    left_out: list[str] = []
    tree = open_known(paths, note=left_out.append, without_unreadable=True)
    return Shown(_describe(tree, options), left_out)


def _describe(tree: Tree, options: Mapping[str, Any]) -> Iterator[Item]:
    from rawlog.formats.kafka.cluster.view import describe

    try:
        yield from describe(tree.files, tree.roots, options)
    except AccessError as error:
        raise instead(error, tree) from None
