"""Catalogs of PyIceberg's configuration: Apache Iceberg's own REST server, and another SQL catalog."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from tests.data.changing_logs import numbered, write
from tests.data.recordings import record

if TYPE_CHECKING:
    from tests.services.iceberg import RestCatalog


@pytest.fixture(params=["rest", "sql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a catalog without tables."""
    if request.param == "sql":
        configure(monkeypatch, mine={"type": "sql", "uri": f"sqlite:///{tmp_path / 'elsewhere.db'}"})
        return "mine"
    server: RestCatalog = request.getfixturevalue("rest_catalog")
    configure(monkeypatch, mine={"type": "rest", "uri": server.uri})
    opened = loaded("mine")
    for space in opened.list_namespaces():
        for table in opened.list_tables(space):
            opened.drop_table(table)
    return "mine"


def configure(monkeypatch: pytest.MonkeyPatch, **catalogs: dict[str, str]) -> None:
    """Give PyIceberg a configuration: it reads its own once, when it is imported."""
    from pyiceberg.utils.config import Config

    for name, settings in catalogs.items():
        for key, value in settings.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__{name.upper()}__{key.upper()}", value)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())


def loaded(name: str) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(name)


def offsets(catalog: str) -> list[int]:
    table = loaded(catalog).load_table("rawlog.records")
    return sorted(row["offset"] for row in table.scan(selected_fields=("offset",)).to_arrow().to_pylist())


def test_a_lake_in_another_catalog(catalog: str, tmp_path: Path) -> None:
    """Ingested, extended, rewritten, compacted and expired: the catalog's tables have the rows, and the lake's own directory has none."""
    logs, lake = tmp_path / "logs", tmp_path / "lake"
    given: dict[str, Any] = {"engine": "local", "catalog": catalog}
    write(logs, numbered(30), topic="orders", segment=500)
    assert rawlog.ingest(logs, lake, **given).counts["refused"] == 0
    assert offsets(catalog) == list(range(30))
    write(logs, numbered(20), topic="later", segment=500)
    rawlog.ingest(logs, lake, **given)
    assert len(offsets(catalog)) == 50
    assert rawlog.ingest(logs, lake, **given).counts["files"] == 0
    assert not (lake / "catalog.db").exists()
    report = rawlog.lake(lake, catalog=catalog, compact=True, expire_snapshots=True, remove_orphans=True, older_than=0)
    assert set(report.parts) >= {"rawlog.records", "kafka.records"}
    assert len(offsets(catalog)) == 50
    assert rawlog.ingest(logs, lake, **given).counts["files"] == 0


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_a_lake_in_another_catalog_is_queried(
    catalog: str, engine: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """By name alone, with its path, and together with files; values are those that are stored in `records`."""
    logs, lake = tmp_path / "logs", tmp_path / "lake"
    write(logs, numbered(30), topic="orders", segment=500)
    rawlog.ingest(logs, lake, engine="local", catalog=catalog)
    sql = "SELECT offset, value FROM kafka.records WHERE offset >= 28 ORDER BY offset"
    rows = [{"offset": number, "value": value} for number, value in enumerate(numbered(30))][28:]
    both = "SELECT count(*) AS n FROM records JOIN logs.records AS other USING (topic, partition, offset)"
    if engine == "spark":
        from rawlog.spark import sql as ask

        spark = request.getfixturevalue("spark")
        assert [row.asDict() for row in ask(sql, spark=spark, catalog=catalog).collect()] == rows
        assert ask(both, [f"logs={logs}"], spark, catalog=catalog).collect()[0]["n"] == 30
        return
    for paths in ((), lake):
        with rawlog.query(sql, paths, catalog=catalog, engine=engine) as answer:
            assert list(answer) == rows
    with rawlog.query(both, {"logs": logs}, catalog=catalog, engine=engine) as answer:
        assert list(answer) == [{"n": 30}]
    ran = CliRunner().invoke(cli, ["query", sql, "--catalog", catalog, "--engine", "duckdb", "--json"])
    assert (ran.exit_code, ran.stdout.count("offset")) == (0, 2)


def test_a_catalog_without_a_lake_is_an_error(catalog: str, tmp_path: Path) -> None:
    with pytest.raises(rawlog.errors.AccessError, match="no table of a lake"):
        rawlog.query("SELECT 1", catalog=catalog, engine="duckdb")
    with pytest.raises(rawlog.errors.OptionError, match="is one lake"):
        rawlog.query("SELECT 1", [tmp_path / "a", tmp_path / "b"], catalog=catalog, engine="duckdb")


def test_a_rewritten_log_is_replaced_in_another_catalog(catalog: str, tmp_path: Path) -> None:
    log, lake = tmp_path / "a.log", tmp_path / "lake"
    record(log, 40)
    rawlog.ingest(log, lake, engine="local", catalog=catalog)
    record(log, 25, first=1000)
    rawlog.ingest(log, lake, engine="local", catalog=catalog)
    assert offsets(catalog) == list(range(25))


def test_a_catalog_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, gone={"type": "rest", "uri": "http://127.0.0.1:9"})
    with pytest.raises(rawlog.errors.RawlogError, match="gone"):
        rawlog.ingest(record(tmp_path / "a.log", 3), tmp_path / "lake", engine="local", catalog="gone")
