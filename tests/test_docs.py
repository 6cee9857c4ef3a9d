"""The documents tell the truth: their code runs, and what is printed from declarations is up to date."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: .*? -->\n)?```(\w+)\n(.*?)```", re.DOTALL)


def blocks(language: str) -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text())):
            if match.group(2) == language and match.group(1) is None:
                found.append((f"{page.relative_to(ROOT)}#{number}", match.group(3)))
    return found


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the samples in it, as a reader of the documents has them."""
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("where", "code"), blocks("python"), ids=[where for where, _ in blocks("python")])
def test_python_blocks_run(where: str, code: str, workplace: Path, spark: object) -> None:
    exec(compile(code, where, "exec"), {})


@pytest.mark.parametrize(("where", "code"), blocks("sh"), ids=[where for where, _ in blocks("sh")])
def test_shell_blocks_run(where: str, code: str, workplace: Path, spark: object) -> None:
    from rawlog.cli import cli

    for line in code.splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] == "make":
            continue
        assert words[0] == "rawlog", f"{where}: {line}"
        result = CliRunner().invoke(cli, words[1:])
        expected = 1 if "exit 1" in line else 0
        assert result.exit_code == expected, f"{where}: {line}\n{result.output}\n{result.stderr}"
        assert result.output, f"{where}: {line}: nothing was printed"


def test_made_parts_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make docs`: {done.stdout}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
