"""Transactions that were open when the cluster died: the log of their coordinator decides, and the result says so everywhere."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.formats.kafka.cluster.internal_topics import (
    Endings,
    TransactionState,
    TransactionStatus,
    last_states,
    partition_of,
    states_in,
)
from rawlog.formats.kafka.internal.codec import codec
from rawlog.formats.kafka.internal.messages import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    KeyedRecord,
    encode_keyed,
    key_types,
)
from rawlog.formats.kafka.log.writer import BatchFields, encode_batch
from rawlog.model.table import RECORDS
from rawlog.reading.tree import open_tree
from tests.data.kraft import data_dir

OPEN = "transaction-open-open"
"""The transaction that is open in the golden data; its records are in `transaction-open`."""


def append(disk: Path, topic: str, number: int, pair: tuple[bytes, bytes | None], fields: BatchFields) -> None:
    """Write one more record at the end of a partition."""
    rows = rawlog.read(disk / f"{topic}-{number}", table="kafka.records").to_pylist()
    offset = max((row["offset"] for row in rows), default=-1) + 1
    row = {"key": pair[0], "value": pair[1], "offset": offset, "timestamp": 1_700_000_000_000_000, "headers": []}
    made = encode_batch(pa.RecordBatch.from_pylist([row], schema=RECORDS.schema), fields)
    log = max((disk / f"{topic}-{number}").glob("*.log"))
    with log.open("ab") as file:
        file.write(bytes(made.frames.data))


def last_state(disk: Path, name: str = OPEN) -> tuple[int, TransactionState, KeyedRecord]:
    found = []
    for number in (0, 1):
        files = [one for one in open_tree(disk / f"{TRANSACTION_STATE}-{number}").files if one.format == "kafka.log"]
        found += [(number, state, record) for state, record in states_in(files) if state.id == name]
    return found[-1]


def commit(group: str, offset: int) -> tuple[bytes, bytes | None]:
    key_schema, value_schema = key_types(CONSUMER_OFFSETS)[1]
    made = codec(value_schema, 3)
    value = {"offset": offset, "leaderEpoch": -1, "metadata": "", "commitTimestamp": 1_700_000_000_000}
    key = {"group": group, "topic": "codec-none", "partition": 0}
    return encode_keyed(KeyedRecord(1, "OffsetCommit", key, codec(key_schema, 1), 3, value, made))


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A disk with an open transaction that has committed an offset of a group, which had committed another one before."""
    made = tmp_path / "disk"
    shutil.copytree(data_dir("broker-3.9.2"), made)
    (made / ".kafka_cleanshutdown").unlink(missing_ok=True)
    number = partition_of("torn", 3)
    append(made, CONSUMER_OFFSETS, number, commit("torn", 3), BatchFields(leader_epoch=0))
    _, state, _ = last_state(made)
    pending = BatchFields(
        leader_epoch=0, producer_id=state.producer, producer_epoch=state.epoch, base_sequence=0, is_transactional=True
    )
    append(made, CONSUMER_OFFSETS, number, commit("torn", 5), pending)
    return made


def prepare(disk: Path, status: TransactionStatus) -> None:
    number, _, record = last_state(disk)
    value = {**(record.value or {}), "transactionStatus": int(status)}
    changed = KeyedRecord(
        record.type, record.name, record.key, record.key_codec, record.version, value, record.value_codec
    )
    append(disk, TRANSACTION_STATE, number, encode_keyed(changed), BatchFields(leader_epoch=0))


def visible(path: Path) -> list[Any]:
    return rawlog.read(path, topic="transaction-open", isolation="read_committed")["value"].to_pylist()


def aborted(path: Path) -> list[Any]:
    """What is visible once the open transaction is aborted."""
    rows = rawlog.read(path, table="kafka.records", topic="transaction-open").to_pylist()
    opened = last_state(path)[1].producer
    return [
        row["value"] for row in rows if not row["is_control"] and not row["aborted"] and row["producer_id"] != opened
    ]


def offset_of(path: Path, group: str) -> int:
    rows = rawlog.read(path, table="kafka.offsets").to_pylist()
    [found] = [row["committed_offset"] for row in rows if row["group"] == group and row["is_current"]]
    return int(found)


@pytest.mark.parametrize("status", [None, TransactionStatus.PREPARE_ABORT, TransactionStatus.PREPARE_COMMIT])
def test_the_log_of_the_coordinator_decides_everywhere(
    status: TransactionStatus | None, disk: Path, tmp_path: Path
) -> None:
    if status is not None:
        prepare(disk, status)
    pending = rawlog.read(disk, topic="transaction-open")["value"].to_pylist()
    before = aborted(disk)
    assert len(before) < len(pending)
    target = tmp_path / "new"
    report = rawlog.rescue([disk], to=target)
    is_commit = status is TransactionStatus.PREPARE_COMMIT
    assert visible(target) == (pending if is_commit else before)
    assert offset_of(target, "torn") == (5 if is_commit else 3)
    assert report.counts["transactions_committed" if is_commit else "transactions_aborted"] == 2
    _, ended, record = last_state(target)
    assert ended.status == (TransactionStatus.COMPLETE_COMMIT if is_commit else TransactionStatus.COMPLETE_ABORT)
    assert record.value is not None
    assert record.value["transactionPartitions"] == []
    assert ended.epoch == last_state(disk)[1].epoch + (status is None)
    assert not [one for one in rawlog.verify(target) if str(one.severity) == "error"]
    clean = rawlog.rescue([target], to=tmp_path / "again")
    assert not clean.counts.get("transactions_aborted")
    assert not clean.counts.get("transactions_committed")


def test_a_restored_group_does_not_lose_an_offset_whose_commit_is_prepared(disk: Path, tmp_path: Path) -> None:
    """Offsets are committed again by restore. Those were after an offset of a transaction that the new coordinator commits later, and
    replaced it.
    """
    prepare(disk, TransactionStatus.PREPARE_COMMIT)
    rawlog.restore(disk, tmp_path / "new")
    rows = rawlog.read(tmp_path / "new", table="kafka.offsets").to_pylist()
    last = [row for row in rows if row["group"] == "torn"][-1]
    assert (last["committed_offset"], last["state"]) == (5, "pending")


def test_without_the_coordinators_log_open_transactions_are_aborted(disk: Path, tmp_path: Path) -> None:
    before = aborted(disk)
    for number in (0, 1):
        shutil.rmtree(disk / f"{TRANSACTION_STATE}-{number}")
    report = rawlog.rescue([disk], to=tmp_path / "new")
    assert visible(tmp_path / "new") == before
    assert report.counts["transactions_aborted"] == 2
    assert any("__transaction_state is not whole" in one for one in report.facts["unknown"])
    assert offset_of(tmp_path / "new", "torn") == 3


def test_producer_ids_go_on_after_all_that_were_given_out(disk: Path, tmp_path: Path) -> None:
    number, _, record = last_state(disk)
    value = {**(record.value or {}), "producerId": 7_654_321, "transactionStatus": int(TransactionStatus.EMPTY)}
    changed = KeyedRecord(
        record.type,
        record.name,
        {"transactionalId": "far"},
        record.key_codec,
        record.version,
        value,
        record.value_codec,
    )
    append(disk, TRANSACTION_STATE, number, encode_keyed(changed), BatchFields(leader_epoch=0))
    rawlog.rescue([disk], to=tmp_path / "new")
    rows = rawlog.cluster(tmp_path / "new")
    [head] = [row for row in rows if row["table"] == "cluster"]
    assert head["next_producer_id"] == 7_655_000


def one(
    status: TransactionStatus, epoch: int, *, version: int = 0, offset: int = 1, name: str = "t"
) -> TransactionState:
    return TransactionState(name, offset, status, 9, epoch, 1_000, version)


@pytest.mark.parametrize(
    ("state", "epoch", "newest", "commits"),
    [
        (one(TransactionStatus.PREPARE_COMMIT, 4), 4, 2_000, True),
        (one(TransactionStatus.PREPARE_COMMIT, 4, version=2), 3, 2_000, True),
        (one(TransactionStatus.PREPARE_COMMIT, 4), 5, 2_000, False),  # a later transaction, which no state tells of
        (one(TransactionStatus.COMPLETE_COMMIT, 4), 4, 900, True),  # its marker is lost
        (one(TransactionStatus.COMPLETE_COMMIT, 4), 4, 2_000, False),  # written after it was complete
        (one(TransactionStatus.COMPLETE_COMMIT, 4, version=2), 3, 2_000, True),
        (one(TransactionStatus.COMPLETE_COMMIT, 4, version=2), 4, 900, False),
        (one(TransactionStatus.ONGOING, 4), 4, 900, False),
        (one(TransactionStatus.PREPARE_ABORT, 4), 4, 900, False),
        (one(TransactionStatus.COMPLETE_ABORT, 4), 4, 900, False),
    ],
)
def test_which_records_a_state_commits(state: TransactionState, epoch: int, newest: int, commits: bool) -> None:
    assert state.commits(epoch, newest) is commits


def test_the_newest_state_of_a_transactional_id_counts() -> None:
    older, newer = one(TransactionStatus.PREPARE_COMMIT, 4, offset=5), one(TransactionStatus.ONGOING, 5, offset=6)
    assert Endings.of([newer, older]).by_producer == {9: newer}


def test_only_the_last_states_are_remembered() -> None:
    files = [file for file in open_tree(data_dir("broker-3.9.2")).files if file.format == "kafka.log"]
    own = [file for file in files if file.place.topic == TRANSACTION_STATE and file.place.partition == 1]
    found = last_states(own)
    assert {state.id for state in found} == {"tx-2", "transaction-open-c", "ctx-a", "group-tx-offsets", "tx-0"}
    assert max(sum(state.id == name for state in found) for name in {state.id for state in found}) <= 4
