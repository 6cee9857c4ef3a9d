"""`rawlog browse`, asked over a real socket: what it shows, what it finds, and whom and what it refuses."""

from __future__ import annotations

import html
import http.client
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode, urljoin, urlsplit

import psutil
import pyarrow as pa
import pytest

import rawlog
from rawlog.model.errors import AccessError
from rawlog.model.table import RECORDS
from rawlog.pages.browser.app import is_own_host
from rawlog.pages.browser.files import OpenedPaths
from rawlog.pages.browser.rows import Cursor, rows_of
from rawlog.pages.browser.server import Server
from rawlog.pages.browser.shell import Query
from tests.data.golden import golden_path

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "samples"
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.\"'&<img src=x onerror=alert(1)>"


class Client:
    """Asks a server, as a browser would."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def ask(
        self,
        page: str,
        *,
        method: str = "GET",
        token: bool = True,
        headers: dict[str, str] | None = None,
        **given: object,
    ) -> tuple[int, dict[str, str], bytes]:
        query = urlencode({name.rstrip("_"): str(value) for name, value in given.items()}, errors="surrogateescape")
        path = (f"/{self.server.token}/" if token else "/") + page + (f"?{query}" if query else "")
        connection = http.client.HTTPConnection(self.server.host, self.server.port, timeout=120)
        try:
            connection.putrequest(method, path, skip_host="Host" in (headers or {}))
            for name, value in (headers or {}).items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            try:
                return answer.status, found, answer.read()
            except http.client.IncompleteRead as error:
                return answer.status, {**found, "broken": "yes"}, error.partial
        finally:
            connection.close()

    def text(self, page: str, status: int = 200, **given: object) -> str:
        """What a person reads on a page."""
        found, _, body = self.ask(page, **given)
        assert found == status, body.decode()
        plain = re.sub(r"<[^>]*>", " ", body.decode())
        return " ".join(html.unescape(plain).split())

    def links(self, page: str, **given: object) -> list[str]:
        _, _, body = self.ask(page, **given)
        return [html.unescape(one) for one in re.findall(r'href="([^"]*)"', body.decode())]


@pytest.fixture(scope="module")
def samples() -> Iterator[Client]:
    with rawlog.browse(SAMPLES) as server:
        yield Client(server)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition of three thousand records in several segments."""
    folder = tmp_path_factory.mktemp("log")
    rows = pa.table(
        {
            "key": pa.array([f"key-{number}".encode() for number in range(3000)], pa.binary()),
            "value": pa.array([json.dumps({"n": number}).encode() for number in range(3000)], pa.binary()),
            "timestamp": pa.array(
                [1_700_000_000_000_000 + number * 1_000_000 for number in range(3000)], pa.timestamp("us", "UTC")
            ),
        }
    )
    rawlog.write(folder, rows, format="kafka", topic="orders", partition=0, segment_bytes=50_000, batch_records=50)
    return folder


@pytest.fixture(scope="module")
def orders(log: Path) -> Iterator[Client]:
    with rawlog.browse(log) as server:
        yield Client(server)


def scope_of(log: Path) -> str:
    return f"{log.name}/orders-0"


# What is shown ------------------------------------------------------------------------------------------------------------


def test_the_first_page_lists_partitions_and_stores_of_all_systems(samples: Client) -> None:
    shown = samples.text("at")
    for name in ("transactions-0", "crash-stream-1", "rocketmq", "ambry", "replay"):
        assert name in shown


def test_a_directory_lists_what_is_in_it_and_links_lead_on(samples: Client) -> None:
    shown = samples.text("at", in_="samples/kafka/transactions-0")
    assert "00000000000000000005.timeindex" in shown
    assert link_to(samples, "at", "samples/kafka/transactions-0", "00000000000000000000.log")


def link_to(client: Client, page: str, scope: str, last: str) -> str:
    wanted = quote(f"{scope}/{last}", safe="")
    return next(one for one in client.links(page, in_=scope) if one.endswith(f"in={wanted}"))


def test_every_link_of_every_kind_of_page_works(samples: Client) -> None:
    """A walk over what the pages link to: no page fails, and none leads out of the server."""
    waiting, seen = ["at"], set()
    kinds: dict[str, int] = {}
    base = f"http://{samples.server.host}:{samples.server.port}/{samples.server.token}/"
    while waiting:
        one = waiting.pop(0)
        if one.startswith(("#", "assets", "data:")):
            continue
        full = urljoin(base + "at", one)
        assert full.startswith(base), one
        path = urlsplit(full)
        kind = f"{path.path.rpartition('/')[2]} {re.sub('=[^&]*', '', path.query)}"
        if full in seen or kinds.get(kind, 0) >= 4:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        seen.add(full)
        status, headers, body = samples.ask(full[len(base) :])
        # An export ends at damage, and there is some: it says so.
        assert status in (200, 307) or (status == 400 and "export" in kind) or status == 422, (one, body)
        if headers["content-type"].startswith("text/html"):
            waiting += [html.unescape(found) for found in re.findall(r'href="([^"]*)"', body.decode())]
    assert len(seen) > 40


@pytest.mark.parametrize("system", ["kafka", "rocketmq", "replay", "ambry"])
def test_rows_of_every_system_lead_to_their_bytes(samples: Client, system: str) -> None:
    rows = [one for one in samples.links("rows", in_=f"samples/{system}", n=5) if one.startswith("bytes?")]
    assert len(rows) == 5
    for one in rows:
        assert "Bytes and fields" in samples.text(one)


def test_rows_from_an_offset_on_and_the_next_pages(orders: Client, log: Path) -> None:
    given = {"in_": scope_of(log), "from_": 1234, "n": 100}
    shown = orders.text("rows", **given)
    assert "key-1234" in shown
    assert "key-1333" in shown
    assert "key-1334" not in shown
    assert "key-1233" not in shown
    found: list[int] = []
    page: str | None = f"rows?in={quote(scope_of(log), safe='')}&n=700"
    while page is not None:
        _, _, body = orders.ask(page)
        found += [int(one) for one in re.findall(r">key-(\d+)<", body.decode())]
        page = next((html.unescape(one) for one in re.findall(r'href="([^"]*cursor=[^"]*)"', body.decode())), None)
    assert found == list(range(3000))


@pytest.mark.parametrize(
    ("given", "first", "count"),
    [
        ({"since": "2023-11-14T22:13:25", "until": "2023-11-14T22:13:30"}, "key-5", 5),
        ({"key": "key-2718"}, "key-2718", 1),
        ({"text": '"n": 314}'}, "key-314", 1),
        ({"where": "offset % 1000 = 7"}, "key-7", 3),
        ({"from_": 10, "to": 13}, "key-10", 3),
        ({"last": 1, "n": 4}, "key-2996", 4),
    ],
)
def test_rows_are_searched(orders: Client, log: Path, given: dict[str, object], first: str, count: int) -> None:
    _, _, body = orders.ask("rows", in_=scope_of(log), **given)
    found = re.findall(r">(key-\d+)<", body.decode())
    assert found[0] == first
    assert len(found) == count


def test_an_id_is_found_by_the_index_of_its_system(samples: Client) -> None:
    shown = samples.text("rows", in_="samples/rocketmq", id="7F000001ABCD00000000000000000001")
    assert "1 row of records" in shown
    assert "hello" in shown


def test_topics_and_queues_in_one_file_are_separated(samples: Client) -> None:
    _, _, body = samples.ask("export", in_="samples/rocketmq", topic="T1", partition=0)
    rows = [json.loads(line) for line in body.splitlines()]
    assert rows
    assert {(row["topic"], row["partition"]) for row in rows} == {("T1", 0)}
    shown = samples.text("rows", in_="samples/rocketmq", topic="T1", partition=0)
    assert f"{len(rows)} rows of records" in shown
    assert "--topic T1 --partition 0" in shown
    assert "There is no such row" in samples.text("rows", in_="samples/rocketmq", topic="none")


def test_values_are_decoded_with_the_schemas_among_the_files() -> None:
    """The text of decoded values is searched by an expression; a record shows its value decoded next to its bytes."""
    folder = golden_path("schemas", "confluent", "data")
    rows = [row for row in rawlog.rows(folder, decode="value=auto") if row["value_schema"] and row["topic"][0] != "_"]
    chosen = rows[0]
    with rawlog.browse(folder) as server:
        client = Client(server)
        given = {"topic": chosen["topic"], "partition": chosen["partition"], "from_": chosen["offset"], "n": 1}
        shown = client.text("rows", **given, decode="value=auto")
        assert "value_schema" in shown
        assert str(chosen["value_schema"]["subject"]) in shown
        _, _, body = client.ask("export", **given, decode="value=auto@written")
        assert "value_error" in json.loads(body.splitlines()[0])
        place = next(one for one in client.links("rows", **given, decode="value=auto") if one.startswith("bytes?"))
        assert "decode=value%3Dauto" in place
        assert "value_schema" in client.text(place)
        assert "unknown way to decode" in client.text("rows", status=400, decode="value=magic")


def test_the_bytes_of_a_record_with_its_values(orders: Client, log: Path) -> None:
    files = [one.name for one in sorted((log / "orders-0").glob("*.log"))]
    scope = f"{scope_of(log)}/{files[0]}"
    shown = orders.text("bytes", in_=scope, offset=42, row=42)
    assert "Record 42" in shown
    assert '{ "n": 42 }' in shown, "JSON is shown with its lines"
    assert "base_offset" in shown
    assert "Next frame" in shown
    following = next(one for one in orders.links("bytes", in_=scope, offset=42) if "frame=" in one)
    previous = next(one for one in orders.links(following) if "at=" in one)
    assert (
        orders.text(previous).split("bytes ")[1].split()[:3]
        == orders.text("bytes", in_=scope, offset=42).split("bytes ")[1].split()[:3]
    )


def test_a_frame_of_many_records_is_shown_in_part(tmp_path: Path) -> None:
    rows = pa.table({"value": pa.array([b"v"] * 5000, pa.binary())})
    rawlog.write(tmp_path / "d", rows, format="kafka", topic="t", partition=0, batch_records=5000)
    with rawlog.browse(tmp_path / "d") as server:
        client = Client(server)
        status, _, body = client.ask("bytes", in_="d/t-0/00000000000000000000.log", offset=900, row=900)
    assert status == 200
    assert len(body) < 400_000
    assert b"offset 900" in body
    assert b"parts, of which" in body


def test_damage_is_shown_in_its_place(tmp_path: Path, log: Path) -> None:
    """A batch with a wrong checksum: the rows around it are shown, with the finding; its bytes can be looked at."""
    shutil.copytree(log, tmp_path / "d")
    segment = min((tmp_path / "d" / "orders-0").glob("*.log"))
    data = bytearray(segment.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second + 100] ^= 0xFF
    segment.write_bytes(data)
    with rawlog.browse(tmp_path / "d") as server:
        client = Client(server)
        shown = client.text("rows", in_="d/orders-0", n=120)
        assert "key-49" in shown
        assert "key-50 " not in shown
        assert "key-100" in shown
        assert f"byte {second:,}" in shown
        assert "WRONG" in client.text("bytes", in_=f"d/orders-0/{segment.name}", frame=second)
        client.text("findings", in_="d/orders-0", start=1)
        shown = wait_for(client, "Damaged")
        assert "kafka.log" in shown
        place = next(one for one in client.links("findings", in_="d/orders-0") if one.startswith("bytes?"))
        assert "kafka.log" in client.text(place), "the finding, at its bytes"
        assert "1 error" in client.text("at", in_="d")
        status, headers, _ = client.ask("export", in_="d/orders-0")
        assert status == 400 or headers["broken"], "nobody takes it for all of it"
        assert any("errors=skip" in one for one in client.links("rows", in_="d/orders-0", n=120))
        status, _, body = client.ask("export", in_="d/orders-0", errors="skip")
        assert status == 200
        assert body.count(b"\n") == 2950


def wait_for(client: Client, wanted: str) -> str:
    """The page of findings when verification is over."""
    for _ in range(600):
        shown = client.text("findings", in_="d/orders-0")
        if wanted in shown:
            return shown
        time.sleep(0.1)
    raise AssertionError(shown)


def test_what_is_exported_is_what_was_searched_for(orders: Client, log: Path) -> None:
    given = {"in_": scope_of(log), "from_": 100, "to": 200}
    status, headers, body = orders.ask("export", **given, as_="jsonl")
    assert status == 200
    assert headers["content-disposition"] == 'attachment; filename="orders-0.jsonl"'
    assert [json.loads(line)["offset"] for line in body.splitlines()] == list(range(100, 200))
    _, _, body = orders.ask("export", **given, as_="csv")
    assert body.splitlines()[0].startswith(b"key,value,topic")
    assert len(body.splitlines()) == 101
    _, _, body = orders.ask("export", **given, as_="arrow")
    assert pa.ipc.open_stream(io.BytesIO(body)).read_all().column("offset").to_pylist() == list(range(100, 200))


def test_one_file_is_searched_and_exported_alone(orders: Client, log: Path) -> None:
    files = sorted((log / "orders-0").glob("*.log"))
    start = int(files[1].stem)
    _, _, body = orders.ask("export", in_=f"{scope_of(log)}/{files[0].name}")
    assert body.count(b"\n") == start


def test_rows_of_other_tables(orders: Client, log: Path) -> None:
    assert "base_offset" in orders.text("rows", in_=scope_of(log), table="kafka.batches")
    assert "00000000000000000000.log" in orders.text("rows", in_=scope_of(log), table="files")


def test_a_file_and_several_roots_of_one_name(log: Path, tmp_path: Path) -> None:
    other = tmp_path / log.name
    shutil.copytree(log, other)
    with rawlog.browse([SAMPLES / "replay" / "basic.log", log, other]) as server:
        client = Client(server)
        shown = client.text("at")
        for name in ("basic.log", f"{log.name}/", f"{log.name} (2)/", "1 of 2 replicas"):
            assert name in shown
        assert "Bytes and fields" in client.text("bytes", in_="basic.log")
        assert "key-7" in client.text("rows", in_=f"{log.name} (2)", from_=7)
        assert "100 rows of records" in client.text("rows")


def test_a_lake_is_asked_with_sql(tmp_path: Path, log: Path) -> None:
    pytest.importorskip("pyiceberg")
    rawlog.ingest(log, tmp_path / "lake", engine="local")
    with rawlog.browse(tmp_path / "lake") as server:
        client = Client(server)
        assert "is a lake: ask it with SQL" in client.text("at")
        question = "SELECT count(*) AS many, max(octet_length(value)) AS largest FROM records"
        assert "many largest 3,000" in client.text("sql", q=question)


def test_a_search_that_takes_long_goes_on_where_it_was(
    orders: Client, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every window ends the time of its page: the pages together find what one would."""
    monkeypatch.setattr("rawlog.io.walk.FIRST_WINDOW", 4096)
    listing = OpenedPaths([str(log)]).listing()
    found, pages, cursor = [], 0, None
    while True:
        selection = Query({"where": "offset % 1000 = 7"}).selection()
        page = rows_of(listing, listing.scope(""), RECORDS, selection, cursor=cursor, seconds=-1.0)
        found += [row.values["offset"] for row in page.rows]
        pages, cursor = pages + 1, page.next
        if cursor is None:
            break
        cursor = Cursor.parse(str(cursor))
    assert found == [7, 1007, 2007]
    assert pages > 3


# SQL ----------------------------------------------------------------------------------------------------------------------


def test_sql_is_answered_and_exported(orders: Client) -> None:
    question = "SELECT count(*) AS many, max(offset) AS last FROM records"
    shown = orders.text("sql", q=question)
    assert "many last 3,000 2,999" in shown
    status, _, body = orders.ask("answer", q=question, as_="csv")
    assert status == 200
    assert body == b"many,last\n3000,2999\n"


@pytest.mark.parametrize(
    "question",
    [
        "SELECT * FROM read_csv('/etc/passwd', header = false)",
        "SELECT content FROM read_text('/etc/passwd')",
        "COPY (SELECT 1) TO '{target}'",
        "ATTACH '{target}'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
        "SET memory_limit = '64GB'",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM glob('/*')",
    ],
)
def test_sql_reaches_nothing_but_what_was_opened(orders: Client, tmp_path: Path, question: str) -> None:
    target = tmp_path / "made"
    asked = question.format(target=target)
    shown = orders.text("sql", q=asked)
    answer = shown.split("Answer", 1)[1]
    assert "root:" not in answer
    assert "row" not in answer.split("Tables")[0].split(".")[0].split()[:2], answer
    assert not target.exists()
    assert orders.ask("answer", q=asked)[0] == 400


ENDLESS = "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT count(*) AS many FROM t"


@pytest.mark.parametrize(
    "question",
    [
        "SELECT len(list_resize([1], 1000000000)) AS many",
        "SELECT sum(len(x)) AS many FROM (SELECT list_resize([i], 2000000) AS x FROM range(1000) AS t(i) ORDER BY x)",
        "SELECT length(repeat('x', 2000000000)) AS many",
    ],
)
def test_a_statement_has_little_memory(orders: Client, question: str) -> None:
    """DuckDB does not count all memory that it takes: the first one took 12.6 GB, and the server was killed."""
    before = psutil.Process().memory_info().rss
    assert "needs more memory than the browser gives it" in orders.text("sql", q=question)
    assert "needs more memory than the browser gives it" in orders.text("answer", 400, q=question)
    assert psutil.Process().memory_info().rss - before < 256 << 20
    assert "many 3,000" in orders.text("sql", q="SELECT count(*) AS many FROM records")


def test_an_endless_statement_is_ended(orders: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawlog.pages.browser.sql.SECONDS", 1.0)
    for page, status in (("sql", 200), ("answer", 400)):
        assert "cancelled" in orders.text(page, status, q=ENDLESS)
    assert not orders.server.statements._running


def test_a_statement_ends_with_whoever_asked(log: Path) -> None:
    """Other pages are answered while it runs; and at the end of the server nothing is left of it."""

    def running(count: int) -> list[psutil.Process]:
        end = time.monotonic() + 100
        while len(found := list(server.statements._running)) != count and time.monotonic() < end:
            time.sleep(0.05)
        assert len(found) == count
        return [psutil.Process(one.pid) for one in found]

    def ask(page: str) -> http.client.HTTPConnection:
        made = http.client.HTTPConnection(server.host, server.port)
        made.request("GET", f"/{server.token}/{page}?{urlencode({'q': ENDLESS})}")
        return made

    with rawlog.browse(log) as server:
        client = Client(server)
        asking = [ask("sql"), ask("answer")]
        processes = running(2)
        assert "orders-0" in client.text("at")
        assert "key-42" in client.text("rows", from_=42)
        for one in asking:
            one.close()
        running(0)
        assert not psutil.wait_procs(processes, timeout=100)[1]
        last = ask("sql")
        processes = running(1)
    assert not psutil.wait_procs(processes, timeout=100)[1]
    last.close()


def test_the_rows_of_a_page_are_bounded(orders: Client) -> None:
    """A few rows can be large enough for all memory of the server, though not for that of a statement."""
    question = "SELECT repeat('x', 700000) AS long FROM range(100)"
    assert "more than 64 MiB" in orders.text("sql", q=question)
    assert "the first 500 rows" in orders.text("sql", q="SELECT * FROM range(1000000)")


def test_damage_is_not_left_out_of_an_answer_in_silence(samples: Client) -> None:
    question = "SELECT count(*) AS many FROM replay.entries"
    shown = samples.text("sql", q=question)
    assert "invalid key size" in shown
    assert "many" not in shown.split("Answer without what is damaged")[0].split("Answer")[1]
    assert "many" in samples.text("sql", q=question, errors="skip").split("without what is damaged")[0]


def test_what_is_wrong_with_a_question_is_said(orders: Client) -> None:
    assert "did you mean" in orders.text("sql", q="SELECT ofset FROM records")
    assert "unknown table" in orders.text("rows", status=400, table="recrods")
    assert "time 'soon'" in orders.text("rows", status=400, since="soon")
    assert "whole number" in orders.text("rows", status=400, from_="-1")
    assert "not a place" in orders.text("rows", status=400, cursor="x")


# Who is refused -----------------------------------------------------------------------------------------------------------


def test_without_the_token_nothing_is_answered(samples: Client) -> None:
    for path in ("", "at", "assets/style.css", "wrong/at", samples.server.token[:-1] + "/at"):
        status, headers, body = samples.ask(path, token=False)
        assert status == 403
        assert b"samples" not in body
        assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(samples: Client, host: str) -> None:
    """DNS rebinding: a page of another site whose name leads to 127.0.0.1 asks with its own name."""
    assert samples.ask("at", headers={"Host": host})[0] in (400, 421)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:9999", "LOCALHOST", "[::1]:80"])
def test_names_and_addresses_of_this_machine_are_its_own(host: str) -> None:
    assert is_own_host(host)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_get_is_answered(samples: Client, method: str) -> None:
    assert samples.ask("at", method=method)[0] in (400, 405)


def test_it_listens_on_this_machine_only(samples: Client) -> None:
    listening = [one for one in psutil.Process().net_connections("inet") if one.status == psutil.CONN_LISTEN]
    assert {one.laddr.ip for one in listening if one.laddr.port == samples.server.port} == {"127.0.0.1"}


def test_every_answer_has_a_strict_policy(samples: Client) -> None:
    for page, given in (
        ("at", {}),
        ("rows", {"in_": "nowhere"}),
        ("export", {"in_": "samples/replay/basic.log"}),
        ("none", {}),
    ):
        _, headers, _ = samples.ask(page, **given)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    "name",
    [
        "../etc/passwd",
        "/etc/passwd",
        "samples/../../etc",
        "samples/kafka/../../README.md",
        "samples\x00",
        "samples/kafka/..",
    ],
)
def test_a_name_that_was_not_opened_is_not_found(samples: Client, name: str) -> None:
    for page in ("at", "rows", "bytes", "findings", "export"):
        assert samples.ask(page, in_=name)[0] in (400, 404)


def test_a_path_in_the_address_is_no_file(samples: Client) -> None:
    for path in ("assets/../../etc/passwd", "assets/%2e%2e%2fapp.py", "assets/app.py", "../at"):
        assert samples.ask(path)[0] in (403, 404)


def test_links_that_lead_out_are_left_out(tmp_path: Path, log: Path) -> None:
    """A symbolic link to a file or directory that was not opened is not followed; one that stays inside is."""
    shutil.copytree(log, tmp_path / "d")
    secret = tmp_path / "secret"
    shutil.copytree(log / "orders-0", secret / "private-0")
    (tmp_path / "d" / "private-0").symlink_to(secret / "private-0")
    (tmp_path / "d" / "passwd").symlink_to("/etc/passwd")
    (tmp_path / "d" / "again.log").symlink_to(min((tmp_path / "d" / "orders-0").glob("*.log")))
    with rawlog.browse(tmp_path / "d") as server:
        client = Client(server)
        shown = client.text("at")
        assert "left out" in shown
        assert "passwd" not in shown.replace("left out", "")
        assert "private" not in shown
        assert client.ask("at", in_="d/passwd")[0] == 404
        assert client.ask("rows", in_="d/private-0")[0] == 404
        assert client.ask("at", in_="d/again.log")[0] == 200
        assert "private" not in client.text("sql", q="SELECT DISTINCT topic FROM records").split("Tables")[0]
        # A file that becomes a link after it was listed.
        segment = min((tmp_path / "d" / "orders-0").glob("*.log"))
        client.text("at", in_=f"d/orders-0/{segment.name}")
        segment.unlink()
        segment.symlink_to("/etc/passwd")
        assert client.ask("bytes", in_=f"d/orders-0/{segment.name}")[0] == 404


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    row = {"key": HOSTILE.encode(), "value": HOSTILE.encode(), "headers": [{"key": HOSTILE, "value": HOSTILE.encode()}]}
    made = pa.Table.from_pylist([{**row, "timestamp": 1_700_000_000_000_000}])
    rawlog.write(tmp_path / "d", made, format="kafka", topic="orders", partition=0)
    evil = "<img src=x onerror=alert(1)>\x1b[31m\u202e\"' -0"
    shutil.copytree(tmp_path / "d" / "orders-0", tmp_path / "d" / evil)
    (tmp_path / "d" / os.fsdecode(b"\xff<b>.log")).write_bytes(b"x")
    with rawlog.browse(tmp_path / "d") as server:
        client = Client(server)
        pages = [("at", {}), ("at", {"in_": f"d/{evil}"}), ("at", {"in_": r"d/\xff<b>.log"}), ("rows", {"in_": f"d/{evil}"}),
                 ("bytes", {"in_": f"d/{evil}/00000000000000000000.log", "row": 0}), ("rows", {"text": HOSTILE}),
                 ("sql", {"q": "SELECT * FROM records"}), ("sql", {"q": f"</textarea>{HOSTILE}"}), ("at", {"in_": HOSTILE}),
                 ("rows", {"table": HOSTILE}), ("findings", {"in_": f"d/{evil}", "start": 1})]  # fmt: skip
        for page, given in pages:
            status, _, body = client.ask(page, **given)
            found = Harm(body.decode())
            assert status in (200, 400, 404), body.decode()
            assert found.elements == {"assets/page.js", "assets/browse.js"}, page
            assert "\x1b" not in found.text, page
            assert "\u202e" not in found.text, page
            assert "<script>alert(1)</script>" in found.text or page == "findings" or given.get("in_") != HOSTILE


class Harm(HTMLParser):
    """The text of a page, and what in it could do something: scripts by their address, images, frames, handlers of events."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.elements, self.is_box = "", set[str](), False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.is_box = tag == "textarea"  # what was typed is given back as it was
        if tag in ("script", "img", "iframe", "object", "embed", "base", "svg") and "aria-hidden" not in given:
            self.elements.add(given.get("src") or tag)
        self.elements.update(name for name in given if name.startswith("on") or name == "style")
        places = [value or "" for name, value in attrs if name in ("href", "src", "action") and value != "data:,"]
        self.elements.update(value for value in places if ":" in value[:12])

    def handle_data(self, data: str) -> None:
        self.text += "" if self.is_box else data
        self.is_box = False


def test_nothing_is_changed_by_looking(tmp_path: Path, log: Path) -> None:
    shutil.copytree(log, tmp_path / "d")
    before = {one: (one.stat().st_mtime_ns, one.stat().st_size) for one in sorted(tmp_path.rglob("*"))}
    with rawlog.browse(tmp_path / "d") as server:
        client = Client(server)
        for page in ("at", "rows", "export", "findings"):
            client.ask(page, in_="d/orders-0", start=1)
        client.ask("sql", q="CREATE TABLE made AS SELECT * FROM records")
    assert {one: (one.stat().st_mtime_ns, one.stat().st_size) for one in sorted(tmp_path.rglob("*"))} == before


def test_a_log_that_grows_is_seen_to_grow(tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawlog.pages.browser.files.FRESH", 0.0)
    monkeypatch.setattr("rawlog.pages.browser.files.PATIENCE", 0)
    files = sorted((log / "orders-0").glob("*.log"))
    folder = tmp_path / "d" / "orders-0"
    folder.mkdir(parents=True)
    shutil.copy(files[0], folder)
    with rawlog.browse(tmp_path / "d") as server:
        client = Client(server)
        assert "There is no such row" in client.text("rows", from_=int(files[1].stem))
        shutil.copy(files[1], folder)
        assert f"key-{int(files[1].stem)}" in client.text("rows", from_=int(files[1].stem))


# The command --------------------------------------------------------------------------------------------------------------


def test_the_command_prints_the_address_and_ends_with_ctrl_c(log: Path) -> None:
    command = [sys.executable, "-m", "rawlog", "browse", str(log), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            found = json.loads(running.stdout.readline())
            connection = http.client.HTTPConnection("127.0.0.1", found["port"], timeout=60)
            connection.request("GET", urlsplit(found["url"]).path)
            assert connection.getresponse().status == 200
            connection.close()
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 130
        finally:
            running.kill()


def test_a_path_that_does_not_exist_and_a_taken_port_are_errors(tmp_path: Path, samples: Client) -> None:
    with pytest.raises(AccessError, match="no such file"):
        rawlog.browse(tmp_path / "none")
    with pytest.raises(AccessError, match="in use"):
        rawlog.browse(SAMPLES, port=samples.server.port)
