"""Settings: where they come from, which names are known, and that no secret is shown."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from rawlog.live.settings import Settings, parse_properties
from rawlog.model.errors import AccessError, OptionError

SECRET = "pass,w=rd"


def load(brokers: str | None = "h:1", **given: object) -> Settings:
    return Settings.load(brokers, environment={}, **given)  # type: ignore[arg-type]


def test_a_file_of_librdkafka_is_read(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "# comment\nmetadata.broker.list = a:9092, [::1]:9093\nsecurity.protocol=SASL_SSL\nsasl.mechanisms=SCRAM-SHA-512\n"
        f"sasl.username: alice\nsasl.password={SECRET}\nssl.ca.location=/ca.pem\nlinger.ms=5\n"
    )
    found = load(None, config=file)
    assert found.bootstrap == (("a", 9092), ("::1", 9093))
    assert (found.protocol, found.mechanism, found.username) == ("sasl_ssl", "SCRAM-SHA-512", "alice")
    assert found.password is not None
    assert found.password.reveal() == SECRET
    assert SECRET not in repr(found)
    with pytest.raises(TypeError):
        pickle.dumps(found.password)


def test_a_file_of_java_is_read(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(
        "bootstrap.servers=a\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.jaas.config=org.apache.kafka.common.security."
        f'plain.PlainLoginModule required \\\n  username="bob" password="{SECRET}";\n'
    )
    found = load(None, config=file)
    assert (found.bootstrap, found.username) == ((("a", 9092),), "bob")
    assert found.password is not None
    assert found.password.reveal() == SECRET


def test_the_environment_and_profiles_are_read(tmp_path: Path) -> None:
    (tmp_path / "prod.properties").write_text(
        "bootstrap.servers=p:1\nsecurity.protocol=sasl_plaintext\nsasl.username=u\n"
    )
    env = {"RAWLOG_PROFILES": str(tmp_path), "RAWLOG_KAFKA_SASL_PASSWORD": SECRET}
    found = Settings.load(None, profile="prod", environment=env)
    assert found.bootstrap == (("p", 1),)
    assert found.password is not None
    assert Settings.load(None, environment={"RAWLOG_BOOTSTRAP": "x:7"}).bootstrap == (("x", 7),)
    assert Settings.load(None, environment={"KAFKA_BROKERS": "x:7,y"}).bootstrap == (("x", 7), ("y", 9092))
    with pytest.raises(OptionError, match="did you mean prod"):
        Settings.load(None, profile="prot", environment=env)
    with pytest.raises(OptionError):
        Settings.load(None, profile="../prod", environment=env)


def test_secrets_are_refused_on_the_command_line() -> None:
    with pytest.raises(OptionError, match="RAWLOG_KAFKA_SASL_PASSWORD") as error:
        load(options={"sasl.password": SECRET})
    assert SECRET not in str(error.value)


def test_an_unknown_setting_is_answered_or_noted() -> None:
    with pytest.raises(OptionError, match="did you mean sasl.username"):
        load(options={"sasl.usernam": "x"})
    notes: list[str] = []
    load(options={"some.plugin.of.ours": "x"}, note=notes.append)
    assert notes == ["setting some.plugin.of.ours is not known and not used"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"security.protocol": "tls"}, "security.protocol"),
        ({"security.protocol": "sasl_ssl"}, "sasl.username"),
        ({"security.protocol": "sasl_ssl", "sasl.mechanisms": "OAUTHBEARER"}, "endpoint"),
        ({"sasl.username": "u"}, "security.protocol"),
        ({"socket.timeout.ms": "soon"}, "whole number"),
        ({"fetch.max.bytes": "-1"}, "expected"),
        ({"ssl.truststore.location": "/a/store.jks"}, "PEM"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        load(options=given)


@pytest.mark.parametrize("text", ["", "a:b", "a:70000", "a b:1", "user@h:1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        Settings.of({"bootstrap.servers": text})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="nowhere"):
        load(config=tmp_path / "nowhere")


def test_properties_may_span_lines() -> None:
    assert parse_properties("a = 1\\\n   2\n! no\nb:3\nc 4\n") == {"a": "12", "b": "3", "c": "4"}
