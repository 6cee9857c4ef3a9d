"""Recordings repaired: what is whole is kept, the copy verifies clean, and repairing it again changes nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.formats.replay.layouts import FILE_HEADER, NO_TIME_SECONDS
from rawlog.model.errors import OptionError, UnsupportedError
from rawlog.model.report import Action, Report
from rawlog.reading.tree import open_tree
from rawlog.verbs.repair import RewriteJob
from tests.data.golden import golden_path
from tests.data.rewriting import rewritten

T = 1_706_868_930
ENTRIES = [(T + number, b"key" * (number % 3), b"value %d" % number) for number in range(20)]


def recording(version: int = 2) -> bytes:
    head = version.to_bytes(4, "big") + bytes(16)
    return head + b"".join(entry(*one, version=version) for one in ENTRIES)


def entry(time: int, key: bytes, value: bytes, *, version: int = 2) -> bytes:
    lengths = [key, value] if version == 2 else [value]
    return (
        time.to_bytes(8, "big", signed=True)
        + b"".join(len(one).to_bytes(8, "big") for one in lengths)
        + b"".join(lengths)
    )


def repaired(data: bytes, folder: Path) -> tuple[bytes, Report]:
    """A repaired copy of these bytes, after the checks that every copy passes."""
    source, once, twice = (folder / name for name in ("source.log", "once.log", "twice.log"))
    for path in (once, twice):
        path.unlink(missing_ok=True)
    source.write_bytes(data)
    report = rewritten("repair", source, once)
    assert source.read_bytes() == data
    assert rawlog.verify(once).verdict == "clean"
    assert rewritten("repair", once, twice).is_whole
    assert twice.read_bytes() == once.read_bytes()
    planned = rewritten("repair", source, folder / "dry.log", dry_run=True)
    assert not (folder / "dry.log").exists()
    assert (planned.entries, planned.counts) == (report.entries, report.counts)
    return once.read_bytes(), report


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_sound_recording_is_copied_byte_for_byte(version: int, tmp_path: Path) -> None:
    for path in golden_path("replay", f"v{version}").glob("*.log"):
        copy, report = repaired(path.read_bytes(), tmp_path)
        assert copy == path.read_bytes()
        assert report.is_whole


@pytest.mark.parametrize("version", [1, 2])
def test_entries_after_damage_are_kept(version: int, tmp_path: Path) -> None:
    data = recording(version)
    at = data.index(b"value 7") - 8
    damaged = data[:at] + b"\x7f" * 8 + data[at + 8 :]
    copy, report = repaired(damaged, tmp_path)
    assert report.counts["entries_kept"] == len(ENTRIES) - 1
    assert not report.is_whole
    assert copy == data.replace(entry(*ENTRIES[7], version=version), b"")


def test_an_unfinished_entry_and_zeros_at_the_end_are_cut(tmp_path: Path) -> None:
    data = recording()
    for tail in (entry(T, b"k", b"v" * 50)[:40], bytes(24 * 3), bytes(24 * 3 + 5)):
        copy, report = repaired(data + tail, tmp_path)
        assert copy == data
        assert len(data) in {one.start for one in report.with_action(Action.DROPPED)}
        assert report.is_whole  # nothing confirms that it was an entry


def test_zeros_between_entries_are_entries(tmp_path: Path) -> None:
    data = recording() + bytes(24 * 2) + entry(T, b"", b"more")
    assert repaired(data, tmp_path)[0] == data


def test_invalid_times_are_repaired_and_reported(tmp_path: Path) -> None:
    head = recording()[: FILE_HEADER.size]
    milliseconds, never = entry(T * 1000, b"", b"one"), entry((1 << 62) + 5, b"", b"two")
    copy, report = repaired(head + milliseconds + never + entry(T, b"", b"three"), tmp_path)
    assert copy == head + entry(T, b"", b"one") + entry(NO_TIME_SECONDS, b"", b"two") + entry(T, b"", b"three")
    assert [one.is_loss for one in report.with_action(Action.CHANGED)] == [True, True]


def test_a_damaged_header_is_rewritten_if_entries_tell_the_version(tmp_path: Path) -> None:
    for version in (1, 2):
        data = recording(version)
        assert repaired((9).to_bytes(4, "big") + data[4:], tmp_path)[0] == data
        assert repaired(data[:10] + b"x" + data[11:], tmp_path)[0] == data
    source = tmp_path / "tomorrow.log"
    source.write_bytes((9).to_bytes(4, "big") + recording()[4:] + b"?")
    with pytest.raises(UnsupportedError):
        rewritten("repair", source, tmp_path / "none.log")
    assert not (tmp_path / "none.log").exists()


def test_a_directory_becomes_a_directory_with_the_same_names(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deeper").mkdir(parents=True)
    (source / "deeper" / "one.log").write_bytes(recording())
    assert rewritten("repair", source, target, dry_run=True).counts == {"entries_kept": len(ENTRIES)}
    assert not target.exists()
    rewritten("repair", source, target)
    assert (target / "deeper" / "one.log").read_bytes() == recording()


def test_a_file_is_replaced_only_if_asked(tmp_path: Path) -> None:
    source, target = tmp_path / "source.log", tmp_path / "target.log"
    source.write_bytes(recording())
    target.write_bytes(b"before")
    for words, code, content in (((), 3, b"before"), (("--force",), 0, recording())):
        done = CliRunner().invoke(cli, ["repair", str(source), str(target), *words])
        assert done.exit_code == code, done.output + done.stderr
        assert target.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["source.log", "target.log"]


def test_recordings_of_the_same_name_are_refused(tmp_path: Path) -> None:
    paths = [tmp_path / name / "a.log" for name in ("one", "two")]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(recording())
    tree = open_tree([str(path) for path in paths])
    with RewriteJob("repair", str(tmp_path / "out")) as job, pytest.raises(OptionError, match="same name"):
        job.plan(tree)


def test_any_damage_leaves_a_recording_that_verifies_clean(tmp_path: Path) -> None:
    chance = random.Random(7)
    names = [*golden_path("replay", "v1").glob("*.log"), golden_path("replay", "v2", "txn.log")]
    for _ in range(40):
        data = bytearray(chance.choice(names).read_bytes())
        at = chance.randrange(FILE_HEADER.size, len(data))
        if chance.random() < 0.5:
            data[at : at + chance.randrange(60)] = chance.randbytes(chance.randrange(60))
        else:
            data = data[:at]
        repaired(bytes(data), tmp_path)


@pytest.mark.parametrize("name", ["v2-zeros-24", "v1-reserved-ff", "v2-time-ms"])
def test_a_warning_that_loses_no_row_is_none_for_verbs_that_read_everything(name: str, tmp_path: Path) -> None:
    """Convert and cat gave every row and exit code 0, ingest the same rows and 1."""
    source = golden_path("replay", "damaged", f"{name}.log")
    assert rawlog.verify(source).warnings
    rows = rawlog.convert(source, tmp_path / "rows.parquet", engine="local")
    lake = rawlog.ingest(source, to=tmp_path / "lake", engine="local")
    assert (rows.exit_code, lake.exit_code) == (0, 0)
