"""The golden stores of Ambry, what is known of them, and the small one as a list of operations."""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any

import lz4.block
import zstandard

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.layouts import CHUNK_SIZE, Kind
from rawlog.formats.ambry.store.rewrite import StoreWriter, Style
from rawlog.formats.ambry.store.store import BlobStore, with_logs
from rawlog.formats.ambry.structures import Chunk
from rawlog.formats.ambry.writer import Properties, put_message, update_message
from rawlog.io.output import Folder
from rawlog.reading.tree import open_tree
from tests.data.golden import golden_path

STORES = ("store-small", "store-ops", "store-compacted", "store-crashed")
CLOCK, STEP = 1_596_413_000_000, 1500
KEY_VERSIONS = {3: 5, 6: 7}
#: kind, number of the blob, then size and time to live of a PUT or the life version of an update (specification §18.7).
OPERATIONS: tuple[tuple[Any, ...], ...] = (
    (Kind.PUT, 1, 30, -1), (Kind.PUT, 2, 40, 604800), (Kind.PUT, 3, 50, -1), (Kind.PUT, 0xF0000004, 60, 604800),
    (Kind.DELETE, 1, 0), (Kind.TTL_UPDATE, 2, 0), (Kind.UNDELETE, 1, 1), (Kind.PUT, 5, 700, -1), (Kind.DELETE, 1, 1),
    (Kind.DELETE, 2, 0), (Kind.PUT, 6, 800, -1), (Kind.PUT, 7, 10, -1), (Kind.UNDELETE, 2, 1), (Kind.PUT, 8, 20, -1),
    (Kind.DELETE, 7, 0),
)  # fmt: skip


def open_store(path: str | Path) -> BlobStore:
    """The one store in a directory."""
    [found] = with_logs(list(open_tree(str(path))))
    return found


def store_path(name: str) -> Path:
    return golden_path("ambry", name)


@lru_cache(maxsize=8)
def expected(name: str) -> dict[str, Any]:
    return json.loads((store_path(name) / "expected.json").read_text())  # type: ignore[no-any-return]


def copy_store(name: str, target: Path) -> Path:
    """A copy to break, without what only tests know."""
    shutil.copytree(store_path(name), target, ignore=shutil.ignore_patterns("expected.json"))
    return target


def small_key(number: int) -> bytes:
    version = KEY_VERSIONS.get(number, 6)
    name = f"{number:08x}-1234-4abc-8def-{number:012x}"
    return keys.make(version, 9, name, datacenter_id=2, account_id=101, container_id=7)


def small_messages() -> list[bytes]:
    """The messages of store-small, from its operations."""
    made, clock = [], CLOCK
    for kind, number, *rest in OPERATIONS:
        key = small_key(number)
        if kind is Kind.PUT:
            size, ttl = rest
            properties = Properties(
                blob_size=size, creation_time=clock, time_to_live=ttl, content_type="image/png", owner_id="own", service_id="svc",
                account_id=101, container_id=7,
            )  # fmt: skip
            content = bytes((7 * index + size) % 256 for index in range(size))
            made.append(put_message(key, properties, content, user_metadata=b"um"))
        else:
            made.append(update_message(kind, key, time=clock, account_id=101, container_id=7, life_version=rest[0]))
        clock += STEP
    return made


def write_small(target: Path) -> Path:
    """store-small, written by us."""
    target.mkdir()
    identity = "c9ab3df3-3b6c-4f48-a3de-7ae4047b5c88"
    with StoreWriter(Folder(target), capacity=2048, style=Style(max_entries=5), incarnation_id=identity) as writer:
        for message in small_messages():
            writer.append(message)
        writer.close()
    return target


def make_metadata(version: int, chunks: list[Chunk], chunk_size: int | None = None) -> bytes:
    """The content of a metadata blob."""
    total = sum(chunk.size for chunk in chunks)
    if version == 3:
        body = b"".join(chunk.size.to_bytes(CHUNK_SIZE, "big") + chunk.key for chunk in chunks)
        return (3).to_bytes(2, "big") + total.to_bytes(8, "big") + len(chunks).to_bytes(4, "big") + body
    size = chunk_size or chunks[0].size
    return (2).to_bytes(2, "big") + size.to_bytes(4, "big") + total.to_bytes(8, "big") + b"".join(c.key for c in chunks)


def make_envelope(algorithm: str, content: bytes) -> bytes:
    """Content compressed as the router does: with LZ4 or ZSTD."""
    packed = lz4.block.compress(content, store_size=False) if algorithm == "LZ4" else zstandard.compress(content)
    return bytes([1, len(algorithm)]) + algorithm.encode() + len(content).to_bytes(4, "big") + packed
