"""Segments as Aiven's tiered storage plug-in stores them: a manifest, the log in chunks, and all indexes in one file.

The manifest (`.rsm-manifest`, JSON) says how long the log was and into which chunks it was cut. The chunks follow one another in `.log`,
each by itself compressed with zstd if the manifest says so. `.indexes` has the index files end to end, not compressed. Each of them is
read as a file of its own: `MANIFEST!/segment/log`, `…/index` and so on. Encrypted segments are recognised and cannot be read: their keys
are not here. Releases before 2024 stored each index in an object of its own, encrypted too if the log was.

Source: SegmentManifestV1, FixedSizeChunkIndex, VariableSizeChunkIndex, ChunkSizesBinaryCodec, ObjectKeyFactory, RemoteStorageManager of
Aiven-Open/tiered-storage-for-apache-kafka.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rawlog.formats.kafka.texts import WholeText, explain
from rawlog.io.compression import decompress
from rawlog.io.storage import Source, split_query
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    DataError,
    LimitError,
    LostError,
)
from rawlog.model.frames import Frames

__all__ = ["explain", "fault", "scan"]

LARGEST = 16 << 20
"""The largest manifest. It has the list of chunks compressed."""
LARGEST_LIST = 10 << 20
"""The largest list of chunks, not compressed: the plug-in itself takes no larger one."""
LARGEST_CHUNK = 256 << 20
#: What a number in a manifest may be: an int of Java.
LARGEST_NUMBER = (1 << 31) - 1
#: The parts of a segment besides its log: how the manifest names them, and how they are named as files of their own.
INDEXES = {
    "offset": "index",
    "timestamp": "timeindex",
    "producerSnapshot": "snapshot",
    "leaderEpoch": "leader-epoch-checkpoint",
    "transaction": "txnindex",
}
SUFFIX = ".rsm-manifest"


@dataclass(frozen=True, slots=True)
class Manifest:
    """How one segment is stored: in `count` chunks, each but the last of `chunk` bytes of the log, which has `size` bytes."""

    chunk: int
    size: int
    count: int
    #: Sizes of the stored chunks and of the last one, if all others are equal; else where each of them ends.
    stored_chunk: int
    last: int
    ends: NDArray[np.int64] | None
    is_compressed: bool
    is_encrypted: bool
    #: Position and size of each index in `.indexes`, by the name of its file. Releases before 2024 stored each index by itself.
    indexes: dict[str, tuple[int, int]]
    #: Topic, partition and the topic's id as text, if it names them: releases of today do.
    partition: tuple[str, int, str] | None = None

    def members(self) -> Iterator[tuple[str, int]]:
        """The files that the segment consists of, with their sizes."""
        yield "log", self.size
        yield from ((name, size) for name, (_, size) in self.indexes.items())

    def place(self, number: int) -> tuple[int, int]:
        """Where a stored chunk begins, and its size."""
        if self.ends is None:
            return number * self.stored_chunk, self.last if number == self.count - 1 else self.stored_chunk
        start = int(self.ends[number - 1]) if number else 0
        return start, int(self.ends[number]) - start


def parse(data: bytes) -> Manifest:
    """A manifest. ValueError, with what is wrong, for anything else."""
    try:
        return _manifest(json.loads(data))
    except (TypeError, KeyError, AttributeError, binascii.Error, RecursionError, DataError) as error:
        raise ValueError(f"not a segment manifest: {error}") from None


def _manifest(fields: dict[str, Any]) -> Manifest:
    if str(fields["version"]) != "1":
        raise ValueError(f"version {fields['version']}, 1 is known")
    index = fields["chunkIndex"]
    chunk, size = _number(index, "originalChunkSize", least=1), _number(index, "originalFileSize")
    count = -(-size // chunk)
    stored_chunk = last = 0
    ends = None
    if index["type"] == "fixed":
        stored_chunk, last = _number(index, "transformedChunkSize"), _number(index, "finalTransformedChunkSize")
        if (count > 1 and not stored_chunk) or (count and not last):
            raise ValueError("a chunk of no bytes")
    elif index["type"] == "variable":
        ends = np.cumsum(chunk_sizes(base64.b64decode(index["transformedChunks"], validate=True), count))
    else:
        raise ValueError(f"a chunk index of type {index['type']}")
    segment_indexes = fields.get("segmentIndexes") or {}
    spans = {
        INDEXES[name]: (_number(place, "position"), _number(place, "size"))
        for name, place in segment_indexes.items()
        if place is not None
    }
    is_encrypted = fields.get("encryption") is not None
    return Manifest(
        chunk,
        size,
        count,
        stored_chunk,
        last,
        ends,
        bool(fields["compression"]),
        is_encrypted,
        spans,
        _partition(fields),
    )


def _partition(fields: dict[str, Any]) -> tuple[str, int, str] | None:
    """Whose segment it is, as the manifest says for information; None if it does not."""
    try:
        partition_id = fields["remoteLogSegmentMetadata"]["remoteLogSegmentId"]["topicIdPartition"]
        topic, number = partition_id["topicPartition"]["topic"], partition_id["topicPartition"]["partition"]
        is_named = isinstance(topic, str) and isinstance(number, int) and isinstance(partition_id["topicId"], str)
        return (topic, number, partition_id["topicId"]) if is_named else None
    except (KeyError, TypeError):
        return None


def _number(fields: dict[str, Any], name: str, least: int = 0) -> int:
    """A number of a manifest. ValueError if it is not an int of Java, or too small."""
    value = fields[name]
    if type(value) is not int or not least <= value <= LARGEST_NUMBER:
        raise ValueError(f"{name} is not a number from {least} to {LARGEST_NUMBER:,}")
    return value


def chunk_sizes(data: bytes, expected: int) -> NDArray[np.int64]:
    """The sizes of so many chunks as the manifest stores them, compressed with zstd: a count, the least of them, how many bytes each
    number has, how much more each chunk has than the least, and the size of the last one.

    ValueError or DataError for anything else.
    """
    raw = np.frombuffer(decompress("zstd", data, limit=LARGEST_LIST), np.uint8)
    count = _big_endian(raw[:4])
    if count != expected:
        raise ValueError(f"{count:,} chunks, {expected:,} expected")
    width = int(raw[8]) if raw.size > 8 else 0
    needed = 4 + 4 * count if count < 2 else 9 + (count - 1) * width + 4
    if raw.size < needed or width > 4 or (count > 1 and raw.size < 9):
        raise ValueError(f"a list of {count:,} chunks in {raw.size:,} bytes")
    sizes = np.zeros(count, np.int64)
    if count > 1:
        for column in raw[9 : needed - 4].reshape(count - 1, width).T:
            sizes[:-1] = (sizes[:-1] << 8) | column
        sizes[:-1] += _big_endian(raw[4:8])
    if count:
        sizes[-1] = _big_endian(raw[needed - 4 : needed])
    if sizes.max(initial=0) > LARGEST_NUMBER or sizes.min(initial=1) < 1:
        raise ValueError("the size of a chunk is invalid")
    return sizes


def _big_endian(data: NDArray[np.uint8]) -> int:
    return int.from_bytes(data.tobytes(), "big")


def read_manifest(path: str) -> Manifest:
    """The manifest in a file. AccessError if it cannot be opened, CorruptError if it is not one."""
    with Source(path) as source:
        if source.size > LARGEST:
            raise LimitError(f"a manifest of {source.size:,} bytes", path=path, position=0, expected=LARGEST)
        data = source.read(0, source.size)
    try:
        return parse(data)
    except ValueError as error:
        raise CorruptError(str(error), path=path, position=0, format="kafka.manifest") from None


scan = WholeText(parse).scan


def fault(frames: Frames) -> DataError:
    """What is wrong with a manifest."""
    try:
        parse(frames.data.tobytes())
    except ValueError as error:
        return CorruptError(str(error), position=frames.reached_in_file)
    return CorruptError("damage", position=frames.reached_in_file)


# A segment's files, by what the manifest says of them ------------------------------------------------------------------


def open_member(path: str, name: str) -> _Log | _Index:
    """A file of the segment that a manifest describes. AccessError if it is encrypted, or not there."""
    manifest = read_manifest(path)
    if manifest.is_encrypted:
        raise AccessError(f"{path}: {ENCRYPTED}")
    if name == "log":
        return _Log(manifest, stored_in(path, name))
    if name not in manifest.indexes:
        raise AccessError(f"{path}: the segment has no {name}")
    return _Index(stored_in(path, name), *manifest.indexes[name])


def stored_in(path: str, name: str) -> str:
    """Where the plug-in stores a file of the segment that a manifest describes."""
    base, query = split_query(path)
    return f"{base.removesuffix(SUFFIX)}{'.log' if name == 'log' else '.indexes'}{query}"


ENCRYPTED = "the segment is encrypted by the tiered storage plug-in, and rawlog has no key for it"


class _Log:
    """The log of a segment, put together from chunks. The last chunk that was read is kept."""

    def __init__(self, manifest: Manifest, path: str) -> None:
        self.manifest = manifest
        self._source = Source(path)
        self._held: tuple[int, bytes] = (-1, b"")

    def size(self) -> int:
        return self.manifest.size

    def read_at(self, size: int, position: int) -> bytes:
        stop = min(position + size, self.manifest.size)
        pieces: list[bytes] = []
        while position < stop:
            number, inside = divmod(position, self.manifest.chunk)
            try:
                piece = self._chunk(number)[inside : inside + stop - position]
            except CorruptError as error:
                if pieces:
                    break
                raise self._lost(error, position, number) from None
            pieces.append(piece)
            position += len(piece)
        return b"".join(pieces)

    def _lost(self, error: CorruptError, position: int, number: int) -> LostError:
        """What is lost with a chunk: its bytes, and all that follow if the file ends in it."""
        lost = LostError(error.message, path=error.path, position=error.position, format=error.format)
        stop = (number + 1) * self.manifest.chunk
        if sum(self.manifest.place(number)) > self._source.size:
            stop = self.manifest.size
        lost.start, lost.stop = position, min(stop, self.manifest.size)
        return lost

    def _chunk(self, number: int) -> bytes:
        """A chunk of the log. CorruptError if it is not as long as it should be."""
        if self._held[0] == number:
            return self._held[1]
        wanted = min(self.manifest.chunk, self.manifest.size - number * self.manifest.chunk)
        start, stored = self.manifest.place(number)
        where: dict[str, Any] = {"path": self._source.path, "position": start, "format": "kafka.chunks"}
        if max(wanted, stored) > LARGEST_CHUNK:
            raise LimitError(f"a chunk of {max(wanted, stored):,} bytes", **where, expected=LARGEST_CHUNK)
        raw = self._source.read(start, stored)
        try:
            data = bytes(decompress("zstd", raw, limit=wanted + 1)) if self.manifest.is_compressed else raw
        except DataError as error:
            raise CorruptError(f"chunk {number}: {error.message}", **where) from None
        if len(data) != wanted:
            raise CorruptError(f"chunk {number} has {len(data):,} bytes of the log, not {wanted:,}", **where)
        self._held = (number, data)
        return data

    def close(self) -> None:
        self._source.close()


class _Index:
    """An index of a segment, as part of the file that has all of them."""

    def __init__(self, path: str, position: int, size: int) -> None:
        self._source = Source(path)
        self._position, self._size = position, max(0, min(size, self._source.size - position))

    def size(self) -> int:
        return self._size

    def read_at(self, size: int, position: int) -> bytes:
        return self._source.read(self._position + position, min(size, self._size - position))

    def close(self) -> None:
        self._source.close()
