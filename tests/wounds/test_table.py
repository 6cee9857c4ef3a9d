"""Nothing is left out: every verb, family, kind of wound and entry of the ledger has its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from rawlog import registry
from rawlog.cli import cli
from tests.wounds import ledger, suite
from tests.wounds.table import table
from tests.wounds.verbs import CLASSES, NOT_JUDGED, VERBS, Verb, run
from tests.wounds.wounds import WOUNDS, Copy, Unfit


def test_every_verb_is_in_a_class_or_says_why_not() -> None:
    judged = {verb.command for verb in VERBS}
    commands = set(cli.list_commands(None))  # type: ignore[arg-type]
    assert commands == judged | NOT_JUDGED.keys()
    assert not judged & NOT_JUDGED.keys()
    assert {verb.cls for verb in VERBS} == set(CLASSES)


def test_every_family_has_subjects() -> None:
    assert {family.name for family in registry.families()} == {
        subject.family.name for subject in suite.SUBJECTS.values()
    }


def test_every_verb_that_a_family_writes_stores_with_is_run_on_it() -> None:
    for family in registry.families():
        ran = {verb.command for verb in VERBS if family.name not in verb.not_for}
        rewrites = (
            set(family.store_class.rewrites)
            | ({"restore"} if family.store_class.can("restorer") else set())
            | ({"rescue"} if family.store_class.can("rescuer") else set())
        )
        hosted = {"restore", "rescue"} if family.name == "kraft" else set()  # it carries out those of Kafka
        assert rewrites - hosted <= ran | ELSEWHERE.get(family.name, set()), family.name


#: Verbs that a family has and whose results are not the records of its subjects.
ELSEWHERE = {"kraft": {"compact", "erase"}}


def test_the_page_and_the_wounds_name_the_same_kinds() -> None:
    used = {"nothing"}
    for subject, name in suite.cases():
        with suite.workplace() as folder:
            try:
                copy = Copy(suite.judge(subject).sound, Path(folder) / "store")
                WOUNDS[name].act(copy)
            except Unfit:
                continue
        assert copy.kinds, f"{subject}/{name} has no kind"
        used |= set(copy.kinds)
    assert used == table().keys()


def test_the_ledger_names_only_cases_that_exist() -> None:
    cases = {f"{subject}/{name}" for subject, name in suite.cases()}
    listed = {case for _, failures in ledger.sections().values() for case in failures}
    assert listed <= cases
    assert ledger.UNSORTED not in ledger.sections()


def test_there_are_at_least_two_thousand_outcomes() -> None:
    assert sum(len(suite.judge(subject).verbs(suite.shares(subject, name))) for subject, name in suite.chosen()) > 2000


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name)
def test_nothing_there_is_never_clean(verb: Verb, tmp_path: Path) -> None:
    """A directory without a file of a known format: exit code 3 in every verb."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "README.txt").write_text("no store\n")
    places = {"SRC": tmp_path / "src", "SOUND": tmp_path / "src", "REPLICA": tmp_path / "src", "KEY": "key"}
    outcome = run(
        verb,
        suite.SUBJECTS["kafka-node"].family,
        tmp_path / "dst",
        **{name: str(place) for name, place in places.items()},
    )
    assert (outcome.code == table()["nothing"][verb.cls]) == (verb.name not in NOTHING), f"exit {outcome.code}"


#: Verbs that do not do it yet: rule 6.
NOTHING: frozenset[str] = frozenset()
