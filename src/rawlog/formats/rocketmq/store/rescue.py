"""The policy of `rescue`: one store from the stores of a master and its slaves, or of the members of a DLedger group.

Which stores are copies of one another is decided by their content: messages that are the same at the same address. Each group of copies
becomes one store: the union of the commit logs (`union.py`), with everything else as `repair` rebuilds it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rawlog.core.errors import DataError, OptionError, UnknownFormatError
from rawlog.core.format import File
from rawlog.core.report import Action, Report
from rawlog.core.rescue import RescueAsked, RescuedUnit, RescueSplit, Surveyed, SurveySplit, UnitPlan, plan_facts
from rawlog.core.store import Store
from rawlog.core.text import counted
from rawlog.formats.rocketmq import COMMIT_LOG, config
from rawlog.formats.rocketmq.store.configs import OFFSETS
from rawlog.formats.rocketmq.store.placeholders import LAYOUTS
from rawlog.formats.rocketmq.store.repair import write_around
from rawlog.formats.rocketmq.store.rescue_copies import (
    Found,
    StoreCopy,
    copies_below,
    group_copies,
    is_log,
    part_histories,
    take_survey,
    unit_name,
)
from rawlog.formats.rocketmq.store.rescue_plan import unit_plan
from rawlog.formats.rocketmq.store.rewrite import DERIVED, copy, new_report
from rawlog.formats.rocketmq.store.settings import OPTIONS as SIZE_OPTIONS
from rawlog.formats.rocketmq.store.settings import Sizes, sizes_of
from rawlog.formats.rocketmq.store.survey import LEAST_SAMPLES, SAMPLES, LogSurvey, slots_between, survey_log
from rawlog.formats.rocketmq.store.union import LogCopy, Union
from rawlog.io.output import Folder
from rawlog.io.storage import Places, Source, refuse_locked

OPTIONS = (*SIZE_OPTIONS.values(), "delay_levels")
MOST_QUEUE_BYTES = 256 << 20
"""Queue files of all copies are compared with the log if they are no larger together; else only those of the first copy."""
NOT_CARRIED = ("rocketmq.epochs", "rocketmq.identity")
"""They bind a store to a controller that no longer exists."""


@dataclass(frozen=True, slots=True)
class LogTask:
    """A commit-log file to survey, of the store with this number."""

    store: int
    file: File
    queues: tuple[File, ...]
    file_size: int
    samples: int


@dataclass(frozen=True, slots=True)
class QueueTask:
    """What the queues of a store know of parts of the log that it has no files for."""

    store: int
    queues: tuple[File, ...]
    missing: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class CopyContent:
    """A copy as it is written from: its files, each at its place, and where its history parts from the one that is kept."""

    root: str
    files: tuple[File, ...]
    until: int | None


@dataclass(frozen=True, slots=True)
class UnitContent:
    """What a store is written from: copies in order of preference."""

    copies: tuple[CopyContent, ...]
    #: The sizes of files that are known, by name.
    sizes: tuple[tuple[str, int], ...]
    file_size: int
    is_dledger: bool
    options: tuple[tuple[str, str], ...]


class Rescue:
    """RocketMQ's half of `rescue`."""

    def __init__(self, asked: RescueAsked, target: Path) -> None:
        asked.check_plain("rocketmq", OPTIONS)
        Sizes().with_options(asked.options)
        self.asked = asked
        self.report = Report(verb="rescue", target=str(target), is_dry_run=asked.is_plan)
        self._stores: list[StoreCopy] = []
        self._plans: list[UnitPlan] = []

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stores": [], "_plans": []}

    # Which stores there are

    def plan(self, roots: Sequence[str], files: Sequence[File], stores: Sequence[Store]) -> list[SurveySplit]:
        """A split for each commit-log file of each store."""
        found = [one for root, group in _below(roots, files) for one in copies_below(root, group, self.asked.options)]
        self._stores = self._distinct(found)
        empty = [root for root in dict.fromkeys(roots) if not any(one.disk == root for one in found)]
        self.report.notes += [f"{root}: no commit log is here: nothing is used" for root in empty]
        if not any(store.logs for store in self._stores):
            raise UnknownFormatError(f"{', '.join(roots)}: no commit log is here")
        splits = []
        for number, store in enumerate(self._stores):
            logs, size = store.logs, store.sizes.commit_log
            samples = max(LEAST_SAMPLES, SAMPLES // max(1, len(logs)))
            for file in logs:
                task = LogTask(number, file, store.queues, size, samples)
                splits.append(SurveySplit(store.root, file.size, task))
            missing = _missing([file.place.start_offset or 0 for file in logs if file.format == COMMIT_LOG.name], size)
            splits.append(SurveySplit(store.root, 0, QueueTask(number, store.queues, missing)))
        return splits

    def _distinct(self, found: Sequence[StoreCopy]) -> list[StoreCopy]:
        """The stores, each once. OptionError for one that a broker is running on."""
        places = Places(self.report.notes)
        for one in found:
            refuse_locked(one.root, "lock")
        return [one for one in found if places.is_new(one.root)]

    def survey(self, split: SurveySplit, advance: Callable[[int], None]) -> Any:
        """Read one commit-log file, or what queues know of missing ones."""
        task = split.content
        if isinstance(task, QueueTask):
            return tuple(slots_between(task.queues, task.missing))
        return survey_log(task.file, task.queues, task.file_size, task.samples, advance)

    # What is decided

    def decide(self, found: Sequence[Surveyed]) -> list[RescueSplit]:
        """Groups of copies, each with its history, in order of preference."""
        copies = [Found(store) for store in self._stores]
        for one in found:
            mine = copies[one.split.content.store]
            if isinstance(one.found, LogSurvey):
                take_survey(mine, one.found, self.report)
            elif isinstance(one.found, tuple):
                mine.slots += one.found
        for mine in copies:
            mine.logs.sort(key=lambda log: log.start)
        splits, names = [], set[str]()
        for group in group_copies(copies):
            group.sort(key=lambda one: one.order)
            name = unit_name(group, names)
            names.add(name)
            splits.append(self._decide(name, group))
        self.report.facts["plan"] = plan_facts(self._plans)
        for plan in self._plans:
            for span in plan.undecided:
                self.report.add(Action.UNDECIDED, f"{plan.name}: kept from address {span.start:,} on: {span.reason}")
        if self.asked.is_plan:
            for plan in self._plans:
                for span in plan.lost:
                    place = f"{plan.name}: addresses {span.start:,} to {(span.stop or span.start + 1) - 1:,}"
                    self.report.add(Action.LOST, f"{place}: {span.reason}")
        return splits

    def _decide(self, name: str, group: list[Found]) -> RescueSplit:
        sizes = {one.store.sizes.commit_log for one in group}
        if len(sizes) > 1:
            shown = ", ".join(f"{one.store.root} {one.store.sizes.commit_log:,}" for one in group)
            raise OptionError(
                f"copies of one store have commit-log files of different sizes ({shown}): give commitlog_size"
            )
        reasons = part_histories(group)
        self._plans.append(unit_plan(name, group, reasons))
        self.report.notes += [reason for reason in reasons if reason]
        content = UnitContent(
            tuple(_content(one) for one in group),
            tuple((name, getattr(group[0].store.sizes, name)) for name in sorted(group[0].store.sizes.known)),
            group[0].store.sizes.commit_log,
            any(log.is_dledger for one in group for log in one.logs),
            tuple(sorted(self.asked.options.items())),
        )
        return RescueSplit(name, sum(file.size for one in group for file in one.store.logs), content)

    # What is written

    def adjacent_files(self) -> Mapping[str, str | None]:
        """No file next to the target is needed."""
        return {}

    def carry(self, split: RescueSplit, folder: Folder, aside: Folder, advance: Callable[[int], None]) -> Report:
        """Write one store."""
        content: UnitContent = split.content
        report = new_report()
        copies = [LogCopy(one.root, _by_start(one.files), one.until) for one in content.copies]
        files, options = _files(content.copies, report), dict(content.options)
        out = folder.folder(split.name)
        union = Union(copies, files, out, content.file_size, report, move=content.is_dledger)
        if content.is_dledger:
            report.notes.append(
                "entries of DLedger are written to a plain commit log: physical offsets and message ids change, queue offsets do not"
            )
        union.is_rescue = True
        union.other_settings = _offsets_of_others(content.copies, files)
        union.take_all(skip=True)
        sizes = sizes_of(files).having(dict(content.sizes))
        write_around(union, sizes.with_options(options), options)
        for one, number in zip(content.copies, union.taken, strict=True):
            if number:
                report.notes.append(f"{counted(number, 'message')} from {one.root}")
        self._keep_tails(split.name, content, aside, report)
        advance(split.size)
        return report

    def _keep_tails(self, name: str, content: UnitContent, aside: Folder, report: Report) -> None:
        """Copy the commit-log files of other histories, from where these part from the one that was written."""
        for number, one in enumerate(content.copies):
            if one.until is None:
                continue
            own = aside.folder(f"{name}/copy-{number}")
            for start, file in sorted(_by_start(one.files).items()):
                if start + content.file_size > one.until:
                    copy(own, file, report)
            reason = f"another history from address {one.until:,} on; these files are kept as copy-{number}"
            report.add(Action.MOVED, reason, one.root, is_expected=True)

    def finish(self, done: Sequence[RescuedUnit], folder: Folder) -> None:
        """The stores next to one another; a single one is the target itself."""
        for unit in done:
            self.report.parts[unit.split.name] = unit.report
            made = Path(unit.folder) / unit.split.name
            if len(done) > 1:
                folder.take(made, unit.split.name)
                continue
            for inner in sorted(os.listdir(made)) if made.is_dir() else ():
                folder.take(made / inner, inner)


def _below(roots: Sequence[str], files: Sequence[File]) -> Iterator[tuple[str, list[File]]]:
    """The files below each of the directories that were named; those of one inside of another are its own."""
    groups: dict[str, list[File]] = {root: [] for root in roots}
    for file in files:
        above = [root for root in roots if file.path == root or file.path.startswith(f"{root.rstrip('/')}/")]
        if above:
            groups[max(above, key=len)].append(file)
    yield from groups.items()


def _missing(starts: Sequence[int], size: int) -> tuple[tuple[int, int], ...]:
    """The stretches between and after the files of a log for which there is no file."""
    ordered = sorted(set(starts))
    gaps = [(one + size, other) for one, other in itertools.pairwise(ordered) if other > one + size]
    return (*gaps, (ordered[-1] + size, ordered[-1] + 2 * size)) if ordered else ()


def _content(one: Found) -> CopyContent:
    placed = {log.file.path: log.file for log in one.logs}
    files = [placed.get(file.path, file) for file in one.store.files if file.path in placed or not is_log(file)]
    return CopyContent(one.store.root, tuple(files), one.until)


def _by_start(files: Sequence[File]) -> dict[int, File]:
    return {file.place.start_offset or 0: file for file in files if file.format == COMMIT_LOG.name}


def _files(copies: Sequence[CopyContent], report: Report) -> list[File]:
    """The files that a store is written from: all logs and queues, and of everything else one copy."""
    logs = [file for one in copies if one.until is None for file in one.files if file.format == COMMIT_LOG.name]
    own = [one for one in copies if one.until is None]
    queues = sum(file.size for one in own for file in one.files if file.format in LAYOUTS)
    sources = own if queues <= MOST_QUEUE_BYTES else own[:1]
    derived = [file for one in sources for file in one.files if file.format in DERIVED]
    others: dict[str, list[File]] = {}
    for one in own:
        mine: dict[str, list[File]] = {}
        for file in one.files:
            if (
                file.format not in (*DERIVED, *NOT_CARRIED, COMMIT_LOG.name, "rocketmq.config")
                and file.format is not None
            ):
                mine.setdefault(file.format, []).append(file)
        for format, found in mine.items():
            others.setdefault(format, found)
    return [*logs, *derived, *(file for found in others.values() for file in found), *_configs(own, report)]


def _configs(copies: Sequence[CopyContent], report: Report) -> Iterator[File]:
    """Of each file of settings the newest copy that a broker can read, with its `.bak`."""
    found: dict[str, list[tuple[tuple[Any, ...], int, File]]] = {}
    for number, one in enumerate(copies):
        for file in one.files:
            if file.format == "rocketmq.config" and file.problem is None:
                found.setdefault(config.name_of(file), []).append((_version(file), number, file))
    for name, files in sorted(found.items()):
        current = [one for one in files if one[2].place.state is None] or files
        version, number, chosen = max(current, key=lambda one: (one[0], -one[1]))
        same = [one for one in current if one[0][0] == version[0] and _content_of(one[2]) == _content_of(chosen)]
        _, number, chosen = min(same, key=lambda one: one[1])
        if number and len({one[1] for one in files}) > 1:
            report.notes.append(f"config/{name}: from {chosen.path}, the newest that can be read")
        yield from (file for _, where, file in files if where == number)


def _content_of(file: File) -> bytes:
    with Source(file.path) as source:
        return source.read(0, min(source.size, config.LARGEST))


def _version(file: File) -> tuple[Any, ...]:
    """What says how new settings are: whether they can be read, their data version, when the file was written."""
    try:
        loaded = config.read(file)
    except DataError:
        return (0, 0, 0, 0.0)
    version = loaded.value.get("dataVersion")
    version = version if isinstance(version, dict) else {}
    numbers = [version.get(name) for name in ("timestamp", "counter")]
    return (2 - loaded.is_refused, *(one if isinstance(one, int) else 0 for one in numbers), file.modified or 0.0)


def _offsets_of_others(copies: Sequence[CopyContent], chosen: Sequence[File]) -> list[File]:
    """The consumer offsets of copies from which they were not taken."""
    taken = {file.path for file in chosen}
    return [
        file
        for one in copies
        for file in one.files
        if file.format == "rocketmq.config"
        and file.problem is None
        and file.place.state is None
        and file.path not in taken
        and config.name_of(file) in OFFSETS
    ]
