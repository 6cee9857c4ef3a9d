"""The real parts are real: brokers take records, give them back, and leave files that their own tools read."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
import uuid
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests import services
from tests.data.golden import unpack
from tests.services.kafka import KAFKA_3, KAFKA_4, BrokerError, KafkaBroker, dump_log_segments
from tests.services.s3 import S3Server

COUNT = 20
ROOT = Path(__file__).parent.parent


def make_topic(bootstrap: str) -> str:
    topic = f"services-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})  # named: without it the futures die with the client
    for done in admin.create_topics([NewTopic(topic, 1, 1)]).values():
        done.result(60)
    return topic


def produce(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd", "linger.ms": 50})
    for number in range(COUNT):
        producer.produce(topic, key=str(number), value=f"value {number}", headers=[("n", b"1"), ("n", None)])
    assert producer.flush(60) == 0


def consume(bootstrap: str, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        return [message.value() for message in consumer.consume(COUNT, timeout=60)]
    finally:
        consumer.close()


@pytest.mark.parametrize(("name", "kind"), [("../x", tarfile.REGTYPE), ("/x", tarfile.REGTYPE), ("x", tarfile.SYMTYPE)])
def test_an_archive_stays_in_its_folder(name: str, kind: bytes, tmp_path: Path) -> None:
    """54 tests failed on Debian 12, whose Python does not have `TarFile.extractall(filter=)`."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for member, its in (("in/file", tarfile.REGTYPE), (name, kind)):
            about = tarfile.TarInfo(member)
            about.type, about.size, about.linkname = its, 3 * (its == tarfile.REGTYPE), "/etc/passwd"
            archive.addfile(about, io.BytesIO(b"abc"))
    with pytest.raises(ValueError, match="is not a file or directory below the folder"):
        unpack(tmp_path / "a.tar", tmp_path / "to")
    assert [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".tar"] == [b"abc"]


def test_ports_are_reserved_before_anything_listens_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs asked the system for free ports and got the same ones, as neither had bound them yet."""
    program = (
        "from tests import services; services.PORTS = range(19_000, 19_060)\n"
        "print(*(services.free_ports(1)[0] for _ in range(30)), flush=True); input()"
    )
    other = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout
    theirs = set(map(int, other.stdout.readline().split()))
    monkeypatch.setattr(services, "PORTS", range(19_000, 19_060))
    ours = {services.free_ports(1)[0] for _ in range(20)}
    other.communicate(b"\n")
    assert (len(theirs), len(ours), theirs & ours) == (30, 20, set())


@pytest.mark.broker
def test_a_broker_serves_what_was_produced_and_its_tool_reads_the_file(kafka: KafkaBroker) -> None:
    topic = make_topic(kafka.bootstrap)
    produce(kafka.bootstrap, topic)
    assert consume(kafka.bootstrap, topic) == [f"value {number}".encode() for number in range(COUNT)]

    log = kafka.data_dir / f"{topic}-0" / f"{0:020}.log"
    reported = dump_log_segments(kafka.version, [log], "--deep-iteration", "--print-data-log")
    assert "compresscodec: zstd" in reported
    assert f"payload: value {COUNT - 1}" in reported
    assert "isvalid: false" not in reported


@pytest.mark.broker
@pytest.mark.parametrize("version", [KAFKA_3, KAFKA_4])
def test_a_broker_starts_again_after_a_crash_and_after_a_stop(version: str, tmp_path: Path) -> None:
    with KafkaBroker(version, tmp_path / "data") as broker:
        topic = make_topic(broker.bootstrap)
        produce(broker.bootstrap, topic)
        broker.kill()
        assert not broker.running
        assert not (broker.data_dir / ".kafka_cleanshutdown").exists()
        broker.start()
        assert len(consume(broker.bootstrap, topic)) == COUNT
        assert broker.stop() == 143
        assert (broker.data_dir / ".kafka_cleanshutdown").exists()
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    with KafkaBroker(version, tmp_path / "copy") as other:
        assert len(consume(other.bootstrap, topic)) == COUNT


@pytest.mark.broker
def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(BrokerError, match=r"no\.such\.type"),
        KafkaBroker(KAFKA_4, tmp_path, {"log.segment.bytes": "no.such.type"}),
    ):
        pass


def test_the_s3_server_keeps_bytes(s3: S3Server) -> None:
    import pyarrow.fs

    files = s3.filesystem()
    files.create_dir("services")
    with files.open_output_stream("services/a/b") as out:
        out.write(b"x" * 1000)
    assert files.get_file_info("services/a/b").size == 1000
    named, path = pyarrow.fs.FileSystem.from_uri(s3.url("services/a/b"))
    with named.open_input_file(path) as file:
        assert file.read_at(10, 990) == b"x" * 10
