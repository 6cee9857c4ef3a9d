"""`convert` and `erase` on the command line: what they print, what they refuse, and how they end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import rawlog
from rawlog.cli import cli
from rawlog.model.table import RECORDS

T = 1_700_000_000_000
SAMPLES = Path(__file__).parents[2] / "samples"


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def reported(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    rows = [
        {"key": b"k%d" % (n % 4), "value": b"v%d" % n, "topic": "orders", "partition": n % 2, "offset": n // 2,
         "timestamp": (T + n) * 1000, "timestampType": 0, "headers": []}
        for n in range(40)
    ]  # fmt: skip
    rawlog.write(tmp_path / "log", pa.Table.from_pylist(rows, schema=RECORDS.schema), format="kafka", batch_records=6)
    return tmp_path / "log"


def test_a_loss_ends_with_1_and_names_what_to_accept(log: Path, tmp_path: Path) -> None:
    done = run("convert", log, tmp_path / "x.log", "--to", "replay", "--engine", "local", "--json")
    assert done.exit_code == 1
    lost = reported(done)["lost"]
    assert set(lost) == {"topic", "partition", "offset", "timestamp"}
    assert lost["offset"] == {"rows": 20, "first": "orders-1 offset 0"}
    assert "--accept-loss offset,partition,timestamp,topic" in done.stderr
    assert not (tmp_path / "x.log").exists()
    accept = ("--accept-loss", "topic,partition", "--accept-loss", "offset, timestamp")
    done = run("convert", log, tmp_path / "x.log", "--to", "replay", "--engine", "local", *accept)
    assert done.exit_code == 0, done.stderr
    assert "40 rows" in done.output
    assert "lost: column topic is lost or changed in 40 rows, first orders-0 offset 0" in done.output


def test_a_dry_run_tells_and_writes_nothing(log: Path, tmp_path: Path) -> None:
    done = run("convert", log, tmp_path / "x", "--to", "rocketmq", "--engine", "local", "--dry-run", "--json")
    assert (done.exit_code, reported(done)["lost"], reported(done)["rows"]) == (0, {}, 40)
    done = run("convert", log, tmp_path / "x", "--to", "replay", "--engine", "local", "--dry-run")
    assert done.exit_code == 1
    assert "nothing was written" in done.output
    assert [one.name for one in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize(
    ("source", "target", "why"),
    [
        ("rocketmq", "kafka", "offsets must rise"),
        ("ambry", "kafka", "topic '101/7'"),
        ("ambry", "rocketmq", "topic '101/7'"),
        ("replay/basic.log", "kafka", "has no topic"),
    ],
)
def test_a_dry_run_refuses_what_the_run_refuses(source: str, target: str, why: str, tmp_path: Path) -> None:
    """Rows that the writer cannot encode passed the dry run, and the run then failed."""
    given = ("convert", SAMPLES / source, tmp_path / "out", "--to", target, "--engine", "local")
    dry, real = run(*given, "--dry-run"), run(*given)
    assert why in dry.stderr
    assert (dry.exit_code, dry.stderr) == (real.exit_code, real.stderr)
    assert not list(tmp_path.iterdir())


def test_a_dry_run_reports_what_the_run_removes(log: Path, tmp_path: Path) -> None:
    given = ("convert", log, tmp_path / "out", "--to", "kafka", "--drop-key", "k0", "--engine", "local", "--json")
    dry = run(*given, "--dry-run")
    assert [one.name for one in tmp_path.iterdir()] == ["log"]
    real = run(*given)
    assert reported(dry) == reported(real) | {"dry_run": True}


def test_keys_are_dropped_by_name_and_by_file(log: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"k1\r\n\nk3")
    done = run("convert", log, tmp_path / "out", "--to", "kafka", "--drop-key", "k0", "--drop-keys", tmp_path / "keys",
               "--where", "NOT offset = 3", "--engine", "local", "--json")  # fmt: skip
    assert done.exit_code == 0, done.stderr
    answer = reported(done)
    assert {row["key"] for row in rawlog.read(tmp_path / "out").to_pylist()} == {b"k2"}
    assert answer["dropped"] == 40 - answer["rows"]
    assert answer["parts"]["orders-1"]["removed"] == 20
    assert answer["parts"]["orders-1"]["offsets"] == [[0, 19]]
    done = run("convert", log, tmp_path / "y", "--to", "kafka", "--drop-keys", tmp_path / "none", "--engine", "local")
    assert done.exit_code == 3


def test_erase_takes_keys_or_blobs(log: Path, tmp_path: Path) -> None:
    done = run("erase", log, tmp_path / "out", "--key", "k2", "--engine", "local")
    assert done.exit_code == 0, done.stderr
    assert "removed: 10 records: offsets 1, 3, 5" in done.output
    assert b"k2" not in rawlog.read(tmp_path / "out").column("key").to_pylist()
    assert run("erase", log, tmp_path / "out", "--key", "k2", "--engine", "local").exit_code == 3
    assert run("erase", log, tmp_path / "out", "--key", "k1", "--engine", "local", "--force").exit_code == 0
    for words in ((), ("--key", "k", "--blob", "b")):
        done = run("erase", log, tmp_path / "z", *words, "--engine", "local")
        assert done.exit_code == 2
        assert "name what to erase" in done.stderr
    papers = {"out.certificate.json", "out.certificate.txt"}
    assert {one.name for one in tmp_path.iterdir()} == {"log", "out", *papers}


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("--to", "kafak"), 2, "did you mean kafka"),
        (("--to", "kafka", "--option", "codec"), 2, "NAME=VALUE expected"),
        (("--to", "kafka", "--option", "kodec=zstd"), 2, "did you mean codec"),
        (("--to", "replay", "--option", "codec=zstd"), 2, "unknown option of replay"),
        (("--to", "kafka", "--accept-loss", "ofset"), 2, "did you mean offset"),
        (("--to", "kafka", "--table", "kafka.batches"), 2, "kafka is made of records"),
        (("--to", "parquet", "--table", "recrods"), 2, "did you mean records"),
        (("--to", "jsonl", "--where", "nonsense = 1"), 2, "nonsense"),
        (("--to", "csv", "--option", "codec=zip"), 2, "unknown codec of csv"),
    ],
)
def test_wrong_usage_is_told(words: tuple[str, ...], code: int, why: str, log: Path, tmp_path: Path) -> None:
    done = run("convert", log, tmp_path / "out", "--engine", "local", *words)
    assert done.exit_code == code
    assert why in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["log"]


def test_what_is_not_there_or_no_log_is_told(tmp_path: Path) -> None:
    assert run("convert", tmp_path / "none", tmp_path / "x", "--to", "kafka", "--engine", "local").exit_code == 3
    (tmp_path / "text").write_text("no log at all")
    done = run("convert", tmp_path / "text", tmp_path / "x", "--to", "kafka", "--engine", "local")
    assert done.exit_code == 3
    assert "not a file of any known format" in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["text"]
