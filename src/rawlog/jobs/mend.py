"""Mend: the verbs that write a new directory from a store or from partitions: `repair`, `rebuild`, `compact`.

Plan: which family works on which files, and its units. Work: one unit, below a stage beside the target. Commit: all of them under the
target's name, or none.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from rawlog import registry
from rawlog.core.errors import AccessError, OptionError, UnknownFormatError, unknown
from rawlog.core.findings import Finding, Severity
from rawlog.core.format import Unit, Work
from rawlog.core.report import Account, Several
from rawlog.io.output import Output, child, descendant
from rawlog.io.storage import is_remote, local_path
from rawlog.jobs.job import Done, Job, Outcome, Split, Stage
from rawlog.reading.inspection import Chosen, inspect_file, inspect_group, inspect_tree
from rawlog.reading.tree import Tree, open_tree

if TYPE_CHECKING:
    from rawlog.core.format import Family, File

#: The verb whose result is verified: what is still wrong in it is reported.
REPAIR = "repair"


@dataclass(frozen=True, slots=True)
class Task:
    """A unit of a family's work: where it goes below the target (empty: it is the target), and what it writes aside, if it does."""

    family: str
    unit: Unit
    place: str
    aside: str | None = None


@dataclass(frozen=True, slots=True)
class Made(Done):
    """A unit that was done, where it was written."""

    account: Account
    folder: str
    aside: str | None = None
    #: What verification finds in the unit's files, each file alone.
    remaining: tuple[Finding, ...] = ()
    #: The same for the files of the unit together: to be asked again where the unit's surroundings are in place.
    in_groups: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True)
class Mended(Outcome):
    """What came of the whole, the files that are of the kind but under no name that the system knows, and the directories that it would
    not load: on their way out, or of something it does not know.
    """

    account: Account
    left_out: tuple[str, ...] = ()
    not_loaded: tuple[str, ...] = ()
    #: The errors and warnings that `verify` of the result finds. Of a dry run: those of the source that the work leaves as they are.
    remaining: tuple[Finding, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost, and nothing is wrong with the result."""
        return self.account.is_whole and not self.left_out and not self.remaining


class Mend(Job[Made, Mended]):
    """Do a verb's work with the families that have it. Use as a context manager: leaving it removes what a failed run left.

    `at_once` is how many units the engine will do at once on one machine: they share what memory they are given. With `dry_run`
    nothing appears anywhere.
    """

    def __init__(
        self,
        verb: str,
        target: str,
        options: Mapping[str, str] | None = None,
        *,
        overwrite: bool = False,
        dry_run: bool = False,
        at_once: int = 1,
    ) -> None:
        """OptionError for a target that is not local."""
        if is_remote(target):
            raise OptionError(f"{target}: {verb} writes a local directory")
        self.verb, self.told, self.options = verb, target, dict(options or {})
        self.target = Path(local_path(target)).absolute()
        self.overwrite, self.dry_run, self.at_once = overwrite, dry_run, at_once
        self.output = Output(target, overwrite=overwrite)
        #: What is written aside has its own stage: it may be on another disk.
        self.aside: Output | None = None
        self._tasks: list[Task] = []
        self._left_out: tuple[str, ...] = ()
        self._not_loaded: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        # The tasks stay where they were planned: a split has its own.
        return {**self.__dict__, "_tasks": []}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for output in (self.output, self.aside):
            if output is not None:
                output.close()

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each unit. UnknownFormatError if there is nothing to work on, OptionError for what no family understands,
        AccessError if the target is in the way.
        """
        able = [family for family in registry.families() if self.verb in family.works]
        shares = shares_of(able, tree.files)
        self._left_out = tuple(file.path for file in tree.files if _is_stray(file, tree.files))
        if not shares:
            names = ", ".join(family.title for family in able)
            raise UnknownFormatError(
                f"{', '.join(tree.roots)}: nothing here to {self.verb}; these systems can be: {names}"
            )
        self._check_options([family for family, _ in shares])
        units = [(family, self._units(family, files, tree.roots)) for family, files in shares]
        alone = sum(len(own) for _, own in units) == 1 and not _has_surroundings(units, self.verb, tree.roots)
        self._not_loaded = _not_loaded(tree.files, [unit for _, own in units for unit in own])
        aside = {family.name: self._aside_of(family) for family, _ in units}
        self._tasks = [
            Task(family.name, unit, "" if alone else _safe(unit.name), _below(aside[family.name], unit, own))
            for family, own in units
            for unit in own
        ]
        place = next(filter(None, aside.values()), None)
        self.aside = None if place is None else Output(place)
        self._refuse(tree)
        if not self.dry_run:
            self._prepare()
        return [Split(number, task.unit.size, task) for number, task in enumerate(self._tasks)]

    def _check_options(self, families: Sequence[Family]) -> None:
        known = {name for family in families for name in family.works[self.verb].options}
        for name in self.options:
            if name not in known:
                raise unknown(
                    f"option of {' and '.join(family.name for family in families)} for {self.verb}", name, known
                )

    def _units(self, family: Family, files: Sequence[File], roots: Sequence[str]) -> Sequence[Unit]:
        """A family's units, each with the options that it understands; if it goes by the clock, all by the same time."""
        work = family.works[self.verb]
        own = {name: value for name, value in self.options.items() if name in work.options}
        if "now" in work.options:
            own.setdefault("now", str(int(time.time() * 1000)))
        if self.dry_run and "dry_run" in work.options:
            own["dry_run"] = "true"
        if "source" in work.options:
            own["source"] = roots[0]
        if work.cut is not None:
            return work.cut(files, own, self.at_once)
        groups = {file.place.group for file in files if file.place.partition is not None}
        name = str(groups.pop()).rpartition("/")[2] if len(groups) == 1 else family.name
        return [Unit(name, tuple(files), own)]

    def _aside_of(self, family: Family) -> Path | None:
        """The directory that a family's units are asked to write besides."""
        option = family.works[self.verb].aside
        path = None if option is None or self.dry_run else self.options.get(option)
        return None if path is None else Path(local_path(path)).absolute()

    def _refuse(self, tree: Tree) -> None:
        """OptionError if a source would be touched, or if what is written aside and the target would be in each other's way."""
        self.output.refuse(tree.sources)
        if self.aside is not None:
            self.aside.refuse((*tree.sources, self.told))

    def _prepare(self) -> None:
        """Refuse places that are taken, and make those that units write to."""
        for path in (self.target, *(Path(task.aside) for task in self._tasks if task.aside is not None)):
            replaced = path == self.target and self.overwrite
            if path.exists() and not replaced and (not path.is_dir() or any(path.iterdir())):
                raise AccessError(f"{path}: exists already and is not empty; choose another name")
        self.output.check()
        self.stage = self.output.open()
        if self.aside is not None:
            self.aside.open()

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> Made:
        """One unit, in a directory of this attempt's own."""
        task: Task = split.task
        around = Path(stage.path) / stage.name
        folder = around / self.target.name / task.place
        work = _work_of(task.family, self.verb)
        options = dict(task.unit.options)
        aside = None
        if task.aside is not None and self.aside is not None:
            aside = f"{self.aside.stage}/{stage.name}"
        if work.aside is not None and aside is not None:
            options[work.aside] = aside
        try:
            folder.parent.mkdir(parents=True)
            account = work.do(task.unit.files, str(folder), options)
        except OSError as error:  # told with the name that was asked for
            text = str(error) if isinstance(error, AccessError) else f"{self.target}: {error.strerror or error}"
            text = text.replace(str(around), str(self.target.parent))
            raise AccessError(text if aside is None else text.replace(aside, str(task.aside))) from None
        if isinstance(getattr(account, "target", None), str):
            account.target = f"{self.told}/{task.place}" if task.place else self.told  # type: ignore[attr-defined]
        alone, together = self._look(task, folder)
        stage.advance(split.size)
        return Made(split.number, account, str(folder), aside, alone, together)

    def _look(self, task: Task, folder: Path) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
        """What verification finds in what a unit's work wrote, or, if it only pretends to, leaves in its source: in each file alone, and
        in groups of files.
        """
        written = folder.exists()  # also in a dry run, by a family that can do no other; it is thrown away
        chosen = Chosen() if self.verb == REPAIR and written else self._unrepaired(task.family)
        if chosen is None:
            return (), ()
        tree = open_tree(str(folder)) if written else Tree((), task.unit.files)
        alone = [finding for file in tree for finding in inspect_file(file, chosen)]
        together = [finding for group in tree.groups for finding in inspect_group(group, chosen)]
        final = str(Path(self.told) / task.place)
        return _serious(alone, str(folder), final), _serious(together, str(folder), final)

    def _unrepaired(self, family: str) -> Chosen | None:
        """The rules for what a family's work leaves as it is; None if there are none."""
        codes = _work_of(family, self.verb).unrepaired
        return Chosen(only=codes) if codes else None

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, done: Sequence[Made]) -> Mended:
        """Put the units together and give the whole its name."""
        pairs = [(self._tasks[one.number], one) for one in done]
        if self.dry_run:
            return Mended(self._pretended(pairs), self._left_out, self._not_loaded, self._left(pairs))
        try:
            whole, around = self._together(pairs)
            account = self._account(pairs, around)
            remaining = self._remaining(pairs, whole)
            self._put_aside(pairs)
            self.output.put(whole)
        except OSError as error:
            if isinstance(error, AccessError):
                raise
            raise AccessError(f"{self.told}: {error.strerror or error}") from None
        return Mended(account, self._left_out, self._not_loaded, remaining)

    def _remaining(self, pairs: Sequence[tuple[Task, Made]], whole: Path) -> tuple[Finding, ...]:
        """What is wrong with the result: in the files of each unit, which its work looked at; in those around them; and in all together.

        A unit's files are compared with one another again only where that found something: files around the unit may explain it.
        """
        if self.verb != REPAIR:
            return ()
        tree = open_tree(str(whole))
        found = [finding for _, one in pairs for finding in one.remaining]
        units = {whole / task.place for task, _ in pairs}
        again = {whole / task.place for task, one in pairs if one.in_groups}
        later: list[Finding] = []
        for file in tree:
            if _unit_of(file.path, units) is None:
                later += inspect_file(file)
        for group in tree.groups:
            unit = _unit_of(str(group[0].place.group), units)
            if unit is None or unit in again:
                later += inspect_group(group)
        later += inspect_tree(tree)
        return (*found, *_serious(later, str(whole), self.told.rstrip("/")))

    def _left(self, pairs: Sequence[tuple[Task, Made]]) -> tuple[Finding, ...]:
        """What is wrong with the source and would not be changed."""
        found = [finding for _, one in pairs for finding in (*one.remaining, *one.in_groups)]
        for name in dict.fromkeys(task.family for task, _ in pairs):
            chosen = self._unrepaired(name)
            if chosen is not None:
                files = tuple(file for task, _ in pairs if task.family == name for file in task.unit.files)
                found += _serious(inspect_tree(Tree((), files), chosen))
        return tuple(found)

    def _put_aside(self, pairs: Sequence[tuple[Task, Made]]) -> None:
        """What units wrote aside, each under its own name if there are several."""
        found = [
            (Path(task.aside), one.aside) for task, one in pairs if task.aside is not None and one.aside is not None
        ]
        if not found or self.aside is None:
            return
        if [str(path) for path, _ in found] == [self.aside.path]:
            self.aside.put(found[0][1])
            return
        folder = self.aside.new()
        for path, made in found:
            os.rename(made, child(folder, path.name))
        self.aside.add(folder)

    def _pretended(self, pairs: Sequence[tuple[Task, Made]]) -> Account:
        """What would come of the units; what they would stand in is made, and thrown away."""
        if len(pairs) == 1 and not pairs[0][0].place:
            return self._account(pairs, None)
        with tempfile.TemporaryDirectory() as around:
            return self._account(pairs, Path(around))

    def _together(self, pairs: Sequence[tuple[Task, Made]]) -> tuple[Path, Path | None]:
        """The directory that becomes the target; and again, if units stand in it."""
        if len(pairs) == 1 and not pairs[0][0].place:
            return Path(pairs[0][1].folder), None
        assert self.stage is not None
        whole = Path(self.stage) / "whole"
        whole.mkdir(exist_ok=True)
        for task, one in pairs:
            (whole / task.place).parent.mkdir(parents=True, exist_ok=True)
            if os.path.exists(one.folder):  # it was moved if this is not the first try
                os.rename(one.folder, whole / task.place)
        return whole, whole

    def _account(self, pairs: Sequence[tuple[Task, Made]], around: Path | None) -> Account:
        """What came of each family's units, and of all families."""
        found: dict[str, Account] = {}
        for name in dict.fromkeys(task.family for task, _ in pairs):
            units = [task.unit for task, _ in pairs if task.family == name]
            accounts = [one.account for task, one in pairs if task.family == name]
            join = _work_of(name, self.verb).join
            if join is not None:
                found[name] = join(units, accounts, around)
            elif len(units) == 1:
                found[name] = accounts[0]
            else:
                found[name] = Several(parts=dict(zip((unit.name for unit in units), accounts, strict=True)))
        return next(iter(found.values())) if len(found) == 1 else Several(parts=found)


def shares_of(able: Sequence[Family], files: Sequence[File]) -> list[tuple[Family, list[File]]]:
    """Which family works on which files. One that looks into directories of another has those for itself: a metadata log is an ordinary
    log, but must not be mended as one. OptionError for files of several systems.
    """
    claimed: dict[str | None, str] = {}
    for family in able:
        for file in family.files_for(None, files):
            if file.system != family.name or (family.beside is not None and file.place.topic is not None):
                claimed[file.place.group] = family.name
    shares = []
    for family in able:
        claims = family.name in claimed.values()
        own = [
            file
            for file in files
            if claimed.get(file.place.group) == family.name
            or (file.system == family.name and not claims and file.place.group not in claimed)
        ]
        if own := [file for file in own if not _is_stray(file, files)]:
            shares.append((family, own, claims))
    if len(shares) > 1:  # what only stands beside the data of others is no work of its own
        shares = [one for one in shares if one[0].takes is None or any(file.place.topic for file in one[1])]
    if sum(not claims for _, _, claims in shares) > 1:
        names = " and ".join(family.name for family, _, _ in shares)
        raise OptionError(f"files of {names} are here; name the directory of one of them")
    return [(family, own) for family, own, _ in shares]


def _is_stray(file: File, files: Sequence[File]) -> bool:
    """Whether a file that is known by its first bytes alone lies among the files of a store or partition: there its name is wrong."""
    return (
        file.format is not None
        and file.place.group is None
        and any(other.place.group and file.path.startswith(f"{other.place.group}/") for other in files)
    )


def _has_surroundings(units: Sequence[tuple[Family, Sequence[Unit]]], verb: str, roots: Sequence[str]) -> bool:
    """Whether the one unit stands in a directory that was named and has something to say of itself: then it keeps its place in it."""
    [(family, unit)] = [(family, unit) for family, own in units for unit in own]
    groups = {file.place.group for file in unit.files if file.place.topic is not None}
    return family.works[verb].join is not None and any(
        group is not None and group.startswith(f"{root.rstrip('/')}/") for group in groups for root in roots
    )


def _serious(findings: Iterable[Finding], written: str = "", final: str = "") -> tuple[Finding, ...]:
    """The errors and warnings among findings, with the final name of what was written under another."""
    found = []
    for one in findings:
        if one.severity is not Severity.INFO:
            if written:
                path = None if one.path is None else one.path.replace(written, final)
                one = replace(one, path=path, message=one.message.replace(written, final))
            found.append(one)
    return tuple(found)


def _unit_of(path: str, units: Collection[Path]) -> Path | None:
    """The unit that a path is, or lies in."""
    return next((one for one in (Path(path), *Path(path).parents) if one in units), None)


def _not_loaded(files: Sequence[File], units: Sequence[Unit]) -> tuple[str, ...]:
    """The directories of data that no unit has, because the system would not load them."""
    worked = {file.place.group for unit in units for file in unit.files}
    found = {file.place.group for file in files if file.place.state is not None and file.place.topic is not None}
    return tuple(sorted(group for group in found - worked if group is not None))


def _work_of(family: str, verb: str) -> Work:
    return next(one for one in registry.families() if one.name == family).works[verb]


def _below(aside: Path | None, unit: Unit, units: Sequence[Unit]) -> str | None:
    """Where a unit writes aside: there, or below it beside other units."""
    return None if aside is None else str(aside if len(units) == 1 else child(aside, unit.name))


def _safe(name: str) -> str:
    """The name of a unit, which may be a path below the target. EncodeError for one that leads out of it."""
    descendant(Path(), name)
    return name
