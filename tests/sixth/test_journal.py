"""A sixth system from outside of rawlog has every verb, the lake and the Spark source, and nothing in `src` names it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog import registry
from rawlog.engines.choice import run as run_job
from rawlog.model.errors import CorruptError, OptionError, RawlogError
from rawlog.model.report import Action
from rawlog.model.store import Store
from rawlog.reading.inspect import RuleChoice, check_file
from rawlog.reading.tree import open_tree
from rawlog.testing import outline
from rawlog.verbs.repair import RewriteJob
from tests.sixth import reference
from tests.sixth.reference import Entry

ROOT = Path(__file__).parents[2]
ORDERS = reference.GOLDEN / "orders"
FIRST, SECOND, THIRD = (f"{number:020d}.journal" for number in (0, 20, 40))
Run = Callable[..., Any]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal to break."""
    return Path(shutil.copytree(ORDERS, tmp_path / "orders"))


def flip(path: Path, position: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def damage(journal: Path) -> int:
    """Change a byte of the value of entry 10; where the entry begins."""
    rows = {row["number"]: row for row in reference.decode((journal / FIRST).read_bytes())}
    position = rows[10]["position"]
    flip(journal / FIRST, position + reference.ENTRY.size + 3)
    return int(position)


def codes(path: Path) -> list[str]:
    return [finding.code for finding in rawlog.verify(path)]


# The registry -------------------------------------------------------------------------------------------------------------


def test_nothing_in_rawlog_names_the_journal() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert "tests.sixth" not in path.read_text() or path.name == "registry.py", path


def test_the_order_of_families_is_that_of_the_list_then_that_of_the_variable() -> None:
    assert [family.name for family in registry.families()] == [*registry.FAMILIES, "journal"]


def test_the_list_of_families_takes_full_module_names_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(registry.VARIABLE)
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, "tests.sixth.journal"))
    registry._modules.cache_clear()
    try:
        assert registry.family("journal").formats[0].name == "journal.segment"
    finally:
        monkeypatch.undo()
        registry._modules.cache_clear()


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no.such.module", "family 'no.such.module' cannot be imported: No module named 'no'"),
        ("tests.sixth.reference", "family 'tests.sixth.reference': the module has no FAMILY"),
        ("rawlog.formats.kafka", "two families are named 'kafka'"),
        ("broken_family", "family 'broken_family' cannot be imported: ZeroDivisionError"),
        ("other_family", "other_family: the name 'kafka.log' must begin with 'other.'"),
        ("odd_family", "family 'odd_family': the module has a FAMILY that is not a rawlog.model.format.Family"),
    ],
)
def test_a_family_that_cannot_be_used_says_why(
    module: str, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "broken_family.py").write_text("1 / 0\n")
    (tmp_path / "odd_family.py").write_text("FAMILY = 1\n")
    (tmp_path / "other_family.py").write_text(
        "from rawlog.model.format import Family\n"
        "from rawlog.formats.kafka import LOG\n"
        "FAMILY = Family(name='other', title='', formats=(LOG,))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(registry.VARIABLE, module)
    with pytest.raises(OptionError) as error:
        registry.families()
    assert str(error.value).startswith(message)
    shown = run("ls", ORDERS)
    assert (shown.code, message in shown.err) == (2, True)


# Verbs on a sound journal -------------------------------------------------------------------------------------------------


def test_ls_and_count(run: Run) -> None:
    rows = run("ls", ORDERS, "--json").rows
    assert {row["format"] for row in rows} == {"journal.segment", "journal.positions"}
    assert sum(row["records"] or 0 for row in rows) == 28
    assert "orders-0" in run("ls", ORDERS).text
    assert run("count", ORDERS).text.strip() == "28"


def test_cat_gives_the_rows_that_were_written(run: Run) -> None:
    rows = rawlog.read(ORDERS).to_pylist()
    expected = [entry for entries in reference.orders() for entry in entries]
    assert [(row["offset"], row["key"], row["value"]) for row in rows] == [entry[:3] for entry in expected]
    assert {(row["topic"], row["partition"]) for row in rows} == {("orders", 0)}
    shown = run("cat", ORDERS, "--json", "--from-offset", 24, "--to-offset", 33).rows
    assert [row["offset"] for row in shown] == [24, 25, 32]
    own = run("cat", ORDERS, "--table", "journal.entries", "--json", "--columns", "number,crc").rows
    assert len(own) == 28
    assert "first" in run("head", ORDERS).text


def test_verify_is_clean(run: Run) -> None:
    done = run("verify", ORDERS)
    assert (done.code, done.text.splitlines()[-1][:6]) == (0, "clean:")


def test_explain_shows_every_field(run: Run) -> None:
    shown = run("explain", ORDERS / FIRST).text
    for name in ("file header", "previous_stop", "crc", "right", "value", "padding"):
        assert name in shown
    assert "position" in run("explain", ORDERS / FIRST.replace("journal", "positions")).text


def test_diff_compares_replicas_by_their_records(run: Run, journal: Path) -> None:
    assert run("diff", ORDERS, journal).code == 0
    rows = reference.orders()
    rows[1][2] = Entry(24, b"key", b"other")
    shutil.rmtree(journal)
    reference.write(journal, *rows)
    shown = run("diff", ORDERS, journal)
    assert shown.code == 1
    assert "24" in shown.text
    found = list(rawlog.verify(ORDERS, against=journal))
    assert [(one.code, one.offset) for one in found] == [("rawlog.replica.record", 24)]


def test_convert_to_kafka_and_back_gives_the_same_bytes(run: Run, tmp_path: Path) -> None:
    assert run("convert", ORDERS, tmp_path / "kafka", "--to", "kafka").code == 0
    assert run("convert", tmp_path / "kafka", tmp_path / "back", "--to", "journal").code == 0
    data = (tmp_path / "back" / "orders" / FIRST).read_bytes()
    assert reference.decode(data)[5]["value"] == b"v" * 5
    assert not codes(tmp_path / "back")
    assert run("diff", ORDERS, tmp_path / "back").code == 0


def test_what_a_journal_cannot_carry_is_refused_by_name(run: Run, tmp_path: Path) -> None:
    rows = [{"topic": "t", "partition": 3, "offset": 1, "value": b"v", "headers": [{"key": "h", "value": b"x"}]}]
    rawlog.write(tmp_path / "kafka", rawlog_table(rows), format="kafka")
    refused = run("convert", tmp_path / "kafka", tmp_path / "j", "--to", "journal")
    assert refused.code == 1
    assert "headers" in refused.err
    assert "partition" in refused.err
    assert not (tmp_path / "j").exists()
    done = run("convert", tmp_path / "kafka", tmp_path / "j", "--to", "journal", "--accept-loss", "headers,partition")
    assert done.code == 0
    [row] = rawlog.read(tmp_path / "j").to_pylist()
    assert (row["topic"], row["partition"], row["offset"], row["headers"]) == ("t", 0, 1, [])


def rawlog_table(rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    from rawlog.model.table import RECORDS

    return pa.Table.from_pylist(rows, schema=RECORDS.schema)


def test_a_topic_that_leads_out_of_the_target_is_refused(tmp_path: Path) -> None:
    for topic in ("..", "a/b", ""):
        with pytest.raises(RawlogError):
            rawlog.write(tmp_path / "j", rawlog_table([{"topic": topic, "value": b"v"}]), format="journal")
        assert not list(tmp_path.iterdir())


def test_ingest_into_a_lake_and_query_it(run: Run, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    assert run("ingest", ORDERS, "--to", lake, "--engine", "local").code == 0
    query = "SELECT count(*) AS n, max(number) AS last FROM journal.entries"
    assert run("query", query, lake, "--engine", "duckdb", "--json").rows == [{"n": 28, "last": 41}]
    assert run("query", "SELECT count(*) AS n FROM records", lake, "--engine", "duckdb", "--json").rows == [{"n": 28}]
    query = "SELECT sum(octet_length(key))::INT AS keys, sum(octet_length(value))::INT AS bytes, count(key) AS n FROM journal.entries"
    entries = [entry for segment in reference.orders() for entry in segment]
    keys, values = ([one for one in column if one is not None] for column in list(zip(*entries, strict=True))[1:3])
    expected = {"keys": len(b"".join(keys)), "bytes": len(b"".join(values)), "n": len(keys)}
    assert run("query", query, lake, "--engine", "duckdb", "--json").rows == [expected]
    again = run("ingest", ORDERS, "--to", lake, "--engine", "local")
    assert again.code == 0
    assert run("query", "SELECT count(*) AS n FROM records", lake, "--engine", "duckdb", "--json").rows == [{"n": 28}]


# Verbs on a damaged journal -----------------------------------------------------------------------------------------------


def test_reading_stops_at_damage_or_skips_it(run: Run, journal: Path) -> None:
    damage(journal)
    with pytest.raises(CorruptError, match="checksum is"):
        rawlog.read(journal)
    offsets = rawlog.read(journal, errors="skip").column("offset").to_pylist()
    assert 10 not in offsets
    assert len(offsets) == 27
    assert run("cat", journal).code == 1
    assert [row["state"] for row in run("ls", journal, "--json").rows if row["path"].endswith(FIRST)] == ["damaged"]


def test_verify_says_where_the_damage_is(run: Run, journal: Path) -> None:
    position = damage(journal)
    done = run("verify", journal, "--json")
    assert done.code == 1
    [finding] = [row for row in done.rows if row.get("code") == "journal.segment.checksum"]
    assert (finding["position"], finding["offset"]) == (position, 10)


def test_a_wrong_length_is_a_finding_that_names_the_field(journal: Path) -> None:
    position = reference.decode((journal / FIRST).read_bytes())[4]["position"]
    flip(journal / FIRST, position + 8, 0x40)
    [finding, *_] = rawlog.verify(journal)
    assert (finding.code, finding.position) == ("journal.segment.framing", position)
    assert finding.message.startswith("key_size is 1,073,741,826, -1 to 1,000,000 expected")


def test_a_missing_segment_is_found_and_reported_as_lost(run: Run, journal: Path, tmp_path: Path) -> None:
    (journal / SECOND).unlink()
    found = list(rawlog.verify(journal))
    assert [one.code for one in found] == ["journal.store.chain", "journal.store.index"]
    assert (found[0].offset, found[0].path) == (20, str(journal / THIRD))
    done = run("repair", journal, tmp_path / "out", "--json")
    assert done.code == 1
    assert done.rows[0]["lost"] == [[20, 33]]
    assert not codes(tmp_path / "out")


def test_a_segment_that_ends_too_early_is_found_by_the_one_after_it(journal: Path) -> None:
    """The cut is where an entry ends, so the file alone looks sound."""
    last = reference.decode((journal / SECOND).read_bytes())[-1]["position"]
    (journal / SECOND).write_bytes((journal / SECOND).read_bytes()[:last])
    assert "journal.store.chain" in codes(journal)


def test_repair_drops_what_is_damaged_and_says_so(run: Run, journal: Path, tmp_path: Path) -> None:
    position = damage(journal)
    dry = run("repair", journal, tmp_path / "out", "--json", "--dry-run")
    assert not (tmp_path / "out").exists()
    done = run("repair", journal, tmp_path / "out", "--json")
    assert (dry.code, done.code) == (1, 1)
    [report] = done.rows
    [entry] = [one for one in report["entries"] if one["action"] == "dropped"]
    assert (entry["reason"], entry["start"]) == ("wrong checksum", position)
    assert (report["records_kept"], report["records_dropped"]) == (27, 1)
    assert not codes(tmp_path / "out")
    assert 10 not in rawlog.read(tmp_path / "out").column("offset").to_pylist()


def test_repair_rewrites_headers_and_indexes(journal: Path, tmp_path: Path) -> None:
    flip(journal / SECOND, 0)
    (journal / THIRD.replace("journal", "positions")).unlink()
    flip(journal / FIRST.replace("journal", "positions"), 3)
    with RewriteJob("repair", str(tmp_path / "out")) as job:
        report = run_job(job, open_tree(journal))
    reasons = {(entry.action, Path(str(entry.path)).name) for entry in report.entries}
    assert reasons == {
        (Action.CHANGED, SECOND),
        (Action.REBUILT, THIRD),
        (Action.REBUILT, FIRST.replace("journal", "positions")),
    }
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == {
        path.name: path.read_bytes() for path in ORDERS.iterdir()
    }


def test_a_preallocated_tail_of_zeros_is_not_damage(run: Run, journal: Path, tmp_path: Path) -> None:
    path = journal / THIRD
    path.write_bytes(path.read_bytes() + bytes(9000))
    assert not codes(journal)
    assert run("count", journal).text.strip() == "28"
    assert run("repair", journal, tmp_path / "out").code == 0
    assert (tmp_path / "out" / THIRD).read_bytes() == path.read_bytes()


def test_an_unfinished_last_entry_is_normal(run: Run, journal: Path, tmp_path: Path) -> None:
    path = journal / THIRD
    path.write_bytes(path.read_bytes()[:-5])
    assert codes(journal) == ["journal.segment.unfinished"]
    assert run("repair", journal, tmp_path / "out").code == 0


def test_several_journals_are_repaired_each_at_its_place(journal: Path, tmp_path: Path) -> None:
    shutil.copytree(journal, tmp_path / "all" / "one")
    shutil.copytree(journal, tmp_path / "all" / "deep" / "two")
    with RewriteJob("repair", str(tmp_path / "out")) as job:
        report = run_job(job, open_tree(tmp_path / "all"))
    assert sorted(report.parts) == ["deep/two", "one"]
    assert (tmp_path / "out" / "deep" / "two" / FIRST).read_bytes() == (ORDERS / FIRST).read_bytes()


# Splits, the compiler, Spark ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 100, 300])
def test_checking_in_splits_equals_checking_in_one(size: int, journal: Path) -> None:
    """Summaries merge: what the checks of the whole journal need to know is the same for any cut."""
    damage(journal)
    tree = open_tree(journal)
    file = next(file for file in tree if file.path.endswith(FIRST))
    format = registry.formats()["journal.segment"]
    edges = [None, *format.codec.cuts(file, tree.group_of(file), size), None]
    assert len(edges) > 3
    chosen, store = RuleChoice(), Store(tree.group_of(file))
    whole = check_file(file, chosen, store=store)
    first, *others = (check_file(file, chosen, store=store, start=a, stop=b) for a, b in pairwise(edges))
    assert all(first.merge(one, chosen) for one in others)
    one, other = (checked.summary.parts["journal"] for checked in (first, whole))
    assert (one.index, one.header, one.stop_number) == (other.index, other.header, other.stop_number)
    found, expected = first.finish(chosen), whole.finish(chosen)
    assert list(found) == list(expected)
    assert found.frames == expected.frames


def test_a_wrong_index_gives_no_cuts(journal: Path) -> None:
    index = journal / FIRST.replace("journal", "positions")
    flip(index, 31, 0x10)
    tree = open_tree(journal)
    file = next(file for file in tree if file.path.endswith(FIRST))
    cuts = registry.formats()["journal.segment"].codec.cuts
    assert cuts(file, tree.group_of(file), 1) == []


PROGRAM = """
import json, sys
from rawlog.kernels import JIT
assert not JIT
from rawlog.testing import outline
print(json.dumps([outline(path, "journal.segment") for path in sys.argv[1:]]))
"""


def python(*arguments: str, **environment: str) -> str:
    """Run Python with the journal registered."""
    given = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", **environment}
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=given, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_answers_are_the_same_with_the_compiler_off(journal: Path) -> None:
    damage(journal)
    flip(journal / SECOND, 100, 0x80)
    paths = [str(journal / name) for name in (FIRST, SECOND, THIRD)]
    found = json.loads(python("-c", PROGRAM, *paths, NUMBA_DISABLE_JIT="1"))
    assert found == [outline(path, "journal.segment") for path in paths]


SPARK = """
import sys
sys.path.insert(0, sys.argv[1])
from rawlog.spark import register, session
spark = session("local[2]")
register(spark)
read = spark.read.format("rawlog")
print([tuple(row) for row in read.load(sys.argv[2]).selectExpr("count(*)", "sum(offset)", "count(key)").collect()])
print(read.option("table", "journal.entries").load(sys.argv[2]).where("number >= 40").count())
stream = spark.readStream.format("rawlog").load(sys.argv[2])
query = stream.writeStream.format("memory").queryName("seen").trigger(availableNow=True).start()
query.awaitTermination()
print(spark.sql("SELECT count(*), max(offset) FROM seen").collect()[0])
spark.stop()
"""


@pytest.mark.slow
def test_the_spark_source_reads_and_streams_a_journal(tmp_path: Path) -> None:
    """The session passes the variable on to its workers, and the place that the family is imported from: it is in no PYTHONPATH here."""
    program = tmp_path / "program.py"
    program.write_text(SPARK)
    shown = python(str(program), str(ROOT), str(ORDERS), PYTHONPATH=str(ROOT / "src"))
    assert shown.splitlines() == ["[(28, 426, 26)]", "2", "Row(count(1)=28, max(offset)=41)"]
