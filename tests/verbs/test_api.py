"""The Python face, as the interface page shows it."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.lakes.targets import batches_of
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    DataError,
    EncodeError,
    OptionError,
    RawlogError,
    TruncatedError,
    UnknownFormatError,
    UnsupportedError,
)
from rawlog.model.finding import Findings
from rawlog.model.report import Action
from rawlog.reading.rows import Rows, dict_rows
from tests.data.golden import golden_path

BASIC = golden_path("replay", "v2", "basic.log")
RECORDS = pa.table(
    {"key": [b"k", None], "value": [b"a", b""], "timestamp": pa.array([0, 10**6], pa.timestamp("us", "UTC"))}
)


def test_the_public_face_is_this() -> None:
    assert rawlog.__all__ == sorted(rawlog.__all__)
    assert {name for name in dir(rawlog) if not name.startswith("_")} >= {
        "open",
        "read",
        "rows",
        "follow",
        "write",
        "errors",
    }
    with pytest.raises(AttributeError, match="no attribute 'opne'"):
        _ = rawlog.opne  # type: ignore[attr-defined]


def test_importing_rawlog_costs_nothing() -> None:
    code = (
        "import sys, rawlog; rawlog.__version__\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark', 'click', 'pytest', 'hypothesis', 'sqlglot'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import rawlog.registry; rawlog.registry.formats(); rawlog.registry.tables()\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import rawlog.verbs.cat\n"
        "assert not {'pytest', 'hypothesis'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_open_shows_what_is_there() -> None:
    log = rawlog.open(str(BASIC.parent))
    assert len(log) == len(log.files) == 8 + 15
    assert "records" in log.tables
    assert "replay.entries" in log.tables
    rows = log.table("records")
    assert isinstance(rows, Rows)
    assert rows.to_arrow().num_rows == 70 + 6 + 28 + 16 + 17 + 13 + 40 + 2


def test_read_gives_a_table_of_the_chosen_columns() -> None:
    found = rawlog.read(BASIC, table="replay.entries", columns=["number", "size"], since="2020-01-01", limit=3)
    assert isinstance(found, pa.Table)
    assert found.schema.names == ["number", "size"]
    assert found.num_rows == 3
    assert rawlog.read([BASIC, str(golden_path("replay", "v2", "find.log"))]).num_rows == 72


def test_verify_gives_findings() -> None:
    findings = rawlog.verify(golden_path("replay", "damaged", "v2-len-minus1.log"))
    assert isinstance(findings, Findings)
    assert findings.verdict == "damaged"
    assert [finding.code for finding in findings] == ["replay.recording.framing"]
    assert findings.to_arrow().num_rows == len(findings) == 1
    assert findings.summary() == {"verdict": "damaged", "files": 1, "frames": 9, "errors": 1, "warnings": 0}
    with pytest.raises(OptionError, match="unknown rule"):
        rawlog.verify(BASIC, rule=["replay.recording.nonsense"])
    with pytest.raises(AccessError):
        rawlog.verify("/no/such/path")


def test_write_takes_anything_that_arrow_takes(tmp_path: Path) -> None:
    import duckdb
    import polars

    frame = polars.from_arrow(RECORDS)
    with duckdb.connect() as connection:
        for number, records in enumerate(
            [
                RECORDS,
                RECORDS.to_batches()[0],
                RECORDS.to_reader(),
                frame,
                connection.from_arrow(RECORDS),
                rawlog.open(_written(tmp_path)).table("records"),
            ]
        ):
            path = tmp_path / str(number)
            assert rawlog.write(path, records, format="replay.recording") == 2
            assert path.read_bytes() == _written(tmp_path).read_bytes()


def _written(folder: Path) -> Path:
    path = folder / "plain.log"
    if not path.exists():
        rawlog.write(path, RECORDS, format="replay")
    return path


def test_write_makes_directories_and_replaces_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c.log"
    rawlog.write(path, RECORDS, format="replay")
    before = path.read_bytes()
    with pytest.raises(AccessError, match="exists already"):
        rawlog.write(path, RECORDS.slice(1), format="replay")
    assert path.read_bytes() == before
    assert rawlog.write(path, RECORDS.slice(1), format="replay", overwrite=True) == 1
    assert path.read_bytes() != before
    assert [p.name for p in path.parent.iterdir()] == ["c.log"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = _written(tmp_path)
    before = path.read_bytes()

    def batches() -> object:
        yield RECORDS.to_batches()[0]
        raise KeyError("the source broke")

    with pytest.raises(Exception, match="the source broke"):
        stream = pa.RecordBatchReader.from_batches(RECORDS.schema, batches())
        rawlog.write(path, stream, format="replay", overwrite=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["plain.log"]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (pa.table({"value": [1.5]}), "column value"),
        (pa.table({"timestamp": ["yesterday"], "value": [b""]}), "column timestamp"),
        (pa.table({"partition": [1 << 40], "value": [b""]}), "column partition"),
        (pa.table({"headers": [["x"]], "value": [b""]}), "column headers"),
        (pa.table({"valeu": [b""], "color": [1]}), "no column of records: color, valeu"),
        (pa.table([[b"a"], [b"b"]], names=["value", "value"]), "value"),
    ],
)
def test_rows_of_another_shape_are_refused(tmp_path: Path, records: pa.Table, words: str) -> None:
    with pytest.raises(EncodeError, match=words):
        rawlog.write(tmp_path / "x", records, format="replay")
    assert not list(tmp_path.iterdir())


def test_what_arrow_does_not_take_is_refused(tmp_path: Path) -> None:
    for records in (None, 5, "text", b"bytes", {"value": b"x"}, [5], [{"value": b"x"}, None], object()):
        with pytest.raises(EncodeError):
            rawlog.write(tmp_path / "x", records, format="replay")
    assert not list(tmp_path.iterdir())


def test_write_takes_dicts_in_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rawlog.write` refused rows; people had to build an Arrow table of all of them first."""
    monkeypatch.setattr("rawlog.lakes.targets.BATCH_ROWS", 10)
    taken: list[int] = []

    def rows() -> Iterator[dict[str, Any]]:
        for number in range(35):
            taken.append(number)
            yield {"key": f"k{number}", "value": b"v%d" % number, "timestamp": datetime(2024, 1, 1, tzinfo=UTC)}

    batches = batches_of(rows())
    assert next(batches).num_rows == len(taken) == 10
    assert sum(batch.num_rows for batch in batches) == 25
    assert rawlog.write(tmp_path / "x.log", rows(), format="replay") == 35
    assert [row["value"] for row in rawlog.rows(tmp_path / "x.log")] == [b"v%d" % number for number in range(35)]
    mixed = [{"value": b"dict", "timestamp": 0}, RECORDS.to_batches()[0], {"value": b"last", "timestamp": 0}]
    assert rawlog.write(tmp_path / "y.log", mixed, format="replay") == 4
    assert [row["value"] for row in rawlog.rows(tmp_path / "y.log")] == [b"dict", b"a", b"", b"last"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"valeu": b""}, "no column of records: valeu"),
        ({"value": 1.5}, "column value"),
        ({"value": b"", "partition": 1 << 40}, "column partition"),
        ({"value": b"", "timestamp": "yesterday"}, "column timestamp"),
    ],
)
def test_dicts_of_another_shape_are_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    with pytest.raises(EncodeError, match=words):
        rawlog.write(tmp_path / "x", [row], format="replay")
    assert not list(tmp_path.iterdir())


def test_rows_read_in_one_system_are_written_in_another(tmp_path: Path) -> None:
    rows = rawlog.rows(BASIC, limit=5, columns=["key", "value", "timestamp"])
    assert rawlog.write(tmp_path / "log", rows, format="kafka", topic="orders", partition=3) == 5
    found = list(rawlog.rows(tmp_path / "log"))
    assert [(row["topic"], row["partition"], row["offset"]) for row in found] == [("orders", 3, at) for at in range(5)]
    assert [row["value"] for row in found] == [row["value"] for row in rows]


def test_rows_are_dicts_with_the_values_of_the_table() -> None:
    rows = rawlog.rows(BASIC, limit=20)
    assert list(rows) == rawlog.read(BASIC, limit=20).to_pylist()
    assert list(rows) == list(rows), "it can be read again"
    assert sum(batch.num_rows for batch in rows.batches()) == 20
    assert list(rawlog.head(BASIC, lines=2)) == list(rows)[:2]
    assert list(rawlog.tail(BASIC, lines=2)) == rawlog.read(BASIC).to_pylist()[-2:]
    assert rawlog.count(BASIC) == 70
    assert rawlog.tail(BASIC, lines=3).count() == 3


def test_rows_are_counted_while_an_iterator_waits() -> None:
    """`list` asks for the length after `iter`, and must not read twice for it; anybody else who did got a TypeError."""
    rows = rawlog.rows(BASIC, limit=20)
    waiting = iter(rows)
    assert len(rows) == 20
    assert len(list(waiting)) == 20
    for number, _ in enumerate(rows):
        assert number or len(rows) == 20
    counted: list[int] = []
    rows.count = lambda: counted.append(1) or 20  # type: ignore[method-assign, func-returns-value]
    assert (len(list(rows)), len(tuple(rows)), len([*rows]), len(sorted(rows, key=str))) == (20, 20, 20, 20)
    assert not counted


def test_a_time_that_the_calendar_does_not_have_is_a_number() -> None:
    """A record of the year 292,277 raised OverflowError from a row that was sound."""
    far = (1 << 63) - 1
    batch = pa.record_batch({"timestamp": pa.array([0, None, far], pa.timestamp("us", "UTC"))})
    times = [row["timestamp"] for row in dict_rows(batch)]
    assert times == [datetime(1970, 1, 1, tzinfo=UTC), None, far]


def test_files_that_cannot_be_read_are_noted_or_raise(tmp_path: Path) -> None:
    shutil.copy(BASIC, tmp_path / "a.log")
    (tmp_path / "b.bin").write_bytes(b"nothing known")
    notes: list[str] = []
    paths = [tmp_path / "a.log", tmp_path / "b.bin"]
    assert sum(1 for _ in rawlog.rows(paths, note=notes.append)) == 70
    assert [str(note).rpartition(": ")[2] for note in notes] == ["not a file of any known format"]
    for note in (notes.append, None):
        with pytest.raises(UnknownFormatError, match="not a file of any known format"):
            rawlog.rows(tmp_path / "b.bin", note=note)
    paths = [tmp_path / "a.log", tmp_path / "c.log"]
    assert sum(1 for _ in rawlog.rows(paths, note=notes.append)) == 70
    assert [str(note).rpartition(": ")[2] for note in notes][1:] == ["no such file or directory"]
    with pytest.raises(AccessError, match="no such file"):
        rawlog.rows(paths)


NASTY = "<script>alert(1)</script>\x1b[31m"


def test_what_users_hold_has_a_short_repr_and_escaped_html(tmp_path: Path) -> None:
    """Names and values come from files: in a notebook they must not become markup."""
    rows = [{"key": NASTY, "value": NASTY, "timestamp": 0}] * 30
    folder = tmp_path / NASTY.replace("/", "_")
    rawlog.write(folder / "a.log", rows, format="replay")
    damaged = golden_path("replay", "damaged", "v2-len-minus1.log")
    shutil.copy(damaged, folder / "b.log")
    held: list[Any] = [
        rawlog.open(folder),
        rawlog.rows(folder / "a.log"),
        rawlog.rows(folder / "b.log"),
        rawlog.verify(folder),
        rawlog.diff(folder / "a.log", folder / "b.log", errors="skip"),
        rawlog.ls(folder),
        rawlog.explain(folder / "a.log"),
        rawlog.repair(folder, tmp_path / "out", dry_run=True),
        rawlog.convert(folder / "a.log", tmp_path / "x.parquet", to="parquet"),
        rawlog.query("SELECT * FROM records", folder / "a.log", engine="duckdb"),
    ]
    for one in held:
        assert repr(one).startswith("<rawlog."), one
        assert len(repr(one)) < 400 + len(str(folder)) * 2, one
        html = one._repr_html_()
        assert "<script" not in html, one
        assert "\x1b" not in html, one
        assert "&lt;script" in html or "script" not in html, one  # a long path is cut
    assert held[1]._repr_html_().count("<tr>") == 21, "the first rows only"
    assert "invalid key size" in held[2]._repr_html_(), "damage is shown, and does not raise"
    assert '<span class="bad">error</span>' in held[3]._repr_html_()
    empty = rawlog.query("SELECT NULL AS nothing, '' AS empty, 1234567 AS many", folder / "a.log", engine="duckdb")
    assert '<td><span class="null">null</span></td><td></td><td class="n">1,234,567</td>' in empty._repr_html_()


# Following ----------------------------------------------------------------------------------------------------------------


def grow(path: Path, *values: bytes) -> None:
    """Append entries to a recording."""
    with path.open("ab") as file:
        for value in values:
            file.write(struct.pack(">qqq", 1706868930, 0, len(value)) + value)


def test_follow_gives_what_is_added_and_can_be_continued(tmp_path: Path) -> None:
    path = tmp_path / "r.log"
    rawlog.write(path, [{"value": b"zero", "timestamp": 0}, {"value": b"one", "timestamp": 0}], format="replay")
    new = rawlog.follow(tmp_path, lines=1)
    assert [row["value"] for batch in new.first for row in dict_rows(batch)] == [b"one"]
    assert list(new.poll()) == []
    grow(path, b"two")
    assert [row["value"] for batch in new.poll() for row in dict_rows(batch)] == [b"two"]
    position = json.loads(json.dumps(new.position))
    grow(path, b"three", b"four")
    again = rawlog.follow(tmp_path, position=position)
    assert [row["value"] for batch in again.poll() for row in dict_rows(batch)] == [b"three", b"four"]
    assert again.position != position
    assert [row["value"] for row in rawlog.follow(tmp_path, lines=None, limit=3)] == [b"zero", b"one", b"two"]


def test_follow_waits_until_it_is_stopped(tmp_path: Path) -> None:
    path, stop = tmp_path / "r.log", threading.Event()
    rawlog.write(path, [{"value": b"zero", "timestamp": 0}], format="replay")
    found = []
    for row in rawlog.follow(tmp_path, lines=1, stop=stop, every=0.01):
        found.append(row["value"])
        if len(found) == 3:
            stop.set()
        else:
            grow(path, b"%d" % len(found))
    assert found == [b"zero", b"1", b"2"]


def test_what_cannot_be_followed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="cannot be followed"):
        rawlog.follow(tmp_path, table="kraft.topics")
    with pytest.raises(OptionError, match="read_committed"):
        rawlog.follow(tmp_path, isolation="read_committed")


# Reports ------------------------------------------------------------------------------------------------------------------


def test_verbs_that_write_give_a_report(tmp_path: Path) -> None:
    source = golden_path("kafka", "broker-4.3.0", "data", "compacted-0")
    made = rawlog.convert(source, tmp_path / "rows.parquet", to="parquet")
    assert (made.verb, made.counts["rows"], made.is_whole) == ("convert", rawlog.count(source), True)
    for verb in (rawlog.repair, rawlog.rebuild, rawlog.compact):
        done = verb(source, tmp_path / verb.__name__)
        assert (done.verb, done.target) == (verb.__name__, str(tmp_path / verb.__name__))
    erased = rawlog.erase(source, tmp_path / "erased", key="ck-21")
    assert (erased.verb, erased.is_whole) == ("erase", True)
    assert erased.counts["dropped"] == rawlog.count(source, key="ck-21") > 0
    lake = rawlog.ingest(source, tmp_path / "lake", engine="local")
    assert (lake.counts["errors"], lake.facts["tables"]["rawlog.records"]) == (0, rawlog.count(source))
    assert rawlog.lake(tmp_path / "lake").parts["rawlog.records"].counts["rows"] == rawlog.count(source)


def test_progress_is_called(tmp_path: Path) -> None:
    seen: list[Any] = []
    rawlog.verify(BASIC.parent, progress=seen.append)
    assert seen[-1].size == seen[-1].total_size > 0


def test_accepted_losses_are_entries_that_were_expected(tmp_path: Path) -> None:
    source = golden_path("kafka", "broker-4.3.0", "data", "compacted-0")
    with pytest.raises(EncodeError) as caught:
        rawlog.convert(source, tmp_path / "x", to="replay")
    dry = rawlog.convert(source, tmp_path / "x", to="replay", dry_run=True)
    assert not dry.is_whole
    assert dry.with_action(Action.LOST)
    done = rawlog.convert(source, tmp_path / "x", to="replay", accept_loss=caught.value.names)  # type: ignore[attr-defined]
    assert done.is_whole
    assert [one.is_expected for one in done.with_action(Action.LOST)] == [True] * len(done.facts["lost"])


def test_columns_of_kindred_types_are_taken(tmp_path: Path) -> None:
    records = pa.table(
        {
            "value": pa.array(["text"], pa.large_string()),
            "key": pa.array([b"k"], pa.large_binary()),
            "timestamp": pa.array([1000], pa.timestamp("ms", "UTC")),
            "offset": pa.array([0], pa.int32()),
            "topic": pa.array([None], pa.null()),
            "headers": pa.array(
                [[]], pa.large_list(pa.struct([("key", pa.large_string()), ("value", pa.large_binary())]))
            ),
        }
    )
    rawlog.write(tmp_path / "x", records, format="replay")
    assert rawlog.read(tmp_path / "x", columns=["value", "key", "timestamp"]).to_pylist()[0]["value"] == b"text"


def test_unknown_names_are_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownFormatError, match=r"replay\.recording"):
        rawlog.write(tmp_path / "x", RECORDS, format="replay.recordin")
    with pytest.raises(OptionError, match="unknown column of records 'keys'; did you mean key"):
        rawlog.write(tmp_path / "x", RECORDS, format="replay", accept_loss=["keys"])
    with pytest.raises(OptionError, match=r"kafka\.index cannot be written yet; these can: .*replay\.recording"):
        rawlog.write(tmp_path / "x", RECORDS, format="kafka.index")
    with pytest.raises(OptionError, match="did you mean records"):
        rawlog.read(BASIC, table="record")
    assert not list(tmp_path.iterdir())


def test_the_error_tree_can_be_caught_by_kind() -> None:
    for kind in (DataError, UnknownFormatError, EncodeError, OptionError, AccessError):
        assert issubclass(kind, RawlogError)
    for kind in (TruncatedError, CorruptError, UnsupportedError):
        assert issubclass(kind, DataError)
    for kind in (UnknownFormatError, EncodeError, OptionError):
        assert issubclass(kind, ValueError)
    assert issubclass(AccessError, OSError)


def test_errors_survive_being_sent_elsewhere() -> None:
    import pickle

    with pytest.raises(CorruptError) as caught:
        rawlog.read(golden_path("replay", "damaged", "v2-len-minus1.log"))
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert (again.position, again.path, again.field, again.found) == (
        caught.value.position, caught.value.path, "key_size", -1,
    )  # fmt: skip
    for error in (OptionError("a"), AccessError("b"), EncodeError("c"), UnknownFormatError("d")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


def test_a_message_says_what_and_where_and_shows_the_bytes() -> None:
    path = golden_path("replay", "damaged", "v2-len-minus1.log")
    with pytest.raises(CorruptError) as caught:
        rawlog.read(path)
    first, *lines = str(caught.value).splitlines()
    assert first == f"replay.recording: {path}: byte 237: invalid key size: -1 bytes; 0 to 104,857,600 expected"
    assert any("ff ff ff ff ff ff ff ff" in line for line in lines)
