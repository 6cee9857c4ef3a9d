"""Codecs by name, in the framings that Kafka and RocketMQ use, with a bound on everything they produce.

`decompress` never makes more than `limit` bytes, whatever a frame declares, and answers malformed bytes with
CorruptError only. Truncated streams are errors too: none of the framings may end early.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import cramjam
import deflate
import lz4.block
import zstandard
from isal import isal_zlib

from rawlog.kernels import byte_view
from rawlog.model.errors import (
    CorruptError,
    LimitError,
    OptionError,
    UnsupportedError,
    unknown,
)

DEFAULT_LIMIT = 256 << 20
"""The most one compressed unit may hold unless the caller says otherwise."""
Bytes = bytes | bytearray | memoryview

_local = threading.local()


def decompress(codec: str, data: Any, *, limit: int = DEFAULT_LIMIT, broken_lz4_header: bool = False) -> Bytes:
    """The bytes that `data` holds compressed, at most `limit` of them.

    `broken_lz4_header` leaves the header checksum of lz4 unverified: Kafka's magic 0 has a wrong one.
    Raises CorruptError for malformed, truncated or oversized data, OptionError for an unknown codec.
    """
    view = memoryview(data).cast("B")
    if codec == "none":
        if len(view) > limit:
            raise _too_large(codec, limit)
        return view
    if codec == "lz4":
        return _decompress_lz4(view, limit, broken_lz4_header)
    try:
        decompressor = _DECOMPRESSORS[codec]
    except KeyError:
        raise unknown("codec", codec, CODECS) from None
    return decompressor(view, limit)


def compress(codec: str, data: Any, level: int | None = None, *, broken_lz4_header: bool = False) -> Bytes:
    """`data` compressed as Kafka's own writer frames it; `level` is the codec's own scale, None its default.

    Raises OptionError for an unknown codec or a level that it does not have.
    """
    view = memoryview(data).cast("B")
    if codec not in CODECS:
        raise unknown("codec", codec, CODECS)
    _check_level(codec, level)
    if codec == "none":
        return view
    if codec == "gzip":
        return deflate.gzip_compress(view, 6 if level in (None, -1) else level)
    if codec == "zlib":
        return deflate.zlib_compress(view, 6 if level in (None, -1) else level)
    if codec == "snappy":
        return _compress_snappy(view)
    if codec == "lz4":
        return _compress_lz4(view, level, broken_lz4_header)
    return _compress_zstd(view, level)


def _too_large(codec: str, limit: int) -> LimitError:
    return LimitError(
        f"{codec} data decompresses to more than the limit of {limit:,} bytes; --max-decompressed raises it",
        expected=limit,
    )


class _Pieces:
    """Blocks of a stream put together, so that a large stream is never in memory twice."""

    _SMALL = 8 << 20

    def __init__(self) -> None:
        self.whole = bytearray()
        self.small: list[Bytes] = []
        self.size = 0

    def append(self, piece: Bytes) -> None:
        self.small.append(piece)
        self.size += len(piece)
        if self.size > self._SMALL and len(self.small) > 1:
            self._flush()

    def joined(self) -> Bytes:
        if not self.whole:
            return self.small[0] if len(self.small) == 1 else b"".join(self.small)
        self._flush()
        return self.whole

    def _flush(self) -> None:
        for piece in self.small:
            self.whole += piece
        self.small, self.size = [], 0


def _corrupt(codec: str, what: object) -> CorruptError:
    return CorruptError(f"{codec} data: {what}")


# gzip and zlib ---------------------------------------------------------------------------------------------------

_MEMBER_PIECE = 16384
"""How much is fed to a later gzip member at first: what it leaves is copied, and members may be tiny."""


_isal: Any = isal_zlib
_INFLATE_ERRORS: tuple[type[Exception], ...] = (_isal.error, ValueError, OverflowError, EOFError)


def _decompress_gzip(view: memoryview, limit: int) -> Bytes:
    """All members. (A member is one gzip file; several may be concatenated.)"""
    pieces = _Pieces()
    position, size, step = 0, 0, len(view)
    while True:
        piece, position = _inflate("gzip", view, position, size, limit, 31, step)
        pieces.append(piece)
        size, step = size + len(piece), _MEMBER_PIECE
        if position >= len(view):
            return pieces.joined()


def _decompress_zlib(view: memoryview, limit: int) -> Bytes:
    piece, position = _inflate("zlib", view, 0, 0, limit, 15, len(view))
    # isal overlooks a single byte there; the stream ends with its checksum.
    if position != len(view) or int.from_bytes(view[-4:], "big") != isal_zlib.adler32(piece):
        raise _corrupt("zlib", "bytes after the end of the stream")
    return piece


def _inflate(
    codec: str, view: memoryview, position: int, size: int, limit: int, wbits: int, step: int
) -> tuple[Bytes, int]:
    """One stream from `position` on, `size` bytes having come before. -> its bytes, the position after it"""
    inflater: Any = isal_zlib.decompressobj(wbits)
    pieces = _Pieces()
    try:
        while not inflater.eof:
            fed: Any = view[position : position + step]
            position += len(fed)
            while True:
                piece = inflater.decompress(fed, limit - size + 1)
                pieces.append(piece)
                size += len(piece)
                if size > limit:
                    raise _too_large(codec, limit)
                fed = inflater.unconsumed_tail
                if inflater.eof or not fed:
                    break
            if not inflater.eof and position == len(view):
                raise _corrupt(codec, "it ends inside the stream")
    except _INFLATE_ERRORS as error:
        raise _corrupt(codec, error) from None
    return pieces.joined(), position - len(inflater.unused_data)


# snappy ----------------------------------------------------------------------------------------------------------

XERIAL_MAGIC = bytes.fromhex("82534e4150505900")
XERIAL_HEADER = XERIAL_MAGIC + bytes.fromhex("0000000100000001")
XERIAL_BLOCK = 32768
_XERIAL_AGAIN = int.from_bytes(XERIAL_MAGIC[:4], "big")
_SNAPPY_RATIO = 64
"""More than any element of a snappy block can stretch a byte."""


def _decompress_snappy(view: memoryview, limit: int) -> Bytes:
    head = bytes(view[: len(XERIAL_HEADER) + 4])
    if head[:8] != XERIAL_MAGIC:
        return _join_snappy([view], limit)
    if head[:-4] == XERIAL_HEADER and int.from_bytes(head[-4:], "big") == len(view) - len(head):
        return _join_snappy([view[len(head) :]], limit)  # one block, as most batches have
    blocks: list[memoryview] = []
    position = _skip_xerial_header(view, 0)
    while position < len(view):
        if len(view) - position < 4:
            raise _corrupt("snappy", "it ends inside a block length")
        size = int.from_bytes(view[position : position + 4], "big")
        if size == _XERIAL_AGAIN:
            position = _skip_xerial_header(view, position)
            continue
        position += 4
        if size > len(view) - position:
            raise _corrupt("snappy", f"block of {size:,} bytes where {len(view) - position:,} are left")
        blocks.append(view[position : position + size])
        position += size
    return _join_snappy(blocks, limit)


def _skip_xerial_header(view: memoryview, position: int) -> int:
    if len(view) - position < len(XERIAL_HEADER):
        raise _corrupt("snappy", "it ends inside a stream header")
    if bytes(view[position : position + 8]) != XERIAL_MAGIC:
        raise _corrupt("snappy", "bad stream header")
    compatible = int.from_bytes(view[position + 12 : position + 16], "big", signed=True)
    if compatible < 1:
        raise _corrupt("snappy", f"stream of compatible version {compatible}, at least 1 expected")
    return position + len(XERIAL_HEADER)


def _join_snappy(blocks: list[memoryview], limit: int) -> Bytes:
    pieces = _Pieces()
    total = 0
    try:
        for block in blocks:
            size = cramjam.snappy.decompress_raw_len(block)
            if size > len(block) * _SNAPPY_RATIO:
                raise _corrupt("snappy", f"block of {len(block):,} bytes declares {size:,}")
            total += size
            if total > limit:
                raise _too_large("snappy", limit)
            piece = bytearray(size)
            written = cramjam.snappy.decompress_raw_into(block, piece)
            if written != size:
                raise _corrupt("snappy", f"block of {written:,} bytes, {size:,} declared")
            pieces.append(piece)
    except (cramjam.DecompressionError, ValueError, OverflowError) as error:
        raise _corrupt("snappy", error) from None
    return pieces.joined()


def _compress_snappy(view: memoryview) -> Bytes:
    pieces = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK]))
        pieces += (len(block).to_bytes(4, "big"), block)
    return b"".join(pieces)


# lz4 -------------------------------------------------------------------------------------------------------------

LZ4_MAGIC = bytes.fromhex("04224d18")
LZ4_BLOCK = 65536
_LZ4_PLAIN = bytes.fromhex("6040")
"""Kafka's own descriptor: version 1, independent blocks of 64 KiB, nothing else."""
_LZ4_USUAL = LZ4_MAGIC + _LZ4_PLAIN + b"\x82"
"""The header of nearly every frame, whose checks are known to pass."""
_LZ4_STORED = 0x80000000
_LZ4_VERSION, _LZ4_INDEPENDENT, _LZ4_BLOCK_SUM, _LZ4_SIZE, _LZ4_SUM, _LZ4_RESERVED, _LZ4_DICTIONARY = (
    0xC0,
    0x20,
    0x10,
    0x08,
    0x04,
    0x02,
    0x01,
)


def _lz4_header_sum(descriptor: Bytes) -> int:
    if descriptor == _LZ4_PLAIN:
        return 0x82
    return _xxh32(descriptor) >> 8 & 0xFF


def _xxh32(data: Bytes) -> int:
    from rawlog.kernels import hashes  # only frames of lz4 have such sums

    return int(hashes.sum_xxh32(byte_view(data), 0, len(data)))


def _read_lz4_header(view: memoryview, broken: bool) -> tuple[int, int, int]:
    """-> position of the first block, most bytes of a block, FLG"""
    if len(view) < 7 or bytes(view[:4]) != LZ4_MAGIC:
        raise _corrupt("lz4", "no frame header")
    flags, descriptor = view[4], view[5]
    if flags & _LZ4_VERSION != 0x40:
        raise _corrupt("lz4", f"frame version {flags >> 6}, 1 expected")
    if flags & (_LZ4_RESERVED | _LZ4_DICTIONARY) or descriptor & 0x8F:
        raise _corrupt("lz4", f"reserved bits in the frame header: {flags:02x} {descriptor:02x}")
    if not flags & _LZ4_INDEPENDENT:
        raise UnsupportedError("lz4 data: dependent blocks")
    if descriptor >> 4 < 4:
        raise _corrupt("lz4", f"block size code {descriptor >> 4}, 4 to 7 expected")
    end = 14 if flags & _LZ4_SIZE else 6
    if len(view) <= end:
        raise _corrupt("lz4", "it ends inside the frame header")
    if not broken and view[end] != _lz4_header_sum(view[4:end]):
        raise _corrupt("lz4", f"header checksum {view[end]:02x}, {_lz4_header_sum(view[4:end]):02x} expected")
    return end + 1, 1 << (8 + 2 * (descriptor >> 4)), flags


def _decompress_lz4(view: memoryview, limit: int, broken: bool) -> Bytes:
    if bytes(view[:7]) == _LZ4_USUAL:
        position, largest, flags = 7, LZ4_BLOCK, _LZ4_USUAL[4]
    else:
        position, largest, flags = _read_lz4_header(view, broken)
    pieces = _Pieces()
    size = 0
    while True:
        if len(view) - position < 4:
            raise _corrupt("lz4", "it ends before the end mark")
        mark = int.from_bytes(view[position : position + 4], "little")
        position += 4
        if mark == 0:
            break
        length = mark & ~_LZ4_STORED
        if length > largest:
            raise _corrupt("lz4", f"block of {length:,} bytes, at most {largest:,} expected")
        if length > len(view) - position:
            raise _corrupt("lz4", f"block of {length:,} bytes where {len(view) - position:,} are left")
        block = view[position : position + length]
        position += length
        if flags & _LZ4_BLOCK_SUM:
            stored = view[position : position + 4]
            position += 4
            if len(stored) < 4 or int.from_bytes(stored, "little") != _xxh32(block):
                raise _corrupt("lz4", "block checksum differs")
        piece = block if mark & _LZ4_STORED else _inflate_lz4(block, largest)
        size += len(piece)
        if size > limit:
            raise _too_large("lz4", limit)
        pieces.append(piece)
    if flags & _LZ4_SUM and len(view) - position < 4:
        raise _corrupt("lz4", "it ends before the content checksum")
    # Kafka does not verify the content checksum, nor what follows the frame.
    return pieces.joined()


def _inflate_lz4(block: memoryview, largest: int) -> bytes:
    try:
        # A byte of a block stands for 255 at most.
        result: bytes = lz4.block.decompress(block, uncompressed_size=min(largest, 255 * len(block)))
    except (lz4.block.LZ4BlockError, ValueError, OverflowError) as error:
        raise _corrupt("lz4", error) from None
    return result


def _compress_lz4(view: memoryview, level: int | None, broken: bool) -> Bytes:
    mode: dict[str, Any] = {"mode": "default"}
    if level not in (None, 9):  # Kafka's default of 9 means the fast compressor
        mode = {"mode": "high_compression", "compression": min(level, 12)}
    checksum = _lz4_header_sum(LZ4_MAGIC + _LZ4_PLAIN if broken else _LZ4_PLAIN)
    pieces: list[Bytes] = [LZ4_MAGIC, _LZ4_PLAIN, bytes((checksum,))]
    for start in range(0, len(view), LZ4_BLOCK):
        block = view[start : start + LZ4_BLOCK]
        small = lz4.block.compress(block, store_size=False, **mode)
        if len(small) < len(block):
            pieces += (len(small).to_bytes(4, "little"), small)
        else:
            pieces += ((len(block) | _LZ4_STORED).to_bytes(4, "little"), block)
    pieces.append(bytes(4))
    return b"".join(pieces)


# zstd ------------------------------------------------------------------------------------------------------------

ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_BLOCK = 128 << 10
"""No block of zstd holds more."""


def _decompress_zstd(view: memoryview, limit: int) -> Bytes:
    """All frames. Each is walked block by block first, which gives its end and a bound on what it holds."""
    pieces = _Pieces()
    position, size = 0, 0
    while position < len(view) or position == 0:
        start, position, bound = _walk_zstd(view, position)
        if bound < 0:  # a skippable frame
            continue
        room = min(bound, limit - size)
        piece = _inflate_zstd(view[start:position], room, bound, limit)
        size += len(piece)
        pieces.append(piece)
    return pieces.joined()


def _inflate_zstd(frame: memoryview, room: int, bound: int, limit: int) -> bytes:
    decompressor = getattr(_local, "zstd", None)
    if decompressor is None:
        decompressor = _local.zstd = zstandard.ZstdDecompressor()
    try:
        declared = zstandard.frame_content_size(frame)
        if declared > room:
            raise (
                _too_large("zstd", limit)
                if declared <= bound
                else _corrupt("zstd", f"content size {declared:,}, but its blocks hold at most {bound:,}")
            )
        # A frame of one empty block may have no room to write to, which the library refuses.
        result: bytes = decompressor.decompress(frame, max_output_size=max(room, 1), allow_extra_data=False)
    except (zstandard.ZstdError, ValueError, OverflowError) as error:
        if room < bound and "did not decompress full frame" in str(error):
            raise _too_large("zstd", limit) from None
        raise _corrupt("zstd", error) from None
    if len(result) > room:
        raise _too_large("zstd", limit)
    return result


def _walk_zstd(view: memoryview, start: int) -> tuple[int, int, int]:
    """-> start and stop of the frame, the most bytes it can hold (-1: a skippable frame)"""
    size = len(view)
    if size - start < 6:
        raise _corrupt("zstd", "no whole frame header")
    magic = int.from_bytes(view[start : start + 4], "little")
    if magic & ~0xF == _ZSTD_SKIPPABLE:
        length = int.from_bytes(view[start + 4 : start + 8], "little")
        if size - start < 8 or size - start - 8 < length:
            raise _corrupt("zstd", "it ends inside a skippable frame")
        return start, start + 8 + length, -1
    if magic != ZSTD_MAGIC:
        raise _corrupt("zstd", f"frame begins with {magic:08x}, {ZSTD_MAGIC:08x} expected")
    flags = view[start + 4]
    single = flags >> 5 & 1
    position = start + 5 + (1 - single) + (0, 1, 2, 4)[flags & 3] + (single, 2, 4, 8)[flags >> 6]
    bound = 0
    while True:
        if size - position < 3:
            raise _corrupt("zstd", "it ends inside the frame")
        header = int.from_bytes(view[position : position + 3], "little")
        kind, length = header >> 1 & 3, header >> 3
        position += 3
        if kind == 3 or length > _ZSTD_BLOCK:
            raise _corrupt("zstd", f"block of type {kind} and {length:,} bytes")
        bound += _ZSTD_BLOCK if kind == 2 else length
        position += 1 if kind == 1 else length
        if header & 1:
            break
    position += 4 if flags & 4 else 0
    if position > size:
        raise _corrupt("zstd", "it ends inside the frame")
    return start, position, bound


def _compress_zstd(view: memoryview, level: int | None) -> Bytes:
    compressors: dict[int | None, Any] = _local.__dict__.setdefault("compressors", {})
    if level not in compressors:
        compressors[level] = zstandard.ZstdCompressor(3 if level is None else level, write_content_size=False)
    return compressors[level].compress(view)  # type: ignore[no-any-return]


# by name ---------------------------------------------------------------------------------------------------------

CODECS = ("none", "gzip", "snappy", "lz4", "zstd", "zlib")
_LEVELS: dict[str, tuple[int, int]] = {"gzip": (-1, 9), "zlib": (-1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}

_DECOMPRESSORS: dict[str, Callable[[memoryview, int], Bytes]] = {
    "gzip": _decompress_gzip,
    "zlib": _decompress_zlib,
    "snappy": _decompress_snappy,
    "zstd": _decompress_zstd,
}


def _check_level(codec: str, level: int | None) -> None:
    if level is None:
        return
    if codec not in _LEVELS:
        raise OptionError(f"codec {codec} has no levels")
    low, high = _LEVELS[codec]
    if not low <= level <= high or (codec in ("gzip", "zlib") and level == 0):
        raise OptionError(f"{codec} level {level}, {low} to {high} expected")
