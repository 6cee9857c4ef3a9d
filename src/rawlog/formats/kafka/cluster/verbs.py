"""The verbs that only KRaft metadata has."""

from __future__ import annotations

from rawlog.model.format import Deferred
from rawlog.model.verb import Kind, Parameter, Verb

CLUSTER = Verb(
    group="ask",
    summary="The cluster as its KRaft metadata log describes it.",
    help="""Show the cluster whose metadata log is at or below DIR: brokers, topics, offline and under-replicated partitions, settings.

The newest usable snapshot and the log are read as a controller reads them. Partitions on disk are compared with those that the cluster
knows.""",
    examples=(
        "rawlog cluster /var/kafka-logs --topic 'orders*'",
        "rawlog cluster /var/kafka-logs --diff 2024-09-11T09:00:00Z..2024-09-11T10:00:00Z",
    ),
    exit_codes="0 shown; 1 damage was found, or --diff found differences; 2 wrong usage; 3 nothing to read.",
    paths="DIR",
    parameters=(
        Parameter("at_offset", "As it was after the record at this offset.", Kind.NUMBER, metavar="N"),
        Parameter("at_time", "As it was at a time: ISO 8601, epoch milliseconds, or -2h.", Kind.TIME, metavar="TIME"),
        Parameter("log", "What happened, one sentence for each record.", Kind.FLAG),
        Parameter("diff", "What changed between two offsets or times.", metavar="A..B"),
        Parameter(
            "topic", "Only these topics, with their partitions; may be given again.", is_repeated=True, metavar="GLOB"
        ),
        Parameter("show_secrets", "Show salts, keys and passwords instead of ********.", Kind.FLAG),
        Parameter(
            "errors",
            "At damage: end with exit code 1; stop reading the file; or continue after it.",
            Kind.CHOICE,
            "raise",
            ("raise", "stop", "skip"),
        ),
    ),
    run=Deferred("rawlog.formats.kafka.cluster.view", "describe"),
)
