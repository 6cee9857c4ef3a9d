"""A fixed set of executions of the fuzzer, and every failure that was found: `make fuzz` tries for as long as it is asked to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawlog
from tests import fuzz

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.json"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What verbs say about damage is not kept: a run says thousands of sentences."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("family", fuzz.FAMILIES)
def test_some_executions(family: str, tmp_path: Path) -> None:
    count, problems = fuzz.fuzz(family, seed=27, executions=40, seconds=600, folder=None)
    assert count == 40
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_was_found_stays_corrected(path: Path) -> None:
    assert list(fuzz.check(fuzz.Case.from_json(path.read_text()))) == []


@pytest.mark.parametrize("number", [1032, 1065])
def test_partitions_of_a_topic_whose_record_is_damaged(number: int) -> None:
    """Metadata with partitions of a topic id without a topic ended `verify` and `repair` in a KeyError. Ids differ from run to run."""
    assert list(fuzz.check(fuzz.made("kafka", 4, number))) == []


def test_a_case_is_the_same_again_and_can_be_kept() -> None:
    for family in fuzz.FAMILIES:
        case = fuzz.made(family, 27, 3)
        assert case == fuzz.made(family, 27, 3) == fuzz.Case.from_json(case.to_json("a problem"))


def test_a_changed_field_gets_its_checksum_back() -> None:
    """Without this, each change of a field in a batch would be found by its checksum, and nothing after it would be tried."""
    subject = fuzz.store(fuzz.SMALL["kafka"][0])
    assert {each.compute for each in subject.checksums} <= set(fuzz.CHECKSUMS)
    for each in subject.checksums:
        data = subject.files[each.file]
        assert each.compute(data[each.first : each.end]) == int.from_bytes(data[each.start : each.stop], "big")
    assert subject.checksums


def test_a_lost_record_and_a_crash_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle itself: a reader that gives no rows, and a verb that ends in an internal error."""
    data = bytearray(fuzz.store("replay-v2").files["basic.log"])
    data[-1] ^= 1
    case = fuzz.Case(
        "replay-v2", {"basic.log": bytes(data)}, ["cat", fuzz.calls.SOURCE], "basic.log: flipped at the end"
    )
    assert list(fuzz.check(case)) == []
    nothing = rawlog.rows(fuzz.store("replay-v2").sound.root, limit=0)
    with monkeypatch.context() as patch:
        patch.setattr(rawlog, "rows", lambda *_, **__: nothing)
        assert [problem.partition(" ")[2][:28] for problem in fuzz.check(case)] == ["records of untouched frames "]
    monkeypatch.setattr(fuzz.cli, "main", lambda *_, **__: 1 // 0)
    [problem] = fuzz.check(case)
    assert problem.startswith("exit code 1: ZeroDivisionError")
