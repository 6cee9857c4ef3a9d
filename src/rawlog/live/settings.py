"""How to reach a cluster: librdkafka's names of settings, and Java's where they mean the same.

Settings come from a properties file (`-F`), a profile, the environment and options, in this order; the later ones win. Secrets come from
files and the environment only: an option with one is refused, and nothing here shows one.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rawlog.model.errors import AccessError, OptionError, unknown

Note = Callable[[str], None]

BOOTSTRAP, CONFIG, PROFILES = "RAWLOG_BOOTSTRAP", "RAWLOG_CLIENT_CONFIG", "RAWLOG_PROFILES"
PREFIX = "RAWLOG_KAFKA_"
"""RAWLOG_KAFKA_SASL_PASSWORD sets sasl.password."""
LARGEST_FILE = 1 << 20
PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI")
HIDDEN = "********"


class Secret:
    """A text that is shown nowhere. `reveal` is for the place that sends it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a secret is not passed on")


#: Other names of a setting: librdkafka's aliases and Java's names.
ALIASES = {
    "metadata.broker.list": "bootstrap.servers",
    "sasl.mechanism": "sasl.mechanisms",
    "compression.codec": "compression.type",
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "request.timeout.ms": "socket.timeout.ms",
    "request.required.acks": "acks",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}
SECRETS = frozenset({
    "sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "ssl.truststore.password", "sasl.jaas.config",
    "sasl.oauthbearer.client.secret", "sasl.oauthbearer.config", "sasl.oauthbearer.token",
})  # fmt: skip
#: Settings of clients that change nothing here: a file that other clients use is taken as it is.
UNUSED = frozenset({
    "acks", "auto.offset.reset", "enable.auto.commit", "auto.commit.interval.ms", "enable.auto.offset.store", "enable.idempotence",
    "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms", "max.poll.records", "partition.assignment.strategy",
    "queued.min.messages", "queued.max.messages.kbytes", "fetch.queue.backoff.ms", "fetch.min.bytes", "fetch.error.backoff.ms",
    "batch.size", "batch.num.messages", "linger.ms", "queue.buffering.max.ms", "queue.buffering.max.messages",
    "queue.buffering.max.kbytes", "buffer.memory", "max.in.flight", "max.in.flight.requests.per.connection", "retries",
    "message.send.max.retries", "delivery.timeout.ms", "message.timeout.ms", "message.max.bytes", "max.request.size", "compression.type",
    "compression.level", "partitioner", "partitioner.class", "key.serializer", "value.serializer", "key.deserializer",
    "value.deserializer", "key.converter", "value.converter", "interceptor.classes", "debug", "log_level", "statistics.interval.ms",
    "api.version.request", "broker.version.fallback", "broker.address.family", "client.dns.lookup", "client.rack", "metadata.max.age.ms",
    "topic.metadata.refresh.interval.ms", "connections.max.idle.ms", "enable.auto.offset.reset", "allow.auto.create.topics",
    "socket.keepalive.enable", "socket.nagle.disable", "socket.send.buffer.bytes", "socket.receive.buffer.bytes", "send.buffer.bytes",
    "receive.buffer.bytes", "check.crcs", "ssl.protocol", "ssl.enabled.protocols", "ssl.cipher.suites", "ssl.truststore.type",
    "ssl.keystore.type", "transactional.id", "transaction.timeout.ms", "security.providers", "group.instance.id", "group.protocol",
    "builtin.features", "retry.backoff.max.ms", "default.api.timeout.ms", "sasl.login.callback.handler.class", "enable.metrics.push",
    "sasl.oauthbearer.extensions", "max.block.ms", "exclude.internal.topics", "topic.blacklist", "plugin.library.paths",
})  # fmt: skip
#: What only librdkafka uses.
KERBEROS = "sasl.kerberos."
CLIENTS = ("own", "librdkafka")


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach a cluster. `repr` shows no secret."""

    bootstrap: tuple[tuple[str, int], ...]
    client_id: str = "rawlog"
    protocol: str = "plaintext"
    mechanism: str = "PLAIN"
    username: str = ""
    password: Secret | None = None
    ca_file: str | None = None
    ca_pem: str | None = None
    certificate_file: str | None = None
    certificate_pem: str | None = None
    key_file: str | None = None
    key_pem: Secret | None = None
    key_password: Secret | None = None
    checks_certificate: bool = True
    checks_host: bool = True
    token: Secret | None = None
    token_url: str | None = None
    oauth_client: str = ""
    oauth_secret: Secret | None = None
    oauth_scope: str = ""
    unsecured: Mapping[str, str] | None = field(default=None, repr=False)
    timeout: float = 60.0
    connect_timeout: float = 30.0
    backoff: float = 0.1
    longest_backoff: float = 10.0
    #: How long a partition may be without progress because of errors that pass by themselves.
    patience: float = 300.0
    fetch_bytes: int = 32 << 20
    partition_bytes: int = 8 << 20
    fetch_wait_ms: int = 500
    largest_response: int = 100_000_000
    isolation: str | None = None
    group: str | None = None
    #: `sasl.kerberos.` settings, for librdkafka.
    kerberos: Mapping[str, str] = field(default_factory=dict)
    client: str = "own"

    @property
    def uses_library(self) -> bool:
        """Whether librdkafka talks to the cluster: it was asked for, or the login needs it."""
        return self.client == "librdkafka" or (self.has_login and self.mechanism == "GSSAPI")

    @property
    def is_encrypted(self) -> bool:
        return self.protocol in ("ssl", "sasl_ssl")

    @property
    def has_login(self) -> bool:
        return self.protocol in ("sasl_plaintext", "sasl_ssl")

    @property
    def named(self) -> str:
        """The addresses, as the user wrote them."""
        return ",".join(f"{host}:{port}" for host, port in self.bootstrap)

    @classmethod
    def load(
        cls,
        brokers: str | Iterable[str] | None = None,
        *,
        config: str | os.PathLike[str] | None = None,
        profile: str | None = None,
        options: Mapping[str, str] | None = None,
        note: Note | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Settings:
        """The settings of a file, a profile, the environment and options together.

        OptionError for a setting that is invalid, AccessError for a file that cannot be read. `note` gets a sentence about each setting
        that is unknown here and has no near name.
        """
        env = os.environ if environment is None else environment
        properties: dict[str, str] = {}
        file = config if config is not None else env.get(CONFIG)
        if file:
            properties |= _read(Path(file))
        if profile is not None:
            properties |= _read(_profile(profile, env))
        properties |= {
            name[len(PREFIX) :].lower().replace("_", "."): value
            for name, value in env.items()
            if name.startswith(PREFIX)
        }
        for name, value in (options or {}).items():
            if ALIASES.get(name, name) in SECRETS:
                raise OptionError(
                    f"{name}: secrets are not taken from the command line, where other processes see them; write it to a file for -F, "
                    f"or set ${PREFIX}{name.upper().replace('.', '_')}"
                )
            properties[name] = value
        servers = brokers if brokers is not None else env.get(BOOTSTRAP)
        if servers:
            properties["bootstrap.servers"] = servers if isinstance(servers, str) else ",".join(servers)
            properties.pop("metadata.broker.list", None)
        if (
            "bootstrap.servers" not in properties
            and "metadata.broker.list" not in properties
            and env.get("KAFKA_BROKERS")
        ):
            properties["bootstrap.servers"] = env["KAFKA_BROKERS"]
        return cls.of(properties, note)

    @classmethod
    def of(cls, properties: Mapping[str, str], note: Note | None = None) -> Settings:
        """The settings that properties say."""
        known_properties = _known_settings(properties, note or (lambda _: None))
        if "bootstrap.servers" not in known_properties:
            raise OptionError("no broker is named").advise(
                f"-b HOST:PORT, or bootstrap.servers in a file for -F, or ${BOOTSTRAP}"
            )
        arguments: dict[str, Any] = {"bootstrap": _addresses(known_properties.pop("bootstrap.servers"))}
        _take_jaas(known_properties)
        arguments["kerberos"] = {name: value for name, value in known_properties.items() if name.startswith(KERBEROS)}
        for name, value in known_properties.items():
            if name not in arguments["kerberos"]:
                target, read = READ[name]
                arguments[target] = read(name, value)
        _check(arguments)
        return cls(**arguments)


def _read(path: Path) -> dict[str, str]:
    """The properties in a file. AccessError if it cannot be read."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise AccessError(f"{path}: {error.strerror or error}") from None
    if len(raw) > LARGEST_FILE:
        raise AccessError(f"{path}: larger than a file of settings can be")
    return parse_properties(raw.decode("utf-8", "replace"))


def parse_properties(text: str) -> dict[str, str]:
    """`name=value` lines; `#` and `!` begin comments, a backslash at the end of a line joins it with the next, as Java reads them."""
    properties: dict[str, str] = {}
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    for line in joined.splitlines():
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        match = re.match(r"([^=:\s]+)\s*[=:\s]\s*(.*)", line)
        if match:
            properties[match[1]] = match[2].replace("\\n", "\n") if "BEGIN " in match[2] else match[2]
    return properties


def _profile(name: str, env: Mapping[str, str]) -> Path:
    """The file of a profile. OptionError for one that does not exist."""
    folder = Path(env.get(PROFILES) or Path.home() / ".config" / "rawlog" / "profiles")
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise OptionError(f"profile {name!r}: letters, digits, . _ - expected")
    path = folder / f"{name}.properties"
    if not path.is_file():
        names = sorted(profile.stem for profile in folder.glob("*.properties")) if folder.is_dir() else []
        if names:
            raise unknown("profile", name, names)
        raise OptionError(f"profile {name!r}: {path} does not exist")
    return path


def _known_settings(properties: Mapping[str, str], note: Note) -> dict[str, str]:
    """The settings under their main names. OptionError for a name that is nearly a known one."""
    settings: dict[str, str] = {}
    for raw, value in properties.items():
        name = ALIASES.get(raw, raw)
        if name in READ or name == "bootstrap.servers":
            if value != "":
                settings[name] = value
        elif name in UNUSED:
            continue
        elif raw.startswith(KERBEROS):
            settings[raw] = value
        else:
            names = sorted({*READ, *ALIASES, *UNUSED, "bootstrap.servers"})
            near = difflib.get_close_matches(raw, names, n=1, cutoff=0.8)
            if near:
                raise OptionError(f"unknown setting {raw!r}; did you mean {near[0]}?")
            note(f"setting {raw} is not known and not used")
    return settings


def _addresses(text: str) -> tuple[tuple[str, int], ...]:
    """`HOST:PORT,…`; the port is 9092 where it is left out. An address may have Java's or librdkafka's protocol in front."""
    addresses = []
    for part in text.split(","):
        part = part.strip().rpartition("://")[2]
        if not part:
            continue
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%]+)\]|([^\s:/@\[\]]+))(?::(\d{1,5}))?", part)
        if match is None or not 0 < int(match[3] or 9092) < 65536:
            raise OptionError(f"broker {part!r}: HOST:PORT expected")
        addresses.append((match[1] or match[2], int(match[3] or 9092)))
    if not addresses:
        raise OptionError("no broker is named: HOST:PORT expected")
    return tuple(addresses)


def _take_jaas(settings: dict[str, str]) -> None:
    """User and password of Java's `sasl.jaas.config`."""
    text = settings.pop("sasl.jaas.config", None)
    if text is None:
        return
    values = dict(re.findall(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"', text))
    values = {name: re.sub(r"\\(.)", r"\1", value) for name, value in values.items()}
    for name, target in (
        ("username", "sasl.username"), ("password", "sasl.password"),
        ("clientId", "sasl.oauthbearer.client.id"), ("clientSecret", "sasl.oauthbearer.client.secret"), ("scope", "sasl.oauthbearer.scope"),
    ):  # fmt: skip
        if name in values:
            settings.setdefault(target, values[name])
    claims = {
        k.removeprefix("unsecuredLoginStringClaim_"): v for k, v in values.items() if k.startswith("unsecuredLogin")
    }
    if claims:
        settings.setdefault("sasl.oauthbearer.config", " ".join(f"{k}={v}" for k, v in claims.items()))


def _text(name: str, value: str) -> str:
    return value


def _secret(name: str, value: str) -> Secret:
    return Secret(value)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise OptionError(f"{name}: true or false expected")
    return value.lower() == "true"


def _whole(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise OptionError(f"{name} {value!r}: a whole number expected") from None
        if not least <= number <= most:
            raise OptionError(f"{name} {number:,}: {least:,} to {most:,} expected")
        return number

    return read


def _seconds(name: str, value: str) -> float:
    return _whole(1, 3_600_000)(name, value) / 1000


def _one_of(choices: Iterable[str], change: Callable[[str], str]) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if change(value) not in choices:
            raise unknown(name, value, choices)
        return change(value)

    return read


def _store_file(name: str, value: str) -> str:
    if value.lower().endswith((".jks", ".p12", ".pfx", ".pkcs12")):
        raise OptionError(
            f"{name} {value}: a PEM file expected; `keytool` and `openssl pkcs12` convert a Java key store"
        )
    return value


def _claims(name: str, value: str) -> dict[str, str]:
    """`principal=admin scope=read` of librdkafka's unsecured tokens."""
    claims = dict(re.findall(r"([\w.]+)=(\S+)", value))
    return {"sub": claims.pop("principal"), **claims} if "principal" in claims else claims


READ: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "client.id": ("client_id", _text),
    "security.protocol": ("protocol", _one_of(PROTOCOLS, str.lower)),
    "sasl.mechanisms": ("mechanism", _one_of(MECHANISMS, str.upper)),
    "sasl.username": ("username", _text),
    "sasl.password": ("password", _secret),
    "sasl.jaas.config": ("", _text),
    "ssl.ca.location": ("ca_file", _store_file),
    "ssl.truststore.location": ("ca_file", _store_file),
    "ssl.ca.pem": ("ca_pem", _text),
    "ssl.certificate.location": ("certificate_file", _store_file),
    "ssl.keystore.location": ("certificate_file", _store_file),
    "ssl.certificate.pem": ("certificate_pem", _text),
    "ssl.key.location": ("key_file", _store_file),
    "ssl.key.pem": ("key_pem", _secret),
    "ssl.key.password": ("key_password", _secret),
    "ssl.keystore.password": ("key_password", _secret),
    "ssl.truststore.password": ("_ignored", _secret),
    "enable.ssl.certificate.verification": ("checks_certificate", _flag),
    "ssl.endpoint.identification.algorithm": ("checks_host", lambda name, value: value.lower() not in ("none", "")),
    "sasl.oauthbearer.method": ("_ignored", _text),
    "enable.sasl.oauthbearer.unsecure.jwt": ("_ignored", _text),
    "sasl.oauthbearer.config": ("unsecured", _claims),
    "sasl.oauthbearer.token": ("token", _secret),
    "sasl.oauthbearer.token.endpoint.url": ("token_url", _text),
    "sasl.oauthbearer.client.id": ("oauth_client", _text),
    "sasl.oauthbearer.client.secret": ("oauth_secret", _secret),
    "sasl.oauthbearer.scope": ("oauth_scope", _text),
    "socket.timeout.ms": ("timeout", _seconds),
    "socket.connection.setup.timeout.ms": ("connect_timeout", _seconds),
    "reconnect.backoff.ms": ("backoff", _seconds),
    "reconnect.backoff.max.ms": ("longest_backoff", _seconds),
    "retry.backoff.ms": ("backoff", _seconds),
    "fetch.max.bytes": ("fetch_bytes", _whole(1, 1 << 30)),
    "max.partition.fetch.bytes": ("partition_bytes", _whole(1, 1 << 30)),
    "fetch.wait.max.ms": ("fetch_wait_ms", _whole(0, 300_000)),
    "receive.message.max.bytes": ("largest_response", _whole(1000, (1 << 31) - 1)),
    "isolation.level": ("isolation", _one_of(("read_uncommitted", "read_committed"), str.lower)),
    "group.id": ("group", _text),
}


def _check(arguments: dict[str, Any]) -> None:
    """OptionError for what does not fit together."""
    arguments.pop("_ignored", None)
    names = {setting.name for setting in fields(Settings)}
    assert names >= arguments.keys(), arguments.keys() - names
    protocol, mechanism = arguments.get("protocol", "plaintext"), arguments.get("mechanism", "PLAIN")
    if protocol.startswith("sasl"):
        if mechanism == "OAUTHBEARER":
            if not any(arguments.get(setting) for setting in ("token", "token_url", "unsecured")):
                raise OptionError("sasl.mechanisms OAUTHBEARER: sasl.oauthbearer.token.endpoint.url is missing")
        elif mechanism != "GSSAPI" and (not arguments.get("username") or arguments.get("password") is None):
            raise OptionError(f"sasl.mechanisms {mechanism}: sasl.username and sasl.password are needed")
    elif arguments.get("username") and "protocol" not in arguments:
        raise OptionError("sasl.username is given without security.protocol: sasl_ssl or sasl_plaintext expected")
    for pem in ("ca_pem", "certificate_pem"):
        if arguments.get(pem) and "-----BEGIN" not in arguments[pem]:
            raise OptionError(f"ssl {pem.removesuffix('_pem')}: PEM text expected")
