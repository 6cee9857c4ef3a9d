"""Fields: decoded values as nested columns in a table that holds many topics: one struct with a column for each topic.

Text of JSON next to it has every value as it was written. A column of a topic has the fields of its newest schema, and keeps those that
it had before: it only grows. A topic whose schema became something else, or that has none, is in the texts only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rawlog.kernels.columns import spans
from rawlog.kernels.grammar import check_documents
from rawlog.model.text import safe_json
from rawlog.values.avro import SchemaError
from rawlog.values.avro_columns import Reader
from rawlog.values.protobuf_columns import MessageReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.values.decode import Decoder


#: Columns that all topics of a table may have together: each costs something in every data file.
MOST_LEAVES = 2000


@dataclass(frozen=True)
class Fields:
    """The nested columns of a side. `types` are those of the table: what it has for these topics, and what their schemas add."""

    side: str
    readers: Mapping[str, Reader | MessageReader]
    types: Mapping[str, pa.DataType] = field(default_factory=dict)

    @property
    def arrow(self) -> pa.DataType:
        """The type of the struct."""
        return pa.struct([pa.field(topic, self.type_of(topic)) for topic in sorted(self.readers)])

    def type_of(self, topic: str) -> pa.DataType:
        """The type of a topic's column."""
        return self.types.get(topic, self.readers[topic].arrow)

    def only(self, topics: Sequence[str]) -> Fields:
        """The same for some topics."""
        return Fields(self.side, {one: self.readers[one] for one in topics if one in self.readers}, self.types)

    def joined(self, present: pa.DataType | None) -> tuple[Fields, list[str]]:
        """The same with the columns that a table has already, and notes on topics that get none."""
        had = {} if present is None else {one.name: one.type for one in present}
        room = MOST_LEAVES - sum(map(leaves, had.values()))
        types: dict[str, pa.DataType] = {}
        names = {one.lower(): one for one in had}
        notes, full = [], []
        for topic in sorted(self.readers, key=lambda one: (one not in had, one)):
            if (other := names.setdefault(topic.lower(), topic)) != topic:
                notes.append(f"{self.side}_fields has no column for topic {topic}: only case differs from {other}")
                continue
            try:
                joined = join(had[topic], self.readers[topic].arrow) if topic in had else self.readers[topic].arrow
            except SchemaError as error:
                notes.append(f"{self.side}_fields of topic {topic} is not filled: the lake has other columns: {error}")
                continue
            more = leaves(joined) - (leaves(had[topic]) if topic in had else 0)
            if more > room:
                full.append(topic)
                continue
            room -= more
            types[topic] = joined
        if full:
            shown = ", ".join(full[:3]) + (f" and {len(full) - 3:,} more" if len(full) > 3 else "")
            notes.append(f"{self.side}_fields has no room for more than {MOST_LEAVES:,} columns: without {shown}")
        notes = [f"--decode: {one}; {self.side}_json has the values" for one in notes]
        return Fields(self.side, {one: self.readers[one] for one in types}, types), notes

    def values(
        self, decoder: Decoder, raw: pa.Array, headers: pa.Array | None, topics: pa.Array
    ) -> tuple[pa.Array, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
        """The struct for rows, and which rows have a value in it."""
        encoded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        numbers = {name: code for code, name in enumerate(encoded.dictionary.to_pylist())}
        count, made = len(raw), []
        has_value = np.zeros(count, np.bool_)
        for one in self.arrow:
            code = numbers.get(one.name)
            rows = np.flatnonzero(codes == code) if code is not None else ()
            if not len(rows):
                made.append(pa.nulls(count, one.type))
                continue
            every = len(rows) == count
            some = pa.array(rows)
            found = decoder.decode(
                raw if every else raw.take(some),
                headers if every or headers is None else headers.take(some),
                topics if every else topics.take(some),
                self.side,
                self.readers[one.name],
            )
            values = found.values(self.readers[one.name].arrow)
            values = values if values.type == one.type else values.cast(one.type)
            has_value[rows] = found.is_decoded
            if not every:
                place = np.full(count, -1, np.int64)
                place[rows] = np.arange(len(rows))
                values = values.take(pa.array(place, mask=place < 0))
            made.append(values)
        return pa.StructArray.from_arrays(made, fields=list(self.arrow), mask=pa.array(~has_value)), has_value

    def missed(self, topics: pa.Array, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
        """How many of some rows are of topics with columns."""
        import pyarrow.compute as pc

        if not rows.any():
            return 0
        names = topics.dictionary_decode() if pa.types.is_dictionary(topics.type) else topics
        return int(pc.is_in(names.filter(pa.array(rows)), value_set=pa.array(sorted(self.readers))).true_count)


def join(one: pa.DataType, two: pa.DataType, place: str = "") -> pa.DataType:
    """A type that can hold values of both: structs have the fields of both. SchemaError if there is none."""
    types = pa.types
    if one.equals(two):
        return one
    if types.is_struct(one) and types.is_struct(two):
        lower = {field.name.lower() for field in one}
        made = {field.name: field.type for field in one}
        for added in two:
            name = added.name
            if name not in made and name.lower() in lower:
                raise SchemaError(f"{place}.{name} differs from another field only in case".lstrip("."))
            made[name] = join(made[name], added.type, f"{place}.{name}") if name in made else added.type
        return pa.struct(list(made.items()))
    if types.is_list(one) and types.is_list(two):
        return pa.list_(pa.field("element", join(one.value_type, two.value_type, place)))
    if types.is_map(one) and types.is_map(two) and one.key_type == two.key_type:
        return pa.map_(one.key_type, join(one.item_type, two.item_type, place))
    if types.is_decimal128(one) and types.is_decimal128(two) and one.scale == two.scale:
        return max(one, two, key=lambda type: int(type.precision))
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {one, two} == {narrow, wide}:
            return wide
    raise SchemaError(f"{place.lstrip('.') or 'the value'} is {one} there and {two} now")


def leaves(type: pa.DataType) -> int:
    """The columns of a type in Parquet."""
    inner = [type.field(number).type for number in range(type.num_fields)]
    return sum(map(leaves, inner)) if inner else 1


# ----------------------------------------------------------------------------------------------------------------------
# Values that are JSON texts: checked, and on one line.


#: How deeply texts are nested that the kernel checks; Python's parser takes about as much.
DEPTH = 500
SPACE = 0x20
_SPACES = bytes.maketrans(b"\r\n\t", b"   ")
_SPACE_TABLE = np.frombuffer(_SPACES, np.uint8)


def texts(
    data: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> tuple[NDArray[np.int64], pa.Array]:
    """The runs of bytes that are JSON, by number, and their texts. Python's parser decides what the kernel is not sure of."""
    begins, ends = np.empty(starts.size, np.int64), np.empty(starts.size, np.int64)
    check_documents(data, starts, stops, np.empty(DEPTH, np.uint8), begins, ends)
    sure = np.flatnonzero(ends >= 0)
    found = spans(data, begins[sure], ends[sure] - begins[sure])
    numbers, parts = [sure], [_on_one_line(found)]
    slow, more = [], []
    for number in np.flatnonzero(ends < 0).tolist():
        try:
            more.append(to_json(data[starts[number] : stops[number]].tobytes()))
            slow.append(number)
        except ValueError:
            continue
    if slow:
        numbers.append(np.array(slow, np.int64))
        parts.append(pa.array(more, pa.string()))
    return np.concatenate(numbers), pa.concat_arrays(parts)


def _on_one_line(found: pa.Array) -> pa.Array:
    """Texts without line ends and tabs. Inside strings these are escaped, so that all of them are white space between values."""
    _, offsets, values = found.buffers()
    data = np.frombuffer(values or b"", np.uint8)
    if data.size and data.min() < SPACE:
        values = pa.py_buffer(_SPACE_TABLE[data])
    return pa.Array.from_buffers(pa.string(), len(found), [None, offsets, values], 0, found.offset)


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
