"""Findings on a page: grouped by cause, explained, with the commands that help."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rawlog.model.difference import Change, Difference, Tally
from rawlog.model.finding import Finding, Findings, Severity
from rawlog.model.report import Action, Entry, Report
from rawlog.model.text import counted, offset_range
from rawlog.model.verb import Line, Tone
from rawlog.pages import frame
from rawlog.pages.frame import Safe, command, details, joined, prose, table, tag, text, when

TONES = {Severity.ERROR: "bad", Severity.WARNING: "warn", Severity.INFO: "info"}
#: What a verdict means, as a headline and a sentence, with its tone.
VERDICTS = {
    "clean": ("Healthy", "Every file was read to its end, and nothing is wrong.", "good"),
    "suspect": ("Look closer", "Nothing is certainly damaged, but something is odd.", "warn"),
    "damaged": ("Damaged", "Data is wrong or lost at the places below.", "bad"),
    "unknown": ("Not recognised", "No file here is of a format that rawlog knows.", "warn"),
}


@dataclass(frozen=True, slots=True)
class Step:
    """Something to do, and the command for it."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Cause:
    """All findings of one rule: meaning, number, places and remedies."""

    code: str
    severity: Severity
    about: str
    count: int
    files: int
    places: tuple[Finding, ...]
    commands: tuple[Step, ...] = ()
    is_repairable: bool = False
    #: The rule that names the cause of all these, if there is one.
    follows: str = ""


def verdict(findings: Findings, steps: Sequence[Step]) -> Safe:
    """The first thing to see: whether all is well, and what to do next."""
    title, sentence, tone = VERDICTS[findings.verdict]
    counts = ", ".join(
        counted(number, name) for name, number in (("error", findings.errors), ("warning", findings.warnings)) if number
    )
    statement = tag(
        "div",
        tag("p", title, class_="state"),
        tag("p", sentence),
        tag("p", counts, class_="counts") if counts else "",
        class_="said",
    )
    return tag("section", statement, next_steps(steps), class_=f"verdict {tone}", aria_label="Verdict")


def next_steps(steps: Sequence[Step]) -> Safe:
    """What to do next, as a list."""
    if not steps:
        return Safe("")
    items = (tag("li", step.text, command(step.command) if step.command else "") for step in steps)
    return tag("div", tag("h2", "What to do next"), tag("ol", *items), class_="steps")


def listing(causes: Sequence[Cause]) -> Safe:
    """All causes; those that matter are open."""
    if not causes:
        return tag("p", "No findings.", class_="about")
    return joined(_cause(cause, at) for at, cause in enumerate(causes))


def _cause(cause: Cause, at: int) -> Safe:
    first, _, rest = cause.about.partition("\n\n")
    first, _, more_words = " ".join(first.split()).partition(". ")
    first, rest = first.rstrip("."), "\n\n".join(part for part in (more_words, rest) if part)
    summary = joined(
        (
            tag("span", cause.severity.value, class_=f"badge {TONES[cause.severity]}"),
            tag("span", text(first or cause.code), class_="what"),
            tag("span", f"{counted(cause.count, 'finding')} in {counted(cause.files, 'file')}", class_="many"),
        )
    )
    rows = [
        (finding.path or "the files together", finding.position, finding.offset, finding.text)
        for finding in cause.places
    ]
    origin = (
        tag("p", "All of these follow from the findings of ", tag("code", cause.follows), ".") if cause.follows else ""
    )
    more = f"the first {len(rows):,} of {cause.count:,}" if cause.count > len(rows) else counted(cause.count, "place")
    return details(
        summary,
        tag("p", tag("code", cause.code), class_="code"),
        origin,
        prose(rest) if rest else "",
        *(tag("p", f"{step.text}: ", command(step.command), class_="helps") for step in cause.commands),
        table(("file", "byte", "offset", "message"), rows, f"{cause.code}: {more}"),
        is_open=at == 0 and cause.severity is not Severity.INFO and not cause.follows,
        class_=f"cause {TONES[cause.severity]}",
    )


# ----------------------------------------------------------------------------------------------------------------------
# The pages of `verify`, `diff` and the verbs that write: what was found or done, and whether anything was lost.


#: So many rows of one table are on a page; all are counted.
ROWS = 1000
Unit = Mapping[str, Any]
CHANGES = {
    Change.ONLY_A: Line("only in A", Tone.BAD),
    Change.ONLY_B: Line("only in B", Tone.GOOD),
    Change.DIFFERS: Line("differs", Tone.CHANGED),
}
ACTION_TONES = {
    Action.LOST: Tone.BAD, Action.DROPPED: Tone.BAD, Action.CHANGED: Tone.CHANGED, Action.UNDECIDED: Tone.CHANGED,
    Action.ADDED: Tone.CHANGED,
}  # fmt: skip


def banner(title: str, sentence: str, tone: str, steps: Sequence[Step] = ()) -> Safe:
    """The result in large letters, and what to do next."""
    statement = tag("div", tag("p", title, class_="state"), tag("p", sentence), class_="said")
    return tag("section", statement, next_steps(steps), class_=f"verdict {tone}", aria_label="Result")


def cards(pairs: Iterable[tuple[str, Any]]) -> Safe:
    """Numbers in boxes."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", text(value))) for name, value in pairs), class_="cards")


# verify -------------------------------------------------------------------------------------------------------------------


def verify_page(findings: Findings, causes: Sequence[Cause], steps: Sequence[Step], roots: Sequence[str]) -> str:
    """What `verify` found."""
    title = frame.title_of(roots)
    content = frame.main(
        verdict(findings, steps),
        cards(
            (
                ("Files", findings.files),
                ("Frames", findings.frames),
                ("Errors", findings.errors),
                ("Warnings", findings.warnings),
            )
        ),
        frame.section("Findings", listing(causes), name="findings"),
    )
    return frame.document(f"rawlog verify: {title}", frame.heading("verify", title, frame.paths(roots)), content)


# diff ---------------------------------------------------------------------------------------------------------------------


def diff_page(tally: Tally, a: str, b: str, damage: Sequence[str] = ()) -> str:
    """What two places do not agree on, and the damage that was passed over."""
    if tally.is_same and damage:
        text = f"{tally.alike:,} items were compared, and no difference was found; what is damaged was not compared."
        result = banner("No difference, but damage", text, "bad")
    elif tally.is_same:
        result = banner("The same", f"{tally.alike:,} items were compared, and no difference was found.", "good")
    else:
        number = tally.only_in_a + tally.only_in_b + tally.differs
        result = banner(
            "Different", f"{number:,} of {number + tally.alike:,} items are not the same on both sides.", "bad"
        )
    numbers = (
        ("Alike", tally.alike),
        ("Only in A", tally.only_in_a),
        ("Only in B", tally.only_in_b),
        ("Differ", tally.differs),
    )
    rows = [_difference(difference) for difference in tally.items[:ROWS]]
    left = len(tally.items) - len(rows) + tally.unlisted
    more = tag("p", f"{left:,} more differences are not listed here.", class_="about") if left > 0 else Safe("")
    head = ("change", "what", "name", "offsets", "number", "columns", "in A", "in B")
    listed = table(head, rows, "Differences", filtered=True, whole=False) if rows else tag("p", "No differences.")
    sides = tag("p", "A is ", tag("code", a), ", B is ", tag("code", b), class_="about")
    passed = [frame.section("Damage", *(tag("p", text) for text in damage))] if damage else []
    content = frame.main(result, cards(numbers), frame.section("Differences", sides, listed, more), *passed)
    return frame.document(f"rawlog diff: {a} and {b}", frame.heading("diff", f"{a} and {b}"), content)


def _difference(difference: Difference) -> tuple[Any, ...]:
    offsets = (
        "" if difference.start is None or difference.stop is None else offset_range(difference.start, difference.stop)
    )
    sides = [
        None if side is None else {name: side.get(name) for name in difference.columns} or None
        for side in (difference.a, difference.b)
    ]
    return (
        CHANGES[difference.change],
        difference.what,
        difference.name,
        offsets,
        difference.count,
        ", ".join(difference.columns),
        *sides,
    )


# repair, rescue and others that write -------------------------------------------------------------------------------------


def report_page(report: Report, causes: Sequence[Cause] = ()) -> str:
    """What an operation did, and everything that was lost. `causes` are the findings that remain."""
    would = "would be" if report.is_dry_run else "was"
    steps = []
    if report.target and not report.is_dry_run:
        steps.append(Step("Check the result.", shlex.join(["rawlog", "verify", report.target])))
    elif report.target and report.verb == "repair":
        steps.append(Step("Write the repaired copy.", shlex.join(["rawlog", "repair", report.source, report.target])))
    if report.is_whole:
        result = banner("Nothing lost", f"Everything in the source {would} kept.", "good", steps)
    elif report.is_lossless:
        title = "Findings remain" if report.all_remaining else "Something is undecided"
        result = banner(title, f"Nothing was lost, but {' and '.join(report.problems())}.", "warn", steps)
    else:
        result = banner(
            "Something lost or changed",
            f"Not everything {would} kept as it was. The list below is complete.",
            "bad",
            steps,
        )
    entries = [entry for entry in report.all_entries() if entry.action is not Action.KEPT]
    counts = {name: report.counts.get(name) or report.total(name) for name in _count_names(report)}
    shown = [(name.replace("_", " ").capitalize(), number) for name, number in counts.items() if number][:8]
    title = report.source or report.target
    parts = [
        result,
        cards(shown) if shown else Safe(""),
        *_plan(report),
        _entries(entries, report.is_dry_run),
        _rest(report, causes),
    ]
    where = tag("p", "Written to ", tag("code", report.target), class_="when") if report.target else Safe("")
    if report.is_dry_run:
        where = tag("p", "Nothing was written: this is a plan.", class_="when")
    return frame.document(
        f"rawlog {report.verb}: {title}", frame.heading(report.verb, title, where), frame.main(*parts)
    )


def _count_names(report: Report) -> list[str]:
    names = dict.fromkeys(report.counts)
    for part in report.parts.values():
        names |= dict.fromkeys(_count_names(part))
    return list(names)


def _entries(entries: Sequence[Entry], is_dry_run: bool) -> Safe:
    title = "What would be done" if is_dry_run else "What was done"
    if not entries:
        return frame.section(title, tag("p", "Everything is kept as it is."))
    order = list(Action)
    worst = sorted(entries, key=lambda entry: (not entry.is_loss, -order.index(entry.action)))
    rows = [
        (
            Line(entry.action.value, ACTION_TONES.get(entry.action)),
            entry.path or "",
            f"{entry.start:,} to {entry.stop:,}"
            if entry.start is not None and entry.stop is not None and entry.stop > entry.start
            else "",
            _offsets(entry),
            entry.reason,
        )
        for entry in worst[:ROWS]
    ]
    more = f"{len(entries) - len(rows):,} more are not listed here; --json has all." if len(entries) > len(rows) else ""
    listed = table(("action", "file", "bytes", "offsets", "why"), rows, title, filtered=True, whole=False)
    return frame.section(title, listed, tag("p", more, class_="about") if more else Safe(""), name="entries")


def _offsets(entry: Entry) -> str:
    if entry.first_offset is None:
        return ""
    return (
        f"from {entry.first_offset:,} on"
        if entry.stop_offset is None
        else offset_range(entry.first_offset, entry.stop_offset)
    )


def _rest(report: Report, causes: Sequence[Cause]) -> Safe:
    sections = []
    if report.remaining:
        sections.append(frame.section("What is still wrong", listing(causes), name="remaining"))
    notes = [text(note, 600) for note in report.notes]
    notes += [
        text(f"{path}: left out: rawlog or the system does not know it; copy it yourself if you need it")
        for path in report.all_left_out
    ]
    notes += [text(f"{path}: left out: the system would not load it") for path in report.not_loaded]
    if notes:
        sections.append(frame.section("Notes", tag("ul", *(tag("li", note) for note in notes[:ROWS]), class_="notes")))
    if report.parts:
        rows = [
            (name, part.is_whole, len(part.with_action(Action.LOST, Action.DROPPED)))
            for name, part in report.parts.items()
        ]
        sections.append(
            frame.section(
                "Parts", table(("part", "whole", "losses"), rows[:ROWS], "Parts", sortable=True, filtered=True)
            )
        )
    return joined(sections)


def _plan(report: Report) -> list[Safe]:
    """The decisions of `rescue`: partitions, and the replicas that were found of each."""
    units: Sequence[Unit] = report.facts.get("plan") or ()
    if not units:
        return []
    rows = [
        (
            unit["name"],
            unit["action"] if unit["action"] != "rescue" else offset_range(unit["start"], unit["end"]),
            Line(_spans(unit["lost"]), Tone.BAD if unit["lost"] else None),
            _spans(unit["undecided"]),
            _spans(unit["divergent"]),
            unit["reason"],
        )
        for unit in units[:ROWS]
    ]
    copies = [
        (
            unit["name"],
            copy["disk"],
            copy["state"],
            offset_range(copy["start"], copy["end"]),
            _spans(copy["damage"]),
            copy["use"],
        )
        for unit in units
        for copy in unit["copies"]
    ]
    lost = [
        (
            unit["name"],
            _spans([loss]),
            *(when(None if loss[side] is None else loss[side] * 1000) for side in ("since", "until")),
            loss["reason"],
        )
        for unit in units
        for loss in unit["lost"]
    ]
    sections = []
    if lost:
        why = ("partition", "lost", "written after", "written before", "why")
        sections.append(frame.section("Lost", table(why, lost[:ROWS], "Lost", filtered=True, whole=False), name="lost"))
    head = ("partition", "result", "lost", "undecided", "divergent", "decided by")
    replica_head = ("partition", "disk", "state", "offsets", "damage", "use")
    listed = details(
        f"Replicas that were found: {len(copies):,}",
        table(replica_head, copies[:ROWS], "Replicas", filtered=True, whole=False),
    )
    sections.append(
        frame.section("Partitions", table(head, rows, "Partitions", filtered=True, whole=False), listed, name="plan")
    )
    return sections


def _spans(ranges: Sequence[Unit]) -> str:
    texts = [
        f"offsets from {offsets['start']:,} on"
        if offsets["stop"] is None
        else offset_range(offsets["start"], offsets["stop"])
        for offsets in ranges
    ]
    return ", ".join(texts[:3]) + (f", {counted(len(texts) - 3, 'more', 'more')}" if len(texts) > 3 else "")
