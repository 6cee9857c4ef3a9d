"""`rawlog diff` and `rawlog verify --against`: what is printed, and how it ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.conftest import Ran, recording
from tests.data.ambry_stores import copy_store, small_messages

Run = Callable[..., Ran]


def pair(tmp_path: Path) -> tuple[Path, Path]:
    one, other = tmp_path / "one.log", tmp_path / "other.log"
    one.write_bytes(recording(b"zero", b"one", b"two", b"three"))
    other.write_bytes(recording(b"zero", b"ONE", b"\xff\x00", b"three", b"four", b"five"))
    return one, other


def test_the_same_is_the_same(run: Run, log: Path) -> None:
    ran = run("diff", log, log)
    assert (ran.code, ran.text) == (0, "same: 5 alike\n")
    assert run("diff", log, log, "--json").rows == [
        {"verdict": "same", "alike": 5, "only_in_a": 0, "only_in_b": 0, "differs": 0, "unlisted": 0}
    ]


def test_differences_for_people(run: Run, tmp_path: Path) -> None:
    ran = run("diff", *pair(tmp_path))
    assert ran.code == 1
    assert ran.text.splitlines() == [
        "one.log and other.log",
        '  ~ differs    offsets 1 to 2, 2 records: value "one" / "ONE" (the first)',
        "  + only in B  offsets 4 to 5, 2 records",
        "different: 2 alike, 2 only in B, 2 differ",
    ]


def test_differences_for_machines(run: Run, tmp_path: Path) -> None:
    ran = run("diff", *pair(tmp_path), "--json", "--limit", 1)
    assert ran.code == 1
    [difference, summary] = ran.rows
    assert difference == {
        "change": "differs", "what": "record", "name": "one.log and other.log", "from_offset": 1, "to_offset": 3, "count": 2,
        "columns": ["value"], "a": {"value": "one"}, "b": {"value": "ONE"},
    }  # fmt: skip
    assert summary == {"verdict": "different", "alike": 2, "only_in_a": 0, "only_in_b": 2, "differs": 2, "unlisted": 1}
    assert run("diff", *pair(tmp_path), "--columns", "key", "--to-offset", 4).code == 0


def test_blobs_that_differ(run: Run, tmp_path: Path) -> None:
    store = copy_store("store-small", tmp_path / "9")
    other = tmp_path / "other"
    other.mkdir()
    (other / "log_current").write_bytes(b"".join(small_messages()[:-2]))
    ran = run("diff", store, other, "--json")
    assert ran.code == 1
    [missing, state, summary] = ran.rows
    assert (missing["change"], missing["what"]) == ("only_in_a", "blob")
    assert (state["columns"], state["a"], state["b"]) == (["state"], {"state": "deleted"}, {"state": "live"})
    assert (summary["alike"], summary["only_in_a"], summary["differs"]) == (6, 1, 1)
    assert run("diff", store, store).code == 0


def test_bad_input_ends_as_it_should(run: Run, tmp_path: Path, log: Path) -> None:
    assert run("diff", log, tmp_path / "nowhere").code == 3
    assert run("diff", log).code == 2
    assert run("diff", log, log, "--columns", "fnord").code == 2
    assert run("diff", log, log, "--engine", "local", "--master", "local[1]").code == 2
    (tmp_path / "note.txt").write_text("nothing")
    ran = run("diff", tmp_path / "note.txt", tmp_path / "note.txt")
    assert ran.code == 3
    damaged = tmp_path / "damaged.log"
    data = bytearray(log.read_bytes())
    data[20 + 8] = 0xFF  # the size of the first key
    damaged.write_bytes(bytes(data))
    ran = run("diff", log, damaged)
    assert ran.code == 1
    assert "damaged.log" in ran.err


def test_replicas_are_verified_against_each_other(run: Run, tmp_path: Path) -> None:
    one, other = pair(tmp_path)
    assert run("verify", one, "--against", one).code == 0
    ran = run("verify", one, "--against", other, "--json")
    assert ran.code == 1
    *findings, summary = ran.rows
    assert [(finding["code"], finding["severity"], finding["offset"]) for finding in findings] == [
        ("rawlog.replica.missing", "warning", 4), ("rawlog.replica.record", "error", 1),
    ]  # fmt: skip
    assert summary["verdict"] == "damaged"
    assert run("verify", one, "--against", other, "--skip", "rawlog.replica").code == 0
    assert run("verify", one, "--against", tmp_path / "nowhere").code == 3
    rules = {row["code"] for row in run("verify", "--rules", "--json").rows}
    assert {"kafka.replica.record", "ambry.replica.state", "rawlog.replica.absent"} <= rules
