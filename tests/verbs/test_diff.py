"""What two places do not agree on: exactly that, whatever the batches, the order and the engine."""

from __future__ import annotations

import pickle
import shutil
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.engines import choice
from rawlog.model.difference import Change, Tally, compare_ordered
from rawlog.model.errors import CorruptError, OptionError, UnknownFormatError
from rawlog.model.table import RECORDS
from rawlog.reading import compare
from rawlog.reading.compare import compare_mixed, show_values
from rawlog.reading.select import Selection
from rawlog.reading.tree import open_tree
from rawlog.verbs.diff import Diff
from tests.data.golden import golden_path
from tests.data.recordings import record

T = 1_700_000_000_000_000


def row(offset: int, value: bytes | None = b"v", **more: Any) -> dict[str, Any]:
    made = {"key": b"k", "value": value, "offset": offset, "timestamp": T + offset * 1000, "timestampType": 0}
    return {"topic": "orders", "partition": 0, "headers": []} | made | more


def partition(path: Path, rows: list[dict[str, Any]], **options: Any) -> Path:
    table = pa.Table.from_pylist(rows, schema=RECORDS.schema)
    rawlog.write(path, table, format="kafka", **options)
    return path


def diff(a: object, b: object, limit: int | None = None, **selection: Any) -> Tally:
    job = Diff(open_tree(str(b)), Selection(**selection), limit)
    return choice.run(job, open_tree(str(a))).tally


def reported(tally: Tally) -> list[tuple[Any, ...]]:
    return [(item.change.value, item.name, item.start, item.stop, item.count, item.columns) for item in tally.items]


def test_batches_and_compression_are_no_difference(tmp_path: Path) -> None:
    rows = [row(number, bytes([number % 251]) * (number % 90)) for number in range(3000)]
    one = partition(tmp_path / "a", rows, codec="none")
    other = partition(tmp_path / "b", rows, codec="zstd", batch_records=7)
    found = diff(one, other)
    assert (found.is_same, found.alike, found.items) == (True, 3000, [])


def test_what_differs_is_told_by_offset_and_column(tmp_path: Path) -> None:
    rows = [row(number) for number in range(1000)]
    one = partition(tmp_path / "a", rows)
    changed = [dict(one) for one in rows[10:]]  # 0 to 9 are missing
    changed[90]["value"] = b"other"  # offset 100
    changed[91]["value"] = None  # offset 101: null is not empty, and not "v"
    changed[92]["key"], changed[92]["headers"] = None, [{"key": "h", "value": b"1"}]
    changed[93]["headers"] = [{"key": "h", "value": None}]
    changed[94]["timestamp"] += 1000
    del changed[490:495]  # offsets 500 to 504
    changed += [row(1000), row(1007)]
    found = diff(one, partition(tmp_path / "b", changed))
    assert reported(found) == [
        ("only_in_a", "orders-0", 0, 10, 10, ()),
        ("differs", "orders-0", 100, 102, 2, ("value",)),
        ("differs", "orders-0", 102, 103, 1, ("key", "headers")),
        ("differs", "orders-0", 103, 104, 1, ("headers",)),
        ("differs", "orders-0", 104, 105, 1, ("timestamp",)),
        ("only_in_a", "orders-0", 500, 505, 5, ()),
        ("only_in_b", "orders-0", 1000, 1008, 2, ()),
    ]
    assert (found.alike, found.only_in_a, found.only_in_b, found.differs) == (980, 15, 2, 5)
    assert found.items[1].a == {"value": b"v"}
    assert found.items[1].b == {"value": b"other"}
    assert found.items[4].b == {"timestamp": "2023-11-14T22:13:20.105Z"}


def test_what_is_selected_is_compared(tmp_path: Path) -> None:
    rows = [row(number) for number in range(100)]
    one, other = partition(tmp_path / "a", rows), partition(tmp_path / "b", [*rows[:50], row(50, b"x"), *rows[51:]])
    assert reported(diff(one, other)) == [("differs", "orders-0", 50, 51, 1, ("value",))]
    assert diff(one, other, to_offset=50).alike == 50
    assert diff(one, other, from_offset=51).alike == 49
    assert diff(one, other, last=10).alike == 10
    assert diff(one, other, columns=("key", "timestamp")).alike == 100
    assert diff(one, other, where="offset > 89").alike == 10


def test_long_values_are_shown_by_size_and_checksum(tmp_path: Path) -> None:
    one, other = partition(tmp_path / "a", [row(0, b"a" * 5000)]), partition(tmp_path / "b", [row(0, b"b" * 5001)])
    [item] = diff(one, other).items
    assert item.a == {"value": {"size": 5000, "crc32": f"{zlib.crc32(b'a' * 5000):08x}"}}
    assert item.b["value"]["size"] == 5001  # type: ignore[index]


def test_one_partition_each_needs_no_common_name(tmp_path: Path) -> None:
    rows = [row(number) for number in range(20)]
    one = partition(tmp_path / "a", rows)
    other = partition(tmp_path / "b", [{**one, "topic": "copy", "partition": 3} for one in rows])
    assert diff(one, other).alike == 20
    two = partition(tmp_path / "c", [*rows, *({**one, "topic": "copy"} for one in rows)])
    found = diff(one, two)
    assert reported(found) == [("only_in_b", "copy-0", 0, 20, 20, ())]
    assert found.alike == 20


def test_several_replicas_on_one_side_cannot_be_told_apart(tmp_path: Path) -> None:
    rows = [row(0), row(0, topic="other")]
    one = partition(tmp_path / "a", rows)
    for broker in ("one", "two"):
        (tmp_path / "b").mkdir(exist_ok=True)
        partition(tmp_path / "b" / broker, rows)
    with pytest.raises(OptionError, match="orders-0 was found 2 times"):
        diff(one, tmp_path / "b")
    assert diff(tmp_path / "b", tmp_path / "b").alike == 4


def test_listed_are_so_many_and_counted_all(tmp_path: Path) -> None:
    rows = [row(number) for number in range(200)]
    other = [row(number, b"v" if number % 2 else b"w") for number in range(200)]
    found = diff(partition(tmp_path / "a", rows), partition(tmp_path / "b", other), 5)
    assert (len(found.items), found.unlisted, found.differs, found.alike) == (5, 95, 100, 100)


def test_a_large_log_is_compared_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(number, b"x" * 100) for number in range(2000)]
    one = partition(tmp_path / "a", rows, segment_bytes=20_000)
    other = partition(tmp_path / "b", [*rows[:100], *rows[1900:]])
    whole = diff(one, other)
    monkeypatch.setattr(compare, "SPLIT_SIZE", 30_000)
    job = Diff(open_tree(str(other)))
    splits = job.plan(open_tree(str(one)))
    assert len(splits) > 3
    assert len(pickle.dumps(job)) < 1000
    assert reported(diff(one, other))[0] == ("only_in_a", "orders-0", 100, 1900, 1800, ()) == reported(whole)[0]
    assert diff(one, other).summary() == whole.summary()


@pytest.mark.parametrize("name", ["broker-4.3.0", "broker-3.9.2-crashed"])
def test_golden_directories_are_like_themselves(name: str) -> None:
    path = golden_path("kafka", name)
    found = diff(path, path)
    assert found.is_same
    assert found.alike > 500


def test_clusters_are_compared_by_their_settings() -> None:
    one, other = (golden_path("kafka", f"broker-4.3.0{kind}") for kind in ("", "-crashed"))
    found = [item for item in diff(one, other).items if item.what == "topics"]
    assert {item.name for item in found if item.change is Change.ONLY_A} >= {"codec-gzip", "idempotent"}
    assert {item.name for item in found if item.change is Change.ONLY_B} >= {"crash-stream"}
    narrow = diff(one, other, topics=("codec-gzip",))
    assert {item.name for item in narrow.items if item.what == "topics"} == {"codec-gzip"}


def test_stores_that_hold_several_topics_are_compared_record_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = golden_path("rocketmq", "broker-5.3.3"), golden_path("rocketmq", "broker-4.9.7")
    same, unlike = diff(one, one), diff(one, other)
    assert same.is_same
    assert same.alike == rawlog.open(one).table("records").count()
    assert unlike.alike + unlike.only_in_a + unlike.differs == same.alike
    monkeypatch.setattr(compare, "PASS", 1 << 20)
    assert len(Diff(open_tree(str(other))).plan(open_tree(str(one)))) > 1
    assert diff(one, one).summary() == same.summary()
    assert diff(one, other).summary() | {"unlisted": 0} == unlike.summary()


def test_recordings_are_compared_by_number(tmp_path: Path) -> None:
    one, other = record(tmp_path / "a.log", 40), record(tmp_path / "b.log", 43)
    assert reported(diff(one, other)) == [("only_in_b", "a.log and b.log", 40, 43, 3, ())]


@pytest.mark.parametrize("side", ["a", "b"])
def test_damage_of_a_deleted_blob_is_met(tmp_path: Path, side: str) -> None:
    """Blobs that are deleted on both sides were alike whatever their content: a flipped bit in one was "same", exit 0."""
    for name in ("a", "b"):
        shutil.copytree(golden_path("ambry", "store-small"), tmp_path / name / "9")
    log = tmp_path / side / "9" / "0_0_log"
    first = next(iter(rawlog.rows(log, table="ambry.messages", columns=["position", "size"])))
    data = bytearray(log.read_bytes())
    data[first["position"] + first["size"] - 12] ^= 1
    log.write_bytes(data)
    for options in ({}, {"errors": "skip"}):
        notes: list[str] = []
        found = rawlog.diff(tmp_path / "a", tmp_path / "b", note=notes.append, html=tmp_path / "page.html", **options)
        assert found.is_same
        assert found.exit_code == 1
        assert found.damage == notes
        assert all(f"{log}, bytes " in note for note in notes)
        assert any("its PUT is lost" in note for note in notes)
        assert "No difference, but damage" in (tmp_path / "page.html").read_text()


def test_the_same_damage_on_both_sides_is_not_the_same(tmp_path: Path) -> None:
    """What both sides lack was not compared: "same" with exit 0 said that it was."""
    partition(tmp_path / "a", [row(n) for n in range(9)], batch_records=3)
    log = next((tmp_path / "a").rglob("*.log"))
    data = bytearray(log.read_bytes())
    data[-2] ^= 1
    log.write_bytes(data)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = rawlog.diff(tmp_path / "a", tmp_path / "b", errors="skip")
    assert found.is_same
    assert found.exit_code == 1
    for side in "ab":
        dropped, lost = (note for note in found.damage if f"/{side}/orders-0" in note)
        assert "checksum" in dropped
        assert "offsets from 6 on" in lost


def test_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("nothing")
    with pytest.raises(UnknownFormatError, match="nothing here to compare"):
        diff(tmp_path, tmp_path)


# Against plain Python ----------------------------------------------------------------------------------------------

SCHEMA = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.binary()),
                    ("headers", RECORDS.schema.field("headers").type)])  # fmt: skip
values = st.one_of(st.none(), st.binary(max_size=3))
headers = st.one_of(
    st.none(), st.lists(st.fixed_dictionaries({"key": st.sampled_from("ab"), "value": values}), max_size=2)
)
sides = st.dictionaries(st.integers(0, 60), st.tuples(values, headers), max_size=30)


def stream(rows: list[dict[str, Any]], size: int) -> Any:
    return iter(pa.Table.from_pylist(rows, schema=SCHEMA).to_batches(max_chunksize=size))


def plainly(a: dict[Any, Any], b: dict[Any, Any]) -> dict[str, Any]:
    both = a.keys() & b.keys()
    alike = sum(a[key] == b[key] for key in both)
    only = {"only_in_a": len(a) - len(both), "only_in_b": len(b) - len(both)}
    return {"alike": alike, **only, "differs": len(both) - alike}


def spread(tally: Tally) -> dict[tuple[str, int], tuple[str, tuple[str, ...]]]:
    """Each offset of each run by itself; runs of `only` may have gaps, which count tells."""
    return {
        (item.name, item.start): (item.change.value, item.columns) for item in tally.items if item.start is not None
    }


@given(sides, sides, st.integers(1, 9), st.integers(1, 9))
def test_ordered_streams_are_compared_as_dictionaries_are(
    a: dict[int, Any], b: dict[int, Any], size_a: int, size_b: int
) -> None:
    rows = [
        [{"offset": key, "value": side[key][0], "headers": side[key][1]} for key in sorted(side)] for side in (a, b)
    ]
    tally = Tally()
    streams = stream(rows[0], size_a), stream(rows[1], size_b)
    compare_ordered(*streams, "offset", ("value", "headers"), tally, "record", "x")
    assert {name: getattr(tally, name) for name in plainly(a, b)} == plainly(a, b)
    for item in tally.items:
        assert item.start is not None
        first = a.get(item.start), b.get(item.start)
        if item.change is Change.DIFFERS:
            unlike = [name for at, name in enumerate(("value", "headers")) if first[0][at] != first[1][at]]
            assert item.columns == tuple(unlike)
            assert item.a == {name: first[0][("value", "headers").index(name)] for name in unlike}
        else:
            assert (first[0] is None, first[1] is None) == (item.change is Change.ONLY_B, item.change is Change.ONLY_A)


places = st.tuples(st.sampled_from(["t", "u", None]), st.sampled_from([0, 1, None]), st.integers(0, 1 << 17))
mixed = st.dictionaries(places, st.tuples(values, headers), max_size=30)


@given(mixed, mixed, st.integers(1, 9), st.randoms(use_true_random=False), st.integers(1, 3))
def test_mixed_streams_are_compared_as_dictionaries_are(
    a: dict[Any, Any], b: dict[Any, Any], size: int, random: Any, passes: int
) -> None:
    tally = Tally()
    for number in range(passes):
        streams = []
        for side in (a, b):
            rows = mixed_rows(side)
            random.shuffle(rows)
            streams.append(stream(rows, size))
        compare_mixed(*streams, ("value", "headers"), tally, "record", (number, passes))
    assert {name: getattr(tally, name) for name in plainly(a, b)} == plainly(a, b)
    show_values(*(stream(mixed_rows(side), size) for side in (a, b)), tally)
    called = [
        {(f"{topic}-{part}", offset): reported for (topic, part, offset), reported in side.items()} for side in (a, b)
    ]
    for item in tally.items:
        if item.change is Change.DIFFERS:
            reported = [side[item.name, item.start or 0] for side in called]
            shown = [{name: one[("value", "headers").index(name)] for name in item.columns} for one in reported]
            assert [item.a, item.b] == shown
        else:
            assert item.a is item.b is None


def mixed_rows(side: dict[Any, Any]) -> list[dict[str, Any]]:
    return [
        {"topic": topic, "partition": part, "offset": offset, "value": reported[0], "headers": reported[1]}
        for (topic, part, offset), reported in side.items()
    ]


def test_of_records_at_one_place_those_that_differ_are_shown() -> None:
    """Prepared messages all have the offset 0."""
    rows = [[{"topic": "t", "partition": 0, "offset": 0, "value": value, "headers": []} for value in side]
            for side in ((b"same", b"old"), (b"same", b"new"))]  # fmt: skip
    tally = Tally()
    compare_mixed(*(stream(side, 1) for side in rows), ("value", "headers"), tally, "record")
    show_values(*(stream(side, 1) for side in rows), tally)
    assert [(one.a, one.b) for one in tally.items] == [({"value": b"old"}, {"value": b"new"})]


@given(st.lists(st.sampled_from(b"abc"), max_size=6), st.lists(st.sampled_from(b"abc"), max_size=6))
def test_of_records_at_one_place_equal_ones_are_alike(a: list[int], b: list[int]) -> None:
    """The first of several messages with the offset 0 was lost: each of the others was compared with the one after it."""
    rows = [
        [{"topic": "t", "partition": 0, "offset": 0, "value": bytes([value]), "headers": []} for value in side]
        for side in (a, b)
    ]
    tally = Tally()
    compare_mixed(*(stream(side, 2) for side in rows), ("value", "headers"), tally, "record")
    alike = (Counter(a) & Counter(b)).total()
    left = len(a) - alike, len(b) - alike
    assert (tally.alike, tally.differs) == (alike, min(left))
    assert (tally.only_in_a, tally.only_in_b) == tuple(side - min(left) for side in left)


def test_a_store_whose_first_message_is_damaged_is_compared(tmp_path: Path) -> None:
    """Its first record tells whether it has several topics. It could not be read: wrong usage, "the other side has several topics"."""
    whole = golden_path("rocketmq", "broker-4.9.7", "store")
    shutil.copytree(whole, tmp_path / "damaged")
    log = min((tmp_path / "damaged" / "commitlog").iterdir())
    raw = bytearray(log.read_bytes())
    raw[88] ^= 1  # inside of the body
    log.write_bytes(raw)
    found = diff(tmp_path / "damaged", whole, errors="skip")
    assert (found.only_in_a, found.only_in_b, found.differs) == (0, 1, 0)
    for other in log.parent.iterdir():  # no message is left at all
        other.write_bytes(bytes(other.stat().st_size))
    assert diff(tmp_path / "damaged", whole, errors="skip").only_in_b == rawlog.count(whole)


def test_streams_that_go_backwards_are_refused() -> None:
    rows = [{"offset": 3, "value": b"", "headers": []}, {"offset": 2, "value": b"", "headers": []}]
    for size in (1, 2):
        with pytest.raises(CorruptError, match="x of A: offset does not ascend"):
            compare_ordered(stream(rows, size), stream([], 1), "offset", ("value",), Tally(), "record", "x")
