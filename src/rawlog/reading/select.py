"""Selection: which rows and columns are wanted, the same for every table, command, option set and engine."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, Self

from rawlog import registry
from rawlog.model.errors import OptionError, unknown
from rawlog.model.format import (
    MAX_DECOMPRESSED,
    MAX_HEADERS,
    NO_TIME,
    File,
    Lookup,
    Spans,
)
from rawlog.model.store import Store
from rawlog.model.table import HEADERS, Table, field_column, field_path

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

ISOLATIONS = ("read_uncommitted", "read_committed")
ERRORS = ("raise", "stop", "skip")
REPLICAS = ("best", "all", "refuse")
_INT64 = 1 << 63
_NUMBERS = ("from_offset", "to_offset", "last", "since", "until", "limit", "max_decompressed", "max_headers")
_LEAST = {"last": 0, "limit": 0, "max_decompressed": 0, "max_headers": 0}
#: What a table's rows must have for a field of the selection to choose among them.
_COLUMN_OF = {
    "topics": "topic", "topic_pattern": "topic", "partitions": "partition", "from_offset": "offset", "to_offset": "offset",
    "last": "offset", "starts": "offset", "since": "time", "until": "time", "key": "key", "id": "id",
}  # fmt: skip
_UNUSED: dict[str, tuple[()]] = {"topics": (), "partitions": ()}
#: What a transform counted: of which field, and what happened to it.
Tally = Counter[tuple[str, str]]


class Transform(Protocol):
    """A change of the rows that were chosen: masking, decoding. Transforms that tests see come first.

    Rows are read in several splits, anywhere: each has a copy of its own (`begin`), which counts; `judge` gets the sum of all.
    """

    counts: Tally
    #: Whether the expression `where` sees the rows after the change. All other tests see them as they were before.
    is_tested: bool
    #: Whether the rows themselves are changed; else only what `where` sees. Such a change comes first.
    is_shown: bool

    def table(self, table: Table) -> Table:
        """The columns of the rows after the change. OptionError for a table that has not what is to be changed."""

    def needs(self, table: Table, names: Sequence[str]) -> Sequence[str]:
        """The columns that it needs in order to give the columns `names` of its result."""

    def apply(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        """The changed rows, with all columns of the batch that are not changed."""

    def begin(self) -> Self:
        """A copy that has counted nothing."""

    def judge(self, counts: Tally) -> list[str]:
        """Notes on what was counted in all splits. OptionError if that is not what was asked for: then nothing is written."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Rows by topic, partition, offset, time, key and expression; columns by name.

    Offsets and times are half-open: from `from_offset` to before `to_offset`, from `since` to before `until` (microseconds).
    `last` asks for that many rows before each partition's end instead of a `from_offset`; `starts` are such first offsets where one file
    holds many partitions: topic, partition, offset. `text` is wanted anywhere in key, value or headers. `max_decompressed` is the most
    bytes that one compressed part may grow to, `max_headers` the most headers of one record: what holds more is an error with its place.
    """

    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    partitions: tuple[int, ...] = ()
    from_offset: int | None = None
    to_offset: int | None = None
    last: int | None = None
    starts: tuple[tuple[str, int, int], ...] | None = None
    since: int | None = None
    until: int | None = None
    key: bytes | None = None
    id: str | None = None
    text: bytes | None = None
    where: str | None = None
    columns: tuple[str, ...] | None = None
    limit: int | None = None
    isolation: str = "read_uncommitted"
    errors: str = "raise"
    max_decompressed: int = MAX_DECOMPRESSED
    max_headers: int = MAX_HEADERS
    options: dict[str, str] = field(default_factory=dict)
    #: Of replicas of one partition or store: read the best, read all, or refuse to read any.
    replicas: str = "best"
    #: Changes of the rows that were chosen, one after another.
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        if self.isolation not in ISOLATIONS:
            raise unknown("isolation", self.isolation, ISOLATIONS)
        if self.errors not in ERRORS:
            raise unknown("errors policy", self.errors, ERRORS)
        if self.replicas not in REPLICAS:
            raise unknown("choice of replicas", self.replicas, REPLICAS)
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not _LEAST.get(name, -_INT64) <= value < _INT64:
                raise OptionError(
                    f"{name} {value!r}: a whole number{' not below 0' if name in _LEAST else ''} expected"
                )
        partitions: tuple[object, ...] = self.partitions
        if any(isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 1 << 31 for value in partitions):
            raise OptionError(f"partition {', '.join(map(repr, partitions))}: numbers expected")
        if self.topic_pattern is not None:
            try:
                re.compile(self.topic_pattern)
            except re.error as error:
                raise OptionError(f"topic pattern {self.topic_pattern!r}: {error}") from None

    @property
    def takes_every_row(self) -> bool:
        """Whether rows are kept whatever they hold (files may still be left out)."""
        bounds = (
            self.from_offset,
            self.to_offset,
            self.last,
            self.starts,
            self.since,
            self.until,
            self.key,
            self.id,
            self.text,
            self.where,
        )
        return all(bound is None for bound in bounds)

    def suited(self, table: Table) -> Selection:
        """The selection without what a table has no column for: it never changes such a table."""
        unused = self.unused(table)
        return self.replace(**{name: _UNUSED.get(name) for name in unused}) if unused else self

    def unused(self, table: Table) -> list[str]:
        """The fields in use that a table has no column for. `files` and `findings` go by the places of files."""
        names = [name for name in _COLUMN_OF if getattr(self, name) not in (None, ())]
        if not names:
            return []
        by_place = table.name in ("files", "findings")
        has = {
            "topic": by_place or "topic" in table.names,
            "partition": by_place or partition_column(table) is not None,
            "offset": table.offsets is not None,
            "time": table.times is not None,
            **{what: bool(_lookup_columns(table, registry.lookup(table), what)) for what in ("key", "id")},
        }
        return [name for name in names if not has[_COLUMN_OF[name]]]

    def takes_all_of(self, file: File) -> bool:
        """Whether every row of a file that was taken is wanted: its place has answered for topic and partition."""
        undecided = (self.topics or self.topic_pattern) and file.place.topic is None
        return self.takes_every_row and not undecided and not (self.partitions and file.place.partition is None)

    def takes_file(self, file: File) -> bool:
        """Whether a file may hold wanted rows, by what its place says."""
        place = file.place
        if self.partitions and place.partition is not None and place.partition not in self.partitions:
            return False
        if place.topic is None:
            return True
        return self.takes_topic(place.topic)

    def takes_topic(self, name: str) -> bool:
        """Whether rows of a topic are wanted."""
        if self.topics and not any(fnmatch.fnmatchcase(name, pattern) for pattern in self.topics):
            return False
        return self.topic_pattern is None or re.fullmatch(self.topic_pattern, name) is not None

    def reaches(self, file: File, group: Sequence[File]) -> bool:
        """Whether a file may hold wanted offsets, by where it and those after it in its group begin: for formats that are `ordered`."""
        start = file.place.start_offset
        if start is None:
            return True
        if self.to_offset is not None and start >= self.to_offset:
            return False
        if self.from_offset is None:
            return True
        following = Store.of(group).following(file)
        return following is None or following > self.from_offset

    def takes_frames(self, spans: Spans) -> NDArray[np.bool_] | None:
        """Which frames may hold wanted rows; None for all of them."""
        import numpy as np

        mask: NDArray[np.bool_] | None = None

        def keep(test: NDArray[np.bool_]) -> None:
            nonlocal mask
            mask = test if mask is None else mask & test

        if self.from_offset is not None and spans.stop_offset is not None:
            keep(spans.stop_offset > self.from_offset)
        if self.to_offset is not None and spans.start_offset is not None:
            keep(spans.start_offset < self.to_offset)
        if self.since is not None and spans.max_time is not None:
            keep((spans.max_time >= self.since) | (spans.max_time == NO_TIME))
        if self.until is not None and spans.min_time is not None:
            keep((spans.min_time < self.until) | (spans.min_time == NO_TIME) | np.logical_not(spans.min_is_exact))
        return mask

    def check(self, table: Table) -> None:
        """OptionError if a column that is asked for does not exist, or an expression does not fit: before any row is read."""
        self.needed(table)
        if self.where is not None:
            from rawlog.reading.where import check

            check(self.where, self._tested_table(table))

    def wanted(self, table: Table) -> Table:
        """The table that the rows have once they are transformed, cut to the columns asked for, which may be fields: `value.user`."""
        table = self.transformed(table)
        return (
            table if self.columns is None else table.with_columns(*(field_column(table, name) for name in self.columns))
        )

    def transformed(self, table: Table) -> Table:
        """The table that the rows have once they are transformed."""
        for transform in self._shown:
            table = transform.table(table)
        return table

    @property
    def _shown(self) -> list[Transform]:
        return [transform for transform in self.transforms if transform.is_shown]

    @property
    def _tests(self) -> list[Transform]:
        return [transform for transform in self.transforms if transform.is_tested]

    def _tested_table(self, table: Table) -> Table:
        """The table as the expression `where` sees it."""
        for transform in self._tests:
            table = transform.table(table)
        return table

    def needed(self, table: Table, system: str | None = None) -> Table:
        """The table cut to the columns that are read: for those asked for, and for the tests of rows of a system."""
        names = self._source_columns(table)
        for name in self.suited(table)._tested_columns(table, system):
            if name not in names:
                names.append(name)
        return table.subset(names)

    def _source_columns(self, table: Table) -> list[str]:
        """The columns of a table that give the columns asked for."""
        transformed = self.transformed(table)
        names = (
            transformed.names if self.columns is None else [field_path(transformed, name)[0] for name in self.columns]
        )
        return _before(self._shown, table, names)

    def _tested_columns(self, table: Table, system: str | None) -> list[str]:
        names: list[str] = []
        if any(bound is not None for bound in (self.from_offset, self.to_offset, self.last)):
            names += self._range(table, "offsets", "an offset")
        if self.starts is not None:
            names += [*partition_columns(table), *self._range(table, "offsets", "an offset")]
        if self.since is not None or self.until is not None:
            names += self._range(table, "times", "a time")
        for what, value in (("key", self.key), ("id", self.id)):
            if value is not None:
                names += _lookup_columns(table, registry.lookup(table, system), what)
        if self.text is not None:
            names += searched_columns(table)
        if (self.topics or self.topic_pattern) and "topic" in table.names:
            names.append("topic")
        if self.partitions and (partition := partition_column(table)) is not None:
            names.append(partition)
        if self.where is not None:
            from rawlog.reading.where import columns_of

            names += _before(self._tests, table, columns_of(self.where, self._tested_table(table)))
        return names

    def _range(self, table: Table, kind: str, what: str) -> list[str]:
        pair: tuple[str, str] | None = getattr(table, kind)
        if pair is None:
            raise OptionError(f"table {table.name} cannot be selected by {what}: its rows have none")
        return list(pair)

    def apply(self, batch: pa.RecordBatch, table: Table, system: str | None = None) -> pa.RecordBatch:
        """The wanted rows and columns of a batch of `needed(table, system)`."""
        mask = self.suited(table)._mask(batch, table, system)
        return self.changed(batch if mask is None else batch.filter(mask), table)

    @property
    def tests_changes(self) -> bool:
        """Whether `where` sees rows after a transform."""
        return self.where is not None and bool(self._tests)

    def changed(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        """Rows as the transforms change them, and the wanted columns of them."""
        shown, last = table, self._tests[-1] if self._tests else None
        for transform in self.transforms:
            result, seen = transform.apply(batch, shown), transform.table(shown)
            if transform.is_shown:
                batch, shown = result, seen
            if transform is last and self.where is not None:
                batch = batch.filter(self._true(result, seen))
        names = shown.names if self.columns is None else self.columns
        return batch if tuple(batch.schema.names) == names else _pick(batch, shown, names)

    def _true(self, batch: pa.RecordBatch, table: Table) -> pa.Array:
        """For which rows of a batch the expression is true."""
        import pyarrow.compute as pc

        from rawlog.reading.where import evaluate

        assert self.where is not None
        return pc.fill_null(evaluate(self.where, batch, table), False)

    def mask(self, batch: pa.RecordBatch, table: Table) -> NDArray[np.bool_]:
        """Which rows of a batch of `needed(table)` are wanted."""
        import numpy as np

        taken = self.suited(table)._mask(batch, table, None)
        mask: NDArray[np.bool_] = (
            np.ones(batch.num_rows, np.bool_) if taken is None else taken.to_numpy(zero_copy_only=False)
        )
        if self.where is None or not self._tests:
            return mask
        changed = batch if taken is None else batch.filter(taken)
        for transform in self._tests:
            changed, table = transform.apply(changed, table), transform.table(table)
        rows = np.flatnonzero(mask)
        mask = np.zeros(batch.num_rows, np.bool_)
        mask[rows] = self._true(changed, table).to_numpy(zero_copy_only=False)
        return mask

    def _mask(self, batch: pa.RecordBatch, table: Table, system: str | None) -> pa.Array | None:
        if self.takes_every_row and not (self.topics or self.topic_pattern or self.partitions):
            return None  # the usual case, without the import of Arrow's functions
        import pyarrow as pa
        import pyarrow.compute as pc

        tests: list[pa.Array] = []
        if self.from_offset is not None or self.to_offset is not None:
            low, high = (batch.column(name) for name in self._range(table, "offsets", "an offset"))
            if self.from_offset is not None:
                tests.append(pc.greater_equal(high, self.from_offset))
            if self.to_offset is not None:
                tests.append(pc.less(low, self.to_offset))
        if self.starts is not None:
            tests.append(self._after_starts(batch, table))
        if self.since is not None or self.until is not None:
            low, high = (batch.column(name).cast(pa.int64()) for name in self._range(table, "times", "a time"))
            if self.since is not None:
                tests.append(pc.greater_equal(high, self.since))
            if self.until is not None:
                tests.append(pc.less(low, self.until))
        lookup = registry.lookup(table, system)
        if self.key is not None:
            if lookup is not None and lookup.by_key is not None:
                tests.append(lookup.by_key(batch, self.key))
            else:
                tests.append(pc.equal(batch.column("key"), pa.scalar(self.key, batch.schema.field("key").type)))
        if self.id is not None:
            has_ids = lookup is not None and lookup.columns(table, "id")
            tests.append(lookup.by_id(batch, self.id) if lookup and has_ids else pa.repeat(False, batch.num_rows))
        if self.text is not None:
            matches = [holds_text(batch.column(name), self.text) for name in searched_columns(table)]
            tests.append(functools.reduce(pc.or_, matches) if matches else pa.repeat(False, batch.num_rows))
        if (self.topics or self.topic_pattern) and "topic" in batch.schema.names:
            topic = batch.column("topic").dictionary_encode()
            keep = [name is not None and self.takes_topic(name) for name in topic.dictionary.to_pylist()]
            tests.append(pa.array(keep, pa.bool_()).take(topic.indices))
        if self.partitions and (partition := partition_column(table)) is not None:
            tests.append(pc.is_in(batch.column(partition), pa.array(self.partitions, pa.int32())))
        if self.where is not None and not self._tests:
            from rawlog.reading.where import evaluate

            tests.append(evaluate(self.where, batch, table))
        if not tests:
            return None
        mask = tests[0]
        for test in tests[1:]:
            mask = pc.and_kleene(mask, test)
        return pc.fill_null(mask, False)

    def _after_starts(self, batch: pa.RecordBatch, table: Table) -> pa.Array:
        """Which rows do not lie before the first wanted offset of their partition."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        topic, partition = (batch.column(name) for name in partition_columns(table))
        high = batch.column(self._range(table, "offsets", "an offset")[1])
        encoded = topic.dictionary_encode()
        codes = {name: code for code, name in enumerate(encoded.dictionary.to_pylist())}
        first = np.full(batch.num_rows, _INT64 - 1, np.int64)
        numbers = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False)
        places = pc.fill_null(partition, -1).to_numpy(zero_copy_only=False)
        for name, number, offset in self.starts or ():
            if name in codes:
                first[(numbers == codes[name]) & (places == number)] = offset
        return pc.greater_equal(high, pa.array(first))

    def replace(self, **changes: object) -> Selection:
        return replace(self, **changes)  # type: ignore[arg-type]

    def begun(self) -> Selection:
        """The same selection for one split, with transforms that have counted nothing."""
        return (
            self.replace(transforms=tuple(transform.begin() for transform in self.transforms))
            if self.transforms
            else self
        )

    @property
    def tallies(self) -> tuple[Tally, ...]:
        """What each of the transforms counted."""
        return tuple(transform.counts for transform in self.transforms)

    def judge(self, tallies: Iterable[tuple[Tally, ...]]) -> list[str]:
        """Notes on what the transforms counted in all splits. OptionError if one did not do what was asked for."""
        of_splits = list(tallies)
        sums = [sum((of_split[number] for of_split in of_splits), Counter()) for number in range(len(self.transforms))]
        notes = [
            note for transform, counts in zip(self.transforms, sums, strict=True) for note in transform.judge(counts)
        ]
        return list(dict.fromkeys(notes))


def _before(transforms: Sequence[Transform], table: Table, names: Sequence[str]) -> list[str]:
    """The columns of a table that give the columns `names` of what transforms make of it."""
    tables = [table]
    for transform in transforms:
        tables.append(transform.table(tables[-1]))
    for transform, before in zip(reversed(transforms), reversed(tables[:-1]), strict=True):
        names = transform.needs(before, names)
    return list(dict.fromkeys(names))


def _pick(batch: pa.RecordBatch, table: Table, names: Sequence[str]) -> pa.RecordBatch:
    """Columns of a batch, or fields of them, in order."""
    if all(name in table.names for name in names):
        return batch.select(list(names))
    import pyarrow as pa

    from rawlog.reading.fields import field_of

    arrays = []
    for name in names:
        column, steps = field_path(table, name)
        arrays.append(field_of(batch.column(column), steps) if steps else batch.column(column))
    schema = table.with_columns(*(field_column(table, name) for name in names)).schema
    return pa.RecordBatch.from_arrays(arrays, schema=schema.with_metadata(batch.schema.metadata))


def _lookup_columns(table: Table, lookup: Lookup | None, what: str) -> tuple[str, ...]:
    """The columns that tell the key or the id of a table's rows."""
    columns = lookup.columns(table, what) if lookup is not None else ()
    if not columns and what == "key" and "key" in table.names:
        return ("key",)
    if not columns and what == "id" and table.name == "records" and lookup is None:
        return (
            "offset",
        )  # it depends on the system whether its records have ids: of some that have none, no row is wanted
    return columns


def limit_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The first `limit` rows of batches; all if it is None. Nothing is read after the last of them, and no batch is empty."""
    left = limit
    for batch in batches if limit != 0 else ():
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        if batch.num_rows:
            yield batch
        if left == 0:
            return


def searched_columns(table: Table) -> list[str]:
    """The columns of a table in which a text is looked for: keys, values, headers and whatever else is bytes."""
    return [column.name for column in table.columns if column.type in ("binary", HEADERS)]


def holds_text(column: pa.Array, text: bytes) -> pa.Array:
    """Which values of a column of bytes, or of headers, contain a text; a header may have it in its name."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_list(column.type):
        return pc.fill_null(pc.match_substring(column, text), False)
    items = column.flatten()
    if not len(items):
        return pa.array(np.zeros(len(column), np.bool_))
    named = pc.match_substring(items.field("key").cast(pa.binary()), text)
    matches = pc.or_kleene(
        pc.fill_null(named, False), pc.fill_null(pc.match_substring(items.field("value"), text), False)
    )
    sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(column)), sizes)[matches.to_numpy(zero_copy_only=False)]
    mask = np.zeros(len(column), np.bool_)
    mask[rows] = True
    return pa.array(mask)


def partition_column(table: Table) -> str | None:
    """The column that tells the partition of a table's rows, whatever its system calls one; None if there is none."""
    return next((name for name in ("partition", "queue_id") if name in table.names), None)


def partition_columns(table: Table) -> tuple[str, str]:
    """The columns that tell the topic and the partition of a table's rows. OptionError if there are none."""
    partition = partition_column(table)
    if partition is None or "topic" not in table.names:
        raise OptionError(f"table {table.name} cannot be selected by partition: its rows have none")
    return "topic", partition


def parse_offset_option(text: str) -> dict[str, int | None]:
    """kcat's `-o`: `beginning`, `end`, `N`, `-N` (from the end), `s@MS`, `e@MS`, as fields of a Selection."""
    text = text.strip()
    if text in ("beginning", "start", "earliest"):
        return {}
    if text in ("end", "latest"):
        return {"last": 0}
    if match := re.fullmatch(r"([se])@(-?[0-9]{1,25})", text):
        return {"since" if match.group(1) == "s" else "until": int(match.group(2)) * 1000}
    if re.fullmatch(r"[0-9]{1,25}", text):
        return {"from_offset": int(text)}
    if re.fullmatch(r"-[0-9]{1,25}", text):
        return {"last": int(text[1:])}
    raise OptionError(f"-o {text!r}: beginning, end, N, -N, s@MS or e@MS expected")


def parse_columns(text: str | Sequence[str] | None) -> tuple[str, ...] | None:
    """Column names of `a,b` or a list."""
    if text is None:
        return None
    names = text.split(",") if isinstance(text, str) else list(text)
    cleaned = tuple(name.strip() for name in names if name.strip())
    if not cleaned:
        raise OptionError("no column named; leave the option out for all of them")
    return cleaned
