"""Messages by their schemas: Kafka's own bytes, every type and version there and back, and any bytes at all."""

from __future__ import annotations

import contextlib
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rawlog.formats.kafka.internal import messages
from rawlog.formats.kafka.internal.codec import (
    MOST_ELEMENTS,
    UNKNOWN,
    Schema,
    SchemaField,
    codec,
    default_of,
    read_uvarint,
    schemas,
    write_uvarint,
)
from rawlog.model.errors import (
    EncodeError,
    LimitError,
    RawlogError,
    UnsupportedError,
)
from tests.data.golden import golden_path
from tests.reference import kraft as reference
from tests.reference.kafka import java_string

VECTORS = [line.split() for line in golden_path("kraft", "vectors.txt").read_text().splitlines()]
NUMBERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
EVERY = [
    (schema, version)
    for schema in schemas().values()
    for version in range(schema.valid.low, schema.valid.high + 1)
    if schema.name != "QuorumStateData"
]
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def values_of(field: SchemaField, version: int, flexible: bool) -> st.SearchStrategy[Any]:
    one: st.SearchStrategy[Any]
    if field.struct is not None:
        one = messages_of(field.struct, version, flexible)
    elif field.type in NUMBERS:
        one = st.integers(-(1 << NUMBERS[field.type]), (1 << NUMBERS[field.type]) - 1)
    else:
        one = {
            "bool": st.booleans(),
            "uint16": st.integers(0, 0xFFFF),
            "uint32": st.integers(0, 0xFFFFFFFF),
            "float64": st.floats(allow_nan=False),
            "uuid": st.binary(min_size=16, max_size=16),
            "string": TEXTS,
            "bytes": st.binary(max_size=200),
        }[field.type]
    if field.is_array:
        one = st.lists(one, max_size=4)
    return st.one_of(st.none(), one) if version in field.nullable else one


def messages_of(fields: Any, version: int, flexible: bool) -> st.SearchStrategy[dict[str, Any]]:
    here = {field.name: values_of(field, version, flexible) for field in fields if version in field.versions}
    return st.fixed_dictionaries(here)


def covers(found: Any, expected: Any) -> bool:
    """Whether a message says what the reference does, which leaves absent tagged fields out."""
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(
            key in found and covers(found[key], value) for key, value in expected.items()
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(covers, found, expected))
    return repr(found) == repr(expected)  # a NaN equals itself in its text


@pytest.mark.parametrize("vector", VECTORS, ids=[f"{line[0]}-{line[1]}" for line in VECTORS])
def test_vectors_are_decoded_and_encoded_byte_for_byte(vector: list[str]) -> None:
    raw = bytes.fromhex(vector[3])
    found = messages.decode_framed(raw)
    assert found.version == int(vector[1][1:])
    assert messages.encode_framed(found.key, found.message, found.version) == raw
    name, version, message = reference.decode_frame(raw)
    assert (name, version) == (found.codec.schema.name, found.version)
    assert covers(found.message, message)


def test_the_record_of_seed_001_is_what_the_seed_shows() -> None:
    found = messages.decode_framed(bytes.fromhex("010c00116d657461646174612e76657273696f6e001400"))
    assert (found.name, found.version) == ("FEATURE_LEVEL_RECORD", 0)
    assert found.to_json() == {"name": "metadata.version", "featureLevel": 20}


@pytest.mark.parametrize(("schema", "version"), EVERY, ids=[f"{schema.name}-{version}" for schema, version in EVERY])
@given(data=st.data())
def test_every_message_comes_back_as_it_went(schema: Schema, version: int, data: st.DataObject) -> None:
    one = codec(schema, version)
    message = data.draw(messages_of(schema.fields, version, one.flexible))
    raw = one.encode(message)
    back = one.decode_all(raw)
    assert back == message
    assert one.encode(back) == raw
    seen, end = reference.decode(schema.name, version, raw)
    assert end == len(raw)
    assert covers(back, seen)
    one.to_json(back)


@given(data=st.data())
def test_any_bytes_are_a_message_or_an_error_as_the_reference_says(data: st.DataObject) -> None:
    schema, version = data.draw(st.sampled_from(EVERY))
    one = codec(schema, version)
    raw = data.draw(
        st.one_of(st.binary(max_size=60), messages_of(schema.fields, version, one.flexible).map(one.encode))
    )
    if raw and data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw = raw[:at] + data.draw(st.binary(max_size=3)) + raw[at + 1 :]
    try:
        expected: Any = reference.decode(schema.name, version, raw)
    except reference.Bad:
        expected = None
    try:
        found = one.decode(raw)
    except RawlogError:
        assert expected is None
        return
    assert expected is not None
    assert found[1] == expected[1]
    assert covers(found[0], expected[0])


@given(st.binary(max_size=40))
def test_only_our_errors_come_out_of_frames_and_keys(raw: bytes) -> None:
    for call in (
        lambda: messages.decode_framed(raw),
        lambda: messages.decode_framed(b"\x01" + raw),
        lambda: messages.decode_framed(raw, "remote"),
        *(lambda kind=kind: messages.decode_control(kind, raw) for kind in range(-1, 8)),
        *(lambda topic=topic: messages.decode_keyed(topic, raw, raw) for topic in messages.KEYED),
    ):
        with contextlib.suppress(RawlogError):
            call()


def test_unknown_tags_are_kept_and_written_again() -> None:
    raw = (
        bytes.fromhex("01140002")
        + bytes.fromhex("05 02 abcd".replace(" ", ""))
        + bytes.fromhex("8001 01 ff".replace(" ", ""))
    )
    found = messages.decode_framed(raw)
    assert found.message[UNKNOWN] == [(5, b"\xab\xcd"), (128, b"\xff")]
    assert messages.encode_framed(found.key, found.message, found.version) == raw
    assert found.to_json()[UNKNOWN] == [{"tag": 5, "data": "q80="}, {"tag": 128, "data": "/w=="}]


def test_a_newer_version_and_an_unknown_type_are_not_supported() -> None:
    with pytest.raises(UnsupportedError, match="version 9"):
        messages.decode_framed(bytes.fromhex("01020900"))
    with pytest.raises(UnsupportedError, match="type 6"):
        messages.decode_framed(bytes.fromhex("01060000"))


def test_bytes_after_a_message_are_an_error() -> None:
    with pytest.raises(RawlogError, match="1 bytes follow"):
        messages.decode_framed(bytes.fromhex("0114000000"))


def test_what_does_not_fit_is_not_encoded() -> None:
    with pytest.raises(EncodeError):
        messages.encode_framed("TopicRecord", {"name": None, "topicId": bytes(16)})
    with pytest.raises(EncodeError, match="no such field"):
        messages.encode_framed("TopicRecord", {"nam": "x"})
    with pytest.raises(EncodeError, match="16 expected"):
        messages.encode_framed("TopicRecord", {"name": "x", "topicId": b"short"})
    with pytest.raises(EncodeError, match="has no directories"):
        messages.encode_framed("PartitionRecord", {"directories": [bytes(16)]}, 0)
    with pytest.raises(EncodeError, match="at most 32767"):
        messages.encode_framed("TopicRecord", {"name": "x" * 40000})
    with pytest.raises(RawlogError, match="TopicRecord"):
        messages.encode_framed("TopicRecrd", {})


def test_the_lowest_version_that_holds_a_message_is_chosen() -> None:
    change: dict[str, Any] = {"brokerId": 1, "brokerEpoch": 7, "fenced": -1}
    assert messages.encode_framed("BrokerRegistrationChange", change)[:3] == bytes([1, 17, 0])
    assert messages.encode_framed("BrokerRegistrationChange", {**change, "inControlledShutdown": 1})[2] == 1
    assert messages.encode_framed("BrokerRegistrationChange", {**change, "logDirs": [bytes(16)]})[2] == 2
    assert messages.encode_framed("BrokerRegistrationChange", {**change, "cordonedLogDirs": []})[2] == 3


def test_a_null_structure_in_a_tag_is_written_out_as_kafka_does() -> None:
    """Brokers 3.9 and 4.3 write `classicMemberMetadata` null as a tag, although null is its default."""
    schema = schemas()["ConsumerGroupMemberMetadataValue"]
    raw = codec(schema, 0).encode({"classicMemberMetadata": None})
    assert raw.endswith(bytes.fromhex("01000100"))
    field = next(one for one in schema.fields if one.name == "classicMemberMetadata")
    assert default_of(field, 0) is None


@given(st.integers(0, 0xFFFFFFFF))
def test_numbers_of_variable_length_come_back(value: int) -> None:
    raw = write_uvarint(value)
    assert read_uvarint(raw, 0) == (value, len(raw))


@pytest.mark.parametrize("raw", [b"\xff", b"a\xe2\x82", b"\xed\xa0\x80"])
def test_text_that_is_not_utf8_reads_as_in_kafka_and_is_written_as_it_was(raw: bytes) -> None:
    """Kafka decodes strings with replacement. Group ids, transactional ids and names of metadata could not be read here."""
    key = (2).to_bytes(2, "big") + len(raw).to_bytes(2, "big") + raw
    found = messages.decode_keyed("__consumer_offsets", key, None)
    assert found.key["group"] == java_string(raw)
    assert messages.encode_keyed(found)[0] == key
    feature = bytes((1, 12, 0, len(raw) + 1)) + raw + bytes((0, 7, 0))
    record = messages.decode_framed(feature)
    assert record.to_json()["name"] == java_string(raw)
    assert pickle.loads(pickle.dumps(record.message["name"])) == java_string(raw)
    assert codec(record.codec.schema, record.version).encode(record.message) == feature[3:]


def test_a_message_has_no_more_elements_than_memory_is_meant_for() -> None:
    """A metadata record of 3 million end points, 2 KB in a compressed batch, took minutes and more than 5 GB."""
    count = MOST_ELEMENTS + 1
    head = bytes((1, 0, 0)) + bytes(28) + write_uvarint(count + 1)
    with pytest.raises(LimitError, match="more than 524,288 elements in one message"):
        messages.decode_framed(head + bytes((1, 1, 0, 0, 0, 0, 0)) * count)
    with pytest.raises(LimitError, match="more than the limit of 16,777,216"):
        messages.decode_framed(head + bytes(17 << 20))
