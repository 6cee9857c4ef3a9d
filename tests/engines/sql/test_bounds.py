"""Which rows a statement can need, by its text: never fewer than it does need, and little is read for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rawlog
from rawlog.engines.sql import Bounds, Files, Source, bounds_of, views
from rawlog.io.storage import Source as Opened
from rawlog.model.table import RECORDS
from rawlog.reading.select import Selection

SAMPLES = Path(__file__).parents[3] / "samples"
TABLES = {"records": RECORDS, "other": RECORDS}
DAY = 86_400_000_000


def read(sql: str, dialect: str = "spark", **given: Any) -> Bounds:
    return bounds_of(sql, TABLES, dialect, **given).get("records", Bounds())


def only(**given: Any) -> Bounds:
    return Bounds(**{name: frozenset(one) if isinstance(one, set) else one for name, one in given.items()})


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("topic = 'orders'", only(topics={"orders"})),
        ("'orders' = topic", only(topics={"orders"})),
        ("topic IN ('a', 'b') AND partition = 3", only(topics={"a", "b"}, partitions={3})),
        ("offset >= 5 AND offset < 9", only(from_offset=5, to_offset=9)),
        ("offset BETWEEN 5 AND 8", only(from_offset=5, to_offset=9)),
        ("5 < offset", only(from_offset=6)),
        ("offset = -1", only(from_offset=-1, to_offset=0)),
        ("(offset = 7)", only(from_offset=7, to_offset=8)),
        ("offset IN (3, 9)", only(from_offset=3, to_offset=10, is_exact=False)),
        ("offset > 3 OR offset > 5", only(from_offset=4, is_exact=False)),
        ("offset > 3 OR topic = 'a'", Bounds()),
        ("topic = 'a' OR topic = 'b'", only(topics={"a", "b"}, is_exact=False)),
        ("topic = 'a' AND upper(topic) = 'A'", only(topics={"a"}, is_exact=False)),
        ("topic = 'a' AND topic = 'b'", only(topics={"a"}, is_exact=False)),
        ("NOT topic = 'a'", Bounds()),
        ("topic LIKE 'a%'", Bounds()),
        ("offset + 1 > 5", Bounds()),
        ("offset > 5.5", Bounds()),
        ("offset NOT IN (1, 2)", Bounds()),
        ("offset IN (SELECT 1)", Bounds()),
        ("timestamp >= '1970-01-02'", only(since=DAY)),
        ("timestamp < TIMESTAMP '1970-01-02 00:00:01'", only(until=DAY + 1_000_000)),
        ("timestamp <= '1970-01-02T02:00:00+02:00'", only(until=DAY + 1)),
        ("timestamp >= DATE '1970-01-02'", only(since=DAY)),
        ("timestamp >= CAST('1970-01-02 10:00' AS DATE)", Bounds()),
        ("timestamp > 'yesterday'", Bounds()),
        ("key = X'6b31'", only(keys={b"k1"})),
        ("key = 'k1'", only(keys={b"k1"})),
        ("CAST(key AS STRING) = 'k1'", only(keys={b"k1"})),
        ("decode(key, 'utf-8') IN ('k1', 'k2')", only(keys={b"k1", b"k2"})),
        ("key = 'käse'", Bounds()),
        ("CAST(value AS STRING) = 'k1'", Bounds()),
    ],
)
def test_what_a_condition_says(where: str, expected: Bounds) -> None:
    assert read(f"SELECT offset FROM records WHERE {where}") == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1 FROM records r WHERE r.offset > 5", only(from_offset=6)),
        ("SELECT 1 FROM records r WHERE records.offset > 5", Bounds()),
        ("SELECT 1 FROM records r JOIN other o ON r.key = o.key WHERE r.offset > 5", only(from_offset=6)),
        ("SELECT 1 FROM other o LEFT JOIN records r ON r.key = o.key WHERE r.offset > 5", only(from_offset=6)),
        ("SELECT 1 FROM records r JOIN other o USING (offset) WHERE offset > 5", Bounds()),
        ("SELECT 1 FROM records r JOIN other o ON r.key = o.key AND r.offset > 5", Bounds()),
        ("WITH a AS (SELECT * FROM records WHERE offset > 5) SELECT count(*) FROM a", only(from_offset=6)),
        ("SELECT 1 FROM (SELECT * FROM records) WHERE offset > 5", Bounds()),
        (
            "SELECT 1 FROM records WHERE offset > 5 UNION SELECT 1 FROM records WHERE offset > 3",
            only(from_offset=4, is_exact=False),
        ),
        ("SELECT 1 FROM records WHERE offset > 5 UNION SELECT 1 FROM records", Bounds()),
        ("SELECT (SELECT max(offset) FROM records) FROM records WHERE offset > 5", Bounds()),
        ("SELECT 1 FROM other WHERE EXISTS (SELECT 1 FROM records WHERE other.offset > 5)", Bounds()),
        ("SELECT offset + 1 AS offset FROM records WHERE offset > 5", Bounds()),
        ("SELECT 1 FROM records TABLESAMPLE (10 PERCENT) WHERE offset > 5", Bounds()),
        ("SELECT 1 FROM files WHERE offset > 5", Bounds()),
        ("DESCRIBE records", Bounds()),
        ("SELECT what is this", Bounds()),
    ],
)
def test_where_a_condition_counts(sql: str, expected: Bounds) -> None:
    assert read(sql) == expected


def test_a_join_by_order_has_no_bounds() -> None:
    """The row that is nearest depends on rows that the WHERE drops."""
    sql = "SELECT 1 FROM other ASOF JOIN records r ON other.timestamp >= r.timestamp WHERE r.offset > 5"
    assert read(sql, "duckdb") == Bounds()


def test_times_without_a_zone_need_a_session_in_utc() -> None:
    assert read("SELECT 1 FROM records WHERE timestamp > '1970-01-02'", utc=False) == Bounds()
    assert read("SELECT 1 FROM records WHERE timestamp >= '1970-01-02T00:00:00Z'", utc=False) == only(since=DAY)


def test_a_recent_time_is_a_bound() -> None:
    for sql in ("now() - INTERVAL 1 DAY", "current_timestamp() - INTERVAL '2 hours'"):
        found = read(f"SELECT 1 FROM records WHERE timestamp > {sql}")
        assert found.since is not None
        assert not found.is_exact
    assert not read("SELECT 1 FROM records WHERE timestamp < now() - INTERVAL 1 DAY")


@pytest.mark.parametrize(
    ("sql", "limit"),
    [
        ("SELECT * FROM records LIMIT 5", 5),
        ("SELECT offset AS o, key FROM records LIMIT 5 OFFSET 2", 7),
        ("SELECT * FROM records WHERE offset > 3 LIMIT 5", 5),
        ("SELECT * FROM records WHERE length(key) > 3 LIMIT 5", None),
        ("SELECT * FROM records WHERE offset IN (3, 9) LIMIT 5", None),
        ("SELECT * FROM records ORDER BY offset LIMIT 5", None),
        ("SELECT DISTINCT topic FROM records LIMIT 5", None),
        ("SELECT count(*) FROM records LIMIT 5", None),
        ("SELECT any_function(key) FROM records LIMIT 5", None),
        ("SELECT explode(headers) FROM records LIMIT 5", None),
        ("SELECT topic FROM records GROUP BY topic LIMIT 5", None),
        ("SELECT offset FROM records UNION ALL SELECT offset FROM records LIMIT 5", None),
        ("SELECT * FROM records, other LIMIT 5", None),
        ("SELECT * FROM (SELECT * FROM records) LIMIT 5", None),
        ("SELECT * FROM records LIMIT 99999999", None),
    ],
)
def test_a_limit_is_a_bound_where_every_row_counts(sql: str, limit: int | None) -> None:
    assert read(sql).limit == limit


def all_files() -> Iterator[Files]:
    for name in ("kafka", "rocketmq", "replay", "ambry"):
        for view in views(Source(None, (str(SAMPLES / name),)), Selection(errors="skip")):
            if isinstance(view.rows, Files) and (view.table.offsets or view.table.times):
                yield view.rows


def test_rows_within_bounds_are_those_that_a_filter_keeps() -> None:
    """Of every table of every system: reading with a bound gives the rows that reading everything gives for that condition."""
    seen = set()
    for files in all_files():
        table = files.table
        rows = [row for batch in files.batches() for row in batch.to_pylist()]
        for pair, names in ((table.offsets, ("from_offset", "to_offset")), (table.times, ("since", "until"))):
            known = sorted({row[pair[0]] for row in rows if row[pair[0]] is not None}) if pair else []
            if pair is None or len(known) < 3 or pair[0] != pair[1]:
                continue
            low, high = known[len(known) // 3], known[-1 - len(known) // 3]
            sql = f"SELECT 1 FROM t WHERE {pair[0]} >= {literal(low)} AND {pair[0]} < {literal(high)}"
            bounds = bounds_of(sql, {"t": table}, "spark").get("t", Bounds())
            if not bounds:  # a state
                continue
            assert bounds.is_exact
            got = [row for batch in files.batches(None, bounds) for row in batch.to_pylist()]
            assert got == [row for row in rows if row[pair[0]] is not None and low <= row[pair[0]] < high], table.name
            seen.add((table.name, names[0]))
    assert {("records", "from_offset"), ("records", "since"), ("kafka.records", "since")} <= seen


def literal(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"'{value.isoformat()}'"


# What is read ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of about 2 MB each, in segments of 256 KB."""
    tmp_path = tmp_path_factory.mktemp("bounds")
    for topic in ("orders", "others"):
        given = [
            {
                "key": b"key %d" % number,
                "value": b"%06d" % number * 60,
                "offset": number,
                "timestamp": number * 1_000_000,
            }
            for number in range(5000)
        ]
        options = {"partition": 0, "batch_records": 50, "segment_bytes": 1 << 18}
        rawlog.write(
            tmp_path / "logs", pa.Table.from_pylist(given, schema=schema()), format="kafka", topic=topic, **options
        )
    return tmp_path / "logs"


def schema() -> pa.Schema:
    return pa.schema([RECORDS.schema.field(name) for name in ("key", "value", "offset", "timestamp")])


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    sizes: list[int] = []
    plain = Opened.read_into

    def counting(self: Opened, position: int, target: memoryview) -> int:
        got = plain(self, position, target)
        sizes.append(got)
        return got

    monkeypatch.setattr(Opened, "read_into", counting)
    return sizes


def size_of(logs: Path) -> int:
    return sum(path.stat().st_size for path in logs.rglob("*.log"))


@pytest.mark.parametrize(
    ("sql", "rows", "share"),
    [
        ("SELECT value FROM records WHERE topic = 'orders'", 5000, 0.55),
        ("SELECT value FROM records WHERE topic = 'orders' AND offset BETWEEN 2000 AND 2009", 10, 0.1),
        ("SELECT value FROM records WHERE topic = 'orders' AND offset >= 4990", 10, 0.1),
        ("SELECT value FROM records WHERE topic = 'orders' AND timestamp >= '1970-01-01 01:20:00'", 200, 0.1),
        ("SELECT value FROM records WHERE topic = 'orders' AND partition = 7", 0, 0.01),
        ("SELECT topic, value FROM records LIMIT 10", 10, 0.15),
    ],
)
def test_little_is_read(sql: str, rows: int, share: float, logs: Path, bytes_read: list[int]) -> None:
    with rawlog.query(sql, logs, engine="duckdb") as answer:
        bytes_read.clear()
        assert answer.to_arrow().num_rows == rows
    assert sum(bytes_read) < share * size_of(logs)


def test_only_rows_with_the_key_are_handed_over(logs: Path) -> None:
    [view] = [one for one in views(Source(None, (str(logs),))) if one.table is RECORDS]
    assert isinstance(view.rows, Files)
    bounds = bounds_of("SELECT 1 FROM records WHERE key = 'key 7'", {"records": RECORDS}, "duckdb")["records"]
    assert sum(batch.num_rows for batch in view.rows.batches(["offset"], bounds)) == 2


def test_a_count_is_taken_from_headers(logs: Path, bytes_read: list[int]) -> None:
    """Not even payloads are read: the headers of batches tell how many records there are, and where the next one begins."""
    for sql in (
        "SELECT count(*) AS n FROM records",
        "SELECT sum(n) AS n FROM (SELECT topic, partition, count(*) AS n FROM records GROUP BY ALL)",
    ):
        bytes_read.clear()
        with rawlog.query(sql, logs, engine="duckdb") as answer:
            assert answer.to_arrow().to_pylist() == [{"n": 10_000}]
        assert sum(bytes_read) < 0.4 * size_of(logs)


def test_data_files_of_a_lake_are_chosen(logs: Path, tmp_path: Path) -> None:
    for topic in ("orders", "others"):
        rawlog.ingest(logs / f"{topic}-0", tmp_path / "lake", engine="local")
    found = {view.table.name: view.rows for view in views(Source(None, (str(tmp_path / "lake"),)))}
    for name in ("records", "kafka.records"):
        rows: Any = found[name]
        bounds = bounds_of("SELECT 1 FROM t WHERE topic = 'orders'", {"t": rows.table}, "spark")["t"]
        assert 0 < len(rows.files(bounds)) < len(rows.files())
        late = bounds_of(
            "SELECT 1 FROM t WHERE timestamp > '2030-01-01' OR offset > 5000", {"t": rows.table}, "spark"
        ).get("t", Bounds())
        assert len(rows.files(late)) == len(rows.files())
        gone = bounds_of("SELECT 1 FROM t WHERE timestamp > '2030-01-01'", {"t": rows.table}, "spark")["t"]
        assert rows.files(gone) == []
    with rawlog.query(
        "SELECT value FROM kafka.records WHERE topic = 'orders' AND offset = 7", tmp_path / "lake", engine="duckdb"
    ) as answer:
        assert answer.to_arrow().to_pylist() == [{"value": b"000007" * 60}]
