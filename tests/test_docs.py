"""The documents tell the truth: their code runs, and what is printed from declarations is up to date."""

from __future__ import annotations

import json
import re
import runpy
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


def shell_pages() -> dict[str, str]:
    """The commands of each page, one after another: a reader has what the blocks above wrote."""
    found: dict[str, str] = {}
    for where, code in blocks("sh"):
        page = where.partition("#")[0]
        if page.endswith("questions.md"):
            continue  # test_ten_questions_are_answered runs these, and looks at what they print
        found[page] = found.get(page, "") + code
    return found


@pytest.mark.parametrize("page", shell_pages())
def test_shell_blocks_run(page: str, workplace: Path, spark: object) -> None:
    from rawlog.cli import cli

    for line in shell_pages()[page].splitlines():
        words = shlex.split(line, comments=True)
        if not words or words[0] == "make":
            continue
        assert words[0] == "rawlog", f"{page}: {line}"
        result = CliRunner().invoke(cli, words[1:])
        expected = 1 if "exit 1" in line else 0
        assert result.exit_code == expected, f"{page}: {line}\n{result.output}\n{result.stderr}"
        assert result.output, f"{page}: {line}: nothing was printed"


def test_the_first_screen_of_the_readme_has_the_speed_the_proof_and_no_index() -> None:
    """The speed was below the picture, nothing led to the proof, and `pipx install rawlog` named an index that does not have it."""
    readme = (ROOT / "README.md").read_text()
    screen = readme.partition("![")[0]
    assert len(screen.splitlines()) < 25
    speed = re.search(r"of (\d+) million Kafka records per second, ([\d.]+) times .* own reader", screen)
    assert speed is not None
    assert "](docs/performance.md)" in screen
    row = "| kafka_decode: v2, every column, 256 MB | "
    [figures] = [line for line in (ROOT / "docs" / "performance.md").read_text().splitlines() if line.startswith(row)]
    cells = figures.split(" | ")
    assert cells[1].startswith(f"{speed[1]}."), "the README has another rate than the page on performance"
    assert round(float(cells[4].split(" ×")[0]), 1) == float(speed[2])
    assert "](docs/proof.md)" in screen
    install = readme.partition("## Install")[2].partition("\n## ")[0]
    assert "pip install ." in install
    assert "pipx install" not in readme


def test_ten_questions_are_answered(workplace: Path) -> None:
    """From the README to the answer of each question: one command, and the answer is in what it prints."""
    from rawlog.cli import cli

    readme, page = (ROOT / "README.md").read_text(), (ROOT / "docs" / "tutorials" / "questions.md").read_text()
    sections = re.findall(r"(?ms)^## \d+\. ([^\n]+)\n\n```sh\n([^\n]+)\n```\n\nAnswer: `([^`]+)`", page)
    assert len(sections) == len(re.findall(r"(?m)^## ", page)) == 10
    for question, command, answer in sections:
        words = shlex.split(command, comments=True)
        shown = re.sub(r"\s+#.*", "", command)
        assert f"{question}](docs/tutorials/questions.md#" in readme
        assert f"`{shown}`" in readme
        result = CliRunner().invoke(cli, words[1:])
        assert result.exit_code == (1 if "exit 1" in command else 0), f"{question}\n{result.output}\n{result.stderr}"
        assert answer in result.stdout, f"{question}\n{result.output}"


def test_pictures_and_pages_load_nothing_from_elsewhere() -> None:
    for path in [*(ROOT / "docs" / "pictures").iterdir(), *(ROOT / "docs" / "_static").iterdir()]:
        text = path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert "://" not in text, path


def target_of(words: list[str]) -> str | None:
    """What a command of the documents writes; None if nothing."""
    if "--dry-run" in words or words[0] != "rawlog":
        return None
    if "--to" in words and words[1] in ("ingest", "extract", "rescue"):
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
            if words[1] == "ingest" and seen.get(target, "").partition("#")[0] == where.partition("#")[0]:
                continue  # more into the lake of the same page
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
            if "://" not in target and not target.startswith(
                "reference/"
            ):  # made with the site, which checks these links
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_notebook_runs_and_shows_tables(workplace: Path) -> None:
    """`python docs/notebook.py` writes it again; what differs from machine to machine is not compared."""
    made = runpy.run_path(str(ROOT / "docs" / "notebook.py"))["notebook"]()
    kept = json.loads((ROOT / "docs" / "notebook.ipynb").read_text())
    assert [one["source"] for one in kept["cells"]] == [one["source"] for one in made["cells"]]
    for one in (one for book in (made, kept) for one in book["cells"] if one["cell_type"] == "code"):
        [output] = [output for output in one["outputs"] if output["output_type"] == "execute_result"]
        shown = "".join(output["data"]["text/html"])
        assert "<table>" in shown
        assert str(ROOT) not in shown
