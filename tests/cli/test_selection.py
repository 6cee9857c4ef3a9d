"""Selections on the command line: every verb answers a wrong name alike, and finds messages and blobs by key and id."""

from __future__ import annotations

from pathlib import Path

import pytest

import rawlog
from tests.data.golden import golden_path

KAFKA = golden_path("kafka", "broker-3.9.2", "data")
ROCKETMQ = golden_path("rocketmq", "broker-5.3.3", "store")
AMBRY = golden_path("ambry", "store-small")


@pytest.mark.parametrize(
    "arguments",
    [
        ("cat", KAFKA),
        ("head", KAFKA),
        ("tail", KAFKA),
        ("count", KAFKA),
        ("ls", KAFKA),
        ("cluster", KAFKA),
        ("diff", KAFKA, KAFKA),
        ("convert", KAFKA, "{out}/rows.jsonl", "--to", "jsonl"),
        ("compact", KAFKA, "{out}/copy"),
        ("restore", KAFKA, "{out}/copy"),
        ("ingest", KAFKA, "--to", "{out}/lake", "--engine", "local"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_topic_that_is_not_there_is_exit_code_2(run, tmp_path: Path, arguments: tuple[object, ...]) -> None:
    """All but `restore` gave nothing, and exit code 0."""
    given = [str(one).format(out=tmp_path) for one in arguments]
    ran = run(*given, "--topic", "codec-gzp")
    assert ran.code == 2
    assert "codec-gzip" in ran.err
    assert not list(tmp_path.iterdir())


def test_a_pattern_that_matches_nothing_is_a_note(run) -> None:
    ran = run("count", KAFKA, "--topic", "zz*")
    assert (ran.code, ran.text.strip()) == (0, "0")
    assert "note: --topic zz*: no topic matches" in ran.err


def test_a_table_without_the_column_stays_whole_and_says_so(run) -> None:
    whole = run("cat", KAFKA, "--table", "kraft.users", "--json")
    ran = run("cat", KAFKA, "--table", "kraft.users", "--json", "--topic", "codec-none", "--since", "-1h")
    assert (ran.code, ran.out) == (0, whole.out)
    assert "--topic does not change kraft.users" in ran.err
    assert "--since does not change kraft.users" in ran.err


def test_messages_are_found_by_any_of_their_keys(run) -> None:
    """`--key VK_76` did not find a message with KEYS `VK_76 VK_88`, and failed on rocketmq.messages."""
    rows = [row for row in rawlog.read(ROCKETMQ, table="rocketmq.messages").to_pylist() if row["keys"]]
    several = next(row for row in rows if len(row["keys"].split(" ")) > 2)
    for key in (*several["keys"].split(" "), several["keys"], several["unique_key"]):
        expected = [
            row["physical_offset"] for row in rows if key in (*row["keys"].split(" "), row["keys"], row["unique_key"])
        ]
        found = run("cat", ROCKETMQ, "--table", "rocketmq.messages", "--key", key, "--json").rows
        assert [row["physical_offset"] for row in found] == expected
        records = run("cat", ROCKETMQ, "--key", key, "--json").rows
        assert len(records) == len(expected)
        assert all(key in row["key"] or any(key == one["value"] for one in row["headers"]) for row in records)
    assert run("count", ROCKETMQ, "--key", several["keys"].split(" ")[0][:-1] + "~").text.strip() == "0"


@pytest.mark.parametrize("store", ["with index", "commit log alone"])
def test_messages_are_found_by_both_their_ids(run, tmp_path: Path, store: str) -> None:
    """There was no look-up by message id."""
    source = ROCKETMQ
    if store == "commit log alone":
        source = tmp_path / "store"
        (source / "commitlog").mkdir(parents=True)
        for file in (ROCKETMQ / "commitlog").iterdir():
            (source / "commitlog" / file.name).write_bytes(file.read_bytes())
    rows = rawlog.read(source, table="rocketmq.messages").to_pylist()
    for wanted in (rows[3], rows[len(rows) // 2]):
        for id in (wanted["message_id"], wanted["message_id"].lower()):
            [found] = run("cat", source, "--table", "rocketmq.messages", "--id", id, "--json").rows
            assert found["physical_offset"] == wanted["physical_offset"]
            [record] = run("cat", source, "--id", id, "--json").rows
            assert (record["topic"], record["offset"]) == (wanted["topic"], wanted["queue_offset"])
        if wanted["unique_key"]:
            same = [row["physical_offset"] for row in rows if row["unique_key"] == wanted["unique_key"]]
            for table in ("records", "rocketmq.messages"):
                ran = run("count", source, "--table", table, "--id", wanted["unique_key"])
                assert int(ran.text) == len(same)
    off = f"{rows[3]['message_id'][:-1]}{'0' if rows[3]['message_id'][-1] != '0' else '1'}"
    assert run("count", source, "--id", off).text.strip() == "0"
    other_host = f"0A{rows[3]['message_id'][2:]}"
    assert run("count", source, "--id", other_host).text.strip() == "0"


def test_blobs_are_found_by_their_id(run) -> None:
    rows = rawlog.read(AMBRY, table="ambry.messages", columns=["blob_id", "key"]).to_pylist()
    wanted = rows[0]
    expected = sum(row["key"] == wanted["key"] for row in rows)
    for table in ("records", "ambry.messages"):
        assert int(run("count", AMBRY, "--table", table, "--id", wanted["blob_id"]).text) == expected
    [blob] = run("cat", AMBRY, "--table", "ambry.blobs", "--id", wanted["blob_id"], "--json").rows
    assert blob["blob_id"] == wanted["blob_id"]
    assert run("count", AMBRY, "--id", "no-blob").text.strip() == "0"


def test_an_id_among_systems_without_ids_is_exit_code_2(run) -> None:
    ran = run("count", KAFKA, "--id", "x")
    assert ran.code == 2
    assert "no ids" in ran.err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("find", "\udcff", KAFKA, "--topic", "codec-none"), 0),
        (("cat", KAFKA, "--find", "\udcff"), 2),
        (("cat", KAFKA, "--where", "key = '\udcff'"), 2),
        (("cat", KAFKA, "--columns", "value.\udcff"), 2),
    ],
    ids=lambda one: one[2] if isinstance(one, tuple) else None,
)
def test_bytes_on_the_command_line_that_are_not_text(spawn, arguments: tuple[object, ...], code: int) -> None:
    """They ended in an internal error; `find` looks for such bytes."""
    ran = spawn(*arguments)
    assert ran.code == code, ran.err
