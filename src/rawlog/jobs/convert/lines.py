"""Lines: rows of a table as JSON lines, as `convert` writes them: bytes are text or base64, a time is text.

A block of lines is read by Arrow's own parser where the result is the same. That parser is strict: what it does not accept (a number with
a fraction for a whole one, a time in another form, damage) is read value by value, which is slower and accepts it or says what is wrong.
"""

from __future__ import annotations

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterator
from typing import IO, TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from rawlog.core.tables import Table

BLOCK = 4 << 20
#: Bytes that are not text: an object where others are a string.
BASE64 = re.compile(rb'\{\s*"base64"\s*:\s*"([A-Za-z0-9+/]*={0,2})"\s*\}')
#: A number as only Arrow's parser takes it.
INFINITE = re.compile(rb"[:,\[]\s*-?Inf")
TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?Z$"
ALPHABET = np.zeros(256, np.uint8)
ALPHABET[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")] = np.arange(64)
PAD = ord("=")


def read_lines(file: IO[bytes], table: Table, check: Callable[[list[str]], None]) -> Iterator[pa.RecordBatch]:
    """The rows of a file of JSON lines. `check` is given the names of a row now and then. ValueError, TypeError, KeyError or
    AttributeError for what is no row of the table.
    """
    rest = b""
    while True:
        data = file.read(BLOCK)
        text = rest + data
        whole, _, rest = text.rpartition(b"\n") if data else (text, b"", b"")
        batch = block_at_once(whole, table, check) or block_by_value(whole, table, check)
        if batch is not None:
            yield batch
        if not data:
            return


def block_by_value(whole: bytes, table: Table, check: Callable[[list[str]], None]) -> pa.RecordBatch | None:
    """The rows of some lines, a value at a time; None if there is no row."""
    import pyarrow as pa

    try:
        rows = [json.loads(line) for line in whole.split(b"\n") if line.strip()]
    except RecursionError:
        raise ValueError("values nested too deeply") from None
    if not rows:
        return None
    check(list(rows[0]))
    columns = [pa.array([_value(row.get(one.name), one.type) for row in rows], one.type) for one in table.schema]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def _value(value: Any, type: pa.DataType) -> Any:
    """What JSON says of a value of this type."""
    import pyarrow as pa

    if value is None:
        return None
    if pa.types.is_binary(type):
        return base64.b64decode(value["base64"], validate=True) if isinstance(value, dict) else value.encode()
    if pa.types.is_timestamp(type):
        from rawlog.core.times import parse_time

        return parse_time(value)
    if pa.types.is_list(type):
        return [_value(one, type.value_type) for one in value]
    if pa.types.is_struct(type):
        return {one.name: _value(value.get(one.name), one.type) for one in type}
    return value


# All at once -------------------------------------------------------------------------------------------------------


class _Otherwise(Exception):
    """Something that is left to the slower way."""


def block_at_once(whole: bytes, table: Table, check: Callable[[list[str]], None]) -> pa.RecordBatch | None:
    """The rows of some lines, read by Arrow; None where that might not come to what `block_by_value` says."""
    import pyarrow as pa
    import pyarrow.json

    # An object on each line and nothing else: between the rows of a block there can be no other `}` and `{` on two lines.
    count = whole.count(b"\n") + 1
    if not (whole.startswith(b"{") and whole.endswith(b"}") and whole.count(b"}\n{") == count - 1):
        return None
    if b"Inf" in whole and INFINITE.search(whole):
        return None
    mark = f"\0{uuid.uuid4().hex}"  # none of the values begins with it
    text = BASE64.sub(rb'"\\u0000' + mark[1:].encode() + rb'\1"', whole) if b'"base64"' in whole else whole
    try:
        if not whole.isascii():
            whole.decode()  # Arrow looks at values only, and only at those of its columns
        schema = pa.schema([(one.name, _as_text(one.type)) for one in table.schema])
        rows = pyarrow.json.read_json(
            pa.BufferReader(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        ).combine_chunks()
        if rows.num_rows != count:
            return None
        check(list(json.loads(whole.partition(b"\n")[0])))
        columns = [_typed(rows.column(one.name).combine_chunks(), one.type, mark) for one in table.schema]
        return pa.RecordBatch.from_arrays(columns, schema=table.schema)
    except (_Otherwise, pa.ArrowException, ValueError, RecursionError):
        return None


def _as_text(type: pa.DataType) -> pa.DataType:
    """The type as which Arrow reads a column: bytes and times are text first."""
    import pyarrow as pa

    if pa.types.is_binary(type) or pa.types.is_timestamp(type):
        return pa.string()
    if pa.types.is_list(type):
        return pa.list_(_as_text(type.value_type))
    if pa.types.is_struct(type):
        return pa.struct([(one.name, _as_text(one.type)) for one in type])
    if pa.types.is_map(type):
        raise _Otherwise
    return type


def _typed(array: pa.Array, type: pa.DataType, mark: str) -> pa.Array:
    """What was read as text, as what it is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_list(type):
        values = _typed(array.values, type.value_type, mark)
        return pa.ListArray.from_arrays(array.offsets, values, type=type, mask=array.is_null())
    if pa.types.is_struct(type):
        fields = [_typed(array.field(number), one.type, mark) for number, one in enumerate(type)]
        return pa.StructArray.from_arrays(fields, fields=list(type), mask=array.is_null())
    if pa.types.is_timestamp(type):
        if pc.all(pc.match_substring_regex(array, TIME), min_count=0).as_py() is False:
            raise _Otherwise
        return array.cast(type)
    if not pa.types.is_string(array.type):
        return array
    marked = pc.fill_null(pc.starts_with(array, mark), False)
    if not pc.any(marked, min_count=0).as_py():
        return array.cast(type)
    if not pa.types.is_binary(type):
        raise _Otherwise
    decoded = decoded_base64(pc.utf8_slice_codeunits(array.filter(marked), len(mark)))
    return pc.replace_with_mask(array.cast(type), marked, decoded)


def decoded_base64(texts: pa.Array) -> pa.Array:
    """Bytes of texts in base64, whose letters are right and whose padding is at the end. _Otherwise for a text that ends too early."""
    import pyarrow as pa

    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
    sizes = np.diff(offsets)
    if (sizes % 4).any():
        raise _Otherwise
    data = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    ends = offsets[1:] - offsets[0]
    filled = sizes > 0
    pads = np.zeros(sizes.size, np.int64)
    pads[filled] = (data[ends[filled] - 1] == PAD).astype(np.int64) + (data[ends[filled] - 2] == PAD)
    made = _threes(data)
    keep, stops = np.ones(made.size, np.bool_), ends // 4 * 3
    keep[stops[pads > 0] - 1] = False
    keep[stops[pads > 1] - 2] = False
    starts = np.zeros(sizes.size + 1, np.int32)
    np.cumsum(sizes // 4 * 3 - pads, out=starts[1:])
    buffers = [None, pa.py_buffer(starts), pa.py_buffer(made[keep])]
    return pa.Array.from_buffers(pa.binary(), sizes.size, buffers)


def _threes(data: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Three bytes for each four letters."""
    fours = ALPHABET[data].reshape(-1, 4)
    made = np.empty((fours.shape[0], 3), np.uint8)
    made[:, 0] = fours[:, 0] << 2 | fours[:, 1] >> 4
    made[:, 1] = fours[:, 1] << 4 | fours[:, 2] >> 2
    made[:, 2] = fours[:, 2] << 6 | fours[:, 3]
    return made.reshape(-1)
