"""Convert: what goes in comes out, or is refused by name; and a log without some records is the same log otherwise."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rawlog
from rawlog.engines import choice
from rawlog.lakes.sources import BLOCK, kind_of, source_tree
from rawlog.lakes.targets import LossError, outlet
from rawlog.model.errors import (
    AccessError,
    CorruptError,
    EncodeError,
    OptionError,
    UnknownFormatError,
)
from rawlog.model.report import Action, Report
from rawlog.model.table import RECORDS
from rawlog.reading.select import Selection
from rawlog.registry import table_named
from rawlog.verbs.convert import Convert
from tests.data.ambry_stores import store_path
from tests.data.golden import KafkaCase, golden_path, kafka_cases
from tests.data.rocketmq_stores import store as rocketmq_store
from tests.reference import kafka as reference

SMALL = {"commitlog_size": "1048576", "queue_size": "2000", "index_slots": "100", "index_entries": "400"}
KAFKA = golden_path("kafka", "broker-4.3.0", "data")
T = 1_700_000_000_000
#: What a recording cannot keep.
LOST = "offset,headers,topic,partition,timestamp,timestampType,value,key"


def convert(
    source: Path | str | list[Path],
    target: Path | str,
    to: str,
    *,
    table: str = "records",
    options: dict[str, str] | None = None,
    accept: tuple[str, ...] = (),
    force: bool = False,
    threads: int = 2,
    drop: tuple[bytes, ...] = (),
    dry_run: bool = False,
    **selection: Any,
) -> Report:
    made = outlet(to, str(target), table=table_named(table), options=options, accepted=accept, overwrite=force)
    paths = [str(one) for one in (source if isinstance(source, list) else [source])]
    with Convert(made, selection=Selection(**selection), drop=drop, dry_run=dry_run) as job:
        return choice.run(job, source_tree(paths, made.table), threads=threads)


def rows(path: Path | str, **given: Any) -> list[dict[str, Any]]:
    return rawlog.read(path, **given).to_pylist()


def row(offset: int, /, **changes: Any) -> dict[str, Any]:
    return {
        "key": b"k%d" % (offset % 3), "value": b"v%d" % offset, "topic": "orders", "partition": 0, "offset": offset,
        "timestamp": (T + offset) * 1000, "timestampType": 0, "headers": [],
    } | changes  # fmt: skip


def table_of(*given: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(given), schema=RECORDS.schema)


def log_of(folder: Path, *given: dict[str, Any], **options: Any) -> Path:
    rawlog.write(folder, table_of(*given), format="kafka", **options)
    return folder


# Tables ------------------------------------------------------------------------------------------------------------

SOURCES = [KAFKA, golden_path("replay", "v2"), rocketmq_store("broker-5.3.3"), store_path("store-small")]


@pytest.mark.parametrize("source", SOURCES, ids=["kafka", "replay", "rocketmq", "ambry"])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl.gz", "rows.jsonl", "folder"])
def test_rows_of_every_system_come_back_from_a_table(source: Path, name: str, tmp_path: Path) -> None:
    to = "parquet" if name == "folder" else str(kind_of(name))
    made = convert(source, tmp_path / name, to)
    whole = rawlog.read(source)
    assert made.counts["rows"] == whole.num_rows
    again = tmp_path / "again.parquet"
    assert convert(tmp_path / name, again, "parquet").counts["rows"] == made.counts["rows"]
    found = pq.read_table(again)
    assert found.schema.equals(RECORDS.schema)
    assert found.to_pylist() == whole.to_pylist()


@pytest.mark.parametrize("system", ["kafka", "rocketmq", "ambry"])
def test_one_file_of_a_log_is_read_as_it_is_stored(system: str, tmp_path: Path) -> None:
    """The diagnosis of a store took the files that were not named for lost: `convert 1_0_log` ended with 1."""
    if system == "ambry":
        file = store_path("store-small") / "1_0_log"
    elif system == "rocketmq":
        file = golden_path("rocketmq", "4.9.8", "store", "commitlog", "00000000000000000000")
    else:
        file = max(path for path in KAFKA.rglob("*.log") if int(path.stem))
    report = rawlog.convert(str(file), str(tmp_path / "rows.jsonl"), to="jsonl")
    assert report.exit_code == 0, report.lines()
    assert report.counts["rows"] == rawlog.count(str(file))


def test_rows_that_only_an_index_has_are_named(tmp_path: Path) -> None:
    """Repair writes updates of a lost log segment again from its index: rows of a table cannot have them."""
    shutil.copytree(store_path("store-small"), tmp_path / "9")
    (tmp_path / "9" / "1_0_log").unlink()
    report = rawlog.convert(str(tmp_path / "9"), str(tmp_path / "rows.jsonl"), to="jsonl")
    lost = [entry.reason for entry in report.entries if entry.action is Action.LOST]
    assert report.exit_code == 1
    assert any("DELETE of blob" in reason and "only 1_0_18_index has it" in reason for reason in lost)


def test_any_table_goes_to_a_file(tmp_path: Path) -> None:
    convert(KAFKA / "codec-gzip-0", tmp_path / "x.parquet", "parquet", table="kafka.batches")
    assert pq.read_table(tmp_path / "x.parquet").equals(rawlog.read(KAFKA / "codec-gzip-0", table="kafka.batches"))
    with pytest.raises(OptionError, match=r"table kafka\.batches goes to parquet, jsonl, csv"):
        convert(KAFKA / "codec-gzip-0", tmp_path / "y", "replay", table="kafka.batches")


def test_a_directory_gets_one_file_for_each_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rawlog.verbs.convert.SPLIT_SIZE", 4096)
    convert(KAFKA / "segments-by-size-0", tmp_path / "out", "jsonl")
    files = sorted((tmp_path / "out").iterdir())
    assert [one.name for one in files] == [f"part-{number:05d}.jsonl" for number in range(len(files))]
    assert len(files) > 2
    convert(tmp_path / "out", tmp_path / "x.parquet", "parquet")
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == rows(KAFKA / "segments-by-size-0")
    assert [one.name for one in tmp_path.iterdir() if one.name.startswith(".")] == []


def test_a_selection_holds_for_every_target(tmp_path: Path) -> None:
    source = log_of(tmp_path / "log", *(row(number) for number in range(100)))
    convert(source, tmp_path / "a.jsonl", "jsonl", where="offset <> 12", from_offset=11, to_offset=21)
    convert(tmp_path / "a.jsonl", tmp_path / "b", "kafka", key=b"k0")
    assert [one["offset"] for one in rows(tmp_path / "b")] == [15, 18]
    made = convert(source, tmp_path / "c.parquet", "parquet", limit=7)
    assert (made.counts["rows"], pq.read_table(tmp_path / "c.parquet").num_rows) == (7, 7)
    convert(source, tmp_path / "d.parquet", "parquet", last=3)
    assert pq.read_table(tmp_path / "d.parquet").column("offset").to_pylist() == [97, 98, 99]
    convert(source, tmp_path / "e.parquet", "parquet", topics=("nothing",))
    assert pq.read_table(tmp_path / "e.parquet").num_rows == 0


def test_a_lake_is_a_source(tmp_path: Path) -> None:
    """Data files of a lake are in no order; a partition's rows are put together by their offsets."""
    from rawlog.lakes.ingest import Ingest
    from rawlog.reading.tree import open_tree

    source = tmp_path / "log"
    log_of(source, *(row(number) for number in range(50)), batch_records="7", segment_bytes="600")
    with Ingest(str(tmp_path / "lake")) as job:
        choice.run(job, open_tree(source))
    convert(tmp_path / "lake", tmp_path / "back", "kafka")
    assert rows(tmp_path / "back") == rows(source)
    convert(tmp_path / "lake", tmp_path / "files.jsonl", "jsonl", table="files")
    with pytest.raises(AccessError, match="no table"):
        convert(tmp_path / "lake", tmp_path / "x.jsonl", "jsonl", table="ambry.blobs")


@pytest.mark.parametrize(
    ("name", "data"),
    [("a.parquet", b"no"), ("a.jsonl", b'{"x": 1}\n'), ("a.jsonl", b'{"key": [1]}\n'), ("a.jsonl", b'{"offset": "\xff"}'),
     ("a.jsonl", b'{"offset": "seven"}'), ("a.jsonl", b"[]"), ("a.jsonl", b'{"key": {"base64": "?"}}')],
)  # fmt: skip
def test_a_table_that_is_none_is_an_error(name: str, data: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UnknownFormatError, match=name):
        convert(tmp_path / name, tmp_path / "out.parquet", "parquet")
    assert [one.name for one in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("rows", [1, BLOCK // 10])
@pytest.mark.parametrize("end", [b"[]", b'{"key": k}', b'\n\n{"key": "\xff"}'])
def test_a_table_that_ends_in_something_else_is_damaged(rows: int, end: bytes, tmp_path: Path) -> None:
    """Only a file without a first row is none of its format: `convert` ended with 1 for it, other verbs with 3. A small file was one, too,
    whatever came before the fault, and the message had the line of no file.
    """
    (tmp_path / "a.jsonl").write_bytes(b'{"key": "k"}\n' * rows + end)
    line = rows + 1 + end.count(b"\n")
    with pytest.raises(CorruptError, match=rf"a.jsonl: .*line {line}"):
        convert(tmp_path / "a.jsonl", tmp_path / "out.parquet", "parquet")


@pytest.mark.parametrize("form", ["rocketmq", "replay", "ambry", "jsonl", "parquet", "csv"])
def test_no_other_format_gets_the_keys_of_users(form: str, tmp_path: Path) -> None:
    """RocketMQ's files had the salts and keys of metadata records in the clear."""
    salt = b"1ky01p5fd2xf9eidtccpsctw37"
    lost = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]

    def holds_salt(**options: Any) -> bool:
        place = tmp_path / "-".join(["out", *options])
        rawlog.convert(KAFKA / "__cluster_metadata-0", place, to=form, accept_loss=lost, **options)
        files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
        values = [
            pq.read_table(path)["value"].to_pylist() if form == "parquet" else [path.read_bytes()] for path in files
        ]
        return any(salt in (value or b"") for one in values for value in one)

    assert not holds_salt()
    assert form in ("jsonl", "csv") or holds_salt(show_secrets=True)


def test_csv_is_what_cat_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rawlog.cli import cli

    source = KAFKA / "edge-cases-0"
    convert(source, tmp_path / "x.csv", "csv")
    cli.main(["cat", "--csv", str(source)], standalone_mode=False)
    assert (tmp_path / "x.csv").read_text() == capsys.readouterr().out
    with pytest.raises(OptionError, match="CSV does not tell bytes from text"):
        convert(tmp_path / "x.csv", tmp_path / "y", "kafka")


# Systems -----------------------------------------------------------------------------------------------------------


def gapless(case: KafkaCase) -> bool:
    found = case.records
    offsets = [one.offset for one in found]
    return (
        bool(found)
        and offsets == list(range(offsets[0], offsets[0] + len(offsets)))
        and all(one.value is not None and one.timestamp_type == 0 for one in found)
    )


CASES = [case for case in kafka_cases() if not case.is_legacy and "crashed" not in case.broker]
ROUND_TRIPS = [case for case in CASES if gapless(case)]


@pytest.mark.parametrize("case", ROUND_TRIPS, ids=str)
def test_kafka_to_rocketmq_and_back_is_the_same(case: KafkaCase, tmp_path: Path) -> None:
    convert(case.path, tmp_path / "store", "rocketmq", options=SMALL)
    assert rawlog.verify(tmp_path / "store").errors == 0
    convert(tmp_path / "store", tmp_path / "back", "kafka")
    assert rows(tmp_path / "back") == rows(case.path)


@pytest.mark.parametrize("broker", ["broker-3.9.2", "broker-4.3.0"])
def test_whatever_kafka_holds_comes_back_but_for_what_was_accepted(broker: str, tmp_path: Path) -> None:
    """Gaps that compaction and transactions leave, nulls and log append times are refused, each by its name; all else survives."""
    source = golden_path("kafka", broker, "data")
    chosen: dict[str, Any] = {"topic_pattern": "(?!__).*"}
    with pytest.raises(LossError) as caught:
        convert(source, tmp_path / "store", "rocketmq", options=SMALL, **chosen)
    names = {one.column for one in caught.value.lost}
    assert names == {"offset", "value", "timestampType"}
    convert(source, tmp_path / "store", "rocketmq", options=SMALL, accept=tuple(names), **chosen)
    convert(tmp_path / "store", tmp_path / "back", "kafka")
    before, after = rows(source, **chosen), rows(tmp_path / "back")
    place = ("topic", "partition")
    assert [[one[name] for name in place] for one in after] == [[one[name] for name in place] for one in before]
    for column in set(RECORDS.names) - names:
        assert [one[column] for one in after] == [one[column] for one in before], column
    assert [one["value"] for one in after] == [one["value"] or b"" for one in before]
    assert any(one["headers"] for one in before)
    assert any(one["key"] == b"" for one in before)


@pytest.mark.parametrize(
    "more", [{"option": {"codec": "none"}}, {"mask": "key=drop"}, {"to": "replay", "accept_loss": LOST}]
)
def test_aborted_records_that_become_plain_ones_are_reported(more: dict[str, Any], tmp_path: Path) -> None:
    """New batches are in no transaction: consumers get what they did not get before, and nothing said so."""
    given: dict[str, Any] = {"to": "kafka", "topic": "transactions", "engine": "local", **more}
    rows_before = rawlog.read(KAFKA, topic="transactions", columns="partition,offset").to_pylist()
    seen = rawlog.read(KAFKA, topic="transactions", columns="partition,offset", isolation="read_committed").to_pylist()
    aborted = [row for row in rows_before if row not in seen]
    report = rawlog.convert(KAFKA, tmp_path / "all", **given)
    assert report.facts["aborted"] == {
        "rows": len(aborted),
        "first": f"transactions-{aborted[0]['partition']} offset {aborted[0]['offset']}",
    }
    [entry] = report.with_action(Action.CHANGED)
    assert f"{len(aborted)} records of aborted transactions" in entry.reason
    assert report.is_whole
    few = rawlog.convert(KAFKA, tmp_path / "few", **given, where=f"offset > {aborted[0]['offset']}")
    assert few.facts["aborted"]["rows"] == sum(row["offset"] > aborted[0]["offset"] for row in aborted)
    assert "aborted" not in rawlog.convert(KAFKA, tmp_path / "committed", **given, isolation="read_committed").facts
    assert (
        "aborted"
        not in rawlog.convert(KAFKA, tmp_path / "kept", to="kafka", topic="transactions", engine="local").facts
    )


def test_rocketmq_to_kafka_and_back_keeps_every_property(tmp_path: Path) -> None:
    source = rocketmq_store("broker-5.3.3")
    first = [one for one in rows(source) if one["topic"] == "OrderTopic"] or rows(source)
    topic = first[0]["topic"]
    convert(source, tmp_path / "log", "kafka", topics=(topic,), options={"batch_records": "10"})
    convert(tmp_path / "log", tmp_path / "store", "rocketmq", options=SMALL)
    kept = [one for one in rows(source) if one["topic"] == topic]
    found = sorted(rows(tmp_path / "store"), key=lambda one: (one["partition"], one["offset"]))
    assert found == sorted(kept, key=lambda one: (one["partition"], one["offset"]))


def test_ambry_to_kafka_and_back_is_the_same(tmp_path: Path) -> None:
    source = store_path("store-small")
    topics = {one["topic"] for one in rows(source)}
    assert topics != {None}
    with pytest.raises(EncodeError, match="topic '"):
        convert(source, tmp_path / "log", "kafka")
    convert(source, tmp_path / "rows.parquet", "parquet")
    convert(tmp_path / "rows.parquet", tmp_path / "store", "ambry", options={"capacity": "2048"}, accept=("offset",))
    assert rawlog.verify(tmp_path / "store").verdict == "clean"
    without = [{name: value for name, value in one.items() if name != "offset"} for one in rows(source)]
    assert [
        {name: value for name, value in one.items() if name != "offset"} for one in rows(tmp_path / "store")
    ] == without


def test_ambry_offsets_are_those_of_the_new_log(tmp_path: Path) -> None:
    """A store that was made of records is made of them again: every message stands where it did, so nothing is lost."""
    options = {"capacity": "700"}
    convert(store_path("store-small") / "0_0_log", tmp_path / "one", "ambry", options=options, accept=("offset",))
    assert len(list((tmp_path / "one").glob("*_log"))) > 1
    made = convert(tmp_path / "one", tmp_path / "two", "ambry", options=options)
    assert made.facts["lost"] == {}
    for path in (tmp_path / "one").glob("*_log"):
        assert (tmp_path / "two" / path.name).read_bytes() == path.read_bytes()


def test_replay_to_kafka_and_back_is_the_same_file(tmp_path: Path) -> None:
    source = next(path for path in sorted(golden_path("replay", "v2").iterdir()) if path.suffix == ".log")
    with pytest.raises(EncodeError, match="row 0 has no topic; give it as an option: topic="):
        convert(source, tmp_path / "log", "kafka")
    convert(source, tmp_path / "log", "kafka", options={"topic": "t", "partition": "0"})
    accept = tuple(name for name in RECORDS.names if name != "offset")
    made = convert(tmp_path / "log", tmp_path / "again.log", "replay", accept=accept)
    assert {"topic", "partition"} <= set(made.facts["lost"])
    assert (tmp_path / "again.log").read_bytes() == source.read_bytes()


# Losses ------------------------------------------------------------------------------------------------------------

LOSSES = [
    ("replay", "headers", {"headers": [{"key": "a", "value": None}]}),
    ("replay", "key", {"key": b""}),
    ("replay", "value", {"value": None}),
    ("replay", "offset", {"offset": 9}),
    ("replay", "timestampType", {"timestampType": 1}),
    ("rocketmq", "value", {"value": None}),
    ("rocketmq", "offset", {"offset": 9}),
    ("rocketmq", "timestamp", {"timestamp": None}),
    ("rocketmq", "timestampType", {"timestampType": 1}),
    ("kafka", "timestamp", {"timestamp": T * 1000 + 1}),
    ("kafka", "timestampType", {"timestampType": 2}),
    ("ambry", "timestampType", {"timestampType": 1}),
]


@pytest.mark.parametrize(("to", "column", "change"), LOSSES)
def test_a_loss_is_refused_with_its_count_and_place(
    to: str, column: str, change: dict[str, Any], tmp_path: Path
) -> None:
    given = [row(0), row(1, timestamp=T * 1000), row(2, **({"timestamp": T * 1000} | change))]
    pq.write_table(table_of(*given), tmp_path / "in.parquet")
    others = tuple(name for name in RECORDS.names if name != column)
    options = SMALL if to == "rocketmq" else {}
    with pytest.raises(LossError) as caught:
        convert(tmp_path / "in.parquet", tmp_path / "out", to, accept=others, options=options)
    [lost] = caught.value.lost
    place = f"orders-0 offset {given[2]['offset']}"
    assert (lost.column, lost.place) == (column, place) or to == "ambry"
    assert lost.rows == 1 or to == "ambry"
    assert [one.name for one in tmp_path.iterdir()] == ["in.parquet"]
    made = convert(tmp_path / "in.parquet", tmp_path / "out", to, accept=(*others, column), options=options)
    assert made.counts["rows"] == 3
    assert made.facts["lost"][column]["rows"] == lost.rows


def test_all_losses_of_all_shares_are_told_at_once(tmp_path: Path) -> None:
    given = [
        row(n, partition=n % 2, timestamp=(T + n) * 1000 + (n == 3), timestampType=2 if n == 6 else 0) for n in range(8)
    ]
    pq.write_table(table_of(*given), tmp_path / "in.parquet")
    for number in range(2):
        pq.write_table(table_of(*(one for one in given if one["partition"] == number)), tmp_path / f"{number}.parquet")
    with pytest.raises(LossError) as caught:
        convert([tmp_path / "0.parquet", tmp_path / "1.parquet"], tmp_path / "out", "kafka")
    assert {one.column: one.place for one in caught.value.lost} == {
        "timestamp": "orders-1 offset 3",
        "timestampType": "orders-0 offset 6",
    }
    assert caught.value.rows == 8
    assert not (tmp_path / "out").exists()
    dry = convert(tmp_path / "in.parquet", tmp_path / "out", "kafka", dry_run=True)
    assert not dry.is_whole
    assert set(dry.facts["lost"]) == {"timestamp", "timestampType"}
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", ["parquet", "jsonl", "csv", "kafka", "replay", "rocketmq", "ambry"])
def test_options_of_a_target_that_are_none_are_refused(to: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="unknown option of"):
        outlet(to, str(tmp_path / "x"), options={"kodek": "zstd"})
    with pytest.raises(OptionError, match="unknown target 'kafak'; did you mean kafka"):
        outlet("kafak", str(tmp_path / "x"))
    with pytest.raises(OptionError, match="unknown option of replay 'codec'"):
        rawlog.write(tmp_path / "x", table_of(row(0)), format="replay", codec="zstd")
    with pytest.raises(OptionError, match="unknown column of records 'headres'; did you mean headers"):
        outlet("kafka", str(tmp_path / "x"), accepted=["headres"])


# Bad input, bad places ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["parquet", "kafka", "replay", "rocketmq", "ambry"])
def test_what_is_there_already_stays(to: str, tmp_path: Path) -> None:
    pq.write_table(table_of(row(0)), tmp_path / "in.parquet")
    name = {"parquet": "out.parquet", "replay": "out.log"}.get(to, "out")
    options, accept = SMALL if to == "rocketmq" else {}, RECORDS.names
    convert(tmp_path / "in.parquet", tmp_path / name, to, options=options, accept=accept)
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file())
    with pytest.raises(AccessError, match="exists already"):
        convert(tmp_path / "in.parquet", tmp_path / name, to, options=options, accept=accept)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()) == before
    pq.write_table(table_of(row(0, value=b"new")), tmp_path / "in.parquet")
    convert(tmp_path / "in.parquet", tmp_path / name, to, options=options, accept=accept, force=True)
    if to != "parquet":
        assert [one["value"] for one in rows(tmp_path / name)] == [b"new"]
    assert {one.name for one in tmp_path.iterdir()} == {"in.parquet", name}


@pytest.mark.parametrize(
    ("to", "bad", "why"),
    [
        ("kafka", [row(5), row(4)], None),
        ("kafka", [row(0), row(0)], "offset 0 after 0: offsets must rise"),
        ("kafka", [row(0, headers=[{"key": None, "value": b"x"}])], "a header without a name"),
        ("rocketmq", [row(0, headers=[{"key": None, "value": b"x"}])], "a header without a name"),
        ("rocketmq", [row(0, value=bytes(1 << 20))], "fits no file"),
        ("rocketmq", [row(0, headers=[{"key": "h", "value": bytes(40000)}])], "at most"),
        ("kafka", [row(0, topic="a/b")], "topic 'a/b'"),
        ("ambry", [row(0, value=bytes(1 << 17))], "segments of"),
    ],
)
def test_rows_that_no_target_holds_are_an_error(to: str, bad: list[Any], why: str | None, tmp_path: Path) -> None:
    pq.write_table(table_of(*bad), tmp_path / "in.parquet")
    options = {"rocketmq": SMALL, "ambry": {"capacity": "65536"}}.get(to, {})
    if why is None:  # a table has no order of its own: its rows are put into that of their offsets
        convert(tmp_path / "in.parquet", tmp_path / "out", to, options=options)
        assert [one["offset"] for one in rows(tmp_path / "out")] == [4, 5]
        return
    with pytest.raises(EncodeError, match=why):
        convert(tmp_path / "in.parquet", tmp_path / "out", to, options=options, accept=RECORDS.names)
    assert [one.name for one in tmp_path.iterdir()] == ["in.parquet"]


def test_records_larger_than_a_segment_or_the_limit_are_refused(tmp_path: Path) -> None:
    pq.write_table(table_of(row(0), row(1, value=bytes(9000))), tmp_path / "in.parquet")
    for options, why in (
        ({"segment_bytes": "5000"}, "segments hold 5,000"),
        ({"max_message_bytes": "5000"}, "max_message_bytes"),
    ):
        with pytest.raises(EncodeError, match=f"offset 1.*{why}"):
            convert(tmp_path / "in.parquet", tmp_path / "out", "kafka", options={"batch_records": "1", **options})
    assert [one.name for one in tmp_path.iterdir()] == ["in.parquet"]


FULL_DISK = """
import json, resource, signal, sys
from click.testing import CliRunner
from rawlog.cli import cli
import rawlog.verbs.convert, rawlog.formats.kafka.partition.sink, rawlog.formats.rocketmq.store.rewrite, rawlog.formats.ambry.store.rewrite
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(cli, words)
    print(done.exit_code, " ".join(done.stderr.split()))
"""


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """The limit on the size of files stands in for the disk: writing past it fails as a full disk does, in the middle of a file."""
    random = np.random.default_rng(3)
    pq.write_table(table_of(*(row(n, value=random.bytes(2000)) for n in range(400))), tmp_path / "in.parquet")
    commands = []
    for to in ("parquet", "jsonl", "kafka", "replay", "rocketmq", "ambry"):
        target = tmp_path / ("out" if to not in ("parquet", "jsonl") else f"out.{to}")
        options = [f"--option={name}={value}" for name, value in SMALL.items()] if to == "rocketmq" else []
        accept = ["--accept-loss", ",".join(RECORDS.names)]
        words = ["convert", str(tmp_path / "in.parquet"), str(target), "--format", to, "--engine", "local"]
        commands.append([*words, *options, *accept])
    done = subprocess.run([sys.executable, "-c", FULL_DISK, json.dumps(commands)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(commands)
    for line in lines:
        assert line.startswith("3 rawlog: "), done.stdout
        assert "File too large" in line, done.stdout
    assert [one.name for one in tmp_path.iterdir()] == ["in.parquet"]


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    pq.write_table(table_of(row(0)), tmp_path / "in.parquet")
    (tmp_path / "file").touch()
    for to in ("parquet", "jsonl", "kafka", "replay", "rocketmq", "ambry"):
        for place in (tmp_path / "file" / "out", Path("/proc/out")):
            with pytest.raises(AccessError, match="out"):
                convert(tmp_path / "in.parquet", place, to, accept=RECORDS.names)
    assert {one.name for one in tmp_path.iterdir()} == {"in.parquet", "file"}


def test_damage_in_the_source_is_told_or_passed_over(tmp_path: Path) -> None:
    source = log_of(tmp_path / "log", *(row(number) for number in range(30)), batch_records="10")
    path = next(source.rglob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for to in ("jsonl", "kafka"):
        with pytest.raises(CorruptError, match="checksum"):
            convert(source, tmp_path / f"out.{to}", to)
    made = convert(source, tmp_path / "out", "kafka", errors="skip")
    assert made.with_action(Action.LOST)
    assert not made.is_whole
    assert [one["offset"] for one in rows(tmp_path / "out")] == [*range(10), *range(20, 30)]


# Erasing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_log_without_some_records_is_the_same_otherwise(case: KafkaCase, tmp_path: Path) -> None:
    """Every batch of every golden partition is there with its offsets, epochs, producer and kind; records that were not asked for are gone
    and no others, and what is derived is right."""
    keys = sorted({one.key for one in case.records if one.key})
    drop = tuple(keys[::3])
    made = convert(case.path, tmp_path / "out", "kafka", drop=drop)
    folder = tmp_path / "out" / case.path.name
    before = rawlog.read(case.path)
    kept = [one for one in before.to_pylist() if one["key"] not in drop]
    assert rows(folder) == kept
    [account] = (part.as_json() for part in made.parts.values())
    gone = [one["offset"] for one in before.to_pylist() if one["key"] in drop]
    reported = [offset for first, last in account["offsets"] for offset in range(first, last + 1)]
    assert [offset for offset in reported if offset in set(gone)] == gone
    assert (made.counts["dropped"], made.counts["rows"]) == (len(gone), len(kept))
    theirs, mine = (
        {one.base_offset: one for path in sorted(place.glob("*.log")) for one in reference.headers(path.read_bytes())}
        for place in (case.path, folder)
    )
    for base, batch in mine.items():
        for name in (
            "last_offset",
            "leader_epoch",
            "producer_id",
            "producer_epoch",
            "base_sequence",
            "is_transactional",
            "is_control",
        ):
            assert getattr(batch, name) == getattr(theirs[base], name), (base, name)
    assert rawlog.verify(folder).errors == 0
    assert {path.name for path in folder.glob("*.log")} <= {path.name for path in case.path.glob("*.log")}
    if gone:
        raw = b"".join(path.read_bytes() for path in folder.glob("*") if path.is_file())
        assert all(key not in raw for key in drop if len(key) > 6 and b"codec" not in case.path.name.encode())


def test_erasing_says_which_offsets_went(tmp_path: Path) -> None:
    source = log_of(tmp_path / "log", *(row(n, partition=n % 2, offset=n // 2) for n in range(60)), batch_records="4")
    made = convert(source, tmp_path / "out", "kafka", drop=(b"k0",), where="offset <> 29")
    accounts = {name: account.as_json() for name, account in made.parts.items()}
    wanted = {
        name: [one["offset"] for one in rows(source / name) if one["key"] == b"k0" or one["offset"] == 29]
        for name in accounts
    }
    assert set(accounts) == {"orders-0", "orders-1"}
    for name, account in accounts.items():
        assert [offset for first, last in account["offsets"] for offset in range(first, last + 1)] == wanted[name]
        assert account["removed"] == len(wanted[name])
        assert account["end_offset"] == 30
    texts = [line for account in made.parts.values() for line in account.lines()]
    assert any("records: offsets 0, 3" in text for text in texts)


def test_all_records_of_a_log_can_go(tmp_path: Path) -> None:
    """The end of the log stays where it was: batches without records say so."""
    source = log_of(tmp_path / "log", *(row(number, key=b"k") for number in range(20)), batch_records="6", codec="zstd")
    made = convert(source, tmp_path / "out", "kafka", drop=(b"k",))
    assert (made.counts["rows"], made.counts["dropped"]) == (0, 20)
    assert rows(tmp_path / "out") == []
    batches = rows(tmp_path / "out", table="kafka.batches")
    assert [one["last_offset"] for one in batches] == [5, 11, 17, 19]
    assert [one["record_count"] for one in batches] == [0, 0, 0, 0]
    assert rawlog.verify(tmp_path / "out").verdict == "clean"


def test_a_range_of_offsets_is_cut_out_whole(tmp_path: Path) -> None:
    source = log_of(tmp_path / "log", *(row(number) for number in range(40)), batch_records="10", segment_bytes="900")
    convert(source, tmp_path / "out", "kafka", from_offset=12, to_offset=25)
    assert [one["offset"] for one in rows(tmp_path / "out")] == list(range(12, 25))
    assert [one["base_offset"] for one in rows(tmp_path / "out", table="kafka.batches")] == [10, 20]
    assert rawlog.verify(tmp_path / "out").errors == 0


def test_batches_are_made_anew_where_options_ask_for_it(tmp_path: Path) -> None:
    source = log_of(tmp_path / "log", *(row(number) for number in range(40)), batch_records="10")
    convert(source, tmp_path / "out", "kafka", options={"codec": "gzip", "batch_records": "25"}, drop=(b"k1",))
    batches = rows(tmp_path / "out", table="kafka.batches")
    assert {one["codec"] for one in batches} == {"gzip"}
    assert len(batches) == 2
    assert rows(tmp_path / "out") == [one for one in rows(source) if one["key"] != b"k1"]


def test_partitions_of_several_disks_are_not_mixed_up(tmp_path: Path) -> None:
    for disk in ("a", "b"):
        log_of(tmp_path / disk, row(0))
    with pytest.raises(OptionError, match="orders-0 exists twice"):
        convert([tmp_path / "a", tmp_path / "b"], tmp_path / "out", "kafka")
    assert not (tmp_path / "out").exists()


# Other places ------------------------------------------------------------------------------------------------------


def test_targets_in_an_object_store(s3: Any, tmp_path: Path) -> None:
    s3.filesystem().create_dir("convert")

    def url(name: str) -> str:
        return str(s3.url(f"convert/{name}"))

    source = log_of(tmp_path / "log", *(row(number) for number in range(30)))
    for name, to, accept in (("x.parquet", "parquet", ()), ("x.jsonl.gz", "jsonl", ()), ("x.csv", "csv", ()),
                             ("x.log", "replay", RECORDS.names)):  # fmt: skip
        convert(source, url(name), to, accept=accept)
        with pytest.raises(AccessError, match="exists already"):
            convert(source, url(name), to, accept=accept)
    convert(source, url("folder"), "parquet")
    for name in ("x.parquet", "x.jsonl.gz", "folder"):
        convert(url(name), tmp_path / "back", "kafka", force=True)
        assert rows(tmp_path / "back") == rows(source)
    assert [one["value"] for one in rows(url("x.log"))] == [one["value"] for one in rows(source)]
    for to in ("kafka", "rocketmq", "ambry"):
        with pytest.raises(OptionError, match="needs a local path"):
            convert(source, url("y"), to, accept=RECORDS.names)
    shutil.rmtree(tmp_path / "back")
