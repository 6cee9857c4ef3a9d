"""Parts: a table of a tree planned into shares that can be read anywhere, in threads here and tasks on Spark alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rawlog import registry
from rawlog.io.walk import walk
from rawlog.model.errors import OptionError
from rawlog.model.format import File, Format
from rawlog.model.store import Copies, Store
from rawlog.model.table import FILES, FINDINGS, RECORDS, Table
from rawlog.model.text import counted
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

if TYPE_CHECKING:
    from rawlog.model.outline import Reading

#: What a part of `findings` is about, where it is not one file.
TOGETHER, ALL_TOGETHER = "the files of one group", "all files"


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a file, cut at frames; or, for a table made from several files, all of those.

    `floor` is the first offset that counts as a row of `records`: what lies before was trimmed away. `following` is the offset that the
    next file begins at, if one follows and `Format.offsets` tells where frames belong; `is_followed` says that the system does not append
    to the file any more.
    """

    files: tuple[File, ...]
    start: int | None = None
    stop: int | None = None
    first: int = 0
    context: Any = None
    floor: int | None = None
    following: int | None = None
    is_followed: bool = False
    #: The part is all of a store, and these pieces of its files are read.
    reading: Reading | None = None

    def __reduce__(self) -> tuple[object, ...]:
        fields = (
            self.files,
            self.start,
            self.stop,
            self.first,
            self.context,
            self.floor,
            self.following,
            self.is_followed,
            self.reading,
        )
        return Part, fields

    @property
    def file(self) -> File:
        return self.files[0]

    def facts(self) -> Any:
        """What decoding needs of the group, of this part alone where the group's facts are looked up by parts."""
        cut = getattr(self.context, "for_part", None)
        return self.context if cut is None else cut(self.start, self.stop)

    @property
    def size(self) -> int:
        if self.start is None and self.stop is None:
            return sum(file.size for file in self.files)
        return (self.file.size if self.stop is None else self.stop) - (self.start or 0)


def plan(tree: Tree, table: Table, selection: Selection, *, split_size: int | None = None) -> list[Part]:
    """The parts that together hold a table's rows, in order. Reads names, sizes and indexes, not data, unless it must."""
    selection = selection.suited(table)
    if table.name in ("files", "findings"):
        files = [file for file in tree if selection.takes_file(file)]
        parts = [Part((file,)) for file in files]
        if table.name == "findings" and files:
            taken = set(files)
            groups = [tuple(file for file in group if file in taken) for group in tree.groups]
            parts += [Part(group, context=TOGETHER) for group in groups if group]
            parts.append(Part(tuple(files), context=ALL_TOGETHER))
        return parts
    family = registry.maker(table)
    if family is None:
        return _plan_files(tree, tree, table, selection, split_size)
    # A topic or partition is one that the rows tell of, where they do: not the one that holds them.
    by_row = {"topic", "partition"} & set(table.names)
    files = family.files_for(table.name, tree)
    folded = tuple(file for file in files if not reads_itself(file, table) and (by_row or selection.takes_file(file)))
    plain = [file for file in files if reads_itself(file, table)]
    units = family.store_class.units(table.name, folded).values() if folded else ()
    return [*(Part(tuple(unit)) for unit in units), *_plan_files(tree, plain, table, selection, split_size)]


def reads_itself(file: File, table: Table) -> bool:
    """Whether a file's own format reads it as the table; a fold is then only for the other files."""
    return file.format in registry.formats_with(table)


def _plan_files(
    tree: Tree, files: Iterable[File], table: Table, selection: Selection, split_size: int | None
) -> list[Part]:
    able = registry.formats_with(table)
    parts: list[Part] = []
    for file in files:
        if file.format in able and file.place.state is None and selection.takes_file(file):
            file.check_readable()
            parts += _cut(tree, file, registry.formats()[str(file.format)], table, selection, split_size)
    return parts


def _cut(
    tree: Tree, file: File, format: Format, table: Table, selection: Selection, split_size: int | None
) -> list[Part]:
    group = tree.group_of(file)
    if format.ordered and not selection.reaches(file, group):
        return []
    part = whole(file, group, table, selection)
    if file.place.remote is None:
        following = group.following(file) if format.can("offsets") else None
        part = replace(part, following=following, is_followed=file.place.sealed)
    if part.floor is not None and selection.to_offset is not None and part.floor >= selection.to_offset:
        return []
    if format.can("seek") and (selection.from_offset is not None or selection.since is not None):
        part = replace(part, start=format.codec.seek(file, group, selection.from_offset, selection.since))
    if format.can("pick") and not selection.takes_every_row:
        picked = format.codec.pick(file, group, table, selection)
        if picked is not None:
            return [replace(part, start=first, stop=stop) for first, stop in picked]
    return [part] if split_size is None else cut(part, group, split_size)


def is_log(file: File) -> bool:
    """Whether a file is one of those that a log of records consists of."""
    has_data = any(table is RECORDS for table in registry.formats()[str(file.format)].tables)
    return has_data and file.place.start_offset is not None


def context_options(table: Table, selection: Selection) -> dict[str, str]:
    """What a format is asked for, so that it can say what decoding needs to know of the group."""
    columns = ",".join(selection.needed(table).names)
    return {"isolation": selection.isolation, "columns": columns, **selection.options}


def whole(
    file: File,
    group: Sequence[File],
    table: Table,
    selection: Selection,
    options: Mapping[str, str] | None = None,
    formats: Mapping[str, Format] | None = None,
) -> Part:
    """All of a file as one part, with what the other files of its group say of it.

    `options` are those of `context_options` and `formats` those of the registry, if they are known.
    """
    format = (formats or registry.formats())[str(file.format)]
    context = None
    if format.can("context"):
        context = format.codec.context(file, group, options or context_options(table, selection))
    floor = format.codec.floor(file, group) if format.can("floor") and table.name == "records" else None
    return Part((file,), context=context, floor=floor)


def cut(part: Part, group: Sequence[File], size: int, *, reading: bool = True) -> list[Part]:
    """A part of one file in pieces of about `size` bytes, cut at frames; `group` is the file's. Where nothing tells where frames begin, the
    part is read for it, unless `reading` says not to.
    """
    if part.size <= size + size // 2:
        return [part]
    file, format = part.file, registry.formats()[str(part.file.format)]
    if format.whole:
        return [part]
    marks = [(position, 0) for position in format.codec.cuts(file, group, size)] if format.can("cuts") else []
    if not marks and reading:
        marks = _walked_cuts(part, format, size)
    end = file.size if part.stop is None else part.stop
    edges = [(part.start, part.first), *(mark for mark in marks if (part.start or 0) < mark[0] < end)]
    stops = [*(position for position, _ in edges[1:]), part.stop]
    return [
        replace(part, start=position, stop=stop, first=first)
        for (position, first), stop in zip(edges, stops, strict=True)
    ]


def _walked_cuts(part: Part, format: Format, size: int) -> list[tuple[int, int]]:
    """Positions and numbers of frames about `size` bytes apart, found by reading the part once."""
    marks: list[tuple[int, int]] = []
    previous = part.start or 0
    for frames in walk(
        part.file, format, start=part.start, stop=part.stop, first=part.first, errors="stop", window=8 << 20
    ):
        if not len(frames):
            continue
        positions = frames.positions
        while True:
            at = int(np.searchsorted(positions, previous + size))
            if at >= len(frames):
                break
            previous = int(positions[at])
            marks.append((previous, frames.first + at))
    return marks


# ----------------------------------------------------------------------------------------------------------------------
# Replicas: stores of a tree that are copies of one unit of data, which of them is the best, and which are read.
# A store's family knows what it is called and which stores of one name are the same unit of data. Only where a name is found more than
# once are small files opened; data is never read.


#: So many partitions or stores get a note each; one more note says how many others there are.
SHOWN = 5


class ReplicaNote(str):
    """A note on which replica is read."""

    __slots__ = ()


def copies(stores: Iterable[Store]) -> list[Copies]:
    """The units of data of which there are several replicas among some stores; each with its replicas, the best first."""
    all_stores = [(store, {file.system for file in store}) for store in stores]
    units: list[Copies] = []
    if len(all_stores) < 2:
        return units
    for family in registry.families_near(system for _, systems in all_stores for system in systems):
        named: dict[str, list[Store]] = {}
        for store in (store for store, systems in all_stores if any(map(family.looks_at, systems))):
            name = family.store_class.of(store).system_name()
            if name is not None:
                named.setdefault(name, []).append(store)
        several = [store for replicas in named.values() if len(replicas) > 1 for store in replicas]
        if several:
            units += family.store_class.copies(several)
    return units


def facts_of(store: Store) -> tuple[str, ...]:
    """What identifies a store besides its name; a fact that is not known is empty, and there may be none."""
    system = next((file.system for file in store if file.system is not None), None)
    return registry.family(system).store_class.of(store).facts() if system is not None else ()


def contradict(facts: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two sets of facts are not those of one unit of data."""
    return any(fact and other_fact and fact != other_fact for fact, other_fact in zip(facts, other, strict=False))


def choose_replicas(
    tree: Tree,
    selection: Selection,
    note: Callable[[str], None] | None = None,
    *,
    table: Table | None = None,
    prefer: Callable[[Store], bool] | None = None,
) -> Tree:
    """The tree with the replicas that a selection asks for; `note` gets the choice. OptionError if it refuses replicas.

    With `table`, only replicas that have its rows count; without it all do, but only those that the selection takes are noted. Tables
    about files have all of them. `prefer` says which replicas are used even if others are better.
    """
    if selection.replicas == "all" or (table is not None and table.name in (FILES.name, FINDINGS.name)):
        return tree
    stores = [store for store in tree.groups if table is None or _has_rows(store, table, selection)]
    replicated = [unit for unit in copies(stores) if table is None or not _is_united(unit, table)]
    if prefer is not None:
        replicated = [unit.preferring(prefer) for unit in replicated]
    to_note = [unit for unit in replicated if table is not None or any(map(selection.takes_file, unit.best))]
    if selection.replicas == "refuse" and to_note:
        first = to_note[0]
        more = f"; {counted(len(to_note) - 1, 'other')} too" if len(to_note) > 1 else ""
        raise OptionError(f"{first.identity.name} was found {len(first.stores)} times: {', '.join(first.paths)}{more}")
    if note is not None:
        for text in notes(to_note):
            note(text)
    left_out = {file.path for unit in replicated for store in unit.stores[1:] for file in store}
    if not left_out:
        return tree
    kept = tuple(file for file in tree if file.path not in left_out)
    return replace(tree, files=kept, unread=(*tree.unread, *(file for file in tree if file.path in left_out)))


def notes(units: Sequence[Copies]) -> list[str]:
    """The choices in words: one each of the first few, and how many others there are."""
    texts: list[str] = [_note(unit) for unit in units[:SHOWN]]
    if len(units) > SHOWN:
        rest = counted(len(units) - SHOWN, "other")
        texts.append(ReplicaNote(f"{rest} have replicas too, of which one is used; `rawlog ls` shows which"))
    return texts


def _note(unit: Copies) -> ReplicaNote:
    why = f" ({unit.evidence[0]})" if unit.evidence[0] else ""
    others = ", ".join(unit.paths[1:])
    return ReplicaNote(
        f"{unit.identity.name} has {len(unit.stores)} replicas: {unit.paths[0]} is used{why}, not {others}"
    )


def _is_united(unit: Copies, table: Table) -> bool:
    """Whether a table is made from all replicas together: its family chooses what they know of one state."""
    files = [file for store in unit.stores for file in store]
    family = registry.maker(table)
    if family is None or not family.store_class.can("units"):
        return False
    return len(family.store_class.units(table.name, family.files_for(table.name, files))) == 1


def _has_rows(store: Store, table: Table, selection: Selection) -> bool:
    """Whether a store has files that are read for a table."""
    family = registry.maker(table)
    if family is not None and family.files_for(table.name, store):
        return True
    able, chosen = registry.formats_with(table), selection.suited(table)
    return any(file.format in able and file.place.state is None and chosen.takes_file(file) for file in store)


def marks(units: Iterable[Copies]) -> dict[str, str]:
    """What `ls` says of the directories that are replicas, by directory."""
    texts: dict[str, str] = {}
    for unit in units:
        for number, (path, evidence) in enumerate(zip(unit.paths, unit.evidence, strict=True)):
            which = "the best" if number == 0 else f"the best is {unit.paths[0]}"
            texts[path] = f"1 of {len(unit.stores)} replicas, {which}" + (f"; {evidence}" if evidence else "")
    return texts
