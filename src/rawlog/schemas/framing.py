"""Which schema a key or a value names, and where its body begins: a prefix of the bytes, or a header of the record.

The prefix is byte 0 and an id of 4 bytes, or byte 1 and a GUID of 16; a header has the same. Bytes that only look like a prefix are common,
so that a framing counts only if its schema is known and the body fits it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

MAGIC_ID, MAGIC_GUID = 0, 1
ID_SIZE, GUID_SIZE = 5, 17
#: How a schema is named: not at all, by an id, by a GUID; or in a way that is damaged.
PLAIN, BY_ID, BY_GUID, TOO_SHORT, BAD_HEADER = range(5)
HEADERS = {"key": b"__key_schema_id", "value": b"__value_schema_id"}


@dataclass(slots=True)
class Framed:
    """A column of keys or values: how each names its schema, its id, and where its body begins and ends in `data`."""

    data: NDArray[np.uint8]
    kind: NDArray[np.int8]
    id: NDArray[np.int64]
    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    #: Of values whose schema is named in a header: the bytes after the name, which are Protobuf's message indexes.
    rest: dict[int, bytes]
    guid: dict[int, bytes]

    def body(self, row: int) -> bytes:
        """The bytes of a body."""
        return self.data[self.start[row] : self.stop[row]].tobytes()


def frame(column: pa.Array, headers: pa.Array | None, side: str) -> Framed:
    """How every value of a binary column names its schema. `side` is key or value; `headers` is the records' column."""
    import pyarrow as pa

    count = len(column)
    _, offsets, buffer = column.buffers()
    places = (
        np.frombuffer(offsets, np.int32, count + 1, column.offset * 4).astype(np.int64)
        if count
        else np.zeros(1, np.int64)
    )
    data = np.frombuffer(buffer, np.uint8) if buffer is not None else np.empty(0, np.uint8)
    start, stop = places[:-1].copy(), places[1:].copy()
    kind = np.zeros(count, np.int8)
    ids = np.full(count, -1, np.int64)
    guid: dict[int, bytes] = {}
    valid = column.is_valid().to_numpy(zero_copy_only=False) if count else np.empty(0, np.bool_)
    rest = {} if headers is None else _by_header(headers, HEADERS[side], kind, ids, guid)
    open_ = valid & (kind == PLAIN) & (stop > start)
    rows = np.flatnonzero(open_)
    first = data[start[rows]] if rows.size else np.empty(0, np.uint8)
    sizes = stop[rows] - start[rows]
    zero = rows[first == MAGIC_ID]
    short = zero[sizes[first == MAGIC_ID] < ID_SIZE]
    framed = zero[sizes[first == MAGIC_ID] >= ID_SIZE]
    kind[short] = TOO_SHORT
    if framed.size:
        at = start[framed]
        ids[framed] = sum(data[at + 1 + byte].astype(np.int64) << (8 * (3 - byte)) for byte in range(4))
        kind[framed] = BY_ID
        start[framed] += ID_SIZE
    for row in rows[(first == MAGIC_GUID) & (sizes >= GUID_SIZE)].tolist():
        guid[row] = data[start[row] + 1 : start[row] + GUID_SIZE].tobytes()
        kind[row] = BY_GUID
        start[row] += GUID_SIZE
    kind[~valid] = PLAIN
    assert isinstance(column, (pa.BinaryArray, pa.StringArray))
    return Framed(data, kind, ids, start, stop, rest, guid)


def _by_header(
    headers: pa.Array, name: bytes, kind: NDArray[np.int8], ids: NDArray[np.int64], guid: dict[int, bytes]
) -> dict[int, bytes]:
    """Fill in what headers name; of several with the name the last counts. The bytes after each name, by row."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rest: dict[int, bytes] = {}
    items = headers.flatten()
    if not len(items):
        return rest
    keys = items.field("key")
    own = pc.equal(
        keys, pa.scalar(name.decode(), keys.type) if pa.types.is_string(keys.type) else pa.scalar(name, keys.type)
    )
    chosen = np.flatnonzero(pc.fill_null(own, False).to_numpy(zero_copy_only=False))
    if not chosen.size:
        return rest
    sizes = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(headers)), sizes)
    values = items.field("value")
    for item in chosen.tolist():
        row, value = int(rows[item]), values[item].as_py()
        value = b"" if value is None else bytes(value)
        guid.pop(row, None)
        rest.pop(row, None)
        if len(value) >= ID_SIZE and value[0] == MAGIC_ID:
            kind[row], ids[row], rest[row] = BY_ID, int.from_bytes(value[1:ID_SIZE], "big"), value[ID_SIZE:]
        elif len(value) >= GUID_SIZE and value[0] == MAGIC_GUID:
            kind[row], guid[row], rest[row] = BY_GUID, value[1:GUID_SIZE], value[GUID_SIZE:]
        else:
            kind[row] = BAD_HEADER
    return rest
