"""The kernels that write Ambry's messages, with the compiler off, against the way of a single row."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pyarrow as pa

from rawlog.formats.ambry import keys
from rawlog.formats.ambry.kernels.encode import place_messages
from rawlog.formats.ambry.writer import WriteOptions, encode_row
from rawlog.model.table import RECORDS

ENCODER, KERNELS = "rawlog.formats.ambry.writer", "rawlog.formats.ambry.kernels.encode"
TOLD = {
    "life_version": b"3", "time_to_live": b"3600", "is_private": b"true", "creation_time": b"-5", "blob_size": b"12", "content_type": b"",
    "owner_id": b"me", "service_id": b"\xff", "account_id": b"-32768", "container_id": b"32767", "is_encrypted": b"true",
    "content_encoding": b"gzip", "filename": "ä.png".encode(), "reserved_metadata_blob_id": b"AAYA", "blob_type": b"MetadataBlob",
    "is_compressed": b"true", "update_time": b"9", "new_expiry": b"999999999999999999", "unknown": b"x",
}  # fmt: skip


def rows_of_every_kind() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for number, kind in enumerate((b"PUT", b"DELETE", b"TTL_UPDATE", b"UNDELETE", None)):
        headers = [{"key": name, "value": value} for name, value in {**TOLD, "kind": kind}.items()]
        for key in (None, b"key" * 40, keys.make(6, 9, str(uuid.UUID(int=number))), keys.make(3, -1, "any text")):
            place = {"topic": "101/7", "partition": -number, "offset": number << 60, "timestampType": 0}
            rows.append({"key": key, "value": bytes(range(200)) * number, "timestamp": -1, "headers": headers} | place)
            rows.append(dict.fromkeys(RECORDS.names) | {"key": key, "headers": headers[-1:]})
    rows.append({**rows[0], "headers": [{"key": "blob_size", "value": b"+1"}]})
    return rows


def test_messages_are_those_of_single_rows(plain: Any) -> None:
    rows, choice = rows_of_every_kind(), WriteOptions(partition=-(1 << 63), service="s" * 40)
    batch = pa.RecordBatch.from_pylist(rows, schema=RECORDS.schema)
    frames, _ = plain(ENCODER, "encode_part", batch, 7, choice)
    made = [frames.data[start:stop].tobytes() for start, stop in zip(frames.starts, frames.stops, strict=True)]
    assert made == [encode_row(row, 7 + number, choice) for number, row in enumerate(rows)]


def test_messages_are_placed_alike(plain: Any) -> None:
    sizes = np.array([100, 200, 700, 1, 982, 1, 500], np.int64)
    room = [np.empty(sizes.size, np.int64) for _ in range(2)]
    reached = place_messages(sizes, 5, 900, 1000, 18, *room)
    assert [one.tolist() for one in room] == [[0, 1, 1, 1, 2, 3, 3], [905, 1023, 1223, 1923, 1942, 2942, 2943]]
    again, left = plain(KERNELS, "place_messages", sizes, 5, 900, 1000, 18, *(np.empty_like(one) for one in room))
    assert tuple(again) == tuple(reached) == (2924, 519)
    assert [one.tolist() for one in left[-2:]] == [one.tolist() for one in room]
