"""Would a broker start on this? The findings and predictions of `verify` for directories of real brokers that were damaged.

`test_startup_brokers.py` compares predictions with what real brokers do.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

import rawlog
from rawlog.cli import cli
from rawlog.formats.kafka.cluster.metadata_log import stores
from rawlog.formats.kafka.partition.identity import assignments_in
from rawlog.model.finding import Effect, Findings, Prediction
from rawlog.model.report import Action
from rawlog.reading.tree import open_tree
from tests.data.golden import golden_path

MARK = ".kafka_cleanshutdown"
DATA = {version: golden_path("kafka", f"broker-{version}", "data") for version in ("3.9.2", "4.3.0")}


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A log directory of a real broker, 4.3 unless a test asks for another, with its metadata log, stopped cleanly."""
    target = tmp_path / "data"
    shutil.copytree(DATA[getattr(request, "param", "4.3.0")], target)
    (target / MARK).touch()
    return target


def second(directory: Path, tmp_path: Path) -> Path:
    """Another log directory of the same node, as the metadata would have it: with an id of its own, one partition, and no metadata."""
    other = tmp_path / "second"
    other.mkdir()
    text = (directory / "meta.properties").read_text().splitlines()
    lines = ["directory.id=AAAAAAAAAAAAAAAAAAABAA" if line.startswith("directory.id") else line for line in text]
    (other / "meta.properties").write_text("\n".join(lines))
    (directory / "codec-none-1").rename(other / "codec-none-1")
    return other


def serious(*paths: Path) -> dict[str, list[str]]:
    """The errors and warnings at some paths, by code: the messages."""
    found: dict[str, list[str]] = {}
    for one in rawlog.verify(list(map(str, paths))):
        if one.severity != "info":
            found.setdefault(one.code, []).append(one.message)
    return found


def predicted(*paths: Path) -> list[Prediction]:
    return [one for startup in rawlog.verify(list(map(str, paths))).startups for one in startup.predictions]


def effects(*paths: Path) -> set[Effect]:
    return {one.effect for one in predicted(*paths)}


# Healthy directories --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("directory", sorted(DATA), indirect=True)
def test_a_broker_starts_on_a_healthy_directory(directory: Path) -> None:
    found = rawlog.verify(directory)
    assert (found.verdict, found.exit_code) == ("clean", 0)
    [startup] = found.startups
    assert startup.starts
    assert startup.predictions == ()
    assert found.summary()["startup"] == [
        {"system": "kafka", "paths": [str(directory)], "node": 1, "starts": True, "predictions": []}
    ]


@pytest.mark.parametrize("directory", sorted(DATA), indirect=True)
def test_after_a_crash_a_broker_checks_its_logs_and_that_is_all(directory: Path) -> None:
    (directory / MARK).unlink()
    assert serious(directory) == {}
    assert effects(directory) == {Effect.RECOVERS}


@pytest.mark.parametrize(
    "name", ["legacy/broker-0.8.2.2", "legacy/broker-0.10.2.2", "legacy/broker-2.8.2", "tiered-4.3.0"]
)
def test_other_directories_of_real_brokers_stay_clean(name: str) -> None:
    found = rawlog.verify(golden_path("kafka", *name.split("/")) / "data")
    assert found.exit_code == 0
    assert all(one.starts for one in found.startups)


@pytest.mark.parametrize("version", sorted(DATA))
def test_assignments_are_those_of_the_state(version: str) -> None:
    """Predictions read a few kinds of metadata records by themselves: what they add up to must be what a controller has."""
    known = assignments_in(str(DATA[version]))
    assert known is not None
    [store] = stores(
        [file for file in open_tree(DATA[version] / "__cluster_metadata-0") if "metadata" in str(file.place.topic)]
    )
    state = store.fold()
    assert known.topics == {key: topic.name for key, topic in state.topics.items()}
    for key, topic in state.topics.items():
        assert {number: list(one.replicas) for number, one in known.partitions[key].items()} == {
            number: list(one["replicas"]) for number, one in topic.partitions.items()
        }
        assert {number: list(one.directories) for number, one in known.partitions[key].items()} == {
            number: list(map(bytes, one["directories"])) for number, one in topic.partitions.items()
        }
    assert known.directories == {number: frozenset(map(bytes, one["logDirs"])) for number, one in state.brokers.items()}


# Partitions that are not there ----------------------------------------------------------------------------------------------


def test_a_deleted_partition_is_missing_for_every_verb(directory: Path, tmp_path: Path) -> None:
    """verify and repair said nothing but a remark, and exit 0: a broker makes an empty partition without a word."""
    end = 86
    shutil.rmtree(directory / "codec-none-0")
    [message] = serious(directory)["kafka.partition.missing"]
    assert message.startswith(f"codec-none-0 is not here: offsets 0 to {end - 1} are missing")
    [prediction] = predicted(directory)
    assert (prediction.effect, prediction.path, prediction.end_offset) == (
        Effect.CREATES,
        str(directory / "codec-none-0"),
        0,
    )
    found = rawlog.verify(directory, complete=True)
    [account] = [one for one in found.accounts if (one.topic, one.partition) == ("codec-none", 0)]
    assert (account.stop, account.present, account.unexplained) == (end, 0, end)
    report = rawlog.repair(directory, tmp_path / "out")
    assert report.exit_code == 1
    assert (0, end - 1) in report.lost
    assert [one["effect"] for one in report.facts["startup"][0]["predictions"]] == ["creates", "recovers"]


def test_a_deleted_topic_is_missing_with_all_its_partitions(directory: Path) -> None:
    for path in directory.glob("codec-none-*"):
        shutil.rmtree(path)
    assert len(serious(directory)["kafka.partition.missing"]) == 2


@pytest.mark.parametrize("content", [None, b"", b"not a checkpoint"])
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_partition_is_missing_by_its_assignment_alone(
    directory: Path, content: bytes | None, is_marked: bool
) -> None:
    """The mark of a clean stop stood for checkpoints that list everything, also where they were gone: verify called a directory without a
    partition clean.
    """
    for path in directory.glob("*-offset-checkpoint"):
        path.unlink() if content is None else path.write_bytes(content)
    if not is_marked:
        (directory / MARK).unlink()
    shutil.rmtree(directory / "codec-none-0")
    [message] = serious(directory)["kafka.partition.missing"]
    assert "the cluster's metadata assigns it" in message


def test_a_directory_that_is_registered_for_another_node(directory: Path, tmp_path: Path) -> None:
    """With another `node.id` a broker puts all partitions aside. verify predicted that, and called the directory clean."""
    meta = directory / "meta.properties"
    meta.write_text(re.sub(r"node.id=\d+", "node.id=77", meta.read_text()))
    [message] = serious(directory)["kafka.directory.no-identity"]
    assert "says node 77, and the cluster's metadata has this directory.id for node 1" in message
    report = rawlog.repair(directory, tmp_path / "out")
    assert [finding.code for finding in report.remaining] == ["kafka.directory.no-identity"]


def test_a_node_id_of_thousands_of_digits_is_none(directory: Path, tmp_path: Path) -> None:
    """Python refuses to make a number of more than 4,300 digits: `verify` ended with an internal error."""
    (tmp_path / "logs").mkdir()
    meta = (directory / "meta.properties").read_text()
    (tmp_path / "logs" / "meta.properties").write_text(re.sub(r"node.id=\d+", f"node.id={'9' * 5000}", meta))
    shutil.copytree(directory / "codec-none-0", tmp_path / "logs" / "codec-none-0")
    assert rawlog.verify(tmp_path / "logs").verdict != "clean"
    assert not rawlog.repair(tmp_path / "logs", tmp_path / "repaired").is_whole


def test_single_partitions_that_were_copied_are_not_a_log_directory(directory: Path, tmp_path: Path) -> None:
    part = tmp_path / "part"
    for name in ("codec-none-0", "codec-gzip-0"):
        shutil.copytree(directory / name, part / name)
    assert list(rawlog.verify(part)) == []
    assert rawlog.verify(part).startups == []
    shutil.copy(directory / "replication-offset-checkpoint", part)
    assert serious(part) == {}
    assert serious(directory / "codec-none-0") == {}


def test_partitions_of_another_disk_are_not_missing(directory: Path, tmp_path: Path) -> None:
    """One disk of several has neither the partitions of the others nor, unless it is the first, the metadata."""
    other = second(directory, tmp_path)
    found = rawlog.verify(other)
    assert found.exit_code == 0
    assert [(one.code, one.severity) for one in found] == [("kafka.directory.no-metadata", "info")]
    assert serious(directory, other) == {}


def test_a_partition_that_was_never_made_is_information(directory: Path) -> None:
    """After a clean stop the checkpoints list all that a broker had: a topic that was created just before is not lost."""
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        lines = [
            line for line in (directory / name).read_text().splitlines()[2:] if not line.startswith("codec-none 0")
        ]
        (directory / name).write_text("\n".join(["0", str(len(lines)), *lines, ""]))
    shutil.rmtree(directory / "codec-none-0")
    assert serious(directory) == {}
    [finding] = [one for one in rawlog.verify(directory) if one.code == "kafka.partition.missing"]
    assert finding.severity == "info"


# Zeros after a clean stop ---------------------------------------------------------------------------------------------------


def test_zeros_after_a_clean_stop_are_an_error_and_repair_cuts_them(directory: Path, tmp_path: Path) -> None:
    """Brokers do not start on it (record size 0), and verify called it clean, because a crash leaves the same."""
    log = directory / "codec-none-0" / f"{0:020}.log"
    size = log.stat().st_size
    log.write_bytes(log.read_bytes() + bytes(4096))
    assert "kafka.partition.zeros" in serious(directory)
    assert Effect.REFUSES in effects(directory)
    rawlog.repair(directory, tmp_path / "out")
    assert (tmp_path / "out" / "codec-none-0" / log.name).stat().st_size == size
    assert "kafka.partition.zeros" not in serious(tmp_path / "out")
    (directory / MARK).unlink()
    [finding] = [one for one in rawlog.verify(directory) if one.code == "kafka.partition.zeros"]
    assert (finding.severity, finding.position, finding.size) == ("info", size, 4096)
    assert serious(directory) == {}
    assert effects(directory) == {Effect.CUTS, Effect.RECOVERS}


def test_zeros_after_the_metadata_log_are_cut_at_every_start(directory: Path) -> None:
    log = max((directory / "__cluster_metadata-0").glob("*.log"))
    log.write_bytes(log.read_bytes() + bytes(4096))
    assert serious(directory) == {}
    [finding] = [one for one in rawlog.verify(directory) if one.code == "kafka.partition.zeros"]
    assert finding.severity == "info"
    assert effects(directory) == {Effect.CUTS}


# Identity -------------------------------------------------------------------------------------------------------------------


def test_a_directory_without_identity_is_an_error(directory: Path, tmp_path: Path) -> None:
    """A broker dies on it, and on what repair made of it, which was reported as whole."""
    (directory / "meta.properties").unlink()
    [message] = serious(directory)["kafka.directory.no-identity"]
    assert "restore it, or format the directory" in message
    assert not rawlog.verify(directory).startups[0].starts
    report = rawlog.repair(directory, tmp_path / "out")
    assert report.exit_code == 1
    assert "kafka.directory.no-identity" in {one.code for one in report.remaining}


def test_a_controller_without_identity_is_an_error(directory: Path, tmp_path: Path) -> None:
    """It has no checkpoint of offsets: only `bootstrap.checkpoint` next to the metadata log shows that this is a log directory, and
    verify, repair and rebuild were clean.
    """
    controller = tmp_path / "controller"
    controller.mkdir()
    shutil.copytree(directory / "__cluster_metadata-0", controller / "__cluster_metadata-0")
    assert rawlog.verify(controller).exit_code == 0  # a metadata log alone, as somebody copies it
    shutil.copy(directory / "bootstrap.checkpoint", controller)
    [message] = serious(controller)["kafka.directory.no-identity"]
    assert "restore it, or format the directory" in message
    assert not rawlog.verify(controller).startups[0].starts
    for verb in (rawlog.repair, rawlog.rebuild):
        report = verb(controller, tmp_path / verb.__name__)
        assert report.exit_code == 1
        assert [one.code for one in report.remaining] == ["kafka.directory.no-identity"]
    meta = "version=1\ncluster.id=rawlogWoundsAAAAAAAAAA\nnode.id=9\ndirectory.id=AAAAAAAAAAAAAAAAAAABAA\n"
    (controller / "meta.properties").write_text(meta)
    assert serious(controller) == {}
    assert rawlog.rebuild(controller, tmp_path / "whole").exit_code == 0


def test_a_part_of_a_directory_may_be_named(directory: Path) -> None:
    found = rawlog.verify([str(directory / "__cluster_metadata-0"), str(directory / "codec-none-0")])
    assert found.exit_code == 0
    assert found.startups == []


def test_a_directory_of_a_cluster_with_zookeeper_may_lack_its_identity(tmp_path: Path) -> None:
    shutil.copytree(golden_path("kafka", "legacy", "broker-2.8.2", "data"), tmp_path / "data")
    (tmp_path / "data" / "meta.properties").unlink()
    found = rawlog.verify(tmp_path / "data")
    assert found.exit_code == 0
    assert "kafka.directory.no-metadata" not in {one.code for one in found}


def test_converted_partitions_have_no_identity_and_need_none(directory: Path, tmp_path: Path) -> None:
    rawlog.convert(directory / "codec-none-0", tmp_path / "out", to="kafka.log")
    found = rawlog.verify(tmp_path / "out")
    assert (list(found), found.startups) == ([], [])


# The metadata log -----------------------------------------------------------------------------------------------------------


def test_a_directory_without_metadata_is_told_first(directory: Path) -> None:
    """A broker that finds no metadata anywhere renames all partitions. The second disk of a healthy node looks the same."""
    shutil.rmtree(directory / "__cluster_metadata-0")
    found = rawlog.verify(directory)
    assert found.exit_code == 0
    assert [one.severity for one in found if one.code == "kafka.directory.no-metadata"] == ["info"]
    shown = CliRunner().invoke(cli, ["verify", str(directory)])
    assert shown.exit_code == 0
    head = shown.stdout.splitlines()[:2]
    assert head[0] == f"{directory}: a broker would start, with 1 consequence"
    assert "__cluster_metadata-0 is not here" in head[1]
    assert "to -stray" in head[1]


def test_several_directories_of_a_node_without_metadata_are_a_warning(directory: Path, tmp_path: Path) -> None:
    other = second(directory, tmp_path)
    shutil.rmtree(directory / "__cluster_metadata-0")
    assert set(serious(directory, other)) == {"kafka.directory.no-metadata"}


# Names ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lost+found", "backup", "old-logs", "codec-none-0-delete", ".snapshot"])
def test_a_broker_ends_at_directories_that_it_does_not_know(name: str, directory: Path) -> None:
    (directory / name).mkdir()
    assert set(serious(directory)) == {"kafka.directory.unknown-name"}
    assert Effect.REFUSES in effects(directory)


def test_a_broker_knows_its_cache_of_remote_indexes_and_ignores_plain_files(directory: Path) -> None:
    (directory / "remote-log-index-cache").mkdir()
    (directory / "notes.txt").write_text("…")
    assert effects(directory) == set()


# The answer -----------------------------------------------------------------------------------------------------------------


def test_the_answer_is_on_the_first_card_of_a_report_and_in_json(directory: Path, tmp_path: Path) -> None:
    (directory / "lost+found").mkdir()
    page = tmp_path / "page.html"
    shown = CliRunner().invoke(cli, ["report", str(directory), "-o", str(page), "--json"])
    assert json.loads(shown.stdout)["startup"][0]["starts"] is False
    cards = page.read_text().partition('class="cards"')[2]
    assert cards.index("Would a broker start?") < cards.index("Records")
    shown = CliRunner().invoke(cli, ["verify", str(directory), "--json"])
    summary = json.loads(shown.stdout.splitlines()[-1])
    [prediction] = summary["startup"][0]["predictions"]
    assert (prediction["effect"], prediction["path"]) == ("refuses", str(directory / "lost+found"))


def test_repair_writes_an_identity_that_is_known_for_certain(tmp_path: Path) -> None:
    """The directory next to it tells the cluster, the metadata log which node and directory its partitions are assigned to."""
    home = tmp_path / "disks"
    make_node(home)
    text = (home / "1" / "meta.properties").read_text()
    (home / "1" / "meta.properties").unlink()
    report = rawlog.repair(home / "1", tmp_path / "out")
    assert [one.path for one in report.with_action(Action.ADDED)] == [str(home / "1" / "meta.properties")]
    assert properties((tmp_path / "out" / "meta.properties").read_text()) == properties(text)
    shutil.rmtree(home / "0")
    (home / "0").mkdir()
    rawlog.repair(home / "1", tmp_path / "alone")
    assert not (tmp_path / "alone" / "meta.properties").exists()


def make_node(home: Path) -> None:
    """The two disks of one node of a real cluster."""
    from tests.data.golden import unpack

    unpack(golden_path("clusters", "4.3.0-stale.tar.xz"), home.parent / "cluster")
    (home.parent / "cluster" / "disks" / "1").rename(home)


def properties(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)  # type: ignore[misc]


def test_findings_add_up_with_what_they_predict() -> None:
    prediction = Prediction(Effect.CUTS, "a/b-0", "cut")
    whole = Findings()
    whole.add(Findings(predictions=[prediction]))
    assert whole.predictions == [prediction]
