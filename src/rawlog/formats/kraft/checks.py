"""What verification looks for in snapshots, each file alone. Batches are checked by the rules of Kafka's logs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rawlog.core.errors import DataError, LimitError, UnsupportedError
from rawlog.core.findings import Mark, Rule, Severity, rule
from rawlog.core.format import Inspection
from rawlog.core.frames import Frames
from rawlog.core.status import Status
from rawlog.formats.kafka import checks as kafka_checks
from rawlog.formats.kafka.control import control_type
from rawlog.formats.kafka.heads import heads
from rawlog.formats.kafka.layouts import MAGIC_V2, OUTLINE, Attributes, ControlType
from rawlog.formats.kafka.log import decode_bounded, only
from rawlog.formats.kafka.messages import decode_record, frame_head, framed_types
from rawlog.formats.kraft.names import LEAST_LEVEL, METADATA_VERSION
from rawlog.formats.kraft.paths import is_bootstrap, snapshot_id
from rawlog.formats.kraft.writer import LEAST_LEVEL as LEAST_BOOTSTRAP

#: The records that say what is there.
LIVE = tuple(
    f"{name}Record"
    for name in (
        "FeatureLevel", "ZkMigrationState", "RegisterBroker", "RegisterController", "Topic", "Partition", "Config", "ClientQuota",
        "ProducerIds", "AccessControlEntry", "UserScramCredential", "DelegationToken",
    )
)  # fmt: skip


class Records:
    """The records in a window's sound batches, decoded for everybody who asks, so that none are kept.

    Position and offset, whether it is a control record, key and value.
    """

    def __init__(self, seen: Inspection) -> None:
        self.seen = seen

    def __iter__(self) -> Iterator[tuple[int, int, bool, bytes | None, bytes | None]]:
        seen, head = self.seen, heads(self.seen.frames)
        sound, head = only(seen.frames, head.sound), head.only(head.sound)
        names = {"key", "value", "offset"}
        for index in range(len(sound)):
            position, control = int(sound.positions[index]), bool(head.has(Attributes.CONTROL)[index])
            one, own = sound.slice(index, index + 1), head.slice(index, index + 1)
            with contextlib.suppress(DataError):  # Kafka's own rules report it
                for _, _, columns in decode_bounded(one, own, names, seen.limit, seen.max_headers):
                    arrays = [columns.arrays[name].to_pylist() for name in ("offset", "key", "value")]
                    for offset, key, value in zip(*arrays, strict=True):
                        yield position, offset, control, key, value


def records_of(seen: Inspection) -> Records:
    """The records of a window, for `Inspection.share`."""
    return Records(seen)


@rule("kraft.checkpoint.incomplete", Severity.WARNING)
def incomplete(seen: Inspection) -> Iterator[Mark]:
    """A snapshot does not begin with its header or does not end with its footer, or batches between them are missing: it was not written
    to its end, or was cut. Or bytes follow the footer at which a broker ends (an error).

    A controller refuses to load it. Delete it if the log reaches back to an older snapshot or to offset 0; else take it from
    another controller.
    """
    memory = seen.memory
    for position, offset, control, key, _ in seen.share(records_of):
        kind = control_type(key) if control else None
        if "first" not in memory:
            memory["first"] = kind
            if kind != ControlType.SNAPSHOT_HEADER:
                yield Mark("no header at the beginning", position, offset=offset)
        elif memory.get("last") == ControlType.SNAPSHOT_FOOTER:
            yield Mark("records after the footer", position, offset=offset)
        memory["last"] = kind
    yield from _missing_batches(seen.frames)
    if seen.frames.last and memory.get("last") != ControlType.SNAPSHOT_FOOTER:
        yield Mark("no footer at the end", seen.frames.reached_in_file)
    elif seen.frames.last and seen.frames.status in (Status.PADDING, Status.TRUNCATED):
        yield from _tail(seen.frames)


def _tail(frames: Frames) -> Iterator[Mark]:
    """Bytes after the footer. A broker ends at zeros where it reads a size, and at an unknown magic; it takes others for a batch that was
    not written to its end, as in a log.
    """
    left, at = frames.data[frames.reached :], OUTLINE.at("magic")
    has_magic = frames.status is Status.TRUNCATED and left.size > at
    if (int(left[at]) > MAGIC_V2) if has_magic else left.size >= OUTLINE.after("length") and not left.any():
        message = f"{left.size:,} bytes after the footer: no broker starts on it"
        yield Mark(message, frames.reached_in_file, int(left.size), severity=Severity.ERROR)
    elif frames.status is Status.PADDING and left.size:
        message = f"{left.size:,} bytes of zeros after the footer"
        yield Mark(message, frames.reached_in_file, int(left.size), severity=Severity.INFO)


def _missing_batches(frames: Frames) -> Iterator[Mark]:
    """Sound batches whose bytes follow one another and whose offsets do not: a snapshot is numbered without gaps."""
    head = heads(frames)
    for index in range(1, len(frames)):
        base, following = int(head["base_offset"][index]), int(head["last_offset"][index - 1]) + 1
        joins = frames.stops[index - 1] == frames.starts[index]
        if joins and head.sound[index - 1] and head.sound[index] and base > following:
            place = int(frames.positions[index])
            yield Mark("batches before this one are missing", place, offset=base, expected=following, found=base)


@rule("kraft.checkpoint.record", Severity.ERROR)
def record(seen: Inspection) -> Iterator[Mark]:
    """A record of a snapshot is not one that a controller takes: it has a key, no value, or bytes that are not a metadata record.

    Records of a type or version that rawlog does not know are only a warning: a newer Kafka wrote them. They are shown raw. Records larger
    than any that a controller writes are not looked at, which is a warning too.
    """
    for position, offset, control, key, value in seen.share(records_of):
        if control:
            continue
        if key is not None or not value:
            yield Mark("a metadata record has a value and no key", position, offset=offset)
            continue
        try:
            decode_record(value)
        except (UnsupportedError, LimitError) as error:
            yield Mark(error.message, position, offset=offset, severity=Severity.WARNING)
        except DataError as error:
            yield Mark(error.message, position, offset=offset)


@rule("kraft.checkpoint.epoch", Severity.WARNING)
def epoch(seen: Inspection) -> Iterator[Mark]:
    """The batches of a snapshot carry another epoch than its name. It was renamed, or put together by hand."""
    named = snapshot_id(seen.file.path)
    if named is None or seen.memory.get("is_reported"):
        return
    head = heads(seen.frames)
    for index in range(len(seen.frames)):
        found = int(head["leader_epoch"][index])
        if head.sound[index] and found != named[1]:
            seen.memory["is_reported"] = True
            yield Mark(f"epoch {found}", int(seen.frames.positions[index]), expected=named[1], found=found)
            return


@rule("kraft.checkpoint.content", Severity.WARNING)
def content(seen: Inspection) -> Iterator[Mark]:
    """A snapshot holds a record that says what changed, not what is: a removal, a change, a transaction's bracket. Controllers write none.

    Loading goes by the same rules as for the log, so that the state is what its records lead to. A tool wrote the file.
    """
    for position, offset, control, _, value in seen.share(records_of):
        schema = None if control or not value else _schema(value)
        if schema is not None and schema not in LIVE:
            yield Mark(f"{schema} in a snapshot", position, offset=offset, found=schema)


@rule("kraft.checkpoint.level", Severity.WARNING)
def level(seen: Inspection) -> Iterator[Mark]:
    """A record of a snapshot is of a version that the snapshot's own metadata.version does not allow; or a bootstrap file does not
    begin with a metadata.version that a controller can start with (an error: it refuses to).
    """
    memory = seen.memory
    for position, offset, control, _, value in seen.share(records_of):
        if control or not value:
            continue
        try:
            key, version, message = decode_record(value)
        except DataError:
            continue
        schema = framed_types()[key].name
        if schema == "FeatureLevelRecord" and message["name"] == METADATA_VERSION:
            memory["level"] = message["featureLevel"]
        if "level" not in memory:
            continue
        least = LEAST_LEVEL.get((schema, version), 0)
        if memory["level"] < least:
            what = f"{schema} version {version} under metadata.version {memory['level']}"
            yield Mark(what, position, offset=offset, expected=f"at least {least}", found=memory["level"])
    if seen.frames.last and is_bootstrap(seen.file.path) and memory.get("level", 0) < LEAST_BOOTSTRAP:
        found = f"metadata.version {memory['level']}" if "level" in memory else "no metadata.version"
        yield Mark(found, 0, expected=f"at least {LEAST_BOOTSTRAP}", found=memory.get("level"), severity=Severity.ERROR)


def _schema(value: bytes) -> str | None:
    try:
        return framed_types()[frame_head(value)[0]].name
    except (DataError, KeyError):
        return None


def _renamed(one: Rule[Inspection]) -> Rule[Inspection]:
    return replace(one, code=one.code.replace("kafka.log.", "kraft.checkpoint."))


def checkpoint_rules() -> Sequence[Rule[Inspection]]:
    """Those of every log, under this format's name, and a snapshot's own."""
    kept = (
        one for one in kafka_checks.rules() if one.code != "kafka.log.base"
    )  # offsets begin at 0 whatever the name says
    return (*(_renamed(one) for one in kept), incomplete, record, epoch, content, level)
