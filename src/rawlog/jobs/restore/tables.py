"""What tables offer to a restore: the rows of a lake, of Parquet files, or of anything that reads as `records`.

Rows with the restorer's own columns say more than plain `records`, such as which transaction they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog import registry
from rawlog.core.errors import AccessError, EncodeError, OptionError
from rawlog.core.restore import Offer
from rawlog.core.tables import RECORDS, Table
from rawlog.io.output import Output
from rawlog.io.storage import file_system, listing
from rawlog.jobs.lake import Lake, lake_name
from rawlog.jobs.lake.lookup import ROW, SPLIT
from rawlog.jobs.lake.payload import Payloads, check_complete
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    from rawlog.core.restore import Keeps, Restorer

ROWS = 1 << 16
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Span:
    """The rows of one partition in one file: how many, from which offset to which, and whether they rise."""

    path: str
    count: int
    first: int
    last: int
    rising: bool


@dataclass(frozen=True)
class Fragments:
    """A partition whose rows are in Parquet files. `marks` is what the restorer found in them."""

    topic: str
    partition: int
    spans: tuple[Span, ...]
    columns: tuple[str, ...]
    marks: tuple[Any, ...] = ()
    #: The first offset that is restored: those before it were deleted, although the files still had them.
    floor: int = 0
    #: Of a lake: where the message bytes are that rows refer to.
    payloads: Payloads | None = None
    #: The table whose rows these are.
    table: Table = RECORDS

    @property
    def size(self) -> int:
        return sum(span.count for span in self.spans)

    def batches(self, keeps: Keeps, advance: Callable[[int], None]) -> Iterator[pa.RecordBatch]:
        """The chosen rows as batches of `records`, by rising offset, each offset once."""
        last = -1
        for table in self._ordered():
            advance(table.num_rows)
            offsets = table.column("offset").to_numpy()
            if not offsets.size:
                continue
            keep = np.concatenate(([offsets[0] > last], offsets[1:] > offsets[:-1]))
            last = max(last, int(offsets.max()))
            keep &= keeps(table, offsets)
            chosen = table if keep.all() else table.filter(pa.array(keep))
            yield from shaped(chosen).to_batches(ROWS)

    def _ordered(self) -> Iterator[pa.Table]:
        """The rows in the order of their offsets: file by file where the files follow one another, else sorted in memory."""
        spans = sorted(self.spans, key=lambda span: (span.first, span.last))
        if all(span.rising for span in spans) and all(a.last < b.first for a, b in pairwise(spans)):
            for span in spans:
                yield from (pa.Table.from_batches([batch]) for batch in self._read(span) if batch.num_rows)
            return
        batches = [batch for span in spans for batch in self._read(span)]
        if batches:
            yield pa.Table.from_batches(batches).combine_chunks().sort_by("offset")

    def _read(self, span: Span) -> Iterator[pa.RecordBatch]:
        from pyarrow import dataset

        mine = (dataset.field("topic") == self.topic) & (dataset.field("partition") == self.partition)
        data = open_parquet([span.path])
        refers = self.payloads is not None and ROW in data.schema.names
        columns = [*self.columns, SPLIT, ROW] if refers else list(self.columns)
        batches = data.to_batches(columns=columns, filter=mine, batch_size=ROWS)
        yield from batches if self.payloads is None else self.payloads.complete(batches, self.table)


def shaped(table: pa.Table) -> pa.Table:
    """Rows with exactly the columns of `records`; EncodeError for a column of another kind."""
    arrays = []
    for field in RECORDS.schema:
        if field.name not in table.column_names:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)], field.type))
            continue
        try:
            arrays.append(table.column(field.name).cast(field.type))
        except pa.ArrowException as error:
            raise EncodeError(f"column {field.name}: {str(error).splitlines()[0]}") from None
    return pa.Table.from_arrays(arrays, schema=RECORDS.schema)


def open_parquet(files: Sequence[str]) -> Any:
    """An Arrow dataset over Parquet files. AccessError if one cannot be read."""
    from pyarrow import dataset

    system, _ = file_system(files[0])
    try:
        return dataset.dataset([file_system(file)[1] for file in files], format="parquet", filesystem=system)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise AccessError(f"{files[0]}: {str(error).splitlines()[0]}") from None


def parquet_files(paths: Sequence[str]) -> list[str]:
    """The Parquet files at or below some paths."""
    return [entry.path for path in paths for entry in listing(path) if entry.path.endswith(".parquet") and entry.size]


def offered_files(
    files: Sequence[str], restorer: Restorer, *, of_any_system: bool = False, payloads: Payloads | None = None
) -> Offer:
    """The partitions in Parquet files; `payloads` are those of a lake that they may refer to.

    OptionError if they have no topic, partition or offset; EncodeError for rows that lack one of them, unless they may be
    `of_any_system`: then such rows are left out.
    """
    own = restorer.row_columns
    table = RECORDS if payloads is None else registry.table_named(restorer.records_table)
    nameless = 0
    found: dict[tuple[str, int], list[Span]] = {}
    marks: dict[tuple[str, int], list[Any]] = {}
    columns: tuple[str, ...] = ()
    for path in files:
        data = open_parquet([path])
        if payloads is None:
            check_complete(path)
        names = data.schema.names
        missing = {"topic", "partition", "offset"} - set(names)
        if missing:
            raise OptionError(f"{path}: no column {', '.join(sorted(missing))}; rows of `records` are expected")
        has_own = set(own) <= set(names)
        columns = tuple(name for name in (*RECORDS.names, *(own if has_own else ())) if name in names)
        wanted = ["topic", "partition", "offset", *([*own, "timestamp"] if has_own else [])]
        rows = data.to_table(columns=wanted)
        if of_any_system:
            named = pc.and_(pc.is_valid(rows.column("topic")), pc.is_valid(rows.column("partition")))
            nameless += rows.num_rows - (pc.sum(named).as_py() or 0)
            rows = rows.filter(named)
        for key, part in _partitions(path, rows):
            offsets = part.column("offset").to_numpy()
            rising = bool((np.diff(offsets) > 0).all())
            found.setdefault(key, []).append(Span(path, offsets.size, int(offsets.min()), int(offsets.max()), rising))
            if has_own:
                marks.setdefault(key, []).extend(restorer.marks(part))
    return Offer(
        {
            key: Fragments(
                *key, tuple(spans), columns, tuple(sorted(marks.get(key, ()))), payloads=payloads, table=table
            )
            for key, spans in sorted(found.items())
        },
        notes=[f"{nameless:,} rows without a topic or partition are left out"] if nameless else [],
    )


def _partitions(path: str, rows: pa.Table) -> Iterator[tuple[tuple[str, int], pa.Table]]:
    for name in ("topic", "partition", "offset"):
        if rows.column(name).null_count:
            raise EncodeError(f"{path}: rows without a {name} cannot be restored")
    topics = rows.column("topic").cast(pa.string()).combine_chunks().dictionary_encode()
    codes = topics.indices.to_numpy().astype(np.int64) << 32 | rows.column("partition").to_numpy().astype(np.int64)
    for code in np.unique(codes).tolist():
        yield (topics.dictionary[code >> 32].as_py(), int(code & 0xFFFF_FFFF)), rows.filter(pa.array(codes == code))


def offered_lake(path: str, restorer: Restorer, named: Sequence[str] = ()) -> Offer:
    """The restorer's partitions in a lake that `ingest` made, with what it has on their topics; of a lake without any, the partitions
    of other systems. AccessError if it has no records, OptionError if some have no topic or partition and topics are not `named`.
    """
    lake = Lake(path)
    full, plain = (lake.data_files(lake_name(name)) for name in (restorer.records_table, "records"))
    if not full and not plain:
        raise AccessError(f"{path}: the lake has no records")
    offer = offered_files(full or plain, restorer, of_any_system=not full, payloads=lake.payloads() if full else None)
    if offer.notes and not named:
        raise OptionError(f"{path}: {offer.notes[0]}; with --topic they are")
    if full and plain:
        visible = offered_files(plain, restorer, of_any_system=True).partitions
        others = sorted({topic for topic, _ in visible} - {topic for topic, _ in offer.partitions})
        if others and not named:
            more = ", …" if len(others) > SHOWN else ""
            offer.notes.append(
                f"{len(others):,} topics of other systems are left out: {', '.join(others[:SHOWN])}{more}"
            )
        for key, one in offer.partitions.items():
            there = visible.get(key)
            if isinstance(one, Fragments) and isinstance(there, Fragments):
                offer.partitions[key] = replace(one, floor=min(span.first for span in there.spans))
    topics = lake.data_files(restorer.topics_table)
    if topics:
        restorer.add_topics(offer, open_parquet(topics).to_table().to_pylist())
    return offer


def offered_rows(tree: Tree, restorer: Restorer, scratch: str, chosen: Selection) -> Offer:
    """The partitions among the chosen rows of a tree of any system, which are written as partition directories first. EncodeError for rows
    without a partition, or of a topic whose name is not allowed there.
    """
    rows = Rows(tree, RECORDS, chosen)
    format = registry.formats()[restorer.written]
    assert format.write is not None
    try:
        with Output(scratch) as output:
            format.write(rows.batches(), output, {})
    except EncodeError as error:
        raise EncodeError(
            f"{error}; --topic chooses what is restored; "
            f"rows without a partition get one by `rawlog convert --to {format.family}` first"
        ) from None
    written = open_tree(scratch)
    return restorer.offer(written.files, written.groups) or Offer({})
