"""Repair, rebuild and compact on what was seen in use; index files that the real store wrote are the judges."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import rawlog
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.index import read_index
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.store.evidence import with_partition
from rawlog.formats.ambry.store.rewrite import StoreWriter
from rawlog.formats.ambry.writer import (
    Properties,
    put_message,
    segment_header,
    update_message,
)
from rawlog.io.output import Folder
from rawlog.model.errors import CorruptError, EncodeError
from rawlog.model.report import Action
from tests.data.ambry_rewriting import dropped, lost, reconstructed, rewritten
from tests.data.ambry_stores import copy_store, expected, open_store, small_key, small_messages, store_path

NOW = 1_596_500_000_000


def flip(path: Path, *positions: int) -> None:
    data = bytearray(path.read_bytes())
    for position in positions:
        data[position] ^= 0x10
    path.write_bytes(bytes(data))


def messages_of(name: str, *kinds: str) -> list[dict[str, Any]]:
    return [one for one in expected(name)["messages"] if not kinds or one["kind"] in kinds]


def states(folder: Path) -> dict[str, tuple[str, int, bool]]:
    """What a store answers: state, life version, and whether the content is there."""
    rows = rawlog.open(folder).table("ambry.blobs", option={"now": str(NOW)}).to_arrow().to_pylist()
    return {row["blob_id"]: (row["state"], row["life_version"], row["in_log"]) for row in rows}


def assert_index_is_golden(name: str, folder: Path) -> None:
    """Index and bloom files are byte for byte what the real store wrote."""
    for path in store_path(name).iterdir():
        if path.name.endswith(("_index", "_bloom")):
            assert (folder / path.name).read_bytes() == path.read_bytes(), path.name


# E1: the index is evidence ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["DELETE", "TTL_UPDATE", "UNDELETE"])
@pytest.mark.parametrize("at", [5, 70, 96])
def test_a_damaged_update_is_written_again_from_its_index_entry(kind: str, at: int, tmp_path: Path) -> None:
    """Repair ignored the sound index entry: a deleted blob was live again, or a live one expired or deleted."""
    broken = copy_store("store-ops", tmp_path / "42")
    for one in messages_of("store-ops", kind)[::7]:
        flip(broken / one["segment"], one["offset"] + at, one["offset"] + at + 1)
    report = rewritten("repair", broken, tmp_path / "out")
    assert len(reconstructed(report)) == len(messages_of("store-ops", kind)[::7])
    assert not report.is_whole
    assert not lost(report)
    assert_index_is_golden("store-ops", tmp_path / "out")
    assert states(tmp_path / "out") == states(store_path("store-ops"))
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    # Nor does recovery without the index make anything else of it.
    bare = tmp_path / "bare"
    shutil.copytree(tmp_path / "out", bare, ignore=shutil.ignore_patterns("*_index", "*_bloom"))
    whole = copy_store("store-ops", tmp_path / "whole")
    for path in [*whole.glob("*_index"), *whole.glob("*_bloom")]:
        path.unlink()
    assert states(bare) == states(whole)


def test_a_cut_segment_keeps_the_updates_that_its_index_knows(tmp_path: Path) -> None:
    """After a cut the deletes beyond it were forgotten, and their blobs live again; lost blobs were not named."""
    broken = copy_store("store-ops", tmp_path / "42")
    inside = [one for one in messages_of("store-ops") if one["segment"] == "2_0_log"]
    cut = inside[len(inside) // 3]["offset"] + 11
    (broken / "2_0_log").write_bytes((broken / "2_0_log").read_bytes()[:cut])
    report = rewritten("repair", broken, tmp_path / "out")
    before, after = states(store_path("store-ops")), states(tmp_path / "out")
    gone = {one["blob_id"] for one in inside if one["kind"] == "PUT" and one["offset"] + one["size"] > cut}
    assert gone
    assert all(any(blob in line for line in lost(report)) for blob in gone)
    assert {blob: state for blob, state in before.items() if blob not in gone} == {
        blob: state for blob, state in after.items() if blob not in gone
    }
    assert {blob: before[blob][0] for blob in gone & after.keys()} == {
        blob: after[blob][0] for blob in gone & after.keys()
    }
    assert {blob for blob in gone if before[blob][0] == "deleted"} <= after.keys()
    serious = {one.code for one in rawlog.verify(tmp_path / "out") if one.severity != "info"}
    assert serious <= {"ambry.store.orphan-update"}  # the loss stays known


def test_a_damaged_update_that_no_index_knows_is_reported_by_blob_id(tmp_path: Path) -> None:
    """The report named a byte range only."""
    broken = copy_store("store-crashed", tmp_path / "1000003")
    indexed = {entry["message"] for index in expected("store-crashed")["index_files"] for entry in index["entries"]}
    one = [one for one in messages_of("store-crashed", "DELETE") if one["n"] not in indexed][-1]
    flip(broken / one["segment"], one["offset"] + 3)
    report = rewritten("repair", broken, tmp_path / "out")
    assert any(one["blob_id"] in line for line in lost(report))
    assert rewritten("repair", broken, tmp_path / "job").is_whole is False


# E2: blob ids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("byte", range(0, 34, 3))
def test_a_damaged_blob_id_is_corrected_by_its_index_entry(byte: int, tmp_path: Path) -> None:
    """No checksum covers a key: repair said "whole", the true blob was gone and another one there."""
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 240 + 40 + byte)  # the PUT of blob 2
    report = rewritten("repair", broken, tmp_path / "out")
    assert not report.is_whole
    assert any(keys.text_of(small_key(2)) in line for line in reconstructed(report))
    for path in store_path("store-small").glob("*_log"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    assert_index_is_golden("store-small", tmp_path / "out")


def test_a_damaged_blob_id_is_reported_where_index_and_bloom_disagree(tmp_path: Path) -> None:
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 240 + 40 + 20)
    bloom = bytearray((broken / "0_0_18_bloom").read_bytes()[:-8])
    bloom[8:] = bytes(len(bloom) - 8)
    from rawlog.formats.ambry.writer import seal

    (broken / "0_0_18_bloom").write_bytes(seal(bytes(bloom)))
    report = rewritten("repair", broken, tmp_path / "out")
    assert not report.is_whole
    assert any(keys.text_of(small_key(2)) in line for line in lost(report))


def test_a_blob_id_that_only_the_bloom_denies_is_reported(tmp_path: Path) -> None:
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 240 + 40 + 20)
    (broken / "0_0_18_index").unlink()
    report = rewritten("repair", broken, tmp_path / "out")
    assert not report.is_whole
    assert any("bloom" in line for line in lost(report))


@pytest.mark.parametrize("byte", range(34))
def test_verification_finds_every_blob_id_that_repair_corrects(byte: int, tmp_path: Path) -> None:
    """Bytes of an id that are not its uuid were corrected in silence: verification compared uuids only."""
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 240 + 40 + byte)  # the PUT of blob 2
    found = {one.code for one in rawlog.verify(broken)}
    assert found & {"ambry.index.mismatch", "ambry.index.message", "ambry.log.partition", "ambry.log.framing"}


def test_a_key_that_only_differs_outside_of_its_uuid_is_a_warning(tmp_path: Path) -> None:
    """It is the same blob for Ambry."""
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 240 + 40 + 5)  # the account in the id of blob 2
    [finding] = [one for one in rawlog.verify(broken) if one.severity != "info"]
    assert (finding.code, finding.severity) == ("ambry.index.mismatch", "warning")
    assert finding.found == keys.text_of(small_key(2))


def test_verification_finds_a_blob_id_that_only_the_bloom_denies(tmp_path: Path) -> None:
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 240 + 40 + 20)
    (broken / "0_0_18_index").unlink()
    [finding] = [one for one in rawlog.verify(broken) if one.code == "ambry.bloom.key"]
    assert (finding.path, finding.position) == (str(broken / "0_0_log"), 240)
    assert finding.severity == "warning"


def test_a_bloom_says_nothing_of_messages_after_its_index_file(tmp_path: Path) -> None:
    """Without index files the next bloom said where one ends; if that was gone too, repair reported all later blobs as damaged."""
    store = copy_store("store-ops", tmp_path / "42")
    first, *others = sorted(store.glob("1_0_*_bloom"), key=lambda path: int(path.name.split("_")[2]))
    assert others
    for path in [*store.glob("1_0_*_index"), *others]:
        path.unlink()
    report = rewritten("repair", store, tmp_path / "out")
    assert first.exists()
    assert not lost(report), report.lines()
    assert not [one for one in rawlog.verify(store) if one.code == "ambry.bloom.key"]


# E3: messages that a damaged one hides ------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [1, 100, 149, 222, 340])
def test_bytes_missing_inside_a_message_do_not_hide_the_next_one(missing: int, tmp_path: Path) -> None:
    """149 bytes missing inside a message took the next, sound one with it: its declared length was believed."""
    broken = copy_store("store-small", tmp_path / "9")
    data = (broken / "1_0_log").read_bytes()
    first = next(one for one in messages_of("store-small") if one["segment"] == "1_0_log")
    start = first["offset"] + first["header"]["blob_offset"] + 30
    (broken / "1_0_log").write_bytes(data[:start] + data[start + missing :])
    kept = rawlog.read(broken, errors="skip")
    assert kept.num_rows == 14
    rewritten("repair", broken, tmp_path / "out")
    assert rawlog.read(tmp_path / "out").num_rows == 14
    whole = rawlog.read(store_path("store-small"))
    lost = set(whole.column("timestamp").to_pylist()) - set(kept.column("timestamp").to_pylist())
    assert len(lost) == 1
    framed = [one for one in rawlog.verify(broken) if one.code in ("ambry.log.framing", "ambry.log.crc")]
    assert [one.path for one in framed] == [str(broken / "1_0_log")]


def test_content_that_looks_like_a_log_is_not_read_as_one(tmp_path: Path) -> None:
    """A blob may be a copy of a log: if its checksum fails, the messages in it are still its content."""
    inner = b"".join(small_messages()[:4])
    properties = Properties(blob_size=len(inner), creation_time=NOW)
    outer = put_message(keys.make(6, 9, "00000099-1234-4abc-8def-000000000001"), properties, inner)
    store = tmp_path / "9"
    store.mkdir()
    data = bytearray(outer + small_messages()[7])
    data[-len(small_messages()[7]) - 12] ^= 1
    (store / "log_current").write_bytes(bytes(data))
    assert rawlog.read(store, errors="skip").num_rows == 1
    rewritten("repair", store, tmp_path / "out")
    assert rawlog.read(tmp_path / "out").num_rows == 1


# E4: entries of updates whose PUT is gone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store-ops", "store-crashed"])
@pytest.mark.parametrize("verb", ["rebuild", "repair", "compact"])
def test_an_update_whose_put_is_gone_keeps_its_index_entry(verb: str, name: str, tmp_path: Path) -> None:
    """A DELETE after a TTL update got flags 1 where the real entry has 3: the store took them from the PUT, which is gone."""
    store = copy_store(name, tmp_path / "store")
    for path in [*store.glob("0_0_*")]:
        path.unlink()
    (store / "compactionPolicyInfoV2.json").write_text("{}")  # a compaction took them
    gone = {one["blob_id"] for one in messages_of(name, "PUT") if one["segment"] == "0_0_log"}
    left = [one for one in messages_of(name) if one["segment"] != "0_0_log" and one["blob_id"] in gone]
    permanent = {one["blob_id"] for one in left if one["kind"] == "TTL_UPDATE"}
    assert permanent & {one["blob_id"] for one in left if one["kind"] == "DELETE"}
    out = tmp_path / "out"
    if verb != "compact":
        rewritten(verb, store, out)
        unsealed = "4_0_175171_index" if name == "store-crashed" else None
        for path in store.glob("*_index"):
            if path.name != unsealed:  # which the real store has not finished
                assert (out / path.name).read_bytes() == path.read_bytes(), path.name
        return
    rewritten("compact", store, out, segments="1_0,2_0", now=str(NOW), retention_hours="100000")
    known = facts([path for path in store.glob("*_index") if path.name.startswith(("1_", "2_"))])
    kept = facts([path for path in out.glob("*_index") if path.name.startswith(("1_", "2_"))])
    assert kept.items() <= known.items()
    assert any(
        flags == 3 and key in {keys.from_text(one) for one in permanent} for (key, *_), (flags, _) in kept.items()
    )


def facts(paths: list[Path]) -> dict[tuple[bytes, int, int, int], tuple[int, int]]:
    """Flags and expiry of index entries, by key, kind, life version and time."""
    found = {}
    for path in paths:
        entries = read_index(str(path)).entries
        for number in range(len(entries)):
            what = (
                entries.key(number),
                *(int(one[number]) for one in (entries.kind, entries.life_version, entries.operation_time)),
            )
            found[what] = (int(entries.flags[number]), int(entries.expires[number]))
    return found


# E5: what a crash leaves at the end ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["rebuild", "compact"])
def test_the_tail_that_a_crash_leaves_is_dropped_and_reported(verb: str, tmp_path: Path) -> None:
    """The unfinished message was copied, exit 0; the real store refuses to start on it."""
    options = {"now": str(NOW), "segments": "0_0,1_0"} if verb == "compact" else {}
    report = rewritten(verb, store_path("store-crashed"), tmp_path / "out", **options)
    cut = expected("store-crashed")["cut_message"]
    assert (tmp_path / "out" / "5_0_log").stat().st_size == cut["offset"]
    [entry] = [one for one in report.with_action(Action.DROPPED) if str(one.path).endswith("5_0_log")]
    assert (entry.start, entry.stop) == (cut["offset"], cut["offset"] + cut["bytes_written"])
    assert (entry.path, entry.reason) == (str(store_path("store-crashed") / "5_0_log"), "an unfinished message")
    assert report.is_whole  # nothing confirms that it was a message


@pytest.mark.parametrize("verb", ["rebuild", "compact"])
def test_zeros_after_the_last_message_are_dropped_and_reported(verb: str, tmp_path: Path) -> None:
    store = copy_store("store-small", tmp_path / "9")
    for name in ("0_0_log", "2_0_log"):
        with (store / name).open("ab") as out:
            out.write(bytes(50))
    options = {"now": str(NOW), "segments": "0_0,1_0"} if verb == "compact" else {}
    report = rewritten(verb, store, tmp_path / "out", **options)
    assert len([one for one in report.with_action(Action.DROPPED) if str(one.path).endswith("_log")]) == 2
    assert report.is_whole
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


# E6: times before 1970 ----------------------------------------------------------------------------------------------------


def early_rows(**headers: bytes) -> pa.Table:
    from rawlog.model.table import RECORDS

    listed = [{"key": name, "value": value} for name, value in headers.items()]
    row = {"key": None, "value": b"x", "topic": "t", "partition": 0, "offset": 0, "timestampType": 0, "headers": listed}
    return pa.Table.from_pylist([row | {"timestamp": -5_000_000}], schema=RECORDS.schema)


@pytest.mark.parametrize("headers", [{}, {"kind": b"DELETE"}, {"life_version": b"+0"}])
def test_a_time_before_1970_is_a_loss_to_be_accepted(headers: dict[str, bytes], tmp_path: Path) -> None:
    """The time was written as it is: such a store starts with its index, but the real recovery without it refuses."""
    rows = early_rows(**headers)
    others = ["key", "topic", "partition", "offset", "headers"]
    if headers.get("kind"):
        others.append("value")
    with pytest.raises(EncodeError, match="timestamp"):
        rawlog.write(tmp_path / "store", rows, format="ambry", accept_loss=others)
    rawlog.write(tmp_path / "store", rows, format="ambry", accept_loss=[*others, "timestamp"])
    assert rawlog.read(tmp_path / "store").column("timestamp").to_pylist() == [None]
    assert rawlog.verify(tmp_path / "store").verdict == "clean"


@pytest.mark.parametrize("time", [-2, -5_000])
def test_a_message_from_before_1970_is_found(time: int, tmp_path: Path) -> None:
    store = tmp_path / "9"
    store.mkdir()
    writer = StoreWriter(Folder(store))
    writer.append(put_message(small_key(1), Properties(blob_size=1, creation_time=time), b"x"))
    writer.append(put_message(small_key(2), Properties(blob_size=1, creation_time=-1), b"x"))
    writer.append(update_message(Kind.DELETE, small_key(1), time=time))
    writer.close()
    found = [one for one in rawlog.verify(store) if one.severity != "info"]
    assert [(one.code, one.found) for one in found] == [("ambry.log.time", str(time))] * 2
    outcome = rewritten("repair", store, tmp_path / "out")
    assert [one.code for one in outcome.remaining] == ["ambry.log.time"] * 2
    assert not outcome.is_whole


# E7: log segments that are not there --------------------------------------------------------------------------------------


def test_a_lost_log_segment_is_found_and_its_blobs_are_named(tmp_path: Path) -> None:
    """verify said clean and repair exit 0: live blobs were gone, and deleted ones live again."""
    broken = copy_store("store-ops", tmp_path / "42")
    (broken / "1_0_log").unlink()
    [finding] = [one for one in rawlog.verify(broken) if one.code == "ambry.store.lost-segment"]
    assert "1_0_log" in finding.message
    assert all(path.name in finding.message for path in broken.glob("1_0_*_index"))
    outcome = rewritten("repair", broken, tmp_path / "out")
    assert not outcome.is_whole
    assert {one.code for one in outcome.remaining} <= {"ambry.store.orphan-update"}  # the loss stays known
    blobs = {one["blob_id"] for one in messages_of("store-ops", "PUT") if one["segment"] == "1_0_log"}
    assert all(any(blob in line for line in lost(outcome)) for blob in blobs)
    before, after = states(store_path("store-ops")), states(tmp_path / "out")
    assert {blob: state for blob, state in before.items() if blob not in blobs} == {
        blob: state for blob, state in after.items() if blob not in blobs
    }
    assert all(after[blob][0] == "deleted" for blob in blobs if before[blob][0] == "deleted")


def test_index_files_that_a_compaction_left_are_no_lost_segment(tmp_path: Path) -> None:
    """The compaction log says that the segment was replaced; so does a newer one in its place."""
    store = copy_store("store-compacted", tmp_path / "77")
    for name in ("1_0_18_index", "2_0_18_index"):
        shutil.copy(store_path("store-ops") / name, store / name)
    assert not [one for one in rawlog.verify(store) if one.severity != "info"]
    report = rewritten("repair", store, tmp_path / "out")
    assert report.is_whole, report.lines()
    for path in store.glob("Partition*"):
        path.unlink()
    assert [one.code for one in rawlog.verify(store) if one.severity != "info"] == ["ambry.store.lost-segment"]


@pytest.mark.parametrize("with_index", [True, False])
def test_swapped_and_renamed_segments_get_back_their_places(with_index: bool, tmp_path: Path) -> None:
    """Their names decide about the order of all messages; index files, or else the times of messages, say what they were."""
    broken = copy_store("store-ops", tmp_path / "42")
    (broken / "1_0_log").rename(broken / "x")
    (broken / "3_0_log").rename(broken / "1_0_log")
    (broken / "x").rename(broken / "3_0_log")
    (broken / "0_0_log").rename(broken / "8_0_log")
    if with_index:
        assert [one for one in rawlog.verify(broken) if one.code == "ambry.store.lost-segment"]
    else:
        for path in [*broken.glob("*_index"), *broken.glob("*_bloom")]:
            path.unlink()
    report = rewritten("repair", broken, tmp_path / "out")
    assert not dropped(report)
    # Without an index nothing says that the positions between these names were never there.
    assert all("is not there, nor its index" in line for line in lost(report))
    assert bool(lost(report)) == (not with_index)
    if with_index:
        for path in store_path("store-ops").glob("*_log"):
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
        assert_index_is_golden("store-ops", tmp_path / "out")
    kept = open_store(tmp_path / "out").state
    whole = open_store(store_path("store-ops")).state
    assert np.array_equal(kept.catalog.time, whole.catalog.time)
    assert states(tmp_path / "out") == states(store_path("store-ops"))


# One diagnosis ------------------------------------------------------------------------------------------------------------


def test_a_numbered_segment_without_a_header_is_found(tmp_path: Path) -> None:
    """Repair gave it a header and reported that; verification found nothing."""
    store = tmp_path / "9"
    store.mkdir()
    (store / "0_0_log").write_bytes(b"".join(small_messages()[:3]))
    [finding] = [one for one in rawlog.verify(store) if one.severity != "info"]
    assert (finding.code, finding.position) == ("ambry.store.segments", 0)
    report = rewritten("repair", store, tmp_path / "out", capacity="2048")
    assert [(one.action, one.start, one.stop) for one in report.entries if one.is_loss] == [(Action.CHANGED, 0, 18)]
    assert [(one["start"], one["stop"]) for one in report.as_json()["entries"] if one["action"] == "changed"] == [
        (0, 18)
    ]
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


def test_another_capacity_is_changed_and_reported(tmp_path: Path) -> None:
    """Repair gave all segments one capacity and said nothing of it."""
    store = copy_store("store-small", tmp_path / "9")
    (store / "1_0_log").write_bytes(segment_header(4096) + (store / "1_0_log").read_bytes()[18:])
    assert {one.code for one in rawlog.verify(store)} == {"ambry.store.segments"}
    report = rewritten("repair", store, tmp_path / "out")
    [entry] = [one for one in report.entries if one.is_loss]
    assert (entry.action, entry.path) == (Action.CHANGED, str(store / "1_0_log"))
    assert (tmp_path / "out" / "1_0_log").read_bytes() == (store_path("store-small") / "1_0_log").read_bytes()


# C5: what remains is reported ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_index", [True, False])
def test_a_blob_id_of_another_partition_is_set_right(with_index: bool, tmp_path: Path) -> None:
    """Repair ended with 0 and verify of its result complained: ambry.log.partition."""
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 18 + 40 + 17)
    if not with_index:
        for path in [*broken.glob("*_index"), *broken.glob("*_bloom")]:
            path.unlink()
    assert "ambry.log.partition" in {one.code for one in rawlog.verify(broken)}
    outcome = rewritten("repair", broken, tmp_path / "out")
    assert not outcome.is_whole
    assert not outcome.remaining
    assert (tmp_path / "out" / "0_0_log").read_bytes() == (store_path("store-small") / "0_0_log").read_bytes()


def test_a_partition_that_nothing_sets_right_remains_and_is_reported(tmp_path: Path) -> None:
    store = tmp_path / "9"
    store.mkdir()
    strange = keys.make(6, 0x0102030405, "00000001-1234-4abc-8def-000000000001")
    properties = Properties(blob_size=1, creation_time=NOW)
    (store / "log_current").write_bytes(b"".join(small_messages()[1:4]) + put_message(strange, properties, b"x"))
    outcome = rewritten("repair", store, tmp_path / "out")
    assert [one.code for one in outcome.remaining] == ["ambry.log.partition"]
    assert not outcome.is_whole


@pytest.mark.parametrize("verb", ["rebuild", "compact"])
@pytest.mark.parametrize("loss", ["segment", "end"])
def test_rebuild_and_compact_refuse_what_only_the_old_index_knows(verb: str, loss: str, tmp_path: Path) -> None:
    """Both ended with exit 0 and nothing to say: their new index forgot the lost blobs, and showed deleted ones as live."""
    broken = copy_store("store-ops", tmp_path / "42")
    if loss == "segment":
        (broken / "1_0_log").unlink()
    else:
        rows = rawlog.read(broken / "1_0_log", table="ambry.messages").to_pylist()
        (broken / "1_0_log").write_bytes((broken / "1_0_log").read_bytes()[: rows[-5]["position"]])
    with pytest.raises(CorruptError, match="repair the store first"):
        rewritten(verb, broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("verb", ["rebuild", "compact"])
def test_verbs_that_do_not_repair_refuse_a_flipped_blob(verb: str, tmp_path: Path) -> None:
    """`rebuild` accepted it, exit 0, and its result did not verify."""
    broken = copy_store("store-small", tmp_path / "9")
    flip(broken / "0_0_log", 240 + 180)
    with pytest.raises(CorruptError, match="repair the store first"):
        rewritten(verb, broken, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_copy_of_a_segment_is_set_aside(tmp_path: Path) -> None:
    """Its undeletes stayed in the result, all segments were renamed, and a second repair changed the result again."""
    broken = copy_store("store-small", tmp_path / "9")
    (broken / "3_0_log").write_bytes((broken / "0_0_log").read_bytes())
    report = rewritten("repair", broken, tmp_path / "out")
    assert dropped(report) == [f"dropped {broken / '3_0_log'}, bytes 18 to 1,298: a copy of 0_0_log: set aside"]
    for name in ("0_0_log", "1_0_log", "2_0_log"):
        assert (tmp_path / "out" / name).read_bytes() == (store_path("store-small") / name).read_bytes()
    assert_index_is_golden("store-small", tmp_path / "out")
    assert not (tmp_path / "out" / "3_0_log").exists()
    assert rewritten("repair", tmp_path / "out", tmp_path / "again").is_whole


# Segments of which nothing is there -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["store-ops", "store-small"])
def test_a_segment_that_is_gone_with_its_index_is_noticed(name: str, tmp_path: Path) -> None:
    """Nobody noticed it: verify was clean, and repair named none of the lost blobs."""
    broken = copy_store(name, tmp_path / "store")
    for path in broken.glob("1_0_*"):
        path.unlink()
    [finding] = [one for one in rawlog.verify(broken) if one.code == "ambry.store.lost-segment"]
    assert finding.severity == "warning"
    assert finding.message.startswith("log segment 1_0_log is not there, nor its index: lost, or compacted away")
    puts = {one["blob_id"] for one in messages_of(name, "PUT") if one["segment"] == "1_0_log"}
    later = {
        one["blob_id"]
        for one in messages_of(name, "TTL_UPDATE", "UNDELETE")
        if one["segment"] not in ("0_0_log", "1_0_log")
    }
    report = rewritten("repair", broken, tmp_path / "out")
    assert not report.is_whole
    assert any("1_0_log is not there, nor its index" in line for line in lost(report))
    assert all(any(blob in line for line in lost(report)) for blob in puts & later)
    # Where something shows a compaction, that explains it.
    (broken / "compactionPolicyInfoV2.json").write_text("{}")
    assert rawlog.verify(broken).verdict == "clean"
    assert not [one for one in rawlog.verify(broken, complete=True) if one.severity != "info"]


# Files of another store ----------------------------------------------------------------------------------------------------


def rekeyed_segment(path: Path, partition: int) -> bytes:
    """The bytes of a log segment as another partition would have them: no checksum covers a blob id."""
    data = bytearray(path.read_bytes())
    [segment] = [number for number, file in enumerate(open_store(path.parent).logs) if Path(file.path) == path]
    catalog = open_store(path.parent).catalog
    for row in range(*catalog.rows_in(segment).indices(len(catalog))):
        key = catalog.key(row)
        at = data.index(key, int(catalog.offset[row]))
        data[at : at + len(key)] = with_partition(key[:-2] + b"\x7f" + key[-1:], partition)
    return bytes(data)


@pytest.mark.parametrize("partition", [8, 1_000_003])
@pytest.mark.parametrize("place", ["3_0_log", "1_0_log"])
def test_a_larger_segment_of_another_partition_does_not_outvote_the_store(
    partition: int, place: str, tmp_path: Path
) -> None:
    """All blob ids of the store were rewritten to the partition of a segment that has more messages than all others, exit 0."""
    source = copy_store("store-small", tmp_path / "9")
    big = copy_store("store-ops", tmp_path / "42") / "0_0_log"
    whole = states(source)
    (source / place).write_bytes(rekeyed_segment(big, partition))
    own = {message["blob_id"] for message in messages_of("store-small") if message["segment"] != place}
    report = rewritten("repair", source, tmp_path / "out")
    assert not report.is_whole
    [line] = [line for line in dropped(report) if "set aside" in line]
    assert f"{place}, bytes 18 to {big.stat().st_size:,}: " in line
    assert f"belong to partition {partition}; this store holds partition 9" in line
    found = states(tmp_path / "out")
    assert set(found) - own <= {one["blob_id"] for one in messages_of("store-small")}
    assert own <= set(found)
    if place == "3_0_log":
        assert found == whole
        assert sorted(path.name for path in (tmp_path / "out").glob("*_log")) == ["0_0_log", "1_0_log", "2_0_log"]
    else:  # instead of a segment of its own, whose blobs are lost
        gone = [one["blob_id"] for one in messages_of("store-small", "PUT") if one["segment"] == place]
        assert all(any(blob in line for line in lost(report)) for blob in gone)
    again = rewritten("repair", tmp_path / "out", tmp_path / "again")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()
    }
    assert not dropped(again)


def test_a_store_in_the_directory_of_another_partition_gets_one_answer(tmp_path: Path) -> None:
    """Verify, convert and cat exited 1, ingest and rebuild 0: nothing said that all of it is of another partition than its directory."""
    store = copy_store("store-ops", tmp_path / "9")
    report = rewritten("repair", store, tmp_path / "repaired")
    assert report.is_whole
    assert ["the directory names partition 9" in one.reason for one in report.with_action(Action.MOVED)] == [True]
    assert not rawlog.verify(tmp_path / "repaired").warnings
    with pytest.raises(CorruptError, match="of partition 42"):
        rawlog.rebuild(store, tmp_path / "rebuilt")
    for done in (
        rawlog.convert(store, tmp_path / "x.jsonl"),
        rawlog.ingest(store, to=tmp_path / "lake", engine="local"),
    ):
        assert done.exit_code == 1, done.verb


@pytest.mark.parametrize("verb", ["erase", "compact"])
def test_a_missing_index_file_is_made_again(verb: str, tmp_path: Path) -> None:
    """Erase, and compact of other segments, copied the other index files as they were: blobs of the missing one stayed unknown to Ambry."""
    store = copy_store("store-compacted", tmp_path / "77")
    (store / "4_0_18_index").unlink()
    if verb == "erase":
        report = rawlog.erase(store, tmp_path / "out", key="no-such-key", engine="local")
    else:
        report = rawlog.compact(store, tmp_path / "out", option={"segments": "0_0,1_1"})
    assert report.exit_code == 0
    assert not rawlog.verify(tmp_path / "out").errors
    assert (tmp_path / "out" / "4_0_18_index").exists()
