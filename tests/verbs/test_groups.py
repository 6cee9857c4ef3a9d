"""`groups` and `transactions` on golden files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.model.errors import AccessError, DataError, OptionError
from tests.data.golden import GOLDEN

KAFKA = GOLDEN / "kafka" / "broker-4.3.0" / "data"
ROCKETMQ = GOLDEN / "rocketmq" / "broker-5.3.3"


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="group-classic"):
        list(rawlog.groups(KAFKA, group="group-clasic"))
    with pytest.raises(OptionError, match="codec-none"):
        list(rawlog.groups(KAFKA, topic="codec-non"))
    with pytest.raises(OptionError, match="tx-0"):
        list(rawlog.transactions(KAFKA, id="tx0"))


def test_a_pattern_that_matches_nothing_is_noted() -> None:
    """Nothing at all was shown, with exit code 0; a topic without a group was unknown."""
    assert rawlog.groups(KAFKA, topic="nosuch*").notes[0] == "--topic nosuch*: no topic matches"
    assert rawlog.groups(KAFKA, group="nosuch*").notes[0] == "--group nosuch*: no group matches"
    assert rawlog.transactions(KAFKA, id="nosuch*").notes == ["--id nosuch*: no id matches"]
    assert rawlog.groups(KAFKA, topic="idempotent").notes == ["no group matches, or none has offsets for these topics"]


@pytest.mark.parametrize("errors", ["skip", "stop"])
def test_damage_that_is_passed_over_is_a_finding(errors: Literal["skip", "stop"], tmp_path: Path) -> None:
    """Groups and transactions were shown without a word, with exit code 0."""
    for ask, topic in ((rawlog.groups, "__consumer_offsets-0"), (rawlog.transactions, "__transaction_state-0")):
        shutil.copytree(KAFKA / topic, tmp_path / topic)
        (log,) = (tmp_path / topic).glob("*.log")
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        with pytest.raises(DataError):
            ask(tmp_path / topic)
        found = ask(tmp_path / topic, errors=errors)
        assert found.has_findings
        assert "checksum" in found.notes[0]


def test_files_without_groups_or_transactions_are_an_error() -> None:
    with pytest.raises(AccessError, match="no consumer groups"):
        rawlog.groups(KAFKA / "codec-none-0")
    with pytest.raises(AccessError, match="no transactions") as raised:
        rawlog.transactions(KAFKA / "codec-none-0")
    assert raised.value.next_step == f"rawlog ls {KAFKA / 'codec-none-0'} shows what is there", (
        "not the verb just tried"
    )


def test_the_lag_of_a_partition_that_is_not_there_is_unknown() -> None:
    rows = list(rawlog.groups([KAFKA / "__consumer_offsets-1", KAFKA / "__consumer_offsets-0"]))
    offsets = [row for row in rows if row["table"] == "offsets"]
    assert offsets
    assert {row["lag"] for row in offsets} == {None}
    assert {row["lag"] for row in rows if row["table"] == "groups"} == {None}


def test_offsets_of_an_aborted_transaction_do_not_count() -> None:
    (row,) = (row for row in rawlog.groups(KAFKA, group="group-tx-group") if row["table"] == "offsets")
    assert row["committed_offset"] == 11


def test_rocketmq_groups_have_the_lag_of_every_queue() -> None:
    rows = [row for row in rawlog.groups(ROCKETMQ, group="gold_readers") if row["table"] == "offsets"]
    expected = {
        (row["topic"], row["queue_id"]): row["lag"]
        for row in rawlog.rows(ROCKETMQ, table="rocketmq.offsets")
        if row["group"] == "gold_readers"
    }
    assert {(row["topic"], row["partition"]): row["lag"] for row in rows} == expected


def test_an_open_transaction_that_the_coordinator_knows_does_not_hang() -> None:
    found = rawlog.transactions(KAFKA, topic="transaction-open")
    (row,) = (row for row in found if row["table"] == "open")
    assert (row["transactional_id"], row["status"], row["first_offset"]) == ("transaction-open-open", "Ongoing", 10)
    assert not row["is_hanging"]
    assert not found.has_findings


def test_without_the_coordinator_nothing_hangs_and_a_note_says_so() -> None:
    found = rawlog.transactions(KAFKA / "transaction-open-0")
    assert [row["is_hanging"] for row in found if row["table"] == "open"] == [False]
    assert any("__transaction_state" in note for note in found.notes)


def test_aborted_transactions_are_those_of_the_transaction_index() -> None:
    rows = [row for row in rawlog.transactions(KAFKA, topic="transactions") if row["table"] == "aborted"]
    expected = {
        (row["topic"], row["partition"], row["producer_id"], row["first_offset"], row["last_offset"] + 1)
        for row in rawlog.rows(KAFKA, table="kafka.txnindex", topic="transactions")
    }
    assert {
        tuple(row[name] for name in ("topic", "partition", "producer_id", "start", "stop")) for row in rows
    } == expected


def test_the_command_line_prints_text_or_json() -> None:
    done = CliRunner().invoke(cli, ["groups", str(KAFKA), "--group", "group-classic"])
    assert done.exit_code == 0
    assert "group-classic: kafka, classic, Empty, 0 members, lag 26" in done.output
    rows = [
        json.loads(line) for line in CliRunner().invoke(cli, ["transactions", str(KAFKA), "--json"]).stdout.splitlines()
    ]
    assert {row["table"] for row in rows} == {"open", "ids", "aborted"}
