"""`verify --complete`: every offset has a class, the same for any cut, and what nothing explains is found."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.formats.kafka.partition.rules import accounts as accounts_of
from rawlog.formats.kafka.partition.state import ABORT, COMMIT, TransactionCounts
from rawlog.formats.kafka.partition.survey import fold_segment
from rawlog.model.finding import CLASSES, Account
from rawlog.model.store import Store
from tests.data.golden import KafkaCase, golden_path, kafka_cases
from tests.data.tiers import bases, remove_segments
from tests.formats.kafka.partition.test_survey import in_splits

CASES = [case for case in kafka_cases() if list(case.path.glob("*.log"))]
PLAIN = ("segments-by-size-0", "segments-by-time-0", "transactions-0")


def data(name: str = "") -> Path:
    return golden_path("kafka", "broker-4.3.0", "data", *([name] if name else []))


def accounts(path: Path) -> dict[str, Account]:
    return {f"{one.topic}-{one.partition}": one for one in rawlog.verify(path, complete=True).accounts}


@pytest.mark.parametrize("version", ["broker-3.9.2", "broker-4.3.0", "broker-4.3.0-crashed"])
def test_what_real_brokers_wrote_is_complete(version: str) -> None:
    """The classes add up, and are what reading the records says."""
    folder = golden_path("kafka", version, "data")
    found = rawlog.verify(folder, complete=True)
    assert not [item for item in found if item.code == "kafka.complete.unexplained"]
    assert len(found.accounts) > 5
    for one in found.accounts:
        assert sum(getattr(one, name) or 0 for name in CLASSES) == one.stop, one
        rows = rawlog.read(one.path, table="kafka.records", columns=["offset", "is_control", "aborted"]).to_pylist()
        rows = [row for row in rows if row["offset"] >= one.start]
        assert one.control == sum(row["is_control"] for row in rows)
        assert (one.aborted or 0) == sum(row["aborted"] and not row["is_control"] for row in rows)
        assert one.present == len(rows) - one.control - (one.aborted or 0)


def test_retention_and_compaction_explain_what_is_missing() -> None:
    found = accounts(data())
    assert found["trimmed-0"].expired == found["trimmed-0"].start == 57
    assert found["compacted-0"].compacted > 0
    assert found["compacted-0"].unexplained == 0
    assert found["transaction-open-0"].open_transactions == 1


def test_rules_run_only_if_asked_for() -> None:
    assert not [item for item in rawlog.verify(data("transaction-open-0")) if ".complete." in item.code]
    found = rawlog.verify(data("transaction-open-0"), rule="kafka.complete.transaction")
    assert [item.offset for item in found] == [10]
    assert found.verdict == "clean"  # it is merely open
    assert rawlog.verify(data("transaction-open-0")).accounts == []
    assert [one.code for one in rawlog.rules(rule="kafka.complete")]


@pytest.mark.parametrize("number", range(9))
def test_every_removed_segment_is_unexplained(number: int, tmp_path: Path) -> None:
    """Exactly the offsets of segments that were taken out are unexplained, wherever they were; so are those at the beginning, since the
    leader epochs begin with the log. The metadata log tells that the topic is not compacted.
    """
    rng = random.Random(number)
    name = PLAIN[number % len(PLAIN)]
    folder = tmp_path / name
    shutil.copytree(data(name), folder)
    shutil.copytree(data("__cluster_metadata-0"), tmp_path / "__cluster_metadata-0")
    every = bases(folder)
    ends = dict(itertools.pairwise(every))
    gone = sorted(rng.sample(every[:-1], rng.randrange(1, 3)))
    remove_segments(folder, gone)
    found = rawlog.verify(folder, complete=True)
    [one] = found.accounts
    [whole] = rawlog.verify(data(name), complete=True).accounts
    assert one.unexplained == sum(ends[base] - base for base in gone)
    assert (one.stop, sum(getattr(one, name) or 0 for name in CLASSES)) == (whole.stop, whole.stop)
    runs = [item for item in found if item.code == "kafka.complete.unexplained"]
    assert runs
    assert runs[0].offset == gone[0]
    assert found.verdict == "damaged"


@pytest.mark.parametrize(
    "evidence", ["", "metadata", "cleaner", "index", "snapshot", "entry", "sequences", "key", "marker"]
)
def test_a_hole_is_undecided_only_where_nothing_contradicts_compaction(evidence: str, tmp_path: Path) -> None:
    """Of a partition directory alone, nothing tells its cleanup policy: a segment that is gone with all of its files was reported as
    lost, though compaction leaves the same. It leaves broken sequences of producers, too; but not both records of a key before the hole.
    """
    name = "transactions-0" if evidence in ("sequences", "key", "marker") else "segments-by-size-0"
    folder = tmp_path / name
    shutil.copytree(data(name), folder)
    every = bases(folder)
    base, stop = {"sequences": (5, 10), "key": (34, 43), "marker": (10, 19)}.get(evidence, (every[2], every[3]))
    kept = {"index": "index", "snapshot": "snapshot"}.get(evidence)
    for path in folder.glob(f"{base:020}.*"):
        if path.suffix != f".{kept}":
            path.unlink()
    if evidence == "metadata":
        shutil.copytree(data("__cluster_metadata-0"), tmp_path / "__cluster_metadata-0")
    elif evidence == "cleaner":
        (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\nsegments-by-size 0 {base}\n")
    elif evidence == "entry":
        index = folder / f"{every[1]:020}.timeindex"
        raw = bytearray(index.read_bytes())
        raw[-4:] = (base - every[1]).to_bytes(4, "big")
        index.write_bytes(raw)
    found = rawlog.verify(folder, complete=True)
    [one] = found.accounts
    missing = stop - base
    assert sum(getattr(one, name) or 0 for name in CLASSES) == one.stop
    if evidence not in ("", "sequences"):
        assert (one.undecided, one.unexplained) == (None, missing)
        assert found.exit_code == 1
        assert not one.is_complete
    else:
        assert (one.undecided, one.unexplained) == (missing, 0)
        [item] = (item for item in found if item.code == "kafka.partition.gap")
        assert (item.code, item.severity) == ("kafka.partition.gap", "info")
        assert item.message == f"offsets {base} to {stop - 1} are missing: cannot tell compaction from loss"
        assert found.exit_code == 0
        assert not one.is_complete


def test_a_damaged_batch_is_unexplained(tmp_path: Path) -> None:
    folder = tmp_path / "segments-by-size-0"
    shutil.copytree(data("segments-by-size-0"), folder)
    batches = rawlog.read(folder, table="kafka.batches").to_pylist()
    bad = batches[len(batches) // 2]
    path = Path(bad["path"])
    raw = bytearray(path.read_bytes())
    raw[bad["position"] + bad["size"] - 1] ^= 1
    path.write_bytes(raw)
    [one] = rawlog.verify(folder, complete=True).accounts
    assert one.unexplained == bad["last_offset"] - bad["base_offset"] + 1


def test_compaction_explains_nothing_after_the_point_of_the_cleaner(tmp_path: Path) -> None:
    shutil.copytree(data(), tmp_path / "data")
    folder = tmp_path / "data" / "compacted-0"
    every = bases(folder)
    line = next(
        text
        for text in (tmp_path / "data" / "cleaner-offset-checkpoint").read_text().splitlines()
        if text.startswith("compacted 0 ")
    )
    point = int(line.split()[2])
    after = [base for base in every[:-1] if base >= point]
    before = accounts(tmp_path / "data")["compacted-0"]
    assert before.unexplained == 0
    if not after:  # the active segment is all that is after it: cut its beginning off
        log = folder / f"{every[-1]:020d}.log"
        batches = list(rawlog.read(log, table="kafka.batches").to_pylist())
        assert len(batches) > 2
        raw, cut = log.read_bytes(), batches[1]
        log.write_bytes(raw[: cut["position"]] + raw[cut["position"] + cut["size"] :])
        for kind in ("index", "timeindex"):
            (folder / f"{every[-1]:020d}.{kind}").unlink()
        expected = cut["last_offset"] - cut["base_offset"] + 1
    else:
        remove_segments(folder, after[:1])
        expected = next(base for base in every if base > after[0]) - after[0]
    assert accounts(tmp_path / "data")["compacted-0"].unexplained == expected


def test_a_log_that_is_shorter_than_a_checkpoint_says_lacks_the_rest(tmp_path: Path) -> None:
    shutil.copytree(data(), tmp_path / "data")
    folder = tmp_path / "data" / "segments-by-size-0"
    last = bases(folder)[-1]
    end = accounts(tmp_path / "data")["segments-by-size-0"].stop
    for path in folder.glob("*"):
        if path.stem.isdigit() and int(path.stem) >= last:
            path.unlink()
    assert accounts(tmp_path / "data")["segments-by-size-0"].unexplained == end - last


def test_committed_offsets_must_be_in_range(tmp_path: Path) -> None:
    shutil.copytree(data(), tmp_path / "data")
    assert not [item for item in rawlog.verify(data(), complete=True) if item.code == "kafka.complete.committed"]
    rows = rawlog.read(data(), table="kafka.offsets").to_pylist()
    best = max(
        (row for row in rows if row["is_current"] and not row["deleted"] and row["committed_offset"] > 0),
        key=lambda row: row["committed_offset"],
    )
    folder = tmp_path / "data" / f"{best['topic']}-{best['partition']}"
    for path in folder.iterdir():
        if path.suffix == ".log":
            path.write_bytes(b"")
        elif path.suffix in (".index", ".timeindex", ".txnindex"):
            path.unlink()
    found = [
        item for item in rawlog.verify(tmp_path / "data", complete=True) if item.code == "kafka.complete.committed"
    ]
    assert any(best["group"] in item.message and item.offset == best["committed_offset"] for item in found)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_cut_of_a_segment_gives_the_same_account(case: KafkaCase) -> None:
    rng = random.Random(str(case))
    files = rawlog.open(case.path).files
    expected = accounts_of(Store(files))
    store = Store(files)
    for file in files:
        if file.format == "kafka.log" and file.place.state is None:
            fold = in_splits(file, store, rng)
            store.summaries[file.path] = fold if fold.rises else fold_segment(file, store)
    assert accounts_of(store) == expected


EVENTS = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([None, ABORT, COMMIT])), max_size=20)


def _ended(events: list[tuple[int, int | None]]) -> TransactionCounts:
    """One producer, event by event: so many records, then a marker or none."""
    made = TransactionCounts()
    for records, marker in events:
        made.join(TransactionCounts(lead=records) if marker is None else TransactionCounts(records, marker))
    return made


@given(EVENTS, st.data())
def test_any_cut_of_transactions_counts_the_same(events: list[tuple[int, int | None]], draw: st.DataObject) -> None:
    whole, waiting, aborted = _ended(events), 0, 0
    for records, marker in events:
        waiting += records
        if marker is not None:
            aborted += waiting if marker == ABORT else 0
            waiting = 0
    assert whole.aborted + (whole.lead if whole.first == ABORT else 0) == aborted
    at = draw.draw(st.integers(0, len(events)))
    left, right = _ended(events[:at]), pickle.loads(pickle.dumps(_ended(events[at:])))
    left.join(right)
    assert left == whole


def test_text_and_json_have_a_row_for_each_partition(capsys: Any) -> None:
    import json

    from click.testing import CliRunner

    from rawlog.cli import cli

    reported = CliRunner().invoke(cli, ["verify", "--complete", str(data("transactions-0"))])
    assert "unexplained" in reported.output
    assert reported.exit_code == 0
    lines = CliRunner().invoke(cli, ["verify", "--complete", "--json", str(data("transactions-0"))]).output.splitlines()
    row, summary = json.loads(lines[-2]), json.loads(lines[-1])
    assert (row["topic"], row["partition"], row["stop"], row["aborted"]) == ("transactions", 0, 103, 24)
    assert summary["verdict"] == "clean"
