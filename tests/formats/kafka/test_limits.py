"""Small files that hold far more than memory: rows and headers are bounded as bytes are (issue 13, A3)."""

from __future__ import annotations

import gzip
import io
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.errors import LimitError
from rawlog.formats.kafka import legacy, reader
from rawlog.formats.kafka.log import decode_bounded, scan
from rawlog.formats.kafka.heads import heads
from rawlog.kernels import byte_view
from tests import memory
from tests.reference import kafka as reference
from tests.reference.strategies import Sample, logs

MOST = 1 << 28
ZSTD, GZIP = 4, 1


def varint(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = b""
    while value >= 0x80:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


def packed(head: bytes, piece: bytes, count: int, codec: int = ZSTD) -> bytes:
    """`head` and then `piece` so many times, compressed without ever being in memory."""
    out = io.BytesIO()
    writer = (
        zstandard.ZstdCompressor().stream_writer(out, closefd=False)
        if codec == ZSTD
        else gzip.GzipFile(fileobj=out, mode="wb")
    )
    many = max(1, (1 << 20) // len(piece))
    with writer:
        writer.write(head)
        for _ in range(count // many):
            writer.write(piece * many)
        writer.write(piece * (count % many))
    return out.getvalue()


def many_headers(count: int) -> bytes:
    """A batch with one record that has nothing but so many empty headers."""
    inside = bytes((0, 0, 0, 1, 1)) + varint(count)
    return batch(packed(varint(len(inside) + 2 * count) + inside, bytes(2), count), 1)


def many_records(count: int) -> bytes:
    """A batch of so many records that hold nothing, all with the same offset, which no checksum forbids."""
    return batch(packed(b"", bytes((12, 0, 0, 0, 1, 1, 0)), count), count)


def headers_everywhere(records: int, each: int) -> bytes:
    """A batch of records with some headers each: far too many together."""
    inside = bytes((0, 0, 0, 1, 1)) + varint(each) + bytes(2 * each)
    return batch(packed(b"", varint(len(inside)) + inside, records), records)


def batch(content: bytes, count: int, codec: int = ZSTD) -> bytes:
    covered = struct.pack(">hiqqqhii", codec, max(count - 1, 0), 0, 0, -1, -1, -1, count) + content
    return struct.pack(">qiibI", 0, 9 + len(covered), 0, 2, reference.crc32c(covered)) + covered


def many_entries(count: int) -> bytes:
    """A wrapper of magic 1 around so many entries without key and value."""
    entry = reference.encode_entry(1, 0, None, None, timestamp=0)
    return reference.encode_entry(1, 0, None, packed(b"", entry, count, GZIP), timestamp=0, attributes=GZIP)


def stored(folder: Path, data: bytes) -> Path:
    path = folder / "bomb-0" / f"{0:020}.log"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    return path


BOMBS = {
    "headers of one record": lambda: many_headers((1 << 27) - 100),
    "records": lambda: many_records(MOST // 7 - 100),
    "headers of many records": lambda: headers_everywhere(1 << 17, 1000),
    "several batches": lambda: many_records(400_000) * 60,
    "entries of magic 1": lambda: many_entries(MOST // 34 - 100),
}


@pytest.fixture(scope="module", params=BOMBS)
def bomb(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = stored(tmp_path_factory.mktemp("bombs"), BOMBS[request.param]())
    assert path.stat().st_size < 1 << 20
    return path


@pytest.mark.parametrize(
    "verb", [("head", "-n", "1", "--json"), ("verify",), ("count",), ("tail", "-n", "1"), ("ls",), ("explain", "--at", "0")], ids=" ".join
)
def test_a_small_file_never_takes_much_memory(bomb: Path, verb: tuple[str, ...]) -> None:
    """`head -n 1` of a batch of 24 KB took 7.4 GB for 131 million headers, 3.3 GB for 38 million records; `verify` up to 2.1 GB."""
    ended = memory.rawlog(verb[0], bomb, *verb[1:])
    assert ended.megabytes < memory.LARGEST, ended
    assert ended.code in (0, 1), ended
    assert "Traceback" not in ended.err and "internal" not in ended.err
