"""All messages folded at once give what a live store knows after taking them one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog import registry
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.index import read_index
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.log import Messages, scan
from rawlog.formats.ambry.store.state import (
    Columns,
    catalog_of,
    fold,
    is_refused,
)
from rawlog.formats.ambry.writer import (
    Properties,
    put_message,
    segment_header,
    update_message,
)
from rawlog.model.errors import OptionError, RawlogError
from tests.data.ambry_rewriting import dropped, rewritten
from tests.data.ambry_stores import STORES, copy_store, open_store, small_messages, store_path
from tests.data.golden import golden_path
from tests.reference import ambry as reference

UUIDS = [
    "00000001-1234-4abc-8def-000000000001",
    "f0000004-1234-4abc-8def-0000f0000004",
    "0000000A-1234-4abc-8def-000000000001",
]
TEXTS = [*UUIDS, "", "plain", "ünï", "\U0001f600", "\uffff", "00000001-1234-4abc-8def-00000000000g"]
versions = st.integers(1, 7)


@st.composite
def blob_keys(draw: Any) -> bytes:
    version = draw(versions)
    name = draw(st.sampled_from(TEXTS if version < 6 else UUIDS))
    small = st.integers(-2, 2)
    return keys.make(
        version,
        draw(st.integers(0, 1)),
        name,
        datacenter_id=draw(small),
        account_id=draw(small),
        container_id=draw(small),
    )


@given(st.lists(blob_keys(), max_size=12))
def test_identities_are_equal_and_sort_as_ambry_compares(raw: list[bytes]) -> None:
    sizes = np.array([len(key) for key in raw], np.int64)
    found = keys.identities(np.frombuffer(b"".join(raw), np.uint8), np.cumsum(sizes) - sizes, sizes)
    orders = [reference.order(key) for key in raw]
    numbers = found.tuples
    for one, plain in zip(numbers, orders, strict=True):
        for other, also in zip(numbers, orders, strict=True):
            assert (one == other) == (plain == also)
    known = [row for row in range(len(raw)) if not found.is_odd[row]]
    assert sorted(known, key=lambda row: numbers[row]) == sorted(known, key=lambda row: orders[row])
    assert sorted(range(len(raw)), key=lambda row: keys.order(raw[row])) == sorted(
        range(len(raw)), key=lambda row: orders[row]
    )


operations = st.lists(
    st.tuples(
        st.sampled_from(list(Kind)), st.integers(0, 3), st.integers(0, 2), st.sampled_from([-1, 60]), st.integers(0, 1)
    ),
    max_size=25,
)
KEYS = [
    keys.make(6, 9, UUIDS[0]), keys.make(5, 9, UUIDS[0]), keys.make(2, 9, "plain"), keys.make(7, 9, UUIDS[1]),
]  # fmt: skip


@given(operations, st.booleans())
def test_folding_is_what_a_live_store_does(done: list[tuple[Any, ...]], drop: bool) -> None:
    segments, plain, expected_wrong, at = [Columns(), Columns()], {}, [], [0, 0]
    rows: list[tuple[bytes, int]] = []
    for number, (kind, which, life, ttl, segment) in enumerate(sorted(done, key=lambda one: one[4])):
        key, time = KEYS[which], 1_600_000_000_000 + number * 1000
        if kind is Kind.PUT:
            properties = Properties(blob_size=1, creation_time=time, time_to_live=ttl, account_id=which, container_id=3)
            message = put_message(key, properties, b"x", life_version=life)
        else:
            message = update_message(kind, key, time=time, account_id=7, container_id=8, life_version=life)
        frames = scan(np.frombuffer(bytes(at[segment]) + message, np.uint8)[at[segment] :], 0)
        from dataclasses import replace

        segments[segment].add(Messages(replace(frames, base=at[segment])))
        identity = reference.order(key)
        entries = plain.setdefault(identity, [])
        wrong = reference.refused(kind.name, life, reference.find(entries))
        is_dropped = wrong and kind is not Kind.UNDELETE
        expected_wrong.append(is_dropped)
        expires = -1 if kind is not Kind.PUT or ttl == -1 else (time + ttl * 1000) // 1000
        if not (drop and is_dropped):
            account, container = (which, 3) if kind is Kind.PUT else (7, 8)
            reference.add(entries, kind.name, (segment, at[segment]), expires, account, container, life)
            rows.append((identity, len(entries) - 1))
        else:
            rows.append((identity, -1))
        at[segment] += len(message)
    catalog = catalog_of(segments)
    folded = fold(catalog, drop=drop)
    assert is_refused(catalog, folded.wrong).tolist() == expected_wrong
    for row, (identity, number) in enumerate(rows):
        if number >= 0:
            entry = plain[identity][number]
            made = (
                folded.flags[row],
                folded.expires[row],
                folded.original[row],
                folded.account_id[row],
                folded.container_id[row],
            )
            assert made == (entry.flags, entry.expires, entry.original, entry.account, entry.container)
    assert folded.first.size == len(plain)
    for blob in range(folded.first.size):
        entries = plain[reference.order(catalog.key(int(folded.first[blob])))]
        state = reference.find(entries)
        put = next((entry for entry in reversed(entries) if entry.acts == "PUT"), None)
        where = int(folded.answer[blob])
        assert (where < 0) == (state is None)
        if state is not None:
            assert (folded.answer_flags[blob], folded.answer_expires[blob]) == (state.flags, state.expires)
            assert (int(catalog.segment[where]), int(catalog.offset[where])) == state.place
        where = int(folded.put[blob])
        assert (None if where < 0 else (int(catalog.segment[where]), int(catalog.offset[where]))) == (put and put.place)


# What a store may look like besides ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["msgs", *STORES])
def test_nothing_but_our_errors_comes_out_of_any_file_read_as_anything(name: str) -> None:
    """Reading a message file as blobs once ended in a bare AssertionError: its name is that of no segment."""
    folder = golden_path("ambry", name)
    tables = ["records", "files", "findings", *(table.name for table in registry.family("ambry").tables)]
    paths = (
        [folder, *sorted(folder.iterdir())]
        if name in ("msgs", "store-small")
        else [folder, *sorted(folder.glob("*_log"))]
    )
    formats = [None, *(format.name for format in registry.family("ambry").formats)] if name == "msgs" else [None]
    read = 0
    for path in paths:
        for table in tables:
            for format in formats:
                try:
                    read += rawlog.read(path, table=table, format=format, errors="skip").num_rows
                except RawlogError:
                    continue
    assert read


def test_a_replica_that_is_being_copied_is_not_read(tmp_path: Path) -> None:
    store = copy_store("store-small", tmp_path / "9")
    copy_store("store-small", store / "fileCopyTempDirectory")
    assert rawlog.read(tmp_path).num_rows == 15
    assert rawlog.read(tmp_path, table="ambry.blobs").num_rows == 8
    assert rawlog.verify(tmp_path).verdict == "clean"


def test_a_last_segment_of_nothing_but_its_header_is_normal(tmp_path: Path) -> None:
    store = copy_store("store-small", tmp_path / "9")
    (store / "3_0_log").write_bytes(segment_header(2048))
    findings = rawlog.verify(store)
    assert findings.verdict == "clean", list(findings)
    assert rawlog.read(store).num_rows == 15
    rewritten("rebuild", store, tmp_path / "out")
    for path in store.glob("*_index"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_times_beyond_what_an_index_holds_are_none(tmp_path: Path) -> None:
    """An update in the year 2200 ended rebuilding with an OverflowError; one before 1970 was not reported, although Ambry refuses it."""
    key, late = keys.make(6, 9, UUIDS[0]), 7_258_118_400_000
    properties = Properties(blob_size=1, creation_time=late, time_to_live=60)
    store = tmp_path / "9"
    store.mkdir()
    updates = [update_message(kind, key, time=time) for kind, time in ((Kind.TTL_UPDATE, late), (Kind.DELETE, -5))]
    (store / "log_current").write_bytes(b"".join([put_message(key, properties, b"x"), *updates]))
    rewritten("rebuild", store, tmp_path / "out")
    entries = read_index(str(tmp_path / "out" / "0_index")).entries
    assert entries.operation_time.tolist() == [-1, -1, -1]
    assert entries.expires.tolist() == [-1, -1, -1]
    [early] = [finding for finding in rawlog.verify(tmp_path / "out") if finding.severity != "info"]
    assert (early.code, early.found) == ("ambry.log.time", "-5")


def test_blooms_of_uuids_stay_blooms_of_uuids(tmp_path: Path) -> None:
    """A bloom of whole keys in a store that asks it for uuids would hide every blob."""
    from rawlog.formats.ambry import index as bloom
    from rawlog.formats.ambry.structures import Cursor

    store = copy_store("store-small", tmp_path / "9")
    for path in store.glob("*_bloom"):
        old = bloom.read_bloom(Cursor(path.read_bytes()))
        made = bloom.Bloom(old.hash_count, old.words * 0)
        index = read_index(str(path).removesuffix("bloom") + "index")
        for key in index.entries.keys:
            made.add(keys.uuid_bytes(key))
        path.write_bytes(made.encode())
    assert rawlog.verify(store).verdict == "clean"
    rewritten("rebuild", store, tmp_path / "out")
    for path in store.glob("*_bloom"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


def test_old_index_files_keep_the_size_of_their_entries(tmp_path: Path) -> None:
    from rawlog.formats.ambry.index import encode_index

    store = copy_store("store-small", tmp_path / "9")
    folded = open_store(store).state
    for path in store.glob("*_index"):
        old = read_index(str(path))
        number = int(path.name.split("_")[0])
        mine = (
            (folded.catalog.segment == number)
            & (folded.catalog.offset >= old.start)
            & (folded.catalog.offset < old.end)
        )
        run = folded.entries.take(np.flatnonzero(mine))
        path.write_bytes(encode_index(run, last_modified=old.header.last_modified, least=115))
    assert rawlog.verify(store).verdict == "clean"
    rewritten("rebuild", store, tmp_path / "out")
    for path in store.glob("*_index"):
        assert read_index(str(path)).header.entry_size == 115
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", STORES)
def test_a_dry_run_reports_what_a_repair_would_do_and_writes_nothing(name: str, tmp_path: Path) -> None:
    store = copy_store(name, tmp_path / "9")
    log = store / "1_0_log" if (store / "1_0_log").exists() else store / "1_1_log"
    data = bytearray(log.read_bytes())
    data[300:310] = bytes(byte ^ 0xFF for byte in data[300:310])
    log.write_bytes(bytes(data))
    before = sorted(tmp_path.rglob("*"))
    planned = rewritten("repair", store, tmp_path / "out", dry_run=True)
    assert sorted(tmp_path.rglob("*")) == before
    done = rewritten("repair", store, tmp_path / "out")
    assert (planned.entries, planned.counts, planned.facts) == (done.entries, done.counts, done.facts)
    assert dropped(planned)
    assert planned.facts["files"] == sorted(path.name for path in (tmp_path / "out").iterdir())


def test_an_undelete_of_a_lower_life_version_is_odd_and_kept(tmp_path: Path) -> None:
    """Ambry takes such a message, so repair must not drop it."""
    messages = small_messages()
    key = keys.make(6, 9, "00000001-1234-4abc-8def-000000000001", datacenter_id=2, account_id=101, container_id=7)
    messages.append(
        update_message(Kind.UNDELETE, key, time=1_596_413_030_000, account_id=101, container_id=7, life_version=0)
    )
    store = tmp_path / "9"
    store.mkdir()
    (store / "log_current").write_bytes(b"".join(messages))
    [finding] = [one for one in rawlog.verify(store) if one.severity != "info"]
    assert (finding.code, finding.severity) == ("ambry.store.history", "warning")
    report = rewritten("repair", store, tmp_path / "out")
    assert not any(one.is_loss for one in report.all_entries())
    assert [one.code for one in report.remaining] == ["ambry.store.history"]
    assert (tmp_path / "out" / "log_current").read_bytes() == (store / "log_current").read_bytes()


@pytest.mark.parametrize(
    "options",
    [
        {"max_entries": "²"},
        {"max_entries": "0"},
        {"probability": "often"},
        {"probability": "0.3"},
        {"capacity": "9" * 30},
    ],
)
def test_invalid_options_are_refused(options: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        rewritten("repair", store_path("store-small"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_moment_must_be_one(tmp_path: Path) -> None:
    for now in ("²", "soon", "9" * 40):
        with pytest.raises(OptionError, match="now"):
            rawlog.read(store_path("store-small"), table="ambry.blobs", option={"now": now})
        with pytest.raises(OptionError, match="now"):
            rewritten("compact", store_path("store-small"), tmp_path / "out", now=now)
