"""Two trees compared: which stores are compared with each other, and how. Memory is bounded, whatever the size of the logs."""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rawlog import registry
from rawlog.core.difference import Change, Difference, Stream, Tally, compare_ordered
from rawlog.core.errors import DataError, OptionError, UnknownFormatError
from rawlog.core.format import Family, File
from rawlog.core.store import Store
from rawlog.core.tables import RECORDS
from rawlog.reading.replicas import copies
from rawlog.reading.rows import Note, Rows
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

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
        if family.compare is not None:
            mine, others = (tuple(_own(family, tree)) for tree in (a, b))
            claimed |= {file.path for file in (*mine, *others)}
            if mine or others:
                found.append(Pair(family.name, mine, others, family.name))
    here, there = groups(a, selection, claimed), groups(b, selection, claimed)
    for one, other in matched(here, there):
        found += _splits(one, other, selection)
    if not found:
        roots = " and ".join((*a.roots, *b.roots))
        raise UnknownFormatError(f"{roots}: nothing here to compare")
    return found


def _own(family: Family, tree: Tree) -> Iterator[File]:
    """The files that a family compares in its own way."""
    yield from (file for file in family.files_for(family.compared, tree) if file.problem is None)


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
            if size >= SPLIT_SIZE and registry.formats()[file.format].seek is not None:
                edges.append(file.place.start_offset)
                size = 0
            size += file.size
    return sorted(set(edges))


def compare(pair: Pair, selection: Selection, limit: int | None = None, note: Note | None = None) -> Tally:
    """Compare the two sides of a pair; at most `limit` differences are listed, all are counted. `note` gets a sentence on damage that was
    passed over.

    DataError at damage, unless the selection says to stop or skip.
    """
    tally = Tally(limit)
    if pair.family is not None:
        own = registry.family(pair.family).compare
        assert own is not None
        if note is not None:
            _note_damage(pair.a, selection, note)
            _note_damage(pair.b, selection, note)
        for one in own(pair.a, pair.b, selection):
            if isinstance(one, int):
                tally.alike += one
            else:
                tally.add(one)
        return tally
    columns = tuple(name for name in selection.columns or COLUMNS if name != "offset")
    if pair.mixed:
        from rawlog.compare.mixed import compare_mixed, show_values

        names = ("topic", "partition", "offset", *columns)
        a, b = (_records(files, names, pair, selection, note) for files in (pair.a, pair.b))
        compare_mixed(a, b, columns, tally, RECORD, (pair.number, pair.passes))
        a, b = (_records(files, names, pair, selection) for files in (pair.a, pair.b))
        show_values(a, b, tally)
        return tally
    a, b = (_records(files, ("offset", *columns), pair, selection, note) for files in (pair.a, pair.b))
    compare_ordered(a, b, "offset", columns, tally, RECORD, pair.name)
    if tally.is_same and not (pair.a and pair.b) and pair.start is None:  # it exists, and is empty
        tally.add(Difference(Change.ONLY_A if pair.a else Change.ONLY_B, PARTITION, pair.name))
    return tally


def _note_damage(files: Sequence[File], selection: Selection, note: Note) -> None:
    """Read the logs among files for their damage alone: what a family compares in its own way passes over it."""
    able = registry.formats_with(RECORDS)
    if any(file.format in able for file in files):
        wanted = Selection(columns=("offset",), errors=selection.errors, max_decompressed=selection.max_decompressed)
        rows = Rows(Tree((), tuple(files)), RECORDS, wanted)
        rows.note = note
        for _ in rows.batches():
            pass


def _records(
    files: tuple[File, ...], columns: tuple[str, ...], pair: Pair, selection: Selection, note: Note | None = None
) -> Stream:
    """The records of one side of a pair."""
    if not files:
        return iter(())
    bounds = {"from_offset": pair.start, "to_offset": pair.stop}
    for name, pick in (("from_offset", max), ("to_offset", min)):
        given = [one for one in (bounds[name], getattr(selection, name)) if one is not None]
        bounds[name] = pick(given) if given else None
    wanted = selection.replace(columns=tuple(dict.fromkeys(columns)), **bounds)
    rows = Rows(Tree((), files), RECORDS, wanted)
    rows.note = note
    return rows.batches()


__all__ = ["COLUMNS", "Group", "Pair", "compare", "groups", "matched", "pairs", "same_units"]
