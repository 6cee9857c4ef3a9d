"""A fixed set of executions of the fuzzers, and every failure that was found: `make fuzz` tries for as long as it is asked to."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from rawlog.model.errors import CorruptError
from tests.fuzz import files, mutations, stores
from tests.fuzz.__main__ import fuzz

CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What verbs say about damage is not kept: a run says thousands of sentences."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("family", stores.FAMILIES)
def test_some_stores(family: str) -> None:
    count, problems = fuzz("stores", family, seed=27, executions=25, seconds=600)
    assert count == 25
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("family", stores.FAMILIES)
def test_some_files(family: str) -> None:
    count, problems = fuzz("files", family, seed=27, executions=1000, seconds=600)
    assert count == 1000
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.json")), ids=lambda path: path.stem)
def test_a_failure_stays_corrected(path: Path) -> None:
    module = files if path.stem.startswith("files-") else stores
    assert list(module.check(module.Case.from_json(path.read_text()))) == []


def test_a_case_is_the_same_again_and_can_be_kept() -> None:
    for family in stores.FAMILIES:
        for module in (files, stores):
            case = module.make(family, 27, 3)
            assert case == module.make(family, 27, 3) == type(case).from_json(case.to_json("a problem"))


def test_a_changed_field_gets_its_checksum_back() -> None:
    """Without this, each change of a field in a batch would be found by its checksum, and nothing after it would be tried."""
    checksums = [
        (structure, checksum)
        for structure in stores.store(stores.SMALL["kafka"][0]).structures.values()
        for checksum in structure.checksums
    ]
    assert {checksum.compute for _, checksum in checksums} <= set(mutations.CHECKSUMS)
    for structure, each in checksums:
        stored = int.from_bytes(structure.data[each.start : each.stop], "big")
        assert each.compute(structure.data[each.first : each.end]) == stored
    assert checksums


def test_a_reader_that_takes_a_changed_record_for_good_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle itself: a row whose value is none of the sound file."""
    bench = files.bench("kafka.log")
    data = bytearray(bench.samples[-1].data)
    data[75] ^= 1
    case = files.Case("kafka.log", bytes(data), "flipped at 75", len(bench.samples) - 1, is_right=False)
    assert list(files.check(case)) == []
    assert bench.contents
    monkeypatch.setattr(type(bench), "rows", lambda *_: ([{"key": b"another", "value": b"one"}], None))
    monkeypatch.setattr(type(bench.suite), "reference", lambda *_: {})
    assert any("a changed record is read as good" in problem for problem in files.check(case))


def test_an_error_that_verify_does_not_know_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = files.bench("kafka.log")
    case = files.Case("kafka.log", bench.samples[-1].data, "sound")
    assert list(files.check(case)) == []
    monkeypatch.setattr(type(bench), "rows", lambda *_: ([], CorruptError("damage", position=3)))
    monkeypatch.setattr(type(bench.suite), "reference", lambda *_: {})
    problems = list(files.check(case))
    assert problems
    assert all("reading refuses what verify finds nothing wrong with" in problem for problem in problems)


def test_a_crash_and_a_lost_record_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle itself: a verb that ends in an internal error, and one that gives no rows."""
    words = ["cat", "SRC", "--errors", "skip", "--json", "--bytes", "base64", "--show-secrets"]
    case = stores.Case("kafka-lz4", {}, words, "sound")
    assert list(stores.check(case)) == []
    run = stores.verbs.run
    with monkeypatch.context() as patch:

        def without_records(*given: object, **places: str) -> object:
            outcome = run(*given, **places)  # type: ignore[arg-type]
            outcome.records.clear()  # type: ignore[union-attr]
            return outcome

        patch.setattr(stores.verbs, "run", without_records)
        [problem] = stores.check(case)
        assert "whole frames are not in the result, and" in problem
    monkeypatch.setattr(stores.verbs.cli, "main", lambda *_, **__: 1 // 0)
    [problem] = stores.check(stores.Case("kafka-lz4", {}, ["count", "$"], "sound"))
    assert problem.startswith("exit code 1: ZeroDivisionError")
