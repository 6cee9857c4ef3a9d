"""Real brokers start on what was erased and on what was masked: they serve every other record, go on taking more, and nothing of what was
erased is in any byte.
"""

from __future__ import annotations

import gzip
import hashlib
import hmac
import shutil
from pathlib import Path
from typing import Any

import pytest

import rawlog
from tests.conftest import needed
from tests.data.golden import golden_path
from tests.formats.rocketmq.test_broker import CONFIG, entries
from tests.reference.search import places
from tests.services.kafka import KAFKA_4, KafkaBroker
from tests.services.rocketmq import ROCKETMQ_5, RocketBroker
from tests.verbs.test_restore_brokers import consumed, produced, rows_of, same

pytestmark = pytest.mark.broker

KAFKA = Path(golden_path("kafka", "broker-4.3.0", "data"))
STORE = Path(golden_path("rocketmq", "broker-5.3.3", "store"))
#: A text in values of 16 topics: of every codec, in transactions, compacted, in segments by size.
PERSON = b"emoji"
SECRET = b"a secret of a test"


def test_kafka_serves_what_was_not_erased(tmp_path: Path) -> None:
    """By text in all topics, with transactions and compaction."""
    before = rows_of(KAFKA)
    report = rawlog.erase(KAFKA, tmp_path / "erased", find=PERSON, engine="local")
    assert report.is_whole
    assert places(KAFKA, PERSON)
    assert places(tmp_path / "erased", PERSON) == []
    certificate = tmp_path / "erased.certificate.json"
    assert rawlog.verify(tmp_path / "erased", certificate=certificate).verdict == "clean"
    expected = {place: [row for row in rows if PERSON not in repr(row).encode()] for place, rows in before.items()}
    assert len({topic for topic, _ in before if before[topic, _] != expected[topic, _]}) == 16
    committed = rows_of(tmp_path / "erased", "read_committed")
    with needed(), KafkaBroker(KAFKA_4, tmp_path / "erased", {"log.cleaner.enable": "false"}) as broker:
        same(consumed(broker, sorted(before)), expected)
        known = {place: rows for place, rows in committed.items() if place[0] == "transactions"}
        same(consumed(broker, sorted(known), "read_committed"), known)
        [[place, offset]] = produced(broker, [("codec-zstd", 0)]).items()
        assert offset > max(row[0] for row in before[place])
    assert places(tmp_path / "erased", PERSON) == []


def test_kafka_serves_what_was_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_MASK_SECRET", SECRET.decode())
    topics = ["codec-zstd", "codec-none", "transactions", "compacted"]
    report = rawlog.restore(KAFKA, tmp_path / "shared", topic=topics, mask="key=hash,value=hash", engine="local")
    assert report.is_whole
    expected = {
        place: [(offset, masked(key), masked(value), *rest) for offset, key, value, *rest in rows]
        for place, rows in rows_of(KAFKA, "read_committed").items()
        if place[0] in topics
    }
    with needed(), KafkaBroker(KAFKA_4, tmp_path / "shared", {"log.cleaner.enable": "false"}) as broker:
        same(consumed(broker, sorted(expected), "read_committed"), expected)
        produced(broker, [("codec-zstd", 0)])


def masked(text: bytes | None) -> bytes | None:
    """What a keyed hash makes of bytes, by hand."""
    if text is None:
        return None
    return hashlib.shake_256(hmac.digest(SECRET, b"hash" + text, "sha256")).hexdigest(17)[:32].encode()


def test_rocketmq_serves_what_was_not_erased(tmp_path: Path) -> None:
    """A message that was retried until it died, and a delayed one: they and their copies are gone from logs, queues and the key index."""
    before = {
        queue: rows for queue, rows in entries(STORE).items() if queue[0] != "gold_compact"
    }  # not served from a copy
    store = (
        tmp_path / "store"
    )  # the timer wheel is packed in the golden data; `erase` rightly leaves out what it cannot read
    shutil.copytree(STORE, store, ignore=shutil.ignore_patterns("timerwheel.gz"))
    (store / "timerwheel").write_bytes(gzip.decompress((STORE / "timerwheel.gz").read_bytes()))
    report = rawlog.erase(store, tmp_path / "erased", key=["dlq0", "order-179"], engine="local")
    assert report.is_whole
    assert places(tmp_path / "erased", b"dlq0", b"order-179 ") == []
    gone: set[tuple[str, int, int]] = {
        (one["topic"], one["partition"], one["offset"]) for one in rawlog.read(STORE, key="order-179").to_pylist()
    }
    assert gone
    queues: dict[Any, Any] = entries(tmp_path / "erased")
    with needed(), RocketBroker(ROCKETMQ_5, tmp_path / "erased", CONFIG) as broker:
        for (topic, queue_id), rows in before.items():
            served = broker.pull(topic, queue_id)
            assert len(served) >= len(rows), (topic, queue_id)
            assert not [one for one in served if b"order-179 " in one or b"dlq0" in one]
            kept = [row["bytes"] for row in queues.get((topic, queue_id), ())]
            assert served[: len(rows)] == kept, (topic, queue_id)
        for topic, _, _ in gone:
            assert broker.by_key(topic, "order-179") == []
        assert broker.by_key("gold_rt", "dlq0") == []
        (topic, queue_id), rows = next(iter(before.items()))
        assert broker.send(topic, queue_id, b"one more") == len(rows)
