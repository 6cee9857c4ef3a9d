"""Header keys that are not UTF-8: brokers take and serve them, so that they are no damage (issue 13, C1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import rawlog
from rawlog.lakes.targets import LossError
from tests.cli.conftest import Ran
from tests.reference import kafka as reference

RAW, SHOWN = b"\xff\xed\xa0\x80k", "\ufffd\ufffdk"
TIME = 1_700_000_000_000


def batch(codec: int = 0, count: int = 8, first: int = 0) -> bytes:
    """Records of which the last has such a key, the one before it a genuine U+FFFD."""
    names = ["h"] * (count - 2) + ["\ufffd", "?" * len(RAW)]
    records = [
        reference.encode_record(number, number, b"key %d" % number, b"value", [(name, b"1")])
        for number, name in enumerate(names)
    ]
    records[-1] = records[-1].replace(b"?" * len(RAW), RAW)
    return reference.encode_batch(
        b"".join(records), record_count=count, base_offset=first, codec=codec, base_timestamp=TIME,
        max_timestamp=TIME + count - 1,
    )  # fmt: skip


@pytest.fixture(params=[0, 4])
def log(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path / "kafka" / "odd-0"
    folder.mkdir(parents=True)
    path = folder / f"{0:020}.log"
    path.write_bytes(batch(request.param) + batch(request.param, first=8))
    return path


def keys(rows: pa.Table) -> list[str]:
    return [headers[0]["key"] for headers in rows["headers"].to_pylist()]


def test_every_verb_that_reads_shows_what_a_consumer_gets(run: Callable[..., Ran], log: Path) -> None:
    """`cat` ended with exit 1 after 7 of 8 records, `count` said 8, `verify` said damaged and `convert` stopped."""
    expected = [*["h"] * 6, "\ufffd", SHOWN] * 2
    assert keys(rawlog.read(log)) == expected
    assert run("cat", log, "--json").code == 0
    assert run("count", log).text == "16\n"
    found = rawlog.verify(log)
    assert found.verdict == "clean"
    assert [(one.code, one.severity, one.position) for one in found] == [
        ("kafka.log.header-key", "info", 0), ("kafka.log.header-key", "info", log.stat().st_size // 2),
    ]  # fmt: skip
    assert run("verify", log.parent).code == 0


@pytest.mark.parametrize("verb", ["repair", "rebuild"])
def test_verbs_that_copy_batches_keep_the_bytes(run: Callable[..., Ran], log: Path, tmp_path: Path, verb: str) -> None:
    ran = run(verb, log.parent, tmp_path / "made")
    assert ran.code == 0, ran
    [made] = (tmp_path / "made").rglob("*.log")
    assert made.read_bytes() == log.read_bytes()


def test_records_that_stay_keep_the_bytes_when_others_are_erased(
    run: Callable[..., Ran], log: Path, tmp_path: Path
) -> None:
    ran = run("erase", log.parent, tmp_path / "made", "--key", "key 2", "--engine", "local")
    assert ran.code == 0, ran
    rows = rawlog.read(tmp_path / "made")
    assert keys(rows) == [*["h"] * 5, "\ufffd", SHOWN] * 2
    assert rawlog.verify(tmp_path / "made").verdict == "clean"
    if rawlog.read(log, table="kafka.batches")["codec"].to_pylist()[0] == "none":
        [made] = (tmp_path / "made").rglob("*.log")
        assert made.read_bytes().count(RAW) == 2
    ran = run("convert", log.parent, tmp_path / "same", "--to", "kafka", "--engine", "local")
    assert ran.code == 0, ran
    [made] = (tmp_path / "same").rglob("*.log")
    assert made.read_bytes() == log.read_bytes()


@pytest.mark.parametrize("to", ["jsonl", "csv", "parquet", "kafka.log", "rocketmq"])
def test_verbs_that_write_records_in_another_form_name_the_loss(
    run: Callable[..., Ran], log: Path, tmp_path: Path, to: str
) -> None:
    target = tmp_path / ("made" if "." not in to and to not in ("jsonl", "csv", "parquet") else f"made.{to}")
    ran = run("convert", log, target, "--to", to, "--engine", "local", "--limit", "16")
    assert ran.code == 1
    assert "headers (2 of 16 rows, first odd-0 offset 7)" in ran.err
    assert not target.exists()
    ran = run("convert", log, target, "--to", to, "--engine", "local", "--limit", "16", "--dry-run")
    assert ran.code == 1
    assert "headers" in ran.text
    ran = run("convert", log, target, "--to", to, "--engine", "local", "--limit", "7")
    assert "header" not in ran.err, ran  # the rows without such a key lose nothing
    accepted = run(
        "convert", log, f"{target}2", "--to", to, "--engine", "local", "--accept-loss", "headers,offset,timestamp"
    )
    assert accepted.code == 0, accepted


def test_writing_from_python_names_the_loss(log: Path, tmp_path: Path) -> None:
    for rows in (rawlog.read(log), rawlog.open(log).table(), next(iter(rawlog.open(log).table().batches()))):
        with pytest.raises(LossError, match=r"headers \(2 of 16 rows, first odd-0 offset 7\)"):
            rawlog.write(tmp_path / "made.log", rows, format="kafka.log")
    assert rawlog.write(tmp_path / "made.log", rawlog.read(log), format="kafka.log", accept_loss=["headers"]) == 16
    genuine = rawlog.read(tmp_path / "made.log")
    assert rawlog.write(tmp_path / "again.log", genuine, format="kafka.log") == 16  # a genuine U+FFFD is no loss


def test_a_row_whose_headers_are_lost_for_two_reasons_counts_once(
    run: Callable[..., Ran], log: Path, tmp_path: Path
) -> None:
    """A recording has no headers at all: 16 rows were counted as 18."""
    lost = "headers,topic,partition,offset,timestamp"
    ran = run("convert", log, tmp_path / "made.log", "--to", "replay", "--engine", "local", "--accept-loss", lost)
    assert ran.code == 0, ran
    assert "headers is lost or changed in 16 rows, first odd-0 offset 0" in ran.text + ran.err
