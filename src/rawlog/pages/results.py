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
    """Findings of one rule: what it means, how often and where it was found, what helps."""

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
    said = tag(
        "div",
        tag("p", title, class_="state"),
        tag("p", sentence),
        tag("p", counts, class_="counts") if counts else "",
        class_="said",
    )
    return tag("section", said, next_steps(steps), class_=f"verdict {tone}", aria_label="Verdict")


def next_steps(steps: Sequence[Step]) -> Safe:
    """What to do next, as a list."""
    if not steps:
        return Safe("")
    items = (tag("li", one.text, command(one.command) if one.command else "") for one in steps)
    return tag("div", tag("h2", "What to do next"), tag("ol", *items), class_="steps")


def listing(causes: Sequence[Cause]) -> Safe:
    """All causes; those that matter are open."""
    if not causes:
        return tag("p", "No findings.", class_="about")
    return joined(_cause(one, at) for at, one in enumerate(causes))


def _cause(one: Cause, at: int) -> Safe:
    first = one.about.split("\n\n")[0].split(". ")[0].rstrip(".")
    summary = joined(
        (
            tag("span", one.severity.value, class_=f"badge {TONES[one.severity]}"),
            tag("span", text(first or one.code), class_="what"),
            tag("span", f"{counted(one.count, 'finding')} in {counted(one.files, 'file')}", class_="many"),
        )
    )
    rows = [
        (finding.path or "the files together", finding.position, finding.offset, _message(finding))
        for finding in one.places
    ]
    origin = tag("p", "All of these follow from the findings of ", tag("code", one.follows), ".") if one.follows else ""
    more = f"the first {len(rows):,} of {one.count:,}" if one.count > len(rows) else counted(one.count, "place")
    return details(
        summary,
        tag("p", tag("code", one.code), class_="code"),
        origin,
        prose(one.about) if one.about else "",
        *(tag("p", f"{step.text}: ", command(step.command), class_="helps") for step in one.commands),
        table(("file", "byte", "offset", "message"), rows, f"{one.code}: {more}"),
        is_open=at == 0 and one.severity is not Severity.INFO and not one.follows,
        class_=f"cause {TONES[one.severity]}",
    )


def _message(finding: Finding) -> str:
    more = [
        f"{name} {value}"
        for name, value in (("expected", finding.expected), ("found", finding.found))
        if value is not None
    ]
    return finding.message + (f" ({', '.join(more)})" if more else "")


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
    said = tag("div", tag("p", title, class_="state"), tag("p", sentence), class_="said")
    return tag("section", said, next_steps(steps), class_=f"verdict {tone}", aria_label="Result")


def cards(pairs: Iterable[tuple[str, Any]]) -> Safe:
    """Numbers in boxes."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", text(value))) for name, value in pairs), class_="cards")


# verify -------------------------------------------------------------------------------------------------------------------


def verify_page(found: Findings, causes: Sequence[Cause], steps: Sequence[Step], roots: Sequence[str]) -> str:
    """What `verify` found."""
    title = frame.title_of(roots)
    content = frame.main(
        verdict(found, steps),
        cards(
            (("Files", found.files), ("Frames", found.frames), ("Errors", found.errors), ("Warnings", found.warnings))
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
    rows = [_difference(one) for one in tally.items[:ROWS]]
    left = len(tally.items) - len(rows) + tally.unlisted
    more = tag("p", f"{left:,} more differences are not listed here.", class_="about") if left > 0 else Safe("")
    head = ("change", "what", "name", "offsets", "number", "columns", "in A", "in B")
    listed = table(head, rows, "Differences", filtered=True, whole=False) if rows else tag("p", "No differences.")
    sides = tag("p", "A is ", tag("code", a), ", B is ", tag("code", b), class_="about")
    passed = [frame.section("Damage", *(tag("p", text) for text in damage))] if damage else []
    content = frame.main(result, cards(numbers), frame.section("Differences", sides, listed, more), *passed)
    return frame.document(f"rawlog diff: {a} and {b}", frame.heading("diff", f"{a} and {b}"), content)


def _difference(one: Difference) -> tuple[Any, ...]:
    offsets = "" if one.start is None or one.stop is None else offset_range(one.start, one.stop)
    sides = [
        None if side is None else {name: side.get(name) for name in one.columns} or None for side in (one.a, one.b)
    ]
    return CHANGES[one.change], one.what, one.name, offsets, one.count, ", ".join(one.columns), *sides


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
    every = [one for one in report.all_entries() if one.action is not Action.KEPT]
    counts = {name: report.counts.get(name) or report.total(name) for name in _count_names(report)}
    shown = [(name.replace("_", " ").capitalize(), number) for name, number in counts.items() if number][:8]
    title = report.source or report.target
    parts = [
        result,
        cards(shown) if shown else Safe(""),
        *_plan(report),
        _entries(every, report.is_dry_run),
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


def _entries(every: Sequence[Entry], is_dry_run: bool) -> Safe:
    title = "What would be done" if is_dry_run else "What was done"
    if not every:
        return frame.section(title, tag("p", "Everything is kept as it is."))
    order = list(Action)
    worst = sorted(every, key=lambda one: (not one.is_loss, -order.index(one.action)))
    rows = [
        (
            Line(one.action.value, ACTION_TONES.get(one.action)),
            one.path or "",
            f"{one.start:,} to {one.stop:,}"
            if one.start is not None and one.stop is not None and one.stop > one.start
            else "",
            _offsets(one),
            one.reason,
        )
        for one in worst[:ROWS]
    ]
    more = f"{len(every) - len(rows):,} more are not listed here; --json has all." if len(every) > len(rows) else ""
    listed = table(("action", "file", "bytes", "offsets", "why"), rows, title, filtered=True, whole=False)
    return frame.section(title, listed, tag("p", more, class_="about") if more else Safe(""), name="entries")


def _offsets(one: Entry) -> str:
    if one.first_offset is None:
        return ""
    return (
        f"from {one.first_offset:,} on" if one.stop_offset is None else offset_range(one.first_offset, one.stop_offset)
    )


def _rest(report: Report, causes: Sequence[Cause]) -> Safe:
    made = []
    if report.remaining:
        made.append(frame.section("What is still wrong", listing(causes), name="remaining"))
    notes = [text(note, 600) for note in report.notes]
    notes += [
        text(f"{path}: left out: rawlog or the system does not know it; copy it yourself if you need it")
        for path in report.all_left_out
    ]
    notes += [text(f"{path}: left out: the system would not load it") for path in report.not_loaded]
    if notes:
        made.append(frame.section("Notes", tag("ul", *(tag("li", note) for note in notes[:ROWS]), class_="notes")))
    if report.parts:
        rows = [
            (name, part.is_whole, len(part.with_action(Action.LOST, Action.DROPPED)))
            for name, part in report.parts.items()
        ]
        made.append(
            frame.section(
                "Parts", table(("part", "whole", "losses"), rows[:ROWS], "Parts", sortable=True, filtered=True)
            )
        )
    return joined(made)


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
            _spans([one]),
            *(when(None if one[side] is None else one[side] * 1000) for side in ("since", "until")),
            one["reason"],
        )
        for unit in units
        for one in unit["lost"]
    ]
    made = []
    if lost:
        why = ("partition", "lost", "written after", "written before", "why")
        made.append(frame.section("Lost", table(why, lost[:ROWS], "Lost", filtered=True, whole=False), name="lost"))
    head = ("partition", "result", "lost", "undecided", "divergent", "decided by")
    found = ("partition", "disk", "state", "offsets", "damage", "use")
    listed = details(
        f"Replicas that were found: {len(copies):,}",
        table(found, copies[:ROWS], "Replicas", filtered=True, whole=False),
    )
    made.append(
        frame.section("Partitions", table(head, rows, "Partitions", filtered=True, whole=False), listed, name="plan")
    )
    return made


def _spans(found: Sequence[Unit]) -> str:
    texts = [
        f"offsets from {one['start']:,} on" if one["stop"] is None else offset_range(one["start"], one["stop"])
        for one in found
    ]
    return ", ".join(texts[:3]) + (f", {counted(len(texts) - 3, 'more', 'more')}" if len(texts) > 3 else "")
