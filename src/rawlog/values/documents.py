"""JSON texts: which bytes are one, what values are in it, and fields of it changed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rawlog.kernels.columns import spans
from rawlog.kernels.grammar import check_documents
from rawlog.model.table import EVERY, Step
from rawlog.model.text import safe_json
from rawlog.reading.fields import Number
from rawlog.values.avro import SchemaError, loaded_schema

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: How deeply texts are nested that the kernel checks; Python's parser takes about as much.
DEPTH = 500
SPACE = 0x20
_SPACES = bytes.maketrans(b"\r\n\t", b"   ")
_SPACE_TABLE = np.frombuffer(_SPACES, np.uint8)


# Reading ----------------------------------------------------------------------------------------------------------------


def texts(
    data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], pa.Array]:
    """The runs of bytes that are JSON, by number, and their texts on one line. Python's parser decides what the kernel is not sure of."""
    begins, ends = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    check_documents(data, starts, stops, np.empty(DEPTH, np.uint8), begins, ends)
    sure = np.flatnonzero(ends >= 0)
    numbers, parts = [sure], [_on_one_line(spans(data, begins[sure], ends[sure] - begins[sure]))]
    slow_numbers, slow_texts = [], []
    for number in np.flatnonzero(ends < 0).tolist():
        try:
            slow_texts.append(to_json(data[starts[number] : stops[number]].tobytes()))
            slow_numbers.append(number)
        except ValueError:
            continue
    if slow_numbers:
        numbers.append(np.array(slow_numbers, np.int64))
        parts.append(pa.array(slow_texts, pa.string()))
    return np.concatenate(numbers), pa.concat_arrays(parts)


def _on_one_line(column: pa.Array) -> pa.Array:
    """Texts without line ends and tabs. Inside strings these are escaped, so that all of them are white space between values."""
    _, offsets, values = column.buffers()
    data = np.frombuffer(values or b"", np.uint8)
    if data.size and data.min() < SPACE:
        values = pa.py_buffer(_SPACE_TABLE[data])
    return pa.Array.from_buffers(pa.string(), len(column), [None, offsets, values], 0, column.offset)


def to_json(body: bytes) -> str:
    """A JSON text on one line, its numbers as they are written. ValueError if it is not JSON in UTF-8."""
    text = body.decode("utf-8")
    try:
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return safe_json(body.translate(_SPACES).decode("utf-8").strip())


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


# Writing ----------------------------------------------------------------------------------------------------------------


def json_text(array: pa.Array, form: str | None = "base64") -> pa.Array:
    """The values of an array as JSON text, null as null; binary ones in a form, without one as `rawlog cat` prints them."""
    from rawlog.reading.render import Sink, json_leaf

    sink, places = Sink(), np.empty((2, len(array)), np.int64)
    json_leaf(array.type, form)(array, sink, places[0], places[1])
    starts, stops = places
    if len(array) and sink.filled < 1 << 31 and starts[0] == 0 and np.array_equal(starts[1:], stops[:-1]):
        offsets = np.concatenate(([0], stops)).astype(np.int32)  # one after another: the bytes stay where they are
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(sink.buffer[: sink.filled])]
        return pa.Array.from_buffers(pa.binary(), len(array), buffers).cast(pa.string())
    return spans(sink.buffer[: sink.filled], starts, stops - starts).cast(pa.string())


def fragments(texts: Sequence[str | None] | pa.Array) -> pa.Array:
    """Pieces of JSON that are written as they are."""
    column = texts if isinstance(texts, pa.Array) else pa.array(texts, pa.string())
    return pa.ExtensionArray.from_storage(pa.json_(), column)


def float_text(value: float) -> str:
    """A number as JSON; what JSON does not have is text."""
    if value != value:
        return '"NaN"'
    return '"Infinity"' if value == float("inf") else '"-Infinity"' if value == float("-inf") else json.dumps(value)


# Changing ---------------------------------------------------------------------------------------------------------------


class _Drop:
    """The type of DROP."""


#: What takes the place of something that is left out.
DROP = _Drop()


class Object(list[tuple[str, Any]]):
    """An object of a JSON text: its members in order; a name may be there twice."""


def parsed(text: bytes) -> Any:
    """A JSON text with its numbers as they are written and its objects with all their members. ValueError for other bytes."""
    numbers: dict[str, Any] = dict.fromkeys(("parse_float", "parse_int", "parse_constant"), Number)
    return json.loads(text, object_pairs_hook=Object, **numbers)


def encoded(document: Any, source: bytes) -> bytes:
    """A JSON text in the style of another."""
    style = (", ", ": ") if b'": ' in source else (",", ":")
    try:
        return _dumped(document, *style, encode_basestring).encode()
    except UnicodeEncodeError:  # half of a pair of surrogates
        return _dumped(document, *style, encode_basestring_ascii).encode()


def compact(document: Any) -> str:
    """A value of a JSON text without white space. It may have halves of pairs of surrogates."""
    return _dumped(document, ",", ":", encode_basestring)


def _dumped(node: Any, comma: str, colon: str, quote: Callable[[str], str]) -> str:
    if isinstance(node, Number):
        return str(node)
    if isinstance(node, str):
        return quote(node)
    if isinstance(node, Object):
        members = (f"{quote(name)}{colon}{_dumped(value, comma, colon, quote)}" for name, value in node)
        return f"{{{comma.join(members)}}}"
    if isinstance(node, list):
        return f"[{comma.join(_dumped(item, comma, colon, quote) for item in node)}]"
    return {None: "null", True: "true", False: "false"}[node]


def change_fields(node: Any, steps: tuple[Step, ...], change: Callable[[Any], Any]) -> bool:
    """Change the fields that steps lead to; whether there is one."""
    step, *rest = steps
    has_field = False
    if isinstance(node, Object):
        places = [number for number, (name, _) in enumerate(node) if name == step]
    elif isinstance(node, list) and isinstance(step, int):
        places = [*range(len(node))] if step == EVERY else [step] if step < len(node) else []
    else:
        return False
    for place in reversed(places):
        value = node[place][1] if isinstance(node, Object) else node[place]
        if rest:
            has_field |= change_fields(value, tuple(rest), change)
            continue
        has_field, changed = True, change(value)
        if changed is DROP and isinstance(node, Object):
            del node[place]
        else:
            changed = None if changed is DROP else changed  # the items after it keep their places
            node[place] = (node[place][0], changed) if isinstance(node, Object) else changed
    return has_field


class DocumentCheck:
    """Says whether JSON texts that were changed still fit their JSON Schema."""

    def __init__(self, text: str, referenced: Sequence[tuple[str, str]] = ()) -> None:
        """`referenced` are names and texts of schemas that it uses. SchemaError if it is not a schema."""
        try:
            import jsonschema
            from referencing import Registry, Resource
            from referencing.jsonschema import DRAFT7
        except ImportError:
            raise SchemaError("JSON Schema needs jsonschema: install the extra `schemas`") from None
        schema = loaded_schema(text)
        registry: Any = Registry()
        for name, other in referenced:
            resource = Resource.from_contents(loaded_schema(other), default_specification=DRAFT7)
            registry = registry.with_resources([(name, resource)])
        kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft7Validator)
        try:
            kind.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise SchemaError(str(error).splitlines()[0]) from None
        self.validator = kind(schema, registry=registry)

    def broken(self, before: bytes, after: bytes) -> tuple[str, list[str | int]] | None:
        """What a text does not fit any more after it was changed, and the path that leads there; None if it fits as well as before."""
        from referencing.exceptions import Unresolvable

        try:
            wrong = next(self.validator.iter_errors(json.loads(after)), None)
            if wrong is None or next(self.validator.iter_errors(json.loads(before)), None) is not None:
                return None
        except (Unresolvable, RecursionError):
            return None  # the schema says nothing that can be checked
        return f"{wrong.validator} {json.dumps(wrong.validator_value)[:80]}", list(wrong.absolute_path)
