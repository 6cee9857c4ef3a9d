"""Rows of two places compared: which partitions, stores and files belong together, how their records differ, and the rules for replicas."""

from __future__ import annotations

import contextlib
import posixpath
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog import registry
from rawlog.io.checksums import crc32_spans, crc32c_spans
from rawlog.model.difference import (
    CHANGES,
    DIFFERS,
    ONLY_A,
    ONLY_B,
    SAME,
    Change,
    Difference,
    Stream,
    Tally,
    compare_ordered,
    runs_of,
    shown_values,
)
from rawlog.model.errors import DataError, OptionError, UnknownFormatError
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import Family, File, Replicas
from rawlog.model.outline import Reading
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.model.text import counted, offset_range
from rawlog.reading.parts import copies
from rawlog.reading.rows import Note, Rows
from rawlog.reading.select import Selection
from rawlog.reading.settlement import PartSummary, StoreFold, notes_on, reading_of
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.model.difference import Stream


# ----------------------------------------------------------------------------------------------------------------------
# Replicas of the same partitions or stores in two trees: which belong together, and the rules for families without their own.


#: So many differences of one pair become a finding each; one more finding says how many others there are.
MOST = 1000


def replicas_of(a: Tree, b: Tree) -> list[Replicas]:
    """The partitions, stores and files of two trees, paired; one side of a pair has no files where only the other has it. Each replica
    of the first tree is compared with the best one of the other tree.
    """
    here, there = groups(a, Selection()), groups(b, Selection())
    units = [
        (ours, others) for ours, others in same_units(here, there) if ours and others and len(ours) + len(others) > 2
    ]
    replicas = [Replicas(group.name, group.files, others[0].files) for ours, others in units for group in ours]
    done = {id(group) for ours, others in units for group in (*ours, *others)}
    here, there = ([group for group in side if id(group) not in done] for side in (here, there))
    for first, other in match_groups(here, there, by_name=bool(done)):
        group = first or other
        assert group is not None
        replicas.append(Replicas(group.name, _files(first), _files(other)))
    return replicas


def _files(group: SideGroup | None) -> tuple[File, ...]:
    return () if group is None else group.files


def rules_for(replicas: Replicas) -> Sequence[Rule[Any]]:
    """The rules over two replicas: those of their family if it has any, else those over records."""
    if not replicas.a or not replicas.b:
        return (absent,)
    systems = {file.system for file in (*replicas.a, *replicas.b) if file.system is not None}
    family_rules = registry.family(systems.pop()).store_class.replica_rules() if len(systems) == 1 else ()
    return family_rules or (missing, record)


def _compare_all(replicas: Replicas) -> Tally:
    whole = Pair(replicas.name, tuple(replicas.a), tuple(replicas.b))
    mixed = [group.mixed for files in (replicas.a, replicas.b) for group in groups(Tree((), tuple(files)), Selection())]
    passes = max(1, -(-whole.size // (1 << 30))) if any(mixed) else 1
    result = Tally()
    for number in range(passes):
        share = replace(whole, mixed=any(mixed), number=number, passes=passes)
        result.take(compare(share, Selection(errors="skip"), MOST))
    return result


def _span(difference: Difference) -> str:
    if difference.start is None or difference.stop is None or difference.count == 1:
        return f"{difference.name}: {counted(difference.count, difference.what)}"
    return f"{difference.name}: {counted(difference.count, difference.what)}, {offset_range(difference.start, difference.stop)}"


@rule("rawlog.replica.absent", Severity.INFO)
def absent(replicas: Replicas) -> Iterator[Mark]:
    """A partition, store or file has no replica in the other place, so nothing could be compared with it.

    That is normal where each broker has only some of the partitions.
    """
    side = "the other place" if replicas.a else "this place"
    yield Mark(f"{replicas.name}: {side} has no replica of it", path=(*replicas.a, *replicas.b)[0].path)


@rule("rawlog.replica.missing", Severity.WARNING)
def missing(replicas: Replicas) -> Iterator[Mark]:
    """Records that one replica has and the other does not.

    At the end of a log that is normal for a replica that lags, at its beginning for one that was trimmed further; anywhere else records are
    lost.
    """
    tally = replicas.share(_compare_all)
    for difference in tally.items:
        if difference.change is not Change.DIFFERS:
            who = "the other replica lacks" if difference.change is Change.ONLY_A else "this replica lacks"
            yield Mark(f"{who} {_span(difference)}", offset=difference.start, path=replicas.a[0].path)
    if tally.unlisted:
        yield Mark(f"{tally.unlisted:,} more differences", path=replicas.a[0].path)


@rule("rawlog.replica.record", Severity.ERROR)
def record(replicas: Replicas) -> Iterator[Mark]:
    """Two replicas have different records at the same topic, partition and offset.

    Look at both with `rawlog diff`, and restore the wrong one from the right one.
    """
    for difference in replicas.share(_compare_all).items:
        if difference.change is Change.DIFFERS:
            columns = ", ".join(difference.columns)
            yield Mark(
                f"{_span(difference)} unlike the other replica's: {columns}",
                offset=difference.start,
                path=replicas.a[0].path,
                expected=difference.b,
                found=difference.a,
            )


#: The rules over replicas whose family has none of its own.
RULES: tuple[Rule[Replicas], ...] = (absent, missing, record)


# ----------------------------------------------------------------------------------------------------------------------
# Logs that have the records of several topics in any order, compared by the place of each record and a checksum for each column.
# The checksum of bytes is a pair of 32-bit ones with different polynomials, so that different bytes look equal once in 2^64.


Names = dict[tuple[str | None, int | None], int]
#: Offsets that stay together when a log is compared in several passes.
BLOCK = 1 << 16
NULL, NOT_NULL = 1, 2


@dataclass(frozen=True, slots=True)
class _Side:
    """The records of one side, sorted by group, offset and order in the stream."""

    group: NDArray[np.int64]
    offset: NDArray[np.int64]
    again: NDArray[np.int64]
    prints: NDArray[np.int64]


def compare_mixed(
    a: Stream, b: Stream, columns: tuple[str, ...], tally: Tally, what: str, split: tuple[int, int] = (0, 1)
) -> None:
    """Add to `tally` the differences between two streams of records (topic, partition, offset, `columns`), whatever their order.

    `split` is (number, count): only that part of the records is compared, so that several passes need less memory than one.
    """
    names: Names = {}
    this, other = (_side(stream, columns, names, split) for stream in (a, b))
    group, offset, again = (
        np.concatenate((getattr(this, name), getattr(other, name))) for name in ("group", "offset", "again")
    )
    side = np.repeat([0, 1], [this.group.size, other.group.size])
    if not side.size:
        return
    if again.any():
        again = _match_repeats(group, offset, again, side, np.concatenate((this.prints, other.prints), axis=1))
    order = np.lexsort((side, again, offset, group))
    group, offset, again, side = group[order], offset[order], again[order], side[order]
    paired = np.zeros(order.size, np.bool_)  # the first of a pair; its twin is the next
    paired[:-1] = (np.diff(group) == 0) & (np.diff(offset) == 0) & (np.diff(again) == 0)
    twin = np.concatenate(([False], paired[:-1]))
    codes = np.where(paired, SAME, np.where(side == 0, ONLY_A, ONLY_B))
    masks = np.zeros(order.size, np.int64)
    first = order[paired]
    second = order[np.flatnonzero(paired) + 1] - this.group.size
    for bit in range(len(columns)):
        masks[paired] |= (this.prints[bit][first] != other.prints[bit][second]).astype(np.int64) << bit
    codes[masks != 0] = DIFFERS
    _add_runs(tally, what, columns, names, *(part[~twin] for part in (group, offset, codes, masks)))


def _add_runs(
    tally: Tally,
    what: str,
    columns: tuple[str, ...],
    names: Names,
    group: NDArray[np.int64],
    offset: NDArray[np.int64],
    codes: NDArray[np.int64],
    masks: NDArray[np.int64],
) -> None:
    called = [f"{topic}-{partition}" for topic, partition in names]
    for start, stop in runs_of(group, codes, masks):
        code = int(codes[start])
        if code == SAME:
            tally.alike += stop - start
            continue
        if tally.is_full:
            tally.add_runs(codes[start:], masks[start:])
            return
        unlike = tuple(name for bit, name in enumerate(columns) if masks[start] >> bit & 1)
        span = int(offset[start]), int(offset[stop - 1]) + 1
        tally.add(Difference(CHANGES[code], what, called[int(group[start])], *span, stop - start, unlike))


def show_values(a: Stream, b: Stream, tally: Tally) -> None:
    """Put the values of both sides into the listed differences: only checksums were compared, so the streams are read once more."""
    wanted = {
        (difference.name, difference.start): (at, difference.columns)
        for at, difference in enumerate(tally.items)
        if difference.change is Change.DIFFERS and difference.a is None
    }
    if not wanted:
        return
    here, there = (_values(stream, wanted) for stream in (a, b))
    for at, _ in wanted.values():
        # Several records may have one place: the difference is that of the first pair in which all its columns are unlike, without those
        # that have an equal on the other side.
        a_values, b_values = here.get(at, []), there.get(at, [])
        for value, other in zip(_without(a_values, b_values), _without(b_values, a_values), strict=False):
            if all(value[name] != other[name] for name in value):
                tally.items[at] = replace(tally.items[at], a=value, b=other)
                break


def _without(values: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The values of records that have no equal among others."""
    equal = Counter(map(repr, others))
    for value in values:
        if equal[repr(value)]:
            equal[repr(value)] -= 1
        else:
            yield value


def _values(
    stream: Stream, wanted: dict[tuple[str, int | None], tuple[int, tuple[str, ...]]]
) -> dict[int, list[dict[str, Any]]]:
    """The values of the records at some places, by the number of the difference, in the order of the stream."""
    values: dict[int, list[dict[str, Any]]] = {}
    offsets = pa.array(sorted({offset for _, offset in wanted if offset is not None}), pa.int64())
    for batch in stream:
        rows = batch.filter(pc.is_in(batch.column("offset"), offsets))
        topic, partition, offset = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for row, place in enumerate(zip(topic, partition, offset, strict=True)):
            at, columns = wanted.get((f"{place[0]}-{place[1]}", place[2]), (None, ()))
            if at is not None:
                values.setdefault(at, []).append(shown_values(rows, row, columns))
    return values


def _side(stream: Stream, columns: tuple[str, ...], names: Names, split: tuple[int, int]) -> _Side:
    groups, offsets, prints = [], [], []
    for batch in stream:
        group, salt = _group(batch, names)
        offset = batch.column("offset").to_numpy()
        if split[1] > 1:
            chosen = (salt + offset // BLOCK) % split[1] == split[0]
            batch, group, offset = batch.filter(pa.array(chosen)), group[chosen], offset[chosen]
        groups.append(group)
        offsets.append(offset)
        prints.append(_stack([fingerprint(batch.column(name)) for name in columns], offset.size))
    none = np.empty(0, np.int64)
    group, offset = np.concatenate([none, *groups]), np.concatenate([none, *offsets])
    fingerprints = np.concatenate([_stack([none] * len(columns), 0), *prints], axis=1)
    order = np.lexsort((offset, group))  # stable: the order of coming stays
    group, offset = group[order], offset[order]
    return _Side(group, offset, _repeats(group, offset), fingerprints[:, order])


def _stack(columns: list[NDArray[np.int64]], rows: int) -> NDArray[np.int64]:
    return np.stack(columns) if columns else np.empty((0, rows), np.int64)


def _match_repeats(
    group: NDArray[np.int64],
    offset: NDArray[np.int64],
    again: NDArray[np.int64],
    side: NDArray[np.int64],
    prints: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Number the records at each place: those to compare with one another have the same number. Equal records are compared first, the
    others in the order of the streams.
    """
    order = np.lexsort((offset, group))
    place = np.empty(order.size, np.int64)
    place[order] = np.cumsum(_repeats(group[order], offset[order]) == 0)
    repeated = np.zeros(order.size + 1, np.bool_)
    repeated[place[again > 0]] = True
    places = np.flatnonzero(repeated[place])
    content, of, here = _mix(np.ones(places.size, np.bool_), *prints[:, places]), side[places], place[places]
    sort = np.lexsort((of, content, here))
    nth = np.empty(places.size, np.int64)
    nth[sort] = _repeats(here[sort], content[sort], of[sort])
    sort = np.lexsort((of, nth, content, here))
    equal = np.flatnonzero(_repeats(here[sort], content[sort], nth[sort]))
    first, second = places[sort[equal - 1]], places[sort[equal]]
    again = again.copy()
    again[places] = -1
    again[first] = again[second] = first
    left = places[again[places] < 0]
    left = left[np.lexsort((side[left], place[left]))]
    again[left] = order.size + _repeats(place[left], side[left])
    return again


def _repeats(*keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often the same came before, for what is sorted."""
    at = np.arange(keys[0].size)
    new = np.concatenate(([True], np.any([np.diff(key) != 0 for key in keys], axis=0)))[: at.size]
    return at - np.maximum.accumulate(np.where(new, at, 0)) if at.size else at


def _group(batch: pa.RecordBatch, names: Names) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each record's topic and partition, and one that depends on nothing but these two."""
    topic = batch.column("topic").dictionary_encode(null_encoding="encode")
    words = topic.dictionary.to_pylist()
    partition = pc.fill_null(batch.column("partition"), -1).to_numpy().astype(np.int64)
    both = topic.indices.to_numpy().astype(np.int64) << 32 | (partition & 0xFFFF_FFFF)
    codes, inverse = np.unique(both, return_inverse=True)
    numbers, salts = [], []
    for code in codes.tolist():
        number = (code & 0xFFFF_FFFF) - (1 << 32 if code & 0x8000_0000 else 0)
        name = words[code >> 32], None if number < 0 else number
        numbers.append(names.setdefault(name, len(names)))
        salts.append(zlib.crc32(f"{name}".encode("utf-8", "surrogatepass")))
    return np.array(numbers, np.int64)[inverse], np.array(salts, np.int64)[inverse]


def fingerprint(column: pa.Array) -> NDArray[np.int64]:
    """A number for every value of a column: the same for the same values, another for others."""
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if pa.types.is_list(column.type):
        return _mix(valid, *_list_prints(column))
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        starts, stops, data = _spans(column)
        return _mix(valid, _sums(data, starts, stops), stops - starts)
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return _mix(valid, pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64))


def _mix(valid: NDArray[np.bool_], *parts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Numbers made into one; those of what is null count for nothing."""
    with np.errstate(over="ignore"):
        result = np.where(valid, NOT_NULL, NULL).astype(np.uint64)
        for part in parts:
            result = (result ^ np.where(valid, part, 0).astype(np.uint64)) * np.uint64(0x9E37_79B9_7F4A_7C15)
            result ^= result >> np.uint64(29)
        return result.view(np.int64)


def _spans(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint8]]:
    """Where the bytes of each value begin and end."""
    _, offsets, data = column.buffers()
    at = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4).astype(np.int64)
    raw = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return at[:-1], at[1:], raw


def _sums(data: Any, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    return crc32_spans(data, starts, stops) << 32 | crc32c_spans(data, starts, stops)


def _list_prints(column: pa.Array) -> list[NDArray[np.int64]]:
    """The numbers that stand for lists of structures: those of their elements' fields, summed over the list as bytes."""
    values = column.flatten()
    sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy().astype(np.int64)
    stops = np.cumsum(sizes)
    starts = stops - sizes
    sums = [sizes]
    for field in values.flatten() if pa.types.is_struct(values.type) else [values]:
        raw = np.ascontiguousarray(fingerprint(field)).view(np.uint8)
        sums.append(_sums(raw, starts * 8, stops * 8))
    return sums


# ----------------------------------------------------------------------------------------------------------------------
# Two trees compared: which stores are compared with each other, and how. Memory is bounded, whatever the size of the logs.


RECORD, PARTITION = "record", "partition"
#: What a partition, store or file is called on both sides.
Label = tuple[object, ...]
#: What of a record is compared unless columns are named.
COLUMNS = ("key", "value", "timestamp", "timestampType", "headers")
#: A log of this many bytes or more is compared in several splits, cut at the offsets at which files begin.
SPLIT_SIZE = 256 << 20
#: Bytes of files with several topics for which one pass keeps checksums.
PASS = 512 << 20


@dataclass(frozen=True, slots=True)
class Pair:
    """Two stores to compare, or a range of them: the files of both sides, of which one may have none.

    With `family` they are all files that this family compares in its own way.
    """

    name: str
    a: tuple[File, ...]
    b: tuple[File, ...]
    family: str | None = None
    #: The records of several topics are in one log, in any order.
    mixed: bool = False
    #: Offsets from `start` to before `stop`; None: no bound.
    start: int | None = None
    stop: int | None = None
    #: This pass over a mixed log, of so many.
    number: int = 0
    passes: int = 1

    @property
    def size(self) -> int:
        whole = sum(file.size for file in (*self.a, *self.b))
        return whole if self.start is None and self.stop is None else min(whole, 2 * SPLIT_SIZE)


@dataclass(frozen=True, slots=True)
class SideGroup:
    """The files of one partition, store or file of one side."""

    topic: str | None
    partition: int | None
    path: str
    files: tuple[File, ...]
    #: The records of several topics may be in it; None: it has no record that can be read.
    mixed: bool | None

    @property
    def name(self) -> str:
        return self.path if self.topic is None or self.mixed else f"{self.topic}-{self.partition}"


def pairs(a: Tree, b: Tree, selection: Selection) -> list[Pair]:
    """What is compared with what. OptionError if that is ambiguous; UnknownFormatError if neither side has anything to compare."""
    result: list[Pair] = []
    claimed: set[str] = set()
    for family in registry.families_near(file.system for file in (*a, *b)):
        ours, others = (tuple(_family_files(family, tree)) for tree in (a, b))
        if ours or others:
            claimed |= {file.path for file in (*ours, *others)}
            result.append(Pair(family.name, ours, others, family.name))
    here, there = groups(a, selection, claimed), groups(b, selection, claimed)
    for first, other in match_groups(here, there):
        result += _splits(first, other, selection)
    if not result:
        roots = " and ".join((*a.roots, *b.roots))
        raise UnknownFormatError(f"{roots}: nothing here to compare")
    return result


def _family_files(family: Family, tree: Tree) -> Iterator[File]:
    """The files that a family compares itself, and the files with evidence of what is missing."""
    if not any(family.looks_at(file.system) for file in tree) or not family.store_class.can("compare"):
        return
    files = family.files_for(family.store_class.compared, tree)
    evidence = family.files_for(None, tree) if files else ()
    yield from (file for file in {file.path: file for file in (*files, *evidence)}.values() if file.problem is None)


def groups(tree: Tree, selection: Selection, claimed: Collection[str] = ()) -> list[SideGroup]:
    """The partitions, stores and single files of a tree that have records, without the `claimed` files."""
    able = registry.formats_with(RECORDS)
    result: dict[str, SideGroup] = {}
    for file in tree:
        if file.format not in able or file.place.state is not None or file.path in claimed:
            continue
        key = file.place.group or file.path
        if key in result or not selection.takes_file(file):
            continue
        files = tuple(tree.group_of(file))
        topic, partition = file.place.topic, file.place.partition
        mixed = _names_topics(Tree(tree.roots, files)) if topic is None else False
        result[key] = SideGroup(topic, partition, _relative(key, tree.roots), files, mixed)
    return list(result.values())


def _names_topics(tree: Tree) -> bool | None:
    """Whether each record names its topic: then one log may have several. None if no record can be read."""
    with contextlib.suppress(DataError):
        for batch in Rows(tree, RECORDS, Selection(columns=("topic",), limit=1, errors="skip")).batches():
            return bool(batch.column(0).null_count < batch.num_rows)
    return None


def _relative(path: str, roots: Sequence[str]) -> str:
    for root in roots:
        if path.rstrip("/") == root.rstrip("/"):
            return posixpath.basename(path.rstrip("/"))
        if path.startswith(root.rstrip("/") + "/"):
            return path[len(root.rstrip("/")) + 1 :]
    return path


def match_groups(
    here: list[SideGroup], there: list[SideGroup], *, by_name: bool = False
) -> Iterator[tuple[SideGroup | None, SideGroup | None]]:
    """Groups of both sides by their identity, else by topic and partition, else by their path; the only one of each side whatever it
    is called, unless they are to be matched `by_name`.
    """
    if len(here) == len(there) == 1 and not by_name:
        yield here[0], there[0]
        return
    labels: dict[int, Label] = {}
    for number, (ours, others) in enumerate(same_units(here, there)):
        if len(ours) == len(others) == 1:
            labels |= {id(ours[0]): (number,), id(others[0]): (number,)}
    a, b = _label_groups(here, there, labels), _label_groups(there, here, labels)
    for label in dict.fromkeys((*a, *b)):
        yield a.get(label), b.get(label)


def same_units(here: Sequence[SideGroup], there: Sequence[SideGroup]) -> list[tuple[list[SideGroup], list[SideGroup]]]:
    """The groups of both sides that are replicas of one another, by their identity; those of each side with the best first."""
    stores = [(Store(group.files), side, group) for side, groups in enumerate((here, there)) for group in groups]
    origin = {id(store): (side, group) for store, side, group in stores}
    result = []
    for unit in copies(store for store, _, _ in stores):
        members = [origin[id(store)] for store in unit.stores]
        result.append(([group for side, group in members if not side], [group for side, group in members if side]))
    return result


def _label_groups(
    groups: list[SideGroup], others: list[SideGroup], fixed: Mapping[int, Label]
) -> dict[Label, SideGroup]:
    """Groups by what they are called on both sides; `fixed` has the labels of those whose identity says it."""
    ours_by_name, others_by_name = _by_name(groups, fixed), _by_name(others, fixed)
    labels: dict[Label, SideGroup] = {}
    for group in groups:
        name = (group.topic, group.partition)
        alike, same = ours_by_name.get(name, []), others_by_name.get(name, [])
        if id(group) in fixed:
            labels[fixed[id(group)]] = group
        elif group.topic is None:
            labels[(group.path,)] = group
        elif len(alike) == 1 and len(same) <= 1:
            labels[name] = group
        elif len(same) == 1 and not any(other.path == same[0].path for other in alike):
            raise OptionError(f"{group.name} was found {len(alike)} times: name the directory of one of its replicas")
        else:
            labels[(group.topic, group.partition, group.path)] = group
    return labels


def _by_name(groups: list[SideGroup], fixed: Mapping[int, Label]) -> dict[Label, list[SideGroup]]:
    """The groups of each topic and partition, without those whose label is known."""
    result: dict[Label, list[SideGroup]] = {}
    for group in groups:
        if id(group) not in fixed:
            result.setdefault((group.topic, group.partition), []).append(group)
    return result


def _splits(first: SideGroup | None, other: SideGroup | None, selection: Selection) -> Iterator[Pair]:
    group = first or other
    assert group is not None
    name = group.name
    if first is not None and other is not None and first.name != other.name:
        name = f"{first.name} and {other.name}"
    mixed = {side.mixed for side in (first, other) if side is not None and side.mixed is not None}
    pair = Pair(name, first.files if first else (), other.files if other else (), mixed=True in mixed)
    if len(mixed) > 1:
        raise OptionError(
            f"{name}: one side has several topics and the other does not: choose what to compare with --topic"
        )
    if pair.mixed:
        passes = max(1, -(-pair.size // (2 * PASS)))
        yield from (replace(pair, number=number, passes=passes) for number in range(passes))
        return
    edges = _edges(pair, selection)
    for start, stop in zip([None, *edges], [*edges, None], strict=True):
        yield replace(pair, start=start, stop=stop)


def _edges(pair: Pair, selection: Selection) -> list[int]:
    """Offsets at which to cut a large log: where files of the first side begin, so many bytes apart."""
    if selection.last is not None or selection.limit is not None:
        return []
    edges, size = [], 0
    able = registry.formats_with(RECORDS)
    for file in pair.a or pair.b:
        if file.format in able and file.place.state is None and file.place.start_offset is not None:
            if size >= SPLIT_SIZE and registry.formats()[str(file.format)].can("seek"):
                edges.append(file.place.start_offset)
                size = 0
            size += file.size
    return sorted(set(edges))


def compare(
    pair: Pair,
    selection: Selection,
    limit: int | None = None,
    note: Note | None = None,
    readings: Mapping[str, Reading] | None = None,
    summaries: list[PartSummary] | None = None,
) -> Tally:
    """Compare the two sides of a pair; at most `limit` differences are listed, all are counted. `note` gets a sentence on damage that was
    passed over.

    `readings` are what counts of stores whose rows are not read as they are stored; `summaries` gets what their diagnosis needs.
    DataError at damage, unless the selection says to stop or skip; DisorderError if offsets do not ascend.
    """
    tally = Tally(limit)
    if pair.family is not None:
        compare_family = registry.family(pair.family).store_class.compare
        if note is not None:
            _note_damage(pair.a, note)
            _note_damage(pair.b, note)
        for difference in compare_family(pair.a, pair.b, selection):
            if isinstance(difference, int):
                tally.alike += difference
            else:
                tally.add(difference)
        return tally
    columns = tuple(name for name in selection.columns or COLUMNS if name != "offset")
    if pair.mixed:
        names = ("topic", "partition", "offset", *columns)
        folds = summaries if not pair.number else None
        a, b = (_records(files, names, pair, selection, note, readings, folds) for files in (pair.a, pair.b))
        compare_mixed(a, b, columns, tally, RECORD, (pair.number, pair.passes))
        a, b = (_records(files, names, pair, selection, readings=readings) for files in (pair.a, pair.b))
        show_values(a, b, tally)
        return tally
    names = ("offset", *columns)
    a, b = (_records(files, names, pair, selection, note, readings, summaries) for files in (pair.a, pair.b))
    compare_ordered(a, b, "offset", columns, tally, RECORD, pair.name)
    if tally.is_same and not (pair.a and pair.b) and pair.start is None:  # it exists, and is empty
        tally.add(Difference(Change.ONLY_A if pair.a else Change.ONLY_B, PARTITION, pair.name))
    return tally


def _note_damage(files: Sequence[File], note: Note) -> None:
    """Name what `repair` would report of the logs among files: what a family compares in its own way passes over it."""
    able = registry.formats_with(RECORDS)
    groups: dict[str | None, list[File]] = {}
    for file in files:
        groups.setdefault(file.place.group, []).append(file)
    for group in groups.values():
        if any(file.format in able for file in group):
            for text in notes_on(reading_of(Store(group))):
                note(text)


def _records(
    files: tuple[File, ...],
    columns: tuple[str, ...],
    pair: Pair,
    selection: Selection,
    note: Note | None = None,
    readings: Mapping[str, Reading] | None = None,
    summaries: list[PartSummary] | None = None,
) -> Stream:
    """The records of one side of a pair; once they are read, `summaries` has what the diagnosis of their store needs."""
    if not files:
        return
    bounds = {"from_offset": pair.start, "to_offset": pair.stop}
    for name, pick in (("from_offset", max), ("to_offset", min)):
        limits = [limit for limit in (bounds[name], getattr(selection, name)) if limit is not None]
        bounds[name] = pick(limits) if limits else None
    wanted = selection.replace(columns=tuple(dict.fromkeys(columns)), **bounds)
    tree = Tree((), files)
    rows = Rows(tree, RECORDS, wanted)
    rows.note, rows.readings = note, readings or {}
    if summaries is not None:
        rows.fold = StoreFold(tree, RECORDS)
    yield from rows.batches()
    if summaries is not None and rows.fold is not None:
        summaries += rows.fold.summaries
