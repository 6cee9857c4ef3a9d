"""What fails in the middle: threads, brokers that answer garbage or nothing, sources that are cut; and what the Report says of it."""

from __future__ import annotations

import itertools
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_rows
from rawlog.lakes.sources import source_tree
from rawlog.live import client
from rawlog.live.client import BrokerError
from rawlog.live.cluster import Backoff, Cluster, TopicPartition
from rawlog.live.fetch import Fetcher
from rawlog.live.replayer import Ahead
from rawlog.live.sources import native_partitions
from rawlog.model.errors import CorruptError, OptionError, RawlogError
from rawlog.model.table import RECORDS
from rawlog.reading.select import Selection
from tests.data.golden import GOLDEN
from tests.live.test_wire import framed, honest, server, settings

QUICK = {"socket.timeout.ms": "2000", "reconnect.backoff.ms": "1"}


# The thread that reads ahead -------------------------------------------------------------------------------------------------


def test_what_is_read_ahead_comes_in_order_and_not_too_much_of_it() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(100):
            read.append(number)
            yield number

    with Ahead(items(), lambda _: 10, 50) as ahead:
        taken = []
        while not ahead.is_done:
            item = ahead.take(1.0)
            if item is not None:
                assert len(read) <= item + 8
                taken.append(item)
    assert taken == list(range(100))


def test_an_error_of_the_thread_is_raised_also_after_the_last_item() -> None:
    """The loop ended when all items were taken, and the error that ended the source was never seen: the rest was missing in silence."""
    failed = threading.Event()

    def items() -> Iterator[int]:
        yield 1
        try:
            raise CorruptError("cut")
        finally:
            failed.set()

    with Ahead(items(), lambda _: 1, 10) as ahead:
        failed.wait(10)
        ahead._thread.join(10)
        assert not ahead.is_done
        assert ahead.take(1.0) == 1
        assert not ahead.is_done
        with pytest.raises(CorruptError, match="cut"):
            ahead.take(1.0)


def test_the_thread_ends_when_nobody_takes_its_items() -> None:
    with pytest.raises(KeyError), Ahead(itertools.count(), lambda _: 1, 5) as ahead:
        assert ahead.take(10.0) == 0
        raise KeyError
    assert not ahead._thread.is_alive()


# Waiting ---------------------------------------------------------------------------------------------------------------------


def test_patience_begins_with_the_first_error() -> None:
    """A replay at the recorded pace had nothing to send for longer than the patience; the first lost connection then ended it."""
    from dataclasses import replace

    backoff = Backoff(replace(settings("127.0.0.1:1"), patience=0.05, backoff=0.1))
    time.sleep(0.06)
    error = BrokerError("gone")
    backoff.wait(error)
    with pytest.raises(BrokerError, match="gone"):
        backoff.wait(error)


def test_a_broker_that_never_answers_a_fetch_is_given_up() -> None:
    """The reader waited for ever: only a connection that ended was noticed."""
    from dataclasses import replace

    port = [0]

    def answer(key: int, version: int, request: bytes) -> bytes | None:
        return b"" if key == client.FETCH.key else honest(port[0])(key, version, request)

    with server(answer) as address:
        port[0] = int(address.partition(":")[2])
        quick = replace(settings(address), timeout=0.2, patience=0.3)
        with Cluster(quick) as cluster:
            fetcher = Fetcher(cluster, {TopicPartition("t", 0): 0}, {})
            with pytest.raises(BrokerError, match="no answer in time"):
                while True:
                    fetcher.poll(0.1)


# A broker that answers garbage -------------------------------------------------------------------------------------------------


def batch_of(first: int, count: int) -> bytes:
    """A record batch as a broker stores it."""
    rows = [
        {"topic": "t", "partition": 0, "offset": first + number, "key": b"k", "value": b"v%d" % number}
        for number in range(count)
    ]
    table = pa.RecordBatch.from_pylist(
        [{name: row.get(name) for name in RECORDS.names} | {"timestampType": 0} for row in rows], schema=RECORDS.schema
    )
    made = encode_rows(RowBuffers.of(table, 0), Batching())
    data = bytearray(bytes(made.frames.data)[: int(made.frames.stops[-1])])
    struct.pack_into(">q", data, 0, first)
    return bytes(data)


class Fake:
    """A broker with a topic `t` of 100 records, which after some answers of a kind sends garbage."""

    def __init__(self, bad: client.Api, after: int) -> None:
        self.bad, self.after, self.port = bad, after, 0
        self.stored = 0

    def __call__(self, key: int, version: int, request: bytes) -> bytes | None:
        if key == self.bad.key:
            self.after -= 1
            if self.after < 0:
                return (20).to_bytes(4, "big") + request[4:8] + b"\xff" * 16
        made: dict[int, Callable[[], Any]] = {
            client.LIST_OFFSETS.key: self._offsets,
            client.FETCH.key: lambda: self._fetched(request),
            client.PRODUCE.key: self._produced,
            client.INIT_PRODUCER_ID.key: lambda: {"producerId": 7, "producerEpoch": 0},
            client.DESCRIBE_CONFIGS.key: lambda: {"results": []},
        }
        if key not in made:
            return honest(self.port)(key, version, request)
        api = next(one for one in client.APIS if one.key == key)
        return framed(api, version, request, made[key]())

    def _offsets(self) -> Any:
        self.asked = getattr(self, "asked", -1) + 1
        offset = self.stored if self.bad is client.PRODUCE else (0, 100)[self.asked % 2]
        row = {"partitionIndex": 0, "timestamp": -1, "offset": offset}
        return {"topics": [{"name": "t", "partitions": [row]}]}

    def _fetched(self, request: bytes) -> Any:
        row = {"partitionIndex": 0, "highWatermark": 100, "records": batch_of(self.stored, 10)}
        self.stored += 10
        return {"responses": [{"topic": "t", "partitions": [row]}]}

    def _produced(self) -> Any:
        row = {"index": 0, "baseOffset": self.stored}
        self.stored += 10
        return {"responses": [{"name": "t", "partitionResponses": [row]}]}


@pytest.mark.parametrize("form", ["native", "replay"])
def test_garbage_while_recording_leaves_a_valid_recording(tmp_path: Path, form: Any) -> None:
    fake = Fake(client.FETCH, 3)
    with server(fake) as address:
        fake.port = int(address.partition(":")[2])
        report = rawlog.record("t", tmp_path / "one", brokers=address, until_end=True, as_=form, setting=QUICK)
    assert not report.is_whole
    assert "cannot be read" in report.facts["error"]
    assert address in report.facts["error"]
    assert any("not recorded: t-0 from offset 30 on" in line for line in report.lines()), report.lines()
    assert report.counts["records"] == 30 == rawlog.count(tmp_path / "one")
    assert rawlog.verify(tmp_path / "one").verdict == "clean"


@pytest.mark.parametrize("pace", [{}, {"rate": 500}])
def test_garbage_while_replaying_says_what_was_acknowledged(pace: Any) -> None:
    fake = Fake(client.PRODUCE, 2)
    rows = [{"key": b"k", "value": b"v%d" % number, "partition": 0} for number in range(100)]

    def batches() -> Iterator[pa.RecordBatch]:
        for start in range(0, 100, 10):
            yield pa.RecordBatch.from_pylist(rows[start : start + 10])

    with server(fake) as address:
        fake.port = int(address.partition(":")[2])
        reader = pa.RecordBatchReader.from_batches(pa.RecordBatch.from_pylist(rows).schema, batches())
        report = rawlog.replay(reader, brokers=address, to_topic="t", setting=QUICK, **pace)
    assert not report.is_whole
    assert "cannot be read" in report.facts["error"]
    assert report.counts["acknowledged"] < 100
    assert any(f"{report.counts['acknowledged']:,} records are acknowledged" in line for line in report.lines())


def test_errors_of_the_source_are_raised_if_nothing_was_sent() -> None:
    """At a pace the source is read by another thread."""
    fake = Fake(client.PRODUCE, 1000)

    def rows() -> Iterator[dict[str, Any]]:
        raise CorruptError("cut at once")
        yield {}

    for pace in ({}, {"rate": 100.0}):
        with server(fake) as address:
            fake.port = int(address.partition(":")[2])
            with pytest.raises(RawlogError, match="cut at once"):
                rawlog.replay(rows(), brokers=address, to_topic="t", setting=QUICK, **pace)  # type: ignore[arg-type]


# A source that is cut or damaged -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pace", [{}, {"rate": 1000.0}])
def test_a_cut_recording_is_sent_up_to_the_cut(tmp_path: Path, pace: Any) -> None:
    path = tmp_path / "messages.log"
    rows = [{"key": b"k", "value": b"value %d" % number, "timestamp": 0} for number in range(50)]
    rawlog.write(path, iter(rows), format="replay")
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    fake = Fake(client.PRODUCE, 1000)
    with server(fake) as address:
        fake.port = int(address.partition(":")[2])
        report = rawlog.replay(path, brokers=address, to_topic="t", setting=QUICK, **pace)
    assert not report.is_whole
    assert any("not sent" in line and "messages.log: byte " in line for line in report.lines()), report.lines()
    assert report.counts["acknowledged"] == 49
    assert report.counts["failed"] == 0


def test_a_damaged_batch_ends_a_replay_after_those_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "t-0"
    folder.mkdir()
    data = bytearray(b"".join(batch_of(first, 10) for first in (0, 10, 20)))
    data[len(data) * 2 // 3 - 3] ^= 1
    (folder / "00000000000000000000.log").write_bytes(data)
    fake = Fake(client.PRODUCE, 1000)
    with server(fake) as address:
        fake.port = int(address.partition(":")[2])
        report = rawlog.replay(tmp_path, brokers=address, setting=QUICK)
        assert not report.is_whole
        assert "00000000000000000000.log" in report.facts["error"]
        assert report.counts["acknowledged"] == 10
        skipped = rawlog.replay(tmp_path, brokers=address, setting=QUICK, errors="skip")
        assert skipped.counts["acknowledged"] == 20
        assert not skipped.is_whole
        assert any("checksum" in line and "byte " in line for line in skipped.lines()), skipped.lines()
        assert rawlog.replay(tmp_path, brokers=address, setting=QUICK, errors="stop").counts["acknowledged"] == 10


def test_a_checkpoint_is_not_written_into_the_source(tmp_path: Path) -> None:
    rawlog.write(tmp_path / "source" / "x.log", [{"key": b"k", "value": b"v", "timestamp": 0}], format="replay")
    with pytest.raises(OptionError, match="lie inside one another"):
        rawlog.replay(
            tmp_path / "source", brokers="127.0.0.1:1", to_topic="t", checkpoint=tmp_path / "source" / "state"
        )


def test_a_checkpoint_that_cannot_be_written_does_not_hide_what_was_sent(tmp_path: Path) -> None:
    """At the end its error was raised in place of the Report."""
    fake = Fake(client.PRODUCE, 1000)
    state = tmp_path / "folder" / "state"
    state.parent.mkdir()

    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([{"key": b"k", "value": b"v", "partition": 0}] * 10)
        state.unlink()
        state.parent.rmdir()
        state.parent.write_bytes(b"no folder any more")

    with server(fake) as address:
        fake.port = int(address.partition(":")[2])
        schema = pa.schema({"key": pa.binary(), "value": pa.binary(), "partition": pa.int64()})
        reader = pa.RecordBatchReader.from_batches(schema, batches())
        report = rawlog.replay(reader, brokers=address, to_topic="t", setting=QUICK, checkpoint=state)
    assert not report.is_whole
    assert str(state) in report.facts["error"]
    assert report.counts["acknowledged"] == 10


@pytest.mark.parametrize("options", [{}, {"keep_batches": True}, {"rate": 5000.0}])
def test_a_record_that_is_too_large_ends_a_replay_after_those_before_it(tmp_path: Path, options: Any) -> None:
    rows = [{"key": b"k", "value": bytes(2 << 20 if number == 7 else 10), "timestamp": 0} for number in range(10)]
    rawlog.write(tmp_path / "logs", iter(rows), format="kafka", topic="t", partition=0)
    fake = Fake(client.PRODUCE, 1000)
    with server(fake) as address:
        fake.port = int(address.partition(":")[2])
        report = rawlog.replay(tmp_path / "logs", brokers=address, setting=QUICK, **options)
    assert not report.is_whole
    for words in ("offset 7: a record ", "1,048,588", "2,097,"):
        assert words in report.facts["error"]
    assert report.counts["acknowledged"] == 7


# Sources ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.9.2", "4.3.0"])
def test_the_directory_of_a_broker_is_replayed_without_its_own_topics(version: str) -> None:
    """Next to the metadata log it was no directory of partitions any more: it was read by rows, and those of `__consumer_offsets` were
    meant for the topic of that name.
    """
    tree = source_tree([str(GOLDEN / "kafka" / f"broker-{version}" / "data")], RECORDS)
    found = native_partitions(tree, Selection())
    assert found is not None
    topics = {one.partition.topic for one in found}
    assert "transactions" in topics
    assert not [topic for topic in topics if topic.startswith("__")]
    named = native_partitions(tree, Selection(topics=("__consumer_offsets",)))
    assert {one.partition.topic for one in named or ()} == {"__consumer_offsets"}
