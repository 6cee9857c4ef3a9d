"""Every rule finds what it is for, in a real store that was broken on purpose, at the right place."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.ambry.structures import open_envelope
from rawlog.formats.ambry.writer import Properties, put_message, segment_header
from rawlog.lakes.targets import LossCheck
from rawlog.model.errors import CorruptError
from rawlog.model.finding import Finding
from rawlog.model.format import Format
from rawlog.model.report import SeriousNote
from rawlog.verbs.verify import all_rules
from tests.data.ambry_stores import (
    CLOCK,
    STEP,
    STORES,
    copy_store,
    expected,
    make_envelope,
    small_key,
    small_messages,
    store_path,
)


def crc(data: bytes) -> bytes:
    return struct.pack(">Q", zlib.crc32(data))


def edited(path: Path, position: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[position : position + len(new)] = new
    path.write_bytes(bytes(data))


def reheaded(path: Path, message: int, change: Callable[[bytearray], None]) -> None:
    """Change a V3 message header, and make its checksum right again."""
    data = bytearray(path.read_bytes())
    head = data[message : message + 32]
    change(head)
    data[message : message + 40] = head + crc(bytes(head))
    path.write_bytes(bytes(data))


def resealed(path: Path, change: Callable[[bytearray], None]) -> None:
    """Change an index or bloom file, and make its checksum right again."""
    body = bytearray(path.read_bytes()[:-8])
    change(body)
    path.write_bytes(bytes(body) + crc(bytes(body)))


def found(store: Path, code: str) -> list[Finding]:
    findings = rawlog.verify(store)
    hits = [finding for finding in findings if finding.code == code]
    assert hits, [str(finding) for finding in findings]
    assert all(finding.message for finding in hits)
    return hits


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """store-small in a directory of its partition's name."""
    return copy_store("store-small", tmp_path / "9")


def put(data: bytearray, at: int, form: str, *values: int) -> None:
    struct.pack_into(form, data, at, *values)


def test_a_changed_byte_of_content_is_a_wrong_checksum(store: Path) -> None:
    edited(store / "0_0_log", 230, b"\xee")  # the content of the first message
    [hit] = found(store, "ambry.log.crc")
    assert hit.position == 18 + expected("store-small")["messages"][0]["header"]["blob_offset"]
    assert "blob record" in hit.message
    with pytest.raises(CorruptError, match="byte 18"):
        rawlog.read(store / "0_0_log")
    kept = rawlog.read(store, errors="skip")
    assert kept.num_rows == 14
    assert rawlog.read(store, table="ambry.messages").column("crc_ok").to_pylist().count(False) == 1


def test_a_checksum_field_with_a_non_zero_upper_half(store: Path) -> None:
    edited(store / "0_0_log", 240 - 8, b"\0\0\1\0")
    [hit] = found(store, "ambry.log.crc-upper")
    assert (hit.position, hit.size) == (232, 8)
    edited(store / "1_0_log", 18 + 32, b"\1")  # that of a header
    hits = found(store, "ambry.log.framing")
    assert [one.position for one in hits] == [18]
    assert "upper half" in hits[0].message


def test_a_record_of_no_known_version(store: Path) -> None:
    first = expected("store-small")["messages"][0]
    edited(store / "0_0_log", 18 + first["header"]["user_metadata_offset"], b"\0\7")
    [hit] = found(store, "ambry.log.record")
    assert hit.position == 18 + first["header"]["user_metadata_offset"]


def test_offsets_that_disagree_with_the_records(store: Path) -> None:
    reheaded(store / "0_0_log", 18, lambda head: put(head, 24, ">i", struct.unpack_from(">i", head, 24)[0] + 1))
    [hit] = found(store, "ambry.log.offsets")
    assert (hit.position, hit.size) == (18, 222)
    assert "user metadata" in hit.message


def test_a_payload_size_that_lies(store: Path) -> None:
    """Too large, and the next message would be swallowed: it is found again, and only the liar is lost."""
    reheaded(store / "0_0_log", 18, lambda head: put(head, 4, ">q", struct.unpack_from(">q", head, 4)[0] + 100))
    [hit] = found(store, "ambry.log.framing")
    assert (hit.position, hit.size) == (18, 222)
    assert "payload size" in hit.message
    assert rawlog.read(store, errors="skip").num_rows == 14


def test_a_payload_size_that_lies_at_the_end_of_the_log(store: Path) -> None:
    with (store / "2_0_log").open("ab") as out:
        out.write(bytes([7, 7, 7]))
    reheaded(store / "2_0_log", 1524, lambda head: put(head, 4, ">q", 29))
    [hit] = found(store, "ambry.log.payload-size")
    assert hit.position == 1524


def test_a_payload_size_beyond_the_file_is_an_unfinished_message_only_at_its_end(store: Path) -> None:
    reheaded(store / "0_0_log", 18, lambda head: put(head, 4, ">q", 10**12))
    assert found(store, "ambry.log.framing")[0].position == 18
    reheaded(store / "2_0_log", 1524, lambda head: put(head, 4, ">q", 10**12))
    assert found(store, "ambry.log.unfinished")[0].position == 1524


def test_a_cut_message_is_told_with_its_place(store: Path) -> None:
    data = (store / "2_0_log").read_bytes()
    (store / "2_0_log").write_bytes(data[:1600])
    [hit] = found(store, "ambry.log.unfinished")
    assert (hit.position, hit.size) == (1524, 76)
    assert found(store, "ambry.index.end")[0].found == "1624"


def test_a_key_of_another_partition(store: Path) -> None:
    edited(store / "0_0_log", 18 + 40 + 17, b"\x0a")
    [hit] = found(store, "ambry.log.partition")
    assert (hit.position, hit.expected, hit.found) == (58, "9", "10")


def test_zeros_after_the_last_message(store: Path) -> None:
    with (store / "2_0_log").open("ab") as out:
        out.write(bytes(100))
    [hit] = found(store, "ambry.log.padding")
    assert (hit.position, hit.size) == (1624, 100)
    assert rawlog.read(store).num_rows == 15


def test_content_that_is_not_compressed_as_said(tmp_path: Path) -> None:
    from tests.data.golden import golden_path

    (tmp_path / "log_current").write_bytes(golden_path("ambry", "msgs", "put_h3.bin").read_bytes())
    [hit] = found(tmp_path, "ambry.log.envelope")
    assert hit.position == 193


def test_content_larger_than_the_limit_is_not_damage(tmp_path: Path) -> None:
    content = make_envelope("ZSTD", bytes(5000))
    properties = Properties(blob_size=len(content), creation_time=0)
    (tmp_path / "log_current").write_bytes(put_message(small_key(1), properties, content, is_compressed=True))
    assert not [one.code for one in rawlog.verify(tmp_path) if one.code.endswith((".limit", ".envelope"))]
    [hit] = [
        one for one in rawlog.verify(tmp_path, max_decompressed=4999) if one.code.endswith((".limit", ".envelope"))
    ]
    assert (hit.code, hit.severity) == ("ambry.log.limit", "warning")
    assert "--max-decompressed raises it" in hit.message


def test_an_lz4_block_cannot_declare_more_than_it_can_hold() -> None:
    """Memory for what it declared was allocated first."""
    content = bytearray(make_envelope("LZ4", bytes(100)))
    content[5:9] = (1 << 26).to_bytes(4, "big")
    with pytest.raises(CorruptError, match="declare 67,108,864"):
        open_envelope(bytes(content))


def test_a_far_time_is_null_and_no_damage(tmp_path: Path) -> None:
    """Beyond what microseconds can hold there was no finding, and the null was a loss that nobody named."""
    far = (1 << 63) // 1000 + 1
    properties = Properties(blob_size=1, creation_time=far, service_id="s\udcff")
    (tmp_path / "log_current").write_bytes(put_message(small_key(1), properties, b"x"))
    rows = rawlog.read(tmp_path)
    assert rows["timestamp"].to_pylist() == [None]
    assert rawlog.read(tmp_path, table="ambry.messages")["service_id"].to_pylist() == ["s\ufffd"]
    [hit] = found(tmp_path, "ambry.log.far-timestamp")
    assert (hit.severity, hit.found) == ("info", str(far))
    check = LossCheck(Format(name="jsonl", title="", files=""), {}, ["timestamp"])
    assert sum(1 for _ in check.over(rawlog.open(tmp_path).table().batches())) == 1
    assert set(check.lost) == {"timestamp"}


def test_metadata_that_is_none(tmp_path: Path) -> None:
    from rawlog.formats.ambry.writer import Properties, put_message
    from tests.data.ambry_stores import small_key

    properties = Properties(blob_size=3, creation_time=0)
    (tmp_path / "log_current").write_bytes(put_message(small_key(1), properties, b"abc", blob_type=1))
    assert found(tmp_path, "ambry.log.metadata")


def test_a_segment_past_its_capacity(store: Path) -> None:
    (store / "0_0_log").write_bytes(segment_header(1000) + (store / "0_0_log").read_bytes()[18:])
    assert found(store, "ambry.log.capacity")[0].position == 1000
    assert found(store, "ambry.store.segments")


def test_a_damaged_segment_header(store: Path) -> None:
    edited(store / "0_0_log", 5, b"\1")
    assert found(store, "ambry.log.header")[0].position == 0


def test_a_damaged_index(store: Path) -> None:
    edited(store / "0_0_18_index", 300, b"\x55")
    assert found(store, "ambry.index.crc")[0].path == str(store / "0_0_18_index")


def test_an_entry_without_a_key(store: Path) -> None:
    resealed(store / "0_0_1090_index", lambda body: put(body, 64, ">h", 9))
    assert found(store, "ambry.index.entry")[0].position == 64


def test_entries_out_of_order(store: Path) -> None:
    def swap(body: bytearray) -> None:
        body[64:137], body[137:210] = body[137:210], body[64:137]

    resealed(store / "0_0_1090_index", swap)
    assert found(store, "ambry.index.order")[0].position == 137


def test_an_entry_that_is_there_twice(store: Path) -> None:
    """Entries of one blob rise by their place in the log: the same place again is out of order."""

    def repeat(body: bytearray) -> None:
        body[137:210] = body[64:137]

    resealed(store / "0_0_1090_index", repeat)
    assert [finding.position for finding in found(store, "ambry.index.order")] == [137]


def test_an_index_without_entries(store: Path) -> None:
    path = store / "2_0_18_index"
    path.write_bytes(path.read_bytes()[:64] + crc(path.read_bytes()[:64]))
    found(store, "ambry.index.empty")


def test_a_missing_index_file(store: Path) -> None:
    (store / "0_0_18_index").unlink()
    assert found(store, "ambry.index.gap")[0].expected == "18"


def test_an_index_file_missing_at_the_end_of_a_segment(store: Path) -> None:
    (store / "0_0_1090_index").unlink()
    hit = found(store, "ambry.index.gap")[0]
    assert (hit.path, hit.position) == (str(store / "0_0_log"), 1090)


def test_messages_that_are_not_indexed_yet(store: Path) -> None:
    (store / "2_0_18_index").unlink()
    found(store, "ambry.index.unindexed")


@pytest.mark.parametrize(
    ("at", "form", "value", "what"),
    [
        (98, ">q", 101, "size"),
        (114, ">b", 0, "kind"),
        (131, ">h", 1, None),
        (135, ">h", 5, "life version"),
        (127, ">i", 7, "time"),
    ],
)
def test_an_entry_that_disagrees_with_its_message(
    store: Path, at: int, form: str, value: int, what: str | None
) -> None:
    resealed(store / "0_0_1090_index", lambda body: put(body, at, form, value))
    if what is None:
        assert not rawlog.verify(store).errors  # an update's account is inherited: the log need not say the same
        return
    hit = found(store, "ambry.index.mismatch")[0]
    assert (hit.position, hit.size) == (64, 73)
    assert what in hit.message


def test_an_entry_that_points_to_no_message(store: Path) -> None:
    resealed(store / "0_0_1090_index", lambda body: put(body, 106, ">q", 1190))
    assert found(store, "ambry.index.message")[0].found == "1190"
    assert found(store, "ambry.index.missing")[0].position == 1198


def test_a_reset_key_that_is_not_the_first(store: Path) -> None:
    resealed(store / "0_0_1090_index", lambda body: put(body, 60, ">h", 2))
    found(store, "ambry.index.reset-key")


def test_a_bloom_that_denies_a_key(store: Path) -> None:
    resealed(store / "0_0_18_bloom", lambda body: put(body, 8, ">q", 0))
    assert found(store, "ambry.bloom.key")[0].path == str(store / "0_0_18_bloom")


def test_a_damaged_bloom(store: Path) -> None:
    edited(store / "0_0_18_bloom", 9, b"\x99")
    found(store, "ambry.bloom.framing")


def test_an_impossible_history_is_found(tmp_path: Path) -> None:
    messages = small_messages()
    (tmp_path / "log_current").write_bytes(messages[0] + messages[4] + messages[4] + messages[0])
    hits = found(tmp_path, "ambry.store.history")
    assert [(hit.position, hit.message) for hit in hits] == [
        (len(messages[0]) + 100, "a DELETE of a deleted blob"),
        (len(messages[0]) + 200, "a PUT of a blob that the store already knows"),
    ]


def test_an_update_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "log_current").write_bytes(small_messages()[5])
    assert found(tmp_path, "ambry.store.orphan-update")[0].position == 0


def test_segments_that_do_not_belong_together(store: Path) -> None:
    (store / "log_current").write_bytes(small_messages()[0])
    found(store, "ambry.store.segments")


def test_files_that_are_not_read_are_named(store: Path) -> None:
    (store / "5_0_log_temp").write_bytes(segment_header(2048))
    (store / "7_0_18_index").write_bytes((store / "2_0_18_index").read_bytes())
    paths = {Path(hit.path or "").name for hit in found(store, "ambry.store.compaction")}
    assert paths == {"5_0_log_temp", "7_0_18_index"}


def test_every_rule_is_documented_and_stable() -> None:
    codes = [rule.code for rule in all_rules() if rule.code.startswith("ambry.")]
    assert len(codes) == len(set(codes))
    assert all(rule.about for rule in all_rules())


def against(one: Path, other: Path) -> list[Finding]:
    return [finding for finding in rawlog.verify(one, against=other) if ".replica." in finding.code]


def test_replicas_are_compared_blob_by_blob(store: Path, tmp_path: Path) -> None:
    other = copy_store("store-small", tmp_path / "other")
    assert not against(store, other)
    # Another order of the same operations is the same replica.
    messages = small_messages()
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "log_current").write_bytes(b"".join([messages[7], *messages[:7], *messages[8:]]))
    assert not against(store, tmp_path / "third")
    (tmp_path / "fourth").mkdir()
    (tmp_path / "fourth" / "log_current").write_bytes(b"".join(messages[:-2]))
    codes = sorted(finding.code for finding in against(store, tmp_path / "fourth"))
    assert codes == ["ambry.replica.missing", "ambry.replica.state"]


def test_other_content_on_a_replica(store: Path, tmp_path: Path) -> None:
    messages = small_messages()
    properties = Properties(
        blob_size=20, creation_time=CLOCK + 13 * STEP, content_type="image/png", account_id=101, container_id=7
    )
    messages[13] = put_message(small_key(8), properties, bytes(20))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "log_current").write_bytes(b"".join(messages))
    [finding] = against(store, tmp_path / "other")
    assert (finding.code, finding.position, finding.path) == ("ambry.replica.content", 1312, str(store / "2_0_log"))


def test_a_segment_of_another_partition_in_a_directory_that_names_none(tmp_path: Path) -> None:
    """Each segment was compared with its own first message only."""
    store = copy_store("store-small", tmp_path / "backup")
    assert rawlog.verify(store).verdict == "clean"
    (store / "3_0_log").write_bytes((store_path("store-ops") / "0_0_log").read_bytes())
    [found] = [one for one in rawlog.verify(store) if one.code == "ambry.store.segments" and one.found == "42"]
    assert str(found.path).endswith("3_0_log")
    assert found.expected == "9"


# What readers meet ------------------------------------------------------------------------------------------------------


def serious(*paths: Path, table: str = "records") -> list[str]:
    """The notes on reading that count, of `cat` and `count`, which agree."""
    notes: list[list[str]] = [[], []]
    for _ in rawlog.rows(paths, table=table, errors="skip", note=notes[0].append):
        pass
    rawlog.count(paths, table=table, errors="skip", note=notes[1].append)
    found = [[note for note in some if isinstance(note, SeriousNote)] for some in notes]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("name", STORES)
def test_readers_have_nothing_against_a_sound_store(name: str, tmp_path: Path) -> None:
    """Compacted and crashed ones too; below a directory that has the partition's number, which blob ids are compared with."""
    store = copy_store(name, tmp_path / "store")
    assert serious(store) == []
    [number] = {row["partition"] for row in rawlog.rows(store, table="ambry.messages", columns=["partition"])}
    assert serious(store.rename(tmp_path / str(number))) == []
    [note] = serious((tmp_path / str(number)).rename(tmp_path / str(number + 1)))[:1]
    assert "not at the right place" in note


def test_readers_name_a_copy_of_a_segment(tmp_path: Path) -> None:
    store = copy_store("store-small", tmp_path / "9")
    (store / "3_0_log").write_bytes((store / "1_0_log").read_bytes())
    [note] = serious(store)
    assert note == f"{store}/3_0_log: a copy of 1_0_log: it begins with the same message"


def test_readers_name_a_segment_that_is_missing_between_two_others(tmp_path: Path) -> None:
    store = copy_store("store-small", tmp_path / "9")
    words = "1_0_log is missing or empty between this log segment and the next"
    assert serious(store / "0_0_log", store / "2_0_log") == []  # it is there, and was not asked for
    (store / "1_0_log").write_bytes(b"")
    assert serious(store) == [f"{store}/0_0_log: {words}"]
    (store / "1_0_log").unlink()
    assert serious(store) == [f"{store}/0_0_log: {words}"]
    (store / "2_0_log").unlink()
    assert serious(store) == []  # nothing follows: the log ends there


def test_noise_after_the_end_counts_if_the_index_names_messages_there(tmp_path: Path) -> None:
    """A store to which a crash added noise lost nothing. One whose last message became noise did."""
    store = copy_store("store-small", tmp_path / "9")
    log = store / "2_0_log"
    sound = log.read_bytes()
    noise = bytes(range(1, 200))
    log.write_bytes(sound + noise)
    assert serious(store) == []
    last = max(row["position"] for row in rawlog.rows(log, table="ambry.messages", errors="skip"))
    log.write_bytes(sound[:last] + noise)
    [note] = serious(store)
    assert note == f"{log}: byte {last:,}: the index names messages from here on, and they are damaged"
