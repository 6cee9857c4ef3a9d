"""The copies of stores that `rescue` finds on disks: whose they are, which are copies of one another, and where their histories part.

That is decided by their content: messages that are the same at the same address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rawlog.core.format import File
from rawlog.core.report import Report
from rawlog.core.text import plain_time
from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.paths import parts
from rawlog.formats.rocketmq.store.placeholders import LAYOUTS, Slot
from rawlog.formats.rocketmq.store.rewrite import stores
from rawlog.formats.rocketmq.store.settings import Sizes, conf_near, sizes_of
from rawlog.formats.rocketmq.store.survey import Agreement, LogSurvey, agreement
from rawlog.io.output import why_unsafe
from rawlog.io.storage import Source


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


__all__ = ["Found", "StoreCopy", "copies_below", "group_copies", "is_log", "part_histories", "take_survey", "unit_name"]
