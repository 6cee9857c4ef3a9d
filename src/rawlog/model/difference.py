"""Difference: what is not the same in two places; and how two ordered streams of rows are compared."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rawlog.model.errors import CorruptError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

#: A value longer than this is shown by its size and checksum.
LONGEST = 256


class DisorderError(CorruptError):
    """The keys of a stream do not ascend."""


class Change(StrEnum):
    """Who has it: only the first place, only the second, or both, with different content."""

    ONLY_A = "only_in_a"
    ONLY_B = "only_in_b"
    DIFFERS = "differs"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing, or a run of `count` things, that is not the same in two places.

    `what` is its kind (`record`, `blob`, `topics` …) and `name` which one: a partition, a blob id, a setting. Records have the offsets
    from `start` to before `stop`. `columns` are those that differ, `a` and `b` their values on both sides, of the first of a run.
    """

    change: Change
    what: str
    name: str
    start: int | None = None
    stop: int | None = None
    count: int = 1
    columns: tuple[str, ...] = ()
    a: Mapping[str, Any] | None = None
    b: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "change": self.change.value,
            "what": self.what,
            "name": self.name,
            "from_offset": self.start,
            "to_offset": self.stop,
            "count": self.count,
            "columns": list(self.columns),
            "a": self.a,
            "b": self.b,
        }


@dataclass(slots=True)
class Tally:
    """The result of a comparison: how many things are alike and how many are not, and the first differences, at most `limit` of them."""

    limit: int | None = None
    alike: int = 0
    only_in_a: int = 0
    only_in_b: int = 0
    differs: int = 0
    items: list[Difference] = field(default_factory=list)
    #: Differences (runs) that were counted and not listed.
    unlisted: int = 0

    @property
    def is_same(self) -> bool:
        return not (self.only_in_a or self.only_in_b or self.differs)

    @property
    def is_full(self) -> bool:
        return self.limit is not None and len(self.items) >= self.limit

    def add(self, difference: Difference) -> None:
        """Count a difference, and list it if there is room."""
        setattr(self, difference.change.value, getattr(self, difference.change.value) + difference.count)
        if self.is_full:
            self.unlisted += 1
        else:
            self.items.append(difference)

    def take(self, other: Tally) -> None:
        """Add what another comparison came to."""
        for name in ("alike", "only_in_a", "only_in_b", "differs", "unlisted"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.items += other.items

    def add_runs(self, codes: NDArray[np.int64], masks: NDArray[np.int64]) -> None:
        """Count runs of rows by their codes without listing any: there is no room left."""
        import numpy as np

        self.alike += int((codes == SAME).sum())
        for code, change in CHANGES.items():
            setattr(self, change.value, getattr(self, change.value) + int((codes == code).sum()))
        begins = np.concatenate(([True], (np.diff(codes) != 0) | (np.diff(masks) != 0)))
        self.unlisted += int((begins & (codes != SAME)).sum())

    def summary(self) -> dict[str, Any]:
        """The last line of `rawlog diff --json`."""
        return {
            "verdict": "same" if self.is_same else "different",
            "alike": self.alike,
            "only_in_a": self.only_in_a,
            "only_in_b": self.only_in_b,
            "differs": self.differs,
            "unlisted": self.unlisted,
        }


Stream = Iterator["pa.RecordBatch"]
#: What a row of the merged order is.
SAME, ONLY_A, ONLY_B, DIFFERS = 0, 1, 2, 3
CHANGES = {ONLY_A: Change.ONLY_A, ONLY_B: Change.ONLY_B, DIFFERS: Change.DIFFERS}


def compare_ordered(
    a: Stream, b: Stream, key: str, columns: tuple[str, ...], tally: Tally, what: str, name: str
) -> None:
    """Merge two streams whose `key` ascends, and add to `tally` what only one has and which of `columns` differ.

    Memory is bounded by a batch of each side. DisorderError if a key does not ascend.
    """
    _Merge(_Ascending(a, key, f"{name} of A"), _Ascending(b, key, f"{name} of B"), columns, tally, what, name).run()


class _Ascending:
    """A stream that is taken off its front, with its keys."""

    def __init__(self, stream: Stream, key: str, name: str) -> None:
        self.stream, self.key, self.name = stream, key, name
        self.last: int | None = None
        self.batch: pa.RecordBatch | None = None
        self.keys: NDArray[np.int64]

    def fill(self) -> bool:
        """Whether there is a row in front."""
        while self.batch is None or not self.batch.num_rows:
            batch = next(self.stream, None)
            if batch is None:
                return False
            self.batch = batch
            self.keys = batch.column(self.key).to_numpy()
            if self.keys.size and (
                (self.last is not None and int(self.keys[0]) <= self.last) or (self.keys[1:] <= self.keys[:-1]).any()
            ):
                raise DisorderError(
                    f"{self.name}: {self.key} does not ascend: cannot be compared in order; verify it first"
                )
        return True

    def until(self, limit: int | None) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
        """Take off the rows up to `limit`, which is included; all of the batch for None."""
        import numpy as np

        assert self.batch is not None
        count = self.keys.size if limit is None else int(np.searchsorted(self.keys, limit, side="right"))
        taken, keys = self.batch.slice(0, count), self.keys[:count]
        self.batch, self.keys = self.batch.slice(count), self.keys[count:]
        if count:
            self.last = int(keys[-1])
        return taken, keys


@dataclass(slots=True)
class _Run:
    """Rows side by side in the merged order that are unlike in the same way."""

    code: int
    mask: int
    start: int
    last: int
    count: int
    a: dict[str, Any] | None
    b: dict[str, Any] | None


class _Merge:
    def __init__(
        self, a: _Ascending, b: _Ascending, columns: tuple[str, ...], tally: Tally, what: str, name: str
    ) -> None:
        self.a, self.b, self.columns, self.tally, self.what, self.name = a, b, columns, tally, what, name
        self.open: _Run | None = None

    def run(self) -> None:
        while True:
            here, there = self.a.fill(), self.b.fill()
            if not here and not there:
                break
            if here and there:
                limit = min(int(self.a.keys[-1]), int(self.b.keys[-1]))
                self.pair(self.a.until(limit), self.b.until(limit))
            elif here:
                self.alone(ONLY_A, self.a.until(None)[1])
            else:
                self.alone(ONLY_B, self.b.until(None)[1])
        self.close()

    def alone(self, code: int, keys: NDArray[np.int64]) -> None:
        self.extend(code, 0, int(keys[0]), int(keys[-1]), keys.size)

    def pair(self, a: tuple[pa.RecordBatch, NDArray[np.int64]], b: tuple[pa.RecordBatch, NDArray[np.int64]]) -> None:
        """Rows of both sides up to a common key."""
        import numpy as np

        (rows_a, keys_a), (rows_b, keys_b) = a, b
        if keys_a.size == keys_b.size and (keys_a == keys_b).all():
            mask = unlike_columns(rows_a, rows_b, self.columns)
            if mask is None:
                if keys_a.size:
                    self.close()
                self.tally.alike += keys_a.size
                return
            at = np.arange(keys_a.size)
            self.emit(keys_a, np.where(mask, DIFFERS, SAME), mask, rows_a, rows_b, at, at)
            return
        keys = np.union1d(keys_a, keys_b)
        at_a, in_a = _places(keys, keys_a)
        at_b, in_b = _places(keys, keys_b)
        both = in_a & in_b
        codes = np.where(both, SAME, np.where(in_a, ONLY_A, ONLY_B))
        mask = np.zeros(keys.size, np.int64)
        if both.any():
            unlike_rows = unlike_columns(
                rows_a.take(_indices(at_a[both])), rows_b.take(_indices(at_b[both])), self.columns
            )
            if unlike_rows is not None:
                mask[both] = unlike_rows
        codes[mask != 0] = DIFFERS
        self.emit(keys, codes, mask, rows_a, rows_b, at_a, at_b)

    def emit(
        self,
        keys: NDArray[np.int64],
        codes: NDArray[np.int64],
        mask: NDArray[np.int64],
        rows_a: pa.RecordBatch,
        rows_b: pa.RecordBatch,
        at_a: NDArray[np.int64],
        at_b: NDArray[np.int64],
    ) -> None:
        """Cut the merged order into runs."""
        if keys.size and self.open is None and self.tally.is_full:
            self.tally.add_runs(codes, mask)
            return
        for start, stop in runs_of(codes, mask):
            code = int(codes[start])
            if code == SAME:
                self.close()
                self.tally.alike += stop - start
                continue
            shown: Callable[[], tuple[dict[str, Any], dict[str, Any]]] | None = None
            if code == DIFFERS:
                row_a, row_b, unlike = int(at_a[start]), int(at_b[start]), self.names(int(mask[start]))

                def shown() -> tuple[dict[str, Any], dict[str, Any]]:
                    return shown_values(rows_a, row_a, unlike), shown_values(rows_b, row_b, unlike)  # noqa: B023

            self.extend(code, int(mask[start]), int(keys[start]), int(keys[stop - 1]), stop - start, shown)

    def names(self, mask: int) -> tuple[str, ...]:
        return tuple(name for bit, name in enumerate(self.columns) if mask >> bit & 1)

    def extend(
        self,
        code: int,
        mask: int,
        start: int,
        last: int,
        count: int,
        shown: Callable[[], tuple[dict[str, Any], dict[str, Any]]] | None = None,
    ) -> None:
        """Go on with the open run, or begin a new one."""
        run = self.open
        if run is not None and (run.code, run.mask) == (code, mask):
            run.last, run.count = last, run.count + count
            return
        self.close()
        a, b = shown() if shown is not None and not self.tally.is_full else (None, None)
        self.open = _Run(code, mask, start, last, count, a, b)

    def close(self) -> None:
        run, self.open = self.open, None
        if run is not None:
            names = self.names(run.mask)
            self.tally.add(
                Difference(
                    CHANGES[run.code], self.what, self.name, run.start, run.last + 1, run.count, names, run.a, run.b
                )
            )


def runs_of(*arrays: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Where runs of rows begin and end over which all arrays stay the same."""
    import numpy as np

    size = arrays[0].size
    if size:
        changes = np.zeros(size - 1, np.bool_)
        for array in arrays:
            changes |= np.diff(array) != 0
        edges = [0, *(np.flatnonzero(changes) + 1).tolist(), size]
        yield from itertools.pairwise(edges)


def _places(keys: NDArray[np.int64], others: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The index of each of `keys` in `others`, both sorted, and whether it is there."""
    import numpy as np

    at = np.searchsorted(others, keys)
    inside = at < others.size
    is_there = inside.copy()
    is_there[inside] = others[at[inside]] == keys[inside]
    return np.where(is_there, at, 0), is_there


def _indices(at: NDArray[np.int64]) -> pa.Array:
    import pyarrow as pa

    return pa.array(at)


def unlike_columns(a: pa.RecordBatch, b: pa.RecordBatch, columns: tuple[str, ...]) -> NDArray[np.int64] | None:
    """For each pair of rows the columns that differ, a bit each in the order of `columns`; None if none does."""
    import numpy as np

    mask: NDArray[np.int64] | None = None
    for bit, name in enumerate(columns):
        column, other = a.column(name), b.column(name)
        if column.equals(other):
            continue
        if mask is None:
            mask = np.zeros(len(column), np.int64)
        mask |= unlike(column, other).astype(np.int64) << bit
    return mask if mask is not None and mask.any() else None


def unlike(a: pa.Array, b: pa.Array) -> NDArray[np.bool_]:
    """Where two arrays of one length and type differ; a null is like a null and nothing else."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if a.equals(b):
        return np.zeros(len(a), np.bool_)
    valid_a, valid_b = (pc.is_valid(side).to_numpy(zero_copy_only=False) for side in (a, b))
    result: NDArray[np.bool_] = valid_a != valid_b
    if pa.types.is_struct(a.type):
        for child, other in zip(a.flatten(), b.flatten(), strict=True):
            result = result | unlike(child, other)
        return result
    if pa.types.is_list(a.type):
        sizes = [pc.fill_null(pc.list_value_length(side), 0).to_numpy().astype(np.int64) for side in (a, b)]
        result = result | (sizes[0] != sizes[1])
        alike = pa.array(~result)
        inner = unlike(a.filter(alike).flatten(), b.filter(alike).flatten())
        rows = np.repeat(np.flatnonzero(~result), sizes[0][~result])
        result[rows[inner]] = True
        return result
    result |= pc.fill_null(pc.not_equal(a, b), False).to_numpy(zero_copy_only=False)
    return result


def shown_values(batch: pa.RecordBatch, row: int, columns: tuple[str, ...]) -> dict[str, Any]:
    """The values of one row as a difference shows them."""
    return {name: _value(batch.column(name)[row]) for name in columns}


def _value(scalar: pa.Scalar) -> Any:
    import pyarrow as pa

    from rawlog.model.text import plain_time

    if pa.types.is_timestamp(scalar.type):
        return None if scalar.value is None else plain_time(scalar.value)
    return shortened(scalar.as_py())


def shortened(value: Any) -> Any:
    """A value as it is shown; a long one by its size and checksum."""
    if isinstance(value, (bytes, str)) and len(value) > LONGEST:
        import zlib

        raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        return {"size": len(raw), "crc32": f"{zlib.crc32(raw):08x}"}
    if isinstance(value, list):
        return [shortened(item) for item in value]
    if isinstance(value, dict):
        return {name: shortened(item) for name, item in value.items()}
    return value
