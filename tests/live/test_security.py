"""TLS with each way to log in, against a real broker; and that no secret gets into what users see."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rawlog
from rawlog.live.client import BrokerError
from rawlog.model.errors import OptionError
from tests.services import free_ports
from tests.services.kafka import KAFKA_4, KafkaBroker, run_tool

pytestmark = pytest.mark.broker
PASSWORD = "s3cr,t=pässword"
MODULE = "org.apache.kafka.common.security"


class SecureBroker(KafkaBroker):
    """A broker with a second listener: TLS, and every mechanism. Its certificate signs itself."""

    def _configure(self) -> None:
        super()._configure()
        [port] = free_ports(1)
        self.secure = f"127.0.0.1:{port}"
        self.certificate = self._home / "cert.pem"
        key = self._home / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=rawlog", "-addext",
             "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(self.certificate)],
            check=True, capture_output=True,
        )  # fmt: skip
        (self._home / "store.pem").write_text(key.read_text() + self.certificate.read_text())
        path = self._home / "server.properties"
        lines = dict(line.split("=", 1) for line in path.read_text().splitlines())
        own = {
            "listeners": f"{lines['listeners']},SECURE://{self.secure}",
            "advertised.listeners": f"{lines['advertised.listeners']},SECURE://{self.secure}",
            "listener.security.protocol.map": f"{lines['listener.security.protocol.map']},SECURE:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._home / "store.pem"),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.secure.plain.sasl.jaas.config": f'{MODULE}.plain.PlainLoginModule required user_alice="{PASSWORD}";',
            "listener.name.secure.scram-sha-256.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
            "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{MODULE}.scram.ScramLoginModule required;",
            "listener.name.secure.oauthbearer.sasl.jaas.config": f"{MODULE}.oauthbearer.OAuthBearerLoginModule required "
            f'unsecuredLoginStringClaim_sub="admin";',
            "connections.max.reauth.ms": "3000",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            "allow.everyone.if.no.acl.found": "true",
        }
        text = "".join(f"{key}={value}\n" for key, value in (lines | own).items())
        path.write_text(text.encode("ascii", "backslashreplace").decode().replace("\\xe4", "\\u00e4"))

    def _format(self) -> None:
        users = [
            option
            for kind in ("256", "512")
            for option in ("--add-scram", f"SCRAM-SHA-{kind}=[name=alice,password={SCRAM}]")
        ]
        properties = str(self._home / "server.properties")
        run_tool(self.version, "kafka.tools.StorageTool", "format", "-t", self.cluster_id, "-c", properties, *users)


SCRAM = "pass-word"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureBroker]:
    from tests.conftest import running

    broker = SecureBroker(KAFKA_4, tmp_path_factory.mktemp("secure"))
    with running(broker):
        yield broker


def config(broker: SecureBroker, folder: Path, mechanism: str, password: str) -> Path:
    text = (
        f"bootstrap.servers={broker.secure}\nsecurity.protocol=SASL_SSL\nssl.ca.location={broker.certificate}\n"
        f"sasl.mechanisms={mechanism}\n"
    )
    if mechanism == "OAUTHBEARER":
        text += f"enable.sasl.oauthbearer.unsecure.jwt=true\nsasl.oauthbearer.config=principal={password}\n"
    else:
        text += f"sasl.username=alice\nsasl.password={password}\n"
    path = folder / "client.properties"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("mechanism", "password"),
    [("PLAIN", PASSWORD), ("SCRAM-SHA-256", SCRAM), ("SCRAM-SHA-512", SCRAM), ("OAUTHBEARER", "admin")],
)
def test_record_and_replay_over_tls(secure: SecureBroker, tmp_path: Path, mechanism: str, password: str) -> None:
    file = config(secure, tmp_path, mechanism, password)
    source: Any = iter([{"key": b"%d" % number, "value": bytes(50)} for number in range(2000)])
    topic = f"over-tls-{mechanism.lower()}"
    # Long enough for the session to end, so that it logs in once more on the way.
    pace: dict[str, Any] = {"rate": 400} if mechanism == "SCRAM-SHA-256" else {}
    sent = rawlog.replay(source, config=file, to_topic=topic, create_topics=True, partition_by="round-robin", **pace)
    assert sent.is_whole, sent.lines()
    done = rawlog.record(topic, tmp_path / "one", config=file, until_end=True)
    assert done.is_whole
    assert done.counts["records"] == 2000
    assert rawlog.verify(tmp_path / "one").verdict == "clean"
    if password != "admin":
        assert password not in repr(sent.as_json()) + repr(done.as_json())


def test_librdkafka_does_the_same(secure: SecureBroker, tmp_path: Path) -> None:
    """The fall-back for logins that only it has, with one that both have: records, headers, nulls, offsets and times are the same."""
    file = config(secure, tmp_path, "SCRAM-SHA-256", SCRAM)
    given: dict[str, Any] = {"config": file, "client": "librdkafka"}
    made: Any = [
        {
            "key": None if number % 3 == 0 else b"k%d" % number,
            "value": None if number % 7 == 0 else b"v%d" % number,
            "headers": [("a", None), ("a", b""), ("b", b"1")] if number % 5 == 0 else [],
            "timestamp": 1_700_000_000_000_000 + number * 1000,
            "partition": number % 2,
        }
        for number in range(500)
    ]
    sent = rawlog.replay(iter(made), to_topic="by-library", create_topics=True, **given)
    assert sent.is_whole, sent.lines()
    assert (sent.counts["acknowledged"], sent.counts["failed"]) == (500, 0)
    assert rawlog.record("by-library", tmp_path / "own", config=file, until_end=True).counts["records"] == 500
    first = rawlog.record("by-library", tmp_path / "library", to_offset=100, group="by-library", **given)
    assert first.counts["records"] == 200, first.lines()
    rest = rawlog.record("by-library", tmp_path / "library", until_end=True, resume=True, **given)
    assert rest.counts["records"] == 300, rest.lines()
    assert (
        rawlog.record("by-library", tmp_path / "g", until_end=True, group="by-library", **given).counts["records"]
        == 300
    )
    for number in (0, 1):
        pair = [tmp_path / name / f"by-library-{number}" for name in ("own", "library")]
        assert rawlog.diff(*pair).is_same
    assert rawlog.verify(tmp_path / "library").verdict == "clean"
    assert [row["key"] for row in rawlog.rows(tmp_path / "own/by-library-1")] == [row["key"] for row in made[1::2]]
    mirrored = {"topic_map": {"by-library": "mirrored"}, "create_topics": True, "until_end": True, "to_config": file}
    assert rawlog.mirror("by-library", **mirrored, **given).counts["acknowledged"] == 500
    assert rawlog.record("mirrored", tmp_path / "mirrored", config=file, until_end=True).is_whole
    for number in (0, 1):
        pair = [tmp_path / "own" / f"by-library-{number}", tmp_path / "mirrored" / f"mirrored-{number}"]
        assert rawlog.diff(*pair).is_same


def test_refusals_of_librdkafka_are_clear(secure: SecureBroker, tmp_path: Path) -> None:
    wrong = "wr0ng-secret"
    given: dict[str, Any] = {"config": config(secure, tmp_path, "SCRAM-SHA-256", wrong), "client": "librdkafka"}
    with pytest.raises(BrokerError, match=r"(?i)authentication failed") as error:
        rawlog.record("t", tmp_path / "x", until_end=True, **given)
    assert wrong not in str(error.value)
    given["config"] = config(secure, tmp_path, "SCRAM-SHA-256", SCRAM)
    with pytest.raises(OptionError, match="unknown topic 'no-such-topic'"):
        rawlog.record("no-such-topic", tmp_path / "x", until_end=True, **given)
    for options in ({"checkpoint": tmp_path / "state"}, {"to_topic": "t"}):
        with pytest.raises(OptionError, match="librdkafka|unknown topic"):
            rawlog.replay(iter([{"value": b"v"}]), **given, **options)
    with pytest.raises(OptionError, match="exact"):
        rawlog.mirror("t", to_config=given["config"], exact=True, **given)
    kerberos = config(secure, tmp_path, "GSSAPI", SCRAM)
    with pytest.raises((OptionError, BrokerError), match="GSSAPI|Kerberos|authentication"):  # not every build has it
        rawlog.record("t", tmp_path / "x", until_end=True, config=kerberos)


def test_refusals_are_clear_and_show_no_secret(secure: SecureBroker, tmp_path: Path) -> None:
    wrong = "wr0ng-secret"
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        with pytest.raises(BrokerError, match="authentication failed") as error:
            rawlog.record("t", tmp_path / "x", config=config(secure, tmp_path, mechanism, wrong))
        assert wrong not in str(error.value)
    file = config(secure, tmp_path, "PLAIN", PASSWORD)
    file.write_text(file.read_text().replace(str(secure.certificate), "/etc/ssl/certs/ca-certificates.crt"))
    with pytest.raises((BrokerError, OptionError), match="certificate|TLS"):
        rawlog.record("t", tmp_path / "x", config=file)
    with pytest.raises(BrokerError, match="127.0.0.1"):
        rawlog.record("t", tmp_path / "x", brokers=secure.secure, setting={"socket.timeout.ms": "3000"})
    done = subprocess.run(
        [sys.executable, "-m", "rawlog", "record", "t", "--to", str(tmp_path / "x"), "-b", secure.secure, "-X", f"sasl.password={wrong}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert wrong not in done.stdout + done.stderr


def test_what_is_not_authorized_is_a_clear_error(secure: SecureBroker, tmp_path: Path) -> None:
    """Of a topic that may be seen, but not read or not written."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        AdminClient,
        NewTopic,
        ResourcePatternType,
        ResourceType,
    )

    admin = AdminClient({"bootstrap.servers": secure.bootstrap})
    allowed = {
        "unread": (AclOperation.DESCRIBE, AclOperation.WRITE),
        "unwritten": (AclOperation.DESCRIBE, AclOperation.READ),
    }
    for topic, operations in allowed.items():
        admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        acls = [
            AclBinding(
                ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:alice", "*", one, AclPermissionType.ALLOW
            )
            for one in operations
        ]
        for made in admin.create_acls(acls).values():
            made.result(30)
    file = config(secure, tmp_path, "PLAIN", PASSWORD)
    rows: Any = [{"key": b"k", "value": b"v"} for _ in range(3)]
    assert rawlog.replay(iter(rows), config=file, to_topic="unread").is_whole
    read = rawlog.record("unread", tmp_path / "one", config=file, until_end=True)
    assert not read.is_whole
    assert "unread-0: not authorized for the topic" in read.facts["error"]
    assert any("from offset 0 on" in line for line in read.lines())
    written = rawlog.replay(iter(rows), config=file, to_topic="unwritten")
    assert not written.is_whole
    assert "unwritten-0" in written.facts["error"]
    assert "not authorized for the topic" in written.facts["error"]
    assert written.counts["acknowledged"] == 0
    assert rawlog.record("unwritten", tmp_path / "two", config=file, until_end=True).counts["records"] == 0
