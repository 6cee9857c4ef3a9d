"""Repair keeps what a broker would delete; writing and reading again gives the same rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rawlog
from rawlog.formats.rocketmq.layouts import FILLER_FLAG, HEAD
from rawlog.formats.rocketmq.store import rewrite
from rawlog.formats.rocketmq.store.settings import settings_of
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    EncodeError,
    OptionError,
    UnknownFormatError,
)
from rawlog.model.report import Action
from rawlog.model.table import RECORDS
from tests.data.rocketmq_rewriting import rebuilt, repaired, written
from tests.data.rocketmq_stores import copy, log_files, store
from tests.formats.rocketmq.test_checks import (
    break_framing,
    drop_blank,
    flip_body,
    leave_stale_entry,
    tear_last_entry,
    zero_page,
)
from tests.reference import rocketmq as reference

SMALL = {"commitlog_size": "65536", "queue_size": "2000", "index_slots": "50", "index_entries": "150"}
DAMAGES = [flip_body, break_framing, zero_page, drop_blank, tear_last_entry, leave_stale_entry]


def places(root: Path, **how: str) -> dict[int, bytes]:
    rows = rawlog.read(
        root, table="rocketmq.messages", columns=["physical_offset", "body", "stale", "crc_ok", "flag"], **how
    ).to_pylist()
    return {
        row["physical_offset"]: row["body"]
        for row in rows
        if not row["stale"] and row["crc_ok"] and row["flag"] != FILLER_FLAG
    }


@pytest.mark.parametrize("damage", DAMAGES)
def test_repair_keeps_every_later_message_at_its_place(damage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    root = copy("broker-4.9.7", tmp_path)
    whole = places(root)
    damage(root)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = repaired(root, tmp_path / "repaired")
    kept = places(tmp_path / "repaired")
    assert kept.items() <= whole.items()
    lost = {flip_body: 1, break_framing: 1, drop_blank: 0, tear_last_entry: 1, leave_stale_entry: 0}
    if damage in lost:
        assert len(whole) - len(kept) == lost[damage]
    assert report.lines() or not lost.get(damage, 1)
    assert not rawlog.verify(tmp_path / "repaired").errors
    assert before == {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    again = repaired(tmp_path / "repaired", tmp_path / "again")
    assert again.is_whole
    for path in (tmp_path / "repaired").rglob("*"):
        if path.is_file():
            assert (tmp_path / "again" / path.relative_to(tmp_path / "repaired")).read_bytes() == path.read_bytes()


def test_repair_by_cutting_ends_the_log_at_the_damage(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    whole = places(root)
    flip_body(root)
    report = repaired(root, tmp_path / "repaired", {"policy": "cut"})
    kept = places(tmp_path / "repaired")
    assert 0 < len(kept) < 60 < len(whole)
    assert list(kept.items()) == list(whole.items())[: len(kept)]
    assert not report.is_whole
    assert not rawlog.verify(tmp_path / "repaired").errors


def test_repair_by_moving_closes_the_hole(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    whole = list(places(root).values())
    flip_body(root)
    repaired(root, tmp_path / "repaired", {"move": "true"})
    kept = list(places(tmp_path / "repaired").values())
    assert len(kept) == len(whole) - 1
    assert all(body in whole for body in kept)
    errors = [each for each in rawlog.verify(tmp_path / "repaired") if each.severity == "error"]
    assert not errors, errors


def test_moved_entries_have_a_new_checksum_of_the_whole(tmp_path: Path) -> None:
    """The property `__CRC32#` covers the physical offset: copied as it was, a broker that checks it would cut the log there."""
    root = copy("5.3.4S-propcrc", tmp_path)
    flip_body(root)
    report = repaired(root, tmp_path / "repaired", {"move": "true"})
    assert not report.is_whole
    findings = [each for each in rawlog.verify(tmp_path / "repaired") if "crc" in each.code]
    assert not findings, findings


@pytest.mark.parametrize("options", [{}, {"policy": "cut"}, {"move": "true"}])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_dry_run_reports_the_same_and_writes_nothing(damage, options, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    root = copy("broker-4.9.7", tmp_path)
    damage(root)
    said = repaired(root, tmp_path / "repaired", options, dry_run=True)
    assert [path.name for path in tmp_path.iterdir()] == [root.name]
    done = repaired(root, tmp_path / "repaired", options)
    assert (said.entries, said.counts, said.notes) == (done.entries, done.counts, done.notes)


def test_fillers_are_no_records_and_are_reported(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    records = len(rawlog.read(root))
    flip_body(root)
    repaired(root, tmp_path / "repaired")
    assert len(rawlog.read(tmp_path / "repaired")) == records - 1
    assert rawlog.open(tmp_path / "repaired").table("records").count() == records - 1
    assert [each.code for each in rawlog.verify(tmp_path / "repaired") if "filler" in each.code] == [
        "rocketmq.commitlog.filler"
    ]


def test_a_placeholder_keeps_the_numbers_of_a_queue(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    before = {(row["topic"], row["partition"], row["offset"]): row["value"] for row in rawlog.read(root).to_pylist()}
    zero_page(root)
    report = repaired(root, tmp_path / "repaired")
    after = {
        (row["topic"], row["partition"], row["offset"]): row["value"]
        for row in rawlog.read(tmp_path / "repaired").to_pylist()
    }
    assert after.items() <= before.items()
    assert len(before) - len(after) == report.counts["messages_lost"] > 1
    assert not [each for each in rawlog.verify(tmp_path / "repaired") if each.severity != "info"]


def test_without_queues_a_placeholder_has_the_number_and_a_filler_the_rest(tmp_path: Path) -> None:
    import shutil

    root = copy("broker-4.9.7", tmp_path)
    flip_body(root)
    shutil.rmtree(root / "consumequeue")
    repaired(root, tmp_path / "repaired", {"queue_size": "2000"})
    rows = rawlog.read(tmp_path / "repaired", table="rocketmq.messages").to_pylist()
    placeholder, filler = [row for row in rows if row["flag"] == FILLER_FLAG]
    assert placeholder["topic"].startswith("gold4")
    assert (filler["topic"], filler["transaction"]) == ("_", "rollback")


def test_a_store_without_a_commit_log_has_lost_its_messages(tmp_path: Path) -> None:
    """A broker then deletes the queues too. Verify called it clean, and repair reported nothing and ended with exit code 0."""
    root = copy("broker-5.3.3", tmp_path)
    known = rawlog.open(root).table("records").count()
    for path in log_files(root):
        path.unlink()
    [finding] = [one for one in rawlog.verify(root) if one.severity != "info"]
    assert (finding.code, finding.severity) == ("rocketmq.store.missing-file", "error")
    report = rawlog.repair(root, tmp_path / "out")
    assert not report.is_whole
    assert report.counts["messages_lost"] == known
    with pytest.raises(UnknownFormatError, match="no commit log is here"):
        rawlog.rescue(root, to=tmp_path / "rescued")


def test_unknown_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="policy"):
        repaired(store("5.1.4"), tmp_path / "x", {"policy": "hope"})
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------ writing


def table(rows: list[dict[str, object]]) -> list[pa.RecordBatch]:
    return pa.Table.from_pylist(rows, schema=RECORDS.schema).to_batches()  # type: ignore[no-any-return]


def row(number: int, **changes: object) -> dict[str, object]:
    return {
        "key": b"k%d" % number, "value": b"v" * number, "topic": "orders", "partition": number % 3, "offset": number // 3,
        "timestamp": (1_700_000_000_000 + number) * 1000, "timestampType": 0, "headers": [],
    } | changes  # fmt: skip


@pytest.mark.parametrize("codec", ["none", "zlib", "lz4", "zstd"])
def test_written_rows_are_read_again(codec: str, tmp_path: Path) -> None:
    rows = [
        row(number, headers=[{"key": "TAGS", "value": b"a"}, {"key": "ü", "value": "é".encode()}])
        for number in range(300)
    ]
    report = written(table(rows), tmp_path / "out", SMALL | {"codec": codec, "compress_over": "100"})
    assert report.counts["messages"] == 300
    found = rawlog.read(tmp_path / "out").to_pylist()
    for got, wanted in zip(found, rows, strict=True):
        assert (got["key"], got["value"], got["topic"], got["partition"], got["offset"]) == (
            wanted["key"], wanted["value"], wanted["topic"], wanted["partition"], wanted["offset"],
        )  # fmt: skip
        assert [pair["key"] for pair in got["headers"]] == ["TAGS", "ü", "KEYS", "__RAWLOG"]
    findings = rawlog.verify(tmp_path / "out")
    assert findings.verdict == "clean", list(findings)
    assert all(path.stat().st_size == 65536 for path in log_files(tmp_path / "out"))
    listed = [message for path in log_files(tmp_path / "out") for message in reference.messages(path.read_bytes())]
    assert len(listed) == 300
    assert all(message.crc_ok for message in listed)


def test_whole_entry_checksums_are_written_and_right(tmp_path: Path) -> None:
    written(table([row(number) for number in range(20)]), tmp_path / "out", SMALL | {"crc_property": "true"})
    assert rawlog.verify(tmp_path / "out").verdict == "clean"
    [headers] = ({row["headers"][-1]["key"] for row in rawlog.read(tmp_path / "out").to_pylist()},)
    assert headers == {"__CRC32#"}


@pytest.mark.parametrize("more", [7, 8, 9])
def test_roll_rule_leaves_room_for_a_blank_entry(more: int, tmp_path: Path) -> None:
    """An entry goes into the file if eight bytes are left after it, else into the next."""
    size = 4096
    first = row(0, value=b"", key=None)
    small = len(
        reference.encode(
            reference.Message(0, 0, 1, 0, 0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"", b"orders", b"")
        )
    )
    second = row(0, value=b"x" * (size - 2 * small - more), key=None)
    written(table([first, second]), tmp_path / "out", SMALL | {"commitlog_size": str(size)})
    assert len(log_files(tmp_path / "out")) == (2 if more < 8 else 1)
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


def test_what_no_entry_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EncodeError, match="without a topic"):
        written(table([row(1, topic=None)]), tmp_path / "out", SMALL)
    with pytest.raises(EncodeError, match="fits no file"):
        written(table([row(1, value=bytes(70000))]), tmp_path / "out", SMALL)
    with pytest.raises(EncodeError, match="properties"):
        written(table([row(1, key=b"k" * 40000)]), tmp_path / "out", SMALL)
    with pytest.raises(OptionError, match="commitlog_size"):
        written(table([row(1)]), tmp_path / "out", {"comitlog_size": "1"})
    assert not list(tmp_path.iterdir())
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(AccessError, match="exists"):
        written(table([row(1)]), tmp_path / "out", SMALL)


def test_losses_are_named_by_column() -> None:
    rows = [row(0), row(1), row(2, value=None), row(3), row(4, timestamp=1), row(5, timestampType=1), row(6, offset=7)]
    [batch] = table(rows)
    lost = {name: np.flatnonzero(mask).tolist() for name, mask in rewrite.losses({})(batch).items() if mask.any()}
    assert lost == {"value": [2], "timestamp": [4], "timestampType": [5], "offset": [6]}


def test_a_store_written_from_a_golden_one_holds_the_same_records(tmp_path: Path) -> None:
    whole = rawlog.read(store("broker-5.3.3"))
    written(whole.to_batches(), tmp_path / "out", SMALL | {"commitlog_size": "524288"})
    again = rawlog.read(tmp_path / "out")
    for name in ("key", "value", "topic", "partition", "timestamp", "headers"):
        assert again.column(name).combine_chunks().equals(whole.column(name).combine_chunks()), name


def test_delay_levels_are_times() -> None:
    with pytest.raises(OptionError, match="1s 5m 2h 1d"):
        settings_of([], {"delay_levels": "1s 5 months"})


def change_magic(root: Path) -> None:
    path = log_files(root)[0]
    data = bytearray(path.read_bytes())
    data[4] ^= 1  # of the first message
    path.write_bytes(data)


def swap_files(root: Path) -> None:
    first, second, *_ = log_files(root)
    first.rename(root / "first")
    second.rename(first)
    (root / "first").rename(second)


def delete_middle(root: Path) -> None:
    log_files(root)[1].unlink()


def delete_last(root: Path) -> None:
    log_files(root)[-1].unlink()


def cut_last(root: Path) -> None:
    path = log_files(root)[-1]
    path.write_bytes(path.read_bytes()[:20_000])


def cut_middle(root: Path) -> None:
    path = log_files(root)[1]
    path.write_bytes(path.read_bytes()[:20_000])


@pytest.mark.parametrize(
    "damage", [change_magic, swap_files, delete_middle, delete_last, cut_last, cut_middle, flip_body, drop_blank]
)
def test_rebuild_refuses_a_damaged_commit_log(damage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Of swapped files 396 of 585 messages were in no queue of the copy, nothing was said, and the exit code was 0. Deleted and cut files
    were accepted, too.
    """
    root = copy("broker-4.9.7", tmp_path)
    damage(root)
    with pytest.raises(CorruptError, match="the commit log is damaged: .*use `rawlog repair`"):
        rebuilt(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rebuild_takes_what_is_no_damage(tmp_path: Path) -> None:
    """Queues and index that are gone or wrong, and what a crash leaves after the last message."""
    root = copy("broker-4.9.7", tmp_path)
    queue = root / "consumequeue" / "gold4_one" / "0" / "00000000000000000000"
    whole = queue.read_bytes()
    queue.write_bytes(bytes(7) + b"\5" + whole[8:])
    for path in (root / "index").iterdir():
        path.unlink()
    leave_stale_entry(root)
    report = rebuilt(root, tmp_path / "out")
    assert report.is_whole
    assert (tmp_path / "out" / queue.relative_to(root)).read_bytes() == whole


@pytest.mark.parametrize("verb", ["repair", "rescue"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_log_without_its_first_page(number: int, verb: str, tmp_path: Path) -> None:
    """Both ended with an internal error: no delayed message was left, and the tags of none were looked up."""
    root = copy("4.9.8", tmp_path)
    path = log_files(root)[number]
    path.write_bytes(bytes(4096) + path.read_bytes()[4096:])
    out = tmp_path / "out"
    report = repaired(root, out) if verb == "repair" else rawlog.rescue([str(root)], to=out, engine="local")
    assert not report.is_whole
    assert not report.remaining
    assert places(tmp_path / "out").items() < places(store("4.9.8")).items()


# Places that messages name ----------------------------------------------------------------------------------------------------


def flip_address(root: Path, file: int, message: int, bit: int) -> None:
    """Change one bit of a physical offset, which no checksum of a body covers."""
    path = log_files(root)[file]
    data = bytearray(path.read_bytes())
    at = list(reference.messages(bytes(data)))[message].position + HEAD.at("physical_offset")
    data[at + 7 - bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["broker-4.9.7", "5.3.4S-propcrc"])
@pytest.mark.parametrize(("message", "bit"), [(0, 0), (1, 3), (1, 12), (-1, 0), (-1, 3), (-1, 40)])
@pytest.mark.parametrize("file", [0, -1])
def test_a_message_with_a_wrong_address_is_kept(name: str, file: int, message: int, bit: int, tmp_path: Path) -> None:
    """It was taken for a leftover: reading passed over it in silence, and repair and rescue lost it."""
    root = copy(name, tmp_path)
    whole, records = places(root), len(rawlog.read(root))
    flip_address(root, file, message, bit)
    notes: list[str] = []
    assert rawlog.count(root, note=notes.append) == records
    assert ["from here on 1 frame is not at the right place" in note for note in notes] == [True]
    report = repaired(root, tmp_path / "repaired")
    assert places(tmp_path / "repaired") == whole
    [change] = report.with_action(Action.CHANGED)
    assert "its physical offset was another" in change.reason
    assert not report.is_whole
    rescued = rawlog.rescue([str(root)], to=tmp_path / "rescued", engine="local")
    assert places(tmp_path / "rescued") == whole
    assert rescued.with_action(Action.CHANGED)


def insert(root: Path, file: int, message: int, inside: int) -> None:
    path = log_files(root)[file]
    data = path.read_bytes()
    at = list(reference.messages(data))[message].position + inside
    path.write_bytes(data[:at] + bytes(range(1, 101)) + data[at:])


@pytest.mark.parametrize("inside", [0, 30])
@pytest.mark.parametrize("file", [0, -1])
def test_messages_after_inserted_bytes_are_put_back(file: int, inside: int, tmp_path: Path) -> None:
    """All messages after these bytes were lost, though each names its place. Between two messages they cost nothing."""
    root = copy("broker-4.9.7", tmp_path)
    whole, records = places(root), len(rawlog.read(root))
    insert(root, file, 5, inside)
    lost = 1 if inside else 0
    assert rawlog.count(root, errors="skip", note=lambda note: None) == records - lost
    report = repaired(root, tmp_path / "repaired")
    kept = places(tmp_path / "repaired")
    assert kept.items() <= whole.items()
    assert len(kept) == len(whole) - lost
    assert report.is_whole == (not lost)
    assert any("100 bytes from their place; put back" in one.reason for one in report.with_action(Action.MOVED))
    rescued = rawlog.rescue([str(root)], to=tmp_path / "rescued", engine="local")
    assert places(tmp_path / "rescued") == kept
    assert rescued.is_whole == (not lost)


def test_messages_after_missing_bytes_are_put_back(tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    whole = places(root)
    path = log_files(root)[0]
    data = path.read_bytes()
    gone = list(reference.messages(data))[5]
    path.write_bytes(data[: gone.position] + data[gone.position + gone.size :])
    report = repaired(root, tmp_path / "repaired")
    assert places(tmp_path / "repaired").items() == whole.items() - {
        (gone.physical_offset, whole[gone.physical_offset])
    }
    assert report.counts["messages_lost"] == 1


def test_rows_of_swapped_files_are_read(tmp_path: Path) -> None:
    """Reading passed over all messages of both files: `count` printed 189 instead of 585, and nothing was said."""
    root = copy("broker-4.9.7", tmp_path)
    records = len(rawlog.read(root))
    swap_files(root)
    notes: list[str] = []
    assert rawlog.count(root, note=notes.append) == records
    assert len(notes) == 2
    assert all("not at the right place" in note for note in notes)
    assert not any(rawlog.read(root, table="rocketmq.messages")["stale"].to_pylist())


@pytest.mark.parametrize("damage", [delete_last, cut_last, tear_last_entry])
@pytest.mark.parametrize("name", ["4.9.8", "broker-4.9.7", "broker-5.5.1", "broker-5.5.1-doublewrite"])
def test_a_second_repair_after_the_loss_of_the_end_changes_nothing(name: str, damage, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """Of the 5.5.1 store with both kinds of queues, cut, one file of the index was left. Its 389 entries did not show how large a broker
    makes such files: the second repair left the index out.
    """
    root = copy(name, tmp_path)
    if damage is delete_last and len(log_files(root)) == 1:
        damage = cut_last
    damage(root)
    assert not repaired(root, tmp_path / "out").is_whole
    again = repaired(tmp_path / "out", tmp_path / "again")
    assert again.is_whole
    assert contents(tmp_path / "again") == contents(tmp_path / "out")


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_swapped_files_of_a_queue_do_not_give_wrong_numbers(tmp_path: Path) -> None:
    """Placeholders got the numbers that the names of the queue's files said: 287 instead of 87, and the copy had gaps."""
    root = copy("4.9.8", tmp_path)
    first, second, *_ = sorted((root / "consumequeue" / "T2" / "0").iterdir())
    first.rename(tmp_path / "first")
    second.rename(first)
    (tmp_path / "first").rename(second)
    path = log_files(root)[0]
    data = bytearray(path.read_bytes())
    data[30_000:34_000] = bytes(4_000)
    path.write_bytes(data)
    report = repaired(root, tmp_path / "repaired")
    assert report.counts["messages_lost"] > 1
    assert not report.remaining


def test_a_missing_file_before_one_that_was_never_used_is_a_loss(tmp_path: Path) -> None:
    """A broker allocates the next file before it needs it: all zeros. With it there, and without queues and index, repair said nothing of
    the file before it that was deleted, and exited 0.
    """
    root = copy("broker-5.5.1-crashed", tmp_path)
    log_files(root)[1].unlink()
    for path in (*root.glob("consumequeue/*/*/*"), *root.glob("index/*")):
        path.unlink()
    report = repaired(root, tmp_path / "repaired")
    assert not report.is_whole
    assert any("00000000000000131072 after it is missing" in one.reason for one in report.with_action(Action.LOST))


@pytest.mark.parametrize("where", ["instead", "far"])
def test_a_file_of_another_store_is_set_aside(where: str, tmp_path: Path) -> None:
    """Its checksums are right, so its messages were taken for those of this log, also next to a sound replica: 181 of 269 messages were
    lost. The consume queues have other messages at its addresses, or none of its messages at all.
    """
    root, foreign = copy("5.3.4S-propcrc", tmp_path), log_files(store("broker-5.3.3"))[0]
    own = places(root)
    size = log_files(root)[0].stat().st_size
    name, data = ("0" * 20, foreign.read_bytes()[:size]) if where == "instead" else (f"{128:020}", b"")
    if where == "far":
        data = log_files(store("broker-4.9.7"))[1].read_bytes()[:size]
    lost = size if where == "instead" else 0
    (root / "commitlog" / name).write_bytes(data)
    report = repaired(root, tmp_path / "repaired")
    assert not report.is_whole
    assert any(one.path == str(root / "commitlog" / name) for one in report.with_action(Action.DROPPED))
    assert places(tmp_path / "repaired") == {address: body for address, body in own.items() if address >= lost}
    rescued = rawlog.rescue([str(root), str(store("5.3.4S-propcrc"))], to=tmp_path / "rescued", engine="local")
    assert places(tmp_path / "rescued") == own
    assert not rescued.is_whole


def test_a_queue_file_of_another_queue_shows_no_lost_messages(tmp_path: Path) -> None:
    """Its units point after the end of the log with numbers that messages of the log have: they were reported as lost, exit 1."""
    root = copy("broker-4.9.7-crashed", tmp_path)
    queue = root / "consumequeue" / "crash4_orders" / "2" / ("0" * 20)
    data = (store("broker-5.3.3") / "batchconsumequeue" / "gold_bcq" / "1" / ("0" * 20)).read_bytes()
    queue.write_bytes(data)
    assert repaired(root, tmp_path / "repaired").is_whole
    assert len(rawlog.convert(root, tmp_path / "rows.jsonl").entries) == 0


def test_properties_that_were_overwritten_with_zeros_are_a_loss(tmp_path: Path) -> None:
    """The body of the message before zeroed bytes has its checksum; that its keys were gone nobody said."""
    root = copy("4.9.8", tmp_path)
    path = log_files(root)[0]
    data = bytearray(path.read_bytes())
    data[64_000:] = bytes(len(data) - 64_000)  # the last 18 bytes of a message, and those after it
    path.write_bytes(data)
    assert any(one.code == "rocketmq.commitlog.text" and one.severity == "warning" for one in rawlog.verify(root))
    report = repaired(root, tmp_path / "repaired")
    assert any("properties end in zero bytes" in one.reason for one in report.with_action(Action.CHANGED))
    read = rawlog.convert(root, tmp_path / "rows.jsonl")
    assert any("properties end in zero bytes" in one.reason for one in read.with_action(Action.CHANGED))


def test_a_log_that_goes_on_in_a_missing_file_is_a_warning(tmp_path: Path) -> None:
    """Verify called a store clean of which repair said that a file is missing. Of commit-log files alone it is only a remark."""
    root = copy("broker-5.5.1-rocksdb-crashed", tmp_path)
    first, *others = log_files(root)
    for path in (*others, *root.glob("index/*"), root / "checkpoint"):
        path.unlink()
    [finding] = [one for one in rawlog.verify(root) if one.code == "rocketmq.store.missing-file"]
    assert finding.severity == "warning"
    assert not repaired(root, tmp_path / "repaired").is_whole
    alone = tmp_path / "alone" / "commitlog" / first.name
    alone.parent.mkdir(parents=True)
    alone.write_bytes(first.read_bytes())
    assert not [one for one in rawlog.verify(alone.parent.parent) if one.severity != "info"]


def test_an_unreadable_bak_next_to_readable_settings_is_a_note(tmp_path: Path) -> None:
    """A broker writes the `.bak` again by itself. Verify said nothing of it, and repair and rescue exited 1."""
    root = copy("broker-4.9.7", tmp_path)
    path = root / "config" / "subscriptionGroup.json.bak"
    path.write_bytes(path.read_bytes()[:1139])
    report = repaired(root, tmp_path / "repaired")
    assert report.is_whole
    assert [one.path for one in report.with_action(Action.DROPPED)] == [str(path)]
    (root / "config" / "subscriptionGroup.json").write_bytes(b"{")
    assert not repaired(root, tmp_path / "both").is_whole
