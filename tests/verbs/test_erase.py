"""Erasing: what goes, what stays, and the certificate that proves both."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.structures import Chunk
from rawlog.formats.ambry.writer import Properties, put_message
from rawlog.model.errors import AccessError, OptionError
from rawlog.reading.erasure import seal
from tests.data.ambry_stores import make_metadata
from tests.data.golden import golden_path
from tests.reference.search import places

KAFKA = Path(golden_path("kafka", "broker-4.3.0", "data"))
STORE = Path(golden_path("rocketmq", "broker-5.3.3", "store"))
BLOBS = Path(golden_path("ambry", "store-small"))
CODES = "rawlog.certificate"


def person(number: int, name: str) -> dict[str, Any]:
    """A record in which a person may be in the key, in the value or in a header."""
    value = {"user": name if number % 3 == 1 else "nobody", "n": number, "filler": "x" * 40}
    headers = [{"key": "by", "value": name.encode()}] if number % 3 == 2 else []
    key = f"user-{name}" if number % 3 == 0 else f"user-{number}"
    return {"key": key.encode(), "value": json.dumps(value).encode(), "headers": headers, "topic": "orders",
            "partition": number % 2, "offset": 1000 + number // 2, "timestamp": 1_700_000_000_000_000 + number * 1000}  # fmt: skip


def written(folder: Path, codec: str) -> Path:
    """A log directory in small batches and several segments, which begins at offset 1,000, as after older ones went to a tier."""
    rows = [person(number, "alice" if number % 4 else "robert") for number in range(400)]
    options = {"codec": codec, "batch_records": 7, "segment_bytes": 4096, "start_offset": 1000}
    rawlog.write(folder, rows, format="kafka", **options)
    return folder


def nowhere(folder: Path, *texts: bytes) -> None:
    """None of the texts is in any byte, neither as stored nor decompressed, by a reader of its own and by rawlog's."""
    assert places(folder, *texts) == []
    for row in rawlog.read(folder, replicas="all").to_pylist():
        parts = [row["key"], row["value"], *(one["value"] for one in row["headers"] or ())]
        assert not [text for text in texts for part in parts if part and text in part]


def certificate_of(target: Path) -> tuple[Path, dict[str, Any]]:
    path = target.parent / f"{target.name}.certificate.json"
    return path, json.loads(path.read_bytes())


def codes(path: Path, certificate: Path, schemas: Path | None = None) -> set[str]:
    found = rawlog.verify(path, certificate=certificate, schemas=schemas)
    return {one.code for one in found if one.severity in ("error", "warning")}


NOTES = {"timerwheel.gz", "expected.json"}


def is_whole_but_for_notes(report: rawlog.Report) -> bool:
    """Whether all of a store was copied but files that only golden data has, and no format knows."""
    assert {Path(path).name for path in report.all_left_out} <= NOTES
    return replace(report, left_out=[]).is_whole


# Kafka -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_nothing_of_a_person_is_left_in_any_byte(codec: str, tmp_path: Path) -> None:
    source, target = written(tmp_path / "source", codec), tmp_path / "out"
    before = rawlog.read(source).to_pylist()
    report = rawlog.erase(source, target, find="alice")
    assert report.is_whole
    nowhere(target, b"alice")
    kept = [row for row in before if b"alice" not in repr(row).encode()]
    assert rawlog.read(target).to_pylist() == kept
    assert report.counts["dropped"] == len(before) - len(kept) > 250
    path, made = certificate_of(target)
    assert codes(target, path) == set()
    assert made["asked"] == {"find": "alice"}
    assert made["records_kept"] == len(kept)
    assert made["records_removed"] == report.counts["dropped"]
    ends = [[row["end_offset"] or 0 for row in rawlog.read(one, table="files").to_pylist()] for one in (source, target)]
    assert max(ends[0]) == max(ends[1]) == 1200


def test_by_key_expression_and_topic(tmp_path: Path) -> None:
    source = written(tmp_path / "source", "zstd")
    every = rawlog.count(source)
    cases: dict[str, dict[str, Any]] = {
        "key": {"key": "user-alice"},
        "where": {"where": "value.user = 'alice'"},
        "header": {"where": "headers.by = 'alice'"},
        "both": {"where": "value.user = 'alice'", "topic": "orders", "partition": 1, "to_offset": 1100},
        "topic": {"topic": "orders"},
    }
    for name, asked in cases.items():
        planned = rawlog.erase(source, tmp_path / name, dry_run=True, **asked)
        assert not (tmp_path / name).exists()
        report = rawlog.erase(source, tmp_path / name, **asked)
        matching = rawlog.count(source, **asked)
        assert report.counts["dropped"] == planned.counts["dropped"] == matching > 0, name
        assert rawlog.count(tmp_path / name) == every - matching
        assert rawlog.count(tmp_path / name, **asked) == 0
        assert codes(tmp_path / name, certificate_of(tmp_path / name)[0]) == set()
    assert rawlog.count(tmp_path / "topic") == 0


def test_a_broker_directory_with_transactions_and_compaction(tmp_path: Path) -> None:
    report = rawlog.erase(KAFKA, tmp_path / "out", key="ck-21")
    assert report.is_whole
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    path, made = certificate_of(tmp_path / "out")
    assert codes(tmp_path / "out", path) == set()
    removed = [one for store in made["stores"] for one in store["removed"]]
    assert {(one["topic"], one["offset"]) for one in removed} == {
        (row["topic"], row["offset"]) for row in rawlog.read(KAFKA, key="ck-21").to_pylist()
    }
    names = {one["path"] for one in made["result"]["files"]}
    assert "meta.properties" in names
    assert names == {
        one.relative_to(tmp_path / "out").as_posix() for one in (tmp_path / "out").rglob("*") if one.is_file()
    }
    text = (tmp_path / "out.certificate.txt").read_text()
    assert made["sha256"] in text
    assert "asked         keys: ck-21" in text


def test_an_absent_key_is_noted_and_certified(tmp_path: Path) -> None:
    source = written(tmp_path / "source", "none")
    report = rawlog.erase(source, tmp_path / "out", key=["user-alice", "user-nobody-here"])
    assert report.is_whole
    assert report.notes[0] == "no record has the key user-nobody-here"
    assert certificate_of(tmp_path / "out")[1]["absent"] == ["user-nobody-here"]


def test_mentions_of_a_key_elsewhere_are_listed(tmp_path: Path) -> None:
    rows = [{"key": b"customer-17", "value": b"own"}, {"key": b"other", "value": b"friend of customer-17."},
            {"key": b"customer-171", "value": b"somebody else"}]  # fmt: skip
    rows = [row | {"topic": "t", "partition": 0, "offset": number, "timestamp": 0} for number, row in enumerate(rows)]
    rawlog.write(tmp_path / "source", rows, format="kafka", codec="gzip")
    report = rawlog.erase(tmp_path / "source", tmp_path / "out", key="customer-17")
    assert report.is_whole
    path, made = certificate_of(tmp_path / "out")
    assert len(made["mentions"]) == 1
    assert made["mentions"][0].endswith("record t partition 0 offset 1")
    found = [one.message for one in rawlog.verify(tmp_path / "out", certificate=path) if one.code == f"{CODES}.mention"]
    assert found == ["'customer-17' in a record: t partition 0 offset 1"]


def test_several_sources_are_parts_of_one_whole(tmp_path: Path) -> None:
    """As the disks of a broker, or a log directory and remote storage, of which one command makes one result and one certificate."""
    source = written(tmp_path / "source", "none")
    parts = [tmp_path / "a", tmp_path / "b"]
    for number, part in enumerate(parts):
        part.mkdir()
        shutil.copytree(source / f"orders-{number}", part / f"orders-{number}")
    report = rawlog.erase(parts, tmp_path / "out", find="alice", engine="local")
    assert report.is_whole
    nowhere(tmp_path / "out", b"alice")
    rawlog.erase(source, tmp_path / "whole", find="alice", engine="local")
    assert rawlog.read(tmp_path / "out").equals(rawlog.read(tmp_path / "whole"))
    assert codes(tmp_path / "out", certificate_of(tmp_path / "out")[0]) == set()
    with pytest.raises(OptionError, match="partitions of the same name"):
        rawlog.erase([source, parts[0]], tmp_path / "twice", find="alice", engine="local")
    assert not (tmp_path / "twice").exists()


# Certificates ----------------------------------------------------------------------------------------------------------


def test_a_result_that_was_changed_is_found(tmp_path: Path) -> None:
    source = written(tmp_path / "source", "none")
    rawlog.erase(source, tmp_path / "out", key="user-alice")
    path, made = certificate_of(tmp_path / "out")
    shutil.copytree(tmp_path / "out", tmp_path / "moved")
    assert codes(tmp_path / "moved", path) == set()
    (tmp_path / "moved" / "more").write_text("new")
    assert codes(tmp_path / "moved", path) == {f"{CODES}.result"}
    (tmp_path / "moved" / "more").unlink()
    (tmp_path / "moved" / "orders-0" / "leader-epoch-checkpoint").unlink()
    assert f"{CODES}.result" in codes(tmp_path / "moved", path)
    assert codes(source, path) == {f"{CODES}.result", f"{CODES}.remains"}
    rawlog.erase(source, tmp_path / "more", key=["user-alice", "user-robert"])
    assert f"{CODES}.kept" in codes(tmp_path / "more", path)
    made["records_removed"] += 1
    path.write_text(json.dumps(made))
    assert codes(tmp_path / "out", path) == {f"{CODES}.content"}
    for text in ("no JSON", '{"certificate": 7}'):
        path.write_text(text)
        with pytest.raises(OptionError, match="not the certificate"):
            rawlog.verify(tmp_path / "out", certificate=path)


def test_a_certificate_that_was_tampered_with_is_found(tmp_path: Path) -> None:
    """Without its stores a certificate ended the command with a KeyError; with a new hash over a wrong count nothing was found."""
    rawlog.erase(written(tmp_path / "source", "none"), tmp_path / "out", key="user-alice")
    path, made = certificate_of(tmp_path / "out")
    changes: list[Any] = [
        lambda one: one.pop("stores"),
        lambda one: one.update(asked={"keys": 7}),
        lambda one: one.update(asked={"where": "nonsense = 1"}),
        lambda one: one["asked"].update(decode=True),
        lambda one: one["result"].update(files=[{"path": 1}]),
        lambda one: one["stores"][0]["removed"].pop(),
        lambda one: one.update(records_kept=1),
    ]
    for number, change in enumerate(changes):
        tampered = json.loads(json.dumps(made))
        change(tampered)
        for is_sealed in (False, True):
            tampered["sha256"] = seal(tampered) if is_sealed else made["sha256"]
            path.write_text(json.dumps(tampered))
            assert f"{CODES}.content" in codes(tmp_path / "out", path), (number, is_sealed)


def test_what_is_in_no_record_is_noted(tmp_path: Path) -> None:
    source = written(tmp_path / "source", "none")
    asked: list[dict[str, Any]] = [
        {"find": "mallory"},
        {"where": "value.user = 'mallory'"},
        {"topic": "orders", "since": "2031-01-01"},
    ]
    for number, one in enumerate(asked):
        report = rawlog.erase(source, tmp_path / f"out{number}", **one)
        assert report.is_whole
        assert report.notes == ["no record matches: nothing was removed"]
        assert rawlog.count(tmp_path / f"out{number}") == rawlog.count(source)


def test_a_certificate_goes_where_it_is_wanted_and_nowhere_else(tmp_path: Path) -> None:
    source = written(tmp_path / "source", "none")
    asked: dict[str, Any] = {"key": "user-alice"}
    for place in (source / "c.json", tmp_path / "out" / "c.json"):
        with pytest.raises(OptionError, match="inside one another"):
            rawlog.erase(source, tmp_path / "out", certificate=place, **asked)
    rawlog.erase(source, tmp_path / "out", certificate=tmp_path / "paper" / "alice.json", **asked)
    assert {one.name for one in (tmp_path / "paper").iterdir()} == {"alice.json", "alice.txt"}
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(AccessError, match="exists already"):
        rawlog.erase(source, tmp_path / "out", certificate=tmp_path / "paper" / "alice.json", **asked)
    assert not (tmp_path / "out").exists()
    rawlog.erase(source, tmp_path / "out", certificate=tmp_path / "paper" / "alice.json", force=True, **asked)
    assert {one.name for one in tmp_path.iterdir()} == {"source", "out", "paper"}


@pytest.mark.parametrize("asked", [{}, {"find": ""}, {"key": "a", "id": "b"}, {"where": "nonsense = 1"}])
def test_what_is_not_clear_is_refused(asked: dict[str, Any], tmp_path: Path) -> None:
    source = written(tmp_path / "source", "none")
    with pytest.raises(OptionError):
        rawlog.erase(source, tmp_path / "out", **asked)
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


# RocketMQ --------------------------------------------------------------------------------------------------------------


def test_an_erased_message_goes_with_all_its_copies(tmp_path: Path) -> None:
    """A message that was retried and died is in its topic, in the retry topic, in the dead letter queue, and delayed in between."""
    before = rawlog.read(STORE, key="dlq0").to_pylist()
    assert {row["topic"] for row in before} >= {"gold_rt", "%DLQ%gold_rtgroup"}
    report = rawlog.erase(STORE, tmp_path / "out", key="dlq0", topic="gold_rt")
    assert is_whole_but_for_notes(report)
    path, made = certificate_of(tmp_path / "out")
    topics = {one["topic"] for store in made["stores"] for one in store["removed"]}
    assert topics == {row["topic"] for row in before}
    assert rawlog.count(tmp_path / "out", key="dlq0") == 0
    nowhere(tmp_path / "out", b"dlq0")
    assert codes(tmp_path / "out", path) == set()
    after = rawlog.read(tmp_path / "out").to_pylist()
    gone = {(row["topic"], row["partition"], row["offset"]) for row in before}
    assert after == [
        row for row in rawlog.read(STORE).to_pylist() if (row["topic"], row["partition"], row["offset"]) not in gone
    ]
    queues = ["topic", "queue_id", "queue_offset", "physical_offset", "size"]
    old, new = (rawlog.read(path, table="rocketmq.queues", columns=queues) for path in (STORE, tmp_path / "out"))
    order = [(name, "ascending") for name in queues]
    assert old.sort_by(order).equals(new.sort_by(order))
    keys = [rawlog.count(path, table="rocketmq.keys") for path in (STORE, tmp_path / "out")]
    assert keys[1] < keys[0]


def test_a_store_from_which_nothing_goes_keeps_its_logs(tmp_path: Path) -> None:
    rawlog.erase(STORE, tmp_path / "out", key="no such key")
    for folder in ("commitlog", "consumequeue", "compaction"):
        for path in (STORE / folder).rglob("0*"):
            if path.is_file():
                assert (tmp_path / "out" / path.relative_to(STORE)).read_bytes() == path.read_bytes(), path


def test_copies_of_compaction_topics_and_half_messages_go(tmp_path: Path) -> None:
    compacted = rawlog.read(STORE, topic="gold_compact").to_pylist()
    key = compacted[-1]["key"]
    rawlog.erase(STORE, tmp_path / "out", key=key)
    log = rawlog.read(tmp_path / "out" / "compaction", table="rocketmq.compacted", columns=["keys"]).to_pylist()
    assert log
    assert key.decode() not in {row["keys"] for row in log}
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    report = rawlog.erase(STORE, tmp_path / "tx", key="commit-0", topic="gold_tx")
    assert is_whole_but_for_notes(report)
    assert rawlog.count(STORE, key="commit-0", topic="RMQ_SYS_TRANS_HALF_TOPIC") > 0
    assert rawlog.count(tmp_path / "tx", key="commit-0") == 0


def test_bytes_after_the_end_of_a_reused_log_do_not_stay(tmp_path: Path) -> None:
    """A broker that reuses files leaves old messages after the end of its log."""
    store = tmp_path / "store"
    shutil.copytree(STORE, store)
    last = max((store / "commitlog").iterdir())
    data = bytearray(last.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    first = (min((store / "commitlog").iterdir())).read_bytes()
    size = int.from_bytes(first[:4], "big")
    data[end : end + size] = first[:size]
    last.write_bytes(data)
    rawlog.erase(store, tmp_path / "out", key="dlq0")
    assert len((tmp_path / "out" / "commitlog" / last.name).read_bytes().rstrip(b"\0")) <= end


# kafka-replay and Ambry ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
def test_recordings(version: int, tmp_path: Path) -> None:
    rows = [{"key": b"k%d" % (n % 3), "value": b"value %d of %s" % (n, b"alice" if n % 4 == 0 else b"bob"), "timestamp": 0}
            for n in range(50)]  # fmt: skip
    source = tmp_path / "source.log"
    rawlog.write(source, rows, format="replay", version=version, accept_loss=["key", "offset", "headers"])
    report = rawlog.erase(source, tmp_path / "out.log", find="alice")
    assert report.counts["dropped"] == 13
    nowhere(tmp_path / "out.log", b"alice")
    assert [row["value"] for row in rawlog.read(tmp_path / "out.log").to_pylist()] == [
        row["value"] for row in rows if b"alice" not in row["value"]
    ]
    assert codes(tmp_path / "out.log", tmp_path / "out.log.certificate.json") == set()


def test_an_erased_blob_no_longer_extracts(tmp_path: Path) -> None:
    """The content was zeros, but the blob was live: a file of zeros was extracted."""
    blobs = {row["blob_id"]: row["state"] for row in rawlog.read(BLOBS, table="ambry.blobs").to_pylist()}
    live = [one for one, state in blobs.items() if state == "live"]
    report = rawlog.erase(BLOBS, tmp_path / "out", id=live[0])
    assert is_whole_but_for_notes(report)
    assert (report.counts["erased"], report.counts["deleted"], report.counts["dropped"]) == (1, 1, 1)
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    states = {row["blob_id"]: row["state"] for row in rawlog.read(tmp_path / "out", table="ambry.blobs").to_pylist()}
    assert states == blobs | {live[0]: "deleted"}
    rawlog.extract(tmp_path / "out", to=tmp_path / "files")
    rawlog.extract(tmp_path / "out", to=tmp_path / "all", all=True)
    for folder in ("files", "all"):
        manifest = (tmp_path / folder / "manifest.jsonl").read_text()
        assert live[0] not in manifest
        assert live[1] in manifest
    with pytest.raises(OptionError, match="no content here"):
        rawlog.extract(tmp_path / "out", to=tmp_path / "named", blob=live[0])
    [put] = [
        row
        for row in rawlog.read(tmp_path / "out", table="ambry.messages").to_pylist()
        if row["blob_id"] == live[0] and row["kind"] == "PUT"
    ]
    assert not put["content"].strip(b"\0")
    assert not put["user_metadata"].strip(b"\0")
    assert codes(tmp_path / "out", certificate_of(tmp_path / "out")[0]) == set()
    again = rawlog.erase(tmp_path / "out", tmp_path / "again", id=live[0])
    assert "deleted" not in again.counts
    with pytest.raises(OptionError, match="not found here"):
        rawlog.erase(BLOBS, tmp_path / "x", id="AAYAAgBlAAcAAQAAAAAAAAAJAAAAAhI0SryN7wAAAAAAzz")
    assert not (tmp_path / "x").exists()


def test_blobs_are_erased_by_what_they_hold(tmp_path: Path) -> None:
    report = rawlog.erase(BLOBS, tmp_path / "out", where="length(value) = 700")
    assert report.counts["erased"] == 1
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    assert codes(tmp_path / "out", certificate_of(tmp_path / "out")[0]) == set()


def test_a_large_blob_goes_with_its_chunks_in_all_stores(tmp_path: Path) -> None:
    """The list of chunks was erased, and the chunks, which have the content, stayed; so did the owner and the name of the file."""
    parts = [b"the first part of alice", b"a second one of alice", b"the end of alice"]
    chunk_keys = [keys.make(6, 9 + number % 2, f"{number + 1:08x}-0000-4000-8000-000000000000") for number in range(3)]
    whole, other = (keys.make(6, 9, f"{number:08x}-0000-4000-8000-000000000000") for number in (15, 16))
    chunks = [Chunk(key, len(part)) for key, part in zip(chunk_keys, parts, strict=True)]

    def put(key: bytes, content: bytes, owner: str = "user:alice", **more: Any) -> bytes:
        reported = Properties(blob_size=len(content), creation_time=5, owner_id=owner, filename=f"{owner}.txt")
        return put_message(key, reported, content, user_metadata=owner.encode(), **more)

    held = {9: [0, 2], 10: [1]}
    for number, own in held.items():
        (tmp_path / "disk" / str(number)).mkdir(parents=True)
        messages = [put(chunk_keys[one], parts[one]) for one in own] + ([put(other, b"of bob", "bob")] * (number == 9))
        messages += [put(whole, make_metadata(3, chunks), blob_type=1)] * (number == 9)
        (tmp_path / "disk" / str(number) / "log_current").write_bytes(b"".join(messages))
    report = rawlog.erase(tmp_path / "disk", tmp_path / "out", id=keys.text_of(whole), engine="local")
    assert report.is_whole
    assert report.counts["dropped"] == 4
    nowhere(tmp_path / "out", b"alice")
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    rawlog.extract(tmp_path / "out", to=tmp_path / "files", all=True)
    [left] = (tmp_path / "files" / "manifest.jsonl").read_text().splitlines()
    assert json.loads(left)["blob_id"] == keys.text_of(other)
    assert codes(tmp_path / "out", certificate_of(tmp_path / "out")[0]) == set()


def test_rows_of_inner_batches_can_be_left_out(tmp_path: Path) -> None:
    """A store with messages in batches, some of which are placeholders or not committed, ended reading with a TypeError of a kernel."""
    assert rawlog.count(STORE, topic="gold_bcq", isolation="read_committed") == rawlog.count(STORE, topic="gold_bcq")
    rows = rawlog.read(STORE, isolation="read_committed").to_pylist()
    assert 0 < len(rows) < rawlog.count(STORE)
    bodies = [row["value"] for row in rows if row["topic"] == "gold_bcq"]
    report = rawlog.erase(STORE, tmp_path / "out", find=bodies[3], topic="gold_bcq", engine="local")
    assert bodies[3] not in [row["value"] for row in rawlog.read(tmp_path / "out", topic="gold_bcq").to_pylist()]
    assert report.counts["dropped"] >= 1


# Decoded fields --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("topic", "name"), [("orders", "status"), (None, "id")])
def test_records_are_erased_by_a_decoded_field(topic: str | None, name: str, tmp_path: Path) -> None:
    """Avro values, in nested columns of one topic, or as JSON text in all topics. No certificate makes anybody read schemas that the user
    did not name.
    """
    data = Path(golden_path("schemas", "confluent", "data"))
    before = decoded(data)
    text = next(value[name] for value in before if value is not None)
    kept = [value for value in before if value is None or value[name] != text]
    asked: dict[str, Any] = {"decode": "value=auto", "topic": topic, "where": f"value.{name} = '{text}'"}
    report = rawlog.erase(data, tmp_path / "out", engine="local", **asked)
    assert report.is_whole
    assert 0 < report.counts["dropped"] == len(before) - len(kept) < len(before)
    assert decoded(tmp_path / "out") == kept
    path, made = certificate_of(tmp_path / "out")
    assert made["asked"]["decode"] == "value=auto"
    assert codes(tmp_path / "out", path, tmp_path / "out") == set()
    assert f"{CODES}.remains" in codes(data, path, data)
    with pytest.raises(OptionError, match="name their schemas with --schemas"):
        rawlog.verify(tmp_path / "out", certificate=path)
    with pytest.raises(OptionError, match="--decode needs --where"):
        rawlog.erase(data, tmp_path / "x", find="x", decode="value=auto")


def decoded(data: Path) -> list[Any]:
    """The values of the topic `orders`."""
    rows = rawlog.read(data, topic="orders", decode="value=auto@written").to_pylist()
    return [None if row["value"] is None else json.loads(row["value"]) for row in rows]


def test_a_file_that_cannot_be_read_is_not_copied(tmp_path: Path) -> None:
    """Nobody knows what is in it: it may have what is to be erased. Report and certificate name it."""
    source = tmp_path / "source"
    shutil.copytree(golden_path("kafka", "broker-4.3.0", "data") / "transactions-0", source / "transactions-0")
    (source / "transactions-0" / "notes.txt").write_text("k-1 is a person")
    report = rawlog.erase(source, tmp_path / "target", key="k-1")
    assert not (tmp_path / "target" / "transactions-0" / "notes.txt").exists()
    assert report.all_left_out == [str(source / "transactions-0" / "notes.txt")]
    assert not report.is_whole
    made = json.loads((tmp_path / "target.certificate.json").read_text())
    assert made["left_out"] == report.all_left_out
    assert "notes.txt" in (tmp_path / "target.certificate.txt").read_text()
    assert rawlog.verify(tmp_path / "target", certificate=tmp_path / "target.certificate.json").verdict == "clean"


def test_a_rocketmq_store_without_a_delayed_message(tmp_path: Path) -> None:
    """Erasing in the sample ended with an internal error: it looked up the times of delayed messages, of which there are none."""
    report = rawlog.erase(Path(__file__).parents[2] / "samples" / "rocketmq", tmp_path / "out", find="a")
    assert report.counts["removed"]
    assert not rawlog.verify(tmp_path / "out").errors
