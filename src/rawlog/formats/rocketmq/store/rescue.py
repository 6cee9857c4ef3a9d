"""The policy of `rescue`: one store from the stores of a master and its slaves, or of the members of a DLedger group.

Which stores are copies of one another is decided by their content: messages that are the same at the same address. Each group of copies
becomes one store: the union of the commit logs (`union.py`), with everything else as `repair` rebuilds it.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rawlog.formats.rocketmq import COMMIT_LOG, config
from rawlog.formats.rocketmq.paths import parts
from rawlog.formats.rocketmq.store.configs import OFFSETS
from rawlog.formats.rocketmq.store.outline import (
    LEAST_SAMPLES,
    SAMPLES,
    Agreement,
    Extent,
    LogSurvey,
    agreement,
    slots_between,
    survey_log,
)
from rawlog.formats.rocketmq.store.placeholders import LAYOUTS, Slot
from rawlog.formats.rocketmq.store.repair import write_around
from rawlog.formats.rocketmq.store.rewrite import DERIVED, copy, new_report, stores
from rawlog.formats.rocketmq.store.settings import OPTIONS as SIZE_OPTIONS
from rawlog.formats.rocketmq.store.settings import Sizes, conf_near, sizes_of
from rawlog.formats.rocketmq.store.union import LogCopy, Union
from rawlog.io.output import Folder, why_unsafe
from rawlog.io.storage import Places, Source, refuse_locked
from rawlog.model.errors import DataError, OptionError, UnknownFormatError
from rawlog.model.format import File
from rawlog.model.recovery import (
    CopyPlan,
    PiecePlan,
    RescueAsked,
    RescuedUnit,
    RescueSplit,
    Span,
    Surveyed,
    SurveySplit,
    UnitPlan,
    plan_facts,
)
from rawlog.model.report import Action, Report
from rawlog.model.store import Store
from rawlog.model.text import counted, plain_time

# ----------------------------------------------------------------------------------------------------------------------
# The copies of stores that `rescue` finds on disks: whose they are, which are copies of one another, and where their histories part.
# That is decided by their content: messages that are the same at the same address.


@dataclass(frozen=True, slots=True)
class StoreCopy:
    """One store as it was found: its files, and who its broker was as far as its settings say."""

    root: str
    disk: str
    files: tuple[File, ...]
    sizes: Sizes
    broker: str | None = None
    broker_id: int | None = None
    #: The epochs of a controller with their first addresses; empty for a broker without one.
    epochs: tuple[tuple[int, int], ...] = ()

    @property
    def logs(self) -> list[File]:
        """The files of the commit log, also those under wrong names."""
        return [file for file in self.files if file.problem is None and is_log(file)]

    @property
    def queues(self) -> tuple[File, ...]:
        return tuple(file for file in self.files if file.format in LAYOUTS and file.problem is None)


def is_log(file: File) -> bool:
    """Whether a file is one of a commit log, also under a wrong name."""
    is_stray = file.format == "rocketmq.stray" and parts(file.path)[1].startswith("commitlog")
    return file.format == COMMIT_LOG.name or is_stray


@dataclass(slots=True)
class Found:
    """A copy with what the surveys found in it."""

    store: StoreCopy
    logs: list[LogSurvey] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    until: int | None = None

    @property
    def end(self) -> int:
        return max((log.end for log in self.logs if log.extents), default=self.start)

    @property
    def start(self) -> int:
        return min((log.start for log in self.logs if log.extents), default=0)

    @property
    def lineage(self) -> tuple[int, int]:
        """What says which of two histories is newer: the term or epoch, then the store time of the last message."""
        term = max((log.term for log in self.logs), default=0)
        epoch = max((epoch for epoch, _ in self.store.epochs), default=0)
        return max(term, epoch), max((log.extents[-1].until for log in self.logs[-1:] if log.extents), default=0)

    @property
    def order(self) -> tuple[Any, ...]:
        """Copies in order of preference: the newest history, the master, the longest, the most sound."""
        sound = sum(one.stop - one.start for log in self.logs for one in log.extents)
        return (
            *(-part for part in self.lineage),
            self.store.broker_id not in (None, 0),
            -self.end,
            -sound,
            self.store.root,
        )


def copies_below(root: str, files: Sequence[File], options: Mapping[str, str]) -> Iterator[StoreCopy]:
    """The stores below a directory."""
    for store in stores(files, {}) if files else ():
        if not any(is_log(file) for file in store):
            continue
        group = next((file.place.group for file in store if file.format != COMMIT_LOG.name and file.place.group), None)
        conf = conf_near(store)
        values: Mapping[str, str] = {} if conf is None else conf.values
        cluster_broker = _identity(store)
        number = values.get("brokerId", "")
        yield StoreCopy(
            str(group or store[0].place.group or root),
            root,
            store.files,
            sizes_of(store).with_options(options),
            (cluster_broker[0] if cluster_broker else None) or values.get("brokerName"),
            cluster_broker[1] if cluster_broker else int(number) if number.isdecimal() else None,
            _epochs(store),
        )


def _text_of(files: Sequence[File], format: str) -> str:
    for file in files:
        if file.format == format and file.problem is None and file.place.state is None and file.size < 1 << 20:
            with Source(file.path) as source:
                return source.read(0, source.size).decode("utf-8", "replace")
    return ""


def _identity(files: Sequence[File]) -> tuple[str, int] | None:
    """Name and number of a broker, from the file of a controller: `cluster#broker#id`."""
    names = _text_of(files, "rocketmq.identity").strip().split("#")
    return (names[1], int(names[2])) if len(names) == 3 and names[2].isdecimal() else None


def _epochs(files: Sequence[File]) -> tuple[tuple[int, int], ...]:
    """Epochs and their first addresses, after a count and a checksum: `epoch-address` in each line."""
    lines = _text_of(files, "rocketmq.epochs").split()[2:]
    pairs = [line.split("-") for line in lines]
    return tuple((int(pair[0]), int(pair[1])) for pair in pairs if len(pair) == 2 and all(map(str.isdecimal, pair)))


def take_survey(found: Found, survey: LogSurvey, report: Report) -> None:
    """Add a survey to its copy. Of two files at one address the one with more messages counts."""
    twin = next((one for one in found.logs if one.start == survey.start), None)
    if twin is not None:
        if survey.messages <= twin.messages:
            survey, twin = twin, survey
        report.notes.append(f"{twin.file.path}: left out; {survey.file.path} has its place in the commit log")
        found.logs = [one for one in found.logs if one.start != survey.start]
    found.logs.append(survey)


def group_copies(copies: Sequence[Found]) -> list[list[Found]]:
    """Stores that are copies of one another: with common messages, or of one broker with no addresses in common."""
    groups: list[list[Found]] = []
    for found in copies:
        near = [group for group in groups if any(_is_copy(found, other) for other in group)]
        merged = [found, *(one for group in near for one in group)]
        groups = [group for group in groups if group not in near] + [merged]
    return groups


def _is_copy(one: Found, other: Found) -> bool:
    found = agreement(one.logs, other.logs)
    if found.same or found.different:
        return found.same > 0
    return one.store.broker is not None and one.store.broker == other.store.broker


def part_histories(group: list[Found]) -> list[str]:
    """Set where each copy parts from the history of the first; the reasons, one for each."""
    reasons = [""]
    for one in group[1:]:
        found: Agreement = agreement(group[0].logs, one.logs)
        one.until = found.until
        reason = ""
        if found.until is not None:
            (mine, when), (theirs, then) = group[0].lineage, one.lineage
            why = (
                f"term or epoch {mine} after {theirs}"
                if mine != theirs
                else f"last stored {plain_time(when * 1000)}, not {plain_time(then * 1000)}"
            )
            reason = f"{one.store.root}: another history from address {found.until:,} on; {group[0].store.root} is newer: {why}"
        reasons.append(reason)
    return reasons


def unit_name(group: Sequence[Found], taken: set[str]) -> str:
    """The name of a group's broker, or that of a directory."""
    known = Counter(one.store.broker for one in group if one.store.broker)
    base = known.most_common(1)[0][0] if known else None
    if base is None or why_unsafe(base) is not None:
        names = [part for part in parts(group[0].store.root) if part not in ("", "store", ".", "..")]
        base = names[0] if names else "store"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


# ----------------------------------------------------------------------------------------------------------------------
# What a rescue would take from which copy of a store, and what is lost in all of them.


MOST_SPANS = 10_000


def unit_plan(name: str, group: Sequence[Found], reasons: Sequence[str]) -> UnitPlan:
    """The plan of a store of some copies, with the reasons why histories of copies part."""
    used = [(number, one) for number, one in enumerate(group) if one.logs]
    pieces = _pieces(used)
    start = min((piece.start for piece in pieces), default=0)
    end = max((piece.stop for piece in pieces), default=0)
    copies = tuple(_copy_plan(one, reason) for one, reason in zip(group, reasons, strict=True))
    divergent = tuple(
        (number, Span(one.until, one.end, reasons[number])) for number, one in enumerate(group) if one.until is not None
    )
    own = [one for one in group if one.until is None]
    ends = sorted((one.end for one in own), reverse=True)
    undecided: tuple[Span, ...] = ()
    if len(ends) > 1 and any(log.is_dledger for one in own for log in one.logs):
        shared = ends[len(group) // 2] if len(ends) > len(group) // 2 else ends[-1]
        if shared < end:
            undecided = (Span(shared, end, "fewer than half of the members have it"),)
    return UnitPlan(
        name,
        "rescue" if pieces else "lost",
        start,
        end,
        f"{counted(len(group), 'copy', 'copies')}; first {group[0].store.root}",
        copies,
        tuple(pieces),
        tuple(_lost(group, pieces)),
        undecided,
        divergent,
    )


def _copy_plan(one: Found, reason: str) -> CopyPlan:
    holes = [
        Span(hole[0], min(hole[1], one.end), "no sound message")
        for log in one.logs
        for hole in log.holes
        if hole[0] < one.end
    ]
    term, _ = one.lineage
    return CopyPlan(
        one.store.disk,
        one.store.root,
        one.start,
        one.end,
        sum(file.size for file in one.store.logs),
        lineage=f"term or epoch {term}" if term else "",
        damage=tuple(holes[:MOST_SPANS]),
        use=reason or "taken where it is sound",
    )


def _pieces(copies: Sequence[tuple[int, Found]]) -> list[PiecePlan]:
    """The stretches of the union, each with the first copy that has it."""
    every = []
    for rank, (number, one) in enumerate(copies):
        for log in one.logs:
            every += [(*part, rank, number) for part in log.covered if one.until is None or part[0] < one.until]
    every.sort()
    pieces: list[PiecePlan] = []
    at = -1
    while True:
        live = [one for one in every if one[1] > at]
        if not live:
            return pieces
        begin = max(at, min(one[0] for one in live))
        here = min((one for one in live if one[0] <= begin), key=lambda one: one[2])
        better = [one[0] for one in live if one[2] < here[2] and one[0] > begin]
        stop = min([here[1], *better])
        if pieces and pieces[-1].copy == here[3] and pieces[-1].stop == begin:
            pieces[-1] = replace(pieces[-1], stop=stop)
        else:
            pieces.append(PiecePlan(here[3], begin, stop))
        at, every = stop, live


def _lost(group: Sequence[Found], pieces: Sequence[PiecePlan]) -> Iterator[Span]:
    """The holes of the union, with what queues know of them."""
    extents = sorted(
        (extent for one in group for log in one.logs for extent in log.extents), key=lambda extent: extent.start
    )
    known = [slots for one in group for slots in (one.slots, *(log.slots for log in one.logs))]
    slots = {slot.address: slot for found in known for slot in found}
    ordered = [slots[address] for address in sorted(slots)]
    end = pieces[-1].stop if pieces else 0
    holes = [(one.stop, other.start) for one, other in itertools.pairwise(pieces) if other.start > one.stop]
    for start, stop in holes:
        since, until = _times(extents, start, stop)
        inside = [slot for slot in ordered if start <= slot.address < stop]
        yield Span(start, stop, _known(inside), since, until)
    after = [slot for slot in ordered if slot.address >= end]
    if after:
        since, _ = _times(extents, end, end)
        yield Span(end, after[-1].address + after[-1].size, _known(after), since, None)


def _times(extents: Sequence[Extent], start: int, stop: int) -> tuple[int | None, int | None]:
    before = [one.until for one in extents if one.stop <= start]
    after = [one.since for one in extents if one.start >= stop]
    return (before[-1] if before else None), (after[0] if after else None)


def _known(slots: Sequence[Slot]) -> str:
    """The messages that were in a hole, by topic, queue and queue offset."""
    if not slots:
        return "no consume queue says what was there"
    runs: list[list[Any]] = []
    for slot in sorted(slots, key=lambda slot: (slot.topic, slot.queue_id, slot.number)):
        if runs and runs[-1][:2] == [slot.topic, slot.queue_id] and runs[-1][3] == slot.number:
            runs[-1][3] += slot.count
        else:
            runs.append([slot.topic, slot.queue_id, slot.number, slot.number + slot.count])
    shown = [
        f"{topic} queue {queue}: {first:,}" + (f" to {stop - 1:,}" if stop - 1 > first else "")
        for topic, queue, first, stop in runs
    ]
    more = f" and {len(shown) - 20:,} more runs" if len(shown) > 20 else ""
    return f"{counted(len(slots), 'message')} lost: {'; '.join(shown[:20])}{more}"


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
