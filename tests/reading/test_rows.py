"""Rows: streams of a tree's tables, planned into parts, with notes on what was left out."""

from __future__ import annotations

import gzip
import pickle
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.model.errors import CorruptError
from rawlog.reading.parts import Part, plan
from rawlog.reading.rows import Rows, read
from rawlog.reading.select import Selection
from rawlog.reading.tree import open_tree
from rawlog.registry import table_named
from rawlog.testing.formats import plain, shared
from tests.data.golden import golden_path
from tests.reference import kafka, replay, strategies

T = 1_706_868_930
BASIC = golden_path("replay", "v2", "basic.log")


def test_rows_are_iterable_more_than_once() -> None:
    rows = rawlog.open(BASIC).table("records")
    assert sum(batch.num_rows for batch in rows.batches()) == sum(1 for _ in rows) == sum(1 for _ in rows) == 70
    assert rows.reader().read_all().equals(rows.to_arrow())
    assert rows.schema == table_named("records").schema


def test_no_batch_is_empty() -> None:
    rows = rawlog.open(BASIC).table("records", where="offset > 60")
    assert [batch.num_rows for batch in rows.batches()] == [9]
    assert list(rawlog.open(BASIC).table("records", where="offset > 600")) == []


def test_parts_can_be_sent_elsewhere() -> None:
    table, selection = table_named("replay.entries"), Selection(from_offset=10, columns=("number", "value"))
    parts = plan(open_tree(BASIC), table, selection, split_size=500)
    assert len(parts) > 3
    assert sum(part.size for part in parts) == BASIC.stat().st_size
    sent: list[Part] = pickle.loads(pickle.dumps(parts))
    assert sent == parts
    again: Selection = pickle.loads(pickle.dumps(selection))
    rows = [row for part in sent for batch in read(part, table, again) for row in batch.to_pylist()]
    assert [row["number"] for row in rows] == list(range(10, 70))
    assert list(rows[0]) == ["number", "value"]


@shared
@given(strategies.recordings(version=2, max_entries=12), st.integers(1, 400), st.integers(-3, 15), st.integers(-3, 15))
def test_parts_give_the_rows_of_the_whole_for_any_selection(
    tmp_path: Path, recording: strategies.Recording, split_size: int, low: int, high: int
) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(recording.data)
    stream = rawlog.open(path).table(
        "replay.entries", from_offset=low, to_offset=high, columns=["number", "position", "value"]
    )
    parts = stream.parts(split_size)
    pieces = [
        row for part in parts for batch in read(part, stream.table, stream.selection) for row in batch.to_pylist()
    ]
    assert pieces == stream.to_arrow().to_pylist()
    assert [row["number"] for row in pieces] == [n for n in range(len(recording.entries)) if low <= n < high]


def test_the_tables_of_files_and_findings_are_rows_too(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(BASIC.read_bytes())
    (tmp_path / "b.log").write_bytes(BASIC.read_bytes()[:-1])
    (tmp_path / "c.txt").write_text("?")
    log = rawlog.open(tmp_path)
    files = plain(log.table("files", columns=["path", "state", "records"]).to_arrow())
    assert [(Path(row["path"]).name, row["state"], row["records"]) for row in files] == [
        ("a.log", "ok", 70), ("b.log", "truncated", 69), ("c.txt", "unknown", None),
    ]  # fmt: skip
    assert log.table("files").count() == 3
    assert plain(log.table("files", where="state = 'ok'", columns=["size"]).to_arrow()) == [{"size": 5329}]
    findings = plain(log.table("findings", columns=["code", "severity"]).to_arrow())
    assert [row["code"] for row in findings] == ["replay.recording.unfinished", "rawlog.file.unknown"]
    assert plain(log.table("findings", where="severity = 'info'", limit=1, columns=["code"]).to_arrow()) == [
        {"code": "replay.recording.unfinished"}
    ]


def test_the_files_table_holds_the_facts_of_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(replay.encode(2, [(T + 5, None, b"a"), (T, b"k", b""), (T + 9, None, b"c")]))
    [row] = plain(rawlog.read(path, table="files"))
    modified = row.pop("modified")
    assert abs(modified - path.stat().st_mtime * 10**6) < 10
    assert row == {
        "path": str(path), "system": "replay", "format": "replay.recording", "size": 95, "topic": None, "partition": None,
        "start_offset": 0, "end_offset": 3, "min_timestamp": T * 10**6, "max_timestamp": (T + 9) * 10**6, "frames": 3,
        "records": 3, "valid_size": 95, "state": "ok",
    }  # fmt: skip


def noted(path: Path, **how: Any) -> tuple[int, list[str]]:
    notes: list[str] = []
    rows = rawlog.open(path).table("records", **how)
    rows.note = notes.append
    return rows.to_arrow().num_rows, notes


def test_what_is_left_out_is_noted() -> None:
    damaged = golden_path("replay", "damaged", "v2-len-minus1.log")
    with pytest.raises(CorruptError, match="invalid key size: -1 bytes"):
        noted(damaged)
    count, [note] = noted(damaged, errors="stop")
    assert (count, "damaged; nothing is read from there on" in note) == (4, True)
    count, [note] = noted(damaged, errors="skip")
    assert (count, "damaged bytes skipped" in note) == (9, True)
    assert noted(BASIC, errors="skip") == (70, [])


def test_rows_before_damage_come_before_the_error() -> None:
    rows = rawlog.open(golden_path("replay", "damaged", "v2-len-minus1.log")).table("records")
    seen = 0
    with pytest.raises(CorruptError):
        for batch in rows.batches():
            seen += batch.num_rows
    assert seen == 4


def test_counting_and_reading_agree_on_damage() -> None:
    for name in ("v2-len-minus1", "v2-hole", "v2-ff-24", "v1-len-plus1", "v0-hole"):
        path = golden_path("replay", "damaged", f"{name}.log")
        for errors in ("stop", "skip"):
            rows = rawlog.open(path).table("records", errors=errors)
            value_rows = rawlog.open(path).table("records", errors=errors, columns=["value"])
            assert rows.count() == value_rows.to_arrow().num_rows, (name, errors)
        with pytest.raises(CorruptError):
            rawlog.open(path).table("records").count()


def test_stopping_in_one_file_goes_on_with_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(golden_path("replay", "damaged", "v2-len-minus1.log").read_bytes())
    (tmp_path / "b.log").write_bytes(golden_path("replay", "damaged", "v0-bad-time.log").read_bytes())
    (tmp_path / "c.log").write_bytes(golden_path("replay", "v2", "find.log").read_bytes())
    assert noted(tmp_path, errors="stop")[0] == 4 + 4 + 2
    assert noted(tmp_path, errors="skip")[0] == 9 + 9 + 2
    assert rawlog.open(tmp_path).table("records", errors="stop").count() == 4 + 10 + 2


def test_a_table_object_serves_as_well_as_its_name() -> None:
    assert Rows(open_tree(BASIC), table_named("replay.entries")).count() == 70


# ------------------------------------------------------------------ Arrow streams


def test_polars_takes_rows_as_they_are() -> None:
    import polars

    rows = rawlog.open(BASIC).table("records")
    # Of a stream that is not pyarrow's own, Polars' from_arrow makes a series of structures.
    for frame in (polars.DataFrame(rows), polars.from_arrow(rows).struct.unnest(), polars.from_arrow(rows.reader())):
        assert isinstance(frame, polars.DataFrame)
        assert frame.height == 70
        assert frame.columns == list(rows.schema.names)
        assert frame["value"].to_list() == rows.to_arrow()["value"].to_pylist()
        assert frame["timestamp"].dtype == polars.Datetime("us", "UTC")


def test_duckdb_takes_rows_as_they_are() -> None:
    import duckdb

    rows = rawlog.open(BASIC).table("records", columns=["offset", "key", "value", "timestamp", "headers"])
    whole = rows.to_arrow()
    with duckdb.connect() as connection:
        for _ in range(2):  # a stream that is read again
            found = connection.sql(
                'select count(*), sum(octet_length(value)), max("offset"), count(key) from rows'
            ).fetchall()
            assert found == [
                (70, sum(len(v) for v in whole["value"].to_pylist()), 69, 70 - whole["key"].null_count),
            ]
        assert connection.from_arrow(rows.reader()).filter('"offset" >= 68').fetchall()[0][0] == 68


def test_pyarrow_takes_rows_as_they_are() -> None:
    rows = rawlog.open(BASIC).table("records")
    assert pa.RecordBatchReader.from_stream(rows).read_all().equals(rows.to_arrow())
    assert pa.table(rows).equals(rows.to_arrow())


def test_an_error_inside_a_stream_reaches_its_reader() -> None:
    rows = rawlog.open(golden_path("replay", "damaged", "v2-len-minus1.log")).table("records")
    with pytest.raises(Exception, match="invalid key size: -1 bytes"):
        pa.table(rows)


def test_an_empty_table_is_a_stream_of_its_schema(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_bytes(b"\0\0\0\2" + bytes(16))
    rows = rawlog.open(tmp_path).table("records")
    assert pa.table(rows).schema == rows.schema
    assert rows.count() == 0


# ------------------------------------------------------------------ damage that only a checksum or a codec shows


def segment(folder: Path, *pieces: bytes) -> Path:
    path = folder / "orders-0" / f"{0:020}.log"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"".join(pieces))
    return path


def batch(offset: int) -> bytes:
    record = kafka.encode_record(0, 0, b"k", b"v%d" % offset, [])
    return kafka.encode_batch(
        record, record_count=1, base_offset=offset, last_offset_delta=0, base_timestamp=T, max_timestamp=T
    )


@pytest.mark.parametrize(
    ("how", "stop", "skip"),
    [
        ({}, [0], [0, 2, 3]),
        ({"from_offset": 0}, [0], [0, 2, 3]),
        ({"from_offset": 2}, [], [2, 3]),
        ({"since": 0}, [0], [0, 2, 3]),
        ({"last": 2}, [0], [2, 3]),
        ({"where": "offset > 0"}, [], [2, 3]),
        ({"limit": 2}, [0], [0, 2]),
    ],
)
def test_a_wrong_checksum_stops_or_is_skipped_however_rows_are_chosen(
    tmp_path: Path, how: dict[str, Any], stop: list[int], skip: list[int]
) -> None:
    """`last` looked for the end of the log first, and raised there whatever `errors` said."""
    wrong = bytearray(batch(1))
    wrong[-1] ^= 1
    path = segment(tmp_path, batch(0), bytes(wrong), batch(2), batch(3))
    for errors, expected in (("stop", stop), ("skip", skip)):
        rows = rawlog.open(path).table("records", errors=errors, **how)
        assert rows.to_arrow()["offset"].to_pylist() == expected
        assert rows.count() == len(expected)
    with pytest.raises(CorruptError, match=re.escape(f"{path}: byte ")):
        rawlog.read(path, **{**how, "limit": None})


def test_counting_ends_at_a_wrapper_that_cannot_be_opened(tmp_path: Path) -> None:
    """Counting let the private exception out that ends reading, and took a record off for each wrapper before it."""
    plain_entry = kafka.encode_entry(1, 0, None, b"x", T, 0)
    whole = kafka.encode_entry(1, 3, None, gzip.compress(plain_entry, mtime=0), T, 1)
    wrong = kafka.encode_entry(1, 5, None, b"not gzip at all", T, 1)
    path = segment(tmp_path, plain_entry, whole, wrong, kafka.encode_entry(1, 6, None, b"y", T, 0))
    for errors in ("stop", "skip"):
        rows = rawlog.open(path).table("records", errors=errors)
        assert rows.count() == rows.to_arrow().num_rows == (2 if errors == "stop" else 3)
    with pytest.raises(CorruptError):
        rawlog.open(path).table("records").count()


def test_counting_asks_rows_where_files_do_not_tell_their_topic() -> None:
    """A RocketMQ commit log holds all topics: counting one of them by the frames alone once gave the number of all messages."""
    store = rawlog.open(golden_path().parent.parent / "samples" / "rocketmq" / "store")
    for selection in ({"topic": "T2"}, {"partition": 1}, {"topic_pattern": "T."}, {"topic": "none*"}):
        assert store.table(**selection).count() == store.table(**selection).to_arrow().num_rows, selection
