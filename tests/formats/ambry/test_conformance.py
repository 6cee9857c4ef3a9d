"""Log segments and index files show what every format must (`rawlog.testing`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import Kind
from rawlog.formats.ambry.writer import (
    Properties,
    put_message,
    segment_header,
    update_message,
)
from rawlog.io.walk import walk
from rawlog.model.errors import DataError
from rawlog.reading.inspect import inspect_file
from rawlog.testing import FormatTests, formats
from rawlog.testing.formats import rows_of, survives
from tests.data.ambry_stores import STORES, expected, small_messages, store_path
from tests.data.golden import GOLDEN, golden_path
from tests.reference import ambry

AMBRY = GOLDEN / "ambry"
TEXTS = st.one_of(st.just(""), st.text(max_size=12))
TIMES = st.integers(-1, 4_102_444_800_000)


def blob_ids() -> st.SearchStrategy[bytes]:
    def make(version: int, partition: int, name: Any, ids: tuple[int, int, int]) -> bytes:
        text = str(name) if version >= 6 else str(name)[: 1 + partition % 36]
        return keys.make(version, partition, text, datacenter_id=ids[0], account_id=ids[1], container_id=ids[2])

    shorts = st.integers(-1, 32767)
    return st.builds(
        make, st.integers(1, 7), st.integers(0, 2**31 - 1), st.uuids(), st.tuples(st.integers(-1, 127), shorts, shorts)
    )


@st.composite
def puts(draw: st.DrawFn, *, full: bool = True) -> bytes:
    """A PUT of any versions; with `full` false one that `records` shows to the last fact."""
    header, serde, record = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    if not full:
        header, serde, record = 3, 5, 3
    shorts = st.integers(-1, 32767)
    properties = Properties(
        blob_size=draw(st.integers(-1, 2**40)), creation_time=draw(TIMES), content_type=draw(TEXTS), owner_id=draw(TEXTS),
        service_id=draw(TEXTS), is_private=draw(st.booleans()), time_to_live=draw(st.integers(-1, 10**9)),
        account_id=draw(shorts) if serde >= 2 else -1, container_id=draw(shorts) if serde >= 2 else -1,
        is_encrypted=draw(st.booleans()) if serde >= 3 else False, content_encoding=draw(TEXTS) if serde >= 4 else None,
        filename=draw(TEXTS) if serde >= 4 else None, reserved_metadata_blob_id=draw(TEXTS) if serde >= 5 else None,
    )  # fmt: skip
    encryption = draw(st.one_of(st.none(), st.binary(max_size=8))) if full and header >= 2 else None
    return put_message(
        draw(blob_ids()), properties, draw(st.binary(max_size=200)), user_metadata=draw(st.binary(max_size=20)) if full else b"",
        encryption_key=encryption, blob_type=draw(st.integers(0, 1)) if record >= 2 else 0,
        is_compressed=draw(st.booleans()) if record >= 3 else False, life_version=draw(st.integers(0, 9)) if header == 3 else 0,
        header_version=header, properties_version=serde, blob_version=record,
    )  # fmt: skip


@st.composite
def updates(draw: st.DrawFn, *, full: bool = True) -> bytes:
    kind = draw(st.sampled_from([Kind.DELETE, Kind.TTL_UPDATE, Kind.UNDELETE]))
    record = draw(st.integers(1, 3)) if full and kind is Kind.DELETE else 3
    header = draw(st.integers(1, 3)) if full and kind is not Kind.UNDELETE else 3
    shorts = st.integers(-1, 32767)
    return update_message(
        kind, draw(blob_ids()), time=draw(TIMES), account_id=draw(shorts), container_id=draw(shorts),
        new_expiry=draw(st.integers(-1, 2**40)), life_version=draw(st.integers(0, 9)) if header == 3 else 0,
        header_version=header, record_version=record,
    )  # fmt: skip


def logs() -> st.SearchStrategy[bytes]:
    """Whole segments, with and without header."""
    return st.builds(
        lambda head, messages: head + b"".join(messages),
        st.sampled_from([b"", segment_header(1 << 20)]),
        st.lists(st.one_of(puts(), updates()), min_size=1, max_size=6),
    )


def headers_of(message: ambry.Message) -> list[dict[str, Any]]:
    """What `records` shows in its headers, from the reference's reading."""
    known: dict[str, Any] = {"kind": message.kind, "life_version": message.header.life_version}
    found = message.properties
    if message.kind == "PUT":
        for name in ("time_to_live", "is_private", "creation_time"):
            known[name] = found[name]
        known["blob_size"] = found["properties_blob_size"]
        for name in ("content_type", "owner_id", "service_id", "account_id", "container_id", "is_encrypted", "content_encoding",
                     "filename", "reserved_metadata_blob_id"):  # fmt: skip
            known[name] = found[name]
        if found["properties_version"] < 3:
            del known["is_encrypted"]
        known |= {"blob_type": message.blob_type, "is_compressed": message.is_compressed}
    else:
        known |= {"account_id": message.account, "container_id": message.container, "update_time": message.time}
        if message.kind == "TTL_UPDATE":
            known["new_expiry"] = message.new_expiry
    return [
        {"key": name, "value": (str(value).lower() if isinstance(value, bool) else str(value)).encode()}
        for name, value in known.items()
        if value is not None
    ]


def rows_by_table(data: bytes) -> dict[str, list[dict[str, Any]]]:
    tables = ambry.rows_by_table(data)
    for row, message in zip(tables["records"], ambry.decode(data), strict=False):
        if not any("�" in str(value) for value in message.properties.values()):
            row["headers"] = headers_of(message)
    return tables


class TestLog(FormatTests):
    format = "ambry.log"
    golden = tuple(
        path for name in STORES if name != "store-crashed" for path in sorted(store_path(name).glob("*_log"))
    )
    small = (
        segment_header(2048) + b"".join(small_messages()[4:6]),
        golden_path("ambry", "msgs", "put_enc_h2.bin").read_bytes(),
        golden_path("ambry", "msgs", "put_h1.bin").read_bytes()
        + golden_path("ambry", "msgs", "undelete_h3.bin").read_bytes(),
    )
    everything = GOLDEN
    name = "0_0_log"

    def header(self, data: bytes) -> int:
        return 18 if data[:2] == b"\0\0" else 0

    def least(self, data: bytes) -> int:
        return 18 if data[:2] == b"\0\0" else 2

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        known = [message for message in expected(path.parent.name)["messages"] if message["segment"] == path.name]
        names = ("size", "kind", "life_version", "blob_id", "uuid", "crc_ok")
        return {"ambry.messages": [{"position": one["offset"], **{name: one[name] for name in names}} for one in known]}

    def reference(self, data: bytes) -> dict[str, list[dict[str, Any]]]:
        return rows_by_table(data)

    def _told_by_bytes(self, expected: list[dict[str, Any]]) -> list[str]:
        return [name for name in super()._told_by_bytes(expected) if name != "offset"]  # segments stand end to end

    def samples(self) -> st.SearchStrategy[bytes]:
        return logs()

    def owns(self, path: Path) -> bool | None:
        if AMBRY / "msgs" in path.parents or path == store_path("store-crashed") / "5_0_log":
            return None  # single messages are logs without header; a cut log is tested with its store
        return path in self.golden or (path.parent == store_path("store-crashed") and path.name.endswith("_log"))

    def protected(self, data: bytes) -> Iterable[int]:
        """All but the keys, which no checksum covers."""
        free = set()
        for message in ambry.decode(data):
            start = message.position + message.header.size
            free |= set(range(start, start + len(message.key.raw)))
        return (position for position in range(len(data)) if position not in free)

    def test_golden_files_are_written_again_byte_for_byte(self, tmp_path: Path) -> None:
        """`records` has no place for user metadata and encryption keys: `test_writing.py` writes whole stores byte for byte."""

    def records(self) -> st.SearchStrategy[tuple[dict[str, str], list[dict[str, Any]]]]:
        def rows(messages: list[bytes]) -> tuple[dict[str, str], list[dict[str, Any]]]:
            data = segment_header(1 << 20) + b"".join(messages)
            found = ambry.decode(data)
            return {"capacity": str(1 << 20)}, [{**ambry.record_row(one), "headers": headers_of(one)} for one in found]

        return st.lists(st.one_of(puts(full=False), updates(full=False)), max_size=5).map(rows)


class TestIndex(FormatTests):
    """`position` is where an entry points in the log, not where it is: checks of places outside of the file need that."""

    format = "ambry.index"
    golden = tuple(path for name in STORES for path in sorted(store_path(name).glob("*_index")))
    small = tuple((store_path("store-small") / name).read_bytes() for name in ("0_0_18_index", "0_0_1090_index"))
    everything = GOLDEN
    name = "0_0_18_index"

    @pytest.fixture(autouse=True)
    def _positions_are_those_of_the_log(self, monkeypatch: pytest.MonkeyPatch) -> None:
        inside = formats._inside
        monkeypatch.setattr(
            formats, "_inside", lambda rows, size: inside([row for row in rows if "original_offset" not in row], size)
        )

    def header(self, data: bytes) -> int:
        return 30 + len(ambry.read_key(data, 26, len(data)).raw) if data else 0

    def least(self, data: bytes) -> int:
        return len(data) + 1  # an index that is cut is no index: Ambry writes it whole or not at all

    def expected(self, path: Path) -> dict[str, list[dict[str, Any]]]:
        known = next(file for file in expected(path.parent.name)["index_files"] if file["file"] == path.name)
        return {
            "ambry.index": [
                {
                    "key": bytes.fromhex(one["key_hex"]),
                    "kind": one["type"],
                    "position": one["offset"],
                    "size": one["size"],
                }
                for one in known["entries"]
            ]
        }

    def protected(self, data: bytes) -> Iterable[int]:
        return range(len(data))

    def test_a_file_cut_at_any_byte_gives_its_whole_frames(self, scratch: Path) -> None:
        """Any cut is damage: the closing checksum is missing."""
        for data in self.small:
            for cut in range(1, len(data)):
                piece = self.put(scratch, data[:cut])
                assert survives(piece, self.subject).errors, f"cut at {cut}"
                if cut != self.header(data) + 8:  # that is an index without entries
                    with pytest.raises(DataError):
                        rows_of(piece, "ambry.index")

    def test_whole_frames_read_alone_are_the_same_frames(self, scratch: Path) -> None:
        """Not for index files: the last entry is followed by the checksum of them all."""

    def test_whole_frames_of_any_bytes_read_alone_are_the_same(self) -> None:
        """As above."""

    def test_damage_in_one_place_costs_no_frame_before_it(self) -> None:
        """Frames are of one size: damage anywhere costs none."""

    def test_golden_files_are_sound(self) -> None:
        for path in self.golden:
            [file] = self.open(path).files
            findings = inspect_file(file)
            assert not list(findings)
            [row] = self.open(path).table("files").to_arrow().to_pylist()
            assert (row["state"], row["valid_size"]) == ("ok", file.size - 8)  # the closing checksum is no entry

    @pytest.mark.parametrize("window", [1, 64, 105, 154, 1000])
    def test_small_windows_equal_the_whole(self, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """Also where a window ends eight bytes after an entry, which are not the closing checksum."""
        whole = [rows_of(self.open(path), "ambry.index") for path in self.golden[:6]]
        monkeypatch.setitem(walk.__kwdefaults__ or {}, "window", window)
        assert [rows_of(self.open(path), "ambry.index") for path in self.golden[:6]] == whole
