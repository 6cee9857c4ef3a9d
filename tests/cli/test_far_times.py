"""Times that no calendar of Python's knows: shown, and never an internal error (issue 13, C3)."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import rawlog
from tests.reference import kafka as reference

FAR = 300_000_000_000_000
"""Milliseconds, in the year 11476."""
SHOWN = "+011476-08-15T05:20:00.000Z"


@pytest.fixture
def logs(tmp_path):
    """A metadata log and an ordinary one whose records are of that time, each a directory that was copied alone."""
    feature = bytes((1, 12, 0, 17)) + b"metadata.version" + bytes((0, 7, 0))
    for name, value in (("controller/__cluster_metadata-0", feature), ("plain-0", b"value")):
        folder = tmp_path / "logs" / name
        folder.mkdir(parents=True)
        records = reference.encode_record(0, 0, None, value)
        data = reference.encode_batch(records, record_count=1, base_timestamp=FAR, max_timestamp=FAR)
        (folder / f"{0:020}.log").write_bytes(data)
        (folder / f"{0:020}.timeindex").write_bytes(FAR.to_bytes(8, "big") + bytes(4))
    return tmp_path / "logs"


def test_verify_has_a_finding(run, logs):
    """`verify` of a metadata log with such a time ended with "internal error: OverflowError", exit code 70."""
    ran = run("verify", logs, "--json")
    assert ran.code == 0, ran
    *found, summary = ran.rows
    assert [row["code"] for row in found] == ["kafka.log.far-timestamp"] * 2
    assert all(SHOWN in row["message"] for row in found)
    assert summary["verdict"] == "clean"


@pytest.mark.parametrize(
    "verb",
    [
        ("cat", "--json"), ("cat",), ("cat", "--csv"), ("cat", "--table", "kafka.batches"), ("cat", "--table", "files"),
        ("cat", "--table", "kraft.metadata"), ("cat", "--table", "findings"), ("cat", "--table", "kafka.timeindex"), ("ls",),
        ("ls", "--json"), ("tail",), ("cluster",), ("cluster", "--json"), ("cat", "--format", "%d{strftime[%F]}\\n"),
        ("cat", "--where", "timestamp > '2024-01-01'"), ("cat", "--since", "2024-01-01", "--json"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_every_verb_shows_the_time(run, logs, verb):
    ran = run(verb[0], logs, *verb[1:])
    assert ran.code == 0, ran
    assert SHOWN in ran.text, ran


def test_explain_shows_the_time(run, logs):
    assert SHOWN in run("explain", logs / "plain-0" / f"{0:020}.log", "--at", "0").text


def test_diff_convert_and_ingest_take_the_time(run, logs, tmp_path):
    assert run("diff", logs, logs).code == 0
    assert run("convert", logs / "plain-0", tmp_path / "rows.jsonl", "--to", "jsonl", "--engine", "local").code == 0
    assert json.loads((tmp_path / "rows.jsonl").read_text())["timestamp"] == SHOWN
    ran = run("ingest", logs, "--to", tmp_path / "lake", "--engine", "local")
    assert ran.code == 0, ran


def test_a_time_index_leads_to_rows_after_a_far_entry(logs):
    """Microseconds of the far entry did not fit, became a time of long ago, and rows in front of it were passed over."""
    folder = logs / "plain-0"
    late = (1 << 63) // 1000 * 2
    (folder / f"{0:020}.timeindex").write_bytes(late.to_bytes(8, "big") + bytes((0, 0, 0, 9)))
    assert rawlog.read(folder, since="2024-01-01").num_rows == 1


@pytest.mark.parametrize("far", [(1 << 63) - 1, -(1 << 63), (1 << 63) // 1000 + 1])
def test_a_time_that_no_column_can_hold_is_null_and_loses_no_row(run, tmp_path, far):
    """Brokers take any time. `cat` ended with an error there, and `verify` said `kafka.log.records`."""
    folder = tmp_path / "plain-0"
    folder.mkdir()
    entry = reference.encode_entry(1, 3, b"k", b"old", timestamp=far)
    data = b"".join(
        reference.encode_batch(
            reference.encode_record(0, 0, b"k", b"v"),
            record_count=1,
            base_offset=offset,
            base_timestamp=time,
            max_timestamp=time,
        )
        for offset, time in enumerate((FAR, far, 1_700_000_000_000))
    )
    (folder / f"{0:020}.log").write_bytes(data + entry)
    ran = run("cat", folder, "--json")
    assert (ran.code, [row["timestamp"] for row in ran.rows]) == (0, [SHOWN, None, "2023-11-14T22:13:20.000Z", None])
    assert run("count", folder).text.strip() == "4"
    *found, summary = run("verify", folder, "--json").rows
    assert [(row["code"], row["offset"]) for row in found] == [("kafka.log.far-timestamp", at) for at in (0, 1, 3)]
    assert summary["verdict"] == "clean"
    ran = run("convert", folder, tmp_path / "rows.jsonl", "--to", "jsonl", "--engine", "local")
    assert ran.code != 0
    assert "timestamp" in ran.err
    accepted = ("--to", "jsonl", "--engine", "local", "--accept-loss", "timestamp")
    assert run("convert", folder, tmp_path / "rows.jsonl", *accepted).code == 0


def test_a_rewritten_wrapper_keeps_its_far_times(tmp_path):
    """An entry that stays of a compressed one of magic 1 is written again from its columns, which have no such time."""
    from rawlog.formats.kafka.log.heads import heads
    from rawlog.formats.kafka.log.records import milliseconds
    from rawlog.formats.kafka.log.segment import decode_run, scan
    from rawlog.formats.kafka.partition.erase import keep_records
    from rawlog.kernels import byte_view

    far = (1 << 62) + 5
    inside = b"".join(reference.encode_entry(1, number, b"k", b"v", timestamp=far) for number in range(2))
    data = reference.encode_entry(1, 1, None, gzip.compress(inside), timestamp=far, attributes=1)
    frames = scan(byte_view(data), 0)
    left = keep_records(frames, heads(frames), np.array([2]), np.array([True, False]))
    found = decode_run(left.frames, left.head, {"timestamp"}, 1 << 20)
    assert milliseconds(found.arrays["timestamp"]).tolist() == [far]
