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
    about = sections()[row][0] if row in sections() else ABOUT.get(row, "")
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
    ("S7", "rocketmq", "erase.*", "crash"),
    ("24", "rocketmq.*start-zeroed", ".*", "crash"),
    ("2", "tail-after-clean-stop", ".*", ".*"),
    ("rule 5 ⌂", "/tail-", "convert|ingest", ".*"),
    ("21b", "/tail-", ".*", ".*"),
    ("1", "kafka-whole/.*gone", ".*", ".*"),
    ("3", "meta-properties", ".*", ".*"),
    ("new 1", ".", "erase.*|compact", ".*"),
    ("new 2", "kafka-lz4/(none|tail|derived|first-file-expired|.*without-indexes)", "rescue", "code"),
    ("rule 3", "kafka-lz4/.*(missing-with-derived|without-indexes)", ".*", "code"),
    ("new 3", "rocketmq-broker/", "verify-complete", "code|disagrees"),
    ("new 6", "kraft.*middle", "repair", "silent"),
    ("new 4", "rocketmq.*/(bit-first|start-zeroed)", "diff", ".*"),
    ("new 5", "rocketmq.*field", "rescue-replica", "code"),
    ("22", "ambry.*segment-header", ".*", ".*"),
    ("15", "rocketmq", "cat|count|tail|convert", "loses|count"),
    ("25 ⌂", ".", "diff", "count"),
    ("rule 5 ⌂", ".", "convert|ingest|diff", ".*"),
    ("rule 5, look", ".", "cat|count|tail", ".*"),
    ("23", ".", "rebuild", ".*"),
    ("12", "ambry.*(duplicate|foreign)", ".*", ".*"),
    ("18", "ambry.*(missing|empty)", ".*", ".*"),
    ("26", "rocketmq.*(field|inserted|missing|length)", ".*", ".*"),
    ("28", "(rocketmq|ambry)", "repair", "unstable"),
    ("9 ⌂", "base-offset-.*log-end", ".*", ".*"),
    ("29", "base-offset|leader-epoch|field", "rescue", "code"),
    ("19 ⌂", "base-offset|leader-epoch", "restore", ".*"),
    ("21 ⌂", "base-offset.*segment-end", "repair", ".*"),
    ("21a ⌂", "base-offset", "repair", ".*"),
    ("rule 2 ⌂", "base-offset", "rescue.*", ".*"),
    ("21b", "recording-cut", ".*", ".*"),
    ("rule 2 ⌂", "garbage-inserted", "rescue", ".*"),
    ("7 ⌂", "frame-missing", ".*", ".*"),
    ("6", "first-file", ".*", ".*"),
    ("8", "end-cut-inside", "restore", ".*"),
    ("5", "end-cut-between|last-file", "restore", ".*"),
    ("13 ⌂", "kraft.*(foreign|duplicate)", ".*", ".*"),
    ("11 ⌂", "duplicate|foreign", ".*", ".*"),
    ("14a ⌂", "swapped-first-last", "rescue.*", ".*"),
    ("20 ⌂", "swapped|renamed", "rescue.*|restore", ".*"),
    ("rule 2 ⌂", "legacy-compacted/.*middle-file", ".*", ".*"),
    ("27", "legacy-compacted/none", "rescue", ".*"),
    ("14 ⌂", "legacy-(codecs|compacted)/(bit|zeroed|bytes|garbage|length|start)", "rescue.*", ".*"),
]
ABOUT: dict[str, str] = {
    "S7": "erase of a RocketMQ store ends with an internal error",
    "1": "the directory of a partition is deleted: verify, repair and others say nothing",
    "2": "zeros after a log that was stopped cleanly: no finding, and a broker refuses to start",
    "3": "`meta.properties` is gone and nobody says so",
    "5": "a log that ends below the high watermark: restore says that all is whole",
    "6": "the first segment is deleted, and evidence contradicts retention",
    "7 ⌂": "one batch cut out of a segment",
    "8": "an unfinished last batch that the high watermark confirms: restore says nothing",
    "9 ⌂": "a wrong base offset of the last batch",
    "11 ⌂": "a duplicated or foreign segment is renumbered to fit its name",
    "12": "Ambry: a foreign segment",
    "13 ⌂": "KRaft: a segment of another metadata log",
    "14 ⌂": "legacy: damage before a compressed message set",
    "14a ⌂": "first and last segment swapped: rescue renumbers",
    "15": "RocketMQ: verbs that read drop messages that are not at their place",
    "18": "Ambry: a log segment is gone",
    "19 ⌂": "restore --errors skip after one wrong base offset",
    "20 ⌂": "swapped or renamed segments: rescue and restore lose records, repair none",
    "21 ⌂": "repair drops the last batch of a segment with a wrong base offset",
    "21a ⌂": "a base offset that is too high: repair keeps the wrong batch and drops the next",
    "21b": "garbage or an unfinished frame after the end of a log is reported as a loss",
    "22": "Ambry: one bit in the header of a segment",
    "23": "rebuild accepts damage",
    "24": "the first 4 KiB of a RocketMQ commit log are zeros: internal error",
    "25 ⌂": "diff refuses exactly when one wants to see what differs",
    "26": "RocketMQ: a message that names its place is dropped all the same",
    "27": "a false alarm: rescue of an undamaged legacy compacted partition",
    "28": "repair twice is not the same",
    "29": "rescue corrects in silence",
    "rule 2 ⌂": "repair, rescue and restore decide by themselves what is sound: different answers to one wound",
    "rule 5 ⌂": "verbs that read everything do not give the rows that repair would keep, or do not report the losses",
    "rule 5, look": "verbs that look say nothing of what they pass",
    "rule 3": "a hole that nothing tells from compaction is reported as a loss",
    "new 1": "erase and compact accept a store with wrong base offsets or epochs, holes or a lost end: exit 0, and the fault is copied",
    "new 2": "rescue of a sound partition without a high watermark: all of it is undecided, exit 1",
    "new 3": "verify --complete of a sound RocketMQ store with an open half message: a warning, exit 1",
    "new 4": "diff of a RocketMQ store whose first message is damaged: wrong usage, exit 2, as if it had one topic",
    "new 5": "rescue of a RocketMQ store with a sound replica corrects a message that the replica has unharmed: exit 1",
    "new 6": "repair of a metadata log without a file in the middle begins at a snapshot and does not name the offsets that are gone",
    UNSORTED: "find the row of each, or describe it under `new`",
}
