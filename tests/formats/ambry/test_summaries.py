"""What one pass leaves for the checks of a store: the same for any cut of the log, small, and enough to read no file again."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.engines import choice
from rawlog.formats.ambry import INDEX_SEGMENT, LOG
from rawlog.formats.ambry.index import IndexSummary
from rawlog.formats.ambry.store.state import (
    LogSummary,
    read_log,
    summarise,
    summary,
)
from rawlog.io.storage import Source
from rawlog.io.walk import walk
from rawlog.model.store import Store
from rawlog.reading.inspect import (
    FileCheck,
    RuleChoice,
    check_file,
    inspect_group,
)
from rawlog.reading.tree import open_tree
from rawlog.verbs.verify import Verify
from tests.data.ambry_stores import STORES, copy_store, store_path
from tests.data.plain_verify import verify_tree

FACTS = 39
"""Bytes that a summary takes for a message, without its blob id."""


def facts(found: LogSummary) -> dict[str, Any]:
    columns = {name: found.columns[name].tolist() for name in found.columns.parts}
    others = {name: getattr(found, name) for name in ("unsound", "damages", "tail", "capacity")}
    return columns | others | {"error": None if found.error is None else str(found.error)}


def split(file: Any, start: int | None, stop: int | None) -> LogSummary:
    made = summary(file, (), start or 0, stop)
    for frames in walk(file, LOG, start=start, stop=stop, errors="skip", window=1 << 12):
        made.see(frames)
    return pickle.loads(pickle.dumps(made.close()))  # type: ignore[no-any-return]


@given(st.sampled_from(STORES), st.integers(0, 1 << 30))
def test_summaries_of_any_cut_are_that_of_the_whole_segment(name: str, seed: int) -> None:
    chance = random.Random(seed)
    file = chance.choice([one for one in open_tree(store_path(name)).files if one.format == LOG.name])
    whole = summarise(file, summary(file, (), 0, None))
    starts = whole.columns["offset"].tolist()[1:]
    cuts = sorted(chance.sample(starts, min(len(starts), chance.randint(0, 6))))
    parts = [split(file, start, stop) for start, stop in pairwise([None, *cuts, None])]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    assert facts(merged) == facts(whole)


@pytest.mark.parametrize("check", [False, True])
def test_a_summary_takes_few_bytes_whatever_the_size_of_blobs(check: bool) -> None:
    for file in open_tree(store_path("store-ops")).files:
        if file.format == LOG.name:
            columns = read_log(file, check=check).columns
            size = sum(part.nbytes for parts in columns.parts.values() for part in parts)
            assert size == len(columns) * FACTS + int(columns["key_size"].sum())
            assert size * 4 < file.size


@pytest.mark.parametrize("window", [100, 1 << 12, 1 << 22])
def test_the_summary_of_an_index_file_is_the_file(window: int) -> None:
    for file in open_tree(store_path("store-ops")).files:
        if file.format == INDEX_SEGMENT.name:
            summary = IndexSummary(file)
            for frames in walk(file, INDEX_SEGMENT, window=window):
                summary.see(frames)
            assert summary.close().raw == Path(file.path).read_bytes()


@pytest.mark.parametrize("harm", ["none", "content", "key", "index", "bloom", "cut"])
def test_the_rules_over_a_store_read_no_file_that_a_pass_has_seen(harm: str, tmp_path: Path) -> None:
    """Each rule read the whole log again, and all of them ran after the files were checked: a store was read twice."""
    store = copy_store("store-ops", tmp_path / "42")
    path = {"index": store / "1_0_18_index", "bloom": store / "1_0_18_bloom"}.get(harm, store / "1_0_log")
    data = bytearray(path.read_bytes())
    if harm == "cut":
        del data[len(data) // 2 :]
    elif harm != "none":
        data[{"key": 18 + 40 + 20, "content": 18 + 200}.get(harm, 30)] ^= 0x10
    path.write_bytes(bytes(data))
    tree = open_tree(str(store))
    [group] = tree.groups
    expected = [one.as_row() for one in inspect_group(Store(group.files))]
    summaries = {file.path: check_file(file, RuleChoice(), store=group).summary for file in tree}
    summaries = {path: summary for path, summary in summaries.items() if summary is not None}
    known = group.with_summaries(summaries)
    assert {file.format for file in known if file.path in summaries} == {
        "ambry.log",
        "ambry.index",
        "ambry.bloom",
    }
    for file in tree:
        if file.format in ("ambry.log", "ambry.index", "ambry.bloom"):
            Path(file.path).unlink()
    assert [one.as_row() for one in inspect_group(known)] == expected


@pytest.mark.parametrize("harm", [False, True])
@pytest.mark.parametrize("name", STORES[1:])
def test_verification_in_splits_finds_the_same(
    name: str, harm: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without damage no split of a segment has to be read again."""
    store = copy_store(name, tmp_path / "store")
    log = max(store.glob("*_log"), key=lambda path: path.stat().st_size)
    data = bytearray(log.read_bytes())
    for at in np.random.default_rng(5).integers(18, len(data), 3).tolist():
        data[at] ^= 0x40 if harm else 0
    log.write_bytes(bytes(data))
    expected = [one.as_row() for one in verify_tree(open_tree(str(store)))]
    monkeypatch.setattr("rawlog.verbs.verify.CUT", len(data) // 4)
    parts: list[tuple[str, int | None]] = []

    def checked(file: Any, *args: Any, **options: Any) -> FileCheck:
        parts.append((file.path, options.get("start")))
        return check_file(file, *args, **options)

    monkeypatch.setattr("rawlog.verbs.verify.check_file", checked)
    found = choice.run(Verify(), open_tree(str(store)), threads=1).findings
    assert [one.as_row() for one in found] == expected
    assert any(start is not None for _, start in parts)
    assert harm or len(parts) == len(set(parts))


def test_verification_reads_every_byte_of_a_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules over the store read the log a second time."""
    tree, count = open_tree(str(store_path("store-ops"))), 0
    read_into = Source.read_into

    def counted(self: Source, position: int, target: memoryview) -> int:
        nonlocal count
        size = read_into(self, position, target)
        count += size
        return size

    monkeypatch.setattr(Source, "read_into", counted)
    choice.run(Verify(), tree, threads=1)
    assert count < 1.1 * sum(file.size for file in tree)
