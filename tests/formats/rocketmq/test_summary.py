"""What one pass over the commit log gives the checks of a store: the same for any cut, small, and nobody reads the log again."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rawlog
from rawlog.engines import choice
from rawlog.formats.rocketmq import COMMIT_LOG
from rawlog.formats.rocketmq.store.store import (
    LogSummary,
    PackedRows,
    View,
    summarise,
    summary,
)
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.format import File
from rawlog.model.store import Store
from rawlog.reading.tree import open_tree
from rawlog.verbs.verify import Verify
from tests.data.rocketmq_rewriting import written
from tests.data.rocketmq_stores import ALL, copy, log_files, store
from tests.formats.rocketmq.test_checks import flip_body, leave_stale_entry, zero_page
from tests.formats.rocketmq.test_repair import row, table


def facts(found: LogSummary) -> dict[str, Any]:
    """All that rules take from a summary."""
    names = ("end", "ends_with", "first_time", "last_time", "messages", "after", "is_dledger", "fillers")
    queues = {queue: np.concatenate([one.unpack() for one in pieces], 1) for queue, pieces in found.units.items()}
    others = {name: [one.unpack() for one in getattr(found, name) if one.count] for name in ("keys", "delayed")}
    made = {name: getattr(found, name) for name in names}
    pending = found.pending
    made |= {"halves": sorted(pending.halves.items()), "discarded": pending.discarded, "places": pending.places}
    made |= {"ended": pending.ended, "committed": pending.committed, "timed": pending.waiting(0).tolist()}
    made["units"] = {queue: units.tolist() for queue, units in sorted(queues.items())}
    return made | {name: np.concatenate(each, 1).tolist() if each else [] for name, each in others.items()}


def in_splits(file: File, cuts: list[int]) -> LogSummary:
    edges: list[int | None] = [0, *cuts, None]
    parts = []
    for start, stop in pairwise(edges):
        part = summary(file, (), start or 0, stop)
        for frames in walk(file, COMMIT_LOG, start=start, stop=stop, errors="skip"):
            part.see(frames)
        parts.append(pickle.loads(pickle.dumps(part.close())))
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.merge(part)
        assert whole.rises
    return whole


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(ALL), st.data())
def test_a_log_gives_the_same_summary_for_any_cut(name: str, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(log_files(store(name))))
    [file] = rawlog.open(path).files
    starts = [int(at) for frames in walk(file, COMMIT_LOG) for at in frames.positions]
    cuts = sorted(data.draw(st.sets(st.sampled_from(starts[1:] or [file.size]), max_size=6)))
    assert facts(in_splits(file, cuts)) == facts(summarise(file))


@pytest.mark.parametrize("damage", [flip_body, zero_page, leave_stale_entry])
def test_a_damaged_log_gives_the_same_summary_for_any_cut(damage: Any, tmp_path: Path) -> None:
    root = copy("broker-4.9.7", tmp_path)
    damage(root)
    for path in log_files(root):
        [file] = rawlog.open(path).files
        starts = [int(at) for frames in walk(file, COMMIT_LOG, errors="skip") for at in frames.positions]
        whole = facts(summarise(file))
        for at in starts[1::7]:
            assert facts(in_splits(file, [at])) == whole, at


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=50), st.integers(1, 3))
def test_packed_numbers_are_unpacked_as_they_were(values: list[int], rows: int) -> None:
    array = np.array([values] * rows, np.int64).reshape(rows, len(values))
    assert PackedRows.of(array).unpack().tolist() == (array.tolist() if values else [])


def test_a_summary_is_small(tmp_path: Path) -> None:
    """What rules need of a message took 112 bytes with two keys; so many messages as a large broker has did not fit any memory."""
    count = 20_000
    rows = [
        row(
            number, key=b"order-%d" % number, value=b"v" * (number % 50), partition=number % 8, offset=None,
            headers=[{"key": "TAGS", "value": b"t%d" % (number % 5)}, {"key": "UNIQ_KEY", "value": b"%032x" % (number * 7919)}],
        )
        for number in range(count)
    ]  # fmt: skip
    written(table(rows), tmp_path / "out", {"index_entries": "50000"})
    summaries = [summarise(file) for file in rawlog.open(tmp_path / "out").files if file.format == COMMIT_LOG.name]
    assert sum(one.messages for one in summaries) == count
    assert sum(one.size for one in summaries) < 30 * count
    assert sum(len(pickle.dumps(one)) for one in summaries) < 30 * count


@pytest.mark.parametrize("name", ["broker-5.3.3", "broker-4.9.7"])
def test_verification_reads_the_log_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules over the files of a store read the whole log again."""
    seen: dict[str, int] = {}
    read, read_into = Source.read, Source.read_into

    def counted(self: Source, position: int, size: int) -> bytes:
        found = read(self, position, size)
        seen[self.path] = seen.get(self.path, 0) + len(found)
        return found

    def counted_into(self: Source, position: int, buffer: memoryview) -> int:
        done = read_into(self, position, buffer)
        seen[self.path] = seen.get(self.path, 0) + done
        return done

    monkeypatch.setattr(Source, "read", counted)
    monkeypatch.setattr(Source, "read_into", counted_into)
    tree = open_tree(str(store(name)))
    sizes = {file.path: file.size for file in tree if file.format == COMMIT_LOG.name}
    seen.clear()
    found = choice.run(Verify(), tree, threads=1)
    assert not found.findings.errors
    total = sum(seen.get(path, 0) for path in sizes)
    assert total <= 1.05 * sum(sizes.values()) + 16_384 * len(sizes), (total, sum(sizes.values()))


def test_rules_take_the_summaries_that_a_pass_made() -> None:
    files = [file for file in rawlog.open(store("5.1.4")).files if file.system == "rocketmq"]
    plain, known = View(Store(files)), Store(files)
    known.summaries = {log.file.path: log for log in plain.logs}
    again = View(known)
    assert [id(log) for log in again.logs] == [id(log) for log in plain.logs]
    assert again.derived_queues() == plain.derived_queues()
