"""Segments of another cluster's metadata log: no record has the id of its cluster, so all of them together decide."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

import rawlog
from tests.reference import kafka

GOLDEN = Path(__file__).parents[3] / "golden" / "kafka"
LOG = "__cluster_metadata-0"
END = 411
"""The end of the log of the 4.3 broker."""


def controller(root: Path, node: int = 1) -> Path:
    shutil.copytree(GOLDEN / "broker-4.3.0" / "data" / LOG, root / LOG)
    text = (GOLDEN / "broker-4.3.0" / "data" / "meta.properties").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("directory.id")]
    (root / "meta.properties").write_text("\n".join(lines).replace("node.id=1", f"node.id={node}"))
    return root


def add_foreign(root: Path, epochs: int = 0, skipped: int = 0) -> Path:
    """Put the log of the 3.9 broker after the end, in later epochs, without its first batches."""
    data = (GOLDEN / "broker-3.9.2" / "data" / LOG / f"{0:020}.log").read_bytes()
    batches = list(kafka.decode(data))[skipped:]
    start, base = batches[0].position, batches[0].base_offset or 0
    moved = bytearray(data[start:])
    for batch in batches:
        epoch = struct.unpack_from(">i", data, batch.position + 12)[0]
        struct.pack_into(">q", moved, batch.position - start, (batch.base_offset or 0) - base + END)
        struct.pack_into(">i", moved, batch.position - start + 12, epoch + epochs)
    path = root / LOG / f"{END:020}.log"
    path.write_bytes(moved)
    return path


@pytest.mark.parametrize(("epochs", "skipped"), [(0, 0), (5, 0), (5, 40), (1, 150)])
def test_a_segment_of_another_cluster_is_set_aside_and_named(epochs: int, skipped: int, tmp_path: Path) -> None:
    source = controller(tmp_path / "source")
    path = add_foreign(source, epochs, skipped)
    findings = rawlog.verify(source)
    assert any("another metadata log" in one.message and one.path == str(path) for one in findings)
    report = rawlog.repair(source, tmp_path / "repaired")
    assert report.exit_code == 1
    assert any("another metadata log" in entry.reason for entry in report.all_entries())
    kept = {one.name for one in (tmp_path / "repaired" / LOG).glob("*.log")}
    assert kept == {one.name for one in (GOLDEN / "broker-4.3.0" / "data" / LOG).glob("*.log")}
    assert not [one for one in rawlog.verify(tmp_path / "repaired") if one.code.startswith(("kraft.", "kafka.log."))]


def test_a_controller_with_a_foreign_segment_does_not_outvote_a_sound_one(tmp_path: Path) -> None:
    """The foreign segment made its log the furthest, so that the cluster had the topics of the other one."""
    wounded, sound = controller(tmp_path / "wounded"), controller(tmp_path / "sound", node=2)
    add_foreign(wounded, epochs=5)
    names = set(rawlog.read(sound, table="kraft.topics").column("topic").to_pylist())
    assert set(rawlog.read(wounded, table="kraft.topics").column("topic").to_pylist()) == names
    assert set(rawlog.read([wounded, sound], table="kraft.topics").column("topic").to_pylist()) == names
    rawlog.rescue([wounded, sound], to=tmp_path / "rescued")
    assert set(rawlog.read(tmp_path / "rescued", table="kraft.topics").column("topic").to_pylist()) == names


def test_an_election_at_the_end_is_not_foreign(tmp_path: Path) -> None:
    """A leader that was elected after the last segment begins a new epoch, with nothing but its own change of leader."""
    source = controller(tmp_path / "source")
    last = sorted((source / LOG).glob("*.log"))[8]
    data = bytearray(last.read_bytes())  # one batch, the change of leader to epoch 2
    struct.pack_into(">q", data, 0, END)
    struct.pack_into(">i", data, 12, 3)
    (source / LOG / f"{END:020}.log").write_bytes(data)
    assert not any("another metadata log" in one.message for one in rawlog.verify(source))
    report = rawlog.repair(source, tmp_path / "repaired")
    assert not any("another metadata log" in entry.reason for entry in report.all_entries())
