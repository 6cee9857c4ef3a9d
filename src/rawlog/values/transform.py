"""Decode: the change of rows that puts decoded keys and values into the place of their bytes, for every verb and engine.

`value` becomes JSON text, as each value was written: or a nested column, where all rows are of one topic with an Avro schema. Next to it
are `value_schema` (id, subject, version) and `value_error` (why a value was not decoded). Nothing is lost: in JSON text such a value is
what `rawlog cat` prints for its bytes, and next to a nested column or text its bytes are in `value_raw`. A lake keeps the bytes, and gets
JSON texts and the nested columns of each topic (`value_fields`) next to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rawlog import registry
from rawlog.model.errors import OptionError, unknown
from rawlog.model.finding import Finding, Severity
from rawlog.model.table import (
    JSON,
    RECORDS,
    Column,
    Table,
    spark_type,
)
from rawlog.model.text import counted, text_of
from rawlog.values import avro, protobuf
from rawlog.values.avro import SchemaError
from rawlog.values.avro_values import Reader
from rawlog.values.decode import HOW, DecodedValues, ValueDecoder
from rawlog.values.documents import json_text
from rawlog.values.mask import SchemaMask
from rawlog.values.protobuf_values import MessageReader
from rawlog.values.reasons import (
    NOT_TEXT,
    REASONS,
    SIDES,
    Undecoded,
    code,
)
from rawlog.values.registry import TOPIC, Catalog, Version, catalog_for

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rawlog.model.format import File
    from rawlog.reading.select import Selection, Tally, Transform
    from rawlog.reading.tree import Tree

#: Places of values that were not decoded are kept up to this number, for each reason and split.
MOST_PLACES = 3
#: The ways to decode that may give nested columns.
COLUMNS = ("auto", "avro", "protobuf")
WRITTEN, LATEST = "written", "latest"
#: Counted next to the reasons: values that are decoded, and not in the columns of their topic.
TEXT_ONLY = "text only"
#: Values that are bytes as they are because nothing names a schema for them.
NO_SCHEMA = "no schema"
SCHEMA_TYPE = "struct<id:int,subject:string,version:int>"
#: Columns that all topics of a table may have together: each costs something in every data file.
MOST_LEAVES = 2000


@dataclass(frozen=True, slots=True)
class Wish:
    """How a side is decoded. `version` is that of the reader schema: a number, `latest`; `written` for JSON text; None as it fits."""

    how: str
    version: str | int | None = None

    def __str__(self) -> str:
        return self.how if self.version is None else f"{self.how}@{self.version}"


def parse_decode(sides: str | Sequence[str] | Mapping[str, str]) -> dict[str, Wish]:
    """`value=auto,key=avro@3` -> how each side is decoded. OptionError for anything else."""
    if isinstance(sides, Mapping):
        parts = [f"{side}={how}" for side, how in sides.items()]
    else:
        parts = [part for text in ([sides] if isinstance(sides, str) else sides) for part in text.split(",")]
    wishes: dict[str, Wish] = {}
    for part in parts:
        side, mark, text = (word.strip() for word in part.partition("="))
        if not mark:
            side, text = "value", side
        if side not in SIDES:
            raise unknown("side", side, SIDES)
        if side in wishes:
            raise OptionError(f"--decode: {side} is given twice")
        how, mark, version = text.partition("@")
        if how not in HOW:
            raise unknown("way to decode", how, HOW)
        wishes[side] = Wish(how, _version(part, how, version) if mark else None)
    if not wishes:
        raise OptionError("--decode: such as value=auto expected")
    return wishes


def _version(part: str, how: str, text: str) -> str | int:
    if how not in COLUMNS:
        raise OptionError(f"--decode {part}: versions of a schema go with {', '.join(COLUMNS)}")
    if text in (WRITTEN, LATEST):
        return text
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise OptionError(f"--decode {part}: {LATEST}, {WRITTEN} or the number of a version expected after @")
    return int(text)


def added_columns(side: str) -> list[Column]:
    """The columns next to the bytes of a side."""
    return [
        Column(f"{side}_json", "string", "decoded, as JSON text; null where that is not possible"),
        Column(f"{side}_schema", SCHEMA_TYPE, "of the registry; null without one"),
        Column(f"{side}_error", "string", "why it was not decoded"),
    ]


def fields_column(side: str, type: pa.DataType) -> Column:
    """The column of a lake that has the nested columns of topics."""
    return Column(f"{side}_fields", _ddl(type), "decoded, as columns of each topic with one schema")


# Columns of topics ------------------------------------------------------------------------------------------------------
# A lake's table holds many topics: `value_fields` is one struct with a column for each topic, next to the JSON texts, which have every
# value as it was written. A column of a topic has the fields of its newest schema, and keeps those that it had before: it only grows. A
# topic whose schema became something else, or that has none, is in the texts only.


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

    def column(self, decoding: DecodedValues) -> pa.Array:
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


# The transform ----------------------------------------------------------------------------------------------------------


class Decode:
    """The transform of a selection that decodes keys and values. It must be bound to a tree, whose schemas it then has."""

    def __init__(
        self,
        wishes: Mapping[str, Wish],
        source: str | None = None,
        *,
        keeps_bytes: bool = False,
        decoder: ValueDecoder | None = None,
        is_tested: bool = True,
        is_shown: bool = True,
    ) -> None:
        """`source` is where schemas come from: a directory, a file or a URL; None: the registry's topic among the files. `keeps_bytes`:
        the bytes stay, and JSON texts and columns of topics come next to them. Decoded rows are tested, shown, or both.
        """
        self.wishes, self.source, self.keeps_bytes, self.decoder = dict(wishes), source, keeps_bytes, decoder
        self.is_tested, self.is_shown = is_tested, is_shown
        #: By side: the schema of a nested column; the nested columns of topics, next to the bytes.
        self.readers: dict[str, Reader | MessageReader] = {}
        self.fields: dict[str, Fields] = {}
        self.counts: Tally = Counter()

    def __str__(self) -> str:
        sides = ",".join(f"{side}={wish}" for side, wish in sorted(self.wishes.items()))
        return f"decode {sides}" + (f" with schemas of {self.source}" if self.source else "")

    __repr__ = __str__

    @property
    def options(self) -> dict[str, str]:
        """The options of Spark's source that ask for the same."""
        sides = ",".join(f"{side}={wish}" for side, wish in sorted(self.wishes.items()))
        return {"decode": sides} if self.source is None else {"decode": sides, "schemas": self.source}

    # Columns ------------------------------------------------------------------------------------------------------------

    def table(self, table: Table) -> Table:
        """The decoded columns in place of the bytes. Tables other than `records` stay as they are."""
        if table.name != RECORDS.name:
            return table
        columns = [self._column(column) for column in table.columns]
        for side in self._sides(table):
            columns += self._more(side)
        return table.with_columns(*columns)

    def _sides(self, table: Table) -> list[str]:
        sides = [side for side in ("key", "value") if side in table.names and side in self.wishes]
        return [side for side in sides if self.wishes[side].how != "raw"]

    def _column(self, column: Column) -> Column:
        wish = self.wishes.get(column.name)
        if wish is None or wish.how == "raw" or self.keeps_bytes:
            return column
        if wish.how == "string":
            return Column(column.name, "string", "as text; null where it is not text")
        if column.name in self.readers:
            return Column(
                column.name, _ddl(self.readers[column.name].arrow), "decoded; null where that is not possible"
            )
        return Column(column.name, JSON, "decoded, as JSON text")

    def _more(self, side: str) -> list[Column]:
        if self.keeps_bytes:
            return [*added_columns(side), *self._fields_column(side)]
        _, schema, error = added_columns(side)
        raw = Column(f"{side}_raw", "binary", "its bytes, where it was not decoded")
        if self.wishes[side].how == "string":
            return [error, raw]
        return [schema, error, *([raw] if side in self.readers else [])]

    def _fields_column(self, side: str) -> list[Column]:
        if side not in self.fields or not self.fields[side].readers:
            return []
        return [fields_column(side, self.fields[side].arrow)]

    def needs(self, table: Table, names: Sequence[str]) -> Sequence[str]:
        """The bytes of a side for what is made of them, with what names the schema and the place."""
        if table.name != RECORDS.name:
            return names
        needed = [name for name in names if name in table.names]
        for side in self._sides(table):
            if side in names or any(column.name in names for column in self._more(side)):
                needed += [side, *(name for name in ("headers", "topic", "partition", "offset") if name in table.names)]
        return list(dict.fromkeys(needed))

    # Rows ---------------------------------------------------------------------------------------------------------------

    def apply(self, batch: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        """The decoded rows."""
        if table.name != RECORDS.name:
            return batch
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        decoded: dict[str, pa.Array] = {}
        for side in self._sides(table):
            if side in columns:
                decoded |= self._side(side, columns)
        every = {**columns, **decoded}
        schema = pa.schema([(name, array.type) for name, array in every.items()], batch.schema.metadata)
        return pa.RecordBatch.from_arrays(list(every.values()), schema=schema)

    def _side(self, side: str, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        raw, wish = columns[side], self.wishes[side]
        if wish.how == "string":
            texts = self._text(side, raw, columns)
            if self.keeps_bytes:
                texts[f"{side}_json"] = _without(json_text(texts[side]), texts[side].is_null())
                texts[f"{side}_schema"] = DecodedValues(len(raw)).schemas()
                del texts[side], texts[f"{side}_raw"]
            return texts
        if self.decoder is None:
            raise OptionError("--decode: rows are not decoded here")
        topics = columns["topic"] if "topic" in columns else pa.nulls(len(raw), pa.string())
        reader = self.readers.get(side)
        fields = self.fields[side] if self.keeps_bytes and self._fields_column(side) else None
        decoding = self.decoder.decode(
            raw, columns.get("headers"), topics, side, reader, topic_readers=fields.readers if fields else None
        )
        self._count(side, decoding, columns)
        left = np.flatnonzero(~decoding.is_decoded & raw.is_valid().to_numpy(zero_copy_only=False))
        if number := _of_users(topics.take(pa.array(left[decoding.why[left] < 0]))):
            self.counts[side, NO_SCHEMA] += number
        about = {f"{side}_schema": decoding.schemas(), f"{side}_error": decoding.errors()}
        if self.keeps_bytes:
            about[f"{side}_json"] = decoding.values(pa.string())
            if fields is not None:
                about[f"{side}_fields"] = fields.column(decoding)
                self.counts[side, TEXT_ONLY] += fields.missed(topics, decoding.is_decoded & ~decoding.has_columns())
            return about
        if reader is not None:
            raw_left = _without(raw, pa.array(decoding.is_decoded))
            return {**about, side: decoding.values(reader.arrow), f"{side}_raw": raw_left}
        if left.size:
            decoding.pieces.append((left, json_text(raw.take(pa.array(left)), None)))
        return {**about, side: pa.ExtensionArray.from_storage(pa.json_(), decoding.values(pa.string()))}

    def _text(self, side: str, raw: pa.Array, columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
        try:
            text, is_text = raw.cast(pa.string()), np.ones(len(raw), np.bool_)
        except pa.ArrowInvalid:
            values = [None if value is None else text_of(value) for value in raw.to_pylist()]
            text = pa.array(values, pa.string())
            is_text = ~(text.is_null().to_numpy(zero_copy_only=False) & raw.is_valid().to_numpy(zero_copy_only=False))
        decoding = DecodedValues(len(raw))
        decoding.failed(np.flatnonzero(~is_text), NOT_TEXT)
        self._count(side, decoding, columns)
        return {side: text, f"{side}_error": decoding.errors(), f"{side}_raw": _without(raw, pa.array(is_text))}

    def _count(self, side: str, decoding: DecodedValues, columns: Mapping[str, pa.Array]) -> None:
        """Count values that were not decoded, by reason, with the first places."""
        for number, reason in enumerate(REASONS):
            rows = np.flatnonzero(decoding.why == number)
            if not rows.size:
                continue
            self.counts[side, reason] += int(rows.size)
            noted = sum(name == f"{side} {reason}" for name, _ in self.counts)
            for row in rows[: max(0, MOST_PLACES - noted)].tolist():
                self.counts[f"{side} {reason}", _place(columns, row)] += 1
        if decoding.trailing:
            self.counts[side, "trailing"] += len(decoding.trailing)
        for use in decoding.used:
            if use.schema.is_encrypted:
                self.counts[f"{side} encrypted", use.subject or ""] += 1
            if use.remark:
                self.counts[f"{side} remark", str(use.remark)] += 1

    def begin(self) -> Self:
        """A copy that has counted nothing; what was made of schemas is shared."""
        return self._with(self.decoder, self.readers, self.fields)

    def for_topics(self, topics: Sequence[str]) -> Self:
        """The same for rows of some topics: without columns of others."""
        return self._with(
            self.decoder, self.readers, {side: fields.only(topics) for side, fields in self.fields.items()}
        )

    def _with(
        self, decoder: ValueDecoder | None, readers: dict[str, Reader | MessageReader], fields: dict[str, Fields]
    ) -> Self:
        copy = type(self)(
            self.wishes,
            self.source,
            keeps_bytes=self.keeps_bytes,
            decoder=decoder,
            is_tested=self.is_tested,
            is_shown=self.is_shown,
        )
        copy.readers, copy.fields = readers, fields
        return copy

    def judge(self, counts: Tally) -> list[str]:
        """Notes on values that were not decoded, with the first places, and on schemas that may be wrong ones."""
        notes: list[str] = []
        counts = Counter({what: count for what, count in counts.items() if what[1] != NO_SCHEMA})
        for (side, reason), count in sorted(counts.items()):
            if side not in SIDES:
                continue
            if reason == TEXT_ONLY:
                if count:
                    notes.append(
                        f"--decode: {counted(count, side)} only in {side}_json: the topic's newest schema cannot have them"
                    )
                continue
            if reason == "trailing":
                notes.append(f"--decode: {counted(count, side)} with more bytes than the schema has")
                continue
            places = [place for name, place in counts if name == f"{side} {reason}"][:MOST_PLACES]
            where = f" ({', '.join(places)}{', …' if count > len(places) else ''})" if places else ""
            text = f"--decode: {counted(count, side)} not decoded, bytes as they are: {REASONS[reason]}{where}"
            notes.append(Undecoded(text, side, count))
        for name, text in sorted(counts):
            if name.endswith(" remark"):
                notes.append(f"--decode: {text}")
            elif name.endswith(" encrypted"):
                notes.append(f"--decode: fields of {text} are encrypted, and stay so")
        if self.decoder is not None and not self.decoder.catalog and any(r == "unknown_schema_id" for _, r in counts):
            notes.append(f"--decode: no schemas: there is no topic {TOPIC} among the files; --schemas names a place")
        problems = [] if self.decoder is None else self.decoder.catalog.problems
        if problems and counts:
            notes.append(f"--decode: {counted(len(problems), 'record')} of the schemas' topic ignored: {problems[0]}")
        return notes

    @staticmethod
    def unseen(tallies: Iterable[Tally]) -> list[Undecoded]:
        """Notes on values that no expression looked into, because nothing names a schema for them."""
        numbers: Counter[str] = Counter()
        for counts in tallies:
            numbers += Counter({side: number for (side, why), number in counts.items() if why == NO_SCHEMA})
        text = "not looked into: nothing names a schema for them (JSON values are looked into without --decode, or with"
        return [
            Undecoded(f"--decode: {counted(number, side)} {text} {side}=json)", side, number)
            for side, number in sorted(numbers.items())
        ]

    def findings(self, file: File) -> list[Finding]:
        """What was counted in rows of a file, as findings: one for each side and reason, at the first value."""
        findings = []
        for (side, reason), count in sorted(self.counts.items()):
            if side in SIDES and reason in REASONS:
                places = [place for name, place in self.counts if name == f"{side} {reason}"]
                message = f"{counted(count, side)} not decoded: {REASONS[reason]}"
                offset = places[0].rpartition(" ")[2] if places else ""
                at = int(offset) if offset.isdecimal() else None
                findings.append(
                    Finding(code(side, reason), Severity.INFO, file.path, file.format, None, None, at, message)
                )
        return findings

    # Binding ------------------------------------------------------------------------------------------------------------

    def bound(self, tree: Tree, selection: Selection, catalog: Catalog | None = None) -> Self:
        """The same with the schemas for a tree. OptionError if a nested column is asked for and cannot be; AccessError for a source
        without schemas.
        """
        if self.decoder is not None:
            return self
        catalog = _catalog(self, tree) if catalog is None else catalog
        copy = self._with(ValueDecoder(catalog, {side: wish.how for side, wish in self.wishes.items()}), {}, {})
        nested = {side: wish for side, wish in self.wishes.items() if wish.how in COLUMNS and wish.version != WRITTEN}
        topics = _topics(tree, selection) if nested else []
        has_unplaced = bool(nested) and self.keeps_bytes and _has_unplaced(tree)
        for side, wish in nested.items():
            if self.keeps_bytes:
                more = _subject_topics(selection, catalog, side) if has_unplaced else ()
                copy.fields[side] = Fields(side, _readers(side, wish, catalog, sorted({*topics, *more})))
            elif (reader := _reader(side, wish, catalog, topics)) is not None:
                copy.readers[side] = reader
        return copy

    def joined(self, table: pa.Schema) -> tuple[Self, list[str]]:
        """The same with the columns of topics that a table has already, and notes on topics that get none."""
        fields, notes = {}, []
        for side, columns in self.fields.items():
            name = f"{side}_fields"
            fields[side], more = columns.joined(table.field(name).type if name in table.names else None)
            notes += more
        return self._with(self.decoder, self.readers, fields), notes


def bind(selection: Selection, tree: Tree, schemas: Callable[[], Catalog] | None = None) -> Selection:
    """The selection with schemas for its decoding, if it decodes. `schemas` finds them where no place was named and the tree has none."""
    decoding = [transform for transform in selection.transforms if isinstance(transform, Decode | SchemaMask)]
    if not decoding:
        return selection
    catalog = _catalog(decoding[0], tree)
    if not catalog and schemas is not None and decoding[0].source is None:
        catalog = schemas()
    bound: list[Transform] = []
    for transform in selection.transforms:
        if isinstance(transform, Decode):
            bound.append(transform.bound(tree, selection, catalog))
        else:
            bound.append(transform.bound(catalog) if isinstance(transform, SchemaMask) else transform)
    return selection.replace(transforms=tuple(bound))


def _catalog(transform: Decode | SchemaMask, tree: Tree) -> Catalog:
    """The schemas for a tree. AccessError for a source without schemas."""
    if transform.decoder is not None:
        return transform.decoder.catalog
    needs_schemas = any(wish.how not in ("raw", "string") for wish in transform.wishes.values())
    return catalog_for(tree, transform.source) if needs_schemas else Catalog()


def _topics(tree: Tree, selection: Selection) -> list[str]:
    """The topics of the rows, without those that systems keep for themselves."""
    names = {file.place.topic for file in tree if selection.takes_file(file) and file.place.topic is not None}
    if not names and not any(
        set(topic) & set("*?[") for topic in selection.topics
    ):  # of tables, whose places tell no topics
        names = set(selection.topics)
    return sorted(name for name in names if name != TOPIC and not name.startswith("__"))


def _has_unplaced(tree: Tree) -> bool:
    """Whether there are files of records whose places tell no topic: rows of any topic may be in them."""
    formats = registry.formats_with(RECORDS)
    return any(file.place.topic is None and file.format in formats for file in tree)


def _subject_topics(selection: Selection, catalog: Catalog, side: str) -> set[str]:
    """The wanted topics that have a schema."""
    suffix = f"-{side}"
    subjects = {version.subject for version in catalog.versions.values() if version.subject.endswith(suffix)}
    return {topic for topic in (name.removesuffix(suffix) for name in subjects) if selection.takes_topic(topic)}


def _readers(side: str, wish: Wish, catalog: Catalog, topics: Sequence[str]) -> dict[str, Reader | MessageReader]:
    """The schemas of topics that have one each. OptionError if a version was asked for that none of them has."""
    readers: dict[str, Reader | MessageReader] = {}
    failure: OptionError | None = None
    for topic in topics:
        try:
            reader = _reader(side, wish, catalog, [topic])
        except OptionError as error:
            failure = failure or error
            continue
        if reader is not None:
            readers[topic] = reader
    if failure is not None and not readers:
        raise failure
    return readers


def _reader(side: str, wish: Wish, catalog: Catalog, topics: Sequence[str]) -> Reader | MessageReader | None:
    """The schema of a nested column; None if the rows have no common one and none was asked for."""
    try:
        return _common(side, wish, catalog, topics)
    except (SchemaError, LookupError) as error:
        if wish.version is not None:
            raise OptionError(f"--decode {side}={wish}: no columns: {error}") from None
        return None


def _common(side: str, wish: Wish, catalog: Catalog, topics: Sequence[str]) -> Reader | MessageReader:
    """The schema that all rows have in common. SchemaError or LookupError if there is none."""
    if len(topics) != 1:
        raise SchemaError(f"rows of {counted(len(topics), 'topic')}; --topic names one")
    subject = f"{topics[0]}-{side}"
    versions = list(catalog.versions_of(subject))
    kinds = {version.schema.type for version in versions}
    if not versions:
        raise SchemaError(f"no subject {subject}")
    if len(kinds) > 1 or kinds & {"JSON"} or (wish.how != "auto" and kinds != {wish.how.upper()}):
        raise SchemaError(f"{subject} is {' and '.join(sorted(kinds))}")
    chosen = max(versions, key=lambda version: (version.state == "live", version.version))
    if isinstance(wish.version, int):
        chosen = next((version for version in versions if version.version == wish.version), chosen)
        if chosen.version != wish.version:
            have = ", ".join(map(str, sorted(version.version for version in versions)))
            raise SchemaError(f"{subject} has no such version; it has {have}")
    return _reader_of(chosen, catalog)


def _reader_of(version: Version, catalog: Catalog) -> Reader | MessageReader:
    used = catalog.referenced(version.schema)
    if version.schema.type == "AVRO":
        return Reader(avro.parse(version.schema.text, [schema.text for _, schema in used]))
    imports = [(reference.name, schema.text) for reference, schema in used]
    messages = protobuf.compile_schema(version.schema.text, imports)
    if sum(len(path) == 1 for path in messages.messages) != 1:
        raise SchemaError(f"{version.name} has several messages")
    return MessageReader(messages, (0,))


def _ddl(type: pa.DataType) -> str:
    return spark_type(type, naive="timestamp_ntz")


def _place(columns: Mapping[str, pa.Array], row: int) -> str:
    topic, partition, offset = (
        columns[name][row].as_py() if name in columns else None for name in ("topic", "partition", "offset")
    )
    return f"{'?' if topic is None else topic}-{'?' if partition is None else partition} offset {offset}"


def _of_users(topics: pa.Array) -> int:
    """How many of some records are not of the registry's topic or of an internal one."""
    return sum(
        int(row["counts"])
        for row in topics.value_counts().to_pylist()
        if row["values"] is None or not (row["values"] == TOPIC or row["values"].startswith("__"))
    )


def _without(raw: pa.Array, taken: pa.Array) -> pa.Array:
    """The bytes of values that were not decoded."""
    return pc.if_else(taken, pa.scalar(None, raw.type), raw)
