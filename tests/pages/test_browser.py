"""Pages in a real browser, opened from files: no request, no error, no script of others; pointer, keyboard and search; accessibility.

Screenshots of every page are kept in `out/screenshots`, or the folder that $RAWLOG_TESTS_SCREENSHOTS names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import rawlog

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
SCREENSHOTS = Path(os.environ.get("RAWLOG_TESTS_SCREENSHOTS", ROOT / "out" / "screenshots"))
#: A little of every system: the fewer elements a page has, the quicker axe-core is.
CODECS = ("gzip", "lz4", "mixed", "none", "snappy", "zstd")
SYSTEMS = ("kafka-crashed", "rocketmq", "ambry", "replay", *(f"kafka/codec-{one}-0" for one in CODECS))
#: Nothing takes so long, but the machine may be busy.
SECONDS = 120
SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"{SCRIPT}\x1b[31m\u202egnp.\"'&<img src=x onerror=alert(1)>"
KINDS = ("report", "verify", "repair", "diff", "rescue", "explain")
SIZES = {"commitlog_size": "65536", "queue_size": "6000", "index_slots": "100", "index_entries": "400"}
VIEWS = (("light", 1280), ("dark", 390))
#: A table that is cut at the right on a small screen scrolls by itself; the page does not.
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    hostile = make_hostile(tmp_path_factory.mktemp("hostile"))
    zstd = SAMPLES / "kafka" / "codec-zstd-0"
    rawlog.report([SAMPLES / one for one in SYSTEMS], folder / "report.html")
    rawlog.report(hostile, folder / "hostile.html")
    rawlog.verify(SAMPLES / "replay", html=folder / "verify.html")
    rawlog.repair(SAMPLES / "replay", folder / "out", dry_run=True, html=folder / "repair.html")
    rawlog.diff(zstd, SAMPLES / "kafka" / "codec-lz4-0", html=folder / "diff.html")
    rawlog.rescue(SAMPLES / "kafka-crashed", plan=True, html=folder / "rescue.html")
    rawlog.explain(SAMPLES / "kafka" / "compacted-zstd-0", offset=37, html=folder / "explain.html")
    rawlog.explain(str(hostile / "orders-0"), offset=0, html=folder / "hostile-explain.html")
    return folder


def make_hostile(folder: Path) -> Path:
    """Text that would do harm as markup or in a terminal: in keys, values, headers, topics and names of directories and files."""
    row = {"key": HOSTILE.encode(), "value": HOSTILE.encode(), "headers": [{"key": HOSTILE, "value": HOSTILE.encode()}]}
    rows = pa.Table.from_pylist([{**row, "timestamp": 1_700_000_000_000_000 + number * 1000} for number in range(20)])
    rawlog.write(folder, rows, format="kafka", topic="orders", partition=0)
    shutil.copytree(folder / "orders-0", folder / "<img src=x onerror=alert(1)>\x1b[31m\u202e-0")
    recording = {"key": [HOSTILE.encode()] * 9, "value": [b"v"] * 9}
    made = pa.table({name: pa.array(values, pa.binary()) for name, values in recording.items()})
    rawlog.write(folder / "<svg onload=alert(1)>.log", made, format="replay", accept_loss=["timestamp"])
    topic = HOSTILE.replace("/", "|")[:60]
    message = {"topic": "T" * len(topic.encode()), "value": b"v", "partition": 0, "timestamp": 1_700_000_000_000_000}
    rawlog.write(folder / "store", [message], format="rocketmq", **SIZES)
    for path in (folder / "store" / "commitlog").iterdir():
        path.write_bytes(path.read_bytes().replace(b"T" * len(topic.encode()), topic.encode()))
    return folder


@contextmanager
def opened(browser: Browser, path: Path, scheme: str = "light", width: int = 1280) -> Iterator[Page]:
    """A page from its file. Whatever it asks of the network, prints as an error, or says in a dialog, fails the test."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    context.set_default_timeout(SECONDS * 1000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on(
        "request", lambda request: wrong.append(f"request: {request.url}") if request.url != path.as_uri() else None
    )
    page.on("dialog", lambda dialog: (wrong.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    try:
        page.goto(path.as_uri())
        yield page
        assert wrong == []
    finally:
        context.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_opens_without_request_or_error_and_is_accessible(kind: str, browser: Browser, pages: Path) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for scheme, width in VIEWS:
        with opened(browser, pages / f"{kind}.html", scheme, width) as page:
            page.screenshot(path=SCREENSHOTS / f"{kind}-{scheme}-{width}.png")
            assert page.evaluate(OVERFLOW) == 0, f"wider than {width}"
            if scheme == "light":
                page.evaluate("document.querySelectorAll('details').forEach((one, at) => { one.open = at < 12; })")
            assert serious(page) == []


def serious(page: Page) -> list[str]:
    """What axe-core finds that keeps people from using a page."""
    from axe_playwright_python.sync_playwright import Axe

    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("kind", ["hostile", "hostile-explain"])
def test_hostile_text_stays_text(kind: str, browser: Browser, pages: Path) -> None:
    with opened(browser, pages / f"{kind}.html") as page:
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        shown = page.locator("body").inner_text()
        assert SCRIPT in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert page.locator("img, iframe, object, [onload], [onerror]").count() == 0
        assert page.locator("script:not([type])").count() == (2 if kind == "hostile" else 1)


def test_markup_that_got_in_by_mistake_would_not_run(browser: Browser, pages: Path, tmp_path: Path) -> None:
    """The policy of a page allows only the scripts that came with it, and no request."""
    page_file = tmp_path / "page.html"
    harm = '<script>document.title = "ran"</script><img src="data:," onerror="document.title = \'ran\'"><img src="http://127.0.0.1:9/">'
    page_file.write_text((pages / "verify.html").read_text().replace("</main>", f"{harm}</main>"))
    context = browser.new_context()
    page = context.new_page()
    blocked: list[str] = []
    page.on("console", lambda message: blocked.append(message.text))
    page.goto(page_file.as_uri())
    page.wait_for_load_state("networkidle")
    title = page.title()
    context.close()
    assert title.startswith("rawlog verify")
    assert sum("Content Security Policy" in one for one in blocked) >= 3, blocked


def test_charts_have_content_and_answer_to_pointer_and_keyboard(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / "report.html") as page:
        figure = page.locator("#system-kafka figure.chart").first
        figure.scroll_into_view_if_needed()
        figure.locator("canvas").wait_for()
        assert colours(figure) > 3
        assert int(figure.get_attribute("data-drawn") or 0) > 3
        reading = figure.locator(".reading")
        figure.locator(".u-over").hover()
        assert "records/s" in reading.inner_text()
        figure.locator(".plot").focus()
        page.keyboard.press("End")
        last = reading.inner_text()
        page.keyboard.press("Home")
        first = reading.inner_text()
        assert first < last
        assert " UTC · " in first
        light = figure.evaluate("one => one.querySelector('canvas').toDataURL()")
        page.emulate_media(color_scheme="dark")
        # The chart is drawn again, on another canvas.
        page.wait_for_function(
            "([one, light]) => { const canvas = one.querySelector('canvas'); return canvas && canvas.toDataURL() !== light; }",
            arg=[figure.element_handle(), light],
        )
        # The numbers are there without the chart, too.
        figure.locator("summary").press("Enter")
        assert figure.locator("tbody tr").count() > 3


def colours(figure: Any) -> int:
    """How many colours a chart has."""
    return int(
        figure.locator("canvas").evaluate(
            "one => new Set(new Uint32Array(one.getContext('2d').getImageData(0, 0, one.width, one.height).data.buffer)).size"
        )
    )


def test_tables_are_searched_and_sorted(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / "report.html") as page:
        part = page.locator("#system-kafka .filtered").last
        rows = part.locator("tbody tr:visible")
        every = rows.count()
        part.get_by_role("searchbox").fill("codec-Z")
        assert rows.count() == 1
        assert "codec-zstd" in rows.first.inner_text()
        part.get_by_role("searchbox").fill("")
        assert rows.count() == every
        head = part.get_by_role("button", name="records")
        head.focus()
        for order in ("descending", "ascending"):
            page.keyboard.press("Enter")
            assert part.locator(f"th[aria-sort={order}]").inner_text().startswith("records")
            numbers = [int(one.replace(",", "")) for one in rows.locator("td:nth-child(3)").all_inner_texts()]
            assert numbers == sorted(numbers, reverse=order == "descending")


def test_links_lead_to_the_parts_and_topics_open_by_keyboard(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / "report.html") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.get_by_role("navigation", name="Contents").get_by_role("link", name="LinkedIn Ambry").press("Enter")
        assert page.locator("#system-ambry").evaluate("one => Math.abs(one.getBoundingClientRect().top) < 100")
        topic = page.locator("#system-rocketmq details.topic").first
        assert not topic.locator("figure").first.is_visible()
        topic.locator("summary").first.press("Enter")
        topic.locator("figure canvas").first.wait_for()
        assert topic.locator("figure").first.is_visible()


def test_explain_lights_up_bytes_and_fields(browser: Browser, pages: Path) -> None:
    with opened(browser, pages / "explain.html") as page:
        row = page.locator("tr[data-n]", has=page.get_by_text("crc", exact=True))
        number = row.get_attribute("data-n")
        row.locator("td").first.hover()
        spans = page.locator(f'pre [data-n="{number}"]')
        assert "lit" in (spans.first.get_attribute("class") or "")
        assert page.locator("pre .covered").count() > 10, "what the checksum covers"
        assert page.locator("pre .covered.lit").count() == 0
        # The other way: bytes light up their field.
        other = page.locator('pre [data-n="2"]').first
        other.hover()
        assert page.locator("tr.lit").get_attribute("data-n") == "2"
        page.locator('tr[data-n="0"]').focus()
        for _ in range(3):
            page.keyboard.press("ArrowDown")
        assert page.locator("tr.lit").get_attribute("data-n") == "3"
        assert page.evaluate("document.activeElement.dataset.n") == "3"
        page.keyboard.press("End")
        assert page.locator("tr.lit").get_attribute("data-n") == page.locator("tr[data-n]").last.get_attribute("data-n")
        # The compressed payload is opened.
        assert page.get_by_text("Decompressed (zstd)").count() == 1
        assert page.locator("pre", has_text="ck-3").count() >= 1
