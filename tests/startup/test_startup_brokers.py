"""What `verify` predicts of damaged log directories, compared with what real brokers do with them: 3.9 and 4.3.

A broker makes two log directories once for each version. Every kind of damage gets a copy, `verify` predicts, a broker is started on the
copy and stopped. `make test` runs six kinds, `make brokers` all of them.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import rawlog
from rawlog.model.finding import Effect
from tests.conftest import needed
from tests.data.startup_directories import (
    DAMAGES,
    Outcome,
    ends_of,
    make_directories,
    observe,
    partitions_of,
    stored_end,
)
from tests.services.kafka import KAFKA_3, KAFKA_4

pytestmark = pytest.mark.broker

#: The kinds of every run: one for each thing that a broker may do.
FEW = ("no_partition", "no_metadata", "no_topic_id", "zeros_after_log", "cut_indexed_log", "flipped_batch_no_mark")
KINDS = tuple(DAMAGES) if os.environ.get("RAWLOG_STARTUPS") else FEW


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """The directories of each version that was asked for so far."""
    return {}


def copied(version: str, originals: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    if version not in originals:
        with needed():
            originals[version] = make_directories(version, tmp_path_factory.mktemp(f"kafka-{version}"))
    home = tmp_path_factory.mktemp("damaged")
    return [Path(shutil.copytree(folder, home / folder.name)) for folder in originals[version]]


def predict(folders: list[Path]) -> Outcome:
    """What `verify` says that a broker will do."""
    found = rawlog.verify(list(map(str, folders)))
    predictions = [one for startup in found.startups for one in startup.predictions]
    partitions = partitions_of(folders)
    ends = {name: stored_end(path) for name, path in partitions.items()}
    strays, created = set(), set()
    for one in predictions:
        name = Path(one.path).name
        if one.effect is Effect.RENAMES:
            gone = {name} if name in partitions else set(partitions)
            strays |= gone
            ends = {key: end for key, end in ends.items() if key not in gone}
            if "serves an empty partition" in one.message:
                created.add(name)
                ends[name] = 0
        elif one.effect is Effect.CREATES:
            created.add(name)
            ends[name] = 0
        elif one.end_offset is not None and name in partitions:
            ends[name] = one.end_offset
    return Outcome(all(startup.starts for startup in found.startups), ends, strays, created)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_a_broker_does_what_verify_predicts(
    version: str, kind: str, originals: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folders = copied(version, originals, tmp_path_factory)
    DAMAGES[kind](*folders)
    said, real = predict(folders), observe(version, folders)
    assert said.starts == real.starts, real.output
    if real.starts:
        assert (said.strays, said.created) == (real.strays, real.created), real.output
        assert said.ends == real.ends, real.output


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_verify_is_clean_on_what_a_clean_stop_leaves(
    version: str, originals: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folders = copied(version, originals, tmp_path_factory)
    found = rawlog.verify(list(map(str, folders)))
    assert list(found) == []
    assert [(one.starts, one.predictions) for one in found.startups] == [(True, ())]
    assert ends_of(folders) == {name: stored_end(path) for name, path in partitions_of(folders).items()}


@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_a_broker_starts_again_on_what_repair_made(
    version: str, originals: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A broker refuses zeros after a clean stop, and a directory without identity. After repair it starts, and has every record."""
    folders = copied(version, originals, tmp_path_factory)
    before = ends_of(folders)
    DAMAGES["zeros_after_log"](*folders)
    DAMAGES["lost_and_found"](*folders)
    DAMAGES["no_meta_in_second"](*folders)
    home = tmp_path_factory.mktemp("repaired")
    for folder in folders:
        report = rawlog.repair(folder, home / folder.name)
        assert report.facts["startup"][0]["starts"]
    real = observe(version, [home / folder.name for folder in folders])
    assert real.starts, real.output
    assert real.ends == before
