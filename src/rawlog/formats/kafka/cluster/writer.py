"""Writing metadata: batches, snapshots (`.checkpoint`), the bootstrap file.

Lengths, checksums, counts and offsets are computed here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rawlog.formats.kafka.cluster.metadata import METADATA_VERSION, record_version
from rawlog.formats.kafka.cluster.state import State
from rawlog.formats.kafka.internal.messages import encode_control, encode_framed
from rawlog.formats.kafka.log.layouts import (
    BATCH,
    MAGIC_V2,
    NONE,
    Attributes,
    ControlType,
)
from rawlog.io.checksums import crc32c
from rawlog.io.output import Folder
from rawlog.model.errors import EncodeError

LARGEST_BATCH = 1 << 20
"""A new batch is begun when the records pass this size; a controller takes up to 8 MiB."""
MOST_RECORDS = 2048
LEAST_LEVEL, TRANSACTION_LEVEL = 4, 13
#: 64 bits of header that `struct` packs in one go, in the order of the layout.
_HEAD = struct.Struct(">qiibIhiqqqhii")
assert _HEAD.size == BATCH.size

Framed = bytes
Record = tuple[str, int | None, Mapping[str, Any]]
Pair = tuple[bytes | None, bytes]


def _zigzag(value: int) -> bytes:
    number = (value << 1) ^ (value >> 63)
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_batch(
    base_offset: int, epoch: int, timestamp: int, records: Sequence[Pair], *, control: bool = False
) -> bytes:
    """A batch of metadata records, or of control records: uncompressed, no producer, all at one time (ms).

    EncodeError without records or for numbers that do not fit.
    """
    if not records:
        raise EncodeError("a batch without records")
    body = bytearray()
    for number, (key, value) in enumerate(records):
        inner = b"".join(
            (
                b"\0",  # attributes
                _zigzag(0),  # timestamp delta: a controller refuses another
                _zigzag(number),
                _zigzag(NONE) if key is None else _zigzag(len(key)) + key,
                _zigzag(len(value)),
                value,
                _zigzag(0),  # headers
            )
        )
        body += _zigzag(len(inner)) + inner
    length = BATCH.size - BATCH.after("length") + len(body)
    attributes = int(Attributes.CONTROL) if control else 0

    def head(crc: int) -> bytes:
        return _HEAD.pack(
            base_offset,
            length,
            epoch,
            MAGIC_V2,
            crc,
            attributes,
            len(records) - 1,
            timestamp,
            timestamp,
            NONE,
            NONE,
            NONE,
            len(records),
        )

    try:
        covered = head(0)[BATCH.after("crc") :] + body
        return head(crc32c(covered)) + bytes(body)
    except struct.error as error:
        raise EncodeError(f"batch at offset {base_offset}: {error}") from None


def encode_controls(
    base_offset: int, epoch: int, timestamp: int, controls: Sequence[tuple[int, Mapping[str, Any]]]
) -> bytes:
    """A batch of control records, each by its type and message."""
    return encode_batch(base_offset, epoch, timestamp, [encode_control(*control) for control in controls], control=True)


def encode_data(base_offset: int, epoch: int, timestamp: int, records: Iterable[Framed]) -> Iterator[bytes]:
    """Batches of framed records from an offset on, each of a size that a controller takes."""
    pairs: list[Pair] = []
    size = 0
    for value in records:
        pairs.append((None, value))
        size += len(value)
        if size >= LARGEST_BATCH or len(pairs) == MOST_RECORDS:
            yield encode_batch(base_offset, epoch, timestamp, pairs)
            base_offset += len(pairs)
            pairs, size = [], 0
    if pairs:
        yield encode_batch(base_offset, epoch, timestamp, pairs)


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter of a dynamic quorum: its id, the id of its metadata directory, its endpoints (name, host, port)."""

    id: int
    directory_id: bytes
    endpoints: tuple[tuple[str, str, int], ...] = ()

    def message(self) -> dict[str, Any]:
        return {
            "voterId": self.id,
            "voterDirectoryId": self.directory_id,
            "endpoints": [{"name": name, "host": host, "port": port} for name, host, port in self.endpoints],
            "kRaftVersionFeature": {"minSupportedVersion": 0, "maxSupportedVersion": 1},
        }


def quorum_records(
    kraft_version: int | None, voters: Sequence[Mapping[str, Any]]
) -> list[tuple[int, Mapping[str, Any]]]:
    """The control records that name a dynamic quorum; none for a static one."""
    if not kraft_version:
        return []
    return [
        (ControlType.KRAFT_VERSION, {"version": 0, "kRaftVersion": kraft_version}),
        (ControlType.KRAFT_VOTERS, {"version": 0, "voters": list(voters)}),
    ]


def encode_checkpoint(
    records: Iterable[Framed],
    epoch: int,
    last_timestamp: int,
    *,
    timestamp: int | None = None,
    kraft_version: int | None = None,
    voters: Sequence[Mapping[str, Any]] = (),
) -> Iterator[bytes]:
    """The bytes of a snapshot: header, data, footer. `last_timestamp` (ms) is that of the last record of the log that went into it."""
    time = last_timestamp if timestamp is None else timestamp
    header = (ControlType.SNAPSHOT_HEADER, {"version": 0, "lastContainedLogTimestamp": last_timestamp})
    first = [header, *quorum_records(kraft_version, voters)]
    yield encode_controls(0, epoch, time, first)
    offset = len(first)
    for batch in encode_data(offset, epoch, time, records):
        yield batch
        offset += _HEAD.unpack_from(batch)[-1]
    yield encode_controls(offset, epoch, time, [(ControlType.SNAPSHOT_FOOTER, {"version": 0})])


def checkpoint_name(end_offset: int, epoch: int) -> str:
    """The name of a snapshot of all offsets below `end_offset`."""
    return f"{end_offset:020d}-{epoch:010d}.checkpoint"


def state_records(state: State) -> Iterator[Framed]:
    """A state as the framed records of a snapshot."""
    for name, version, message in state.image():
        yield encode_framed(name, message, version)


def write_checkpoint(folder: Folder, state: State) -> str:
    """Write a state as the snapshot of its end offset and epoch into a metadata directory; the name of the file.

    EncodeError for a state at offset 0, whose records a controller would ignore. AccessError if the file exists.
    """
    if state.end_offset < 1:
        raise EncodeError("a snapshot at offset 0 would be ignored: use a bootstrap file")
    epoch = max(state.epoch, 0)
    name = checkpoint_name(state.end_offset, epoch)
    quorum = {"kraft_version": state.kraft_version, "voters": state.voters}
    with folder.create(name) as out:
        out.writelines(encode_checkpoint(state_records(state), epoch, max(state.timestamp, 0), **quorum))  # type: ignore[arg-type]
    return name


def encode_bootstrap(level: int, records: Iterable[Record] = (), *, timestamp: int = 0) -> Iterator[bytes]:
    """The bytes of `bootstrap.checkpoint`: metadata.version first, then other records (features, SCRAM users, topics …)."""
    if level < LEAST_LEVEL:
        raise EncodeError(f"metadata.version {level}: a bootstrap file has at least {LEAST_LEVEL}")
    yield from encode_checkpoint(framed_records(level, records), 0, 0, timestamp=timestamp)


def framed_records(level: int, records: Iterable[Record]) -> Iterator[Framed]:
    """The metadata.version, then other records in the versions that it has."""
    yield encode_framed("FeatureLevelRecord", {"name": METADATA_VERSION, "featureLevel": level})
    for name, version, message in records:
        yield encode_framed(name, message, _version(name, version, level))


def _version(name: str, version: int | None, level: int) -> int:
    return record_version(name, level) if version is None else version
