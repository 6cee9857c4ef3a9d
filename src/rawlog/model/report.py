"""Report: what an operation did, for people and for machines. One type for every verb that writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rawlog.model.errors import DONE, FOUND
from rawlog.model.text import ROWS, counted, html_table, printable

if TYPE_CHECKING:
    from rawlog.model.finding import Finding


#: So many lines of one action in one file are shown to people; `as_json` has all.
SHOWN = 1000
#: So many lines of a kind are shown of what is no problem; `Report.lines` has all.
BRIEF = 8
#: So many files that the same was done to have a line each.
SINGLE = 2
#: What happened to parts that have no entry that says otherwise, by verb.
_UNTOUCHED = {"repair": "unchanged", "compact": "unchanged", "erase": "unchanged", "rebuild": "rebuilt"}


class Action(StrEnum):
    """What became of a part of the source, or how a part of the result came to be."""

    KEPT = "kept"
    #: As it was, at another place or under another name.
    MOVED = "moved"
    CHANGED = "changed"
    #: Bytes that are not in the result.
    DROPPED = "dropped"
    #: Written without a source: a marker, a placeholder.
    ADDED = "added"
    #: Derived from the data again.
    REBUILT = "rebuilt"
    #: Data that was in the source, or must have been, and is not in the result.
    LOST = "lost"
    #: Data that the user asked to leave out.
    REMOVED = "removed"
    #: Data that is in the result, though nothing tells whether it belongs there.
    UNDECIDED = "undecided"


#: What takes something of the source away, or leaves a stored field other than it was. All else loses nothing: derived files that are
#: built again, whole files or frames that are put back with their bytes unchanged, the marker that ends an open transaction.
LOSING = frozenset({Action.DROPPED, Action.LOST, Action.CHANGED})
#: What happens to a source that is sound, or at the user's wish.
UNALTERED = frozenset({Action.KEPT, Action.REBUILT, Action.REMOVED})


class SeriousNote(str):
    """A note that counts: a verb that has one ends with 1 at least."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that an operation did: the bytes of a file and the offsets (both half-open), and why.

    `is_expected` says that a sound source is treated so too (padding after the last frame is dropped): nothing is lost by it.
    """

    action: Action
    reason: str = ""
    path: str | None = None
    start: int | None = None
    stop: int | None = None
    first_offset: int | None = None
    stop_offset: int | None = None
    is_expected: bool = False

    @property
    def is_loss(self) -> bool:
        """Whether something of the source was taken away or changed that was not asked for."""
        return self.action in LOSING and not self.is_expected

    @property
    def is_alteration(self) -> bool:
        """Whether something of the result is otherwise than in the source, or elsewhere, as it would not be of a sound source."""
        return self.action not in UNALTERED and not self.is_expected

    @property
    def is_problem(self) -> bool:
        """Whether people must know of it: something was lost or changed, or is not certain."""
        return self.is_loss or self.action is Action.UNDECIDED

    @property
    def is_told(self) -> bool:
        """Whether it is no problem, and still more than what is done to every source."""
        is_routine = self.action is Action.KEPT or (self.action is Action.REBUILT and self.path is None)
        return not (is_routine or self.is_problem)

    def as_json(self) -> dict[str, Any]:
        """What is known, for machines."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "") and value is not False}

    def line(self) -> str:
        """The entry as one line for people."""
        where = [] if self.path is None else [printable(self.path)]
        if self.start is not None and self.stop is not None and self.stop > self.start:
            where.append(f"bytes {self.start:,} to {self.stop:,}")
        if self.first_offset is not None:
            last = None if self.stop_offset is None else self.stop_offset - 1
            many = (
                f"offsets {self.first_offset:,} to {last:,}"
                if last is not None
                else f"offsets from {self.first_offset:,} on"
            )
            where.append(f"offset {last:,}" if last == self.first_offset else many)
        what = f"{self.action} {', '.join(where)}" if where else str(self.action)
        return f"{what}: {printable(self.reason)}" if self.reason else what


@dataclass(slots=True, repr=False)
class Report:
    """What an operation did. `repr` is short; `lines` is for people, and shorter `done_lines`; `as_json` is for machines.

    `counts` are numbers of things (`records_kept`), `facts` what else is known of the result (`end_offset`, `cluster_id`), each under a
    name that `as_json` has at its top level too. `parts` are the reports of the partitions or stores that it worked on, by name.
    """

    verb: str = ""
    source: str = ""
    target: str = ""
    entries: list[Entry] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    parts: dict[str, Report] = field(default_factory=dict)
    #: Files of the source that rawlog or the system does not know, and directories that the system would not load: in no result.
    left_out: list[str] = field(default_factory=list)
    not_loaded: list[str] = field(default_factory=list)
    #: The errors and warnings that `verify` finds in the result. Of a dry run: those of the source that would stay.
    remaining: list[Finding] = field(default_factory=list)
    is_dry_run: bool = False
    #: What a part is called.
    unit: str = "partition"

    # Filling it -------------------------------------------------------------------------------------------------------

    def count(self, name: str, number: int = 1) -> None:
        """Add to a count."""
        self.counts[name] = self.counts.get(name, 0) + int(number)

    def add(self, action: Action, reason: str = "", path: str | None = None, **place: Any) -> None:
        """Add an entry; `place` has the other fields of Entry. A kept run of bytes that follows one of the same file extends it."""
        entry = Entry(action, reason, path, **place)
        before = self.entries[-1] if self.entries else None
        if before is not None and _follows(before, entry):
            entry = Entry(action, reason, path, before.start, entry.stop, before.first_offset, entry.stop_offset)
            self.entries[-1] = entry
        else:
            self.entries.append(entry)

    # Asking it --------------------------------------------------------------------------------------------------------

    @property
    def exit_code(self) -> int:
        """How a verb that writes ends: 0 if the report is whole and no note is serious; else 1."""
        return DONE if self.is_whole and not self.has_serious_note else FOUND

    @property
    def has_serious_note(self) -> bool:
        """Whether a note counts: rows were passed over, or not decoded."""
        return any(isinstance(note, SeriousNote) for note in self.all_notes())

    @property
    def is_whole(self) -> bool:
        """Whether nothing was lost, dropped or changed that was not asked for, nothing is undecided or left out, and nothing is wrong with
        the result.
        """
        return self.is_lossless and not self.with_action(Action.UNDECIDED) and not self.all_remaining

    @property
    def is_lossless(self) -> bool:
        """Whether nothing was lost, dropped, changed or left out that was not asked for."""
        return not self.all_left_out and not any(entry.is_loss for entry in self.all_entries())

    @property
    def all_remaining(self) -> list[Finding]:
        """The errors and warnings that are left in the result, those of parts included."""
        return [*self.remaining, *(finding for part in self.parts.values() for finding in part.all_remaining)]

    def all_notes(self) -> Iterator[str]:
        """The notes of the report and of its parts."""
        yield from self.notes
        for part in self.parts.values():
            yield from part.all_notes()

    def with_action(self, *actions: Action) -> list[Entry]:
        """The entries of some actions, those of parts included."""
        return [entry for entry in self.all_entries() if entry.action in actions]

    def all_entries(self) -> Iterator[Entry]:
        """The entries of the report and of its parts."""
        yield from self.entries
        for part in self.parts.values():
            yield from part.all_entries()

    @property
    def all_left_out(self) -> list[str]:
        """The files of the source that are in no result, those of parts included."""
        return [*self.left_out, *(path for part in self.parts.values() for path in part.all_left_out)]

    @property
    def lost(self) -> list[tuple[int, int | None]]:
        """First and last of every run of lost offsets; the last is None where nothing tells it."""
        runs = [entry for entry in self.with_action(Action.LOST) if entry.first_offset is not None]
        return [(int(run.first_offset or 0), None if run.stop_offset is None else run.stop_offset - 1) for run in runs]

    def total(self, name: str) -> int:
        """A count of the report and all its parts."""
        return self.counts.get(name, 0) + sum(part.total(name) for part in self.parts.values())

    # Showing it -------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        named = {"verb": self.verb, "source": self.source, "target": self.target}
        lists: dict[str, Any] = {
            "entries": [entry.as_json() for entry in self.entries],
            "lost": [list(run) for run in self.lost],
            "parts": {name: part.as_json() for name, part in self.parts.items()},
            "notes": list(self.notes),
            "left_out": list(self.left_out),
            "not_loaded": list(self.not_loaded),
            "remaining": [finding.as_row() for finding in self.remaining],
        }
        filled = {name: value for name, value in (*named.items(), *lists.items()) if value}
        fields = {**self.facts, **self.counts, **filled, **self.facts, "is_whole": self.is_whole}
        return fields | ({"dry_run": True} if self.is_dry_run else {})

    def lines(self) -> list[str]:
        """Everything, for people: what was done, part by part, and then what was lost, changed or is not certain."""
        return [*self.all_done_lines(), *self.problem_lines()]

    def all_done_lines(self) -> list[str]:
        """What was done to the whole and to each part, without what `problem_lines` has."""
        entries = [entry for entry in self.entries if entry.action is not Action.KEPT and not entry.is_problem]
        lines = list(_few(entries))
        for name, part in self.parts.items():
            lines += _titled(name, part.all_done_lines())
        lines += [printable(note) for note in self.notes if not isinstance(note, SeriousNote)]
        if self.counts or self.facts:
            lines.append(", ".join([*self._counts(), *self._facts()]))
        return [line for line in lines if line] + self._not_loaded()

    def done_lines(self) -> list[str]:
        """What was done, in a few lines: parts that nothing happened to are a number, the counts of the others a sum."""
        lines = _alike([entry for entry in self.entries if entry.is_told])
        for name, part in self.parts.items():
            part_lines = _alike([entry for entry in part.all_entries() if entry.is_told])
            lines += [f"{printable(name)}: {line}" for line in part_lines]
        untouched = sum(not any(map(_is_touch, part.all_entries())) for part in self.parts.values())
        if untouched and self.verb in _UNTOUCHED:
            lines = [*_some(lines), f"{counted(untouched, self.unit)} {_UNTOUCHED[self.verb]}"]
        notes: dict[str, list[str]] = {}
        for name, part in self.parts.items():
            for note in part.all_notes():
                if not isinstance(note, SeriousNote):
                    notes.setdefault(note, []).append(name)
        lines = _some(lines) + _some([f"{self._named(names)}: {printable(note)}" for note, names in notes.items()])
        lines += _some([printable(note) for note in self.notes if not isinstance(note, SeriousNote)])
        total = self._sum()
        lines.append(", ".join([*total._counts(), *total._facts()]))
        return [line for line in lines if line] + _some(self._not_loaded())

    def problem_lines(self) -> list[str]:
        """What was dropped, changed, lost or left out, what is undecided, and what is still wrong with the result."""
        problems = [entry for entry in self.entries if entry.is_problem]
        lines = list(_few(sorted(problems, key=lambda entry: entry.action is Action.LOST)))
        for name, part in self.parts.items():
            lines += _titled(name, part.problem_lines())
        lines += [printable(note) for note in self.notes if isinstance(note, SeriousNote)]
        lines += [
            f"{printable(path)}: left out: rawlog or the system does not know it; copy it yourself if you need it"
            for path in self.left_out
        ]
        return lines + [_remains(finding) for finding in self.remaining]

    def _not_loaded(self) -> list[str]:
        return [f"{printable(path)}: left out: the system would not load it" for path in self.not_loaded]

    def _named(self, names: list[str]) -> str:
        """Parts as the subject of a line."""
        return printable(names[0]) if len(names) == 1 else counted(len(names), self.unit)

    def _sum(self) -> Report:
        """Its counts and facts; those of its only part, or the sums of the counts of all parts, if it has no counts of its own."""
        if self.counts or not self.parts:
            return self
        facts = {} if len(self.parts) > 1 else next(iter(self.parts.values())).facts
        names = dict.fromkeys(name for part in self.parts.values() for name in part.counts)
        return Report(
            entries=list(self.all_entries()),
            counts={name: self.total(name) for name in names},
            facts={**facts, **self.facts},
        )

    def _counts(self) -> list[str]:
        words = ((name.replace("_", " "), number) for name, number in self.counts.items() if number)
        return [counted(number, _singular(name), name) for name, number in words]

    def _facts(self) -> list[str]:
        """The facts that are numbers or texts, without those that are the reason of an entry."""
        return [
            f"{name.replace('_', ' ')} {value:,}" if type(value) is int else f"{name.replace('_', ' ')} {value}"
            for name, value in self.facts.items()
            if isinstance(value, int)
            or (isinstance(value, str) and not any(value in entry.reason for entry in self.entries))
        ]

    def problems(self) -> list[str]:
        """Why it is not whole, in a few words each; nothing if it is."""
        would = self.is_dry_run
        problems = []
        if any(entry.is_loss for entry in self.all_entries()):
            problems.append("something would be lost or changed" if would else "something was lost or changed")
        if self.all_left_out:
            problems.append("files would be left out" if would else "files were left out")
        if self.with_action(Action.UNDECIDED):
            problems.append("something is undecided")
        if self.all_remaining:
            problems.append("findings would remain" if would else "findings remain")
        if self.has_serious_note:
            problems.append("something was not read or not decoded")
        return problems

    def __repr__(self) -> str:
        what = "whole" if self.is_whole else " and ".join(self.problems())
        return f"<rawlog.Report {self.verb} {self.target!r}: {what}>"

    def _repr_html_(self) -> str:
        """The counts, the first entries and what remains as a table, for a notebook."""
        entries = [entry for entry in self.all_entries() if entry.action is not Action.KEPT]
        rows: list[tuple[Any, ...]] = [(entry.action, entry.path, entry.reason) for entry in entries[:ROWS]]
        rows += [("", "", f"{len(entries) - ROWS:,} more entries")] if len(entries) > ROWS else []
        rows += [("remains", finding.path, f"{finding.message} [{finding.code}]") for finding in self.remaining[:ROWS]]
        rows += [("", name, number) for name, number in self.counts.items()]
        return html_table(("action", "where", "what"), rows, repr(self))


def _follows(before: Entry, entry: Entry) -> bool:
    """Whether two kept runs of bytes are one."""
    kept = before.action is Action.KEPT and entry.action is Action.KEPT and before.path == entry.path
    return kept and before.stop is not None and before.stop == entry.start and before.reason == entry.reason


def _few(entries: list[Entry]) -> Iterator[str]:
    """A line for each entry, but not for millions of them."""
    shown: dict[tuple[Action, str | None], int] = {}
    for entry in entries:
        key = (entry.action, entry.path)
        shown[key] = shown.get(key, 0) + 1
        if shown[key] <= SHOWN:
            yield entry.line()
    for (action, path), number in shown.items():
        if number > SHOWN:
            yield f"{action} {printable(path or '')}: {number - SHOWN:,} more".replace(" :", ":")


def _alike(entries: list[Entry]) -> list[str]:
    """A line for each entry; one for all whole files that the same was done to."""
    groups: dict[object, list[Entry]] = {}
    for number, entry in enumerate(entries):
        is_file = entry.path is not None and entry.start is None and entry.first_offset is None
        groups.setdefault((entry.action, entry.reason) if is_file else number, []).append(entry)
    lines = []
    for group in groups.values():
        if len(group) <= SINGLE:
            lines += [entry.line() for entry in group]
        else:
            lines.append(f"{group[0].action} {len(group):,} files: {printable(group[0].reason)}")
    return lines


def _is_touch(entry: Entry) -> bool:
    """Whether something happened to a part."""
    return entry.is_alteration or entry.action is Action.REMOVED


def _titled(name: str, lines: list[str]) -> list[str]:
    """The lines of a part below its name; nothing if there are none."""
    return [printable(name), *(f"  {line}" for line in lines)] if lines else []


def _some(lines: list[str]) -> list[str]:
    """The first lines, and how many others there are."""
    if len(lines) <= BRIEF + 1:
        return lines
    return [*lines[:BRIEF], f"... and {len(lines) - BRIEF:,} more; -v shows them"]


def _remains(finding: Finding) -> str:
    where = [printable(finding.path or "the files together")]
    where += [] if finding.offset is None else [f"offset {finding.offset:,}"]
    where += [] if finding.position is None else [f"byte {finding.position:,}"]
    return f"remains {', '.join(where)}: {printable(finding.message)}  [{finding.code}]"


def _singular(words: str) -> str:
    """`records kept` as one: `record kept`."""
    first, space, rest = words.partition(" ")
    for ending, instead in (("ies", "y"), ("ches", "ch"), ("s", "")):
        if first.endswith(ending) and not first.endswith("ss"):
            return first.removesuffix(ending) + instead + space + rest
    return words


# ----------------------------------------------------------------------------------------------------------------------
# Metrics: the numbers of a Report for a monitoring system, as JSON or as Prometheus reads them.


#: The ending of a file that gets the text form of Prometheus, as its node exporter wants it; other files get JSON.
PROMETHEUS = ".prom"
#: What a metric means, by its name without the verb.
_MEANINGS = {
    "success": "1 if the last run ended, 0 if it failed",
    "finished_timestamp_seconds": "when the last run ended",
    "seconds": "how long a phase of the last run took",
    "rows": "rows that the last run added to a table",
    "findings": "findings of the last run by severity",
    "files": "files that the last run read",
    "bytes": "bytes that the last run read",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """A number with a name and labels."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


def metrics_of(report: Report, finished: float) -> Iterator[Metric]:
    """The numbers of a run that ended at a time (seconds since 1970)."""
    yield Metric("success", 1)
    yield Metric("finished_timestamp_seconds", finished)
    for name, number in report.counts.items():
        if name in ("errors", "warnings"):
            yield Metric("findings", number, (("severity", name.removesuffix("s")),))
        else:
            yield Metric(name, number)
    for fact, name, label in (("tables", "rows", "table"), ("seconds", "seconds", "phase")):
        for key, number in (report.facts.get(fact) or {}).items():
            yield Metric(name, number, ((label, key),))


def failed(finished: float) -> list[Metric]:
    """The numbers of a run that failed."""
    return [Metric("success", 0), Metric("finished_timestamp_seconds", finished)]


def as_prometheus(verb: str, target: str, metrics: list[Metric]) -> str:
    """Metrics in the text form of Prometheus (version 0.0.4): gauges of the last run, with its target as a label."""
    lines: list[str] = []
    for name in dict.fromkeys(metric.name for metric in metrics):
        whole = re.sub(r"[^a-zA-Z0-9_]", "_", f"rawlog_{verb}_{name}")
        lines += [f"# HELP {whole} {_MEANINGS.get(name, name.replace('_', ' '))}", f"# TYPE {whole} gauge"]
        for metric in metrics:
            if metric.name == name:
                labels = ",".join(f'{key}="{_escape(value)}"' for key, value in (("target", target), *metric.labels))
                lines.append(f"{whole}{{{labels}}} {_number(metric.value)}")
    return "\n".join(lines) + "\n"


def as_json(verb: str, target: str, metrics: list[Metric]) -> str:
    """Metrics as an object: a number for each name, or an object with a number for each label."""
    fields: dict[str, Any] = {"verb": verb, "target": target}
    for metric in metrics:
        if not metric.labels:
            fields[metric.name] = metric.value
        else:
            fields.setdefault(metric.name, {})[metric.labels[0][1]] = metric.value
    return json.dumps(fields) + "\n"


def as_text(path: str, verb: str, target: str, metrics: list[Metric]) -> str:
    """Metrics in the form that the name of a file asks for."""
    return (as_prometheus if path.endswith(PROMETHEUS) else as_json)(verb, target, metrics)


def _escape(value: str) -> str:
    printable = value.encode(errors="replace").decode()
    return printable.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
