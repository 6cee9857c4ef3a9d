"""Stores written, rebuilt, repaired, erased, compacted and extracted: each compared with what Ambry wrote."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.formats.ambry import index as bloom
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.index import encode_index, parse_index
from rawlog.formats.ambry.kernels.blooms import murmur3
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.store.extract import safe_name
from rawlog.formats.ambry.store.rewrite import NOT_NEEDED
from rawlog.formats.ambry.structures import (
    Chunk,
    open_envelope,
    parse_metadata,
)
from rawlog.formats.ambry.writer import (
    Properties,
    blob_record,
    hard_delete,
    put_message,
    segment_header,
    update_message,
)
from rawlog.kernels import byte_view
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    EncodeError,
    OptionError,
)
from tests.data.ambry_rewriting import cut_ends, dropped, extracted, lost, reconstructed, rewritten
from tests.data.ambry_stores import (
    STORES,
    copy_store,
    expected,
    make_envelope,
    make_metadata,
    open_store,
    small_key,
    small_messages,
    store_path,
    write_small,
)
from tests.data.golden import golden_path
from tests.reference import ambry as reference


def msg(name: str) -> bytes:
    return golden_path("ambry", "msgs", name).read_bytes()


TOLD = Properties(
    blob_size=11, creation_time=1596412800123, time_to_live=86400, content_type="image/png", owner_id="own", service_id="svc",
    account_id=101, container_id=7, content_encoding="gzip", filename="a.png",
)  # fmt: skip


def numbered(number: int, version: int = 6) -> bytes:
    name = f"{number:08x}-1234-4abc-8def-{number:012x}"
    return keys.make(version, 9, name, datacenter_id=2, account_id=101, container_id=7)


def test_messages_of_every_kind_and_version_are_written_as_ambry_writes_them() -> None:
    key, hello = numbered(0x10), b"hello ambry"
    for version in (1, 2):
        assert put_message(key, TOLD, hello, user_metadata=b"um", header_version=version) == msg(f"put_h{version}.bin")
    assert put_message(key, TOLD, hello, user_metadata=b"um", life_version=2, is_compressed=True) == msg("put_h3.bin")
    for version in (2, 3):
        made = put_message(
            numbered(0x11, 5),
            TOLD,
            hello,
            user_metadata=b"um",
            encryption_key=bytes([1, 2, 3, 4]),
            header_version=version,
        )
        assert made == msg(f"put_enc_h{version}.bin")
    update: dict[str, Any] = {"time": 1596412900456, "account_id": 101, "container_id": 7}
    assert update_message(Kind.DELETE, key, header_version=1, **update) == msg("delete_h1.bin")
    assert update_message(Kind.DELETE, key, header_version=2, **update) == msg("delete_h2.bin")
    assert update_message(Kind.DELETE, key, life_version=2, **update) == msg("delete_h3.bin")
    assert update_message(Kind.TTL_UPDATE, key, header_version=2, **update) == msg("ttl_h2.bin")
    assert update_message(Kind.TTL_UPDATE, key, life_version=2, **update) == msg("ttl_h3.bin")
    assert update_message(Kind.UNDELETE, key, life_version=3, **update) == msg("undelete_h3.bin")
    assert update_message(Kind.DELETE, key, record_version=1, **update).endswith(msg("update_v1.bin"))
    assert update_message(Kind.DELETE, key, record_version=2, **update).endswith(msg("update_v2.bin"))


def test_records_are_written_as_ambry_writes_them() -> None:
    """The checksums of old properties are those of specification §18.5."""
    plain: dict[str, Any] = {
        "blob_size": 11, "creation_time": 1596412800123, "is_private": True, "content_type": "image/png", "owner_id": "own",
        "service_id": "svc",
    }  # fmt: skip
    assert Properties(**plain).encode(1)[-4:].hex() == "22ca3a1e"
    plain |= {"account_id": 101, "container_id": 7}
    assert Properties(**plain).encode(2)[-4:].hex() == "a58c0b12"
    plain |= {"is_encrypted": True}
    assert Properties(**plain).encode(3)[-4:].hex() == "1cde2dcb"
    plain |= {"filename": "a.png"}
    assert Properties(**plain).encode(4) == msg("props_v4.bin")
    plain |= {"reserved_metadata_blob_id": "AAYAAQ"}
    assert Properties(**plain).encode(5) == msg("props_v5.bin")
    with pytest.raises(EncodeError):
        Properties(**plain).encode(4)
    assert blob_record(b"abc", version=1)[-4:].hex() == "4c013dd3"
    assert blob_record(b"abc", version=2, blob_type=1)[-4:].hex() == "75c8bc1b"
    assert blob_record(b"abc", version=3)[-4:].hex() == "25161612"
    assert segment_header(2048).hex() == "00000000000000000800000000002b53e27e"


def test_metadata_and_envelopes_are_written_and_read() -> None:
    chunks = [Chunk(numbered(number), size) for number, size in ((1, 4), (2, 4), (3, 2))]
    assert make_metadata(2, chunks, 4) == msg("meta_v2.bin")
    assert parse_metadata(msg("meta_v2.bin")).chunks == tuple(chunks)
    chunks = [Chunk(numbered(number), size) for number, size in ((1, 4), (2, 5), (3, 1))]
    assert make_metadata(3, chunks) == msg("meta_v3.bin")
    assert parse_metadata(msg("meta_v3.bin")).chunks == tuple(chunks)
    for algorithm in ("LZ4", "ZSTD"):
        for content in (b"", b"abc" * 1000):
            assert open_envelope(make_envelope(algorithm, content)) == (algorithm, content)
    for broken in (
        b"",
        b"\1",
        b"\2\3LZ4\0\0\0\1x",
        b"\1\3LZ5\0\0\0\1x",
        b"\1\3LZ4\xff\xff\xff\xffx",
        b"\1\3LZ4\0\0\0\x09x",
    ):
        with pytest.raises(CorruptError):
            open_envelope(broken)


def test_a_hard_delete_leaves_what_ambrys_leaves() -> None:
    zeroed = hard_delete(msg("put_h3.bin"))
    assert zeroed[:164] == msg("put_h3.bin")[:164]
    rest = "0001000000020000" + "00000000c0d100b3" + "0003000000000000000000000b" + "00" * 11 + "00000000a4b65713"
    assert zeroed[164:].hex() == rest
    for version in (1, 2, 3):
        properties = Properties(blob_size=5, creation_time=0)
        made = put_message(
            numbered(1), properties, b"12345", user_metadata=b"ab", blob_version=version, blob_type=int(version > 1)
        )
        assert hard_delete(made).endswith(msg(f"harddelete_b{version}.bin"))
    with pytest.raises(CorruptError):
        hard_delete(msg("delete_h3.bin"))


def test_the_bloom_hash_is_cassandras() -> None:
    vectors = {
        b"": (0, 0), b"abc": (0xB4963F3F3FAD7867, 0x3BA2744126CA2D52), bytes(range(16)): (0x444924B591903F30, 0xAB906456762FE845),
        b"\xff" * 15: (0xE187E84EFA24F091, 0x5536CE977875B220), b"\x80\x7f": (0x9BCA4F96486DA530, 0x13CB98F02795BABE),
    }  # fmt: skip
    for data, pair in vectors.items():
        assert tuple(int(half) % (1 << 64) for half in murmur3(byte_view(data), 0, len(data))) == pair
        assert reference.murmur3(data) == pair


@given(st.binary(max_size=80), st.integers(1, 40))
def test_blooms_are_those_of_the_plain_hash(data: bytes, words: int) -> None:
    made = bloom.Bloom(5, np.zeros(words, np.uint64))
    made.add(data)
    first, second = reference.murmur3(data)
    bits = {reference.bucket(first + number * second, words * 64) for number in range(5)}
    assert {bit for bit in range(words * 64) if int(made.words[bit >> 6]) >> (bit & 63) & 1} == bits
    assert made.has(data)


def test_store_small_is_written_from_its_operations_byte_for_byte(tmp_path: Path) -> None:
    written = write_small(tmp_path / "store")
    known = {file["name"]: file["sha256"] for file in expected("store-small")["files"]}
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in written.iterdir()} == known


@pytest.mark.parametrize("name", STORES)
def test_index_and_bloom_are_rebuilt_byte_for_byte(name: str, tmp_path: Path) -> None:
    report = rewritten("rebuild", store_path(name), tmp_path / "out")
    assert report.counts["messages"] == expected(name)["counts"]["messages"]
    unsealed = expected(name)["index_files"][-1]["file"] if name == "store-crashed" else None
    compared = 0
    for path in store_path(name).iterdir():
        if path.name.endswith(("_index", "_bloom")) and path.name != unsealed:
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes(), path.name
            compared += 1
    assert compared == sum(one.name.endswith(("_index", "_bloom")) for one in store_path(name).iterdir()) - bool(
        unsealed
    )
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


@pytest.mark.parametrize("name", ["store-small", "store-ops"])
def test_an_index_is_rebuilt_without_the_old_one(name: str, tmp_path: Path) -> None:
    """Nothing but log and settings: only the time of a restart, which the clock gave, is not in the log."""
    bare = copy_store(name, tmp_path / "bare")
    for path in [*bare.glob("*_index"), *bare.glob("*_bloom")]:
        path.unlink()
    most = str(expected(name)["store"]["index_max_elements"])
    rewritten("rebuild", bare, tmp_path / "out", max_entries=most)
    for path in store_path(name).glob("*_index"):
        old = parse_index(str(path), path.read_bytes())
        again = parse_index(str(path), (tmp_path / "out" / path.name).read_bytes())
        assert again.entries.keys == old.entries.keys
        assert (again.header.log_end, again.header.reset_key) == (old.header.log_end, old.header.reset_key)
        assert abs((again.header.last_modified or 0) - (old.header.last_modified or 0)) < 86400
    for path in store_path(name).glob("*_bloom"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("version", range(5))
def test_index_files_of_every_version_are_read(version: int) -> None:
    folded = open_store(store_path("store-ops")).folded
    run = folded.entries.take(np.flatnonzero((folded.catalog.key_size == 34) & (folded.catalog.segment == 0)))
    again = parse_index("0_0_18_index", encode_index(run, version=version))
    assert again.crc_ok
    assert again.header.version == version
    known = [keys.order(key) for key in again.entries.keys]
    assert known == sorted(known)
    for number, offset in enumerate(again.entries.offset.tolist()):
        [row] = np.flatnonzero(run.offset == offset).tolist()
        assert known[number] == keys.order(run.key(row))
        assert again.entries.kind[number] == run.kind[row]
        assert again.entries.expires[number] == run.expires[row]
        assert again.entries.operation_time[number] == (run.operation_time[row] if version else -1)
        assert again.entries.life_version[number] == (run.life_version[row] if version >= 3 else 0)


def test_repair_keeps_all_that_is_whole_and_is_done_once(tmp_path: Path) -> None:
    broken = copy_store("store-ops", tmp_path / "broken")
    log = broken / "1_0_log"
    data = bytearray(log.read_bytes())
    known = [message for message in expected("store-ops")["messages"] if message["segment"] == "1_0_log"]
    data[known[3]["offset"] + 5] ^= 0xFF  # a header
    data[known[10]["offset"] + known[10]["size"] - 20] ^= 0xFF  # the last record of another
    log.write_bytes(bytes(data) + b"rubbish")
    before = {path.name: path.read_bytes() for path in broken.iterdir()}
    report = rewritten("repair", broken, tmp_path / "repaired")
    assert {path.name: path.read_bytes() for path in broken.iterdir()} == before
    assert len(dropped(report)) == 2
    assert [(one.path, one.start, one.stop) for one in cut_ends(report)] == [(str(log), len(data), len(data) + 7)]
    assert rawlog.verify(tmp_path / "repaired").verdict == "clean"
    # What follows a lost PUT of the same blob may stay: it is what a compaction leaves too. The DELETE is written again by its index.
    assert [known[number]["kind"] for number in (3, 10)] == ["PUT", "DELETE"]
    assert (len(lost(report)), len(reconstructed(report))) == (1, 1)
    assert rawlog.read(tmp_path / "repaired").num_rows == 299
    again = rewritten("repair", tmp_path / "repaired", tmp_path / "again")
    assert not dropped(again)
    assert {path.name: path.read_bytes() for path in (tmp_path / "repaired").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()
    }


def test_repair_of_the_crashed_store_cuts_where_ambry_cuts(tmp_path: Path) -> None:
    """What a crash leaves after the last message is cut with a note: nothing confirms it, and nothing is lost."""
    planned = rewritten("repair", store_path("store-crashed"), tmp_path / "repaired", dry_run=True)
    done = rewritten("repair", store_path("store-crashed"), tmp_path / "repaired")
    for report in (planned, done):
        assert report.is_whole
        [cut] = cut_ends(report)
        assert (cut.path, cut.start) == (
            str(store_path("store-crashed") / "5_0_log"),
            expected("store-crashed")["cut_message"]["offset"],
        )
    assert (tmp_path / "repaired" / "5_0_log").stat().st_size == expected("store-crashed")["cut_message"]["offset"]
    assert rawlog.verify(tmp_path / "repaired").verdict == "clean"


def test_a_damaged_segment_header_is_rewritten(tmp_path: Path) -> None:
    broken = copy_store("store-small", tmp_path / "broken")
    (broken / "0_0_log").write_bytes(bytes(18) + (broken / "0_0_log").read_bytes()[18:])
    rewritten("repair", broken, tmp_path / "repaired")
    assert (tmp_path / "repaired" / "0_0_log").read_bytes() == (store_path("store-small") / "0_0_log").read_bytes()


def test_erase_zeroes_chosen_blobs_and_nothing_else(tmp_path: Path) -> None:
    chosen = keys.text_of(small_key(5))
    report = rewritten("erase", store_path("store-small"), tmp_path / "out", blobs=chosen)
    assert report.counts == {"erased": 1, "deleted": 1}
    assert report.is_whole
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    for path in store_path("store-small").iterdir():
        if path.name not in ("1_0_log", "expected.json") and not path.name.startswith("2_0"):  # there is the DELETE
            assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    rows = {row["uuid"]: row for row in rawlog.read(tmp_path / "out" / "1_0_log", table="ambry.messages").to_pylist()}
    erased = next(row for row in rows.values() if row["kind"] == "PUT")
    assert (erased["content"], erased["user_metadata"], erased["crc_ok"]) == (bytes(700), bytes(2), True)
    with pytest.raises(OptionError):
        rewritten("erase", store_path("store-small"), tmp_path / "x", blobs=keys.text_of(small_key(77)))
    assert not (tmp_path / "x").exists()
    with pytest.raises(AccessError):
        rewritten("erase", store_path("store-small"), tmp_path / "out", blobs=chosen)


def test_erase_leaves_out_log_segments_that_the_store_does_not_read(tmp_path: Path) -> None:
    """The target of a compaction that was not committed was copied as it was: the content of erased blobs was still there."""
    store = copy_store("store-small", tmp_path / "9")
    (store / "1_1_log_temp").write_bytes((store / "1_0_log").read_bytes())
    report = rewritten("erase", store, tmp_path / "out", blobs=keys.text_of(small_key(5)))
    assert not (tmp_path / "out" / "1_1_log_temp").exists()
    content = bytes((7 * index + 700) % 256 for index in range(700))
    assert content in (store / "1_0_log").read_bytes()
    assert not any(content in path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert [one.reason for one in report.entries if one.path == str(store / "1_1_log_temp")] == [NOT_NEEDED]


@pytest.mark.parametrize("verb", ["repair", "rebuild", "compact", "erase"])
def test_a_dry_run_writes_nothing_and_reports_the_same(verb: str, tmp_path: Path) -> None:
    options = {"erase": {"blobs": keys.text_of(small_key(5))}, "compact": {"now": "1596500000000"}}.get(verb, {})
    planned = rewritten(verb, store_path("store-small"), tmp_path / "out", dry_run=True, **options)
    assert not list(tmp_path.iterdir())
    done = rewritten(verb, store_path("store-small"), tmp_path / "out", **options)
    assert (planned.entries, planned.counts, planned.facts) == (done.entries, done.counts, done.facts)
    assert done.facts["files"] == sorted(path.name for path in (tmp_path / "out").iterdir())


def test_compaction_leaves_the_messages_that_ambry_left(tmp_path: Path) -> None:
    """Specification §18.7: 0_0 and 1_0 with the undelete-aware filter, after all deletes."""
    options = {"segments": "0_0,1_0", "now": "1596500000000", "reference_time": "1596499000000"}
    rewritten("compact", store_path("store-small"), tmp_path / "out", **options)
    rows = rawlog.read(tmp_path / "out" / "0_1_log", table="ambry.messages").to_pylist()
    assert [(row["kind"], int(row["uuid"][:8], 16), row["life_version"]) for row in rows] == [
        ("PUT", 2, 0), ("PUT", 3, 0), ("PUT", 0xF0000004, 0), ("TTL_UPDATE", 2, 0), ("PUT", 5, 0), ("DELETE", 1, 1),
    ]  # fmt: skip
    assert (tmp_path / "out" / "0_1_log").stat().st_size == 1868
    assert (tmp_path / "out" / "2_0_log").read_bytes() == (store_path("store-small") / "2_0_log").read_bytes()
    assert rawlog.verify(tmp_path / "out").verdict == "clean"

    def states(path: Path) -> dict[str, str]:
        table = rawlog.open(path).table("ambry.blobs", option={"now": "1596500000000"}).to_arrow()
        return {row["blob_id"]: row["state"] for row in table.to_pylist()}

    assert states(tmp_path / "out") == states(store_path("store-small"))


def test_compaction_writes_damaged_index_files_of_other_segments_again(tmp_path: Path) -> None:
    """They were copied as they were: Ambry did not start on the result."""
    options = {"segments": "0_0,1_0", "now": "1596500000000", "reference_time": "1596499000000"}
    rewritten("compact", store_path("store-small"), tmp_path / "sound", **options)
    store = copy_store("store-small", tmp_path / "9")
    for path in (*store.glob("*_index"), *store.glob("*_bloom")):
        path.write_bytes(bytes(range(256)) * 3)
    rewritten("compact", store, tmp_path / "out", **options)
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    rows = [rawlog.read(tmp_path / name, table="ambry.index").to_pylist() for name in ("sound", "out")]
    fields = ("key", "kind", "position", "size", "flags", "expires", "original_offset")
    [sound, again] = [sorted(tuple(row[name] for name in fields) for row in table) for table in rows]
    assert again == sound


def test_the_older_filter_loses_undeleted_blobs_as_upstreams_does(tmp_path: Path) -> None:
    options = {
        "segments": "0_0,1_0",
        "now": "1596500000000",
        "reference_time": "1596499000000",
        "filter": "without-undelete",
    }
    rewritten("compact", store_path("store-small"), tmp_path / "out", **options)
    rows = rawlog.read(tmp_path / "out", table="ambry.messages").to_pylist()
    kept = [(row["kind"], int(row["uuid"][:8], 16)) for row in rows]
    assert ("UNDELETE", 2) in kept
    assert ("PUT", 2) not in kept


def test_compacting_keeps_every_live_blob_of_a_larger_store(tmp_path: Path) -> None:
    known = expected("store-ops")
    now = str(known["now_ms"] + 8 * 86_400_000)
    rewritten("compact", store_path("store-ops"), tmp_path / "out", now=now)

    def live(path: Path) -> dict[str, Any]:
        rows = rawlog.open(path).table("ambry.blobs", option={"now": now}).to_arrow().to_pylist()
        return {row["blob_id"]: (row["life_version"], row["blob_size"]) for row in rows if row["state"] == "live"}

    assert live(tmp_path / "out") == live(store_path("store-ops"))
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    before = sum(path.stat().st_size for path in store_path("store-ops").glob("*_log"))
    assert sum(path.stat().st_size for path in (tmp_path / "out").glob("*_log")) < before


@pytest.mark.parametrize("bad", [{"segments": "9_9"}, {"segments": "0_0,2_0"}, {"filter": "none"}])
def test_compaction_refuses_invalid_options(bad: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        rewritten("compact", store_path("store-small"), tmp_path / "out", **bad)


def test_blobs_are_extracted_as_they_were_put(tmp_path: Path) -> None:
    known = expected("store-ops")
    extracted(store_path("store-ops"), tmp_path / "out", now=str(known["now_ms"]))
    rows = [json.loads(line) for line in (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()]
    by_id = {row["blob_id"]: row for row in rows}
    for blob in known["blobs"]:
        if blob["state"] != "live" or blob["put"] is None:
            continue
        message = known["messages"][blob["put"]]
        if "metadata_content" in message:
            continue
        row = by_id[message["blob_id"]]
        content = (tmp_path / "out" / row["file"]).read_bytes()
        wanted = message.get("compression", {}).get("original_sha256", message["content_sha256"])
        assert hashlib.sha256(content).hexdigest() == row["sha256"] == wanted


def test_chunks_are_joined_across_partitions(tmp_path: Path) -> None:
    parts = [b"first part", b"second one", b"end"]
    chunk_keys = [
        keys.make(6, 9 + number % 2, f"{number + 1:08x}-0000-4000-8000-000000000000", flags=0x10) for number in range(3)
    ]
    whole = keys.make(6, 9, "0000000f-0000-4000-8000-000000000000", flags=0x08)
    metadata = make_metadata(2, [Chunk(key, len(part)) for key, part in zip(chunk_keys, parts, strict=True)], 10)

    def one(key: bytes, content: bytes, **more: Any) -> bytes:
        size = sum(map(len, parts)) if more.get("blob_type") else len(parts[chunk_keys.index(key)])
        return put_message(key, Properties(blob_size=size, creation_time=5, filename="../../evil.txt"), content, **more)

    for number in (9, 10):
        (tmp_path / "disk" / str(number)).mkdir(parents=True)
    packed = one(chunk_keys[0], make_envelope("ZSTD", parts[0]), is_compressed=True)
    (tmp_path / "disk" / "9" / "log_current").write_bytes(
        packed + one(chunk_keys[2], parts[2]) + one(whole, metadata, blob_type=1)
    )
    (tmp_path / "disk" / "10" / "log_current").write_bytes(one(chunk_keys[1], parts[1]))
    report = extracted(tmp_path / "disk", tmp_path / "out", names="filename")
    assert report.facts["files"] == ["evil.txt", "manifest.jsonl"]
    assert (tmp_path / "out" / "evil.txt").read_bytes() == b"".join(parts)
    assert report.is_whole
    alone = extracted(tmp_path / "disk" / "9", tmp_path / "alone")
    assert alone.counts["incomplete"] == len(lost(alone)) == 1  # the chunk that the other partition has


def test_stored_names_are_made_safe() -> None:
    names = {
        "../../etc/passwd": "passwd", "a.png": "a.png", "CON": "_CON", "..": "_", "x\0y": "x_y", "-rf": "_-rf", "C:\\x\\y.txt": "y.txt",
        ".bashrc": "bashrc", "a\u202eb": "a_b", "": "_",
    }  # fmt: skip
    assert {name: safe_name(name) for name in names} == names
    assert len(safe_name("ä" * 500 + ".txt").encode()) <= 180


def test_records_become_a_log_that_reads_as_the_same_records(tmp_path: Path) -> None:
    source = rawlog.read(store_path("store-small") / "0_0_log")
    count = rawlog.write(tmp_path / "0_0_log", source, format="ambry", capacity=2048, accept_loss=["offset"])
    assert count == 7
    again = rawlog.read(tmp_path / "0_0_log")
    assert again.drop_columns(["offset"]) == source.drop_columns(["offset"])
    assert rawlog.verify(tmp_path).verdict == "clean"


def test_small_messages_are_those_of_the_store() -> None:
    assert b"".join(small_messages()[:7]) == (store_path("store-small") / "0_0_log").read_bytes()[18:]
