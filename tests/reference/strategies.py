"""Hypothesis strategies: random valid Kafka logs and recordings, as bytes and as what must be read from them.

    @given(logs())                     -> Sample: .data, .batches (reference.kafka.Batch, as `decode` must yield them)
    @given(logs(magics=(0, 1)))        old message sets, plain and wrapped
    @given(batches())                  -> (bytes, Batch): one magic 2 batch at position 0
    @given(recordings())               -> Recording: .data, .version, .entries (reference.replay.Entry)

The expectation is built with the bytes, not by decoding them. Imports nothing of rawlog.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from . import codecs, kafka, replay
from .kafka import CREATE_TIME, LOG_APPEND_TIME, NO_TYPE, Batch, Record

LAST_MS = 253_402_300_799_999  # the end of the year 9999
ALL_CODECS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Sample:
    """A log file and its batches."""

    data: bytes
    batches: list[Batch]

    @property
    def records(self) -> list[Record]:
        """What a consumer gets: control batches left out."""
        return [record for batch in self.batches if not batch.is_control for record in batch.records]


@dataclass(frozen=True)
class Recording:
    """A kafka-replay file and its entries."""

    data: bytes
    version: int
    entries: list[replay.Entry]


def contents(largest: int = 70_000) -> st.SearchStrategy[bytes]:
    """Bytes: mostly short, empty too, sometimes long enough for several snappy and lz4 blocks."""
    short = st.binary(max_size=40)
    at_borders = st.sampled_from([62, 63, 64, 65, 127, 128, 8191, 8192, 8193]).map(lambda n: b"x" * min(n, largest))
    sizes = st.one_of(st.sampled_from([300, 33_000, 66_000]), st.integers(0, 70_000)).map(lambda n: min(n, largest))
    long = st.tuples(st.binary(min_size=1, max_size=9), sizes).map(lambda p: (p[0] * p[1])[: p[1]])
    return st.integers(0, 39).flatmap(lambda n: long if n == 39 else at_borders if n > 36 else short)


def nullable(content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes | None]:
    """The same or null, null often."""
    return st.one_of(st.none(), content, content)


def header_lists() -> st.SearchStrategy[list[kafka.Header]]:
    """Headers: none, repeated names, empty names, any script, null and empty values."""
    names = st.one_of(st.sampled_from(["", "a", "b", "ключ-キー-🔑"]), st.text(max_size=8))
    return st.one_of(st.just([]), st.lists(st.tuples(names, nullable(st.binary(max_size=12))), max_size=5))


def timestamps() -> st.SearchStrategy[int]:
    """Milliseconds from -1 (none) to the year 9999, most of them near one another."""
    return st.one_of(
        st.integers(1_700_000_000_000, 1_700_000_000_999), st.sampled_from([-1, 0, 1]), st.integers(-1, LAST_MS)
    )


@st.composite
def _offset_deltas(draw: st.DrawFn, count: int, room: int) -> tuple[list[int], int]:
    """Increasing deltas and the batch's last one: mostly 0, 1, 2 ..., sometimes with the gaps of compaction."""
    if room < count + 4 or draw(st.integers(0, 3)):
        return list(range(count)), max(count - 1, 0)
    largest = min(room, draw(st.sampled_from([count + 3, 1000, 0x7FFFFFFF])) or room)
    largest = max(largest, count)
    deltas = sorted(draw(st.sets(st.integers(0, largest), min_size=count, max_size=count)))
    return deltas, draw(st.integers(deltas[-1] if deltas else 0, largest))


@st.composite
def batches(
    draw: st.DrawFn,
    base_offset: int | None = None,
    codec_ids: Sequence[int] = ALL_CODECS,
    max_records: int = 6,
    largest: int = 70_000,
) -> tuple[bytes, Batch]:
    """One magic 2 batch: plain, idempotent, transactional, control or empty, with or without a delete horizon."""
    if base_offset is None:
        base_offset = draw(st.one_of(st.integers(0, 1000), st.integers(0, (1 << 62) - 1)))
    kind = draw(st.sampled_from(["plain", "plain", "plain", "idempotent", "transactional", "end", "kraft", "empty"]))
    codec = 0 if kind in ("end", "kraft") else draw(st.sampled_from(codec_ids))
    timestamp_type = draw(st.sampled_from([CREATE_TIME, CREATE_TIME, LOG_APPEND_TIME]))
    fields: dict[str, Any] = {
        "codec": codec,
        "timestamp_type": timestamp_type,
        "leader_epoch": draw(st.sampled_from([-1, 0, 0, 7, 0x7FFFFFFF])),
        "is_transactional": kind in ("transactional", "end"),
        "is_control": kind in ("end", "kraft"),
    }
    if kind in ("idempotent", "transactional", "end") or (kind == "empty" and draw(st.booleans())):
        fields["producer_id"] = draw(st.sampled_from([0, 1, 4000, (1 << 63) - 1]))
        fields["producer_epoch"] = draw(st.sampled_from([0, 3, 32767]))
        if kind != "end":
            fields["base_sequence"] = draw(st.sampled_from([0, 10, 0x7FFFFFFE, 0x7FFFFFFF]))

    plain = draw(_plain_records(kind, max_records, largest))
    deltas, last_delta = draw(_offset_deltas(len(plain), (1 << 63) - 1 - base_offset))
    if kind in ("end", "kraft"):
        deltas, last_delta = list(range(len(plain))), len(plain) - 1
    times = [draw(timestamps()) for _ in plain]
    fields["base_timestamp"] = times[0] if times else -1
    if draw(st.integers(0, 4)) == 0:
        fields["delete_horizon"] = True
        fields["base_timestamp"] = draw(st.integers(0, LAST_MS))
    if times and timestamp_type == CREATE_TIME:
        fields["max_timestamp"] = max(times)
    else:
        fields["max_timestamp"] = draw(timestamps())

    raw_snappy = codec == 2 and draw(st.booleans())
    body = b"".join(
        kafka.encode_record(delta, time - fields["base_timestamp"], key, value, headers)
        for delta, time, (key, value, headers) in zip(deltas, times, plain, strict=True)
    )
    data = kafka.encode_batch(
        body,
        record_count=len(plain),
        base_offset=base_offset,
        last_offset_delta=last_delta,
        raw_snappy=raw_snappy,
        **fields,
    )

    horizon = fields.pop("delete_horizon", False)
    base_sequence = fields.get("base_sequence", -1)
    records = []
    for delta, time, (key, value, headers) in zip(deltas, times, plain, strict=True):
        shown = fields["max_timestamp"] if timestamp_type == LOG_APPEND_TIME else time
        records.append(
            Record(
                offset=base_offset + delta,
                timestamp=None if shown == -1 else shown,
                timestamp_type=timestamp_type,
                key=key,
                value=value,
                headers=headers,
                control_type=struct.unpack(">hh", key)[1] if fields["is_control"] and key else None,
                sequence=-1 if base_sequence < 0 else (base_sequence + delta) % (1 << 31),
            )
        )
    return data, Batch(
        position=0,
        size=len(data),
        magic=2,
        attributes=struct.unpack_from(">h", data, 21)[0],
        crc=struct.unpack_from(">I", data, 17)[0],
        crc_ok=True,
        base_offset=base_offset,
        last_offset=base_offset + last_delta,
        record_count=len(plain),
        delete_horizon=fields["base_timestamp"] if horizon else None,
        records=records,
        **fields,
    )


@st.composite
def _plain_records(
    draw: st.DrawFn, kind: str, max_records: int, largest: int
) -> list[tuple[bytes | None, bytes | None, list[kafka.Header]]]:
    """(key, value, headers) of a batch of that kind."""
    if kind == "empty":
        return []
    if kind == "end":
        marker = struct.pack(">hh", 0, draw(st.sampled_from([0, 1])))
        return [(marker, struct.pack(">hi", 0, draw(st.integers(0, 17))), [])]
    if kind == "kraft":
        types = draw(st.lists(st.integers(2, 6), min_size=1, max_size=3))
        return [(struct.pack(">hh", 0, number), draw(st.binary(max_size=9)), []) for number in types]
    record = st.tuples(nullable(contents(200)), nullable(contents(largest)), header_lists())
    return draw(st.lists(record, min_size=1, max_size=max_records))


@st.composite
def entries(draw: st.DrawFn, magic: int, base_offset: int | None = None, max_records: int = 6) -> tuple[bytes, Batch]:
    """One magic 0 or 1 entry, plain or a wrapper (with gaps, with either timestamp type)."""
    if base_offset is None:
        base_offset = draw(st.one_of(st.integers(0, 1000), st.integers(0, (1 << 62) - 1)))
    codec = draw(st.sampled_from([0, 1, 2, 3]))
    count = 1 if codec == 0 else draw(st.integers(1, max_records))
    steps = [draw(st.sampled_from([1, 1, 1, 3])) for _ in range(count - 1)]
    offsets = [base_offset + sum(steps[:index]) for index in range(count)]
    kind = NO_TYPE if magic == 0 else draw(st.sampled_from([CREATE_TIME, CREATE_TIME, LOG_APPEND_TIME]))
    times = [-1 if magic == 0 else draw(timestamps()) for _ in offsets]
    pairs = [(draw(nullable(contents(200))), draw(nullable(contents(5000)))) for _ in offsets]
    attributes = codec | (8 if kind == LOG_APPEND_TIME else 0)
    own = times[0] if codec == 0 else max(times) if kind == CREATE_TIME else -1 if magic == 0 else draw(timestamps())
    if codec == 0:
        data = kafka.encode_entry(magic, offsets[0], *pairs[0], own, attributes)
    else:
        first = offsets[0] if magic == 1 else 0  # relative inside magic 1, absolute inside magic 0
        inner = b"".join(
            kafka.encode_entry(magic, offset - first, key, value, time)
            for offset, time, (key, value) in zip(offsets, times, pairs, strict=True)
        )
        raw = codec == 2 and draw(st.booleans())
        packed = codecs.compress(codec, inner, magic=magic, raw_snappy=raw)
        data = kafka.encode_entry(magic, offsets[-1], None, packed, own, attributes)
    shown = [own if kind == LOG_APPEND_TIME else time for time in times]
    return data, Batch(
        position=0,
        size=len(data),
        magic=magic,
        attributes=attributes,
        codec=codec,
        crc=struct.unpack_from(">I", data, 12)[0],
        crc_ok=True,
        base_offset=offsets[0],
        last_offset=offsets[-1],
        record_count=count,
        timestamp_type=kind,
        base_timestamp=None,
        max_timestamp=own,
        records=[
            Record(offset, None if time == -1 else time, kind, key, value)
            for offset, time, (key, value) in zip(offsets, shown, pairs, strict=True)
        ],
    )


@st.composite
def logs(
    draw: st.DrawFn,
    magics: Sequence[int] = (2,),
    max_batches: int = 5,
    codec_ids: Sequence[int] = ALL_CODECS,
    largest: int = 70_000,
) -> Sample:
    """A log file: batches of these magics, offsets rising, with gaps now and then; perhaps empty."""
    offset = draw(st.sampled_from([0, 0, 42, 1 << 40]))
    data, found = b"", []
    for _ in range(draw(st.integers(0, max_batches))):
        magic = draw(st.sampled_from(magics))
        if magic == 2:
            piece, batch = draw(batches(base_offset=offset, codec_ids=codec_ids, largest=largest))
        else:
            piece, batch = draw(entries(magic, base_offset=offset))
        found.append(replace(batch, position=len(data)))
        data += piece
        offset = batch.last_offset + 1 + draw(st.sampled_from([0, 0, 0, 5]))
    return Sample(data, found)


@st.composite
def recordings(draw: st.DrawFn, version: int | None = None, max_entries: int = 8) -> Recording:
    """A whole kafka-replay file. It never ends with an entry of zeros alone, so its verdict is `clean`."""
    if version is None:
        version = draw(st.sampled_from([0, 1, 2]))
    if version == 0:
        times = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
    else:
        times = st.one_of(
            st.integers(1_706_868_930, 1_706_868_999),
            st.sampled_from([0, -1, replay.NO_TIME, -(1 << 63), (1 << 63) - 1]),
        )
    drawn = draw(st.lists(st.tuples(times, nullable(contents(200)), nullable(contents())), max_size=max_entries))
    while version and drawn and drawn[-1][0] == 0 and not (version == 2 and drawn[-1][1]) and not drawn[-1][2]:
        drawn.pop()
    found: list[replay.Entry] = []
    position = 0 if version == 0 else replay.HEADER_SIZE
    for number, (time, key, value) in enumerate(drawn):
        key, value = (key or None) if version == 2 else None, value or b""
        size = replay.FIXED_SIZE[version] + len(key or b"") + len(value)
        found.append(replay.Entry(number, position, size, time, key, value))
        position += size
    return Recording(replay.encode(version, drawn), version, found)
