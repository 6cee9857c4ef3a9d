"""What the content of a blob record may be beyond plain bytes: a list of chunks, or an envelope round compressed bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rawlog.core.errors import CorruptError, DataError, EncodeError, LimitError
from rawlog.formats.ambry.keys import order
from rawlog.formats.ambry.layouts import (
    BLOB_TYPES,
    CHUNK_SIZE,
    ENVELOPE,
    LONGEST_NAME,
    METADATA_V2,
    METADATA_V3,
    ORIGINAL_SIZE,
)
from rawlog.formats.ambry.structures import Cursor
from rawlog.io.compression import decompress

if TYPE_CHECKING:
    import pyarrow as pa

ALGORITHMS = ("LZ4", "ZSTD")
ENVELOPE_VERSION = 1
LZ4_RATIO = 255
"""The most bytes that one byte of an LZ4 block expands to."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a blob: the key it is stored under, and its size."""

    key: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Metadata:
    """The content of a metadata blob."""

    version: int
    total_size: int
    chunks: tuple[Chunk, ...]
    chunk_size: int | None = None


def read_metadata(cursor: Cursor) -> Metadata:
    """Metadata content of version 2 or 3. DataError for anything else."""
    start = cursor.base + cursor.position
    version = cursor.version((2, 3))
    chunks = []
    chunk_size: int | None = None
    if version == 2:
        chunk_size, total = cursor.number("chunk size", "i32"), cursor.number("total size", "i64")
        if chunk_size <= 0 or total <= 0:
            raise CorruptError(f"{total:,} bytes in chunks of {chunk_size:,}", position=start, layout=METADATA_V2.name)
        for number in range(_bounded(-(-total // chunk_size), cursor)):
            size = min(chunk_size, total - number * chunk_size)
            chunks.append(Chunk(cursor.key(f"chunk {number}"), size))
    else:
        total, count = cursor.number("total size", "i64"), cursor.number("count", "i32")
        for number in range(_bounded(count, cursor)):
            with cursor.group(f"chunk {number}"):
                size = cursor.number("size", "i64")
                chunks.append(Chunk(cursor.key(), size))
        if sum(chunk.size for chunk in chunks) != total or any(chunk.size < 1 for chunk in chunks):
            raise CorruptError(
                f"chunks of {sum(chunk.size for chunk in chunks):,} bytes, {total:,} expected",
                position=start,
                layout=METADATA_V3.name,
                field="total_size",
            )
    if not chunks:
        raise CorruptError("metadata without chunks", position=start)
    if cursor.left:
        raise CorruptError(f"{cursor.left:,} bytes after the chunks", position=start)
    return Metadata(version, total, tuple(chunks), chunk_size)


def _bounded(count: int, cursor: Cursor) -> int:
    if not 0 <= count <= cursor.left:
        raise CorruptError(f"{count:,} chunks in {cursor.left:,} bytes", position=cursor.base + cursor.position)
    return count


def parse_metadata(content: bytes) -> Metadata:
    """The chunks of a metadata blob. DataError if the content is not what such a blob holds."""
    return read_metadata(Cursor(content))


def make_metadata(version: int, chunks: list[Chunk], chunk_size: int | None = None) -> bytes:
    """The content of a metadata blob. EncodeError for what no reader would take."""
    total = sum(chunk.size for chunk in chunks)
    if not chunks or any(chunk.size < 1 for chunk in chunks):
        raise EncodeError("metadata content needs chunks, each of a byte or more")
    if len({len(chunk.key) for chunk in chunks}) > 1:
        raise EncodeError("the keys of one metadata content are of one size")
    if version == 3:
        body = b"".join(chunk.size.to_bytes(CHUNK_SIZE, "big") + chunk.key for chunk in chunks)
        return (3).to_bytes(2, "big") + total.to_bytes(8, "big") + len(chunks).to_bytes(4, "big") + body
    size = chunk_size or chunks[0].size
    if version != 2 or any(chunk.size != size for chunk in chunks[:-1]) or chunks[-1].size > size:
        raise EncodeError("metadata content V2 has chunks of one size, except the last")
    return (2).to_bytes(2, "big") + size.to_bytes(4, "big") + total.to_bytes(8, "big") + b"".join(c.key for c in chunks)


def open_envelope(content: bytes, limit: int = 1 << 28) -> tuple[str, bytes]:
    """The algorithm and the plain bytes of compressed content. DataError if the envelope is invalid or does not open; LimitError if it
    declares more than `limit` bytes.
    """
    algorithm, size, start = read_envelope(content)
    if size > limit:
        raise LimitError(
            f"{size:,} bytes when decompressed, more than the limit of {limit:,}; --max-decompressed raises it",
            position=0,
            expected=limit,
            found=size,
        )
    plain = _inflate(algorithm, content[start:], size)
    if len(plain) != size:
        raise CorruptError(f"decompressed to {len(plain):,} bytes, {size:,} expected", position=0, found=len(plain))
    return algorithm, plain


def read_envelope(content: bytes) -> tuple[str, int, int]:
    """The algorithm, the plain size and where the compressed bytes begin. CorruptError if it is no envelope."""
    name_size = content[ENVELOPE.at("name_size")] if len(content) >= ENVELOPE.size else 0
    start = ENVELOPE.size + name_size + ORIGINAL_SIZE
    if not 1 <= name_size <= LONGEST_NAME or content[0] != ENVELOPE_VERSION or len(content) < start:
        raise CorruptError("no compression envelope", position=0, layout=ENVELOPE.name)
    name = content[ENVELOPE.size : ENVELOPE.size + name_size]
    size = int.from_bytes(content[start - ORIGINAL_SIZE : start], "big", signed=True)
    if not name.isascii() or name.decode() not in ALGORITHMS:
        raise CorruptError(
            f"compression {name!r}, {' or '.join(ALGORITHMS)} expected", position=ENVELOPE.size, found=name
        )
    if size < 0:
        raise CorruptError(f"{size} bytes when decompressed", position=start - ORIGINAL_SIZE, found=size)
    return name.decode(), size, start


def _inflate(algorithm: str, data: bytes, size: int) -> bytes:
    if algorithm == "ZSTD":
        return bytes(decompress("zstd", data, limit=size))
    import lz4.block

    if size > LZ4_RATIO * len(data):
        raise CorruptError(f"LZ4 block: {len(data):,} bytes declare {size:,}", position=0)
    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=size)) if size else b""
    except lz4.block.LZ4BlockError as error:
        raise CorruptError(f"LZ4 block: {error}", position=0) from None


def make_envelope(algorithm: str, content: bytes) -> bytes:
    """Content compressed as the router does. EncodeError for an algorithm it does not know."""
    if algorithm == "LZ4":
        import lz4.block

        packed: bytes = lz4.block.compress(content, store_size=False)
    elif algorithm == "ZSTD":
        import zstandard

        packed = zstandard.compress(content)
    else:
        raise EncodeError(f"compression {algorithm!r}: {' or '.join(ALGORITHMS)} expected")
    head = bytes([ENVELOPE_VERSION, len(algorithm)]) + algorithm.encode() + len(content).to_bytes(ORIGINAL_SIZE, "big")
    return head + packed


__all__ = ["Chunk", "Metadata", "make_envelope", "make_metadata", "open_envelope", "parse_metadata", "read_envelope"]


# Blobs and their chunks among rows of `records` ----------------------------------------------------------------------------


def copy_ids(batch: pa.RecordBatch) -> pa.Array:
    """The blob of each row, as bytes that are equal for equal blobs."""
    import pyarrow as pa

    return pa.array([None if one is None else order(one) for one in batch.column("key").to_pylist()], pa.binary())


def part_ids(batch: pa.RecordBatch) -> pa.Array:
    """The chunks of large blobs, which are blobs of their own. Of encrypted ones they are not known."""
    import pyarrow as pa

    found = []
    for headers, value in zip(batch.column("headers").to_pylist(), batch.column("value").to_pylist(), strict=True):
        said = {one["key"]: one["value"] for one in headers or ()}
        if value is None or said.get("blob_type") != BLOB_TYPES[1].encode():
            continue
        try:
            plain = open_envelope(value)[1] if said.get("is_compressed") == b"true" else value
            found += [order(chunk.key) for chunk in parse_metadata(plain).chunks]
        except DataError:
            continue  # zeros of one that is erased already, or encrypted
    return pa.array(found, pa.binary())
