"""Whether the topics and partitions that a selection names exist, before anything is read for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rawlog import registry
from rawlog.model.errors import OptionError, RawlogError
from rawlog.model.table import Table
from rawlog.model.text import missing_topics
from rawlog.reading.parts import reads_itself
from rawlog.reading.rows import Rows
from rawlog.reading.select import Selection, partition_column
from rawlog.reading.tree import Tree

PartitionNames = set[tuple[str, int | None]]


def check_names(
    trees: Tree | Sequence[Tree],
    table: Table,
    selection: Selection,
    note: Callable[[str], None] | None = None,
    *,
    may_come: bool = False,
    more: Iterable[PartitionNames] = (),
) -> None:
    """OptionError with the nearest name for a topic or partition that is in none of the trees; `note` is given a pattern that matches
    nothing. With `may_come`, as in a log that is followed, such names are noted, too.

    Places and settings of files are asked first; where only rows tell their topic, these are read, but only for a name that is missing.
    So is `more`, what tables tell, a few names at a time.
    """
    say = note or (lambda text: None)
    trees = [trees] if isinstance(trees, Tree) else list(trees)
    if selection.id is not None:
        _check_ids(trees, table)
    chosen = selection.suited(table)
    if not (chosen.topics or chosen.topic_pattern or chosen.partitions):
        return
    names: PartitionNames = set()
    for tree in trees:
        names |= _by_place(tree)
    problems = list(_problems(chosen, names))
    if problems:
        for tree in trees:
            names |= _by_rows(tree, table, selection)
        problems = list(_problems(chosen, names))
    for more_names in more if problems else ():
        names |= more_names
        problems = list(_problems(chosen, names))
        if not problems:
            break
    for problem in problems:
        if isinstance(problem, OptionError) and not may_come:
            raise problem
        say(str(problem))


def _check_ids(trees: Sequence[Tree], table: Table) -> None:
    """OptionError if nothing that is read has ids."""
    lookups = {family.name: family.store_class.lookup() for family in registry.families()}
    have = {name: lookup for name, lookup in lookups.items() if lookup is not None}
    systems = {file.system for tree in trees for file in tree if file.system is not None}
    if "." in table.name:
        systems = {table.name.partition(".")[0]}
    if not systems & have.keys():
        ids = " and ".join(f"{lookup.named} of {name}" for name, lookup in have.items())
        present = ", ".join(sorted(systems)) or "nothing"
        raise OptionError(f"--id: {present} has no ids; only {ids} have ids")


def _by_place(tree: Tree) -> PartitionNames:
    """The topics and partitions that the places of files and the settings of stores tell."""
    names: PartitionNames = {(file.place.topic, file.place.partition) for file in tree if file.place.topic is not None}
    for family in registry.families_of(file.system for file in tree):
        files = [file for file in tree if file.system == family.name]
        if files:
            try:
                names |= {(name, None) for name in family.store_class.topics(files)}
            except RawlogError:
                continue  # what is damaged is reported where it is read
    return names


def _by_rows(tree: Tree, table: Table, selection: Selection) -> PartitionNames:
    """The topics and partitions of the rows, where no place tells them."""
    if table.name in ("files", "findings"):
        return set()
    able = registry.formats_with(table)
    folded = registry.maker(table) is not None
    undecided = [
        file
        for file in tree
        if (file.place.topic is None and file.format in able) or (folded and not reads_itself(file, table))
    ]
    names = [name for name in ("topic", partition_column(table)) if name in table.names]
    if not undecided or "topic" not in names or not tree.has(table):
        return set()
    columns = Selection(columns=tuple(map(str, names)), errors="skip", options=selection.options)
    found_names: PartitionNames = set()
    try:
        for batch in Rows(Tree(tree.roots, tree.files if folded else tuple(undecided)), table, columns).batches():
            rows = zip(*(batch.column(at).to_pylist() for at in range(len(names))), strict=True)
            found_names |= {(row[0], row[1] if len(row) > 1 else None) for row in set(rows) if row[0] is not None}
    except RawlogError:
        pass  # what is damaged is reported where it is read
    return found_names


def _problems(selection: Selection, names: PartitionNames) -> Iterator[OptionError | str]:
    topics = {topic for topic, _ in names}
    yield from missing_topics(selection.topics, topics)
    if selection.topic_pattern is not None and not any(map(selection.takes_topic, topics)):
        yield f"topic pattern {selection.topic_pattern}: no topic matches"
    present = {number for topic, number in names if selection.takes_topic(topic)}
    if None in present:
        return  # nothing tells which partitions these are
    if selection.partitions and not names:
        yield OptionError(f"unknown partition {_ranges(selection.partitions)}: there are no partitions here")
    for run in _runs(selection.partitions):
        missing = [number for number in run if number not in present]
        if present and len(missing) == len(run):
            present_text = _ranges(sorted(number for number in present if number is not None))
            yield OptionError(f"unknown partition {_ranges(run)}; known: {present_text}")
        elif present and missing:
            yield f"--partition {_ranges(run)}: there is no {_ranges(missing)}"


def _runs(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers in runs without a gap: `4-7` as a range, `0,9` one by one."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def _ranges(numbers: Iterable[int]) -> str:
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in _runs(numbers)]
    return ", ".join(texts[:5]) + (", …" if len(texts) > 5 else "")
