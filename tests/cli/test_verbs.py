"""What each verb prints and how it ends."""

from __future__ import annotations

import base64
import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import click
import pyarrow as pa
import pytest

from rawlog.cli import cli
from tests.cli.conftest import HEADER, entry, recording
from tests.data.golden import golden_path, kafka_cases, replay_cases

SAMPLES = Path(__file__).parents[2] / "samples"


def test_help_groups_the_verbs_that_work(run):
    text = run("--help").text
    order = [text.index(title) for title in ("Look:", "Check and repair:")]
    assert order == sorted(order)
    context = click.Context(cli)
    for verb in cli.list_commands(context):
        assert f"\n  {verb} " in text
        assert run(verb, "-h").code == 0
        command = cli.get_command(context, verb)
        assert command is not None
        assert command.get_short_help_str(200).endswith(".")


def test_version_and_completion(run):
    assert run("--version").text.startswith("rawlog, version ")
    assert "_RAWLOG_COMPLETE=bash_complete" in run("completion", "bash").text
    assert run("completion", "tcsh").code == 2


def test_help_and_formats_import_nothing_heavy(spawn, environment):
    import subprocess
    import sys

    for verb in ("--help", "formats"):
        code = (
            "import sys; from rawlog.cli import cli\n"
            f"try: cli.main([{verb!r}])\nexcept SystemExit: pass\n"
            "bad = {'numpy', 'pyarrow', 'numba', 'pyspark', 'rich', 'pandas', 'sqlglot'} & set(sys.modules)\n"
            "sys.exit(str(bad) if bad else 0)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def test_formats(run):
    rows = run("formats", "--json").rows
    names = [row["format"] for row in rows]
    assert "replay.recording" in names
    assert next(row for row in rows if row["format"] == "replay.recording")["tables"] == ["records", "replay.entries"]
    assert "replay.recording" in run("formats").text


@pytest.mark.parametrize("case", replay_cases(), ids=str)
def test_cat_gives_the_messages_of_a_real_recording(run, case):
    rows = run("cat", case.path, "--json").rows
    assert len(rows) == case.count == int(run("count", case.path).text)
    if case.topic is None:
        return

    def bytes_of(value):
        if value is None:
            return b""
        return base64.b64decode(value["base64"]) if isinstance(value, dict) else value.encode()

    by_value = sorted(record.value or b"" for record in case.topic)
    if len(case.topic) == len(rows):
        assert sorted(bytes_of(row["value"]) for row in rows) == by_value


def test_cat_gives_the_records_of_a_real_partition(run):
    case = next(case for case in kafka_cases("broker-4.3.0") if case.partition == "codec-zstd-0")
    rows = run("cat", case.path, "--json").rows
    assert [row["offset"] for row in rows] == [record.offset for record in case.records]
    assert {(row["topic"], row["partition"]) for row in rows} == {("codec-zstd", 0)}
    assert int(run("count", case.path).text) == len(rows)
    formed = run("cat", case.path, "--format", r"%o %k{base64} %v{base64} %H %d\n").text.splitlines()
    for line, record in zip(formed, case.records, strict=True):
        key, value = (base64.b64encode(part or b"").decode() for part in (record.key, record.value))
        stamp = -1 if record.timestamp is None else record.timestamp
        assert line == f"{record.offset} {key} {value} {len(record.headers)} {stamp}"


def test_columns_of_json_are_those_of_the_table_in_its_order(run, log):
    first = run("cat", log, "--json").rows[0]
    assert list(first) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert first["timestamp"] == "2024-02-02T10:15:30.000Z"
    assert first["partition"] is None
    assert run("cat", log, "--json", "--columns", "offset,value").rows[1] == {"offset": 1, "value": "one"}


def test_selections(run, log):
    def values(*options):
        ran = run("cat", log, "--raw", *options)
        assert ran.code == 0, ran.err
        return ran.text.split()

    assert values("--from-offset", 1, "--to-offset", 3) == ["one", "two"]
    assert values("-o", 3) == ["three", "four"]
    assert values("-o", "-2") == ["three", "four"]
    assert values("-o", "end") == []
    assert values("-o", "beginning", "--limit", 1) == ["zero"]
    assert values("-o", "s@1706868932000", "-o", "e@1706868934000") == ["two", "three"]
    assert values("--since", "2024-02-02T10:15:33Z") == ["three", "four"]
    assert values("--until", "1706868931000") == ["zero"]
    assert values("--key", "k", "--limit", 2) == ["zero", "one"]
    assert values("--key", "other") == []
    assert values("--where", "length(value) = 3 and offset > 1") == ["two"]
    assert values("--find", "o", "--where", "offset <> 0") == ["one", "two", "four"]
    assert values("--find", "it's \\ not there") == []
    assert run("count", log, "--where", "value like '%e%'").text == "3\n"
    assert run("count", log, "--json", "--limit", 2).rows == [{"count": 2}]


def test_topic_and_partition_choose_directories(run):
    data = golden_path("kafka", "broker-4.3.0", "data")
    rows = run("cat", data, "--topic", "codec-g*", "--topic", "codec-none", "--partition", "1", "--json").rows
    assert {(row["topic"], row["partition"]) for row in rows} == {("codec-gzip", 1), ("codec-none", 1)}


def test_isolation(run):
    case = next(case for case in kafka_cases("broker-4.3.0") if case.partition == "transactions-0")
    rows = run("cat", case.path, "--isolation", "read_committed", "--json").rows
    assert [row["offset"] for row in rows] == case.committed_offsets


def test_csv(run, tmp_path):
    path = tmp_path / "r.log"
    values = [b'a "quoted", one', b"", b"\xff\x00", b"line\nend", b" space", b"plain"]
    path.write_bytes(recording(*values))
    rows = list(csv.DictReader(io.StringIO(run("cat", path, "--csv").text, newline="")))
    assert [row["value"] for row in rows] == [
        'a "quoted", one', "", '{"base64":"/wA="}', "line\nend", " space", "plain",
    ]  # fmt: skip
    assert rows[0]["timestamp"] == "2024-02-02T10:15:30.000Z"
    assert rows[0]["partition"] == ""
    hexes = list(csv.DictReader(io.StringIO(run("cat", path, "--csv", "--bytes", "hex").text)))
    assert hexes[2]["value"] == "ff00"


def test_bytes_in_one_form(run, tmp_path):
    path = tmp_path / "r.log"
    path.write_bytes(recording(b'a\\"\xff\n'))
    for form, want in (("base64", "YVwi/wo="), ("hex", "615c22ff0a"), ("escape", 'a\\\\"\\xff\\x0a')):
        assert run("cat", path, "--json", "--bytes", form).rows[0]["value"] == want


def test_raw_and_its_delimiter(run, log):
    assert run("cat", log, "--raw").out == b"zero\none\ntwo\nthree\nfour\n"
    assert run("cat", log, "--raw", "--delimiter", r"\x00", "--limit", 2).out == b"zero\0one\0"
    assert run("cat", log, "--raw", "--delimiter", "", "--limit", 2).out == b"zeroone"
    assert run("cat", log, "--raw", "--columns", "key", "--limit", 1).out == b"k\n"


def test_arrow(run, log):
    table = pa.ipc.open_stream(run("cat", log, "--arrow").out).read_all()
    assert table.column("value").to_pylist() == [b"zero", b"one", b"two", b"three", b"four"]
    nothing = pa.ipc.open_stream(run("cat", log, "--arrow", "--limit", 0).out).read_all()
    assert nothing.schema == table.schema


def test_head_and_tail_are_the_ends_of_cat(run, log):
    assert run("head", "-n", 2, log, "--raw").text == "zero\none\n"
    assert run("tail", "-n", 2, log, "--raw").text == "three\nfour\n"
    assert run("tail", "-n", 0, log, "--raw").text == ""
    assert run("tail", "--limit", 2, log, "--raw").text == "three\nfour\n"
    assert run("tail", "--limit", 1, "-n", 2, log, "--raw").text == "four\n"
    assert run("tail", "-n", 99, log, "--json").out == run("cat", log, "--json").out
    assert run("tail", "-n", 1, log, "--raw", "--where", "offset < 3").text == "two\n"
    assert run("tail", "-n", 1, log, "--table", "replay.entries", "--json").rows[0]["number"] == 4
    assert run("tail", "-n", 1, log, "--table", "files", "--json").rows[0]["state"] == "ok"


def test_tail_over_many_segments(run):
    data = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
    everything = run("cat", data, "--json").out.splitlines()
    for count in (1, 7, 50, len(everything) + 1):
        assert run("tail", "-n", count, data, "--json").out.splitlines() == everything[-count:]


def test_tail_reads_across_windows(run, tmp_path, monkeypatch):
    path = tmp_path / "big.log"
    path.write_bytes(HEADER + b"".join(entry(b"%06d" % number) for number in range(200_000)))
    assert run("tail", "-n", 3, path, "--raw").text == "199997\n199998\n199999\n"
    offsets = [row["offset"] for row in run("tail", "-n", 100_000, path, "--json", "--columns", "offset").rows]
    assert offsets == list(range(100_000, 200_000))


def test_ls(run):
    data = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
    rows = run("ls", data, "--json").rows
    logs = [row for row in rows if row["format"] == "kafka.log"]
    assert len(rows) == sum(1 for _ in data.iterdir())
    assert all(row["state"] in ("ok", "empty") for row in logs)
    assert sum(row["records"] for row in logs) == int(run("count", data).text)
    text = run("ls", data).text
    assert "segments-by-size-0" in text
    assert re.search(r"segments-by-size-0 .* 288 +0 +288 ", text)
    assert run("ls", data.parent, "--topic", "codec-none", "--json").rows[0]["topic"] == "codec-none"


def test_explain_shows_every_byte(run, log):
    for options in (["--number", 1], ["--offset", 1], ["--at", len(HEADER) + len(entry(b"zero", b"k")) + 3]):
        (node,) = run("explain", log, "--json", *options).rows
        assert node["position"] == len(HEADER) + len(entry(b"zero", b"k"))
        shown = b"".join(bytes.fromhex(child.get("hex", "")) for child in node["children"])
        assert shown == entry(b"one", b"k", 1706868931)
    text = run("explain", log).text
    assert "file header" in text
    assert '"zero"' in text
    assert len(run("explain", log, "--at", 0, "--json").rows) == 1
    assert run("explain", log, "--number", 5).code == 2
    assert run("explain", log, "--at", 10_000).code == 2
    assert run("explain", log, "--at", 1, "--number", 1).code == 2


def test_explain_finds_an_offset_in_the_directory_of_a_partition(run):
    folder = golden_path("kafka", "broker-4.3.0", "data", "segments-by-size-0")
    last = max(folder.glob("*.log"))
    nodes = run("explain", folder, "--offset", str(int(last.stem)), "--json").rows
    assert nodes == run("explain", last, "--number", "0", "--json").rows
    assert run("explain", folder, "--offset", str(10**9)).code == 2
    assert run("explain", folder).code == 3
    assert "partitions here" in run("explain", folder.parent, "--offset", "5").err


def test_explain_writes_a_page_of_its_own(run, tmp_path):
    path = tmp_path / "r.log"
    path.write_bytes(recording(b"<script>alert(1)</script>" * 40))
    page = tmp_path / "out.html"
    assert run("explain", path, "--html", page).code == 0
    text = page.read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert "http-equiv" in text
    assert "src=" not in text


def test_explain_long_bytes_are_cut_for_people_only(run, tmp_path):
    path = tmp_path / "r.log"
    path.write_bytes(recording(bytes(range(256)) * 4))
    assert "(1,024 bytes)" in run("explain", path, "--number", 0).text
    (node,) = run("explain", path, "--number", 0, "--json").rows
    assert bytes.fromhex(node["children"][-1]["hex"]) == bytes(range(256)) * 4


def test_verify(run, log):
    ran = run("verify", log, "--json")
    assert (ran.code, ran.rows) == (0, [{"verdict": "clean", "files": 1, "frames": 5, "errors": 0, "warnings": 0}])
    damaged = golden_path("replay", "damaged", "v2-hole.log")
    ran = run("verify", damaged, "--json")
    assert ran.code == 1
    assert ran.rows[-1]["verdict"] == "damaged"
    assert ran.rows[0]["code"] == "replay.recording.framing"
    assert ran.rows[0]["position"] > 0
    assert run("verify", damaged, "--skip", "replay.recording.framing").code == 0
    assert run("verify", damaged, "--rule", "replay", "--json").rows[-1]["errors"] == 1
    assert "damaged: 1 file," in run("verify", damaged).text


def test_one_lost_segment_is_one_message(run, tmp_path):
    """Six findings of one lost file were six messages, and 80 units of a queue 80 lines."""
    kafka, store = tmp_path / "kafka", tmp_path / "store"
    shutil.copytree(SAMPLES / "kafka", kafka)
    (kafka / "segments-by-size-0" / f"{240:020}.log").unlink()
    shutil.copytree(SAMPLES / "rocketmq" / "store", store)
    (store / "commitlog" / f"{65536:020}").unlink()
    for place, code in ((kafka, "kafka.partition.gap"), (store, "rocketmq.store.missing-file")):
        done = run("verify", place, "--skip", "kafka.log.open-transaction")
        assert done.code == 1
        messages = [line for line in done.text.splitlines() if re.match(r"  (error|warning|info) ", line)]
        assert len(messages) == 1, done.text
        assert f"[{code}]" in messages[0]
        assert "follows from it" in done.text
        assert len(run("verify", place, "--json").rows) > 3  # machines get every finding


def test_verify_lists_its_rules(run):
    rows = run("verify", "--rules", "--json").rows
    assert all(row["about"] and row["severity"] in ("error", "warning", "info") for row in rows)
    assert "replay.recording.framing" in run("verify", "--rules", "--rule", "replay").text
    assert run("verify").code == 2
    assert "did you mean" in run("verify", "--rules", "--rule", "replay.recording.framin").err


def test_table_for_people_is_safe_and_aligned(run, tmp_path):
    path = tmp_path / "r.log"
    path.write_bytes(recording("\x1b[31mred\u202e日本".encode(), b"\xff"))
    lines = run("cat", path).text.splitlines()
    assert lines[0].split() == ["topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
    assert "\\x1b[31mred\\u202e日本" in lines[1]
    assert "\\xff" in lines[2]


def test_json_of_every_verb_parses(run, log):
    for arguments in (
        ("ls", log),
        ("verify", log),
        ("count", log),
        ("explain", log),
        ("formats",),
        ("verify", "--rules"),
    ):
        ran = run(*arguments, "--json")
        assert ran.code == 0
        assert all(isinstance(row, dict) for row in ran.rows)


def test_hostile_file_names_cannot_steer_the_terminal(run, tmp_path):
    name = "evil\x1b[2J\u202e\n.log"
    path = tmp_path / name
    path.write_bytes(recording(b"x")[:-1] + b"")
    for arguments in (("ls", path), ("verify", path), ("cat", path), ("explain", path, "--number", 0)):
        ran = run(*arguments)
        assert "\x1b" not in ran.text + ran.err
        assert "\u202e" not in ran.text + ran.err
    row = run("ls", path, "--json")
    assert b"\x1b" not in row.out
    assert json.loads(row.text)["path"] == os.fspath(path)


def test_names_that_are_not_utf8(run, tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.log"))
    path.write_bytes(recording(b"x"))
    assert run("cat", path, "--raw").text == "x\n"
    assert run("ls", path).code == 0
    assert "\\xff.log" in run("ls", path).text


@pytest.mark.parametrize(
    "place",
    [
        ("kafka", "legacy", "broker-0.10.2.2", "data"),
        ("kafka", "legacy", "broker-0.8.2.2", "data"),
        ("rocketmq", "5.1.4", "store"),
        ("rocketmq", "broker-5.3.3", "store"),
    ],
    ids="/".join,
)
def test_ls_counts_what_compressed_sets_and_batch_messages_hold(run, place):
    """`ls` was blank for RocketMQ files with batch messages, and said 40 records where 573 were: wrappers were left out."""
    path = golden_path(*place)
    expected = int(run("count", path).text)
    listed = run("ls", path, "--json").rows
    assert sum(row["records"] or 0 for row in listed) == expected
    assert run("ls", path).text.splitlines()[-1].endswith(f" {expected:,} records")


def test_restore_counts_the_records_of_message_sets(run, tmp_path):
    path = golden_path("kafka", "legacy", "broker-0.10.2.2", "data")
    ran = run("restore", path, tmp_path / "made", "--engine", "local")
    assert f"{int(run('count', path).text):,} records" in ran.text, ran
