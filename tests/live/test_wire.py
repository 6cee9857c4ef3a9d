"""Responses are hostile input: whatever a broker sends, the result is a message or a BrokerError, in bounded memory."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from rawlog.formats.kafka.internal.codec import Message
from rawlog.live import client as messages
from rawlog.live.client import BrokerError, Connection, Disconnected
from rawlog.live.cluster import Cluster, TopicPartition
from rawlog.live.fetch import Fetcher
from rawlog.live.settings import Settings
from rawlog.model.errors import DataError, RawlogError

#: A value for every field of a message, by its type.
VALUES: dict[str, Any] = {
    "string": "text",
    "bytes": b"bytes",
    "records": b"records!",
    "uuid": bytes(range(16)),
    "bool": True,
}


def filled(fields: Any, version: int, draw: random.Random) -> dict[str, Any]:
    """A message with something in every field."""
    made: dict[str, Any] = {}
    for one in fields:
        if version not in one.versions:
            continue
        if one.struct is not None:
            value: Any = filled(one.struct, version, draw)
        else:
            value = VALUES.get(one.type, draw.randrange(100))
        made[one.name] = [value] * draw.randrange(3) if one.is_array else value
    return made


EVERY = [(api, version) for api in messages.APIS for version in range(api.versions.low, api.versions.high + 1)]


@pytest.mark.parametrize(("api", "version"), EVERY, ids=lambda value: getattr(value, "name", str(value)))
def test_every_message_is_read_as_it_was_written(api: messages.Api, version: int) -> None:
    draw = random.Random(version)
    for schema, codec in ((api.request, api.request_codec(version)), (api.response, api.response_codec(version))):
        message = filled(schema.fields, version, draw)
        assert codec.decode_all(memoryview(codec.encode(message))) == message


@pytest.mark.parametrize(("api", "version"), EVERY, ids=lambda value: getattr(value, "name", str(value)))
def test_a_mutated_response_is_read_or_refused(api: messages.Api, version: int) -> None:
    draw = random.Random(version * 100 + api.key)
    codec = api.response_codec(version)
    for _ in range(300):
        data = bytearray(codec.encode(filled(api.response.fields, version, draw)))
        for _ in range(draw.randrange(1, 4)):
            what = draw.randrange(4)
            at = draw.randrange(len(data)) if data else 0
            if what == 0 and data:
                data[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
            elif what == 1:
                del data[at:]
            elif what == 2:
                data[at:at] = draw.randbytes(draw.randrange(1, 9))
            else:
                data[at : at + 4] = b"\x7f\xff\xff\xff"
        with contextlib.suppress(DataError):
            codec.decode_all(memoryview(data))


# A server that answers what a test sets ---------------------------------------------------------------------------------


@contextmanager
def server(
    answer: Callable[[int, int, bytes], bytes | None],
    send: Callable[[socket.socket, bytes], None] = socket.socket.sendall,
) -> Iterator[str]:
    """A listener whose connections are answered by a function of key, version and the whole request; None closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while True:
                head = b""
                while len(head) < 4:
                    piece = client.recv(4 - len(head))
                    if not piece:
                        return
                    head += piece
                left, request = int.from_bytes(head, "big"), b""
                while len(request) < left:
                    request += client.recv(left - len(request)) or b"\0" * (left - len(request))
                made = answer(int.from_bytes(request[:2], "big"), int.from_bytes(request[2:4], "big"), request)
                if made is None:
                    return
                send(client, made)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def settings(address: str, **more: str) -> Settings:
    quick = {"socket.timeout.ms": "2000", "socket.connection.setup.timeout.ms": "2000", "reconnect.backoff.ms": "1"}
    return Settings.of({"bootstrap.servers": address, **quick, **more})


def framed(api: messages.Api, version: int, request: bytes, message: dict[str, Any]) -> bytes:
    """A well-formed response to a request."""
    tags = b"\0" if api.is_flexible(version) and api is not messages.API_VERSIONS else b""
    body = request[4:8] + tags + api.response_codec(version).encode(message)
    return len(body).to_bytes(4, "big") + body


def honest(port: int, partitions: int = 1) -> Callable[[int, int, bytes], bytes | None]:
    """A broker with an empty topic `t`."""
    keys = [
        {"apiKey": one.key, "minVersion": one.versions.low, "maxVersion": one.versions.high} for one in messages.APIS
    ]
    rows = [{"partitionIndex": number, "leaderId": 1} for number in range(partitions)]

    def answer(key: int, version: int, request: bytes) -> bytes | None:
        if key == messages.API_VERSIONS.key:
            return framed(messages.API_VERSIONS, version, request, {"apiKeys": keys})
        if key == messages.METADATA.key:
            made: dict[str, Any] = {
                "brokers": [{"nodeId": 1, "host": "127.0.0.1", "port": port}],
                "clusterId": "c",
                "topics": [{"name": "t", "partitions": rows}],
            }
            return framed(messages.METADATA, version, request, made)
        if key == messages.FETCH.key:
            row = {"partitionIndex": 0, "highWatermark": 0, "records": b""}
            return framed(
                messages.FETCH,
                version,
                request,
                {"responses": [{"topic": "t", "partitions": [row]} if version < 13 else {}]},
            )
        return None

    return answer


class Row(dict[str, Any]):
    """A row of a response that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        Row.looks += 1
        return super().__getitem__(name)


class Partition(TopicPartition):
    """A partition that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Partition.compared += 1
        return tuple.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = TopicPartition.__hash__


def test_the_work_grows_with_the_partitions_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    """`record` of a topic with 100,000 partitions did not end: for each partition the metadata of all of them were read, and the list of
    those to ask for was searched from its beginning.
    """
    count = 3000
    port = [0]

    def answer(key: int, version: int, request: bytes) -> bytes | None:
        rows = [{"partitionIndex": number} for number in range(count)]
        if key == messages.LIST_OFFSETS.key:
            return framed(messages.LIST_OFFSETS, version, request, {"topics": [{"name": "t", "partitions": rows}]})
        if key == messages.FETCH.key:
            more = [row | {"highWatermark": 0, "records": b""} for row in rows]
            return framed(messages.FETCH, version, request, {"responses": [{"topic": "t", "partitions": more}]})
        return honest(port[0], count)(key, version, request)

    class Counting(Cluster):
        def metadata(self, names: Sequence[str] | None) -> Message:
            found = super().metadata(names)
            for topic in found["topics"]:
                topic["partitions"] = [Row(row) for row in topic["partitions"]]
            return found

    monkeypatch.setattr(Row, "looks", 0)
    monkeypatch.setattr(Partition, "compared", 0)
    with server(answer) as address:
        port[0] = int(address.partition(":")[2])
        with Counting(settings(address)) as cluster:
            topics = cluster.topics(["t"])
            partitions = [Partition("t", number) for number in topics["t"].partitions]
            assert set(cluster.offsets(dict.fromkeys(partitions, -1), {}).values()) == {0}
            fetcher = Fetcher(cluster, dict.fromkeys(partitions, 0), {})
            while len(fetcher.ends) < count:
                fetcher.poll(10)
            fetcher.stop_at(dict.fromkeys(partitions, 0))
            fetcher.poll(10)
    assert fetcher.active == frozenset()
    assert Row.looks < 100 * count
    assert Partition.compared < 100 * count


def test_a_broker_that_sends_a_byte_at_a_time_is_given_up() -> None:
    """The time limit was one for each piece that came, so that such a broker held `record` for ever."""
    ended = threading.Event()
    port = [0]

    def slowly(client: socket.socket, made: bytes) -> None:
        for byte in made:
            client.sendall(bytes([byte]))
            if ended.wait(0.02):
                return

    def answer(key: int, version: int, request: bytes) -> bytes | None:
        return honest(port[0], 2000)(key, version, request)

    with server(answer, slowly) as address:
        port[0] = int(address.partition(":")[2])
        quick = settings(address, **{"socket.timeout.ms": "300"})
        try:
            with pytest.raises(Disconnected, match="no answer in time"), Cluster(quick) as cluster:
                cluster.topics(["t"])
        finally:
            ended.set()


def test_an_honest_server_is_understood() -> None:
    with (
        server(lambda key, version, request: honest(0)(key, version, request)) as address,
        Cluster(settings(address)) as cluster,
    ):
        assert list(cluster.topics(["t"])) == ["t"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (b"\x7f\xff\xff\xff", "bytes"),
        (b"\xff\xff\xff\xff", "bytes"),
        (b"\0\0\0\x00", "bytes"),
        (b"\0\0\0\x08\0\0\0\x63\0\0\0\0", "a response to request 99"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "bytes"),
        (b"\0\0\0\x06\0\0\0\x01\0\x23", "cannot be read"),
        (None, "closed the connection"),
    ],
)
def test_garbage_is_a_clear_error(made: bytes | None, words: str) -> None:
    with server(lambda *_: made) as address, pytest.raises(BrokerError, match=words) as error:
        Connection("127.0.0.1", int(address.partition(":")[2]), settings(address))
    assert address in str(error.value)


def test_a_length_that_is_not_sent_takes_no_memory() -> None:
    """A response announces 90 MB and sends nothing: memory is taken as bytes come."""
    with (
        server(lambda *_: (90_000_000).to_bytes(4, "big") + b"\0\0\0\x01") as address,
        pytest.raises(BrokerError) as error,
    ):
        Connection("127.0.0.1", int(address.partition(":")[2]), settings(address))
    assert "90,000,000" in str(error.value)


def test_nobody_there_is_a_clear_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Disconnected, match=f"127.0.0.1:{port}"):
        Cluster(settings(f"127.0.0.1:{port}")).topics(["t"])


def test_mutated_fetch_responses_are_read_or_refused() -> None:
    """A broker that is otherwise honest sends damaged record data, and damaged responses."""
    draw = random.Random(7)
    port: list[int] = [0]

    def answer(key: int, version: int, request: bytes) -> bytes | None:
        made = honest(port[0])(key, version, request)
        if key != messages.FETCH.key:
            return made
        row = {"partitionIndex": 0, "highWatermark": 5, "records": draw.randbytes(draw.randrange(0, 200))}
        made = framed(messages.FETCH, version, request, {"responses": [{"topic": "t", "partitions": [row]}]})
        data = bytearray(made)
        if draw.random() < 0.7:
            data[draw.randrange(4, len(data))] = draw.randrange(256)
        return bytes(data)

    with server(answer) as address:
        port[0] = int(address.partition(":")[2])
        for _ in range(60):
            with Cluster(settings(address)) as cluster:
                fetcher = Fetcher(cluster, {TopicPartition("t", 0): 0}, {}, stops={TopicPartition("t", 0): 5})
                with contextlib.suppress(RawlogError):
                    assert fetcher.poll(0.5) == []
