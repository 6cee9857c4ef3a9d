"""What rawlog is installed with: every file has a hash, every package a licence that is allowed, and the bill of materials has them all."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import supply

    return supply


def test_every_file_of_the_lock_has_a_hash_and_the_lock_is_what_the_project_asks_for(supply) -> None:
    lock = supply.locked()
    assert all(hashes for versions in lock.values() for hashes in versions.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    groups = (*project["project"]["optional-dependencies"].values(), *project["dependency-groups"].values())
    for text in (*project["project"]["dependencies"], *(text for group in groups for text in group)):
        requirement = Requirement(text)
        if requirement.name != "rawlog":
            versions = lock[supply.plain(requirement.name)]
            assert all(requirement.specifier.contains(version) for version in versions), text


def test_the_bill_of_materials_has_the_whole_lock(supply, tmp_path: Path) -> None:
    """Twice the same bytes: nothing in it is of this moment or this machine."""
    for name in ("one", "two"):
        subprocess.run([sys.executable, "docs/supply.py", tmp_path / name], cwd=ROOT, check=True, capture_output=True)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    bill = json.loads((tmp_path / "one").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    parts = {part["bom-ref"]: part for part in bill["components"]}
    assert set(parts) == {f"pkg:pypi/{name}@{version}" for name, found in supply.locked().items() for version in found}
    for part in parts.values():
        assert part["externalReferences"][0]["hashes"]
        assert part["scope"] == "excluded" or part["licenses"]
    scopes = {part["name"]: part["scope"] for part in parts.values()}
    assert [scopes[name] for name in ("click", "pyspark", "pytest")] == ["required", "optional", "excluded"]
    known = {bill["metadata"]["component"]["bom-ref"], *parts}
    assert {ref for row in bill["dependencies"] for ref in (row["ref"], *row["dependsOn"])} <= known


@pytest.mark.parametrize("says", ["", "AGPL-3.0-only", "MIT OR Nobody-Knows-1.0"])
def test_a_package_without_an_allowed_licence_is_refused(supply, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    about = metadata.metadata("click")
    del about["License-Expression"], about["License"], about["Classifier"]
    about["License-Expression"] = says
    monkeypatch.setattr(metadata, "metadata", lambda name: about)
    with pytest.raises(ValueError, match=r"^click: its licence is"):
        supply.licence("click")
