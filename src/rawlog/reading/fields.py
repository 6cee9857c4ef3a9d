"""Fields of values: `value.user.name`, `value.items[0]` of JSON texts, `headers.trace` of headers, as columns of text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog.kernels import MODE, byte_view, grammar
from rawlog.kernels import gather as kernels
from rawlog.kernels.columns import nullable_spans
from rawlog.model.errors import OptionError
from rawlog.model.status import OK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from rawlog.model.table import Step


def field_of(column: pa.Array, steps: tuple[Step, ...]) -> pa.Array:
    """A field of every value of a column as text: strings without quotes, anything else as JSON; null where there is none.

    A column of headers has a field for each name: the value of the last header with it.
    """
    if pa.types.is_list(column.type):
        return _header(column, ".".join(map(str, steps)))
    if pa.types.is_struct(column.type):
        return _nested_field(column, steps)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return _json_field(column, steps)


def _json_field(column: pa.Array, steps: tuple[Step, ...]) -> pa.Array:
    count = len(column)
    _, offsets, buffer = column.buffers()
    if not count or buffer is None:
        return pa.nulls(count, pa.string())
    places = np.frombuffer(offsets, np.int32, count + 1, column.offset * 4).astype(np.int64)
    data = byte_view(buffer)
    names = [step.encode() if isinstance(step, str) else b"" for step in steps]
    numbers = np.array([step if isinstance(step, int) else -1 for step in steps], np.int64)
    edges = np.cumsum([0, *map(len, names)], dtype=np.int64)
    begins, ends, kinds = np.empty((3, count), np.int64)
    starts, stops = places[:-1].copy(), places[1:].copy()
    kernels.find_fields(data, starts, stops, byte_view(b"".join(names)), edges, numbers, begins, ends, kinds)
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    there = valid & ((kinds == kernels.TEXT) | (kinds == kernels.OTHER))
    text = _as_text(nullable_spans(data, begins, np.where(there, ends - begins, -1)))
    escaped, broken = (np.flatnonzero(valid & (kinds == kind)) for kind in (kernels.ESCAPED, kernels.BROKEN))
    if not escaped.size and not broken.size:
        return text
    values = text.to_pylist()
    for row in escaped.tolist():
        values[row] = _unescape(data[begins[row] : ends[row]].tobytes())
    for row in broken.tolist():
        values[row] = _slow_field(column[row].as_py(), steps)
    return pa.array(values, pa.string())


def _as_text(runs: pa.Array) -> pa.Array:
    """Bytes as text; what is not UTF-8 in them is replaced."""
    try:
        return runs.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if value is None else value.decode("utf-8", "replace") for value in runs.to_pylist()], pa.string()
        )


def _unescape(text: bytes) -> str | None:
    """A string of JSON without its escapes; null if they are not valid."""
    try:
        return _valid(json.loads(b'"' + text + b'"', strict=False))
    except ValueError:
        return None


def _valid(text: str) -> str:
    """A text without halves of characters, which JSON can write and UTF-8 cannot."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Number(str):
    """A number of a JSON text, as it is written there."""

    __slots__ = ()


def _first(members: list[tuple[str, Any]]) -> dict[str, Any]:
    """Of several members with one name the first counts, as the kernel has it."""
    return dict(reversed(members))


def _slow_field(value: bytes | str, steps: tuple[Step, ...]) -> str | None:
    """The field of a text that the kernel does not answer: it has names with escapes, or is not JSON."""
    try:
        field = _at(json.loads(value, object_pairs_hook=_first, parse_float=Number, parse_int=Number), steps)
        if not isinstance(field, dict | list):
            return None if field is None else _valid(field) if isinstance(field, str) else json.dumps(field)
        field = _at(json.loads(value, object_pairs_hook=_first), steps)
        return _valid(json.dumps(field, ensure_ascii=False, separators=(",", ":")))
    except (ValueError, RecursionError):
        return None


def _at(value: Any, steps: tuple[Step, ...]) -> Any:
    """What steps lead to; None if there is nothing."""
    for step in steps:
        is_there = (
            step in value
            if isinstance(step, str) and isinstance(value, dict)
            else isinstance(step, int) and isinstance(value, list) and step < len(value)
        )
        if not is_there:
            return None
        value = value[step]
    return value


def _nested_field(column: pa.Array, steps: tuple[Step, ...]) -> pa.Array:
    """A field of a decoded column. OptionError if it has none of that name."""
    for step in steps:
        if pa.types.is_struct(column.type) and isinstance(step, str):
            if column.type.get_field_index(step) < 0:
                raise OptionError(f"no field {step!r}: there are {', '.join(field.name for field in column.type)}")
            column = pc.struct_field(column, step)
        elif pa.types.is_list(column.type) and isinstance(step, int):
            sizes = pc.list_value_length(column)
            there = pc.greater(sizes, step)
            column = pc.if_else(there, column, pa.nulls(len(column), column.type))
            column = pc.list_element(pc.fill_null(column, [None] * (step + 1)), step)
        else:
            raise OptionError(f"{step!r}: not a field of {column.type}")
    return column


def can_mark(paths: Sequence[tuple[Step, ...]]) -> bool:
    """Whether `marked_fields` takes these paths. Without a compiler Python's own JSON is quicker."""
    return MODE != "plain" and 0 < len(paths) <= grammar.MOST_PATHS and all(paths)


def marked_fields(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    paths: Sequence[tuple[Step, ...]],
    drops: Sequence[bool],
) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64]]:
    """Where the fields are that paths lead to in JSON texts: a table of spans (text, start, end, path, kind), which texts it is whole for,
    and for each text the paths that lead to a field, as bits.
    """
    steps = [step for path in paths for step in path]
    names = [step.encode("utf-8", "surrogatepass") if isinstance(step, str) else b"" for step in steps]
    places = np.cumsum([0, *map(len, names)])
    numbers = [grammar.NAME if isinstance(step, str) else step for step in steps]
    table = np.stack([places[:-1], places[1:], numbers], axis=1).astype(np.int64)
    edges = np.cumsum([0, *map(len, paths)], dtype=np.int64)
    bits = sum(1 << number for number, is_dropped in enumerate(drops) if is_dropped)
    spans, has_fields, done = (
        np.empty((starts.size + 64, 5), np.int64),
        np.zeros(starts.size, np.int64),
        np.zeros(starts.size, np.bool_),
    )
    room, seen, count = np.zeros(grammar.ROOM, np.int64), 0, 0
    while True:
        seen, count, status = grammar.mark_fields(
            byte_view(data), starts, stops, seen, byte_view(b"".join(names)), table, edges, bits, room, spans, count, has_fields, done
        )  # fmt: skip
        if status == OK:
            return spans[:count], done, has_fields
        spans = np.concatenate([spans, np.empty_like(spans)])


def _header(column: pa.Array, name: str) -> pa.Array:
    items = column.flatten()
    values: list[bytes | None] = [None] * len(column)
    if len(items):
        chosen = np.flatnonzero(pc.fill_null(pc.equal(items.field("key"), name), False).to_numpy(zero_copy_only=False))
        sizes = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(column)), sizes)
        for item in chosen.tolist():
            values[rows[item]] = items.field("value")[item].as_py()
    return pa.array(values, pa.binary())
