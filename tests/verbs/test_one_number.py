"""One directory has one number of records: in `ls`, `count`, `report` and SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rawlog
from tests.cli.conftest import run  # noqa: F401
from tests.data.golden import golden_path, unpack
from tests.data.replicas import base_log, broker, copy

DIRECTORIES = [
    ("kafka", "broker-3.9.2"),
    ("kafka", "broker-3.9.2-crashed"),
    ("kafka", "broker-4.3.0"),
    ("kafka", "broker-4.3.0-crashed"),
    ("kafka", "legacy"),
    ("kafka", "tiered-4.3.0"),
    ("rocketmq", "4.9.8"),
    ("rocketmq", "5.1.4"),
    ("rocketmq", "5.3.4S-cqext"),
    ("rocketmq", "broker-4.9.7"),
    ("rocketmq", "broker-5.3.3"),
    ("ambry", "store-compacted"),
    ("ambry", "store-crashed"),
    ("ambry", "store-ops"),
    ("ambry", "store-small"),
]
ARCHIVES = [
    *(("rocketmq", f"broker-{name}.tar.gz") for name in ("4.9.7-crashed", "5.3.3-disks", "5.3.3-dledger", "5.5.1")),
    *(("clusters", f"{name}.tar.xz") for name in ("3.9.2-divergent", "4.3.0-stale", "4.3.1-node")),
]
RECORDINGS = [("replay", version) for version in ("v0", "v1", "v2")]
Run = Callable[..., Any]


def numbers(run: Run, path: Path) -> dict[str, int]:  # noqa: F811
    last = [line for line in run("ls", path).text.splitlines() if not line.startswith("  in the files")][-1]
    counted = re.search(r"([\d,]+) records?$", last)
    assert counted is not None, last
    asked = run("query", "SELECT count(*) AS n FROM records", path, "--engine", "duckdb", "--errors", "skip", "--json")
    return {
        "ls": int(counted[1].replace(",", "")),
        "count": rawlog.count(path, errors="skip", note=lambda _: None),
        "report": rawlog.report(path).records,
        "sql": json.loads(asked.text)["n"],
    }


@pytest.mark.parametrize(("family", "name"), [*DIRECTORIES, *RECORDINGS, *ARCHIVES])
def test_a_directory_has_one_number_of_records(run: Run, family: str, name: str, tmp_path: Path) -> None:  # noqa: F811
    """One directory of Kafka had 3,734, 3,623, 3,640 and 3,775 records: below the log start, in deleted topics, in replicas, in none."""
    path = golden_path(family, name)
    if path.is_file():
        unpack(path, tmp_path)
        path = tmp_path
    found = numbers(run, path)
    assert len(set(found.values())) == 1, found
    assert found["count"] > 0


def test_count_says_that_there_are_records_that_it_does_not_count(run: Run) -> None:  # noqa: F811
    """`ls` had a footnote, and `count` a bare number: whoever compared it with the end offsets took the rest for lost."""
    data = golden_path("kafka", "broker-4.3.0", "data")
    ran = run("count", data)
    assert ran.text == "3187\n"
    assert "not counted: files marked delete or deleted, records below the log start" in ran.err
    assert "below the log start" not in run("count", data, "--topic", "codec-*").err
    assert "files marked deleted, records below" in run("count", data, "--topic", "trimmed").err
    assert run("count", data, "--topic", "codec-*", "--quiet").err == ""


def test_records_after_damage_are_named(run: Run) -> None:  # noqa: F811
    """`ls` counts the records before the first damage of a file, `count --errors skip` those after it, too."""
    path = Path(__file__).parents[2] / "samples" / "replay" / "bad-length.log"
    *_, total, footnote = run("ls", path).text.splitlines()
    before = int(total.split()[-2])
    assert before < rawlog.count(path, errors="skip", note=lambda _: None)
    assert (
        footnote.strip()
        == "in the files after damage, and not counted: the rest of 1 file; `rawlog count --errors skip` counts it"
    )


def test_what_is_not_counted_is_named(run: Run) -> None:  # noqa: F811
    """15 records of `trimmed` are below its log start, 10 in directories of a deleted topic."""
    ran = run("ls", golden_path("kafka", "broker-4.3.0", "data"))
    *_, total, footnote = ran.text.splitlines()
    assert total.endswith(" 3,187 records")
    assert "10 in files marked delete" in footnote
    assert "15 below the log start" in footnote
    line = next(line.split() for line in ran.text.splitlines() if line.strip().startswith("trimmed-0"))
    assert line[-7:-4] == ["153", "57", "210"] or line[4:7] == ["153", "57", "210"], line
    assert any(
        "15 records below the log start" in note
        for note in rawlog.report(golden_path("kafka", "broker-4.3.0", "data")).notes
    )


def test_replicas_count_once(run: Run, tmp_path: Path) -> None:  # noqa: F811
    base = base_log(tmp_path / "base")
    for node, batches in ((1, 10), (2, 20)):
        copy(base, broker(tmp_path / "disks" / f"disk{node}", node), batches)
    found = numbers(run, tmp_path / "disks")
    assert set(found.values()) == {60}, found
    assert "30 in other replicas" in run("ls", tmp_path / "disks").text.splitlines()[-1]
