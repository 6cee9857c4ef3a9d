"""What the records of a file look like, made from the windows that a pass over it sees anyway: a consumer like rules and summaries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawlog import registry
from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur2_spans
from rawlog.model.errors import DataError
from rawlog.model.format import (
    MAX_DECOMPRESSED,
    MAX_HEADERS,
    NO_TIME,
    File,
    Format,
    Spans,
    Want,
)
from rawlog.model.frames import Frames
from rawlog.model.profile import KEY_BYTES, Offsets, Profile
from rawlog.model.table import RECORDS

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("key", "value", "topic", "partition", "timestamp")
#: So many topics and partitions of one file are separate; records of others count together.
MOST_PARTS = 4096
OTHERS = ("(other topics)", None)
Name = tuple[str, int | None]


def is_profiled(file: File) -> bool:
    """Whether a file has records that the system itself would read."""
    format = registry.formats().get(str(file.format))
    if format is None or file.problem is not None or file.place.state is not None:
        return False
    return format.can("decode") and format.can("scan") and RECORDS.name in {table.name for table in format.tables}


class FileProfile:
    """The profiles of the topics and partitions that a file has records of. Those of neighbouring splits `merge` in order.

    `whole` has what concerns frames, where these do not belong to one partition.
    """

    def __init__(
        self, file: File, limit: int = MAX_DECOMPRESSED, max_headers: int = MAX_HEADERS, floor: int | None = None
    ) -> None:
        """`floor` is the first offset that a consumer still gets, if it is known."""
        self.file, self.floor = file, floor
        #: Records below the floor, which do not count.
        self.below = 0
        self.parts: dict[Name, Profile] = {}
        self.whole = Profile()
        place = file.place
        self.name: Name | None = (
            None if place.topic is None or place.partition is None else (place.topic, place.partition)
        )
        names = COLUMNS if self.name is None else tuple(name for name in COLUMNS if name not in ("topic", "partition"))
        names = names if floor is None else (*names, "offset")
        self._want: Want | None = Want(RECORDS.subset(names), file, limit, max_headers=max_headers)

    def see(self, frames: Frames) -> None:
        """Take the next window. Frames that are damaged do not count."""
        format = registry.formats()[str(self.file.format)]
        self.whole.frames += len(frames)
        self.whole.stored += int(frames.sizes.sum())
        for sound, spans in _sound(frames, format, self.file):
            self._cover(spans, format)
            if format.can("tally"):
                for aspect, rows in format.codec.tally(sound, self.file).items():
                    self.whole.count(aspect, rows)
        assert self._want is not None
        for batch in decode_sound(frames, format, self._want):
            self.add(batch)

    def _cover(self, spans: Spans | None, format: Format) -> None:
        if spans is None or not format.ordered or spans.start_offset is None or spans.stop_offset is None:
            return
        if self.whole.offsets is None:
            self.whole.offsets = Offsets()
        self.whole.offsets.add(spans.start_offset, spans.stop_offset, spans.min_time, spans.max_time)

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the records of a batch that a consumer gets."""
        if self.floor is not None:
            served = batch.column("offset").to_numpy() >= self.floor
            self.below += int((~served).sum())
            batch = batch if served.all() else batch.filter(served)
        rows = Rows.of(batch)
        if self.name is not None:
            self._part(self.name).take(rows)
            return
        for name, of_partition in rows.by_partition(batch, self.file):
            self._part(name).take(of_partition)

    def _part(self, name: Name) -> _Counting:
        if name not in self.parts and len(self.parts) >= MOST_PARTS:
            name = OTHERS
        return _Counting(self.parts.setdefault(name, Profile()))

    def close(self) -> FileProfile:
        """What is to be kept: small, and without what only reading needs."""
        self._want = None
        return self

    def merge(self, following: FileProfile) -> None:
        """Take in the split, or the file of the same partition, that follows."""
        self.whole.merge(following.whole)
        self.below += following.below
        for name, profile in following.parts.items():
            self._part(name).profile.merge(profile)

    def finish(self) -> dict[Name, Profile]:
        """The profiles by topic and partition. What is known of the frames of a file of one partition is in its profile."""
        alone = self.file.place.group is None and len(self.parts) == 1  # a recording: its records name no topic
        if self.name is not None or alone:
            name = self.name or next(iter(self.parts))
            profile = self.parts.setdefault(name, Profile())
            profile.merge(self.whole)
            self.whole = Profile()
        return self.parts


def decode_sound(frames: Frames, format: Format, want: Want) -> Iterator[pa.RecordBatch]:
    """The rows of all frames that can be decoded."""
    while len(frames):
        try:
            yield from format.codec.decode(frames, want)
            return
        except DataError as error:
            if error.position is None:
                return
            after = int(np.searchsorted(frames.positions, error.position, side="right"))
            frames = frames.slice(max(1, after), len(frames))


def _sound(frames: Frames, format: Format, file: File) -> Iterator[tuple[Frames, Spans | None]]:
    """Runs of frames whose checksums are right, with what they cover."""
    if not format.can("spans"):
        yield frames, None
        return
    while len(frames):
        try:
            yield frames, format.codec.spans(frames, file)
            return
        except DataError as error:
            at = int(np.searchsorted(frames.positions, error.position or 0, side="left"))
            if 0 < at < len(frames):
                before = frames.slice(0, at)
                yield before, format.codec.spans(before, file)
            frames = frames.slice(at + 1, len(frames))


@dataclass(slots=True)
class Rows:
    """Of records: size of key and value, time (`NO_TIME`: none), whether they have a value, and their keys."""

    sizes: NDArray[np.int64]
    times: NDArray[np.int64]
    has_value: NDArray[np.bool_]
    keys: pa.Array

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Rows:
        key, value = batch["key"], batch["value"]
        sizes = _lengths(key) + _lengths(value)
        times = batch["timestamp"].cast("int64").fill_null(NO_TIME).to_numpy(zero_copy_only=False)
        has_value = value.is_valid().to_numpy(zero_copy_only=False)
        return cls(sizes, times, has_value, key)

    def by_partition(self, batch: pa.RecordBatch, file: File) -> Iterator[tuple[Name, Rows]]:
        """The rows of each topic and partition."""
        import pyarrow as pa

        topics = batch["topic"].dictionary_encode()
        numbers = topics.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        partitions = batch["partition"].fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        codes, inverse = np.unique((numbers + 1) << 32 | (partitions + 1), return_inverse=True)
        for index, code in enumerate(codes.tolist()):
            topic, partition = (code >> 32) - 1, (code & 0xFFFFFFFF) - 1
            label = topics.dictionary[topic].as_py() if topic >= 0 else file.place.topic or file.path.rpartition("/")[2]
            name = (str(label), None if partition < 0 else partition)
            if codes.size == 1:
                yield name, self
                return
            at = np.flatnonzero(inverse == index)
            yield name, Rows(self.sizes[at], self.times[at], self.has_value[at], self.keys.take(pa.array(at)))


@dataclass(slots=True)
class _Counting:
    profile: Profile

    def take(self, rows: Rows) -> None:
        """Add rows to the profile."""
        profile = self.profile
        profile.records += rows.sizes.size
        profile.payload += int(rows.sizes.sum())
        profile.without_value += int(rows.sizes.size - rows.has_value.sum())
        profile.without_key += rows.keys.null_count
        profile.sizes.add(rows.sizes)
        has_time = rows.times != NO_TIME
        times = rows.times if has_time.all() else rows.times[has_time]
        if times.size:
            low, high = int(times.min()), int(times.max())
            profile.low = low if profile.low is None else min(low, profile.low)
            profile.high = high if profile.high is None else max(high, profile.high)
            profile.series.add(times, rows.sizes if has_time.all() else rows.sizes[has_time])
        keys = rows.keys.drop_null()
        if len(keys):
            profile.distinct.add(_hashes(keys))
            counted = _shorten(keys).value_counts()
            values, numbers = counted.field("values"), counted.field("counts").to_numpy()
            if len(values) > 4 * profile.keys.most:
                values, numbers = _most_frequent(profile, values, numbers)
            profile.keys.add(values.to_pylist(), numbers.tolist())


def _most_frequent(
    profile: Profile, values: pa.Array, numbers: NDArray[np.int64]
) -> tuple[pa.Array, NDArray[np.int64]]:
    """The keys that `Frequent` would keep. Its subtraction is done here, so that no dict grows large."""
    import pyarrow as pa

    least = int(np.partition(numbers, -profile.keys.most - 1)[-profile.keys.most - 1])
    kept = np.flatnonzero(numbers > least)
    profile.keys.missed += least
    profile.keys.total += int(numbers.sum() - (numbers[kept] - least).sum())
    return values.take(pa.array(kept)), numbers[kept] - least


def _lengths(values: pa.Array) -> NDArray[np.int64]:
    import pyarrow.compute as pc

    lengths: Any = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)  # type: ignore[no-any-return]


def _hashes(keys: pa.Array) -> NDArray[np.int64]:
    """The murmur2 of each key."""
    count = len(keys)
    ends = np.frombuffer(keys.buffers()[1], np.int32)[keys.offset : keys.offset + count + 1].astype(np.int64)
    data = keys.buffers()[2]
    out = np.empty(count, np.int64)
    bytes_ = byte_view(b"" if data is None else data)
    murmur2_spans(bytes_, np.ascontiguousarray(ends[:-1]), np.ascontiguousarray(ends[1:]), out)
    return out


def _shorten(keys: pa.Array) -> pa.Array:
    """Keys as they are counted and shown: long ones by their beginning, with their length."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lengths = pc.binary_length(keys)
    if pc.max(lengths).as_py() <= KEY_BYTES:
        return keys
    short = pc.binary_slice(keys, 0, KEY_BYTES) if hasattr(pc, "binary_slice") else keys
    marks = pc.cast(pc.binary_join_element_wise(pc.cast(lengths, pa.string()), " bytes", ""), pa.binary())
    long = pc.binary_join_element_wise(short, pc.cast(pa.scalar("… "), pa.binary()), marks, pa.scalar(b""))
    return pc.if_else(pc.greater(lengths, KEY_BYTES), long, keys)
