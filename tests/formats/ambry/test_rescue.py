"""Rescue of Ambry partitions: the union of replicas, judged by what Ambry itself said of the golden stores and by its rules."""

from __future__ import annotations

import hashlib
import pickle
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.store.rescue import Rescue
from rawlog.formats.ambry.store.rewrite import StoreWriter, Style
from rawlog.formats.ambry.writer import (
    Properties,
    hard_delete,
    put_message,
    update_message,
)
from rawlog.io.output import Folder
from rawlog.model.errors import CorruptError
from rawlog.model.recovery import RescueOptions, SurveyResult
from rawlog.model.report import Action, Report
from rawlog.reading.tree import open_tree
from tests.data.ambry_stores import CLOCK, copy_store, expected, small_key, store_path
from tests.data.trees import digests


def rescued(roots: Sequence[Path], target: Path, **options: Any) -> Report:
    """Rescue, which must leave its sources as they are and a store that verifies clean."""
    before = digests(*roots)
    report = rawlog.rescue([str(root) for root in roots], to=target, engine="local", **options)
    assert digests(*roots) == before
    serious = {one.code for one in rawlog.verify(target) if one.severity != "info"}
    assert serious <= {"ambry.store.orphan-update"} if lost_ids(report) else not serious  # a loss stays known
    return report


def lost_ids(report: Report) -> set[str]:
    return {one.reason.split()[1].rstrip(":") for one in report.with_action(Action.LOST)}


def blobs(path: Path, now: int = 0) -> dict[str, dict[str, Any]]:
    rows = rawlog.read(path, table="ambry.blobs", option={"now": now}).to_pylist()
    return {row["blob_id"]: row for row in rows}


def contents(path: Path) -> dict[str, bytes]:
    rows = rawlog.read(path, table="ambry.messages", columns=["blob_id", "kind", "content"]).to_pylist()
    return {row["blob_id"]: row["content"] for row in rows if row["kind"] == "PUT"}


# Golden stores ---------------------------------------------------------------------------------------------------------------


def damage(store: Path, rng: random.Random, times: int) -> None:
    """Random bytes at random places of each log segment."""
    for path in sorted(store.glob("*_log")):
        raw = bytearray(path.read_bytes())
        for _ in range(times):
            at = rng.randrange(18, len(raw))
            size = min(rng.randrange(1, 60), len(raw) - at)
            raw[at : at + size] = rng.randbytes(size)
        path.write_bytes(raw)


def golden_messages(name: str) -> list[tuple[dict[str, Any], bytes]]:
    files = {path.name: path.read_bytes() for path in store_path(name).glob("*_log")}
    return [
        (one, files[one["segment"]][one["offset"] : one["offset"] + one["size"]]) for one in expected(name)["messages"]
    ]


def surviving_puts(name: str, replicas: Sequence[Path]) -> set[str]:
    """The blobs whose PUT is whole in at least one replica."""
    files = [{path.name: path.read_bytes() for path in one.glob("*_log")} for one in replicas]
    found = set()
    for one, raw in golden_messages(name):
        parts = [logs.get(one["segment"], b"")[one["offset"] : one["offset"] + one["size"]] for logs in files]
        if one["kind"] == "PUT" and raw in parts:
            found.add(one["blob_id"])
    return found


def check_golden(name: str, store: Path, report: Report, survivors: set[str]) -> None:
    """Whatever survives somewhere is there in the state that Ambry had; everything else is reported as lost."""
    known = expected(name)
    found, content = blobs(store, known["now_ms"]), contents(store)
    assert set(found) <= {one["blob_id"] for one in known["blobs"]}
    for one in known["blobs"]:
        blob = one["blob_id"]
        if one["put"] is not None and blob not in survivors:
            assert blob in lost_ids(report), one
            continue
        row = found[blob]
        assert (row["state"], row["life_version"]) == (one["state"], one["life_version"]), one
        assert row["ttl_updated"] == one["ttl_updated"]
        if one["put"] is not None:
            assert hashlib.sha256(content[blob]).hexdigest() == one["content_sha256"]
    puts = {one["blob_id"] for one in known["blobs"] if one["put"] is not None}
    assert lost_ids(report) == puts - survivors


@pytest.mark.parametrize(
    ("name", "count", "seed"),
    [("store-ops", 2, 1), ("store-ops", 3, 2), ("store-compacted", 2, 3), ("store-small", 2, 4)],
)
def test_what_survives_in_one_replica_is_in_the_result(name: str, count: int, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    number = expected(name)["store"]["partition"]
    replicas = [copy_store(name, tmp_path / f"disk{index}" / str(number)) for index in range(count)]
    for one in replicas:
        damage(one, rng, 1 if name == "store-small" else 4)
    survivors = surviving_puts(name, replicas)
    report = rescued([one.parent for one in replicas], tmp_path / "out")
    check_golden(name, tmp_path / "out" / str(number), report, survivors)


def test_whole_replicas_give_the_store_as_it_is(tmp_path: Path) -> None:
    replicas = [copy_store("store-compacted", tmp_path / name / "77") for name in ("a", "b")]
    report = rescued([one.parent for one in replicas], tmp_path / "out")
    assert report.is_whole
    for path in replicas[0].glob("*_log"):
        assert (tmp_path / "out" / "77" / path.name).read_bytes() == path.read_bytes()
    check_golden("store-compacted", tmp_path / "out" / "77", report, surviving_puts("store-compacted", replicas))


def test_a_lost_segment_and_a_replica_that_is_not_up_to_date(tmp_path: Path) -> None:
    """One replica has lost a log segment, another one has only the first messages, in another order."""
    one = copy_store("store-ops", tmp_path / "a" / "42")
    (one / "1_0_log").unlink()
    messages = golden_messages("store-ops")
    first = [pair for pair in messages if pair[0]["segment"] in ("0_0_log", "1_0_log")]
    reordered(tmp_path / "b" / "42", first, random.Random(5))
    report = rescued([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert not lost_ids(report)
    puts = {pair[0]["blob_id"] for pair in messages if pair[0]["kind"] == "PUT"}
    check_golden("store-ops", tmp_path / "out" / "42", report, puts)


def reordered(target: Path, messages: Sequence[tuple[dict[str, Any], bytes]], rng: random.Random) -> Path:
    """A replica with the same messages in another order; those of each blob stay in theirs."""
    places: dict[str, list[float]] = {}
    for one, _ in messages:
        places.setdefault(one["uuid"], []).append(rng.random())
    for found in places.values():
        found.sort(reverse=True)
    ordered = sorted(messages, key=lambda pair: places[pair[0]["uuid"]].pop())
    return replica(target, [raw for _, raw in ordered], capacity=262144)


def replica(target: Path, messages: Sequence[bytes], *, capacity: int = 4096, index: bool = True) -> Path:
    target.mkdir(parents=True)
    with StoreWriter(Folder(target), capacity=capacity, style=Style(max_entries=20)) as writer:
        for message in messages:
            writer.append(message)
        writer.close()
    if not index:
        for path in [*target.glob("*_index"), *target.glob("*_bloom")]:
            path.unlink()
    return target


@pytest.mark.parametrize("seed", [11, 12])
def test_replicas_in_different_order_make_up_for_one_another(seed: int, tmp_path: Path) -> None:
    """Each replica has the blobs in its own order, and lost other bytes; no index file is left."""
    rng = random.Random(seed)
    messages = golden_messages("store-ops")
    replicas = []
    for number in range(3):
        one = reordered(tmp_path / f"disk{number}" / "42", messages, rng)
        for path in [*one.glob("*_index"), *one.glob("*_bloom")]:
            path.unlink()
        damage(one, rng, 2)
        replicas.append(one)
    logs = [b"".join(path.read_bytes() for path in sorted(one.glob("*_log"))) for one in replicas]
    whole = {raw: any(raw in log for log in logs) for _, raw in messages}
    lost = {one["uuid"] for one, raw in messages if not whole[raw]}
    report = rescued([one.parent for one in replicas], tmp_path / "out")
    known = expected("store-ops")
    found, content = blobs(tmp_path / "out" / "42", known["now_ms"]), contents(tmp_path / "out" / "42")
    assert len(lost) < 12
    for one in known["blobs"]:
        if one["key"]["uuid"] in lost:
            assert one["blob_id"] in lost_ids(report)
            continue
        row = found[one["blob_id"]]
        assert (row["state"], row["life_version"]) == (one["state"], one["life_version"])
        if one["put"] is not None:
            assert hashlib.sha256(content[one["blob_id"]]).hexdigest() == one["content_sha256"]


# Rules -------------------------------------------------------------------------------------------------------------------------


def put(number: int = 1, life: int = 0, content: bytes = b"content", ttl: int = -1) -> bytes:
    properties = Properties(
        blob_size=len(content), creation_time=CLOCK, time_to_live=ttl, content_type="a", owner_id="o", service_id="s",
        account_id=101, container_id=7,
    )  # fmt: skip
    return put_message(small_key(number), properties, content, user_metadata=b"um", life_version=life)


def update(kind: Kind, life: int = 0, number: int = 1) -> bytes:
    time = CLOCK + 1000 * (life + 1)
    return update_message(kind, small_key(number), time=time, account_id=101, container_id=7, life_version=life)


P, P1 = put(ttl=604800), put(life=1, ttl=604800)
T, D, U, D1 = update(Kind.TTL_UPDATE), update(Kind.DELETE), update(Kind.UNDELETE, 1), update(Kind.DELETE, 1)
FILL = [put(number, content=b"x" * number) for number in (5, 6, 7)]
ID = keys.text_of(small_key(1))


@pytest.mark.parametrize(
    ("replicas", "state", "life", "ttl_updated"),
    [
        (([P], [P, D]), "deleted", 0, False),
        (([D], [P]), "deleted", 0, False),
        (([P, D, U], [P, D]), "live", 1, False),
        (([P, D], [P1]), "live", 1, False),
        (([P, D, U, D1], [P1]), "deleted", 1, False),
        (([P, D], [P1, D1]), "deleted", 1, False),
        (([P, T], [P]), "live", 0, True),
        (([P, T, D, U], [P, D]), "live", 1, True),
        (([P, T, D], [P1]), "live", 1, True),
        (([P, D, U, D1], [P, D, U], [P]), "deleted", 1, False),
    ],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_highest_life_version_counts_and_a_delete_comes_last(
    replicas: tuple[list[bytes], ...], state: str, life: int, ttl_updated: bool, is_reversed: bool, tmp_path: Path
) -> None:
    given = list(reversed(replicas)) if is_reversed else list(replicas)
    roots = []
    for number, messages in enumerate(given):
        roots.append(tmp_path / f"disk{number}")
        replica(roots[-1] / "9", [*messages, *FILL])
    report = rescued(roots, tmp_path / "out")
    row = blobs(tmp_path / "out" / "9")[ID]
    assert (row["state"], row["life_version"], row["ttl_updated"]) == (state, life, ttl_updated)
    assert row["in_log"]
    assert report.is_whole, report.lines()


@pytest.mark.parametrize(("more", "is_zeroed"), [([D], True), ([D, U], False)])
def test_a_hard_delete_counts_unless_the_blob_lives(more: list[bytes], is_zeroed: bool, tmp_path: Path) -> None:
    replica(tmp_path / "a" / "9", [P, *more, *FILL])
    replica(tmp_path / "b" / "9", [hard_delete(P), *more, *FILL])
    rescued([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert contents(tmp_path / "out" / "9")[ID] == (bytes(7) if is_zeroed else b"content")


def test_different_content_is_reported_as_undecided(tmp_path: Path) -> None:
    replica(tmp_path / "a" / "9", [put(content=b"one"), *FILL])
    replica(tmp_path / "b" / "9", [put(content=b"two"), *FILL])
    report = rescued([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert report.total("blobs_undecided") == len(report.with_action(Action.UNDECIDED)) == 1
    assert report.exit_code == 1
    assert any(ID in text for text in report.facts["plan"][0]["unknown"])


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_a_damaged_blob_id_makes_no_second_blob(is_confirmed: bool, tmp_path: Path) -> None:
    """No checksum covers the key of a message: the union had the same content under two ids. An index tells which one is right; without
    any both are kept, and reported.
    """
    one = replica(tmp_path / "a" / "9", [P, *FILL], index=False)
    replica(tmp_path / "b" / "9", [P, *FILL], index=is_confirmed)
    [log] = one.glob("*_log")
    raw = bytearray(log.read_bytes())
    raw[18 + 40 + 30] ^= 0x55
    log.write_bytes(raw)
    report = rescued([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    wanted = {ID, *(keys.text_of(small_key(number)) for number in (5, 6, 7))}
    found = set(blobs(tmp_path / "out" / "9"))
    assert wanted <= found
    assert (found == wanted) == is_confirmed
    assert bool(report.total("blobs_undecided")) != is_confirmed


def test_a_delete_that_only_an_index_remembers_counts(tmp_path: Path) -> None:
    """The log of the replica with the DELETE is lost as a whole."""
    one = replica(tmp_path / "a" / "9", [P, D, *FILL])
    for path in one.glob("*_log"):
        path.unlink()
    replica(tmp_path / "b" / "9", [P, *FILL])
    rescued([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    assert blobs(tmp_path / "out" / "9")[ID]["state"] == "deleted"


# Which replicas, and the plan --------------------------------------------------------------------------------------------------


def test_partitions_are_told_apart_by_blob_ids_where_directories_do_not_say(tmp_path: Path) -> None:
    copy_store("store-small", tmp_path / "x" / "first")
    copy_store("store-small", tmp_path / "y" / "second")
    copy_store("store-ops", tmp_path / "y" / "third")
    report = rescued([tmp_path / "x", tmp_path / "y"], tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["42", "9"]
    assert [len(unit["copies"]) for unit in sorted(report.facts["plan"], key=lambda unit: unit["name"])] == [1, 2]


def test_a_plan_writes_nothing_and_names_what_is_lost(tmp_path: Path) -> None:
    replicas = [copy_store("store-ops", tmp_path / name / "42") for name in ("a", "b")]
    message = next(one for one, _ in golden_messages("store-ops") if one["kind"] == "PUT")
    for one in replicas:
        path = one / message["segment"]
        raw = bytearray(path.read_bytes())
        raw[message["offset"] + message["size"] - 12] ^= 1
        path.write_bytes(raw)
    roots = [str(one.parent) for one in replicas]
    report = rawlog.rescue(roots, plan=True, engine="local")
    [unit] = report.facts["plan"]
    assert [message["blob_id"] in span["reason"] for span in unit["lost"]] == [True]
    assert not report.is_whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_replica_that_is_named_twice_is_used_once(tmp_path: Path) -> None:
    one = copy_store("store-small", tmp_path / "a" / "9")
    (tmp_path / "link").symlink_to(one.parent)
    report = rawlog.rescue([str(tmp_path / "a"), str(tmp_path / "link")], to=tmp_path / "out", engine="local")
    assert len(report.facts["plan"][0]["copies"]) == 1
    assert "is the same directory as" in " ".join(report.lines())


def test_every_round_runs_in_other_processes(tmp_path: Path) -> None:
    """What is sent to tasks can be pickled, and what comes back is small."""
    replicas = [copy_store("store-ops", tmp_path / name / "42") for name in ("a", "b")]
    tree = open_tree([str(one.parent) for one in replicas])
    rescue = Rescue(RescueOptions(), tmp_path / "out")
    [split] = rescue.plan(tree.roots, tree.files, [])
    other, own = pickle.loads(pickle.dumps((rescue, split)))
    raw = pickle.dumps(other.survey(own, lambda _: None))
    assert len(raw) < 30_000
    [unit] = rescue.decide([SurveyResult(split, pickle.loads(raw))])
    other, own = pickle.loads(pickle.dumps((rescue, unit)))
    report = other.carry(own, Folder(tmp_path / "made").make(), Folder(tmp_path / "aside"), lambda _: None)
    assert report.is_whole


def test_a_large_segment_of_another_partition_is_set_aside(tmp_path: Path) -> None:
    """Next to a sound replica none of the 15 original messages was left: all blob ids became those of the foreign partition, exit 0."""
    sound = copy_store("store-small", tmp_path / "a" / "9")
    wounded = copy_store("store-small", tmp_path / "b" / "9")
    foreign = store_path("store-ops") / "0_0_log"
    (wounded / "3_0_log").write_bytes(foreign.read_bytes())
    for roots in ([tmp_path / "b"], [tmp_path / "a", tmp_path / "b"], [tmp_path / "b", tmp_path / "a"]):
        target = tmp_path / f"out-{len(roots)}-{roots[0].name}"
        report = rescued(roots, target)
        assert contents(target / "9") == contents(sound)
        assert blobs(target / "9").keys() == blobs(sound).keys()
        assert not report.is_whole
        assert any("belong to partition 42" in one.reason for one in report.with_action(Action.DROPPED))
        [aside] = Path(f"{target}.divergent").rglob("3_0_log")
        assert aside.read_bytes() == foreign.read_bytes()


@pytest.mark.parametrize("gone", ["one", "all", "damaged"])
def test_an_expiry_that_only_a_lost_index_knew_is_a_loss_in_every_verb(gone: str, tmp_path: Path) -> None:
    """Compaction took the PUTs of two undeleted blobs, so only the index knew when they expire. Without it repair named the loss, and
    rescue, rebuild, compact, convert and ingest said nothing: exit 0. A sound replica still knows.
    """
    store, sound = (copy_store("store-compacted", tmp_path / side / "77") for side in "ab")
    index = store / "3_0_18_index"
    if gone == "damaged":
        data = bytearray(index.read_bytes())
        data[396] ^= 1
        index.write_bytes(bytes(data))
    for path in [index] if gone == "one" else store.glob("*_index") if gone == "all" else []:
        path.unlink()
    report = rescued([store.parent], tmp_path / "one")
    assert len(lost_ids(report)) == 2
    assert not report.is_whole
    assert lost_ids(rawlog.repair(str(store), str(tmp_path / "repaired"))) == lost_ids(report)
    assert lost_ids(rawlog.convert([str(store)], tmp_path / "rows.jsonl", to="jsonl")) == lost_ids(report)
    assert any(one.code == "ambry.store.orphan-update" and one.severity == "warning" for one in rawlog.verify(store))
    for verb in (rawlog.rebuild, rawlog.compact):
        with pytest.raises(CorruptError, match="only the index knew when the blob expires"):
            verb(str(store), str(tmp_path / "refused"))
    both = rescued([store.parent, sound.parent], tmp_path / "both")
    states = [
        {key: (row["state"], row["expires_timestamp"]) for key, row in blobs(path).items()}
        for path in (tmp_path / "both", sound)
    ]
    assert both.is_whole
    assert states[0] == states[1]


@pytest.mark.parametrize("has_it", [True, False])
def test_an_update_written_again_from_an_index_counts_unless_a_replica_has_it(has_it: bool, tmp_path: Path) -> None:
    """A DELETE was lost in one replica. Where no other one has it, the time of the one written again is cut to seconds, and rescue did not
    count that as a change: exit 0. Where another one has it nothing is lost, and rescue exited 1 because both end as a crash leaves them.
    """
    store, other = (copy_store("store-crashed", tmp_path / side / "1000003") for side in "ab")
    delete = next(one for one in expected("store-crashed")["messages"] if one["offset"] == 242605)
    assert (delete["segment"], delete["kind"]) == ("0_0_log", "DELETE")
    for folder in (store, *([] if has_it else [other])):
        data = bytearray((folder / "0_0_log").read_bytes())
        data[242605 + 88] ^= 1
        (folder / "0_0_log").write_bytes(bytes(data))
    if not has_it:
        for path in other.glob("*_index"):
            path.unlink()
    report = rescued([store.parent, other.parent], tmp_path / "both")
    assert report.is_whole is has_it
    changed = report.with_action(Action.CHANGED)
    assert [one.is_expected for one in changed if delete["blob_id"] in one.reason] == [has_it]


def test_a_copied_segment_names_no_blob_as_lost(tmp_path: Path) -> None:
    """The blob ids in a segment that is set aside as a copy are of sound messages: each was reported as named by a damaged one."""
    store = copy_store("store-crashed", tmp_path / "a" / "1000003")
    (store / "6_0_log").write_bytes((store / "1_0_log").read_bytes())
    report = rawlog.repair(str(store), str(tmp_path / "repaired"))
    assert any("a copy of 1_0_log: set aside" in one.reason for one in report.with_action(Action.DROPPED))
    assert len(lost_ids(report)) <= 1  # the unfinished message before the copy
