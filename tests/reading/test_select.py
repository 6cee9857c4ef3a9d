"""Selections: which rows are wanted, in every form in which people say it."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog import registry
from rawlog.model.errors import OptionError
from rawlog.model.format import (
    NO_TIME,
    File,
    Place,
    Spans,
)
from rawlog.model.text import parse_time
from rawlog.reading.select import Selection, parse_columns, parse_offset_option
from rawlog.testing.formats import plain
from tests.data.golden import golden_path
from tests.reference import replay

T = 1_706_868_930
BASIC = golden_path("replay", "v2", "basic.log")


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2024-02-02T10:15:30Z", T * 10**6),
        ("2024-02-02T10:15:30", T * 10**6),
        ("2024-02-02 10:15:30", T * 10**6),
        ("2024-02-02T11:15:30+01:00", T * 10**6),
        ("2024-02-02T10:15:30.123456Z", T * 10**6 + 123456),
        ("2024-02-02", 1_706_832_000_000_000),
        ("20240202T101530Z", T * 10**6),
        ("1706868930000", T * 10**6),
        ("1706868930123", T * 10**6 + 123_000),
        (1706868930123, T * 10**6 + 123_000),
        ("0", 0),
        ("-1", -1000),
        ("-5000", -5_000_000),
        (" 1706868930000 ", T * 10**6),
        (datetime(2024, 2, 2, 10, 15, 30), T * 10**6),
        (datetime(2024, 2, 2, 11, 15, 30, tzinfo=timezone(timedelta(hours=1))), T * 10**6),
        ("0001-01-01", -62_135_596_800 * 10**6),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_800 * 10**6 - 1),
    ],
)
def test_times_are_read_in_every_form(text: Any, micros: int) -> None:
    assert parse_time(text) == micros


@pytest.mark.parametrize(
    ("text", "before"),
    [("-2h", 7200), ("-90s", 90), ("-1.5d", 129_600), ("-3w", 1_814_400), ("-10m", 600), ("-500ms", 0.5), ("-0s", 0)],
)
def test_an_age_is_counted_back_from_now(text: str, before: float) -> None:
    assert parse_time(text, now=T) == int((T - before) * 10**6)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yesterday",
        "-2y",
        "2h",
        "2024-13-01",
        "2024-02-30",
        "24:00",
        "1e9",
        "-h",
        "--2h",
        "2024-02-02T25:00",
        "٣",
        "1_000",
    ],
)
def test_what_is_no_time_is_an_option_error(text: str) -> None:
    with pytest.raises(OptionError, match="ISO 8601"):
        parse_time(text)


@pytest.mark.parametrize("text", ["9" * 30, "-" + "9" * 30, "-" + "9" * 30 + "d", 1 << 80, "9" * 5000])
def test_a_time_beyond_all_files_is_an_option_error(text: Any) -> None:
    with pytest.raises(OptionError):
        rawlog.read(BASIC, since=text)


@given(st.text(max_size=20))
def test_any_text_is_a_time_or_an_option_error(text: str) -> None:
    with contextlib.suppress(OptionError):
        parse_time(text)


@given(st.datetimes(timezones=st.just(UTC)))
def test_iso_times_are_exact_to_the_microsecond(moment: datetime) -> None:
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert parse_time(moment.isoformat()) == parse_time(moment) == expected


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("beginning", {}),
        ("end", {"last": 0}),
        ("17", {"from_offset": 17}),
        ("-17", {"last": 17}),
        ("s@1706868930000", {"since": T * 10**6}),
        ("e@1706868930000", {"until": T * 10**6}),
        (" end ", {"last": 0}),
    ],
)
def test_kcats_offsets_are_understood(text: str, fields: dict[str, int]) -> None:
    assert parse_offset_option(text) == fields


@pytest.mark.parametrize("text", ["", "stored", "1.5", "s@", "s@now", "x@1", "--1", "1-2", "e@-", "٣"])
def test_an_offset_that_is_none_is_an_option_error(text: str) -> None:
    with pytest.raises(OptionError, match="beginning, end, N"):
        parse_offset_option(text)


def test_columns_come_as_text_or_list() -> None:
    assert parse_columns("a, b ,c") == parse_columns(["a", "b", "c"]) == ("a", "b", "c")
    assert parse_columns(None) is None
    for nothing in ("", " , ", []):
        with pytest.raises(OptionError, match="no column"):
            parse_columns(nothing)


@pytest.mark.parametrize(
    "wrong",
    [
        {"isolation": "read_commited"},
        {"errors": "ignore"},
        {"limit": -1},
        {"limit": "many"},
        {"last": -1},
        {"from_offset": "0"},
        {"from_offset": 1 << 70},
        {"to_offset": -(1 << 70)},
        {"from_offset": 1.5},
        {"limit": True},
        {"topic_pattern": "("},
        {"partition": "0"},
        {"partition": 1 << 40},
        {"since": 1.5},
        {"columns": ["no_such"]},
        {"columns": []},
        {"frm_offset": 1},
        {"since": "tomorrow"},
        {"where": "offset ="},
    ],
    ids=str,
)
def test_a_wrong_choice_is_an_option_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        rawlog.read(BASIC, **wrong)
    assert str(caught.value)


def test_a_wrong_word_is_answered_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean read_committed"):
        Selection(isolation="read_commited")
    with pytest.raises(OptionError, match="did you mean from_offset"):
        rawlog.read(BASIC, frm_offset=1)


def offsets(**selection: Any) -> list[int]:
    return [row["offset"] for row in plain(rawlog.read(BASIC, **selection))]


def test_offsets_are_half_open() -> None:
    assert offsets(from_offset=67) == [67, 68, 69]
    assert offsets(to_offset=2) == [0, 1]
    assert offsets(from_offset=5, to_offset=5) == []
    assert offsets(from_offset=5, to_offset=6) == [5]
    assert offsets(from_offset=-5, to_offset=1) == [0]
    assert offsets(from_offset=1000) == []
    assert offsets(from_offset=(1 << 63) - 1) == []


def test_the_last_rows_are_counted_from_the_end() -> None:
    assert offsets(last=3) == [67, 68, 69]
    assert offsets(last=0) == []
    assert offsets(last=1000) == list(range(70))
    assert offsets(last=3, limit=2) == [67, 68]
    assert offsets(last=3, columns=["offset"], to_offset=68) == [67]


def test_the_last_rows_are_those_of_each_file(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(golden_path("replay", "v2", "find.log").read_bytes())
    found = plain(rawlog.read(tmp_path, table="replay.entries", last=1))
    assert [(Path(row["path"]).name, row["number"]) for row in found] == [("a.log", 1), ("b.log", 1)]


def test_where_offsets_are_positions_the_last_rows_are_counted() -> None:
    """The last two bytes of a store hold no message: `-o -2` gave nothing."""
    store = golden_path("ambry", "store-small")
    everything = plain(rawlog.read(store))
    for last in (0, 1, 2, 7, len(everything), 1000):
        assert plain(rawlog.read(store, last=last)) == everything[max(0, len(everything) - last) :]


def test_positions_in_a_file_are_no_offsets_of_the_whole_log() -> None:
    """`ambry.messages` took them for such: rows of every file but the first were missed."""
    store = golden_path("ambry", "store-small")
    whole = rawlog.read(store, table="ambry.messages")
    assert rawlog.read(store, table="ambry.messages", to_offset=1000).equals(whole)


@pytest.mark.parametrize(
    "how",
    [{"from_offset": 1}, {"to_offset": 1}, {"last": 1}, {"since": "-1h"}, {"until": 5}, {"key": "a"}],
    ids=str,
)
def test_a_selection_does_not_change_tables_without_its_column(how: dict[str, Any]) -> None:
    """`--topic` gave part of a cluster's state, others were refused: a selection leaves such tables whole."""
    for table in ("files", "findings"):
        assert rawlog.read(BASIC, table=table, **how).equals(rawlog.read(BASIC, table=table))
    assert Selection(**{"key": b"a"} if "key" in how else {"last": 1}).unused(registry.table_named("files"))


@pytest.mark.parametrize(
    "how", [{"topic": "codec-none"}, {"topic": "zz*"}, {"partition": 1}, {"topic_pattern": "zz"}], ids=str
)
def test_tables_of_a_cluster_without_a_topic_stay_whole(how: dict[str, Any]) -> None:
    """The metadata log has a topic itself, its bootstrap file has none: `--topic` gave the state of that one alone."""
    data = golden_path("kafka", "broker-3.9.2", "data")
    for table in ("users", "brokers", "features", "configs", "acls", "quotas", "metadata"):
        whole = rawlog.read(data, table=f"kraft.{table}")
        assert whole.num_rows
        assert rawlog.read(data, table=f"kraft.{table}", **how).equals(whole), table
    topics = rawlog.read(data, table="kraft.partitions", topic="codec-none")
    assert set(topics.column("topic").to_pylist()) == {"codec-none"}


def test_every_table_of_every_family_stays_whole_under_a_selection_it_has_no_column_for() -> None:
    given = Selection(("a",), "b", (1,), 1, 2, None, None, 3, 4, b"k", "id")
    for table in registry.tables().values():
        suited = given.suited(table)
        assert not suited.unused(table), table
        suited.needed(table)
        if "topic" not in table.names and table.name != "findings":
            assert (suited.topics, suited.topic_pattern) == ((), None)
        assert (suited.since is None) == (table.times is None)
        assert (suited.from_offset is None) == (table.offsets is None)


def test_a_limit_is_over_all_files_together(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(golden_path("replay", "v2", "find.log").read_bytes())
    assert [rawlog.read(tmp_path, limit=limit).num_rows for limit in (0, 1, 2, 3, 4, 5)] == [0, 1, 2, 3, 4, 4]
    stream = rawlog.open(tmp_path)
    assert [stream.table("records", limit=limit).count() for limit in (0, 1, 3, 9)] == [0, 1, 3, 4]


def test_times_are_half_open_and_microseconds(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(replay.encode(2, [(T + number, None, b"v") for number in range(5)]))

    def found(**how: Any) -> list[int]:
        return [row["offset"] for row in plain(rawlog.read(path, **how))]

    assert found(since="2024-02-02T10:15:32Z") == [2, 3, 4]
    assert found(until="2024-02-02T10:15:32Z") == [0, 1]
    assert found(since=(T + 1) * 1000, until=(T + 3) * 1000) == [1, 2]
    assert found(since="2024-02-02T10:15:32.000001Z") == [3, 4]
    assert found(since=datetime(2024, 2, 2, 10, 15, 34)) == [4]
    assert found(since="-1s") == []
    assert found(until="-1s") == [0, 1, 2, 3, 4]


def test_keys_are_compared_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    keys = [b"a", None, b"A", b"\xff", "ключ".encode(), b"a"]
    path.write_bytes(replay.encode(2, [(T, key, b"v") for key in keys]))
    for key, expected in [("a", [0, 5]), (b"\xff", [3]), ("ключ", [4]), ("", []), (bytearray(b"A"), [2])]:
        assert [row["offset"] for row in plain(rawlog.read(path, key=key))] == expected, key
        assert rawlog.open(path).table("records", key=key).count() == len(expected)
    assert rawlog.read(path, table="files", key="a").num_rows == 1


def test_choices_are_joined() -> None:
    whole = plain(rawlog.read(BASIC))
    keyed = [
        row["offset"] for row in whole if row["key"] is not None and row["offset"] >= 10 and len(row["value"]) > 20
    ]
    assert offsets(from_offset=10, where="key is not null and length(value) > 20") == keyed
    assert keyed
    assert offsets(from_offset=10, where="key is not null and length(value) > 20", limit=1) == keyed[:1]


def test_chosen_columns_need_not_hold_what_is_tested() -> None:
    found = rawlog.read(BASIC, columns=["value"], from_offset=3, to_offset=5, where="topic is null", since="1970-01-01")
    assert found.schema.names == ["value"]
    assert found.num_rows == 2


# ------------------------------------------------------------------ files and frames


def file(topic: str | None, partition: int | None) -> File:
    return File("x", 1, format="kafka.log", place=Place(topic, partition))


@pytest.mark.parametrize(
    ("how", "topic", "partition", "taken"),
    [
        ({}, "orders", 0, True),
        ({"topics": ("orders",)}, "orders", 0, True),
        ({"topics": ("order?",)}, "orders", 0, True),
        ({"topics": ("Orders",)}, "orders", 0, False),
        ({"topics": ("x", "o*")}, "orders", 0, True),
        ({"topics": ("o*",)}, "payments", 0, False),
        ({"topics": ("[op]*",)}, "payments", 0, True),
        ({"topic_pattern": "ord.*"}, "orders", 0, True),
        ({"topic_pattern": "ord"}, "orders", 0, False),
        ({"topic_pattern": "a|orders"}, "orders", 0, True),
        ({"partitions": (0, 2)}, "orders", 2, True),
        ({"partitions": (0, 2)}, "orders", 1, False),
        ({"topics": ("orders",), "partitions": (1,)}, "orders", 1, True),
        ({"topics": ("orders",)}, None, None, True),
        ({"partitions": (1,)}, None, None, True),
    ],
)
def test_files_are_left_out_by_topic_and_partition(
    how: Any, topic: str | None, partition: int | None, taken: bool
) -> None:
    assert Selection(**how).takes_file(file(topic, partition)) is taken


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5), st.integers(-3, 30)), min_size=1, max_size=6),
    *[st.one_of(st.none(), st.integers(-2, 32))] * 4,  # type: ignore[arg-type]
)
def test_no_frame_with_a_wanted_row_is_left_out(
    frames: list[tuple[int, int, int]], low: int | None, high: int | None, since: int | None, until: int | None
) -> None:
    start = np.array([first for first, _, _ in frames], np.int64)
    stop = np.array([first + count for first, count, _ in frames], np.int64)
    time = np.array([NO_TIME if at < 0 else at for _, _, at in frames], np.int64)
    selection = Selection(from_offset=low, to_offset=high, since=since, until=until)
    mask = selection.takes_frames(Spans(start, stop, time, time + (time != NO_TIME)))
    for index, (first, count, at) in enumerate(frames):
        rows = [(offset, at + extra) for offset in range(first, first + count) for extra in (0, 1)] if at >= 0 else []
        wanted = [
            1
            for offset, moment in rows
            if (low is None or offset >= low)
            and (high is None or offset < high)
            and (since is None or moment >= since)
            and (until is None or moment < until)
        ]
        assert not wanted or mask is None or mask[index]


def test_topic_of_rows_is_tested_where_files_do_not_tell() -> None:
    """A recording has no topics, unless it is given one: a name is then an error, a pattern matches nothing."""
    with pytest.raises(OptionError, match="there are no topics here"):
        rawlog.read(BASIC, topic="orders")
    assert rawlog.read(BASIC, topic="ord*").num_rows == 0
    assert rawlog.read(BASIC, topic="orders", option={"topic": "orders"}).num_rows == 70
    assert rawlog.read(BASIC, topic_pattern="ord.*", option={"topic": "orders"}).num_rows == 70
    with pytest.raises(OptionError, match="there are no partitions here"):
        rawlog.read(BASIC, partition=0)
