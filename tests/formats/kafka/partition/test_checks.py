"""Every rule fires on a real file that was broken for it, and on nothing else."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

import rawlog
from rawlog.formats.kafka.log.layouts import BATCH
from rawlog.model.errors import CorruptError
from rawlog.model.report import Action
from tests.data.golden import golden_path
from tests.reference import kafka

DATA = golden_path("kafka", "broker-4.3.0", "data")


def copy(tmp_path: Path, partition: str) -> Path:
    """A partition directory of a real broker, to be broken."""
    target = tmp_path / "data" / partition
    shutil.copytree(DATA / partition, target)
    return target


def codes(path: Path) -> set[str]:
    return {finding.code for finding in rawlog.verify(path) if finding.severity != "info"}


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.log"))


def sealed(batch: bytearray) -> bytes:
    """A batch with its checksum made right again."""
    batch[BATCH.at("crc") : BATCH.after("crc")] = struct.pack(">I", kafka.crc32c(bytes(batch[BATCH.after("crc") :])))
    return bytes(batch)


def rewrite(path: Path, number: int, change: Callable[[bytearray], None], *, seal: bool = True) -> None:
    """Change one batch of a segment."""
    data = path.read_bytes()
    position, size, _ = kafka.frames(data)[0][number]
    batch = bytearray(data[position : position + size])
    change(batch)
    path.write_bytes(data[:position] + (sealed(batch) if seal else bytes(batch)) + data[position + size :])


def put(name: str, value: int, kind: str) -> Callable[[bytearray], None]:
    def change(batch: bytearray) -> None:
        batch[BATCH.at(name) : BATCH.after(name)] = struct.pack(kind, value)

    return change


def test_a_flipped_byte_is_a_wrong_checksum_with_its_place(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-zstd-0")
    path = segments(folder)[0]
    data = bytearray(path.read_bytes())
    position, size, _ = kafka.frames(bytes(data))[0][2]
    data[position + size - 5] ^= 0x10
    path.write_bytes(data)
    (finding,) = [one for one in rawlog.verify(folder) if one.code == "kafka.log.crc"]
    assert (finding.position, finding.size, finding.severity) == (position, size, "error")
    with pytest.raises(CorruptError) as caught:
        rawlog.read(folder)
    assert caught.value.position == position
    assert str(path) in str(caught.value)


def test_a_magic_that_does_not_exist(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    rewrite(segments(folder)[0], 1, put("magic", 7, ">b"), seal=False)
    assert "kafka.log.magic" in codes(folder)


def test_a_codec_that_does_not_exist(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    rewrite(segments(folder)[0], 1, put("attributes", 6, ">h"))
    assert "kafka.log.codec" in codes(folder)


def test_unknown_attribute_bits(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    rewrite(segments(folder)[0], 0, put("attributes", 1 << 9, ">h"))
    assert codes(folder) == {"kafka.log.attributes"}


@pytest.mark.parametrize("count", [-1, 0x7FFF_FFFF])
def test_a_record_count_that_cannot_be(count: int, tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    rewrite(segments(folder)[0], 1, put("record_count", count, ">i"))
    assert "kafka.log.records" in codes(folder)


def test_content_that_does_not_decompress(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-gzip-0")

    def spoil(batch: bytearray) -> None:
        batch[BATCH.size + 20] ^= 0xFF

    rewrite(segments(folder)[0], 0, spoil)
    assert "kafka.log.records" in codes(folder)


def test_offsets_outside_the_batch(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    rewrite(segments(folder)[0], 0, put("last_offset_delta", 0, ">i"))
    assert "kafka.log.offsets" in codes(folder)


def test_a_batch_that_is_there_twice_is_out_of_order(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    path = segments(folder)[0]
    data = path.read_bytes()
    position, size, _ = kafka.frames(data)[0][-1]
    path.write_bytes(data + data[position : position + size])
    assert "kafka.log.order" in codes(folder)


def test_offsets_below_the_segments_name(tmp_path: Path) -> None:
    folder = copy(tmp_path, "segments-by-size-0")
    last = segments(folder)[-1]
    last.rename(folder / f"{int(last.stem) + 5:020d}.log")
    assert "kafka.log.base" in codes(folder)


def test_a_largest_time_that_is_not_the_records(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    rewrite(segments(folder)[0], 0, put("max_timestamp", 1, ">q"))
    assert "kafka.log.max-timestamp" in codes(folder)


def test_a_broken_length_is_damage_up_to_the_next_batch(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    path = segments(folder)[0]
    frames = kafka.frames(path.read_bytes())[0]
    rewrite(path, 1, put("length", 3, ">i"), seal=False)
    (finding,) = [one for one in rawlog.verify(folder) if one.code == "kafka.log.framing"]
    assert (finding.position, finding.size) == (frames[1][0], frames[1][1])


def test_a_length_that_swallows_the_rest_is_damage_not_an_unfinished_tail(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    path = segments(folder)[0]
    frames = kafka.frames(path.read_bytes())[0]
    rewrite(path, 1, put("length", 0x7FFF_FFFF, ">i"), seal=False)
    (finding,) = [one for one in rawlog.verify(folder) if one.code == "kafka.log.framing"]
    assert finding.position == frames[1][0]
    with pytest.raises(CorruptError):
        rawlog.read(folder)


def test_an_unfinished_last_batch_is_only_noted(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    path = segments(folder)[-1]
    for neighbour in folder.glob(f"{path.stem}.*index"):
        neighbour.unlink()
    whole = rawlog.read(path, columns=["offset"]).num_rows
    data = path.read_bytes()
    path.write_bytes(data[:-7])
    found = rawlog.verify(path)
    assert [(one.code, one.severity) for one in found if one.code.startswith("kafka.log.unf")] == [
        ("kafka.log.unfinished", "info")
    ]
    assert 0 < rawlog.read(path, columns=["offset"]).num_rows < whole


def test_a_preallocated_tail_is_normal(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    path = segments(folder)[-1]
    rows = rawlog.read(path).num_rows
    with path.open("ab") as file:
        file.write(bytes(5 << 20))
    assert codes(folder) == set()
    assert rawlog.read(path).num_rows == rows


def test_zeros_in_the_middle_are_damage(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-none-0")
    path = segments(folder)[0]
    data = path.read_bytes()
    frames = kafka.frames(data)[0]
    path.write_bytes(data[: frames[1][0]] + bytes(4096) + data[frames[1][0] :])
    (finding,) = [one for one in rawlog.verify(path) if one.code == "kafka.log.framing"]
    assert (finding.position, finding.size) == (frames[1][0], 4096)
    kept = rawlog.read(path, errors="skip")
    assert kept.num_rows == sum(batch.record_count for batch in kafka.decode(data) if not batch.is_control)


def test_what_an_old_cleaner_left_is_reported() -> None:
    folder = golden_path("kafka", "legacy", "broker-0.10.0.1-kafka-4298", "data")
    found = [one for one in rawlog.verify(folder) if one.code == "kafka.log.mixed-magic"]
    assert found
    assert {one.severity for one in found} == {"info"}


# ------------------------------------------------------------------ files next to the log


def test_an_index_that_falls(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-mixed-0")
    path = next(folder.glob("*.index"))
    data = path.read_bytes()
    path.write_bytes(data[8:16] + data[:8] + data[16:])
    assert "kafka.index.order" in codes(folder)


def test_an_index_that_points_past_the_batch(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-mixed-0")
    path = next(folder.glob("*.index"))
    data = bytearray(path.read_bytes())
    data[7] += 1
    path.write_bytes(data)
    assert codes(folder) == {"kafka.index.mismatch"}


def test_an_index_that_names_another_offset(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-mixed-0")
    path = next(folder.glob("*.index"))
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 0, 1)
    path.write_bytes(data)
    assert codes(folder) == {"kafka.index.mismatch"}


def test_a_cut_index_is_unfinished(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-mixed-0")
    path = next(folder.glob("*.index"))
    path.write_bytes(path.read_bytes() + b"\x00\x01\x02")
    assert "kafka.index.unfinished" in {one.code for one in rawlog.verify(folder)}


def test_a_time_index_with_a_wrong_time(tmp_path: Path) -> None:
    folder = copy(tmp_path, "segments-by-size-0")
    path = next(path for path in sorted(folder.glob("*.timeindex")) if path.stat().st_size >= 24)
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 0, struct.unpack_from(">q", data, 0)[0] - 1)
    path.write_bytes(data)
    assert codes(folder) == {"kafka.timeindex.mismatch"}


def test_a_time_index_that_falls(tmp_path: Path) -> None:
    folder = copy(tmp_path, "segments-by-size-0")
    path = next(path for path in sorted(folder.glob("*.timeindex")) if path.stat().st_size >= 24)
    data = path.read_bytes()
    path.write_bytes(data[12:24] + data[:12] + data[24:])
    assert "kafka.timeindex.order" in codes(folder)


def txnindex(folder: Path) -> Path:
    return next(path for path in sorted(folder.glob("*.txnindex")) if path.stat().st_size)


def test_an_abort_that_is_not_listed(tmp_path: Path) -> None:
    folder = copy(tmp_path, "transactions-0")
    path = txnindex(folder)
    path.write_bytes(path.read_bytes()[34:])
    assert codes(folder) == {"kafka.txnindex.mismatch"}
    path.unlink()
    assert codes(folder) == {"kafka.txnindex.mismatch"}


def test_an_abort_that_never_was(tmp_path: Path) -> None:
    folder = copy(tmp_path, "transactions-0")
    path = txnindex(folder)
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 2, 4711)
    path.write_bytes(data)
    assert codes(folder) == {"kafka.txnindex.mismatch"}


def test_a_transaction_index_that_falls_or_is_of_another_version(tmp_path: Path) -> None:
    folder = copy(tmp_path, "transactions-0")
    path = txnindex(folder)
    data = path.read_bytes()
    path.write_bytes(data + data)
    assert "kafka.txnindex.order" in codes(folder)
    path.write_bytes(b"\x01" + data[1:])
    assert "kafka.txnindex.framing" in codes(folder)


def test_a_snapshot_whose_checksum_is_wrong(tmp_path: Path) -> None:
    folder = copy(tmp_path, "idempotent-0")
    path = max(folder.glob("*.snapshot"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert "kafka.snapshot.framing" in codes(folder)


def test_a_snapshot_that_is_older_than_the_log(tmp_path: Path) -> None:
    folder = copy(tmp_path, "idempotent-0")
    path = max(folder.glob("*.snapshot"))
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 10 + 14, 0)  # lastOffset of the first entry
    struct.pack_into(">I", data, 2, kafka.crc32c(bytes(data[6:])))
    path.write_bytes(data)
    assert codes(folder) == {"kafka.snapshot.mismatch"}


def test_epochs_that_fall_or_disagree(tmp_path: Path) -> None:
    folder = copy(tmp_path, "codec-mixed-0")
    path = folder / "leader-epoch-checkpoint"
    path.write_text("0\n2\n3 10\n2 20\n")
    assert "kafka.epochs.order" in codes(folder)
    path.write_text("0\n1\n5 0\n")
    assert codes(folder) == {"kafka.epochs.mismatch"}
    path.write_text("0\n7\n5 0\n")
    assert "kafka.epochs.framing" in codes(folder)


def test_a_missing_segment_is_a_gap(tmp_path: Path) -> None:
    copy(tmp_path, "__cluster_metadata-0")  # it tells that the topic is not compacted
    folder = copy(tmp_path, "segments-by-size-0")
    gone = segments(folder)[1]
    for path in folder.glob(f"{gone.stem}.*"):
        path.unlink()
    assert codes(folder) == {"kafka.partition.gap"}


def test_segments_that_overlap(tmp_path: Path) -> None:
    folder = copy(tmp_path, "segments-by-size-0")
    first, second = segments(folder)[:2]
    second_base = int(second.stem)
    shutil.copy(first, folder / f"{second_base - 1:020d}.log")
    assert "kafka.partition.overlap" in codes(folder)


def test_a_batch_of_an_idempotent_producer_that_is_gone(tmp_path: Path) -> None:
    folder = copy(tmp_path, "idempotent-0")
    for path in (*folder.glob("*.snapshot"), *folder.glob("*.index"), *folder.glob("*.timeindex")):
        path.unlink()
    path = segments(folder)[0]
    rewrite(path, 6, put("base_sequence", 1_000_000, ">i"))
    assert codes(folder) == {"kafka.log.sequence"}


def test_a_producer_that_was_fenced(tmp_path: Path) -> None:
    folder = copy(tmp_path, "idempotent-0")
    for path in (*folder.glob("*.snapshot"), *folder.glob("*.index"), *folder.glob("*.timeindex")):
        path.unlink()
    rewrite(segments(folder)[0], 0, put("producer_epoch", 9, ">h"))
    assert "kafka.log.producer-epoch" in codes(folder)


def test_an_open_transaction_is_reported(tmp_path: Path) -> None:
    found = [one for one in rawlog.verify(DATA / "transaction-open-0") if one.code == "kafka.log.open-transaction"]
    assert [(one.offset, one.severity) for one in found] == [(10, "info")]


def test_a_rule_is_found_by_its_former_code() -> None:
    """A transaction that is merely open was reported as hanging, on a page that said that none hangs. Scripts still name the old code."""
    former = "kafka.log.hanging-transaction"
    [finding] = rawlog.verify(DATA / "transaction-open-0", rule=former)
    assert finding.code == "kafka.log.open-transaction"
    skipped = rawlog.verify(DATA / "transaction-open-0", skip=former)
    assert finding.code not in {one.code for one in skipped}
    assert [one.code for one in rawlog.rules(rule=former)] == ["kafka.log.open-transaction"]


# ------------------------------------------------------------------ the log directory


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A small log directory: two partitions, and the files at the top."""
    target = tmp_path / "data"
    for name in ("codec-none-0", "codec-none-1"):
        shutil.copytree(DATA / name, target / name)
    for name in ("meta.properties", "recovery-point-offset-checkpoint", "replication-offset-checkpoint"):
        shutil.copy(DATA / name, target / name)
    assert codes(target) == set()
    return target


def test_a_log_start_beyond_the_end_deletes_the_log(directory: Path) -> None:
    (directory / "log-start-offset-checkpoint").write_text("0\n1\ncodec-none 0 100000\n")
    assert codes(directory) == {"kafka.checkpoint.log-start"}


def test_a_watermark_beyond_the_end_is_a_loss(directory: Path) -> None:
    (directory / "replication-offset-checkpoint").write_text("0\n1\ncodec-none 1 100000\n")
    assert codes(directory) == {"kafka.checkpoint.beyond", "kafka.partition.gap"}


@pytest.mark.parametrize(
    ("entry", "code"),
    [((53_843, -1_419_480_576), "order"), ((53_843, 0), "mismatch"), ((-1, 4_000), "order"), ((74, -5), "order")],
)
def test_the_first_entry_of_an_index_is_not_negative_and_points_at_its_offset(
    entry: tuple[int, int], code: str, tmp_path: Path
) -> None:
    """After a clean stop a broker served nothing of a log whose index had such an entry and no other; verify called it clean."""
    folder = tmp_path / "broker-uncompressed-0"
    shutil.copytree(DATA / folder.name, folder)
    (folder / f"{0:020}.index").write_bytes(struct.pack(">ii", *entry))
    assert codes(folder) == {f"kafka.index.{code}"}
    rawlog.repair(folder, tmp_path / "out" / folder.name)
    assert codes(tmp_path / "out") == set()


def test_a_partition_whose_segments_are_all_gone(directory: Path, tmp_path: Path) -> None:
    """A broker makes an empty log in its place; verify called the directory clean, and repair left it out with exit code 0."""
    for path in (directory / "codec-none-0").glob("*.log"):
        path.unlink()
    [finding] = [one for one in rawlog.verify(directory) if one.severity != "info"]
    assert (finding.code, finding.path) == ("kafka.partition.no-segment", str(directory / "codec-none-0"))
    assert "offsets 0 to 85 are missing" in finding.message
    report = rawlog.repair(directory, tmp_path / "out")
    [entry, whole] = sorted(report.with_action(Action.LOST), key=lambda one: one.first_offset is None)
    assert (entry.first_offset, entry.stop_offset, whole.path) == (0, 86, str(directory / "codec-none-0"))
    assert codes(tmp_path / "out") == set()
    # Also where no checkpoint is there that counts them; but not if only one of its files is looked at.
    assert codes(directory / "codec-none-0") == {"kafka.partition.no-segment"}
    assert codes(directory / "codec-none-1" / "partition.metadata") == set()


def test_a_partition_that_a_checkpoint_lists_and_that_is_not_here(directory: Path, tmp_path: Path) -> None:
    """It was a remark, and repair called its result whole. One that a broker has put aside is not missing."""
    (directory / "replication-offset-checkpoint").write_text("0\n1\ncodec-none 1 5\n")
    (directory / "recovery-point-offset-checkpoint").write_text("0\n1\ncodec-none 0 86\n")
    (directory / "codec-none-0").rename(directory / f"codec-none-0.{'a' * 32}-delete")
    assert codes(directory) == set()
    shutil.rmtree(directory / f"codec-none-0.{'a' * 32}-delete")
    [finding] = [one for one in rawlog.verify(directory) if one.severity != "info"]
    assert (finding.code, finding.severity) == ("kafka.partition.missing", "warning")
    report = rawlog.repair(directory, tmp_path / "out")
    [entry] = report.with_action(Action.LOST)
    assert (entry.first_offset, entry.stop_offset) == (0, 86)
    assert report.exit_code == 1


def test_repair_reports_what_only_a_checkpoint_still_counts(directory: Path, tmp_path: Path) -> None:
    """The checkpoint is made to fit the log, and the result is clean: the report has to say that records were there."""
    (directory / "replication-offset-checkpoint").write_text("0\n1\ncodec-none 1 70\n")
    assert codes(directory) == {"kafka.checkpoint.beyond", "kafka.partition.gap"}
    report = rawlog.repair(directory, tmp_path / "out")
    [entry] = report.with_action(Action.LOST)
    assert (entry.first_offset, entry.stop_offset) == (66, 70)
    assert entry.reason == "replication-offset-checkpoint counts them"
    assert codes(tmp_path / "out") == set()
    assert rawlog.repair(tmp_path / "out", tmp_path / "again").is_whole


@pytest.mark.parametrize("name", [b"codec-\x9fnone", b"codec\rnone"])
def test_a_checkpoint_of_bytes_that_java_does_not_read(name: bytes, directory: Path, tmp_path: Path) -> None:
    """A broker ends at a name that is not UTF-8 ("all log dirs have failed"), and begins a line at a carriage return."""
    (directory / "replication-offset-checkpoint").write_bytes(b"0\n2\ncodec-none 1 5\n" + name + b" 0 5\n")
    [finding] = [one for one in rawlog.verify(directory) if one.severity != "info"]
    assert (finding.code, finding.position) == ("kafka.checkpoint.framing", 19)
    rawlog.repair(directory, tmp_path / "out")
    assert codes(tmp_path / "out") == set()


def test_a_checkpoint_that_is_none(directory: Path) -> None:
    (directory / "replication-offset-checkpoint").write_text("0\n2\ncodec-none 1 5\n")
    assert codes(directory) == {"kafka.checkpoint.framing"}


def test_topic_ids_that_disagree(directory: Path) -> None:
    (directory / "codec-none-1" / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    assert codes(directory) == {"kafka.partition.topic-id"}


def test_a_partition_without_topic_id_would_be_put_aside(directory: Path) -> None:
    (directory / "codec-none-1" / "partition.metadata").unlink()
    assert codes(directory) == {"kafka.partition.no-topic-id"}


def test_identity_files_that_are_none(directory: Path) -> None:
    (directory / "codec-none-1" / "partition.metadata").write_text("version: 1\nnothing")
    (directory / "meta.properties").write_text("version=9\n")
    assert codes(directory) == {"kafka.partition.framing", "kafka.meta.framing"}


def test_one_partition_in_two_directories_of_a_broker(directory: Path) -> None:
    other = directory.parent / "other"
    shutil.copytree(directory, other)
    assert codes(directory.parent) == {"kafka.directory.duplicate-partition", "kafka.directory.no-metadata"}
    text = (other / "meta.properties").read_text()
    (other / "meta.properties").write_text(text.replace("node.id=1", "node.id=2"))
    assert codes(directory.parent) == set(), "replicas of two brokers are no duplicates"
