"""Bloom filters of index segments: which keys a segment may hold.

Authority: com.github.ambry.utils.BloomFilter, which came from Cassandra with its MurmurHash3 whose last bytes are
sign-extended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawlog.core.errors import CorruptError, OptionError, RawlogError
from rawlog.core.format import File
from rawlog.core.frames import Bytes, Frames
from rawlog.formats.ambry.kernels.blooms import add_spans, have_spans
from rawlog.formats.ambry.keys import uuid_bytes, uuid_spans
from rawlog.formats.ambry.layouts import BLOOM_SPARE, BLOOM_TABLE, CRC_SIZE
from rawlog.formats.ambry.structures import Cursor, Whole
from rawlog.io.checksums import crc32
from rawlog.io.storage import Source
from rawlog.kernels import byte_view

WORD = 8


@dataclass(slots=True)
class Bloom:
    """A filter: how many bits a key sets, and the bits."""

    hash_count: int
    words: NDArray[np.uint64]
    crc_ok: bool = True

    @property
    def capacity(self) -> int:
        return int(self.words.size) * 64

    def add(self, item: bytes) -> None:
        """Add one item."""
        self.add_keys(np.frombuffer(item, np.uint8), np.zeros(1, np.int64), np.full(1, len(item), np.int64))

    def add_keys(self, data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        """Add items that are in `data`."""
        starts, sizes = _whole(starts), _whole(sizes)
        add_spans(byte_view(data), starts, sizes, self.hash_count, self.words.view(np.int64))

    def has(self, item: bytes) -> bool:
        """Whether the item may have been added; false is certain."""
        return bool(self.have(np.frombuffer(item, np.uint8), np.zeros(1, np.int64), np.full(1, len(item), np.int64))[0])

    def have(self, data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which items in `data` may have been added; false is certain."""
        out = np.empty(starts.size, np.bool_)
        starts, sizes = _whole(starts), _whole(sizes)
        have_spans(byte_view(data), starts, sizes, self.hash_count, self.words.view(np.int64), out)
        return out

    def have_keys(self, data: Bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which keys may be there, by all their bytes or, as some stores have it, by their uuid alone."""
        return self.have(data, starts, sizes) | self.have(data, *uuid_spans(byte_view(data), starts, sizes))

    def has_key(self, raw: bytes) -> bool:
        """Whether a key may be there."""
        return self.has(raw) or self.has(uuid_bytes(raw))

    def encode(self) -> bytes:
        body = (
            self.hash_count.to_bytes(4, "big")
            + int(self.words.size).to_bytes(4, "big")
            + self.words.astype(">u8").tobytes()
        )
        return body + crc32(body).to_bytes(CRC_SIZE, "big")


def make(keys: Iterable[bytes], elements: int, probability: float = 0.01, *, by_uuid: bool = False) -> Bloom:
    """The filter that Ambry makes of keys. OptionError for a probability that it has no numbers for."""
    if probability not in BLOOM_TABLE:
        raise OptionError(f"bloom probability {probability}: one of {', '.join(map(str, BLOOM_TABLE))} expected")
    hash_count, per_element = BLOOM_TABLE[probability]
    found = Bloom(hash_count, np.zeros(((elements * per_element + BLOOM_SPARE - 1) >> 6) + 1, np.uint64))
    for raw in keys:
        found.add(uuid_bytes(raw) if by_uuid else raw)
    return found


def read_bloom(cursor: Cursor) -> Bloom:
    """A bloom file. CorruptError for invalid numbers."""
    hash_count = cursor.number("hash_count", "i32", "bits set for a key")
    words = cursor.number("word_count", "i32", "words of 64 bits")
    if not 0 < hash_count <= 64 or words <= 0:
        raise CorruptError(f"{hash_count} hashes in {words} words", position=cursor.base, field="hash_count")
    raw = cursor.raw("words", words * WORD, "bits")
    return Bloom(hash_count, np.frombuffer(raw, ">u8").astype(np.uint64), cursor.crc())


def _whole(array: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.ascontiguousarray(array, np.int64)


BLOOM = Whole("bloom filter", read_bloom)


class BloomSummary:
    """A bloom file as the one pass over it found it: the filter, None if the file is damaged."""

    rises = True

    def __init__(self, file: File, files: Sequence[File] = (), start: int = 0, stop: int | None = None) -> None:
        self.bloom: Bloom | None = None

    def see(self, frames: Frames) -> None:
        """Take in the file, which is one frame."""
        if len(frames):
            self.bloom = read_bloom(Cursor(frames.data.tobytes()))

    def close(self) -> BloomSummary:
        return self

    def merge(self, following: BloomSummary) -> BloomSummary:
        """A bloom is never cut; the frame is in one of the splits."""
        self.bloom = self.bloom or following.bloom
        return self


def sound_bloom(file: File, summary: object = None) -> Bloom | None:
    """The bloom in a file, if it can be read and its checksum is right; `summary` is what a pass over the file found."""
    if isinstance(summary, BloomSummary):
        return summary.bloom
    try:
        with Source(file.path) as source:
            bloom = read_bloom(Cursor(source.read(0, source.size)))
    except RawlogError:
        return None
    return bloom if bloom.crc_ok else None
