from __future__ import annotations

import contextlib
import gzip
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from rawlog.io.compression import CODECS, compress, decompress
from rawlog.model.errors import (
    CorruptError,
    DataError,
    OptionError,
    RawlogError,
)

RECORDS = bytes.fromhex(
    "3c000000046b301476616c75652d7a65726f060468310476310468320100001800 0a02010c6e6f2d6b657900"
    "10000504046b3201000c0002060000 00".replace(" ", "")
)
PACKED = [codec for codec in CODECS if codec != "none"]
VECTORS = {  # kafka-log.md, 2.8: made by Kafka's own classes
    "gzip": "1f8b08000000000000ffb361606060c93610294bcc294dd5ad4a2dca6763c93064293364c9306264609060e06262e4c9cbd7cd"
    "4ead641060606561c9060af33030b101f50100d764f2543c000000",
    "snappy": "82534e415050590000000001000000010000003e3cec" + RECORDS.hex(),
    "lz4": "04224d186040823c000080" + RECORDS.hex() + "00000000",
    "zstd": "28b52ffd0058e00100" + RECORDS.hex() + "010000",
}
payloads = st.one_of(
    st.binary(max_size=300),
    st.tuples(st.binary(min_size=1, max_size=20), st.integers(0, 12_000)).map(lambda pair: pair[0] * pair[1]),
)


@pytest.mark.parametrize("codec", VECTORS)
def test_vectors_written_by_kafka(codec: str) -> None:
    assert len(RECORDS) == 60
    assert bytes(decompress(codec, bytes.fromhex(VECTORS[codec]), limit=60)) == RECORDS


@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_framing_is_byte_for_byte_kafkas(codec: str) -> None:
    """Of data that does not shrink; what the compressors make of other data depends on their version."""
    assert bytes(compress(codec, RECORDS)).hex() == VECTORS[codec]


def test_headers_are_those_of_kafkas_writer() -> None:
    assert bytes(compress("gzip", RECORDS))[:10].hex() == "1f8b08000000000000ff"
    assert zstandard.frame_content_size(bytes(compress("zstd", RECORDS))) == -1
    big = bytes(compress("lz4", bytes(200_000)))
    assert big[:7].hex() == "04224d18604082"
    assert lz4.frame.decompress(big) == bytes(200_000)


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=40)
@given(data=payloads)
def test_round_trip_at_exactly_the_limit(codec: str, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, limit=len(data))) == data
    assert bytes(decompress(codec, memoryview(bytearray(packed)), limit=1 << 20)) == data
    if data:
        with pytest.raises(CorruptError, match=f"limit of {len(data) - 1:,} bytes"):
            decompress(codec, packed, limit=len(data) - 1)


@pytest.mark.parametrize("codec", PACKED)
@settings(deadline=None, max_examples=100)
@given(data=st.binary(max_size=80), start=st.booleans())
def test_garbage_only_raises_our_errors(codec: str, data: bytes, start: bool) -> None:
    head = bytes(compress(codec, RECORDS))[:12] if start else b""
    with contextlib.suppress(RawlogError):
        assert len(decompress(codec, head + data, limit=100_000)) <= 100_000


@pytest.mark.parametrize("codec", PACKED)
@settings(deadline=None, max_examples=100)
@given(data=payloads, draw=st.data())
def test_flipped_bytes_only_raise_our_errors(codec: str, data: bytes, draw: st.DataObject) -> None:
    packed = bytearray(compress(codec, data))
    for _ in range(draw.draw(st.integers(1, 3))):
        packed[draw.draw(st.integers(0, len(packed) - 1))] ^= draw.draw(st.integers(1, 255))
    with contextlib.suppress(RawlogError):
        assert len(decompress(codec, packed, limit=300_000)) <= 300_000


@pytest.mark.parametrize("codec", PACKED)
def test_cut_anywhere_is_an_error(codec: str) -> None:
    packed = bytes(compress(codec, RECORDS + bytes(range(256))))
    for stop in range(len(packed)):
        if codec == "snappy" and stop == 16:
            continue  # a stream of no blocks: whole, and without any end mark
        with pytest.raises(DataError):
            decompress(codec, packed[:stop], limit=1 << 20)


def bomb(codec: str) -> bytes:
    zeros = bytes(1 << 20)
    if codec == "zstd":
        return bytes(compress(codec, zeros)) * 64
    return bytes(compress(codec, zeros * 64))


@pytest.mark.parametrize("codec", PACKED)
def test_bombs_are_stopped_at_the_limit(codec: str) -> None:
    with pytest.raises(CorruptError, match="limit of 1,000,000 bytes"):
        decompress(codec, bomb(codec), limit=1_000_000)


def test_declared_sizes_take_no_memory() -> None:
    """Frames that claim terabytes: refused by what their bytes can hold, before anything is allocated."""
    frame = bytearray(zstandard.ZstdCompressor().compress(RECORDS * 10_000))
    assert frame[4] >> 6 == 2
    frame[5:9] = b"\xff\xff\xff\x7f"
    with pytest.raises(CorruptError):
        decompress("zstd", frame, limit=1 << 62)
    with pytest.raises(CorruptError, match="declares"):
        decompress("snappy", b"\xff\xff\xff\xff\x0f\x00\x00", limit=1 << 62)


@pytest.mark.parametrize(
    ("codec", "member"),
    [("gzip", gzip.compress(RECORDS, mtime=0)), ("zstd", zstandard.compress(RECORDS)), ("snappy", None)],
    ids=["gzip", "zstd", "snappy"],
)
def test_concatenated_streams_are_read_through(codec: str, member: bytes | None) -> None:
    member = bytes(compress(codec, RECORDS)) if member is None else member
    assert bytes(decompress(codec, member * 50, limit=3000)) == RECORDS * 50
    with pytest.raises(CorruptError, match="limit of 2,999 bytes"):
        decompress(codec, member * 50, limit=2999)


def test_zstd_skips_skippable_frames() -> None:
    skippable = bytes.fromhex("502a4d1803000000616263")
    assert bytes(decompress("zstd", skippable + zstandard.compress(b"x") + skippable, limit=10)) == b"x"


def test_snappy_without_the_stream_header_is_one_raw_block() -> None:
    raw = bytes(compress("snappy", RECORDS))[20:]
    assert bytes(decompress("snappy", raw, limit=60)) == RECORDS


def test_lz4_header_checksum_of_magic_0_is_wrong_on_purpose() -> None:
    packed = bytes(compress("lz4", RECORDS, broken_lz4_header=True))
    assert packed[:7].hex() == "04224d1860401a"
    assert bytes(decompress("lz4", packed, limit=60, broken_lz4_header=True)) == RECORDS
    with pytest.raises(CorruptError, match="header checksum 1a, 82 expected"):
        decompress("lz4", packed, limit=60)


@pytest.mark.parametrize("content_checksum", [False, True])
@pytest.mark.parametrize("block_checksum", [False, True])
@pytest.mark.parametrize("store_size", [False, True])
def test_lz4_frames_of_the_standard_library(content_checksum: bool, block_checksum: bool, store_size: bool) -> None:
    data = bytes(range(256)) * 2000
    packed = bytearray(
        lz4.frame.compress(
            data,
            block_linked=False,
            block_size=lz4.frame.BLOCKSIZE_MAX256KB,
            content_checksum=content_checksum,
            block_checksum=block_checksum,
            store_size=store_size,
        )
    )
    assert bytes(decompress("lz4", packed, limit=len(data))) == data
    assert bytes(decompress("lz4", packed + b"behind", limit=len(data))) == data  # not read by Kafka either
    if content_checksum:
        packed[-1] ^= 1
        assert bytes(decompress("lz4", packed, limit=len(data))) == data
    if block_checksum:
        packed[-20] ^= 1
        with pytest.raises(CorruptError):
            decompress("lz4", packed, limit=len(data))


@pytest.mark.parametrize("head", ["4040", "8040", "6240", "6140", "6041", "60c0", "6030"])
def test_lz4_headers_that_kafka_refuses(head: str) -> None:
    frame = bytes.fromhex(f"04224d18 {head} 00 00000000")
    with pytest.raises(DataError):
        decompress("lz4", frame, limit=10, broken_lz4_header=True)


@pytest.mark.parametrize(
    ("codec", "levels"), [("gzip", (1, 9)), ("lz4", (1, 9, 17)), ("zstd", (-5, 1, 22)), ("zlib", (-1, 9))]
)
def test_levels(codec: str, levels: tuple[int, ...]) -> None:
    for level in levels:
        assert bytes(decompress(codec, compress(codec, RECORDS, level), limit=60)) == RECORDS
    with pytest.raises(OptionError, match="expected"):
        compress(codec, RECORDS, 99)


def test_unknown_codecs_are_answered_with_known_ones() -> None:
    with pytest.raises(OptionError, match="zstd"):
        decompress("zst", b"", limit=1)
    with pytest.raises(OptionError, match="gzip"):
        compress("gzipp", b"")
    with pytest.raises(OptionError, match="no levels"):
        compress("snappy", b"", 3)


def test_zlib_refuses_what_follows_the_stream() -> None:
    for size in range(1, 12):
        with pytest.raises(CorruptError, match="after the end"):
            decompress("zlib", zlib.compress(b"x") + b"y" * size, limit=10)
