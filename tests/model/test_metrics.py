"""Numbers of a run for a monitoring system."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import rawlog
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.report import Metric, as_prometheus
from tests.data.golden import golden_path

RECORDING = golden_path("replay", "v2", "basic.log")
#: A line of Prometheus' text form: a comment, or a name with labels and a number.
LINE = re.compile(r'# (HELP|TYPE) rawlog_\w+ .+|rawlog_\w+\{(\w+="([^"\\]|\\.)*",?)+\} -?[0-9.e+-]+')


def test_a_run_is_measured_as_json(tmp_path: Path) -> None:
    report = rawlog.ingest(RECORDING, tmp_path / "lake", engine="local", metrics=tmp_path / "run.json")
    found = json.loads((tmp_path / "run.json").read_text())
    assert (found["verb"], found["success"]) == ("ingest", 1)
    assert found["target"] == str(tmp_path / "lake")
    assert found["files"] == 1
    assert found["bytes"] == RECORDING.stat().st_size
    assert found["rows"] == report.facts["tables"]
    assert found["findings"] == {"error": 0, "warning": 0}
    assert set(found["seconds"]) == {"plan", "work", "commit"}
    assert report.facts["seconds"] == found["seconds"]


def test_a_run_is_measured_for_prometheus(tmp_path: Path) -> None:
    rawlog.ingest(RECORDING, tmp_path / "lake", engine="local", metrics=tmp_path / "run.prom")
    text = (tmp_path / "run.prom").read_text()
    assert text.endswith("\n")
    assert all(LINE.fullmatch(line) for line in text.splitlines()), text
    assert f'rawlog_ingest_success{{target="{tmp_path / "lake"}"}} 1' in text
    assert 'phase="commit"' in text
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "the samples of a metric are together"


def test_labels_are_escaped() -> None:
    text = as_prometheus("ingest", 'a"b\\c\nd', [Metric("rows", 2.5, (("table", "x"),))])
    assert 'rawlog_ingest_rows{target="a\\"b\\\\c\\nd",table="x"} 2.5' in text.splitlines()


def test_a_failure_is_measured(tmp_path: Path) -> None:
    with pytest.raises(AccessError):
        rawlog.ingest(tmp_path / "missing", tmp_path / "lake", engine="local", metrics=tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["success"] == 0


def test_metrics_are_not_written_into_a_source(tmp_path: Path) -> None:
    source = tmp_path / "logs"
    source.mkdir()
    (source / "basic.log").write_bytes(RECORDING.read_bytes())
    with pytest.raises(OptionError):
        rawlog.ingest(source, tmp_path / "lake", engine="local", metrics=source / "run.prom")
    assert [path.name for path in source.iterdir()] == ["basic.log"]
