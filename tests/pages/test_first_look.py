"""What people see first: the home page and a file in `browse`, the report, and what notebooks show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rawlog
from rawlog.pages import results
from rawlog.pages.browser import views
from rawlog.pages.browser.server import Server
from tests.pages.test_server import Client

KAFKA = Path(__file__).parents[2] / "samples" / "kafka"
HOUR = 3_600_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(views, "HEALTH_SECONDS", 300.0)
        patched.setattr(views, "MEASURE_SECONDS", 300.0)
        with rawlog.browse(KAFKA) as running:
            yield running


def page(server: Server, name: str) -> str:
    status, _, body = Client(server).ask("at", in_=name) if name else Client(server).ask("at")
    assert status == 200
    return body.decode()


def test_the_home_page_has_health_counts_and_end_offsets(server: Server) -> None:
    """It had a form of twelve fields first, and a click was needed to see whether anything is wrong."""
    home = page(server, "")
    assert "Every file was read to its end, and nothing is wrong." in home
    row = next(row for row in re.findall(r"<tr data-row>.*?</tr>", home) if ">trimmed-0<" in row)
    cells = [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)]
    assert cells[2:5] == ["153", "57", "210"]
    assert home.index("Partitions and stores") < home.index('role="search"')
    assert home.index("Health") < home.index("Partitions and stores</h2>")


def test_a_file_shows_its_first_rows_without_a_click(server: Server) -> None:
    file = page(server, "kafka/segments-by-size-0/00000000000000000000.log")
    shown = file.partition("Rows of records")[2]
    assert shown.count("<tr data-row") == views.FIRST_ROWS == 50
    assert file.index("Rows of records") < file.index('role="search"')


def test_what_keys_do_is_called_shortcuts(server: Server) -> None:
    home = page(server, "")
    assert "Shortcuts" in home
    assert ">Keys" not in home


def test_a_report_over_days_is_in_a_readable_unit(tmp_path: Path) -> None:
    """A chart over six days had values such as 0.0035 records per second, and the label said "1 far from these"."""
    start = 1_790_000_000_000_000
    times = [*(start + hour * HOUR for hour in range(144) for _ in range(40)), 1_000_000]
    rows = [{"key": b"k", "value": b"x" * 100, "timestamp": time} for time in times]
    rawlog.write(tmp_path / "logs", rows, format="kafka", topic="orders", partition=0)
    text = rawlog.report(tmp_path / "logs").to_html()
    assert "records per hour" in text
    assert "records per second" not in text
    assert "1 record has a timestamp far outside this range" in text
    assert "far from these" not in text


def test_the_text_of_a_cause_does_not_repeat_its_heading() -> None:
    text = rawlog.report(KAFKA).to_html()
    assert text.count("A transaction has no marker") == 1


def test_the_heading_of_a_cause_is_one_line() -> None:
    """The line breaks of docstrings were shown as \\n in the headings of the report."""
    for rule in rawlog.rules():
        cause = results.Cause(rule.code, rule.severity, rule.about, 1, 1, ())
        assert r"\n" not in results.listing([cause]), rule.code


def test_a_file_without_rows_says_so(server: Server) -> None:
    """Of an empty index it said that there is no such row, and that these are the last rows."""
    file = page(server, "kafka/__cluster_metadata-0/00000000000000000000.index")
    assert "There are no rows." in file
    assert "These are the last rows." not in file


def test_the_home_page_lists_recordings() -> None:
    """A recording is one file in no store: of a directory of them the home page showed the name of the directory."""
    with rawlog.browse(KAFKA.parent / "replay") as running:
        home = page(running, "")
    rows = re.findall(r"<tr data-row>.*?</tr>", home)
    [row] = [row for row in rows if ">basic.log<" in row]
    assert [re.sub("<.*?>", "", cell) for cell in re.findall(r"<td.*?</td>", row)][:3] == ["basic.log", "replay", "70"]
    assert 'href="at?in=replay%2Fbasic.log"' in row


def test_each_shortcut_has_a_line_of_its_own(server: Server) -> None:
    """Of `j or ↓, K or ↑` the page made the keys `j`, `↓, K` and `↑`."""
    keys = Client(server).ask("keys")[2].decode()
    assert not [name for name in re.findall("<kbd>(.*?)</kbd>", keys) if "," in name]
    assert re.search(r"<kbd>K</kbd><kbd>↑</kbd></dt><dd>previous row", keys)


def test_a_log_lists_its_topics() -> None:
    log = rawlog.open(KAFKA)
    assert log.topics[0] == "broker-gzip"
    assert log.topics[-1] == "__transaction_state"
    assert "meta-late-delete" not in log.topics
    assert "broker-gzip" in repr(log)
    assert re.search(r"<td>codec-none</td><td class=\"n\">2</td>", log._repr_html_())


def test_rows_have_a_length_and_become_data_frames() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("polars")
    rows = rawlog.rows(KAFKA / "codec-none-0", columns=["offset", "value"])
    number = rawlog.count(KAFKA / "codec-none-0")
    assert len(rows) == number == len(rows.to_pandas()) == len(rows.to_polars()) == len(list(rows))
    assert list(rows.to_polars()["offset"]) == list(rows.to_pandas()["offset"])
    assert rawlog.rows(KAFKA / "codec-none-0", where="offset < 0")  # not empty: nobody read it yet
    assert len(rawlog.rows(KAFKA / "codec-none-0", where="offset < 0")) == 0
    assert len(rawlog.head(KAFKA, lines=7)) == 7
    assert len(rawlog.tail(KAFKA, lines=7)) == 7
    assert len(rawlog.ls(KAFKA / "codec-none-0")) == len(list((KAFKA / "codec-none-0").iterdir()))


def test_a_list_of_rows_reads_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`list` asks for the length of what it is given before it takes the first row."""
    rows = rawlog.rows(KAFKA / "codec-none-0")
    monkeypatch.setattr(type(rows), "count", lambda _: pytest.fail("counted"))
    assert len(list(rows)) == 85
