"""Tiered storage: the segments on disk and in remote storage are one log, whatever layout the remote ones have."""

from __future__ import annotations

import base64
import json
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

import rawlog
from rawlog.formats.kafka.manifest import INDEXES, chunk_sizes, parse
from rawlog.io.storage import (
    Source,
    is_view,
    stored_path,
    view_path,
)
from rawlog.model.errors import AccessError, CorruptError, RawlogError
from rawlog.model.table import RECORDS
from rawlog.reading.follow import lines_of
from rawlog.reading.select import Selection
from rawlog.reading.tree import open_tree
from rawlog.testing.damage import WOUNDS, bounded, wounded
from tests.data.golden import golden_path
from tests.data.recordings import held
from tests.data.tiers import (
    CHUNK_SIZES,
    FIXED_MANIFEST,
    LAYOUTS,
    bases,
    copy_segments,
    remove_segments,
    topic_id,
    upload,
)

if TYPE_CHECKING:
    from tests.services.s3 import S3Server

SOURCES = ("transactions-0", "segments-by-size-0", "segments-by-time-0")


def source(name: str) -> Path:
    return golden_path("kafka", "broker-4.3.0", "data", name)


def tiered(
    tmp_path: Path, name: str, layout: str, *, remote: slice = slice(0, -1), gone: slice = slice(0, 3)
) -> tuple[Path, Path]:
    """A log directory and remote storage: segments that were copied, and those of them that are not on disk any more."""
    data, tier = tmp_path / "data", tmp_path / "tier"
    folder = data / name
    shutil.copytree(source(name), folder)
    every = bases(folder)
    copy_segments(folder, tier, every[remote], layout, random.Random(name))
    remove_segments(folder, every[gone])
    return data, tier


def rows(*paths: Path, **asked: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rawlog.read([str(one) for one in paths], **asked).to_pylist()
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", SOURCES)
def test_disk_and_remote_storage_are_read_as_one_log(name: str, layout: str, tmp_path: Path) -> None:
    both = tiered(tmp_path, name, layout)
    for isolation in ("read_uncommitted", "read_committed"):
        assert rows(*both, isolation=isolation) == rows(source(name), isolation=isolation)
        assert rawlog.count(both, isolation=isolation) == len(rows(source(name), isolation=isolation))
    middle = bases(source(name))[2]
    asked = {"from_offset": middle - 3, "to_offset": middle + 9}
    assert rows(*both, **asked) == rows(source(name), **asked)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_tiered_partition_verifies_clean_and_complete(layout: str, tmp_path: Path) -> None:
    both = tiered(tmp_path, "transactions-0", layout)
    found = rawlog.verify(both, complete=True)
    assert found.verdict == "clean", list(found)
    [account] = found.accounts
    [expected] = rawlog.verify(source("transactions-0"), complete=True).accounts
    assert {**account.as_row(), "path": ""} == {**expected.as_row(), "path": ""}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_remote_storage_alone_is_a_partition(layout: str, tmp_path: Path) -> None:
    _, tier = tiered(tmp_path, "segments-by-size-0", layout)
    last = bases(source("segments-by-size-0"))[-1]
    assert rows(tier) == rows(source("segments-by-size-0"), to_offset=last)
    assert rawlog.verify(tier).verdict == "clean"


@pytest.mark.parametrize("number", range(12))
def test_any_division_between_disk_and_remote_storage_gives_the_same_rows(number: int, tmp_path: Path) -> None:
    """Which segments were copied and which are gone from the disk makes no difference, as long as each is somewhere."""
    rng = random.Random(number)
    name, layout = rng.choice(SOURCES), rng.choice(LAYOUTS)
    count = len(bases(source(name)))
    copied = rng.randrange(1, count)
    both = tiered(tmp_path, name, layout, remote=slice(0, copied), gone=slice(0, rng.randrange(copied + 1)))
    found = [row["offset"] for row in rows(*both)]
    assert found == sorted(set(found))
    assert rows(*both) == rows(source(name))
    assert rawlog.verify(both).verdict == "clean"


def test_what_is_on_disk_is_preferred(tmp_path: Path) -> None:
    data, tier = tiered(tmp_path, "segments-by-size-0", "local", gone=slice(0, 2))
    tree = open_tree([str(data), str(tier)])
    logs = [file for file in tree if file.format == "kafka.log"]
    first = bases(data / "segments-by-size-0")[0]
    for file in logs:
        is_copy = file.place.remote is not None and (file.place.start_offset or 0) >= first
        assert file.place.state == ("copied" if is_copy else None)
    assert {file.place.group for file in logs} == {str(data / "segments-by-size-0")}


def test_a_gap_between_remote_storage_and_disk_is_found(tmp_path: Path) -> None:
    both = tiered(tmp_path, "segments-by-size-0", "local", remote=slice(0, 2), gone=slice(0, 3))
    every = bases(source("segments-by-size-0"))
    found = {item.code: item for item in rawlog.verify(both, complete=True)}
    assert found["kafka.partition.gap"].offset == every[2]
    assert f"offsets {every[2]} to {every[3] - 1} are missing" in found["kafka.complete.unexplained"].message


def test_a_remote_segment_that_reaches_into_the_disk_is_read_up_to_there(tmp_path: Path) -> None:
    """After a change of leader, the segments of the new leader begin elsewhere than those that the old one copied."""
    name = "segments-by-size-0"
    data, tier = tmp_path / "data", tmp_path / "tier"
    shutil.copytree(source(name), data / name)
    every = bases(data / name)
    # Two segments on disk are one in remote storage.
    joined = tmp_path / "joined" / name
    shutil.copytree(source(name), joined)
    log = joined / f"{every[1]:020d}.log"
    log.write_bytes(log.read_bytes() + (joined / f"{every[2]:020d}.log").read_bytes())
    for kind in ("index", "timeindex"):
        (joined / f"{every[1]:020d}.{kind}").unlink(missing_ok=True)
    copy_segments(joined, tier, every[:2], "local", random.Random(1))
    remove_segments(data / name, every[:2])
    assert rows(data, tier) == rows(source(name))
    assert rawlog.verify([data, tier]).verdict == "clean"
    views = [file.path for file in open_tree([str(data), str(tier)]) if is_view(file.path)]
    assert len(views) == 1
    assert stored_path(views[0]).endswith(".log")


def test_another_topic_of_the_same_name_is_another_log(tmp_path: Path) -> None:
    """The topic was deleted and created again: its old segments in remote storage have another topic id."""
    data, tier = tiered(tmp_path, "segments-by-size-0", "local", gone=slice(0, 0))
    folder = data / "segments-by-size-0"
    text = (folder / "partition.metadata").read_text()
    (folder / "partition.metadata").write_text(text.replace(topic_id(folder), "AAAAAAAAAAAAAAAAAAAAAQ"))
    groups = {file.place.group for file in open_tree([str(data), str(tier)]) if file.format == "kafka.log"}
    assert len(groups) == 2


def test_restore_writes_one_directory_of_both(tmp_path: Path) -> None:
    both = tiered(tmp_path, "transactions-0", "aiven-zstd")
    report = rawlog.restore(both, tmp_path / "out", partitions_only=True)
    assert report.is_lossless
    assert rows(tmp_path / "out") == rows(source("transactions-0"))
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


@pytest.mark.parametrize("layout", ["local", "aiven-zstd"])
def test_ingest_takes_a_segment_once_wherever_it_is(layout: str, tmp_path: Path) -> None:
    """A segment that was ingested from disk has gone to remote storage when the next run looks: it has another path there."""
    name, lake = "segments-by-size-0", str(tmp_path / "lake")
    data, tier = tmp_path / "data", tmp_path / "tier"
    shutil.copytree(source(name), data / name)
    every = bases(data / name)
    last = {path: path.read_bytes() for path in (data / name).glob(f"{every[-1]:020d}.*")}
    for path in last:
        path.unlink()
    assert (
        rawlog.ingest([data], to=lake, tables=["records"], engine="local").facts["tables"]["rawlog.records"]
        == every[-1]
    )
    copy_segments(data / name, tier, every[:3], layout, random.Random(1))
    remove_segments(data / name, every[:2])
    for path, content in last.items():
        path.write_bytes(content)
    count = len(rows(source(name)))
    assert (
        rawlog.ingest([data, tier], to=lake, tables=["records"], engine="local").facts["tables"]["rawlog.records"]
        == count - every[-1]
    )
    assert sorted(row["offset"] for row in held(Path(lake))) == list(range(count))
    assert rawlog.ingest([data, tier], to=lake, tables=["records"], engine="local").counts["files"] == 0


@pytest.mark.parametrize("verb", ["rebuild", "repair"])
def test_rewriting_takes_both(verb: str, tmp_path: Path) -> None:
    tiered(tmp_path / "source", "transactions-0", "local")
    getattr(rawlog, verb)(tmp_path / "source", tmp_path / "out")
    assert rows(tmp_path / "out") == rows(source("transactions-0"))


def test_a_stream_has_one_line_of_both(tmp_path: Path) -> None:
    """A segment that is deleted from the disk while a stream goes on is read where it is then, and not twice: its mark has its name."""
    data, tier = tiered(tmp_path, "segments-by-size-0", "local", gone=slice(0, 2))
    lines = lines_of(open_tree([str(data), str(tier)]), RECORDS, Selection())
    [line] = [one for key, one in lines.items() if "segments-by-size" in key]
    assert [file.place.start_offset for file in line.files] == bases(source("segments-by-size-0"))


# Aiven's layout --------------------------------------------------------------------------------------------------------


def test_manifests_are_read_as_the_plug_in_writes_them() -> None:
    made = parse(FIXED_MANIFEST.encode())
    assert (made.chunk, made.size, [made.place(number) for number in range(made.count)]) == (
        100,
        1000,
        [(number * 110, 110) for number in range(10)],
    )
    assert (made.is_compressed, made.is_encrypted) == (False, False)
    assert made.indexes["leader-epoch-checkpoint"] == (3, 1)
    assert chunk_sizes(base64.b64decode(CHUNK_SIZES), 3).tolist() == [10, 20, 30]


@pytest.mark.parametrize(
    "change",
    [
        {"version": "2"},
        {"chunkIndex": {}},
        {
            "chunkIndex": {
                "type": "variable",
                "originalChunkSize": 100,
                "originalFileSize": 250,
                "transformedChunks": "?",
            }
        },
        {
            "chunkIndex": {
                "type": "variable",
                "originalChunkSize": 1,
                "originalFileSize": 250,
                "transformedChunks": CHUNK_SIZES,
            }
        },
        {"chunkIndex": {"type": "fixed", "originalChunkSize": 0, "originalFileSize": 1}},
        {"segmentIndexes": {"offset": {"position": -1, "size": 1}}},
        {"segmentIndexes": 7},
    ],
)
def test_a_manifest_that_is_wrong_is_refused_with_the_reason(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="."):
        parse(json.dumps({**json.loads(FIXED_MANIFEST), **change}).encode())


def test_an_encrypted_segment_is_named_as_such(tmp_path: Path) -> None:
    data, tier = tiered(tmp_path, "segments-by-size-0", "aiven")
    for path in tier.rglob("*.rsm-manifest"):
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "encryption": {"dataKey": "k:AA==", "aad": "AA=="}})
        )
    found = [item for item in rawlog.verify([data, tier]) if item.code == "rawlog.file.unreadable"]
    assert found
    assert all("encrypted" in item.message for item in found)
    with pytest.raises(AccessError, match="encrypted"), Source(view_path(str(path), "segment", "log")):
        pass


def divide_indexes(tier: Path) -> None:
    """As releases of the plug-in before 2024 stored segments: each index by itself, and nothing of them in the manifest."""
    for path in tier.rglob("*.rsm-manifest"):
        manifest = json.loads(path.read_text())
        places, whole = manifest.pop("segmentIndexes"), path.with_suffix(".indexes").read_bytes()
        path.write_text(json.dumps(manifest))
        path.with_suffix(".indexes").unlink()
        for name, place in places.items():
            if place is not None:
                piece = whole[place["position"] : place["position"] + place["size"]]
                path.with_suffix(f".{INDEXES[name]}").write_bytes(piece)


@pytest.mark.parametrize("layout", ["aiven", "aiven-zstd"])
def test_indexes_may_be_stored_each_by_itself(layout: str, tmp_path: Path) -> None:
    data, tier = tiered(tmp_path, "transactions-0", layout)
    divide_indexes(tier)
    assert rows(data, tier) == rows(source("transactions-0"))
    found = rawlog.verify([data, tier], complete=True)
    assert found.verdict == "clean"
    assert [one.unexplained for one in found.accounts] == [0]


def test_indexes_of_an_encrypted_segment_are_not_taken_for_damaged_ones(tmp_path: Path) -> None:
    """The plug-in encrypted them too, and the manifest is all that says so."""
    _, tier = tiered(tmp_path, "segments-by-size-0", "aiven")
    divide_indexes(tier)
    for path in tier.rglob("*-*.*"):
        if path.suffix == ".rsm-manifest":
            encryption = {"dataKey": "k:AA==", "aad": "AA=="}
            path.write_text(json.dumps({**json.loads(path.read_text()), "encryption": encryption}))
        elif path.is_file():
            path.write_bytes(random.Random(path.name).randbytes(path.stat().st_size + 28))
    found = [item for item in rawlog.verify([tier]) if item.severity == "error"]
    assert {item.code for item in found} == {"rawlog.file.unreadable"}
    assert all("encrypted" in item.message for item in found)


def test_a_prefix_of_keys_without_a_slash_is_not_part_of_the_topic(tmp_path: Path) -> None:
    """`key.prefix` is put before the topic as it is; the manifest names the topic."""
    data, tier = tiered(tmp_path, "segments-by-size-0", "aiven-zstd")
    [folder] = tier.iterdir()
    identity = topic_id(data / "segments-by-size-0")
    own = {"topicId": identity, "topicPartition": {"topic": "segments-by-size", "partition": 0}}
    for path in folder.rglob("*.rsm-manifest"):
        manifest = json.loads(path.read_text())
        manifest["remoteLogSegmentMetadata"] = {"remoteLogSegmentId": {"topicIdPartition": own, "id": path.stem[21:]}}
        path.write_text(json.dumps(manifest))
    folder.rename(tier / f"backup{folder.name}")
    assert rows(data, tier) == rows(source("segments-by-size-0"))
    assert {file.place.topic for file in rawlog.open([str(tier)]).files} == {"segments-by-size"}


@pytest.mark.parametrize("cut", [False, True])
def test_a_damaged_chunk_costs_the_batches_in_it_and_no_others(cut: bool, tmp_path: Path) -> None:
    """One chunk that does not decompress ended all reading, of the segments after it, too."""
    both = tiered(tmp_path, "segments-by-size-0", "aiven-zstd")
    log = sorted(both[1].rglob("*.log"))[1]
    raw = bytearray(log.read_bytes())
    at = raw.find(zstandard.FRAME_HEADER, len(raw) // 2)
    raw[at : at + 4] = bytes(4)
    log.write_bytes(raw[:at] if cut else raw)
    whole = {row["offset"] for row in rows(source("segments-by-size-0"))}
    found = {row["offset"] for row in rows(*both, errors="skip")}
    segment = range(*bases(source("segments-by-size-0"))[1:3])
    lost = whole - found
    assert lost
    assert lost < set(segment)
    assert (max(segment) in lost) == cut
    checked = rawlog.verify(both, complete=True)
    [account] = checked.accounts
    assert account.unexplained == len(lost)
    [mark] = [item for item in checked if item.code == "kafka.log.framing"]
    assert "chunk" in mark.message
    rawlog.ingest(both, tmp_path / "lake", tables=["records"], engine="local")
    assert {row["offset"] for row in held(tmp_path / "lake")} == found
    with pytest.raises(CorruptError, match="chunk"):
        rows(*both)


def test_a_damaged_chunk_is_a_finding_with_its_place(tmp_path: Path) -> None:
    data, tier = tiered(tmp_path, "segments-by-size-0", "aiven-zstd")
    log = sorted(tier.rglob("*.log"))[1]
    raw = bytearray(log.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    log.write_bytes(raw)
    found = rawlog.verify([data, tier])
    assert found.verdict == "damaged"
    assert any("chunk" in item.message or item.code.startswith("kafka.log") for item in found)


@pytest.mark.parametrize("number", range(8))
def test_any_damage_of_chunks_gives_only_rawlog_errors(number: int, tmp_path: Path) -> None:
    """Whatever a manifest, its chunks or its indexes are changed to: findings or a RawlogError, and nothing is left out in silence."""
    rng = random.Random(number)
    both = tiered(tmp_path, "segments-by-size-0", LAYOUTS[2 + number % 2], gone=slice(0, 2))
    whole = rows(source("segments-by-size-0"))
    kind = ("rsm-manifest", "log", "indexes")[number % 3]
    path = min(both[1].rglob(f"*.{kind}"))
    path.write_bytes(wounded(rng, path.read_bytes(), rng.choice(list(WOUNDS))))
    found = rawlog.verify(both, complete=True)
    assert len(rawlog.open(both).files) > 10
    for errors in ("raise", "skip"):
        try:
            got = rows(*both, errors=errors)
        except RawlogError:
            assert found.verdict == "damaged"
            continue
        assert got == whole or found.verdict == "damaged"


@pytest.mark.parametrize(
    ("kind", "words"),
    [("rsm-manifest", "its manifest cannot be read"), ("log", "does not exist"), ("indexes", "does not exist")],
)
def test_a_segment_that_cannot_be_read_is_not_left_out_in_silence(kind: str, words: str, tmp_path: Path) -> None:
    """A manifest that cannot be parsed once made its segment disappear from `cat` without a word."""
    both = tiered(tmp_path, "segments-by-size-0", "aiven-zstd")
    path = min(both[1].rglob(f"*.{kind}"))
    if kind == "rsm-manifest":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    problems = [file.problem for file in rawlog.open(both).files if file.problem is not None]
    assert problems
    assert all(words in one for one in problems)
    assert "rawlog.file.unreadable" in {item.code for item in rawlog.verify(both)}


def test_a_list_of_chunks_takes_no_more_memory_than_it_has_bytes() -> None:
    """A list that declares 2,000 million chunks, and one that decompresses to more than the plug-in takes."""
    index = {"type": "fixed", "originalChunkSize": 1, "originalFileSize": (1 << 31) - 1}
    index |= {"transformedChunkSize": 1, "finalTransformedChunkSize": 1}
    with bounded(4 << 20, "a fixed list"):
        made = parse(json.dumps({**json.loads(FIXED_MANIFEST), "chunkIndex": index}).encode())
    assert made.place(made.count - 1) == ((1 << 31) - 2, 1)
    packed = base64.b64encode(zstandard.compress(bytes(64 << 20))).decode()
    index |= {"type": "variable", "transformedChunks": packed}
    with bounded(40 << 20, "a list that is too long"), pytest.raises(ValueError, match="limit"):
        parse(json.dumps({**json.loads(FIXED_MANIFEST), "chunkIndex": index}).encode())


def test_a_directory_that_looks_like_a_view_is_a_directory(tmp_path: Path) -> None:
    folder = tmp_path / "urgent!" / "first" / "10"
    shutil.copytree(source("segments-by-size-0"), folder / "segments-by-size-0")
    assert rows(tmp_path) == rows(source("segments-by-size-0"))
    assert not is_view(str(folder))


def test_a_view_can_be_named(tmp_path: Path) -> None:
    """`verify` prints such paths: they can be given to any verb."""
    _, tier = tiered(tmp_path, "segments-by-size-0", "aiven-zstd")
    first = min(path for path in tier.rglob("*.rsm-manifest"))
    every = bases(source("segments-by-size-0"))
    assert len(rows(Path(view_path(str(first), "segment", "log")))) == every[1] - every[0]


@pytest.mark.parametrize("layout", ["local", "aiven-zstd"])
def test_remote_storage_in_a_bucket_is_read_like_a_directory(layout: str, s3: S3Server, tmp_path: Path) -> None:
    data, tier = tiered(tmp_path, "transactions-0", layout)
    bucket = f"tiered-{layout}-{tmp_path.name.replace('_', '-')}".lower()
    upload(s3, tier, bucket)
    both = [str(data), s3.url(f"{bucket}/logs")]
    for isolation in ("read_uncommitted", "read_committed"):
        assert rawlog.read(both, isolation=isolation).to_pylist() == rows(source("transactions-0"), isolation=isolation)
    found = rawlog.verify(both, complete=True)
    assert found.verdict == "clean", list(found)
    assert [one.unexplained for one in found.accounts] == [0]
    rawlog.restore(both, tmp_path / "out", partitions_only=True)
    assert rows(tmp_path / "out") == rows(source("transactions-0"))
