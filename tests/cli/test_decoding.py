"""Decoded keys and values on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest

import rawlog
from rawlog.reading.erasure import seal
from tests.data.golden import golden_path

CONFLUENT = golden_path("schemas", "confluent", "data")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cat", "{topic}", "--json"),
        ("head", "{topic}", "--json", "-n", "1000"),
        ("convert", "{topic}", "{out}/rows.jsonl", "--to", "jsonl"),
        ("query", "SELECT value, value_error FROM records", "{topic}", "--engine", "duckdb", "--json"),
        ("ingest", "{topic}", "--to", "{out}/lake", "--engine", "local"),
        ("erase", "{topic}", "{out}/erased", "--where", "offset < 0"),
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


@pytest.mark.parametrize("how", ["auto", "json"])
def test_an_erasure_that_could_not_look_into_all_values_is_not_done(run, tmp_path: Path, how: str) -> None:
    """Values without a schema were JSON texts without fields, and no expression was true of them: nothing was erased, exit 0."""
    rows = [{"key": b"k", "value": b'{"user": "alice"}', "offset": 0}, {"key": b"k", "value": b"\xff", "offset": 1}]
    rawlog.write(tmp_path / "src", rows, format="kafka", topic="orders", partition=0)
    asked = ("erase", tmp_path / "src", tmp_path / "dst", "--decode", f"value={how}", "--where")
    ran = run(*asked, "value.user = 'alice'")
    words = {"auto": "2 values not looked into: nothing names a schema", "json": "1 value not decoded"}[how]
    assert ran.code == 1
    assert words in ran.text
    assert "; something was not read or not decoded:\n" in ran.text
    assert run(*asked, "key = 'k'", "--force").code == (0 if how == "auto" else 1)


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


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log directory whose `_schemas` has Protobuf schemas with references that are named as modules of Python, and records that name
    them. Whoever imports such a module writes the file `ran` next to the directory.
    """
    folder = tmp_path_factory.mktemp("hostile")
    attack = f"open({str(folder / 'ran')!r}, 'a').write(__file__)\n"
    names = ["grpc_tools.py", "grpc_tools/__init__.py", "sitecustomize.py", "google.py", "resource.py", "encodings.py"]
    rows = []
    for number, name in enumerate(names, 1):
        subjects = [
            (f"module{number}", attack, []),
            (f"orders{number}-value", f'import "{name}";', [f"module{number}"]),
        ]
        for place, (subject, text, uses) in enumerate(subjects):
            key = {"keytype": "SCHEMA", "subject": subject, "version": 1, "magic": 1}
            value = {"subject": subject, "version": 1, "id": 10 * number + place, "schemaType": "PROTOBUF"}
            value["schema"] = text if not uses else f'syntax = "proto3"; {text} message M {{ int32 x = 1; }}'
            value["references"] = [{"name": name, "subject": one, "version": 1} for one in uses]
            rows.append(("_schemas", json.dumps(key).encode(), json.dumps(value).encode()))
        rows.append((f"orders{number}", b"k", bytes([0, 0, 0, 0, 10 * number + 1, 0, 8, 1])))
    offsets = [sum(other[0] == row[0] for other in rows[:place]) for place, row in enumerate(rows)]
    columns = {"topic": [row[0] for row in rows], "partition": pa.array([0] * len(rows), pa.int32()), "offset": offsets}
    columns |= {"key": [row[1] for row in rows], "value": [row[2] for row in rows]}
    rawlog.write(folder / "logs", pa.table(columns), format="kafka")
    return folder / "logs"


@pytest.mark.parametrize(
    "arguments",
    [
        ("cat", "{logs}", "--json"),
        ("count", "{logs}", "--where", "value.x = 1"),
        ("query", "SELECT value, value_error FROM records", "{logs}", "--engine", "duckdb", "--json"),
        ("convert", "{logs}", "{out}/rows.jsonl", "--to", "jsonl"),
        ("ingest", "{logs}", "--to", "{out}/lake", "--engine", "local"),
        ("erase", "{logs}", "{out}/erased", "--where", "value.x = 2"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_schema_runs_no_code(run, hostile: Path, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    """protoc was a module that Python looked for where the texts of references were: one named `grpc_tools.py` was imported and run."""
    ran = run(*(one.format(logs=hostile, out=tmp_path) for one in arguments), "--decode", "value=auto")
    assert not (hostile.parent / "ran").exists()
    assert "6 values not decoded" in ran.err + ran.text
    if arguments[0] in ("cat", "query"):
        rows = [row for row in ran.rows if "value_error" in row and row["value_error"] == "bad_schema"]
        assert len(rows) == 6, ran.text


def test_the_browser_runs_no_code_of_schemas(hostile: Path) -> None:
    from urllib.request import urlopen

    from rawlog.pages.browser.server import Server

    with Server([str(hostile)]) as server:
        for page in ("rows?decode=value%3Dauto", "export?as=jsonl&decode=value%3Dauto"):
            with urlopen(f"http://{server.host}:{server.port}/{server.token}/{page}") as answer:
                assert answer.status == 200
    assert not (hostile.parent / "ran").exists()


def test_a_certificate_names_no_schemas(run, hostile: Path, tmp_path: Path) -> None:
    """It may be anybody's file. One that says `decode` made `verify` compile schemas that nobody had asked for."""
    out, proof = tmp_path / "out", tmp_path / "out.certificate.json"
    assert run("erase", hostile, out, "--topic", "orders1", "--key", "nobody").code == 0
    made = json.loads(proof.read_text())
    made["asked"] |= {"where": "value.x = 2", "decode": "value=auto"}
    for place in ({}, {"schemas": str(hostile)}):
        made["asked"] |= place
        proof.write_text(json.dumps({**made, "sha256": seal(made)}))
        ran = run("verify", out, "--certificate", proof)
        assert (ran.code, ran.text) == (2, "")
        assert "name their schemas with --schemas" in ran.err
    made["asked"] |= {"mask": "value=hash", "mask_secret_file": str(hostile / "nowhere")}
    proof.write_text(json.dumps({**made, "sha256": seal(made)}))
    assert run("verify", out, "--certificate", proof, "--schemas", hostile).code in (0, 1)
    assert not (hostile.parent / "ran").exists()
