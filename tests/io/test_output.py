"""Output: what it refuses, which names pass its gate, how a target appears, and what stays of a killed writer."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.formats.ambry.keys import make
from rawlog.formats.ambry.writer import Properties, put_message
from rawlog.formats.rocketmq.store.repair import repair
from rawlog.formats.rocketmq.store.rewrite import rebuild
from rawlog.io import output
from rawlog.io.output import (
    Folder,
    Output,
    child,
    descendant,
    refuse_nested,
    remove_stage,
    scratch,
    writing,
)
from rawlog.model.errors import AccessError, EncodeError, OptionError
from rawlog.model.format import File, Place
from rawlog.model.store import Store
from rawlog.model.table import RECORDS
from rawlog.reading.tree import Tree
from tests.data.trees import contents

LOCAL = ("--engine", "local")
SIZES = {"commitlog_size": "65536", "queue_size": "6000", "index_slots": "100", "index_entries": "400"}


@contextlib.contextmanager
def new_directory(target: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """A directory to fill that becomes the target when the block ends well."""
    with Output(target, overwrite=overwrite) as output, output.directory() as folder:
        yield folder.path


# The guard -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("s3://b/k", "s3://b/k"),
        ("s3://b/k/", "s3://b/k"),
        ("s3://b//k/./x", "s3://b/k"),
        ("s3://b/k", "s3://b/k/x/y"),
        ("s3://b", "s3://b/k"),
        ("s3://b/other/../k/new", "s3://b/k"),
        ("s3://key:secret@b/k?region=x", "s3://b/k?region=y"),
        ("gs://b/k", "gcs://b/k"),
        ("s3://b/k?endpoint_override=one", "s3://b/k"),
    ],
)
def test_urls_are_compared_as_the_paths_they_are(target: str, source: str) -> None:
    with pytest.raises(OptionError, match="inside one another"):
        refuse_nested(target, [source])


@pytest.mark.parametrize(
    ("target", "source"),
    [
        ("s3://b/k2", "s3://b/k"),
        ("s3://b2/k", "s3://b/k"),
        ("s3://b/k", "gs://b/k"),
        ("s3://b/k?endpoint_override=one", "s3://b/k?endpoint_override=two"),
        ("/b/k", "s3://b/k"),
        ("s3://b/k", "/b/k"),
    ],
)
def test_urls_of_other_places_are_other_places(target: str, source: str) -> None:
    refuse_nested(target, [source])


def test_what_a_glob_in_an_object_store_matched_is_a_source() -> None:
    tree = Tree(("s3://b/k/*.log",), (File("s3://b/k/a.log", 1),))
    refuse_nested("s3://b/k/out.parquet", tree.sources)
    with pytest.raises(OptionError):
        refuse_nested("s3://b/k", tree.sources)


def test_names_next_to_a_source_are_free(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    for name in ("k2", "k.parquet", "other/k", "k-0"):
        refuse_nested(tmp_path / name, [tmp_path / "k"])


def test_a_dangling_link_and_a_loop_are_no_way_in(tmp_path: Path) -> None:
    (tmp_path / "k").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "k" / "new")
    with pytest.raises(OptionError):
        refuse_nested(tmp_path / "dangling", [tmp_path / "k"])
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises((OptionError, AccessError)), writing(tmp_path / "loop" / "x", sources=[tmp_path / "k"]) as file:
        file.write(b"x")


# The gate --------------------------------------------------------------------------------------------------------------

HOSTILE = ["", ".", "..", "/", "a/b", "/etc/x", "../../x", "x\0y", "n" * 256, "ä" * 128, "\ud800"]
PLAIN = [
    "a",
    "...",
    "..a",
    "%RETRY%group",
    "%DLQ%group",
    "a b",
    "ä",
    "-",
    "~",
    "n" * 255,
    "a\\b",
    "__consumer_offsets-0",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_lead_elsewhere_do_not_pass(name: str, tmp_path: Path) -> None:
    with pytest.raises(EncodeError, match="cannot be the name"):
        child(tmp_path, name)
    with pytest.raises(EncodeError):
        descendant(tmp_path, f"a/{name}" if name != "a/b" else "a/../b")


@pytest.mark.parametrize("name", PLAIN)
def test_names_that_systems_carry_pass(name: str, tmp_path: Path) -> None:
    child(tmp_path, name).write_bytes(b"x")
    assert [path.name for path in tmp_path.iterdir()] == [name]


# Hostile names, over every family and writer ---------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory deep enough to see what leaves `out`: nothing but what was there may be around it."""
    deep = tmp_path / "a" / "b" / "work"
    deep.mkdir(parents=True)
    yield deep
    allowed = {"a", "a/b", "a/b/work"}
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    outside = {name for name in found if name not in allowed and not name.startswith("a/b/work/")}
    assert not outside, f"written outside of the target: {outside}"
    inside = {path.name for path in deep.iterdir()}
    assert inside <= {"in", "out", "aside"}, f"written next to the target: {inside}"


def names(place: Path) -> list[str]:
    return ["../../x", "..", ".", "a/b", str(place / "outside"), "../outside", "x\0y", "t" * 300]


def rows(*topics: str) -> pa.Table:
    made = [
        {"topic": topic, "partition": 0, "offset": 0, "timestamp": 1_700_000_000_000_000, "value": b"v", "headers": []}
        for topic in topics
    ]
    return pa.Table.from_pylist(made, schema=RECORDS.schema)


def run(*words: object) -> Any:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("format", ["kafka", "rocketmq"])
def test_rows_of_a_hostile_topic_are_refused_with_its_name(format: str, number: int, place: Path) -> None:
    """`convert rows.jsonl --to rocketmq` wrote the consume queue of topic `/tmp/x` to /tmp/x, and ended with 0."""
    name = names(place)[number]
    with pytest.raises(EncodeError) as caught:
        rawlog.write(place / "out", rows("sound", name), format=format)
    assert repr(name) in str(caught.value)
    assert not (place / "out").exists()


@pytest.mark.parametrize("number", range(8))
@pytest.mark.parametrize("to", ["kafka", "rocketmq", "ambry", "replay", "parquet", "jsonl"])
def test_converting_rows_of_a_hostile_topic_stays_in_the_target(to: str, number: int, place: Path) -> None:
    name = names(place)[number]
    row = {"topic": name, "partition": 0, "offset": 0, "timestamp": "2024-01-01T00:00:00Z", "value": "v"}
    (place / "in").mkdir()
    (place / "in" / "rows.jsonl").write_text(json.dumps(row) + "\n")
    accepted = ("--accept-loss", ",".join(RECORDS.names)) if to in ("ambry", "replay") else ()
    done = run("convert", place / "in" / "rows.jsonl", place / "out", "--to", to, *LOCAL, *accepted)
    if to in ("kafka", "rocketmq"):
        assert done.exit_code == 3, done.stderr
        assert "topic" in done.stderr
        assert not (place / "out").exists()
    else:
        assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize("number", range(8))
def test_restoring_rows_of_a_hostile_topic_is_refused(number: int, place: Path) -> None:
    import pyarrow.parquet as pq

    (place / "in").mkdir()
    pq.write_table(rows("sound", names(place)[number]), place / "in" / "rows.parquet")
    done = run("restore", place / "in", place / "out", *LOCAL)
    assert done.exit_code == 2, done.stderr
    assert "Kafka takes no such name" in done.stderr
    assert not (place / "out").exists()


def test_renaming_to_a_hostile_topic_is_refused(place: Path) -> None:
    rawlog.write(place / "in", rows("sound"), format="kafka")
    for name in ("../../x", "..", str(place / "outside")):
        assert run("restore", place / "in", place / "out", "--rename", f"sound={name}", *LOCAL).exit_code == 2
        assert run("convert", place / "in", place / "out", "--to", "kafka", "--option", f"topic={name}").exit_code == 2


@pytest.mark.parametrize("name", ["../../x", "..", "a/b"])
def test_restoring_a_cluster_with_a_hostile_topic_is_refused(name: str, place: Path) -> None:
    """The name is in the cluster's metadata, where no file system has ever seen it."""
    from rawlog.formats.kafka.cluster.new_cluster import (
        Blueprint,
        NewBroker,
        NewTopic,
        new_id,
    )

    rawlog.write(place / "in", rows("sound"), format="kafka")
    topics = [NewTopic(one, one, new_id(), 1, {}) for one in ("sound", name)]
    Blueprint([NewBroker(1)], "AAAAAAAAAAAAAAAAAAAAAA", topics, None).write(Folder(place / "in"), 1_700_000_000_000)
    done = run("restore", place / "in", place / "out", *LOCAL)
    assert done.exit_code == 2, done.stderr
    assert "Kafka takes no such name" in done.stderr


def hostile_store(place: Path, name: str) -> Path:
    """A store whose commit log holds messages of this topic, as somebody could send one: no checksum covers the name."""
    innocent = "T" * len(name.encode())
    rawlog.write(place / "in", rows("sound", innocent), format="rocketmq", **SIZES)
    for path in (place / "in" / "commitlog").iterdir():
        path.write_bytes(path.read_bytes().replace(innocent.encode(), name.encode()))
    shutil.rmtree(place / "in" / "consumequeue" / innocent)
    return place / "in"


@pytest.mark.parametrize("number", range(7))
def test_a_queue_of_a_hostile_topic_is_reported_and_left_out(number: int, place: Path) -> None:
    """A topic named `/tmp/x` or `../../x` in a commit log made repair and rebuild write outside of DST, exit 0."""
    name = names(place)[number]
    source = hostile_store(place, name)
    done = run("repair", source, place / "out", "--json")
    assert done.exit_code == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["queues_left_out"], report["is_whole"]) == (1, False)
    reasons = [entry["reason"] for entry in report["entries"]]
    assert any(repr(name) in reason and "left out" in reason for reason in reasons)
    assert [path.name for path in (place / "out" / "consumequeue").iterdir()] == ["sound"]
    # The messages themselves stay in the log, and the same command says the same again.
    assert contents(place / "out" / "commitlog") == contents(source / "commitlog")
    assert run("repair", source, place / "aside", "--dry-run").exit_code == 1


@pytest.mark.parametrize("number", range(7))
def test_rebuild_refuses_a_store_with_a_hostile_topic(number: int, place: Path) -> None:
    """A queue that nobody can write would be lost: rebuild names the topic and writes nothing."""
    name = names(place)[number]
    done = run("rebuild", hostile_store(place, name), place / "out", "--json")
    assert (done.exit_code, done.stdout) == (1, "")
    assert repr(name) in done.stderr
    assert "left out" in done.stderr
    assert not (place / "out").exists()


@pytest.mark.parametrize("name", ["%RETRY%group", "%DLQ%group", "a.b", "a|b", "ä"])
def test_a_queue_of_an_unusual_topic_is_rebuilt(name: str, place: Path) -> None:
    rawlog.write(place / "in", rows(name), format="rocketmq", **SIZES)
    assert run("rebuild", place / "in", place / "out").exit_code == 0
    assert contents(place / "out" / "consumequeue") == contents(place / "in" / "consumequeue")


def test_a_lake_cut_by_hostile_topics_stays_a_lake(place: Path) -> None:
    source = hostile_store(place, "../../x")
    done = run("ingest", source, "--to", place / "out", "--partition-by", "topic,partition", *LOCAL)
    assert done.exit_code in (0, 1), done.stderr
    shown = run("query", "SELECT DISTINCT topic FROM records", place / "out", "--engine", "duckdb", "--json")
    assert {json.loads(line)["topic"] for line in shown.stdout.splitlines()} == {"sound", "../../x"}


@pytest.mark.parametrize("number", range(8))
def test_blobs_of_a_hostile_file_name_stay_in_the_target(number: int, place: Path) -> None:
    name = names(place)[number]
    key = make(6, 9, "00000001-0000-4000-8000-000000000000", flags=0x10)
    (place / "in" / "9").mkdir(parents=True)
    texts: dict[str, Any] = {"filename": name, "service_id": name, "owner_id": name, "content_type": name}
    data = put_message(key, Properties(blob_size=1, creation_time=5, **texts), b"v")
    (place / "in" / "9" / "log_current").write_bytes(data)
    done = run("extract", place / "in", "--to", place / "out", "--names", "filename")
    assert done.exit_code == 0, done.stderr
    assert len(list((place / "out").iterdir())) == 2


@pytest.mark.parametrize("write", [rebuild, repair], ids=["rebuild", "repair"])
def test_a_key_of_an_object_store_does_not_lead_out_of_a_store(write: Callable[..., Any], place: Path) -> None:
    """The names of objects may hold `..`, which no directory listing ever has."""
    path = "s3://b/store/config/../../../../x"
    files = [File(path, 1, None, "rocketmq.position", Place(group="s3://b/store"))]
    with pytest.raises(EncodeError, match="cannot be the name"):
        write(Store(files), Folder(place / "out"), {})
    assert not (place / "out").exists()


def test_a_file_that_was_written_can_be_changed(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "out").make()
    folder.write("file", b"abc")
    with folder.change("file") as file:
        file.seek(1)
        file.write(b"X")
    assert contents(tmp_path) == {"out/file": b"aXc"}
    with pytest.raises(AccessError, match="other"):
        folder.change("other")
    with Folder(tmp_path / "dry", dry_run=True).change("file") as file:
        assert file.read(1) == b""
        file.write(b"X")
    assert contents(tmp_path) == {"out/file": b"aXc"}


def test_a_key_of_an_object_store_does_not_lead_out_of_recordings(place: Path) -> None:
    from rawlog.verbs.repair import RewriteJob

    names = ("s3://b/r/../../x.log", "s3://b/r/a.log")
    files = tuple(File(name, 1, None, "replay.recording") for name in names)
    with RewriteJob("repair", str(place / "out")) as job, pytest.raises(EncodeError, match="cannot be the name"):
        job.plan(Tree(("s3://b/r",), files))


def test_a_store_named_after_an_object_does_not_lead_out(place: Path) -> None:
    from rawlog.verbs.repair import RewriteJob

    file = File("s3://b/k/../00000000000000000000.log", 1, None, "kafka.log", Place(None, None, 0, "s3://b/k/.."))
    other = File("s3://b/k/u/00000000000000000000.log", 1, None, "kafka.log", Place(None, None, 0, "s3://b/k/u"))
    with RewriteJob("rebuild", str(place / "out")) as job, pytest.raises(EncodeError, match="cannot be the name"):
        job.plan(Tree(("s3://b/k",), (file, other)))
    # Next to a partition it is no store: it is named and left out.
    partition = File("s3://b/k/t-0/00000000000000000000.log", 1, None, "kafka.log", Place("t", 0, 0, "s3://b/k/t-0"))
    with RewriteJob("rebuild", str(place / "out")) as job:
        assert [split.content.place for split in job.plan(Tree(("s3://b/k",), (file, partition)))] == ["t-0"]
        assert job._report.left_out == [file.path]


# Appearing -------------------------------------------------------------------------------------------------------------


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with new_directory(tmp_path / "deep" / "out") as folder:
        (folder / "file").write_bytes(b"x")
        assert not (tmp_path / "deep" / "out").exists()
        assert folder.parent.parent == tmp_path / "deep"
    assert contents(tmp_path) == {"deep/out/file": b"x"}
    with pytest.raises(ZeroDivisionError), new_directory(tmp_path / "other") as folder:
        (folder / "file").write_bytes(b"x")
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]


def test_a_long_name_can_be_staged(tmp_path: Path) -> None:
    """A partition of a topic of 249 characters has a name that no stage with a longer one could be made for."""
    for name in ("n" * 249 + "-12345", "ä" * 127):
        with new_directory(tmp_path / name) as folder:
            (folder / "file").write_bytes(b"x")
        with writing(tmp_path / f"{name[:-5]}.html") as file:
            file.write(b"x")
        assert (tmp_path / name / "file").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("swaps", [True, False], ids=["one step", "two steps"])
def test_a_directory_replaces_another_only_if_asked(
    swaps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not swaps:
        monkeypatch.setattr(output, "_exchange", lambda one, other: False)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").write_bytes(b"old")
    with pytest.raises(AccessError, match="exists already"), new_directory(tmp_path / "out"):
        raise AssertionError
    with new_directory(tmp_path / "out", overwrite=True) as folder:
        (folder / "new").write_bytes(b"new")
        assert contents(tmp_path / "out") == {"old": b"old"}
    assert contents(tmp_path) == {"out/new": b"new"}


def test_what_came_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="exists already"), new_directory(tmp_path / "out") as folder:
        (folder / "mine").write_bytes(b"x")
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "theirs").write_bytes(b"y")
    assert contents(tmp_path) == {"out/theirs": b"y"}


def test_a_replacement_that_was_killed_between_its_renames_is_undone(tmp_path: Path) -> None:
    """Where two names cannot be swapped in one step, a kill between the two renames left no target at all."""
    code = """
import os, sys
from rawlog.io import output
output._exchange = lambda one, other: False
rename = os.rename
def killed(one, other):
    if os.path.exists(other + "/old" if isinstance(other, str) else other / "old"):
        return rename(one, other)
    if str(other) == sys.argv[1] and not os.path.exists(sys.argv[1]):
        os.kill(os.getpid(), 9)
    return rename(one, other)
os.rename = killed
with output.Output(sys.argv[1], overwrite=True) as target, target.directory() as made:
    folder = made.path
    (folder / "new").write_bytes(b"new")
"""
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", code, str(target)], check=False)
    assert done.returncode == -9
    assert not target.exists()
    with pytest.raises(AccessError, match="exists already"), Output(target) as again:
        again.open()
        assert contents(target) == {"old": b"old"}
        again.check()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_files_are_added_to_a_directory_all_or_none(tmp_path: Path) -> None:
    (tmp_path / "out" / "b").mkdir(parents=True)
    (tmp_path / "out" / "b" / "old").write_bytes(b"old")
    for overwrite in (False, True):
        with Output(tmp_path / "out", overwrite=overwrite) as one:
            made = one.new()
            for name in ("a", "b"):
                (made / name).mkdir()
                (made / name / "new").write_bytes(b"new")
            if overwrite:
                one.add(made)
            else:
                with pytest.raises(AccessError, match="b: exists already"):
                    one.add(made)
                assert contents(tmp_path / "out") == {"b/old": b"old"}
    assert contents(tmp_path) == {"out/a/new": b"new", "out/b/new": b"new"}


@pytest.mark.parametrize("home", [True, False])
def test_home_and_working_directory_are_not_replaced(
    home: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "mine").mkdir(parents=True)
    if home:
        monkeypatch.setenv("HOME", str(tmp_path / "here"))
    else:
        monkeypatch.chdir(tmp_path / "here")
    for target in (tmp_path / "here", tmp_path, Path("/")):
        with pytest.raises(OptionError, match="directory, which is not replaced"):
            Output(target, overwrite=True).check()


def test_a_copy_of_an_output_removes_nothing(tmp_path: Path) -> None:
    """Jobs are sent to other processes with their outputs; only the process that made the stage removes it."""
    with Output(tmp_path / "out") as one:
        stage = one.open()
        copy = pickle.loads(pickle.dumps(one))
        copy.close()
        assert os.path.isdir(stage)
    assert not os.path.exists(stage)


def test_scratch_of_killed_processes_is_removed_and_of_living_ones_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    code = (
        "import os, tempfile; from rawlog.io.output import hold_scratch; tempfile.tempdir = os.environ['T']; "
        "hold_scratch(); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "T": str(tmp_path)}, check=False)
    (tmp_path / "rawlog-0123abcd").mkdir()
    (tmp_path / "rawlog-0123abcd" / "of somebody else").write_bytes(b"x")
    assert len(list(tmp_path.iterdir())) == 2
    with scratch() as one, scratch("other-") as two:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
            ["rawlog-0123abcd", os.path.basename(one), os.path.basename(two)]
        )
    assert [path.name for path in tmp_path.iterdir()] == ["rawlog-0123abcd"]


def test_a_stage_that_was_handed_over_lives_as_long_as_its_job(tmp_path: Path) -> None:
    """Spark's sink begins in one process and ends in another: no process holds the lock in between."""
    code = "import sys; from rawlog.io.output import Output; print(Output(sys.argv[1]).hand_over(), flush=True); sys.stdin.read()"
    target = tmp_path / "out"
    job = subprocess.Popen([sys.executable, "-c", code, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert job.stdout is not None
    stage = Path(job.stdout.readline().decode().strip())
    (stage / "half").write_bytes(b"half")
    with new_directory(target) as folder:
        (folder / "file").write_bytes(b"x")
    assert (stage / "half").exists()
    job.kill()
    job.communicate()
    with new_directory(target, overwrite=True) as folder:
        (folder / "file").write_bytes(b"y")
    assert contents(tmp_path) == {"out/file": b"y"}


def test_a_stage_of_another_machine_is_left_alone(tmp_path: Path) -> None:
    stage = Path(Output(tmp_path / "out").hand_over())
    (stage / ".lock").write_text("another-boot pid:[1] 1 1")
    with Output(tmp_path / "out") as one:
        one.open()
    assert stage.exists()
    remove_stage(str(stage))
    assert not list(tmp_path.iterdir())


def test_a_folder_checks_every_name_and_writes_nothing_in_a_dry_run(tmp_path: Path) -> None:
    folder = Folder(tmp_path, named="DST")
    folder.write("a/b.txt", "text")
    assert (tmp_path / "a" / "b.txt").read_text() == "text"
    folder.copy(str(tmp_path / "a" / "b.txt"), "c", 2)
    assert (tmp_path / "c").read_bytes() == b"te"
    with pytest.raises(AccessError, match="^DST/c: File exists"):
        folder.write("c", b"")
    for name in ("../x", "/tmp/x", "", "a//b", "a/../../x", "n" * 300):
        for write in (folder.folder, folder.create, folder.remove, lambda path: folder.take(tmp_path / "c", path)):
            with pytest.raises(EncodeError):
                write(name)
    dry = Folder(tmp_path / "new", dry_run=True)
    dry.folder("x").write("y", b"z")
    with dry.create("file") as file:
        file.write(b"abc")
        file.seek(0)
    assert not (tmp_path / "new").exists()


# Stages that are resumed ------------------------------------------------------------------------------------------------


def test_a_stage_that_was_left_is_there_for_the_next_run_that_asks_for_it(tmp_path: Path) -> None:
    first = Output(tmp_path / "out")
    stage = first.reopen(resume=False)
    (Path(stage) / "done").mkdir()
    first.leave()
    second = Output(tmp_path / "out")
    assert second.reopen(resume=True) == stage
    assert (Path(stage) / "done").is_dir()
    second.leave()
    third = Output(tmp_path / "out")
    third.reopen(resume=False)
    assert not (Path(stage) / "done").exists()
    third.close()
    assert not list(tmp_path.iterdir())


def test_a_stage_to_resume_that_another_process_has_is_refused(tmp_path: Path) -> None:
    first = Output(tmp_path / "out")
    first.reopen(resume=False)
    with pytest.raises(AccessError, match="another process"):
        Output(tmp_path / "out").reopen(resume=True)
    first.close()


def test_another_writer_of_the_same_target_removes_a_stage_that_was_left(tmp_path: Path) -> None:
    first = Output(tmp_path / "out")
    stage = first.reopen(resume=False)
    first.leave()
    with Output(tmp_path / "out") as second:
        second.open()
        assert not Path(stage).exists()
    assert not list(tmp_path.iterdir())


def test_a_task_that_outlives_its_job_does_not_bring_back_the_stage(tmp_path: Path) -> None:
    """A failed write of Spark left `.out.….rawlog` next to the target: a task that still ran made the directories again."""
    with Output(tmp_path / "out") as output:
        late = Folder(output.new()).folder("orders-0")
        late.write("first", b"1")
    for work in (lambda: late.write("second", b"2"), lambda: late.folder("inner"), lambda: late.create("deep/third")):
        with pytest.raises(AccessError):
            work()
    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed_by_what_removes_a_stage(tmp_path: Path) -> None:
    """A link with the name of a stage led to a directory whose files were removed as leftovers."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "precious").write_bytes(b"precious")
    (tmp_path / ".out.00000000.rawlog").symlink_to(victim)
    with pytest.raises(AccessError, match="a symbolic link"):
        Output(tmp_path / "out").reopen(resume=False)
    (tmp_path / "stage").symlink_to(victim)
    remove_stage(str(tmp_path / "stage"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(victim)
    Folder(tmp_path / "folder").remove("link")
    assert os.listdir(victim) == ["precious"]
    assert os.listdir(tmp_path / "folder") == []
