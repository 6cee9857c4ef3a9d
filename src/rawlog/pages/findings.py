"""Findings on a page: grouped by cause, explained, with the commands that help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rawlog.core.findings import Finding, Findings, Severity
from rawlog.core.text import counted
from rawlog.pages.markup import Safe, command, details, joined, prose, table, tag, text

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
