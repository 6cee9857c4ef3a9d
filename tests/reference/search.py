"""Where a text is in a directory: in the bytes of its files, and in what is compressed in them.

Kafka's batches and RocketMQ's bodies are decompressed by hand. Imports nothing of rawlog.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import zstandard

from . import kafka, rocketmq
from .codecs import CodecError, decompress

#: A message whose body is compressed, and how: bits of its system flag.
COMPRESSED, HOW = 0x1, 0x700


def places(root: Path, *texts: bytes) -> list[str]:
    """The files with one of the texts, and whether it is compressed there."""
    found = []
    for path in [root, *sorted(root.rglob("*"))]:
        if path.is_file():
            for where, data in contents(path):
                found += [f"{path}: {text!r} {where}" for text in texts if text in data]
    return found


def contents(path: Path) -> Iterator[tuple[str, bytes]]:
    """The bytes of a file, and everything that is compressed in it if it is a log."""
    data = path.read_bytes()
    yield "as stored", data
    if path.name.endswith((".log", ".checkpoint")) or ".log." in path.name:
        yield from _batches(data)
    elif path.name.isdigit() and len(path.name) == 20 and "consumequeue" not in path.parts:
        yield from _bodies(data)


def _batches(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What is compressed in batches, whether or not they say that they have records."""
    for position, size, magic in kafka.frames(data)[0]:
        batch = data[position : position + size]
        if magic == 2:
            (attributes,) = struct.unpack_from(">h", batch, 21)
            packed = batch[kafka.HEADER_SIZE :]
        else:
            attributes = batch[17]
            packed = kafka._entry(batch, position, check_crc=False)[3] or b""
        if attributes & 7 and packed:
            try:
                yield f"in the batch at {position}", decompress(attributes & 7, packed, magic)
            except CodecError:
                continue


def _bodies(data: bytes) -> Iterator[tuple[str, bytes]]:
    position = 0
    while position < len(data):
        try:
            found = rocketmq.entry(data, position)
        except (EOFError, rocketmq.Bad):
            return
        position += found if isinstance(found, int) else found.size
        if not isinstance(found, int) and found.sys_flag & COMPRESSED:
            how = found.sys_flag & HOW
            unpack = {0x100: lz4.frame.decompress, 0x200: _unzstd}.get(how, zlib.decompress)
            yield f"in the message at {found.position}", unpack(found.body)


def _unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)
