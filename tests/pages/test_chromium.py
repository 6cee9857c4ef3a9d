"""`rawlog browse` in a real browser: keyboard, search, jumps, hostile text; no request elsewhere, no error, accessible.

Screenshots are kept in `out/screenshots`, or the folder that $RAWLOG_TESTS_SCREENSHOTS names.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import rawlog
from rawlog.pages.browser.server import Server
from tests.pages.test_browser import HOSTILE, OVERFLOW, SCREENSHOTS, SCRIPT, SECONDS, make_hostile, serious

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A partition of two thousand records."""
    folder = tmp_path_factory.mktemp("chromium") / "logs"
    rows = pa.table(
        {
            "key": pa.array([f"key-{number}".encode() for number in range(2000)], pa.binary()),
            "value": pa.array([json.dumps({"n": number}).encode() for number in range(2000)], pa.binary()),
            "timestamp": pa.array(
                [1_700_000_000_000_000 + number * 1_000_000 for number in range(2000)], pa.timestamp("us", "UTC")
            ),
        }
    )
    rawlog.write(folder, rows, format="kafka", topic="orders", partition=0, segment_bytes=50_000, batch_records=8)
    with rawlog.browse(folder) as running:
        yield running


@contextmanager
def opened(
    browser: Browser, server: Server, page_name: str = "at", scheme: str = "light", width: int = 1280
) -> Iterator[Page]:
    """A page of the server. A request to anything else, an error in the console and a dialog fail the test."""
    base = server.url.removesuffix("at")
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("request", lambda one: None if one.url.startswith((base, "data:")) else wrong.append(f"request: {one.url}"))
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        page.goto(base + page_name)
        yield page
        assert wrong == []
    finally:
        context.close()


PAGES = {
    "files": "at?in=logs%2Forders-0",
    "rows": "rows?in=logs%2Forders-0&from=40&n=30",
    "bytes": "bytes?in=logs%2Forders-0%2F00000000000000000000.log&offset=42&row=42",
    "findings": "findings?in=logs%2Forders-0",
    "sql": "sql?q=SELECT+key,+offset+FROM+records+LIMIT+20",
    "keys": "keys",
}


@pytest.mark.parametrize("kind", PAGES)
def test_a_page_has_no_error_and_is_accessible(kind: str, browser: Browser, server: Server) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for scheme, width in (("light", 1280), ("dark", 390)):
        with opened(browser, server, PAGES[kind], scheme, width) as page:
            page.screenshot(path=SCREENSHOTS / f"browse-{kind}-{scheme}-{width}.png")
            assert page.evaluate(OVERFLOW) == 0, f"wider than {width}"
            assert serious(page) == []


def test_from_the_first_page_to_the_bytes_of_a_record_by_keyboard_alone(browser: Browser, server: Server) -> None:
    with opened(browser, server) as page:
        page.keyboard.press("j")
        assert page.evaluate("document.activeElement.textContent") == "orders-0"
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert page.locator("h1").inner_text() == "orders-0"
        page.keyboard.press("o")
        page.keyboard.type("1234")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert page.locator("tr[data-row]").first.inner_text().split("\t")[5] == "key-1234"
        assert "since" not in page.url, "empty fields are not in the address"
        with page.expect_navigation():
            page.keyboard.press("n")
        assert page.locator("tr[data-row]").first.inner_text().split("\t")[5] == "key-1334"
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("K")
        page.keyboard.press("j")
        with page.expect_navigation():
            page.keyboard.press("Enter")
        assert page.locator("#record h2").inner_text() == "Record 1,335"
        assert '"n": 1335' in page.locator("#record").inner_text()
        first = page.locator("h1").inner_text()
        with page.expect_navigation():
            page.keyboard.press("n")
        assert page.locator("h1").inner_text() != first
        with page.expect_navigation():
            page.keyboard.press("p")
        assert page.locator("h1").inner_text() == first
        with page.expect_navigation():
            page.keyboard.press("u")
        assert page.locator("h1").inner_text() == "orders-0"


def test_search_by_text_and_the_last_rows(browser: Browser, server: Server) -> None:
    with opened(browser, server, PAGES["files"]) as page:
        page.keyboard.press("/")
        page.keyboard.type('"n": 777}')
        with page.expect_navigation():
            page.keyboard.press("Enter")
        rows = page.locator("tr[data-row]")
        assert rows.count() == 1
        assert "key-777" in rows.first.inner_text()
        page.locator('input[name="text"]').fill("")
        page.locator('input[name="key"]').fill("key-31")
        with page.expect_navigation():
            page.get_by_role("button", name="Show rows").click()
        assert rows.count() == 1
        page.goto(server.url.removesuffix("at") + PAGES["rows"])
        with page.expect_navigation():
            page.keyboard.press("G")
        assert "key-1999" in rows.last.inner_text()


def test_sql_runs_with_ctrl_enter(browser: Browser, server: Server) -> None:
    with opened(browser, server, "sql") as page:
        page.keyboard.press("/")
        page.keyboard.type("SELECT count(*) AS many FROM records")
        with page.expect_navigation():
            page.keyboard.press("Control+Enter")
        assert page.locator("#answer td").inner_text() == "2,000"


def test_findings_are_shown_when_verification_is_done(browser: Browser, server: Server) -> None:
    with opened(browser, server, PAGES["findings"]) as page:
        page.keyboard.press("v")
        page.get_by_text("Healthy").wait_for()


def test_an_export_is_a_download(browser: Browser, server: Server, tmp_path: Path) -> None:
    with opened(browser, server, PAGES["rows"]) as page:
        with page.expect_download() as found:
            page.get_by_role("link", name="CSV").click()
        found.value.save_as(tmp_path / "rows.csv")
        assert found.value.suggested_filename == "orders-0.csv"
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 1960


def test_bytes_light_up(browser: Browser, server: Server) -> None:
    with opened(browser, server, PAGES["bytes"]) as page:
        row = page.locator("tr[data-n]", has=page.get_by_text("crc", exact=True))
        row.locator("td").first.hover()
        lit = page.locator(f'pre [data-n="{row.get_attribute("data-n")}"]').first
        assert "lit" in (lit.get_attribute("class") or "")


def test_hostile_text_stays_text(browser: Browser, tmp_path: Path) -> None:
    folder = make_hostile(tmp_path)
    with rawlog.browse(folder) as server:
        names = ["at", "rows", "sql?q=SELECT+*+FROM+records", f"bytes?in={folder.name}%2Forders-0%2F{0:020}.log&row=0"]
        shown = ""
        for name in names:
            with opened(browser, server, name) as page:
                page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
                text = page.locator("body").inner_text()
                assert "\x1b" not in text
                assert "\u202e" not in text
                assert page.locator("img, iframe, object, [onload], [onerror]").count() == 0
                assert page.locator("script:not([src])").count() == 0
                shown += text
                for row in page.locator("tr[data-row] a").all()[:3]:
                    assert (row.get_attribute("href") or "").startswith(("at?", "bytes?"))
        assert SCRIPT in shown
        with opened(browser, server, "rows") as page:
            page.locator('input[name="text"]').fill(HOSTILE)
            with page.expect_navigation():
                page.get_by_role("button", name="Show rows").click()
            assert page.locator("tr[data-row]").count() > 3
