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


def target_of(words: list[str]) -> str | None:
    """What a command of the documents writes; None if nothing."""
    if "--dry-run" in words or words[0] != "rawlog":
        return None
    if "--to" in words and words[1] in ("ingest", "extract"):
        return words[words.index("--to") + 1]
    if words[1] in ("convert", "restore", "repair", "rebuild", "compact", "erase"):
        return [word for word in words[2:] if word.startswith("out/")][-1]
    return None


def test_every_command_has_an_output_of_its_own() -> None:
    """Pasted in another order, commands of two pages met at out/lake or out/restored, and the second one was refused."""
    seen: dict[str, str] = {"out/lake": "make run"}
    for where, code in blocks("sh"):
        for line in code.splitlines():
            target = target_of(words) if (words := shlex.split(line, comments=True)) else None
            if target is None:
                continue
            for other, by in seen.items():
                apart = not f"{target}/".startswith(f"{other}/") and not f"{other}/".startswith(f"{target}/")
                assert apart, f"{where}: {target} is also written by {by}: {other}"
            seen[target] = where
    assert len(seen) > 15


def test_made_parts_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, "docs/build.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, f"run `make docs`: {done.stdout}"


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
