"""`rawlog cluster` on the directories of real brokers."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import rawlog
from tests.data.kraft import data_dir, image

SECRET = "NAZSe3JgWhjjADe7y6NWHhR2ETwEvZLoKXfaMOt37ZU="


def test_the_overview_names_brokers_topics_and_what_is_wrong(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"))
    assert done.code == 0
    for part in ("rawlogGolden430AAAAAAA", "as of offset 410, epoch 2", "4.3-IV0", "controllers 1 (leader)", "Brokers (1)", "fenced",
                 "Topics (25)", "meta-grown", "Offline partitions (39)", "Settings (43)", "retention.ms", "SCRAM-SHA-512"):  # fmt: skip
        assert part in done.text, part
    assert "Strays" not in done.text
    assert "Missing" not in done.text
    assert SECRET not in done.text


def test_json_has_a_line_for_everything(run: Callable[..., Any]) -> None:
    rows = run("cluster", data_dir("broker-4.3.0"), "--json").rows
    _, expected = image("broker-4.3.0")
    for table, name in (("topics", "TopicRecord"), ("partitions", "PartitionRecord"), ("configs", "ConfigRecord")):
        assert sum(row["table"] == table for row in rows) == sum(one["type"] == name for one in expected)
    assert rows[0]["table"] == "cluster"
    assert rows[0]["end_offset"] == 411


def test_secrets_are_shown_only_if_asked_for(run: Callable[..., Any]) -> None:
    assert SECRET not in run("cluster", data_dir("broker-4.3.0"), "--json").text
    assert SECRET in run("cluster", data_dir("broker-4.3.0"), "--json", "--show-secrets").text
    assert SECRET not in run("cluster", data_dir("broker-4.3.0"), "--diff", "0..410", "--json").text
    assert SECRET not in run("cluster", data_dir("broker-4.3.0"), "--log", "--json").text


def test_a_past_moment_and_one_topic(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"), "--at-offset", 200, "--topic", "meta-*")
    assert done.code == 0
    assert "meta-grown-2" in done.text
    assert "leader 1" in done.text
    assert "codec-none" not in done.text
    early = run("cluster", data_dir("broker-4.3.0"), "--at-time", "2026-11-15T21:50:05.211Z", "--json").rows
    assert [row["topic"] for row in early if row["table"] == "topics"] == ["codec-none"]


def test_the_log_is_told_in_sentences(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"), "--log")
    for part in (
        "controller 1 leads (voters 1)", "metadata.version is 30 (4.3-IV0)", "topic codec-none is created",
        "codec-none-0: replicas [1], in sync [1], leader 1", "topic broker-zstd: compression.type = zstd", "topic meta-gone is deleted",
        "user bob has a password for SCRAM-SHA-256", "broker 1 is unfenced", "is back to its default", "no leader",
    ):  # fmt: skip
        assert part in done.text, part
    rows = run("cluster", data_dir("broker-4.3.0"), "--log", "--json", "--topic", "meta-grown").rows
    assert {row["topic"] for row in rows} == {"meta-grown"}
    assert rows[0]["type"] == "TOPIC_RECORD"


def test_a_difference_is_told_and_ends_with_1(run: Callable[..., Any]) -> None:
    done = run("cluster", data_dir("broker-4.3.0"), "--diff", "23..26")
    assert done.code == 1
    assert done.text.splitlines() == ["+ topic codec-none", "+ partition codec-none-0", "+ partition codec-none-1"]
    assert run("cluster", data_dir("broker-4.3.0"), "--diff", "26..26").code == 0
    by_time = run("cluster", data_dir("broker-4.3.0"), "--diff", "2026-11-15T21:50:05Z..2026-11-15T21:50:05.3Z")
    assert by_time.text == done.text
    assert run("cluster", data_dir("broker-4.3.0"), "--diff", "5").code == 2


def test_strays_and_missing_partitions_are_found(run: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(data_dir("broker-4.3.0-crashed"), tmp_path / "data")
    (tmp_path / "data").chmod(0o755)
    (tmp_path / "data" / "crash-stream-0").rename(tmp_path / "data" / "unheard-of-3")
    done = run("cluster", tmp_path / "data")
    assert "Strays: on disk, unknown to the cluster (1)" in done.text
    assert "unheard-of-3" in done.text
    assert "Missing on disk (1)" in done.text
    rows = run("cluster", tmp_path / "data", "--json").rows
    assert {(row["table"], row["topic"], row["partition"]) for row in rows if row["table"] in ("stray", "missing")} == {
        ("stray", "unheard-of", 3),
        ("missing", "crash-stream", 0),
    }


def test_where_there_is_no_metadata_that_is_said(run: Callable[..., Any], tmp_path: Path) -> None:
    done = run("cluster", tmp_path)
    assert (done.code, "no file of any known format" in done.err) == (3, True)
    shutil.copytree(Path(data_dir("broker-4.3.0")) / "transactions-0", tmp_path / "transactions-0")
    done = run("cluster", tmp_path)
    assert (done.code, "no metadata log" in done.err) == (3, True)


def test_a_damaged_log_ends_with_1(run: Callable[..., Any], tmp_path: Path) -> None:
    shutil.copytree(data_dir("broker-4.3.0-crashed") / "__cluster_metadata-0", tmp_path / "__cluster_metadata-0")
    path = tmp_path / "__cluster_metadata-0" / f"{0:020d}.log"
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[2000] ^= 1
    path.write_bytes(data)
    assert run("cluster", tmp_path).code == 1
    for errors in ("skip", "stop"):
        done = run("cluster", tmp_path, "--errors", errors)
        assert done.code == 1
        assert ("Topics" if errors == "skip" else "Features") in done.text
        assert "cannot be read, passed over" in done.err


def test_the_overview_reports_only_gaps_that_its_state_depends_on(run: Callable[..., Any], tmp_path: Path) -> None:
    """A gap before a whole snapshot, or after the moment, was a finding although the state is complete."""
    folder = tmp_path / "__cluster_metadata-0"
    shutil.copytree(data_dir("broker-4.3.0") / "__cluster_metadata-0", folder)
    (folder / f"{53:020d}.log").unlink()  # the snapshots at 84, 165 and 337 cover its offsets
    early = "offsets 53 to 72 of the metadata log: missing"
    whole = run("cluster", data_dir("broker-4.3.0") / "__cluster_metadata-0", "--json")
    done = run("cluster", tmp_path, "--json")
    assert (done.code, done.rows[1:] == whole.rows[1:], "missing" in done.err) == (0, True, False)
    for moment, code in ((52, 0), (53, 1), (60, 1), (80, 1), (83, 0), (200, 0)):
        done = run("cluster", tmp_path, "--at-offset", moment, "--errors", "skip")
        assert (moment, done.code, early in done.err) == (moment, code, bool(code))
    for options in (("--log",), ("--diff", "400..400")):
        done = run("cluster", tmp_path, *options)
        assert (done.code, early in done.err) == (1, True)

    (folder / f"{359:020d}.log").unlink()
    late = "offsets 359 to 407 of the metadata log: missing"
    for options, code in (((), 1), (("--at-offset", 358), 0), (("--at-offset", 410), 1), (("--at-offset", 380), 1)):
        done = run("cluster", tmp_path, *options, "--errors", "skip")
        assert (options, done.code, late in done.err, early in done.err) == (options, code, bool(code), False)


def test_the_overview_reports_that_the_end_of_the_log_is_lost(run: Callable[..., Any], tmp_path: Path) -> None:
    """A snapshot of the producers says that the log was longer; the verb looked only at the log and its own snapshots."""
    folder = tmp_path / "__cluster_metadata-0"
    shutil.copytree(data_dir("broker-4.3.0") / "__cluster_metadata-0", folder)
    (folder / f"{408:020d}.log").unlink()
    lost = "offsets 408 to 410 of the metadata log: missing"
    for options, code in (
        ((), 1),
        (("--at-offset", 407), 0),
        (("--at-offset", 410), 1),
        (("--at-time", "2100-01-01"), 1),
    ):
        done = run("cluster", tmp_path, *options)
        assert (options, done.code, lost in done.err) == (options, code, bool(code))


def test_no_verb_shows_a_secret_unless_asked_to(run: Callable[..., Any], tmp_path: Path) -> None:
    """Rows of the log itself, and the bytes of a frame: salts and keys are asterisks, as many as there were."""
    raw = base64.b64decode(SECRET)
    folder = data_dir("broker-4.3.0") / "__cluster_metadata-0"
    log = folder / f"{0:020d}.log"
    asked = [("cat", folder, "--table", table, "--bytes", "hex", "--json") for table in ("records", "kafka.records")]
    asked += [
        ("cat", folder, "--raw"),
        ("tail", folder, "-n", "1000", "--bytes", "hex"),
        ("head", folder, "--arrow", "--limit", "1000"),
    ]
    alone = tmp_path / "any.log"
    shutil.copyfile(log, alone)
    asked += [("cat", alone, "--raw"), ("cat", alone, "--bytes", "hex", "--json")]
    offset = next(
        row["offset"]
        for row in run("cat", log, "--table", "kraft.metadata", "--option", "showSecrets=true", "--json").rows
        if SECRET in row["value"]
    )
    asked += [
        ("explain", log, "--offset", offset, *more) for more in ([], ["--json"], ["--html", tmp_path / "page.html"])
    ]
    forms = (raw, raw.hex().encode(), raw.hex(" ").encode(), raw[:15].hex(" ").encode())
    for arguments in asked:
        hidden, shown = run(*arguments), run(*arguments, "--show-secrets")
        page = tmp_path / "page.html"
        if page in arguments:
            assert hidden.code == 0
            run(*arguments)
            assert not any(form in page.read_bytes() + drawn(page) for form in forms)
            run(*arguments, "--show-secrets")
            assert raw in drawn(page)
            continue
        assert not any(form in hidden.out for form in forms), arguments
        assert any(form in shown.out for form in forms), arguments
        assert hidden.code == shown.code == 0
    rows = run("cat", folder, "--table", "records", "--json", "--bytes", "hex").rows
    [value] = [bytes.fromhex(row["value"]) for row in rows if row["offset"] == offset and len(row["value"]) > 60]
    assert b"*" * len(raw) in value


LOSSES = {"rocketmq": "offset", "ambry": "headers,key,offset,topic", "replay": "offset,partition,timestamp,topic"}


@pytest.mark.parametrize("form", ["kafka", "replay", "rocketmq", "ambry", "parquet", "jsonl", "csv"])
def test_no_format_gets_a_secret_unless_asked_to(run: Callable[..., Any], tmp_path: Path, form: str) -> None:
    """Formats of logs got the salts and keys of users in the clear, and tables did not."""
    raw = base64.b64decode(SECRET)
    folder = data_dir("broker-4.3.0") / "__cluster_metadata-0"
    values = rawlog.read(folder, table="kafka.records", show_secrets=True)["value"].to_pylist()
    assert any(raw in (value or b"") for value in values)
    losses = ("--accept-loss", LOSSES[form]) if form in LOSSES else ()
    if form == "rocketmq":
        losses += ("--option", "commitlog_size=1000000", "--option", "index_slots=100", "--option", "index_entries=400")
    for name, more in (("hidden", ()), ("shown", ("--show-secrets",))):
        target = tmp_path / name
        ran = run("convert", folder, target, "--to", form, "--engine", "local", *losses, *more)
        assert ran.code == 0, ran.err
        assert ("--show-secrets keeps them" in ran.err + ran.text) == (form in (*LOSSES, "kafka") and not more)
        held = b"".join(
            path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and target in (path, *path.parents)
        )
        if form == "parquet":
            held += b"".join(value or b"" for value in pq.ParquetDataset(target).read()["value"].to_pylist())
        forms = (raw, *(base64.b64encode(bytes(skipped) + raw)[4:-4] for skipped in range(3)))
        assert any(one in held for one in forms) == bool(more), form


def test_a_lake_a_report_and_differences_have_no_secrets(run: Callable[..., Any], tmp_path: Path) -> None:
    raw = base64.b64decode(SECRET)
    source = data_dir("broker-4.3.0")
    other = tmp_path / "other"
    shutil.copytree(source / "__cluster_metadata-0", other / "__cluster_metadata-0")
    (rewritten := tmp_path / "rewritten").mkdir()
    run(
        "convert",
        other / "__cluster_metadata-0",
        rewritten / "kafka",
        "--to",
        "kafka",
        "--engine",
        "local",
        "--show-secrets",
    )
    out = [
        run("report", source, "-o", tmp_path / "page.html", "--engine", "local").out,
        run("ingest", other, "--to", tmp_path / "lake", "--engine", "local").out,
        run("diff", other, rewritten / "kafka", "--engine", "local", "--json").out,
        run("diff", other, source, "--engine", "local").out,
        run("find", SECRET[:8], other).out,
        run("report", tmp_path / "lake", "-o", tmp_path / "lake.html", "--engine", "local").out,
        (tmp_path / "page.html").read_bytes(),
        (tmp_path / "lake.html").read_bytes(),
    ]
    for path in (tmp_path / "lake").rglob("*.parquet"):
        out += [repr(row).encode() for row in pq.read_table(path).to_pylist()]
    forms = (raw, raw.hex().encode(), raw.hex(" ").encode(), repr(raw)[2:-1].encode())
    forms += tuple(base64.b64encode(bytes(skipped) + raw)[4:-4] for skipped in range(3))
    assert not any(form in one for one in out for form in forms)


def drawn(page: Path) -> bytes:
    """The bytes that a page shows as hex digits, 16 on a line."""
    blocks = re.findall(r'<pre class="hex"[^>]*>(.*?)</pre>', page.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in re.sub("<[^>]+>", "", block).splitlines()]
    return b"".join(bytes.fromhex(line.lstrip().partition("  ")[2][: 16 * 3 - 1]) for line in lines)


def test_a_record_of_a_newer_version_hides_its_secrets_too() -> None:
    from rawlog.formats.kafka.cluster.metadata import raw_row
    from rawlog.formats.kafka.internal.messages import encode_framed
    from rawlog.formats.kafka.log.segment import hide_secrets

    user = {"name": "a", "mechanism": 1, "salt": b"salty", "storedKey": b"key", "serverKey": b"server", "iterations": 1}
    value = encode_framed("UserScramCredentialRecord", user)
    newer = value[:2] + b"\x09" + value[3:]
    for one in (value, newer):
        assert b"salty" not in hide_secrets(one)
        assert len(hide_secrets(one)) == len(one)
    assert "********" in raw_row(newer, False, None, False)["value"]
    assert "********" not in raw_row(newer, False, None, True)["value"]
    secret = {"resourceType": 4, "resourceName": "1", "name": "ssl.key.password", "value": "hunter2"}
    plain = secret | {"name": "retention.ms"}
    assert b"hunter2" not in hide_secrets(encode_framed("ConfigRecord", secret))
    assert hide_secrets(encode_framed("ConfigRecord", plain)) == encode_framed("ConfigRecord", plain)
    assert hide_secrets(b"\x01\x0banything") != b"\x01\x0banything"
    assert hide_secrets(b"\x02\x0banything") == b"\x02\x0banything"
