"""`groups` and `transactions`: what the files of every system know of consumer groups and transactions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from rawlog import registry
from rawlog.model.errors import AccessError, DataError, unknown
from rawlog.model.text import ROWS, counted, html_table, is_glob, matches
from rawlog.model.verb import Item, Option, verb
from rawlog.reading.options import Errors, Paths, TopicNames, texts
from rawlog.reading.select import ERRORS
from rawlog.reading.tree import Tree, open_known
from rawlog.verbs.options import instead

if TYPE_CHECKING:
    from rawlog.model.format import File
    from rawlog.model.groups import Group, Transactions

T = TypeVar("T")


@verb(
    group="ask",
    examples=("rawlog groups /var/kafka-logs", "rawlog groups /var/kafka-logs --group 'billing*' --json"),
    more="Exit codes: 0 shown; 1 damage was found; 2 wrong usage; 3 nothing to read.",
)
def groups(
    paths: Annotated[Paths, "PATH"],
    *,
    group: Annotated[str | Sequence[str], Option("Only these groups; may be given again.", metavar="GLOB")] = (),
    topic: TopicNames = (),
    errors: Errors = "raise",
) -> Shown:
    """Show consumer groups: members, committed offsets, lag.

    It shows protocol, state, members, committed offsets, end offsets, lag and last commit of the groups that are known at or below `paths`.
    Offsets of an open transaction do not count. Without the log of a partition its lag is unknown.

    Returns rows with `table` "groups", "members" and "offsets" (committed and end offsets, lag). AccessError if there is no group;
    OptionError for one that does not exist; DataError at damage unless `errors` says otherwise.

    >>> import rawlog
    >>> lags = {row["group"]: row["lag"] for row in rawlog.groups("samples/kafka") if row["table"] == "groups"}
    """
    check_errors(errors)
    left_out: list[str] = []
    tree = open_known(paths, note=left_out.append, without_unreadable=True)
    return Shown(_group_items(tree, texts(group), texts(topic), errors), left_out)


@verb(
    group="ask",
    examples=("rawlog transactions /var/kafka-logs", "rawlog transactions /var/kafka-logs --id 'billing*' --json"),
    more="Exit codes: 0 shown; 1 a transaction hangs, or damage was found; 2 wrong usage; 3 nothing to read.",
)
def transactions(
    paths: Annotated[Paths, "PATH"],
    *,
    id: Annotated[
        str | Sequence[str], Option("Only these transactional ids; may be given again.", metavar="GLOB")
    ] = (),
    topic: TopicNames = (),
    errors: Errors = "raise",
) -> Shown:
    """Show transactions: open, hanging, aborted, and what to do about them.

    It shows open transactions, the last state that their coordinator wrote, and aborted transactions, at or below `paths`. An open
    transaction hangs if its coordinator does not know it: then consumers of committed records wait for ever.

    Returns rows with `table` "open", "ids" (as the coordinator wrote them) and "aborted". One that hangs has `is_hanging`, and `advice`
    says what to do. AccessError if there are none; OptionError for an id or topic that does not exist; DataError at damage unless `errors`
    says otherwise.

    >>> import rawlog
    >>> hanging = [row for row in rawlog.transactions("samples/kafka") if row.get("is_hanging")]
    """
    check_errors(errors)
    left_out: list[str] = []
    tree = open_known(paths, note=left_out.append, without_unreadable=True)
    return Shown(_transaction_items(tree, texts(id), texts(topic), errors), left_out)


def check_errors(errors: str) -> None:
    """OptionError for an unknown policy."""
    if errors not in ERRORS:
        raise unknown("value of errors", str(errors), ERRORS)


# What a verb shows --------------------------------------------------------------------------------------------------------


class Shown:
    """What a verb shows, as rows: iterate over it for dicts. `notes` are sentences about what was left out.

    `items` gives the same as it is read, with text for people; the command line prints it.
    """

    def __init__(self, items: Iterable[Item], left_out: Iterable[str] = ()) -> None:
        """What is wrong before there is a first item is raised now."""
        self._rest = iter(items)
        self._first = [Item(note=note, is_finding=True) for note in left_out]
        self._first += itertools.islice(self._rest, 1)
        self._read: list[Item] | None = None

    def items(self) -> Iterator[Item]:
        """Everything that is shown, once, as soon as it is read."""
        return itertools.chain(self._first, self._rest) if self._read is None else iter(self._read)

    def _all_items(self) -> list[Item]:
        if self._read is None:
            self._read = list(self.items())
        return self._read

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All rows."""
        return [dict(item.row) for item in self._all_items() if item.row is not None]

    @property
    def notes(self) -> list[str]:
        """Sentences about what was left out."""
        return [item.note for item in self._all_items() if item.note is not None]

    @property
    def has_findings(self) -> bool:
        """Whether damage or a difference was found."""
        return any(item.is_finding for item in self._all_items())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"<rawlog.Shown {counted(len(self), 'row')}>"

    def _repr_html_(self) -> str:
        """The first rows as a table, for a notebook."""
        rows = [(row.get("table", ""), {name: row[name] for name in row if name != "table"}) for row in self.rows]
        return html_table(("table", "row"), rows[:ROWS], repr(self))


# The job ------------------------------------------------------------------------------------------------------------------


def _group_items(tree: Tree, names: Sequence[str], topics: Sequence[str], errors: str) -> Iterator[Item]:
    """The consumer groups of every system. OptionError for a name that does not exist; AccessError if there is no group at all."""
    from rawlog.model.groups import show_group

    all_groups: list[Group] = []
    unread: list[str] = []
    for family in registry.families():
        if family.groups is not None:
            part, damage = _read(family.groups, tree.files, errors)
            all_groups += part
            yield from damage
        if family.unread_groups is not None:
            unread += family.unread_groups(tree.files)
    if not all_groups:
        raise instead(
            AccessError("\n".join(unread) or f"{', '.join(tree.roots)}: no consumer groups were found"), tree, "groups"
        )
    yield from (Item(note=note, is_finding=True) for note in unread)
    committed = {position.topic for group in all_groups for position in group.positions}
    yield from _note_missing(names, {group.name for group in all_groups}, "group")
    yield from _note_missing(topics, committed | _topics(tree.files), "topic")
    is_shown = False
    for group in sorted(all_groups, key=lambda group: (group.system, group.name)):
        group.positions = [position for position in group.positions if matches(position.topic, topics)]
        if matches(group.name, names) and (group.positions or not topics):
            is_shown = True
            yield from show_group(group)
    if not is_shown:
        yield Item(note="no group matches, or none has offsets for these topics")


def _transaction_items(tree: Tree, ids: Sequence[str], topics: Sequence[str], errors: str) -> Iterator[Item]:
    """The transactions of every system. OptionError for a topic or id that does not exist; AccessError if there are none."""
    from rawlog.model.groups import show_transactions

    systems: list[Transactions] = []
    for family in registry.families():
        if family.transactions is not None:
            part, damage = _read(family.transactions, tree.files, errors)
            systems.append(part)
            yield from damage
    if not any(systems):
        raise instead(AccessError(f"{', '.join(tree.roots)}: no transactions were found"), tree, "transactions")
    yield from _note_missing(topics, _topics(tree.files), "topic")
    yield from _note_missing(ids, {entry.transactional_id for system in systems for entry in system.ids}, "id")
    for system in systems:
        system.open = [
            transaction
            for transaction in system.open
            if matches(transaction.topic, topics) and matches(transaction.transactional_id, ids)
        ]
        system.ids = [entry for entry in system.ids if matches(entry.transactional_id, ids)]
        system.aborted = [
            transaction for transaction in system.aborted if matches(transaction.topic, topics) and not ids
        ]
        if system:
            yield from show_transactions(system)


def _read(ask: Callable[[Sequence[File], str], T], files: Sequence[File], errors: str) -> tuple[T, list[Item]]:
    """What a family reads, and a finding if damage was passed over. DataError at damage unless `errors` says otherwise."""
    try:
        return ask(files, "raise"), []
    except DataError as error:
        if errors == "raise":
            raise
        what = "nothing is read from there on" if errors == "stop" else "skipped, as is other damage"
        return ask(files, errors), [Item(note=f"{str(error).splitlines()[0]}; {what}", is_finding=True)]


def _topics(files: Sequence[File]) -> set[str]:
    return {file.place.topic for file in files if file.place.topic is not None}


def _note_missing(names: Iterable[str], existing: set[str], what: str) -> Iterator[Item]:
    """A note on each pattern that matches nothing. OptionError for a name that does not exist."""
    for name in names:
        if name in existing or (is_glob(name) and any(matches(text, (name,)) for text in existing)):
            continue
        if not is_glob(name):
            raise unknown(what, name, sorted(existing))
        yield Item(note=f"--{what} {name}: no {what} matches")
