"""`rescue`: the replicas on the disks of a dead cluster, combined into one directory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path as LocalPath
from typing import TYPE_CHECKING, Annotated, Any, Self, Unpack

from rawlog import registry
from rawlog.io.output import Folder, Output, writing
from rawlog.io.storage import Places, is_remote, local_path, read_regular
from rawlog.model.errors import (
    AccessError,
    ExistsError,
    OptionError,
    UnknownFormatError,
    unknown,
)
from rawlog.model.format import Family, File, UnknownFile
from rawlog.model.job import (
    Job,
    Split,
    SplitResult,
    Stage,
    unreadable,
)
from rawlog.model.recovery import (
    INCLUDED,
    RescuedUnit,
    RescueOptions,
    RescueSplit,
    SurveyResult,
    SurveySplit,
)
from rawlog.model.report import Action, Entry, Report
from rawlog.model.store import Store
from rawlog.model.verb import Option, verb
from rawlog.reading.options import OUTPUT, Path, Paths, Topics, listed, texts
from rawlog.reading.tree import Tree
from rawlog.verbs.options import (
    Force,
    NewCluster,
    Page,
    Rescuing,
    SystemOptions,
    check_page,
    instead,
    open_sources,
    option_texts,
    running_of,
    whole_paths,
)
from rawlog.verbs.repair import UnknownFiles, fate_of, named_paths, write_report

if TYPE_CHECKING:
    from rawlog.model.recovery import Rescuer


@verb(
    group="check and repair",
    examples=(
        "rawlog rescue /mnt/disk1 /mnt/disk2 /mnt/disk3 --plan",
        "rawlog rescue /mnt/disk* --to /restored",
        "rawlog rescue /mnt/disk* --to /restored --nodes 3 --resume",
    ),
    more="Exit codes: 0 nothing is lost; 1 something is lost, corrected, undecided or left out; 2 wrong usage; 3 cannot be read or "
    "written.",
    doing="rescuing",
)
def rescue(
    paths: Annotated[Paths, "DIR"],
    *,
    to: Annotated[
        Path | None,
        Option("The directory to write; it must not exist yet.", "-o", "--to", metavar="DST", section=OUTPUT),
    ] = None,
    plan: Annotated[bool, "Only report what comes from which disk, and what is lost."] = False,
    topic: Topics = None,
    include: Annotated[
        str | Iterable[str],
        Option(
            f"Also use directories that a broker does not load: {', '.join(INCLUDED)} (deleted topics).",
            metavar="STATE,...",
            is_repeated=False,
        ),
    ] = (),
    exclude_deleted: Annotated[bool, "Leave out topics that are marked as deleted on other disks."] = False,
    brokers: Annotated[
        int, Option("Write N data directories.", "--nodes", old=("--brokers",), least=1, metavar="N", section=OUTPUT)
    ] = 1,
    resume: Annotated[bool, "Continue an interrupted run; finished partitions are kept."] = False,
    html: Page = None,
    option: SystemOptions = None,
    force: Force = False,
    **options: Unpack[Rescuing],
) -> Report:
    """Combine the replicas on several disks of a dead cluster into one directory.

    A broker starts on the directory `to`. Each `paths` is a log directory of a broker, or a directory above several; some may be missing or
    damaged. For each partition the last leader's replica decides; damaged parts come from another replica of the same history. A log that
    contradicts the leader is kept in DST.divergent, where `rawlog cat` reads it. Topic ids, offsets, settings and committed offsets of
    groups stay. The report lists every loss with offsets and times, and what nobody can know. The disks are never changed. For one damaged
    broker use `rawlog repair`; for a moment in the past `rawlog restore`.

    Returns a Report. Its `facts["plan"]` lists for each partition the replicas, the choice and its reason, what is lost and what cannot be
    known. OptionError for disks of several clusters or of a running broker; AccessError if `to` exists and not `force`.

    >>> import rawlog
    >>> report = rawlog.rescue("samples/kafka", plan=True)
    """
    from rawlog.model.recovery import RescueOptions

    running = running_of(options, NewCluster.__annotations__)
    if to is None and not plan:
        raise OptionError("name the directory to write with --to, or ask for --plan")
    states = frozenset(part.strip() for text in texts(include) for part in text.split(",") if part.strip())
    if extra := states - set(INCLUDED):
        raise unknown("state", min(extra), INCLUDED)
    request = RescueOptions(
        topics=texts(topic or ()),
        include=states,
        exclude_deleted=exclude_deleted,
        brokers=brokers,
        node=options.get("node_id", 1),
        cluster_id=options.get("cluster_id"),
        level=options.get("metadata_version"),
        keep_retention=options.get("keep_retention", False),
        overwrite=force,
        is_plan=plan,
        options=option_texts(option),
    )
    left_out: list[str] = []
    places = Places(left_out)
    disks = [path for path in whole_paths(listed(paths)) if places.is_new(path)]
    engine, [tree] = open_sources([disks], running, note=left_out.append)
    check_page(html, tree.sources)
    with Rescue(None if to is None else os.fspath(to), request, resume=resume) as job:
        report = engine.run(job, tree, running.get("progress"))
    report.notes[:0] = left_out
    if html is not None:
        write_report(html, report, tree.sources)
    return report


# The job --------------------------------------------------------------------------------------------------------------------


FINISHED, UNIT, ASIDE, REPORT = "finished", "unit", "aside", "report.json"
PLACING = "placing"
"""A file in the stage while the units are moved into the result: those of a run that is killed then are not whole any more."""
DIVERGENT = ".divergent"
"""What the name of the directory ends with that has what was set aside; it begins with that of the target."""


@dataclass(frozen=True, slots=True)
class RescueResult(SplitResult):
    """A copy that was surveyed, or a unit that was written."""

    surveyed: SurveyResult | None = None
    unit: RescuedUnit | None = None


class Rescue(Job[RescueResult, Report]):
    """Rescue to a directory. Use as a context manager: what is staged is removed at the end, or left to be resumed after an error."""

    def __init__(self, target: str | None, options: RescueOptions, *, resume: bool = False) -> None:
        """A plan needs no target. OptionError for options that are invalid."""
        self.is_named = target is not None
        if target is None:
            options, target = replace(options, is_plan=True), os.curdir
        if is_remote(target):
            raise OptionError(f"{target}: the result must be a local directory")
        self.options, self.resume = options, resume
        self.target = LocalPath(local_path(target)).absolute()
        self.output = Output(self.target, overwrite=options.overwrite)
        # A run that is killed between the two leaves this one: it is replaced by the run that goes on.
        self.aside = Output(f"{self.target}{DIVERGENT}", overwrite=options.overwrite or resume)
        self._rescuer: Rescuer | None = None
        self._resumed: list[RescuedUnit] | None = None
        self._unknown: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.aside.close()
        if kind is not None and any(LocalPath(self.output.stage or os.devnull).glob(f"{FINISHED}/*")):
            self.output.leave()
        else:
            self.output.close()

    @property
    def rescuer(self) -> Rescuer:
        assert self._rescuer is not None
        return self._rescuer

    # Plan -------------------------------------------------------------------------------------------------------------

    def plan(self, tree: Tree) -> list[Split]:
        """A split for each share of each copy."""
        family = _family(tree)
        rescuer = self._rescuer = family.store_class.rescuer(self.options, self.target)
        rescuer.report.verb, rescuer.report.source = "rescue", ", ".join(tree.roots)
        rescuer.report.is_dry_run = self.options.is_plan
        rescuer.report.target = str(self.target) if self.is_named else ""
        rescuer.report.entries += unreadable(tree)
        files = _files(family, tree)
        family_paths = {file.path for file in files}
        stores = [
            Store(kept) for group in tree.groups if (kept := [file for file in group if file.path in family_paths])
        ]
        surveys = rescuer.plan(tree.roots, files, stores)
        paths = [store.path for store in stores]
        around = [path.rpartition("/")[0] for path in paths] if family.store_class.has_surroundings else []
        self._unknown = [
            file.path
            for file, path, in_store in UnknownFiles(tree.files, paths, around)
            if fate_of(family, path, in_store=in_store) is not UnknownFile.REMAKE
        ]
        if not self.options.is_plan:
            for output in (self.output, self.aside):
                output.refuse(tree.sources)
                output.check_directory()
            self.stage = self.output.reopen(resume=self.resume)
            if (LocalPath(self.stage) / PLACING).exists():
                for name in (FINISHED, PLACING):
                    Folder(self.stage).remove(name)
        return [Split(number, survey.size, survey) for number, survey in enumerate(surveys)]

    def follow(self, results: Sequence[RescueResult]) -> list[Split]:
        """After the survey, a split for each unit that is not written yet."""
        if self._resumed is not None:
            return []
        units = self.rescuer.decide([result.surveyed for result in results if result.surveyed is not None])
        self._resumed, left = [], []
        if self.options.is_plan:
            return []
        for name in self.rescuer.adjacent_files():
            if os.path.lexists(f"{self.target}{name}") and not (self.options.overwrite or self.resume):
                raise ExistsError(f"{self.target}{name}: exists already")
        for split in units:
            ready = _read_finished(LocalPath(self.stage or "") / FINISHED / split.key, split) if self.resume else None
            if ready is None:
                left.append(split)
            else:
                self._resumed.append(ready)
        return [Split(number, unit.size, unit) for number, unit in enumerate(left, len(results))]

    # Work -------------------------------------------------------------------------------------------------------------

    def work(self, split: Split, stage: Stage) -> RescueResult:
        """Survey one copy, or write one unit."""
        content: SurveySplit | RescueSplit = split.content
        if isinstance(content, SurveySplit):
            return RescueResult(
                split.number, surveyed=SurveyResult(content, self.rescuer.survey(content, stage.advance))
            )
        try:
            attempt = Folder(stage.path, named=str(self.target)).folder(stage.name)
            unit = attempt.folder(UNIT)
            aside = Folder(attempt.path / ASIDE, named=str(self.aside.path))
            report = self.rescuer.carry(content, unit, aside, stage.advance)
            attempt.write(REPORT, json.dumps(_as_json(report)))
            place = Folder(stage.path, named=str(self.target)).folder(FINISHED)
            try:
                place.take(attempt.path, content.key)
            except AccessError:
                if not (place.path / content.key).is_dir():  # else another attempt at the same split was first
                    raise
        except OSError as error:
            raise self.output.unwritable(error) from None
        return RescueResult(split.number, unit=_unit(place.path / content.key, content, report))

    # Commit -----------------------------------------------------------------------------------------------------------

    def commit(self, results: Sequence[RescueResult]) -> Report:
        """Put the units and what belongs next to them into one directory, and give it the target's name."""
        self.follow(results)
        rescuer = self.rescuer
        if self.options.is_plan:
            self._name_unknown(rescuer.report)
            return rescuer.report
        units = sorted(
            [*(result.unit for result in results if result.unit is not None), *(self._resumed or ())],
            key=lambda unit: unit.split.name,
        )
        if self._resumed:
            rescuer.report.counts["units_resumed"] = len(self._resumed)
        try:
            folder = Folder(self.output.new(), named=str(self.target))
            Folder(self.stage or "").write(PLACING, "")
            rescuer.finish(units, folder)
            self._put_aside(units)
            self.output.put(folder.path)
        except OSError as error:
            raise self.output.unwritable(error) from None
        for name, text in rescuer.adjacent_files().items():
            with writing(f"{self.target}{name}", overwrite=self.options.overwrite or self.resume) as file:
                file.write((text or "").encode())
        self._name_unknown(rescuer.report)
        return rescuer.report

    def _name_unknown(self, report: Report) -> None:
        """Report unknown files as left out, unless the family reported them: replicas of one file may differ, so none is copied."""
        named = named_paths(report)
        report.left_out += [path for path in self._unknown if path not in named]

    def _put_aside(self, units: Sequence[RescuedUnit]) -> None:
        """Put what was set aside into a directory of its own, next to the target."""
        parts = [path for unit in units for path in sorted(LocalPath(unit.aside).glob("*/*"))]
        if not parts:
            return
        folder = Folder(self.aside.new(), named=str(self.aside.path))
        for path in parts:
            folder.take(path, f"{path.parent.name}/{path.name}")
        self.aside.put(folder.path)
        self.rescuer.report.facts["divergent"] = str(self.aside.path)


def _files(family: Family, tree: Tree) -> list[File]:
    kind = family.store_class
    return [file for file in tree.files if (kind.rescues(file) if kind.can("rescues") else file.system == family.name)]


def _family(tree: Tree) -> Family:
    """The one system whose files are here. OptionError for several, UnknownFormatError for none that can be rescued."""
    able = [family for family in registry.families() if family.store_class.can("rescuer")]
    families = [family for family in able if _files(family, tree)]
    if len(families) > 1:
        raise OptionError(
            f"files of {' and '.join(map(_system, families))} are here; name the directories of one system"
        )
    if not families:
        names = ", ".join(map(_system, able))
        what = f"{', '.join(tree.roots)}: nothing here can be rescued; these systems can be: {names}"
        raise instead(UnknownFormatError(what), tree)
    return families[0]


def _system(family: Family) -> str:
    """The name of the system that a family is of."""
    return next(other.title for other in registry.families() if other.name == (family.host or family.name))


# What a run leaves for the next one -------------------------------------------------------------------------------------


def _unit(path: LocalPath, split: RescueSplit, report: Report) -> RescuedUnit:
    return RescuedUnit(split, str(path / UNIT), str(path / ASIDE), report)


def _read_finished(path: LocalPath, split: RescueSplit) -> RescuedUnit | None:
    """Read a unit that an interrupted run finished; None if it is absent or incomplete."""
    try:
        report = _from_json(json.loads(read_regular(path / REPORT)))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return _unit(path, split, report) if (path / UNIT / split.name).is_dir() else None


def _as_json(report: Report) -> dict[str, object]:
    entries = [asdict(entry) for entry in report.entries]
    return {"entries": entries, "counts": report.counts, "facts": report.facts, "notes": report.notes}


def _from_json(fields: dict[str, Any]) -> Report:
    entries = [Entry(**{**entry, "action": Action(entry["action"])}) for entry in fields["entries"]]
    return Report(entries=entries, counts=fields["counts"], facts=fields["facts"], notes=fields["notes"])
