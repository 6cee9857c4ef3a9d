"""Fields: decoded values as nested columns in a table that holds many topics: one struct with a column for each topic.

Text of JSON next to it has every value as it was written. A column of a topic has the fields of its newest schema, and keeps those that
it had before: it only grows. A topic whose schema became something else, or that has none, is in the texts only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rawlog.values.avro import SchemaError
from rawlog.values.avro_values import Reader
from rawlog.values.protobuf_values import MessageReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rawlog.values.decode import Decoding

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
        return Fields(self.side, {name: self.readers[name] for name in topics if name in self.readers}, self.types)

    def joined(self, present: pa.DataType | None) -> tuple[Fields, list[str]]:
        """The same with the columns that a table has already, and notes on topics that get none."""
        had = {} if present is None else {column.name: column.type for column in present}
        room = MOST_LEAVES - sum(map(leaves, had.values()))
        types: dict[str, pa.DataType] = {}
        names = {name.lower(): name for name in had}
        notes, full = [], []
        for topic in sorted(self.readers, key=lambda name: (name not in had, name)):
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
        notes = [f"--decode: {note}; {self.side}_json has the values" for note in notes]
        return Fields(self.side, {topic: self.readers[topic] for topic in types}, types), notes

    def column(self, decoding: Decoding) -> pa.Array:
        """The struct for rows that were decoded with the readers."""
        children = []
        for column in self.arrow:
            values = decoding.topic_values(column.name, self.readers[column.name].arrow)
            children.append(values if values.type == column.type else values.cast(column.type))
        return pa.StructArray.from_arrays(children, fields=list(self.arrow), mask=pa.array(~decoding.has_columns()))

    def missed(self, topics: pa.Array, rows: NDArray[np.bool_]) -> int:
        """How many of some rows are of topics with columns."""
        if not rows.any():
            return 0
        names = topics.dictionary_decode() if pa.types.is_dictionary(topics.type) else topics
        return int(pc.is_in(names.filter(pa.array(rows)), value_set=pa.array(sorted(self.readers))).true_count)


def join(first: pa.DataType, second: pa.DataType, place: str = "") -> pa.DataType:
    """A type that can hold values of both: structs have the fields of both. SchemaError if there is none."""
    types = pa.types
    if first.equals(second):
        return first
    if types.is_struct(first) and types.is_struct(second):
        lower = {field.name.lower() for field in first}
        fields = {field.name: field.type for field in first}
        for added in second:
            name = added.name
            if name not in fields and name.lower() in lower:
                raise SchemaError(f"{place}.{name} differs from another field only in case".lstrip("."))
            fields[name] = join(fields[name], added.type, f"{place}.{name}") if name in fields else added.type
        return pa.struct(list(fields.items()))
    if types.is_list(first) and types.is_list(second):
        return pa.list_(pa.field("element", join(first.value_type, second.value_type, place)))
    if types.is_map(first) and types.is_map(second) and first.key_type == second.key_type:
        return pa.map_(first.key_type, join(first.item_type, second.item_type, place))
    if types.is_decimal128(first) and types.is_decimal128(second) and first.scale == second.scale:
        return max(first, second, key=lambda type: int(type.precision))
    for narrow, wide in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64())):
        if {first, second} == {narrow, wide}:
            return wide
    raise SchemaError(f"{place.lstrip('.') or 'the value'} is {first} there and {second} now")


def leaves(type: pa.DataType) -> int:
    """The columns of a type in Parquet."""
    inner = [type.field(number).type for number in range(type.num_fields)]
    return sum(map(leaves, inner)) if inner else 1
