"""Profile: what the records of a partition look like, in little memory. Profiles of neighbouring splits and of partitions merge.

Counts, times, sizes and gaps are exact, and the same for any cut. The most frequent keys and the number of different keys are sketches:
`Frequent` says by how much it may count too few, `Distinct` is right within about 2 %. A profile is made from the windows that a pass over
a file sees anyway: a consumer like rules and summaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rawlog import registry
from rawlog.kernels import byte_view
from rawlog.kernels.hashes import murmur2_spans
from rawlog.model.errors import DataError
from rawlog.model.format import MAX_DECOMPRESSED, MAX_HEADERS, NO_TIME, File, Format, Spans, Want
from rawlog.model.frames import Frames
from rawlog.model.table import RECORDS

if TYPE_CHECKING:
    import pyarrow as pa


# What records look like ----------------------------------------------------------------------------------------------------------

Integers = NDArray[np.int64]
#: So many buckets of time one series has at most.
BUCKETS = 192
#: The narrowest bucket is 2**20 µs, about one second.
NARROWEST = 20
#: So many keys, and so many labels of one aspect, are counted at once.
KEYS, LABELS = 256, 64
#: Longer keys count by their beginning and their length.
KEY_BYTES = 128
#: So many gaps of a partition are listed, the largest.
GAPS = 32
REGISTER_BITS = 12


class Series:
    """Records and bytes over time, in buckets of 2**`level` µs; as narrow as `BUCKETS` of them allow.

    Only buckets with records count, so that one record of the year 1970 does not make the others one bucket. Buckets begin at multiples
    of their width: the series of a whole is that of its parts merged, to the last number.
    """

    def __init__(self) -> None:
        self.level = NARROWEST
        self.starts: Integers = np.empty(0, np.int64)
        self.values: Integers = np.empty((2, 0), np.int64)

    def add(self, times: Integers, sizes: Integers) -> None:
        """Count records by their times in µs."""
        if times.size:
            self._take(times >> self.level, np.ones(times.size, np.int64), sizes)

    def merge(self, other: Series) -> None:
        """Add the records of another series."""
        self._widen(max(self.level, other.level))
        if other.starts.size:
            self._take(other.starts >> (self.level - other.level), *other.values)

    def _take(self, buckets: Integers, records: Integers, sizes: Integers) -> None:
        starts = np.concatenate([self.starts, buckets])
        both = np.concatenate([self.values, np.stack([records, sizes])], axis=1)
        self.starts, number = np.unique(starts, return_inverse=True)
        self.values = np.zeros((2, self.starts.size), np.int64)
        np.add.at(self.values[0], number, both[0])
        np.add.at(self.values[1], number, both[1])
        while self.starts.size > BUCKETS:
            self._widen(self.level + 1)

    def _widen(self, level: int) -> None:
        if level > self.level:
            starts, self.level, values = self.starts >> (level - self.level), level, self.values
            self.starts, self.values = np.empty(0, np.int64), np.empty((2, 0), np.int64)
            self._take(starts, *values)

    def coarse(self, most: int) -> Series:
        """The same in at most `most` buckets."""
        series = Series()
        series.level, series.starts, series.values = self.level, self.starts, self.values
        while series.starts.size > most:
            series._widen(series.level + 1)
        return series

    def usual(self) -> tuple[Series, int]:
        """The series without times that are far from nearly all others, such as 1970, and how many records those are."""
        if not self:
            return self, 0
        records = self.values[0]
        share = np.cumsum(records) / max(1, int(records.sum()))
        first, last = (int(self.starts[int(np.searchsorted(share, quantile))]) for quantile in (0.02, 0.98))
        reach = 4 * max(last - first, 16)
        near = (self.starts >= first - reach) & (self.starts <= last + reach)
        series = Series()
        series.level, series.starts, series.values = self.level, self.starts[near], self.values[:, near]
        return series, int(records[~near].sum())

    @property
    def width(self) -> float:
        """Seconds of one bucket."""
        return float((1 << self.level) / 1e6)

    def rows(self) -> list[tuple[int, int, int]]:
        """Begin of each bucket in µs, its records and bytes."""
        return list(zip((self.starts << self.level).tolist(), *self.values.tolist(), strict=True))

    def __bool__(self) -> bool:
        return bool(self.starts.size)


class Sizes:
    """How many values have which size: a bucket for each power of two, the first for empty ones; sum and largest."""

    def __init__(self) -> None:
        self.counts: Integers = np.zeros(65, np.int64)
        self.total = 0
        self.largest = 0

    def add(self, sizes: Integers) -> None:
        """Count values by their sizes."""
        if sizes.size:
            buckets = np.zeros(sizes.size, np.int64)
            is_filled = sizes > 0
            buckets[is_filled] = np.frexp(sizes[is_filled].astype(np.float64))[1]
            self.counts += np.bincount(buckets, minlength=65)[:65]
            self.total += int(sizes.sum())
            self.largest = max(self.largest, int(sizes.max()))

    def merge(self, other: Sizes) -> None:
        """Add the values of another."""
        self.counts = self.counts + other.counts
        self.total += other.total
        self.largest = max(self.largest, other.largest)

    def rows(self) -> list[tuple[int, int, int]]:
        """Smallest and largest size of each bucket from the first to the last that has values, and their number."""
        used = np.flatnonzero(self.counts)
        if not used.size:
            return []
        buckets = range(int(used[0]), int(used[-1]) + 1)
        return [
            (1 << (bucket - 1) if bucket else 0, (1 << bucket) - 1 if bucket else 0, int(self.counts[bucket]))
            for bucket in buckets
        ]

    @property
    def count(self) -> int:
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0


class Frequent:
    """The most frequent of very many things, after Misra and Gries: at most `most` are remembered.

    Each has a number, at most the true one and at least that less `missed`; what is not remembered occurs at most `missed` times. As
    long as there are no more than `most` different things, all numbers are exact.
    """

    def __init__(self, most: int = KEYS) -> None:
        self.most = most
        self.counts: dict[Any, int] = {}
        self.sizes: dict[Any, int] = {}
        self.total = 0
        self.missed = 0

    def add(self, things: Iterable[Any], counts: Iterable[int], sizes: Iterable[int] | None = None) -> None:
        """Count things; `sizes` are bytes that belong to them."""
        totals, total = self.counts, 0
        for thing, count in zip(things, counts, strict=True):
            totals[thing] = totals.get(thing, 0) + count
            total += count
        if sizes is not None:
            for thing, size in zip(things, sizes, strict=True):
                self.sizes[thing] = self.sizes.get(thing, 0) + size
        self.total += total
        self._prune()

    def merge(self, other: Frequent) -> None:
        """Add what another has counted."""
        total, missed = self.total + other.total, self.missed + other.missed
        self.missed = 0
        self.add(list(other.counts), list(other.counts.values()))
        for thing, size in other.sizes.items():
            if thing in self.counts:
                self.sizes[thing] = self.sizes.get(thing, 0) + size
        self.total, self.missed = total, missed + self.missed

    def _prune(self) -> None:
        if len(self.counts) <= self.most:
            return
        values = np.fromiter(self.counts.values(), np.int64, len(self.counts))
        least = int(np.partition(values, -self.most - 1)[-self.most - 1])
        self.counts = {thing: count - least for thing, count in self.counts.items() if count > least}
        self.sizes = {thing: self.sizes[thing] for thing in self.counts if thing in self.sizes}
        self.missed += least

    def first(self, number: int) -> list[tuple[Any, int]]:
        """The most frequent ones, with their least numbers."""
        return sorted(self.counts.items(), key=lambda pair: (-pair[1], str(pair[0])))[:number]

    def __bool__(self) -> bool:
        return bool(self.total)


class Distinct:
    """About how many different things there are: HyperLogLog over hashes of 32 bits."""

    def __init__(self) -> None:
        self.registers: NDArray[np.uint8] = np.zeros(1 << REGISTER_BITS, np.uint8)

    def add(self, hashes: Integers) -> None:
        """Count things by their hashes, 0 to 2**32 - 1."""
        rest = (hashes >> REGISTER_BITS).astype(np.float64)
        rank = (33 - REGISTER_BITS - np.frexp(rest)[1]).astype(np.uint8)
        np.maximum.at(self.registers, hashes & ((1 << REGISTER_BITS) - 1), rank)

    def merge(self, other: Distinct) -> None:
        """Add the things of another."""
        self.registers = np.maximum(self.registers, other.registers)

    @property
    def count(self) -> int:
        number = self.registers.size
        estimate = 0.7213 / (1 + 1.079 / number) * number**2 / float(np.exp2(-self.registers.astype(np.float64)).sum())
        zeros = int((self.registers == 0).sum())
        if estimate <= 2.5 * number and zeros:
            return round(number * float(np.log(number / zeros)))
        space = float(1 << 32)
        return round(-space * float(np.log1p(-min(estimate / space, 0.999999))))


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """Offsets that are not there: from `start` to before `stop`; the times in µs of what is before and after, where they are known."""

    start: int
    stop: int
    before: int | None = None
    after: int | None = None

    @property
    def size(self) -> int:
        return self.stop - self.start


class Offsets:
    """Which offsets a partition covers: its ends, and the gaps between its frames. Those of neighbouring splits merge in order."""

    def __init__(self) -> None:
        self.start: int | None = None
        self.stop: int | None = None
        self.last_time: int | None = None
        self.first_time: int | None = None
        self.gaps: list[OffsetGap] = []
        self.count = 0
        self.missing = 0

    def add(self, starts: Integers, stops: Integers, low: Integers | None = None, high: Integers | None = None) -> None:
        """Add frames in order: the offsets they cover, and their first and last times in µs, `NO_TIME` where they have none."""
        if not starts.size:
            return
        reach = np.maximum.accumulate(stops)
        if self.stop is not None:
            reach = np.maximum(reach, self.stop)
        before = np.concatenate([[self.stop if self.stop is not None else starts[0]], reach[:-1]])
        for at in np.flatnonzero(starts > before).tolist():
            earlier = _time(high, at - 1) if at else self.last_time
            self._gap(OffsetGap(int(before[at]), int(starts[at]), earlier, _time(low, at)))
        if self.start is None:
            self.start, self.first_time = int(starts[0]), _time(low, 0)
        self.stop, self.last_time = int(reach[-1]), _time(high, -1)

    def _gap(self, gap: OffsetGap) -> None:
        self.count += 1
        self.missing += gap.size
        self.gaps.append(gap)
        if len(self.gaps) > 4 * GAPS:
            self.gaps = self.largest()

    def largest(self) -> list[OffsetGap]:
        """The largest gaps, at most `GAPS` of them, in their order."""
        return sorted(sorted(self.gaps, key=lambda gap: (-gap.size, gap.start))[:GAPS], key=lambda gap: gap.start)

    def merge(self, following: Offsets) -> None:
        """Add the frames of the split that follows."""
        if following.start is None or following.stop is None:
            return
        if self.start is None or self.stop is None:
            self.start, self.first_time = following.start, following.first_time
        elif following.start > self.stop:
            self._gap(OffsetGap(self.stop, following.start, self.last_time, following.first_time))
        self.gaps += following.gaps
        self.count += following.count
        self.missing += following.missing
        self.stop = max(following.stop, self.stop if self.stop is not None else following.stop)
        self.last_time = following.last_time
        self.gaps = self.largest()

    @property
    def covered(self) -> int:
        """Offsets from the first to the last, gaps included."""
        return 0 if self.start is None or self.stop is None else self.stop - self.start


def _time(times: Integers | None, at: int) -> int | None:
    return None if times is None or times[at] == NO_TIME else int(times[at])


@dataclass(slots=True)
class Profile:
    """What is known of the records of one partition, or of several together. Times are in µs."""

    records: int = 0
    without_value: int = 0
    without_key: int = 0
    frames: int = 0
    stored: int = 0
    payload: int = 0
    low: int | None = None
    high: int | None = None
    series: Series = field(default_factory=Series)
    sizes: Sizes = field(default_factory=Sizes)
    keys: Frequent = field(default_factory=Frequent)
    distinct: Distinct = field(default_factory=Distinct)
    #: What the format counts of its frames, by aspect (`codec`) and label (`zstd`): number, and bytes.
    labels: dict[str, Frequent] = field(default_factory=dict)
    #: Only of one partition.
    offsets: Offsets | None = None

    def merge(self, other: Profile, *, in_order: bool = True) -> None:
        """Add another: the split or file that follows; or with `in_order` false another partition, whose offsets mean something else."""
        for name in ("records", "without_value", "without_key", "frames", "stored", "payload"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.low = min((time for time in (self.low, other.low) if time is not None), default=None)
        self.high = max((time for time in (self.high, other.high) if time is not None), default=None)
        for name in ("series", "sizes", "keys", "distinct"):
            getattr(self, name).merge(getattr(other, name))
        for aspect, labels in other.labels.items():
            self.labels.setdefault(aspect, Frequent(LABELS)).merge(labels)
        if not in_order:
            self.offsets = None
        elif other.offsets is not None:
            if self.offsets is None:
                self.offsets = Offsets()
            self.offsets.merge(other.offsets)

    def count(self, aspect: str, rows: Mapping[str, tuple[int, int]]) -> None:
        """Add what a format counts of its frames: label -> number, bytes."""
        labels = self.labels.setdefault(aspect, Frequent(LABELS))
        labels.add(list(rows), [number for number, _ in rows.values()], [number for _, number in rows.values()])

    def usual_times(self) -> tuple[int | None, int | None, int]:
        """First and last time without those that are far from nearly all others, and how many records have such."""
        series, far = self.series.usual()
        if not far:
            return self.low, self.high, 0
        width = 1 << series.level
        return int(series.starts[0]) * width, (int(series.starts[-1]) + 1) * width, far

    @property
    def records_per_key(self) -> float | None:
        """How many records a key has on average: what compaction leaves is about one of so many. None without keys."""
        keyed = self.records - self.without_key
        return keyed / max(1, self.distinct.count) if keyed else None


def merge_profiles(profiles: Iterable[Profile]) -> Profile:
    """Several partitions as one."""
    total = Profile()
    for profile in profiles:
        total.merge(profile, in_order=False)
    return total


def each_label(profile: Profile) -> Iterator[tuple[str, str, int, int]]:
    """Aspect, label, number and bytes of everything that was counted, the most frequent first."""
    for aspect, labels in profile.labels.items():
        for label, number in labels.first(LABELS):
            yield aspect, label, number, labels.sizes.get(label, 0)


# Made from the windows of a pass -------------------------------------------------------------------------------------------------

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
