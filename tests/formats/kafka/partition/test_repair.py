"""Damaged copies of golden partitions, repaired: nothing that is sound is lost, and what is left is a log."""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rawlog
from rawlog.model.errors import CorruptError, DataError, OptionError
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS
from tests.data.golden import KafkaCase, golden_path, kafka_cases
from tests.data.kafka_rewriting import rewritten
from tests.reference import kafka

CASES = [
    case
    for case in kafka_cases()
    if not case.is_crashed
    and not case.partition.startswith("__")
    and 0 < sum(one.stat().st_size for one in case.segments) < 90_000
]
COPIES = 250


@cache
def batches_of(case: KafkaCase) -> dict[str, list[bytes]]:
    """The bytes of every batch of every segment."""
    found = {}
    for path in case.segments:
        data = path.read_bytes()
        found[path.name] = [data[at : at + size] for at, size, _ in kafka.frames(data)[0]]
    return found


def damaged(draw: random.Random, data: bytes) -> bytes:
    """One to three wounds: flips, cuts, ranges inserted, removed or copied, zeroed pages."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        if not data:
            return data
        at, size = draw.randrange(len(data)), draw.choice((1, 7, 60, 500, 4096))
        kind = draw.choice(("flip", "flip", "cut", "random", "remove", "zero", "copy", "overwrite", "length"))
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "random":
            data = data[:at] + draw.randbytes(size) + data[at:]
        elif kind == "remove":
            data = data[:at] + data[at + size :]
        elif kind == "zero":
            start = at // 4096 * 4096 if draw.random() < 0.5 else at
            data = data[:start] + bytes(len(data[start : start + size])) + data[start + size :]
        elif kind == "copy":
            start = draw.randrange(len(data))
            data = data[:at] + data[start : start + size] + data[at:]
        elif kind == "overwrite":
            data = data[:at] + draw.randbytes(len(data[at : at + size])) + data[at + size :]
        else:
            frames = kafka.frames(data)[0]
            if frames:
                at = draw.choice(frames)[0] + 8
                data = data[:at] + draw.choice((b"\0\0\xff", b"\x7f", b"\0\0\0\x10", b"\xff")) + data[at + 3 :]
    return data


@dataclass(frozen=True)
class Copy:
    case: KafkaCase
    path: Path


def make_copy(folder: Path, number: int) -> Copy:
    """A golden partition of which one or two segments were damaged."""
    draw = random.Random(number)
    case = CASES[number % len(CASES)]
    target = folder / f"damaged-{number}" / case.partition
    shutil.copytree(case.path, target, ignore=shutil.ignore_patterns("*.deleted"))
    names = [one.name for one in case.segments]
    for name in draw.sample(names, min(len(names), draw.choice((1, 1, 2)))):
        (target / name).write_bytes(damaged(draw, (target / name).read_bytes()))
    return Copy(case, target)


def repaired(copy: Copy, target: Path, **options: Any) -> Any:
    return rewritten("repair", copy.path, target, **options)


def logs(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.log"))}


@pytest.mark.parametrize("start", range(0, COPIES, 50))
def test_salvage_loses_no_sound_batch(tmp_path: Path, start: int) -> None:
    for number in range(start, start + 50):
        copy = make_copy(tmp_path, number)
        target = tmp_path / "repaired" / f"{copy.case.partition[:-2]}-{number}"
        report = repaired(copy, target)
        whole = b"".join(logs(target).values())
        for name, batches in batches_of(copy.case).items():
            data = (copy.path / name).read_bytes()
            for batch in batches:
                assert batch not in data or batch in whole, (number, copy.case, name, batch[:20].hex())
        errors = [one for one in rawlog.verify(target) if str(one.severity) == "error"]
        assert not errors, (number, copy.case, errors[:2])
        rawlog.read(target)
        again = rewritten("repair", target, tmp_path / "again" / target.name)
        # A hole that nothing explains stays known (issue 24, row 7): the second repair names it again, and nothing else.
        assert not again.with_action(Action.CHANGED, Action.DROPPED, Action.MOVED), (number, again.lines())
        for first, last in again.lost:
            assert any(
                low <= first and (high is None or (last is not None and last <= high)) for low, high in report.lost
            ), (number, again.lines())
        assert logs(tmp_path / "again" / target.name) == logs(target)
        assert report.counts["bytes_kept"] + report.counts["bytes_added"] == len(whole)
        assert report.counts["bytes_kept"] + report.counts["bytes_cut"] == sum(
            len(one) for one in logs(copy.path).values()
        )


def test_what_is_whole_is_kept_under_every_policy(tmp_path: Path) -> None:
    for case in CASES:
        rewritten("rebuild", case.path, tmp_path / "rebuilt" / case.partition, overwrite=True)
        expected = {path.name: path.read_bytes() for path in (tmp_path / "rebuilt" / case.partition).iterdir()}
        for policy in ("salvage", "broker", "strict"):
            target = tmp_path / policy / case.partition
            report = rewritten("repair", case.path, target, policy=policy, overwrite=True)
            assert report.is_whole, (case, report.lines())
            assert not report.lost
            assert {path.name: path.read_bytes() for path in target.iterdir()} == expected


def test_strict_refuses_and_leaves_nothing(tmp_path: Path) -> None:
    for number in range(30):
        copy = make_copy(tmp_path, number)
        if logs(copy.path) == logs(copy.case.path):
            continue
        if repaired(copy, tmp_path / "x", dry_run=True).is_whole:
            continue
        with pytest.raises(DataError, match="strict"):
            repaired(copy, tmp_path / "strict", policy="strict")
        assert not (tmp_path / "strict").exists()
    with pytest.raises(OptionError, match="salvage"):
        repaired(copy, tmp_path / "x", policy="kind")


def test_the_brokers_policy_ends_the_log_at_the_first_damage(tmp_path: Path) -> None:
    for number in range(60):
        copy = make_copy(tmp_path, number)
        target = tmp_path / "repaired" / f"a-{number}"
        repaired(copy, target, policy="broker")
        expected: dict[str, bytes] = {}
        for name, data in logs(copy.path).items():
            end = 0
            last = int(name[:20]) - 1
            for batch in _sound(data):
                if batch.base_offset is not None and batch.base_offset <= last:
                    break
                last = batch.last_offset
                end = batch.position + batch.size
            expected[name] = data[:end]
            if end < len(data):
                break
        found = logs(target)
        assert found.keys() == expected.keys(), (number, copy.case)
        for name, data in found.items():
            assert expected[name].startswith(data), (number, name)
            if len(data) < len(expected[name]):  # an offset that no segment can hold
                assert "invalid offsets" in str(repaired(copy, target, policy="broker", dry_run=True).lines())


def _json(report: Report) -> dict[str, Any]:
    """A report without what differs between a run and a dry run of it."""
    found = report.as_json()
    return {name: value for name, value in found.items() if name not in ("dry_run", "target", "remaining")}


def _sound(data: bytes) -> Any:
    batches = kafka.headers(data)
    while True:
        try:
            yield next(batches)
        except (StopIteration, kafka.Bad):
            return


def test_what_was_cut_is_put_aside(tmp_path: Path) -> None:
    copy = make_copy(tmp_path, 3)
    report = repaired(copy, tmp_path / "out" / "a-0", quarantine=tmp_path / "aside")
    cut = report.with_action(Action.DROPPED)
    sizes = sorted(path.stat().st_size for path in (tmp_path / "aside").glob("*.cut"))
    assert sizes == sorted(one.stop - one.start for one in cut)


@pytest.mark.parametrize("codec", [0, 4])
def test_records_of_a_batch_whose_checksum_fails_are_put_aside(codec: int, tmp_path: Path) -> None:
    """Those that can be read are in a file of their own, never in the repaired log; one that cannot be is passed over."""
    records = [kafka.encode_record(delta, 0, b"k%d" % delta, b"value", [("h", b"x")]) for delta in range(9)]
    whole = [
        kafka.encode_batch(
            b"".join(records),
            record_count=9,
            base_offset=9 * number,
            base_timestamp=1000,
            max_timestamp=1000,
            codec=codec,
        )
        for number in range(3)
    ]
    broken = bytearray(whole[1])
    if codec:
        broken[17] ^= 1  # the checksum alone
    else:
        place = 61 + sum(len(record) for record in records[:4])
        broken[place + 4] = 0x7E  # the key's length of record 4: it says more than the record holds
        broken[61 + 12] ^= 1  # somewhere in record 0, which still can be read
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(whole[0] + bytes(broken) + whole[2])
    report = rewritten("repair", folder, tmp_path / "out" / "t-0", quarantine=tmp_path / "aside")
    assert rawlog.read(tmp_path / "out" / "t-0")["offset"].to_pylist() == [*range(9), *range(18, 27)]
    (path,) = (tmp_path / "aside").glob("*.parquet")
    found = pq.read_table(path)
    expected = [number for number in range(9, 18) if codec or number != 13]
    assert found["offset"].to_pylist() == expected
    assert report.counts["records_aside"] == len(expected)
    assert found.schema.equals(RECORDS.schema)
    assert found["topic"].to_pylist()[0] == "t"


def test_a_dry_run_tells_the_same_and_writes_nothing(tmp_path: Path) -> None:
    for number in range(5):
        copy = make_copy(tmp_path, number)
        stated = repaired(copy, tmp_path / "none" / "t-0", dry_run=True, quarantine=tmp_path / "aside")
        assert not (tmp_path / "none").exists()
        assert not (tmp_path / "aside").exists()
        done = repaired(copy, tmp_path / f"out-{number}" / "t-0")
        assert _json(stated) == _json(done)
        assert set(done.facts["rebuilt"]) < {path.name for path in (tmp_path / f"out-{number}" / "t-0").iterdir()}


def test_a_lost_batch_is_named_by_its_offsets(tmp_path: Path) -> None:
    """The report tells what a consumer will miss, and a base offset that no checksum covers is set right."""
    records = [kafka.encode_record(delta, 0, None, b"v", []) for delta in range(3)]
    batches = [
        kafka.encode_batch(
            b"".join(records), record_count=3, base_offset=3 * number, base_timestamp=1000, max_timestamp=1000
        )
        for number in range(5)
    ]
    folder = tmp_path / "t-0"
    folder.mkdir()
    broken = bytearray(b"".join(batches))
    broken[len(batches[0]) + 70] ^= 1
    (folder / f"{0:020d}.log").write_bytes(bytes(broken))
    report = rewritten("repair", folder, tmp_path / "out" / "t-0")
    assert report.lost == [(3, 5)]
    assert [one.action for one in report.entries][:3] == ["kept", "dropped", "kept"]
    assert rawlog.read(tmp_path / "out" / "t-0")["offset"].to_pylist() == [0, 1, 2, *range(6, 15)]

    broken = bytearray(b"".join(batches))
    broken[len(batches[0]) + 4] ^= 1  # of the base offset
    broken[2 * len(batches[0]) + 13] ^= 1  # of the leader epoch
    (folder / f"{0:020d}.log").write_bytes(bytes(broken))
    report = rewritten("repair", folder, tmp_path / "again" / "t-0")
    assert (tmp_path / "again" / "t-0" / f"{0:020d}.log").read_bytes() == b"".join(batches)
    assert not report.lost
    assert len(report.with_action(Action.CHANGED)) == 2


def test_a_copy_of_a_damaged_batch_elsewhere_in_the_file_takes_its_place(tmp_path: Path) -> None:
    """The damaged batch itself was written: with the copy in its place the batches had as many bytes as the part of the file from the
    first to the last, which was taken for one run.
    """
    record = kafka.encode_record(0, 0, None, b"v", [])
    batches = [
        kafka.encode_batch(record, record_count=1, base_offset=number, base_timestamp=1000, max_timestamp=1000)
        for number in range(5)
    ]
    broken = bytearray(batches[2])
    broken[-2] ^= 1
    folder = tmp_path / "t-0"
    folder.mkdir()
    (folder / f"{0:020d}.log").write_bytes(b"".join([*batches[:2], bytes(broken), *batches[3:], batches[2]]))
    report = rewritten("repair", folder, tmp_path / "out" / "t-0")
    assert logs(tmp_path / "out" / "t-0") == {f"{0:020d}.log": b"".join(batches)}
    assert not report.lost
    assert not report.remaining


def test_a_log_that_lost_whole_segments_or_their_ends_verifies_clean(tmp_path: Path) -> None:
    """The offsets that were lost between two segments were reported as a segment that is gone, before the repair and after it."""
    source = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
    names = sorted(path.name for path in source.glob("*.log"))
    assert len(names) > 4
    for number, harm in enumerate(("emptied", "cut", "begins late", "gone")):
        folder, target, again = (tmp_path / f"{number}-{name}" / "segments-by-size-0" for name in "abc")
        shutil.copytree(source, folder)
        log = folder / names[2]
        data = log.read_bytes()
        if harm == "gone":
            log.unlink()
        else:
            log.write_bytes({"emptied": b"", "cut": data[: len(data) // 2], "begins late": b"\1" * 9 + data[9:]}[harm])
        rewritten("repair", folder, target)
        assert rawlog.verify(target).verdict == "clean", harm
        key = ["offset", "value"]
        assert rawlog.read(target, columns=key).equals(rawlog.read(folder, columns=key, errors="skip"))
        assert rewritten("repair", target, again).is_whole
        assert logs(again) == logs(target)


def test_a_segment_that_is_gone_is_reported_and_the_next_one_keeps_its_name(tmp_path: Path) -> None:
    """The report said that all was whole; later the next segment was named for the missing one, which took away the snapshot at its
    beginning: a second repair judged transactions by less than the first.
    """
    source = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
    folder, target = tmp_path / "a" / "segments-by-size-0", tmp_path / "b" / "segments-by-size-0"
    shutil.copytree(source, folder)
    segments = sorted(folder.glob("*.log"))
    first, stop = int(segments[2].stem), int(segments[3].stem)
    segments[2].unlink()
    os.utime(segments[3], (1_000_000_000, 1_000_000_000))
    for policy in ("salvage", "broker"):
        report = rewritten("repair", folder, target, policy=policy, overwrite=True)
        assert not report.is_whole
        assert report.lost == [(first, stop - 1)]
        assert not report.with_action(Action.MOVED)
        assert (target / segments[3].name).read_bytes() == segments[3].read_bytes()
        assert (target / segments[3].name).stat().st_mtime == 1_000_000_000, "retention goes by it"
        assert rawlog.verify(target).verdict == "clean"
        dry = rewritten("repair", folder, target, policy=policy, dry_run=True, overwrite=True)
        assert dry.entries == report.entries
    with pytest.raises(CorruptError, match="missing before this segment; the policy is strict"):
        rewritten("repair", folder, tmp_path / "c" / "segments-by-size-0", policy="strict")


def test_a_gap_too_wide_for_one_segment_stays_one(tmp_path: Path) -> None:
    """Offsets of a segment lie at most 2^31-1 after its name: no index could point at them."""
    source = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
    folder, target = tmp_path / "a" / "segments-by-size-0", tmp_path / "b" / "segments-by-size-0"
    folder.mkdir(parents=True)
    shutil.copytree(
        source.parent / "__cluster_metadata-0", tmp_path / "a" / "__cluster_metadata-0"
    )  # it is not compacted
    near, far = sorted(source.glob("*.log"))[:2]
    shutil.copy(near, folder)
    data, base = bytearray(far.read_bytes()), 1 << 40
    for at, _, _ in kafka.frames(far.read_bytes())[0]:
        offset = int.from_bytes(data[at : at + 8], "big") - int(far.stem) + base
        data[at : at + 8] = offset.to_bytes(8, "big")
    (folder / f"{base:020d}.log").write_bytes(data)
    report = rewritten("repair", folder, target)
    assert report.lost == [(int(far.stem), base - 1)]
    assert logs(target) == logs(folder)
    assert not report.is_whole


@pytest.mark.parametrize("known", ["metadata", "other partition", "nowhere"])
@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_a_topic_id_is_restored_from_the_files_around_it(known: str, harm: str, tmp_path: Path) -> None:
    """A broker takes a partition without its topic's id for a stray, and serves an empty one in its place."""
    source = golden_path("kafka", "broker-4.3.0", "data")
    around = {"metadata": ["__cluster_metadata-0"], "other partition": ["codec-lz4-0"], "nowhere": []}[known]
    folder = tmp_path / "a"
    for name in ("codec-lz4-1", *around):
        shutil.copytree(source / name, folder / name)
    shutil.copy(source / "meta.properties", folder)
    path = folder / "codec-lz4-1" / "partition.metadata"
    path.parent.chmod(0o755)
    path.chmod(0o644)
    whole = path.read_bytes()
    path.unlink() if harm == "gone" else path.write_bytes(whole[7:])
    source = folder / "codec-lz4-1"
    report = rewritten("repair", source, tmp_path / "b" / "codec-lz4-1")
    made = tmp_path / "b" / "codec-lz4-1" / "partition.metadata"
    changes = [one.action for one in report.entries if one.path == str(path)]
    if known != "nowhere":
        assert made.read_bytes() == whole
        assert changes == ["changed"]
    else:
        assert not made.exists()
        assert changes == (["dropped"] if harm == "damaged" else [])
    assert report.entries == rewritten("repair", source, tmp_path / "c" / "codec-lz4-1", dry_run=True).entries
    if changes:
        assert not report.is_whole
        with pytest.raises(CorruptError, match="strict"):
            rewritten("repair", source, tmp_path / "d" / "codec-lz4-1", policy="strict")
