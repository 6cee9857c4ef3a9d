"""Every message, blob state, index entry and chunk of the golden stores, as Ambry itself says."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

import rawlog
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.structures import open_envelope, parse_metadata
from rawlog.testing.formats import plain
from tests.data.ambry_stores import STORES, expected, store_path
from tests.data.golden import golden_path

PROPERTIES = {
    "time_to_live": "time_to_live_s", "is_private": "is_private", "properties_blob_size": "blob_size", "content_type": "content_type",
    "owner_id": "owner_id", "service_id": "service_id", "account_id": "account_id", "container_id": "container_id",
    "is_encrypted": "is_encrypted", "content_encoding": "content_encoding", "filename": "filename",
    "reserved_metadata_blob_id": "reserved_metadata_blob_id",
}  # fmt: skip


def rows(name: str, table: str, **selection: Any) -> list[dict[str, Any]]:
    return plain(rawlog.open(store_path(name)).table(table, **selection).to_arrow())


@pytest.mark.parametrize("name", STORES)
def test_every_message_is_as_expected(name: str) -> None:
    found = rows(name, "ambry.messages")
    known = expected(name)["messages"]
    assert len(found) == len(known) == expected(name)["counts"]["messages"]
    for row, message in zip(found, known, strict=True):
        assert row["path"].endswith("/" + message["segment"])
        assert row["position"] == message["offset"]
        assert row["key"].hex() == message["key_hex"]
        for field in ("size", "kind", "header_version", "life_version", "blob_id", "key_version", "uuid", "crc_ok"):
            assert row[field] == message[field], (message["n"], field)
        if message["kind"] == "PUT":
            check_put(row, message)
        else:
            update = message["update"]
            assert (row["account_id"], row["container_id"]) == (update["account_id"], update["container_id"])
            assert row["operation_timestamp"] == update["update_time_ms"] * 1000
            assert row["new_expiry"] == update.get("new_expiry_ms")
            assert row["content"] is None
            assert row["hard_deleted"] is None


def check_put(row: dict[str, Any], message: dict[str, Any]) -> None:
    golden = message["properties"]
    for field, name in PROPERTIES.items():
        assert row[field] == golden[name], (message["n"], field)
    created = golden["creation_time_ms"]
    assert row["creation_time"] == row["operation_timestamp"] == (None if created == -1 else created * 1000)
    ttl = golden["time_to_live_s"]
    assert row["expires_timestamp"] == (None if -1 in (ttl, created) else (created + ttl * 1000) * 1000)
    for field in ("blob_type", "is_compressed", "blob_size", "hard_deleted"):
        assert row[field] == message[field], (message["n"], field)
    assert row["user_metadata"].hex() == message["user_metadata_hex"]
    assert (None if row["encryption_key"] is None else row["encryption_key"].hex()) == message["encryption_key_hex"]
    assert hashlib.sha256(row["content"]).hexdigest() == message["content_sha256"]
    if "compression" in message:
        algorithm, content = open_envelope(row["content"])
        packed = message["compression"]
        assert (algorithm, len(content)) == (packed["algorithm"], packed["original_size"])
        assert hashlib.sha256(content).hexdigest() == packed["original_sha256"]
    if "metadata_content" in message:
        metadata, known = parse_metadata(row["content"]), message["metadata_content"]
        assert (metadata.version, metadata.total_size) == (known["version"], known["total_size"])
        assert [(keys.text_of(chunk.key), chunk.size) for chunk in metadata.chunks] == [
            (chunk["blob_id"], chunk["size"]) for chunk in known["chunks"]
        ]


@pytest.mark.parametrize("name", STORES)
def test_records_are_the_messages(name: str) -> None:
    found = rows(name, "records")
    bases, end = {}, 0
    for segment in expected(name)["segments"]:
        bases[segment["file"]] = end
        end += segment["file_size"]
    for row, message in zip(found, expected(name)["messages"], strict=True):
        known = message.get("properties") or message["update"]
        assert row["offset"] == bases[message["segment"]] + message["offset"]
        assert row["topic"] == f"{known['account_id']}/{known['container_id']}"
        assert row["partition"] == expected(name)["store"]["partition"]
        assert (row["value"] is None) == (message["kind"] != "PUT")
        headers = {header["key"]: header["value"] for header in row["headers"]}
        assert headers["kind"].decode() == message["kind"]
        assert headers["life_version"].decode() == str(message["life_version"])
        if message["kind"] == "PUT":
            assert headers["time_to_live"].decode() == str(known["time_to_live_s"])
            assert headers["service_id"].decode() == known["service_id"]
            assert headers["is_private"].decode() == str(known["is_private"]).lower()
            assert ("filename" in headers) == bool(known["filename"])


@pytest.mark.parametrize("name", STORES)
def test_every_blob_is_in_the_state_that_the_store_would_answer(name: str) -> None:
    known = expected(name)
    found = {row["blob_id"]: row for row in rows(name, "ambry.blobs", option={"now": str(known["now_ms"])})}
    assert len(found) == len(known["blobs"]) == known["counts"]["blobs"]
    for blob in known["blobs"]:
        row = found[blob["blob_id"]]
        put = None if blob["put"] is None else known["messages"][blob["put"]]
        for field in ("state", "life_version", "ttl_updated", "account_id", "container_id", "blob_size"):
            assert row[field] == blob[field], (blob["blob_id"], field)
        assert row["expires_timestamp"] == (None if blob["expires_at_ms"] == -1 else blob["expires_at_ms"] * 1000)
        assert row["last_operation"] == blob["last_operation_time_s"] * 1_000_000
        assert row["in_log"] == (put is not None)
        assert row["position"] == (put and put["offset"])
        assert (row["path"] or "").rpartition("/")[2] == ((put and put["segment"]) or "")


@pytest.mark.parametrize("name", STORES)
def test_the_log_alone_tells_all_but_what_compaction_took(name: str, tmp_path: Any) -> None:
    import shutil

    for path in store_path(name).glob("*_log"):
        shutil.copy(path, tmp_path)
    known = expected(name)
    found = rawlog.open(tmp_path).table("ambry.blobs", option={"now": str(known["now_ms"])}).to_arrow()
    by_id = {row["blob_id"]: row for row in plain(found)}
    for blob in known["blobs"]:
        row, only = by_id[blob["blob_id"]], blob.get("only_in_index", ())
        for field in ("state", "life_version", "ttl_updated"):
            assert field in only or row[field] == blob[field], (blob["blob_id"], field)
        if "expires_at_ms" not in only:
            assert row["expires_timestamp"] == (None if blob["expires_at_ms"] == -1 else blob["expires_at_ms"] * 1000)


@pytest.mark.parametrize("name", STORES)
def test_every_index_entry_is_as_expected(name: str) -> None:
    found = rows(name, "ambry.index")
    known = [(file["file"], entry) for file in expected(name)["index_files"] for entry in file["entries"]]
    assert len(found) == len(known)
    for row, (file, entry) in zip(found, known, strict=True):
        assert row["path"].endswith("/" + file)
        assert row["key"].hex() == entry["key_hex"]
        names = {"kind": "type", "position": "offset", "expires": "expires_at_s", "operation_time": "operation_time_s"}
        for field in ("kind", "position", "size", "flags", "expires", "original_offset", "operation_time", "account_id",
                      "container_id", "life_version"):  # fmt: skip
            assert row[field] == entry[names.get(field, field)], (file, field)


@pytest.mark.parametrize("name", STORES)
def test_chunks_are_those_of_all_metadata_blobs(name: str) -> None:
    known = [
        {"blob_id": message["blob_id"], "number": number, "chunk_blob_id": chunk["blob_id"], "size": chunk["size"]}
        for message in expected(name)["messages"]
        for number, chunk in enumerate(message.get("metadata_content", {}).get("chunks", ()))
    ]
    assert rows(name, "ambry.chunks") == known


@pytest.mark.parametrize("name", STORES)
def test_golden_stores_verify_clean(name: str) -> None:
    findings = rawlog.verify(store_path(name))
    assert findings.verdict == "clean", [str(finding) for finding in findings]
    codes = {finding.code for finding in findings} - {"rawlog.file.unknown"}
    if name == "store-crashed":
        cut = next(finding for finding in findings if finding.code == "ambry.log.unfinished")
        known = expected(name)["cut_message"]
        assert (cut.position, cut.size) == (known["offset"], known["bytes_written"])
        assert codes == {"ambry.log.unfinished", "ambry.index.unindexed"}
    else:
        assert codes == ({"ambry.store.orphan-update"} if name == "store-compacted" else set())


def msgs() -> dict[str, Any]:
    return json.loads(golden_path("ambry", "msgs", "expected.json").read_text())  # type: ignore[no-any-return]


def test_keys_of_every_version() -> None:
    for name, known in msgs().items():
        if not name.startswith("blobid"):
            continue
        key = keys.parse(golden_path("ambry", "msgs", name).read_bytes())
        wanted = known["key"]
        assert (key.version, len(key.raw), key.uuid, key.partition) == (
            wanted["version"], wanted["size"], wanted["uuid"], wanted["partition"],
        )  # fmt: skip
        assert (key.datacenter_id, key.account_id, key.container_id) == (
            wanted["datacenter_id"], wanted["account_id"], wanted["container_id"],
        )  # fmt: skip
        assert (key.id_type, key.is_encrypted, key.data_type) == (
            wanted["type"],
            wanted["is_encrypted"],
            wanted["data_type"],
        )
        assert key.text == known["blob_id"]
        assert keys.from_text(key.text) == key.raw
        again = keys.make(
            key.version, key.partition, key.uuid, flags=key.flags, datacenter_id=key.datacenter_id, account_id=key.account_id,
            container_id=key.container_id,
        )  # fmt: skip
        assert again == key.raw


def test_messages_of_every_header_version() -> None:
    kinds = {"put": "PUT", "delete": "DELETE", "ttl": "TTL_UPDATE", "undelete": "UNDELETE"}
    for path in sorted(golden_path("ambry", "msgs").glob("*_h?.bin")):
        [row] = rawlog.read(path, table="ambry.messages", format="ambry.log").to_pylist()
        assert row["kind"] == kinds[path.stem.split("_")[0]]
        assert row["header_version"] == int(path.stem[-1])
        assert row["crc_ok"]
        assert row["size"] == path.stat().st_size
        if row["kind"] == "PUT":
            assert row["content"] == (b"" if "empty" in path.stem else b"hello ambry")
            assert row["encryption_key"] == (bytes([1, 2, 3, 4]) if "enc" in path.stem else None)
            assert (row["filename"], row["content_encoding"]) == ("a.png", "gzip")
