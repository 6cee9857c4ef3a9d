"""Tables made of whole stores: `ambry.blobs`, the state of every blob, and `ambry.chunks`, the parts of large ones."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rawlog.core.errors import DataError, OptionError
from rawlog.core.format import File
from rawlog.core.text import valid_text
from rawlog.formats.ambry.content import parse_metadata
from rawlog.formats.ambry.keys import text_of
from rawlog.formats.ambry.layouts import NONE, Flag, Kind
from rawlog.formats.ambry.properties import text_ids
from rawlog.formats.ambry.store.state import STATES, Fold
from rawlog.formats.ambry.store.store import fold_store, read_messages, stores
from rawlog.formats.ambry.tables import BLOBS, CHUNKS
from rawlog.kernels import columns

ROWS = 1 << 16
METADATA_BLOB = 1


def now_of(options: Mapping[str, str]) -> int:
    """Option `now` in milliseconds: a number, or ISO 8601; the clock if it is not given. OptionError for anything else."""
    text = str(options.get("now", "")).strip()
    if not text:
        return int(time.time() * 1000)
    if re.fullmatch(r"-?[0-9]{1,18}", text):
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
        folded = fold_store(store)
        paths = pa.array([valid_text(file.path) for file in store.logs], pa.string())
        states = folded.states(now)
        known = np.flatnonzero(folded.found >= 0)
        known = known[np.argsort(folded.first[known])]
        for start in range(0, known.size, ROWS):
            yield _batch(folded, states, paths, known[start : start + ROWS])


def _batch(folded: Fold, states: NDArray[np.int8], paths: pa.Array, rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Some blobs as rows."""
    catalog, first, found, put = folded.catalog, folded.first[rows], folded.found[rows], folded.put[rows]
    key_spans = catalog.key_data, catalog.key_start[first], catalog.key_size[first]
    there = put >= 0
    source = np.where(there, put, 0)
    made = {
        "blob_id": text_ids(*key_spans),
        "key": columns.spans(*key_spans),
        "state": pa.array(STATES).take(pa.array(states[rows])),
        "life_version": columns.integers(folded.life_version[found], "int"),
        "ttl_updated": columns.booleans(folded.found_flags[rows] & int(Flag.TTL_UPDATE) != 0),
        "expires_timestamp": _times(folded.found_expires[rows]),
        "account_id": columns.integers(folded.account_id[found], "int"),
        "container_id": columns.integers(folded.container_id[found], "int"),
        "last_operation": _times(folded.time[found]),
        "path": paths.take(pa.array(catalog.segment[source], mask=~there)),
        "position": columns.integers(catalog.offset[source], "bigint", there),
        "blob_size": columns.integers(catalog.content_size[source], "bigint", there),
        "in_log": columns.booleans(there),
    }
    return columns.batch(BLOBS, made, rows.size)


def _times(seconds: NDArray[np.int32]) -> pa.Array:
    known = seconds != NONE
    return columns.timestamps(np.where(known, seconds, 0).astype(np.int64) * 1_000_000, known)


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
