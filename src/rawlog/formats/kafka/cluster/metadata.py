"""The records of metadata logs and snapshots as rows: framed records and control records as JSON; and the election state.

Batches are Kafka's own; here is what their records say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from rawlog.formats.kafka.internal.codec import Message, bytes_text
from rawlog.formats.kafka.internal.messages import (
    MASK,
    SECRETS,
    control_types,
    decode_control,
    decode_framed,
    frame_head,
    framed_types,
    is_secret_config,
    type_name,
)
from rawlog.formats.kafka.internal.topics import as_batch, read_records
from rawlog.formats.kafka.log import segment
from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.formats.kafka.log.segment import explain, fault, may_hold_secret, resync, scan, shows_secrets
from rawlog.formats.kafka.paths import LOG_FORMAT
from rawlog.formats.kafka.tables import KAFKA_RECORDS, METADATA
from rawlog.model.errors import DataError, LimitError
from rawlog.model.finding import Rule
from rawlog.model.format import File, Inspection, Spans, Want
from rawlog.model.frames import Frames

if TYPE_CHECKING:
    from rawlog.formats.kafka.cluster.metadata_log import ContentsFold

__all__ = ["LAYOUTS", "decode", "explain", "fault", "resync", "rules", "scan", "spans", "summary"]

LAYOUTS = (BATCH,)

# ----------------------------------------------------------------------------------------------------------------------
# What a cluster's metadata is named by: directories, levels, versions by level. What single numbers mean is Kafka's `meanings`.


METADATA_VERSION, KRAFT_VERSION = "metadata.version", "kraft.version"

MIGRATING, UNASSIGNED, LOST = bytes(16), bytes(15) + b"\x01", bytes(15) + b"\x02"
DIRECTORIES = {MIGRATING: "MIGRATING", UNASSIGNED: "UNASSIGNED", LOST: "LOST"}
"""Directory ids that name no directory."""
NO_LEADER, SAME_LEADER = -1, -2


def mask_secrets(schema: str, shown: Message) -> Message:
    """A record's JSON without its secrets."""
    hidden = [name for name in SECRETS.get(schema, ()) if name in shown]
    if schema == "ConfigRecord" and is_secret_config(str(shown.get("name"))) and shown.get("value") is not None:
        hidden.append("value")
    return {**shown, **dict.fromkeys(hidden, MASK)} if hidden else shown


def record_version(type: str, level: int) -> int:
    """The version of a record that a controller writes at a level of metadata.version."""
    if type == "RegisterBrokerRecord":
        return 4 if level >= 30 else 3 if level >= 17 else 2 if level >= 8 else 1 if level >= 7 else 0
    if type in ("PartitionRecord", "PartitionChangeRecord"):
        return 2 if level >= 23 else 1 if level >= 17 else 0
    return 0


LEAST_LEVEL: dict[tuple[str, int], int] = {
    ("RegisterBrokerRecord", 1): 7, ("RegisterBrokerRecord", 2): 8, ("RegisterBrokerRecord", 3): 17,
    ("RegisterBrokerRecord", 4): 30, ("PartitionRecord", 1): 17, ("PartitionRecord", 2): 23,
    ("PartitionChangeRecord", 1): 17, ("PartitionChangeRecord", 2): 23, ("BrokerRegistrationChangeRecord", 0): 6,
    ("BrokerRegistrationChangeRecord", 1): 7, ("BrokerRegistrationChangeRecord", 2): 17,
    ("BrokerRegistrationChangeRecord", 3): 30, ("NoOpRecord", 0): 5, ("UserScramCredentialRecord", 0): 11,
    ("RemoveUserScramCredentialRecord", 0): 11, ("BeginTransactionRecord", 0): 13, ("EndTransactionRecord", 0): 13,
    ("AbortTransactionRecord", 0): 13, ("DelegationTokenRecord", 0): 14, ("RemoveDelegationTokenRecord", 0): 14,
    ("RegisterControllerRecord", 0): 15, ("ZkMigrationStateRecord", 0): 8, ("ClearElrRecord", 0): 23,
    ("UnregisterControllerRecord", 0): 33,
}  # fmt: skip
"""The metadata.version from which on a record of that version may be written; others always."""


COLUMNS = ("value", "offset", "timestamp", "leader_epoch", "is_control", "control_type", "batch_position")


def option(options: Mapping[str, str], name: str) -> str | None:
    """An option by its name, however it is written: atOffset, atoffset, at_offset."""
    wanted = name.lower()
    for key, value in options.items():
        if key.replace("_", "").replace("-", "").lower() == wanted:
            return str(value)
    return None


def spans(frames: Frames, file: File) -> Spans:
    """What the batches of a snapshot cover: times. Their offsets mean nothing outside the file."""
    log_spans = segment.spans(frames, file)
    return Spans(None, None, log_spans.min_time, log_spans.max_time, None, min_is_exact=False)


def decode(frames: Frames, want: Want) -> Iterator[pa.RecordBatch]:
    """The records of a snapshot's batches as rows of `kraft.metadata`."""
    inner = Want(KAFKA_RECORDS.subset(COLUMNS), want.file, want.limit)
    for batch in segment.decode_stored(frames, inner):
        rows = list(rows_of(want.file, batch, show_secrets=shows_secrets(want.options)))
        if rows:
            yield as_batch(METADATA, rows).select(list(want.table.names))


def rules() -> Sequence[Rule[Inspection]]:
    """Checks over a snapshot: those of its batches, and what its records say."""
    from rawlog.formats.kafka.cluster.rules import checkpoint_rules

    return checkpoint_rules()


def metadata(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """Every record of the logs and snapshots, file by file, as rows of `kraft.metadata`."""
    show = shows_secrets(options)
    for file in files:
        file.check_readable()
        for _, batch in read_records([file], COLUMNS, options.get("errors", "raise"), format=str(file.format)):
            rows = list(rows_of(file, batch, show_secrets=show))
            if rows:
                yield as_batch(METADATA, rows)


def rows_of(file: File, batch: pa.RecordBatch, *, show_secrets: bool) -> Iterator[dict[str, Any]]:
    """Rows of `kraft.metadata` from COLUMNS of `kafka.records`.

    What cannot be decoded is shown raw; but of a file that may be any log, only what is metadata is shown at all.
    """
    certain = file.format != LOG_FORMAT or file.place.topic is not None
    times = batch.column("timestamp").cast(pa.int64()).to_pylist()
    names = [name for name in COLUMNS if name != "timestamp"]
    for time, value, offset, epoch, control, kind, position in zip(
        times, *(batch.column(name).to_pylist() for name in names), strict=True
    ):
        try:
            row = control_row(kind, value or b"") if control else record_row(value, show_secrets)
        except LimitError as error:
            error.message, error.position = f"offset {offset}: {error.message}", position
            raise error.at(path=file.path) from None
        except DataError:
            if not certain:
                continue
            row = raw_row(value, control, kind, show_secrets)
        yield {"offset": offset, "epoch": epoch, "timestamp": time, "path": file.path, "is_control": control, **row}


def record_row(value: bytes | None, show_secrets: bool) -> dict[str, Any]:
    """Type, version and JSON of a metadata record. DataError if it cannot be decoded."""
    framed = decode_framed(value or b"")
    fields = framed.to_json()
    if not show_secrets:
        fields = mask_secrets(framed.codec.schema.name, fields)
    return {"type": framed.name, "version": framed.version, "value": json.dumps(fields, ensure_ascii=False)}


def control_row(kind: int | None, value: bytes) -> dict[str, Any]:
    """Type, version and JSON of a control record. DataError if it cannot be decoded."""
    name, codec, message = decode_control(-1 if kind is None else kind, value)
    return {"type": name, "version": codec.version, "value": json.dumps(codec.to_json(message), ensure_ascii=False)}


def raw_row(value: bytes | None, control: bool, kind: int | None, show_secrets: bool) -> dict[str, Any]:
    """What can be said of a record that cannot be decoded."""
    type: str | None = None
    version: int | None = None
    secret = False
    if control:
        type = control_types()[kind][0] if kind in control_types() else str(kind)
    else:
        try:
            number, version, _ = frame_head(value or b"")
            schema = framed_types().get(number)
            type = str(number) if schema is None else type_name(schema.name)
            secret = schema is not None and not show_secrets and may_hold_secret(schema.name, value or b"")
        except DataError:
            pass
    shown = None if value is None else json.dumps({"raw": MASK if secret else bytes_text(value)})
    return {"type": type, "version": version, "value": shown}


def summary(file: File, group: Sequence[File], start: int, stop: int | None) -> ContentsFold:
    """The pass over a snapshot, or over a split of it."""
    from rawlog.formats.kafka.cluster.metadata_log import ContentsFold

    return ContentsFold(file, group, start, stop)


# The election state -------------------------------------------------------------------------------------------------------
