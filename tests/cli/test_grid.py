"""The readable table: as wide as the terminal, by importance of columns; and one field per line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rawlog.cli import cli, grid, logs, output
from rawlog.cli.command import Detail
from rawlog.cli.grid import GridPrinter, fit_widths
from rawlog.cli.printers import report
from rawlog.model.text import width_of
from rawlog.model.verb import Section
from tests.data.golden import GOLDEN

LOG = GOLDEN / "kafka" / "broker-4.3.0" / "data" / "codec-none-0"
TIME = "2026-11-15T18:50:03.698Z"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Output goes to a terminal; $COLUMNS is its width."""
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    return monkeypatch


def printed(*words: object) -> tuple[list[str], str]:
    done = CliRunner().invoke(cli, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("columns", [60, 80, 100, 140, 250])
@pytest.mark.parametrize("table", ["records", "kafka.records", "kafka.batches", "files"])
def test_no_line_is_wider_than_the_terminal(terminal: pytest.MonkeyPatch, columns: int, table: str) -> None:
    terminal.setenv("COLUMNS", str(columns))
    lines, _ = printed("cat", LOG, "--table", table, "--limit", 20)
    assert max(map(width_of, lines)) <= columns


def test_times_are_whole_and_the_type_of_time_goes_first(terminal: pytest.MonkeyPatch) -> None:
    """In 80 columns a timestamp was cut to `2026-1…`, while `timestampType` had its fourteen cells."""
    terminal.setenv("COLUMNS", "80")
    lines, notes = printed("cat", LOG, "-n", 5)
    assert TIME in lines[1]
    assert "timestampType" not in lines[0]
    assert "left out: timestampType" in notes
    terminal.setenv("COLUMNS", "400")
    lines, notes = printed("cat", LOG, "-n", 5)
    assert "timestampType" in lines[0]
    assert not notes


def test_columns_that_were_asked_for_are_never_left_out(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("COLUMNS", "40")
    lines, notes = printed("cat", LOG, "-n", 2, "--columns", "timestampType,value,headers,timestamp")
    assert lines[0].split() == ["timestampType", "value", "headers", "timestamp"]
    assert not notes


def test_expanded_has_one_field_per_line(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("COLUMNS", "40")
    lines, _ = printed("cat", LOG, "-n", 2, "--expanded")
    assert lines[0] == "row 1"
    assert f"  timestamp      {TIME}" in lines
    assert lines.count("row 2") == 1


def test_wide_cuts_nothing(terminal: pytest.MonkeyPatch) -> None:
    terminal.setenv("COLUMNS", "40")
    lines, _ = printed("cat", LOG, "-n", 20, "--wide")
    assert "timestampType" in lines[0]
    assert not any("…" in line for line in lines)


def test_piped_tables_are_bounded() -> None:
    """A value of a megabyte made a line of a megabyte in a table that was piped into a pager."""
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "line", lines.append)
        for wide in (False, True):
            batch = pa.record_batch({"value": [b"x" * 5000], "n": [1]})
            with GridPrinter(is_wide=wide) as printer:
                printer.begin(batch.schema)
                printer.write(batch)
    bounded, whole = lines[1], lines[3]
    assert len(bounded) < 2 * grid.MOST
    assert len(whole) > 5000


def test_output_options_exclude_one_another() -> None:
    done = CliRunner().invoke(cli, ["cat", str(LOG), "--json", "--expanded"])
    assert done.exit_code == 2


@pytest.mark.parametrize("columns", [60, 80, 90, 110, 160])
def test_explain_fits_the_terminal(terminal: pytest.MonkeyPatch, columns: int) -> None:
    """Lines of `explain` wrapped at 110 columns."""
    terminal.setenv("COLUMNS", str(columns))
    lines, _ = printed("explain", LOG, "--offset", 3)
    assert max(map(width_of, lines)) <= columns
    assert columns < 80 or any(line.endswith(TIME) for line in lines)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=12), st.integers(1, 200))
def test_widths_fit_or_are_at_their_least(pairs: list[tuple[int, int]], width: int) -> None:
    natural, least = [max(pair) for pair in pairs], [min(pair) for pair in pairs]
    widths = fit_widths(natural, least, width)
    assert all(low <= one <= high for low, one, high in zip(least, widths, natural, strict=True))
    assert sum(widths) + 2 * (len(widths) - 1) <= width or widths == least


@pytest.mark.parametrize("columns", [60, 200])
def test_the_plan_of_a_rescue_is_whole_at_any_width(
    terminal: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    """At 80 columns every cell of it was cut, and with them what was lost."""
    terminal.setenv("COLUMNS", str(columns))
    lost = "offsets 120 to 131, offsets 240 to 287"
    report.table(("partition", "lost", "decided by"), [("segments-by-size-0", lost, "broker 1 was in sync at death")])
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= columns for line in lines)
    assert lost in " ".join(" ".join(lines).split())
    assert len(lines) == (2 if columns == 200 else 4), (
        "two columns have room on a line of 60 cells, and the third on a second one"
    )


CELLS = st.lists(st.text("ab é日", max_size=40).map(lambda text: " ".join(text.split())), min_size=3, max_size=3)


@given(st.lists(CELLS, min_size=1, max_size=5), st.integers(45, 120))
def test_folded_rows_keep_every_word_and_fit(rows: list[list[str]], columns: int) -> None:
    """Tables of `transactions`, `cluster` and `rescue --plan` were wider than a terminal, which then broke words and columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "is_terminal", lambda: True)
        patch.setenv("COLUMNS", str(columns))
        lines = grid.fold_rows(rows, indent="  ")
    assert max(map(width_of, lines)) <= columns
    for row in rows:
        for cell in row:
            assert all(any(word in line for line in lines) for word in cell.split())
    words = [word for row in rows for cell in row for word in cell.split()]
    assert sorted(word for line in lines for word in line.split()) == sorted(words)


def test_numbers_are_aligned_to_the_right_and_empty_columns_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    section = Section(
        "Offsets", [("a", "5", "", "x"), ("b", "1,234", "", "y")], None, ("topic", "lag", "member", "state")
    )
    report._print_section(section, Detail.NORMAL)
    assert capsys.readouterr().out.splitlines() == [
        "Offsets (2)",
        "  topic    lag  state",
        "  a          5  x",
        "  b      1,234  y",
    ]


@pytest.mark.parametrize("columns", [80, 120])
def test_sentences_continue_at_a_word_and_below_their_text(
    terminal: pytest.MonkeyPatch, columns: int, tmp_path: Path
) -> None:
    """A terminal broke the sentences of findings in the middle of words, and began the rest at the left edge."""
    terminal.setenv("COLUMNS", str(columns))
    terminal.chdir(tmp_path)
    shutil.copytree(LOG, "codec-none-0")
    log = next(Path("codec-none-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    done = CliRunner().invoke(cli, ["verify", "codec-none-0", "--complete"])
    lines = done.stdout.splitlines()
    assert done.exit_code == 1
    assert max(map(width_of, lines)) <= columns
    [start] = [number for number, line in enumerate(lines) if "checksum does not match" in line]
    assert lines[start].startswith("  error   offset ")
    if columns == 80:
        assert lines[start + 1].startswith(" " * 10)
    assert "[kafka.log.crc]" in lines[start] + lines[start + 1]


def test_a_damaged_file_has_one_line_below_its_partition_on_a_narrow_terminal(
    terminal: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lines of `ls` about damaged files have times, too: they were 130 cells wide at any width."""
    terminal.setenv("COLUMNS", "80")
    terminal.chdir(tmp_path)
    shutil.copytree(LOG, "codec-none-0")
    log = next(Path("codec-none-0").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    lines = CliRunner().invoke(cli, ["ls", "codec-none-0"]).stdout.splitlines()
    assert max(map(width_of, lines)) <= 80
    [line] = [line for line in lines if log.name in line]
    assert line.endswith("damaged")
    assert "offsets 0 to" in line


def test_a_message_wraps_and_the_command_after_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was broken into lines could not be copied."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    said: list[str] = []
    monkeypatch.setattr(logs.click, "echo", lambda text, err: said.extend(text.splitlines()))
    logs.say(f"{'the log is damaged and ' * 5}\nNext: rawlog explain {'a' * 80} --at 5")
    assert [line[:2] for line in said[:-1]] == ["ra", "  ", "  "]
    assert max(map(len, said[:-1])) <= 60
    assert said[-1] == f"Next: rawlog explain {'a' * 80} --at 5"
