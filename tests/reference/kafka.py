"""Kafka record batches of magic 0, 1 and 2, plainly: as strict as Kafka's own parser, and a writer of test data.

Written from specs/kafka-log.md sections 2 to 4 (2.7 for what is refused). Imports nothing of rawlog.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from .codecs import CodecError, compress, decompress

HEADER_SIZE = 61  # of a magic 2 batch
NO_TYPE, CREATE_TIME, LOG_APPEND_TIME = -1, 0, 1  # timestamp types; -1 is that of magic 0
Header = tuple[str, bytes | None]


class Bad(Exception):
    """Damage: where the batch begins that holds it, and what it is."""

    def __init__(self, position: int, reason: str):
        super().__init__(f"byte {position}: {reason}")
        self.position, self.reason = position, reason


@dataclass(frozen=True)
class Record:
    """One record as a consumer would get it; `timestamp` in ms, None for -1; `sequence` -1 for none."""

    offset: int
    timestamp: int | None
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] = field(default_factory=list)
    control_type: int | None = None  # of a control batch; None if the key tells none
    sequence: int = -1


@dataclass(frozen=True)
class Batch:
    """One batch, or one magic 0/1 entry, with the fields as stored (timestamps in ms, -1 for none).

    Of magic 0/1: `max_timestamp` is the entry's own, `base_timestamp` None, producer fields and leader epoch -1;
    `base_offset` and `record_count` of a wrapper are known only once it was opened (None from `headers`).
    """

    position: int
    size: int
    magic: int
    attributes: int
    codec: int
    crc: int
    crc_ok: bool
    base_offset: int | None
    last_offset: int
    record_count: int | None
    timestamp_type: int
    base_timestamp: int | None
    max_timestamp: int
    delete_horizon: int | None = None
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False
    records: list[Record] = field(default_factory=list)


# ------------------------------------------------------------------ checksums and varints


def java_string(raw: bytes) -> str:
    """UTF-8 as Java decodes it: U+FFFD for what is malformed; an encoded surrogate, also a cut one, is one malformed character."""
    text, position = "", 0
    while position < len(raw):
        if raw[position] == 0xED and position + 1 < len(raw) and 0xA0 <= raw[position + 1] <= 0xBF:
            position += 3 if position + 2 < len(raw) and raw[position + 2] >> 6 == 2 else 2
            text += "\ufffd"
            continue
        for size in (1, 2, 3, 4):
            try:
                text += raw[position : position + size].decode()
                break
            except UnicodeDecodeError as error:
                if size == 4 or position + size >= len(raw) or "unexpected end" not in error.reason:
                    size = max(error.end - error.start, 1)
                    text += "\ufffd"
                    break
        position += size
    return text


def _crc32c_table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = number >> 1 ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


CRC32C = _crc32c_table()


def crc32c(data: bytes) -> int:
    """CRC-32C (Castagnoli), a byte at a time."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC32C[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def i32(number: int) -> int:
    """Wrapped as a Java int."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def i64(number: int) -> int:
    """Wrapped as a Java long."""
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _zigzag_in(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """A zigzag varint and the position behind it. Raises ValueError."""
    number = 0
    for index in range(5 if bits == 32 else 10):
        if position >= len(data):
            raise ValueError("a varint ends too early")
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            number &= (1 << bits) - 1  # what does not fit is dropped, as in Java
            return number >> 1 ^ -(number & 1), position
    raise ValueError("a varint is too long")


def varint(data: bytes, position: int) -> tuple[int, int]:
    """32 bits."""
    return _zigzag_in(data, position, 32)


def varlong(data: bytes, position: int) -> tuple[int, int]:
    """64 bits."""
    return _zigzag_in(data, position, 64)


def zigzag(number: int) -> bytes:
    """The shortest form, the same for both widths."""
    number = number * 2 if number >= 0 else -number * 2 - 1
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


# ------------------------------------------------------------------ reading


def frames(data: bytes) -> tuple[list[tuple[int, int, int]], int, str]:
    """(position, size, magic) of every whole batch, the end of the last one, and why it stops there.

    `ok`: the end; `truncated`: an unfinished batch; `zeros`: nothing but zeros (a preallocated file); `bad length`.
    """
    found: list[tuple[int, int, int]] = []
    position = 0
    while position < len(data):
        left = len(data) - position
        if not data[position:].strip(b"\0"):
            return found, position, "zeros"
        if left < 18:  # Kafka's file reader wants one byte more than the 17 up to the magic
            return found, position, "truncated"
        (length,) = struct.unpack_from(">i", data, position + 8)
        if length < 14:
            return found, position, "bad length"
        if left < 12 + length:
            return found, position, "truncated"
        (magic,) = struct.unpack_from(">b", data, position + 16)
        found.append((position, 12 + length, magic))
        position += 12 + length
    return found, position, "ok"


def headers(data: bytes, check_crc: bool = True) -> Iterator[Batch]:
    """The batches without their records. Raises as `decode`, but for what only the records show."""
    whole, reached, status = frames(data)
    for position, size, magic in whole:
        batch = data[position : position + size]
        if magic == 2:
            yield _header_v2(batch, position, check_crc)
        elif magic in (0, 1):
            yield _entry(batch, position, check_crc)[0]
        else:
            raise Bad(position, f"magic {magic}")
    if status == "bad length":
        raise Bad(reached, "length below 14")


def decode(data: bytes, check_crc: bool = True) -> Iterator[Batch]:
    """Every whole batch with its records. Raises Bad at the first damage; an unfinished tail, or zeros, just ends it.

    Without `check_crc` a wrong checksum is reported by `crc_ok` alone, and inner checksums of wrappers are not looked at.
    """
    for batch in headers(data, check_crc):
        raw = data[batch.position : batch.position + batch.size]
        if batch.magic == 2:
            records = _records_v2(batch, raw)
            yield replace(batch, records=records)
        elif batch.codec == 0:
            _, timestamp, key, value = _entry(raw, batch.position, check_crc)
            yield replace(
                batch, records=[Record(batch.last_offset, _time(timestamp), batch.timestamp_type, key, value)]
            )
        else:
            records = _unwrap(batch, raw, check_crc)
            yield replace(batch, records=records, record_count=len(records), base_offset=records[0].offset)


def _time(milliseconds: int) -> int | None:
    return None if milliseconds == -1 else milliseconds


def _header_v2(batch: bytes, position: int, check_crc: bool) -> Batch:
    if len(batch) < HEADER_SIZE:
        raise Bad(position, f"{len(batch)} bytes, at least 61 expected")
    (
        base_offset, _, leader_epoch, magic, crc, attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, record_count,
    ) = struct.unpack_from(">qiibIhiqqqhii", batch)  # fmt: skip
    crc_ok = crc == crc32c(batch[21:])
    if check_crc and not crc_ok:
        raise Bad(position, "crc")
    if record_count < 0:
        raise Bad(position, f"record count {record_count}")
    if attributes & 7 > 4:
        raise Bad(position, f"codec {attributes & 7}")
    return Batch(
        position=position,
        size=len(batch),
        magic=magic,
        attributes=attributes,
        codec=attributes & 7,
        crc=crc,
        crc_ok=crc_ok,
        base_offset=base_offset,
        last_offset=i64(base_offset + last_offset_delta),
        record_count=record_count,
        timestamp_type=LOG_APPEND_TIME if attributes & 0x08 else CREATE_TIME,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        delete_horizon=base_timestamp if attributes & 0x40 else None,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        is_transactional=bool(attributes & 0x10),
        is_control=bool(attributes & 0x20),
    )


def _records_v2(batch: Batch, raw: bytes) -> list[Record]:
    assert batch.record_count is not None
    if batch.record_count == 0:  # then nobody looks at what follows
        return []
    data = raw[HEADER_SIZE:]
    if batch.codec:
        try:
            data = decompress(batch.codec, data, magic=2)
        except CodecError as error:
            raise Bad(batch.position, str(error)) from None
    records: list[Record] = []
    position = 0
    try:
        for _ in range(batch.record_count):
            length, position = varint(data, position)
            if length < 0 or len(data) - position < length:
                raise ValueError(f"record of {length} bytes, {len(data) - position} left")
            records.append(_record_v2(batch, data[position : position + length]))
            position += length
        if position != len(data):
            raise ValueError(f"{len(data) - position} bytes behind the last record")
    except ValueError as error:
        raise Bad(batch.position, f"record {len(records)}: {error}") from None
    return records


def _record_v2(batch: Batch, record: bytes) -> Record:
    """`record` is what follows the length, and must be used up. Raises ValueError."""
    if not record:
        raise ValueError("no attributes")
    position = 1
    timestamp_delta, position = varlong(record, position)
    offset_delta, position = varint(record, position)
    key, position = _bytes_v2(record, position)
    value, position = _bytes_v2(record, position)
    count, position = varint(record, position)
    if not 0 <= count <= len(record) - position:
        raise ValueError(f"{count} headers")
    names: list[Header] = []
    for _ in range(count):
        name, position = _bytes_v2(record, position)
        if name is None:
            raise ValueError("a header without a name")
        content, position = _bytes_v2(record, position)
        names.append((java_string(name), content))
    if position != len(record):
        raise ValueError(f"{len(record) - position} bytes too many")

    assert batch.base_offset is not None
    assert batch.base_timestamp is not None
    appended = batch.timestamp_type == LOG_APPEND_TIME
    return Record(
        offset=i64(batch.base_offset + offset_delta),
        timestamp=_time(batch.max_timestamp if appended else i64(batch.base_timestamp + timestamp_delta)),
        timestamp_type=batch.timestamp_type,
        key=key,
        value=value,
        headers=names,
        control_type=control_type(key) if batch.is_control else None,
        sequence=sequence(batch.base_sequence, offset_delta),
    )


def _bytes_v2(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = varint(data, position)
    if size < 0:
        return None, position
    if len(data) - position < size:
        raise ValueError(f"{size} bytes, {len(data) - position} left")
    return data[position : position + size], position + size


def control_type(key: bytes | None) -> int | None:
    """0 abort, 1 commit, 2 ... 6 KRaft's; None for a key that is no control key."""
    if key is None or len(key) < 4:
        return None
    version, kind = struct.unpack_from(">hh", key)
    return None if version < 0 else int(kind)


def sequence(base: int, delta: int) -> int:
    """The sequence of a record: wraps from 2147483647 to 0; -1 for none."""
    if base < 0:
        return -1
    if base > i32(0x7FFFFFFF - delta):
        return i32(delta - (0x7FFFFFFF - base) - 1)
    return base + delta


def _entry(entry: bytes, position: int, check_crc: bool) -> tuple[Batch, int, bytes | None, bytes | None]:
    """A magic 0/1 entry: as a batch, with its timestamp, key and value."""
    offset, _, crc, magic, attributes = struct.unpack_from(">qiIbb", entry)
    if magic not in (0, 1):
        raise Bad(position, f"magic {magic}")
    if len(entry) < (26 if magic == 0 else 34):
        raise Bad(position, f"{len(entry)} bytes are too few for magic {magic}")
    crc_ok = crc == zlib.crc32(entry[16:])
    if check_crc and not crc_ok:
        raise Bad(position, "crc")
    timestamp, at = -1, 18
    if magic == 1:
        (timestamp,) = struct.unpack_from(">q", entry, 18)
        at = 26
    key, at = _bytes_v0(entry, at, position)
    value, at = _bytes_v0(entry, at, position)  # bytes behind the value are not looked at, as in Kafka
    codec = attributes & 7
    if codec > 3:
        raise Bad(position, f"codec {codec} in magic {magic}")
    kind = NO_TYPE if magic == 0 else LOG_APPEND_TIME if attributes & 8 else CREATE_TIME
    batch = Batch(
        position=position,
        size=len(entry),
        magic=magic,
        attributes=attributes,
        codec=codec,
        crc=crc,
        crc_ok=crc_ok,
        base_offset=None if codec else offset,
        last_offset=offset,
        record_count=None if codec else 1,
        timestamp_type=kind,
        base_timestamp=None,
        max_timestamp=timestamp,
    )
    return batch, timestamp, key, value


def _bytes_v0(entry: bytes, at: int, position: int) -> tuple[bytes | None, int]:
    if len(entry) - at < 4:
        raise Bad(position, "a length ends too early")
    (size,) = struct.unpack_from(">i", entry, at)
    at += 4
    if size < 0:
        return None, at
    if len(entry) - at < size:
        raise Bad(position, f"{size} bytes, {len(entry) - at} left")
    return entry[at : at + size], at + size


def _unwrap(wrapper: Batch, raw: bytes, check_crc: bool) -> list[Record]:
    value = _entry(raw, wrapper.position, check_crc)[3]
    if value is None:
        raise Bad(wrapper.position, "a wrapper without a value")
    try:
        data = decompress(wrapper.codec, value, wrapper.magic)
    except CodecError as error:
        raise Bad(wrapper.position, str(error)) from None

    inner: list[tuple[Batch, int, bytes | None, bytes | None]] = []
    position = 0
    while len(data) - position >= 12:
        (size,) = struct.unpack_from(">i", data, position + 8)
        if size < 14:
            raise Bad(wrapper.position, f"inner entry of {size} bytes")
        if len(data) - position - 12 < size:  # an unfinished last entry is dropped, as in Kafka
            break
        entry = data[position : position + 12 + size]
        try:
            inner.append(_entry(entry, wrapper.position, check_crc))
        except Bad as bad:
            raise Bad(wrapper.position, f"inner entry {len(inner)}: {bad.reason}") from None
        if inner[-1][0].codec:
            raise Bad(wrapper.position, "a wrapper in a wrapper")
        position += 12 + size
    if not inner:
        raise Bad(wrapper.position, "an empty wrapper")

    base = 0
    if wrapper.magic == 1 and wrapper.last_offset != 0:  # 0: what old librdkafka sent
        base = wrapper.last_offset - inner[-1][0].last_offset
        if base < 0:
            raise Bad(wrapper.position, f"offset {wrapper.last_offset} below the last inner one")
    records = []
    for entry_batch, timestamp, key, content in inner:
        if entry_batch.magic == 1 and wrapper.timestamp_type == LOG_APPEND_TIME:
            timestamp = wrapper.max_timestamp
        records.append(
            Record(i64(base + entry_batch.last_offset), _time(timestamp), wrapper.timestamp_type, key, content)
        )
    return records


# ------------------------------------------------------------------ writing test data


def encode_record(
    offset_delta: int,
    timestamp_delta: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header] = (),
) -> bytes:
    """One magic 2 record with its length in front."""

    def sized(content: bytes | None) -> bytes:
        return zigzag(-1) if content is None else zigzag(len(content)) + content

    body = b"\0" + zigzag(timestamp_delta) + zigzag(offset_delta) + sized(key) + sized(value) + zigzag(len(headers))
    for name, content in headers:
        body += sized(name.encode("utf-8")) + sized(content)
    return zigzag(len(body)) + body


def encode_batch(
    records: bytes,
    *,
    record_count: int,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    codec: int = 0,
    raw_snappy: bool = False,
    timestamp_type: int = CREATE_TIME,
    base_timestamp: int = -1,
    max_timestamp: int = -1,
    delete_horizon: bool = False,
    leader_epoch: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    is_transactional: bool = False,
    is_control: bool = False,
    crc: int | None = None,
) -> bytes:
    """A magic 2 batch round the bytes of its records (see `encode_record`), compressed here; the header as given.

    Nothing is checked, so that wrong ones can be made as well; `crc` stands in for the right one.
    """
    attributes = (
        codec | (timestamp_type == LOG_APPEND_TIME) << 3 | is_transactional << 4 | is_control << 5 | delete_horizon << 6
    )
    body = compress(codec, records, magic=2, raw_snappy=raw_snappy) if codec and record_count else records
    if last_offset_delta is None:
        last_offset_delta = record_count - 1
    covered = struct.pack(
        ">hiqqqhii", attributes, last_offset_delta, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, record_count,
    ) + body  # fmt: skip
    checksum = crc32c(covered) if crc is None else crc
    return struct.pack(">qiibI", base_offset, 9 + len(covered), leader_epoch, 2, checksum) + covered


def encode_entry(
    magic: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    timestamp: int = -1,
    attributes: int = 0,
) -> bytes:
    """A magic 0/1 entry; a wrapper has the codec in its attributes and the compressed inner entries as its value."""
    body = struct.pack(">bb", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    for content in (key, value):
        body += struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body
