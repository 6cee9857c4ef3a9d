"""Verify as a job: the same findings as the plain loop, in the same order."""

from __future__ import annotations

import pickle
import random
import shutil
from pathlib import Path

import pytest

from rawlog.engines import choice
from rawlog.model.errors import OptionError
from rawlog.reading.inspect import RuleChoice
from rawlog.reading.tree import open_tree
from rawlog.verbs import verify
from rawlog.verbs.verify import Verify
from tests.data.partitions import count_bytes, in_logs, make_partitions
from tests.data.plain_verify import verify_tree
from tests.data.recordings import damage, record


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for number in range(12):
        path = record(tmp_path / f"{number:02d}.log", 40)
        if number % 2:
            damage(path, 3 + number)
            path.write_bytes(path.read_bytes()[:-number])
    return tmp_path


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_findings_are_those_of_the_plain_loop(logs: Path, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "SMALLEST", 1)
    tree = open_tree(str(logs))
    found = choice.run(Verify(), tree, threads=threads).findings
    plain = verify_tree(tree)
    assert found.items == plain.items
    assert found.summary() == plain.summary()
    assert found.errors


def test_rules_are_chosen_by_name(logs: Path) -> None:
    tree = open_tree(str(logs))
    assert not choice.run(Verify(RuleChoice(skip=("replay", "rawlog"))), tree).findings.items
    with pytest.raises(OptionError, match="unknown rule"):
        Verify(RuleChoice(only=("replay.fnord",)))


def test_the_job_travels_without_its_tree(logs: Path) -> None:
    job = Verify()
    job.plan(open_tree(str(logs)))
    assert len(pickle.dumps(job)) < 1000


def test_groups_and_trees_are_looked_at_too() -> None:
    tree = open_tree(str(Path(__file__).parents[2] / "samples"))
    found = choice.run(Verify(), tree, threads=2).findings
    plain = verify_tree(tree)
    assert found.items == plain.items
    assert found.summary() == plain.summary()


# Each byte once ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("logs"))


@pytest.mark.parametrize("cut", [1 << 30, 200_000])
def test_a_log_is_read_once(partitions: Path, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """verify read each byte of a partition twice: once for each file, and once for the partition."""
    monkeypatch.setattr(verify, "CUT", cut)
    tree = open_tree(str(partitions))
    size = sum(file.size for file in tree if file.format == "kafka.log")
    read = count_bytes(monkeypatch)
    found = choice.run(Verify(), tree, threads=2).findings
    assert found.verdict == "clean"
    assert in_logs(read) <= 1.1 * size


def test_a_segment_with_a_wrong_length_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that claims to be longer than the file had the rest of the file read to its end, and then read again."""
    folder = make_partitions(tmp_path)
    segment = max((folder / "large-0").glob("*.log"), key=lambda path: path.stat().st_size)
    data = bytearray(segment.read_bytes())
    data[8] |= 0x40  # the length of the first batch
    segment.write_bytes(data)
    tree = open_tree(str(segment))
    read = count_bytes(monkeypatch)
    found = choice.run(Verify(), tree, threads=1).findings
    assert [(one.code, one.position) for one in found][:1] == [("kafka.log.framing", 0)]
    assert found.frames > 100, "those after the damage"
    assert in_logs(read) <= 1.01 * len(data)


@pytest.mark.parametrize("seed", range(8))
def test_splits_of_a_file_find_what_one_pass_finds(
    partitions: Path, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong with a segment: in its bytes, its order, or the files next to it."""
    folder = tmp_path / "logs"
    shutil.copytree(partitions, folder)
    rng = random.Random(seed)
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]
    for path in rng.sample(files, min(seed, len(files))):
        data = bytearray(path.read_bytes())
        at = rng.randrange(len(data))
        if path.suffix == ".log" and rng.random() < 0.3:
            del data[at : at + rng.randrange(1, 300)]
        else:
            data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    tree = open_tree(str(folder))
    plain = verify_tree(tree)
    monkeypatch.setattr(verify, "CUT", rng.randrange(60_000, 200_000) if seed else 100_000)
    job = Verify()
    planned = [span for split in job.plan(tree) for span in split.content.spans]
    assert seed or any(part.start for part in planned)
    found = choice.run(Verify(), tree, threads=2).findings
    assert set(map(str, found.items)) ^ set(map(str, plain.items)) == set()
    assert len(found.items) == len(plain.items)
    assert found.summary() == plain.summary()
