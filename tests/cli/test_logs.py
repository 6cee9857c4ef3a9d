"""Messages and progress as JSON, for programs that collect logs."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Ran
from tests.data.recordings import damage, record

Run = Callable[..., Ran]


def entries(text: str) -> list[dict[str, Any]]:
    """The lines of stderr: each of them is an object with the same fields."""
    found = [json.loads(line) for line in text.splitlines()]
    for one in found:
        assert list(one) == ["time", "level", "phase", "message", "figures"]
        assert datetime.fromisoformat(one["time"]).tzinfo is not None
        assert one["level"] in ("info", "warning", "error")
        assert isinstance(one["figures"], dict)
    return found


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return record(tmp_path / "a.log", 40)


def test_a_run_is_told_by_its_figures(run: Run, log: Path, tmp_path: Path) -> None:
    damage(log, 20)
    ran = run("ingest", log, "--to", tmp_path / "lake", "--engine", "local", "--log-format", "json")
    assert ran.code == 1
    found = entries(ran.err)
    done, last = found[-2:]
    assert (done["phase"], done["message"], done["figures"]["size"]) == ("ingesting", "done", log.stat().st_size)
    assert last["level"] == "warning"
    assert last["figures"]["errors"] == 1
    assert last["figures"]["rows.rawlog.records"] < 40
    assert last["figures"]["seconds.work"] > 0
    assert "lake:" in ran.text, "the answer is on stdout as ever"


def test_refused_files_and_notes_have_a_level(run: Run, log: Path, tmp_path: Path) -> None:
    given = ("ingest", tmp_path, "--to", tmp_path.parent / f"{tmp_path.name}-lake", "--engine", "local", "--json")
    run(*given)
    record(log, 10, first=100)
    refused = entries(run(*given, "--on-rewrite", "refuse", "--log-format=json").err)
    assert [one["level"] for one in refused if str(log) in one["message"]] == ["warning"]
    replaced = entries(run(*given, "--log-format=json").err)
    assert [one["level"] for one in replaced if "the rows were replaced" in one["message"]] == ["info"]


def test_errors_are_objects_too(run: Run, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of a command line that is wrong, and of verbs that have no such option."""
    (wrong,) = entries(run("verify", log, "--log-format", "json", "--no-such-option").err)
    assert (wrong["level"], wrong["phase"]) == ("error", "verify")
    assert "--no-such-option" in wrong["message"]
    monkeypatch.setenv("RAWLOG_LOG_FORMAT", "json")
    (missing,) = entries(run("cat", log.parent / "gone.log").err)
    assert missing["level"] == "error"
    monkeypatch.delenv("RAWLOG_LOG_FORMAT")
    assert run("cat", log.parent / "gone.log").err.startswith("rawlog: ")


def test_verify_logs_its_verdict(run: Run, log: Path) -> None:
    last = entries(run("verify", log, "--log-format", "json").err)[-1]
    assert (last["level"], last["message"]) == ("info", "clean")
    damage(log, 3)
    last = entries(run("verify", log, "--log-format", "json").err)[-1]
    assert (last["level"], last["message"]) == ("warning", "damaged")
