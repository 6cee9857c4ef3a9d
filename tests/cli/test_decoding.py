"""Decoded keys and values on the command line."""

from __future__ import annotations

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
