"""Masking rows: what becomes of fields, what stays, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rawlog
from rawlog.model.errors import AccessError, OptionError
from rawlog.model.table import RECORDS
from rawlog.reading.select import Selection
from rawlog.values.mask import parse_mask
from rawlog.values.masker import Masker

SECRET = b"a secret of a test"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAWLOG_MASK_SECRET", SECRET.decode())


def row(value: Any, key: bytes | None = b"alice", headers: Any = (), **more: Any) -> dict[str, Any]:
    text = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
    pairs = [{"key": name, "value": one} for name, one in headers]
    return {"key": key, "value": text, "topic": "orders", "partition": 0, "offset": 0, "timestamp": 0, "timestampType": 0,
            "headers": pairs} | more  # fmt: skip


def masked(mask: str, *rows: dict[str, Any], keep_sizes: bool = False, **selection: Any) -> list[dict[str, Any]]:
    """Rows as a selection with a mask gives them."""
    chosen = Selection(transforms=(parse_mask(mask, keep_sizes=keep_sizes),), **selection)
    batch = pa.RecordBatch.from_pylist(list(rows), schema=RECORDS.schema)
    needed = batch.select(list(chosen.needed(RECORDS).names))
    found: list[dict[str, Any]] = chosen.apply(needed, RECORDS).to_pylist()
    chosen.judge([chosen.tallies])
    return found


@given(st.lists(st.text(alphabet="0123456789 abcXYZ-+éß", max_size=24), max_size=40))
def test_digits_keep_the_form_and_equal_texts_stay_equal(texts: list[str]) -> None:
    one, other = Masker(SECRET), Masker(SECRET)
    for text in texts:
        made = one.digits(text.encode()).decode()
        assert made == other.digits(text.encode()).decode()
        assert len(made) == len(text)
        for before, after in zip(text, made, strict=True):
            assert before.isdigit() == after.isdigit()
            assert before.isalpha() == after.isalpha()
            assert before.isupper() == after.isupper()
            assert before.isalnum() or before == after


def test_digits_of_different_texts_are_different() -> None:
    """A mask that maps two phone numbers to one would join rows of two persons."""
    masker = Masker(SECRET)
    assert len({masker.digits(b"%04d" % number) for number in range(10_000)}) == 10_000
    assert len({masker.digits(bytes([one])) for one in range(ord("0"), ord("9") + 1)}) == 10


@given(st.one_of(st.integers(-(10**30), 10**30), st.decimals(allow_nan=False, allow_infinity=False, places=3)))
def test_a_masked_number_is_a_number_of_the_same_length(number: Any) -> None:
    text = f"{number:f}" if not isinstance(number, int) else str(number)
    made = Masker(SECRET).number(text.encode()).decode()
    assert len(made) == len(text)
    json.loads(made)


@given(st.binary(max_size=80), st.binary(max_size=80))
def test_hashes_are_equal_if_texts_are_and_keep_sizes_on_request(one: bytes, other: bytes) -> None:
    masker, sized = Masker(SECRET), Masker(SECRET, keep_sizes=True)
    assert (masker.hash(one) == masker.hash(other)) == (one == other)
    assert masker.hash(one) != Masker(b"another secret").hash(one)
    assert len(sized.hash(one)) == len(one)
    assert len(masker.hash(one)) == 32


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), JSON)
def test_everything_but_the_field_stays_as_it_is(document: dict[str, Any], hidden: Any) -> None:
    [made] = masked("value.card=fixed:x", row({**document, "card": hidden}))
    found = json.loads(made["value"])
    assert found == {**document, "card": None if hidden is None else "x"}


def test_numbers_and_repeated_names_stay_as_they_are_written() -> None:
    text = b'{"a":1.500,"b":123456789012345678901234567890,"card":"1","c":1e400,"a":2,"card":"2"}'
    [made] = masked("value.card=drop", row(text))
    assert made["value"] == b'{"a":1.500,"b":123456789012345678901234567890,"c":1e400,"a":2}'


def test_one_text_has_one_mask_in_keys_headers_fields_and_numbers() -> None:
    [made] = masked(
        "key=hash,value.id=hash,value.n=hash,headers.user=hash", row({"id": "42", "n": 42}, b"42", [("user", b"42")])
    )
    value = json.loads(made["value"])
    assert {made["key"].decode(), value["id"], value["n"], made["headers"][0]["value"].decode()} == {value["id"]}


def test_a_header_that_repeats_the_key_is_masked_with_it() -> None:
    """RocketMQ's key is also among its properties: masking only the column would leave it there."""
    headers = [("KEYS", b"alice"), ("other", b"bob")]
    [made] = masked("key=hash", row({}, b"alice", headers), columns=("headers",))
    assert list(made) == ["headers"]
    assert made["headers"][0]["value"] != b"alice"
    assert made["headers"][1]["value"] == b"bob"
    [made] = masked("key=drop", row({}, b"alice", headers))
    assert made["key"] is None
    assert [one["key"] for one in made["headers"]] == ["other"]


def test_fields_of_lists_and_of_framed_values() -> None:
    framed = b"\x00\x00\x00\x00\x07" + json.dumps({"items": [{"sku": "a"}, {"sku": "b"}, 3]}).encode()
    [made] = masked("value.items[*].sku=drop", row(framed))
    assert made["value"] == b'\x00\x00\x00\x00\x07{"items": [{}, {}, 3]}'
    [made] = masked("value.items[1]=drop", row({"items": [1, 2, 3]}))
    assert json.loads(made["value"]) == {"items": [1, None, 3]}


def test_sizes_are_kept_on_request() -> None:
    source = row({"card": "4111-1111", "n": 12345, "name": "Zoë"}, headers=[("user", b"bob")])
    mask = "value.card=hash,value.n=hash,value.name=fixed:someone,key=hash,headers.user=fixed:anybody"
    [made] = masked(mask, source, keep_sizes=True)
    for name in ("key", "value"):
        assert len(made[name]) == len(source[name])
        assert made[name] != source[name]
    assert made["headers"][0]["value"] == b"any"
    value = json.loads(made["value"])
    assert len(value["card"]) == 9
    assert len(str(value["n"])) == 5


def test_where_sees_what_is_masked() -> None:
    rows = [row({"card": "1"}), row({"card": "2"})]
    [made] = masked("value.card=drop", *rows, where="value.card = '2'")
    assert made["value"] == b"{}"


def test_nulls_stay_and_times_move() -> None:
    [made] = masked("key=hash,value=hash,timestamp=shift:-1d", row(None, None, timestamp=86_400_000_000))
    assert made["key"] is None
    assert made["value"] is None
    assert made["timestamp"].timestamp() == 0


@pytest.mark.parametrize(
    ("other", "done"), [("keep", "not masked"), ("drop", "dropped"), ("hash", "hashed as a whole")]
)
def test_values_that_are_not_json_and_missing_fields_are_counted(other: str, done: str) -> None:
    mask = parse_mask("value.card=hash", other=other)
    chosen = Selection(transforms=(mask,))
    rows = [row({"card": 1}), row(b"\xff\xfe"), row(b"plain"), row({"other": 1}), row(None)]
    made = chosen.apply(pa.RecordBatch.from_pylist(rows, schema=RECORDS.schema), RECORDS).column("value").to_pylist()
    assert made[2] == {"keep": b"plain", "drop": None, "hash": Masker(SECRET).hash(b"plain")}[other]
    assert mask.counts["value.card", "not JSON"] == 2
    notes = chosen.judge([chosen.tallies, (Counter(),)])
    assert notes == [
        "--mask value.card: 1 row without this field",
        f"--mask value.card: 2 rows {done}: the value is not JSON",
        f"masked with the secret {Masker(SECRET).fingerprint} (its fingerprint): other results of this secret can be joined",
    ]


def test_values_that_are_not_json_are_refused_unless_it_is_said_what_becomes_of_them(tmp_path: Path) -> None:
    """A text that is not JSON may have the card number in it: it was written as it was, with a note."""
    with pytest.raises(OptionError, match="1 value is not JSON, and may have"):
        masked("value.card=hash", row({"card": 1}), row(b"card 4111"))
    with pytest.raises(OptionError, match="2 values are not JSON, and may have"):  # JSON, but without fields
        masked("value.card=hash", row({"card": 1}), row(b"4111"), row(b'"4111"'), row(b"null"))
    rows = [row(value) | {"offset": number} for number, value in enumerate(({"card": 1}, b"card 4111", {"card": 2}))]
    rawlog.write(tmp_path / "source", rows, format="kafka")
    for verb in (rawlog.convert, rawlog.restore, rawlog.ingest):
        with pytest.raises(OptionError, match="not JSON"):
            verb(
                tmp_path / "source",
                tmp_path / "out",
                mask="value.card=hash",
                engine="local",
                **({"to": "kafka"} if verb is rawlog.convert else {}),
            )
        if verb is not rawlog.ingest:
            assert [one.name for one in tmp_path.iterdir()] == ["source"]
    assert not [one for one in (tmp_path / "out").rglob("*.parquet") if one.is_file()]
    with pytest.raises(OptionError, match="unknown way"):
        parse_mask("value.card=hash", other="ignore")


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ("value.crad=hash", "none of 1 row has this field"),
        ("headers.user=drop", "none of 1 row has this field"),
        ("value.card", "FIELD=HOW expected"),
        ("value.card=encrypt", "unknown way to mask value.card"),
        ("vlaue.card=hash", "value"),
        ("headers=drop", "name a header"),
        ("timestamp=hash", "shift"),
        ("timestamp=shift:soon", "span of time"),
        ("value=hash,value.card=drop", "masked twice"),
        ("value..card=hash", "expected"),
    ],
)
def test_what_is_no_mask_is_refused(mask: str, says: str) -> None:
    with pytest.raises(OptionError, match=says.replace("[", r"\[")):
        masked(mask, row({"card": 1}))


def test_hash_needs_a_secret_and_a_file_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET + b"\n")
    assert parse_mask("key=hash", file).masker.hash(b"x") == Masker(SECRET).hash(b"x")
    assert SECRET.decode() not in repr(parse_mask("key=hash", file).__dict__)
    file.write_bytes(b"short")
    with pytest.raises(OptionError, match="at least 8 bytes"):
        parse_mask("key=hash", file)
    with pytest.raises(AccessError):
        parse_mask("key=hash", tmp_path / "none")
    monkeypatch.delenv("RAWLOG_MASK_SECRET")
    with pytest.raises(OptionError, match="need a secret"):
        parse_mask("key=hash")
    parse_mask("key=drop")


def test_tables_without_such_a_column_are_refused() -> None:
    from rawlog import registry

    with pytest.raises(OptionError, match="have no value"):
        Selection(transforms=(parse_mask("value=hash"),)).check(registry.table_named("rocketmq.messages"))


# Verbs -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> str:
    rows = [
        row({"card": f"4111-{number % 5}", "n": number}, b"user-%d" % (number % 5), [("user", b"user-%d" % number)])
        | {"offset": number, "partition": number % 2, "timestamp": number * 1000}
        for number in range(40)
    ]
    rawlog.write(tmp_path / "source", rows, format="kafka", codec="zstd")
    return str(tmp_path / "source")


MASK = "value.card=hash,key=hash,headers.user=drop"


def test_convert_masks_for_every_system_alike(source: str, tmp_path: Path) -> None:
    report = rawlog.convert(source, tmp_path / "kafka", to="kafka", mask=MASK, drop_key="user-4")
    assert report.counts["dropped"] == 8
    rawlog.convert(source, tmp_path / "store", to="rocketmq", mask=MASK, accept_loss="offset,key,headers,partition")
    made = rawlog.read(tmp_path / "kafka").to_pylist()
    assert len(made) == 32
    assert [one["offset"] for one in made if one["partition"] == 0][:3] == [0, 2, 6]
    assert all(not one["headers"] for one in made)
    pairs = {(one["key"], json.loads(one["value"])["card"]) for one in made}
    others = {(one["key"], json.loads(one["value"])["card"]) for one in rawlog.read(tmp_path / "store").to_pylist()}
    assert len(pairs) == 4
    assert pairs < others
    for folder in ("kafka", "store"):
        assert_nowhere(tmp_path / folder, b"4111-", b"user-1")


def assert_nowhere(folder: Path, *texts: bytes) -> None:
    for path in folder.rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        assert not [text for text in texts if text in data], path
    found = [value for one in rawlog.read(folder).to_pylist() for value in (one["key"], one["value"])]
    assert not [text for text in texts for value in found if value and text in value]


def test_a_mask_that_meets_nothing_writes_nothing(source: str, tmp_path: Path) -> None:
    for to in ("kafka", "parquet"):
        with pytest.raises(OptionError, match=r"value\.crad"):
            rawlog.convert(source, tmp_path / "out", to=to, mask="value.crad=hash")
    with pytest.raises(OptionError, match=r"value\.crad"):
        rawlog.restore(source, tmp_path / "out", mask="value.crad=hash")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_ingest_masks_and_refuses_a_lake_with_rows_masked_otherwise(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    rawlog.ingest(source, lake, engine="local", mask=MASK)
    rows = [one for path in lake.rglob("*.parquet") for one in _rows(path)]
    assert len(rows) == 40
    assert not any(b"4111" in one["value"] or b"user" in one["key"] or one["headers"] for one in rows)
    rawlog.ingest(source, tmp_path / "other", engine="local", tables="records")
    with pytest.raises(OptionError, match="not masked"):
        rawlog.ingest(source, tmp_path / "other", engine="local", mask=MASK)
    rawlog.ingest(source, lake, engine="local", mask=MASK)
    assert len([one for path in lake.rglob("*.parquet") for one in _rows(path)]) == 40
    with pytest.raises(OptionError, match=r"that are masked value\.card=hash,key=hash,headers\.user=drop"):
        rawlog.ingest(source, lake, engine="local")
    shutil.copytree(source, tmp_path / "more")
    monkeypatch.setenv("RAWLOG_MASK_SECRET", "another secret")
    with pytest.raises(OptionError, match="another secret"):
        rawlog.ingest(tmp_path / "more", lake, engine="local", mask=MASK)
    with pytest.raises(OptionError, match="only be ingested as"):
        rawlog.ingest(source, tmp_path / "third", engine="local", mask=MASK, tables="kafka.records")


def _rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    return table.to_pylist() if "value" in table.column_names else []


def test_restore_writes_masked_records(source: str, tmp_path: Path) -> None:
    report = rawlog.restore(source, tmp_path / "restored", mask=MASK)
    assert any("masked" in note for note in report.notes)
    rows = rawlog.read(tmp_path / "restored", topic="orders").to_pylist()
    assert [one["offset"] for one in rows if one["partition"] == 1] == list(range(1, 40, 2))
    assert_nowhere(tmp_path / "restored" / "orders-0", b"4111-", b"user-2")
