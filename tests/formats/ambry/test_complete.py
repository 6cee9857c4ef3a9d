"""`verify --complete` of Ambry stores: every blob has a class, and what nothing explains is found with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.model.finding import CLASSES, Account, Findings
from tests.data.ambry_stores import STORES, copy_store, store_path


def verified(path: Path) -> tuple[Findings, Account]:
    found = rawlog.verify(path, complete=True)
    [one] = found.accounts
    assert sum(getattr(one, name) or 0 for name in CLASSES) == one.stop
    return found, one


def of(found: Findings) -> list[Any]:
    return [item for item in found if item.code == "ambry.complete.unexplained"]


@pytest.mark.parametrize("name", STORES)
def test_what_ambry_wrote_is_complete(name: str) -> None:
    found, one = verified(store_path(name))
    assert not of(found)
    assert found.verdict == "clean"
    rows = rawlog.read(store_path(name), table="ambry.blobs").to_pylist()
    assert one.stop == len(rows)
    assert one.present == sum(row["state"] == "live" and row["in_log"] for row in rows)
    assert one.unexplained == 0


def blobs(path: Path, log: str, state: str = "live") -> list[dict[str, Any]]:
    """The blobs of a state whose PUT is in a segment, with the size of that."""
    sizes = {row["position"]: row["size"] for row in rawlog.read(path / log, table="ambry.messages").to_pylist()}
    rows = rawlog.read(path, table="ambry.blobs").to_pylist()
    mine = [row for row in rows if row["state"] == state and row["in_log"] and row["path"].endswith(f"/{log}")]
    return [row | {"size": sizes[row["position"]]} for row in mine]


def harm(path: Path, row: dict[str, Any]) -> None:
    """Change a byte of the content of a PUT."""
    raw = bytearray(path.read_bytes())
    raw[row["position"] + row["size"] - 20] ^= 1
    path.write_bytes(raw)


def test_a_live_blob_whose_content_is_damaged_is_unexplained(tmp_path: Path) -> None:
    store = copy_store("store-ops", tmp_path / "42")
    row = max(blobs(store, "1_0_log"), key=lambda one: one["size"])
    path = store / "1_0_log"
    harm(path, row)
    found, one = verified(store)
    assert one.unexplained == 1
    [item] = of(found)
    assert (item.path, item.position) == (str(path), row["position"])


def test_a_deleted_blob_may_be_damaged(tmp_path: Path) -> None:
    store = copy_store("store-ops", tmp_path / "42")
    harm(store / "1_0_log", max(blobs(store, "1_0_log", "deleted"), key=lambda one: one["size"]))
    found, one = verified(store)
    assert one.unexplained == 0
    assert found.verdict == "damaged"  # by the rule about checksums


@pytest.mark.parametrize("with_index", [True, False])
def test_a_segment_that_is_gone_is_unexplained(with_index: bool, tmp_path: Path) -> None:
    """With its index files, every blob that it had is named; without, what other segments know of, and that it is missing."""
    store = copy_store("store-ops", tmp_path / "42")
    gone = {row["blob_id"] for row in blobs(store, "1_0_log")}
    for path in store.glob("1_0_*" if not with_index else "1_0_log"):
        path.unlink()
    found, one = verified(store)
    text = " ".join(item.message for item in rawlog.verify(store, rule="ambry.complete.unexplained"))
    if with_index:
        assert one.unexplained >= len(gone)
        assert "the index has its PUT" in text
    else:
        assert one.unexplained > 1
        assert "log segment 1_0_log is not there, nor its index" in text
    assert found.verdict == "damaged"


def test_a_stretch_that_was_cut_out_of_a_segment_is_unexplained(tmp_path: Path) -> None:
    store = copy_store("store-ops", tmp_path / "42")
    rows = sorted(blobs(store, "1_0_log"), key=lambda one: one["position"])
    row = rows[len(rows) // 2]
    path = store / "1_0_log"
    raw = path.read_bytes()
    path.write_bytes(raw[: row["position"]] + raw[row["position"] + row["size"] :])
    found, one = verified(store)
    assert row["blob_id"] in " ".join(item.message for item in of(found))
    assert one.unexplained == 1
