"""Findings and rules: codes, severities, verdicts, and which rules run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawlog
from rawlog.model.errors import OptionError
from rawlog.model.finding import (
    Few,
    Finding,
    Findings,
    Mark,
    Severity,
    group_findings,
    rule,
)
from rawlog.model.table import FINDINGS
from rawlog.reading.inspect import RuleChoice
from rawlog.verbs.verify import all_rules, check_chosen
from tests.data.golden import golden_path


def finding(severity: Severity, code: str = "a.b.c") -> Finding:
    return Finding(code, severity, "path", "a.b", 1, 2, 3, "message", "expected", "found")


@pytest.mark.parametrize(
    ("severities", "verdict", "errors", "warnings"),
    [
        ([], "clean", 0, 0),
        ([Severity.INFO], "clean", 0, 0),
        ([Severity.INFO, Severity.WARNING], "suspect", 0, 1),
        ([Severity.WARNING, Severity.ERROR, Severity.ERROR], "damaged", 2, 1),
    ],
)
def test_the_worst_finding_gives_the_verdict(
    severities: list[Severity], verdict: str, errors: int, warnings: int
) -> None:
    findings = Findings([finding(severity) for severity in severities], files=3, frames=5)
    assert findings.summary() == {"verdict": verdict, "files": 3, "frames": 5, "errors": errors, "warnings": warnings}
    assert len(findings) == len(list(findings)) == len(severities)


def test_findings_are_rows_of_their_table() -> None:
    table = Findings([finding(Severity.ERROR)]).to_arrow()
    assert table.schema.equals(FINDINGS.schema)
    table.validate(full=True)
    assert table.to_pylist() == [
        {"code": "a.b.c", "severity": "error", "path": "path", "format": "a.b", "position": 1, "size": 2, "offset": 3,
         "message": "message", "expected": "expected", "found": "found"}
    ]  # fmt: skip
    assert Findings().to_arrow().schema.equals(FINDINGS.schema)


def test_a_rule_adds_what_a_mark_leaves_out() -> None:
    @rule("x.y.z", Severity.WARNING)
    def check(subject: int) -> list[Mark]:
        """What it means.

        What to do.
        """
        return [
            Mark("one", position=subject, found=b"x"),
            Mark("two", path="other", severity=Severity.INFO, expected=0),
        ]

    one, two = check.run(7, path="p", format="f")
    assert (one.code, one.severity, one.path, one.position, one.found) == ("x.y.z", Severity.WARNING, "p", 7, "b'x'")
    assert (two.severity, two.path, two.expected) == (Severity.INFO, "other", "0")
    assert check.about == "What it means.\n\nWhat to do."


def test_a_rule_without_words_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="needs a docstring"):
        rule("x.y.z", Severity.INFO)(lambda subject: [])


def test_every_rule_has_a_stable_code_and_a_page() -> None:
    rules = all_rules()
    codes = [one.code for one in rules]
    assert codes == sorted(set(codes))
    for one in rules:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+\.[a-z][a-z0-9-]*", one.code), one.code
        first, _, _ = one.about.partition("\n\n")
        assert first.endswith((".", ":")) or "." in first, one.code
        assert len(first) > 30, one.code


@pytest.mark.parametrize(
    ("only", "skip", "code", "taken"),
    [
        ((), (), "a.b.c", True),
        (("a.b.c",), (), "a.b.c", True),
        (("a.b",), (), "a.b.c", True),
        (("a",), (), "a.b.c", True),
        (("a.b.c",), (), "a.b.cd", False),
        (("a.b",), (), "a.bc.d", False),
        ((), ("a.b.c",), "a.b.c", False),
        ((), ("a",), "a.b.c", False),
        (("a",), ("a.b.c",), "a.b.c", False),
        (("a",), ("a.b.c",), "a.b.d", True),
    ],
)
def test_rules_are_chosen_by_code_or_its_first_words(
    only: tuple[str, ...], skip: tuple[str, ...], code: str, taken: bool
) -> None:
    assert RuleChoice(only, skip).takes(code) is taken


def test_a_rule_that_there_is_not_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match=r"did you mean .*replay\.recording\.framing"):
        check_chosen(RuleChoice(("replay.recording.faming",)))
    with pytest.raises(OptionError):
        rawlog.verify(golden_path("replay", "v2", "find.log"), skip=["nonsense"])
    assert check_chosen(RuleChoice(("replay", "rawlog.file")))


def test_a_file_of_no_known_format_is_worth_knowing(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"what is this")
    [found] = rawlog.verify(tmp_path)
    assert (found.code, found.severity, found.size) == ("rawlog.file.unknown", Severity.INFO, 12)


def test_damage_in_several_places_is_found_in_each(tmp_path: Path) -> None:
    whole = golden_path("replay", "v2", "basic.log").read_bytes()
    from tests.reference import replay

    entries = replay.decode(whole)[0]
    data = bytearray(whole)
    for number in (5, 20, 50):
        data[entries[number].position + 8] = 0x80
    (tmp_path / "x.log").write_bytes(data)
    findings = rawlog.verify(tmp_path)
    assert [(f.code, f.position, f.size) for f in findings] == [
        ("replay.recording.framing", entries[number].position, entries[number].size) for number in (5, 20, 50)
    ]
    assert findings.frames == 67


def test_a_rule_that_finds_millions_lists_the_first_and_counts_the_rest() -> None:
    """12 million records without a value in 8 KB of metadata log took more than 1.2 GB in verify; and of more than 20 bad records, the
    later ones were not mentioned at all.
    """
    worst = Severity.ERROR

    @rule("test.many", Severity.WARNING)
    def many(count: int) -> Iterator[Mark]:
        """Many."""
        yield from (
            Mark("odd", number, severity=worst if number == 10_005 else Severity.INFO) for number in range(count)
        )

    assert len(list(many.run(10_000, path="x", format=None))) == 10_000
    found = list(many.run(10_010, path="x", format=None))
    assert len(found) == 10_001
    assert (found[-1].severity, found[-1].position) == (worst, 10_005)
    assert found[-1].message == "10 more like this are not listed; one of them is here: odd"
    few = Few()
    for number in range(22):
        few.append(Mark("odd", number))
    assert [one.position for one in few] == list(range(20))
    assert [one.message for one in few][-1] == "3 more like this are not listed; one of them is here: odd"


def test_findings_that_say_the_same_are_one_group() -> None:
    def at(path: str, position: int | None, message: str = "wrong") -> Finding:
        return Finding("a.b.c", Severity.ERROR, path, "a.b", position, 1, None, message)

    found = [at("x/1", 5), at("x/1", 9), at("x/2", 5), at("x/1", 12, "other"), at("x/3", None), at("x/4", None)]
    groups = group_findings(found, [])
    assert [group.items for group in groups] == [found[:2], [found[2]], [found[3]], found[4:]]
    assert sum(len(group.items) for group in groups) == len(found)


def test_a_finding_belongs_to_its_cause_in_the_same_store() -> None:
    @rule("a.b.follows", Severity.WARNING, follows="a.b.cause", above=1)
    def follows(_: object) -> Iterator[Mark]:
        """Follows."""
        yield from ()

    def at(code: str, path: str, offset: int | None, message: str = "gone") -> Finding:
        return Finding(code, Severity.WARNING, path, "a.b", 0 if "cause" in code else None, None, offset, message)

    one, two = at("a.b.cause", "disk/one-0/5.log", 7), at("a.b.cause", "disk/two-0/5.log", 7)
    near = at("a.b.follows", "disk/checkpoint", 7, "two-0 ends at 7")
    far = [
        at("a.b.follows", "other/checkpoint", 7, "another store"),
        at("a.b.follows", "disk/checkpoint", 8, "another offset"),
        at("a.b.other", "disk/checkpoint", 7, "another rule"),
    ]
    groups = group_findings([near, one, two, *far], [follows])
    assert [group.first for group in groups] == [one, two, *far]
    assert [[other.first for other in group.following] for group in groups] == [[], [near], [], [], []]


def test_a_rule_follows_one_that_exists() -> None:
    codes = {one.code for one in all_rules()}
    assert {one.follows for one in all_rules() if one.follows is not None} <= codes


def test_nothing_there_is_never_clean(tmp_path: Path) -> None:
    """`verify` of an empty directory ended with 3, and yet called it clean."""
    findings = rawlog.verify(tmp_path)
    assert (findings.verdict, findings.summary()["verdict"], findings.exit_code) == ("unknown", "unknown", 3)


@pytest.mark.parametrize(
    ("message", "expected", "found", "text"),
    [
        ("the checksum does not match", "1f", "2e", "the checksum does not match (expected 1f, found 2e)"),
        ("size -1, 0 to 1,048,576 expected", "0 to 1048576", "-1", "size -1, 0 to 1,048,576 expected"),
        ("offset 126, 123 expected", "123", "12", "offset 126, 123 expected (found 12)"),
    ],
)
def test_a_value_that_the_message_names_is_not_said_again(message: str, expected: str, found: str, text: str) -> None:
    assert Finding("a.b.c", Severity.ERROR, None, None, 0, 0, None, message, expected, found).text == text
