"""Diff: which records two places do not agree on, by stores or by rows; and the rules for replicas."""

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
    DisorderError,
    Stream,
    Tally,
    compare_ordered,
    runs_of,
    shown_values,
)
from rawlog.model.errors import DONE, FOUND, DataError, OptionError, UnknownFormatError, unknown
from rawlog.model.finding import Mark, Rule, Severity, rule
from rawlog.model.format import Family, File, Replicas
from rawlog.model.job import Job, Split, SplitResult, Stage
from rawlog.model.plan import Reading
from rawlog.model.report import SeriousNote
from rawlog.model.store import Store, unread_size
from rawlog.model.table import RECORDS
from rawlog.model.text import ROWS, counted, html_table, offset_range
from rawlog.reading.certificate import RULES as CERTIFICATE_RULES
from rawlog.reading.inspect import FILE_RULES, RuleChoice, framing_rules
from rawlog.reading.parts import copies
from rawlog.reading.rows import Note, Rows
from rawlog.reading.select import Selection
from rawlog.reading.settlement import PartSummary, StoreFold, merge_parts, notes_on, reading_of, settles
from rawlog.reading.tree import Tree
from rawlog.values.reasons import RULES as VALUE_RULES

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
        (mine, others) for mine, others in same_units(here, there) if mine and others and len(mine) + len(others) > 2
    ]
    found = [Replicas(one.name, one.files, others[0].files) for mine, others in units for one in mine]
    done = {id(group) for mine, others in units for group in (*mine, *others)}
    here, there = ([group for group in side if id(group) not in done] for side in (here, there))
    for one, other in matched(here, there, by_name=bool(done)):
        group = one or other
        assert group is not None
        found.append(Replicas(group.name, _files(one), _files(other)))
    return found


def _files(group: Group | None) -> tuple[File, ...]:
    return () if group is None else group.files


def rules_for(replicas: Replicas) -> Sequence[Rule[Any]]:
    """The rules over two replicas: those of their family if it has any, else those over records."""
    if not replicas.a or not replicas.b:
        return (absent,)
    systems = {file.system for file in (*replicas.a, *replicas.b) if file.system is not None}
    own = registry.family(systems.pop()).store_class.replica_rules() if len(systems) == 1 else ()
    return own or (missing, record)


def _compared(replicas: Replicas) -> Tally:
    whole = Pair(replicas.name, tuple(replicas.a), tuple(replicas.b))
    mixed = [group.mixed for files in (replicas.a, replicas.b) for group in groups(Tree((), tuple(files)), Selection())]
    passes = max(1, -(-whole.size // (1 << 30))) if any(mixed) else 1
    result = Tally()
    for number in range(passes):
        one = replace(whole, mixed=any(mixed), number=number, passes=passes)
        result.take(compare(one, Selection(errors="skip"), MOST))
    return result


def _span(one: Difference) -> str:
    if one.start is None or one.stop is None or one.count == 1:
        return f"{one.name}: {counted(one.count, one.what)}"
    return f"{one.name}: {counted(one.count, one.what)}, {offset_range(one.start, one.stop)}"


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
    tally = replicas.share(_compared)
    for one in tally.items:
        if one.change is not Change.DIFFERS:
            who = "the other replica lacks" if one.change is Change.ONLY_A else "this replica lacks"
            yield Mark(f"{who} {_span(one)}", offset=one.start, path=replicas.a[0].path)
    if tally.unlisted:
        yield Mark(f"{tally.unlisted:,} more differences", path=replicas.a[0].path)


@rule("rawlog.replica.record", Severity.ERROR)
def record(replicas: Replicas) -> Iterator[Mark]:
    """Two replicas have different records at the same topic, partition and offset.

    Look at both with `rawlog diff`, and restore the wrong one from the right one.
    """
    for one in replicas.share(_compared).items:
        if one.change is Change.DIFFERS:
            columns = ", ".join(one.columns)
            yield Mark(
                f"{_span(one)} unlike the other replica's: {columns}",
                offset=one.start,
                path=replicas.a[0].path,
                expected=one.b,
                found=one.a,
            )


#: The rules over replicas whose family has none of its own.
RULES: tuple[Rule[Replicas], ...] = (absent, missing, record)


def all_rules(systems: Collection[str] | None = None) -> Sequence[Rule[Any]]:
    """Every rule rawlog has, by code; with `systems` only the rules of these, and those that every system has."""
    rules: list[Rule[Any]] = [*FILE_RULES, *RULES, *CERTIFICATE_RULES, *VALUE_RULES]
    for family in (one for one in registry.families() if systems is None or one.name in systems):
        for format in family.formats:
            if format.can("scan"):
                rules += framing_rules(format)
            rules += format.all_rules
        kind = family.store_class
        rules += [*kind.rules(), *kind.tree_rules(), *kind.replica_rules()]
    return sorted(rules, key=lambda one: one.code)


def check_chosen(chosen: RuleChoice) -> RuleChoice:
    """The same rules to run, those that were renamed under their names of today. OptionError if a name is not that of a rule."""
    if not chosen.only and not chosen.skip:
        return chosen
    rules = all_rules()
    codes = [one.code for one in rules]
    today = {former: one.code for one in rules for former in one.former}
    only, skip = (tuple(today.get(name, name) for name in names) for names in (chosen.only, chosen.skip))
    for name in (*only, *skip):
        if not any(code == name or code.startswith(f"{name}.") for code in codes):
            raise unknown("rule", name, codes)
    return replace(chosen, only=only, skip=skip)


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
    one, other = (_side(stream, columns, names, split) for stream in (a, b))
    group, offset, again = (
        np.concatenate((getattr(one, name), getattr(other, name))) for name in ("group", "offset", "again")
    )
    side = np.repeat([0, 1], [one.group.size, other.group.size])
    if not side.size:
        return
    if again.any():
        again = _matched(group, offset, again, side, np.concatenate((one.prints, other.prints), axis=1))
    order = np.lexsort((side, again, offset, group))
    group, offset, again, side = group[order], offset[order], again[order], side[order]
    paired = np.zeros(order.size, np.bool_)  # the first of a pair; its twin is the next
    paired[:-1] = (np.diff(group) == 0) & (np.diff(offset) == 0) & (np.diff(again) == 0)
    twin = np.concatenate(([False], paired[:-1]))
    codes = np.where(paired, SAME, np.where(side == 0, ONLY_A, ONLY_B))
    masks = np.zeros(order.size, np.int64)
    first = order[paired]
    second = order[np.flatnonzero(paired) + 1] - one.group.size
    for bit in range(len(columns)):
        masks[paired] |= (one.prints[bit][first] != other.prints[bit][second]).astype(np.int64) << bit
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
        (one.name, one.start): (at, one.columns)
        for at, one in enumerate(tally.items)
        if one.change is Change.DIFFERS and one.a is None
    }
    if not wanted:
        return
    here, there = (_values(stream, wanted) for stream in (a, b))
    for at, _ in wanted.values():
        # Several records may have one place: the difference is that of the first pair in which all its columns are unlike, without those
        # that have an equal on the other side.
        a_values, b_values = here.get(at, []), there.get(at, [])
        for mine, other in zip(_without(a_values, b_values), _without(b_values, a_values), strict=False):
            if all(mine[name] != other[name] for name in mine):
                tally.items[at] = replace(tally.items[at], a=mine, b=other)
                break


def _without(values: list[dict[str, Any]], others: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The values of records that have no equal among others."""
    equal = Counter(map(repr, others))
    for one in values:
        if equal[repr(one)]:
            equal[repr(one)] -= 1
        else:
            yield one


def _values(
    stream: Stream, wanted: dict[tuple[str, int | None], tuple[int, tuple[str, ...]]]
) -> dict[int, list[dict[str, Any]]]:
    """The values of the records at some places, by the number of the difference, in the order of the stream."""
    found: dict[int, list[dict[str, Any]]] = {}
    offsets = pa.array(sorted({offset for _, offset in wanted if offset is not None}), pa.int64())
    for batch in stream:
        rows = batch.filter(pc.is_in(batch.column("offset"), offsets))
        topic, partition, offset = (rows.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for row, place in enumerate(zip(topic, partition, offset, strict=True)):
            at, columns = wanted.get((f"{place[0]}-{place[1]}", place[2]), (None, ()))
            if at is not None:
                found.setdefault(at, []).append(shown_values(rows, row, columns))
    return found


def _side(stream: Stream, columns: tuple[str, ...], names: Names, split: tuple[int, int]) -> _Side:
    groups, offsets, prints = [], [], []
    for batch in stream:
        group, salt = _group(batch, names)
        offset = batch.column("offset").to_numpy()
        if split[1] > 1:
            mine = (salt + offset // BLOCK) % split[1] == split[0]
            batch, group, offset = batch.filter(pa.array(mine)), group[mine], offset[mine]
        groups.append(group)
        offsets.append(offset)
        prints.append(_stacked([fingerprint(batch.column(name)) for name in columns], offset.size))
    none = np.empty(0, np.int64)
    group, offset = np.concatenate([none, *groups]), np.concatenate([none, *offsets])
    made = np.concatenate([_stacked([none] * len(columns), 0), *prints], axis=1)
    order = np.lexsort((offset, group))  # stable: the order of coming stays
    group, offset = group[order], offset[order]
    return _Side(group, offset, _repeats(group, offset), made[:, order])


def _stacked(columns: list[NDArray[np.int64]], rows: int) -> NDArray[np.int64]:
    return np.stack(columns) if columns else np.empty((0, rows), np.int64)


def _matched(
    group: NDArray[np.int64],
    offset: NDArray[np.int64],
    again: NDArray[np.int64],
    side: NDArray[np.int64],
    prints: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Instead of how often a place came before: a number that a record shares with the one of the other side that it is compared with.
    Of several records at one place, each is compared with one that is equal; those that are left, in the order in which they come.
    """
    order = np.lexsort((offset, group))
    place = np.empty(order.size, np.int64)
    place[order] = np.cumsum(_repeats(group[order], offset[order]) == 0)
    repeated = np.zeros(order.size + 1, np.bool_)
    repeated[place[again > 0]] = True
    some = np.flatnonzero(repeated[place])
    content, of, here = _mixed(np.ones(some.size, np.bool_), *prints[:, some]), side[some], place[some]
    sort = np.lexsort((of, content, here))
    nth = np.empty(some.size, np.int64)
    nth[sort] = _repeats(here[sort], content[sort], of[sort])
    sort = np.lexsort((of, nth, content, here))
    equal = np.flatnonzero(_repeats(here[sort], content[sort], nth[sort]))
    first, second = some[sort[equal - 1]], some[sort[equal]]
    again = again.copy()
    again[some] = -1
    again[first] = again[second] = first
    left = some[again[some] < 0]
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
    known, inverse = np.unique(both, return_inverse=True)
    numbers, salts = [], []
    for one in known.tolist():
        number = (one & 0xFFFF_FFFF) - (1 << 32 if one & 0x8000_0000 else 0)
        name = words[one >> 32], None if number < 0 else number
        numbers.append(names.setdefault(name, len(names)))
        salts.append(zlib.crc32(f"{name}".encode("utf-8", "surrogatepass")))
    return np.array(numbers, np.int64)[inverse], np.array(salts, np.int64)[inverse]


def fingerprint(column: pa.Array) -> NDArray[np.int64]:
    """A number for every value of a column: the same for the same values, another for others."""
    valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    if pa.types.is_list(column.type):
        return _mixed(valid, *_list_prints(column))
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        starts, stops, data = _spans(column)
        return _mixed(valid, _sums(data, starts, stops), stops - starts)
    if pa.types.is_timestamp(column.type):
        column = column.view(pa.int64())
    return _mixed(valid, pc.fill_null(column, 0).to_numpy(zero_copy_only=False).astype(np.int64))


def _mixed(valid: NDArray[np.bool_], *parts: NDArray[np.int64]) -> NDArray[np.int64]:
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
    found = [sizes]
    for field in values.flatten() if pa.types.is_struct(values.type) else [values]:
        raw = np.ascontiguousarray(fingerprint(field)).view(np.uint8)
        found.append(_sums(raw, starts * 8, stops * 8))
    return found


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
class Group:
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
    found: list[Pair] = []
    claimed: set[str] = set()
    for family in registry.families():
        mine, others = (tuple(_own(family, tree)) for tree in (a, b))
        if mine or others:
            claimed |= {file.path for file in (*mine, *others)}
            found.append(Pair(family.name, mine, others, family.name))
    here, there = groups(a, selection, claimed), groups(b, selection, claimed)
    for one, other in matched(here, there):
        found += _splits(one, other, selection)
    if not found:
        roots = " and ".join((*a.roots, *b.roots))
        raise UnknownFormatError(f"{roots}: nothing here to compare")
    return found


def _own(family: Family, tree: Tree) -> Iterator[File]:
    """The files that a family compares in its own way, and those that tell what is missing in them."""
    if not any(family.looks_at(file.system) for file in tree) or not family.store_class.can("compare"):
        return
    files = family.files_for(family.store_class.compared, tree)
    evidence = family.files_for(None, tree) if files else ()
    yield from (file for file in {file.path: file for file in (*files, *evidence)}.values() if file.problem is None)


def groups(tree: Tree, selection: Selection, claimed: Collection[str] = ()) -> list[Group]:
    """The partitions, stores and single files of a tree that have records, without the `claimed` files."""
    able = registry.formats_with(RECORDS)
    found: dict[str, Group] = {}
    for file in tree:
        if file.format not in able or file.place.state is not None or file.path in claimed:
            continue
        key = file.place.group or file.path
        if key in found or not selection.takes_file(file):
            continue
        files = tuple(tree.group_of(file))
        topic, partition = file.place.topic, file.place.partition
        mixed = _names_topics(Tree(tree.roots, files)) if topic is None else False
        found[key] = Group(topic, partition, _relative(key, tree.roots), files, mixed)
    return list(found.values())


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


def matched(
    here: list[Group], there: list[Group], *, by_name: bool = False
) -> Iterator[tuple[Group | None, Group | None]]:
    """Groups of both sides by their identity, else by topic and partition, else by their path; the only one of each side whatever it
    is called, unless they are to be matched `by_name`.
    """
    if len(here) == len(there) == 1 and not by_name:
        yield here[0], there[0]
        return
    known: dict[int, Label] = {}
    for number, (mine, others) in enumerate(same_units(here, there)):
        if len(mine) == len(others) == 1:
            known |= {id(mine[0]): (number,), id(others[0]): (number,)}
    a, b = _labelled(here, there, known), _labelled(there, here, known)
    for label in dict.fromkeys((*a, *b)):
        yield a.get(label), b.get(label)


def same_units(here: Sequence[Group], there: Sequence[Group]) -> list[tuple[list[Group], list[Group]]]:
    """The groups of both sides that are replicas of one another, by their identity; those of each side with the best first."""
    stores = [(Store(group.files), side, group) for side, groups in enumerate((here, there)) for group in groups]
    origin = {id(store): (side, group) for store, side, group in stores}
    result = []
    for one in copies(store for store, _, _ in stores):
        members = [origin[id(store)] for store in one.stores]
        result.append(([group for side, group in members if not side], [group for side, group in members if side]))
    return result


def _labelled(groups: list[Group], others: list[Group], known: Mapping[int, Label]) -> dict[Label, Group]:
    """Groups by what they are called on both sides; `known` has the labels of those whose identity says it."""
    mine, theirs = _by_name(groups, known), _by_name(others, known)
    labels: dict[Label, Group] = {}
    for group in groups:
        name = (group.topic, group.partition)
        alike, same = mine.get(name, []), theirs.get(name, [])
        if id(group) in known:
            labels[known[id(group)]] = group
        elif group.topic is None:
            labels[(group.path,)] = group
        elif len(alike) == 1 and len(same) <= 1:
            labels[name] = group
        elif len(same) == 1 and not any(one.path == same[0].path for one in alike):
            raise OptionError(f"{group.name} was found {len(alike)} times: name the directory of one of its replicas")
        else:
            labels[(group.topic, group.partition, group.path)] = group
    return labels


def _by_name(groups: list[Group], known: Mapping[int, Label]) -> dict[Label, list[Group]]:
    """The groups of each topic and partition, without those whose label is known."""
    found: dict[Label, list[Group]] = {}
    for group in groups:
        if id(group) not in known:
            found.setdefault((group.topic, group.partition), []).append(group)
    return found


def _splits(one: Group | None, other: Group | None, selection: Selection) -> Iterator[Pair]:
    group = one or other
    assert group is not None
    name = group.name
    if one is not None and other is not None and one.name != other.name:
        name = f"{one.name} and {other.name}"
    mixed = {side.mixed for side in (one, other) if side is not None and side.mixed is not None}
    pair = Pair(name, one.files if one else (), other.files if other else (), mixed=True in mixed)
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
            if size >= SPLIT_SIZE and registry.formats()[file.format].can("seek"):
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
        own = registry.family(pair.family).store_class.compare
        if note is not None:
            _note_damage(pair.a, note)
            _note_damage(pair.b, note)
        for one in own(pair.a, pair.b, selection):
            if isinstance(one, int):
                tally.alike += one
            else:
                tally.add(one)
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
        given = [one for one in (bounds[name], getattr(selection, name)) if one is not None]
        bounds[name] = pick(given) if given else None
    wanted = selection.replace(columns=tuple(dict.fromkeys(columns)), **bounds)
    tree = Tree((), files)
    rows = Rows(tree, RECORDS, wanted)
    rows.note, rows.readings = note, readings or {}
    if summaries is not None:
        rows.fold = StoreFold(tree, RECORDS)
    yield from rows.batches()
    if summaries is not None and rows.fold is not None:
        summaries += rows.fold.summaries


# ----------------------------------------------------------------------------------------------------------------------
# Diff: two trees compared, one partition, store or range of a log at a time.


@dataclass(frozen=True, slots=True)
class Compared(SplitResult):
    """The result of one split, and what was noted while its files were read."""

    tally: Tally
    notes: tuple[str, ...] = ()
    #: What the diagnosis of both sides needs.
    summaries: tuple[PartSummary, ...] = ()
    #: Why the records could not be compared as they are stored.
    failure: DisorderError | None = None
    #: The splits whose results this one replaces.
    replaces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Settling:
    """The splits of a pair, by number, whose stores are settled, with the summaries of their files."""

    pairs: tuple[tuple[int, Pair], ...]
    a: Store
    b: Store
    is_compared: bool


@dataclass(frozen=True, repr=False)
class Differences:
    """What both sides do not agree on, in the order of the first side's files. Iterate over it for each Difference. `notes` say what was
    passed over: damage, rows that are not at their place.
    """

    tally: Tally
    notes: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether there is no difference."""
        return self.tally.is_same

    @property
    def exit_code(self) -> int:
        """How a comparison ends: 0 if there is no difference and no damage was passed over, else 1."""
        return DONE if self.is_same and not self.damage else FOUND

    @property
    def damage(self) -> list[str]:
        """The notes on damage that was passed over: what it holds was not compared."""
        return [note for note in self.notes if isinstance(note, SeriousNote)]

    @property
    def unlisted(self) -> int:
        """How many differences were counted and not listed."""
        return self.tally.unlisted

    def summary(self) -> dict[str, Any]:
        """How many things are alike, differ, or are only on one side."""
        return self.tally.summary()

    def __iter__(self) -> Iterator[Difference]:
        return iter(self.tally.items)

    def __len__(self) -> int:
        return len(self.tally.items)

    def __repr__(self) -> str:
        counts = (
            f"{self.tally.only_in_a:,} only in a, {self.tally.only_in_b:,} only in b, {self.tally.differs:,} differ"
        )
        return f"<rawlog.Differences {'same' if self.is_same else 'different'}: {self.tally.alike:,} alike, {counts}>"

    def _repr_html_(self) -> str:
        """The first differences as a table, for a notebook."""
        names = ("change", "what", "name", "from_offset", "to_offset", "count", "columns")
        rows = ([one.as_json()[name] for name in names] for one in self.tally.items[:ROWS])
        return html_table(names, rows, repr(self))


class Diff(Job[Compared, Differences]):
    """Compare a tree, the first side, with another. Damage raises, unless the selection says to stop or skip."""

    def __init__(self, other: Tree, selection: Selection | None = None, limit: int | None = None) -> None:
        """`limit` is the number of differences that are listed for each partition or store; all of them are counted."""
        self.other: Tree | None = other
        self.selection = selection or Selection()
        self.limit = limit
        self._splits: list[Split] = []

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each pair of partitions or stores; large logs in several."""
        assert self.other is not None
        found = pairs(tree, self.other, self.selection)
        self._splits = [Split(number, pair.size, pair) for number, pair in enumerate(found)]
        return list(self._splits)

    def work(self, split: Split, stage: Stage) -> Compared:
        """Compare one pair, or settle its stores."""
        if isinstance(split.content, Settling):
            return self._settle(split.number, split.content)
        pair: Pair = split.content
        notes: list[str] = []
        summaries: list[PartSummary] = []
        tally, failure = Tally(), None
        try:
            tally = compare(pair, self.selection, self.limit, notes.append, None, summaries)
        except DisorderError as error:
            if not self._settles(pair):
                raise
            failure = error
        stage.advance(split.size)
        return Compared(split.number, tally, tuple(notes), tuple(summaries), failure)

    def _settles(self, pair: Pair) -> bool:
        """Whether the stores of a pair are settled: not if the comparison ends at the first damage."""
        is_able = any(settles(file, RECORDS) for file in (*pair.a, *pair.b))
        return is_able and pair.family is None and self.selection.errors != "stop"

    def follow(self, done: Sequence[Compared]) -> list[Split]:
        """What `repair` would keep of the stores of each pair. Those that were read in part only if something was passed over."""
        if any(isinstance(split.content, Settling) for split in self._splits):
            return []
        results = {one.number: one for one in done}
        by_pair: dict[tuple[object, object], list[tuple[int, Pair]]] = {}
        for split in self._splits:
            if self._settles(split.content):
                by_pair.setdefault((split.content.a, split.content.b), []).append((split.number, split.content))
        is_bounded = not self.selection.replace(where=None, text=None).takes_every_row
        settling = []
        for pairs in by_pair.values():
            own = [results[number] for number, _ in pairs]
            is_troubled = any(isinstance(note, SeriousNote) for one in own for note in one.notes)
            has_failed = any(one.failure is not None for one in own)
            if is_bounded and not is_troubled and not has_failed:
                continue
            wholes = [part for one in own for part in one.summaries if not part.start and part.stop is None]
            summaries = merge_parts({part.file.path: part for part in wholes}.values())
            a, b = (Store(files).with_summaries(summaries) for files in (pairs[0][1].a, pairs[0][1].b))
            settling.append(Settling(tuple(pairs), a, b, not has_failed))
        first = len(self._splits)
        splits = [Split(first + at, unread_size(one.a) + unread_size(one.b), one) for at, one in enumerate(settling)]
        self._splits += splits
        return splits

    def _settle(self, number: int, own: Settling) -> Compared:
        """Compare a pair again if one of its sides has rows that `repair` would not keep as they are."""
        readings = {store.path: reading_of(store) for store in (own.a, own.b) if store}
        notes = [note for reading in readings.values() for note in notes_on(reading)]
        if own.is_compared and all(reading.pieces is None for reading in readings.values()):
            return Compared(number, Tally(), tuple(notes))
        tally = Tally(self.limit)
        whole = [pair for _, pair in own.pairs if pair.start is None]
        for pair in whole:
            tally.take(compare(replace(pair, stop=None), self.selection, self.limit, notes.append, readings))
        return Compared(number, tally, tuple(notes), replaces=tuple(at for at, _ in own.pairs))

    def commit(self, done: Sequence[Compared]) -> Differences:
        """Add up, and join runs that were cut between two splits."""
        replaced = {number for one in done for number in one.replaces}
        done = [one for one in done if one.number not in replaced]
        result = Tally()
        for one in done:
            result.take(one.tally)
        result.items = _joined(result.items)
        return Differences(result, tuple(dict.fromkeys(note for one in done for note in one.notes)))

    def __getstate__(self) -> dict[str, object]:
        # The other tree stays where it was planned: a split names its files.
        return {"other": None, "selection": self.selection, "limit": self.limit, "_splits": []}


def _joined(items: Sequence[Difference]) -> list[Difference]:
    joined: list[Difference] = []
    for one in items:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.stop is not None
            and last.stop == one.start
            and (last.change, last.what, last.name, last.columns) == (one.change, one.what, one.name, one.columns)
        ):
            joined[-1] = replace(last, stop=one.stop, count=last.count + one.count)
        else:
            joined.append(one)
    return joined
