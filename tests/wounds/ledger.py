"""The ledger of known failures, `known.txt`: which checks fail for which outcome, by the row of the issue that names the fault.

It is strict in both directions: a failure that is not listed fails its test, and so does a listed one that passes. A section begins with
`== ROW` and a line about it; ⌂ marks rows that wait for the outline. `new` is for faults that no row names. A line is
`SUBJECT/WOUND: VERB CHECK CHECK; VERB CHECK`. `python -m tests.wounds --ledger` writes it again: failures keep their section, others go to
where SUGGESTIONS puts them, or to `unsorted`, which no test accepts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PATH = Path(__file__).with_name("known.txt")
UNSORTED = "unsorted"

#: Subject and wound -> verb and check that fail.
Failures = dict[str, set[tuple[str, str]]]


@cache
def sections() -> dict[str, tuple[str, dict[str, set[tuple[str, str]]]]]:
    """The sections by row: what the row is about, and the failures of each subject and wound."""
    found: dict[str, tuple[str, Failures]] = {}
    row = UNSORTED
    for line in PATH.read_text().splitlines() if PATH.exists() else ():
        if line.startswith("== "):
            row, _, about = line[3:].partition(": ")
            found[row] = about, defaultdict(set)
        elif line and not line.startswith("#"):
            case, _, verbs = line.partition(": ")
            for verb in verbs.split("; "):
                name, *checks = verb.split()
                found[row][1][case] |= {(name, check) for check in checks}
    return found


def known(case: str) -> set[tuple[str, str]]:
    """The verbs and checks that are known to fail for a subject and wound."""
    return {failure for _, failures in sections().values() for failure in failures.get(case, ())}


def row_of(case: str, failure: tuple[str, str]) -> str | None:
    """The section of a known failure."""
    return next((row for row, (_, failures) in sections().items() if failure in failures.get(case, ())), None)


def write(seen: Failures, only: Iterable[str] = ()) -> None:
    """Write the ledger again with the failures that were seen; cases that did not run stay as they are."""
    ran = set(only)
    rows: dict[str, Failures] = {row: defaultdict(set) for row in sections()}
    for row, (_, failures) in sections().items():
        for case, listed in failures.items():
            kept = listed if case not in ran else listed & seen.get(case, set())
            if kept:
                rows[row][case] = set(kept)
    for case, failures in seen.items():
        for failure in failures:
            if row_of(case, failure) is None:
                rows.setdefault(suggest(case, failure), defaultdict(set))[case].add(failure)
    PATH.write_text("".join(_section(row, rows[row]) for row in rows if rows[row] or row in sections()).lstrip("\n"))


def _section(row: str, failures: Failures) -> str:
    about = ABOUT.get(row) or (sections()[row][0] if row in sections() else "")
    lines = [f"\n== {row}: {about}"]
    for case in sorted(failures):
        verbs = sorted({verb for verb, _ in failures[case]})
        parts = [" ".join([verb, *sorted(check for name, check in failures[case] if name == verb)]) for verb in verbs]
        lines.append(f"{case}: {'; '.join(parts)}")
    return "\n".join(lines) + "\n"


def suggest(case: str, failure: tuple[str, str]) -> str:
    """The section that a failure probably belongs to: a person looks at it."""
    verb, check = failure
    for row, cases, verbs, checks in SUGGESTIONS:
        if re.search(cases, case) and re.fullmatch(verbs, verb) and re.fullmatch(checks, check):
            return row
    return UNSORTED


#: Row, pattern of subject and wound, of verbs, of checks. The first that fits is taken.
SUGGESTIONS = [
    ("13 ⌂", "kraft.*(foreign|duplicate)", ".*", ".*"),
    ("25 ⌂", ".", "diff", "count"),
    ("rule 5 ⌂", ".", "convert|ingest|diff", ".*"),
    ("rule 2 ⌂", "frame-missing-without-indexes", "rescue.*", ".*"),
    ("rule 2 ⌂", "legacy-compacted/.*middle-file", ".*", ".*"),
    ("7 ⌂", "(kafka|legacy|kraft).*/frame-missing", ".*", ".*"),
    ("9 ⌂", "base-offset-.*log-end", ".*", ".*"),
    ("new 5", "rocketmq.*field", "rescue-replica", "code"),
    ("rule 5 ⌂", "rocketmq.*/queue-field", "cat|count|tail", ".*"),
    ("rule 4 ⌂", ".", "erase.*|compact", ".*"),
    ("14a ⌂", "swapped-first-last", "rescue.*", ".*"),
    ("20 ⌂", "swapped|renamed", "rescue.*|restore", ".*"),
    ("11 ⌂", "(kafka|legacy|rocketmq).*/(duplicate|foreign)", ".*", ".*"),
    ("19 ⌂", "base-offset|leader-epoch", "restore", ".*"),
    ("21 ⌂", "base-offset.*segment-end", "repair", ".*"),
    ("21a ⌂", "base-offset|kraft.*length", "repair", ".*"),
    ("rule 2 ⌂", "base-offset|garbage-inserted", "rescue.*", ".*"),
    ("14 ⌂", "legacy-(codecs|compacted)/(bit|zeroed|bytes|garbage|length|start)", "rescue.*|restore", ".*"),
]
#: What each row is about, as the ledger says it. A row without ⌂ is a debt of the redesign all the same, or waits for its owner.
ABOUT: dict[str, str] = {
    "7 ⌂": "one batch cut out of a segment",
    "9 ⌂": "a wrong base offset of the last batch",
    "11 ⌂": "a duplicated or foreign segment is renumbered to fit its name, or dropped in silence",
    "13 ⌂": "KRaft: a segment of another metadata log",
    "14 ⌂": "legacy: damage before a compressed message set",
    "14a ⌂": "first and last segment swapped: rescue renumbers",
    "19 ⌂": "restore --errors skip after one wrong base offset or leader epoch",
    "20 ⌂": "swapped or renamed segments: rescue and restore lose records, repair none",
    "21 ⌂": "repair drops the last batch of a segment with a wrong base offset",
    "21a ⌂": "a base offset that is too high: repair keeps the wrong batch and drops the next; in KRaft it begins at a later snapshot",
    "25 ⌂": "diff refuses exactly when one wants to see what differs",
    "rule 2 ⌂": "repair, rescue and restore decide by themselves what is sound: different answers to one wound",
    "rule 4 ⌂": "erase and compact take placement from the outline: until then wrong offsets, names and copies stay, as findings",
    "rule 5 ⌂": "verbs that read everything do not give the rows that repair would keep, or do not report the losses",
    "new 5": "rescue of a RocketMQ store with a sound replica corrects a message that the replica has unharmed: exit 1",
    UNSORTED: "find the row of each, or describe it under `new`",
}
