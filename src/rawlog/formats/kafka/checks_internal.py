"""What verification looks for in Kafka's internal topics: records that are none of theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rawlog.core.errors import DataError, UnsupportedError
from rawlog.core.findings import Few, Mark, Rule, Severity, rule
from rawlog.core.format import File
from rawlog.formats.kafka.internal import partitions, read_records
from rawlog.formats.kafka.messages import KEYED, decode_keyed

Files = Sequence[File]
COLUMNS = ("key", "value", "offset", "batch_position", "is_control")


@rule("kafka.log.internal-record", Severity.WARNING)
def internal_record(files: Files) -> Iterator[Mark]:
    """A record of `__consumer_offsets`, `__transaction_state` or `__share_group_state` cannot be decoded, and is in no table.

    If its type or version is not known, a newer broker wrote it. Else somebody produced to the topic by hand: a coordinator that
    loads the partition stops or skips there.
    """
    segments = [
        one
        for one in files
        if one.format == "kafka.log" and one.place.state is None and one.place.topic in KEYED and one.problem is None
    ]
    for group in partitions(segments):
        few = Few()
        for file, batch in read_records(group, COLUMNS, "skip"):
            columns = [batch.column(name).to_pylist() for name in COLUMNS]
            for key, value, offset, position, control in zip(*columns, strict=True):
                if control:
                    continue
                try:
                    decode_keyed(str(file.place.topic), key, value)
                except DataError as error:
                    severity = Severity.INFO if isinstance(error, UnsupportedError) else None
                    few.append(Mark(error.message, position, offset=offset, path=file.path, severity=severity))
        yield from few


def rules() -> Sequence[Rule[Files]]:
    """The one there is."""
    return (internal_record,)
