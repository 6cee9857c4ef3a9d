"""Log directories of a real broker, damaged in one way each; and what a real broker does when it starts on one."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.services.kafka import BrokerError, KafkaBroker

#: What a broker that only starts and stops must not do by itself.
SETTINGS = {
    "log.retention.ms": "-1",
    "log.initial.task.delay.ms": "600000",
    "log.retention.check.interval.ms": "600000",
    "log.flush.offset.checkpoint.interval.ms": "600000",
    "log.flush.start.offset.checkpoint.interval.ms": "600000",
}
#: Partitions of each topic.
TOPICS = {"plain": 1, "rolled": 1, "indexed": 1, "spare": 2, "paid": 1}
PATIENCE = 15
RECOVERY_POINT = "recovery-point-offset-checkpoint"
_PARTITION = re.compile(r"(.+-\d+)(?:\.[0-9a-f]{32}-(delete|stray|future))?")


def make_directories(version: str, home: Path) -> list[Path]:
    """Two log directories of a broker that was stopped cleanly; the second has some partitions, and no metadata."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    folders = [home / "a", home / "b"]
    for folder in folders:
        folder.mkdir(parents=True)
    with KafkaBroker(version, folders[0], SETTINGS, folders[1:]) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        config = {"rolled": {"segment.ms": "1000"}, "indexed": {"index.interval.bytes": "256"}}
        topics = [NewTopic(name, count, 1, config=config.get(name, {})) for name, count in TOPICS.items()]
        for future in admin.create_topics(topics).values():
            future.result(30)
        plain = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        now = int(time.time() * 1000) - 3_600_000
        for number in range(30):
            for name, count in TOPICS.items():
                if name != "paid":
                    at = now + (number // 10) * 60_000
                    plain.produce(name, b"%06d" % number * 8, partition=number % count, timestamp=at)
            plain.flush()
        paying = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "cashier", "log_level": 0})
        paying.init_transactions(30)
        for number in range(4):
            paying.begin_transaction()
            paying.produce("paid", b"%d" % number)
            if number % 2:
                paying.abort_transaction(30)
            else:
                paying.commit_transaction(30)
        settle(broker)
    for folder in folders:
        (folder / ".lock").unlink(missing_ok=True)
    return folders


def settle(broker: KafkaBroker) -> None:
    """Wait until every partition has a leader, or PATIENCE is over."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and broker.running:
        found = admin.list_topics(timeout=10).topics
        if all(one.leader == 1 for topic in found.values() for one in topic.partitions.values()):
            time.sleep(0.3)
            return
        time.sleep(0.2)


@dataclass
class Outcome:
    """What a broker did: whether it came up, and by partition directory (without the broker's own suffix) what is there now."""

    starts: bool
    #: The offset after the last record that the broker has of each partition.
    ends: dict[str, int] = field(default_factory=dict)
    strays: set[str] = field(default_factory=set)
    created: set[str] = field(default_factory=set)
    output: str = ""


def partitions_of(folders: list[Path]) -> dict[str, Path]:
    """The partition directories that a broker loads, by name."""
    return {
        path.name: path
        for folder in folders
        for path in sorted(folder.iterdir())
        if path.is_dir() and (named := _PARTITION.fullmatch(path.name)) and named[2] is None
        and not path.name.startswith("__cluster_metadata")
    }  # fmt: skip


def strays_of(folders: list[Path]) -> set[str]:
    return {
        named[1]
        for folder in folders
        for path in folder.iterdir()
        if (named := _PARTITION.fullmatch(path.name)) and named[2] == "stray"
    }


def ends_of(folders: list[Path]) -> dict[str, int]:
    """The ends of logs as a broker that was stopped cleanly writes them down."""
    found = {}
    for folder in folders:
        for line in (folder / RECOVERY_POINT).read_text().splitlines()[2:]:
            topic, number, offset = line.split()
            if (folder / f"{topic}-{number}").is_dir():
                found[f"{topic}-{number}"] = int(offset)
    return found


def stored_end(folder: Path) -> int:
    """The offset after the last whole batch in the last segment of a partition, whatever it is worth."""
    logs = sorted(folder.glob("*.log"))
    if not logs:
        return 0
    data, end = logs[-1].read_bytes(), int(logs[-1].stem)
    for start in batch_starts(logs[-1]):
        stop = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big", signed=True)
        if start + 61 <= stop <= len(data):
            end = (
                int.from_bytes(data[start : start + 8], "big")
                + int.from_bytes(data[start + 23 : start + 27], "big")
                + 1
            )
    return end


def observe(version: str, folders: list[Path]) -> Outcome:
    """Start a broker on directories, let it do what it does, stop it, and look."""
    before, strays = set(partitions_of(folders)), strays_of(folders)
    broker = KafkaBroker(version, folders[0], SETTINGS, folders[1:])
    try:
        try:
            broker.start_as_is()
            settle(broker)
            starts = broker.running
            broker.stop()
        except BrokerError as failure:
            return Outcome(starts=False, output=str(failure))
        if not starts:
            return Outcome(starts=False, output=broker.output_tail())
        renamed = strays_of(folders) - strays
        created = (set(partitions_of(folders)) - before) | (renamed & set(partitions_of(folders)))
        text = "\n".join(
            line
            for line in broker.log.read_text(errors="replace").splitlines()
            if re.search("WARN|ERROR|Exception", line)
        )
        return Outcome(True, ends_of(folders), renamed, created, text)
    finally:
        broker.__exit__(None, None, None)


# Damages -----------------------------------------------------------------------------------------------------------------

Damage = Callable[[Path, Path], None]
DAMAGES: dict[str, Damage] = {}


def damage(function: Damage) -> Damage:
    DAMAGES[function.__name__] = function
    return function


def find(name: str, *folders: Path) -> Path:
    """The directory of a partition, whichever of the log directories has it."""
    return next(folder / name for folder in folders if (folder / name).is_dir())


def last_log(folder: Path) -> Path:
    return max(folder.glob("*.log"))


def unmark(*folders: Path) -> None:
    for folder in folders:
        (folder / ".kafka_cleanshutdown").unlink()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x55
    path.write_bytes(data)


def batch_starts(path: Path) -> list[int]:
    data, starts, at = path.read_bytes(), [], 0
    while at + 17 < len(data) and (size := int.from_bytes(data[at + 8 : at + 12], "big", signed=True)) >= 14:
        starts.append(at)
        at += 12 + size
    return starts


@damage
def nothing(a: Path, b: Path) -> None:
    pass


@damage
def no_mark(a: Path, b: Path) -> None:
    unmark(a, b)


@damage
def no_meta(a: Path, b: Path) -> None:
    (a / "meta.properties").unlink()
    (b / "meta.properties").unlink()


@damage
def no_meta_beside_metadata(a: Path, b: Path) -> None:
    (a / "meta.properties").unlink()


@damage
def no_meta_in_second(a: Path, b: Path) -> None:
    (b / "meta.properties").unlink()


def without(path: Path, key: str) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}=")]
    path.write_text("\n".join(lines) + "\n")


@damage
def no_cluster_id(a: Path, b: Path) -> None:
    without(a / "meta.properties", "cluster.id")


@damage
def no_node_id(a: Path, b: Path) -> None:
    without(a / "meta.properties", "node.id")


@damage
def no_directory_id(a: Path, b: Path) -> None:
    without(a / "meta.properties", "directory.id")


@damage
def empty_meta(a: Path, b: Path) -> None:
    (a / "meta.properties").write_text("")


@damage
def same_directory_id(a: Path, b: Path) -> None:
    shutil.copy(a / "meta.properties", b / "meta.properties")


@damage
def no_metadata(a: Path, b: Path) -> None:
    shutil.rmtree(a / "__cluster_metadata-0")


@damage
def no_metadata_no_bootstrap(a: Path, b: Path) -> None:
    shutil.rmtree(a / "__cluster_metadata-0")
    for folder in (a, b):
        (folder / "bootstrap.checkpoint").unlink(missing_ok=True)


@damage
def no_bootstrap(a: Path, b: Path) -> None:
    for folder in (a, b):
        (folder / "bootstrap.checkpoint").unlink(missing_ok=True)


@damage
def cut_bootstrap(a: Path, b: Path) -> None:
    os.truncate(a / "bootstrap.checkpoint", 120)


@damage
def empty_bootstrap(a: Path, b: Path) -> None:
    os.truncate(a / "bootstrap.checkpoint", 0)


@damage
def garbage_bootstrap(a: Path, b: Path) -> None:
    (a / "bootstrap.checkpoint").write_bytes(b"\xff" * 300)


@damage
def no_cluster_id_in_second(a: Path, b: Path) -> None:
    without(b / "meta.properties", "cluster.id")


@damage
def empty_meta_in_second(a: Path, b: Path) -> None:
    (b / "meta.properties").write_text("")


@damage
def damaged_high_watermark_in_second(a: Path, b: Path) -> None:
    (b / "replication-offset-checkpoint").write_text("0\n7\nx")


def first_of_second(b: Path) -> Path:
    return next(path for name, path in partitions_of([b]).items() if not name.startswith("__"))


@damage
def damaged_topic_id_in_second(a: Path, b: Path) -> None:
    (first_of_second(b) / "partition.metadata").write_text("version: 0\ntopic")


@damage
def empty_topic_id_in_second(a: Path, b: Path) -> None:
    (first_of_second(b) / "partition.metadata").write_text("")


@damage
def damaged_epochs_in_second(a: Path, b: Path) -> None:
    (first_of_second(b) / "leader-epoch-checkpoint").write_text("0\n3\nx")


@damage
def early_flip_in_metadata(a: Path, b: Path) -> None:
    log = last_log(a / "__cluster_metadata-0")
    starts = batch_starts(log)
    flip(log, starts[len(starts) // 3] + 30)


@damage
def metadata_in_second(a: Path, b: Path) -> None:
    shutil.copytree(a / "__cluster_metadata-0", b / "__cluster_metadata-0")


@damage
def flipped_metadata(a: Path, b: Path) -> None:
    log = last_log(a / "__cluster_metadata-0")
    starts = batch_starts(log)
    flip(log, starts[len(starts) * 2 // 3] + 30)


@damage
def zeros_after_metadata(a: Path, b: Path) -> None:
    append(last_log(a / "__cluster_metadata-0"), bytes(4096))


@damage
def cut_metadata(a: Path, b: Path) -> None:
    log = last_log(a / "__cluster_metadata-0")
    os.truncate(log, log.stat().st_size - 10)


@damage
def emptied_metadata(a: Path, b: Path) -> None:
    os.truncate(last_log(a / "__cluster_metadata-0"), 0)


@damage
def no_quorum_state(a: Path, b: Path) -> None:
    (a / "__cluster_metadata-0" / "quorum-state").unlink()


@damage
def damaged_quorum_state(a: Path, b: Path) -> None:
    (a / "__cluster_metadata-0" / "quorum-state").write_text("{")


@damage
def empty_quorum_state(a: Path, b: Path) -> None:
    (a / "__cluster_metadata-0" / "quorum-state").write_text("")


@damage
def no_partition(a: Path, b: Path) -> None:
    shutil.rmtree(find("spare-1", a, b))


@damage
def no_topic(a: Path, b: Path) -> None:
    shutil.rmtree(find("spare-0", a, b))
    shutil.rmtree(find("spare-1", a, b))


@damage
def no_segment(a: Path, b: Path) -> None:
    for path in find("plain-0", a, b).glob("0*"):
        path.unlink()


@damage
def no_topic_id(a: Path, b: Path) -> None:
    (find("plain-0", a, b) / "partition.metadata").unlink()


@damage
def other_topic_id(a: Path, b: Path) -> None:
    shutil.copy(find("rolled-0", a, b) / "partition.metadata", find("plain-0", a, b) / "partition.metadata")


@damage
def unknown_topic_id(a: Path, b: Path) -> None:
    (find("plain-0", a, b) / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAZw")


@damage
def damaged_topic_id(a: Path, b: Path) -> None:
    (find("plain-0", a, b) / "partition.metadata").write_text("version: 0\ntopic")


@damage
def empty_topic_id(a: Path, b: Path) -> None:
    (find("plain-0", a, b) / "partition.metadata").write_text("")


@damage
def zeros_after_log(a: Path, b: Path) -> None:
    append(last_log(find("plain-0", a, b)), bytes(4096))


@damage
def zeros_after_log_no_mark(a: Path, b: Path) -> None:
    zeros_after_log(a, b)
    unmark(a, b)


@damage
def few_zeros_after_log(a: Path, b: Path) -> None:
    append(last_log(find("plain-0", a, b)), bytes(16))


@damage
def seventeen_zeros_after_log(a: Path, b: Path) -> None:
    append(last_log(find("plain-0", a, b)), bytes(17))


@damage
def zeros_after_old_segment(a: Path, b: Path) -> None:
    append(min(find("rolled-0", a, b).glob("*.log")), bytes(4096))


@damage
def zeros_after_old_segment_no_mark(a: Path, b: Path) -> None:
    zeros_after_old_segment(a, b)
    unmark(a, b)


@damage
def cut_log(a: Path, b: Path) -> None:
    log = last_log(find("plain-0", a, b))
    os.truncate(log, log.stat().st_size - 10)


@damage
def cut_log_no_mark(a: Path, b: Path) -> None:
    cut_log(a, b)
    unmark(a, b)


@damage
def cut_indexed_log(a: Path, b: Path) -> None:
    log = last_log(find("indexed-0", a, b))
    os.truncate(log, batch_starts(log)[2] + 20)


@damage
def cut_indexed_log_no_mark(a: Path, b: Path) -> None:
    cut_indexed_log(a, b)
    unmark(a, b)


@damage
def random_after_log(a: Path, b: Path) -> None:
    append(last_log(find("plain-0", a, b)), b"\x7f" * 200)


@damage
def negative_after_log(a: Path, b: Path) -> None:
    append(last_log(find("plain-0", a, b)), b"\xff" * 200)


@damage
def random_after_log_no_mark(a: Path, b: Path) -> None:
    random_after_log(a, b)
    unmark(a, b)


@damage
def nothing_but_garbage(a: Path, b: Path) -> None:
    last_log(find("plain-0", a, b)).write_bytes(b"\x00\x00\x10" + b"\x77\xe1" * 2000)


@damage
def nothing_but_garbage_no_mark(a: Path, b: Path) -> None:
    nothing_but_garbage(a, b)
    unmark(a, b)


@damage
def epoch_after_the_end(a: Path, b: Path) -> None:
    epochs = find("plain-0", a, b) / "leader-epoch-checkpoint"
    version, count, *lines = epochs.read_text().splitlines()
    epochs.write_text("\n".join([version, str(int(count) + 1), *lines, "9 5000", ""]))


@damage
def flipped_batch(a: Path, b: Path) -> None:
    log = last_log(find("plain-0", a, b))
    flip(log, batch_starts(log)[5] + 70)


@damage
def flipped_batch_no_mark(a: Path, b: Path) -> None:
    flipped_batch(a, b)
    unmark(a, b)


@damage
def flipped_batch_no_mark_no_recovery_point(a: Path, b: Path) -> None:
    flipped_batch(a, b)
    unmark(a, b)
    for folder in (a, b):
        (folder / RECOVERY_POINT).unlink()


@damage
def flipped_old_segment_no_recovery_point(a: Path, b: Path) -> None:
    log = min(find("rolled-0", a, b).glob("*.log"))
    flip(log, batch_starts(log)[5] + 70)
    unmark(a, b)
    for folder in (a, b):
        (folder / RECOVERY_POINT).unlink()


@damage
def damaged_length(a: Path, b: Path) -> None:
    log = last_log(find("plain-0", a, b))
    at = batch_starts(log)[5] + 8
    data = bytearray(log.read_bytes())
    data[at : at + 4] = bytes(4)
    log.write_bytes(data)


@damage
def no_index(a: Path, b: Path) -> None:
    last_log(find("indexed-0", a, b)).with_suffix(".index").unlink()


@damage
def no_index_flipped_batch(a: Path, b: Path) -> None:
    flipped_batch(a, b)
    last_log(find("plain-0", a, b)).with_suffix(".index").unlink()


@damage
def damaged_index(a: Path, b: Path) -> None:
    last_log(find("plain-0", a, b)).with_suffix(".index").write_bytes(bytes(range(1, 14)))


@damage
def damaged_index_no_mark(a: Path, b: Path) -> None:
    damaged_index(a, b)
    unmark(a, b)


@damage
def padded_index(a: Path, b: Path) -> None:
    append(last_log(find("indexed-0", a, b)).with_suffix(".index"), bytes(800))


@damage
def no_timeindex(a: Path, b: Path) -> None:
    last_log(find("plain-0", a, b)).with_suffix(".timeindex").unlink()


@damage
def damaged_timeindex(a: Path, b: Path) -> None:
    last_log(find("plain-0", a, b)).with_suffix(".timeindex").write_bytes(bytes(range(1, 14)))


@damage
def damaged_txnindex(a: Path, b: Path) -> None:
    last_log(find("paid-0", a, b)).with_suffix(".txnindex").write_bytes(b"\x09" + bytes(33))


@damage
def damaged_snapshot(a: Path, b: Path) -> None:
    path = max(find("paid-0", a, b).glob("*.snapshot"))
    os.truncate(path, path.stat().st_size - 5)


@damage
def no_epochs(a: Path, b: Path) -> None:
    (find("plain-0", a, b) / "leader-epoch-checkpoint").unlink()


@damage
def damaged_epochs(a: Path, b: Path) -> None:
    (find("plain-0", a, b) / "leader-epoch-checkpoint").write_text("0\n3\nx")


@damage
def log_start_beyond(a: Path, b: Path) -> None:
    for folder in (a, b):
        (folder / "log-start-offset-checkpoint").write_text("0\n1\nplain 0 500\n")


@damage
def log_start_inside(a: Path, b: Path) -> None:
    for folder in (a, b):
        (folder / "log-start-offset-checkpoint").write_text("0\n1\nrolled 0 15\n")


@damage
def damaged_log_start(a: Path, b: Path) -> None:
    (a / "log-start-offset-checkpoint").write_text("0\n7\nx")


@damage
def damaged_recovery_point(a: Path, b: Path) -> None:
    (a / RECOVERY_POINT).write_text("0\n7\nx")


@damage
def damaged_high_watermark(a: Path, b: Path) -> None:
    (a / "replication-offset-checkpoint").write_text("0\n7\nx")


@damage
def no_high_watermark(a: Path, b: Path) -> None:
    (a / "replication-offset-checkpoint").unlink()


@damage
def damaged_cleaner(a: Path, b: Path) -> None:
    (a / "cleaner-offset-checkpoint").write_text("0\n7\nx")


@damage
def damaged_mark(a: Path, b: Path) -> None:
    (a / ".kafka_cleanshutdown").write_text("{")


@damage
def lost_and_found(a: Path, b: Path) -> None:
    (a / "lost+found").mkdir()


@damage
def unknown_directory(a: Path, b: Path) -> None:
    (a / "backup-old").mkdir()


@damage
def hidden_directory(a: Path, b: Path) -> None:
    (a / ".snapshot").mkdir()


@damage
def unknown_file(a: Path, b: Path) -> None:
    (a / "notes.txt").write_text("hello")


@damage
def empty_partition_directory(a: Path, b: Path) -> None:
    (a / "other-3").mkdir()


@damage
def remote_cache(a: Path, b: Path) -> None:
    (a / "remote-log-index-cache").mkdir()


@damage
def deleted_directory(a: Path, b: Path) -> None:
    source = find("spare-1", a, b)
    source.rename(source.with_name("spare-1.0123456789abcdef0123456789abcdef-delete"))


@damage
def stray_directory(a: Path, b: Path) -> None:
    source = find("spare-1", a, b)
    source.rename(source.with_name("spare-1.0123456789abcdef0123456789abcdef-stray"))


@damage
def badly_suffixed_directory(a: Path, b: Path) -> None:
    source = find("spare-1", a, b)
    source.rename(source.with_name("spare-1-delete"))


@damage
def doubled_partition(a: Path, b: Path) -> None:
    source = find("plain-0", a, b)
    shutil.copytree(source, (b if source.parent == a else a) / "plain-0")


@damage
def moved_partition(a: Path, b: Path) -> None:
    source = find("plain-0", a, b)
    source.rename((b if source.parent == a else a) / "plain-0")


@damage
def no_middle_segment(a: Path, b: Path) -> None:
    for path in find("rolled-0", a, b).glob(f"{sorted(find('rolled-0', a, b).glob('*.log'))[1].stem}.*"):
        path.unlink()


@damage
def no_last_segment(a: Path, b: Path) -> None:
    for path in find("rolled-0", a, b).glob(f"{last_log(find('rolled-0', a, b)).stem}.*"):
        path.unlink()


@damage
def no_last_log(a: Path, b: Path) -> None:
    last_log(find("rolled-0", a, b)).unlink()


@damage
def emptied_log(a: Path, b: Path) -> None:
    os.truncate(last_log(find("plain-0", a, b)), 0)


@damage
def renamed_segment(a: Path, b: Path) -> None:
    log = last_log(find("plain-0", a, b))
    log.rename(log.with_name(f"{500:020}.log"))


@damage
def swapped_segment(a: Path, b: Path) -> None:
    log = min(find("rolled-0", a, b).glob("*.log"))
    log.rename(log.with_name(f"{log.name}.cleaned"))
