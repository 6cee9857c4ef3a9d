"""The same cluster through librdkafka (`confluent-kafka`): for logins that only it has, as Kerberos, and as a fall-back.

It hands out and takes single records. So what is recorded is encoded here, in batches of our own without producers and transaction
markers, and it is slower than our own connections. Everything else, files, bounds, pace and Report, is the same code.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from rawlog.formats.kafka import LOG
from rawlog.formats.kafka.internal.codec import Message
from rawlog.formats.kafka.log.segment import scan
from rawlog.formats.kafka.log.writer import Batching, RowBuffers, encode_rows
from rawlog.kernels import byte_view
from rawlog.live.client import (
    UNKNOWN_TOPIC,
    BrokerError,
    Disconnected,
    refusal,
)
from rawlog.live.cluster import (
    BEGINNING,
    END,
    Cancelled,
    Cluster,
    TopicPartition,
)
from rawlog.live.fetch import FetchedBatches, Fetcher
from rawlog.live.produce import OutgoingBatch, Producer, SentBatch, Writer, stamp
from rawlog.live.settings import Settings
from rawlog.model.errors import OptionError, missing
from rawlog.model.format import File, Place, Want
from rawlog.model.table import RECORDS

NOTE = "through librdkafka: batches are encoded by rawlog, without producers and transaction markers"
GROUP = "rawlog"
"""librdkafka wants a group, also of those who never join it."""
AT_ONCE = 10_000
MOST_WAITING = 100_000
CONSUMER = {
    "enable.auto.commit": False, "enable.partition.eof": True, "auto.offset.reset": "error", "check.crcs": True,
    "queued.min.messages": 200_000, "queued.max.messages.kbytes": 65_536, "fetch.queue.backoff.ms": 5,
}  # fmt: skip
PRODUCER = {
    "enable.idempotence": True, "acks": "all", "linger.ms": 5, "queue.buffering.max.messages": MOST_WAITING,
    "message.max.bytes": 1_000_000_000,
}  # fmt: skip


@functools.cache
def _library() -> Any:
    """confluent-kafka. AccessError if it is not installed."""
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError:
        raise missing("confluent-kafka", "kafka", otherwise="--client own") from None
    return confluent_kafka


def connect(settings: Settings, is_stopped: Callable[[], bool] | None = None) -> Cluster:
    """The cluster that settings mean, through the client that they ask for."""
    return Library(settings, is_stopped) if settings.uses_library else Cluster(settings, is_stopped)


def reader(
    cluster: Cluster, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes], **options: Any
) -> Fetcher:
    """Who reads partitions of a cluster."""
    kind = LibraryFetcher if isinstance(cluster, Library) else Fetcher
    return kind(cluster, positions, ids, **options)


def writer(cluster: Cluster, ids: Mapping[str, bytes], **options: Any) -> Producer:
    """Who writes to partitions of a cluster."""
    kind = LibraryProducer if isinstance(cluster, Library) else Producer
    return kind(cluster, ids, **options)


def properties(settings: Settings) -> dict[str, Any]:
    """librdkafka's properties for settings. OptionError for a login that our own connections have to make."""
    hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in settings.bootstrap)
    config: dict[str, Any] = {
        "bootstrap.servers": ",".join(hosts), "client.id": settings.client_id, "security.protocol": settings.protocol,
        "socket.timeout.ms": int(settings.timeout * 1000), "log_level": 2,
    }  # fmt: skip
    if settings.has_login:
        if settings.mechanism == "OAUTHBEARER":
            raise OptionError("sasl.mechanisms OAUTHBEARER: only without --client librdkafka")
        config |= {"sasl.mechanisms": settings.mechanism, **settings.kerberos}
        if settings.password is not None:
            config |= {"sasl.username": settings.username, "sasl.password": settings.password.reveal()}
    if settings.is_encrypted:
        key, secret = settings.key_pem, settings.key_password
        config |= {
            "ssl.ca.location": settings.ca_file, "ssl.ca.pem": settings.ca_pem,
            "ssl.certificate.location": settings.certificate_file, "ssl.certificate.pem": settings.certificate_pem,
            "ssl.key.location": settings.key_file, "ssl.key.pem": None if key is None else key.reveal(),
            "ssl.key.password": None if secret is None else secret.reveal(),
            "enable.ssl.certificate.verification": settings.checks_certificate,
            "ssl.endpoint.identification.algorithm": "https" if settings.checks_host else "none",
        }  # fmt: skip
    return {name: value for name, value in config.items() if value is not None}


class Library(Cluster):
    """A cluster through librdkafka: topics, offsets, groups and settings of topics. Its connections are librdkafka's own."""

    def __init__(self, settings: Settings, is_stopped: Callable[[], bool] | None = None) -> None:
        super().__init__(settings, is_stopped)
        self._properties = properties(settings) | {"error_cb": self._on_error}
        self._error: Any = None
        self._admin: Any = None
        self.consumers: list[Any] = []

    def close(self) -> None:
        """End the connections."""
        for consumer in self.consumers:
            consumer.close()
        self.consumers.clear()
        super().close()

    def _on_error(self, error: Any) -> None:
        """Errors of connections; of those the first says why: all others are that nobody is there."""
        if self._error is None or error.code() != _library().KafkaError._ALL_BROKERS_DOWN:
            self._error = error

    def make_client(self, kind: str, more: Mapping[str, Any]) -> Any:
        """A client of librdkafka. OptionError for properties that this build of it does not take."""
        library = _library()
        kinds = {"admin": library.admin.AdminClient, "consumer": library.Consumer, "producer": library.Producer}
        try:
            return kinds[kind](self._properties | dict(more))
        except (library.KafkaException, ValueError, TypeError) as error:
            raise OptionError(f"librdkafka: {_words(error)}") from None

    def failure(self, what: str, error: BaseException) -> BrokerError:
        """The error for a call that failed, with what a connection said before."""
        library = _library()
        heard, code = self._error, _code(error)
        if heard is not None and heard.code() == library.KafkaError._AUTHENTICATION:
            return BrokerError(f"{self.settings.named}: authentication failed: {heard.str()}")
        if code > 0:
            return refusal(what, code)
        text = f"{_words(error)}{f' ({heard.str()})' if heard is not None else ''}"
        return Disconnected(f"{self.settings.named}: {what}: {text}")

    @property
    def admin(self) -> Any:
        if self._admin is None:
            self._admin = self.make_client("admin", {})
        return self._admin

    def answer_of(self, what: str, ask: Callable[[], Any]) -> Any:
        """The answer of librdkafka. BrokerError if there is none."""
        library = _library()
        self._error = None
        try:
            return ask()
        except (library.KafkaException, TimeoutError) as error:
            raise self.failure(what, error) from None

    # What Cluster asks by itself -----------------------------------------------------------------------------------------

    def metadata(self, names: Sequence[str] | None) -> Message:
        metadata = self.answer_of("metadata", lambda: self._metadata())
        self.id = metadata.cluster_id
        self.brokers = {number: (broker.host, broker.port) for number, broker in metadata.brokers.items()}
        rows: list[Message] = []
        for name in metadata.topics if names is None else names:
            topic = metadata.topics.get(name)
            parts = {} if topic is None else topic.partitions
            code = UNKNOWN_TOPIC if topic is None else _code(topic.error)
            rows.append(
                {
                    "name": name, "errorCode": code, "isInternal": name.startswith("__"), "topicId": None,
                    "partitions": [
                        {"partitionIndex": number, "errorCode": _code(part.error), "leaderId": part.leader, "leaderEpoch": -1}
                        for number, part in sorted(parts.items())
                    ],
                }
            )  # fmt: skip
        return {"brokers": [], "clusterId": self.id, "topics": rows}

    def _metadata(self) -> Any:
        """Ask until there is an answer, or a login was refused, which librdkafka would try for ever."""
        library = _library()
        stop = time.monotonic() + self.settings.connect_timeout
        while True:
            try:
                return self.admin.list_topics(timeout=1.0)
            except library.KafkaException:
                self.admin.poll(0.1)
                refused = self._error is not None and self._error.code() == library.KafkaError._AUTHENTICATION
                if refused or time.monotonic() > stop:
                    raise

    def _offsets(
        self, times: Mapping[TopicPartition, int], ids: Mapping[str, bytes], isolation: int
    ) -> dict[TopicPartition, int]:
        library = _library()
        spec, level = library.admin.OffsetSpec, library.IsolationLevel
        kinds = {BEGINNING: spec.earliest, END: spec.latest}
        if not times:
            return {}
        requests = {
            library.TopicPartition(*partition): kinds[when]() if when in kinds else spec.for_timestamp(when)
            for partition, when in times.items()
        }
        chosen = level.READ_COMMITTED if isolation else level.READ_UNCOMMITTED
        futures = self.admin.list_offsets(requests, isolation_level=chosen, request_timeout=self.settings.timeout)
        offsets = {}
        for topic_partition, future in futures.items():
            partition = TopicPartition(topic_partition.topic, topic_partition.partition)
            offsets[partition] = self.answer_of(f"partition {partition}: its offsets", future.result).offset
        return offsets

    def committed(self, group: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = [_library().TopicPartition(*partition) for partition in partitions]
        rows = self._of_group(group, "", lambda consumer: consumer.committed(wanted, timeout=self.settings.timeout))
        return {TopicPartition(row.topic, row.partition): row.offset for row in rows if row.offset >= 0}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        rows = [_library().TopicPartition(*partition, offset) for partition, offset in offsets.items()]
        if rows:
            self._of_group(group, ": commit", lambda consumer: consumer.commit(offsets=rows, asynchronous=False))

    def _of_group(self, group: str, what: str, ask: Callable[[Any], Any]) -> Any:
        """What the coordinator of a group answers; a new broker may still be looking for one."""
        consumer = self.make_client("consumer", CONSUMER | {"group.id": group})
        try:
            return self.retry(lambda: self.answer_of(f"group {group!r}{what}", lambda: ask(consumer)))
        finally:
            consumer.close()

    def create_topic(self, name: str, partitions: int) -> None:
        new = _library().admin.NewTopic(name, partitions, -1)
        [future] = self.admin.create_topics([new], request_timeout=self.settings.timeout).values()
        try:
            self.answer_of(f"topic {name}: create", future.result)
        except BrokerError as error:
            if error.code != _library().KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        self.wait_for_topic(name)

    def configs(self, topic: str, names: Sequence[str]) -> dict[str, str]:
        admin = _library().admin
        [future] = self.admin.describe_configs([admin.ConfigResource(admin.ConfigResource.Type.TOPIC, topic)]).values()
        try:
            settings = self.answer_of(f"topic {topic}: settings", future.result)
        except BrokerError:
            return {}  # we may not ask
        return {name: settings[name].value for name in names if name in settings and settings[name].value is not None}


class LibraryFetcher(Fetcher):
    """Partitions that librdkafka reads. What it hands out becomes batches."""

    def __init__(
        self, cluster: Cluster, positions: Mapping[TopicPartition, int], ids: Mapping[str, bytes], **options: Any
    ) -> None:
        assert isinstance(cluster, Library)
        super().__init__(cluster, positions, ids, **options)
        level = "read_committed" if self.isolation else "read_uncommitted"
        self._library, self._source = _library(), cluster
        self._consumer = cluster.make_client("consumer", CONSUMER | {"group.id": GROUP, "isolation.level": level})
        wanted = [
            self._library.TopicPartition(*partition, self.positions[partition]) for partition in sorted(self._active)
        ]
        self._consumer.assign(wanted)
        cluster.consumers.append(self._consumer)

    def poll(self, timeout: float) -> list[FetchedBatches]:
        """What came, as batches of each partition; empty if nothing came in time."""
        messages = self._consumer.consume(AT_ONCE, timeout)
        by_partition: dict[TopicPartition, list[Any]] = {}
        for message in messages:
            partition = TopicPartition(message.topic(), message.partition())
            error = message.error()
            if error is None:
                by_partition.setdefault(partition, []).append(message)
            elif error.code() == self._library.KafkaError._PARTITION_EOF:
                self.ends[partition] = message.offset()
                self.positions[partition] = max(self.positions[partition], message.offset())
                if self._is_done(partition):  # markers at the end are not handed out
                    self._active.discard(partition)
            else:
                raise self._source.failure(f"partition {partition}", self._library.KafkaException(error))
        return [
            fetched
            for partition, received in by_partition.items()
            if (fetched := self._encode(partition, received)) is not None
        ]

    def _encode(self, partition: TopicPartition, messages: list[Any]) -> FetchedBatches | None:
        stop = self.stops.get(partition, 1 << 62)
        self.positions[partition] = max(self.positions[partition], messages[-1].offset() + 1)
        if self._is_done(partition):
            self._active.discard(partition)
        wanted = [message for message in messages if message.offset() < stop]
        if not wanted:
            return None
        encoded = encode_rows(RowBuffers.of(_table(wanted)), Batching())
        return FetchedBatches(partition, encoded.frames, encoded.head)


def _table(messages: list[Any]) -> pa.RecordBatch:
    """Messages of one partition as rows of `records`."""
    times = [message.timestamp() for message in messages]
    columns: dict[str, Any] = {
        "key": [message.key() for message in messages],
        "value": [message.value() for message in messages],
        "topic": [message.topic() for message in messages],
        "partition": [message.partition() for message in messages],
        "offset": [message.offset() for message in messages],
        "timestamp": [ms * 1000 if kind and ms >= 0 else None for kind, ms in times],
        "timestampType": [int(kind == 2) for kind, _ in times],
        "headers": [[{"key": name, "value": value} for name, value in message.headers() or ()] for message in messages],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in RECORDS.schema]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORDS.schema)


class LibraryProducer(Producer):
    """An idempotent producer of librdkafka: batches are taken apart, each record has its delivery report."""

    def begin(self) -> None:
        """Make it. librdkafka gets its id by itself."""
        assert isinstance(self.cluster, Library)
        self._library, self._target = _library(), self.cluster
        self._sender = self.cluster.make_client("producer", PRODUCER)
        self._missing: dict[SentBatch, int] = {}
        self._problem: BrokerError | None = None
        self.plain = Writer(None, 0, 0)

    def put(self, partition: TopicPartition, batch: OutgoingBatch, writer: Writer | None = None) -> None:
        """Hand the records of a batch to librdkafka; blocks while much is waiting."""
        assert writer is None
        lane = self.lane(partition)
        stamp(batch.data, 0, 0, 0)
        sent = SentBatch(partition, batch, self.plain, 0, time.monotonic())
        lane.records += batch.count
        lane.unacknowledged.append(sent)
        self._missing[sent] = batch.count
        file = File(str(partition), 0, None, LOG.name, Place(*partition))
        delivered = functools.partial(self._on_delivered, sent)
        for rows in LOG.codec.decode(scan(byte_view(batch.data), 0), Want(RECORDS, file)):
            times = rows.column("timestamp").cast(pa.int64()).to_pylist()
            for row, at in zip(rows.select(["key", "value", "headers"]).to_pylist(), times, strict=True):
                headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
                more = {"headers": headers} if headers else {}
                if at is not None:
                    more["timestamp"] = at // 1000
                self._produce(partition, row["value"], row["key"], delivered, more)
        self.pump(0.0)

    def _produce(
        self, partition: TopicPartition, value: Any, key: Any, delivered: Any, more: Mapping[str, Any]
    ) -> None:
        while True:
            try:
                self._sender.produce(partition.topic, value, key, partition.partition, on_delivery=delivered, **more)
                return
            except BufferError:  # the whole batch is handed over, also if somebody asks to stop
                self._sender.poll(0.1)
                self._check()
            except self._library.KafkaException as error:
                raise self._target.failure(f"partition {partition}", error) from None

    def _on_delivered(self, sent: SentBatch, error: Any, message: Any) -> None:
        if error is not None:
            failed = self._target.failure(f"partition {sent.partition}", self._library.KafkaException(error))
            self._problem = self._problem or failed
            return
        self._missing[sent] -= 1
        lane = self.lanes[sent.partition]
        while lane.unacknowledged and not self._missing[lane.unacknowledged[0]]:
            finished = lane.unacknowledged.popleft()
            del self._missing[finished]
            self._finish(lane, finished, message.offset() + 1)
            if self._on_acknowledged is not None:
                self._on_acknowledged(finished, message.offset() + 1 - finished.batch.count, time.monotonic())

    def pump(self, timeout: float) -> None:
        """Take in delivery reports. BrokerError for a record that could not be delivered."""
        self._sender.poll(timeout)
        self._check()
        if self.cluster.is_stopped is not None and self.cluster.is_stopped():
            raise Cancelled

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem

    def find_leader(self, partition: TopicPartition) -> None:
        """librdkafka does that by itself."""


def _code(error: Any) -> int:
    """Kafka's error code, negative for errors of librdkafka itself, 0 for none."""
    if error is None:
        return 0
    cause = error.args[0] if isinstance(error, BaseException) and error.args else error
    return int(cause.code()) if hasattr(cause, "code") else -1


def _words(error: BaseException) -> str:
    """What librdkafka says."""
    cause = error.args[0] if error.args else error
    return str(cause.str()) if hasattr(cause, "str") else str(cause)
