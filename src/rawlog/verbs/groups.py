"""The verbs that families declare or take part in, run on files at some paths. The families say what they do."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rawlog import registry
from rawlog.io.output import Output
from rawlog.model import groups, transactions
from rawlog.model.errors import (
    AccessError,
    DataError,
    OptionError,
    unknown,
)
from rawlog.model.text import is_glob, matches, parse_time
from rawlog.model.verb import (
    Kind,
    Parameter,
    Shown,
    Verb,
)
from rawlog.reading.tree import open_known

if TYPE_CHECKING:
    from rawlog.model.format import File
    from rawlog.model.groups import Group
    from rawlog.model.report import Report
    from rawlog.model.transactions import Transactions

T = TypeVar("T")

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def verbs() -> dict[str, Verb]:
    """The verbs that are plain data, by name: those in which every family may take part, and those that only one has."""
    return {"groups": GROUPS, "transactions": TRANSACTIONS, **registry.verbs()}


def run_verb(name: str, paths: Paths, given: Mapping[str, Any]) -> Report | Iterator[Shown]:
    """Run a family's verb with some of its parameters: a Report if it writes, else what it shows.

    OptionError for a parameter that it does not have, for an invalid value, and for a target that touches a source.
    """
    known = verbs()
    if name not in known:
        raise unknown("verb", name, known)
    verb = known[name]
    for one in given:
        if one not in {parameter.name for parameter in verb.parameters}:
            raise unknown(f"option of {name}", one, [parameter.name for parameter in verb.parameters])
    options = {parameter.name: _value(parameter, given.get(parameter.name)) for parameter in verb.parameters}
    left_out: list[str] = []
    tree = open_known(paths, note=left_out.append)
    target = next((parameter.name for parameter in verb.parameters if parameter.kind is Kind.TARGET), None)
    if target is None:
        notes = (Shown(note=text, is_finding=True) for text in left_out)
        return itertools.chain(notes, cast("Iterator[Shown]", verb.run(tree.files, tree.roots, options)))
    with Output(options[target]) as output:
        output.refuse(tree.sources)
        with output.directory() as folder:
            report = cast("Report", verb.run(tree.files, tree.roots, {**options, target: folder}))
    report.verb, report.source, report.target = name, ", ".join(tree.roots), output.named
    report.notes[:0] = left_out
    return report


def _value(parameter: Parameter, value: Any) -> Any:
    """The value of a parameter, checked, as the verb takes it."""
    if value is None:
        if parameter.is_required:
            raise OptionError(f"{parameter.name} is required")
        return parameter.empty
    if parameter.is_repeated:
        return (value,) if isinstance(value, str) else tuple(value)
    if parameter.kind is Kind.TIME:
        return parse_time(value)
    if parameter.kind is Kind.TARGET:
        return os.fspath(value)
    if parameter.kind is Kind.CHOICE and value not in parameter.choices:
        raise unknown(f"value of {parameter.name}", str(value), parameter.choices)
    if parameter.kind is Kind.NUMBER and (not isinstance(value, int) or value < 0):
        raise OptionError(f"{parameter.name} {value!r}: a whole number, 0 or more, expected")
    return value


# Groups and transactions --------------------------------------------------------------------------------------------------


def _show_groups(files: Sequence[File], roots: Sequence[str], options: Mapping[str, Any]) -> Iterator[Shown]:
    """The consumer groups of every system. OptionError for a name that does not exist; AccessError if there is no group at all."""
    found: list[Group] = []
    unread: list[str] = []
    for family in registry.families():
        if family.groups is not None:
            some, damage = _read(family.groups, files, options["errors"])
            found += some
            yield from damage
        if family.unread_groups is not None:
            unread += family.unread_groups(files)
    if not found:
        raise AccessError("\n".join(unread) or f"{', '.join(roots)}: no consumer groups were found")
    yield from (Shown(note=note, is_finding=True) for note in unread)
    topics = {position.topic for one in found for position in one.positions}
    yield from _missing(options["group"], {one.name for one in found}, "group")
    yield from _missing(options["topic"], topics | _topics(files), "topic")
    is_shown = False
    for group in sorted(found, key=lambda one: (one.system, one.name)):
        group.positions = [one for one in group.positions if matches(one.topic, options["topic"])]
        if matches(group.name, options["group"]) and (group.positions or not options["topic"]):
            is_shown = True
            yield from groups.show(group)
    if not is_shown:
        yield Shown(note="no group has offsets of what was asked for")


def _show_transactions(files: Sequence[File], roots: Sequence[str], options: Mapping[str, Any]) -> Iterator[Shown]:
    """The transactions of every system. OptionError for a topic or id that does not exist; AccessError if there are none."""
    found: list[Transactions] = []
    for ask in (family.transactions for family in registry.families()):
        if ask is not None:
            one, damage = _read(ask, files, options["errors"])
            found.append(one)
            yield from damage
    if not any(found):
        raise AccessError(f"{', '.join(roots)}: no transactions were found")
    yield from _missing(options["topic"], _topics(files), "topic")
    yield from _missing(options["id"], {one.transactional_id for every in found for one in every.ids}, "id")
    for every in found:
        every.open = [
            each
            for each in every.open
            if matches(each.topic, options["topic"]) and matches(each.transactional_id, options["id"])
        ]
        every.ids = [each for each in every.ids if matches(each.transactional_id, options["id"])]
        every.aborted = [each for each in every.aborted if matches(each.topic, options["topic"]) and not options["id"]]
        if every:
            yield from transactions.show(every)


def _read(ask: Callable[[Sequence[File], str], T], files: Sequence[File], errors: str) -> tuple[T, list[Shown]]:
    """What a family reads, and a finding if damage was passed over. DataError at damage unless `errors` says otherwise."""
    try:
        return ask(files, "raise"), []
    except DataError as error:
        if errors == "raise":
            raise
        what = "nothing is read from there on" if errors == "stop" else "skipped, as is other damage"
        return ask(files, errors), [Shown(note=f"{str(error).splitlines()[0]}; {what}", is_finding=True)]


def _topics(files: Sequence[File]) -> set[str]:
    return {file.place.topic for file in files if file.place.topic is not None}


def _missing(asked: Iterable[str], known: set[str], what: str) -> Iterator[Shown]:
    """A note on each pattern that matches nothing. OptionError for a name that does not exist."""
    for name in asked:
        if name in known or (is_glob(name) and any(matches(one, (name,)) for one in known)):
            continue
        if not is_glob(name):
            raise unknown(what, name, sorted(known))
        yield Shown(note=f"--{what} {name}: no {what} matches")


_TOPIC = Parameter(
    "topic", "Only these topics; may be given again.", is_repeated=True, metavar="GLOB", names=("-t", "--topic")
)
_ERRORS = Parameter(
    "errors",
    "At damage: end with exit code 1; stop reading the file; or continue after it.",
    Kind.CHOICE,
    "raise",
    ("raise", "stop", "skip"),
)

GROUPS = Verb(
    group="ask",
    summary="Consumer groups: members, committed offsets, lag.",
    help="""Show the consumer groups that are known at or below PATH: protocol, state, members,
committed offsets, end offsets, lag, last commit.

Offsets of an open transaction do not count. The lag of a partition whose log is not among the files is unknown.""",
    examples=("rawlog groups /var/kafka-logs", "rawlog groups /var/kafka-logs --group 'billing*' --json"),
    exit_codes="0 shown; 1 damage was found; 2 wrong usage; 3 nothing to read.",
    parameters=(
        Parameter("group", "Only these groups; may be given again.", is_repeated=True, metavar="GLOB"),
        _TOPIC,
        _ERRORS,
    ),
    run=_show_groups,
)

TRANSACTIONS = Verb(
    group="ask",
    summary="Transactions: open, hanging, aborted, and what to do about them.",
    help="""Show the transactions at or below PATH: those that no marker ends, what their coordinator last wrote about them, aborted ones.

An open transaction hangs if its coordinator does not know of it: consumers that read committed records wait for it for ever.""",
    examples=("rawlog transactions /var/kafka-logs", "rawlog transactions /var/kafka-logs --id 'billing*' --json"),
    exit_codes="0 shown; 1 a transaction hangs, or damage was found; 2 wrong usage; 3 nothing to read.",
    parameters=(
        Parameter("id", "Only these transactional ids; may be given again.", is_repeated=True, metavar="GLOB"),
        _TOPIC,
        _ERRORS,
    ),
    run=_show_transactions,
)
