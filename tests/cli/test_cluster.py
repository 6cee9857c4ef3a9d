"""`rawlog cluster` on the directories of real brokers."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kraft_data import data_dir, image

SECRET = "NAZSe3JgWhjjADe7y6NWHhR2ETwEvZLoKXfaMOt37ZU="


def test_the_overview_names_brokers_topics_and_what_is_wrong(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"))
    assert done.code == 0
    for part in ("rawlogGolden430AAAAAAA", "as of offset 410, epoch 2", "4.3-IV0", "controllers 1 (leader)", "Brokers (1)", "fenced",
                 "Topics (25)", "meta-grown", "Offline partitions (39)", "Settings (43)", "retention.ms", "SCRAM-SHA-512"):  # fmt: skip
        assert part in done.text, part
    assert "Strays" not in done.text
    assert "Missing" not in done.text
    assert SECRET not in done.text


def test_json_has_a_line_for_everything(run: Callable[..., Any]) -> None:
    rows = run("cluster", data_dir("broker-4.3.0"), "--json").rows
    _, expected = image("broker-4.3.0")
    for table, name in (("topics", "TopicRecord"), ("partitions", "PartitionRecord"), ("configs", "ConfigRecord")):
        assert sum(row["table"] == table for row in rows) == sum(one["type"] == name for one in expected)
    assert rows[0]["table"] == "cluster"
    assert rows[0]["end_offset"] == 411


def test_secrets_are_shown_only_if_asked_for(run: Callable[..., Any]) -> None:
    assert SECRET not in run("cluster", data_dir("broker-4.3.0"), "--json").text
    assert SECRET in run("cluster", data_dir("broker-4.3.0"), "--json", "--show-secrets").text
    assert SECRET not in run("cluster", data_dir("broker-4.3.0"), "--diff", "0..410", "--json").text
    assert SECRET not in run("cluster", data_dir("broker-4.3.0"), "--log", "--json").text


def test_a_past_moment_and_one_topic(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"), "--at-offset", 200, "--topic", "meta-*")
    assert done.code == 0
    assert "meta-grown-2" in done.text
    assert "leader 1" in done.text
    assert "codec-none" not in done.text
    early = run("cluster", data_dir("broker-4.3.0"), "--at-time", "2026-11-15T21:50:05.211Z", "--json").rows
    assert [row["topic"] for row in early if row["table"] == "topics"] == ["codec-none"]


def test_the_log_is_told_in_sentences(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"), "--log")
    for part in (
        "controller 1 leads (voters 1)", "metadata.version is 30 (4.3-IV0)", "topic codec-none is created",
        "codec-none-0: replicas [1], in sync [1], leader 1", "topic broker-zstd: compression.type = zstd", "topic meta-gone is deleted",
        "user bob has a password for SCRAM-SHA-256", "broker 1 is unfenced", "is back to its default", "no leader",
    ):  # fmt: skip
        assert part in done.text, part
    rows = run("cluster", data_dir("broker-4.3.0"), "--log", "--json", "--topic", "meta-grown").rows
    assert {row["topic"] for row in rows} == {"meta-grown"}
    assert rows[0]["type"] == "TOPIC_RECORD"


def test_a_difference_is_told_and_ends_with_1(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"), "--diff", "23..26")
    assert done.code == 1
    assert done.text.splitlines() == ["+ topic codec-none", "+ partition codec-none-0", "+ partition codec-none-1"]
    assert run("cluster", data_dir("broker-4.3.0"), "--diff", "26..26").code == 0
    by_time = run("cluster", data_dir("broker-4.3.0"), "--diff", "2026-11-15T21:50:05Z..2026-11-15T21:50:05.3Z")
    assert by_time.text == done.text
    assert run("cluster", data_dir("broker-4.3.0"), "--diff", "5").code == 2


def test_strays_and_missing_partitions_are_found(run: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(data_dir("broker-4.3.0-crashed"), tmp_path / "data")
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "data" / "crash-stream-0").rename(tmp_path / "data" / "unheard-of-3")
    done = run("cluster", tmp_path / "data")
    assert "Strays: on disk, unknown to the cluster (1)" in done.text
    assert "unheard-of-3" in done.text
    assert "Missing on disk (1)" in done.text
    rows = run("cluster", tmp_path / "data", "--json").rows
    assert {(row["table"], row["topic"], row["partition"]) for row in rows if row["table"] in ("stray", "missing")} == {
        ("stray", "unheard-of", 3),
        ("missing", "crash-stream", 0),
    }


def test_where_there_is_no_metadata_that_is_said(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("cluster", tmp_path)
    assert done.code == 3
    assert "no metadata log" in done.err


def test_a_damaged_log_ends_with_1(run: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(data_dir("broker-4.3.0-crashed") / "__cluster_metadata-0", tmp_path / "__cluster_metadata-0")
    path = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    assert run("cluster", tmp_path).code == 1
    done = run("cluster", tmp_path, "--errors", "skip")
    assert done.code == 0
    assert "Topics" in done.text
