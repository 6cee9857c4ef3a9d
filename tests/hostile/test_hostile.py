"""Hostile stores, opened by every verb: nothing runs, nothing leaves its place, nothing grows without end, no secret is shown.

Each store is given to all verbs in one process that is limited in time and measured in memory. A new verb is covered when it has a line
in `tests/data/calls.py`, a new attack when it has a store.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click import Context

from rawlog.cli import cli
from tests.data.calls import CALLS, FILE, OUT, SOUND, SOURCE, WAITING, WITHOUT_FILES, fill
from tests.hostile.stores import OUTSIDE, SECRETS, STORES

#: Seconds for all verbs on one store: far more than they need. One that hangs is killed and named.
PATIENCE = 400
#: Megabytes that all verbs together may have at once. Arrow, NumPy, the kernels and DuckDB are 400 of them.
MEMORY = 1300
#: Verbs that copy native files: a secret in the source is in the copy too.
COPIES = {"repair", "rebuild", "restore", "rescue", "compact", "erase"}
#: What no text may hold when it is printed: control characters except line ends and tabs, and marks that turn the direction of text.
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

PROGRAM = """
import json, re, sys
from pathlib import Path
from click.testing import CliRunner
from rawlog.cli import cli
for words in json.load(sys.stdin):
    print(json.dumps(words), flush=True)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    result = CliRunner().invoke(cli, words, prog_name="rawlog")
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10
    print(json.dumps([result.exit_code, result.stdout_bytes.decode("utf-8", "surrogateescape"), result.stderr, peak]), flush=True)
"""


@dataclass(frozen=True)
class Outcome:
    """What a verb did on a store."""

    words: list[str]
    code: int
    out: str
    err: str
    megabytes: int

    @property
    def verb(self) -> str:
        return self.words[0]

    def __str__(self) -> str:
        return f"{' '.join(self.words)}: {self.code}\n{self.err[-2000:]}"


@dataclass(frozen=True)
class Attack:
    """A store, what all verbs did on it, and the directory in which it all happened."""

    folder: Path
    source: Path
    before: str
    outcomes: list[Outcome]

    @property
    def outputs(self) -> list[Path]:
        """All files that verbs wrote."""
        every = self.source.parent.rglob("*")
        return [path for path in every if not path.is_relative_to(self.source) and path.is_file()]


def digest(folder: Path) -> str:
    """Names and content of all that is in a directory; links and special files by their names."""
    state = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        state.update(repr(path.relative_to(folder)).encode())
        state.update(path.read_bytes() if path.is_file() and not path.is_symlink() else b"")
    return state.hexdigest()


def holds(path: Path, secret: str) -> bool:
    """Whether a file has a text, in its rows if it has rows."""
    if path.suffix == ".parquet":
        return secret in str(pq.read_table(path).to_pydict())
    if not path.stat().st_size:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(secret.encode()) >= 0


def run_all(calls: list[list[str]], folder: Path) -> Iterator[Outcome]:
    """Run verbs one after the other in a process that is killed if one of them hangs."""
    try:
        ended = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            input=json.dumps(calls).encode(),
            capture_output=True,
            timeout=PATIENCE,
            cwd=folder,
        )
    except subprocess.TimeoutExpired as error:
        lines = bytes(error.stdout or b"").decode().splitlines()
        pytest.fail(f"this hangs: {lines[-1] if lines else 'start'}")
    lines = [json.loads(line) for line in ended.stdout.decode().splitlines()]
    assert len(lines) == 2 * len(calls), (lines[-1:], ended.returncode, ended.stderr.decode()[-2000:])
    for words, outcome in zip(lines[::2], lines[1::2], strict=True):
        yield Outcome(words, *outcome)


@pytest.fixture(scope="module", params=STORES)
def attack(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attack]:
    folder = tmp_path_factory.mktemp("hostile")
    make, file = STORES[request.param]
    work = folder / "deep" / "er" / "and" / "deeper" / "work"
    source = work / "source"
    source.mkdir(parents=True)
    make(source)
    before = digest(source)
    calls = []
    for verb, variants in CALLS.items():
        for number, words in enumerate(variants):
            target = str(work / f"{verb}-{number}")
            places = {SOURCE: str(source), SOUND: str(source), FILE: str(source / file), OUT: target}
            calls.append([verb, *fill(words, places)])
    yield Attack(folder, source, before, list(run_all(calls, work)))
    shutil.rmtree(folder)


def test_every_verb_is_called() -> None:
    assert {*cli.list_commands(Context(cli))} == {*CALLS, *WAITING, *WITHOUT_FILES}


def test_only_errors_of_rawlog_come_out(attack: Attack) -> None:
    for outcome in attack.outcomes:
        assert outcome.code in (0, 1, 2, 3), str(outcome)
        assert "Traceback" not in outcome.err, str(outcome)


def test_the_source_is_as_it_was_and_nothing_appears_outside(attack: Attack) -> None:
    assert digest(attack.source) == attack.before
    assert not Path(f"/tmp/{OUTSIDE}").exists()
    work = attack.source.parent
    targets = {word for outcome in attack.outcomes for word in outcome.words}
    named = {
        target + ending
        for target in targets
        for ending in ("", ".server.properties", ".certificate.json", ".certificate.txt")
    }
    assert [path for path in work.iterdir() if path != attack.source and str(path) not in named] == []
    assert [
        path for path in attack.folder.rglob("*") if path not in work.parents and not path.is_relative_to(work)
    ] == []


def test_no_output_leads_out_of_its_directory(attack: Attack) -> None:
    """A link in a source is not copied as a link: whoever moves the copy would follow it elsewhere."""
    work = attack.source.parent
    for path in work.rglob("*"):
        if not path.is_relative_to(attack.source) and path.is_symlink():
            assert path.resolve().is_relative_to(work), path


def test_memory_does_not_follow_what_a_file_declares(attack: Attack) -> None:
    for outcome in attack.outcomes:
        assert outcome.megabytes <= MEMORY, f"{outcome.megabytes} MB: {outcome}"


def test_what_is_printed_is_safe_for_a_terminal(attack: Attack) -> None:
    for outcome in attack.outcomes:
        for text in (outcome.out, outcome.err):
            unsafe = UNSAFE.search(text)
            assert unsafe is None, (
                (unsafe, text[max(unsafe.start() - 100, 0) : unsafe.end() + 20], str(outcome)) if unsafe else ""
            )


def test_no_line_is_forged(attack: Attack) -> None:
    for outcome in attack.outcomes:
        assert not any(line.startswith("rawlog: warning: a forged line") for line in outcome.err.splitlines()), str(
            outcome
        )


def test_pages_hold_no_markup_of_the_data(attack: Attack) -> None:
    for page in attack.source.parent.glob("*.html"):
        text = page.read_text()
        assert "<script>rawlog_attack" not in text, page
        assert "<img src=x" not in text, page


def test_no_secret_is_shown_or_stored(attack: Attack) -> None:
    """Native copies hold what the source holds; nothing else does without `--show-secrets`."""
    shown = [(outcome, text) for outcome in attack.outcomes for text in (outcome.out, outcome.err)]
    for outcome, text in shown:
        for secret in SECRETS:
            assert secret not in text, str(outcome)
            assert secret.encode().hex() not in text.replace(" ", ""), str(outcome)
    work = attack.source.parent
    for path in attack.outputs:
        if path.relative_to(work).parts[0].partition("-")[0] in COPIES:
            continue
        content = (
            str(pq.read_table(path).to_pydict()) if path.suffix == ".parquet" else path.read_bytes().decode("latin-1")
        )
        for secret in SECRETS:
            assert secret not in content, path
