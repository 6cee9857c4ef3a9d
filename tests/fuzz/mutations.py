"""What fuzzers do to bytes. Fields, frames and checksums are those that `explain` shows."""

from __future__ import annotations

import random
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import crc32c

from rawlog.io.walk import walk
from rawlog.model.explain import Node
from rawlog.model.format import File, Format
from rawlog.testing.damage import WOUNDS
from tests.reference import codecs, kafka

Spans = list[tuple[int, int]]


class Checksum(NamedTuple):
    """Where a checksum is, which bytes it covers, and what computes it."""

    start: int
    stop: int
    first: int
    end: int
    compute: Callable[[bytes], int]


#: Those of the systems: CRC-32C, CRC-32, and CRC-32 without its sign.
CHECKSUMS: tuple[Callable[[bytes], int], ...] = (crc32c.crc32c, zlib.crc32, lambda data: zlib.crc32(data) & 0x7FFFFFFF)


@dataclass
class Structure:
    """The fields, checksums and frames of a sound file."""

    data: bytes
    fields: Spans = field(default_factory=list)
    checksums: list[Checksum] = field(default_factory=list)
    frames: Spans = field(default_factory=list)

    def learn_file(self, file: File, format: Format, errors: str = "stop") -> None:
        """Take in the frames of a file with these bytes."""
        if not format.can("explain"):
            self.fields = [(at, at + 1) for at in range(len(self.data))]
            return
        for frames in walk(file, format, errors=errors):
            for index in range(len(frames)):
                self.learn(format.codec.explain(frames.slice(index, index + 1), file))

    def learn(self, nodes: Iterable[Node]) -> None:
        """Take in the nodes of a frame."""
        for top in nodes:
            self.frames.append((top.position, top.position + top.size))
            for _, node in top.walk():
                stop = node.position + node.size
                if node.inside or node.children or not node.size or stop > len(self.data):
                    continue
                self.fields.append((node.position, stop))
                if node.covers:
                    self._learn_checksum(node, *node.covers)

    def _learn_checksum(self, node: Node, first: int, end: int) -> None:
        stop = node.position + node.size
        stored = int.from_bytes(self.data[node.position : stop], "big")
        for compute in CHECKSUMS:
            if compute(self.data[first:end]) == stored:
                self.checksums.append(Checksum(node.position, stop, first, end, compute))
                return


class Change(NamedTuple):
    """Bytes after a mutation, what it was, and whether checksums were put right."""

    data: bytes
    story: str
    is_right: bool = False


def change_field(draw: random.Random, structure: Structure, data: bytes) -> Change:
    """A field has a value at an edge of its type, and the checksums over it are right again, most of the time."""
    if not structure.fields or len(data) != len(structure.data):
        return wound(draw, data)
    start, stop = draw.choice(structure.fields)
    changed, size = bytearray(data), stop - start
    if size > 8 or draw.random() < 0.1:
        at = start + draw.randrange(size)
        changed[at] = draw.choice((0, 0xFF, 0x7F, 0x80, changed[at] ^ 1 << draw.randrange(8), draw.randrange(256)))
    else:
        changed[start:stop] = _edge(draw, int.from_bytes(data[start:stop], "big"), size, len(data))
    is_right = draw.random() < 0.7 and correct(structure, changed, start, stop)
    value = changed[start:stop].hex() if size <= 8 else "changed"
    return Change(bytes(changed), f"bytes {start} to {stop} are {value}{', checksums right' * is_right}", is_right)


def _edge(draw: random.Random, before: int, size: int, length: int) -> bytes:
    bits = 8 * size
    edges = (
        0,
        1,
        -1,
        1 << (bits - 1),
        (1 << (bits - 1)) - 1,
        before + 1,
        before - 1,
        before ^ 1 << draw.randrange(bits),
        length,
        draw.getrandbits(bits),
        draw.randrange(-20, 20),
    )
    value: int = draw.choice(edges) % (1 << bits)
    order = "big" if draw.random() < 0.95 else "little"
    return value.to_bytes(size, order)  # type: ignore[arg-type]


def correct(structure: Structure, data: bytearray, start: int, stop: int) -> bool:
    """Put the checksums over some bytes right, the innermost first; whether there were any."""
    covering = [each for each in structure.checksums if each.first < stop and start < each.end]
    for each in sorted(covering, key=lambda each: each.end - each.first):
        right = each.compute(bytes(data[each.first : each.end]))
        data[each.start : each.stop] = right.to_bytes(each.stop - each.start, "big")
    return bool(covering)


def wound(draw: random.Random, data: bytes) -> Change:
    """Plain damage somewhere."""
    if not data:
        return Change(draw.randbytes(draw.randrange(40)), "bytes in an empty file")
    kind, at = draw.choice(sorted(WOUNDS)), draw.randrange(len(data))
    return Change(WOUNDS[kind](draw, data, at), f"{kind} at {at}")


def move_frames(draw: random.Random, structure: Structure, data: bytes) -> Change:
    """A frame is missing, there twice, cut, or at the place of another one."""
    if not structure.frames or len(data) != len(structure.data):
        return wound(draw, data)
    start, stop = draw.choice(structure.frames)
    other, end = draw.choice(structure.frames)
    frame, kind = data[start:stop], draw.choice(("missing", "twice", "moved", "cut", "swapped"))
    if kind == "missing":
        changed = data[:start] + data[stop:]
    elif kind == "twice":
        changed = data[:stop] + frame + data[stop:]
    elif kind == "moved":
        changed = data[:other] + frame + data[end:]
    elif kind == "cut":
        changed = data[: start + draw.randrange(stop - start + 1)] + data[stop:]
    else:
        (a, b), (c, d) = sorted(((start, stop), (other, end)))
        changed = data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:] if b <= c else data
    return Change(changed, f"frame at {start} {kind}, {other}")


def change_content(draw: random.Random, structure: Structure, data: bytes) -> Change:
    """The records of a Kafka batch are others, compressed in any way: what a decompressor gives is to be trusted no more."""
    if not structure.frames or len(data) != len(structure.data):
        return wound(draw, data)
    start, stop = draw.choice(structure.frames)
    try:
        frame, what = _repacked(draw, data[start:stop])
    except (codecs.CodecError, struct.error, ValueError, LookupError):
        return wound(draw, data)
    return Change(data[:start] + frame + data[stop:], f"content of the batch at {start}: {what}, checksums right", True)


def _repacked(draw: random.Random, frame: bytes) -> tuple[bytes, str]:
    magic = frame[16]
    codec = frame[22] & 7 if magic == 2 else frame[17] & 3
    at = HEADER_V2 if magic == 2 else LEGACY_VALUE[magic]
    content = codecs.decompress(codec, frame[at:], magic) if codec else frame[at:]
    change = wound(draw, content) if draw.random() < 0.7 else Change(content, "the same")
    chosen = draw.choice((codec, 1, 2, 3, 4)) if magic == 2 else codec
    packed = codecs.compress(chosen, change.data, magic, draw.random() < 0.3) if chosen else change.data
    what = f"{change.story}, codec {chosen}"
    if magic != 2:
        timestamp = int.from_bytes(frame[18:26], "big", signed=True) if magic else -1
        offset = int.from_bytes(frame[:8], "big")
        if not codec:
            raise ValueError("a plain message has no other content")
        return kafka.encode_entry(magic, offset, None, packed, timestamp, frame[17]), what
    head = bytearray(frame[:at])
    head[8:12] = struct.pack(">i", at - 12 + len(packed))
    head[22] = head[22] & 0xF8 | chosen
    head[17:21] = struct.pack(">I", crc32c.crc32c(bytes(head[21:]) + packed))
    return bytes(head) + packed, what


#: Bytes before the records of a batch of format 2; before the value of a message without a key of formats 0 and 1.
HEADER_V2, LEGACY_VALUE = 61, {0: 26, 1: 34}


#: Numbers at the edges of types, and beyond all of them.
NUMBERS = (
    -1,
    0,
    1,
    7,
    10**9,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
    10**20 - 1,
    10**30,
)


def change_number(draw: random.Random, data: bytes) -> Change:
    """A number in a text is at an edge of some type, or beyond it."""
    numbers = list(re.finditer(rb"-?\d+", data))
    if not numbers:
        return wound(draw, data)
    match, number = draw.choice(numbers), draw.choice(NUMBERS)
    return Change(
        data[: match.start()] + b"%d" % number + data[match.end() :], f"number at {match.start()} is {number}"
    )


def is_text(data: bytes) -> bool:
    return bool(data) and data.isascii() and data.decode().replace("\n", "").replace("\t", "").isprintable()


def mutate(draw: random.Random, structure: Structure, data: bytes, *, is_kafka: bool = False) -> Change:
    """One mutation of any kind."""
    chance = draw.random()
    if chance < 0.3 and is_text(data):
        return change_number(draw, data)
    if is_kafka and chance < 0.15:
        return change_content(draw, structure, data)
    if chance < 0.6:
        return change_field(draw, structure, data)
    return wound(draw, data) if chance < 0.85 else move_frames(draw, structure, data)
