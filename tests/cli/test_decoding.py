"""Decoded keys and values on the command line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.golden_data import golden_path

CONFLUENT = golden_path("schemas", "confluent", "data")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cat", "{topic}", "--json"),
        ("head", "{topic}", "--json", "-n", "1000"),
        ("convert", "{topic}", "{out}/rows.jsonl", "--to", "jsonl"),
        ("query", "SELECT value, value_error FROM records", "{topic}", "--engine", "duckdb", "--json"),
        ("ingest", "{topic}", "--to", "{out}/lake", "--engine", "local"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_values_that_are_not_decoded_are_exit_code_1(run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """It was 0 in all verbs, so that a script could not know."""
    for topic, code in (("events", 0), ("awkward", 1)):
        given = [one.format(topic=CONFLUENT / f"{topic}-0", out=tmp_path / topic) for one in arguments]
        (tmp_path / topic).mkdir()
        ran = run(*given, "--decode", "value=auto,key=auto")
        assert ran.code == code, ran.err
        assert ("values not decoded" in ran.err + ran.text) == bool(code)
        assert "keies" not in ran.err + ran.text


def test_a_run_that_did_not_decode_all_does_not_call_the_source_clean_alone(run, tmp_path: Path) -> None:
    """`ingest --decode` ended with "clean" and exit code 1."""
    ran = run(
        "ingest", CONFLUENT / "awkward-0", "--to", tmp_path / "lake", "--engine", "local", "--decode", "value=auto"
    )
    number = sum(map(int, re.findall(r"(\d+) values? not decoded", ran.err)))
    assert number > 1
    assert ran.code == 1
    assert f"clean, but {number} values were not decoded" in ran.text.splitlines()
    ran = run(
        "ingest", CONFLUENT / "events-0", "--to", tmp_path / "sound", "--engine", "local", "--decode", "value=auto"
    )
    assert (ran.code, "clean" in ran.text.splitlines()) == (0, True)


def test_rows_are_counted_by_decoded_fields(run) -> None:
    """`count` had no --decode, although it counts what `cat` prints with the same options."""
    asked = (CONFLUENT / "orders-0", "--decode", "value=auto", "--where", "value.id IS NOT NULL")
    shown = len(run("cat", *asked, "--json").rows)
    assert shown
    assert run("count", *asked).text == f"{shown}\n"
    assert run("count", CONFLUENT / "orders-0", "--where", "value.id IS NOT NULL").text == "0\n"
    every = run("count", CONFLUENT / "orders-0", "--decode", "value=auto")
    assert (every.code, every.text) == (0, run("count", CONFLUENT / "orders-0").text)


def test_rows_after_the_limit_are_not_decoded(run) -> None:
    """All rows of the batch were decoded and counted: a note, and an exit code, about values that nobody sees."""
    ran = run("cat", CONFLUENT / "awkward-0", "--decode", "value=auto", "--json")
    good = next(number for number, row in enumerate(ran.rows) if row["value_error"] is not None)
    assert good
    head = run("head", CONFLUENT / "awkward-0", "--decode", "value=auto", "--json", "-n", good)
    assert (head.code, head.err, head.rows) == (0, "", ran.rows[:good])
    assert run("head", CONFLUENT / "awkward-0", "--decode", "value=auto", "-n", good + 1).code == 1
    asked = ("--columns", "offset,value.id", "--where", "offset > 0", "-n", "2")
    assert len(run("cat", CONFLUENT / "orders-0", "--decode", "value=auto", "--json", *asked).rows) == 2
