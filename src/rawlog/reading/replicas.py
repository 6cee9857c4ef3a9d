"""Replicas: stores of a tree that are copies of one unit of data, which of them is the best, and which are read.

A store's family knows what it is called and which stores of one name are the same unit of data. Only where a name is found more than once
are small files opened; data is never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rawlog import registry
from rawlog.core.errors import OptionError
from rawlog.core.store import Copies, Store
from rawlog.core.tables import FILES, FINDINGS, Table
from rawlog.core.text import counted
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree

#: So many partitions or stores get a note each; one more note says how many others there are.
SHOWN = 5


class Choice(str):
    """A note on which replica is read."""

    __slots__ = ()


def copies(stores: Iterable[Store]) -> list[Copies]:
    """The units of data of which there are several replicas among some stores; each with its replicas, the best first."""
    every = list(stores)
    found: list[Copies] = []
    for family in registry.families():
        if family.store_name is None or family.copies is None:
            continue
        named: dict[str, list[Store]] = {}
        for store in every:
            name = family.store_name(store)
            if name is not None:
                named.setdefault(name, []).append(store)
        several = [store for some in named.values() if len(some) > 1 for store in some]
        if several:
            found += family.copies(several)
    return found


def facts_of(store: Store) -> tuple[str, ...]:
    """What identifies a store besides its name; a fact that is not known is empty, and there may be none."""
    system = next((file.system for file in store if file.system is not None), None)
    family = next((one for one in registry.families() if one.name == system), None)
    return family.facts(store) if family is not None and family.facts is not None else ()


def contradict(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two sets of facts are not those of one unit of data."""
    return any(mine and theirs and mine != theirs for mine, theirs in zip(one, other, strict=False))


def choose(
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
    found = [one for one in copies(stores) if table is None or not _is_united(one, table)]
    if prefer is not None:
        found = [one.preferring(prefer) for one in found]
    noted = [one for one in found if table is not None or any(map(selection.takes_file, one.best))]
    if selection.replicas == "refuse" and noted:
        first = noted[0]
        more = f"; {counted(len(noted) - 1, 'other')} too" if len(noted) > 1 else ""
        raise OptionError(f"{first.identity.name} was found {len(first.stores)} times: {', '.join(first.paths)}{more}")
    if note is not None:
        for text in notes(noted):
            note(text)
    left_out = {file.path for one in found for store in one.stores[1:] for file in store}
    if not left_out:
        return tree
    kept = tuple(file for file in tree if file.path not in left_out)
    return replace(tree, files=kept, unread=(*tree.unread, *(file for file in tree if file.path in left_out)))


def notes(found: Sequence[Copies]) -> list[str]:
    """The choices in words: one each of the first few, and how many others there are."""
    texts: list[str] = [_note(one) for one in found[:SHOWN]]
    if len(found) > SHOWN:
        rest = counted(len(found) - SHOWN, "other")
        texts.append(Choice(f"{rest} have replicas too, of which one is used; `rawlog ls` shows which"))
    return texts


def _note(one: Copies) -> Choice:
    why = f" ({one.evidence[0]})" if one.evidence[0] else ""
    others = ", ".join(one.paths[1:])
    return Choice(f"{one.identity.name} has {len(one.stores)} replicas: {one.paths[0]} is used{why}, not {others}")


def _is_united(one: Copies, table: Table) -> bool:
    """Whether a table is made from all replicas together: its family chooses what they know of one state."""
    files = [file for store in one.stores for file in store]
    for family in registry.families():
        if table.name in family.folds and family.units is not None:
            return len(family.units_for(table.name, family.files_for(table.name, files))) == 1
    return False


def _has_rows(store: Store, table: Table, selection: Selection) -> bool:
    """Whether a store has files that are read for a table."""
    for family in registry.families():
        if table.name in family.folds and family.files_for(table.name, store):
            return True
    able, chosen = registry.formats_with(table), selection.suited(table)
    return any(file.format in able and file.place.state is None and chosen.takes_file(file) for file in store)


def marks(found: Iterable[Copies]) -> dict[str, str]:
    """What `ls` says of the directories that are replicas, by directory."""
    texts: dict[str, str] = {}
    for one in found:
        for number, (path, evidence) in enumerate(zip(one.paths, one.evidence, strict=True)):
            which = "the best" if number == 0 else f"the best is {one.paths[0]}"
            texts[path] = f"1 of {len(one.stores)} replicas, {which}" + (f"; {evidence}" if evidence else "")
    return texts
