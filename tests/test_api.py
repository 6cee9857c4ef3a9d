"""The Python face, as the interface page shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import rawlog
from rawlog.core.errors import (
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
from rawlog.core.findings import Findings
from rawlog.reading.rows import Rows
from tests.golden_data import golden_path

BASIC = golden_path("replay", "v2", "basic.log")
RECORDS = pa.table(
    {"key": [b"k", None], "value": [b"a", b""], "timestamp": pa.array([0, 10**6], pa.timestamp("us", "UTC"))}
)


def test_the_public_face_is_this() -> None:
    assert rawlog.__all__ == sorted(rawlog.__all__) == ["__version__", "open", "read", "verify", "write"]
    assert {name for name in dir(rawlog) if not name.startswith("_")} >= {"open", "read", "verify", "write", "errors"}
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
        "import rawlog.api\n"
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
    for records in (None, 5, "text", [{"value": b"x"}], object()):
        with pytest.raises(EncodeError):
            rawlog.write(tmp_path / "x", records, format="replay")
    assert not list(tmp_path.iterdir())


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
