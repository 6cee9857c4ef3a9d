"""Verbs that look read what is stored, and report what they pass: with the place, and with exit code 1."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.kafka.log.layouts import BATCH
from tests.data.golden import GOLDEN, golden_path
from tests.data.rocketmq_stores import ALL, store

#: How each verb is called; all rows are read.
LOOKING: dict[str, tuple[str, ...]] = {
    "cat": ("cat", "PATH", "--columns", "topic,offset", "--json"),
    "head": ("head", "PATH", "-n", "1000000", "--columns", "topic,offset", "--json"),
    "tail": ("tail", "PATH", "-n", "1000000", "--columns", "topic,offset", "--json"),
    "count": ("count", "PATH"),
    "find": ("find", "no such text", "PATH"),
    "query": ("query", "SELECT count(value) AS n FROM records", "PATH", "--engine", "duckdb"),
    "ls": ("ls", "PATH"),
}
ROWS = ("cat", "head", "tail")


def look(run: Callable[..., Any], verb: str, path: Path) -> Any:
    return run(*(path if word == "PATH" else word for word in LOOKING[verb]))


#: Stores that real systems wrote and read, below tests/golden; those of RocketMQ by their names.
HEALTHY = [
    *(str(path.relative_to(GOLDEN)) for path in sorted((GOLDEN / "kafka").glob("broker-*/data"))),
    *(str(path.relative_to(GOLDEN)) for path in sorted((GOLDEN / "kafka").glob("legacy/*/data"))),
    *(f"ambry/{name}" for name in ("store-small", "store-ops", "store-compacted", "store-crashed")),
    *(f"replay/{version}" for version in ("v0", "v1", "v2")),
]


@pytest.mark.parametrize("name", [*HEALTHY, *ALL])
@pytest.mark.parametrize("verb", LOOKING)
def test_a_healthy_store_is_read_without_a_word(verb: str, name: str, run: Callable[..., Any]) -> None:
    ran = look(run, verb, GOLDEN / name if name in HEALTHY else store(name))
    assert ran.code == 0, ran.err


PARTITION = golden_path("kafka", "broker-4.3.0", "data") / "segments-by-size-0"


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of several segments."""
    return Path(shutil.copytree(PARTITION, tmp_path / PARTITION.name))


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def set_base(path: Path, number: int, change: Callable[[int], int]) -> int:
    """Change the base offset of a batch, which no checksum covers; its position."""
    batches = rawlog.read(path, table="kafka.batches").to_pylist()
    position, base = batches[number]["position"], batches[number]["base_offset"]
    data = bytearray(path.read_bytes())
    place = slice(position + BATCH.at("base_offset"), position + BATCH.after("base_offset"))
    data[place] = change(base).to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    return int(position)


def offsets(ran: Any) -> list[int]:
    return [row["offset"] for row in ran.rows]


@pytest.mark.parametrize("verb", [verb for verb in LOOKING if verb != "ls"])
@pytest.mark.parametrize("wrong", [0, 1 << 40])
def test_an_offset_that_does_not_rise_is_reported(
    verb: str, wrong: int, partition: Path, run: Callable[..., Any]
) -> None:
    """The rows came with the wrong offset, without a word and with exit code 0."""
    path = segments(partition)[1]
    position = set_base(path, 1, lambda base: wrong)
    ran = look(run, verb, partition)
    assert ran.code == 1
    assert f"{path.name}: byte {position:,}: " in ran.err
    assert "not at the right place" in ran.err
    if verb in ROWS:
        assert len(ran.rows) == rawlog.count(PARTITION)
    if verb == "count":
        assert int(ran.text) == rawlog.count(PARTITION)


@pytest.mark.parametrize("verb", [verb for verb in LOOKING if verb != "ls"])
def test_segments_under_one_anothers_names_are_reported(verb: str, partition: Path, run: Callable[..., Any]) -> None:
    first, second = segments(partition)[:2]
    first.rename(partition / "kept")
    second.rename(first)
    (partition / "kept").rename(second)
    ran = look(run, verb, partition)
    assert ran.code == 1
    assert all(f"{path.name}: byte 0: " in ran.err for path in (first, second))


@pytest.mark.parametrize("verb", LOOKING)
def test_an_unfinished_frame_counts_where_another_file_follows(
    verb: str, partition: Path, run: Callable[..., Any]
) -> None:
    last, middle = segments(partition)[-1], segments(partition)[1]
    last.write_bytes(last.read_bytes()[:-7])
    assert look(run, verb, partition).code == 0, "a crash leaves that"
    middle.write_bytes(middle.read_bytes()[:-7])
    ran = look(run, verb, partition)
    assert ran.code == 1
    assert middle.name in ran.err
    assert "unfinished frame, although another file follows" in ran.err


@pytest.mark.parametrize("verb", [verb for verb in LOOKING if verb != "ls"])
def test_a_gap_between_segments_counts_unless_compaction_explains_it(
    verb: str, partition: Path, run: Callable[..., Any]
) -> None:
    first, second, third = segments(partition)[:3]
    second.unlink()
    ran = look(run, verb, partition)
    assert ran.code == 1
    assert f"{first.name}: offsets {int(second.stem):,} to {int(third.stem) - 1:,} missing" in ran.err
    (partition.parent / "cleaner-offset-checkpoint").write_text(f"0\n1\nsegments-by-size 0 {int(third.stem)}\n")
    assert look(run, verb, partition).code == 1, "the cleaner deletes the indexes of a segment with it"
    for path in partition.glob(f"{second.stem}.*"):
        path.unlink()
    assert look(run, verb, partition).code == 0


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_count_goes_by_headers_whatever_the_codec(
    codec: str, size: int, run: Callable[..., Any], tmp_path: Path
) -> None:
    """A wrong checksum of a large plain batch was passed over, and that of a small or compressed one ended it. `verify` finds both."""
    rows = [{"value": (f"{number} " * size).encode()[:size], "timestamp": 0} for number in range(20)]
    rawlog.write(tmp_path / "log", rows, format="kafka", topic="t", partition=0, codec=codec)
    [path] = (tmp_path / "log").rglob("*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    ran = run("count", path)
    assert (ran.code, ran.text.strip()) == (0, "20")
    assert run("count", path, "--errors", "skip").code == 1
    assert rawlog.verify(path).errors
    assert "checksum" in run("count", "--help").text


KAFKA = Path(__file__).parents[2] / "samples" / "kafka"


def test_topics_of_users_come_before_internal_ones(run: Any) -> None:
    """`cat` and `head` of a whole log directory began with hundreds of rows of `__cluster_metadata`."""
    topics = list(dict.fromkeys(row["topic"] for row in run("cat", KAFKA, "--json").rows))
    assert [topic.startswith("__") for topic in topics] == sorted(topic.startswith("__") for topic in topics)
    assert topics[0] == "broker-gzip"
    assert [row["topic"] for row in run("head", KAFKA, "-n", 2, "--json").rows] == ["broker-gzip"] * 2


def test_columns_keep_their_order_when_values_are_decoded(run: Any) -> None:
    """With --decode, `value` was the first column: it is no longer bytes then."""
    plain = run("head", KAFKA / "codec-none-0").text.splitlines()[0].split()
    decoded = run("head", KAFKA / "codec-none-0", "--decode", "value=json").text.splitlines()[0].split()
    assert decoded[: len(plain)] == plain


def test_explain_shows_the_record_that_was_asked_for_first(run: Any) -> None:
    """Record 30 was below 100 lines of the batch and the records before it."""
    lines = run("explain", KAFKA / "codec-none-0", "--offset", 30).text.splitlines()
    assert lines[1].split()[-2:] == ["record", "8"]
    assert any(line.endswith("offset 30") for line in lines[1:6])
    assert "record batch" in "\n".join(lines)
    [batch] = run("explain", KAFKA / "codec-none-0", "--offset", 30, "--json").rows
    assert batch["name"] == "record batch"


def test_explain_keeps_hex_digits_at_80_columns_and_fills_wider_ones(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns had no hex digits; one of 200 cut values at 60."""
    from rawlog.cli import output

    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    big = KAFKA / "edge-cases-0"
    longest = {}
    for width in (80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = run("explain", big, "--offset", 0).text.splitlines()
        assert max(map(len, lines)) <= width
        assert "hex" in lines[0].split()
        longest[width] = lines[0].index("meaning") - lines[0].index("value")
    assert longest[80] < longest[200]
