"""Tables made of whole stores: `ambry.blobs`, the state of every blob, and `ambry.chunks`, the parts of large ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from rawlog.errors import DataError, OptionError
from rawlog.format import File
from rawlog.formats.ambry.content import parse_metadata
from rawlog.formats.ambry.keys import text_of
from rawlog.formats.ambry.layouts import NONE, Flag, Kind
from rawlog.formats.ambry.state import state_of
from rawlog.formats.ambry.store import build_ledger, read_messages, stores
from rawlog.formats.ambry.tables import BLOBS, CHUNKS

ROWS = 1 << 16
METADATA_BLOB = 1


def now_of(options: Mapping[str, str]) -> int:
    """Option `now` in milliseconds: a number, or ISO 8601; the clock if it is not given. OptionError for anything else."""
    text = str(options.get("now", "")).strip()
    if not text:
        return int(time.time() * 1000)
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(f"now {text!r}: milliseconds or ISO 8601 expected") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def blobs(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """One row a blob, in order of its first message, as the store would answer at `now`."""
    now = now_of(options)
    for store in stores(files):
        if not store.logs:
            continue
        ledger = build_ledger(store)
        rows: list[dict[str, Any]] = []
        for identity, entries in ledger.blobs.items():
            found = ledger.find(identity)
            if found is None:
                continue
            put = ledger.put_of(identity)
            rows.append(
                {
                    "blob_id": text_of(entries[0].key),
                    "key": entries[0].key,
                    "state": state_of(found, now),
                    "life_version": found.life_version,
                    "ttl_updated": bool(found.flags & Flag.TTL_UPDATE),
                    "expires_timestamp": None if found.expires == NONE else found.expires * 1_000_000,
                    "account_id": found.account_id,
                    "container_id": found.container_id,
                    "last_operation": None if found.time == NONE else found.time * 1_000_000,
                    "path": None if put is None else store.logs[put.segment].path,
                    "position": None if put is None else put.offset,
                    "blob_size": None if put is None else put.content_size,
                    "in_log": put is not None,
                }
            )
            if len(rows) == ROWS:
                yield pa.RecordBatch.from_pylist(rows, schema=BLOBS.schema)
                rows = []
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=BLOBS.schema)


def chunks(files: Sequence[File], options: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
    """One row a chunk of every metadata blob whose content is still there and not encrypted."""
    for store in stores(files):
        for file in store.logs:
            for messages in read_messages(file, check=True, errors="skip"):
                wanted = (messages["kind"] == Kind.PUT) & (messages["blob_type"] == METADATA_BLOB) & messages.sound
                rows: list[dict[str, Any]] = []
                for index in np.flatnonzero(wanted & (messages["zeros"] == 0)).tolist():
                    try:
                        metadata = parse_metadata(messages.span(index, "content"))
                    except DataError:
                        continue  # encrypted, or nobody's: verification says so
                    blob_id = text_of(messages.key(index))
                    rows += [
                        {"blob_id": blob_id, "number": number, "chunk_blob_id": text_of(chunk.key), "size": chunk.size}
                        for number, chunk in enumerate(metadata.chunks)
                    ]
                if rows:
                    yield pa.RecordBatch.from_pylist(rows, schema=CHUNKS.schema)
