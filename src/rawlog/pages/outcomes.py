"""The pages of `verify`, `diff` and the verbs that write: what was found or done, and whether anything was lost."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rawlog.core.difference import Change, Difference, Tally
from rawlog.core.findings import Findings
from rawlog.core.report import Action, Entry, Report
from rawlog.core.text import counted, offset_range
from rawlog.core.verb import Line, Tone
from rawlog.pages import findings, frame
from rawlog.pages.findings import Cause, Step
from rawlog.pages.markup import Safe, details, joined, table, tag, text, when

#: So many rows of one table are on a page; all are counted.
ROWS = 1000
Unit = Mapping[str, Any]
CHANGES = {
    Change.ONLY_A: Line("only in A", Tone.BAD),
    Change.ONLY_B: Line("only in B", Tone.GOOD),
    Change.DIFFERS: Line("differs", Tone.CHANGED),
}
TONES = {
    Action.LOST: Tone.BAD, Action.DROPPED: Tone.BAD, Action.CHANGED: Tone.CHANGED, Action.UNDECIDED: Tone.CHANGED,
    Action.ADDED: Tone.CHANGED,
}  # fmt: skip


def banner(title: str, sentence: str, tone: str, steps: Sequence[Step] = ()) -> Safe:
    """The result in large letters, and what to do next."""
    said = tag("div", tag("p", title, class_="state"), tag("p", sentence), class_="said")
    return tag("section", said, findings.next_steps(steps), class_=f"verdict {tone}", aria_label="Result")


def cards(pairs: Iterable[tuple[str, Any]]) -> Safe:
    """Numbers in boxes."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", text(value))) for name, value in pairs), class_="cards")


# verify -------------------------------------------------------------------------------------------------------------------


def verify_page(found: Findings, causes: Sequence[Cause], steps: Sequence[Step], roots: Sequence[str]) -> str:
    """What `verify` found."""
    title = frame.title_of(roots)
    content = frame.main(
        findings.verdict(found, steps),
        cards(
            (("Files", found.files), ("Frames", found.frames), ("Errors", found.errors), ("Warnings", found.warnings))
        ),
        frame.section("Findings", findings.listing(causes), name="findings"),
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
            Line(one.action.value, TONES.get(one.action)),
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
        made.append(frame.section("What is still wrong", findings.listing(causes), name="remaining"))
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
