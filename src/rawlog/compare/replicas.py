"""Replicas of the same partitions or stores in two trees: which belong together, and the rules for families without their own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from rawlog import registry
from rawlog.compare.pairs import Group, Pair, compare, groups, matched, same_units
from rawlog.core.difference import Change, Difference, Tally
from rawlog.core.errors import unknown
from rawlog.core.findings import Mark, Rule, Severity, rule
from rawlog.core.format import File, Replicas
from rawlog.core.text import counted, offset_range
from rawlog.reading.certificate import RULES as CERTIFICATE_RULES
from rawlog.reading.inspection import FILE_RULES, Chosen, framing_rules
from rawlog.reading.select import Selection
from rawlog.reading.tree import Tree
from rawlog.schemas.reasons import RULES as VALUE_RULES

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
    own = registry.family(systems.pop()).replica_rules if len(systems) == 1 else None
    return (missing, record) if own is None else own()


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


def all_rules() -> Sequence[Rule[Any]]:
    """Every rule rawlog has, by code."""
    rules: list[Rule[Any]] = [*FILE_RULES, *RULES, *CERTIFICATE_RULES, *VALUE_RULES]
    for family in registry.families():
        for format in family.formats:
            if format.scan is not None:
                rules += framing_rules(format)
            rules += format.all_rules
        rules += [*family.all_group_rules, *family.all_rules]
        rules += family.replica_rules() if family.replica_rules is not None else ()
    return sorted(rules, key=lambda one: one.code)


def check_chosen(chosen: Chosen) -> Chosen:
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
