"""Directories in the middle of a compaction, small files, explanations, and cutting by the index."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rawlog
from rawlog import registry
from rawlog.formats.ambry import structures
from rawlog.formats.ambry.structures import Cursor
from rawlog.formats.ambry.writer import seal
from rawlog.io.walk import walk
from rawlog.model.explain import Node
from rawlog.reading.rows import Rows
from rawlog.reading.tree import open_tree
from tests.data.ambry_rewriting import rewritten
from tests.data.ambry_stores import STORES, copy_store, expected, store_path

PHASES = {"PREPARE": 0, "COPY": 1, "COMMIT": 2, "CLEANUP": 3, "DONE": 4}


def compaction_log(phase: str, segments: list[str], version: int = 1) -> bytes:
    """A compaction log of one cycle that has come so far."""
    done = PHASES[phase]
    times = b"".join((1000 + number if number < done else -1).to_bytes(8, "big", signed=True) for number in range(4))
    names = b"".join(len(name).to_bytes(4, "big") + name.encode() for name in segments)
    details = b"\0\1" + (5).to_bytes(8, "big") + b"\0" + len(segments).to_bytes(4, "big") + names
    body = version.to_bytes(2, "big") + (7).to_bytes(8, "big") + (b"\0" if version else b"")
    body += (0).to_bytes(4, "big") + (1).to_bytes(4, "big") + details + times + b"\0"
    return seal(body + (bytes(4) if version == 2 else b""))


@pytest.fixture
def halfway(tmp_path: Path) -> Path:
    """store-small while 0_0 and 1_0 are compacted into 0_1: both the old segments and the new one are there."""
    store = copy_store("store-small", tmp_path / "9")
    options = {"segments": "0_0,1_0", "now": "1596500000000", "reference_time": "1596499000000"}
    rewritten("compact", store, tmp_path / "done", **options)
    for path in (tmp_path / "done").glob("0_1_*"):
        name = "0_1_log_temp" if path.name == "0_1_log" else path.name
        (store / name).write_bytes(path.read_bytes())
    return store


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize(("phase", "count"), [("PREPARE", 15), ("COPY", 15), ("COMMIT", 11), ("CLEANUP", 11)])
def test_no_message_counts_twice_in_the_middle_of_a_compaction(
    halfway: Path, phase: str, count: int, version: int
) -> None:
    if phase == "CLEANUP":
        (halfway / "0_1_log_temp").rename(halfway / "0_1_log")
    (halfway / "Partition[9]_compactionLog").write_bytes(compaction_log(phase, ["0_0", "1_0"], version))
    log = rawlog.open(halfway)
    rows = log.table("records").to_arrow()
    assert rows.num_rows == log.table("ambry.messages").count() == count
    offsets = rows.column("offset").to_pylist()
    assert offsets == sorted(set(offsets))
    assert offsets[0] == 18
    states = log.table("ambry.blobs", option={"now": "1596413022500"}).to_arrow()
    assert sorted(states.column("state").to_pylist()) == ["deleted"] * 2 + ["live"] * 6
    findings = rawlog.verify(halfway)
    assert findings.verdict == "clean", [str(finding) for finding in findings if finding.severity != "info"]
    assert any(finding.code == "ambry.store.compaction" for finding in findings)


def test_a_target_left_over_without_a_compaction_log_is_not_read(halfway: Path) -> None:
    assert rawlog.read(halfway).num_rows == 15


def test_a_file_asked_for_by_name_is_read_all_the_same(halfway: Path) -> None:
    assert rawlog.read(halfway / "0_1_log_temp").num_rows == 6


def test_a_segment_alone_keeps_its_place_in_the_log() -> None:
    whole = rawlog.read(store_path("store-small"), columns=["offset"]).column(0).to_pylist()
    alone = rawlog.read(store_path("store-small") / "1_0_log", columns=["offset"]).column(0).to_pylist()
    assert alone == whole[7:10]


def test_a_range_of_offsets_is_read() -> None:
    whole = rawlog.read(store_path("store-ops")).column("offset").to_pylist()
    part = rawlog.read(store_path("store-ops"), from_offset=whole[100], to_offset=whole[110])
    assert part.column("offset").to_pylist() == whole[100:110]
    assert rawlog.read(store_path("store-ops"), topic="101/7", columns=["topic"]).num_rows > 0


@pytest.mark.parametrize("name", STORES)
def test_small_files_are_read_to_the_last_byte(name: str) -> None:
    readers = {
        "StoreDescriptor": structures.read_descriptor, "cleanuptoken": structures.read_cleanup_token,
        "remoteTokenTracker": structures.read_tracker,
    }  # fmt: skip
    for path in store_path(name).iterdir():
        read = readers.get(path.name) or (structures.read_compaction if "compactionLog" in path.name else None)
        if read is not None:
            cursor = Cursor(path.read_bytes())
            assert read(cursor).crc_ok
            assert not cursor.left
            if path.name == "StoreDescriptor":
                assert (
                    structures.read_descriptor(Cursor(path.read_bytes())).incarnation_id
                    == expected(name)["store"]["incarnation_id"]
                )


def test_tokens_of_every_version_are_read() -> None:
    text = (36).to_bytes(4, "big") + b"01234567-0123-4012-8012-0123456789ab"
    offset = b"\0\0" + (3).to_bytes(4, "big") + b"1_0" + (99).to_bytes(8, "big")
    key = bytes.fromhex("0006000200650007000100000000000000090000001012344abc8def000000000010")
    none = b"\xff" * 8
    cases = {
        b"\0\0" + text + none + none: ("Uninitialized", None),
        b"\0\0" + text + (5).to_bytes(8, "big") + none: ("JournalBased", 5),
        b"\0\0" + text + none + (6).to_bytes(8, "big") + key: ("IndexBased", 6),
        b"\0\1" + text + b"\0\0": ("Uninitialized", None),
        b"\0\1" + text + b"\0\1" + offset: ("JournalBased", 99),
        b"\0\1" + text + b"\0\2" + offset + key: ("IndexBased", 99),
        b"\0\2\0\0": ("Uninitialized", None),
        b"\0\2\0\1" + text + text + offset + b"\1": ("JournalBased", 99),
        b"\0\3\0\2" + text + text + offset + key + b"\1" + key + b"\0\1\0\0": ("IndexBased", 99),
        b"\0\3\0\1" + text + text + offset + b"\1\0": ("JournalBased", 99),
    }
    for raw, (kind, position) in cases.items():
        cursor = Cursor(raw)
        token = structures.read_token(cursor)
        assert (token.type, token.offset and token.offset.position, cursor.left) == (kind, position, 0)


def test_replica_tokens_and_cleanup_tokens_with_pending_blobs_are_read() -> None:
    key = bytes.fromhex("0006000200650007000100000000000000090000001012344abc8def000000000010")
    host = (1).to_bytes(4, "big") + b"h" + (2).to_bytes(4, "big") + b"/p"
    body = (
        b"\0\1" + b"\0\1" + (9).to_bytes(8, "big") + host + (80).to_bytes(4, "big") + bytes(8) + b"\0\0" + b"\0\3\0\0"
    )
    found = structures.read_replica_tokens(Cursor(seal(body)))
    assert found.crc_ok
    assert found.tokens[0][0] == "9 h:/p"
    offset = b"\0\0" + (3).to_bytes(4, "big") + b"1_0" + (99).to_bytes(8, "big")
    options = b"\0\1" + offset + (200).to_bytes(8, "big") + b"\xff" * 8 + key
    info = b"\0\3\0\1" + (2).to_bytes(4, "big") + b"\0\3\0\0" + (11).to_bytes(8, "big") + key
    body = b"\0\1" + b"\0\3\0\0" * 2 + b"\1" + (1).to_bytes(4, "big") + options + len(info).to_bytes(4, "big") + info
    token = structures.read_cleanup_token(Cursor(seal(body)))
    assert (token.paused, token.pending, token.crc_ok) == (True, [key], True)
    smallest = bytes.fromhex("000100030000000300000100000000000000008ead1e32")
    assert structures.read_cleanup_token(Cursor(smallest)).crc_ok


def leaves(node: Node) -> list[Node]:
    return [leaf for child in node.children for leaf in leaves(child)] if node.children else [node]


@pytest.mark.parametrize("name", STORES)
def test_every_byte_of_every_file_is_explained(name: str) -> None:
    for file in open_tree(store_path(name)):
        format = registry.formats().get(file.format or "")
        if format is None or not format.can("explain") or not file.size:
            continue
        data = Path(file.path).read_bytes()
        nodes = format.codec.explain_header(data[:4096], file) if format.can("explain_header") else []
        for frames in walk(file, format, errors="stop"):
            for index in range(0, len(frames), 1 if len(frames) < 20 else 7):
                nodes += format.codec.explain(frames.slice(index, index + 1), file)
        for node in nodes:
            position = node.position
            for leaf in leaves(node):
                assert leaf.position == position
                assert bytes.fromhex(leaf.hex) == data[position : position + leaf.size]
                assert leaf.name != "crc" or "wrong" not in leaf.meaning
                position += leaf.size
            assert position == node.position + node.size


def test_damage_to_small_files_is_found_at_every_byte(tmp_path: Path) -> None:
    for original in ("StoreDescriptor", "cleanuptoken", "remoteTokenTracker", "0_0_18_bloom"):
        data = (store_path("store-compacted") / original).read_bytes()
        path = tmp_path / original
        for position in range(len(data)):
            changed = bytearray(data)
            changed[position] ^= 1 << position % 8
            path.write_bytes(bytes(changed))
            findings = rawlog.verify(path)
            assert findings.items, (original, position)
        for cut in range(1, len(data)):
            path.write_bytes(data[:cut])
            assert rawlog.verify(path).items, (original, cut)


def test_segments_are_cut_where_index_files_begin() -> None:
    tree = open_tree(store_path("store-ops"))
    rows = Rows(tree, "records")
    parts = rows.parts(60_000)
    known = {
        (file["log_segment"], file["start_offset"])
        for file in expected("store-ops")["index_files"]
        if file["start_offset"] > 18
    }
    used = {(Path(part.file.path).name, part.start) for part in parts if part.start is not None}
    assert used
    assert used <= known


def test_a_wrong_index_name_is_not_believed(tmp_path: Path) -> None:
    store = copy_store("store-ops", tmp_path / "42")
    (store / "1_0_52957_index").rename(store / "1_0_60000_index")
    rows = Rows(open_tree(store / "1_0_log"), "records")
    whole = rows.to_arrow().num_rows
    pieces = sum(part.size for part in rows.parts(60_000))
    assert (whole, pieces) == (71, (store / "1_0_log").stat().st_size)


def test_scanning_with_and_without_checks_gives_the_same_fields() -> None:
    from rawlog.formats.ambry.log import Messages, scan

    data = np.frombuffer((store_path("store-ops") / "0_0_log").read_bytes()[18:], np.uint8)
    frames = scan(data, 0)
    checked, quick = Messages(frames), Messages(frames, check=False)
    assert (checked.fields == quick.fields).all()
