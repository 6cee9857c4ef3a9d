"""The four codecs in the framings that Kafka gives them (specs/kafka-log.md section 4), both ways.

The block formats are left to public libraries, the framings are done here by hand. Imports nothing of rawlog.
"""

from __future__ import annotations

import gzip
import struct
import zlib

import cramjam
import lz4.block
import zstandard

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
XERIAL = bytes.fromhex("82534e4150505900")
LZ4_MAGIC = bytes.fromhex("04224d18")


class CodecError(ValueError):
    """The bytes are no whole stream of the codec."""


def decompress(codec: int, data: bytes, magic: int) -> bytes:
    """The plain bytes of a compressed batch or wrapper of that magic. Raises CodecError."""
    if codec == 1:
        return _gunzip(data)
    if codec == 2:
        return _unsnappy(data)
    if codec == 3:
        return _unlz4(data, verify_header=magic != 0)
    if codec == 4:
        return _unzstd(data)
    raise CodecError(f"codec {codec}")


def _gunzip(data: bytes) -> bytes:
    out = b""
    while True:
        member = zlib.decompressobj(wbits=31)
        try:
            out += member.decompress(data)
        except zlib.error as error:
            raise CodecError(f"gzip: {error}") from None
        if not member.eof:
            raise CodecError("gzip: the stream ends too early")
        data = member.unused_data
        if not data.startswith(b"\x1f\x8b"):  # Java takes anything else behind a member for the end
            return out


def _unsnappy(data: bytes) -> bytes:
    if not data.startswith(XERIAL):
        return _unsnappy_block(data)
    if len(data) < 16:
        raise CodecError("snappy: the xerial header ends too early")
    out, position = b"", 16
    while len(data) - position >= 4:
        if data[position : position + 4] == XERIAL[:4]:  # another stream begins
            position += 16
            continue
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if size < 0 or len(data) - position < size:
            raise CodecError(f"snappy: block of {size} bytes, {len(data) - position} left")
        out += _unsnappy_block(data[position : position + size])
        position += size
    return out


def _unsnappy_block(block: bytes) -> bytes:
    try:
        return bytes(cramjam.snappy.decompress_raw(block))
    except Exception as error:
        raise CodecError(f"snappy: {error}") from None


def _unlz4(data: bytes, verify_header: bool) -> bytes:
    if len(data) < 7 or data[:4] != LZ4_MAGIC:
        raise CodecError("lz4: no frame header")
    flags, block = data[4], data[5]
    if flags >> 6 != 1 or not flags & 0x20 or flags & 0x03:
        raise CodecError(f"lz4: flags {flags:02x}")
    if block & 0x8F or not 4 <= block >> 4 <= 7:
        raise CodecError(f"lz4: block descriptor {block:02x}")
    largest = 1 << (8 + 2 * (block >> 4))
    position = 6 + (8 if flags & 0x08 else 0)
    if len(data) <= position:
        raise CodecError("lz4: the header ends too early")
    if verify_header and data[position] != (xxh32(data[4:position]) >> 8) & 0xFF:
        raise CodecError(f"lz4: header checksum {data[position]:02x}")
    position += 1
    out = b""
    while True:
        if len(data) - position < 4:
            raise CodecError("lz4: no end mark")
        (size,) = struct.unpack_from("<I", data, position)
        position += 4
        if size == 0:  # what follows is not looked at, not even the checksum of the content
            return out
        stored, size = size >> 31, size & 0x7FFFFFFF
        if size > largest or len(data) - position < size:
            raise CodecError(f"lz4: block of {size} bytes, {len(data) - position} left")
        chunk = data[position : position + size]
        position += size
        if flags & 0x10:
            if data[position : position + 4] != struct.pack("<I", xxh32(chunk)):
                raise CodecError("lz4: block checksum")
            position += 4
        if stored:
            out += chunk
        else:
            try:
                out += lz4.block.decompress(chunk, uncompressed_size=largest)
            except lz4.block.LZ4BlockError as error:
                raise CodecError(f"lz4: {error}") from None


def _unzstd(data: bytes) -> bytes:
    out = b""
    while True:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            out += frame.decompress(data)
        except zstandard.ZstdError as error:
            raise CodecError(f"zstd: {error}") from None
        if not frame.eof:
            raise CodecError("zstd: the frame ends too early")
        data = frame.unused_data
        if not data:
            return out


def compress(codec: int, data: bytes, magic: int = 2, raw_snappy: bool = False) -> bytes:
    """A stream as Kafka's own writer frames it; `raw_snappy` as librdkafka does (no xerial header)."""
    if codec == 1:
        return gzip.compress(data, mtime=0)
    if codec == 2:
        if raw_snappy:
            return bytes(cramjam.snappy.compress_raw(data))
        out = XERIAL + struct.pack(">ii", 1, 1)
        for start in range(0, len(data), 32768):
            block = bytes(cramjam.snappy.compress_raw(data[start : start + 32768]))
            out += struct.pack(">i", len(block)) + block
        return out
    if codec == 3:
        descriptor = b"\x60\x40"
        covered = LZ4_MAGIC + descriptor if magic == 0 else descriptor  # the old bug, kept for ever in magic 0
        out = LZ4_MAGIC + descriptor + bytes([(xxh32(covered) >> 8) & 0xFF])
        for start in range(0, len(data), 65536):
            chunk = data[start : start + 65536]
            block = lz4.block.compress(chunk, store_size=False)
            if len(block) < len(chunk):
                out += struct.pack("<I", len(block)) + block
            else:
                out += struct.pack("<I", len(chunk) | 0x80000000) + chunk
        return out + bytes(4)
    if codec == 4:
        stream = zstandard.ZstdCompressor(level=3).compressobj()
        return stream.compress(data) + stream.flush()
    raise ValueError(f"codec {codec}")


def xxh32(data: bytes) -> int:
    """XXH32 with seed 0."""
    p1, p2, p3, p4, p5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
    mask = 0xFFFFFFFF

    def turn(value: int, bits: int) -> int:
        value &= mask
        return (value << bits | value >> (32 - bits)) & mask

    position = 0
    if len(data) >= 16:
        lanes = [p1 + p2 & mask, p2, 0, -p1 & mask]
        while len(data) - position >= 16:
            for lane, word in enumerate(struct.unpack_from("<4I", data, position)):
                lanes[lane] = turn(lanes[lane] + word * p2, 13) * p1 & mask
            position += 16
        digest = turn(lanes[0], 1) + turn(lanes[1], 7) + turn(lanes[2], 12) + turn(lanes[3], 18)
    else:
        digest = p5
    digest += len(data)
    while len(data) - position >= 4:
        digest = turn(digest + struct.unpack_from("<I", data, position)[0] * p3, 17) * p4
        position += 4
    while position < len(data):
        digest = turn(digest + data[position] * p5, 11) * p1
        position += 1
    digest &= mask
    digest = (digest ^ digest >> 15) * p2 & mask
    digest = (digest ^ digest >> 13) * p3 & mask
    return digest ^ digest >> 16
