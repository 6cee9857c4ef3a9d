"""Report: one pass, the right numbers, and a page on which hostile text stays text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import rawlog
from rawlog.engines import choice
from rawlog.model.errors import OptionError, UnknownFormatError
from rawlog.model.finding import Findings
from rawlog.pages.report import Overview, System, Topic
from rawlog.reading.profile import Profile, merge_profiles
from rawlog.reading.tree import open_tree
from rawlog.verbs import verify
from rawlog.verbs.report import Survey
from tests.data.partitions import count_bytes, in_logs, make_partitions

SAMPLES = Path(__file__).parents[2] / "samples"
HOSTILE = b"<script>alert(1)</script>\x1b[31m\xe2\x80\xae\"'&"


@pytest.fixture(scope="module")
def partitions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_partitions(tmp_path_factory.mktemp("logs"))


@pytest.mark.parametrize("cut", [1 << 30, 200_000])
def test_each_byte_is_read_once_and_cuts_change_nothing(
    partitions: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "CUT", cut)
    tree = open_tree(str(partitions))
    read = count_bytes(monkeypatch)
    found = choice.run(Survey(), tree, threads=2).overview
    size = sum(file.size for file in tree if file.format == "kafka.log" and file.place.topic == "large")
    assert in_logs(read, "large") <= 1.1 * size
    (system,) = found.systems
    large = next(topic for topic in system.topics if topic.name == "large")
    own = large.profile
    assert (own.records, own.without_key, own.keys.first(1)) == (4000, 0, [(b"k", 4000)])
    assert own.payload == 4000 * 901
    assert own.distinct.count == 1
    assert large.partitions[0].offsets is not None
    assert (large.partitions[0].offsets.stop, large.partitions[0].offsets.count) == (4000, 0)


def test_the_numbers_are_those_of_the_rows() -> None:
    found = rawlog.report(SAMPLES)
    rows = rawlog.read(SAMPLES, table="records", errors="skip")
    kafka = next(one for one in found.systems if one.name == "kafka")
    for topic in kafka.topics:
        if topic.name == "trimmed":  # records before the log's start are in its files, and count
            continue
        own = rows.filter(np.array([one == topic.name for one in rows["topic"].to_pylist()]))
        assert topic.profile.records == own.num_rows, topic.name
        sizes = [len(row["key"] or b"") + len(row["value"] or b"") for row in own.to_pylist()]
        assert topic.profile.payload == sum(sizes)
        assert topic.profile.without_value == own["value"].null_count
    assert found.verdict == rawlog.verify(SAMPLES).verdict
    rocketmq = next(one for one in found.systems if one.name == "rocketmq")
    assert not any(topic.size for topic in rocketmq.topics), (
        "queues point to messages: their size is not that of a topic"
    )


def test_the_page_shows_what_each_system_has(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    rawlog.report(SAMPLES, page)
    text = page.read_text()
    for expected in (
        "What to do next", "rawlog repair", "Cluster map", "Brokers", "Blob states", "Queues", "Consumer groups",
        "Transactions", "Most frequent keys", "By codec", "Throughput of", "Message sizes of", "Offset gaps", "Numbers as a table",
    ):  # fmt: skip
        assert expected in text, expected
    assert text.count('class="chart"') >= 20
    assert "Content-Security-Policy" in text
    assert "unsafe" not in re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    assert not re.search(r'(src|href)="(?!#)', text), "no reference to anything outside"


def test_files_of_no_known_format_are_not_called_healthy(tmp_path: Path) -> None:
    """A directory with nothing but unknown files was answered with "Nothing needs repair". Next to known files they are named."""
    source, page = tmp_path / "source", tmp_path / "report.html"
    source.mkdir()
    (source / "notes.bin").write_bytes(b"\x93nothing that rawlog knows")
    with pytest.raises(UnknownFormatError, match="no file of any known format"):
        rawlog.report(source, output=page)
    assert not page.exists()
    shutil.copytree(SAMPLES / "kafka" / "codec-none-0", source / "codec-none-0")
    rawlog.report(source, output=page)
    assert "1 file of no known format: nothing in them was checked" in page.read_text()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    folder.mkdir()
    rows = pa.table({"key": pa.array([HOSTILE] * 9, pa.binary()), "value": pa.array([b"v"] * 9, pa.binary())})
    rawlog.write(folder / "a.log", rows, format="replay", accept_loss=["timestamp"])
    shutil.copytree(SAMPLES / "kafka" / "codec-none-0", folder / "<svg onload=alert(1)>-0")
    page = tmp_path / "page.html"
    rawlog.report(folder, page)
    text = page.read_text()
    assert "&lt;script&gt;alert(1)" in text
    for forbidden in ("<script>alert", "<img", "<svg onload", "\x1b", "\u202e"):
        assert forbidden not in text, forbidden


def test_hundreds_of_partitions_give_a_page_below_five_megabytes() -> None:
    rng = np.random.default_rng(1)
    topics = []
    for number in range(400):
        profiles = {}
        for partition in range(2):
            own = Profile(records=5000, payload=1 << 20)
            times = rng.integers(1_700_000_000_000_000, 1_700_900_000_000_000, 5000)
            own.series.add(times, times % 1000)
            own.sizes.add(times % (1 << 20))
            own.keys.add([b"key %d" % key for key in range(300)], [5] * 300)
            profiles[partition] = own
        topics.append(Topic(f"topic-{number}", profiles, merge_profiles(profiles.values())))
    system = System("x", "A system", 800, 1 << 30, topics, merge_profiles(one.profile for one in topics))
    page = Overview(("somewhere",), 800, 1 << 30, Findings(files=1), systems=[system]).to_html()
    assert len(page) < 5_000_000
    assert "topic-399" in page


def test_replicas_count_once(tmp_path: Path) -> None:
    for disk in ("one", "two"):
        shutil.copytree(SAMPLES / "kafka" / "codec-none-0", tmp_path / disk / "codec-none-0")
    alone = rawlog.report(tmp_path / "one").records
    assert rawlog.report(tmp_path).records == alone > 0


def test_a_page_is_not_written_into_a_source(tmp_path: Path) -> None:
    source = tmp_path / "data"
    shutil.copytree(SAMPLES / "replay", source)
    page = source / "page.html"
    with pytest.raises(OptionError):
        rawlog.report(source, page)
    for call in (rawlog.verify, lambda path, html: rawlog.repair(path, tmp_path / "out", html=html)):
        with pytest.raises(OptionError):
            call(source, html=page)
    assert not page.exists()
    assert not (tmp_path / "out").exists()


def test_other_verbs_write_pages_too(tmp_path: Path) -> None:
    source = SAMPLES / "replay"
    rawlog.verify(source, html=tmp_path / "verify.html")
    rawlog.repair(source, tmp_path / "out", dry_run=True, html=tmp_path / "repair.html")
    rawlog.diff(SAMPLES / "kafka" / "codec-zstd-0", SAMPLES / "kafka" / "codec-lz4-0", html=tmp_path / "diff.html")
    rawlog.rescue(SAMPLES / "kafka", plan=True, html=tmp_path / "rescue.html")
    shown = {"verify": "Damaged", "repair": "damaged bytes", "diff": "only in A", "rescue": "Nothing lost"}
    for verb, expected in shown.items():
        text = (tmp_path / f"{verb}.html").read_text()
        assert expected in text, verb
        assert f"rawlog {verb}" in text


def test_a_lake_has_a_report_of_its_records_and_findings(tmp_path: Path) -> None:
    source, lake, page = tmp_path / "source", tmp_path / "lake", tmp_path / "page.html"
    for name in ("codec-zstd-0", "codec-zstd-1", "compacted-0"):
        shutil.copytree(SAMPLES / "kafka" / name, source / name)
    shutil.copy(SAMPLES / "replay" / "bad-length.log", source)
    rawlog.ingest(source, lake, engine="local")
    found = rawlog.report(lake, page)
    files = rawlog.report(source)
    assert found.verdict == files.verdict == "damaged"
    assert found.records == files.records > 100
    (system,) = found.systems
    expected = {topic.name: topic.profile for one in files.systems for topic in one.topics}
    for topic in system.topics:
        own = expected["bad-length.log" if topic.name == "(no topic)" else topic.name]
        assert (topic.profile.payload, topic.profile.distinct.count) == (own.payload, own.distinct.count)
        assert (topic.profile.low, topic.profile.high) == (own.low, own.high)
    text = page.read_text()
    for shown in ("codec-zstd", "rawlog.findings", "kafka.batches", "SELECT code, path, message FROM findings"):
        assert shown in text, shown
    assert "rawlog repair " + str(lake) not in text
    with pytest.raises(OptionError, match="report of its own"):
        rawlog.report([lake, source])
    with pytest.raises(OptionError):
        rawlog.report(lake, lake / "page.html")


def test_findings_that_follow_from_others_come_after_their_cause(tmp_path: Path) -> None:
    shutil.copytree(SAMPLES / "rocketmq" / "store", tmp_path / "store")
    (tmp_path / "store" / "commitlog" / f"{65536:020}").unlink()
    found = rawlog.report(tmp_path / "store")
    (cause, *following) = found.causes
    assert cause.code == "rocketmq.store.missing-file"
    assert {one.follows for one in following} == {cause.code}
    assert "All of these follow from the findings of" in found.to_html()
    assert found.findings.errors == sum(one.count for one in following if one.severity == "error") > 1


def test_the_archive_for_spark_has_all_that_a_page_needs(tmp_path: Path) -> None:
    """`python -m rawlog.engines.spark.shipping`, which `make dist` runs, took itself for a package named `__main__` and failed."""
    archive = tmp_path / "rawlog.zip"
    subprocess.run([sys.executable, "-m", "rawlog.engines.spark.shipping", str(archive)], check=True)
    program = f"import rawlog; rawlog.report({str(SAMPLES / 'replay')!r}, 'page.html'); print(rawlog.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(archive)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(str(archive))
    page = (tmp_path / "page.html").read_text()
    assert "Leon Sorokin" in page
    assert "var uPlot=" in page
