"""What one verb writes, the others take: verbs in a row over whole directories of each system."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rawlog
from tests.cli.conftest import Ran
from tests.conftest import needed
from tests.data.golden import golden_path
from tests.data.rocketmq_stores import copy as copy_store

LOCAL = ("--engine", "local")
KAFKA = golden_path("kafka", "broker-3.9.2", "data")
SAMPLES = Path(__file__).parent.parent.parent / "samples"
#: What a log directory says of itself and of its partitions.
AROUND = {
    "meta.properties",
    "bootstrap.checkpoint",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
}
STEPS: dict[str, tuple[str, ...]] = {
    "erase": ("erase", "$", "@", "--key", "key-934", *LOCAL),
    "compact": ("compact", "$", "@"),
    "repair": ("repair", "$", "@"),
    "rebuild": ("rebuild", "$", "@"),
    "restore": ("restore", "$", "@"),
    "convert": ("convert", "$", "@", "--to", "kafka", *LOCAL),
    "parquet": ("convert", "$", "@", "--to", "parquet", "--where", "topic NOT LIKE '\\_\\_%'", *LOCAL),
}
CHAINS = [
    ("erase", "restore", "repair"),
    ("compact", "restore", "erase", "restore"),
    ("repair", "restore", "rebuild"),
    ("convert", "rebuild", "compact", "erase"),
    ("parquet", "convert", "compact", "restore", "repair"),
]


def users(path: Path) -> Counter[tuple[Any, ...]]:
    """The records of users' topics."""
    table = rawlog.read(path, columns=["topic", "partition", "offset", "key", "value"])
    return Counter(tuple(row.values()) for row in table.to_pylist() if not str(row["topic"]).startswith("__"))


def step(run: Callable[..., Ran], name: str, source: Path, target: Path) -> Ran:
    done = run(*(word.replace("$", str(source)).replace("@", str(target)) for word in STEPS[name]))
    assert done.code == 0, f"{name} of {source.name}: {done.err}{done.text[-500:]}"
    return done


@pytest.mark.parametrize("chain", CHAINS, ids="-".join)
def test_verbs_take_what_verbs_wrote_of_a_kafka_log_directory(
    chain: tuple[str, ...], tmp_path: Path, run: Callable[..., Ran]
) -> None:
    """`restore` of what `compact` wrote said "no topic here is asked for", and a copy by `erase` had no identity."""
    source, before = KAFKA, users(KAFKA)
    for number, name in enumerate(chain):
        target = tmp_path / f"{number}-{name}"
        step(run, name, source, target)
        if name == "parquet":
            source = target
            continue
        assert run("verify", target).code == 0, target.name
        assert run("ls", target).code == 0
        now = users(target)
        if name in ("compact", "erase"):
            assert now
            assert not now - before
        else:
            assert now == before
        source, before = target, now


@pytest.mark.parametrize("verb", ["erase", "compact", "convert", "repair", "rebuild"])
def test_a_copy_of_a_log_directory_has_all_that_a_broker_needs(
    verb: str, tmp_path: Path, run: Callable[..., Ran]
) -> None:
    """`erase` left out meta.properties, the checkpoints and bootstrap.checkpoint, and thinned out the metadata log."""
    step(run, verb, KAFKA, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} == AROUND
    there = {path.name for path in KAFKA.iterdir() if path.is_dir() and not path.name.endswith("-delete")}
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == there
    for name in ("meta.properties", "bootstrap.checkpoint"):
        assert (tmp_path / "out" / name).read_bytes() == (KAFKA / name).read_bytes()
    if verb in ("erase", "compact", "convert"):
        metadata = KAFKA / "__cluster_metadata-0"
        for path in metadata.iterdir():
            assert (tmp_path / "out" / metadata.name / path.name).read_bytes() == path.read_bytes()


def test_a_restored_directory_keeps_its_topics_through_the_verbs(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """Before its first start, all that such a directory knows of its topics is in bootstrap.checkpoint."""

    def topics(path: Path) -> dict[str, Any]:
        rows = rawlog.read(path, table="kraft.topics").to_pylist()
        return {row["topic"]: (row["topic_id"], row["partitions"], sorted(row["configs"] or ())) for row in rows}

    step(run, "restore", KAFKA, tmp_path / "0")
    expected = topics(tmp_path / "0")
    assert len(expected) == 24
    for number, verb in enumerate(("restore", "erase", "compact", "repair", "restore")):
        step(run, verb, tmp_path / str(number), tmp_path / str(number + 1))
        assert topics(tmp_path / str(number + 1)) == expected, verb


def test_some_topics_of_a_log_directory_go_without_the_metadata_of_all(tmp_path: Path, run: Callable[..., Ran]) -> None:
    for number, line in enumerate((("convert", "--to", "kafka", *LOCAL), ("compact",))):
        verb, *rest = line
        done = run(verb, KAFKA, tmp_path / str(number), "--topic", "codec-none", *rest)
        assert done.code == 0, done.err
        folders = sorted(path.name for path in (tmp_path / str(number)).iterdir() if path.is_dir())
        assert folders == ["codec-none-0", "codec-none-1"]
        assert run("restore", tmp_path / str(number), tmp_path / f"restored{number}").code == 0


def test_a_partition_that_was_named_comes_alone(tmp_path: Path, run: Callable[..., Ran]) -> None:
    step(run, "erase", KAFKA / "codec-mixed-0", tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["codec-mixed-0"]
    step(run, "restore", tmp_path / "out", tmp_path / "restored")


def test_an_empty_directory_is_filled_as_a_new_one(tmp_path: Path, run: Callable[..., Ran]) -> None:
    (tmp_path / "out").mkdir()
    step(run, "erase", KAFKA, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_file()} == AROUND


def test_what_is_left_out_of_a_log_directory_is_reported(tmp_path: Path, run: Callable[..., Ran]) -> None:
    done = step(run, "erase", KAFKA, tmp_path / "out")
    assert done.text.count("-delete: left out") == 2


def test_partitions_added_to_a_log_directory_leave_what_is_there(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """Only a new directory gets what the source says of itself: one that is there has its own identity."""
    step(run, "restore", KAFKA, tmp_path / "there")
    identity = (tmp_path / "there" / "meta.properties").read_bytes()
    shutil.rmtree(tmp_path / "there" / "codec-none-0")
    done = run(
        "convert", KAFKA, tmp_path / "there", "--to", "kafka", "--topic", "codec-none", "--partition", "0", *LOCAL
    )
    assert done.code == 0, done.err
    assert (tmp_path / "there" / "meta.properties").read_bytes() == identity


def test_verbs_take_what_verbs_wrote_of_a_rocketmq_store(tmp_path: Path, run: Callable[..., Ran]) -> None:
    store = copy_store("broker-5.3.3", tmp_path)
    count = rawlog.read(store, columns=["offset"]).num_rows
    source = store
    for number, verb in enumerate(("rebuild", "repair", "rebuild", "repair")):
        target = tmp_path / f"{number}"
        assert run(verb, source, target).code == 0
        assert run("verify", target).code == 0
        assert rawlog.read(target, columns=["offset"]).num_rows == count
        source = target


def test_a_rocketmq_store_that_was_converted_is_taken_by_all(tmp_path: Path, run: Callable[..., Ran]) -> None:
    lossy = ("--option", "offsets=new", "--accept-loss", "offset")
    done = run("convert", SAMPLES / "rocketmq", tmp_path / "k", "--to", "kafka", "--topic", "T*", *lossy, *LOCAL)
    assert done.code == 0, done.err
    done = run("convert", tmp_path / "k", tmp_path / "r", "--to", "rocketmq", "--accept-loss", "offset", *LOCAL)
    assert done.code == 0, done.err
    source = tmp_path / "r"
    for verb in ("repair", "rebuild"):
        assert run(verb, source, tmp_path / verb).code == 0
        assert run("verify", tmp_path / verb).code == 0
        source = tmp_path / verb
    assert run("convert", source, tmp_path / "rows.jsonl", "--to", "jsonl", *LOCAL).code == 0
    assert run("restore", source, tmp_path / "restored").code == 0


def test_verbs_take_what_verbs_wrote_of_an_ambry_store(tmp_path: Path, run: Callable[..., Ran]) -> None:
    done = run("extract", SAMPLES / "ambry", "--to", tmp_path / "before")
    assert done.code == 0
    before = [json.loads(line) for line in (tmp_path / "before" / "manifest.jsonl").read_text().splitlines()]
    erased = before[0]["blob_id"]
    source = SAMPLES / "ambry" / "9"
    steps = [
        ("erase", "--blob", erased),
        ("repair",),
        ("compact",),
        ("rebuild",),
        ("erase", "--blob", before[1]["blob_id"]),
    ]
    for number, (verb, *rest) in enumerate(steps):
        target = tmp_path / str(number) / "9"
        done = run(verb, source, target, *rest)
        assert done.code == 0, f"{verb}: {done.err}{done.text}"
        assert run("verify", target).code == 0, verb
        out = tmp_path / f"extracted-{number}"
        assert run("extract", target, "--to", out).code == 0
        now = {
            row["blob_id"]: row["sha256"] for row in map(json.loads, (out / "manifest.jsonl").read_text().splitlines())
        }
        gone = {erased, before[1]["blob_id"]} if number == len(steps) - 1 else {erased}
        assert now == {row["blob_id"]: row["sha256"] for row in before if row["blob_id"] not in gone}
        source = target


@pytest.mark.broker
def test_a_broker_serves_a_directory_that_was_erased(tmp_path: Path, run: Callable[..., Ran]) -> None:
    """The copy had neither an identity nor its metadata: a broker would not start on it, or not know its topics."""
    from tests.services.kafka import KAFKA_3, KafkaBroker
    from tests.verbs.test_restore_brokers import consumed, rows_of

    step(run, "erase", KAFKA, tmp_path / "erased")
    expected = {place: rows for place, rows in rows_of(tmp_path / "erased").items() if rows}
    assert any(one[1] == b"key-934" for rows in rows_of(KAFKA).values() for one in rows)
    with needed(), KafkaBroker(KAFKA_3, tmp_path / "erased") as broker:
        found = consumed(broker, sorted(expected))
    assert {place: rows for place, rows in found.items() if rows} == expected
    assert not any(one[1] == b"key-934" for rows in found.values() for one in rows)
