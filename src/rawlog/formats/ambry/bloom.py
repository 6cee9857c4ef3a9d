"""Bloom filters of index segments: which keys a segment may hold.

Authority: com.github.ambry.utils.BloomFilter, which came from Cassandra with its MurmurHash3 whose last bytes are
sign-extended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rawlog.checksums import crc32
from rawlog.errors import CorruptError, OptionError
from rawlog.formats.ambry.keys import uuid_bytes
from rawlog.formats.ambry.layouts import BLOOM_SPARE, BLOOM_TABLE, CRC_SIZE
from rawlog.formats.ambry.structures import Cursor

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
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
        for bit in buckets(item, self.hash_count, self.capacity):
            self.words[bit >> 6] |= np.uint64(1 << (bit & 63))

    def has(self, item: bytes) -> bool:
        """Whether the item may have been added; false is certain."""
        return all(int(self.words[bit >> 6]) >> (bit & 63) & 1 for bit in buckets(item, self.hash_count, self.capacity))

    def has_key(self, raw: bytes) -> bool:
        """Whether a key may be there, by all its bytes or, as some stores have it, by its uuid alone."""
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
    """A bloom file. CorruptError if its numbers cannot be."""
    hash_count = cursor.number("hash_count", "i32", "bits set for a key")
    words = cursor.number("word_count", "i32", "words of 64 bits")
    if not 0 < hash_count <= 64 or words <= 0:
        raise CorruptError(f"{hash_count} hashes in {words} words", position=cursor.base, field="hash_count")
    raw = cursor.raw("words", words * WORD, "bits")
    return Bloom(hash_count, np.frombuffer(raw, ">u8").astype(np.uint64), cursor.crc())


def buckets(item: bytes, count: int, capacity: int) -> list[int]:
    """The bits of an item."""
    first, second = murmur3(item)
    return [abs(_signed(first + number * second)) % capacity for number in range(count)]


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _rotate(value: int, by: int) -> int:
    return (value << by | value >> (64 - by)) & _MASK


def _mix(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def murmur3(data: bytes) -> tuple[int, int]:
    """MurmurHash3 x64 128, seed 0, with the tail bytes taken as signed numbers."""
    h1 = h2 = 0
    whole = len(data) & ~15
    for at in range(0, whole, 16):
        k1 = int.from_bytes(data[at : at + 8], "little") * _C1 & _MASK
        h1 ^= _rotate(k1, 31) * _C2 & _MASK
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DCE729 & _MASK
        k2 = int.from_bytes(data[at + 8 : at + 16], "little") * _C2 & _MASK
        h2 ^= _rotate(k2, 33) * _C1 & _MASK
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x38495AB5 & _MASK
    k1 = k2 = 0
    for number, byte in enumerate(data[whole:]):
        wide = (byte - 256 if byte > 127 else byte) & _MASK
        if number < 8:
            k1 ^= wide << 8 * number & _MASK
        else:
            k2 ^= wide << 8 * (number - 8) & _MASK
    h2 ^= _rotate(k2 * _C2 & _MASK, 33) * _C1 & _MASK
    h1 ^= _rotate(k1 * _C1 & _MASK, 31) * _C2 & _MASK
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    h1, h2 = _mix(h1), _mix(h2)
    h1 = h1 + h2 & _MASK
    return h1, h2 + h1 & _MASK
